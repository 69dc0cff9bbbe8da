use std::cell::RefCell;
use std::rc::Rc;

use super::*;

const ROW: usize = 8;

/// Stands in for a connection and a device: READs complete when the test says so, in any order, and the slot that one lands in is taken
/// until then.
#[derive(Default)]
struct Wire {
    /// Slots, each with the READ that has it.
    slots: Vec<Option<(u32, u32, u64)>>,
    is_up: bool,
    /// Ended since it was looked at last.
    has_ended: bool,
    /// Of READs that were asked for since the last poll.
    unrung: usize,
    doorbells: usize,
    /// Slots whose READs have completed.
    done: Vec<usize>,
}

#[derive(Clone)]
struct StandIn(Rc<RefCell<Wire>>);

fn stand_in(slots: usize) -> StandIn {
    StandIn(Rc::new(RefCell::new(Wire {
        slots: vec![None; slots],
        is_up: true,
        ..Wire::default()
    })))
}

fn row_of(table: u32, row: u32) -> [u8; ROW] {
    (u64::from(table) << 32 | u64::from(row)).to_le_bytes()
}

impl RemoteReads for StandIn {
    fn room(&mut self, _: u64) -> Option<usize> {
        let mut wire = self.0.borrow_mut();
        if std::mem::take(&mut wire.has_ended) || !wire.is_up {
            return None;
        }
        Some(wire.slots.iter().filter(|slot| slot.is_none()).count())
    }

    fn has(&self, table: u32) -> bool {
        table < 2
    }

    fn read(&mut self, table: u32, row: u32, token: u64) {
        let mut wire = self.0.borrow_mut();
        let slot = wire.slots.iter().position(Option::is_none);
        wire.slots[slot.expect("room was asked for")] = Some((table, row, token));
        wire.unrung += 1;
    }

    fn poll(&mut self, each: EachArrived<'_>) {
        let mut wire = self.0.borrow_mut();
        wire.doorbells += usize::from(wire.unrung > 0);
        wire.unrung = 0;
        for slot in std::mem::take(&mut wire.done) {
            let (table, row, token) = wire.slots[slot].take().expect("one READ a slot");
            each(token, &row_of(table, row));
        }
    }
}

impl StandIn {
    fn complete(&self, slot: usize) {
        self.0.borrow_mut().done.push(slot);
    }

    fn taken(&self) -> Vec<usize> {
        let wire = self.0.borrow();
        let slots = 0..wire.slots.len();
        slots.filter(|&slot| wire.slots[slot].is_some()).collect()
    }

    /// The connection ends: nothing comes any more, and all slots are free since the queue pair is gone.
    fn end(&self, is_up: bool) {
        let mut wire = self.0.borrow_mut();
        wire.slots.fill(None);
        wire.done.clear();
        (wire.is_up, wire.has_ended) = (is_up, true);
    }
}

fn tier(wire: &StandIn, fetches: u32) -> RemoteTier<StandIn> {
    let options = RemoteTierOptions {
        fetches,
        budget_ns: 1000,
    };
    RemoteTier::new(wire.clone(), &[ROW, ROW, ROW], options)
}

fn wanted(table: u32, row: u32, deadline_ns: u64) -> Wanted {
    Wanted {
        table,
        row,
        token: 1000 + u64::from(row),
        deadline_ns,
    }
}

type Answered = Vec<(u64, Result<Vec<u8>, TierError>)>;

fn poll(tier: &mut RemoteTier<StandIn>, now_ns: u64) -> Answered {
    let mut answered = vec![];
    tier.poll(now_ns, &mut |token, outcome| {
        answered.push((token, outcome.map(<[u8]>::to_vec)));
    });
    answered.sort_by_key(|(token, _)| *token);
    answered
}

#[test]
fn rows_come_by_lists_of_reads() {
    let wire = stand_in(64);
    let mut tier = tier(&wire, 40);
    for row in 0..40 {
        tier.fetch(0, wanted(row % 2, row, 500)).unwrap();
    }
    assert_eq!(tier.fetch(0, wanted(0, 40, 500)), Err(FetchesFull::ForAll));
    assert_eq!(poll(&mut tier, 1), []);
    assert_eq!(wire.taken().len(), ASKED);
    poll(&mut tier, 2);
    poll(&mut tier, 3);
    assert_eq!((wire.taken().len(), wire.0.borrow().doorbells), (40, 3));
    (0..40).for_each(|slot| wire.complete(slot));
    let rows = (0..40).map(|row| (1000 + u64::from(row), Ok(row_of(row % 2, row).to_vec())));
    assert_eq!(poll(&mut tier, 10), rows.collect::<Answered>());
    let counts = tier.counts();
    assert_eq!((counts.fetches, counts.reads, counts.rows), (40, 40, 40));
    assert_eq!((counts.read_bytes, counts.refused), (40 * ROW as u64, 1));
    assert_eq!(tier.unanswered(), 0);
}

#[test]
fn a_read_that_is_late_keeps_its_slot_and_its_row_goes_nowhere() {
    let wire = stand_in(2);
    let mut tier = tier(&wire, 8);
    tier.fetch(0, wanted(0, 1, 100)).unwrap();
    tier.fetch(0, wanted(0, 2, 5000)).unwrap();
    tier.fetch(0, wanted(0, 3, 100)).unwrap();
    assert_eq!(poll(&mut tier, 0), []);
    let late = |row: u64| (1000 + row, Err(TierError::Late));
    // Row 3 was not even asked for; row 2 has the tier's own time.
    assert_eq!(poll(&mut tier, 100), [late(1), late(3)]);
    assert_eq!(wire.taken(), [0, 1]);
    // What is asked for now waits for a slot, and what comes for row 1 is not taken for it.
    tier.fetch(100, wanted(0, 4, 5000)).unwrap();
    assert_eq!(poll(&mut tier, 101), []);
    wire.complete(0);
    assert_eq!(poll(&mut tier, 102), []);
    assert_eq!(poll(&mut tier, 103), []);
    assert_eq!(wire.taken(), [0, 1]);
    wire.complete(0);
    assert_eq!(poll(&mut tier, 104), [(1004, Ok(row_of(0, 4).to_vec()))]);
    assert_eq!(poll(&mut tier, 1000), [late(2)]);
    assert_eq!(tier.unanswered(), 0);
}

#[test]
fn without_a_connection_all_is_answered_at_once() {
    let wire = stand_in(2);
    let mut tier = tier(&wire, 8);
    for row in 0..4 {
        tier.fetch(0, wanted(1, row, 500)).unwrap();
    }
    assert_eq!(poll(&mut tier, 0), []);
    wire.end(false);
    let unreached = |row: u64| (1000 + row, Err(TierError::Unreached));
    assert_eq!(
        poll(&mut tier, 1),
        (0..4).map(unreached).collect::<Answered>()
    );
    tier.fetch(2, wanted(1, 7, 500)).unwrap();
    assert_eq!(poll(&mut tier, 2), [unreached(7)]);
    // Another connection: rows come again, and what ended between two polls is noticed.
    wire.end(true);
    assert_eq!(poll(&mut tier, 3), []);
    tier.fetch(3, wanted(1, 8, 500)).unwrap();
    assert_eq!(poll(&mut tier, 3), []);
    wire.end(true);
    assert_eq!(poll(&mut tier, 4), [unreached(8)]);
    tier.fetch(5, wanted(1, 9, 500)).unwrap();
    poll(&mut tier, 5);
    wire.complete(0);
    assert_eq!(poll(&mut tier, 6), [(1009, Ok(row_of(1, 9).to_vec()))]);
    // A table that the other side does not give.
    tier.fetch(7, wanted(2, 1, 500)).unwrap();
    assert_eq!(poll(&mut tier, 7), [unreached(1)]);
    assert_eq!(tier.counts().failed, 7);
}

/// Each fetch is answered once and with its own row, whatever the connection does.
#[test]
fn all_is_answered_once_whatever_happens() {
    for seed in 0..200 {
        let mut draws = fastrand::Rng::with_seed(seed);
        let wire = stand_in(draws.usize(1..6));
        let mut tier = tier(&wire, 8);
        let (mut open, mut taken, mut answered) = (Vec::new(), 0, 0);
        for now_ns in (0..).step_by(20).take(600) {
            match draws.u32(0..100) {
                0..60 => {
                    let row = taken;
                    let until_ns = now_ns + draws.u64(1..300);
                    if tier
                        .fetch(now_ns, wanted(draws.u32(0..2), row, until_ns))
                        .is_ok()
                    {
                        open.push(row);
                        taken += 1;
                    }
                }
                60..92 => {
                    let slots = wire.taken();
                    let slot = slots.get(draws.usize(0..6)).copied();
                    let is_new = |slot: &usize| !wire.0.borrow().done.contains(slot);
                    slot.filter(is_new)
                        .into_iter()
                        .for_each(|slot| wire.complete(slot));
                }
                92..94 => wire.end(draws.bool()),
                94..96 => wire.0.borrow_mut().is_up = true,
                _ => {}
            }
            for (token, outcome) in poll(&mut tier, now_ns) {
                let row = (token - 1000) as u32;
                let place = open.iter().position(|&one| one == row);
                open.swap_remove(place.unwrap_or_else(|| panic!("seed {seed}: row {row} twice")));
                answered += 1;
                if let Ok(bytes) = outcome {
                    assert_eq!(bytes[..4], row.to_le_bytes(), "seed {seed}");
                }
            }
            assert_eq!(tier.unanswered(), open.len(), "seed {seed}");
        }
        poll(&mut tier, 1 << 40);
        assert!(taken > 50 && answered > 50, "seed {seed}");
        let counts = tier.counts();
        let all = counts.rows + counts.late + counts.failed;
        assert_eq!(counts.fetches, all, "seed {seed}");
    }
}
