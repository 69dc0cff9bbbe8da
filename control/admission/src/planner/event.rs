//! What the planner is told, as it can be recorded.

use rowmill_link::{Policy, Report, Samples};
use serde::{Deserialize, Serialize};

use super::generations::ModelGenerations;
use super::settings::Settings;

/// Something that the planner is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[expect(clippy::large_enum_variant, reason = "most of them are reports")]
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
    /// Which generations of a model are wanted, or that it is left to its dataplanes.
    Generations {
        /// Its name.
        model: String,
        /// See there.
        wanted: Option<ModelGenerations>,
    },
    /// What a dataplane was told in an earlier epoch: its shares are gone on from when it reports.
    Remembered {
        /// Its name.
        dataplane: String,
        /// What it served, if that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        model: Option<String>,
        /// See there.
        policy: Policy,
    },
    /// What a dataplane told of itself last in an earlier epoch.
    Served {
        /// Its name.
        dataplane: String,
        /// The model that it served.
        model: String,
        /// The generation that it served where none was named.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        newest: Option<u64>,
    },
    /// All is published anew, in this epoch: a later one than the present one.
    Epoch(u64),
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
