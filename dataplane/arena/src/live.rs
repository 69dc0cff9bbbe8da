//! Memory of which some ranges are written while threads read them, and the rest never again.

use core::ops::Range;
use core::ptr::NonNull;

use crate::{Arena, Backing, ReadWindow, Window};

/// An arena with ranges that stay open to be written, by an order of their users' own: these are reached as a [`Window`], what lies
/// between them as bytes. `Send` and `Sync`; put it into an `Arc` to share it.
#[derive(Debug)]
pub struct LiveArena {
    arena: Arena,
    /// Ascending, and apart.
    open: Box<[Range<usize>]>,
}

impl Arena {
    /// Gives up the exclusive right to the bytes: those in `open` can be read and written by all, the others are never written again.
    ///
    /// # Panics
    /// Unless the ranges are ascending, apart and inside.
    pub fn open(self, open: Vec<Range<usize>>) -> LiveArena {
        let mut end = 0;
        for range in &open {
            let is_apart = end <= range.start && range.start <= range.end;
            assert!(
                is_apart && range.end <= self.len(),
                "open ranges are ascending, apart and inside"
            );
            end = range.end;
        }
        LiveArena {
            arena: self,
            open: open.into(),
        }
    }
}

impl LiveArena {
    /// What the arena is made of.
    pub fn backing(&self) -> &Backing {
        self.arena.backing()
    }

    /// Bytes asked for.
    pub fn len(&self) -> usize {
        self.arena.len()
    }

    /// Never true: an arena has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The address of a range.
    fn start_of(&self, range: &Range<usize>) -> NonNull<u8> {
        assert!(
            range.start <= range.end && range.end <= self.arena.len(),
            "bytes inside the arena"
        );
        // SAFETY: the range lies inside the arena's mapping (asserted), so its start does, or is one past it.
        unsafe { self.arena.start().add(range.start) }
    }

    /// Bytes that nobody writes.
    ///
    /// # Panics
    /// If they are not inside, or some of them are open.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        let start = self.start_of(&range);
        let meets = |open: &Range<usize>| open.start < range.end && range.start < open.end;
        assert!(
            !self.open.iter().any(meets),
            "no reference is made to bytes that are open to be written"
        );
        // SAFETY: the bytes are inside the arena (asserted), present and readable as long as `self`. Nothing writes them: `&mut` to
        // them took an `Arena`, which was consumed, and windows that write are made of open ranges only, of which they are none.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), range.len()) }
    }

    /// Bytes that are open.
    ///
    /// # Panics
    /// If they don't lie in one open range.
    pub fn window(&self, range: Range<usize>) -> Window<'_> {
        let start = self.start_of(&range);
        let holds = |open: &Range<usize>| open.start <= range.start && range.end <= open.end;
        assert!(
            self.open.iter().any(holds),
            "only what is open can be written"
        );
        // SAFETY: the bytes are inside the arena (asserted), present, readable and writable as long as `self`. No reference to them is
        // made: `bytes` makes none to what is open, and `&mut` took an `Arena`, which was consumed.
        unsafe { Window::from_raw(start, range.len()) }
    }

    /// Bytes of any kind, to be read only.
    ///
    /// # Panics
    /// If they are not inside.
    pub fn to_read(&self, range: Range<usize>) -> ReadWindow<'_> {
        let start = self.start_of(&range);
        // SAFETY: the bytes are inside the arena (asserted), present and readable as long as `self`; there is no mutable reference to
        // them, since that took an `Arena`, which was consumed.
        unsafe { ReadWindow::from_raw(start, range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::HugePages;

    fn live() -> LiveArena {
        let mut arena = Arena::allocate(1000, HugePages::Off).unwrap();
        arena.as_mut_slice()[..100].fill(1);
        arena.as_mut_slice()[100..200].fill(2);
        arena.open(vec![100..200, 200..300, 500..1000])
    }

    #[test]
    fn what_is_open_is_written_by_all_and_the_rest_stays() {
        let live = Arc::new(live());
        let other = Arc::clone(&live);
        std::thread::spawn(move || other.window(100..200).write(10, &[7; 4]))
            .join()
            .unwrap();
        let mut bytes = [0; 6];
        live.to_read(50..1000).read(59, &mut bytes);
        assert_eq!(bytes, [2, 7, 7, 7, 7, 2]);
        assert_eq!(live.bytes(0..100), [1; 100]);
        assert_eq!(live.bytes(300..500), [0; 200]);
        assert_eq!((live.len(), live.is_empty()), (1000, false));
        assert_eq!(*live.backing(), Backing::Small);
    }

    #[test]
    #[should_panic(expected = "no reference is made")]
    fn no_reference_to_what_is_open() {
        live().bytes(50..101);
    }

    #[test]
    #[should_panic(expected = "only what is open")]
    fn no_writing_of_what_is_not() {
        live().window(450..510);
    }

    #[test]
    #[should_panic(expected = "bytes inside")]
    fn nothing_outside() {
        live().to_read(900..1001);
    }

    #[test]
    #[should_panic(expected = "ascending, apart and inside")]
    fn ranges_that_meet() {
        let arena = Arena::allocate(1000, HugePages::Off).unwrap();
        arena.open(vec![0..10, 9..20]);
    }
}
