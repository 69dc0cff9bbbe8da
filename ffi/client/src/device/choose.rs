//! How results come to a GPU's memory: what is tried, in which order, and what came of it.

use core::fmt;
use std::path::Path;
use std::sync::Arc;

use rowmill_cuda::{Attribute, Device, DeviceMemory, Flush};
use rowmill_port::{ClientPort, Foreign, PortError};

use super::peer::peer_memory;
use super::probe::Through;
use super::{Gpu, Inner};
use crate::error::ClientError;
use crate::memory::Region;

/// How results come to a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The dataplane's NIC writes them there: the memory is registered as a dma-buf.
    DmaBuf,
    /// The dataplane's NIC writes them there: the memory is registered by its address, through nvidia-peermem.
    PeerMemory,
    /// They come to pinned memory of the host, from where they are copied slice by slice.
    Staging,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Way::DmaBuf => "dma-buf",
            Way::PeerMemory => "nvidia-peermem",
            Way::Staging => "staging",
        })
    }
}

/// Whether results may be copied from the host's memory where no NIC can write to the GPU's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staging {
    /// They may.
    Allowed,
    /// That is an error.
    Refused,
}

/// Files that there are where nvidia-peermem is loaded: as a module of its own, or under its names of former times.
pub(crate) const PEER_MEMORY: [&str; 3] = [
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
];

/// Memory of a GPU to which results go, and how they come there. It is kept until this is dropped.
#[derive(Debug)]
pub struct GpuRegion {
    pub(crate) memory: Arc<DeviceMemory>,
    pub(crate) direct: Option<Direct>,
    way: Way,
    staging: Staging,
    report: Vec<String>,
}

/// What a NIC writes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Direct {
    pub(crate) region: Region,
    pub(crate) flush: Flush,
}

impl GpuRegion {
    /// Memory to which all results are staged; nothing is tried or registered, so that it need not be kept for the next request.
    pub fn staged(memory: Arc<DeviceMemory>) -> GpuRegion {
        GpuRegion {
            memory,
            direct: None,
            way: Way::Staging,
            staging: Staging::Allowed,
            report: Vec::new(),
        }
    }

    /// The GPU's memory.
    pub fn memory(&self) -> &Arc<DeviceMemory> {
        &self.memory
    }

    /// How results come there.
    pub fn way(&self) -> Way {
        self.way
    }

    /// What was tried, in order, and what came of it: a line each.
    pub fn report(&self) -> &[String] {
        &self.report
    }

    /// Where a range of addresses lies in it, if it does.
    pub fn offset_of(&self, address: u64, bytes: u64) -> Option<u64> {
        let offset = address.checked_sub(self.memory.address())?;
        let end = offset.checked_add(bytes)?;
        (end <= self.memory.len()).then_some(offset)
    }

    pub(crate) fn may_stage(&self) -> bool {
        self.staging == Staging::Allowed
    }
}

/// What is reported of a way that works.
const THROUGH: &str = "a small transfer has come through";

/// Bytes of memory that are registered for a moment, to find a way: a page of its own there.
const TRIED_BYTES: u64 = 64 << 10;

impl<P: ClientPort + Send + 'static> Gpu<P> {
    /// Finds out how results come to memory of the GPU, with some that is registered for a moment, and what was tried: a line each.
    ///
    /// # Errors
    /// As [`Gpu::register`].
    pub fn find_way(&self, staging: Staging) -> Result<(Way, Vec<String>), ClientError> {
        let memory = DeviceMemory::new(self.context(), TRIED_BYTES)?;
        let tried = self.register(Arc::new(memory), staging)?;
        let (way, report) = (tried.way, tried.report.clone());
        self.unregister(&tried)?;
        Ok((way, report))
    }
}

/// How what a NIC has written becomes visible to the GPU's streams.
///
/// # Errors
/// A sentence where it does not for sure.
fn visibility(device: Device) -> Result<Flush, String> {
    let attribute = |attribute| device.attribute(attribute).unwrap_or(0);
    let ordering = attribute(Attribute::GPU_DIRECT_RDMA_ORDERING);
    // 100: for this device, 200: for all.
    if ordering >= 100 {
        return Ok(Flush::No);
    }
    match attribute(Attribute::CAN_FLUSH_REMOTE_WRITES) {
        0 => Err(format!(
            "the GPU neither orders what a NIC writes (attribute 118 is {ordering}) nor flushes it in a stream (attribute 98 is 0)"
        )),
        _ => Ok(Flush::RemoteWrites),
    }
}

impl<P: ClientPort + Send + 'static> Inner<P> {
    /// Finds the best way to the memory that works.
    pub(super) fn choose(
        &self,
        memory: Arc<DeviceMemory>,
        staging: Staging,
    ) -> Result<GpuRegion, ClientError> {
        let device = self.context.device();
        let (number, name) = (device.ordinal(), device.name()?);
        let library = device.driver().library();
        let mut report = vec![format!("GPU {number}: {name}, driver {library}")];
        match visibility(device) {
            Err(why) => report.push(format!("dma-buf, nvidia-peermem: {why}")),
            Ok(flush) => {
                for way in [Way::DmaBuf, Way::PeerMemory] {
                    let tried = self.attempt(way, &memory, flush)?;
                    let line = match &tried {
                        Ok(_) => THROUGH,
                        Err(why) => why,
                    };
                    report.push(format!("{way}: {line}"));
                    if let Ok(direct) = tried {
                        return Ok(GpuRegion {
                            memory,
                            direct: Some(direct),
                            way,
                            staging,
                            report,
                        });
                    }
                }
            }
        }
        if staging == Staging::Refused {
            let report = report.join("; ");
            return Err(ClientError::NoDirectWay { report });
        }
        let tried = self.probe(Through::Staging, &memory);
        report.push(match &tried {
            Ok(()) => format!(
                "{}: {THROUGH}, and results are copied from pinned memory",
                Way::Staging
            ),
            Err(why) => format!("{}: {why}", Way::Staging),
        });
        if tried.is_err() {
            // Nothing comes anywhere then.
            self.check_open()?;
            let report = report.join("; ");
            return Err(ClientError::NoWay { report });
        }
        Ok(GpuRegion {
            memory,
            direct: None,
            way: Way::Staging,
            staging,
            report,
        })
    }

    /// Tries a way. The inner error is a line that says why it is none.
    fn attempt(
        &self,
        way: Way,
        memory: &Arc<DeviceMemory>,
        flush: Flush,
    ) -> Result<Result<Direct, String>, ClientError> {
        let foreign = match way {
            Way::PeerMemory => self.by_address(memory),
            _ => self.exported(memory),
        };
        let foreign = match foreign {
            Ok(foreign) => foreign,
            Err(why) => return Ok(Err(why)),
        };
        let region = match self.hub.foreign_region(foreign, memory.len()) {
            Ok(region) => region,
            // What this side, or the dataplane, can't do; not the connection's end.
            Err(ClientError::Port(error @ PortError::Unsupported { .. })) => {
                return Ok(Err(error.to_string()));
            }
            Err(ClientError::Port(PortError::System { call, source })) => {
                return Ok(Err(format!("{call} failed: {source}")));
            }
            Err(
                error @ (ClientError::Port(PortError::Refused { .. })
                | ClientError::TooLarge { .. }),
            ) => {
                return Ok(Err(error.to_string()));
            }
            Err(error) => return Err(error),
        };
        match self.probe(Through::Nic(region), memory) {
            Ok(()) => Ok(Ok(Direct { region, flush })),
            Err(why) => {
                self.check_open()?;
                // A request that may still write there keeps it registered, until the connection ends.
                let _ = self.hub.unregister(region);
                Ok(Err(format!("registered, but {why}")))
            }
        }
    }

    /// Whether neither the GPU nor the connection was closed.
    fn check_open(&self) -> Result<(), ClientError> {
        if self.is_closed() {
            return Err(ClientError::GpuClosed);
        }
        self.hub.generation().map(|_| ())?;
        match self.hub.is_closed() {
            true => Err(ClientError::Closed),
            false => Ok(()),
        }
    }

    fn exported(&self, memory: &DeviceMemory) -> Result<Foreign, String> {
        let page = rustix::param::page_size() as u64;
        let current = self.context.enter().map_err(|error| error.to_string())?;
        match current.export(memory, page) {
            Ok(Some(exported)) => Ok(Foreign::DmaBuf {
                fd: exported.fd,
                offset: exported.offset,
                address: memory.address(),
                bytes: memory.len(),
            }),
            Ok(None) => Err("the GPU exports none (attribute 124 is 0)".into()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn by_address(&self, memory: &Arc<DeviceMemory>) -> Result<Foreign, String> {
        let files = &self.options.peer_memory_files;
        match files.iter().any(|file| Path::new(file).exists()) {
            true => Ok(Foreign::Peer(peer_memory(memory))),
            false => Err("the kernel module is not loaded (modprobe nvidia-peermem)".into()),
        }
    }
}
