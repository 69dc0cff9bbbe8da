//! Tables of made-up values that depend on nothing but seed, table, row and column.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use half::f16;

use crate::format::RowFormat;
use crate::mix::word;
use crate::spec::TableSpec;
use crate::writer::{RowSource, write_generation};
use crate::{Progress, TableError};

/// The counter of the word that a row's scale is made of, past those of all columns.
const SCALE_COUNTER: u64 = 1 << 32;
/// The counter of the word that a table's keys are made from, past those of all rows.
const KEYS_COUNTER: u64 = 1 << 33;
/// One step of a number of 24 bits that stands for -1 to 1.
const STEP: f32 = 1.0 / (1 << 23) as f32;

/// Makes generation `number` at `dir`, which must not exist, of made-up values.
///
/// Values are spread evenly over -1/sqrt(dim) to 1/sqrt(dim); `FORMAT.md` defines them bit by bit.
/// Uses all cores; memory use stays below 100 MiB whatever the size. Nothing that opens is left behind
/// if the work is interrupted.
///
/// # Errors
/// As [`check_specs`](crate::check_specs), and [`TableError::AlreadyExists`],
/// [`TableError::NotWritable`], [`TableError::TooLittleDisk`], [`TableError::Io`].
pub fn generate(
    dir: impl AsRef<Path>,
    number: u64,
    specs: &[TableSpec],
    seed: u64,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    generate_until(&AtomicBool::new(false), dir, number, specs, seed, progress)
}

/// Makes a generation as [`generate`] does, unless `stop` is set before it is done.
///
/// # Errors
/// [`TableError::Interrupted`] once `stop` is set: then nothing is left behind. All errors of
/// [`generate`].
pub fn generate_until(
    stop: &AtomicBool,
    dir: impl AsRef<Path>,
    number: u64,
    specs: &[TableSpec],
    seed: u64,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    write_generation(
        dir.as_ref(),
        number,
        specs,
        &Generated::new(specs, seed),
        seed,
        progress,
        stop,
    )
}

/// The key of a row of table number `table`, where that is hashed, of the generation made from `seed`.
pub fn generated_key(seed: u64, table: usize, row: u64) -> u64 {
    key(word(seed, table as u64), row)
}

/// The key of a row of the table whose values come from `table_key`. Rows have different keys, since
/// words of one sequence differ.
fn key(table_key: u64, row: u64) -> u64 {
    word(word(table_key, KEYS_COUNTER), row)
}

/// The made-up values of some tables.
pub(crate) struct Generated {
    tables: Vec<GeneratedTable>,
}

struct GeneratedTable {
    key: u64,
    rows: u64,
    dim: usize,
    format: RowFormat,
    /// 1/sqrt(dim), the largest magnitude of a value.
    bound: f32,
}

impl Generated {
    pub(crate) fn new(specs: &[TableSpec], seed: u64) -> Generated {
        let table = |(index, spec): (usize, &TableSpec)| GeneratedTable {
            key: word(seed, index as u64),
            rows: spec.rows,
            dim: spec.dim,
            format: spec.format,
            bound: 1.0 / (spec.dim as f32).sqrt(),
        };
        Generated {
            tables: specs.iter().enumerate().map(table).collect(),
        }
    }
}

impl RowSource for Generated {
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError> {
        let table = &self.tables[table];
        for (row, bytes) in (first..).zip(out.chunks_exact_mut(table.format.row_bytes(table.dim))) {
            table.row(word(table.key, row), bytes);
        }
        Ok(())
    }

    fn keys(&self, table: usize, first: u64, out: &mut [u64]) -> Result<(), TableError> {
        let table = &self.tables[table];
        for (row, out) in (first..).zip(out) {
            *out = key(table.key, row);
        }
        Ok(())
    }

    fn default_row(&self, table: usize, out: &mut [u8]) -> Result<(), TableError> {
        let table = &self.tables[table];
        table.row(word(table.key, table.rows), out);
        Ok(())
    }
}

impl GeneratedTable {
    fn row(&self, key: u64, out: &mut [u8]) {
        match self.format {
            RowFormat::F32 => self.f32_row(key, out),
            RowFormat::F16 | RowFormat::Bf16 => {
                let mut values = vec![0.0; self.dim];
                let mut bytes = vec![0; self.dim * 4];
                self.f32_row(key, &mut bytes);
                RowFormat::F32.decode(&bytes, &mut values);
                self.format.encode(&values, out);
            }
            RowFormat::Int8 => {
                let (codes, tail) = out.split_at_mut(self.dim);
                put_codes(key, codes);
                let scale = self.scale(key, 127.5);
                tail[..4].copy_from_slice(&scale.to_le_bytes());
                tail[4..].copy_from_slice(&(scale * -127.5).to_le_bytes());
            }
            RowFormat::Int8F16 | RowFormat::Int4 => {
                let (codes, tail) = out.split_at_mut(out.len() - 4);
                put_codes(key, codes);
                let half_span = if self.format == RowFormat::Int4 {
                    7.5
                } else {
                    127.5
                };
                let scale = f16::from_f32(self.scale(key, half_span));
                let bias = f16::from_f32(scale.to_f32() * -half_span);
                tail[..2].copy_from_slice(&scale.to_le_bytes());
                tail[2..].copy_from_slice(&bias.to_le_bytes());
            }
        }
    }

    fn f32_row(&self, key: u64, out: &mut [u8]) {
        let scale = self.bound * STEP;
        for (counter, pair) in (0..).zip(out.chunks_exact_mut(8)) {
            let random = word(key, counter);
            pair[..4].copy_from_slice(&(signed_24(random >> 40) * scale).to_le_bytes());
            pair[4..].copy_from_slice(&(signed_24(random >> 16) * scale).to_le_bytes());
        }
    }

    /// The scale of a row whose codes lie `half_span` to either side of zero: from half of the one that
    /// reaches the bound to all of it.
    fn scale(&self, key: u64, half_span: f32) -> f32 {
        let share = 0.75 + 0.25 * (signed_24(word(key, SCALE_COUNTER) >> 40) * STEP);
        self.bound / half_span * share
    }
}

/// Bytes of codes, of whatever width.
fn put_codes(key: u64, codes: &mut [u8]) {
    for (counter, group) in (0..).zip(codes.chunks_mut(8)) {
        group.copy_from_slice(&word(key, counter).to_le_bytes()[..group.len()]);
    }
}

/// The low 24 bits as a number from -2^23 to 2^23 - 1; exact.
fn signed_24(bits: u64) -> f32 {
    ((bits & 0xff_ffff) as i32 - (1 << 23)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::TableInfo;
    use crate::spec::TableKind;
    use crate::writer::TableRows;

    fn spec(dim: usize, format: RowFormat) -> TableSpec {
        TableSpec {
            name: "t".into(),
            rows: 100,
            dim,
            format,
            kind: TableKind::Dense,
        }
    }

    #[test]
    fn values_are_spread_within_the_bound() {
        for format in RowFormat::ALL {
            let spec = spec(64, format);
            let source = Generated::new(std::slice::from_ref(&spec), 1);
            let mut bytes = vec![0; spec.stride() * 100];
            source.rows(0, 0, &mut bytes).unwrap();
            let mut values = vec![0.0; 64];
            let (mut sum, mut squares) = (0.0f64, 0.0f64);
            for row in bytes.chunks_exact(spec.stride()) {
                format.decode(row, &mut values);
                assert!(
                    values.iter().all(|value| value.abs() <= 0.125 * 1.002),
                    "{values:?}"
                );
                sum += values.iter().map(|&value| f64::from(value)).sum::<f64>();
                squares += values
                    .iter()
                    .map(|&value| f64::from(value).powi(2))
                    .sum::<f64>();
            }
            assert!((sum / 6400.0).abs() < 0.005, "mean of {format}");
            assert!(
                (0.04..0.08).contains(&(squares / 6400.0).sqrt()),
                "spread of {format}"
            );
        }
    }

    #[test]
    fn rows_do_not_depend_on_how_they_are_asked_for() {
        for (dim, format) in [
            (4, RowFormat::F32),
            (12, RowFormat::Int8),
            (68, RowFormat::F32),
            (12, RowFormat::Int4),
            (20, RowFormat::Int8F16),
            (36, RowFormat::Bf16),
        ] {
            let spec = spec(dim, format);
            let source = Generated::new(&[spec.clone(), spec.clone()], 7);
            let info = TableInfo::new(&spec, String::new());
            let table = TableRows {
                source: &source,
                table: 1,
                info: &info,
            };
            let mut all = vec![0; spec.stride() * 10];
            source.rows(1, 0, &mut all).unwrap();
            for from in [0, 1, 5, spec.stride(), spec.stride() * 3 + 2] {
                for to in [from, from + 1, from + 3, spec.stride() * 9 + 1, all.len()] {
                    let mut part = vec![0; to.saturating_sub(from)];
                    table.fill(from as u64, &mut part, &mut Vec::new()).unwrap();
                    assert_eq!(part, all[from..from + part.len()], "{from}..{to}");
                }
            }
            let mut other = vec![0; all.len()];
            source.rows(0, 0, &mut other).unwrap();
            assert_ne!(all, other, "tables differ");
        }
    }
}
