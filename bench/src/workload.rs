//! Synthetic queries of the DLRM-v2 shape, and replayed traces.
//!
//! Popularity is fitted to the reuse histogram of 856 production-like tables in
//! facebookresearch/dlrm_datasets (`fbgemm_t856_bs65536.pt`, 2021): what share of all accesses goes to
//! rows that are used once, 2 times, up to 4 times, and so on within a batch of 65,536. The queries
//! are synthetic: they have that histogram, and nothing else of the data.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_client::{Batch, BatchError, Division};
use rowmill_table::Shape;

/// Share of accesses by how often their row is used: class `c` holds rows used more than `2^(c-1)`
/// and at most `2^c` times; the last is open. From `locality_stats_2021.txt`, first block, "Ratio of
/// index distribution at different column sizes".
const ACCESS_SHARES: [f64; 17] = [
    0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052, 0.050, 0.049, 0.048, 0.048,
    0.043, 0.031, 0.023, 0.019,
];

/// A prime above every table's rows, so that multiplying by it permutes row numbers and hot rows lie
/// scattered over the table.
const SCATTER: u64 = 2_654_435_761;

/// The popularity classes of one table.
#[derive(Clone, Debug)]
struct Popularity {
    rows: u64,
    /// For each class: up to which share of accesses it goes, its first rank and its number of rows.
    classes: Vec<(f64, u64, u64)>,
}

impl Popularity {
    fn new(rows: u64) -> Popularity {
        // A class' rows are its accesses over how often each of its rows is used: the geometric
        // middle of the class' bounds.
        let uses = |class: usize| {
            if class == 0 {
                1.0
            } else {
                2f64.powf(class as f64 - 0.5)
            }
        };
        let shares: Vec<f64> = ACCESS_SHARES
            .iter()
            .enumerate()
            .map(|(c, a)| a / uses(c))
            .collect();
        let (all_rows, all): (f64, f64) = (shares.iter().sum(), ACCESS_SHARES.iter().sum());
        let (mut access, mut rank) = (0.0, 0.0);
        let classes = (0..ACCESS_SHARES.len()).map(|c| {
            access += ACCESS_SHARES[c] / all;
            let first = (rank * rows as f64) as u64;
            rank += shares[c] / all_rows;
            let first = first.min(rows - 1);
            let count = ((rank * rows as f64) as u64).clamp(first + 1, rows) - first;
            (access, first, count)
        });
        Popularity {
            rows,
            classes: classes.collect(),
        }
    }

    fn draw(&self, rng: &mut StdRng) -> u32 {
        let at: f64 = rng.random();
        let class = self
            .classes
            .iter()
            .find(|(upto, ..)| at < *upto)
            .or(self.classes.last());
        let &(_, first, count) = class.expect("there are classes");
        let rank = first + rng.random_range(0..count);
        ((rank * SCATTER) % self.rows) as u32
    }
}

/// The ids of one request: for each feature `bags` bags of a fixed number of ids, as in DLRM-v2.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    /// Samples.
    pub bags: u32,
    /// For each feature: ids a bag, and all ids.
    pub features: Vec<(u32, Vec<u32>)>,
    lengths: Vec<Vec<u32>>,
}

impl Query {
    /// A query of bags of a fixed number of ids in each feature.
    pub(crate) fn new(bags: u32, features: Vec<(u32, Vec<u32>)>) -> Query {
        let lengths = features
            .iter()
            .map(|(hot, _)| vec![*hot; bags as usize])
            .collect();
        Query {
            bags,
            features,
            lengths,
        }
    }

    /// The lengths of a feature's bags.
    pub(crate) fn lengths(&self, feature: usize) -> &[u32] {
        &self.lengths[feature]
    }

    /// Ids over all features.
    pub(crate) fn ids(&self) -> u64 {
        self.features.iter().map(|(_, ids)| ids.len() as u64).sum()
    }

    /// Fills a client's batch with this query.
    ///
    /// # Errors
    /// [`BatchError`] where the query is larger than the protocol allows.
    pub(crate) fn fill(&self, batch: &mut Batch) -> Result<(), BatchError> {
        batch.clear(self.bags as usize)?;
        for ((_, ids), lengths) in self.features.iter().zip(&self.lengths) {
            batch.push(Division::Lengths(lengths), &ids[..])?;
        }
        Ok(())
    }
}

/// Draws queries for a model.
#[derive(Debug)]
pub(crate) struct Workload {
    tables: Vec<(u32, Popularity)>,
    rng: StdRng,
}

impl Workload {
    /// Queries for the DLRM-v2 shape with these numbers of rows.
    pub(crate) fn dlrm_v2(rows: &[u64], seed: u64) -> Workload {
        let hots = Shape::dlrm_v2().tables.into_iter().map(|t| t.multi_hot);
        let tables = hots
            .zip(rows)
            .map(|(hot, &rows)| (hot, Popularity::new(rows)))
            .collect();
        Workload {
            tables,
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// The next query of `bags` samples.
    pub(crate) fn query(&mut self, bags: u32) -> Query {
        let features = self.tables.iter().map(|(hot, popularity)| {
            let ids = (0..bags * hot)
                .map(|_| popularity.draw(&mut self.rng))
                .collect();
            (*hot, ids)
        });
        Query::new(bags, features.collect())
    }

    /// A query of `bags` bags of one id each, of one feature whose table has `rows` rows, all of them equally likely.
    pub(crate) fn one_id(&mut self, bags: u32, rows: u32) -> Query {
        let ids = (0..bags).map(|_| self.rng.random_range(0..rows));
        Query::new(bags, vec![(1, ids.collect())])
    }

    /// The next query of 100 to 700 samples, as MLPerf's DLRM-v2 server scenario has them.
    pub(crate) fn server_query(&mut self) -> Query {
        let bags = self.rng.random_range(100..=700);
        self.query(bags)
    }
}

/// Ids a bag when a trace of one table is replayed: the pooling factor of the study that the public
/// traces come from (arXiv 2410.22249).
pub(crate) const TRACE_POOLING: u32 = 150;

/// Characters of a line of a trace that are shown where it is no row number.
const SHOWN_CHARS: usize = 80;

/// Reads a trace: a row id a line, `least` of them at least.
///
/// # Errors
/// Names the line that is no row number, or says that the file has too few, or is none.
pub(crate) fn read_trace(path: &Path, least: u32) -> Result<Vec<u32>> {
    ensure!(
        !path.is_dir(),
        "{} is a directory; give a file with a row number a line",
        path.display()
    );
    let file =
        File::open(path).with_context(|| format!("cannot open the trace {}", path.display()))?;
    let mut ids = Vec::new();
    let mut reader = BufReader::new(file);
    for number in 0.. {
        let mut line = Vec::new();
        // What is no row number may have no end.
        let read = reader
            .by_ref()
            .take(LINE_BYTES)
            .read_until(b'\n', &mut line);
        let read = read.with_context(|| format!("{} line {}", path.display(), number + 1))?;
        if read == 0 {
            break;
        }
        ensure!(
            line.ends_with(b"\n") || (read as u64) < LINE_BYTES,
            "{} line {}: `{}` is not a row number: the line has {LINE_BYTES} bytes or more",
            path.display(),
            number + 1,
            beginning(&String::from_utf8_lossy(&line))
        );
        let line = String::from_utf8_lossy(&line);
        let text = line.trim();
        match text.parse::<u32>() {
            Ok(id) if id < i32::MAX as u32 => ids.push(id),
            _ => bail!(
                "{} line {}: `{}` is not a row number from 0 to 2^31 - 2",
                path.display(),
                number + 1,
                beginning(text)
            ),
        }
    }
    ensure!(
        ids.len() >= least as usize,
        "{} has {} ids; {least} at least are needed",
        path.display(),
        ids.len()
    );
    Ok(ids)
}

/// Most bytes of a line: more than any row number has, with spaces around it.
const LINE_BYTES: u64 = 256;

/// The first characters of a text, and dots where there are more.
fn beginning(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.into(),
    }
}

/// Cuts a trace into queries of 100 to 700 samples (seeded); ids after the last whole bag are left out.
pub(crate) fn trace_queries(ids: &[u32], seed: u64) -> Vec<Query> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut bags = ids.len() / TRACE_POOLING as usize;
    let mut at = 0;
    let mut queries = Vec::new();
    while bags > 0 {
        let take = rng.random_range(100..=700).min(bags);
        let ids = ids[at..at + take * TRACE_POOLING as usize].to_vec();
        at += ids.len();
        bags -= take;
        queries.push(Query::new(take as u32, vec![(TRACE_POOLING, ids)]));
    }
    queries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_cover_the_table_and_hot_rows_are_hot() {
        for rows in [1u64, 3, 36, 1000, 1_000_000] {
            let popularity = Popularity::new(rows);
            let mut rng = StdRng::seed_from_u64(1);
            assert!(
                (0..10_000).all(|_| u64::from(popularity.draw(&mut rng)) < rows),
                "{rows} rows"
            );
        }
        let popularity = Popularity::new(1_000_000);
        let mut rng = StdRng::seed_from_u64(2);
        let mut seen = std::collections::HashMap::new();
        for _ in 0..6_900_000 / 8 {
            *seen.entry(popularity.draw(&mut rng)).or_insert(0u32) += 1;
        }
        let top: u32 = {
            let mut counts: Vec<u32> = seen.values().copied().collect();
            counts.sort_unstable_by(|a, b| b.cmp(a));
            counts.iter().take(1000).sum()
        };
        let share = f64::from(top) / (6_900_000.0 / 8.0);
        assert!(
            (0.2..0.6).contains(&share),
            "the thousand hottest rows have {share:.2} of the accesses"
        );
    }

    #[test]
    fn traces_are_cut_into_whole_bags() {
        let ids: Vec<u32> = (0..150 * 1000 + 7).collect();
        let queries = trace_queries(&ids, 1);
        assert_eq!(queries.iter().map(|q| q.bags).sum::<u32>(), 1000);
        assert_eq!(queries[1].features[0].1[0], queries[0].bags * TRACE_POOLING);
    }

    #[test]
    fn what_is_no_trace_is_said_in_a_few_words() {
        let folder = tempfile::tempdir().unwrap();
        let said = |path: &Path| read_trace(path, 1).unwrap_err().to_string();
        let of_folder = said(folder.path());
        assert!(
            of_folder.ends_with("is a directory; give a file with a row number a line"),
            "{of_folder}"
        );
        let file = folder.path().join("trace");
        let of_bytes = |bytes: &[u8]| {
            std::fs::write(&file, [b"1\n2\n", bytes, b"\n"].concat()).unwrap();
            said(&file)
        };
        let of_line = |text: &str| of_bytes(text.as_bytes());
        assert!(of_line("x").contains("line 3: `x` is not a row number"));
        assert!(of_bytes(&[0xff, 0xfe, 0]).contains("is not a row number"));
        // All of it would be a number.
        assert!(of_line(&"0".repeat(1000)).contains("the line has 256 bytes or more"));
        let long = of_line(&"ä".repeat(1_000_000));
        assert!(
            long.contains(&format!("`{}...` is not", "ä".repeat(SHOWN_CHARS))),
            "{} bytes",
            long.len()
        );
    }
}
