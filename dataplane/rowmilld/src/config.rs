//! The configuration file: what can be set, what it is otherwise, and what is refused.
//!
//! `deploy/rowmilld.toml` shows every option. An unknown key is an error, so that a misspelt one is
//! not silently ignored; so is a value that can't work. Errors name the file, the line or key, and
//! what to write instead.

mod cache;
mod control;
mod cpus;
mod deltas;
mod failure;
mod filter;
mod rdma;
mod remote;

use core::fmt;
use core::str::FromStr;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rowmill_arena::HugePages;
use rowmill_pooling::Isa;
use rowmill_wire::limits::{MAX_BATCH, MAX_CREDITS, MAX_NAME, MAX_REGIONS, SLOT_BYTES};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::ports::Port;

pub use cache::{Cache, PageCacheUse, Placement, Table};
pub use control::{Control, ControlAddress, Credentials};
pub use cpus::Cpus;
pub use deltas::Deltas;
pub use failure::Failure;
pub use filter::filter_fault;
pub use rdma::Rdma;
pub use remote::{Export, Remote, Tried};

/// Most workers of one dataplane: as many as the port has lanes.
pub const MAX_WORKERS: usize = rowmill_port::shm::layout::MAX_LANES as usize;

/// Most clients of one dataplane: as many as the SIGBUS handler can watch over, when each has
/// registered all the regions it may.
const MAX_CONNECTIONS: u64 = 1024;

const _: () = {
    let mappings = MAX_CONNECTIONS as usize * (MAX_REGIONS as usize + 1);
    assert!(mappings + 256 <= rowmill_arena::MAX_WATCHED);
};

/// Everything that can be set.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where clients connect: `["shm:/run/rowmill/NAME.sock"]` or `["rdma://ADDRESS:PORT"]`, one of them.
    #[serde(default = "default_endpoints")]
    pub endpoints: Vec<String>,
    /// Permissions of the endpoint's socket: whoever may write it can connect.
    #[serde(default = "default_socket_mode")]
    pub socket_mode: u32,
    /// Whether clients beyond this host need not prove who they are. There are no tickets yet, so `rdma://`
    /// endpoints are served only with it.
    #[serde(default)]
    pub insecure: bool,
    /// The tables to serve.
    pub model: Model,
    /// Tables that are cached, or have memory of their own; all others are resident in the memory of all.
    #[serde(default)]
    pub tables: Vec<Table>,
    /// What workers have for cached tables.
    #[serde(default)]
    pub cache: Cache,
    /// Rows that become others while they are served.
    #[serde(default)]
    pub deltas: Deltas,
    /// The control plane that is listened to.
    #[serde(default)]
    pub control: Control,
    /// What is offered to other dataplanes.
    pub export: Option<Export>,
    /// The dataplane that rows of listed tables are read from, too.
    pub remote: Option<Remote>,
    /// Queue pairs and staging of `rdma://` endpoints.
    #[serde(default)]
    pub rdma: Rdma,
    /// The polling threads.
    #[serde(default)]
    pub workers: Workers,
    /// What a worker does when it finds nothing to do.
    #[serde(default)]
    pub idle: Idle,
    /// Bounds on clients and requests.
    #[serde(default)]
    pub limits: Limits,
    /// The admin pages.
    #[serde(default)]
    pub admin: Admin,
    /// Logging.
    #[serde(default)]
    pub log: Log,
    /// Shutting down.
    #[serde(default)]
    pub shutdown: Shutdown,
}

/// The tables to serve.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The directory of a generation: the one that holds `manifest.json`.
    pub directory: PathBuf,
    /// The model's name for clients and status pages; the directory's name unless set.
    pub name: Option<String>,
    /// Pages for the rows: `"require"` (reserved huge pages or no start), `"prefer"` (the best that
    /// can be had) or `"off"`.
    #[serde(default, deserialize_with = "from_text")]
    pub huge_pages: HugePages,
    /// Whether checksums are compared while the rows are read.
    #[serde(default = "yes")]
    pub verify: bool,
}

impl Model {
    /// The model's name: as set, else the directory's.
    pub fn name(&self) -> String {
        let of_directory = || Some(self.directory.file_name()?.to_string_lossy().into_owned());
        self.name
            .clone()
            .or_else(of_directory)
            .unwrap_or_else(|| "model".into())
    }
}

/// The polling threads.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// `"auto"` (one worker for each CPU this process may use, less one for everything else, at
    /// least 1), a number of workers, or a list of CPUs with one worker on each.
    pub cpus: Cpus,
    /// Whether each worker is pinned to its CPU.
    pub pin: bool,
    /// The kernels: `"auto"` (the widest that the CPU has), `"scalar"`, `"avx2"`,
    /// `"avx512"` or `"neon"`.
    #[serde(deserialize_with = "from_text")]
    pub isa: IsaChoice,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers {
            cpus: Cpus::Auto,
            pin: true,
            isa: IsaChoice::Auto,
        }
    }
}

/// Which kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsaChoice {
    /// The widest that the CPU has.
    Auto,
    /// These.
    Fixed(Isa),
}

impl FromStr for IsaChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<IsaChoice, String> {
        match text {
            "auto" => Ok(IsaChoice::Auto),
            text => text.parse().map(IsaChoice::Fixed).map_err(|_| {
                format!("isa can be `auto`, `scalar`, `avx2`, `avx512` or `neon`, not `{text}`")
            }),
        }
    }
}

/// What a worker does when it finds nothing to do: it spins, then yields, then sleeps.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Idle {
    /// Microseconds of spinning before it yields. The default is two micro-batches: a client that
    /// answers a reply with its next request within that time never waits for a wake-up.
    pub spin_us: u32,
    /// Microseconds of yielding after that. The default is the shortest time slice that the kernel
    /// gives by default (about 1 ms), in which others on the core get their turn.
    pub yield_us: u32,
    /// Whether it sleeps after that. A sleeping worker costs nothing, and its next request waits
    /// for the kernel to wake it (`rowmill-bench null` measures that: wait=asleep). Without sleep it yields for ever, which suits cores of its own.
    pub sleep: bool,
}

impl Default for Idle {
    fn default() -> Idle {
        Idle {
            spin_us: 100,
            yield_us: 1000,
            sleep: true,
        }
    }
}

/// Bounds on clients and requests. A worker's requests take
/// `slots * (max_ids * 8 + max_lengths * 4)` bytes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Clients connected at a time.
    pub connections: u16,
    /// Requests in progress on one worker; one more is answered BUSY.
    pub slots: u32,
    /// Requests that one client may have in flight on one worker.
    pub credits: u16,
    /// Most ids of one request part, over all its features.
    pub max_ids: u32,
    /// Most bags times features of one request part.
    pub max_lengths: u32,
    /// How long a worker stays with one request before the next client's turn, in microseconds.
    pub micro_batch_us: u32,
    /// Fewest bags that clients are told to send to a worker when they split a request. The default
    /// is about one micro-batch of the DLRM-v2 shape: 8 samples read 0.9 MB of rows, 50 us at
    /// 20 GB/s, and smaller parts would cost more in frames than they save.
    pub min_bags_per_part: u32,
    /// Largest region that a client may register, in bytes. The default holds the largest batch
    /// (65,536 samples) of the DLRM-v2 shape's 13,312 bytes each.
    pub max_region_bytes: u64,
    /// Most bytes that the regions of all clients may have together; unless set, what every client may
    /// register, or what half of the memory is good for that rows and requests leave. They cost page
    /// tables, 8 bytes for each 4 KiB; without userfaultfd(2), all of themselves.
    pub total_region_bytes: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        let engine = rowmill_engine::Limits::DEFAULT;
        Limits {
            connections: engine.connections as u16,
            slots: engine.slots,
            credits: engine.credits,
            max_ids: engine.max_ids,
            max_lengths: engine.max_lengths,
            micro_batch_us: (engine.micro_batch_ns / 1000) as u32,
            min_bags_per_part: 8,
            max_region_bytes: 1 << 30,
            total_region_bytes: None,
        }
    }
}

impl Limits {
    /// The engine's part of them.
    pub fn engine(&self) -> rowmill_engine::Limits {
        rowmill_engine::Limits {
            connections: self.connections.into(),
            slots: self.slots,
            credits: self.credits,
            max_ids: self.max_ids,
            max_lengths: self.max_lengths,
            micro_batch_ns: u64::from(self.micro_batch_us) * 1000,
        }
    }

    /// Bytes that one worker's requests take.
    pub fn worker_bytes(&self) -> u64 {
        u64::from(self.slots) * (u64::from(self.max_ids) * 8 + u64::from(self.max_lengths) * 4)
    }
}

/// The admin pages `/healthz`, `/metrics` and `/status`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// `"IP:PORT"`, or `"off"`. The pages are not protected: an address beyond loopback shows
    /// clients' names and tables to whoever reaches it.
    #[serde(deserialize_with = "from_text")]
    pub address: AdminAddress,
    /// Whether visitors from this host may have listed tables become cached or resident, or have other shares, while they are served.
    pub allow_changes: bool,
}

impl Default for Admin {
    fn default() -> Admin {
        Admin {
            address: AdminAddress::At(SocketAddr::from(([127, 0, 0, 1], 7401))),
            allow_changes: false,
        }
    }
}

/// Where the admin pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// Nowhere.
    Off,
    /// There.
    At(SocketAddr),
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<AdminAddress, String> {
        match text {
            "off" => Ok(AdminAddress::Off),
            text => text.parse().map(AdminAddress::At).map_err(|_| {
                format!(
                    "`{text}` is no address: write `IP:PORT` such as `127.0.0.1:7401`, or `off`"
                )
            }),
        }
    }
}

/// Logging, to standard error.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// What is logged, as tracing-subscriber's `EnvFilter` reads it: a level, or a list such as
    /// `"info,rowmill_port=debug"`. The environment variable `ROWMILL_LOG` goes before it.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            filter: "info".into(),
        }
    }
}

/// Shutting down.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Shutdown {
    /// Seconds that requests in progress get to finish after SIGTERM.
    pub drain_timeout_s: u32,
}

impl Default for Shutdown {
    fn default() -> Shutdown {
        Shutdown {
            drain_timeout_s: 10,
        }
    }
}

fn default_endpoints() -> Vec<String> {
    vec!["shm:/run/rowmill/rowmill.sock".into()]
}

fn default_socket_mode() -> u32 {
    0o660
}

fn yes() -> bool {
    true
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cannot read the configuration {path} (give its path with --config)")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no TOML, or has an unknown key or a value of the wrong kind.
    #[error("{path}: {reason}\nsee deploy/rowmilld.toml for every option")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why: the parser's message with the line.
        reason: String,
    },
    /// A value can't work.
    #[error("{path}: {key}: {reason}")]
    Value {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Why, and what to write instead.
        reason: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        Config::parse(&text, path)
    }

    /// Checks the text of a configuration; `path` is for messages.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(text: &str, path: &Path) -> Result<Config, ConfigError> {
        let config: Config = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.into(),
            reason: error.to_string().trim_end().into(),
        })?;
        match config.first_fault() {
            None => Ok(config),
            Some((key, reason)) => Err(ConfigError::Value {
                path: path.into(),
                key,
                reason,
            }),
        }
    }

    /// Bytes that one worker's requests take; over RDMA with its staging and every client's slots.
    pub fn worker_bytes(&self) -> u64 {
        let rdma = self.endpoints.iter().any(|e| Port::of(e) == Ok(Port::Rdma));
        let slots = u64::from(self.limits.connections) * u64::from(self.limits.credits);
        let port = self.rdma.worker_bytes() + slots * SLOT_BYTES as u64;
        self.limits.worker_bytes() + if rdma { port } else { 0 }
    }

    /// The first value that can't work, and why.
    fn first_fault(&self) -> Option<(&'static str, String)> {
        let model = &self.model;
        if model.directory.as_os_str().is_empty() {
            return Some((
                "model.directory",
                "is empty; name a generation's directory".into(),
            ));
        }
        if model.name().is_empty() || model.name().len() > MAX_NAME {
            let reason = format!("must have 1 to {MAX_NAME} bytes");
            return Some(("model.name", reason));
        }
        if let Some(reason) = filter_fault(&self.log.filter) {
            return Some(("log.filter", reason));
        }
        if self.socket_mode > 0o777 {
            let reason = format!(
                "is 0o{:o}; write permissions such as 0o660",
                self.socket_mode
            );
            return Some(("socket_mode", reason));
        }
        self.endpoints_fault()
            .or_else(|| self.cpus_fault())
            .or_else(|| self.limits_fault())
            .or_else(|| self.rdma.fault())
            .or_else(|| self.tables_fault())
            .or_else(|| self.fetch_fault())
            .or_else(|| self.deltas_fault())
            .or_else(|| self.control_fault())
            .or_else(|| self.remote_fault())
    }

    fn endpoints_fault(&self) -> Option<(&'static str, String)> {
        let fault = |reason| Some(("endpoints", reason));
        for (i, endpoint) in self.endpoints.iter().enumerate() {
            match Port::of(endpoint) {
                Err(reason) => return fault(reason),
                Ok(Port::Rdma) if !self.insecure => {
                    return fault(format!(
                        "`{endpoint}`: whoever reaches it could read and write through it, since there are no \
                         tickets yet; set `insecure = true` where the network is trusted"
                    ));
                }
                Ok(_) => {}
            }
            if self.endpoints[..i].contains(endpoint) {
                return fault(format!("`{endpoint}` is listed twice; list it once"));
            }
        }
        match self.endpoints.len() {
            1 => None,
            0 => fault("is empty; list one, such as shm:/run/rowmill/rowmill.sock".into()),
            n => fault(format!(
                "lists {n}, and this build serves one; start a dataplane for each"
            )),
        }
    }

    /// Over RDMA the longest request has to fit the blocks that data are fetched to.
    fn fetch_fault(&self) -> Option<(&'static str, String)> {
        let rdma = self.endpoints.iter().any(|e| Port::of(e) == Ok(Port::Rdma));
        let longest = 12 * u64::from(self.limits.max_ids) + 8 * u64::from(self.limits.max_lengths);
        let room = self.rdma.port().fetch_bytes();
        (rdma && longest > room).then(|| {
            let reason = format!(
                "is too little: a request of limits.max_ids ids with weights and limits.max_lengths lengths has \
                 {longest} bytes, and half of the staging blocks, which data are fetched to, have {room}; \
                 lower the limits, or raise this"
            );
            ("rdma.stage_blocks", reason)
        })
    }

    fn cpus_fault(&self) -> Option<(&'static str, String)> {
        let fault = |reason| Some(("workers.cpus", reason));
        match &self.workers.cpus {
            Cpus::Auto => None,
            Cpus::Count(n) if (1..=MAX_WORKERS).contains(n) => None,
            Cpus::Count(n) => fault(format!("{n} workers; write 1 to {MAX_WORKERS}")),
            Cpus::List(list) if list.is_empty() || list.len() > MAX_WORKERS => fault(format!(
                "lists {} CPUs; list 1 to {MAX_WORKERS}",
                list.len()
            )),
            Cpus::List(list) => {
                let twice = (1..list.len()).find(|&i| list[..i].contains(&list[i]))?;
                fault(format!(
                    "lists CPU {} twice; a CPU takes one worker",
                    list[twice]
                ))
            }
        }
    }

    fn limits_fault(&self) -> Option<(&'static str, String)> {
        let l = &self.limits;
        // Upper bounds keep products of two limits far from overflowing 64 bits, and a slip of the
        // pen from asking for terabytes.
        let ranges: [(&'static str, u64, u64, u64); 11] = [
            (
                "limits.connections",
                l.connections.into(),
                1,
                MAX_CONNECTIONS,
            ),
            ("limits.slots", l.slots.into(), 1, 4096),
            ("limits.credits", l.credits.into(), 1, MAX_CREDITS.into()),
            ("limits.max_ids", l.max_ids.into(), 1, 1 << 24),
            ("limits.max_lengths", l.max_lengths.into(), 1, 1 << 24),
            ("limits.micro_batch_us", l.micro_batch_us.into(), 1, 10_000),
            (
                "limits.min_bags_per_part",
                l.min_bags_per_part.into(),
                1,
                MAX_BATCH.into(),
            ),
            ("limits.max_region_bytes", l.max_region_bytes, 4096, 1 << 42),
            (
                "limits.total_region_bytes",
                l.total_region_bytes.unwrap_or(4096),
                4096,
                1 << 52,
            ),
            ("idle.spin_us", self.idle.spin_us.into(), 0, 1_000_000_000),
            (
                "shutdown.drain_timeout_s",
                self.shutdown.drain_timeout_s.into(),
                0,
                3600,
            ),
        ];
        let (key, given, low, high) = ranges
            .into_iter()
            .find(|&(_, given, low, high)| !(low..=high).contains(&given))?;
        Some((key, format!("is {given}; write {low} to {high}")))
    }
}

/// Reads a value that is written as text.
fn from_text<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: fmt::Display>,
{
    String::deserialize(deserializer)?
        .parse()
        .map_err(de::Error::custom)
}

#[cfg(test)]
mod tests;
