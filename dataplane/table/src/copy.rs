//! Whether a file is a copy of a table's.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::blocks::{open_regular, read_at};
use crate::header::{HEADER_BYTES, parse_header};
use crate::manifest::TableInfo;
use crate::pages::{PAGE_BYTES, PageChecksums};
use crate::{Generation, TableError};

/// Pages of a copy that are compared, at least: enough to tell one with some damage from one of other rows.
const COMPARED_PAGES: u64 = 16;

impl Generation {
    /// Compares a copy of a table's file with the table: its header, and some of its pages with their checksums. A file of which most of
    /// these are others is of another model or generation; damage of a few pages is none of that.
    ///
    /// # Errors
    /// [`TableError::SameFile`], [`TableError::NoCopy`], [`TableError::WrongFileSize`], and what can't be read.
    pub fn check_copy(
        &self,
        table: &TableInfo,
        checksums: &PageChecksums,
        copy: &Path,
    ) -> Result<(), TableError> {
        let (own, own_path) = self.sized_file(&table.file, table.file_bytes)?;
        let file = open_regular(copy).map_err(TableError::io(copy))?;
        let about = |file: &File, path: &Path| file.metadata().map_err(TableError::io(path));
        let (of_own, of_copy) = (about(&own, &own_path)?, about(&file, copy)?);
        let path = copy.to_owned();
        if (of_own.dev(), of_own.ino()) == (of_copy.dev(), of_copy.ino()) {
            let own = own_path;
            return Err(TableError::SameFile { path, own });
        }
        if of_copy.len() != table.file_bytes {
            return Err(TableError::WrongFileSize {
                path,
                promised: table.file_bytes,
                found: of_copy.len(),
            });
        }
        let is_none = |reason: String| TableError::NoCopy {
            path: path.clone(),
            own: own_path.clone(),
            reason,
        };
        let mut header = [0; HEADER_BYTES];
        read_at(&file, copy, &mut header, 0)?;
        let header = parse_header(&header);
        let header = header.map_err(|reason| is_none(format!("its header {reason}")))?;
        if header.spec != table.spec() {
            let spec = header.spec;
            return Err(is_none(format!(
                "it is of table {}, {} rows of {} {} numbers, or answers missing ids otherwise",
                spec.name, spec.rows, spec.dim, spec.format
            )));
        }
        match compare(&file, copy, table, checksums)? {
            Compared::Alike => Ok(()),
            Compared::Unlike { others, all } => Err(is_none(format!(
                "{others} of {all} pages that were compared have other bytes, so it is of another model or generation"
            ))),
        }
    }

    /// Compares some pages of a table's own file with their checksums: whether it is the generation's, before its rows are read.
    ///
    /// # Errors
    /// [`TableError::WrongFileSize`], and what can't be read.
    pub fn compare_pages(
        &self,
        table: &TableInfo,
        checksums: &PageChecksums,
    ) -> Result<Compared, TableError> {
        let (file, path) = self.sized_file(&table.file, table.file_bytes)?;
        compare(&file, &path, table, checksums)
    }
}

/// Whether a file has a table's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// As far as was seen: a few pages may be damaged.
    Alike,
    /// Most pages are others.
    Unlike {
        /// So many.
        others: usize,
        /// Of so many that were compared.
        all: usize,
    },
}

fn compare(
    file: &File,
    path: &Path,
    table: &TableInfo,
    checksums: &PageChecksums,
) -> Result<Compared, TableError> {
    let numbers = pages_to_compare(table.page_count());
    let (all, mut others) = (numbers.clone().count(), 0);
    let mut page = [0; PAGE_BYTES];
    for number in numbers {
        read_at(file, path, &mut page, number * PAGE_BYTES as u64)?;
        others += usize::from(!checksums.is_whole(number, &page));
    }
    Ok(match others * 2 > all {
        true => Compared::Unlike { others, all },
        false => Compared::Alike,
    })
}

/// Some of a file's pages behind its header, everywhere in it.
fn pages_to_compare(pages: u64) -> impl Iterator<Item = u64> + Clone {
    let step = ((pages - 1) / COMPARED_PAGES).max(1);
    (1..pages).step_by(step as usize)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::{TableSpec, generate, silent};

    fn made(dir: &Path, specs: &[&str], seed: u64) -> Generation {
        let specs: Vec<TableSpec> = specs.iter().map(|spec| spec.parse().unwrap()).collect();
        generate(dir, 1, &specs, seed, &silent).unwrap();
        Generation::open(dir).unwrap()
    }

    #[test]
    fn only_a_copy_is_one() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let own = made(&at("own"), &["a:2000:64:f32", "b:2000:64:f32"], 1);
        let other = made(&at("other"), &["a:2000:64:f32", "b:2000:64:f32"], 2);
        let shape = made(&at("shape"), &["a:1000:128:f32"], 1);
        let (table, checksums) = (own.table("a").unwrap(), own.page_checksums("a").unwrap());
        let check = |copy: &Path| {
            let checked = own.check_copy(table, &checksums, copy);
            checked.map_err(|error| error.to_string())
        };
        let said = |copy: &Path, part: &str| {
            let said = check(copy).unwrap_err();
            assert!(said.contains(part), "{said}");
        };
        let copy = at("copy");
        fs::copy(own.path(table), &copy).unwrap();
        check(&copy).unwrap();
        let compared = || own.compare_pages(table, &checksums).unwrap();
        assert_eq!(compared(), Compared::Alike);
        // Another model's file in its place.
        let own_file = own.path(table);
        fs::copy(other.path(other.table("a").unwrap()), &own_file).unwrap();
        let is_unlike = matches!(compared(), Compared::Unlike { others, all } if others == all);
        assert!(is_unlike);
        fs::copy(&copy, own_file).unwrap();
        let damaged = fs::OpenOptions::new().write(true).open(&copy).unwrap();
        damaged.write_all_at(&[9; PAGE_BYTES], 4096).unwrap();
        check(&copy).unwrap();
        damaged.write_all_at(&[9; 1], 20).unwrap();
        said(&copy, "its header does not match its checksum");
        damaged.set_len(table.file_bytes - 1).unwrap();
        said(&copy, "it was not copied whole");
        std::os::unix::fs::symlink(own.path(table), at("link")).unwrap();
        said(&at("link"), "the model's own file");
        let no_copy = format!(" is no copy of {}: ", own.path(table).display());
        said(&other.path(other.table("a").unwrap()), &no_copy);
        said(
            &other.path(other.table("a").unwrap()),
            "another model or generation",
        );
        said(&own.path(own.table("b").unwrap()), &no_copy);
        said(
            &own.path(own.table("b").unwrap()),
            "it is of table b, 2000 rows of 64",
        );
        said(&shape.path(&shape.tables()[0]), &no_copy);
        said(&at("none"), "can't be read");
    }

    #[test]
    fn pages_are_compared_everywhere() {
        let pages = |count| pages_to_compare(count).collect::<Vec<_>>();
        assert_eq!(pages(1), [0; 0]);
        assert_eq!(pages(3), [1, 2]);
        let many = pages(1 << 20);
        assert!((16..=32).contains(&many.len()), "{}", many.len());
        assert!(*many.last().unwrap() > (1 << 20) - (1 << 16));
    }
}
