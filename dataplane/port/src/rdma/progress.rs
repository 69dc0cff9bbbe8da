//! Whether what a lane has posted gets done: the worker shows how far it is, and the control thread, which has a clock and
//! time, tells when nothing moves. So a worker asks no clock for it, and looks at no connection that has nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// How often longer than work may stand still all of it may take: whoever lets one piece of work be done now and then must
/// not keep what the rest of it holds. A send queue full of blocks of 256 KiB, 16 MiB, then needs less than 4 MB/s.
const SLOWEST: u32 = 4;

/// How far the sends of one lane of a connection are: how many were posted, and how many of these are done. Only the worker
/// writes it.
#[derive(Debug, Default)]
pub(super) struct Progress(CachePadded<AtomicU64>);

impl Progress {
    /// Worker: so many sends were posted, and so many of these are not done. Counted in 32 bits, round and round.
    pub(super) fn note(&self, posted: u64, outstanding: u64) {
        let done = posted.wrapping_sub(outstanding);
        let word = done << 32 | posted & u64::from(u32::MAX);
        self.0.store(word, Ordering::Relaxed);
    }
}

/// What the control thread saw of a lane's progress last, at one of its beats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age {
    /// What was done; `None` where that was all.
    done: Option<u32>,
    /// Beats since something was done, or since there was nothing to do.
    beats: u32,
    /// What had been posted at some beat, and is not all done since.
    mark: u32,
    /// Beats since then.
    marked: u32,
}

impl Age {
    /// Looks again, at the next beat; whether something has been on its way for more than `limit` beats in which nothing got
    /// done, or for [`SLOWEST`] times as many in which not all of it did. Beats in which the worker did not run don't count:
    /// it may not have looked at what has come.
    pub(super) fn is_overdue(&mut self, progress: &Progress, worker_ran: bool, limit: u32) -> bool {
        let word = progress.0.load(Ordering::Relaxed);
        let (done, posted) = ((word >> 32) as u32, word as u32);
        let ran = u32::from(worker_ran);
        let seen = (done != posted).then_some(done);
        if seen != self.done || seen.is_none() {
            (self.done, self.beats) = (seen, 0);
        } else {
            self.beats += ran;
        }
        // At most a send queue lies between the two, so that the difference tells which is ahead.
        if seen.is_none() || self.mark.wrapping_sub(done) as i32 <= 0 {
            (self.mark, self.marked) = (posted, 0);
        } else {
            self.marked += ran;
        }
        self.beats > limit || self.marked > limit.saturating_mul(SLOWEST)
    }
}

/// The beats that `limit` takes.
pub(super) fn beats_of(limit: Duration, beat: Duration) -> u32 {
    let beats = limit.as_nanos().div_ceil(beat.as_nanos());
    u32::try_from(beats).unwrap_or(u32::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_work_that_stands_still_is_overdue() {
        let (progress, mut age) = (Progress::default(), Age::default());
        let mut look = |done: u64, outstanding: u64, ran| {
            progress.note(done + outstanding, outstanding);
            age.is_overdue(&progress, ran, 3)
        };
        // Nothing to do, for ever; then work that gets done, slowly.
        assert!(!(0..10).any(|_| look(0, 0, true)));
        assert!(!(0..40).any(|done| look(done, 5, true)));
        // One is never done.
        assert_eq!(
            [true; 6].map(|ran| look(43, 1, ran)),
            [false, false, false, false, true, true]
        );
        // It is, after all; the next one too, but only just.
        assert!(!look(44, 0, true));
        assert_eq!([true; 4].map(|ran| look(44, 1, ran)), [false; 4]);
        assert!(!look(45, 1, true));
        // A worker that does not run (as when the process was stopped) is no sign that nothing gets done.
        assert!(!(0..10).any(|_| look(45, 1, false)));
        assert_eq!(
            [true; 4].map(|ran| look(45, 1, ran)),
            [false, false, false, true]
        );
    }

    #[test]
    fn work_of_which_a_little_gets_done_now_and_then_is_overdue_too() {
        // Counts pass 2^32 on the way.
        for start in [0, (1 << 32) - 8, (1 << 33) - 3] {
            let (progress, mut age) = (Progress::default(), Age::default());
            progress.note(start, 0);
            assert!(!age.is_overdue(&progress, true, 3));
            // 64 are posted, and one is done every other beat.
            let overdue = (1..).find(|&beat| {
                progress.note(start + 64, 64 - beat / 2);
                age.is_overdue(&progress, true, 3)
            });
            assert_eq!(overdue, Some(2 + u64::from(3 * SLOWEST)));
        }
    }

    #[test]
    fn beats_are_rounded_up() {
        let beat = Duration::from_millis(250);
        assert_eq!(beats_of(Duration::from_millis(1138), beat), 5);
        assert_eq!(beats_of(Duration::from_millis(250), beat), 1);
        assert_eq!(beats_of(Duration::MAX, beat), u32::MAX - 1);
    }
}
