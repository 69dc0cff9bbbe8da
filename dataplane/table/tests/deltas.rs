//! Deltas: files of them, and rows that become others while threads read them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rowmill_arena::HugePages;
use rowmill_table::{
    Container, DeltaFile, DeltaTable, Generation, Keep, LoadOptions, Missing, Resident, RowFormat,
    TableKind, TableSpec, generate, parse_delta_head, silent, write_delta,
};
use tempfile::TempDir;

const ROWS: u64 = 3000;

fn spec(name: &str, dim: usize, format: RowFormat, kind: TableKind) -> TableSpec {
    TableSpec {
        name: name.into(),
        rows: ROWS,
        dim,
        format,
        kind,
    }
}

struct Place {
    folder: TempDir,
    generation: Generation,
}

impl Place {
    fn new() -> Place {
        let folder = tempfile::tempdir().unwrap();
        let specs = [
            spec("f", 16, RowFormat::F32, TableKind::Dense),
            spec("k", 12, RowFormat::Int8, TableKind::Hashed(Missing::Zero)),
        ];
        let dir = folder.path().join("model");
        generate(&dir, 4, &specs, 9, &silent).unwrap();
        let generation = Generation::open(dir).unwrap();
        Place { folder, generation }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn load(&self) -> Resident {
        let options = LoadOptions::default();
        let changing = |_| Keep::Changing;
        let loaded = self
            .generation
            .load_parts(changing, HugePages::Off, &silent, options);
        loaded.unwrap()
    }

    /// Files of these ids and rows, all values of a row its number here, and what `write_delta` takes of them.
    fn table(&self, name: &str, dim: usize, ids: &[u64], value: f32) -> DeltaTable {
        let rows: Vec<u8> = (0..ids.len())
            .flat_map(|row| vec![value + row as f32; dim])
            .flat_map(f32::to_le_bytes)
            .collect();
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let (rows_at, ids_at) = (self.path("rows.npy"), self.path("ids.npy"));
        let (rows_at, ids_at) = (
            rows_at.with_extension(name),
            ids_at.with_extension(format!("i{name}")),
        );
        npy(&rows_at, "<f4", &format!("({}, {dim})", ids.len()), &rows);
        npy(&ids_at, "<u8", &format!("({},)", ids.len()), &bytes);
        DeltaTable {
            name: name.into(),
            from: Container::Npy {
                rows: rows_at,
                ids: Some(ids_at),
            },
        }
    }
}

fn npy(path: &Path, kind: &str, shape: &str, data: &[u8]) {
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    text += &" ".repeat(117 - text.len());
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    std::fs::write(path, bytes).unwrap();
}

/// Applies all of a delta; nobody reads meanwhile.
fn apply(delta: &DeltaFile, tables: &Resident) {
    delta.verify(tables).unwrap();
    for (number, section) in delta.head().sections.iter().enumerate() {
        let table = tables.table(&section.table).unwrap();
        let each = &mut |rows: &[u32], bytes: &[u8]| {
            table.change(rows, bytes, &mut || ());
            Ok(())
        };
        delta.rows(number, table, 100, each).unwrap();
    }
}

fn row(tables: &Resident, table: usize, row: u32) -> Vec<f32> {
    let table = &tables.tables()[table];
    let mut values = vec![0.0; table.dim()];
    table.row_f32(row, &mut values).unwrap();
    values
}

#[test]
fn rows_of_a_delta_take_the_place_of_others_and_the_rest_stays() {
    let place = Place::new();
    let (tables, before) = (place.load(), place.load());
    let keys: Vec<(u64, u32)> = tables.tables()[1].entries().collect();
    let some: Vec<u64> = keys.iter().step_by(3).map(|&(key, _)| key).collect();
    let dense: Vec<u64> = (0..ROWS).rev().step_by(7).collect();
    let made = [
        place.table("k", 12, &some, 5.0),
        place.table("f", 16, &dense, -1.0),
    ];
    let path = place.path("1.delta");
    let head = write_delta(&path, "m", 1, &place.generation, &made).unwrap();
    assert_eq!(
        (head.generation, head.sequence, head.sections.len()),
        (4, 1, 2)
    );
    let delta = DeltaFile::open(&path).unwrap();
    assert_eq!(*delta.head(), head);
    assert_eq!(head.rows(), (some.len() + dense.len()) as u64);
    apply(&delta, &tables);
    for id in 0..ROWS {
        let expected = match dense.iter().position(|&other| other == id) {
            Some(at) => vec![at as f32 - 1.0; 16],
            None => row(&before, 0, id as u32),
        };
        assert_eq!(row(&tables, 0, id as u32), expected, "row {id}");
    }
    for (key, number) in keys {
        let expected = match some.iter().position(|&other| other == key) {
            Some(at) => vec![at as f32 + 5.0; 12],
            None => row(&before, 1, number),
        };
        assert_eq!(row(&tables, 1, number), expected, "key {key}");
    }
    // The row for missing ids.
    assert_eq!(row(&tables, 1, ROWS as u32), [0.0; 12]);
    let exists = write_delta(&path, "m", 1, &place.generation, &made).unwrap_err();
    assert!(exists.to_string().contains("exists already"), "{exists}");
}

#[test]
fn what_does_not_fit_is_not_made() {
    let place = Place::new();
    let make = |name: &str, sequence, tables: &[DeltaTable]| {
        let made = write_delta(
            place.path("no.delta"),
            name,
            sequence,
            &place.generation,
            tables,
        );
        assert!(!place.path("no.delta").exists() && !place.path("no.delta.partial").exists());
        made.unwrap_err().to_string()
    };
    let good = place.table("f", 16, &[1, 2], 0.0);
    let absent = |table| make("m", 1, &[table]);
    assert!(
        absent(place.table("f", 16, &[ROWS], 0.0)).contains("has the id 3000, which table f lacks")
    );
    assert!(absent(place.table("k", 12, &[12345], 0.0)).contains("which table k lacks"));
    assert!(absent(place.table("f", 12, &[1], 0.0)).contains("has rows of 12 dimensions"));
    assert!(
        absent(place.table("f", 16, &[7, 1, 7], 0.0)).contains("has the id 7 for rows 0 and 2")
    );
    assert!(
        absent(place.table("f", 16, &[], 0.0)).contains("0 rows")
            || absent(place.table("f", 16, &[], 0.0)).contains("no ids")
    );
    assert!(absent(place.table("x", 16, &[1], 0.0)).contains('x'));
    assert!(absent(place.table("f", 16, &[1], f32::NAN)).contains("NaN"));
    assert!(make("m", 1, &[good.clone(), good.clone()]).contains("table f twice"));
    assert!(make("m", 0, std::slice::from_ref(&good)).contains("from 1 on"));
    assert!(make("", 1, std::slice::from_ref(&good)).contains("name a model"));
    assert!(make("m", 1, &[]).contains("needs rows"));
}

#[test]
fn every_flipped_byte_is_found_and_every_cut() {
    let place = Place::new();
    let tables = place.load();
    let path = place.path("1.delta");
    let made = [place.table("f", 16, &[5, 6, 900], 1.5)];
    write_delta(&path, "m", 3, &place.generation, &made).unwrap();
    let good = std::fs::read(&path).unwrap();
    let other = place.path("other.delta");
    let outcome = |bytes: &[u8]| {
        std::fs::write(&other, bytes).unwrap();
        DeltaFile::open(&other).and_then(|delta| delta.verify(&tables))
    };
    outcome(&good).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        assert!(outcome(&bytes).is_err(), "byte {at}");
        let cut = outcome(&good[..at]).unwrap_err().to_string();
        assert!(cut.contains("the delta"), "{cut}");
    }
    let head = parse_delta_head(&good[..512 + 192]).unwrap();
    assert_eq!(head.to_bytes(), good[..512 + 192]);

    // With right checksums, too.
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let body = crc32fast::hash(&bytes[704..]);
        bytes[512 + 160..512 + 164].copy_from_slice(&body.to_le_bytes());
        let list = crc32fast::hash(&bytes[512..704]);
        bytes[44..48].copy_from_slice(&list.to_le_bytes());
        let head = crc32fast::hash(&bytes[..508]);
        bytes[508..512].copy_from_slice(&head.to_le_bytes());
        outcome(&bytes).unwrap_err().to_string()
    };
    let base = good[48] ^ 1;
    let cases: [(usize, u8, &str); 12] = [
        (8, 1, "has version 1"),
        (8, 3, "has version 3"),
        (48, base, "made anew under that number"),
        (16, 9, "is for generation 9 and not 4"),
        (24, 0, "sequence number 0"),
        (300, 1, "must be zero"),
        (512 + 4, b'g', "a table g, which the generation lacks"),
        (512 + 136, 20, "instead of|bytes"),
        (512 + 140, 2, "unknown kind 2"),
        (512 + 152, 0, "a section at"),
        (704, 6, "out of order, or 6 twice"),
        (704 + 16 + 1, 0xff, "id 65412 of|of id 65412"),
    ];
    for (at, value, why) in cases {
        let error = sealed(&|bytes: &mut Vec<u8>| bytes[at] = value);
        assert!(
            why.split('|').any(|why| error.contains(why)),
            "{at}: {error}"
        );
    }
    let infinite = sealed(&|bytes: &mut Vec<u8>| {
        bytes[704 + 24..704 + 28].copy_from_slice(&f32::INFINITY.to_le_bytes())
    });
    assert!(
        infinite.contains("for id 5 of table f that is not finite"),
        "{infinite}"
    );
}

#[test]
fn generated_tables_change_in_memory_where_they_were_asked_to() {
    let specs = [
        spec("f", 16, RowFormat::F32, TableKind::Dense),
        spec("k", 12, RowFormat::Int8, TableKind::Hashed(Missing::Zero)),
        spec("h", 20, RowFormat::F16, TableKind::Hashed(Missing::Default)),
    ];
    let plain = Resident::in_memory(&specs, 9, HugePages::Off, &silent).unwrap();
    let changing = |table| table != 1;
    let tables = Resident::in_memory_changing(changing, &specs, 9, HugePages::Off, &silent);
    let tables = tables.unwrap();
    let changed = [0, 1999, 2999];
    for (number, table) in tables.tables().iter().enumerate() {
        let first = &plain.tables()[number];
        assert!(!first.can_change());
        assert_eq!(table.can_change(), number != 1);
        assert!(table.entries().eq(first.entries()));
        if table.can_change() {
            let bytes = vec![0; changed.len() * table.stride()];
            table.change(&changed, &bytes, &mut || ());
        }
        for at in 0..table.row_count() {
            let is_other = table.can_change() && changed.contains(&at);
            let was = row(&plain, number, at);
            let expected = if is_other { vec![0.0; was.len()] } else { was };
            assert_eq!(
                row(&tables, number, at),
                expected,
                "table {number}, row {at}"
            );
        }
    }
}

/// Readers in turns of their own, and one thread that changes all rows again and again: each row is one of the two that it may be, whole, and never
/// goes back.
#[test]
fn rows_change_under_readers() {
    const READERS: usize = 2;
    const ROUNDS: u32 = 12;
    let place = Place::new();
    let tables = place.load();
    let table = &tables.tables()[0];
    let numbers: Vec<u32> = (0..200).collect();
    let rows = |round: u32| -> Vec<u8> {
        numbers
            .iter()
            .flat_map(|_| [round as f32; 16])
            .flat_map(f32::to_le_bytes)
            .collect()
    };
    table.change(&numbers, &rows(0), &mut || ());
    let turns: [AtomicU64; READERS] = Default::default();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for (reader, turn) in turns.iter().enumerate() {
            let (numbers, ended) = (&numbers, &ended);
            scope.spawn(move || {
                let mut seen = vec![0.0; numbers.len()];
                let mut at = reader;
                while !ended.load(Ordering::Relaxed) {
                    // A turn: nothing is kept beyond it.
                    turn.fetch_add(1, Ordering::SeqCst);
                    at = (at * 7 + 3) % numbers.len();
                    let mut found = [numbers[at]];
                    table.stand_in(&mut found);
                    let mut bytes = [0; 64];
                    table
                        .window()
                        .read(found[0] as usize * table.stride(), &mut bytes);
                    let (values, _) = bytes.as_chunks::<4>();
                    let first = f32::from_le_bytes(values[0]);
                    assert!(
                        values
                            .iter()
                            .all(|&value| f32::from_le_bytes(value) == first),
                        "torn"
                    );
                    assert!(
                        first >= seen[at],
                        "row {at} was {} and is {first}",
                        seen[at]
                    );
                    seen[at] = first;
                }
            });
        }
        for round in 1..=ROUNDS {
            table.change(&numbers, &rows(round), &mut || {
                let then: Vec<u64> = turns
                    .iter()
                    .map(|turn| turn.load(Ordering::SeqCst))
                    .collect();
                while turns
                    .iter()
                    .zip(&then)
                    .any(|(turn, &then)| turn.load(Ordering::SeqCst) < then + 1)
                {
                    thread::yield_now();
                }
            });
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(row(&tables, 0, 199), [ROUNDS as f32; 16]);
}
