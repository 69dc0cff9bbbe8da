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

pub(super) use pass::Looked;
pub use pass::MISS;
pub use select::{Isa, Tags};

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, AtomicU16, Ordering};

    use proptest::prelude::*;

    use super::*;
    use crate::store::drawn::Drawn;
    use crate::store::key::{NO_KEY, Tag, Width};
    use crate::store::memory::{AllTags, SetTags, WAYS};
    use crate::store::spread::{ROWS_END, Spread};

    /// The keys of as many slots as a spread has, of which `share` in 8 are those of rows that may be there.
    fn keys_of(spread: &Spread, share: u32, seed: u64) -> Vec<u32> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut keys = vec![NO_KEY; spread.sets() as usize * WAYS];
        for row in 0..spread.sets() * WAYS as u32 {
            if random.u32(0..8) < share {
                let (set, key) = places_of(spread, row)[random.usize(0..2)];
                keys[set as usize * WAYS + random.usize(0..WAYS)] = key;
            }
        }
        keys
    }

    /// Both sets of a row, and its keys there.
    fn places_of(spread: &Spread, row: u32) -> [(u32, u32); 2] {
        [
            (spread.primary(row), spread.primary_key(row)),
            (spread.secondary(row), spread.secondary_key(row)),
        ]
    }

    /// The meaning in three lines.
    fn slot_of(keys: &[u32], spread: &Spread, row: u32) -> u32 {
        let mut slots = places_of(spread, row)
            .into_iter()
            .flat_map(|(set, key)| (0..WAYS as u32).map(move |way| (set * WAYS as u32 + way, key)));
        let holds = |(slot, key): &(u32, u32)| keys[*slot as usize] == *key;
        slots.find(holds).map_or(MISS, |(slot, _)| slot)
    }

    /// The keys, kept in tags of a width.
    struct Kept {
        width: Width,
        one: Vec<SetTags<AtomicU8>>,
        two: Vec<SetTags<AtomicU16>>,
    }

    impl Kept {
        fn new(keys: &[u32], width: Width) -> Kept {
            let mut kept = Kept {
                width,
                one: Vec::new(),
                two: Vec::new(),
            };
            let sets = keys.len() / WAYS;
            kept.one.resize_with(sets, SetTags::default);
            kept.two.resize_with(sets, SetTags::default);
            for (slot, &key) in keys.iter().enumerate() {
                let (one, two) = (kept.one.as_flattened(), kept.two.as_flattened());
                match width {
                    Width::One => one[slot].set_key(key, Ordering::Relaxed),
                    Width::Two => two[slot].set_key(key, Ordering::Relaxed),
                }
            }
            kept
        }

        fn tags(&self) -> AllTags<'_> {
            match self.width {
                Width::One => AllTags::One(&self.one),
                Width::Two => AllTags::Two(&self.two),
            }
        }
    }

    fn widths() -> impl Strategy<Value = Width> {
        prop_oneof![Just(Width::One), Just(Width::Two)]
    }

    proptest! {
        #[test]
        fn every_set_of_instructions_finds_the_same(
            shard_sets in 2_u32..200,
            share in 0_u32..9,
            count in prop_oneof![0_usize..200, 1000_usize..3000],
            seed: u64,
            width in widths(),
        ) {
            let spread = Spread::new(seed, 1 << 20, 3, shard_sets, width);
            let keys = keys_of(&spread, share, seed);
            let tags_there = Kept::new(&keys, width);
            let mut random = fastrand::Rng::with_seed(!seed);
            let end = spread.sets() * WAYS as u32;
            let rows: Vec<u32> = (0..count).map(|_| random.u32(0..end)).collect();
            let slots: Vec<u32> = rows.iter().map(|&row| slot_of(&keys, &spread, row)).collect();
            let missed = slots.iter().filter(|&&slot| slot == MISS).count();
            for tags in Isa::ALL.into_iter().filter_map(Tags::new) {
                let mut places = vec![7; count];
                let looked = tags.find(tags_there.tags(), &spread, &rows, &mut places, &mut Drawn::nothing());
                prop_assert_eq!(&places, &slots, "{}", tags.isa());
                prop_assert_eq!(looked.misses, missed, "{}", tags.isa());
                prop_assert!(rows.iter().all(|&row| row < looked.end && looked.end <= end.next_power_of_two()));
            }
        }

        #[test]
        fn rows_below_the_threshold_are_drawn_however_they_are_looked_up(
            shard_sets in prop_oneof![2_u32..200, 100_000_u32..200_000],
            count in prop_oneof![0_usize..50, 1000_usize..3000],
            threshold in prop_oneof![0_u32..100, any::<u32>(), Just(u32::MAX), (0_u32..32).prop_map(|bits| 1 << bits)],
            seed: u64,
            width in widths(),
        ) {
            let spread = Spread::new(seed, ROWS_END, 3, shard_sets, width);
            let none = Kept::new(&vec![NO_KEY; spread.sets() as usize * WAYS], width);
            let mut random = fastrand::Rng::with_seed(seed);
            let rows: Vec<u32> = (0..count).map(|_| random.u32(0..5000)).collect();
            let expected = (0..).zip(&rows).filter(|&(_, &row)| spread.place(row) < threshold);
            let expected: Vec<(u32, u32)> = expected.map(|(position, &row)| (position, row)).collect();
            for tags in Isa::ALL.into_iter().filter_map(Tags::new) {
                for room in [count, 10] {
                    let mut drawn = Drawn::new(room);
                    drawn.begin(threshold);
                    tags.find(none.tags(), &spread, &rows, &mut vec![7; count], &mut drawn);
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
        let spread = Spread::new(1, 100_000, 1, 2, Width::Two);
        let none = Kept::new(&keys_of(&spread, 0, 1), Width::Two);
        for tags in Isa::ALL.into_iter().filter_map(Tags::new) {
            for row in [u32::MAX, u32::MAX - 1, ROWS_END] {
                let find = || {
                    tags.find(
                        none.tags(),
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
