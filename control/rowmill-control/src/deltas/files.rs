//! Directories and files of the log.

use std::path::{Path, PathBuf};

use anyhow::Context;
use rowmill_table::{DeltaFile, delta_file_name, delta_model, sync_directory};

use super::Last;

/// Directories in a directory.
pub(super) fn folders(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let unread = || format!("cannot look into {}", directory.display());
    let mut found = Vec::new();
    for entry in directory.read_dir().with_context(unread)? {
        let entry = entry.with_context(unread)?;
        if entry.file_type().with_context(unread)?.is_dir() {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// What a generation's directory has.
pub(super) struct Found {
    /// Its model and number, by the names of the directories.
    pub(super) of: (String, u64),
    /// Its deltas, up to the first that can't be used; none where that is the first of all.
    pub(super) last: Option<Last>,
    /// The sequence number of that one, if there is one, and why.
    pub(super) broken: Option<(u64, String)>,
}

/// What a generation's directory has; none where it has no deltas.
///
/// # Errors
/// Where it can't be looked into, or its name is no generation's.
pub(super) fn found(directory: &Path) -> anyhow::Result<Option<Found>> {
    let unread = || format!("cannot look into {}", directory.display());
    let mut count = 0;
    for entry in directory.read_dir().with_context(unread)? {
        let entry = entry.with_context(unread)?;
        if entry.file_name().to_string_lossy().ends_with(".delta") {
            count += 1;
        }
    }
    if count == 0 {
        return Ok(None);
    }
    let of = named(directory).with_context(|| {
        format!(
            "{} has deltas, and is not MODEL/gen-N: move it away",
            directory.display()
        )
    })?;
    let mut found = Found {
        of,
        last: None,
        broken: None,
    };
    for sequence in 1..=count {
        if let Err(why) = extend(directory, &found.of, &mut found.last, sequence) {
            found.broken = Some((sequence, why));
            break;
        }
    }
    // One of them may have got its name right before a kill.
    sync_directory(directory).with_context(unread)?;
    Ok(Some(found))
}

/// Adds the next delta of a generation, if it can be used.
pub(super) fn extend(
    directory: &Path,
    (model, generation): &(String, u64),
    last: &mut Option<Last>,
    sequence: u64,
) -> Result<(), String> {
    let path = directory.join(delta_file_name(sequence));
    let opened = DeltaFile::open(&path);
    let delta = opened.map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
    let head = delta.head();
    let base = last.as_ref().map_or(head.base, |last| last.base);
    if (&head.model, head.generation, head.base, head.sequence)
        != (model, *generation, base, sequence)
    {
        return Err(format!(
            "{} is delta {} of generation {} of model {} (fingerprint {:08x}): it does not belong there",
            path.display(),
            head.sequence,
            head.generation,
            head.model,
            head.base
        ));
    }
    last.get_or_insert_with(|| Last::of(base)).push(&delta);
    Ok(())
}

/// The model and the generation that a directory is named after.
fn named(directory: &Path) -> Option<(String, u64)> {
    let name = |path: &Path| path.file_name()?.to_str().map(str::to_owned);
    let number = name(directory)?;
    let number = number.strip_prefix("gen-")?.parse().ok()?;
    let model = delta_model(&name(directory.parent()?)?)?;
    Some((model, number))
}
