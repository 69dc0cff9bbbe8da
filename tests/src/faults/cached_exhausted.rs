//! Cached tables of which more rows are wanted than can be fetched at a time.
//!
//! What is answered while others wait is told by what was counted, and not by clocks: the machine may do other things.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::cached::{Asker, COLD_ROWS, PATIENT, figure, settings};
use super::patron::Innocent;
use super::site::{Service, Site, patience, until};
use super::watch::{Scene, beside_an_innocent_within};

/// Others whose rows have to be fetched too.
const CROWD: usize = 2;
/// Answers that each of them gets while rows are asked for.
const ANSWERS: u64 = 5;
/// Clients that ask for [`STEP`]th rows, so that at each time one at least has bags that wait.
const ASKERS: u32 = 2;
/// See above.
const STEP: usize = 122;

/// One row is read at a time and 16 bags may wait, for clients that want hundreds of each. All get all their rows, and others theirs
/// meanwhile.
pub(super) fn exhausted(site: &Site) -> Result<Verdict> {
    let least = format!("{PATIENT}reads = 1\nstaged_rows = 8192\nparked_bags = 16\n");
    let settings = settings(site, &least, "error")?;
    beside_an_innocent_within(patience(), site, &settings, |scene| {
        let (endpoint, tables) = (&scene.service.endpoint, scene.tables);
        let start = |_| Innocent::start_within(patience(), endpoint, tables, false);
        let crowd = (0..CROWD).map(start).collect::<Result<Vec<_>>>()?;
        let requests = ask_until(scene, || crowd.iter().all(|one| one.answers() >= ANSWERS))?;
        let service = &*scene.service;
        let mut answers = 0;
        for client in crowd {
            answers += client.finish()?.answers;
        }
        // There was neither a read nor room for all, and all rows that were asked for came.
        let (waits, refused) = (
            tier_figure(service, "waits")?,
            figure(service, "parks_refused")?,
        );
        ensure!(waits > 0, "no row waited for a read");
        ensure!(refused > 0, "each bag found room");
        for key in ["late", "stalled"] {
            ensure!(figure(service, key)? == 0, "`{key}` is not 0");
        }
        let fetched = figure(service, "fetched")?;
        let arrived = || figure(service, "arrived").is_ok_and(|arrived| arrived == fetched);
        until(patience(), arrived).with_context(|| format!("not all of {fetched} rows came"))?;
        let least = u64::from(ASKERS) * u64::from(COLD_ROWS) / STEP as u64;
        ensure!(fetched >= least - 64, "only {fetched} rows were fetched");
        Ok(format!(
            "{requests} requests with {fetched} rows fetched, {waits} waits for a read and {refused} for room; {answers} answers to \
             {CROWD} others"
        ))
    })
}

/// Asks for rows without a pause until `done`; for how many requests.
fn ask_until(scene: &Scene<'_>, done: impl Fn() -> bool) -> Result<u64> {
    let is_over = AtomicBool::new(false);
    let ask = |mut asker: Asker, ids: Vec<u32>| {
        let mut requests = 0;
        while !is_over.load(Ordering::Relaxed) {
            asker.is_answered(&ids)?;
            requests += 1;
        }
        anyhow::Ok(requests)
    };
    thread::scope(|scope| {
        let start = |from| {
            let asker = Asker::connect(scene.service, scene.tables)?;
            let ids: Vec<u32> = (from..COLD_ROWS).step_by(STEP).collect();
            anyhow::Ok(scope.spawn(|| ask(asker, ids)))
        };
        let askers: Vec<_> = (0..ASKERS).map(start).collect();
        let served = until(patience(), done);
        is_over.store(true, Ordering::Relaxed);
        let mut requests = 0;
        for asker in askers {
            let asked = asker?.join();
            requests += asked.map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        served.context("answers to others while rows are fetched")?;
        Ok(requests)
    })
}

/// What the status page says of tiers.
fn tier_figure(service: &Service, key: &str) -> Result<u64> {
    let status = service.status()?;
    let figure = status["tiers"][0][key].as_u64();
    figure.with_context(|| format!("no `{key}` in {status:?}"))
}
