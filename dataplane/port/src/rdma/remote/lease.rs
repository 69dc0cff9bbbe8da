//! How long memory that is read stays: each side counts by its own clock.
//!
//! The exporter begins a term when a question to renew it has come to it; the reader counts from when it has asked, which was before
//! that, and stops a margin earlier. So as long as both clocks run at about one rate no READ is posted whose exporter has let go, however long messages
//! are under way. That memory is safe does not rest on that: keys are taken back before memory is, and a READ that comes later than that fails.

use std::time::{Duration, Instant};

/// The shortest lease: three times what the retries of a READ may take (0.47 s), so that its margin is longer than that.
pub const LEASE_MIN: Duration = Duration::from_millis(1500);
/// The longest, which bounds how long an exporter may have to wait before it gives memory back.
pub const LEASE_MAX: Duration = Duration::from_secs(60);
/// The part of a lease that a reader leaves unused, and after which it asks again.
const PART: u32 = 3;

/// A lease as the exporter knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    lease: Duration,
    until: Instant,
    is_ending: bool,
}

impl Term {
    /// Begins now.
    pub(super) fn new(lease: Duration, now: Instant) -> Term {
        Term {
            lease,
            until: now + lease,
            is_ending: false,
        }
    }

    /// It is to begin anew. Returns whether it has: not once it is to end, nor once it has ended.
    pub(super) fn renew(&mut self, now: Instant) -> bool {
        let may = !self.is_ending && now < self.until;
        if may {
            self.until = now + self.lease;
        }
        may
    }

    /// It is not renewed any more.
    pub(super) fn end(&mut self) {
        self.is_ending = true;
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        now >= self.until
    }

    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

/// Until when a reader may post READs that has asked at `asked_ns`, and was answered.
pub(super) fn readable_until_ns(asked_ns: u64, lease: Duration) -> u64 {
    asked_ns + (lease - lease / PART).as_nanos() as u64
}

/// How long after asking a reader asks again: so that there is time for another try before it has to stop.
pub(super) fn renewal(lease: Duration) -> Duration {
    lease / PART
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_term_lasts_and_is_renewed_until_it_is_to_end() {
        let (lease, start) = (Duration::from_secs(3), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let mut term = Term::new(lease, start);
        assert!(!term.is_over(at(2999)) && term.is_over(at(3000)));
        assert!(term.renew(at(2000)));
        assert!(!term.is_over(at(4999)));
        term.end();
        assert!(!term.renew(at(4000)));
        assert_eq!(term.until(), at(5000));
        let mut late = Term::new(lease, start);
        assert!(!late.renew(at(3000)));
    }

    proptest! {
        /// Whatever messages take: while a reader may post, and for as long after that as the retries of a READ take, the term
        /// has not ended.
        #[test]
        fn who_reads_stops_before_the_term_ends(
            lease_ms in 1500u64..60_000,
            began_ms in 0u64..1000,
            ways_ms in proptest::collection::vec((0u64..3000, 0u64..3000, 0u64..2000), 1..20),
        ) {
            let lease = Duration::from_millis(lease_ms);
            let start = Instant::now();
            let mut term = Term::new(lease, start + Duration::from_millis(began_ms));
            // It asked to connect before that.
            let mut until_ns = readable_until_ns(0, lease);
            let mut now_ms = began_ms;
            for (there_ms, back_ms, pause_ms) in ways_ms {
                now_ms += pause_ms;
                let asked_ms = now_ms;
                now_ms += there_ms;
                let renewed = term.renew(start + Duration::from_millis(now_ms));
                now_ms += back_ms;
                if renewed {
                    until_ns = until_ns.max(readable_until_ns(asked_ms * 1_000_000, lease));
                }
                let last = start + Duration::from_nanos(until_ns) + Duration::from_millis(470);
                prop_assert!(!term.is_over(last));
            }
        }
    }
}
