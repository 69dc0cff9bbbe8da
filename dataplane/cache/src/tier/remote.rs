//! The tier that reads rows from another dataplane's memory.
//!
//! A row that comes is not compared with a checksum: memory has none. What is claimed is that the other side holds the
//! same generation, by number, shape and the checksum of its files, which whoever connects compares before the first READ, and that the
//! network hands over what it read there (RoCE has a checksum of its own).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::failures::FileFailures;
use super::patience::Patience;
use super::reads::FileReads;
use super::{EachRow, FetchesFull, Tier, TierCounts, TierError, Wanted};
use crate::figures::TierFigures;

/// Rows that a poll asks for at most: one list of READs, told to the device by one doorbell.
const ASKED: usize = 16;

/// Called with a READ's token and what it brought.
pub type EachArrived<'a> = &'a mut dyn FnMut(u64, &[u8]);

/// What a remote tier reads by: one worker's connection to the dataplane that has the rows, which comes and goes. Nothing here waits,
/// allocates or locks.
///
/// Where a READ brings its bytes to stays its own until it has completed, or until nothing can complete it any more, even if
/// nobody waits for the row: so a row never lies where a late READ may still write.
pub trait RemoteReads {
    /// READs that can be asked for now. `None` where there is no connection to read by, and once after one has ended: what
    /// was asked for before and has not come never will.
    fn room(&mut self, now_ns: u64) -> Option<usize>;

    /// Whether the connection that there is gives rows of a table.
    fn has(&self, table: u32) -> bool;

    /// Asks for a row of a table that it [has](RemoteReads::has). There is room.
    fn read(&mut self, table: u32, row: u32, token: u64);

    /// Tells the device of all that was asked for since it was told last, and hands out what has come.
    fn poll(&mut self, each: EachArrived<'_>);
}

/// How large a remote tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteTierOptions {
    /// Rows that are fetched at a time at most.
    pub fetches: u32,
    /// The longest time for a fetch, whatever its deadline.
    pub budget_ns: u64,
}

/// What is counted of a table, by who asks and by what fails.
pub type Readers = (Arc<FileReads>, Arc<FileFailures>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    Waiting,
    Asked,
}

/// A place for a fetch. Its serial number tells it from fetches that had the place before, whose READs may still come.
#[derive(Clone, Copy, Debug)]
struct Place {
    stage: Stage,
    serial: u32,
    wanted: Wanted,
    asked_ns: u64,
    deadline_ns: u64,
}

/// Reads single rows from another dataplane's memory, many at a time, one READ each. While there is no connection, each fetch is
/// answered at once, with [`TierError::Unreached`].
pub struct RemoteTier<R> {
    reads: R,
    tables: Box<[Readers]>,
    row_bytes: Box<[usize]>,
    places: Box<[Place]>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    patience: Patience,
    counts: TierCounts,
    figures: Arc<TierFigures>,
    /// What it has published there.
    published: TierCounts,
    budget_ns: u64,
    /// Whether the last fetch was refused.
    is_full: bool,
    /// No fetch has a deadline before this.
    soonest_ns: u64,
}

impl<R> fmt::Debug for RemoteTier<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteTier")
            .field("unanswered", &(self.places.len() - self.free.len()))
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl<R: RemoteReads> RemoteTier<R> {
    /// A tier of tables whose rows have so many bytes; they are known by their place in the list.
    ///
    /// # Panics
    /// If it has no room for fetches.
    pub fn new(reads: R, row_bytes: &[usize], options: RemoteTierOptions) -> RemoteTier<R> {
        assert!(options.fetches > 0, "room for a fetch");
        let free = Place {
            stage: Stage::Free,
            serial: 0,
            wanted: Wanted {
                table: 0,
                row: 0,
                token: 0,
                deadline_ns: 0,
            },
            asked_ns: 0,
            deadline_ns: 0,
        };
        RemoteTier {
            reads,
            tables: row_bytes.iter().map(|_| Readers::default()).collect(),
            row_bytes: row_bytes.into(),
            places: vec![free; options.fetches as usize].into(),
            free: (0..options.fetches).rev().collect(),
            // Each fetch stands there once.
            waiting: VecDeque::with_capacity(options.fetches as usize),
            patience: Patience::default(),
            counts: TierCounts::default(),
            figures: Arc::default(),
            published: TierCounts::default(),
            budget_ns: options.budget_ns,
            is_full: false,
            soonest_ns: u64::MAX,
        }
    }

    /// The same, counted where another one was before: that of each table, in their order.
    ///
    /// # Panics
    /// If these are others in number.
    pub fn counted_in(self, figures: Arc<TierFigures>, tables: Box<[Readers]>) -> RemoteTier<R> {
        assert_eq!(tables.len(), self.tables.len(), "the same tables");
        RemoteTier {
            figures,
            tables,
            ..self
        }
    }

    /// What it does, for others to read: as of its last poll.
    pub fn figures(&self) -> &Arc<TierFigures> {
        &self.figures
    }

    /// What it has asked for rows of each table, and what of that failed.
    pub fn tables(&self) -> &[Readers] {
        &self.tables
    }

    /// What it reads by.
    pub fn reads(&self) -> &R {
        &self.reads
    }

    /// Ends a fetch, which may be asked for still: what comes for it is dropped then.
    fn answer(&mut self, place: u32, answer: Result<&[u8], TierError>, each: EachRow<'_>) {
        let at = &mut self.places[place as usize];
        at.stage = Stage::Free;
        at.serial = at.serial.wrapping_add(1);
        self.free.push(place);
        self.counts.note(&answer);
        self.tables[at.wanted.table as usize].1.note(&answer);
        each(at.wanted.token, answer);
    }

    /// Answers all fetches, none of which can come.
    fn give_up(&mut self, each: EachRow<'_>) {
        self.waiting.clear();
        self.soonest_ns = u64::MAX;
        for place in 0..self.places.len() as u32 {
            if self.places[place as usize].stage != Stage::Free {
                self.answer(place, Err(TierError::Unreached), each);
            }
        }
    }

    /// Asks for some of the rows that wait.
    fn ask(&mut self, room: usize, each: EachRow<'_>) {
        for _ in 0..room.min(ASKED) {
            let Some(place) = self.waiting.pop_front() else {
                return;
            };
            let Wanted { table, row, .. } = self.places[place as usize].wanted;
            if !self.reads.has(table) {
                self.answer(place, Err(TierError::Unreached), each);
                continue;
            }
            let at = &mut self.places[place as usize];
            at.stage = Stage::Asked;
            let token = u64::from(at.serial) << 32 | u64::from(place);
            self.reads.read(table, row, token);
            self.counts.reads += 1;
            self.counts.read_bytes += self.row_bytes[table as usize] as u64;
        }
    }

    /// Gives up the fetches whose time is over.
    fn expire(&mut self, now_ns: u64, each: EachRow<'_>) {
        let now_ns = self.patience.at(now_ns);
        if now_ns < self.soonest_ns {
            return;
        }
        self.soonest_ns = u64::MAX;
        let places = &self.places;
        self.waiting
            .retain(|&place| places[place as usize].deadline_ns > now_ns);
        for place in 0..self.places.len() as u32 {
            let Place {
                stage, deadline_ns, ..
            } = self.places[place as usize];
            match stage {
                Stage::Free => {}
                _ if deadline_ns <= now_ns => self.answer(place, Err(TierError::Late), each),
                _ => self.soonest_ns = self.soonest_ns.min(deadline_ns),
            }
        }
    }
}

impl<R: RemoteReads> Tier for RemoteTier<R> {
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        let Some(place) = self.free.pop() else {
            self.counts.refused += u64::from(!self.is_full);
            self.is_full = true;
            return Err(FetchesFull::ForAll);
        };
        self.is_full = false;
        let left_ns = wanted.deadline_ns.saturating_sub(now_ns);
        let until_ns = self.patience.at(now_ns) + left_ns.min(self.budget_ns);
        let at = &mut self.places[place as usize];
        (at.stage, at.wanted) = (Stage::Waiting, wanted);
        (at.asked_ns, at.deadline_ns) = (now_ns, until_ns);
        self.soonest_ns = self.soonest_ns.min(until_ns);
        self.waiting.push_back(place);
        self.tables[wanted.table as usize].0.begin();
        self.counts.fetches += 1;
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let Some(room) = self.reads.room(now_ns) else {
            self.give_up(each);
            return self.figures.publish(&mut self.published, &self.counts);
        };
        self.ask(room, each);
        let RemoteTier {
            reads,
            tables,
            row_bytes,
            places,
            free,
            counts,
            ..
        } = self;
        reads.poll(&mut |token, bytes| {
            let (place, serial) = (token as u32, (token >> 32) as u32);
            let at = &mut places[place as usize];
            // Otherwise it was given up before.
            if at.stage != Stage::Asked || at.serial != serial {
                return;
            }
            let table = at.wanted.table as usize;
            let row = &bytes[..row_bytes[table]];
            at.stage = Stage::Free;
            at.serial = at.serial.wrapping_add(1);
            free.push(place);
            let answer = Ok(row);
            counts.note(&answer);
            let (read, failures) = &tables[table];
            failures.note(&answer);
            read.times.record(now_ns.saturating_sub(at.asked_ns));
            each(at.wanted.token, answer);
        });
        self.figures.publish(&mut self.published, &self.counts);
        self.expire(now_ns, each);
    }

    fn unanswered(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn counts(&self) -> TierCounts {
        self.counts
    }
}

#[cfg(test)]
mod tests;
