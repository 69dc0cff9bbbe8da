//! Hits by size.

/// A size and its hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Rows that are cached.
    pub rows: u64,
    /// The part of the lookups that hits, from 0 to 1.
    pub hits: f64,
}

/// The part of a table's lookups that hits, by how many rows of it are cached. Between two points it is straight, and beyond the last as
/// high as there.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Rising in rows, not falling in hits; the first is that of no rows.
    points: Vec<Point>,
}

impl Curve {
    /// A curve through these points and that of no rows, which has no hits. A point with fewer hits than a smaller one has as many as that:
    /// what was estimated need not rise, and a cache that is larger is not worse.
    ///
    /// # Panics
    /// If sizes don't rise, or hits are no part of all.
    pub fn new(points: impl IntoIterator<Item = Point>) -> Curve {
        let mut own = vec![Point { rows: 0, hits: 0.0 }];
        for Point { rows, hits } in points {
            let last = own[own.len() - 1];
            assert!(rows > last.rows, "{rows} rows behind {}", last.rows);
            assert!((0.0..=1.0).contains(&hits), "hits of {hits}");
            let hits = hits.max(last.hits);
            own.push(Point { rows, hits });
        }
        Curve { points: own }
    }

    /// The points, that of no rows first.
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// The part that hits with so many rows.
    pub fn at(&self, rows: u64) -> f64 {
        let after = self.points.partition_point(|point| point.rows <= rows);
        let before = self.points[after - 1];
        let Some(after) = self.points.get(after) else {
            return before.hits;
        };
        let part = (rows - before.rows) as f64 / (after.rows - before.rows) as f64;
        before.hits + part * (after.hits - before.hits)
    }

    /// The lowest curve that is nowhere below this one and whose slope never rises: what is gained a row falls along it, so that giving
    /// the next rows to the steepest curve is best.
    #[must_use]
    pub fn hull(&self) -> Curve {
        let mut hull: Vec<Point> = Vec::with_capacity(self.points.len());
        for &point in &self.points {
            while let [.., before, last] = hull[..]
                && slope(before, last) <= slope(last, point)
            {
                hull.pop();
            }
            hull.push(point);
        }
        Curve { points: hull }
    }
}

/// Hits gained a row.
pub(crate) fn slope(from: Point, to: Point) -> f64 {
    (to.hits - from.hits) / (to.rows - from.rows) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn curve(points: &[(u64, f64)]) -> Curve {
        Curve::new(points.iter().map(|&(rows, hits)| Point { rows, hits }))
    }

    #[test]
    fn between_points_it_is_straight() {
        let curve = curve(&[(10, 0.5), (30, 0.4), (50, 0.9)]);
        let expected = [
            (0, 0.0),
            (5, 0.25),
            (10, 0.5),
            (30, 0.5),
            (40, 0.7),
            (50, 0.9),
            (99, 0.9),
        ];
        for (rows, hits) in expected {
            assert!((curve.at(rows) - hits).abs() < 1e-12, "{rows} rows");
        }
    }

    #[test]
    fn the_hull_bridges_what_is_hollow() {
        let hollow = curve(&[(10, 0.1), (20, 0.2), (30, 0.9), (40, 1.0)]);
        assert_eq!(hollow.hull(), curve(&[(30, 0.9), (40, 1.0)]));
        let full = curve(&[(10, 0.5), (20, 0.7), (40, 0.8)]);
        assert_eq!(full.hull(), full);
        assert_eq!(curve(&[]).hull(), curve(&[]));
    }

    proptest! {
        #[test]
        fn hulls_are_above_and_bend_down(steps in prop::collection::vec((1_u64..100, 0.0_f64..1.0), 0..30)) {
            let mut rows = 0;
            let points = steps.iter().map(|&(step, hits)| {
                rows += step;
                Point { rows, hits }
            });
            let curve = Curve::new(points.collect::<Vec<_>>());
            let hull = curve.hull();
            for rows in 0..=rows {
                prop_assert!(hull.at(rows) >= curve.at(rows) - 1e-12);
            }
            for points in hull.points().windows(3) {
                prop_assert!(slope(points[0], points[1]) > slope(points[1], points[2]));
            }
            prop_assert!(hull.points().iter().all(|point| curve.points().contains(point)));
        }
    }
}
