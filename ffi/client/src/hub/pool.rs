//! Memory for results: regions with a bound on their number, and what keeps them mapped.

use std::sync::Arc;

use rowmill_arena::{self as arena, Window};
use rowmill_port::{ClientPort, Foreign, PortError};

use crate::error::ClientError;
use crate::memory::{Region, Target};
use crate::session::Session;

/// Most regions of the pool. A connection can have 16: one carries ids, and the caller's own take the rest.
const POOL_REGIONS: usize = 8;

/// A region of the pool is made for at least so many results of the size that it is made for.
const RESULTS_A_REGION: u64 = 4;

/// The memory of a region, which stays mapped as long as this lives, also when the client is gone.
#[derive(Clone, Debug)]
pub struct RegionMemory(Arc<arena::Region>);

impl RegionMemory {
    /// All of it. Where a result is in flight, the dataplane writes to it.
    pub fn window(&self) -> Window<'_> {
        self.0.window()
    }
}

/// See the module's text.
pub(crate) struct Pool {
    region_bytes: u64,
    pool: Vec<Region>,
    /// How often the dataplane was asked for a region.
    pub(crate) asked: u64,
    /// All regions, the caller's too; None where the memory is a device's, or was registered by its
    /// address.
    memory: Vec<(Region, Option<Arc<arena::Region>>)>,
}

impl Pool {
    pub(crate) fn new(region_bytes: u64) -> Pool {
        Pool {
            region_bytes,
            pool: Vec::with_capacity(POOL_REGIONS),
            asked: 0,
            memory: Vec::new(),
        }
    }

    /// A target of the pool. Makes another region where none has room, which asks the dataplane; regions that are free and too small
    /// make way for it. None where there can't be one.
    pub(crate) fn take<P: ClientPort>(
        &mut self,
        session: &mut Session<P>,
        bytes: u64,
    ) -> Result<Option<Target>, ClientError> {
        // The newest was made for the largest results.
        for region in self.pool.iter().rev() {
            match session.target(region, bytes) {
                Err(ClientError::RegionFull { .. }) => (),
                other => return other.map(Some),
            }
        }
        loop {
            let refused = match self.pool.len() {
                POOL_REGIONS => None,
                _ => match self.grow(session, bytes) {
                    Err(error) if is_too_much(&error) => Some(error),
                    made => return session.target(&made?, bytes).map(Some),
                },
            };
            // Whatever has its size would have had room.
            let free = self.pool.iter().position(|r| session.is_free(r));
            match (free, refused) {
                (Some(free), _) => {
                    let region = self.pool.remove(free);
                    self.asked += 1;
                    self.unmake(session, region)?;
                }
                (None, Some(error)) if self.pool.is_empty() => return Err(error),
                (None, _) => return Ok(None),
            }
        }
    }

    /// Another region of the pool, in which a result of this size has room.
    fn grow<P: ClientPort>(
        &mut self,
        session: &mut Session<P>,
        bytes: u64,
    ) -> Result<Region, ClientError> {
        let usual = self
            .region_bytes
            .max(bytes.saturating_mul(RESULTS_A_REGION));
        let made = match self.make(session, usual) {
            Err(error) if is_too_much(&error) || is_too_large(&error) => self.make(session, bytes),
            made => made,
        }?;
        self.pool.push(made);
        Ok(made)
    }

    /// Makes a region.
    pub(crate) fn make<P: ClientPort>(
        &mut self,
        session: &mut Session<P>,
        bytes: u64,
    ) -> Result<Region, ClientError> {
        self.asked += 1;
        let region = session.region(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let memory = session.port.share(region.id).ok_or_else(|| {
            let text = "the port's memory can't be shared by threads";
            ClientError::Port(PortError::Protocol(text.into()))
        })?;
        self.memory.push((region, Some(memory)));
        Ok(region)
    }

    /// Makes a region of memory that is not this side's to read.
    pub(crate) fn make_foreign<P: ClientPort>(
        &mut self,
        session: &mut Session<P>,
        foreign: Foreign,
        bytes: u64,
    ) -> Result<Region, ClientError> {
        let region = session.foreign_region(foreign, bytes)?;
        self.memory.push((region, None));
        Ok(region)
    }

    /// Gives up a region that the caller has made.
    pub(crate) fn unmake<P: ClientPort>(
        &mut self,
        session: &mut Session<P>,
        region: Region,
    ) -> Result<(), ClientError> {
        self.check(&region)?;
        let outcome = session.unregister(region);
        if !matches!(outcome, Err(ClientError::RegionInUse { .. })) {
            self.memory.retain(|(known, _)| *known != region);
        }
        outcome
    }

    /// Whether it is a region of this client.
    pub(crate) fn check(&self, region: &Region) -> Result<(), ClientError> {
        match self.memory.iter().any(|(known, _)| known == region) {
            true => Ok(()),
            false => Err(ClientError::OtherClient { what: "region" }),
        }
    }

    /// The memory of a region of this client.
    pub(crate) fn memory(&self, region: &Region) -> Result<RegionMemory, ClientError> {
        let found = self.memory.iter().find(|(known, _)| known == region);
        let memory = found
            .and_then(|(_, memory)| memory.clone())
            .map(RegionMemory);
        memory.ok_or(ClientError::OtherClient { what: "region" })
    }

    /// Regions that there are.
    #[cfg(test)]
    pub(crate) fn regions(&self) -> usize {
        self.memory.len()
    }

    /// The memory that a target lies in, where it is this side's to read.
    pub(crate) fn memory_of(&self, target: &Target) -> Option<Arc<arena::Region>> {
        let memory = self.memory.iter().find(|(r, _)| r.id == target.region);
        let (_, memory) = memory.expect("regions with targets are not given up");
        memory.clone()
    }
}

/// Whether a region was refused, for its size or because there are enough.
fn is_too_much(error: &ClientError) -> bool {
    matches!(error, ClientError::Port(PortError::Refused { .. }))
}

/// Whether no region can have that size.
fn is_too_large(error: &ClientError) -> bool {
    matches!(error, ClientError::TooLarge { .. })
}
