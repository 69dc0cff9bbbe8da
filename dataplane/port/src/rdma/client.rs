//! The client half of the port over RDMA: connecting, control calls, and the end with its fence.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rowmill_verbs::{
    CmEventKind, CompletionChannel, CompletionQueue, Connection, Context, EventChannel,
    ProtectionDomain, Remote, RequestData, Selector,
};
use rowmill_wire::control::{Control, Welcome};
use rowmill_wire::limits::MAX_REGIONS;
use rustix::io::Errno;

use super::bounds::{CONTROL_COMPLETIONS, completions_for};
use super::client_lane::{ClientLane, destroy};
use super::config::{RdmaClientConfig, Role};
use super::connect::{Attempt, Failure, wait_for};
use super::endpoint::addresses;
use super::failure::{lost, system};
use super::link::{Heard, Link};
use super::memory::OwnRegion;
use super::private_data::{Asked, SessionId, parse_reply};
use super::reconnect::Backoff;
use super::sleep::{self, Sleeper};
use crate::{Lost, PortError};

/// How long a goodbye may take after something has failed: it says whether that was the dataplane's doing.
const GRACE: Duration = Duration::from_millis(500);

/// How a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Lost(Lost),
}

impl End {
    pub(super) fn error(self) -> PortError {
        match self {
            End::Closed => PortError::Closed,
            End::Lost(what) => PortError::Lost { what },
        }
    }
}

/// The control stream.
pub(super) struct Stream {
    link: Link,
    connection: Connection,
}

/// A client half.
///
/// After [`PortError::Closed`] and [`PortError::Lost`] all its regions are its own again: whatever ended the connection,
/// all its queue pairs have been destroyed before that is said, so that nothing can be written to its memory by them.
pub struct RdmaClient {
    // Declared first, dropped first; `drop` has fenced them before.
    pub(super) lanes: Vec<ClientLane>,
    stream: Option<Stream>,
    pub(super) regions: [Option<OwnRegion>; MAX_REGIONS as usize],
    completions: CompletionQueue,
    armed: bool,
    completion_channel: CompletionChannel,
    channel: EventChannel,
    pub(super) domain: ProtectionDomain,
    pub(super) welcome: Welcome,
    pub(super) config: RdmaClientConfig,
    answer: Option<Vec<u8>>,
    sequence: u32,
    pub(super) idle_polls: u32,
    /// When the control stream was last looked at.
    pub(super) looked: Instant,
    /// The counter of the last beat that said that all workers live, or of the first one that said otherwise, and when that
    /// was first seen.
    beat: (u64, Instant),
    /// Something has failed, and since then what it was is looked for.
    suspect: Option<(Instant, Lost)>,
    pub(super) ended: Option<End>,
}

impl RdmaClient {
    /// Connects with `credits` request slots a lane and defaults for the rest.
    ///
    /// # Errors
    /// As [`RdmaClient::connect_with`].
    pub fn connect(endpoint: &str, client: &str, credits: u16) -> Result<RdmaClient, PortError> {
        let config = RdmaClientConfig {
            credits,
            ..RdmaClientConfig::default()
        };
        RdmaClient::connect_with(endpoint, client, config)
    }

    /// Connects. `client` is shown in the server's log and status page.
    ///
    /// # Errors
    /// [`PortError::Endpoint`], [`PortError::Connect`] where nobody listens or answers in time, [`PortError::Refused`],
    /// [`PortError::Protocol`] where the server's answer makes no sense.
    pub fn connect_with(
        endpoint: &str,
        client: &str,
        config: RdmaClientConfig,
    ) -> Result<RdmaClient, PortError> {
        let all = addresses(endpoint)?;
        let deadline = Instant::now() + config.connect_limit;
        let mut backoff = Backoff::default();
        loop {
            let channel = EventChannel::new().map_err(|e| system("connecting", e))?;
            let attempt = Attempt {
                endpoint,
                channel: &channel,
                deadline,
            };
            let mut outcome = RdmaClient::try_connect(&attempt, all[0], client, &config);
            for &to in &all[1..] {
                if let Err(Failure::Final(PortError::Connect { .. })) = outcome {
                    outcome = RdmaClient::try_connect(&attempt, to, client, &config);
                }
            }
            match outcome {
                Ok(client) => return Ok(client),
                Err(Failure::Final(error)) => return Err(error),
                // The dataplane had a connection with the same numbers, as after a restart of this machine.
                Err(Failure::Stale) => {
                    let delay = backoff.delay(Instant::now());
                    if Instant::now() + delay >= deadline {
                        return Err(attempt.failed("it takes this for an old connection"));
                    }
                    std::thread::sleep(delay);
                }
            }
        }
    }

    fn try_connect(
        attempt: &Attempt<'_>,
        to: std::net::SocketAddr,
        name: &str,
        config: &RdmaClientConfig,
    ) -> Result<RdmaClient, Failure> {
        let failed = |error| attempt.verbs(&error);
        let mut way = attempt.resolve(to, &config.connection)?;
        let from = way
            .local_address()
            .ok_or_else(|| attempt.failed("no local address leads there"))?;
        let context = Context::open(&Selector::Address(from.ip())).map_err(failed)?;
        if !way.is_on(&context) {
            return Err(attempt
                .failed("the way there leads over another device")
                .into());
        }
        let domain = ProtectionDomain::new(&context).map_err(failed)?;
        let completion_channel = CompletionChannel::new(&context).map_err(failed)?;
        let completions =
            CompletionQueue::new(&context, CONTROL_COMPLETIONS, Some(&completion_channel))
                .map_err(failed)?;
        let mut link = Link::new(&domain, completions.handle(), 0, 0).map_err(failed)?;
        let parameters = config.connection.parameters(Role::ClientControl, &context);
        link.receive_by(&mut way, &parameters).map_err(failed)?;
        let data = RequestData::new(&Asked::Control.encode()).map_err(failed)?;
        let connecting = way
            .connect(&mut link.qp, &parameters, &data)
            .map_err(failed)?;
        let (connection, reply) = attempt.establish(connecting, &mut link.qp, &parameters)?;
        let session = parse_reply(reply.as_slice()).map_err(|status| {
            PortError::Protocol(format!("the server's reply to the connection: {status}"))
        })?;
        let now = Instant::now();
        let mut half = RdmaClient {
            lanes: Vec::new(),
            stream: Some(Stream { link, connection }),
            regions: Default::default(),
            completions,
            armed: false,
            completion_channel,
            channel: attempt.channel.clone(),
            domain,
            welcome: nothing_granted(),
            config: config.clone(),
            answer: None,
            sequence: 0,
            idle_polls: 0,
            looked: now,
            beat: (0, now),
            suspect: None,
            ended: None,
        };
        half.equip(attempt, to, name, session)?;
        Ok(half)
    }

    /// Says hello and opens the lanes.
    fn equip(
        &mut self,
        attempt: &Attempt<'_>,
        to: std::net::SocketAddr,
        name: &str,
        session: SessionId,
    ) -> Result<(), Failure> {
        let hello = Control::Hello {
            client: name.to_owned(),
            credits: self.config.credits,
        };
        let welcome = match self.call_until(&hello, attempt.deadline)? {
            Control::Welcome(welcome) => welcome,
            other => return Err(unexpected(&other).into()),
        };
        let granted = welcome.credits;
        if granted > self.config.credits.max(1) || welcome.completions != completions_for(granted) {
            let text = format!("the welcome's numbers are impossible: {welcome:?}");
            return Err(PortError::Protocol(text).into());
        }
        let lanes = welcome.split.lanes;
        self.welcome = welcome;
        for lane in 0..lanes {
            self.open_lane(attempt, to, session, lane)?;
        }
        self.beat = (0, Instant::now());
        Ok(())
    }

    fn open_lane(
        &mut self,
        attempt: &Attempt<'_>,
        to: std::net::SocketAddr,
        session: SessionId,
        lane: u16,
    ) -> Result<(), Failure> {
        let failed = |error| attempt.verbs(&error);
        let context = self.domain.context().clone();
        let parameters = self
            .config
            .connection
            .parameters(Role::ClientLane, &context);
        let credits = self.welcome.credits;
        let mut way = attempt.resolve(to, &self.config.connection)?;
        let mut end = ClientLane::new(
            &self.domain,
            &self.completion_channel,
            lane,
            credits,
            self.config.inline_bytes,
        )?;
        let (ring, receives) = end.records();
        let qp = end.qp.as_mut().expect("a new lane");
        way.initialise(qp, &parameters).map_err(failed)?;
        qp.receive_empty(receives).map_err(failed)?;
        let asked = Asked::Lane { session, lane };
        let data = RequestData::new(&asked.encode()).map_err(failed)?;
        let connecting = way.connect(qp, &parameters, &data).map_err(failed)?;
        let (connection, _) = attempt.establish(connecting, qp, &parameters)?;
        end.connection = Some(connection);
        self.lanes.push(end);
        let question = Control::LaneOpen {
            lane,
            receives,
            address: ring.address,
            key: ring.key,
        };
        match self.call_until(&question, attempt.deadline)? {
            Control::LaneOpened {
                lane: opened,
                address,
                key,
                ..
            } if opened == lane => {
                let end = self.lanes.last_mut().expect("just made");
                end.slots_at(Remote { address, key });
                Ok(())
            }
            other => Err(unexpected(&other).into()),
        }
    }

    /// Asks a control question.
    pub(super) fn call(&mut self, question: &Control) -> Result<Control, PortError> {
        self.call_until(question, Instant::now() + self.config.reply_limit)
    }

    fn call_until(&mut self, question: &Control, deadline: Instant) -> Result<Control, PortError> {
        if let Some(end) = self.ended {
            return Err(end.error());
        }
        self.sequence = self.sequence.wrapping_add(1);
        let (sequence, now) = (self.sequence, Instant::now());
        self.answer = None;
        let stream = self.stream.as_mut().expect("it is open until the end");
        if let Err(error) = stream.link.send(question.encode(sequence), now) {
            tracing::warn!(%error, "a control message can't be sent");
            self.finish(End::Lost(Lost::LocalFault));
        }
        loop {
            self.look();
            if let Some(bytes) = self.answer.take() {
                return understand(&bytes, sequence);
            }
            if let Some(end) = self.ended {
                return Err(end.error());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // An answer that came later would be taken for that to another question.
                self.finish(End::Lost(Lost::Deadline));
                continue;
            }
            self.doze(left)?;
        }
    }

    /// Sleeps until a completion or an event may have come, or a clock has to be looked at.
    pub(super) fn doze(&mut self, most: Duration) -> Result<(), PortError> {
        if self.ended.is_some() {
            return Ok(());
        }
        sleep::sleep(self, Some(most)).map_err(|errno| PortError::System {
            call: "poll",
            source: errno.into(),
        })
    }

    /// Looks at the control stream, at the connection manager and at the clock.
    pub(super) fn look(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let now = Instant::now();
        self.looked = now;
        self.hear(now);
        while let Ok(Some(event)) = self.channel.take_event() {
            let gone = matches!(
                event.kind,
                CmEventKind::Disconnected | CmEventKind::DeviceRemoval
            );
            if gone {
                // What was said before it ended has come before, so that it is heard first.
                self.hear(now);
                let stream = self.stream.as_ref();
                match stream.is_some_and(|s| s.connection.token() == event.id) {
                    true => {
                        // What has failed before says more.
                        let what = self.suspect.map_or(Lost::Disconnected, |(_, what)| what);
                        self.finish(End::Lost(what));
                    }
                    false => self.suspect(now, Lost::Disconnected),
                }
            }
        }
        let failed = self.lanes.iter().find_map(|lane| lane.failed);
        if let Some(what) = failed {
            self.suspect(now, what);
        }
        if let Some((since, what)) = self.suspect
            && now.duration_since(since) >= GRACE
        {
            self.finish(End::Lost(what));
        }
        if let Some(first) = self.lanes.first() {
            let beat = first.beat();
            let all = beat.counter() == 0 || beat.has_all(self.welcome.split.lanes);
            if beat.counter() != self.beat.0 && all {
                self.beat = (beat.counter(), now);
            } else if now.duration_since(self.beat.1) >= self.config.silent_limit
                && self.ended.is_none()
                && self.lanes.len() == usize::from(self.welcome.split.lanes)
            {
                self.finish(End::Lost(Lost::PeerSilent));
            }
        }
    }

    fn suspect(&mut self, now: Instant, what: Lost) {
        if self.ended.is_none() && self.suspect.is_none() {
            self.suspect = Some((now, what));
        }
    }

    /// Takes what the control stream has brought.
    fn hear(&mut self, now: Instant) {
        let mut end = None;
        loop {
            let Some(stream) = &mut self.stream else {
                return;
            };
            let Ok(polled) = self.completions.poll() else {
                end = Some(End::Lost(Lost::LocalFault));
                break;
            };
            if polled.is_empty() {
                break;
            }
            for done in polled {
                match stream.link.completed(done, now) {
                    Heard::Nothing => (),
                    Heard::Message(bytes) => match Control::parse(&bytes) {
                        Ok((_, Control::Goodbye { status, detail })) => {
                            tracing::info!(%status, detail, "the dataplane says goodbye");
                            end = Some(End::Closed);
                        }
                        _ => self.answer = Some(bytes),
                    },
                    Heard::Breach(breach) => {
                        tracing::warn!(breach = breach.0, "the dataplane breaks the protocol");
                        end = end.or(Some(End::Lost(Lost::LocalFault)));
                    }
                    Heard::Failed(status) => {
                        end = end.or(Some(End::Lost(lost(status))));
                    }
                }
            }
        }
        match end {
            None => (),
            Some(End::Closed) => self.finish(End::Closed),
            // The connection manager may know better.
            Some(End::Lost(what)) => self.suspect(now, what),
        }
    }

    /// Ends the connection: what has come is kept, then all queue pairs are destroyed.
    pub(super) fn finish(&mut self, end: End) {
        if self.ended.is_some() {
            return;
        }
        self.fence();
        tracing::debug!(?end, "a connection over rdma has ended");
        self.ended = Some(end);
    }

    fn fence(&mut self) {
        self.lanes.iter_mut().for_each(ClientLane::fence);
        if let Some(mut stream) = self.stream.take() {
            let _ = stream.link.qp.fail(); // It is destroyed either way.
            let _ = stream.connection.disconnect(); // The peer may be gone.
            destroy(stream.link.qp);
        }
    }
}

impl Drop for RdmaClient {
    fn drop(&mut self) {
        self.fence();
    }
}

impl Sleeper for RdmaClient {
    fn progress(&mut self) {
        self.lanes.iter_mut().for_each(ClientLane::drain);
        self.look();
    }

    fn arm(&mut self) -> bool {
        if !self.armed {
            self.armed = self.completions.arm().is_ok();
        }
        for lane in &mut self.lanes {
            if !lane.armed {
                lane.armed = lane.completions.arm().is_ok();
            }
        }
        self.armed && self.lanes.iter().all(|lane| lane.armed)
    }

    fn is_quiet(&self) -> bool {
        let records = self.lanes.iter().any(ClientLane::has_record);
        !records && self.ended.is_none() && self.answer.is_none()
    }

    /// Wakes up for the clock too.
    fn wait(&mut self, limit: Option<Duration>) -> Result<(), Errno> {
        let look = match self.suspect {
            Some(_) => Duration::from_millis(5),
            None => self.config.silent_limit / 4,
        };
        let fds = [self.completion_channel.as_fd(), self.channel.as_fd()];
        wait_for(&fds, Some(limit.unwrap_or(look).min(look)))
    }

    fn take_events(&mut self) {
        while let Ok(Some(queue)) = self.completion_channel.take_event() {
            self.armed &= queue != self.completions.handle().id();
            for lane in &mut self.lanes {
                lane.armed &= queue != lane.completions.handle().id();
            }
        }
    }
}

fn nothing_granted() -> Welcome {
    Welcome {
        model: String::new(),
        generation: 0,
        split: rowmill_wire::SplitRule {
            lanes: 1,
            min_bags: 1,
        },
        credits: 1,
        completions: completions_for(1),
        max_ids: 0,
        max_lengths: 0,
        max_region: 0,
    }
}

fn understand(bytes: &[u8], sequence: u32) -> Result<Control, PortError> {
    match Control::parse(bytes) {
        Ok((_, Control::Refused { refusal, detail })) => {
            Err(PortError::Refused { refusal, detail })
        }
        Ok((answered, answer)) if answered == sequence => Ok(answer),
        Ok((answered, _)) => Err(PortError::Protocol(format!(
            "an answer to call {answered} instead of {sequence}"
        ))),
        Err(refusal) => Err(PortError::Protocol(format!(
            "the server's answer is not understood: {refusal}"
        ))),
    }
}

pub(super) fn unexpected(answer: &Control) -> PortError {
    PortError::Protocol(format!("an answer of the wrong kind: {answer:?}"))
}
