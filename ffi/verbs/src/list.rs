//! The memory of lists of work requests, made once and filled again and again.

use core::mem;
use core::ptr;

use crate::error::{Call, Error};
use crate::memory::Remote;
use crate::post::{BATCH, Operation, Piece};
use crate::slab::Block;
use crate::sys;
use crate::work_id::WorkId;

/// The memory of a list: requests, their pieces, and their inline bytes.
pub(crate) struct PostList {
    requests: Box<[sys::ibv_send_wr]>,
    pieces: Box<[sys::ibv_sge]>,
    inline: Box<[u8]>,
    pieces_each: usize,
    inline_each: usize,
}

impl PostList {
    pub(crate) fn new(pieces_each: usize, inline_each: usize) -> PostList {
        // SAFETY: requests are plain numbers and pointers, for which zero is valid.
        let request = || unsafe { mem::zeroed::<sys::ibv_send_wr>() };
        let piece = || sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        PostList {
            requests: (0..BATCH).map(|_| request()).collect(),
            pieces: (0..BATCH * pieces_each).map(|_| piece()).collect(),
            inline: vec![0; BATCH * inline_each].into(),
            pieces_each,
            inline_each,
        }
    }

    /// Sets the memory of request `at` to pieces of a block; how many bytes they are together.
    pub(crate) fn set_pieces(
        &mut self,
        at: usize,
        block: &Block,
        key: u32,
        pieces: &[Piece],
    ) -> usize {
        assert!(pieces.len() <= self.pieces_each, "few enough pieces");
        let first = at * self.pieces_each;
        let mut bytes = 0;
        for (place, piece) in self.pieces[first..].iter_mut().zip(pieces) {
            let end = piece.offset.checked_add(piece.len);
            let inside = end.is_some_and(|end| end <= block.len());
            assert!(inside, "{piece:?} of a block of {} bytes", block.len());
            place.addr = block.start().as_ptr() as u64 + piece.offset as u64;
            place.length = u32::try_from(piece.len).expect("a piece below 4 GiB");
            place.lkey = key;
            bytes += piece.len;
        }
        self.requests[at].num_sge = pieces.len() as i32;
        bytes
    }

    /// Copies bytes for request `at`.
    pub(crate) fn set_inline(&mut self, at: usize, bytes: &[u8]) {
        let copy = &mut self.inline[at * self.inline_each..][..bytes.len()];
        copy.copy_from_slice(bytes);
        let place = &mut self.pieces[at * self.pieces_each];
        place.addr = copy.as_ptr() as u64;
        place.length = bytes.len() as u32;
        place.lkey = 0;
        self.requests[at].num_sge = i32::from(!bytes.is_empty());
    }

    /// Sets the rest of request `at`.
    pub(crate) fn set(&mut self, at: usize, id: WorkId, operation: Operation, flags: u32) {
        use sys::ibv_wr_opcode as opcode;
        let nowhere = Remote { address: 0, key: 0 };
        let (code, remote, immediate) = match operation {
            Operation::Write(remote) => (opcode::IBV_WR_RDMA_WRITE, remote, 0),
            Operation::WriteImmediate(remote, immediate) => {
                (opcode::IBV_WR_RDMA_WRITE_WITH_IMM, remote, immediate)
            }
            Operation::Read(remote) => (opcode::IBV_WR_RDMA_READ, remote, 0),
            Operation::Send => (opcode::IBV_WR_SEND, nowhere, 0),
        };
        let request = &mut self.requests[at];
        request.wr_id = id.raw();
        request.opcode = code;
        request.send_flags = flags;
        request.imm_data_invalidated_rkey_union = sys::imm_data_invalidated_rkey_union_t {
            // Verbs want it in network order.
            imm_data: immediate.to_be(),
        };
        request.wr = sys::wr_t {
            rdma: sys::rdma_t {
                remote_addr: remote.address,
                rkey: remote.key,
            },
        };
    }

    /// Posts the first `count` requests; how many were taken, and what became of the next one.
    ///
    /// # Safety
    /// The queue pair must be valid, and what the pieces name must stay valid and unused until the requests are done.
    pub(crate) unsafe fn post(
        &mut self,
        qp: *mut sys::ibv_qp,
        count: usize,
    ) -> (usize, Result<(), Error>) {
        let requests = self.requests.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        for at in 0..count {
            // SAFETY: at < BATCH, so all places are inside the arrays, which don't move.
            unsafe {
                let request = requests.add(at);
                (*request).sg_list = pieces.add(at * self.pieces_each);
                (*request).next = match at + 1 {
                    next if next < count => requests.add(next),
                    _ => ptr::null_mut(),
                };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the list is linked and ends with null; the rest is the caller's promise.
        let answer = unsafe { sys::ibv_post_send(qp, requests, &mut bad) };
        match sys::check(Call::PostSend, answer) {
            Ok(()) => (count, Ok(())),
            Err(error) => (posted_before(requests, bad, count), Err(error)),
        }
    }

    /// Posts a request without memory that is always signalled.
    ///
    /// # Safety
    /// The queue pair must be valid and in the error state.
    pub(crate) unsafe fn post_beacon(
        &mut self,
        qp: *mut sys::ibv_qp,
        id: WorkId,
    ) -> Result<(), Error> {
        self.requests[0].num_sge = 0;
        let signalled = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        self.set(0, id, Operation::Send, signalled);
        // SAFETY: by the caller's promise; the request names no memory.
        unsafe { self.post(qp, 1) }.1
    }
}

/// Requests of an array that were posted before the one that failed; all where the provider does not say which one
/// it was, since then any of them may be in the device's hands.
fn posted_before<R>(first: *const R, bad: *const R, count: usize) -> usize {
    let bytes = bad.addr().checked_sub(first.addr());
    let at = bytes.map(|bytes| bytes / size_of::<R>());
    at.filter(|at| *at < count).unwrap_or(count)
}

/// The memory of a list of receives.
pub(crate) struct ReceiveList {
    requests: Box<[sys::ibv_recv_wr]>,
    pieces: Box<[sys::ibv_sge]>,
}

impl ReceiveList {
    /// Most receives of a list: they are given back in small numbers.
    pub(crate) const LONGEST: usize = 32;

    pub(crate) fn new() -> ReceiveList {
        // SAFETY: requests are plain numbers and pointers, for which zero is valid.
        let request = || unsafe { mem::zeroed::<sys::ibv_recv_wr>() };
        let piece = || sys::ibv_sge {
            addr: 0,
            length: 0,
            lkey: 0,
        };
        ReceiveList {
            requests: (0..Self::LONGEST).map(|_| request()).collect(),
            pieces: (0..Self::LONGEST).map(|_| piece()).collect(),
        }
    }

    /// Sets receive `at`, into a piece of memory or into none.
    pub(crate) fn set(&mut self, at: usize, id: WorkId, piece: Option<sys::ibv_sge>) {
        let request = &mut self.requests[at];
        request.wr_id = id.raw();
        request.num_sge = i32::from(piece.is_some());
        if let Some(piece) = piece {
            self.pieces[at] = piece;
        }
    }

    /// Posts the first `count` receives; how many were taken, and what became of the next one.
    ///
    /// # Safety
    /// As for [`PostList::post`].
    pub(crate) unsafe fn post(
        &mut self,
        qp: *mut sys::ibv_qp,
        count: usize,
    ) -> (usize, Result<(), Error>) {
        let requests = self.requests.as_mut_ptr();
        let pieces = self.pieces.as_mut_ptr();
        for at in 0..count {
            // SAFETY: at < LONGEST, so all places are inside the arrays, which don't move.
            unsafe {
                let request = requests.add(at);
                (*request).sg_list = pieces.add(at);
                (*request).next = match at + 1 {
                    next if next < count => requests.add(next),
                    _ => ptr::null_mut(),
                };
            }
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the list is linked and ends with null; the rest is the caller's promise.
        let answer = unsafe { sys::ibv_post_recv(qp, requests, &mut bad) };
        match sys::check(Call::PostRecv, answer) {
            Ok(()) => (count, Ok(())),
            Err(error) => (posted_before(requests, bad, count), Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work_id::Kind;

    #[test]
    fn the_failed_request_tells_how_many_were_posted() {
        let list = [0u64; 4];
        let first = list.as_ptr();
        for (at, place) in list.iter().enumerate() {
            assert_eq!(posted_before(first, place, 4), at);
        }
        assert_eq!(posted_before(first, ptr::null(), 4), 4);
        assert_eq!(posted_before(first, first.wrapping_add(9), 4), 4);
        assert_eq!(posted_before(first, first.wrapping_sub(1), 4), 4);
    }

    #[test]
    fn immediates_travel_in_network_order() {
        let mut list = PostList::new(1, 8);
        let id = WorkId::new(Kind::Send, 1, 2, 3);
        let remote = Remote {
            address: 0x1000,
            key: 9,
        };
        list.set_inline(2, &[5; 8]);
        list.set(2, id, Operation::WriteImmediate(remote, 0x0102_0304), 0);
        let request = &list.requests[2];
        // SAFETY: `set` has written both unions as what is read here.
        let (immediate, rdma) = unsafe {
            let immediate = request.imm_data_invalidated_rkey_union.imm_data;
            (immediate.to_ne_bytes(), request.wr.rdma)
        };
        assert_eq!(immediate, [1, 2, 3, 4]);
        assert_eq!((rdma.remote_addr, rdma.rkey), (0x1000, 9));
        assert_eq!((request.wr_id, request.num_sge), (id.raw(), 1));
        assert_eq!(list.inline[16..24], [5; 8]);
    }
}
