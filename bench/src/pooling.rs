//! Suite `pooling`: the kernels alone, one thread, against the gather of the same rows.

use anyhow::Result;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::Window;
use rowmill_pooling::limit::{self, Way};
use rowmill_pooling::{Bags, Isa, Kernels, Mode, RowFormat, Rows};
use std::hint::black_box;

use crate::driver::{median, pin_to_first_cpu};
use crate::gather::{Memory, compare_with_sequential, fastest_way, seconds_of};
use crate::report::{Measurement, Reporter};

/// Bytes of rows read in a round: tens of milliseconds, far more than the caches hold.
const ROUND_BYTES: usize = 256 << 20;
/// The scalar reference gets a part of that, for it is ten to a hundred times slower.
const SCALAR_SHARE: usize = 16;
/// Rounds, each of the kernel and the limit in turn.
const ROUNDS: usize = 15;
/// Bags that are pooled by one call.
const CALL_BAGS: usize = 2048;
/// Ids a bag, but in the cases of short bags.
const BAG_LENGTH: u32 = 32;
/// Ids a short bag.
const SHORT_BAG_LENGTH: u32 = 8;
/// Exponent of the skewed distribution.
const ZIPF_EXPONENT: f64 = 1.05;

/// How ids are spread over the rows.
#[derive(Clone, Copy, PartialEq)]
enum Spread {
    Uniform,
    Zipf,
}

/// What is pooled, and how.
#[derive(Clone, Copy)]
struct Case {
    format: RowFormat,
    dim: usize,
    spread: Spread,
    mode: Mode,
    weighted: bool,
    isa: Isa,
    bag_length: u32,
}

impl Case {
    fn name(&self) -> String {
        let dist = match self.spread {
            Spread::Uniform => "uniform".into(),
            Spread::Zipf => format!("zipf-{ZIPF_EXPONENT}"),
        };
        let mode = match (self.mode, self.weighted) {
            (Mode::Mean, _) => "mean",
            (Mode::Sum, true) => "weighted",
            (Mode::Sum, false) => "sum",
        };
        let Case {
            format, dim, isa, ..
        } = self;
        let bag = match self.bag_length {
            BAG_LENGTH => String::new(),
            length => format!("/bag={length}"),
        };
        format!("format={format}/dim={dim}/dist={dist}/mode={mode}/isa={isa}{bag}")
    }
}

/// The headline cases, and with `full` each of them in every other mode, spread, instruction set and
/// bag length, one at a time.
fn cases(full: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    let best = Isa::detect().isa;
    for format in [RowFormat::F32, RowFormat::Int8] {
        for dim in [64, 128, 256] {
            let base = Case {
                format,
                dim,
                spread: Spread::Uniform,
                mode: Mode::Sum,
                weighted: false,
                isa: best,
                bag_length: BAG_LENGTH,
            };
            cases.push(base);
            if full {
                cases.push(Case {
                    spread: Spread::Zipf,
                    ..base
                });
                cases.push(Case {
                    mode: Mode::Mean,
                    ..base
                });
                cases.push(Case {
                    weighted: true,
                    ..base
                });
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
    let mut pooling = Pooling {
        rows,
        ids: &ids,
        weights: case.weighted.then_some(&weights),
        lengths: vec![case.bag_length; CALL_BAGS],
        mode: case.mode,
        kernels: Kernels::new(case.isa),
        target: vec![0; CALL_BAGS * 4 * case.dim],
    };
    let way = fastest_way(&rows, &ids);
    let (mut kernel, mut gather, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let pooled = seconds_of(|| pooling.pool_all());
        let gathered = seconds_of(|| gather_all(&rows, &ids, way));
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

fn gather_all(rows: &Rows<'_>, ids: &[u32], way: Way) {
    black_box(limit::gather(rows, ids, way));
}

/// All lookups of a case, to be pooled call by call into the same target.
struct Pooling<'a> {
    rows: Rows<'a>,
    ids: &'a [u32],
    weights: Option<&'a Vec<f32>>,
    lengths: Vec<u32>,
    mode: Mode,
    kernels: Kernels,
    target: Vec<u8>,
}

impl Pooling<'_> {
    fn pool_all(&mut self) {
        let bag_length = self.lengths[0] as usize;
        let stride = 4 * self.rows.dim();
        let target = Window::over(&mut self.target);
        let mut first = 0;
        while first < self.ids.len() {
            let end = self.ids.len().min(first + CALL_BAGS * bag_length);
            let bags = Bags {
                rows: self.rows,
                ids: &self.ids[first..end],
                lengths: &self.lengths[..(end - first) / bag_length],
                weights: self.weights.map(|weights| &weights[first..end]),
                mode: self.mode,
                offset: 0,
                stride,
            };
            self.kernels.pool(&[bags], &target);
            first = end;
        }
        black_box(&self.target);
    }
}

/// `count` ids of `rows` rows, seeded.
fn ids(spread: Spread, rows: u32, count: usize, seed: u64) -> Vec<u32> {
    let mut random = SmallRng::seed_from_u64(seed);
    match spread {
        Spread::Uniform => (0..count).map(|_| random.random_range(0..rows)).collect(),
        Spread::Zipf => {
            // Ranks are dealt to rows at random, so that popular rows are no neighbours.
            let zipf = Zipf::new(f64::from(rows), ZIPF_EXPONENT);
            let mut row_of: Vec<u32> = (0..rows).collect();
            for i in (1..row_of.len()).rev() {
                row_of.swap(i, random.random_range(0..=i));
            }
            (0..count)
                .map(|_| row_of[zipf.sample(&mut random) as usize - 1])
                .collect()
        }
    }
}

/// Ranks 1 to n with probability proportional to rank^-s, s above 1, by rejection-inversion (Hörmann
/// and Derflinger 1996): the inverse of the integral proposes, rejection corrects.
struct Zipf {
    exponent: f64,
    ranks: f64,
    low: f64,
    high: f64,
}

impl Zipf {
    fn new(ranks: f64, exponent: f64) -> Zipf {
        let low = Zipf::integral(1.5, exponent) - 1.0;
        Zipf {
            exponent,
            ranks,
            low,
            high: Zipf::integral(ranks + 0.5, exponent),
        }
    }

    /// The integral of x^-s from 1 on.
    fn integral(x: f64, s: f64) -> f64 {
        (1.0 - x.powf(1.0 - s)) / (s - 1.0)
    }

    fn sample(&self, random: &mut SmallRng) -> u32 {
        let s = self.exponent;
        loop {
            let u = random.random_range(self.low..self.high);
            let x = (1.0 - u * (s - 1.0)).powf(1.0 / (1.0 - s));
            let rank = x.round().clamp(1.0, self.ranks);
            if u >= Zipf::integral(rank + 0.5, s) - rank.powf(-s) {
                return rank as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headline_cases_have_the_fixed_names() {
        let cases = cases(false);
        assert_eq!(cases.len(), 6);
        let isa = Isa::detect().isa;
        assert_eq!(
            cases[1].name(),
            format!("format=f32/dim=128/dist=uniform/mode=sum/isa={isa}")
        );
    }

    #[test]
    fn zipf_ranks_come_as_often_as_they_should() {
        let (ranks, draws) = (1000u32, 200_000);
        let zipf = Zipf::new(f64::from(ranks), ZIPF_EXPONENT);
        let mut random = SmallRng::seed_from_u64(5);
        let mut counts = vec![0.0; ranks as usize + 1];
        for _ in 0..draws {
            counts[zipf.sample(&mut random) as usize] += 1.0;
        }
        let weight = |rank: u32| f64::from(rank).powf(-ZIPF_EXPONENT);
        let total: f64 = (1..=ranks).map(weight).sum();
        for rank in [1, 2, 10, 50] {
            let expected = f64::from(draws) * weight(rank) / total;
            let found: f64 = counts[rank as usize];
            assert!(
                (found - expected).abs() < 6.0 * expected.sqrt(),
                "{rank}: {found}, {expected}"
            );
        }
    }
}
