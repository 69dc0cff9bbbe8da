//! The whole service in this process.

use std::path::Path;
use std::sync::Arc;
use std::thread;

use rowmill_arena::HugePages;
use rowmill_engine::Engine;
use rowmill_pooling::{Isa, Kernels};
use rowmill_port::ServerPort;
use rowmill_port::shm::{ShmConfig, ShmServer};
use rowmill_rowmilld::cache::CachePlan;
use rowmill_rowmilld::cache_view::CacheView;
use rowmill_rowmilld::clock::Clock;
use rowmill_rowmilld::config::{Config, Idle, Limits};
use rowmill_rowmilld::figures::Figures;
use rowmill_rowmilld::listed::{self, Listed};
use rowmill_rowmilld::mailbox::{Mailbox, Orders};
use rowmill_rowmilld::places::{Means, Places};
use rowmill_rowmilld::service::Sessions;
use rowmill_rowmilld::worker::Worker;
use rowmill_table::{
    Generation, LoadOptions, Missing, Resident, RowFormat, TableKind, TableSpec, generate, silent,
};

use super::WORKERS;

/// Shares of the memory for a quarter of the rows or so, of every format; one table is wide enough for many sets.
pub(crate) const CACHED: &str = r#"
    [model]
    directory = "."
    [cache]
    page_cache = "allow"
    budget_ms = 60000
    [[tables]]
    name = "users"
    placement = "cached"
    cache_bytes = 1300000
    [[tables]]
    name = "items"
    placement = "cached"
    cache_bytes = 60000
    [[tables]]
    name = "urls"
    placement = "cached"
    cache_bytes = 60000
    [[tables]]
    name = "words"
    placement = "cached"
    cache_bytes = 40000
    [[tables]]
    name = "places"
    placement = "resident"
    cache_bytes = 10000
"#;

/// A service of this process; stops when dropped.
pub(crate) struct InProcess {
    pub(crate) endpoint: String,
    /// All rows, for the oracle.
    pub(crate) tables: Arc<Resident>,
    /// Listed tables, and what moves them.
    pub(crate) cache: Arc<CacheView>,
    pub(crate) places: Option<Arc<Places>>,
    server: Option<ShmServer>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<thread::JoinHandle<()>>,
    pub(crate) folder: Option<tempfile::TempDir>,
}

impl InProcess {
    pub(crate) fn start() -> InProcess {
        let folder = tempfile::tempdir().expect("a folder");
        InProcess::start_in(folder)
    }

    pub(crate) fn start_in(folder: tempfile::TempDir) -> InProcess {
        InProcess::start_with(folder, "[model]\ndirectory = \".\"")
    }

    pub(crate) fn start_with(folder: tempfile::TempDir, config: &str) -> InProcess {
        let spec = |name: &str, rows, dim, format, kind| TableSpec {
            name: name.into(),
            rows,
            dim,
            format,
            kind,
        };
        let dense = TableKind::Dense;
        let specs = [
            spec("users", 20_000, 64, RowFormat::F32, dense),
            spec("items", 5_000, 36, RowFormat::Int8, dense),
            spec("tags", 7, 128, RowFormat::F16, dense),
            spec(
                "urls",
                9_000,
                32,
                RowFormat::Int4,
                TableKind::Hashed(Missing::Default),
            ),
            spec(
                "words",
                3_000,
                20,
                RowFormat::Bf16,
                TableKind::Hashed(Missing::Error),
            ),
            spec(
                "places",
                50,
                12,
                RowFormat::Int8F16,
                TableKind::Hashed(Missing::Zero),
            ),
        ];
        let tables =
            Resident::in_memory(&specs, 3, HugePages::Off, &silent).expect("small tables fit");
        let directory = folder.path().join("model");
        if !directory.exists() {
            generate(&directory, 1, &specs, 3, &silent).expect("room for small tables");
        }
        let generation = Generation::open(&directory).expect("what was generated");
        let config = Config::parse(config, Path::new("config")).expect("a sound configuration");
        let plan = CachePlan::make(&config, &generation, WORKERS.into()).expect("tables are there");
        let options = LoadOptions::default();
        let served = generation.load_parts(|t| plan.keep(t), HugePages::Off, &silent, options);
        let mut served = served.expect("what was generated");
        let endpoint = format!("shm:{}", folder.path().join("s.sock").display());
        let mailboxes: Vec<Arc<Mailbox>> = (0..WORKERS).map(|_| Arc::default()).collect();
        let limits = Limits::default();
        let opened = plan.open(&generation, &mut served, HugePages::Off, &mailboxes, vec![]);
        let opened = opened.expect("files that were generated");
        let served = Arc::new(served);
        let sessions = Sessions::new(
            "system-test".into(),
            Arc::clone(&served),
            &limits,
            mailboxes.clone(),
        );
        let config = ShmConfig {
            lanes: WORKERS,
            ..ShmConfig::default()
        };
        let (server, lanes) =
            ShmServer::listen(&endpoint, config, Arc::new(sessions)).expect("a free endpoint");
        let clock = Clock::system();
        let cache = Arc::new(plan.view(&generation, &opened.parts));
        let places = opened.shares.map(|shares| {
            let listed = Listed::new(listed::Means {
                plan,
                generation,
                tables: served,
                shares,
                reads: opened.reads,
                cache: Arc::clone(&cache),
                watch: Arc::default(),
                remote: None,
                deltas: None,
                mailboxes: mailboxes.clone(),
                huge_pages: HugePages::Off,
                verify: true,
            });
            let means = Means {
                listed: listed.expect("files that were generated"),
                workers_cpus: Vec::new(),
            };
            Places::start(means, |_| ()).expect("a thread")
        });
        let mut parts = opened.parts.into_iter();
        let threads = lanes.into_iter().zip(&mailboxes).map(|(lane, mailbox)| {
            mailbox.set_waker(lane.waker());
            let (mailbox, clock) = (Arc::clone(mailbox), clock.clone());
            let part = parts.next();
            thread::spawn(move || {
                let (limits, kernels) = (limits.engine(), Kernels::new(Isa::detect().isa));
                let engine = match part {
                    None => Engine::new(limits, kernels),
                    Some(part) => part.engine(limits, kernels),
                };
                let figures = Arc::new(Figures::default());
                // Six threads share two cores: no spinning.
                let idle = Idle {
                    spin_us: 0,
                    yield_us: 50,
                    sleep: true,
                };
                Worker::new(engine, limits.connections, lane, mailbox, figures).run(idle, &clock);
            })
        });
        let threads = threads.collect();
        InProcess {
            endpoint,
            tables: Arc::new(tables),
            cache,
            places,
            server: Some(server),
            mailboxes,
            threads,
            folder: Some(folder),
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        // While the workers still run, so that they let go of their clients.
        self.server = None;
        self.mailboxes
            .iter()
            .for_each(|mailbox| mailbox.order(Orders::Stop));
        for thread in self.threads.drain(..) {
            if thread.join().is_err() && !thread::panicking() {
                panic!("a worker panicked");
            }
        }
    }
}
