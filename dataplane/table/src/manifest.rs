//! The manifest: what a generation promises. Every field is a claim until it is checked.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::blocks::file_bytes;
use crate::format::RowFormat;
use crate::index::{BUCKET_BYTES, index_bytes};
use crate::pages::{CHECKSUM_BYTES, PAGE_BYTES};
use crate::spec::{Missing, TableKind, TableSpec, check_specs};
use crate::{MAX_TABLES, TableError};

/// The manifest's name in the directory of a generation.
pub const MANIFEST_FILE: &str = "manifest.json";
/// The name of the list of checksums that this program writes.
pub(crate) const CHECKSUM_FILE: &str = "checksums.crc";
/// Longest manifest that is read: [`MAX_TABLES`] tables of at most 1 KiB each, which their names,
/// file names and numbers stay well below, and 4 KiB for the rest.
pub(crate) const MAX_MANIFEST_BYTES: usize = MAX_TABLES * 1024 + 4096;

const MAGIC: &str = "rowmill-generation";
const VERSION: u64 = 3;
/// The manifest's last line is this, eight lower-case hexadecimal digits, and [`SEAL_END`].
const SEAL_START: &str = "\"crc32\":\"";
const SEAL_END: &str = "\"}\n";
const SEAL_BYTES: usize = SEAL_START.len() + 8 + SEAL_END.len();
/// The one per-row column of this version.
const EMBEDDING: &str = "embedding";
/// Longest file name that is accepted, the limit of most file systems.
const MAX_FILE_NAME_BYTES: usize = 255;

/// A table as its generation describes it, all fields checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    /// Name, unique in the generation.
    pub name: String,
    /// Rows that ids lead to, 1 to [`MAX_ROWS`](crate::MAX_ROWS).
    pub rows: u64,
    /// Dimensions.
    pub dim: usize,
    /// How a row is stored.
    pub format: RowFormat,
    /// How ids lead to rows.
    pub kind: TableKind,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// The file in the generation's directory.
    pub file: String,
    /// The file's size: header, rows, index, padding.
    pub file_bytes: u64,
}

impl TableInfo {
    /// The table that `spec` (checked) describes, in `file`.
    pub fn new(spec: &TableSpec, file: String) -> TableInfo {
        let mut info = TableInfo {
            name: spec.name.clone(),
            rows: spec.rows,
            dim: spec.dim,
            format: spec.format,
            kind: spec.kind,
            stride: spec.stride(),
            file,
            file_bytes: 0,
        };
        info.file_bytes = file_bytes(info.resident_bytes());
        info
    }

    /// What the table would be asked for with.
    pub fn spec(&self) -> TableSpec {
        TableSpec {
            name: self.name.clone(),
            rows: self.rows,
            dim: self.dim,
            format: self.format,
            kind: self.kind,
        }
    }

    /// Rows that are stored: `rows`, and one for missing ids where these are answered.
    pub fn stored_rows(&self) -> u64 {
        self.rows + self.kind.extra_rows()
    }

    /// Bytes of all stored rows, at most 2^44.
    pub fn row_region_bytes(&self) -> u64 {
        self.stored_rows() * self.stride as u64
    }

    /// Where the index starts, counted from the first row: the next cache line behind the rows. For
    /// dense tables the end of the rows.
    pub(crate) fn index_at(&self) -> u64 {
        match self.kind {
            TableKind::Dense => self.row_region_bytes(),
            TableKind::Hashed(_) => self
                .row_region_bytes()
                .next_multiple_of(BUCKET_BYTES as u64),
        }
    }

    /// Bytes of the index; 0 for dense tables.
    pub fn index_bytes(&self) -> u64 {
        match self.kind {
            TableKind::Dense => 0,
            TableKind::Hashed(_) => index_bytes(self.rows),
        }
    }

    /// Bytes of rows and index: what the table needs in memory.
    pub fn resident_bytes(&self) -> u64 {
        self.index_at() + self.index_bytes()
    }
}

/// A checked manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The generation's number.
    pub generation: u64,
    /// The tables; their order is their index.
    pub tables: Vec<TableInfo>,
    /// The file with the checksums of all pages.
    pub checksum_file: String,
    /// The CRC-32 of that file.
    pub checksum_crc: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawManifest {
    magic: String,
    version: u64,
    generation: u64,
    page_bytes: u64,
    checksums: RawChecksums,
    tables: Vec<RawTable>,
    #[serde(default, skip_serializing)]
    #[expect(dead_code, reason = "checked as text before the rest is read")]
    crc32: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawChecksums {
    file: String,
    bytes: u64,
    crc32: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTable {
    name: String,
    rows: u64,
    dim: u64,
    format: String,
    kind: String,
    missing: String,
    stride: u64,
    columns: Vec<RawColumn>,
    file: String,
    file_bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawColumn {
    name: String,
    offset: u64,
    bytes: u64,
}

/// What can be read of any version.
#[derive(Deserialize)]
struct Probe {
    magic: String,
    version: u64,
}

impl Manifest {
    /// Bytes of the list of checksums.
    pub(crate) fn checksum_bytes(&self) -> u64 {
        let pages: u64 = self.tables.iter().map(TableInfo::page_count).sum();
        pages * CHECKSUM_BYTES
    }

    /// The bytes of `manifest.json`.
    pub fn to_bytes(&self) -> Vec<u8> {
        let raw = RawManifest {
            magic: MAGIC.into(),
            version: VERSION,
            generation: self.generation,
            page_bytes: PAGE_BYTES as u64,
            checksums: RawChecksums {
                file: self.checksum_file.clone(),
                bytes: self.checksum_bytes(),
                crc32: self.checksum_crc,
            },
            tables: self.tables.iter().map(RawTable::new).collect(),
            crc32: String::new(),
        };
        let mut text = serde_json::to_string_pretty(&raw).expect("plain data");
        let closing = text.pop();
        assert_eq!(closing, Some('}'), "an object");
        text.truncate(text.trim_end().len());
        text.push_str(",\n");
        let crc = crc32fast::hash(text.as_bytes());
        text.push_str(&seal(crc));
        text.into_bytes()
    }
}

impl RawTable {
    fn new(table: &TableInfo) -> RawTable {
        let stride = table.stride as u64;
        RawTable {
            name: table.name.clone(),
            rows: table.rows,
            dim: table.dim as u64,
            format: table.format.to_string(),
            kind: table.kind.word().into(),
            missing: table.kind.missing().to_string(),
            stride,
            columns: vec![RawColumn {
                name: EMBEDDING.into(),
                offset: 0,
                bytes: stride,
            }],
            file: table.file.clone(),
            file_bytes: table.file_bytes,
        }
    }
}

fn seal(crc: u32) -> String {
    format!("{SEAL_START}{crc:08x}{SEAL_END}")
}

/// Reads and checks the bytes of a `manifest.json`. Never panics, whatever the bytes.
///
/// # Errors
/// An error of its own for each thing that can be wrong; see [`TableError`].
pub fn parse_manifest(bytes: &[u8]) -> Result<Manifest, TableError> {
    if bytes.len() > MAX_MANIFEST_BYTES {
        return Err(TableError::BadManifest {
            reason: format!("it is longer than {MAX_MANIFEST_BYTES} bytes"),
        });
    }
    let sealed = bytes
        .len()
        .checked_sub(SEAL_BYTES)
        .ok_or(TableError::DamagedManifest)?;
    let (body, end) = bytes.split_at(sealed);
    if end != seal(crc32fast::hash(body)).as_bytes() {
        return Err(TableError::DamagedManifest);
    }
    let probe: Probe = serde_json::from_slice(bytes).map_err(unreadable)?;
    if probe.magic != MAGIC {
        return Err(TableError::BadManifest {
            reason: format!("its magic is `{}`, not `{MAGIC}`", probe.magic),
        });
    }
    if probe.version != VERSION {
        return Err(TableError::UnknownVersion {
            what: MANIFEST_FILE.into(),
            found: probe.version,
            known: VERSION,
        });
    }
    check(serde_json::from_slice(bytes).map_err(unreadable)?)
}

fn unreadable(error: serde_json::Error) -> TableError {
    TableError::BadManifest {
        reason: error.to_string(),
    }
}

fn check(raw: RawManifest) -> Result<Manifest, TableError> {
    if raw.page_bytes != PAGE_BYTES as u64 {
        return Err(TableError::BadSize {
            what: "a page".into(),
            found: raw.page_bytes,
            expected: PAGE_BYTES as u64,
        });
    }
    let specs = raw
        .tables
        .iter()
        .map(RawTable::spec)
        .collect::<Result<Vec<_>, _>>()?;
    check_specs(&specs)?;
    let mut files = HashSet::from([MANIFEST_FILE]);
    for file in raw
        .tables
        .iter()
        .map(|table| &table.file)
        .chain([&raw.checksums.file])
    {
        check_file_name(file)?;
        if !files.insert(file) {
            return Err(TableError::DuplicateFile { file: file.clone() });
        }
    }
    let mut tables = Vec::with_capacity(specs.len());
    for (spec, raw) in specs.iter().zip(&raw.tables) {
        tables.push(raw.check(spec)?);
    }
    let manifest = Manifest {
        generation: raw.generation,
        tables,
        checksum_file: raw.checksums.file,
        checksum_crc: raw.checksums.crc32,
    };
    let expected = manifest.checksum_bytes();
    if raw.checksums.bytes != expected {
        return Err(TableError::BadSize {
            what: manifest.checksum_file,
            found: raw.checksums.bytes,
            expected,
        });
    }
    Ok(manifest)
}

impl RawTable {
    /// The spec that is claimed, its numbers not yet checked.
    fn spec(&self) -> Result<TableSpec, TableError> {
        let format = self.format.parse().map_err(|_| TableError::UnknownFormat {
            table: self.name.clone(),
            format: self.format.clone(),
        })?;
        let dim = usize::try_from(self.dim).map_err(|_| TableError::BadDim {
            table: self.name.clone(),
            dim: self.dim,
        })?;
        let missing = self.missing.parse();
        let kind = match (self.kind.as_str(), missing) {
            ("dense", Ok(Missing::Error)) => TableKind::Dense,
            ("hashed", Ok(missing)) => TableKind::Hashed(missing),
            _ => {
                return Err(TableError::UnknownKind {
                    table: self.name.clone(),
                    kind: self.kind.clone(),
                    missing: self.missing.clone(),
                });
            }
        };
        Ok(TableSpec {
            name: self.name.clone(),
            rows: self.rows,
            dim,
            format,
            kind,
        })
    }

    /// Checks what must follow from the spec, whose own fields are checked.
    fn check(&self, spec: &TableSpec) -> Result<TableInfo, TableError> {
        let info = TableInfo::new(spec, self.file.clone());
        let stride = info.stride as u64;
        if self.stride != stride {
            return Err(TableError::BadStride {
                table: info.name,
                found: self.stride,
                expected: stride,
            });
        }
        let only_embedding = matches!(&self.columns[..], [column]
            if column.name == EMBEDDING && column.offset == 0 && column.bytes == stride);
        if !only_embedding {
            return Err(TableError::UnknownColumns {
                table: info.name,
                stride,
            });
        }
        if self.file_bytes != info.file_bytes {
            return Err(TableError::BadSize {
                what: info.file,
                found: self.file_bytes,
                expected: info.file_bytes,
            });
        }
        Ok(info)
    }
}

/// A plain name in the generation's own directory and nothing else.
fn check_file_name(file: &str) -> Result<(), TableError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let plain = (1..=MAX_FILE_NAME_BYTES).contains(&file.len())
        && !file.starts_with('.')
        && file.bytes().all(allowed);
    if plain {
        Ok(())
    } else {
        Err(TableError::BadFileName {
            file: file.to_owned(),
        })
    }
}
