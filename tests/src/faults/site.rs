//! Where a fault happens: a folder of its own with a small model, configurations, and services.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_arena::HugePages;
use rowmill_table::{
    Generation, LoadOptions, Missing, Resident, RowFormat, TableKind, TableSpec, generate, silent,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value};

use super::programs::Programs;

/// How long a service may take to start or end, and a command to run. In user-mode Linux a service touches its 200 MiB at 0.1 to
/// 0.25 ms a page.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(30) * slowness()
}

/// How many times slower this machine may be than one that runs programs natively, by what the lab says of a test's patience
/// (20 s natively).
pub(crate) fn slowness() -> u32 {
    static SLOWNESS: LazyLock<u32> = LazyLock::new(|| {
        let said = std::env::var("ROWMILL_TEST_PATIENCE").ok();
        let seconds = said.and_then(|text| text.parse().ok()).unwrap_or(20u32);
        (seconds / 20).max(1)
    });
    *SLOWNESS
}

/// How long it may take over RDMA until a client is told of its connection's end, or until nothing of a client that is gone
/// is held: 2 s, on an emulated machine 10 s.
pub(crate) fn told_within() -> Duration {
    Duration::from_secs(if slowness() > 1 { 10 } else { 2 })
}

/// The address of an RDMA device, where services are to be reached over RDMA and not over shared memory.
pub(crate) fn rdma_address() -> Option<String> {
    std::env::var("ROWMILL_FAULTS_RDMA").ok()
}

/// Rows of the table `small`.
pub(crate) const SMALL_ROWS: u32 = 5000;
/// Rows of the table `quant`.
pub(crate) const QUANT_ROWS: u32 = 3000;
/// Dimensions of the table `wide`, for requests that take long.
pub(crate) const WIDE_DIM: usize = 2048;

/// A fault's folder.
pub(crate) struct Site {
    /// The programs under test.
    pub(crate) programs: Programs,
    folder: PathBuf,
    /// Whether services are reached over shared memory wherever there is an RDMA device.
    is_local: bool,
}

/// What a configuration says beside its endpoint.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The generation's directory.
    pub(crate) model: PathBuf,
    /// `model.huge_pages`.
    pub(crate) huge_pages: &'static str,
    /// `limits.slots`: more than the credits of one client, so that a hostile one leaves some.
    pub(crate) slots: u32,
    /// Sections that are not among the ordinary ones: cached tables, and what workers have for them.
    pub(crate) cached: String,
}

/// Clients that a service takes at a time.
pub(crate) const CONNECTIONS: usize = 12;
/// Credits that a client gets at most.
pub(crate) const CREDITS: u16 = 6;

impl Site {
    /// A site in an empty folder, which whoever runs the fault removes.
    ///
    /// # Errors
    /// Where the programs are missing.
    pub(crate) fn new(folder: PathBuf) -> Result<Site> {
        Ok(Site {
            programs: Programs::find()?,
            folder,
            is_local: false,
        })
    }

    /// The same one, whose services are reached over shared memory.
    pub(crate) fn local(&self) -> Site {
        Site {
            programs: self.programs.clone(),
            folder: self.folder.clone(),
            is_local: true,
        }
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The endpoint of services here.
    pub(crate) fn endpoint(&self) -> String {
        match rdma_address() {
            Some(address) if !self.is_local => format!("rdma://{address}:7400"),
            _ => format!("shm:{}", self.path("r.sock").display()),
        }
    }

    /// Makes the model: `small` (f32, 16 dimensions), `quant` (int8, 32), `wide` (f32, 2048), and `keyed`
    /// (f16, 16), which is hashed and answers no id that it lacks.
    ///
    /// # Errors
    /// Where it can't be written.
    pub(crate) fn model(&self) -> Result<PathBuf> {
        self.model_with(&[])
    }

    /// Makes the model with more dense tables, of so many rows of 16 dimensions in f32. Every later model of the site is this one.
    ///
    /// # Errors
    /// As [`Site::model`].
    pub(crate) fn model_with(&self, more: &[(&str, u32)]) -> Result<PathBuf> {
        let model = self.path("model");
        if !model.exists() {
            generate(&model, 1, &specs(more), 7, &silent)?;
        }
        Ok(model)
    }

    /// Makes another generation of the model, with other rows and more tables, in a directory beside it.
    ///
    /// # Errors
    /// Where it can't be written.
    pub(crate) fn generation(&self, number: u64, more: &[(&str, u32)]) -> Result<PathBuf> {
        let directory = self.path(&format!("generation-{number}"));
        generate(&directory, number, &specs(more), number, &silent)?;
        Ok(directory)
    }

    /// The tables of all generations that were made beside the model, for the oracle.
    ///
    /// # Errors
    /// Where they can't be loaded.
    pub(crate) fn others(&self) -> Result<Vec<Arc<Resident>>> {
        let directories = (2..10).map(|number| self.path(&format!("generation-{number}")));
        let made = directories.filter(|directory| directory.exists());
        made.map(|directory| load(&directory)).collect()
    }

    /// A copy of the model's tables for the oracle, read from the files by another program than the service.
    ///
    /// # Errors
    /// Where it can't be loaded.
    pub(crate) fn tables(&self) -> Result<Arc<Resident>> {
        load(&self.model()?)
    }

    /// Ordinary settings.
    ///
    /// # Errors
    /// As [`Site::model`].
    pub(crate) fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            model: self.model()?,
            huge_pages: "off",
            slots: u32::from(CREDITS) + 2,
            cached: String::new(),
        })
    }

    /// Writes a configuration.
    ///
    /// # Errors
    /// Where it can't be written.
    pub(crate) fn configure(&self, settings: &Settings) -> Result<PathBuf> {
        let Settings {
            model,
            huge_pages,
            slots,
            cached,
        } = settings;
        let (endpoint, model) = (self.endpoint(), model.display());
        let insecure = rdma_address().map_or("", |_| "insecure = true\n");
        let drain = 10 * slowness();
        let text = format!(
            "endpoints = [\"{endpoint}\"]\n{insecure}\
             [model]\ndirectory = \"{model}\"\nname = \"faults\"\nhuge_pages = \"{huge_pages}\"\n\
             [workers]\ncpus = 2\npin = false\n\
             [limits]\nconnections = {CONNECTIONS}\nslots = {slots}\ncredits = {CREDITS}\nmax_ids = 1048576\n\
             [rdma]\nstage_blocks = 128\n\
             [shutdown]\ndrain_timeout_s = {drain}\n\
             [admin]\naddress = \"127.0.0.1:0\"\n{cached}"
        );
        self.write_configuration(&text)
    }

    /// Writes this text as a configuration.
    ///
    /// # Errors
    /// Where it can't be written.
    pub(crate) fn write_configuration(&self, text: &str) -> Result<PathBuf> {
        let path = self.path("rowmilld.toml");
        fs::write(&path, text).context("the configuration")?;
        Ok(path)
    }

    /// Starts a service and waits until it serves.
    ///
    /// # Errors
    /// With its log where it does not.
    pub(crate) fn start(&self, settings: &Settings) -> Result<Service> {
        Service::start(self, &self.configure(settings)?)
    }

    /// Runs `rowmilld` on a configuration that it has to refuse; gives what it said.
    ///
    /// # Errors
    /// If it does not end by itself, or ends well.
    pub(crate) fn refused(&self, configuration: &Path) -> Result<String> {
        let config = configuration.to_str().context("a path in UTF-8")?;
        let (status, text) = self.command("rowmilld", &["--config", config])?;
        ensure!(
            status.code() == Some(1),
            "rowmilld ended with {status}: {text}"
        );
        Ok(text)
    }

    /// Runs a program to its end; gives what it said.
    ///
    /// # Errors
    /// If it does not end in time.
    pub(crate) fn command(&self, name: &str, arguments: &[&str]) -> Result<(ExitStatus, String)> {
        let path = self.path("output");
        let output = fs::File::create(&path).context("a file for output")?;
        let mut child = self.programs.leashed(name);
        child
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(output.try_clone()?)
            .stdout(output);
        let mut child = Running(child.spawn().context("starting a program")?);
        let status = child.end(patience());
        let text = fs::read_to_string(&path).context("a program's output")?;
        match status {
            Some(status) => Ok((status, text)),
            None => bail!("{name} {arguments:?} does not end:\n{text}"),
        }
    }
}

/// The model's tables, and more dense ones of so many rows.
fn specs(more: &[(&str, u32)]) -> Vec<TableSpec> {
    let spec = |name: &str, rows: u32, dim, format| TableSpec {
        name: name.into(),
        rows: rows.into(),
        dim,
        format,
        kind: TableKind::Dense,
    };
    let keyed = TableSpec {
        kind: TableKind::Hashed(Missing::Error),
        ..spec("keyed", 700, 16, RowFormat::F16)
    };
    let mut specs = vec![
        spec("small", SMALL_ROWS, 16, RowFormat::F32),
        spec("quant", QUANT_ROWS, 32, RowFormat::Int8),
        spec("wide", 64, WIDE_DIM, RowFormat::F32),
        keyed,
    ];
    let more = more.iter();
    specs.extend(more.map(|&(name, rows)| spec(name, rows, 16, RowFormat::F32)));
    specs
}

fn load(directory: &Path) -> Result<Arc<Resident>> {
    let generation = Generation::open(directory)?;
    let options = LoadOptions { verify: true };
    let tables = generation.load(HugePages::Off, &silent, options)?;
    Ok(Arc::new(tables))
}

/// A child, killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Waits for its end.
    pub(crate) fn end(&mut self, limit: Duration) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                _ if began.elapsed() > limit => return None,
                _ => std::thread::sleep(Duration::from_millis(2)),
            }
        }
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// Where it is gone.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.0), signal).context("sending a signal")
    }

    /// Stops it, and waits until each of its threads has stopped.
    ///
    /// # Errors
    /// Where it is gone, or goes on.
    pub(crate) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let threads = PathBuf::from(format!("/proc/{}/task", self.0.id()));
        let has_stopped = |thread: &Path| {
            let stat = fs::read_to_string(thread.join("stat"));
            // The state follows the name, which is in brackets.
            stat.is_ok_and(|stat| {
                stat.rsplit_once(") ")
                    .is_some_and(|(_, s)| s.starts_with('T'))
            })
        };
        until(patience(), || {
            let threads = fs::read_dir(&threads).into_iter().flatten().flatten();
            threads
                .map(|thread| thread.path())
                .all(|thread| has_stopped(&thread))
        })
        .context("a process that was stopped goes on")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already where all went well.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

/// A running `rowmilld`.
pub(crate) struct Service {
    process: Running,
    log: PathBuf,
    /// Where clients connect.
    pub(crate) endpoint: String,
    admin: SocketAddr,
}

impl Service {
    /// Starts a service of this configuration and waits until it serves.
    ///
    /// # Errors
    /// With its log where it does not.
    pub(crate) fn start(site: &Site, configuration: &Path) -> Result<Service> {
        let mut command = site.programs.leashed("rowmilld");
        command.stdin(Stdio::null());
        Service::start_by(site, command, configuration)
    }

    /// As [`Service::start`], by a command that becomes `rowmilld` and is still to be told its arguments.
    ///
    /// # Errors
    /// As [`Service::start`].
    pub(crate) fn start_by(
        site: &Site,
        mut command: Command,
        configuration: &Path,
    ) -> Result<Service> {
        static STARTED: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = STARTED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let log = site.path(&format!("rowmilld-{number}.log"));
        let output = fs::File::create(&log).context("a log")?;
        command.arg("--config").arg(configuration);
        command.stderr(output.try_clone()?).stdout(output);
        let mut process = Running(command.spawn().context("starting rowmilld")?);
        let began = Instant::now();
        loop {
            let text = fs::read_to_string(&log).context("the log")?;
            if text.contains("ready: serving") {
                let address = text
                    .lines()
                    .find_map(|line| line.split_once("admin pages on http://"));
                let (_, admin) = address.context("the log has no address of the admin pages")?;
                let (endpoint, admin) =
                    (site.endpoint(), admin.trim().parse().context("an address")?);
                return Ok(Service {
                    process,
                    log,
                    endpoint,
                    admin,
                });
            }
            if let Some(status) = process.end(Duration::ZERO) {
                bail!("rowmilld ended with {status} at start:\n{text}");
            }
            ensure!(
                began.elapsed() < patience(),
                "rowmilld does not start:\n{text}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until its log contains `part`.
    ///
    /// # Errors
    /// If that takes longer than `limit`.
    pub(crate) fn wait_for_log(&self, part: &str, limit: Duration) -> Result<()> {
        until(limit, || self.log().contains(part))
            .with_context(|| format!("its log has no `{part}`:\n{}", self.log()))
    }

    /// Its process.
    pub(crate) fn process(&mut self) -> &mut Running {
        &mut self.process
    }

    /// That it has not ended.
    ///
    /// # Errors
    /// If it has.
    pub(crate) fn is_alive(&mut self) -> Result<()> {
        match self.process.end(Duration::ZERO) {
            None => Ok(()),
            Some(status) => bail!("rowmilld ended with {status}:\n{}", self.log()),
        }
    }

    /// Sends `request` to the admin pages; gives the whole reply.
    ///
    /// # Errors
    /// Where there is none within [`patience()`]: what the pages take has no bound of its own.
    pub(crate) fn ask(&self, request: &[u8]) -> Result<String> {
        let limit = Some(patience());
        let mut stream = TcpStream::connect(self.admin).context("the admin pages")?;
        stream.set_read_timeout(limit)?;
        stream.set_write_timeout(limit)?;
        stream.write_all(request).context("the admin pages")?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).context("the admin pages")?;
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    /// The address of its admin pages.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// What `/status` says.
    ///
    /// # Errors
    /// Where it does not answer.
    pub(crate) fn status(&self) -> Result<Value> {
        let reply = self.ask(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let (_, body) = reply.split_once("\r\n\r\n").context("a body")?;
        serde_json::from_str(body).context("the status page")
    }

    /// Whether `/healthz` says that all is well.
    ///
    /// # Errors
    /// What it says otherwise.
    pub(crate) fn is_healthy(&self) -> Result<()> {
        let reply = self.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")?;
        ensure!(reply.starts_with("HTTP/1.1 200 "), "not healthy: {reply}");
        Ok(())
    }

    /// What it holds for clients: connections, slots and objects of the port as it shows them, open descriptors, mapped
    /// memfds.
    ///
    /// # Errors
    /// Where that can't be read.
    pub(crate) fn holdings(&self) -> Result<Holdings> {
        let process = PathBuf::from(format!("/proc/{}", self.process.0.id()));
        let status = self.status()?;
        let connections = status["connections"].as_array().context("a list")?.len();
        let workers = status["workers"].as_array().context("a list")?;
        let slots = workers
            .iter()
            .map(|worker| worker["in_progress"].as_u64())
            .sum();
        let maps = fs::read_to_string(process.join("maps")).context("its mappings")?;
        let mut held = status["held"].as_object().cloned().unwrap_or_default();
        let free_blocks = held.remove("free_blocks").and_then(|count| count.as_u64());
        Ok(Holdings {
            clients: Clients { connections, held },
            slots,
            free_blocks,
            descriptors: fs::read_dir(process.join("fd"))
                .context("its descriptors")?
                .count(),
            memfds: maps.lines().filter(|line| line.contains("/memfd:")).count(),
        })
    }
}

/// See [`Service::holdings`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Clients, and what they have whether they ask for something or not.
    pub(crate) clients: Clients,
    /// Requests in the workers' slots; `None` where a worker does not say.
    pub(crate) slots: Option<u64>,
    /// Blocks of the port that stage nothing; `None` where it has none.
    pub(crate) free_blocks: Option<u64>,
    /// Open descriptors.
    pub(crate) descriptors: usize,
    /// Mapped memfds: control memory and regions of clients.
    pub(crate) memfds: usize,
}

/// Clients, and what is held for them as long as they are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clients {
    /// Clients on the status page.
    pub(crate) connections: usize,
    /// What the port holds for them: queue pairs, regions and so on, as the status page has it.
    pub(crate) held: Map<String, Value>,
}

/// Waits until `done`.
///
/// # Errors
/// If that takes longer than `limit`.
pub(crate) fn until(limit: Duration, mut done: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !done() {
        ensure!(began.elapsed() < limit, "not within {limit:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
