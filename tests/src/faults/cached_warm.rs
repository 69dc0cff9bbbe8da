//! The list of hot rows: after `kill -9` they are loaded first, and a disk that is full harms neither the list nor anybody.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::Verdict;
use super::cached::{Asker, COLD, LEAST_SHARE, PATIENT, figure, settings};
use super::patron::{Innocent, bound_of_files};
use super::site::{Service, Settings, Site, patience, slowness, until};
use super::small_disk::{self, SmallDisk};
use super::watch::{after, beside_an_innocent};

/// Rows that are asked for, and those that a share has room for.
const HOT: u32 = 1_000;
const SHARE: u32 = 4 * HOT * 72;
/// Rows of a request.
const AT_ONCE: usize = 250;
/// Within this they are there again.
const WARM: Duration = Duration::from_secs(5);

/// Cached tables, of which [`COLD`] has room for all rows that are asked for, and a list at `file` that is written each second.
fn warm_settings(site: &Site, file: &Path) -> Result<Settings> {
    let cache = format!(
        "{PATIENT}warm_file = \"{}\"\nwarm_every_s = 1\n",
        file.display()
    );
    let mut settings = settings(site, &cache, "error")?;
    let [least, share] = [LEAST_SHARE, SHARE].map(|bytes| format!("cache_bytes = {bytes}\n"));
    ensure!(settings.cached.contains(&least), "the least share");
    settings.cached = settings.cached.replace(&least, &share);
    Ok(settings)
}

/// The hot rows, as many a request as fit.
fn hot() -> Vec<Vec<u32>> {
    let rows: Vec<u32> = (0..HOT).map(|row| 97 * row).collect();
    rows.chunks(AT_ONCE).map(<[u32]>::to_vec).collect()
}

fn ask(asker: &mut Asker) -> Result<()> {
    hot().iter().try_for_each(|rows| asker.is_answered(rows))
}

/// A figure of the list.
fn of_list(service: &Service, key: &str) -> Result<u64> {
    let status = service.status()?;
    status["warm"][key].as_u64().context("a figure of the list")
}

fn is_listed(service: &Service) -> bool {
    of_list(service, "rows").is_ok_and(|rows| rows >= u64::from(HOT))
}

/// `kill -9` under load, and another start at once: the hot rows come without anybody asking for them.
pub(super) fn restarted(site: &Site) -> Result<Verdict> {
    let settings = warm_settings(site, &site.path("warm"))?;
    let tables = site.tables()?;
    let mut service = site.start(&settings)?;
    let client = Innocent::start(&service.endpoint, &tables, false, bound_of_files())?;
    ask(&mut Asker::connect(&service, &tables)?)?;
    until(patience(), || is_listed(&service)).context("the list")?;
    until(patience(), || client.answers() >= 5).context("answers")?;
    service.process().signal(Signal::KILL)?;
    // At once: the former may still be there.
    let began = Instant::now();
    let mut again = site.start(&settings)?;
    let ready = began.elapsed();
    ensure!(service.process().end(patience()).is_some(), "it was killed");
    client.finish().err().context("the service is gone")?;
    let is_warm = || figure(&again, "held_rows").is_ok_and(|held| held >= u64::from(HOT) * 9 / 10);
    until(WARM * slowness(), is_warm).context("its hot rows")?;
    let warm = began.elapsed();
    let hits = figure(&again, "hits")?;
    ask(&mut Asker::connect(&again, &tables)?)?;
    let hits = figure(&again, "hits")? - hits;
    ensure!(
        hits >= u64::from(HOT) * 9 / 10,
        "{hits} of {HOT} rows were there"
    );
    after(&mut again, &tables)?;
    Ok(Verdict::Pass(format!(
        "ready after {:.1} s, warm after {:.1} s, {hits} of {HOT} hot rows there",
        ready.as_secs_f64(),
        warm.as_secs_f64()
    )))
}

/// The list's disk is full for a while: it is told, the list that was there stays, and it is written again when there is room.
pub(super) fn disk_full(site: &Site) -> Result<Verdict> {
    let Some(disk) = SmallDisk::mount(site.path("disk"), 64 << 10)? else {
        return Ok(small_disk::lacking());
    };
    let list = disk.path("warm");
    let settings = warm_settings(site, &list)?;
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        let mut asker = Asker::connect(service, scene.tables)?;
        ask(&mut asker)?;
        until(patience(), || is_listed(service)).context("the list")?;
        disk.fill(0)?;
        let before = fs::read(&list)?;
        // There is something to write.
        asker.is_answered(&[1, 2, 3])?;
        let failed = || of_list(service, "failures").is_ok_and(|failures| failures >= 2);
        until(patience(), failed).context("failures")?;
        ensure!(fs::read(&list)? == before, "the list changed");
        ask(&mut asker)?;
        disk.empty()?;
        let is_anew = || fs::read(&list).is_ok_and(|list| list != before);
        until(patience(), is_anew).context("the list, when there was room again")?;
        Ok(format!(
            "{} times not written, {} rows listed of table {COLD} and others",
            of_list(service, "failures")?,
            of_list(service, "rows")?
        ))
    })
}
