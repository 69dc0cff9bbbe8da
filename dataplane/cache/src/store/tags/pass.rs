//! Looking up the rows of a piece.
//!
//! Rows are taken in blocks, so that what is done to each without a load from far away, the hash above all, is done by vectors.
//! What is not in its primary set is gathered and looked for in its secondary one in the same way. A place holds the number of the
//! row's set from when that is asked for until its tags are compared, for which its *key* is kept, as often as it fits into a word of 32 bits:
//! that is what a vector is filled with fastest.
#![allow(unsafe_code)]

use rowmill_arena::prefetch_line;

use super::super::drawn::{Drawn, DrawnRow};
use super::super::extent::Sets;
use super::super::key::Tag;
use super::super::memory::{SetTags, WAYS};
use super::super::spread::{LANES, ROWS_END};
use super::super::sync::{Ordering, fence};

/// What stands in the place of a row that is in no slot.
pub const MISS: u32 = u32::MAX;

/// Rows of a block.
pub(super) const BLOCK: usize = LANES;
/// Blocks of a group: as many rows as a word has bits. What is done by a branch that is not foreseen is done for a group at a time.
/// Block by block, gathering what is missed cost 0.1 ns a row, and seeing whether any is drawn as much (of 1.3; Zen 5, tags near).
const GROUP: usize = u64::BITS as usize / BLOCK;
/// How many groups are asked for before the first is looked at: 128 lines. What has to be in flight is set by the memory, in lines: 64
/// cost a tenth more where lines come from memory, and more than 128 are no faster.
const AHEAD: usize = 2;
/// Groups of which keys are kept: those that are numbered and not looked at, and the one that is.
const KEYS: usize = AHEAD + 2;
/// Blocks of rows that are not in their primary sets which are gathered before they are looked for in their secondary ones: as a rule
/// those of a whole piece, of which a tenth are so. (An empty room is cleared for each piece.)
const ROOM: usize = 20;

pub(super) type Block = [u32; BLOCK];
type Group = [Block; GROUP];

/// A way to compare the tags of sets. Each tag is loaded once, as by a relaxed load.
pub(super) trait Probe<T>: Copy {
    /// Compares the tags of a block's sets, whose numbers are in `places`, with `keys`, and writes slots, or [`MISS`], there. Those rows
    /// that are missed are bits of the result. Meanwhile, row by row, the tags of the sets `next` are asked for.
    ///
    /// # Safety
    /// Each of `places` is the number of one of `tags`.
    unsafe fn look_at(
        self,
        tags: &[SetTags<T>],
        keys: &Block,
        places: &mut Block,
        next: &Block,
    ) -> u32;
}

/// [`Probe::look_at`] by `matches`, which tells the ways whose tags are the key's, `BITS` bits each.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn look_at_each<const BITS: u32, T>(
    matches: impl Fn(&SetTags<T>, u32) -> u64,
    tags: &[SetTags<T>],
    keys: &Block,
    places: &mut Block,
    next: &Block,
) -> u32 {
    let mut missed = 0;
    for i in 0..BLOCK {
        ask(tags, next[i]);
        // SAFETY: the caller's contract.
        let of_set = unsafe { tags.get_unchecked(places[i] as usize) };
        let matches = matches(of_set, keys[i]);
        places[i] = slot(places[i], matches.trailing_zeros() / BITS, matches != 0);
        missed |= u32::from(matches == 0) << i;
    }
    missed
}

/// What was found out about a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) struct Looked {
    /// Rows that are in no slot.
    pub(in crate::store) misses: usize,
    /// A power of two above all their numbers.
    pub(in crate::store) end: u32,
}

/// Writes the slot that holds each of `rows` to the same place of `places`, or [`MISS`]. Those that are to be are drawn.
///
/// What was published before its tag was found is seen by the caller: one fence with acquire stands behind all loads of tags,
/// and each tag of a row was stored with release.
///
/// # Panics
/// If there is not a place for each row, or a number is none of a row.
#[inline(always)]
pub(super) fn find<T: Tag, P: Probe<T>, S: Sets>(
    probe: P,
    tags: &[SetTags<T>],
    sets: &S,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> Looked {
    assert_eq!(rows.len(), places.len(), "a place for each row");
    assert!(sets.end() as usize <= tags.len(), "tags of each set");
    let pass = Pass {
        probe,
        tags,
        sets: *sets,
        drawn_below: sets.below(drawn.threshold()),
    };
    let groups: &[Group] = rows.as_chunks().0.as_chunks().0;
    let (whole, rest) = rows.split_at(groups.as_flattened().as_flattened().len());
    let blocks = rest.len().div_ceil(BLOCK);
    let (last, mut last_keys, mut last_places) =
        (filled_up(rest), Group::default(), Group::default());
    let (last, last_keys) = (&last[..blocks], &mut last_keys[..blocks]);
    let last_places = &mut last_places[..blocks];
    // Now, lest the last few be waited for at the end.
    pass.hash(last, last_keys, last_places);
    pass.ask(last_places);
    let mut left = Left::new();
    let (places_of_whole, places_of_rest) = places.split_at_mut(whole.len());
    let groups_of_places = places_of_whole.as_chunks_mut().0.as_chunks_mut().0;
    pass.find_groups(groups, groups_of_places, &mut left, drawn);
    if !rest.is_empty() {
        pass.draw(rest, last_places, whole.len(), drawn);
        // Nothing comes behind: set 0 is there, whatever the store.
        let asked = Group::default();
        let missed = pass.look_at(last_keys, last_places, &asked[..blocks]);
        note(&mut left.bits, last);
        places_of_rest.copy_from_slice(&last_places.as_flattened()[..rest.len()]);
        left.add(whole.len(), missed & !(u64::MAX << rest.len()));
    }
    pass.find_secondary(rows, places, &mut left);
    fence(Ordering::Acquire);
    let bits = left.bits.iter().fold(0, |bits, row| bits | row);
    assert!(bits < ROWS_END, "a number that is none of a row");
    Looked {
        misses: left.misses,
        end: (bits + 1).next_power_of_two(),
    }
}

/// A group of these rows, filled up with the first of them. Of none it is one of row 0.
#[inline(always)]
fn filled_up(rows: &[u32]) -> Group {
    let first = rows.first().copied().unwrap_or(0);
    let mut group = [[first; BLOCK]; GROUP];
    group.as_flattened_mut()[..rows.len()].copy_from_slice(rows);
    group
}

/// What looking up needs.
struct Pass<'a, T, P, S> {
    probe: P,
    tags: &'a [SetTags<T>],
    sets: S,
    /// Where rows that are drawn have their primary sets, and others may.
    drawn_below: u32,
}

/// The rows that are not in their primary sets, and what has been found out so far.
struct Left {
    /// How many there are, and how many blocks of them are asked for.
    count: usize,
    asked: usize,
    /// Where they are in the piece.
    positions: [u32; ROOM * BLOCK],
    keys: [Block; ROOM],
    places: [Block; ROOM],
    /// Bits that are set in any row.
    bits: Block,
    /// Rows that are in no slot.
    misses: usize,
}

impl Left {
    fn new() -> Left {
        Left {
            count: 0,
            asked: 0,
            positions: [0; ROOM * BLOCK],
            keys: [[0; BLOCK]; ROOM],
            places: [[0; BLOCK]; ROOM],
            bits: [0; BLOCK],
            misses: 0,
        }
    }

    /// Whether there may be no room for a group's rows more.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.count > (ROOM - GROUP) * BLOCK
    }

    /// Adds the rows of a group that are bits of `missed`; `first` is where it begins.
    #[inline(always)]
    fn add(&mut self, first: usize, missed: u64) {
        // A group's worth of room is behind the last.
        let room = &mut self.positions[self.count..][..missed.count_ones() as usize];
        let mut bits = missed;
        for position in room {
            *position = (first as u32).wrapping_add(bits.trailing_zeros());
            bits &= bits.wrapping_sub(1);
        }
        self.count = self.count.wrapping_add(missed.count_ones() as usize);
    }
}

impl<T: Tag, P: Probe<T>, S: Sets> Pass<'_, T, P, S> {
    /// Looks groups up in their primary sets.
    #[inline(always)]
    fn find_groups(
        &self,
        rows: &[Group],
        places: &mut [Group],
        left: &mut Left,
        drawn: &mut Drawn,
    ) {
        // Of group `k` at `k` modulo their number.
        let mut keys = [Group::default(); KEYS];
        // Sets are numbered a group before they are asked for, but for the first ones: vectors are stored then, and words loaded.
        for k in 0..rows.len().min(AHEAD + 1) {
            self.number(rows, &mut keys, places, k, drawn);
            // Not behind the last: see `ask`.
            if k < AHEAD {
                self.ask(&places[k]);
            }
        }
        let (mut bits, mut missed) = (left.bits, 0);
        for k in 0..rows.len() {
            // What is missed of the group before, not of this one: a branch that is not foreseen would wait for tags from far away, and
            // nothing behind it would be begun meanwhile.
            if k > 0 {
                self.gather(rows, places, k.wrapping_sub(1), missed, left);
            }
            // At the end those of the last group once more, which are on their way.
            let next = places[k.wrapping_add(AHEAD).min(rows.len().wrapping_sub(1))];
            note(&mut bits, &rows[k]);
            let (of_group, coming) = (keys[k % KEYS], k.wrapping_add(AHEAD + 1));
            missed = match places.split_at_mut(coming.min(rows.len())) {
                (seen, [unseen, ..]) => {
                    let to = (&mut keys[coming % KEYS], unseen);
                    self.look_at_and_hash(&of_group, &mut seen[k], &next, &rows[coming], to)
                }
                (seen, []) => self.look_at(&of_group, &mut seen[k], &next),
            };
            if coming < rows.len() {
                let sets = &places[coming];
                self.draw(rows[coming].as_flattened(), sets, start(coming), drawn);
            }
        }
        if let Some(last) = rows.len().checked_sub(1) {
            self.gather(rows, places, last, missed, left);
        }
        left.bits = bits;
    }

    /// Gathers the rows of a group that are bits of `missed`, and looks further for them.
    #[inline(always)]
    fn gather(&self, rows: &[Group], places: &mut [Group], k: usize, missed: u64, left: &mut Left) {
        left.add(start(k), missed);
        let rows = rows.as_flattened().as_flattened();
        while left.count >= left.asked.wrapping_add(1).wrapping_mul(BLOCK) {
            self.ask_secondary(rows, left, BLOCK);
        }
        if left.is_full() {
            let places = places.as_flattened_mut().as_flattened_mut();
            self.find_secondary(rows, places, left);
        }
    }

    /// Numbers the primary sets of a group, and draws its rows.
    #[inline(always)]
    fn number(
        &self,
        rows: &[Group],
        keys: &mut [Group; KEYS],
        places: &mut [Group],
        k: usize,
        drawn: &mut Drawn,
    ) {
        self.hash(&rows[k], &mut keys[k % KEYS], &mut places[k]);
        self.draw(rows[k].as_flattened(), &places[k], start(k), drawn);
    }

    /// Looks at the sets of blocks, whose numbers [`hash`](Self::hash) wrote, and writes slots in their place. The rows that are missed are
    /// bits of the result. The sets `next` are asked for.
    #[inline(always)]
    fn look_at(&self, keys: &[Block], places: &mut [Block], next: &[Block]) -> u64 {
        let mut missed = 0;
        for (i, ((keys, places), next)) in keys.iter().zip(places).zip(next).enumerate() {
            // SAFETY: `hash` wrote numbers of sets, of which there are no more than tags.
            let of_block = unsafe { self.probe.look_at(self.tags, keys, places, next) };
            missed |= u64::from(of_block) << i.wrapping_mul(BLOCK);
        }
        missed
    }

    /// The same of a group, and meanwhile the primary sets of one that comes are numbered, block by block: lines are on their way while a core
    /// computes. With the whole group's numbers first, lookups took 0.1 ns more a row (of 2.7; 2 M rows, Zen 4).
    #[inline(always)]
    fn look_at_and_hash(
        &self,
        keys: &Group,
        places: &mut Group,
        next: &Group,
        coming: &Group,
        (keys_coming, places_coming): (&mut Group, &mut Group),
    ) -> u64 {
        let mut missed = 0;
        for i in 0..GROUP {
            (places_coming[i], keys_coming[i]) = self.hash_block(&coming[i]);
            // SAFETY: `hash_block` wrote numbers of sets, of which there are no more than tags.
            let of_block = unsafe {
                self.probe
                    .look_at(self.tags, &keys[i], &mut places[i], &next[i])
            };
            missed |= u64::from(of_block) << i.wrapping_mul(BLOCK);
        }
        missed
    }

    /// Asks for the secondary sets of the next `count` rows that are left over.
    #[inline(always)]
    fn ask_secondary(&self, rows: &[u32], left: &mut Left, count: usize) {
        let block = left.asked;
        let positions = &left.positions[block.wrapping_mul(BLOCK)..][..count];
        let (keys, places) = (&mut left.keys[block], &mut left.places[block]);
        // What is behind them in the last block is row 0.
        let mut left_rows = [0; BLOCK];
        for (row, &position) in left_rows.iter_mut().zip(positions) {
            *row = rows[position as usize];
        }
        for ((place, key), row) in places.iter_mut().zip(keys).zip(left_rows) {
            *place = self.sets.secondary(row);
            *key = self.sets.secondary_key(row).wrapping_mul(T::FILL);
        }
        self.ask(core::slice::from_ref(places));
        left.asked = block.wrapping_add(1);
    }

    /// Looks for the rows that are left over in their secondary sets, and counts those that are missed. None are left then.
    #[inline(always)]
    fn find_secondary(&self, rows: &[u32], places: &mut [u32], left: &mut Left) {
        while left.asked.wrapping_mul(BLOCK) < left.count {
            let rest = left.count.wrapping_sub(left.asked.wrapping_mul(BLOCK));
            self.ask_secondary(rows, left, rest.min(BLOCK));
        }
        let pairs = left.keys[..left.asked].iter();
        for (keys, places) in pairs.zip(&mut left.places[..left.asked]) {
            let asked = *places;
            // SAFETY: `ask_secondary` wrote numbers of sets, of which there are no more than tags.
            unsafe { self.probe.look_at(self.tags, keys, places, &asked) };
        }
        let found = left.places.as_flattened().iter();
        for (&place, &position) in found.zip(&left.positions[..left.count]) {
            places[position as usize] = place;
            left.misses = left.misses.wrapping_add(usize::from(place == MISS));
        }
        (left.count, left.asked) = (0, 0);
    }

    /// Writes the primary sets of blocks to their places, and the keys that rows have there.
    #[inline(always)]
    fn hash(&self, rows: &[Block], keys: &mut [Block], places: &mut [Block]) {
        for ((rows, keys), places) in rows.iter().zip(keys).zip(places) {
            (*places, *keys) = self.hash_block(rows);
        }
    }

    /// The primary sets of a block's rows, and the keys that they have there.
    #[inline(always)]
    fn hash_block(&self, rows: &Block) -> (Block, Block) {
        let (sets, keys) = self.sets.primaries(rows);
        (sets, keys.map(|key| key.wrapping_mul(T::FILL)))
    }

    /// Draws rows whose primary sets are known. `first` is where they begin.
    #[inline(always)]
    fn draw(&self, rows: &[u32], sets: &[Block], first: usize, drawn: &mut Drawn) {
        let sets = sets.as_flattened();
        let lowest = sets.iter().fold(u32::MAX, |lowest, &set| lowest.min(set));
        if lowest < self.drawn_below {
            self.draw_each(rows, sets, first, drawn);
        }
    }

    /// Draws rows of a group one by one.
    #[cold]
    #[inline(never)]
    fn draw_each(&self, rows: &[u32], sets: &[u32], first: usize, drawn: &mut Drawn) {
        // Few are: which they may be is seen without a branch, four instructions a row.
        let mut bits = 0_u64;
        for (i, &set) in sets[..rows.len()].iter().enumerate() {
            bits |= u64::from(set < self.drawn_below) << i;
        }
        while bits != 0 {
            let i = bits.trailing_zeros() as usize;
            bits &= bits.wrapping_sub(1);
            let (row, position) = (rows[i], (first + i) as u32);
            let place = self.sets.place(row);
            if place < drawn.threshold() {
                drawn.push(DrawnRow {
                    position,
                    row,
                    place,
                });
            }
        }
    }

    /// Asks for the lines of sets.
    #[inline(always)]
    fn ask(&self, sets: &[Block]) {
        sets.as_flattened()
            .iter()
            .for_each(|&set| ask(self.tags, set));
    }
}

/// Sets the bits that are set in any of these rows.
#[inline(always)]
fn note(bits: &mut Block, rows: &[Block]) {
    for rows in rows {
        for (bits, row) in bits.iter_mut().zip(rows) {
            *bits |= row;
        }
    }
}

/// Asks for the tags of a set.
///
/// A core that has no room for what it is asked for may forget it, and the line is waited for later. So there is one for each row that is looked
/// at, whose own line had to come first. With those of a group at once lookups and kernels had 0.51 of the rate of kernels alone,
/// with those of a block 0.59, one by one 0.63 (int8 dim 64, 2 M rows, medians; Zen 3, when tags had 4 bytes).
#[inline(always)]
pub(super) fn ask<T>(tags: &[SetTags<T>], set: u32) {
    prefetch_line(tags.as_ptr().wrapping_add(set as usize));
}

/// Where a group begins.
#[inline(always)]
fn start(k: usize) -> usize {
    k.wrapping_mul(GROUP * BLOCK)
}

/// The slot of a way, if it `is_found`.
#[inline(always)]
fn slot(set: u32, way: u32, is_found: bool) -> u32 {
    let found = set.wrapping_mul(WAYS as u32) | way;
    // Written as arithmetic, lest there be a branch that is mostly but not always the same.
    found | u32::from(is_found).wrapping_sub(1)
}
