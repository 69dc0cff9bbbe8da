//! What a micro-batch is made of: pieces, each a feature's consecutive bags whose rows come from one place.
//!
//! Of a resident table that is as many as the budget allows. Of a cached table a bag that lacks rows is parked: it is pooled later.

use arrayvec::ArrayVec;
use rowmill_cache::fetch::Lane;
use rowmill_cache::store::MISS;
use rowmill_pooling::{Bags, Mode};
use rowmill_wire::request::FLAG_PARTIALS;

use crate::batch::{Made, Work};
use crate::bind::{BoundFeature, BoundSchema, Panel};
use crate::cached::Cached;
use crate::crowd::Wanted;
use crate::limits::{MISSED_BYTES, PARKED_BYTES, PIECES};
use crate::parked::Bag;
use crate::rows::{rows, rows_in};
use crate::slot::{Run, Slot, Walk};

/// Where the rows of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// In the table, which is resident.
    Table,
    /// In slots of the cache: they were found in this turn.
    Slots,
    /// In staging: the bag was parked.
    Staging,
}

/// Bags of one feature. Where it is not pooled, each id is a bag of its own here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) feature: u32,
    pub(crate) from: From,
    /// Vectors of the run before the first one.
    pub(crate) done: u32,
    pub(crate) vectors: u32,
    /// The first bag's length, in the request's.
    pub(crate) lengths_at: u32,
    /// The first id, in the request's, and how many there are.
    pub(crate) first_id: u32,
    pub(crate) ids: u32,
}

impl Piece {
    /// As kernels take it, at no place. `jagged` holds the number of ids.
    pub(crate) fn bags<'s>(
        &self,
        slot: &'s Slot,
        schema: &'s BoundSchema,
        jagged: &'s [u32; 1],
        cached: &'s Cached,
    ) -> Bags<'s> {
        let feature = &schema.features[self.feature as usize];
        let table = &schema.tables.tables()[feature.table];
        let home = cached.homes.of(slot.side, feature.table);
        let ids = self.first_id as usize..(self.first_id + self.ids) as usize;
        let lengths = match feature.mode {
            Mode::None => &jagged[..],
            _ => &slot.data.lengths[self.lengths_at as usize..][..self.vectors as usize],
        };
        let partials = slot.header.flags & FLAG_PARTIALS != 0;
        Bags {
            rows: match self.from {
                From::Table => rows(cached.with_rows(home, table)),
                From::Slots => rows_in(cached.worker.slots(home), table),
                From::Staging => rows_in(cached.worker.staging(), table),
            },
            ids: &slot.data.ids[ids.clone()],
            lengths,
            weights: feature.weighted.then(|| &slot.data.weights[ids]),
            mode: if partials { Mode::Sum } else { feature.mode },
            output: feature.output,
            offset: 0,
            stride: 0,
        }
    }
}

/// The next pieces of the run, up to the budget; bags that lack rows are parked. There may be none: where all are parked, or
/// the first one has to be and there is no room ([`Slot::crowded`]).
pub(crate) fn next(
    work: &mut Work<'_>,
    slot: &mut Slot,
    schema: &BoundSchema,
    panel: &Panel,
    made: &mut Made,
) -> ArrayVec<Piece, PIECES> {
    let mut pieces = ArrayVec::new();
    while made.cost() < work.budget && slot.walk.feature < panel.features.end && !pieces.is_full() {
        let feature = &schema.features[slot.walk.feature as usize];
        let home = work.cached.homes.of(slot.side, feature.table);
        let is_cached = work.cached.worker.is_cached(home);
        let left = work.budget - made.cost();
        let most_ids = match is_cached {
            true if slot.walk.parked > 0 => work.cached.lookups(home).min(parkable(left)),
            true => work.cached.lookups(home),
            false => u32::MAX,
        };
        let next = fitting(slot, feature, left, most_ids);
        let before = pieces.len();
        let taken = if is_cached {
            look_up(work, slot, (feature, home), next, &mut pieces, made)
        } else {
            if slot.crowded > 0 {
                // It was cached when the request came to wait for room.
                slot.crowded = 0;
                work.cached.crowd.leave(work.index);
            }
            let ids = next.first_id as usize..(next.first_id + next.ids) as usize;
            let table = &schema.tables.tables()[feature.table];
            let table = work.cached.with_rows(home, table);
            table.stand_in(&mut slot.data.ids[ids]);
            pieces.push(next);
            next
        };
        let pooled = pieces[before..].iter().map(|piece| bytes(feature, piece));
        made.bytes += pooled.sum::<u64>();
        let walk = &mut slot.walk;
        slot.spans[walk.feature as usize].next_id += taken.ids;
        walk.done += taken.vectors;
        if walk.done == walk.run.count {
            walk.done = 0;
            walk.feature += 1;
        }
        // Of one that is not pooled, the budget is used up but for less than an id.
        if taken.vectors < next.vectors || feature.mode == Mode::None {
            break;
        }
    }
    made.rows += pieces.iter().map(|piece| u64::from(piece.ids)).sum::<u64>();
    pieces
}

/// What bags of a feature cost: however short a vector is, storing or sending it touches a line.
fn bytes(feature: &BoundFeature, piece: &Piece) -> u64 {
    u64::from(piece.ids) * feature.row_bytes
        + u64::from(piece.vectors) * feature.vector_bytes.max(64)
}

/// Ids to look up where bags of the run had to be parked: if all have to be, the budget is used up. What more is looked up would be
/// looked up again in the next turn.
fn parkable(budget: u64) -> u32 {
    let ids = budget / PARKED_BYTES;
    ids.clamp(1, u32::MAX.into()) as u32
}

/// The next bags of the current feature in the run, at least one, cut where `budget` or the ids are used up.
fn fitting(slot: &Slot, feature: &BoundFeature, budget: u64, most_ids: u32) -> Piece {
    let Walk {
        feature: f,
        bag,
        placed,
        done,
        run: Run { count: run, .. },
        ..
    } = slot.walk;
    let mut piece = Piece {
        feature: f,
        from: From::Table,
        done,
        vectors: 0,
        lengths_at: f * slot.header.bags + bag + placed + done,
        first_id: slot.spans[f as usize].next_id,
        ids: 0,
    };
    if feature.mode == Mode::None {
        let fitting = budget / (feature.row_bytes + feature.vector_bytes.max(64));
        let most = u64::from((run - done).min(most_ids));
        piece.vectors = fitting.clamp(1, most) as u32;
        piece.ids = piece.vectors;
        return piece;
    }
    let lengths = &slot.data.lengths[piece.lengths_at as usize..][..(run - done) as usize];
    for &length in lengths {
        if piece.vectors > 0
            && (bytes(feature, &piece) >= budget || length > most_ids.saturating_sub(piece.ids))
        {
            break;
        }
        piece.vectors += 1;
        piece.ids += length;
    }
    piece
}

/// Looks the rows of bags up: each is a piece, or part of one, or parked. Returns those before the first that has to be parked
/// and finds no room, or that the budget is used up before.
fn look_up(
    work: &mut Work<'_>,
    slot: &mut Slot,
    (feature, home): (&BoundFeature, usize),
    next: Piece,
    pieces: &mut ArrayVec<Piece, PIECES>,
    made: &mut Made,
) -> Piece {
    let Cached {
        worker,
        parked,
        places,
        crowd,
        ..
    } = &mut *work.cached;
    let all = next.first_id as usize..(next.first_id + next.ids) as usize;
    let places = &mut places[..all.len()];
    let rows = &slot.data.ids[all.clone()];
    // Who waits for room keeps those back that it shares it with.
    let shared = worker.shares_with(home);
    let (found, mut parker) = worker.find(work.turn, home, rows, places);
    slot.crowded = 0;
    if found.misses() == 0 {
        crowd.go_on(work.index);
        slot.data.ids[all].copy_from_slice(found.places());
        worker.count(home, next.ids.into(), next.ids.into());
        pieces.push(Piece {
            from: From::Slots,
            ..next
        });
        return next;
    }
    let mut taken = Piece {
        vectors: 0,
        ids: 0,
        ..next
    };
    let lane = Lane::of(slot.conn.0);
    // Whether the bag before is in the last piece.
    let mut goes_on = false;
    let mut hits = 0;
    for i in 0..next.vectors {
        // Parking costs more than the pooling that the bags were counted for.
        if made.cost() >= work.budget {
            break;
        }
        let ids = match feature.mode {
            Mode::None => 1,
            _ => slot.data.lengths[(next.lengths_at + i) as usize],
        };
        let first_id = next.first_id + taken.ids;
        let own = &mut slot.data.ids[first_id as usize..][..ids as usize];
        let places = &found.places()[taken.ids as usize..][..ids as usize];
        if places.contains(&MISS) {
            let at = taken.ids as usize;
            let wanted = Wanted { table: shared, ids };
            let room = |bag: Wanted, kept| parker.room_for_bag(bag.table, bag.ids, kept);
            let place = crowd.place(work.index, slot.conn, wanted, room);
            let parked_as = place.and_then(|place| {
                let id = parker.park(work.now_ns, lane, own, &found, at)?;
                Some((id, place))
            });
            let Some((id, place)) = parked_as else {
                slot.crowded = ids;
                crowd.join(work.index, wanted);
                break;
            };
            let slice = slot.walk.slices;
            slot.unplaced[slice as usize] += 1;
            let missed = places.iter().filter(|&&place| place == MISS).count() as u64;
            made.besides += u64::from(ids) * PARKED_BYTES + missed * MISSED_BYTES;
            slot.walk.parked += 1;
            let bag = Bag {
                id,
                slot: work.index,
                panel: slot.walk.panel,
                feature: next.feature,
                vector: slot.walk.run.first + next.done + i,
                slice,
                lengths_at: next.lengths_at + i,
                first_id,
                ids,
                place,
            };
            crowd.parked(slot.conn, ids, place);
            parked.push(&mut slot.parked, bag);
            goes_on = false;
        } else {
            if !goes_on {
                let piece = Piece {
                    from: From::Slots,
                    done: next.done + i,
                    vectors: 0,
                    lengths_at: next.lengths_at + i,
                    first_id,
                    ids: 0,
                    ..next
                };
                if pieces.try_push(piece).is_err() {
                    break;
                }
                goes_on = true;
            }
            own.copy_from_slice(places);
            let last = pieces.last_mut().expect("there is one");
            last.vectors += 1;
            last.ids += ids;
        }
        crowd.go_on(work.index);
        hits += places.iter().filter(|&&place| place != MISS).count() as u64;
        taken.vectors += 1;
        taken.ids += ids;
    }
    worker.count(home, taken.ids.into(), hits);
    if slot.crowded > 0 {
        worker.refuse(home);
    }
    taken
}
