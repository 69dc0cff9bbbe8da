//! Synthetic traces of one table's row numbers. Each is the same for ever: the seeds are committed.

use super::random::Random;

/// Rows of the table that is accessed, as many as in the public trace.
pub(crate) const ROWS: usize = 500_000;
/// Accesses of a trace.
pub(crate) const ACCESSES: usize = 500_000;

/// A kind of trace: its name in a case, and what makes it.
pub(crate) struct Generator {
    pub(crate) name: &'static str,
    make: fn() -> Vec<u32>,
}

impl Generator {
    /// One that is made so.
    pub(crate) const fn new(name: &'static str, make: fn() -> Vec<u32>) -> Generator {
        Generator { name, make }
    }

    /// The trace: [`ACCESSES`] rows below [`ROWS`].
    pub(crate) fn trace(&self) -> Vec<u32> {
        (self.make)()
    }
}

/// All of them.
pub(crate) const GENERATORS: [Generator; 8] = [
    Generator::new("zipf-0.6", || zipf(0.6, 1)),
    Generator::new("zipf-0.8", || zipf(0.8, 2)),
    Generator::new("zipf-1.0", || zipf(1.0, 3)),
    Generator::new("zipf-1.2", || zipf(1.2, 4)),
    Generator::new("shift", shift),
    Generator::new("scan", scan),
    Generator::new("histogram", histogram),
    Generator::new("weak-recency", weak_recency),
];

/// Rows by popularity, and how much of all accesses goes to the ones up to each.
pub(super) struct Popularity {
    rows: Vec<u32>,
    up_to: Vec<f64>,
}

impl Popularity {
    /// Weights from the most popular row on; which rows those are is drawn.
    pub(super) fn new(weights: impl Iterator<Item = f64>, random: &mut Random) -> Popularity {
        let mut total = 0.0;
        let up_to: Vec<f64> = weights
            .map(|weight| {
                total += weight;
                total
            })
            .collect();
        let mut popularity = Popularity {
            rows: (0..up_to.len() as u32).collect(),
            up_to,
        };
        popularity.shuffle(random);
        popularity
    }

    /// By Zipf's law: the weight of rank r is r^-exponent.
    fn zipf(exponent: f64, random: &mut Random) -> Popularity {
        Popularity::new((1..=ROWS).map(|rank| (rank as f64).powf(-exponent)), random)
    }

    /// Other rows become popular.
    pub(super) fn shuffle(&mut self, random: &mut Random) {
        random.shuffle(&mut self.rows);
    }

    pub(super) fn draw(&self, random: &mut Random) -> u32 {
        let total = self.up_to.last().expect("there are rows");
        let at = random.unit() * total;
        let rank = self.up_to.partition_point(|&up_to| up_to <= at);
        self.rows[rank.min(self.rows.len() - 1)]
    }

    pub(super) fn draws(&self, count: usize, random: &mut Random) -> Vec<u32> {
        (0..count).map(|_| self.draw(random)).collect()
    }
}

/// Stable popularity by Zipf's law, no recency.
fn zipf(exponent: f64, seed: u64) -> Vec<u32> {
    let random = &mut Random::new(seed);
    Popularity::zipf(exponent, random).draws(ACCESSES, random)
}

/// Zipf, exponent 1; in the middle all popularity goes to other rows.
fn shift() -> Vec<u32> {
    let random = &mut Random::new(5);
    let mut popularity = Popularity::zipf(1.0, random);
    let mut trace = popularity.draws(ACCESSES / 2, random);
    popularity.shuffle(random);
    trace.extend(popularity.draws(ACCESSES / 2, random));
    trace
}

/// Zipf, exponent 1, over four fifths of the rows; in the middle, the other fifth is read once from end to end.
fn scan() -> Vec<u32> {
    let random = &mut Random::new(6);
    let scanned = ROWS / 5;
    let weights = (1..=ROWS - scanned).map(|rank| (rank as f64).recip());
    let popularity = Popularity::new(weights, random);
    let around = (ACCESSES - scanned) / 2;
    let mut trace = popularity.draws(around, random);
    trace.extend((ROWS - scanned) as u32..ROWS as u32);
    trace.extend(popularity.draws(around, random));
    trace
}

/// Share of accesses by how often their row is used within a batch of 65,536, in 856 production-like tables
/// (`locality_stats_2021.txt` of facebookresearch/dlrm_datasets, first block): class `c` holds rows used
/// more than `2^(c-1)` and at most `2^c` times; the last is open.
const ACCESS_SHARES: [f64; 17] = [
    0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048,
    0.043, 0.031, 0.023, 0.019,
];

/// Stable popularity that has that histogram, and nothing else of the data: it is synthetic.
fn histogram() -> Vec<u32> {
    let random = &mut Random::new(7);
    // The geometric middle of a class' bounds is how often each of its rows is used.
    let uses = |class: usize| 2f64.powf(class as f64 - 0.5).max(1.0);
    let rows_of: Vec<f64> = ACCESS_SHARES
        .iter()
        .enumerate()
        .map(|(class, share)| share / uses(class))
        .collect();
    let scale = ROWS as f64 / rows_of.iter().sum::<f64>();
    let weights = (0..ACCESS_SHARES.len()).rev().flat_map(|class| {
        let rows = (rows_of[class] * scale).round().max(1.0) as usize;
        let weight = ACCESS_SHARES[class] / rows as f64;
        std::iter::repeat_n(weight, rows)
    });
    let mut popularity = Popularity::new(weights.take(ROWS), random);
    popularity.shuffle(random);
    popularity.draws(ACCESSES, random)
}

/// Share of accesses that ask for a row that was there before.
const REUSED: f64 = 0.39;

/// Weak recency and few rows used again: 39 % of the accesses repeat an earlier one, from up to 300,000 accesses
/// ago, where long ago is as likely as lately on a logarithmic scale above 300; the others ask for a row that is new.
/// A stand-in for a real trace of which no more is known; it is synthetic.
fn weak_recency() -> Vec<u32> {
    let random = &mut Random::new(8);
    let mut fresh: Vec<u32> = (0..ROWS as u32).collect();
    let mut trace: Vec<u32> = Vec::with_capacity(ACCESSES);
    for _ in 0..ACCESSES {
        let ago = (300.0 * 1000f64.powf(random.unit())) as usize;
        if random.unit() < REUSED && ago <= trace.len() {
            trace.push(trace[trace.len() - ago]);
        } else {
            let drawn = random.below(fresh.len());
            trace.push(fresh.swap_remove(drawn));
        }
    }
    trace
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::HashSet;

    use super::*;

    const HASHES: [u64; 8] = [
        0xbdbd_06d5_24a9_2ae9,
        0x4d7c_8241_0a61_4bb3,
        0xa9a2_7cca_26bd_81c2,
        0x88ad_6cfd_8a3d_c5d3,
        0x76b7_bc53_2175_4313,
        0x33d4_5559_101e_a78d,
        0x1913_6d63_c4c0_5564,
        0x40d5_b7ed_1d3a_e03e,
    ];

    /// FNV-1a over the rows: results stand in RESULTS.md, and they are of these traces.
    pub(crate) fn hash(trace: &[u32]) -> u64 {
        trace.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &row| {
            (hash ^ u64::from(row)).wrapping_mul(0x0100_0000_01b3)
        })
    }

    #[test]
    fn traces_are_the_committed_ones() {
        for (generator, expected) in GENERATORS.iter().zip(HASHES) {
            let trace = generator.trace();
            assert_eq!(trace.len(), ACCESSES, "{}", generator.name);
            assert!(trace.iter().all(|&row| (row as usize) < ROWS));
            assert_eq!(hash(&trace), expected, "{}", generator.name);
        }
    }

    #[test]
    fn popular_rows_are_drawn_as_often_as_they_should() {
        let mut counts = vec![0usize; ROWS];
        for row in zipf(0.8, 2) {
            counts[row as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let weight = |rank: usize| (rank as f64).powf(-0.8);
        let total: f64 = (1..=ROWS).map(weight).sum();
        for rank in [1, 10, 100] {
            let expected = ACCESSES as f64 * weight(rank) / total;
            let found = counts[rank - 1] as f64;
            assert!(
                (found - expected).abs() < 6.0 * expected.sqrt(),
                "rank {rank}: {found}, {expected}"
            );
        }
    }

    #[test]
    fn the_scan_reads_rows_that_are_read_at_no_other_time() {
        let mut seen = HashSet::new();
        let trace = scan();
        let scanned = |row: u32| row as usize >= ROWS - ROWS / 5;
        let (from, rows) = ((ACCESSES - ROWS / 5) / 2, ROWS / 5);
        for (at, &row) in trace.iter().enumerate() {
            assert_eq!(
                scanned(row),
                (from..from + rows).contains(&at),
                "access {at}"
            );
            assert!(!scanned(row) || seen.insert(row));
        }
    }

    #[test]
    fn weak_recency_has_its_ceiling() {
        let trace = weak_recency();
        let distinct = trace.iter().collect::<HashSet<_>>().len();
        let ceiling = 1.0 - distinct as f64 / ACCESSES as f64;
        assert!((0.34..0.39).contains(&ceiling), "{ceiling}");
    }
}
