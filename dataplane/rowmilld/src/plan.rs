//! What will be done, decided and checked before anything is served: which CPUs and kernels, whether
//! the generation opens and fits the memory, where clients connect. `--check` prints it.

use std::path::{Path, PathBuf};

use rowmill_arena::guards_holes;
use rowmill_pooling::{Isa, UnknownIsa};
use rowmill_port::rdma::kept_blocks;
use rowmill_port::shm::socket_path;
use rowmill_table::{Generation, TableError, TableInfo};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde::Serialize;

use crate::cache::CachePlan;
use crate::config::{AdminAddress, Config, IsaChoice, Placement, Table};
use crate::descriptors;
use crate::interrupts;
use crate::ports::Port;
use crate::remote;
use crate::room::Memory;
use crate::seats;
use crate::waiting;

/// Something that was chosen, for people: logged at start, shown by `--check` and in `/status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// What there was to choose.
    pub what: String,
    /// What was chosen.
    pub chosen: String,
    /// Why, and what it costs if it costs something.
    pub why: String,
    /// Whether it costs something that an operator should know of.
    #[serde(skip)]
    pub warning: bool,
}

impl Choice {
    /// A choice that costs nothing.
    pub fn new(what: &str, chosen: impl Into<String>, why: impl Into<String>) -> Choice {
        Choice {
            what: what.into(),
            chosen: chosen.into(),
            why: why.into(),
            warning: false,
        }
    }

    /// A choice that costs something.
    pub fn warning(what: &str, chosen: impl Into<String>, why: impl Into<String>) -> Choice {
        Choice {
            warning: true,
            ..Choice::new(what, chosen, why)
        }
    }

    /// Logs it.
    pub fn log(&self) {
        let Choice {
            what,
            chosen,
            why,
            warning,
        } = self;
        if *warning {
            tracing::warn!("{what}: {chosen}: {why}");
        } else {
            tracing::info!("{what}: {chosen}: {why}");
        }
    }
}

/// Why a configuration that reads well can't be served on this machine.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The generation can't be opened.
    #[error("model.directory")]
    Model(#[from] TableError),
    /// The CPUs are not there.
    #[error("workers.cpus: {0}")]
    Cpus(String),
    /// The CPU does not have the instruction set.
    #[error("workers.isa: {0}")]
    Isa(String),
    /// The endpoint can't be made.
    #[error("endpoints: {0}")]
    Endpoint(String),
    /// What is said of tables can't be done.
    #[error("{0}")]
    Tables(String),
    /// The tables and requests don't fit.
    #[error("{0}")]
    Memory(String),
    /// Not even one client could be served.
    #[error("{0}")]
    Descriptors(String),
}

impl From<UnknownIsa> for PlanError {
    fn from(error: UnknownIsa) -> PlanError {
        PlanError::Isa(error.to_string())
    }
}

/// What will be done.
pub struct Plan {
    /// One worker each: the CPU it is pinned to, or `None`.
    pub seats: Vec<Option<usize>>,
    /// The kernels.
    pub isa: Isa,
    /// The tables.
    pub generation: Generation,
    /// What of its tables is cached.
    pub cache: CachePlan,
    /// Where clients connect.
    pub endpoint: String,
    /// The port that this names.
    pub port: Port,
    /// Most clients at a time: as configured, or fewer where descriptors are short.
    pub clients: u16,
    /// Most bytes of all regions of all clients.
    pub region_bytes: u64,
    /// What was chosen so far.
    pub choices: Vec<Choice>,
}

impl Plan {
    /// Decides and checks.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn make(config: &Config) -> Result<Plan, PlanError> {
        let mut choices = Vec::new();
        let endpoint = config.endpoints[0].clone();
        let port = Port::of(&endpoint).map_err(PlanError::Endpoint)?;
        choices.push(match port {
            Port::Shm => check_socket(&endpoint)?,
            Port::Rdma => Choice::warning(
                "endpoint",
                endpoint.clone(),
                "RDMA, insecure: whoever reaches it is let in, and nothing is encrypted",
            ),
        });
        let directory = &config.model.directory;
        let generation = waiting::told(|tell| Generation::open_telling(directory, tell))?;
        choices.push(Choice::new(
            "model",
            format!(
                "{}, generation {}",
                config.model.name(),
                generation.number()
            ),
            format!(
                "{} tables with {} of rows in {}",
                generation.tables().len(),
                bytes_text(generation.row_region_bytes()),
                generation.dir().display()
            ),
        ));
        let files = read_while_serving(config, &generation);
        let disturbed = interrupts::cpus_of(&files);
        let (seats, chosen) = seats::choose(config, &seats::allowed()?, &disturbed)?;
        choices.push(chosen);
        let isa = choose_isa(config.workers.isa, &mut choices)?;
        let cache = CachePlan::make(config, &generation, seats.len())?;
        if let Some(fault) = config.lanes_fault(seats.len()) {
            return Err(PlanError::Tables(fault));
        }
        choices.extend(cache.choices(&generation));
        choices.extend(remote::describe(config));
        let (memory, needs) = (Memory::now(), cache.needs(&generation));
        choices.push(memory.check(config, seats.len(), &needs)?);
        let region_bytes = match port {
            Port::Shm => {
                let guarded = guards_holes();
                let (bytes, regions) = memory.regions(config, seats.len(), &needs, guarded)?;
                choices.push(regions);
                bytes
            }
            // They are on other hosts' accounts.
            Port::Rdma => config.limits.total_region_bytes.unwrap_or(u64::MAX),
        };
        if port == Port::Rdma {
            choices.push(describe_staging(config, seats.len()));
        }
        let limit = descriptors::raise_limit();
        let fitting = descriptors::fit(limit, config.limits.connections, seats.len());
        let (clients, descriptors) = fitting.map_err(PlanError::Descriptors)?;
        choices.push(descriptors);
        choices.push(describe_idle(config));
        choices.push(describe_admin(config));
        choices.extend(describe_control(config, cache.is_empty()));
        if !config.model.verify {
            choices.push(Choice::warning(
                "verification",
                "off",
                "model.verify = false: a damaged table file would be served as it is",
            ));
        }
        Ok(Plan {
            seats,
            isa,
            generation,
            cache,
            endpoint,
            port,
            clients,
            region_bytes,
            choices,
        })
    }
}

/// What rows are, or may come to be, read from while they are served.
fn read_while_serving(config: &Config, generation: &Generation) -> Vec<PathBuf> {
    let may_be_cached = |table: &Table| table.placement == Placement::Cached || config.may_change();
    let listed = |info: &&TableInfo| {
        let mut tables = config.tables.iter();
        tables.any(|table| table.name == info.name && may_be_cached(table))
    };
    let tables = generation.tables().iter().filter(listed);
    let mut files: Vec<PathBuf> = tables.map(|info| generation.path(info)).collect();
    if !files.is_empty() {
        files.extend(config.cache.next_tier.clone());
    }
    files
}

fn describe_staging(config: &Config, workers: usize) -> Choice {
    let (rdma, all) = (&config.rdma, config.rdma.worker_bytes() * workers as u64);
    Choice::new(
        "staging of results",
        format!(
            "{} blocks of {} a worker, and {} for results that wait for rows",
            rdma.stage_blocks,
            bytes_text(rdma.stage_block_bytes.into()),
            kept_blocks(rdma.stage_blocks)
        ),
        format!(
            "{} in all, from which the device writes to clients",
            bytes_text(all)
        ),
    )
}

/// Whether the socket can be made. The port makes missing directories, so the nearest one that
/// exists has to be writable.
fn check_socket(endpoint: &str) -> Result<Choice, PlanError> {
    let path = socket_path(endpoint).map_err(|error| PlanError::Endpoint(error.to_string()))?;
    let directory = path
        .ancestors()
        .skip(1)
        .find(|p| p.exists())
        .unwrap_or(Path::new("/"));
    let usable = match directory.is_dir() {
        true => access(directory, Access::WRITE_OK | Access::EXEC_OK),
        false => Err(Errno::NOTDIR),
    };
    usable.map_err(|errno| {
        PlanError::Endpoint(format!(
            "cannot make {} in {}: {errno}; let rowmilld's user write there, or choose another",
            path.display(),
            directory.display()
        ))
    })?;
    Ok(Choice::new(
        "endpoint",
        endpoint,
        "shared memory: clients on this host, no copy of results",
    ))
}

fn choose_isa(wanted: IsaChoice, choices: &mut Vec<Choice>) -> Result<Isa, PlanError> {
    let (isa, why) = match wanted {
        IsaChoice::Auto => {
            let choice = Isa::detect();
            (choice.isa, choice.why)
        }
        IsaChoice::Fixed(isa) if isa.is_available() => (isa, "workers.isa asks for it".to_owned()),
        IsaChoice::Fixed(isa) => {
            let names: Vec<String> = Isa::available().iter().map(Isa::to_string).collect();
            return Err(PlanError::Isa(format!(
                "this CPU does not have {isa}; it has {}; write one of them or \"auto\"",
                names.join(", ")
            )));
        }
    };
    choices.push(match Isa::detect().isa {
        best if best > isa => {
            let why = format!("{why}; {best} would be faster");
            Choice::warning("kernels", isa.to_string(), why)
        }
        _ => Choice::new("kernels", isa.to_string(), why),
    });
    Ok(isa)
}

fn describe_idle(config: &Config) -> Choice {
    let idle = &config.idle;
    let chosen = format!("spin {} us, yield {} us", idle.spin_us, idle.yield_us);
    if idle.sleep {
        Choice::new(
            "idle workers",
            format!("{chosen}, sleep"),
            "the first request after a sleep waits for a wake-up",
        )
    } else {
        let why =
            "idle.sleep = false: workers use their CPUs fully even when there is nothing to do";
        Choice::new("idle workers", chosen, why)
    }
}

/// Whose policy is followed, and what is wrong with what is shown there.
fn describe_control(config: &Config, is_all_resident: bool) -> Vec<Choice> {
    let (control, name) = (&config.control, config.control.name());
    if !control.is_on() {
        return Vec::new();
    }
    let chosen = format!("{} as {name}", control.address);
    let mut choices = vec![if is_all_resident {
        let why = "no table is listed in [[tables]], so that there is nothing for it to say: it is only told what there is";
        Choice::warning("control plane", chosen, why)
    } else {
        let why = format!(
            "shares, what stays and what comes as it says, within {}; without it as configured",
            bytes_text(config.arena_bytes())
        );
        Choice::new("control plane", chosen, why)
    }];
    let credentials = control.credentials();
    if let Err(error) = credentials.check() {
        let why = format!("{error}; it is not followed until that is right");
        choices.push(Choice::warning("credentials", "can't be used", why));
    }
    if let Some(path) = credentials.open_to_all() {
        let why =
            "it is a secret: chmod 600, and have another one issued if somebody may have read it";
        let chosen = format!("everybody on this host may read {}", path.display());
        choices.push(Choice::warning("credentials", chosen, why));
    }
    choices
}

fn describe_admin(config: &Config) -> Choice {
    match config.admin.address {
        AdminAddress::Off => Choice::warning(
            "admin pages",
            "off",
            "admin.address = \"off\": no metrics, no status",
        ),
        AdminAddress::At(address) if address.ip().is_loopback() => Choice::new(
            "admin pages",
            format!("http://{address}"),
            match config.admin.allow_changes {
                true => {
                    "reached from this host only, from where listed tables can be moved and generations changed"
                }
                false => "reached from this host only",
            },
        ),
        AdminAddress::At(address) => {
            let why = match config.admin.allow_changes {
                true => {
                    "not protected: whoever reaches the address sees clients and tables, and from this host \
                     listed tables can be moved and generations changed"
                }
                false => "not protected: whoever reaches the address sees clients and tables",
            };
            Choice::warning("admin pages", format!("http://{address}"), why)
        }
    }
}

/// A number of bytes for people.
pub fn bytes_text(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|&(_, shift)| bytes >= 1 << shift) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / f64::from(1u32 << shift)),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_need_a_place_for_their_socket() {
        let long = format!("shm:/tmp/{}.sock", "x".repeat(120));
        let cases = [
            (
                "shm:/etc/passwd/r.sock",
                "cannot make /etc/passwd/r.sock in /etc/passwd: Not a directory",
            ),
            (long.as_str(), "use a shorter one"),
        ];
        for (endpoint, part) in cases {
            let error = check_socket(endpoint).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
