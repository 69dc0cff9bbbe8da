//! One end of a control stream: a queue pair, the memory of its messages, and what waits to be sent.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use rowmill_verbs::{
    Capacity, Completion, CompletionQueueHandle, Connection, Error, HostMemory, Kind, Local,
    LocalKey, Operation, Pages, Parameters, Piece, ProtectionDomain, QueuePair, Remote, Request,
    Resolved, Signal, Slab, Status,
};

use super::bounds::{CONTROL_RECEIVES, CONTROL_SENDS, FRAGMENT_BYTES, FRAGMENTS_MAX};
use super::stream::{Assembler, Breach, fragment};

/// Blocks of an end: its receives, a message on its way, and a goodbye.
const BLOCKS: usize = (CONTROL_RECEIVES + FRAGMENTS_MAX + 1) as usize;

/// What a completion meant.
pub(super) enum Heard {
    /// Nothing to be told.
    Nothing,
    /// The peer sent a message.
    Message(Vec<u8>),
    /// The peer broke the protocol.
    Breach(Breach),
    /// The queue pair has failed.
    Failed(Status),
}

/// An end of a control stream.
pub(super) struct Link {
    pub(super) qp: QueuePair<()>,
    key: LocalKey,
    slab: Slab,
    assembler: Assembler,
    outgoing: VecDeque<(Vec<u8>, usize)>,
    /// When the oldest send that has not completed was posted, or the last one completed.
    waiting: Option<Instant>,
}

impl Link {
    /// A new end whose queue pair has to be initialised.
    pub(super) fn new(
        domain: &ProtectionDomain,
        completions: &CompletionQueueHandle,
        connection: u16,
        inline: u32,
    ) -> Result<Link, Error> {
        let capacity = Capacity {
            sends: CONTROL_SENDS,
            receives: CONTROL_RECEIVES,
            pieces: 1,
            inline_bytes: inline,
        };
        let mut qp = QueuePair::new(domain, completions, completions, capacity, connection)?;
        let slab = Slab::new(
            HostMemory::new(BLOCKS * FRAGMENT_BYTES, Pages::Small)?,
            FRAGMENT_BYTES,
        );
        let key = qp.hold(&slab.register(domain)?);
        Ok(Link {
            qp,
            key,
            slab,
            assembler: Assembler::default(),
            outgoing: VecDeque::new(),
            waiting: None,
        })
    }

    /// Makes a request's queue pair ready for the peer's messages.
    pub(super) fn receive_from(
        &mut self,
        request: &mut Request,
        parameters: &Parameters,
    ) -> Result<(), Error> {
        request.initialise(&mut self.qp, parameters)?;
        self.post_receives()
    }

    /// As [`receive_from`](Link::receive_from), at the side that connects.
    pub(super) fn receive_by(
        &mut self,
        way: &mut Resolved,
        parameters: &Parameters,
    ) -> Result<(), Error> {
        way.initialise(&mut self.qp, parameters)?;
        self.post_receives()
    }

    fn post_receives(&mut self) -> Result<(), Error> {
        while self.qp.receives_outstanding() < u64::from(CONTROL_RECEIVES) {
            let block = self.slab.take().expect("a block for each receive");
            self.qp.receive(block, self.key, ())?;
        }
        Ok(())
    }

    /// Sends a message, or begins to.
    pub(super) fn send(&mut self, message: Vec<u8>, now: Instant) -> Result<(), Error> {
        self.outgoing.push_back((message, 0));
        self.pump(now)
    }

    /// Messages that wait to be sent or begun.
    pub(super) fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// Whether all that was sent has arrived.
    pub(super) fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.qp.sends_outstanding() == 0
    }

    /// Whether something that was posted should have completed long ago.
    pub(super) fn is_overdue(&self, now: Instant, limit: Duration) -> bool {
        self.waiting
            .is_some_and(|since| now.saturating_duration_since(since) > limit)
    }

    /// Writes a few bytes into the peer's memory, unless a beat is under way or there are messages to be sent.
    pub(super) fn beat(&mut self, bytes: &[u8], to: Remote, now: Instant) -> Result<(), Error> {
        if !self.is_idle() {
            return Ok(());
        }
        let mut batch = self.qp.batch();
        let write = Operation::Write(to);
        let posted = if bytes.len() <= batch.inline_bytes() {
            batch.post_inline(write, bytes, Signal::Yes).is_ok()
        } else {
            let Some(mut block) = self.slab.take() else {
                return Ok(());
            };
            block.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
            let local = Local {
                block,
                key: self.key,
                pieces: &[Piece::from(0..bytes.len())],
                note: (),
            };
            batch.post(write, local, Signal::Yes).is_ok()
        };
        if posted {
            batch.ring()?;
            self.waiting = Some(now);
        }
        Ok(())
    }

    fn pump(&mut self, now: Instant) -> Result<(), Error> {
        while let Some((message, at)) = self.outgoing.front_mut() {
            let mut batch = self.qp.batch();
            while *at < message.len() {
                if batch.room() == 0 {
                    break;
                }
                let Some(mut block) = self.slab.take() else {
                    break;
                };
                let (len, next) = fragment(message, *at, block.as_mut_slice());
                let local = Local {
                    block,
                    key: self.key,
                    pieces: &[Piece { offset: 0, len }],
                    note: (),
                };
                let posted = batch.post(Operation::Send, local, Signal::Yes);
                assert!(posted.is_ok(), "there was room");
                *at = next;
            }
            let (done, posted) = (*at >= message.len(), batch.ring()?);
            if posted > 0 && self.waiting.is_none() {
                self.waiting = Some(now);
            }
            if done {
                self.outgoing.pop_front();
            } else if posted == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Takes note of a completion of this end's.
    pub(super) fn completed(&mut self, completion: &Completion, now: Instant) -> Heard {
        let (kind, status, bytes) = (
            completion.id().kind(),
            completion.status(),
            completion.bytes(),
        );
        let Ok(mut back) = self.qp.retire(completion) else {
            return Heard::Nothing; // Of a former holder of the number.
        };
        let block = back.next();
        if status != Status::Success {
            return Heard::Failed(status);
        }
        if kind != Some(Kind::Receive) {
            drop(block);
            self.waiting = (self.qp.sends_outstanding() > 0).then_some(now);
            return match self.pump(now) {
                Ok(()) => Heard::Nothing,
                Err(error) => {
                    tracing::warn!(%error, "a control stream can't be sent to");
                    Heard::Failed(Status::General)
                }
            };
        }
        let Some((block, ())) = block else {
            return Heard::Nothing;
        };
        let len = bytes.map_or(0, |bytes| bytes as usize).min(block.len());
        let heard = self.assembler.push(&block.as_slice()[..len]);
        // The same block again, before anything is answered.
        if let Err(error) = self.qp.receive(block, self.key, ()) {
            tracing::warn!(%error, "a control stream can't receive");
            return Heard::Failed(Status::General);
        }
        match heard {
            Ok(None) => Heard::Nothing,
            Ok(Some(message)) => Heard::Message(message),
            Err(breach) => Heard::Breach(breach),
        }
    }

    /// Ends it and tells the peer by the connection manager. What is under way may be lost.
    pub(super) fn hang_up(mut self, connection: Option<Connection>) {
        if let Err(error) = self.qp.fail() {
            tracing::debug!(%error, "a control stream ends");
        }
        if let Some(mut connection) = connection
            && let Err(error) = connection.disconnect()
        {
            tracing::debug!(%error, "a control stream ends");
        }
    }
}
