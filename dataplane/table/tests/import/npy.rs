//! `.npy` files as tables.

use std::fs;
use std::path::Path;

use npyz::WriterBuilder;
use proptest::prelude::*;
use rowmill_table::{Container, Import, RowFormat, TableError, check_npy_header, import, silent};

use super::{as_format, holds, imported, refusal, table, values};

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

/// The rows of a file.
fn source(path: &Path, format: RowFormat) -> Import {
    let (rows, ids) = (path.to_owned(), None);
    table(Container::Npy { rows, ids }, format)
}

/// What is said of one file, written by `write`.
fn said(write: impl FnOnce(&Path)) -> String {
    refusal(|folder| {
        let path = folder.join("rows.npy");
        write(&path);
        Ok(source(&path, RowFormat::F32))
    })
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
    let values = values(rows * dim);
    for format in [RowFormat::F32, RowFormat::Int8] {
        let (_temp, result) = imported(|folder| {
            let path = folder.join("rows.npy");
            npy(&path, &[rows as u64, dim as u64], &values);
            Ok(source(&path, format))
        });
        let generation = result.unwrap();
        assert_eq!(generation.number(), 4);
        holds(&generation, RowFormat::F32, &values);
    }
}

#[test]
fn halves_arrive_in_every_format() {
    let values = values(300 * 20);
    let text = "{'descr': '<f2', 'fortran_order': False, 'shape': (300, 20), }\n";
    for format in RowFormat::ALL {
        let (_temp, result) = imported(|folder| {
            let path = folder.join("rows.npy");
            raw(&path, text, &as_format(RowFormat::F16, &values));
            Ok(source(&path, format))
        });
        holds(&result.unwrap(), RowFormat::F16, &values);
    }
}

#[test]
fn values_that_are_not_finite_are_named() {
    for (value, format) in [(f32::NAN, RowFormat::F32), (f32::INFINITY, RowFormat::Int8)] {
        let mut values = vec![1.0; 5 * 8];
        values[3 * 8 + 6] = value;
        let (_temp, result) = imported(|folder| {
            let path = folder.join("rows.npy");
            npy(&path, &[5, 8], &values);
            Ok(source(&path, format))
        });
        let error = result.map(|_| ()).unwrap_err();
        let (row, column) = (3, 6);
        assert!(
            matches!(&error, TableError::NotFinite { row: r, column: c, .. } if (*r, *c) == (row, column)),
            "{error}"
        );
        assert!(error.to_string().contains("rows.npy: row 3, column 6"));
    }
}

#[test]
fn values_that_a_format_cannot_hold_are_named() {
    for (format, value) in [
        (RowFormat::F16, "70000"),
        (RowFormat::Int8F16, "-70000"),
        (RowFormat::Int4, "-70000"),
    ] {
        let mut values = vec![1.0; 5 * 8];
        values[2 * 8 + 1] = value.parse().unwrap();
        let error = refusal(|folder| {
            let path = folder.join("rows.npy");
            npy(&path, &[5, 8], &values);
            Ok(source(&path, format))
        });
        let part = format!("rows.npy: row 2: dimension 1 is {value}");
        assert!(error.contains(&part), "{format}: {error}");
    }
}

#[test]
fn dimensions_that_were_asked_for() {
    for (dim, refused) in [(8, false), (4, true), (16, true)] {
        let (_temp, result) = imported(|folder| {
            let path = folder.join("rows.npy");
            npy(&path, &[5, 8], &[1.0; 40]);
            Ok(Import {
                dim: Some(dim),
                ..source(&path, RowFormat::F32)
            })
        });
        assert_eq!(result.is_err(), refused, "{dim}");
    }
}

#[test]
fn only_regular_files() {
    assert!(refusal(|folder| Ok(source(folder, RowFormat::F32))).contains("no regular file"));
    let device = Path::new("/dev/zero");
    assert!(refusal(|_| Ok(source(device, RowFormat::F32))).contains("no regular file"));
    let pipe = refusal(|folder| {
        let path = folder.join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        Ok(source(&path, RowFormat::F32))
    });
    assert!(pipe.contains("no regular file"), "{pipe}");
}

#[test]
fn other_kinds_of_arrays_are_refused() {
    let array = |kind: &str, order: &str, shape: &str| {
        format!("{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}\n")
    };
    let f4 = |shape: &str| array("'<f4'", "False", shape);
    for (text, bytes, part) in [
        (array("'<f4'", "True", "(4, 8)"), 128, "Fortran order"),
        (array("'<f8'", "False", "(4, 8)"), 256, "<f8"),
        (array("'>f4'", "False", "(4, 8)"), 128, ">f4"),
        (array("'|V2'", "False", "(4, 8)"), 64, "bfloat16 is lost"),
        (
            array("[('a', '<f4')]", "False", "(4, 8)"),
            128,
            "little-endian f32",
        ),
        (array("'|O'", "False", "(4, 8)"), 256, "little-endian f32"),
        (f4("(32,)"), 128, "1 dimensions"),
        (f4("(2, 2, 8)"), 128, "3 dimensions"),
        (f4("()"), 4, "0 dimensions"),
        (f4("(0, 8)"), 0, "0 rows"),
        (f4("(4, 7)"), 112, "multiple of 4"),
        (f4("(4, 4096)"), 65_536, "multiple of 4"),
        (f4("(4, 8)"), 127, "promises"),
        (f4("(4, 8)"), 129, "promises"),
        (f4("(4000, 8)"), 128, "promises"),
        (f4("(999999999, 999999999)"), 128, "promises 3999999992"),
        (f4("(9999999999, 9999999999)"), 128, "no array's shape"),
        (f4("(0xfffffffff, 0xfffffffff)"), 128, "no array's shape"),
        (
            "{'descr': '<f4', 'shape': (4, 8), }\n".into(),
            128,
            "fortran_order",
        ),
        ("nonsense".into(), 128, "no .npy file"),
        (String::new(), 128, "no .npy file"),
        ("(".repeat(1000), 128, "no .npy file"),
        (" ".repeat(60_000), 128, "longer than 1024"),
    ] {
        let error = said(|path| raw(path, &text, &vec![0; bytes]));
        assert!(error.contains(part) && error.len() < 400, "{text}: {error}");
    }
}

#[test]
fn cut_files_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let whole = temp.path().join("whole.npy");
    npy(&whole, &[10, 4], &[1.0; 40]);
    let bytes = fs::read(&whole).unwrap();
    for len in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        let error = said(|path| fs::write(path, &bytes[..len]).unwrap());
        let within = format!("ends after {len} bytes, within its header");
        let part = if len < bytes.len() - 160 {
            within.as_str()
        } else {
            "its header promises"
        };
        assert!(
            error.contains("rows.npy") && error.contains(part) && error.contains("copied whole"),
            "cut to {len}: {error}"
        );
    }
}

#[test]
fn missing_files_and_bad_names() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("rows.npy");
    let dir = temp.path().join("model");
    let import = |tables: &[Import]| import(&dir, 1, tables, None, &silent);
    assert!(matches!(
        import(&[source(&path, RowFormat::F32)]),
        Err(TableError::Io { .. })
    ));
    npy(&path, &[10, 4], &[1.0; 40]);
    let twice = [
        source(&path, RowFormat::F32),
        source(&path, RowFormat::Int8),
    ];
    assert!(matches!(
        import(&twice),
        Err(TableError::DuplicateName { .. })
    ));
    let elsewhere = Import {
        name: "../x".into(),
        ..source(&path, RowFormat::F32)
    };
    assert!(matches!(
        import(&[elsewhere]),
        Err(TableError::BadName { .. })
    ));
    assert!(matches!(import(&[]), Err(TableError::NoTables)));
}

#[test]
fn files_that_become_shorter_under_way_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let (path, dir) = (temp.path().join("rows.npy"), temp.path().join("model"));
    npy(&path, &[1000, 8], &values(8000));
    let cut = |_stage, _done, _total| {
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(10_000).unwrap();
    };
    for format in [RowFormat::F32, RowFormat::Int8] {
        let error = import(&dir, 1, &[source(&path, format)], None, &cut).unwrap_err();
        let said = error.to_string();
        let part = "rows.npy: had 32128 bytes and ended before byte 32128";
        assert!(said.contains(part), "{said}");
        assert!(!dir.exists());
        npy(&path, &[1000, 8], &values(8000));
    }
}

proptest! {
    #[test]
    fn any_header_is_answered(text in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(&text);
        let _ = check_npy_header(&bytes);
        let _ = check_npy_header(&text);
    }
}
