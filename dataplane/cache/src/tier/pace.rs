//! When reads that wait are asked for, and how many at a time.

/// Reads that a poll asks for at most. In a virtual machine telling the kernel of one takes some 5 us, with 10 us more for the device
/// to be told: four are half of the 50 us that a turn of a worker may take.
const MOST: usize = 4;
/// Few reads wait until they are this part of those that the device has: where it has enough to do, telling it of each alone costs more
/// than the time it saves. Of 8 in flight two are asked for together.
const PART: usize = 4;
/// The longest wait: a fraction of what a read takes. One that grows may be left to wait some times more (`fetches.rs`).
const HOLD_NS: u64 = 20_000;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Since when reads have waited.
    since_ns: Option<u64>,
}

impl Pace {
    /// How many reads are to be asked for now, of so many that wait, while the device has `asked`.
    pub(super) fn reads(&mut self, now_ns: u64, waiting: usize, asked: usize) -> usize {
        if waiting == 0 {
            self.since_ns = None;
            return 0;
        }
        let since_ns = *self.since_ns.get_or_insert(now_ns);
        let is_enough = waiting >= MOST || waiting * PART >= asked;
        if !is_enough && now_ns.saturating_sub(since_ns) < HOLD_NS {
            return 0;
        }
        self.since_ns = None;
        waiting.min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_device_is_asked_at_once() {
        let mut pace = Pace::default();
        assert_eq!(pace.reads(0, 1, 0), 1);
        assert_eq!(pace.reads(0, 1, 4), 1);
        assert_eq!(pace.reads(0, 100, 0), MOST);
        assert_eq!(pace.reads(0, 0, 0), 0);
    }

    #[test]
    fn a_busy_device_is_asked_for_several_or_after_a_while() {
        let mut pace = Pace::default();
        assert_eq!(pace.reads(1000, 1, 31), 0);
        assert_eq!(pace.reads(1000 + HOLD_NS - 1, 2, 31), 0);
        assert_eq!(pace.reads(1000 + HOLD_NS, 2, 31), 2);
        // The next ones begin to wait now.
        assert_eq!(pace.reads(1000 + HOLD_NS, 1, 31), 0);
        assert_eq!(pace.reads(1000 + HOLD_NS, MOST, 31), MOST);
        assert_eq!(pace.reads(1000 + HOLD_NS, 1, 31), 0);
        assert_eq!(pace.reads(1000 + 2 * HOLD_NS, 1, 31), 1);
    }
}
