//! One end of a session's connection: messages by SENDs.

use rowmill_verbs::{
    Capacity, Completion, CompletionQueueHandle, Error, HostMemory, Kind, Local, LocalKey,
    Operation, Pages, Piece, ProtectionDomain, QueuePair, Signal, Slab,
};

use super::message::{MESSAGE_MAX, Message};
use crate::rdma::failure::in_full;

/// Messages that one side may have on the way: a question or an answer, and one that says that it ends.
const SENDS: u32 = 4;
/// As many have to be received, and one is being looked at.
const RECEIVES: u32 = SENDS + 1;
/// Completions that an end can have in its queue.
pub(super) const COMPLETIONS: u32 = SENDS + 1 + RECEIVES;

/// See the module's text.
pub(super) struct Talk {
    pub(super) qp: QueuePair<()>,
    key: LocalKey,
    slab: Slab,
}

impl Talk {
    /// # Errors
    /// A failed call.
    pub(super) fn new(
        domain: &ProtectionDomain,
        completions: &CompletionQueueHandle,
        connection: u16,
    ) -> Result<Talk, Error> {
        let capacity = Capacity {
            sends: SENDS,
            receives: RECEIVES,
            pieces: 1,
            inline_bytes: 0,
        };
        let mut qp = QueuePair::new(domain, completions, completions, capacity, connection)?;
        let blocks = (SENDS + RECEIVES) as usize;
        let slab = Slab::new(
            HostMemory::new(blocks * MESSAGE_MAX, Pages::Small)?,
            MESSAGE_MAX,
        );
        let key = qp.hold(&slab.register(domain)?);
        Ok(Talk { qp, key, slab })
    }

    /// Posts the receives, of a queue pair that was initialised.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn listen(&mut self) -> Result<(), Error> {
        for _ in 0..RECEIVES {
            let block = self.slab.take().expect("a block for each receive");
            self.qp.receive(block, self.key, ())?;
        }
        Ok(())
    }

    /// # Errors
    /// Why it can't be sent: the other side does not take what was sent before, or the connection is gone.
    pub(super) fn send(&mut self, message: &Message) -> Result<(), String> {
        let bytes = message.encode();
        let unread = || "it does not take what it is sent".to_owned();
        let mut block = self.slab.take().ok_or_else(unread)?;
        block.as_mut_slice()[..bytes.len()].copy_from_slice(&bytes);
        let local = Local {
            block,
            key: self.key,
            pieces: &[Piece::from(0..bytes.len())],
            note: (),
        };
        let mut batch = self.qp.batch();
        let posted = batch.post(Operation::Send, local, Signal::Yes);
        posted.map_err(|_| unread())?;
        batch.ring().map_err(|error| in_full(&error))?;
        Ok(())
    }

    /// Looks at a completion. Returns the message that it brought, if it is this connection's and brought one.
    ///
    /// # Errors
    /// What has failed, or what came and is no message.
    pub(super) fn take(&mut self, completion: &Completion) -> Result<Option<Message>, String> {
        if completion.queue_pair() != self.qp.number() {
            return Ok(None);
        }
        let Ok(blocks) = self.qp.retire(completion) else {
            return Ok(None);
        };
        let blocks: Vec<_> = blocks.map(|(block, ())| block).collect();
        completion.result().map_err(|error| in_full(&error))?;
        if completion.id().kind() != Some(Kind::Receive) {
            return Ok(None);
        }
        let mut message = Ok(None);
        for block in blocks {
            let len = completion.bytes().unwrap_or(0) as usize;
            let bytes = block.as_slice().get(..len).unwrap_or(&[]);
            message = Message::parse(bytes).map(Some);
            let again = self.qp.receive(block, self.key, ());
            again.map_err(|error| in_full(&error))?;
        }
        message.map_err(|status| format!("a message that is not understood ({status})"))
    }
}
