//! Registered regions, and who holds which range of them.
//!
//! A [`Target`] is a token for a range that no other target overlaps. Submitting a request moves it
//! into the session and only the request's last final completion (or the connection's end) gives it
//! back, so a range can't be handed to two requests, read half-written or registered away: there is
//! no token to do it with.

use rowmill_port::RegionId;

use crate::error::ClientError;

/// Ranges start at cache lines.
const LINE: u64 = 64;

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl Extent {
    fn end(self) -> u64 {
        self.offset + self.len
    }
}

/// The free ranges of a region, first fit, in order of their offsets. There is at most one more than
/// ranges given out, so the list is as bounded as they are.
#[derive(Debug)]
pub(crate) struct Extents {
    free: Vec<Extent>,
}

impl Extents {
    /// All of `bytes` free; room for `given_out` ranges before the list has to grow.
    pub(crate) fn new(bytes: u64, given_out: usize) -> Extents {
        let mut free = Vec::with_capacity(given_out + 1);
        free.push(Extent {
            offset: 0,
            len: bytes,
        });
        Extents { free }
    }

    /// Takes at least `len` bytes from a multiple of 64 on.
    pub(crate) fn take(&mut self, len: u64) -> Option<Extent> {
        let len = len.max(1).checked_next_multiple_of(LINE)?;
        let fits = |f: &Extent| f.offset.next_multiple_of(LINE) + len <= f.end();
        let at = self.free.iter().position(fits)?;
        let taken = Extent {
            offset: self.free[at].offset.next_multiple_of(LINE),
            len,
        };
        self.carve(at, taken);
        Some(taken)
    }

    /// Takes exactly this range, if all of it is free.
    pub(crate) fn take_at(&mut self, wanted: Extent) -> bool {
        let at = self
            .free
            .iter()
            .position(|f| f.offset <= wanted.offset && wanted.end() <= f.end());
        if let Some(at) = at {
            self.carve(at, wanted);
        }
        at.is_some()
    }

    fn carve(&mut self, at: usize, taken: Extent) {
        let from = self.free[at];
        let before = Extent {
            offset: from.offset,
            len: taken.offset - from.offset,
        };
        let after = Extent {
            offset: taken.end(),
            len: from.end() - taken.end(),
        };
        match (before.len > 0, after.len > 0) {
            (false, false) => drop(self.free.remove(at)),
            (true, false) => self.free[at] = before,
            (false, true) => self.free[at] = after,
            (true, true) => {
                self.free[at] = before;
                self.free.insert(at + 1, after);
            }
        }
    }

    /// Gives a taken range back.
    ///
    /// # Panics
    /// If it overlaps a free one.
    pub(crate) fn give(&mut self, back: Extent) {
        let at = self.free.partition_point(|f| f.offset < back.offset);
        let joins_before = at > 0 && {
            assert!(
                self.free[at - 1].end() <= back.offset,
                "a range is given back once"
            );
            self.free[at - 1].end() == back.offset
        };
        let joins_after = self.free.get(at).is_some_and(|next| {
            assert!(back.end() <= next.offset, "a range is given back once");
            back.end() == next.offset
        });
        match (joins_before, joins_after) {
            (true, true) => {
                let next = self.free.remove(at);
                self.free[at - 1].len += back.len + next.len;
            }
            (true, false) => self.free[at - 1].len += back.len,
            (false, true) => {
                self.free[at] = Extent {
                    offset: back.offset,
                    len: back.len + self.free[at].len,
                };
            }
            (false, false) => self.free.insert(at, back),
        }
    }
}

/// A region of this session that targets can be taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    pub(crate) session: u64,
    pub(crate) id: RegionId,
    pub(crate) bytes: u64,
}

impl Region {
    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The right to have results placed in a range of a region, and to read them there.
///
/// There is one for a range, and it can't be copied. A target that is dropped instead of being given
/// to `Session::release` keeps its range taken until the session ends.
///
/// ```compile_fail
/// # use rowmill_client::{Batch, BoundSchema, RequestOptions, Session, Target};
/// # fn twice<P: rowmill_client::ClientPort>(s: &mut Session<P>, schema: &BoundSchema, batch: &Batch, target: Target) {
/// let options = RequestOptions::default();
/// let _first = s.submit(schema, batch, target, &options);
/// let _second = s.submit(schema, batch, target, &options); // moved: the first request owns it
/// # }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a dropped target keeps its range taken until the session ends"]
pub struct Target {
    pub(crate) session: u64,
    pub(crate) region: RegionId,
    pub(crate) extent: Extent,
    pub(crate) bytes: u64,
}

impl Target {
    /// Its size, as asked for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins in its region.
    pub fn offset(&self) -> u64 {
        self.extent.offset
    }

    /// The target of a request that has no result.
    pub(crate) fn none(session: u64) -> Target {
        let extent = Extent { offset: 0, len: 0 };
        Target {
            session,
            region: RegionId(u32::MAX),
            extent,
            bytes: 0,
        }
    }
}

#[derive(Debug)]
struct Held {
    region: Region,
    extents: Extents,
    targets: u32,
}

/// The regions of a session.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    held: Vec<Held>,
}

impl Regions {
    pub(crate) fn add(&mut self, region: Region) {
        let extents = Extents::new(region.bytes, 64);
        self.held.push(Held {
            region,
            extents,
            targets: 0,
        });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.held.iter().map(|held| &held.region)
    }

    fn held(&mut self, id: RegionId) -> &mut Held {
        let held = self.held.iter_mut().find(|h| h.region.id == id);
        held.expect("the region was not given up")
    }

    /// Whether a region has no targets.
    pub(crate) fn is_free(&self, region: &Region) -> bool {
        let held = self.held.iter().find(|h| h.region.id == region.id);
        held.is_some_and(|held| held.targets == 0)
    }

    /// Forgets a region that has no targets.
    pub(crate) fn remove(&mut self, region: &Region) -> Result<(), ClientError> {
        match self.held(region.id).targets {
            0 => {
                self.held.retain(|h| h.region.id != region.id);
                Ok(())
            }
            targets => Err(ClientError::RegionInUse { targets }),
        }
    }

    pub(crate) fn take(&mut self, region: &Region, bytes: u64) -> Result<Target, ClientError> {
        let held = self.held(region.id);
        let extent = held
            .extents
            .take(bytes)
            .ok_or(ClientError::RegionFull { needed: bytes })?;
        held.targets += 1;
        Ok(Target {
            session: region.session,
            region: region.id,
            extent,
            bytes,
        })
    }

    pub(crate) fn take_at(
        &mut self,
        region: &Region,
        offset: u64,
        bytes: u64,
    ) -> Result<Target, ClientError> {
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= region.bytes);
        if !inside || bytes == 0 || !offset.is_multiple_of(2) {
            return Err(ClientError::TargetPlace {
                offset,
                bytes,
                region: region.bytes,
            });
        }
        let held = self.held(region.id);
        let extent = Extent { offset, len: bytes };
        if !held.extents.take_at(extent) {
            return Err(ClientError::TargetInUse { offset, bytes });
        }
        held.targets += 1;
        Ok(Target {
            session: region.session,
            region: region.id,
            extent,
            bytes,
        })
    }

    pub(crate) fn give(&mut self, target: Target) {
        if target.extent.len > 0 {
            let held = self.held(target.region);
            held.extents.give(target.extent);
            held.targets -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn extents_never_overlap_and_all_come_back(steps in prop::collection::vec((0u8..3, 0u64..900, 1u64..700), 1..120)) {
            let mut extents = Extents::new(4096, 4);
            let mut taken: Vec<Extent> = Vec::new();
            for (kind, a, len) in steps {
                let got = match kind {
                    0 => extents.take(len),
                    1 => {
                        let wanted = Extent { offset: a * 4, len };
                        extents.take_at(wanted).then_some(wanted)
                    }
                    _ if taken.is_empty() => None,
                    _ => {
                        let back = taken.swap_remove(a as usize % taken.len());
                        extents.give(back);
                        None
                    }
                };
                if let Some(new) = got {
                    prop_assert!(new.end() <= 4096);
                    prop_assert!(taken.iter().all(|t| new.end() <= t.offset || t.end() <= new.offset));
                    taken.push(new);
                }
            }
            taken.drain(..).for_each(|back| extents.give(back));
            prop_assert_eq!(&extents.free[..], &[Extent { offset: 0, len: 4096 }][..]);
        }
    }
}
