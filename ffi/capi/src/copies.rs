//! Answers that are copied to memory of the caller's.

use core::ptr::NonNull;
use std::sync::Arc;

use rowmill_client::{BoundSchema, Lease, ReadWindow};

use crate::error::Error;
use crate::region::Region;
use crate::requests::Arrays;

/// Where an answer is copied when it is taken, and what of it.
pub(crate) struct Copies {
    region: Arc<Region>,
    offset: u64,
    bags: u32,
    /// Of each feature that is not pooled, its ids; of others 0.
    ids: Vec<u32>,
}

impl Copies {
    /// What of an answer is to be copied; `None` where nothing has to be.
    pub(crate) fn of(
        region: &Arc<Region>,
        offset: u64,
        schema: &BoundSchema,
        arrays: &Arrays,
    ) -> Option<Copies> {
        if !region.is_copied() {
            return None;
        }
        let view = arrays.view();
        let ids = |feature| match schema.is_pooled(feature) {
            true => 0,
            // What another thread writes there meanwhile is as undefined as what was sent.
            false => {
                let most = schema.schema().features[feature].max_ids;
                view.ids_of(feature).min(most.into()) as u32
            }
        };
        Some(Copies {
            region: Arc::clone(region),
            offset,
            bags: view.bags() as u32,
            ids: (0..schema.features()).map(ids).collect(),
        })
    }

    /// Copies the vectors of an answer; what lies between them is left alone.
    pub(crate) fn copy(&self, schema: &BoundSchema, lease: &Lease) -> Result<(), Error> {
        let from = lease.window();
        let start = NonNull::new(from.as_ptr()).expect("a window's start is not null");
        // SAFETY: the bytes are mapped as long as the lease, and are read by copies only.
        let from = unsafe { ReadWindow::from_raw(start, from.len()) };
        self.region.copy(|memory| {
            // SAFETY: the caller of rowmill_region_register() has promised that it is mapped and writable until the region is freed,
            // which it is not.
            let to = unsafe { memory.window() };
            self.each(schema, |offset, bytes| {
                let part = from.part(offset as usize, bytes as usize);
                let part = part.expect("vectors lie in the target");
                part.copy_to(&to, (self.offset + offset) as usize);
            });
        })
    }

    /// Calls `take` with the place and the size of each piece: vectors, or rows of them where there is nothing between.
    fn each(&self, schema: &BoundSchema, mut take: impl FnMut(u64, u64)) {
        if is_dense(schema) {
            return take(0, schema.target_bytes(self.bags));
        }
        for (feature, &ids) in self.ids.iter().enumerate() {
            let vectors = match schema.is_pooled(feature) {
                true => self.bags,
                false => ids,
            };
            for vector in 0..vectors {
                let offset = schema.vector_offset(feature, vector);
                take(offset, schema.vector_bytes(feature));
            }
        }
    }
}

/// Whether the vectors of all bags lie side by side, with nothing between them. None of them overlap.
fn is_dense(schema: &BoundSchema) -> bool {
    let features = &schema.schema().features;
    let Some(row) = features.first().map(|first| first.stride) else {
        return false;
    };
    let all = 0..features.len();
    let bytes: u64 = all.clone().map(|f| schema.vector_bytes(f)).sum();
    let is_in_row = |f: usize| {
        let end = features[f].offset + schema.vector_bytes(f);
        schema.is_pooled(f) && features[f].stride == row && end <= row
    };
    bytes == row && all.into_iter().all(is_in_row)
}
