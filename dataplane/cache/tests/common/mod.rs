//! A worker alone, and what stands in for its tier.

use rowmill_arena::HugePages;
use rowmill_cache::store::{self, Shape, Tags};
use rowmill_cache::tier::{EachRow, FetchesFull, Tier, Wanted};
use rowmill_cache::{OnFailure, Options, Parts, TableOptions, Worker, fetch, workers};

/// Gives all rows, in the poll after they were asked for.
struct AtOnce<const N: usize> {
    wanted: Vec<Wanted>,
    bytes: fn(u32) -> [u8; N],
}

impl<const N: usize> Tier for AtOnce<N> {
    fn fetch(&mut self, _: u64, wanted: Wanted) -> Result<(), FetchesFull> {
        self.wanted.push(wanted);
        Ok(())
    }

    fn poll(&mut self, _: u64, each: EachRow<'_>) {
        for wanted in self.wanted.drain(..) {
            each(wanted.token, Ok(&(self.bytes)(wanted.row)));
        }
    }

    fn unanswered(&self) -> usize {
        self.wanted.len()
    }
}

/// A table that is cached, of one shard, whose store may get so many sets.
pub(crate) fn table(shape: Shape, most_sets: u32) -> TableOptions {
    TableOptions {
        shape,
        most_sets,
        most_patched: 0,
        in_tier: 0,
        on_failure: OnFailure::Error,
        begins_cached: true,
    }
}

/// The only worker of some tables, all of whose rows are these bytes. Bags of up to `longest` rows wait for theirs, so many at a time.
pub(crate) fn alone<const N: usize>(
    tables: &[TableOptions],
    bags: u32,
    longest: u32,
    bytes: fn(u32) -> [u8; N],
) -> (store::Worker, Worker) {
    let options = Options {
        limits: fetch::Limits {
            staged: bags * longest,
            longest,
            prefetched: 0,
            asked: 0,
            bags,
            row_bytes: N,
            budget_ns: u64::MAX,
        },
        limbo: 64,
        tags: Tags::detect(),
        huge_pages: HugePages::Off,
        seed: 3,
    };
    let parts = Parts {
        tier: Box::new(AtOnce {
            wanted: Vec::new(),
            bytes,
        }),
        wake: Box::new(|| ()),
    };
    let tables: Vec<_> = tables.iter().copied().map(Some).collect();
    let made = workers(&options, &tables, vec![parts]).unwrap();
    made.into_iter().next().unwrap()
}
