//! Deltas: files with rows of a generation's tables that are to become others. `FORMAT.md` describes every byte.

use crate::spec::MAX_TABLES;
use crate::{Resident, RowFormat, TableError, TableKind, TableSpec};

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
const VERSION: u32 = 2;
/// Where each field of the header lies, little-endian; the rest is zero.
const VERSION_AT: usize = 8;
const SECTIONS_AT: usize = 12;
const GENERATION_AT: usize = 16;
const SEQUENCE_AT: usize = 24;
const BYTES_AT: usize = 32;
const NAME_LEN_AT: usize = 40;
const LIST_CRC_AT: usize = 44;
const BASE_AT: usize = 48;
const NAME_AT: usize = 52;
pub(crate) const CRC_AT: usize = HEAD_BYTES - 4;
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

/// What tells the deltas of a generation so far from any others, with one more: the CRC-32 of what told those before it (the generation's fingerprint,
/// where there are none) and of the delta's own ([`DeltaFile::crc32`](crate::DeltaFile::crc32)).
pub fn delta_chain(before: u32, crc32: u32) -> u32 {
    let both = [before.to_le_bytes(), crc32.to_le_bytes()].concat();
    crc32fast::hash(&both)
}

/// What a delta says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaHead {
    /// The model that it is for.
    pub model: String,
    /// The generation that it is for.
    pub generation: u64,
    /// That generation's [fingerprint](crate::Generation::fingerprint): another one that was made under its number is not taken for it.
    pub base: u32,
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
    pub(crate) fn bodies(&self) -> impl Iterator<Item = u64> {
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
        put(BASE_AT, &self.base.to_le_bytes());
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
        if self.base != tables.fingerprint() {
            return Err(format!(
                "was made for another generation {} than the one that is there, which was made anew under that number (fingerprints {:08x} and \
                 {:08x}): make one for that, and move away what was kept for the other",
                self.generation,
                self.base,
                tables.fingerprint()
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
        base: word(BASE_AT),
        sequence: long(SEQUENCE_AT),
        sections: parsed,
    })
}

/// How many sections a header says there are, once it is sound.
pub(crate) fn sections_of(head: &[u8; HEAD_BYTES]) -> Result<usize, String> {
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
