//! The list of rows that are wanted most, kept in a file so that the next start loads them first.
//!
//! A thread of its own reads which rows are there and writes them every so often, and once more when everything is drained. It waits for
//! no worker and no worker for it. Whatever goes wrong with the file costs a start its head start and nothing else.

mod found;
mod view;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use rowmill_cache::store::Store;
use rowmill_cache::warm::{ROWS_MAX, Warm, WarmTable, is_foreign};

use crate::cache::Part;
use crate::cache_view::{CacheView, TableView};
use crate::claim::{self, Claim, ClaimError};
use crate::config::{Config, Placement};
use crate::generations::View;
use crate::listed::MOST_ROWS;
use crate::plan::{Choice, Plan};
use found::{Found, find};
pub use view::WarmView;

const WHAT: &str = "warm rows";

/// How long the end waits for the file to be written: half a gigabyte at the rate of a slow disk.
const LAST_WRITE: Duration = Duration::from_secs(10);

/// The thread that writes the file.
#[derive(Debug)]
pub(crate) struct Keeper {
    view: Arc<WarmView>,
    ending: Sender<()>,
    ended: Receiver<()>,
}

/// Takes the file for this process, where the configuration names one. None where there is none, where it is not to be written, or where
/// there can be no lock yet: then one is tried for whenever it is written.
///
/// # Errors
/// Where another process keeps it, or could by another name.
pub(crate) fn claim(config: &Config) -> anyhow::Result<Option<Claim>> {
    let Some(path) = kept(config)? else {
        return Ok(None);
    };
    match Claim::take(&path) {
        Err(error) if error.is_taken() => Err(refusal(&error)),
        Err(_) => Ok(None),
        Ok(claim) => {
            if !claim.is_locked {
                tracing::warn!(
                    "cache.warm_file: the file system of {} has no locks: see to it that no other rowmilld writes there",
                    path.display()
                );
            }
            Ok(Some(claim))
        }
    }
}

/// Looks whether a start could take the file.
///
/// # Errors
/// As [`claim`].
pub(crate) fn refuse_taken(config: &Config) -> anyhow::Result<()> {
    let looked = kept(config)?.map_or(Ok(()), |path| Claim::look(&path));
    looked.map_err(|error| refusal(&error))
}

/// The file that is to be kept.
fn kept(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    let path = file(config)?;
    Ok(path.filter(|path| !config.tables.is_empty() && !is_foreign(path)))
}

/// The file that the configuration names, if it does: what a link leads to.
fn file(config: &Config) -> anyhow::Result<Option<PathBuf>> {
    let path = config.cache.warm_file.clone();
    let only =
        path.map(|path| claim::only_name(path).map_err(|why| anyhow!("cache.warm_file: {why}")));
    only.transpose()
}

fn refusal(error: &ClaimError) -> anyhow::Error {
    anyhow!(
        "cache.warm_file: {error}; each would write over the other's list: stop that one, or name another file"
    )
}

/// What a start has found in the file of a generation that is not the one it serves: after a restart that may be loaded soon. (The file itself is
/// written over with rows of the one that is served.)
#[derive(Debug, Default)]
pub struct Lists(Mutex<Option<Arc<Warm>>>);

impl Lists {
    /// Keeps as much of it as a generation that comes is given.
    fn keep(&self, mut warm: Warm) {
        let all: usize = warm.tables.iter().map(|table| table.rows.len()).sum();
        for table in &mut warm.tables {
            let part = table.rows.len() as u64 * MOST_ROWS / (all as u64).max(MOST_ROWS);
            table.rows.truncate(part as usize);
            table.rows.shrink_to_fit();
        }
        *self.lock() = Some(Arc::new(warm));
    }

    /// What is known of a generation, rows of each table in the order in which they are wanted.
    pub(crate) fn of(&self, model: &str, generation: u64) -> Option<Arc<Warm>> {
        let warm = self.lock();
        let is_it = |warm: &&Arc<Warm>| warm.generation == name(model, generation);
        warm.as_ref().filter(is_it).cloned()
    }

    /// It has been loaded.
    pub(crate) fn forget(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Warm>>> {
        self.0.lock().expect("a panic ends the process")
    }
}

/// What comes of a file that the configuration names.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// What keeps it, where it is to be kept.
    pub(crate) keeper: Option<Keeper>,
    /// How it stands, where there is something to keep.
    pub(crate) view: Option<Arc<WarmView>>,
    /// What was found in it.
    pub(crate) choice: Option<Choice>,
    /// The same of another generation.
    pub(crate) lists: Lists,
}

/// Where the configuration names a file: gives the workers what it lists, and keeps it from now on.
///
/// # Errors
/// Where no thread can be started.
pub(crate) fn begin(
    config: &Config,
    generations: &Arc<View>,
    cache: &Arc<CacheView>,
    parts: &mut [Part],
    claim: Option<Claim>,
) -> anyhow::Result<Begun> {
    let Some(path) = file(config)? else {
        return Ok(Begun::default());
    };
    if cache.tables.is_empty() {
        let choice = Some(nothing_listed());
        return Ok(Begun {
            choice,
            ..Begun::default()
        });
    }
    let name = name(&config.model.name(), generations.newest().number);
    let Found {
        rows,
        lists,
        choice,
        foreign,
        another,
    } = find(&path, &name, cache, |table| table.store().is_some());
    let before = Lists::default();
    if let Some(another) = another {
        before.keep(another);
    }
    for part in parts {
        part.worker.warm(&rows);
    }
    for (number, list) in lists {
        let view = cache.tables.iter().find(|view| view.number == number);
        view.expect("a listed table")
            .remember(list, Some(Arc::downgrade(&rows)));
    }
    let is_off = foreign.is_some();
    let view = Arc::new(WarmView::new(path, &rows, foreign));
    let keeper = match is_off {
        true => None,
        false => {
            let every = Duration::from_secs(config.cache.warm_every_s.into());
            let kept = Kept {
                model: config.model.name(),
                generations: Arc::clone(generations),
                cache: Arc::clone(cache),
            };
            Some(Keeper::start(Arc::clone(&view), every, kept, claim)?)
        }
    };
    Ok(Begun {
        keeper,
        view: Some(view),
        choice: Some(choice),
        lists: before,
    })
}

/// What a start would find in the file, where the configuration names one. Nothing is loaded, and nothing written.
///
/// # Errors
/// Where the file has other names, or a link leads nowhere.
pub fn check(config: &Config, plan: &Plan) -> anyhow::Result<Option<Choice>> {
    let Some(path) = file(config)? else {
        return Ok(None);
    };
    let cache = plan.cache.view(&plan.generation, &[]);
    if cache.tables.is_empty() {
        return Ok(Some(nothing_listed()));
    }
    let is_cached =
        |table: &TableView| plan.cache.placement(table.number) == Some(Placement::Cached);
    let name = name(&config.model.name(), plan.generation.number());
    Ok(Some(find(&path, &name, &cache, is_cached).choice))
}

fn nothing_listed() -> Choice {
    let why = "cache.warm_file is set, and no table is listed in [[tables]]";
    Choice::warning(WHAT, "none", why)
}

/// What a file says that it is of.
fn name(model: &str, generation: u64) -> String {
    format!("{model}, generation {generation}")
}

/// Whose rows are listed.
struct Kept {
    model: String,
    generations: Arc<View>,
    cache: Arc<CacheView>,
}

impl Keeper {
    fn start(
        view: Arc<WarmView>,
        every: Duration,
        kept: Kept,
        mut claim: Option<Claim>,
    ) -> anyhow::Result<Keeper> {
        let ((ending, wait), (done, ended)) = (channel(), channel());
        let keeper = Keeper {
            view: Arc::clone(&view),
            ending,
            ended,
        };
        let work = move || {
            let mut awaited = Awaited::default();
            loop {
                let waited = wait.recv_timeout(every);
                // Whose rows they are, unless another became the newest meanwhile.
                loop {
                    let number = kept.generations.newest().number;
                    let name = name(&kept.model, number);
                    write(&view, &name, &kept.cache, &mut awaited, &mut claim);
                    if kept.generations.newest().number == number {
                        break;
                    }
                }
                if waited != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
            // Where nobody waits for it any more, the process ends.
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("rowmilld-warm".into());
        let started = thread.spawn(work);
        started.context("cannot start the thread that keeps cache.warm_file")?;
        Ok(keeper)
    }

    /// Writes the file once more. The workers are still there, so that it can tell whether they have loaded all of it.
    pub(crate) fn end(self) {
        drop(self.ending);
        if self.ended.recv_timeout(LAST_WRITE).is_err() {
            let at = self.view.path().display();
            tracing::warn!(
                "{at} was not written within {LAST_WRITE:?}; the next start loads what it had before"
            );
        }
    }
}

/// What a start has found and not loaded.
#[derive(Debug, Default)]
struct Awaited {
    generation: String,
    /// Lists of tables of which no row has come since: where a table's file is damaged or gone for a while, none can.
    tables: Option<Vec<WarmTable>>,
    /// Of tables of which some have come the others: those that could not be read, or found no slot, since rows fall into other sets at each
    /// start.
    left: Vec<WarmTable>,
}

impl Awaited {
    /// The list of a table none of whose rows have come.
    fn of(&self, table: &str) -> Option<&WarmTable> {
        let mut lists = self.tables.iter().flatten();
        lists.find(|list| list.name == table)
    }

    /// Rows of a table that were hot before this start and are not there now: a cache with room for more is not full of others yet.
    fn not_there(&self, table: &str, store: &Store) -> Vec<u32> {
        let left = self.left.iter().find(|list| list.name == table);
        left.map_or_else(Vec::new, |list| store.lacking(&list.rows).1)
    }

    /// Looks which tables wait for theirs now: once what was found is loaded as far as it can be, and then of those again.
    fn look(&mut self, view: &WarmView, generation: &str, cache: &CacheView) {
        let is_empty = |list: &WarmTable| {
            let table = cache.tables.iter().find(|table| table.name == list.name);
            table.is_some_and(|table| table.store().is_some_and(|store| store.hot(1).is_empty()))
        };
        let found = || {
            let warm = view.is_as_found().then(|| Warm::read(view.path()));
            let warm = warm.and_then(|read| read.ok().flatten());
            let warm = warm.filter(|warm| warm.generation == generation);
            warm.map_or_else(Vec::new, |warm| warm.tables)
        };
        if self.tables.is_none() {
            self.generation = generation.into();
            self.tables = Some(found());
        }
        if self.generation != generation {
            self.tables = Some(Vec::new());
            self.left.clear();
        }
        let tables = self.tables.iter_mut();
        let begun = tables.flat_map(|tables| tables.extract_if(.., |list| !is_empty(list)));
        for WarmTable { name, rows } in begun {
            let mut tables = cache.tables.iter();
            let table = tables.find(|table| table.name == name);
            let store = table.and_then(|table| Some((table, table.store()?)));
            if let Some((table, store)) = store {
                let mut rows = store.lacking(&rows).1;
                rows.retain(|&row| u64::from(row) < table.rows());
                rows.truncate(table.share().shape.slots() as usize);
                rows.shrink_to_fit();
                self.left.push(WarmTable { name, rows });
            }
        }
    }
}

/// Writes what is there now, unless the file tells of more: while its rows are being loaded it stays, and what a start found, of whatever
/// generation, until there are rows. Behind the rows of a table that are there come those that a start found listed and that are not, as long
/// as the cache has room for more: a service that is started again and again and not asked for anything forgets none. What is not this
/// process's file yet is made that before, and what somebody put in its place stays.
fn write(
    view: &WarmView,
    generation: &str,
    cache: &CacheView,
    awaited: &mut Awaited,
    claim: &mut Option<Claim>,
) {
    if view.is_loading() {
        return;
    }
    awaited.look(view, generation, cache);
    let slots = |table: &TableView| u64::from(table.share().shape.slots());
    let all: u64 = cache.tables.iter().map(slots).sum();
    let hot = |table: &TableView| {
        let slots = slots(table);
        // Each table has its part where a file has no room for all.
        let most = slots.min(slots * ROWS_MAX as u64 / all.max(1)) as usize;
        let rows = match (table.not_loaded(), table.store()) {
            (Some(before), _) => {
                let rows = &before[0].rows;
                rows[..most.min(rows.len())].to_vec()
            }
            (None, Some(store)) => match awaited.of(&table.name) {
                Some(list) => list.rows[..most.min(list.rows.len())].to_vec(),
                None => {
                    let mut rows = store.hot(most);
                    let room = most - rows.len();
                    if room > 0 {
                        let others = awaited.not_there(&table.name, &store);
                        rows.extend(others.into_iter().take(room));
                    }
                    rows
                }
            },
            (None, None) => return None,
        };
        Some(WarmTable {
            name: table.name.clone(),
            rows,
        })
    };
    let warm = Warm {
        generation: generation.into(),
        tables: cache.tables.iter().filter_map(hot).collect(),
    };
    let lists = || warm.tables.iter();
    let rows: usize = lists().map(|list| list.rows.len()).sum();
    if view.is_as_found()
        && lists().all(|list| list.rows.is_empty() || awaited.of(&list.name).is_some())
    {
        return;
    }
    let claimed = match claim {
        Some(_) => Ok(()),
        None => Claim::take(view.path()).map(|taken| *claim = Some(taken)),
    };
    let outcome = claimed.map_err(anyhow::Error::from).and_then(|()| {
        ensure!(
            !is_foreign(view.path()),
            "{} is no list of warm rows any more, and is left as it is: move it away",
            view.path().display()
        );
        Ok(warm.write(view.path())?)
    });
    let is_news = view.note(outcome.is_ok().then_some(rows as u64));
    match outcome {
        Ok(()) if is_news => tracing::info!("{} is written again", view.path().display()),
        Err(error) if is_news => tracing::warn!(
            "the list of warm rows can't be written, and the next start loads what it had before: {error}"
        ),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;
    use rowmill_cache::store::{Epochs, Held, Shape, Tags};

    use rowmill_cache::WarmRows;

    use super::*;
    use crate::cache_view;
    use crate::share::Share;

    #[test]
    fn a_list_stays_until_its_rows_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let (epochs, _) = Epochs::new(1);
        let shape = Shape::new(512, 1, 4, 4).unwrap();
        let store = || Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off);
        let [(store, mut writers), (other, _)] = [store().unwrap(), store().unwrap()];
        let table = |number, name: &str, store| {
            let kept = cache_view::Kept {
                rows: 100,
                rows_bytes: 400,
                store,
                resident: None,
            };
            let share = Share {
                shape,
                wanted: None,
                most: shape,
            };
            TableView::new(
                (number, 5),
                (name.into(), 0),
                kept,
                share,
                Default::default(),
                vec![],
            )
        };
        let path = folder.path().join("warm");
        let listed = Warm {
            generation: "m".into(),
            tables: ["a", "b"]
                .map(|name| WarmTable {
                    name: name.into(),
                    rows: vec![5, 99, 100],
                })
                .into(),
        };
        listed.write(&path).unwrap();
        // The other one is resident now.
        let cache = CacheView {
            arena_bytes: shape.bytes() as u64,
            tiers: vec![],
            tables: vec![table(3, "a", Some(store)), table(4, "b", None)],
        };
        let found = find(&path, "m", &cache, |table| table.store().is_some());
        let rows = WarmRows {
            table: 3,
            rows: vec![5, 99],
        };
        assert_eq!(*found.rows, [rows]);
        assert_eq!(found.lists, [(3, vec![5, 99]), (4, vec![5, 99])]);
        let view = WarmView::new(path.clone(), &found.rows, None);
        let mut awaited = Awaited::default();
        write(&view, "m", &cache, &mut awaited, &mut None);
        assert_eq!(Warm::read(&path).unwrap(), Some(listed));
        for (table, (_, list)) in cache.tables.iter().zip(&found.lists) {
            table.remember(list.clone(), Some(Arc::downgrade(&found.rows)));
        }
        drop(found);
        let mut write_as = |generation: &str| {
            write(&view, generation, &cache, &mut awaited, &mut None);
            let tables = Warm::read(&path).unwrap().unwrap().tables;
            let lists = tables.into_iter().map(|table| (table.name, table.rows));
            lists.collect::<Vec<(String, Vec<u32>)>>()
        };
        let mut written = || write_as("m");
        // Of the cached one no row has come, and its list stays; and of the other one what was there.
        let both = [("a".into(), vec![5, 99, 100]), ("b".into(), vec![5, 99])];
        assert_eq!(written(), both);
        // One comes.
        let writer = &mut writers[0];
        let slot = writer.candidates(8).next().unwrap().slot;
        let (ticket, _) = writer.begin(8, slot).unwrap();
        writer.publish(ticket, &[0; 4], 0);
        assert_eq!(written()[0].1, [8, 5, 99]);
        // It becomes cached again: the list stays until all have loaded it.
        let loading = cache.tables[1].to_load().unwrap();
        cache.tables[1].moved(Some(other), None);
        assert_eq!(written()[1].1, [5, 99]);
        drop(loading);
        assert_eq!(written()[1].1, [0; 0]);
        // Another generation's rows have other numbers.
        cache.tables[1].moved(None, None);
        cache.tables[1].remember(vec![7], None);
        assert_eq!(written()[1].1, [7]);
        cache.switch(rowmill_engine::Side::B);
        assert_eq!(write_as("n"), []);
    }

    /// As at a start that finds no slot for all that was listed.
    #[test]
    fn rows_that_found_no_slot_stay_listed_as_long_as_there_is_room_for_more() {
        let folder = tempfile::tempdir().unwrap();
        let (epochs, _) = Epochs::new(1);
        let shape = Shape::new(512, 1, 4, 4).unwrap();
        let (store, mut writers) =
            Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
        let kept = cache_view::Kept {
            rows: 100,
            rows_bytes: 400,
            store: Some(store),
            resident: None,
        };
        let share = Share {
            shape,
            wanted: None,
            most: shape,
        };
        let about = ((3, 5), ("a".into(), 0));
        let table = TableView::new(about.0, about.1, kept, share, Default::default(), vec![]);
        let cache = CacheView {
            arena_bytes: 0,
            tiers: vec![],
            tables: vec![table],
        };
        let mut comes = |row: u32, class: u16| {
            let slot = writers[0]
                .candidates(row)
                .find(|slot| slot.held == Held::Nothing);
            let (ticket, _) = writers[0].begin(row, slot.unwrap().slot).unwrap();
            writers[0].publish(ticket, &[0; 4], class << 11);
        };
        let path = folder.path().join("warm");
        let rows = vec![99, 5, 100, 7];
        let tables = vec![WarmTable {
            name: "a".into(),
            rows,
        }];
        let generation = "m".into();
        Warm { generation, tables }.write(&path).unwrap();
        let view = WarmView::new(path.clone(), &Arc::from([]), None);
        let mut awaited = Awaited::default();
        let mut listed = |generation: &str| {
            write(&view, generation, &cache, &mut awaited, &mut None);
            Warm::read(&path).unwrap().unwrap().tables.remove(0).rows
        };
        comes(5, 3);
        assert_eq!(listed("m"), [5, 99, 7], "the table has no row 100");
        // What is wanted now is before them, and what has come is told once.
        comes(8, 0);
        comes(99, 1);
        assert_eq!(listed("m"), [5, 99, 8, 7]);
        (9..90).for_each(|row| comes(row, 0));
        assert_eq!(listed("m").last(), Some(&7));
        // Another generation's rows have other numbers.
        assert!(!listed("n").contains(&7));
        assert!(!listed("m").contains(&7), "they are forgotten");
    }
}
