//! Whether a worker lives: what it shows to the control thread, which shows it to the clients.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_utils::CachePadded;

use super::bounds::BEAT_WRITTEN;

/// How long a worker may go without polling, unless it sleeps.
const STUCK: Duration = Duration::from_secs(1);

const ASLEEP: u64 = 1;

/// A worker's sign of life: its polls, and whether it sleeps. Only the worker writes it.
#[derive(Debug, Default)]
pub(super) struct Life {
    polls: CachePadded<AtomicU64>,
    /// Its completion queue can't be used any more.
    failed: AtomicBool,
}

impl Life {
    /// Worker: it polls.
    pub(super) fn polled(&self) {
        let polls = self.polls.load(Ordering::Relaxed) & !ASLEEP;
        self.polls.store(polls.wrapping_add(2), Ordering::Relaxed);
    }

    /// Worker: it is about to sleep until there is something to do.
    pub(super) fn sleeps(&self) {
        let polls = self.polls.load(Ordering::Relaxed);
        self.polls.store(polls | ASLEEP, Ordering::Relaxed);
    }

    /// Worker: its completion queue has failed, for good. True the first time.
    pub(super) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::Relaxed)
    }

    /// Whether nobody can be served by it any more.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// What the control thread saw of a worker last.
#[derive(Debug)]
pub(super) struct Seen {
    state: u64,
    since: Instant,
    ran: bool,
}

impl Seen {
    pub(super) fn new(now: Instant) -> Seen {
        Seen {
            state: 0,
            since: now,
            ran: false,
        }
    }

    /// Whether the worker lives.
    pub(super) fn lives(&mut self, life: &Life, now: Instant) -> bool {
        let state = life.polls.load(Ordering::Relaxed);
        self.ran = state != self.state || state & ASLEEP != 0;
        if self.ran {
            (self.state, self.since) = (state, now);
        }
        now.saturating_duration_since(self.since) < STUCK
    }

    /// Whether it had polled, or slept until there was something to do, when it was looked at last.
    pub(super) fn ran(&self) -> bool {
        self.ran
    }
}

/// A beat: a counter, and a bit for each lane whose worker lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Beat(pub(super) [u8; BEAT_WRITTEN]);

impl Beat {
    pub(super) fn new(counter: u64) -> Beat {
        let mut bytes = [0; BEAT_WRITTEN];
        bytes[..8].copy_from_slice(&counter.to_le_bytes());
        Beat(bytes)
    }

    pub(super) fn counter(&self) -> u64 {
        let eight = self.0[..8].try_into().expect("8 bytes");
        u64::from_le_bytes(eight)
    }

    pub(super) fn set(&mut self, lane: u16) {
        let lane = usize::from(lane);
        self.0[8 + lane / 8] |= 1 << (lane % 8);
    }

    /// Whether all of the first `lanes` lanes live.
    pub(super) fn has_all(&self, lanes: u16) -> bool {
        let has = |lane: usize| self.0[8 + lane / 8] & 1 << (lane % 8) != 0;
        (0..usize::from(lanes)).all(has)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_poll_or_sleep_live() {
        let (life, start) = (Life::default(), Instant::now());
        assert!(!life.has_failed());
        let mut seen = Seen::new(start);
        life.polled();
        assert!(seen.lives(&life, start) && seen.ran());
        assert!(seen.lives(&life, start + STUCK / 2) && !seen.ran());
        assert!(!seen.lives(&life, start + STUCK));
        life.sleeps();
        assert!(seen.lives(&life, start + 5 * STUCK));
        assert!(seen.lives(&life, start + 50 * STUCK));
        life.polled();
        assert!(seen.lives(&life, start + 60 * STUCK));
        assert!(!seen.lives(&life, start + 61 * STUCK));
        assert!(
            life.fail() && !life.fail() && life.has_failed(),
            "said once"
        );
    }

    #[test]
    fn beats_lie_as_the_specification_says() {
        let mut beat = Beat::new(7);
        (0..10).for_each(|lane| beat.set(lane));
        assert_eq!(beat.0[..11], [7, 0, 0, 0, 0, 0, 0, 0, 0xff, 3, 0]);
        assert!(beat.has_all(10) && !beat.has_all(11));
        assert_eq!(beat.counter(), 7);
        let mut beat = Beat::new(0);
        (0..255).for_each(|lane| beat.set(lane));
        assert!(beat.has_all(255));
    }
}
