//! The ledger: who owns which bytes when, and what every record has to say. It reads the port's log
//! after each step and knows nothing of the engine's insides.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use rowmill_port::sim::{Entry, SimNet, What};
use rowmill_port::{ConnId, RegionId};
use rowmill_wire::{Completion, CompletionKind, Status};

use super::books::{Announced, Guarded, Holder, LaneBook, landed, submitted};
use super::flight::Flight;
use super::records::{Circumstances, Tally, check_final, check_slice};
use super::service::Schemas;
use super::watched::Watch;

/// The first thing that was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// A connection of its own: numbers are given again, passes are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The connection's number.
    pub conn: ConnId,
    serial: u64,
}

/// The ledger of a run.
pub struct Ledger {
    net: SimNet,
    schemas: Schemas,
    slots: usize,
    far: bool,
    /// Of each table, whether it is cached.
    cached: Vec<bool>,
    watch: Arc<Watch>,
    holders: BTreeMap<ConnId, Holder>,
    /// Connections so far.
    serial: u64,
    /// Flights that ended in this step, whose target may have been written in it.
    ended: Vec<(ConnId, Rc<Flight>)>,
    granted: Vec<(ConnId, RegionId)>,
    /// Bytes worked on, of each lane.
    lane_bytes: Vec<u64>,
    quantum_max: u64,
    /// Rows of cached tables that have failed or were given up so far, as the lanes' engines count them.
    pub rows_failed: u64,
    /// Of each table, whether some of its rows were given up before they were asked for.
    pub(super) given_up: Vec<bool>,
    /// Whether the process was killed: then a client may find that it is not known any more before it has heard from it.
    pub was_killed: bool,
    /// What was counted.
    pub tally: Tally,
}

impl Ledger {
    /// An empty ledger for engines of `slots` slots, whose workers may be far from the memory of clients, and tables of which some
    /// may be cached.
    pub(super) fn new(
        net: SimNet,
        schemas: Schemas,
        lanes: u16,
        slots: usize,
        far: bool,
        (cached, watch): (Vec<bool>, Arc<Watch>),
    ) -> Ledger {
        Ledger {
            net,
            schemas,
            slots,
            far,
            given_up: vec![false; cached.len()],
            cached,
            watch,
            holders: BTreeMap::new(),
            serial: 0,
            ended: Vec::new(),
            granted: Vec::new(),
            lane_bytes: vec![0; lanes.into()],
            quantum_max: 0,
            rows_failed: 0,
            was_killed: false,
            tally: Tally::default(),
        }
    }

    /// A client has connected. More is promised to a well-behaved one, and more expected of it.
    pub fn admit(&mut self, conn: ConnId, honest: bool) -> Pass {
        let mut serial = 0;
        match self.holders.get_mut(&conn) {
            Some(holder) => {
                holder.honest = honest;
                serial = holder.serial;
            }
            None => assert!(self.was_killed, "connected a moment ago"),
        }
        Pass { conn, serial }
    }

    /// Whether the dataplane or the test has ended the connection.
    pub fn is_cut(&self, pass: Pass) -> bool {
        self.holders
            .get(&pass.conn)
            .is_none_or(|h| h.cut || h.serial != pass.serial)
    }

    /// Whether the dataplane still knows the connection, cut or not.
    pub fn knows(&self, pass: Pass) -> bool {
        self.holders
            .get(&pass.conn)
            .is_some_and(|h| h.serial == pass.serial)
    }

    /// The region that a connection registered last under the highest number.
    pub fn last_region(&self, pass: Pass) -> Option<RegionId> {
        self.holders
            .get(&pass.conn)?
            .regions
            .keys()
            .next_back()
            .copied()
    }

    /// Whether no connection is left.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Requests that no final record has been announced for, as sentences.
    pub fn open_requests(&self) -> Vec<String> {
        let mut open = Vec::new();
        for (conn, holder) in &self.holders {
            for (lane, book) in holder.lanes.iter().enumerate() {
                for (slot, flight) in &book.flights {
                    open.push(format!(
                        "conn {} lane {lane} slot {slot}: request {:#x} part {} since {} ns",
                        conn.0, flight.address.0, flight.address.2, flight.received_ns
                    ));
                }
            }
        }
        open
    }

    /// Books what happened outside of workers' steps. What the client that acted wrote is its own.
    ///
    /// # Errors
    /// The first violation.
    pub fn after_client(
        &mut self,
        acting: Option<ConnId>,
        entries: &[Entry],
    ) -> Result<(), Violation> {
        self.book(entries, None)?;
        if let Some(holder) = acting.and_then(|conn| self.holders.get_mut(&conn)) {
            for guarded in holder.regions.values_mut() {
                guarded.memory.window().read(0, &mut guarded.shadow);
            }
        }
        Ok(())
    }

    /// Compares all regions of a connection with what they have to be.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_untouched(&self, conn: ConnId) -> Result<(), Violation> {
        let Some(holder) = self.holders.get(&conn) else {
            return Ok(());
        };
        holder
            .regions
            .iter()
            .try_for_each(|(region, guarded)| guarded.check(conn, *region))
    }

    /// Compares all regions of all connections.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_all(&self) -> Result<(), Violation> {
        self.holders
            .keys()
            .try_for_each(|conn| self.check_untouched(*conn))
    }

    /// Books a worker's step and checks what it did. `bytes` is what the engine worked on, `quantum`
    /// its micro-batch, `now_ns` when the step began.
    ///
    /// # Errors
    /// The first violation.
    pub fn after_step(
        &mut self,
        lane: u16,
        now_ns: u64,
        bytes: u64,
        quantum: u64,
        entries: &[Entry],
    ) -> Result<(), Violation> {
        self.quantum_max = self.quantum_max.max(quantum);
        self.lane_bytes[usize::from(lane)] += bytes;
        self.book(entries, Some(lane))?;
        self.check_writes(lane)?;
        self.check_deadlines(lane, now_ns)?;
        self.ended.clear();
        self.granted.clear();
        Ok(())
    }

    fn book(&mut self, entries: &[Entry], lane: Option<u16>) -> Result<(), Violation> {
        for entry in entries {
            let outcome = self.enter(entry, lane);
            outcome.map_err(|text| {
                Violation(format!(
                    "at {} ns, conn {}: {text}",
                    entry.at_ns, entry.conn.0
                ))
            })?;
        }
        Ok(())
    }

    fn enter(&mut self, entry: &Entry, stepping: Option<u16>) -> Result<(), String> {
        let conn = entry.conn;
        if let What::Connected = entry.what {
            self.serial += 1;
            let lanes = (0..self.lane_bytes.len())
                .map(|_| LaneBook::default())
                .collect();
            let holder = Holder {
                serial: self.serial,
                honest: false,
                cut: false,
                fenced: false,
                regions: BTreeMap::new(),
                lanes,
            };
            let before = self.holders.insert(conn, holder);
            return if before.is_some() {
                Err("its number was given while another held it".into())
            } else {
                Ok(())
            };
        }
        if let What::Gone = entry.what {
            self.holders.remove(&conn);
            return Ok(());
        }
        let Some(holder) = self.holders.get_mut(&conn) else {
            return Err(format!("{:?} of a connection that is gone", entry.what));
        };
        match &entry.what {
            What::Cut => {
                holder.cut = true;
                self.tally.ended += 1;
            }
            What::Silent { .. } => self.tally.silences += 1,
            What::Fenced => holder.fenced = true,
            What::Unregistered { region } => {
                holder.regions.remove(region);
            }
            What::Landed {
                lane,
                region,
                offset,
                len,
            } => {
                self.tally.placed += 1;
                self.tally.placed_late += u64::from(holder.cut);
                return landed(holder, *lane, *region, *offset..offset + len);
            }
            What::Released { lane } => holder.lanes[usize::from(*lane)].released = true,
            What::Closed { why } => {
                self.tally.closed += 1;
                if holder.honest {
                    return Err(format!("a well-behaved client was cut off: {}", why.name()));
                }
            }
            What::Registered { region, .. } => {
                if let Some(memory) = self.net.memory(conn, *region) {
                    let shadow = memory.bytes(0, memory.len());
                    holder.regions.insert(*region, Guarded { memory, shadow });
                }
            }
            What::Scribbled { region } => {
                if let Some(guarded) = holder.regions.get_mut(region) {
                    guarded.memory.window().read(0, &mut guarded.shadow);
                }
            }
            What::RegionReleased { lane, region } => {
                let of_region = |f: &Flight| f.target() == Some(*region);
                if holder.lanes[usize::from(*lane)]
                    .flights
                    .values()
                    .any(of_region)
                {
                    return Err(format!(
                        "region {} was given up by lane {lane} with a request in progress",
                        region.0
                    ));
                }
            }
            What::Detached { lane } => {
                let book = &mut holder.lanes[usize::from(*lane)];
                let ended = std::mem::take(&mut book.flights).into_iter();
                book.unread
                    .extend(ended.map(|(slot, f)| (slot, Rc::new(f))));
                book.detached = true;
            }
            What::Submitted { lane, bits } => submitted(holder, *lane, *bits)?,
            What::CancelDelivered { lane, slot } => {
                if let Some(flight) = holder.lanes[usize::from(*lane)].flights.get_mut(slot) {
                    flight.cancelled = true;
                }
            }
            What::Delivered { lane, slot, frame } => {
                return self.delivered(entry, *lane, *slot, frame);
            }
            What::Read {
                lane,
                region,
                offset,
                bytes,
            } => {
                if stepping != Some(*lane) {
                    return Err("a read outside of the lane's step".into());
                }
                for flight in holder.lanes[usize::from(*lane)].flights.values_mut() {
                    flight.read(*region, *offset, bytes);
                }
            }
            What::Granted {
                lane,
                region,
                offset,
                len,
            } => return self.grant(conn, *lane, *region, *offset..offset + len),
            What::Announced { lane, record } => return self.announced(entry, *lane, record),
            What::Received { lane, record } => {
                let book = &mut holder.lanes[usize::from(*lane)];
                if book.announced.pop_front().map(|a| a.record) != Some(*record) {
                    return Err("the client received a record out of order".into());
                }
                if record.kind == CompletionKind::Final {
                    book.in_use.remove(&record.slot);
                    let read = book
                        .unread
                        .iter()
                        .position(|(slot, _)| *slot == record.slot);
                    read.map(|at| book.unread.remove(at));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn delivered(
        &mut self,
        entry: &Entry,
        lane: u16,
        slot: u16,
        frame: &[u8],
    ) -> Result<(), String> {
        self.tally.frames += 1;
        let schemas = &self.schemas;
        let mut flight = Flight::new(entry.at_ns, frame, |number| {
            schemas.find(entry.conn, number)
        });
        flight.lane_bytes = self.lane_bytes[usize::from(lane)];
        flight.rows_failed = self.rows_failed;
        flight.stands = self.schemas.stands();
        let holder = self.holders.get_mut(&entry.conn).expect("looked up before");
        if holder.lanes[usize::from(lane)].flights.contains_key(&slot) {
            // The engine can't answer: it cuts the client off, and the request before goes on until then.
            return if holder.honest {
                Err(format!("slot {slot} is in use"))
            } else {
                Ok(())
            };
        }
        if !holder.honest
            && let Some(region) = flight.target()
        {
            // A hostile client's requests may get in one another's way; an honest one's never do.
            let hull = flight.hull();
            for other in holder.lanes.iter_mut().flat_map(|l| l.flights.values_mut()) {
                let theirs = other.hull();
                if other.target() == Some(region)
                    && theirs.start < hull.end
                    && hull.start < theirs.end
                {
                    other.entangled = true;
                    flight.entangled = true;
                }
            }
        }
        let book = &mut holder.lanes[usize::from(lane)];
        flight.alone = book.flights.is_empty();
        book.flights.insert(slot, flight);
        Ok(())
    }

    fn grant(
        &mut self,
        conn: ConnId,
        lane: u16,
        region: RegionId,
        range: Range<u64>,
    ) -> Result<(), String> {
        let book = &self.holders[&conn].lanes[usize::from(lane)];
        if book.detached {
            return Err(format!("a grant to lane {lane} after the connection's end"));
        }
        if range.is_empty() {
            // What a request without a vector asks for.
            return Ok(());
        }
        let covers = |f: &Flight| {
            let hull = f.hull();
            f.target() == Some(region) && hull.start <= range.start && range.end <= hull.end
        };
        if !book.flights.values().any(covers) {
            return Err(format!(
                "lane {lane} was granted {range:?} of region {}, which no request in progress owns",
                region.0
            ));
        }
        self.granted.push((conn, region));
        Ok(())
    }

    fn announced(&mut self, entry: &Entry, lane: u16, record: &Completion) -> Result<(), String> {
        let at = usize::from(lane);
        let in_progress = self
            .holders
            .values()
            .map(|h| h.lanes[at].flights.len())
            .sum();
        let connections = self.holders.len() as u64;
        let holder = self.holders.get_mut(&entry.conn).expect("looked up before");
        let book = &mut holder.lanes[at];
        let Some(flight) = book.flights.get_mut(&record.slot) else {
            return Err(format!(
                "a record where no request is in progress: {record:?}"
            ));
        };
        flight.addressed_by(record)?;
        let (regions, target, vectors) =
            (&holder.regions, flight.target(), &mut self.tally.vectors);
        let (far, net, honest) = (self.far, &self.net, holder.honest);
        let posted = target.and_then(|region| net.posted(entry.conn, region));
        let mut places = Vec::new();
        let stored = |place: Range<u64>| {
            *vectors += 1;
            let region = target?;
            let memory = &regions.get(&region)?.memory;
            if place.end > memory.len() as u64 {
                return None;
            }
            let (start, end) = (place.start as usize, place.end as usize);
            // Where workers are far, what is announced may be under way.
            let bytes = posted.as_ref().unwrap_or(memory).bytes(start, end - start);
            if far && honest {
                places.push((region, place, bytes.clone()));
            }
            Some(bytes)
        };
        if record.kind == CompletionKind::Slice {
            check_slice(flight, record, stored)?;
            let record = *record;
            book.announced.push_back(Announced { record, places });
            return Ok(());
        }
        let has_failed = |(table, row): &(usize, u32)| {
            self.given_up[*table] || self.watch.has_failed((*table, *row))
        };
        let refused = match record.status {
            Status::RowUnavailable if !flight.entangled => {
                flight.rows_at(record.feature, record.index)
            }
            _ => None,
        };
        let circumstances = Circumstances {
            at_ns: entry.at_ns,
            honest: holder.honest,
            in_progress,
            slots: self.slots,
            worked: self.lane_bytes[at] - flight.lane_bytes,
            rows_failed: self.rows_failed - flight.rows_failed,
            has_failed: match refused {
                Some(rows) => rows.iter().any(has_failed),
                // What is refused of a hostile client can't be told.
                None => flight.entangled,
            },
            // Each other connection's round is a quantum, and as much again for what was left of the
            // one before and for the bag with which it ends.
            wait_most: match self.far || flight.reads_any(&self.cached) {
                // It waits for room and messages, or for rows, whose time no work of the lane measures.
                true => u64::MAX / 2,
                false => (connections + 1) * 2 * self.quantum_max,
            },
        };
        let newer = check_final(flight, record, circumstances, stored)?;
        self.tally.newer += newer;
        let flight = book.flights.remove(&record.slot).expect("found above");
        self.tally.count(&flight, record.status);
        let (flight, record) = (Rc::new(flight), *record);
        if far {
            book.unread.push((record.slot, Rc::clone(&flight)));
        }
        book.announced.push_back(Announced { record, places });
        self.ended.push((entry.conn, flight));
        Ok(())
    }

    /// A client that looks now finds what the records that it can take announce.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_arrived(&self, conn: ConnId) -> Result<(), Violation> {
        let Some(holder) = self.holders.get(&conn).filter(|h| !h.cut) else {
            return Ok(());
        };
        for (lane, book) in (0..).zip(&holder.lanes) {
            let ready = self.net.records_ready(conn, lane);
            for (region, place, bytes) in book.announced.iter().take(ready).flat_map(|a| &a.places)
            {
                let memory = holder.regions.get(region).map(|guarded| &guarded.memory);
                let found = memory.map(|m| m.bytes(place.start as usize, bytes.len()));
                if found.is_some_and(|found| found != *bytes) {
                    return Err(Violation(format!(
                        "conn {} lane {lane}: a record has arrived before the bytes {place:?} of region {} that it announces",
                        conn.0, region.0
                    )));
                }
            }
        }
        Ok(())
    }

    /// Whether the client holds no slot any more.
    pub fn has_all_credits(&self, pass: Pass) -> bool {
        let holder = self.holders.get(&pass.conn);
        let holder = holder.filter(|h| h.serial == pass.serial && !h.cut);
        holder.is_none_or(|h| h.lanes.iter().all(|book| book.in_use.is_empty()))
    }

    /// In the regions that were granted in this step nothing has changed but the vectors of requests
    /// in progress on this lane. The other regions are compared before their clients act.
    fn check_writes(&mut self, lane: u16) -> Result<(), Violation> {
        self.granted.sort_unstable();
        self.granted.dedup();
        for (conn, region) in &self.granted {
            let Some(holder) = self.holders.get_mut(conn) else {
                continue;
            };
            let Some(guarded) = holder.regions.get_mut(region) else {
                continue;
            };
            let ended = self
                .ended
                .iter()
                .filter(|(c, _)| c == conn)
                .map(|(_, flight)| &**flight);
            let flights = holder.lanes[usize::from(lane)]
                .flights
                .values()
                .chain(ended);
            for place in flights
                .filter(|f| f.target() == Some(*region))
                .flat_map(|f| f.owned(0..u32::MAX))
            {
                if place.start <= place.end && place.end <= guarded.shadow.len() as u64 {
                    let place = place.start as usize..place.end as usize;
                    let window = guarded.memory.window();
                    window.read(place.start, &mut guarded.shadow[place]);
                }
            }
            guarded.check(*conn, *region)?;
        }
        Ok(())
    }

    /// A worker that has stepped has ended everything whose time was over.
    fn check_deadlines(&self, lane: u16, now_ns: u64) -> Result<(), Violation> {
        for (conn, holder) in &self.holders {
            let late = |(_, f): &(&u16, &Flight)| {
                f.deadline_ns().is_some_and(|deadline| deadline <= now_ns)
            };
            if let Some((slot, flight)) = holder.lanes[usize::from(lane)].flights.iter().find(late)
            {
                return Err(Violation(format!(
                    "conn {} lane {lane} slot {slot}: received at {} ns, still in progress at {now_ns} ns, after its deadline at {:?}",
                    conn.0,
                    flight.received_ns,
                    flight.deadline_ns()
                )));
            }
        }
        Ok(())
    }
}
