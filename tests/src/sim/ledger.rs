//! The ledger: who owns which bytes when, and what every record has to say. It reads the port's log
//! after each step and knows nothing of the engine's insides.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use rowmill_port::sim::{Entry, SimMemory, SimNet, What};
use rowmill_port::{ConnId, RegionId};
use rowmill_wire::{Completion, CompletionKind, Immediate, Op, Status};

use super::flight::Flight;
use super::service::Schemas;

/// The first thing that was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Violation(pub String);

/// A region's memory, and what it has to look like.
struct Guarded {
    memory: Rc<SimMemory>,
    shadow: Vec<u8>,
}

impl Guarded {
    fn check(&self, conn: ConnId, region: RegionId) -> Result<(), Violation> {
        let now = self.memory.bytes(0, self.memory.len());
        if now == self.shadow {
            return Ok(());
        }
        let at = now.iter().zip(&self.shadow).position(|(now, shadow)| now != shadow);
        let at = at.expect("the bytes differ");
        Err(Violation(format!("byte {at} of region {} of conn {} was written, though the dataplane does not own it", region.0, conn.0)))
    }
}

/// One connection on one lane.
#[derive(Default)]
struct LaneBook {
    flights: BTreeMap<u16, Flight>,
    /// Slots from submission until the client has the final record.
    in_use: BTreeMap<u16, ()>,
    announced: VecDeque<Completion>,
    released: bool,
}

struct Holder {
    honest: bool,
    cut: bool,
    regions: BTreeMap<RegionId, Guarded>,
    lanes: Vec<LaneBook>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames that workers took.
    pub frames: u64,
    /// Parts answered OK, each compared with the reference.
    pub answered: u64,
    /// Vectors compared.
    pub vectors: u64,
    /// Parts answered BUSY.
    pub busy: u64,
    /// Parts answered EXPIRED.
    pub expired: u64,
    /// Parts answered CANCELLED.
    pub cancelled: u64,
    /// Parts ended because a region was lost or given up.
    pub region_gone: u64,
    /// Parts refused for what they said.
    pub refused: u64,
    /// Connections cut off by the dataplane.
    pub closed: u64,
}

/// The ledger of a run.
pub struct Ledger {
    net: SimNet,
    schemas: Schemas,
    slots: usize,
    holders: BTreeMap<ConnId, Holder>,
    /// Flights that ended in this step, whose target may have been written in it.
    ended: Vec<(ConnId, Flight)>,
    granted: Vec<(ConnId, RegionId)>,
    /// Bytes worked on, of each lane.
    lane_bytes: Vec<u64>,
    quantum_max: u64,
    /// What was counted.
    pub tally: Tally,
}

impl Ledger {
    /// An empty ledger for engines of `slots` slots.
    pub fn new(net: SimNet, schemas: Schemas, lanes: u16, slots: usize) -> Ledger {
        Ledger {
            net,
            schemas,
            slots,
            holders: BTreeMap::new(),
            ended: Vec::new(),
            granted: Vec::new(),
            lane_bytes: vec![0; lanes.into()],
            quantum_max: 0,
            tally: Tally::default(),
        }
    }

    /// A connection is a well-behaved client's: more is promised to it, and more expected of it.
    pub fn is_honest(&mut self, conn: ConnId) {
        if let Some(holder) = self.holders.get_mut(&conn) {
            holder.honest = true;
        }
    }

    /// Whether the dataplane or the test has ended the connection.
    pub fn is_cut(&self, conn: ConnId) -> bool {
        self.holders.get(&conn).is_none_or(|h| h.cut)
    }

    /// The region that a connection registered last under the highest number.
    pub fn last_region(&self, conn: ConnId) -> Option<RegionId> {
        self.holders.get(&conn)?.regions.keys().next_back().copied()
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
    pub fn after_client(&mut self, acting: Option<ConnId>, entries: &[Entry]) -> Result<(), Violation> {
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
        let Some(holder) = self.holders.get(&conn) else { return Ok(()) };
        holder.regions.iter().try_for_each(|(region, guarded)| guarded.check(conn, *region))
    }

    /// Compares all regions of all connections.
    ///
    /// # Errors
    /// The first violation.
    pub fn check_all(&self) -> Result<(), Violation> {
        self.holders.keys().try_for_each(|conn| self.check_untouched(*conn))
    }

    /// Books a worker's step and checks what it did. `bytes` is what the engine worked on, `quantum`
    /// its micro-batch, `now_ns` when the step began.
    ///
    /// # Errors
    /// The first violation.
    pub fn after_step(&mut self, lane: u16, now_ns: u64, bytes: u64, quantum: u64, entries: &[Entry]) -> Result<(), Violation> {
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
            outcome.map_err(|text| Violation(format!("at {} ns, conn {}: {text}", entry.at_ns, entry.conn.0)))?;
        }
        Ok(())
    }

    fn enter(&mut self, entry: &Entry, stepping: Option<u16>) -> Result<(), String> {
        let conn = entry.conn;
        if let What::Connected = entry.what {
            let lanes = (0..self.lane_bytes.len()).map(|_| LaneBook::default()).collect();
            let holder = Holder { honest: false, cut: false, regions: BTreeMap::new(), lanes };
            let before = self.holders.insert(conn, holder);
            return if before.is_some() { Err("its number was given while another held it".into()) } else { Ok(()) };
        }
        if let What::Gone = entry.what {
            self.holders.remove(&conn);
            return Ok(());
        }
        let Some(holder) = self.holders.get_mut(&conn) else {
            return Err(format!("{:?} of a connection that is gone", entry.what));
        };
        match &entry.what {
            What::Cut => holder.cut = true,
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
                if holder.lanes[usize::from(*lane)].flights.values().any(of_region) {
                    return Err(format!("region {} was given up by lane {lane} with a request in progress", region.0));
                }
            }
            What::Released { lane } => {
                let book = &mut holder.lanes[usize::from(*lane)];
                book.flights.clear();
                book.released = true;
            }
            What::Submitted { lane, bits } => submitted(holder, *lane, *bits)?,
            What::CancelDelivered { lane, slot } => {
                if let Some(flight) = holder.lanes[usize::from(*lane)].flights.get_mut(slot) {
                    flight.cancelled = true;
                }
            }
            What::Delivered { lane, slot, frame } => return self.delivered(entry, *lane, *slot, frame),
            What::Read { lane, region, offset, bytes } => {
                if stepping != Some(*lane) {
                    return Err("a read outside of the lane's step".into());
                }
                for flight in holder.lanes[usize::from(*lane)].flights.values_mut() {
                    flight.read(*region, *offset, bytes);
                }
            }
            What::Granted { lane, region, offset, len } => return self.grant(conn, *lane, *region, *offset..offset + len),
            What::Announced { lane, record } => return self.announced(entry, *lane, record),
            What::Received { lane, record } => {
                let book = &mut holder.lanes[usize::from(*lane)];
                if book.announced.pop_front() != Some(*record) {
                    return Err("the client received a record out of order".into());
                }
                if record.kind == CompletionKind::Final {
                    book.in_use.remove(&record.slot);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn delivered(&mut self, entry: &Entry, lane: u16, slot: u16, frame: &[u8]) -> Result<(), String> {
        self.tally.frames += 1;
        let schemas = &self.schemas;
        let mut flight = Flight::new(entry.at_ns, frame, |number| schemas.find(entry.conn, number));
        flight.lane_bytes = self.lane_bytes[usize::from(lane)];
        let holder = self.holders.get_mut(&entry.conn).expect("looked up before");
        if holder.lanes[usize::from(lane)].flights.contains_key(&slot) {
            // The engine can't answer: it cuts the client off, and the request before goes on until then.
            return if holder.honest { Err(format!("slot {slot} is in use")) } else { Ok(()) };
        }
        if !holder.honest && let Some(region) = flight.target() {
            // A hostile client's requests may get in one another's way; an honest one's never do.
            let hull = flight.hull();
            for other in holder.lanes.iter_mut().flat_map(|l| l.flights.values_mut()) {
                let theirs = other.hull();
                if other.target() == Some(region) && theirs.start < hull.end && hull.start < theirs.end {
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

    fn grant(&mut self, conn: ConnId, lane: u16, region: RegionId, range: Range<u64>) -> Result<(), String> {
        let book = &self.holders[&conn].lanes[usize::from(lane)];
        if book.released {
            return Err(format!("a grant to lane {lane} after it released the connection"));
        }
        let covers = |f: &Flight| {
            let hull = f.hull();
            f.target() == Some(region) && hull.start <= range.start && range.end <= hull.end
        };
        if !book.flights.values().any(covers) {
            return Err(format!("lane {lane} was granted {range:?} of region {}, which no request in progress owns", region.0));
        }
        self.granted.push((conn, region));
        Ok(())
    }

    fn announced(&mut self, entry: &Entry, lane: u16, record: &Completion) -> Result<(), String> {
        let in_progress: usize = self.holders.values().map(|h| h.lanes[usize::from(lane)].flights.len()).sum();
        let connections = self.holders.len() as u64;
        let holder = self.holders.get_mut(&entry.conn).expect("looked up before");
        let honest = holder.honest;
        let book = &mut holder.lanes[usize::from(lane)];
        book.announced.push_back(*record);
        let Some(flight) = book.flights.get_mut(&record.slot) else {
            return Err(format!("a record for slot {}, where no request is in progress: {record:?}", record.slot));
        };
        flight.addressed_by(record)?;
        let regions = &holder.regions;
        let mut vectors = 0;
        let mut stored = |region: Option<RegionId>, place: Range<u64>| {
            vectors += 1;
            let memory = &regions.get(&region?)?.memory;
            (place.end <= memory.len() as u64).then(|| memory.bytes(place.start as usize, (place.end - place.start) as usize))
        };
        let target = flight.target();
        let header = flight.header;
        let slice_bags = header.map_or(0, |h| h.slice_bags);
        if record.kind == CompletionKind::Slice {
            if slice_bags == 0 || record.status != Status::Ok || record.credits != 0 || u32::from(record.slice) != flight.slices {
                return Err(format!("slice {} is not the one that comes next: {record:?}", flight.slices));
            }
            let first = flight.slices * slice_bags;
            flight.slices += 1;
            flight.check(first..first + slice_bags, |place| stored(target, place))?;
            self.tally.vectors += vectors;
            return Ok(());
        }
        if record.credits != 1 {
            return Err("a final record gives one credit back".into());
        }
        match record.status {
            Status::Ok => {
                let Some(header) = header else { return Err("OK to a frame that cannot be parsed".into()) };
                let before_last = if header.op == Op::Null { 0 } else { header.slices() - 1 };
                if u32::from(record.slice) != before_last || flight.slices != before_last {
                    return Err(format!("OK after {} slices of {}", flight.slices, header.slices()));
                }
                if header.op == Op::Lookup && flight.model.is_none() {
                    return Err("OK to a request whose schema is not bound".into());
                }
                if header.op == Op::Lookup && record.service_ns != entry.at_ns - flight.received_ns {
                    return Err(format!("a service time of {} ns", record.service_ns));
                }
                flight.check(0..u32::MAX, |place| stored(target, place))?;
                if honest && !header.lengths.element.is_offsets() && flight.has_read_twice() {
                    return Err("ids or weights were read twice".into());
                }
                let others = self.lane_bytes[usize::from(lane)] - flight.lane_bytes;
                let bound = (connections + 1) * 2 * self.quantum_max;
                if honest && flight.alone && header.bags == 1 && others > bound {
                    return Err(format!("a single bag waited for {others} bytes of others, more than {bound}"));
                }
                self.tally.answered += 1;
            }
            Status::Busy => {
                if in_progress <= self.slots {
                    return Err(format!("BUSY with {} of {} slots in use", in_progress - 1, self.slots));
                }
                self.tally.busy += 1;
            }
            Status::Expired => {
                if flight.deadline_ns().is_none_or(|deadline| entry.at_ns < deadline) {
                    return Err(format!("EXPIRED before its deadline {:?}", flight.deadline_ns()));
                }
                self.tally.expired += 1;
            }
            Status::Cancelled => {
                if !flight.cancelled {
                    return Err("CANCELLED, but nobody cancelled it".into());
                }
                self.tally.cancelled += 1;
            }
            Status::RegionLost | Status::UnknownRegion => self.tally.region_gone += 1,
            Status::Internal | Status::Unavailable | Status::Draining => return Err(format!("{} is never right here", record.status)),
            _ => self.tally.refused += 1,
        }
        self.tally.vectors += vectors;
        let flight = book.flights.remove(&record.slot).expect("found above");
        self.ended.push((entry.conn, flight));
        Ok(())
    }

    /// In the regions that were granted in this step nothing has changed but the vectors of requests
    /// in progress on this lane. The other regions are compared before their clients act.
    fn check_writes(&mut self, lane: u16) -> Result<(), Violation> {
        self.granted.sort_unstable();
        self.granted.dedup();
        for (conn, region) in &self.granted {
            let Some(holder) = self.holders.get_mut(conn) else { continue };
            let Some(guarded) = holder.regions.get_mut(region) else { continue };
            let ended = self.ended.iter().filter(|(c, _)| c == conn).map(|(_, flight)| flight);
            let flights = holder.lanes[usize::from(lane)].flights.values().chain(ended);
            for place in flights.filter(|f| f.target() == Some(*region)).flat_map(|f| f.owned(0..u32::MAX)) {
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
            let late = |(_, f): &(&u16, &Flight)| f.deadline_ns().is_some_and(|deadline| deadline <= now_ns);
            if let Some((slot, _)) = holder.lanes[usize::from(lane)].flights.iter().find(late) {
                return Err(Violation(format!("conn {} lane {lane} slot {slot}: still in progress after its deadline", conn.0)));
            }
        }
        Ok(())
    }
}

/// A client uses a slot: an honest one only while no request of its holds it.
fn submitted(holder: &mut Holder, lane: u16, bits: u32) -> Result<(), String> {
    let Some(Immediate::Request { slot, .. }) = Immediate::decode(bits) else { return Ok(()) };
    let before = holder.lanes[usize::from(lane)].in_use.insert(slot, ());
    match before {
        Some(()) if holder.honest => Err(format!("slot {slot} of lane {lane} was used again before its end")),
        _ => Ok(()),
    }
}
