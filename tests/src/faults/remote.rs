//! Rows of a cached table that come from another dataplane's memory, which is killed, or stopped for longer than a lease.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::Verdict;
use super::cached::{Asker, COLD, COLD_ROWS, PATIENT, settings};
use super::site::{Service, Settings, Site, patience, rdma_address, slowness, until};
use super::watch::{Scene, beside_an_innocent};

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
    let page = service.status()?;
    let mut files = page["files"].as_array().context("files")?.iter();
    let of = files.find(|file| file["table"] == COLD && file["tier"] == tier);
    let count = of.with_context(|| format!("a tier {tier} of {COLD}"))?["arrived"].as_u64();
    count.context("a count")
}

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

    /// A request, whose rows have to be right.
    fn ask(&mut self) -> Result<()> {
        self.rounds += 1;
        let first = self.rounds * 37 % 97;
        let ids: Vec<u32> = (first..COLD_ROWS).step_by(997).collect();
        let answered = self.asker.is_answered(&ids);
        answered.with_context(|| format!("request {}", self.rounds))
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

/// The exporter is killed while rows are read from it, and is back: each request is answered, from files meanwhile.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    let settings = reading(site)?;
    // It lives until the innocent has ended, so that what the reader holds of it is as before.
    let (mut first, mut second) = (exporter(site)?, None);
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        until_it_is(service, "connected")?;
        let mut asking = Asking::start(scene)?;
        (0..20).try_for_each(|_| asking.ask())?;
        let (remote, file) = (arrived(service, "remote")?, arrived(service, "file")?);
        ensure!(remote > 1000, "{remote} rows have come from the exporter");
        ensure!(file == 0, "{file} rows have come from the file");
        first.process().signal(Signal::KILL)?;
        let noticed = asking.ask_until(service, "apart")?;
        let from_files = arrived(service, "file")?;
        ensure!(from_files > 0, "none came from the file");
        second = Some(exporter(site)?);
        asking.ask_until(service, "connected")?;
        let before = arrived(service, "remote")?;
        (0..20).try_for_each(|_| asking.ask())?;
        let again = arrived(service, "remote")? - before;
        ensure!(again > 1000, "{again} rows came from the one that is back");
        Ok(format!(
            "{} requests answered; noticed after {} ms; {remote} rows from the exporter, then {from_files} from the file, then {again} \
             from the exporter again",
            asking.rounds,
            noticed.as_millis()
        ))
    })
}

/// The exporter is stopped for longer than a lease: nothing is read of it after that, and when it goes on it is found again.
pub(super) fn stopped(site: &Site) -> Result<Verdict> {
    let settings = reading(site)?;
    let mut exporter = exporter(site)?;
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        until_it_is(service, "connected")?;
        let mut asking = Asking::start(scene)?;
        (0..20).try_for_each(|_| asking.ask())?;
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
