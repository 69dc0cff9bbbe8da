//! A cached table as one worker has it: the store, which all workers share, and the shards that this one writes.

mod choice;
mod sweep;

use std::num::NonZeroU32;
use std::sync::Arc;

use rowmill_arena::ReadWindow;
use rowmill_policy::{Draw, Newcomer, Policy, Reuses, Word};

use choice::{is_empty, resident};

use crate::figures::{Count, TableFigures};
use crate::moves::Moves;
use crate::pins::Rules;
use crate::store::{
    Drawn, Evicted, Found, Held, Sample, Spread, Store, Ticket, Turn, WAYS, Writer,
};
use crate::tier::TierError;
use crate::touching::Touching;

/// What becomes of a bag that wants a row which could not be fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnFailure {
    /// The bag has no result.
    #[default]
    Error,
    /// It has one, in which the row is all zeros: a row that adds nothing to a sum, counts as one in the divisor of a mean, and is looked
    /// at for a maximum. Nobody is told which results these are, only how many rows failed
    /// ([`late` and `failed`](crate::fetch::Counters)).
    DefaultRow,
}

/// See the module's text.
#[derive(Debug)]
pub struct CachedTable {
    /// The number by which the tier knows it.
    in_tier: u32,
    on_failure: OnFailure,
    store: Arc<Store>,
    /// By shard; `None` for those that other workers write.
    writers: Box<[Option<Writer>]>,
    /// The others, which the policy is for.
    own: Box<[u32]>,
    policy: Policy,
    /// Of hits, in whatever shard.
    reuses: Reuses,
    moves: Moves,
    draw: Draw,
    sample: Sample,
    touching: Touching,
    /// Whether the last row that was asked for was late.
    is_silent: bool,
    /// The sets of a shard that the policy knows of.
    shard_sets: u32,
    /// Whether rows of own shards move to where they are in a store of another size.
    is_resizing: bool,
    rules: Rules,
    figures: Arc<TableFigures>,
}

/// A slot that was taken for a row on its way.
#[derive(Debug)]
pub(crate) struct Taken {
    ticket: Ticket,
    newcomer: Newcomer,
    /// Whether the row that it held leaves the cache when this one comes: it does not move.
    evicts: bool,
}

impl CachedTable {
    /// A table as the worker sees it that writes the shards of `writers`. Its tier knows it by the number `in_tier`.
    pub fn new(in_tier: u32, store: Arc<Store>, writers: Vec<Writer>, seed: u64) -> CachedTable {
        let shape = store.shape();
        let own: Box<[u32]> = writers.iter().map(Writer::shard).collect();
        let [slots, most] = [shape.shard_sets(), store.most().shard_sets()]
            .map(|shard_sets| own.len() as u32 * shard_sets * WAYS as u32);
        let mut by_shard: Vec<Option<Writer>> = (0..shape.shards()).map(|_| None).collect();
        for writer in writers {
            let shard = writer.shard() as usize;
            by_shard[shard] = Some(writer);
        }
        CachedTable {
            in_tier,
            writers: by_shard.into_boxed_slice(),
            own,
            policy: Policy::with_room(slots, shape.slots(), most, seed),
            reuses: Reuses::new(),
            moves: Moves::new(shape.row_bytes()),
            draw: Draw::new(!seed),
            on_failure: OnFailure::default(),
            sample: Sample::new(NonZeroU32::MIN, seed),
            touching: Touching::new(),
            is_silent: false,
            shard_sets: shape.shard_sets(),
            is_resizing: false,
            rules: Rules::default(),
            store,
            figures: Arc::default(),
        }
    }

    /// What was counted of it by this worker.
    pub(crate) fn figures(&self) -> &Arc<TableFigures> {
        &self.figures
    }

    /// The same with another answer to rows that could not be fetched than [`OnFailure::Error`].
    pub fn on_failure(self, on_failure: OnFailure) -> CachedTable {
        CachedTable { on_failure, ..self }
    }

    /// The same, counted where it was before.
    pub(crate) fn counted_in(self, figures: Arc<TableFigures>) -> CachedTable {
        CachedTable { figures, ..self }
    }

    /// What becomes of bags whose rows could not all be fetched.
    pub(crate) fn when_it_fails(&self) -> OnFailure {
        self.on_failure
    }

    /// Looks whether rows are there, and counts nothing: the slot of each, or [`MISS`](crate::store::MISS).
    pub(crate) fn look(&self, turn: Turn<'_>, rows: &[u32], places: &mut [u32]) {
        self.store.find(turn, rows, places);
    }

    /// Looks rows up: the slot of each, or [`MISS`](crate::store::MISS). The policy is to be [told](Self::touch) of them before the turn ends.
    pub(crate) fn find<'t>(
        &'t self,
        turn: Turn<'t>,
        rows: &[u32],
        places: &'t mut [u32],
        drawn: &mut Drawn,
    ) -> Found<'t> {
        self.store.find_and_draw(turn, rows, places, drawn)
    }

    /// Whether telling the policy of hits takes about as long as pooling them.
    pub(crate) fn is_touched_slowly(&self) -> bool {
        !self.store.is_near() && self.touching.every() == NonZeroU32::MIN
    }

    /// Tells the policy of a piece that was looked up in this turn, of which so many rows are missed.
    pub(crate) fn touch(&mut self, places: &[u32], misses: usize) {
        self.touch_one_in(match self.store.is_near() {
            true => NonZeroU32::MIN,
            false => self.touching.every(),
        });
        self.touching.count(places.len(), misses);
        let (now, ago) = (self.policy.now(), self.policy.halved_ago());
        let reuses = &mut self.reuses;
        // A copy, which stays in a register: stored after each draw it would have to be waited for.
        let mut draw = self.draw.clone();
        self.store.touch(places, &mut self.sample, |n, bits| {
            let word = Word::from_bits(bits).halved(now, ago);
            reuses.count(n, word, now);
            word.touched(now, &mut draw).bits()
        });
        self.draw = draw;
        let shard_sets = self.shard_sets;
        let words = |set| words(&self.writers, &self.own, shard_sets, set);
        let one_in = self.sample.every().get();
        let (usage, lookups) = (self.store.usage(), places.len() as u64);
        self.policy.advance(lookups, reuses, one_in, usage, words);
    }

    /// One hit in so many is touched from now on.
    fn touch_one_in(&mut self, every: NonZeroU32) {
        if every != self.sample.every() {
            // Those that were counted stand for as many as before.
            self.catch_up();
            self.sample.set_every(every);
        }
    }

    /// All slots, the bytes from one to the next, and how many there are.
    pub(crate) fn slots(&self) -> (ReadWindow<'_>, usize, u32) {
        let store = &self.store;
        (store.slots(), store.most().stride(), store.places())
    }

    /// The number by which the tier knows it.
    pub(crate) fn in_tier(&self) -> u32 {
        self.in_tier
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.store.most().row_bytes()
    }

    /// What all workers share.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// How rows are spread over shards.
    pub(crate) fn spread(&self) -> &Spread {
        self.store.spread()
    }

    /// Whether a row of a shard that this worker writes is there.
    pub(crate) fn has(&self, row: u32) -> bool {
        self.writer(row).slot_of(row).is_some()
    }

    /// Which rows come and which stay from now on. What is there stays until others take its place.
    pub(crate) fn rule(&mut self, rules: Rules) {
        self.rules = rules;
    }

    /// Which rows come and which stay.
    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Whether a row of a shard that this worker writes could come without another's having to go.
    pub(crate) fn has_room(&self, row: u32) -> bool {
        let mut slots = self.writer(row).candidates(row);
        slots.any(|slot| slot.held == Held::Nothing)
    }

    /// Copies a row of a shard that this worker writes, if it is there. `out` is as long as a row.
    pub(crate) fn read(&self, row: u32, out: &mut [u8]) -> bool {
        self.writer(row).read(row, out)
    }

    fn writer(&self, row: u32) -> &Writer {
        let writer = self.writers[self.spread().shard(row) as usize].as_ref();
        writer.expect("a row of an own shard")
    }

    /// Asks for what [`begin`](Self::begin) needs to know of a row to be on its way: some lines from memory, which would take a
    /// microsecond one after another.
    pub(crate) fn prefetch(&self, row: u32) {
        if let Some(writer) = &self.writers[self.spread().shard(row) as usize] {
            writer.prefetch(row);
            self.policy.prefetch(row);
        }
    }

    /// Takes a slot for a row of an own shard that is about to be fetched: an empty one, or that of a row which is worth less.
    /// `ahead`: no lookup has missed it; how often it may have been used, or 0. `next_use` says when a row of the table is looked up next, where that is known.
    ///
    /// # Errors
    /// What the row counts as when it comes, since it goes into no slot.
    pub(crate) fn begin(
        &mut self,
        row: u32,
        ahead: Option<u32>,
        next_use: impl Fn(u32) -> Option<u32>,
    ) -> Result<Taken, Count> {
        let shard = self.store.spread().shard(row) as usize;
        let writer = self.writer(row);
        if writer.slot_of(row).is_some() || self.moves.has(row) {
            return Err(Count::Unkept); // It was prefetched though it is there, or it comes back at once.
        }
        let is_barred = self.rules.only_pins && !self.rules.is_pinned(row);
        let may_come = !is_barred && !self.is_silent;
        let newcomer = match ahead {
            None => self.policy.newcomer(row, may_come),
            Some(uses) => self.policy.in_advance(row, uses),
        };
        if is_barred {
            self.policy.refused(newcomer);
            return Err(Count::Refused);
        }
        let by_recency = self.policy.is_by_recency();
        self.figures.count(Count::ByRecency, by_recency.into());
        let chosen = self.choose(&newcomer, &next_use);
        let moves = self.roomier(&newcomer, chosen, &next_use);
        let Some(slot) = moves.map(|(mover, _)| mover.slot).or(chosen) else {
            let writer = self.writer(row);
            let is_refused = writer.candidates(row).filter_map(resident).next().is_some();
            self.policy.refused(newcomer);
            return Err(if is_refused {
                Count::Refused
            } else {
                Count::Crowded
            });
        };
        let writer = self.writers[shard].as_mut().expect("an own shard");
        let Ok((ticket, mut evicted)) = writer.begin(row, slot) else {
            self.policy.refused(newcomer);
            return Err(Count::Crowded);
        };
        let mut evicts = evicted.is_some();
        if let (Some((mover, to)), Some(Evicted { meta, .. })) = (moves, evicted) {
            // Without room in limbo it is evicted itself.
            if let Ok((its, other)) = writer.begin(mover.row, to) {
                self.moves.begin(slot, its, meta);
                // The other leaves whether this one comes or not.
                self.figures
                    .count(Count::Evicted, other.iter().len() as u64);
                (evicted, evicts) = (other, false);
            }
        }
        if let Some(Evicted { row, meta }) = evicted {
            self.policy.evicted(row, Word::from_bits(meta));
        }
        Ok(Taken {
            ticket,
            newcomer,
            evicts,
        })
    }

    /// The row of a slot has come.
    pub(crate) fn publish(&mut self, taken: Taken, bytes: &[u8]) {
        let writer = writer(&mut self.writers, &self.store, &taken.ticket);
        if !writer.is_free(&taken.ticket) {
            writer.advance(); // It came within a turn.
            self.moves.finish(writer);
        }
        let row = taken.ticket.row();
        let why = if writer.slot_of(row).is_some() {
            Count::Unkept // Its former slot was given back to it meanwhile.
        } else if !writer.may_hold(taken.ticket.slot(), row) {
            // The size has changed meanwhile, and the slot is no longer one of its own.
            let empty = writer
                .candidates(row)
                .find(is_empty)
                .map(|empty| empty.slot);
            let other = empty.and_then(|empty| writer.begin(row, empty).ok());
            if let Some((ticket, _)) = other {
                writer.publish(ticket, bytes, taken.newcomer.word.bits());
                self.figures.count(Count::Admitted, 1);
                return self.give_back(taken);
            }
            self.policy.refused(taken.newcomer);
            Count::Crowded
        } else if writer.is_free(&taken.ticket) {
            writer.publish(taken.ticket, bytes, taken.newcomer.word.bits());
            self.figures.count(Count::Evicted, taken.evicts.into());
            self.figures.count(Count::Admitted, 1);
            return;
        } else {
            // A worker has been in one turn for as long as the row took to come.
            self.policy.refused(taken.newcomer);
            Count::Crowded
        };
        self.figures.count(why, 1);
        self.give_back(taken);
    }

    /// The row of a slot does not come: the row that the slot held is there again, unless it came by another slot meanwhile.
    pub(crate) fn abandon(&mut self, taken: Taken) {
        self.policy.refused(taken.newcomer);
        self.give_back(taken);
    }

    fn give_back(&mut self, taken: Taken) {
        let Taken { ticket, evicts, .. } = taken;
        let writer = writer(&mut self.writers, &self.store, &ticket);
        let is_lacked = |row: &u32| {
            writer.slot_of(*row).is_none()
                && !self.moves.has(*row)
                && writer.may_hold(ticket.slot(), *row)
        };
        match ticket.former().filter(|row| evicts && is_lacked(row)) {
            Some(row) => {
                writer.restore(ticket);
                self.policy.restored(row);
            }
            None => {
                writer.abandon(ticket);
                self.figures.count(Count::Evicted, evicts.into());
            }
        }
    }

    /// The tier has answered for a row of the table, or has said nothing until it was late. What is begun after a silence takes no other
    /// row's slot: it may be long before it is known not to come.
    pub(crate) fn heard(&mut self, outcome: Result<(), TierError>) {
        self.is_silent = outcome == Err(TierError::Late);
    }

    /// Whether the tier said nothing when a row of the table was asked for last.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent
    }

    /// Learns from what other workers looked up. Before slots are taken.
    pub(crate) fn catch_up(&mut self) {
        let shard_sets = self.shard_sets;
        let words = |set| words(&self.writers, &self.own, shard_sets, set);
        let one_in = self.sample.every().get();
        let reuses = &mut self.reuses;
        self.policy
            .catch_up(reuses, one_in, self.store.usage(), words);
    }

    /// Lets slots go that nobody reads any more. Once a turn.
    pub(crate) fn advance(&mut self) {
        for writer in self.writers.iter_mut().flatten() {
            writer.advance();
            self.moves.finish(writer);
        }
    }
}

/// The writer who gave a ticket.
fn writer<'w>(writers: &'w mut [Option<Writer>], store: &Store, ticket: &Ticket) -> &'w mut Writer {
    let shard = store.spread().shard(ticket.row()) as usize;
    writers[shard].as_mut().expect("tickets are of own shards")
}

/// The words of rows in a set of a worker's own shards, by its number among their sets.
fn words(
    writers: &[Option<Writer>],
    own: &[u32],
    shard_sets: u32,
    set: u32,
) -> impl Iterator<Item = Word> {
    let shard = own[(set / shard_sets) as usize] as usize;
    let writer = writers[shard].as_ref().expect("an own shard");
    let residents = writer.set(set % shard_sets).filter_map(resident);
    residents.map(|resident| resident.word)
}

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;

    use super::*;
    use crate::store::{Epochs, MISS, Shape, Tags};

    #[test]
    fn a_row_that_is_hit_stays_and_others_make_way_or_do_not_come() {
        let (epochs, mut workers) = Epochs::new(1);
        let shape = Shape::new(64, 1, 4, 4).unwrap();
        let (store, writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let mut table = CachedTable::new(0, store, writers, 1);
        let figures = Arc::clone(table.figures());
        let count = |what| figures.get(what);
        let mut place = [0];
        let mut refused = 0;
        for row in 0..1000 {
            let turn = workers[0].turn();
            let found = table.find(turn, &[0], &mut place, &mut Drawn::nothing());
            let misses = found.misses();
            table.touch(&place, misses);
            assert!(row < 1 || place != [MISS], "row 0 at {row}");
            let taken = table.begin(row, None, |_| None);
            table.advance();
            workers[0].pass();
            table.advance();
            match taken {
                Ok(taken) => table.publish(taken, &row.to_le_bytes()),
                Err(why) => {
                    assert_eq!(why, Count::Refused);
                    refused += 1;
                }
            }
        }
        assert_eq!(count(Count::Admitted) + refused, 1000);
        assert_eq!(count(Count::Admitted), count(Count::Evicted) + 64);
        assert_eq!(count(Count::Crowded), 0);
        let turn = workers[0].turn();
        table.find(turn, &[1], &mut place, &mut Drawn::nothing());
        assert_eq!(place, [MISS]);
    }

    #[test]
    fn rows_move_for_those_that_are_wanted_sooner_and_none_is_lost() {
        let (epochs, mut workers) = Epochs::new(1);
        let shape = Shape::new(128, 1, 4, 4).unwrap();
        let (store, writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let mut table = CachedTable::new(0, store, writers, 1);
        let figures = Arc::clone(table.figures());
        let wanted = |row: u32| Some(row.wrapping_mul(0x9e37_79b9) >> 8);
        let mut moved = 0;
        for row in 0..2000_u32 {
            let taken = table.begin(row, None, wanted);
            if let Some(mover) = (0..row).find(|&row| table.moves.has(row)) {
                moved += 1;
                assert!(!table.has(mover));
                let again = table.begin(mover, None, wanted);
                assert_eq!(again.err(), Some(Count::Unkept), "it comes back");
            }
            // Every other row comes within the turn, and its slots can be written only when it ends.
            if row % 2 == 0 {
                workers[0].pass();
                table.advance();
                workers[0].pass();
            }
            if let Ok(taken) = taken {
                match row % 5 {
                    0 => table.abandon(taken),
                    _ => table.publish(taken, &row.to_le_bytes()),
                }
            }
            workers[0].pass();
            table.advance();
            workers[0].pass();
            table.advance();
            let (mut held, mut bytes) = (0, [0; 4]);
            for row in 0..=row {
                if table.read(row, &mut bytes) {
                    assert_eq!(bytes, row.to_le_bytes());
                    held += 1;
                }
            }
            let [came, went] = [Count::Admitted, Count::Evicted].map(|what| figures.get(what));
            assert_eq!(held, came - went, "after {row}");
        }
        assert!(moved > 100, "{moved} rows moved");
    }
}
