//! Ids of 64 bits that are sent in 32, where all of them fit: half as many bytes for the dataplane to fetch,
//! which reads 32-bit ids as the same numbers.

use crate::shape::{Content, Field, Sink};

/// Ids taken at a time: with those they become 6 KiB, which stay in the first-level cache.
const CHUNK: usize = 512;

/// Copies all ids of a batch, which have 64 bits, as 32-bit ones to byte `at` of `out`; `false` where one is
/// negative or needs more than 31 bits, which a dense table would take for a negative one. What is
/// written then is of no meaning.
pub(crate) fn copy_ids(batch: &impl Content, out: &mut Sink<'_>, at: usize) -> bool {
    let (mut wide, mut narrow) = ([0u64; CHUNK], [0u32; CHUNK]);
    let count = batch.shape().ids();
    for from in (0..count).step_by(CHUNK) {
        let part = CHUNK.min(count - from);
        let (wide, narrow) = (&mut wide[..part], &mut narrow[..part]);
        let ids = from as u32..(from + part) as u32;
        let mut private = Sink::Frame(bytemuck::cast_slice_mut(wide));
        batch.copy(Field::Ids, ids, &mut private, 0);
        let mut bits = 0;
        for (narrow, &wide) in narrow.iter_mut().zip(&*wide) {
            bits |= wide;
            *narrow = wide as u32;
        }
        if bits >> 31 != 0 {
            return false;
        }
        out.put(at + 4 * from, bytemuck::cast_slice(narrow));
    }
    true
}
