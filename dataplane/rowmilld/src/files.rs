//! Whether the files of cached tables, and copies of them, are what they were at start and give their rows. A thread of its own looks
//! every second, and says in the log when that changes: once for each change of a file.

use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::fs::Metadata;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use rowmill_cache::figures::Count;
use rowmill_cache::tier::{Failures, FileFailures};
use rowmill_engine::Side;

use crate::cache_view::{CacheView, TableView};
use crate::tiers::NAMES;

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);
/// Looks without a row that could not be read, until it counts as well again what only rows tell of.
const CALM: u32 = 60;
/// Looks for which a file that did not give a row is shown as failing, though it has given others since.
const LATELY: u32 = 3;

/// How a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Whole,
    /// There is another one in its place.
    Replaced,
    /// There is none in its place.
    Missing,
    /// It is shorter than it was.
    Cut,
    /// Pages don't match their checksums.
    Damaged,
    /// The kernel can't read it.
    Unreadable,
    /// Rows of it don't come in time.
    Late,
    /// Rows of it were not asked for in time, since other tables' rows held all reads.
    Starved,
}

/// Rows that were given up before they were asked of a file, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Unasked {
    /// Since the table's own file answered nothing.
    stalled: u64,
    /// Since other tables' rows held all reads.
    starved: u64,
}

/// What a file is to its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The model's own file, of which there is no copy.
    Only,
    /// The model's own file, of which there is a copy.
    Copied,
    /// The copy.
    Copy,
}

/// A file that rows of a table come from.
#[derive(Debug)]
pub struct TableFile {
    pub(crate) table: String,
    pub(crate) role: Role,
    pub(crate) path: PathBuf,
    /// What it failed to give.
    pub(crate) failures: Arc<FileFailures>,
}

/// What tells a file from another one that was put in its place: device and inode.
pub(crate) type Identity = (u64, u64);

/// The identity of what a path leads to.
pub(crate) fn identity(path: &Path) -> std::io::Result<Identity> {
    let about = path.metadata()?;
    Ok((about.dev(), about.ino()))
}

/// A file that is looked at.
#[derive(Debug)]
struct Watched {
    /// Of all that were ever looked at.
    number: u64,
    own: TableFile,
    /// That of its generation.
    side: Side,
    /// The device and inode that rows come from, and the bytes that it has to have.
    file: Identity,
    bytes: u64,
    state: State,
    /// What rows have told of it, and was said, since it was well.
    told: Vec<State>,
    seen: (Failures, u64),
    calm: u32,
}

impl Watched {
    /// A file that was just opened.
    fn new(own: TableFile, side: Side, unasked: Unasked) -> Result<Watched, Error> {
        let about = own.path.metadata()?;
        // What was before it in its place may have failed to give rows.
        let mut seen = own.failures.read();
        seen.late += unasked.stalled;
        Ok(Watched {
            number: 0,
            file: (about.dev(), about.ino()),
            bytes: about.len(),
            own,
            side,
            state: State::Whole,
            told: Vec::new(),
            seen: (seen, unasked.starved),
            calm: 0,
        })
    }

    /// Looks at what the file system says of it. So many rows of its table were given up before they were read. Returns how it is now, if
    /// that is to be said.
    fn look(&mut self, about: Result<Metadata, Error>, unasked: Unasked) -> Option<State> {
        let mut now = self.own.failures.read();
        now.late += unasked.stalled;
        let (before, starved) = std::mem::replace(&mut self.seen, (now, unasked.starved));
        self.calm = match (now, unasked.starved) == (before, starved) {
            true => self.calm.saturating_add(1),
            false => 0,
        };
        // Where nobody asks for rows, nothing tells that it gives them.
        let is_over = self.calm >= CALM && !self.own.failures.is_failing();
        let of_rows = || match self.state {
            _ if now.corrupt > before.corrupt => State::Damaged,
            _ if now.gone > before.gone => State::Cut,
            _ if now.failed > before.failed => State::Unreadable,
            _ if now.late > before.late => State::Late,
            State::Damaged | State::Cut | State::Unreadable | State::Late if !is_over => self.state,
            _ if unasked.starved > starved => State::Starved,
            State::Starved if !is_over => State::Starved,
            _ => State::Whole,
        };
        let state = match about {
            Err(error) if error.kind() == ErrorKind::NotFound => State::Missing,
            Err(_) => of_rows(),
            Ok(about) if (about.dev(), about.ino()) != self.file => State::Replaced,
            Ok(about) if about.len() < self.bytes => State::Cut,
            Ok(_) => of_rows(),
        };
        let was = std::mem::replace(&mut self.state, state);
        match state {
            _ if state == was => return None,
            State::Whole | State::Missing | State::Replaced => self.told.clear(),
            // Several at a time are said once each, and not whenever another one comes.
            _ if self.told.contains(&state) => return None,
            _ => self.told.push(state),
        }
        Some(state)
    }

    /// Shows whether its rows starve, and whether it has not given some lately.
    fn show_in(&self, cache: &CacheView) {
        let tier = match self.own.role {
            Role::Only | Role::Copied => NAMES[0],
            Role::Copy => NAMES[1],
        };
        let mut tables = cache.tables.iter();
        let own = tables.find(|table| table.name == self.own.table);
        let of_newest = own.filter(|table| table.newest_side() == self.side);
        let Some(table) = of_newest else {
            return;
        };
        if table.store().is_none() {
            // Its rows come from memory: nothing would tell that it is well again.
            self.own.failures.forget();
        }
        if let Some(file) = table.files.iter().find(|file| file.tier == tier) {
            let is_starved = self.state == State::Starved;
            file.is_starved.store(is_starved, Relaxed);
            let has_failed = matches!(
                self.state,
                State::Cut | State::Damaged | State::Unreadable | State::Late
            );
            let is_failing = has_failed && self.calm < LATELY && table.store().is_some();
            file.is_failing.store(is_failing, Relaxed);
        }
    }

    /// What is to be said, and done, about a state.
    fn sentence(&self, state: State, holders: &[String]) -> String {
        let (whose, fate) = match self.own.role {
            Role::Only => ("", "not to be had"),
            Role::Copied => ("", "asked of its copy in cache.next_tier"),
            Role::Copy => ("its copy ", "not to be had there either"),
        };
        let what = match state {
            State::Whole => "is well again".into(),
            State::Replaced => {
                "is another file now than the one that rows come from, which goes on until the end: to serve the new one, start anew".into()
            }
            State::Missing => {
                "is not there any more; rows come from what was opened, and the next start needs it: put it back".into()
            }
            State::Cut => format!("was cut off, and rows behind its end are {fate}: copy it again"),
            State::Damaged => {
                let named = match self.own.role {
                    Role::Copy => "",
                    _ => "`rowmill table verify` names them; ",
                };
                format!(
                    "has pages that don't match their checksums, and their rows are {fate}: {named}copy the file again"
                )
            }
            State::Unreadable => {
                format!("can't be read everywhere, and rows there are {fate}: look at its disk")
            }
            State::Late => format!(
                "gives rows too late, or none at all, and they are {fate}: look at its disk, and at what else reads there"
            ),
            State::Starved => format!(
                "was not asked for rows in time, and they are {fate}: they waited for a read while those of {} held them; look at these \
                 tables' disks, or raise cache.reads",
                match holders {
                    [] => "other tables".into(),
                    holders => format!("table {}", holders.join(", ")),
                }
            ),
        };
        let TableFile { table, path, .. } = &self.own;
        format!("table {table}: {whose}{} {what}", path.display())
    }
}

/// Whether rows are asked of the next tier.
#[derive(Debug, Default)]
struct Passing {
    passed_on: u64,
    is_told: bool,
    calm: u32,
}

impl Passing {
    /// Looks at how many were asked of it since the start. Tells when that begins, and when it has been over for a while.
    fn look(&mut self, passed_on: u64) -> Option<Passed> {
        let more = passed_on - std::mem::replace(&mut self.passed_on, passed_on);
        self.calm = match more {
            0 => self.calm.saturating_add(1),
            _ => 0,
        };
        if more > 0 && !self.is_told {
            self.is_told = true;
            return Some(Passed::Begun(more));
        }
        let is_over = self.is_told && self.calm == CALM;
        self.is_told &= !is_over;
        is_over.then_some(Passed::Over)
    }
}

/// What is said of rows that are asked of the next tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Passed {
    /// So many were for the first time, or for the first time after a while.
    Begun(u64),
    /// None was for a while.
    Over,
}

impl Passed {
    fn log(self) {
        match self {
            Passed::Begun(rows) => tracing::warn!(
                "rows are read from cache.next_tier: the model's own files did not give {rows} in the last second; look at their disk"
            ),
            Passed::Over => tracing::info!("no row was read from cache.next_tier for {CALM} s"),
        }
    }
}

/// The files that are looked at.
#[derive(Debug, Default)]
pub struct Watch(Mutex<Files>);

#[derive(Debug, Default)]
struct Files {
    list: Vec<Watched>,
    /// How many were ever looked at.
    numbers: u64,
}

impl Watch {
    /// Whoever has them asks no file system of anything, which may never answer: others wait.
    fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock().expect("a panic ends the process")
    }

    /// Looks at these, too, of the generation of a side.
    ///
    /// # Errors
    /// Where one is gone already.
    pub(crate) fn add(
        &self,
        side: Side,
        files: Vec<TableFile>,
        cache: &CacheView,
    ) -> anyhow::Result<()> {
        let file = |file: TableFile| {
            let context = format!("cannot look at {}", file.path.display());
            let unasked = unasked(&file, side, cache);
            Watched::new(file, side, unasked).context(context)
        };
        let new: Vec<Watched> = files.into_iter().map(file).collect::<anyhow::Result<_>>()?;
        let mut files = self.files();
        for mut file in new {
            files.numbers += 1;
            file.number = files.numbers;
            files.list.push(file);
        }
        Ok(())
    }

    /// Looks at what is said of all of them when the file system is asked, and tells what has changed.
    fn look(&self, cache: &CacheView, ask: impl Fn(&Path) -> Result<Metadata, Error>) {
        let files = self.files();
        let paths = files.list.iter();
        let paths: Vec<(u64, PathBuf)> = paths
            .map(|file| (file.number, file.own.path.clone()))
            .collect();
        drop(files);
        let about = paths.into_iter().map(|(number, path)| (number, ask(&path)));
        let mut about: HashMap<u64, Result<Metadata, Error>> = about.collect();
        let mut files = self.files();
        let changes: Vec<Option<State>> = files
            .list
            .iter_mut()
            .map(|file| {
                // Of those that have come meanwhile nothing is known yet.
                let about = about.remove(&file.number)?;
                file.look(about, unasked(&file.own, file.side, cache))
            })
            .collect();
        let holders = holders(&files.list);
        for (file, state) in files.list.iter().zip(changes) {
            file.show_in(cache);
            match state {
                Some(State::Whole) => tracing::info!("{}", file.sentence(State::Whole, &[])),
                Some(state) => tracing::warn!("{}", file.sentence(state, &holders)),
                None => {}
            }
        }
    }

    /// Looks at those of a side's generation no more.
    pub(crate) fn leave(&self, side: Side) {
        self.files().list.retain(|file| file.side != side);
    }
}

/// Looks at files of listed tables from now on, as long as the process lives.
///
/// # Errors
/// Where a file is gone already, or no thread can be started.
pub(crate) fn watch(files: Vec<TableFile>, cache: Arc<CacheView>) -> anyhow::Result<Arc<Watch>> {
    let watch = Arc::<Watch>::default();
    if files.is_empty() {
        return Ok(watch);
    }
    watch.add(Side::A, files, &cache)?;
    let mut passing = Passing::default();
    let watched = Arc::clone(&watch);
    let look = move || {
        loop {
            std::thread::sleep(EVERY);
            watched.look(&cache, Path::metadata);
            if let Some(passed) = passing.look(cache.asked_of_copies()) {
                passed.log();
            }
        }
    };
    let thread = std::thread::Builder::new().name("rowmilld-files".into());
    let started = thread.spawn(look);
    started.context("cannot start the thread that looks at the files of cached tables")?;
    Ok(watch)
}

/// The tables whose rows come late, and hold reads.
fn holders(files: &[Watched]) -> Vec<String> {
    let late = files.iter().filter(|file| file.state == State::Late);
    late.map(|file| file.own.table.clone()).collect()
}

/// The table whose own file it is, the first that is asked.
fn own_table<'c>(file: &TableFile, cache: &'c CacheView) -> Option<&'c TableView> {
    let mut tables = cache.tables.iter();
    let table = tables.find(|table| table.name == file.table);
    table.filter(|_| file.role != Role::Copy)
}

/// Rows that were given up before they were asked of their table's own file.
fn unasked(file: &TableFile, side: Side, cache: &CacheView) -> Unasked {
    let of = |table: &TableView| Unasked {
        stalled: table.get_on(side, Count::Stalled),
        starved: table.get_on(side, Count::Starved),
    };
    own_table(file, cache).map_or_else(Unasked::default, of)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;
    use std::fs;

    use rowmill_arena::HugePages;
    use rowmill_cache::store::{Epochs, Shape, Store, Tags};
    use rowmill_cache::tier::TierError;
    use serde_json::Value;

    use super::*;
    use crate::cache_view::{FileView, Kept};
    use crate::share::Share;

    const NONE: Unasked = Unasked {
        stalled: 0,
        starved: 0,
    };

    impl Watched {
        /// Asks the file system and looks.
        fn look_now(&mut self, unasked: Unasked) -> Option<State> {
            self.look(self.own.path.metadata(), unasked)
        }
    }

    fn stalled(stalled: u64) -> Unasked {
        Unasked { stalled, ..NONE }
    }

    /// A file that is made there, and what it fails to give.
    fn made(path: &Path, role: Role) -> (Watched, Arc<FileFailures>) {
        fs::write(path, [7; 100]).unwrap();
        let failures = Arc::<FileFailures>::default();
        let file = TableFile {
            table: "a".into(),
            role,
            path: path.into(),
            failures: Arc::clone(&failures),
        };
        (
            Watched::new(file, Side::A, Unasked::default()).unwrap(),
            failures,
        )
    }

    /// What is said in so many looks, and in which of them.
    fn said(file: &mut Watched, looks: u32) -> Vec<(u32, State)> {
        let look = |look| Some((look, file.look_now(NONE)?));
        (0..looks).filter_map(look).collect()
    }

    #[test]
    fn each_change_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rows");
        let (mut file, _) = made(&path, Role::Only);
        assert_eq!(file.look_now(NONE), None);
        let kept = folder.path().join("kept");
        fs::rename(&path, &kept).unwrap();
        assert_eq!(file.look_now(NONE), Some(State::Missing));
        assert_eq!(file.look_now(NONE), None);
        fs::write(&path, [7; 100]).unwrap();
        assert_eq!(file.look_now(NONE), Some(State::Replaced));
        fs::rename(&kept, &path).unwrap();
        assert_eq!(file.look_now(NONE), Some(State::Whole));
        let opened = fs::OpenOptions::new().write(true).open(&path).unwrap();
        opened.set_len(99).unwrap();
        assert_eq!(file.look_now(NONE), Some(State::Cut));
        let said = file.sentence(State::Cut, &[]);
        assert!(
            said.starts_with("table a: ") && said.contains("a.rows was cut off"),
            "{said}"
        );
        opened.set_len(100).unwrap();
        file.calm = CALM;
        assert_eq!(file.look_now(NONE), Some(State::Whole));
    }

    #[test]
    fn who_comes_or_goes_waits_for_no_file_system() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rows");
        let (file, _) = made(&path, Role::Only);
        let (cache, watch) = (shown(&["a"]), Watch::default());
        watch.files().list.push(file);
        let other = folder.path().join("b.rows");
        let ask = |path: &Path| {
            // As if it did not answer until now.
            watch.leave(Side::A);
            let file = made(&other, Role::Only).0.own;
            watch.add(Side::B, vec![file], &cache).unwrap();
            fs::remove_file(&other).unwrap();
            path.metadata()
        };
        watch.look(&cache, ask);
        // Of what came while it was asked nothing was known.
        let states = |watch: &Watch| -> Vec<State> {
            let files = watch.files();
            files.list.iter().map(|file| file.state).collect()
        };
        assert_eq!(states(&watch), [State::Whole]);
        watch.look(&cache, Path::metadata);
        assert_eq!(states(&watch), [State::Missing]);
    }

    #[test]
    fn what_only_rows_tell_of_is_over_when_none_was_refused_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, failures) = made(&folder.path().join("a.rows"), Role::Only);
        let corrupt = Err(TierError::Corrupt { page: 1 });
        let kinds = [
            (corrupt, State::Damaged),
            (Err(TierError::Gone), State::Cut),
            (Err(TierError::Os(5)), State::Unreadable),
            (Err(TierError::Late), State::Late),
        ];
        for (failure, state) in kinds {
            failures.note(&failure);
            assert_eq!(file.look_now(NONE), Some(state));
            failures.note(&failure);
            assert_eq!(file.look_now(NONE), None);
            // Nobody asked for more: it is as it was.
            assert_eq!(said(&mut file, 2 * CALM), []);
            failures.note(&failure);
            failures.note(&Ok(&[]));
            assert_eq!(said(&mut file, 2 * CALM), [(CALM, State::Whole)]);
        }
    }

    #[test]
    fn what_fails_in_several_ways_is_told_once_of_each() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, failures) = made(&folder.path().join("a.rows"), Role::Only);
        for first in [true, false] {
            failures.note(&Err(TierError::Os(5)));
            assert_eq!(file.look_now(NONE), first.then_some(State::Unreadable));
            failures.note(&Err(TierError::Late));
            assert_eq!(file.look_now(NONE), first.then_some(State::Late));
        }
    }

    #[test]
    fn rows_that_were_never_read_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, _) = made(&folder.path().join("a.rows"), Role::Only);
        assert_eq!(file.look_now(stalled(3)), Some(State::Late));
        assert_eq!(file.look_now(stalled(4)), None);
        let said = file.sentence(State::Late, &[]);
        assert!(said.contains("a.rows gives rows too late"), "{said}");
    }

    #[test]
    fn rows_that_others_left_no_read_do_not_blame_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, failures) = made(&folder.path().join("a.rows"), Role::Only);
        let (mut hung, hung_failures) = made(&folder.path().join("b.rows"), Role::Only);
        hung.own.table = "b".into();
        let starved = |starved| Unasked { starved, ..NONE };
        hung_failures.note(&Err(TierError::Late));
        assert_eq!(hung.look_now(NONE), Some(State::Late));
        assert_eq!(file.look_now(starved(5)), Some(State::Starved));
        assert_eq!(file.look_now(starved(6)), None);
        let files = [file, hung];
        let said = files[0].sentence(State::Starved, &holders(&files));
        assert!(
            said.contains("waited for a read while those of table b held them"),
            "{said}"
        );
        let cache = shown(&["a", "b"]);
        files.iter().for_each(|file| file.show_in(&cache));
        assert_eq!(states(&cache), ["starved", "failing"]);
        let [mut file, _] = files;
        failures.note(&Err(TierError::Late));
        assert_eq!(file.look_now(starved(7)), Some(State::Late));
        file.show_in(&cache);
        assert_eq!(states(&cache), ["failing", "failing"]);
    }

    /// Of a file that was cut off most rows fail, and some come in between.
    #[test]
    fn a_file_that_gives_some_rows_and_others_not_is_shown_as_failing() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, failures) = made(&folder.path().join("a.rows"), Role::Only);
        let cache = shown(&["a"]);
        for failure in [TierError::Gone, TierError::Os(5), TierError::Gone] {
            failures.note(&Err(failure));
            failures.note(&Ok(&[]));
            for look in 0..=LATELY {
                file.look_now(NONE);
                file.show_in(&cache);
                let state = if look < LATELY { "failing" } else { "read" };
                assert_eq!(states(&cache), [state], "at look {look}");
            }
        }
        // What is in memory is not read any more: neither what failed last nor what fails on its way out tells of it.
        failures.note(&Err(TierError::Late));
        file.look_now(NONE);
        cache.tables[0].moved(None, None);
        file.show_in(&cache);
        assert_eq!(states(&cache), ["read"]);
        assert!(!failures.is_failing());
    }

    /// Listed tables of these names, each with its own file.
    fn shown(names: &[&str]) -> CacheView {
        let shape = Shape::new(64, 1, 4, 4).unwrap();
        let table = |(number, &name): (usize, &&str)| {
            let share = Share {
                shape,
                wanted: None,
                most: shape,
            };
            let file = FileView {
                tier: NAMES[0],
                reads: vec![],
                failures: vec![],
                is_starved: AtomicBool::new(false),
                is_failing: AtomicBool::new(false),
            };
            let (epochs, _) = Epochs::new(1);
            let (store, _) =
                Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
            let kept = Kept {
                store: Some(store),
                ..Kept::default()
            };
            let figures = Default::default();
            TableView::new(
                (number, names.len()),
                (name.into(), 0),
                kept,
                share,
                figures,
                vec![file],
            )
        };
        CacheView {
            arena_bytes: 0,
            tables: names.iter().enumerate().map(table).collect(),
            tiers: vec![],
        }
    }

    /// How their files are said to be.
    fn states(cache: &CacheView) -> Vec<Value> {
        let files = cache.files_status();
        files.iter().map(|file| file["state"].clone()).collect()
    }

    #[test]
    fn it_is_said_which_file_it_is_and_what_becomes_of_its_rows() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rows");
        let at = path.display();
        let roles = [
            (
                Role::Only,
                format!("table a: {at} has pages"),
                "not to be had:",
            ),
            (
                Role::Copied,
                format!("table a: {at} has pages"),
                "asked of its copy in cache.next_tier:",
            ),
            (
                Role::Copy,
                format!("table a: its copy {at} has pages"),
                "not to be had there either:",
            ),
        ];
        for (role, begin, part) in roles {
            let said = made(&path, role).0.sentence(State::Damaged, &[]);
            assert!(said.starts_with(&begin) && said.contains(part), "{said}");
        }
    }

    #[test]
    fn rows_of_the_next_tier_are_told_of_once_until_none_came_for_a_while() {
        let mut passing = Passing::default();
        assert_eq!(passing.look(0), None);
        assert_eq!(passing.look(5), Some(Passed::Begun(5)));
        assert_eq!(passing.look(9), None);
        let looks = (0..2 * CALM).filter_map(|look| Some((look, passing.look(9)?)));
        assert_eq!(looks.collect::<Vec<_>>(), [(CALM - 1, Passed::Over)]);
        assert_eq!(passing.look(10), Some(Passed::Begun(1)));
    }
}
