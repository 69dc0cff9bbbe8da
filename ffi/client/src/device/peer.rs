//! A GPU's memory by its address: the one place of the client that vouches for memory.
#![expect(unsafe_code, reason = "registering memory by its address")]

use std::sync::Arc;

use rowmill_cuda::DeviceMemory;
use rowmill_port::PeerMemory;

/// The memory by its address, kept for as long as it is registered.
pub(crate) fn peer_memory(memory: &Arc<DeviceMemory>) -> PeerMemory {
    let owner = Box::new(Arc::clone(memory));
    // SAFETY: memory of a GPU, as CUDA has said or allocated, which is none of Rust's; it stays allocated while the owner lives.
    unsafe { PeerMemory::new(memory.address(), memory.len(), owner) }
}
