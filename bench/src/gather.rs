//! Rows for the kernels to read, and what the memory gives: random whole rows and all of it in order.

use anyhow::{Context, Result};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::{Arena, FrozenArena, HugePages, available_bytes};
use rowmill_pooling::limit::{self, Way};
use rowmill_pooling::{RowFormat, Rows};
use std::hint::black_box;
use std::time::Instant;

use crate::driver::median;
use crate::report::{Measurement, Reporter};

/// Rows of each table, as far as memory allows.
const ROWS: u32 = 4_000_000;
/// The largest row of which there are as many: f32 of 256 dimensions.
const ROW_BYTES_MAX: usize = 1024;
/// What a random block of values repeats after: more than the caches hold of a row's neighbours, and
/// quickly made.
const BLOCK_BYTES: usize = 1 << 20;
/// Lookups for which a way of gathering is tried: other ones each time, lest rows come from caches.
const TRIAL_LOOKUPS: usize = 100_000;
/// Bytes of the memory that are read in order at a time.
const SEQUENTIAL_BYTES: usize = 512 << 20;

/// Memory that serves as rows of any format and dimension.
pub(crate) struct Memory {
    bytes: FrozenArena,
    rows: u32,
}

impl Memory {
    /// Allocates and fills it, on huge pages where there are any. Says on standard error what it got.
    ///
    /// # Errors
    /// Where there is no memory at all.
    pub(crate) fn allocate() -> Result<Memory> {
        let (available, _) = available_bytes();
        // Half of what there is leaves room for everything else.
        let rows = ROWS.min((available / 2 / ROW_BYTES_MAX as u64) as u32);
        let bytes = rows as usize * ROW_BYTES_MAX;
        let mut arena = Arena::allocate(bytes, HugePages::Prefer).context("memory for rows")?;
        if rows < ROWS {
            eprintln!("pooling: {rows} rows instead of {ROWS}, for want of memory");
        }
        eprintln!(
            "pooling: {rows} rows of up to {ROW_BYTES_MAX} bytes, {:?}",
            arena.backing()
        );
        let block = block();
        for part in arena.as_mut_slice().chunks_mut(BLOCK_BYTES) {
            part.copy_from_slice(&block[..part.len()]);
        }
        Ok(Memory {
            bytes: arena.freeze().context("freezing the rows")?,
            rows,
        })
    }

    /// The number of rows.
    pub(crate) fn row_count(&self) -> u32 {
        self.rows
    }

    /// The memory as rows, one behind the other without gaps; fewer where they would not fit.
    pub(crate) fn rows(&self, dim: usize, format: RowFormat) -> Rows<'_> {
        let stride = format.row_bytes(dim);
        let count = self.rows.min((self.bytes.len() / stride) as u32);
        Rows::new(&self.bytes, stride, count, dim, format).expect("rows that fit the memory")
    }

    /// `count` rows from byte `from` of the memory on.
    ///
    /// # Panics
    /// If there are not as many.
    pub(crate) fn rows_at(
        &self,
        dim: usize,
        format: RowFormat,
        from: usize,
        count: u32,
    ) -> Rows<'_> {
        let stride = format.row_bytes(dim);
        let bytes = &self.bytes[from..from + stride * count as usize];
        Rows::new(bytes, stride, count, dim, format).expect("as many bytes as rows need")
    }
}

/// Bytes that rows of any format can be made of: every 16 bits are a sign, an exponent and random digits that
/// make an f16 of 0.5 to 1, and every 16 and 32 bits a bf16 and an f32 of some 10^-5.
pub(crate) fn block() -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(1);
    (0..BLOCK_BYTES / 2)
        .flat_map(|_| (0x3800 | random.random::<u16>() & 0x83ff).to_le_bytes())
        .collect()
}

/// The way in which `rows` are gathered fastest, found by trying all on parts of `ids`.
pub(crate) fn fastest_way(rows: &Rows<'_>, ids: &[u32]) -> Way {
    let mut parts = ids.chunks(TRIAL_LOOKUPS.min(ids.len())).cycle();
    fastest(|way| {
        let part = parts.next().expect("there are ids");
        let seconds = seconds_of(|| {
            black_box(limit::gather(rows, part, way));
        });
        seconds / part.len() as f64
    })
}

/// The way whose best of five tries is the best, tried in turns so that a disturbance hits all.
fn fastest(mut seconds_by: impl FnMut(Way) -> f64) -> Way {
    let mut best: Vec<_> = limit::ways()
        .into_iter()
        .map(|way| (f64::MAX, way))
        .collect();
    for _ in 0..5 {
        for (seconds, way) in &mut best {
            *seconds = seconds.min(seconds_by(*way));
        }
    }
    best.into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .expect("there are ways")
        .1
}

/// The seconds that `work` takes.
pub(crate) fn seconds_of(work: impl FnOnce()) -> f64 {
    let began = Instant::now();
    work();
    began.elapsed().as_secs_f64()
}

/// Compares gathering rows of 512 bytes with reading the same memory in order: what makes the limit
/// credible, or not.
pub(crate) fn compare_with_sequential(
    memory: &Memory,
    ids: &[u32],
    rounds: usize,
    reporter: &mut Reporter,
) {
    let case = "row=512/dist=uniform/limit=gather";
    if !reporter.wants(case) {
        return;
    }
    eprintln!("pooling: {case}");
    let rows = memory.rows(128, RowFormat::F32);
    let in_order = &memory.bytes[..SEQUENTIAL_BYTES.min(memory.bytes.len())];
    let gather_way = fastest_way(&rows, ids);
    let mut parts = in_order.chunks_exact(in_order.len() / 8 / 64 * 64).cycle();
    let order_way = fastest(|way| {
        let part = parts.next().expect("there are bytes");
        seconds_of(|| {
            black_box(limit::sequential(part, way));
        })
    });
    let (mut gathered, mut ordered, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let gather = seconds_of(|| {
            black_box(limit::gather(&rows, ids, gather_way));
        });
        let order = seconds_of(|| {
            black_box(limit::sequential(in_order, order_way));
        });
        gathered.push((ids.len() * rows.row_bytes()) as f64 / gather / 1e9);
        ordered.push(in_order.len() as f64 / order / 1e9);
        ratios.push(gathered[gathered.len() - 1] / ordered[ordered.len() - 1]);
    }
    eprintln!("pooling: gathered by {gather_way:?}, in order by {order_way:?}");
    let gathered = Measurement::plain("pooling", case, "bandwidth", median(gathered), "GB/s");
    reporter.add(gathered.beside("sequential", median(ordered), median(ratios)));
}
