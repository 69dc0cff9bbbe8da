//! From values to the bytes of a row and back. `FORMAT.md` states every rounding.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::format::RowFormat;

/// Values that are converted at a time, in registers or the nearest cache.
const PIECE: usize = 64;
/// Added to a number from 0 to 2^51, it leaves that number, rounded to nearest even, in the low bits:
/// in f64 the numbers from 2^52 on are the whole ones. Done so because rounding is a call of a library
/// on x86-64 without SSE4.1, and this loop has to keep up with a disk.
const ROUNDER: f64 = (1u64 << 52) as f64;
/// The bits of f32 from which on numbers round to no finite f16: 65520, between the largest, 65504, and
/// the next that there would be; and the same for bf16.
const F16_END: u32 = 0x477f_f000;
const BF16_END: u32 = 0x7f7f_8000;
/// The bits of f32 from which on there are no finite numbers, and all bits but the sign.
const F32_END: u32 = 0x7f80_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;
/// The bits of f16's infinity.
const F16_INFINITY: u16 = 0x7c00;

/// A value that a row format can't hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unfit {
    /// Its place in the row, counted from 0.
    pub dim: usize,
    /// The value.
    pub value: f32,
    /// What is wrong with it: a phrase that continues "dimension 3 is 1e9, which ...".
    pub why: &'static str,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "dimension {} is {:?}, which {}",
            self.dim, self.value, self.why
        )
    }
}

impl std::error::Error for Unfit {}

impl RowFormat {
    /// Whether a row of these values can be stored.
    ///
    /// # Errors
    /// The first value that is not finite, or one that the format has no room for.
    pub fn check(self, values: &[f32]) -> Result<(), Unfit> {
        let unfit = |end: u32, why| {
            let (dim, &value) = values
                .iter()
                .enumerate()
                .find(|(_, value)| value.to_bits() & MAGNITUDE >= end)?;
            let why = if value.is_finite() {
                why
            } else {
                "is not finite"
            };
            Some(Unfit { dim, value, why })
        };
        let below = |end: u32, why| {
            let mut greatest = 0;
            for value in values {
                greatest = greatest.max(value.to_bits() & MAGNITUDE);
            }
            if greatest < end {
                None
            } else {
                unfit(end, why)
            }
        };
        let none_or = |found: Option<Unfit>| found.map_or(Ok(()), Err);
        match self {
            RowFormat::F32 => none_or(below(F32_END, "")),
            RowFormat::F16 => none_or(below(
                F16_END,
                "rounds to no finite f16; the largest is 65504",
            )),
            RowFormat::Bf16 => none_or(below(BF16_END, "rounds to no finite bf16")),
            RowFormat::Int8 | RowFormat::Int8F16 | RowFormat::Int4 => {
                none_or(below(F32_END, ""))?;
                self.check_span(values)
            }
        }
    }

    /// Whether scale and bias of these finite values are finite, and what they make of the largest code.
    fn check_span(self, values: &[f32]) -> Result<(), Unfit> {
        let (least, most) = extremes(values);
        let find = |wanted: f32, why| {
            let dim = values.iter().position(|&value| value == wanted);
            Err(Unfit {
                dim: dim.unwrap_or(0),
                value: wanted,
                why,
            })
        };
        match self {
            RowFormat::Int8 => {
                let (scale, bias) = span_f32(least, most);
                if scale.mul_add(255.0, bias).is_finite() {
                    return Ok(());
                }
                find(
                    most,
                    "is so near to the largest f32 that int8 rounds it to infinity",
                )
            }
            RowFormat::Int8F16 | RowFormat::Int4 => {
                let (scale, bias) = span_f16(least, most, self.levels());
                if bias.is_infinite() {
                    find(
                        least,
                        "as the row's smallest value is no f16, -65504 or more; use f32, or int8 with its steps of 1/255 of the row's span",
                    )
                } else if scale.is_infinite() {
                    find(
                        most,
                        "is farther from the row's smallest value than f16 scales reach; use f32, or int8 with its steps of 1/255 of the row's span",
                    )
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }

    /// Decodes one row.
    ///
    /// # Panics
    /// If `row` is not `row_bytes(out.len())` long.
    pub fn decode(self, row: &[u8], out: &mut [f32]) {
        assert_eq!(row.len(), self.row_bytes(out.len()), "one whole row");
        match self {
            RowFormat::F32 => {
                for (value, &bytes) in out.iter_mut().zip(row.as_chunks().0) {
                    *value = f32::from_le_bytes(bytes);
                }
            }
            RowFormat::F16 => {
                let mut piece = [f16::ZERO; PIECE];
                for (values, bytes) in out.chunks_mut(PIECE).zip(row.chunks(PIECE * 2)) {
                    for (half, &bytes) in piece.iter_mut().zip(bytes.as_chunks().0) {
                        *half = f16::from_le_bytes(bytes);
                    }
                    piece[..values.len()].convert_to_f32_slice(values);
                }
            }
            RowFormat::Bf16 => {
                for (value, &bytes) in out.iter_mut().zip(row.as_chunks().0) {
                    *value = f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16);
                }
            }
            RowFormat::Int8 => {
                let (codes, tail) = row.split_at(out.len());
                let (scale, bias) = (float(&tail[..4]), float(&tail[4..]));
                for (value, &code) in out.iter_mut().zip(codes) {
                    *value = scale.mul_add(f32::from(code), bias);
                }
            }
            RowFormat::Int8F16 => {
                let (codes, tail) = row.split_at(out.len());
                let (scale, bias) = (half(&tail[..2]), half(&tail[2..]));
                for (value, &code) in out.iter_mut().zip(codes) {
                    *value = scale.mul_add(f32::from(code), bias);
                }
            }
            RowFormat::Int4 => {
                let (codes, tail) = row.split_at(row.len() - 4);
                let (scale, bias) = (half(&tail[..2]), half(&tail[2..]));
                for (values, &codes) in out.chunks_mut(2).zip(codes) {
                    for (value, code) in values.iter_mut().zip([codes & 15, codes >> 4]) {
                        *value = scale.mul_add(f32::from(code), bias);
                    }
                }
            }
        }
    }

    /// Encodes one row of values that [`check`](Self::check) lets pass; what is stored of others means
    /// nothing.
    ///
    /// # Panics
    /// If `out` is not `row_bytes(values.len())` long.
    pub fn encode(self, values: &[f32], out: &mut [u8]) {
        assert_eq!(out.len(), self.row_bytes(values.len()), "one whole row");
        match self {
            RowFormat::F32 => {
                for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *bytes = value.to_le_bytes();
                }
            }
            RowFormat::F16 => {
                let mut piece = [f16::ZERO; PIECE];
                for (bytes, values) in out.chunks_mut(PIECE * 2).zip(values.chunks(PIECE)) {
                    piece[..values.len()].convert_from_f32_slice(values);
                    for (bytes, half) in bytes.as_chunks_mut().0.iter_mut().zip(piece) {
                        *bytes = half.to_le_bytes();
                    }
                }
            }
            RowFormat::Bf16 => {
                for (bytes, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *bytes = bf16_bits(*value).to_le_bytes();
                }
            }
            RowFormat::Int8 => {
                let (least, most) = extremes(values);
                let (scale, bias) = span_f32(least, most);
                let (codes, tail) = out.split_at_mut(values.len());
                put_codes(values, bias, scale, 255.0, codes);
                tail[..4].copy_from_slice(&scale.to_le_bytes());
                tail[4..].copy_from_slice(&bias.to_le_bytes());
            }
            RowFormat::Int8F16 => {
                let (least, most) = extremes(values);
                let (scale, bias) = span_f16(least, most, self.levels());
                let (codes, tail) = out.split_at_mut(values.len());
                put_codes(values, bias.to_f32(), scale.to_f32(), self.levels(), codes);
                tail[..2].copy_from_slice(&scale.to_le_bytes());
                tail[2..].copy_from_slice(&bias.to_le_bytes());
            }
            RowFormat::Int4 => {
                let (least, most) = extremes(values);
                let (scale, bias) = span_f16(least, most, self.levels());
                let (codes, tail) = out.split_at_mut(out.len() - 4);
                let (scale_f32, bias_f32) = (scale.to_f32(), bias.to_f32());
                let mut piece = [0; PIECE];
                for (pairs, values) in codes.chunks_mut(PIECE / 2).zip(values.chunks(PIECE)) {
                    let piece = &mut piece[..values.len()];
                    put_codes(values, bias_f32, scale_f32, self.levels(), piece);
                    for (pair, [low, high]) in pairs.iter_mut().zip(piece.as_chunks().0) {
                        *pair = low | high << 4;
                    }
                }
                tail[..2].copy_from_slice(&scale.to_le_bytes());
                tail[2..].copy_from_slice(&bias.to_le_bytes());
            }
        }
    }

    /// The largest code of formats that have codes.
    fn levels(self) -> f64 {
        if self == RowFormat::Int4 { 15.0 } else { 255.0 }
    }
}

fn float(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("4 bytes"))
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes(bytes.try_into().expect("2 bytes")).to_f32()
}

/// The bf16 nearest to `value`, the even one of two.
fn bf16_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    if value.is_nan() { 0x7fc0 } else { rounded }
}

/// Smallest and largest value, a zero with a plus.
fn extremes(values: &[f32]) -> (f32, f32) {
    // Eight lanes, so that one comparison does not wait for the one before.
    let (mut least, mut most) = ([f32::INFINITY; 8], [f32::NEG_INFINITY; 8]);
    let mut take = |lane: usize, value: f32| {
        least[lane] = if value < least[lane] {
            value
        } else {
            least[lane]
        };
        most[lane] = if value > most[lane] {
            value
        } else {
            most[lane]
        };
    };
    let (groups, rest) = values.as_chunks::<8>();
    for group in groups {
        for (lane, &value) in group.iter().enumerate() {
            take(lane, value);
        }
    }
    for (lane, &value) in rest.iter().enumerate() {
        take(lane, value);
    }
    let least = least.into_iter().fold(f32::INFINITY, f32::min);
    let most = most.into_iter().fold(f32::NEG_INFINITY, f32::max);
    (least + 0.0, most + 0.0)
}

/// Scale and bias of int8.
fn span_f32(least: f32, most: f32) -> (f32, f32) {
    let span = most - least;
    // The span of two finite values can exceed what an f32 holds; 1/255 of it can't.
    let scale = if span.is_finite() {
        span / 255.0
    } else {
        most / 255.0 - least / 255.0
    };
    (scale, least)
}

/// Scale and bias of the formats with codes of `levels` and their scale in f16: the largest bias that is
/// not above any value, and the smallest scale with which the largest code is not below any. Infinite
/// where there is none.
fn span_f16(least: f32, most: f32, levels: f64) -> (f16, f16) {
    let nearest = f16::from_f32(least);
    let bias = if nearest.to_f32() > least {
        next_below(nearest)
    } else if nearest == f16::ZERO {
        f16::ZERO
    } else {
        nearest
    };
    if bias.is_infinite() {
        return (f16::ZERO, bias);
    }
    let (most, bias_f64) = (f64::from(most), bias.to_f64());
    // Scale x levels has 19 bits and lies with the bias between 2^-24 and 2^25: exact in f64.
    let reaches = |bits: u16| f16::from_bits(bits).to_f64() * levels + bias_f64 >= most;
    let mut bits = f16::from_f32(((most - bias_f64) / levels) as f32).to_bits();
    while bits > 0 && reaches(bits - 1) {
        bits -= 1;
    }
    while bits < F16_INFINITY && !reaches(bits) {
        bits += 1;
    }
    (f16::from_bits(bits), bias)
}

/// The f16 below a number, or minus infinity.
fn next_below(number: f16) -> f16 {
    let bits = number.to_bits();
    f16::from_bits(match bits {
        0 | 0x8000 => 0x8001,
        0x8001.. => bits + 1,
        _ => bits - 1,
    })
}

/// code = (value - bias) / scale in f64, rounded to nearest even, at most `levels`; 0 where scale is 0.
fn put_codes(values: &[f32], bias: f32, scale: f32, levels: f64, out: &mut [u8]) {
    if scale == 0.0 {
        return out.fill(0);
    }
    let (bias, scale) = (f64::from(bias), f64::from(scale));
    for (code, &value) in out.iter_mut().zip(values) {
        let steps = (f64::from(value) - bias) / scale;
        let steps = if steps < levels { steps } else { levels };
        *code = (steps + ROUNDER).to_bits() as u8;
    }
}
