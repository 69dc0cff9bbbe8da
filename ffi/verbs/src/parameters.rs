//! Numbers of a connection that InfiniBand encodes in a few bits, each as a type that holds good ones only.

use std::fmt;
use std::time::Duration;

use crate::error::Error;

/// How often a sender repeats: 0 to 6.
///
/// Seven means for ever to receiver-not-ready retries of every device and to all retries of some (soft-RoCE):
/// a peer that is gone would never be noticed. So there is no way to say seven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryCount(u8);

impl RetryCount {
    /// The most there is.
    pub const MAX: RetryCount = RetryCount(6);
    /// Once.
    pub const ONE: RetryCount = RetryCount(1);

    /// A count of at most 6.
    ///
    /// # Errors
    /// [`Error::Refused`] from 7 on.
    pub fn new(count: u8) -> Result<RetryCount, Error> {
        if count <= RetryCount::MAX.0 {
            return Ok(RetryCount(count));
        }
        Err(Error::Refused {
            what: "a retry count",
            value: count.into(),
            allowed: "it is 0 to 6, since 7 means for ever",
        })
    }

    /// The count.
    pub fn count(self) -> u8 {
        self.0
    }
}

/// How long a sender waits for an acknowledgement before it sends again: 4.096 us x 2^exponent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// The timeout with this exponent, 1 to 31. Devices may wait longer: some have a shortest time of
    /// their own, and InfiniBand allows four times what is asked for.
    ///
    /// # Errors
    /// [`Error::Refused`] for 0, which means for ever, and above 31.
    pub fn new(exponent: u8) -> Result<AckTimeout, Error> {
        if (1..=31).contains(&exponent) {
            return Ok(AckTimeout(exponent));
        }
        Err(Error::Refused {
            what: "the exponent of an ACK timeout",
            value: exponent.into(),
            allowed: "it is 1 to 31, since 0 means for ever",
        })
    }

    /// The exponent.
    pub fn exponent(self) -> u8 {
        self.0
    }

    /// The time.
    pub fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }
}

/// How long a receiver that is not ready asks the sender to wait, as the 5-bit code of InfiniBand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// The timer with this code, 1 (10 us) to 31 (492 ms).
    ///
    /// # Errors
    /// [`Error::Refused`] for 0, which is the longest time of all (655 ms), and above 31.
    pub fn new(code: u8) -> Result<RnrTimer, Error> {
        if (1..=31).contains(&code) {
            return Ok(RnrTimer(code));
        }
        Err(Error::Refused {
            what: "the code of an RNR timer",
            value: code.into(),
            allowed: "it is 1 to 31, since 0 means 655 ms",
        })
    }

    /// The code.
    pub fn code(self) -> u8 {
        self.0
    }
}

/// Most bytes of payload in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are the sizes in bytes")]
pub enum PathMtu {
    Bytes256 = 1,
    Bytes512 = 2,
    Bytes1024 = 3,
    Bytes2048 = 4,
    Bytes4096 = 5,
}

impl PathMtu {
    /// The number that verbs use, 1 to 5.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// From the number that verbs use; `None` of any other.
    pub fn from_code(code: u8) -> Option<PathMtu> {
        PathMtu::from_raw(code.into())
    }

    pub(crate) fn from_raw(raw: u32) -> Option<PathMtu> {
        [
            PathMtu::Bytes256,
            PathMtu::Bytes512,
            PathMtu::Bytes1024,
            PathMtu::Bytes2048,
            PathMtu::Bytes4096,
        ]
        .into_iter()
        .find(|mtu| *mtu as u32 == raw)
    }

    /// The size in bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }
}

impl fmt::Display for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// What a connection's queue pair is set to. All of it is read back after connecting and logged.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// How long to wait for an acknowledgement.
    pub ack_timeout: AckTimeout,
    /// How often to send again without one.
    pub retries: RetryCount,
    /// How often to send again to a receiver that is not ready.
    pub rnr_retries: RetryCount,
    /// How long senders wait when this side is not ready.
    pub rnr_timer: RnrTimer,
    /// Upper bound of the path's MTU; the path's own is taken where it is smaller or this is `None`.
    pub path_mtu: Option<PathMtu>,
    /// The traffic class of outgoing packets (RoCE v2's type of service: DSCP x 4 + ECN); `None` leaves
    /// the system's default.
    pub traffic_class: Option<u8>,
    /// READs of this side that may be in flight.
    pub reads_in_flight: u8,
    /// READs of the peer that may be in flight; 0 forbids them.
    pub reads_answered: u8,
    /// Whether the peer may WRITE (to memory that was registered for it).
    pub remote_write: bool,
}

impl Default for Parameters {
    /// An ACK timeout of 67 ms and 6 retries (0.47 s until a peer counts as gone), an RNR timer of 0.64 ms,
    /// the path's MTU, no READs, no remote WRITE.
    fn default() -> Parameters {
        Parameters {
            ack_timeout: AckTimeout(14),
            retries: RetryCount::MAX,
            rnr_retries: RetryCount::MAX,
            rnr_timer: RnrTimer(12),
            path_mtu: None,
            traffic_class: None,
            reads_in_flight: 0,
            reads_answered: 0,
            remote_write: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn for_ever_can_not_be_said() {
        assert!(RetryCount::new(7).is_err() && RetryCount::new(6).is_ok());
        assert!(AckTimeout::new(0).is_err() && AckTimeout::new(32).is_err());
        assert!(RnrTimer::new(0).is_err() && RnrTimer::new(32).is_err());
        let error = RetryCount::new(7).expect_err("seven");
        assert_eq!(
            error.to_string(),
            "a retry count can't be 7; it is 0 to 6, since 7 means for ever"
        );
    }

    #[test]
    fn units() {
        let default = Parameters::default();
        assert_eq!(default.ack_timeout.duration().as_micros(), 67_108);
        assert_eq!(PathMtu::Bytes4096.bytes(), 4096);
        assert_eq!(PathMtu::from_raw(3), Some(PathMtu::Bytes1024));
        assert_eq!(PathMtu::from_raw(6), None);
        assert_eq!(
            PathMtu::from_code(PathMtu::Bytes512.code()),
            Some(PathMtu::Bytes512)
        );
    }
}
