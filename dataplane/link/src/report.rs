//! What a dataplane tells of itself.

use serde::{Deserialize, Serialize};

use crate::policy::Order;

/// A dataplane and its tables, at a moment. By default one that tells nothing yet, not even who it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Report {
    /// Drawn at each of its starts, 32 hexadecimal digits: counters, and which rows are sampled, begin anew with it.
    pub instance: String,
    /// The program's version.
    pub version: String,
    /// The model that it serves.
    pub model: String,
    /// The generation's name.
    pub generation: String,
    /// Numbers of the generations that it holds, the one first that requests get which name none; none told where it can't change them.
    #[serde(default)]
    pub generations: Vec<u64>,
    /// What tells each of `generations` from others of its number, its fingerprint; none told by versions that did not.
    #[serde(default)]
    pub fingerprints: Vec<u32>,
    /// The last change of them, and how it stands, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generations_change: Option<String>,
    /// The last delta that was applied to each of `generations`, 0 before the first; none told where no deltas are taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deltas: Option<Vec<u64>>,
    /// What became of the last delta that the control plane gave, a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deltas_change: Option<String>,
    /// Why the next delta of one of `generations` can't be applied, and so none behind it, a sentence; none where nothing is in the way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deltas_failed: Option<String>,
    /// Bytes of the arena that cached tables share: as much as the configuration gives them together.
    pub arena_bytes: u64,
    /// Its workers: a share has at least two sets of rows for each.
    pub workers: u32,
    /// The policy that it follows, if it follows one.
    pub policy: Option<Applied>,
    /// All tables of the generation.
    pub tables: Vec<TableReport>,
}

/// The policy that a dataplane follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Applied {
    /// Who published it.
    pub control: String,
    /// See there.
    pub order: Order,
    /// What of it could not be done, each a sentence that names the table.
    pub refused: Vec<String>,
}

/// Where a table's rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum Placement {
    /// All in the arena.
    Resident,
    /// Some in a share of the arena, the rest behind it.
    Cached,
}

/// A table at a moment. What is counted is counted from the start of the dataplane on; of a resident table nothing is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct TableReport {
    /// Its name.
    pub table: String,
    /// Its rows.
    pub rows: u64,
    /// Bytes that a row takes of the arena when it is cached, with what is kept beside it.
    pub slot_bytes: u64,
    /// See there.
    pub placement: Placement,
    /// Its share of the arena in bytes, 0 unless it is cached.
    pub cache_bytes: u64,
    /// Rows that the share has room for.
    pub cache_rows: u64,
    /// Rows that are there.
    pub held_rows: u64,
    /// Whether its share is on the way to another size, or some share of the dataplane is about to be for the policy that it follows.
    pub resizing: bool,
    /// Rows that were looked up, and those that were in the cache.
    pub lookups: u64,
    /// See above.
    pub hits: u64,
    /// Rows that were fetched, and the time that they took together, in nanoseconds: what a miss costs.
    pub fetched: u64,
    /// See above.
    pub fetch_ns: u64,
    /// Rows that are pinned, and those of them that are there.
    pub pinned: u64,
    /// See above.
    pub pinned_held: u64,
}
