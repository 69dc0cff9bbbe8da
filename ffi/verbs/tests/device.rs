//! The crate on a real or software RDMA device. The device is found by the IP address of the network device that
//! it stands on, in the environment variable `ROWMILL_RDMA_ADDRESS`. Without it each test says so and does nothing.
//!
//! Both ends of each connection are on this one device, mostly in one process and thread. Run with `--test-threads=1`.
//! With `ROWMILL_RDMA_LAB=1` addresses come and go on the network device, which needs root and the command `ip`; the
//! command `rdma`, if there, counts what is left behind.

#[path = "device/allocations.rs"]
mod allocations;
#[path = "device/connecting.rs"]
mod connecting;
#[path = "device/failing.rs"]
mod failing;
#[path = "device/limits.rs"]
mod limits;
#[path = "device/other_process.rs"]
mod other_process;
#[path = "device/pair.rs"]
mod pair;
#[path = "device/raw_event.rs"]
mod raw_event;
#[path = "device/transfer.rs"]
mod transfer;
