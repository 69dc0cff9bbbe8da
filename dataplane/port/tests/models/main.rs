//! Models of the rings, of the messages between threads, and of the wake-up from sleep.
//!
//! The files of this crate on which two threads depend for seeing what the other wrote and for being woken are compiled
//! a second time here, with the atomics of the model checker loom in place of `crate::sync`. Loom runs a model in every
//! order of its threads' steps, and lets each load give every value that the memory model of C11 allows it to give. What is
//! no code of ours is a model as small as its promises: shared memory whose accesses must not race ([`shm::block`]), a bell
//! that keeps its ring ([`control::Bell`]), a device that completes requests ([`rdma`]).
//!
//! Found are: data that is read before it is published or overwritten while it is read, a wake-up that is slept through
//! (loom sees that all threads wait), and whatever the models assert. Each model is also run with planted mistakes that it
//! has to find ([`plant`]).
//!
//! Most preemptions of a run are bounded, by 2 or by `ROWMILL_MODEL_PREEMPTIONS` (`all`: no bound), which
//! `make test-full` raises. That bounds how many runs there are and not how threads interact: nearly all mistakes need two.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the files are whole, and the models need parts of them"
)]

mod control;
mod plant;
mod rdma;
mod shm;
#[path = "../../src/slots.rs"]
mod slots;
mod sync;

/// Preemptions of a run where nothing else is said.
const PREEMPTIONS: usize = 2;

/// Runs a model in all its orders.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = match std::env::var("ROWMILL_MODEL_PREEMPTIONS").ok() {
        None => Some(PREEMPTIONS),
        Some(text) if text == "all" => None,
        Some(text) => Some(
            text.parse()
                .expect("ROWMILL_MODEL_PREEMPTIONS is a number or `all`"),
        ),
    };
    builder.max_branches = 10_000;
    builder.check(model);
}
