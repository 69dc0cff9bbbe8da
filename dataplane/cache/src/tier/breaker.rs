//! When the first tier of a table is not asked any more, since the next one has the table too.

use std::sync::Arc;

use super::FileReads;

/// Fetches in a row that come late before the tier is passed by: a disk that is busy for a moment has answered some by then, and one that is
/// silent has cost no more than these their time.
const LATE_MOST: u32 = 8;

/// What one table's first tier did lately. While it is open, the tier is asked for one row now and then, for nobody: until it answers.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Fetches in a row that were late.
    late: u32,
    /// The row that it is asked for while it is open: always the same one, so that a file which hangs has one more read to hold.
    row: u32,
    is_probed: bool,
    /// When the next probe is due.
    due_ns: u64,
    /// Since when it has taken and answered nothing.
    stuck_since_ns: Option<u64>,
    shown: Arc<FileReads>,
}

impl Breaker {
    /// Shows others whether it is open.
    pub(super) fn shown_in(reads: Arc<FileReads>) -> Breaker {
        Breaker {
            shown: reads,
            ..Breaker::default()
        }
    }

    /// Whether the next tier is to be asked at once.
    pub(super) fn is_open(&self) -> bool {
        self.late >= LATE_MOST
    }

    /// The tier has answered.
    pub(super) fn answered(&mut self) {
        self.late = 0;
        self.is_probed = false;
        self.stuck_since_ns = None;
        self.shown.bypass(false);
    }

    /// A row that was asked for was late; there is no probe before `due_ns`.
    pub(super) fn was_late(&mut self, row: u32, due_ns: u64) {
        self.late = self.late.saturating_add(1);
        if self.late == LATE_MOST {
            (self.row, self.due_ns) = (row, due_ns);
            self.shown.bypass(true);
        }
    }

    /// The tier is as good as silent: it takes no more, and answers nothing.
    pub(super) fn open(&mut self, row: u32, due_ns: u64) {
        if !self.is_open() {
            self.late = LATE_MOST - 1;
            self.was_late(row, due_ns);
        }
    }

    /// The row that the tier is to be asked for now, if it is to be probed; not again before `due_ns`.
    pub(super) fn probe(&mut self, now_ns: u64, due_ns: u64) -> Option<u32> {
        if self.is_probed || now_ns < self.due_ns {
            return None;
        }
        self.due_ns = due_ns;
        Some(self.row)
    }

    /// The tier has taken the probe, or, where it is late, is asked no more.
    pub(super) fn set_probed(&mut self, is_probed: bool) {
        self.is_probed = is_probed;
    }

    /// The tier has taken a fetch.
    pub(super) fn took(&mut self) {
        self.stuck_since_ns = None;
    }

    /// The tier has refused a fetch; since when it takes and answers nothing.
    pub(super) fn refused(&mut self, now_ns: u64) -> u64 {
        *self.stuck_since_ns.get_or_insert(now_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_some_late_ones_in_a_row_and_closes_with_an_answer() {
        let reads = Arc::<FileReads>::default();
        let mut breaker = Breaker::shown_in(Arc::clone(&reads));
        let late = |breaker: &mut Breaker, times| {
            (0..times).for_each(|row| breaker.was_late(row, 100));
        };
        late(&mut breaker, LATE_MOST - 1);
        breaker.answered();
        late(&mut breaker, LATE_MOST - 1);
        assert!(!breaker.is_open() && !reads.is_bypassed());
        late(&mut breaker, 30);
        assert!(breaker.is_open() && reads.is_bypassed());
        // One probe at a time, of the row with which it opened.
        assert_eq!(breaker.probe(99, 0), None);
        assert_eq!(breaker.probe(100, 200), Some(0));
        breaker.set_probed(true);
        assert_eq!(breaker.probe(300, 400), None);
        breaker.set_probed(false);
        assert_eq!(breaker.probe(199, 400), None);
        assert_eq!(breaker.probe(200, 400), Some(0));
        breaker.answered();
        assert!(!breaker.is_open() && !reads.is_bypassed());
        breaker.open(5, 100);
        assert!(breaker.is_open() && reads.is_bypassed());
        assert_eq!(breaker.probe(100, 200), Some(5));
    }
}
