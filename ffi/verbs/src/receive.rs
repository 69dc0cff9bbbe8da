//! Posting receives.

use crate::attributes::State;
use crate::error::Error;
use crate::list::ReceiveList;
use crate::queue_pair::{LocalKey, QueuePair};
use crate::slab::Block;
use crate::sys;
use crate::work_id::{Kind, WorkId};

impl<T> QueuePair<T> {
    /// Posts `count` receives without memory: for WRITEs with immediate, which bring their bytes elsewhere.
    ///
    /// # Errors
    /// A failed call; those before it are posted.
    ///
    /// # Panics
    /// If there is no room for so many, or in the state [`State::Reset`].
    pub fn receive_empty(&mut self, count: u32) -> Result<(), Error> {
        assert!(
            u64::from(count) <= self.receives.room(),
            "room for receives"
        );
        let mut left = count as usize;
        while left > 0 {
            let now = left.min(ReceiveList::LONGEST);
            for at in 0..now {
                let id = self.receive_id(at as u64);
                self.receive_list.set(at, id, None);
            }
            self.post_receives(now)?;
            left -= now;
        }
        Ok(())
    }

    /// Posts a receive into the whole of `block`, for a SEND.
    ///
    /// # Errors
    /// A failed call; the block goes back to its slab.
    ///
    /// # Panics
    /// If there is no room, in the state [`State::Reset`], or if the key is not of the block's slab.
    pub fn receive(&mut self, block: Block, key: LocalKey, note: T) -> Result<(), Error> {
        assert!(self.receives.room() > 0, "room for a receive");
        let sge = sys::ibv_sge {
            addr: block.start().as_ptr() as u64,
            length: u32::try_from(block.len()).expect("a block below 4 GiB"),
            lkey: self.local_key(key, &block),
        };
        let id = self.receive_id(0);
        self.receive_list.set(0, id, Some(sge));
        let number = self.receives.next;
        self.receives.flight.push(number..=number, (block, note));
        let posted = self.post_receives(1);
        if posted.is_err() {
            drop(self.receives.flight.take_back(self.receives.next));
        }
        posted
    }

    fn receive_id(&self, ahead: u64) -> WorkId {
        let sequence = self.receives.next + ahead;
        WorkId::new(Kind::Receive, self.epoch, self.connection, sequence)
    }

    fn post_receives(&mut self, count: usize) -> Result<(), Error> {
        assert_ne!(
            self.state(),
            State::Reset,
            "receives are posted from INIT on"
        );
        // SAFETY: the queue pair is valid. The list names blocks that the flight owns, or no memory at all.
        let (posted, answer) = unsafe { self.receive_list.post(self.raw(), count) };
        self.receives.next += posted as u64;
        answer
    }
}
