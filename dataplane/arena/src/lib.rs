//! Memory: huge-page arenas, regions shared with peers, mapped files, and the SIGBUS handler.
//!
//! * [`Arena`] is private memory for tables: allocated once, filled, then frozen read-only, or shared by threads that write it.
//! * [`Reserve`] is memory that becomes larger and smaller while threads use it.
//! * [`Region`] is a sealed memfd of a peer, reachable only through a [`Window`].
//! * [`Strip`] and [`Staging`] say which bytes of a region results fill, and where they are until then.
//! * [`MappedFile`] is a file mapped for tools.
//! * [`DirectReader`] reads parts of files past the page cache, by io_uring, without waiting.
//! * [`prefetch_read`] and [`prefetch_line`] ask for a cache line ahead of its use.
//!
//! The crate does not know what any of the bytes mean. It is Linux only, and it is one of the few
//! places where `unsafe` is allowed.
#![deny(unsafe_op_in_unsafe_fn)]

mod arena;
mod direct;
mod error;
mod guard;
mod live;
mod mapped;
mod mapping;
mod memory;
mod pages;
mod prefetch;
mod region;
mod reserve;
mod sigbus;
mod strip;
mod window;

pub use arena::{Arena, FrozenArena, FrozenBytes, SharedArena};
pub use direct::{
    DIRECT_ALIGN, DirectFile, DirectReader, FileId, PageCache, ReadError, ReaderOptions, SlotsTaken,
};
pub use error::ArenaError;
pub use guard::guards_holes;
pub use live::LiveArena;
pub use mapped::{MappedFile, open_at_once};
pub use memory::{address_space_left, available_bytes};
pub use pages::{Backing, HUGE_1G, HUGE_2M, HugePages, Pool, Pools};
pub use prefetch::{prefetch_line, prefetch_read};
pub use region::{Region, sealed_memfd};
pub use reserve::Reserve;
pub use sigbus::{MAX_WATCHED, install_sigbus_handler};
pub use strip::{Laid, Layout, MAX_STRIPS, Staging, Strip};
pub use window::{ReadWindow, Window};
