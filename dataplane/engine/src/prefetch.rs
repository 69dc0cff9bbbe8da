//! Requests for rows that may be wanted soon: what is not there is asked for, as far as there is room, and nothing is answered but that the
//! ids were taken.

use crate::batch::{Made, Work};
use crate::bind::BoundSchema;
use crate::limits::PREFETCH_IDS;
use crate::slot::Slot;

/// Takes the next ids of a request whose ids are checked.
pub(crate) fn run(work: &mut Work<'_>, slot: &mut Slot, schema: &BoundSchema) -> Made {
    let cached = &mut *work.cached;
    let mut left = PREFETCH_IDS;
    for (feature, span) in schema.features.iter().zip(slot.spans.iter_mut()) {
        let end = span.ids_from + span.ids;
        let home = cached.homes.of(slot.side, feature.table);
        if !cached.worker.is_cached(home) {
            span.next_id = end;
        }
        let ids = (end - span.next_id).min(left);
        let rows = &slot.data.ids[span.next_id as usize..(span.next_id + ids) as usize];
        if ids > 0 {
            let places = &mut cached.places[..ids as usize];
            let worker = &mut cached.worker;
            worker.prefetch_lacking(work.turn, home, rows, places);
        }
        span.next_id += ids;
        left -= ids;
        if span.next_id < end {
            break;
        }
    }
    let mut spans = slot.spans[..schema.features.len()].iter();
    Made {
        // Finding a row touches two lines or so, and asking its owner as many.
        besides: u64::from(PREFETCH_IDS - left) * 256,
        finished: spans.all(|s| s.next_id == s.ids_from + s.ids),
        ..Made::default()
    }
}
