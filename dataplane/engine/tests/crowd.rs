//! Cached tables where there is little room: for bags that wait for rows, and for results on their way.

mod common;

use common::shelf::{FETCH, Fate, engine_with};
use common::{
    Batch, HeapMemory, INLINE, LIMITS, Model, Remote, attach, frame, lookup, memory_for, statuses,
};
use rowmill_cache::fetch;
use rowmill_cache::tier::Wanted;
use rowmill_engine::{Conn, Engine, Limits, STAGE_BYTES_MIN, Turn};
use rowmill_wire::{Completion, Status};

/// No request here takes so many turns.
const TURNS: u64 = 100_000;
/// The time that a turn takes where that matters.
const TURN_NS: u64 = 10_000;

/// Bags of the first feature, none of the others.
fn of_first(bags: Vec<Vec<u64>>) -> Batch {
    let none = vec![vec![]; bags.len()];
    Batch {
        features: vec![bags, none.clone(), none],
        ..Batch::default()
    }
}

fn submit(engine: &mut Engine, memory: &mut HeapMemory, conn: u32, slot: u16, batch: &Batch) {
    let header = lookup(u64::from(slot), batch.bags());
    let frame = frame(header, batch, INLINE, &mut vec![]);
    engine
        .request(0, Conn(conn), slot, &frame, memory)
        .expect("the slot is free");
}

/// One turn, and what was answered.
fn turn(engine: &mut Engine, memory: &mut HeapMemory, now_ns: u64) -> Vec<(Conn, Completion)> {
    engine.turn(now_ns, memory);
    std::iter::from_fn(|| engine.poll_completion()).collect()
}

#[test]
fn one_that_waits_for_staging_does_not_stand_before_its_connections_other_that_has_it() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Comes);
    let mut memory = memory_for(&model, 8, vec![]);
    let mut remote = Remote::new(STAGE_BYTES_MIN as usize, 1);
    remote.steady = true;
    memory.remote = Some(remote);
    // This one has the only block while it waits for rows.
    submit(
        &mut engine,
        &mut memory,
        0,
        0,
        &of_first(vec![vec![1, 2]; 8]),
    );
    let mut resident = of_first(vec![vec![]; 8]);
    resident.features[1] = vec![vec![3]; 8];
    submit(&mut engine, &mut memory, 0, 1, &resident);
    let mut records = vec![];
    for now_ns in 0..TURNS {
        records.extend(turn(&mut engine, &mut memory, now_ns));
        if records.len() == 2 {
            assert_eq!(statuses(&records), [Status::Ok; 2]);
            return;
        }
    }
    panic!("of two requests were answered {records:?}");
}

#[test]
fn a_bag_that_needs_much_room_is_not_overtaken_for_ever() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 1, |_| Fate::Comes);
    attach(&mut engine, &model, Conn(1));
    let mut memory = memory_for(&model, 8, vec![]);
    let target = memory.regions[&(0, common::TARGET)].clone();
    memory.regions.insert((1, common::TARGET), target);
    // Always other rows, so that all are missed.
    let mut row = 0;
    let mut small = || {
        let bag = |_| {
            row += 2;
            vec![row % 1000, (row + 1) % 1000]
        };
        of_first((0..4).map(bag).collect())
    };
    for slot in 0..3 {
        submit(&mut engine, &mut memory, 0, slot, &small());
    }
    turn(&mut engine, &mut memory, 0);
    assert!(engine.cache().held().1 > 0, "some bags wait");
    let large = of_first(vec![(500..500 + u64::from(FETCH.staged)).collect()]);
    submit(&mut engine, &mut memory, 1, 3, &large);
    let mut others = 0;
    for now_ns in 0..TURNS {
        for (conn, record) in turn(&mut engine, &mut memory, now_ns) {
            assert_eq!(record.status, Status::Ok);
            if conn == Conn(1) {
                assert!(others < 6, "{others} others were answered before");
                return;
            }
            others += 1;
            submit(&mut engine, &mut memory, 0, record.slot, &small());
        }
    }
    panic!("{others} others were answered, and it was not");
}

#[test]
fn one_that_ends_while_it_waits_for_room_lets_the_next_go_on() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        budget_ns: 1_000_000,
        ..FETCH
    };
    let fate = |wanted: Wanted| match wanted.row {
        0..100 => Fate::Never,
        _ => Fate::Comes,
    };
    let mut engine = engine_with(&model, LIMITS, fetch, 1, fate);
    let mut memory = memory_for(&model, 1, vec![]);
    for (slot, rows) in [(0, 0..60), (1, 100..160), (2, 200..230)] {
        let batch = of_first(vec![rows.collect()]);
        submit(&mut engine, &mut memory, 0, slot, &batch);
        while engine.turn(0, &mut memory) != Turn::Blocked {}
    }
    let (fetched, staged) = (
        engine.cache().fetch_counters().fetched,
        engine.cache().held().1,
    );
    assert_eq!((fetched, staged), (60, 60), "two wait for room");
    engine.cancel(1, Conn(0), 1, &mut memory);
    engine.cancel(1, Conn(0), 0, &mut memory);
    let mut records = vec![];
    for turns in 0..TURNS {
        records.extend(turn(&mut engine, &mut memory, 100 * turns));
        if records.len() == 3 {
            let wanted = [Status::Cancelled, Status::Cancelled, Status::Ok];
            assert_eq!(statuses(&records), wanted);
            return;
        }
    }
    panic!("of three requests were answered {records:?}");
}

/// Eight samples, and one bag that wants a row of the cached table.
fn one_of_which_misses() -> Batch {
    let mut first = vec![vec![]; 8];
    first[0] = vec![1];
    let mut batch = of_first(first);
    batch.features[1] = vec![vec![3, 4, 5]; 8];
    batch.features[2] = vec![vec![7]; 8];
    batch
}

#[test]
fn while_a_bag_waits_the_others_of_its_run_are_pooled() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Never);
    let mut memory = memory_for(&model, 8, vec![]);
    let mut remote = Remote::new(STAGE_BYTES_MIN as usize, 1);
    remote.steady = true;
    memory.remote = Some(remote);
    let batch = one_of_which_misses();
    submit(&mut engine, &mut memory, 0, 0, &batch);
    while engine.turn(0, &mut memory) != Turn::Blocked {}
    assert_eq!(engine.counters().rows, 8 * 3 + 8, "all but the one row");
    let target = &memory.regions[&(0, common::TARGET)];
    let placed = target.iter().any(|&byte| byte != common::UNTOUCHED);
    assert!(!placed, "the run is placed as a whole");
}

#[test]
fn while_a_bag_waits_the_slices_of_the_others_are_written() {
    let model = Model::mixed();
    let mut engine = engine_with(&model, LIMITS, FETCH, 3, |_| Fate::Never);
    let mut memory = memory_for(&model, 8, vec![]);
    let batch = one_of_which_misses();
    submit(&mut engine, &mut memory, 0, 0, &batch);
    while engine.turn(0, &mut memory) != Turn::Blocked {}
    let wanted = model.oracle(&batch);
    let without = model.oracle_without(&batch, |row| row == 1);
    let differs = |at: &usize| wanted[*at] != without[*at];
    let mut of_waiting = (0..wanted.len()).filter(differs);
    let (from, to) = (of_waiting.next(), of_waiting.next_back());
    let slice = from.expect("some")..=to.expect("more");
    assert!(
        slice.clone().count() > 16 * 3,
        "16 values, of which a byte may be alike"
    );
    let target = &memory.regions[&(0, common::TARGET)];
    let mut written = target[..wanted.len()].to_vec();
    let waiting = &mut written[slice.clone()];
    assert!(waiting.iter().all(|&byte| byte == common::UNTOUCHED));
    waiting.copy_from_slice(&wanted[slice]);
    common::assert_bytes(&model, &written, &wanted);
}

#[test]
fn who_needs_little_does_not_wait_for_those_who_need_much() {
    let model = Model::mixed();
    let limits = Limits {
        max_ids: 256,
        ..LIMITS
    };
    let fetch = fetch::Limits {
        staged: 2 * 256,
        longest: 256,
        ..FETCH
    };
    let mut engine = engine_with(&model, limits, fetch, 1, |_| Fate::Comes);
    for conn in 1..4 {
        attach(&mut engine, &model, Conn(conn));
    }
    let mut memory = memory_for(&model, 1, vec![]);
    let target = memory.regions[&(0, common::TARGET)].clone();
    for conn in 0..3 {
        memory
            .regions
            .insert((conn, common::TARGET), target.clone());
        let rows = u64::from(conn) * 256..u64::from(conn + 1) * 256;
        submit(
            &mut engine,
            &mut memory,
            conn,
            0,
            &of_first(vec![rows.collect()]),
        );
    }
    // Some rows of the first come before anybody wants little.
    (0..20).for_each(|now_ns| _ = turn(&mut engine, &mut memory, now_ns));
    let before = engine.cache().fetch_counters().arrived;
    memory.regions.insert((3, common::TARGET), target);
    let small: Vec<u64> = (900..908).collect();
    submit(&mut engine, &mut memory, 3, 0, &of_first(vec![small]));
    for now_ns in 20..TURNS {
        let Some((conn, record)) = turn(&mut engine, &mut memory, now_ns).pop() else {
            continue;
        };
        assert_eq!(
            (conn, record.status),
            (Conn(3), Status::Ok),
            "it is the first"
        );
        let others = engine.cache().fetch_counters().arrived - before;
        // One of each other for each of its own, and those that the tier had already.
        assert!(others <= 4 * 8 + 2 * 5, "{others} rows came before");
        return;
    }
    panic!("nothing was answered");
}

/// Of two cached tables, the first of which hangs.
fn first_hangs(wanted: Wanted) -> Fate {
    match wanted.table {
        0 => Fate::Hangs,
        _ => Fate::Comes,
    }
}

/// A connection that wants rows of the first table again and again, always others, in 8 requests at a time; how often it was answered.
struct Insatiable {
    row: u64,
    answered: u32,
}

impl Insatiable {
    const CONN: u32 = 1;
    const REQUESTS: u16 = 8;

    /// Submits a request of 8 bags of 4 rows.
    fn submit(&mut self, engine: &mut Engine, memory: &mut HeapMemory, slot: u16) {
        let mut bag = |_| (0..4).map(|_| self.next()).collect();
        let batch = of_first((0..8).map(&mut bag).collect());
        submit(engine, memory, Self::CONN, slot, &batch);
    }

    fn next(&mut self) -> u64 {
        self.row = (self.row + 1) % 1000;
        self.row
    }

    /// Takes a turn. Returns what others were answered.
    fn turn(
        &mut self,
        engine: &mut Engine,
        memory: &mut HeapMemory,
        now_ns: u64,
    ) -> Vec<(Conn, Completion)> {
        let (own, others): (Vec<_>, Vec<_>) = turn(engine, memory, now_ns)
            .into_iter()
            .partition(|(conn, _)| *conn == Conn(Self::CONN));
        for (_, record) in own {
            assert_eq!(record.status, Status::RowUnavailable);
            self.answered += 1;
            self.submit(engine, memory, record.slot);
        }
        others
    }
}

/// An engine whose first table has taken all that it may, with connections 0 to 2 attached.
fn beside_a_hung_one(
    model: &Model,
    fetch: fetch::Limits,
    bags: u32,
) -> (Engine, HeapMemory, Insatiable) {
    let limits = Limits {
        slots: 16,
        ..LIMITS
    };
    let mut engine = engine_with(model, limits, fetch, 2, first_hangs);
    let mut memory = memory_for(model, bags, vec![]);
    let target = memory.regions[&(0, common::TARGET)].clone();
    for conn in [1, 2] {
        attach(&mut engine, model, Conn(conn));
        let target = target.clone();
        memory.regions.insert((conn, common::TARGET), target);
    }
    let mut insatiable = Insatiable {
        row: 0,
        answered: 0,
    };
    for slot in 0..Insatiable::REQUESTS {
        insatiable.submit(&mut engine, &mut memory, slot);
    }
    while engine.turn(0, &mut memory) != Turn::Blocked {}
    (engine, memory, insatiable)
}

/// A request for the third table, in which each bag has so many rows, all different, from one on.
fn of_third(from: u64, bags: u64, rows: u64) -> Batch {
    let bag = |bag| (from + bag * rows..from + (bag + 1) * rows).collect();
    let mut batch = of_first(vec![vec![]; bags as usize]);
    batch.features[2] = (0..bags).map(bag).collect();
    batch
}

#[test]
fn more_bags_than_a_hung_table_leaves_are_served_as_theirs_come_back() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        staged: 1024,
        ..FETCH
    };
    let (mut engine, mut memory, mut insatiable) = beside_a_hung_one(&model, fetch, 8);
    let held = engine.cache().fetch_counters().parked;
    assert!(
        u64::from(fetch.bags) - held < 8,
        "{held} bags of the hung table wait"
    );
    submit(&mut engine, &mut memory, 0, 0, &of_third(0, 8, 2));
    for now_ns in (0..TURNS).map(|turn| turn * TURN_NS) {
        let answered = insatiable.turn(&mut engine, &mut memory, now_ns);
        if let [(conn, record)] = answered[..] {
            assert_eq!((conn, record.status), (Conn(0), Status::Ok));
            assert_eq!(insatiable.answered, 0, "nothing of the hung table's ended");
            return;
        }
    }
    panic!("it was not answered");
}

#[test]
fn a_bag_larger_than_what_a_hung_table_leaves_is_not_overtaken_for_ever() {
    let model = Model::mixed();
    let fetch = fetch::Limits {
        staged: 256,
        bags: 128,
        budget_ns: 1000 * TURN_NS,
        ..FETCH
    };
    let (mut engine, mut memory, mut insatiable) = beside_a_hung_one(&model, fetch, 8);
    let (left, _) = engine.cache().room(2);
    assert!(left < 64, "{left} rows are left to it");
    submit(&mut engine, &mut memory, 0, 0, &of_third(0, 1, 64));
    // Others want as much of its table as there is, a little at a time, and always other rows.
    let mut small = (64..2900)
        .step_by(16)
        .cycle()
        .map(|row| of_third(row, 8, 2));
    let mut small = || small.next().expect("it goes on");
    for slot in 0..4 {
        submit(&mut engine, &mut memory, 2, slot, &small());
    }
    for now_ns in (0..TURNS).map(|turn| turn * TURN_NS) {
        for (conn, record) in insatiable.turn(&mut engine, &mut memory, now_ns) {
            assert_eq!(record.status, Status::Ok);
            if conn == Conn(0) {
                let rounds = insatiable.answered / u32::from(Insatiable::REQUESTS);
                assert!(rounds <= 3, "{rounds} times the hung table's were refused");
                return;
            }
            submit(&mut engine, &mut memory, 2, record.slot, &small());
        }
    }
    panic!("it was not answered");
}
