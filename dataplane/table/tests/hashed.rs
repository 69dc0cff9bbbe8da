//! Hashed tables: indexes of all kinds of keys against a map of the standard library, and what is
//! refused.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use rowmill_arena::HugePages;
use rowmill_table::{
    Generation, LoadOptions, Missing, Resident, ResidentTable, RowFormat, TableError, TableKind,
    TableSpec, check_index, generate, generated_key, index_of, silent,
};

const SEED: u64 = 42;

fn spec(name: &str, rows: u64, dim: usize, format: RowFormat, missing: Missing) -> TableSpec {
    TableSpec {
        name: name.into(),
        rows,
        dim,
        format,
        kind: TableKind::Hashed(missing),
    }
}

/// Keys that invite trouble, `count` of each sort.
fn hostile_keys(count: u64) -> Vec<(&'static str, Vec<u64>)> {
    let keys = |rule: fn(u64) -> u64| (0..count).map(rule).collect();
    vec![
        ("from zero", keys(|n| n)),
        ("to the end", keys(|n| u64::MAX - n)),
        ("equal low bits", keys(|n| n << 44)),
        ("equal high bits", keys(|n| 0xdead_beef_0000_0000 | n)),
        ("powers", keys(|n| (1 << (n % 64)) ^ (n / 64) << 7)),
        ("negative 32-bit", keys(|n| i64::from(-(n as i32)) as u64)),
        ("both halves alike", keys(|n| n << 32 | n)),
        ("products", keys(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))),
    ]
    .into_iter()
    .map(|(name, mut keys): (_, Vec<u64>)| {
        keys.sort_unstable();
        keys.dedup();
        (name, keys)
    })
    .collect()
}

#[test]
fn every_key_is_found() {
    for count in [1, 2, 4, 5, 6, 7, 19, 100, 10_000, 300_000] {
        for (name, keys) in hostile_keys(count) {
            let bytes = index_of(&keys, SEED).unwrap();
            let entries = check_index(&bytes, keys.len() as u64).unwrap_or_else(|reason| {
                panic!("{count} keys {name}: the index {reason}");
            });
            let right: HashMap<u64, u32> = keys.iter().copied().zip(0..).collect();
            assert_eq!(
                entries.into_iter().collect::<HashMap<_, _>>(),
                right,
                "{name}"
            );
        }
    }
}

#[test]
fn order_of_rows_changes_row_numbers_only() {
    let keys: Vec<u64> = (0..5000).map(|row| generated_key(1, 0, row)).collect();
    let reversed: Vec<u64> = keys.iter().rev().copied().collect();
    let (bytes, other) = (index_of(&keys, 7).unwrap(), index_of(&reversed, 7).unwrap());
    let entries = |bytes| check_index(bytes, 5000).unwrap().into_iter();
    let turned = entries(&other).map(|(key, row)| (key, 4999 - row));
    assert!(entries(&bytes).eq(turned));
    assert_eq!(bytes, index_of(&keys, 7).unwrap());
    assert_ne!(bytes, index_of(&keys, 8).unwrap(), "the seed matters");
}

#[test]
fn duplicates_are_named() {
    for count in [2usize, 3, 1000, 300_000] {
        for (one, other) in [
            (0, count - 1),
            (count / 3, count / 3 + 1),
            (count - 2, count - 1),
        ] {
            let mut keys: Vec<u64> = (0..count as u64).collect();
            keys[other] = keys[one];
            if one == other {
                continue;
            }
            let error = index_of(&keys, SEED).unwrap_err();
            let TableError::DuplicateKey {
                key, first, second, ..
            } = error
            else {
                panic!("{error}");
            };
            assert_eq!((key, first, second), (keys[one], one as u64, other as u64));
        }
    }
    // So many of one key that its partition is not read whole.
    let mut keys: Vec<u64> = (0..1_000_000).collect();
    keys[100_000..900_000].fill(5);
    let error = index_of(&keys, SEED).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("both have the key 5; remove one"),
        "{error}"
    );
}

/// The hash of a key as FORMAT.md describes it.
fn hash(seed: u64, key: u64) -> u64 {
    let word = |counter: u64| {
        let mut z = seed.wrapping_add((counter + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut z = key ^ word(0);
    z = (z ^ (z >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = z.wrapping_add(word(1));
    z = (z ^ (z >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 32)
}

fn home(seed: u64, homes: u64, key: u64) -> u64 {
    ((u128::from(hash(seed, key)) * u128::from(homes)) >> 64) as u64
}

/// An index as FORMAT.md describes it, made with all keys in memory.
fn slow_index(keys: &[u64], seed: u64) -> Vec<u8> {
    let rows = keys.len() as u64;
    let homes = (rows * 4).div_ceil(15);
    let mut buckets = vec![Vec::new(); (homes + rows.div_ceil(5).min(16)) as usize];
    let mut sorted: Vec<(u64, u64, u32)> = (0..)
        .zip(keys)
        .map(|(row, &key)| (hash(seed, key), key, row))
        .collect();
    sorted.sort();
    let mut filling = 0;
    let mut went_on = vec![false; buckets.len()];
    for (_, key, row) in sorted {
        let home = home(seed, homes, key) as usize;
        filling = filling.max(home);
        if buckets[filling].len() == 5 {
            filling += 1;
        }
        if home < filling && buckets[filling].is_empty() {
            went_on[filling - 1] = true;
        }
        buckets[filling].push((key, row));
    }
    let mut bytes = b"ROWMILLI".to_vec();
    bytes.extend(seed.to_le_bytes());
    bytes.extend((buckets.len() as u64).to_le_bytes());
    bytes.resize(64, 0);
    for (bucket, went_on) in buckets.iter().zip(went_on) {
        let place = |slot: usize| bucket.get(slot).copied().unwrap_or((0, 0));
        (0..5).for_each(|slot| bytes.extend(place(slot).0.to_le_bytes()));
        (0..5).for_each(|slot| bytes.extend(place(slot).1.to_le_bytes()));
        let flag = if went_on { 0x100 } else { 0 };
        bytes.extend((bucket.len() as u32 + flag).to_le_bytes());
    }
    bytes
}

#[test]
fn every_byte_is_as_described() {
    for count in [1, 2, 5, 6, 100, 3000, 300_000] {
        for (name, keys) in hostile_keys(count) {
            assert!(
                index_of(&keys, SEED).unwrap() == slow_index(&keys, SEED),
                "{count} {name}"
            );
        }
    }
}

fn crowded(seed: u64, homes: u64, bucket: u64, count: usize) -> Vec<u64> {
    (0..)
        .filter(|&key| home(seed, homes, key) == bucket)
        .take(count)
        .collect()
}

#[test]
fn keys_that_crowd_by_a_seed_get_another() {
    // 100 keys have 27 homes and 16 buckets of room behind them.
    let homes = 27;
    for bucket in [0, 13, 26] {
        let most = 5 * 17;
        let mut keys = crowded(SEED, homes, bucket, 100);
        let crowd = index_of(&keys, SEED).unwrap();
        assert_ne!(crowd[8..16], SEED.to_le_bytes(), "another seed");
        check_index(&crowd, 100).unwrap();
        // As many as may crowd, and others elsewhere.
        let elsewhere = if bucket == 26 { 0 } else { 26 };
        keys.truncate(most);
        keys.extend(crowded(SEED, homes, elsewhere, 15));
        let crowd = index_of(&keys, SEED).unwrap();
        let kept = crowd[8..16] == SEED.to_le_bytes();
        // From bucket 13 on the crowd reaches to bucket 29, so that bucket 26 has to give way: 13 + 16.
        assert!(kept, "the same seed, bucket {bucket}");
        check_index(&crowd, 100).unwrap();
    }
}

fn resolve(table: &ResidentTable, ids: &[u64]) -> Result<Vec<u32>, usize> {
    let mut rows = vec![u32::MAX; ids.len()];
    table.resolve(ids, &mut rows).map(|()| rows)
}

fn in_memory(specs: &[TableSpec]) -> Resident {
    Resident::in_memory(specs, SEED, HugePages::Off, &silent).unwrap()
}

#[test]
fn ids_become_rows() {
    let specs = [Missing::Error, Missing::Zero, Missing::Default]
        .map(|missing| spec(&missing.to_string(), 3000, 8, RowFormat::F32, missing));
    let tables = in_memory(&specs);
    for (index, (table, spec)) in tables.tables().iter().zip(&specs).enumerate() {
        assert_eq!((table.kind(), table.lookup_count()), (spec.kind, 3000));
        assert_eq!(u64::from(table.row_count()), spec.stored_rows());
        assert_eq!(table.bytes().len() as u64, spec.row_region_bytes());
        let keys: Vec<u64> = (0..3000)
            .map(|row| generated_key(SEED, index, row))
            .collect();
        for len in [0, 1, 63, 64, 65, 128, 129, 3000] {
            let rows = resolve(table, &keys[..len]).unwrap();
            assert!(rows.into_iter().eq(0..len as u32));
        }
        let right: HashMap<u64, u32> = keys.iter().copied().zip(0..).collect();
        assert_eq!(table.entries().collect::<HashMap<_, _>>(), right);
        for place in [0, 1, 63, 64, 200, 2999] {
            for strange in [0, 1, u64::MAX, keys[5] ^ 1, keys[5].rotate_left(32)] {
                let mut ids = keys.clone();
                (ids[place], ids[2999]) = (strange, strange);
                let answer = resolve(table, &ids);
                if spec.kind == TableKind::Hashed(Missing::Error) {
                    assert_eq!(answer, Err(place), "the first missing id");
                } else {
                    let rows = answer.unwrap();
                    let right = |id| right.get(id).copied().unwrap_or(3000);
                    assert!(rows.into_iter().eq(ids.iter().map(right)));
                }
            }
        }
    }
    let mut row = [1.0; 8];
    assert!(tables.tables()[0].row_f32(3000, &mut row).is_err());
    tables.tables()[1].row_f32(3000, &mut row).unwrap();
    assert_eq!(row, [0.0; 8]);
    tables.tables()[2].row_f32(3000, &mut row).unwrap();
    assert!(row.iter().all(|&value| value != 0.0));
}

#[test]
fn the_row_for_missing_ids_is_zero_in_every_format() {
    for format in RowFormat::ALL {
        let tables = in_memory(&[spec("t", 10, 12, format, Missing::Zero)]);
        let table = &tables.tables()[0];
        assert_eq!(resolve(table, &[77]), Ok(vec![10]));
        let mut row = [1.0f32; 12];
        table.row_f32(10, &mut row).unwrap();
        assert!(
            row.iter().all(|value| value.to_bits() == 0),
            "{format}: {row:?}"
        );
    }
}

#[test]
fn ids_of_dense_tables_are_compared_with_the_rows() {
    let dense = TableSpec {
        kind: TableKind::Dense,
        ..spec("d", 100, 4, RowFormat::Int4, Missing::Error)
    };
    let tables = in_memory(&[dense]);
    let table = &tables.tables()[0];
    assert_eq!((table.lookup_count(), table.row_count()), (100, 100));
    assert_eq!(resolve(table, &[0, 99, 5]), Ok(vec![0, 99, 5]));
    assert_eq!(resolve(table, &[0, 99, 100, 1 << 32]), Err(2));
    assert_eq!(resolve(table, &[1 << 32]), Err(0));
    assert_eq!(resolve(table, &[]), Ok(vec![]));
    assert_eq!(table.entries().count(), 0);
}

/// Hashed tables of one bucket to several blocks, rows that end anywhere, beside dense ones.
fn specs() -> Vec<TableSpec> {
    let mut dense = spec("dense", 2000, 64, RowFormat::F16, Missing::Error);
    dense.kind = TableKind::Dense;
    vec![
        spec("large", 600_000, 4, RowFormat::Int4, Missing::Default),
        dense,
        spec("one", 1, 4, RowFormat::Int4, Missing::Zero),
        spec("wide", 3000, 2048, RowFormat::Bf16, Missing::Error),
        spec("odd", 33, 12, RowFormat::Int8F16, Missing::Error),
    ]
}

#[test]
fn files_and_memory_hold_the_same() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    generate(&dir, 3, &specs(), SEED, &silent).unwrap();
    let left: Vec<_> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(
        left.len(),
        specs().len() + 2,
        "no scratch file is left: {left:?}"
    );
    let generation = Generation::open(&dir).unwrap();
    generation.verify(&silent).unwrap();
    let made: Vec<TableSpec> = generation
        .tables()
        .iter()
        .map(|table| table.spec())
        .collect();
    assert_eq!(made, specs());
    let memory = in_memory(&specs());
    for options in [LoadOptions { verify: true }, LoadOptions { verify: false }] {
        let loaded = generation.load(HugePages::Off, &silent, options).unwrap();
        for (table, other) in loaded.tables().iter().zip(memory.tables()) {
            assert_eq!(table.bytes(), other.bytes(), "{}", table.name());
            assert!(table.entries().eq(other.entries()), "{}", table.name());
            assert_eq!(
                table.entries().count() as u64 % u64::from(table.lookup_count()),
                0
            );
        }
        assert!(generation.resident_bytes() <= loaded.arena_bytes() as u64);
    }
    let mut row = vec![1.0; 4];
    generation
        .open_mapped("one")
        .unwrap()
        .row_f32(1, &mut row)
        .unwrap();
    assert_eq!(row, [0.0; 4]);
}

/// Changes bytes of a table file and gives all checksums anew, as one who means harm would.
fn forge(dir: &Path, at: u64, bytes: &[u8]) {
    let table = dir.join("00000.rows");
    let file = OpenOptions::new().write(true).open(&table).unwrap();
    file.write_all_at(bytes, at).unwrap();
    let pages = fs::read(&table).unwrap();
    let sums: Vec<u8> = pages
        .chunks(4096)
        .flat_map(|page| crc32fast::hash(page).to_le_bytes())
        .collect();
    fs::write(dir.join("checksums.crc"), &sums).unwrap();
    let mut manifest =
        rowmill_table::parse_manifest(&fs::read(dir.join("manifest.json")).unwrap()).unwrap();
    manifest.checksum_crc = crc32fast::hash(&sums);
    fs::write(dir.join("manifest.json"), manifest.to_bytes()).unwrap();
}

#[test]
fn rows_of_zeros_are_checked() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let spec = spec("t", 100, 4, RowFormat::Int8, Missing::Zero);
    generate(&dir, 1, &[spec], SEED, &silent).unwrap();
    let forged = |at, byte| {
        forge(&dir, at, &[byte]);
        Generation::open(&dir).unwrap()
    };
    let row_at = 4096 + 100 * 12;
    for byte in [0, 11] {
        let generation = forged(row_at + byte, 1);
        for verify in [true, false] {
            let loaded = generation.load(HugePages::Off, &silent, LoadOptions { verify });
            let error = loaded.unwrap_err();
            assert!(matches!(error, TableError::BadZeroRow { .. }), "{error}");
        }
        let error = generation.verify(&silent).unwrap_err();
        assert!(matches!(error, TableError::BadZeroRow { .. }), "{error}");
        assert!(error.to_string().contains("table t: its row"), "{error}");
        forged(row_at + byte, 0).verify(&silent).unwrap();
    }
    // The row before it may be anything.
    forged(row_at - 1, 1).verify(&silent).unwrap();
}

#[test]
fn forged_indexes_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let rows = 100u64;
    let spec = spec("t", rows, 4, RowFormat::F32, Missing::Error);
    // 1600 bytes of rows end at a line; the index is one line, 27 homes and 16 more buckets.
    let index_at = 4096 + 1600;
    let good = {
        let dir = temp.path().join("good");
        generate(&dir, 1, std::slice::from_ref(&spec), SEED, &silent).unwrap();
        fs::read(dir.join("00000.rows")).unwrap()
    };
    let index = &good[index_at..index_at + 64 * 44];
    assert_eq!(check_index(index, rows).unwrap().len(), 100);
    let meta = |bucket: usize| index[bucket * 64 + 60..][..2].to_vec();
    let with = |wanted: [u8; 2]| (1..44).find(|&bucket| meta(bucket) == wanted).unwrap();
    let mut cases = 0;
    let mut refused = |name: &str, at: usize, bytes: &[u8], says: &str| {
        cases += 1;
        let dir = temp.path().join(format!("{cases}"));
        generate(&dir, 1, std::slice::from_ref(&spec), SEED, &silent).unwrap();
        forge(&dir, (index_at + at) as u64, bytes);
        let generation = Generation::open(&dir).unwrap();
        for verify in [true, false] {
            let error = generation
                .load(HugePages::Off, &silent, LoadOptions { verify })
                .unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(error, TableError::BadIndex { .. }),
                "{name}: {text}"
            );
            assert!(
                text.contains(says) && text.contains("table t"),
                "{name}: {text}"
            );
        }
        let error = generation.verify(&silent).unwrap_err().to_string();
        assert!(error.contains(says), "{name}, verified: {error}");
    };
    let bucket = with([5, 0]) * 64;
    refused("magic", 0, b"X", "ROWMILLI");
    refused("seed", 8, &[index[8] ^ 1], "in bucket");
    refused("buckets", 16, &[99], "99 buckets instead of 43");
    refused("zeros", 30, &[1], "must be zero");
    refused("count", bucket + 60, &[6], "impossible bucket");
    refused("flags", bucket + 62, &[1], "impossible bucket");
    refused(
        "row",
        bucket + 40,
        &100u32.to_le_bytes(),
        "to row 100 of 100",
    );
    refused("row far away", bucket + 40, &[255; 4], "to row 4294967295");
    refused("key", bucket, &[index[bucket] ^ 1], "in bucket");
    refused(
        "twice",
        bucket,
        &index[bucket + 8..bucket + 16],
        "twice or out of order",
    );
    refused("fewer", bucket + 60, &[4], "more in bucket");
    refused("went on", bucket + 61, &[1], "went on");
    refused("stayed", with([5, 1]) * 64 + 61, &[0], "not found");
    refused(
        "went on early",
        with([3, 0]) * 64 + 61,
        &[1],
        "room in bucket",
    );
    refused("last", 43 * 64 + 61, &[1], "room in bucket 42");
    // One that no keys come from or go on to.
    let alone = |&bucket: &usize| meta(bucket)[1] == 0 && meta(bucket - 1)[1] == 0;
    let bucket = (2..44)
        .filter(alone)
        .find(|&bucket| meta(bucket)[0] > 0)
        .unwrap();
    let left = format!("{} keys instead of 100", 100 - meta(bucket)[0]);
    refused("emptied", bucket * 64, &[0; 64], &left);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn as_a_map(keys in prop::collection::hash_set(prop_oneof![0u64..500, any::<u64>()], 1..400), seed: u64) {
        let keys: Vec<u64> = keys.into_iter().collect();
        let right: HashMap<u64, u32> = keys.iter().copied().zip(0..).collect();
        let bytes = index_of(&keys, seed).unwrap();
        prop_assert_eq!(check_index(&bytes, keys.len() as u64).unwrap().into_iter().collect::<HashMap<_, _>>(), right);
    }

    /// Any change of a byte is refused or changes nothing but row numbers.
    #[test]
    fn changed_indexes(count in 1u64..60, changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let keys: Vec<u64> = (0..count).collect();
        let mut bytes = index_of(&keys, SEED).unwrap();
        for (at, to) in changes {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Ok(entries) = check_index(&bytes, count) {
            prop_assert_eq!(entries.len() as u64, count);
            prop_assert!(entries.iter().all(|&(_, row)| u64::from(row) < count));
        }
    }
}
