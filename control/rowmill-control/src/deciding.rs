//! What is decided, and what of it is kept: a planner over a state, with the time passed in.
//!
//! [`planning`](crate::planning) gives it a thread and a clock; the simulation of the control plane gives it others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use rowmill_admission::{
    Event, GenerationRequest, Limits, ModelView, Planner, Recorded, Refused, Settings, TURN_NS,
};
use rowmill_link::{Order, Policy};
use rowmill_state::{Change, State, StateError};

use crate::planning::Fault;
use crate::records::{Generations, Identity, Served, Told, Wanted};

/// Policies are kept at most so often.
const KEEP_EVERY_NS: u64 = 10 * TURN_NS;

/// What it begins with.
#[derive(Debug)]
pub struct Means {
    /// What was kept.
    pub state: State,
    /// What bounds the planner.
    pub limits: Limits,
    /// Whether dataplanes that follow another control plane are taken over.
    pub take_over: bool,
    /// Where what the planner is told is written, if it is.
    pub recording: Option<Recording>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Deciding {
    planner: Planner,
    state: State,
    identity: Identity,
    take_over: bool,
    published: BTreeMap<String, Arc<Policy>>,
    /// When policies were kept last, and the orders that were.
    kept: (u64, BTreeMap<String, Order>),
    /// What dataplanes told of themselves, as it is kept.
    served: BTreeMap<String, Served>,
    recording: Option<Recording>,
    unkept: Arc<Unkept>,
    /// It is no longer where it was.
    is_away: bool,
    /// When something was written last only to see whether that can be.
    tried_ns: u64,
}

/// Why the state can't be kept at present, if so.
#[derive(Debug, Default)]
pub struct Unkept(Mutex<Option<String>>);

impl Unkept {
    /// A sentence.
    pub fn why(&self) -> Option<String> {
        self.0
            .lock()
            .expect("nobody panics with it in hand")
            .clone()
    }

    /// Something was kept or could not be, which is logged when it is otherwise than the time before.
    fn note(&self, error: Option<&StateError>) {
        let now = error.map(|error| {
            format!("what is wished for and decided can't be kept, so that wishes are refused and the next start won't know the rest: {error}")
        });
        let before = {
            let mut why = self.0.lock().expect("nobody panics with it in hand");
            std::mem::replace(&mut *why, now.clone())
        };
        match (before, now) {
            (None, Some(why)) => tracing::error!("{why}"),
            (Some(_), None) => tracing::info!("the state can be kept again"),
            _ => {}
        }
    }
}

/// Lines that are written as long as there is room for them.
#[derive(Debug)]
pub struct Recording {
    out: BufWriter<File>,
    left: u64,
}

fn changed(what: impl FnOnce(&mut Change)) -> Change {
    let mut change = Change::new();
    what(&mut change);
    change
}

impl Deciding {
    /// Goes on from what the state knows. `drawn`: who publishes, where the state is new.
    ///
    /// # Errors
    /// Where the state can't be read or written.
    pub fn begin(
        means: Means,
        now_ns: u64,
        drawn: impl FnOnce() -> anyhow::Result<String>,
    ) -> anyhow::Result<Deciding> {
        let Means {
            mut state,
            limits,
            take_over,
            recording,
        } = means;
        let identity = match state.get::<Identity>("")? {
            Some(identity) => identity,
            None => {
                let identity = Identity {
                    control: drawn()?,
                    ahead: 0,
                };
                state.change(changed(|change| change.put("", &identity)))?;
                identity
            }
        };
        let epoch = state.epoch().checked_add(identity.ahead).with_context(|| {
            format!(
                "the state in {} is {} epochs ahead, which can't be: put an older copy of it back, or begin a new one",
                state.path().display(),
                identity.ahead
            )
        })?;
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
        let mut deciding = Deciding {
            planner,
            state,
            identity,
            take_over,
            published: BTreeMap::new(),
            kept: (now_ns, orders),
            served,
            recording,
            unkept: Arc::default(),
            is_away: false,
            tried_ns: 0,
        };
        for event in known {
            // A recording begins with them, so that it is whole.
            if let Err(error) = deciding.handle(now_ns, event) {
                tracing::warn!("{}: left out: {error}", deciding.state.path().display());
            }
        }
        Ok(deciding)
    }

    /// Who publishes.
    pub fn control(&self) -> &str {
        &self.identity.control
    }

    /// What is known.
    pub fn planner(&self) -> &Planner {
        &self.planner
    }

    /// What was published, by dataplane.
    pub fn published(&self) -> &BTreeMap<String, Arc<Policy>> {
        &self.published
    }

    /// Takes an event, and keeps what is to be kept of it before it returns.
    ///
    /// # Errors
    /// [`Fault`], and then nothing has changed.
    pub fn tell(&mut self, now_ns: u64, event: Event) -> Result<(), Fault> {
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
            self.keep(|change| match settings.clone() {
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
        self.handle(now_ns, event)?;
        if was_left_out {
            self.keep_generations();
        }
        if let Some(name) = heard {
            self.keep_served(name);
        }
        Ok(())
    }

    /// Takes what an operator wants of a model's generations, and keeps it. Returns what is known of the model then.
    ///
    /// # Errors
    /// [`Fault`], and then nothing has changed.
    pub fn wish(
        &mut self,
        now_ns: u64,
        model: String,
        request: &GenerationRequest,
    ) -> Result<ModelView, Fault> {
        let GenerationRequest { wish, without } = request;
        let wanted = self.planner.wish(now_ns, &model, *wish, without)?;
        self.planner.check_generations(&model, wanted.as_ref())?;
        // So that the next start knows who may serve something else.
        self.keep_policies(now_ns);
        self.keep(|change| match wanted.clone() {
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
        self.handle(now_ns, Event::Generations { model, wanted })?;
        Ok(self.planner.model(now_ns, &of))
    }

    /// Has decided what is to be decided each second. Returns whether policies are others than before.
    pub fn turn(&mut self, now_ns: u64) -> bool {
        self.overtake(now_ns);
        self.look(now_ns);
        // A turn is refused by nobody.
        self.handle(now_ns, Event::Turn).expect("turns are taken");
        let policies = self.planner.names().filter_map(|name| {
            let policy = self.planner.policy(name)?;
            Some((name.to_owned(), Arc::clone(policy)))
        });
        let policies: BTreeMap<String, Arc<Policy>> = policies.collect();
        let before = self.published.iter().map(|(name, of)| (name, of.order));
        let changed = !before.eq(policies.iter().map(|(name, of)| (name, of.order)));
        self.published = policies;
        if now_ns.saturating_sub(self.kept.0) >= KEEP_EVERY_NS {
            self.keep_policies(now_ns);
        }
        changed
    }

    /// Keeps what is not kept yet: this is the end.
    pub fn end(&mut self, now_ns: u64) {
        self.keep_policies(now_ns);
        if let Some(recording) = &mut self.recording {
            recording.flush();
        }
    }

    /// Why the state can't be kept at present, for others to see.
    pub fn unkept(&self) -> Arc<Unkept> {
        Arc::clone(&self.unkept)
    }

    /// Sees whether the state is still where it was, and, where it could not be kept, whether it can be now.
    fn look(&mut self, now_ns: u64) {
        let there = self.state.look();
        if there.is_err() || self.is_away {
            self.unkept.note(there.as_ref().err());
        }
        self.is_away = there.is_err();
        let is_due = now_ns.saturating_sub(self.tried_ns) >= KEEP_EVERY_NS;
        if is_due && !self.is_away && self.unkept.why().is_some() {
            self.tried_ns = now_ns;
            let identity = self.identity.clone();
            // What came of it is noted.
            let _kept = self.keep(|change| change.put("", &identity));
        }
    }

    fn keep(&mut self, what: impl FnOnce(&mut Change)) -> Result<(), StateError> {
        self.change(changed(what))
    }

    fn change(&mut self, change: Change) -> Result<(), StateError> {
        let outcome = self.state.change(change);
        self.unkept.note(outcome.as_ref().err());
        outcome
    }

    fn handle(&mut self, at_ns: u64, event: Event) -> Result<(), Refused> {
        if let Some(recording) = &mut self.recording {
            recording.write(&Recorded {
                at_ns,
                event: event.clone(),
            });
        }
        self.planner.handle(at_ns, event)
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
        match self.keep(|change| change.put(&name, &served)) {
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
        if let Err(error) = self.change(change) {
            tracing::error!(
                "it can't be kept that a dataplane is heard of again, and is not left out any more: {error}"
            );
        }
    }

    /// Begins a later epoch where dataplanes follow a control plane that this one takes the place of: which it does where it was told to,
    /// and where it is the same one, with an older copy of its state.
    fn overtake(&mut self, now_ns: u64) {
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
        if let Err(error) = self.keep(|change| change.put("", &identity)) {
            tracing::error!(
                "dataplanes that follow another control plane can't be taken over: {error}"
            );
            return;
        }
        self.identity = identity;
        self.handle(now_ns, Event::Epoch(epoch))
            .expect("a later epoch");
        tracing::warn!(
            "dataplanes that followed another control plane are taken over, in epoch {epoch}"
        );
    }

    /// Keeps the policies that are not kept yet, and forgets what is kept of dataplanes that the planner has forgotten.
    fn keep_policies(&mut self, now_ns: u64) {
        self.kept.0 = now_ns;
        let mut change = Change::new();
        let mut orders = Vec::new();
        let names = self.kept.1.keys().chain(self.served.keys());
        let forgotten = names.filter(|name| !self.planner.knows(name));
        let forgotten: BTreeSet<String> = forgotten.cloned().collect();
        for name in &forgotten {
            change.remove::<Told>(name);
            change.remove::<Served>(name);
        }
        for (name, policy) in &self.published {
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
        match self.change(change) {
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
    /// Begins a file of so many bytes at most.
    ///
    /// # Errors
    /// Where there can be none.
    pub fn begin(path: &Path, bytes: u64) -> anyhow::Result<Recording> {
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
