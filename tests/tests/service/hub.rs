//! One connection shared by threads, in front of the whole service.

use rowmill_client::{Hub, HubOptions, Place, Reply};

use super::*;

const THREADS: u64 = 8;
const LOOKUPS: usize = 2000;

/// Vectors that an answer must have, each at its byte.
type Wanted = Vec<(u64, Vec<u8>)>;

fn assert_answers(reply: &Reply, wanted: &Wanted) {
    let mut found = Vec::new();
    for (at, wanted) in wanted {
        found.resize(wanted.len(), 0);
        reply.lease.read(*at, &mut found).expect("in the result");
        assert!(found == *wanted, "the vector at {at} is not the oracle's");
    }
}

#[test]
fn eight_threads_share_a_connection() {
    let service = InProcess::start();
    let mut rng = StdRng::seed_from_u64(1);
    let names = names(&service.tables);
    let questions: Vec<(Batch, Wanted)> = (0..64)
        .map(|_| {
            let asked = Asked::draw(&mut rng, &names);
            let mut batch = Batch::new(1).expect("one bag");
            asked.fill(&mut batch);
            (batch, asked.oracle(&service.tables))
        })
        .collect();
    // Results of up to 1.5 MB, of which some are in flight that nobody waits for.
    let pool = HubOptions {
        pool_region_bytes: 32 << 20,
        ..HubOptions::default()
    };
    let hub = Hub::connect(&service.endpoint, Options::default(), pool);
    let hub = hub.expect("the service runs");
    let bound = hub.bind(schema()).expect("a sound schema");
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (hub, bound, questions) = (&hub, &bound, &questions);
            scope.spawn(move || {
                let mut rng = StdRng::seed_from_u64(seed);
                let options = RequestOptions::default();
                let mut done = 0;
                while done < LOOKUPS {
                    let (batch, wanted) = &questions[rng.random_range(0..questions.len())];
                    if rng.random_bool(0.05) {
                        // Nobody waits for this one.
                        let sent = hub.submit(bound, batch, Place::Pool, &options);
                        assert!(sent.as_ref().err().is_none_or(ClientError::would_block));
                    }
                    let reply = hub.lookup(bound, batch, Place::Pool, &options, Wait::Block);
                    let reply = reply.expect("the service runs");
                    match reply.outcome {
                        Ok(()) => {
                            assert_answers(&reply, wanted);
                            done += 1;
                        }
                        Err(Failure::Refused(refusal)) if refusal.status == Status::Busy => (),
                        Err(failure) => panic!("{failure}"),
                    }
                }
            });
        }
    });
    while hub.pending().expect("the service runs") > 0 {
        thread::yield_now();
    }
    assert_eq!(hub.held().expect("the service runs"), 0);
}
