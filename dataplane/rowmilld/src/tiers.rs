//! What rows of listed tables are read from: the model's own files, and copies of those of tables that name the next tier.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use rowmill_arena::{ArenaError, DIRECT_ALIGN, HugePages};
use rowmill_cache::figures::TierFigures;
use rowmill_cache::tier::{
    Chain, FileFailures, FileReads, FileTable, FileTier, FileTierOptions, RemoteTier,
    RemoteTierOptions, Tier,
};
use rowmill_port::rdma::remote::ReadLane;
use rowmill_table::{Compared, Generation, TableError};

use crate::config::{self, Cache, Failure, Tried};
use crate::files::{Role, TableFile};
use crate::plan::{Choice, bytes_text};
use crate::remote::Lane;

/// Rows that a worker may have asked its file tier for, for each read in flight: those that share a read, and some that wait for one.
const FETCHES_A_READ: u32 = 8;

/// What tiers are called: the model's own files, copies of them, and another dataplane's memory.
pub(crate) const NAMES: [&str; 3] = ["file", "copy", "remote"];

/// What one worker counts of one of its tiers.
#[derive(Clone, Debug)]
pub(crate) struct TierReads {
    /// The tier, of [`NAMES`].
    pub(crate) name: &'static str,
    /// Of all tables.
    pub(crate) figures: Arc<TierFigures>,
    /// Of each table by its place, if the tier has it: what was asked of its file, and what that failed to give to any worker.
    pub(crate) files: Vec<Option<(Arc<FileReads>, Arc<FileFailures>)>>,
}

impl TierReads {
    /// For the generations of the other side: the same of each worker, counted apart.
    pub(crate) fn of_other_side(workers: &[Vec<TierReads>]) -> Vec<Vec<TierReads>> {
        let first = workers.first().map_or(&[][..], |tiers| tiers);
        // What a file fails to give is counted once for all workers.
        let failures = |tier: &TierReads| -> Vec<Arc<FileFailures>> {
            tier.files.iter().map(|_| Arc::default()).collect()
        };
        let failures: Vec<Vec<_>> = first.iter().map(failures).collect();
        let of_worker = |tiers: &Vec<TierReads>| {
            let tiers = tiers.iter().zip(&failures);
            let of_tier = |(tier, failures): (&TierReads, &Vec<Arc<FileFailures>>)| {
                let files = tier.files.iter().zip(failures);
                let file = |(file, failures): (&Option<_>, &Arc<FileFailures>)| {
                    file.as_ref()
                        .map(|_| (Arc::default(), Arc::clone(failures)))
                };
                TierReads {
                    name: tier.name,
                    figures: Arc::default(),
                    files: files.map(file).collect(),
                }
            };
            tiers.map(of_tier).collect()
        };
        workers.iter().map(of_worker).collect()
    }
}

/// A tier, and its number of each table.
type Numbered = (Box<dyn Tier + Send>, Vec<Option<u32>>);

/// Files of listed tables. Workers know them by their place.
#[derive(Debug)]
pub(crate) struct Tiers<'a> {
    cache: &'a Cache,
    files: Vec<FileTable>,
    /// Of each, its copy where the table names the next tier.
    copies: Vec<Option<FileTable>>,
    /// Files that seem not to be the generation's.
    strange: Vec<Strange>,
}

impl Tiers<'_> {
    /// Opens the files of tables of these names, and their copies. Calls `tell` with the path of each before that.
    ///
    /// # Errors
    /// Where a file is not to be had.
    pub(crate) fn open<'a, 'n>(
        cache: &'a Cache,
        generation: &Generation,
        tables: impl Iterator<Item = (&'n str, Failure)>,
        tell: &dyn Fn(&Path),
    ) -> anyhow::Result<Tiers<'a>> {
        let (mut files, mut copies, mut strange) = (vec![], vec![], vec![]);
        for (name, on_failure) in tables {
            if let Ok(info) = generation.table(name) {
                tell(&generation.path(info));
            }
            let opened = FileTable::open(generation, name, cache.page_cache.0);
            let advice = match &opened {
                Err(TableError::Memory(ArenaError::NotDirect { .. })) => {
                    ": write cache.page_cache = \"allow\", or move the model"
                }
                _ => "",
            };
            let file = opened.with_context(|| format!("table {name}{advice}"))?;
            strange.extend(strangeness(&file, generation));
            let folder = cache.next_tier.as_ref().filter(|_| on_failure.next_tier);
            let copy = folder.map(|folder| {
                let folder = copies_in(folder, generation);
                tell(&folder.join(&file.info().file));
                let copy = file.copy_in(generation, &folder, cache.page_cache.0);
                copy.with_context(|| {
                    format!(
                        "table {name}: cache.next_tier is to have a copy of its file, itself or in a folder named as {}, since its on_failure names the \
                         next tier",
                        generation.dir().display()
                    )
                })
            });
            copies.push(copy.transpose()?);
            files.push(file);
        }
        Ok(Tiers {
            cache,
            files,
            copies,
            strange,
        })
    }

    /// The same, of which what workers read is counted as before, where generations of the side were held already; `reads` has it by worker.
    pub(crate) fn counted_in(mut self, reads: &[Vec<TierReads>]) -> Self {
        for TierReads { name, files, .. } in reads.first().into_iter().flatten() {
            for (at, (_, failures)) in files
                .iter()
                .enumerate()
                .filter_map(|(at, file)| Some((at, file.as_ref()?)))
            {
                let own = match *name {
                    name if name == NAMES[0] => Some(&mut self.files[at]),
                    name if name == NAMES[1] => self.copies[at].as_mut(),
                    _ => None,
                };
                if let Some(own) = own {
                    own.fails_in(Arc::clone(failures));
                }
            }
        }
        self
    }

    /// What a worker fetches rows from, and what it counts of that, in the order in which it asks. `remote` is its lane to another
    /// dataplane, if there is one. It counts where the worker did `before`, if it did.
    ///
    /// # Errors
    /// Where there are no more descriptors, or no memory.
    pub(crate) fn for_worker(
        &self,
        remote: Option<(&config::Remote, ReadLane)>,
        before: Option<&[TierReads]>,
    ) -> anyhow::Result<(Box<dyn Tier + Send>, Vec<TierReads>)> {
        let (first, numbers, own) = self.tier(NAMES[0], self.files.iter().map(Some), before)?;
        let has_copies = self.copies.iter().any(Option::is_some);
        if !has_copies && remote.is_none() {
            return Ok((Box::new(first), vec![own]));
        }
        let mut links: Vec<Numbered> = vec![(Box::new(first), numbers)];
        let mut reads = vec![own];
        if let Some((remote, lane)) = remote {
            let at = usize::from(remote.tried == Tried::After);
            let (tier, counted) = self.remote(remote, lane, before);
            let all = (0..self.files.len() as u32).map(Some).collect();
            links.insert(at, (Box::new(tier), all));
            reads.insert(at, counted);
        }
        if has_copies {
            let copies = self.copies.iter().map(Option::as_ref);
            let (next, of_copies, copies) = self.tier(NAMES[1], copies, before)?;
            links.push((Box::new(next), of_copies));
            reads.push(copies);
        }
        let chain = Chain::new(self.fetches(), self.files.len() as u32);
        let then = |chain: Chain, (tier, numbers)| chain.then(tier, numbers);
        let chain = links.into_iter().fold(chain, then);
        // The first one has all tables.
        let of_first = reads[0].files.iter().flatten();
        let chain = chain.shown_in(of_first.map(|(reads, _)| Arc::clone(reads)).collect());
        Ok((Box::new(chain), reads))
    }

    /// The tier of another dataplane's memory, which is asked for all tables; what it does not give fails at once.
    fn remote(
        &self,
        remote: &config::Remote,
        lane: ReadLane,
        before: Option<&[TierReads]>,
    ) -> (RemoteTier<Lane>, TierReads) {
        let strides = self.files.iter().map(|file| file.info().stride);
        let options = RemoteTierOptions {
            fetches: self.fetches(),
            budget_ns: u64::from(remote.budget_ms) * 1_000_000,
        };
        let mut tier = RemoteTier::new(Lane(lane), &strides.collect::<Vec<_>>(), options);
        if let Some(before) = before.and_then(|tiers| tiers.iter().find(|of| of.name == NAMES[2])) {
            let tables = before.files.iter().flatten().cloned();
            tier = tier.counted_in(Arc::clone(&before.figures), tables.collect());
        }
        let reads = TierReads {
            name: NAMES[2],
            figures: Arc::clone(tier.figures()),
            files: tier.tables().iter().cloned().map(Some).collect(),
        };
        (tier, reads)
    }

    /// A tier of those files that are there, by which numbers it knows them, and what is counted of it.
    fn tier<'f>(
        &self,
        name: &'static str,
        files: impl Iterator<Item = Option<&'f FileTable>> + Clone,
        before: Option<&[TierReads]>,
    ) -> anyhow::Result<(FileTier, Vec<Option<u32>>, TierReads)> {
        let present = || files.clone().flatten();
        let tier = FileTier::new(FileTierOptions {
            reads: self.cache.reads,
            read_bytes: self.cache.read_bytes as usize,
            fetches: self.fetches(),
            tables: present().count() as u32,
            budget_ns: self.cache.budget_ns(),
            polled: why_unpolled(present()).is_none(),
            huge_pages: HugePages::Off,
        });
        let mut tier = tier.map_err(|error| explained(error, self.cache))?;
        let before = before.and_then(|before| before.iter().find(|tier| tier.name == name));
        if let Some(before) = before {
            tier = tier.shown_in(Arc::clone(&before.figures));
        }
        let mut reads = TierReads {
            name,
            figures: Arc::clone(tier.figures()),
            files: Vec::new(),
        };
        let add = |file: Option<&FileTable>| -> anyhow::Result<Option<u32>> {
            let mut own = file.map(FileTable::for_another).transpose()?;
            let counted_before = before.and_then(|before| before.files[reads.files.len()].as_ref());
            if let (Some(own), Some((counted, _))) = (&mut own, counted_before) {
                own.reads_in(Arc::clone(counted));
            }
            let counted = |own: &FileTable| (Arc::clone(own.reads()), Arc::clone(own.failures()));
            reads.files.push(own.as_ref().map(counted));
            Ok(own.map(|own| tier.add(own)).transpose()?)
        };
        let numbers = files.map(add).collect::<Result<_, _>>()?;
        Ok((tier, numbers, reads))
    }

    /// Rows that a worker may have asked its tier for.
    fn fetches(&self) -> u32 {
        self.cache.reads * FETCHES_A_READ
    }

    /// All files, for whoever watches them.
    pub(crate) fn files(&self) -> Vec<TableFile> {
        let file = |table: &FileTable, role| TableFile {
            table: table.info().name.clone(),
            role,
            path: table.file().path().to_owned(),
            failures: Arc::clone(table.failures()),
        };
        let of_table = |(own, copy): (&FileTable, &Option<FileTable>)| match copy {
            None => vec![file(own, Role::Only)],
            Some(copy) => vec![file(own, Role::Copied), file(copy, Role::Copy)],
        };
        self.files
            .iter()
            .zip(&self.copies)
            .flat_map(of_table)
            .collect()
    }

    /// What was found out about the files.
    pub(crate) fn choices(&self) -> Vec<Choice> {
        let mut choices = vec![describe_reads(why_unpolled(self.files.iter()))];
        let mut all = self.files.iter().chain(self.copies.iter().flatten());
        if let Some(why) = all.find_map(|table| table.file().why_cached()) {
            let why = format!("{why}; the kernel keeps pages of it in memory that nobody counts");
            choices.push(Choice::warning("files", "by way of the page cache", why));
        }
        for (table, path, found) in &self.strange {
            let why = format!(
                "{found}; put the right file there and start again: until then rows of it fail as on_failure says"
            );
            let path = path.display().to_string();
            choices.push(Choice::warning(&format!("file of {table}"), path, why));
        }
        choices
    }

    /// Looks whether files seem to be the generation's, before it is loaded beside another one.
    ///
    /// # Errors
    /// Where one does not: then nobody should come to it.
    pub(crate) fn refuse_strange(&self) -> anyhow::Result<()> {
        match self.strange.first() {
            None => Ok(()),
            Some((table, path, found)) => anyhow::bail!(
                "table {table}: {}: {found}; put the right file there and load the generation again",
                path.display()
            ),
        }
    }
}

/// A file that seems not to be the generation's: its table, its path, and what was found.
type Strange = (String, PathBuf, String);

/// What is wrong with a table's file as a whole: rows of it can't be had, which who asks for them would be the first to see.
fn strangeness(file: &FileTable, generation: &Generation) -> Option<Strange> {
    let path = generation.path(file.info());
    let found = match file.compare_pages(generation) {
        Ok(Compared::Alike) => return None,
        Ok(Compared::Unlike { others, all }) => format!(
            "{others} of {all} pages that were looked at don't match their checksums: it is damaged, or of another generation"
        ),
        Err(error) => error.to_string(),
    };
    Some((file.info().name.clone(), path, found))
}

/// With what to do where the kernel does not lock what a worker reads into.
fn explained(error: ArenaError, cache: &Cache) -> anyhow::Error {
    let is_locking = matches!(
        error,
        ArenaError::NotRegistered { .. } | ArenaError::NoRingMemory { .. }
    );
    let error = anyhow::Error::from(error);
    if !is_locking {
        return error;
    }
    let (reads, bytes) = (cache.reads, u64::from(cache.read_bytes));
    error.context(format!(
        "each worker locks {} for reads (cache.reads = {reads} x cache.read_bytes = {bytes}), as much again for cache.next_tier, \
         and all of it twice while another generation is held",
        bytes_text(u64::from(reads) * bytes)
    ))
}

/// Where copies of a generation's files are: in a folder of the generation's name, so that there may be copies of several, or in this one itself.
fn copies_in(folder: &Path, generation: &Generation) -> PathBuf {
    let own = generation.dir().file_name().map(|name| folder.join(name));
    let own = own.filter(|own| own.is_dir());
    own.unwrap_or_else(|| folder.to_owned())
}

/// Why the devices of these files can't be polled, if one can't.
fn why_unpolled<'f>(mut files: impl Iterator<Item = &'f FileTable>) -> Option<&'f str> {
    files.find_map(|table| table.file().why_unpolled())
}

fn describe_reads(unpolled: Option<&str>) -> Choice {
    let direct = format!("io_uring, past the page cache, aligned to {DIRECT_ALIGN} bytes");
    match unpolled {
        None => Choice::new("reads of files", "polled", direct),
        Some(why) => Choice::new(
            "reads of files",
            "by interrupt",
            format!("{direct}; it can't be polled: {why}"),
        ),
    }
}
