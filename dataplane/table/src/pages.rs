//! The pages of table files: which of them a row lies in, and the checksum that each has.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::blocks::{BLOCK_BYTES, read_at};
use crate::header::HEADER_BYTES;
use crate::manifest::TableInfo;
use crate::{Generation, TableError};

/// Bytes of a page: what a file is padded to, what O_DIRECT reads at least, and what has a checksum of its
/// own, so that a row can be checked by reading the one to three pages that it lies in.
pub const PAGE_BYTES: usize = 4096;
/// Bytes of a page's checksum, in the list of them and in memory: 0.1 % of a table.
pub(crate) const CHECKSUM_BYTES: u64 = 4;
/// Pages of a whole block.
pub(crate) const BLOCK_PAGES: u64 = (BLOCK_BYTES / PAGE_BYTES) as u64;

/// Where a row lies in its table's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPlace {
    /// Its first byte, counted from the start of the file.
    pub offset: u64,
    /// Its bytes: the table's stride.
    pub bytes: usize,
}

impl RowPlace {
    /// The pages that it lies in, counted from the start of the file.
    pub fn pages(&self) -> Range<u64> {
        let page = PAGE_BYTES as u64;
        self.offset / page..(self.offset + self.bytes as u64).div_ceil(page)
    }
}

impl TableInfo {
    /// Where a stored row lies: one of an id, or the one for missing ids behind those.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_place(&self, row: u32) -> RowPlace {
        assert!(u64::from(row) < self.stored_rows(), "a row of the table");
        RowPlace {
            offset: HEADER_BYTES as u64 + u64::from(row) * self.stride as u64,
            bytes: self.stride,
        }
    }

    /// Pages of the table's file.
    pub fn page_count(&self) -> u64 {
        self.file_bytes / PAGE_BYTES as u64
    }
}

/// The CRC-32 of each page of what lies in three pieces: whole pages, anything, and what is missing to that
/// one's last page.
pub(crate) fn page_crcs<'a>(
    head: &'a [u8],
    body: &'a [u8],
    tail: &'a [u8],
) -> impl Iterator<Item = u32> + 'a {
    let (first, none) = head.as_chunks::<PAGE_BYTES>();
    let (pages, rest) = body.as_chunks::<PAGE_BYTES>();
    let last = rest.len() + tail.len();
    assert!(
        none.is_empty() && (last == 0 || last == PAGE_BYTES),
        "whole pages"
    );
    let crc_of_last = move || {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(rest);
        hasher.update(tail);
        hasher.finalize()
    };
    let whole = first.iter().chain(pages).map(|page| crc32fast::hash(page));
    whole.chain((last > 0).then(crc_of_last))
}

/// Pages that don't have their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damage {
    /// The first of them.
    pub(crate) first: u64,
    /// How many they are.
    pub(crate) count: u64,
}

/// What is damaged of pages with these checksums, counted from 0.
pub(crate) fn damage(found: impl Iterator<Item = u32>, promised: &[u32]) -> Option<Damage> {
    let pairs = (0..).zip(found.zip(promised));
    let mut bad = pairs.filter(|(_, (found, promised))| found != *promised);
    let (first, _) = bad.next()?;
    let count = 1 + bad.count() as u64;
    Some(Damage { first, count })
}

/// The opened list of a generation's checksums.
pub(crate) struct Checksums {
    file: File,
    path: PathBuf,
}

impl Checksums {
    /// Opens the list and reads all of it, a block at a time, to compare it with its own checksum.
    pub(crate) fn open(generation: &Generation) -> Result<Checksums, TableError> {
        let manifest = generation.manifest();
        let bytes = manifest.checksum_bytes();
        let (file, path) = generation.sized_file(&manifest.checksum_file, bytes)?;
        if crc_of_file(&file, &path, bytes)? != manifest.checksum_crc {
            return Err(TableError::DamagedChecksums { path });
        }
        Ok(Checksums { file, path })
    }

    /// Reads the checksums of pages from `first` on, all tables' pages being counted one after another.
    pub(crate) fn read(&self, first: u64, pages: u64) -> Result<Vec<u32>, TableError> {
        let mut bytes = vec![0; (pages * CHECKSUM_BYTES) as usize];
        read_at(&self.file, &self.path, &mut bytes, first * CHECKSUM_BYTES)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
    }
}

/// The CRC-32 of a file's first `bytes` bytes.
pub(crate) fn crc_of_file(file: &File, path: &Path, bytes: u64) -> Result<u32, TableError> {
    let mut buffer = vec![0; bytes.min(BLOCK_BYTES as u64) as usize];
    let mut hasher = crc32fast::Hasher::new();
    let mut at = 0;
    while at < bytes {
        let part = &mut buffer[..(bytes - at).min(BLOCK_BYTES as u64) as usize];
        read_at(file, path, part, at)?;
        hasher.update(part);
        at += part.len() as u64;
    }
    Ok(hasher.finalize())
}

/// The checksums of all pages of a table's file, in memory: 4 bytes a page, 0.1 % of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageChecksums {
    crcs: Box<[u32]>,
}

impl PageChecksums {
    /// Those of a file's bytes.
    ///
    /// # Panics
    /// If they are not whole pages.
    pub fn of(file: &[u8]) -> PageChecksums {
        let crcs = page_crcs(file, &[], &[]).collect();
        PageChecksums { crcs }
    }

    /// The pages there are.
    pub fn page_count(&self) -> u64 {
        self.crcs.len() as u64
    }

    /// Whether `page` is what was written as page `number` of the file.
    ///
    /// # Panics
    /// If the file has no such page.
    pub fn is_whole(&self, number: u64, page: &[u8; PAGE_BYTES]) -> bool {
        crc32fast::hash(page) == self.crcs[number as usize]
    }
}

impl Generation {
    /// The checksums of a table's pages.
    ///
    /// # Errors
    /// [`TableError::UnknownTable`], [`TableError::DamagedChecksums`], and what can't be read.
    pub fn page_checksums(&self, name: &str) -> Result<PageChecksums, TableError> {
        let table = self.table(name)?;
        let before = self.tables().iter().take_while(|other| other.name != name);
        let first = before.map(TableInfo::page_count).sum();
        let crcs = Checksums::open(self)?.read(first, table.page_count())?;
        Ok(PageChecksums { crcs: crcs.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::RowFormat;
    use crate::spec::{Missing, TableKind, TableSpec};

    #[test]
    fn rows_lie_in_their_pages() {
        let spec = |dim, format, kind| TableSpec {
            name: "t".into(),
            rows: 1000,
            dim,
            format,
            kind,
        };
        let info = |spec| TableInfo::new(&spec, "file".into());
        let aligned = info(spec(64, RowFormat::F32, TableKind::Dense));
        for (row, offset, pages) in [
            (0, 4096, 1..2),
            (15, 4096 + 15 * 256, 1..2),
            (16, 8192, 2..3),
        ] {
            let place = aligned.row_place(row);
            assert_eq!((place.offset, place.bytes), (offset, 256));
            assert_eq!(place.pages(), pages, "row {row}");
        }
        // 56 rows of 72 bytes are 64 bytes short of a page, and row 56 lies across its end.
        let crossing = info(spec(64, RowFormat::Int8, TableKind::Dense));
        assert_eq!(crossing.row_place(55).pages(), 1..2);
        assert_eq!(crossing.row_place(56).pages(), 1..3);
        assert_eq!(crossing.row_place(57).pages(), 2..3);
        // Rows of 8188 bytes drift through the pages, so that some touch three of them.
        let wide = info(spec(2044, RowFormat::F32, TableKind::Dense));
        let most = (0..1000).map(|row| {
            let pages = wide.row_place(row).pages();
            pages.end - pages.start
        });
        assert_eq!(most.max(), Some(3));
        let kind = TableKind::Hashed(Missing::Zero);
        let hashed = info(spec(64, RowFormat::F32, kind));
        assert_eq!(hashed.row_place(1000).offset, 4096 + 256_000);
        let last = hashed.row_place(1000).pages();
        assert!(last.end <= hashed.page_count());
    }

    #[test]
    #[should_panic(expected = "a row of the table")]
    fn rows_that_are_not_there() {
        let spec: TableSpec = "t:10:4:f32".parse().unwrap();
        TableInfo::new(&spec, "file".into()).row_place(10);
    }

    #[test]
    fn pages_in_pieces_have_the_checksums_of_the_whole() {
        let bytes: Vec<u8> = (0..5 * PAGE_BYTES).map(|at| (at * 7 / 3) as u8).collect();
        let whole: Vec<u32> = bytes.chunks(PAGE_BYTES).map(crc32fast::hash).collect();
        for (first, second) in [(0, 5), (1, 4), (2, 2), (0, 0)] {
            for rest in [0, 1, PAGE_BYTES - 1] {
                let (head, behind) = bytes.split_at(first * PAGE_BYTES);
                let body = &behind[..(second * PAGE_BYTES + rest).min(behind.len())];
                let missing = body.len().next_multiple_of(PAGE_BYTES);
                let tail = &behind[body.len()..missing];
                let found: Vec<u32> = page_crcs(head, body, tail).collect();
                assert_eq!(found, whole[..found.len()]);
                assert_eq!(found.len(), first + missing / PAGE_BYTES);
            }
        }
    }

    #[test]
    fn damage_is_counted() {
        let found = |list: [u32; 4]| damage(list.into_iter(), &[1, 2, 3, 4]);
        assert_eq!(found([1, 2, 3, 4]), None);
        assert_eq!(found([1, 0, 3, 4]), Some(Damage { first: 1, count: 1 }));
        assert_eq!(found([1, 2, 0, 0]), Some(Damage { first: 2, count: 2 }));
    }
}
