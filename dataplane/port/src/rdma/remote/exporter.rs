//! The exporter: a thread that lets readers in, grants tables and leases, and sees that memory stays as long as somebody may read it.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rowmill_arena::FrozenBytes;
use rowmill_verbs::{
    Capacity, CmEventKind, CompletionChannel, CompletionQueue, Context, EventChannel, IdToken,
    Listener, ProtectionDomain, QueuePair, RejectData, ReplyData, Request, Selector,
};
use rowmill_wire::Status;
use rustix::event::PollFlags;
use rustix::rand::{GetRandomFlags, getrandom};

use super::lease::Term;
use super::message::{Asked, Identity, Message, Reply};
use super::session::{Generation, Lane, Session, open, register};
use super::talk::{COMPLETIONS, Talk};
use super::{LANES_MAX, Reads, parameters};
use crate::rdma::admit::wait_for_random;
use crate::rdma::config::ConnectionParameters;
use crate::rdma::endpoint::addresses;
use crate::rdma::failure::{in_full, system};
use crate::rdma::private_data::{SessionId, encode_refusal};
use crate::{PortError, WakeFds, spawn_quiet};

/// Requests to connect that wait for an answer.
const BACKLOG: u16 = 64;
/// How often orders and leases are looked at, where nothing else comes.
const LOOK: Duration = Duration::from_millis(50);
/// Completions that a lane can have here, where nothing is posted: its beacon, and a receive that is never posted.
const LANE_COMPLETIONS: u32 = 3;
/// A retry count that means for ever: a reader that asks for it would never notice that this side is gone.
const FOR_EVER: u8 = 7;

/// A table to be exported.
#[derive(Debug)]
pub struct ExportedTable {
    /// What it is.
    pub identity: Identity,
    /// Its rows.
    pub rows: FrozenBytes,
}

/// A generation to be exported.
#[derive(Debug)]
pub struct Offer {
    /// Its number.
    pub generation: u64,
    /// Its tables.
    pub tables: Vec<ExportedTable>,
    /// Names of tables that are not exported, and a sentence each that says why.
    pub left_out: Vec<(String, String)>,
}

/// How an exporter is set up.
#[derive(Clone, Debug)]
pub struct ExporterConfig {
    /// Where readers connect: `rdma://ADDRESS:PORT`.
    pub endpoint: String,
    /// What queue pairs are set to.
    pub connection: ConnectionParameters,
    /// How long a session lasts after it was renewed, from [`LEASE_MIN`](super::LEASE_MIN) to [`LEASE_MAX`](super::LEASE_MAX).
    pub lease: Duration,
    /// Sessions at a time at most.
    pub readers: u16,
}

/// What an exporter has and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExporterState {
    /// Each reader's address, its lanes, and how long its lease lasts still.
    pub readers: Vec<(Option<SocketAddr>, usize, Duration)>,
    /// Generations that are exported, with their tables and bytes, and whether they are to go.
    pub generations: Vec<(u64, usize, u64, bool)>,
    /// Sessions that were let in.
    pub accepted: u64,
    /// Connections that were refused.
    pub refused: u64,
    /// Leases that ended since they were not renewed in time.
    pub lapsed: u64,
}

enum Order {
    Offer(Generation),
    Withdraw(u64),
}

/// See the module's text. Dropped, it ends all sessions.
#[derive(Debug)]
pub struct Exporter {
    orders: Sender<Order>,
    shown: Arc<Mutex<ExporterState>>,
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    domain: ProtectionDomain,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Registers the rows of a generation, and then lets readers connect. Registering takes a while: seconds for each GiB on some devices.
    ///
    /// # Errors
    /// [`PortError::Endpoint`], [`PortError::Listen`], [`PortError::System`].
    pub fn start(config: ExporterConfig, first: Offer) -> Result<Exporter, PortError> {
        let failed = |reason: String| PortError::Listen {
            endpoint: config.endpoint.clone(),
            reason,
        };
        let address = addresses(&config.endpoint)?[0];
        if address.ip().is_unspecified() {
            return Err(failed("give the address of one RDMA device".to_owned()));
        }
        let context =
            Context::open(&Selector::Address(address.ip())).map_err(|e| failed(in_full(&e)))?;
        let domain = ProtectionDomain::new(&context)
            .map_err(|error| system("making a protection domain", error))?;
        wait_for_random().map_err(|errno| failed(errno.to_string()))?;
        let room = u32::from(config.readers) * (COMPLETIONS + LANES_MAX as u32 * LANE_COMPLETIONS);
        let room = room.min(context.limits().completions);
        let bell = CompletionChannel::new(&context)
            .map_err(|error| system("making a completion channel", error))?;
        let completions = CompletionQueue::new(&context, room, Some(&bell))
            .map_err(|error| system("making a completion queue", error))?;
        let generations = vec![register(&domain, first)];
        let channel = EventChannel::new().map_err(|e| failed(in_full(&e)))?;
        let listener =
            Listener::bind(&channel, address, BACKLOG).map_err(|e| failed(in_full(&e)))?;
        let address = listener.local_address().unwrap_or(address);
        let (orders, ordered) = self::channel();
        let (shown, stop) = (Arc::default(), Arc::<AtomicBool>::default());
        let work = Work {
            sessions: Vec::new(),
            generations,
            next_number: 0,
            completions,
            bell,
            _listener: listener,
            channel,
            domain: domain.clone(),
            context,
            config,
            ordered,
            shown: Arc::clone(&shown),
            state: ExporterState::default(),
            stop: Arc::clone(&stop),
        };
        let thread = spawn_quiet("rowmill-export", move || work.run()).map_err(|source| {
            PortError::System {
                call: "starting the exporter's thread",
                source,
            }
        })?;
        Ok(Exporter {
            orders,
            shown,
            stop,
            address,
            domain,
            thread: Some(thread),
        })
    }

    /// Where readers connect, with the port that was taken.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Exports another generation, too. Its rows are registered here, since that takes a while, and leases are renewed meanwhile.
    pub fn offer(&self, offer: Offer) {
        let generation = register(&self.domain, offer);
        // The thread lives as long as this; a panic ends the process.
        let _ = self.orders.send(Order::Offer(generation));
    }

    /// A generation is to go: no table of it is granted any more, and no lease renewed of who was granted one.
    pub fn withdraw(&self, generation: u64) {
        let _ = self.orders.send(Order::Withdraw(generation));
    }

    /// What it has and has done.
    ///
    /// # Panics
    /// If its thread has panicked.
    pub fn state(&self) -> ExporterState {
        self.shown.lock().expect("a panic ends the process").clone()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the exporter's thread had panicked");
        }
    }
}

/// The thread's state. Sessions are dropped before what they read, and that before the domain.
struct Work {
    sessions: Vec<Session>,
    generations: Vec<Generation>,
    next_number: u16,
    completions: CompletionQueue,
    bell: CompletionChannel,
    _listener: Listener,
    channel: EventChannel,
    domain: ProtectionDomain,
    context: Context,
    config: ExporterConfig,
    ordered: Receiver<Order>,
    shown: Arc<Mutex<ExporterState>>,
    state: ExporterState,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn run(mut self) {
        while !self.stop.load(Relaxed) {
            self.arm();
            self.take_orders();
            self.take_events();
            // A question that has come before a lease was over is heard before that is ended.
            self.take_completions();
            self.end_leases(Instant::now());
            self.show(Instant::now());
            self.sleep();
        }
    }

    fn take_orders(&mut self) {
        while let Ok(order) = self.ordered.try_recv() {
            match order {
                Order::Offer(generation) => {
                    tracing::info!(
                        "generation {} is exported, with {} tables",
                        generation.number,
                        generation.tables.len()
                    );
                    self.generations.push(generation);
                }
                Order::Withdraw(number) => self.withdraw(number),
            }
        }
    }

    fn withdraw(&mut self, number: u64) {
        let going = self
            .generations
            .iter_mut()
            .filter(|held| held.number == number);
        going.for_each(|held| held.is_ending = true);
        let mut silent = Vec::new();
        for (at, session) in self.sessions.iter_mut().enumerate() {
            if session.reads.contains(&number) {
                session.term.end();
                let text = format!("generation {number} is unloaded");
                if session.talk.send(&Message::Ending { text }).is_err() {
                    silent.push(at);
                }
            }
        }
        silent.into_iter().rev().for_each(|at| {
            self.end(at, "it takes no messages");
        });
    }

    fn take_events(&mut self) {
        while let Ok(Some(event)) = self.channel.take_event() {
            match event.kind {
                CmEventKind::ConnectRequest(request) => self.request(request),
                CmEventKind::Established
                | CmEventKind::AddressChange
                | CmEventKind::TimewaitExit => {}
                _ => self.gone(event.id),
            }
        }
    }

    /// A connection has ended.
    fn gone(&mut self, id: IdToken) {
        let of = |session: &Session| session.connection.token() == id;
        if let Some(at) = self.sessions.iter().position(of) {
            return self.end(at, "its connection has ended");
        }
        for session in &mut self.sessions {
            session.lanes.retain(|lane| lane.connection.token() != id);
        }
    }

    fn end(&mut self, at: usize, why: &str) {
        let session = self.sessions.swap_remove(at);
        tracing::info!(peer = ?session.peer, why, "a reader is gone");
    }

    fn request(&mut self, request: Box<Request>) {
        let offer = *request.offer();
        let refused = if !request.is_on(&self.context) {
            Some((Status::Unavailable, "this device exports nothing"))
        } else if offer.retries >= FOR_EVER || offer.rnr_retries >= FOR_EVER {
            let text = "a retry count of 7 means for ever; ask for 6 at most";
            Some((Status::Malformed, text))
        } else {
            None
        };
        let asked = Asked::parse(request.private_data());
        match (refused, asked) {
            (Some((status, text)), _) => self.reject(request, status, text),
            (None, Err(status)) => self.reject(
                request,
                status,
                "this is where memory is exported to readers ([export]), not where clients connect",
            ),
            (None, Ok(Asked::Session { path_mtu })) => {
                if self.sessions.len() >= usize::from(self.config.readers) {
                    let text = "there are as many readers as may be (export.readers)";
                    return self.reject(request, Status::LimitReached, text);
                }
                let agreed = self.config.connection.with_bound(path_mtu);
                match self.let_in(request, agreed) {
                    Ok(session) => {
                        tracing::info!(peer = ?session.peer, "a reader has come");
                        self.state.accepted += 1;
                        self.sessions.push(session);
                    }
                    Err(error) => {
                        tracing::warn!(why = in_full(&error), "a reader can't be let in");
                    }
                }
            }
            (None, Ok(Asked::Lane { session })) => {
                let known = |own: &Session| own.id == session;
                let Some(at) = self.sessions.iter().position(known) else {
                    let text = "there is no such session";
                    return self.reject(request, Status::Unavailable, text);
                };
                if self.sessions[at].lanes.len() >= LANES_MAX {
                    let text = "a session has 64 lanes at most";
                    return self.reject(request, Status::LimitReached, text);
                }
                match self.lane(request, &self.sessions[at].agreed) {
                    Ok(lane) => self.sessions[at].lanes.push(lane),
                    Err(error) => tracing::warn!(why = in_full(&error), "a lane can't be made"),
                }
            }
        }
    }

    fn reject(&mut self, request: Box<Request>, status: Status, text: &str) {
        self.state.refused += 1;
        tracing::info!(peer = ?request.peer_address(), %status, text, "refused a reader");
        let word = RejectData::new(&encode_refusal(status, text));
        if let Err(error) = request.reject(&word.unwrap_or(RejectData::none())) {
            tracing::debug!(%error, "a refusal does not arrive");
        }
    }

    fn let_in(
        &mut self,
        mut request: Box<Request>,
        agreed: ConnectionParameters,
    ) -> Result<Session, rowmill_verbs::Error> {
        self.next_number = self.next_number.wrapping_add(1);
        let mut talk = Talk::new(&self.domain, self.completions.handle(), self.next_number)?;
        let parameters = parameters(&agreed, Reads::None, &self.context);
        request.initialise(&mut talk.qp, &parameters)?;
        talk.listen()?;
        let mut id = SessionId::default();
        // It never waits, after `wait_for_random`, and never gives less than so few bytes (getrandom(2)).
        let _ = getrandom(&mut id, GetRandomFlags::empty());
        let reply = Reply {
            session: id,
            lease_ms: self.config.lease.as_millis() as u32,
            path_mtu: self.config.connection.bound(&self.context),
        };
        let peer = request.peer_address();
        let reply = ReplyData::new(&reply.encode())?;
        let connection = request.accept(&mut talk.qp, &parameters, &reply)?;
        Ok(Session {
            lanes: Vec::new(),
            id,
            peer,
            term: Term::new(self.config.lease, Instant::now()),
            agreed,
            reads: Vec::new(),
            talk,
            connection,
        })
    }

    fn lane(
        &self,
        mut request: Box<Request>,
        agreed: &ConnectionParameters,
    ) -> Result<Lane, rowmill_verbs::Error> {
        let capacity = Capacity {
            sends: 1,
            receives: 1,
            pieces: 1,
            inline_bytes: 0,
        };
        let queue = self.completions.handle();
        let mut qp = QueuePair::new(&self.domain, queue, queue, capacity, 0)?;
        let parameters = parameters(agreed, Reads::Theirs, &self.context);
        request.initialise(&mut qp, &parameters)?;
        let connection = request.accept(&mut qp, &parameters, &ReplyData::none())?;
        Ok(Lane {
            _qp: qp,
            connection,
        })
    }

    fn take_completions(&mut self) {
        loop {
            let Work {
                completions,
                sessions,
                ..
            } = self;
            let done = match completions.poll() {
                Ok(done) => done,
                Err(error) => {
                    tracing::error!(why = in_full(&error), "the exporter hears nobody any more");
                    return sessions.clear();
                }
            };
            if done.is_empty() {
                return;
            }
            let mut heard = Vec::new();
            for completion in done {
                let number = completion.queue_pair();
                let mut of = sessions.iter_mut();
                // Others are of sessions that are gone.
                if let Some(session) = of.find(|session| session.talk.qp.number() == number) {
                    heard.push((number, session.talk.take(completion)));
                }
            }
            for (number, message) in heard {
                let of = |session: &Session| session.talk.qp.number() == number;
                match (self.sessions.iter().position(of), message) {
                    (None, _) | (_, Ok(None)) => {}
                    (Some(at), Ok(Some(message))) => self.answer(at, message),
                    (Some(at), Err(why)) => self.end(at, &why),
                }
            }
        }
    }

    fn answer(&mut self, at: usize, message: Message) {
        let session = &mut self.sessions[at];
        let answer = match message {
            Message::Open { number, table } => {
                let (answer, is_granted) = open(&self.generations, number, &table);
                if is_granted && !session.reads.contains(&table.generation) {
                    session.reads.push(table.generation);
                }
                answer
            }
            Message::Renew { serial } if session.term.renew(Instant::now()) => {
                Message::Renewed { serial }
            }
            Message::Renew { .. } => Message::Ending {
                text: match session.term.is_over(Instant::now()) {
                    true => "the lease was over before it was renewed".into(),
                    false => "what is read is to go".into(),
                },
            },
            Message::Close => return self.end(at, "it reads no more"),
            _ => return self.end(at, "it says what only an exporter says"),
        };
        if let Err(why) = session.talk.send(&answer) {
            self.end(at, &why);
        }
    }

    fn end_leases(&mut self, now: Instant) {
        while let Some(at) = self.sessions.iter().position(|s| s.term.is_over(now)) {
            self.state.lapsed += 1;
            self.end(at, "its lease has ended");
        }
        let sessions = &self.sessions;
        let is_read = |number: u64| sessions.iter().any(|s| s.reads.contains(&number));
        // Dropped, it is registered no more, and then its memory may go.
        self.generations.retain(|held| {
            let goes = held.is_ending && !is_read(held.number);
            if goes {
                tracing::info!("generation {} is exported no more", held.number);
            }
            !goes
        });
    }

    fn show(&mut self, now: Instant) {
        let reader = |session: &Session| {
            let left = session.term.until().saturating_duration_since(now);
            (session.peer, session.lanes.len(), left)
        };
        self.state.readers = self.sessions.iter().map(reader).collect();
        let generation = |held: &Generation| {
            let bytes = held.tables.iter().map(|table| table.rows.len() as u64);
            (held.number, held.tables.len(), bytes.sum(), held.is_ending)
        };
        self.state.generations = self.generations.iter().map(generation).collect();
        let mut shown = self.shown.lock().expect("a panic ends the process");
        shown.clone_from(&self.state);
    }

    /// From here on a message that comes ends the sleep.
    fn arm(&mut self) {
        while let Ok(Some(_)) = self.bell.take_event() {}
        if let Err(error) = self.completions.arm() {
            // Then they are looked at as often as leases are.
            tracing::debug!(%error, "the completion queue can't be armed");
        }
    }

    fn sleep(&self) {
        let fds = WakeFds::of([
            (self.channel.as_fd(), PollFlags::IN),
            (self.bell.as_fd(), PollFlags::IN),
        ]);
        // However it ends, all is looked at.
        let _ = fds.poll(Some(LOOK));
    }
}
