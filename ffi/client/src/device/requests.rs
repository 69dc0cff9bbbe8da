//! Requests on their way, and what streams do for them. Most results come through pinned memory of the host, the staging, from where
//! copies bring them to the GPU in the stream's order:
//!
//! ```text
//!   caller's stream   .. reads the output |                                     wait done | uses the output ..
//!   its copies                            wait ready | wait word, copy | wait word, copy | done
//!   dataplane                      pools slice by slice into the staging
//!   who takes answers in                               sets the word of a slice
//! ```
//!
//! All of it is queued when the request has been sent, by the thread that sends. Each request that is on its way has a stream of its
//! own for its copies. Those of one caller's stream are still in the order of submission, since that stream waits for the last copy of
//! the one before it comes to the mark of the next; those of others go on meanwhile.
//!
//! Where a NIC writes to the GPU's memory itself there is nothing to copy: the caller's stream waits for the last word alone.

use core::ptr::NonNull;
use std::sync::Arc;

use rowmill_cuda::{Context, Current, DeviceMemory, Event, Flush, Pinned, Stream, StreamId, Words};
use rowmill_port::ClientPort;

use super::spans::Span;
use super::watch::{Flags, Watch};
use crate::error::ClientError;
use crate::hub::{Pending, RegionMemory};
use crate::memory::{Extent, Extents, Region};

/// A request on its way.
struct Slot<P: ClientPort> {
    watch: Arc<Watch>,
    taken: bool,
    /// The request, which holds the place of its result.
    pending: Option<Pending<P>>,
    /// Where its result is staged; None where it is not.
    extent: Option<Extent>,
    /// Its pieces, which the watch has, too: no lock that is needed to release streams is held while CUDA is called.
    spans: Vec<Span>,
    /// What its words are set to.
    serial: u32,
    /// The stream that copies it.
    copies: Stream,
    /// The caller's stream has come to the request.
    ready: Event,
    /// All is copied; or, where nothing is, the caller's stream has passed its wait.
    done: Event,
    /// Whether that could not be marked, so that nobody knows when it is.
    lost: bool,
}

/// A slot for a request.
pub(crate) struct Taken {
    pub(crate) slot: usize,
    /// Where its result is staged, if it is.
    pub(crate) place: Option<u64>,
}

/// See the module's text.
pub(crate) struct Requests<P: ClientPort> {
    region: Region,
    memory: Pinned<RegionMemory>,
    pub(crate) flags: Arc<Flags>,
    free: Extents,
    slots: Vec<Slot<P>>,
    /// Whether requests were dropped, which hold the places of their results until the hub takes that in.
    pub(crate) dropped: bool,
}

impl<P: ClientPort> Requests<P> {
    /// Pins `memory`, that of `region`, for at most `requests` requests at a time, of at most `spans` pieces each.
    pub(crate) fn new(
        context: &Context,
        region: Region,
        memory: RegionMemory,
        requests: usize,
        spans: usize,
    ) -> Result<Requests<P>, ClientError> {
        let window = memory.window();
        let start = NonNull::new(window.as_ptr()).expect("memory is somewhere");
        let (shared, bytes) = (memory.clone(), window.len());
        let memory = Pinned::new(context, shared, start, bytes)?;
        let words = Words::new(context, requests * (1 + spans))?;
        let flags = Arc::new(Flags::new(words));
        let slot = |at: usize| -> Result<Slot<P>, ClientError> {
            let watch = Watch::new(&flags, memory.owner(), at * (1 + spans), spans);
            Ok(Slot {
                watch: Arc::new(watch),
                taken: false,
                pending: None,
                extent: None,
                spans: Vec::with_capacity(spans),
                serial: 0,
                copies: Stream::new(context)?,
                ready: Event::new(context)?,
                done: Event::new(context)?,
                lost: false,
            })
        };
        let slots = (0..requests).map(slot).collect::<Result<_, _>>()?;
        Ok(Requests {
            region,
            memory,
            free: Extents::new(bytes as u64, requests),
            slots,
            flags,
            dropped: false,
        })
    }

    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// The memory of the region.
    pub(crate) fn staging(&self) -> &RegionMemory {
        self.memory.owner()
    }

    pub(crate) fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.slots.iter().map(|slot| &slot.watch)
    }

    /// Takes a free slot, and `staged` bytes of the staging where that is wanted, once what has ended is given back. None where all
    /// is in use.
    pub(crate) fn take(
        &mut self,
        current: &Current<'_>,
        staged: Option<u64>,
    ) -> Result<Option<Taken>, ClientError> {
        let taken = |slot: &&mut Slot<P>| slot.taken && !slot.lost;
        for slot in self.slots.iter_mut().filter(taken) {
            if !slot.watch.is_in_flight() && current.is_reached(&slot.done)? {
                slot.taken = false;
                // What the answer said, the watch was told.
                self.dropped |= slot.pending.take().is_some();
                if let Some(extent) = slot.extent.take() {
                    self.free.give(extent);
                }
            }
        }
        let Some(at) = self.slots.iter().position(|slot| !slot.taken) else {
            return Ok(None);
        };
        if let Some(bytes) = staged {
            let Some(extent) = self.free.take(bytes) else {
                return Ok(None);
            };
            self.slots[at].extent = Some(extent);
        }
        self.slots[at].taken = true;
        Ok(Some(Taken {
            slot: at,
            place: self.slots[at].extent.as_ref().map(|extent| extent.offset),
        }))
    }

    /// Requests that are in flight or being copied, as far as that is known.
    pub(crate) fn taken(&self) -> usize {
        self.slots.iter().filter(|slot| slot.taken).count()
    }

    /// Begins with a request for a stream of the pieces that `fill` gives, before it is sent. Gives its watch, and its number there;
    /// None once the GPU is given up.
    pub(crate) fn begin(
        &mut self,
        slot: usize,
        stream: StreamId,
        fill: impl FnOnce(&mut Vec<Span>),
    ) -> Option<(Arc<Watch>, u32)> {
        let slot = &mut self.slots[slot];
        fill(&mut slot.spans);
        let place = slot.extent.as_ref().map(|extent| extent.offset);
        slot.serial = slot.watch.begin(stream, place, &slot.spans)?;
        Some((Arc::clone(&slot.watch), slot.serial))
    }

    /// Keeps a request that was sent.
    pub(crate) fn keep(&mut self, slot: usize, pending: Pending<P>) {
        self.slots[slot].pending = Some(pending);
    }

    /// Gives back what was taken for a request that was not sent.
    pub(crate) fn give(&mut self, slot: usize) {
        let slot = &mut self.slots[slot];
        slot.watch.take_back();
        slot.taken = false;
        if let Some(extent) = slot.extent.take() {
            self.free.give(extent);
        }
    }

    /// Queues the copies of a request that was sent, between what the stream has to do before and after.
    pub(crate) fn queue(
        &mut self,
        current: &Current<'_>,
        slot: usize,
        (to, to_offset): (&DeviceMemory, u64),
        stream: &Stream,
    ) -> Result<(), ClientError> {
        let at = slot;
        let slot = &self.slots[at];
        current.record(&slot.ready, stream)?;
        // What the stream does with the output before, it does before it is written.
        current.wait_event(&slot.copies, &slot.ready)?;
        let copied = self.queue_copies(current, slot, to, to_offset);
        // Also where not all could be queued: what was is over before its place is used again.
        if let Err(error) = current.record(&slot.done, &slot.copies) {
            self.slots[at].lost = true;
            return Err(error.into());
        }
        current.wait_event(stream, &slot.done)?;
        copied
    }

    fn queue_copies(
        &self,
        current: &Current<'_>,
        slot: &Slot<P>,
        to: &DeviceMemory,
        to_offset: u64,
    ) -> Result<(), ClientError> {
        let extent = slot.extent.as_ref().expect("it is staged");
        for (at, span) in slot.spans.iter().enumerate() {
            let word = slot.watch.word(at);
            let words = &self.flags.words;
            current.wait_word(&slot.copies, words, word, slot.serial, Flush::No)?;
            let to = (to, to_offset + span.offset);
            let from = (&self.memory, extent.offset + span.offset);
            current.copy_in(&slot.copies, to, from, span.bytes)?;
        }
        Ok(())
    }

    /// Lets the stream wait for a request that was sent and whose result a NIC writes.
    pub(crate) fn queue_direct(
        &mut self,
        current: &Current<'_>,
        slot: usize,
        stream: &Stream,
        flush: Flush,
    ) -> Result<(), ClientError> {
        let at = slot;
        let slot = &self.slots[at];
        let (words, word) = (&self.flags.words, slot.watch.word(0));
        current.wait_word(stream, words, word, slot.serial, flush)?;
        if let Err(error) = current.record(&slot.done, stream) {
            self.slots[at].lost = true;
            return Err(error.into());
        }
        Ok(())
    }

    /// Drops what it keeps of the hub's.
    pub(crate) fn forget(&mut self) {
        for slot in &mut self.slots {
            slot.pending = None;
        }
    }

    /// Waits until nothing is read any more of what is to be freed. All words are set.
    pub(crate) fn settle(&self, current: &Current<'_>) -> Result<(), ClientError> {
        for slot in &self.slots {
            current.synchronize(&slot.copies)?;
        }
        Ok(())
    }
}
