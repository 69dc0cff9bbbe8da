//! Deltas that were applied, in files, so that they are applied again after a restart.
//!
//! Those of generation N of a model are `MODEL/gen-N/SEQUENCE.delta` in the directory of deltas. A file has that name when it is whole, checked
//! and on the disk; until then it ends in `.tmp`, and one of these that is found is of a process that died meanwhile.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, anyhow, bail, ensure};
use rowmill_table::{
    DeltaFile, Generation, Resident, ResidentTable, delta_chain, delta_file_name, delta_folder,
    make_private, sync_directory,
};
use rustix::fs::{Access, access};

use super::target::{Target, Targets, change, have_room};
use crate::claim::Claim;
use crate::config::Config;

/// See the module's text.
#[derive(Debug)]
pub struct Store {
    model: String,
    /// Of this model.
    directory: PathBuf,
    /// Held by who applies a delta or brings a generation in; see [`alone`](Store::alone).
    working: Mutex<()>,
    /// Rows that became others.
    rows: AtomicU64,
    /// Of each generation what tells the deltas that were applied to it from any others: see [`delta_chain`].
    chains: Mutex<BTreeMap<u64, (u64, u32)>>,
    _claim: Claim,
}

impl Store {
    /// That of the configuration, if deltas are taken.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn configured(config: &Config) -> anyhow::Result<Option<Arc<Store>>> {
        let directory = config.deltas.directory.as_deref();
        let store = directory.map(|directory| Store::open(directory, &config.model.name()));
        Ok(store.transpose()?.map(Arc::new))
    }

    /// Opens the directory, and makes it where there is none. It is this process's alone.
    ///
    /// # Errors
    /// Where it can't be written, or is another's.
    pub fn open(directory: &Path, model: &str) -> anyhow::Result<Store> {
        let directory = directory.join(delta_folder(model));
        let unmade = || format!("deltas.directory: cannot make {}", directory.display());
        make_private(&directory).with_context(unmade)?;
        let claim = Claim::take(&directory.join("deltas"));
        let claim = claim.context("deltas.directory: give each dataplane its own")?;
        ensure!(
            claim.is_locked,
            "deltas.directory: {} is on a file system without locks, where nothing would keep two dataplanes apart: choose another",
            directory.display()
        );
        Ok(Store {
            model: model.to_owned(),
            directory,
            working: Mutex::new(()),
            rows: AtomicU64::new(0),
            chains: Mutex::default(),
            _claim: claim,
        })
    }

    /// Looks for what would keep the directory of the configuration from being opened, or deltas of a generation from being applied again, as far
    /// as it can be found out without leaving a trace: they are read whole, and their ids are not looked up.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`replay`](Self::replay).
    pub fn look(config: &Config, generation: &Generation) -> anyhow::Result<()> {
        let Some(all) = config.deltas.directory.as_deref() else {
            return Ok(());
        };
        let model = config.model.name();
        let directory = all.join(delta_folder(&model));
        // What there is of it already; the rest is made.
        let there = directory
            .ancestors()
            .find(|above| above.symlink_metadata().is_ok());
        let there = there.unwrap_or(Path::new("."));
        let may = there
            .is_dir()
            .then(|| access(there, Access::WRITE_OK | Access::EXEC_OK));
        let why = match may {
            Some(Ok(())) => None,
            Some(Err(errno)) => Some(errno.to_string()),
            None => Some("it is no directory".into()),
        };
        if let Some(why) = why {
            bail!(
                "deltas.directory: cannot write in {}: {why}",
                there.display()
            );
        }
        Claim::look(&directory.join("deltas"))
            .context("deltas.directory: give each dataplane its own")?;
        let directory = directory.join(format!("gen-{}", generation.number()));
        let (sequences, _) = files_in(&directory)?;
        for sequence in sequences {
            let delta = DeltaFile::open(directory.join(delta_file_name(sequence)))?;
            let head = delta.head();
            let is = (&*head.model, head.generation, head.base, head.sequence);
            let expected = (
                &*model,
                generation.number(),
                generation.fingerprint(),
                sequence,
            );
            ensure!(
                is == expected,
                delta.bad(format!(
                    "is delta {} of generation {} (fingerprint {:08x}) of model {}, and not {sequence} of generation {} (fingerprint {:08x}) of model {model}: \
                     move away those that do not belong there",
                    is.3, is.1, is.2, is.0, expected.1, expected.2
                ))
            );
            delta.check()?;
        }
        Ok(())
    }

    /// Keeps others out while a delta is kept and applied, or while those of a generation are applied again and it becomes one that is held: so
    /// each delta that is kept is of the rows of all generations that are held, whichever comes first.
    pub(crate) fn alone(&self) -> MutexGuard<'_, ()> {
        self.working.lock().expect("a panic ends the process")
    }

    /// Where deltas of the model are.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Rows that became others since the start, and at it.
    pub(crate) fn rows(&self) -> u64 {
        self.rows.load(Relaxed)
    }

    pub(super) fn count(&self, rows: u64) {
        self.rows.fetch_add(rows, Relaxed);
    }

    /// A delta was applied to tables of a generation, after those before it.
    pub(super) fn applied(&self, tables: &Resident, delta: &DeltaFile) {
        let mut chains = self.chains.lock().expect("a panic ends the process");
        let sequence = delta.head().sequence;
        let before = match chains.get(&tables.generation()) {
            Some((_, chain)) if sequence > 1 => *chain,
            _ => tables.fingerprint(),
        };
        let chain = delta_chain(before, delta.crc32());
        chains.insert(tables.generation(), (sequence, chain));
    }

    /// What tells the first so many deltas of a generation from any others, if those are what was applied to it last.
    pub(crate) fn chain(&self, tables: &Resident, sequence: u64) -> Option<u32> {
        if sequence == 0 {
            return Some(tables.fingerprint());
        }
        let chains = self.chains.lock().expect("a panic ends the process");
        let (last, chain) = chains.get(&tables.generation())?;
        (*last == sequence).then_some(*chain)
    }

    fn generation(&self, number: u64) -> PathBuf {
        self.directory.join(format!("gen-{number}"))
    }

    fn path(&self, generation: u64, sequence: u64) -> PathBuf {
        self.generation(generation).join(delta_file_name(sequence))
    }

    /// Applies all deltas of a generation that has just been loaded, which nobody reads yet. Returns how many there are. Those of tables without rows,
    /// which are to be cached, are applied when there is something to put them into.
    ///
    /// # Errors
    /// Where one is damaged, or lacking while there is a later one.
    pub fn replay(&self, tables: &Resident) -> anyhow::Result<u64> {
        let generation = tables.generation();
        let last = self.last(generation)?;
        let targets = |table: &ResidentTable| table.has_rows().then(|| Target::Rows(table.clone()));
        for sequence in 1..=last {
            let delta = self.again(tables, sequence, &targets)?;
            self.applied(tables, &delta);
            tables.set_delta(sequence);
            self.count(delta.head().rows());
        }
        if last > 0 {
            // One of them may have got its name right before a kill, and must not lose it once it is served.
            self.settle(generation)?;
            tracing::info!("applied {last} deltas of generation {generation} again");
        }
        Ok(last)
    }

    /// Applies all deltas that a generation has once more, and one that could not be read to its end, some of whose rows may be served: to tables that
    /// nobody reads yet as they are from now on.
    ///
    /// # Errors
    /// Where one is damaged, or there is no room for its rows.
    pub(crate) fn replay_to(&self, tables: &Resident, targets: &Targets<'_>) -> anyhow::Result<()> {
        let generation = tables.generation();
        let last = self.all_kept(tables)?;
        let (applied, mut chain) = (tables.delta(), tables.fingerprint());
        let is_wanted = |name: &str| tables.table(name).and_then(targets).is_some();
        let mut wanted = Vec::new();
        for sequence in 1..=last {
            let delta = DeltaFile::open(self.path(generation, sequence))?;
            if sequence <= applied {
                chain = delta_chain(chain, delta.crc32());
            }
            let mut sections = delta.head().sections.iter();
            if sections.any(|section| is_wanted(&section.table)) {
                wanted.push(sequence);
            }
        }
        let is_same = self.chain(tables, applied).is_none_or(|own| own == chain);
        ensure!(
            is_same,
            "{} has other deltas than the {applied} that were applied: bring those back",
            self.generation(generation).display()
        );
        wanted
            .into_iter()
            .try_for_each(|sequence| self.again(tables, sequence, targets).map(|_delta| ()))
    }

    /// How many deltas there are of a generation that is held: those that were applied at least, and one more where that could not be read to its end.
    fn all_kept(&self, tables: &Resident) -> anyhow::Result<u64> {
        let (generation, applied) = (tables.generation(), tables.delta());
        let last = self.last(generation)?;
        ensure!(
            last >= applied,
            "{} lacks delta {}, of {applied} that were applied to generation {generation}: bring it and all after it back",
            self.generation(generation).display(),
            last + 1
        );
        Ok(last)
    }

    /// Applies a delta that was kept.
    fn again(
        &self,
        tables: &Resident,
        sequence: u64,
        targets: &Targets<'_>,
    ) -> anyhow::Result<DeltaFile> {
        let generation = tables.generation();
        let path = self.path(generation, sequence);
        let delta = self.checked(&path, tables, sequence).with_context(|| {
            let way_out = match tables.delta() < sequence {
                true => ", or remove it and all after it to serve without their rows",
                false => "",
            };
            format!(
                "cannot apply delta {sequence} of generation {generation} again; bring back {}{way_out}",
                path.display()
            )
        })?;
        let changed = change((&delta, tables, targets), &mut || (), &mut |_| ());
        changed.with_context(|| {
            format!("cannot apply delta {sequence} of generation {generation} again")
        })?;
        Ok(delta)
    }

    /// How many deltas there are of a generation; clears away what was not finished.
    fn last(&self, generation: u64) -> anyhow::Result<u64> {
        let (sequences, unfinished) = files_in(&self.generation(generation))?;
        for path in unfinished {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        Ok(sequences.len() as u64)
    }

    /// The delta in a file, once all of it is sound and for these tables.
    fn checked(&self, path: &Path, tables: &Resident, sequence: u64) -> anyhow::Result<DeltaFile> {
        self.sound(DeltaFile::open(path)?, tables, sequence)
    }

    fn sound(
        &self,
        delta: DeltaFile,
        tables: &Resident,
        sequence: u64,
    ) -> anyhow::Result<DeltaFile> {
        let head = delta.head();
        let is = (head.model.as_str(), head.generation, head.sequence);
        if is != (&self.model, tables.generation(), sequence) {
            bail!(delta.bad(format!(
                "is delta {} of generation {} of model {}",
                is.2, is.1, is.0
            )));
        }
        delta.verify(tables)?;
        Ok(delta)
    }

    /// Keeps a delta that comes next. None where it was applied before.
    ///
    /// # Errors
    /// Where it does not come next, is not for these tables, or can't be kept. Nothing is changed then.
    pub(super) fn take(
        &self,
        source: &DeltaFile,
        tables: &Resident,
        targets: &Targets<'_>,
    ) -> anyhow::Result<Option<DeltaFile>> {
        let head = source.head();
        let (generation, sequence, last) = (head.generation, head.sequence, tables.delta());
        if head.model != self.model {
            bail!(source.bad(format!(
                "is for model {}, and {} is served",
                head.model, self.model
            )));
        }
        self.all_kept(tables)?;
        let path = self.path(generation, sequence);
        if sequence > last + 1 {
            bail!(source.bad(format!(
                "has sequence number {sequence}, and {} comes next",
                last + 1
            )));
        }
        let is_kept = path.try_exists();
        if is_kept.with_context(|| format!("cannot look for {}", path.display()))? {
            // Whether it was applied, or could not be read to the end.
            let kept = self.checked(&path, tables, sequence)?;
            if kept.crc32() != source.crc32() {
                bail!(source.bad(format!(
                    "has sequence number {sequence}, which another delta has that was taken before: {} comes next",
                    last + 1
                )));
            }
            self.settle(generation)?;
            return Ok((sequence > last).then_some(kept));
        }
        let draft = path.with_extension("delta.tmp");
        let kept = self.keep(source, (tables, targets), &draft, &path);
        if kept.is_err() {
            // It may not be there. What stays is cleared away at the next start.
            let _ = fs::remove_file(&draft);
        }
        kept.map(Some)
    }

    fn keep(
        &self,
        source: &DeltaFile,
        (tables, targets): (&Resident, &Targets<'_>),
        draft: &Path,
        path: &Path,
    ) -> anyhow::Result<DeltaFile> {
        let directory = path.parent().expect("in a directory");
        let unkept = || format!("cannot keep it in {}", directory.display());
        // What can be said before all of it is copied.
        let head = source.head();
        head.check_tables(tables).map_err(|why| source.bad(why))?;
        have_room(source, (tables, targets))?;
        make_private(directory).with_context(unkept)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut to = options.open(draft).with_context(unkept)?;
        let mut unwritten = None;
        let copied = source.bytes(&mut |piece| {
            let written = to.write_all(piece);
            written.inspect_err(|error| unwritten = Some(error.to_string()))
        });
        if let Some(why) = unwritten {
            return Err(anyhow!(why).context(unkept()));
        }
        copied?;
        to.sync_all().with_context(unkept)?;
        // What is checked is the copy, which nobody else writes.
        let kept = DeltaFile::open_called(draft, source.path())?;
        let kept = self.sound(kept, tables, source.head().sequence)?;
        if kept.crc32() != source.crc32() {
            return Err(anyhow!(source.bad("was changed while it was read".into())));
        }
        fs::rename(draft, path).with_context(unkept)?;
        self.settle(head.generation)?;
        Ok(kept)
    }

    /// Sees to it that the names of a generation's deltas are on the disk.
    fn settle(&self, generation: u64) -> anyhow::Result<()> {
        let directory = self.generation(generation);
        [&directory, &self.directory].into_iter().try_for_each(|directory| {
            sync_directory(directory).with_context(|| {
                format!(
                    "it has its place in {}, which perhaps does not last: send the same delta again, or restart",
                    directory.display()
                )
            })
        })
    }
}

/// The sequence numbers of the deltas in a generation's directory, which are those from 1 on, and files of deltas that were not finished.
fn files_in(directory: &Path) -> anyhow::Result<(Vec<u64>, Vec<PathBuf>)> {
    let unread = || format!("cannot look into {}", directory.display());
    let (mut sequences, mut unfinished) = (Vec::new(), Vec::new());
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok((sequences, unfinished));
        }
        entries => entries.with_context(unread)?,
    };
    for entry in entries {
        let path = entry.with_context(unread)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".delta.tmp") {
            unfinished.push(path);
            continue;
        }
        let number = name.strip_suffix(".delta");
        sequences.extend(number.and_then(|number| number.parse::<u64>().ok()));
    }
    sequences.sort_unstable();
    for (&found, expected) in sequences.iter().zip(1..) {
        ensure!(
            found == expected,
            "{} lacks delta {expected}, and has {found}: bring it back, or remove all after it to serve without their rows",
            directory.display()
        );
    }
    Ok((sequences, unfinished))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_one_process_s() {
        let place = tempfile::tempdir().unwrap();
        let first = Store::open(place.path(), "m").unwrap();
        let second = Store::open(place.path(), "m").unwrap_err();
        assert!(
            format!("{second:#}").contains("give each dataplane its own"),
            "{second:#}"
        );
        Store::open(place.path(), "n").unwrap();
        drop(first);
        Store::open(place.path(), "m").unwrap();
    }
}
