//! `rowmill cert`: certificates for development.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use rowmill_trust::Identity;
use rowmill_trust::development::{Authority, Issued};

use crate::output::print;

/// `rowmill cert ...`
#[derive(Subcommand)]
pub(crate) enum CertCommand {
    /// An authority, and certificates for rowmill-control, dataplanes and operators, in PEM
    Dev(Dev),
}

/// Options of `rowmill cert dev`.
#[derive(Args)]
pub(crate) struct Dev {
    /// The folder, made where it is missing: ca.pem, server.pem, dataplane-NAME.pem, operator-NAME.pem, and the keys ...-key.pem
    folder: PathBuf,
    /// What rowmill-control is dialled as, a name or address
    #[arg(
        long,
        value_name = "HOST",
        default_values = ["localhost", "127.0.0.1", "::1"]
    )]
    host: Vec<String>,
    /// A dataplane, by its name (control.name)
    #[arg(long, value_name = "NAME", value_parser = dataplane)]
    dataplane: Vec<Identity>,
    /// An operator, by a name
    #[arg(long, value_name = "NAME", value_parser = operator)]
    operator: Vec<Identity>,
    /// Days until all of them expire
    #[arg(long, default_value_t = 90, allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..=825))]
    days: u64,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
}

pub(crate) fn dataplane(name: &str) -> Result<Identity, String> {
    Identity::of("dataplane", name).map_err(|error| error.to_string())
}

pub(crate) fn operator(name: &str) -> Result<Identity, String> {
    Identity::of("operator", name).map_err(|error| error.to_string())
}

impl CertCommand {
    pub(crate) fn run(self) -> Result<()> {
        let CertCommand::Dev(dev) = self;
        dev.run()
    }
}

/// A file that is to be, and whether only its owner may read it.
struct Wanted {
    path: PathBuf,
    text: String,
    secret: bool,
}

impl Dev {
    fn run(self) -> Result<()> {
        let now = SystemTime::now();
        // Clocks of other hosts may be behind.
        let validity =
            now - Duration::from_secs(3600)..now + Duration::from_secs(self.days * 24 * 3600);
        let authority = Authority::new(&validity)?;
        let mut files = vec![Wanted {
            path: self.folder.join("ca.pem"),
            text: authority.certificate().into(),
            secret: false,
        }];
        let server = authority.server(&self.host, &validity).context("--host")?;
        files.extend(self.pair("server", server));
        for who in self.dataplane.iter().chain(&self.operator) {
            let client = authority.client(who, &validity)?;
            files.extend(self.pair(&format!("{}-{}", who.role, who.name), client));
        }
        self.write(&files)?;
        let names = |of: &[Identity]| {
            let names: Vec<&str> = of.iter().map(|who| who.name.as_str()).collect();
            match names.is_empty() {
                true => "none".into(),
                false => names.join(", "),
            }
        };
        print(&format!(
            "{}: an authority for development, rowmill-control as {}, dataplanes: {}, operators: {}; valid for {} days\n\
             the authority's key was not kept: for more names make all of them anew (--force)\n",
            self.folder.display(),
            self.host.join(", "),
            names(&self.dataplane),
            names(&self.operator),
            self.days
        ))
    }

    fn pair(&self, name: &str, issued: Issued) -> [Wanted; 2] {
        let of = |name: String, text, secret| Wanted {
            path: self.folder.join(name),
            text,
            secret,
        };
        [
            of(format!("{name}.pem"), issued.certificate, false),
            of(format!("{name}-key.pem"), issued.key, true),
        ]
    }

    /// All of them, or none where one is there already.
    fn write(&self, files: &[Wanted]) -> Result<()> {
        for Wanted { path, .. } in files {
            ensure!(
                self.force || fs::symlink_metadata(path).is_err(),
                "{} is there already: choose another folder, or --force, which makes all of them anew",
                path.display()
            );
        }
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o755).create(&self.folder);
        made.with_context(|| format!("cannot make {}", self.folder.display()))?;
        for wanted in files {
            if self.force && fs::symlink_metadata(&wanted.path).is_ok() {
                let removed = fs::remove_file(&wanted.path);
                removed.with_context(|| format!("cannot replace {}", wanted.path.display()))?;
            }
            write_new(&wanted.path, &wanted.text, wanted.secret)?;
        }
        Ok(())
    }
}

/// Writes a file that is not there yet.
pub(crate) fn write_new(path: &Path, text: &str, secret: bool) -> Result<()> {
    let mode = if secret { 0o600 } else { 0o644 };
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("cannot write {}", path.display()))
}
