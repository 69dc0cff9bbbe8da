//! Rows of shards that other workers write: they are asked for them.
//!
//! A shard has one writer, so rows of it come into the store only through that worker, its *owner*. Another worker that misses one
//! asks the owner, with memory for the row; the owner looks whether it has the row meanwhile, or waits for it as one of those for whom
//! it fetches it, puts the row into that memory and sends it back. So a row is read from a tier once, however many workers want it, and
//! is kept whoever wanted it. Each worker has one *inbox*, for what others ask of it and for what they answer.
//!
//! **Bounds.** Each worker has [`Limits::asked`](crate::fetch::Limits::asked) pieces of memory for rows, made at start, and a row that is asked for
//! takes one with it, there and back. While none is left the worker asks for nothing more, and bags that wait go on waiting; tables whose
//! rows do not come leave some to others ([`Quotas`]). All that can be
//! in an inbox at a time is therefore known: it has room for the memory of all workers, and putting something in never fails. The memory
//! moves with its ownership, so that nobody writes what another reads.
//!
//! **Nobody waits for ever.** Workers could wait for one another in a circle: the staging of one is full of bags that wait for rows of
//! the other, and the other's of bags that wait for rows of the first. That stops nothing, since an ask that an owner has taken needs
//! nothing that a bag may hold: it has a fetch and a record of its own, as many as there can be asks ([`Fetches::new`](crate::fetch::Fetches::new)),
//! no place in staging, and its row comes from the owner's tier, which answers each fetch by its deadline, or is given up where that tier
//! answers nothing. The owner never asks a third for it. So every ask is answered, every answer lets a bag go on, and what it
//! holds becomes free. An owner that is stopped answers when it goes on; those who ask see that its tier has not answered, and give their rows
//! up when all the time is over that the owner could have taken ([`fetch`](crate::fetch)).

mod bell;
mod sync;

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::fetch::{Lane, Limits};
use crate::quotas::Quotas;
use crate::sides::SIDES;
use crate::tier::{FetchesFull, TierError};
use bell::Bell;

/// What workers send one another.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A row of the receiver's shards is wanted.
    Ask(Ask),
    /// What became of a row that the receiver asked for.
    Answer {
        /// The asker's.
        token: u64,
        /// The row's.
        table: u32,
        /// Bytes of the row, which are at the beginning of `memory`.
        outcome: Result<usize, TierError>,
        memory: Box<[u8]>,
    },
}

/// A row that another worker wants.
#[derive(Debug)]
pub(crate) struct Ask {
    from: u16,
    token: u64,
    /// In whose turn its row is read.
    pub(crate) lane: Lane,
    pub(crate) table: u32,
    pub(crate) row: u32,
    /// The asker's, for the longest row.
    pub(crate) memory: Box<[u8]>,
}

/// A row that may be wanted soon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hint {
    pub(crate) table: u32,
    pub(crate) row: u32,
}

/// What is for one worker.
struct Inbox {
    mail: ArrayQueue<Mail>,
    hints: ArrayQueue<Hint>,
    bell: CachePadded<Bell>,
    /// When the worker's tier last answered: the worker alone writes it, and those whose rows wait look at it now and then. Nothing else
    /// is told by it, so that no order is needed.
    heard_ns: CachePadded<AtomicU64>,
    /// As that, of each table whose rows were late since; otherwise 0.
    silent_ns: Box<[AtomicU64]>,
    wake: Box<dyn Fn() + Send + Sync>,
}

/// How much there is of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Rows that a worker asks for at a time.
    pub(crate) asked: u32,
    /// Rows that may be wanted soon, and wait to be fetched.
    pub(crate) hints: u32,
    /// Bytes of the longest row.
    pub(crate) row_bytes: usize,
}

impl Room {
    pub(crate) fn of(limits: &Limits) -> Room {
        Room {
            asked: limits.asked,
            hints: limits.prefetched,
            row_bytes: limits.row_bytes,
        }
    }
}

/// One worker's way to the others, and theirs to it.
pub(crate) struct Owners {
    number: u16,
    inboxes: Arc<[Inbox]>,
    /// Memory for rows that can be asked for, and how much there is of it at all.
    free: Vec<Box<[u8]>>,
    most: usize,
    /// For which tables' rows it was taken, and for how many of each side's.
    quotas: Quotas,
    asked_on: [u32; SIDES],
    /// How many tables a side has.
    on_a_side: usize,
    /// Asks of others that this worker has taken, by their numbers.
    asks: Box<[Option<Ask>]>,
    free_asks: Vec<u32>,
    /// Whether there may be more in the inbox than was looked at.
    is_behind: bool,
    /// To whom something was sent that were not yet rung.
    to_ring: Box<[bool]>,
}

impl fmt::Debug for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("Owners");
        out.field("number", &self.number);
        out.field("free", &self.free.len());
        out.field("asks", &self.asks);
        out.finish_non_exhaustive()
    }
}

impl Owners {
    /// One for each worker. `wakes` end their sleep. Rows are asked for of those tables of which `tables` says so, by their numbers.
    ///
    /// # Panics
    /// If there are more than 65,535.
    pub(crate) fn all(
        room: Room,
        wakes: Vec<Box<dyn Fn() + Send + Sync>>,
        tables: &[bool],
    ) -> Vec<Owners> {
        let count = u16::try_from(wakes.len()).expect("fewer workers than cores");
        // A queue has room for one at least.
        let queue = |entries: u32| entries.max(1) as usize;
        let inbox = |wake| Inbox {
            // What others ask of this one, and what they answer it: all the memory that there is.
            mail: ArrayQueue::new(queue(room.asked * u32::from(count))),
            hints: ArrayQueue::new(queue(room.hints)),
            bell: CachePadded::new(Bell::new()),
            heard_ns: CachePadded::new(AtomicU64::new(0)),
            silent_ns: (0..SIDES * tables.len())
                .map(|_| AtomicU64::new(0))
                .collect(),
            wake,
        };
        let inboxes: Arc<[Inbox]> = wakes.into_iter().map(inbox).collect();
        let asks = room.asked * u32::from(count.saturating_sub(1));
        let asked = if count > 1 { room.asked } else { 0 };
        let memory = |_| vec![0xff; room.row_bytes].into_boxed_slice();
        let one = |number| Owners {
            number,
            inboxes: Arc::clone(&inboxes),
            free: (0..asked).map(memory).collect(),
            most: asked as usize,
            quotas: Quotas::new(asked, 1, tables),
            asked_on: [0; SIDES],
            on_a_side: tables.len(),
            asks: (0..asks).map(|_| None).collect(),
            free_asks: (0..asks).rev().collect(),
            is_behind: false,
            to_ring: vec![false; usize::from(count)].into_boxed_slice(),
        };
        (0..count).map(one).collect()
    }

    /// Asks of others that this worker has taken, at most.
    pub(crate) fn most_taken(&self) -> u32 {
        self.asks.len() as u32
    }

    /// Rows that this worker has asked for and that were not answered.
    pub(crate) fn asked(&self) -> usize {
        self.most - self.free.len()
    }

    fn side(&self, table: u32) -> usize {
        usize::from(table as usize >= self.on_a_side)
    }

    /// The same of a side's tables.
    pub(crate) fn asked_on(&self, side: usize) -> u32 {
        self.asked_on[side]
    }

    /// The worker that writes a shard.
    pub(crate) fn owner(&self, shard: u32) -> u16 {
        (shard % self.inboxes.len() as u32) as u16
    }

    /// This worker's number.
    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    fn inbox(&self) -> &Inbox {
        &self.inboxes[usize::from(self.number)]
    }

    /// Whether something came that was not looked at.
    pub(crate) fn has_mail(&self) -> bool {
        self.is_behind || self.inbox().bell.is_rung()
    }

    /// The worker looks at what came: says whether there is anything.
    pub(crate) fn look(&mut self) -> bool {
        self.is_behind |= self.inbox().bell.answer();
        self.is_behind
    }

    /// There is something that the worker has not come to.
    pub(crate) fn stay_up(&mut self) {
        self.is_behind = true;
    }

    /// The next of what came. `None` where there is no more.
    pub(crate) fn receive(&mut self) -> Option<Mail> {
        let mail = self.inbox().mail.pop();
        self.is_behind = mail.is_some();
        mail
    }

    /// This worker's tier has answered.
    pub(crate) fn heard(&self, now_ns: u64) {
        self.inbox().heard_ns.store(now_ns, Ordering::Relaxed);
    }

    /// This worker's tier has not answered for a table since then, as far as that is known, or it has.
    pub(crate) fn silent(&self, table: u32, since_ns: Option<u64>) {
        let since_ns = since_ns.map_or(0, |since_ns| since_ns.max(1));
        let silent_ns = &self.inbox().silent_ns[table as usize];
        if silent_ns.load(Ordering::Relaxed) != since_ns {
            silent_ns.store(since_ns, Ordering::Relaxed);
        }
    }

    /// When the tier of a worker has last answered, as far as is known, and false; or when it has for that table, and true, where the table's
    /// rows were late since.
    pub(crate) fn heard_ns(&self, owner: u16, table: u32) -> (u64, bool) {
        let inbox = &self.inboxes[usize::from(owner)];
        match inbox.silent_ns[table as usize].load(Ordering::Relaxed) {
            0 => (inbox.heard_ns.load(Ordering::Relaxed), false),
            silent_ns => (silent_ns, true),
        }
    }

    /// Asks a worker for a row, to be read in the turns of `lane`.
    ///
    /// # Errors
    /// [`FetchesFull`]: as many were asked for as can be, or as many of the table's as may be beside others'.
    pub(crate) fn ask(
        &mut self,
        owner: u16,
        lane: Lane,
        (table, row): (u32, u32),
        token: u64,
    ) -> Result<(), FetchesFull> {
        self.quotas.lets(table as usize, 1)?;
        self.quotas.take(table as usize, 1);
        self.asked_on[self.side(table)] += 1;
        let memory = self.free.pop().expect("there is some");
        let ask = Ask {
            from: self.number,
            token,
            lane,
            table,
            row,
            memory,
        };
        self.send(owner, Mail::Ask(ask));
        Ok(())
    }

    /// Another worker's ask is to be answered later. Returns its number.
    pub(crate) fn keep(&mut self, ask: Ask) -> u32 {
        let number = self.free_asks.pop();
        let number = number.expect("there is a record for each row that others have memory for");
        self.asks[number as usize] = Some(ask);
        number
    }

    /// Answers an ask that was kept.
    pub(crate) fn answer_kept(&mut self, number: u32, outcome: Result<&[u8], TierError>) {
        let ask = self.asks[number as usize].take();
        self.free_asks.push(number);
        let mut ask = ask.expect("an ask is answered once");
        let outcome = outcome.map(|row| {
            ask.memory[..row.len()].copy_from_slice(row);
            row.len()
        });
        self.answer(ask, outcome);
    }

    /// Answers an ask, with a row of so many bytes in its memory or why there is none.
    pub(crate) fn answer(&mut self, ask: Ask, outcome: Result<usize, TierError>) {
        let answer = Mail::Answer {
            token: ask.token,
            table: ask.table,
            outcome,
            memory: ask.memory,
        };
        self.send(ask.from, answer);
    }

    /// The memory of an answer that was taken, for a row of that table: another row can be asked for.
    pub(crate) fn give_back(&mut self, table: u32, memory: Box<[u8]>) {
        self.quotas.give_back(table as usize, 1);
        self.asked_on[self.side(table)] -= 1;
        self.free.push(memory);
    }

    fn send(&mut self, to: u16, mail: Mail) {
        let sent = self.inboxes[usize::from(to)].mail.push(mail);
        sent.expect("an inbox has room for all rows that there is memory for");
        self.to_ring[usize::from(to)] = true;
    }

    /// Tells a row's owner that it may be wanted soon. Returns whether there was room.
    pub(crate) fn hint(&mut self, owner: u16, hint: Hint) -> bool {
        let taken = self.inboxes[usize::from(owner)].hints.push(hint).is_ok();
        self.to_ring[usize::from(owner)] |= taken;
        taken
    }

    /// How many rows of this worker's may be wanted soon, as far as it was told by now.
    pub(crate) fn hints(&self) -> usize {
        self.inbox().hints.len()
    }

    /// The next row of this worker's that may be wanted soon.
    pub(crate) fn next_hint(&mut self) -> Option<Hint> {
        let hints = &self.inbox().hints;
        // Looking costs two loads; taking from an empty queue would cost a fence.
        if hints.is_empty() { None } else { hints.pop() }
    }

    /// Rings those to whom something was sent since this was last called.
    pub(crate) fn ring(&mut self) {
        for (inbox, to_ring) in self.inboxes.iter().zip(&mut self.to_ring) {
            if core::mem::take(to_ring) && inbox.bell.ring() {
                (inbox.wake)();
            }
        }
    }

    /// The worker is about to sleep, until it is woken or for as long as it likes. Returns whether it may.
    pub(crate) fn lie_down(&mut self) -> bool {
        !self.is_behind && self.inbox().bell.lie_down()
    }
}
