//! Whether a slot that was found by its tag holds the row that was looked for.
//!
//! Where more rows may be in a set than tags tell apart, or sets are being moved so that two numberings meet in one, a tag says only which row it
//! may be. Then the slots' numbers are looked at behind the tags. Where that is another row's, the row is looked for by numbers alone.

use rowmill_arena::prefetch_line;

use super::extent::Sets;
use super::memory::Memory;
use super::sweep::slots_in;
use super::sync::{Ordering, fence};
use super::tags::MISS;

/// Slots whose numbers are asked for before the first is looked at.
const ASKED: usize = 64;

/// Corrects the places that were found for rows by tags, and tells how many of them turned out to be misses.
pub(super) fn look_again(
    memory: &Memory,
    sets: &impl Sets,
    rows: &[u32],
    places: &mut [u32],
) -> usize {
    let mut misses = 0;
    for (rows, places) in rows.chunks(ASKED).zip(places.chunks_mut(ASKED)) {
        let found = || places.iter().filter(|&&place| place != MISS);
        found().for_each(|&slot| prefetch_line(memory.number(slot)));
        for (&row, place) in rows.iter().zip(places) {
            let holds = |slot: &u32| memory.number(*slot).load(Ordering::Relaxed) == row;
            if *place == MISS || holds(place) {
                continue;
            }
            let mut slots = slots_in([sets.primary(row), sets.secondary(row)]);
            *place = slots.find(holds).unwrap_or(MISS);
            misses += usize::from(*place == MISS);
        }
    }
    // What was published before a number was found is seen from here on.
    fence(Ordering::Acquire);
    misses
}
