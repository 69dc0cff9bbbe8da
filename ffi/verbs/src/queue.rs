//! How far a queue of a queue pair has got, and what comes back of it.

use std::fmt;

use crate::flight::Flight;
use crate::slab::Block;

/// One of the two queues of a queue pair: how far it has got, and what it holds.
pub(crate) struct Queue<T> {
    /// Number of the next request.
    pub(crate) next: u64,
    /// Requests below this one are known to be done.
    pub(crate) done: u64,
    pub(crate) depth: u64,
    pub(crate) flight: Flight<(Block, T)>,
}

impl<T> Queue<T> {
    pub(crate) fn new(depth: u32) -> Queue<T> {
        Queue {
            next: 0,
            done: 0,
            depth: depth.into(),
            flight: Flight::new(depth as usize),
        }
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.next - self.done
    }

    pub(crate) fn room(&self) -> u64 {
        self.depth - self.outstanding()
    }

    pub(crate) fn retired(&mut self) -> Retired<'_, T> {
        Retired {
            done: self.done,
            flight: &mut self.flight,
        }
    }
}

/// The blocks that a completion gives back, oldest first. What is not taken out comes with the next one.
pub struct Retired<'q, T> {
    flight: &'q mut Flight<(Block, T)>,
    done: u64,
}

impl<T> Iterator for Retired<'_, T> {
    type Item = (Block, T);

    fn next(&mut self) -> Option<(Block, T)> {
        self.flight.pop(self.done)
    }
}

impl<T> fmt::Debug for Retired<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Retired(at most {} blocks)", self.flight.len())
    }
}

/// The blocks that a queue pair had when it was destroyed: of sends, oldest first, then of receives.
pub struct Remains<T> {
    pub(crate) sends: Flight<(Block, T)>,
    pub(crate) open: Option<(Block, T)>,
    pub(crate) receives: Flight<(Block, T)>,
}

impl<T> Iterator for Remains<T> {
    type Item = (Block, T);

    fn next(&mut self) -> Option<(Block, T)> {
        self.sends
            .pop(u64::MAX)
            .or_else(|| self.open.take())
            .or_else(|| self.receives.pop(u64::MAX))
    }
}

impl<T> fmt::Debug for Remains<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let blocks = self.sends.len() + self.receives.len() + usize::from(self.open.is_some());
        write!(f, "Remains({blocks} blocks)")
    }
}
