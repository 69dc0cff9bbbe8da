//! When to connect again: a fault that stays must not become a storm of connections.

use std::time::{Duration, Instant};

use rowmill_wire::Status;

use crate::PortError;

/// The first delay's upper bound; each further one's is twice that of the one before.
const FIRST: Duration = Duration::from_millis(50);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(5);
/// How long a connection has to last until a further loss counts as a first one.
const HEALTHY: Duration = Duration::from_secs(10);

/// Delays between attempts to connect: random up to a bound that doubles, so that many clients of one dataplane do not
/// come back at the same moment.
#[derive(Debug, Default)]
pub struct Backoff {
    attempts: u32,
    connected: Option<Instant>,
}

impl Backoff {
    /// A connection stands since now.
    pub fn connected(&mut self, now: Instant) {
        self.connected = Some(now);
    }

    /// Connecting has failed, or the connection was lost: how long to wait before the next attempt.
    pub fn delay(&mut self, now: Instant) -> Duration {
        if let Some(since) = self.connected.take()
            && now.saturating_duration_since(since) >= HEALTHY
        {
            self.attempts = 0;
        }
        let bound = FIRST
            .saturating_mul(1u32.checked_shl(self.attempts).unwrap_or(u32::MAX))
            .min(LONGEST);
        self.attempts = (self.attempts + 1).min(16);
        bound.mul_f64(fastrand::f64())
    }

    /// Whether connecting again can help: not against a mistake in the endpoint, nor against a refusal, but for those of a
    /// moment: a dataplane that is full, as it is while it has not noticed that a client's former connection is gone, or
    /// that ends, perhaps to start again.
    pub fn helps(error: &PortError) -> bool {
        match error {
            PortError::Connect { .. }
            | PortError::NoAnswer { .. }
            | PortError::Lost { .. }
            | PortError::Closed => true,
            PortError::Refused { refusal, .. } => {
                matches!(refusal.status, Status::LimitReached | Status::Draining)
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rowmill_wire::Refusal;

    use super::*;
    use crate::Lost;

    #[test]
    fn a_persistent_fault_is_tried_less_and_less_often() {
        let start = Instant::now();
        let longest = |backoff: &mut Backoff| backoff.delay(start);
        for _ in 0..50 {
            let mut backoff = Backoff::default();
            for attempt in 0..12 {
                let bound = (FIRST * (1 << attempt.min(10))).min(LONGEST);
                assert!(longest(&mut backoff) <= bound, "attempt {attempt}");
            }
        }
        // In ten seconds there are about ten attempts.
        let (mut backoff, mut passed, mut attempts) = (Backoff::default(), Duration::ZERO, 0);
        while passed < Duration::from_secs(10) && attempts < 1000 {
            passed += backoff.delay(start);
            attempts += 1;
        }
        assert!(attempts < 40, "{attempts}");
    }

    #[test]
    fn only_health_starts_anew() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        for _ in 0..20 {
            backoff.connected(start);
            backoff.delay(start + Duration::from_millis(5));
        }
        assert_eq!(backoff.attempts, 16);
        backoff.connected(start);
        assert!(backoff.delay(start + HEALTHY) <= FIRST);
    }

    #[test]
    fn refusals_are_final_but_for_those_of_a_moment() {
        let lost = PortError::Lost {
            what: Lost::PeerSilent,
        };
        assert!(Backoff::helps(&lost) && Backoff::helps(&PortError::Closed));
        assert!(!Backoff::helps(&PortError::Protocol(String::new())));
        let refused = |status| PortError::Refused {
            refusal: Refusal::whole(status),
            detail: String::new(),
        };
        assert!(!Backoff::helps(&refused(Status::Malformed)));
        assert!(!Backoff::helps(&refused(Status::UnsupportedVersion)));
        assert!(Backoff::helps(&refused(Status::LimitReached)));
        assert!(Backoff::helps(&refused(Status::Draining)));
    }
}
