//! A thread of a service that is held for as long as a fault wants, so that whatever needs all workers is under way meanwhile: some have
//! taken it in, and one has not.
//!
//! The kernel holds it for who traces it, and takes all that is asked of a traced thread from the thread that traces: one for each that is held.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::site::{Running, Site, patience};

/// How often it is looked whether a thread that is held has been killed.
const LOOK: Duration = Duration::from_millis(1);

/// A thread that is held; it goes on when this is dropped.
pub(super) struct Held {
    /// Its folder in /proc.
    folder: PathBuf,
    /// Dropped to let it go.
    holding: Option<Sender<()>>,
    holder: Option<JoinHandle<Result<()>>>,
}

/// Why no thread can be held here; `None` where one can.
///
/// # Errors
/// Where there is no program to try it on.
pub(super) fn why_not(site: &Site) -> Result<Option<String>> {
    let mut idle = site.programs.leashed("/usr/bin/env");
    let idle = idle.args(["sleep", "60"]).spawn();
    let idle = Running(idle.context("a program that sleeps")?);
    Ok(match Held::thread(idle.id(), idle.id()) {
        Ok(held) => held.let_go().err().map(|error| format!("{error:#}")),
        Err(error) => Some(format!("needs to trace what it has started: {error:#}")),
    })
}

impl Held {
    /// Holds a worker of the service that is this process. When this returns it has stopped.
    ///
    /// # Errors
    /// Where there is none of this number, or it can't be held.
    pub(super) fn worker(process: u32, number: usize) -> Result<Held> {
        let wanted = format!("rowmilld-{number}");
        for entry in fs::read_dir(format!("/proc/{process}/task")).context("its threads")? {
            let thread = entry.context("its threads")?.path();
            if fs::read_to_string(thread.join("comm")).is_ok_and(|name| name.trim() == wanted) {
                let id = thread.file_name().and_then(|id| id.to_str()?.parse().ok());
                return Held::thread(process, id.context("a thread's number")?);
            }
        }
        bail!("process {process} has no thread {wanted}")
    }

    fn thread(process: u32, thread: u32) -> Result<Held> {
        let (holding, held) = channel();
        let (sender, stopped) = channel();
        let holder = std::thread::spawn(move || hold(thread, &sender, &held));
        let held = Held {
            folder: PathBuf::from(format!("/proc/{process}/task/{thread}")),
            holding: Some(holding),
            holder: Some(holder),
        };
        // Without a word its thread has ended with a reason.
        if stopped.recv_timeout(patience()).is_err() {
            held.let_go()?;
            bail!("a thread is not held within {:?}", patience());
        }
        held.is_held()?;
        Ok(held)
    }

    /// That it has not gone on.
    ///
    /// # Errors
    /// If it has, or is gone.
    pub(super) fn is_held(&self) -> Result<()> {
        let stat = fs::read_to_string(self.folder.join("stat")).context("a thread that is held")?;
        // The state follows the name, which is in brackets.
        let (_, state) = stat.rsplit_once(") ").context("a thread's state")?;
        ensure!(state.starts_with('t'), "the thread goes on: {state}");
        Ok(())
    }

    /// Lets it go; one that was killed is gone.
    ///
    /// # Errors
    /// Where it could not be held.
    pub(super) fn let_go(mut self) -> Result<()> {
        drop(self.holding.take());
        let holder = self.holder.take().context("let go once")?;
        holder
            .join()
            .map_err(|_| anyhow::anyhow!("who holds a thread panicked"))?
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.holding.take());
        // Nobody asks any more.
        let _let_go = self.holder.take().map(JoinHandle::join);
    }
}

/// Holds a thread until nobody wants it held, or it is killed.
fn hold(thread: u32, stopped: &Sender<()>, held: &Receiver<()>) -> Result<()> {
    let thread = Pid::from_raw(thread.try_into().context("a thread's number")?);
    ptrace::seize(thread, ptrace::Options::empty()).context("seizing a thread")?;
    ptrace::interrupt(thread).context("interrupting a thread")?;
    let began = Instant::now();
    // What it does in the kernel ends first.
    while let Some(WaitStatus::StillAlive) = status_of(thread)? {
        ensure!(began.elapsed() < patience(), "a thread does not stop");
        std::thread::sleep(LOOK);
    }
    // Nobody listens who has lost patience.
    let _told = stopped.send(());
    loop {
        let wanted = held.recv_timeout(LOOK);
        // A thread that was killed is there until who traces it has seen that.
        if status_of(thread)?.is_none() {
            return Ok(());
        }
        if wanted == Err(RecvTimeoutError::Disconnected) {
            return match ptrace::detach(thread, None) {
                // It is being killed.
                Err(Errno::ESRCH) => Ok(()),
                detached => detached.context("letting a thread go"),
            };
        }
    }
}

/// What a traced thread does now; `None` where it is gone.
fn status_of(thread: Pid) -> Result<Option<WaitStatus>> {
    match waitpid(thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) | Err(Errno::ECHILD) => Ok(None),
        status => Ok(Some(status.context("a thread that is held")?)),
    }
}
