//! Parked bags whose rows have all come: pooled from the cache's staging, and placed.

use arrayvec::ArrayVec;
use rowmill_arena::Strip;
use rowmill_pooling::Bags;

use crate::batch::{Made, Work, strips};
use crate::bind::BoundSchema;
use crate::memory::{Denied, Memory};
use crate::parked::Bag;
use crate::piece::{From, Piece};
use crate::slot::Slot;

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
    // The run that it is of may be under way: then it is placed with that.
    let panel = &schema.panels[bag.panel as usize];
    let walk = &slot.walk;
    let run = walk.first..walk.first + walk.run;
    let staging = slot.staging.as_ref().filter(|_| {
        (walk.slices, walk.panel) == (bag.slice, bag.panel) && run.contains(&bag.vector)
    });
    if let Some(staging) = staging {
        let laid = staging.lay(&strips(slot, panel))[feature.column];
        let vector = u64::from(bag.vector - walk.first);
        let bags = Bags {
            offset: (laid.at + feature.column_at + vector * laid.stride) as usize,
            stride: laid.stride as usize,
            ..bags
        };
        let target = memory.window(slot.conn, region, staging)?;
        work.kernels.pool(&[bags], &target);
        slot.walk.parked -= 1;
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
