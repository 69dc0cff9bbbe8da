//! Tables from the folders that HugeCTR's `save_params_to_files` writes for its sparse models.
//!
//! Such a folder has `key`, a signed 64-bit number a row, and `emb_vector`, the rows' f32, both without
//! a header and as the machine had them in memory: little-endian on all machines that HugeCTR runs on.
//! The number of dimensions is written nowhere. It would follow from the sizes, but so would a wrong one
//! from a file that was cut, and rows would be glued together of others; so the caller says it. `slot_id`, 64 bits a key, is
//! there for models of one kind; rows don't need it.

use std::fs;
use std::path::Path;

use crate::TableError;
use crate::format::RowFormat;
use crate::import_file::{Contents, Keys, SourceFile, Values};

const KEY_FILE: &str = "key";
const VECTOR_FILE: &str = "emb_vector";
const SLOT_FILE: &str = "slot_id";
/// Most entries of a folder that are looked at to say what it may be instead.
const MAX_ENTRIES: usize = 4096;

/// Opens a folder and checks the sizes of its files. Without `dim` that is refused, with the dimensions
/// that the sizes would give.
pub(crate) fn open(folder: &Path, dim: Option<u64>) -> Result<Contents, TableError> {
    let bad = |reason: String| TableError::BadSource {
        path: folder.to_owned(),
        reason,
    };
    if !fs::metadata(folder)
        .map_err(TableError::io(folder))?
        .is_dir()
    {
        return Err(bad(
            "is a file; HugeCTR's old single-file models mix keys and vectors, so load it there and \
             save it with save_params_to_files, which makes a folder with `key` and `emb_vector`"
                .into(),
        ));
    }
    for name in [KEY_FILE, VECTOR_FILE] {
        if !folder.join(name).exists() {
            return Err(bad(format!("has no file `{name}`; {}", instead(folder))));
        }
    }
    let keys = SourceFile::open(&folder.join(KEY_FILE))?;
    let vectors = SourceFile::open(&folder.join(VECTOR_FILE))?;
    let count = keys.bytes / 8;
    if count == 0 || !keys.bytes.is_multiple_of(8) {
        return Err(keys.bad(format!(
            "has {} bytes, and keys have 8 each; it was not written or copied whole",
            keys.bytes
        )));
    }
    let found = vectors.bytes;
    if let Some(dim) = dim {
        let promised = count.checked_mul(4).and_then(|each| each.checked_mul(dim));
        if promised != Some(found) {
            let promised = promised.map_or("too many".into(), |bytes| bytes.to_string());
            return Err(vectors.bad(format!(
                "the {count} keys of `{KEY_FILE}` and {dim} dimensions promise {promised} bytes and it has \
                 {found}; one of the two files was not written or copied whole, or the vectors have \
                 another number of dimensions"
            )));
        }
    }
    // `count` comes from a size, so that four times it fits.
    if found == 0 || !found.is_multiple_of(count * 4) {
        return Err(vectors.bad(format!(
            "has {found} bytes, which are no whole number of f32 for each of the {count} keys of \
             `{KEY_FILE}`; one of the two files was not written or copied whole"
        )));
    }
    if folder.join(SLOT_FILE).exists() {
        let slots = SourceFile::open(&folder.join(SLOT_FILE))?;
        if slots.bytes != keys.bytes {
            return Err(slots.bad(format!(
                "{count} keys promise {} bytes and it has {}; one of the files was not written or copied \
                 whole",
                keys.bytes, slots.bytes
            )));
        }
    }
    let Some(dim) = dim else {
        let possible = found / (count * 4);
        let shown = folder.display();
        return Err(bad(format!(
            "does not say how many dimensions its vectors have; name them behind the folder, as in --hugectr \
             NAME={shown}:{possible}, where {possible} is what the sizes of its files give if both are whole"
        )));
    };
    let rows = Values {
        file: vectors,
        at: 0,
        rows: count,
        dim,
        element: RowFormat::F32,
    };
    let keys = Keys {
        file: keys,
        at: 0,
        count,
    };
    Contents::new(rows, Some(keys))
}

/// What a folder seems to be that is no sparse model, and what to do about it.
fn instead(folder: &Path) -> String {
    let names: Vec<String> = fs::read_dir(folder)
        .map(|entries| {
            let names = entries.flatten().take(MAX_ENTRIES);
            names
                .filter_map(|entry| entry.file_name().into_string().ok())
                .collect()
        })
        .unwrap_or_default();
    let ends = |ends: [&str; 2]| {
        let found = names
            .iter()
            .find(|name| ends.iter().any(|end| name.ends_with(end)));
        found.cloned()
    };
    if let Some(name) = ends(["-key", "-weight"]) {
        return format!(
            "`{name}` looks like a dump of HugeCTR's SOK, whose files start with a header and are not read; \
             write keys and rows to safetensors, and import them with --safetensors and --ids"
        );
    }
    let inner = names
        .iter()
        .find(|name| folder.join(name).join(KEY_FILE).is_file());
    if let Some(name) = inner {
        return format!("its folder `{name}` has `{KEY_FILE}`: name that one, each is a table");
    }
    if let Some(name) = ends([".safetensors", ".npy"]) {
        return format!("it has `{name}`: import that file with --safetensors or --npy");
    }
    format!(
        "save_params_to_files writes a folder with `{KEY_FILE}` and `{VECTOR_FILE}` for each table"
    )
}
