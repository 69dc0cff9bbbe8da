//! The port over RDMA: the conformance suite with each lane on a thread of its own, and what that does not reach. Client
//! and server are in one process, over one device; where one of them has to die or stop, it is a process of its own.
#![cfg(feature = "rdma")]

mod agree;
mod bare;
mod breaches;
mod counting;
mod crowd;
mod ends;
mod far;
mod harness;
mod hostile;
mod load;
mod overdue;
mod remote;

use harness::{Rdma, has_device};

rowmill_port::conformance_tests!(Rdma, threads, when has_device());
