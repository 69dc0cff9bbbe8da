//! Manifests that promise what can't be, each with the error of its own.

use proptest::prelude::*;
use rowmill_table::{
    MAX_ROWS, Manifest, Missing, RowFormat, TableError, TableInfo, TableKind, TableSpec, generate,
    parse_manifest, silent,
};
use serde_json::{Value, json};

/// A manifest as it is written for two tables.
fn good() -> Vec<u8> {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let spec = |name: &str, format| TableSpec {
        name: name.into(),
        rows: 50,
        dim: 8,
        format,
        kind: TableKind::Dense,
    };
    generate(
        &dir,
        3,
        &[spec("a", RowFormat::F32), spec("b", RowFormat::Int8)],
        1,
        &silent,
    )
    .unwrap();
    std::fs::read(dir.join("manifest.json")).unwrap()
}

/// Ends `text`, an object, with the checksum of its bytes, as FORMAT.md says.
fn seal(text: &str) -> Vec<u8> {
    let body = format!(
        "{},\n",
        text.trim_end().strip_suffix('}').unwrap().trim_end()
    );
    format!(
        "{body}\"crc32\":\"{:08x}\"}}\n",
        crc32fast::hash(body.as_bytes())
    )
    .into_bytes()
}

/// The good manifest with one change, sealed again.
fn changed(change: impl FnOnce(&mut Value)) -> Result<Manifest, TableError> {
    let mut value: Value = serde_json::from_slice(&good()).unwrap();
    value.as_object_mut().unwrap().remove("crc32");
    change(&mut value);
    parse_manifest(&seal(&value.to_string()))
}

fn table(value: &mut Value) -> &mut serde_json::Map<String, Value> {
    value["tables"][0].as_object_mut().unwrap()
}

/// The good manifest with one field of its first table changed.
fn with(field: &str, to: Value) -> TableError {
    changed(|value| {
        table(value).insert(field.into(), to);
    })
    .unwrap_err()
}

#[test]
fn good_manifest_is_read_back() {
    let manifest = parse_manifest(&good()).unwrap();
    assert_eq!((manifest.generation, manifest.tables.len()), (3, 2));
    assert_eq!(manifest.to_bytes(), good());
    assert_eq!(
        changed(|_| ()).unwrap(),
        manifest,
        "the order of fields and spaces don't matter"
    );
}

#[test]
fn impossible_tables() {
    for rows in [0, MAX_ROWS + 1, u64::MAX] {
        assert!(
            matches!(with("rows", json!(rows)), TableError::BadRows { rows: found, .. } if found == rows)
        );
    }
    for dim in [0, 3, 6, 2052, u64::MAX] {
        assert!(
            matches!(with("dim", json!(dim)), TableError::BadDim { dim: found, .. } if found == dim)
        );
    }
    for stride in [0, 31, 33, u64::MAX] {
        let error = with("stride", json!(stride));
        assert!(
            matches!(error, TableError::BadStride { found, expected: 32, .. } if found == stride),
            "{error}"
        );
    }
    for size in [0, 4096, 8191, 8193, u64::MAX] {
        let error = with("file_bytes", json!(size));
        assert!(
            matches!(error, TableError::BadSize { found, expected: 8192, .. } if found == size),
            "{error}"
        );
    }
    assert!(
        matches!(with("format", json!("f64")), TableError::UnknownFormat { format, .. } if format == "f64")
    );
    for (kind, missing) in [
        ("dense", "zero"),
        ("sorted", "error"),
        ("hashed", "none"),
        ("", ""),
    ] {
        let error = changed(|value| {
            table(value).insert("kind".into(), json!(kind));
            table(value).insert("missing".into(), json!(missing));
        })
        .unwrap_err();
        assert!(
            matches!(&error, TableError::UnknownKind { kind: found, .. } if found == kind),
            "{error}"
        );
    }
    // 127 rows of 32 bytes fill a page but for 32 bytes, so that their index takes one more.
    let error = changed(|value| {
        table(value).insert("rows".into(), json!(127));
        table(value).insert("kind".into(), json!("hashed"));
    });
    assert!(matches!(
        error,
        Err(TableError::BadSize {
            found: 8192,
            expected: 12288,
            ..
        })
    ));
    for columns in [
        json!([]),
        json!([{"name": "momentum", "offset": 0, "bytes": 32}]),
        json!([{"name": "embedding", "offset": 4, "bytes": 32}]),
        json!([{"name": "embedding", "offset": 0, "bytes": 28}]),
        json!([{"name": "embedding", "offset": 0, "bytes": 32}, {"name": "embedding", "offset": 0, "bytes": 32}]),
    ] {
        assert!(matches!(
            with("columns", columns),
            TableError::UnknownColumns { stride: 32, .. }
        ));
    }
}

#[test]
fn names_that_lead_elsewhere() {
    for file in [
        "../x",
        "/etc/passwd",
        "a/b",
        "",
        ".",
        "..",
        ".hidden",
        "a\0b",
        "a b",
        &"x".repeat(256),
    ] {
        let error = with("file", json!(file));
        assert!(
            matches!(&error, TableError::BadFileName { file: found } if found == file),
            "{error}"
        );
    }
    let error = changed(|value| value["checksums"]["file"] = json!("../../x")).unwrap_err();
    assert!(matches!(error, TableError::BadFileName { .. }));
    for name in ["", "../x", "a/b", "a\nb"] {
        assert!(matches!(
            with("name", json!(name)),
            TableError::BadName { .. }
        ));
    }
    assert!(matches!(with("name", json!("b")), TableError::DuplicateName { name } if name == "b"));
    for file in ["00001.rows", "manifest.json", "checksums.crc"] {
        let error = with("file", json!(file));
        assert!(
            matches!(&error, TableError::DuplicateFile { file: found } if found == file),
            "{error}"
        );
    }
}

#[test]
fn whole_manifests() {
    let error = changed(|value| value["version"] = json!(2)).unwrap_err();
    assert!(
        matches!(
            error,
            TableError::UnknownVersion {
                found: 2,
                known: 3,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("older rowmill"), "{error}");
    let error = changed(|value| value["version"] = json!(4)).unwrap_err();
    assert!(error.to_string().contains("upgrade rowmill"), "{error}");
    for change in [
        |value: &mut Value| value["magic"] = json!("something"),
        |value: &mut Value| value["generation"] = json!(-1),
        |value: &mut Value| value["generation"] = json!("7"),
        |value: &mut Value| value["unknown"] = json!(1),
        |value: &mut Value| value["tables"][0]["unknown"] = json!(1),
        |value: &mut Value| value["tables"] = json!({}),
        |value: &mut Value| drop(value.as_object_mut().unwrap().remove("tables")),
        |value: &mut Value| drop(table(value).remove("rows")),
        |value: &mut Value| drop(table(value).insert("rows".into(), json!(1e30))),
        |value: &mut Value| drop(table(value).insert("rows".into(), json!(-5))),
    ] {
        let error = changed(change).unwrap_err();
        assert!(matches!(error, TableError::BadManifest { .. }), "{error}");
    }
    let error = changed(|value| value["tables"] = json!([])).unwrap_err();
    assert!(matches!(error, TableError::NoTables), "{error}");
    for (field, to) in [("bytes", json!(4)), ("bytes", json!(u64::MAX))] {
        let error = changed(|value| value["checksums"][field] = to).unwrap_err();
        assert!(
            matches!(error, TableError::BadSize { expected: 16, .. }),
            "{error}"
        );
    }
    let error = changed(|value| value["page_bytes"] = json!(4 << 20)).unwrap_err();
    assert!(matches!(error, TableError::BadSize { .. }), "{error}");
    let error = changed(|value| {
        let first = value["tables"][0].clone();
        value["tables"] = (0..4097)
            .map(|index| {
                let mut table = first.clone();
                table["name"] = json!(format!("t{index}"));
                table["file"] = json!(format!("t{index}"));
                table
            })
            .collect();
    })
    .unwrap_err();
    assert!(
        matches!(error, TableError::TooManyTables { found: 4097 }),
        "{error}"
    );
    assert!(matches!(
        parse_manifest(&vec![b' '; 5 << 20]),
        Err(TableError::BadManifest { .. })
    ));
    let deep = format!("{{\"a\":{}}}", "[".repeat(100_000));
    assert!(matches!(
        parse_manifest(&seal(&deep)),
        Err(TableError::BadManifest { .. })
    ));
}

#[test]
fn every_flipped_bit_and_every_cut_is_found() {
    let good = good();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(
            matches!(parse_manifest(&bytes), Err(TableError::DamagedManifest)),
            "bit {bit}"
        );
    }
    for len in 0..good.len() {
        assert!(
            matches!(
                parse_manifest(&good[..len]),
                Err(TableError::DamagedManifest)
            ),
            "cut to {len}"
        );
    }
}

#[test]
fn every_message_says_what_to_do() {
    for error in [
        with("rows", json!(0)),
        with("dim", json!(5)),
        with("stride", json!(5)),
        with("format", json!("x")),
        with("file", json!("../x")),
        with("name", json!("")),
        with("file_bytes", json!(1)),
        parse_manifest(b"{}").unwrap_err(),
    ] {
        let text = error.to_string();
        let advice = [
            "make",
            "use",
            "upgrade",
            "don't trust",
            "restore",
            "takes",
            "pad",
        ];
        assert!(advice.iter().any(|word| text.contains(word)), "{text}");
    }
}

fn any_tables() -> impl Strategy<Value = Vec<TableInfo>> {
    let formats = prop::sample::select(&RowFormat::ALL[..]);
    let kinds = prop::sample::select(vec![
        TableKind::Dense,
        TableKind::Hashed(Missing::Error),
        TableKind::Hashed(Missing::Zero),
        TableKind::Hashed(Missing::Default),
    ]);
    let table = (1..MAX_ROWS, 1usize..=512, formats, kinds);
    prop::collection::vec(table, 1..20).prop_map(|tables| {
        let table =
            |(index, (rows, dim, format, kind)): (usize, (u64, usize, RowFormat, TableKind))| {
                let stride = format.row_bytes(dim * 4);
                // As FORMAT.md has it.
                let body_bytes = match kind {
                    TableKind::Dense => rows * stride as u64,
                    TableKind::Hashed(missing) => {
                        let stored = rows + u64::from(missing != Missing::Error);
                        let buckets = (rows * 4).div_ceil(15) + rows.div_ceil(5).min(16);
                        (stored * stride as u64).next_multiple_of(64) + (1 + buckets) * 64
                    }
                };
                TableInfo {
                    name: format!("table.{index}"),
                    rows,
                    dim: dim * 4,
                    format,
                    kind,
                    stride,
                    file: format!("file_{index}"),
                    file_bytes: 4096 + body_bytes.next_multiple_of(4096),
                }
            };
        tables.into_iter().enumerate().map(table).collect()
    })
}

/// The limit on the size of manifests leaves room for the longest that there can be.
#[test]
fn longest_manifest() {
    let table = |index: usize| TableInfo {
        name: format!("{index:0>128}"),
        rows: MAX_ROWS - 1,
        dim: 2048,
        format: RowFormat::F32,
        kind: TableKind::Hashed(Missing::Default),
        stride: 8192,
        file: format!("{index:0>255}"),
        file_bytes: 0,
    };
    let tables: Vec<TableInfo> = (0..4096).map(table).collect();
    let mut manifest = Manifest {
        generation: u64::MAX,
        tables,
        checksum_file: "x".repeat(255),
        checksum_crc: u32::MAX,
    };
    let rows = (MAX_ROWS * 8192).next_multiple_of(64);
    let index = (1 + ((MAX_ROWS - 1) * 4).div_ceil(15) + 16) * 64;
    for table in &mut manifest.tables {
        table.file_bytes = 4096 + (rows + index).next_multiple_of(4096);
    }
    let bytes = manifest.to_bytes();
    assert!(bytes.len() <= 4_198_400, "{}", bytes.len());
    assert_eq!(parse_manifest(&bytes).unwrap(), manifest);
}

proptest! {
    #[test]
    fn round_trip(generation: u64, tables in any_tables(), checksum_crc: u32) {
        let manifest = Manifest { generation, tables, checksum_file: "sums".into(), checksum_crc };
        prop_assert_eq!(parse_manifest(&manifest.to_bytes()).unwrap(), manifest);
    }

    #[test]
    fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), text in "[\\{\\}\\[\\]\":,a-z0-9. ]{0,200}") {
        let _ = parse_manifest(&bytes);
        let _ = parse_manifest(&seal(&format!("{text}}}")));
    }
}
