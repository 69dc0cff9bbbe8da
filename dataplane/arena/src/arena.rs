//! Private memory for tables: huge pages where they can be had, filled once, then read-only.

use core::ops::{Deref, Range};
use core::ptr::NonNull;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, madvise, mprotect};

use crate::mapping::{Mapping, page_bytes, round_up};
use crate::memory::check_available;
use crate::pages::{Pools, fits_large_pages, transparent_fraction};
use crate::{ArenaError, Backing, HUGE_1G, HUGE_2M, HugePages, Window};

/// Bytes made present between two reports of progress. Zeroing runs at several GB/s, so this is a
/// report every few tens of milliseconds.
const POPULATE_BYTES: usize = 256 << 20;
/// Most threads that zero memory: a socket's memory is saturated by fewer.
const MAX_POPULATE_THREADS: usize = 16;

/// Zeroed memory with every page present, so that no later touch can fault.
#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    bytes: usize,
    backing: Backing,
}

impl Arena {
    /// Allocates `bytes` zeroed bytes on the pages that `policy` asks for.
    ///
    /// # Errors
    /// [`ArenaError::TooLittleMemory`] before anything is touched, [`ArenaError::NoHugePages`] where
    /// they are required, [`ArenaError::ImpossibleSize`] for 0 bytes.
    pub fn allocate(bytes: usize, policy: HugePages) -> Result<Arena, ArenaError> {
        Arena::allocate_with(bytes, policy, &mut |_| ())
    }

    /// As [`Arena::allocate`], calling `progress` with the bytes that are present so far.
    ///
    /// # Errors
    /// As [`Arena::allocate`].
    pub fn allocate_with(
        bytes: usize,
        policy: HugePages,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Arena, ArenaError> {
        round_up(bytes, HUGE_1G)?;
        if policy != HugePages::Off {
            if fits_large_pages(bytes as u64)
                && let Some(arena) = reserved(bytes, HUGE_1G, progress)?
            {
                return Ok(arena);
            }
            if let Some(arena) = reserved(bytes, HUGE_2M, progress)? {
                return Ok(arena);
            }
        }
        match policy {
            HugePages::Require => {
                let pages = bytes.div_ceil(HUGE_2M) as u64;
                let pools = Pools::now();
                Err(ArenaError::NoHugePages {
                    needed: bytes as u64,
                    pools: pools.to_string(),
                    pages_2m: pools.size_for(pages),
                })
            }
            HugePages::Prefer => transparent(bytes, progress),
            HugePages::Off => small(bytes, progress),
        }
    }

    /// What the arena is made of.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Never true: an arena has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All bytes, to be filled.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has at least `bytes` present, readable and writable bytes, zeroed by the
        // kernel, and is borrowed exclusively through `self`.
        unsafe { core::slice::from_raw_parts_mut(self.mapping.start().as_ptr(), self.bytes) }
    }

    /// The first byte, of which no reference is made.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping.start()
    }

    /// Makes the bytes read-only for the rest of their life; a stray store then faults.
    ///
    /// # Errors
    /// [`ArenaError::Os`] if the kernel refuses (it has a limit on the number of mappings).
    pub fn freeze(self) -> Result<FrozenArena, ArenaError> {
        // SAFETY: whole pages of our own mapping; `self` is consumed, so no `&mut` to them is left.
        unsafe {
            mprotect(
                self.mapping.start().as_ptr().cast(),
                self.mapping.len(),
                MprotectFlags::READ,
            )
        }
        .map_err(|errno| ArenaError::os("mprotect of the arena", errno))?;
        Ok(FrozenArena { arena: self })
    }

    /// Gives up the exclusive right to the bytes, so that threads can read and write them at the same time.
    pub fn share(self) -> SharedArena {
        SharedArena { arena: self }
    }
}

/// An arena that nobody can write any more. `Send` and `Sync`; put it into an `Arc` to share it.
#[derive(Debug)]
pub struct FrozenArena {
    arena: Arena,
}

impl FrozenArena {
    /// What the arena is made of.
    pub fn backing(&self) -> &Backing {
        &self.arena.backing
    }
}

impl Deref for FrozenArena {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has at least `bytes` present and readable bytes, and since it is
        // read-only and private nothing can change them.
        unsafe {
            core::slice::from_raw_parts(self.arena.mapping.start().as_ptr(), self.arena.bytes)
        }
    }
}

/// Bytes of an arena that nobody can write any more, which they keep alive: they stay where they are, and what they are, as long as
/// this does.
#[derive(Clone, Debug)]
pub struct FrozenBytes {
    arena: Arc<FrozenArena>,
    range: Range<usize>,
}

impl FrozenBytes {
    /// That part of an arena.
    ///
    /// # Panics
    /// If it lies outside.
    pub fn new(arena: Arc<FrozenArena>, range: Range<usize>) -> FrozenBytes {
        assert!(range.start <= range.end && range.end <= arena.len());
        FrozenBytes { arena, range }
    }
}

impl Deref for FrozenBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.arena[self.range.clone()]
    }
}

/// An arena that threads read and write at the same time, by an order of their own: as a [`Window`] and by the atomics in it.
/// `Send` and `Sync`; put it into an `Arc` to share it.
#[derive(Debug)]
pub struct SharedArena {
    arena: Arena,
}

impl SharedArena {
    /// What the arena is made of.
    pub fn backing(&self) -> &Backing {
        &self.arena.backing
    }

    /// All bytes.
    pub fn window(&self) -> Window<'_> {
        // SAFETY: the mapping has at least `bytes` present, readable and writable bytes and lives as long as `self`. No
        // reference to them is made: that takes an `Arena`, and this one's was consumed.
        unsafe { Window::from_raw(self.arena.mapping.start(), self.arena.bytes) }
    }
}

/// An arena of reserved pages of `page` bytes, or `None` where the pool has too few of them.
fn reserved(
    bytes: usize,
    page: usize,
    progress: &mut dyn FnMut(usize),
) -> Result<Option<Arena>, ArenaError> {
    let (size_flag, backing) = if page == HUGE_1G {
        (MapFlags::HUGE_1GB, Backing::Huge1G)
    } else {
        (MapFlags::HUGE_2MB, Backing::Huge2M)
    };
    let len = round_up(bytes, page)?;
    // Without NORESERVE the kernel sets the pages aside here, or refuses.
    let Ok(mapping) = Mapping::anonymous(len, MapFlags::HUGETLB | size_flag) else {
        return Ok(None);
    };
    match populate(&mapping, 0..mapping.len(), progress) {
        Ok(()) => Ok(Some(Arena {
            mapping,
            bytes,
            backing,
        })),
        // A control group or a memory policy can still withhold pages that the pool has.
        Err(Errno::FAULT | Errno::NOMEM) => Ok(None),
        Err(errno) => Err(ArenaError::os("madvise(MADV_POPULATE_WRITE)", errno)),
    }
}

/// An arena of transparent huge pages, as many as the kernel has.
fn transparent(bytes: usize, progress: &mut dyn FnMut(usize)) -> Result<Arena, ArenaError> {
    let len = round_up(bytes, page_bytes())?;
    check_available(len)?;
    if len < HUGE_2M {
        return small(bytes, progress);
    }
    let mapping = Mapping::anonymous_aligned(len)
        .map_err(|errno| ArenaError::os("mmap of an arena", errno))?;
    // Where the kernel has no transparent huge pages this is refused, and small pages are the result.
    advise(&mapping, 0, mapping.len(), Advice::LinuxHugepage).ok();
    populate_small(&mapping, progress)?;
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let fraction = transparent_fraction(&smaps, mapping.start().as_ptr() as usize, mapping.len());
    let backing = if fraction > 0.0 {
        Backing::Transparent { fraction }
    } else {
        Backing::Small
    };
    Ok(Arena {
        mapping,
        bytes,
        backing,
    })
}

/// An arena of small pages.
fn small(bytes: usize, progress: &mut dyn FnMut(usize)) -> Result<Arena, ArenaError> {
    let len = round_up(bytes, page_bytes())?;
    check_available(len)?;
    let mapping = Mapping::anonymous(len, MapFlags::NORESERVE)
        .map_err(|errno| ArenaError::os("mmap of an arena", errno))?;
    advise(&mapping, 0, mapping.len(), Advice::LinuxNoHugepage).ok();
    populate_small(&mapping, progress)?;
    Ok(Arena {
        mapping,
        bytes,
        backing: Backing::Small,
    })
}

fn populate_small(mapping: &Mapping, progress: &mut dyn FnMut(usize)) -> Result<(), ArenaError> {
    populate(mapping, 0..mapping.len(), progress)
        .map_err(|errno| ArenaError::os("madvise(MADV_POPULATE_WRITE)", errno))
}

/// Makes every page of a range present and writable, by several threads in steps of [`POPULATE_BYTES`], so that
/// the kernel zeroes as fast as the memory allows and progress can be shown.
pub(crate) fn populate(
    mapping: &Mapping,
    range: Range<usize>,
    progress: &mut dyn FnMut(usize),
) -> rustix::io::Result<()> {
    let steps = range.len().div_ceil(POPULATE_BYTES);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(range.start);
    let (report, reports) = mpsc::channel();
    let work = |report: mpsc::Sender<_>| {
        loop {
            let offset = next.fetch_add(POPULATE_BYTES, Relaxed);
            if offset >= range.end {
                return;
            }
            let len = POPULATE_BYTES.min(range.end - offset);
            let result = advise(mapping, offset, len, Advice::LinuxPopulateWrite).map(|()| len);
            if report.send(result).is_err() {
                return; // another thread failed
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..steps.min(cores).min(MAX_POPULATE_THREADS) {
            let report = report.clone();
            scope.spawn(move || work(report));
        }
        drop(report);
        let mut done = 0;
        for result in reports {
            done += result?;
            progress(done);
        }
        Ok(())
    })
}

pub(crate) fn advise(
    mapping: &Mapping,
    offset: usize,
    len: usize,
    advice: Advice,
) -> rustix::io::Result<()> {
    assert!(
        offset <= mapping.len() && len <= mapping.len() - offset,
        "advice inside the mapping"
    );
    // SAFETY: the range lies inside our own mapping (asserted), and the advices used here (populate,
    // huge or no huge pages) change neither contents nor addresses.
    unsafe { madvise(mapping.start().as_ptr().add(offset).cast(), len, advice) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn filled_then_frozen_and_shared() {
        for policy in [HugePages::Prefer, HugePages::Off] {
            let mut arena = Arena::allocate(5 << 20, policy).unwrap();
            assert!(arena.as_mut_slice().iter().all(|&byte| byte == 0));
            arena.as_mut_slice()[(5 << 20) - 1] = 7;
            let frozen = Arc::new(arena.freeze().unwrap());
            assert_eq!(frozen.len(), 5 << 20);
            let other = Arc::clone(&frozen);
            std::thread::spawn(move || assert_eq!(other[(5 << 20) - 1], 7))
                .join()
                .unwrap();
            println!("{policy}: {}", frozen.backing());
        }
    }

    #[test]
    fn shared_bytes_are_written_by_all() {
        let mut arena = Arena::allocate(100, HugePages::Off).unwrap();
        arena.as_mut_slice()[99] = 7;
        let shared = Arc::new(arena.share());
        let other = Arc::clone(&shared);
        std::thread::spawn(move || {
            other.window().words_u32(64, 2)[1].store(u32::from_ne_bytes([1, 2, 3, 4]), Relaxed);
            other.window().words_u16(98, 1)[0].store(u16::from_ne_bytes([5, 6]), Relaxed);
            other.window().words_u8(96, 2)[1].store(4, Relaxed);
        })
        .join()
        .unwrap();
        let mut bytes = [0; 4];
        shared.window().to_read().read(68, &mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        shared.window().read(96, &mut bytes);
        assert_eq!(bytes, [0, 4, 5, 6]);
    }

    #[test]
    #[should_panic(expected = "words inside the window")]
    fn words_outside_panic() {
        let shared = Arena::allocate(100, HugePages::Off).unwrap().share();
        shared.window().words_u32(96, 2);
    }

    #[test]
    #[should_panic(expected = "words aligned")]
    fn words_across_words_panic() {
        let shared = Arena::allocate(100, HugePages::Off).unwrap().share();
        shared.window().words_u32(2, 1);
    }

    #[test]
    fn off_means_small_pages() {
        let arena = Arena::allocate(8 << 20, HugePages::Off).unwrap();
        assert_eq!(*arena.backing(), Backing::Small);
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let start = arena.mapping.start().as_ptr() as usize;
        assert_eq!(
            transparent_fraction(&smaps, start, arena.mapping.len()),
            0.0
        );
    }

    #[test]
    fn progress_reaches_the_end() {
        let mut seen = Vec::new();
        Arena::allocate_with(10_000, HugePages::Off, &mut |done| seen.push(done)).unwrap();
        assert_eq!(seen.last(), Some(&12_288));
    }

    #[test]
    fn impossible_sizes_and_too_little_memory() {
        assert!(matches!(
            Arena::allocate(0, HugePages::Prefer),
            Err(ArenaError::ImpossibleSize { bytes: 0 })
        ));
        assert!(matches!(
            Arena::allocate(usize::MAX, HugePages::Off),
            Err(ArenaError::ImpossibleSize { .. })
        ));
        for policy in [HugePages::Prefer, HugePages::Off] {
            assert!(matches!(
                Arena::allocate(1 << 46, policy),
                Err(ArenaError::TooLittleMemory { .. })
            ));
        }
    }

    #[test]
    fn required_pages_that_are_not_there() {
        let error = Arena::allocate(1 << 44, HugePages::Require).unwrap_err();
        assert!(matches!(error, ArenaError::NoHugePages { .. }), "{error}");
        assert!(error.to_string().contains("vm.nr_hugepages="), "{error}");
    }
}
