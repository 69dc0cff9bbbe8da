//! Making the index of a hashed table, with memory that does not grow with the table.
//!
//! Keys are dealt into partitions by their hashes, each partition is sorted on its own, and the
//! partitions one after another fill the buckets from left to right. Nothing is ever inserted between
//! others. The result depends on keys, rows and seed only.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread;

use crate::TableError;
use crate::blocks::{MAX_THREADS, read_at};
use crate::index::{
    BUCKET_BYTES, BUCKET_KEYS, MAX_REACH, Spread, bucket, bucket_count, index_bytes, scaled,
};
use crate::mix::word;

/// Keys of a partition, about. One that is sorted takes 24 bytes a key: 3 MiB.
const PARTITION_KEYS: u64 = 1 << 17;
/// Most keys of a partition. Hashes of different keys spread so evenly that four times the mean never
/// comes about; copies of a key do it.
const MOST_PARTITION_KEYS: u64 = 4 * PARTITION_KEYS;
/// Bytes of a key and its row on their way into a partition.
pub(crate) const DEALT_BYTES: u64 = 12;
/// Most bytes that wait for being written, over all partitions, and most of one partition.
const DEAL_BYTES: u64 = 64 << 20;
const DEAL_PARTITION_BYTES: u64 = 64 << 10;
/// Keys that are read at a time.
const KEYS_A_READ: usize = 1 << 14;
/// Buckets that are written at a time: 1 MiB.
const BUCKETS_A_WRITE: usize = (1 << 20) / BUCKET_BYTES;
/// Seeds that are tried. One fails with probability 10^-10 for the largest table.
const SEEDS: u64 = 4;

/// Where the keys come from: row number, and room for the keys from that row on.
pub(crate) type Keys<'a> = &'a dyn Fn(u64, &mut [u64]) -> Result<(), TableError>;
/// Where the index goes: bytes with the place of the first of them, in order.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), TableError>;

/// Where partitions lie until they are sorted: `DEALT_BYTES` a key.
pub(crate) enum Scratch {
    Memory(Vec<u8>),
    File(File, PathBuf),
}

impl Scratch {
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), TableError> {
        match self {
            Scratch::Memory(all) => {
                let (at, end) = (at as usize, at as usize + bytes.len());
                all.resize(all.len().max(end), 0);
                all[at..end].copy_from_slice(bytes);
                Ok(())
            }
            Scratch::File(file, path) => file.write_all_at(bytes, at).map_err(TableError::io(path)),
        }
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), TableError> {
        match self {
            Scratch::Memory(all) => {
                out.copy_from_slice(&all[at as usize..at as usize + out.len()]);
                Ok(())
            }
            Scratch::File(file, path) => read_at(file, path, out, at),
        }
    }
}

/// Why there is no index by a seed.
enum Failure {
    /// Keys are spread too unevenly by it.
    Uneven,
    /// Two rows with the same key.
    Duplicate { key: u64, rows: [u32; 2] },
    /// Keys can't be read, or the index can't be written.
    Other(TableError),
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Failure {
        Failure::Other(error)
    }
}

/// Builds the index of `rows` keys by `seed`, or by the next of its sequence where keys happen to
/// crowd, and hands it to `sink`.
pub(crate) fn build(
    table: &str,
    rows: u64,
    seed: u64,
    keys: Keys<'_>,
    scratch: &mut Scratch,
    sink: Sink<'_>,
) -> Result<(), TableError> {
    for attempt in 0..SEEDS {
        let seed = if attempt == 0 {
            seed
        } else {
            word(seed, attempt)
        };
        let spread = Spread::new(rows, seed);
        let outcome = Partitions::deal(&spread, rows, keys, scratch)
            .and_then(|partitions| partitions.fill(&spread, rows, scratch, sink));
        match outcome {
            Ok(()) => return Ok(()),
            Err(Failure::Uneven) => {}
            Err(Failure::Other(error)) => return Err(error),
            Err(Failure::Duplicate { key, rows }) => {
                return Err(TableError::DuplicateKey {
                    table: table.to_owned(),
                    key,
                    first: rows[0].min(rows[1]).into(),
                    second: rows[0].max(rows[1]).into(),
                });
            }
        }
    }
    Err(TableError::UnevenKeys {
        table: table.to_owned(),
    })
}

/// The index of these keys, the row of each being its place; for tests.
///
/// # Errors
/// [`TableError::DuplicateKey`], [`TableError::UnevenKeys`].
#[doc(hidden)]
pub fn index_of(keys: &[u64], seed: u64) -> Result<Vec<u8>, TableError> {
    let rows = keys.len() as u64;
    let mut bytes = vec![0; index_bytes(rows) as usize];
    let read = |first: u64, out: &mut [u64]| {
        out.copy_from_slice(&keys[first as usize..][..out.len()]);
        Ok(())
    };
    let mut scratch = Scratch::Memory(Vec::new());
    build("test", rows, seed, &read, &mut scratch, &mut |at, part| {
        bytes[at as usize..][..part.len()].copy_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

/// A key with what it is sorted by and what it leads to.
struct Entry {
    hash: u64,
    key: u64,
    row: u32,
}

/// How many keys each partition has. A partition is a range of hashes.
struct Partitions {
    sizes: Vec<u64>,
}

impl Partitions {
    /// Writes all keys with their rows to where their partition lies in `scratch`.
    fn deal(
        spread: &Spread,
        rows: u64,
        keys: Keys<'_>,
        scratch: &mut Scratch,
    ) -> Result<Partitions, Failure> {
        let count = rows.div_ceil(PARTITION_KEYS);
        let mut sizes = vec![0; count as usize];
        let partition = |key| scaled(spread.hash(key), count) as usize;
        each_key(rows, keys, |_, key| {
            sizes[partition(key)] += 1;
            Ok(())
        })?;
        let mut ends = Vec::with_capacity(sizes.len());
        let mut end = 0;
        for size in &sizes {
            ends.push(end);
            end += size * DEALT_BYTES;
        }
        let room = (DEAL_BYTES / count).min(DEAL_PARTITION_BYTES);
        let room = (room - room % DEALT_BYTES) as usize;
        let mut waiting = vec![Vec::with_capacity(room); sizes.len()];
        let mut write = |index: usize, bytes: &mut Vec<u8>| {
            scratch.write(ends[index], bytes)?;
            ends[index] += bytes.len() as u64;
            bytes.clear();
            Ok::<(), TableError>(())
        };
        each_key(rows, keys, |row, key| {
            let index = partition(key);
            let bytes = &mut waiting[index];
            bytes.extend(key.to_le_bytes());
            bytes.extend((row as u32).to_le_bytes());
            if bytes.len() == room {
                write(index, bytes)
            } else {
                Ok(())
            }
        })?;
        for (index, bytes) in waiting.iter_mut().enumerate() {
            write(index, bytes)?;
        }
        Ok(Partitions { sizes })
    }

    /// Sorts the partitions, some at a time, and fills the buckets.
    fn fill(
        &self,
        spread: &Spread,
        rows: u64,
        scratch: &Scratch,
        sink: Sink<'_>,
    ) -> Result<(), Failure> {
        let threads = thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MAX_THREADS);
        sink(0, &spread.first_line(rows))?;
        let mut filler = Filler::new(spread, rows, sink);
        let mut at = 0;
        for group in self.sizes.chunks(threads) {
            let places = group.iter().map(|&size| {
                let place = at;
                at += size * DEALT_BYTES;
                (place, size)
            });
            let sorted: Vec<Result<Vec<Entry>, Failure>> = thread::scope(|scope| {
                let work =
                    places.map(|(at, size)| scope.spawn(move || sorted(spread, scratch, at, size)));
                let work: Vec<_> = work.collect();
                let join =
                    |one: thread::ScopedJoinHandle<'_, _>| one.join().expect("a sort that ends");
                work.into_iter().map(join).collect()
            });
            for entries in sorted {
                for entry in entries? {
                    filler.push(&entry)?;
                }
            }
        }
        filler.finish()
    }
}

/// Calls `each` with every row and its key.
fn each_key(
    rows: u64,
    keys: Keys<'_>,
    mut each: impl FnMut(u64, u64) -> Result<(), TableError>,
) -> Result<(), TableError> {
    let mut piece = vec![0; KEYS_A_READ.min(rows as usize)];
    for first in (0..rows).step_by(KEYS_A_READ) {
        let piece = &mut piece[..KEYS_A_READ.min((rows - first) as usize)];
        keys(first, piece)?;
        for (row, &key) in (first..).zip(piece.iter()) {
            each(row, key)?;
        }
    }
    Ok(())
}

/// Reads a partition and sorts it by hash.
fn sorted(spread: &Spread, scratch: &Scratch, at: u64, size: u64) -> Result<Vec<Entry>, Failure> {
    let read = size.min(MOST_PARTITION_KEYS) as usize;
    let mut bytes = vec![0; read * DEALT_BYTES as usize];
    scratch.read(at, &mut bytes)?;
    let entry = |bytes: &[u8; DEALT_BYTES as usize]| {
        let (key, row) = bytes.split_at(8);
        let key = u64::from_le_bytes(key.try_into().expect("8 bytes"));
        Entry {
            hash: spread.hash(key),
            key,
            row: u32::from_le_bytes(row.try_into().expect("4 bytes")),
        }
    };
    let mut entries: Vec<Entry> = bytes.as_chunks().0.iter().map(entry).collect();
    entries.sort_unstable_by_key(|entry| entry.hash);
    // Different keys have different hashes.
    if let Some([one, other]) = entries
        .array_windows()
        .find(|[one, other]| one.hash == other.hash)
    {
        return Err(Failure::Duplicate {
            key: one.key,
            rows: [one.row, other.row],
        });
    }
    if (read as u64) < size {
        return Err(Failure::Uneven);
    }
    Ok(entries)
}

/// Fills buckets from left to right.
struct Filler<'a> {
    spread: &'a Spread,
    buckets: u64,
    /// The bucket that is being filled, and what is in it.
    at: u64,
    entries: Vec<(u64, u32)>,
    /// Full buckets that are not written yet, and where they go.
    waiting: Vec<u8>,
    place: u64,
    sink: Sink<'a>,
}

impl<'a> Filler<'a> {
    fn new(spread: &'a Spread, rows: u64, sink: Sink<'a>) -> Filler<'a> {
        Filler {
            spread,
            buckets: bucket_count(rows),
            at: 0,
            entries: Vec::with_capacity(BUCKET_KEYS),
            waiting: Vec::with_capacity(BUCKETS_A_WRITE * BUCKET_BYTES),
            place: BUCKET_BYTES as u64,
            sink,
        }
    }

    fn push(&mut self, entry: &Entry) -> Result<(), Failure> {
        let home = self.spread.home(entry.hash);
        let next = self.at + u64::from(self.entries.len() == BUCKET_KEYS);
        let place = home.max(next);
        if place - home > MAX_REACH || place >= self.buckets {
            return Err(Failure::Uneven);
        }
        while self.at < place {
            self.close(home <= self.at)?;
        }
        self.entries.push((entry.key, entry.row));
        Ok(())
    }

    /// Goes on to the next bucket.
    fn close(&mut self, overflowed: bool) -> Result<(), TableError> {
        self.waiting.extend(bucket(&self.entries, overflowed));
        self.entries.clear();
        self.at += 1;
        if self.waiting.len() == BUCKETS_A_WRITE * BUCKET_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), TableError> {
        (self.sink)(self.place, &self.waiting)?;
        self.place += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        while self.at < self.buckets {
            self.close(false)?;
        }
        Ok(self.write()?)
    }
}
