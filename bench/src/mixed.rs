//! Several tables under load order: features of different dims and formats, large tables and small hot
//! ones in turn, in one batch as a request brings them.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::Window;
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Output, RowFormat, Rows};

use crate::driver::median;
use crate::gather::{Memory, seconds_of};
use crate::ids::{Spread, ids};
use crate::report::{Measurement, Reporter};

/// The features: of each format a narrow and a wide one.
const DIMS: [usize; 2] = [64, 128];
/// Rows of a small table: all twelve together take half a megabyte, as much as a core keeps near.
const HOT_ROWS: u32 = 128;
/// Samples of a request.
const SAMPLES: usize = 64;
/// Ids a bag: mostly few, as features have them, so that bags and features change often.
const BAG_LENGTHS: [u32; 6] = [1, 3, 8, 2, 20, 12];
/// Requests of a round, each with ids of its own.
const REQUESTS: usize = 48;
/// Targets that are written in turn: 48 of 1.2 MB or more, beyond what caches keep.
const TARGETS: usize = REQUESTS;
/// Rounds of each way in turn.
const ROUNDS: usize = 15;

/// A feature's table and its ids in all requests.
struct Feature<'a> {
    rows: Rows<'a>,
    ids: Vec<u32>,
    lengths: Vec<u32>,
    offset: usize,
}

impl Feature<'_> {
    fn bags(&self, request: usize) -> Bags<'_> {
        let count = self.ids.len() / REQUESTS;
        Bags {
            rows: self.rows,
            ids: &self.ids[request * count..][..count],
            lengths: &self.lengths,
            weights: None,
            mode: Mode::Sum,
            output: Output::F32,
            offset: self.offset,
            stride: 4 * self.rows.dim(),
        }
    }
}

/// Measures a mixed batch pooled as one against the same features pooled in calls of their own, and with
/// targets written in turn against one target written again and again. The second ratio bounds what stores
/// past the caches could save: a target that stays in the caches takes the place of hot rows once.
pub(crate) fn measure(memory: &Memory, isa: Isa, reporter: &mut Reporter) {
    let case = format!("features=mixed/dist=uniform/mode=sum/isa={isa}");
    let stores = format!("{case}/targets={TARGETS}");
    if !reporter.wants(&case) && !reporter.wants(&stores) {
        return;
    }
    eprintln!("pooling: {case}");
    let features = features(memory);
    let request_bytes = features
        .last()
        .map_or(0, |last| last.offset + SAMPLES * 4 * last.rows.dim());
    let lookups: usize = features.iter().map(|feature| feature.ids.len()).sum();
    let mut target = vec![1u8; TARGETS * request_bytes + 64];
    let skip = target.as_ptr().align_offset(64);
    let target = &mut target[skip..][..TARGETS * request_bytes];
    let kernels = Kernels::new(isa);
    let batches: Vec<Vec<Bags<'_>>> = (0..REQUESTS)
        .map(|request| {
            features
                .iter()
                .map(|feature| feature.bags(request))
                .collect()
        })
        .collect();
    let (mut together, mut apart, mut reused) = (Vec::new(), Vec::new(), Vec::new());
    let (mut ratios, mut stores_ratios) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let in_turn = seconds_of(|| {
            for (batch, target) in batches.iter().zip(target.chunks_mut(request_bytes)) {
                kernels.pool(batch, &Window::over(target));
            }
        });
        let one_by_one = seconds_of(|| {
            for (batch, target) in batches.iter().zip(target.chunks_mut(request_bytes)) {
                for bags in batch {
                    kernels.pool(std::slice::from_ref(bags), &Window::over(target));
                }
            }
        });
        let again = seconds_of(|| {
            let target = Window::over(&mut target[..request_bytes]);
            for batch in &batches {
                kernels.pool(batch, &target);
            }
        });
        together.push(lookups as f64 / in_turn);
        apart.push(lookups as f64 / one_by_one);
        reused.push(lookups as f64 / again);
        ratios.push(one_by_one / in_turn);
        stores_ratios.push(again / in_turn);
    }
    let rate = median(together);
    let figure = |case: &str| Measurement::plain("pooling", case, "rate", rate, "rows/s");
    if reporter.wants(&case) {
        reporter.add(figure(&case).beside("feature by feature", median(apart), median(ratios)));
    }
    if reporter.wants(&stores) {
        let against = "one target again and again";
        reporter.add(figure(&stores).beside(against, median(reused), median(stores_ratios)));
    }
}

/// Two features a format and dim: one of a table far larger than the caches, one of a small one.
fn features(memory: &Memory) -> Vec<Feature<'_>> {
    let mut random = SmallRng::seed_from_u64(5);
    let (mut offset, mut hot_from) = (0, 0);
    let mut features = Vec::new();
    for dim in DIMS {
        for format in RowFormat::ALL {
            for hot in [false, true] {
                let rows = if hot {
                    let rows = memory.rows_at(dim, format, hot_from, HOT_ROWS);
                    hot_from += rows.window().len().next_multiple_of(64);
                    rows
                } else {
                    memory.rows(dim, format)
                };
                let length = BAG_LENGTHS[features.len() % BAG_LENGTHS.len()];
                let lookups = REQUESTS * SAMPLES * length as usize;
                features.push(Feature {
                    rows,
                    ids: ids(Spread::Uniform, rows.count(), lookups, random.random()),
                    lengths: vec![length; SAMPLES],
                    offset,
                });
                offset += SAMPLES * 4 * dim;
            }
        }
    }
    features
}
