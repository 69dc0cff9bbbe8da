//! Whether the files of cached tables are what they were at start. A thread of its own looks every second, and says in the log when
//! that changes: once for each change of a table.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rowmill_cache::figures::Count;
use rowmill_table::Generation;

use crate::cache_view::{CacheView, TableView};

/// From one look to the next.
const EVERY: Duration = Duration::from_secs(1);
/// Looks without a row that could not be read, until it counts as well again what only rows tell of.
const CALM: u32 = 60;

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
}

/// Rows that could not be taken from a file since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refused {
    corrupt: u64,
    gone: u64,
    failed: u64,
}

/// What tells a file from another one that was put in its place: device and inode.
pub(crate) type Identity = (u64, u64);

/// The identity of what a path leads to.
pub(crate) fn identity(path: &Path) -> std::io::Result<Identity> {
    let about = path.metadata()?;
    Ok((about.dev(), about.ino()))
}

/// The files of listed tables as they are now, in the tables' order.
///
/// # Errors
/// Where one can't be looked at.
pub(crate) fn identities(
    generation: &Generation,
    cache: &CacheView,
) -> std::io::Result<Vec<Identity>> {
    let of_table =
        |table: &TableView| identity(&generation.path(&generation.tables()[table.number]));
    cache.tables.iter().map(of_table).collect()
}

/// A file that is looked at.
#[derive(Debug)]
struct Watched {
    table: String,
    path: PathBuf,
    /// The device and inode that rows come from, and the bytes that it has to have.
    file: Identity,
    bytes: u64,
    state: State,
    refused: Refused,
    calm: u32,
}

impl Watched {
    /// A file that was just opened.
    fn new(table: &str, path: PathBuf) -> Result<Watched, Error> {
        let about = path.metadata()?;
        Ok(Watched {
            table: table.into(),
            file: (about.dev(), about.ino()),
            bytes: about.len(),
            path,
            state: State::Whole,
            refused: Refused::default(),
            calm: 0,
        })
    }

    /// Looks at it. Returns how it is now, if that has changed.
    fn look(&mut self, refused: Refused) -> Option<State> {
        let before = std::mem::replace(&mut self.refused, refused);
        self.calm = match refused == before {
            true => self.calm.saturating_add(1),
            false => 0,
        };
        let of_rows = || match self.state {
            _ if refused.corrupt > before.corrupt => State::Damaged,
            _ if refused.gone > before.gone => State::Cut,
            _ if refused.failed > before.failed => State::Unreadable,
            State::Damaged | State::Unreadable | State::Cut if self.calm < CALM => self.state,
            _ => State::Whole,
        };
        let state = match self.path.metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => State::Missing,
            Err(_) => of_rows(),
            Ok(about) if (about.dev(), about.ino()) != self.file => State::Replaced,
            Ok(about) if about.len() < self.bytes => State::Cut,
            Ok(_) => of_rows(),
        };
        let was = std::mem::replace(&mut self.state, state);
        (state != was).then_some(state)
    }

    /// What is to be said, and done, about a state.
    fn sentence(&self, state: State) -> String {
        let what = match state {
            State::Whole => "is well again",
            State::Replaced => {
                "is another file now than the one that rows come from, which goes on until the end: to serve the new one, start anew"
            }
            State::Missing => {
                "is not there any more; rows come from what was opened, and the next start needs it: put it back"
            }
            State::Cut => "was cut off, and rows behind its end are not to be had: copy it again",
            State::Damaged => {
                "has pages that don't match their checksums, and their rows are not to be had: `rowmill table verify` names them; copy \
                 the file again"
            }
            State::Unreadable => "can't be read everywhere: look at its disk",
        };
        format!("table {}: {} {what}", self.table, self.path.display())
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

/// Looks at the files of listed tables from now on, as long as the process lives.
///
/// # Errors
/// Where a file is gone already, or no thread can be started.
pub(crate) fn watch(generation: &Generation, cache: Arc<CacheView>) -> anyhow::Result<()> {
    if cache.tables.is_empty() {
        return Ok(());
    }
    let file = |table: &TableView| {
        let path = generation.path(&generation.tables()[table.number]);
        let context = format!("cannot look at {}", path.display());
        Watched::new(&table.name, path).context(context)
    };
    let files: anyhow::Result<Vec<Watched>> = cache.tables.iter().map(file).collect();
    let mut files = files?;
    let mut passing = Passing::default();
    let look = move || {
        loop {
            std::thread::sleep(EVERY);
            for (file, table) in files.iter_mut().zip(&cache.tables) {
                let refused = Refused {
                    corrupt: table.get(Count::Corrupt),
                    gone: table.get(Count::Gone),
                    failed: table.get(Count::Failed),
                };
                match file.look(refused) {
                    Some(State::Whole) => tracing::info!("{}", file.sentence(State::Whole)),
                    Some(state) => tracing::warn!("{}", file.sentence(state)),
                    None => {}
                }
            }
            if let Some(passed) = passing.look(cache.passed_on()) {
                passed.log();
            }
        }
    };
    let thread = std::thread::Builder::new().name("rowmilld-files".into());
    let started = thread.spawn(look);
    started.context("cannot start the thread that looks at the files of cached tables")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_change_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rows");
        fs::write(&path, [7; 100]).unwrap();
        let mut file = Watched::new("a", path.clone()).unwrap();
        let well = Refused::default();
        assert_eq!(file.look(well), None);
        let kept = folder.path().join("kept");
        fs::rename(&path, &kept).unwrap();
        assert_eq!(file.look(well), Some(State::Missing));
        assert_eq!(file.look(well), None);
        fs::write(&path, [7; 100]).unwrap();
        assert_eq!(file.look(well), Some(State::Replaced));
        fs::rename(&kept, &path).unwrap();
        assert_eq!(file.look(well), Some(State::Whole));
        let opened = fs::OpenOptions::new().write(true).open(&path).unwrap();
        opened.set_len(99).unwrap();
        assert_eq!(file.look(well), Some(State::Cut));
        let said = file.sentence(State::Cut);
        assert!(
            said.starts_with("table a: ") && said.contains("a.rows was cut off"),
            "{said}"
        );
        opened.set_len(100).unwrap();
        file.calm = CALM;
        assert_eq!(file.look(well), Some(State::Whole));
    }

    #[test]
    fn what_only_rows_tell_of_is_over_when_none_was_refused_for_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.rows");
        fs::write(&path, [7; 100]).unwrap();
        let mut file = Watched::new("a", path).unwrap();
        let mut refused = Refused {
            corrupt: 3,
            ..Refused::default()
        };
        assert_eq!(file.look(refused), Some(State::Damaged));
        refused.corrupt = 4;
        assert_eq!(file.look(refused), None);
        let looks = (0..2 * CALM).filter_map(|look| Some((look, file.look(refused)?)));
        assert_eq!(looks.collect::<Vec<_>>(), [(CALM - 1, State::Whole)]);
        refused.failed = 1;
        assert_eq!(file.look(refused), Some(State::Unreadable));
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
