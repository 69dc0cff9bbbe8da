//! Tags: which slot holds a row.
//!
//! [`portable`] says what looking a row up means; AVX2, AVX-512 and NEON compare the tags of a set at once. [`pass`] looks the
//! rows of a whole piece up, with the sets that come next on their way meanwhile, and [`select`] chooses.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pass;
mod portable;
mod select;

pub use pass::MISS;
pub use select::{Isa, Tags};

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU32, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::store::drawn::Drawn;
    use crate::store::memory::{Line, ROWS_END, WAYS};
    use crate::store::spread::Spread;

    /// As many tags as there are slots, of which `share` in 8 are those of rows that may be there.
    fn lines(spread: &Spread, share: u32, seed: u64) -> Vec<Line> {
        let mut random = fastrand::Rng::with_seed(seed);
        let empty = |_| core::array::from_fn(|_| AtomicU32::new(random.u32(ROWS_END..)));
        let lines: Vec<Line> = (0..spread.sets()).map(empty).collect();
        for row in 0..spread.sets() * WAYS as u32 {
            if random.u32(0..8) < share {
                let set = [spread.primary(row), spread.secondary(row)][random.usize(0..2)];
                lines[set as usize][random.usize(0..WAYS)].store(row, Ordering::Relaxed);
            }
        }
        lines
    }

    /// The meaning in three lines.
    fn slot_of(lines: &[Line], spread: &Spread, row: u32) -> u32 {
        let sets = [spread.primary(row), spread.secondary(row)];
        let mut slots = sets
            .into_iter()
            .flat_map(|set| (0..WAYS as u32).map(move |way| set * WAYS as u32 + way));
        let holds = |slot: &u32| {
            let tag = &lines[*slot as usize / WAYS][*slot as usize % WAYS];
            tag.load(Ordering::Relaxed) == row
        };
        slots.find(holds).unwrap_or(MISS)
    }

    proptest! {
        #[test]
        fn every_set_of_instructions_finds_the_same(
            shard_sets in 2_u32..200,
            share in 0_u32..9,
            count in prop_oneof![0_usize..200, 1000_usize..3000],
            seed: u64,
        ) {
            let spread = Spread::new(seed, 3, shard_sets);
            let lines = lines(&spread, share, seed);
            let mut random = fastrand::Rng::with_seed(!seed);
            let end = spread.sets() * WAYS as u32;
            let rows: Vec<u32> = (0..count).map(|_| random.u32(0..end)).collect();
            let slots: Vec<u32> = rows.iter().map(|&row| slot_of(&lines, &spread, row)).collect();
            let missed = slots.iter().filter(|&&slot| slot == MISS).count();
            for tags in Isa::ALL.into_iter().filter_map(Tags::new) {
                let mut places = vec![7; count];
                let misses = tags.find(&lines, &spread, &rows, &mut places, &mut Drawn::nothing());
                prop_assert_eq!(&places, &slots, "{}", tags.isa());
                prop_assert_eq!(misses, missed, "{}", tags.isa());
            }
        }

        #[test]
        fn rows_below_the_threshold_are_drawn_however_they_are_looked_up(
            shard_sets in prop_oneof![2_u32..200, 100_000_u32..200_000],
            count in prop_oneof![0_usize..50, 1000_usize..3000],
            threshold in prop_oneof![0_u32..100, any::<u32>(), Just(u32::MAX), (0_u32..32).prop_map(|bits| 1 << bits)],
            seed: u64,
        ) {
            let spread = Spread::new(seed, 3, shard_sets);
            let lines: Vec<Line> = core::iter::repeat_with(Line::default).take(spread.sets() as usize).collect();
            let mut random = fastrand::Rng::with_seed(seed);
            let rows: Vec<u32> = (0..count).map(|_| random.u32(0..5000)).collect();
            let expected = (0..).zip(&rows).filter(|&(_, &row)| spread.place(row) < threshold);
            let expected: Vec<(u32, u32)> = expected.map(|(position, &row)| (position, row)).collect();
            for tags in Isa::ALL.into_iter().filter_map(Tags::new) {
                for room in [count, 10] {
                    let mut drawn = Drawn::new(room);
                    drawn.begin(threshold);
                    tags.find(&lines, &spread, &rows, &mut vec![7; count], &mut drawn);
                    let found: Vec<(u32, u32)> = drawn.rows().iter().map(|drawn| (drawn.position, drawn.row)).collect();
                    prop_assert!(drawn.rows().iter().all(|drawn| drawn.place == spread.place(drawn.row)));
                    prop_assert_eq!(found.len() as u64 + drawn.dropped(), expected.len() as u64);

                    if room == count {
                        prop_assert_eq!(&found, &expected, "{}", tags.isa());
                    } else {
                        prop_assert!(found.len() <= 10);
                    }
                }
            }
        }
    }

    #[test]
    fn the_widest_is_detected() {
        let mut widest = Isa::ALL.into_iter().filter(|&isa| Tags::new(isa).is_some());
        assert_eq!(Some(Tags::detect().isa()), widest.next_back());
        println!("{}", Tags::detect().isa());
    }

    #[test]
    fn tags_of_no_row_are_not_found() {
        let spread = Spread::new(1, 1, 2);
        let lines = lines(&spread, 0, 1);
        for tags in Isa::ALL.into_iter().filter_map(Tags::new) {
            for row in [u32::MAX, u32::MAX - 1, ROWS_END] {
                let find = || {
                    tags.find(
                        &lines,
                        &spread,
                        &[0, row, 0],
                        &mut [0; 3],
                        &mut Drawn::nothing(),
                    )
                };
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(find));
                assert!(outcome.is_err(), "{row} with {}", tags.isa());
            }
        }
    }
}
