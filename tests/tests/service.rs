//! The whole service in one process over real shared memory: four workers, four clients at a time
//! through the client library, every answer compared with the scalar oracle bit by bit.

#[path = "service/asked.rs"]
mod asked;
#[path = "service/hub.rs"]
mod hub;
#[path = "service/placement.rs"]
mod placement;
#[path = "service/process.rs"]
mod process;

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_client::{
    Batch, Client, ClientError, Connector, Failure, Options, Refusal, RequestOptions, Status,
    Target, Ticket, Wait,
};

use asked::{Asked, names, schema};
use process::{CACHED, InProcess};

const WORKERS: u16 = 4;
const CLIENTS: u64 = 4;
const MAX_BATCH: u32 = 300;

/// One client: requests of all kinds, several in flight, until so many were answered OK that it is enough.
fn client(service: &InProcess, seed: u64, is_enough: &dyn Fn(u32) -> bool) -> HashMap<Status, u32> {
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
    loop {
        let enough = is_enough(seen.get(&Status::Ok).copied().unwrap_or(0));
        if enough && flying.is_empty() {
            break;
        }
        assert!(
            began.elapsed() < Duration::from_secs(240),
            "seed {seed}: {seen:?}, {} in flight",
            flying.len()
        );
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
    let all = answers_are_the_oracles(&InProcess::start(), |answered| answered >= 150);
    assert!(all[&Status::Ok] >= 150 * CLIENTS as u32);
}

#[test]
fn so_they_do_where_tables_are_cached() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = InProcess::start_with(folder, CACHED);
    let all = answers_are_the_oracles(&service, |answered| answered >= 150);
    assert!(all[&Status::Ok] >= 150 * CLIENTS as u32);
}

/// What became of the requests of all clients, each of which goes on until it is enough.
fn answers_are_the_oracles(
    service: &InProcess,
    is_enough: impl Fn(u32) -> bool + Sync,
) -> HashMap<Status, u32> {
    let mut all: HashMap<Status, u32> = HashMap::new();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| {
                let is_enough = &is_enough;
                scope.spawn(move || client(service, seed, is_enough))
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
    assert!(
        all.contains_key(&Status::Cancelled),
        "cancels take effect: {all:?}"
    );
    all
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
