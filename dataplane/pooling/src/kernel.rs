//! The kernels, written once over the vector operations of an instruction set.
//!
//! Every function here is inlined into one that enables the instruction set's features, so that [`Simd`]'s
//! methods become single instructions. What can be constant is: registers, format, whole registers or not.
#![allow(unsafe_code)]

use crate::ahead::{Ahead, LINE_BYTES, Place, Run, refill};
use crate::order::{in_order, reading_order};
use crate::{Mode, Output, RowFormat};
use rowmill_arena::Window;

/// The vector operations of an instruction set.
///
/// # Safety
/// All methods: the machine has the instruction set. Lanes are dimensions.
pub(crate) trait Simd {
    /// A register of f32.
    type Vector: Copy;

    /// Dimensions a register.
    const LANES: usize;
    /// Registers of sums in the largest tile: half of the register file, which leaves as many for all else.
    const REGISTERS: usize;
    /// Registers that int4 codes are loaded for together: as often as there are as many, and for what is
    /// left. The dimensions of such a group may be in any order until [`Simd::untangle`].
    const INT4_GROUPS: [usize; 2] = [1, 1];
    /// Whether a row's int4 decoder is made while the row before is added up. Else all of a row waits for it,
    /// and where that is long, the CPU's window of instructions is full of waiting ones.
    const INT4_DECODERS_AHEAD: bool = false;

    /// All lanes alike.
    unsafe fn splat(x: f32) -> Self::Vector;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `a + b`.
    unsafe fn add(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`.
    unsafe fn div(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `x`, with [`crate::scalar::NAN`] for any NaN.
    unsafe fn canonical(x: Self::Vector) -> Self::Vector;
    /// The greater of two canonical values: a NaN is greater than all, +0 is greater than -0.
    unsafe fn max(a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The two f16 of a word, the lower half first, as f32.
    unsafe fn f16_pair(word: u32) -> (f32, f32);

    /// What is read of a row of which `registers` are needed and whose first column is at `row`, for register
    /// `i`, or for the int4 group that it is the first of. Only the first `rest` dimensions of these are
    /// there, and others are not read; their lanes can hold anything.
    unsafe fn load(
        format: RowFormat,
        registers: usize,
        row: *const u8,
        i: usize,
        rest: usize,
    ) -> Self::Vector;
    /// What [`Simd::value`] needs of a row of which as many registers are read: scale and bias, or what an
    /// instruction set makes of them.
    #[inline(always)]
    unsafe fn decoder(
        _format: RowFormat,
        _registers: usize,
        scale: f32,
        bias: f32,
    ) -> [Self::Vector; 2] {
        // SAFETY: the trait's contract.
        unsafe { [Self::splat(scale), Self::splat(bias)] }
    }
    /// The values of register `i` of a row, from what was loaded for it and the row's decoder. Whether they
    /// are multiplied by a weight next matters only to speed: other units of the CPU are free then.
    #[inline(always)]
    unsafe fn value(
        format: RowFormat,
        _registers: usize,
        loaded: Self::Vector,
        _i: usize,
        [scale, bias]: [Self::Vector; 2],
        _weighted: bool,
    ) -> Self::Vector {
        if format.has_codes() {
            // SAFETY: the trait's contract.
            unsafe { Self::fma(scale, loaded, bias) }
        } else {
            loaded
        }
    }
    /// Puts the dimensions of registers of int4 values into order.
    #[inline(always)]
    unsafe fn untangle<const N: usize>(_vectors: &mut [Self::Vector; N]) {}
    /// Stores the first `lanes` dimensions of canonical values at `at`, which may have any alignment.
    unsafe fn store(x: Self::Vector, output: Output, at: *mut u8, lanes: usize);
    /// `x`, and a place that no load is moved across by the compiler, and no use of `x`.
    unsafe fn pin(x: Self::Vector) -> Self::Vector;
    /// Asks for a line to be brought to the second-level cache. Any address will do.
    fn prefetch(at: *const u8);
}

/// A function that pools a run.
pub(crate) type PoolRun = unsafe fn(&Run<'_>, &mut Ahead<'_>, &Window<'_>);

/// The dimensions of the largest tile.
pub(crate) const fn tile<S: Simd>() -> usize {
    S::REGISTERS * S::LANES
}

/// Kinds of runs that have functions of their own: the format, and whether rows are multiplied by weights.
pub(crate) const KINDS: usize = 12;

const fn kind(number: usize) -> (RowFormat, bool) {
    (RowFormat::ALL[number % 6], number < 6)
}

/// The kind of a run.
pub(crate) fn kind_of(run: &Run<'_>) -> usize {
    let unweighted = run.weights.is_none();
    run.bags.rows.format() as usize + 6 * usize::from(unweighted)
}

/// Registers that are loaded together with register `i` of a row of `registers`, itself included.
#[inline(always)]
const fn group<S: Simd>(format: RowFormat, registers: usize, i: usize) -> usize {
    let [first, others] = S::INT4_GROUPS;
    match format {
        RowFormat::Int4 if i < registers / first * first => first,
        RowFormat::Int4 => others,
        _ => 1,
    }
}

/// How many registers the columns of a run need.
pub(crate) fn registers<S: Simd>(run: &Run<'_>) -> usize {
    let needed = run.columns.len().div_ceil(S::LANES);
    needed.next_multiple_of(group::<S>(run.bags.rows.format(), 0, 0))
}

/// Pools a run by its maximum, or stores its rows unpooled.
///
/// # Safety
/// The machine has the instruction set, and the run's feature has passed [`crate::Bags::assert_sound`] for
/// the target's length.
#[inline(always)]
pub(crate) unsafe fn value_run<S: Simd>(run: &Run<'_>, ahead: &mut Ahead<'_>, target: &Window<'_>) {
    macro_rules! by_format {
        ($($f:literal)*) => {
            // SAFETY: the caller's contract; the constant is as the run is.
            unsafe {
                match (run.bags.rows.format() as usize, run.bags.mode) {
                    $(
                        ($f, Mode::Max) => pool_max::<S, $f>(run, ahead, target),
                        ($f, Mode::None) => store_rows::<S, $f>(run, ahead, target),
                    )*
                    _ => unreachable!("runs of other modes are for `pool_run`"),
                }
            }
        };
    }
    by_format!(0 1 2 3 4 5)
}

/// The columns of a run in registers.
#[derive(Clone, Copy)]
struct Columns {
    count: usize,
    lanes: usize,
}

impl Columns {
    fn of<S: Simd>(run: &Run<'_>) -> Columns {
        Columns {
            count: run.columns.len(),
            lanes: S::LANES,
        }
    }

    /// How many dimensions there are of the group of registers whose first is register `i`.
    #[inline(always)]
    fn rest(self, i: usize, group: usize) -> usize {
        (self.count - i * self.lanes).min(group * self.lanes)
    }

    /// How many dimensions of register `i` there are; none of the last of a group that has few.
    #[inline(always)]
    fn lanes(self, i: usize) -> usize {
        self.count.saturating_sub(i * self.lanes).min(self.lanes)
    }
}

/// Pools a run into sums, all that can be constant being so.
///
/// # Safety
/// The machine has the instruction set; the run needs `N` registers, which its columns fill wholly where
/// `FULL` is so; it is of [`kind`] `K`; and its feature has passed [`crate::Bags::assert_sound`] for the
/// target's length.
#[inline(always)]
pub(crate) unsafe fn pool_sums<S: Simd, const N: usize, const FULL: bool, const K: usize>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let (format, weighted) = const { kind(K) };
    let likely_lines = const { kind(K).0.row_bytes(N * S::LANES).div_ceil(LINE_BYTES) };
    let place = run.place();
    let columns = Columns::of::<S>(run);
    let mut steps = ahead.steps;
    let mut ids = run.ids;
    let mut weights = run.weights;
    let mut out = target.as_ptr().wrapping_add(run.offset);
    let decoders_ahead = matches!(format, RowFormat::Int4) && S::INT4_DECODERS_AHEAD;
    let mut upcoming = run.ids.iter();
    // SAFETY: the instruction set is there, and ids name rows.
    let mut next_decoder = unsafe {
        match upcoming.next() {
            Some(&id) if decoders_ahead => decoder_of::<S>(format, N, &place, place.of_row(id)),
            _ => [S::splat(0.0); 2],
        }
    };
    for &length in run.lengths {
        let (bag, bag_weights);
        (bag, ids) = ids.split_at(length as usize);
        (bag_weights, weights) = split_weights(weights, length as usize);
        // SAFETY: the instruction set is there.
        let mut sums = unsafe { [S::splat(0.0); N] };
        let mut k = 0;
        while k < bag.len() {
            if steps.are_dry() {
                steps = refill(steps, &mut ahead.runs);
            }
            // Without a call in the loop over rows, so that sums stay in registers.
            while k < bag.len() && !steps.are_dry() {
                steps.pass(&place, likely_lines, S::prefetch);
                let row = place.of_row(bag[k]);
                let weight = if weighted {
                    bag_weights.map_or(1.0, |weights| weights[k])
                } else {
                    1.0
                };
                let mut decoder = next_decoder;
                // SAFETY: ids name rows.
                unsafe {
                    if !decoders_ahead {
                        decoder = decoder_of::<S>(format, N, &place, row);
                    } else if let Some(&id) = upcoming.next() {
                        next_decoder = decoder_of::<S>(format, N, &place, place.of_row(id));
                    }
                }
                // SAFETY: the id names a row, so values or codes of all columns lie at `row`.
                unsafe {
                    let weight = S::splat(weight);
                    let mut loaded = S::splat(0.0);
                    in_order!(N, turn => {
                        let i = const { reading_order(N, registers_a_line::<S>(kind(K).0), kind(K).0) }[turn];
                        let group = group::<S>(format, N, i);
                        if i.is_multiple_of(group) {
                            let rest = if FULL || i + group < N {
                                group * S::LANES
                            } else {
                                columns.rest(i, group)
                            };
                            loaded = S::load(format, N, row, i, rest);
                        }
                        // Lines are read in this order, and one register at a time, whatever the compiler
                        // would like: with all loads first it runs out of registers.
                        let x = S::value(format, N, loaded, i, decoder, weighted);
                        sums[i] = S::pin(if weighted {
                            S::fma(weight, x, sums[i])
                        } else {
                            S::add(sums[i], x)
                        });
                    });
                }
                k += 1;
            }
        }
        let divisor = divisor(run.bags.mode, bag, bag_weights);
        // SAFETY: the bag's vector lies inside the target, which is mapped and writable.
        unsafe {
            if matches!(format, RowFormat::Int4) {
                S::untangle(&mut sums);
            }
            // Written out, as all that touches the sums: a loop would put them into memory.
            in_order!(N, i => {
                let sum = match divisor {
                    None => sums[i],
                    Some(0.0) => S::splat(0.0),
                    Some(divisor) => S::div(sums[i], S::splat(divisor)),
                };
                let lanes = if FULL { S::LANES } else { columns.lanes(i) };
                let at = out.wrapping_add(i * S::LANES * run.bags.output.bytes());
                S::store(S::canonical(sum), run.bags.output, at, lanes);
            });
        }
        out = out.wrapping_add(run.bags.stride);
    }
    ahead.steps = steps;
}

/// How many registers a line of values or codes fills, at least 1.
const fn registers_a_line<S: Simd>(format: RowFormat) -> usize {
    let bytes = format.value_bytes(S::LANES);
    if bytes < LINE_BYTES {
        LINE_BYTES / bytes
    } else {
        1
    }
}

/// What a bag's sum is divided by; a mean by 0 is 0.
#[inline(always)]
fn divisor(mode: Mode, bag: &[u32], weights: Option<&[f32]>) -> Option<f32> {
    match (mode, weights) {
        (Mode::Mean, None) => Some(bag.len() as f32),
        (Mode::Mean, Some(weights)) => Some(weights.iter().fold(0.0, |sum, weight| sum + weight)),
        _ => None,
    }
}

#[inline(always)]
fn split_weights(weights: Option<&[f32]>, length: usize) -> (Option<&[f32]>, Option<&[f32]>) {
    match weights {
        None => (None, None),
        Some(weights) => {
            let (bag, others) = weights.split_at(length);
            (Some(bag), Some(others))
        }
    }
}

/// The decoder of the row whose columns of a run are at `row`, of which as many registers are read.
///
/// # Safety
/// The machine has the instruction set, and there is such a row.
#[inline(always)]
unsafe fn decoder_of<S: Simd>(
    format: RowFormat,
    registers: usize,
    place: &Place,
    row: *const u8,
) -> [S::Vector; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let (scale, bias) = if format.has_codes() {
            scale_and_bias::<S>(format, place, row)
        } else {
            (1.0, 0.0)
        };
        S::decoder(format, registers, scale, bias)
    }
}

/// Scale and bias of the row whose columns of a run are at `row`.
///
/// # Safety
/// There is such a row, of a format with codes.
#[inline(always)]
unsafe fn scale_and_bias<S: Simd>(format: RowFormat, place: &Place, row: *const u8) -> (f32, f32) {
    let trailer = row.wrapping_add(place.trailer);
    // SAFETY: the caller's contract: 8 bytes for int8, 4 for the others, of any alignment.
    unsafe {
        match format {
            RowFormat::Int8 => {
                let scale = trailer.cast::<f32>();
                (
                    scale.read_unaligned(),
                    scale.wrapping_add(1).read_unaligned(),
                )
            }
            _ => S::f16_pair(trailer.cast::<u32>().read_unaligned()),
        }
    }
}

/// The values of registers `i` to `i + M - 1` of a row, canonical and in order.
///
/// # Safety
/// The machine has the instruction set, the row has all columns, and `M` is a multiple of the smaller int4
/// group.
#[inline(always)]
unsafe fn values<S: Simd, const M: usize>(
    format: RowFormat,
    place: &Place,
    row: *const u8,
    columns: Columns,
    i: usize,
) -> [S::Vector; M] {
    // SAFETY: the caller's contract.
    unsafe {
        let decoder = decoder_of::<S>(format, M, place, row);
        let (mut vectors, mut loaded) = ([S::splat(0.0); M], S::splat(0.0));
        for (j, vector) in vectors.iter_mut().enumerate() {
            let group = group::<S>(format, M, j);
            if j.is_multiple_of(group) {
                loaded = S::load(format, M, row, i + j, columns.rest(i + j, group));
            }
            *vector = S::value(format, M, loaded, i + j, decoder, false);
        }
        if matches!(format, RowFormat::Int4) {
            S::untangle(&mut vectors);
        }
        vectors.map(|x| S::canonical(x))
    }
}

/// Stores registers `i` to `i + M - 1` of a vector that starts at `out`.
///
/// # Safety
/// The machine has the instruction set, and the vector lies inside a mapped and writable target.
#[inline(always)]
unsafe fn store<S: Simd, const M: usize>(
    vectors: [S::Vector; M],
    output: Output,
    out: *mut u8,
    columns: Columns,
    i: usize,
) {
    for (j, vector) in vectors.into_iter().enumerate() {
        let at = out.wrapping_add((i + j) * S::LANES * output.bytes());
        // SAFETY: the caller's contract; `lanes` are of the vector.
        unsafe { S::store(vector, output, at, columns.lanes(i + j)) };
    }
}

/// Calls the body with `M` and the first register of each pair, and of the one that may be left.
macro_rules! in_pairs {
    ($registers:expr, $m:ident, $i:ident => $body:expr) => {
        let mut $i = 0;
        while $i + 2 <= $registers {
            const $m: usize = 2;
            $body;
            $i += 2;
        }
        if $i < $registers {
            const $m: usize = 1;
            $body;
        }
    };
}

/// Pools a run by its maximum. Columns are taken some at a time, so that a bag's rows come from memory
/// with the first of them and from the caches with the others.
///
/// # Safety
/// As [`value_run`]; `F` is the format.
#[inline(always)]
unsafe fn pool_max<S: Simd, const F: usize>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let format = const { RowFormat::ALL[F] };
    let (place, columns, registers) = (run.place(), Columns::of::<S>(run), registers::<S>(run));
    let mut ids = run.ids;
    let mut out = target.as_ptr().wrapping_add(run.offset);
    for &length in run.lengths {
        let bag;
        (bag, ids) = ids.split_at(length as usize);
        for _ in bag {
            ahead.pass(&place, S::prefetch);
        }
        // SAFETY: ids name rows, and the bag's vector lies inside the target.
        unsafe {
            in_pairs!(registers, M, i => {
                let mut greatest = [S::splat(0.0); M];
                for (k, &id) in bag.iter().enumerate() {
                    let x = values::<S, M>(format, &place, place.of_row(id), columns, i);
                    for (greatest, x) in greatest.iter_mut().zip(x) {
                        *greatest = if k == 0 { x } else { S::max(*greatest, x) };
                    }
                }
                store::<S, M>(greatest, run.bags.output, out, columns, i)
            });
        }
        out = out.wrapping_add(run.bags.stride);
    }
}

/// Stores the rows of a run one by one.
///
/// # Safety
/// As [`value_run`]; `F` is the format.
#[inline(always)]
unsafe fn store_rows<S: Simd, const F: usize>(
    run: &Run<'_>,
    ahead: &mut Ahead<'_>,
    target: &Window<'_>,
) {
    let format = const { RowFormat::ALL[F] };
    let (place, columns, registers) = (run.place(), Columns::of::<S>(run), registers::<S>(run));
    let mut out = target.as_ptr().wrapping_add(run.offset);
    for &id in run.ids {
        ahead.pass(&place, S::prefetch);
        let row = place.of_row(id);
        // SAFETY: the id names a row, and its vector lies inside the target.
        unsafe {
            in_pairs!(registers, M, i => {
                let x = values::<S, M>(format, &place, row, columns, i);
                store::<S, M>(x, run.bags.output, out, columns, i)
            });
        }
        out = out.wrapping_add(run.bags.stride);
    }
}

/// The function that pools a batch with an instruction set, and those that it calls, each with the
/// features enabled.
macro_rules! entry {
    ($simd:ident, $features:literal, $($n:literal)*) => {
        /// Pools a batch into a target.
        ///
        /// # Safety
        /// The machine has the instruction set, and every feature of the batch has passed
        /// [`crate::Bags::assert_sound`] for the target's length.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn pool(batch: &[crate::Bags<'_>], target: &rowmill_arena::Window<'_>) {
            let tile = crate::kernel::tile::<$simd>();
            let mut ahead = crate::ahead::Ahead::new(batch, tile);
            for run in crate::ahead::Runs::new(batch, tile) {
                // SAFETY: the caller's contract, and the run needs as many registers.
                unsafe {
                    if !matches!(run.bags.mode, crate::Mode::Sum | crate::Mode::Mean) {
                        value_run(&run, &mut ahead, target);
                        continue;
                    }
                    let registers = crate::kernel::registers::<$simd>(&run);
                    let full = run.columns.len() == registers * <$simd as crate::kernel::Simd>::LANES;
                    let kind = crate::kernel::kind_of(&run);
                    SUMS[registers - 1][usize::from(full)][kind](&run, &mut ahead, target);
                }
            }
        }

        /// Pools a run into sums: a function for each number of registers, for registers that are filled
        /// wholly or not, and for each kind. With several in one function the compiler runs out of
        /// registers; by way of a table they stay apart.
        static SUMS: &[[[crate::kernel::PoolRun; crate::kernel::KINDS]; 2]] = &[$([
            [
                pool_sums::<$n, false, 0>,
                pool_sums::<$n, false, 1>,
                pool_sums::<$n, false, 2>,
                pool_sums::<$n, false, 3>,
                pool_sums::<$n, false, 4>,
                pool_sums::<$n, false, 5>,
                pool_sums::<$n, false, 6>,
                pool_sums::<$n, false, 7>,
                pool_sums::<$n, false, 8>,
                pool_sums::<$n, false, 9>,
                pool_sums::<$n, false, 10>,
                pool_sums::<$n, false, 11>,
            ],
            [
                pool_sums::<$n, true, 0>,
                pool_sums::<$n, true, 1>,
                pool_sums::<$n, true, 2>,
                pool_sums::<$n, true, 3>,
                pool_sums::<$n, true, 4>,
                pool_sums::<$n, true, 5>,
                pool_sums::<$n, true, 6>,
                pool_sums::<$n, true, 7>,
                pool_sums::<$n, true, 8>,
                pool_sums::<$n, true, 9>,
                pool_sums::<$n, true, 10>,
                pool_sums::<$n, true, 11>,
            ],
        ]),*];

        /// # Safety
        /// As [`crate::kernel::pool_sums`].
        #[target_feature(enable = $features)]
        unsafe fn pool_sums<const N: usize, const FULL: bool, const K: usize>(
            run: &crate::ahead::Run<'_>,
            ahead: &mut crate::ahead::Ahead<'_>,
            target: &rowmill_arena::Window<'_>,
        ) {
            // SAFETY: the caller's contract.
            unsafe { crate::kernel::pool_sums::<$simd, N, FULL, K>(run, ahead, target) }
        }

        /// # Safety
        /// As [`crate::kernel::value_run`].
        #[inline(never)]
        #[target_feature(enable = $features)]
        unsafe fn value_run(
            run: &crate::ahead::Run<'_>,
            ahead: &mut crate::ahead::Ahead<'_>,
            target: &rowmill_arena::Window<'_>,
        ) {
            // SAFETY: the caller's contract.
            unsafe { crate::kernel::value_run::<$simd>(run, ahead, target) }
        }
    };
}

pub(crate) use entry;
