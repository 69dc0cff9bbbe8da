//! Memory that is offered to other dataplanes, and rows that are read from one.

use core::fmt;
use core::str::FromStr;

use rowmill_port::rdma::endpoint::host_and_port;
use rowmill_port::rdma::remote::{LANES_MAX, LEASE_MAX, LEASE_MIN};
use serde::Deserialize;

use super::{Config, from_text};

/// What is offered to other dataplanes.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Export {
    /// Where readers connect: `rdma://ADDRESS:PORT`.
    pub listen: String,
    /// How long a reader may read after it has said that it still does, in milliseconds: the longest that memory of a generation that is
    /// unloaded is kept for it.
    #[serde(default = "default_lease")]
    pub lease_ms: u32,
    /// Dataplanes that may read at a time.
    #[serde(default = "default_readers")]
    pub readers: u16,
}

fn default_lease() -> u32 {
    3000
}

fn default_readers() -> u16 {
    16
}

/// The dataplane that rows of listed tables are read from, too.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Remote {
    /// Its `export.listen`: `rdma://HOST:PORT`.
    pub url: String,
    /// Whether it is asked `"before"` or `"after"` the model's own files.
    #[serde(default, deserialize_with = "from_text")]
    pub tried: Tried,
    /// Rows that a worker may have asked it for at a time.
    #[serde(default = "default_reads")]
    pub reads: u32,
    /// How long a row may take to come from there, in milliseconds.
    #[serde(default = "default_budget")]
    pub budget_ms: u32,
}

fn default_reads() -> u32 {
    128
}

fn default_budget() -> u32 {
    200
}

/// When rows are asked for there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tried {
    /// Before they are read from the model's own files.
    #[default]
    Before,
    /// If they can't be read from those, or not in time.
    After,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tried::Before => "before",
            Tried::After => "after",
        })
    }
}

impl FromStr for Tried {
    type Err = String;

    fn from_str(text: &str) -> Result<Tried, String> {
        match text {
            "before" => Ok(Tried::Before),
            "after" => Ok(Tried::After),
            _ => Err(format!(
                "tried can be `before` or `after` (the model's own files), not `{text}`"
            )),
        }
    }
}

impl Config {
    /// The first value of export and remote that can't work, and why.
    pub(super) fn remote_fault(&self) -> Option<(&'static str, String)> {
        self.export_fault().or_else(|| self.reader_fault())
    }

    fn export_fault(&self) -> Option<(&'static str, String)> {
        let export = self.export.as_ref()?;
        if let Err(error) = host_and_port(&export.listen) {
            return Some(("export.listen", error.to_string()));
        }
        if !self.insecure {
            let reason = format!(
                "`{}`: whoever reaches it can read all that is exported, since there are no tickets yet; set `insecure = true` where the \
                 network is trusted",
                export.listen
            );
            return Some(("export.listen", reason));
        }
        if self.takes_deltas() {
            let reason = "rows that others read with one-sided READs must not change; leave [export] or [deltas] out";
            return Some(("export.listen", reason.into()));
        }
        let (low, high) = (LEASE_MIN.as_millis(), LEASE_MAX.as_millis());
        if !(low..=high).contains(&export.lease_ms.into()) {
            let reason = format!("is {}; write {low} to {high}", export.lease_ms);
            return Some(("export.lease_ms", reason));
        }
        (!(1..=64).contains(&export.readers)).then(|| {
            let reason = format!("is {}; write 1 to 64", export.readers);
            ("export.readers", reason)
        })
    }

    fn reader_fault(&self) -> Option<(&'static str, String)> {
        let remote = self.remote.as_ref()?;
        if let Err(error) = host_and_port(&remote.url) {
            return Some(("remote.url", error.to_string()));
        }
        if self.tables.is_empty() {
            let reason = "no table is listed in [[tables]], and those that are not have all their rows in memory: list those whose rows are \
                          to be read there, as cached, or leave [remote] out";
            return Some(("remote.url", reason.into()));
        }
        let ranges = [
            ("remote.reads", remote.reads, 4096),
            ("remote.budget_ms", remote.budget_ms, 3_600_000),
        ];
        let out = |&(_, given, high): &(&str, u32, u32)| !(1..=high).contains(&given);
        let (key, given, high) = ranges.into_iter().find(out)?;
        Some((key, format!("is {given}; write 1 to {high}")))
    }

    /// Whether so many workers can have lanes to an exporter.
    pub(crate) fn lanes_fault(&self, workers: usize) -> Option<String> {
        (self.remote.is_some() && workers > LANES_MAX).then(|| {
            format!(
                "remote.url: {workers} workers, and an exporter takes {LANES_MAX} of a dataplane; lower workers.cpus, or leave [remote] out"
            )
        })
    }
}
