//! Synthetic traces that are hard on a policy that learns: rows that come again when nothing before them told so, and popularity that
//! moves. `--full` runs them with the others.

use super::generators::{ACCESSES, Generator, Popularity, ROWS};
use super::random::Random;

/// All of them.
pub(crate) const HARD: [Generator; 19] = [
    Generator::new("sweeps-12k", || sweeps(12_000)),
    Generator::new("sweeps-30k", || sweeps(30_000)),
    Generator::new("sweeps-60k", || sweeps(60_000)),
    Generator::new("twice-8k", || again(2, 8_000..8_001, 11)),
    Generator::new("twice-9k", || again(2, 9_000..9_001, 12)),
    Generator::new("twice-20k", || again(2, 20_000..20_001, 13)),
    Generator::new("twice-11k-17k", || again(2, 11_000..17_000, 14)),
    Generator::new("thrice-3k-7k", || again(3, 3_000..7_000, 15)),
    Generator::new("loop-15k", || a_loop(0.5, 15_000, 0.9, 16)),
    Generator::new("loop-40k", || a_loop(0.7, 40_000, 1.0, 17)),
    Generator::new("shifts-50k", || shifts(50_000, 0.9, 18)),
    Generator::new("shifts-120k", || shifts(120_000, 0.8, 19)),
    Generator::new("scans", || scans(20_000, 0.9, 20)),
    Generator::new("newest-4k", || newest(0.1, 4_000.0, 21)),
    Generator::new("newest-20k", || newest(0.3, 20_000.0, 22)),
    Generator::new("uniform-30k", || uniform(30_000, 23)),
    Generator::new("loop-100k", || a_loop(0.5, 100_000, 1.0, 24)),
    Generator::new("ends-with-recent", || ends_with(|[_, recent]| recent, 25)),
    Generator::new("ends-with-frequent", || {
        ends_with(|[frequent, _]| frequent, 25)
    }),
];

/// Popularity by Zipf's law over so many rows.
fn zipf(rows: usize, exponent: f64, random: &mut Random) -> Popularity {
    Popularity::new((1..=rows).map(|rank| (rank as f64).powf(-exponent)), random)
}

/// So many rows in order, back and forth.
fn sweeps(rows: u32) -> Vec<u32> {
    let there_and_back = (0..rows).chain((0..rows).rev());
    there_and_back.cycle().take(ACCESSES).collect()
}

/// Each row so many times, as many lookups apart as is drawn from `apart`, or as few more as it takes to find a free place.
fn again(times: usize, apart: std::ops::Range<usize>, seed: u64) -> Vec<u32> {
    let random = &mut Random::new(seed);
    let mut trace = vec![u32::MAX; ACCESSES];
    let mut rows = 0..;
    for first in 0..ACCESSES {
        if trace[first] < u32::MAX {
            continue;
        }
        let row = rows.next().expect("numbers");
        let mut at = first;
        trace[at] = row;
        for _ in 1..times {
            let from = at + apart.start + random.below(apart.len());
            match (from..ACCESSES).find(|&at| trace[at] == u32::MAX) {
                Some(free) => at = free,
                None => break,
            }
            trace[at] = row;
        }
    }
    trace
}

/// A part of the lookups goes through so many rows in order, again and again; the others are drawn by Zipf's law from 100,000 other rows.
fn a_loop(part: f64, rows: u32, exponent: f64, seed: u64) -> Vec<u32> {
    const OTHERS: usize = 100_000;
    let random = &mut Random::new(seed);
    let popularity = zipf(OTHERS, exponent, random);
    let mut in_order = (OTHERS as u32..OTHERS as u32 + rows).cycle();
    let mut next = || match random.unit() < part {
        true => in_order.next().expect("it has no end"),
        false => popularity.draw(random),
    };
    (0..ACCESSES).map(|_| next()).collect()
}

/// Zipf over 100,000 rows; after so many lookups all popularity goes to others of them, again and again.
fn shifts(lookups: usize, exponent: f64, seed: u64) -> Vec<u32> {
    let random = &mut Random::new(seed);
    let mut popularity = zipf(100_000, exponent, random);
    let mut trace = Vec::with_capacity(ACCESSES);
    while trace.len() < ACCESSES {
        trace.extend(popularity.draws(lookups.min(ACCESSES - trace.len()), random));
        popularity.shuffle(random);
    }
    trace
}

/// Zipf over 100,000 rows; after so many lookups, as many rows come that never come again, and so on.
fn scans(lookups: usize, exponent: f64, seed: u64) -> Vec<u32> {
    let random = &mut Random::new(seed);
    let popularity = zipf(100_000, exponent, random);
    let mut scanned = 100_000..;
    let mut trace = Vec::with_capacity(ACCESSES);
    while trace.len() < ACCESSES {
        trace.extend(popularity.draws(lookups, random));
        trace.extend(scanned.by_ref().take(lookups));
    }
    trace.truncate(ACCESSES);
    trace
}

/// With each lookup a row appears with a chance of `rate`; each lookup is of a row that so many others appeared after, on average, with
/// an exponential distribution.
fn newest(rate: f64, others: f64, seed: u64) -> Vec<u32> {
    let random = &mut Random::new(seed);
    let mut newest = ROWS as f64 / 2.0;
    let mut next = || {
        newest += f64::from(u8::from(random.unit() < rate));
        let after = -(1.0 - random.unit()).ln() * others;
        (newest - after).max(0.0) as u32
    };
    (0..ACCESSES).map(|_| next()).collect()
}

/// A set of rows again and again, each time in another order; another set once; and at the end the one or the other once more. With one seed, traces
/// differ at the end alone, so that no policy can know which of the sets to hold.
fn ends_with(which: fn([Vec<u32>; 2]) -> Vec<u32>, seed: u64) -> Vec<u32> {
    const SET: u32 = 10_000;
    let random = &mut Random::new(seed);
    let (mut frequent, mut recent) = (
        (0..SET).collect::<Vec<_>>(),
        (SET..2 * SET).collect::<Vec<_>>(),
    );
    let mut trace = Vec::with_capacity(ACCESSES);
    while trace.len() < ACCESSES - 2 * SET as usize {
        random.shuffle(&mut frequent);
        trace.extend(&frequent);
    }
    random.shuffle(&mut recent);
    trace.extend(&recent);
    let mut last = which([frequent, recent]);
    random.shuffle(&mut last);
    trace.extend(last);
    trace
}

/// So many rows, one like another.
fn uniform(rows: usize, seed: u64) -> Vec<u32> {
    let random = &mut Random::new(seed);
    (0..ACCESSES).map(|_| random.below(rows) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::generators::tests::hash;

    const HASHES: [u64; 19] = [
        0x1960_b90d_dd8d_e905,
        0x52a0_6e78_7dd4_c845,
        0xb17c_008d_636b_d545,
        0x0740_11ad_0fcb_b245,
        0xd98e_31e7_38e1_7205,
        0x4d21_c7b9_613f_5dc5,
        0x74a3_fe4c_c377_d5a5,
        0xd385_9439_8107_f171,
        0x7655_3b9d_8201_a79d,
        0xeca6_e837_6068_ccb7,
        0xf4c3_0dec_547b_0044,
        0x5cee_c8b1_df6a_cdaa,
        0x7c82_3415_0cd4_8224,
        0xf08b_8090_bf70_49dc,
        0xc9a2_7422_3bfa_61ab,
        0xd190_3768_5c11_00f7,
        0x02ec_bd7b_d9e7_c420,
        0x710f_e254_82e3_2403,
        0x66ec_cd20_4a47_e6c1,
    ];

    #[test]
    fn traces_are_the_committed_ones() {
        let traces = HARD.map(|generator| generator.trace());
        for (trace, Generator { name, .. }) in traces.iter().zip(HARD) {
            assert_eq!(trace.len(), ACCESSES, "{name}");
            assert!(trace.iter().all(|&row| (row as usize) < ROWS), "{name}");
        }
        let hashes = traces.map(|trace| hash(&trace));
        assert_eq!(hashes, HASHES, "{hashes:#018x?}");
    }

    #[test]
    fn traces_that_end_otherwise_are_the_same_before() {
        let recent = ends_with(|[_, recent]| recent, 1);
        let frequent = ends_with(|[frequent, _]| frequent, 1);
        let (before, end) = recent.split_at(ACCESSES - 10_000);
        assert_eq!(before, &frequent[..before.len()]);
        let set = |rows: &[u32]| {
            rows.iter()
                .copied()
                .collect::<std::collections::BTreeSet<_>>()
        };
        let (end, other_end) = (set(end), set(&frequent[before.len()..]));
        assert_eq!(end, set(&before[before.len() - 10_000..]));
        assert_eq!(other_end, set(&before[..10_000]));
        assert!(end.is_disjoint(&other_end));
    }

    #[test]
    fn rows_come_again_as_often_and_as_far_apart_as_they_should() {
        let trace = again(3, 3_000..7_000, 1);
        let mut places = vec![Vec::new(); ROWS];
        for (at, &row) in trace.iter().enumerate() {
            places[row as usize].push(at);
        }
        let apart = |places: &Vec<usize>| places.windows(2).all(|pair| pair[1] - pair[0] >= 3_000);
        assert!(
            places
                .iter()
                .all(|places| places.len() <= 3 && apart(places))
        );
        let whole = places.iter().filter(|places| places.len() == 3).count();
        assert!(
            3 * whole > ACCESSES * 9 / 10,
            "{whole} rows come three times"
        );
    }
}
