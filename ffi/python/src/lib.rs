//! The client as a Python module, `rowmill._rowmill`, of which the package `rowmill` shows what is for users.
//!
//! Nothing here blocks with the interpreter's lock held: what waits gives it to others, and what may be dropped by any thread
//! needs none.

mod arguments;
mod array;
mod batch;
mod buffer;
mod buffer_protocol;
mod client;
mod control;
mod dlpack;
mod errors;
mod export;
mod future;
mod gpu;
mod memory;
mod once;
mod request;
mod result;
mod schema;

/// rowmill's client, as far as it is written in Rust.
#[pyo3::pymodule]
mod _rowmill {
    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name for a version")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use crate::batch::Jagged;
    #[pymodule_export]
    use crate::buffer::Buffer;
    #[pymodule_export]
    use crate::client::{Client, connect};
    #[pymodule_export]
    use crate::errors::_status_classes;
    #[pymodule_export]
    use crate::export::write_generation;
    #[pymodule_export]
    use crate::future::{Bell, Future};
    #[pymodule_export]
    use crate::gpu::{Gpu, GpuMemory};
    #[pymodule_export]
    use crate::result::{Array, Result};
    #[pymodule_export]
    use crate::schema::{Feature, Schema, Table};
}
