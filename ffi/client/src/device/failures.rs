//! Why streams went on without their results, kept by stream until somebody asks.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rowmill_cuda::StreamId;

use super::error::StreamFailure;

/// Streams whose failures are kept apart: PyTorch has a pool of 32 for each of at most four priorities of a GPU.
pub(crate) const MOST: usize = 128;

/// See the module's text. Nothing here calls CUDA.
#[derive(Debug)]
pub(crate) struct Failures {
    /// How many there are, so that the lock is taken only where there is something.
    count: AtomicUsize,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    /// The first failure of each stream, the earliest one first.
    by_stream: Vec<(StreamId, StreamFailure)>,
    /// The first one of a stream that found no room, told with whatever is asked for.
    other: Option<StreamFailure>,
}

impl Kept {
    fn take_at(&mut self, at: Option<usize>) -> Option<StreamFailure> {
        match at {
            Some(at) => Some(self.by_stream.remove(at).1),
            None => self.other.take(),
        }
    }
}

impl Failures {
    pub(crate) fn new() -> Failures {
        let kept = Kept {
            by_stream: Vec::with_capacity(MOST),
            other: None,
        };
        Failures {
            count: AtomicUsize::new(0),
            kept: Mutex::new(kept),
        }
    }

    /// Whether there is none. A failure is seen here before its stream goes on.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Keeps a stream's failure, if it has none yet.
    pub(crate) fn add(&self, stream: StreamId, why: StreamFailure) {
        self.change(|kept| {
            if kept.by_stream.iter().any(|(other, _)| *other == stream) {
                return;
            }
            if kept.by_stream.len() < MOST {
                kept.by_stream.push((stream, why));
            } else {
                kept.other.get_or_insert(why);
            }
        });
    }

    /// A stream's failure, since it was last asked for.
    pub(crate) fn take(&self, stream: StreamId) -> Option<StreamFailure> {
        self.change(|kept| {
            let mut streams = kept.by_stream.iter();
            let at = streams.position(|(of, _)| *of == stream);
            kept.take_at(at)
        })
    }

    /// The earliest failure that was not asked for.
    pub(crate) fn take_any(&self) -> Option<StreamFailure> {
        self.change(|kept| {
            let first = (!kept.by_stream.is_empty()).then_some(0);
            kept.take_at(first)
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Kept) -> T) -> T {
        let kept = self.kept.lock();
        // It is good between any two statements.
        let mut kept: MutexGuard<'_, Kept> = kept.unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut kept);
        let count = kept.by_stream.len() + usize::from(kept.other.is_some());
        self.count.store(count, Ordering::Release);
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cuda_stand_in::StandIn;
    use rowmill_cuda::{Context, Driver, Stream};

    use super::*;

    #[test]
    fn failures_that_find_no_room_are_told_all_the_same() {
        let stand_in = StandIn::new("");
        let driver = Driver::open(stand_in.path().as_os_str()).expect("it opens");
        let context = Context::primary(driver.device(0).expect("a device")).expect("a context");
        let current = context.enter().expect("a context");
        let stream = || {
            let stream = Stream::new(&context).expect("a stream");
            current.id(&stream).expect("it has one")
        };
        let failures = Failures::new();
        let late = |at: usize| StreamFailure::TimedOut(Duration::from_secs(at as u64));
        let streams: Vec<_> = (0..MOST + 2).map(|_| stream()).collect();
        assert!(failures.is_empty());
        for (at, stream) in streams.iter().enumerate() {
            failures.add(*stream, late(at));
        }
        assert_eq!(failures.take(streams[7]), Some(late(7)));
        // Of those that found no room the first one counts; whoever asks is told.
        assert_eq!(failures.take(streams[7]), Some(late(MOST)));
        assert_eq!(failures.take(streams[MOST]), None);
        for at in (0..MOST).filter(|&at| at != 7) {
            assert_eq!(failures.take_any(), Some(late(at)));
        }
        assert!(failures.take_any().is_none() && failures.is_empty());
    }
}
