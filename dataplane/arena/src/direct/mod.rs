//! Files read past the page cache, by io_uring: many reads in flight, and none of them waited for.

mod answer;
mod file;
mod reader;
mod ring;

pub use answer::ReadError;
pub use file::{DirectFile, PageCache};
pub use reader::{DirectReader, FileId, ReaderOptions, SlotsTaken};

/// What O_DIRECT asks of offsets, lengths and addresses: a multiple of this many bytes, which is the page of
/// the machine and no less than the sector of any disk.
pub const DIRECT_ALIGN: usize = 4096;
