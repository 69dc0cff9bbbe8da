//! Memory of the caller's on the host.

use core::fmt;
use core::ptr::NonNull;
use std::fs;

use rowmill_client::{ClientError, Window};

use crate::error::Error;

/// What an element of an answer can have at most, so that all of them are aligned where the memory is.
const ALIGNED: u64 = 4;

/// A range of the caller's memory.
#[derive(Clone, Copy)]
pub(crate) struct CallersMemory {
    start: NonNull<u8>,
    bytes: u64,
}

// SAFETY: it is an address and a length. What is there is accessed by copies, under the contract of who made it.
unsafe impl Send for CallersMemory {}
// SAFETY: as above.
unsafe impl Sync for CallersMemory {}

impl CallersMemory {
    /// Bytes that can be there.
    pub(crate) fn new(start: NonNull<u8>, bytes: u64) -> Result<CallersMemory, Error> {
        let memory = CallersMemory { start, bytes };
        let address = memory.address();
        if bytes == 0 {
            return Err(Error::invalid(
                "a region of 0 bytes; rowmill_answer_bytes() tells how many an answer takes",
            ));
        }
        if !address.is_multiple_of(ALIGNED) {
            let element = ALIGNED;
            return Err(ClientError::AddressMisaligned { address, element }.into());
        }
        let end = address.checked_add(bytes);
        if end.is_none_or(|end| end > isize::MAX as u64) {
            return Err(Error::invalid(format!(
                "{bytes} bytes from {address:#x} on are more than there is memory; give their number"
            )));
        }
        Ok(memory)
    }

    pub(crate) fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// All of it.
    ///
    /// # Safety
    /// It is mapped and writable for as long as the window is used.
    pub(crate) unsafe fn window(&self) -> Window<'_> {
        // SAFETY: the caller's contract, and nobody in Rust refers to it but by windows.
        unsafe { Window::from_raw(self.start, self.bytes as usize) }
    }

    pub(crate) fn overlaps(&self, other: &CallersMemory) -> bool {
        let (start, other_start) = (self.address(), other.address());
        start < other_start + other.bytes && other_start < start + self.bytes
    }

    /// Whether all of it can be written to now, as far as the kernel tells.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        match maps.is_empty() || is_writable(&maps, self.address(), self.address() + self.bytes) {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{self} can't be written to, or not all of it: it is read-only or not mapped; give memory that answers can be \
                 written to"
            ))),
        }
    }
}

impl fmt::Display for CallersMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {} bytes at {:p}", self.bytes, self.start)
    }
}

/// Whether what the kernel tells of a process' mappings, in the order of their addresses, has all bytes from `from` to `to` as
/// writable ones.
fn is_writable(maps: &str, from: u64, to: u64) -> bool {
    let mut reached = from;
    for line in maps.lines() {
        let Some((range, rest)) = line.split_once(' ') else {
            continue;
        };
        let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
        let range = range.split_once('-');
        let range = range.and_then(|(start, end)| Some(hexadecimal(start)?..hexadecimal(end)?));
        if let Some(range) = range
            && range.contains(&reached)
        {
            if !rest[1..].starts_with('w') {
                return false;
            }
            reached = range.end;
        }
        if reached >= to {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 [heap]
3000-4000 rw-s 00000000 00:01 7 /memfd:x
4000-5000 r--p 00000000 00:01 8 /lib/x.so
6000-7000 -w-p 00000000 00:00 0
";

    #[test]
    fn memory_is_writable_where_all_of_its_mappings_are() {
        for (from, to, is) in [
            (0x1000, 0x3000, true),
            (0x2fff, 0x4000, true),
            (0x2fff, 0x4001, false),
            (0x4000, 0x4001, false),
            (0x5000, 0x5001, false),
            (0x6000, 0x7001, false),
            (0x6800, 0x7000, true),
            (0x0fff, 0x1001, false),
        ] {
            assert_eq!(is_writable(MAPS, from, to), is, "{from:#x} to {to:#x}");
        }
    }

    #[test]
    fn ranges_that_can_not_be_are_refused() {
        let start = |address| NonNull::new(core::ptr::without_provenance_mut(address));
        let made = |address, bytes| {
            let memory = CallersMemory::new(start(address).expect("no NULL"), bytes);
            memory.err().map(|error| error.text).unwrap_or_default()
        };
        assert_eq!(made(4096, 64), "");
        assert!(made(4096, 0).contains("0 bytes"));
        assert!(
            made(4098, 64).contains("address 0x1002"),
            "{}",
            made(4098, 64)
        );
        assert!(made(4096, u64::MAX).contains("more than there is memory"));
        let overlaps = |a: usize, b: usize| {
            let [a, b] = [a, b].map(|at| CallersMemory::new(start(at).expect("no NULL"), 64));
            a.expect("fine").overlaps(&b.expect("fine"))
        };
        assert!(overlaps(4096, 4096 + 60) && overlaps(4096 + 60, 4096));
        assert!(!overlaps(4096, 4096 + 64) && !overlaps(4096 + 64, 4096));
        static CONSTANT: [u32; 4] = [1, 2, 3, 4];
        let constant = NonNull::from(&CONSTANT).cast::<u8>();
        let error = CallersMemory::new(constant, 16).expect("aligned").check();
        assert!(error.is_err_and(|error| error.text.contains("read-only")));
        let mut own = [0u32; 4];
        let own = NonNull::from(&mut own).cast::<u8>();
        CallersMemory::new(own, 16)
            .expect("fine")
            .check()
            .expect("writable");
    }
}
