//! The index of a hashed table: from keys, which are any u64, to row numbers.
//!
//! Buckets of one cache line hold five keys each, in the order of the keys' hashes, as if each key were
//! put into its home bucket or the next one with room. So a key is found in its home or, through
//! buckets that say so, soon behind it. `FORMAT.md` describes every byte, [`build`](crate::index_build)
//! makes an index, and this file checks it and looks keys up.

use rowmill_arena::prefetch_read;

use std::hint::select_unpredictable;

use crate::mix::word;

/// Bytes of a bucket: a cache line.
pub(crate) const BUCKET_BYTES: usize = 64;
/// Keys that a bucket has room for: 8 bytes each, 4 for the row number, and 4 for the whole.
pub(crate) const BUCKET_KEYS: usize = 5;
/// Most buckets between a key's home and its place. At three quarters of the room taken, keys wait for
/// room like customers of a queue that is busy three quarters of the time: more than 5 x d keys wait
/// with probability exp(-0.55 x 5 x d), which for 16 buckets is below 10^-18.
pub(crate) const MAX_REACH: u64 = 16;
/// Ids that are hashed, and their buckets asked for, before the first of them is looked at: some 70 lines in
/// flight cover 170 ns of latency at 26 GB/s, and more are asked for since they come in bursts.
const GROUP: usize = 128;

const ROWS_AT: usize = BUCKET_KEYS * 8;
const META_AT: usize = ROWS_AT + BUCKET_KEYS * 4;
const _: () = assert!(META_AT + 4 == BUCKET_BYTES);
/// The bit of a bucket's last word that says that a key went on to the next bucket.
const OVERFLOWED: u32 = 0x100;

const MAGIC: &[u8; 8] = b"ROWMILLI";

pub(crate) type Bucket = [u8; BUCKET_BYTES];

/// Bytes of the index of `rows` keys, its first line with the seed included.
#[doc(hidden)]
pub fn index_bytes(rows: u64) -> u64 {
    (1 + bucket_count(rows)) * BUCKET_BYTES as u64
}

/// Buckets that keys have their home in: three quarters of their room is for keys.
fn home_count(rows: u64) -> u64 {
    (rows * 4).div_ceil(3 * BUCKET_KEYS as u64)
}

/// All buckets: behind the homes there is room for what the last of them can't take.
pub(crate) fn bucket_count(rows: u64) -> u64 {
    home_count(rows) + MAX_REACH.min(rows.div_ceil(BUCKET_KEYS as u64))
}

/// How keys are spread over the buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spread {
    seed: u64,
    before: u64,
    between: u64,
    homes: u64,
}

impl Spread {
    pub(crate) fn new(rows: u64, seed: u64) -> Spread {
        Spread {
            seed,
            before: word(seed, 0),
            between: word(seed, 1),
            homes: home_count(rows),
        }
    }

    /// The hash of a key. Each step can be undone, so that keys of one hash are the same.
    pub(crate) fn hash(&self, key: u64) -> u64 {
        let mut bits = key ^ self.before;
        bits = (bits ^ (bits >> 32)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = bits.wrapping_add(self.between);
        bits = (bits ^ (bits >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 32)
    }

    /// The bucket in which keys of this hash have their home; grows with the hash.
    pub(crate) fn home(&self, hash: u64) -> u64 {
        scaled(hash, self.homes)
    }

    /// The first line of an index.
    pub(crate) fn first_line(&self, rows: u64) -> Bucket {
        let mut line = [0; BUCKET_BYTES];
        line[..8].copy_from_slice(MAGIC);
        line[8..16].copy_from_slice(&self.seed.to_le_bytes());
        line[16..24].copy_from_slice(&bucket_count(rows).to_le_bytes());
        line
    }
}

/// `hash`, of 64 bits, as a number below `end`: evenly spread and in the same order.
pub(crate) fn scaled(hash: u64, end: u64) -> u64 {
    ((u128::from(hash) * u128::from(end)) >> 64) as u64
}

/// Puts a bucket together from at most five keys with their rows.
pub(crate) fn bucket(entries: &[(u64, u32)], overflowed: bool) -> Bucket {
    let mut bytes = [0; BUCKET_BYTES];
    for (slot, (key, row)) in entries.iter().enumerate() {
        bytes[slot * 8..][..8].copy_from_slice(&key.to_le_bytes());
        bytes[ROWS_AT + slot * 4..][..4].copy_from_slice(&row.to_le_bytes());
    }
    let meta = entries.len() as u32 | if overflowed { OVERFLOWED } else { 0 };
    bytes[META_AT..].copy_from_slice(&meta.to_le_bytes());
    bytes
}

fn key(bucket: &Bucket, slot: usize) -> u64 {
    u64::from_le_bytes(bucket.as_chunks().0[slot])
}

/// The row in a slot; with [`NOWHERE`] a number that is none.
fn row(bucket: &Bucket, slot: usize) -> u32 {
    u32::from_le_bytes(bucket.as_chunks().0[ROWS_AT / 4 + slot])
}

fn meta(bucket: &Bucket) -> u32 {
    u32::from_le_bytes(bucket.as_chunks().0[META_AT / 4])
}

/// The keys of a checked bucket, with their rows.
pub(crate) fn entries(bucket: &Bucket) -> impl Iterator<Item = (u64, u32)> {
    let count = (meta(bucket) & !OVERFLOWED) as usize;
    (0..count.min(BUCKET_KEYS)).map(|slot| (key(bucket, slot), row(bucket, slot)))
}

/// What [`slot_of`] gives for a key that is not in a bucket.
const NOWHERE: usize = BUCKET_KEYS;

/// The slot of a key in a bucket, or [`NOWHERE`]. There is no branch in it: whether a key is in its home
/// bucket can't be foretold, and a branch foretold wrongly costs as much as all the rest.
#[inline]
fn slot_of(bucket: &Bucket, id: u64) -> usize {
    // The lowest slot with these eight bytes. Slots without a key hold zeros and lie behind those with one,
    // so that they are not taken for key 0.
    let mut slot = NOWHERE;
    for at in (0..BUCKET_KEYS).rev() {
        slot = select_unpredictable(key(bucket, at) == id, at, slot);
    }
    let count = (meta(bucket) & !OVERFLOWED) as usize;
    select_unpredictable(slot < count, slot, NOWHERE)
}

/// What follows from an index's first line and from a look at all of its buckets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    spread: Spread,
    /// Most buckets between a key's home and its place.
    reach: u64,
}

impl Index {
    /// Reads the first line of the index of `rows` keys, whose length is `index_bytes(rows)`. The
    /// buckets are for [`check_buckets`](Self::check_buckets).
    ///
    /// # Errors
    /// A phrase that continues "its index ...".
    pub(crate) fn parse(line: &Bucket, rows: u64) -> Result<Index, String> {
        if &line[..8] != MAGIC {
            return Err("does not start with ROWMILLI".into());
        }
        let word = |at: usize| u64::from_le_bytes(line.as_chunks().0[at / 8]);
        if word(16) != bucket_count(rows) {
            return Err(format!(
                "has {} buckets instead of {}",
                word(16),
                bucket_count(rows)
            ));
        }
        let spread = Spread::new(rows, word(8));
        if *line != spread.first_line(rows) {
            return Err("has bytes that must be zero and are not".into());
        }
        Ok(Index {
            spread,
            reach: MAX_REACH,
        })
    }

    /// Checks an index of which all bytes are here; gives it with the reach that it has.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn check(bytes: &[u8], rows: u64) -> Result<Index, String> {
        let (lines, rest) = bytes.as_chunks();
        let (Some((first, buckets)), true) = (lines.split_first(), rest.is_empty()) else {
            return Err(format!("has {} bytes", bytes.len()));
        };
        let index = Index::parse(first, rows)?;
        if buckets.len() as u64 != bucket_count(rows) {
            return Err(format!("has {} bytes", bytes.len()));
        }
        let found = index.check_buckets(buckets, 0, None, rows)?;
        index.checked(found, rows)
    }

    /// Checks buckets from number `first` on, `previous` being the one before them.
    ///
    /// That each key can be found follows from looking at neighbours: where a key lies behind its
    /// home, the bucket before is full and says that keys went on; the keys in it have smaller hashes,
    /// so those of them that don't lie in their home either ask the same of the bucket before it.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn check_buckets(
        &self,
        buckets: &[Bucket],
        first: u64,
        previous: Option<&Bucket>,
        rows: u64,
    ) -> Result<Found, String> {
        let mut found = Found::default();
        let mut last = previous.and_then(|bucket| {
            let (key, _) = entries(bucket).last()?;
            Some(self.spread.hash(key))
        });
        let mut overflowed = previous.is_some_and(|bucket| meta(bucket) & OVERFLOWED != 0);
        for (number, bucket) in (first..).zip(buckets) {
            let meta = meta(bucket);
            let count = (meta & !OVERFLOWED) as usize;
            if count > BUCKET_KEYS {
                return Err(format!("has an impossible bucket {number}"));
            }
            let mut displaced = false;
            for slot in 0..count {
                let (key, row) = (key(bucket, slot), row(bucket, slot));
                let hash = self.spread.hash(key);
                if last >= Some(hash) {
                    return Err(format!(
                        "has key {key} twice or out of order in bucket {number}"
                    ));
                }
                last = Some(hash);
                let home = self.spread.home(hash);
                if home > number || number - home > MAX_REACH || (home < number && !overflowed) {
                    return Err(format!(
                        "has key {key} where it is not found, in bucket {number}"
                    ));
                }
                if u64::from(row) >= rows {
                    return Err(format!("leads from key {key} to row {row} of {rows}"));
                }
                displaced |= slot == 0 && home < number;
                found.reach = found.reach.max(number - home);
            }
            let empty =
                (count..BUCKET_KEYS).all(|slot| key(bucket, slot) == 0 && row(bucket, slot) == 0);
            if !empty {
                return Err(format!("has more in bucket {number} than it says"));
            }
            if overflowed != displaced {
                return Err(format!(
                    "is wrong about keys that went on to bucket {number}"
                ));
            }
            overflowed = meta & OVERFLOWED != 0;
            if overflowed && count < BUCKET_KEYS {
                return Err(format!(
                    "has room in bucket {number}, which says it has none"
                ));
            }
            found.keys += count as u64;
        }
        if overflowed && first + buckets.len() as u64 == bucket_count(rows) {
            return Err("goes on behind its end".into());
        }
        Ok(found)
    }

    /// The index when all of its buckets have been looked at.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    pub(crate) fn checked(self, found: Found, rows: u64) -> Result<Index, String> {
        if found.keys != rows {
            return Err(format!("has {} keys instead of {rows}", found.keys));
        }
        Ok(Index {
            reach: found.reach,
            ..self
        })
    }

    /// Writes the row of each id to its place in `out`, and `missing` for ids that there are not. Gives
    /// the position of the first such id if `missing` is `None`. `bytes` are those that were checked.
    pub(crate) fn resolve(
        &self,
        bytes: &[u8],
        ids: &[u64],
        out: &mut [u32],
        missing: Option<u32>,
    ) -> Result<(), usize> {
        assert_eq!(ids.len(), out.len(), "a row for each id");
        let (lines, _) = bytes.as_chunks();
        let buckets: &[Bucket] = &lines[1..];
        // While a group is looked up, the buckets of the next are on their way, and so are those behind the
        // buckets that lacked an id of the group before.
        let mut homes = [[0; GROUP]; 2];
        let mut later = [Later::default(), Later::default()];
        let mut first_missing = usize::MAX;
        self.ask(buckets, &ids[..ids.len().min(GROUP)], &mut homes[0]);
        for (number, group) in ids.chunks(GROUP).enumerate() {
            let (start, now) = (number * GROUP, number % 2);
            let next = &ids[start + group.len()..];
            self.ask(buckets, &next[..next.len().min(GROUP)], &mut homes[1 - now]);
            let rows = &mut out[start..][..group.len()];
            let mut lacking = 0;
            for (at, ((&id, found), &home)) in group.iter().zip(rows).zip(&homes[now]).enumerate() {
                let bucket = &buckets[home as usize];
                let slot = slot_of(bucket, id);
                *found = row(bucket, slot);
                // Every id is noted, and the next over it unless it was lacking: no branch here either.
                later[now].places[lacking % GROUP] = (start + at, home);
                lacking += usize::from(slot == NOWHERE);
            }
            later[now].len = lacking;
            later[now].ask(buckets);
            let missed = later[1 - now].finish(self.reach, buckets, ids, out, missing);
            first_missing = first_missing.min(missed);
        }
        for later in &mut later {
            let missed = later.finish(self.reach, buckets, ids, out, missing);
            first_missing = first_missing.min(missed);
        }
        if first_missing == usize::MAX {
            Ok(())
        } else {
            Err(first_missing)
        }
    }

    /// Asks for the home buckets of up to a group of ids.
    fn ask(&self, buckets: &[Bucket], ids: &[u64], homes: &mut [u32; GROUP]) {
        for (home, &id) in homes.iter_mut().zip(ids) {
            *home = self.spread.home(self.spread.hash(id)) as u32;
            prefetch_read(buckets.as_flattened(), *home as usize * BUCKET_BYTES);
        }
    }
}

/// Checks `bytes` as the index of `rows` keys and looks each of its keys up; for tests with bytes of any
/// kind. Gives the keys and their rows.
///
/// # Errors
/// A phrase that continues "its index ...".
///
/// # Panics
/// If a checked index does not lead from one of its keys to the row beside it, or invents others.
#[doc(hidden)]
pub fn check_index(bytes: &[u8], rows: u64) -> Result<Vec<(u64, u32)>, String> {
    let index = Index::check(bytes, rows)?;
    let all: Vec<(u64, u32)> = bytes.as_chunks().0[1..].iter().flat_map(entries).collect();
    let keys: Vec<u64> = all.iter().map(|&(key, _)| key).collect();
    let mut found = vec![0; keys.len()];
    assert_eq!(index.resolve(bytes, &keys, &mut found, None), Ok(()));
    assert!(all.iter().zip(&found).all(|((_, row), found)| row == found));
    assert_eq!(all.len() as u64, rows);
    Ok(all)
}

/// What was seen of an index's buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    keys: u64,
    reach: u64,
}

impl Found {
    /// Both together.
    pub(crate) fn with(self, other: Found) -> Found {
        Found {
            keys: self.keys + other.keys,
            reach: self.reach.max(other.reach),
        }
    }
}

/// Ids of a group that are not in their home buckets, and those buckets.
struct Later {
    len: usize,
    /// Position of the id, and its home.
    places: [(usize, u32); GROUP],
}

impl Default for Later {
    fn default() -> Later {
        Later {
            len: 0,
            places: [(0, 0); GROUP],
        }
    }
}

impl Later {
    /// Asks for the buckets behind their homes.
    fn ask(&self, buckets: &[Bucket]) {
        for &(_, home) in &self.places[..self.len] {
            prefetch_read(buckets.as_flattened(), (home as usize + 1) * BUCKET_BYTES);
        }
    }

    /// Looks all of them up; gives the position of the first that is missing, or `usize::MAX`.
    fn finish(
        &mut self,
        reach: u64,
        buckets: &[Bucket],
        ids: &[u64],
        out: &mut [u32],
        missing: Option<u32>,
    ) -> usize {
        let mut first_missing = usize::MAX;
        for &(at, home) in &self.places[..self.len] {
            let mut found = None;
            let mut behind = buckets[home as usize..].windows(2).take(reach as usize);
            while let Some([bucket, next]) = behind.next()
                && found.is_none()
                && meta(bucket) & OVERFLOWED != 0
            {
                found = match slot_of(next, ids[at]) {
                    NOWHERE => None,
                    slot => Some(row(next, slot)),
                };
            }
            match found.or(missing) {
                Some(row) => out[at] = row,
                None => first_missing = first_missing.min(at),
            }
        }
        self.len = 0;
        first_missing
    }
}
