//! A client's regions: memory that windows lead to, registered with its device.

use core::ptr::NonNull;
use std::os::fd::AsFd;
use std::sync::Arc;

use rowmill_arena::{ArenaError, HUGE_2M, HugePages, Region, Window, sealed_memfd};
use rowmill_verbs::{Access, Backing, ProtectionDomain, Registered, Remote};
use rowmill_wire::control::Rights;

use crate::PortError;

use super::failure::system;

/// Pages of memory that is not made of huge pages.
const PAGE: usize = 4096;

/// Mapped memory of this process that only windows lead to.
struct Mapped(Arc<Region>);

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
pub(super) struct OwnRegion {
    registered: Registered<Mapped>,
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
        // Results may come in any order before their record, and are not looked at before.
        let access = match rights {
            Rights::Write => Access::REMOTE_WRITE,
            Rights::Read => Access::REMOTE_READ,
            Rights::Both => Access::REMOTE_WRITE | Access::REMOTE_READ,
        } | Access::RELAXED_ORDERING;
        match Registered::new(domain, Mapped(Arc::new(region)), access) {
            Ok(registered) => Ok(OwnRegion { registered }),
            Err((error, _)) => Err(system("registering a region", error)),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.registered.len()
    }

    pub(super) fn remote(&self) -> Remote {
        self.registered.remote()
    }

    pub(super) fn window(&self) -> Window<'_> {
        self.registered.backing().0.window()
    }

    pub(super) fn share(&self) -> Arc<Region> {
        Arc::clone(&self.registered.backing().0)
    }
}

fn no_memory(error: ArenaError) -> PortError {
    PortError::System {
        call: "making memory for a region",
        source: std::io::Error::other(error),
    }
}
