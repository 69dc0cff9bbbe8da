//! Asking for request data that lie in regions of the client.

use rowmill_wire::{Place, Refusal, Status};

use crate::accept;
use crate::bind::{BoundFeature, BoundSchema};
use crate::memory::{Denied, Extent, Fetch, Memory};
use crate::slot::{Slot, Stage};

/// Asks for all that a request has in regions; goes on at once where it is readable.
///
/// # Errors
/// [`Later`] where the driver has no room for it: the request stays as it is.
pub(crate) fn ask(
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
) -> Result<Result<(), Refusal>, Later> {
    let mut bytes = 0;
    let mut extents = extents(slot, &schema.features)
        .inspect(|extent| bytes += extent.len)
        .peekable();
    let asked = match extents.peek() {
        None => Ok(Fetch::Ready),
        Some(_) => memory.fetch(slot.conn, slot.port_slot, &mut extents),
    };
    drop(extents);
    match asked {
        Ok(Fetch::Ready) => Ok(accept::arrived(slot, schema, memory)),
        Ok(Fetch::Coming) => {
            slot.stage = Stage::Fetching;
            slot.fetched = true;
            slot.handled += bytes;
            Ok(Ok(()))
        }
        Err(Denied::Later) => Err(Later),
        Err(Denied::Refused(status)) => Ok(Err(refusal(slot, schema, status, memory))),
    }
}

/// Why data can't be had, with the first feature whose extents are to blame, where one is.
fn refusal(slot: &Slot, schema: &BoundSchema, status: Status, memory: &mut impl Memory) -> Refusal {
    let is_bad = |e: Extent| memory.check(slot.conn, e.region, e.offset, e.len).is_err();
    let mut features = (0..schema.features.len()).filter(|&f| {
        let alone = &schema.features[f..=f];
        extents_of(slot, f, alone).any(is_bad)
    });
    match features.next() {
        Some(f) => Refusal::feature(status, f as u32),
        None => Refusal::whole(status),
    }
}

/// There is no room now.
#[derive(Debug)]
pub(crate) struct Later;

/// Gives back what was fetched for a request.
pub(crate) fn release(slot: &mut Slot, memory: &mut impl Memory) {
    if core::mem::take(&mut slot.fetched) {
        memory.release(slot.conn, slot.port_slot);
    }
}

/// The bytes of regions that a request is read from, extents that touch as one.
fn extents<'a>(slot: &'a Slot, features: &'a [BoundFeature]) -> impl Iterator<Item = Extent> + 'a {
    merge(extents_of(slot, 0, features))
}

/// The extents of some features, of which the first has this number.
fn extents_of<'a>(
    slot: &'a Slot,
    first: usize,
    features: &'a [BoundFeature],
) -> impl Iterator<Item = Extent> + 'a {
    let header = &slot.header;
    let lengths = header.bags + u32::from(header.lengths.element.is_offsets());
    let parts = [
        (&header.lengths, Some(lengths), false),
        (&header.ids, None, false),
        (&header.weights, None, true),
    ];
    let each = parts
        .into_iter()
        .flat_map(move |(segment, lengths, weights)| {
            let spans = features.iter().zip(slot.spans[first..].iter());
            spans.filter_map(move |(feature, span)| {
                let Place::Region { region, offset } = segment.place else {
                    return None;
                };
                if weights && !feature.weighted {
                    return None;
                }
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
    each.filter(|extent| extent.len > 0)
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
