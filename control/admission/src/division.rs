//! The arena among tables.

use crate::curve::{Curve, slope};

/// What a table would make of a part of the arena.
#[derive(Clone, Debug)]
pub struct Demand<'a> {
    /// Lookups of it a second; where tables' misses don't cost the same, times what one costs.
    pub lookups: f64,
    /// Bytes of the arena that a row takes.
    pub row_bytes: u64,
    /// Rows that it gets in any case, and that it gets at most.
    pub rows: core::ops::RangeInclusive<u64>,
    /// Its hits by size.
    pub curve: &'a Curve,
}

/// The arena is smaller than what tables get in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the arena has {arena} bytes, and what its tables get in any case takes {least}: make it larger, or those smaller"
)]
pub struct TooSmall {
    /// Bytes of the arena.
    pub arena: u64,
    /// Bytes that tables get in any case.
    pub least: u64,
}

/// Some rows that a table may have beside those it has, all of which gain as much.
struct Segment {
    /// Hits a second that a byte gains.
    gain: f64,
    table: usize,
    rows: u64,
}

/// How many rows each table gets of an arena of so many bytes: those that gain the most hits, where each table's curve is taken for its
/// [hull](Curve::hull). What gains nothing is given to nobody.
///
/// # Errors
/// [`TooSmall`].
pub fn divide(arena: u64, demands: &[Demand]) -> Result<Vec<u64>, TooSmall> {
    let mut shares: Vec<u64> = demands.iter().map(|demand| *demand.rows.start()).collect();
    let bytes = shares
        .iter()
        .zip(demands)
        .map(|(rows, of)| rows.saturating_mul(of.row_bytes));
    let least = bytes.fold(0, u64::saturating_add);
    let mut left = arena.checked_sub(least).ok_or(TooSmall { arena, least })?;
    let mut segments: Vec<Segment> = demands.iter().enumerate().flat_map(segments).collect();
    // Those of one table are in order: of a hull the slopes fall. Of equals, the first table's come first.
    segments.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    for Segment { table, rows, .. } in segments {
        let row_bytes = demands[table].row_bytes;
        let given = rows.min(left / row_bytes);
        shares[table] += given;
        left -= given * row_bytes;
    }
    Ok(shares)
}

/// The parts of a table's hull between what it gets in any case and what it gets at most, that gain something.
fn segments((table, demand): (usize, &Demand)) -> Vec<Segment> {
    let hull = demand.curve.hull();
    let (least, most) = (*demand.rows.start(), *demand.rows.end());
    let pairs = hull.points().windows(2);
    let clipped = pairs.map(|pair| {
        let [from, to] =
            [pair[0].rows, pair[1].rows].map(|rows| rows.clamp(least, most.max(least)));
        let gain = slope(pair[0], pair[1]) * demand.lookups / demand.row_bytes as f64;
        Segment {
            gain,
            table,
            rows: to - from,
        }
    });
    clipped.filter(|s| s.rows > 0 && s.gain > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Point;

    fn curve(points: &[(u64, f64)]) -> Curve {
        Curve::new(points.iter().map(|&(rows, hits)| Point { rows, hits }))
    }

    fn demand(lookups: f64, row_bytes: u64, curve: &Curve) -> Demand<'_> {
        let rows = 0..=u64::MAX;
        Demand {
            lookups,
            row_bytes,
            rows,
            curve,
        }
    }

    #[test]
    fn bytes_go_where_they_gain_most() {
        let [steep, flat] = [curve(&[(100, 0.8), (200, 0.9)]), curve(&[(1000, 0.5)])];
        let demands = [demand(1.0, 10, &steep), demand(1.0, 10, &flat)];
        assert_eq!(divide(900, &demands).unwrap(), [90, 0]);
        // Hits a row: 0.008, then 0.001 and 0.0005.
        assert_eq!(divide(3000, &demands).unwrap(), [200, 100]);
        // Ten times the traffic, and rows of half the size.
        let demands = [demand(1.0, 10, &steep), demand(10.0, 5, &flat)];
        assert_eq!(divide(3000, &demands).unwrap(), [0, 600]);
        // What gains nothing stays free.
        assert_eq!(divide(1 << 40, &demands).unwrap(), [200, 1000]);
        assert_eq!(divide(10, &[]).unwrap(), [0; 0]);
    }

    #[test]
    fn each_gets_its_least_and_no_more_than_its_most() {
        let [steep, flat] = [curve(&[(100, 0.8), (200, 0.9)]), curve(&[(1000, 0.5)])];
        let mut demands = [demand(1.0, 10, &steep), demand(1.0, 10, &flat)];
        demands[0].rows = 0..=50;
        demands[1].rows = 20..=2000;
        assert_eq!(divide(1000, &demands).unwrap(), [50, 50]);
        assert_eq!(divide(200, &demands).unwrap(), [0, 20]);
        let error = divide(199, &demands).unwrap_err();
        assert_eq!((error.arena, error.least), (199, 200));
        // More than it would be worth is a least, too.
        demands[0].rows = 300..=300;
        assert_eq!(divide(3500, &demands).unwrap(), [300, 50]);
    }

    proptest! {
        /// Against all divisions in units of a row: no other one has more hits.
        #[test]
        fn no_other_division_is_better(
            tables in prop::collection::vec((prop::collection::vec((1_u64..6, 0.0_f64..1.0), 1..4), 0.1_f64..10.0, 0_u64..3), 1..4),
            arena in 0_u64..24,
        ) {
            let curves: Vec<Curve> = tables.iter().map(|(steps, ..)| {
                let mut rows = 0;
                let point = |&(step, hits): &(u64, f64)| { rows += step; Point { rows, hits } };
                Curve::new(steps.iter().map(point).collect::<Vec<_>>()).hull()
            }).collect();
            let demands: Vec<Demand> = tables.iter().zip(&curves).map(|((_, lookups, least), curve)| Demand {
                lookups: *lookups, row_bytes: 1, rows: *least..=20, curve,
            }).collect();
            let hits = |shares: &[u64]| -> f64 {
                shares.iter().zip(&demands).map(|(&rows, of)| of.lookups * of.curve.at(rows)).sum()
            };
            let mut best: Option<f64> = None;
            let mut shares = vec![0; demands.len()];
            'all: loop {
                let is_one = shares.iter().zip(&demands).all(|(rows, of)| of.rows.contains(rows));
                if is_one && shares.iter().sum::<u64>() <= arena {
                    best = Some(best.unwrap_or(0.0).max(hits(&shares)));
                }
                for rows in &mut shares {
                    *rows += 1;
                    if *rows <= 20 { continue 'all; }
                    *rows = 0;
                }
                break;
            }
            match (divide(arena, &demands), best) {
                (Ok(shares), Some(best)) => {
                    prop_assert!(shares.iter().sum::<u64>() <= arena);
                    prop_assert!((hits(&shares) - best).abs() < 1e-9, "{shares:?}: {} of {best}", hits(&shares));
                }
                (Err(_), None) => {}
                (found, best) => prop_assert!(false, "{found:?} where the best is {best:?}"),
            }
        }
    }
}
