//! How the halves of the port are set up.

use std::time::Duration;

use rowmill_arena::HugePages;
use rowmill_verbs::{AckTimeout, Context, Parameters, PathMtu, RetryCount, RnrTimer};

use super::bounds::READS;
use super::private_data::smaller;
use crate::Interrupt;

/// What queue pairs are set to. All of it is read back after connecting.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionParameters {
    /// How long to wait for an acknowledgement before sending again.
    pub ack_timeout: AckTimeout,
    /// How often to send again.
    pub retries: RetryCount,
    /// How long a sender waits when this side is not ready. With honest peers that never happens.
    pub rnr_timer: RnrTimer,
    /// Upper bound of the path's MTU; `None`: as large as the path allows. The smaller one of both sides holds.
    pub path_mtu: Option<PathMtu>,
    /// Traffic class of the packets (DSCP x 4 + ECN); `None`: the system's default.
    pub traffic_class: Option<u8>,
}

impl Default for ConnectionParameters {
    /// An ACK timeout of 67 ms and 6 retries (0.47 s until a peer counts as gone), an RNR timer of 0.64 ms, the path's MTU
    /// and the system's traffic class.
    fn default() -> ConnectionParameters {
        let verbs = Parameters::default();
        ConnectionParameters {
            ack_timeout: verbs.ack_timeout,
            retries: verbs.retries,
            rnr_timer: verbs.rnr_timer,
            path_mtu: verbs.path_mtu,
            traffic_class: verbs.traffic_class,
        }
    }
}

/// Who uses a queue pair for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The dataplane's end of a control stream: the client writes nothing there.
    ServerControl,
    /// The client's: beats are written.
    ClientControl,
    /// The dataplane's end of a lane: requests are written, and data are read from the client.
    ServerLane,
    /// The client's: records and results are written, and data are read by the dataplane.
    ClientLane,
}

impl ConnectionParameters {
    /// The time after which signalled work that has not completed never will: twice that of all retries, since devices
    /// may wait longer than they are asked to, and a fifth of a second for who looks at it.
    pub fn overdue(&self) -> Duration {
        let tries = u32::from(self.retries.count()) + 1;
        self.ack_timeout.duration() * tries * 2 + Duration::from_millis(200)
    }

    /// The most bytes that this side wants in a packet: what was configured, or what its own port can send.
    pub(super) fn bound(&self, context: &Context) -> Option<PathMtu> {
        smaller(self.path_mtu, context.limits().path_mtu)
    }

    /// With packets of no more than the other side wants, too: both ends of a connection have to have one path MTU.
    pub(super) fn with_bound(self, theirs: Option<PathMtu>) -> ConnectionParameters {
        ConnectionParameters {
            path_mtu: smaller(self.path_mtu, theirs),
            ..self
        }
    }

    pub(super) fn parameters(&self, role: Role, context: &Context) -> Parameters {
        let reads = |most: u32| READS.min(u8::try_from(most).unwrap_or(u8::MAX));
        let limits = context.limits();
        Parameters {
            ack_timeout: self.ack_timeout,
            retries: self.retries,
            rnr_retries: match role {
                // Receivers are never not ready but by a breach; one retry more is for providers that post late.
                Role::ServerLane | Role::ClientLane => RetryCount::ONE,
                Role::ServerControl | Role::ClientControl => RetryCount::MAX,
            },
            rnr_timer: self.rnr_timer,
            path_mtu: self.path_mtu,
            traffic_class: self.traffic_class,
            reads_in_flight: match role {
                Role::ServerLane => reads(limits.reads_in_flight),
                _ => 0,
            },
            reads_answered: match role {
                Role::ClientLane => reads(limits.reads_answered),
                _ => 0,
            },
            remote_write: role != Role::ServerControl,
        }
    }
}

/// How a server half is set up.
#[derive(Clone, Debug)]
pub struct RdmaConfig {
    /// Lanes, one a worker, 1 to 255.
    pub lanes: u16,
    /// Most request slots that a client gets on each lane, 1 to [`MAX_CREDITS`](rowmill_wire::limits::MAX_CREDITS). A client
    /// costs 8 KiB of slot for each credit of each lane, and the room of `3 + 64` queue entries.
    pub credits: u16,
    /// Most clients at a time, at least 1. Fewer are let in where the device's completion queues have no room for so
    /// many; the log says so.
    pub max_connections: u16,
    /// Largest region that a client may register, in bytes; also the most that all regions of one client may have together
    /// at a time.
    pub max_region_bytes: u64,
    /// The most that all regions of all clients may have together, in bytes. They cost this process nothing.
    pub total_region_bytes: u64,
    /// How long a client may take to say hello, and then again to open its lanes.
    pub handshake_limit: Duration,
    /// Whether anybody who reaches the endpoint may connect. There are no tickets yet, so that nothing else can be had:
    /// the server refuses to listen unless this is said.
    pub insecure: bool,
    /// What queue pairs are set to.
    pub connection: ConnectionParameters,
    /// How long what was posted to a client may stay undone before the client is given up; `None`: as long as
    /// [`ConnectionParameters::overdue`] says. It is looked at four times a second.
    pub overdue_limit: Option<Duration>,
    /// Blocks that a worker stages results in and fetches data to, 2 to 256. Half of them can hold fetched data. It has half as many more, in
    /// which results are kept that wait for rows ([`kept_blocks`]).
    pub stage_blocks: u32,
    /// Bytes that lanes ask the device to send inline: with 64, status records and beats need no memory of their own. Where
    /// the device grants fewer they have some.
    pub inline_bytes: u32,
    /// Bytes of a block, a multiple of 4096 from 64 KiB on. `stage_blocks` of them have at most 64 MiB.
    pub stage_block_bytes: usize,
}

impl Default for RdmaConfig {
    /// One lane, 64 credits, 64 clients, regions of up to 1 GiB for each, 2 seconds, 32 blocks of 256 KiB a worker.
    fn default() -> RdmaConfig {
        RdmaConfig {
            lanes: 1,
            credits: 64,
            max_connections: 64,
            max_region_bytes: 1 << 30,
            total_region_bytes: 64 << 30,
            handshake_limit: Duration::from_secs(2),
            insecure: false,
            connection: ConnectionParameters::default(),
            overdue_limit: None,
            inline_bytes: 64,
            stage_blocks: 32,
            stage_block_bytes: 256 << 10,
        }
    }
}

impl RdmaConfig {
    pub(super) fn overdue(&self) -> Duration {
        self.overdue_limit
            .unwrap_or_else(|| self.connection.overdue())
    }

    /// All blocks of a worker.
    pub(super) fn all_blocks(&self) -> u32 {
        self.stage_blocks + kept_blocks(self.stage_blocks)
    }

    /// Most bytes of request data (lengths, ids, weights) that can be fetched for one part; more is refused.
    pub fn fetch_bytes(&self) -> u64 {
        u64::from(self.stage_blocks / 2) * self.stage_block_bytes as u64
    }
}

/// How many blocks a worker has for results that wait for rows, beside so many for all else.
pub fn kept_blocks(stage_blocks: u32) -> u32 {
    stage_blocks / 2
}

/// How a client half is set up.
#[derive(Clone, Debug)]
pub struct RdmaClientConfig {
    /// Request slots wanted on each lane; the server may grant fewer.
    pub credits: u16,
    /// What regions are made of.
    pub huge_pages: HugePages,
    /// How long connecting may take in all. The kernel sends a request for a connection again when it was not answered for
    /// 4.3 s (its CMA_CM_RESPONSE_TIMEOUT), so that less leaves a lost one no second try.
    pub connect_limit: Duration,
    /// How long to wait for the answer to a control message.
    pub reply_limit: Duration,
    /// What ends such a wait, or connecting, early.
    pub interrupt: Interrupt,
    /// Bytes that lanes ask the device to send inline: frames of up to as many are copied once less. Where the device grants
    /// fewer, fewer go so.
    pub inline_bytes: u32,
    /// After how long without a sign of life the dataplane counts as gone, while this side polls or waits.
    pub silent_limit: Duration,
    /// What queue pairs are set to.
    pub connection: ConnectionParameters,
}

impl Default for RdmaClientConfig {
    /// 16 credits, huge pages where there are some, 10 seconds to connect and for an answer, 1 without a sign of life.
    fn default() -> RdmaClientConfig {
        RdmaClientConfig {
            credits: 16,
            huge_pages: HugePages::Prefer,
            connect_limit: Duration::from_secs(10),
            reply_limit: Duration::from_secs(10),
            interrupt: Interrupt::default(),
            inline_bytes: 220,
            silent_limit: Duration::from_secs(1),
            connection: ConnectionParameters::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_given_up_after_all_retries() {
        let overdue = ConnectionParameters::default().overdue();
        assert!((1_100..1_200).contains(&overdue.as_millis()), "{overdue:?}");
        let config = RdmaConfig::default();
        assert_eq!(config.fetch_bytes(), 4 << 20);
        assert!(!config.insecure, "it has to be said");
    }
}
