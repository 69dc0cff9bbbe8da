//! Sizes that are fixed at start.

/// The bounds of one engine. Memory an engine takes: about
/// `slots * (max_ids * 8 + max_lengths * 4)` bytes (ids and weights are 4 bytes each).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections that can be attached at a time.
    pub connections: u32,
    /// Requests in progress over all connections; one more is answered BUSY.
    pub slots: u32,
    /// Most credits of one connection.
    pub credits: u16,
    /// Most ids of one request part, over all its features.
    pub max_ids: u32,
    /// Most bags times features of one request part.
    pub max_lengths: u32,
    /// How long a micro-batch may take, in nanoseconds (DESIGN.md section 4: about 50 us).
    pub micro_batch_ns: u64,
}

impl Limits {
    /// The limits a service starts with: 262,144 ids are the 1,224 samples of the DLRM-v2 shape, and
    /// 65,536 lengths its 2,520; 32 slots of those make 72 MiB a worker.
    pub const DEFAULT: Limits = Limits {
        connections: 256,
        slots: 32,
        credits: 8,
        max_ids: 1 << 18,
        max_lengths: 1 << 16,
        micro_batch_ns: 50_000,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// Most pieces (one feature, a run of bags) of one micro-batch; bounds the list on the stack.
pub(crate) const PIECES: usize = 64;

/// Most runs of a request that wait for rows of their parked bags beside the one under way: with blocks of 256 KiB 2 MiB of results. It
/// is what one connection may keep of 16 blocks that are there for that.
pub(crate) const HELD_RUNS: usize = 8;

/// Bounds of a micro-batch in bytes of rows: at least a few rows of the largest dim, so that work
/// goes on under any measured rate; at most 4 MiB, 80 us at 50 GB/s.
pub(crate) const BATCH_BYTES: core::ops::RangeInclusive<u64> = (64 << 10)..=(4 << 20);

/// What a connection may owe, in bytes, and still have its first turn before those that have had one: the
/// smallest micro-batch, so that nobody waits longer for it than for a turn. It owes for the lengths
/// that were copied when its request came, 4 bytes each; a single sample owes some hundred bytes.
pub(crate) const FRESH_DEBT: i64 = *BATCH_BYTES.start() as i64;

/// What a turn counts for at least: the half microsecond or so that finding it and announcing what came of it take is the
/// time of about 4 KiB. Otherwise requests of empty bags, slice by slice, would keep everybody else waiting.
pub(crate) const TURN_BYTES: u64 = 4 << 10;

/// What parking a bag costs for each of its rows, and more for each that is missing, in bytes of a micro-batch: some 300 ns for a row
/// that is copied to staging, and 1.2 us more for one that is asked for, at 20 GB/s. Four bags of 20 rows, of which four are missing, took
/// 20 to 65 us.
pub(crate) const PARKED_BYTES: u64 = 6 << 10;
/// See above.
pub(crate) const MISSED_BYTES: u64 = 24 << 10;

/// While requests can go on, rows that others wait for are taken and asked for after so many micro-batches' time: a poll for
/// rows takes mostly 5 to 14 us of that.
pub(crate) const ROWS_WAIT: u64 = 1;

/// The first guess, before a rate is measured: 20 GB/s, so that half of 50 us are 0.5 MB.
pub(crate) const BYTES_PER_NS_FIRST: u64 = 20;

/// Ids of dense tables copied and bounded in one step: 32,768 ids of 8 bytes are 256 KiB, about 20 us.
pub(crate) const CHECK_IDS: usize = 1 << 15;

/// What an id of a hashed table counts in a step, in ids of dense ones: its bucket is a cache line of
/// 64 bytes or a little more from memory, where a dense id is 8 bytes of a stream.
pub(crate) const HASHED_COST: usize = 8;

/// Ids of a prefetch that a turn takes: each costs up to 20 ns, all together less than a micro-batch's 50 us.
pub(crate) const PREFETCH_IDS: u32 = 1 << 11;

/// Ids checked in a turn for the request that comes next, so that it is a request ahead of its rows. At 8
/// bytes each they are half of the smallest micro-batch, so that what the next one owes for them
/// never makes its own turn tiny.
pub(crate) const CHECK_AHEAD: usize = 1 << 12;

/// Connections looked at for a request that comes next: those without work stay in the round until
/// their turn comes, and a turn shall not walk past all 256 of them.
pub(crate) const AHEAD_CONNECTIONS: usize = 8;

const _: () = assert!(CHECK_AHEAD as u64 * 8 <= *BATCH_BYTES.start() / 2);
