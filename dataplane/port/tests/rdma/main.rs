//! The port over RDMA: the conformance suite with each lane on a thread of its own, and what that does not reach. Client
//! and server are in one process, over one device.
#![cfg(feature = "rdma")]

mod harness;

use harness::{Rdma, has_device};

rowmill_port::conformance_tests!(Rdma, threads, when has_device());
