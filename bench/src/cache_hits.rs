//! Lookups that all hit: the cache's store and the kernels, beside the kernels alone over the same rows. And what any lookup could be at
//! best: a plain array with the slot of each row of the table, that is one load for each and nothing else, in the store's place. And the same lookups
//! when a delta has changed some of the rows.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use anyhow::{Context, Result};
use rowmill_arena::{Arena, HugePages, SharedArena, Window, available_bytes, prefetch_line};
use rowmill_cache::Pins;
use rowmill_cache::store::{MISS, Shape};
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Output, RowFormat, Rows};

use crate::cache::adaptive::{Adaptive, PATCHED_ONE_IN};
use crate::driver::{median, pin_to_first_cpu};
use crate::gather::{block, seconds_of};
use crate::ids::{Spread, ids};
use crate::report::{Measurement, Reporter};

/// Rows that the stores have room for, as far as memory allows: their tags alone are 2 MiB, and with `--full` 8 MiB too, more than a core's
/// own caches hold beside rows.
pub(crate) const ROWS: u32 = 2 << 20;
const MANY_ROWS: u32 = 8 << 20;
/// How many times as many rows the table has as the store, besides the one that has a fourth more and of whose rows tags have one byte: of
/// these they have two.
const TIMES: [u32; 2] = [4, 64];
/// Shards of the store.
const SHARDS: u32 = 4;
/// Rows that are fetched at a time while the store is filled.
const FILLING: usize = 1024;
/// Rows of a round, of which each half is done in one of both ways: long enough that caches are as that way leaves them.
const LOOKUPS: usize = 1 << 21;
/// Rounds, each of both in turns.
const ROUNDS: usize = 30;
/// Ids a bag.
const BAG_LENGTH: u32 = 32;
/// Bags of a piece: rows of some 25 us, as the engine's micro-batches have.
const PIECE_BAGS: usize = 64;
const PIECE: usize = PIECE_BAGS * BAG_LENGTH as usize;

/// Runs the cases.
///
/// # Errors
/// Where there is no memory for rows, or no CPU to run on.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    pin_to_first_cpu()?;
    let sizes: &[u32] = if full { &[ROWS, MANY_ROWS] } else { &[ROWS] };
    for &rows in sizes {
        for (format, dim) in [
            (RowFormat::F32, 64),
            (RowFormat::F32, 128),
            (RowFormat::Int8, 64),
        ] {
            let name = case(rows, format, dim);
            if reporter.wants(&name) {
                eprintln!("cache: {name}");
                measure(&name, rows, format, dim, reporter)?;
            }
        }
        for (times, (format, dim)) in TIMES.into_iter().flat_map(|times| {
            [
                (times, (RowFormat::F32, 64)),
                (times, (RowFormat::Int8, 64)),
            ]
        }) {
            let name = case(rows, format, dim);
            let name = name.replace("/format", &format!("/table={times}x/format"));
            if reporter.wants(&name) {
                eprintln!("cache: {name}");
                measure_of_table(&name, rows, times, format, dim, reporter)?;
            }
        }
    }
    Ok(())
}

/// The same beside a larger table, of which the store has a part.
fn measure_of_table(
    name: &str,
    rows: u32,
    times: u32,
    format: RowFormat,
    dim: usize,
    reporter: &mut Reporter,
) -> Result<()> {
    let of_table = |slots: u32| u64::from(slots) * u64::from(times);
    let mut hits = Hits::of_table(rows, of_table, format, dim, LOOKUPS)?;
    let slots = hits.slots_asked();
    beside_resident(name, &mut hits, &slots, Hits::look_up_and_pool, reporter);
    Ok(())
}

/// The name of a case.
pub(crate) fn case(rows: u32, format: RowFormat, dim: usize) -> String {
    let isa = Isa::detect().isa;
    format!("hits=all/rows={rows}/format={format}/dim={dim}/dist=uniform/mode=sum/isa={isa}")
}

/// Measures one case: rows a second by way of the cache, and of an array, each beside the kernels alone.
fn measure(
    name: &str,
    rows: u32,
    format: RowFormat,
    dim: usize,
    reporter: &mut Reporter,
) -> Result<()> {
    let mut hits = Hits::new(rows, format, dim, LOOKUPS)?;
    let slots = hits.slots_asked();
    let limit = format!("{name}/limit=array");
    let array = Array::new(&hits.asked, &slots)?;
    let by_array = |hits: &mut Hits, from: usize| {
        array.look_up(&hits.asked[from..from + PIECE], &mut hits.places);
        hits.pool
            .pool(hits.cache.slots(hits.dim, hits.format), &hits.places);
    };
    beside_resident(&limit, &mut hits, &slots, by_array, reporter);
    beside_resident(name, &mut hits, &slots, Hits::look_up_and_pool, reporter);
    let patched = format!("{name}/patched={}", 1.0 / f64::from(PATCHED_ONE_IN));
    hits.patch()?;
    let slots = hits.slots_asked();
    beside_resident(
        &patched,
        &mut hits,
        &slots,
        Hits::look_up_and_pool,
        reporter,
    );
    Ok(())
}

/// Measures a way to do a piece beside its rows' kernels alone. The time of a piece is the median of its round: a piece in which the CPU was
/// somebody else's counts as any other.
fn beside_resident(
    name: &str,
    hits: &mut Hits,
    slots: &[u32],
    way: impl Fn(&mut Hits, usize),
    reporter: &mut Reporter,
) {
    let (mut by_way, mut resident, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let mut seconds = [0.0; 2];
        for half in 0..2 {
            let pieces = half * (LOOKUPS / 2)..(half + 1) * (LOOKUPS / 2);
            let pieces = pieces.step_by(PIECE);
            // Each of all pieces in every second round.
            let which = (half + round) % 2;
            let each = pieces.map(|from| match which {
                0 => seconds_of(|| hits.pool(&slots[from..from + PIECE])),
                _ => seconds_of(|| way(hits, from)),
            });
            seconds[which] = median(each.collect());
        }
        let [alone, looked_up] = seconds;
        by_way.push(PIECE as f64 / looked_up);
        resident.push(PIECE as f64 / alone);
        ratios.push(alone / looked_up);
    }
    let figure = Measurement::plain("cache", name, "rate", median(by_way), "rows/s");
    reporter.add(figure.beside("resident", median(resident), median(ratios)));
}

/// The slot of each row of a table, by the row's number.
struct Array(SharedArena);

impl Array {
    /// How many rows are asked for before the first is looked at: as many lines as the cache asks for. 64 and 256 are slower.
    const AHEAD: usize = 128;

    /// Of a table that has these rows, and others that are in no slot.
    fn new(rows: &[u32], slots: &[u32]) -> Result<Array> {
        let end = rows.iter().max().map_or(0, |&last| last as usize + 1);
        let arena = Arena::allocate(4 * end, HugePages::Prefer).context("the array")?;
        let array = Array(arena.share());
        for (&row, &slot) in rows.iter().zip(slots) {
            array.words()[row as usize].store(slot, Relaxed);
        }
        Ok(array)
    }

    fn words(&self) -> &[AtomicU32] {
        let window = self.0.window();
        window.words_u32(0, window.len() / 4)
    }

    fn look_up(&self, rows: &[u32], places: &mut [u32]) {
        let words = self.words();
        for (i, (place, &row)) in places.iter_mut().zip(rows).enumerate() {
            if let Some(&next) = rows.get(i + Self::AHEAD) {
                prefetch_line(&words[next as usize]);
            }
            *place = words[row as usize].load(Relaxed);
        }
    }
}

/// Lookups that all hit.
pub(crate) struct Hits {
    cache: Cache,
    format: RowFormat,
    dim: usize,
    /// Rows that are asked for, uniformly drawn of those that are there.
    asked: Vec<u32>,
    places: Vec<u32>,
    pool: Pool,
}

impl Hits {
    /// So many lookups, a multiple of what a piece has, in a full store for at most so many rows.
    pub(crate) fn new(rows: u32, format: RowFormat, dim: usize, lookups: usize) -> Result<Hits> {
        Hits::of_table(rows, fetched, format, dim, lookups)
    }

    /// The same in a table that has so many rows, by the store's slots.
    fn of_table(
        rows: u32,
        table: impl Fn(u32) -> u64,
        format: RowFormat,
        dim: usize,
        lookups: usize,
    ) -> Result<Hits> {
        let cache = Cache::full(rows, table, format, dim)?;
        let drawn = ids(Spread::Uniform, cache.rows.len() as u32, lookups, 3);
        Ok(Hits {
            asked: drawn.iter().map(|&i| cache.rows[i as usize]).collect(),
            cache,
            format,
            dim,
            places: vec![0; PIECE],
            pool: Pool {
                kernels: Kernels::new(Isa::detect().isa),
                lengths: vec![BAG_LENGTH; PIECE_BAGS],
                target: vec![0; PIECE_BAGS * Output::F32.bytes() * dim],
            },
        })
    }

    /// All slots, for kernels.
    pub(crate) fn slots(&self) -> Rows<'_> {
        self.cache.slots(self.dim, self.format)
    }

    /// Looks all rows up and pools them.
    pub(crate) fn all(&mut self) {
        (0..self.asked.len())
            .step_by(PIECE)
            .for_each(|from| self.look_up_and_pool(from));
    }

    /// Rows whose place is below the threshold are sampled from now on.
    pub(crate) fn sample(&mut self, threshold: u32) {
        self.cache.adaptive.sample(threshold);
    }

    /// A policy is made, with other rows that are to stay each time, and taken.
    pub(crate) fn publish(&mut self, number: u32, tables: u32, pinned: u32) {
        let rows: Vec<u32> = (0..pinned).map(|row| 2 * row + number % 2).collect();
        let pins = (0..tables).map(|_| Arc::new(Pins::new(&rows))).collect();
        self.cache.adaptive.obey(0, pins);
    }

    /// Some of the rows become others.
    fn patch(&mut self) -> Result<()> {
        let rows: Vec<u32> = (self.cache.rows.chunks_exact(PATCHED_ONE_IN as usize))
            .map(|rows| rows[0])
            .collect();
        let bytes = vec![0; rows.len() * self.format.row_bytes(self.dim)];
        let store = self.cache.adaptive.worker().store(0);
        let store = store.context("a cached table")?;
        // Nobody looks meanwhile.
        store.patch(&rows, &bytes, &mut || ())?;
        Ok(())
    }

    /// The slots of what is asked for.
    fn slots_asked(&mut self) -> Vec<u32> {
        let mut places = vec![0; self.asked.len()];
        self.cache.find(&self.asked, &mut places);
        places
    }

    /// Does it with a piece.
    fn look_up_and_pool(&mut self, from: usize) {
        self.cache
            .find(&self.asked[from..from + PIECE], &mut self.places);
        let slots = self.cache.slots(self.dim, self.format);
        self.pool.pool(slots, &self.places);
    }

    /// Pools a piece of which the slots are known.
    fn pool(&mut self, slots: &[u32]) {
        self.pool
            .pool(self.cache.slots(self.dim, self.format), slots);
    }
}

/// How many rows are fetched to fill so many slots.
fn fetched(slots: u32) -> u64 {
    u64::from(slots + slots / 4)
}

/// A worker with a full store.
struct Cache {
    adaptive: Adaptive,
    /// The rows that it holds.
    rows: Vec<u32>,
}

impl Cache {
    /// A cache for which more rows were fetched, one after the other, than it has slots. `table` says how many the table has, at least as many.
    fn full(rows: u32, table: impl Fn(u32) -> u64, format: RowFormat, dim: usize) -> Result<Cache> {
        let row_bytes = format.row_bytes(dim);
        let (available, _) = available_bytes();
        let rows = rows.min((available / 2 / row_bytes as u64) as u32);
        let shape = Shape::new(rows, SHARDS, row_bytes, row_bytes).context("the cache")?;
        let asked: Vec<u32> = (0..fetched(shape.slots()) as u32).collect();
        let shape = shape.of_table(table(shape.slots()));
        let mut adaptive = Adaptive::of_shape(shape, FILLING, HugePages::Prefer, block())?;
        for bag in asked.chunks(FILLING) {
            adaptive.look_up(bag, &[]);
        }
        let mut places = vec![MISS; asked.len()];
        adaptive.find(&asked, &mut places);
        let there = asked
            .iter()
            .zip(&places)
            .filter(|(_, place)| **place != MISS);
        let rows: Vec<u32> = there.map(|(&row, _)| row).collect();
        eprintln!(
            "cache: {} of {} slots hold rows, tags have {} byte(s)",
            rows.len(),
            shape.slots(),
            shape.width().bytes()
        );
        Ok(Cache { adaptive, rows })
    }

    /// Looks rows up that are there.
    fn find(&mut self, rows: &[u32], places: &mut [u32]) {
        let misses = self.adaptive.find(rows, places);
        assert_eq!(misses, 0, "all rows are there");
        self.adaptive.count(rows.len());
    }

    /// All slots, for kernels.
    fn slots(&self, dim: usize, format: RowFormat) -> Rows<'_> {
        let (window, stride, count) = self.adaptive.worker().slots(0);
        Rows::over(window, stride, count, dim, format).expect("slots are rows")
    }
}

/// What pools a piece.
struct Pool {
    kernels: Kernels,
    lengths: Vec<u32>,
    target: Vec<u8>,
}

impl Pool {
    fn pool(&mut self, rows: Rows<'_>, ids: &[u32]) {
        let bags = Bags {
            rows,
            ids,
            lengths: &self.lengths[..ids.len() / BAG_LENGTH as usize],
            weights: None,
            mode: Mode::Sum,
            output: Output::F32,
            offset: 0,
            stride: Output::F32.bytes() * rows.dim(),
        };
        self.kernels.pool(&[bags], &Window::over(&mut self.target));
        black_box(&self.target);
    }
}
