//! The coarse time: how ticks go with the lookups of a table.

/// Ticks in which as many rows are looked up as there are slots. A stamp can tell the age up to 64 times that.
pub(super) const TICKS_PER_TURNOVER: u64 = 32;

/// Ticks of as many lookups as the number of a table's slots asks for. Where that changes, time goes on from where it was, lest ages jump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    lookups_per_tick: u64,
    /// After so many lookups it was so late, when the pace was last changed.
    lookups: u64,
    ticks: u64,
}

impl Clock {
    /// From the first lookup of a table of so many slots.
    pub fn new(slots: u32) -> Clock {
        Clock {
            lookups_per_tick: lookups_per_tick(slots),
            lookups: 0,
            ticks: 0,
        }
    }

    /// The same with the pace of so many slots from now on, which is after so many lookups.
    #[must_use]
    pub fn over(self, slots: u32, lookups: u64) -> Clock {
        Clock {
            lookups_per_tick: lookups_per_tick(slots),
            lookups,
            ticks: self.ticks(lookups),
        }
    }

    /// Lookups of a tick.
    pub fn lookups_per_tick(&self) -> u64 {
        self.lookups_per_tick
    }

    /// Ticks after so many lookups. Who has not counted all lookups up to the last change of pace is told that time.
    #[inline]
    pub fn ticks(&self, lookups: u64) -> u64 {
        self.ticks + lookups.saturating_sub(self.lookups) / self.lookups_per_tick
    }
}

fn lookups_per_tick(slots: u32) -> u64 {
    (u64::from(slots) / TICKS_PER_TURNOVER).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_when_the_pace_changes() {
        let clock = Clock::new(320);
        assert_eq!((clock.ticks(99), clock.ticks(100)), (9, 10));
        let slower = clock.over(3200, 105);
        assert_eq!((slower.ticks(105), slower.ticks(204)), (10, 10));
        assert_eq!((slower.ticks(205), slower.ticks(0)), (11, 10));
        let faster = slower.over(16, 305);
        assert_eq!((faster.ticks(305), faster.ticks(306)), (12, 13));
    }
}
