//! A lane's share of one connection: its queue pair, its request slots, and what waits to be sent.

use std::collections::VecDeque;
use std::sync::Arc;

use rowmill_verbs::{
    Completion as Done, Error, HostMemory, Kind, Local, LocalKey, Operation, Piece, QueuePair,
    Registered, Signal, Slab, Status as WorkStatus,
};
use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::limits::{MAX_REGIONS, SLOT_BYTES};
use rowmill_wire::{Completion, CompletionKind, Immediate};

use super::inbox::{Cut, RemoteRegion};
use super::pool::{Base, Blocks, Note, Pool};
use super::progress::Progress;
use super::scatter::PIECES;
use crate::RegionId;
use crate::slots::Slots;

/// What a client submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submission {
    Request { slot: u16, len: u16 },
    Cancel { slot: u16 },
}

/// Something to be posted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    /// The strips of a staged block.
    Place { block: u32 },
    /// The READs of a pull.
    Fetch { pull: u16 },
    /// A status record.
    Record(Completion),
}

/// A region that was given up, while something that was posted before may still reach it.
#[derive(Clone, Copy, Debug)]
struct Barrier {
    region: RegionId,
    /// Items that had been queued then.
    items: u64,
    /// Once these are posted: requests that had been posted then.
    posted: Option<u64>,
}

/// A lane's share of one connection. Everything that it needs while it serves was allocated when it was made.
pub(super) struct Seat {
    pub(super) qp: QueuePair<Note>,
    key: LocalKey,
    // After the queue pair, so that nothing can be written to it any more when it goes.
    slots: Registered<HostMemory>,
    pub(super) credits: u16,
    records: Base,
    records_mask: u32,
    records_written: u32,
    /// What records are sent from, where they can't go inline.
    record_blocks: Option<(Slab, LocalKey)>,
    pub(super) regions: [Option<RemoteRegion>; MAX_REGIONS as usize],
    /// Held from a request's arrival until its final record is posted.
    held: Slots,
    pub(super) pending: VecDeque<Submission>,
    /// Receives that were consumed and whose submissions the worker has taken.
    consumed: u32,
    outbox: VecDeque<Item>,
    items_queued: u64,
    posted: u64,
    /// What the control thread sees of it.
    progress: Arc<Progress>,
    barrier: Option<Barrier>,
    /// The pull of each slot.
    pub(super) pulls: Vec<Option<u16>>,
    /// Blocks of staging that it has.
    pub(super) blocks: Blocks,
    /// Blocks of its pulls.
    pub(super) fetching: u32,
    pub(super) is_ready: bool,
    pub(super) is_dirty: bool,
    /// The queue pair has failed or was failed: nothing is posted any more.
    pub(super) failed: bool,
    /// A cut has been asked for.
    pub(super) cut: bool,
}

/// What a seat is made with.
pub(super) struct Equipment {
    pub(super) qp: QueuePair<Note>,
    pub(super) key: LocalKey,
    pub(super) slots: Registered<HostMemory>,
    pub(super) credits: u16,
    /// Places of the record ring, a power of two.
    pub(super) records: u32,
    /// Most items that can wait.
    pub(super) outbox: usize,
    pub(super) receives: u32,
    /// Blocks for records, where the device sends none inline.
    pub(super) record_blocks: Option<(Slab, LocalKey)>,
}

impl Seat {
    pub(super) fn new(with: Equipment) -> Seat {
        Seat {
            qp: with.qp,
            key: with.key,
            slots: with.slots,
            credits: with.credits,
            records: Base::default(),
            records_mask: with.records - 1,
            records_written: 0,
            record_blocks: with.record_blocks,
            regions: [None; MAX_REGIONS as usize],
            held: Slots::new(with.credits),
            pending: VecDeque::with_capacity(with.receives as usize),
            consumed: 0,
            outbox: VecDeque::with_capacity(with.outbox),
            items_queued: 0,
            posted: 0,
            progress: Arc::default(),
            barrier: None,
            pulls: vec![None; usize::from(with.credits)],
            blocks: Blocks::default(),
            fetching: 0,
            is_ready: false,
            is_dirty: false,
            failed: false,
            cut: false,
        }
    }

    /// Where the client has its record ring.
    pub(super) fn records_at(&mut self, base: Base) {
        self.records = base;
    }

    /// How far what it posts gets.
    pub(super) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    fn note_progress(&self) {
        let outstanding = self.qp.sends_outstanding();
        self.progress.note(self.posted, outstanding);
    }

    /// Where the client writes its requests.
    pub(super) fn slots(&self) -> rowmill_verbs::Remote {
        self.slots.remote()
    }

    pub(super) fn region(&self, region: RegionId) -> Option<RemoteRegion> {
        *self.regions.get(region.0 as usize)?
    }

    /// Copies a request's frame.
    pub(super) fn frame(&self, slot: u16, len: u16, out: &mut [u8; SLOT_BYTES]) {
        let at = usize::from(slot) * SLOT_BYTES;
        self.slots.copy_out(at, &mut out[..usize::from(len)]);
    }

    /// The next submission; its receive can be posted again.
    pub(super) fn take_submission(&mut self) -> Option<Submission> {
        let submission = self.pending.pop_front()?;
        self.consumed += 1;
        Some(submission)
    }

    /// Whether an item can be queued: not once the queue pair has failed. There is room for the slices of every slot that is
    /// held, and for every block.
    pub(super) fn queue(&mut self, item: Item) -> bool {
        if self.failed {
            return false;
        }
        assert!(
            self.outbox.len() < self.outbox.capacity(),
            "no more records than slices, and no more data than blocks"
        );
        self.outbox.push_back(item);
        self.items_queued += 1;
        true
    }

    pub(super) fn has_items(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether everything that was queued has been placed.
    pub(super) fn is_settled(&self) -> bool {
        self.outbox.is_empty() && self.qp.sends_outstanding() == 0
    }

    /// Moves the queue pair to the error state: nothing of this side is under way to the client any more that was not.
    pub(super) fn fail(&mut self, pool: &mut Pool) {
        if !std::mem::replace(&mut self.failed, true)
            && let Err(error) = self.qp.fail()
        {
            tracing::debug!(%error, "a lane's queue pair is destroyed as it is");
        }
        while let Some(item) = self.outbox.pop_front() {
            if let Item::Place { block } = item {
                // The queue pair has one of which some was posted, and gives it back when it is destroyed.
                if pool.staged[block as usize].block.take().is_some() {
                    pool.came_back(&mut self.blocks);
                }
            }
        }
    }

    /// Drops what waits to be fetched: the worker has let go of this connection, and its pulls are given to others.
    pub(super) fn forget_fetches(&mut self) {
        if let Some(Item::Fetch { .. }) = self.outbox.front() {
            // Some of its READs may be posted; the block comes back with them.
            let mut batch = self.qp.batch();
            if batch.is_open() {
                drop(batch.close());
            }
        }
        self.outbox
            .retain(|item| !matches!(item, Item::Fetch { .. }));
    }

    /// Posts what waits, as far as there is room.
    ///
    /// # Errors
    /// A failed call: the connection has to end.
    pub(super) fn flush(&mut self, pool: &mut Pool) -> Result<(), Error> {
        if self.failed || self.outbox.is_empty() {
            return Ok(());
        }
        if self.consumed > 0 {
            // Before any record that gives the credit back, so that the client's next request finds a receive.
            self.qp.receive_empty(std::mem::take(&mut self.consumed))?;
        }
        loop {
            let queued = self.outbox.len();
            let posted = self.post_list(pool)?;
            self.posted += posted as u64;
            let goes_on = posted > 0 || self.outbox.len() < queued;
            if self.outbox.is_empty() || !goes_on {
                self.note_progress();
                return Ok(());
            }
        }
    }

    /// One list with one doorbell.
    fn post_list(&mut self, pool: &mut Pool) -> Result<usize, Error> {
        let pieces = self.qp.capacity().pieces as usize;
        let message = u64::from(self.qp.context().limits().message_bytes);
        let mut batch = self.qp.batch();
        while let Some(item) = self.outbox.front() {
            let done = match *item {
                Item::Place { block } => {
                    post_place(&mut batch, pool, block, self.key, pieces, &mut self.blocks)
                }
                Item::Fetch { pull } => post_fetch(&mut batch, pool, pull, self.key, message),
                Item::Record(record) => {
                    let at = self.records_written & self.records_mask;
                    let to = self.records.at(u64::from(at) * COMPLETION_BYTES as u64);
                    let announce = Operation::WriteImmediate(to, record.immediate().encode());
                    let posted =
                        post_record(&mut batch, announce, &record, self.record_blocks.as_ref());
                    self.records_written = self.records_written.wrapping_add(u32::from(posted));
                    if posted && record.kind == CompletionKind::Final {
                        self.held.free(record.slot);
                    }
                    posted
                }
            };
            if !done {
                break;
            }
            self.outbox.pop_front();
        }
        batch.ring()
    }

    /// Takes note of a completion. Blocks of results go back to the pool; a pull whose data are all there is told of.
    ///
    /// # Errors
    /// Why the connection has to be cut off.
    pub(super) fn completed(
        &mut self,
        done: &Done,
        pool: &mut Pool,
        mut arrived: impl FnMut(u16),
    ) -> Result<(), Cut> {
        let Ok(back) = self.qp.retire(done) else {
            return Ok(()); // Of a former holder of the number.
        };
        let succeeded = done.status() == WorkStatus::Success;
        for (block, note) in back {
            match note {
                Note::Record => (),
                Note::Staged => pool.came_back(&mut self.blocks),
                Note::Fetched { pull, part } => {
                    let pull_of = &mut pool.pulls[usize::from(pull)];
                    pull_of.missing -= 1;
                    // What was not read is not shown: the block has what somebody else had in it.
                    if succeeded && !pull_of.released {
                        pull_of.blocks[usize::from(part)] = Some(block);
                    }
                    if pull_of.missing == 0 {
                        arrived(pull);
                    }
                }
            }
        }
        if done.id().kind() == Some(Kind::Send) {
            self.note_progress();
        }
        match done.status() {
            WorkStatus::Success => (),
            // What came before it has told why.
            _ if self.failed => return Ok(()),
            status if status != WorkStatus::Flushed && done.id().kind() == Some(Kind::Receive) => {
                return Err(Cut::Breach("it sent a message that can't be received"));
            }
            status => return Err(Cut::Failed(status)),
        }
        if done.id().kind() == Some(Kind::Receive) && !self.failed {
            let submission = self.understand(done.immediate(), done.bytes())?;
            self.pending.push_back(submission);
        }
        Ok(())
    }

    /// What an immediate says; everything in it is a claim.
    fn understand(
        &mut self,
        immediate: Option<u32>,
        bytes: Option<u32>,
    ) -> Result<Submission, Cut> {
        let Some(bits) = immediate else {
            return Err(Cut::Breach("it sent a message where requests are written"));
        };
        match Immediate::decode(bits) {
            Some(Immediate::Request { slot, len }) if slot < self.credits => {
                if bytes != Some(u32::from(len)) {
                    return Err(Cut::Breach(
                        "it wrote a frame of another length than it said",
                    ));
                }
                // So nobody has more records to be sent than those of its slots.
                if !self.held.take(slot) {
                    return Err(Cut::Breach(
                        "it used a slot again before the slot's last request was answered",
                    ));
                }
                Ok(Submission::Request { slot, len })
            }
            Some(Immediate::Cancel { slot }) if slot < self.credits => {
                if bytes != Some(0) {
                    return Err(Cut::Breach("it wrote bytes with a cancel"));
                }
                if !self.held.cancel(slot) {
                    return Err(Cut::Breach("it cancelled a request more than once"));
                }
                Ok(Submission::Cancel { slot })
            }
            Some(Immediate::Request { .. } | Immediate::Cancel { .. }) => {
                Err(Cut::Breach("it named a slot that was not granted"))
            }
            Some(Immediate::Slice { .. } | Immediate::Final { .. }) | None => Err(Cut::Breach(
                "it submitted something that is no request and no cancel",
            )),
        }
    }

    /// A region is given up: from now on nothing is queued for it.
    pub(super) fn give_up(&mut self, region: RegionId) {
        if let Some(place) = self.regions.get_mut(region.0 as usize) {
            *place = None;
        }
        self.barrier = Some(Barrier {
            region,
            items: self.items_queued,
            posted: None,
        });
    }

    /// The region that was given up, once nothing of this queue pair can reach it any more.
    pub(super) fn let_go(&mut self) -> Option<RegionId> {
        let posted_items = self.items_queued - self.outbox.len() as u64;
        let barrier = self.barrier.as_mut()?;
        if posted_items < barrier.items {
            return None;
        }
        let posted = *barrier.posted.get_or_insert(self.posted);
        if self.posted - self.qp.sends_outstanding() < posted {
            return None;
        }
        let region = barrier.region;
        self.barrier = None;
        Some(region)
    }

    /// Whether a region waits to be let go of.
    pub(super) fn has_barrier(&self) -> bool {
        self.barrier.is_some()
    }
}

/// Adds the WRITE of a status record; false where there is no room.
fn post_record(
    batch: &mut Batch<'_>,
    announce: Operation,
    record: &Completion,
    blocks: Option<&(Slab, LocalKey)>,
) -> bool {
    let bytes = record.encode();
    let Some((slab, key)) = blocks else {
        return batch.post_inline(announce, &bytes, Signal::Yes).is_ok();
    };
    if batch.room() == 0 {
        return false;
    }
    let Some(mut block) = slab.take() else {
        return false; // There are as many as sends: some come back with what has completed.
    };
    block.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
    let local = Local {
        block,
        key: *key,
        pieces: &[Piece::from(0..bytes.len())],
        note: Note::Record,
    };
    batch.post(announce, local, Signal::Yes).is_ok()
}

type Batch<'q> = rowmill_verbs::Batch<'q, Note>;

/// Adds WRITEs of a staged block; whether those were the last ones. The block is the queue pair's from the first one on.
fn post_place(
    batch: &mut Batch<'_>,
    pool: &mut Pool,
    block: u32,
    key: LocalKey,
    pieces: usize,
    of: &mut Blocks,
) -> bool {
    let staged = &mut pool.staged[block as usize];
    if let Some(block) = staged.block.take() {
        batch.open(block, key, Note::Staged);
    }
    while let Some((write, next)) = staged.scatter.next(&staged.strips, pieces.min(PIECES)) {
        let signal = match next.next(&staged.strips, pieces.min(PIECES)) {
            Some(_) => Signal::No,
            None => Signal::Yes,
        };
        let to = Operation::Write(staged.region.at(write.offset));
        if batch.post_open(to, &write.pieces, signal).is_err() {
            return false;
        }
        staged.scatter = next;
    }
    if batch.close().is_some() {
        pool.came_back(of);
    }
    true
}

/// Adds READs of a pull; whether those were the last ones.
fn post_fetch(
    batch: &mut Batch<'_>,
    pool: &mut Pool,
    number: u16,
    key: LocalKey,
    message: u64,
) -> bool {
    let block_bytes = pool.block_bytes();
    let pull = &mut pool.pulls[usize::from(number)];
    while let Some(read) = pull.next_read(block_bytes, message) {
        if batch.room() == 0 {
            return false;
        }
        let part = usize::from(read.part);
        if let Some(block) = pull.blocks[part].take() {
            let note = Note::Fetched {
                pull: number,
                part: read.part,
            };
            batch.open(block, key, note);
        }
        let signal = if read.fills { Signal::Yes } else { Signal::No };
        let posted = batch.post_open(Operation::Read(read.remote), &[read.piece], signal);
        assert!(posted.is_ok(), "there was room");
        pull.asked += read.piece.len as u64;
        if read.fills {
            let early = batch.close();
            assert!(early.is_none(), "its last READ is not even posted");
        }
    }
    true
}
