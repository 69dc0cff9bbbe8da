//! What a file tier reads by.

use std::fmt::Debug;

use rowmill_arena::{ArenaError, DirectReader, FileId, ReadError};

/// Called with a read's token, and its bytes or why there are none.
pub type EachRead<'a> = &'a mut dyn FnMut(u64, Result<&[u8], ReadError>);

/// Something that reads parts of files without waiting. [`DirectReader`] is the real one; tests have one that does as it is told.
pub trait Device {
    /// A file of the device.
    type File: Copy + Debug;

    /// Reads that can be in flight at a time, each of `read_bytes` at most.
    fn slots(&self) -> u32;

    /// The longest read, in bytes.
    fn read_bytes(&self) -> usize;

    /// Asks for `len` bytes of `file` from `offset` on, both multiples of a page. There is a slot for it.
    fn submit(&mut self, file: Self::File, offset: u64, len: usize, token: u64);

    /// Hands out what has come, of `most` reads at most. Returns of how many.
    ///
    /// # Errors
    /// Where the device can't be asked; what was asked for stays so.
    fn poll(&mut self, most: usize, each: EachRead<'_>) -> Result<usize, ArenaError>;
}

impl Device for DirectReader {
    type File = FileId;

    fn slots(&self) -> u32 {
        DirectReader::slots(self)
    }

    fn read_bytes(&self) -> usize {
        self.slot_bytes()
    }

    fn submit(&mut self, file: FileId, offset: u64, len: usize, token: u64) {
        let taken = DirectReader::submit(self, file, offset, len, token);
        taken.expect("a slot for each read of the tier");
    }

    fn poll(&mut self, most: usize, each: EachRead<'_>) -> Result<usize, ArenaError> {
        DirectReader::poll(self, most, each)
    }
}
