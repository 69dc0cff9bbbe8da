//! Rows that wait for their turn to be read: in lanes, one for each client, of which each gives one row in turn, of its tables in turn.
//!
//! So a row waits for at most as many others as there are lanes with rows, for each row before it in its own lane: whoever
//! wants few rows waits for few of the others', however many these want. In a lane each table has a queue of its own: rows of a table that can't
//! be read now are passed by, and keep no others back. A row that a second client wants moves to that one's
//! lane where it has fewer rows of its table before it there. Each move brings it nearer to its turn, so it never moves for ever.
//!
//! Behind all of them is a lane of rows that nobody waits for.

use std::collections::VecDeque;

/// Lanes that there are for clients.
const LANES: usize = 256;
/// The lane of rows that nobody waits for.
const LAST: u16 = LANES as u16;
const NONE: u32 = u32::MAX;

/// Whose turn it is that a row is read in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Lane(u8);

impl Lane {
    /// The lane of a connection. Where there are more than 256 some share one.
    pub fn of(connection: u32) -> Lane {
        Lane((connection % LANES as u32) as u8)
    }
}

#[derive(Clone, Copy, Debug)]
struct Link {
    lane: u16,
    /// The number of the table here.
    table: u16,
    before: u32,
    after: u32,
    /// Rows that were put into its queue before it, since that was last empty.
    number: u32,
}

/// The rows of one table in one lane.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    /// Rows that were put into it and that were taken from its front since it was last empty.
    put: u32,
    taken: u32,
}

const EMPTY: Queue = Queue {
    first: NONE,
    last: NONE,
    put: 0,
    taken: 0,
};

/// Numbers of fetches, each in one lane at most. Nothing is allocated after [`Lanes::new`].
#[derive(Debug)]
pub(super) struct Lanes {
    links: Box<[Link]>,
    /// By lane, and in that by table.
    queues: Box<[Queue]>,
    tables: usize,
    /// The table whose turn comes in each lane.
    next: Box<[u16; LANES + 1]>,
    /// Rows in each lane, of each table in those that clients have, and in all.
    in_lane: Box<[u32; LANES + 1]>,
    of_table: Box<[u32]>,
    rows: u32,
    /// Lanes whose turn comes, the next one first; some may be empty by then. All but the last.
    round: VecDeque<u16>,
    is_in_round: Box<[bool; LANES]>,
}

impl Lanes {
    /// For fetches with numbers below `fetches`, of tables with numbers below `tables`.
    pub(super) fn new(fetches: u32, tables: usize) -> Lanes {
        let link = Link {
            lane: 0,
            table: 0,
            before: NONE,
            after: NONE,
            number: 0,
        };
        assert!(tables <= usize::from(u16::MAX), "{tables} tables");
        Lanes {
            links: vec![link; fetches as usize].into_boxed_slice(),
            queues: vec![EMPTY; (LANES + 1) * tables].into_boxed_slice(),
            tables,
            next: Box::new([0; LANES + 1]),
            in_lane: Box::new([0; LANES + 1]),
            of_table: vec![0; tables].into_boxed_slice(),
            rows: 0,
            round: VecDeque::with_capacity(LANES),
            is_in_round: Box::new([false; LANES]),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The lane that one is in, or was in last; any, where nobody waits for it.
    pub(super) fn lane(&self, fetch: u32) -> Lane {
        Lane(self.links[fetch as usize].lane as u8)
    }

    /// Puts one in that is in no lane, behind all of its table in its lane, or in the last where nobody waits for it.
    pub(super) fn push(&mut self, fetch: u32, table: usize, lane: Option<Lane>) {
        let lane = lane.map_or(LAST, |lane| lane.0.into());
        let queue = &mut self.queues[usize::from(lane) * self.tables + table];
        self.links[fetch as usize] = Link {
            lane,
            table: table as u16,
            before: queue.last,
            after: NONE,
            number: queue.put,
        };
        match queue.last {
            NONE => queue.first = fetch,
            last => self.links[last as usize].after = fetch,
        }
        queue.last = fetch;
        queue.put += 1;
        self.rows += 1;
        self.in_lane[usize::from(lane)] += 1;
        self.of_table[table] += u32::from(lane != LAST);
        if lane != LAST && !self.is_in_round[usize::from(lane)] {
            self.is_in_round[usize::from(lane)] = true;
            self.round.push_back(lane);
        }
    }

    /// Takes the one whose turn it is, of a table that `is_open`.
    pub(super) fn pop(&mut self, is_open: impl Fn(usize) -> bool) -> Option<u32> {
        let mut tables = (0..).zip(&*self.of_table);
        if !tables.any(|(table, &rows)| rows > 0 && is_open(table)) {
            return None;
        }
        for _ in 0..self.round.len() {
            let &lane = self.round.front()?;
            if self.in_lane[usize::from(lane)] == 0 {
                self.is_in_round[usize::from(lane)] = false;
                self.round.pop_front();
                continue;
            }
            self.round.rotate_left(1);
            let taken = self.pop_from(lane, &is_open);
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// The same of those that nobody waits for.
    pub(super) fn pop_last(&mut self, is_open: impl Fn(usize) -> bool) -> Option<u32> {
        match self.in_lane[usize::from(LAST)] {
            0 => None,
            _ => self.pop_from(LAST, &is_open),
        }
    }

    fn pop_from(&mut self, lane: u16, is_open: impl Fn(usize) -> bool) -> Option<u32> {
        let next = usize::from(self.next[usize::from(lane)]);
        let queues = &mut self.queues[usize::from(lane) * self.tables..][..self.tables];
        let mut in_turn = (next..self.tables).chain(0..next);
        let table = in_turn.find(|&table| queues[table].first != NONE && is_open(table))?;
        queues[table].taken += 1;
        let first = queues[table].first;
        self.remove(first);
        let after = (table + 1) % self.tables;
        self.next[usize::from(lane)] = after as u16;
        Some(first)
    }

    /// Puts back the one that was just taken: it is the next again.
    pub(super) fn put_back(&mut self, fetch: u32) {
        let link = &mut self.links[fetch as usize];
        let (lane, table) = (usize::from(link.lane), link.table);
        let queue = &mut self.queues[lane * self.tables + usize::from(table)];
        (link.before, link.after) = (NONE, queue.first);
        match queue.first {
            NONE => {
                queue.last = fetch;
                (queue.put, queue.taken) = (link.number + 1, link.number);
            }
            first => {
                queue.taken -= 1;
                self.links[first as usize].before = fetch;
            }
        }
        queue.first = fetch;
        self.rows += 1;
        self.in_lane[lane] += 1;
        self.next[lane] = table;
        if lane != usize::from(LAST) {
            self.of_table[usize::from(table)] += 1;
            // Its lane had its turn last.
            self.round.rotate_right(1);
        }
    }

    /// Takes one out that is in a lane.
    pub(super) fn remove(&mut self, fetch: u32) {
        let Link {
            lane,
            table,
            before,
            after,
            ..
        } = self.links[fetch as usize];
        let queue = &mut self.queues[usize::from(lane) * self.tables + usize::from(table)];
        match before {
            NONE => queue.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => queue.last = before,
            after => self.links[after as usize].before = before,
        }
        if queue.first == NONE {
            (queue.put, queue.taken) = (0, 0);
        }
        self.rows -= 1;
        self.in_lane[usize::from(lane)] -= 1;
        self.of_table[usize::from(table)] -= u32::from(lane != LAST);
    }

    /// Another one wants it too, which is in a lane: it moves to the other's lane where it comes sooner.
    pub(super) fn join(&mut self, fetch: u32, lane: Lane) {
        let link = self.links[fetch as usize];
        let own = self.queue(link.lane, link.table);
        let other = self.queue(lane.0.into(), link.table);
        // At most so many are before it: some may have gone from the middle.
        if link.lane == LAST || other.put - other.taken < link.number - own.taken {
            self.remove(fetch);
            self.push(fetch, link.table.into(), Some(lane));
        }
    }

    fn queue(&self, lane: u16, table: u16) -> &Queue {
        &self.queues[usize::from(lane) * self.tables + usize::from(table)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn popped(lanes: &mut Lanes, most: usize) -> Vec<u32> {
        std::iter::from_fn(|| lanes.pop(|_| true))
            .take(most)
            .collect()
    }

    #[test]
    fn each_lane_gives_one_in_turn() {
        let mut lanes = Lanes::new(100, 1);
        (0..50).for_each(|fetch| lanes.push(fetch, 0, Some(Lane::of(0))));
        (50..60).for_each(|fetch| lanes.push(fetch, 0, Some(Lane::of(1))));
        assert_eq!(popped(&mut lanes, 3), [0, 50, 1]);
        // One that comes now waits for each other lane once.
        lanes.push(60, 0, Some(Lane::of(7)));
        assert_eq!(popped(&mut lanes, 4), [51, 2, 60, 52]);
        lanes.put_back(52);
        assert_eq!(popped(&mut lanes, 3), [52, 3, 53]);
        lanes.remove(54);
        assert_eq!(popped(&mut lanes, 3), [4, 55, 5]);
        assert_eq!(popped(&mut lanes, 100).len(), 61 - 13);
        assert!(lanes.is_empty());
    }

    #[test]
    fn one_that_others_want_too_comes_in_the_lane_where_it_is_sooner() {
        let mut lanes = Lanes::new(100, 1);
        (0..50).for_each(|fetch| lanes.push(fetch, 0, Some(Lane::of(0))));
        (50..53).for_each(|fetch| lanes.push(fetch, 0, Some(Lane::of(1))));
        lanes.join(40, Lane::of(1));
        // Three are before it in either.
        lanes.join(3, Lane::of(1));
        lanes.join(40, Lane::of(0));
        assert_eq!(popped(&mut lanes, 8), [0, 50, 1, 51, 2, 52, 3, 40]);
        // The first of a lane stays, whoever wants it.
        lanes.join(4, Lane::of(9));
        assert_eq!(popped(&mut lanes, 1), [4]);
        assert_eq!(popped(&mut lanes, 100).len(), 53 - 9);
    }

    #[test]
    fn rows_of_a_table_that_can_not_be_read_keep_no_others_back() {
        let mut lanes = Lanes::new(100, 3);
        (0..10).for_each(|fetch| lanes.push(fetch, 1, Some(Lane::of(0))));
        (10..12).for_each(|fetch| lanes.push(fetch, 2, Some(Lane::of(0))));
        (12..14).for_each(|fetch| lanes.push(fetch, 1, Some(Lane::of(1))));
        (14..16).for_each(|fetch| lanes.push(fetch, 1, None));
        (16..18).for_each(|fetch| lanes.push(fetch, 0, None));
        // A lane gives rows of its tables in turn.
        assert_eq!(popped(&mut lanes, 4), [0, 12, 10, 13]);
        lanes.put_back(13);
        let is_open = |table| table != 1;
        assert_eq!(lanes.pop(is_open), Some(11));
        assert_eq!(lanes.pop(is_open), None);
        assert_eq!(lanes.pop_last(is_open), Some(16));
        lanes.put_back(16);
        // Of two that come last one is wanted now.
        lanes.join(17, Lane::of(2));
        assert_eq!(lanes.pop(is_open), Some(17));
        assert_eq!(lanes.pop_last(|_| true), Some(16));
        assert_eq!(lanes.pop_last(is_open), None);
        // They are all there as soon as they can be read, those of the lane that has not had its turn first.
        assert_eq!(popped(&mut lanes, 3), [13, 1, 2]);
        assert_eq!(popped(&mut lanes, 100), [3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(lanes.pop_last(|_| true), Some(14));
        lanes.remove(15);
        assert!(lanes.is_empty());
    }

    #[test]
    fn it_does_what_lists_do() {
        const TABLES: usize = 3;
        let mut rng = fastrand::Rng::with_seed(7);
        let mut lanes = Lanes::new(64, TABLES);
        let mut lists: BTreeMap<(Option<u8>, usize), Vec<u32>> = BTreeMap::new();
        let mut free: Vec<u32> = (0..64).collect();
        for _ in 0..20_000 {
            match rng.u8(0..10) {
                0..5 => {
                    let Some(fetch) = free.pop() else { continue };
                    let lane = rng.u8(0..6).checked_sub(1);
                    let table = rng.usize(0..TABLES);
                    lanes.push(fetch, table, lane.map(Lane));
                    lists.entry((lane, table)).or_default().push(fetch);
                }
                5..8 => {
                    let (is_last, closed) = (rng.u8(0..4) == 0, rng.usize(0..2 * TABLES));
                    let is_open = |table| table != closed;
                    let pop = |lanes: &mut Lanes| match is_last {
                        true => lanes.pop_last(is_open),
                        false => lanes.pop(is_open),
                    };
                    let popped = pop(&mut lanes);
                    let may_be =
                        |key: &(Option<u8>, usize)| key.0.is_none() == is_last && is_open(key.1);
                    let open = lists.iter().filter(|(key, _)| may_be(key));
                    let firsts: Vec<u32> =
                        open.filter_map(|(_, list)| list.first().copied()).collect();
                    assert_eq!(popped.is_none(), firsts.is_empty());
                    let Some(popped) = popped else { continue };
                    assert!(firsts.contains(&popped), "the first of a queue");
                    if rng.bool() {
                        lanes.put_back(popped);
                        assert_eq!(pop(&mut lanes), Some(popped), "it is the next again");
                    }
                    for list in lists.values_mut() {
                        list.retain(|&fetch| fetch != popped);
                    }
                    free.push(popped);
                }
                8 => {
                    let all: Vec<u32> = lists.values().flatten().copied().collect();
                    let Some(&fetch) = rng.choice(&all) else {
                        continue;
                    };
                    lanes.remove(fetch);
                    for list in lists.values_mut() {
                        list.retain(|&other| other != fetch);
                    }
                    free.push(fetch);
                }
                _ => {
                    let all: Vec<u32> = lists.values().flatten().copied().collect();
                    let (lane, fetch) = (rng.u8(0..5), rng.choice(&all));
                    let Some(&fetch) = fetch else { continue };
                    let before = lanes.links[fetch as usize];
                    lanes.join(fetch, Lane(lane));
                    let now = lanes.links[fetch as usize];
                    assert_eq!(now.table, before.table);
                    assert!(now.lane != LAST, "somebody waits for it");
                    if now.lane != before.lane {
                        for list in lists.values_mut() {
                            list.retain(|&other| other != fetch);
                        }
                        let key = (Some(lane), usize::from(now.table));
                        lists.entry(key).or_default().push(fetch);
                    }
                }
            }
            let rows: usize = lists.values().map(Vec::len).sum();
            assert_eq!(lanes.rows as usize, rows);
        }
    }
}
