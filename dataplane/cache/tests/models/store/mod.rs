//! The files under test, and what stands in the place of others.

#[path = "../../../src/store/limbo.rs"]
mod limbo;
pub(crate) mod memory;
#[path = "../../../src/store/quiescence.rs"]
pub(crate) mod quiescence;
#[path = "../../../src/store/spread.rs"]
pub(crate) mod spread;
mod sync;
pub(crate) mod tags;
#[path = "../../../src/store/writer.rs"]
pub(crate) mod writer;

use std::sync::Arc;

/// The writer of a shard.
pub(crate) fn writer(
    memory: &Arc<memory::Memory>,
    epochs: &Arc<quiescence::Epochs>,
    spread: spread::Spread,
    shard: u32,
    limbo: usize,
) -> writer::Writer {
    writer::Writer::new(Arc::clone(memory), Arc::clone(epochs), spread, shard, limbo)
}
