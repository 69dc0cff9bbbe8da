//! The order in which kernels read rows, and the walk ahead of them that prefetches.
//!
//! [`Runs`] cuts a batch into runs, each of which a kernel pools with its sums in registers. [`Ahead`]
//! walks the same runs some cache lines ahead of the kernel, across bags and features, so that a
//! row's lines are on their way before the kernel comes to them.

use crate::order::in_order;
use crate::{Bags, Mode};
use core::ops::Range;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// How many cache lines the walk keeps ahead of the kernel, whatever the rows: what has to be in flight
/// is set by the memory, in lines. Some 70 lines cover 170 ns at 26 GB/s, and more must be asked for
/// since they come in bursts. Too many are worse than too few: a core that has no place left for a
/// prefetch drops it (240 M rows/s of eight lines each could be "prefetched" here, which no memory
/// delivers), and the row is then waited for. M rows/s at 64, 96, 128, 160, 192 and 256 lines: f32 dim 64:
/// 64, 76, 93, 94, 86, 83; dim 256: 14, 16, 18, 17, 15, 15; f16 dim 128: 60, 77, 78, 83, 54, 67; dim 256:
/// 19, 25, 24, 25, 19, 17; int8 dim 256: 45, 55, 63, 63, 41, 44; int4 dim 128: 112, 115, 116, 116, 112, 111.
/// To the first level no distance gave more than 9 GB/s: it has too few places for misses. (Zen 4, 4 M
/// rows, uniform ids, medians.)
const LINES_AHEAD: usize = 160;

/// Bags of one feature, and the columns of their rows that one pass of a kernel pools.
///
/// A feature whose dimensions all fit the kernel's tile is one run. A wider one is a run for each
/// tile of each bag.
#[derive(Clone)]
pub(crate) struct Run<'a> {
    /// The feature.
    pub(crate) bags: &'a Bags<'a>,
    /// The dimensions to pool.
    pub(crate) columns: Range<usize>,
    /// The ids of the bags.
    pub(crate) ids: &'a [u32],
    /// The lengths of the bags, which add up to the ids.
    pub(crate) lengths: &'a [u32],
    /// A weight for each id.
    pub(crate) weights: Option<&'a [f32]>,
    /// The byte of the target at which the first vector's columns start.
    pub(crate) offset: usize,
}

/// Where a run's columns are in memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The run's first column in row 0.
    first: *const u8,
    /// Bytes from one row to the next.
    stride: usize,
    /// From a row's first column to the last byte that is fetched of it.
    last_byte: usize,
    /// Cache lines that what is fetched of a row touches at most, and at least all but one of.
    lines: usize,
    /// Bytes from a row's first column to the end of all its columns, where rows of codes have their
    /// scale and bias.
    pub(crate) trailer: usize,
}

impl Place {
    /// Where row `id` has the run's first column.
    #[inline(always)]
    pub(crate) fn of_row(&self, id: u32) -> *const u8 {
        self.first
            .wrapping_add((id as usize).wrapping_mul(self.stride))
    }
}

impl Run<'_> {
    /// Where the run's columns are in memory. With a row's last columns go its scale and bias, so
    /// that they are fetched too.
    pub(crate) fn place(&self) -> Place {
        let (rows, format) = (&self.bags.rows, self.bags.rows.format());
        let start = format.value_bytes(self.columns.start);
        let end = if self.columns.end == rows.dim() {
            rows.row_bytes()
        } else {
            format.value_bytes(self.columns.end)
        };
        let first = rows.window().as_ptr().wrapping_add(start);
        Place {
            first,
            stride: rows.stride(),
            last_byte: end - start - 1,
            lines: lines_touched(first.addr(), rows.stride(), end - start),
            trailer: format.value_bytes(rows.dim()) - start,
        }
    }
}

/// How many cache lines a run of `bytes` bytes touches at most, when it can start at `first` and any
/// number of strides behind it. At least it touches one line less.
pub(crate) fn lines_touched(first: usize, stride: usize, bytes: usize) -> usize {
    // Starts differ by multiples of the stride, hence of its largest power of two (up to a line).
    let step = 1 << stride.trailing_zeros().min(LINE_BYTES.trailing_zeros());
    let latest_start = LINE_BYTES - step + first % step;
    (latest_start + bytes).div_ceil(LINE_BYTES)
}

/// The runs of a batch, in the order in which kernels pool them.
#[derive(Clone)]
pub(crate) struct Runs<'a> {
    tile: usize,
    features: core::slice::Iter<'a, Bags<'a>>,
    wide: Option<Wide<'a>>,
}

/// How far the runs of a feature wider than a tile have come.
#[derive(Clone)]
struct Wide<'a> {
    bags: &'a Bags<'a>,
    bag: usize,
    first_id: usize,
    columns_left: usize,
}

impl<'a> Runs<'a> {
    /// The runs for a kernel that pools up to `tile` dimensions at a time.
    pub(crate) fn new(batch: &'a [Bags<'a>], tile: usize) -> Runs<'a> {
        Runs {
            tile,
            features: batch.iter(),
            wide: None,
        }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        loop {
            if let Some(run) = self.wide.as_mut().and_then(|wide| wide.next_run(self.tile)) {
                return Some(run);
            }
            self.wide = None;
            let bags = self.features.next()?;
            let dim = bags.rows.dim();
            if dim <= self.tile {
                let &Bags {
                    ids,
                    lengths,
                    weights,
                    offset,
                    ..
                } = bags;
                return Some(Run {
                    bags,
                    columns: 0..dim,
                    ids,
                    lengths,
                    weights,
                    offset,
                });
            }
            self.wide = Some(Wide {
                bags,
                bag: 0,
                first_id: 0,
                columns_left: dim,
            });
        }
    }
}

impl<'a> Wide<'a> {
    /// The next tile of the bag, or the first of the next bag. A bag's last columns come first,
    /// because scale and bias lie behind them: once fetched, they are near for the other
    /// tiles.
    fn next_run(&mut self, tile: usize) -> Option<Run<'a>> {
        let bags = self.bags;
        if self.columns_left == 0 {
            self.first_id += bags.lengths[self.bag] as usize;
            self.bag += 1;
            self.columns_left = bags.rows.dim();
        }
        let length = *bags.lengths.get(self.bag)? as usize;
        let vectors_before = match bags.mode {
            Mode::None => self.first_id,
            Mode::Sum | Mode::Mean | Mode::Max => self.bag,
        };
        let ids = self.first_id..self.first_id + length;
        let start = (self.columns_left - 1) / tile * tile;
        let columns = start..self.columns_left;
        self.columns_left = start;
        Some(Run {
            bags,
            columns,
            ids: &bags.ids[ids.clone()],
            lengths: &bags.lengths[self.bag..=self.bag],
            weights: bags.weights.map(|weights| &weights[ids]),
            offset: bags.offset + vectors_before * bags.stride + bags.output.bytes() * start,
        })
    }
}

/// The walk ahead of a kernel.
pub(crate) struct Ahead<'a> {
    /// The runs that the walk has not entered yet.
    pub(crate) runs: Runs<'a>,
    /// Where the walk is. A kernel works on a copy of its own, which stays in registers.
    pub(crate) steps: Steps<'a>,
}

/// Where a walk is.
#[derive(Clone, Copy)]
pub(crate) struct Steps<'a> {
    /// Cache lines between kernel and walk.
    lead: usize,
    /// The ids of the run that the walk is in, and how many of them it has passed.
    ids: &'a [u32],
    passed: usize,
    place: Place,
}

impl<'a> Ahead<'a> {
    /// A walk over the runs of a kernel with this tile.
    pub(crate) fn new(batch: &'a [Bags<'a>], tile: usize) -> Ahead<'a> {
        let nowhere = Place {
            first: core::ptr::null(),
            stride: 0,
            last_byte: 0,
            lines: 0,
            trailer: 0,
        };
        Ahead {
            runs: Runs::new(batch, tile),
            steps: Steps {
                lead: 0,
                ids: &[],
                passed: 0,
                place: nowhere,
            },
        }
    }

    /// Goes on by one row of a run at `place`, for kernels that are not of the fastest.
    pub(crate) fn pass(&mut self, place: &Place, prefetch: impl Fn(*const u8)) {
        if self.steps.are_dry() {
            self.steps = refill(self.steps, &mut self.runs);
        }
        self.steps.pass(place, 1, prefetch);
    }
}

impl<'a> Steps<'a> {
    /// Whether [`refill`] has to be called before the next [`pass`](Self::pass).
    #[inline(always)]
    pub(crate) fn are_dry(&self) -> bool {
        self.lead <= LINES_AHEAD && self.passed >= self.ids.len()
    }

    /// Goes on by as much as the kernel does with one row of a run at `place`. `likely_lines`, a
    /// constant of at most 16, is how many lines a row mostly touches: for these the code is straight.
    ///
    /// There is no call in it: one would make the kernel keep its sums in memory. And the walk is never
    /// behind the kernel: without lead, the next row that it passes is the kernel's.
    #[inline(always)]
    pub(crate) fn pass(
        &mut self,
        place: &Place,
        likely_lines: usize,
        prefetch: impl Fn(*const u8),
    ) {
        while self.lead <= LINES_AHEAD && self.passed < self.ids.len() {
            let row = self.place.of_row(self.ids[self.passed]);
            self.passed = self.passed.wrapping_add(1);
            // The last line is that of the last byte: some rows touch a line less than others.
            if self.place.lines == likely_lines {
                in_order!(likely_lines - 1, i => { prefetch(row.wrapping_add(i * LINE_BYTES)) });
            } else {
                let mut line = row;
                for _ in 1..self.place.lines {
                    prefetch(line);
                    line = line.wrapping_add(LINE_BYTES);
                }
            }
            prefetch(row.wrapping_add(self.place.last_byte));
            self.lead = self.lead.wrapping_add(self.place.lines);
        }
        self.lead = self.lead.wrapping_sub(place.lines);
    }
}

/// Enters the next run that has ids, or ends the walk: all that is left is on its way then. By value, so
/// that a kernel's own steps stay in registers.
#[cold]
#[inline(never)]
pub(crate) fn refill<'a>(mut steps: Steps<'a>, runs: &mut Runs<'a>) -> Steps<'a> {
    while steps.are_dry() {
        match runs.next() {
            Some(run) => (steps.ids, steps.passed, steps.place) = (run.ids, 0, run.place()),
            None => steps.lead = usize::MAX,
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mode, Output, RowFormat, Rows};

    fn bags<'a>(rows: Rows<'a>, ids: &'a [u32], lengths: &'a [u32]) -> Bags<'a> {
        Bags {
            rows,
            ids,
            lengths,
            weights: None,
            mode: Mode::Sum,
            output: Output::F32,
            offset: 1000,
            stride: 10_000,
        }
    }

    #[test]
    fn lines_of_rows_on_and_off_lines() {
        assert_eq!(lines_touched(0, 256, 256), 4);
        assert_eq!(lines_touched(0, 136, 136), 3);
        assert_eq!(lines_touched(0, 72, 72), 2);
        assert_eq!(lines_touched(0, 260, 256), 5);
        assert_eq!(lines_touched(4, 64, 60), 1);
        assert_eq!(lines_touched(4, 64, 61), 2);
        assert_eq!(lines_touched(0, 1, 1), 1);
        assert_eq!(lines_touched(0, 1, 2), 2);
    }

    #[test]
    fn wide_features_run_bag_by_bag_last_columns_first() {
        let bytes = vec![0; 4 * 40 * 8];
        let narrow = Rows::new(&bytes, 32, 40, 8, RowFormat::F32).unwrap();
        let wide = Rows::new(&bytes, 160, 8, 40, RowFormat::F32).unwrap();
        let batch = [
            bags(wide, &[1, 2, 3], &[2, 0, 1]),
            bags(narrow, &[4, 5], &[1, 1]),
            bags(narrow, &[], &[]),
            bags(wide, &[], &[]),
        ];
        let runs: Vec<_> = Runs::new(&batch, 16)
            .map(|run| {
                (
                    run.columns,
                    run.ids.to_vec(),
                    run.lengths.to_vec(),
                    run.offset,
                )
            })
            .collect();
        let expected: [(_, &[u32], &[u32], _); 11] = [
            (32..40, &[1, 2], &[2], 1128),
            (16..32, &[1, 2], &[2], 1064),
            (0..16, &[1, 2], &[2], 1000),
            (32..40, &[], &[0], 11128),
            (16..32, &[], &[0], 11064),
            (0..16, &[], &[0], 11000),
            (32..40, &[3], &[1], 21128),
            (16..32, &[3], &[1], 21064),
            (0..16, &[3], &[1], 21000),
            (0..8, &[4, 5], &[1, 1], 1000),
            (0..8, &[], &[], 1000),
        ];
        let expected = expected.map(|(columns, ids, lengths, offset)| {
            (columns, ids.to_vec(), lengths.to_vec(), offset)
        });
        assert_eq!(runs, expected);
    }

    #[test]
    fn the_walk_fetches_all_lines_in_order_and_in_time() {
        let bytes = vec![0; 264 * 1000];
        let ids: Vec<u32> = (0..700).map(|i| i * 617 % 1000).collect();
        let batch: Vec<_> = [
            (64, RowFormat::F32),
            (256, RowFormat::Int8),
            (4, RowFormat::Int8),
        ]
        .into_iter()
        .map(|(dim, format)| {
            let rows = Rows::new(&bytes, format.row_bytes(dim), 1000, dim, format).unwrap();
            bags(rows, &ids, &[300, 0, 400])
        })
        .collect();
        for tile in [64, 256] {
            let fetched = core::cell::RefCell::new(Vec::new());
            let mut ahead = Ahead::new(&batch, tile);
            let mut needed = Vec::new();
            for run in Runs::new(&batch, tile) {
                let place = run.place();
                for &id in run.ids {
                    ahead.steps = refill(ahead.steps, &mut ahead.runs);
                    ahead.steps.pass(&place, 4, |line| {
                        fetched.borrow_mut().push(line.addr() / LINE_BYTES);
                    });
                    let row = place.of_row(id).addr();
                    let lines = row / LINE_BYTES..=(row + place.last_byte) / LINE_BYTES;
                    needed.extend(lines);
                    let mut fetched = fetched.borrow().clone();
                    fetched.dedup();
                    needed.dedup();
                    assert!(
                        fetched.starts_with(&needed),
                        "row {id} of tile {:?}",
                        run.columns
                    );
                    assert!(
                        fetched.len() <= needed.len() + LINES_AHEAD + 16,
                        "no further than that"
                    );
                }
            }
        }
    }
}
