//! The reader's thread: connects, asks for tables, gives each worker its lane, and renews the lease.

use core::fmt;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rowmill_verbs::{
    Capacity, CompletionQueue, Connection, Context, EventChannel, HostMemory, Pages,
    ProtectionDomain, QueuePair, Remote, RequestData, Resolved, Selector, Slab, SlabRegistration,
};

use super::lane::{Handover, Link, Place, ReadLane, Session};
use super::lease::{LEASE_MAX, LEASE_MIN, readable_until_ns, renewal};
use super::message::{Asked, Identity, Message, Reply};
use super::talk::{COMPLETIONS, Talk};
use super::{Reads, parameters};
use crate::rdma::config::ConnectionParameters;
use crate::rdma::connect::{Attempt, Failure};
use crate::rdma::endpoint::addresses;
use crate::rdma::failure::in_full;
use crate::{Backoff, Interrupt, PortError, spawn_quiet};

/// How long each step of connecting may take.
const STEP: Duration = Duration::from_secs(3);
/// How often the connection is looked at, and what of it is heard.
const LOOK: Duration = Duration::from_millis(20);
/// The same while an answer is waited for.
const LISTEN: Duration = Duration::from_millis(1);

/// How a reader is set up.
pub struct ReaderConfig {
    /// The exporter: `rdma://HOST:PORT`.
    pub endpoint: String,
    /// What queue pairs are set to.
    pub connection: ConnectionParameters,
    /// Workers.
    pub lanes: u16,
    /// READs that each worker may have posted, 1 to 4096. The device has as many of them in flight as both ends can.
    pub reads: u32,
    /// What is to be read, by the number that lanes know it by.
    pub tables: Vec<Identity>,
    /// The workers' clock.
    pub now_ns: Box<dyn Fn() -> u64 + Send>,
}

impl fmt::Debug for ReaderConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReaderConfig")
            .field("endpoint", &self.endpoint)
            .field("lanes", &self.lanes)
            .field("tables", &self.tables.len())
            .finish_non_exhaustive()
    }
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReaderPhase {
    /// Not connected: it is tried now and then.
    #[default]
    Apart,
    /// Connected, with a lease.
    Connected,
}

/// What a reader has and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReaderState {
    /// How it stands.
    pub phase: ReaderPhase,
    /// Why the last connection ended, or why there is none; empty where there was nothing.
    pub why: String,
    /// Connections so far.
    pub connected: u64,
    /// Of these, those that were lost.
    pub lost: u64,
    /// Times that the lease was renewed.
    pub renewed: u64,
    /// How long it lasts from each time on.
    pub lease: Duration,
    /// READs of a lane that the devices have in flight at a time, as both ends agreed.
    pub reads_in_flight: u8,
    /// Of each table, why it is not granted, if it is not.
    pub refused: Vec<Option<String>>,
}

/// See the module's text. Dropped, it ends the connection.
#[derive(Debug)]
pub struct Reader {
    shown: Arc<Mutex<ReaderState>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Begins to connect, and goes on with that as long as it lives. Gives the workers' halves.
    ///
    /// # Errors
    /// [`PortError::Endpoint`] for a text that is none, [`PortError::System`] where there can be no thread.
    pub fn start(config: ReaderConfig) -> Result<(Reader, Vec<ReadLane>), PortError> {
        crate::rdma::endpoint::host_and_port(&config.endpoint)?;
        let handovers: Vec<Arc<Handover>> = (0..config.lanes).map(|_| Arc::default()).collect();
        let lanes = handovers.iter().map(|one| ReadLane::new(Arc::clone(one)));
        let lanes = lanes.collect();
        let (shown, stop) = (Arc::default(), Arc::<AtomicBool>::default());
        let stops = Arc::clone(&stop);
        let work = Work {
            config,
            handovers,
            shown: Arc::clone(&shown),
            interrupt: Interrupt::when(move || stops.load(Ordering::Relaxed)),
            stop: Arc::clone(&stop),
        };
        let thread = spawn_quiet("rowmill-remote", move || work.run()).map_err(|source| {
            PortError::System {
                call: "starting the reader's thread",
                source,
            }
        })?;
        let reader = Reader {
            shown,
            stop,
            thread: Some(thread),
        };
        Ok((reader, lanes))
    }

    /// What it has and has done.
    ///
    /// # Panics
    /// If its thread has panicked.
    pub fn state(&self) -> ReaderState {
        self.shown.lock().expect("a panic ends the process").clone()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the reader's thread had panicked");
        }
    }
}

struct Work {
    config: ReaderConfig,
    handovers: Vec<Arc<Handover>>,
    shown: Arc<Mutex<ReaderState>>,
    interrupt: Interrupt,
    stop: Arc<AtomicBool>,
}

/// A session's connection. Fields are dropped in order: the queue pair before what it uses.
struct Control {
    talk: Talk,
    completions: CompletionQueue,
    /// Messages that have come and were not looked at.
    heard: VecDeque<Message>,
    connection: Connection,
    channel: EventChannel,
    agreed: ConnectionParameters,
    id: [u8; 16],
    lease: Duration,
    /// Of the last question to renew the lease.
    serial: u64,
    /// When it was asked, by the workers' clock and by this thread's, if it is not answered.
    asked: Option<(u64, Instant)>,
    /// When to ask next.
    due: Instant,
    domain: ProtectionDomain,
    context: Context,
}

impl Work {
    fn run(self) {
        let mut backoff = Backoff::default();
        let mut said = String::new();
        while !self.stop.load(Ordering::Relaxed) {
            let session = Arc::<Session>::default();
            let why = match self.connect(&session) {
                Ok(control) => {
                    backoff.connected(Instant::now());
                    said.clear();
                    let why = self.keep(control, &session);
                    tracing::warn!("{}: {why}; connecting again", self.config.endpoint);
                    self.show(|state| state.lost += 1);
                    why
                }
                Err(why) => {
                    if said != why {
                        tracing::warn!("cannot read from {}: {why}", self.config.endpoint);
                        said.clone_from(&why);
                    }
                    why
                }
            };
            session.is_over.store(true, Ordering::Release);
            self.show(|state| (state.phase, state.why) = (ReaderPhase::Apart, why));
            let until = Instant::now() + backoff.delay(Instant::now());
            while !self.stop.load(Ordering::Relaxed) && Instant::now() < until {
                self.take_back();
                thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
            }
        }
    }

    fn show(&self, change: impl FnOnce(&mut ReaderState)) {
        change(&mut self.shown.lock().expect("a panic ends the process"));
    }

    /// Destroys what workers have given back.
    fn take_back(&self) {
        for handover in &self.handovers {
            while let Some(link) = handover.returned.pop() {
                drop(link);
            }
        }
    }

    /// A session, all tables that are granted, and a lane for each worker.
    fn connect(&self, session: &Arc<Session>) -> Result<Control, String> {
        let mut control = self.open_session(session)?;
        let mut places = Vec::new();
        let mut refused = Vec::new();
        for (number, table) in (0..).zip(&self.config.tables) {
            self.renew(&mut control, session)?;
            match control.open(number, table)? {
                Ok(place) => {
                    places.push(Some(place));
                    refused.push(None);
                }
                Err(why) => {
                    tracing::warn!(
                        "{} does not give table {}: {why}",
                        self.config.endpoint,
                        table.table
                    );
                    places.push(None);
                    refused.push(Some(why));
                }
            }
        }
        if let (true, Some(why)) = (places.iter().all(Option::is_none), &refused[0]) {
            return Err(format!("no table is given: {why}"));
        }
        let rows = places.iter().flatten().map(|place| place.stride as usize);
        let block_bytes = rows.max().unwrap_or(64).next_multiple_of(64);
        let mut reads_in_flight = 0;
        for handover in &self.handovers {
            self.renew(&mut control, session)?;
            let link = self.lane(&control, session, &places, block_bytes)?;
            reads_in_flight = link.qp.query().map_err(text)?.reads_in_flight;
            self.take_back();
            drop(handover.given.force_push(link));
        }
        let granted = places.iter().flatten().count();
        tracing::info!(
            "{} gives rows of {granted} tables, with a lease of {} ms; each worker has up to {reads_in_flight} READs in flight",
            self.config.endpoint,
            control.lease.as_millis()
        );
        self.show(|state| {
            state.phase = ReaderPhase::Connected;
            state.why.clear();
            state.connected += 1;
            (state.lease, state.reads_in_flight) = (control.lease, reads_in_flight);
            state.refused = refused;
        });
        Ok(control)
    }

    fn resolve(&self, channel: &EventChannel) -> Result<Resolved, String> {
        let attempt = self.attempt(channel);
        let addresses = addresses(&self.config.endpoint).map_err(said)?;
        let mut last = String::new();
        for to in addresses {
            match attempt.resolve(to, &self.config.connection) {
                Ok(resolved) => return Ok(resolved),
                Err(error) => last = said(error),
            }
        }
        Err(last)
    }

    fn attempt<'a>(&'a self, channel: &'a EventChannel) -> Attempt<'a> {
        Attempt {
            endpoint: &self.config.endpoint,
            channel,
            deadline: Instant::now() + STEP,
            interrupt: &self.interrupt,
        }
    }

    fn open_session(&self, session: &Session) -> Result<Control, String> {
        let channel = EventChannel::new().map_err(text)?;
        let mut way = self.resolve(&channel)?;
        let local = way.local_address().ok_or("the way out has no address")?;
        let context = Context::open(&Selector::Address(local.ip())).map_err(text)?;
        let domain = ProtectionDomain::new(&context).map_err(text)?;
        let completions = CompletionQueue::new(&context, COMPLETIONS, None).map_err(text)?;
        let mut talk = Talk::new(&domain, completions.handle(), 0).map_err(text)?;
        let own = self.config.connection;
        let bound = own.bound(&context);
        let initial = parameters(&own, Reads::None, &context);
        way.initialise(&mut talk.qp, &initial).map_err(text)?;
        talk.listen().map_err(text)?;
        let asked = Asked::Session { path_mtu: bound };
        let data = RequestData::new(&asked.encode()).map_err(text)?;
        let asked_ns = (self.config.now_ns)();
        let asked_at = Instant::now();
        let connecting = way.connect(&mut talk.qp, &initial, &data).map_err(text)?;
        let event = match self.attempt(&channel).answer(&connecting) {
            Ok(event) => event,
            Err(Failure::Stale) => return Err("it takes this for an older connection".into()),
            Err(Failure::Final(error)) => return Err(said(error)),
        };
        let reply = Reply::parse(event.private_data.as_slice()).map_err(|status| {
            format!("its answer is not understood ({status}): is it an [export]?")
        })?;
        let lease = Duration::from_millis(reply.lease_ms.into());
        if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            return Err(format!("it grants a lease of {} ms", reply.lease_ms));
        }
        let agreed = own.with_bound(reply.path_mtu);
        let final_ones = parameters(&agreed, Reads::None, &context);
        let connection = connecting
            .establish(&event, &mut talk.qp, &final_ones)
            .map_err(text)?;
        let until_ns = readable_until_ns(asked_ns, lease);
        session.until_ns.store(until_ns, Ordering::Release);
        Ok(Control {
            talk,
            completions,
            heard: VecDeque::new(),
            connection,
            channel,
            agreed,
            id: reply.session,
            lease,
            serial: 0,
            asked: None,
            due: asked_at + renewal(lease),
            domain,
            context,
        })
    }

    fn lane(
        &self,
        control: &Control,
        session: &Arc<Session>,
        places: &[Option<Place>],
        block_bytes: usize,
    ) -> Result<Link, String> {
        let reads = self.config.reads;
        let channel = EventChannel::new().map_err(text)?;
        let mut way = self.resolve(&channel)?;
        let capacity = Capacity {
            sends: reads,
            receives: 1,
            pieces: 1,
            inline_bytes: 0,
        };
        let completions = CompletionQueue::new(&control.context, reads + 2, None).map_err(text)?;
        let queue = completions.handle();
        let mut qp = QueuePair::new(&control.domain, queue, queue, capacity, 0).map_err(text)?;
        let memory = HostMemory::new(reads as usize * block_bytes, Pages::Small).map_err(text)?;
        let slab = Slab::new(memory, block_bytes);
        let registered: SlabRegistration = slab.register(&control.domain).map_err(text)?;
        let key = qp.hold(&registered);
        let parameters = parameters(&control.agreed, Reads::Ours, &control.context);
        way.initialise(&mut qp, &parameters).map_err(text)?;
        let asked = Asked::Lane {
            session: control.id,
        };
        let data = RequestData::new(&asked.encode()).map_err(text)?;
        let connecting = way.connect(&mut qp, &parameters, &data).map_err(text)?;
        let event = match self.attempt(&channel).answer(&connecting) {
            Ok(event) => event,
            Err(Failure::Stale) => return Err("it takes a lane for an older connection".into()),
            Err(Failure::Final(error)) => return Err(said(error)),
        };
        let connection = connecting
            .establish(&event, &mut qp, &parameters)
            .map_err(text)?;
        Ok(Link {
            qp,
            key,
            slab,
            completions,
            connection,
            _channel: channel,
            session: Arc::clone(session),
            tables: places.into(),
            has_failed: false,
        })
    }

    /// Renews the lease if it is time to, and takes in that it was.
    fn renew(&self, control: &mut Control, session: &Session) -> Result<(), String> {
        control.take_in()?;
        let is_answer =
            |one: &Message| matches!(one, Message::Renewed { serial } if *serial == control.serial);
        if let Some(at) = control.heard.iter().position(is_answer)
            && let Some((asked_ns, asked_at)) = control.asked.take()
        {
            control.heard.remove(at);
            let until_ns = readable_until_ns(asked_ns, control.lease);
            session.until_ns.store(until_ns, Ordering::Release);
            control.due = asked_at + renewal(control.lease);
            self.show(|state| state.renewed += 1);
        }
        if control.asked.is_none() && Instant::now() >= control.due {
            control.serial += 1;
            control.asked = Some(((self.config.now_ns)(), Instant::now()));
            let serial = control.serial;
            control.talk.send(&Message::Renew { serial })?;
        }
        Ok(())
    }

    /// Renews the lease, until the connection ends: why it did.
    fn keep(&self, mut control: Control, session: &Session) -> String {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                let _ = control.talk.send(&Message::Close);
                return "this side ends".into();
            }
            if session.is_over.load(Ordering::Acquire) {
                return session.why_over();
            }
            if Link::has_ended(&control.channel) {
                return "it has ended the connection, or has died".into();
            }
            if let Err(why) = self.renew(&mut control, session) {
                return why;
            }
            if (self.config.now_ns)() >= session.until_ns.load(Ordering::Acquire) {
                return "the lease was not renewed in time".into();
            }
            match control.heard.pop_front() {
                None => {}
                Some(Message::Ending { text }) => {
                    // Nothing more is read of it, so it need not wait for the end of the lease.
                    session.is_over.store(true, Ordering::Release);
                    let _ = control.talk.send(&Message::Close);
                    return text;
                }
                Some(_) => return "it says what was not asked".into(),
            }
            self.take_back();
            thread::sleep(LOOK);
        }
    }
}

impl Control {
    /// Takes in the messages that have come.
    fn take_in(&mut self) -> Result<(), String> {
        for completion in self.completions.poll().map_err(text)? {
            self.heard.extend(self.talk.take(completion)?);
        }
        Ok(())
    }

    /// A message that has come and is no answer to a question to renew, if one has: that is looked at by who asks it.
    fn hear(&mut self) -> Result<Option<Message>, String> {
        self.take_in()?;
        let is_other = |one: &Message| !matches!(one, Message::Renewed { .. });
        let at = self.heard.iter().position(is_other);
        Ok(at.and_then(|at| self.heard.remove(at)))
    }

    /// Asks for a table: where its rows are, or why it is not given.
    fn open(&mut self, number: u32, table: &Identity) -> Result<Result<Place, String>, String> {
        let table_of = table.clone();
        self.talk.send(&Message::Open {
            number,
            table: table_of,
        })?;
        let deadline = Instant::now() + STEP;
        while Instant::now() < deadline {
            match self.hear()? {
                None => thread::sleep(LISTEN),
                Some(Message::Refused { number: own, text }) if own == number => {
                    return Ok(Err(text));
                }
                Some(Message::Granted {
                    number: own,
                    address,
                    key,
                    bytes,
                }) if own == number => {
                    let wanted = table.rows.checked_mul(table.stride.into());
                    if wanted != Some(bytes) || address.checked_add(bytes).is_none() {
                        return Err(format!("it grants {bytes} bytes of table {}", table.table));
                    }
                    return Ok(Ok(Place {
                        first: Remote { address, key },
                        rows: table.rows,
                        stride: table.stride,
                    }));
                }
                Some(_) => return Err("it says what was not asked".into()),
            }
            if Link::has_ended(&self.channel) {
                return Err("it has ended the connection".into());
            }
        }
        Err(format!("it does not answer within {} s", STEP.as_secs()))
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // It is destroyed either way; the other side hears of it when the connection is dropped, too.
        let _ = self.talk.qp.fail();
        let _ = self.connection.disconnect();
    }
}

fn text(error: rowmill_verbs::Error) -> String {
    in_full(&error)
}

/// An error with its causes, in one line.
fn said(error: PortError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
