//! The bodies of the fuzz targets, shared with the tests that run on stable. They are taken as a file
//! and not as a dependency, so that no service is built with the sanitizers.
#![forbid(unsafe_code)]

#[path = "../../src/fuzz.rs"]
mod bodies;

pub use bodies::*;
