//! What is told of a run: its last events, and a number that changes with every event.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;

use rowmill_port::sim::{Entry, What};

/// Events kept for telling.
const KEPT: usize = 120;

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

    /// The last events, one a line.
    pub fn tell(&self) -> String {
        self.last.iter().map(|entry| format!("{entry}\n")).collect()
    }
}
