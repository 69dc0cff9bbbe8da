//! A worker's blocks: results are staged in them and sent from them, and request data are fetched into them.

use arrayvec::ArrayVec;
use rowmill_arena::{MAX_STRIPS, Strip};
use rowmill_verbs::{Block, HostMemory, Pages, Piece, Remote, Slab};

use super::config::kept_blocks;
use super::scatter::Scatter;
use crate::{ConnId, Extent, MAX_EXTENTS, PortError};

use super::failure::system;

/// What comes back with a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// It was staging.
    Staged,
    /// Data of a pull, its block of this number.
    Fetched { pull: u16, part: u16 },
    /// It was a status record, of a queue pair that sends none inline.
    Record,
}

/// A block that a worker has, or that waits to be sent.
#[derive(Default)]
pub(super) struct Staged {
    pub(super) block: Option<Block>,
    /// It waits for rows, and is one of those that may: it is none of the connection's others meanwhile.
    kept: bool,
    /// What of it is still to be sent, and where to.
    pub(super) scatter: Scatter,
    pub(super) strips: ArrayVec<Strip, MAX_STRIPS>,
    /// Where the strips' region begins at the client.
    pub(super) region: Base,
}

/// Blocks for results that a connection has, at the worker's or in the queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Those that are not kept.
    ordinary: u32,
    /// Those that wait for rows, or did so.
    kept: u32,
    /// How many of these do no longer, and are to come back.
    kept_sent: u32,
}

/// A place in a client's memory; all zeros where none is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Base {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Base {
    pub(super) fn at(self, offset: u64) -> Remote {
        Remote {
            address: self.address.wrapping_add(offset),
            key: self.key,
        }
    }
}

/// Data of one request: its extents lie one after the other in its blocks.
pub(super) struct Pull {
    /// Whose; `None` where it is free.
    pub(super) of: Option<(ConnId, u16)>,
    /// The worker has given it back; it is free when its blocks are.
    pub(super) released: bool,
    pub(super) extents: Vec<(Extent, Remote)>,
    pub(super) blocks: Vec<Option<Block>>,
    /// Blocks that are not back from the queue pair.
    pub(super) missing: u16,
    /// Bytes for which a READ was made.
    pub(super) asked: u64,
    pub(super) total: u64,
}

impl Pull {
    /// The next READ: which block, which bytes of it, from where, and whether it is the last one into that block.
    pub(super) fn next_read(&self, block_bytes: u64, message: u64) -> Option<Read> {
        if self.asked >= self.total {
            return None;
        }
        let mut before = 0;
        let (extent, remote) = self.extents.iter().find(|(extent, _)| {
            before += extent.len;
            self.asked < before
        })?;
        let inside = self.asked - (before - extent.len);
        let (part, at) = (self.asked / block_bytes, self.asked % block_bytes);
        let len = (extent.len - inside).min(block_bytes - at).min(message);
        let end = self.asked + len;
        Some(Read {
            part: part as u16,
            piece: Piece {
                offset: at as usize,
                len: len as usize,
            },
            remote: Remote {
                address: remote.address.wrapping_add(inside),
                key: remote.key,
            },
            fills: end == self.total || end.is_multiple_of(block_bytes),
        })
    }

    /// Copies bytes of an extent; false where they are not all of one.
    pub(super) fn read(&self, wanted: Extent, out: &mut [u8], block_bytes: u64) -> bool {
        let mut before = 0;
        for (extent, _) in &self.extents {
            let inside = extent.region == wanted.region
                && extent.offset <= wanted.offset
                && wanted.offset - extent.offset + wanted.len <= extent.len;
            if inside {
                return self.copy(before + (wanted.offset - extent.offset), out, block_bytes);
            }
            before += extent.len;
        }
        false
    }

    fn copy(&self, from: u64, out: &mut [u8], block_bytes: u64) -> bool {
        let (mut from, mut out) = (from, out);
        while !out.is_empty() {
            let (part, at) = (from / block_bytes, from % block_bytes);
            let Some(Some(block)) = self.blocks.get(part as usize) else {
                return false;
            };
            let len = out.len().min((block_bytes - at) as usize);
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(&block.as_slice()[at as usize..][..len]);
            (from, out) = (from + len as u64, later);
        }
        true
    }
}

/// A READ to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) part: u16,
    pub(super) piece: Piece,
    pub(super) remote: Remote,
    pub(super) fills: bool,
}

/// All blocks of a worker.
pub(super) struct Pool {
    pub(super) slab: Slab,
    pub(super) staged: Vec<Staged>,
    pub(super) pulls: Vec<Pull>,
    /// Blocks that hold fetched data, or are about to.
    pub(super) fetching: u32,
    /// Blocks that wait for rows, and how many may: nothing else is done with so many.
    kept: u32,
    keepable: u32,
}

impl Pool {
    pub(super) fn slab(blocks: u32, block_bytes: usize) -> Result<Slab, PortError> {
        let memory = HostMemory::new(blocks as usize * block_bytes, Pages::HugeOrSmall)
            .map_err(|e| system("making memory for results", e))?;
        tracing::info!(blocks, block_bytes, pages = ?memory.pages(), "a worker's memory for results");
        // Huge pages are rounded up; what is configured counts.
        let slab = Slab::new(memory, block_bytes);
        Ok(slab)
    }

    pub(super) fn new(slab: Slab, blocks: u32) -> Pool {
        let pull = |_| Pull {
            of: None,
            released: false,
            extents: Vec::with_capacity(MAX_EXTENTS),
            blocks: Vec::with_capacity(blocks as usize / 2),
            missing: 0,
            asked: 0,
            total: 0,
        };
        Pool {
            staged: (0..slab.blocks()).map(|_| Staged::default()).collect(),
            pulls: (0..blocks / 2).map(pull).collect(),
            slab,
            fetching: 0,
            kept: 0,
            keepable: kept_blocks(blocks),
        }
    }

    /// Blocks that are free for results and for fetched data.
    fn free(&self) -> u32 {
        let spare = self.keepable - self.kept;
        (self.slab.free() as u32).saturating_sub(spare)
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.slab.block_bytes() as u64
    }

    /// Blocks that can hold fetched data: half of those that are not kept, so that results always find room some time.
    pub(super) fn fetchable(&self) -> u32 {
        self.pulls.len() as u32
    }

    /// A block for results of a connection: so many clients that never take theirs leave some free, each a part of what the others left.
    pub(super) fn stage(&mut self, of: &mut Blocks) -> Option<u32> {
        if of.ordinary >= self.free() {
            return None;
        }
        let block = self.slab.take()?;
        let index = block.index();
        of.ordinary += 1;
        self.staged[index as usize].block = Some(block);
        Some(index)
    }

    /// Keeps a block of results that wait for rows, if the connection may: so many that wait leave some to others that do, each a part of what
    /// these left, and to all else what there is without those that may be kept.
    pub(super) fn keep(&mut self, block: u32, of: &mut Blocks) -> bool {
        let staged = &mut self.staged[block as usize];
        let may = !staged.kept && staged.block.is_some() && of.kept < self.keepable - self.kept;
        if may {
            staged.kept = true;
            self.kept += 1;
            of.kept += 1;
            of.ordinary -= 1;
        }
        may
    }

    /// A block is about to be sent. One that was kept counts as that until it is back.
    pub(super) fn send(&mut self, block: u32, of: &mut Blocks) {
        of.kept_sent += u32::from(std::mem::take(&mut self.staged[block as usize].kept));
    }

    /// A block is free again without having been sent. Of a connection that leaves [`Pool::part`] takes what it kept.
    pub(super) fn unstage(&mut self, block: u32, of: Option<&mut Blocks>) {
        let staged = &mut self.staged[block as usize];
        staged.block = None;
        match (std::mem::take(&mut staged.kept), of) {
            (true, Some(of)) => self.keep_less(of),
            (false, Some(of)) => of.ordinary = of.ordinary.saturating_sub(1),
            (_, None) => {}
        }
    }

    /// A block that was sent is back: which one says nothing, as long as there is one less.
    pub(super) fn came_back(&mut self, of: &mut Blocks) {
        if of.kept_sent > 0 {
            of.kept_sent -= 1;
            self.keep_less(of);
        } else {
            of.ordinary = of.ordinary.saturating_sub(1);
        }
    }

    fn keep_less(&mut self, of: &mut Blocks) {
        self.kept -= 1;
        of.kept -= 1;
    }

    /// A connection is handed over, with the blocks that are still to come back.
    pub(super) fn part(&mut self, of: &mut Blocks) {
        self.kept -= of.kept;
        *of = Blocks::default();
    }

    /// A free pull with blocks for `bytes`, for a connection whose pulls hold `held` blocks; `None` where there is no room
    /// now. One that has none gets what there is; a further one leaves others as much as it then holds.
    pub(super) fn pull(&mut self, held: u32, bytes: u64) -> Option<u16> {
        let wanted = bytes.div_ceil(self.block_bytes()) as u32;
        let free = self.free();
        let left = self.fetchable() - self.fetching;
        let fair = held == 0 || held + wanted <= left;
        if wanted > left || wanted > free || !fair {
            return None;
        }
        let at = self.pulls.iter().position(|pull| pull.of.is_none())?;
        let pull = &mut self.pulls[at];
        pull.blocks.clear();
        for _ in 0..wanted {
            let Some(block) = self.slab.take() else {
                pull.blocks.clear();
                return None;
            };
            pull.blocks.push(Some(block));
        }
        self.fetching += wanted;
        pull.missing = wanted as u16;
        (pull.released, pull.asked, pull.total) = (false, 0, bytes);
        Some(at as u16)
    }

    /// Makes a pull free, with the blocks that it has.
    pub(super) fn free_pull(&mut self, at: u16) {
        let pull = &mut self.pulls[usize::from(at)];
        if pull.of.take().is_some() {
            self.fetching -= pull.blocks.len() as u32;
            pull.blocks.clear();
            pull.extents.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RegionId;

    /// A pool of so many blocks, and of half as many for results that wait.
    fn pool(blocks: u32) -> Pool {
        let all = blocks + kept_blocks(blocks);
        let memory = HostMemory::new(all as usize * 4096, Pages::Small).expect("memory");
        Pool::new(Slab::new(memory, 4096), blocks)
    }

    /// How many blocks a client takes that never lets go.
    fn all_that_are_had(pool: &mut Pool, of: &mut Blocks) -> u32 {
        while pool.stage(of).is_some() {}
        of.ordinary
    }

    /// Those that a client keeps that waits for rows, beside one that it has not kept.
    fn all_that_are_kept(pool: &mut Pool, of: &mut Blocks) -> Vec<u32> {
        let mut kept = Vec::new();
        while let Some(block) = pool.stage(of) {
            if !pool.keep(block, of) {
                break;
            }
            assert!(!pool.keep(block, of), "it is kept once");
            kept.push(block);
        }
        kept
    }

    #[test]
    fn clients_that_never_let_go_leave_blocks_for_others() {
        let mut pool = pool(32);
        let held = [(); 3].map(|()| all_that_are_had(&mut pool, &mut Blocks::default()));
        assert_eq!(held, [16, 8, 4]);
        assert_eq!(pool.free(), 4);
    }

    #[test]
    fn clients_that_wait_leave_others_what_there_is_without_their_blocks() {
        let mut pool = pool(32);
        let mut clients = [Blocks::default(); 5];
        let kept = clients
            .each_mut()
            .map(|of| all_that_are_kept(&mut pool, of));
        let counts = kept.each_ref().map(Vec::len);
        assert_eq!(counts, [8, 4, 2, 1, 1]);
        // Each has the one that it may not keep.
        assert_eq!(pool.free(), 27);
        // Sent, they take nothing from others either, until they are back.
        let mut sent = Vec::new();
        for (of, kept) in clients.iter_mut().zip(&kept) {
            for &block in kept {
                pool.send(block, of);
                sent.push(pool.staged[block as usize].block.take());
            }
        }
        assert_eq!(pool.free(), 27);
        let (mut other, before) = (Blocks::default(), pool.slab.free());
        let block = pool.stage(&mut other).expect("others have what there is");
        assert!(!pool.keep(block, &mut other), "none is left to be kept");
        pool.unstage(block, Some(&mut other));
        assert_eq!(pool.slab.free(), before);
        for (of, kept) in clients.iter_mut().zip(&kept) {
            for _ in kept {
                sent.pop();
                pool.came_back(of);
                assert_eq!(pool.free(), 27);
            }
            assert_eq!((of.kept, of.kept_sent, of.ordinary), (0, 0, 1));
            pool.came_back(of);
            assert_eq!(*of, Blocks::default());
        }
        assert_eq!(pool.kept, 0);
    }

    #[test]
    fn blocks_that_are_given_back_or_parted_from_are_kept_no_more() {
        let mut pool = pool(32);
        let mut of = Blocks::default();
        let kept = all_that_are_kept(&mut pool, &mut of);
        let (back, sent) = kept.split_at(3);
        back.iter()
            .for_each(|&block| pool.unstage(block, Some(&mut of)));
        assert_eq!((pool.kept, of.kept, of.ordinary), (5, 5, 1));
        sent.iter().for_each(|&block| pool.send(block, &mut of));
        pool.came_back(&mut of);
        assert_eq!((pool.kept, of.kept_sent), (4, 4));
        pool.part(&mut of);
        assert_eq!((pool.kept, of), (0, Blocks::default()));
    }

    #[test]
    fn fetched_data_leave_half_of_the_blocks_for_results() {
        let mut pool = pool(8);
        let mut pulls = Vec::new();
        while let Some(pull) = pool.pull(0, 4097) {
            pool.pulls[usize::from(pull)].of = Some((ConnId(0), pulls.len() as u16));
            pulls.push(pull);
        }
        assert_eq!((pulls.len(), pool.fetching, pool.free()), (2, 4, 4));
        assert!(pool.stage(&mut Blocks::default()).is_some());
        for pull in pulls {
            pool.free_pull(pull);
        }
        assert_eq!((pool.fetching, pool.free()), (0, 7));
        assert!(
            pool.pull(0, 5 * 4096).is_none(),
            "more than half never fits"
        );
        let pull = pool.pull(0, 2 * 4096).expect("room");
        pool.pulls[usize::from(pull)].of = Some((ConnId(0), 0));
        assert!(
            pool.pull(2, 4096).is_none(),
            "the rest is left for other clients"
        );
        assert!(pool.pull(0, 2 * 4096).is_some());
    }

    #[test]
    fn extents_are_read_piece_by_piece_and_found_again() {
        let mut pool = pool(8);
        let at = pool.pull(0, 5000).expect("room");
        let extent = |offset, len| Extent {
            region: RegionId(2),
            offset,
            len,
        };
        let remote = |address| Remote { address, key: 9 };
        let pull = &mut pool.pulls[usize::from(at)];
        pull.of = Some((ConnId(1), 4));
        pull.extents.push((extent(100, 4000), remote(0x1064)));
        pull.extents.push((extent(8000, 1000), remote(0x2f40)));
        let mut reads = Vec::new();
        while let Some(read) = pull.next_read(4096, 1 << 20) {
            pull.asked += read.piece.len as u64;
            let block = pull.blocks[usize::from(read.part)].as_mut().expect("here");
            let first = read.remote.address as u8;
            for (i, byte) in block.as_mut_slice()[read.piece.offset..][..read.piece.len]
                .iter_mut()
                .enumerate()
            {
                *byte = first.wrapping_add(i as u8);
            }
            reads.push((
                read.part,
                read.piece.offset,
                read.piece.len,
                read.remote.address,
                read.fills,
            ));
        }
        assert_eq!(
            reads,
            [
                (0, 0, 4000, 0x1064, false),
                (0, 4000, 96, 0x2f40, true),
                (1, 0, 904, 0x2f40 + 96, true)
            ]
        );
        let mut out = [0; 200];
        assert!(pull.read(extent(8000, 200), &mut out, 4096));
        for (i, byte) in out.iter().enumerate() {
            assert_eq!(*byte, 0x40u8.wrapping_add(i as u8));
        }
        assert!(!pull.read(extent(99, 2), &mut out[..2], 4096));
        assert!(!pull.read(extent(4090, 20), &mut out[..20], 4096));
    }
}
