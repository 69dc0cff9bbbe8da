//! What the planner is told, as it can be recorded.

use rowmill_link::{Report, Samples};
use serde::{Deserialize, Serialize};

use super::settings::Settings;

/// Something that the planner is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// What a dataplane tells of itself.
    Report {
        /// Its name.
        dataplane: String,
        /// See there.
        report: Report,
    },
    /// What was looked up there.
    Samples {
        /// Its name.
        dataplane: String,
        /// See there.
        samples: Samples,
    },
    /// What an operator wants of a table, or no longer.
    Settings {
        /// The model that it belongs to.
        model: String,
        /// Its name.
        table: String,
        /// See there.
        settings: Option<Settings>,
    },
    /// Time has passed. To be told [once a second](super::TURN_NS); decisions are made then alone.
    Turn,
}

/// An event and when it came: a line of a recording, in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    /// Nanoseconds since the recording began, by a clock that only goes forward.
    pub at_ns: u64,
    /// See there.
    pub event: Event,
}
