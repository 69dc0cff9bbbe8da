//! A shard's writer: the one who changes which rows the shard holds.
//!
//! A row comes in three steps. [`Writer::begin`] takes a slot for it: whatever row the slot held is not found from then on, but
//! may still be read. [`Writer::advance`] tells when nobody reads it any more. [`Writer::publish`] then writes the row, and it
//! is found. Between the first step and the last is the time in which the row is fetched.

use std::sync::Arc;

use rowmill_arena::prefetch_line;

use super::extent::Extent;
use super::key::NO_KEY;
use super::limbo::Limbo;
use super::memory::{EMPTY, Memory, TAKEN, WAYS};
use super::quiescence::Epochs;
use super::spread::{ROWS_END, Spread};
use super::sweep::{Sweep, slots_in};
use super::sync::Ordering;

/// A slot that was taken for a row. It belongs to whoever holds the ticket, until it is given to [`Writer::publish`],
/// [`Writer::restore`] or [`Writer::abandon`]; a ticket that is dropped keeps its slot from everybody.
#[must_use = "a slot that was taken is published, restored or abandoned"]
#[derive(Debug)]
pub struct Ticket {
    row: u32,
    slot: u32,
    /// The row that the slot held.
    former: Option<u32>,
    /// Its place in limbo; none for a slot that was empty.
    limbo: Option<u64>,
}

impl Ticket {
    /// The row that it is for.
    pub fn row(&self) -> u32 {
        self.row
    }

    /// The slot.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// The row that the slot held, whose bytes are still there; none where it was empty.
    pub fn former(&self) -> Option<u32> {
        self.former
    }
}

/// A row that had to leave its slot, with what its meta word was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The row.
    pub row: u32,
    /// Its meta word.
    pub meta: u16,
}

/// So many slots are in limbo that no more rows can be taken away now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "no more rows can be taken away before all workers have begun another turn: try again then"
)]
pub struct LimboFull;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// Nothing: it can be taken at once.
    Nothing,
    /// A row.
    Row(u32),
    /// It was taken, or is in limbo: it can't be taken.
    Taken,
}

/// A slot that a row may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The slot.
    pub slot: u32,
    /// What it holds.
    pub held: Held,
    /// Its meta word; of a slot without a row it means nothing.
    pub meta: u16,
}

/// How many slots a shard has of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// With a row that can be found.
    pub rows: u32,
    /// Taken for a row by a ticket.
    pub tickets: u32,
    /// In limbo, with a ticket or without.
    pub limbo: u32,
}

/// The writer of one shard.
#[derive(Debug)]
pub struct Writer {
    pub(super) memory: Arc<Memory>,
    pub(super) epochs: Arc<Epochs>,
    pub(super) extent: Arc<Extent>,
    /// Over the sets that there are; while they change, that there were.
    pub(super) spread: Spread,
    pub(super) sweep: Sweep,
    pub(super) shard: u32,
    limbo: Limbo,
    pub(super) rows: u32,
    tickets: u32,
}

impl Writer {
    /// The writer of a shard in which at most `limbo` slots are in limbo at once.
    pub(super) fn new(
        memory: Arc<Memory>,
        epochs: Arc<Epochs>,
        extent: Arc<Extent>,
        spread: Spread,
        shard: u32,
        limbo: usize,
    ) -> Writer {
        Writer {
            memory,
            epochs,
            extent,
            spread,
            sweep: Sweep::new(),
            shard,
            limbo: Limbo::new(limbo),
            rows: 0,
            tickets: 0,
        }
    }

    /// The shard.
    pub fn shard(&self) -> u32 {
        self.shard
    }

    /// Its slots by kind.
    pub fn counts(&self) -> Counts {
        Counts {
            rows: self.rows,
            tickets: self.tickets,
            limbo: self.limbo.len() as u32,
        }
    }

    /// The slot in which a row can be found.
    ///
    /// # Panics
    /// If the row is of another shard.
    pub fn slot_of(&self, row: u32) -> Option<u32> {
        self.slots(row).find(|&slot| self.number(slot) == row)
    }

    /// Copies a row, if it can be found. Only this writer changes it, so it does so out of all turns.
    ///
    /// # Panics
    /// If the row is of another shard, or `out` is not as long as a row.
    pub fn read(&self, row: u32, out: &mut [u8]) -> bool {
        let slot = self.slot_of(row);
        slot.inspect(|&slot| self.memory.read_row(slot, out))
            .is_some()
    }

    /// Copies what is in a slot of this shard, whether it can be found or not: only this writer changes it.
    ///
    /// # Panics
    /// If the slot is of another shard, or `out` is not as long as a row.
    pub fn read_slot(&self, slot: u32, out: &mut [u8]) {
        let shard = slot / WAYS as u32 % self.spread.shards();
        assert_eq!(shard, self.shard, "the shard of slot {slot}");
        self.memory.read_row(slot, out);
    }

    /// Whether a row may be in a slot: while the size of the store changes, not every slot that was taken for a row remains one of its own.
    ///
    /// # Panics
    /// If the row is of another shard.
    pub fn may_hold(&self, slot: u32, row: u32) -> bool {
        self.slots(row).any(|own| own == slot)
    }

    /// Whether a ticket is of this shard.
    pub fn owns(&self, ticket: &Ticket) -> bool {
        self.spread.shard(ticket.row) == self.shard
    }

    /// The slots of the other of the two sets that a row may be in than that of its slot.
    ///
    /// # Panics
    /// If the row is of another shard.
    pub fn elsewhere(&self, row: u32, slot: u32) -> impl Iterator<Item = Candidate> {
        let set = slot / WAYS as u32;
        let others = self
            .slots(row)
            .filter(move |other| other / WAYS as u32 != set);
        others.map(|slot| self.candidate(slot))
    }

    /// The slots that a row may be in: those of the set in which it is looked for first, then the others.
    ///
    /// # Panics
    /// If the row is of another shard.
    pub fn candidates(&self, row: u32) -> impl Iterator<Item = Candidate> {
        self.slots(row).map(|slot| self.candidate(slot))
    }

    /// Asks for what [`candidates`](Self::candidates) looks at to be on its way.
    pub fn prefetch(&self, row: u32) {
        for set in self.sets_of(row) {
            prefetch_line(self.memory.number(set * WAYS as u32));
            prefetch_line(self.memory.meta(set * WAYS as u32));
        }
    }

    /// The slots of a set of this shard, of which the first is number 0.
    ///
    /// # Panics
    /// If the shard can have no such set.
    pub fn set(&self, set: u32) -> impl Iterator<Item = Candidate> {
        let first = self.set_of(set) * WAYS as u32;
        (first..first + WAYS as u32).map(|slot| self.candidate(slot))
    }

    /// Takes a slot for a row. The row that it held is not found from now on.
    ///
    /// # Errors
    /// [`LimboFull`], if it held a row; nothing was done.
    ///
    /// # Panics
    /// If the row is of another shard, can already be found, may not be in this slot, or the slot is taken.
    pub fn begin(&mut self, row: u32, slot: u32) -> Result<(Ticket, Option<Evicted>), LimboFull> {
        assert!(
            self.slots(row).any(|own| own == slot),
            "slot {slot} is none of row {row}"
        );
        assert_eq!(self.slot_of(row), None, "row {row} is there");
        let (limbo, evicted) = match self.number(slot) {
            TAKEN => panic!("slot {slot} is taken"),
            EMPTY => {
                self.mark(slot, TAKEN);
                (None, None)
            }
            row => {
                let (place, evicted) = self.unpublish(row, slot, false)?;
                (Some(place), Some(evicted))
            }
        };
        self.tickets += 1;
        let ticket = Ticket {
            row,
            slot,
            former: evicted.map(|evicted| evicted.row),
            limbo,
        };
        Ok((ticket, evicted))
    }

    /// Takes a row away, if it can be found: its slot becomes empty once nobody reads it.
    ///
    /// # Errors
    /// [`LimboFull`]: the row can still be found.
    ///
    /// # Panics
    /// If the row is of another shard.
    pub fn remove(&mut self, row: u32) -> Result<Option<Evicted>, LimboFull> {
        let Some(slot) = self.slot_of(row) else {
            return Ok(None);
        };
        let (_, evicted) = self.unpublish(row, slot, true)?;
        Ok(Some(evicted))
    }

    /// Ends the epoch in which rows were taken away, and frees the slots that nobody reads any more. To be called now and then
    /// while slots are in limbo, best once a turn of the worker that this is done by.
    pub fn advance(&mut self) {
        if self.limbo.is_open() {
            let epoch = self.epochs.end();
            self.limbo.seal(epoch);
        }
        if self.limbo.len() > 0 {
            let memory = &self.memory;
            let emptied = |slot| memory.number(slot).store(EMPTY, Ordering::Relaxed);
            self.limbo.free(self.epochs.passed(), emptied);
        }
    }

    /// Whether a ticket's slot can be written.
    pub fn is_free(&self, ticket: &Ticket) -> bool {
        ticket.limbo.is_none_or(|place| self.limbo.is_free(place))
    }

    /// Writes the row of a ticket, with its meta word, and lets everybody find it.
    ///
    /// # Panics
    /// If the slot is not [free](Self::is_free) or none of the row's [any more](Self::may_hold), the row is there by another ticket,
    /// or `bytes` is not as long as a row.
    pub fn publish(&mut self, ticket: Ticket, bytes: &[u8], meta: u16) {
        let Ticket { row, slot, .. } = ticket;
        assert!(self.is_free(&ticket), "slot {slot} may still be read");
        assert_eq!(self.slot_of(row), None, "row {row} is there");
        assert_eq!(self.number(slot), TAKEN, "slot {slot} is the ticket's");
        assert!(self.may_hold(slot, row), "slot {slot} is none of row {row}");
        self.memory.write_row(slot, bytes);
        self.memory.meta(slot).store(meta, Ordering::Relaxed);
        self.show(slot, row, self.sets_of(row));
        self.tickets -= 1;
        self.rows += 1;
    }

    /// Gives a ticket's slot back to the row that it held, with the meta word that it had: it is found again, at once.
    ///
    /// # Panics
    /// If the slot held none, its row is there by another ticket, or the slot is none of that row's [any more](Self::may_hold).
    pub fn restore(&mut self, ticket: Ticket) {
        let row = ticket.former.expect("a slot that held a row");
        assert_eq!(self.slot_of(row), None, "row {row} is there");
        assert_eq!(self.number(ticket.slot), TAKEN, "the slot is the ticket's");
        assert!(self.may_hold(ticket.slot, row), "a slot of row {row}");
        // Nothing was written since the row was. Its place in limbo is freed in its time, for nobody: who takes the slot again
        // gets another one. Whoever finds it now sees the row by these stores, and not by the first.
        self.show(ticket.slot, row, self.sets_of(row));
        self.tickets -= 1;
        self.rows += 1;
    }

    /// Gives a ticket's slot back: it becomes empty, once nobody reads it.
    pub fn abandon(&mut self, ticket: Ticket) {
        self.tickets -= 1;
        match ticket.limbo {
            Some(place) if !self.limbo.is_free(place) => self.limbo.disown(place),
            _ => self.mark(ticket.slot, EMPTY),
        }
    }

    /// Lets nobody find a slot's row any more.
    fn unpublish(
        &mut self,
        row: u32,
        slot: u32,
        ownerless: bool,
    ) -> Result<(u64, Evicted), LimboFull> {
        if self.limbo.is_full() {
            return Err(LimboFull);
        }
        self.hide(slot);
        let meta = self.memory.meta(slot).load(Ordering::Relaxed);
        self.rows -= 1;
        Ok((self.limbo.push(slot, ownerless), Evicted { row, meta }))
    }

    /// Lets a slot's row, which is there with its meta word, be found. The slot is in the one or the other of these sets of the row.
    pub(super) fn show(&self, slot: u32, row: u32, sets: [u32; 2]) {
        self.extent.note(row, &self.spread);
        // Whoever finds the number or the tag sees the row.
        self.memory.number(slot).store(row, Ordering::Release);
        let key = self.key_in(sets, slot, row);
        self.memory.set_key(slot, key, Ordering::Release);
    }

    /// Lets the row of a slot be found as one of these sets.
    pub(super) fn show_in(&self, slot: u32, row: u32, sets: [u32; 2]) {
        let key = self.key_in(sets, slot, row);
        if self.memory.key(slot, Ordering::Relaxed) != key {
            self.memory.set_key(slot, key, Ordering::Release);
        }
    }

    /// Lets nobody find the row of a slot, which is taken then.
    pub(super) fn hide(&self, slot: u32) {
        self.memory.set_key(slot, NO_KEY, Ordering::Relaxed);
        self.mark(slot, TAKEN);
    }

    /// Says what a slot is in which nobody finds a row: empty or taken.
    pub(super) fn mark(&self, slot: u32, state: u32) {
        self.memory.number(slot).store(state, Ordering::Relaxed);
    }

    /// The key of a row in a slot that is in one of both sets.
    fn key_in(&self, [primary, _]: [u32; 2], slot: u32, row: u32) -> u32 {
        match slot / WAYS as u32 == primary {
            true => self.spread.primary_key(row),
            false => self.spread.secondary_key(row),
        }
    }

    /// The slots that a row of this shard may be in.
    fn slots(&self, row: u32) -> impl Iterator<Item = u32> + use<> {
        assert!(row < ROWS_END, "row {row}");
        assert_eq!(self.spread.shard(row), self.shard, "the shard of row {row}");
        slots_in(self.sets_of(row))
    }

    fn sets_of(&self, row: u32) -> [u32; 2] {
        let moving = self.sweep.sets_of(row);
        moving.unwrap_or_else(|| [self.spread.primary(row), self.spread.secondary(row)])
    }

    /// A set by its number in the shard.
    pub(super) fn set_of(&self, number: u32) -> u32 {
        self.spread.set(self.shard, number)
    }

    pub(super) fn candidate(&self, slot: u32) -> Candidate {
        Candidate {
            slot,
            held: match self.number(slot) {
                EMPTY => Held::Nothing,
                TAKEN => Held::Taken,
                row => Held::Row(row),
            },
            meta: self.memory.meta(slot).load(Ordering::Relaxed),
        }
    }

    /// What a slot holds, as its number says. Nobody else writes it.
    pub(super) fn number(&self, slot: u32) -> u32 {
        self.memory.number(slot).load(Ordering::Relaxed)
    }
}
