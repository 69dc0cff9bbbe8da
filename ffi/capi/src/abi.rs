//! What the header declares beside functions: statuses, constants and structs, by their names in C.
//!
//! Structs whose first field is `size` grow at their end: see `input.rs`.
#![allow(non_camel_case_types, unreachable_pub)]

use core::ffi::{c_char, c_void};

/// The version that this header belongs to: major in bits 31 to 16, minor in 15 to 8, patch in 7 to 0. Compare with
/// rowmill_version(), which is that of the library.
pub const ROWMILL_VERSION: u32 = 0x0000_0100;

/// Bytes of a name, its final 0 included.
pub const ROWMILL_NAME_BYTES: usize = 136;

/// Ask for raw f32 sums: means are then not divided. A flag of rowmill_request.
pub const ROWMILL_PARTIALS: u32 = 1;

/// Make it an error where answers would have to be copied to the memory. A flag of rowmill_region_options.
pub const ROWMILL_NO_COPIES: u32 = 1;

/// Make it an error where no NIC can write to the GPU's memory, instead of copying. A flag of rowmill_gpu_options.
pub const ROWMILL_NO_STAGING: u32 = 1;

/// What functions return, and what becomes of a request. Below 0: found by this library. Above 0: said by the dataplane.
/// New ones may be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum rowmill_status {
    /// Done.
    ROWMILL_OK = 0,

    /// An argument is wrong: nothing was sent, nothing has changed.
    ROWMILL_INVALID = -1,
    /// There is no connection to be had.
    ROWMILL_CONNECT = -2,
    /// The connection has ended: connect again.
    ROWMILL_CLOSED = -3,
    /// The client was connected by the process that this one was forked from: connect again in this one.
    ROWMILL_FORKED = -4,
    /// All slots or all room for ids are in use: take answers, then try again.
    ROWMILL_AGAIN = -5,
    /// The time was over before the answer came. What was waited for goes on: a request is still in flight; what a call that asks
    /// the dataplane (rowmill_bind() and others) is answered later is given back.
    ROWMILL_TIMEOUT = -6,
    /// A call to a GPU's driver has failed, or a stream went on without its answer.
    ROWMILL_DEVICE = -7,
    /// The operating system or the dataplane did what it should not.
    ROWMILL_SYSTEM = -8,
    /// A mistake of this library.
    ROWMILL_INTERNAL = -9,

    /// The worker has no free slot: try again after a pause.
    ROWMILL_BUSY = 1,
    /// The deadline passed before the work was done.
    ROWMILL_EXPIRED = 2,
    /// Cancelled by rowmill_cancel().
    ROWMILL_CANCELLED = 3,
    /// The dataplane is shutting down: connect to another one.
    ROWMILL_DRAINING = 4,
    /// The wanted generation is not there (yet): take the newest, or try again.
    ROWMILL_RETRY = 5,
    /// The message is malformed.
    ROWMILL_MALFORMED = 16,
    /// The protocol's version is not supported.
    ROWMILL_UNSUPPORTED_VERSION = 17,
    /// The operation, flag or type is not supported.
    ROWMILL_UNSUPPORTED = 18,
    /// The request exceeds a limit of the dataplane.
    ROWMILL_TOO_LARGE = 19,
    /// The schema is not bound on this connection.
    ROWMILL_UNKNOWN_SCHEMA = 32,
    /// The model has no table of that name.
    ROWMILL_UNKNOWN_TABLE = 33,
    /// The request's features are not those of the schema.
    ROWMILL_UNKNOWN_FEATURE = 34,
    /// Two outputs of the schema overlap.
    ROWMILL_OVERLAPPING_OUTPUTS = 35,
    /// The lengths do not add up to the number of ids.
    ROWMILL_LENGTHS_MISMATCH = 36,
    /// An id is not in the table.
    ROWMILL_ID_OUT_OF_RANGE = 37,
    /// An id is negative.
    ROWMILL_ID_NEGATIVE = 38,
    /// Weights are missing, or sent for features that take none.
    ROWMILL_WEIGHTS_MISMATCH = 39,
    /// An id is not among those of the hashed table.
    ROWMILL_UNKNOWN_ID = 40,
    /// A feature that is not pooled has more ids than its block holds.
    ROWMILL_BLOCK_OVERFLOW = 41,
    /// The region is not registered on this connection.
    ROWMILL_UNKNOWN_REGION = 48,
    /// The target does not lie inside its region.
    ROWMILL_TARGET_OUT_OF_REGION = 49,
    /// The target is misaligned.
    ROWMILL_TARGET_MISALIGNED = 50,
    /// A segment does not lie inside its region.
    ROWMILL_SEGMENT_OUT_OF_REGION = 51,
    /// The region's memory is gone.
    ROWMILL_REGION_LOST = 52,
    /// The region is not sealed against shrinking and growing.
    ROWMILL_REGION_UNSEALED = 53,
    /// The region cannot be mapped.
    ROWMILL_REGION_REFUSED = 54,
    /// A limit of the connection or the dataplane is reached.
    ROWMILL_LIMIT_REACHED = 55,
    /// The region was not registered for this.
    ROWMILL_REGION_FORBIDDEN = 56,
    /// The table is unavailable.
    ROWMILL_UNAVAILABLE = 64,
    /// A mistake of the dataplane.
    ROWMILL_SERVER_INTERNAL = 65,
    /// What the dataplane sends does not arrive.
    ROWMILL_TRANSPORT_FAILED = 66,
    /// A row could not be fetched from where its table lies: try again, unless it is damaged there.
    ROWMILL_ROW_UNAVAILABLE = 67,
}

/// What becomes of a bag's rows: the pooling of a rowmill_feature.
#[repr(C)]
pub enum rowmill_pooling {
    /// The sum of the rows.
    ROWMILL_SUM = 0,
    /// The sum divided by the bag's length.
    ROWMILL_MEAN = 1,
    /// The sum of each row times its weight.
    ROWMILL_WEIGHTED_SUM = 2,
    /// The weighted sum divided by the sum of the weights.
    ROWMILL_WEIGHTED_MEAN = 3,
    /// The greatest value of each dimension.
    ROWMILL_MAX = 4,
    /// The rows themselves, one for each id, in a block of their own.
    ROWMILL_NO_POOLING = 5,
}

/// The type of a vector's elements: the output of a rowmill_feature.
#[repr(C)]
pub enum rowmill_output {
    /// 32-bit floats.
    ROWMILL_F32 = 0,
    /// IEEE 754 binary16.
    ROWMILL_F16 = 1,
    /// bfloat16.
    ROWMILL_BF16 = 2,
}

/// How rowmill_wait() waits: a choice of rowmill_options.
#[repr(C)]
pub enum rowmill_waiting {
    /// Polls for a while (about 0.1 ms), then lets others run, then sleeps.
    ROWMILL_WAIT_BLOCK = 0,
    /// Polls all the time: the lowest latency, for a thread that has a core to itself.
    ROWMILL_WAIT_POLL = 1,
    /// Sleeps at once: the least processor time.
    ROWMILL_WAIT_SLEEP = 2,
}

/// How answers come to the memory of a region: the way of a rowmill_region_info.
#[repr(C)]
pub enum rowmill_way {
    /// The dataplane, or its NIC, writes them there.
    ROWMILL_WAY_DIRECT = 0,
    /// The dataplane writes them to memory of this library, from where rowmill_wait() and rowmill_poll() copy them.
    ROWMILL_WAY_COPIED = 1,
}

/// How the ids of a rowmill_batch lie in memory.
#[repr(C)]
pub enum rowmill_batch_layout {
    /// Each feature has a part of its own, in the schema's order.
    ROWMILL_BY_FEATURE = 0,
    /// There is one part with the ids of all features (columns), as in a KeyedJaggedTensor: first all bags of column 0, then
    /// those of column 1 and so on.
    ROWMILL_TENSOR = 1,
}

/// A connection. All threads may use it.
pub struct rowmill_client {
    _private: [u8; 0],
}

/// The features that requests have, and where their vectors lie in answers. All threads may use it.
pub struct rowmill_schema {
    _private: [u8; 0],
}

/// Memory that answers are placed in. All threads may use it.
pub struct rowmill_region {
    _private: [u8; 0],
}

/// A GPU in whose memory answers are placed. All threads may use it.
pub struct rowmill_gpu {
    _private: [u8; 0],
}

/// Names a request until its answer is taken; unique in the process, never 0.
pub type rowmill_ticket = u64;

/// Choices for a connection. What is 0 or NULL has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_options {
    /// sizeof(rowmill_options).
    pub size: u32,
    /// Requests wanted in flight on each worker; the dataplane may grant fewer. The default is 8.
    pub credits: u32,
    /// The client's name in the dataplane's logs and status page, in UTF-8.
    pub name: *const c_char,
    /// Bytes for the ids of requests in flight that are too large for a frame (8 KiB); at most half of what the dataplane lets regions have is taken. The default is 16 MiB.
    pub source_bytes: u64,
    /// Microseconds to wait for the dataplane's answer when connecting, binding, registering. The default is 10 s.
    pub reply_limit_us: u64,
    /// How rowmill_wait() waits: a rowmill_waiting.
    pub waiting: u32,
    /// 0.
    pub reserved: u32,
}

/// What a dataplane serves.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_server {
    /// sizeof(rowmill_server), set by the caller.
    pub size: u32,
    /// Its workers, over which a request is split by bags.
    pub workers: u32,
    /// Requests of this client that can be in flight on each worker.
    pub credits: u32,
    /// 0.
    pub reserved: u32,
    /// The newest generation that it has told of.
    pub generation: u64,
    /// Bytes of the largest region that can be had now: what the dataplane grants this client, less what its regions have.
    pub max_region: u64,
    /// The model's name in UTF-8, with a 0 behind it; cut where it is longer.
    pub model: [c_char; ROWMILL_NAME_BYTES],
}

/// A table of the model.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_table {
    /// sizeof(rowmill_table), set by the caller in the first one.
    pub size: u32,
    /// Elements of a row.
    pub dim: u32,
    /// Rows that ids can name.
    pub rows: u64,
    /// Row format: 0 f32, 1 int8 with scale and bias as f32, 2 f16, 3 bf16, 4 int8 with scale and bias as f16, 5 int4.
    pub format: u32,
    /// What ids name rows by: 0 their numbers, 1 any 64-bit number.
    pub kind: u32,
    /// Its name in UTF-8, with a 0 behind it.
    pub name: [c_char; ROWMILL_NAME_BYTES],
}

/// A feature of a schema.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_feature {
    /// sizeof(rowmill_feature).
    pub size: u32,
    /// How its bags are pooled: a rowmill_pooling.
    pub pooling: u32,
    /// The type of its vectors' elements: a rowmill_output.
    pub output: u32,
    /// Most ids of a request, where it is not pooled; else 0.
    pub max_ids: u32,
    /// The caller's name for it, for messages; in UTF-8, at most 128 bytes.
    pub name: *const c_char,
    /// The table that its ids are looked up in.
    pub table: *const c_char,
    /// Bytes from the target's start to the vector of bag 0, or of the first id where it is not pooled.
    pub offset: u64,
    /// Bytes from one vector to the next. Where it is 0 in all features, the vectors of a bag lie side by side in one row,
    /// in the schema's order.
    pub stride: u64,
}

/// Where a feature's vectors lie in answers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_layout {
    /// sizeof(rowmill_layout), set by the caller.
    pub size: u32,
    /// Elements of a vector.
    pub dim: u32,
    /// Bytes of an element.
    pub element_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// Bytes from the target's start to the first vector.
    pub offset: u64,
    /// Bytes from one vector to the next.
    pub stride: u64,
}

/// The ids of a feature, or of all features of a tensor, divided into bags. The arrays need no alignment.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_jagged {
    /// sizeof(rowmill_jagged).
    pub size: u32,
    /// Bits of an id: 32 or 64. Ids are signed or not. Negative ones are refused by dense tables. For a hashed table, whose ids are
    /// any 64-bit numbers, an id of 32 bits stands for the number with 32 zero bits before it.
    pub id_bits: u32,
    /// Bits of a length or offset: 32 or 64; they are signed.
    pub division_bits: u32,
    /// 0.
    pub reserved: u32,
    /// The ids, one bag after another. NULL where there are none.
    pub ids: *const c_void,
    /// How many ids.
    pub n_ids: u64,
    /// The length of each bag; NULL where there are offsets.
    pub lengths: *const c_void,
    /// Where each bag begins, and where the last one ends; NULL where there are lengths.
    pub offsets: *const c_void,
    /// How many lengths (one for each bag), or how many offsets (one more).
    pub n_divisions: u64,
    /// A weight for each id, where the pooling is weighted; else NULL.
    pub weights: *const f32,
}

/// The ids of a request.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_batch {
    /// sizeof(rowmill_batch).
    pub size: u32,
    /// Bags of each feature, at least 1.
    pub bags: u32,
    /// How the parts lie in memory: a rowmill_batch_layout.
    pub layout: u32,
    /// How many parts: one for each feature of the schema; 1 of a tensor.
    pub n_parts: u32,
    /// The parts.
    pub parts: *const rowmill_jagged,
    /// Of a tensor: which column each feature of the schema takes, counted from 0; NULL where it is the one with its own
    /// number.
    pub columns: *const u32,
    /// How many numbers there are in `columns`: the schema's features, or 0.
    pub n_columns: u32,
    /// 0.
    pub reserved: u32,
}

/// Where an answer is placed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_target {
    /// sizeof(rowmill_target).
    pub size: u32,
    /// 0.
    pub reserved: u32,
    /// The region.
    pub region: *mut rowmill_region,
    /// Bytes from its start; a multiple of the largest element's bytes.
    pub offset: u64,
}

/// Choices for a request. What is 0 has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_request {
    /// sizeof(rowmill_request).
    pub size: u32,
    /// ROWMILL_PARTIALS or 0.
    pub flags: u32,
    /// The generation wanted; 0 for the newest.
    pub generation: u64,
    /// Microseconds for which anybody will want the answer, from the dataplane's receipt on; 0 for no limit.
    pub deadline_us: u64,
    /// Microseconds for which rowmill_submit() waits for a slot, and for room for ids, where requests in flight have all of them; 0
    /// to be told ROWMILL_AGAIN at once. Not for streams, where it has to be 0.
    pub wait_us: u64,
}

/// The end of a request.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_answer {
    /// sizeof(rowmill_answer), set by the caller.
    pub size: u32,
    /// ROWMILL_OK where all vectors are in place; else why not, a rowmill_status. Some may have been placed.
    pub status: i32,
    /// Which request.
    pub ticket: rowmill_ticket,
    /// The generation of the rows.
    pub generation: u64,
    /// Nanoseconds from the dataplane's receipt to its end of the work.
    pub service_ns: u64,
    /// The feature that the status is about, counted from 0; UINT32_MAX where it is about none.
    pub feature: u32,
    /// The bag or id of that feature that the status is about, counted from 0; UINT32_MAX where it is about none.
    pub position: u32,
}

/// Choices for memory of the caller's. What is 0 has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_region_options {
    /// sizeof(rowmill_region_options).
    pub size: u32,
    /// ROWMILL_NO_COPIES or 0.
    pub flags: u32,
}

/// A region as it is.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_region_info {
    /// sizeof(rowmill_region_info), set by the caller.
    pub size: u32,
    /// How answers come there: a rowmill_way.
    pub way: u32,
    /// 1 where the memory is the caller's, 0 where rowmill_region_create() has made it.
    pub callers: u32,
    /// 0.
    pub reserved: u32,
    /// Where it begins.
    pub memory: *mut c_void,
    /// Its size.
    pub bytes: u64,
}

/// Choices for a GPU. What is 0 or NULL has its default.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct rowmill_gpu_options {
    /// sizeof(rowmill_gpu_options).
    pub size: u32,
    /// The GPU's number, as CUDA counts.
    pub ordinal: i32,
    /// ROWMILL_NO_STAGING or 0.
    pub flags: u32,
    /// Most answers on their way. The default is 16.
    pub requests: u32,
    /// The CUDA driver's library, in UTF-8. The default is what the environment variable ROWMILL_CUDA_LIBRARY names, or else
    /// "libcuda.so.1".
    pub library: *const c_char,
    /// Bytes of pinned memory for answers on their way. The default is 64 MiB.
    pub staging_bytes: u64,
    /// Microseconds after which a stream goes on without an answer. The default is 10 s.
    pub limit_us: u64,
}
