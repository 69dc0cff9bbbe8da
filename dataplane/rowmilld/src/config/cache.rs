//! Tables that are treated differently from the others, and what workers have for those that are cached.

use core::fmt;
use core::str::FromStr;
use std::path::PathBuf;

use rowmill_arena::PageCache;
use rowmill_cache::tier::{MAX_READ_BYTES, MIN_READ_BYTES};
use rowmill_wire::limits::MAX_IDS_PER_BAG;
use serde::{Deserialize, Serialize};

use super::{Config, Failure, from_text};
use crate::cache::asked;

/// Where the rows of a table are.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All of them in the arena, in memory of their own.
    Resident,
    /// Some of them in the arena, the rest in the table's file.
    Cached,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Placement::Resident => "resident",
            Placement::Cached => "cached",
        })
    }
}

/// A table that is not simply resident.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Its name in the generation.
    pub name: String,
    /// Where its rows are at start.
    pub placement: Placement,
    /// Its share of the arena when it is cached, in bytes: rows, and eight bytes a row besides. Where it is not set, it is told how many there must be.
    #[serde(default)]
    pub cache_bytes: u64,
    /// Bytes that a delta may bring rows of it to which [deltas](super::Deltas) changed while it is cached, besides its share, and 36 to 72 bytes a row
    /// that say which they are: as many as `cache_bytes` unless set. What was applied is in memory in any case, as long as its generation is held.
    pub delta_bytes: Option<u64>,
    /// What is done about rows that can't be read.
    #[serde(default)]
    pub on_failure: Failure,
}

/// What each worker has for cached tables.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Bytes that all cached tables have together, whose shares may change while they are served; as many as `cache_bytes` of all listed
    /// tables together unless set.
    pub arena_bytes: Option<u64>,
    /// Reads of files that a worker has in flight at most. Rows of neighbouring pages share one.
    pub reads: u32,
    /// Bytes of a read at most: how far rows of neighbouring pages are read together.
    pub read_bytes: u32,
    /// How long a row may take to come, in milliseconds, from when it is read. Who waits for one that takes longer gets an error. Rows
    /// wait for their turn to be read as long as others come; where none does for so long, or none of the table whose last one was late, all
    /// that wait are given up, so that a dead disk
    /// fails a row after twice as long (of a row that another worker reads after four times as long). The default is some hundred
    /// times what a busy disk takes.
    pub budget_ms: u32,
    /// Rows that a worker keeps for requests that wait for others of theirs.
    pub staged_rows: u32,
    /// Bags that wait for rows on a worker at most. What finds no room waits for it.
    pub parked_bags: u32,
    /// Rows on their way on a worker that were asked for in advance and nobody waits for.
    pub prefetched_rows: u32,
    /// Whether a file whose file system has no O_DIRECT is read by way of the page cache.
    #[serde(deserialize_with = "from_text")]
    pub page_cache: PageCacheUse,
    /// The folder of copies of files: rows of tables whose `on_failure` says `next-tier` are read there if they can't be read from the model's
    /// own files. Those of a generation are in a folder in it that is named as the generation's, or, where there is none, in it itself.
    pub next_tier: Option<PathBuf>,
    /// Where the list of the rows that are wanted most is kept, so that the next start loads them first.
    pub warm_file: Option<PathBuf>,
    /// How often it is written, in seconds.
    pub warm_every_s: u32,
}

impl Default for Cache {
    fn default() -> Cache {
        Cache {
            arena_bytes: None,
            reads: 128,
            read_bytes: 16 << 10,
            budget_ms: 1000,
            staged_rows: 2 * MAX_IDS_PER_BAG,
            parked_bags: 8192,
            prefetched_rows: 256,
            page_cache: PageCacheUse(PageCache::Refuse),
            next_tier: None,
            warm_file: None,
            warm_every_s: 30,
        }
    }
}

/// As [`PageCache`], written `"refuse"` or `"allow"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCacheUse(pub PageCache);

impl FromStr for PageCacheUse {
    type Err = String;

    fn from_str(text: &str) -> Result<PageCacheUse, String> {
        match text {
            "refuse" => Ok(PageCacheUse(PageCache::Refuse)),
            "allow" => Ok(PageCacheUse(PageCache::Allow)),
            _ => Err(format!(
                "page_cache can be `refuse` or `allow`, not `{text}`"
            )),
        }
    }
}

/// What a worker has for a table's rows that wait for their turn: a queue of 16 bytes for each of 257 lanes, of own rows and of others'.
const TABLE_BYTES: u64 = 2 * 257 * 16;

impl Cache {
    /// Bytes that one of so many workers has for so many cached tables whose longest rows have so many bytes, and which are read from so many
    /// tiers.
    pub(crate) fn worker_bytes(
        &self,
        tables: u32,
        row_bytes: u64,
        workers: u64,
        tiers: u64,
    ) -> u64 {
        // What is kept of a staged row, a row on its way, what waits for it, and a parked bag: 100 bytes or less each.
        let own_asked = u64::from(asked(tables));
        let asked = own_asked * workers;
        let rows = u64::from(self.staged_rows) + u64::from(self.prefetched_rows) + asked;
        (u64::from(self.staged_rows) + own_asked) * row_bytes
            + tiers * u64::from(self.reads) * u64::from(self.read_bytes)
            + (2 * rows + u64::from(self.parked_bags)) * 100
            + u64::from(tables) * TABLE_BYTES
    }

    /// Nanoseconds that a row may take.
    pub(crate) fn budget_ns(&self) -> u64 {
        u64::from(self.budget_ms) * 1_000_000
    }

    fn fault(&self) -> Option<(&'static str, String)> {
        let least = u64::from(MAX_IDS_PER_BAG);
        let (short, long) = (MIN_READ_BYTES as u64, MAX_READ_BYTES as u64);
        let ranges: [(&'static str, u32, u64, u64); 7] = [
            ("cache.reads", self.reads, 1, 4096),
            ("cache.read_bytes", self.read_bytes, short, long),
            ("cache.budget_ms", self.budget_ms, 1, 3_600_000),
            ("cache.staged_rows", self.staged_rows, least, 1 << 20),
            ("cache.parked_bags", self.parked_bags, 1, 1 << 20),
            ("cache.prefetched_rows", self.prefetched_rows, 0, 1 << 20),
            ("cache.warm_every_s", self.warm_every_s, 1, 86_400),
        ];
        for (key, given, low, high) in ranges {
            if !(low..=high).contains(&u64::from(given)) {
                return Some((key, format!("is {given}; write {low} to {high}")));
            }
        }
        if !self.read_bytes.is_multiple_of(4096) {
            let reason = format!("is {}; write a multiple of 4096", self.read_bytes);
            return Some(("cache.read_bytes", reason));
        }
        if self
            .next_tier
            .as_ref()
            .is_some_and(|folder| folder.as_os_str().is_empty())
        {
            let reason =
                "is empty; write the folder of a copy of the tables' files, or leave it out";
            return Some(("cache.next_tier", reason.into()));
        }
        let file = self.warm_file.as_ref()?;
        let is_folder = file.as_os_str().as_encoded_bytes().ends_with(b"/");
        let reason = if is_folder || file.file_name().is_none() {
            "names no file; write a path such as /var/lib/rowmill/demo.warm"
        } else if self.prefetched_rows == 0 {
            "loads rows in advance, and cache.prefetched_rows = 0 lets no row be; write more there"
        } else {
            return None;
        };
        Some(("cache.warm_file", reason.into()))
    }
}

impl Config {
    /// Bytes that all cached tables have together.
    pub(crate) fn arena_bytes(&self) -> u64 {
        let all = || self.tables.iter().map(|table| table.cache_bytes).sum();
        self.cache.arena_bytes.unwrap_or_else(all)
    }

    /// Whether tables may be cached in another way than at start.
    pub(crate) fn may_change(&self) -> bool {
        self.admin.allow_changes || self.control.is_on()
    }

    fn arena_fault(&self) -> Option<(&'static str, String)> {
        let arena = self.cache.arena_bytes?;
        let cached = self.tables.iter();
        let cached = cached.filter(|table| table.placement == Placement::Cached);
        let shares: u64 = cached.map(|table| table.cache_bytes).sum();
        let largest = self.tables.iter().map(|table| table.cache_bytes).max();
        let least = shares.max(largest.unwrap_or(0));
        (arena < least).then(|| {
            let reason = format!(
                "is {arena}, and shares of cached tables are {shares} together, the largest of a listed one {}; write at least \
                 {least}, or less tables.cache_bytes",
                largest.unwrap_or(0)
            );
            ("cache.arena_bytes", reason)
        })
    }

    /// The first value of tables and cache that can't work, and why.
    pub(super) fn tables_fault(&self) -> Option<(&'static str, String)> {
        let names: Vec<&str> = self.tables.iter().map(|t| t.name.as_str()).collect();
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                let reason = format!("`{name}` is listed twice; list a table once");
                return Some(("tables.name", reason));
            }
        }
        let most = 1 << 44;
        if let Some(table) = self.tables.iter().find(|t| t.cache_bytes > most) {
            let reason = format!(
                "of `{}` is {}; write at most {most}",
                table.name, table.cache_bytes
            );
            return Some(("tables.cache_bytes", reason));
        }
        if let Some(fault) = self.arena_fault() {
            return Some(fault);
        }
        let mut passing = self.tables.iter().filter(|t| t.on_failure.next_tier);
        if let (None, Some(table)) = (&self.cache.next_tier, passing.next()) {
            let reason = format!(
                "of `{}` says next-tier, and there is none: set cache.next_tier to the folder of a copy of the table's file, or write \
                 on_failure = \"error\" or \"default-row\"",
                table.name
            );
            return Some(("tables.on_failure", reason));
        }
        self.cache.fault()
    }
}
