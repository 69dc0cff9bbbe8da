//! The list of rows that are wanted most, kept in a file so that the next start loads them first.
//!
//! A thread of its own reads which rows are there and writes them every so often, and once more when everything is drained. It waits for
//! no worker and no worker for it. Whatever goes wrong with the file costs a start its head start and nothing else.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, anyhow};
use rowmill_cache::WarmRows;
use rowmill_cache::warm::{ROWS_MAX, Warm, WarmError, WarmFault, WarmTable, is_foreign};
use rustix::fs::{Access, access};
use serde_json::{Value, json};

use crate::cache::Part;
use crate::cache_view::{CacheView, TableView};
use crate::claim::{self, Claim, ClaimError};
use crate::config::{Config, Placement};
use crate::generations::View;
use crate::metrics::Metrics;
use crate::plan::{Choice, Plan};

const WHAT: &str = "warm rows";

/// How long the end waits for the file to be written: half a gigabyte at the rate of a slow disk.
const LAST_WRITE: Duration = Duration::from_secs(10);

/// The file as the admin pages show it.
#[derive(Debug)]
pub struct WarmView {
    path: PathBuf,
    /// Rows in the file as it was written last.
    rows: AtomicU64,
    written: AtomicU64,
    failures: AtomicU64,
    is_failing: AtomicBool,
    /// What workers were given at start, until all have loaded it.
    loading: Weak<[WarmRows]>,
}

impl WarmView {
    /// Whether rows of the file are still being loaded.
    fn is_loading(&self) -> bool {
        self.loading.strong_count() > 0
    }

    pub(crate) fn status(&self) -> Value {
        json!({
            "file": self.path.display().to_string(),
            "rows": self.rows.load(Relaxed),
            "written": self.written.load(Relaxed),
            "failures": self.failures.load(Relaxed),
            "failing": self.is_failing.load(Relaxed),
            "loading": self.is_loading(),
        })
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let all: [(&str, &str, &str, u64); 4] = [
            (
                "rowmill_warm_rows",
                "gauge",
                "Rows in the file of warm rows as it was written last.",
                self.rows.load(Relaxed),
            ),
            (
                "rowmill_warm_loading",
                "gauge",
                "1 while rows of the file are loaded.",
                self.is_loading().into(),
            ),
            (
                "rowmill_warm_written_total",
                "counter",
                "Times that the file of warm rows was written.",
                self.written.load(Relaxed),
            ),
            (
                "rowmill_warm_failures_total",
                "counter",
                "Times that the file of warm rows could not be written.",
                self.failures.load(Relaxed),
            ),
        ];
        for (name, kind, help, value) in all {
            out.family(name, kind, help);
            out.sample(name, "", value);
        }
    }
}

/// The thread that writes the file.
#[derive(Debug)]
pub(crate) struct Keeper {
    view: Arc<WarmView>,
    ending: Sender<()>,
    ended: Receiver<()>,
}

/// What was read of a file.
#[derive(Debug)]
struct Found {
    rows: Arc<[WarmRows]>,
    choice: Choice,
    /// Whether it is a file of ours, or none, and may be written.
    is_ours: bool,
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

/// Where the configuration names a file: gives the workers what it lists, and keeps it from now on. With it comes what was found
/// in it.
///
/// # Errors
/// Where no thread can be started.
pub(crate) fn begin(
    config: &Config,
    generations: &Arc<View>,
    cache: &Arc<CacheView>,
    parts: &mut [Part],
    claim: Option<Claim>,
) -> anyhow::Result<(Option<Keeper>, Option<Choice>)> {
    let Some(path) = file(config)? else {
        return Ok((None, None));
    };
    if cache.tables.is_empty() {
        return Ok((None, Some(nothing_listed())));
    }
    let name = name(&config.model.name(), generations.newest().number);
    let Found {
        rows,
        choice,
        is_ours,
    } = find(&path, &name, cache, |table| table.store().is_some());
    for part in parts {
        part.worker.warm(Arc::clone(&rows));
    }
    if !is_ours {
        return Ok((None, Some(choice)));
    }
    let view = Arc::new(WarmView {
        path,
        rows: AtomicU64::new(0),
        written: AtomicU64::new(0),
        failures: AtomicU64::new(0),
        is_failing: AtomicBool::new(false),
        loading: Arc::downgrade(&rows),
    });
    let every = Duration::from_secs(config.cache.warm_every_s.into());
    let kept = Kept {
        model: config.model.name(),
        generations: Arc::clone(generations),
        cache: Arc::clone(cache),
    };
    let keeper = Keeper::start(view, every, kept, claim)?;
    Ok((Some(keeper), Some(choice)))
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

/// Reads what a file lists of the tables that are cached.
fn find(
    path: &Path,
    name: &str,
    cache: &CacheView,
    is_cached: impl Fn(&TableView) -> bool,
) -> Found {
    let none = |choice, is_ours| Found {
        rows: Vec::new().into(),
        choice,
        is_ours,
    };
    let at = path.display();
    let warm = match Warm::read(path) {
        Ok(Some(warm)) => warm,
        Ok(None) => {
            let choice = match unwritable(path) {
                None => {
                    let why = format!("{at} is not there yet; it is for the next start");
                    Choice::new(WHAT, "none", why)
                }
                Some(why) => Choice::warning(WHAT, "none", why),
            };
            return none(choice, true);
        }
        Err(WarmError::Damaged {
            fault: WarmFault::Foreign,
            ..
        }) => {
            let why = format!(
                "cache.warm_file: {at} is no list of warm rows, and is left as it is; name another file"
            );
            return none(Choice::warning(WHAT, "none", why), false);
        }
        Err(error) => return none(Choice::warning(WHAT, "none", error.to_string()), true),
    };
    if warm.generation != name {
        let why = format!(
            "{at} is of {}, and this is {name}, whose rows may have other numbers",
            warm.generation
        );
        return none(Choice::warning(WHAT, "none", why), true);
    }
    let listed: usize = warm.tables.iter().map(|table| table.rows.len()).sum();
    let (mut rows, mut texts) = (Vec::new(), Vec::new());
    for WarmTable {
        name,
        rows: mut list,
    } in warm.tables
    {
        let is_meant = |table: &&TableView| table.name == name && is_cached(table);
        let Some(table) = cache.tables.iter().find(is_meant) else {
            continue;
        };
        list.retain(|&row| u64::from(row) < table.rows());
        texts.push(format!("{} of {name}", list.len()));
        rows.push(WarmRows {
            table: table.number,
            rows: list,
        });
    }
    let taken: usize = rows.iter().map(|table: &WarmRows| table.rows.len()).sum();
    let chosen = match texts.is_empty() {
        true => "none".into(),
        false => texts.join(", "),
    };
    let mut why = match taken {
        0 => format!("{at} lists no row of a table that is cached"),
        _ => format!("{at} lists them; they are loaded first, as far as there is room"),
    };
    if taken < listed {
        let left = listed - taken;
        why += &format!("; {left} others are of tables that are not cached, or beyond their ends");
    }
    let choice = match unwritable(path) {
        None => Choice::new(WHAT, chosen, why),
        Some(fault) => Choice::warning(WHAT, chosen, format!("{why}; {fault}")),
    };
    Found {
        rows: rows.into(),
        choice,
        is_ours: true,
    }
}

/// Why a list can't be written there, as far as that can be seen without writing one.
fn unwritable(path: &Path) -> Option<String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let error = access(folder, Access::WRITE_OK | Access::EXEC_OK).err()?;
    Some(format!(
        "cache.warm_file: no list can be written in {}: {error}; make it a folder that rowmilld may write",
        folder.display()
    ))
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
            loop {
                let waited = wait.recv_timeout(every);
                // Whose rows they are, unless another became the newest meanwhile.
                loop {
                    let number = kept.generations.newest().number;
                    write(&view, &name(&kept.model, number), &kept.cache, &mut claim);
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

    /// What it tells others.
    pub(crate) fn view(&self) -> &Arc<WarmView> {
        &self.view
    }

    /// Writes the file once more. The workers are still there, so that it can tell whether they have loaded all of it.
    pub(crate) fn end(self) {
        drop(self.ending);
        if self.ended.recv_timeout(LAST_WRITE).is_err() {
            let at = self.view.path.display();
            tracing::warn!(
                "{at} was not written within {LAST_WRITE:?}; the next start loads what it had before"
            );
        }
    }
}

/// Writes what is there now, unless the file tells of more: while its rows are being loaded it stays. What is not this process's file yet
/// is made that before.
fn write(view: &WarmView, generation: &str, cache: &CacheView, claim: &mut Option<Claim>) {
    if view.is_loading() {
        return;
    }
    let slots = |table: &TableView| u64::from(table.share().shape.slots());
    let all: u64 = cache.tables.iter().map(slots).sum();
    let hot = |table: &TableView| {
        let store = table.store()?;
        let slots = slots(table);
        // Each table has its part where a file has no room for all.
        let most = slots.min(slots * ROWS_MAX as u64 / all.max(1));
        Some(WarmTable {
            name: table.name.clone(),
            rows: store.hot(most as usize),
        })
    };
    let warm = Warm {
        generation: generation.into(),
        tables: cache.tables.iter().filter_map(hot).collect(),
    };
    let rows: usize = warm.tables.iter().map(|table| table.rows.len()).sum();
    let claimed = match claim {
        Some(_) => Ok(()),
        None => Claim::take(&view.path).map(|taken| *claim = Some(taken)),
    };
    let outcome = claimed
        .map_err(anyhow::Error::from)
        .and_then(|()| Ok(warm.write(&view.path)?));
    let is_failing = outcome.is_err();
    let was_failing = view.is_failing.swap(is_failing, Relaxed);
    match outcome {
        Ok(()) => {
            view.rows.store(rows as u64, Relaxed);
            view.written.fetch_add(1, Relaxed);
            if was_failing {
                tracing::info!("{} is written again", view.path.display());
            }
        }
        Err(error) => {
            view.failures.fetch_add(1, Relaxed);
            if !was_failing {
                tracing::warn!(
                    "the list of warm rows can't be written, and the next start loads what it had before: {error}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rowmill_arena::HugePages;
    use rowmill_cache::store::{Epochs, Shape, Store, Tags};

    use super::*;
    use crate::cache_view;
    use crate::share::Share;

    #[test]
    fn a_list_stays_until_its_rows_are_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let (epochs, _) = Epochs::new(1);
        let shape = Shape::new(512, 1, 4, 4).unwrap();
        let (store, _) = Store::new(shape, 1, 4, &epochs, Tags::detect(), HugePages::Off).unwrap();
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
        assert_eq!(unwritable(&path), None);
        let why = unwritable(&folder.path().join("none/warm"));
        assert!(
            why.as_ref()
                .is_some_and(|why| why.contains("none: No such file or directory")),
            "{why:?}"
        );
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
        let view = WarmView {
            path: path.clone(),
            rows: AtomicU64::new(0),
            written: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_failing: AtomicBool::new(false),
            loading: Arc::downgrade(&found.rows),
        };
        write(&view, "m", &cache, &mut None);
        assert_eq!(Warm::read(&path).unwrap(), Some(listed));
        drop(found);
        write(&view, "m", &cache, &mut None);
        let written = Warm::read(&path).unwrap().unwrap().tables;
        assert_eq!((written.len(), &*written[0].name), (1, "a"));
        assert_eq!(written[0].rows, [0; 0]);
    }
}
