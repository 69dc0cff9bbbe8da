//! What a tag is, and how many bytes it takes.
//!
//! A tag is kept with what says in which of the two sets of its row it is; both together are its *key* there. 0 says that there is no row.

use super::sync::{AtomicU8, AtomicU16, Ordering};

/// What stands in the place of the key of a slot that holds no row that can be found.
pub(super) const NO_KEY: u32 = 0;

/// How many bytes a slot has for its key: as few as tell the rows of a table apart, since a lookup waits for a line of them from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// One byte, of which 7 bits are the tag.
    One,
    /// Two bytes, of which 14 bits are the tag.
    Two,
}

impl Width {
    /// For a table of rows with numbers below `end`, in so many sets: one byte where that tells its rows apart, and would do so in a quarter as many
    /// sets. So it is where there are slots for half of the rows, or for all of them, as near as these are below a power of two. A store
    /// may be made smaller, and where tags are not exact any more a row that is looked up and pooled takes about twice as long (`bench/RESULTS.md`): that is
    /// more to lose than the few percent that one byte gains.
    pub fn of_table(end: u32, sets: u32) -> Width {
        let one = Width::One;
        match one.keys().are_exact(one.hash_bits(end), sets / 4) {
            true => Width::One,
            false => Width::Two,
        }
    }

    /// Bytes of a key.
    pub fn bytes(self) -> usize {
        match self {
            Width::One => 1,
            Width::Two => 2,
        }
    }

    /// Bits of a hash of rows with numbers below `end`: more than those of a tag, however few rows there are.
    pub(super) fn hash_bits(self, end: u32) -> u32 {
        let least = match self {
            Width::One => 10,
            Width::Two => 15,
        };
        end.next_power_of_two().ilog2().max(least)
    }

    pub(super) fn keys(self) -> Keys {
        match self {
            // There is no bit left that says `secondary`.
            Width::One => Keys {
                tag: (1 << 7) - 1,
                of_primary: 1 << 7,
                of_secondary: 0,
            },
            Width::Two => Keys {
                tag: (1 << 14) - 1,
                of_primary: 1 << 14,
                of_secondary: 1 << 15,
            },
        }
    }
}

/// Which bits a key has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// Those of a hash that are the tag, the lowest.
    tag: u32,
    /// What is set besides in a row's primary set, and in its secondary one.
    of_primary: u32,
    of_secondary: u32,
}

impl Keys {
    /// Whether tags tell all rows of a set apart, where hashes of so many bits are spread over so many sets.
    pub(super) fn are_exact(&self, hash_bits: u32, sets: u32) -> bool {
        // A set has as many hashes as fall to each, rounded up or down, one after the other: so many that each has lowest bits of its own.
        1_u64 << hash_bits <= u64::from(sets) * (u64::from(self.tag) + 1)
    }

    /// The tag of a hash.
    #[inline(always)]
    pub(super) fn tag(&self, hash: u32) -> u32 {
        hash & self.tag
    }

    /// Whether a row of this tag has a secondary set: its key there is none that says that there is no row.
    #[inline(always)]
    pub(super) fn has_other(&self, tag: u32) -> bool {
        tag | self.of_secondary != NO_KEY
    }

    #[inline(always)]
    pub(super) fn primary(&self, tag: u32) -> u32 {
        tag | self.of_primary
    }

    /// A row without a secondary set is looked for in its primary one again.
    #[inline(always)]
    pub(super) fn secondary(&self, tag: u32) -> u32 {
        match self.has_other(tag) {
            true => tag | self.of_secondary,
            false => self.primary(tag),
        }
    }
}

/// What a key is kept in. Only the shard's writer stores it.
pub(super) trait Tag {
    /// What a key is multiplied by to stand in a word of 32 bits as often as it fits.
    const FILL: u32;

    /// The key.
    fn key(&self, order: Ordering) -> u32;

    /// Makes it another.
    fn set_key(&self, key: u32, order: Ordering);
}

impl Tag for AtomicU8 {
    const FILL: u32 = 0x0101_0101;

    #[inline(always)]
    fn key(&self, order: Ordering) -> u32 {
        self.load(order).into()
    }

    fn set_key(&self, key: u32, order: Ordering) {
        self.store(key as u8, order);
    }
}

impl Tag for AtomicU16 {
    const FILL: u32 = 0x0001_0001;

    #[inline(always)]
    fn key(&self, order: Ordering) -> u32 {
        self.load(order).into()
    }

    fn set_key(&self, key: u32, order: Ordering) {
        self.store(key as u16, order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_as_long_as_what_they_are_kept_in() {
        for (width, tags) in [(Width::One, 128), (Width::Two, 16_384)] {
            let (keys, end) = (width.keys(), 1 << (8 * width.bytes()));
            let mut seen = vec![false; end];
            seen[NO_KEY as usize] = true;
            for tag in 0..tags {
                assert_eq!(keys.tag(tag | 1 << 20), tag);
                let [primary, secondary] = [keys.primary(tag), keys.secondary(tag)];
                assert!(!core::mem::replace(&mut seen[primary as usize], true));
                match keys.has_other(tag) {
                    true => assert!(!core::mem::replace(&mut seen[secondary as usize], true)),
                    false => assert_eq!(primary, secondary),
                }
            }
            assert_eq!(keys.has_other(0), width == Width::Two);
            assert!((1..tags).all(|tag| keys.has_other(tag)));
        }
    }

    #[test]
    fn one_byte_is_taken_where_it_is_enough_for_a_quarter_as_many_sets() {
        for (end, sets, width) in [
            (1, 32, Width::One),
            (1 << 22, 1 << 17, Width::One),
            (1 << 21, 1 << 16, Width::One),
            (1 << 21, (1 << 16) - 1, Width::Two),
            ((1 << 22) + 1, 1 << 17, Width::Two),
            (1 << 31, 1 << 20, Width::Two),
            (1, 31, Width::Two),
        ] {
            assert_eq!(Width::of_table(end, sets), width, "{end} rows, {sets} sets");
        }
    }
}
