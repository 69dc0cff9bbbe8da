//! A bounded window into memory that another process may write at any moment.
//!
//! No Rust reference to the bytes is ever made: they are copied in or out, or written by kernels
//! through the raw pointer. What is read is a claim of the peer and has to be checked after the copy.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A run of bytes that stays mapped for `'a`, readable and writable, possibly shared with a peer.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    start: NonNull<u8>,
    len: usize,
    mapped: PhantomData<&'a ()>,
}

impl<'a> Window<'a> {
    /// Makes a window of `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes must stay mapped readable and writable for `'a`, and no Rust reference to them may
    /// be used while a window (or a copy of it) is.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> Window<'a> {
        Window {
            start,
            len,
            mapped: PhantomData,
        }
    }

    /// A window over private memory, borrowed mutably for as long as the window lives.
    pub fn over(bytes: &'a mut [u8]) -> Window<'a> {
        Window {
            start: NonNull::from(&mut *bytes).cast(),
            len: bytes.len(),
            mapped: PhantomData,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, for kernels and for comparing alignment.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The part of `len` bytes at `offset`, or `None` where it does not lie inside.
    pub fn part(&self, offset: usize, len: usize) -> Option<Window<'a>> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: offset <= end <= self.len, so the address lies inside the window or one past it.
        let start = unsafe { self.start.add(offset) };
        Some(Window {
            start,
            len,
            mapped: PhantomData,
        })
    }

    /// Copies bytes from `offset` on to `out`.
    ///
    /// # Panics
    /// If the range lies outside the window (the caller's mistake: ranges are checked when granted).
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let part = self
            .part(offset, out.len())
            .expect("read inside the window");
        // SAFETY: `part` spans out.len() mapped bytes; `out` is private and can't overlap them.
        unsafe { copy(part.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If the range lies outside the window.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let part = self
            .part(offset, bytes.len())
            .expect("write inside the window");
        // SAFETY: `part` spans bytes.len() mapped writable bytes; `bytes` is private.
        unsafe { copy(bytes.as_ptr(), part.as_ptr(), bytes.len()) }
    }

    /// Loads the little-endian word at `offset` (a multiple of 4 from a 4-byte aligned window) with acquire ordering.
    pub fn load_u32(&self, offset: usize) -> u32 {
        u32::from_le(self.atomic_u32(offset).load(Ordering::Acquire))
    }

    /// Stores a little-endian word with release ordering.
    pub fn store_u32(&self, offset: usize, value: u32) {
        self.atomic_u32(offset)
            .store(value.to_le(), Ordering::Release);
    }

    /// The word at `offset` as an atomic, the one kind of reference that a peer's writes can't invalidate.
    pub fn atomic_u32(&self, offset: usize) -> &'a AtomicU32 {
        let part = self.part(offset, 4).expect("word inside the window");
        assert!(part.as_ptr().cast::<u32>().is_aligned(), "word aligned");
        // SAFETY: mapped for 'a, aligned, and only accessed atomically by us (peers are other processes).
        unsafe { AtomicU32::from_ptr(part.as_ptr().cast()) }
    }

    /// The double word at `offset` as an atomic.
    pub fn atomic_u64(&self, offset: usize) -> &'a AtomicU64 {
        let part = self.part(offset, 8).expect("word inside the window");
        assert!(part.as_ptr().cast::<u64>().is_aligned(), "word aligned");
        // SAFETY: as for atomic_u32.
        unsafe { AtomicU64::from_ptr(part.as_ptr().cast()) }
    }

    /// `count` words from byte `offset` on as atomics, in the machine's byte order.
    ///
    /// # Panics
    /// If they don't lie inside the window, or not at a multiple of 4.
    pub fn words_u32(&self, offset: usize, count: usize) -> &'a [AtomicU32] {
        let bytes = count.checked_mul(4).expect("as many words as memory has");
        let part = self.part(offset, bytes).expect("words inside the window");
        assert!(part.as_ptr().cast::<u32>().is_aligned(), "words aligned");
        // SAFETY: as for atomic_u32, for each of `count` words.
        unsafe { core::slice::from_raw_parts(part.as_ptr().cast(), count) }
    }

    /// `count` half words from byte `offset` on as atomics, in the machine's byte order.
    ///
    /// # Panics
    /// If they don't lie inside the window, or not at a multiple of 2.
    pub fn words_u16(&self, offset: usize, count: usize) -> &'a [AtomicU16] {
        let bytes = count.checked_mul(2).expect("as many words as memory has");
        let part = self.part(offset, bytes).expect("words inside the window");
        assert!(part.as_ptr().cast::<u16>().is_aligned(), "words aligned");
        // SAFETY: as for atomic_u32, for each of `count` half words.
        unsafe { core::slice::from_raw_parts(part.as_ptr().cast(), count) }
    }

    /// `count` bytes from byte `offset` on as atomics.
    ///
    /// # Panics
    /// If they don't lie inside the window.
    pub fn words_u8(&self, offset: usize, count: usize) -> &'a [AtomicU8] {
        let part = self.part(offset, count).expect("bytes inside the window");
        // SAFETY: as for atomic_u32, for each of `count` bytes.
        unsafe { core::slice::from_raw_parts(part.as_ptr().cast(), count) }
    }

    /// The same bytes, to be read only.
    pub fn to_read(&self) -> ReadWindow<'a> {
        ReadWindow {
            start: self.start,
            len: self.len,
            mapped: PhantomData,
        }
    }
}

/// A run of bytes that stays mapped for `'a` and is only read, while others, other threads of this process too, may write it.
#[derive(Clone, Copy, Debug)]
pub struct ReadWindow<'a> {
    start: NonNull<u8>,
    len: usize,
    mapped: PhantomData<&'a ()>,
}

// SAFETY: a window is an address and a length. What it allows, copying bytes that anybody may write meanwhile, is as good
// from any thread, and from several at once.
unsafe impl Send for ReadWindow<'_> {}
// SAFETY: as above.
unsafe impl Sync for ReadWindow<'_> {}

impl<'a> ReadWindow<'a> {
    /// Makes a window of `len` bytes at `start`, which need not be aligned.
    ///
    /// # Safety
    /// The bytes must stay mapped readable for `'a`, and no mutable Rust reference to them may be used meanwhile; foreign code,
    /// other processes and atomics may write them.
    pub unsafe fn from_raw(start: NonNull<u8>, len: usize) -> ReadWindow<'a> {
        ReadWindow {
            start,
            len,
            mapped: PhantomData,
        }
    }

    /// A window over private memory.
    pub fn over(bytes: &'a [u8]) -> ReadWindow<'a> {
        ReadWindow {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            mapped: PhantomData,
        }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, for kernels and for prefetching.
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The part of `len` bytes at `offset`, or `None` where it does not lie inside.
    pub fn part(&self, offset: usize, len: usize) -> Option<ReadWindow<'a>> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        // SAFETY: offset <= end <= self.len, so the address lies inside the window or one past it.
        let start = unsafe { self.start.add(offset) };
        Some(ReadWindow {
            start,
            len,
            mapped: PhantomData,
        })
    }

    /// Copies bytes from `offset` on to `out`, each of them once. What was copied is a claim.
    ///
    /// # Panics
    /// If the range lies outside the window.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        let part = self
            .part(offset, out.len())
            .expect("read inside the window");
        // SAFETY: `part` spans out.len() mapped bytes. `out` is borrowed mutably, so that it is no memory that others write.
        unsafe { copy(part.start.as_ptr(), out.as_mut_ptr(), out.len()) }
    }

    /// Copies all of it to `offset` of another window.
    ///
    /// # Panics
    /// If it does not fit there.
    pub fn copy_to(&self, to: &Window<'_>, offset: usize) {
        let to = to.part(offset, self.len).expect("copy inside the window");
        // SAFETY: both span self.len mapped bytes, and `to` is writable. Where they overlap, the result is as undefined as
        // where others write to them, and so are only the bytes.
        unsafe { copy(self.start.as_ptr(), to.as_ptr(), self.len) }
    }
}

/// What is copied by vectors of 16 bytes. The CPU's own copying starts slowly: of rows of 264 bytes one takes 15 to 35 ns by it, and 6 by
/// vectors; of 1024 bytes 20 to 42, and 20 (Zen 4, in its cache). From 2048 bytes on it is as fast.
#[cfg(target_arch = "x86_64")]
const BY_VECTORS: core::ops::RangeInclusive<usize> = 16..=2048;

/// Copies `len` bytes of which one side may be written by a peer meanwhile.
///
/// # Safety
/// Both ranges must be mapped, and `to` writable. Where they overlap, what is there afterwards is not defined.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if BY_VECTORS.contains(&len) {
        // SAFETY: the caller's contract: all vectors lie within the `len` bytes, since the last one ends with them and the others
        // start before it does. The assembly is opaque to the compiler, as below; SSE2 belongs to every x86-64.
        unsafe {
            core::arch::asm!(
                "2:",
                "movdqu {vector}, xmmword ptr [{from} + {at}]",
                "movdqu xmmword ptr [{to} + {at}], {vector}",
                "add {at}, 16",
                "cmp {at}, {last}",
                "jb 2b",
                "movdqu {vector}, xmmword ptr [{from} + {last}]",
                "movdqu xmmword ptr [{to} + {last}], {vector}",
                vector = out(xmm_reg) _,
                at = inout(reg) 0_usize => _,
                last = in(reg) len - 16,
                from = in(reg) from,
                to = in(reg) to,
                options(nostack)
            );
        }
        return;
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's contract; the assembly is opaque to the compiler, so a peer's concurrent
    // writes can change the bytes copied but nothing the compiler assumes.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    // SAFETY: the caller's contract; volatile accesses are never assumed to repeat.
    unsafe {
        for i in 0..len {
            to.add(i).write_volatile(from.add(i).read_volatile());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_bytes_are_copied_and_no_others() {
        let from: Vec<u8> = (0..4000).map(|i| (i * 7 % 251) as u8).collect();
        for len in (0..200).chain(2030..2070).chain([3900]) {
            for (at, offset) in [(0, 0), (1, 3), (5, 64)] {
                let mut to = vec![0xee; 4000];
                let part = &from[at..at + len];
                Window::over(&mut to).write(offset, part);
                assert_eq!(&to[offset..offset + len], part, "{len} bytes");
                let others = to[..offset].iter().chain(&to[offset + len..]);
                assert!(others.copied().all(|byte| byte == 0xee), "{len} bytes");
                let mut read = vec![0; len];
                Window::over(&mut to).read(offset, &mut read);
                assert_eq!(read, part, "{len} bytes");
            }
        }
    }
}
