//! Faults that have to be survived, each a named test against the real programs over real shared memory, or in the lab
//! over RDMA.
//!
//! `faults` runs each one in a process of its own (see [`run`]), so that one that hangs or crashes is one
//! that fails. Most happen beside an innocent client, which must notice nothing: see `watch`.

mod cached;
mod cached_disk;
mod cached_exhausted;
mod cached_moves;
mod cached_neighbour;
mod cached_next_tier;
mod cached_starts;
mod cached_warm;
mod capi;
mod clients;
mod clocks;
mod control;
mod control_store;
mod control_tables;
mod control_two;
mod deltas;
mod deltas_control;
mod deltas_full;
mod disk;
mod endings;
mod far;
mod files;
mod generations;
mod gpu;
mod held;
mod hostile;
mod ids;
mod imports;
mod large_imports;
mod limits;
mod list;
mod load;
mod midway;
mod midway_stage;
mod modes;
mod operator;
mod patron;
mod places;
#[path = "../../../dataplane/rowmilld/tests/support/plane.rs"]
mod plane;
pub mod programs;
mod python;
mod rdma;
mod refusals;
mod regions;
mod remote;
mod run;
mod schemas;
mod sharing;
mod site;
mod small_disk;
mod starts;
mod stream;
mod watch;

use std::time::Duration;

use anyhow::Result;

pub use clients::{VANISH, vanish};
pub use far::{FAR, far};
pub use list::every;
pub use run::{ONE, Outcome, Report, one, run};
use site::Site;

/// What became of a fault that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    /// It was survived; what was seen.
    Pass(String),
    /// It could not be tried here; why.
    Skipped(String),
}

/// What a fault beside an innocent client gives: a note for the table.
type Happened = Result<String>;

/// Which port a fault is tried over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    /// Shared memory, or none at all.
    Shm,
    /// Shared memory, and in the lab RDMA.
    Any,
    /// RDMA, on one machine of the lab.
    Rdma,
    /// RDMA, between two machines of the lab.
    Pair,
}

/// A fault.
pub struct Fault {
    /// Its name.
    pub name: &'static str,
    over: Over,
    /// The status or error that has to come.
    pub expected: &'static str,
    /// What it is measured by.
    pub bound: &'static str,
    /// The longest time for all of it; past that it hangs.
    pub limit: Duration,
    /// Huge pages of 2 MiB that it needs free.
    pub huge_pages: u64,
    happen: fn(&Site) -> Result<Verdict>,
}

impl Fault {
    const fn new(
        name: &'static str,
        expected: &'static str,
        bound: &'static str,
        happen: fn(&Site) -> Result<Verdict>,
    ) -> Fault {
        // The longest takes 5 s on two cores; the rest is for machines that are slow or do other things.
        let limit = Duration::from_secs(60);
        Fault {
            name,
            over: Over::Shm,
            expected,
            bound,
            limit,
            huge_pages: 0,
            happen,
        }
    }

    const fn over(self, over: Over) -> Fault {
        Fault { over, ..self }
    }

    /// Why it can't be tried here; `None` where it can.
    fn misplaced(&self) -> Option<&'static str> {
        match self.over {
            Over::Shm | Over::Any => None,
            Over::Rdma if site::rdma_address().is_some() => None,
            Over::Rdma => Some(
                "needs an RDMA device: scenario `faults` of the lab runs it (make test-rxe FILTER='^faults$')",
            ),
            Over::Pair if far::folder().is_some() => None,
            Over::Pair => Some(
                "needs two machines: scenario `pair-faults` of the lab runs it (make test-rxe FILTER=pair-faults)",
            ),
        }
    }
}
