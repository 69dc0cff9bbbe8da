//! The requests in flight: which slot holds which part, and what has come back so far.
//!
//! Pure state, all of it allocated when the session starts: a lane has `credits` slots, so no more
//! than `lanes * credits` parts, and with at least one part each no more requests, can be in flight.

use std::cmp::Ordering;
use std::collections::VecDeque;

use rowmill_wire::control::Welcome;
use rowmill_wire::limits::MAX_LANES;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Refusal, Status};

use crate::answer::{self, Answer, Slice, Ticket};
use crate::error::Failure;
use crate::memory::{Extent, Target};

#[derive(Debug)]
struct Lane {
    free: Vec<u16>,
    in_flight: u16,
    /// Status records that requests in flight may still cause: kept within the completion queue.
    records: u32,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
struct Holder {
    request: u32,
    part: u8,
}

/// A part of a request.
#[derive(Clone, Copy, Debug)]
struct Part {
    lane: u16,
    slot: u16,
    first_bag: u32,
    bags: u32,
    /// Status records that may still come.
    records: u32,
    slices_done: u32,
    slices_reported: u32,
    ended: bool,
}

#[derive(Debug)]
struct Entry {
    /// 0 while the entry is free.
    serial: u64,
    target: Option<Target>,
    source: Option<Extent>,
    attempt: u16,
    slice_bags: u32,
    parts: Vec<Part>,
    /// For each part and feature: how many ids of the feature come before it. Empty for one part.
    ids_before: Vec<u32>,
    left: u32,
    failure: Option<(u8, Failure)>,
    generation: u64,
    delta: u64,
    service_ns: u64,
    /// Whether somebody wants to know of its slices as they come.
    watched: bool,
    /// Whether it is in the list of those with news.
    has_news: bool,
}

/// What a new request is, apart from its parts.
#[derive(Debug)]
pub(crate) struct Departure<'a> {
    pub(crate) target: Target,
    pub(crate) source: Option<Extent>,
    pub(crate) attempt: u16,
    pub(crate) slice_bags: u32,
    pub(crate) ids_before: &'a [u32],
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Flight {
    lanes: Vec<Lane>,
    credits: u16,
    completions: u32,
    /// `lane * credits + slot`.
    slots: Vec<Option<Holder>>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Entries whose last part has ended and whose answer was not taken, in that order.
    ended: VecDeque<u32>,
    /// Watched requests with slices that were not reported, each once.
    news: Vec<u32>,
    next_serial: u64,
    /// Lanes picked for the next request, and where the search for equals begins.
    picked: Vec<u16>,
    turn: u16,
}

impl Flight {
    pub(crate) fn new(welcome: &Welcome) -> Flight {
        let lanes = welcome.split.lanes.clamp(1, MAX_LANES);
        let credits = welcome.credits;
        let most = usize::from(lanes) * usize::from(credits);
        let entry = || Entry {
            serial: 0,
            target: None,
            source: None,
            attempt: 0,
            slice_bags: 0,
            parts: Vec::with_capacity(usize::from(lanes)),
            ids_before: Vec::new(),
            left: 0,
            failure: None,
            generation: 0,
            delta: 0,
            service_ns: 0,
            watched: false,
            has_news: false,
        };
        let lane = || Lane {
            free: (0..credits).rev().collect(),
            in_flight: 0,
            records: 0,
        };
        Flight {
            lanes: (0..lanes).map(|_| lane()).collect(),
            credits,
            completions: welcome.completions,
            slots: vec![None; most],
            // An ended request holds its entry until its answer is taken, so there are twice as many.
            entries: (0..2 * most).map(|_| entry()).collect(),
            free: (0..2 * most as u32).rev().collect(),
            ended: VecDeque::with_capacity(2 * most),
            news: Vec::with_capacity(2 * most),
            next_serial: 1,
            picked: Vec::with_capacity(usize::from(lanes)),
            turn: 0,
        }
    }

    pub(crate) fn lanes(&self) -> u16 {
        self.lanes.len() as u16
    }

    /// Requests that can't be told apart from a full house: for sizing the source's list of ranges.
    pub(crate) fn most_requests(&self) -> usize {
        self.entries.len()
    }

    /// Requests sent whose answers were not taken.
    pub(crate) fn requests(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Parts in flight on a lane.
    pub(crate) fn on_lane(&self, lane: u16) -> u16 {
        self.lanes[usize::from(lane)].in_flight
    }

    pub(crate) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Picks a lane for each of `parts` parts, the least loaded ones, of those with a free slot and
    /// room for `records` more status records. `false` where there are too few.
    pub(crate) fn pick(&mut self, parts: u32, records: u32) -> bool {
        self.picked.clear();
        if self.free.is_empty() {
            return false;
        }
        let lanes = self.lanes();
        for _ in 0..parts {
            let open = |&lane: &u16| {
                let l = &self.lanes[usize::from(lane)];
                !self.picked.contains(&lane)
                    && !l.free.is_empty()
                    && l.records + records <= self.completions
            };
            let order = (0..lanes).map(|i| (self.turn + i) % lanes);
            match order
                .filter(open)
                .min_by_key(|&lane| self.lanes[usize::from(lane)].in_flight)
            {
                Some(lane) => self.picked.push(lane),
                None => return false,
            }
        }
        self.turn = (self.turn + 1) % lanes;
        true
    }

    /// Picks one lane, if it has a free slot.
    pub(crate) fn pick_lane(&mut self, lane: u16) -> bool {
        self.picked.clear();
        let l = &self.lanes[usize::from(lane)];
        let open = !self.free.is_empty() && !l.free.is_empty() && l.records < self.completions;
        if open {
            self.picked.push(lane);
        }
        open
    }

    /// The wire number of the next request.
    pub(crate) fn next_serial(&self) -> u64 {
        self.next_serial
    }

    /// Enters a request; its parts follow with [`Flight::add_part`]. Only after a successful pick.
    pub(crate) fn begin(&mut self, departure: Departure<'_>) -> Ticket {
        let index = self.free.pop().expect("picked: an entry is free");
        let serial = self.next_serial;
        self.next_serial += 1;
        let entry = &mut self.entries[index as usize];
        entry.serial = serial;
        entry.target = Some(departure.target);
        entry.source = departure.source;
        entry.attempt = departure.attempt;
        entry.slice_bags = departure.slice_bags;
        entry.parts.clear();
        entry.ids_before.clear();
        entry.ids_before.extend_from_slice(departure.ids_before);
        entry.left = 0;
        entry.failure = None;
        (entry.generation, entry.delta) = (0, 0);
        entry.service_ns = 0;
        entry.watched = false;
        Ticket { index, serial }
    }

    /// Has the request listed when slices of it are placed; tells its parts.
    pub(crate) fn watch(&mut self, ticket: Ticket, mut each: impl FnMut(answer::Part)) {
        let entry = &mut self.entries[ticket.index as usize];
        entry.watched = true;
        for (number, part) in (0..).zip(&entry.parts) {
            each(answer::Part {
                number,
                first_bag: part.first_bag,
                bags: part.bags,
                slices: slices(part.bags, entry.slice_bags),
            });
        }
    }

    /// The next watched request that has slices to be reported.
    pub(crate) fn take_news(&mut self) -> Option<Ticket> {
        let index = self.news.pop()?;
        let entry = &mut self.entries[index as usize];
        entry.has_news = false;
        let serial = entry.serial;
        Some(Ticket { index, serial })
    }

    /// Enters the next part; gives its lane and slot.
    pub(crate) fn add_part(&mut self, ticket: Ticket, first_bag: u32, bags: u32) -> (u16, u16) {
        let entry = &mut self.entries[ticket.index as usize];
        let number = entry.parts.len();
        let lane = self.picked[number];
        let records = slices(bags, entry.slice_bags);
        let l = &mut self.lanes[usize::from(lane)];
        let slot = l.free.pop().expect("picked: a slot is free");
        l.in_flight += 1;
        l.records += records;
        entry.left += 1;
        entry.parts.push(Part {
            lane,
            slot,
            first_bag,
            bags,
            records,
            slices_done: 0,
            slices_reported: 0,
            ended: false,
        });
        let at = usize::from(lane) * usize::from(self.credits) + usize::from(slot);
        self.slots[at] = Some(Holder {
            request: ticket.index,
            part: number as u8,
        });
        (lane, slot)
    }

    /// Takes a status record in. Gives the request's source space back with its last part.
    ///
    /// # Errors
    /// A sentence where the record fits no request in flight: the server's mistake.
    pub(crate) fn complete(
        &mut self,
        lane: u16,
        c: &Completion,
    ) -> Result<Option<Extent>, &'static str> {
        if c.slot >= self.credits {
            return Err("a completion names a slot that was never granted");
        }
        let at = usize::from(lane) * usize::from(self.credits) + usize::from(c.slot);
        let holder = self.slots[at].ok_or("a completion names a slot that holds no request")?;
        let entry = &mut self.entries[holder.request as usize];
        // The server addresses refusals of frames that it can't parse with zeros.
        let unparsed = c.request == 0 && c.status != Status::Ok;
        if !unparsed && (c.request, c.attempt, c.part) != (entry.serial, entry.attempt, holder.part)
        {
            return Err("a completion names another request than its slot holds");
        }
        if entry.watched && !std::mem::replace(&mut entry.has_news, true) {
            self.news.push(holder.request);
        }
        let part = &mut entry.parts[usize::from(holder.part)];
        let all = slices(part.bags, entry.slice_bags);
        let l = &mut self.lanes[usize::from(lane)];
        if c.kind == CompletionKind::Slice {
            if u32::from(c.slice) != part.slices_done || part.slices_done == all {
                return Err("a slice completion is out of order");
            }
            part.slices_done += 1;
            let counted = u32::from(part.records > 0);
            part.records -= counted;
            l.records -= counted;
            return Ok(None);
        }
        part.ended = true;
        l.records -= part.records;
        l.in_flight -= 1;
        l.free.push(c.slot);
        self.slots[at] = None;
        entry.delta = match c.generation.cmp(&entry.generation) {
            Ordering::Greater => c.delta,
            Ordering::Equal => entry.delta.min(c.delta),
            Ordering::Less => entry.delta,
        };
        entry.generation = entry.generation.max(c.generation);
        entry.service_ns = entry.service_ns.max(c.service_ns);
        if c.status == Status::Ok {
            part.slices_done = all;
        } else if entry.failure.is_none_or(|(first, _)| holder.part < first) {
            entry.failure = Some((holder.part, Failure::Refused(entry.refusal(holder.part, c))));
        }
        entry.left -= 1;
        if entry.left > 0 {
            return Ok(None);
        }
        self.ended.push_back(holder.request);
        Ok(entry.source.take())
    }

    /// Ends everything in flight: the connection is gone.
    pub(crate) fn disconnect(&mut self) {
        for (index, entry) in self.entries.iter_mut().enumerate() {
            if entry.serial != 0 && entry.left > 0 {
                entry.failure = Some((0, Failure::Disconnected));
                entry.left = 0;
                entry.source = None;
                self.ended.push_back(index as u32);
            }
        }
        self.slots.fill(None);
        for lane in &mut self.lanes {
            lane.in_flight = 0;
        }
    }

    fn entry(&self, ticket: Ticket) -> Option<&Entry> {
        let entry = self.entries.get(ticket.index as usize)?;
        (entry.serial == ticket.serial).then_some(entry)
    }

    /// Whether the ticket's answer was not taken yet.
    pub(crate) fn knows(&self, ticket: Ticket) -> bool {
        self.entry(ticket).is_some()
    }

    /// The slots (lane, slot) of the request's parts that have not ended.
    pub(crate) fn open_parts(&self, ticket: Ticket) -> impl Iterator<Item = (u16, u16)> {
        let parts = self.entry(ticket).map_or(&[][..], |e| &e.parts);
        parts.iter().filter(|p| !p.ended).map(|p| (p.lane, p.slot))
    }

    /// The answer that has waited longest.
    pub(crate) fn take_any(&mut self) -> Option<Answer> {
        let index = self.ended.pop_front()?;
        Some(self.take(index))
    }

    /// The ticket's answer, if the request has ended.
    pub(crate) fn take_one(&mut self, ticket: Ticket) -> Option<Answer> {
        let at = self.ended.iter().position(|&index| index == ticket.index)?;
        self.entry(ticket)?;
        let index = self.ended.remove(at)?;
        Some(self.take(index))
    }

    fn take(&mut self, index: u32) -> Answer {
        let entry = &mut self.entries[index as usize];
        let serial = core::mem::take(&mut entry.serial);
        self.free.push(index);
        Answer {
            ticket: Ticket { index, serial },
            target: entry
                .target
                .take()
                .expect("an ended request has its target"),
            outcome: entry.failure.map_or(Ok(()), |(_, failure)| Err(failure)),
            generation: entry.generation,
            delta: entry.delta,
            service_ns: entry.service_ns,
            parts: entry.parts.len() as u32,
            slices: entry.parts.iter().map(|p| p.slices_done).sum(),
            attempt: entry.attempt,
        }
    }

    /// Calls `each` for every slice of the request that was placed and not reported before.
    pub(crate) fn report_slices(&mut self, ticket: Ticket, mut each: impl FnMut(Slice)) {
        let entry = &mut self.entries[ticket.index as usize];
        for (number, part) in (0..).zip(&mut entry.parts) {
            let step = if entry.slice_bags == 0 {
                part.bags
            } else {
                entry.slice_bags
            };
            while part.slices_reported < part.slices_done {
                let slice = part.slices_reported;
                let from = slice * step;
                part.slices_reported += 1;
                let bags = step.min(part.bags - from);
                each(Slice {
                    ticket,
                    part: number,
                    number: slice,
                    first_bag: part.first_bag + from,
                    bags,
                });
            }
        }
    }

    /// The target of a request that is in flight.
    pub(crate) fn target(&self, ticket: Ticket) -> Option<&Target> {
        self.entry(ticket)?.target.as_ref()
    }
}

impl Entry {
    /// The part's refusal, with its position counted over the whole batch.
    fn refusal(&self, part: u8, c: &Completion) -> Refusal {
        let mut refusal = Refusal {
            status: c.status,
            feature: c.feature,
            index: c.index,
        };
        if c.index == NOWHERE || c.feature == NOWHERE {
            return refusal;
        }
        let before = match c.status {
            Status::IdOutOfRange | Status::IdNegative => {
                let features = self.ids_before.len() / self.parts.len().max(1);
                let at = usize::from(part) * features + c.feature as usize;
                let known = (c.feature as usize) < features;
                if known { self.ids_before[at] } else { 0 }
            }
            _ => self.parts[usize::from(part)].first_bag,
        };
        refusal.index = c.index.saturating_add(before);
        refusal
    }
}

/// Status records that a part causes when all goes well.
fn slices(bags: u32, slice_bags: u32) -> u32 {
    if slice_bags == 0 {
        1
    } else {
        bags.div_ceil(slice_bags).max(1)
    }
}
