//! Row formats and what a table is asked to be.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::TableError;

/// Most rows of a dense table: ids stay below 2^31, so that signed and unsigned clients agree.
pub const MAX_ROWS: u64 = (1 << 31) - 1;
/// Most tables of a generation. DLRM-v2 has 26, the largest published models have some hundreds; a
/// table costs a file and one open descriptor while it is read, and 4096 fit every usual limit of those.
pub const MAX_TABLES: usize = 4096;
/// Smallest and largest number of dimensions; all multiples of [`DIM_STEP`] between are allowed.
pub(crate) const DIMS: std::ops::RangeInclusive<usize> = 4..=2048;
/// Rows are made of groups of four dimensions, so that every row starts at a multiple of 4 bytes.
pub(crate) const DIM_STEP: usize = 4;
/// Longest name of a table in bytes, so that a name has its place in the header of a file.
pub(crate) const MAX_NAME_BYTES: usize = 128;

/// How the values of a row are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RowFormat {
    /// `dim` little-endian f32.
    F32,
    /// `dim` codes of one byte, then scale and bias as little-endian f32; value = fma(scale, code, bias).
    /// The layout of FBGEMM's fused 8-bit row-wise format.
    Int8,
}

impl RowFormat {
    /// Bytes of a row of `dim` dimensions; at most 8192.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            RowFormat::F32 => dim * 4,
            RowFormat::Int8 => dim + 8,
        }
    }

    /// The number that stands for the format in file headers.
    pub(crate) fn code(self) -> u32 {
        match self {
            RowFormat::F32 => 1,
            RowFormat::Int8 => 2,
        }
    }

    /// Decodes one row.
    ///
    /// # Panics
    /// If `row` is not `row_bytes(out.len())` long.
    pub fn decode(self, row: &[u8], out: &mut [f32]) {
        assert_eq!(row.len(), self.row_bytes(out.len()), "one whole row");
        match self {
            RowFormat::F32 => {
                for (value, bytes) in out.iter_mut().zip(row.chunks_exact(4)) {
                    *value = f32::from_le_bytes(bytes.try_into().expect("4 bytes"));
                }
            }
            RowFormat::Int8 => {
                let (codes, tail) = row.split_at(out.len());
                let scale = f32::from_le_bytes(tail[..4].try_into().expect("4 bytes"));
                let bias = f32::from_le_bytes(tail[4..].try_into().expect("4 bytes"));
                for (value, &code) in out.iter_mut().zip(codes) {
                    *value = scale.mul_add(f32::from(code), bias);
                }
            }
        }
    }

    /// Encodes one row of finite values.
    ///
    /// Int8 as FBGEMM: bias = the smallest value, scale = (largest - smallest) / 255, code = (value -
    /// bias) / scale rounded to nearest even; a row without a span has scale 0 and codes 0.
    ///
    /// # Panics
    /// If `out` is not `row_bytes(values.len())` long.
    pub fn encode(self, values: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.row_bytes(values.len()), "one whole row");
        match self {
            RowFormat::F32 => {
                for (bytes, value) in out.chunks_exact_mut(4).zip(values) {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
            }
            RowFormat::Int8 => {
                let least = values.iter().copied().fold(f32::INFINITY, f32::min);
                let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let span = most - least;
                // The span of two finite values can exceed what an f32 holds; 1/255 of it can't.
                let scale = if span.is_finite() {
                    span / 255.0
                } else {
                    most / 255.0 - least / 255.0
                };
                let (codes, tail) = out.split_at_mut(values.len());
                for (code, &value) in codes.iter_mut().zip(values) {
                    let steps = (f64::from(value) - f64::from(least)) / f64::from(scale);
                    let steps = if scale > 0.0 { steps } else { 0.0 };
                    *code = steps.round_ties_even().clamp(0.0, 255.0) as u8;
                }
                tail[..4].copy_from_slice(&scale.to_le_bytes());
                tail[4..].copy_from_slice(&least.to_le_bytes());
            }
        }
    }
}

impl fmt::Display for RowFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            RowFormat::F32 => "f32",
            RowFormat::Int8 => "int8",
        })
    }
}

impl FromStr for RowFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<RowFormat, String> {
        match text {
            "f32" => Ok(RowFormat::F32),
            "int8" => Ok(RowFormat::Int8),
            _ => Err(format!("a row format can be `f32` or `int8`, not `{text}`")),
        }
    }
}

/// What a table is to be: its name, its number of rows and dimensions, and its row format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Name, unique in its generation: 1 to 128 of `A-Z a-z 0-9 _ - .`, not starting with a dot.
    pub name: String,
    /// Rows, 1 to [`MAX_ROWS`]; ids are 0 to `rows - 1`.
    pub rows: u64,
    /// Dimensions, a multiple of 4 from 4 to 2048.
    pub dim: usize,
    /// How a row is stored.
    pub format: RowFormat,
}

impl TableSpec {
    /// Bytes of a row.
    pub fn stride(&self) -> usize {
        self.format.row_bytes(self.dim)
    }

    /// Bytes of all rows. For checked specs at most 2^44.
    pub fn row_region_bytes(&self) -> u64 {
        self.rows.saturating_mul(self.stride() as u64)
    }

    /// Checks every field against its limits.
    ///
    /// # Errors
    /// [`TableError::BadName`], [`TableError::BadRows`], [`TableError::BadDim`].
    pub fn check(&self) -> Result<(), TableError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        let length_ok = (1..=MAX_NAME_BYTES).contains(&self.name.len());
        if !length_ok || self.name.starts_with('.') || !self.name.bytes().all(allowed) {
            return Err(TableError::BadName {
                name: self.name.clone(),
            });
        }
        if !(1..=MAX_ROWS).contains(&self.rows) {
            return Err(TableError::BadRows {
                table: self.name.clone(),
                rows: self.rows,
            });
        }
        if !DIMS.contains(&self.dim) || !self.dim.is_multiple_of(DIM_STEP) {
            return Err(TableError::BadDim {
                table: self.name.clone(),
                dim: self.dim as u64,
            });
        }
        Ok(())
    }
}

impl FromStr for TableSpec {
    type Err = String;

    /// Reads `name:rows:dim:format`, as the command line has it.
    fn from_str(text: &str) -> Result<TableSpec, String> {
        let usage = || {
            format!("a table is name:rows:dim:format, as in users:1000000:64:int8, not `{text}`")
        };
        let fields: Vec<&str> = text.split(':').collect();
        let [name, rows, dim, format] = fields[..] else {
            return Err(usage());
        };
        let spec = TableSpec {
            name: name.to_owned(),
            rows: rows.parse().map_err(|_| usage())?,
            dim: dim.parse().map_err(|_| usage())?,
            format: format.parse()?,
        };
        spec.check().map_err(|error| error.to_string())?;
        Ok(spec)
    }
}

/// Checks all tables of a generation, and that their names differ.
///
/// # Errors
/// As [`TableSpec::check`], and [`TableError::NoTables`], [`TableError::TooManyTables`],
/// [`TableError::DuplicateName`].
pub fn check_specs(specs: &[TableSpec]) -> Result<(), TableError> {
    if specs.is_empty() {
        return Err(TableError::NoTables);
    }
    if specs.len() > MAX_TABLES {
        return Err(TableError::TooManyTables { found: specs.len() });
    }
    let mut names = HashSet::new();
    for spec in specs {
        spec.check()?;
        if !names.insert(spec.name.as_str()) {
            return Err(TableError::DuplicateName {
                name: spec.name.clone(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(format: RowFormat, values: &[f32]) -> Vec<f32> {
        let mut row = vec![0; format.row_bytes(values.len())];
        let mut back = vec![0.0; values.len()];
        format.encode(values, &mut row);
        format.decode(&row, &mut back);
        back
    }

    #[test]
    fn int8_rounds_to_nearest_even_and_keeps_the_ends() {
        // Scale 1, bias 0: the halves go to the even code.
        let values = [0.0, 0.5, 1.5, 2.5, 254.5, 255.0, 100.0, 3.5];
        assert_eq!(
            round_trip(RowFormat::Int8, &values),
            [0.0, 0.0, 2.0, 2.0, 254.0, 255.0, 100.0, 4.0]
        );
        assert_eq!(round_trip(RowFormat::Int8, &[-7.25; 4]), [-7.25; 4]);
        // A span so small that a 255th of it is no f32: bias alone.
        let tiny = round_trip(RowFormat::Int8, &[0.0, f32::from_bits(1), 0.0, 0.0]);
        assert_eq!(tiny, [0.0; 4]);
        let mut row = [1; 12];
        RowFormat::Int8.encode(&[0.0, f32::from_bits(1), 0.0, 0.0], &mut row);
        assert_eq!(row, [0; 12], "codes and scale are 0 too");
        let wide = round_trip(RowFormat::Int8, &[f32::MAX, f32::MIN, 0.0, 1.0]);
        assert!(wide.iter().all(|value| value.is_finite()), "{wide:?}");
    }

    #[test]
    fn bad_specs() {
        let good = TableSpec {
            name: "a".into(),
            rows: 1,
            dim: 4,
            format: RowFormat::F32,
        };
        assert!(good.check().is_ok());
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a b",
            ".hidden",
            &"x".repeat(129),
            "naïve",
        ] {
            let spec = TableSpec {
                name: name.into(),
                ..good.clone()
            };
            assert!(
                matches!(spec.check(), Err(TableError::BadName { .. })),
                "{name}"
            );
        }
        for rows in [0, MAX_ROWS + 1, u64::MAX] {
            assert!(matches!(
                TableSpec {
                    rows,
                    ..good.clone()
                }
                .check(),
                Err(TableError::BadRows { .. })
            ));
        }
        for dim in [0, 2, 5, 126, 2052, usize::MAX] {
            assert!(matches!(
                TableSpec {
                    dim,
                    ..good.clone()
                }
                .check(),
                Err(TableError::BadDim { .. })
            ));
        }
        assert!(matches!(check_specs(&[]), Err(TableError::NoTables)));
        assert!(matches!(
            check_specs(&[good.clone(), good]),
            Err(TableError::DuplicateName { .. })
        ));
    }

    #[test]
    fn specs_of_the_command_line() {
        let spec: TableSpec = "users:1000:64:int8".parse().unwrap();
        assert_eq!(
            (spec.rows, spec.dim, spec.format, spec.stride()),
            (1000, 64, RowFormat::Int8, 72)
        );
        for text in [
            "users",
            "users:1000:64",
            "users:x:64:f32",
            "users:1:64:f64",
            "users:1:63:f32",
            "a:1:4:f32:5",
        ] {
            assert!(text.parse::<TableSpec>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn int8_is_within_half_a_step(values in prop::collection::vec(-1e6f32..1e6, 4..64)) {
            let back = round_trip(RowFormat::Int8, &values);
            let span = values.iter().copied().fold(f32::MIN, f32::max) - values.iter().copied().fold(f32::MAX, f32::min);
            for (value, got) in values.iter().zip(back) {
                prop_assert!((value - got).abs() <= span / 255.0 * 0.51 + 1.0);
            }
        }

        #[test]
        fn f32_is_exact(values in prop::collection::vec(any::<f32>(), 4..64)) {
            let back = round_trip(RowFormat::F32, &values);
            for (value, got) in values.iter().zip(back) {
                prop_assert_eq!(value.to_bits(), got.to_bits());
            }
        }
    }
}
