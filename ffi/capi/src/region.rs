//! Regions.

use core::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rowmill_client::{ClientError, PeerMemory, PortError, RegionMemory};

use crate::abi::rowmill_region_info;
use crate::abi::rowmill_way::{ROWMILL_WAY_COPIED, ROWMILL_WAY_DIRECT};
use crate::client::Client;
use crate::error::Error;
use crate::memory::CallersMemory;

/// Memory for answers. The library's stays mapped until the caller frees it, also when its client is closed.
pub(crate) struct Region {
    client: Weak<Client>,
    pub(crate) region: rowmill_client::Region,
    memory: Memory,
}

enum Memory {
    /// The library's.
    Own(RegionMemory),
    /// The caller's, which a NIC writes to.
    Direct(CallersMemory),
    /// The caller's, to which answers are copied; `None` when it was freed.
    Copied(Mutex<Option<CallersMemory>>),
}

/// Keeps memory allocated that the caller keeps allocated.
struct Callers;

impl Region {
    /// Makes and registers one.
    pub(crate) fn create(client: &Arc<Client>, bytes: u64) -> Result<Region, Error> {
        if bytes == 0 {
            return Err(Error::invalid(
                "a region of 0 bytes; rowmill_answer_bytes() tells how many an answer takes",
            ));
        }
        let region = client.hub.region(bytes)?;
        let memory = client.hub.memory(region)?;
        Ok(Region {
            client: Arc::downgrade(client),
            region,
            memory: Memory::Own(memory),
        })
    }

    /// Registers memory of the caller's.
    ///
    /// # Safety
    /// It stays mapped and writable until the region is freed, and is not used where a request in flight is to be answered.
    pub(crate) unsafe fn register(
        client: &Arc<Client>,
        memory: CallersMemory,
        copies: bool,
    ) -> Result<Region, Error> {
        memory.check()?;
        let mut registered = client.registered();
        if let Some(other) = registered.iter().find(|other| other.overlaps(&memory)) {
            return Err(Error::invalid(format!(
                "{memory} overlaps {other}, which is registered with this client; free that region first, or use it"
            )));
        }
        // SAFETY: the caller's contract; nothing in Rust refers to it but by copies, where no request is in flight.
        let peer = unsafe { PeerMemory::new(memory.address(), memory.bytes(), Box::new(Callers)) };
        let (region, kept) = match client.hub.register_memory(peer) {
            Ok(region) => (region, Memory::Direct(memory)),
            Err(ClientError::Port(PortError::Unsupported { .. })) if copies => {
                let region = client.hub.region(memory.bytes())?;
                (region, Memory::Copied(Mutex::new(Some(memory))))
            }
            Err(ClientError::Port(PortError::Unsupported { .. })) => {
                return Err(Error::invalid(
                    "over shared memory a dataplane can't write to memory of the caller's, and copies were ruled out \
                     (ROWMILL_NO_COPIES); make the memory with rowmill_region_create(), or register it without the flag",
                ));
            }
            Err(error) => return Err(error.into()),
        };
        registered.push(memory);
        Ok(Region {
            client: Arc::downgrade(client),
            region,
            memory: kept,
        })
    }

    /// Where it begins; NULL of memory of the caller's that was freed.
    fn start(&self) -> *mut u8 {
        match &self.memory {
            Memory::Own(memory) => memory.window().as_ptr(),
            Memory::Direct(memory) => memory.start(),
            Memory::Copied(memory) => {
                lock(memory).map_or(core::ptr::null_mut(), |memory| memory.start())
            }
        }
    }

    /// What it is.
    pub(crate) fn info(&self) -> rowmill_region_info {
        let (callers, way) = match &self.memory {
            Memory::Own(_) => (false, ROWMILL_WAY_DIRECT),
            Memory::Direct(_) => (true, ROWMILL_WAY_DIRECT),
            Memory::Copied(_) => (true, ROWMILL_WAY_COPIED),
        };
        rowmill_region_info {
            size: 0,
            way: way as u32,
            callers: callers.into(),
            reserved: 0,
            memory: self.start().cast(),
            bytes: match &self.memory {
                Memory::Own(_) => self.region.bytes(),
                Memory::Direct(memory) => memory.bytes(),
                Memory::Copied(memory) => lock(memory).map_or(0, |memory| memory.bytes()),
            },
        }
    }

    /// Whether an answer has its place in memory of the caller's; what the library has made for its copy may be longer.
    pub(crate) fn check(&self, offset: u64, needed: u64) -> Result<(), Error> {
        let Memory::Copied(memory) = &self.memory else {
            return Ok(());
        };
        let region = lock(memory).map_or(0, |memory| memory.bytes());
        let end = offset.checked_add(needed);
        match end.is_some_and(|end| end <= region) {
            true => Ok(()),
            false => Err(ClientError::TargetPlace {
                offset,
                bytes: needed,
                region,
            }
            .into()),
        }
    }

    /// Whether answers have to be copied to it.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self.memory, Memory::Copied(_))
    }

    /// Copies a part of an answer to where it belongs.
    ///
    /// # Errors
    /// `ROWMILL_CLOSED` where the region was freed, as it can be when its client is closed.
    pub(crate) fn copy(&self, each: impl FnOnce(&CallersMemory)) -> Result<(), Error> {
        let Memory::Copied(memory) = &self.memory else {
            return Ok(());
        };
        match &*lock(memory) {
            Some(memory) => {
                each(memory);
                Ok(())
            }
            None => Err(ClientError::Closed.into()),
        }
    }

    /// Takes it from the dataplane, as long as there is one.
    pub(crate) fn unregister(&self) -> Result<(), Error> {
        if let Some(client) = self.client.upgrade() {
            // Whatever else there is ends with the connection.
            if let Err(error @ (ClientError::RegionInUse { .. } | ClientError::Forked)) =
                client.hub.unregister(self.region)
            {
                return Err(error.into());
            }
            let start = self.start();
            client.registered().retain(|one| one.start() != start);
        }
        // From here on no thread copies there.
        if let Memory::Copied(memory) = &self.memory {
            *lock(memory) = None;
        }
        Ok(())
    }
}

fn lock(memory: &Mutex<Option<CallersMemory>>) -> MutexGuard<'_, Option<CallersMemory>> {
    // It is changed in single steps.
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first byte of memory of the caller's.
pub(crate) fn callers(start: *mut u8, bytes: u64) -> Result<CallersMemory, Error> {
    let start = NonNull::new(start)
        .ok_or_else(|| Error::invalid("the memory is NULL; give memory to register"))?;
    CallersMemory::new(start, bytes)
}
