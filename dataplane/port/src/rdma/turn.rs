//! What becomes of completions: one look at a worker's queue.

use std::collections::VecDeque;

use rowmill_verbs::Completion as Done;

use super::inbox::{Cut, LaneShared, Notice};
use super::lane::Leaving;
use super::pool::{Note, Pool};
use super::seat::Seat;
use super::seats::Seats;
use crate::ConnId;

/// Completions that one look at the queue gives at most.
pub(super) const POLLED_MAX: usize = 64;

/// What is changed while completions are looked at.
pub(super) struct Turn<'l> {
    pub(super) seats: &'l mut Seats,
    pub(super) leaving: &'l mut Vec<Leaving>,
    pub(super) pool: &'l mut Pool,
    pub(super) ready: &'l mut VecDeque<ConnId>,
    pub(super) dirty: &'l mut VecDeque<ConnId>,
    pub(super) fetched: &'l mut VecDeque<(ConnId, u16)>,
    pub(super) shared: &'l LaneShared,
}

impl Turn<'_> {
    pub(super) fn take(&mut self, done: &Done) {
        let conn = ConnId(done.id().connection().into());
        let Some(seat) = self.seats.get_mut(conn) else {
            // One that leaves; a block that comes back is free. Or one that has left.
            let mut leaving = self.leaving.iter_mut();
            if let Some(leaving) = leaving.find(|leaving| leaving.conn == conn)
                && let Ok(back) = leaving.seat.qp.retire(done)
            {
                for (_, note) in back {
                    if let Note::Staged = note {
                        self.pool.came_back(&mut leaving.seat.blocks);
                    }
                }
                if done.result().is_err() {
                    leaving.seat.fail(self.pool);
                }
            }
            return;
        };
        let mut arrived = None;
        let outcome = seat.completed(done, self.pool, |pull| arrived = Some(pull));
        if !seat.pending.is_empty() && !std::mem::replace(&mut seat.is_ready, true) {
            self.ready.push_back(conn);
        }
        let waits = seat.has_items() || seat.has_barrier();
        if waits && !std::mem::replace(&mut seat.is_dirty, true) {
            self.dirty.push_back(conn);
        }
        let lost = outcome.is_err() || seat.failed;
        if let Err(why) = outcome {
            cut(seat, conn, why, self.pool, self.shared);
            if std::mem::take(&mut seat.is_ready) {
                self.ready.retain(|ready| *ready != conn);
            }
        }
        if let Some(pull) = arrived {
            let found = &self.pool.pulls[usize::from(pull)];
            match found.of {
                Some((conn, _)) if found.released => free_pull(self.seats, self.pool, conn, pull),
                // The worker hears of a connection's end, and gives the pull back then.
                Some(of) if !lost => self.fetched.push_back(of),
                _ => (),
            }
        }
    }
}

/// Gives a pull back.
pub(super) fn free_pull(seats: &mut Seats, pool: &mut Pool, conn: ConnId, at: u16) {
    let blocks = pool.pulls[usize::from(at)].blocks.len() as u32;
    pool.free_pull(at);
    if let Some(seat) = seats.get_mut(conn) {
        seat.fetching = seat.fetching.saturating_sub(blocks);
    }
}

/// Asks the control thread to cut a connection off, once.
pub(super) fn cut(seat: &mut Seat, conn: ConnId, why: Cut, pool: &mut Pool, shared: &LaneShared) {
    if !matches!(why, Cut::Worker(_)) {
        seat.fail(pool);
    }
    seat.pending.clear();
    if !std::mem::replace(&mut seat.cut, true) {
        shared.notify(Notice::Cut { conn, why });
    }
}
