//! What a list of warm rows says to a start.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use rowmill_cache::WarmRows;
use rowmill_cache::warm::{Warm, WarmError, WarmFault, WarmTable, is_foreign};

use super::WHAT;
use crate::cache_view::{CacheView, TableView};
use crate::plan::Choice;

/// What was read of a file.
#[derive(Debug)]
pub(super) struct Found {
    /// Rows of tables that are cached, which workers load.
    pub(super) rows: Arc<[WarmRows]>,
    /// The same, and those of listed tables that are resident, by the table's number.
    pub(super) lists: Vec<(usize, Vec<u32>)>,
    /// What is said of it.
    pub(super) choice: Choice,
    /// Why no list is to be written there, where it is no file of ours or can't be read.
    pub(super) foreign: Option<String>,
    /// All that it lists, where that is of another generation of the model.
    pub(super) another: Option<Warm>,
}

/// Reads what a file lists of the tables that are cached.
pub(super) fn find(
    path: &Path,
    name: &str,
    cache: &CacheView,
    is_cached: impl Fn(&TableView) -> bool,
) -> Found {
    let none = |choice| Found {
        rows: Vec::new().into(),
        lists: Vec::new(),
        choice,
        foreign: None,
        another: None,
    };
    let foreign = |why: String| Found {
        foreign: Some(why.clone()),
        ..none(Choice::warning(WHAT, "none", why))
    };
    let at = path.display();
    let warm = match Warm::read(path) {
        Ok(Some(warm)) => warm,
        Ok(None) => {
            let choice = match unwritable(path) {
                None => {
                    let why =
                        format!("{at} was not there; it is kept from now on, for the next start");
                    Choice::new(WHAT, "none", why)
                }
                Some(why) => Choice::warning(WHAT, "none", why),
            };
            return none(choice);
        }
        Err(WarmError::Damaged {
            fault: WarmFault::Foreign,
            ..
        }) => {
            let why = format!(
                "cache.warm_file: {at} is no list of warm rows, and is left as it is; name another file"
            );
            return foreign(why);
        }
        Err(error @ WarmError::Io { .. }) if is_foreign(path) => {
            let why = format!(
                "cache.warm_file: {error}; it is left as it is: let this user read it, or name another file"
            );
            return foreign(why);
        }
        Err(error) => return none(Choice::warning(WHAT, "none", error.to_string())),
    };
    if warm.generation != name {
        let model = |name: &str| name.rsplit_once(',').map(|(model, _)| model.to_owned());
        let is_same = model(&warm.generation) == model(name);
        let loaded = if is_same {
            "they are loaded if that generation is, and "
        } else {
            ""
        };
        let why = format!(
            "{at} is of {}, and this is {name}, whose rows may have other numbers; {loaded}it stays until there are rows of this one to list",
            warm.generation
        );
        return Found {
            another: is_same.then_some(warm),
            ..none(Choice::warning(WHAT, "none", why))
        };
    }
    let listed: usize = warm.tables.iter().map(|table| table.rows.len()).sum();
    let (mut rows, mut lists, mut texts) = (Vec::new(), Vec::new(), Vec::new());
    for WarmTable {
        name,
        rows: mut list,
    } in warm.tables
    {
        let Some(table) = cache.tables.iter().find(|table| table.name == name) else {
            continue;
        };
        list.retain(|&row| u64::from(row) < table.rows());
        lists.push((table.number, list.clone()));
        if !is_cached(table) {
            continue;
        }
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
        lists,
        choice,
        foreign: None,
        another: None,
    }
}

/// Why a list can't be written there, as far as a file beside it tells, which is made and removed.
fn unwritable(path: &Path) -> Option<String> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let mut tried = path.as_os_str().to_owned();
    tried.push(format!(".{}.tried", std::process::id()));
    let error = File::create_new(&tried).err();
    let Some(error) = error else {
        // It is empty, and in nobody's way.
        let _removed = std::fs::remove_file(&tried);
        return None;
    };
    Some(format!(
        "cache.warm_file: no list can be written in {}: {error}; make it a folder that is there and that rowmilld may write",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_file_can_be_made_it_is_said_and_where_one_can_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(unwritable(&folder.path().join("warm")), None);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        let none = folder.path().join("none");
        for folder in [&*none, Path::new("/proc")] {
            let why = unwritable(&folder.join("warm")).unwrap();
            let part = format!("{}: No such file or directory", folder.display());
            assert!(why.contains(&part), "{why}");
        }
    }
}
