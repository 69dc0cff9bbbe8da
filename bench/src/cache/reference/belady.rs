//! Belady's optimum: whoever is used again last goes. It knows the future, so it is no policy but a bound.

use std::collections::BTreeSet;

/// Never used again.
const NEVER: usize = usize::MAX;

pub(crate) struct Belady;

impl Belady {
    /// Hits of a cache of `capacity` rows on `trace`, whose rows are below `rows`. The row that is asked for is always taken in.
    pub(crate) fn hits(trace: &[u32], capacity: usize, rows: usize) -> usize {
        let next = next_uses(trace, rows);
        // Of each cached row its next use, with the last of them to go first.
        let mut cached: BTreeSet<(usize, u32)> = BTreeSet::new();
        let mut hits = 0;
        for (at, &row) in trace.iter().enumerate() {
            // A cached row's next use is this access.
            if cached.remove(&(at, row)) {
                hits += 1;
            } else if cached.len() == capacity {
                cached.pop_last();
            }
            cached.insert((next[at], row));
        }
        hits
    }
}

/// For each access the next one of the same row, or [`NEVER`].
fn next_uses(trace: &[u32], rows: usize) -> Vec<usize> {
    let mut upcoming = vec![NEVER; rows];
    let backwards = trace.iter().enumerate().rev();
    let mut next: Vec<usize> = backwards
        .map(|(at, &row)| std::mem::replace(&mut upcoming[row as usize], at))
        .collect();
    next.reverse();
    next
}
