//! The control thread: accepts clients, answers their messages, and sees that nothing of a client is
//! freed before every worker has let go of it. It waits for no client: what takes several steps is kept
//! as a state of the connection, and goes on when a message or notice comes, or when the thread looks again
//! (schemas that workers have to take in). Mapping a region is done in place.

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rowmill_wire::Status;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, SocketFlags, accept_with, shutdown, sockopt};

use super::dispose::{ClientStream, Closer, closes_at_once};
use super::endpoint::Binding;
use super::inbox::{LaneShared, Message, Notice};
use super::server::{ShmConfig, Shown, watch};
use super::session::{Phase, Session};
use super::stream;
use crate::control::{BIND_LOOK, Bell, LaneSet, LogLimit};
use crate::{ConnId, Service};

/// Connections beyond `max_connections` that may be open: those that have not said hello, or are about
/// to be told that there is no room. When they are all taken the oldest one makes room, so clients that
/// connect and stay silent can't shut others out.
const GREETING_MAX: usize = 32;

/// Connections accepted before the others' messages are looked at again.
const ACCEPTS_PER_TURN: usize = 16;

/// How long the thread waits for workers to let go when the server ends.
const FAREWELL: Duration = Duration::from_secs(1);

/// How long nobody is let in after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: u64 = u64::MAX;
const BELL: u64 = u64::MAX - 1;

/// The control thread's state.
pub(super) struct Control {
    pub(super) config: ShmConfig,
    pub(super) service: Arc<dyn Service>,
    pub(super) lanes: Vec<Arc<LaneShared>>,
    pub(super) shown: Arc<Shown>,
    pub(super) sessions: Vec<Option<Session>>,
    pub(super) unused: Vec<ConnId>,
    pub(super) changed: bool,
    pub(super) now: Instant,
    closer: Arc<Closer>,
    binding: Option<Binding>,
    epoll: OwnedFd,
    // Distinguishes an event of a closed connection from one of its successor in the same place.
    epochs: Vec<u32>,
    accept_again: Option<Instant>,
    log_limit: LogLimit,
}

impl Control {
    pub(super) fn new(
        binding: Binding,
        config: ShmConfig,
        service: Arc<dyn Service>,
        lanes: Vec<Arc<LaneShared>>,
        shown: Arc<Shown>,
        bell: &Bell,
        closer: Arc<Closer>,
    ) -> Result<Control, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        watch(&epoll, &binding.listener, LISTENER)?;
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, bell, epoll::EventData::new_u64(BELL), edge)?;
        let places = usize::from(config.max_connections) + GREETING_MAX;
        let now = Instant::now();
        Ok(Control {
            unused: (0..u32::from(config.max_connections))
                .rev()
                .map(ConnId)
                .collect(),
            sessions: (0..places).map(|_| None).collect(),
            epochs: vec![0; places],
            config,
            service,
            lanes,
            shown,
            changed: false,
            now,
            closer,
            binding: Some(binding),
            epoll,
            accept_again: None,
            log_limit: LogLimit::new(now),
        })
    }

    /// The thread's life.
    pub(super) fn run(mut self) {
        let mut buffer = stream::buffer();
        let mut farewell: Option<Instant> = None;
        loop {
            let mut events = [const { MaybeUninit::uninit() }; 64];
            let limit = self.timeout(farewell);
            let ready = match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
                Ok((ready, _)) => ready,
                Err(_) => &mut [], // An interruption; anything else would show in what follows.
            };
            self.now = Instant::now();
            for event in ready {
                match event.data.u64() {
                    BELL => (),
                    LISTENER => self.accept(),
                    token => self.stream_event(token, &mut buffer),
                }
            }
            self.take_notices();
            self.finish_binds();
            self.expire_greetings();
            if self.shown.stop_accepting.load(Ordering::SeqCst) {
                self.give_up_endpoint();
            }
            if self.shown.stop.load(Ordering::SeqCst) && farewell.is_none() {
                farewell = Some(self.now + FAREWELL);
                self.give_up_endpoint();
                (0..self.sessions.len()).for_each(|place| self.end(place));
            }
            self.show();
            if let Some(until) = farewell {
                let all_gone = self.sessions.iter().all(Option::is_none);
                if all_gone || self.now >= until {
                    return self.leave(all_gone);
                }
            }
        }
    }

    fn leave(&self, all_gone: bool) {
        if !all_gone {
            tracing::warn!(
                "workers did not let go of all shm clients in time; the clients' memory stays mapped \
                 until they do"
            );
        }
    }

    /// How long to sleep: until a greeting is overdue, accepting is tried again, or the farewell ends; shortly while
    /// somebody binds.
    fn timeout(&self, farewell: Option<Instant>) -> Option<Timespec> {
        let mut sessions = self.sessions.iter().flatten();
        let wait = if sessions.any(Session::binds) {
            BIND_LOOK
        } else {
            let sessions = self.sessions.iter().flatten();
            let greeting = sessions.filter_map(|s| match s.phase {
                Phase::Greeting { since } => Some(since + self.config.handshake_limit),
                Phase::Member(_) => None,
            });
            let next = greeting.chain(self.accept_again).chain(farewell).min()?;
            // A millisecond more, so that it is past and not just about to be.
            next.saturating_duration_since(Instant::now()) + Duration::from_millis(1)
        };
        Some(Timespec {
            tv_sec: wait.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        })
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(binding) = &self.binding else {
                return;
            };
            if self.closer.is_full() {
                return self
                    .pause_accepting("too many descriptors that clients sent wait to be closed");
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match accept_with(&binding.listener, flags) {
                Ok(stream) => self.admit(ClientStream::new(stream, self.closer.clone())),
                Err(Errno::INTR | Errno::CONNABORTED) => (),
                Err(Errno::AGAIN) => return,
                Err(errno) => {
                    // Out of descriptors or memory.
                    let reason = std::io::Error::from(errno).to_string();
                    return self.pause_accepting(&reason);
                }
            }
        }
    }

    /// Lets nobody in for a while. The listener stays ready, so it is not watched meanwhile; else this
    /// thread would spin.
    fn pause_accepting(&mut self, reason: &str) {
        if let Some(binding) = &self.binding {
            let _ = epoll::delete(&self.epoll, &binding.listener);
        }
        self.accept_again = Some(self.now + ACCEPT_PAUSE);
        self.log(|| tracing::warn!(reason, "cannot let shm clients in for a while"));
    }

    /// Closes the listener. Clients in its backlog may have sent descriptors already, which would be
    /// closed with it, so they are let in and out again first.
    fn give_up_endpoint(&mut self) {
        let Some(binding) = self.binding.take() else {
            return;
        };
        // From here on nobody comes to the backlog, so the loop ends.
        let _ = shutdown(&binding.listener, Shutdown::Both);
        while let Ok(stream) = accept_with(&binding.listener, SocketFlags::CLOEXEC) {
            drop(ClientStream::new(stream, self.closer.clone()));
        }
    }

    fn admit(&mut self, stream: ClientStream) {
        let greeting = |session: &Option<Session>| match session {
            Some(Session {
                phase: Phase::Greeting { since },
                ..
            }) => Some(*since),
            _ => None,
        };
        let greetings = self.sessions.iter().filter_map(greeting).count();
        if greetings >= GREETING_MAX {
            let oldest = (0..self.sessions.len())
                .filter(|&place| greeting(&self.sessions[place]).is_some())
                .min_by_key(|&place| greeting(&self.sessions[place]));
            if let Some(place) = oldest {
                self.end(place);
            }
        }
        let place = self
            .sessions
            .iter()
            .position(Option::is_none)
            .expect("there are places for all members and greetings");
        let peer = sockopt::socket_peercred(&stream).ok();
        self.epochs[place] = self.epochs[place].wrapping_add(1) & (u32::MAX >> 1);
        let token = u64::from(self.epochs[place]) << 32 | place as u64;
        if watch(&self.epoll, &stream, token).is_err() {
            return; // The stream is closed: the client learns that it can't connect.
        }
        self.sessions[place] = Some(Session {
            phase: Phase::Greeting { since: self.now },
            stream: Arc::new(stream),
            pid: peer.map_or(0, |p| p.pid.as_raw_nonzero().get()),
            uid: peer.map_or(u32::MAX, |p| p.uid.as_raw()),
        });
    }

    fn stream_event(&mut self, token: u64, buffer: &mut [u8]) {
        let (place, epoch) = ((token & 0xffff_ffff) as usize, (token >> 32) as u32);
        if self.epochs[place] != epoch {
            return;
        }
        let Some(session) = &self.sessions[place] else {
            return;
        };
        if matches!(&session.phase, Phase::Member(member) if member.ending.is_some()) {
            return; // It ended in this same turn: what it still says does not count.
        }
        // One message a turn, so that no client holds up the others. There is room for all descriptors
        // that can come with it, since the kernel would close those beyond in this thread.
        let most = stream::MAX_FDS;
        match stream::receive(&*session.stream, buffer, most, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => (),
            Err(_) => self.hung_up(place),
            Ok(received) => {
                if received.len == 0 {
                    self.hung_up(place);
                } else {
                    let len = received.len.min(buffer.len());
                    // There was room for all descriptors that can come with a message.
                    let damage = match (received.starved, received.cut) {
                        (true, _) => Some(Status::LimitReached),
                        (false, true) => Some(Status::Malformed),
                        (false, false) => None,
                    };
                    self.message(place, &buffer[..len], &received.fds, damage);
                }
                self.dispose(place, received.fds);
            }
        }
    }

    /// The client has ended its stream.
    fn hung_up(&mut self, place: usize) {
        self.leave_nothing(place);
        self.end(place);
    }

    /// When the connection has ended its control memory is freed: we made it, so that it would stay on
    /// our account as long as the client keeps its descriptor.
    fn leave_nothing(&mut self, place: usize) {
        if let Some(member) = self.sessions[place].as_mut().and_then(Session::member) {
            member.left = true;
        }
    }

    /// Closes the descriptors that came with a message, or has them closed.
    fn dispose(&mut self, place: usize, fds: Vec<OwnedFd>) {
        let full = self.closer.is_full();
        for fd in fds {
            if closes_at_once(&fd, self.config.max_region_bytes) {
                drop(fd);
                continue;
            }
            self.closer.close(fd);
            if full {
                let breach = "it sends descriptors faster than they can be closed";
                self.cut(place, Status::LimitReached, Some(breach));
            }
        }
    }

    /// Ends a connection: at once where no worker knows it, else by asking every worker to let go.
    pub(super) fn end(&mut self, place: usize) {
        let Some(session) = &mut self.sessions[place] else {
            return;
        };
        let Phase::Member(member) = &mut session.phase else {
            // A closing thread closes it some time later.
            let _ = epoll::delete(&self.epoll, &*session.stream);
            self.sessions[place] = None;
            return;
        };
        if member.ending.is_some() {
            return;
        }
        // Nothing the client says counts any more. The stream stays open: its end would tell the client
        // that its memory is its own again.
        let _ = epoll::delete(&self.epoll, &*session.stream);
        let conn = member.conn;
        (member.leaving, member.binding) = (None, None);
        for lane in &self.lanes {
            lane.post(Message::Detach { conn });
        }
        member.ending = Some(LaneSet::living(&self.lanes));
        self.changed = true;
        self.advance(place);
    }

    /// Cuts off a client that broke the protocol or was turned out by a worker.
    pub(super) fn cut(&mut self, place: usize, why: Status, breach: Option<&'static str>) {
        let Some(session) = &mut self.sessions[place] else {
            return;
        };
        let (pid, mut client) = (session.pid, String::new());
        if let Some(member) = session.member() {
            if member.ending.is_some() {
                return;
            }
            client.clone_from(&member.name);
        }
        match breach {
            Some(breach) => {
                self.leave_nothing(place);
                self.shown.violations.fetch_add(1, Ordering::Relaxed);
                self.log(|| tracing::warn!(client, pid, breach, "an shm client is cut off"));
            }
            None => {
                if why == Status::Malformed {
                    self.leave_nothing(place);
                    self.shown.violations.fetch_add(1, Ordering::Relaxed);
                }
                self.log(|| tracing::warn!(client, pid, %why, "a worker cut an shm client off"));
            }
        }
        self.end(place);
    }

    fn take_notices(&mut self) {
        for lane in self.lanes.clone() {
            while let Some(notice) = lane.notice() {
                self.notice(lane.lane, notice);
            }
            if lane.is_gone() {
                for place in 0..self.sessions.len() {
                    self.let_go(place, lane.lane, |_| true);
                }
            }
        }
    }

    fn notice(&mut self, lane: u16, notice: Notice) {
        let conn = match notice {
            Notice::LetGo { conn }
            | Notice::RegionLetGo { conn, .. }
            | Notice::Cut { conn, .. } => conn,
        };
        let Some(place) = self.place_of(conn) else {
            return;
        };
        match notice {
            Notice::Cut { why, breach, .. } => self.cut(place, why, breach),
            Notice::LetGo { .. } => self.let_go(place, lane, |of_region| of_region.is_none()),
            Notice::RegionLetGo { region, .. } => {
                self.let_go(place, lane, |of_region| of_region == Some(region.0));
            }
        }
    }

    /// Takes a lane out of those that are waited for: of the connection's end where `which` accepts
    /// `None`, of a region's where it accepts the region's number.
    fn let_go(&mut self, place: usize, lane: u16, which: impl Fn(Option<u32>) -> bool) {
        let Some(member) = self.sessions[place].as_mut().and_then(Session::member) else {
            return;
        };
        if let Some(waiting) = &mut member.ending
            && which(None)
        {
            waiting.remove(lane);
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
        let Some(member) = self.sessions[place].as_mut().and_then(Session::member) else {
            return;
        };
        if member.ending.is_some_and(|waiting| waiting.is_empty()) {
            let (conn, client) = (member.conn, std::mem::take(&mut member.name));
            for (lane, doorbell) in self.lanes.iter().zip(&member.doorbells) {
                lane.forget(doorbell);
            }
            let memory = member.left.then(|| member.link.memory.clone());
            // Unmaps the regions and the rings, then closes the stream.
            self.sessions[place] = None;
            // After the stream's end, so that a client that still reads sees that first.
            if let Some(memory) = memory {
                memory.free_pages();
            }
            self.unused.push(conn);
            self.changed = true;
            self.service.gone(conn);
            self.log(|| tracing::info!(client, conn = conn.0, "an shm client has gone"));
        } else if let Some((region, sequence, waiting)) = member.leaving
            && waiting.is_empty()
        {
            member.leaving = None;
            member.regions[region.0 as usize] = None; // Unmapped here: the lanes have let go.
            self.changed = true;
            self.unregistered(place, region, sequence);
        }
    }

    fn place_of(&mut self, conn: ConnId) -> Option<usize> {
        self.sessions.iter_mut().position(|session| {
            let member = session.as_mut().and_then(Session::member);
            member.is_some_and(|member| member.conn == conn)
        })
    }

    fn expire_greetings(&mut self) {
        for place in 0..self.sessions.len() {
            let Some(session) = &self.sessions[place] else {
                continue;
            };
            if let Phase::Greeting { since } = session.phase
                && self.now.duration_since(since) >= self.config.handshake_limit
            {
                let pid = session.pid;
                self.log(|| tracing::warn!(pid, "a client connected over shm and said nothing"));
                self.end(place);
            }
        }
        if self.accept_again.is_some_and(|at| self.now >= at) {
            self.accept_again = None;
            if let Some(binding) = &self.binding
                && watch(&self.epoll, &binding.listener, LISTENER).is_err()
            {
                self.accept_again = Some(self.now + ACCEPT_PAUSE);
            }
        }
    }

    fn show(&mut self) {
        if std::mem::take(&mut self.changed) {
            let infos = self.sessions.iter().flatten().filter_map(Session::info);
            let mut shown = self
                .shown
                .connections
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            shown.clear();
            shown.extend(infos);
        }
    }

    /// Writes a line about a peer, unless there were too many of them lately.
    pub(super) fn log(&mut self, line: impl FnOnce()) {
        if self.log_limit.admit(self.now) {
            line();
        }
    }
}
