//! HugeCTR's folders as tables.

use std::fs;
use std::path::{Path, PathBuf};

use rowmill_table::{Container, Import, RowFormat, TableError, TableKind};

use super::{bytes, holds, imported, refusal, table, values};

/// A folder with these keys and values.
pub(super) fn folder(parent: &Path, keys: &[i64], values: &[f32]) -> PathBuf {
    let folder = parent.join("users");
    fs::create_dir(&folder).unwrap();
    let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
    fs::write(folder.join("key"), keys).unwrap();
    fs::write(folder.join("emb_vector"), bytes(values)).unwrap();
    folder
}

fn source(folder: PathBuf, dim: Option<usize>) -> Result<Import, TableError> {
    Ok(Import {
        dim,
        ..table(Container::HugeCtr(folder), RowFormat::F32)
    })
}

#[test]
fn keys_and_rows_arrive() {
    // Not sorted, negative ones, and those that others reserve.
    let mut keys: Vec<i64> = (0..5000).map(|i| (i * 7919) % 5003 * 1_000_003).collect();
    keys.extend([-1, -2, i64::MAX, i64::MIN]);
    let values = values(keys.len() * 12);
    let (_temp, result) = imported(|parent| {
        let folder = folder(parent, &keys, &values);
        fs::write(folder.join("slot_id"), vec![0; keys.len() * 8]).unwrap();
        fs::write(folder.join("meta"), "anything").unwrap();
        source(folder, Some(12))
    });
    let generation = result.unwrap();
    holds(&generation, RowFormat::F32, &values);
    let info = generation.table("t").unwrap();
    assert!(matches!(info.kind, TableKind::Hashed(_)));
    super::hashed::resolves(
        &generation,
        &keys.iter().map(|&key| key as u64).collect::<Vec<_>>(),
    );
}

#[test]
fn folders_that_are_not_whole_are_refused() {
    let keys: Vec<i64> = (0..100).collect();
    let values = values(800);
    let cut = |name: &'static str, len: u64, dim: Option<usize>| {
        let (keys, values) = (&keys, &values);
        refusal(|parent| {
            let folder = folder(parent, keys, values);
            fs::write(folder.join("slot_id"), vec![0; 800]).unwrap();
            let file = fs::OpenOptions::new()
                .write(true)
                .open(folder.join(name))
                .unwrap();
            file.set_len(len).unwrap();
            source(folder, dim)
        })
    };
    for (name, len, dim, part) in [
        ("key", 799, None, "key: has 799 bytes"),
        ("key", 0, None, "key: has 0 bytes"),
        (
            "key",
            792,
            None,
            "emb_vector: has 3200 bytes, which are no whole number",
        ),
        (
            "key",
            792,
            Some(8),
            "99 keys of `key` and 8 dimensions promise 3168 bytes and it has 3200",
        ),
        ("emb_vector", 3199, None, "no whole number"),
        ("emb_vector", 0, None, "emb_vector: has 0 bytes"),
        ("emb_vector", 400, Some(1), "multiple of 4"),
        (
            "emb_vector",
            1600,
            Some(8),
            "promise 3200 bytes and it has 1600",
        ),
        (
            "emb_vector",
            3200,
            Some(usize::MAX),
            "promise too many bytes",
        ),
        (
            "slot_id",
            792,
            None,
            "slot_id: 100 keys promise 800 bytes and it has 792",
        ),
    ] {
        let error = cut(name, len, dim);
        assert!(error.contains(part), "{name} {len}: {error}");
    }
}

#[test]
fn dimensions_are_not_guessed() {
    // Half of the keys and all vectors would be pairs of vectors glued together.
    for (keys, possible) in [(100, 8), (50, 16)] {
        let keys: Vec<i64> = (0..keys).collect();
        let error = refusal(|parent| source(folder(parent, &keys, &values(800)), None));
        let part = format!("users:{possible}, where {possible} is what the sizes");
        assert!(error.contains(&part), "{error}");
        assert!(error.contains("--hugectr NAME=/"), "{error}");
    }
}

#[test]
fn what_looks_alike_is_named() {
    let with = |files: &'static [&'static str]| {
        refusal(|parent| {
            for file in files {
                let path = parent.join(file);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, [0; 296 * 2]).unwrap();
            }
            source(parent.to_owned(), None)
        })
    };
    for (files, parts) in [
        (
            &["emb0-key", "emb0-weight"][..],
            ["has no file `key`", "HugeCTR's SOK"],
        ),
        (
            &["users/key", "users/emb_vector"],
            ["has no file `key`", "`users` has `key`"],
        ),
        (&["m.safetensors"], ["has no file `key`", "--safetensors"]),
        (
            &["key"],
            ["has no file `emb_vector`", "save_params_to_files"],
        ),
        (&[], ["has no file `key`", "save_params_to_files"]),
    ] {
        let error = with(files);
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
    let file = refusal(|parent| {
        fs::write(parent.join("0_sparse_1000.model"), [0; 64]).unwrap();
        source(parent.join("0_sparse_1000.model"), None)
    });
    assert!(file.contains("old single-file models"), "{file}");
    assert!(refusal(|parent| source(parent.join("none"), None)).contains("none"));
}
