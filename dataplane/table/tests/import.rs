//! `.npy` files as tables.

use std::fs;
use std::path::Path;

use npyz::WriterBuilder;
use rowmill_table::{Generation, NpySource, RowFormat, TableError, import_npy, silent};
use tempfile::TempDir;

fn npy(path: &Path, shape: &[u64], values: &[f32]) {
    let mut bytes = Vec::new();
    let mut writer = npyz::WriteOptions::new()
        .default_dtype()
        .shape(shape)
        .writer(&mut bytes)
        .begin_nd()
        .unwrap();
    writer.extend(values.iter().copied()).unwrap();
    writer.finish().unwrap();
    fs::write(path, bytes).unwrap();
}

fn source(path: &Path, format: RowFormat) -> NpySource {
    NpySource {
        name: "t".into(),
        path: path.to_owned(),
        format,
    }
}

/// Imports one file, written by `write`.
fn import(
    format: RowFormat,
    write: impl FnOnce(&Path),
) -> (TempDir, Result<Generation, TableError>) {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("rows.npy");
    write(&path);
    let dir = temp.path().join("model");
    let result = import_npy(&dir, 4, &[source(&path, format)], &silent)
        .and_then(|()| Generation::open(&dir));
    if result.is_err() {
        assert!(!dir.exists());
        assert_eq!(
            fs::read_dir(temp.path()).unwrap().count(),
            1,
            "nothing is left behind"
        );
    }
    (temp, result)
}

fn refusal(write: impl FnOnce(&Path)) -> String {
    let (_temp, result) = import(RowFormat::F32, write);
    result.unwrap_err().to_string()
}

/// A header text, padded as NumPy does, and data.
fn raw(path: &Path, text: &str, data: &[u8]) {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

#[test]
fn values_arrive() {
    // More than a block, and rows that cross blocks.
    let (rows, dim) = (30_000, 52);
    let values: Vec<f32> = (0..rows * dim)
        .map(|index| (index % 7919) as f32 / 100.0 - 30.0)
        .collect();
    for format in [RowFormat::F32, RowFormat::Int8] {
        let (_temp, result) = import(format, |path| {
            npy(path, &[rows as u64, dim as u64], &values)
        });
        let generation = result.unwrap();
        generation.verify(&silent).unwrap();
        assert_eq!(generation.number(), 4);
        let mapped = generation.open_mapped("t").unwrap();
        let mut out = vec![0.0; dim];
        let (mut encoded, mut expected) = (vec![0; format.row_bytes(dim)], vec![0.0; dim]);
        for row in 0..rows {
            let exact = &values[row * dim..][..dim];
            format.encode(exact, &mut encoded);
            format.decode(&encoded, &mut expected);
            mapped.row_f32(row as u64, &mut out).unwrap();
            assert_eq!(out, expected, "row {row}");
            assert!(
                out.iter()
                    .zip(exact)
                    .all(|(got, want)| (got - want).abs() < 0.2),
                "row {row}"
            );
        }
    }
}

#[test]
fn values_that_are_not_finite_are_named() {
    for (value, format) in [(f32::NAN, RowFormat::F32), (f32::INFINITY, RowFormat::Int8)] {
        let mut values = vec![1.0; 5 * 8];
        values[3 * 8 + 6] = value;
        let (_temp, result) = import(format, |path| npy(path, &[5, 8], &values));
        let error = result.unwrap_err();
        assert!(
            matches!(
                error,
                TableError::NotFinite {
                    row: 3,
                    column: 6,
                    ..
                }
            ),
            "{error}"
        );
    }
}

#[test]
fn other_kinds_of_arrays_are_refused() {
    let zeros = [0; 4096];
    for (text, said) in [
        (
            "{'descr': '<f4', 'fortran_order': True, 'shape': (4, 8), }\n",
            "Fortran order",
        ),
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (4, 8), }\n",
            "<f8",
        ),
        (
            "{'descr': '>f4', 'fortran_order': False, 'shape': (4, 8), }\n",
            ">f4",
        ),
        (
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4, 8), }\n",
            "little-endian f32",
        ),
        (
            "{'descr': '|O', 'fortran_order': False, 'shape': (4, 8), }\n",
            "little-endian f32",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (32,), }\n",
            "1 dimensions",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2, 8), }\n",
            "3 dimensions",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), }\n",
            "0 dimensions",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 8), }\n",
            "0 rows",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 7), }\n",
            "multiple of 4",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4096), }\n",
            "multiple of 4",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 8), }\n",
            "promises",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4000, 8), }\n",
            "promises",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999), }\n",
            "no array's shape",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (0xfffffffff, 0xfffffffff), }\n",
            "no array's shape",
        ),
        ("{'descr': '<f4', 'shape': (4, 8), }\n", "fortran_order"),
        ("nonsense", "no .npy file"),
        ("", "no .npy file"),
    ] {
        let error = refusal(|path| raw(path, text, &zeros));
        assert!(error.contains(said) && error.len() < 400, "{text}: {error}");
    }
    let deep = "(".repeat(1000);
    assert!(refusal(|path| raw(path, &deep, &zeros)).contains("no .npy file"));
    assert!(refusal(|path| raw(path, &" ".repeat(60_000), &zeros)).contains("longer than 1024"));
}

#[test]
fn cut_files_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let whole = temp.path().join("whole.npy");
    npy(&whole, &[10, 4], &[1.0; 40]);
    let bytes = fs::read(&whole).unwrap();
    for len in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        let error = refusal(|path| fs::write(path, &bytes[..len]).unwrap());
        assert!(error.contains("rows.npy"), "cut to {len}: {error}");
    }
}

#[test]
fn missing_files_and_bad_names() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("rows.npy");
    let dir = temp.path().join("model");
    assert!(matches!(
        import_npy(&dir, 1, &[source(&path, RowFormat::F32)], &silent),
        Err(TableError::Io { .. })
    ));
    npy(&path, &[10, 4], &[1.0; 40]);
    let twice = [
        source(&path, RowFormat::F32),
        source(&path, RowFormat::Int8),
    ];
    assert!(matches!(
        import_npy(&dir, 1, &twice, &silent),
        Err(TableError::DuplicateName { .. })
    ));
    let elsewhere = NpySource {
        name: "../x".into(),
        ..source(&path, RowFormat::F32)
    };
    assert!(matches!(
        import_npy(&dir, 1, &[elsewhere], &silent),
        Err(TableError::BadName { .. })
    ));
    assert!(matches!(
        import_npy(&dir, 1, &[], &silent),
        Err(TableError::NoTables)
    ));
}
