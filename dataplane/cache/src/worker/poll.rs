//! A worker's poll: what has come is taken, and what is wanted is asked for.

use core::cmp::Reverse;

use super::Worker;
use crate::fetch::Ticket;
use crate::figures::Count;
use crate::home::Home;
use crate::owners::{Hint, Mail};
use crate::sides::Refused;
use crate::table::CachedTable;
use crate::tier::{FetchesFull, TierError};
use crate::warming::{LOOKS, Look};

/// Messages of other workers that a poll takes: copying the row of each takes a tenth of a microsecond or so, all together less than
/// a micro-batch.
const MAIL: usize = 128;

/// Rows of a table that became resident that are answered in a call: copying each takes a tenth of a microsecond or so. And fetches that
/// are looked at for that, most of which may be of other tables.
const ANSWERED: usize = 64;
const LOOKED: usize = 1024;
/// Rows that a poll begins to fetch: looking where one is read from takes a third of a microsecond or so, and of fewer those that are
/// looked up first would not be found as well.
pub(super) const BEGUN: usize = 16;
/// Rows that a poll takes slots for: finding one takes one or two microseconds, all together no more than telling the kernel of reads.
const SLOTS: usize = 4;
/// A poll that has taken more rows than these, or has asked for reads, begins none: it has been long enough.
const FEW: usize = 2;
/// A time without a poll is a pause if it is this part of a row's budget, and longer than a worker ever takes between two.
const PAUSES: u64 = 4;
const PAUSE_NS: u64 = 5_000_000;
/// Hints that a poll looks at: whether a row is there takes a look into one set of slots or two, of 30 to 100 ns each where they come from
/// memory; all together some ten microseconds.
const HINTS: usize = 64;
/// Rows that wait in vain and that a poll looks at: giving one up takes a tenth of a microsecond or so.
const GIVEN_UP: u32 = 128;

impl Worker {
    /// Takes some of what has come, and asks for some of what is wanted: no more than takes as long as a micro-batch may. Between two
    /// turns. Returns whether rows or questions had come, or some were asked for.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        // Who was stopped meanwhile, or had no core, does not know whether the tier would have answered.
        let paused_ns = now_ns.saturating_sub(self.polled_ns);
        if paused_ns >= (self.fetches.limits().budget_ns / PAUSES).max(PAUSE_NS) {
            self.fetches.heard_all(now_ns);
            self.owners.heard(now_ns);
            for table in 0..self.tables.len() as u32 {
                self.owners.silent(table, self.fetches.silent_since(table));
            }
        }
        self.polled_ns = now_ns;
        // Slots are given by what is known of rows: here, where whoever drives the worker has not done it.
        self.touch_hits();
        let has_mail = self.take_mail(now_ns);
        // A row that was asked for has its slot, if it gets one, before anything is taken from the tier.
        let has_moved = if self.begun.is_empty() {
            self.go_on(now_ns)
        } else {
            self.take_slots();
            true
        };
        let tables = self.tables.iter_mut().flatten();
        for table in tables.filter_map(Home::table_mut) {
            table.advance();
        }
        let has_swept = self.is_resizing;
        if has_swept {
            self.sweep();
        }
        self.owners.ring();
        has_mail || has_moved || has_swept
    }

    /// Goes on where stores change their sizes: with one table in a poll.
    fn sweep(&mut self) {
        let tables = self.tables.iter_mut().flatten();
        let mut cached = tables.filter_map(Home::table_mut);
        self.is_resizing = cached.any(CachedTable::sweep);
    }

    /// Takes rows that have come, and begins to fetch others. Returns whether there were some.
    fn go_on(&mut self, now_ns: u64) -> bool {
        let reads = self.tiers.reads();
        let taken = self.take_rows(now_ns);
        let has_read = self.tiers.reads() > reads;
        self.give_up_rows(now_ns);
        self.begin_in_advance(now_ns);
        let has_begun = taken <= FEW && !has_read && self.fetch(now_ns);
        taken > 0 || has_read || has_begun
    }

    /// After a table has [become resident](Worker::replace), before a poll: answers some of its rows that are on their way from `rows`,
    /// which gives a table's row if it has it, however the tier does. Returns whether there were some.
    pub fn answer_resident(
        &mut self,
        rows: impl Fn(usize, u32, &mut [u8]) -> Option<usize>,
    ) -> bool {
        let mut answered = 0;
        for _ in 0..LOOKED {
            if self.looked >= self.fetches.most() || answered == ANSWERED {
                break;
            }
            let number = self.looked;
            self.looked += 1;
            let Some(ticket) = self.fetches.of_number(number) else {
                continue;
            };
            let (table, row) = self.fetches.row(ticket).expect("it is on its way");
            let home = home(&mut self.tables, table);
            if home.table().is_some() {
                continue;
            }
            let Some(length) = rows(table as usize, row, &mut self.spare) else {
                continue;
            };
            let bytes = &self.spare[..length];
            // The tier's own answer finds nobody.
            if self.slots[number].take().is_some() {
                home.figures().count(Count::Unneeded, 1);
            }
            self.fetches.arrived(ticket, Ok(bytes));
            while let Some(ask) = self.fetches.next_told() {
                self.owners.answer_kept(ask, Ok(bytes));
            }
            answered += 1;
        }
        answered > 0
    }

    /// Takes what other workers ask and answer. Returns whether there was something.
    fn take_mail(&mut self, now_ns: u64) -> bool {
        if !self.owners.look() {
            return false;
        }
        for taken in 0..MAIL {
            match self.owners.receive() {
                None => return taken > 0,
                Some(Mail::Answer {
                    token,
                    table,
                    outcome,
                    memory,
                }) => {
                    let row = outcome.map(|bytes| &memory[..bytes]);
                    if row != Err(TierError::Late) {
                        self.fetches.heard_owner(now_ns);
                    }
                    self.fetches.arrived(Ticket::of(token), row);
                    self.owners.give_back(table, memory);
                }
                Some(Mail::Ask(mut ask)) => {
                    self.counters.asked += 1;
                    // It may have come since the other has missed it. Where the table is not cached here any more, or not yet, it
                    // is fetched and kept nowhere.
                    let table = home(&mut self.tables, ask.table).table();
                    let found = table.and_then(|table| {
                        let bytes = table.row_bytes();
                        let is_read = table.read(ask.row, &mut ask.memory[..bytes]);
                        is_read.then_some(bytes)
                    });
                    if let Some(bytes) = found {
                        self.owners.answer(ask, Ok(bytes));
                    } else {
                        let (table, row) = (ask.table, ask.row);
                        let lane = ask.lane;
                        let number = self.owners.keep(ask);
                        self.fetches.ask(now_ns, lane, table, row, number);
                    }
                }
            }
        }
        true
    }

    /// Takes rows that have come from the tier, or that it gives up. Returns how many.
    fn take_rows(&mut self, now_ns: u64) -> usize {
        let mut taken = 0;
        let Worker {
            tables,
            fetches,
            slots,
            tiers,
            owners,
            asked_ns,
            spare,
            ..
        } = self;
        let mut has_answered = false;
        tiers.poll(now_ns, &mut |token, outcome| {
            taken += 1;
            has_answered |= outcome != Err(TierError::Late);
            let ticket = Ticket::of(token);
            let Some((table, row)) = fetches.row(ticket) else {
                return;
            };
            fetches.heard(now_ns, table, outcome.map(|_| ()));
            owners.silent(table, fetches.silent_since(table));
            let home = home(tables, table);
            let figures = home.figures();
            match outcome {
                Ok(_) => {
                    let took_ns = now_ns.saturating_sub(asked_ns[ticket.number()]);
                    figures.count(Count::Arrived, 1);
                    figures.fetch_times.record(took_ns);
                }
                Err(why) => figures.failed(why),
            }
            if let Some(table) = home.table_mut() {
                table.heard(outcome.map(|_| ()));
            }
            let (_, taken) = slots[ticket.number()].take().expect("it was begun");
            match (home.table_mut(), taken, outcome) {
                (Some(table), Ok(taken), Ok(bytes)) => table.publish(taken, bytes),
                (Some(table), Ok(taken), Err(_)) => table.abandon(taken),
                (_, Err(why), Ok(_)) => home.figures().count(why, 1),
                (_, Err(_), Err(_)) => {}
                (None, Ok(_), _) => unreachable!("slots are given back before their table goes"),
            }
            // Its slot may have been given back to it, since what took that did not come either.
            let outcome = match outcome {
                Ok(bytes) => Ok(bytes),
                Err(why) => home.read(row, spare).ok_or(why),
            };
            fetches.arrived(ticket, outcome);
            while let Some(ask) = fetches.next_told() {
                owners.answer_kept(ask, outcome);
            }
        });
        if has_answered {
            owners.heard(now_ns);
        }
        taken
    }

    /// Gives up some of the rows that wait in vain.
    fn give_up_rows(&mut self, now_ns: u64) {
        let Worker {
            tables,
            fetches,
            owners,
            spare,
            ..
        } = self;
        let mut left = GIVEN_UP;
        loop {
            let heard_ns = |table, row| {
                let shard = home_at(tables, table).spread().shard(row);
                owners.heard_ns(owners.owner(shard), table)
            };
            let Some(ticket) = fetches.next_late(now_ns, &mut left, heard_ns) else {
                return;
            };
            let (table, row) = fetches.row(ticket).expect("it waits");
            let (_, is_silent) = heard_ns(table, row);
            let home = home(tables, table);
            let is_own = owners.owner(home.spread().shard(row)) == owners.number();
            // As in `take_rows`.
            let found = is_own.then(|| home.read(row, spare)).flatten();
            match found {
                Some(bytes) => _ = fetches.arrived(ticket, Ok(bytes)),
                None => {
                    let why = match fetches.is_starved(ticket, is_silent) {
                        true => Count::Starved,
                        false => Count::Stalled,
                    };
                    fetches.give_up(ticket);
                    home.figures().count(why, 1);
                }
            }
            while let Some(ask) = fetches.next_told() {
                owners.answer_kept(ask, found.ok_or(TierError::Late));
            }
        }
    }

    /// Begins to fetch rows that nobody waits for. Hints and lists share the room for them, which whoever comes first may take all of: who has
    /// got some comes last the next time.
    fn begin_in_advance(&mut self, now_ns: u64) {
        let begun = |worker: &Worker| worker.fetches.counters().prefetched;
        let before = begun(self);
        let listed_first = self.listed_first;
        if listed_first {
            self.load_listed(now_ns);
        } else {
            self.take_hints(now_ns);
        }
        if begun(self) > before {
            self.listed_first = !listed_first;
        }
        if listed_first {
            self.take_hints(now_ns);
        } else {
            self.load_listed(now_ns);
        }
    }

    /// Begins to fetch rows that may be wanted soon.
    fn take_hints(&mut self, now_ns: u64) {
        for _ in 0..HINTS {
            if !self.fetches.can_prefetch() {
                return;
            }
            let Some(Hint { table, row }) = self.owners.next_hint() else {
                return;
            };
            let home = home(&mut self.tables, table);
            let is_lacked = home.table().is_some_and(|cached| !cached.has(row));
            if is_lacked && !self.fetches.prefetch(now_ns, table, row) {
                // Its table has to leave the room to others.
                home.figures().count(Count::HintsDropped, 1);
            }
        }
        // The next poll goes on.
        self.owners.stay_up();
    }

    /// Begins to fetch rows that are to stay, and those that were there before a restart.
    fn load_listed(&mut self, now_ns: u64) {
        let Worker {
            tables,
            fetches,
            owners,
            pinning,
            warming,
            ..
        } = self;
        let mut load = |table: usize, row: u32, uses: Option<u32>| {
            let Some(cached) = home(tables, table as u32).table() else {
                return Look::Passed;
            };
            if owners.owner(cached.spread().shard(row)) != owners.number() {
                return Look::Passed;
            }
            if !fetches.has_room_ahead(table) {
                return Look::Full;
            }
            // Those that come first are wanted most: no other takes their place, but for some that are on their way.
            let has_room = || cached.rules().is_pinned(row) || cached.has_room(row);
            if !cached.has(row) && has_room() {
                fetches.prefetch_listed(now_ns, table as u32, row, uses);
            }
            Look::Looked
        };
        let mut left = LOOKS;
        pinning.go_on(&mut left, |table, row, _| load(table, row, None));
        warming.go_on(&mut left, |table, row, uses| load(table, row, Some(uses)));
    }

    /// Asks the tier and other workers for some of what is wanted. Returns whether there was something to ask for.
    fn fetch(&mut self, now_ns: u64) -> bool {
        if self.fetches.has_reads() {
            let tables = self.tables.iter_mut().flatten();
            let tables = tables.filter_map(Home::table_mut);
            tables.for_each(CachedTable::catch_up);
        }
        self.fetches.pass_none();
        let (mut looked, mut has_asked) = (0, false);
        while looked < BEGUN
            && let Some(read) = self.fetches.next_read(now_ns)
        {
            looked += 1;
            let home = home(&mut self.tables, read.table);
            // As above, where it had not even its turn until then.
            if home.is_silent()
                && let Some(bytes) = home.read(read.row, &mut self.spare)
            {
                self.fetches.arrived(read.ticket, Ok(bytes));
                while let Some(ask) = self.fetches.next_told() {
                    self.owners.answer_kept(ask, Ok(bytes));
                }
                has_asked = true;
                continue;
            }
            match self.tiers.fetch(now_ns, &read, home.in_tier()) {
                Ok(()) => {}
                Err(Refused::OfTable) => {
                    self.fetches.hold_back(read);
                    continue;
                }
                Err(Refused::OfSide) => {
                    self.fetches.pass_by(read);
                    continue;
                }
                Err(Refused::AllFull) => {
                    self.fetches.put_back(read);
                    break;
                }
                Err(Refused::Gone) => {
                    // Nobody waits for it: the generation goes when its requests have ended.
                    self.fetches.arrived(read.ticket, Err(TierError::Unreached));
                    while let Some(ask) = self.fetches.next_told() {
                        self.owners.answer_kept(ask, Err(TierError::Unreached));
                    }
                    has_asked = true;
                    continue;
                }
            }
            self.asked_ns[read.ticket.number()] = now_ns;
            self.ahead.begun();
            if let Some(table) = home.table() {
                table.prefetch(read.row);
            }
            let next_use = self.ahead.next_use(read.table, read.row);
            self.begun.push((next_use.unwrap_or(u32::MAX), read));
        }
        has_asked |= !self.begun.is_empty();
        // Those that are looked up sooner come first: what comes later is refused where it would not have been kept, and takes no slot
        // that one after it would have had a better right to.
        self.begun
            .sort_unstable_by_key(|(next, read)| Reverse((*next, read.ticket.number())));
        while let Some(read) = self.fetches.next_ask(now_ns) {
            let shard = home(&mut self.tables, read.table).spread().shard(read.row);
            let owner = self.owners.owner(shard);
            let (row, token) = ((read.table, read.row), read.ticket.token());
            let asked = self.owners.ask(owner, read.lane, row, token);
            match asked {
                Ok(()) => has_asked = true,
                Err(FetchesFull::ForTable) => self.fetches.pass_by(read),
                Err(FetchesFull::ForAll) => {
                    self.fetches.put_back(read);
                    break;
                }
            }
        }
        has_asked
    }

    /// Takes slots for some of the rows that the tier was asked for.
    fn take_slots(&mut self) {
        let Worker {
            tables,
            fetches,
            slots,
            ahead,
            begun,
            ..
        } = self;
        let first = begun.len().saturating_sub(SLOTS);
        for (_, read) in begun.drain(first..).rev() {
            let home = home(tables, read.table);
            home.figures().count(Count::Fetched, 1);
            let number = read.ticket.number();
            if fetches.row(read.ticket).is_none() {
                // Answered from a table that has become resident.
                home.figures().count(Count::Unneeded, 1);
                continue;
            }
            let Some(table) = home.table_mut() else {
                slots[number] = Some((read.table, Err(Count::Unkept)));
                continue;
            };
            // What was fetched in advance is used some time, and only what is known to be used as well stays before it.
            let in_advance = |row| (row == read.row && !read.is_wanted).then_some(u32::MAX);
            let next_use = |row| ahead.next_use(read.table, row).or(in_advance(row));
            let ahead = match read.listed {
                None if read.is_wanted => None,
                uses => Some(uses.unwrap_or(0)),
            };
            let taken = table.begin(read.row, ahead, next_use);
            slots[number] = Some((read.table, taken));
        }
    }
}

/// What is known of the table of a row that is fetched, whether it is still cached or not.
fn home(tables: &mut [Option<Home>], table: u32) -> &mut Home {
    let home = tables[table as usize].as_mut();
    home.expect("rows of listed tables are fetched")
}

pub(super) fn cached(tables: &mut [Option<Home>], table: u32) -> &mut CachedTable {
    let cached = home(tables, table).table_mut();
    cached.expect("a cached table")
}

/// The same, to look at.
fn home_at(tables: &[Option<Home>], table: u32) -> &Home {
    let home = tables[table as usize].as_ref();
    home.expect("rows of listed tables are fetched")
}
