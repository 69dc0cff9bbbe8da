//! Ages in ticks, on a logarithmic scale.

use super::word::TICKS;

/// Bands of ages: band 0 is age 0, band b has the ages from 2^(b-1) up to, not including, 2^b; the last has all above, too.
pub(super) const BANDS: usize = 13;
const _: () = assert!(1 << (BANDS - 1) == TICKS);

/// Parts of a band in which ranks differ.
pub(super) const PARTS: usize = 4;
/// Steps of age in which ranks differ.
pub(super) const STEPS: usize = BANDS * PARTS;

/// The band of an age.
#[inline]
pub(super) fn band(age: u16) -> usize {
    // The exponent of a float: what counts leading zeros on every x86-64 takes as long as all else of a touch.
    let bits = (i32::from(age.min(TICKS - 1)) * 2 + 1) as f32;
    (bits.to_bits() >> (f32::MANTISSA_DIGITS - 1)) as usize - (f32::MAX_EXP as usize - 1)
}

/// How many ticks a band has.
pub(super) fn ticks(band: usize) -> f64 {
    f64::from(1u32 << band.saturating_sub(1))
}

/// The age in the middle of a band.
pub(super) fn middle(band: usize) -> f64 {
    let first = if band == 0 { 0.0 } else { ticks(band) };
    first + ticks(band) / 2.0
}

/// The step of an age: its band, and within that the quarter.
#[inline]
pub(super) fn step(age: u16) -> usize {
    let band = band(age);
    if band == 0 {
        return PARTS / 2;
    }
    let first = 1usize << (band - 1);
    band * PARTS + (((usize::from(age) - first) * PARTS) >> (band - 1))
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
        assert_eq!((middle(0), middle(1), middle(4)), (0.5, 1.5, 12.0));
    }
}
