//! Rows of another dataplane's memory, fetched by one-sided READ.
//!
//! An [`Exporter`] offers the immutable memory of generations. A [`Reader`] has a *session* with it, over which it asks for tables
//! and renews its lease by messages, and a *lane* for each of its workers, over which that worker READs rows and nothing else goes.
//! [`message`] has the bytes.
//!
//! * The exporter takes no part in a READ: its threads may do what they like.
//! * One protection domain has all that is exported. Whoever is let in may READ all of it, so that domains of their own would keep nothing from
//!   anybody, and each would cost a registration of all rows. Keys have the right to READ and no other; what is exported can't be
//!   written by anybody, its own process included.
//! * Memory of a generation that goes is registered until no lease on it is left: leases are not renewed any more, so that takes one
//!   lease at most. Lanes of a session whose lease has ended are destroyed, and keys taken back before memory is.
//! * A reader trusts what it is granted no further than that a READ may fail: it compares the size, and never reads outside of it.
//! * Neither what is said nor what is read is encrypted or authenticated.

mod exporter;
mod lane;
mod lease;
pub mod message;
mod reader;
mod session;
mod talk;

use rowmill_verbs::{Context, Parameters, RetryCount};

use super::config::ConnectionParameters;

pub use exporter::{ExportedTable, Exporter, ExporterConfig, ExporterState, Offer};
pub use lane::ReadLane;
pub use lease::{LEASE_MAX, LEASE_MIN};
pub use message::Identity;
pub use reader::{Reader, ReaderConfig, ReaderPhase, ReaderState};

/// Lanes that one session may have: as many as a dataplane may have workers.
pub const LANES_MAX: usize = 64;

/// Who posts READs over a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// Nobody: it carries messages.
    None,
    /// This side.
    Ours,
    /// The other side.
    Theirs,
}

/// What a queue pair is set to. READs are bounded by what both devices have, since nobody else's memory is held for them.
fn parameters(own: &ConnectionParameters, reads: Reads, context: &Context) -> Parameters {
    let limits = context.limits();
    let most = |reads: u32| u8::try_from(reads).unwrap_or(u8::MAX);
    Parameters {
        ack_timeout: own.ack_timeout,
        retries: own.retries,
        rnr_retries: RetryCount::MAX,
        rnr_timer: own.rnr_timer,
        path_mtu: own.path_mtu,
        traffic_class: own.traffic_class,
        reads_in_flight: if reads == Reads::Ours {
            most(limits.reads_in_flight)
        } else {
            0
        },
        reads_answered: if reads == Reads::Theirs {
            most(limits.reads_answered)
        } else {
            0
        },
        remote_write: false,
    }
}
