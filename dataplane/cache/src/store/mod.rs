//! Rows in slots of the arena: found by all workers, changed by one writer a shard.
//!
//! A row may be in one of two sets of 16 slots ([`Spread`]). A set's tags, half a cache line or a quarter, say which row each slot holds, of those
//! that may be there; where they are too short for that, or sets change, the number of the row is looked at, too (`agree.rs`).
//! A worker looks rows up in a [`Turn`], in which what it finds stays as it is, and reads them where they are
//! ([`Store::slots`]). A [`Writer`] takes a row away by its tag and number, waits until all turns in which it may have been found have ended
//! ([`Epochs`]), writes another row to the slot and lets that be found.
//!
//! Who may touch what:
//! - tags and numbers are stored by the shard's writer only. All load them, with an acquire fence behind the loads;
//! - the row of a slot is written by the shard's writer, between the end of the epoch in which its tag was taken away and the
//!   store of the next tag, with release. It is read by who found the tag, in the turn in which it was found;
//! - a row that a delta changed is in a slot of its own, whatever the sets hold (`patches.rs`): written by the one thread that does so, before it says
//!   that this is the row's slot and when no turn is left in which another was found there. It is read by who found it, in the same turn;
//! - the number of sets is changed by one thread that is no worker, with [`Store::resize`] and [`Store::settle`]; the writers
//!   [move](Writer::sweep) the rows;
//! - a meta word is stored by anybody who found the slot's row in this turn, and by the writer with the row. Of two stores one
//!   is lost, which the policy has to bear.

mod agree;
mod drawn;
mod extent;
mod find;
mod hot;
mod key;
mod limbo;
mod memory;
mod patches;
mod quiescence;
mod resize;
mod spread;
mod sweep;
mod sync;
mod tags;
mod writer;

use std::collections::TryReserveError;
use std::sync::{Arc, Mutex};

use rowmill_arena::{ArenaError, Backing, HugePages, ReadWindow};
use rowmill_policy::Usage;

pub use drawn::{Drawn, DrawnRow};
pub use find::{Found, Sample};
pub use key::Width;
pub use memory::{Shape, ShapeError, WAYS};
pub use quiescence::{Epochs, Turn, Worker};
pub use resize::{Resize, ResizeError};
pub use spread::{ROWS_END, Spread};
pub use sweep::{Judge, Swept};
pub use tags::{Isa, MISS, Tags};
pub use writer::{Candidate, Counts, Evicted, Held, LimboFull, Ticket, Writer};

use extent::{Extent, View};
use memory::Memory;
use patches::{CHUNK, LEAST, Lacking, Patches};
use resize::Size;
use tags::Looked;

/// Meta words that stay in a core's cache beside other things: an eighth of 1 MiB.
const METAS_NEAR: usize = 1 << 16;

/// How much larger a store may become than it is at first: addresses for that are taken, and no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The sets of a shard that it may have.
    pub sets: u32,
    /// Rows that may be [patched](Store::patch), besides those in sets; fewer where places can't name so many.
    pub patched: u32,
}

/// Why rows could not all be patched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// More than there may be.
    #[error("more rows would have changed than the {most} that there is room for")]
    Full {
        /// So many may have.
        most: u32,
    },
    /// No memory for them.
    #[error("no memory for rows that change")]
    Memory(#[from] ArenaError),
    /// No memory for what says which rows these are.
    #[error("no memory for the index of rows that change")]
    Index(#[source] TryReserveError),
}

/// The rows of a table that are in the arena. Shared by all workers.
#[derive(Debug)]
pub struct Store {
    memory: Arc<Memory>,
    patches: Patches,
    epochs: Arc<Epochs>,
    extent: Arc<Extent>,
    /// Over as many sets as there were at first.
    spread: Spread,
    tags: Tags,
    usage: Usage,
    /// Held by who changes the size, and by who looks at all of it.
    size: Mutex<Size>,
}

impl Store {
    /// An empty store and the writers of its shards, in each of which at most `limbo` slots are in limbo at once. `seed` is
    /// for no client to know.
    ///
    /// # Errors
    /// As [`rowmill_arena::Arena::allocate`].
    pub fn new(
        shape: Shape,
        seed: u64,
        limbo: usize,
        epochs: &Arc<Epochs>,
        tags: Tags,
        policy: HugePages,
    ) -> Result<(Arc<Store>, Vec<Writer>), ArenaError> {
        let room = Room {
            sets: shape.shard_sets(),
            patched: 0,
        };
        Store::with_room(shape, room, seed, limbo, epochs, tags, policy)
    }

    /// The same with room for more, so that it can be given [more sets](Self::resize), and rows can be [patched](Self::patch).
    ///
    /// # Errors
    /// As [`rowmill_arena::Reserve::new`].
    ///
    /// # Panics
    /// If there is room for fewer sets than the shape has, or for more than places can name.
    pub fn with_room(
        shape: Shape,
        room: Room,
        seed: u64,
        limbo: usize,
        epochs: &Arc<Epochs>,
        tags: Tags,
        policy: HugePages,
    ) -> Result<(Arc<Store>, Vec<Writer>), ArenaError> {
        let slots = match room.patched {
            0 => 0,
            rows => rows.saturating_add(CHUNK as u32),
        };
        let memory = Arc::new(Memory::allocate(shape, room.sets, slots, policy)?);
        let patched = memory.patched();
        let most = patched.len().saturating_sub(CHUNK) as u32;
        let patches = Patches::new(patched.start, most, LEAST);
        let spread = shape.spread(seed);
        let extent = Arc::new(Extent::new(&spread));
        let writer = |shard| {
            let (memory, epochs) = (Arc::clone(&memory), Arc::clone(epochs));
            Writer::new(memory, epochs, Arc::clone(&extent), spread, shard, limbo)
        };
        let writers = (0..shape.shards()).map(writer).collect();
        let store = Store {
            memory,
            patches,
            epochs: Arc::clone(epochs),
            extent,
            spread,
            tags,
            usage: Usage::new(),
            size: Mutex::new(Size::new(shape.slots())),
        };
        Ok((Arc::new(store), writers))
    }

    /// Looks up a piece: writes the slot of each of `rows` to the same place of `places`, or [`MISS`].
    ///
    /// A row that its writer puts into another slot meanwhile may be missed.
    ///
    /// # Panics
    /// If the turn is of a worker for whom this store's writers don't wait, there is not a place for each row, or a number is
    /// [`ROWS_END`] or more.
    pub fn find<'t>(&'t self, turn: Turn<'t>, rows: &[u32], places: &'t mut [u32]) -> Found<'t> {
        self.find_and_draw(turn, rows, places, &mut Drawn::nothing())
    }

    /// The same, and draws those that are to be; but none that are [patched](Self::patch): these are there whatever the sets have room for,
    /// and what is drawn is to tell how much room that should be.
    ///
    /// # Panics
    /// As [`find`](Self::find).
    pub fn find_and_draw<'t>(
        &'t self,
        turn: Turn<'t>,
        rows: &[u32],
        places: &'t mut [u32],
        drawn: &mut Drawn,
    ) -> Found<'t> {
        assert!(turn.is_of(&self.epochs), "a turn of another dataplane's");
        let (memory, tags) = (&*self.memory, self.memory.tags());
        let misses = match self.extent.view(&self.spread) {
            View::Still(spread) => {
                let Looked { misses, end } = self.tags.find(tags, &spread, rows, places, drawn);
                match self.extent.is_exact(&spread, end) {
                    true => misses,
                    false => misses + agree::look_again(memory, &spread, rows, places),
                }
            }
            View::Moving(moving) => {
                let Looked { misses, .. } = self.tags.find(tags, &moving, rows, places, drawn);
                misses + agree::look_again(memory, &moving, rows, places)
            }
        };
        let patched = self.patches.put(rows, places, MISS);
        if !drawn.rows().is_empty() && self.patched() > 0 {
            let slots = self.memory.patched();
            drawn.keep(|position| !slots.contains(&places[position]));
        }
        Found::new(&self.memory, places, misses - patched)
    }

    /// What [`find`](Self::find) has found in this turn: these places, of which so many are misses.
    ///
    /// # Panics
    /// As there where the turn is another dataplane's.
    pub(crate) fn found<'t>(
        &'t self,
        turn: Turn<'t>,
        places: &'t [u32],
        misses: usize,
    ) -> Found<'t> {
        assert!(turn.is_of(&self.epochs), "a turn of another dataplane's");
        Found::new(&self.memory, places, misses)
    }

    /// Draws hits of what was found in this turn, as [`find`](Self::find) has it, and puts `touched(n, word)` into the place of the meta word of
    /// each one that is drawn; `n` counts them.
    pub(crate) fn touch(
        &self,
        places: &[u32],
        sample: &mut Sample,
        touched: impl FnMut(usize, u16) -> u16,
    ) {
        find::touch(&self.memory, places, sample, touched);
    }

    /// Rows become others, of these bytes, while they are looked up; each is named once. Who looks one up from when this returns finds it so, as
    /// long as the store is there, whatever it holds of it otherwise. `pass` returns when all turns have ended that had begun when it was called.
    ///
    /// # Errors
    /// [`PatchError`]; some of the rows may have become others.
    ///
    /// # Panics
    /// If there are not as many bytes as rows have.
    pub fn patch(
        &self,
        rows: &[u32],
        bytes: &[u8],
        pass: &mut dyn FnMut(),
    ) -> Result<(), PatchError> {
        let (memory, row_bytes) = (&self.memory, self.most().row_bytes());
        assert_eq!(bytes.len(), rows.len() * row_bytes, "bytes of all rows");
        let mut make = |slots| memory.grow_patched(slots).map_err(Unpatched::Memory);
        let mut write = |position: usize, slot| {
            memory.write_row(slot, &bytes[position * row_bytes..][..row_bytes]);
        };
        let changed = self.patches.change(rows, &mut make, &mut write, pass);
        changed.map_err(|unpatched| match unpatched {
            Unpatched::Memory(error) => PatchError::Memory(error),
            Unpatched::Lacking(Lacking::Index(error)) => PatchError::Index(error),
            Unpatched::Lacking(Lacking::Places) => PatchError::Full {
                most: self.patched() + self.patch_room(),
            },
        })
    }

    /// Rows that were patched.
    pub fn patched(&self) -> u32 {
        self.patches.rows()
    }

    /// How many more rows can be patched.
    pub fn patch_room(&self) -> u32 {
        self.patches.room()
    }

    /// How many of these rows were not patched yet.
    pub fn unpatched(&self, rows: &[u32]) -> usize {
        self.patches.lacking(rows)
    }

    /// All slots, [`Shape::stride`] bytes apart, for kernels: with the [places](Self::places) that were found in a turn in the place of ids,
    /// while it lasts. What is in other slots may change under the reader.
    pub fn slots(&self) -> ReadWindow<'_> {
        self.memory.slots()
    }

    /// One more than the highest place that may ever be found.
    pub fn places(&self) -> u32 {
        self.memory.places()
    }

    /// How large it is, or is about to be.
    pub fn shape(&self) -> Shape {
        let (_, shard_sets) = self.extent.shard_sets();
        self.most().over(shard_sets)
    }

    /// How large it may ever be.
    pub fn most(&self) -> &Shape {
        self.memory.most()
    }

    /// Bytes of memory that it has, which is as much as it needs, rounded up to pages.
    pub fn present(&self) -> usize {
        self.memory.present() + self.patches.bytes()
    }

    /// Bytes that it needs besides, at most, if so many rows are patched that were not before.
    pub fn patch_bytes(&self, rows: u32) -> usize {
        self.patches.bytes_for(rows, self.most().stride())
    }

    /// How rows are spread over its shards, and over its sets as they were at first.
    pub fn spread(&self) -> &Spread {
        &self.spread
    }

    /// Whether tags alone say which row a slot holds. Else a lookup looks at the number of each row that it finds, too, a line more from memory:
    /// while the number of sets changes, where there are fewer than tags are long enough for, and where there are rows that the table had not.
    pub fn is_exact(&self) -> bool {
        match self.extent.view(&self.spread) {
            View::Still(spread) => self.extent.is_exact(&spread, spread.end()),
            View::Moving(_) => false,
        }
    }

    /// Whether tags and meta words stay in a core's cache beside other things. Else each is a line from memory.
    pub fn is_near(&self) -> bool {
        self.shape().slots() as usize <= METAS_NEAR
    }

    /// What its memory is made of.
    pub fn backing(&self) -> &Backing {
        self.memory.backing()
    }

    /// What all workers tell one another of lookups.
    pub(crate) fn usage(&self) -> &Usage {
        &self.usage
    }

    /// How tags are compared.
    pub fn tags(&self) -> Tags {
        self.tags
    }
}

enum Unpatched {
    Lacking(Lacking),
    Memory(ArenaError),
}

impl From<Lacking> for Unpatched {
    fn from(lacking: Lacking) -> Unpatched {
        Unpatched::Lacking(lacking)
    }
}
