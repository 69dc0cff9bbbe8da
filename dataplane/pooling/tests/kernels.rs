//! Every instruction set that this machine has against the scalar reference, bit for bit.

use proptest::prelude::*;
use rowmill_arena::Window;
use rowmill_pooling::{Bags, Isa, Kernels, Mode, RowFormat, Rows, scalar};

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
    offset: usize,
    stride: usize,
}

impl Feature {
    /// A feature whose vectors begin at `offset`, with `gap` bytes after each.
    fn new(
        (dim, format, values): (usize, RowFormat, Values),
        (mode, weighted): (Mode, bool),
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
            let codes = if format == RowFormat::Int8 { dim } else { 0 };
            row[..codes].fill_with(|| bits.next() as u8);
            for x in row[codes..format.row_bytes(dim)].chunks_exact_mut(4) {
                x.copy_from_slice(&value(values, &mut bits).to_le_bytes());
            }
        }
        let total: u32 = lengths.iter().sum();
        let ids = (0..total)
            .map(|i| if i % 5 == 4 { 36 } else { bits.below(37) })
            .collect();
        let weights = weighted.then(|| (0..total).map(|_| value(values, &mut bits)).collect());
        let stride = 4 * dim + gap;
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
            offset: self.offset,
            stride: self.stride,
        }
    }

    fn end(&self) -> usize {
        self.bags().target_end().unwrap()
    }
}

/// What a target of `len` bytes must hold afterwards, by the reference, one bag at a time.
fn expected(features: &[Feature], len: usize) -> Vec<u8> {
    let mut target = vec![UNTOUCHED; len];
    for feature in features {
        let bags = feature.bags();
        let mut start = 0;
        for (i, &length) in feature.lengths.iter().enumerate() {
            let range = start..start + length as usize;
            start = range.end;
            let mut vector = vec![f32::NAN; feature.dim];
            let weights = bags.weights.map(|weights| &weights[range.clone()]);
            scalar::bag(
                &bags.rows,
                &bags.ids[range],
                weights,
                bags.mode,
                &mut vector,
            );
            let at = feature.offset + i * feature.stride;
            for (to, x) in target[at..].chunks_exact_mut(4).zip(vector) {
                to.copy_from_slice(&x.to_le_bytes());
            }
        }
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

const MODES: [(Mode, bool); 3] = [(Mode::Sum, false), (Mode::Mean, false), (Mode::Sum, true)];
const FORMATS: [RowFormat; 2] = [RowFormat::F32, RowFormat::Int8];

/// Below, at and above every register and tile of every instruction set, and the largest.
const DIMS: [usize; 24] = [
    4, 8, 12, 16, 20, 28, 32, 48, 60, 64, 68, 72, 96, 100, 124, 128, 192, 252, 256, 260, 512, 516,
    1000, 2048,
];

#[test]
fn matrix_of_cases() {
    let lengths: [&[u32]; 4] = [&[], &[0], &[1, 0, 7, 0, 0, 2, 33, 1], &[0, 300, 0]];
    for (case, dim) in DIMS.into_iter().enumerate() {
        for format in FORMATS {
            for mode in MODES {
                for values in [Values::Ordinary, Values::Special] {
                    let shape = (dim, format, values);
                    // Strides and places off every alignment, by turns.
                    let place = (
                        [0, 4, 3, 61][case % 4],
                        [0, 12, 5][case % 3],
                        [0, 4, 1, 7][case / 3 % 4],
                    );
                    for lengths in lengths {
                        let feature = Feature::new(shape, mode, lengths, place, case as u64);
                        assert_all_equal(&[feature], [0, 4, 32, 60, 1][case % 5]);
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
        let shape = (dim, FORMATS[case % 2], Values::Ordinary);
        let lengths = [3, 0, 1, 2 * case as u32, 17];
        let feature = Feature::new(
            shape,
            MODES[case % 3],
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
            Feature::new(shape, (Mode::Sum, false), &[2, 0, 5], place, dim as u64)
        })
        .collect();
    assert_all_equal(&features, 0);
}

#[test]
fn where_places_overlap_the_later_wins() {
    let shape = (32, RowFormat::F32, Values::Ordinary);
    let mut feature = Feature::new(shape, (Mode::Sum, false), &[4, 5, 6], (0, 0, 0), 1);
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

#[test]
fn reference_over_a_slice_agrees() {
    let shape = (24, RowFormat::Int8, Values::Special);
    let feature = Feature::new(shape, (Mode::Sum, true), &[4, 0, 9], (8, 16, 0), 3);
    let mut target = vec![f32::from_le_bytes([UNTOUCHED; 4]); feature.end() / 4];
    scalar::pool(&[feature.bags()], &mut target);
    let bytes: Vec<u8> = target.iter().flat_map(|x| x.to_le_bytes()).collect();
    let end = feature.end();
    assert_eq!(bytes, expected(&[feature], end));
}

fn any_feature() -> impl Strategy<Value = Feature> {
    let dim = (1usize..=80).prop_map(|quarter| 4 * quarter);
    let lengths = prop::collection::vec(prop_oneof![Just(0u32), 1..4u32, 0..60u32], 0..12);
    let shape = (
        dim,
        prop::sample::select(&FORMATS),
        prop::sample::select(&[Values::Ordinary, Values::Special]),
    );
    let place = (0usize..200, 0usize..40, 0usize..70);
    (
        shape,
        prop::sample::select(&MODES),
        lengths,
        place,
        any::<u64>(),
    )
        .prop_map(|(shape, mode, lengths, place, seed)| {
            Feature::new(shape, mode, &lengths, place, seed)
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

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
    let feature = Feature::new(shape, (Mode::Sum, true), &[3, 4], (4, 4, 0), 9);
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
#[should_panic(expected = "weights go with sums")]
fn weighted_mean_panics() {
    pool_spoilt(|bags| bags.mode = Mode::Mean);
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
