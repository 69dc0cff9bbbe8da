//! Suite `pooling`: the kernels alone, one thread, against the gather of the same rows.

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rowmill_pooling::limit::{self, Way};
use rowmill_pooling::{Isa, Kernels, Mode, Output, RowFormat, Rows};
use std::borrow::Cow;
use std::hint::black_box;

use crate::batches::{CALL_BAGS, Pooling};
use crate::driver::{median, pin_to_first_cpu};
use crate::gather::{Memory, compare_with_sequential, fastest_way, seconds_of};
use crate::ids::{Spread, ids};
use crate::mixed;
use crate::report::{Measurement, Reporter};

/// Bytes of rows read in a round: tens of milliseconds, far more than the caches hold.
const ROUND_BYTES: usize = 256 << 20;
/// The scalar reference gets a part of that, for it is ten to a hundred times slower.
const SCALAR_SHARE: usize = 16;
/// Rounds, each of the kernel and the limit in turn.
const ROUNDS: usize = 15;
/// Ids a bag, but in the cases of short bags.
const BAG_LENGTH: u32 = 32;
/// Ids a short bag.
const SHORT_BAG_LENGTH: u32 = 8;

/// What is pooled, and how.
#[derive(Clone, Copy)]
struct Case {
    format: RowFormat,
    dim: usize,
    spread: Spread,
    mode: Mode,
    weighted: bool,
    output: Output,
    isa: Isa,
    bag_length: u32,
}

impl Case {
    fn name(&self) -> String {
        let dist = self.spread.name();
        let mode = match (self.mode, self.weighted) {
            (Mode::Mean, true) => "weighted-mean",
            (Mode::Mean, false) => "mean",
            (Mode::Sum, true) => "weighted",
            (Mode::Sum, false) => "sum",
            (Mode::Max, _) => "max",
            (Mode::None, _) => "none",
        };
        let Case {
            format, dim, isa, ..
        } = self;
        let bag = match self.bag_length {
            BAG_LENGTH => String::new(),
            length => format!("/bag={length}"),
        };
        let output = match self.output {
            Output::F32 => "",
            Output::F16 => "/output=f16",
            Output::Bf16 => "/output=bf16",
        };
        format!("format={format}/dim={dim}/dist={dist}/mode={mode}/isa={isa}{bag}{output}")
    }
}

/// The headline cases: every format at four dimensions, uniform sums. With `full` every dimension, uniform
/// and skewed, and for dimension 128 every other mode, output, instruction set and bag length, one at a time.
fn cases(full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let best = Isa::detect().isa;
    let dims: &[usize] = if full {
        &[16, 32, 64, 128, 256, 512]
    } else {
        &[64, 128, 256, 512]
    };
    for format in RowFormat::ALL {
        for &dim in dims {
            let base = Case {
                format,
                dim,
                spread: Spread::Uniform,
                mode: Mode::Sum,
                weighted: false,
                output: Output::F32,
                isa: best,
                bag_length: BAG_LENGTH,
            };
            cases.push(base);
            if full {
                cases.push(Case {
                    spread: Spread::Zipf,
                    ..base
                });
            }
            if full && dim == 128 {
                cases.extend([Mode::Sum, Mode::Mean].map(|mode| Case {
                    mode,
                    weighted: true,
                    ..base
                }));
                let modes = [Mode::Mean, Mode::Max, Mode::None];
                cases.extend(modes.map(|mode| Case { mode, ..base }));
                cases.extend([Output::F16, Output::Bf16].map(|output| Case { output, ..base }));
                cases.push(Case {
                    bag_length: SHORT_BAG_LENGTH,
                    ..base
                });
                let others = Isa::available().into_iter().filter(|&isa| isa != best);
                cases.extend(others.map(|isa| Case { isa, ..base }));
            }
        }
    }
    cases
}

/// Runs the suite.
///
/// # Errors
/// Where there is no memory for rows, or no CPU to run on.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    pin_to_first_cpu()?;
    let memory = Memory::allocate()?;
    let uniform = ids(Spread::Uniform, memory.row_count(), ROUND_BYTES / 512, 2);
    compare_with_sequential(&memory, &uniform, ROUNDS, reporter);
    for case in cases(full) {
        if reporter.wants(&case.name()) {
            measure(&case, &memory, reporter);
        }
    }
    mixed::measure(&memory, Isa::detect().isa, reporter);
    Ok(())
}

/// Measures one case: rows a second and bytes of rows a second, kernel against limit.
fn measure(case: &Case, memory: &Memory, reporter: &mut Reporter) {
    let name = case.name();
    eprintln!("pooling: {name}");
    let rows = memory.rows(case.dim, case.format);
    let share = if case.isa == Isa::Scalar {
        SCALAR_SHARE
    } else {
        1
    };
    let bags = ROUND_BYTES / share / rows.row_bytes() / case.bag_length as usize;
    let lookups = bags * case.bag_length as usize;
    let ids = ids(case.spread, rows.count(), lookups, 3);
    let weights: Vec<f32> = {
        let mut random = SmallRng::seed_from_u64(4);
        (0..lookups)
            .map(|_| random.random_range(0.0..2.0))
            .collect()
    };
    let vectors = match case.mode {
        Mode::None => CALL_BAGS * case.bag_length as usize,
        _ => CALL_BAGS,
    };
    let mut pooling = Pooling {
        rows,
        ids: &ids,
        weights: case.weighted.then_some(&weights[..]),
        lengths: vec![case.bag_length; CALL_BAGS],
        mode: case.mode,
        output: case.output,
        kernels: Kernels::new(case.isa),
        target: vec![0; vectors * case.output.bytes() * case.dim],
    };
    let limit = Limit::of(rows, &ids);
    let (mut kernel, mut gather, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let pooled = seconds_of(|| pooling.pool_all());
        let gathered = seconds_of(|| limit.gather_all());
        kernel.push(lookups as f64 / pooled);
        gather.push(lookups as f64 / gathered);
        ratios.push(gathered / pooled);
    }
    let (kernel, gather, ratio) = (median(kernel), median(gather), median(ratios));
    let gigabytes = rows.row_bytes() as f64 / 1e9;
    for (metric, unit, scale) in [("rate", "rows/s", 1.0), ("bandwidth", "GB/s", gigabytes)] {
        let figure = Measurement::plain("pooling", &name, metric, kernel * scale, unit);
        reporter.add(figure.beside("gather", gather * scale, ratio));
    }
}

/// The gather of the same lookups.
struct Limit<'a> {
    rows: Rows<'a>,
    ids: Cow<'a, [u32]>,
    way: Way,
}

impl<'a> Limit<'a> {
    /// Rows of more lines than a gather reads at once are taken as twice as many of half the size.
    fn of(rows: Rows<'a>, ids: &'a [u32]) -> Limit<'a> {
        let (rows, ids) = if rows.row_bytes() > limit::ROW_LINES_MAX * 64 {
            let (dim, format) = (rows.dim() / 2, rows.format());
            let halves = Rows::over(
                rows.window(),
                rows.stride() / 2,
                2 * rows.count(),
                dim,
                format,
            );
            let ids = ids.iter().flat_map(|id| [2 * id, 2 * id + 1]).collect();
            (halves.expect("halves of rows"), Cow::Owned(ids))
        } else {
            (rows, Cow::Borrowed(ids))
        };
        let way = fastest_way(&rows, &ids);
        Limit { rows, ids, way }
    }

    fn gather_all(&self) {
        black_box(limit::gather(&self.rows, &self.ids, self.way));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headline_cases_have_the_fixed_names() {
        let cases = cases(false);
        assert_eq!(cases.len(), 24);
        let isa = Isa::detect().isa;
        assert_eq!(
            cases[1].name(),
            format!("format=f32/dim=128/dist=uniform/mode=sum/isa={isa}")
        );
    }
}
