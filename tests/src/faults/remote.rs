//! Rows of a cached table that come from another dataplane's memory, which is killed while some are on their way, or stopped for longer than a
//! lease.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::Ticket;
use rustix::process::Signal;
use serde_json::Value;

use super::Verdict;
use super::cached::{Asker, COLD, COLD_ROWS, MAX_ROWS, PATIENT, settings};
use super::held::{self, Held};
use super::site::{Service, Settings, Site, patience, rdma_address, slowness, until};
use super::watch::{Scene, beside_a_waiting_innocent, beside_an_innocent};

/// What a lease lasts.
fn lease() -> Duration {
    Duration::from_millis(1500) * slowness()
}

fn url() -> Result<String> {
    let address = rdma_address().context("a fault over RDMA")?;
    Ok(format!("rdma://{address}:7404"))
}

/// Another dataplane with the same model, all of it in memory, which it exports.
pub(super) fn exporter(site: &Site) -> Result<Service> {
    let path = site.path("exporter.toml");
    let text = format!(
        "endpoints = [\"shm:{}\"]\ninsecure = true\n\
         [model]\ndirectory = \"{}\"\nname = \"faults\"\nhuge_pages = \"off\"\n\
         [workers]\ncpus = 1\npin = false\n\
         [export]\nlisten = \"{}\"\nlease_ms = {}\n\
         [admin]\naddress = \"127.0.0.1:0\"\n",
        site.path("exporter.sock").display(),
        site.model()?.display(),
        url()?,
        lease().as_millis(),
    );
    fs::write(&path, text).context("the exporter's configuration")?;
    Service::start(site, &path)
}

/// Cached tables whose rows are asked of it before they are read from files.
fn reading(site: &Site) -> Result<Settings> {
    let own = settings(site, PATIENT, "error")?;
    Ok(Settings {
        cached: own.cached + &tier()?,
        ..own
    })
}

/// The part of a configuration that has rows asked of it.
pub(super) fn tier() -> Result<String> {
    let (url, budget) = (url()?, 1000 * slowness());
    Ok(format!(
        "[remote]\nurl = \"{url}\"\ntried = \"before\"\nbudget_ms = {budget}\n"
    ))
}

/// That rows come from it, other ones each time up to four.
pub(super) fn comes(scene: &Scene<'_>, time: u32) -> Result<()> {
    const ROUNDS: u32 = 20;
    let before = arrived(scene.service, "remote")?;
    let mut asking = Asking::start(scene)?;
    asking.rounds = time * ROUNDS;
    (0..ROUNDS).try_for_each(|_| asking.ask())?;
    let came = arrived(scene.service, "remote")? - before;
    ensure!(came > 500, "{came} rows have come from the exporter");
    Ok(())
}

/// Waits until the reader says that it is `connected` or `apart`.
pub(super) fn until_it_is(service: &Service, state: &str) -> Result<()> {
    let is_so = || {
        let page = service.status();
        page.is_ok_and(|page| page["remote"][0]["state"] == state)
    };
    let page = || service.status().map(|page| page["remote"].to_string());
    until(patience(), is_so).with_context(|| format!("it is not {state}: {:?}", page()))
}

/// Rows of [`COLD`] that have come from a tier.
fn arrived(service: &Service, tier: &str) -> Result<u64> {
    counted(&service.status()?, tier, "arrived")
}

/// What is counted of the rows of [`COLD`] that a tier was asked for.
fn counted(page: &Value, tier: &str, what: &str) -> Result<u64> {
    let mut files = page["files"].as_array().context("files")?.iter();
    let of = files.find(|file| file["table"] == COLD && file["tier"] == tier);
    let count = of.with_context(|| format!("a tier {tier} of {COLD}"))?[what].as_u64();
    count.context("a count")
}

/// READs of all tables' rows that have brought nothing: none is under way where the reader is apart, and workers have seen that.
fn lost_reads(service: &Service) -> Result<u64> {
    let page = service.status()?;
    let sum = |of: &str, what: &str| -> Option<u64> {
        let all = page[of].as_array()?.iter();
        let remote = all.filter(|one| one["tier"] == "remote");
        remote.map(|one| one[what].as_u64()).sum()
    };
    let (reads, came) = (sum("tiers", "reads"), sum("files", "arrived"));
    let lost = reads.context("READs")?.checked_sub(came.context("rows")?);
    lost.context("more rows have come than were READ")
}

/// Rows of [`COLD`] that the exporter was asked for, and that have neither come nor failed. While all workers are held it stays as it is.
fn on_their_way(service: &Service) -> Result<u64> {
    let page = service.status()?;
    let count = |what: &str| counted(&page, "remote", what);
    let ended = ["arrived", "late", "corrupt", "gone", "failed"].map(count);
    let ended = ended.into_iter().sum::<Result<u64>>()?;
    Ok(count("fetched")?.saturating_sub(ended))
}

/// A request that was not waited for, and its rows.
type Left = (Ticket, Vec<u32>);

/// Asks for rows of [`COLD`] that are next to never in its share, other ones each time.
struct Asking {
    asker: Asker,
    rounds: u32,
}

impl Asking {
    fn start(scene: &Scene<'_>) -> Result<Asking> {
        let asker = Asker::connect(scene.service, scene.tables)?;
        Ok(Asking { asker, rounds: 0 })
    }

    /// The rows of the next request, so many of them about.
    fn next(&mut self, count: u32) -> Vec<u32> {
        self.rounds += 1;
        let first = self.rounds * 37 % 97;
        let step = COLD_ROWS / count - 3;
        (first..COLD_ROWS).step_by(step as usize).collect()
    }

    /// A request, whose rows have to be right.
    fn ask(&mut self) -> Result<()> {
        let ids = self.next(100);
        let answered = self.asker.is_answered(&ids);
        answered.with_context(|| format!("request {}", self.rounds))
    }

    /// Some requests, for more than a thousand rows of the exporter's. Returns how many have come from there.
    fn come_from_there(&mut self, service: &Service) -> Result<u64> {
        let before = arrived(service, "remote")?;
        (0..20).try_for_each(|_| self.ask())?;
        let came = arrived(service, "remote")? - before;
        ensure!(came > 1000, "{came} rows have come from the exporter");
        Ok(came)
    }

    /// Leaves requests with the workers.
    fn leave(&mut self) -> Result<Vec<Left>> {
        const REQUESTS: u32 = 4;
        let mut left = Vec::new();
        for _ in 0..REQUESTS {
            let ids = self.next(MAX_ROWS as u32 / REQUESTS - 50);
            left.push((self.asker.send(&ids)?, ids));
        }
        Ok(left)
    }

    /// The same, and holds the workers while rows are on their way from the exporter.
    fn leave_and_hold(&mut self, service: &mut Service) -> Result<(Vec<Left>, [Held; 2])> {
        const TRIES: u32 = 100;
        for _ in 0..TRIES {
            let left = self.leave()?;
            let process = service.process().id();
            let held = [Held::worker(process, 0)?, Held::worker(process, 1)?];
            if on_their_way(service)? > 0 {
                return Ok((left, held));
            }
            held.into_iter().try_for_each(Held::let_go)?;
            self.take(left)?;
        }
        bail!("no row was on its way in {TRIES} tries")
    }

    /// The answers to requests that were left, whose rows have to be right.
    fn take(&mut self, left: Vec<Left>) -> Result<()> {
        let mut left = left.into_iter();
        left.try_for_each(|(ticket, ids)| self.asker.comes(ticket, &ids))
    }

    /// Requests until the reader is connected or apart, and for a while after that.
    fn ask_until(&mut self, service: &Service, state: &str) -> Result<Duration> {
        let began = Instant::now();
        while service.status()?["remote"][0]["state"] != state {
            self.ask()?;
            ensure!(began.elapsed() < patience(), "it is not {state}");
        }
        let took = began.elapsed();
        (0..20).try_for_each(|_| self.ask())?;
        Ok(took)
    }
}

/// The exporter is killed twice while READs are under way, and is back: each request is answered, from files meanwhile. At first the workers are
/// held for that moment, so that what was READ by then is taken in when it is dead; a client over RDMA would take that for the dataplane's end:
/// those here come over shared memory. Then they go on, so that what they READ by then never comes.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    const TRIES: u32 = 10;
    if let Some(why) = held::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let local = site.local();
    let settings = reading(&local)?;
    // The last one lives until the innocent has ended, so that what the reader holds of it is as before.
    let mut running = exporter(site)?;
    beside_a_waiting_innocent(&local, &settings, patience(), |scene| {
        until_it_is(scene.service, "connected")?;
        let mut asking = Asking::start(scene)?;
        let service = &mut *scene.service;
        let first = asking.come_from_there(service)?;
        let file = arrived(service, "file")?;
        ensure!(file == 0, "{file} rows have come from the file");
        let (left, held) = asking.leave_and_hold(service)?;
        let under_way = on_their_way(service)?;
        kill(&mut running)?;
        let (still, came) = (on_their_way(service)?, arrived(service, "remote")?);
        ensure!(
            still == under_way && under_way > 0,
            "{under_way} rows were on their way when it was killed, and then {still}"
        );
        held.into_iter().try_for_each(Held::let_go)?;
        asking.take(left)?;
        let late = arrived(service, "remote")? - came;
        let noticed = asking.ask_until(service, "apart")?;
        let from_files = arrived(service, "file")?;
        ensure!(from_files > 0, "none came from the file");
        let lost_before = lost_reads(service)?;
        running = exporter(site)?;
        asking.ask_until(service, "connected")?;
        let again = asking.come_from_there(service)?;
        let (mut lost, mut tries) = (lost_before, 0);
        // All of them may have come before it dies.
        while lost <= lost_before {
            tries += 1;
            ensure!(
                tries <= TRIES,
                "of all READs {lost} brought nothing, all of them before it was killed {TRIES} times while workers went on"
            );
            if tries > 1 {
                running = exporter(site)?;
                asking.ask_until(service, "connected")?;
            }
            let left = asking.leave()?;
            kill(&mut running)?;
            asking.take(left)?;
            asking.ask_until(service, "apart")?;
            lost = lost_reads(service)?;
        }
        running = exporter(site)?;
        asking.ask_until(service, "connected")?;
        asking.come_from_there(service)?;
        Ok(format!(
            "{} requests answered; {under_way} rows on their way when it was killed, of which {late} were taken in after that, and noticed after \
             {} ms; {} READs brought nothing when it was killed again; {first} rows from the exporter, then {from_files} from the file, then \
             {again} from the exporter again",
            asking.rounds,
            noticed.as_millis(),
            lost - lost_before
        ))
    })
}

fn kill(exporter: &mut Service) -> Result<()> {
    exporter.process().signal(Signal::KILL)?;
    let ended = exporter.process().end(patience());
    ended.context("it was killed").map(drop)
}

/// The exporter is stopped for longer than a lease: nothing is read of it after that, and when it goes on it is found again.
pub(super) fn stopped(site: &Site) -> Result<Verdict> {
    let settings = reading(site)?;
    let mut exporter = exporter(site)?;
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        until_it_is(service, "connected")?;
        let mut asking = Asking::start(scene)?;
        asking.come_from_there(service)?;
        exporter.process().stop()?;
        // READs need nothing of its process, so that rows come until the reader's part of the lease is over.
        let took = asking.ask_until(service, "apart")?;
        ensure!(took <= lease() + bound(), "apart after {took:?} only");
        let read = arrived(service, "remote")?;
        (0..20).try_for_each(|_| asking.ask())?;
        let late = arrived(service, "remote")? - read;
        ensure!(late == 0, "{late} rows were read without a lease");
        exporter.process().signal(Signal::CONT)?;
        asking.ask_until(service, "connected")?;
        Ok(format!(
            "{} requests answered; apart {} ms after the stop, of a lease of {}",
            asking.rounds,
            took.as_millis(),
            lease().as_millis()
        ))
    })
}

/// How much later than its lease a reader may be seen to be apart: a look of its thread, a request, and a status page.
fn bound() -> Duration {
    Duration::from_secs(1) * slowness()
}
