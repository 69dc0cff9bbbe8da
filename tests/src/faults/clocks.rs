//! The host's clock jumps, years ahead and back, while a dataplane and its control plane are at work.
//!
//! A test must not set the clock of the machine that it runs on. So the programs are run with Debian's libfaketime, which stands between them and
//! the C library and adds to the time of day what a file says. Time that only goes forward (`CLOCK_MONOTONIC`) is left as it is, as it is where a
//! clock is set.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::Verdict;
use super::control::says;
use super::deltas::{Looker, ROWS, TABLE, delta};
use super::deltas_control::{following, keeping, publish, until_applied};
use super::operator;
use super::site::{Service, Site, patience, until};
use super::watch::beside_an_innocent;

/// Years that the clock is ahead and behind: beyond all stamps that programs keep. (What a clock does to certificates is another fault's.)
const AHEAD: i64 = 40;
const BACK: i64 = -40;
const DAYS_A_YEAR: f64 = 365.2425;

/// The clock that programs see.
struct Clock {
    file: PathBuf,
}

impl Clock {
    /// None where libfaketime is not installed.
    fn new(site: &Site) -> Result<Option<Clock>> {
        let is_there = |library: &PathBuf| library.exists();
        let machines = ["x86_64", "aarch64"].into_iter();
        let at = |machine| format!("/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1");
        let Some(library) = machines.map(|machine| at(machine).into()).find(is_there) else {
            return Ok(None);
        };
        let clock = Clock {
            file: site.path("clock"),
        };
        clock.set(0)?;
        let file = clock.file.clone();
        site.programs.set_environment(vec![
            ("LD_PRELOAD", library),
            ("FAKETIME_TIMESTAMP_FILE", file),
            // The file is looked at each time.
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("FAKETIME_DISABLE_SHM", "1".into()),
        ])?;
        Ok(Some(clock))
    }

    /// So many years from what it is.
    fn set(&self, years: i64) -> Result<()> {
        let days = (years as f64 * DAYS_A_YEAR).round();
        // Nobody finds it half written.
        let beside = self.file.with_extension("next");
        fs::write(&beside, format!("{days:+}d\n")).context("the clock")?;
        fs::rename(beside, &self.file).context("the clock")
    }
}

/// The year that a line of a log begins with.
fn year(line: &str) -> Option<i64> {
    line.get(..4)?.parse().ok()
}

/// That the last line of a log is so many years from now.
fn tells(log: &str, years: i64) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let wanted = 1970 + (now / 86_400.0 / DAYS_A_YEAR) as i64 + years;
    let last = log.lines().rev().find_map(year);
    let is_so = last.is_some_and(|last| (last - wanted).abs() <= 1);
    ensure!(
        is_so,
        "{last:?} instead of {wanted}: the clock has not jumped:\n{log}"
    );
    Ok(())
}

/// Each step of a model's life, with another jump before it.
pub(super) fn jump(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let settings = following(site)?;
    site.generation(2, &[(TABLE, ROWS)])?;
    let deltas = (1..=3).map(|sequence| delta(site, "faults", sequence));
    let deltas: Vec<PathBuf> = deltas.collect::<Result<_>>()?;
    let Some(clock) = Clock::new(site)? else {
        return Ok(Verdict::Skipped(
            "needs libfaketime: install Debian's libfaketime (deploy/setup-tests.sh does)".into(),
        ));
    };
    let mut running = keeping(site)?;
    let control = operator::address(site);
    let does = |wish: &[&str]| -> Result<()> {
        let model = ["--model", "faults", "--control", &control];
        let (status, said) =
            site.command("rowmill", &[&["generation"], wish, &model[..]].concat())?;
        ensure!(status.success(), "{wish:?}: {said}");
        Ok(())
    };
    let gives = |service: &Service, sequence: u64| {
        let (is_taken, said) = publish(site, &deltas[sequence as usize - 1])?;
        ensure!(is_taken, "delta {sequence}: {said}");
        until_applied(service, sequence)
    };
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        let log_of_control = || fs::read_to_string(site.path("control.log")).unwrap_or_default();
        let connected = || {
            says(service, "connected", |control| {
                control["connected"] == true && control["deltas"] == "fetched"
            })
        };
        let served = |number: u64| -> Result<()> {
            let first = service.status()?["generations"][0]["generation"].clone();
            ensure!(first == number, "{first} is served instead of {number}");
            Ok(())
        };
        connected()?;
        clock.set(AHEAD)?;
        gives(service, 1)?;
        tells(&service.log(), AHEAD)?;
        does(&["load", "2"])?;
        clock.set(BACK)?;
        does(&["activate", "2"])?;
        served(2)?;
        tells(&service.log(), BACK)?;
        // What it has kept is of a time to come when it starts.
        running.signal(Signal::KILL)?;
        running.end(patience()).context("it was killed")?;
        running = keeping(site)?;
        until(patience(), || log_of_control().contains("listens on")).context("its start")?;
        connected()?;
        tells(&log_of_control(), BACK)?;
        // It knows of the dataplane with its next report.
        until(2 * patience(), || does(&["rollback"]).is_ok()).context("rollback")?;
        served(1)?;
        gives(service, 2)?;
        clock.set(AHEAD)?;
        does(&["unload", "2"])?;
        gives(service, 3)?;
        let mut looker = Looker::new(site, &service.endpoint)?;
        looker.all_are(3)?;
        clock.set(0)?;
        connected()?;
        Ok(format!(
            "four jumps of {AHEAD} or {} years, of both programs",
            AHEAD - BACK
        ))
    })
}
