//! A store is given more sets, or fewer, while it is used.

use std::sync::{MutexGuard, PoisonError};

use rowmill_arena::ArenaError;
use rowmill_policy::Clock;

use super::Store;
use super::extent::Change;

/// What is known of a store's size by who changes it.
#[derive(Debug)]
pub(super) struct Size {
    resizing: Option<Resizing>,
    /// That of all its workers, as far as they know.
    clock: Clock,
}

impl Size {
    pub(super) fn new(slots: u32) -> Size {
        Size {
            resizing: None,
            clock: Clock::new(slots),
        }
    }
}

/// What a change of size waits for.
#[derive(Debug)]
enum Resizing {
    /// That all writers have moved their rows.
    Moves(Change),
    /// That nobody looks at sets as they were.
    Readers { change: Change, epoch: u64 },
}

/// What all workers are to be told of a change of size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resize {
    /// The sets of a shard that there will be.
    pub(crate) shard_sets: u32,
    /// The time as it goes then.
    pub(crate) clock: Clock,
}

/// Why a store is not given another size.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// The one before is not done.
    #[error("the cache is still changing its size; try again when that is done")]
    Busy,
    /// It can't have so many sets.
    #[error("a cache can have 2 to {most} sets a shard here, not {asked}")]
    Sets {
        /// What was asked for.
        asked: u32,
        /// The most for which it has addresses.
        most: u32,
    },
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] ArenaError),
}

impl Store {
    /// Begins to give the store another number of sets a shard. What it needs more is allocated here, which takes long; so this is for a
    /// thread that is no worker. All workers are then to be [told](crate::Worker::resize) the result, if there is one, and move the rows
    /// of their shards between their turns; meanwhile rows are found and come as ever. [`settle`](Self::settle) ends it. No memory is
    /// needed beyond the larger of both sizes.
    ///
    /// # Errors
    /// [`ResizeError`]; nothing was done.
    pub fn resize(&self, shard_sets: u32) -> Result<Option<Resize>, ResizeError> {
        let mut size = self.lock();
        if size.resizing.is_some() {
            return Err(ResizeError::Busy);
        }
        let most = self.most().shard_sets();
        if !(2..=most).contains(&shard_sets) {
            let asked = shard_sets;
            return Err(ResizeError::Sets { asked, most });
        }
        let (now, _) = self.extent.shard_sets();
        if shard_sets == now {
            return Ok(None);
        }
        if shard_sets > now {
            self.memory.grow(now, shard_sets)?;
        }
        let change = Change {
            old: self.spread.over(now),
            new: self.spread.over(shard_sets),
        };
        self.extent.begin(&change);
        size.resizing = Some(Resizing::Moves(change));
        let slots = self.most().over(shard_sets).slots();
        size.clock = size.clock.over(slots, self.usage.lookups());
        let clock = size.clock;
        Ok(Some(Resize { shard_sets, clock }))
    }

    /// Tells whether the last change of size is done, and does what is left to do for that: what is not needed any more is given back. To
    /// be called now and then by a thread that is no worker.
    ///
    /// # Errors
    /// Where the kernel refuses to take memory back. The change is done.
    pub fn settle(&self) -> Result<bool, ArenaError> {
        let mut size = self.lock();
        if let Some(Resizing::Moves(change)) = size.resizing {
            let (old, new) = self.extent.shard_sets();
            if old != new {
                return Ok(false);
            }
            let epoch = self.epochs.end();
            size.resizing = Some(Resizing::Readers { change, epoch });
        }
        if let Some(Resizing::Readers { change, epoch }) = size.resizing {
            if self.epochs.passed() < epoch {
                return Ok(false);
            }
            size.resizing = None;
            if !change.grows() {
                self.memory.shrink(change.new.shard_sets())?;
            }
        }
        Ok(true)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::extent::{Extent, Sets, View};
    use crate::store::{Spread, Width};

    #[test]
    fn readers_see_a_change_from_its_beginning_to_its_end() {
        let spread = Spread::new(5, 1 << 20, 2, 4, Width::Two);
        let extent = Extent::new(&spread);
        let change = Change {
            old: spread,
            new: spread.over(6),
        };
        extent.begin(&change);
        assert_eq!(extent.shard_sets(), (4, 6));
        let View::Moving(moving) = extent.view(&spread) else {
            panic!("it is under way");
        };
        assert_eq!(moving.end(), 12);
        let row = (0..).find(|&row| spread.shard(row) == 1).unwrap();
        assert_eq!(moving.primary(row), spread.primary(row));
        extent.pass(1, 0);
        assert_eq!(moving.primary(row), change.new.primary(row));
        extent.end();
        assert!(matches!(extent.view(&spread), View::Moving(_)));
        extent.end();
        let View::Still(now) = extent.view(&spread) else {
            panic!("it is done");
        };
        assert_eq!(now, change.new);
    }
}
