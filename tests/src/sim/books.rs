//! What the ledger keeps of a connection: its regions, and what is in progress, announced or under way on each lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use rowmill_port::sim::SimMemory;
use rowmill_port::{ConnId, RegionId};
use rowmill_wire::{Completion, Immediate};

use super::flight::Flight;
use super::ledger::Violation;

/// A region's memory, and what it has to look like.
pub(super) struct Guarded {
    pub(super) memory: Rc<SimMemory>,
    pub(super) shadow: Vec<u8>,
}

impl Guarded {
    /// Whether nothing has changed but what was booked.
    pub(super) fn check(&self, conn: ConnId, region: RegionId) -> Result<(), Violation> {
        let now = self.memory.bytes(0, self.memory.len());
        if now == self.shadow {
            return Ok(());
        }
        let at = now
            .iter()
            .zip(&self.shadow)
            .position(|(now, shadow)| now != shadow);
        let at = at.expect("the bytes differ");
        Err(Violation(format!(
            "byte {at} of region {} of conn {} was written, though the dataplane does not own it",
            region.0, conn.0
        )))
    }
}

/// Bytes of a region that are announced.
pub(super) type Place = (RegionId, Range<u64>, Vec<u8>);

/// A record that the client has not taken, and the bytes that it finds then.
pub(super) struct Announced {
    pub(super) record: Completion,
    pub(super) places: Vec<Place>,
}

/// One connection on one lane.
#[derive(Default)]
pub(super) struct LaneBook {
    pub(super) flights: BTreeMap<u16, Flight>,
    /// Slots from submission until the client has the final record.
    pub(super) in_use: BTreeSet<u16>,
    pub(super) announced: VecDeque<Announced>,
    /// Where workers are far: requests whose results may still be under way, though their final record was announced or
    /// their connection has ended.
    pub(super) unread: Vec<(u16, Rc<Flight>)>,
    pub(super) detached: bool,
    pub(super) released: bool,
}

/// A connection, as the ledger knows it.
pub(super) struct Holder {
    pub(super) serial: u64,
    pub(super) honest: bool,
    pub(super) cut: bool,
    pub(super) fenced: bool,
    pub(super) regions: BTreeMap<RegionId, Guarded>,
    pub(super) lanes: Vec<LaneBook>,
}

/// Bytes that were under way reached a region: they are those of a request that the client has no final record of, and the
/// client has not fenced them off.
pub(super) fn landed(
    holder: &mut Holder,
    lane: u16,
    region: RegionId,
    place: Range<u64>,
) -> Result<(), String> {
    let what = format!(
        "lane {lane}: bytes {place:?} of region {} were placed",
        region.0
    );
    let book = &holder.lanes[usize::from(lane)];
    if holder.fenced {
        return Err(format!(
            "{what} after the client had destroyed its queue pairs"
        ));
    }
    if book.released {
        return Err(format!(
            "{what} after the lane had let go of the connection"
        ));
    }
    let Some(guarded) = holder.regions.get_mut(&region) else {
        return Err(format!("{what} after it was given up"));
    };
    let unread = book.unread.iter().map(|(_, flight)| &**flight);
    let owns = |f: &Flight| {
        let hull = f.hull();
        f.target() == Some(region) && hull.start <= place.start && place.end <= hull.end
    };
    if !book.flights.values().chain(unread).any(owns) {
        return Err(format!(
            "{what}, which no request owns whose final record the client lacks"
        ));
    }
    let (start, end) = (place.start as usize, place.end as usize);
    guarded
        .memory
        .window()
        .read(start, &mut guarded.shadow[start..end]);
    Ok(())
}

/// A client uses a slot: an honest one only while no request of its holds it.
pub(super) fn submitted(holder: &mut Holder, lane: u16, bits: u32) -> Result<(), String> {
    let Some(Immediate::Request { slot, .. }) = Immediate::decode(bits) else {
        return Ok(());
    };
    let free = holder.lanes[usize::from(lane)].in_use.insert(slot);
    match free || !holder.honest {
        true => Ok(()),
        false => Err(format!(
            "slot {slot} of lane {lane} was used again before its end"
        )),
    }
}
