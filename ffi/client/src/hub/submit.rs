//! Sending requests, which takes memory for their results.

use core::time::Duration;
use std::sync::Arc;

use rowmill_port::ClientPort;

use super::pending::{Pending, Reply};
use super::shared::Inner;
use super::waiters::Seat;
use super::watch::Watcher;
use super::{Hub, Ids, Place};
use crate::answer::Ticket;
use crate::error::{BatchError, ClientError, Unsent};
use crate::memory::Target;
use crate::options::{RequestOptions, Wait};
use crate::schema::BoundSchema;
use crate::session::{Session, within};
use crate::waiting::{RENAMED, has_renamed};

impl<P: ClientPort> Hub<P> {
    /// Sends a request. Returns at once, but where the pool has to grow.
    ///
    /// # Errors
    /// [`ClientError::NoCredit`] and [`ClientError::NoSourceSpace`] where answers have to be waited for first;
    /// [`ClientError::ResultsHeld`] where results have to be dropped first; for a place of one's own as
    /// [`Session::target_at`]; [`ClientError::OtherClient`]; the others of [`Session::submit`].
    pub fn submit<'a>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        place: Place,
        options: &RequestOptions,
    ) -> Result<Pending<P>, ClientError> {
        let mut inner = self.shared.lock()?;
        self.submit_now(&mut inner, schema, ids.into(), place, options)
    }

    fn submit_now(
        &self,
        inner: &mut Inner<P>,
        schema: &BoundSchema,
        ids: Ids<'_>,
        place: Place,
        options: &RequestOptions,
    ) -> Result<Pending<P>, ClientError> {
        match self.try_submit(inner, schema, ids, place, options) {
            // What has come and is still to be taken in may give room.
            Err(error) if error.would_block() || error.is_full() => {
                self.shared.turn(inner)?;
                self.try_submit(inner, schema, ids, place, options)
            }
            outcome => outcome,
        }
    }

    /// Sends a request; waits before that for a slot, where all are in flight. `None`: there was none within `limit`.
    ///
    /// # Errors
    /// As [`Hub::submit`].
    pub fn submit_within<'a>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        place: Place,
        options: &RequestOptions,
        how: Wait,
        limit: Option<Duration>,
    ) -> Result<Option<Pending<P>>, ClientError> {
        let ids = ids.into();
        let mut inner = self.shared.lock()?;
        match self.submit_now(&mut inner, schema, ids, place, options) {
            Err(error) if error.would_block() => (),
            outcome => return outcome.map(Some),
        }
        let mut tried = None;
        let again = |inner: &mut Inner<P>| {
            if tried.replace(inner.changes) == Some(inner.changes) {
                return None;
            }
            match self.try_submit(inner, schema, ids, place, options) {
                // There will be room, and that will be a change.
                Err(error) if error.would_block() && inner.can_wait() => None,
                outcome => Some(outcome),
            }
        };
        let shared = &self.shared;
        let pending = shared.wait_with(inner, Seat::Room, how, limit, again)?;
        pending.transpose()
    }

    /// Sends a request and waits for its answer; waits before that for a slot, where all are in flight. A request that named no
    /// generation is sent again where the one that its parts named is not held any more; see [`has_renamed`].
    ///
    /// # Errors
    /// As [`Hub::submit`] and [`Pending::wait`]. What the dataplane refuses is the reply's outcome.
    pub fn lookup<'a>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        place: Place,
        options: &RequestOptions,
        how: Wait,
    ) -> Result<Reply, ClientError> {
        let ids = ids.into();
        let mut reply = self.lookup_once(schema, ids, place, options, how)?;
        for _ in 0..RENAMED {
            if !has_renamed(&reply.outcome, options) {
                break;
            }
            // Its result's memory first: it may be all that there is.
            drop(reply);
            reply = self.lookup_once(schema, ids, place, options, how)?;
        }
        Ok(reply)
    }

    fn lookup_once(
        &self,
        schema: &BoundSchema,
        ids: Ids<'_>,
        place: Place,
        options: &RequestOptions,
        how: Wait,
    ) -> Result<Reply, ClientError> {
        let mut inner = self.shared.lock()?;
        match self.submit_now(&mut inner, schema, ids, place, options) {
            Err(error) if error.would_block() => (),
            outcome => return outcome?.wait_with(inner, how),
        }
        drop(inner);
        let sent = self.submit_within(schema, ids, place, options, how, None)?;
        let pending = sent.expect("a wait without limit ends with something");
        pending.wait(how)
    }

    /// Says that rows may be wanted soon: those that are not in memory are fetched, as far as the dataplane has room for that. Returns
    /// at once, and nobody is told what became of it; of `options` the deadline counts alone.
    ///
    /// # Errors
    /// As [`Hub::submit`].
    pub fn prefetch<'a>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let ids = ids.into();
        self.check(schema, ids)?;
        let mut inner = self.shared.lock()?;
        match self.try_prefetch(&mut inner, schema, ids, options) {
            // What has come and is still to be taken in may give room.
            Err(error) if error.would_block() || error.is_full() => {
                self.shared.turn(&mut inner)?;
                self.try_prefetch(&mut inner, schema, ids, options)
            }
            outcome => outcome,
        }
    }

    /// Sends a request that is not waited for, if there is room for it.
    fn try_prefetch(
        &self,
        inner: &mut Inner<P>,
        schema: &BoundSchema,
        ids: Ids<'_>,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let Inner {
            session,
            leases,
            table,
            ..
        } = &mut *inner;
        leases.take_in(session);
        if table.is_full() {
            return Err(ClientError::NoCredit);
        }
        let (needed, held) = (0, leases.taken());
        let lease = leases.reserve();
        let lease = lease.ok_or(ClientError::ResultsHeld { needed, held })?;
        let sent = match ids {
            Ids::Batch(batch) => session.prefetch(schema, batch, options),
            Ids::View(view) => session.prefetch_view(schema, view, options),
        };
        match sent {
            Ok(ticket) => {
                let at = table.begin(ticket, lease);
                // Its answer gives its place back, and says nothing else.
                drop(Pending::new(Arc::clone(&self.shared), at));
                Ok(())
            }
            Err(error) => {
                leases.give(lease);
                self.shared.hand_out(inner);
                Err(error)
            }
        }
    }

    /// Sends a request if there is room for it and its result.
    fn try_submit(
        &self,
        inner: &mut Inner<P>,
        schema: &BoundSchema,
        ids: Ids<'_>,
        place: Place,
        options: &RequestOptions,
    ) -> Result<Pending<P>, ClientError> {
        self.check(schema, ids)?;
        let Inner {
            session, leases, ..
        } = inner;
        leases.take_in(session);
        if inner.table.is_full() {
            return Err(ClientError::NoCredit);
        }
        let needed = schema.target_bytes(ids.bags() as u32);
        let held = inner.leases.taken();
        let full = ClientError::ResultsHeld { needed, held };
        let Some(lease) = inner.leases.reserve() else {
            return Err(full);
        };
        let sent = match self.target(inner, place, needed) {
            Ok(Some(target)) => send(&mut inner.session, schema, ids, target, options),
            Ok(None) => Err(full),
            Err(error) => Err(error),
        };
        match sent {
            Ok(ticket) => {
                let at = inner.table.begin(ticket, lease);
                Ok(Pending::new(Arc::clone(&self.shared), at))
            }
            Err(error) => {
                inner.leases.give(lease);
                // The connection's end has ended all others.
                self.shared.hand_out(inner);
                Err(error)
            }
        }
    }

    /// What can be said before any memory is taken.
    pub(crate) fn check(&self, schema: &BoundSchema, ids: Ids<'_>) -> Result<(), ClientError> {
        if schema.session != self.session {
            return Err(ClientError::OtherClient { what: "schema" });
        }
        let (bags, most) = (ids.bags(), schema.schema().max_batch);
        if bags == 0 {
            return Err(BatchError::Bags { bags }.into());
        }
        let advice = "bind the schema with a larger max_batch";
        within("bags of a batch", bags as u64, most.into(), advice)
    }

    /// Takes memory for a result; `None` where the pool has none.
    fn target(
        &self,
        inner: &mut Inner<P>,
        place: Place,
        bytes: u64,
    ) -> Result<Option<Target>, ClientError> {
        let Inner { session, pool, .. } = inner;
        match place {
            Place::Pool => {
                let before = pool.asked;
                let target = pool.take(session, bytes);
                if pool.asked != before {
                    // The answer may have come with what the leader sleeps for.
                    self.shared.rouse(inner);
                }
                target
            }
            Place::At(region, offset) => {
                pool.check(&region)?;
                session.target_at(&region, offset, bytes).map(Some)
            }
        }
    }
}

impl<P: ClientPort + Send + 'static> Hub<P> {
    /// As [`Hub::submit`], with somebody who is told of the slices (see [`RequestOptions::slice_bags`]) and of the end, and for whom
    /// the thread that looks for answers runs until then.
    ///
    /// # Errors
    /// As [`Hub::submit`]; [`ClientError::Port`] where the thread can't be started. The watcher is told nothing then.
    pub fn submit_watched<'a>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        place: Place,
        options: &RequestOptions,
        watcher: Arc<dyn Watcher>,
    ) -> Result<Pending<P>, ClientError> {
        let shared = &self.shared;
        let mut inner = shared.lock()?;
        shared.shared().start_progress(&mut inner)?;
        let pending = self.submit_now(&mut inner, schema, ids.into(), place, options)?;
        let Inner { session, table, .. } = &mut *inner;
        let ticket = table.ticket(pending.at).expect("it was just sent");
        session.flight.watch(ticket, |part| watcher.part(part));
        table.watch(pending.at, watcher);
        shared.wake_progress(&mut inner);
        Ok(pending)
    }
}

/// Sends ids to a target, which is given back where they can't be.
fn send<P: ClientPort>(
    session: &mut Session<P>,
    schema: &BoundSchema,
    ids: Ids<'_>,
    target: Target,
    options: &RequestOptions,
) -> Result<Ticket, ClientError> {
    let sent = match ids {
        Ids::Batch(batch) => session.submit(schema, batch, target, options),
        Ids::View(view) => session.submit_view(schema, view, target, options),
    };
    sent.map_err(|Unsent { error, target }| {
        if let Some(target) = target {
            session.release(target);
        }
        error
    })
}
