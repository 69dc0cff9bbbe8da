//! Memory of clients that a simulated worker can't reach, as behind a NIC: request data are fetched, and
//! results are stored in blocks, of which there are few, and which are in use a while after they were placed.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::link::Link;
use super::memory::SimMemory;
use crate::{ConnId, Extent, RegionError};

/// What stands between a lane's worker and the memory of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Far {
    /// Bytes of a block of staging, at least 64 KiB.
    pub stage_bytes: u64,
    /// Blocks of a lane; half as many more are there for results that wait for rows.
    pub blocks: u32,
    /// Requests of a lane that can have data fetched.
    pub fetches: u32,
    /// How connections fail.
    pub link: Link,
}

/// One lane's staging and fetched data.
#[derive(Debug)]
pub(super) struct Room {
    pub(super) far: Far,
    blocks: Vec<Rc<SimMemory>>,
    free: Vec<u32>,
    /// Blocks that are not free: whose, and whether they wait for rows or did so.
    of: BTreeMap<u32, (ConnId, bool)>,
    /// Blocks that are still being sent, and until when.
    sent: Vec<(u64, u32)>,
    pulls: BTreeMap<(ConnId, u16), Pull>,
    /// When data of requests that gave them back will have come: they take room until then.
    late: Vec<u64>,
}

/// Data of a request.
#[derive(Debug)]
pub(super) struct Pull {
    pub(super) extents: Vec<Extent>,
    due: u64,
    /// One an extent, once they are there.
    bytes: Option<Vec<Vec<u8>>>,
}

impl Room {
    pub(super) fn new(far: Far) -> Room {
        let block = |_| Rc::new(SimMemory::new(far.stage_bytes as usize));
        Room {
            far,
            blocks: (0..far.blocks + far.blocks / 2).map(block).collect(),
            free: (0..far.blocks + far.blocks / 2).collect(),
            of: BTreeMap::new(),
            sent: Vec::new(),
            pulls: BTreeMap::new(),
            late: Vec::new(),
        }
    }

    /// Blocks and requests' data that are there or under way.
    pub(super) fn held(&self) -> (usize, usize) {
        let blocks = self.blocks.len() - self.free.len();
        (blocks, self.pulls.len() + self.late.len())
    }

    /// Takes back the blocks that have been sent by now, and the room of data that nobody wants any more.
    pub(super) fn settle(&mut self, now_ns: u64) {
        self.late.retain(|&due| due > now_ns);
        let (free, of) = (&mut self.free, &mut self.of);
        self.sent.retain(|&(due, block)| {
            if due <= now_ns {
                of.remove(&block);
                free.push(block);
            }
            due > now_ns
        });
    }

    /// A block with nothing useful in it, for a connection that has fewer than there are free, as the RDMA port has it.
    pub(super) fn take(&mut self, conn: ConnId) -> Option<u32> {
        let free = self.free.len().saturating_sub(self.keepable());
        if self.count((conn, false)) >= free {
            return None;
        }
        let block = self.free.pop()?;
        self.of.insert(block, (conn, false));
        let memory = self.block(block);
        let poison = vec![0xdb; memory.len()];
        memory.window().write(0, &poison);
        Some(block)
    }

    fn count(&self, of: (ConnId, bool)) -> usize {
        self.of.values().filter(|&&had| had == of).count()
    }

    /// Blocks that may be kept and are not: nothing else is done with them.
    fn keepable(&self) -> usize {
        let kept = self.of.values().filter(|&&(_, kept)| kept).count();
        self.far.blocks as usize / 2 - kept
    }

    /// Keeps a block that waits for rows, if there is room for that; each connection leaves others some.
    pub(super) fn keep(&mut self, conn: ConnId, block: u32) -> bool {
        let may = self.count((conn, true)) < self.keepable();
        if may {
            let before = self.of.insert(block, (conn, true));
            assert_eq!(before, Some((conn, false)), "what is staged is kept once");
        }
        may
    }

    pub(super) fn block(&self, block: u32) -> Rc<SimMemory> {
        Rc::clone(&self.blocks[block as usize])
    }

    /// A block is free again at this time.
    pub(super) fn give_back(&mut self, block: u32, due: u64) {
        self.sent.push((due, block));
    }

    /// A block that is sent is in use until then at least.
    pub(super) fn hold_up(&mut self, block: &Rc<SimMemory>, until: u64) {
        let blocks = &self.blocks;
        let of_block = |&&mut (_, at): &&mut (u64, u32)| Rc::ptr_eq(&blocks[at as usize], block);
        if let Some((due, _)) = self.sent.iter_mut().find(of_block) {
            *due = until.max(*due);
        }
    }

    /// Asks for data; false where too many requests have some.
    pub(super) fn ask(&mut self, conn: ConnId, slot: u16, extents: &[Extent], due: u64) -> bool {
        if self.held().1 >= self.far.fetches as usize {
            return false;
        }
        let pull = Pull {
            extents: extents.to_vec(),
            due,
            bytes: None,
        };
        let before = self.pulls.insert((conn, slot), pull);
        assert!(
            before.is_none(),
            "what was fetched before is released first"
        );
        true
    }

    /// A request whose data arrive now, and what it asked for.
    pub(super) fn arriving(&self, now_ns: u64) -> Option<(ConnId, u16, Vec<Extent>)> {
        let mut pulls = self.pulls.iter();
        let (&(conn, slot), pull) = pulls.find(|(_, p)| p.bytes.is_none() && p.due <= now_ns)?;
        Some((conn, slot, pull.extents.clone()))
    }

    pub(super) fn arrived(&mut self, conn: ConnId, slot: u16, bytes: Vec<Vec<u8>>) {
        if let Some(pull) = self.pulls.get_mut(&(conn, slot)) {
            pull.bytes = Some(bytes);
        }
    }

    /// Copies bytes that were fetched.
    pub(super) fn read(
        &self,
        conn: ConnId,
        slot: u16,
        from: Extent,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        if out.is_empty() {
            return Ok(());
        }
        let pull = self.pulls.get(&(conn, slot)).ok_or(RegionError::Unknown)?;
        let bytes = pull.bytes.as_ref().ok_or(RegionError::Unknown)?;
        let holds = |e: &Extent| {
            e.region == from.region
                && e.offset <= from.offset
                && from.offset - e.offset + from.len <= e.len
        };
        let at = pull.extents.iter().position(holds);
        let at = at.ok_or(RegionError::OutOfBounds)?;
        let skip = (from.offset - pull.extents[at].offset) as usize;
        out.copy_from_slice(&bytes[at][skip..][..out.len()]);
        Ok(())
    }

    pub(super) fn release(&mut self, conn: ConnId, slot: u16) {
        let pull = self.pulls.remove(&(conn, slot));
        self.late
            .extend(pull.filter(|p| p.bytes.is_none()).map(|p| p.due));
    }

    /// Data that will not come, since their connection has failed.
    pub(super) fn abandon(&mut self, conn: ConnId, slot: u16) {
        if let Some(pull) = self.pulls.get_mut(&(conn, slot)) {
            pull.bytes = Some(Vec::new());
        }
    }

    /// When something of it becomes due for a worker that waits.
    pub(super) fn next_due(&self) -> Option<u64> {
        let pulls = self.pulls.values();
        let pulls = pulls.filter(|p| p.bytes.is_none()).map(|p| p.due);
        let sent = self.sent.iter().map(|&(due, _)| due);
        pulls.chain(sent).chain(self.late.iter().copied()).min()
    }
}
