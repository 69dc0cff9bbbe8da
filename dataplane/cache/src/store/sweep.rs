//! A writer's part in a change of size: it goes through the sets of its shard and moves the rows that belong elsewhere.
//!
//! Some sets are swept at a time. Slots are chosen for the rows that leave, empty ones or those of rows that are worth less; once nobody
//! reads these any more, the rows are copied, with their words. Then the frontier passes the sets, and only then the rows are taken away
//! from where they were. So they are always found: by who knows the old frontier where they were, by who knows the new one where they are.
//! Between the copy and the end of the step two slots have the number of a row, whose bytes are the same in both. A row that stays may have
//! its tag changed, where its first set has become its second; who looks for it in that moment may miss it.

use core::ops::Range;

use super::extent::Change;
use super::memory::{EMPTY, TAKEN, WAYS};
use super::sync::Ordering;
use super::writer::{Candidate, Evicted, Held, Writer};

/// Sets that are swept at a time: their 64 rows take 7 us where places have to be found that others leave, and as much when the rows are
/// copied; 15 us in one call where places are empty (rows of 72 and of 256 bytes, a million of them). That is a third of a micro-batch.
const BATCH: u32 = 4;
/// Sets in which slots are looked for that are not empty yet, of those that are to go, in one call.
const LOOKED: u32 = 64;

/// Who knows which rows are worth more.
pub trait Judge {
    /// The slot, of these, of a row that is to make way for the row of `mover`; none if that is worth less than all.
    fn victim(&self, mover: Candidate, others: &mut dyn Iterator<Item = Candidate>) -> Option<u32>;
    /// A row was taken away and is not kept.
    fn evicted(&mut self, evicted: Evicted);
}

/// What became of a call to [`Writer::sweep`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swept {
    /// The size does not change, or this shard has changed already.
    Done,
    /// There is more to do, at once or once others have begun a turn.
    More,
}

/// How far it has come. A writer has room for it from the beginning.
#[derive(Debug)]
pub(super) struct Sweep {
    /// None while nothing changes.
    change: Option<Change>,
    frontier: u32,
    /// The sets that are swept now, by their numbers in the shard; none between two batches.
    batch: Range<u32>,
    /// For each of their slots the row that leaves it and the slot that it goes to.
    planned: Box<[Option<(u32, u32)>]>,
    /// The epoch that has to be passed before these slots are written: that of the last rows that made way, or of the change.
    planned_in: u64,
    /// The slots that rows have left, and the epoch after which they are empty.
    left: Vec<u32>,
    left_in: u64,
    /// Up to where sets that are to go are known to be empty.
    drained: u32,
}

impl Sweep {
    pub(super) fn new() -> Sweep {
        let slots = BATCH as usize * WAYS;
        Sweep {
            change: None,
            frontier: 0,
            batch: 0..0,
            planned: vec![None; slots].into_boxed_slice(),
            planned_in: 0,
            left: Vec::with_capacity(slots),
            left_in: 0,
            drained: 0,
        }
    }

    /// Both sets of a row, if the size changes.
    pub(super) fn sets_of(&self, row: u32) -> Option<[u32; 2]> {
        Some(self.change.as_ref()?.sets_of(row, self.frontier))
    }

    /// The frontier when the current batch is done.
    fn next_frontier(&self, change: &Change) -> u32 {
        if change.grows() {
            self.batch.start
        } else {
            self.batch.end
        }
    }

    /// The sets that come next: as many as go to sets which are not among them.
    fn next_batch(&self, change: &Change) -> Range<u32> {
        let [old, new] = [change.old, change.new].map(|spread| u64::from(spread.shard_sets()));
        let moved = |set: u32| (u64::from(set) * new / old) as u32;
        if change.grows() {
            let last = self.frontier - 1;
            let is_apart = |count: &u32| moved(last + 1 - count) > last;
            let most = BATCH.min(self.frontier);
            let count = (2..=most).take_while(is_apart).last().unwrap_or(1);
            self.frontier - count..self.frontier
        } else {
            let first = self.frontier;
            let is_apart = |count: &u32| moved(first + count - 1) < first;
            let most = BATCH.min(old as u32 - first);
            let count = (2..=most).take_while(is_apart).last().unwrap_or(1);
            first..first + count
        }
    }
}

impl Writer {
    /// Goes on with a change of the store's size, by some microseconds at most. To be called by the worker, between two turns, from
    /// when it knows of the change until it is [done](Swept::Done) here.
    pub fn sweep(&mut self, judge: &mut impl Judge) -> Swept {
        let Some(change) = self.change() else {
            return Swept::Done;
        };
        if self.sweep.left_in <= self.epochs.passed() {
            for slot in self.sweep.left.drain(..) {
                self.memory.number(slot).store(EMPTY, Ordering::Relaxed);
            }
        }
        let is_clear = self.sweep.left.is_empty();
        let (_, end) = change.ends();
        if self.sweep.batch.is_empty() && self.sweep.frontier != end {
            let batch = self.sweep.next_batch(&change);
            // Few sets go to one another's places, which have to be empty again by then.
            if is_clear || batch.len() == BATCH as usize {
                self.plan(&change, batch, judge);
            }
        }
        if !self.sweep.batch.is_empty() {
            // Asked once more: a worker that rested before rows were taken away may look up since.
            if is_clear && self.sweep.planned_in <= self.epochs.passed() {
                self.carry(&change, judge);
            }
        } else if is_clear && self.sweep.frontier == end && self.is_drained(&change) {
            self.spread = change.new;
            self.sweep.change = None;
            self.extent.end();
            return Swept::Done;
        }
        Swept::More
    }

    /// The change that is under way, if this shard has not come to its end.
    fn change(&mut self) -> Option<Change> {
        if self.sweep.change.is_none() {
            let (old, new) = self.extent.shard_sets();
            if old == new || self.spread.shard_sets() == new {
                return None;
            }
            let change = Change {
                old: self.spread,
                new: self.spread.over(new),
            };
            (self.sweep.frontier, _) = change.ends();
            // Readers that know of no change trust tags, so that none of the new numbering may come before they have ended their turns.
            self.sweep.planned_in = self.epochs.end();
            self.sweep.drained = new;
            self.sweep.change = Some(change);
        }
        self.sweep.change
    }

    /// Chooses slots for the rows of some sets that leave them, and takes those slots.
    fn plan(&mut self, change: &Change, batch: Range<u32>, judge: &mut impl Judge) {
        self.sweep.batch = batch;
        self.sweep.planned.fill(None);
        let frontier = self.sweep.next_frontier(change);
        let mut has_victims = false;
        for at in 0..self.batch_slots() {
            let mover = self.candidate(self.batch_slot(at));
            let Some(row) = leaver(change, frontier, &mover) else {
                continue;
            };
            let Some(to) = self.target(change, frontier, mover, row, judge) else {
                continue;
            };
            let Candidate { held, meta, .. } = self.candidate(to);
            if let Held::Row(row) = held {
                judge.evicted(Evicted { row, meta });
                self.rows -= 1;
                has_victims = true;
                self.hide(to);
            }
            self.mark(to, TAKEN);
            self.sweep.planned[at] = Some((row, to));
        }
        if has_victims {
            self.sweep.planned_in = self.epochs.end();
        }
    }

    /// The slot that a row is to go to: an empty one, or that of a row which is worth less.
    fn target(
        &self,
        change: &Change,
        frontier: u32,
        mover: Candidate,
        row: u32,
        judge: &impl Judge,
    ) -> Option<u32> {
        let targets = || slots_in(change.sets_of(row, frontier)).map(|slot| self.candidate(slot));
        let is_empty = |target: &Candidate| target.held == Held::Nothing;
        if let Some(empty) = targets().find(is_empty) {
            return Some(empty.slot);
        }
        let stays = |target: &Candidate| {
            matches!(target.held, Held::Row(_)) && leaver(change, frontier, target).is_none()
        };
        judge.victim(mover, &mut targets().filter(stays))
    }

    /// Copies the rows to the slots that were chosen, passes the sets, and takes the rows away there. Nobody reads the slots.
    fn carry(&mut self, change: &Change, judge: &mut impl Judge) {
        let frontier = self.sweep.next_frontier(change);
        for at in 0..self.batch_slots() {
            let mover = self.candidate(self.batch_slot(at));
            let planned = self.sweep.planned[at].take();
            let row = leaver(change, frontier, &mover);
            let to = match (planned, row) {
                (Some((planned, to)), Some(row)) if planned == row => Some(to),
                (planned, row) => {
                    if let Some((_, to)) = planned {
                        // The row has gone meanwhile, and nobody else knows the slot.
                        self.mark(to, EMPTY);
                    }
                    row.and_then(|row| self.empty_slot(change, frontier, row))
                }
            };
            let Some(row) = row else {
                continue;
            };
            match to {
                Some(to) => {
                    self.memory.copy_row(mover.slot, to);
                    self.memory.meta(to).store(mover.meta, Ordering::Relaxed);
                    self.show(to, row, change.sets_of(row, frontier));
                }
                None => {
                    judge.evicted(Evicted {
                        row,
                        meta: mover.meta,
                    });
                    self.rows -= 1;
                }
            }
        }
        self.extent.pass(self.shard, frontier);
        self.sweep.frontier = frontier;
        for at in 0..self.batch_slots() {
            let slot = self.batch_slot(at);
            let candidate = self.candidate(slot);
            if leaver(change, frontier, &candidate).is_some() {
                self.hide(slot);
                self.sweep.left.push(slot);
            } else if let Held::Row(row) = candidate.held {
                // What was its primary set may be its secondary now, or the other way round.
                self.show_in(slot, row, change.sets_of(row, frontier));
            }
        }
        self.sweep.left_in = self.epochs.end();
        self.sweep.batch = 0..0;
    }

    /// An empty slot for a row that has come since slots were chosen.
    fn empty_slot(&self, change: &Change, frontier: u32, row: u32) -> Option<u32> {
        let mut targets = slots_in(change.sets_of(row, frontier));
        targets.find(|&slot| self.number(slot) == EMPTY)
    }

    /// Whether sets that are to go have nothing in them any more. Rows on their way may keep some of their slots until they come, or not.
    fn is_drained(&mut self, change: &Change) -> bool {
        let end = change.old.shard_sets();
        for _ in 0..LOOKED {
            let number = self.sweep.drained;
            if number >= end {
                return true;
            }
            let first = self.set_of(number) * WAYS as u32;
            if (first..first + WAYS as u32).any(|slot| self.number(slot) != EMPTY) {
                return false;
            }
            self.sweep.drained += 1;
        }
        false
    }

    fn batch_slots(&self) -> usize {
        self.sweep.batch.len() * WAYS
    }

    fn batch_slot(&self, at: usize) -> u32 {
        let number = self.sweep.batch.start + (at / WAYS) as u32;
        self.set_of(number) * WAYS as u32 + (at % WAYS) as u32
    }
}

/// The row of a slot, if it belongs elsewhere once the frontier is there.
fn leaver(change: &Change, frontier: u32, candidate: &Candidate) -> Option<u32> {
    let Held::Row(row) = candidate.held else {
        return None;
    };
    let stays = change
        .sets_of(row, frontier)
        .contains(&(candidate.slot / WAYS as u32));
    (!stays).then_some(row)
}

/// The slots of two sets, or of one that is both.
pub(super) fn slots_in([first, second]: [u32; 2]) -> impl Iterator<Item = u32> + Clone {
    let second = (second != first).then_some(second);
    let sets = core::iter::once(first).chain(second);
    sets.flat_map(|set| {
        let slot = set * WAYS as u32;
        slot..slot + WAYS as u32
    })
}
