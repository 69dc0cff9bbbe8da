//! Lookups that are drawn as a sample, for whoever wants to know how a table is used.
//!
//! Rows are drawn, not lookups: all lookups of a row or none, since what matters is when a row is looked up again (SHARDS: Waldspurger and
//! others, "Efficient MRC Construction with SHARDS", FAST 2015). Which ones is said by where a row is among those of its shard
//! ([`Spread::place`](super::Spread::place)), so that it costs one comparison of vectors where its set is computed, and nothing else as long as
//! no row of a block is drawn.

/// A row that was looked up and is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnRow {
    /// Where it is in the piece that was looked up.
    pub position: u32,
    /// Its number.
    pub row: u32,
    /// Its place among the rows of its shard, of 2^32: less than the threshold.
    pub place: u32,
}

/// What was drawn of a piece.
#[derive(Debug)]
pub struct Drawn {
    /// Rows with a place below it are drawn.
    threshold: u32,
    rows: Vec<DrawnRow>,
    room: usize,
    dropped: u64,
}

impl Drawn {
    /// Room for so many of a piece.
    pub fn new(room: usize) -> Drawn {
        Drawn {
            threshold: 0,
            rows: Vec::with_capacity(room),
            room,
            dropped: 0,
        }
    }

    /// Nothing is drawn.
    pub fn nothing() -> Drawn {
        Drawn::new(0)
    }

    /// Begins a piece, of which rows with a place below `threshold` are drawn.
    pub fn begin(&mut self, threshold: u32) {
        self.threshold = threshold;
        self.rows.clear();
        self.dropped = 0;
    }

    /// Rows with a place below it are drawn.
    pub fn threshold(&self) -> u32 {
        self.threshold
    }

    /// What was drawn, in the order of positions.
    pub fn rows(&self) -> &[DrawnRow] {
        &self.rows
    }

    /// How many found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Keeps those at such positions of what was drawn.
    pub(super) fn keep(&mut self, is_kept: impl Fn(usize) -> bool) {
        self.rows.retain(|row| is_kept(row.position as usize));
    }

    pub(super) fn push(&mut self, row: DrawnRow) {
        // No memory is taken here.
        if self.rows.len() < self.room {
            self.rows.push(row);
        } else {
            self.dropped += 1;
        }
    }
}
