//! The client half of the port over RDMA: control calls, what it looks at, and the end with its fence.

use std::time::{Duration, Instant};

use rowmill_verbs::{
    CmEventKind, CompletionChannel, CompletionQueue, Connection, EventChannel, ProtectionDomain,
};
use rowmill_wire::Status;
use rowmill_wire::control::{Control, Welcome};
use rowmill_wire::limits::MAX_REGIONS;
use rustix::io::Errno;

use super::client_lane::{ClientLane, destroy};
use super::config::RdmaClientConfig;
use super::failure::lost;
use super::link::{Heard, Link};
use super::memory::OwnRegion;
use super::sleep::{self, Sleeper};
use crate::calls::{Late, understand};
use crate::patience::Patience;
use crate::ticks::Ticks;
use crate::{ClientPort, Lost, PortError};

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
    pub(super) link: Link,
    pub(super) connection: Connection,
}

/// A client half.
///
/// After [`PortError::Closed`] and [`PortError::Lost`] all its regions are its own again: whatever ended the connection,
/// all its queue pairs have been destroyed before that is said, so that nothing can be written to its memory by them.
pub struct RdmaClient {
    // Declared first, dropped first; `drop` has fenced them before.
    pub(super) lanes: Vec<ClientLane>,
    pub(super) stream: Option<Stream>,
    pub(super) regions: [Option<OwnRegion>; MAX_REGIONS as usize],
    pub(super) completions: CompletionQueue,
    pub(super) armed: bool,
    pub(super) completion_channel: CompletionChannel,
    pub(super) channel: EventChannel,
    pub(super) domain: ProtectionDomain,
    pub(super) welcome: Welcome,
    pub(super) config: RdmaClientConfig,
    pub(super) answer: Option<Vec<u8>>,
    /// Whether a call waits for it.
    pub(super) awaits: bool,
    pub(super) sequence: u32,
    pub(super) late: Late,
    /// When the control stream is looked at by who polls and finds nothing.
    pub(super) ticks: Ticks,
    /// The counter of the last beat that said that all workers live, or of the first one that said otherwise, and when that
    /// was first seen.
    pub(super) beat: (u64, Instant),
    /// Something has failed, and since then what it was is looked for.
    pub(super) suspect: Option<(Instant, Lost)>,
    pub(super) ended: Option<End>,
}

impl RdmaClient {
    /// Asks a control question, when the answer to the last one has come.
    pub(super) fn call(&mut self, question: &Control) -> Result<Control, PortError> {
        let mut patience = Patience::new(self.config.reply_limit, &self.config.interrupt);
        self.call_within(question, &mut patience)
    }

    pub(super) fn call_within(
        &mut self,
        question: &Control,
        patience: &mut Patience,
    ) -> Result<Control, PortError> {
        if let Err(error) = self.settle(patience) {
            self.late.give_up_unasked(question);
            return Err(error);
        }
        self.ask(question);
        self.awaits = true;
        let answer = self.await_answer(patience);
        self.awaits = false;
        if let Err(PortError::NoAnswer { .. } | PortError::Interrupted) = answer {
            self.late.give_up(self.sequence, question);
        }
        understand(&answer?, self.sequence)
    }

    fn ask(&mut self, question: &Control) {
        let now = Instant::now();
        self.sequence = self.sequence.wrapping_add(1);
        self.answer = None;
        let Some(stream) = &mut self.stream else {
            return;
        };
        if let Err(error) = stream.link.send(question.encode(self.sequence), now) {
            tracing::warn!(%error, "a control message can't be sent");
            self.finish(End::Lost(Lost::LocalFault));
        }
    }

    fn await_answer(&mut self, patience: &mut Patience) -> Result<Vec<u8>, PortError> {
        loop {
            self.look();
            if let Some(bytes) = self.answer.take() {
                return Ok(bytes);
            }
            if let Some(end) = self.ended {
                return Err(end.error());
            }
            self.doze(patience.next_sleep()?)?;
        }
    }

    /// Waits for the answer that is still to come, and has what it gives given back.
    pub(super) fn settle(&mut self, patience: &mut Patience) -> Result<(), PortError> {
        loop {
            if let Some(end) = self.ended {
                return Err(end.error());
            }
            if !self.late.is_open() {
                return Ok(());
            }
            self.look();
            if self.late.is_open() && self.ended.is_none() {
                self.doze(patience.next_sleep()?)?;
            }
        }
    }

    /// Takes an answer that nobody waits for.
    fn hear_late(&mut self) {
        if let Some(bytes) = self.answer.take()
            && let Err(error) = self.late.heard(&bytes)
        {
            tracing::warn!(%error, "a message of the dataplane's is left");
        }
        if let Some(question) = self.late.next_question() {
            self.ask(&question);
            self.late.give_up(self.sequence, &question);
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

    /// How long a sleep of at most `limit` may be: the clock is to be looked at, too.
    pub(super) fn at_most(&self, limit: Option<Duration>) -> Duration {
        let look = match self.suspect {
            Some(_) => Duration::from_millis(5),
            None => self.config.silent_limit / 4,
        };
        limit.unwrap_or(look).min(look)
    }

    /// Looks at the control stream, at the connection manager and at the clock.
    pub(super) fn look(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let now = Instant::now();
        self.hear(now);
        while let Ok(Some(event)) = self.channel.take_event() {
            // A peer that dies before its host has heard that this side is ready is told of by a rejection.
            let gone = matches!(
                event.kind,
                CmEventKind::Disconnected
                    | CmEventKind::Rejected
                    | CmEventKind::Unreachable
                    | CmEventKind::ConnectError
                    | CmEventKind::DeviceRemoval
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
        if !self.awaits && self.ended.is_none() {
            self.hear_late();
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

    pub(super) fn suspect(&mut self, now: Instant, what: Lost) {
        if self.ended.is_none() && self.suspect.is_none() {
            self.suspect = Some((now, what));
        }
    }

    /// Something has failed: what has become of the connection, which takes half a second at most to find out.
    pub(super) fn hear_the_end(&mut self) -> PortError {
        loop {
            self.look();
            if let Some(end) = self.ended {
                return end.error();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes what the control stream has brought.
    fn hear(&mut self, now: Instant) {
        let mut end = None;
        'heard: loop {
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
                            end = Some(match status {
                                Status::Draining => End::Closed,
                                why => End::Lost(Lost::CutOff(why)),
                            });
                            break 'heard;
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
            Some(said @ (End::Closed | End::Lost(Lost::CutOff(_)))) => self.finish(said),
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

    fn wait(&mut self, limit: Option<Duration>) -> Result<(), Errno> {
        self.wake_fds().poll(Some(self.at_most(limit)))
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
