//! Lookups that all hit: the cache's store and the kernels, beside the kernels alone over the same rows.

use std::hint::black_box;
use std::sync::Arc;

use anyhow::{Context, Result};
use rowmill_arena::{HugePages, Window, available_bytes};
use rowmill_cache::store::{Epochs, Held, Sample, Shape, Store, Tags, Worker, Writer};
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Output, RowFormat, Rows};

use crate::driver::{median, pin_to_first_cpu};
use crate::gather::{block, seconds_of};
use crate::ids::{Spread, ids};
use crate::report::{Measurement, Reporter};

/// Rows that the stores have room for, as far as memory allows: their tags alone are 8 and 32 MiB, which a core's caches don't
/// hold.
const ROWS: [u32; 2] = [2 << 20, 8 << 20];
/// Shards of the store.
const SHARDS: u32 = 4;
/// Rows of a round.
const LOOKUPS: usize = 1 << 20;
/// Rounds, each of both in turns.
const ROUNDS: usize = 30;
/// Ids a bag.
const BAG_LENGTH: u32 = 32;
/// Bags of a piece: rows of some 25 us, as the engine's micro-batches have.
const PIECE_BAGS: usize = 64;
const PIECE: usize = PIECE_BAGS * BAG_LENGTH as usize;
/// Rows of a turn, of one of both. The time of a piece is the median of its round: a piece in which the CPU was somebody else's
/// counts as any other.
const TURN: usize = 16 * PIECE;

/// Runs the cases.
///
/// # Errors
/// Where there is no memory for rows, or no CPU to run on.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    pin_to_first_cpu()?;
    let isa = Isa::detect().isa;
    for rows in ROWS {
        for (format, dim) in [
            (RowFormat::F32, 64),
            (RowFormat::F32, 128),
            (RowFormat::Int8, 64),
        ] {
            let case = format!("hits=all/rows={rows}/format={format}/dim={dim}");
            let name = format!("{case}/dist=uniform/mode=sum/isa={isa}");
            if reporter.wants(&name) {
                eprintln!("cache: {name}");
                measure(&name, rows, format, dim, reporter)?;
            }
        }
    }
    Ok(())
}

/// Measures one case: rows a second by way of the store, beside the kernels alone.
fn measure(
    name: &str,
    rows: u32,
    format: RowFormat,
    dim: usize,
    reporter: &mut Reporter,
) -> Result<()> {
    let mut cache = Cache::full(rows, format, dim)?;
    let drawn = ids(Spread::Uniform, cache.rows.len() as u32, LOOKUPS, 3);
    let asked: Vec<u32> = drawn.iter().map(|&i| cache.rows[i as usize]).collect();
    let slots = cache.slots_of(&asked);
    let mut pool = Pool {
        kernels: Kernels::new(Isa::detect().isa),
        lengths: vec![BAG_LENGTH; PIECE_BAGS],
        target: vec![0; PIECE_BAGS * Output::F32.bytes() * dim],
    };
    let store = Arc::clone(&cache.store);
    let rows = Rows::over(
        store.slots(),
        store.shape().stride(),
        store.shape().slots(),
        dim,
        format,
    )
    .expect("slots are rows");
    let mut sample = Sample::new(store.sample_every(), 1);
    let mut places = vec![0; PIECE];
    let (mut cached, mut resident, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let stamp = round as u16;
        let (mut alone, mut by_way) = (Vec::new(), Vec::new());
        for (turn, (asked, slots)) in asked.chunks(TURN).zip(slots.chunks(TURN)).enumerate() {
            // Each of all pieces in every second round.
            if (turn + round) % 2 == 0 {
                let pool = |slots| seconds_of(|| pool.pool(rows, slots));
                alone.extend(slots.chunks(PIECE).map(pool));
                continue;
            }
            by_way.extend(asked.chunks(PIECE).map(|asked| {
                seconds_of(|| {
                    let found = store.find(cache.worker.turn(), asked, &mut places);
                    assert_eq!(found.misses(), 0);
                    found.touch(&mut sample, |word| word & 0xff00 | stamp);
                    pool.pool(rows, found.places());
                })
            }));
        }
        let (alone, by_way) = (median(alone), median(by_way));
        cached.push(PIECE as f64 / by_way);
        resident.push(PIECE as f64 / alone);
        ratios.push(alone / by_way);
    }
    let figure = Measurement::plain("cache", name, "rate", median(cached), "rows/s");
    reporter.add(figure.beside("resident", median(resident), median(ratios)));
    Ok(())
}

/// A full store with a worker.
struct Cache {
    store: Arc<Store>,
    worker: Worker,
    /// The rows that it holds.
    rows: Vec<u32>,
}

impl Cache {
    /// A store that rows were put into, one after the other, until hardly a slot was left.
    fn full(rows: u32, format: RowFormat, dim: usize) -> Result<Cache> {
        let row_bytes = format.row_bytes(dim);
        let (available, _) = available_bytes();
        let rows = rows.min((available / 2 / row_bytes as u64) as u32);
        let shape = Shape::new(rows, SHARDS, row_bytes, row_bytes).context("the cache")?;
        let (epochs, mut workers) = Epochs::new(1);
        let made = Store::new(shape, 11, 1, &epochs, Tags::detect(), HugePages::Prefer);
        let (store, mut writers) = made.context("memory for rows")?;
        let (block, mut held, mut second) = (block(), Vec::new(), 0);
        for row in 0..shape.slots() + shape.slots() / 4 {
            let shard = store.spread().shard(row) as usize;
            let from = row as usize * 64 % (block.len() - row_bytes);
            if let Some(choice) = put(&mut writers[shard], row, &block[from..from + row_bytes]) {
                held.push(row);
                second += choice;
            }
        }
        eprintln!(
            "cache: {} of {} slots, {:.1} % of them by second choice, {:?}, tags by {}",
            held.len(),
            shape.slots(),
            100.0 * f64::from(second) / held.len() as f64,
            store.backing(),
            store.tags().isa()
        );
        Ok(Cache {
            store,
            worker: workers.remove(0),
            rows: held,
        })
    }

    /// The slots of rows that are there.
    fn slots_of(&mut self, rows: &[u32]) -> Vec<u32> {
        let mut places = vec![0; rows.len()];
        let found = self.store.find(self.worker.turn(), rows, &mut places);
        assert_eq!(found.misses(), 0, "all rows are there");
        places
    }
}

/// Puts a row into an empty slot, if there is one for it: of its first choice (0) or its second one (1).
fn put(writer: &mut Writer, row: u32, bytes: &[u8]) -> Option<u32> {
    let mut candidates = writer.candidates(row).enumerate();
    let (number, empty) = candidates.find(|(_, one)| one.held == Held::Nothing)?;
    drop(candidates);
    let (ticket, _) = writer.begin(row, empty.slot).expect("the slot was empty");
    writer.publish(ticket, bytes, 0);
    Some((number / 16) as u32)
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
