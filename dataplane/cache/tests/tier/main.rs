//! Tiers: what each has to do, and what the one over files does when its disk is slow, wrong or silent.

mod device;
mod failures;
mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use proptest::prelude::*;
use rowmill_arena::{PageCache, ReadError};
use rowmill_cache::tier::{Answer, FetchesFull, FileTable, ScriptedTier, Tier, TierError, Wanted};
use rowmill_table::PAGE_BYTES;

use device::{DEVICE_SLOTS, ScriptedDevice, scripted, scripted_with};
use model::{Answers, FOREVER_NS, Model, SPECS, finish, poll, wanted};

#[test]
fn rows_of_all_kinds_of_tables_come_as_they_are_stored() {
    let model = Model::new();
    let Some(mut tier) = model.tier(128) else {
        return;
    };
    for table in 0..SPECS.len() as u32 {
        let mut rows = 0..model.rows(table);
        while !rows.is_empty() {
            let batch: Vec<u32> = rows.by_ref().take(64).collect();
            let mut refused = Vec::new();
            for &row in &batch {
                if tier.fetch(0, wanted(table, row, row.into())).is_err() {
                    refused.push(row);
                }
            }
            let mut answers = finish(&mut tier);
            for row in refused {
                tier.fetch(0, wanted(table, row, row.into())).unwrap();
                answers.append(&mut finish(&mut tier));
            }
            assert_eq!(answers.len(), batch.len());
            for &row in &batch {
                let answer = answers[&row.into()].as_deref();
                assert_eq!(answer, Ok(model.row(table, row)), "table {table} row {row}");
            }
        }
    }
    let counts = tier.counts();
    let rows: u32 = (0..SPECS.len() as u32).map(|table| model.rows(table)).sum();
    assert_eq!((counts.rows, counts.fetches), (rows.into(), rows.into()));
    assert_eq!(counts.reads + counts.joined, counts.fetches);
    assert!(
        counts.reads < u64::from(rows) / 4,
        "rows that lie together are read together"
    );
}

#[test]
fn rows_of_one_page_and_of_pages_that_touch_are_one_read() {
    let model = Model::new();
    let (mut tier, device) = scripted(&model, FOREVER_NS);
    // 16 rows of 256 bytes a page: rows 0 to 15 lie in page 1.
    for (token, row) in [(0, 3), (1, 3), (2, 15), (3, 16), (4, 700)] {
        tier.fetch(0, wanted(0, row, token)).unwrap();
    }
    let mut answers = Answers::new();
    poll(&mut tier, 0, &mut answers);
    let page = PAGE_BYTES as u64;
    let reads = |device: &ScriptedDevice| -> Vec<(u64, usize)> {
        let script = device.0.borrow();
        script
            .asked
            .iter()
            .map(|&(_, offset, len, _)| (offset, len))
            .collect()
    };
    let behind = (1 + 700 / 16) * page;
    assert_eq!(
        reads(&device),
        [(page, 2 * PAGE_BYTES), (behind, PAGE_BYTES)]
    );
    // A page that is on its way is not asked for again.
    tier.fetch(0, wanted(0, 17, 5)).unwrap();
    poll(&mut tier, 0, &mut answers);
    assert_eq!(reads(&device).len(), 2);
    assert!(answers.is_empty());
    device.0.borrow_mut().due = vec![(1, None), (0, None)];
    poll(&mut tier, 0, &mut answers);
    for (token, row) in [(0, 3), (1, 3), (2, 15), (3, 16), (4, 700), (5, 17)] {
        assert_eq!(answers[&token].as_deref(), Ok(model.row(0, row)));
    }
    assert_eq!((tier.unanswered(), tier.reads()), (0, 0));
    let counts = tier.counts();
    assert_eq!((counts.reads, counts.joined, counts.rows), (2, 4, 6));
    assert_eq!(counts.read_bytes, 3 * page);
}

#[test]
fn damaged_pages_are_found_and_others_are_not_blamed() {
    let model = Model::new();
    let (mut tier, device) = scripted(&model, FOREVER_NS);
    // Page 2 holds rows 16 to 31; the read is of pages 1 to 3.
    for row in [15, 16, 31, 32] {
        tier.fetch(0, wanted(0, row, row.into())).unwrap();
    }
    device.0.borrow_mut().files[0][3 * PAGE_BYTES - 1] ^= 1;
    let mut answers = Answers::new();
    poll(&mut tier, 0, &mut answers);
    device.0.borrow_mut().due = vec![(0, None)];
    poll(&mut tier, 0, &mut answers);
    for row in [15, 32] {
        assert_eq!(answers[&row.into()].as_deref(), Ok(model.row(0, row)));
    }
    for row in [16, 31] {
        assert_eq!(answers[&row], Err(TierError::Corrupt { page: 2 }));
    }
    // A row across two pages is as damaged as either.
    let info = &model.generation.tables()[1];
    let across = (0..model.rows(1)).find(|&row| info.row_place(row).pages() == (4..6));
    let across = across.unwrap();
    for page in [4, 5] {
        let at = page as usize * PAGE_BYTES + 100;
        device.0.borrow_mut().files[1][at] ^= 1;
        tier.fetch(0, wanted(1, across, 100 + page)).unwrap();
        poll(&mut tier, 0, &mut answers);
        let last = device.0.borrow().asked.len() - 1;
        device.0.borrow_mut().due = vec![(last, None)];
        poll(&mut tier, 0, &mut answers);
        assert_eq!(answers[&(100 + page)], Err(TierError::Corrupt { page }));
        device.0.borrow_mut().files[1][at] ^= 1;
    }
    assert_eq!((tier.counts().corrupt, tier.counts().rows), (4, 2));
}

#[test]
fn a_device_that_is_silent_costs_its_slots_and_no_more() {
    let model = Model::new();
    let (mut tier, device) = scripted(&model, 1000);
    let mut answers = Answers::new();
    // The tier's own time for a fetch is shorter than the deadline of all but the last one.
    for slot in 0..DEVICE_SLOTS {
        let is_last = slot + 1 == DEVICE_SLOTS;
        // One table may not have all of them.
        let mut wanted = wanted(is_last.into(), slot * 100, slot.into());
        if is_last {
            wanted.deadline_ns = 400;
        }
        tier.fetch(100, wanted).unwrap();
    }
    for now_ns in [100, 399] {
        poll(&mut tier, now_ns, &mut answers);
        assert!(answers.is_empty());
    }
    poll(&mut tier, 400, &mut answers);
    assert_eq!(answers.keys().copied().collect::<Vec<_>>(), [2]);
    poll(&mut tier, 1099, &mut answers);
    assert_eq!(answers.len(), 1);
    poll(&mut tier, 1100, &mut answers);
    assert!(
        answers
            .values()
            .all(|answer| *answer == Err(TierError::Late))
    );
    assert_eq!((answers.len(), tier.unanswered()), (3, 0));
    // The device has the buffers still.
    assert_eq!(tier.reads(), DEVICE_SLOTS as usize);
    assert_eq!(
        tier.fetch(1200, wanted(0, 900, 9)),
        Err(FetchesFull::ForAll)
    );
    // Who wants a page that was asked for long ago still gets it.
    tier.fetch(1200, wanted(0, 101, 7)).unwrap();
    device.0.borrow_mut().due = vec![(1, None), (0, None)];
    poll(&mut tier, 1300, &mut answers);
    assert_eq!(answers[&7].as_deref(), Ok(model.row(0, 101)));
    assert_eq!((tier.reads(), answers.len()), (1, 4));
    tier.fetch(1300, wanted(0, 900, 9)).unwrap();
    let next = tier.fetch(1300, wanted(0, 700, 10));
    assert_eq!(next, Err(FetchesFull::ForTable));
    assert_eq!((tier.counts().late, tier.counts().refused), (3, 2));
}

#[test]
fn rows_that_came_are_handed_out_however_late_they_are_looked_at() {
    const ROWS: u32 = 12;
    let model = Model::new();
    let (mut tier, device) = scripted_with(&model, 1000, ROWS + 8);
    let mut answers = Answers::new();
    for number in 0..ROWS {
        tier.fetch(0, wanted(0, number * 75, number.into()))
            .unwrap();
    }
    // Not all of them are begun at a time, nor taken.
    while device.0.borrow().asked.len() < ROWS as usize {
        poll(&mut tier, 0, &mut answers);
    }
    device.0.borrow_mut().due = (0..ROWS as usize - 1).map(|read| (read, None)).collect();
    poll(&mut tier, 1000, &mut answers);
    assert!(answers.values().all(Result::is_ok) && answers.len() < ROWS as usize - 1);
    (0..ROWS).for_each(|_| poll(&mut tier, 1000, &mut answers));
    let late = |answer: &&Result<_, _>| **answer == Err(TierError::Late);
    assert_eq!(
        (answers.len(), answers.values().filter(late).count()),
        (12, 1)
    );
}

#[test]
fn a_device_is_not_to_blame_where_nobody_looked() {
    const BUDGET_NS: u64 = 1_000_000_000;
    const TURN_NS: u64 = 1_000_000;
    let model = Model::new();
    let (mut tier, _device) = scripted(&model, BUDGET_NS);
    let mut answers = Answers::new();
    tier.fetch(0, wanted(0, 50, 50)).unwrap();
    poll(&mut tier, 0, &mut answers);
    let paused_ns = 3 * BUDGET_NS;
    poll(&mut tier, paused_ns, &mut answers);
    assert!(answers.is_empty());
    let turns = (1..).take_while(|turn| {
        poll(&mut tier, paused_ns + turn * TURN_NS, &mut answers);
        answers.is_empty()
    });
    // The pause counts as a few turns.
    let looked_ns = turns.count() as u64 * TURN_NS;
    assert!((BUDGET_NS - 10 * TURN_NS..BUDGET_NS).contains(&looked_ns));
}

#[test]
fn errors_of_the_device_are_told_apart() {
    let model = Model::new();
    let (mut tier, device) = scripted(&model, FOREVER_NS);
    let mut answers = Answers::new();
    for (token, table, row) in [(0, 0, 0), (1, 0, 400), (2, 1, 800)] {
        tier.fetch(0, wanted(table, row, token)).unwrap();
    }
    device.0.borrow_mut().stalled = true;
    poll(&mut tier, 0, &mut answers);
    assert_eq!((answers.len(), tier.counts().stalls), (0, 1));
    device.0.borrow_mut().stalled = false;
    device.0.borrow_mut().due = vec![
        (2, Some(ReadError::Os(5))),
        (0, None),
        (1, Some(ReadError::Truncated)),
    ];
    poll(&mut tier, 0, &mut answers);
    assert_eq!(answers[&0].as_deref(), Ok(model.row(0, 0)));
    assert_eq!(answers[&1], Err(TierError::Gone));
    assert_eq!(answers[&2], Err(TierError::Os(5)));
    let counts = tier.counts();
    assert_eq!((counts.rows, counts.gone, counts.failed), (1, 1, 1));
    for error in [TierError::Late, TierError::Gone, TierError::Os(5)] {
        let text = error.to_string();
        assert!(
            text.contains("look at") || text.contains("copy it"),
            "{text}"
        );
    }
}

#[test]
fn files_that_change_under_way() {
    let model = Model::new();
    let Some(mut tier) = model.tier(16) else {
        return;
    };
    let mut fetch = |table, row| {
        tier.fetch(0, wanted(table, row, 1)).unwrap();
        finish(&mut tier).remove(&1).unwrap()
    };
    // Overwritten: its checksum is wrong from then on, and other pages are not.
    let file = OpenOptions::new().write(true).open(model.path(0)).unwrap();
    file.write_all_at(&[0xa5; 10], 2 * PAGE_BYTES as u64)
        .unwrap();
    assert_eq!(fetch(0, 20), Err(TierError::Corrupt { page: 2 }));
    assert_eq!(fetch(0, 0).as_deref(), Ok(model.row(0, 0)));
    // Cut: what is behind the end is gone, and what is before it is not.
    file.set_len(10 * PAGE_BYTES as u64).unwrap();
    assert_eq!(fetch(0, 999), Err(TierError::Gone));
    assert_eq!(fetch(0, 0).as_deref(), Ok(model.row(0, 0)));
    // So it is where both are read together: page 9 is the last one, with rows 128 to 143.
    for row in [143, 144, 128] {
        tier.fetch(0, wanted(0, row, row.into())).unwrap();
    }
    let answers = finish(&mut tier);
    for row in [128, 143] {
        assert_eq!(answers[&row.into()].as_deref(), Ok(model.row(0, row)));
    }
    assert_eq!(answers[&144], Err(TierError::Gone));
    let mut fetch = |table, row| {
        tier.fetch(0, wanted(table, row, 1)).unwrap();
        finish(&mut tier).remove(&1).unwrap()
    };
    // Replaced: the one that was opened is read.
    let path = model.path(1);
    std::fs::copy(model.path(2), path.with_extension("new")).unwrap();
    std::fs::rename(path.with_extension("new"), &path).unwrap();
    assert_eq!(fetch(1, 2999).as_deref(), Ok(model.row(1, 2999)));
    // Removed: the same.
    std::fs::remove_file(model.path(3)).unwrap();
    assert_eq!(fetch(3, 700).as_deref(), Ok(model.row(3, 700)));
}

#[test]
fn tables_come_and_go() {
    let model = Model::new();
    let Some(mut tier) = model.tier(16) else {
        return;
    };
    tier.fetch(0, wanted(2, 7, 1)).unwrap();
    assert!(!tier.remove(2).unwrap(), "it is being read");
    assert!(tier.remove(1).unwrap());
    assert_eq!(finish(&mut tier)[&1].as_deref(), Ok(model.row(2, 7)));
    assert!(tier.remove(2).unwrap());
    let again = model.table(2);
    let other = again.for_another().unwrap();
    assert_eq!((tier.add(again).unwrap(), tier.add(other).unwrap()), (1, 2));
    for table in [1, 2] {
        tier.fetch(0, wanted(table, 49, table.into())).unwrap();
    }
    for (token, answer) in finish(&mut tier) {
        assert_eq!(answer.as_deref(), Ok(model.row(2, 49)), "{token}");
    }
}

#[test]
fn a_file_of_another_size_is_not_taken() {
    let model = Model::new();
    let file = OpenOptions::new().write(true).open(model.path(0)).unwrap();
    file.set_len(4 * PAGE_BYTES as u64).unwrap();
    let error = FileTable::open(&model.generation, "aligned", PageCache::Allow).unwrap_err();
    assert!(error.to_string().contains("promises"), "{error}");
}

/// Polls after which all that is late was given up: the tiers here have 8 fetches and 8 reads at most, so that 16 rows may come, of which
/// a poll takes 4.
const POLLS: usize = 16 / 4 + 1;

/// What any tier has to do, driven by drawn times: `now_ns` only grows.
fn conforms(tier: &mut dyn Tier, model: &Model, steps: &[(u32, u32, u64, u64)]) {
    let (mut now_ns, mut waiting, mut answers) = (0, BTreeMap::new(), Answers::new());
    for (token, &(table, row, pause_ns, patience_ns)) in (0..).zip(steps) {
        now_ns += pause_ns;
        let (table, deadline_ns) = (table % SPECS.len() as u32, now_ns + patience_ns);
        let wanted = Wanted {
            table,
            row: row % model.rows(table),
            token,
            deadline_ns,
        };
        if tier.fetch(now_ns, wanted).is_ok() {
            waiting.insert(token, wanted);
        }
        assert_eq!(tier.unanswered(), waiting.len());
        let mut new = Answers::new();
        let is_overdue = |new: &Answers| {
            let mut waiting = waiting.iter();
            waiting.any(|(token, wanted)| !new.contains_key(token) && wanted.deadline_ns <= now_ns)
        };
        // As long as rows come those that are late may have to wait, and some come for nobody: who wanted them was given up.
        for _ in 0..POLLS {
            poll(tier, now_ns, &mut new);
            if !is_overdue(&new) {
                break;
            }
        }
        for (token, answer) in &new {
            let wanted = waiting.remove(token).expect("a fetch that was taken");
            match answer {
                Ok(bytes) => assert_eq!(bytes, model.row(wanted.table, wanted.row)),
                Err(TierError::Late) => assert!(wanted.deadline_ns <= now_ns, "early"),
                Err(other) => panic!("{other}"),
            }
        }
        let overdue = |wanted: &Wanted| wanted.deadline_ns <= now_ns;
        assert!(!waiting.values().any(overdue), "no answer by the deadline");
        answers.append(&mut new);
    }
    (0..POLLS).for_each(|_| poll(tier, FOREVER_NS, &mut answers));
    assert_eq!(tier.unanswered(), 0);
    let left = waiting.keys().all(|token| answers.contains_key(token));
    assert!(left, "each is answered");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn tiers_conform(
        steps in prop::collection::vec((any::<u32>(), any::<u32>(), 0u64..50, 0u64..2000), 1..200),
        order: u64,
    ) {
        let model = Model::new();
        let row = |wanted: &Wanted| model.row(wanted.table, wanted.row).to_vec();
        let slow = |wanted: &Wanted| match (wanted.token ^ order) % 7 {
            0 => Answer::Never,
            after => Answer::Row { after_ns: 300 * after },
        };
        conforms(&mut ScriptedTier::new(8, row, slow), &model, &steps);
        if let Some(mut tier) = model.tier(8) {
            conforms(&mut tier, &model, &steps);
        }
        // A device that answers a random read that it has at each poll.
        let (mut tier, device) = scripted(&model, FOREVER_NS);
        let mut answered = BTreeSet::new();
        let mut state = order;
        for chunk in steps.chunks(5) {
            for (token, &(table, row, ..)) in (0..).zip(chunk) {
                let table = table % SPECS.len() as u32;
                let _ = tier.fetch(0, wanted(table, row % model.rows(table), token));
            }
            let mut answers = Answers::new();
            poll(&mut tier, 0, &mut answers);
            while tier.unanswered() > 0 {
                let asked = device.0.borrow().asked.len();
                let open: Vec<usize> = (0..asked).filter(|at| !answered.contains(at)).collect();
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let next = open[(state >> 33) as usize % open.len()];
                answered.insert(next);
                device.0.borrow_mut().due = vec![(next, None)];
                poll(&mut tier, 0, &mut answers);
            }
            for (token, answer) in answers {
                let (table, row, ..) = chunk[token as usize];
                let table = table % SPECS.len() as u32;
                let right = model.row(table, row % model.rows(table));
                prop_assert_eq!(answer.as_deref(), Ok(right));
            }
        }
    }
}

#[test]
fn scripted_tiers_answer_by_their_script() {
    let row = |wanted: &Wanted| vec![wanted.row as u8];
    let script = |wanted: &Wanted| match wanted.row {
        0 => Answer::Row { after_ns: 20 },
        1 => Answer::Row { after_ns: 10 },
        2 => Answer::Error {
            after_ns: 15,
            error: TierError::Corrupt { page: 3 },
        },
        _ => Answer::Never,
    };
    let mut tier = ScriptedTier::new(4, row, script);
    for row in 0..4 {
        let wanted = Wanted {
            deadline_ns: 50,
            ..wanted(0, row, row.into())
        };
        tier.fetch(0, wanted).unwrap();
    }
    assert_eq!(tier.fetch(0, wanted(0, 0, 9)), Err(FetchesFull::ForAll));
    let mut order = Vec::new();
    for now_ns in [9, 49, 50] {
        tier.poll(now_ns, &mut |token, answer| {
            order.push((now_ns, token, answer.map(<[u8]>::to_vec)));
        });
    }
    let corrupt = Err(TierError::Corrupt { page: 3 });
    let expected = [
        (49, 1, Ok(vec![1])),
        (49, 2, corrupt),
        (49, 0, Ok(vec![0])),
        (50, 3, Err(TierError::Late)),
    ];
    assert_eq!(order, expected);
}

#[test]
fn nothing_is_allocated_after_the_start() {
    let model = Model::new();
    let Some(mut tier) = model.tier(32) else {
        return;
    };
    let mut sum = 0;
    let counted = allocation_counter::measure(|| {
        for round in 0..50u32 {
            for number in 0..20 {
                let table = number % 4;
                let row = (round * 131 + number * 17) % model.rows(table);
                let _ = tier.fetch(0, wanted(table, row, 0));
            }
            while tier.unanswered() > 0 {
                tier.poll(0, &mut |_, row| sum += row.unwrap().len());
            }
        }
    });
    assert!(sum > 0);
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
