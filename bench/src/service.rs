//! A `rowmilld` of our own: started for a measurement, stopped with it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rowmill_client::{AnyPort, Client, Options, Session};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::driver::unpin;

/// How long a service may take to load its tables: 16 GiB at the 0.4 GB/s of a slow disk, and as much
/// again.
const START_LIMIT: Duration = Duration::from_secs(90);
/// How long it may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// A running service. Dropping it stops it and removes its folder.
pub(crate) struct Service {
    child: Child,
    folder: tempfile::TempDir,
    endpoint: String,
    admin: String,
}

/// The folders of running services, which a signal has to remove.
static RUNNING: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

const UNPOISONED: &str = "nobody panics while it is held";

/// At a signal that ends this program nothing is dropped, so a thread removes the services' folders. The
/// services end with this process.
fn clean_up_on_signals() -> Result<()> {
    static STARTED: Once = Once::new();
    let mut outcome = Ok(());
    STARTED.call_once(|| outcome = start_cleaner());
    outcome
}

fn start_cleaner() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot handle signals")?;
    let work = move || {
        if let Some(signal) = signals.forever().next() {
            let running = RUNNING.lock().expect(UNPOISONED);
            for folder in running.iter() {
                // What can't be removed stays: there is nobody to tell.
                let _ = fs::remove_dir_all(folder);
            }
            std::process::exit(128 + signal);
        }
    };
    let thread = std::thread::Builder::new().name("bench-signals".into());
    thread.spawn(work).context("the signal thread")?;
    Ok(())
}

/// The path of another program of this build.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe().context("where this program lies")?;
    let path = here.with_file_name(name);
    if !path.exists() {
        bail!(
            "{} is not built; run `cargo build --release --bins`",
            path.display()
        );
    }
    Ok(path)
}

impl Service {
    /// Starts a service of the generation in `model` over shared memory, with `extra` lines of configuration tables.
    ///
    /// # Errors
    /// With the end of its log where it does not come up.
    pub(crate) fn start(model: &Path, extra: &str) -> Result<Service> {
        let folder = tempfile::tempdir().context("a folder for the service")?;
        let endpoint = format!("shm:{}", folder.path().join("rowmill.sock").display());
        Service::start_in(folder, endpoint, model, extra)
    }

    /// The same at an endpoint of the caller's choice.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub(crate) fn start_at(endpoint: &str, model: &Path, extra: &str) -> Result<Service> {
        let folder = tempfile::tempdir().context("a folder for the service")?;
        Service::start_in(folder, endpoint.to_owned(), model, extra)
    }

    fn start_in(
        folder: tempfile::TempDir,
        endpoint: String,
        model: &Path,
        extra: &str,
    ) -> Result<Service> {
        let admin = free_address()?;
        // Measured are machines that nobody else reaches.
        let insecure = endpoint.starts_with("rdma:");
        let config = format!(
            "endpoints = [\"{endpoint}\"]\ninsecure = {insecure}\n[model]\ndirectory = \"{}\"\nname = \"dlrm-v2\"\n[admin]\naddress = \"{admin}\"\n{extra}",
            model.display()
        );
        let file = folder.path().join("rowmilld.toml");
        fs::write(&file, config).context("the service's configuration")?;
        let log =
            fs::File::create(folder.path().join("rowmilld.log")).context("the service's log")?;
        clean_up_on_signals()?;
        RUNNING.lock().expect(UNPOISONED).push(folder.path().into());
        unpin()?;
        let child = Command::new(program("rowmilld")?)
            // The kernel ends it when this thread ends, however that comes about.
            .args(["--leash", &std::process::id().to_string()])
            .arg("--config")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("the service's log")?)
            .stderr(log)
            .spawn()
            .context("starting rowmilld")?;
        let mut service = Service {
            child,
            folder,
            endpoint,
            admin,
        };
        service
            .wait_until_ready()
            .with_context(|| format!("serving {}", crate::model::shown(model)))?;
        Ok(service)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().context("waiting for rowmilld")? {
                bail!("rowmilld ended with {status}:\n{}", self.log_end());
            }
            if self.is_ready() {
                return Ok(());
            }
            if began.elapsed() > START_LIMIT {
                bail!(
                    "rowmilld was not ready after {START_LIMIT:?}:\n{}",
                    self.log_end()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether clients can connect. Over RDMA that is not tried: not every machine can connect to itself.
    fn is_ready(&self) -> bool {
        match self.endpoint.starts_with("rdma:") {
            true => self.status().is_ok_and(|page| page["state"] == "serving"),
            false => self.connect("probe").is_ok(),
        }
    }

    /// Where clients connect.
    pub(crate) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where operators ask it.
    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A new session.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn connect(&self, name: &str) -> Result<Session<AnyPort>> {
        let options = Options {
            name: name.into(),
            ..Options::default()
        };
        Ok(Client::connect(&self.endpoint, options)?)
    }

    /// What `rowmill status --json` says of it.
    ///
    /// # Errors
    /// Where the command fails.
    pub(crate) fn status(&self) -> Result<serde_json::Value> {
        let out = Command::new(program("rowmill")?)
            .args(["status", "--json", "--admin", &self.admin])
            .output()
            .context("running rowmill status")?;
        if !out.status.success() {
            bail!("rowmill status: {}", String::from_utf8_lossy(&out.stderr));
        }
        serde_json::from_slice(&out.stdout).context("the status page")
    }

    /// What an operator's command prints, `rowmill` with these arguments.
    ///
    /// # Errors
    /// With what it says where it fails.
    pub(crate) fn rowmill(arguments: &[&str]) -> Result<String> {
        let command = Command::new(program("rowmill")?).args(arguments).output();
        let out = command.with_context(|| format!("running rowmill {}", arguments.join(" ")))?;
        if !out.status.success() {
            bail!(
                "rowmill {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&out.stderr)
            );
        }
        Ok(String::from_utf8_lossy(&out.stdout).into_owned())
    }

    /// The last lines of its log.
    pub(crate) fn log_end(&self) -> String {
        let text = fs::read_to_string(self.folder.path().join("rowmilld.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Asks it to drain and waits for its end.
    ///
    /// # Errors
    /// Where it ends with a failure or not in time.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.signal(Signal::TERM);
        let began = Instant::now();
        while began.elapsed() < STOP_LIMIT {
            if let Some(status) = self.child.try_wait().context("waiting for rowmilld")? {
                if status.success() {
                    return Ok(());
                }
                bail!("rowmilld ended with {status}:\n{}", self.log_end());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!(
            "rowmilld did not stop within {STOP_LIMIT:?}:\n{}",
            self.log_end()
        );
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.child.id() as i32) {
            // It may have ended by itself; then there is nothing to signal.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().expect(UNPOISONED);
        running.retain(|folder| folder != self.folder.path());
        drop(running);
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn free_address() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a free port for the admin pages")?;
    Ok(listener.local_addr().context("its address")?.to_string())
}
