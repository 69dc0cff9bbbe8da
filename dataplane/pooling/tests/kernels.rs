//! Every instruction set that this machine has against the scalar reference, bit for bit.

use proptest::prelude::*;
use rowmill_arena::Window;
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Output, RowFormat, Rows, scalar};

/// What fills the targets before pooling; no pooled vector is made of it.
const UNTOUCHED: u8 = 0xa5;

/// A xorshift generator, seeded, so that cases need no tables.
struct Bits(u64);

impl Bits {
    /// The next 32 bits.
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u32
    }

    /// A number below `end`.
    fn below(&mut self, end: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(end)) >> 32) as u32
    }
}

/// What the values of rows and weights are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Values {
    /// Of a few orders of magnitude, both signs: every order of additions gives other bits.
    Ordinary,
    /// Many zeros of both signs, infinities, NaNs with payloads, the largest and the least numbers.
    Special,
}

fn value(values: Values, bits: &mut Bits) -> f32 {
    let ordinary = f32::from_bits(bits.next() & 0x807f_ffff | (0x3d + bits.below(5)) << 24);
    let special = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        f32::from_bits(0xffc1_2345),
        f32::from_bits(0x7f80_0001),
        f32::MAX,
        f32::MIN_POSITIVE,
        -f32::from_bits(1),
    ];
    match values {
        Values::Ordinary => ordinary,
        Values::Special if bits.below(3) == 0 => special[bits.below(10) as usize],
        Values::Special => ordinary,
    }
}

/// Fills a row: codes with any bits, numbers with values.
fn fill_row(row: &mut [u8], format: RowFormat, dim: usize, values: Values, bits: &mut Bits) {
    let codes = if format.has_codes() {
        format.value_bytes(dim)
    } else {
        0
    };
    row[..codes].fill_with(|| bits.next() as u8);
    let numbers = &mut row[codes..];
    match format {
        RowFormat::F32 | RowFormat::Int8 => {
            for x in numbers.chunks_exact_mut(4) {
                x.copy_from_slice(&value(values, bits).to_le_bytes());
            }
        }
        RowFormat::F16 | RowFormat::Int8F16 | RowFormat::Int4 => {
            for x in numbers.chunks_exact_mut(2) {
                // A quarter of them subnormal.
                let x16 = match bits.below(4) {
                    0 => half::f16::from_bits(bits.next() as u16 & 0x83ff),
                    _ => half::f16::from_f32(value(values, bits)),
                };
                x.copy_from_slice(&x16.to_le_bytes());
            }
        }
        RowFormat::Bf16 => {
            for x in numbers.chunks_exact_mut(2) {
                x.copy_from_slice(&half::bf16::from_f32(value(values, bits)).to_le_bytes());
            }
        }
    }
}

/// A feature with all that its bags borrow.
#[derive(Clone, Debug)]
struct Feature {
    dim: usize,
    format: RowFormat,
    count: u32,
    row_stride: usize,
    bytes: Vec<u8>,
    ids: Vec<u32>,
    lengths: Vec<u32>,
    weights: Option<Vec<f32>>,
    mode: Mode,
    output: Output,
    offset: usize,
    stride: usize,
}

impl Feature {
    /// A feature whose vectors begin at `offset`, with `gap` bytes after each.
    fn new(
        (dim, format, values): (usize, RowFormat, Values),
        (mode, weighted, output): Way,
        lengths: &[u32],
        (offset, gap, padding): (usize, usize, usize),
        seed: u64,
    ) -> Feature {
        let mut bits = Bits(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let count = 37;
        let row_stride = format.row_bytes(dim) + padding;
        // The last row has no padding, so that reading past it would be reading past the bytes.
        let mut bytes = vec![0; row_stride * (count - 1) + format.row_bytes(dim)];
        for row in bytes.chunks_mut(row_stride) {
            fill_row(
                &mut row[..format.row_bytes(dim)],
                format,
                dim,
                values,
                &mut bits,
            );
        }
        let total: u32 = lengths.iter().sum();
        let ids = (0..total)
            .map(|i| if i % 5 == 4 { 36 } else { bits.below(37) })
            .collect();
        let weights = weighted.then(|| (0..total).map(|_| value(values, &mut bits)).collect());
        let stride = output.bytes() * dim + gap;
        let lengths = lengths.to_vec();
        let count = count as u32;
        Feature {
            dim,
            format,
            count,
            row_stride,
            bytes,
            ids,
            lengths,
            weights,
            mode,
            output,
            offset,
            stride,
        }
    }

    fn bags(&self) -> Bags<'_> {
        Bags {
            rows: Rows::new(
                &self.bytes,
                self.row_stride,
                self.count,
                self.dim,
                self.format,
            )
            .unwrap(),
            ids: &self.ids,
            lengths: &self.lengths,
            weights: self.weights.as_deref(),
            mode: self.mode,
            output: self.output,
            offset: self.offset,
            stride: self.stride,
        }
    }

    fn end(&self) -> usize {
        self.bags().target_end().unwrap()
    }
}

/// What a target of `len` bytes must hold afterwards, by the reference.
fn expected(features: &[Feature], len: usize) -> Vec<u8> {
    let mut target = vec![UNTOUCHED; len];
    for feature in features {
        scalar::pool(&[feature.bags()], &mut target);
    }
    target
}

/// Pools with every instruction set into a target that is `shift` bytes off a cache line, and compares
/// all of it, the bytes between and around the vectors included.
fn assert_all_equal(features: &[Feature], shift: usize) {
    let len = features.iter().map(Feature::end).max().unwrap_or(0) + 64;
    let expected = expected(features, len);
    let batch: Vec<_> = features.iter().map(Feature::bags).collect();
    for isa in Isa::available() {
        let mut memory = vec![UNTOUCHED; len + 128];
        let start = memory.as_ptr().align_offset(64) + shift;
        Kernels::new(isa).pool(&batch, &Window::over(&mut memory[start..start + len]));
        if let Some(at) = (0..len).find(|&at| memory[start + at] != expected[at]) {
            panic!("{isa} differs from the reference at byte {at}, shift {shift}: {features:?}");
        }
        let outside = memory[..start].iter().chain(&memory[start + len..]);
        assert!(
            outside.into_iter().all(|&byte| byte == UNTOUCHED),
            "{isa} wrote outside the target"
        );
    }
}

/// A mode, whether there are weights, and how results are stored.
type Way = (Mode, bool, Output);

const SUM: Way = (Mode::Sum, false, Output::F32);

/// Every mode with and without weights, in every output type.
fn ways() -> Vec<Way> {
    let modes = [
        (Mode::Sum, false),
        (Mode::Sum, true),
        (Mode::Mean, false),
        (Mode::Mean, true),
        (Mode::Max, false),
        (Mode::None, false),
    ];
    modes
        .into_iter()
        .flat_map(|(mode, weighted)| Output::ALL.map(|output| (mode, weighted, output)))
        .collect()
}

/// Below, at and above every register and tile of every instruction set, and the largest.
const DIMS: [usize; 24] = [
    4, 8, 12, 16, 20, 28, 32, 48, 60, 64, 68, 72, 96, 100, 124, 128, 192, 252, 256, 260, 512, 516,
    1000, 2048,
];

/// Of the matrix, every how manieth case is run: 1, or what `ROWMILL_TEST_EVERY` says where the machine is
/// emulated. A number that shares no factor with the sides of the matrix meets all pairs of them.
fn every() -> usize {
    let given = std::env::var("ROWMILL_TEST_EVERY");
    given.map_or(1, |every| {
        every.parse().expect("ROWMILL_TEST_EVERY is a number")
    })
}

#[test]
fn matrix_of_cases() {
    let lengths: [&[u32]; 4] = [&[], &[0], &[1, 0, 7, 0, 0, 2, 33, 1], &[0, 80, 0]];
    let mut number = 0;
    for (case, dim) in DIMS.into_iter().enumerate() {
        for format in RowFormat::ALL {
            for way in ways() {
                for values in [Values::Ordinary, Values::Special] {
                    let shape = (dim, format, values);
                    // Strides and places off every alignment, by turns.
                    let place = (
                        [0, 4, 3, 61][case % 4],
                        [0, 12, 5][case % 3],
                        [0, 4, 1, 7][case / 3 % 4],
                    );
                    for lengths in lengths {
                        number += 1;
                        if number % every() == 0 {
                            let feature = Feature::new(shape, way, lengths, place, case as u64);
                            assert_all_equal(&[feature], [0, 4, 32, 60, 1][case % 5]);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn batch_of_features_of_many_shapes() {
    let mut features = Vec::new();
    let mut offset = 8;
    for (case, dim) in DIMS.into_iter().enumerate() {
        let shape = (dim, RowFormat::ALL[case % 6], Values::Ordinary);
        let lengths = [3, 0, 1, 2 * case as u32, 17];
        let feature = Feature::new(
            shape,
            ways()[case * 5 % 18],
            &lengths,
            (offset, 4, 0),
            case as u64,
        );
        offset = feature.end();
        features.push(feature);
    }
    assert_all_equal(&features, 0);
    assert_all_equal(&[], 0);
}

#[test]
fn features_side_by_side_share_a_stride() {
    let dims = [64, 4, 128, 36];
    let row = 4 * dims.iter().sum::<usize>();
    let mut offset = 0;
    let features: Vec<_> = dims
        .into_iter()
        .map(|dim| {
            let shape = (dim, RowFormat::F32, Values::Ordinary);
            let place = (offset, row - 4 * dim, 0);
            offset += 4 * dim;
            Feature::new(shape, SUM, &[2, 0, 5], place, dim as u64)
        })
        .collect();
    assert_all_equal(&features, 0);
}

#[test]
fn where_places_overlap_the_later_wins() {
    let shape = (32, RowFormat::F32, Values::Ordinary);
    let mut feature = Feature::new(shape, SUM, &[4, 5, 6], (0, 0, 0), 1);
    feature.stride = 0;
    assert_all_equal(&[feature.clone(), feature], 0);
}

#[test]
fn what_comes_out_of_special_values() {
    let payload = f32::from_bits(0xffc1_2345);
    let rows = [f32::INFINITY, f32::NEG_INFINITY, payload, -0.0, 2.5e38, 1.5];
    let bytes: Vec<u8> = rows
        .iter()
        .flat_map(|x| [x.to_le_bytes(); 4])
        .flatten()
        .collect();
    let cases: [(&[u32], Mode, u32); 9] = [
        (&[], Mode::Sum, 0),
        (&[], Mode::Mean, 0),
        (&[3], Mode::Sum, 0),
        (&[3, 3], Mode::Mean, 0),
        (&[0, 5], Mode::Sum, f32::INFINITY.to_bits()),
        (&[0, 1], Mode::Sum, scalar::NAN.to_bits()),
        (&[2, 2], Mode::Mean, scalar::NAN.to_bits()),
        (&[4, 4], Mode::Sum, f32::INFINITY.to_bits()),
        (&[5, 5, 5], Mode::Mean, 1.5f32.to_bits()),
    ];
    for isa in Isa::available() {
        for (ids, mode, bits) in cases {
            let mut target = [UNTOUCHED; 16];
            let bags = Bags {
                rows: Rows::new(&bytes, 16, 6, 4, RowFormat::F32).unwrap(),
                ids,
                lengths: &[ids.len() as u32],
                weights: None,
                mode,
                output: Output::F32,
                offset: 0,
                stride: 16,
            };
            Kernels::new(isa).pool(&[bags], &Window::over(&mut target));
            assert_eq!(
                target.as_slice(),
                [bits.to_le_bytes(); 4].as_flattened(),
                "{isa} {ids:?} {mode:?}"
            );
        }
    }
}

/// The reference itself, on numbers that a person can follow.
#[test]
fn reference_of_codes_and_weights() {
    let half = |x: f32| half::f16::from_f32(x).to_le_bytes();
    // Codes 1, 2, 3, 15 and scale 0.5, bias -1: -0.5, 0, 0.5, 6.5; then codes of 2, scale -1, bias 8: 6.
    let mut bytes = vec![0x21, 0xf3];
    bytes.extend([half(0.5), half(-1.0)].concat());
    bytes.extend([0x22, 0x22]);
    bytes.extend([half(-1.0), half(8.0)].concat());
    let rows = Rows::new(&bytes, 6, 2, 4, RowFormat::Int4).unwrap();
    let pool = |ids: &[u32], weights: Option<&[f32]>, mode| {
        let mut vector = [f32::NAN; 4];
        scalar::bag(&rows, ids, weights, mode, &mut vector);
        vector
    };
    assert_eq!(pool(&[0, 1], None, Mode::Sum), [5.5, 6.0, 6.5, 12.5]);
    assert_eq!(pool(&[0, 1], None, Mode::Mean), [2.75, 3.0, 3.25, 6.25]);
    assert_eq!(pool(&[0, 1, 0], None, Mode::Max), [6.0, 6.0, 6.0, 6.5]);
    let weights: &[f32] = &[2.0, -1.0];
    assert_eq!(
        pool(&[0, 1], Some(weights), Mode::Sum),
        [-7.0, -6.0, -5.0, 7.0]
    );
    assert_eq!(
        pool(&[0, 1], Some(weights), Mode::Mean),
        [-7.0, -6.0, -5.0, 7.0]
    );
    assert_eq!(pool(&[0, 1], Some(&[1.0, -1.0]), Mode::Mean), [0.0; 4]);
    let mut values = [0.0; 4];
    scalar::row(&rows, 0, &mut values);
    assert_eq!(values, [-0.5, 0.0, 0.5, 6.5]);
    let stored = |x, output: Output| {
        let mut bytes = vec![0; output.bytes()];
        scalar::store(x, output, &mut bytes);
        bytes
    };
    assert_eq!(stored(scalar::NAN, Output::F16), 0x7e00u16.to_le_bytes());
    assert_eq!(stored(scalar::NAN, Output::Bf16), 0x7fc0u16.to_le_bytes());
    // 65519.99 is the last that rounds down; halfway between bf16 1 and its successor goes to the even.
    assert_eq!(stored(65519.99, Output::F16), 0x7bffu16.to_le_bytes());
    assert_eq!(stored(65520.0, Output::F16), 0x7c00u16.to_le_bytes());
    assert_eq!(
        stored(1.0 + 1.0 / 256.0, Output::Bf16),
        0x3f80u16.to_le_bytes()
    );
    assert_eq!(
        stored(f32::from_bits(0x0000_8001), Output::Bf16),
        [1, 0],
        "subnormal"
    );
}

/// A sum of codes is the sum of the rows' values in their order, bit for bit, so that a bag of one gives the
/// row, and large biases don't cancel at the cost of small values.
#[test]
fn sums_of_codes_are_sums_of_values() {
    const DIM: usize = 20;
    const ROWS: u32 = 4000;
    for format in RowFormat::ALL.into_iter().filter(|f| f.has_codes()) {
        let mut bits = Bits(11);
        let mut bytes = Vec::new();
        for id in 0..ROWS {
            bytes.extend((0..format.value_bytes(DIM)).map(|_| bits.next() as u8));
            // Around zero, from zero on, and far from it.
            let bias = [-1.0, 0.0, 100.0][id as usize % 3] + bits.below(1000) as f32 * 1e-5;
            let scale = (1 + bits.below(1000)) as f32 * 1e-5;
            match format {
                RowFormat::Int8 => bytes.extend([scale, bias].map(f32::to_le_bytes).concat()),
                _ => bytes.extend(
                    [scale, bias]
                        .map(|x| half::f16::from_f32(x).to_le_bytes())
                        .concat(),
                ),
            }
        }
        let rows = Rows::new(&bytes, format.row_bytes(DIM), ROWS, DIM, format).unwrap();
        for (count, weight) in [(1, None), (214, None), (ROWS, None), (ROWS, Some(0.3f32))] {
            let (mut values, mut one_by_one, mut sum) = ([0.0; DIM], [0.0f32; DIM], [0.0; DIM]);
            let ids: Vec<u32> = (0..count).map(|id| id * 7 % ROWS).collect();
            for &id in &ids {
                scalar::row(&rows, id, &mut values);
                for (sum, value) in one_by_one.iter_mut().zip(values) {
                    *sum = match weight {
                        Some(weight) => weight.mul_add(value, *sum),
                        None => *sum + value,
                    };
                }
            }
            let weights = weight.map(|weight| vec![weight; count as usize]);
            scalar::bag(&rows, &ids, weights.as_deref(), Mode::Sum, &mut sum);
            assert_eq!(sum, one_by_one, "{format}, {count} rows");
        }
    }
}

/// Rows that span nearly all numbers have a sum, as they have a maximum.
#[test]
fn sums_of_the_widest_rows_are_finite() {
    let scale = 6.7e38f64 / 255.0;
    let mut bytes = vec![0, 255, 128, 127];
    bytes.extend([scale as f32, -3.35e38].map(f32::to_le_bytes).concat());
    let rows = Rows::new(&bytes, 12, 1, 4, RowFormat::Int8).unwrap();
    for mode in [Mode::Sum, Mode::Mean, Mode::Max] {
        let mut vector = [0.0; 4];
        scalar::bag(&rows, &[0], None, mode, &mut vector);
        assert!(
            (vector[0] / -3.35e38 - 1.0).abs() < 1e-6,
            "{mode:?} {vector:?}"
        );
        assert!(
            (vector[1] / 3.35e38 - 1.0).abs() < 1e-6,
            "{mode:?} {vector:?}"
        );
    }
}

/// A maximum does not depend on the order of the ids, zeros of both signs and NaNs included.
#[test]
fn maximum_of_zeros_and_nans() {
    let rows = [
        0.0f32,
        -0.0,
        f32::from_bits(0xffc0_0001),
        f32::NEG_INFINITY,
        -1.0,
    ];
    let bytes: Vec<u8> = rows
        .iter()
        .flat_map(|x| [x.to_le_bytes(); 4])
        .flatten()
        .collect();
    let cases: [(&[u32], u32); 6] = [
        (&[0, 1], 0),
        (&[1, 0], 0),
        (&[1, 3], (-0.0f32).to_bits()),
        (&[2, 0], scalar::NAN.to_bits()),
        (&[4, 2, 4], scalar::NAN.to_bits()),
        (&[3, 4], (-1.0f32).to_bits()),
    ];
    for isa in Isa::available() {
        for (ids, bits) in cases {
            let mut target = [UNTOUCHED; 16];
            let bags = Bags {
                rows: Rows::new(&bytes, 16, 5, 4, RowFormat::F32).unwrap(),
                ids,
                lengths: &[ids.len() as u32],
                weights: None,
                mode: Mode::Max,
                output: Output::F32,
                offset: 0,
                stride: 16,
            };
            Kernels::new(isa).pool(&[bags], &Window::over(&mut target));
            assert_eq!(
                target.as_slice(),
                [bits.to_le_bytes(); 4].as_flattened(),
                "{isa} {ids:?}"
            );
        }
    }
}

fn any_feature() -> impl Strategy<Value = Feature> {
    let dim = (1usize..=80).prop_map(|quarter| 4 * quarter);
    let lengths = prop::collection::vec(prop_oneof![Just(0u32), 1..4u32, 0..60u32], 0..12);
    let shape = (
        dim,
        prop::sample::select(&RowFormat::ALL),
        prop::sample::select(&[Values::Ordinary, Values::Special]),
    );
    let place = (0usize..200, 0usize..40, 0usize..70);
    (
        shape,
        prop::sample::select(ways()),
        lengths,
        place,
        any::<u64>(),
    )
        .prop_map(|(shape, way, lengths, place, seed)| {
            Feature::new(shape, way, &lengths, place, seed)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300 / every().min(10) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_batch_equals_the_reference(
        mut features in prop::collection::vec(any_feature(), 1..5),
        shift in 0usize..64,
    ) {
        // One behind the other, so that each is seen.
        let mut offset = 0;
        for feature in &mut features {
            feature.offset += offset;
            offset = feature.end();
        }
        assert_all_equal(&features, shift);
    }
}

/// Pools a feature that `spoil` has made unsound into a target of its size, with the widest kernels.
fn pool_spoilt(spoil: impl Fn(&mut Bags<'_>)) {
    let shape = (16, RowFormat::F32, Values::Ordinary);
    let feature = Feature::new(shape, (Mode::Sum, true, Output::F32), &[3, 4], (4, 4, 0), 9);
    let mut target = vec![0; feature.end()];
    let mut bags = feature.bags();
    spoil(&mut bags);
    Kernels::new(Isa::detect().isa).pool(&[bags], &Window::over(&mut target));
}

#[test]
fn unspoilt_pools() {
    pool_spoilt(|_| ());
}

#[test]
#[should_panic(expected = "sum of the lengths")]
fn lengths_that_fall_short_panic() {
    pool_spoilt(|bags| bags.lengths = &[3, 3]);
}

#[test]
#[should_panic(expected = "sum of the lengths")]
fn lengths_that_overflow_panic() {
    pool_spoilt(|bags| bags.lengths = &[u32::MAX, 8]);
}

#[test]
#[should_panic(expected = "id 37 at 6, but there are 37 rows")]
fn id_past_the_rows_panics() {
    pool_spoilt(|bags| bags.ids = &[0, 1, 36, 2, 3, 4, 37]);
}

#[test]
#[should_panic(expected = "number of weights")]
fn missing_weight_panics() {
    pool_spoilt(|bags| bags.weights = Some(&[1.0; 6]));
}

#[test]
#[should_panic(expected = "weights go with sums and means")]
fn weighted_maximum_panics() {
    pool_spoilt(|bags| bags.mode = Mode::Max);
}

#[test]
#[should_panic(expected = "of a target of")]
fn vector_past_the_target_panics() {
    pool_spoilt(|bags| bags.offset += 1);
}

#[test]
#[should_panic(expected = "end at byte None")]
fn stride_that_overflows_panics() {
    pool_spoilt(|bags| bags.stride = usize::MAX);
}
