//! Deltas: files with rows of a generation's tables that are to become others. `FORMAT.md` describes every byte.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rowmill_arena::open_at_once;

use crate::spec::MAX_TABLES;
use crate::{Resident, ResidentTable, RowFormat, TableError, TableKind, TableSpec};

/// Bytes of a delta's header; the list of its sections starts behind it.
pub(crate) const HEAD_BYTES: usize = 512;
/// Bytes of a section in that list.
pub(crate) const ENTRY_BYTES: usize = 192;
/// Most bytes of header and list.
pub const MAX_DELTA_HEAD_BYTES: usize = HEAD_BYTES + MAX_TABLES * ENTRY_BYTES;
/// Most bytes of a delta: 64 GiB. What is larger is a generation.
pub const MAX_DELTA_BYTES: u64 = 1 << 36;
/// Most bytes of a model's name.
pub const MAX_MODEL_NAME: usize = 255;

const MAGIC: &[u8; 8] = b"ROWMILLD";
const VERSION: u32 = 1;
/// Where each field of the header lies, little-endian; the rest is zero.
const VERSION_AT: usize = 8;
const SECTIONS_AT: usize = 12;
const GENERATION_AT: usize = 16;
const SEQUENCE_AT: usize = 24;
const BYTES_AT: usize = 32;
const NAME_LEN_AT: usize = 40;
const LIST_CRC_AT: usize = 44;
const NAME_AT: usize = 48;
const CRC_AT: usize = HEAD_BYTES - 4;
const _: () = assert!(NAME_AT + MAX_MODEL_NAME <= CRC_AT);
/// And of a section.
const TABLE_AT: usize = 4;
const FORMAT_AT: usize = 132;
const DIM_AT: usize = 136;
const KIND_AT: usize = 140;
const ROWS_AT: usize = 144;
const BODY_AT: usize = 152;
const BODY_CRC_AT: usize = 160;
const ENTRY_USED: usize = 164;
const _: () = assert!(TABLE_AT + crate::spec::MAX_NAME_BYTES <= FORMAT_AT);
/// Ids and rows are read in pieces of about so many bytes.
const PIECE_BYTES: usize = 4 << 20;

/// What a delta says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaHead {
    /// The model that it is for.
    pub model: String,
    /// The generation that it is for.
    pub generation: u64,
    /// Its place among the deltas of that generation, which are counted from 1 without gaps.
    pub sequence: u64,
    /// What it has for each table.
    pub sections: Vec<DeltaSection>,
}

/// The rows of a table in a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaSection {
    /// The table's name.
    pub table: String,
    /// How rows are stored there.
    pub format: RowFormat,
    /// Dimensions.
    pub dim: usize,
    /// Whether rows are named by keys, as those of a hashed table.
    pub hashed: bool,
    /// How many there are.
    pub rows: u64,
    /// The checksum of ids, rows and padding.
    pub crc32: u32,
}

impl DeltaSection {
    fn row_bytes(&self) -> u64 {
        self.format.row_bytes(self.dim) as u64
    }

    /// Bytes of ids, rows and padding.
    pub(crate) fn body_bytes(&self) -> u64 {
        (self.rows * (8 + self.row_bytes())).next_multiple_of(8)
    }

    /// As the rows of a dense table of so many: whether name, rows and dimensions are possible.
    fn check(&self) -> Result<(), TableError> {
        TableSpec {
            name: self.table.clone(),
            rows: self.rows,
            dim: self.dim,
            format: self.format,
            kind: TableKind::Dense,
        }
        .check()
    }
}

impl DeltaHead {
    /// Bytes of header and list.
    pub(crate) fn head_bytes(&self) -> u64 {
        (HEAD_BYTES + self.sections.len() * ENTRY_BYTES) as u64
    }

    /// Where the body of each section begins.
    fn bodies(&self) -> impl Iterator<Item = u64> {
        let mut at = self.head_bytes();
        self.sections.iter().map(move |section| {
            let begin = at;
            at += section.body_bytes();
            begin
        })
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        let bodies = self.sections.iter().map(DeltaSection::body_bytes);
        self.head_bytes() + bodies.sum::<u64>()
    }

    /// Rows of all sections.
    pub fn rows(&self) -> u64 {
        self.sections.iter().map(|section| section.rows).sum()
    }

    /// Header and list as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut list = Vec::new();
        for (section, at) in self.sections.iter().zip(self.bodies()) {
            let mut entry = [0; ENTRY_BYTES];
            let mut put =
                |at: usize, field: &[u8]| entry[at..at + field.len()].copy_from_slice(field);
            put(0, &(section.table.len() as u32).to_le_bytes());
            put(TABLE_AT, section.table.as_bytes());
            put(FORMAT_AT, &section.format.code().to_le_bytes());
            put(DIM_AT, &(section.dim as u32).to_le_bytes());
            put(KIND_AT, &u32::from(section.hashed).to_le_bytes());
            put(ROWS_AT, &section.rows.to_le_bytes());
            put(BODY_AT, &at.to_le_bytes());
            put(BODY_CRC_AT, &section.crc32.to_le_bytes());
            list.extend(entry);
        }
        let mut head = [0; HEAD_BYTES];
        let mut put = |at: usize, field: &[u8]| head[at..at + field.len()].copy_from_slice(field);
        put(0, MAGIC);
        put(VERSION_AT, &VERSION.to_le_bytes());
        put(SECTIONS_AT, &(self.sections.len() as u32).to_le_bytes());
        put(GENERATION_AT, &self.generation.to_le_bytes());
        put(SEQUENCE_AT, &self.sequence.to_le_bytes());
        put(BYTES_AT, &self.file_bytes().to_le_bytes());
        put(NAME_LEN_AT, &(self.model.len() as u32).to_le_bytes());
        put(LIST_CRC_AT, &crc32fast::hash(&list).to_le_bytes());
        put(NAME_AT, self.model.as_bytes());
        let crc = crc32fast::hash(&head[..CRC_AT]);
        head[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        [&head[..], &list].concat()
    }

    /// Whether it is for these tables: a phrase that continues "the delta ..." where it is not. Its ids are not looked at.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check_tables(&self, tables: &Resident) -> Result<(), String> {
        if self.generation != tables.generation() {
            return Err(format!(
                "is for generation {} and not {}",
                self.generation,
                tables.generation()
            ));
        }
        for section in &self.sections {
            let name = &section.table;
            let table = tables.table(name);
            let table = table
                .ok_or_else(|| format!("has rows of a table {name}, which the generation lacks"))?;
            let hashed = matches!(table.kind(), TableKind::Hashed(_));
            let has = (section.format, section.dim, section.hashed);
            if has != (table.format(), table.dim(), hashed) {
                let kind = |hashed| if hashed { "hashed" } else { "dense" };
                return Err(format!(
                    "has rows of {} dimensions in {} for a {} table {name}, which is {} and has {} in {}",
                    section.dim,
                    section.format,
                    kind(section.hashed),
                    kind(hashed),
                    table.dim(),
                    table.format()
                ));
            }
        }
        Ok(())
    }
}

/// Reads and checks the header of a delta and the list of its sections, which are all of `bytes`. Never panics, whatever the bytes.
///
/// # Errors
/// A phrase that continues "the delta ...".
pub fn parse_delta_head(bytes: &[u8]) -> Result<DeltaHead, String> {
    let (head, list) = bytes
        .split_first_chunk::<HEAD_BYTES>()
        .ok_or_else(|| format!("has {} bytes, less than its header", bytes.len()))?;
    let sections = sections_of(head)?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
    if list.len() != sections * ENTRY_BYTES {
        return Err(
            "ends within the list of its sections; it was not written or copied whole".into(),
        );
    }
    if word(LIST_CRC_AT) != crc32fast::hash(list) {
        return Err("is damaged: the list of its sections does not match its checksum".into());
    }
    let name_len = word(NAME_LEN_AT) as usize;
    if !(1..=MAX_MODEL_NAME).contains(&name_len) {
        return Err(format!("names a model by {name_len} bytes"));
    }
    let (name, rest) = head[NAME_AT..CRC_AT].split_at(name_len);
    let name = std::str::from_utf8(name)
        .ok()
        .filter(|name| !name.chars().any(char::is_control));
    let model = name.ok_or("names a model by what is no text")?.to_owned();
    if rest.iter().any(|&byte| byte != 0) {
        return Err("has bytes that must be zero and are not".into());
    }
    if long(SEQUENCE_AT) == 0 {
        return Err("has sequence number 0, and they are counted from 1".into());
    }
    let (entries, _) = list.as_chunks::<ENTRY_BYTES>();
    let mut at = (HEAD_BYTES + list.len()) as u64;
    let mut parsed: Vec<DeltaSection> = Vec::with_capacity(sections);
    for entry in entries {
        let section = parse_entry(entry, at)?;
        if parsed
            .last()
            .is_some_and(|last| last.table >= section.table)
        {
            return Err(format!(
                "has its tables out of order, or table {} twice",
                section.table
            ));
        }
        // Below 2^44 and 2^36: no sum overflows.
        at += section.body_bytes();
        if at > MAX_DELTA_BYTES {
            return Err(format!(
                "has more than {MAX_DELTA_BYTES} bytes; make a generation of so many rows"
            ));
        }
        parsed.push(section);
    }
    if at != long(BYTES_AT) {
        return Err(format!(
            "says that it has {} bytes, and its sections end after {at}",
            long(BYTES_AT)
        ));
    }
    Ok(DeltaHead {
        model,
        generation: long(GENERATION_AT),
        sequence: long(SEQUENCE_AT),
        sections: parsed,
    })
}

/// How many sections a header says there are, once it is sound.
fn sections_of(head: &[u8; HEAD_BYTES]) -> Result<usize, String> {
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
    if &head[..8] != MAGIC {
        return Err("does not start with ROWMILLD, so it is none".into());
    }
    if word(CRC_AT) != crc32fast::hash(&head[..CRC_AT]) {
        return Err("is damaged: its header does not match its checksum".into());
    }
    if word(VERSION_AT) != VERSION {
        return Err(format!(
            "has version {} and this program reads {VERSION}",
            word(VERSION_AT)
        ));
    }
    let sections = word(SECTIONS_AT) as usize;
    match (1..=MAX_TABLES).contains(&sections) {
        true => Ok(sections),
        false => Err(format!(
            "has {sections} sections; 1 to {MAX_TABLES} are possible"
        )),
    }
}

fn parse_entry(entry: &[u8; ENTRY_BYTES], at: u64) -> Result<DeltaSection, String> {
    let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("8 bytes"));
    let zeros = "has bytes that must be zero and are not";
    let name_len = word(0) as usize;
    if name_len > crate::spec::MAX_NAME_BYTES {
        return Err(format!("names a table by {name_len} bytes"));
    }
    let (name, rest) = entry[TABLE_AT..FORMAT_AT].split_at(name_len);
    let table = std::str::from_utf8(name).map_err(|_| "names a table by what is no text")?;
    if rest
        .iter()
        .chain(&entry[ENTRY_USED..])
        .any(|&byte| byte != 0)
    {
        return Err(zeros.into());
    }
    let mut formats = RowFormat::ALL.into_iter();
    let format = formats.find(|format| format.code() == word(FORMAT_AT));
    let section = DeltaSection {
        table: table.to_owned(),
        format: format.ok_or_else(|| format!("has the unknown row format {}", word(FORMAT_AT)))?,
        dim: word(DIM_AT) as usize,
        hashed: match word(KIND_AT) {
            0 => false,
            1 => true,
            other => return Err(format!("has rows for a table of unknown kind {other}")),
        },
        rows: long(ROWS_AT),
        crc32: word(BODY_CRC_AT),
    };
    let possible = section.check();
    possible.map_err(|error| format!("is impossible: {error}"))?;
    if long(BODY_AT) != at {
        return Err(format!(
            "has a section at {} instead of {at}",
            long(BODY_AT)
        ));
    }
    Ok(section)
}

/// A delta in a file, of which header and list are checked.
#[derive(Debug)]
pub struct DeltaFile {
    path: PathBuf,
    file: File,
    head: DeltaHead,
    crc32: u32,
}

impl DeltaFile {
    /// Opens a delta without reading its rows.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] for what is no delta or not a whole one.
    pub fn open(path: impl AsRef<Path>) -> Result<DeltaFile, TableError> {
        let path = path.as_ref();
        let (file, metadata) = open_at_once(path).map_err(TableError::io(path))?;
        let bad = |reason: String| bad(path, reason);
        if !metadata.is_file() {
            return Err(bad("is no regular file".into()));
        }
        let mut bytes = vec![0; metadata.len().min(HEAD_BYTES as u64) as usize];
        let read = |out: &mut [u8], at| file.read_exact_at(out, at).map_err(TableError::io(path));
        read(&mut bytes, 0)?;
        if let Some(head) = bytes.first_chunk() {
            let sections = sections_of(head).map_err(bad)?;
            let list = (sections * ENTRY_BYTES) as u64;
            bytes.resize((HEAD_BYTES as u64 + list).min(metadata.len()) as usize, 0);
            read(&mut bytes[HEAD_BYTES..], HEAD_BYTES as u64)?;
        }
        let head = parse_delta_head(&bytes).map_err(bad)?;
        if head.file_bytes() != metadata.len() {
            return Err(bad(format!(
                "says that it has {} bytes and has {}; it was not written or copied whole",
                head.file_bytes(),
                metadata.len()
            )));
        }
        let crc32 = u32::from_le_bytes(bytes[CRC_AT..HEAD_BYTES].try_into().expect("4 bytes"));
        Ok(DeltaFile {
            path: path.to_owned(),
            file,
            head,
            crc32,
        })
    }

    /// What it says of itself.
    pub fn head(&self) -> &DeltaHead {
        &self.head
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The checksum of its header, in which those of all parts are: deltas that say something else have another, but for one in 2^32.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    /// That it is not what it should be.
    pub fn bad(&self, reason: String) -> TableError {
        bad(&self.path, reason)
    }

    /// Reads all of it: whether it is sound, and its rows are of these tables. Afterwards [`rows`](Self::rows) gives what is good, unless the
    /// file changes.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] with the first thing that is wrong.
    pub fn verify(&self, tables: &Resident) -> Result<(), TableError> {
        let bad = |reason| self.bad(reason);
        self.head.check_tables(tables).map_err(bad)?;
        for section in 0..self.head.sections.len() {
            let name = &self.head.sections[section].table;
            let table = tables.table(name).expect("checked");
            let mut last = None;
            self.check_crc(section)?;
            self.rows(section, table, u32::MAX, &mut |rows, bytes| {
                let _ = (rows, bytes);
                Ok(())
            })?;
            self.ids(section, &mut |ids| {
                for &id in ids {
                    if last.is_some_and(|last| last >= id) {
                        return Err(self.bad(format!(
                            "has the ids of table {name} out of order, or {id} twice"
                        )));
                    }
                    last = Some(id);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Gives the rows of a section with their numbers in the table, at most `most` at a time.
    ///
    /// # Errors
    /// [`TableError::Io`], and [`TableError::BadDelta`] for ids that the table lacks and values that are no numbers; those of `each`.
    pub fn rows(
        &self,
        section: usize,
        table: &ResidentTable,
        most: u32,
        each: &mut dyn FnMut(&[u32], &[u8]) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let (info, stride) = (&self.head.sections[section], table.stride());
        let rows_at = self.body(section) + info.rows * 8;
        let most = (most as usize).min((PIECE_BYTES / stride).max(1)) as u64;
        let mut values = vec![0.0; info.dim];
        let mut first = 0;
        while first < info.rows {
            let count = most.min(info.rows - first) as usize;
            let ids = self.ids_from(section, first, count)?;
            let mut numbers = vec![0; count];
            let lacking = match table.resolve(&ids, &mut numbers) {
                Err(position) => Some(position),
                // The row for ids that there are not.
                Ok(()) => numbers.iter().position(|&row| row >= table.lookup_count()),
            };
            if let Some(position) = lacking {
                return Err(self.bad(format!(
                    "has a row of id {} for table {}, which lacks it: rows are changed by deltas, and neither added nor removed",
                    ids[position], info.table
                )));
            }
            let mut bytes = vec![0; count * stride];
            self.read(&mut bytes, rows_at + first * stride as u64)?;
            for (row, &id) in bytes.chunks_exact(stride).zip(&ids) {
                info.format.decode(row, &mut values);
                if values.iter().any(|value| !value.is_finite()) {
                    return Err(self.bad(format!(
                        "has a value for id {id} of table {} that is not finite",
                        info.table
                    )));
                }
            }
            each(&numbers, &bytes)?;
            first += count as u64;
        }
        Ok(())
    }

    fn body(&self, section: usize) -> u64 {
        self.head.bodies().nth(section).expect("a section")
    }

    fn read(&self, out: &mut [u8], at: u64) -> Result<(), TableError> {
        self.file
            .read_exact_at(out, at)
            .map_err(TableError::io(&self.path))
    }

    fn ids_from(&self, section: usize, first: u64, count: usize) -> Result<Vec<u64>, TableError> {
        let mut raw = vec![0; count * 8];
        self.read(&mut raw, self.body(section) + first * 8)?;
        let (ids, _) = raw.as_chunks::<8>();
        Ok(ids.iter().map(|&id| u64::from_le_bytes(id)).collect())
    }

    fn ids(
        &self,
        section: usize,
        each: &mut dyn FnMut(&[u64]) -> Result<(), TableError>,
    ) -> Result<(), TableError> {
        let rows = self.head.sections[section].rows;
        let most = PIECE_BYTES as u64 / 8;
        let mut first = 0;
        while first < rows {
            let count = most.min(rows - first);
            each(&self.ids_from(section, first, count as usize)?)?;
            first += count;
        }
        Ok(())
    }

    fn check_crc(&self, section: usize) -> Result<(), TableError> {
        let (info, body) = (&self.head.sections[section], self.body(section));
        let mut hasher = crc32fast::Hasher::new();
        let mut piece = vec![0; PIECE_BYTES.min(info.body_bytes() as usize)];
        let mut done = 0;
        while done < info.body_bytes() {
            let piece_bytes = (info.body_bytes() - done).min(piece.len() as u64);
            let piece = &mut piece[..piece_bytes as usize];
            self.read(piece, body + done)?;
            hasher.update(piece);
            done += piece_bytes;
        }
        if hasher.finalize() != info.crc32 {
            return Err(self.bad(format!(
                "is damaged: the rows of table {} do not match their checksum; copy it again, or make it again",
                info.table
            )));
        }
        Ok(())
    }
}

pub(crate) fn bad(path: &Path, reason: String) -> TableError {
    TableError::BadDelta {
        path: path.to_owned(),
        reason,
    }
}
