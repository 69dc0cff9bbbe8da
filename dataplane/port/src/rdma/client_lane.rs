//! A client's end of a lane: its queue pair, its record ring, its frames.

use std::time::{Duration, Instant};

use rowmill_verbs::{
    Access, Batch, Capacity, CompletionChannel, CompletionQueue, Connection, HostMemory, Kind,
    Local, LocalKey, Operation, Pages, Piece, ProtectionDomain, QueuePair, Registered, Remote,
    Signal, Slab, Status,
};
use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, CompletionKind, Immediate};

use super::bounds::{client_blocks, client_completions, client_sends, completions_for, ring_bytes};
use super::failure::{lost, system};
use super::life::Beat;
use crate::slots::Slots;
use crate::{Lost, PortError};

/// A client's end of a lane.
pub(super) struct ClientLane {
    /// `None` once it is fenced.
    pub(super) qp: Option<QueuePair<()>>,
    pub(super) connection: Option<Connection>,
    key: LocalKey,
    slab: Slab,
    ring: Registered<HostMemory>,
    pub(super) completions: CompletionQueue,
    pub(super) armed: bool,
    /// Where the worker has its request slots.
    slots: Remote,
    credits: u16,
    held: Slots,
    records_mask: u32,
    records_read: u32,
    /// Records that have come and were not read.
    arrived: u32,
    /// Receives that were consumed.
    consumed: u32,
    /// They are not posted again: see [`RdmaClient::raw_withhold_receives`](super::RdmaClient::raw_withhold_receives).
    pub(super) withholds_receives: bool,
    /// Why it can't be used any more.
    pub(super) failed: Option<Lost>,
}

impl ClientLane {
    /// A lane that has to be connected.
    pub(super) fn new(
        domain: &ProtectionDomain,
        channel: &CompletionChannel,
        lane: u16,
        credits: u16,
        inline: u32,
    ) -> Result<ClientLane, PortError> {
        let failed = |error| system("making a lane", error);
        let context = domain.context();
        let completions = CompletionQueue::new(context, client_completions(credits), Some(channel))
            .map_err(failed)?;
        let capacity = Capacity {
            sends: client_sends(credits),
            receives: completions_for(credits),
            pieces: 1,
            inline_bytes: inline,
        };
        let queue = completions.handle();
        let mut qp = QueuePair::new(domain, queue, queue, capacity, lane).map_err(failed)?;
        let memory = HostMemory::new(client_blocks(credits) * SLOT_BYTES, Pages::Small);
        let slab = Slab::new(memory.map_err(failed)?, SLOT_BYTES);
        let key = qp.hold(&slab.register(domain).map_err(failed)?);
        let ring = HostMemory::new(ring_bytes(credits), Pages::Small).map_err(failed)?;
        let ring = Registered::new(domain, ring, Access::REMOTE_WRITE)
            .map_err(|(error, _)| failed(error))?;
        Ok(ClientLane {
            qp: Some(qp),
            connection: None,
            key,
            slab,
            ring,
            completions,
            armed: false,
            slots: Remote { address: 0, key: 0 },
            credits,
            held: Slots::new(credits),
            records_mask: completions_for(credits) - 1,
            records_read: 0,
            arrived: 0,
            consumed: 0,
            withholds_receives: false,
            failed: None,
        })
    }

    /// The record ring, and the receives for it.
    pub(super) fn records(&self) -> (Remote, u32) {
        (self.ring.remote(), completions_for(self.credits))
    }

    /// Where requests go.
    pub(super) fn slots_at(&mut self, slots: Remote) {
        self.slots = slots;
    }

    /// The dataplane's last beat, if this is lane 0.
    pub(super) fn beat(&self) -> Beat {
        let mut beat = Beat::new(0);
        let at = completions_for(self.credits) as usize * COMPLETION_BYTES;
        self.ring.copy_out(at, &mut beat.0);
        beat
    }

    /// Whether there is a record to be read.
    pub(super) fn has_record(&self) -> bool {
        self.arrived > 0
    }

    /// Takes what has completed.
    pub(super) fn drain(&mut self) {
        let Some(qp) = &mut self.qp else {
            return;
        };
        loop {
            let Ok(polled) = self.completions.poll() else {
                self.failed.get_or_insert(Lost::LocalFault);
                return;
            };
            if polled.is_empty() {
                return;
            }
            for done in polled {
                match qp.retire(done) {
                    Ok(back) => back.for_each(drop),
                    Err(_) => continue,
                }
                match done.status() {
                    Status::Success => (),
                    status => {
                        self.failed.get_or_insert(lost(status));
                        continue;
                    }
                }
                if done.id().kind() == Some(Kind::Receive) {
                    self.consumed += 1;
                    self.arrived += u32::from(done.immediate().is_some());
                }
            }
        }
    }

    /// The next record, if one has come.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn next(&mut self) -> Result<Option<Completion>, &'static str> {
        if self.arrived == 0 {
            return Ok(None);
        }
        let mut bytes = [0; COMPLETION_BYTES];
        let at = (self.records_read & self.records_mask) as usize * COMPLETION_BYTES;
        self.ring.copy_out(at, &mut bytes);
        self.records_read = self.records_read.wrapping_add(1);
        self.arrived -= 1;
        let record = Completion::parse(&bytes).map_err(|_| "a malformed status record")?;
        if record.slot >= self.credits {
            return Err("a status record of a slot that was not granted");
        }
        if record.kind == CompletionKind::Final {
            self.held.free(record.slot);
        }
        Ok(Some(record))
    }

    /// Sends a frame.
    pub(super) fn submit(&mut self, slot: u16, frame: &[u8], limit: Duration) -> Result<(), Lost> {
        assert!(self.held.take(slot), "slot {slot} is granted and free");
        assert!(
            (1..=SLOT_BYTES).contains(&frame.len()),
            "a frame of 1 to {SLOT_BYTES} bytes"
        );
        let announce = Immediate::Request {
            slot,
            len: frame.len() as u16,
        };
        self.write(slot, announce.encode(), frame, limit)
    }

    /// Asks for an early end, once for a request; nothing where no request holds the slot.
    pub(super) fn cancel(&mut self, slot: u16, limit: Duration) -> Result<(), Lost> {
        if !self.held.holds(slot) || !self.held.cancel(slot) {
            return Ok(());
        }
        self.write(slot, Immediate::Cancel { slot }.encode(), &[], limit)
    }

    /// Writes bytes to a slot and announces them.
    pub(super) fn write(
        &mut self,
        slot: u16,
        immediate: u32,
        bytes: &[u8],
        limit: Duration,
    ) -> Result<(), Lost> {
        let to = Remote {
            // A claim of the dataplane's: what it names wrongly its own device refuses.
            address: (self.slots.address).wrapping_add(u64::from(slot) * SLOT_BYTES as u64),
            key: self.slots.key,
        };
        self.post(Operation::WriteImmediate(to, immediate), bytes, limit)
    }

    /// Posts a request; where there is no room, after what was posted before has been acknowledged.
    pub(super) fn post(
        &mut self,
        operation: Operation,
        bytes: &[u8],
        limit: Duration,
    ) -> Result<(), Lost> {
        let mut since = None;
        loop {
            if let Some(lost) = self.failed {
                return Err(lost);
            }
            let qp = self.qp.as_mut().ok_or(Lost::Disconnected)?;
            if self.consumed > 0 && !self.withholds_receives {
                // Before the request that gives the credit for more records.
                let consumed = std::mem::take(&mut self.consumed);
                qp.receive_empty(consumed).map_err(|error| local(&error))?;
            }
            let mut batch = qp.batch();
            if add(&mut batch, operation, bytes, &self.slab, self.key) {
                batch.ring().map_err(|error| local(&error))?;
                return Ok(());
            }
            drop(batch);
            let since = *since.get_or_insert_with(Instant::now);
            if since.elapsed() > limit {
                return Err(Lost::TransportRetries);
            }
            self.drain();
            std::hint::spin_loop();
        }
    }

    /// Destroys the queue pair: from then on nothing can be written to this side by it.
    pub(super) fn fence(&mut self) {
        self.drain();
        if let Some(mut qp) = self.qp.take() {
            let _ = qp.fail(); // It is destroyed either way.
            destroy(qp);
        }
        if let Some(mut connection) = self.connection.take() {
            let _ = connection.disconnect(); // The peer may be gone.
        }
    }
}

fn local(error: &rowmill_verbs::Error) -> Lost {
    tracing::warn!(%error, "a lane can't be posted to");
    Lost::LocalFault
}

/// Adds a request to a list; false where there is no room for it.
fn add(
    batch: &mut Batch<'_, ()>,
    operation: Operation,
    bytes: &[u8],
    slab: &Slab,
    key: LocalKey,
) -> bool {
    if batch.room() == 0 {
        return false;
    }
    if bytes.len() <= batch.inline_bytes() {
        return batch.post_inline(operation, bytes, Signal::No).is_ok();
    }
    let Some(mut block) = slab.take() else {
        return false;
    };
    block.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let len = bytes.len();
    let local = Local {
        block,
        key,
        pieces: &[Piece { offset: 0, len }],
        note: (),
    };
    batch.post(operation, local, Signal::Yes).is_ok()
}

/// Destroys a queue pair, however often it takes: before that the peer could write. Of a device that is gone libibverbs
/// says so only with RDMAV_ALLOW_DISASSOC_DESTROY set (deploy/HOST.md).
pub(super) fn destroy(mut qp: QueuePair<()>) {
    let mut tries = 0u32;
    while let Err((error, back)) = qp.destroy() {
        // Every ten seconds.
        if tries.is_multiple_of(1000) {
            tracing::error!(%error, tries, "a queue pair can't be destroyed; trying again, since the peer could still write");
        }
        tries += 1;
        qp = back;
        std::thread::sleep(Duration::from_millis(10));
    }
}
