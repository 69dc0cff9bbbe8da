//! Which rows of cached tables will be looked up next.

use rowmill_wire::Op;

use crate::batch::{Made, Work};
use crate::bind::BoundSchema;
use crate::cached::Cached;
use crate::engine::{Connection, bound};
use crate::limits::{LOOKED_FOR_BYTES, PREFETCH_IDS};
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

/// While the run of a request is held: asks for rows that it looks up after that, some in a call, so that all of the request are on their way before
/// it waits. Returns whether there is more to be asked for now; where there is no room for more rows in advance, when it comes to stand here again.
pub(crate) fn ask(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    made: &mut Made,
) -> bool {
    let cached = &mut *work.cached;
    let mut left = PREFETCH_IDS;
    let (mut has_room, mut is_done) = (true, true);
    for (feature, span) in schema.features.iter().zip(slot.spans.iter_mut()) {
        let home = cached.homes.of(slot.side, feature.table);
        let end = span.ids_from + span.ids;
        if !cached.worker.is_cached(home) {
            continue;
        }
        span.asked_id = span.asked_id.max(span.next_id);
        let ids = (end - span.asked_id).min(left);
        if ids > 0 {
            let rows = &slot.data.ids[span.asked_id as usize..(span.asked_id + ids) as usize];
            let places = &mut cached.places[..ids as usize];
            let asked = cached
                .worker
                .prefetch_meanwhile(work.turn, home, rows, places);
            span.asked_id += asked as u32;
            has_room = asked as u32 == ids;
            left -= ids;
        }
        is_done &= span.asked_id == end;
        if !has_room {
            break;
        }
    }
    made.besides += u64::from(PREFETCH_IDS - left) * LOOKED_FOR_BYTES;
    has_room && !is_done
}
