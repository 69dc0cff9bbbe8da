//! The suite that every port has to pass, the simulated one included.
//!
//! A port under test gives a [`Harness`]: it starts a server half whose lanes are each driven by a
//! [`Worker`] of the suite, connects clients, and lets time go on. The suite talks to the workers in a
//! small language of [`Task`]s inside the frames, which ports must not look into, and reads what the
//! workers saw in their [`Journal`]s. So a port with real threads and a port that is stepped by one
//! thread run the same cases. [`conformance_tests!`](crate::conformance_tests) makes them into tests;
//! the cases in [`threads`] and [`late`] are for ports whose halves may live on different threads.

mod answers;
pub mod data;
mod job;
pub mod late;
pub mod life;
mod task;
pub mod threads;
mod worker;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_wire::{Completion, CompletionKind};

pub use answers::{Answers, TABLES};
pub use task::{Task, fingerprint, pattern};
pub use worker::{Entry, Journal, Worker};

use crate::{ClientPort, Interrupt, Lost, PortError, RegionId, Service};

/// What a server half is started with.
pub struct Setup {
    /// One for each lane, to be driven by [`Worker::turn`] until the harness is dropped.
    pub workers: Vec<Worker>,
    /// The answers to control messages.
    pub service: Arc<dyn Service>,
    /// Most credits to grant a client on a lane.
    pub credits: u16,
    /// Most clients at a time.
    pub max_connections: u16,
    /// Largest region to accept, in bytes.
    pub max_region: u64,
}

/// A breach of the protocol that an honest client half would never commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An immediate of no known kind.
    UnknownKind,
    /// A kind that only servers send.
    ServersKind,
    /// A request in a slot that was not granted.
    SlotNotGranted,
    /// A cancel of a slot that was not granted.
    CancelNotGranted,
    /// A request without a byte.
    EmptyFrame,
    /// A request longer than a slot.
    FrameTooLong,
    /// More submissions than the queue can hold.
    Overrun,
    /// A queue that runs backwards.
    Backwards,
}

impl Violation {
    /// All of them.
    pub const ALL: [Violation; 8] = [
        Violation::UnknownKind,
        Violation::ServersKind,
        Violation::SlotNotGranted,
        Violation::CancelNotGranted,
        Violation::EmptyFrame,
        Violation::FrameTooLong,
        Violation::Overrun,
        Violation::Backwards,
    ];
}

/// How the suite drives one port.
pub trait Harness: Sized {
    /// The client half.
    type Client: ClientPort;

    /// Starts the server half.
    fn start(setup: Setup) -> Self;

    /// Connects a client.
    ///
    /// # Errors
    /// What the client half says.
    fn connect(&mut self, name: &str, credits: u16) -> Result<Self::Client, PortError>;

    /// As [`Harness::connect`], with what ends the client's waits early. Where a client never waits nothing ends it.
    ///
    /// # Errors
    /// What the client half says.
    fn connect_interruptibly(
        &mut self,
        name: &str,
        credits: u16,
        _interrupt: Interrupt,
    ) -> Result<Self::Client, PortError> {
        self.connect(name, credits)
    }

    /// Lets the workers and the time go on a little.
    fn run(&mut self);

    /// Ends the server half, as at the end of its program.
    fn stop_server(&mut self);

    /// Breaks the protocol on a lane; false where this port has no way to express the breach.
    fn violate(&mut self, _client: &mut Self::Client, _lane: u16, _what: Violation) -> bool {
        false
    }

    /// Takes the memory of a region away from under the server; false where that can't be done here.
    fn lose(&mut self, _client: &mut Self::Client, _region: RegionId) -> bool {
        false
    }
}

/// A started port with its journals.
pub struct Bench<H: Harness> {
    /// The port.
    pub harness: H,
    /// What each lane's worker saw.
    pub journals: Vec<Arc<Journal>>,
    /// What the service was asked.
    pub answers: Arc<Answers>,
}

impl<H: Harness> Bench<H> {
    /// Starts a port with `lanes` lanes, at most 64 credits a lane, 4 clients, and 16 MiB a region.
    pub fn start(lanes: u16) -> Bench<H> {
        let journals: Vec<_> = (0..lanes).map(|_| Arc::new(Journal::default())).collect();
        let answers = Arc::new(Answers::new(lanes));
        let harness = H::start(Setup {
            workers: journals.iter().cloned().map(Worker::new).collect(),
            service: answers.clone(),
            credits: 64,
            max_connections: 4,
            max_region: 16 << 20,
        });
        Bench {
            harness,
            journals,
            answers,
        }
    }

    /// Connects a client that must be let in.
    pub fn client(&mut self, name: &str, credits: u16) -> H::Client {
        self.harness.connect(name, credits).expect("a connection")
    }

    /// Runs until `done`, which has to happen in seconds.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let patience = Patience::new(what);
        while !done() {
            self.harness.run();
            patience.check();
        }
    }

    /// Runs until a record comes on `lane`.
    ///
    /// # Panics
    /// If none comes in seconds, or the connection ends.
    #[track_caller]
    pub fn record(&mut self, client: &mut H::Client, lane: u16) -> Completion {
        let patience = Patience::new("a status record");
        loop {
            if let Some(record) = client.poll(lane).expect("an open connection") {
                return record;
            }
            self.harness.run();
            patience.check();
        }
    }

    /// Sends a task in slot 0 and gives its final record; none may precede it.
    #[track_caller]
    pub fn ask(&mut self, client: &mut H::Client, lane: u16, task: &Task) -> Completion {
        client
            .submit(lane, 0, &task.frame())
            .expect("an open connection");
        let record = self.record(client, lane);
        assert_eq!(record.kind, CompletionKind::Final);
        record
    }

    /// Runs until the client's end of `lane` says that it is closed or was cut off.
    #[track_caller]
    pub fn closed(&mut self, client: &mut H::Client, lane: u16) {
        let patience = Patience::new("the end of the connection");
        loop {
            match client.poll(lane) {
                Err(PortError::Closed) => return,
                Err(PortError::Lost {
                    what: Lost::CutOff(_),
                }) => return,
                Err(other) => panic!("closed, not {other}"),
                Ok(_) => self.harness.run(),
            }
            patience.check();
        }
    }
}

/// How long a test waits for what has to come: 20 seconds, far above what a loaded test machine needs, or as many as
/// `ROWMILL_TEST_PATIENCE` says, for machines that are emulated.
pub fn patience() -> Duration {
    let wanted = std::env::var("ROWMILL_TEST_PATIENCE").ok();
    let seconds = wanted.and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(20))
}

/// Gives up after a while.
struct Patience {
    what: String,
    since: Instant,
}

impl Patience {
    fn new(what: &str) -> Patience {
        Patience {
            what: what.to_owned(),
            since: Instant::now(),
        }
    }

    #[track_caller]
    fn check(&self) {
        assert!(
            self.since.elapsed() < patience(),
            "{} did not come",
            self.what
        );
    }
}

/// Makes the suite's cases into tests of a [`Harness`](crate::conformance::Harness). With `threads`
/// also those that need its client half to be `Send` and its workers to run on threads of their own. With
/// `when` a test is left out if the expression is false, which says why itself.
#[macro_export]
macro_rules! conformance_tests {
    ($harness:ty) => {
        $crate::conformance_tests!(@single $harness, true);
    };
    ($harness:ty, threads) => {
        $crate::conformance_tests!($harness, threads, when true);
    };
    ($harness:ty, threads, when $ready:expr) => {
        $crate::conformance_tests!(@single $harness, $ready);
        $crate::conformance_tests!(@cases $harness, $ready, threads:
            bytes_before_record, no_lost_wake_up, a_sleeper_holds_up_nobody, unregister_under_load, waits_end_in_time,
            death_ends_a_wait, a_bind_holds_up_nobody, a_bind_that_takes_too_long_is_refused, an_end_abandons_a_bind);
        $crate::conformance_tests!(@cases $harness, $ready, late:
            a_schema_that_comes_late_is_kept, a_region_that_comes_late_is_given_back, a_region_that_leaves_late_is_gone,
            late_answers_are_heard_by_who_polls);
    };
    (@single $harness:ty, $ready:expr) => {
        $crate::conformance_tests!(@cases $harness, $ready, data:
            null_round_trip, frames_of_every_length, many_frames_in_flight, region_edges,
            holes_are_left_alone, region_out_of_bounds, rights_are_kept, unknown_regions, slices_in_order, cancel_is_delivered,
            lanes_are_apart, lost_region);
        $crate::conformance_tests!(@cases $harness, $ready, life:
            welcome, credits_are_bounded, tables_in_pages, bind_and_refusal, regions_come_and_go,
            region_too_large, too_many_regions, unregister_ends_access, client_drop_detaches,
            client_close_detaches, connection_limit, server_gone, worker_cuts_off, two_clients_apart, poll_is_fair,
            violations_cut_only_the_violator);
    };
    (@cases $harness:ty, $ready:expr, $group:ident: $($case:ident),*) => {
        $(#[test]
        fn $case() {
            if $ready {
                $crate::conformance::$group::$case::<$harness>();
            }
        })*
    };
}
