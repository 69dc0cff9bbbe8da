//! A client's regions: memory that windows lead to, or a device's, registered with its NIC.

use core::any::Any;
use core::ptr::NonNull;
use std::os::fd::AsFd;
use std::sync::Arc;

use rowmill_arena::{ArenaError, HUGE_2M, HugePages, Region, sealed_memfd};
use rowmill_verbs::{
    Access, Backing, Error, ProtectionDomain, Registered, RegisteredDmaBuf, RegisteredPeer, Remote,
};
use rowmill_wire::control::Rights;

use crate::{Foreign, PortError};

use super::failure::system;

/// Pages of memory that is not made of huge pages.
const PAGE: usize = 4096;

/// Mapped memory of this process that only windows lead to.
pub(super) struct Mapped(Arc<Region>);

// SAFETY: a region, which stays where it is behind its `Arc`, names the same mapped bytes until it is dropped, wherever the value is moved: where the memory behind
// them is taken away (nobody else has its descriptor) other memory takes its place at the same address. Safe code gets
// windows of it, which give no references to the bytes but atomic ones.
unsafe impl Backing for Mapped {
    fn bytes(&self) -> (NonNull<u8>, usize) {
        let window = self.0.window();
        let start = NonNull::new(window.as_ptr()).expect("a window's start is not null");
        (start, window.len())
    }
}

/// A region of this side.
pub(super) enum OwnRegion {
    /// Mapped memory.
    Mapped(Registered<Mapped>),
    /// A device's, as a dma-buf.
    DmaBuf(RegisteredDmaBuf),
    /// A device's or the caller's, by its address.
    Peer(RegisteredPeer<Box<dyn Any + Send>>),
}

/// Results may come in any order before their record, and are not looked at before.
fn access(rights: Rights) -> Access {
    let rights = match rights {
        Rights::Write => Access::REMOTE_WRITE,
        Rights::Read => Access::REMOTE_READ,
        Rights::Both => Access::REMOTE_WRITE | Access::REMOTE_READ,
    };
    rights | Access::RELAXED_ORDERING
}

impl OwnRegion {
    /// Makes memory of at least `bytes`, with `left` bytes allowed by the server, and registers it with no more rights than
    /// these.
    pub(super) fn new(
        domain: &ProtectionDomain,
        bytes: usize,
        left: u64,
        policy: HugePages,
        rights: Rights,
    ) -> Result<OwnRegion, PortError> {
        let huge = policy != HugePages::Off && bytes > HUGE_2M / 2;
        let whole = match policy {
            HugePages::Require => bytes.max(1).checked_next_multiple_of(HUGE_2M),
            // Whole huge pages where they would not double the size and the server takes as much.
            _ if huge => bytes
                .checked_next_multiple_of(HUGE_2M)
                .filter(|&rounded| rounded as u64 <= left)
                .or(bytes.checked_next_multiple_of(PAGE)),
            _ => bytes.max(1).checked_next_multiple_of(PAGE),
        };
        let whole = whole.ok_or_else(|| {
            no_memory(ArenaError::ImpossibleSize {
                bytes: bytes as u64,
            })
        })?;
        let fd = sealed_memfd("rowmill-region", whole, policy).map_err(no_memory)?;
        let region = Region::map(fd.as_fd(), whole).map_err(no_memory)?;
        match Registered::new(domain, Mapped(Arc::new(region)), access(rights)) {
            Ok(registered) => Ok(OwnRegion::Mapped(registered)),
            Err((error, _)) => Err(system("registering a region", error)),
        }
    }

    /// Registers memory that is there, for results.
    pub(super) fn foreign(
        domain: &ProtectionDomain,
        foreign: Foreign,
    ) -> Result<OwnRegion, PortError> {
        let rights = access(Rights::Write);
        let registered = match foreign {
            Foreign::DmaBuf {
                fd,
                offset,
                address,
                bytes,
            } => {
                let bytes = bytes as usize;
                let region = RegisteredDmaBuf::new(domain, fd, offset, bytes, address, rights);
                region.map(OwnRegion::DmaBuf)
            }
            Foreign::Peer(memory) => {
                let (address, bytes) = (memory.address(), memory.bytes() as usize);
                // SAFETY: whoever made the value has promised this.
                let region = unsafe {
                    RegisteredPeer::new(domain, memory.into_owner(), address, bytes, rights)
                };
                region.map(OwnRegion::Peer).map_err(|(error, _)| error)
            }
        };
        registered.map_err(|error| match error {
            Error::Unsupported { what } => PortError::Unsupported { what },
            error => system("registering memory with the NIC", error),
        })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            OwnRegion::Mapped(registered) => registered.len(),
            OwnRegion::DmaBuf(registered) => registered.len(),
            OwnRegion::Peer(registered) => registered.len(),
        }
    }

    pub(super) fn remote(&self) -> Remote {
        match self {
            OwnRegion::Mapped(registered) => registered.remote(),
            OwnRegion::DmaBuf(registered) => registered.remote(),
            OwnRegion::Peer(registered) => registered.remote(),
        }
    }

    /// The mapped memory, where it is.
    pub(super) fn mapped(&self) -> Option<&Arc<Region>> {
        match self {
            OwnRegion::Mapped(registered) => Some(&registered.backing().0),
            OwnRegion::DmaBuf(_) | OwnRegion::Peer(_) => None,
        }
    }
}

fn no_memory(error: ArenaError) -> PortError {
    PortError::System {
        call: "making memory for a region",
        source: std::io::Error::other(error),
    }
}
