//! Published model shapes, at any scale.

use crate::blocks::file_bytes;
use crate::format::RowFormat;
use crate::spec::{MAX_ROWS, TableKind, TableSpec};

/// Tables are not scaled below this many rows (or below what they have), so that small tables keep
/// their nature: hot, and in the caches.
const LEAST_ROWS: u64 = 1000;
/// Halvings of the interval when a factor is searched; each gives one more bit of it.
const SEARCH_STEPS: usize = 60;

/// Rows of the 26 tables in MLPerf's DLRM-v2 (the multi-hot Criteo 1 TB data set, capped at 40 M rows).
const DLRM_V2_ROWS: [u64; 26] = [
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956, 405_282,
    10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108,
    36,
];
/// Ids a sample looks up in each of them.
const DLRM_V2_MULTI_HOT: [u32; 26] = [
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
];

/// A table of a published model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeTable {
    /// The table at full size.
    pub spec: TableSpec,
    /// Ids a sample looks up in it.
    pub multi_hot: u32,
}

/// The tables of a published model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The name that commands know it by.
    pub name: &'static str,
    /// Its tables at full size.
    pub tables: Vec<ShapeTable>,
}

impl Shape {
    /// MLPerf's DLRM-v2: 26 tables of 128 dimensions in f32, about 204 M rows and 97 GiB.
    pub fn dlrm_v2() -> Shape {
        let table = |(index, (&rows, &multi_hot)): (usize, (&u64, &u32))| ShapeTable {
            spec: TableSpec {
                name: format!("cat_{index}"),
                rows,
                dim: 128,
                format: RowFormat::F32,
                kind: TableKind::Dense,
            },
            multi_hot,
        };
        let tables = DLRM_V2_ROWS
            .iter()
            .zip(&DLRM_V2_MULTI_HOT)
            .enumerate()
            .map(table)
            .collect();
        Shape {
            name: "dlrm-v2",
            tables,
        }
    }

    /// The shape of that name.
    pub fn named(name: &str) -> Option<Shape> {
        [Shape::dlrm_v2()]
            .into_iter()
            .find(|shape| shape.name == name)
    }

    /// The same shape with all rows in `format`.
    pub fn with_format(mut self, format: RowFormat) -> Shape {
        for table in &mut self.tables {
            table.spec.format = format;
        }
        self
    }

    /// Ids a sample looks up in each table.
    pub fn multi_hot(&self) -> Vec<u32> {
        self.tables.iter().map(|table| table.multi_hot).collect()
    }

    /// The tables with their rows times `factor`, rounded to nearest. Only rows scale; a table keeps at
    /// least 1000 rows or what it has, and at most 2^31 - 1. A factor that is no number counts as 0.
    pub fn scaled(&self, factor: f64) -> Vec<TableSpec> {
        let scale = |table: &ShapeTable| {
            let rows = table.spec.rows;
            // A float that is too large, or no number, becomes the nearest end of the range.
            let scaled = (rows as f64 * factor).round() as u64;
            TableSpec {
                rows: scaled.clamp(rows.min(LEAST_ROWS), MAX_ROWS),
                ..table.spec.clone()
            }
        };
        self.tables.iter().map(scale).collect()
    }

    /// The largest factor up to 1 with which all table files together have at most `bytes`, and the
    /// tables; `None` where not even the least number of rows fits.
    pub fn fitting(&self, bytes: u64) -> Option<(f64, Vec<TableSpec>)> {
        let fits = |factor: f64| {
            let specs = self.scaled(factor);
            specs
                .iter()
                .map(|spec| file_bytes(spec.row_region_bytes()))
                .sum::<u64>()
                <= bytes
        };
        if fits(1.0) {
            return Some((1.0, self.scaled(1.0)));
        }
        if !fits(0.0) {
            return None;
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..SEARCH_STEPS {
            let middle = (low + high) / 2.0;
            if fits(middle) {
                low = middle
            } else {
                high = middle
            }
        }
        Some((low, self.scaled(low)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(specs: &[TableSpec]) -> u64 {
        specs
            .iter()
            .map(|spec| file_bytes(spec.row_region_bytes()))
            .sum()
    }

    #[test]
    fn full_size() {
        let shape = Shape::dlrm_v2();
        let rows: u64 = shape.tables.iter().map(|table| table.spec.rows).sum();
        assert_eq!(rows, 204_184_588);
        assert_eq!(shape.multi_hot().iter().sum::<u32>(), 214);
        assert_eq!(
            shape.scaled(1.0),
            shape
                .tables
                .iter()
                .map(|table| table.spec.clone())
                .collect::<Vec<_>>()
        );
        assert_eq!(Shape::named("dlrm-v2"), Some(shape));
        assert_eq!(Shape::named("rm9"), None);
    }

    #[test]
    fn scaled_rows() {
        let specs = Shape::dlrm_v2().scaled(0.01);
        assert_eq!(
            (specs[0].rows, specs[5].rows, specs[6].rows, specs[10].rows),
            (400_000, 3, 1000, 30_680)
        );
        for odd in [0.0, -1.0, f64::NAN] {
            assert_eq!(Shape::dlrm_v2().scaled(odd)[0].rows, 1000);
        }
        assert_eq!(Shape::dlrm_v2().scaled(1e30)[5].rows, MAX_ROWS);
    }

    #[test]
    fn fitting_uses_the_room() {
        for format in [RowFormat::F32, RowFormat::Int8] {
            let shape = Shape::dlrm_v2().with_format(format);
            for bytes in [20 << 20, 1 << 30, 4 << 30, 60 << 30] {
                let Some((factor, specs)) = shape.fitting(bytes) else {
                    panic!("{bytes}")
                };
                assert!(factor <= 1.0 && total(&specs) <= bytes);
                assert!(
                    factor == 1.0 || total(&specs) > bytes - (1 << 20),
                    "{factor} {} of {bytes}",
                    total(&specs)
                );
            }
            assert_eq!(shape.fitting(1 << 40).unwrap().0, 1.0);
            assert_eq!(shape.fitting(1000), None);
        }
    }
}
