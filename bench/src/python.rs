//! A Python process beside this one, which does what it is told a line at a time, and waits while this one works.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::service::program;

/// The Python that has PyTorch, TorchRec and LoadGen.
///
/// # Errors
/// Where there is none; the message says how to get it.
pub(crate) fn interpreter() -> Result<PathBuf> {
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

/// The folder with the package `rowmill` of this build, for `sys.path`.
///
/// # Errors
/// Where it was not put there; the message says how to.
pub(crate) fn package() -> Result<PathBuf> {
    let package = program("rowmilld")?.with_file_name("python");
    ensure!(
        package.exists(),
        "the package rowmill is not at {}; deploy/stage-python.sh, which `make peers` calls, builds it",
        package.display()
    );
    Ok(package)
}

/// The process. Dropped, it ends.
pub(crate) struct Python {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Python {
    /// Starts `program`, the text of a script, with the Python that has PyTorch.
    ///
    /// # Errors
    /// Where there is no interpreter for it.
    pub(crate) fn start(program: &str, arguments: &[&str]) -> Result<Python> {
        Python::start_with(&interpreter()?, program, arguments)
    }

    /// Starts it with another Python.
    ///
    /// # Errors
    /// Where it can't be started.
    pub(crate) fn start_with(python: &Path, program: &str, arguments: &[&str]) -> Result<Python> {
        let mut child = Command::new(python)
            .args(["-c", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", python.display()))?;
        Ok(Python {
            to: child.stdin.take().expect("a pipe"),
            from: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        })
    }

    /// Sends a line and waits for the line that answers it.
    ///
    /// # Errors
    /// Where the process has ended.
    pub(crate) fn ask(&mut self, command: &str) -> Result<String> {
        writeln!(self.to, "{command}").context("the Python process is gone")?;
        let mut line = String::new();
        let read = self.from.read_line(&mut line);
        if read.context("the Python process' answer")? == 0 {
            bail!("the Python process ended at `{command}`; its message stands above");
        }
        Ok(line.trim().to_owned())
    }

    /// The seconds that a command says it took.
    ///
    /// # Errors
    /// As [`Python::ask`].
    pub(crate) fn seconds(&mut self, command: &str) -> Result<f64> {
        self.ask(command)?.parse().context("seconds")
    }

    /// The f32 that a command writes to a file.
    ///
    /// # Errors
    /// As [`Python::ask`], and where there is no such file.
    pub(crate) fn floats(&mut self, command: &str, file: &Path) -> Result<Vec<f32>> {
        self.ask(command)?;
        let bytes = fs::read(file).context("what the Python process wrote")?;
        let floats = bytes.chunks_exact(4);
        Ok(floats
            .map(|x| f32::from_le_bytes(x.try_into().expect("four bytes")))
            .collect())
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for, so that none is left.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
