//! Reading parts of files by io_uring.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rowmill_arena::{
    ArenaError, DIRECT_ALIGN, DirectFile, DirectReader, FileId, HugePages, PageCache, ReadError,
    ReaderOptions, SlotsTaken,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const PAGES: u64 = 40;
const OPTIONS: ReaderOptions = ReaderOptions {
    slots: 4,
    slot_bytes: 3 * DIRECT_ALIGN,
    files: 2,
    polled: false,
    huge_pages: HugePages::Off,
};

/// What a page of the file with this number holds.
fn page(file: u8, page: u64) -> [u8; DIRECT_ALIGN] {
    let mut bytes = [file; DIRECT_ALIGN];
    for (word, at) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
        *word = (page << 32 | at << 8 | u64::from(file)).to_le_bytes();
    }
    bytes
}

fn make(folder: &Path, number: u8) -> PathBuf {
    let path = folder.join(format!("file-{number}"));
    let bytes: Vec<u8> = (0..PAGES).flat_map(|at| page(number, at)).collect();
    fs::write(&path, bytes).unwrap();
    path
}

/// A reader, unless the kernel has none.
fn reader(options: ReaderOptions) -> Option<DirectReader> {
    match DirectReader::new(options) {
        Err(ArenaError::NoIoUring { source }) => {
            println!("skipped: no io_uring here ({source})");
            None
        }
        reader => Some(reader.unwrap()),
    }
}

fn open(path: &Path) -> DirectFile {
    // Where the tests' folder has no O_DIRECT, the page cache does for them.
    DirectFile::open(path, PageCache::Allow).unwrap()
}

/// Polls until nothing is in flight; gives outcomes by token.
fn finish(reader: &mut DirectReader) -> BTreeMap<u64, Result<Vec<u8>, ReadError>> {
    let mut found = BTreeMap::new();
    while reader.in_flight() > 0 {
        let note = |token, outcome: Result<&[u8], ReadError>| {
            let before = found.insert(token, outcome.map(<[u8]>::to_vec));
            assert!(before.is_none(), "token {token} twice");
        };
        reader.poll(usize::MAX, note).unwrap();
    }
    found
}

#[test]
fn reads_give_what_is_in_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = reader(OPTIONS) else {
        return;
    };
    let files: Vec<FileId> = (0..2)
        .map(|number| reader.add(open(&make(folder.path(), number))).unwrap())
        .collect();
    let mut wanted = Vec::new();
    for first in 0..PAGES {
        for pages in 1..=3.min(PAGES - first) {
            wanted.push(((first * 7) as u8 % 2, first, pages));
        }
    }
    let (mut asked, mut checked) = (0, 0);
    while checked < wanted.len() {
        while asked < wanted.len() {
            let (file, first, pages) = wanted[asked];
            let (offset, len) = (first * DIRECT_ALIGN as u64, pages as usize * DIRECT_ALIGN);
            let submitted = reader.submit(files[usize::from(file)], offset, len, asked as u64);
            if submitted == Err(SlotsTaken) {
                assert_eq!(reader.in_flight(), OPTIONS.slots);
                break;
            }
            asked += 1;
        }
        let check = |token, bytes: Result<&[u8], ReadError>| {
            let (file, first, pages) = wanted[token as usize];
            let expected: Vec<u8> = (first..first + pages)
                .flat_map(|at| page(file, at))
                .collect();
            assert_eq!(bytes.unwrap(), expected, "file {file} page {first}");
        };
        checked += reader.poll(usize::MAX, check).unwrap();
    }
    assert_eq!(reader.in_flight(), 0);
}

#[test]
fn files_come_and_go() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = reader(OPTIONS) else {
        return;
    };
    for round in 0..5 {
        let number = round as u8;
        let path = make(folder.path(), number);
        let id = reader.add(open(&path)).unwrap();
        assert_eq!(reader.file(id).path(), path);
        assert_eq!(reader.file(id).bytes(), PAGES * DIRECT_ALIGN as u64);
        // Its name is not asked for any more: another file takes it, and the first one is read.
        fs::rename(make(folder.path(), 200), &path).unwrap();
        reader.submit(id, 0, DIRECT_ALIGN, round).unwrap();
        assert!(reader.remove(id).unwrap().is_none(), "it is being read");
        let found = finish(&mut reader);
        assert_eq!(found[&round].as_deref(), Ok(&page(number, 0)[..]));
        let file = reader.remove(id).unwrap().expect("nothing is in flight");
        assert_eq!(file.path(), path);
    }
}

#[test]
fn truncated_files_are_told_of() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = reader(OPTIONS) else {
        return;
    };
    let path = make(folder.path(), 1);
    let id = reader.add(open(&path)).unwrap();
    let cut = |len| {
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(len)
    };
    let page_bytes = DIRECT_ALIGN as u64;
    // The end of the file, and whether a read of pages 2 and 3 has all of it.
    for (len, whole) in [
        (4 * page_bytes, true),
        (4 * page_bytes - 1, false),
        (3 * page_bytes, false),
        (2 * page_bytes + 1, false),
        (page_bytes, false),
        (0, false),
    ] {
        cut(len).unwrap();
        reader
            .submit(id, 2 * page_bytes, 2 * DIRECT_ALIGN, 5)
            .unwrap();
        let found = &finish(&mut reader)[&5];
        if whole {
            assert_eq!(
                found.as_ref().unwrap()[..],
                [page(1, 2), page(1, 3)].concat()
            );
        } else {
            assert_eq!(*found, Err(ReadError::Truncated), "{len} bytes");
        }
    }
}

/// The files of /proc are regular ones without O_DIRECT.
#[test]
fn page_cache_only_where_it_is_allowed() {
    let path = Path::new("/proc/self/status");
    let refused = DirectFile::open(path, PageCache::Refuse).unwrap_err();
    assert!(matches!(refused, ArenaError::NotDirect { .. }), "{refused}");
    assert!(refused.to_string().contains("O_DIRECT"), "{refused}");
    let file = open(path);
    let why = file.why_cached().expect("it is read by the page cache");
    assert!(why.contains("O_DIRECT"), "{why}");
    assert_eq!(file.why_unpolled(), Some(why), "no O_DIRECT, no polling");
}

#[test]
fn what_cannot_be_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let fifo = folder.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    for path in [
        folder.path(),
        &fifo,
        Path::new("/nowhere"),
        Path::new("/proc/self/mem"),
    ] {
        let error = DirectFile::open(path, PageCache::Allow).unwrap_err();
        assert!(matches!(error, ArenaError::File { .. }), "{error}");
    }
    for path in [folder.path(), &fifo] {
        let error = DirectFile::open(path, PageCache::Refuse).unwrap_err();
        let why = error.source().expect("it says why").to_string();
        assert!(why.contains("no regular file"), "{why}");
    }
}

#[test]
fn readers_that_poll_take_only_what_can_be_polled() {
    let folder = tempfile::tempdir().unwrap();
    let polled = ReaderOptions {
        polled: true,
        ..OPTIONS
    };
    let Some(mut reader) = reader(polled) else {
        return;
    };
    let file = open(&make(folder.path(), 3));
    let Some(why) = file.why_unpolled().map(str::to_owned) else {
        // A disk that can be polled: then it is read.
        let id = reader.add(file).unwrap();
        reader.submit(id, 0, DIRECT_ALIGN, 1).unwrap();
        assert_eq!(finish(&mut reader)[&1].as_deref(), Ok(&page(3, 0)[..]));
        return;
    };
    println!("not polled: {why}");
    let error = reader.add(file).unwrap_err();
    assert!(matches!(error, ArenaError::NotPolled { .. }), "{error}");
    assert!(error.to_string().contains(&why), "{error}");
}

/// A thread that has nothing else to do can wait for what was asked for.
#[test]
fn the_descriptor_is_readable_when_something_has_come() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = reader(OPTIONS) else {
        return;
    };
    let id = reader.add(open(&make(folder.path(), 3))).unwrap();
    let readable = |reader: &DirectReader, patience: Option<&Timespec>| {
        let mut fds = [PollFd::new(reader, PollFlags::IN)];
        poll(&mut fds, patience).unwrap() == 1
    };
    let at_once = Timespec::default();
    assert!(!readable(&reader, Some(&at_once)), "nothing was asked for");
    let mut sum = 0;
    for round in 0..20 {
        reader.submit(id, 0, DIRECT_ALIGN, round).unwrap();
        // What was asked for may be answered in the poll that begins it.
        let mut poll = |reader: &mut DirectReader| {
            let add = |_, bytes: Result<&[u8], ReadError>| sum += u64::from(bytes.unwrap()[0]);
            reader.poll(usize::MAX, add).unwrap()
        };
        poll(&mut reader);
        while reader.in_flight() > 0 {
            assert!(readable(&reader, None));
            poll(&mut reader);
        }
    }
    assert_eq!(sum, 60, "the first byte of a page is its file's number");
}

#[test]
fn nothing_is_allocated_after_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = reader(OPTIONS) else {
        return;
    };
    let id = reader.add(open(&make(folder.path(), 3))).unwrap();
    let mut sum = 0u64;
    let counted = allocation_counter::measure(|| {
        for round in 0..100 {
            let offset = round % (PAGES - 1) * DIRECT_ALIGN as u64;
            reader.submit(id, offset, 2 * DIRECT_ALIGN, round).unwrap();
            if reader.in_flight() < OPTIONS.slots {
                continue;
            }
            while reader.in_flight() > 0 {
                reader
                    .poll(usize::MAX, |_, bytes| sum += u64::from(bytes.unwrap()[0]))
                    .unwrap();
            }
        }
    });
    assert_eq!(sum, 300, "the first byte of a page is its file's number");
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

#[test]
fn overwritten_files_give_what_is_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut reader) = reader(OPTIONS) else {
        return;
    };
    let path = make(folder.path(), 4);
    let id = reader.add(open(&path)).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&page(5, 5), 0).unwrap();
    reader.submit(id, 0, DIRECT_ALIGN, 1).unwrap();
    assert_eq!(finish(&mut reader)[&1].as_deref(), Ok(&page(5, 5)[..]));
}

#[test]
#[should_panic(expected = "whole pages")]
fn parts_of_pages() {
    let Some(mut reader) = reader(OPTIONS) else {
        panic!("whole pages can't be tried: no io_uring here");
    };
    let folder = tempfile::tempdir().unwrap();
    let id = reader.add(open(&make(folder.path(), 1))).unwrap();
    let _ = reader.submit(id, 512, DIRECT_ALIGN, 1);
}
