//! The thread that decides: a planner, its clock, and what of it is kept.
//!
//! Others speak to it through a bounded queue: full means refused. The clock is the monotonic one; what the wall clock says, or how it
//! jumps, matters nowhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rowmill_admission::{
    Event, GenerationRequest, Limits, ModelView, Planner, Recorded, Refused, Settings, TURN_NS,
};
use rowmill_link::Policy;
use rowmill_state::{Change, State, StateError};
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::records::{Generations, Identity, Served, Told, Wanted};

/// What may wait: four bodies of each of as many dataplanes as there are by default.
const QUEUE: usize = 1024;
/// Policies are kept at most so often.
const KEEP_EVERY: Duration = Duration::from_secs(10);

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// See there.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It couldn't be kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// There is too much to do.
    #[error("the control plane has too much to do: try again in a second")]
    Busy,
    /// The process ends.
    #[error("the control plane is ending")]
    Ending,
}

/// A look at the planner, at a moment.
type Look = Box<dyn FnOnce(&Planner, u64) + Send>;

enum Command {
    Tell(Box<Event>, oneshot::Sender<Result<(), Fault>>),
    Wish(
        String,
        GenerationRequest,
        oneshot::Sender<Result<ModelView, Fault>>,
    ),
    Look(Look),
    End,
}

/// What was published, by dataplane.
#[derive(Debug)]
struct Published {
    policies: Mutex<BTreeMap<String, Arc<Policy>>>,
    /// Counts changes of the policies; closed when the process ends.
    changes: watch::Receiver<u64>,
}

/// The way to the thread. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct Planning {
    commands: SyncSender<Command>,
    published: Arc<Published>,
    /// Who publishes, and the epoch that was begun with.
    pub control: String,
    /// See above.
    pub epoch: u64,
}

/// The thread's own.
struct Thread {
    planner: Planner,
    state: State,
    identity: Identity,
    take_over: bool,
    began: Instant,
    published: Arc<Published>,
    changes: watch::Sender<u64>,
    /// When policies were kept last, and the orders that were.
    kept: (Instant, BTreeMap<String, rowmill_link::Order>),
    /// What dataplanes told of themselves, as it is kept.
    served: BTreeMap<String, Served>,
    recording: Option<Recording>,
}

/// Lines that are written as long as there is room for them.
struct Recording {
    out: BufWriter<File>,
    left: u64,
}

/// Starts the thread, with what the state knows. Returns it and the way to it; [`Planning::end`] ends it.
///
/// # Errors
/// Where the state can't be read or written, the recording can't be begun, or no thread be started.
pub fn start(config: &Config) -> anyhow::Result<(Planning, JoinHandle<()>)> {
    let (mut state, aside) = State::open_or_set_aside(&config.state)?;
    if let Some((path, why)) = &aside {
        tracing::error!(
            "{} was damaged ({why}): it lies in {} now, and a new one was begun; settings of tables and wishes for generations have to be made again",
            config.state.display(),
            path.display()
        );
    }
    let identity = match state.get::<Identity>("")? {
        Some(identity) => identity,
        None => {
            let identity = Identity {
                control: drawn()?,
                ahead: 0,
            };
            keep(&mut state, |change| change.put("", &identity))?;
            identity
        }
    };
    let epoch = state.epoch().checked_add(identity.ahead).with_context(|| {
        format!(
            "the state in {} is {} epochs ahead, which can't be: put an older copy of it back, or begin a new one",
            config.state.display(),
            identity.ahead
        )
    })?;
    let limits = Limits {
        samples_per_s: config.limits.samples_per_s,
        dataplanes_max: config.limits.dataplanes,
        tables_max: config.limits.tables,
    };
    let planner = Planner::new(identity.control.clone(), epoch, limits);
    let mut known = Vec::new();
    for (
        _,
        Wanted {
            model,
            table,
            mut settings,
        },
    ) in state.all::<Wanted>()?
    {
        // Larger parts were taken once.
        let part = settings.pinned_share;
        settings.pinned_share = part.map(|part| part.min(Settings::PINNED_SHARE_MAX));
        known.push(Event::Settings {
            model,
            table,
            settings: Some(settings),
        });
    }
    for (model, Generations { wanted }) in state.all::<Generations>()? {
        let wanted = Some(wanted);
        known.push(Event::Generations { model, wanted });
    }
    let mut orders = BTreeMap::new();
    for (dataplane, Told { model, policy }) in state.all::<Told>()? {
        orders.insert(dataplane.clone(), policy.order);
        known.push(Event::Remembered {
            dataplane,
            model,
            policy,
        });
    }
    let mut served = BTreeMap::new();
    for (dataplane, of) in state.all::<Served>()? {
        served.insert(dataplane.clone(), of.clone());
        let Served { model, newest } = of;
        known.push(Event::Served {
            dataplane,
            model,
            newest,
        });
    }
    let recording = config.record.file.as_deref();
    let recording = recording
        .map(|path| Recording::begin(path, config.record.bytes))
        .transpose()?;
    let (changes, watched) = watch::channel(0);
    let published = Arc::new(Published {
        policies: Mutex::default(),
        changes: watched,
    });
    let control = identity.control.clone();
    let mut thread = Thread {
        planner,
        state,
        identity,
        take_over: config.take_over || aside.is_some(),
        began: Instant::now(),
        published: Arc::clone(&published),
        changes,
        kept: (Instant::now(), orders),
        served,
        recording,
    };
    for event in known {
        // A recording begins with them, so that it is whole.
        if let Err(error) = thread.handle(event) {
            tracing::warn!("{}: left out: {error}", config.state.display());
        }
    }
    let (commands, queue) = sync_channel(QUEUE);
    let builder = std::thread::Builder::new().name("planning".into());
    let joined = builder
        .spawn(move || thread.run(&queue))
        .context("cannot start the planning thread")?;
    Ok((
        Planning {
            commands,
            published,
            control,
            epoch,
        },
        joined,
    ))
}

/// 32 hexadecimal digits.
fn drawn() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("getrandom")?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

fn keep(state: &mut State, what: impl FnOnce(&mut Change)) -> Result<(), StateError> {
    let mut change = Change::new();
    what(&mut change);
    state.change(change)
}

impl Planning {
    /// Tells an event, and waits until it is taken.
    ///
    /// # Errors
    /// [`Fault`], and then nothing has changed.
    pub async fn tell(&self, event: Event) -> Result<(), Fault> {
        let (done, wait) = oneshot::channel();
        self.send(Command::Tell(Box::new(event), done))?;
        wait.await.map_err(|_| Fault::Ending)?
    }

    /// Tells what an operator wants of a model's generations, and waits until it is kept. Returns what is known of the model then.
    ///
    /// # Errors
    /// [`Fault`], and then nothing has changed.
    pub async fn wish(
        &self,
        model: String,
        request: GenerationRequest,
    ) -> Result<ModelView, Fault> {
        let (done, wait) = oneshot::channel();
        self.send(Command::Wish(model, request, done))?;
        wait.await.map_err(|_| Fault::Ending)?
    }

    /// Has something read of the planner, with the time.
    ///
    /// # Errors
    /// [`Fault::Busy`] or [`Fault::Ending`].
    pub async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Planner, u64) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let (done, wait) = oneshot::channel();
        // Who asked may have gone meanwhile.
        let look = move |planner: &Planner, now: u64| _ = done.send(read(planner, now));
        self.send(Command::Look(Box::new(look)))?;
        wait.await.map_err(|_| Fault::Ending)
    }

    /// What a dataplane is to do, if it is known what.
    pub fn policy(&self, dataplane: &str) -> Option<Arc<Policy>> {
        self.published.policies().get(dataplane).cloned()
    }

    /// Tells when policies change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.published.changes.clone()
    }

    /// Ends the thread, when it has done what was told before.
    pub fn end(&self) {
        // One that is gone has ended.
        let _gone = self.commands.send(Command::End);
    }

    fn send(&self, command: Command) -> Result<(), Fault> {
        self.commands
            .try_send(command)
            .map_err(|error| match error {
                TrySendError::Full(_) => Fault::Busy,
                TrySendError::Disconnected(_) => Fault::Ending,
            })
    }
}

impl Published {
    fn policies(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Policy>>> {
        self.policies
            .lock()
            .expect("nobody panics with the policies in hand")
    }
}

impl Thread {
    fn run(mut self, queue: &Receiver<Command>) {
        let turn = Duration::from_nanos(TURN_NS);
        let mut next = self.began + turn;
        loop {
            let now = Instant::now();
            if now >= next {
                self.turn();
                // A turn that came late is not made up for.
                next = (next + turn).max(now);
            }
            match queue.recv_timeout(next.saturating_duration_since(Instant::now())) {
                // Who asked may have gone meanwhile.
                Ok(Command::Tell(event, done)) => _ = done.send(self.tell(*event)),
                Ok(Command::Wish(model, request, done)) => {
                    _ = done.send(self.wish(model, &request))
                }
                Ok(Command::Look(look)) => look(&self.planner, self.now_ns()),
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.keep_policies();
        if let Some(recording) = &mut self.recording {
            recording.flush();
        }
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn tell(&mut self, event: Event) -> Result<(), Fault> {
        if let Event::Settings {
            model,
            table,
            settings,
        } = &event
        {
            let key = Wanted::key(model, table);
            if let Some(settings) = settings {
                self.planner.check(model, table, settings)?;
            }
            keep(&mut self.state, |change| match settings.clone() {
                Some(settings) => {
                    let (model, table) = (model.clone(), table.clone());
                    change.put(
                        &key,
                        &Wanted {
                            model,
                            table,
                            settings,
                        },
                    );
                }
                None => change.remove::<Wanted>(&key),
            })?;
        }
        let heard = match &event {
            Event::Report { dataplane, .. } => Some(dataplane.clone()),
            _ => None,
        };
        let was_left_out = heard
            .as_ref()
            .is_some_and(|name| self.planner.leaves_out(name));
        self.handle(event)?;
        if was_left_out {
            self.keep_generations();
        }
        if let Some(name) = heard {
            self.keep_served(name);
        }
        Ok(())
    }

    /// Keeps what a dataplane serves, if that was not kept yet: after whatever end the next start waits for it before another generation
    /// is activated.
    fn keep_served(&mut self, name: String) {
        let Some((model, newest)) = self.planner.served_by(&name) else {
            return;
        };
        let is_same = |kept: &Served| kept.model == model && kept.newest == newest;
        if self.served.get(&name).is_some_and(is_same) {
            return;
        }
        let model = model.into();
        let served = Served { model, newest };
        match keep(&mut self.state, |change| change.put(&name, &served)) {
            Ok(()) => _ = self.served.insert(name, served),
            Err(error) => tracing::error!(
                "what {name} serves can't be kept, which is tried again when it reports: the next start won't wait for it until then: {error}"
            ),
        }
    }

    /// Keeps what is wanted, from which those are gone that are left out no more.
    fn keep_generations(&mut self) {
        let mut change = Change::new();
        for (model, wanted) in self.planner.wanted() {
            let wanted = wanted.clone();
            change.put(model, &Generations { wanted });
        }
        if let Err(error) = self.state.change(change) {
            tracing::error!(
                "it can't be kept that a dataplane is heard of again, and is not left out any more: {error}"
            );
        }
    }

    fn wish(&mut self, model: String, request: &GenerationRequest) -> Result<ModelView, Fault> {
        let GenerationRequest { wish, without } = request;
        let wanted = self.planner.wish(self.now_ns(), &model, *wish, without)?;
        self.planner.check_generations(&model, wanted.as_ref())?;
        // So that the next start knows who may serve something else.
        self.keep_policies();
        keep(&mut self.state, |change| match wanted.clone() {
            Some(wanted) => change.put(&model, &Generations { wanted }),
            None => change.remove::<Generations>(&model),
        })?;
        match &without[..] {
            [] => tracing::info!("generations of {model}: {wish:?}"),
            without => tracing::warn!(
                "generations of {model}: {wish:?}, without {}, which may serve something else",
                without.join(", ")
            ),
        }
        let of = model.clone();
        self.handle(Event::Generations { model, wanted })?;
        Ok(self.planner.model(self.now_ns(), &of))
    }

    fn handle(&mut self, event: Event) -> Result<(), Refused> {
        let at_ns = self.now_ns();
        if let Some(recording) = &mut self.recording {
            recording.write(&Recorded {
                at_ns,
                event: event.clone(),
            });
        }
        self.planner.handle(at_ns, event)
    }

    fn turn(&mut self) {
        self.overtake();
        // A turn is refused by nobody.
        self.handle(Event::Turn).expect("turns are taken");
        let mut changed = false;
        for name in self.planner.names() {
            let Some(policy) = self.planner.policy(name) else {
                continue;
            };
            let mut policies = self.published.policies();
            if policies
                .get(name)
                .is_none_or(|known| known.order != policy.order)
            {
                policies.insert(name.into(), Arc::clone(policy));
                changed = true;
            }
        }
        let planner = &self.planner;
        let mut policies = self.published.policies();
        policies.retain(|name, _| planner.policy(name).is_some());
        drop(policies);
        if changed {
            self.changes.send_modify(|count| *count += 1);
        }
        if self.kept.0.elapsed() >= KEEP_EVERY {
            self.keep_policies();
        }
    }

    /// Begins a later epoch where dataplanes follow a control plane that this one takes the place of: which it does where it was told to,
    /// and where it is the same one, with an older copy of its state.
    fn overtake(&mut self) {
        let other = self
            .planner
            .overtaken_by()
            .filter(|&(_, same)| same || self.take_over);
        let Some((other, _)) = other else {
            return;
        };
        let epoch = other.saturating_add(1);
        let identity = Identity {
            ahead: epoch.saturating_sub(self.state.epoch()),
            ..self.identity.clone()
        };
        if let Err(error) = keep(&mut self.state, |change| change.put("", &identity)) {
            tracing::error!(
                "dataplanes that follow another control plane can't be taken over: {error}"
            );
            return;
        }
        self.identity = identity;
        self.handle(Event::Epoch(epoch)).expect("a later epoch");
        tracing::warn!(
            "dataplanes that followed another control plane are taken over, in epoch {epoch}"
        );
    }

    /// Keeps the policies that are not kept yet, and forgets what is kept of dataplanes that the planner has forgotten.
    fn keep_policies(&mut self) {
        self.kept.0 = Instant::now();
        let mut change = Change::new();
        let mut orders = Vec::new();
        let names = self.kept.1.keys().chain(self.served.keys());
        let forgotten = names.filter(|name| !self.planner.knows(name));
        let forgotten: BTreeSet<String> = forgotten.cloned().collect();
        for name in &forgotten {
            change.remove::<Told>(name);
            change.remove::<Served>(name);
        }
        for (name, policy) in self.published.policies().iter() {
            if self.kept.1.get(name) != Some(&policy.order) {
                change.put(
                    name,
                    &Told {
                        model: self.planner.served_by(name).map(|(model, _)| model.into()),
                        policy: Policy::clone(policy),
                    },
                );
                orders.push((name.clone(), policy.order));
            }
        }
        if orders.is_empty() && forgotten.is_empty() {
            return;
        }
        match self.state.change(change) {
            Ok(()) => {
                self.kept.1.retain(|name, _| !forgotten.contains(name));
                self.served.retain(|name, _| !forgotten.contains(name));
                self.kept.1.extend(orders);
            }
            Err(error) => tracing::error!(
                "policies can't be kept, which is tried again; the next start won't know them until then: {error}"
            ),
        }
    }
}

impl Recording {
    fn begin(path: &Path, bytes: u64) -> anyhow::Result<Recording> {
        let file = File::create(path)
            .with_context(|| format!("record.file: cannot create {}", path.display()))?;
        Ok(Recording {
            out: BufWriter::new(file),
            left: bytes,
        })
    }

    fn write(&mut self, line: &Recorded) {
        let mut text = serde_json::to_vec(line).expect("events can be written to memory");
        text.push(b'\n');
        let len = text.len() as u64;
        if self.left < len {
            return self.end("it is as long as record.bytes says");
        }
        self.left -= len;
        if let Err(error) = self.out.write_all(&text) {
            self.end(&error.to_string());
        }
    }

    fn flush(&mut self) {
        if let Err(error) = self.out.flush() {
            self.end(&error.to_string());
        }
    }

    /// No more is written: a line that is missing in between would make the rest another story.
    fn end(&mut self, why: &str) {
        if self.left > 0 {
            tracing::warn!("the recording ends: {why}");
        }
        self.left = 0;
    }
}
