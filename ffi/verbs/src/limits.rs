//! What a device and its port can do, as they say themselves.

use crate::device::Context;
use crate::error::Error;
use crate::parameters::PathMtu;

/// Limits of a device and of the port that is used, read back when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Firmware version, as the vendor writes it.
    pub firmware: String,
    /// The vendor's number.
    pub vendor: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests that one queue of a queue pair can hold.
    pub work_requests: u32,
    /// Pieces of local memory that one work request can name.
    pub pieces: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Completions that one completion queue can hold.
    pub completions: u32,
    /// Vectors that completion events can be spread over.
    pub completion_vectors: u32,
    /// Memory regions.
    pub memory_regions: u32,
    /// Bytes of one memory region.
    pub memory_region_bytes: u64,
    /// Protection domains.
    pub protection_domains: u32,
    /// READs of peers that one queue pair can answer at a time.
    pub reads_answered: u32,
    /// READs that one queue pair can have in flight.
    pub reads_in_flight: u32,
    /// Bytes of one message.
    pub message_bytes: u32,
    /// Largest packet payload that the port can send with the MTU its network device has now.
    pub path_mtu: Option<PathMtu>,
    /// Entries of the port's GID table.
    pub gids: u32,
    /// Whether the port is up.
    pub active: bool,
}

impl Limits {
    /// Checks that `asked` is at most `granted`.
    pub(crate) fn check(what: &'static str, asked: u64, granted: u64) -> Result<(), Error> {
        if asked <= granted {
            Ok(())
        } else {
            Err(Error::Limit {
                what,
                asked,
                granted,
            })
        }
    }

    pub(crate) fn log(&self, context: &Context) {
        tracing::info!(
            device = context.name(),
            port = context.port(),
            address = %context.address(),
            netdev = context.netdev(),
            gid = ?context.gid(),
            "RDMA device chosen"
        );
        tracing::info!(
            device = context.name(),
            firmware = %self.firmware,
            queue_pairs = self.queue_pairs,
            work_requests = self.work_requests,
            pieces = self.pieces,
            completions = self.completions,
            memory_regions = self.memory_regions,
            memory_region_bytes = self.memory_region_bytes,
            reads_answered = self.reads_answered,
            reads_in_flight = self.reads_in_flight,
            message_bytes = self.message_bytes,
            path_mtu = ?self.path_mtu,
            active = self.active,
            "limits of the RDMA device"
        );
    }
}
