//! Embedding tables: row formats, generations on disk, and tables resident in memory.
//!
//! A *generation* is one immutable version of a model's tables, a directory with a manifest and one
//! aligned file a table; `FORMAT.md` beside this crate describes every byte. [`Generation::open`]
//! looks at it without reading rows, [`Generation::verify`] reads and checks all of it, and
//! [`Generation::load`] brings it into one huge-page arena as a [`Resident`]. Generations are made by
//! [`generate`](generate()) and [`import`](import()).
#![forbid(unsafe_code)]

mod blocks;
mod copy;
mod delta;
mod delta_file;
mod delta_make;
mod delta_names;
mod draft;
mod encode;
mod error;
mod format;
mod generate;
mod generation;
mod header;
mod import;
mod import_file;
mod import_hugectr;
mod import_npy;
mod import_safetensors;
mod index;
mod index_build;
mod layout;
mod load;
mod manifest;
mod mapped;
mod memory;
mod mix;
mod overlay;
mod pages;
mod part;
mod progress;
mod resident;
mod shape;
mod spec;
mod transcode;
mod verify;
mod writer;

pub use copy::Compared;
pub use delta::{
    DeltaHead, DeltaSection, MAX_DELTA_BYTES, MAX_DELTA_HEAD_BYTES, MAX_MODEL_NAME, delta_chain,
    parse_delta_head,
};
pub use delta_file::{DeltaFile, EachRows};
pub use delta_make::{DeltaTable, write_delta};
pub use delta_names::{delta_file_name, delta_folder, delta_model, make_private, sync_directory};
pub use encode::Unfit;
pub use error::TableError;
pub use format::RowFormat;
pub use generate::{generate, generate_until, generated_key};
pub use generation::{Generation, TableInfo};
pub use header::{HEADER_BYTES, Header, parse_header};
pub use import::{Container, Import, WhenMissing, import, import_until};
#[doc(hidden)]
pub use import_npy::check_npy_header;
pub use import_safetensors::{
    MAX_SAFETENSORS_HEADER_BYTES, Safetensors, Tensor, TensorType, parse_safetensors_header,
};
#[doc(hidden)]
pub use index::{check_index, index_bytes};
#[doc(hidden)]
pub use index_build::index_of;
pub use load::{Keep, LoadOptions};
pub use manifest::{MANIFEST_FILE, Manifest, parse_manifest};
pub use mapped::MappedTable;
pub use memory::{MemoryTable, RowMemory, write_until};
pub use overlay::StandIns;
pub use pages::{PAGE_BYTES, PageChecksums, RowPlace};
pub use progress::{Progress, Stage, silent};
pub use resident::{Resident, ResidentTable};
pub use shape::{Shape, ShapeTable};
pub use spec::{MAX_ROWS, MAX_TABLES, Missing, TableKind, TableSpec, check_specs};
