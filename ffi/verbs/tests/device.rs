//! The crate on a real or software RDMA device. The device is found by the IP address of the network device that
//! it stands on, in the environment variable `ROWMILL_RDMA_ADDRESS`. Without it each test says so and does nothing.
//!
//! Both ends of each connection are in this process, on one device and one thread. Run with `--test-threads=1`.

#[path = "device/allocations.rs"]
mod allocations;
#[path = "device/connecting.rs"]
mod connecting;
#[path = "device/failing.rs"]
mod failing;
#[path = "device/limits.rs"]
mod limits;
#[path = "device/pair.rs"]
mod pair;
#[path = "device/transfer.rs"]
mod transfer;
