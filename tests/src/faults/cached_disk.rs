//! A disk below a cached table that is slow, silent, fails or reads wrong bytes.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rowmill_table::Resident;

use super::Verdict;
use super::cached::{
    Asker, COLD, COLD_ROWS, PAGE_ROWS, UNAVAILABLE, figure, file, is_counted, settings,
};
use super::disk::{self, Disk, Manner};
use super::patron::Outcome;
use super::site::{Service, Settings, Site, patience};
use super::watch::{Scene, beside_an_innocent_of};

/// A service on a slow disk, which reads three pages at a time, and a row of each page.
fn slowly(
    site: &Site,
    budget_ms: u32,
    case: impl FnOnce(&Scene<'_>, &Disk, &[u32]) -> Result<String>,
) -> Result<Verdict> {
    if let Some(why) = disk::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let cache = format!("budget_ms = {budget_ms}\nreads = 1\nread_bytes = 12288\n");
    let mut settings = alone(settings(site, &cache, "error")?)?;
    let (disk, command) = Disk::over(site, &settings.model, &[file(site)?], "rowmilld")?;
    settings.model = disk::mount_point(site)?;
    let config = site.configure(&settings)?;
    let service = Service::start_by(site, command, &config)?;
    let all: Vec<u32> = (0..COLD_ROWS).step_by(PAGE_ROWS as usize).collect();
    beside_an_innocent_of(site, service, &settings, |scene| {
        disk.be(Manner::Slow)?;
        let told = case(scene, &disk, &all);
        // A service whose reads are held could not end.
        disk.be(Manner::Good)?;
        told
    })
}

/// The same where the innocent's tables stay in memory.
pub(super) fn alone(settings: Settings) -> Result<Settings> {
    let only = format!("[[tables]]\nname = \"{COLD}\"");
    let (head, _) = settings.cached.split_once("[[tables]]").context("tables")?;
    let (_, cold) = settings.cached.split_once(&only).context("the table")?;
    Ok(Settings {
        cached: format!("{head}{only}{cold}"),
        ..settings
    })
}

/// A disk that takes longer than a row may take.
pub(super) fn late(site: &Site) -> Result<Verdict> {
    const ROUNDS: u32 = 5;
    slowly(site, 1, |scene, disk, all| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let (mut refused, mut tries) = (0, 0);
        for round in 0..ROUNDS {
            match asker.ask(all)? {
                UNAVAILABLE => refused += 1,
                other => ensure!(other == Outcome::Ok, "{other:?} of a late disk"),
            }
            // As the status advises: try again. One row is there in time, sooner or later.
            tries += asker.come(&[round * 977], patience())?;
        }
        ensure!(refused > 0, "none was late");
        is_counted(scene.service, "late", 1)?;
        disk.be(Manner::Good)?;
        Ok(format!(
            "{refused} of {ROUNDS} requests late; {ROUNDS} rows there after {tries} tries"
        ))
    })
}

/// A disk that gives each row in time, of which so many are wanted at once that the last have to wait for much longer.
pub(super) fn busy(site: &Site) -> Result<Verdict> {
    slowly(site, 200, |scene, _, all| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        asker.is_answered(all)?;
        for key in ["late", "stalled"] {
            ensure!(figure(scene.service, key)? == 0, "`{key}` is not 0");
        }
        Ok(format!("{} rows, none given up", all.len()))
    })
}

/// A disk that is slow, silent, fails or reads wrong bytes, and is well again after each.
pub(super) fn disk(site: &Site) -> Result<Verdict> {
    if let Some(why) = disk::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let mut settings = settings(site, "budget_ms = 200\n", "error")?;
    let (disk, command) = Disk::over(site, &settings.model, &[file(site)?], "rowmilld")?;
    settings.model = disk::mount_point(site)?;
    let config = site.configure(&settings)?;
    let service = Service::start_by(site, command, &config)?;
    beside_an_innocent_of(site, service, &settings, |scene| {
        let refused = manners(scene.service, &disk, scene.tables);
        // A service whose reads are held could not end.
        disk.be(Manner::Good)?;
        Ok(format!("{} rows refused, there again each time", refused?))
    })
}

/// Asks while the disk is so and so, and the log says how it is; how many rows were refused.
fn manners(service: &Service, disk: &Disk, tables: &Arc<Resident>) -> Result<u64> {
    let mut asker = Asker::connect(service, tables)?;
    let mut refused = 0;
    let cases = [
        (Manner::Slow, None),
        (Manner::Silent, Some(("late", "gives rows too late"))),
        (
            Manner::Failing,
            Some(("failed", "can't be read everywhere")),
        ),
        (
            Manner::Wrong,
            Some(("corrupt", "don't match their checksums")),
        ),
    ];
    for (round, (manner, counted)) in cases.into_iter().enumerate() {
        let ids: Vec<u32> = (1..9).map(|i| 1000 * i + round as u32).collect();
        disk.be(manner)?;
        match counted {
            None => {
                asker.come(&ids, patience())?;
            }
            Some((counted, said)) => {
                refused += asker.none_is_there(ids.iter().copied())?;
                is_counted(service, counted, ids.len() as u64)?;
                service.wait_for_log(said, patience())?;
            }
        }
        let held = disk.held();
        let holds = manner == Manner::Silent;
        ensure!((held > 0) == holds, "{held} reads are held");
        disk.be(Manner::Good)?;
        let well = asker.come(&ids, patience());
        well.with_context(|| format!("well again after {manner:?}"))?;
    }
    Ok(refused)
}
