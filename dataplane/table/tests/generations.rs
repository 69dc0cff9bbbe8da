//! Generations made, opened, checked and loaded; and what happens when they are damaged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

use proptest::prelude::*;
use rowmill_arena::HugePages;
use rowmill_table::{
    Generation, HEADER_BYTES, LoadOptions, MANIFEST_FILE, Missing, PAGE_BYTES, Resident, RowFormat,
    Stage, TableError, TableKind, TableSpec, generate, generate_until, silent,
};
use tempfile::TempDir;

const SEED: u64 = 42;

fn spec(name: &str, rows: u64, dim: usize, format: RowFormat) -> TableSpec {
    TableSpec {
        name: name.into(),
        rows,
        dim,
        format,
        kind: TableKind::Dense,
    }
}

/// Tables of several blocks, of one row, and with rows that cross blocks.
fn specs() -> Vec<TableSpec> {
    vec![
        spec("large", 20_000, 128, RowFormat::F32),
        spec("tiny", 1, 4, RowFormat::F32),
        spec("odd", 50_001, 100, RowFormat::Int8),
        spec("wide", 3, 2048, RowFormat::Int8),
    ]
}

fn small_specs() -> Vec<TableSpec> {
    vec![
        spec("a", 40, 4, RowFormat::F32),
        spec("b", 30, 8, RowFormat::Int8),
    ]
}

fn made(specs: &[TableSpec]) -> (TempDir, PathBuf) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    generate(&dir, 7, specs, SEED, &silent).unwrap();
    (temp, dir)
}

fn flip(path: &Path, byte: u64, bit: u32) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .unwrap();
    let mut value = [0];
    file.read_exact_at(&mut value, byte).unwrap();
    file.write_all_at(&[value[0] ^ (1 << bit)], byte).unwrap();
}

/// Opens and checks everything, as `rowmill table verify` does.
fn verify(dir: &Path) -> Result<(), TableError> {
    Generation::open(dir)?.verify(&silent)
}

fn load(dir: &Path, options: LoadOptions) -> Result<Resident, TableError> {
    Generation::open(dir)?.load(HugePages::Prefer, &silent, options)
}

#[test]
fn files_and_memory_hold_the_same_values() {
    let (_temp, dir) = made(&specs());
    let generation = Generation::open(&dir).unwrap();
    assert_eq!(generation.number(), 7);
    assert_eq!(
        generation
            .tables()
            .iter()
            .map(|table| table.spec())
            .collect::<Vec<_>>(),
        specs()
    );
    generation.verify(&silent).unwrap();
    let memory = Resident::in_memory(&specs(), SEED, HugePages::Off, &silent).unwrap();
    let other = Resident::in_memory(&specs(), SEED + 1, HugePages::Off, &silent).unwrap();
    for options in [LoadOptions { verify: true }, LoadOptions { verify: false }] {
        let loaded = load(&dir, options).unwrap();
        assert_eq!(loaded.generation(), 7);
        assert!(loaded.arena_bytes() as f64 <= 1.05 * generation.row_region_bytes() as f64);
        for ((from_file, made), spec) in loaded.tables().iter().zip(memory.tables()).zip(specs()) {
            assert_eq!(from_file.bytes(), made.bytes(), "{}", spec.name);
            assert_eq!(from_file.bytes().len() as u64, spec.row_region_bytes());
            assert_eq!(from_file.bytes().as_ptr() as usize % 64, 0);
            assert_eq!(u64::from(from_file.row_count()), spec.rows);
        }
        assert_ne!(loaded.tables()[0].bytes(), other.tables()[0].bytes());
    }
}

#[test]
fn rows_by_map_and_by_memory() {
    let (_temp, dir) = made(&specs());
    let generation = Generation::open(&dir).unwrap();
    let resident = load(&dir, LoadOptions::default()).unwrap();
    for spec in specs() {
        let mapped = generation.open_mapped(&spec.name).unwrap();
        let table = resident.table(&spec.name).unwrap();
        for row in [0, spec.rows / 2, spec.rows - 1] {
            let (mut from_map, mut from_memory) = (vec![0.0; spec.dim], vec![0.0; spec.dim]);
            mapped.row_f32(row, &mut from_map).unwrap();
            table.row_f32(row as u32, &mut from_memory).unwrap();
            assert_eq!(from_map, from_memory);
            assert!(from_map.iter().any(|&value| value != 0.0));
        }
        let mut out = vec![0.0; spec.dim];
        assert!(matches!(
            mapped.row_f32(spec.rows, &mut out),
            Err(TableError::NoSuchRow { .. })
        ));
        assert!(matches!(
            table.row_f32(spec.rows as u32, &mut out),
            Err(TableError::NoSuchRow { .. })
        ));
    }
    assert!(matches!(
        generation.open_mapped("none"),
        Err(TableError::UnknownTable { .. })
    ));
}

#[test]
fn progress_ends_at_the_total() {
    let temp = tempfile::tempdir().unwrap();
    let last = Mutex::new(std::collections::HashMap::new());
    let note = |stage: Stage, done: u64, total: u64| {
        last.lock()
            .unwrap()
            .insert(stage.to_string(), (done, total));
    };
    let dir = temp.path().join("model");
    generate(&dir, 1, &specs(), SEED, &note).unwrap();
    let generation = Generation::open(&dir).unwrap();
    generation.verify(&note).unwrap();
    generation
        .load(HugePages::Off, &note, LoadOptions::default())
        .unwrap();
    Resident::in_memory(&specs(), SEED, HugePages::Off, &note).unwrap();
    let last = last.into_inner().unwrap();
    assert_eq!(last.len(), 6, "{last:?}");
    assert!(
        last.values()
            .all(|&(done, total)| done == total && total > 0),
        "{last:?}"
    );
}

#[test]
fn once_there_is_memory_reading_is_under_way() {
    let (_temp, dir) = made(&specs());
    let generation = Generation::open(&dir).unwrap();
    let seen = Mutex::new(Vec::new());
    let note = |stage: Stage, done: u64, total: u64| {
        seen.lock().unwrap().push((stage, done, total));
    };
    generation
        .load(HugePages::Off, &note, LoadOptions::default())
        .unwrap();
    let seen = seen.into_inner().unwrap();
    let is_allocated = |&(stage, done, total): &_| stage == Stage::Allocating && done == total;
    let allocated = seen.iter().rposition(is_allocated).unwrap();
    let (stage, done, _) = seen[allocated + 1];
    assert_eq!((stage, done), (Stage::Loading, 0), "{seen:?}");
}

#[test]
fn damage_is_named() {
    let (_temp, dir) = made(&specs());
    // The second page of the second block that is read at a time.
    let page = 1025;
    let path = dir.join("00000.rows");
    flip(&path, page * PAGE_BYTES as u64 + 5, 3);
    let loaded = || load(&dir, LoadOptions::default()).map(|_| ());
    for (result, counted) in [(verify(&dir), Some(0)), (loaded(), None)] {
        let error = result.unwrap_err();
        let TableError::DamagedPage {
            table,
            page: found,
            others,
            ..
        } = &error
        else {
            panic!("{error}")
        };
        assert_eq!((table.as_str(), *found, *others), ("large", page, counted));
        let text = error.to_string();
        assert!(text.contains("00000.rows"), "{text}");
        assert!(text.contains("the 4096 bytes from 4198400 on"), "{text}");
    }
    assert!(
        load(&dir, LoadOptions { verify: false }).is_ok(),
        "not asked to look"
    );
    flip(&path, (page + 1) * PAGE_BYTES as u64, 3);
    flip(&dir.join("00002.rows"), 5000, 0);
    flip(&dir.join("00003.rows"), 5000, 0);
    let error = verify(&dir).unwrap_err();
    assert!(
        matches!(
            error,
            TableError::DamagedPage {
                page: 1025,
                others: Some(3),
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("3 more pages"), "{error}");
    // Loading ends with the first part that is damaged, and counts none.
    let error = loaded().unwrap_err().to_string();
    assert!(
        error.contains("`rowmill table verify` counts all"),
        "{error}"
    );
    // The last page of a file, which padding fills.
    let (_temp, dir) = made(&specs());
    let path = dir.join("00002.rows");
    let last = fs::metadata(&path).unwrap().len() - 1;
    flip(&path, last, 7);
    for result in [verify(&dir), load(&dir, LoadOptions::default()).map(|_| ())] {
        let error = result.unwrap_err();
        let expected = last / PAGE_BYTES as u64;
        assert!(
            matches!(error, TableError::DamagedPage { page, .. } if page == expected),
            "{error}"
        );
    }
}

/// What a reader of single rows does: it reads the pages of a row and compares their checksums.
#[test]
fn single_rows_can_be_checked() {
    let mut specs = specs();
    specs.push(spec("keyed", 777, 64, RowFormat::Int8));
    specs[4].kind = TableKind::Hashed(Missing::Zero);
    let (_temp, dir) = made(&specs);
    let generation = Generation::open(&dir).unwrap();
    let resident = load(&dir, LoadOptions::default()).unwrap();
    for (info, table) in generation.tables().iter().zip(resident.tables()) {
        let checksums = generation.page_checksums(&info.name).unwrap();
        let file = fs::read(generation.path(info)).unwrap();
        let (pages, rest) = file.as_chunks::<PAGE_BYTES>();
        assert!(rest.is_empty());
        assert_eq!(checksums.page_count(), pages.len() as u64);
        for row in [0, table.row_count() / 2, table.row_count() - 1] {
            let place = info.row_place(row);
            let bytes = &file[place.offset as usize..][..place.bytes];
            assert_eq!(
                bytes,
                &table.bytes()[row as usize * info.stride..][..info.stride]
            );
            for number in place.pages() {
                let page = &pages[number as usize];
                assert!(checksums.is_whole(number, page), "{}", info.name);
                let mut other = *page;
                other[row as usize % PAGE_BYTES] ^= 1;
                assert!(!checksums.is_whole(number, &other), "{}", info.name);
            }
        }
    }
    assert!(matches!(
        generation.page_checksums("none"),
        Err(TableError::UnknownTable { .. })
    ));
    flip(&dir.join("checksums.crc"), 9, 0);
    assert!(matches!(
        generation.page_checksums("large"),
        Err(TableError::DamagedChecksums { .. })
    ));
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let (_temp, dir) = made(&small_specs());
    verify(&dir).unwrap();
    for file in [MANIFEST_FILE, "checksums.crc", "00000.rows", "00001.rows"] {
        let path = dir.join(file);
        let size = fs::metadata(&path).unwrap().len();
        // All of the short files; of the others the borders of their parts and some places between.
        let rows_end = HEADER_BYTES as u64 + 640;
        let dense = size < 4096;
        for byte in (0..size)
            .filter(|&byte| dense || byte % 97 == 0 || byte < 48 || byte.abs_diff(rows_end) < 2)
        {
            let bit = (byte % 8) as u32;
            flip(&path, byte, bit);
            assert!(verify(&dir).is_err(), "{file} byte {byte} bit {bit}");
            flip(&path, byte, bit);
        }
        verify(&dir).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]
    #[test]
    fn random_tables_round_trip_and_random_flips_are_found(
        rows in 1u64..5000, dim in 1usize..65, int8: bool, seed: u64, place in 0.0f64..1.0, bit in 0u32..8,
    ) {
        let format = if int8 { RowFormat::Int8 } else { RowFormat::F32 };
        let specs = [spec("t", rows, dim * 4, format)];
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("model");
        generate(&dir, 1, &specs, seed, &silent).unwrap();
        let loaded = load(&dir, LoadOptions::default()).unwrap();
        let memory = Resident::in_memory(&specs, seed, HugePages::Off, &silent).unwrap();
        prop_assert_eq!(loaded.tables()[0].bytes(), memory.tables()[0].bytes());
        let path = dir.join("00000.rows");
        let byte = (fs::metadata(&path).unwrap().len() as f64 * place) as u64;
        flip(&path, byte, bit);
        prop_assert!(verify(&dir).is_err());
    }
}

#[test]
fn files_that_are_not_what_was_promised() {
    let (_temp, dir) = made(&small_specs());
    for file in ["00001.rows", "checksums.crc"] {
        let path = dir.join(file);
        let bytes = fs::read(&path).unwrap();
        for len in [0, bytes.len() - 1, bytes.len() + 1] {
            let handle = OpenOptions::new().write(true).open(&path).unwrap();
            handle.set_len(len as u64).unwrap();
            let error = Generation::open(&dir).unwrap_err();
            assert!(
                matches!(&error, TableError::WrongFileSize { path: named, promised, found }
                    if *named == path && *promised == bytes.len() as u64 && *found == len as u64),
                "{error}"
            );
        }
        fs::remove_file(&path).unwrap();
        let error = Generation::open(&dir).unwrap_err();
        assert!(matches!(&error, TableError::NoFile { path: named, .. } if *named == path));
        let part = format!("{file} is not there; copy it");
        assert!(error.to_string().contains(&part), "{error}");
        fs::write(&path, bytes).unwrap();
    }
    fs::copy(dir.join("00000.rows"), dir.join("00001.rows")).unwrap();
    let error = Generation::open(&dir).unwrap_err();
    assert!(
        matches!(error, TableError::BadHeader { .. })
            && error.to_string().contains("another table"),
        "{error}"
    );
}

#[test]
fn truncated_after_opening() {
    let (_temp, dir) = made(&specs());
    let generation = Generation::open(&dir).unwrap();
    let path = dir.join("00000.rows");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    file.set_len(8192).unwrap();
    let is_told = |error: &TableError| {
        matches!(error, TableError::WrongFileSize { path: named, promised, found: 8192 }
            if *named == path && *promised == whole)
    };
    for options in [LoadOptions { verify: true }, LoadOptions { verify: false }] {
        let error = generation
            .load(HugePages::Off, &silent, options)
            .unwrap_err();
        assert!(is_told(&error), "{error}");
    }
    let error = generation.verify(&silent).unwrap_err();
    assert!(is_told(&error), "{error}");
}

#[test]
fn directories_that_are_no_generations() {
    let temp = tempfile::tempdir().unwrap();
    let error = Generation::open(temp.path()).unwrap_err();
    assert!(
        matches!(error, TableError::NoManifest { .. }) && error.to_string().contains("generate"),
        "{error}"
    );
    assert!(matches!(
        Generation::open(temp.path().join("none")),
        Err(TableError::NoManifest { .. })
    ));
    fs::create_dir(temp.path().join(MANIFEST_FILE)).unwrap();
    assert!(matches!(
        Generation::open(temp.path()),
        Err(TableError::Io { .. })
    ));
}

#[test]
fn nothing_is_replaced_and_nothing_left_behind() {
    let (temp, dir) = made(&small_specs());
    let again = generate(&dir, 8, &small_specs(), SEED, &silent);
    assert!(matches!(again, Err(TableError::AlreadyExists { .. })));
    assert_eq!(Generation::open(&dir).unwrap().number(), 7);
    let bad = [
        spec("a", 10, 4, RowFormat::F32),
        spec("a", 10, 4, RowFormat::F32),
    ];
    assert!(generate(temp.path().join("bad"), 1, &bad, SEED, &silent).is_err());
    let huge = [spec("a", 2_000_000_000, 2048, RowFormat::F32)];
    let error = generate(temp.path().join("huge"), 1, &huge, SEED, &silent).unwrap_err();
    assert!(matches!(error, TableError::TooLittleDisk { .. }), "{error}");
    let names: Vec<_> = fs::read_dir(temp.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["model"]);
}

#[test]
fn places_that_take_no_directories() {
    for place in ["/proc/model", "/proc/none/model"] {
        let error = generate(place, 1, &small_specs(), SEED, &silent).unwrap_err();
        assert!(
            matches!(error, TableError::NotWritable { .. }),
            "{place}: {error}"
        );
    }
}

#[test]
fn an_interrupted_attempt_does_not_open_and_is_cleared_away() {
    let (temp, dir) = made(&small_specs());
    // What a killed process leaves: its directory, without a manifest and without a lock.
    let abandoned = temp.path().join(".next.partial-0123456789abcdef");
    fs::create_dir(&abandoned).unwrap();
    for file in ["00000.rows", "00001.rows", "checksums.crc"] {
        fs::copy(dir.join(file), abandoned.join(file)).unwrap();
    }
    assert!(matches!(
        Generation::open(&abandoned),
        Err(TableError::NoManifest { .. })
    ));
    generate(temp.path().join("next"), 8, &small_specs(), SEED, &silent).unwrap();
    assert!(!abandoned.exists());
    verify(&temp.path().join("next")).unwrap();
}

#[test]
fn of_two_writers_of_one_target_one_has_it() {
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("model");
    let together = Barrier::new(2);
    // Both have begun when either goes on.
    let write = |seed| {
        let met = AtomicBool::new(false);
        generate(&target, 1, &small_specs(), seed, &|_, _, _| {
            if !met.swap(true, Ordering::Relaxed) {
                together.wait();
            }
        })
    };
    let results = std::thread::scope(|scope| {
        let writers = [1, 2].map(|seed| scope.spawn(move || write(seed)));
        writers.map(|writer| writer.join().unwrap())
    });
    let won = results.iter().filter(|result| result.is_ok()).count();
    let refused =
        |result: &Result<(), TableError>| matches!(result, Err(TableError::AlreadyExists { .. }));
    let lost = results.iter().filter(|result| refused(result)).count();
    assert_eq!((won, lost), (1, 1), "{results:?}");
    verify(&target).unwrap();
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
}

#[test]
fn work_that_is_stopped_leaves_nothing() {
    let mut hashed = spec("hashed", 200_000, 4, RowFormat::F32);
    hashed.kind = TableKind::Hashed(Missing::Zero);
    let mut specs = specs();
    specs.push(hashed);
    let temp = tempfile::tempdir().unwrap();
    let target = temp.path().join("model");
    for at in [Stage::Indexing, Stage::Writing, Stage::Syncing] {
        let stop = AtomicBool::new(false);
        let result = generate_until(&stop, &target, 1, &specs, SEED, &|stage, _, _| {
            if stage == at {
                stop.store(true, Ordering::Relaxed);
            }
        });
        let error = result.unwrap_err();
        assert!(matches!(error, TableError::Interrupted), "{at}: {error}");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "{at}");
    }
}

#[test]
fn too_little_memory_is_said_before_anything_is_read() {
    let specs = [spec("a", 2_000_000_000, 2048, RowFormat::F32)];
    let error = Resident::in_memory(&specs, SEED, HugePages::Prefer, &silent).unwrap_err();
    assert!(
        matches!(error, TableError::Memory(_)) && error.to_string().contains("too little memory"),
        "{error}"
    );
}

/// A pipe in place of a file is refused; it would be waited for otherwise.
#[test]
fn pipes_are_no_files_of_a_generation() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("model");
    let specs = ["a:10:4:f32".parse().unwrap()];
    rowmill_table::generate(&dir, 1, &specs, 1, &rowmill_table::silent).unwrap();
    for file in ["00000.rows", rowmill_table::MANIFEST_FILE] {
        let path = dir.join(file);
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let error = rowmill_table::Generation::open(&dir).unwrap_err();
        let text = format!("{error}: {:?}", std::error::Error::source(&error));
        assert!(text.contains("no regular file"), "{file}: {text}");
    }
}
