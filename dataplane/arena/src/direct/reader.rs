//! Reads of files, many in flight at a time, into buffers that are registered with the kernel.

use core::mem::ManuallyDrop;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};

use super::DIRECT_ALIGN;
use super::answer::{Extent, ReadError, Step};
use super::file::DirectFile;
use super::ring::{put_off, ring};
use crate::{Arena, ArenaError, HugePages};

/// Most slots: what `io_uring_setup` allows as entries of a submission queue.
const MAX_SLOTS: u32 = 32_768;
/// The kernel's number for "no file here" in its table of files.
const NO_FILE: i32 = -1;

/// How large a reader is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReaderOptions {
    /// Reads in flight at most, each with a buffer of its own; 1 to 32768.
    pub slots: u32,
    /// Bytes of a buffer, a multiple of [`DIRECT_ALIGN`]: the longest read.
    pub slot_bytes: usize,
    /// Files at most.
    pub files: u32,
    /// Whether completions are polled for at the device. Then only files whose device can be polled are taken.
    pub polled: bool,
    /// The pages of the buffers.
    pub huge_pages: HugePages,
}

/// A file of a [`DirectReader`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileId(u32);

/// All buffers are taken; some are free again after a poll that hands out reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotsTaken;

impl fmt::Display for SlotsTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many reads are in flight as there are buffers; poll, then ask again")
    }
}

impl std::error::Error for SlotsTaken {}

/// One buffer, and the read that fills it.
#[derive(Clone, Copy, Debug)]
struct Slot {
    token: u64,
    offset: u64,
    file: u32,
    extent: Extent,
}

/// A file and how many reads of it are in flight.
#[derive(Debug)]
struct Reading {
    file: DirectFile,
    in_flight: u32,
}

/// Reads parts of files by io_uring into a fixed number of buffers. Belongs to one thread, which asks by
/// [`submit`](DirectReader::submit) and gets answers by [`poll`](DirectReader::poll); neither waits, allocates or
/// locks, and a poll makes at most one system call.
///
/// # Who owns a buffer
///
/// A slot and its buffer are free, or belong to one read from `submit` until the `poll` that hands the read out.
///
/// 1. `submit` takes a free slot and puts a read of its buffer into the submission queue. From then on the buffer is
///    the kernel's: no reference to it exists and none is made.
/// 2. The kernel writes the buffer until it has put the read's answer into the completion queue, and not after.
///    There is one answer a read, since no flag asks for more. Where the answer says that a part is missing, the
///    read of the rest is put into the queue, and the buffer stays the kernel's.
/// 3. When `poll` has taken the final answer out of the queue, the buffer is ours. It is lent to the caller for
///    the call of its closure and is free after it; the poll has the reader borrowed meanwhile, so that nobody can
///    submit a read into it.
///
/// A deadline does not free a buffer: a read that the caller no longer wants stays the kernel's until its answer came,
/// for a read that a disk has been given can't be taken back. So whoever gives up on a read forgets its token, and
/// has a slot less until then.
///
/// When a reader is dropped with reads in flight, its buffers are leaked and not waited for: a disk that never answers
/// would hold up the thread for ever. They are at most `slots * slot_bytes`, and who does not want to lose them polls
/// until [`in_flight`](DirectReader::in_flight) is 0 before dropping it.
pub struct DirectReader {
    /// Closed by `drop`, before the buffers go.
    ring: ManuallyDrop<IoUring>,
    buffers: ManuallyDrop<Arena>,
    slot_bytes: usize,
    slots: Box<[Slot]>,
    /// The slots that no read has.
    free: Vec<u32>,
    files: Box<[Option<Reading>]>,
    polled: bool,
}

impl fmt::Debug for DirectReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectReader")
            .field("slots", &self.slots.len())
            .field("slot_bytes", &self.slot_bytes)
            .field("in_flight", &self.in_flight())
            .field("files", &self.files)
            .field("polled", &self.polled)
            .finish_non_exhaustive()
    }
}

impl DirectReader {
    /// Makes a reader without files.
    ///
    /// # Errors
    /// [`ArenaError::NoIoUring`] where the kernel has or allows no io_uring, [`ArenaError::NoRingMemory`] and
    /// [`ArenaError::NotRegistered`] where it does not let its queues or the buffers be locked, and those of [`Arena::allocate`].
    ///
    /// # Panics
    /// If a number of the options is 0 or too large, or `slot_bytes` is no multiple of [`DIRECT_ALIGN`].
    pub fn new(options: ReaderOptions) -> Result<DirectReader, ArenaError> {
        let ReaderOptions {
            slots,
            slot_bytes,
            files,
            polled,
            huge_pages,
        } = options;
        assert!((1..=MAX_SLOTS).contains(&slots), "1 to {MAX_SLOTS} slots");
        assert!(
            slot_bytes > 0 && slot_bytes.is_multiple_of(DIRECT_ALIGN),
            "buffers of whole pages"
        );
        assert!(files > 0, "at least one file");
        let total = (slots as usize).checked_mul(slot_bytes);
        let total = total.ok_or(ArenaError::ImpossibleSize { bytes: u64::MAX })?;
        // A registered buffer has 1 GiB at most, and its length 32 bits.
        assert!(total <= 1 << 30, "at most 1 GiB of buffers");
        let ring = ring(slots, polled)?;
        let mut buffers = Arena::allocate(total, huge_pages)?;
        let memory = libc::iovec {
            iov_base: buffers.as_mut_slice().as_mut_ptr().cast(),
            iov_len: total,
        };
        // SAFETY: the memory is mapped readable and writable, and it is unmapped only by dropping `buffers`: here
        // where something fails, with the ring (declared before it) closed after it but no read ever asked for, or by
        // the reader's `drop`, after the ring and with no read in flight.
        let registered = unsafe { ring.submitter().register_buffers(&[memory]) };
        registered.map_err(|source| ArenaError::NotRegistered {
            bytes: total as u64,
            source,
        })?;
        ring.submitter()
            .register_files(&vec![NO_FILE; files as usize])
            .map_err(|source| ArenaError::Os {
                call: "io_uring_register for files",
                source,
            })?;
        let none = Slot {
            token: 0,
            offset: 0,
            file: 0,
            extent: Extent::default(),
        };
        Ok(DirectReader {
            ring: ManuallyDrop::new(ring),
            buffers: ManuallyDrop::new(buffers),
            slot_bytes,
            slots: vec![none; slots as usize].into(),
            free: (0..slots).rev().collect(),
            files: (0..files).map(|_| None).collect(),
            polled,
        })
    }

    /// Takes a file in.
    ///
    /// # Errors
    /// [`ArenaError::NotPolled`] for a file whose device can't be polled, of a reader that polls;
    /// [`ArenaError::Os`].
    ///
    /// # Panics
    /// If the reader has as many files as its options say.
    pub fn add(&mut self, file: DirectFile) -> Result<FileId, ArenaError> {
        if self.polled
            && let Some(why) = file.why_unpolled()
        {
            return Err(ArenaError::NotPolled {
                path: file.path().to_owned(),
                why: why.to_owned(),
            });
        }
        let place = self.files.iter().position(Option::is_none);
        let place = place.expect("room for another file");
        self.register(place, file.as_fd().as_raw_fd())?;
        self.files[place] = Some(Reading { file, in_flight: 0 });
        Ok(FileId(place as u32))
    }

    /// Gives a file back, to be closed by dropping it. `None` as long as reads of it are in flight.
    ///
    /// # Errors
    /// [`ArenaError::Os`].
    ///
    /// # Panics
    /// If there is no such file.
    pub fn remove(&mut self, file: FileId) -> Result<Option<DirectFile>, ArenaError> {
        if self.reading(file).in_flight > 0 {
            return Ok(None);
        }
        self.register(file.0 as usize, NO_FILE)?;
        let removed = self.files[file.0 as usize].take();
        Ok(removed.map(|reading| reading.file))
    }

    /// The file of that number.
    ///
    /// # Panics
    /// If there is no such file.
    pub fn file(&self, file: FileId) -> &DirectFile {
        let reading = self.files[file.0 as usize].as_ref();
        &reading.expect("a file of this reader").file
    }

    /// Reads that were asked for and not handed out.
    pub fn in_flight(&self) -> u32 {
        (self.slots.len() - self.free.len()) as u32
    }

    /// Reads that can be in flight, each with a buffer.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Bytes of a buffer: the longest read.
    pub fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Whether completions are polled for at the device.
    pub fn polled(&self) -> bool {
        self.polled
    }

    /// Asks for `len` bytes of `file` from `offset` on. The kernel learns of it at the next poll.
    ///
    /// # Errors
    /// [`SlotsTaken`]; nothing was asked for then.
    ///
    /// # Panics
    /// If offset or length is no multiple of [`DIRECT_ALIGN`], the length is 0 or above a slot's, or there is no
    /// such file.
    pub fn submit(
        &mut self,
        file: FileId,
        offset: u64,
        len: usize,
        token: u64,
    ) -> Result<(), SlotsTaken> {
        assert!(
            offset.is_multiple_of(DIRECT_ALIGN as u64) && len.is_multiple_of(DIRECT_ALIGN),
            "whole pages"
        );
        assert!((1..=self.slot_bytes).contains(&len), "no more than a slot");
        let number = self.free.pop().ok_or(SlotsTaken)?;
        self.reading(file).in_flight += 1;
        let slot = Slot {
            token,
            offset,
            file: file.0,
            extent: Extent::new(len as u32),
        };
        self.slots[number as usize] = slot;
        let read = read_of(&self.buffers, self.slot_bytes, number, &slot);
        push(&mut self.ring.submission(), &read);
        Ok(())
    }

    /// Tells the kernel what was asked for, and hands out what has come, `most` reads at most: each one's token with its bytes, or
    /// why there are none. Gives how many were handed out.
    ///
    /// # Errors
    /// [`ArenaError::Os`] where the kernel refuses to be told; what was asked for stays so.
    pub fn poll(
        &mut self,
        most: usize,
        mut each: impl FnMut(u64, Result<&[u8], ReadError>),
    ) -> Result<usize, ArenaError> {
        self.enter()?;
        let mut handed_out = 0;
        while handed_out < most {
            // The queue is left before the closure is called, which may panic.
            let Some(answer) = self.ring.completion().next() else {
                break;
            };
            let number = answer.user_data() as u32;
            let slot = &mut self.slots[number as usize];
            let outcome = match slot.extent.take(answer.result()) {
                Step::Again => {
                    let read = read_of(&self.buffers, self.slot_bytes, number, slot);
                    push(&mut self.ring.submission(), &read);
                    continue;
                }
                Step::Done => Ok(slot.extent.len as usize),
                Step::Failed(error) => Err(error),
            };
            let slot = *slot;
            self.reading(FileId(slot.file)).in_flight -= 1;
            self.free.push(number);
            handed_out += 1;
            let bytes = outcome.map(|len| {
                let start = slot_start(&self.buffers, self.slot_bytes, number);
                // SAFETY: the slot's bytes are mapped, and were zeroed before the kernel filled them. The answer to
                // its read was taken from the queue, so the kernel writes them no more, and nobody can give them to
                // it while the reader is borrowed.
                unsafe { core::slice::from_raw_parts(start, len) }
            });
            each(slot.token, bytes);
        }
        Ok(handed_out)
    }

    /// Calls the kernel where there is anything to tell it or to have done by it.
    fn enter(&mut self) -> Result<(), ArenaError> {
        let waits = self.polled && self.in_flight() > 0;
        let queue = self.ring.submission();
        if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() && !waits {
            return Ok(());
        }
        drop(queue);
        match self.ring.submit() {
            Ok(_) => Ok(()),
            // What the kernel has no time or no memory for stays in the queue for the next poll.
            Err(error) if put_off(&error) => Ok(()),
            Err(source) => Err(ArenaError::Os {
                call: "io_uring_enter",
                source,
            }),
        }
    }

    fn register(&self, place: usize, descriptor: i32) -> Result<(), ArenaError> {
        let changed = self
            .ring
            .submitter()
            .register_files_update(place as u32, &[descriptor]);
        changed.map(drop).map_err(|source| ArenaError::Os {
            call: "io_uring_register for a file",
            source,
        })
    }

    fn reading(&mut self, file: FileId) -> &mut Reading {
        let reading = self.files[file.0 as usize].as_mut();
        reading.expect("a file of this reader")
    }
}

/// The ring's descriptor, for a thread that has nothing else to do: it is readable once there is something to hand out.
/// Only what the kernel was told of by a poll comes, and a read that it put off is told of again by the next one: so nobody sleeps
/// for ever.
impl AsFd for DirectReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring's own descriptor, which it closes when the reader is dropped and not before.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for DirectReader {
    fn drop(&mut self) {
        let unanswered = self.in_flight() > 0;
        // SAFETY: both are dropped here only, and not used after. The ring goes first, which closes its descriptor.
        // Then no read can be begun, and without one in flight nobody writes the buffers any more. With one in
        // flight they stay.
        unsafe {
            ManuallyDrop::drop(&mut self.ring);
            if !unanswered {
                ManuallyDrop::drop(&mut self.buffers);
            }
        }
    }
}

/// The first byte of a slot's buffer.
fn slot_start(buffers: &Arena, slot_bytes: usize, number: u32) -> *mut u8 {
    let at = number as usize * slot_bytes;
    assert!(at + slot_bytes <= buffers.len(), "a slot of the buffers");
    // SAFETY: inside the mapping (asserted).
    unsafe { buffers.start().add(at).as_ptr() }
}

/// The read of what a slot still lacks.
fn read_of(buffers: &Arena, slot_bytes: usize, number: u32, slot: &Slot) -> squeue::Entry {
    let Extent { len, done, .. } = slot.extent;
    // SAFETY: done < len <= slot_bytes, so the address lies inside the slot.
    let start = unsafe { slot_start(buffers, slot_bytes, number).add(done as usize) };
    opcode::ReadFixed::new(types::Fixed(slot.file), start, len - done, 0)
        .offset(slot.offset + u64::from(done))
        .build()
        .user_data(number.into())
}

fn push(queue: &mut squeue::SubmissionQueue<'_>, read: &squeue::Entry) {
    // SAFETY: the buffer is registered and belongs to this read until its answer came (see `DirectReader`), and the
    // file stays in the table until no read of it is in flight.
    let pushed = unsafe { queue.push(read) };
    pushed.expect("a place in the queue for each slot");
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{self, Write};

    /// A pipe is a file that answers when somebody writes to it.
    fn reader_of_a_pipe() -> Option<(DirectReader, FileId, io::PipeWriter)> {
        let options = ReaderOptions {
            slots: 2,
            slot_bytes: DIRECT_ALIGN,
            files: 1,
            polled: false,
            huge_pages: HugePages::Off,
        };
        let mut reader = match DirectReader::new(options) {
            Err(ArenaError::NoIoUring { source }) => {
                println!("skipped: no io_uring here ({source})");
                return None;
            }
            reader => reader.unwrap(),
        };
        let (pipe, writer) = io::pipe().unwrap();
        let file = fs::File::from(std::os::fd::OwnedFd::from(pipe));
        let id = reader.add(DirectFile::unchecked(file)).unwrap();
        Some((reader, id, writer))
    }

    /// Whether the address lies in a mapping of this process.
    fn is_mapped(address: usize) -> bool {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            (number(from)..number(to)).contains(&address)
        })
    }

    #[test]
    fn a_file_that_does_not_answer_keeps_its_slot_and_stays() {
        let Some((mut reader, pipe, mut writer)) = reader_of_a_pipe() else {
            return;
        };
        reader.submit(pipe, 0, DIRECT_ALIGN, 7).unwrap();
        for _ in 0..1000 {
            assert_eq!(reader.poll(1, |_, _| panic!("no answer")).unwrap(), 0);
        }
        assert_eq!(reader.in_flight(), 1);
        assert!(reader.remove(pipe).unwrap().is_none(), "it is being read");
        writer.write_all(&[9; DIRECT_ALIGN]).unwrap();
        while reader.in_flight() > 0 {
            let check = |token, bytes: Result<&[u8], ReadError>| {
                assert_eq!(token, 7);
                assert_eq!(bytes.unwrap(), [9; DIRECT_ALIGN]);
            };
            reader.poll(1, check).unwrap();
        }
        assert!(reader.remove(pipe).unwrap().is_some());
    }

    /// Whether the buffers of a reader are still there after it was dropped, with a read in flight or without.
    fn stay_after(read: bool) -> Option<bool> {
        let (mut reader, pipe, _writer) = reader_of_a_pipe()?;
        if read {
            reader.submit(pipe, 0, DIRECT_ALIGN, 7).unwrap();
            reader.poll(1, |_, _| panic!("no answer")).unwrap();
        }
        let address = reader.buffers.start().as_ptr() as usize;
        assert!(is_mapped(address));
        drop(reader);
        Some(is_mapped(address))
    }

    #[test]
    fn buffers_that_the_kernel_may_write_are_leaked_and_others_not() {
        for _ in 0..20 {
            assert_ne!(stay_after(true), Some(false));
        }
        // Other threads map memory where some was unmapped, but not each time.
        assert!((0..20).any(|_| stay_after(false) != Some(true)));
    }
}
