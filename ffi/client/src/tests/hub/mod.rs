//! A session that threads share.

mod bells;
mod endings;
mod results;
mod threads;
mod watching;

use std::thread;
use std::time::{Duration, Instant};

use super::*;

type TestHub = Hub<StandIn>;

/// A dataplane that is not there for so long that a wake-up that gets lost shows.
const LONG: Duration = Duration::from_secs(600);

fn hub(credits: u16, backoff: Backoff, options: HubOptions) -> TestHub {
    let mut session = session(2, credits, 1);
    session.options.backoff = backoff;
    Hub::over(session, options).expect("descriptors")
}

fn sleepy() -> Backoff {
    Backoff {
        spins: 0,
        yields: 0,
        sleep: LONG,
    }
}

fn bind(hub: &TestHub) -> BoundSchema {
    let features = [
        ("item", "items", Pooling::Sum, DIM),
        ("user", "users", Pooling::Sum, DIM),
    ];
    let (schema, _) = Schema::side_by_side(64, features);
    hub.bind(schema).expect("bound")
}

/// A bag a feature for each id.
fn ask(ids: &[u32]) -> Batch {
    let mut batch = Batch::new(ids.len()).expect("bags");
    for _ in 0..2 {
        let lengths = vec![1; ids.len()];
        let pushed = batch.push(Division::Lengths(&lengths), ids);
        pushed.expect("a feature");
    }
    batch
}

fn assert_answers(reply: &Reply, schema: &BoundSchema, ids: &[u32]) {
    assert_eq!(reply.outcome, Ok(()));
    let mut vector = [0.0; DIM as usize];
    for (bag, &id) in ids.iter().enumerate() {
        for feature in 0..2 {
            let read = reply
                .lease
                .read_vector(schema, feature, bag as u32, &mut vector);
            read.expect("in the result");
            assert_eq!(vector, [0, 1, 2, 3].map(|d| (id + d) as f32));
        }
    }
}

/// Does something to the port as a dataplane would, and wakes who sleeps.
fn with_port<T>(hub: &TestHub, act: impl FnOnce(&mut StandIn) -> T) -> T {
    let mut inner = hub.shared.lock().expect("open");
    let done = act(&mut inner.session.port);
    hub.shared.rouse(&mut inner);
    done
}

/// Waits until the leader sleeps.
fn until_asleep(hub: &TestHub) {
    while !hub.shared.sleeps() {
        thread::yield_now();
    }
}
