//! Suite `rdma`: the service over RDMA beside what the device itself does.
//!
//! It has two halves, on two machines or two user-mode kernels (`make bench-rxe` starts both). One serves: a real
//! `rowmilld`, and what its figures are compared with. The other one asks, measures and reports. Compared are, in turns
//! within one run: goodput with `ib_write_bw`, rows of another dataplane's memory with `ib_read_bw`, the latency of one sample with a bare ping-pong, and pooling at the dataplane
//! with rows that are fetched and pooled here. What a worker calls the kernel for is counted by a third way to run it, on one
//! machine (`make test-rxe FILTER=syscalls`).

mod link;
mod measuring;
mod perftest;
mod ping_pong;
mod read_rows;
mod remote;
mod serving;
mod syscalls;
mod talk;
mod wire;

use std::net::IpAddr;

pub(crate) use measuring::{Extent, run as measure};
pub(crate) use serving::run as serve;
pub(crate) use syscalls::run as count_syscalls;

/// Rows of all tables. Two user-mode kernels have them several times: in the service's arena, registered for READs, and here.
const MODEL_BYTES: u64 = 256 << 20;

/// Where the service listens.
fn endpoint(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("rdma://{v4}:7400"),
        IpAddr::V6(v6) => format!("rdma://[{v6}]:7400"),
    }
}
