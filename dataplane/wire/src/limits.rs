//! Bounds of the protocol, each with its derivation.

/// Version of the protocol. A peer with another version is refused at connect.
pub const VERSION: u16 = 3;

/// Largest request frame in bytes: one slot of a connection's request ring (DESIGN.md section 4).
pub const SLOT_BYTES: usize = 8192;

/// Slots are named by 12 bits of the immediate.
pub const MAX_SLOTS: u16 = 1 << 12;

/// Most requests that one connection may have in flight on one lane.
/// 256 slots of 8 KiB are 2 MiB a lane; the 12 bits of the immediate could name 16 times as many.
pub const MAX_CREDITS: u16 = 256;

/// Most lanes (workers) of one server: a frame counts its parts, at most one a lane, in one byte.
pub const MAX_LANES: u16 = u8::MAX as u16;

/// Most features of a schema: header, segments and 256 feature spans take 4,232 of a slot's 8,192
/// bytes, so that about half of a slot stays for inline data.
pub const MAX_FEATURES: usize = 256;

/// Most status records that one request can cause (slices, the last of which is the final one).
/// Bounds a completion queue to `credits * MAX_SLICES` records of 64 bytes.
pub const MAX_SLICES: u32 = 64;

/// Most ids of one bag. A micro-batch can't be shorter than one bag of one feature: at 512 bytes a
/// row this is 4 MiB of rows, about 150 us at the 30 GB/s of one memory channel pair; at the widest
/// rows (8 KiB) it is 64 MiB, about 2 ms, which other clients of the worker wait for.
pub const MAX_IDS_PER_BAG: u32 = 8192;

/// Most bags of a request over all its parts; far above the 700 samples of an MLPerf query.
pub const MAX_BATCH: u32 = 1 << 16;

/// Most ids of a feature that is not pooled, over all parts of a request: with the largest stride the
/// last of its vectors begins below 2^63 + 2^40, and 2^23 vectors of 128 f32 are 4 GiB.
pub const MAX_BLOCK_IDS: u32 = 1 << 23;

/// Most regions that one connection may have registered at a time.
pub const MAX_REGIONS: u32 = 16;

/// Most schemas that one connection may have bound.
pub const MAX_SCHEMAS: u32 = 16;

/// Longest name of a table or feature, in bytes.
pub const MAX_NAME: usize = 128;

/// Longest control message in bytes: 256 features of two longest names and 24 bytes each are
/// 72,704 bytes, so 128 KiB holds every schema.
pub const MAX_CONTROL_BYTES: usize = 128 << 10;

/// Largest target offset or stride that a schema may name: keeps `offset + vector * stride` from
/// overflowing 64 bits (2^40 + 2^16 * 2^40 < 2^57 for bags, 2^40 + 2^23 * 2^40 < 2^64 for ids).
pub const MAX_EXTENT: u64 = 1 << 40;

const _: () = {
    assert!(MAX_CREDITS <= MAX_SLOTS);
    assert!(crate::request::BYTES_BEFORE_INLINE_MAX <= SLOT_BYTES / 2 + 256);
    assert!(SLOT_BYTES <= u16::MAX as usize);
    assert!(MAX_FEATURES * (2 * (MAX_NAME + 2) + 24) + 64 <= MAX_CONTROL_BYTES);
    assert!(MAX_BATCH <= MAX_BLOCK_IDS);
    assert!(MAX_EXTENT as u128 * MAX_BLOCK_IDS as u128 + MAX_EXTENT as u128 * 2 < u64::MAX as u128);
};
