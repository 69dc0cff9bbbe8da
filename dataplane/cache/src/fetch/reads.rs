//! Rows that are taken out to be read, and what comes of them.

use super::bags::is_parked;
use super::rows::RowKey;
use super::{Fetches, NONE, Read, State, Ticket, is_live};
use crate::tier::TierError;

/// Rows that nobody wants and that are read at a time: what somebody wants is read behind these. A quarter of a worker's reads where nothing
/// else is configured, and enough to keep a disk busy. More where there are so many tables that each could not have [one of its own](super::room_for).
pub const READ_AHEAD: u32 = 32;

impl Fetches {
    /// Whether there are rows to be read, if only such that are [passed by](Fetches::pass_by).
    pub fn has_reads(&self) -> bool {
        !self.queued.is_empty()
    }

    /// The next row to be read from the tier: those that somebody waits for come first, from each lane one in turn, each lane's of a table in the order in
    /// which they were wanted. Whoever takes it tells [`Fetches::arrived`], by its deadline at the latest.
    pub fn next_read(&mut self, now_ns: u64) -> Option<Read> {
        let is_open = |number: usize| !self.is_passed[number];
        if let Some(index) = self.queued.pop(is_open) {
            return Some(self.take_out(now_ns, index));
        }
        let read_ahead = &self.read_ahead;
        let may_be = |number| is_open(number) && read_ahead.lets(number, 1).is_ok();
        let index = self.queued.pop_last(may_be)?;
        let number = self.number(self.fetches[index as usize].key.table);
        self.read_ahead.take(number, 1);
        Some(self.take_out(now_ns, index))
    }

    /// The next row to be asked of another worker, as [`Fetches::next_read`] but for the deadline: that worker has one.
    pub fn next_ask(&mut self, now_ns: u64) -> Option<Read> {
        let index = self.away.pop(|number| !self.is_away_passed[number])?;
        Some(self.take_out(now_ns, index))
    }

    fn take_out(&mut self, now_ns: u64, index: u32) -> Read {
        let ticket = self.ticket(index);
        let fetch = &mut self.fetches[index as usize];
        fetch.state = State::Reading;
        if fetch.is_asked {
            fetch.since_ns = now_ns;
        }
        let RowKey { table, row } = fetch.key;
        Read {
            ticket,
            table,
            row,
            lane: match fetch.is_asked {
                true => self.away.lane(index),
                false => self.queued.lane(index),
            },
            deadline_ns: now_ns.saturating_add(self.limits.budget_ns),
            is_wanted: fetch.is_wanted,
            listed: fetch.listed,
        }
    }

    /// Puts the row back that was just taken out with [`Fetches::next_read`] or [`Fetches::next_ask`] and can't be asked for now: it is the
    /// next again.
    pub fn put_back(&mut self, read: Read) {
        let index = read.ticket.index;
        let fetch = &mut self.fetches[index as usize];
        fetch.state = State::Queued;
        if fetch.is_asked {
            return self.away.put_back(index);
        }
        let is_wanted = fetch.is_wanted;
        self.queued.put_back(index);
        if !is_wanted {
            let number = self.number(read.table);
            self.read_ahead.give_back(number, 1);
        }
    }

    /// The same where reads of its own table have all that the tier lets it have: until it can be asked again, only what is heard of the table counts,
    /// since whoever these reads were for may wait no more.
    pub fn hold_back(&mut self, read: Read) {
        let number = self.number(read.table);
        self.is_held_back[number] = true;
        self.pass_by(read);
    }

    /// The same where no row of its table can be asked for now: others' are the next, until [`Fetches::pass_none`].
    pub fn pass_by(&mut self, read: Read) {
        let number = self.number(read.table);
        match self.fetches[read.ticket.index as usize].is_asked {
            true => self.is_away_passed[number] = true,
            false => self.is_passed[number] = true,
        }
        self.put_back(read);
    }

    /// No table's rows are [passed by](Fetches::pass_by) any more.
    pub fn pass_none(&mut self) {
        self.is_passed.fill(false);
        self.is_held_back.fill(false);
        self.is_away_passed.fill(false);
    }

    /// The table's number and the row of one on its way; `None` where nobody wants to know any more.
    pub fn row(&self, ticket: Ticket) -> Option<(u32, u32)> {
        let RowKey { table, row } = self.fetches[ticket.index as usize].key;
        is_live(&self.fetches, ticket).then_some((table, row))
    }

    /// The one on its way of that number, below [`Fetches::most`].
    pub fn of_number(&self, number: usize) -> Option<Ticket> {
        let ticket = self.ticket(number as u32);
        is_live(&self.fetches, ticket).then_some(ticket)
    }

    /// What was read of a row. Returns the number of its table, or `None` where nobody wants to know any more: it was late.
    ///
    /// # Panics
    /// If the row is longer than the longest.
    pub fn arrived(&mut self, ticket: Ticket, outcome: Result<&[u8], TierError>) -> Option<u32> {
        if !is_live(&self.fetches, ticket) {
            return None;
        }
        let place = self.fetches[ticket.index as usize].place;
        match outcome {
            Ok(row) => {
                self.counters.arrived += 1;
                if place != NONE {
                    self.slab.row(place)[..row.len()].copy_from_slice(row);
                }
            }
            Err(_) => self.counters.failed += 1,
        }
        Some(self.end(ticket, outcome.map(|_| ())))
    }

    /// What the tier does counts from now on: whoever tells this could not listen before.
    pub fn heard_all(&mut self, now_ns: u64) {
        (self.heard_ns, self.owners_ns) = (now_ns, now_ns);
        self.heard.iter_mut().for_each(|of| of.last_ns = now_ns);
    }

    /// The tier has answered for a table: given a row, or said why it can't, or that it was late.
    pub fn heard(&mut self, now_ns: u64, table: u32, outcome: Result<(), TierError>) {
        let of = &mut self.heard[table as usize];
        of.is_silent = outcome == Err(TierError::Late);
        if !of.is_silent {
            (of.last_ns, self.heard_ns) = (now_ns, now_ns);
        }
    }

    /// Another worker has answered: given a row, or said why it can't. Memory is free to ask for another one with.
    pub fn heard_owner(&mut self, now_ns: u64) {
        self.owners_ns = now_ns;
    }

    /// When a table was last heard of, if a row of it was late since.
    pub fn silent_since(&self, table: u32) -> Option<u64> {
        let of = self.heard[table as usize];
        of.is_silent.then_some(of.last_ns)
    }

    /// The next row that waits for an answer in vain, until there is none: it is to be [given up](Fetches::give_up), or
    /// [given](Fetches::arrived) where it is found elsewhere. `heard_ns` says when the tier of the owner of a table's row last answered, and
    /// whether a row of the table was late since. Looks at `left` rows at most; each is counted off there.
    pub fn next_late(
        &mut self,
        now_ns: u64,
        left: &mut u32,
        heard_ns: impl Fn(u32, u32) -> (u64, bool),
    ) -> Option<Ticket> {
        let budget_ns = self.limits.budget_ns;
        let is_over = |since_ns: u64, budgets| {
            since_ns.saturating_add(budget_ns.saturating_mul(budgets)) <= now_ns
        };
        let mut tables = self.ages.tables();
        while *left > 0 && tables > 0 {
            let first = self.ages.first(self.looked);
            let fetch = first.map(|index| (index, self.fetches[index as usize]));
            if let Some((index, fetch)) = fetch {
                if fetch.state == State::Reading {
                    *left -= 1;
                    self.ages.remove(self.looked, index);
                    continue;
                }
                let heard_ns = match self.is_held_back[self.looked] {
                    true => self.heard[fetch.key.table as usize].last_ns,
                    false => self.silent_since(fetch.key.table).unwrap_or(self.heard_ns),
                };
                if is_over(fetch.since_ns.max(heard_ns), 1) {
                    *left -= 1;
                    return Some(self.ticket(index));
                }
            }
            self.looked = (self.looked + 1) % self.ages.tables();
            tables -= 1;
        }
        while *left > 0
            && let Some(&(ticket, look_ns)) = self.away_by_age.front()
        {
            let is_live = is_live(&self.fetches, ticket);
            if is_live && look_ns > now_ns {
                break;
            }
            *left -= 1;
            self.away_by_age.pop_front();
            if !is_live {
                continue;
            }
            let fetch = &self.fetches[ticket.index as usize];
            let RowKey { table, row } = fetch.key;
            let (heard_ns, is_silent) = heard_ns(table, row);
            // What has not been asked for waits for memory that rows of others have.
            let (heard_ns, budgets) = match (fetch.state, is_silent) {
                (State::Queued, false) => (heard_ns.max(self.owners_ns), 1),
                (State::Queued, true) => (heard_ns, 1),
                _ => (heard_ns, 3),
            };
            if is_over(fetch.since_ns.max(heard_ns), budgets) {
                return Some(ticket);
            }
            self.look_later(ticket, now_ns.saturating_add(budget_ns));
        }
        None
    }

    /// Whether a row that waits in vain was not asked for because other tables' rows have all that can be asked for at a time: no row of
    /// its own table was late. `is_silent` says whether one was where it is asked of another worker.
    pub fn is_starved(&self, ticket: Ticket, is_silent: bool) -> bool {
        let fetch = &self.fetches[ticket.index as usize];
        let is_silent = match fetch.is_asked {
            true => is_silent,
            false => {
                let is_held_back = self.is_held_back[self.number(fetch.key.table)];
                is_held_back || self.silent_since(fetch.key.table).is_some()
            }
        };
        fetch.state == State::Queued && !is_silent
    }

    /// Gives up a row that does not come in time.
    ///
    /// # Panics
    /// If it is not on its way any more.
    pub fn give_up(&mut self, ticket: Ticket) {
        assert!(is_live(&self.fetches, ticket), "a row on its way");
        self.counters.late += 1;
        self.end(ticket, Err(TierError::Late));
    }

    /// A fetch is over: those that wait hear of it. Returns the table's number.
    fn end(&mut self, ticket: Ticket, outcome: Result<(), TierError>) -> u32 {
        let fetch = self.fetches[ticket.index as usize];
        let (key, place, mut next) = (fetch.key, fetch.place, fetch.wait);
        let number = self.number(key.table);
        if !fetch.is_wanted {
            self.prefetched.give_back(key.table as usize, 1);
        }
        if !fetch.is_asked {
            self.ages.remove(number, ticket.index);
        }
        match (fetch.state, fetch.is_asked, fetch.is_wanted) {
            (State::Queued, true, _) => self.away.remove(ticket.index),
            (State::Queued, false, _) => self.queued.remove(ticket.index),
            (State::Reading, _, false) => self.read_ahead.give_back(number, 1),
            _ => {}
        }
        if place != NONE && outcome.is_err() {
            self.slab.row(place).fill(0);
        }
        let fetch = &mut self.fetches[ticket.index as usize];
        fetch.state = State::Free;
        fetch.turn = fetch.turn.wrapping_add(1);
        self.rows.remove(key, ticket.index);
        self.free_fetches.push(ticket.index);
        if place != NONE {
            self.slab.release(place);
        }
        while next != NONE {
            let wait = self.waits[next as usize];
            if let Some(ask) = next.checked_sub(self.asks_from) {
                self.told.push(ask);
                next = wait.next;
                continue;
            }
            self.free_waits.push(next);
            self.wait_quotas.give_back(key.table as usize, 1);
            next = wait.next;
            if !is_parked(&self.bags, wait.bag) {
                continue; // Given up meanwhile.
            }
            let bag = &mut self.bags[wait.bag.index as usize];
            bag.pending -= 1;
            bag.outcome = bag.outcome.and(outcome);
            if bag.pending == 0 {
                self.now_ready(wait.bag);
            }
        }
        key.table
    }
}
