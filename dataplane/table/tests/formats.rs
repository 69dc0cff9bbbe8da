//! Every row format against the rules of `FORMAT.md`, written down here a second time and slowly.

use proptest::prelude::*;
use rowmill_table::RowFormat;

const CODED: [RowFormat; 3] = [RowFormat::Int8, RowFormat::Int8F16, RowFormat::Int4];

fn encoded(format: RowFormat, values: &[f32]) -> Vec<u8> {
    let mut row = vec![0xa5; format.row_bytes(values.len())];
    format.encode(values, &mut row);
    row
}

fn decoded(format: RowFormat, row: &[u8], dim: usize) -> Vec<f32> {
    let mut values = vec![f32::NAN; dim];
    format.decode(row, &mut values);
    values
}

fn round_trip(format: RowFormat, values: &[f32]) -> Vec<f32> {
    decoded(format, &encoded(format, values), values.len())
}

/// A number of `bits` bits with `fraction` of them for the fraction, as IEEE 754 defines it.
fn value_of(bits: u32, exponent_bits: u32, fraction_bits: u32) -> f64 {
    let sign = if bits >> (exponent_bits + fraction_bits) == 1 {
        -1.0
    } else {
        1.0
    };
    let exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
    let offset = (1 << (exponent_bits - 1)) - 1;
    let power = |of: i32| 2f64.powi(of);
    match exponent {
        0 => sign * fraction * power(1 - offset),
        e if e == (1 << exponent_bits) - 1 && fraction == 0.0 => sign * f64::INFINITY,
        e if e == (1 << exponent_bits) - 1 => f64::NAN,
        e => sign * (1.0 + fraction) * power(e as i32 - offset),
    }
}

fn f16_value(bits: u32) -> f64 {
    value_of(bits, 5, 10)
}

/// Every 16-bit pattern is read as IEEE 754 says and written back as it was; and numbers on, just below
/// and just above the middle of two neighbours become the nearest, the even one of two.
fn all_halves(format: RowFormat, value: impl Fn(u32) -> f64, infinity: u32) {
    for bits in 0..=0xffffu32 {
        let row: Vec<u8> = (bits as u16).to_le_bytes().repeat(4);
        let [got, ..] = decoded(format, &row, 4)[..] else {
            unreachable!()
        };
        let right = value(bits);
        if right.is_nan() {
            assert!(got.is_nan(), "{bits:#x}");
            continue;
        }
        assert_eq!(
            (f64::from(got), got.is_sign_negative()),
            (right, bits >> 15 == 1),
            "{bits:#x}"
        );
        assert_eq!(encoded(format, &[got; 4]), row, "{bits:#x}");
    }
    let half = |value: f32| {
        let row = encoded(format, &[value; 4]);
        u32::from(u16::from_le_bytes([row[0], row[1]]))
    };
    for bits in 0..infinity {
        // The one that there would be behind the largest, in the place of infinity.
        let next = if bits + 1 == infinity {
            value(bits) * 2.0 - value(bits - 1)
        } else {
            value(bits + 1)
        };
        // Exact in f32 but for the smallest bf16, whose middle is too.
        let middle = ((value(bits) + next) / 2.0) as f32;
        assert_eq!(f64::from(middle), (value(bits) + next) / 2.0);
        let even = bits + (bits & 1);
        for sign in [0, 0x8000] {
            let signed = |value: f32| if sign == 0 { value } else { -value };
            assert_eq!(half(signed(middle)), even | sign, "{middle:e}");
            assert_eq!(half(signed(middle.next_down())), bits | sign, "{middle:e}");
            assert_eq!(
                half(signed(middle.next_up())),
                (bits + 1) | sign,
                "{middle:e}"
            );
        }
    }
}

#[test]
fn all_f16() {
    all_halves(RowFormat::F16, f16_value, 0x7c00);
}

#[test]
fn all_bf16() {
    all_halves(RowFormat::Bf16, |bits| value_of(bits, 8, 7), 0x7f80);
}

/// The rule of int8: codes, scale, bias.
fn slow_int8(values: &[f32]) -> Vec<u8> {
    let least = values.iter().copied().fold(f32::INFINITY, f32::min) + 0.0;
    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let span = most - least;
    let scale = if span.is_finite() {
        span / 255.0
    } else {
        most / 255.0 - least / 255.0
    };
    let mut row = slow_codes(values, f64::from(least), f64::from(scale), 255.0);
    row.extend(scale.to_le_bytes());
    row.extend(least.to_le_bytes());
    row
}

fn slow_codes(values: &[f32], bias: f64, scale: f64, levels: f64) -> Vec<u8> {
    let code = |value: f32| {
        let steps = if scale > 0.0 {
            (f64::from(value) - bias) / scale
        } else {
            0.0
        };
        steps.round_ties_even().clamp(0.0, levels) as u8
    };
    values.iter().map(|&value| code(value)).collect()
}

/// The rule of int8-f16 and int4, by looking at every f16.
fn slow_with_f16(values: &[f32], levels: f64) -> (Vec<u8>, u16, u16) {
    let least = f64::from(values.iter().copied().fold(f32::INFINITY, f32::min));
    let most = f64::from(values.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    // All finite ones but -0.
    let finite = || (0..0x7c00u32).chain(0x8001..0xfc00);
    let bias = finite()
        .filter(|&bits| f16_value(bits) <= least)
        .max_by(|&one, &other| f16_value(one).total_cmp(&f16_value(other)))
        .unwrap();
    let scale = (0..0x7c00u32)
        .find(|&bits| f16_value(bits) * levels + f16_value(bias) >= most)
        .unwrap();
    let codes = slow_codes(values, f16_value(bias), f16_value(scale), levels);
    (codes, scale as u16, bias as u16)
}

fn slow_row(format: RowFormat, values: &[f32]) -> Vec<u8> {
    if format == RowFormat::Int8 {
        return slow_int8(values);
    }
    let levels = if format == RowFormat::Int4 {
        15.0
    } else {
        255.0
    };
    let (codes, scale, bias) = slow_with_f16(values, levels);
    let mut row = match format {
        RowFormat::Int4 => codes.chunks(2).map(|pair| pair[0] + 16 * pair[1]).collect(),
        _ => codes,
    };
    row.extend(scale.to_le_bytes());
    row.extend(bias.to_le_bytes());
    row
}

#[test]
fn layouts_byte_by_byte() {
    let values: Vec<f32> = (0u8..16).map(f32::from).collect();
    // Scale 1 and bias 0: f16 0x3c00 and 0.
    assert_eq!(
        encoded(RowFormat::Int4, &values),
        [
            0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x00, 0x3c, 0, 0
        ]
    );
    let values = [-1.0, 254.0, 0.0, 1.0];
    assert_eq!(
        encoded(RowFormat::Int8F16, &values),
        [0, 255, 1, 2, 0x00, 0x3c, 0x00, 0xbc]
    );
    assert_eq!(
        encoded(RowFormat::Int8, &values),
        [0, 255, 1, 2, 0, 0, 0x80, 0x3f, 0, 0, 0x80, 0xbf]
    );
    assert_eq!(
        encoded(RowFormat::F16, &[1.0, -2.0, 65504.0, 0.0]),
        [0, 0x3c, 0, 0xc0, 0xff, 0x7b, 0, 0]
    );
    assert_eq!(
        encoded(RowFormat::Bf16, &[1.0, -2.0, 0.0, -0.0]),
        [0x80, 0x3f, 0, 0xc0, 0, 0, 0, 0x80]
    );
}

#[test]
fn int8_rounds_to_nearest_even_and_keeps_the_ends() {
    // Scale 1, bias 0: the halves go to the even code.
    let values = [0.0, 0.5, 1.5, 2.5, 254.5, 255.0, 100.0, 3.5];
    for format in [RowFormat::Int8, RowFormat::Int8F16] {
        assert_eq!(
            round_trip(format, &values),
            [0.0, 0.0, 2.0, 2.0, 254.0, 255.0, 100.0, 4.0]
        );
    }
    assert_eq!(
        round_trip(
            RowFormat::Int4,
            &[0.0, 0.5, 1.5, 2.5, 14.5, 15.0, 10.0, 3.5]
        ),
        [0.0, 0.0, 2.0, 2.0, 14.0, 15.0, 10.0, 4.0]
    );
    for format in CODED {
        assert_eq!(round_trip(format, &[-7.25; 4]), [-7.25; 4]);
        assert_eq!(encoded(format, &[-0.0; 4]), encoded(format, &[0.0; 4]));
        assert_eq!(encoded(format, &[0.0; 4]), vec![0; format.row_bytes(4)]);
    }
    // A span so small that a 255th of it is no f32: bias alone.
    let tiny = [0.0, f32::from_bits(1), 0.0, 0.0];
    assert_eq!(encoded(RowFormat::Int8, &tiny), [0; 12]);
    let wide = round_trip(RowFormat::Int8, &[f32::MAX, f32::MIN, 0.0, 1.0]);
    assert!(wide.iter().all(|value| value.is_finite()), "{wide:?}");
}

#[test]
fn values_that_do_not_fit() {
    let refused = |format: RowFormat, values: &[f32]| {
        let unfit = format.check(values).unwrap_err();
        (unfit.dim, unfit.value.to_bits())
    };
    for format in RowFormat::ALL {
        assert_eq!(format.check(&[0.0, -0.0, 1.0, f32::MIN_POSITIVE]), Ok(()));
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for dim in [0, 3, 69] {
                let mut values = [1.0; 70];
                values[dim] = bad;
                assert_eq!(refused(format, &values), (dim, bad.to_bits()), "{format}");
                let text = format.check(&values).unwrap_err().to_string();
                assert!(text.ends_with("which is not finite"), "{text}");
            }
        }
    }
    let big = 65520f32;
    assert_eq!(
        RowFormat::F16.check(&[big.next_down(), -65519.0, 0.0, 0.0]),
        Ok(())
    );
    assert_eq!(
        refused(RowFormat::F16, &[0.0, -big, 0.0, big]),
        (1, (-big).to_bits())
    );
    let end = f32::from_bits(0x7f7f_8000);
    assert_eq!(RowFormat::Bf16.check(&[end.next_down(); 4]), Ok(()));
    assert_eq!(
        refused(RowFormat::Bf16, &[0.0, end, 0.0, 0.0]),
        (1, end.to_bits())
    );
    // Scale 255ths of the largest f32, rounded up: the largest code is too much.
    let mut overflows = 0;
    for step in 0..1000 {
        let most = f32::from_bits(f32::MAX.to_bits() - step);
        let values = [0.0, most, 0.0, 0.0];
        let finite = round_trip(RowFormat::Int8, &values)
            .iter()
            .all(|value| value.is_finite());
        assert_eq!(RowFormat::Int8.check(&values).is_ok(), finite, "{most:e}");
        overflows += u32::from(!finite);
    }
    println!("{overflows} of 1000 rows near the largest f32 can't be int8");
    for (format, levels) in [(RowFormat::Int8F16, 255.0), (RowFormat::Int4, 15.0)] {
        assert_eq!(format.check(&[-65504.0, 65504.0, 0.0, 0.0]), Ok(()));
        let low = (-65504f32).next_down();
        assert_eq!(refused(format, &[0.0, 1.0, low, 0.0]), (2, low.to_bits()));
        let high = 65504f32 * levels;
        assert_eq!(format.check(&[0.0, high, 0.0, 0.0]), Ok(()));
        let high = high.next_up();
        assert_eq!(refused(format, &[0.0, 1.0, 2.0, high]), (3, high.to_bits()));
        let text = format
            .check(&[0.0, 1.0, 2.0, high])
            .unwrap_err()
            .to_string();
        assert!(
            text.starts_with("dimension 3 is ") && text.contains("or int8 with its steps"),
            "{text}"
        );
    }
}

/// Finite values of all magnitudes that f16 scales reach, many of them on a grid.
fn any_value() -> impl Strategy<Value = f32> {
    prop_oneof![
        (-60000f32..60000.0),
        (-1f32..1.0),
        (-40..16, -2000i32..2000).prop_map(|(power, steps)| {
            (steps as f32 * 2f32.powi(power)).clamp(-60000.0, 60000.0)
        }),
        prop_oneof![
            Just(0.0),
            Just(-0.0),
            Just(1e-30),
            Just(-1e-30),
            Just(6e-8),
            Just(-6e-8)
        ],
    ]
}

fn any_row() -> impl Strategy<Value = Vec<f32>> {
    let spread = prop::collection::vec(any_value(), 4..140);
    // Rows with little between their values, where scales are small or zero.
    let narrow = (any_value(), prop::collection::vec(0u32..40, 4..20)).prop_map(|(base, steps)| {
        steps
            .iter()
            .map(|&step| f32::from_bits(base.to_bits() + step))
            .collect()
    });
    prop_oneof![spread, narrow].prop_map(|mut row: Vec<f32>| {
        row.truncate(row.len() / 4 * 4);
        row
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn codes_are_those_of_the_rule(row in any_row()) {
        for format in CODED {
            prop_assert_eq!(format.check(&row), Ok(()));
            prop_assert_eq!(encoded(format, &row), slow_row(format, &row), "{}", format);
        }
    }

    #[test]
    fn decoding_is_one_fused_multiply_add(bytes in prop::collection::vec(any::<u8>(), 76)) {
        // 64 or 128 codes, and a trailer of finite numbers.
        let finite = |at: usize, bytes: &[u8]| f16_value(u32::from(u16::from_le_bytes([bytes[at] , bytes[at + 1] & 0xbf])));
        let mut row = bytes[..68].to_vec();
        (row[65], row[67]) = (row[65] & 0xbf, row[67] & 0xbf);
        let (scale, bias) = (finite(64, &bytes), finite(66, &bytes));
        // Exact in f64, so that there is one rounding, that to f32.
        let value = |code: u8| (scale * f64::from(code) + bias) as f32;
        let eight: Vec<f32> = row[..64].iter().map(|&code| value(code)).collect();
        prop_assert_eq!(decoded(RowFormat::Int8F16, &row, 64), eight);
        let four: Vec<f32> = row[..64].iter().flat_map(|&byte| [value(byte % 16), value(byte / 16)]).collect();
        prop_assert_eq!(decoded(RowFormat::Int4, &row, 128), four);
        let (scale, bias) = (scale as f32, bias as f32);
        let mut row = bytes[..64].to_vec();
        row.extend(scale.to_le_bytes());
        row.extend(bias.to_le_bytes());
        let eight: Vec<f32> = row[..64].iter().map(|&code| value(code)).collect();
        prop_assert_eq!(decoded(RowFormat::Int8, &row, 64), eight);
    }

    #[test]
    fn within_half_a_step(row in any_row()) {
        let least = row.iter().copied().fold(f32::INFINITY, f32::min);
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for format in CODED {
            let bytes = encoded(format, &row);
            let (tail, f16) = (&bytes[format.row_bytes(row.len()) - 4..], format != RowFormat::Int8);
            let scale = if f16 {
                f16_value(u16::from_le_bytes([tail[0], tail[1]]).into())
            } else {
                f64::from(most - least) / 255.0
            };
            for (&value, got) in row.iter().zip(decoded(format, &bytes, row.len())) {
                let (value, got) = (f64::from(value), f64::from(got));
                // Half a step, what f32 rounds away from values this large, and from subnormal scales.
                let allowed = scale * 0.5 + (value.abs() + scale * 255.0) * 1.2e-7 + 1e-42;
                prop_assert!((value - got).abs() <= allowed, "{} {value} {got} {scale}", format);
            }
        }
    }

    #[test]
    fn f32_is_exact(values in prop::collection::vec(any::<f32>(), 4..64)) {
        let back = round_trip(RowFormat::F32, &values);
        for (value, got) in values.iter().zip(back) {
            prop_assert_eq!(value.to_bits(), got.to_bits());
        }
    }

    /// What a check lets pass is stored as finite values.
    #[test]
    fn checked_rows_are_finite(values in prop::collection::vec(any::<f32>(), 4..12)) {
        let values = &values[..values.len() / 4 * 4];
        for format in RowFormat::ALL {
            if format.check(values).is_ok() {
                prop_assert!(round_trip(format, values).iter().all(|value| value.is_finite()));
            } else {
                prop_assert!(format != RowFormat::F32 || values.iter().any(|value| !value.is_finite()));
            }
        }
    }
}
