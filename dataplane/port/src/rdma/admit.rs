//! Requests to connect: for a new session, or for a lane of one.

use std::sync::atomic::Ordering;

use rowmill_verbs::{Error, PathMtu, ProtectionDomain, RejectData, ReplyData, Request};
use rowmill_wire::Status;
use rustix::io::{Errno, retry_on_intr};
use rustix::rand::{GetRandomFlags, getrandom};

use super::bounds::GREETING_MAX;
use super::config::Role;
use super::control::Control;
use super::failure::in_full;
use super::link::Link;
use super::private_data::{Asked, SessionId, encode_refusal, encode_reply};
use super::session::{LaneEnd, Phase, Session};
use super::session_lane::accept_lane;

/// A retry count that means for ever: a client that asks for it would never notice that this side is gone.
const FOR_EVER: u8 = 7;

type Refused = (Status, String);

impl Control {
    /// Answers a request to connect.
    pub(super) fn request(&mut self, request: Box<Request>) {
        let asked = Asked::parse(request.private_data());
        let offer = *request.offer();
        let refusal = if !request.is_on(&self.context) {
            Some((Status::Unavailable, "this device is not served".to_owned()))
        } else if offer.retries >= FOR_EVER || offer.rnr_retries >= FOR_EVER {
            Some((
                Status::Malformed,
                "a retry count of 7 means for ever; ask for 6 at most".to_owned(),
            ))
        } else {
            None
        };
        let outcome = match (refusal, asked) {
            (Some(refusal), _) => Err((request, refusal)),
            (None, Err(status)) => {
                let text = "the request to connect is not understood".to_owned();
                Err((request, (status, text)))
            }
            (None, Ok(Asked::Control { path_mtu })) => {
                self.greet(request, path_mtu);
                Ok(())
            }
            (None, Ok(Asked::Lane { session, lane })) => self.lane(request, session, lane),
        };
        if let Err((request, refused)) = outcome {
            self.reject(request, refused);
        }
    }

    fn reject(&mut self, request: Box<Request>, (status, text): Refused) {
        self.shown.refused.fetch_add(1, Ordering::Relaxed);
        let peer = request.peer_address();
        self.log(|| tracing::info!(?peer, %status, text, "refused a connection over rdma"));
        let word = RejectData::new(&encode_refusal(status, &text));
        let word = word.unwrap_or(RejectData::none());
        if let Err(error) = request.reject(&word) {
            tracing::debug!(%error, "a refusal does not arrive");
        }
    }

    /// Lets a client say hello.
    fn greet(&mut self, request: Box<Request>, path_mtu: Option<PathMtu>) {
        let since = |session: &Option<Session>| match session {
            Some(Session {
                phase: Phase::Greeting { since },
                ..
            }) => Some(*since),
            _ => None,
        };
        let greetings = self.sessions.iter().filter_map(since).count();
        if greetings >= GREETING_MAX {
            let oldest = (0..self.sessions.len())
                .filter(|&place| since(&self.sessions[place]).is_some())
                .min_by_key(|&place| since(&self.sessions[place]));
            if let Some(place) = oldest {
                self.end(place, None);
            }
        }
        // Those that part take places too.
        let Some(place) = self.sessions.iter().position(Option::is_none) else {
            let text = "too many clients come and go; try again".to_owned();
            return self.reject(request, (Status::LimitReached, text));
        };
        let peer = request.peer_address();
        match self.accept(request, place, path_mtu) {
            Ok(session) => {
                for token in &session.tokens {
                    self.ids.insert(*token, place);
                }
                self.sessions[place] = Some(session);
                self.changed = true;
            }
            Err(error) => {
                let why = in_full(&error);
                self.log(|| tracing::warn!(?peer, why, "an rdma client can't be let in"));
            }
        }
    }

    fn accept(
        &mut self,
        mut request: Box<Request>,
        place: usize,
        path_mtu: Option<PathMtu>,
    ) -> Result<Session, Error> {
        let domain = ProtectionDomain::new(&self.context)?;
        let completions = self.control_queue();
        let number = u16::try_from(place).expect("sessions are numbered in 16 bits");
        let mut link = Link::new(&domain, &completions, number, self.config.inline_bytes)?;
        let ours = self.config.connection;
        let agreed = ours.with_bound(path_mtu);
        let parameters = agreed.parameters(Role::ServerControl, &self.context);
        link.receive_from(&mut request, &parameters)?;
        let id = self.session_id();
        let reply = ReplyData::new(&encode_reply(&id, ours.bound(&self.context)))?;
        let peer = request.peer_address();
        let connection = request.accept(&mut link.qp, &parameters, &reply)?;
        Ok(Session {
            phase: Phase::Greeting { since: self.now },
            id,
            peer,
            tokens: vec![connection.token()],
            link,
            connection,
            parameters: agreed,
            domain,
        })
    }

    /// A number that nobody has and nobody guesses. It waits for nothing, after [`wait_for_random`].
    fn session_id(&self) -> SessionId {
        loop {
            let mut id = SessionId::default();
            let filled = getrandom(&mut id, GetRandomFlags::empty());
            let known = |id| self.sessions.iter().flatten().any(|s| s.id == id);
            if filled == Ok(id.len()) && id != SessionId::default() && !known(id) {
                return id;
            }
        }
    }

    /// Connects a lane of a session.
    fn lane(
        &mut self,
        request: Box<Request>,
        session: SessionId,
        lane: u16,
    ) -> Result<(), (Box<Request>, Refused)> {
        let refused = |text: &str| (Status::Malformed, text.to_owned());
        let mut sessions = self.sessions.iter_mut().enumerate();
        let found = sessions.find_map(|(place, slot)| {
            let found = slot.as_mut().filter(|found| found.id == session)?;
            Some((place, found))
        });
        let from = request.peer_address().map(|peer| peer.ip());
        let Some((place, found)) = found.filter(|(_, s)| s.peer.map(|peer| peer.ip()) == from)
        else {
            return Err((request, refused("no such session")));
        };
        let Phase::Member(member) = &mut found.phase else {
            return Err((request, refused("no such session")));
        };
        let end = member.lanes.get_mut(usize::from(lane));
        let Some(end) = end.filter(|_| member.ending.is_none()) else {
            return Err((request, refused("no such lane")));
        };
        if !matches!(end, LaneEnd::Missing) {
            return Err((request, refused("the lane is connected already")));
        }
        if self.lanes[usize::from(lane)].life.has_failed() {
            let text = "the worker's completion queue is lost; the service has to be restarted";
            return Err((request, (Status::Unavailable, text.to_owned())));
        }
        if request.offer().reads_answered == 0 {
            // A READ that may not even begin neither ends nor fails.
            let text = "a lane has to allow READs (responder resources of at least 1)";
            return Err((request, refused(text)));
        }
        let parameters = found.parameters.parameters(Role::ServerLane, &self.context);
        let parts = &self.lanes[usize::from(lane)];
        let (conn, credits) = (member.conn, member.credits);
        let inline = self.config.inline_bytes;
        let domain = &found.domain;
        match accept_lane(*request, parts, domain, conn, credits, inline, &parameters) {
            Ok((seat, connection)) => {
                let token = connection.token();
                *end = LaneEnd::Connected { seat, connection };
                found.tokens.push(token);
                self.ids.insert(token, place);
                self.changed = true;
            }
            Err(error) => {
                // The request is gone, so the client hears of it by its stream.
                let why = in_full(&error);
                self.log(|| tracing::warn!(lane, why, "an rdma client's lane can't be made"));
                let text = format!("the server could not make a lane: {why}");
                self.end(place, Some((Status::LimitReached, text)));
            }
        }
        Ok(())
    }
}

/// Waits until the kernel has random bytes to give, which may take a while after a machine has started. From then on
/// `getrandom` never blocks (getrandom(2)), so the control thread does not either.
pub(super) fn wait_for_random() -> Result<(), Errno> {
    retry_on_intr(|| getrandom(&mut SessionId::default(), GetRandomFlags::empty())).map(|_| ())
}
