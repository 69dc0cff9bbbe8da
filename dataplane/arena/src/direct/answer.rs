//! What the kernel's answer to a read means: done, to be gone on with, or failed. Pure, so that answers that no
//! disk here gives can be tried.

use std::fmt;
use std::io;

use rustix::io::Errno;

use super::DIRECT_ALIGN;

/// How often a read is tried again that the kernel puts off. Each try is a poll later, so that this is not about
/// a full queue of the disk, which empties meanwhile.
const MAX_TRIES: u8 = 16;

/// Why a read gave no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    /// The file ends before the last byte asked for: it was truncated.
    Truncated,
    /// The kernel's error, by its number: EIO for a disk that fails.
    Os(i32),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Truncated => {
                f.write_str("the file ends before what was to be read; copy it again")
            }
            ReadError::Os(number) => {
                let error = io::Error::from_raw_os_error(*number);
                write!(f, "the file can't be read: {error}; look at its disk")
            }
        }
    }
}

impl std::error::Error for ReadError {}

/// What is to be done next about a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// All bytes are there.
    Done,
    /// The rest is to be asked for again.
    Again,
    /// No bytes will come.
    Failed(ReadError),
}

/// How far a read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// Bytes asked for, a multiple of [`DIRECT_ALIGN`].
    pub(super) len: u32,
    /// Bytes that are there, a multiple of it too.
    pub(super) done: u32,
    /// How often the kernel put it off.
    pub(super) tries: u8,
}

impl Extent {
    pub(super) fn new(len: u32) -> Extent {
        Extent {
            len,
            ..Extent::default()
        }
    }

    /// Takes in the kernel's answer to a read of what was missing: bytes, or an error's number negated.
    pub(super) fn take(&mut self, answer: i32) -> Step {
        let Ok(bytes) = u32::try_from(answer) else {
            let put_off = [Errno::INTR, Errno::AGAIN]
                .iter()
                .any(|errno| errno.raw_os_error() == -answer);
            if !put_off || self.tries == MAX_TRIES {
                return Step::Failed(ReadError::Os(-answer));
            }
            self.tries += 1;
            return Step::Again;
        };
        assert!(bytes <= self.len - self.done, "no more than was asked for");
        if bytes == self.len - self.done {
            self.done = self.len;
            return Step::Done;
        }
        // What O_DIRECT gives ends within a page at the file's end only, and there is no more to come then. A
        // read that goes on from a whole page makes progress each time, so it ends.
        let whole = bytes - bytes % DIRECT_ALIGN as u32;
        if whole == 0 {
            return Step::Failed(ReadError::Truncated);
        }
        self.done += whole;
        Step::Again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: i32 = DIRECT_ALIGN as i32;

    /// Three pages, and the steps that these answers lead to.
    fn steps(answers: &[i32]) -> Vec<Step> {
        let mut extent = Extent::new(3 * DIRECT_ALIGN as u32);
        answers.iter().map(|&answer| extent.take(answer)).collect()
    }

    #[test]
    fn answers_and_what_they_mean() {
        use Step::{Again, Done, Failed};
        let eio = Errno::IO.raw_os_error();
        let eintr = Errno::INTR.raw_os_error();
        let eagain = Errno::AGAIN.raw_os_error();
        let truncated = Failed(ReadError::Truncated);
        assert_eq!(steps(&[3 * PAGE]), [Done]);
        assert_eq!(steps(&[PAGE, 2 * PAGE]), [Again, Done]);
        assert_eq!(steps(&[PAGE, PAGE, PAGE]), [Again, Again, Done]);
        // The rest of a page is read again, from its start.
        assert_eq!(steps(&[PAGE + 512, 2 * PAGE]), [Again, Done]);
        assert_eq!(steps(&[0]), [truncated]);
        assert_eq!(steps(&[100]), [truncated]);
        assert_eq!(steps(&[2 * PAGE, 0]), [Again, truncated]);
        assert_eq!(steps(&[2 * PAGE, 4095]), [Again, truncated]);
        assert_eq!(steps(&[-eio]), [Failed(ReadError::Os(eio))]);
        assert_eq!(steps(&[PAGE, -eio]), [Again, Failed(ReadError::Os(eio))]);
        assert_eq!(
            steps(&[-eintr, PAGE, -eagain, 2 * PAGE]),
            [Again, Again, Again, Done]
        );
    }

    #[test]
    fn what_is_put_off_for_ever_fails() {
        let eagain = Errno::AGAIN.raw_os_error();
        let all = steps(&[-eagain; MAX_TRIES as usize + 1]);
        let (last, before) = all.split_last().unwrap();
        assert!(before.iter().all(|&step| step == Step::Again));
        assert_eq!(*last, Step::Failed(ReadError::Os(eagain)));
    }

    #[test]
    #[should_panic(expected = "no more than was asked for")]
    fn more_than_was_asked_for() {
        steps(&[PAGE, 3 * PAGE]);
    }

    #[test]
    fn errors_say_what_to_do() {
        assert!(ReadError::Truncated.to_string().contains("copy it again"));
        let text = ReadError::Os(Errno::IO.raw_os_error()).to_string();
        assert!(text.contains("look at its disk"), "{text}");
    }
}
