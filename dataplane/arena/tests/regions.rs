//! What regions accept and refuse, and how mappings behave when their memory is taken away.

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};

use rowmill_arena::{ArenaError, HugePages, MappedFile, Region, guards_holes, sealed_memfd};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

const BYTES: usize = 3 * 4096 + 100;

fn memfd(bytes: usize, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, bytes as u64).unwrap();
    fcntl_add_seals(&fd, seals).unwrap();
    fd
}

fn refusal(fd: &OwnedFd, bytes: usize) -> ArenaError {
    Region::map(fd.as_fd(), bytes).expect_err("must be refused")
}

#[test]
fn sealed_memfd_is_shared_both_ways() {
    let fd = sealed_memfd("test", BYTES, HugePages::Prefer).unwrap();
    let (ours, theirs) = (
        Region::map(fd.as_fd(), BYTES).unwrap(),
        Region::map(fd.as_fd(), BYTES).unwrap(),
    );
    drop(fd);
    ours.window().write(BYTES - 3, b"end");
    let mut seen = [0; 3];
    theirs.window().read(BYTES - 3, &mut seen);
    assert_eq!(&seen, b"end");
    assert_eq!(ours.len(), BYTES);
    assert!(!ours.is_lost());
}

#[test]
fn unsealed_is_refused_and_the_seal_is_named() {
    for (seals, missing) in [
        (SealFlags::empty(), "F_SEAL_SHRINK and F_SEAL_GROW"),
        (SealFlags::GROW, "F_SEAL_SHRINK"),
        (SealFlags::SHRINK, "F_SEAL_GROW"),
    ] {
        let fd = memfd(BYTES, seals);
        let error = refusal(&fd, BYTES);
        assert!(
            matches!(error, ArenaError::Unsealed { missing: found } if found == missing),
            "{error}"
        );
        assert!(error.to_string().contains(missing), "{error}");
    }
    // A peer that truncates first and hopes: it is the seal that counts, not the size.
    let fd = memfd(BYTES, SealFlags::empty());
    ftruncate(&fd, 0).unwrap();
    assert!(matches!(refusal(&fd, BYTES), ArenaError::Unsealed { .. }));
}

#[test]
fn sealed_against_writing_is_refused() {
    for (seal, name) in [
        (SealFlags::WRITE, "F_SEAL_WRITE"),
        (SealFlags::FUTURE_WRITE, "F_SEAL_FUTURE_WRITE"),
    ] {
        let fd = memfd(BYTES, SealFlags::SHRINK | SealFlags::GROW | seal);
        let error = refusal(&fd, BYTES);
        assert!(
            matches!(error, ArenaError::SealedAgainstWriting { seal } if seal == name),
            "{error}"
        );
    }
}

#[test]
fn other_descriptors_are_refused() {
    let file: OwnedFd = tempfile::tempfile_in("/dev/shm").unwrap().into();
    assert!(matches!(
        refusal(&file, 4096),
        ArenaError::Unsealed { .. } | ArenaError::NotMemfd
    ));
    let (reader, _writer) = rustix::pipe::pipe().unwrap();
    assert!(matches!(refusal(&reader, 4096), ArenaError::NotMemfd));
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    assert!(matches!(refusal(&null, 4096), ArenaError::NotMemfd));
}

#[test]
fn wrong_sizes_are_refused() {
    let fd = memfd(BYTES, SealFlags::SHRINK | SealFlags::GROW);
    for claimed in [0, 1, BYTES - 1, BYTES + 1, usize::MAX] {
        let error = refusal(&fd, claimed);
        assert!(
            matches!(error, ArenaError::SizeMismatch { promised, found }
                if promised == claimed as u64 && found == BYTES as u64),
            "{error}"
        );
    }
    let empty = memfd(0, SealFlags::SHRINK | SealFlags::GROW);
    assert!(matches!(
        refusal(&empty, 0),
        ArenaError::ImpossibleSize { bytes: 0 }
    ));
}

#[test]
fn windows_stay_inside() {
    let fd = sealed_memfd("test", BYTES, HugePages::Off).unwrap();
    let region = Region::map(fd.as_fd(), BYTES).unwrap();
    let end = BYTES as u64;
    for (offset, len) in [(0, end), (end, 0), (end - 1, 1), (100, 4096)] {
        assert_eq!(region.window_at(offset, len).unwrap().len() as u64, len);
    }
    for (offset, len) in [
        (0, end + 1),
        (end, 1),
        (end + 1, 0),
        (u64::MAX, 1),
        (1, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        assert!(region.window_at(offset, len).is_none(), "{offset} {len}");
    }
}

#[test]
fn hole_in_small_pages_reads_as_zeros() {
    let fd = sealed_memfd("test", 4 * 4096, HugePages::Off).unwrap();
    let region = Region::map(fd.as_fd(), 4 * 4096).unwrap();
    region.window().write(4096, &[7; 4096]);
    fallocate(
        &fd,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        4096,
        4096,
    )
    .unwrap();
    let mut seen = [1; 4096];
    region.window().read(4096, &mut seen);
    assert_eq!(seen, [0; 4096]);
    assert!(!region.is_lost(), "the memory is still the peer's");
}

#[test]
fn a_peers_memory_has_to_be_paid_for() {
    let sealed = SealFlags::SHRINK | SealFlags::GROW;
    let sparse = memfd(4 * 4096, sealed);
    let error = Region::map_foreign(sparse.as_fd(), 4 * 4096).unwrap_err();
    assert!(
        matches!(
            error,
            ArenaError::Unallocated {
                bytes: 16_384,
                allocated: 0
            }
        ),
        "{error}"
    );
    fallocate(&sparse, FallocateFlags::empty(), 4096, 3 * 4096).unwrap();
    let error = Region::map_foreign(sparse.as_fd(), 4 * 4096).unwrap_err();
    assert!(
        matches!(
            error,
            ArenaError::Unallocated {
                allocated: 12_288,
                ..
            }
        ),
        "{error}"
    );
    let odd = sealed_memfd("test", BYTES, HugePages::Off).unwrap();
    let error = Region::map_foreign(odd.as_fd(), BYTES).unwrap_err();
    assert!(
        matches!(error, ArenaError::NotWholePages { page: 4096, .. }),
        "{error}"
    );
}

#[test]
fn holes_in_a_peers_memory_are_not_filled() {
    if !guards_holes() {
        eprintln!("not tried: userfaultfd is not to be had");
        return;
    }
    let pages = 64;
    let fd = sealed_memfd("test", pages * 4096, HugePages::Off).unwrap();
    let region = Region::map_foreign(fd.as_fd(), pages * 4096).unwrap();
    let mine = Region::map(fd.as_fd(), pages * 4096).unwrap();
    region.window().write(5000, b"there");
    let mut seen = [0; 5];
    mine.window().read(5000, &mut seen);
    assert_eq!((&seen, region.is_lost()), (b"there", false));
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&fd, hole, 4096, 8192).unwrap();
    // What is still there is touched as ever.
    region.window().write(0, b"first");
    assert!(!region.is_lost());
    region.window().read(8192, &mut seen);
    assert!(region.is_lost());
    assert_eq!(seen, [0; 5]);
    region.window().write(0, &vec![9; pages * 4096]);
    region.discard_if_lost();
    region.window().read(0, &mut seen);
    assert_eq!(seen, [0; 5], "what was stored in its place is given back");
    let blocks = rustix::fs::fstat(&fd).unwrap().st_blocks;
    assert_eq!(blocks as usize * 512, (pages - 2) * 4096, "the hole is one");
    mine.window().read(0, &mut seen);
    assert_eq!(&seen, b"first");
}

#[test]
fn truncated_file_is_lost_and_nobody_dies() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[5; 20_000]).unwrap();
    let mapped = MappedFile::open(file.path()).unwrap();
    let other = MappedFile::open(file.path()).unwrap();
    let mut out = [0; 8];
    mapped.read(19_992, &mut out).unwrap();
    assert_eq!((out, mapped.len()), ([5; 8], 20_000));
    assert!(matches!(
        mapped.read(19_993, &mut out),
        Err(ArenaError::OutsideFile { .. })
    ));
    assert!(matches!(
        mapped.read(usize::MAX, &mut out),
        Err(ArenaError::OutsideFile { .. })
    ));

    file.as_file().set_len(0).unwrap();
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 1234 };
    let result = mapped.read(8192, &mut out);
    // SAFETY: as above.
    let errno = unsafe { *libc::__errno_location() };
    assert_eq!(errno, 1234, "the handler keeps errno");
    assert!(matches!(result, Err(ArenaError::FileLost { .. })));
    assert!(mapped.is_lost());
    assert!(
        !other.is_lost(),
        "only the mapping that was touched is replaced"
    );
    assert!(
        matches!(mapped.read(0, &mut out), Err(ArenaError::FileLost { .. })),
        "for good"
    );
    assert!(matches!(
        other.read(0, &mut out),
        Err(ArenaError::FileLost { .. })
    ));
}

#[test]
fn truncated_within_its_last_page_is_noticed() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[5; 20_000]).unwrap();
    let mapped = MappedFile::open(file.path()).unwrap();
    file.as_file().set_len(19_999).unwrap();
    let mut out = [0; 8];
    // No fault here: the rest of the page reads as zeros.
    assert!(matches!(
        mapped.read(19_992, &mut out),
        Err(ArenaError::FileLost { .. })
    ));
}

#[test]
fn empty_and_missing_files() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert!(matches!(
        MappedFile::open(file.path()),
        Err(ArenaError::ImpossibleSize { bytes: 0 })
    ));
    let error = MappedFile::open("/nowhere/file").unwrap_err().to_string();
    assert!(error.contains("/nowhere/file"), "{error}");
}

#[test]
fn truncated_while_several_threads_read() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[5; 1 << 20]).unwrap();
    let mapped = MappedFile::open(file.path()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut out = vec![0; 1 << 20];
                while mapped.read(0, &mut out).is_ok() {
                    assert!(
                        out.iter().all(|&byte| byte == 5),
                        "an answer without an error is right"
                    );
                }
            });
        }
        file.as_file().set_len(5000).unwrap();
    });
    assert!(mapped.is_lost());
}
