//! Looking up the rows of a piece.
//!
//! Rows are taken in blocks, so that what is done to each without a load from far away, the hash above all, is done by vectors.
//! What is not in its primary set is gathered and looked for in its secondary one in the same way. A place holds the number of the
//! row's set from when that is asked for until its tags are compared.
#![allow(unsafe_code)]

use rowmill_arena::prefetch_line;

use super::super::drawn::{Drawn, DrawnRow};
use super::super::extent::Sets;
use super::super::memory::{Line, ROWS_END, WAYS};
use super::super::sync::{Ordering, fence};

/// What stands in the place of a row that is in no slot.
pub const MISS: u32 = u32::MAX;

/// Rows of a block: as many words as the widest vector has.
pub(super) const BLOCK: usize = 16;
/// How many blocks are asked for before the first is looked at: 128 lines. What has to be in flight is set by the memory, in lines: 64
/// cost a tenth more where lines come from memory, and more than 128 are no faster.
const AHEAD: usize = 8;
/// Blocks of rows that are not in their primary sets which are gathered before they are looked for in their secondary ones: as a rule
/// those of a whole piece, of which a tenth are so. (An empty room is cleared for each piece.)
const ROOM: usize = 16;
/// Rows of a block that are mostly not in the set that was looked at, at most: more cost a branch that is not foreseen.
const FEW: usize = 4;

pub(super) type Block = [u32; BLOCK];

/// A way to compare the tags of sets. Each tag is loaded once, as by a relaxed load.
pub(super) trait Probe: Copy {
    /// Compares the tags of a block's sets, whose numbers are in `places`, and writes slots, or [`MISS`], there. Those rows that
    /// are missed are bits of the result.
    ///
    /// # Safety
    /// Each of `places` is the number of one of `lines`.
    unsafe fn look_at(self, lines: &[Line], rows: &Block, places: &mut Block) -> u32;
}

/// [`Probe::look_at`] by `matches`, which tells the ways whose tags are a row, a bit each.
///
/// # Safety
/// As there.
#[inline(always)]
pub(super) unsafe fn look_at_each(
    matches: impl Fn(&Line, u32) -> u32,
    lines: &[Line],
    rows: &Block,
    places: &mut Block,
) -> u32 {
    let mut missed = 0;
    for i in 0..BLOCK {
        // SAFETY: the caller's contract.
        let line = unsafe { lines.get_unchecked(places[i] as usize) };
        let matches = matches(line, rows[i]);
        places[i] = slot(places[i], matches);
        missed |= u32::from(matches == 0) << i;
    }
    missed
}

/// Writes the slot that holds each of `rows` to the same place of `places`, or [`MISS`], and tells how many are missed. Those
/// that are to be are drawn.
///
/// What was published before its tag was found is seen by the caller: one fence with acquire stands behind all loads of tags,
/// and each tag of a row was stored with release.
///
/// # Panics
/// If there is not a place for each row, or a number is none of a row.
#[inline(always)]
pub(super) fn find<P: Probe, S: Sets>(
    probe: P,
    lines: &[Line],
    sets: &S,
    rows: &[u32],
    places: &mut [u32],
    drawn: &mut Drawn,
) -> usize {
    assert_eq!(rows.len(), places.len(), "a place for each row");
    assert!(sets.end() as usize <= lines.len(), "a line for each set");
    let pass = Pass {
        probe,
        lines,
        sets: *sets,
        drawn_below: sets.below(drawn.threshold()),
    };
    let (blocks, rest) = rows.as_chunks();
    let (last, mut last_places) = (filled_up(rest), [0; BLOCK]);
    if !rest.is_empty() {
        // Now, lest the last few be waited for at the end.
        pass.hash(&last, &mut last_places);
        pass.ask(&last_places);
    }
    let mut left = Left::new();
    pass.find_blocks(blocks, places.as_chunks_mut().0, &mut left, drawn);
    if !rest.is_empty() {
        let first = blocks.as_flattened().len();
        if pass.may_draw(&last_places) {
            pass.draw_each(rest, &last_places, first, drawn);
        }
        // SAFETY: `hash` wrote numbers of sets, of which there are no more than lines.
        let missed = unsafe { pass.probe.look_at(lines, &last, &mut last_places) };
        places[first..].copy_from_slice(&last_places[..rest.len()]);
        left.add(first, missed & !(u32::MAX << rest.len()));
    }
    pass.find_secondary(rows, places, &mut left);
    fence(Ordering::Acquire);
    let bits = left.bits.iter().chain(rest).fold(0, |bits, row| bits | row);
    assert!(bits < ROWS_END, "a number that is none of a row");
    left.misses
}

/// A block of these rows, as often as they fit. Of none it is a block of row 0.
#[inline(always)]
fn filled_up(rows: &[u32]) -> Block {
    core::array::from_fn(|i| rows.get(i % rows.len().max(1)).map_or(0, |&row| row))
}

/// What looking up needs.
#[derive(Clone, Copy)]
struct Pass<'a, P, S> {
    probe: P,
    lines: &'a [Line],
    sets: S,
    /// Where rows that are drawn have their primary sets, and others may.
    drawn_below: u32,
}

/// The rows that are not in their primary sets, and what has been found out so far.
struct Left {
    /// How many there are, and how many blocks of them are asked for.
    count: usize,
    asked: usize,
    /// Where they are in the piece. With room for what is written behind the last, see [`add`](Self::add).
    positions: [u32; ROOM * BLOCK + BLOCK],
    rows: [Block; ROOM],
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
            positions: [0; ROOM * BLOCK + BLOCK],
            rows: [[0; BLOCK]; ROOM],
            places: [[0; BLOCK]; ROOM],
            bits: [0; BLOCK],
            misses: 0,
        }
    }

    /// Whether there may be no room for a block's worth of rows more.
    #[inline(always)]
    fn is_full(&self) -> bool {
        self.count > (ROOM - 1) * BLOCK
    }

    /// Adds the rows of a block that are bits of `missed`; `first` is where it begins.
    #[inline(always)]
    fn add(&mut self, first: usize, missed: u32) {
        // A block's worth of room is behind the last: there are no more bits than rows were looked at.
        let room = &mut self.positions[self.count..self.count.wrapping_add(BLOCK)];
        let (mut bits, ones) = (missed, missed.count_ones() as usize);
        let put = |room: &mut u32, bits: &mut u32| {
            *room = (first as u32).wrapping_add(bits.trailing_zeros());
            *bits &= bits.wrapping_sub(1);
        };
        // As many as mostly are there without a branch; what is written too much is overwritten.
        for room in &mut room[..FEW] {
            put(room, &mut bits);
        }
        if ones > FEW {
            for room in &mut room[FEW..ones] {
                put(room, &mut bits);
            }
        }
        self.count = self.count.wrapping_add(ones);
    }
}

impl<P: Probe, S: Sets> Pass<'_, P, S> {
    /// Looks blocks up in their primary sets.
    #[inline(always)]
    fn find_blocks(
        &self,
        rows: &[Block],
        places: &mut [Block],
        left: &mut Left,
        drawn: &mut Drawn,
    ) {
        // Sets are numbered a block before they are asked for: vectors are stored then, and words loaded.
        let first = rows.iter().zip(places.iter_mut()).take(AHEAD + 1);
        for (k, (rows, places)) in first.enumerate() {
            self.hash(rows, places);
            self.draw(rows, places, k.wrapping_mul(BLOCK), drawn);
        }
        places.iter().take(AHEAD).for_each(|sets| self.ask(sets));
        let mut bits = left.bits;
        for k in 0..rows.len() {
            if let Some(sets) = places.get(k.wrapping_add(AHEAD)) {
                self.ask(sets);
            }
            let next = k.wrapping_add(AHEAD + 1);
            if let Some(rows) = rows.get(next) {
                self.hash(rows, &mut places[next]);
                self.draw(rows, &places[next], next.wrapping_mul(BLOCK), drawn);
            }
            for (bits, row) in bits.iter_mut().zip(&rows[k]) {
                *bits |= row;
            }
            // SAFETY: `hash` wrote numbers of sets, of which there are no more than lines.
            let missed = unsafe { self.probe.look_at(self.lines, &rows[k], &mut places[k]) };
            left.add(k.wrapping_mul(BLOCK), missed);
            if left.count >= left.asked.wrapping_add(1).wrapping_mul(BLOCK) {
                self.ask_secondary(rows.as_flattened(), left, BLOCK);
            }
            if left.is_full() {
                self.find_secondary(rows.as_flattened(), places.as_flattened_mut(), left);
            }
        }
        left.bits = bits;
    }

    /// Asks for the secondary sets of the next `count` rows that are left over.
    #[inline(always)]
    fn ask_secondary(&self, rows: &[u32], left: &mut Left, count: usize) {
        let block = left.asked;
        let positions = &left.positions[block.wrapping_mul(BLOCK)..][..count];
        let (left_rows, places) = (&mut left.rows[block], &mut left.places[block]);
        // What is behind them in the last block are rows that were left over before, or 0.
        for (row, &position) in left_rows.iter_mut().zip(positions) {
            *row = rows[position as usize];
        }
        for (place, &row) in places.iter_mut().zip(left_rows.iter()) {
            *place = self.sets.secondary(row);
        }
        self.ask(places);
        left.asked = block.wrapping_add(1);
    }

    /// Looks for the rows that are left over in their secondary sets, and counts those that are missed. None are left then.
    #[inline(always)]
    fn find_secondary(&self, rows: &[u32], places: &mut [u32], left: &mut Left) {
        while left.asked.wrapping_mul(BLOCK) < left.count {
            let rest = left.count.wrapping_sub(left.asked.wrapping_mul(BLOCK));
            self.ask_secondary(rows, left, rest.min(BLOCK));
        }
        let pairs = left.rows[..left.asked].iter();
        for (rows, places) in pairs.zip(&mut left.places[..left.asked]) {
            // SAFETY: `ask_secondary` wrote numbers of sets, of which there are no more than lines.
            unsafe { self.probe.look_at(self.lines, rows, places) };
        }
        let found = left.places.as_flattened().iter();
        for (&place, &position) in found.zip(&left.positions[..left.count]) {
            places[position as usize] = place;
            left.misses = left.misses.wrapping_add(usize::from(place == MISS));
        }
        (left.count, left.asked) = (0, 0);
    }

    /// Writes the primary sets of a block to its places.
    #[inline(always)]
    fn hash(&self, rows: &Block, places: &mut Block) {
        for (place, &row) in places.iter_mut().zip(rows) {
            *place = self.sets.primary(row);
        }
    }

    /// Draws rows of a block whose primary sets are known. `first` is where it begins.
    #[inline(always)]
    fn draw(&self, rows: &Block, sets: &Block, first: usize, drawn: &mut Drawn) {
        if self.may_draw(sets) {
            self.draw_each(rows, sets, first, drawn);
        }
    }

    /// Whether a row of one of these primary sets may be drawn.
    #[inline(always)]
    fn may_draw(&self, sets: &Block) -> bool {
        let below = |&set: &u32| set < self.drawn_below;
        sets.iter().fold(false, |any, set| any | below(set))
    }

    /// Draws rows one by one.
    #[cold]
    #[inline(never)]
    fn draw_each(&self, rows: &[u32], sets: &Block, first: usize, drawn: &mut Drawn) {
        for (i, (&row, &set)) in rows.iter().zip(sets).enumerate() {
            if set >= self.drawn_below {
                continue;
            }
            let place = self.sets.place(row);
            if place < drawn.threshold() {
                let position = (first + i) as u32;
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
    fn ask(&self, sets: &Block) {
        for &set in sets {
            prefetch_line(self.lines.as_ptr().wrapping_add(set as usize));
        }
    }
}

/// The slot of the first way that matches.
#[inline(always)]
fn slot(set: u32, matches: u32) -> u32 {
    let found = set.wrapping_mul(WAYS as u32) | matches.trailing_zeros();
    // Written as arithmetic, lest there be a branch that is mostly but not always the same.
    found | (u32::from(matches != 0).wrapping_sub(1))
}
