//! A request in progress: its private copies and how far it has come.

use arrayvec::ArrayVec;
use rowmill_arena::Staging;
use rowmill_wire::limits::{MAX_FEATURES, MAX_SLICES};
use rowmill_wire::request::Header;

use crate::generations::Side;
use crate::limits::{HELD_RUNS, Limits};
use crate::memory::Conn;
use crate::parked::List;

/// Private copies of what the request brought: features one after another.
#[derive(Debug)]
pub(crate) struct Data {
    /// `features * bags` lengths.
    pub(crate) lengths: Box<[u32]>,
    /// All ids, those of hashed tables resolved to the numbers of rows.
    pub(crate) ids: Box<[u32]>,
    /// All weights, where the schema wants them.
    pub(crate) weights: Box<[f32]>,
}

/// One feature's place in [`Data`] and in the request's segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    /// First length, or offset, in the request's segments.
    pub(crate) lengths_at: u32,
    /// First id in the request's segments.
    pub(crate) segment_at: u32,
    /// First id in [`Data::ids`].
    pub(crate) ids_from: u32,
    /// How many.
    pub(crate) ids: u32,
    /// Ids of the feature in the parts before, where it is not pooled.
    pub(crate) first_id: u32,
    /// The next id to pool, in [`Data::ids`].
    pub(crate) next_id: u32,
}

/// How far copying and checking the ids has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Check {
    /// The feature whose ids come next.
    pub(crate) feature: u32,
    /// How many of its ids are done.
    pub(crate) done: u32,
}

/// How far pooling has come. A slice is pooled panel after panel, a panel's vectors run by run as they
/// fit the staging, and a run feature after feature.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// The slice's first bag; bags before it are finished.
    pub(crate) bag: u32,
    /// The slice's number of bags; 0 between slices.
    pub(crate) slice: u32,
    /// Slices of which all vectors were stored or wait for rows.
    pub(crate) slices: u32,
    /// Slices announced.
    pub(crate) announced: u32,
    /// The panel whose vectors come next.
    pub(crate) panel: u32,
    /// How many vectors each of its features has in the slice; 0 between panels.
    pub(crate) vectors: u32,
    /// How many of these are placed or held.
    pub(crate) placed: u32,
    /// The vectors under way.
    pub(crate) run: Run,
    /// The feature whose vectors come next.
    pub(crate) feature: u32,
    /// How many of its vectors in the run are done.
    pub(crate) done: u32,
    /// How many bags of the run are parked.
    pub(crate) parked: u32,
}

/// A run whose vectors are all pooled but those of parked bags, and that is placed when these are.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) staging: Staging,
    pub(crate) slice: u32,
    pub(crate) panel: u32,
    pub(crate) run: Run,
    /// How many of its bags are parked.
    pub(crate) parked: u32,
}

/// Vectors of a panel that are staged together: of each of its features as many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// The number of the first in the target.
    pub(crate) first: u32,
    /// How many there are.
    pub(crate) count: u32,
}

impl Run {
    pub(crate) fn has(self, vector: u32) -> bool {
        (self.first..self.first + self.count).contains(&vector)
    }
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The slot holds none.
    Free,
    /// Its data have still to be asked for; it waits for its turn to do so.
    Asking,
    /// Its data are on their way.
    Fetching,
    /// Ids are still to be copied and checked.
    Checking,
    /// Rows are being read.
    Pooling,
    /// All that can be done next waits for rows that are on their way, or for room to park a bag.
    Waiting,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) stage: Stage,
    pub(crate) conn: Conn,
    /// The connection's slot that it came in.
    pub(crate) port_slot: u16,
    /// The number of its schema on that connection.
    pub(crate) schema: usize,
    /// The generation that its rows are of.
    pub(crate) side: Side,
    /// The last delta of which all rows were served when it came.
    pub(crate) delta: u64,
    pub(crate) header: Header,
    pub(crate) received_ns: u64,
    /// `u64::MAX` for none.
    pub(crate) deadline_ns: u64,
    pub(crate) spans: Box<[Span; MAX_FEATURES]>,
    pub(crate) data: Data,
    /// Bytes of lengths and ids that were copied and checked, and of data that were asked for, since this was last
    /// looked at.
    pub(crate) handled: u64,
    /// Whether the driver holds data for it.
    pub(crate) fetched: bool,
    pub(crate) check: Check,
    pub(crate) walk: Walk,
    /// Where the run's results are stored until they are placed.
    pub(crate) staging: Option<Staging>,
    /// Earlier runs that are not placed yet.
    pub(crate) held: ArrayVec<Held, HELD_RUNS>,
    /// Bags that wait for rows, and those whose rows are there.
    pub(crate) parked: List,
    pub(crate) ready: List,
    /// The ids of its next bag, where that has to be parked and found no room; otherwise 0.
    pub(crate) crowded: u32,
    /// How many bags that wait or are ready each slice has.
    pub(crate) unplaced: Box<[u32; MAX_SLICES as usize]>,
    /// The next slot in the connection's queue, or [`NONE`].
    pub(crate) next: u32,
}

/// No slot.
pub(crate) const NONE: u32 = u32::MAX;

impl Slot {
    pub(crate) fn new(limits: &Limits) -> Slot {
        Slot {
            stage: Stage::Free,
            conn: Conn(0),
            port_slot: 0,
            schema: 0,
            side: Side::A,
            delta: 0,
            header: Header::null(0),
            received_ns: 0,
            deadline_ns: u64::MAX,
            spans: Box::new([Span::default(); MAX_FEATURES]),
            // Not zeros, which the allocator would give untouched: requests shall not pay for page faults.
            data: Data {
                lengths: vec![u32::MAX; limits.max_lengths as usize].into_boxed_slice(),
                ids: vec![u32::MAX; limits.max_ids as usize].into_boxed_slice(),
                weights: vec![f32::NAN; limits.max_ids as usize].into_boxed_slice(),
            },
            handled: 0,
            fetched: false,
            check: Check::default(),
            walk: Walk::default(),
            staging: None,
            held: ArrayVec::new(),
            parked: List::EMPTY,
            ready: List::EMPTY,
            crowded: 0,
            unplaced: Box::new([0; MAX_SLICES as usize]),
            next: NONE,
        }
    }
}
