//! Asking for memory before it is needed.

/// Asks for the cache line that holds byte `offset` of `bytes` to be brought to the second-level cache, and
/// does not wait for it: the first level has places for far fewer misses than a walk through memory needs in
/// flight. Only a hint: an offset outside the bytes does nothing that can be noticed but in the caches.
#[inline]
pub fn prefetch_read(bytes: &[u8], offset: usize) {
    prefetch_line(bytes.as_ptr().wrapping_add(offset));
}

/// The same for the cache line at any address.
#[inline(always)]
pub fn prefetch_line<T>(at: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: the instruction faults at no address, mapped or not, and reads nothing that the program
        // can see; SSE belongs to every x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    {
        // SAFETY: PRFM is a hint that faults at no address and changes neither memory nor flags.
        unsafe {
            core::arch::asm!(
                "prfm pldl2keep, [{at}]",
                at = in(reg) at,
                options(readonly, nostack, preserves_flags)
            );
        }
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

#[cfg(test)]
mod tests {
    use super::{prefetch_line, prefetch_read};

    #[test]
    fn any_offset_is_harmless() {
        let bytes = [7u8; 100];
        for offset in [0, 1, 99, 100, 1 << 40, usize::MAX] {
            prefetch_read(&bytes, offset);
            prefetch_read(&[], offset);
            prefetch_line(core::ptr::without_provenance::<u64>(offset));
        }
        assert_eq!(bytes, [7; 100]);
    }
}
