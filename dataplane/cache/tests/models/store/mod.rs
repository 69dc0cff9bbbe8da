//! The files under test, and what stands in the place of others.

#[path = "../../../src/store/agree.rs"]
mod agree;
#[path = "../../../src/store/drawn.rs"]
mod drawn;
#[path = "../../../src/store/extent.rs"]
pub(crate) mod extent;
#[path = "../../../src/store/key.rs"]
pub(crate) mod key;
#[path = "../../../src/store/limbo.rs"]
mod limbo;
pub(crate) mod memory;
pub(crate) mod patched;
#[path = "../../../src/store/patches.rs"]
mod patches;
#[path = "../../../src/store/quiescence.rs"]
pub(crate) mod quiescence;
#[path = "../../../src/store/spread.rs"]
pub(crate) mod spread;
#[path = "../../../src/store/sweep.rs"]
pub(crate) mod sweep;
pub(crate) mod sync;
pub(crate) mod tags;
#[path = "../../../src/store/writer.rs"]
pub(crate) mod writer;

use std::sync::Arc;

use extent::{Change, Extent, View};

/// A store, without what says how large it is to be.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) memory: Arc<memory::Memory>,
    epochs: Arc<quiescence::Epochs>,
    extent: Arc<Extent>,
    pub(crate) spread: spread::Spread,
}

impl Store {
    pub(crate) fn new(
        memory: memory::Memory,
        epochs: Arc<quiescence::Epochs>,
        spread: spread::Spread,
    ) -> Store {
        Store {
            memory: Arc::new(memory),
            epochs,
            extent: Arc::new(Extent::new(&spread)),
            spread,
        }
    }

    /// The writer of a shard.
    pub(crate) fn writer(&self, shard: u32, limbo: usize) -> writer::Writer {
        let Store {
            memory,
            epochs,
            extent,
            spread,
        } = self.clone();
        writer::Writer::new(memory, epochs, extent, spread, shard, limbo)
    }

    /// As the store's, where tags tell rows apart as long as sets don't change.
    pub(crate) fn find(&self, rows: &[u32], places: &mut [u32]) {
        let tags = self.memory.tags();
        match self.extent.view(&self.spread) {
            View::Still(spread) => tags::find(tags, &spread, rows, places),
            View::Moving(moving) => {
                tags::find(tags, &moving, rows, places);
                agree::look_again(&self.memory, &moving, rows, places);
            }
        }
    }

    /// As the store's.
    pub(crate) fn resize(&self, old: u32, new: u32) {
        let change = Change {
            old: self.spread.over(old),
            new: self.spread.over(new),
        };
        if change.grows() {
            self.memory.empty(change.old.sets()..change.new.sets());
        }
        self.extent.begin(&change);
    }

    /// As the store's, once nothing changes any more.
    pub(crate) fn settle(&self, mut wait: impl FnMut()) {
        let (old, new) = self.extent.shard_sets();
        assert_eq!(old, new, "all writers have come to the end");
        let epoch = self.epochs.end();
        while self.epochs.passed() < epoch {
            wait();
        }
        self.memory.lose(self.spread.over(new).sets());
    }
}
