//! Generations of tables that lie in memory.

use std::sync::atomic::AtomicBool;

use rowmill_arena::HugePages;
use rowmill_table::{
    Generation, LoadOptions, MemoryTable, RowFormat, TableError, TableKind, TableSpec, silent,
    write_until,
};

const ELEMENTS: [RowFormat; 3] = [RowFormat::F32, RowFormat::F16, RowFormat::Bf16];

fn spec(name: &str, rows: u64, dim: usize, format: RowFormat) -> TableSpec {
    TableSpec {
        name: name.into(),
        rows,
        dim,
        format,
        kind: TableKind::Dense,
    }
}

/// Rows of numbers, each of another kind, as they lie in memory.
fn numbers(spec: &TableSpec, element: RowFormat) -> Vec<u8> {
    let row_bytes = element.row_bytes(spec.dim);
    let mut bytes = vec![0; spec.rows as usize * row_bytes];
    for (row, out) in bytes.chunks_exact_mut(row_bytes).enumerate() {
        let value = |column| ((row * 31 + column * 7) % 97) as f32 / 13.0 - 3.0;
        let values: Vec<f32> = (0..spec.dim).map(value).collect();
        element.encode(&values, out);
    }
    bytes
}

fn write(tables: &[MemoryTable<'_>]) -> Result<tempfile::TempDir, TableError> {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("model");
    let outcome = write_until(&AtomicBool::new(false), &dir, 3, tables, &silent);
    assert_eq!(dir.exists(), outcome.is_ok());
    outcome.map(|()| temp)
}

#[test]
fn rows_are_encoded_as_their_format_says() {
    for element in ELEMENTS {
        // Rows that cross blocks, and a table of one row.
        let specs: Vec<TableSpec> = RowFormat::ALL
            .iter()
            .flat_map(|&format| {
                [
                    spec(&format!("large-{format}"), 20_011, 100, format),
                    spec(&format!("tiny-{format}"), 1, 4, format),
                ]
            })
            .collect();
        let memory: Vec<Vec<u8>> = specs.iter().map(|spec| numbers(spec, element)).collect();
        let tables: Vec<MemoryTable<'_>> = specs
            .iter()
            .zip(&memory)
            .map(|(spec, memory)| MemoryTable {
                spec: spec.clone(),
                element,
                memory,
            })
            .collect();
        let temp = write(&tables).unwrap();
        let generation = Generation::open(temp.path().join("model")).unwrap();
        assert_eq!(generation.number(), 3);
        let options = LoadOptions { verify: true };
        let loaded = generation.load(HugePages::Off, &silent, options).unwrap();
        for ((spec, memory), table) in specs.iter().zip(&memory).zip(loaded.tables()) {
            let rows = memory.chunks_exact(element.row_bytes(spec.dim));
            let stored = table.bytes().chunks_exact(spec.stride());
            assert_eq!(rows.len(), stored.len());
            let (mut values, mut encoded) = (vec![0.0; spec.dim], vec![0; spec.stride()]);
            for (row, stored) in rows.zip(stored) {
                element.decode(row, &mut values);
                spec.format.encode(&values, &mut encoded);
                assert_eq!(encoded, stored, "{} of {element}", spec.name);
            }
        }
    }
}

#[test]
fn values_that_cannot_be_stored_are_named() {
    for (format, value) in [
        (RowFormat::F32, f32::NAN),
        (RowFormat::Int8, f32::INFINITY),
        (RowFormat::F16, 1e9),
    ] {
        let spec = spec("t", 5_000, 64, format);
        let mut memory = numbers(&spec, RowFormat::F32);
        memory[4 * (64 * 4_321 + 5)..][..4].copy_from_slice(&value.to_le_bytes());
        let table = MemoryTable {
            spec,
            element: RowFormat::F32,
            memory: &memory,
        };
        match write(&[table]) {
            Err(TableError::UnfitRow { table, row, unfit }) => {
                assert_eq!((table.as_str(), row, unfit.dim), ("t", 4_321, 5));
            }
            other => panic!("{format}: {other:?}"),
        }
    }
}

#[test]
fn what_can_be_no_table_is_refused() {
    let odd = spec("odd", 3, 6, RowFormat::F32);
    let table = MemoryTable {
        spec: odd,
        element: RowFormat::F32,
        memory: &vec![0; 72],
    };
    assert!(matches!(write(&[table]), Err(TableError::BadDim { .. })));
    assert!(matches!(write(&[]), Err(TableError::NoTables)));
}

#[test]
#[should_panic(expected = "memory of its rows")]
fn memory_of_another_size() {
    let table = MemoryTable {
        spec: spec("t", 3, 4, RowFormat::F32),
        element: RowFormat::F32,
        memory: &vec![0; 44],
    };
    let _ = write(&[table]);
}
