//! Requests that miss nothing, while another client's requests miss rows that come from a file.
//!
//! Two clients offer the same load, a part of what the second's requests that miss can be done at. The first asks for rows that are in the
//! cache. The second does, too, or a part of its rows was never asked for before: then a tenth of all rows that are asked for miss.
//! What is told is the 99th percentile of the first's requests with the misses, beside what it is without them, of rounds that take turns.
//! It counts from when they were due; from when the client came to send them, which is later where something else had its CPU; and the
//! worker's part, from receipt to end. And beside what it is where nobody misses anything and this process reads as many pages of the same
//! file: a disk's interrupts come to some CPU whoever it is that reads, and cost those who use it. Where the client shares a machine with
//! the service that is the client's, as it never is where clients are elsewhere.
//!
//! A service has CPUs of its own and so has a client; here other threads have theirs for a few milliseconds now and then, with misses as
//! without. That is as many requests as the slowest hundredth. So requests are told that nothing disturbed so, by what the kernel counts,
//! and the 99th percentile of all of them, too. What has the CPUs may also be what misses themselves need, threads of the kernel or of the
//! service: then more requests are disturbed with misses than without, and how many there were of either kind is told.
//!
//! All of it a second time with the table on a disk in memory, which interrupts nobody (see [`crate::memory_disk`]): that is no bound's
//! case, and tells how much of the first needs a device's interrupts and delays.

use std::collections::HashMap;
use std::fs::File;
use std::mem::take;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::{DirectFile, DirectReader, FileId, HugePages, PageCache, ReaderOptions};
use rowmill_client::{Batch, Ticket};
use rowmill_table::{Generation, PAGE_BYTES};

use crate::driver::{Driver, first_cpu, histogram, median, pin_beside};
use crate::machine::{self, Waits};
use crate::memory_disk::MemoryDisk;
use crate::model::Model;
use crate::report::{Measurement, Reporter};
use crate::rounds::{Figure, Round, Taken, quantile, spread};
use crate::service::Service;
use crate::workload::Query;

/// Rows of the table, of 256 bytes: 2 GiB in its file.
const ROWS: u32 = 8 << 20;
const DIM: usize = 64;
/// Bytes of the cache: the table is eight times as large.
const CACHE_BYTES: u64 = 256 << 20;
/// Rows that are asked for again and again. They come first in the table.
const HOT_ROWS: u32 = 8 << 10;
/// Bags of a request, and ids of each.
const BAGS: u32 = 16;
const BAG_LENGTH: u32 = 20;
/// One in so many rows of the second client's is new: of both clients' one in ten.
const NEW_ONE_IN: u32 = 5;
/// Requests of each client in a round.
const REQUESTS: usize = 500;
/// Times that each kind of round has its turn. A round's 99th percentile is that of its five slowest requests, and another's may be twice
/// as much with the same service: half as many turns were seen to say 0.77 where these said 0.90.
const TURNS: usize = 40;
/// The thread of the service's worker.
const WORKER: &str = "rowmilld-0";
/// What is told of the first client's requests, at which quantile, and whether with those that were disturbed.
const FIGURES: [(&str, Figure, f64, bool); 6] = [
    ("latency_p50", |t| t.latency, 0.5, false),
    ("latency_p99", |t| t.latency, 0.99, false),
    ("sent_p99", |t| t.sent, 0.99, false),
    ("late_p99", |t| t.late, 0.99, false),
    ("service_p99", |t| t.service, 0.99, false),
    ("p99_with_disturbed", |t| t.latency, 0.99, true),
];
/// A request for so long of whose time, or longer, client or worker waited for a CPU that something else had: that is a process' turn, a
/// millisecond and longer (Linux, `kernel/sched/fair.c`), where a disk's interrupt takes some tens of microseconds (`RESULTS.md`).
const LONG_WAIT: Duration = Duration::from_micros(500);
/// How often that is looked at, beside when an answer comes.
const LOOK: Duration = Duration::from_micros(200);
/// Requests of a client in flight at most.
const DEPTH: usize = 64;
/// Of the rate that the second client's requests that miss can be done at. A worker that is busy with misses for half of its time has
/// requests wait for it, however short its turns are; at lower loads it is seen what a miss itself costs others.
const LOADS: [f64; 2] = [0.25, 0.5];
/// A case takes so long at most: at what a throttled disk may give it would be hours.
const MOST: Duration = Duration::from_secs(600);
/// Requests that this is seen by.
const TRIAL: usize = 500;
/// Reads in flight at most where this process reads, and those that the kernel is told of at a time: as a worker's.
const READS: u32 = 128;
const TOLD: usize = 4;
/// Bytes of the disk in memory: the table's files, and what a file system takes.
const DISK_BYTES: u64 = 3 << 30;

/// The case of a load.
fn case_of(load: f64) -> String {
    format!("port=shm/format=f32/dim=64/misses=0.1/load=open{load}x/requests=hits")
}

/// What happens beside the first client's requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The second client's miss nothing either.
    Hits,
    /// Nor do they now, but as many pages are read as if they did.
    Reads,
    /// They miss rows.
    Misses,
}

impl Kind {
    /// All of them.
    const ALL: [Kind; 3] = [Kind::Hits, Kind::Reads, Kind::Misses];
}

/// This process' reads of the table's file.
struct Reads {
    reader: DirectReader,
    file: FileId,
    pages: u64,
    random: StdRng,
    asked: u64,
}

impl Reads {
    fn new(model: &Model) -> Result<Reads> {
        let generation = Generation::open(&model.directory)?;
        let info = &generation.tables()[0];
        let mut reader = DirectReader::new(ReaderOptions {
            slots: READS,
            slot_bytes: PAGE_BYTES,
            files: 1,
            polled: false,
            huge_pages: HugePages::Off,
        })?;
        let file = DirectFile::open(generation.path(info), PageCache::Refuse)?;
        Ok(Reads {
            pages: file.bytes() / PAGE_BYTES as u64,
            file: reader.add(file)?,
            reader,
            random: StdRng::seed_from_u64(2),
            asked: 0,
        })
    }

    /// Takes what has come, and asks for what is due of so many reads in all.
    fn go_on(&mut self, due: u64) -> Result<()> {
        if self.asked + TOLD as u64 <= due && self.reader.in_flight() + TOLD as u32 <= READS {
            for _ in 0..TOLD {
                let page = self.random.random_range(0..self.pages);
                let at = page * PAGE_BYTES as u64;
                self.reader.submit(self.file, at, PAGE_BYTES, 0)?;
            }
            self.asked += TOLD as u64;
        }
        let mut outcome = Ok(());
        let taken = |_, read: Result<&[u8], _>| outcome = read.map(drop);
        self.reader.poll(TOLD, taken)?;
        outcome.context("reading the table's file")
    }
}

/// Requests of a kind.
struct Requests {
    random: StdRng,
    /// The next row that was never asked for.
    new: u32,
}

impl Requests {
    /// The next so many, of which a part of the rows is new if `misses`.
    fn take(&mut self, count: usize, misses: bool) -> Result<Vec<Query>> {
        let rows = BAGS * BAG_LENGTH;
        let query = |_| {
            let ids = (0..rows).map(|at| {
                if misses && at % NEW_ONE_IN == 0 {
                    self.new += 1;
                    return self.new_row();
                }
                self.random.random_range(0..HOT_ROWS)
            });
            let ids = ids.collect();
            Query::new(BAGS, vec![(BAG_LENGTH, ids)])
        };
        let queries: Vec<Query> = (0..count).map(query).collect();
        ensure!(
            self.new < ROWS - HOT_ROWS,
            "the table has no more rows that nobody asked for"
        );
        Ok(queries)
    }

    /// A row behind the hot ones, each once, all over the file.
    fn new_row(&self) -> u32 {
        // A prime above the number of rows: multiplying by it permutes them.
        const SCATTER: u64 = 2_654_435_761;
        let behind = u64::from(ROWS - HOT_ROWS);
        HOT_ROWS + (u64::from(self.new) * SCATTER % behind) as u32
    }
}

/// Sees when something else had the client's CPU, or the worker's.
struct Watch {
    waits: Waits,
    /// When this was last looked at and for how long they had waited then; and for how long when it was looked at before that.
    at: Instant,
    seen: Duration,
    before: Duration,
}

impl Watch {
    /// Looks, if the last time is long ago.
    fn go_on(&mut self) -> Result<()> {
        if self.at.elapsed() >= LOOK {
            self.before = std::mem::replace(&mut self.seen, self.waits.so_far()?);
            // Behind it: what begins in between is seen with the next look, and what is due until then counts from the one before.
            self.at = Instant::now();
        }
        Ok(())
    }

    /// For how long they had waited shortly before a request was due that was not yet when this was looked at before.
    fn at(&self, due: Instant) -> Duration {
        match due < self.at {
            true => self.before,
            false => self.seen,
        }
    }
}

/// A client, with what it has to send.
struct Side {
    driver: Driver,
    batches: Vec<Batch>,
    due: Vec<Duration>,
    next: usize,
    /// When it came to send those that were due by now, and for how long client and worker had waited for their CPUs when they were.
    came: Vec<(Instant, Duration)>,
    in_flight: HashMap<Ticket, Asked>,
    taken: Vec<Taken>,
}

/// When a request was due, and when the client came to send it: that the connection had no room for it then is the service's doing.
struct Asked {
    due: Instant,
    came: Instant,
    /// For how long client and worker had waited for their CPUs shortly before it was due.
    waited: Duration,
}

impl Side {
    fn new(driver: Driver) -> Side {
        Side {
            driver,
            batches: Vec::new(),
            due: Vec::new(),
            next: 0,
            came: Vec::with_capacity(REQUESTS),
            in_flight: HashMap::with_capacity(DEPTH),
            taken: Vec::with_capacity(REQUESTS),
        }
    }

    /// These requests at random times, `rate` a second on average.
    fn prepare(&mut self, queries: &[Query], rate: f64, seed: u64) -> Result<()> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut at = 0.0;
        self.batches.clear();
        self.due.clear();
        self.came.clear();
        for query in queries {
            let mut batch = Batch::new(1)?;
            query.fill(&mut batch)?;
            self.batches.push(batch);
            at += -(1.0 - random.random::<f64>()).ln() / rate;
            self.due.push(Duration::from_secs_f64(at));
        }
        self.next = 0;
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.next == self.due.len() && self.in_flight.is_empty()
    }

    /// Sends what is due, as far as the connection takes it, and takes answers.
    fn go_on(&mut self, began: Instant, watch: &Watch) -> Result<()> {
        while let Some(&due) = self.due.get(self.came.len())
            && due <= began.elapsed()
        {
            self.came.push((Instant::now(), watch.at(began + due)));
        }
        while let Some(&(came, waited)) = self.came.get(self.next) {
            let sent = self.driver.try_submit_batch(&self.batches[self.next])?;
            let Some(ticket) = sent else {
                break;
            };
            let due = began + self.due[self.next];
            self.in_flight.insert(ticket, Asked { due, came, waited });
            self.next += 1;
        }
        while let Some(answer) = self.driver.session.poll()? {
            answer.outcome?;
            let asked = self.in_flight.remove(&answer.ticket);
            let asked = asked.context("an answer to a request of ours")?;
            // Behind the time: what was waited in between is of the request.
            let now = Instant::now();
            let waited = watch.waits.so_far()?;
            let ns = |time: Duration| time.as_nanos() as u64;
            self.taken.push(Taken {
                latency: ns(now - asked.due),
                sent: ns(now - asked.came),
                late: ns(asked.came - asked.due),
                service: answer.service_ns,
                is_disturbed: waited - asked.waited >= LONG_WAIT,
            });
            self.driver.idle.push(answer.target);
        }
        Ok(())
    }
}

/// What the service has counted: lookups of the table, and hits.
fn counted(service: &Service) -> Result<(u64, u64)> {
    let status = service.status()?;
    let table = status["cache"].as_array().and_then(|list| list.first());
    let table = table.context("the service has a cached table")?;
    let number = |key: &str| table[key].as_u64().context("a figure of the cache");
    Ok((number("lookups")?, number("hits")?))
}

/// A service, and who asks it.
struct Scene {
    service: Service,
    sides: [Side; 2],
    requests: Requests,
    reads: Reads,
    watch: Watch,
}

/// Runs the cases.
///
/// # Errors
/// Where the service can't be started or refuses.
pub(crate) fn run(reporter: &mut Reporter) -> Result<()> {
    let wanted = |disk: &str| -> Vec<(f64, String)> {
        let cases = LOADS.map(|load| (load, case_of(load) + disk));
        let wanted = cases.into_iter().filter(|(_, case)| reporter.wants(case));
        wanted.collect()
    };
    let (own, in_memory) = (wanted(""), wanted("/disk=memory"));
    if own.is_empty() && in_memory.is_empty() {
        return Ok(());
    }
    let model = Model::of_rows(ROWS.into(), DIM)?;
    if !own.is_empty() {
        // A file that was just written is on its way to the disk for seconds, and reads wait.
        let generation = Generation::open(&model.directory)?;
        File::open(generation.path(&generation.tables()[0]))?.sync_all()?;
        on_disk(&model, "1", &own, reporter)?;
    }
    if !in_memory.is_empty() {
        let disk = MemoryDisk::new(DISK_BYTES);
        match disk.and_then(|disk| Ok((model.copied_to(disk.path())?, disk))) {
            // On the first CPU, where a worker is here that keeps away from a disk's interrupts: this disk has none to keep away from.
            Ok((copy, _disk)) => {
                on_disk(&copy, &format!("[{}]", first_cpu()?), &in_memory, reporter)?
            }
            Err(why) => eprintln!(
                "cache: requests beside misses of a disk in memory are not measured: {why:#}"
            ),
        }
    }
    Ok(())
}

/// Cases at these loads, with the table where it lies and a worker on these CPUs (`workers.cpus`).
fn on_disk(
    model: &Model,
    cpus: &str,
    wanted: &[(f64, String)],
    reporter: &mut Reporter,
) -> Result<()> {
    let extra = format!(
        "[workers]\ncpus = {cpus}\n[cache]\nbudget_ms = 10000\n[[tables]]\nname = \"rows\"\nplacement = \"cached\"\ncache_bytes = {CACHE_BYTES}\n"
    );
    let service = Service::start(&model.directory, &extra)?;
    pin_beside(&service)?;
    let (schema, _) = model.schema(BAGS);
    let driver = |name| Driver::new(service.connect(name)?, schema.clone(), BAGS, DEPTH);
    let mut scene = Scene {
        sides: [Side::new(driver("hits")?), Side::new(driver("misses")?)],
        requests: Requests {
            random: StdRng::seed_from_u64(1),
            new: 0,
        },
        reads: Reads::new(model)?,
        watch: Watch {
            waits: Waits::of(service.pid(), WORKER)?,
            at: Instant::now(),
            seen: Duration::ZERO,
            before: Duration::ZERO,
        },
        service,
    };
    let mut times = histogram();
    // All hot rows come in, and are known to be used often.
    let requests = &mut scene.requests;
    let hot = requests.take(20 * (HOT_ROWS / (BAGS * BAG_LENGTH)) as usize, false)?;
    scene.sides[0].driver.pipelined(&hot, &mut times)?;
    let trial = requests.take(TRIAL, true)?;
    let took = scene.sides[1].driver.pipelined(&trial, &mut times)?;
    let most = TRIAL as f64 / took.as_secs_f64();
    for (load, case) in wanted {
        let rate = load * most;
        let rounds = (TURNS + 1) * Kind::ALL.len();
        let takes = (rounds * REQUESTS) as f64 / rate;
        if takes > MOST.as_secs_f64() {
            eprintln!(
                "cache: {case} is not measured: of requests with misses {most:.0} a second can be done with this disk, and it would take {takes:.0} s"
            );
            continue;
        }
        measure(&mut scene, reporter, case, rate)?;
    }
    scene.service.stop()
}

/// One case, at this rate of either client.
fn measure(scene: &mut Scene, reporter: &mut Reporter, case: &str, rate: f64) -> Result<()> {
    eprintln!("cache: {case}, {rate:.0} requests/s of either client");
    let mut turns = Vec::new();
    let stolen = machine::stolen();
    for turn in 0..=TURNS {
        // Who goes first finds the disk and the caches as the one before left them.
        let mut rounds = Kind::ALL.map(|_| Round::default());
        for place in 0..Kind::ALL.len() {
            let place = (place + turn) % Kind::ALL.len();
            rounds[place] = scene.round(Kind::ALL[place], rate, 2 * turn as u64)?;
        }
        // The targets' first pages came with the first ones.
        if turn > 0 {
            turns.push(rounds);
        }
    }
    eprintln!(
        "cache: a hypervisor took the CPUs away for {} ms meanwhile",
        10 * (machine::stolen() - stolen)
    );
    let plain =
        |case: &str, metric, value, unit| Measurement::plain("cache", case, metric, value, unit);
    let of = |kind: Kind| turns.iter().map(move |rounds| &rounds[kind as usize]);
    for (metric, what, q, with_disturbed) in FIGURES {
        let each = |kind: Kind| -> Vec<f64> {
            let counts = |t: &&Taken| with_disturbed || !t.is_disturbed;
            let rounds = of(kind).map(|round| round.first.iter().filter(counts));
            rounds.map(|taken| quantile(taken, what, q)).collect()
        };
        let with = each(Kind::Misses);
        for (case, kind, name) in [
            (case.to_owned(), Kind::Hits, "no misses"),
            (format!("{case}/beside=reads"), Kind::Reads, "only reads"),
        ] {
            let without = each(kind);
            let ratios: Vec<f64> = without.iter().zip(&with).map(|(o, w)| o / w).collect();
            let ([low, high], ratio) = (spread(&ratios), median(ratios));
            eprintln!(
                "cache: {metric} {ratio:.3} of {name}, nine of ten draws of its turns {low:.3} to {high:.3}"
            );
            let found = plain(&case, metric, median(with.clone()), "us");
            reporter.add(found.beside(name, median(without), ratio));
        }
    }
    let disturbed = |kind: Kind| {
        let taken = of(kind).flat_map(|round| &round.first);
        let disturbed = taken.clone().filter(|t| t.is_disturbed).count();
        disturbed as f64 / taken.count() as f64
    };
    let (with, without) = (disturbed(Kind::Misses), disturbed(Kind::Hits));
    let found = plain(case, "disturbed", with, "fraction");
    reporter.add(found.beside("no misses", without, without / with));
    let others = of(Kind::Misses).map(|r| quantile(r.second.iter(), |t| t.latency, 0.99));
    reporter.add(plain(case, "others_p99", median(others.collect()), "us"));
    let missed = median(of(Kind::Misses).map(|r| r.missed).collect());
    reporter.add(plain(case, "missed", missed, "fraction"));
    reporter.add(plain(case, "rate", rate, "requests/s"));
    Ok(())
}

impl Scene {
    /// A round of a kind, of requests at random times.
    fn round(&mut self, kind: Kind, rate: f64, seed: u64) -> Result<Round> {
        let of_second = self.requests.take(REQUESTS, kind == Kind::Misses)?;
        let of_first = self.requests.take(REQUESTS, false)?;
        self.sides[0].prepare(&of_first, rate, seed)?;
        self.sides[1].prepare(&of_second, rate, seed + 1)?;
        let before = counted(&self.service)?;
        self.reads.asked = 0;
        let misses_a_request = f64::from(BAGS * BAG_LENGTH / NEW_ONE_IN);
        let began = Instant::now();
        while !self.sides.iter().all(Side::is_done) {
            let mut sides = self.sides.iter_mut();
            self.watch.go_on()?;
            sides.try_for_each(|side| side.go_on(began, &self.watch))?;
            if kind == Kind::Reads {
                let requests = (rate * began.elapsed().as_secs_f64()).min(REQUESTS as f64);
                self.reads.go_on((requests * misses_a_request) as u64)?;
            }
            std::hint::spin_loop();
        }
        let after = counted(&self.service)?;
        let [first, second] = &mut self.sides;
        Ok(Round {
            first: take(&mut first.taken),
            second: take(&mut second.taken),
            missed: 1.0 - (after.1 - before.1) as f64 / (after.0 - before.0) as f64,
        })
    }
}
