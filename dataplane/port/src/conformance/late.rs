//! Cases of control calls that are given up before the dataplane has answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rowmill_wire::limits::MAX_REGIONS;
use rowmill_wire::{Pooling, Schema, Status};

use super::{Answers, Bench, Entry, Harness};
use crate::{ClientPort, Event, Interrupt, PortError};

/// What a test ends a call with.
#[derive(Clone, Default)]
struct Impatience(Arc<AtomicBool>);

impl Impatience {
    fn interrupt(&self) -> Interrupt {
        let impatience = Arc::clone(&self.0);
        Interrupt::when(move || impatience.load(Ordering::SeqCst))
    }

    /// Makes a call that ends by it.
    fn ends<T: core::fmt::Debug>(&self, call: impl FnOnce() -> Result<T, PortError>) {
        self.0.store(true, Ordering::SeqCst);
        let outcome = call();
        self.0.store(false, Ordering::SeqCst);
        assert!(
            matches!(outcome, Err(PortError::Interrupted)),
            "{outcome:?}"
        );
    }
}

/// A client that can be interrupted, and the connection of another one.
fn clients<H: Harness>(bench: &mut Bench<H>) -> (H::Client, Impatience, H::Client) {
    let impatience = Impatience::default();
    let client = bench
        .harness
        .connect_interruptibly("impatient", 1, impatience.interrupt());
    (
        client.expect("a connection"),
        impatience,
        bench.client("other", 1),
    )
}

/// While the control thread is held up by another client.
fn held_up<H: Harness>(bench: &mut Bench<H>, other: &mut H::Client, call: impl FnOnce())
where
    H::Client: Send,
{
    let answers = bench.answers.clone();
    answers.shut();
    thread::scope(|scope| {
        let asks = scope.spawn(|| other.tables().expect("tables, when it goes on"));
        bench.until("a dataplane that is held up", || answers.is_held_up());
        call();
        answers.open();
        asks.join().expect("no panic");
    });
}

/// A schema's number that comes late is not lost, and is taken for no other answer.
pub fn a_schema_that_comes_late_is_kept<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let (mut client, impatience, _) = clients(&mut bench);
    let schema = Schema::side_by_side(8, [("f", Answers::HELD, Pooling::Sum, 4)]).0;
    impatience.ends(|| client.bind(&schema));
    assert_eq!(bench.answers.held_ever(), 1);
    impatience.ends(|| client.tables());
    bench.answers.let_held_go();
    assert_eq!(client.tables().expect("tables").len(), super::TABLES);
    assert_eq!(client.bind(&schema).expect("bound"), 1);
    assert_eq!(bench.answers.held_ever(), 1, "it is bound once");
}

/// A region that is registered too late is given back, so that another can have its place.
pub fn a_region_that_comes_late_is_given_back<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(2);
    let (mut client, impatience, mut other) = clients(&mut bench);
    held_up(&mut bench, &mut other, || {
        impatience.ends(|| client.register(4096));
    });
    all_regions_can_be_had(&mut client);
}

/// So is one that was given up, whether the dataplane was asked to give it up or not yet.
pub fn a_region_that_leaves_late_is_gone<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(2);
    let (mut client, impatience, mut other) = clients(&mut bench);
    let regions = [(); 2].map(|()| client.register(4096).expect("a region"));
    held_up(&mut bench, &mut other, || {
        // The second one waits for the answer to the first.
        for region in regions {
            impatience.ends(|| client.unregister(region));
        }
        assert!(regions.iter().all(|&r| client.memory(r).is_none()));
    });
    all_regions_can_be_had(&mut client);
}

/// A client that goes on polling hears late answers then, without another call.
pub fn late_answers_are_heard_by_who_polls<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(2);
    let (mut client, impatience, mut other) = clients(&mut bench);
    held_up(&mut bench, &mut other, || {
        impatience.ends(|| client.register(4096));
    });
    let journal = bench.journals[1].clone();
    let is_end = |entry: &Entry| matches!(entry, Entry::Acknowledged(Event::RegionGone { .. }));
    bench.until("the end of the region", || {
        for _ in 0..1000 {
            assert!(client.poll(0).expect("open").is_none());
        }
        journal.count(is_end) == 1
    });
}

fn all_regions_can_be_had(client: &mut impl ClientPort) {
    for _ in 0..MAX_REGIONS {
        client.register(4096).expect("a region");
    }
    match client.register(4096) {
        Err(PortError::Refused { refusal, .. }) => {
            assert_eq!(refusal.status, Status::LimitReached);
        }
        other => panic!("one too many, not {other:?}"),
    }
}
