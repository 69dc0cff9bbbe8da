//! What dataplanes are to do, from what they tell: which rows are sampled, how the arena is divided, what is pinned.
//!
//! Events come in with the time ([`Planner::handle`]), policies are taken out ([`Planner::policy`]). Decisions are made once a second
//! ([`Event::Turn`]): a dataplane that serves several cached tables has its arena divided anew where that is worth it (`shares.rs`). A
//! dataplane of which nothing is heard keeps what it has: that nothing is known is no reason to take something away.
//!
//! A table that several dataplanes serve is sampled by one of them: what two caches are asked for, taken for one stream, is what neither
//! is asked for.

mod claims;
mod dataplane;
mod divide;
mod event;
mod explain;
mod frequent;
mod generations;
mod sampled;
mod settings;
mod shares;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use rowmill_link::{Order, Policy, Report, Samples, TablePolicy};

pub use event::{Event, Recorded};
pub use explain::{
    DataplaneView, PinsView, RowView, SettingsView, ShareMove, ShareView, TableView, Tried,
};
pub use generations::{
    GenerationRequest, GenerationWish, HoldingView, ModelGenerations, ModelView,
};
pub use settings::{Settings, SettingsError};

use dataplane::{Dataplane, Holding};
use divide::divide_anew;
use table::Table;

/// How often [`Event::Turn`] is to come.
pub const TURN_NS: u64 = 1_000_000_000;
/// One that has not reported for so long makes room for another one.
const GONE_NS: u64 = 3600 * TURN_NS;
/// One that has not reported for so long is forgotten: until then what it may serve is reckoned with.
const FORGOTTEN_NS: u64 = 24 * GONE_NS;

/// Rows that a policy pins, of all its tables together: 1.1 MB of JSON, of the 16 MiB that a dataplane reads.
const PINNED_ALL_MAX: usize = 100_000;
/// Tables that have settings, at most: four times as many as are modelled by default.
const SETTINGS_MAX: usize = 16_384;
/// A later epoch than this can't be taken over: 2^32 starts have to come after it.
const OVERTAKEN_MAX: u64 = claims::ORDER_MAX - (1 << 32);

/// What bounds a planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Samples a second that are asked for, about, of all dataplanes together. Each of them, and each table, has some in any case, so that
    /// many have more.
    pub samples_per_s: f64,
    /// Dataplanes that are listened to at a time.
    pub dataplanes_max: usize,
    /// Tables that are modelled: each takes up to 1 MiB.
    pub tables_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            samples_per_s: 200_000.0,
            dataplanes_max: 256,
            tables_max: 4096,
        }
    }
}

/// Why something that a dataplane told is not taken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// No name that it could have.
    #[error("`{0}` is no name of a dataplane: 1 to 64 letters, digits, `.`, `_` and `-`")]
    Name(String),
    /// There are others enough.
    #[error("there are {0} dataplanes already: raise limits.dataplanes, or stop some")]
    Dataplanes(usize),
    /// Too many tables.
    #[error("a report of {0} tables: it has 4096 at most")]
    Tables(usize),
    /// A table that it tells of twice.
    #[error("table `{0}` is told of twice")]
    Twice(String),
    /// A cached row that takes no memory.
    #[error("rows of cached table `{0}` are said to take 0 bytes")]
    NoBytes(String),
    /// A number that can't be.
    #[error("{what} is {number}: it is from {least} to {most}")]
    Bounds {
        /// What it is of.
        what: &'static str,
        /// See there.
        number: u64,
        /// The smallest that is taken.
        least: u64,
        /// The largest.
        most: u64,
    },
    /// A name that is too long.
    #[error("{what} has {len} bytes: it has 255 at most")]
    Long {
        /// What it is of.
        what: &'static str,
        /// Its bytes.
        len: usize,
    },
    /// No instance.
    #[error("an instance is 32 hexadecimal digits")]
    Instance,
    /// Samples of one that has not reported since it started.
    #[error("this dataplane has not reported since it started: send a report first")]
    Unheard,
    /// Two that have one name.
    #[error(
        "another dataplane, or another start of this one, has reported under this name within 5 s: give each a name of its own, or wait"
    )]
    Taken,
    /// A wish that can't be fulfilled.
    #[error("{0}")]
    Generations(String),
    /// There are settings enough.
    #[error(
        "{0} tables have settings already: clear some that are not needed any more (`rowmill policy show` lists all)"
    )]
    SettingsMax(usize),
    /// See there.
    #[error(transparent)]
    Settings(#[from] SettingsError),
}

/// A table of a model.
type Key = (String, String);

/// What is known, and what was decided.
#[derive(Debug)]
pub struct Planner {
    control: String,
    order: Order,
    limits: Limits,
    dataplanes: BTreeMap<String, Dataplane>,
    tables: BTreeMap<Key, Table>,
    settings: BTreeMap<Key, Settings>,
    /// By model.
    generations: BTreeMap<String, ModelGenerations>,
    /// What is known of dataplanes that are not there: of as many as may be there, those that were told something last.
    remembered: BTreeMap<String, Remembered>,
    turned_ns: Option<u64>,
}

/// What is known of a dataplane that is not there.
#[derive(Debug)]
struct Remembered {
    /// What it served, if that is known.
    model: Option<String>,
    /// The generation of it, or the one that it was told to serve.
    newest: Option<u64>,
    /// What it was told last, if it was told anything.
    policy: Option<Policy>,
    /// When it was heard of last, or first remembered.
    since_ns: u64,
}

impl Remembered {
    fn since(since_ns: u64) -> Remembered {
        Remembered {
            model: None,
            newest: None,
            policy: None,
            since_ns,
        }
    }
}

impl Planner {
    /// One that knows nothing. `control` and `epoch` are those of the policies that it will publish.
    pub fn new(control: String, epoch: u64, limits: Limits) -> Planner {
        Planner {
            control,
            order: Order { epoch, version: 0 },
            limits,
            dataplanes: BTreeMap::new(),
            tables: BTreeMap::new(),
            settings: BTreeMap::new(),
            generations: BTreeMap::new(),
            remembered: BTreeMap::new(),
            turned_ns: None,
        }
    }

    /// Takes an event. Times don't fall.
    ///
    /// # Errors
    /// [`Refused`], and then nothing has changed.
    pub fn handle(&mut self, now_ns: u64, event: Event) -> Result<(), Refused> {
        match event {
            Event::Report { dataplane, report } => self.report(now_ns, dataplane, report),
            Event::Samples { dataplane, samples } => self.samples(now_ns, &dataplane, &samples),
            Event::Settings {
                model,
                table,
                settings: Some(settings),
            } => {
                self.check(&model, &table, &settings)?;
                self.settings.insert((model, table), settings);
                Ok(())
            }
            Event::Settings { model, table, .. } => {
                self.settings.remove(&(model, table));
                Ok(())
            }
            Event::Generations { model, wanted } => self.want(model, wanted),
            Event::Remembered {
                dataplane,
                model,
                policy,
            } => {
                self.remember(now_ns, dataplane, |of| {
                    of.model = of.model.take().or(model);
                    let told = policy.generations.as_ref().map(|told| told.newest);
                    of.newest = of.newest.or(told);
                    of.policy = Some(policy);
                });
                Ok(())
            }
            Event::Served {
                dataplane,
                model,
                newest,
            } => {
                self.remember(now_ns, dataplane, |of| {
                    of.model = Some(model);
                    of.newest = newest;
                });
                Ok(())
            }
            Event::Epoch(epoch) => self.begin_epoch(epoch),
            Event::Turn => {
                self.turn(now_ns);
                Ok(())
            }
        }
    }

    /// Whether settings can be those of a table.
    ///
    /// # Errors
    /// [`Refused`] where they can't, or there are others enough.
    pub fn check(&self, model: &str, table: &str, settings: &Settings) -> Result<(), Refused> {
        settings.check()?;
        claims::is_short("the model's name", model)?;
        claims::is_short("the table's name", table)?;
        let key = (model.to_owned(), table.to_owned());
        if self.settings.len() >= SETTINGS_MAX && !self.settings.contains_key(&key) {
            return Err(Refused::SettingsMax(SETTINGS_MAX));
        }
        Ok(())
    }

    /// What a dataplane is to do, if it is known what.
    pub fn policy(&self, dataplane: &str) -> Option<&Arc<Policy>> {
        self.dataplanes.get(dataplane)?.policy.as_ref()
    }

    /// The epoch of what it publishes.
    pub fn epoch(&self) -> u64 {
        self.order.epoch
    }

    /// Whether it is known what a dataplane is to do or was told once: it is forgotten when nothing was heard of it for a day, or more
    /// of them are gone than may be there.
    pub fn knows(&self, dataplane: &str) -> bool {
        self.dataplanes.contains_key(dataplane) || self.remembered.contains_key(dataplane)
    }

    /// The model that a dataplane serves, and the generation of it where none is named, as it was heard last.
    pub fn served_by(&self, dataplane: &str) -> Option<(&str, Option<u64>)> {
        let report = &self.dataplanes.get(dataplane)?.report;
        Some((&report.model, report.generations.first().copied()))
    }

    /// Names of the dataplanes that are known.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.dataplanes.keys().map(String::as_str)
    }

    /// The latest epoch in which dataplanes follow something else than what this planner publishes, if that is not before its own: they
    /// don't follow it. And whether that was published under the same name: by one that knew more than the copy of its state that
    /// this one was begun with. An epoch that would leave no room for as many later ones is not begun after.
    pub fn overtaken_by(&self) -> Option<(u64, bool)> {
        let applied = self
            .dataplanes
            .values()
            .filter_map(|of| of.report.policy.as_ref());
        let orders = applied.map(|of| (of.order, of.control == self.control));
        let own = self.order;
        let others = orders.filter(|&(order, same)| {
            order.epoch > own.epoch || order.epoch == own.epoch && (!same || order > own)
        });
        let epochs = others.map(|(order, same)| (order.epoch, same));
        epochs.filter(|&(epoch, _)| epoch < OVERTAKEN_MAX).max()
    }

    fn remember(&mut self, since_ns: u64, dataplane: String, what: impl FnOnce(&mut Remembered)) {
        let of = self.remembered.entry(dataplane);
        what(of.or_insert_with(|| Remembered::since(since_ns)));
        while self.remembered.len() > self.limits.dataplanes_max {
            let order = |of: &Remembered| of.policy.as_ref().map(|policy| policy.order);
            let oldest = self.remembered.iter().min_by_key(|(_, of)| order(of));
            let oldest = oldest
                .map(|(name, _)| name.clone())
                .expect("some are there");
            self.remembered.remove(&oldest);
        }
    }

    /// Publishes everything anew, in a later epoch.
    fn begin_epoch(&mut self, epoch: u64) -> Result<(), Refused> {
        let least = self.order.epoch + 1;
        claims::is_within("the epoch", epoch, least, claims::ORDER_MAX)?;
        self.order = Order { epoch, version: 0 };
        for dataplane in self.dataplanes.values_mut() {
            let Some(policy) = &mut dataplane.policy else {
                continue;
            };
            self.order.version += 1;
            dataplane.generations_order = self.order;
            let (tables, generations) = (policy.tables.clone(), policy.generations.clone());
            *policy = Arc::new(Policy {
                control: self.control.clone(),
                order: self.order,
                tables,
                generations,
            });
        }
        Ok(())
    }

    /// Settings of tables, by model and table.
    pub fn settings(&self) -> impl Iterator<Item = (&str, &str, &Settings)> {
        let settings = self.settings.iter();
        settings.map(|((model, table), settings)| (&**model, &**table, settings))
    }

    fn report(&mut self, now_ns: u64, name: String, report: Report) -> Result<(), Refused> {
        if !rowmill_link::is_name(&name) {
            return Err(Refused::Name(name));
        }
        let model = report.model.clone();
        if let Some(dataplane) = self.dataplanes.get_mut(&name) {
            if dataplane.report.instance != report.instance && !dataplane.is_silent(now_ns) {
                return Err(Refused::Taken);
            }
            for table in dataplane.report(now_ns, report)? {
                if let Some(table) = self.tables.get_mut(&(model.clone(), table)) {
                    table.shifted_ns = Some(now_ns);
                    table.model.shifted();
                }
            }
            self.leave_out_no_more(&name);
            return Ok(());
        }
        if self.dataplanes.len() >= self.limits.dataplanes_max {
            let gone = |dataplane: &Dataplane| now_ns >= dataplane.heard_ns.saturating_add(GONE_NS);
            let mut gone = self
                .dataplanes
                .iter()
                .filter(|(_, dataplane)| gone(dataplane));
            let Some(gone) = gone.next().map(|(name, _)| name.clone()) else {
                return Err(Refused::Dataplanes(self.dataplanes.len()));
            };
            let (gone, had) = self.dataplanes.remove_entry(&gone).expect("it was found");
            self.remember(had.heard_ns, gone, |of| {
                of.newest = had.report.generations.first().copied();
                of.model = Some(had.report.model);
                of.policy = had.policy.map(|policy| Policy::clone(&policy));
            });
        }
        let mut dataplane = Dataplane::new(now_ns, report)?;
        let remembered = self.remembered.remove(&name);
        if let Some(policy) = remembered.and_then(|of| of.policy) {
            dataplane.go_on_from(&policy);
        }
        self.leave_out_no_more(&name);
        self.dataplanes.insert(name, dataplane);
        Ok(())
    }

    fn samples(&mut self, now_ns: u64, name: &str, samples: &Samples) -> Result<(), Refused> {
        let dataplane = self.dataplanes.get_mut(name).ok_or(Refused::Unheard)?;
        if samples.instance != dataplane.instance {
            return Err(Refused::Unheard);
        }
        if samples.number <= dataplane.body {
            // It was sent again, since the answer was lost.
            return Ok(());
        }
        dataplane.body = samples.number;
        let sampler = Some((name.to_owned(), samples.instance));
        for part in &samples.tables {
            let key = (dataplane.report.model.clone(), part.table.clone());
            if let Some(table) = self.tables.get_mut(&key).filter(|t| t.sampler == sampler) {
                table.learn(now_ns, part);
            }
        }
        Ok(())
    }

    /// Decides what is to be decided.
    fn turn(&mut self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.turned_ns.replace(now_ns).unwrap_or(now_ns));
        let lasts = |since_ns: u64| now_ns < since_ns.saturating_add(FORGOTTEN_NS);
        self.dataplanes.retain(|_, of| lasts(of.heard_ns));
        self.remembered.retain(|_, of| lasts(of.since_ns));
        self.list(now_ns);
        self.choose_samplers(now_ns);
        self.choose_rates(now_ns, passed_ns);
        for (key, table) in &mut self.tables {
            table.fade(now_ns, passed_ns);
            if self.settings.get(key).is_some_and(Settings::pins) {
                table.rank(now_ns);
            } else {
                table.ranking.clear();
            }
        }
        for dataplane in self.dataplanes.values_mut() {
            if let Some(state) = dataplane.held_up(now_ns, &self.control) {
                dataplane.state = state;
                continue;
            }
            dataplane.take_refusals(now_ns);
            divide_anew(now_ns, dataplane, &self.tables, &self.settings);
        }
        self.publish();
    }

    /// Tables that some dataplane caches that is not gone, and no others.
    fn list(&mut self, now_ns: u64) {
        let there = self.dataplanes.values();
        let there = there.filter(|of| now_ns < of.heard_ns.saturating_add(GONE_NS));
        let cached = there.flat_map(|dataplane| {
            let model = &dataplane.report.model;
            dataplane
                .tables
                .keys()
                .map(move |table| (model.clone(), table.clone()))
        });
        let cached: std::collections::BTreeSet<Key> = cached.collect();
        self.tables.retain(|key, _| cached.contains(key));
        for key in cached {
            if self.tables.len() >= self.limits.tables_max {
                break;
            }
            let seed = seed_of(&key.0, &key.1);
            self.tables.entry(key).or_insert_with(|| Table::new(seed));
        }
    }

    /// Publishes what differs from what was published.
    fn publish(&mut self) {
        for (name, dataplane) in &mut self.dataplanes {
            let mut left = PINNED_ALL_MAX;
            let tables: Vec<TablePolicy> = dataplane
                .tables
                .iter()
                .map(|(table, holding)| {
                    let key = (dataplane.report.model.clone(), table.clone());
                    let known = self.tables.get(&key);
                    let sampler = Some((name.clone(), dataplane.instance));
                    let sampled = known.filter(|known| known.sampler == sampler);
                    let settings = self.settings.get(&key);
                    let pinned =
                        known.map_or(Vec::new(), |known| pinned(known, holding, settings, left));
                    left -= pinned.len();
                    // As long as no row is known to be pinned, nothing would come at all.
                    let admission = settings.filter(|_| !pinned.is_empty());
                    let admission = admission.and_then(|settings| settings.admission);
                    TablePolicy {
                        table: table.clone(),
                        cache_bytes: holding.wanted_bytes,
                        threshold: sampled.map_or(0, |of| of.model.sampling().threshold()),
                        admission: admission.unwrap_or_default(),
                        pinned,
                    }
                })
                .collect();
            let wanted = self.generations.get(&dataplane.report.model);
            let generations = wanted.map(ModelGenerations::policy);
            let follows = dataplane.report.policy.is_some();
            let is_known = match &dataplane.policy {
                // Who follows something has to be told that this is what there is now, and by whom, even if it is nothing: else it would
                // keep to what it follows, and to a control plane that may have gone, for ever.
                None => !follows && tables.is_empty() && generations.is_none(),
                Some(present) => present.tables == tables && present.generations == generations,
            };
            if is_known {
                continue;
            }
            self.order.version += 1;
            let told = dataplane.policy.as_ref();
            if told.is_none_or(|told| told.generations != generations) {
                dataplane.generations_order = self.order;
            }
            dataplane.policy = Some(Arc::new(Policy {
                control: self.control.clone(),
                order: self.order,
                tables,
                generations,
            }));
        }
    }
}

/// Rows of a table that are pinned in a share: as many of the most frequent ones as its settings say, and `most` of them.
fn pinned(table: &Table, holding: &Holding, settings: Option<&Settings>, most: usize) -> Vec<u32> {
    let rows = settings.map_or(0, |settings| asked(settings, holding));
    // What is sampled is a claim as well.
    let there = table.ranking.iter().copied();
    let there = there.filter(|&row| u64::from(row) < holding.seen.rows);
    let mut pinned: Vec<u32> = there.take((rows as usize).min(most)).collect();
    pinned.sort_unstable();
    pinned
}

/// Rows for which there is room in the part of a share that is to be pinned.
fn asked(settings: &Settings, holding: &Holding) -> u64 {
    let part = settings.pinned_share.unwrap_or(0.0);
    let bytes = holding.wanted_bytes.unwrap_or(holding.seen.cache_bytes);
    (part * (bytes / holding.seen.slot_bytes) as f64) as u64
}

/// A seed of its own for each table of a model, the same at each start (FNV-1a).
fn seed_of(model: &str, table: &str) -> u64 {
    let bytes = model.bytes().chain([0]).chain(table.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |seed, byte| {
        (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
