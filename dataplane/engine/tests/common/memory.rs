//! Registered memory for engines in tests.

use std::collections::HashMap;

use rowmill_arena::{Layout, Staging, Strip, Window};
use rowmill_engine::{Conn, Denied, Extent, Fetch, Memory};
use rowmill_wire::Status;

/// Stands in for a port's registered memory: a heap buffer for each (connection, region).
#[derive(Default)]
pub(crate) struct HeapMemory {
    pub(crate) regions: HashMap<(u32, u32), Vec<u8>>,
    pub(crate) lost: Vec<(u32, u32)>,
    /// Where the memory is far away, as behind a NIC.
    pub(crate) remote: Option<Remote>,
    /// The connections whose data were read, where somebody wants to know.
    pub(crate) reads: Option<Vec<u32>>,
    /// Stands for sparse regions of any size: gives the bytes of each.
    pub(crate) sparse: Option<fn(u32, &mut [u8])>,
}

/// Stands in for what a port has between a worker and memory that it can't reach: staging in blocks of which
/// there are few, and data that come a turn after they were asked for.
pub(crate) struct Remote {
    stage_bytes: usize,
    free: Vec<u32>,
    blocks: Vec<Vec<u8>>,
    /// Of blocks that are not free, whose they are, and whether they are kept until rows come.
    of: HashMap<u32, (Conn, bool)>,
    /// How many may be kept: nothing else is done with them.
    keepable: usize,
    /// By connection and slot.
    fetched: HashMap<(u32, u16), Data>,
    /// Answers that are on their way.
    pub(crate) coming: Vec<(Conn, u16, Result<(), Status>)>,
    /// Every second asking is told to come later.
    asked: usize,
    /// Unless this says that none is, but for a lack of room.
    pub(crate) steady: bool,
    /// Most requests that have data.
    pub(crate) most: usize,
}

type Data = Vec<(Extent, Vec<u8>)>;

impl Remote {
    /// So many blocks, and half as many more that can be kept until rows come.
    pub(crate) fn new(stage_bytes: usize, blocks: usize) -> Remote {
        let (keepable, blocks) = (blocks / 2, blocks + blocks / 2);
        Remote {
            stage_bytes,
            free: (0..blocks as u32).collect(),
            blocks: vec![vec![0; stage_bytes]; blocks],
            of: HashMap::new(),
            keepable,
            fetched: HashMap::new(),
            coming: Vec::new(),
            asked: 0,
            steady: false,
            most: usize::MAX,
        }
    }

    fn puts_off(&mut self) -> bool {
        self.asked += 1;
        !self.steady && self.asked % 2 == 1
    }

    /// Blocks of a connection that are kept, or that are not.
    fn of(&self, conn: Conn, kept: bool) -> usize {
        self.of.values().filter(|&&of| of == (conn, kept)).count()
    }

    /// How many more may be kept.
    fn to_keep(&self) -> usize {
        self.keepable - self.of.values().filter(|&&(_, kept)| kept).count()
    }

    /// How many blocks are taken.
    pub(crate) fn taken(&self) -> usize {
        self.blocks.len() - self.free.len()
    }

    /// Others take all blocks that are free.
    pub(crate) fn take_all(&mut self) {
        self.free.clear();
    }

    /// All staging and all data were given back.
    pub(crate) fn is_whole(&self) -> bool {
        self.free.len() == self.blocks.len() && self.fetched.is_empty()
    }
}

impl HeapMemory {
    pub(crate) fn is_lost(&self, conn: Conn, region: u32) -> bool {
        self.lost.contains(&(conn.0, region))
    }

    fn bytes(
        &self,
        conn: Conn,
        region: u32,
        offset: u64,
        len: u64,
        outside: Status,
    ) -> Result<&[u8], Status> {
        let bytes = self.regions.get(&(conn.0, region));
        let bytes = bytes.ok_or(Status::UnknownRegion)?;
        let end = offset
            .checked_add(len)
            .filter(|&end| end <= bytes.len() as u64);
        let end = end.ok_or(outside)?;
        if self.is_lost(conn, region) {
            return Err(Status::RegionLost);
        }
        Ok(&bytes[offset as usize..end as usize])
    }
}

impl Memory for HeapMemory {
    fn check(&self, conn: Conn, region: u32, offset: u64, len: u64) -> Result<(), Status> {
        self.bytes(conn, region, offset, len, Status::TargetOutOfRegion)?;
        Ok(())
    }

    fn fetch(
        &mut self,
        conn: Conn,
        slot: u16,
        extents: &mut dyn Iterator<Item = Extent>,
    ) -> Result<Fetch, Denied> {
        let Some(remote) = &mut self.remote else {
            return Ok(Fetch::Ready);
        };
        if remote.puts_off() || remote.fetched.len() >= remote.most {
            return Err(Denied::Later);
        }
        let mut held = Vec::new();
        let mut outcome = Ok(());
        for e in extents {
            match self.bytes(conn, e.region, e.offset, e.len, Status::SegmentOutOfRegion) {
                Ok(bytes) => held.push((e, bytes.to_vec())),
                Err(status) => outcome = Err(status),
            }
        }
        assert!(
            !held.is_empty() || outcome.is_err(),
            "nothing is not asked for"
        );
        let remote = self.remote.as_mut().expect("looked at above");
        remote.coming.push((conn, slot, outcome));
        let before = remote.fetched.insert((conn.0, slot), held);
        assert!(before.is_none(), "what was fetched before was released");
        Ok(Fetch::Coming)
    }

    fn read(
        &mut self,
        conn: Conn,
        slot: u16,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Status> {
        let len = out.len() as u64;
        if let Some(reads) = &mut self.reads {
            reads.push(conn.0);
        }
        if let Some(sparse) = self.sparse {
            sparse(region, out);
            return Ok(());
        }
        let Some(remote) = &self.remote else {
            out.copy_from_slice(self.bytes(
                conn,
                region,
                offset,
                len,
                Status::SegmentOutOfRegion,
            )?);
            return Ok(());
        };
        if out.is_empty() {
            return Ok(());
        }
        let held = remote.fetched.get(&(conn.0, slot));
        let mut held = held.expect("data are fetched before they are read").iter();
        let (extent, bytes) = held
            .find(|(e, _)| {
                e.region == region && e.offset <= offset && offset + len <= e.offset + e.len
            })
            .expect("what is read was asked for");
        out.copy_from_slice(&bytes[(offset - extent.offset) as usize..][..out.len()]);
        Ok(())
    }

    fn release(&mut self, conn: Conn, slot: u16) {
        if let Some(remote) = &mut self.remote {
            remote.coming.retain(|&(c, s, _)| (c, s) != (conn, slot));
            let held = remote.fetched.remove(&(conn.0, slot));
            assert!(held.is_some(), "only what was fetched is released");
        }
    }

    fn stage_bytes(&self) -> u64 {
        let remote = self.remote.as_ref();
        remote.map_or(u64::MAX, |remote| remote.stage_bytes as u64)
    }

    fn keep(&mut self, conn: Conn, staging: &Staging) -> bool {
        let remote = self.remote.as_mut();
        let remote = remote.expect("nothing is packed in memory at hand");
        if remote.of(conn, true) >= remote.to_keep() {
            return false;
        }
        let before = remote.of.insert(staging.block, (conn, true));
        assert_eq!(before, Some((conn, false)), "what is staged is kept once");
        true
    }

    fn stage(&mut self, conn: Conn, region: u32, strips: &[Strip]) -> Result<Staging, Denied> {
        for s in strips {
            let end = s.end().expect("checked when the request was accepted");
            self.check(conn, region, s.offset, end - s.offset)?;
        }
        let Some(remote) = &mut self.remote else {
            return Ok(Staging::in_place(strips).expect("there are strips"));
        };
        if remote.puts_off() {
            return Err(Denied::Later);
        }
        let len: u64 = strips.iter().map(Strip::total).sum();
        assert!(
            len <= remote.stage_bytes as u64,
            "{len} bytes are too many to stage"
        );
        // As the RDMA port has it: a connection leaves others a part.
        let free = remote.free.len().saturating_sub(remote.to_keep());
        if remote.of(conn, false) >= free {
            return Err(Denied::Later);
        }
        let block = remote.free.pop().ok_or(Denied::Later)?;
        remote.of.insert(block, (conn, false));
        remote.blocks[block as usize].fill(0x5a);
        Ok(Staging {
            layout: Layout::Packed,
            len,
            block,
        })
    }

    fn window(&mut self, conn: Conn, region: u32, staging: &Staging) -> Result<Window<'_>, Status> {
        if self.is_lost(conn, region) {
            return Err(Status::RegionLost);
        }
        let bytes = match (staging.layout, &mut self.remote) {
            (Layout::Packed, Some(remote)) => {
                &mut remote.blocks[staging.block as usize][..staging.len as usize]
            }
            (Layout::InPlace(low), _) => {
                let bytes = self.regions.get_mut(&(conn.0, region));
                let bytes = bytes.ok_or(Status::UnknownRegion)?;
                &mut bytes[low as usize..][..staging.len as usize]
            }
            (Layout::Packed, None) => unreachable!("staging of this memory"),
        };
        Ok(Window::over(bytes))
    }

    fn place(
        &mut self,
        conn: Conn,
        region: u32,
        staging: Staging,
        strips: &[Strip],
    ) -> Result<(), Status> {
        let target = self.regions.get_mut(&(conn.0, region));
        let is_there = target.is_some();
        if let (Some(remote), Some(target)) = (&self.remote, target) {
            let mut bytes = &remote.blocks[staging.block as usize][..];
            for (offset, len) in strips.iter().flat_map(|strip| strip.pieces()) {
                let piece;
                (piece, bytes) = bytes.split_at(len as usize);
                target[offset as usize..][..piece.len()].copy_from_slice(piece);
            }
        }
        self.unstage(conn, region, staging);
        if !is_there {
            return Err(Status::UnknownRegion);
        }
        if self.is_lost(conn, region) {
            return Err(Status::RegionLost);
        }
        Ok(())
    }

    fn unstage(&mut self, _: Conn, _: u32, staging: Staging) {
        if let (Layout::Packed, Some(remote)) = (staging.layout, &mut self.remote) {
            let of = remote.of.remove(&staging.block);
            assert!(of.is_some(), "a block is given back once");
            remote.free.push(staging.block);
        }
    }
}
