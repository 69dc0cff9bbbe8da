//! A generation on disk.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rowmill_arena::HugePages;

use crate::blocks::{open_regular, read_at};
use crate::header::{HEADER_BYTES, parse_header};
use crate::load::{Keep, LoadOptions};
use crate::manifest::{MANIFEST_FILE, MAX_MANIFEST_BYTES, parse_manifest};
use crate::resident::Resident;
use crate::{Manifest, Progress, TableError};

pub use crate::manifest::TableInfo;

/// An opened generation: its manifest, checked against its files' sizes and headers.
#[derive(Clone, Debug)]
pub struct Generation {
    dir: PathBuf,
    manifest: Manifest,
}

impl Generation {
    /// Opens the generation at `dir`, reading the manifest and 4 KiB of each table, whatever their size.
    ///
    /// # Errors
    /// An error of its own for each promise of the manifest that is impossible or that the files do not
    /// keep; see [`TableError`].
    pub fn open(dir: impl AsRef<Path>) -> Result<Generation, TableError> {
        Generation::open_telling(dir, &|_| ())
    }

    /// The same, which calls `tell` with the path of each file before it is opened: a disk may not answer.
    ///
    /// # Errors
    /// As [`Generation::open`].
    pub fn open_telling(
        dir: impl AsRef<Path>,
        tell: &dyn Fn(&Path),
    ) -> Result<Generation, TableError> {
        let dir = dir.as_ref().to_owned();
        tell(&dir.join(MANIFEST_FILE));
        let manifest = parse_manifest(&read_manifest(&dir)?)?;
        let generation = Generation { dir, manifest };
        generation.sized_file(
            &generation.manifest.checksum_file,
            generation.manifest.checksum_bytes(),
        )?;
        for table in generation.tables() {
            tell(&generation.path(table));
            generation.check_header(table)?;
        }
        Ok(generation)
    }

    /// The number that the manifest in a directory says, where that can be read, whatever is wrong with the rest.
    pub fn number_said(dir: impl AsRef<Path>) -> Option<u64> {
        let manifest = read_manifest(dir.as_ref()).ok()?;
        Some(parse_manifest(&manifest).ok()?.generation)
    }

    /// The generation's number.
    pub fn number(&self) -> u64 {
        self.manifest.generation
    }

    /// What tells this generation's files from others of the same number: the checksum of the checksums of all their pages.
    pub fn fingerprint(&self) -> u32 {
        self.manifest.checksum_crc
    }

    /// The tables; their order is their index.
    pub fn tables(&self) -> &[TableInfo] {
        &self.manifest.tables
    }

    /// The table of that name.
    ///
    /// # Errors
    /// [`TableError::UnknownTable`].
    pub fn table(&self, name: &str) -> Result<&TableInfo, TableError> {
        let found = self.tables().iter().find(|table| table.name == name);
        found.ok_or_else(|| TableError::UnknownTable {
            name: name.to_owned(),
        })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes of all rows together.
    pub fn row_region_bytes(&self) -> u64 {
        self.tables().iter().map(TableInfo::row_region_bytes).sum()
    }

    /// Bytes of all rows and indexes: what the tables need in memory, but for alignment.
    pub fn resident_bytes(&self) -> u64 {
        self.tables().iter().map(TableInfo::resident_bytes).sum()
    }

    /// The path of a table's file.
    pub fn path(&self, table: &TableInfo) -> PathBuf {
        self.dir.join(&table.file)
    }

    /// Reads every byte of every file and compares the checksums.
    ///
    /// # Errors
    /// [`TableError::DamagedPage`] for the first damaged page, with the number of others;
    /// [`TableError::DamagedChecksums`]; files that can't be read.
    pub fn verify(&self, progress: Progress<'_>) -> Result<(), TableError> {
        crate::verify::verify(self, progress)
    }

    /// Brings all tables into one arena.
    ///
    /// # Errors
    /// [`TableError::Memory`] where there is too little of it, and as [`Generation::verify`] unless
    /// `options` say not to compare checksums.
    pub fn load(
        &self,
        huge_pages: HugePages,
        progress: Progress<'_>,
        options: LoadOptions,
    ) -> Result<Resident, TableError> {
        self.load_parts(|_| Keep::All, huge_pages, progress, options)
    }

    /// What it promises.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Opens a file of the generation and compares its size with what the manifest promises.
    pub(crate) fn sized_file(
        &self,
        name: &str,
        promised: u64,
    ) -> Result<(File, PathBuf), TableError> {
        let path = self.dir.join(name);
        let file = open_regular(&path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => TableError::NoFile {
                path: path.clone(),
                source,
            },
            _ => TableError::io(&path)(source),
        })?;
        let found = file.metadata().map_err(TableError::io(&path))?.len();
        if found != promised {
            return Err(TableError::WrongFileSize {
                path,
                promised,
                found,
            });
        }
        Ok((file, path))
    }

    fn check_header(&self, table: &TableInfo) -> Result<(), TableError> {
        let (file, path) = self.sized_file(&table.file, table.file_bytes)?;
        let mut bytes = [0; HEADER_BYTES];
        read_at(&file, &path, &mut bytes, 0)?;
        let header = parse_header(&bytes).map_err(|reason| TableError::BadHeader {
            path: path.clone(),
            reason,
        })?;
        if header.spec != table.spec() {
            let reason = format!(
                "is of another table than the manifest says ({})",
                header.spec.name
            );
            return Err(TableError::BadHeader { path, reason });
        }
        Ok(())
    }
}

fn read_manifest(dir: &Path) -> Result<Vec<u8>, TableError> {
    let path = dir.join(MANIFEST_FILE);
    let file = open_regular(&path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => TableError::NoManifest {
            path: dir.to_owned(),
        },
        _ => TableError::Io {
            path: path.clone(),
            source,
        },
    })?;
    let mut bytes = Vec::new();
    // One byte past the limit is enough for the parser to see that there are too many.
    file.take(MAX_MANIFEST_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(TableError::io(&path))?;
    Ok(bytes)
}
