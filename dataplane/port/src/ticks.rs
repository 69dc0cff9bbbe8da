//! The ticks of the kernel's coarse clock, which can be read without a system call in some nanoseconds.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Tells of each tick once: 1 to 10 ms, as the kernel was configured (mostly 4).
///
/// What costs a system call and is to be done while something polls is done once a tick: so it takes less than a hundredth of the
/// time, and is late by no more than a tick, however often or seldom is polled.
#[derive(Debug)]
pub(crate) struct Ticks(Timespec);

impl Ticks {
    /// From now on.
    pub(crate) fn new() -> Ticks {
        Ticks(now())
    }

    /// Whether there was one since this was true last.
    pub(crate) fn has_passed(&mut self) -> bool {
        let now = now();
        let passed = now != self.0;
        self.0 = now;
        passed
    }
}

fn now() -> Timespec {
    clock_gettime(ClockId::MonotonicCoarse)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_told_of_once() {
        let mut ticks = Ticks::new();
        let told = |ticks: &mut Ticks| (0..100_000).filter(|_| ticks.has_passed()).count();
        // Asking takes some nanoseconds, a tick at least a million of them.
        let few = told(&mut ticks);
        assert!(few < 1000, "{few} of 100000");
        while !ticks.has_passed() {}
    }
}
