//! What pooling means: the reference that every kernel is compared with, bit for bit.
//!
//! Equality is of bits, NaNs included, since a NaN that comes out is always [`NAN`]. On x86-64
//! without FMA in the target features `f32::mul_add` is a call into the C library: exact, and slow.

use crate::rows::ROW_BYTES_MAX;
use crate::{Bags, DIM_MAX, Mode, Output, RowFormat, Rows};
use half::{bf16, f16};

/// The one NaN that pooling gives. Stored as f16 it is 0x7e00, as bf16 0x7fc0.
pub const NAN: f32 = f32::from_bits(0x7fc0_0000);

/// Pools one bag into `vector`, which has an element a dimension. `weights` has one for each id.
///
/// # Panics
/// If `vector` has another length, an id names no row, there are fewer weights than ids or weights with
/// a mode that takes none, or the mode is [`Mode::None`], which gives no vector a bag.
pub fn bag(rows: &Rows<'_>, ids: &[u32], weights: Option<&[f32]>, mode: Mode, vector: &mut [f32]) {
    assert_eq!(
        vector.len(),
        rows.dim(),
        "elements of the vector, dimensions of the rows"
    );
    assert!(
        weights.is_none() || mode.takes_weights(),
        "weights with {mode:?}"
    );
    vector.fill(0.0);
    match mode {
        Mode::Sum | Mode::Mean => {
            sum(rows, ids, weights, vector);
            if mode == Mode::Mean {
                divide(vector, ids.len(), weights);
            }
        }
        Mode::Max => max(rows, ids, vector),
        Mode::None => panic!("rows that are not pooled give no vector a bag"),
    }
    for x in vector.iter_mut().filter(|x| x.is_nan()) {
        *x = NAN;
    }
}

/// The values of row `id`, what [`Mode::None`] gives for an id.
///
/// # Panics
/// If there is no such row, or `values` has not one element a dimension.
pub fn row(rows: &Rows<'_>, id: u32, values: &mut [f32]) {
    let copy = &mut [0; ROW_BYTES_MAX];
    assert_eq!(
        values.len(),
        rows.dim(),
        "elements of the values, dimensions of the rows"
    );
    for (x, value) in values.iter_mut().zip(elements(rows, id, copy)) {
        *x = if value.is_nan() { NAN } else { value };
    }
}

/// Writes an element as it is stored.
///
/// # Panics
/// If `bytes` is not as long as an element.
pub fn store(x: f32, output: Output, bytes: &mut [u8]) {
    match output {
        Output::F32 => bytes.copy_from_slice(&x.to_le_bytes()),
        Output::F16 => bytes.copy_from_slice(&f16::from_f32(x).to_le_bytes()),
        Output::Bf16 => bytes.copy_from_slice(&bf16::from_f32(x).to_le_bytes()),
    }
}

fn sum(rows: &Rows<'_>, ids: &[u32], weights: Option<&[f32]>, vector: &mut [f32]) {
    let copy = &mut [0; ROW_BYTES_MAX];
    for (i, &id) in ids.iter().enumerate() {
        for (sum, x) in vector.iter_mut().zip(elements(rows, id, copy)) {
            *sum = match weights {
                Some(weights) => weights[i].mul_add(x, *sum),
                None => *sum + x,
            };
        }
    }
}

/// Divides by the number of ids, or by the sum of their weights, taken in their order from +0. No ids,
/// and weights that add up to zero, give zeros.
fn divide(vector: &mut [f32], ids: usize, weights: Option<&[f32]>) {
    let divisor = match weights {
        None => ids as f32,
        Some(weights) => weights[..ids].iter().fold(0.0, |sum, weight| sum + weight),
    };
    for x in vector {
        *x = if divisor == 0.0 { 0.0 } else { *x / divisor };
    }
}

fn max(rows: &Rows<'_>, ids: &[u32], vector: &mut [f32]) {
    let mut values = [0.0; DIM_MAX];
    let values = &mut values[..vector.len()];
    for (i, &id) in ids.iter().enumerate() {
        row(rows, id, values);
        for (greatest, &x) in vector.iter_mut().zip(values.iter()) {
            // The total order knows +0 > -0, and the one NaN, which is positive, as greatest of all.
            if i == 0 || x.total_cmp(greatest).is_gt() {
                *greatest = x;
            }
        }
    }
}

/// The values of row `id`, a dimension after the other, out of a copy of its bytes.
fn elements<'c>(
    rows: &Rows<'_>,
    id: u32,
    copy: &'c mut [u8; ROW_BYTES_MAX],
) -> impl Iterator<Item = f32> + 'c {
    let (format, dim) = (rows.format(), rows.dim());
    let row = &mut copy[..rows.row_bytes()];
    rows.read(id, row);
    let row = &*row;
    let (scale, bias) = scale_and_bias(format, dim, row);
    (0..dim).map(move |d| match format.has_codes() {
        true => scale.mul_add(element(format, row, d), bias),
        false => element(format, row, d),
    })
}

/// The number, or the code, of dimension `d` of a row.
fn element(format: RowFormat, row: &[u8], d: usize) -> f32 {
    match format {
        RowFormat::F32 => f32::from_le_bytes(bytes_at(row, 4 * d)),
        RowFormat::F16 => f16::from_le_bytes(bytes_at(row, 2 * d)).to_f32(),
        RowFormat::Bf16 => bf16::from_le_bytes(bytes_at(row, 2 * d)).to_f32(),
        RowFormat::Int8 | RowFormat::Int8F16 => f32::from(row[d]),
        RowFormat::Int4 => f32::from(row[d / 2] >> (4 * (d % 2)) & 0xf),
    }
}

/// Scale and bias of a row; of one without codes 1 and 0.
fn scale_and_bias(format: RowFormat, dim: usize, row: &[u8]) -> (f32, f32) {
    let at = format.value_bytes(dim);
    match format {
        RowFormat::F32 | RowFormat::F16 | RowFormat::Bf16 => (1.0, 0.0),
        RowFormat::Int8 => (
            f32::from_le_bytes(bytes_at(row, at)),
            f32::from_le_bytes(bytes_at(row, at + 4)),
        ),
        RowFormat::Int8F16 | RowFormat::Int4 => (
            f16::from_le_bytes(bytes_at(row, at)).to_f32(),
            f16::from_le_bytes(bytes_at(row, at + 2)).to_f32(),
        ),
    }
}

fn bytes_at<const N: usize>(row: &[u8], at: usize) -> [u8; N] {
    row[at..at + N].try_into().expect("as many bytes")
}

/// Pools a batch into `target`.
///
/// # Panics
/// As [`crate::Kernels::pool`].
pub fn pool(batch: &[Bags<'_>], target: &mut [u8]) {
    for bags in batch {
        bags.assert_sound(target.len());
    }
    for bags in batch {
        for_each_vector(bags, |offset, bytes| {
            target[offset..offset + bytes.len()].copy_from_slice(bytes);
        });
    }
}

/// Calls `put` for each vector with the byte it starts at and its bytes.
pub(crate) fn for_each_vector(bags: &Bags<'_>, mut put: impl FnMut(usize, &[u8])) {
    // On the stack, since a service without vector units must not allocate for a request either.
    let (mut vector, mut bytes) = ([0.0; DIM_MAX], [0; 4 * DIM_MAX]);
    let vector = &mut vector[..bags.rows.dim()];
    let bytes = &mut bytes[..bags.vector_bytes()];
    let mut put = |i: usize, vector: &[f32]| {
        let places = bytes.chunks_exact_mut(bags.output.bytes());
        for (&x, place) in vector.iter().zip(places) {
            store(x, bags.output, place);
        }
        put(bags.offset + i * bags.stride, bytes);
    };
    if bags.mode == Mode::None {
        for (i, &id) in bags.ids.iter().enumerate() {
            row(&bags.rows, id, vector);
            put(i, vector);
        }
        return;
    }
    let mut start = 0;
    for (i, &length) in bags.lengths.iter().enumerate() {
        let range = start..start + length as usize;
        start = range.end;
        let weights = bags.weights.map(|weights| &weights[range.clone()]);
        bag(&bags.rows, &bags.ids[range], weights, bags.mode, vector);
        put(i, vector);
    }
}
