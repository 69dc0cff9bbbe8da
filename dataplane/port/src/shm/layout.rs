//! Where everything lies in a connection's control memory.
//!
//! The server makes one sealed memfd a connection. It holds one block a lane, and a block holds, in
//! this order, each word that is written by one side and read by the other on a 128-byte line of its
//! own (two cache lines, since x86 fetches them in pairs):
//!
//! | at | what | written by |
//! |---|---|---|
//! | 0 | submission tail: u32, submissions so far, modulo 2^32 | client |
//! | 128 | worker sleeping: u32, 1 while the worker may sleep | worker; client sets 0 |
//! | 256 | completion tail: u32, records so far, modulo 2^32 | worker |
//! | 384 | client sleeping: u32, 1 while the client may sleep | client; worker sets 0 |
//! | 512 | submission queue: u32 immediates | client |
//! | then | completion queue: 64-byte status records, on a multiple of 128 | worker |
//! | then | request slots of 8 KiB, on a multiple of 4096 | client |
//!
//! All numbers are little endian. Each reader keeps its own head in private memory.

use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::limits::{MAX_CREDITS, MAX_SLICES, SLOT_BYTES};

/// Bytes between words of different writers.
pub const LINE_BYTES: usize = 128;
/// Place of the submission tail in a lane's block.
pub const SUBMISSION_TAIL: usize = 0;
/// Place of the word that says whether the worker sleeps.
pub const WORKER_SLEEPING: usize = LINE_BYTES;
/// Place of the completion tail.
pub const COMPLETION_TAIL: usize = 2 * LINE_BYTES;
/// Place of the word that says whether the client sleeps.
pub const CLIENT_SLEEPING: usize = 3 * LINE_BYTES;
/// Place of the submission queue.
pub const SUBMISSIONS: usize = 4 * LINE_BYTES;

/// Most lanes: the kernel passes at most 253 descriptors in a message, of which one is the control
/// memory, one the client's wake-up socket, and the others are a doorbell a lane.
pub const MAX_LANES: u16 = 251;

/// Submissions that one slot can have waiting: the cancel of its last request (which the worker had
/// not read when it finished that request), a request, and its cancel. Not more, since the worker reads
/// in order: once it has finished a request it has read all that was submitted before it.
const SUBMISSIONS_PER_SLOT: u32 = 3;

const PAGE: usize = 4096;

/// The places of a connection's lanes, which follow from three numbers of the welcome message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    lanes: u16,
    credits: u16,
    completions: u32,
}

impl Layout {
    /// The layout for `lanes` lanes of `credits` slots and `completions` records each; `None` where a
    /// number is out of its bounds or the completion queue could overflow.
    pub fn new(lanes: u16, credits: u16, completions: u32) -> Option<Layout> {
        let fits = (1..=MAX_LANES).contains(&lanes)
            && (1..=MAX_CREDITS).contains(&credits)
            && completions == Layout::completions_for(credits);
        fits.then_some(Layout {
            lanes,
            credits,
            completions,
        })
    }

    /// Records of a completion queue that can't overflow: each credit's request causes at most
    /// [`MAX_SLICES`] records, and its slot is not used again before the last of them was read.
    pub fn completions_for(credits: u16) -> u32 {
        (u32::from(credits) * MAX_SLICES).next_power_of_two()
    }

    /// Lanes.
    pub fn lanes(&self) -> u16 {
        self.lanes
    }

    /// Request slots a lane.
    pub fn credits(&self) -> u16 {
        self.credits
    }

    /// Records of a completion queue, a power of two.
    pub fn completions(&self) -> u32 {
        self.completions
    }

    /// Entries of a submission queue, a power of two: three a slot.
    pub fn submissions(&self) -> u32 {
        (u32::from(self.credits) * SUBMISSIONS_PER_SLOT).next_power_of_two()
    }

    /// Bytes from one lane's block to the next.
    pub fn lane_bytes(&self) -> usize {
        self.slots() + usize::from(self.credits) * SLOT_BYTES
    }

    /// Bytes of the whole memfd.
    pub fn total_bytes(&self) -> usize {
        usize::from(self.lanes) * self.lane_bytes()
    }

    /// Place of a submission, numbered from 0 modulo 2^32, in its lane's block.
    pub fn submission(&self, number: u32) -> usize {
        SUBMISSIONS + 4 * (number & (self.submissions() - 1)) as usize
    }

    /// Place of a status record, numbered from 0 modulo 2^32, in its lane's block.
    pub fn completion(&self, number: u32) -> usize {
        self.completion_queue() + COMPLETION_BYTES * (number & (self.completions - 1)) as usize
    }

    /// Place of a request slot in its lane's block.
    pub fn slot(&self, slot: u16) -> usize {
        self.slots() + usize::from(slot) * SLOT_BYTES
    }

    fn completion_queue(&self) -> usize {
        (SUBMISSIONS + 4 * self.submissions() as usize).next_multiple_of(LINE_BYTES)
    }

    fn slots(&self) -> usize {
        (self.completion_queue() + COMPLETION_BYTES * self.completions as usize)
            .next_multiple_of(PAGE)
    }
}

const _: () = {
    // Numbers run modulo 2^32, so queues have to be smaller than half of that.
    assert!((MAX_CREDITS as u32 * MAX_SLICES).next_power_of_two() < 1 << 31);
    assert!(SLOT_BYTES.is_multiple_of(PAGE));
    assert!(COMPLETION_BYTES * 2 == LINE_BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_everything_fits() {
        for (lanes, credits) in [(1, 1), (1, 3), (2, 64), (5, 100), (MAX_LANES, 256)] {
            let layout = Layout::new(lanes, credits, Layout::completions_for(credits)).unwrap();
            let last_submission = layout.submission(layout.submissions() - 1) + 4;
            assert!(last_submission <= layout.completion(0));
            assert!(layout.completion(0).is_multiple_of(LINE_BYTES));
            let last_record = layout.completion(layout.completions() - 1) + COMPLETION_BYTES;
            assert!(last_record <= layout.slot(0));
            assert!(layout.slot(0).is_multiple_of(PAGE));
            assert_eq!(layout.slot(credits), layout.lane_bytes());
            assert!(layout.lane_bytes().is_multiple_of(PAGE));
            assert_eq!(
                layout.total_bytes(),
                layout.lane_bytes() * usize::from(lanes)
            );
        }
    }

    #[test]
    fn numbers_wrap_into_the_queue() {
        let layout = Layout::new(1, 4, 256).unwrap();
        assert_eq!(layout.submissions(), 16);
        assert_eq!(layout.submission(16), layout.submission(0));
        assert_eq!(layout.submission(u32::MAX), layout.submission(15));
        assert_eq!(layout.completion(256), layout.completion(0));
        assert_eq!(layout.completion(u32::MAX), layout.completion(255));
    }

    #[test]
    fn impossible_layouts_are_refused() {
        for (lanes, credits, completions) in [
            (0, 1, 64),
            (MAX_LANES + 1, 1, 64),
            (1, 0, 1),
            (1, MAX_CREDITS + 1, 32768),
            (1, 4, 128),
            (1, 4, 512),
            (1, 4, 255),
        ] {
            assert_eq!(Layout::new(lanes, credits, completions), None);
        }
    }
}
