//! `rowmill token`: tokens, and their lines for rowmill-control.

use std::path::PathBuf;

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use rowmill_trust::{Identity, Token};

use crate::cert::{dataplane, operator, write_new};
use crate::output::print;

/// `rowmill token ...`
#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Draw one, for a file of its owner's, and its line for the file that tokens_file of rowmill-control names
    New(New),
}

/// Options of `rowmill token new`.
#[derive(Args)]
pub(crate) struct New {
    #[command(flatten)]
    who: Who,
    /// Write the token to this new file, which only its owner may read, and print the line alone
    #[arg(long, value_name = "FILE")]
    to: Option<PathBuf>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct Who {
    /// For the dataplane of this name (control.name)
    #[arg(long, value_name = "NAME", value_parser = dataplane)]
    dataplane: Option<Identity>,
    /// For an operator, by a name
    #[arg(long, value_name = "NAME", value_parser = operator)]
    operator: Option<Identity>,
}

impl TokenCommand {
    pub(crate) fn run(self) -> Result<()> {
        let TokenCommand::New(New { who, to }) = self;
        let identity = who.dataplane.or(who.operator).expect("clap wants one");
        let token = Token::draw().map_err(|why| anyhow!(why))?;
        let line = token.line(&identity);
        let Some(path) = to else {
            return print(&format!(
                "token, which is not shown again (its owner's token_file or --token-file):\n{}\nline for tokens_file:\n{line}\n",
                token.secret()
            ));
        };
        write_new(&path, &format!("{}\n", token.secret()), true)?;
        print(&format!("{line}\n"))
    }
}
