//! Making a client's lane: the queue pair, the request slots, and what the worker will need for it.

use std::sync::Arc;

use rowmill_verbs::{
    Access, Capacity, CompletionQueueHandle, Connection, Error, HostMemory, Pages, Parameters,
    ProtectionDomain, QueuePair, Registered, ReplyData, Request, Slab,
};
use rowmill_wire::completion::COMPLETION_BYTES;

use super::bounds::{completions_for, outbox, slots_bytes, worker_receives, worker_sends};
use super::inbox::LaneShared;
use super::life::Life;
use super::scatter::PIECES;
use super::seat::{Equipment, Seat};
use crate::ConnId;

/// What the control thread has of a lane.
pub(super) struct LaneParts {
    pub(super) shared: Arc<LaneShared>,
    pub(super) life: Arc<Life>,
    pub(super) completions: CompletionQueueHandle,
    pub(super) slab: Slab,
}

/// Accepts a request for a lane: receives are posted before the client can send anything.
pub(super) fn accept_lane(
    mut request: Request,
    parts: &LaneParts,
    domain: &ProtectionDomain,
    conn: ConnId,
    credits: u16,
    inline: u32,
    parameters: &Parameters,
) -> Result<(Box<Seat>, Connection), Error> {
    let limits = domain.context().limits();
    let receives = worker_receives(credits);
    let capacity = Capacity {
        sends: worker_sends(credits),
        receives,
        pieces: limits.pieces.clamp(1, PIECES as u32),
        inline_bytes: inline,
    };
    let number = u16::try_from(conn.0).expect("connections are numbered in 16 bits");
    let queue = &parts.completions;
    let mut qp = QueuePair::new(domain, queue, queue, capacity, number)?;
    let key = qp.hold(&parts.slab.register(domain)?);
    let record_blocks = if qp.inline_bytes() < COMPLETION_BYTES {
        let bytes = worker_sends(credits) as usize * COMPLETION_BYTES;
        let slab = Slab::new(HostMemory::new(bytes, Pages::Small)?, COMPLETION_BYTES);
        let key = qp.hold(&slab.register(domain)?);
        Some((slab, key))
    } else {
        None
    };
    let memory = HostMemory::new(slots_bytes(credits), Pages::Small)?;
    let slots =
        Registered::new(domain, memory, Access::REMOTE_WRITE).map_err(|(error, _)| error)?;
    request.initialise(&mut qp, parameters)?;
    qp.receive_empty(receives)?;
    let connection = request.accept(&mut qp, parameters, &ReplyData::none())?;
    let seat = Seat::new(Equipment {
        qp,
        key,
        slots,
        credits,
        records: completions_for(credits),
        outbox: outbox(credits, parts.slab.blocks() as u32),
        receives,
        record_blocks,
    });
    Ok((Box::new(seat), connection))
}
