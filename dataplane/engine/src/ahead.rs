//! Which rows of cached tables will be looked up next.

use rowmill_wire::Op;

use crate::cached::Cached;
use crate::engine::{Connection, bound};
use crate::slot::{Slot, Stage};

/// Tells the cache what requests whose ids are checked have still to look up, each from where it stands, if it is about to choose
/// rows that have to go.
pub(crate) fn tell(cached: &mut Cached, slots: &[Slot], connections: &[Connection]) {
    if !cached.worker.asks_ahead() {
        return;
    }
    let is_checked = |slot: &&Slot| matches!(slot.stage, Stage::Pooling | Stage::Waiting);
    let checked = (slots.iter()).filter(|slot| is_checked(slot) && slot.header.op == Op::Lookup);
    let Cached { worker, homes, .. } = cached;
    let homes = &*homes;
    worker.ahead(checked.flat_map(|slot| {
        let features = bound(connections, slot).features.iter();
        features.zip(slot.spans.iter()).map(move |(feature, span)| {
            let rows = span.next_id as usize..(span.ids_from + span.ids) as usize;
            (homes.of(slot.side, feature.table), &slot.data.ids[rows])
        })
    }));
}
