//! Watchers: what is told of a request's slices while nobody waits for it.

use crate::answer::{Part, Slice};
use crate::error::Failure;

/// Is told of a request's slices as they come, and of its end; see [`Hub::submit_watched`](crate::Hub::submit_watched).
///
/// It is called by whichever thread takes in what has come, with the client's lock held. So it must not block, nor call
/// anything of the client, nor hold or drop a [`Hub`](crate::Hub), [`Pending`](crate::Pending) or
/// [`Bell`](crate::Bell) of it; a panic ends the client for all threads. Storing to a few words is what it is for.
pub trait Watcher: Send + Sync {
    /// The request was sent, with this part: told once for each, in order, by the thread that sends, before anything else.
    fn part(&self, part: Part);

    /// A slice was placed: all vectors of its bags are there. Those of one part come in order, each once. Of an answer that is
    /// good, all come before its end.
    fn slice(&self, slice: Slice);

    /// The request has ended, and nothing more is told. `Ok` where all slices were placed. It comes also where the
    /// [`Pending`](crate::Pending) was dropped, the connection ends or the client stops, but not in a forked child.
    fn end(&self, outcome: Result<(), Failure>);
}
