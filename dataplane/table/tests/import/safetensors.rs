//! safetensors files as tables.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use rowmill_table::{
    Container, MAX_SAFETENSORS_HEADER_BYTES, RowFormat, Safetensors, TensorType,
    parse_safetensors_header,
};

use super::{as_format, bytes, holds, imported, refusal, table, values};

/// A file with this header and these bytes of tensors.
pub(super) fn write(path: &Path, header: &str, data: &[u8]) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}

/// The tensor `name` of a file with this header and these bytes.
fn rows(
    folder: &Path,
    header: &str,
    data: &[u8],
    format: RowFormat,
) -> Result<rowmill_table::Import, rowmill_table::TableError> {
    let path = folder.join("model.safetensors");
    write(&path, header, data);
    let rows = (Safetensors::open(&path)?, "rows".to_owned());
    Ok(table(Container::Safetensors { rows, ids: None }, format))
}

fn entry(name: &str, dtype: &str, shape: &[u64], begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
}

#[test]
fn values_arrive_from_any_place_in_the_file() {
    let (count, dim) = (9_000, 20);
    let values = values(count * dim);
    for (dtype, element) in [
        ("F32", RowFormat::F32),
        ("F16", RowFormat::F16),
        ("BF16", RowFormat::Bf16),
    ] {
        // Three bytes in front, so that nothing is aligned; spaces behind the header.
        let data = [&[7; 3], &as_format(element, &values)[..], &[9; 5]].concat();
        let end = data.len() as u64 - 5;
        let header = format!(
            r#"{{"__metadata__":{{"format":"pt"}},{},{},{}}}   "#,
            entry("behind", "I8", &[5, 1], end, end + 5),
            entry("rows", dtype, &[count as u64, dim as u64], 3, end),
            entry("front", "U8", &[3], 0, 3),
        );
        for format in RowFormat::ALL {
            let (_temp, result) = imported(|folder| rows(folder, &header, &data, format));
            holds(&result.unwrap(), element, &values);
        }
    }
}

#[test]
fn names_are_any_text() {
    let header = format!(
        "{{{},{}}}",
        entry("a/b.c:\\\"ä\\u0000", "F32", &[1, 4], 0, 16),
        entry("", "F32", &[], 16, 20)
    );
    let tensors = parse_safetensors_header(header.as_bytes(), 20).unwrap();
    assert_eq!(tensors[0].name, "a/b.c:\"ä\0");
    assert_eq!((tensors[1].begin, tensors[1].dtype), (16, TensorType::F32));
    assert_eq!(tensors[1].shape, [0u64; 0]);
}

#[test]
fn tensors_without_elements_take_no_place() {
    let header = format!(
        "{{{},{},{}}}",
        entry("rows", "F32", &[1, 4], 0, 16),
        entry("none", "F32", &[0, 4], 0, 0),
        entry("end", "F32", &[7, 0], 16, 16)
    );
    let tensors = parse_safetensors_header(header.as_bytes(), 16).unwrap();
    let names: Vec<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
    assert_eq!(names, ["none", "rows", "end"]);
    assert_eq!(parse_safetensors_header(b"{}", 0), Ok(Vec::new()));
}

#[test]
fn headers_that_lie_are_refused() {
    let good = entry("rows", "F32", &[2, 4], 0, 32);
    let with = |name: &str, begin, end| entry(name, "F32", &[2, 4], begin, end);
    for (header, part) in [
        // Names.
        (
            format!("{{{good},{}}}", with("rows", 32, 64)),
            r#"two entries are named "rows""#,
        ),
        (
            format!("{{{good},{good}}}"),
            r#"two entries are named "rows""#,
        ),
        (
            format!(r#"{{"__metadata__":{{}},"__metadata__":{{}},{good}}}"#),
            "two entries are named",
        ),
        // Places.
        (
            format!("{{{good},{}}}", with("b", 31, 63)),
            "may not overlap",
        ),
        (
            format!("{{{good},{}}}", with("b", 0, 32)),
            "may not overlap",
        ),
        (
            format!("{{{good},{}}}", entry("b", "U8", &[0], 5, 5)),
            "may not overlap",
        ),
        (
            format!("{{{good},{}}}", with("b", 33, 65)),
            "bytes 32 to 33",
        ),
        (format!("{{{}}}", with("rows", 1, 33)), "bytes 0 to 1"),
        (
            format!("{{{good},{}}}", with("b", 32, 64)),
            "promises 64 bytes of tensors and it has 32",
        ),
        (
            format!("{{{}}}", entry("rows", "F32", &[1, 4], 0, 16)),
            "promises 16 bytes of tensors and it has 32",
        ),
        // Shapes.
        (
            format!("{{{}}}", with("rows", 32, 0)),
            r#"its tensor "rows" ends at byte 0, before it begins"#,
        ),
        (
            format!("{{{}}}", with("rows", 0, 31)),
            r#"its tensor "rows" (F32 [2, 4]) has 31 bytes, and its type and shape promise 32"#,
        ),
        (
            format!("{{{}}}", entry("rows", "F32", &[1 << 33, 1 << 33], 0, 32)),
            "a shape that no F32 tensor has",
        ),
        (
            format!("{{{}}}", entry("rows", "F32", &[1 << 32, 1 << 32, 0], 0, 0)),
            "a shape that no F32 tensor has",
        ),
        (
            format!("{{{}}}", entry("rows", "F4", &[3], 0, 1)),
            "tensor \"rows\" (F4 [3]) has a shape that no F4 tensor has",
        ),
        (
            format!("{{{}}}", entry("rows", "F32", &[2, 4], 0, u64::MAX)),
            "promise 32",
        ),
        // Fields.
        (
            format!("{{{}}}", entry("rows", "F33", &[2, 4], 0, 32)),
            "unknown variant `F33`",
        ),
        (
            format!("{{{}}}", good.replace("F32", "f32")),
            "unknown variant `f32`",
        ),
        (good.clone(), "no JSON object"),
        (
            format!("{{{}}}", good.replace("[2, 4]", "[2, -4]")),
            r#"tensor "rows": invalid value: integer `-4`"#,
        ),
        (
            format!("{{{}}}", good.replace("[2, 4]", "[2, 4.0]")),
            "floating point",
        ),
        (
            format!(
                "{{{}}}",
                good.replace("[2, 4]", "[2, 18446744073709551616]")
            ),
            "can't be understood",
        ),
        (
            format!("{{{}}}", good.replace("[0,32]", "[0,32,64]")),
            "can't be understood",
        ),
        (
            format!("{{{}}}", good.replace("[0,32]", "[0]")),
            "can't be understood",
        ),
        (
            format!("{{{}}}", good.replace("\"shape\"", "\"strides\"")),
            "unknown field `strides`",
        ),
        (
            format!(
                "{{{}}}",
                good.replace("\"shape\"", "\"dtype\":\"F32\",\"shape\"")
            ),
            "duplicate field `dtype`",
        ),
        (
            format!(r#"{{"__metadata__":{{"a":1}},{good}}}"#),
            "expected a string",
        ),
        (r#"{"rows":{}}"#.into(), "missing field"),
        (r#"{"rows":5}"#.into(), "can't be understood"),
        // JSON.
        (String::new(), "no JSON object"),
        (" {}".into(), "no JSON object"),
        ("[]".into(), "no JSON object"),
        (format!("{{{good}"), "can't be understood"),
        (format!("{{{good}}}x"), "can't be understood"),
        (format!("{{{good}}}\0\0\0"), "filled up with NUL bytes"),
        (
            format!("{{\"a\":{}", "[".repeat(100_000)),
            "can't be understood",
        ),
        (
            format!("{{\"rows\":{{\"dtype\":\"{}\"}}}}", "x".repeat(100_000)),
            "can't be understood",
        ),
    ] {
        let error = parse_safetensors_header(header.as_bytes(), 32).map(|_| ());
        let error = error.expect_err(&header);
        assert!(
            !part.contains("its tensor") || error.starts_with("its tensor"),
            "the tensor is named, not the place in the header: {error}"
        );
        assert!(
            error.contains(part) && error.len() < 600,
            "{header:.200}: {error}"
        );
    }
    let bytes = b"{\"a\xff\":1}";
    assert!(parse_safetensors_header(bytes, 32).is_err());
}

#[test]
fn files_that_are_cut_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let path = temp.path().join("whole.safetensors");
    let header = format!("{{{}}}", entry("rows", "F32", &[10, 4], 0, 160));
    write(&path, &header, &bytes(&values(40)));
    let whole = fs::read(&path).unwrap();
    for len in (0..whole.len()).step_by(3).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..len]).unwrap();
        let error = Safetensors::open(&path)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("whole.safetensors"), "cut to {len}: {error}");
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert!(
        Safetensors::open(&path).is_err(),
        "a byte behind the last tensor"
    );
    for length in [MAX_SAFETENSORS_HEADER_BYTES + 1, u64::MAX, u64::MAX - 7] {
        fs::write(&path, length.to_le_bytes()).unwrap();
        let error = Safetensors::open(&path)
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("promises a header"), "{error}");
    }
    // One that the format has and that is longer than what is read.
    let length = MAX_SAFETENSORS_HEADER_BYTES + 1;
    fs::write(&path, length.to_le_bytes()).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + length).unwrap();
    let error = Safetensors::open(&path).map(|_| ()).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("16777216 are the most that is read; write the tensors"),
        "{error}"
    );
}

#[test]
fn tensors_that_cannot_be_tables() {
    let file = |dtype: &str, shape: &[u64], len: u64| {
        let header = format!("{{{}}}", entry("rows", dtype, shape, 0, len));
        refusal(|folder| rows(folder, &header, &vec![0; len as usize], RowFormat::F32))
    };
    for (dtype, shape, len, part) in [
        ("F64", &[4, 8][..], 256, "F32, F16 or BF16"),
        ("U8", &[4, 8], 32, "F32, F16 or BF16"),
        ("F32", &[32], 128, "two dimensions"),
        ("F32", &[], 4, "two dimensions"),
        ("F32", &[2, 2, 8], 128, "two dimensions"),
        ("F32", &[0, 8], 0, "0 rows"),
        ("F32", &[4, 7], 112, "multiple of 4"),
        ("F16", &[1, 4096], 8192, "multiple of 4"),
    ] {
        let error = file(dtype, shape, len);
        assert!(error.contains(part), "{dtype} {shape:?}: {error}");
    }
    let header = format!(
        "{{{},{}}}",
        entry("users", "F32", &[2, 4], 0, 32),
        entry("items", "F16", &[4, 4], 32, 64)
    );
    let error = refusal(|folder| rows(folder, &header, &[0; 64], RowFormat::F32));
    let part = r#"has no tensor "rows"; it has "users" (F32 [2, 4]), "items" (F16 [4, 4])"#;
    assert!(error.contains(part), "{error}");
}

#[test]
fn values_that_are_not_finite_are_named() {
    let elements = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16];
    for (dtype, element) in ["F32", "F16", "BF16"].into_iter().zip(elements) {
        for (value, shown) in [
            (f32::NAN, "NaN"),
            (f32::INFINITY, "inf"),
            (f32::NEG_INFINITY, "-inf"),
        ] {
            let mut values = values(9000 * 8);
            values[8333 * 8 + 7] = value;
            let data = as_format(element, &values);
            let end = data.len() as u64;
            let header = format!("{{{}}}", entry("rows", dtype, &[9000, 8], 0, end));
            // As it lies there, and converted.
            for format in [element, RowFormat::Int8] {
                let error = refusal(|folder| rows(folder, &header, &data, format));
                let part = format!("model.safetensors: row 8333, column 7 is {shown};");
                assert!(error.contains(&part), "{error}");
            }
        }
    }
}

#[test]
fn a_header_of_many_tensors() {
    let entries: Vec<String> = (0..20_000u64)
        .map(|i| entry(&format!("t{i}"), "F32", &[1, 4], i * 16, i * 16 + 16))
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let tensors = parse_safetensors_header(header.as_bytes(), 320_000).unwrap();
    assert_eq!(tensors.len(), 20_000);
}

proptest! {
    #[test]
    fn any_header_is_answered(
        name in ".{0,6}",
        shape in prop::collection::vec(any::<u64>(), 0..4),
        begin: u64,
        end: u64,
        cut: usize,
        data: u64,
    ) {
        let name = serde_json::to_string(&name).unwrap();
        let text = format!(
            r#"{{{name}:{{"dtype":"F32","shape":{shape:?},"data_offsets":[{begin},{end}]}}}}"#
        );
        let text = text.as_bytes();
        let cut = &text[..cut % (text.len() + 1)];
        for bytes in [text, cut] {
            if let Ok(tensors) = parse_safetensors_header(bytes, data) {
                prop_assert_eq!(tensors.last().map_or(0, |tensor| tensor.end), data);
            }
        }
    }
}
