//! A safe layer over the CUDA driver API.
//!
//! The driver is opened at run time ([`Driver::open`]): nothing of CUDA is needed to build a program with this crate, nor to run one
//! without a GPU. What the driver lacks is named in the error.
//!
//! * A [`Device`] has a primary [`Context`]. What is done in it are the methods of [`Current`], for as long as the context is the
//!   thread's current one.
//! * [`DeviceMemory`] is the GPU's; [`Pinned`] memory is the host's, of any owner, and [`Words`] are what streams wait for.
//! * A [`Stream`] does its work in order, and an [`Event`] marks a place in it.
//! * [`Current::export`] makes a dma-buf of a GPU's memory.
//!
//! ```no_run
//! use rowmill_cuda::{Context, DeviceMemory, Driver, LIBRARY, Stream};
//!
//! let device = Driver::open(LIBRARY.as_ref())?.device(0)?;
//! let context = Context::primary(device)?;
//! let memory = DeviceMemory::new(&context, 4096)?;
//! let stream = Stream::new(&context)?;
//! let current = context.enter()?;
//! current.fill(&memory, 0, 4096, 7)?;
//! current.synchronize(&stream)?;
//! # Ok::<(), rowmill_cuda::Error>(())
//! ```
//!
//! # Threads
//! All values may be used by all threads; only [`Current`] stays in its own. The driver has locks of its own, which calls can hold
//! while they wait for a GPU; see [`Current::wait_word`].
#![deny(unsafe_op_in_unsafe_fn)]

mod context;
mod driver;
mod error;
mod export;
mod memory;
mod stream;
mod sys;

pub use context::{Context, Current};
pub use driver::{Attribute, Device, Driver, LIBRARY};
pub use error::Error;
pub use export::DmaBuf;
pub use memory::{DeviceMemory, Pinned, Words};
pub use stream::{Event, Flush, Stream, StreamId};
