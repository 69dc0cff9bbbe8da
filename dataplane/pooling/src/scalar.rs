//! What pooling means: the reference that every kernel is compared with, bit for bit.
//!
//! Equality is of bits, NaNs included, since a NaN that comes out is always [`NAN`]. On x86-64
//! without FMA in the target features `f32::mul_add` is a call into the C library: exact, and slow.

use crate::{Bags, Mode, RowFormat, Rows};

/// The one NaN that pooling gives.
pub const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// Pools one bag into `vector`, which has an element a dimension. `weights` has one for each id.
///
/// # Panics
/// If `vector` has another length, an id names no row, or there are fewer weights than ids.
pub fn bag(rows: &Rows<'_>, ids: &[u32], weights: Option<&[f32]>, mode: Mode, vector: &mut [f32]) {
    assert_eq!(
        vector.len(),
        rows.dim(),
        "elements of the vector, dimensions of the rows"
    );
    vector.fill(0.0);
    let mut biases = 0.0;
    for (i, &id) in ids.iter().enumerate() {
        let row = rows.row(id);
        match rows.format() {
            RowFormat::F32 => add_f32(row, weights.map(|weights| weights[i]), vector),
            RowFormat::Int8 => {
                add_int8(row, weights.map(|weights| weights[i]), vector, &mut biases)
            }
        }
    }
    for sum in vector {
        if rows.format() == RowFormat::Int8 {
            *sum += biases;
        }
        if mode == Mode::Mean && !ids.is_empty() {
            *sum /= ids.len() as f32;
        }
        if sum.is_nan() {
            *sum = NAN;
        }
    }
}

fn f32_at(bytes: &[u8]) -> f32 {
    f32::from_le_bytes(bytes.try_into().expect("four bytes"))
}

fn add_f32(row: &[u8], weight: Option<f32>, vector: &mut [f32]) {
    for (sum, x) in vector.iter_mut().zip(row.chunks_exact(4)) {
        *sum = match weight {
            Some(weight) => weight.mul_add(f32_at(x), *sum),
            None => *sum + f32_at(x),
        };
    }
}

/// A row's bias is the same for all dimensions, so biases have a sum of their own.
fn add_int8(row: &[u8], weight: Option<f32>, vector: &mut [f32], biases: &mut f32) {
    let (codes, trailer) = row.split_at(vector.len());
    let (scale, bias) = (f32_at(&trailer[..4]), f32_at(&trailer[4..8]));
    let scale = match weight {
        Some(weight) => weight * scale,
        None => scale,
    };
    *biases = match weight {
        Some(weight) => weight.mul_add(bias, *biases),
        None => *biases + bias,
    };
    for (sum, &code) in vector.iter_mut().zip(codes) {
        *sum = scale.mul_add(f32::from(code), *sum);
    }
}

/// Pools a batch into `target`, taken as the bytes that offsets and strides count.
///
/// # Panics
/// As [`crate::Kernels::pool`], and if an offset or a stride is not a multiple of 4.
pub fn pool(batch: &[Bags<'_>], target: &mut [f32]) {
    for bags in batch {
        bags.assert_sound(4 * target.len());
        assert!(
            bags.offset.is_multiple_of(4) && bags.stride.is_multiple_of(4),
            "whole elements"
        );
        for_each_bag(bags, |offset, ids, weights| {
            let vector = &mut target[offset / 4..][..bags.rows.dim()];
            bag(&bags.rows, ids, weights, bags.mode, vector);
        });
    }
}

/// Calls `pool` for each bag with the byte its vector starts at, its ids and its weights.
pub(crate) fn for_each_bag(bags: &Bags<'_>, mut pool: impl FnMut(usize, &[u32], Option<&[f32]>)) {
    let mut start = 0;
    for (i, &length) in bags.lengths.iter().enumerate() {
        let range = start..start + length as usize;
        start = range.end;
        let weights = bags.weights.map(|weights| &weights[range.clone()]);
        pool(bags.offset + i * bags.stride, &bags.ids[range], weights);
    }
}
