//! The whole service in one process over real shared memory: four workers, four clients at a time
//! through the client library, every answer compared with the scalar oracle bit by bit.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::HugePages;
use rowmill_client::{
    Batch, Client, Division, Failure, Options, Pooling, RequestOptions, Schema, Status, Target,
    Ticket, Wait,
};
use rowmill_engine::Engine;
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Rows, scalar};
use rowmill_port::ServerPort;
use rowmill_port::shm::{ShmConfig, ShmServer};
use rowmill_rowmilld::config::{Idle, Limits};
use rowmill_rowmilld::figures::Figures;
use rowmill_rowmilld::mailbox::{Mailbox, Orders};
use rowmill_rowmilld::service::Sessions;
use rowmill_rowmilld::worker::Worker;
use rowmill_table::{Resident, RowFormat, TableSpec, silent};

const WORKERS: u16 = 4;
const CLIENTS: u64 = 4;
const MAX_BATCH: u32 = 300;

/// A service of this process; stops when dropped.
struct InProcess {
    endpoint: String,
    tables: Arc<Resident>,
    server: Option<ShmServer>,
    mailboxes: Vec<Arc<Mailbox>>,
    threads: Vec<thread::JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

impl InProcess {
    fn start() -> InProcess {
        let spec = |name: &str, rows, dim, format| TableSpec {
            name: name.into(),
            rows,
            dim,
            format,
        };
        let specs = [
            spec("users", 20_000, 64, RowFormat::F32),
            spec("items", 5_000, 36, RowFormat::Int8),
            spec("tags", 7, 128, RowFormat::F32),
        ];
        let tables =
            Resident::in_memory(&specs, 3, HugePages::Off, &silent).expect("small tables fit");
        let tables = Arc::new(tables);
        let folder = tempfile::tempdir().expect("a folder");
        let endpoint = format!("shm:{}", folder.path().join("s.sock").display());
        let mailboxes: Vec<Arc<Mailbox>> = (0..WORKERS).map(|_| Arc::default()).collect();
        let limits = Limits::default();
        let sessions = Sessions::new(
            "system-test".into(),
            Arc::clone(&tables),
            &limits,
            mailboxes.clone(),
        );
        let config = ShmConfig {
            lanes: WORKERS,
            ..ShmConfig::default()
        };
        let (server, lanes) =
            ShmServer::listen(&endpoint, config, Arc::new(sessions)).expect("a free endpoint");
        let started = Instant::now();
        let threads = lanes.into_iter().zip(&mailboxes).map(|(lane, mailbox)| {
            mailbox.set_waker(lane.waker());
            let mailbox = Arc::clone(mailbox);
            thread::spawn(move || {
                let engine = Engine::new(limits.engine(), Kernels::new(Isa::detect().isa));
                let figures = Arc::new(Figures::default());
                // Six threads share two cores: no spinning.
                let idle = Idle {
                    spin_us: 0,
                    yield_us: 50,
                    sleep: true,
                };
                Worker::new(engine, limits.engine().connections, lane, mailbox, figures)
                    .run(idle, started);
            })
        });
        let threads = threads.collect();
        InProcess {
            endpoint,
            tables,
            server: Some(server),
            mailboxes,
            threads,
            _folder: folder,
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
    features: Vec<(Vec<u32>, Vec<u32>, Vec<f32>)>,
    bags: u32,
}

impl Asked {
    fn draw(rng: &mut StdRng, tables: &Resident) -> Asked {
        let bags = if rng.random_bool(0.3) {
            1
        } else {
            rng.random_range(1..=MAX_BATCH)
        };
        let feature = |rows: u32, rng: &mut StdRng| {
            let lengths: Vec<u32> = (0..bags).map(|_| rng.random_range(0..12)).collect();
            let count = lengths.iter().sum::<u32>();
            let ids = (0..count).map(|_| rng.random_range(0..rows)).collect();
            let weights = (0..count).map(|_| rng.random_range(-2.0..2.0)).collect();
            (lengths, ids, weights)
        };
        let features = tables
            .tables()
            .iter()
            .map(|t| feature(t.row_count(), rng))
            .collect();
        Asked { features, bags }
    }

    fn fill(&self, batch: &mut Batch) {
        batch
            .clear(self.bags as usize)
            .expect("a batch within bounds");
        for (f, (lengths, ids, weights)) in self.features.iter().enumerate() {
            let outcome = match f {
                2 => batch.push_weighted(Division::Lengths(lengths), &ids[..], weights),
                _ => batch.push(Division::Lengths(lengths), &ids[..]),
            };
            outcome.expect("a sound feature");
        }
    }

    fn oracle(&self, tables: &Resident, schema: &Schema, bytes: u64) -> Vec<u32> {
        let mut out = vec![0.0; bytes as usize / 4];
        for (f, (lengths, ids, weights)) in self.features.iter().enumerate() {
            let (table, feature) = (&tables.tables()[f], &schema.features[f]);
            let format = match table.format() {
                RowFormat::F32 => rowmill_pooling::RowFormat::F32,
                RowFormat::Int8 => rowmill_pooling::RowFormat::Int8,
            };
            let rows = Rows::new(
                table.bytes(),
                table.stride(),
                table.row_count(),
                table.dim(),
                format,
            );
            let bags = Bags {
                rows: rows.expect("a sound table"),
                ids,
                lengths,
                weights: (f == 2).then_some(&weights[..]),
                mode: if feature.pooling == Pooling::Mean {
                    Mode::Mean
                } else {
                    Mode::Sum
                },
                offset: feature.offset as usize,
                stride: feature.stride as usize,
            };
            scalar::pool(&[bags], &mut out);
        }
        out.iter().map(|x| x.to_bits()).collect()
    }
}

fn schema() -> Schema {
    let poolings = [
        ("u", "users", Pooling::Sum, 64),
        ("i", "items", Pooling::Mean, 36),
        ("t", "tags", Pooling::WeightedSum, 128),
    ];
    Schema::side_by_side(MAX_BATCH, poolings).0
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
    let began = Instant::now();
    while seen.get(&Status::Ok).is_none_or(|&n| n < 150) || !flying.is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "seed {seed}: {seen:?}, {} in flight",
            flying.len()
        );
        let enough = seen.get(&Status::Ok).is_some_and(|&n| n >= 150);
        if let (false, Some(target)) = (enough, idle.pop()) {
            let asked = Asked::draw(&mut rng, &service.tables);
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
                        session
                            .wait(nothing, Wait::Block)
                            .expect("the service runs")
                            .outcome
                            .expect("OK");
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
                    let mut found = vec![0.0; bound.target_bytes(asked.bags) as usize / 4];
                    session.read_f32s(&answer.target, 0, &mut found);
                    let found: Vec<u32> = found.iter().map(|x| x.to_bits()).collect();
                    let wanted =
                        asked.oracle(&service.tables, bound.schema(), found.len() as u64 * 4);
                    assert!(
                        found == wanted,
                        "seed {seed}: an answer differs from the oracle"
                    );
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
    seen
}

#[test]
fn four_workers_answer_four_clients_as_the_oracle_does() {
    let service = InProcess::start();
    let mut all: HashMap<Status, u32> = HashMap::new();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| {
                scope.spawn({
                    let s = &service;
                    move || client(s, seed)
                })
            })
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
