//! Memory that becomes larger and smaller while threads use it: addresses for all there may ever be, pages for what there is.
//!
//! A [`Reserve`] has areas, each of which has pages from its beginning on, as far as was asked for. The addresses behind are its own too,
//! so that an area that becomes larger stays where it is.

use core::ops::Range;
use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags};

use crate::arena::{advise, populate};
use crate::mapping::{Mapping, page_bytes, round_up};
use crate::memory::check_available;
use crate::pages::{Pools, huge_bytes};
use crate::{ArenaError, Backing, HUGE_2M, HugePages, Window};

/// Bytes that are given back at a time, and the pause after each: every core that runs a thread of this process is interrupted for some
/// microseconds, which so is less than a hundredth of its time. A GiB is given back in a tenth of a second.
const RELEASED: usize = 8 << 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Areas of zeroed memory that change their sizes. `Send` and `Sync`; put it into an `Arc` to share it.
#[derive(Debug)]
pub struct Reserve {
    mapping: Mapping,
    policy: HugePages,
    areas: Box<[Area]>,
    backing: Backing,
}

/// Where an area is.
#[derive(Debug)]
struct Area {
    /// Of the mapping.
    all: Range<usize>,
    /// The size of its pages.
    unit: usize,
    /// Up to where it has pages. The lock is held while some are made or given back.
    end: Mutex<usize>,
}

impl Reserve {
    /// Areas of at most so many bytes, with pages for so many of these. Areas that may have 2 MiB or more have huge pages of 2 MiB, as
    /// far as `policy` wants them and there are some, and all their sizes are rounded up to those; every area begins at a multiple of 2 MiB.
    ///
    /// # Errors
    /// As [`Arena::allocate`](crate::Arena::allocate), and [`ArenaError::Os`] where there are no addresses for all of it.
    ///
    /// # Panics
    /// If an area is to have more than its most.
    pub fn new(areas: &[(usize, usize)], policy: HugePages) -> Result<Reserve, ArenaError> {
        let mut all = Vec::new();
        let mut next = 0_usize;
        for &(most, bytes) in areas {
            assert!(bytes <= most, "{bytes} of {most} bytes");
            let end = next.saturating_add(round_up(most, HUGE_2M)?);
            all.push(Area {
                all: next..end,
                unit: Reserve::unit(most, policy),
                end: Mutex::new(next),
            });
            next = end;
        }
        let mapping = Mapping::anonymous_aligned(round_up(next, HUGE_2M)?)
            .map_err(|errno| ArenaError::os("mmap of the addresses of a cache", errno))?;
        for area in &all {
            advise_pages(&mapping, area.all.clone(), area.unit);
        }
        let mut reserve = Reserve {
            mapping,
            policy,
            areas: all.into_boxed_slice(),
            backing: Backing::Small,
        };
        let mut is_reserved = true;
        for (area, &(_, bytes)) in areas.iter().enumerate() {
            is_reserved &= reserve.resize(area, bytes)?;
        }
        reserve.backing = reserve.found(is_reserved);
        Ok(reserve)
    }

    /// To a multiple of how many bytes the size of an area is rounded up that may have `most` of them.
    pub fn unit(most: usize, policy: HugePages) -> usize {
        let has_small = match policy {
            HugePages::Off => true,
            HugePages::Prefer => most < HUGE_2M,
            HugePages::Require => false,
        };
        if has_small { page_bytes() } else { HUGE_2M }
    }

    /// What its pages were at first.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// All areas, one behind the other, as large as they may ever be. Behind an area's present size there is nothing of worth: what is
    /// written there may be lost, and takes pages that nobody counts.
    pub fn window(&self) -> Window<'_> {
        // SAFETY: the mapping has these bytes, readable and writable, and lives as long as `self`. No reference to them is made:
        // nothing here makes one, and the mapping is this value's own.
        unsafe { Window::from_raw(self.mapping.start(), self.mapping.len()) }
    }

    /// Where an area begins in the [window](Self::window).
    pub fn start(&self, area: usize) -> usize {
        self.areas[area].all.start
    }

    /// Bytes for which an area has pages.
    pub fn present(&self, area: usize) -> usize {
        let area = &self.areas[area];
        *area.lock() - area.all.start
    }

    /// Gives an area so many bytes, rounded up to whole pages. What is new is zeroed and present; what is given up is another's at once.
    /// It takes long (zeroing some GB/s, giving back some more) and is for a thread that has nothing else to do. Tells whether all new
    /// pages are of the pools of huge pages.
    ///
    /// # Errors
    /// As [`Arena::allocate`](crate::Arena::allocate); the area is as it was.
    ///
    /// # Panics
    /// If that is more than its most.
    pub fn resize(&self, area: usize, bytes: usize) -> Result<bool, ArenaError> {
        let area = &self.areas[area];
        assert!(bytes <= area.all.len(), "an area's most");
        let wanted = area.all.start + bytes.next_multiple_of(area.unit);
        let mut end = area.lock();
        let mut is_reserved = true;
        if wanted > *end {
            is_reserved = self.grow(*end..wanted, area.unit)?;
        } else {
            self.shrink(wanted..*end, area.unit)?;
        }
        *end = wanted;
        Ok(is_reserved)
    }

    /// Makes pages, and tells whether they are of the pools.
    fn grow(&self, range: Range<usize>, unit: usize) -> Result<bool, ArenaError> {
        if unit == HUGE_2M && self.grow_reserved(&range)? {
            return Ok(true);
        }
        if self.policy == HugePages::Require {
            let pages = range.len().div_ceil(HUGE_2M) as u64;
            let pools = Pools::now();
            return Err(ArenaError::NoHugePages {
                needed: range.len() as u64,
                pools: pools.to_string(),
                pages_2m: pools.size_for(pages),
            });
        }
        check_available(range.len())?;
        populate(&self.mapping, range.clone(), &mut |_| ()).map_err(|errno| {
            self.renew(range, unit).ok();
            ArenaError::os("madvise(MADV_POPULATE_WRITE)", errno)
        })?;
        Ok(false)
    }

    /// The same of the pools' pages, if they have enough.
    fn grow_reserved(&self, range: &Range<usize>) -> Result<bool, ArenaError> {
        let flags = MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // Elsewhere first: a refusal may leave a hole where they were to be. Without NORESERVE the kernel sets the pages aside here.
        let Ok(pages) = Mapping::anonymous(range.len(), flags) else {
            return Ok(false);
        };
        match populate(&pages, 0..range.len(), &mut |_| ()) {
            Ok(()) => {}
            // A control group or a memory policy can still withhold pages that the pool has.
            Err(Errno::FAULT | Errno::NOMEM) => return Ok(false),
            Err(errno) => return Err(ArenaError::os("madvise(MADV_POPULATE_WRITE)", errno)),
        }
        // SAFETY: the addresses have no pages, and nothing there is of worth to anybody.
        let moved = unsafe { self.mapping.take_in(range.start, pages) };
        // Before Linux 5.16 such pages can't be moved.
        Ok(moved.is_ok())
    }

    /// Gives pages back, from the last on.
    fn shrink(&self, range: Range<usize>, unit: usize) -> Result<(), ArenaError> {
        let mut end = range.end;
        while end > range.start {
            let start = range.start.max(end.saturating_sub(RELEASED));
            self.renew(start..end, unit)?;
            end = start;
            if end > range.start {
                thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Leaves addresses without pages.
    fn renew(&self, range: Range<usize>, unit: usize) -> Result<(), ArenaError> {
        // SAFETY: the caller gives up what is there; users of an area's end know its size.
        unsafe { self.mapping.renew(range.clone()) }
            .map_err(|errno| ArenaError::os("mmap over memory that is given back", errno))?;
        advise_pages(&self.mapping, range, unit);
        Ok(())
    }

    /// What the pages are.
    fn found(&self, is_reserved: bool) -> Backing {
        if is_reserved {
            return Backing::Huge2M;
        }
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        let start = self.mapping.start().as_ptr() as usize;
        let huge = huge_bytes(&smaps, start, self.mapping.len());
        let present: usize = (0..self.areas.len()).map(|area| self.present(area)).sum();
        if huge == 0 {
            return Backing::Small;
        }
        Backing::Transparent {
            fraction: (huge as f64 / present.max(1) as f64).min(1.0),
        }
    }
}

impl Area {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says which pages the kernel is to make. Where it has no transparent huge pages that is refused, and small pages are the result.
fn advise_pages(mapping: &Mapping, range: Range<usize>, unit: usize) {
    let advice = if unit == HUGE_2M {
        Advice::LinuxHugepage
    } else {
        Advice::LinuxNoHugepage
    };
    advise(mapping, range.start, range.len(), advice).ok();
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// Bytes of this process's memory between two addresses that have pages.
    fn resident(window: &Window<'_>) -> usize {
        let start = window.as_ptr() as usize;
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        crate::pages::present_bytes(&smaps, start, window.len())
    }

    #[test]
    fn areas_grow_in_place_and_give_back_what_they_had() {
        const MIB: usize = 1 << 20;
        for policy in [HugePages::Prefer, HugePages::Off] {
            let reserve = Reserve::new(&[(64 * MIB, 4 * MIB), (10_000, 100)], policy).unwrap();
            println!("{policy}: {}", reserve.backing());
            let window = reserve.window();
            assert!(window.len() - reserve.start(1) >= 10_000);
            let large = window.part(0, reserve.start(1)).unwrap();
            let small = window.part(reserve.start(1), 10_000).unwrap();
            assert!(large.as_ptr().addr().is_multiple_of(HUGE_2M));
            let last = |mib: usize| &large.words_u32(mib * MIB - 4, 1)[0];
            last(4).store(7, Relaxed);
            small.words_u32(96, 1)[0].store(8, Relaxed);
            for round in 0..3 {
                reserve.resize(0, 64 * MIB).unwrap();
                assert_eq!(reserve.present(0), 64 * MIB);
                assert_eq!(
                    (last(4).load(Relaxed), last(64).load(Relaxed)),
                    (7, 0),
                    "{round}"
                );
                last(64).store(9, Relaxed);
                reserve.resize(0, 4 * MIB).unwrap();
                assert_eq!((last(4).load(Relaxed), reserve.present(0)), (7, 4 * MIB));
            }
            if !matches!(reserve.backing(), Backing::Huge2M) {
                // Where pages are small, the mapping of the small area is the same.
                let resident = resident(&large);
                assert!(
                    (4 * MIB..5 * MIB).contains(&resident),
                    "{policy}: {resident}"
                );
            }
            reserve.resize(1, 10_000).unwrap();
            assert_eq!(small.words_u32(96, 1)[0].load(Relaxed), 8);
            assert!(
                reserve.present(1) < HUGE_2M / 2,
                "a small area has small pages"
            );
        }
    }

    #[test]
    fn what_cannot_be_had_changes_nothing() {
        let reserve = Reserve::new(&[(1 << 44, 4096)], HugePages::Off).unwrap();
        let error = reserve.resize(0, 1 << 44).unwrap_err();
        assert!(
            matches!(error, ArenaError::TooLittleMemory { .. }),
            "{error}"
        );
        assert_eq!(reserve.present(0), 4096);
        let error = Reserve::new(&[(1 << 44, 1 << 44)], HugePages::Require).unwrap_err();
        assert!(matches!(error, ArenaError::NoHugePages { .. }), "{error}");
    }
}
