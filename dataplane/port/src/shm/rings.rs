//! One lane's rings in the control memory: the worker's half and the client's half.

use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, CompletionKind, Immediate};

use super::block::Block;
use super::handoff::{self, Consumer};
use super::layout::{CLIENT_SLEEPING, COMPLETION_TAIL, Layout, SUBMISSION_TAIL, WORKER_SLEEPING};
use crate::sync::AtomicU32;

/// What a client submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submission {
    Request { slot: u16, len: usize },
    Cancel { slot: u16 },
}

/// The worker's half of a lane. Everything it reads is a claim of the client.
pub(super) struct WorkerRings {
    block: Block,
    layout: Layout,
    submissions_read: u32,
    completions_written: u32,
}

impl WorkerRings {
    pub(super) fn new(block: Block, layout: Layout) -> WorkerRings {
        WorkerRings {
            block,
            layout,
            submissions_read: 0,
            completions_written: 0,
        }
    }

    /// The next submission; a request's frame is copied to `frame`.
    ///
    /// # Errors
    /// What the client did that an honest one can't do.
    pub(super) fn next(
        &mut self,
        frame: &mut [u8; SLOT_BYTES],
    ) -> Result<Option<Submission>, &'static str> {
        let waiting =
            handoff::tail(self.block.word(SUBMISSION_TAIL)).wrapping_sub(self.submissions_read);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.layout.submissions() {
            return Err("it claims more submissions than its queue can hold");
        }
        let bits = self
            .block
            .load_u32(self.layout.submission(self.submissions_read));
        self.submissions_read = self.submissions_read.wrapping_add(1);
        let granted = |slot: u16| slot < self.layout.credits();
        match Immediate::decode(bits) {
            Some(Immediate::Request { slot, len }) => {
                let len = usize::from(len);
                if !granted(slot) {
                    return Err("it sent a request in a slot that was not granted");
                }
                if len == 0 || len > SLOT_BYTES {
                    return Err("it sent a frame of an impossible length");
                }
                self.block.read(self.layout.slot(slot), &mut frame[..len]);
                Ok(Some(Submission::Request { slot, len }))
            }
            Some(Immediate::Cancel { slot }) if granted(slot) => {
                Ok(Some(Submission::Cancel { slot }))
            }
            Some(Immediate::Cancel { .. }) => Err("it cancelled a slot that was not granted"),
            Some(Immediate::Slice { .. } | Immediate::Final { .. }) | None => {
                Err("it submitted something that is no request and no cancel")
            }
        }
    }

    /// Writes a record. True if the client may be asleep and has to be rung.
    pub(super) fn complete(&mut self, record: &Completion) -> bool {
        let at = self.layout.completion(self.completions_written);
        self.block.write(at, &record.encode());
        self.completions_written = self.completions_written.wrapping_add(1);
        handoff::publish(
            self.block.word(COMPLETION_TAIL),
            self.completions_written,
            self.block.word(CLIENT_SLEEPING),
        )
    }
}

impl Consumer for WorkerRings {
    /// One load.
    fn has_entry(&self) -> bool {
        handoff::tail(self.block.word(SUBMISSION_TAIL)) != self.submissions_read
    }

    fn sleeping(&self) -> &AtomicU32 {
        self.block.word(WORKER_SLEEPING)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Free,
    Held,
    Cancelled,
}

/// The client's half of a lane.
pub(super) struct ClientRings {
    block: Block,
    layout: Layout,
    slots: Vec<Slot>,
    submissions_written: u32,
    completions_read: u32,
}

impl ClientRings {
    pub(super) fn new(block: Block, layout: Layout) -> ClientRings {
        ClientRings {
            block,
            layout,
            slots: vec![Slot::Free; usize::from(layout.credits())],
            submissions_written: 0,
            completions_read: 0,
        }
    }

    /// Sends a frame. True if the worker may be asleep and has to be rung.
    ///
    /// # Panics
    /// If the slot was not granted or is held, or the frame is empty or longer than a slot.
    pub(super) fn submit(&mut self, slot: u16, frame: &[u8]) -> bool {
        let state = &mut self.slots[usize::from(slot)];
        assert!(*state == Slot::Free, "slot {slot} holds a request already");
        assert!(
            (1..=SLOT_BYTES).contains(&frame.len()),
            "a frame has 1 to {SLOT_BYTES} bytes, not {}",
            frame.len()
        );
        *state = Slot::Held;
        self.block.write(self.layout.slot(slot), frame);
        let len = frame.len() as u16;
        self.push(Immediate::Request { slot, len })
    }

    /// Asks for an early end, once for a request; nothing where no request holds the slot. True if the
    /// worker has to be rung.
    ///
    /// # Panics
    /// If the slot was not granted.
    pub(super) fn cancel(&mut self, slot: u16) -> bool {
        let state = &mut self.slots[usize::from(slot)];
        if *state != Slot::Held {
            return false;
        }
        *state = Slot::Cancelled;
        self.push(Immediate::Cancel { slot })
    }

    fn push(&mut self, immediate: Immediate) -> bool {
        let at = self.layout.submission(self.submissions_written);
        self.block.store_u32(at, immediate.encode());
        self.submissions_written = self.submissions_written.wrapping_add(1);
        handoff::publish(
            self.block.word(SUBMISSION_TAIL),
            self.submissions_written,
            self.block.word(WORKER_SLEEPING),
        )
    }

    /// The next record.
    ///
    /// # Errors
    /// What the server wrote that makes no sense.
    pub(super) fn next(&mut self) -> Result<Option<Completion>, &'static str> {
        let waiting =
            handoff::tail(self.block.word(COMPLETION_TAIL)).wrapping_sub(self.completions_read);
        if waiting == 0 {
            return Ok(None);
        }
        if waiting > self.layout.completions() {
            return Err("more status records than the queue can hold");
        }
        let mut bytes = [0; COMPLETION_BYTES];
        let at = self.layout.completion(self.completions_read);
        self.block.read(at, &mut bytes);
        self.completions_read = self.completions_read.wrapping_add(1);
        let record = Completion::parse(&bytes).map_err(|_| "a malformed status record")?;
        let slot = self.slots.get_mut(usize::from(record.slot));
        let slot = slot.ok_or("a status record for a slot that was not granted")?;
        if record.kind == CompletionKind::Final {
            *slot = Slot::Free;
        }
        Ok(Some(record))
    }

    /// The memory that both halves share.
    pub(super) fn block(&self) -> &Block {
        &self.block
    }
}

impl Consumer for ClientRings {
    fn has_entry(&self) -> bool {
        handoff::tail(self.block.word(COMPLETION_TAIL)) != self.completions_read
    }

    fn sleeping(&self) -> &AtomicU32 {
        self.block.word(CLIENT_SLEEPING)
    }
}
