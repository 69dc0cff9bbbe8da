//! Rows that wait for their turn to be read: in lanes, one for each client, of which each gives one row in turn.
//!
//! So a row waits for at most as many others as there are lanes with rows, for each row before it in its own lane: whoever
//! wants few rows waits for few of the others', however many these want. A row that a second client wants moves to that one's
//! lane where it has fewer rows before it there. Each move brings it nearer to its turn, so it never moves for ever.

use std::collections::VecDeque;

/// Lanes that there are.
const LANES: usize = 256;
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
    lane: Lane,
    before: u32,
    after: u32,
    /// Rows that were put into its lane before it, since that was last empty.
    number: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
    /// Rows that were put into it and that were taken from its front since it was last empty.
    put: u32,
    taken: u32,
    is_in_round: bool,
}

const EMPTY: Queue = Queue {
    first: NONE,
    last: NONE,
    put: 0,
    taken: 0,
    is_in_round: false,
};

/// Numbers of fetches, each in one lane at most. Nothing is allocated after [`Lanes::new`].
#[derive(Debug)]
pub(super) struct Lanes {
    links: Box<[Link]>,
    queues: Box<[Queue; LANES]>,
    /// Lanes whose turn comes, the next one first; some may be empty by then.
    round: VecDeque<Lane>,
    rows: u32,
}

impl Lanes {
    /// For numbers below `fetches`.
    pub(super) fn new(fetches: u32) -> Lanes {
        let link = Link {
            lane: Lane(0),
            before: NONE,
            after: NONE,
            number: 0,
        };
        Lanes {
            links: vec![link; fetches as usize].into_boxed_slice(),
            queues: Box::new([EMPTY; LANES]),
            round: VecDeque::with_capacity(LANES),
            rows: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// The lane that one is in, or was in last.
    pub(super) fn lane(&self, fetch: u32) -> Lane {
        self.links[fetch as usize].lane
    }

    /// Puts one in that is in no lane, behind all of its lane.
    pub(super) fn push(&mut self, fetch: u32, lane: Lane) {
        let queue = &mut self.queues[usize::from(lane.0)];
        self.links[fetch as usize] = Link {
            lane,
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
        if !queue.is_in_round {
            queue.is_in_round = true;
            self.round.push_back(lane);
        }
    }

    /// Takes the one whose turn it is.
    pub(super) fn pop(&mut self) -> Option<u32> {
        while let Some(&lane) = self.round.front() {
            let queue = &mut self.queues[usize::from(lane.0)];
            if queue.first == NONE {
                queue.is_in_round = false;
                self.round.pop_front();
                continue;
            }
            self.round.rotate_left(1);
            let first = queue.first;
            queue.taken += 1;
            self.remove(first);
            return Some(first);
        }
        None
    }

    /// Puts back the one that was just taken: it is the next again.
    pub(super) fn put_back(&mut self, fetch: u32) {
        let link = &mut self.links[fetch as usize];
        let queue = &mut self.queues[usize::from(link.lane.0)];
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
        // Its lane had its turn last.
        self.round.rotate_right(1);
    }

    /// Takes one out that is in a lane.
    pub(super) fn remove(&mut self, fetch: u32) {
        let Link {
            lane,
            before,
            after,
            ..
        } = self.links[fetch as usize];
        let queue = &mut self.queues[usize::from(lane.0)];
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
    }

    /// Another one wants it too: it moves to the other's lane where it comes sooner.
    pub(super) fn join(&mut self, fetch: u32, lane: Lane) {
        let link = self.links[fetch as usize];
        let (own, other) = (self.queue(link.lane), self.queue(lane));
        // At most so many are before it: some may have gone from the middle.
        if other.put - other.taken < link.number - own.taken {
            self.remove(fetch);
            self.push(fetch, lane);
        }
    }

    fn queue(&self, lane: Lane) -> &Queue {
        &self.queues[usize::from(lane.0)]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn popped(lanes: &mut Lanes, most: usize) -> Vec<u32> {
        std::iter::from_fn(|| lanes.pop()).take(most).collect()
    }

    #[test]
    fn each_lane_gives_one_in_turn() {
        let mut lanes = Lanes::new(100);
        (0..50).for_each(|fetch| lanes.push(fetch, Lane::of(0)));
        (50..60).for_each(|fetch| lanes.push(fetch, Lane::of(1)));
        assert_eq!(popped(&mut lanes, 3), [0, 50, 1]);
        // One that comes now waits for each other lane once.
        lanes.push(60, Lane::of(7));
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
        let mut lanes = Lanes::new(100);
        (0..50).for_each(|fetch| lanes.push(fetch, Lane::of(0)));
        (50..53).for_each(|fetch| lanes.push(fetch, Lane::of(1)));
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
    fn it_does_what_lists_do() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut lanes = Lanes::new(64);
        let mut lists: BTreeMap<u8, Vec<u32>> = BTreeMap::new();
        let mut free: Vec<u32> = (0..64).collect();
        for _ in 0..20_000 {
            match rng.u8(0..10) {
                0..5 => {
                    let Some(fetch) = free.pop() else { continue };
                    let lane = rng.u8(0..5);
                    lanes.push(fetch, Lane(lane));
                    lists.entry(lane).or_default().push(fetch);
                }
                5..8 => {
                    let popped = lanes.pop();
                    let first = |list: &Vec<u32>| list.first().copied();
                    let firsts: Vec<u32> = lists.values().filter_map(first).collect();
                    assert_eq!(popped.is_none(), firsts.is_empty());
                    let Some(popped) = popped else { continue };
                    assert!(firsts.contains(&popped), "the first of a lane");
                    if rng.bool() {
                        lanes.put_back(popped);
                        assert_eq!(lanes.pop(), Some(popped), "it is the next again");
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
                    let before = lanes.links[fetch as usize].lane;
                    lanes.join(fetch, Lane(lane));
                    if lanes.links[fetch as usize].lane != before {
                        let list = lists.get_mut(&before.0).expect("it was there");
                        list.retain(|&other| other != fetch);
                        lists.entry(lane).or_default().push(fetch);
                    }
                }
            }
            let rows: usize = lists.values().map(Vec::len).sum();
            assert_eq!(lanes.rows as usize, rows);
        }
    }
}
