//! A Python process beside this one, which takes commands, one a line, and answers each with a line.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::service::program;

/// A running script. Dropping it ends it.
pub(crate) struct Script {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Script {
    /// Starts a script, which finds the package `rowmill` if that was put beside the programs.
    ///
    /// # Errors
    /// Where there is no Python with PyTorch (the message says how to get it).
    pub(crate) fn start(text: &str) -> Result<Script> {
        let python = python()?;
        let package = program("rowmilld").map(|path| path.with_file_name("python"));
        let mut child = Command::new(&python)
            .args(["-c", text])
            .envs(package.ok().map(|folder| ("PYTHONPATH", folder)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", python.display()))?;
        Ok(Script {
            to: child.stdin.take().expect("a pipe"),
            from: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        })
    }

    /// The answer to a command.
    ///
    /// # Errors
    /// Where the script has ended.
    pub(crate) fn ask(&mut self, command: &str) -> Result<String> {
        writeln!(self.to, "{command}").context("the Python side is gone")?;
        let mut line = String::new();
        if self
            .from
            .read_line(&mut line)
            .context("the Python side's answer")?
            == 0
        {
            bail!("the Python side ended at `{command}`; its message stands above");
        }
        Ok(line.trim().to_owned())
    }

    /// The seconds that a command says it took.
    ///
    /// # Errors
    /// As [`Script::ask`].
    pub(crate) fn seconds(&mut self, command: &str) -> Result<f64> {
        self.ask(command)?
            .parse()
            .context("the Python side's seconds")
    }

    /// The f32 that a command has written to a file.
    ///
    /// # Errors
    /// As [`Script::ask`], and where there is no such file.
    pub(crate) fn floats(&mut self, command: &str, file: &Path) -> Result<Vec<f32>> {
        self.ask(command)?;
        let bytes = fs::read(file).context("what the Python side wrote")?;
        let floats = bytes.chunks_exact(4);
        Ok(floats
            .map(|x| f32::from_le_bytes(x.try_into().expect("four bytes")))
            .collect())
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for, so that none is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The Python that has PyTorch.
fn python() -> Result<PathBuf> {
    if let Some(given) = std::env::var_os("ROWMILL_PEERS_PYTHON") {
        return Ok(given.into());
    }
    let python = crate::model::cache_folder().join("peers/bin/python");
    ensure!(
        python.exists(),
        "there is no PyTorch to compare with; run `make peers`, which installs it under {}, or name a Python that has \
         it in ROWMILL_PEERS_PYTHON",
        python.display()
    );
    Ok(python)
}
