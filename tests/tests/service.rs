//! The whole service in one process over real shared memory: four workers, four clients at a time
//! through the client library, every answer compared with the scalar oracle bit by bit.

#[path = "service/hub.rs"]
mod hub;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::HugePages;
use rowmill_client::{
    Batch, Client, ClientError, Connector, Division, Failure, Feature, Options, Output, Pooling,
    Refusal, RequestOptions, Schema, Status, Target, Ticket, Wait,
};
use rowmill_engine::Engine;
use rowmill_pooling::{Isa, Kernels, Mode, scalar};
use rowmill_port::ServerPort;
use rowmill_port::shm::{ShmConfig, ShmServer};
use rowmill_rowmilld::cache::CachePlan;
use rowmill_rowmilld::clock::Clock;
use rowmill_rowmilld::config::{Config, Idle, Limits};
use rowmill_rowmilld::figures::Figures;
use rowmill_rowmilld::mailbox::{Mailbox, Orders};
use rowmill_rowmilld::service::Sessions;
use rowmill_rowmilld::worker::Worker;
use rowmill_table::{
    Generation, LoadOptions, Missing, Resident, ResidentTable, RowFormat, TableKind, TableSpec,
    generate, silent,
};

const WORKERS: u16 = 4;
const CLIENTS: u64 = 4;
const MAX_BATCH: u32 = 300;

/// Shares of the memory for a quarter of the rows or so, of every format; one table is wide enough for many sets.
const CACHED: &str = r#"
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
struct InProcess {
    endpoint: String,
    /// All rows, for the oracle.
    tables: Arc<Resident>,
    server: Option<ShmServer>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<thread::JoinHandle<()>>,
    folder: Option<tempfile::TempDir>,
}

impl InProcess {
    fn start() -> InProcess {
        let folder = tempfile::tempdir().expect("a folder");
        InProcess::start_in(folder)
    }

    fn start_in(folder: tempfile::TempDir) -> InProcess {
        InProcess::start_with(folder, "[model]\ndirectory = \".\"")
    }

    fn start_with(folder: tempfile::TempDir, config: &str) -> InProcess {
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
        let served = Arc::new(served.expect("what was generated"));
        let endpoint = format!("shm:{}", folder.path().join("s.sock").display());
        let mailboxes: Vec<Arc<Mailbox>> = (0..WORKERS).map(|_| Arc::default()).collect();
        let limits = Limits::default();
        let sessions = Sessions::new("system-test".into(), served, &limits, mailboxes.clone());
        let config = ShmConfig {
            lanes: WORKERS,
            ..ShmConfig::default()
        };
        let (server, lanes) =
            ShmServer::listen(&endpoint, config, Arc::new(sessions)).expect("a free endpoint");
        let clock = Clock::system();
        let parts = plan.open(&generation, HugePages::Off, &mailboxes);
        let mut parts = parts.expect("files that were generated").0.into_iter();
        let threads = lanes.into_iter().zip(&mailboxes).map(|(lane, mailbox)| {
            mailbox.set_waker(lane.waker());
            let (mailbox, clock) = (Arc::clone(mailbox), clock.clone());
            let part = parts.next();
            thread::spawn(move || {
                let (limits, kernels) = (limits.engine(), Kernels::new(Isa::detect().isa));
                let engine = match part {
                    None => Engine::new(limits, kernels),
                    Some((turns, cache)) => Engine::with_cache(limits, kernels, turns, cache),
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

/// What a request asked for, kept until its answer comes.
struct Asked {
    features: Vec<(Vec<u32>, Vec<u64>, Vec<f32>)>,
    bags: u32,
}

/// The ids of each feature's table to draw from, some of them missing where that is answered.
fn names(tables: &Resident) -> Vec<Vec<u64>> {
    let of = |f: &Feature| {
        let table = tables.table(&f.table).expect("a table of the model");
        let keys = || table.entries().map(|(key, _)| key);
        match table.kind() {
            TableKind::Dense => (0..table.lookup_count().into()).collect(),
            TableKind::Hashed(Missing::Error) => keys().collect(),
            TableKind::Hashed(_) => keys().flat_map(|key| [key, key ^ 5]).collect(),
        }
    };
    schema().features.iter().map(of).collect()
}

impl Asked {
    fn draw(rng: &mut StdRng, names: &[Vec<u64>]) -> Asked {
        let bags = if rng.random_bool(0.3) {
            1
        } else {
            rng.random_range(1..=MAX_BATCH)
        };
        let mut feature = |names: &Vec<u64>| {
            let lengths: Vec<u32> = (0..bags).map(|_| rng.random_range(0..12)).collect();
            let count = lengths.iter().sum::<u32>();
            let mut id = || names[rng.random_range(0..names.len())];
            let ids = (0..count).map(|_| id()).collect();
            let weights = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            (lengths, ids, weights)
        };
        Asked {
            features: names.iter().map(&mut feature).collect(),
            bags,
        }
    }

    fn fill(&self, batch: &mut Batch) {
        batch
            .clear(self.bags as usize)
            .expect("a batch within bounds");
        for ((lengths, ids, weights), feature) in self.features.iter().zip(schema().features) {
            let outcome = match feature.pooling.is_weighted() {
                true => batch.push_weighted(Division::Lengths(lengths), &ids[..], weights),
                false => batch.push(Division::Lengths(lengths), &ids[..]),
            };
            outcome.expect("a sound feature");
        }
    }

    /// Where in the target each vector lies, and its bytes.
    fn oracle(&self, tables: &Resident) -> Vec<(u64, Vec<u8>)> {
        let mut vectors = Vec::new();
        for ((lengths, ids, weights), feature) in self.features.iter().zip(schema().features) {
            let table = tables.table(&feature.table).expect("a table of the model");
            let ids: Vec<u32> = ids.iter().map(row_of(table)).collect();
            let rows = rowmill_engine::rows(table);
            let mut vector = vec![0.0; table.dim()];
            let mut put = |i: usize, vector: &[f32]| {
                let output = stored(feature.output);
                let mut bytes = vec![0; vector.len() * output.bytes()];
                for (&x, place) in vector.iter().zip(bytes.chunks_exact_mut(output.bytes())) {
                    scalar::store(x, output, place);
                }
                vectors.push((feature.offset + i as u64 * feature.stride, bytes));
            };
            let mode = match feature.pooling {
                Pooling::Sum | Pooling::WeightedSum => Mode::Sum,
                Pooling::Mean | Pooling::WeightedMean => Mode::Mean,
                Pooling::Max => Mode::Max,
                Pooling::None => {
                    for (i, &id) in ids.iter().enumerate() {
                        scalar::row(&rows, id, &mut vector);
                        put(i, &vector);
                    }
                    continue;
                }
            };
            let mut from = 0;
            for (bag, &length) in lengths.iter().enumerate() {
                let range = from..from + length as usize;
                from = range.end;
                let weighted = feature.pooling.is_weighted();
                let weights = weighted.then(|| &weights[range.clone()]);
                scalar::bag(&rows, &ids[range], weights, mode, &mut vector);
                put(bag, &vector);
            }
        }
        vectors
    }
}

/// The row of an id, by the table's own list of keys.
fn row_of(table: &ResidentTable) -> impl Fn(&u64) -> u32 {
    let rows: HashMap<u64, u32> = table.entries().collect();
    let (kind, missing) = (table.kind(), table.lookup_count());
    move |id| match kind {
        TableKind::Dense => *id as u32,
        TableKind::Hashed(_) => rows.get(id).copied().unwrap_or(missing),
    }
}

fn stored(output: Output) -> rowmill_pooling::Output {
    match output {
        Output::F32 => rowmill_pooling::Output::F32,
        Output::F16 => rowmill_pooling::Output::F16,
        Output::Bf16 => rowmill_pooling::Output::Bf16,
    }
}

/// Every pooling and every output; blocks of rows behind the matrix of what is pooled.
fn schema() -> Schema {
    let pooled = [
        ("u", "users", Pooling::Sum, Output::F32, 64),
        ("i", "items", Pooling::Mean, Output::F16, 36),
        ("t", "tags", Pooling::WeightedSum, Output::F32, 128),
        ("r", "urls", Pooling::Max, Output::Bf16, 32),
        ("w", "words", Pooling::Mean, Output::F32, 20),
        ("p", "places", Pooling::WeightedMean, Output::F16, 12),
    ];
    let blocks = [
        ("v", "urls", Pooling::None, Output::F16, 32),
        ("x", "users", Pooling::None, Output::F32, 64),
    ];
    let all = pooled.into_iter().chain(blocks);
    let mut features: Vec<Feature> = all
        .map(|(name, table, pooling, output, dim)| Feature {
            pooling,
            ..Feature::block(name, table, output, dim, MAX_BATCH * 12, 0)
        })
        .collect();
    let (matrix, blocks) = features.split_at_mut(pooled.len());
    let row_bytes = matrix.iter().map(|f| f.stride).sum::<u64>();
    let mut offset = 0;
    for f in matrix {
        (f.offset, f.max_ids) = (offset, 0);
        offset += f.stride;
        f.stride = row_bytes;
    }
    offset = u64::from(MAX_BATCH) * row_bytes;
    for f in blocks {
        f.offset = offset;
        offset += u64::from(f.max_ids) * f.stride;
    }
    Schema {
        max_batch: MAX_BATCH,
        features,
    }
}

/// One client: requests of all kinds, several in flight, until enough were answered OK.
fn client(service: &InProcess, seed: u64) -> HashMap<Status, u32> {
    let mut rng = StdRng::seed_from_u64(seed);
    let options = Options {
        name: format!("client {seed}"),
        ..Options::default()
    };
    let mut session = Client::connect(&service.endpoint, options).expect("the service runs");
    let bound = session.bind(schema()).expect("a sound schema");
    let room = bound.target_bytes(MAX_BATCH).next_multiple_of(64);
    let region = session.region(room as usize * 4).expect("a region");
    let mut idle: Vec<Target> = (0..4)
        .map(|i| {
            session
                .target_at(&region, i * room, room)
                .expect("a free range")
        })
        .collect();
    let mut flying: HashMap<Ticket, Asked> = HashMap::new();
    let mut seen: HashMap<Status, u32> = HashMap::new();
    let mut batch = Batch::new(1).expect("one bag");
    let names = names(&service.tables);
    let mut prefetched = 0;
    let began = Instant::now();
    while seen.get(&Status::Ok).is_none_or(|&n| n < 150) || !flying.is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "seed {seed}: {seen:?}, {} in flight",
            flying.len()
        );
        let enough = seen.get(&Status::Ok).is_some_and(|&n| n >= 150);
        if let (false, Some(target)) = (enough, idle.pop()) {
            let asked = Asked::draw(&mut rng, &names);
            asked.fill(&mut batch);
            let request = RequestOptions {
                remaining: rng.random_bool(0.1).then_some(Duration::from_micros(50)),
                slice_bags: if rng.random_bool(0.3) { 16 } else { 0 },
                ..RequestOptions::default()
            };
            match session.submit(&bound, &batch, target, &request) {
                Ok(ticket) => {
                    flying.insert(ticket, asked);
                    if rng.random_bool(0.1) {
                        session.cancel(ticket).expect("the service runs");
                    }
                    if rng.random_bool(0.05) {
                        let nothing = session.submit_null(None).expect("a credit");
                        let answer = session.wait(nothing, Wait::Block);
                        let answer = answer.expect("the service runs");
                        answer.outcome.expect("OK");
                    }
                    // Of the same rows, in whatever order they are taken.
                    let options = RequestOptions::default();
                    if rng.random_bool(0.05)
                        && let Ok(ticket) = session.prefetch(&bound, &batch, &options)
                    {
                        let answer = session.wait(ticket, Wait::Block);
                        let outcome = answer.expect("the service runs").outcome;
                        let is_good = |refusal: &Refusal| refusal.status == Status::Busy;
                        match outcome {
                            Ok(()) => prefetched += 1,
                            Err(Failure::Refused(refusal)) if is_good(&refusal) => {}
                            Err(failure) => panic!("{failure}"),
                        }
                    }
                }
                Err(unsent) if unsent.error.would_block() => idle.extend(unsent.target),
                Err(unsent) => panic!("{unsent:?}"),
            }
        }
        while let Some(answer) = session.poll().expect("the service runs") {
            let asked = flying
                .remove(&answer.ticket)
                .expect("an answer to a request of this client");
            let status = match answer.outcome {
                Ok(()) => {
                    let mut found = Vec::new();
                    for (at, wanted) in asked.oracle(&service.tables) {
                        found.resize(wanted.len(), 0);
                        session.read(&answer.target, at, &mut found);
                        assert!(
                            found == wanted,
                            "seed {seed}: the vector at {at} differs from the oracle's"
                        );
                    }
                    Status::Ok
                }
                Err(Failure::Refused(refusal)) => refusal.status,
                Err(failure) => panic!("{failure}"),
            };
            *seen.entry(status).or_default() += 1;
            idle.push(answer.target);
        }
        thread::yield_now();
    }
    assert!(prefetched > 0);
    seen
}

#[test]
fn four_workers_answer_four_clients_as_the_oracle_does() {
    answers_are_the_oracles(&InProcess::start());
}

#[test]
fn so_they_do_where_tables_are_cached() {
    let folder = tempfile::tempdir().expect("a folder");
    answers_are_the_oracles(&InProcess::start_with(folder, CACHED));
}

fn answers_are_the_oracles(service: &InProcess) {
    let mut all: HashMap<Status, u32> = HashMap::new();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| scope.spawn(move || client(service, seed)))
            .collect();
        for handle in clients {
            for (status, count) in handle.join().expect("no client panics") {
                *all.entry(status).or_default() += count;
            }
        }
    });
    println!("{all:?}");
    let allowed = [Status::Ok, Status::Cancelled, Status::Expired, Status::Busy];
    assert!(all.keys().all(|status| allowed.contains(status)), "{all:?}");
    assert!(all[&Status::Ok] >= 150 * CLIENTS as u32);
    assert!(
        all.contains_key(&Status::Cancelled),
        "cancels take effect: {all:?}"
    );
}

#[test]
fn a_connector_finds_a_service_that_was_away() {
    let mut service = InProcess::start();
    let mut connector = Connector::new(&service.endpoint, Options::default());
    let limit = Duration::from_secs(20);
    for round in 0..3 {
        let mut session = connector.connect(limit).expect("the service runs");
        session.submit_null(None).expect("a credit");
        while session.poll().expect("the service runs").is_none() {
            thread::yield_now();
        }
        let folder = service.folder.take().expect("it is here");
        drop(service);
        let gone = loop {
            match session.submit_null(None).and_then(|_| session.poll()) {
                Ok(_) => thread::yield_now(),
                Err(ClientError::NoCredit) => {
                    session.poll().ok();
                }
                Err(error) => break error,
            }
        };
        assert!(matches!(gone, ClientError::Closed), "{gone}");
        service = thread::scope(|scope| {
            let again = scope.spawn(|| {
                thread::sleep(Duration::from_millis(100 * round));
                InProcess::start_in(folder)
            });
            let found = connector.connect(limit);
            assert!(found.is_ok(), "{:?}", found.err());
            again.join().expect("it starts")
        });
    }
}
