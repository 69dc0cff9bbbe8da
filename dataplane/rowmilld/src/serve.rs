//! Putting a service together, running it, and taking it down.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rowmill_arena::Backing;
use rowmill_cache::store::Epochs;
use rowmill_engine::Side;
use rowmill_pooling::Kernels;
use rowmill_port::shm::socket_path;
use rowmill_table::{LoadOptions, Resident, ResidentTable};
use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_setaffinity};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::register;
use signal_hook::iterator::Signals;

use crate::admin;
use crate::cache::{Opened, Part};
use crate::clock::Clock;
use crate::config::{AdminAddress, Config};
use crate::control;
use crate::deltas::{self, Deltas, Store, Target};
use crate::files;
use crate::generations::{self, Generations, Held, View};
use crate::listed::{self, Listed};
use crate::log;
use crate::mailbox::{Mailbox, Orders};
use crate::overview::{Clients, Overview, State, Visitors};
use crate::places::{Means, Places};
use crate::plan::{Choice, Plan, bytes_text};
use crate::ports::{Lane, Port, Server};
use crate::progress;
use crate::remote::{self, Remotes};
use crate::service::Sessions;
use crate::warm;

/// How often the end of draining is looked for.
const DRAIN_LOOK: Duration = Duration::from_millis(2);

/// Looks for what would keep the plan from being served and can be found out without leaving a trace:
/// a live server or a file at the endpoint, one that keeps the file of warm rows, deltas that can't be kept or applied again, an admin address that can't be taken, a bad log filter.
///
/// # Errors
/// Those that [`log::start`] and [`serve`] would end with.
pub fn probe(config: &Config, plan: &Plan) -> anyhow::Result<()> {
    log::filter(config)?;
    refuse_taken(plan)?;
    warm::refuse_taken(config)?;
    Store::look(config, &plan.generation)?;
    if let AdminAddress::At(address) = config.admin.address {
        admin::bind(address)?;
    }
    Ok(())
}

/// Serves until a signal ends it: loads the tables, starts the workers, lets clients connect, and at
/// SIGTERM, SIGINT or SIGHUP drains.
///
/// # Errors
/// Whatever keeps the service from starting.
pub fn serve(config: &Config) -> anyhow::Result<()> {
    let started = Instant::now();
    abort_on_panic();
    let plan = Plan::make(config)?;
    let (clock, chosen_clock) = Clock::choose();
    let overview = Arc::new(Overview::new(
        config.model.name(),
        &plan,
        clock,
        config.admin.allow_changes,
    ));
    let signals = watch_signals(Arc::clone(&overview))?;
    for choice in &plan.choices {
        choice.log();
    }
    overview.choose(chosen_clock);
    refuse_taken(&plan)?;
    let claim = warm::claim(config)?;
    if let AdminAddress::At(address) = config.admin.address {
        let address = admin::serve(address, Arc::clone(&overview))?;
        tracing::info!("admin pages on http://{address}");
    }
    let mut tables = load(config, &plan)?;
    let store = Store::configured(config)?;
    if let Some(store) = &store {
        store.replay(&tables)?;
    }
    let mailboxes: Vec<Arc<Mailbox>> = plan.seats.iter().map(|_| Arc::default()).collect();
    let huge_pages = config.model.huge_pages;
    let remote = Remotes::configured(config, mailboxes.len(), overview.clock()).map(Arc::new);
    let mut lanes = Vec::new();
    if let Some(remote) = &remote {
        lanes = remote.begin(Side::A, &plan.generation)?;
        overview.set_remote(Arc::clone(remote));
    }
    let Opened {
        mut parts,
        shares,
        reads,
        choices,
        files,
    } = plan
        .cache
        .open(&plan.generation, &mut tables, huge_pages, &mailboxes, lanes)?;
    choices
        .into_iter()
        .for_each(|choice| overview.choose(choice));
    let tables = Arc::new(tables);
    let cache = Arc::new(plan.cache.view(&plan.generation, &parts));
    if let Some(store) = &store {
        let view = |name: &str| cache.tables.iter().find(|view| view.name == name);
        let target = |table: &ResidentTable| {
            let (view, cached) = (view(table.name())?, |store| Target::Cached(store, u64::MAX));
            view.store().map(cached)
        };
        store.replay_to(&tables, &target)?;
        for view in &cache.tables {
            let kept = view.store();
            if let Some(bytes) = kept.and_then(|kept| view.bytes_over(&kept)) {
                overview.choose(Choice::warning(
                    &format!("deltas of table {}", view.name),
                    format!("{} of rows that changed", bytes_text(bytes)),
                    "more than its tables.delta_bytes: a delta with others is refused; write more there, or load a generation that has them",
                ));
            }
        }
    }
    let view = Arc::new(View::new(Held::new(&plan.generation, Arc::clone(&tables))));
    overview.set_view(Arc::clone(&view));
    let export = remote::export(config, &plan.generation, &tables)?;
    if let Some(export) = &export {
        overview.set_export(Arc::clone(export));
    }
    overview.set_cache(Arc::clone(&cache));
    let backing = overview.backing().expect("tables were set");
    overview.choose(describe_backing(&backing));
    let watch = files::watch(files, Arc::clone(&cache))?;
    let warm = warm::begin(config, &view, &cache, &mut parts, claim)?;
    warm.choice
        .into_iter()
        .for_each(|choice| overview.choose(choice));
    if let Some(view) = warm.view {
        overview.set_warm(view);
    }
    let samples = parts.iter().map(Part::samples).collect();
    let epochs = match &shares {
        Some(shares) => Arc::clone(shares.epochs()),
        None => {
            let (epochs, turns) = Epochs::new(plan.seats.len());
            parts = turns.into_iter().map(Part::without_tables).collect();
            epochs
        }
    };
    let mut workers = start_workers(config, &plan, &overview, &mailboxes, parts)?;
    let shares = shares.filter(|_| config.may_change());
    let workers_cpus: Vec<usize> = plan.seats.iter().copied().flatten().collect();
    let listed = shares.map(|shares| {
        Listed::new(listed::Means {
            plan: plan.cache.clone(),
            generation: plan.generation.clone(),
            tables: Arc::clone(&tables),
            shares,
            reads,
            cache: Arc::clone(&cache),
            watch,
            remote,
            deltas: store.clone(),
            mailboxes: mailboxes.clone(),
            huge_pages,
            verify: config.model.verify,
        })
    });
    let listed = listed
        .transpose()
        .context("cannot look at the files of cached tables")?;
    let means = listed.clone().map(|listed| Means {
        listed,
        workers_cpus: workers_cpus.clone(),
    });
    let told = Arc::clone(&overview);
    let places = means.map(|means| Places::start(means, move |choice| told.choose(choice)));
    let places = places
        .transpose()
        .context("cannot start the thread that moves tables")?;
    if let Some(places) = &places {
        overview.set_places(Arc::clone(places));
    }
    let sessions = Arc::new(Sessions::new(
        config.model.name(),
        tables,
        &config.limits,
        mailboxes.clone(),
    ));
    let generations = if config.may_change() {
        let means = generations::Means {
            directory: config.model.directory.clone(),
            view: Arc::clone(&view),
            export,
            sessions: Arc::clone(&sessions),
            mailboxes: mailboxes.clone(),
            listed: listed.clone(),
            model: config.model.name(),
            warm: warm.lists,
            deltas: store.clone(),
            huge_pages,
            verify: config.model.verify,
            workers_cpus: workers_cpus.clone(),
        };
        let told = Arc::clone(&overview);
        let generations = Generations::start(means, move |choice| told.choose(choice))
            .context("cannot start the thread that loads generations")?;
        overview.set_generations(Arc::clone(&generations));
        Some(generations)
    } else {
        None
    };
    if let Some(store) = store.filter(|_| config.may_change()) {
        let deltas = Deltas::start(deltas::Means {
            store,
            view: Arc::clone(&view),
            listed,
            epochs,
            workers_cpus,
        });
        overview.set_deltas(deltas.context("cannot start the thread that applies deltas")?);
    }
    if let Some(generations) = generations.filter(|_| config.control.is_on()) {
        let control = control::start(control::Means {
            control: config.control.clone(),
            model: config.model.name(),
            view,
            generations,
            tables: plan.generation.tables().to_vec(),
            cache,
            places,
            mailboxes: mailboxes.clone(),
            samples,
            deltas: overview.deltas().cloned(),
        });
        overview.set_control(control.context("cannot start the threads of the control plane")?);
    }
    let server = workers.listen(config, &plan, Arc::clone(&sessions), &mailboxes)?;
    let server = Arc::new(Mutex::new(Some(server)));
    overview.set_clients(list_clients(Arc::clone(&server)));
    overview.set_state(State::Serving);
    tracing::info!(
        "ready: serving {} on {} after {:.1} s",
        config.model.name(),
        plan.endpoint,
        started.elapsed().as_secs_f64()
    );

    let signal = signals.recv().context("the signal thread ended")?;
    overview.set_state(State::Draining);
    sessions.drain();
    tracing::info!("{signal}: draining; a second signal ends at once");
    let server = server.lock().expect("a panic ends the process").take();
    if let Some(server) = &server {
        server.stop_accepting();
    }
    drain(config, &overview, &mailboxes);
    if let Some(keeper) = warm.keeper {
        keeper.end();
    }
    // It ends the connections and waits for the workers to let go, so they still run.
    drop(server);
    workers.stop(&mailboxes);
    tracing::info!("ended");
    Ok(())
}

/// A thread that panics can't answer for its clients any more, and a client that waits for one
/// worker's part would wait for ever. So the whole process ends: the kernel closes its sockets, which
/// every client notices at once, and whoever supervises it starts another.
pub fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        tracing::error!("thread {name}: {panic}");
        if name != admin::THREAD {
            tracing::error!("ending at once, so that no client waits for a thread that is gone");
            log::flush();
            std::process::abort();
        }
    }));
}

/// Starts the thread that waits for signals. The first one, while clients are served, comes out of
/// the channel; before that there is nothing to drain, and after it nothing to wait for.
fn watch_signals(overview: Arc<Overview>) -> anyhow::Result<Receiver<&'static str>> {
    // Where a file may not grow, it would end the process. With a handler, the write fails.
    register(SIGXFSZ, Arc::default()).context("cannot handle signals")?;
    // Whoever started this with nohup wants SIGHUP to be ignored.
    let hangup = (!ignores_hangup()).then_some(SIGHUP);
    let signals = [SIGTERM, SIGINT].into_iter().chain(hangup);
    let mut signals = Signals::new(signals).context("cannot handle signals")?;
    let (sender, receiver) = channel();
    let work = move || {
        let mut ending = false;
        for signal in signals.forever() {
            let name = match signal {
                SIGINT => "SIGINT",
                SIGHUP => "SIGHUP",
                _ => "SIGTERM",
            };
            // Logging waits for nobody, and what follows waits a moment at most.
            if ending {
                tracing::warn!("{name} again: ended with requests in progress");
                log::flush();
                std::process::exit(128 + signal);
            }
            if overview.state() == State::Starting {
                tracing::info!("{name} while starting: ended");
                log::flush();
                std::process::exit(0);
            }
            ending = true;
            if sender.send(name).is_err() {
                return; // Serving has ended by itself.
            }
        }
    };
    let thread = std::thread::Builder::new().name("rowmilld-signals".into());
    thread
        .spawn(work)
        .context("cannot start the signal thread")?;
    Ok(receiver)
}

/// Whether SIGHUP was to be ignored when the process was started.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & (1 << (SIGHUP - 1)) != 0)
}

/// Pauses after which it is looked again whether an endpoint is still taken: 0.63 s in all.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MOST: Duration = Duration::from_millis(320);

/// Refuses an endpoint that another dataplane listens on, or whose place is taken, before minutes are spent on loading. (Who
/// comes second between here and listening is refused then.)
fn refuse_taken(plan: &Plan) -> anyhow::Result<()> {
    let endpoint = &plan.endpoint;
    if plan.port != Port::Shm {
        return Ok(()); // Whether another address is free only listening on it tells.
    }
    let path = socket_path(endpoint)?;
    match std::fs::symlink_metadata(&path) {
        Ok(found) if !found.file_type().is_socket() => bail!(
            "cannot listen on {endpoint}: {} exists and is no socket; remove it or use another path",
            path.display()
        ),
        _ => {}
    }
    // Who was killed listens until the system has taken back all of its memory.
    let mut pause = PAUSE;
    while is_taken(&path) {
        if pause > PAUSE_MOST {
            bail!(
                "endpoints: {endpoint} is already in use by a running dataplane; stop that one, or give this \
                 one another endpoint"
            );
        }
        thread::sleep(pause);
        pause *= 2;
    }
    Ok(())
}

fn is_taken(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        // A listening socket of another type than a byte stream answers so.
        Err(error) => error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()),
    }
}

fn load(config: &Config, plan: &Plan) -> anyhow::Result<Resident> {
    let progress = progress::logged();
    let options = LoadOptions {
        verify: config.model.verify,
    };
    let began = Instant::now();
    let (generation, huge_pages) = (&plan.generation, config.model.huge_pages);
    let keep = |table| plan.cache.keep(table);
    let tables = generation.load_parts(keep, huge_pages, &progress, options);
    let tables =
        tables.with_context(|| format!("cannot load {}", plan.generation.dir().display()))?;
    tracing::info!(
        "loaded {} in {:.1} s",
        bytes_text(tables.arena_bytes() as u64),
        began.elapsed().as_secs_f64()
    );
    Ok(tables)
}

fn describe_backing(backing: &Backing) -> Choice {
    let chosen = match backing {
        Backing::Huge1G => "reserved 1 GiB pages".into(),
        Backing::Huge2M => "reserved 2 MiB pages".into(),
        Backing::Transparent { fraction } => {
            format!("transparent 2 MiB pages for {:.0} %", fraction * 100.0)
        }
        Backing::Small => "4 KiB pages".into(),
    };
    let choice = Choice::new("pages of the rows", chosen, backing.to_string());
    Choice {
        warning: backing.huge_fraction() < 0.95,
        ..choice
    }
}

/// The workers' threads.
struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Each thread's half of the port goes here.
    ports: Vec<Sender<Lane>>,
}

/// Starts the workers' threads; returns once each is on its CPU and has all its memory.
fn start_workers(
    config: &Config,
    plan: &Plan,
    overview: &Arc<Overview>,
    mailboxes: &[Arc<Mailbox>],
    parts: Vec<Part>,
) -> anyhow::Result<Workers> {
    let (limits, idle, isa) = (config.limits.engine(), config.idle, plan.isa);
    let number = plan.generation.number();
    let (prepared, all_prepared) = channel();
    let mut workers = Workers {
        threads: Vec::new(),
        ports: Vec::new(),
    };
    let mut parts = parts.into_iter();
    for (index, seat) in overview.seats().iter().enumerate() {
        let part = parts.next().context("each worker has its part")?;
        let (port_sender, port) = channel::<Lane>();
        let (prepared, seat, mailbox) = (
            prepared.clone(),
            seat.clone(),
            Arc::clone(&mailboxes[index]),
        );
        let clock = overview.clock().clone();
        let work = move || {
            let pinned = seat.cpu.map_or(Ok(()), pin);
            let kernels = Kernels::new(isa);
            let mut engine = part.engine(limits, kernels);
            engine.prepare(Side::A, number);
            seat.figures.begin(clock.now_ns());
            if prepared.send((index, seat.cpu, pinned)).is_err() {
                return;
            }
            // Where the endpoint can't be had, no port comes and the thread ends.
            if let Ok(port) = port.recv() {
                port.work(
                    engine,
                    limits.connections,
                    mailbox,
                    seat.figures,
                    idle,
                    &clock,
                );
            }
        };
        let thread = std::thread::Builder::new().name(format!("rowmilld-{index}"));
        workers.threads.push(
            thread
                .spawn(work)
                .context("cannot start a worker's thread")?,
        );
        workers.ports.push(port_sender);
    }
    for _ in mailboxes {
        let (index, cpu, pinned) = all_prepared
            .recv()
            .context("a worker's thread ended early")?;
        if let (Some(cpu), Err(errno)) = (cpu, pinned) {
            let why =
                format!("sched_setaffinity for CPU {cpu}: {errno}; moves between CPUs cost caches");
            overview.choose(Choice::warning(
                &format!("worker {index}"),
                "not pinned",
                why,
            ));
        }
    }
    Ok(workers)
}

fn pin(cpu: usize) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

impl Workers {
    /// Lets clients connect: opens the endpoint and gives each worker its half of the port.
    fn listen(
        &mut self,
        config: &Config,
        plan: &Plan,
        sessions: Arc<Sessions>,
        mailboxes: &[Arc<Mailbox>],
    ) -> anyhow::Result<Server> {
        let lanes = u16::try_from(self.ports.len()).expect("at most MAX_WORKERS");
        let (server, lanes) = Server::listen(config, plan, lanes, sessions)?;
        for ((lane, mailbox), port) in lanes.into_iter().zip(mailboxes).zip(self.ports.drain(..)) {
            mailbox.set_waker(lane.waker());
            if port.send(lane).is_err() {
                bail!("a worker's thread ended early");
            }
        }
        Ok(server)
    }

    /// Ends the threads.
    fn stop(self, mailboxes: &[Arc<Mailbox>]) {
        for mailbox in mailboxes {
            mailbox.order(Orders::Stop);
        }
        for thread in self.threads {
            thread.join().expect("a panic ends the process");
        }
    }
}

/// Tells of a server's clients for as long as it is there.
fn list_clients(server: Arc<Mutex<Option<Server>>>) -> Clients {
    Box::new(move || {
        let server = server.lock().expect("a panic ends the process");
        server
            .as_ref()
            .map_or_else(Visitors::default, Server::visitors)
    })
}

/// Has the workers finish what is in progress, and waits for that as long as configured.
fn drain(config: &Config, overview: &Overview, mailboxes: &[Arc<Mailbox>]) {
    for mailbox in mailboxes {
        mailbox.order(Orders::Drain);
    }
    let began = Instant::now();
    let limit = Duration::from_secs(config.shutdown.drain_timeout_s.into());
    while !overview
        .seats()
        .iter()
        .all(|seat| seat.figures.is_drained())
    {
        if began.elapsed() >= limit {
            let left: u64 = overview
                .seats()
                .iter()
                .map(|seat| seat.figures.in_progress())
                .sum();
            tracing::warn!(
                "{left} requests were still in progress after {limit:?}; their clients see the end"
            );
            return;
        }
        std::thread::sleep(DRAIN_LOOK);
    }
    tracing::info!("drained after {:.3} s", began.elapsed().as_secs_f64());
}
