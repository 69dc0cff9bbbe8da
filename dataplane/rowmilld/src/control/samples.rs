//! Sampled lookups on their way from the workers to the control plane.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use rowmill_cache::Samples as Queue;
use rowmill_cache::figures::Count;
use rowmill_link::{BODY_MAX, Sample, Samples, TABLES_MAX, TableSamples};

use crate::cache_view::{CacheView, TableView};

/// Samples that wait to be sent, of all tables: two bodies full. What is more is dropped.
const WAITING: usize = 1 << 16;
/// Samples of a body. Its head and the parts of its tables have their room beside them: 2,000 tables with names of 30 bytes.
const OF_BODY: usize = (BODY_MAX - (112 << 10)) / 8;
/// Bytes of parts that are begun in a body at most.
const PARTS: usize = 110 << 10;

/// What waits of a table.
#[derive(Debug, Default)]
struct Waiting {
    samples: Vec<Sample>,
    /// Dropped since the last body, here or on the way.
    dropped: u64,
    /// Lookups, and drops of workers, that the control plane was told of.
    told: [u64; 2],
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Sampler {
    cache: Arc<CacheView>,
    workers: Vec<Arc<Queue>>,
    /// As the cache's tables.
    waiting: Vec<Waiting>,
    count: usize,
    /// The table that a body begins with.
    next: usize,
}

impl Sampler {
    pub(super) fn new(cache: Arc<CacheView>, workers: Vec<Arc<Queue>>) -> Sampler {
        Sampler {
            waiting: cache.tables.iter().map(|_| Waiting::default()).collect(),
            cache,
            workers,
            count: 0,
            next: 0,
        }
    }

    /// Takes what workers have.
    pub(super) fn drain(&mut self) {
        for worker in &self.workers {
            while let Some(sample) = worker.take() {
                let mut tables = self.cache.tables.iter();
                let at = tables.position(|view| view.number == sample.table as usize);
                let at = at.expect("listed tables are sampled");
                // Where the threshold has become lower meanwhile, it is a sample no more.
                let threshold = self.cache.tables[at].wishes.threshold.load(Relaxed);
                let waiting = &mut self.waiting[at];
                if sample.place >= threshold {
                    continue;
                }
                if self.count == WAITING {
                    waiting.dropped += 1;
                    continue;
                }
                let (row, place) = (sample.row, sample.place);
                waiting.samples.push(Sample { row, place });
                self.count += 1;
            }
        }
    }

    /// The next body that is to be sent, if there are samples.
    pub(super) fn body(&mut self, instance: u128, number: u64) -> Option<Samples> {
        if self.count == 0 {
            return None;
        }
        let (mut tables, mut left, mut parts) = (Vec::new(), OF_BODY, PARTS);
        let all = self.waiting.len();
        for at in (0..all).map(|n| (self.next + n) % all) {
            let (view, waiting) = (&self.cache.tables[at], &mut self.waiting[at]);
            let part = 26 + view.name.len();
            if waiting.samples.is_empty() {
                continue;
            }
            if left == 0 || part > parts || tables.len() == TABLES_MAX as usize {
                self.next = at;
                break;
            }
            let threshold = view.wishes.threshold.load(Relaxed);
            let taken = waiting.samples.len().min(left);
            let mut samples: Vec<Sample> = waiting.samples.drain(..taken).collect();
            (self.count, left, parts) = (self.count - taken, left - taken, parts - part);
            samples.retain(|sample| sample.place < threshold);
            let now = counts(view);
            tables.push(TableSamples {
                table: view.name.clone(),
                lookups: now[0] - waiting.told[0],
                dropped: now[1] - waiting.told[1] + waiting.dropped,
                threshold,
                samples,
            });
        }
        Some(Samples {
            instance,
            number,
            tables,
        })
    }

    /// A body was taken, or was lost: then its samples count as dropped. Returns how many samples were taken, and how many were lost.
    pub(super) fn sent(&mut self, body: &Samples, is_taken: bool) -> (u64, u64) {
        let mut count = 0;
        for part in &body.tables {
            let mut tables = self.cache.tables.iter();
            let at = tables.position(|view| view.name == part.table);
            let waiting = &mut self.waiting[at.expect("a part of an own table")];
            let samples = part.samples.len() as u64;
            count += samples;
            if is_taken {
                waiting.told[0] += part.lookups;
                waiting.told[1] += part.dropped - waiting.dropped;
                waiting.dropped = 0;
            } else {
                waiting.dropped += samples;
            }
        }
        if is_taken { (count, 0) } else { (0, count) }
    }
}

/// Lookups, and samples that workers dropped.
fn counts(view: &TableView) -> [u64; 2] {
    [Count::Lookups, Count::SamplesDropped].map(|what| view.get(what))
}
