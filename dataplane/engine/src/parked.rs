//! Bags that wait for rows of theirs, by the request that they are of.

use rowmill_cache::fetch::BagId;

use crate::crowd::Place;
use crate::slot::NONE;

/// A bag of a request, or an id of a feature that is not pooled, that waits for rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bag {
    pub(crate) id: BagId,
    /// The engine's slot that holds the request.
    pub(crate) slot: u32,
    pub(crate) panel: u32,
    pub(crate) feature: u32,
    /// The number of its vector in the target.
    pub(crate) vector: u32,
    pub(crate) slice: u32,
    /// Its length, in the request's.
    pub(crate) lengths_at: u32,
    /// Its ids in the request's, which are places in staging now.
    pub(crate) first_id: u32,
    pub(crate) ids: u32,
    /// Whose room it takes.
    pub(crate) place: Place,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    bag: Option<Bag>,
    before: u32,
    after: u32,
}

/// The parked bags of a request that wait, or those that can be pooled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

impl List {
    pub(crate) const EMPTY: List = List {
        first: NONE,
        last: NONE,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

/// All parked bags, by their numbers.
#[derive(Debug)]
pub(crate) struct Parked {
    nodes: Box<[Node]>,
}

impl Parked {
    pub(crate) fn new(bags: u32) -> Parked {
        let node = Node {
            bag: None,
            before: NONE,
            after: NONE,
        };
        Parked {
            nodes: vec![node; bags as usize].into_boxed_slice(),
        }
    }

    /// The bag of that number.
    pub(crate) fn bag(&self, id: BagId) -> Bag {
        let bag = self.nodes[id.number()].bag;
        bag.expect("a parked bag has its place until it is released")
    }

    pub(crate) fn first(&self, list: &List) -> Option<Bag> {
        (list.first != NONE).then(|| self.nodes[list.first as usize].bag.expect("it is listed"))
    }

    /// Appends a bag.
    pub(crate) fn push(&mut self, list: &mut List, bag: Bag) {
        let number = bag.id.number() as u32;
        self.nodes[number as usize] = Node {
            bag: Some(bag),
            before: list.last,
            after: NONE,
        };
        match list.last {
            NONE => list.first = number,
            last => self.nodes[last as usize].after = number,
        }
        list.last = number;
    }

    /// Takes a bag out of the list that it is in.
    pub(crate) fn remove(&mut self, list: &mut List, id: BagId) -> Bag {
        let node = &mut self.nodes[id.number()];
        let bag = node.bag.take().expect("it is listed");
        let (before, after) = (node.before, node.after);
        match before {
            NONE => list.first = after,
            before => self.nodes[before as usize].after = after,
        }
        match after {
            NONE => list.last = before,
            after => self.nodes[after as usize].before = before,
        }
        bag
    }
}
