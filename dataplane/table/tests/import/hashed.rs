//! Tables with ids of their own.

use std::fs;
use std::path::Path;

use rowmill_arena::HugePages;
use rowmill_table::{
    Container, Generation, Import, LoadOptions, Missing, RowFormat, Safetensors, TableError,
    TableKind, WhenMissing, silent,
};

use super::hugectr::folder;
use super::safetensors::write;
use super::{bytes, holds, imported, refusal, table, values};

/// Loads the table `t` and asks for all keys, which must lead to their places.
pub(super) fn resolves(generation: &Generation, keys: &[u64]) {
    let options = LoadOptions { verify: true };
    let resident = generation.load(HugePages::Off, &silent, options).unwrap();
    let table = resident.table("t").unwrap();
    assert_eq!(table.lookup_count() as usize, keys.len());
    let mut rows = vec![0; keys.len()];
    table.resolve(keys, &mut rows).unwrap();
    assert!(rows.iter().zip(0..).all(|(&row, place)| row == place));
}

/// A `.npy` file of one or two dimensions.
fn npy(path: &Path, kind: &str, shape: &str, data: &[u8]) {
    let text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

fn key_bytes(keys: &[u64]) -> Vec<u8> {
    keys.iter().flat_map(|key| key.to_le_bytes()).collect()
}

/// A `.npy` table of 100 rows with these ids, which `shape` describes.
fn with_ids(folder: &Path, kind: &str, shape: &str, ids: &[u8]) -> Result<Import, TableError> {
    let (rows, keys) = (folder.join("rows.npy"), folder.join("ids.npy"));
    npy(&rows, "<f4", "(100, 8)", &bytes(&values(800)));
    npy(&keys, kind, shape, ids);
    let ids = Some(keys);
    Ok(table(Container::Npy { rows, ids }, RowFormat::F32))
}

fn ids() -> Vec<u64> {
    (0..100u64)
        .map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

#[test]
fn ids_of_npy_files() {
    let ids = ids();
    for (kind, shape) in [("<i8", "(100,)"), ("<u8", "(100,)"), ("<i8", "(100, 1)")] {
        let (_temp, result) = imported(|folder| with_ids(folder, kind, shape, &key_bytes(&ids)));
        let generation = result.unwrap();
        holds(&generation, RowFormat::F32, &values(800));
        resolves(&generation, &ids);
    }
    for (kind, shape, len, part) in [
        ("<i4", "(100,)", 400, "ids are 64-bit integers"),
        ("<f8", "(100,)", 800, "ids are 64-bit integers"),
        ("<i8", "(50, 2)", 800, "one dimension"),
        ("<i8", "(99,)", 792, "has 99 keys for the 100 rows"),
        ("<i8", "(100,)", 799, "promises"),
    ] {
        let error = refusal(|folder| with_ids(folder, kind, shape, &vec![0; len]));
        assert!(error.contains("ids.npy") && error.contains(part), "{error}");
    }
}

#[test]
fn ids_of_another_safetensors_file() {
    let ids = ids();
    for (dtype, shape, refused) in [
        ("I64", "[100]", false),
        ("U64", "[100]", false),
        ("U64", "[100,1]", false),
        ("I32", "[200]", true),
        ("F64", "[100]", true),
        ("I64", "[50,2]", true),
    ] {
        let (_temp, result) = imported(|folder| {
            let (a, b) = (folder.join("a.safetensors"), folder.join("b.safetensors"));
            let header = r#"{"e":{"dtype":"F32","shape":[100,8],"data_offsets":[0,3200]}}"#;
            write(&a, header, &bytes(&values(800)));
            let header =
                format!(r#"{{"i":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,800]}}}}"#);
            write(&b, &header, &key_bytes(&ids));
            let rows = (Safetensors::open(a)?, "e".into());
            let ids = Some((Safetensors::open(b)?, "i".into()));
            Ok(table(Container::Safetensors { rows, ids }, RowFormat::F16))
        });
        match result {
            Ok(generation) => {
                assert!(!refused, "{dtype} {shape}");
                resolves(&generation, &ids);
            }
            Err(error) => {
                let said = error.to_string();
                assert!(
                    refused && said.contains("can't be ids"),
                    "{dtype} {shape}: {said}"
                );
            }
        }
    }
}

#[test]
fn ids_that_come_twice_are_named_with_both_places() {
    let mut keys: Vec<i64> = (0..20_000).map(|i| i * 3).collect();
    keys[19_998] = keys[77];
    let values = values(20_000 * 4);
    let error = refusal(|parent| {
        let folder = folder(parent, &keys, &values);
        Ok(Import {
            dim: Some(4),
            ..table(Container::HugeCtr(folder), RowFormat::F32)
        })
    });
    let part = "users/key: rows 77 and 19998 both have the id 231";
    assert!(error.contains(part), "{error}");
    let error = refusal(|folder| {
        let ids = [5u64; 100];
        with_ids(folder, "<u8", "(100,)", &key_bytes(&ids))
    });
    assert!(error.contains("both have the id 5"), "{error}");
}

/// An answer that may lie in the folder of the sources.
type Answer = fn(&Path) -> WhenMissing;

#[test]
fn answers_to_missing_ids() {
    let ids = ids();
    let row: Vec<f32> = (0..8).map(|i| i as f32 - 3.5).collect();
    let made = |answer: Answer, format| {
        imported(|folder| {
            npy(&folder.join("row.npy"), "<f4", "(8,)", &bytes(&row));
            npy(&folder.join("short.npy"), "<f4", "(4,)", &bytes(&row[..4]));
            npy(&folder.join("two.npy"), "<f4", "(2, 4)", &bytes(&row));
            npy(
                &folder.join("nan.npy"),
                "<f4",
                "(1, 8)",
                &bytes(&[f32::NAN; 8]),
            );
            Ok(Import {
                missing: answer(folder),
                format,
                ..with_ids(folder, "<i8", "(100,)", &key_bytes(&ids))?
            })
        })
    };
    let cases: [(Answer, Missing, Option<Vec<f32>>); 4] = [
        (|_| WhenMissing::Error, Missing::Error, None),
        (|_| WhenMissing::Zero, Missing::Zero, Some(vec![0.0; 8])),
        (
            |_| WhenMissing::Value(0.5),
            Missing::Default,
            Some(vec![0.5; 8]),
        ),
        (
            |folder| WhenMissing::Row(folder.join("row.npy")),
            Missing::Default,
            Some(row.clone()),
        ),
    ];
    for (answer, missing, expected) in cases {
        let (_temp, result) = made(answer, RowFormat::F16);
        let generation = result.unwrap();
        assert_eq!(
            generation.table("t").unwrap().kind,
            TableKind::Hashed(missing)
        );
        let options = LoadOptions { verify: true };
        let resident = generation.load(HugePages::Off, &silent, options).unwrap();
        let table = resident.table("t").unwrap();
        let mut rows = [0; 3];
        let found = table.resolve(&[ids[4], 12, ids[99]], &mut rows);
        match expected {
            None => assert_eq!(found, Err(1)),
            Some(expected) => {
                assert_eq!((found, rows), (Ok(()), [4, 100, 99]));
                let mut values = [0.0; 8];
                table.row_f32(100, &mut values).unwrap();
                assert_eq!(values[..], expected);
            }
        }
    }
    let refused: [(Answer, &str); 5] = [
        (|_| WhenMissing::Value(f32::NAN), "row for missing ids"),
        (|_| WhenMissing::Value(1e9), "row for missing ids"),
        (
            |folder| WhenMissing::Row(folder.join("short.npy")),
            "has 4 dimensions and the table t has 8",
        ),
        (
            |folder| WhenMissing::Row(folder.join("two.npy")),
            "a row is an array of one dimension",
        ),
        (
            |folder| WhenMissing::Row(folder.join("nan.npy")),
            "nan.npy: row 0, column 0 is NaN",
        ),
    ];
    for (answer, part) in refused {
        let (_temp, result) = made(answer, RowFormat::F16);
        let said = result.map(|_| ()).unwrap_err().to_string();
        assert!(said.contains(part), "{said}");
    }
}
