//! Tables of made-up values that depend on nothing but seed, table, row and column.

use std::path::Path;

use crate::draft::{RowSource, write_generation};
use crate::format::{RowFormat, TableSpec};
use crate::{Progress, TableError};

/// The odd number nearest to 2^64 divided by the golden ratio, as SplitMix64 counts.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
/// The counter of the word that a row's int8 scale is made of, past those of all columns.
const SCALE_COUNTER: u64 = 1 << 32;
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
    write_generation(
        dir.as_ref(),
        number,
        specs,
        &Generated::new(specs, seed),
        progress,
    )
}

/// The made-up values of some tables.
pub(crate) struct Generated {
    tables: Vec<GeneratedTable>,
}

struct GeneratedTable {
    key: u64,
    dim: usize,
    format: RowFormat,
    /// 1/sqrt(dim), the largest magnitude of a value.
    bound: f32,
}

impl Generated {
    pub(crate) fn new(specs: &[TableSpec], seed: u64) -> Generated {
        let table = |(index, spec): (usize, &TableSpec)| GeneratedTable {
            key: word(seed, index as u64),
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
}

impl GeneratedTable {
    fn row(&self, key: u64, out: &mut [u8]) {
        match self.format {
            RowFormat::F32 => {
                let scale = self.bound * STEP;
                for (counter, pair) in (0..).zip(out.chunks_exact_mut(8)) {
                    let random = word(key, counter);
                    pair[..4].copy_from_slice(&(signed_24(random >> 40) * scale).to_le_bytes());
                    pair[4..].copy_from_slice(&(signed_24(random >> 16) * scale).to_le_bytes());
                }
            }
            RowFormat::Int8 => {
                let (codes, tail) = out.split_at_mut(self.dim);
                for (counter, group) in (0..).zip(codes.chunks_mut(8)) {
                    group.copy_from_slice(&word(key, counter).to_le_bytes()[..group.len()]);
                }
                // From half the scale that reaches the bound to all of it.
                let share = 0.75 + 0.25 * (signed_24(word(key, SCALE_COUNTER) >> 40) * STEP);
                let scale = self.bound / 127.5 * share;
                tail[..4].copy_from_slice(&scale.to_le_bytes());
                tail[4..].copy_from_slice(&(scale * -127.5).to_le_bytes());
            }
        }
    }
}

/// The low 24 bits as a number from -2^23 to 2^23 - 1; exact.
fn signed_24(bits: u64) -> f32 {
    ((bits & 0xff_ffff) as i32 - (1 << 23)) as f32
}

/// Word number `counter` of the sequence that `key` names: SplitMix64's output function.
fn word(key: u64, counter: u64) -> u64 {
    let mut bits = key.wrapping_add(counter.wrapping_add(1).wrapping_mul(GOLDEN));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(dim: usize, format: RowFormat) -> TableSpec {
        TableSpec {
            name: "t".into(),
            rows: 100,
            dim,
            format,
        }
    }

    #[test]
    fn words_are_splitmix64() {
        // The published first outputs for seed 1234567.
        assert_eq!(word(1_234_567, 0), 6_457_827_717_110_365_317);
        assert_eq!(word(1_234_567, 1), 3_203_168_211_198_807_973);
    }

    #[test]
    fn values_are_spread_within_the_bound() {
        for format in [RowFormat::F32, RowFormat::Int8] {
            let spec = spec(64, format);
            let source = Generated::new(std::slice::from_ref(&spec), 1);
            let mut bytes = vec![0; spec.stride() * 100];
            source.rows(0, 0, &mut bytes).unwrap();
            let mut values = vec![0.0; 64];
            let (mut sum, mut squares) = (0.0f64, 0.0f64);
            for row in bytes.chunks_exact(spec.stride()) {
                format.decode(row, &mut values);
                assert!(
                    values.iter().all(|value| value.abs() <= 0.125 * 1.0001),
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
        ] {
            let spec = spec(dim, format);
            let source = Generated::new(&[spec.clone(), spec.clone()], 7);
            let mut all = vec![0; spec.stride() * 10];
            source.rows(1, 0, &mut all).unwrap();
            for from in [0, 1, 5, spec.stride(), spec.stride() * 3 + 2] {
                for to in [from, from + 1, from + 3, spec.stride() * 9 + 1, all.len()] {
                    let mut part = vec![0; to.saturating_sub(from)];
                    crate::draft::fill(
                        &source,
                        1,
                        spec.stride(),
                        from as u64,
                        &mut part,
                        &mut Vec::new(),
                    )
                    .unwrap();
                    assert_eq!(part, all[from..from + part.len()], "{from}..{to}");
                }
            }
            let mut other = vec![0; all.len()];
            source.rows(0, 0, &mut other).unwrap();
            assert_ne!(all, other, "tables differ");
        }
    }
}
