//! Reserved huge pages: had, withheld, and taken away. Needs root, who may set the size of the pool;
//! says why where it is skipped.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rowmill_arena::{
    Arena, ArenaError, Backing, HUGE_2M, HugePages, Region, Reserve, sealed_memfd,
};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The pool with so many pages free and no more, for one test at a time, of this process or another one that locks
/// the same file; its size is restored when this is dropped.
struct Pages {
    before: u64,
    _file: File,
    _turn: MutexGuard<'static, ()>,
}

impl Pages {
    fn add(count: u64) -> Option<Pages> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let file = File::open(Path::new(POOL).join("nr_hugepages")).ok()?;
        flock(&file, FlockOperation::LockExclusive).ok()?;
        let before = number("nr_hugepages");
        let pages = Pages {
            before,
            _file: file,
            _turn: turn,
        };
        let used = before.saturating_sub(number("free_hugepages"));
        fs::write(
            Path::new(POOL).join("nr_hugepages"),
            (used + count).to_string(),
        )
        .ok()?;
        let is_so = number("free_hugepages") == count && number("nr_overcommit_hugepages") == 0;
        is_so.then_some(pages)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let _ = fs::write(
            Path::new(POOL).join("nr_hugepages"),
            self.before.to_string(),
        );
    }
}

fn number(file: &str) -> u64 {
    fs::read_to_string(Path::new(POOL).join(file))
        .map_or(0, |text| text.trim().parse().unwrap_or(0))
}

fn skipped() {
    println!("skipped: no right to add 2 MiB pages to {POOL}, or no memory for them");
}

#[test]
fn arena_of_reserved_pages() {
    let Some(_pages) = Pages::add(4) else {
        return skipped();
    };
    for policy in [HugePages::Require, HugePages::Prefer] {
        let mut arena = Arena::allocate(3 * HUGE_2M + 5, policy).unwrap();
        assert_eq!(*arena.backing(), Backing::Huge2M);
        arena.as_mut_slice().fill(1);
        let frozen = arena.freeze().unwrap();
        assert_eq!(
            (frozen.len(), frozen[3 * HUGE_2M + 4]),
            (3 * HUGE_2M + 5, 1)
        );
    }
    let small = Arena::allocate(HUGE_2M, HugePages::Off).unwrap();
    assert_eq!(*small.backing(), Backing::Small);
    let error = Arena::allocate(1 << 36, HugePages::Require).unwrap_err();
    assert!(matches!(error, ArenaError::NoHugePages { .. }), "{error}");
}

#[test]
fn reserved_pages_come_and_go() {
    let Some(_pages) = Pages::add(4) else {
        return skipped();
    };
    for policy in [HugePages::Require, HugePages::Prefer] {
        let reserve = Reserve::new(&[(64 * HUGE_2M, HUGE_2M), (HUGE_2M, HUGE_2M)], policy).unwrap();
        assert_eq!(*reserve.backing(), Backing::Huge2M);
        let free = || number("free_hugepages");
        let left = free();
        let window = reserve.window();
        window.write(HUGE_2M - 1, &[7]);
        assert!(reserve.resize(0, 2 * HUGE_2M + 1).unwrap(), "of the pool");
        assert_eq!((free(), reserve.present(0)), (left - 2, 3 * HUGE_2M));
        let mut seen = [0; 2];
        window.read(HUGE_2M - 1, &mut seen);
        assert_eq!(seen, [7, 0]);
        window.write(3 * HUGE_2M - 1, &[8]);
        // There is none left.
        match (policy, reserve.resize(0, 4 * HUGE_2M)) {
            (HugePages::Prefer, Ok(false)) => assert_eq!(reserve.present(0), 4 * HUGE_2M),
            (HugePages::Require, Err(ArenaError::NoHugePages { .. })) => {
                assert_eq!(reserve.present(0), 3 * HUGE_2M);
            }
            (policy, outcome) => panic!("{policy}: {outcome:?}"),
        }
        window.read(3 * HUGE_2M - 1, &mut seen[..1]);
        assert_eq!(seen[0], 8, "what was there stays");
        reserve.resize(0, HUGE_2M).unwrap();
        assert_eq!((free(), reserve.present(0)), (left, HUGE_2M));
        window.read(HUGE_2M - 1, &mut seen);
        assert_eq!(seen, [7, 0]);
    }
}

#[test]
fn memfd_of_reserved_pages() {
    let Some(_pages) = Pages::add(2) else {
        return skipped();
    };
    let fd = sealed_memfd("test", HUGE_2M, HugePages::Require).unwrap();
    let region = Region::map(fd.as_fd(), HUGE_2M).unwrap();
    region.window().write(HUGE_2M - 1, &[9]);
    assert!(matches!(
        sealed_memfd("test", HUGE_2M + 4096, HugePages::Require),
        Err(ArenaError::NotWholePages { .. })
    ));
    assert!(matches!(
        sealed_memfd("test", 64 * HUGE_2M, HugePages::Require),
        Err(ArenaError::NoHugePages { .. })
    ));
    let fallback = sealed_memfd("test", 64 * HUGE_2M, HugePages::Prefer).unwrap();
    assert_eq!(
        Region::map(fallback.as_fd(), 64 * HUGE_2M).unwrap().len(),
        64 * HUGE_2M
    );
}

#[test]
fn hole_in_huge_pages_with_an_empty_pool_loses_the_region() {
    let Some(_pages) = Pages::add(4) else {
        return skipped();
    };
    let fd = sealed_memfd("hostile", 2 * HUGE_2M, HugePages::Require).unwrap();
    let hostile = Region::map(fd.as_fd(), 2 * HUGE_2M).unwrap();
    let other_fd = sealed_memfd("other", HUGE_2M, HugePages::Require).unwrap();
    let other = Region::map(other_fd.as_fd(), HUGE_2M).unwrap();
    other.window().write(0, b"mine");
    hostile.window().write(0, &[7; 64]);

    fallocate(
        &fd,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        HUGE_2M as u64,
    )
    .unwrap();
    let mut hoard = Vec::new();
    while let Ok(arena) = Arena::allocate(HUGE_2M, HugePages::Require) {
        hoard.push(arena);
    }
    assert!(!hostile.is_lost(), "nothing was touched yet");
    let mut seen = [1; 64];
    hostile.window().read(0, &mut seen);
    assert!(hostile.is_lost());
    assert_eq!(seen, [0; 64]);
    hostile.window().write(HUGE_2M + 5, &[3; 64]); // still mapped, and writing harms nobody
    assert!(hostile.is_lost() && !other.is_lost());
    let mut mine = [0; 4];
    other.window().read(0, &mut mine);
    assert_eq!(&mine, b"mine");
}
