//! What is told of a run: its last events, and a number that changes with every event.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

use rowmill_port::ConnId;
use rowmill_port::sim::{Entry, What};

/// Events kept for telling.
const KEPT: usize = 400;

/// A run's events.
pub struct Story {
    last: VecDeque<Entry>,
    hasher: DefaultHasher,
    aloud: bool,
    /// How many events there were.
    pub events: u64,
}

impl Story {
    /// An empty story; with `aloud`, each event is printed as it comes.
    pub fn new(aloud: bool) -> Story {
        Story {
            last: VecDeque::with_capacity(KEPT),
            hasher: DefaultHasher::new(),
            aloud,
            events: 0,
        }
    }

    /// Goes on.
    pub fn add(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            self.events += 1;
            let line = entry.to_string();
            line.hash(&mut self.hasher);
            if let What::Delivered { frame: bytes, .. } | What::Read { bytes, .. } = &entry.what {
                bytes.hash(&mut self.hasher);
            }
            if self.aloud {
                // A closed pipe ends the telling, not the run.
                self.aloud = writeln!(std::io::stdout(), "{line}").is_ok();
            }
            if self.last.len() == KEPT {
                self.last.pop_front();
            }
            self.last.push_back(entry);
        }
    }

    /// Two runs with the same hash saw the same events.
    pub fn hash(&self) -> u64 {
        self.hasher.finish()
    }

    /// The last events, one a line; of many pieces of results that follow one another the first.
    pub fn tell(&self) -> String {
        let mut lines = Vec::new();
        let (mut before, mut more) = (None, 0);
        for entry in &self.last {
            let pieces = pieces_of(entry);
            if pieces.is_some() && pieces == before {
                more += 1;
                continue;
            }
            lines.extend((more > 0).then(|| and_more(more)));
            lines.push(format!("{entry}\n"));
            (before, more) = (pieces, 0);
        }
        lines.extend((more > 0).then(|| and_more(more)));
        lines.concat()
    }
}

/// Whose pieces of results an entry tells of, and whether they are posted or placed.
fn pieces_of(entry: &Entry) -> Option<(ConnId, u16, bool)> {
    match entry.what {
        What::Granted { lane, .. } => Some((entry.conn, lane, false)),
        What::Landed { lane, .. } => Some((entry.conn, lane, true)),
        _ => None,
    }
}

fn and_more(pieces: usize) -> String {
    format!("{:>17}and {pieces} more\n", "")
}
