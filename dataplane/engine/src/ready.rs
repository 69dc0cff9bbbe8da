//! Parked bags whose rows have all come: pooled from the cache's staging, and placed.

use arrayvec::ArrayVec;
use rowmill_arena::Strip;
use rowmill_pooling::Bags;

use crate::batch::{Made, Work, strips};
use crate::bind::{BoundSchema, Panel};
use crate::memory::{Denied, Memory};
use crate::parked::Bag;
use crate::piece::{From, Piece};
use crate::slot::{Run, Slot};

/// Pools bags of a request that are ready, at least one, up to the budget.
///
/// # Errors
/// As [`crate::batch::run`].
pub(crate) fn pool(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    memory: &mut impl Memory,
    made: &mut Made,
) -> Result<(), Denied> {
    while let Some(bag) = work.cached.parked.first(&slot.ready) {
        if made.cost() >= work.budget {
            break;
        }
        match pool_one(work, slot, schema, &bag, memory) {
            // What was done is to be paid for.
            Err(Denied::Later) if made.bytes > 0 => break,
            outcome => outcome?,
        }
        let feature = &schema.features[bag.feature as usize];
        made.rows += u64::from(bag.ids);
        made.bytes += u64::from(bag.ids) * feature.row_bytes + feature.vector_bytes.max(64);
        slot.unplaced[bag.slice as usize] -= 1;
        let ids = bag.first_id as usize..(bag.first_id + bag.ids) as usize;
        let cached = &mut *work.cached;
        cached.parked.remove(&mut slot.ready, bag.id);
        cached.worker.release(bag.id, &slot.data.ids[ids]);
        cached.crowd.released(slot.conn, bag.ids, bag.place);
    }
    Ok(())
}

fn pool_one(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    bag: &Bag,
    memory: &mut impl Memory,
) -> Result<(), Denied> {
    let feature = &schema.features[bag.feature as usize];
    let region = slot.header.target_region;
    let piece = Piece {
        feature: bag.feature,
        from: From::Staging,
        done: 0,
        vectors: 1,
        lengths_at: bag.lengths_at,
        first_id: bag.first_id,
        ids: bag.ids,
    };
    let jagged = [bag.ids];
    let bags = piece.bags(slot, schema, &jagged, work.cached);
    let panel = &schema.panels[bag.panel as usize];
    // The run that it is of may be held, or under way: then it is placed with that.
    let of = |slice, at, run: Run| (slice, at) == (bag.slice, bag.panel) && run.has(bag.vector);
    let held = slot.held.iter();
    let held = { held }.position(|held| of(held.slice, held.panel, held.run));
    let walk = &slot.walk;
    let staged = match held {
        Some(at) => Some((&slot.held[at].staging, slot.held[at].run)),
        None => {
            let staging = slot
                .staging
                .as_ref()
                .filter(|_| of(walk.slices, walk.panel, walk.run));
            staging.map(|staging| (staging, walk.run))
        }
    };
    if let Some((staging, run)) = staged {
        let laid = staging.lay(&strips(slot, panel, run))[feature.column];
        let vector = u64::from(bag.vector - run.first);
        let bags = Bags {
            offset: (laid.at + feature.column_at + vector * laid.stride) as usize,
            stride: laid.stride as usize,
            ..bags
        };
        let target = memory.window(slot.conn, region, staging)?;
        work.kernels.pool(&[bags], &target);
        match held {
            Some(at) => pooled_of(slot, panel, at, memory)?,
            None => slot.walk.parked -= 1,
        }
        return Ok(());
    }
    let strips: ArrayVec<Strip, 1> = ArrayVec::from([Strip {
        offset: slot.header.target_base + feature.offset + u64::from(bag.vector) * feature.stride,
        bytes: feature.vector_bytes,
        stride: feature.stride,
        count: 1,
    }]);
    let staging = memory.stage(slot.conn, region, &strips)?;
    let laid = staging.lay(&strips)[0];
    let bags = Bags {
        offset: laid.at as usize,
        stride: laid.stride as usize,
        ..bags
    };
    let pooled = memory
        .window(slot.conn, region, &staging)
        .map(|target| work.kernels.pool(&[bags], &target));
    match pooled {
        Ok(()) => Ok(memory.place(slot.conn, region, staging, &strips)?),
        Err(status) => {
            memory.unstage(slot.conn, region, staging);
            Err(status.into())
        }
    }
}

/// A parked bag of a held run is pooled: it is placed if that was the last.
fn pooled_of(
    slot: &mut Slot,
    panel: &Panel,
    at: usize,
    memory: &mut impl Memory,
) -> Result<(), Denied> {
    slot.held[at].parked -= 1;
    if slot.held[at].parked == 0 {
        let held = slot.held.swap_remove(at);
        let strips = strips(slot, panel, held.run);
        let region = slot.header.target_region;
        memory.place(slot.conn, region, held.staging, &strips)?;
    }
    Ok(())
}
