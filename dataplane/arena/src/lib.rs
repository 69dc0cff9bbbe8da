//! Memory: huge-page arenas, regions shared with peers, mapped files, and the SIGBUS handler.
#![deny(unsafe_op_in_unsafe_fn)]

mod window;

pub use window::Window;
