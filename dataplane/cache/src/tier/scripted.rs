//! A tier that answers as it is told to.

use std::fmt;

use super::{EachRow, FetchesFull, Tier, TierError, Wanted};

/// What becomes of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The row, so much time after it was asked for.
    Row {
        /// That time.
        after_ns: u64,
    },
    /// An error, so much time after it was asked for.
    Error {
        /// That time.
        after_ns: u64,
        /// The error.
        error: TierError,
    },
    /// Nothing before the deadline.
    Never,
}

#[derive(Debug)]
struct Pending {
    wanted: Wanted,
    /// The time of the answer, and what it is.
    due_ns: u64,
    error: Option<TierError>,
}

/// A tier for tests and simulations, with rows that a function makes and answers that another one chooses, both for the wanted row.
/// Unlike others it allocates.
pub struct ScriptedTier<R, S> {
    room: usize,
    pending: Vec<Pending>,
    row: R,
    script: S,
}

impl<R, S> fmt::Debug for ScriptedTier<R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScriptedTier")
            .field("room", &self.room)
            .field("pending", &self.pending)
            .finish_non_exhaustive()
    }
}

impl<R, S> ScriptedTier<R, S>
where
    R: FnMut(&Wanted) -> Vec<u8>,
    S: FnMut(&Wanted) -> Answer,
{
    /// A tier with room for so many fetches.
    pub fn new(room: usize, row: R, script: S) -> ScriptedTier<R, S> {
        ScriptedTier {
            room,
            pending: Vec::new(),
            row,
            script,
        }
    }
}

impl<R, S> Tier for ScriptedTier<R, S>
where
    R: FnMut(&Wanted) -> Vec<u8>,
    S: FnMut(&Wanted) -> Answer,
{
    fn fetch(&mut self, now_ns: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        if self.pending.len() == self.room {
            return Err(FetchesFull::ForAll);
        }
        let (due_ns, error) = match (self.script)(&wanted) {
            Answer::Row { after_ns } => (now_ns.saturating_add(after_ns), None),
            Answer::Error { after_ns, error } => (now_ns.saturating_add(after_ns), Some(error)),
            Answer::Never => (u64::MAX, Some(TierError::Late)),
        };
        self.pending.push(Pending {
            wanted,
            due_ns,
            error,
        });
        Ok(())
    }

    fn poll(&mut self, now_ns: u64, each: EachRow<'_>) {
        let is_due = |pending: &mut Pending| {
            pending.due_ns <= now_ns || pending.wanted.deadline_ns <= now_ns
        };
        let mut due: Vec<Pending> = self.pending.extract_if(.., is_due).collect();
        due.sort_by_key(|pending| pending.due_ns);
        for Pending {
            wanted,
            due_ns,
            error,
        } in due
        {
            match error {
                _ if due_ns > now_ns => each(wanted.token, Err(TierError::Late)),
                Some(error) => each(wanted.token, Err(error)),
                None => each(wanted.token, Ok(&(self.row)(&wanted))),
            }
        }
    }

    fn unanswered(&self) -> usize {
        self.pending.len()
    }
}
