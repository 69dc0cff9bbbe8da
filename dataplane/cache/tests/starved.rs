//! Rows that are given up before they were asked for: whether it is other tables' rows that they waited for.

use rowmill_cache::fetch::{Fetches, Lane, Limits, Source};
use rowmill_cache::tier::TierError;

const LIMITS: Limits = Limits {
    staged: 12,
    longest: 2,
    prefetched: 0,
    asked: 0,
    bags: 6,
    row_bytes: 8,
    budget_ns: 100,
};

/// A bag of one row waits for it.
fn park(fetches: &mut Fetches, now_ns: u64, table: u32, row: u32, source: Source) {
    let find = |_, _, _: &mut [u8]| source;
    let bag = fetches.park(now_ns, Lane::default(), table, &mut [row], find);
    bag.expect("room for it");
}

/// Table, row and whether it starved, of each that is given up. `is_silent` says whether the owner of other shards has heard of late rows.
fn given_up(fetches: &mut Fetches, now_ns: u64, is_silent: bool) -> Vec<(u32, u32, bool)> {
    let mut given_up = vec![];
    while let Some(late) = fetches.next_late(now_ns, &mut 100, |_, _| (0, is_silent)) {
        let (table, row) = fetches.row(late).expect("it waits");
        given_up.push((table, row, fetches.is_starved(late, is_silent)));
        fetches.give_up(late);
    }
    given_up.sort();
    given_up
}

#[test]
fn rows_starve_where_no_row_of_their_own_table_was_late() {
    let mut fetches = Fetches::new(LIMITS, 0, &[true; 3], 1);
    park(&mut fetches, 0, 0, 1, Source::Tier);
    let read = fetches.next_read(0).expect("a row to be read");
    for (table, row) in [(0, 2), (1, 3)] {
        park(&mut fetches, 0, table, row, Source::Tier);
    }
    fetches.heard(100, 0, Err(TierError::Late));
    fetches.arrived(read.ticket, Err(TierError::Late));
    assert_eq!(
        given_up(&mut fetches, 100, false),
        [(0, 2, false), (1, 3, true)]
    );
    // The hung table answers again: what waits from then on waits for others.
    fetches.heard(100, 0, Ok(()));
    fetches.heard(100, 1, Err(TierError::Late));
    for (table, row) in [(0, 4), (1, 5)] {
        park(&mut fetches, 100, table, row, Source::Tier);
    }
    assert_eq!(
        given_up(&mut fetches, 200, false),
        [(0, 4, true), (1, 5, false)]
    );
}

/// Its own reads have all that the table may have, and whoever they were for waits no more, so that nobody hears of them.
#[test]
fn rows_whose_own_table_holds_them_back_are_given_up_though_others_come() {
    let mut fetches = Fetches::new(LIMITS, 0, &[true; 2], 1);
    park(&mut fetches, 0, 0, 1, Source::Tier);
    for now_ns in [0, 50, 90] {
        fetches.pass_none();
        let read = fetches.next_read(now_ns).expect("a row to be read");
        assert_eq!(read.table, 0);
        fetches.hold_back(read);
        fetches.heard(now_ns, 1, Ok(()));
        assert_eq!(given_up(&mut fetches, now_ns, false), []);
    }
    assert_eq!(given_up(&mut fetches, 110, false), [(0, 1, false)]);
    // Those of a table that is passed by for others' sake wait as long as these come.
    park(&mut fetches, 110, 0, 3, Source::Tier);
    fetches.pass_none();
    let read = fetches.next_read(110).expect("a row to be read");
    fetches.pass_by(read);
    fetches.heard(200, 1, Ok(()));
    assert_eq!(given_up(&mut fetches, 250, false), []);
    assert_eq!(given_up(&mut fetches, 300, false), [(0, 3, true)]);
}

#[test]
fn of_rows_of_other_workers_shards_their_owner_says_whether_one_was_late() {
    for is_silent in [false, true] {
        let mut fetches = Fetches::new(LIMITS, 0, &[true; 2], 1);
        park(&mut fetches, 0, 0, 1, Source::Owner);
        park(&mut fetches, 0, 1, 2, Source::Owner);
        let asked = fetches.next_ask(0).expect("a row to ask for");
        assert_eq!((asked.table, asked.row), (0, 1));
        // Whatever this worker's own reads of the table say.
        fetches.heard(0, 1, Err(TierError::Late));
        assert_eq!(
            given_up(&mut fetches, 100, is_silent),
            [(1, 2, !is_silent)],
            "silent: {is_silent}"
        );
        // One that was asked for did not starve.
        assert_eq!(given_up(&mut fetches, 300, is_silent), [(0, 1, false)]);
    }
}
