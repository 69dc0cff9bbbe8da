//! Writing a generation: into a directory beside its place, which gets its name when all is on disk.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Access, access};

use crate::blocks::{BLOCK_BYTES, Meter, block_count, block_range, in_parallel, row_range};
use crate::format::{TableSpec, check_specs};
use crate::header::{HEADER_BYTES, Header};
use crate::manifest::{CHECKSUM_FILE, MANIFEST_FILE, Manifest, TableInfo};
use crate::{Progress, Stage, TableError};

/// Room left for directories and the file system's own bookkeeping.
const DISK_RESERVE_BYTES: u64 = 16 << 20;

/// Where rows come from when a generation is made. Asked by several threads at a time.
pub(crate) trait RowSource: Sync {
    /// Fills `out`, a whole number of encoded rows of table number `table`, from row `first` on.
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError>;
}

/// Fills `out` with the bytes of table `table` from byte `from` of its rows on; `from` and the end may
/// lie within a row. `row` is scratch.
pub(crate) fn fill(
    source: &dyn RowSource,
    table: usize,
    stride: usize,
    from: u64,
    out: &mut [u8],
    row: &mut Vec<u8>,
) -> Result<(), TableError> {
    row.resize(stride, 0);
    let (mut first, into_row) = (from / stride as u64, (from % stride as u64) as usize);
    let mut out = out;
    if into_row > 0 {
        let (head, rest) = out.split_at_mut(out.len().min(stride - into_row));
        source.rows(table, first, row)?;
        head.copy_from_slice(&row[into_row..into_row + head.len()]);
        (first, out) = (first + 1, rest);
    }
    let (whole, tail) = out.split_at_mut(out.len() - out.len() % stride);
    source.rows(table, first, whole)?;
    if !tail.is_empty() {
        source.rows(table, first + (whole.len() / stride) as u64, row)?;
        tail.copy_from_slice(&row[..tail.len()]);
    }
    Ok(())
}

/// Makes generation `number` at `dir`, which must not exist. Memory use is bounded, whatever the size.
pub(crate) fn write_generation(
    dir: &Path,
    number: u64,
    specs: &[TableSpec],
    source: &dyn RowSource,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    check_specs(specs)?;
    let tables: Vec<TableInfo> = specs
        .iter()
        .enumerate()
        .map(|(index, spec)| TableInfo::new(spec, format!("{index:05}.rows")))
        .collect();
    let draft = Draft::begin(dir, tables.iter().map(|table| table.file_bytes).sum())?;
    let checksums = draft.write_tables(&tables, source, progress)?;
    let bytes: Vec<u8> = checksums.iter().flat_map(|crc| crc.to_le_bytes()).collect();
    draft.write_file(CHECKSUM_FILE, &bytes)?;
    let manifest = Manifest {
        generation: number,
        checksum_file: CHECKSUM_FILE.into(),
        checksum_crc: crc32fast::hash(&bytes),
        tables,
    };
    draft.sync(&manifest.tables, progress)?;
    draft.write_file(MANIFEST_FILE, &manifest.to_bytes())?;
    draft.publish()
}

/// A directory that is removed again unless it is published.
struct Draft {
    temporary: PathBuf,
    target: PathBuf,
    parent: PathBuf,
}

impl Draft {
    fn begin(target: &Path, bytes: u64) -> Result<Draft, TableError> {
        if target.symlink_metadata().is_ok() {
            return Err(TableError::AlreadyExists {
                path: target.to_owned(),
            });
        }
        let name = target
            .file_name()
            .ok_or_else(|| TableError::AlreadyExists {
                path: target.to_owned(),
            })?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let not_writable = |source| TableError::NotWritable {
            path: parent.clone(),
            source,
        };
        fs::create_dir_all(&parent).map_err(not_writable)?;
        access(&parent, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|errno| not_writable(errno.into()))?;
        let mut prefix = OsString::from(".");
        prefix.push(name);
        prefix.push(".partial-");
        remove_abandoned(&parent, &prefix);
        check_room(&parent, bytes)?;
        let mut partial = prefix;
        partial.push(process::id().to_string());
        let temporary = parent.join(partial);
        fs::create_dir(&temporary).map_err(not_writable)?;
        Ok(Draft {
            temporary,
            target: target.to_owned(),
            parent,
        })
    }

    /// Writes all table files and returns the checksums of their blocks, table after table.
    fn write_tables(
        &self,
        tables: &[TableInfo],
        source: &dyn RowSource,
        progress: Progress<'_>,
    ) -> Result<Vec<u32>, TableError> {
        let mut jobs = Vec::new();
        for (index, table) in tables.iter().enumerate() {
            let path = self.temporary.join(&table.file);
            let file = File::create_new(&path).map_err(TableError::io(&path))?;
            file.set_len(table.file_bytes)
                .map_err(TableError::io(&path))?;
            jobs.extend((0..block_count(table.file_bytes)).map(|block| (index, block)));
        }
        let meter = Meter::new(
            progress,
            Stage::Writing,
            tables.iter().map(|table| table.file_bytes).sum(),
        );
        let checksums = Mutex::new(vec![0; jobs.len()]);
        let writing = Mutex::new(());
        let start = || (vec![0; BLOCK_BYTES], Vec::new());
        in_parallel(
            jobs.into_iter().enumerate(),
            start,
            |(buffer, row), (place, (index, block))| {
                let table = &tables[index];
                let range = block_range(table.file_bytes, block);
                let bytes = &mut buffer[..(range.end - range.start) as usize];
                compose(table, index, block, source, bytes, row)?;
                checksums.lock().unwrap_or_else(PoisonError::into_inner)[place] =
                    crc32fast::hash(bytes);
                let path = self.temporary.join(&table.file);
                let file = OpenOptions::new()
                    .write(true)
                    .open(&path)
                    .map_err(TableError::io(&path))?;
                // Two writers of one file spin on its lock in the kernel; here the second one sleeps.
                let _turn = writing.lock().unwrap_or_else(PoisonError::into_inner);
                file.write_all_at(bytes, range.start)
                    .map_err(TableError::io(&path))?;
                meter.add(bytes.len() as u64);
                Ok(())
            },
        )?;
        Ok(checksums
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner))
    }

    fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), TableError> {
        let path = self.temporary.join(name);
        let file = File::create_new(&path).map_err(TableError::io(&path))?;
        file.write_all_at(bytes, 0).map_err(TableError::io(&path))?;
        file.sync_all().map_err(TableError::io(&path))
    }

    fn sync(&self, tables: &[TableInfo], progress: Progress<'_>) -> Result<(), TableError> {
        let meter = Meter::new(
            progress,
            Stage::Syncing,
            tables.iter().map(|table| table.file_bytes).sum(),
        );
        for table in tables {
            let path = self.temporary.join(&table.file);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .map_err(TableError::io(&path))?;
            meter.add(table.file_bytes);
        }
        Ok(())
    }

    /// Gives the directory its name. Whoever sees the name sees all of the contents.
    fn publish(self) -> Result<(), TableError> {
        let sync = |path: &Path| {
            File::open(path)
                .and_then(|dir| dir.sync_all())
                .map_err(TableError::io(path))
        };
        sync(&self.temporary)?;
        // An empty directory would be replaced, one with contents is refused by the kernel.
        fs::rename(&self.temporary, &self.target).map_err(|source| match source.kind() {
            std::io::ErrorKind::DirectoryNotEmpty | std::io::ErrorKind::AlreadyExists => {
                TableError::AlreadyExists {
                    path: self.target.clone(),
                }
            }
            _ => TableError::Io {
                path: self.target.clone(),
                source,
            },
        })?;
        sync(&self.parent)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // After publishing there is nothing of this name; after an error whatever stays is harmless,
        // since it has no manifest, and the next attempt removes it.
        let _ = fs::remove_dir_all(&self.temporary);
    }
}

/// Puts together the bytes of one block: header, rows, padding.
fn compose(
    table: &TableInfo,
    index: usize,
    block: u64,
    source: &dyn RowSource,
    bytes: &mut [u8],
    row: &mut Vec<u8>,
) -> Result<(), TableError> {
    let mut rest = bytes;
    if block == 0 {
        let (header, behind) = rest.split_at_mut(HEADER_BYTES);
        header.copy_from_slice(&Header { spec: table.spec() }.to_bytes());
        rest = behind;
    }
    let rows = row_range(table.file_bytes, table.row_region_bytes(), block);
    let (row_bytes, padding) = rest.split_at_mut((rows.end - rows.start) as usize);
    padding.fill(0);
    fill(source, index, table.stride, rows.start, row_bytes, row)
}

/// Removes what attempts of processes that are gone have left behind.
fn remove_abandoned(parent: &Path, prefix: &OsString) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let (Some(name), Some(prefix)) = (name.to_str(), prefix.to_str()) else {
            continue;
        };
        let Some(pid) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == process::id() || !Path::new(&format!("/proc/{pid}")).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn check_room(parent: &Path, bytes: u64) -> Result<(), TableError> {
    let stat = rustix::fs::statvfs(parent).map_err(|errno| TableError::Io {
        path: parent.to_owned(),
        source: errno.into(),
    })?;
    if stat.f_blocks == 0 {
        // No information: a file system without files of one's own, such as /proc, or one without a
        // bound. What comes next tells them apart.
        return Ok(());
    }
    let available = stat.f_bavail.saturating_mul(stat.f_frsize);
    let needed = bytes.saturating_add(DISK_RESERVE_BYTES);
    if needed > available {
        return Err(TableError::TooLittleDisk {
            path: parent.to_owned(),
            needed,
            available,
        });
    }
    Ok(())
}
