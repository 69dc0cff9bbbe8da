//! Tables of which only a part is brought into memory.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use proptest::prelude::*;
use rowmill_arena::HugePages;
use rowmill_table::{
    Generation, HEADER_BYTES, Keep, LoadOptions, Missing, PAGE_BYTES, Resident, ResidentTable,
    TableError, TableSpec, generate, silent,
};
use tempfile::TempDir;

/// Of several blocks, of one row; hashed ones whose rows end within a page, the second with more than a block of index.
const SPECS: [&str; 5] = [
    "large:20000:128:f32",
    "tiny:1:4:f32",
    "hashed:3001:100:int8:hashed",
    "keys:400001:4:int8:hashed",
    "wide:3:2048:int8",
];

fn made() -> (TempDir, Generation) {
    let specs: Vec<TableSpec> = SPECS.iter().map(|spec| spec.parse().unwrap()).collect();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let generation = generate(&dir, 7, &specs, 42, &silent).map(|_| Generation::open(&dir));
    (temp, generation.unwrap().unwrap())
}

fn load(generation: &Generation, keep: &[Keep]) -> Result<Resident, TableError> {
    generation.load_parts(
        |number| keep[number],
        HugePages::Off,
        &silent,
        LoadOptions::default(),
    )
}

fn assert_same(part: &Resident, whole: &Resident, keep: &[Keep]) {
    assert_eq!(part.generation(), whole.generation());
    for ((part, whole), keep) in part.tables().iter().zip(whole.tables()).zip(keep) {
        assert_eq!(part.has_rows(), *keep != Keep::Index, "{}", part.name());
        assert_eq!(part.row_count(), whole.row_count());
        assert_eq!(part.lookup_count(), whole.lookup_count());
        if part.has_rows() {
            assert!(part.bytes() == whole.bytes(), "{}", part.name());
        }
        assert!(part.entries().eq(whole.entries()), "{}", part.name());
        let ids: Vec<u64> = match whole.entries().next() {
            None => (0..u64::from(whole.lookup_count())).collect(),
            Some(_) => whole.entries().map(|(key, _)| key).collect(),
        };
        let (mut rows, mut of_whole) = (vec![0; ids.len()], vec![0; ids.len()]);
        part.resolve(&ids, &mut rows).unwrap();
        whole.resolve(&ids, &mut of_whole).unwrap();
        assert!(rows == of_whole, "{}", part.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_is_kept_is_the_same(choices in prop::collection::vec(0..3usize, SPECS.len())) {
        let (_temp, generation) = made();
        let whole = load(&generation, &[Keep::All; SPECS.len()]).unwrap();
        let keep: Vec<Keep> = choices.iter().map(|&i| [Keep::All, Keep::RowsApart, Keep::Index][i]).collect();
        let part = load(&generation, &keep).unwrap();
        assert_same(&part, &whole, &keep);
        let bytes = |keep: &(&Keep, &rowmill_table::TableInfo)| match keep.0 {
            Keep::Index => keep.1.index_bytes(),
            _ => keep.1.resident_bytes(),
        };
        let least: u64 = keep.iter().zip(generation.tables()).map(|pair| bytes(&pair)).sum();
        let most = least + 4 * PAGE_BYTES as u64 * SPECS.len() as u64;
        prop_assert!((least..=most).contains(&(part.arena_bytes() as u64)));
        let arenas: u64 = generation.arenas_bytes(|number| keep[number]).iter().sum();
        prop_assert_eq!(arenas, part.arena_bytes() as u64);
    }
}

#[test]
fn rows_that_are_apart_can_be_taken() {
    let (_temp, generation) = made();
    let whole = load(&generation, &[Keep::All; SPECS.len()]).unwrap();
    let index = load(&generation, &[Keep::Index; SPECS.len()]).unwrap();
    let mut part = load(&generation, &[Keep::RowsApart; SPECS.len()]).unwrap();
    for (number, whole) in whole.tables().iter().enumerate() {
        let taken = part.take_rows(number);
        assert!(taken.bytes() == whole.bytes(), "{}", taken.name());
        assert!(taken.entries().eq(whole.entries()));
    }
    assert_same(&part, &whole, &[Keep::Index; SPECS.len()]);
    assert_eq!(part.arena_bytes(), index.arena_bytes());
}

#[test]
fn rows_come_and_go() {
    let (_temp, generation) = made();
    let whole = load(&generation, &[Keep::All; SPECS.len()]).unwrap();
    let part = load(&generation, &[Keep::Index; SPECS.len()]).unwrap();
    for (table, whole) in part.tables().iter().zip(whole.tables()) {
        let options = LoadOptions::default();
        let with = generation.load_rows(table, false, HugePages::Off, &silent, options);
        let with = with.unwrap();
        assert!(with.bytes() == whole.bytes());
        assert!(!table.has_rows() && !with.without_rows().has_rows());
        assert!(with.without_rows().entries().eq(whole.entries()));
    }
}

/// However they came into an arena of their own, rows that can change are the table's, and become others.
#[test]
fn rows_that_are_apart_can_change() {
    let (_temp, generation) = made();
    let whole = load(&generation, &[Keep::All; SPECS.len()]).unwrap();
    let index = load(&generation, &[Keep::Index; SPECS.len()]).unwrap();
    let mut part = load(&generation, &[Keep::ChangingApart; SPECS.len()]).unwrap();
    for (number, whole) in whole.tables().iter().enumerate() {
        let (without, options) = (&index.tables()[number], LoadOptions::default());
        let loaded = generation.load_rows(without, true, HugePages::Off, &silent, options);
        for table in [part.take_rows(number), loaded.unwrap()] {
            assert!(table.can_change() && table.frozen().is_none());
            let row = |table: &ResidentTable, row: u32| {
                let mut values = vec![0.0; table.dim()];
                table.row_f32(row, &mut values).unwrap();
                values
            };
            for at in 0..whole.row_count() {
                assert_eq!(row(&table, at), row(whole, at), "{}: {at}", table.name());
            }
            let (one, other) = (0, whole.lookup_count() - 1);
            let at = other as usize * whole.stride();
            let bytes = &whole.bytes()[at..at + whole.stride()];
            table.change(&[one], bytes, &mut || ());
            assert_eq!(row(&table, one), row(whole, other));
            for at in 1..whole.row_count() {
                assert_eq!(row(&table, at), row(whole, at));
            }
        }
    }
    assert_eq!(part.arena_bytes(), index.arena_bytes());
}

#[test]
fn damage_counts_where_it_is_read() {
    let (_temp, generation) = made();
    let at = |table: usize, byte: u64| {
        let path: PathBuf = generation.path(&generation.tables()[table]);
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.unwrap();
        let mut value = [0];
        file.read_exact_at(&mut value, byte).unwrap();
        file.write_all_at(&[value[0] ^ 1], byte).unwrap();
    };
    let (mut keep, index) = ([Keep::All; SPECS.len()], [Keep::Index; SPECS.len()]);
    // A row of a table whose rows stay in the file.
    let row = HEADER_BYTES as u64 + 5000;
    at(2, row);
    assert!(load(&generation, &index).is_ok());
    for loaded in [Keep::All, Keep::RowsApart] {
        keep[2] = loaded;
        let error = load(&generation, &keep).unwrap_err().to_string();
        assert!(
            error.contains("table hashed") && error.contains("page 2"),
            "{error}"
        );
    }
    let resident = load(&generation, &index).unwrap();
    let table = &resident.tables()[2];
    let options = LoadOptions::default();
    let rows = generation.load_rows(table, false, HugePages::Off, &silent, options);
    assert!(matches!(rows, Err(TableError::DamagedPage { page: 2, .. })));
    at(2, row);
    // Its index.
    at(2, generation.tables()[2].file_bytes - PAGE_BYTES as u64 - 7);
    let error = load(&generation, &index).unwrap_err();
    assert!(matches!(error, TableError::DamagedPage { .. }), "{error}");
}

#[test]
fn rows_of_missing_ids_are_looked_at_in_their_file() {
    let spec = TableSpec {
        kind: rowmill_table::TableKind::Hashed(Missing::Zero),
        ..SPECS[2].parse().unwrap()
    };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    generate(&dir, 7, &[spec], 42, &silent).unwrap();
    let generation = Generation::open(&dir).unwrap();
    let info = &generation.tables()[0];
    assert!(load(&generation, &[Keep::Index]).is_ok());
    let last = HEADER_BYTES as u64 + info.row_region_bytes() - 1;
    let file = OpenOptions::new().write(true).open(generation.path(info));
    file.unwrap().write_all_at(&[1], last).unwrap();
    let options = LoadOptions { verify: false };
    let loaded = generation.load_parts(|_| Keep::Index, HugePages::Off, &silent, options);
    assert!(matches!(loaded, Err(TableError::BadZeroRow { .. })));
}
