//! Embedding tables: row formats, generations on disk, and tables resident in memory.
//!
//! A *generation* is one immutable version of a model's tables, a directory with a manifest and one
//! aligned file a table; `FORMAT.md` beside this crate describes every byte. [`Generation::open`]
//! looks at it without reading rows, [`Generation::verify`] reads and checks all of it, and
//! [`Generation::load`] brings it into one huge-page arena as a [`Resident`]. Generations are made by
//! [`generate`] and [`import_npy`].
#![forbid(unsafe_code)]

mod blocks;
mod draft;
mod error;
mod format;
mod generate;
mod generation;
mod header;
mod import_npy;
mod load;
mod manifest;
mod mapped;
mod progress;
mod resident;
mod shape;
mod verify;

pub use error::TableError;
pub use format::{MAX_ROWS, MAX_TABLES, RowFormat, TableSpec, check_specs};
pub use generate::generate;
pub use generation::{Generation, TableInfo};
pub use header::{HEADER_BYTES, Header, parse_header};
pub use import_npy::{NpySource, import_npy};
pub use load::LoadOptions;
pub use manifest::{MANIFEST_FILE, Manifest, parse_manifest};
pub use mapped::MappedTable;
pub use progress::{Progress, Stage, silent};
pub use resident::{Resident, ResidentTable};
pub use shape::{Shape, ShapeTable};
