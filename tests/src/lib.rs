//! What the tests of the whole system share.
#![forbid(unsafe_code)]

pub mod faults;
pub mod fuzz;
pub mod gpu;
pub mod sim;
pub mod sim_control;
