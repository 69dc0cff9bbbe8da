//! The order in which kernels read rows, and the walk ahead of them that prefetches.
//!
//! [`Runs`] cuts a batch into runs, each of which a kernel pools with its sums in registers. [`Ahead`]
//! walks the same runs some cache lines ahead of the kernel, across bags and features, so that a
//! row's lines are on their way before the kernel comes to them.

use crate::{Bags, RowFormat};
use core::ops::Range;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

/// How many cache lines the walk keeps ahead of the kernel.
pub(crate) static LINES_AHEAD: core::sync::atomic::AtomicUsize =
    core::sync::atomic::AtomicUsize::new(128);

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
    /// The byte of the target at which the first bag's columns start.
    pub(crate) offset: usize,
}

/// Where a run's columns are in memory.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The run's first column in row 0.
    first: *const u8,
    /// Bytes from one row to the next.
    stride: usize,
    /// From a row's first column to the end of what is fetched of it.
    fetched_bytes: usize,
    /// Cache lines that the fetched bytes of a row touch at most, and at least all but one of.
    lines: usize,
    /// Bytes from a row's first column to the end of all its columns, where an int8 row has its scale
    /// and bias.
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
        let rows = &self.bags.rows;
        let column_bytes = match rows.format() {
            RowFormat::F32 => 4,
            RowFormat::Int8 => 1,
        };
        let start = column_bytes * self.columns.start;
        let end = if self.columns.end == rows.dim() {
            rows.row_bytes()
        } else {
            column_bytes * self.columns.end
        };
        let first = rows.bytes().as_ptr().wrapping_add(start);
        Place {
            first,
            stride: rows.stride(),
            fetched_bytes: end - start,
            lines: lines_touched(first.addr(), rows.stride(), end - start),
            trailer: column_bytes * rows.dim() - start,
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
    /// because scale and bias of int8 rows lie behind them: once fetched, they are near for the other
    /// tiles.
    fn next_run(&mut self, tile: usize) -> Option<Run<'a>> {
        let bags = self.bags;
        if self.columns_left == 0 {
            self.first_id += bags.lengths[self.bag] as usize;
            self.bag += 1;
            self.columns_left = bags.rows.dim();
        }
        let length = *bags.lengths.get(self.bag)? as usize;
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
            offset: bags.offset + self.bag * bags.stride + 4 * start,
        })
    }
}

/// The walk ahead of a kernel.
pub(crate) struct Ahead<'a> {
    runs: Runs<'a>,
    /// Cache lines between kernel and walk.
    lead: usize,
    reach: usize,
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
            fetched_bytes: 0,
            lines: 0,
            trailer: 0,
        };
        Ahead {
            runs: Runs::new(batch, tile),
            lead: 0,
            reach: LINES_AHEAD.load(core::sync::atomic::Ordering::Relaxed),
            ids: &[],
            passed: 0,
            place: nowhere,
        }
    }

    /// Goes on by as much as the kernel does with one row of a run at `place`.
    #[inline(always)]
    pub(crate) fn pass(&mut self, place: &Place, prefetch: impl Fn(*const u8)) {
        while self.lead <= self.reach {
            if self.passed == self.ids.len() {
                if self.enter_next_run() {
                    continue;
                }
                // The walk is over: all that is left is on its way.
                self.lead = usize::MAX;
                return;
            }
            let row = self.place.of_row(self.ids[self.passed]);
            self.passed += 1;
            // The last line is that of the last byte: some rows touch a line less than others.
            let mut line = row;
            for _ in 1..self.place.lines {
                prefetch(line);
                line = line.wrapping_add(LINE_BYTES);
            }
            prefetch(row.wrapping_add(self.place.fetched_bytes - 1));
            self.lead = self.lead.wrapping_add(self.place.lines);
        }
        self.lead = self.lead.wrapping_sub(place.lines);
    }

    /// Enters the next run, if there is one.
    #[cold]
    #[inline(never)]
    fn enter_next_run(&mut self) -> bool {
        let Some(run) = self.runs.next() else {
            return false;
        };
        self.ids = run.ids;
        self.passed = 0;
        self.place = run.place();
        true
    }
}
