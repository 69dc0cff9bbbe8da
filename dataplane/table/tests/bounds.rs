//! What tables cost in memory, and how large they can be.

use rowmill_arena::HugePages;
use rowmill_table::{
    Missing, Resident, ResidentTable, RowFormat, TableKind, TableSpec, generated_key, silent,
};

const SEED: u64 = 42;

fn spec(rows: u64, dim: usize, format: RowFormat, kind: TableKind) -> TableSpec {
    TableSpec {
        name: kind.to_string(),
        rows,
        dim,
        format,
        kind,
    }
}

fn in_memory(specs: &[TableSpec]) -> Resident {
    Resident::in_memory(specs, SEED, HugePages::Off, &silent).unwrap()
}

fn resolve(table: &ResidentTable, ids: &[u64]) -> Result<Vec<u32>, usize> {
    let mut rows = vec![u32::MAX; ids.len()];
    table.resolve(ids, &mut rows).map(|()| rows)
}

#[test]
fn memory_stays_in_its_bounds() {
    for (rows, dim, format) in [
        (20_000, 4, RowFormat::Int4),
        (20_000, 64, RowFormat::F32),
        (300_000, 4, RowFormat::Int4),
        (50_000, 128, RowFormat::Int8),
    ] {
        for kind in [
            TableKind::Dense,
            TableKind::Hashed(Missing::Error),
            TableKind::Hashed(Missing::Zero),
        ] {
            let spec = spec(rows, dim, format, kind);
            let resident = in_memory(std::slice::from_ref(&spec));
            let (rows, stride) = (rows as f64, spec.stride() as f64);
            let most = match kind {
                TableKind::Dense => rows * stride * 1.05,
                TableKind::Hashed(_) => rows * (stride + 16.0) * 1.1,
            };
            let bytes = resident.arena_bytes() as f64;
            assert!(
                bytes <= most,
                "{rows} rows of {stride}, {kind}: {bytes} of {most}"
            );
        }
    }
}

/// 40 M rows in one table of each kind: about 1.2 GB of memory for them and 0.5 GB while the index is made.
#[test]
#[ignore = "takes 2 GB of memory; run with --ignored"]
fn forty_million_rows() {
    let rows = 40_000_000;
    let specs = [TableKind::Hashed(Missing::Zero), TableKind::Dense]
        .map(|kind| spec(rows, 4, RowFormat::Int4, kind));
    let resident = in_memory(&specs);
    let [hashed, dense] = resident.tables() else {
        unreachable!()
    };
    let numbers: Vec<u64> = (0..100_000).map(|n| n * 397 % rows).collect();
    let keys: Vec<u64> = numbers
        .iter()
        .map(|&row| generated_key(SEED, 0, row))
        .collect();
    let right: Vec<u32> = numbers.iter().map(|&row| row as u32).collect();
    assert_eq!(resolve(hashed, &keys).unwrap(), right);
    assert_eq!(resolve(dense, &numbers).unwrap(), right);
    assert_eq!(resolve(hashed, &[1, 2, 3]), Ok(vec![rows as u32; 3]));
    let most = rows as f64 * ((6.0 + 16.0) * 1.1 + 6.0 * 1.05);
    assert!((resident.arena_bytes() as f64) < most);
}
