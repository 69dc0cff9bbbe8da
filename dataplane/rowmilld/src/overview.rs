//! What the service knows about itself, and the pages that show it: `/healthz`, `/metrics`, `/status`.

use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use rowmill_arena::Backing;
use rowmill_table::TableInfo;
use serde_json::{Value, json};

use crate::cache_view::CacheView;
use crate::clock::Clock;
use crate::config::Placement;
use crate::control::ControlView;
use crate::deltas::Deltas;
use crate::figures::{COUNTERS, Figures};
use crate::generations::{Generations, Held, View};
use crate::metrics::{Metrics, escape};
use crate::places::Places;
use crate::plan::{Choice, Plan};
use crate::remote::{Export, Remotes};
use crate::warm::WarmView;
use crate::worker::SLEEP_MAX;

/// A worker that has not made a step for so long is stuck: ten times its longest sleep.
const STUCK_NS: u64 = 10 * SLEEP_MAX.as_nanos() as u64;

/// Where the service stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Tables are being loaded.
    Starting,
    /// Clients are served.
    Serving,
    /// Requests in progress are finished, new ones refused.
    Draining,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        ["starting", "serving", "draining"][self as usize]
    }
}

/// A connected client, as its port describes it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Client {
    /// The connection's number.
    pub id: u32,
    /// The client's name.
    pub client: String,
    /// Its process, by the kernel's word, where it is on this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Its address, where it is on another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Regions it has registered.
    pub regions: u32,
    /// Their bytes.
    pub region_bytes: u64,
}

/// Who has come to the endpoint.
#[derive(Clone, Debug, Default)]
pub struct Visitors {
    /// The connected clients.
    pub clients: Vec<Client>,
    /// Clients that were accepted since the start.
    pub accepted: u64,
    /// Control calls that were refused.
    pub refused: u64,
    /// Clients that were cut off because they broke the protocol.
    pub violations: u64,
    /// What the port holds, by name: what it has taken for clients is given back when they go.
    pub held: Vec<(&'static str, u64)>,
    /// What of the port is broken for good.
    pub failure: Option<String>,
}

/// Tells who has come.
pub type Clients = Box<dyn Fn() -> Visitors + Send + Sync>;

/// A worker as others see it.
#[derive(Clone, Debug)]
pub struct Seat {
    /// The CPU it is pinned to.
    pub cpu: Option<usize>,
    /// What it publishes.
    pub figures: Arc<Figures>,
}

/// What the service knows about itself. No worker touches it.
pub struct Overview {
    clock: Clock,
    endpoint: String,
    model: String,
    /// Of the generation that is there at the start, as long as none is in memory.
    generation: u64,
    described: Vec<TableInfo>,
    seats: Vec<Seat>,
    state: AtomicU8,
    choices: Mutex<Vec<Choice>>,
    view: OnceLock<Arc<View>>,
    /// What applies deltas, where they are taken.
    deltas: OnceLock<Arc<Deltas>>,
    /// What changes generations, where they may be changed.
    generations: OnceLock<Arc<Generations>>,
    clients: OnceLock<Clients>,
    cache: OnceLock<Arc<CacheView>>,
    warm: OnceLock<Arc<WarmView>>,
    /// What changes tables, where they may be changed and some are listed.
    places: OnceLock<Arc<Places>>,
    /// Whether visitors may have it change some.
    allow_changes: bool,
    control: OnceLock<Arc<ControlView>>,
    export: OnceLock<Arc<Export>>,
    remote: OnceLock<Arc<Remotes>>,
}

/// A page: status code, content type, body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The HTTP status.
    pub code: u16,
    /// The content's type.
    pub kind: &'static str,
    /// The content.
    pub body: String,
}

fn rows_bytes(tables: &[TableInfo]) -> u64 {
    tables.iter().map(TableInfo::row_region_bytes).sum()
}

impl Overview {
    /// The overview of a service that is starting.
    pub fn new(model: String, plan: &Plan, clock: Clock, allow_changes: bool) -> Overview {
        let seat = |&cpu| Seat {
            cpu,
            figures: Arc::default(),
        };
        Overview {
            clock,
            endpoint: plan.endpoint.clone(),
            model,
            generation: plan.generation.number(),
            described: plan.generation.tables().to_vec(),
            seats: plan.seats.iter().map(seat).collect(),
            state: AtomicU8::new(State::Starting as u8),
            choices: Mutex::new(plan.choices.clone()),
            view: OnceLock::new(),
            deltas: OnceLock::new(),
            generations: OnceLock::new(),
            clients: OnceLock::new(),
            cache: OnceLock::new(),
            warm: OnceLock::new(),
            places: OnceLock::new(),
            allow_changes,
            control: OnceLock::new(),
            export: OnceLock::new(),
            remote: OnceLock::new(),
        }
    }

    /// The workers' clock, whose zero is the service's start.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The workers.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// Where the service stands.
    pub fn state(&self) -> State {
        match self.state.load(Relaxed) {
            0 => State::Starting,
            1 => State::Serving,
            _ => State::Draining,
        }
    }

    /// The service stands elsewhere now.
    pub fn set_state(&self, state: State) {
        self.state.store(state as u8, Relaxed);
    }

    /// Notes and logs a choice that was made since the plan, in the place of an earlier one of the same thing.
    pub fn choose(&self, choice: Choice) {
        choice.log();
        let mut choices = self.choices.lock().expect("a panic ends the process");
        match choices.iter_mut().find(|other| other.what == choice.what) {
            Some(earlier) => *earlier = choice,
            None => choices.push(choice),
        }
    }

    /// A generation is in memory, and others may come.
    pub fn set_view(&self, view: Arc<View>) {
        self.view.get_or_init(|| view);
    }

    /// Generations are changed by it.
    pub fn set_generations(&self, generations: Arc<Generations>) {
        self.generations.get_or_init(|| generations);
    }

    /// Deltas are taken.
    pub fn set_deltas(&self, deltas: Arc<Deltas>) {
        self.deltas.get_or_init(|| deltas);
    }

    /// What applies deltas, if they are taken.
    pub(crate) fn deltas(&self) -> Option<&Arc<Deltas>> {
        self.deltas.get()
    }

    /// What changes generations, if they may be changed.
    pub(crate) fn generations(&self) -> Option<&Arc<Generations>> {
        self.generations.get()
    }

    /// The generation that is served, once it is in memory.
    fn newest(&self) -> Option<Arc<Held>> {
        Some(self.view.get()?.newest())
    }

    fn number(&self) -> u64 {
        self.newest().map_or(self.generation, |held| held.number)
    }

    /// The tables of the generation that is served, or is to be.
    fn described(&self) -> Vec<TableInfo> {
        let held = self.newest();
        held.map_or_else(|| self.described.clone(), |held| held.tables.clone())
    }

    /// Each generation that is held, the newest first, with the requests in progress on it; and whether it can be gone back to the other.
    fn held(&self) -> (Vec<(Arc<Held>, u64)>, bool) {
        let Some(view) = self.view.get() else {
            return (Vec::new(), false);
        };
        let (held, can_return) = view.held();
        let on = |side| {
            self.seats
                .iter()
                .map(|seat| seat.figures.in_progress_on(side))
                .sum()
        };
        let held = held.into_iter().map(|(side, held)| (held, on(side)));
        (held.collect(), can_return)
    }

    fn generations_status(&self) -> Value {
        let (held, can_return) = self.held();
        let held = held.iter().enumerate().map(|(at, (held, in_progress))| {
            json!({
                "generation": held.number,
                "state": match at {
                    0 => "newest",
                    _ if can_return => "before",
                    _ => "held",
                },
                "directory": held.directory,
                "tables": held.tables.len(),
                "rows_bytes": rows_bytes(&held.tables),
                "delta": held.resident.delta(),
                "in_progress": in_progress,
            })
        });
        held.collect()
    }

    /// Tables are cached.
    pub fn set_cache(&self, cache: Arc<CacheView>) {
        self.cache.get_or_init(|| cache);
    }

    /// A list of warm rows is kept.
    pub fn set_warm(&self, warm: Arc<WarmView>) {
        self.warm.get_or_init(|| warm);
    }

    /// Tables are changed by it.
    pub fn set_places(&self, places: Arc<Places>) {
        self.places.get_or_init(|| places);
    }

    /// Rows are read from another dataplane, too. Only once.
    pub fn set_remote(&self, remote: Arc<Remotes>) {
        assert!(self.remote.set(remote).is_ok(), "set once");
    }

    /// Memory is offered to other dataplanes. Only once.
    pub fn set_export(&self, export: Arc<Export>) {
        assert!(self.export.set(export).is_ok(), "set once");
    }

    /// How it stands with the control plane, if there is one to listen to.
    pub(crate) fn control(&self) -> Option<&Arc<ControlView>> {
        self.control.get()
    }

    /// There is a control plane to listen to.
    pub fn set_control(&self, control: Arc<ControlView>) {
        self.control.get_or_init(|| control);
    }

    /// Whether visitors may have tables changed.
    pub(crate) fn allows_changes(&self) -> bool {
        self.allow_changes
    }

    /// What changes tables, if some may be changed.
    pub(crate) fn places(&self) -> Option<&Arc<Places>> {
        self.places.get()
    }

    /// Clients can connect.
    pub fn set_clients(&self, clients: Clients) {
        self.clients.get_or_init(|| clients);
    }

    /// The page at `path`.
    pub fn page(&self, path: &str) -> Page {
        let text = |code, body: String| Page {
            code,
            kind: "text/plain; charset=utf-8",
            body,
        };
        match path.split('?').next().unwrap_or_default() {
            "/healthz" => match self.health() {
                Ok(()) => text(200, "ok\n".into()),
                Err(why) => text(503, why + "\n"),
            },
            "/metrics" => Page {
                code: 200,
                kind: "text/plain; version=0.0.4; charset=utf-8",
                body: self.metrics(),
            },
            "/status" => Page {
                code: 200,
                kind: "application/json",
                body: format!("{:#}\n", self.status()),
            },
            _ => text(404, "there are /healthz, /metrics and /status\n".into()),
        }
    }

    fn health(&self) -> Result<(), String> {
        if self.state() != State::Serving {
            return Err(self.state().name().into());
        }
        let now_ns = self.clock.now_ns();
        let stuck = |seat: &Seat| now_ns.saturating_sub(seat.figures.stepped_ns()) > STUCK_NS;
        if let Some(worker) = self.seats.iter().position(stuck) {
            return Err(format!("worker {worker} is stuck"));
        }
        self.visitors().failure.map_or(Ok(()), Err)
    }

    fn uptime_s(&self) -> u64 {
        self.clock.now_ns() / 1_000_000_000
    }

    fn visitors(&self) -> Visitors {
        self.clients
            .get()
            .map_or_else(Visitors::default, |clients| clients())
    }

    fn status(&self) -> Value {
        let worker = |(index, seat): (usize, &Seat)| {
            let figures = &seat.figures;
            let mut worker = json!({
                "index": index,
                "cpu": seat.cpu,
                "in_progress": figures.in_progress(),
                "micro_batch_bytes": figures.micro_batch_bytes(),
                "sleeping": figures.is_sleeping(),
                "sleeps": figures.sleeps(),
                "doorbells": figures.doorbells(),
            });
            for (counter, value) in COUNTERS.iter().zip(figures.counters()) {
                worker[counter.name] = value.into();
            }
            worker
        };
        let visitors = self.visitors();
        let held: serde_json::Map<String, Value> = visitors
            .held
            .iter()
            .map(|&(name, count)| (name.to_owned(), count.into()))
            .collect();
        let newest = self.newest();
        let resident = newest.as_ref().map(|held| &held.resident);
        let described = self.described();
        let table = |table: &TableInfo| {
            json!({
                "name": table.name,
                "rows": table.rows,
                "dim": table.dim,
                "format": table.format.to_string(),
                "kind": table.kind.to_string(),
                "bytes": table.resident_bytes(),
                "available": resident.is_some(),
                "placement": self.placement(&table.name),
            })
        };
        let mut status = json!({
            "program": "rowmilld",
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "uptime_s": self.uptime_s(),
            "model": self.model,
            "generation": self.number(),
            "generations": self.generations_status(),
            "state": self.state().name(),
            "choices": *self.choices.lock().expect("a panic ends the process"),
            "endpoints": [self.endpoint],
            "workers": self.seats.iter().enumerate().map(worker).collect::<Vec<_>>(),
            "connections": visitors.clients,
            "held": held,
            "log_lines_dropped": crate::log::dropped(),
            "tables": described.iter().map(table).collect::<Vec<_>>(),
            "cache": self.cache.get().map_or_else(Vec::new, |cache| cache.status()),
            "files": self.cache.get().map_or_else(Vec::new, |cache| cache.files_status()),
            "tiers": self.cache.get().map_or_else(Vec::new, |cache| cache.tiers_status()),
            "memory": {
                "arena_bytes": resident.map_or(0, |tables| tables.arena_bytes() as u64)
                    + self.cache.get().map_or(0, |cache| cache.resident_bytes()),
                "shares_bytes": self.cache.get().map_or(0, |cache| cache.shares_bytes()),
                "rows_bytes": rows_bytes(&described),
                "backing": self.backing().map_or("not loaded yet".into(), |backing| backing.to_string()),
            },
        });
        if let (Some(warm), Some(cache)) = (self.warm.get(), self.cache.get()) {
            status["warm"] = warm.status(cache);
        }
        if let Some(generations) = self.generations() {
            status["generation_changes"] = generations.status();
        }
        if let Some(deltas) = self.deltas() {
            status["deltas"] = deltas.status();
            status["delta_changes"] = deltas.changes();
        }
        if let Some(places) = self.places() {
            status["changes"] = places.status();
        }
        if let Some(control) = self.control.get() {
            status["control"] = control.status();
        }
        if let Some(remote) = self.remote.get() {
            status["remote"] = remote.status();
        }
        if let Some(export) = self.export.get() {
            (status["exports"], status["readers"]) = export.status();
        }
        status
    }

    /// What the largest part of the rows in memory lies on: the arena of tables that are not listed, a listed one that is resident, or the share of a
    /// cached one.
    pub(crate) fn backing(&self) -> Option<Backing> {
        let (held, cache) = (self.newest()?, self.cache.get());
        let tables = &held.resident;
        let arena = (tables.arena_bytes() as u64, *tables.backing());
        let share = cache.and_then(|cache| cache.largest_share());
        let resident = cache.and_then(|cache| cache.largest_resident());
        let parts = [share, resident].into_iter().flatten();
        let largest = parts.chain([arena]).max_by_key(|(bytes, _)| *bytes);
        largest.map(|(_, backing)| backing)
    }

    /// Where a table's rows are.
    fn placement(&self, table: &str) -> &'static str {
        match self.cache.get().and_then(|cache| cache.placement(table)) {
            Some(Placement::Cached) => "cached",
            Some(Placement::Resident) | None => "resident",
        }
    }

    fn metrics(&self) -> String {
        let mut out = Metrics::new();
        out.family("rowmill_info", "gauge", "What runs; always 1.");
        let labels = format!(
            "version=\"{}\",model=\"{}\",generation=\"{}\"",
            env!("CARGO_PKG_VERSION"),
            escape(&self.model),
            self.number()
        );
        out.sample("rowmill_info", &labels, 1);
        out.family(
            "rowmill_state",
            "gauge",
            "0 starting, 1 serving, 2 draining.",
        );
        out.sample("rowmill_state", "", self.state() as u64);
        out.family(
            "rowmill_uptime_seconds",
            "gauge",
            "Seconds since the start.",
        );
        out.sample("rowmill_uptime_seconds", "", self.uptime_s());
        out.family("rowmill_rows_bytes", "gauge", "Bytes of the rows served.");
        out.sample("rowmill_rows_bytes", "", rows_bytes(&self.described()));
        self.generation_metrics(&mut out);
        let visitors = self.visitors();
        let clients = visitors.clients;
        for (name, help, count) in [
            (
                "rowmill_clients_accepted_total",
                "Clients accepted.",
                visitors.accepted,
            ),
            (
                "rowmill_control_refused_total",
                "Control calls refused.",
                visitors.refused,
            ),
            (
                "rowmill_clients_cut_off_total",
                "Clients cut off for breaking the protocol.",
                visitors.violations,
            ),
            (
                "rowmill_log_lines_dropped_total",
                "Lines of the log that nobody took.",
                crate::log::dropped(),
            ),
        ] {
            out.family(name, "counter", help);
            out.sample(name, "", count);
        }
        if !visitors.held.is_empty() {
            let help = "What the port holds, for clients and for itself.";
            out.family("rowmill_port_held", "gauge", help);
            for (name, count) in &visitors.held {
                out.sample("rowmill_port_held", &format!("what=\"{name}\""), *count);
            }
        }
        out.family("rowmill_connections", "gauge", "Connected clients.");
        out.sample("rowmill_connections", "", clients.len() as u64);
        out.family(
            "rowmill_region_bytes",
            "gauge",
            "Bytes of the regions that clients registered.",
        );
        out.sample(
            "rowmill_region_bytes",
            "",
            clients.iter().map(|c| c.region_bytes).sum(),
        );
        self.worker_metrics(&mut out);
        if let Some(cache) = self.cache.get() {
            cache.metrics(&mut out);
            if let Some(warm) = self.warm.get() {
                warm.metrics(cache, &mut out);
            }
        }
        if let Some(deltas) = self.deltas() {
            deltas.metrics(&mut out);
        }
        if let Some(control) = self.control.get() {
            control.metrics(&mut out);
        }
        if let Some(remote) = self.remote.get() {
            remote.metrics(&mut out);
        }
        if let Some(export) = self.export.get() {
            export.metrics(&mut out);
        }
        out.text()
    }

    fn generation_metrics(&self, out: &mut Metrics) {
        let (held, _) = self.held();
        let newest = self.number();
        type Of = fn(&Held, u64, bool) -> u64;
        let families: [(&str, &str, Of); 3] = [
            (
                "rowmill_generation_newest",
                "Whether a generation that is held is the newest.",
                |_, _, is_newest| is_newest.into(),
            ),
            (
                "rowmill_generation_arena_bytes",
                "Bytes of memory of a generation that is held.",
                |held, _, _| held.resident.arena_bytes() as u64,
            ),
            (
                "rowmill_generation_in_progress",
                "Requests in progress on a generation that is held.",
                |_, in_progress, _| in_progress,
            ),
        ];
        for (name, help, of) in families {
            out.family(name, "gauge", help);
            for (held, in_progress) in &held {
                let labels = format!("generation=\"{}\"", held.number);
                out.sample(name, &labels, of(held, *in_progress, held.number == newest));
            }
        }
    }

    fn worker_metrics(&self, out: &mut Metrics) {
        for (i, counter) in COUNTERS.iter().enumerate() {
            let name = format!("rowmill_{}_total", counter.name);
            out.workers(&name, "counter", counter.help, &self.seats, |f| {
                f.counters()[i]
            });
        }
        out.workers(
            "rowmill_sleeps_total",
            "counter",
            "Times the worker went to sleep.",
            &self.seats,
            Figures::sleeps,
        );
        out.workers(
            "rowmill_doorbells_total",
            "counter",
            "Lists of work requests that the worker gave to an RDMA device.",
            &self.seats,
            Figures::doorbells,
        );
        let help = "Requests in progress.";
        out.workers(
            "rowmill_in_progress",
            "gauge",
            help,
            &self.seats,
            Figures::in_progress,
        );
        let help = "Bytes of the next micro-batch.";
        out.workers(
            "rowmill_micro_batch_bytes",
            "gauge",
            help,
            &self.seats,
            Figures::micro_batch_bytes,
        );
        out.times(&self.seats);
    }
}
