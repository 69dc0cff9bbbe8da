//! Looking up the rows of a piece.

use rowmill_arena::prefetch_line;

use super::super::memory::{Line, ROWS_END, WAYS};
use super::super::spread::Spread;
use super::super::sync::{Ordering, fence};

/// What stands in the place of a row that is in no slot.
pub const MISS: u32 = u32::MAX;

/// How many sets are on their way. Each is a line, and what has to be in flight is set by the memory, in lines: see
/// `LINES_AHEAD` of the kernels.
const AHEAD: usize = 64;
/// Rows that are looked for in their primary sets before those that were not there are in their secondary ones.
const PART: usize = 1024;

/// A way to compare the tags of a set.
pub(super) trait Probe: Copy {
    /// The ways whose tags are `row`, a bit each. Each tag is loaded once, as by a relaxed load.
    fn matches(self, line: &Line, row: u32) -> u32;
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
    assert_eq!(lines.len(), spread.sets() as usize, "a line for each set");
    let (mut left, mut misses) = ([0; PART], 0);
    for (rows, places) in rows.chunks(PART).zip(places.chunks_mut(PART)) {
        let count = find_primary(probe, lines, spread, rows, places, &mut left);
        misses += find_secondary(probe, lines, spread, rows, places, &left[..count]);
    }
    fence(Ordering::Acquire);
    misses
}

/// Looks for rows in their primary sets. Which of them are not there is written to `left`; tells how many.
#[inline(always)]
fn find_primary<P: Probe>(
    probe: P,
    lines: &[Line],
    spread: &Spread,
    rows: &[u32],
    places: &mut [u32],
    left: &mut [u16; PART],
) -> usize {
    let (mut bits, mut count) = (0, 0);
    // A place holds the row's set until it is looked at.
    let mut approach = |row: u32, place: &mut u32| {
        bits |= row;
        *place = spread.primary(row);
        prefetch_line(&raw const lines[*place as usize]);
    };
    let lead = rows.len().min(AHEAD);
    for i in 0..lead {
        approach(rows[i], &mut places[i]);
    }
    for i in 0..rows.len() {
        if let Some(&row) = rows.get(i.wrapping_add(AHEAD)) {
            approach(row, &mut places[i.wrapping_add(AHEAD)]);
        }
        let set = places[i];
        let matches = probe.matches(&lines[set as usize], rows[i]);
        places[i] = slot(set, matches);
        left[count] = i as u16;
        count = count.wrapping_add(usize::from(matches == 0));
    }
    assert!(bits < ROWS_END, "a number that is none of a row");
    count
}

/// Looks for those rows that are left over in their secondary sets; tells how many are missed.
#[inline(always)]
fn find_secondary<P: Probe>(
    probe: P,
    lines: &[Line],
    spread: &Spread,
    rows: &[u32],
    places: &mut [u32],
    left: &[u16],
) -> usize {
    let mut misses = 0;
    let approach = |i: u16, places: &mut [u32]| {
        let set = spread.secondary(rows[i as usize]);
        places[i as usize] = set;
        prefetch_line(&raw const lines[set as usize]);
    };
    for &i in left.iter().take(AHEAD) {
        approach(i, places);
    }
    for (k, &i) in left.iter().enumerate() {
        if let Some(&i) = left.get(k.wrapping_add(AHEAD)) {
            approach(i, places);
        }
        let set = places[i as usize];
        let matches = probe.matches(&lines[set as usize], rows[i as usize]);
        places[i as usize] = slot(set, matches);
        misses += usize::from(matches == 0);
    }
    misses
}

/// The slot of the first way that matches.
#[inline(always)]
fn slot(set: u32, matches: u32) -> u32 {
    let found = set.wrapping_mul(WAYS as u32) | matches.trailing_zeros();
    // Written as arithmetic, lest there be a branch that is mostly but not always the same.
    found | (u32::from(matches != 0).wrapping_sub(1))
}
