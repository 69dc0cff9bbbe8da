//! A stand-in for `libcuda.so.1`: the functions of the CUDA driver API that rowmill calls, without a GPU, for tests.
//!
//! One device, whose memory is this process's; a stream is a thread with a queue. What matters for order and for deadlocks is as in
//! the driver, or stricter:
//!
//! * asynchronous calls return at once, and streams do their work late: each step a little after it could (`delay=`);
//! * the legacy default stream waits for all streams that were not made as non-blocking, and those for it;
//! * calls take the library's one lock, also those that only queue work, and `cuMemFree`, `cuMemFreeHost` and
//!   `cuMemHostUnregister` hold it until all streams are idle: so whoever has to set a word that a stream waits for and makes a
//!   call of CUDA before that waits for ever, as with the driver;
//! * a call without a current context fails, and so does a copy that leaves its allocation.
//!
//! What it has and does can be chosen: see `options.rs`. Nothing of it says anything about times.
//!
//! A test opens a copy of the library, which has a state of its own: [`StandIn`].

mod functions;
mod memory;
mod opened;
mod options;
mod state;
mod stream;

pub use opened::StandIn;
