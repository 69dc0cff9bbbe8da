//! Lists of rows that were hot: each is loaded, whatever is loaded when it comes, and whatever becomes of other tables.

mod common;

use std::sync::Arc;

use common::shelf::{FETCH, Fate, SLOTS, engines_and_shares};
use common::{HeapMemory, LIMITS, Model, memory_for};
use rowmill_cache::{OnFailure, Shares, WarmRows};
use rowmill_engine::{Engine, Home, Turn};

/// Rows of each table that are listed: fewer than there are slots.
const LISTED: u32 = 20;

fn list(table: usize) -> WarmRows {
    WarmRows {
        table,
        rows: (0..LISTED).collect(),
    }
}

fn engine(model: &Model) -> (Engine, Shares) {
    let all = OnFailure::Error;
    let comes = |_| Fate::Comes;
    let (mut engines, shares) = engines_and_shares(model, LIMITS, FETCH, 1, comes, all, (1, SLOTS));
    (engines.remove(0), shares)
}

fn turns(engine: &mut Engine, memory: &mut HeapMemory, count: usize) {
    (0..count).for_each(|_| _ = engine.turn(0, memory));
}

fn until_loaded(engine: &mut Engine, memory: &mut HeapMemory) {
    for _ in 0..10_000 {
        if engine.turn(0, memory) == Turn::Idle {
            return;
        }
    }
    panic!("rows are still loaded: {engine:?}");
}

fn held(engine: &Engine, table: usize) -> Vec<u32> {
    let store = engine.cache().store(table).expect("a cached table");
    let mut held = store.hot(1000);
    held.sort_unstable();
    held
}

#[test]
fn a_list_that_comes_while_another_is_loaded_is_loaded_too() {
    let model = Model::mixed();
    let (mut engine, _) = engine(&model);
    let mut memory = memory_for(&model, 1, vec![]);
    let lists: [Arc<[WarmRows]>; 2] = [0, 1].map(|table| [list(table)].into());
    for list in &lists {
        engine.warm(list);
        turns(&mut engine, &mut memory, 3);
    }
    assert!(held(&engine, 0).len() < 10, "the first is under way");
    assert!(lists.iter().all(|list| Arc::strong_count(list) == 2));
    until_loaded(&mut engine, &mut memory);
    for (table, list) in lists.iter().enumerate() {
        assert_eq!(held(&engine, table), list[0].rows, "table {table}");
        assert_eq!(Arc::strong_count(list), 1, "it is let go of");
    }
}

#[test]
fn a_table_that_is_away_while_a_list_is_loaded_has_its_own_after() {
    let model = Model::mixed();
    let (mut engine, shares) = engine(&model);
    let mut memory = memory_for(&model, 1, vec![]);
    let first: Arc<[WarmRows]> = [list(0), list(1), list(2)].into();
    engine.warm(&first);
    turns(&mut engine, &mut memory, 3);
    let mut home = Home {
        resident: Some(Box::new(model.tables.tables()[1].clone())),
        cached: None,
    };
    engine.place(1, &mut home);
    turns(&mut engine, &mut memory, 3);
    home.cached = shares.table(1).expect("memory").pop();
    engine.place(1, &mut home);
    let own: Arc<[WarmRows]> = [list(1)].into();
    engine.warm(&own);
    assert!(engine.cache().is_warming() && Arc::strong_count(&first) > 1);
    until_loaded(&mut engine, &mut memory);
    for table in 0..3 {
        assert_eq!(held(&engine, table), own[0].rows, "table {table}");
    }
    assert_eq!([&first, &own].map(Arc::strong_count), [1; 2]);
}
