//! What can be wrong with tables, each with what to do about it.

use std::path::{Path, PathBuf};

use rowmill_arena::ArenaError;

use crate::PAGE_BYTES;

/// Why a generation could not be made, opened, checked or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The directory has no manifest: it is no generation, or making it was interrupted.
    #[error(
        "{path} has no manifest.json, so it is no generation or one whose making was interrupted; \
         check the path, or make it again with `rowmill table generate` or `import`"
    )]
    NoManifest {
        /// The directory.
        path: PathBuf,
    },
    /// A delta that is none, is damaged, or is for other tables.
    #[error("the delta {path} {reason}")]
    BadDelta {
        /// The file, or what it was called when it was opened.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// The manifest does not end with the checksum of its bytes.
    #[error(
        "the manifest is damaged: its checksum does not match its bytes; restore it from where it was copied"
    )]
    DamagedManifest,
    /// The manifest's checksum is right, but it is not what a manifest looks like.
    #[error(
        "the manifest can't be understood: {reason}; it was made by another program or a newer version"
    )]
    BadManifest {
        /// What is wrong, with line and column.
        reason: String,
    },
    /// A manifest or table file of another version.
    #[error(
        "{what} has version {found}, and this program reads version {known}; {}", of_version(.found, .known)
    )]
    UnknownVersion {
        /// The manifest or the file.
        what: String,
        /// The version found.
        found: u64,
        /// The version that is known.
        known: u64,
    },
    /// A row format that this version does not know.
    #[error(
        "table {table}: the row format `{format}` is unknown; upgrade rowmill, or import the table in one of its formats"
    )]
    UnknownFormat {
        /// The table.
        table: String,
        /// The format found.
        format: String,
    },
    /// A kind of table, or an answer to missing ids, that this version does not know.
    #[error(
        "table {table}: a table that is `{kind}` and answers missing ids with `{missing}` is unknown; upgrade rowmill"
    )]
    UnknownKind {
        /// The table.
        table: String,
        /// The kind found.
        kind: String,
        /// The answer found.
        missing: String,
    },
    /// Per-row columns other than one embedding at the start of the row.
    #[error(
        "table {table}: its columns are not a single `embedding` of {stride} bytes; upgrade rowmill"
    )]
    UnknownColumns {
        /// The table.
        table: String,
        /// Bytes that an embedding has by format and dim.
        stride: u64,
    },
    /// A name that could lead out of the directory, or can't be a name.
    #[error(
        "`{name}` can't name a table: use 1 to 128 of A-Z a-z 0-9 _ - . and no dot at the start"
    )]
    BadName {
        /// The name found.
        name: String,
    },
    /// A file name in the manifest that leads out of the directory.
    #[error(
        "the manifest names the file `{file}`, which is not a plain name in its directory; don't trust this generation"
    )]
    BadFileName {
        /// The file name found.
        file: String,
    },
    /// Two tables of one name.
    #[error("two tables are named `{name}`; give each its own name")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// Two tables in one file.
    #[error("two parts of the manifest name the file `{file}`; make the generation again")]
    DuplicateFile {
        /// The file.
        file: String,
    },
    /// A generation without tables.
    #[error("there are no tables; name at least one")]
    NoTables,
    /// More tables than are allowed.
    #[error(
        "{found} tables are more than the {} that a generation may have; split the model",
        crate::MAX_TABLES
    )]
    TooManyTables {
        /// The number found.
        found: usize,
    },
    /// No rows, or more than ids can name.
    #[error(
        "table {table}: {rows} rows are not possible; it takes 1 to {}",
        crate::MAX_ROWS
    )]
    BadRows {
        /// The table.
        table: String,
        /// The number found.
        rows: u64,
    },
    /// A number of dimensions outside the limits.
    #[error(
        "table {table}: {dim} dimensions are not possible; they are a multiple of 4 from 4 to 2048, so pad with zeros"
    )]
    BadDim {
        /// The table.
        table: String,
        /// The number found.
        dim: u64,
    },
    /// A stride that does not follow from format and dim.
    #[error(
        "table {table}: the manifest says {found} bytes a row, its format and dim make {expected}; make the generation again"
    )]
    BadStride {
        /// The table.
        table: String,
        /// The stride found.
        found: u64,
        /// The stride that follows from format and dim.
        expected: u64,
    },
    /// A size that does not follow from the rows.
    #[error(
        "{what}: the manifest says {found} bytes, its tables make {expected}; make the generation again"
    )]
    BadSize {
        /// The file.
        what: String,
        /// The size found.
        found: u64,
        /// The size that follows from the rest of the manifest.
        expected: u64,
    },
    /// A file has not the size that the manifest promises.
    #[error(
        "{path}: the manifest promises {promised} bytes and the file has {found}; it was not copied whole, copy it again"
    )]
    WrongFileSize {
        /// The file.
        path: PathBuf,
        /// Bytes by the manifest.
        promised: u64,
        /// Bytes found.
        found: u64,
    },
    /// A file ends before what is read of it: it had its size when it was opened, and lost bytes since.
    #[error(
        "{path}: it is read up to byte {wanted} and ends at byte {found}; it was cut off meanwhile, copy it again"
    )]
    EndsEarly {
        /// The file.
        path: PathBuf,
        /// The end of what is read of it, which need not be all.
        wanted: u64,
        /// Bytes found.
        found: u64,
    },
    /// The header of a table file is damaged or of another table.
    #[error("{path}: its header {reason}; copy the file again, or make the generation again")]
    BadHeader {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// What is to be a copy of a table's file is that file.
    #[error(
        "{path} is the model's own file {own}, and no copy of it; name the folder of one, best on another disk"
    )]
    SameFile {
        /// Where the copy is to be.
        path: PathBuf,
        /// The table's file.
        own: PathBuf,
    },
    /// What is to be a copy of a table's file is something else.
    #[error("{path} is no copy of {own}: {reason}; copy the file again")]
    NoCopy {
        /// Where the copy is to be.
        path: PathBuf,
        /// The table's file.
        own: PathBuf,
        /// What it is.
        reason: String,
    },
    /// A page's bytes don't have the checksum that was written with them.
    #[error(
        "table {table} is damaged: page {page} of {path}, the 4096 bytes from {} on, does not match its checksum\
         {}; copy the file again", page * PAGE_BYTES as u64, also(.others)
    )]
    DamagedPage {
        /// The table.
        table: String,
        /// The file.
        path: PathBuf,
        /// The page of [`PAGE_BYTES`], counted from 0.
        page: u64,
        /// How many more pages of the generation are damaged; `None` where it was looked at no more of them.
        others: Option<u64>,
    },
    /// The list of checksums is itself damaged.
    #[error(
        "{path} is damaged: the list of checksums does not have the manifest's checksum; copy the file again"
    )]
    DamagedChecksums {
        /// The file.
        path: PathBuf,
    },
    /// An index that does not lead from each key to a row, although its checksums are right.
    #[error(
        "table {table}: its index {reason}; it was made by a program with an error, make the generation again"
    )]
    BadIndex {
        /// The table.
        table: String,
        /// What is wrong.
        reason: String,
    },
    /// A row for missing ids that is not all zeros, in a table that answers them with zeros.
    #[error(
        "table {table}: its row for missing ids is to be zeros and has other bytes; it was made by a \
         program with an error, make the generation again"
    )]
    BadZeroRow {
        /// The table.
        table: String,
    },
    /// Two rows of a hashed table with the same key.
    #[error(
        "table {table}: rows {first} and {second} both have the key {key}; remove one of them before importing"
    )]
    DuplicateKey {
        /// The table.
        table: String,
        /// The key.
        key: u64,
        /// The row of the two that comes first, counted from 0.
        first: u64,
        /// The other one.
        second: u64,
    },
    /// Keys that crowd in the index by every seed that was tried.
    #[error(
        "table {table}: its keys can't be spread evenly by this seed; import it again with another one"
    )]
    UnevenKeys {
        /// The table.
        table: String,
    },
    /// No table of that name.
    #[error("there is no table `{name}`; `rowmill table inspect` lists them")]
    UnknownTable {
        /// The name asked for.
        name: String,
    },
    /// A row number outside its table.
    #[error("table {table} has {rows} rows, so there is no row {row}")]
    NoSuchRow {
        /// The table.
        table: String,
        /// The row asked for.
        row: u64,
        /// The rows there are.
        rows: u64,
    },
    /// The place for a new generation is taken.
    #[error(
        "{path} exists; generations are never changed, so choose another place or remove it first"
    )]
    AlreadyExists {
        /// The directory.
        path: PathBuf,
    },
    /// The place for a new generation takes no directories.
    #[error("no directory can be made in {path}; choose a place on a disk that you may write to")]
    NotWritable {
        /// The directory.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The file system has not enough room.
    #[error(
        "too little disk: {needed} bytes are needed at {path} and {available} are free; free some or make fewer rows"
    )]
    TooLittleDisk {
        /// The directory.
        path: PathBuf,
        /// Bytes needed.
        needed: u64,
        /// Bytes free.
        available: u64,
    },
    /// The work was to stop before its end.
    #[error("interrupted; what was written is removed again")]
    Interrupted,
    /// A file or folder that can't be imported.
    #[error("{path}: {reason}")]
    BadSource {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A value that no table may hold.
    #[error(
        "{path}: row {row}, column {column} is {value}; replace values that are not finite before importing"
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The row, counted from 0.
        row: u64,
        /// The column, counted from 0.
        column: u64,
        /// The value.
        value: f32,
    },
    /// A value that the row format can't hold.
    #[error(
        "{path}: row {row}: {unfit}; replace the value, or store the table in another row format"
    )]
    Unfit {
        /// The file.
        path: PathBuf,
        /// The row, counted from 0.
        row: u64,
        /// The value, and why.
        unfit: crate::Unfit,
    },
    /// A value of a table in memory that can't be stored.
    #[error(
        "table {table}: row {row}: {unfit}; {}",
        if unfit.value.is_finite() { "replace the value, or store the table in another row format" } else { "replace the value, which no row format holds" }
    )]
    UnfitRow {
        /// The table.
        table: String,
        /// The row, counted from 0.
        row: u64,
        /// The value, and why.
        unfit: crate::Unfit,
    },
    /// A value for missing ids that the row format can't hold.
    #[error("table {table}: the row for missing ids: {unfit}; choose another value")]
    UnfitDefault {
        /// The table.
        table: String,
        /// The value, and why.
        unfit: crate::Unfit,
    },
    /// Memory could not be had.
    #[error(transparent)]
    Memory(#[from] ArenaError),
    /// A file may not be as large as a table needs it.
    #[error(
        "{path} can't be as large as it needs to be; raise the limit (`ulimit -f`), or choose a place on a \
         file system that takes larger files"
    )]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file of a generation is not there.
    #[error(
        "{path} is not there; copy it from where the generation was made, or make that again with \
         `rowmill table generate` or `import`"
    )]
    NoFile {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file could not be read or written.
    #[error("{path} can't be read or written")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

fn of_version(found: &u64, known: &u64) -> &'static str {
    if found > known {
        "upgrade rowmill"
    } else {
        "it was made by an older rowmill, so make it again with `rowmill table generate` or `import`"
    }
}

fn also(others: &Option<u64>) -> String {
    match others {
        Some(0) => String::new(),
        Some(1) => ", and one more page".to_owned(),
        Some(others) => format!(", and {others} more pages"),
        None => " (`rowmill table verify` counts all that are damaged)".to_owned(),
    }
}

impl TableError {
    /// Wraps the kernel's answer for `path`, to be used with `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> TableError + '_ {
        move |source| {
            let path = path.to_owned();
            if source.kind() == std::io::ErrorKind::FileTooLarge {
                return TableError::FileTooLarge { path, source };
            }
            TableError::Io { path, source }
        }
    }
}
