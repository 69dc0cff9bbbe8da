//! The programs under test, and starting them so that none outlives whoever started it.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// The first argument of this program where it is to become another one: see [`Programs::leashed`].
pub const LEASH: &str = "--leash";

/// The programs of this build: they lie side by side.
#[derive(Clone, Debug)]
pub struct Programs {
    folder: PathBuf,
    /// Names and values that programs find in their environment, once they are set.
    environment: Arc<OnceLock<Vec<(&'static str, PathBuf)>>>,
}

impl Programs {
    /// Looks beside the running program, or beside the folder `deps` that tests run from.
    ///
    /// # Errors
    /// Names what is missing and the command that builds it.
    pub fn find() -> Result<Programs> {
        let here = std::env::current_exe().context("where this program lies")?;
        let folder = here.parent().context("a program lies in a folder")?;
        let folder = match folder.file_name() {
            Some(name) if name == "deps" => folder.parent().context("the folder of the build")?,
            _ => folder,
        };
        for name in ["rowmilld", "rowmill", "faults"] {
            let path = folder.join(name);
            ensure!(
                path.exists(),
                "{} is not built; run `cargo build --release --bins` first",
                path.display()
            );
        }
        Ok(Programs {
            folder: folder.to_owned(),
            environment: Arc::default(),
        })
    }

    /// Has all programs that are started from now on find these names and values in their environment.
    ///
    /// # Errors
    /// Where that was done before.
    pub(crate) fn set_environment(&self, with: Vec<(&'static str, PathBuf)>) -> Result<()> {
        let outcome = self.environment.set(with);
        outcome.map_err(|_| anyhow::anyhow!("the programs have an environment already"))
    }

    /// The path of `rowmilld`, `rowmill` or `faults`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// A command that runs the program called `name`, and that the kernel kills when the thread that
    /// starts it ends, however that comes about. Start it from the main thread.
    ///
    /// It starts `faults`, which asks the kernel for that and then becomes the program; so nobody has to
    /// run code between fork and exec.
    pub fn leashed(&self, name: &str) -> Command {
        let mut command = Command::new(self.path("faults"));
        let owner = getpid().as_raw_nonzero().to_string();
        command.args([LEASH, &owner]).arg(self.path(name));
        command.env_remove("ROWMILL_LOG");
        command.envs(self.environment.get().into_iter().flatten().cloned());
        command
    }
}

/// The kernel kills this process when the thread that started it ends.
///
/// # Errors
/// Where the kernel refuses, or process `owner`, who started this one, is gone already.
pub fn leash(owner: i32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("prctl PR_SET_PDEATHSIG")?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get());
    ensure!(parent == Some(owner), "process {owner} is gone");
    Ok(())
}

/// Becomes the program that `arguments` name after the owner: what [`LEASH`] asks for.
///
/// # Errors
/// As [`leash`], and where the program can't be run. Does not come back otherwise.
pub fn become_leashed(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Result<()> {
    let owner = arguments.next().context("whose leash")?;
    let owner = owner
        .to_str()
        .and_then(|text| text.parse().ok())
        .context("a process")?;
    leash(owner)?;
    let program = arguments.next().context("which program")?;
    let error = Command::new(&program).args(arguments).exec();
    bail!("cannot run {}: {error}", PathBuf::from(program).display())
}
