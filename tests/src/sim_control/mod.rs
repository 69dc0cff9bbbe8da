//! The seeded simulation of the control plane.
//!
//! A control plane decides with `rowmill-control`'s own [`Deciding`](rowmill_control::deciding::Deciding) over its state, which lies on a disk that
//! ends at any write, and keeps deltas in its own [`Log`](rowmill_control::deltas::Log) in a directory. Dataplanes report, follow and come to generations by
//! `rowmilld`'s rules ([`Follower`](rowmill_rowmilld::control::follow::Follower), [`next`](rowmill_rowmilld::control::next)), each with a clock of its own. A seed decides all else: kills, damage,
//! silences, a second control plane at the same address, clocks that leap, stand or fall, operators' wishes, deltas that are lost or come twice. The books (`books.rs`) know what was
//! acknowledged, and so what has to be there after each start and who has to be waited for. Once nothing happens any more all comes to what is wished within a bounded time.
//!
//! What is not simulated: HTTP, threads and queues between them; samples, and so shares that follow them (the planner's own storms do); rows, and
//! how a dataplane keeps its deltas; a disk that fails without an end; more than one process that writes a state.

mod books;
mod dataplane;
mod deltas;
mod held;
mod net;
mod plane;
mod storm;
mod world;

pub use world::{Failed, Outcome, run};

/// A planted mistake, to show that the checks find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A start of the control plane knows no dataplane but those that had a policy that was kept.
    ForgetsServed,
    /// A start of the control plane knows no dataplane at all.
    ForgetsDataplanes,
    /// A start of the control plane knows no wishes for generations.
    ForgetsWishes,
    /// What the disk says is on it was there before the last changes, when the control plane is killed.
    LosesChanges,
    /// A dataplane takes policies of whoever offers them.
    FollowsAnyone,
    /// A dataplane asks again for the last delta that it has applied, and applies it.
    AppliesTwice,
    /// A dataplane takes a delta before the one that comes next.
    TakesAhead,
    /// A dataplane keeps telling another control plane than the one that it follows.
    StaysWithAnother,
    /// A dataplane does not take back what was changed there alone.
    KeepsOwnWay,
}

impl Mistake {
    /// All of them.
    pub const ALL: [Mistake; 9] = [
        Mistake::ForgetsServed,
        Mistake::ForgetsDataplanes,
        Mistake::ForgetsWishes,
        Mistake::LosesChanges,
        Mistake::FollowsAnyone,
        Mistake::AppliesTwice,
        Mistake::TakesAhead,
        Mistake::StaysWithAnother,
        Mistake::KeepsOwnWay,
    ];
}
