//! Choices of the caller: for a session, a request, waiting and trying again.

use core::time::Duration;

use rowmill_port::Interrupt;
#[cfg(feature = "rdma")]
use rowmill_port::rdma::{ConnectionParameters, RdmaClientConfig};

/// Choices for a session.
#[derive(Clone, Debug)]
pub struct Options {
    /// The client's name in the dataplane's logs and status page.
    pub name: String,
    /// Requests wanted in flight on each lane; the dataplane may grant fewer.
    pub credits: u16,
    /// Bytes of the region that carries the ids of requests too large for a frame (8 KiB). The ids,
    /// lengths and weights of all requests in flight have to fit. At most half of what the dataplane lets a client's regions have
    /// (`limits.max_region_bytes`) is taken. The default of 16 MiB holds 24
    /// queries of 700 samples of the DLRM-v2 shape (149,800 u32 ids and 18,200 lengths, 0.67 MB each).
    pub source_bytes: usize,
    /// How [`Wait::Block`] waits.
    pub backoff: Backoff,
    /// How long to wait for the answer to a control call (tables, bind, region, unregister, a submission for which a pool
    /// grows), the one that connects too; by the clock, signals don't stretch it. A call that asks twice may take twice as long.
    pub reply_limit: Duration,
    /// What ends such a wait early, with [`ClientError::Interrupted`](crate::ClientError::Interrupted).
    pub interrupt: Interrupt,
    /// Choices for endpoints `rdma://`.
    #[cfg(feature = "rdma")]
    pub rdma: RdmaOptions,
}

/// Choices for connections over RDMA.
#[cfg(feature = "rdma")]
#[derive(Clone, Copy, Debug)]
pub struct RdmaOptions {
    /// What queue pairs are set to: ACK timeout, retries, MTU, traffic class. How long a dataplane that is gone is not
    /// noticed follows from the first two. All of it is read back and logged.
    pub connection: ConnectionParameters,
    /// How long connecting may take in all. The kernel asks again after 4.3 s without an answer.
    pub connect_limit: Duration,
    /// After how long without a sign of life the dataplane counts as gone, while this side polls or waits. Its signs come
    /// each 250 ms.
    pub silent_limit: Duration,
}

#[cfg(feature = "rdma")]
impl Default for RdmaOptions {
    /// 10 seconds to connect, 1 without a sign of life.
    fn default() -> RdmaOptions {
        let usual = RdmaClientConfig::default();
        RdmaOptions {
            connection: usual.connection,
            connect_limit: usual.connect_limit,
            silent_limit: usual.silent_limit,
        }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "rowmill-client".into(),
            credits: 8,
            source_bytes: 16 << 20,
            backoff: Backoff::default(),
            reply_limit: Duration::from_secs(10),
            interrupt: Interrupt::default(),
            #[cfg(feature = "rdma")]
            rdma: RdmaOptions::default(),
        }
    }
}

/// Choices for a request. The default asks for final vectors of the newest generation, without
/// deadline, in one piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// How long anybody will want the answer, from the dataplane's receipt on; `None` for no limit.
    /// Rounded up to microseconds, at most about 71 minutes.
    pub remaining: Option<Duration>,
    /// Announce results every so many bags of a part (see `Session::poll_slices`); 0 for only at the
    /// end. A part can have at most 64 slices.
    pub slice_bags: u32,
    /// Ask for raw f32 sums: means are then not divided.
    pub partials: bool,
    /// The generation wanted; 0 for the newest. A request that is split names the newest one that the
    /// session knows of in all its parts, so that they can't differ.
    pub generation: u64,
    /// Which attempt at the same work this is; comes back in the answer.
    pub attempt: u16,
}

impl RequestOptions {
    pub(crate) fn remaining_us(&self) -> u32 {
        let us = |d: Duration| d.as_nanos().div_ceil(1000).clamp(1, u128::from(u32::MAX)) as u32;
        self.remaining.map_or(0, us)
    }
}

/// How to wait for an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Poll all the time: the lowest latency, for a thread that has a core to itself.
    Poll,
    /// Poll for a while, then let others run, then sleep until a completion comes: see [`Backoff`].
    #[default]
    Block,
}

/// When a blocking wait stops spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Polls with a pause instruction between them, some 20 to 60 ns each. The default of 4,000
    /// lasts about 100 to 200 us: longer than a request of a few samples, shorter than one of hundreds.
    pub spins: u32,
    /// Polls after that with `sched_yield` between them, about 1 us each where nothing else runs.
    pub yields: u32,
    /// Longest single sleep after that. A completion ends it early; it bounds what is lost where a
    /// wake-up is.
    pub sleep: Duration,
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            spins: 4000,
            yields: 64,
            sleep: Duration::from_millis(10),
        }
    }
}

/// When and how often to repeat a request that was answered `Busy`, or `Retry` because the
/// generation it named has been replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Attempts in all, at least 1.
    pub attempts: u16,
    /// The longest pause before the second attempt; each later one may be twice as long. The pause
    /// taken is drawn evenly from half of it to all of it, so that clients don't return in step.
    pub first_pause: Duration,
    /// The longest pause before any attempt.
    pub max_pause: Duration,
}

impl Default for Retry {
    fn default() -> Retry {
        Retry {
            attempts: 5,
            first_pause: Duration::from_micros(100),
            max_pause: Duration::from_millis(10),
        }
    }
}

impl Retry {
    /// The pause before attempt `attempt` (the second one is 1), with `jitter` from 0 to 1.
    pub(crate) fn pause(&self, attempt: u16, jitter: f64) -> Duration {
        let doublings = u32::from(attempt.saturating_sub(1)).min(30);
        let longest = self
            .first_pause
            .saturating_mul(1 << doublings)
            .min(self.max_pause);
        longest.mul_f64(0.5 + 0.5 * jitter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_their_bound() {
        let retry = Retry::default();
        let longest: Vec<u128> = (1..10).map(|a| retry.pause(a, 1.0).as_micros()).collect();
        assert_eq!(
            longest,
            [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]
        );
        assert_eq!(retry.pause(1, 0.0).as_micros(), 50);
        assert_eq!(retry.pause(u16::MAX, 1.0).as_millis(), 10);
    }

    #[test]
    fn a_deadline_is_never_rounded_to_no_deadline() {
        let us = |d| {
            RequestOptions {
                remaining: Some(d),
                ..Default::default()
            }
            .remaining_us()
        };
        assert_eq!(us(Duration::ZERO), 1);
        assert_eq!(us(Duration::from_nanos(1001)), 2);
        assert_eq!(us(Duration::from_secs(1 << 20)), u32::MAX);
        assert_eq!(RequestOptions::default().remaining_us(), 0);
    }
}
