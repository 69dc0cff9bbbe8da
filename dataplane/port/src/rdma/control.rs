//! The control thread: connects clients, answers their messages, beats, and sees that nothing of a client is freed before
//! every worker has let go of it. All ids of the connection manager are its alone. It waits for no client and for no worker:
//! what takes several steps is kept as a state of the session, and goes on when an event, a message or a notice comes, or
//! when the thread looks again (schemas that workers have to take in). Steps that the kernel or the device takes long for,
//! registering memory and destroying queue pairs, go on only until the next beat is due.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rowmill_verbs::{
    CmEventKind, CompletionChannel, CompletionQueue, Context, EventChannel, IdToken, Listener,
    Slab, Status as WorkStatus,
};
use rowmill_wire::Status;
use rustix::event::{Timespec, epoll};

use super::admit::wait_for_random;
use super::bounds::GREETING_MAX;
use super::config::RdmaConfig;
use super::failure::in_full;
use super::inbox::{Cut, Notice};
use super::life::{Beat, Seen};
use super::link::Heard;
use super::progress::beats_of;
use super::server::Shown;
use super::session::{LaneEnd, Phase, Session};
use super::session_lane::LaneParts;
use crate::control::{BIND_LOOK, Bell, LogLimit};
use crate::{ConnId, PortError, Service, Waker};

/// How often a client is shown a sign of life.
const BEAT: Duration = Duration::from_millis(250);

/// How long the thread waits for workers to let go and for clients to hear of the end.
const FAREWELL: Duration = Duration::from_secs(3);

/// Events, and looks at the completion queue, of one turn: after that many the clocks and the lanes are looked at.
const EVENTS_PER_TURN: usize = 16;

/// How long each of what a turn has to do may take where its steps are long (a lane that is let in has a worker's whole slab
/// registered for it): a tenth of [`BEAT`], so that none of it keeps the others waiting from beat to beat.
const SHARE: Duration = Duration::from_millis(25);

/// While somebody parts, how often that is looked at.
const TICK: Duration = Duration::from_millis(10);

/// What the thread is made of.
pub(super) struct Parts {
    pub(super) config: RdmaConfig,
    pub(super) lanes: Vec<LaneParts>,
    pub(super) listener: Listener,
    pub(super) channel: EventChannel,
    pub(super) completions: CompletionQueue,
    pub(super) completion_channel: CompletionChannel,
    pub(super) context: Context,
    pub(super) bell: Arc<Bell>,
}

impl Parts {
    /// The lanes' blocks.
    pub(super) fn slabs(&self) -> Vec<Slab> {
        self.lanes.iter().map(|lane| lane.slab.clone()).collect()
    }
}

/// The control thread's state. Sessions are dropped before the queues that they use.
pub(super) struct Control {
    pub(super) sessions: Vec<Option<Session>>,
    pub(super) config: RdmaConfig,
    pub(super) service: Arc<dyn Service>,
    pub(super) lanes: Vec<LaneParts>,
    pub(super) shown: Arc<Shown>,
    pub(super) unused: Vec<ConnId>,
    pub(super) changed: bool,
    pub(super) now: Instant,
    pub(super) context: Context,
    pub(super) completions: Option<CompletionQueue>,
    /// The session of each id of the connection manager.
    pub(super) ids: HashMap<IdToken, usize>,
    listener: Option<Listener>,
    channel: EventChannel,
    completion_channel: CompletionChannel,
    armed: bool,
    /// The completion queue is lost: nobody can be heard any more.
    deaf: bool,
    /// There may be completions or notices that were not taken, or sessions that have to end: the next turn comes at once.
    busy: bool,
    beats: u64,
    next_beat: Instant,
    /// What was seen of each lane's worker.
    seen: Vec<Seen>,
    epoll: OwnedFd,
    log_limit: LogLimit,
}

impl Control {
    pub(super) fn new(
        parts: Parts,
        service: Arc<dyn Service>,
        shown: Arc<Shown>,
    ) -> Result<Control, PortError> {
        let failed = |errno: rustix::io::Errno| PortError::System {
            call: "epoll",
            source: errno.into(),
        };
        wait_for_random().map_err(|errno| PortError::System {
            call: "getrandom",
            source: errno.into(),
        })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let (level, edge) = (
            epoll::EventFlags::IN,
            epoll::EventFlags::IN | epoll::EventFlags::ET,
        );
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, &parts.channel, data, level).map_err(failed)?;
        epoll::add(&epoll, &parts.completion_channel, data, level).map_err(failed)?;
        epoll::add(&epoll, &*parts.bell, data, edge).map_err(failed)?;
        let places = usize::from(parts.config.max_connections) + GREETING_MAX;
        let now = Instant::now();
        let seen = parts.lanes.iter().map(|_| Seen::new(now)).collect();
        Ok(Control {
            sessions: (0..places).map(|_| None).collect(),
            unused: (0..u32::from(parts.config.max_connections))
                .rev()
                .map(ConnId)
                .collect(),
            config: parts.config,
            service,
            lanes: parts.lanes,
            shown,
            changed: false,
            now,
            context: parts.context,
            completions: Some(parts.completions),
            ids: HashMap::new(),
            listener: Some(parts.listener),
            channel: parts.channel,
            completion_channel: parts.completion_channel,
            armed: false,
            deaf: false,
            busy: false,
            beats: 0,
            next_beat: now + BEAT,
            seen,
            epoll,
            log_limit: LogLimit::new(now),
        })
    }

    /// The thread's life.
    pub(super) fn run(mut self) {
        let mut farewell: Option<Instant> = None;
        loop {
            self.now = Instant::now();
            self.take_events();
            self.take_completions();
            // Here, since a beat follows only where the one before is known to have arrived.
            self.beat();
            self.take_notices();
            self.finish_binds();
            self.expire();
            if self.shown.stop_accepting.load(Ordering::SeqCst) {
                self.listener = None;
            }
            if self.shown.stop.load(Ordering::SeqCst) && farewell.is_none() {
                farewell = Some(self.now + FAREWELL);
                self.listener = None;
                for place in 0..self.sessions.len() {
                    let goodbye = (Status::Draining, "the dataplane ends".to_owned());
                    self.end(place, Some(goodbye));
                }
            }
            self.show();
            if let Some(until) = farewell {
                let all_gone = self.sessions.iter().all(Option::is_none);
                if all_gone || self.now >= until {
                    if !all_gone {
                        tracing::warn!(
                            "workers did not let go of all rdma clients in time; what these have is freed when they do"
                        );
                    }
                    return;
                }
            }
            self.sleep(farewell);
        }
    }

    fn sleep(&mut self, farewell: Option<Instant>) {
        let mut next = self.next_beat;
        for session in self.sessions.iter().flatten() {
            let due = match &session.phase {
                Phase::Greeting { since } => *since + self.config.handshake_limit,
                Phase::Parting { .. } => self.now + TICK,
                Phase::Member(member) if !member.is_live() => {
                    member.since + self.config.handshake_limit
                }
                Phase::Member(_) => continue,
            };
            next = next.min(due);
        }
        let next = farewell.map_or(next, |until| next.min(until));
        if self.busy {
            return;
        }
        // A millisecond more, so that it is past and not just about to be.
        let mut wait = next.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        if self.sessions.iter().flatten().any(Session::binds) {
            wait = wait.min(BIND_LOOK);
        }
        let limit = Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        };
        let mut events = [const { MaybeUninit::uninit() }; 8];
        // An interruption is a turn more.
        let _ = epoll::wait(&self.epoll, &mut events, Some(&limit));
    }

    /// Until when something with long steps may go on in this turn. One step of it is done however late it is.
    fn share(&self) -> Instant {
        (Instant::now() + SHARE).min(self.next_beat)
    }

    fn take_events(&mut self) {
        let until = self.share();
        for _ in 0..EVENTS_PER_TURN {
            match self.channel.take_event() {
                Ok(None) => return,
                Ok(Some(event)) => match event.kind {
                    CmEventKind::ConnectRequest(request) => self.request(request),
                    CmEventKind::Disconnected
                    | CmEventKind::DeviceRemoval
                    | CmEventKind::Rejected
                    | CmEventKind::Unreachable
                    | CmEventKind::ConnectError => {
                        if let Some(&place) = self.ids.get(&event.id) {
                            self.end(place, None);
                        }
                    }
                    _ => (),
                },
                Err(error) => {
                    self.log(
                        || tracing::warn!(%error, "an event of the connection manager is lost"),
                    );
                    return;
                }
            }
            if Instant::now() >= until {
                return; // The channel stays readable while it has more.
            }
        }
    }

    fn take_completions(&mut self) {
        if self.deaf {
            self.busy = false;
            return;
        }
        while let Ok(Some(_)) = self.completion_channel.take_event() {
            self.armed = false;
        }
        let Some(mut completions) = self.completions.take() else {
            return;
        };
        self.busy = true;
        let until = self.share();
        for _ in 0..EVENTS_PER_TURN {
            let found = match completions.poll() {
                Ok(polled) => {
                    for done in polled {
                        self.completed(done);
                    }
                    polled.len()
                }
                Err(error) => {
                    tracing::error!(%error, "the control thread's completion queue is lost: all clients are cut off, and no more let in");
                    self.deaf = true;
                    self.shown.deaf.store(true, Ordering::Relaxed);
                    self.listener = None;
                    (0..self.sessions.len()).for_each(|place| self.end(place, None));
                    break;
                }
            };
            if found > 0 {
                // Each may have ended a session, whose lanes' queue pairs then go.
                if Instant::now() >= until {
                    break;
                }
                continue;
            }
            if self.armed {
                self.busy = false;
                break;
            }
            if let Err(error) = completions.arm() {
                self.log(|| tracing::error!(%error, "the control thread can't be woken"));
                break;
            }
            // What came before it was armed rings no bell: one look more.
            self.armed = true;
        }
        self.completions = Some(completions);
    }

    fn completed(&mut self, done: &rowmill_verbs::Completion) {
        let place = usize::from(done.id().connection());
        let now = self.now;
        let Some(session) = self.sessions.get_mut(place).and_then(Option::as_mut) else {
            return;
        };
        match session.link.completed(done, now) {
            Heard::Nothing => (),
            Heard::Message(bytes) => self.message(place, &bytes),
            Heard::Breach(breach) => self.cut(place, Cut::Breach(breach.0)),
            Heard::Failed(WorkStatus::Flushed) => self.end(place, None),
            Heard::Failed(status) => self.cut(place, Cut::Failed(status)),
        }
    }

    fn take_notices(&mut self) {
        let until = self.share();
        for lane in 0..self.lanes.len() {
            let shared = self.lanes[lane].shared.clone();
            while let Some(notice) = shared.notice() {
                self.notice(shared.lane, notice);
                if Instant::now() >= until {
                    // The bell does not ring again for those that are left.
                    self.busy = true;
                    return;
                }
            }
            if shared.is_gone() {
                for place in 0..self.sessions.len() {
                    self.let_go(place, shared.lane, |_| true);
                }
            }
        }
    }

    fn notice(&mut self, lane: u16, notice: Notice) {
        let conn = match &notice {
            Notice::LetGo { conn, .. }
            | Notice::RegionLetGo { conn, .. }
            | Notice::Cut { conn, .. } => *conn,
        };
        let Some(place) = self.place_of(conn) else {
            return;
        };
        match notice {
            Notice::Cut { why, .. } => self.cut(place, why),
            Notice::LetGo { seat, .. } => {
                // Destroys the queue pair: from here on nothing of it reaches the client.
                drop(seat);
                // It looks at its completion queue once more, which then has the room of what may have been left in it.
                self.lanes[usize::from(lane)].shared.wake();
                self.let_go(place, lane, |of_region| of_region.is_none());
            }
            Notice::RegionLetGo { region, .. } => {
                self.let_go(place, lane, |of_region| of_region == Some(region.0));
            }
        }
    }

    fn place_of(&mut self, conn: ConnId) -> Option<usize> {
        self.sessions.iter_mut().position(|session| {
            let member = session.as_mut().and_then(Session::member);
            member.is_some_and(|member| member.conn == conn)
        })
    }

    /// Beats when it is time, and cuts off whose work does not get done.
    fn beat(&mut self) {
        self.now = Instant::now();
        if self.now < self.next_beat {
            return;
        }
        let now = self.now;
        self.next_beat = now + BEAT;
        self.beats += 1;
        let mut bytes = Beat::new(self.beats);
        for (lane, seen) in self.lanes.iter().zip(&mut self.seen) {
            if seen.lives(&lane.life, now) && !lane.shared.is_gone() {
                bytes.set(lane.shared.lane);
            }
        }
        let overdue_beats = beats_of(self.config.overdue(), BEAT);
        for place in 0..self.sessions.len() {
            let Some(session) = &mut self.sessions[place] else {
                continue;
            };
            let Phase::Member(member) = &mut session.phase else {
                continue;
            };
            if member.ending.is_some() {
                continue;
            }
            let mut late = false;
            for (lane, seen) in member.lanes.iter_mut().zip(&self.seen) {
                if let LaneEnd::Attached { progress, age, .. } = lane {
                    late |= age.is_overdue(progress, seen.ran(), overdue_beats);
                }
            }
            if late {
                self.cut(place, Cut::Failed(WorkStatus::RetriesExceeded));
            } else if let Some(to) = member.beat
                && let Err(error) = session.link.beat(&bytes.0, to, now)
            {
                tracing::debug!(error = in_full(&error), "a beat can't be sent");
                self.end(place, None);
            }
        }
    }

    /// Ends what takes too long, and removes those that have parted.
    fn expire(&mut self) {
        let (now, until) = (self.now, self.share());
        let (limit, overdue) = (self.config.handshake_limit, self.config.overdue());
        for place in 0..self.sessions.len() {
            let Some(session) = &self.sessions[place] else {
                continue;
            };
            let peer = session.peer;
            match &session.phase {
                Phase::Greeting { since } if now.duration_since(*since) >= limit => {
                    self.log(|| {
                        tracing::warn!(?peer, "a client connected over rdma and said nothing")
                    });
                    self.end(place, None);
                }
                Phase::Parting { until, .. } if now >= *until || session.link.is_idle() => {
                    self.remove(place);
                }
                Phase::Member(member) if member.ending.is_some() => continue,
                Phase::Member(member)
                    if !member.is_live() && now.duration_since(member.since) >= limit =>
                {
                    self.log(|| {
                        tracing::warn!(?peer, "an rdma client did not open its lanes in time")
                    });
                    let text = "its lanes were not all open in time".to_owned();
                    self.end(place, Some((Status::Expired, text)));
                }
                Phase::Member(_) if session.link.is_overdue(now, overdue) => {
                    self.cut(place, Cut::Failed(WorkStatus::RetriesExceeded));
                }
                _ => continue,
            }
            if Instant::now() >= until {
                self.busy = true;
                return;
            }
        }
    }

    pub(super) fn show(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let sessions = || self.sessions.iter().flatten();
        let queue_pairs = sessions().map(Session::queue_pairs).sum();
        self.shown.queue_pairs.store(queue_pairs, Ordering::Relaxed);
        let count = sessions().count() as u64;
        self.shown.sessions.store(count, Ordering::Relaxed);
        let infos: Vec<_> = sessions().filter_map(Session::info).collect();
        let regions = infos.iter().map(|info| u64::from(info.regions)).sum();
        self.shown.regions.store(regions, Ordering::Relaxed);
        let mut shown = self
            .shown
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *shown = infos;
    }

    /// Writes a line about a peer, unless there were too many of them lately.
    pub(super) fn log(&mut self, line: impl FnOnce()) {
        if self.log_limit.admit(self.now) {
            line();
        }
    }
}
