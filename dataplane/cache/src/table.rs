//! A cached table as one worker has it: the store, which all workers share, and the shards that this one writes.

use std::sync::Arc;

use rowmill_arena::ReadWindow;

use crate::recency::Recency;
use crate::store::{Found, Held, LimboFull, Sample, Spread, Store, Ticket, Turn, Writer};

/// See the module's text.
#[derive(Debug)]
pub struct CachedTable {
    /// The number by which the tier knows it.
    in_tier: u32,
    store: Arc<Store>,
    /// By shard; `None` for those that other workers write.
    writers: Box<[Option<Writer>]>,
    sample: Sample,
    recency: Recency,
}

/// What was counted since the start, of the shards that a worker writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows that were looked up, in whatever shard, and those of them that were there.
    pub lookups: u64,
    /// See above.
    pub hits: u64,
    /// Rows that other workers asked for.
    pub asked: u64,
    /// Rows that were said to be wanted soon, and those of them that there was no room for. What was begun of the others
    /// is among the fetches.
    pub hinted: u64,
    /// See above.
    pub hints_dropped: u64,
    /// Rows that came into the store.
    pub admitted: u64,
    /// Rows that had to leave it for others.
    pub evicted: u64,
    /// Rows that were fetched and found no slot, since all that they may be in were taken or still being read.
    pub refused: u64,
}

impl CachedTable {
    /// A table as the worker sees it that writes the shards of `writers`. Its tier knows it by the number `in_tier`.
    pub fn new(in_tier: u32, store: Arc<Store>, writers: Vec<Writer>, seed: u64) -> CachedTable {
        let mut own: Vec<Option<Writer>> = (0..store.shape().shards()).map(|_| None).collect();
        for writer in writers {
            let shard = writer.shard() as usize;
            own[shard] = Some(writer);
        }
        CachedTable {
            in_tier,
            sample: Sample::new(store.sample_every(), seed),
            recency: Recency::new(store.shape().slots()),
            writers: own.into_boxed_slice(),
            store,
        }
    }

    /// Looks rows up: the slot of each, or [`MISS`](crate::store::MISS).
    pub(crate) fn find<'t>(
        &'t mut self,
        turn: Turn<'t>,
        rows: &[u32],
        places: &'t mut [u32],
        counters: &mut Counters,
    ) -> Found<'t> {
        let found = self.store.find(turn, rows, places);
        let recency = &self.recency;
        found.draw(&mut self.sample, |word| recency.touched(word));
        found.touch(&mut self.sample, |word| recency.touched(word));
        counters.lookups += rows.len() as u64;
        counters.hits += (rows.len() - found.misses()) as u64;
        found
    }

    /// All slots, the bytes from one to the next, and how many there are.
    pub(crate) fn slots(&self) -> (ReadWindow<'_>, usize, u32) {
        let shape = self.store.shape();
        (self.store.slots(), shape.stride(), shape.slots())
    }

    /// The number by which the tier knows it.
    pub(crate) fn in_tier(&self) -> u32 {
        self.in_tier
    }

    /// Bytes of a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.store.shape().row_bytes()
    }

    /// What all workers share.
    pub(crate) fn store(&self) -> &Arc<Store> {
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

    /// Copies a row of a shard that this worker writes, if it is there. `out` is as long as a row.
    pub(crate) fn read(&self, row: u32, out: &mut [u8]) -> bool {
        self.writer(row).read(row, out)
    }

    fn writer(&self, row: u32) -> &Writer {
        let writer = self.writers[self.spread().shard(row) as usize].as_ref();
        writer.expect("a row of an own shard")
    }

    /// Takes a slot for a row that is about to be fetched, where this worker writes the row's shard: an empty one, or that of the
    /// row which was used least recently.
    pub(crate) fn begin(&mut self, row: u32, counters: &mut Counters) -> Option<Ticket> {
        let shard = self.store.spread().shard(row) as usize;
        let writer = self.writers[shard].as_mut()?;
        if writer.slot_of(row).is_some() {
            return None; // It was prefetched though it is there.
        }
        let recency = &self.recency;
        // One that holds nothing is older than all.
        let age = |candidate: &crate::store::Candidate| match candidate.held {
            Held::Nothing => Some(u32::MAX),
            Held::Row(_) => Some(u32::from(recency.age(candidate.meta))),
            Held::Taken => None,
        };
        // Of those that are as old the first: it is in the set that is looked at first.
        let mut oldest: Option<(u32, u32)> = None;
        for candidate in writer.candidates(row) {
            let Some(age) = age(&candidate) else { continue };
            if oldest.is_none_or(|(_, most)| age > most) {
                oldest = Some((candidate.slot, age));
            }
        }
        let begun = oldest.map(|(slot, _)| writer.begin(row, slot));
        match begun {
            Some(Ok((ticket, evicted))) => {
                counters.evicted += u64::from(evicted.is_some());
                self.recency.admitted();
                Some(ticket)
            }
            None | Some(Err(LimboFull)) => {
                counters.refused += 1;
                None
            }
        }
    }

    /// The row of a ticket has come.
    pub(crate) fn publish(&mut self, ticket: Ticket, bytes: &[u8], counters: &mut Counters) {
        let writer = writer(&mut self.writers, &self.store, &ticket);
        if writer.is_free(&ticket) {
            writer.publish(ticket, bytes, self.recency.now());
            counters.admitted += 1;
        } else {
            // A worker has been in one turn for as long as the row took to come.
            writer.abandon(ticket);
            counters.refused += 1;
        }
    }

    /// The row of a ticket does not come.
    pub(crate) fn abandon(&mut self, ticket: Ticket) {
        writer(&mut self.writers, &self.store, &ticket).abandon(ticket);
    }

    /// Lets slots go that nobody reads any more. Once a turn.
    pub(crate) fn advance(&mut self) {
        for writer in self.writers.iter_mut().flatten() {
            writer.advance();
        }
    }
}

/// The writer who gave a ticket.
fn writer<'w>(writers: &'w mut [Option<Writer>], store: &Store, ticket: &Ticket) -> &'w mut Writer {
    let shard = store.spread().shard(ticket.row()) as usize;
    writers[shard].as_mut().expect("tickets are of own shards")
}

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;

    use super::*;
    use crate::store::{Epochs, MISS, Shape, Tags};

    #[test]
    fn a_row_that_is_hit_stays_and_others_make_way() {
        let (epochs, mut workers) = Epochs::new(1);
        let shape = Shape::new(64, 1, 4, 4).unwrap();
        let (store, writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let mut table = CachedTable::new(0, store, writers, 1);
        let mut counters = Counters::default();
        let mut place = [0];
        for row in 0..1000 {
            let turn = workers[0].turn();
            table.find(turn, &[0], &mut place, &mut counters);
            assert!(row < 1 || place != [MISS], "row 0 at {row}");
            let ticket = table.begin(row, &mut counters).unwrap();
            table.advance();
            workers[0].pass();
            table.advance();
            table.publish(ticket, &row.to_le_bytes(), &mut counters);
        }
        assert_eq!((counters.admitted, counters.refused), (1000, 0));
        assert!(counters.evicted >= 1000 - 64);
        let turn = workers[0].turn();
        table.find(turn, &[1], &mut place, &mut counters);
        assert_eq!(place, [MISS]);
    }
}
