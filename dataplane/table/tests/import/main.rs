//! The files of others as tables.

mod hashed;
mod hugectr;
mod npy;
mod safetensors;

use std::fs;
use std::path::Path;

use rowmill_table::{
    Container, Generation, Import, RowFormat, TableError, WhenMissing, import, silent,
};
use tempfile::TempDir;

/// A table `t` of `from`.
fn table(from: Container, format: RowFormat) -> Import {
    Import {
        name: "t".into(),
        from,
        dim: None,
        format,
        missing: WhenMissing::Error,
    }
}

/// Imports what `write` makes in the folder that it is given.
fn imported(
    write: impl FnOnce(&Path) -> Result<Import, TableError>,
) -> (TempDir, Result<Generation, TableError>) {
    let temp = tempfile::tempdir().unwrap();
    let sources = temp.path().join("sources");
    fs::create_dir(&sources).unwrap();
    let dir = temp.path().join("model");
    let result = write(&sources)
        .and_then(|table| import(&dir, 4, &[table], Some(1), &silent))
        .and_then(|()| Generation::open(&dir));
    if result.is_err() {
        assert!(!dir.exists());
        let left = fs::read_dir(temp.path()).unwrap().count();
        assert_eq!(left, 1, "nothing is left behind");
    }
    (temp, result)
}

/// What the refusal of it says.
fn refusal(write: impl FnOnce(&Path) -> Result<Import, TableError>) -> String {
    let (_temp, result) = imported(write);
    let said = result.map(|_| ()).unwrap_err().to_string();
    assert!(said.len() < 700, "{said}");
    said
}

/// Made-up values; none is equal to its neighbours.
fn values(count: usize) -> Vec<f32> {
    (0..count)
        .map(|index| (index % 7919) as f32 / 100.0 - 30.0)
        .collect()
}

/// Values as the bytes of f32.
fn bytes(values: &[f32]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

/// Values as the bytes of another format without codes.
fn as_format(format: RowFormat, values: &[f32]) -> Vec<u8> {
    let mut out = vec![0; format.row_bytes(values.len())];
    format.encode(values, &mut out);
    out
}

/// That the table's rows are those of `values`, decoded from `element` and encoded as it stores them.
fn holds(generation: &Generation, element: RowFormat, values: &[f32]) {
    generation.verify(&silent).unwrap();
    let mapped = generation.open_mapped("t").unwrap();
    let (dim, format) = (mapped.info().dim, mapped.info().format);
    let (mut exact, mut expected, mut out) = (vec![0.0; dim], vec![0.0; dim], vec![0.0; dim]);
    assert_eq!(mapped.info().rows as usize * dim, values.len());
    for (row, values) in values.chunks_exact(dim).enumerate() {
        element.decode(&as_format(element, values), &mut exact);
        format.decode(&as_format(format, &exact), &mut expected);
        mapped.row_f32(row as u64, &mut out).unwrap();
        assert_eq!(out, expected, "row {row}");
    }
}
