//! Whether what a lane has posted gets done: the worker shows how far it is, and the control thread, which has a clock and
//! time, tells when nothing moves. So a worker asks no clock for it, and looks at no connection that has nothing to do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_utils::CachePadded;

/// How far the sends of one lane of a connection are: how many are done, times two, and one more while others are not. Only
/// the worker writes it.
#[derive(Debug, Default)]
pub(super) struct Progress(CachePadded<AtomicU64>);

impl Progress {
    /// Worker: so many sends are done, and so many are not.
    pub(super) fn note(&self, done: u64, outstanding: u64) {
        let word = done << 1 | u64::from(outstanding > 0);
        self.0.store(word, Ordering::Relaxed);
    }
}

/// What the control thread saw of a lane's progress last, at one of its beats.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Age {
    word: u64,
    /// Beats since something was done, or since there was nothing to do.
    beats: u32,
}

impl Age {
    /// Looks again, at the next beat; whether something has been on its way for more than `limit` beats in which nothing got
    /// done. Beats in which the worker did not run don't count: it may not have looked at what has come.
    pub(super) fn is_overdue(&mut self, progress: &Progress, worker_ran: bool, limit: u32) -> bool {
        let word = progress.0.load(Ordering::Relaxed);
        let waits = word & 1 != 0;
        if word != self.word || !waits {
            *self = Age { word, beats: 0 };
        } else if worker_ran {
            self.beats += 1;
        }
        self.beats > limit
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
        let mut look = |done, outstanding, ran| {
            progress.note(done, outstanding);
            age.is_overdue(&progress, ran, 3)
        };
        // Nothing to do, for ever; then work that gets done, slowly.
        assert!(!(0..10).any(|_| look(0, 0, true)));
        assert!(!(0..10).any(|done| look(done, 5, true)));
        // One is never done.
        assert_eq!(
            [true; 5].map(|ran| look(9, 1, ran)),
            [false, false, false, true, true]
        );
        // It is, after all; the next one too, but only just.
        assert!(!look(10, 0, true));
        assert_eq!([true; 4].map(|ran| look(10, 1, ran)), [false; 4]);
        assert!(!look(11, 1, true));
        // A worker that does not run (as when the process was stopped) is no sign that nothing gets done.
        assert!(!(0..10).any(|_| look(11, 1, false)));
        assert_eq!(
            [true; 4].map(|ran| look(11, 1, ran)),
            [false, false, false, true]
        );
    }

    #[test]
    fn beats_are_rounded_up() {
        let beat = Duration::from_millis(250);
        assert_eq!(beats_of(Duration::from_millis(1138), beat), 5);
        assert_eq!(beats_of(Duration::from_millis(250), beat), 1);
        assert_eq!(beats_of(Duration::MAX, beat), u32::MAX - 1);
    }
}
