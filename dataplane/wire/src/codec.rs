//! Little-endian reading and writing at a cursor.

use crate::limits::MAX_NAME;
use crate::status::{Refusal, Status};

/// Reads values from a message, refusing it as malformed where it ends too early.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

fn malformed() -> Refusal {
    Refusal::whole(Status::Malformed)
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0 }
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Refusal> {
        let end = self.at.checked_add(len).ok_or_else(malformed)?;
        let part = self.bytes.get(self.at..end).ok_or_else(malformed)?;
        self.at = end;
        Ok(part)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        Ok(self.take(N)?.try_into().expect("take gives N bytes"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Refusal> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Refusal> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Refusal> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Refusal> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// Reserved bytes, which must be zero so that a later version can give them a meaning.
    pub(crate) fn zeros(&mut self, len: usize) -> Result<(), Refusal> {
        if self.take(len)?.iter().all(|&b| b == 0) {
            Ok(())
        } else {
            Err(malformed())
        }
    }

    /// A string: u16 length, then UTF-8. More than `max` bytes are too large.
    pub(crate) fn text(&mut self, max: usize) -> Result<String, Refusal> {
        let len = usize::from(self.u16()?);
        if len > max {
            return Err(Refusal::whole(Status::TooLarge));
        }
        let bytes = self.take(len)?;
        core::str::from_utf8(bytes)
            .map(str::to_owned)
            .map_err(|_| malformed())
    }

    /// Ends the message: bytes left over make it malformed.
    pub(crate) fn end(self) -> Result<(), Refusal> {
        if self.at == self.bytes.len() {
            Ok(())
        } else {
            Err(malformed())
        }
    }
}

/// Appends values to a control message.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_le_bytes());
    }

    pub(crate) fn zeros(&mut self, len: usize) {
        self.bytes.resize(self.bytes.len() + len, 0);
    }

    /// A name that the receiver looks up. One longer than [`MAX_NAME`] must not become another name by
    /// being cut, so it is written as `MAX_NAME + 1` bytes, which every receiver refuses.
    pub(crate) fn name(&mut self, value: &str) {
        let bytes = value.as_bytes();
        let len = bytes.len().min(MAX_NAME + 1);
        self.u16(len as u16);
        self.bytes.extend(&bytes[..len]);
    }

    /// A text for people, cut to the longest prefix of at most `max` bytes.
    pub(crate) fn text(&mut self, value: &str, max: usize) {
        let cut = (0..=value.len().min(max))
            .rev()
            .find(|&i| value.is_char_boundary(i))
            .unwrap_or(0);
        self.u16(cut as u16);
        self.bytes.extend(&value.as_bytes()[..cut]);
    }
}
