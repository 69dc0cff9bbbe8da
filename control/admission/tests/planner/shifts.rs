//! How good the divisions are.

use crate::simulated::{Simulated, Traffic, World};

const fn zipf(lookups: u32, rows: u32, places: u64) -> Traffic {
    Traffic {
        lookups,
        rows,
        even: false,
        places,
    }
}

const fn even(lookups: u32, rows: u32) -> Traffic {
    Traffic {
        lookups,
        rows,
        even: true,
        places: 0,
    }
}

/// Tables that would make different things of 12,000 rows together.
fn tables() -> [(&'static str, u64, Traffic); 4] {
    [
        ("wide", 150_000, zipf(50_000, 150_000, 0)),
        ("narrow", 1_500, zipf(20_000, 1_500, 0)),
        ("even", 450_000, even(20_000, 450_000)),
        ("quiet", 150_000, zipf(10_000, 150_000, 0)),
    ]
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

#[test]
fn the_division_is_better_than_equal_shares() {
    let mut world = World::new(vec![Simulated::new("a", 3, 12_000, &tables())]);
    let mut equal = Simulated::new("a", 3, 12_000, &tables());
    let divided = mean(&world.run(40)[30..]);
    let (mut lookups, mut hits) = (0, 0);
    for step in 0..800 {
        let (more, found) = equal.step();
        _ = equal.samples();
        if step >= 600 {
            (lookups, hits) = (lookups + more, hits + found);
        }
    }
    let equal = hits as f64 / lookups as f64;
    assert!(
        divided > equal + 0.02,
        "{divided:.4}, equal shares {equal:.4}"
    );
    // What makes nothing of it has its floor, and what has few rows as many.
    let rows = |table| world.dataplanes[0].rows(table);
    assert!(rows("even") < 1_000, "{}", rows("even"));
    assert!(
        (1_000..2_500).contains(&rows("narrow")),
        "{}",
        rows("narrow")
    );
    assert!(rows("wide") > 6_000, "{}", rows("wide"));
    // It rests: nothing more is to be gained, or too little for what the sample can tell.
    let state = world.state("a");
    let rests = state.contains("no other division") || state.contains("may be chance");
    assert!(rests, "{state}");
    let order = |world: &World| world.planner.policy("a").unwrap().order;
    let before = order(&world);
    world.run(5);
    assert_eq!(order(&world), before, "{}", world.state("a"));
}

#[test]
fn ninety_of_a_hundred_hits_are_back_within_ten_seconds() {
    let parts: Vec<f64> = (3..6).map(regained).collect();
    assert!(parts.iter().all(|&part| part >= 0.9), "{parts:.3?}");
}

/// What part of the hits that a shift cost in the end are had again in the tenth second after it.
fn regained(seed: u128) -> f64 {
    let mut world = World::new(vec![Simulated::new("a", seed, 12_000, &tables())]);
    let before = mean(&world.run(40)[35..]);
    // Other rows are popular, and the traffic goes to other tables.
    let dataplane = &mut world.dataplanes[0];
    dataplane.ask("wide", zipf(10_000, 150_000, 400_000));
    dataplane.ask("quiet", zipf(50_000, 150_000, 500_000));
    dataplane.ask("narrow", zipf(20_000, 1_500, 600_000));
    let after = world.run(50);
    let (least, settled) = (after[0].min(after[1]), mean(&after[40..]));
    assert!(before - least > 0.1, "hits fall: {before:.3}, {after:.3?}");
    let seen = world.planner.table(world.now_ns, "m", "wide").unwrap();
    assert!((49..=50).contains(&seen.shifted_s_ago.unwrap()), "{seen:?}");
    (after[9] - least) / (settled - least)
}

#[test]
fn a_table_that_nobody_asks_keeps_next_to_nothing_after_ten_seconds() {
    let mut world = World::new(vec![Simulated::new("a", 3, 12_000, &tables())]);
    world.run(30);
    let before = world.dataplanes[0].rows("quiet");
    assert!(before > 1_000, "{before}");
    world.dataplanes[0].ask("quiet", zipf(0, 150_000, 0));
    world.run(10);
    let after = world.dataplanes[0].rows("quiet");
    // The last few rows would gain the others too little for a move.
    assert!(after <= 600, "{after} rows");
}

#[test]
fn a_table_that_is_asked_in_the_place_of_another_has_its_share_after_ten_seconds() {
    let [all, nothing] = [50_000, 0].map(|lookups| zipf(lookups, 150_000, 0));
    let tables = [("before", 150_000, all), ("after", 150_000, nothing)];
    let mut world = World::new(vec![Simulated::new("a", 3, 12_000, &tables)]);
    world.run(30);
    let rows = |world: &World| ["before", "after"].map(|table| world.dataplanes[0].rows(table));
    let [before, after] = rows(&world);
    assert!(before > 11_000 && after < 600, "{before} and {after}");
    world.dataplanes[0].ask("before", nothing);
    world.dataplanes[0].ask("after", all);
    let hits = world.run(40);
    let (least, settled) = (hits[0].min(hits[1]), mean(&hits[30..]));
    let part = (hits[9] - least) / (settled - least);
    let [before, after] = rows(&world);
    // The last few rows would gain the other one too little for a move.
    assert!(after > 11_000 && before < 1_000, "{before} and {after}");
    // Of the hits that it has in the end: what the other one has left goes more slowly.
    assert!(part >= 0.8, "{part:.3}: {hits:.3?}");
}

#[test]
fn a_table_that_is_asked_in_bursts_keeps_a_share() {
    let [burst, nothing, steady] = [100_000, 0, 30_000].map(|lookups| zipf(lookups, 150_000, 0));
    let tables = [("bursts", 150_000, burst), ("steady", 150_000, steady)];
    let mut world = World::new(vec![Simulated::new("a", 3, 12_000, &tables)]);
    for second in 0..60 {
        let traffic = if second % 5 == 0 { burst } else { nothing };
        world.dataplanes[0].ask("bursts", traffic);
        world.run(1);
        let rows = world.dataplanes[0].rows("bursts");
        // At first it is not known that it will be asked again.
        assert!(second < 20 || rows > 1_000, "{rows} after {second} s");
    }
}
