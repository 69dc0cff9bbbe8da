//! Ages in ticks, on a logarithmic scale.

use super::word::TICKS;

/// Bands of ages, two for each doubling: band 0 is age 0, band 1 age 1; of the others an even band b has the ages from 2^(b/2) up to, not
/// including, half as many again, and the odd band behind it the rest up to the double. The last has all above, too.
pub(super) const BANDS: usize = 22;
const _: () = assert!(1 << (BANDS / 2) == TICKS);

/// Parts of a band in which ranks differ.
pub(super) const PARTS: usize = 2;
/// Steps of age in which ranks differ.
pub(super) const STEPS: usize = BANDS * PARTS;

/// The band of an age.
#[inline]
pub(super) fn band(age: u16) -> usize {
    // The exponent of a float and the first bit behind it: what counts leading zeros on every x86-64 takes as long as all else of a touch.
    let bits = (i32::from(age.min(TICKS - 1)) * 2 + 1) as f32;
    let halves = (bits.to_bits() >> (f32::MANTISSA_DIGITS - 2)) as usize;
    // 1, 3, 5, 7, 9 have 0, 3, 4, 5, 6 halves of a doubling.
    (halves - 2 * (f32::MAX_EXP as usize - 1)).saturating_sub(2)
}

/// How many ticks a band has.
pub(super) fn ticks(band: usize) -> f64 {
    f64::from(1u32 << (band / 2).saturating_sub(1))
}

/// The first age of a band.
pub(super) fn first(band: usize) -> u32 {
    match band {
        0 | 1 => band as u32,
        _ => (2 + (band as u32 & 1)) << (band / 2 - 1),
    }
}

/// The age in the middle of a band.
pub(super) fn middle(band: usize) -> f64 {
    f64::from(first(band)) + ticks(band) / 2.0
}

/// The step of an age: its band, and within that the half.
#[inline]
pub(super) fn step(age: u16) -> usize {
    let band = band(age);
    if band < 2 {
        return band * PARTS + PARTS / 2;
    }
    let first = first(band) as usize;
    band * PARTS + (((usize::from(age.min(TICKS - 1)) - first) * PARTS) >> (band / 2 - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_and_steps_follow_ages() {
        let mut widths = [0; BANDS];
        let mut before = 0;
        for age in 0..TICKS {
            widths[band(age)] += 1;
            let step = step(age);
            assert_eq!(step / PARTS, band(age), "age {age}");
            assert!(step >= before && step < STEPS, "age {age}");
            before = step;
        }
        for (band, &width) in widths.iter().enumerate() {
            assert_eq!(f64::from(width), ticks(band), "band {band}");
        }
        assert_eq!(
            (middle(0), middle(1), middle(4), middle(5)),
            (0.5, 1.5, 5.0, 7.0)
        );
    }
}
