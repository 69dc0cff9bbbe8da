//! How connections end: nothing of a client is freed before every worker has let go of it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rowmill_verbs::Status as WorkStatus;
use rowmill_wire::Status;
use rowmill_wire::control::Control as Question;

use super::control::Control;
use super::inbox::{Cut, Message};
use super::session::{Ending, LaneEnd, Phase, Session, Was};
use crate::Waker;
use crate::control::LaneSet;

/// How long the last message to a client may take to arrive.
const PARTING: Duration = Duration::from_millis(500);

impl Control {
    /// Ends a connection: at once where no worker knows it, else by asking every worker to let go. With a goodbye it ends in
    /// order: what was announced should still arrive.
    pub(super) fn end(&mut self, place: usize, goodbye: Option<(Status, String)>) {
        let in_order = goodbye.is_some();
        self.end_how(place, goodbye, in_order);
    }

    /// As [`end`](Control::end), in order or not, whatever the client is told.
    fn end_how(&mut self, place: usize, goodbye: Option<(Status, String)>, in_order: bool) {
        let now = self.now;
        let Some(session) = &mut self.sessions[place] else {
            return;
        };
        match &mut session.phase {
            Phase::Parting { .. } if !in_order => self.remove(place),
            Phase::Parting { .. } => (),
            Phase::Greeting { .. } if in_order => {
                let until = now + PARTING;
                session.phase = Phase::Parting { until, was: None };
            }
            Phase::Greeting { .. } => self.remove(place),
            Phase::Member(member) => {
                if let Some(ending) = &mut member.ending {
                    if goodbye.is_none() {
                        ending.goodbye = None;
                    }
                    return;
                }
                let conn = member.conn;
                (member.leaving, member.binding) = (None, None);
                let shared: Vec<_> = self.lanes.iter().map(|lane| lane.shared.clone()).collect();
                let mut waiting = LaneSet::living(&shared);
                for (lane, end) in shared.iter().zip(&mut member.lanes) {
                    match end {
                        LaneEnd::Attached { .. } => lane.post(Message::Detach { conn, in_order }),
                        LaneEnd::Missing | LaneEnd::Connected { .. } => {
                            waiting.remove(lane.lane);
                            *end = LaneEnd::Missing;
                            lane.wake(); // As for one that its worker has let go of.
                        }
                    }
                }
                member.ending = Some(Ending { waiting, goodbye });
                self.changed = true;
                self.advance(place);
            }
        }
    }

    /// Cuts a client off.
    pub(super) fn cut(&mut self, place: usize, why: Cut) {
        let Some(session) = &mut self.sessions[place] else {
            return;
        };
        let (peer, mut client) = (session.peer, String::new());
        if let Some(member) = session.member() {
            if member.ending.is_some() {
                return;
            }
            client.clone_from(&member.name);
        }
        if let Some((status, breach)) = breach(why) {
            self.shown.violations.fetch_add(1, Ordering::Relaxed);
            self.log(|| tracing::warn!(client, ?peer, breach, "an rdma client is cut off"));
            return self.end(place, Some((status, breach.to_owned())));
        }
        match why {
            Cut::Worker(status) => {
                self.log(
                    || tracing::warn!(client, ?peer, %status, "a worker cut an rdma client off"),
                );
                self.end(place, Some((status, String::new())));
            }
            Cut::Failed(status) => {
                self.shown.lost.fetch_add(1, Ordering::Relaxed);
                self.log(|| tracing::warn!(client, ?peer, %status, "an rdma client is lost"));
                // It may live, and its control stream too.
                let goodbye = (Status::TransportFailed, status.to_string());
                self.end_how(place, Some(goodbye), false);
            }
            Cut::Breach(_) => (),
        }
    }

    pub(super) fn let_go(&mut self, place: usize, lane: u16, which: impl Fn(Option<u32>) -> bool) {
        let Some(member) = self.sessions[place].as_mut().and_then(Session::member) else {
            return;
        };
        if let Some(ending) = &mut member.ending
            && which(None)
        {
            ending.waiting.remove(lane);
        }
        if let Some((region, _, waiting)) = &mut member.leaving
            && which(Some(region.0))
        {
            waiting.remove(lane);
        }
        self.advance(place);
    }

    /// Finishes what every lane has acknowledged.
    pub(super) fn advance(&mut self, place: usize) {
        let now = self.now;
        let Some(session) = self.sessions[place].as_mut() else {
            return;
        };
        let Phase::Member(member) = &mut session.phase else {
            return;
        };
        if let Some(ending) = &mut member.ending {
            if !ending.waiting.is_empty() {
                return;
            }
            let goodbye = ending.goodbye.take();
            for lane in &mut member.lanes {
                if let LaneEnd::Attached { connection, .. } = lane
                    && let Err(error) = connection.disconnect()
                {
                    tracing::debug!(%error, "a lane ends");
                }
                *lane = LaneEnd::Missing;
            }
            let was = Some(Was {
                conn: member.conn,
                name: std::mem::take(&mut member.name),
            });
            let told = goodbye.is_some_and(|(status, detail)| {
                let bytes = Question::Goodbye { status, detail }.encode(0);
                session.link.send(bytes, now).is_ok()
            });
            let until = if told { now + PARTING } else { now };
            session.phase = Phase::Parting { until, was };
            self.changed = true;
            if !told {
                self.remove(place);
            }
        } else if let Some((region, sequence, waiting)) = member.leaving
            && waiting.is_empty()
        {
            member.leaving = None;
            member.regions[region.0 as usize] = None;
            self.changed = true;
            self.unregistered(place, region, sequence);
        }
    }

    /// Destroys what is left of a session.
    pub(super) fn remove(&mut self, place: usize) {
        let Some(session) = self.sessions[place].take() else {
            return;
        };
        for token in &session.tokens {
            self.ids.remove(token);
        }
        session.link.hang_up(Some(session.connection));
        self.changed = true;
        if let Phase::Parting { was: Some(was), .. } = session.phase {
            self.unused.push(was.conn);
            // Shown first, so that who is told of the end finds nothing of it left.
            self.show();
            self.service.gone(was.conn);
            self.log(|| {
                tracing::info!(
                    client = was.name,
                    conn = was.conn.0,
                    "an rdma client has gone"
                )
            });
        }
    }
}

/// What a client has done wrong, and what it is told, where a cut is its own fault.
fn breach(why: Cut) -> Option<(Status, &'static str)> {
    let malformed = |what| Some((Status::Malformed, what));
    match why {
        Cut::Breach(breach) => malformed(breach),
        // A message longer than its buffer, or one that no queue pair here takes.
        Cut::Failed(WorkStatus::LocalLength | WorkStatus::LocalAccess) => {
            malformed("it sent what it was not granted")
        }
        // Nobody here has failed the queue pair: the device has, over a request of the client's that it can't take.
        Cut::Failed(WorkStatus::Flushed) => malformed("it sent what can't be received"),
        Cut::Failed(WorkStatus::RnrRetriesExceeded) => {
            malformed("it has no receives for its status records")
        }
        Cut::Failed(WorkStatus::RemoteAccess | WorkStatus::RemoteInvalidRequest) => Some((
            Status::RegionLost,
            "its memory refuses what it had registered it for",
        )),
        Cut::Worker(Status::Malformed) => malformed("it broke the protocol, as its worker found"),
        Cut::Worker(_) | Cut::Failed(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_has_done_is_told_from_what_has_befallen_it() {
        let told = |why| breach(why).map(|(status, _)| status);
        for (why, status) in [
            (Cut::Breach("a breach"), Some(Status::Malformed)),
            (Cut::Worker(Status::Malformed), Some(Status::Malformed)),
            (Cut::Worker(Status::Draining), None),
            (
                Cut::Failed(WorkStatus::RemoteAccess),
                Some(Status::RegionLost),
            ),
            (
                Cut::Failed(WorkStatus::RnrRetriesExceeded),
                Some(Status::Malformed),
            ),
            (Cut::Failed(WorkStatus::RetriesExceeded), None),
            (Cut::Failed(WorkStatus::General), None),
        ] {
            assert_eq!(told(why), status, "{why:?}");
        }
    }
}
