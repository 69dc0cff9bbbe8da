//! W-TinyLFU (Einziger et al., 2017) as libCacheSim has it: an LRU window of 1 %, a main cache in two segments, and the
//! more frequent of window's and main's victim stays.
//!
//! libCacheSim counts in a Bloom filter of counters, and has peculiarities that are kept here, for its hit rates are what this
//! is compared with: hits in the window are not counted, a row is counted when it leaves the window, all of a row's counters
//! are raised (not only the least), and counts are halved after so many hits in main, not accesses. Other
//! hash functions than libCacheSim's give slightly other hit rates.

use super::Cache;
use super::lists::Lists;
use super::slru::Slru;

/// Counters for each row of main, for one false count in a thousand: -ln(0.001) / ln(2)^2.
const COUNTERS_PER_ROW: f64 = 14.377_587_5;
/// Counters of a row: ln(2) times that, rounded up.
const HASHES: u64 = 10;
/// Hits in main for each of its rows after which all counts are halved.
const HITS_TO_HALVING: usize = 32;

pub(super) struct WTinyLfu {
    window_len: usize,
    main_len: usize,
    window: Lists,
    main: Slru,
    counters: Vec<u32>,
    main_hits: usize,
}

impl WTinyLfu {
    pub(super) fn new(capacity: usize, rows: usize) -> WTinyLfu {
        let window_len = capacity / 100;
        let main_len = capacity - window_len;
        let counters = (COUNTERS_PER_ROW * main_len as f64).ceil() as usize;
        // A fifth of main is on probation.
        let segments = vec![main_len / 5, main_len * 4 / 5];
        WTinyLfu {
            window_len,
            main_len,
            window: Lists::new(1, rows),
            main: Slru::with_segments(segments, main_len, rows),
            counters: vec![0; counters.max(2 * HASHES as usize)],
            main_hits: 0,
        }
    }

    fn count(&mut self, row: u32) {
        for at in places(row, self.counters.len()) {
            self.counters[at] += 1;
        }
    }

    fn frequency(&self, row: u32) -> u32 {
        let counts = places(row, self.counters.len()).map(|at| self.counters[at]);
        counts.min().expect("a row has counters")
    }

    /// Moves the window's oldest rows on into main until one is evicted, or main has room for all.
    fn evict(&mut self) {
        while let Some(row) = self.window.pop(0) {
            let victim = self.main.victim();
            let fits = !self.main.is_full();
            let better = victim.is_none_or(|v| self.frequency(row) > self.frequency(v));
            if fits || better {
                if !fits && let Some(victim) = victim {
                    self.main.remove(victim);
                }
                self.main.insert(row);
            }
            self.count(row);
            if !fits && !better {
                return;
            }
        }
    }
}

/// The counters of a row, by double hashing.
fn places(row: u32, counters: usize) -> impl Iterator<Item = usize> {
    let mixed = super::super::random::mix(u64::from(row));
    let (first, step) = (mixed & 0xffff_ffff, mixed >> 32);
    (0..HASHES).map(move |i| ((first + i * step) % counters as u64) as usize)
}

impl Cache for WTinyLfu {
    fn access(&mut self, row: u32) -> bool {
        if self.window.list_of(row).is_some() {
            self.window.place(0, row);
            return true;
        }
        if self.main.touch(row) {
            self.count(row);
            self.main_hits += 1;
            if self.main_hits == HITS_TO_HALVING * self.main_len {
                self.main_hits = 0;
                self.counters.iter_mut().for_each(|count| *count /= 2);
            }
            return true;
        }
        if self.window.len(0) + self.main.len() >= self.window_len + self.main_len {
            self.evict();
        }
        self.window.push(0, row);
        self.count(row);
        false
    }
}
