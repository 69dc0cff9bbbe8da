//! Making deltas of what others have: ids and rows in files.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rowmill_arena::HugePages;

use crate::delta::{DeltaHead, DeltaSection, MAX_DELTA_BYTES, MAX_MODEL_NAME};
use crate::delta_file::bad;
use crate::import::Container;
use crate::import_file::Contents;
use crate::transcode::transcode;
use crate::{Generation, Keep, LoadOptions, Resident, TableError, TableKind, import, silent};

/// Bytes of rows that are encoded at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Rows of a table that are to become others, and their ids.
#[derive(Clone, Debug)]
pub struct DeltaTable {
    /// The table's name.
    pub name: String,
    /// Where ids and rows lie; in any order, each id once.
    pub from: Container,
}

/// Makes a delta at `path`, which must not exist: rows of `generation`, encoded as those of its tables are, for the deltas of `model`. Nothing is
/// left behind by one that fails.
///
/// # Errors
/// [`TableError::BadSource`] for files of another kind or size, without ids, or with ids that the table lacks or that are named twice, and
/// for values that can't be stored; [`TableError::BadDelta`] where the delta can't be.
pub fn write_delta(
    path: impl AsRef<Path>,
    model: &str,
    sequence: u64,
    generation: &Generation,
    tables: &[DeltaTable],
) -> Result<DeltaHead, TableError> {
    let path = path.as_ref();
    if model.is_empty() || model.len() > MAX_MODEL_NAME || model.chars().any(char::is_control) {
        return Err(bad(
            path,
            format!("can't name a model `{}`", model.escape_debug()),
        ));
    }
    if sequence == 0 || tables.is_empty() {
        return Err(bad(
            path,
            "needs rows and a sequence number from 1 on".into(),
        ));
    }
    let options = LoadOptions { verify: false };
    let index = generation.load_parts(|_| Keep::Index, HugePages::Off, &silent, options)?;
    let mut sources = Vec::new();
    for table in tables {
        generation.table(&table.name)?;
        sources.push(Source::open(table, generation, &index)?);
    }
    sources.sort_by(|a, b| a.section.table.cmp(&b.section.table));
    let twice = sources
        .windows(2)
        .find(|two| two[0].section.table == two[1].section.table);
    if let Some([one, _]) = twice {
        return Err(bad(
            path,
            format!("can't have table {} twice", one.section.table),
        ));
    }
    let mut head = DeltaHead {
        model: model.to_owned(),
        generation: generation.number(),
        base: generation.fingerprint(),
        sequence,
        sections: sources
            .iter()
            .map(|source| source.section.clone())
            .collect(),
    };
    if head.file_bytes() > MAX_DELTA_BYTES {
        return Err(bad(
            path,
            format!(
                "can't have more than {MAX_DELTA_BYTES} bytes; make a generation of so many rows"
            ),
        ));
    }
    if path.exists() {
        return Err(bad(
            path,
            "exists already; deltas are not written over".into(),
        ));
    }
    let draft = draft_of(path);
    let written = write(&draft, &mut head, &sources);
    let published = written.and_then(|()| fs::rename(&draft, path).map_err(TableError::io(path)));
    if published.is_err() {
        // What can't be removed is written over by the next one.
        let _ = fs::remove_file(&draft);
    }
    published.map(|()| head)
}

/// The name beside it that it has until it is whole.
fn draft_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn write(draft: &Path, head: &mut DeltaHead, sources: &[Source]) -> Result<(), TableError> {
    let io = || TableError::io(draft);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(draft);
    let file = file.map_err(io())?;
    let mut at = head.head_bytes();
    for (source, section) in sources.iter().zip(&mut head.sections) {
        section.crc32 = source.write(&file, at, draft)?;
        at += section.body_bytes();
    }
    file.write_all_at(&head.to_bytes(), 0).map_err(io())?;
    file.sync_all().map_err(io())
}

struct Source {
    section: DeltaSection,
    contents: Contents,
    /// Each id with the number of its row in the file, ascending.
    ids: Vec<(u64, u64)>,
}

impl Source {
    fn open(
        table: &DeltaTable,
        generation: &Generation,
        index: &Resident,
    ) -> Result<Source, TableError> {
        let info = generation.table(&table.name)?;
        let contents = import::contents(&table.from, Some(info.dim))?;
        let rows = &contents.rows;
        if rows.dim != info.dim as u64 {
            return Err(rows.file.bad(format!(
                "has rows of {} dimensions, and those of table {} have {}",
                rows.dim, info.name, info.dim
            )));
        }
        let Some(keys) = &contents.keys else {
            return Err(rows
                .file
                .bad("comes without the ids of its rows, which a delta needs"));
        };
        let mut raw = vec![0; keys.count as usize];
        keys.read(0, &mut raw)?;
        let lacking = |id: u64| {
            keys.file.bad(format!(
                "has the id {id}, which table {} lacks: rows are changed by deltas, and neither added nor removed",
                info.name
            ))
        };
        let resident = index.table(&info.name).expect("of the same generation");
        let mut numbers = vec![0; raw.len()];
        if let Err(position) = resident.resolve(&raw, &mut numbers) {
            return Err(lacking(raw[position]));
        }
        let missing = numbers
            .iter()
            .position(|&row| row >= resident.lookup_count());
        if let Some(position) = missing {
            return Err(lacking(raw[position]));
        }
        let mut ids: Vec<(u64, u64)> = raw.into_iter().zip(0..).collect();
        ids.sort_unstable();
        if let Some([(id, one), (_, other)]) = ids.windows(2).find(|two| two[0].0 == two[1].0) {
            return Err(keys.file.bad(format!(
                "has the id {id} for rows {one} and {other}; each row becomes one other"
            )));
        }
        if ids.is_empty() {
            return Err(keys.file.bad("has no ids; leave the table out"));
        }
        let section = DeltaSection {
            table: info.name.clone(),
            format: info.format,
            dim: info.dim,
            hashed: matches!(info.kind, TableKind::Hashed(_)),
            rows: ids.len() as u64,
            crc32: 0,
        };
        Ok(Source {
            section,
            contents,
            ids,
        })
    }

    /// Writes ids, rows and padding from `at` on: their checksum.
    fn write(&self, file: &File, mut at: u64, path: &Path) -> Result<u32, TableError> {
        let mut hasher = crc32fast::Hasher::new();
        let mut put = |bytes: &[u8]| {
            hasher.update(bytes);
            let outcome = file.write_all_at(bytes, at).map_err(TableError::io(path));
            at += bytes.len() as u64;
            outcome
        };
        for ids in self.ids.chunks(PIECE_BYTES / 8) {
            let bytes: Vec<u8> = ids.iter().flat_map(|(id, _)| id.to_le_bytes()).collect();
            put(&bytes)?;
        }
        let stride = self.section.format.row_bytes(self.section.dim);
        let mut bytes = Vec::new();
        for ids in self.ids.chunks((PIECE_BYTES / stride).max(1)) {
            bytes.clear();
            bytes.resize(ids.len() * stride, 0);
            let mut rest = &mut bytes[..];
            // Rows that lie together in the file are read together.
            for run in ids.chunk_by(|(_, one), (_, next)| one + 1 == *next) {
                let (out, behind) = rest.split_at_mut(run.len() * stride);
                transcode(&self.contents.rows, self.section.format, run[0].1, out)?;
                rest = behind;
            }
            put(&bytes)?;
        }
        let body = self.section.rows * (8 + stride as u64);
        let padding = self.section.body_bytes() - body;
        put(&[0; 8][..padding as usize])?;
        Ok(hasher.finalize())
    }
}
