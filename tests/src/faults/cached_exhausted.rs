//! A cached table of which more rows are wanted than can be fetched at a time.
//!
//! What is answered while others wait is told by the order in which it happens and by what was counted, not by clocks: the machine may do
//! other things.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::cached::{Asker, COLD_ROWS, PATIENT, figure, settings};
use super::cached_disk::alone;
use super::site::{Service, Site, patience, until};
use super::watch::{Scene, beside_an_innocent};

/// Clients that ask for [`MANY`] rows at a time.
const GREEDY: u32 = 2;
/// Each of them in a bag of its own.
const MANY: u32 = 400;
/// What the other client asks for.
const FEW: u32 = 8;
/// How often it has to be answered before all requests of [`MANY`] rows that were there first.
const OVERTAKEN: u64 = 5;

/// Each worker reads one row at a time, and 16 bags may wait for some, where clients want hundreds. They get all their rows, a client
/// that wants few meanwhile, and one that wants none of these is not harmed.
pub(super) fn exhausted(site: &Site) -> Result<Verdict> {
    let least = format!("{PATIENT}reads = 1\nstaged_rows = 8192\nparked_bags = 16\n");
    let settings = alone(settings(site, &least, "error")?)?;
    beside_an_innocent(site, &settings, |scene| {
        let (requests, answers) = beside_the_greedy(scene)?;
        let service = &*scene.service;
        // There was neither a read nor room for all, and all rows that were asked for came.
        let waits = tier_figure(service, "waits")?;
        let refused = figure(service, "parks_refused")?;
        ensure!(waits > 0, "no row waited for a read");
        ensure!(refused > 0, "each bag found room");
        for key in ["late", "stalled"] {
            ensure!(figure(service, key)? == 0, "`{key}` is not 0");
        }
        let fetched = figure(service, "fetched")?;
        let arrived = || figure(service, "arrived").is_ok_and(|arrived| arrived == fetched);
        until(patience(), arrived).with_context(|| format!("not all of {fetched} rows came"))?;
        let least = u64::from(GREEDY * MANY);
        ensure!(fetched >= least, "only {fetched} rows were fetched");
        Ok(format!(
            "{requests} requests of {MANY} rows, {OVERTAKEN} of {answers} of {FEW} rows before all that were there first; {fetched} rows \
             fetched, {refused} times no room for a bag"
        ))
    })
}

/// What one of the greedy has sent, and what it has got.
#[derive(Debug, Default)]
struct Greedy {
    sent: AtomicU64,
    answered: AtomicU64,
}

impl Greedy {
    /// The request that it waits for, if it waits.
    fn waits_for(&self) -> Option<u64> {
        let answered = self.answered.load(Ordering::SeqCst);
        let sent = self.sent.load(Ordering::SeqCst);
        (sent > answered).then_some(sent)
    }
}

/// Asks for few rows until that was answered often enough while all greedy clients waited; how many requests of both kinds were answered.
fn beside_the_greedy(scene: &Scene<'_>) -> Result<(u64, u64)> {
    let is_over = AtomicBool::new(false);
    let greedy: Vec<Greedy> = (0..GREEDY).map(|_| Greedy::default()).collect();
    let ask = &|mut asker: Asker, ids: Vec<u32>, own: &Greedy| {
        while !is_over.load(Ordering::SeqCst) {
            own.sent.fetch_add(1, Ordering::SeqCst);
            asker.is_answered(&ids)?;
            own.answered.fetch_add(1, Ordering::SeqCst);
        }
        anyhow::Ok(own.answered.load(Ordering::SeqCst))
    };
    let connect = || Asker::connect(scene.service, scene.tables);
    let mut modest = connect()?;
    let askers = greedy.iter().map(|own| Ok((connect()?, own)));
    let askers = askers.collect::<Result<Vec<_>>>()?;
    thread::scope(|scope| {
        let start = |((asker, own), from)| {
            let ids = (from..COLD_ROWS).step_by((COLD_ROWS / MANY) as usize);
            scope.spawn(move || ask(asker, ids.collect(), own))
        };
        let threads: Vec<_> = askers.into_iter().zip(0..).map(start).collect();
        let overtook = overtake(&mut modest, &greedy);
        is_over.store(true, Ordering::SeqCst);
        let mut requests = 0;
        for thread in threads {
            let answered = thread.join();
            requests += answered.map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok((requests, overtook?))
    })
}

/// Asks for a few rows, others each time; how often, until [`OVERTAKEN`] answers came before those of requests that were there first, one
/// of each greedy client.
fn overtake(modest: &mut Asker, greedy: &[Greedy]) -> Result<u64> {
    let (began, mut answers, mut overtaken) = (Instant::now(), 0, 0);
    let mut rows = (GREEDY..COLD_ROWS).step_by(3).cycle();
    while overtaken < OVERTAKEN {
        let waiting: Vec<Option<u64>> = greedy.iter().map(Greedy::waits_for).collect();
        let few: Vec<u32> = rows.by_ref().take(FEW as usize).collect();
        modest.is_answered(&few)?;
        answers += 1;
        let mut all = greedy.iter().zip(waiting);
        let still = all.all(|(own, before)| before.is_some() && own.waits_for() == before);
        overtaken += u64::from(still);
        ensure!(
            began.elapsed() < patience(),
            "{overtaken} of {answers} answers came while others waited"
        );
    }
    Ok(answers)
}

/// What the status page says of tiers.
fn tier_figure(service: &Service, key: &str) -> Result<u64> {
    let status = service.status()?;
    let figure = status["tiers"][0][key].as_u64();
    figure.with_context(|| format!("no `{key}` in {status:?}"))
}
