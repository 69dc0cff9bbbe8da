//! What has been given to a queue and not come back: payloads in the order in which they were posted.

use core::ops::RangeInclusive;
use std::collections::VecDeque;

/// A queue of payloads, each with the numbers of the first and the last request that names it. It has a fixed
/// capacity and never allocates after it was made.
#[derive(Debug)]
pub(crate) struct Flight<P> {
    entries: VecDeque<(RangeInclusive<u64>, P)>,
    capacity: usize,
}

impl<P> Flight<P> {
    pub(crate) fn new(capacity: usize) -> Flight<P> {
        Flight {
            entries: VecDeque::with_capacity(capacity),
            capacity,
        }
    }

    /// Payloads in flight.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes the payload of requests that come after those of all payloads before it.
    pub(crate) fn push(&mut self, requests: RangeInclusive<u64>, payload: P) {
        assert!(self.len() < self.capacity, "room was checked before");
        let before = self.entries.back().map(|(requests, _)| *requests.end());
        let rises = requests.start() <= requests.end();
        assert!(
            rises && before.is_none_or(|before| before < *requests.start()),
            "numbers rise"
        );
        self.entries.push_back((requests, payload));
    }

    /// Gives back the oldest payload, if all its requests are done when those below `done` are.
    pub(crate) fn pop(&mut self, done: u64) -> Option<P> {
        match self.entries.front() {
            Some((requests, _)) if *requests.end() < done => {
                self.entries.pop_front().map(|(_, payload)| payload)
            }
            _ => None,
        }
    }

    /// Requests from `from` on were not posted after all: gives back the newest payload that was for such ones only.
    /// One that was for earlier ones too stays until those are done.
    pub(crate) fn take_back(&mut self, from: u64) -> Option<P> {
        let (requests, _) = self.entries.back_mut()?;
        if *requests.end() < from {
            return None;
        }
        if *requests.start() < from {
            *requests = *requests.start()..=from - 1;
            return None;
        }
        self.entries.pop_back().map(|(_, payload)| payload)
    }
}

impl<P> Default for Flight<P> {
    fn default() -> Flight<P> {
        Flight::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(flight: &mut Flight<char>, done: u64) -> String {
        std::iter::from_fn(|| flight.pop(done)).collect()
    }

    #[test]
    fn a_completion_gives_back_all_up_to_it() {
        let mut flight = Flight::new(4);
        for (requests, payload) in [(1..=1, 'a'), (2..=4, 'b'), (5..=5, 'c'), (7..=9, 'd')] {
            flight.push(requests, payload);
        }
        assert_eq!(back(&mut flight, 1), "");
        assert_eq!(back(&mut flight, 4), "a");
        assert_eq!(back(&mut flight, 5), "b");
        assert_eq!(back(&mut flight, 5), "");
        flight.push(12..=12, 'e');
        assert_eq!(back(&mut flight, u64::MAX), "cde");
        assert_eq!(flight.len(), 0);
    }

    #[test]
    fn what_was_not_posted_comes_back_unless_a_part_was() {
        let mut flight = Flight::new(4);
        for (requests, payload) in [(1..=1, 'a'), (2..=6, 'b'), (7..=7, 'c'), (8..=9, 'd')] {
            flight.push(requests, payload);
        }
        let unposted: String = std::iter::from_fn(|| flight.take_back(5)).collect();
        assert_eq!(unposted, "dc");
        assert_eq!(back(&mut flight, 4), "a");
        flight.push(5..=5, 'e');
        assert_eq!(back(&mut flight, 5), "b");
        assert_eq!(back(&mut flight, 6), "e");
    }

    #[test]
    #[should_panic(expected = "room was checked")]
    fn more_than_its_capacity_is_a_mistake() {
        let mut flight = Flight::new(1);
        flight.push(0..=0, ());
        flight.push(1..=1, ());
    }

    #[test]
    #[should_panic(expected = "numbers rise")]
    fn numbers_out_of_order_are_a_mistake() {
        let mut flight = Flight::new(2);
        flight.push(1..=2, ());
        flight.push(2..=2, ());
    }
}
