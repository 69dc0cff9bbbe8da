//! Looking up the rows of a piece.
//!
//! Rows are taken in blocks, so that what is done to each without a load from far away, the hash above all, is done by vectors.
//! What is not in its primary set is gathered and looked for in its secondary one in the same way. A place holds the number of the
//! row's set from when that is asked for until its tags are compared.
#![allow(unsafe_code)]

use rowmill_arena::prefetch_line;

use super::super::memory::{Line, ROWS_END, WAYS};
use super::super::spread::Spread;
use super::super::sync::{Ordering, fence};

/// What stands in the place of a row that is in no slot.
pub const MISS: u32 = u32::MAX;

/// Rows of a block: as many words as the widest vector has.
pub(super) const BLOCK: usize = 16;
/// How many blocks are asked for before the first is looked at: 64 lines. What has to be in flight is set by the memory, in
/// lines: see `LINES_AHEAD` of the kernels.
const AHEAD: usize = 4;
/// Blocks that are looked for in their primary sets before what was not there is in its secondary ones.
const PART: usize = 64;
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

/// Writes the slot that holds each of `rows` to the same place of `places`, or [`MISS`], and tells how many are missed.
///
/// What was published before its tag was found is seen by the caller: one fence with acquire stands behind all loads of tags,
/// and each tag of a row was stored with release.
///
/// # Panics
/// If there is not a place for each row, or a number is none of a row.
#[inline(always)]
pub(super) fn find<P: Probe>(
    probe: P,
    lines: &[Line],
    spread: &Spread,
    rows: &[u32],
    places: &mut [u32],
) -> usize {
    assert_eq!(rows.len(), places.len(), "a place for each row");
    let bits = rows.iter().fold(0, |bits, row| bits | row);
    assert!(bits < ROWS_END, "a number that is none of a row");
    let pass = Pass::new(probe, lines, spread);
    let mut left = Left::new();
    let mut misses = 0;
    let (blocks, rest) = rows.as_chunks();
    let (places, rest_places) = places.as_chunks_mut();
    for (blocks, places) in blocks.chunks(PART).zip(places.chunks_mut(PART)) {
        misses += pass.find_part(blocks, places, PART * BLOCK, &mut left);
    }
    if !rest.is_empty() {
        let mut found = [[0; BLOCK]];
        misses += pass.find_part(&[filled_up(rest)], &mut found, rest.len(), &mut left);
        rest_places.copy_from_slice(&found[0][..rest.len()]);
    }
    fence(Ordering::Acquire);
    misses
}

/// A block of these rows, as often as they fit.
#[inline(always)]
fn filled_up(rows: &[u32]) -> Block {
    core::array::from_fn(|i| rows[i % rows.len()])
}

/// The rows of a part that are not in their primary sets.
struct Left {
    /// Where they are in the part. With room for what is written behind the last, see [`Pass::look`].
    positions: [u16; PART * BLOCK + BLOCK],
    rows: [Block; PART],
    places: [Block; PART],
}

impl Left {
    fn new() -> Left {
        Left {
            positions: [0; PART * BLOCK + BLOCK],
            rows: [[0; BLOCK]; PART],
            places: [[0; BLOCK]; PART],
        }
    }
}

/// What looking up needs.
#[derive(Clone, Copy)]
struct Pass<'a, P> {
    probe: P,
    lines: &'a [Line],
    spread: Spread,
}

impl<'a, P: Probe> Pass<'a, P> {
    #[inline(always)]
    fn new(probe: P, lines: &'a [Line], spread: &Spread) -> Pass<'a, P> {
        assert_eq!(lines.len(), spread.sets() as usize, "a line for each set");
        Pass {
            probe,
            lines,
            spread: *spread,
        }
    }

    /// Looks up a part, of at most [`PART`] blocks; tells how many of the first `counted` rows are missed.
    #[inline(always)]
    fn find_part(
        &self,
        rows: &[Block],
        places: &mut [Block],
        counted: usize,
        left: &mut Left,
    ) -> usize {
        let count = self.look(
            |row| self.spread.primary(row),
            rows,
            places,
            Some(&mut left.positions),
        );
        let positions = &left.positions[..count];
        if positions.is_empty() {
            return 0;
        }
        let (rows, places) = (rows.as_flattened(), places.as_flattened_mut());
        for (row, &position) in left.rows.as_flattened_mut().iter_mut().zip(positions) {
            *row = rows[position as usize];
        }
        // What is behind them in the last block are rows that were looked up before.
        let blocks = count.div_ceil(BLOCK);
        self.look(
            |row| self.spread.secondary(row),
            &left.rows[..blocks],
            &mut left.places[..blocks],
            None,
        );
        let mut misses = 0_usize;
        for (&place, &position) in left.places.as_flattened().iter().zip(positions) {
            places[position as usize] = place;
            let counts = place == MISS && (position as usize) < counted;
            misses = misses.wrapping_add(usize::from(counts));
        }
        misses
    }

    /// Looks for rows in one of their sets. The positions of those that are not there are written to `left`, with anything
    /// behind them; tells how many they are.
    #[inline(always)]
    fn look(
        &self,
        set_of: impl Fn(u32) -> u32 + Copy,
        rows: &[Block],
        places: &mut [Block],
        mut left: Option<&mut [u16; PART * BLOCK + BLOCK]>,
    ) -> usize {
        let mut count = 0;
        for (rows, places) in rows.iter().zip(places.iter_mut()).take(AHEAD) {
            self.approach(set_of, rows, places);
        }
        for k in 0..rows.len() {
            if let Some(rows) = rows.get(k.wrapping_add(AHEAD)) {
                self.approach(set_of, rows, &mut places[k.wrapping_add(AHEAD)]);
            }
            // SAFETY: `approach` wrote numbers of sets, of which there are as many as lines: `new` compared.
            let missed = unsafe { self.probe.look_at(self.lines, &rows[k], &mut places[k]) };
            if let Some(left) = &mut left {
                count = add(left, count, k.wrapping_mul(BLOCK), missed);
            }
        }
        count
    }

    /// Asks for the sets of a block.
    #[inline(always)]
    fn approach(&self, set_of: impl Fn(u32) -> u32, rows: &Block, places: &mut Block) {
        for (place, &row) in places.iter_mut().zip(rows) {
            *place = set_of(row);
        }
        for &set in places.iter() {
            prefetch_line(self.lines.as_ptr().wrapping_add(set as usize));
        }
    }
}

/// Adds the positions of the bits of `missed` to the `count` that there are; tells how many there are then.
#[inline(always)]
fn add(left: &mut [u16; PART * BLOCK + BLOCK], count: usize, first: usize, missed: u32) -> usize {
    // A block's worth of room is behind the last: there are no more bits than rows were looked at.
    let room = &mut left[count..count.wrapping_add(BLOCK)];
    let (mut bits, ones) = (missed, missed.count_ones() as usize);
    let put = |room: &mut u16, bits: &mut u32| {
        *room = (first as u16) | bits.trailing_zeros() as u16;
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
    count.wrapping_add(ones)
}

/// The slot of the first way that matches.
#[inline(always)]
fn slot(set: u32, matches: u32) -> u32 {
    let found = set.wrapping_mul(WAYS as u32) | matches.trailing_zeros();
    // Written as arithmetic, lest there be a branch that is mostly but not always the same.
    found | (u32::from(matches != 0).wrapping_sub(1))
}
