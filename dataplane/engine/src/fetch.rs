//! Asking for request data that lie in regions of the client.

use rowmill_wire::{Place, Refusal};

use crate::accept;
use crate::bind::BoundSchema;
use crate::memory::{Denied, Extent, Fetch, Memory};
use crate::slot::{Slot, Stage};

/// Asks for all that a request has in regions; goes on at once where it is readable. Where the driver has
/// no room for it the request stays as it is.
pub(crate) fn ask(
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
) -> Result<(), Refusal> {
    let asked = memory.fetch(
        slot.conn,
        slot.port_slot,
        &mut extents(slot, schema.features.len()),
    );
    match asked {
        Ok(Fetch::Ready) => accept::arrived(slot, schema, memory),
        Ok(Fetch::Coming) => {
            slot.stage = Stage::Fetching;
            slot.fetched = true;
            Ok(())
        }
        Err(Denied::Later) => Ok(()),
        Err(Denied::Refused(status)) => Err(Refusal::whole(status)),
    }
}

/// Gives back what was fetched for a request.
pub(crate) fn release(slot: &mut Slot, memory: &mut impl Memory) {
    if core::mem::take(&mut slot.fetched) {
        memory.release(slot.conn, slot.port_slot);
    }
}

/// The bytes of regions that a request is read from, extents that touch as one.
fn extents(slot: &Slot, features: usize) -> impl Iterator<Item = Extent> {
    let (header, spans) = (&slot.header, &slot.spans[..features]);
    let lengths = header.bags + u32::from(header.lengths.element.is_offsets());
    let parts = [
        (&header.lengths, Some(lengths)),
        (&header.ids, None),
        (&header.weights, None),
    ];
    let each = parts.into_iter().flat_map(move |(segment, lengths)| {
        spans.iter().filter_map(move |span| {
            let Place::Region { region, offset } = segment.place else {
                return None;
            };
            let (first, count) = match lengths {
                Some(count) => (span.lengths_at, count),
                None => (span.segment_at, span.ids),
            };
            let element = segment.element.bytes();
            Some(Extent {
                region,
                // One that overflows lies in no region either.
                offset: offset.saturating_add(u64::from(first) * element),
                len: u64::from(count) * element,
            })
        })
    });
    merge(each.filter(|extent| extent.len > 0))
}

/// Makes one of each extent and those behind it that begin where it ends.
fn merge(extents: impl Iterator<Item = Extent>) -> impl Iterator<Item = Extent> {
    let mut extents = extents.peekable();
    core::iter::from_fn(move || {
        let mut whole = extents.next()?;
        while let Some(next) = extents.next_if(|next| {
            next.region == whole.region && whole.offset.checked_add(whole.len) == Some(next.offset)
        }) {
            whole.len += next.len;
        }
        Some(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_that_touch_become_one() {
        let extent = |region, offset, len| Extent {
            region,
            offset,
            len,
        };
        let several = [
            extent(0, 0, 8),
            extent(0, 8, 4),
            extent(1, 12, 4),
            extent(1, 20, 4),
            extent(1, 24, 1),
            extent(1, u64::MAX, 8),
            extent(1, 7, 1),
        ];
        let merged: Vec<_> = merge(several.into_iter()).collect();
        assert_eq!(
            merged,
            [
                extent(0, 0, 12),
                extent(1, 12, 4),
                extent(1, 20, 5),
                extent(1, u64::MAX, 8),
                extent(1, 7, 1),
            ]
        );
    }
}
