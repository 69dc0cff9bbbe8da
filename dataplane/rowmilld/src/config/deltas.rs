//! `[deltas]`: rows that become others while they are served.

use std::path::PathBuf;

use serde::Deserialize;

use super::Config;

/// Where deltas are kept.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Deltas {
    /// A directory, made where there is none, in which all deltas stay that were applied, to be applied again after a restart; one dataplane's alone.
    /// Without it none are applied. With it resident tables take 1.6 % more memory, and of cached ones the rows that change stay in memory.
    pub directory: Option<PathBuf>,
}

impl Config {
    /// Whether rows can change.
    pub(crate) fn takes_deltas(&self) -> bool {
        self.deltas.directory.is_some()
    }

    pub(super) fn deltas_fault(&self) -> Option<(&'static str, String)> {
        let directory = self.deltas.directory.as_ref()?;
        let is_empty = directory.as_os_str().is_empty();
        is_empty.then(|| {
            (
                "deltas.directory",
                "is empty; name a directory, or leave it out".into(),
            )
        })
    }
}
