use proptest::prelude::*;

use super::*;
use crate::curve::Point;

fn curve(points: &[(u64, f64)]) -> Curve {
    Curve::new(points.iter().map(|&(rows, hits)| Point { rows, hits }))
}

/// A table of 10,000 rows of 100 bytes each.
fn table(lookups: f64, present: u64, curve: Curve) -> Candidate {
    Candidate {
        lookups,
        row_bytes: 100,
        present,
        bounds: 10..=10_000,
        curve: Some(curve),
        samples: 1e6,
        spread: Spread::default(),
        keeps: false,
        waits: false,
    }
}

/// Of two tables that share 2,000 rows equally, the first would make more of them.
fn unequal() -> [Candidate; 2] {
    let steep = curve(&[(1000, 0.3), (2000, 0.6)]);
    let flat = curve(&[(500, 0.5), (2000, 0.52)]);
    [table(1e4, 1000, steep), table(1e4, 1000, flat)]
}

fn moved(verdict: Verdict) -> Vec<(usize, u64)> {
    match verdict {
        Verdict::Move(shift) => shift.rows,
        Verdict::Stay(why) => panic!("it stays: {why}"),
    }
}

fn why(verdict: Verdict) -> String {
    match verdict {
        Verdict::Stay(why) => why,
        Verdict::Move(shift) => panic!("{shift:?}"),
    }
}

#[test]
fn shares_move_in_steps_to_where_they_gain() {
    let mut tables = unequal();
    // A quarter of the share of who loses, which is less than a quarter of the arena.
    let verdict = decide(200_000, &tables, false);
    let Verdict::Move(shift) = &verdict else {
        panic!("{verdict:?}")
    };
    assert!((shift.gain - 1500.0).abs() < 1.0, "{shift:?}");
    assert!((shift.loss - 67.0).abs() < 1.0, "{shift:?}");
    assert_eq!(moved(verdict), [(0, 1250), (1, 750)]);
    (tables[0].present, tables[1].present) = (1250, 750);
    assert_eq!(
        moved(decide(200_000, &tables, false)),
        [(0, 1437), (1, 563)]
    );
    // Less to gain: a step of a twentieth of the arena, unless there is a hurry.
    tables[0].lookups = 1000.0;
    tables[1].curve = Some(curve(&[(450, 0.9), (2000, 0.901)]));
    assert_eq!(moved(decide(200_000, &tables, true)), [(0, 1550), (1, 450)]);
    tables[0].lookups = 500.0;
    assert_eq!(
        moved(decide(200_000, &tables, false)),
        [(0, 1350), (1, 650)]
    );
}

#[test]
fn what_gains_little_or_may_be_chance_stays() {
    let mut tables = unequal();
    tables[1].curve = Some(curve(&[(1000, 0.3), (2000, 0.6)]));
    tables[1].lookups = 0.95e4;
    assert!(why(decide(200_000, &tables, true)).contains("worth it"));
    tables[1].lookups = 0.8e4;
    moved(decide(200_000, &tables, true));
    tables[0].samples = 50.0;
    assert!(why(decide(200_000, &tables, true)).contains("chance"));
    let mut tables = unequal();
    // Hits that are too few for the rows that go.
    (tables[0].lookups, tables[1].lookups) = (10.0, 150.0);
    assert!(why(decide(200_000, &tables, true)).contains("make up for"));
    let mut tables = unequal();
    (tables[0].present, tables[1].present) = (1450, 550);
    assert!(why(decide(200_000, &tables, true)).contains("too little to copy"));
}

#[test]
fn what_is_not_known_or_not_used_yet_is_left_alone() {
    let mut tables = unequal();
    tables[1].curve = None;
    why(decide(200_000, &tables, true));
    let mut tables = unequal();
    tables[1].keeps = true;
    why(decide(200_000, &tables, true));
    let mut tables = unequal();
    tables[0].waits = true;
    why(decide(200_000, &tables, true));
    // What is free is given without anybody's giving way.
    tables[0].waits = false;
    tables[1].curve = None;
    assert_eq!(moved(decide(250_000, &tables, true)), [(0, 1500)]);
}

#[test]
fn a_table_without_lookups_gives_way_to_its_floor() {
    let mut tables = unequal();
    tables[1].lookups = 0.0;
    for _ in 0..30 {
        if let Verdict::Move(shift) = decide(200_000, &tables, false) {
            for (at, rows) in shift.rows {
                tables[at].present = rows;
            }
        }
    }
    // Down to what is not worth another copy.
    assert!(tables[1].present <= 11, "{tables:?}");
    assert!(tables[0].present >= 1980, "{tables:?}");
}

#[test]
fn what_an_operator_wants_is_done_whether_it_gains_or_not() {
    let mut tables = unequal();
    // The table that makes little of it is to have most, and the other one has no use for what it had.
    tables[1].bounds = 1800..=10_000;
    for _ in 0..30 {
        if let Verdict::Move(shift) = decide(200_000, &tables, false) {
            for (at, rows) in shift.rows {
                tables[at].present = rows;
            }
        }
    }
    assert_eq!([tables[0].present, tables[1].present], [200, 1800]);
    let mut tables = unequal();
    tables[0].bounds = 10..=400;
    tables[1].bounds = 10..=400;
    for _ in 0..30 {
        if let Verdict::Move(shift) = decide(200_000, &tables, false) {
            for (at, rows) in shift.rows {
                tables[at].present = rows;
            }
        }
    }
    assert_eq!([tables[0].present, tables[1].present], [400, 400]);
    tables[0].bounds = 1500..=10_000;
    tables[1].bounds = 1500..=10_000;
    assert!(why(decide(200_000, &tables, false)).contains("make it larger"));
}

proptest! {
    /// Whatever tables are like: none leaves its bounds, gives up more than a quarter, or moves against what holds it; and the arena has
    /// room for all.
    #[test]
    fn no_step_breaks_a_bound(
        tables in prop::collection::vec((
            prop::collection::vec((1_u64..2000, 0.0_f64..1.0), 0..5), 0.0_f64..1e5, 1_u64..300, 10_u64..3000, 0_u8..8,
        ), 1..6),
        free in 0_u64..100_000,
        hurry in any::<bool>(),
    ) {
        let tables: Vec<Candidate> = tables.iter().map(|(steps, lookups, row_bytes, present, flags)| {
            let mut rows = 0;
            let points = steps.iter().map(|&(step, hits)| { rows += step; Point { rows, hits } });
            let curve = Curve::new(points.collect::<Vec<_>>());
            Candidate {
                lookups: *lookups, row_bytes: *row_bytes, present: *present, bounds: 10..=4000,
                curve: (flags & 1 == 0).then_some(curve), samples: 1e5, spread: Spread::default(), keeps: flags & 2 != 0, waits: flags & 4 != 0,
            }
        }).collect();
        let held: u64 = tables.iter().map(|table| table.present * table.row_bytes).sum();
        let arena = held + free;
        if let Verdict::Move(shift) = decide(arena, &tables, hurry) {
            let mut after = held as i64;
            for &(at, rows) in &shift.rows {
                let table = &tables[at];
                prop_assert!(table.bounds.contains(&rows));
                let lost = -table.gain(rows).0;
                let part = if hurry { 0.5 } else { 0.75 };
                let little = lost <= shift.gain / 100.0;
                prop_assert!(little || rows as f64 >= table.present as f64 * part - 1.0);
                prop_assert!(table.curve.is_some());
                let held = if rows > table.present { table.waits } else { table.keeps };
                prop_assert!(!held);
                after += (rows as i64 - table.present as i64) * table.row_bytes as i64;
            }
            prop_assert!(after <= arena as i64, "{after} of {arena}");
        }
    }
}
