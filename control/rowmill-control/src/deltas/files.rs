//! Directories and files of the log.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use rowmill_table::{DeltaFile, delta_file_name};

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
pub(super) fn found(directory: &Path) -> anyhow::Result<Option<((String, u64), Last)>> {
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
    let mut found: Option<((String, u64), Last)> = None;
    for sequence in 1..=count {
        let path = directory.join(delta_file_name(sequence));
        // With as many files, each of which has a number of its own, one that lacks tells of a gap.
        ensure!(
            path.try_exists().with_context(unread)?,
            "{} has {count} deltas, which are to be those from 1 on without a gap, and lacks {sequence}: bring it back, or remove all after it",
            directory.display()
        );
        let delta = DeltaFile::open(&path)?;
        let head = delta.head();
        let (of, last) = found.get_or_insert_with(|| {
            let of = (head.model.clone(), head.generation);
            (of, Last::of(head.base))
        });
        let named = format!("gen-{}", of.1);
        let is_there = directory
            .file_name()
            .is_some_and(|name| name.to_str() == Some(&named));
        ensure!(
            is_there
                && (&head.model, head.generation, head.base, head.sequence)
                    == (&of.0, of.1, last.base, sequence),
            "{} is delta {} of generation {} of model {} (fingerprint {:08x}): it does not belong there",
            path.display(),
            head.sequence,
            head.generation,
            head.model,
            head.base
        );
        last.push(&delta);
    }
    // One of them may have got its name right before a kill.
    sync(directory).with_context(unread)?;
    Ok(found)
}

/// Makes a directory, with those above it that there are not, for nobody else to look into; its name is on the disk then.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let above = directory.parent().filter(|above| *above != Path::new(""));
    if let Some(above) = above {
        make(above)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => above.map_or(Ok(()), sync),
    }
}

pub(super) fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
