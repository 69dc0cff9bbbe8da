//! Choices for a GPU.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;

use rowmill_cuda::LIBRARY;

use super::choose::PEER_MEMORY;

/// The environment variable that names another library than [`LIBRARY`] for the CUDA driver.
const LIBRARY_VARIABLE: &str = "ROWMILL_CUDA_LIBRARY";

/// Choices for a [`Gpu`](crate::Gpu).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// The CUDA driver's library: a name that the dynamic linker finds, or a path. The default is the environment variable
    /// `ROWMILL_CUDA_LIBRARY`, or else `libcuda.so.1`.
    pub library: OsString,
    /// The GPU's number, as CUDA counts.
    pub ordinal: i32,
    /// Bytes of pinned memory for results on their way to the GPU. The default of 64 MiB holds 18 queries of 256 samples of
    /// the DLRM-v2 shape.
    pub staging_bytes: u64,
    /// Most requests whose results are on their way. The default is 16.
    pub requests: usize,
    /// In about how many pieces a result is copied, while the dataplane's workers go on; at least one for each of them. The
    /// default is 16: queueing one takes a few microseconds.
    pub pieces: u32,
    /// Fewest bytes of a piece, about. The default of 64 KiB takes some 3 us on a PCIe 4.0 link, as long as it takes to begin a copy.
    pub piece_bytes: u64,
    /// After how long a stream goes on without an answer. The default is 10 s.
    pub limit: Duration,
    /// How long [`Gpu::synchronize`](crate::Gpu::synchronize) takes answers in itself, which spares the hub's thread to be woken for them, before it sleeps
    /// in the driver. The default is 1 ms.
    pub poll: Duration,
    /// Files any of which is there where nvidia-peermem is loaded. The default are those that its versions make.
    pub peer_memory_files: Vec<PathBuf>,
}

impl Default for GpuOptions {
    fn default() -> GpuOptions {
        GpuOptions {
            library: std::env::var_os(LIBRARY_VARIABLE).unwrap_or_else(|| LIBRARY.into()),
            ordinal: 0,
            staging_bytes: 64 << 20,
            requests: 16,
            pieces: 16,
            piece_bytes: 64 << 10,
            limit: Duration::from_secs(10),
            poll: Duration::from_millis(1),
            peer_memory_files: PEER_MEMORY.iter().map(PathBuf::from).collect(),
        }
    }
}
