//! How requests end: counted, announced, and their slots free again.

use rowmill_wire::request::Header;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Op, Refusal, Status};

use crate::batch::Made;
use crate::engine::{Engine, bound};
use crate::memory::{Conn, Memory};
use crate::slot::Slot;

/// What the engine counted since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames received, whatever became of them.
    pub requests: u64,
    /// Requests answered OK, null requests included.
    pub completed: u64,
    /// Requests refused for what they said.
    pub refused: u64,
    /// Requests answered BUSY.
    pub busy: u64,
    /// Requests answered EXPIRED.
    pub expired: u64,
    /// Requests answered CANCELLED.
    pub cancelled: u64,
    /// Requests given up because their region was lost.
    pub region_lost: u64,
    /// Requests given up because a row of a cached table could not be fetched.
    pub row_unavailable: u64,
    /// Requests dropped because their connection ended before they did. With the outcomes above, and those in progress, they are all.
    pub gone: u64,
    /// Bags pooled in completed requests.
    pub bags: u64,
    /// Rows read.
    pub rows: u64,
    /// Bytes of rows read and results written.
    pub bytes: u64,
    /// Micro-batches.
    pub micro_batches: u64,
}

impl Engine {
    pub(crate) fn announce(
        &mut self,
        now_ns: u64,
        index: u32,
        made: &Made,
        memory: &mut impl Memory,
    ) {
        if made.finished {
            let header = &self.slots[index as usize].header;
            if header.op == Op::Lookup {
                self.counters.bags += u64::from(header.bags);
            }
            self.finish(now_ns, index, Refusal::whole(Status::Ok), memory);
        } else if let Some(slice) = made.slice {
            let slot = &self.slots[index as usize];
            let record = Completion {
                kind: CompletionKind::Slice,
                credits: 0,
                slice: slice as u16,
                ..self.record(slot.port_slot, &slot.header, self.version_of(slot))
            };
            let (conn, service_ns) = (slot.conn, now_ns.saturating_sub(slot.received_ns));
            self.done.push_back((
                conn,
                Completion {
                    service_ns,
                    ..record
                },
            ));
        }
    }

    /// Ends a request in progress and frees its slot.
    pub(crate) fn finish(
        &mut self,
        now_ns: u64,
        index: u32,
        outcome: Refusal,
        memory: &mut impl Memory,
    ) {
        let slot = &self.slots[index as usize];
        let (conn, port_slot, header) = (slot.conn, slot.port_slot, slot.header);
        let version = self.version_of(slot);
        let service_ns = now_ns.saturating_sub(slot.received_ns);
        self.count(outcome.status);
        self.answer(conn, port_slot, &header, version, outcome, service_ns);
        self.release(index, memory);
    }

    pub(crate) fn answer(
        &mut self,
        conn: Conn,
        port_slot: u16,
        header: &Header,
        version: (u64, u64),
        outcome: Refusal,
        service_ns: u64,
    ) {
        let record = Completion {
            status: outcome.status,
            feature: outcome.feature,
            index: outcome.index,
            service_ns,
            ..self.record(port_slot, header, version)
        };
        self.done.push_back((conn, record));
    }

    /// The generation that a request's rows are of, and the last delta of which all rows were served when it came.
    fn version_of(&self, slot: &Slot) -> (u64, u64) {
        (bound(&self.connections, slot).generation(), slot.delta)
    }

    /// A final record of a request that went well.
    fn record(
        &self,
        port_slot: u16,
        header: &Header,
        (generation, delta): (u64, u64),
    ) -> Completion {
        Completion {
            kind: CompletionKind::Final,
            part: header.part,
            status: Status::Ok,
            slot: port_slot,
            slice: (header.slices() - 1) as u16,
            request: header.request,
            generation,
            delta,
            attempt: header.attempt,
            credits: 1,
            feature: NOWHERE,
            index: NOWHERE,
            service_ns: 0,
            newest: self.generations.newest(),
        }
    }

    pub(crate) fn count(&mut self, status: Status) {
        let c = &mut self.counters;
        *match status {
            Status::Ok => &mut c.completed,
            Status::Busy => &mut c.busy,
            Status::Expired => &mut c.expired,
            Status::Cancelled => &mut c.cancelled,
            Status::RegionLost => &mut c.region_lost,
            Status::RowUnavailable => &mut c.row_unavailable,
            _ => &mut c.refused,
        } += 1;
    }
}
