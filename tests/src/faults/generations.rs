//! Another generation is loaded, served, gone back from and given up under load; is damaged; and the service is killed meanwhile.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rowmill_table::{Generation, Resident};
use rustix::process::Signal;
use serde_json::Value;

use super::Verdict;
use super::cached::{self, COLD, COLD_ROWS, PATIENT};
use super::cached_moves::anonymous_bytes;
use super::control::{control_plane, says};
use super::disk::{self, Disk, Manner};
use super::operator;
use super::patron::{Innocent, bound, bound_of_files};
use super::site::{Service, Settings, Site, patience, until};
use super::watch::{after, beside_an_innocent};

/// Rows of a table that only other generations have, of 64 bytes.
const MORE_ROWS: u32 = 200_000;
/// Most of the bytes that they take.
const MORE_BYTES: u64 = 10 << 20;

/// Settings of a service whose generations may be changed.
fn settings(site: &Site) -> Result<Settings> {
    Ok(Settings {
        // In the section of the admin pages, which is the one before.
        cached: "allow_changes = true\n".into(),
        ..site.settings()?
    })
}

/// The same where tables are cached.
fn cached_settings(site: &Site) -> Result<Settings> {
    let mut settings = cached::settings(site, PATIENT, "error")?;
    // In the section of the admin pages, which is the one before.
    settings.cached = format!("allow_changes = true\n{}", settings.cached);
    Ok(settings)
}

/// Runs `rowmill generation`. Returns whether it ended well, and what it said.
fn command(site: &Site, service: &Service, arguments: &[&str]) -> Result<(bool, String)> {
    let admin = service.admin().to_string();
    let mut all = vec!["generation"];
    all.extend(arguments);
    all.extend(["--admin", &admin]);
    let (status, said) = site.command("rowmill", &all)?;
    Ok((status.success(), said))
}

fn does(site: &Site, service: &Service, arguments: &[&str]) -> Result<()> {
    let (is_done, said) = command(site, service, arguments)?;
    ensure!(is_done, "{arguments:?}: {said}");
    Ok(())
}

/// The generations that a service holds, the newest first.
fn held(service: &Service) -> Result<Vec<u64>> {
    let status = service.status()?;
    let held = status["generations"].as_array().context("a list")?;
    let numbers = held.iter().map(|one| one["generation"].as_u64());
    numbers.collect::<Option<_>>().context("numbers")
}

/// Two generations take turns under the load of three clients, and each is loaded anew.
pub(super) fn switched(site: &Site) -> Result<Verdict> {
    let settings = settings(site)?;
    site.generation(2, &[("more", MORE_ROWS)])?;
    take_turns(site, &settings, bound())
}

/// The same where three tables are cached, of which one is longer in the second generation.
pub(super) fn cached(site: &Site) -> Result<Verdict> {
    let settings = cached_settings(site)?;
    site.generation(2, &[(COLD, COLD_ROWS + 20_000), ("more", MORE_ROWS)])?;
    take_turns(site, &settings, bound_of_files())
}

fn take_turns(site: &Site, settings: &Settings, limit: Duration) -> Result<Verdict> {
    const ROUNDS: u32 = 3;
    const SWITCHES: u32 = 8;
    let others: Vec<Arc<Resident>> = site.others()?;
    beside_an_innocent(site, settings, |scene| {
        let endpoint = scene.service.endpoint.clone();
        let tables = (scene.tables, &others[..]);
        let start = |_| Innocent::start_with(&endpoint, tables, false, limit);
        let crowd = (0..2).map(start).collect::<Result<Vec<_>>>()?;
        let process = scene.service.process().id();
        let service = &*scene.service;
        let mut first = None;
        for round in 0..ROUNDS {
            does(site, service, &["load", "2"])?;
            for _ in 0..SWITCHES {
                does(site, service, &["activate", "2"])?;
                ensure!(held(service)? == [2, 1], "2 is not served");
                does(site, service, &["rollback"])?;
                ensure!(held(service)? == [1, 2], "1 is not served again");
            }
            let with = anonymous_bytes(process)?;
            does(site, service, &["unload", "2"])?;
            ensure!(held(service)? == [1], "2 is still held");
            let without = anonymous_bytes(process)?;
            ensure!(
                with >= without + MORE_BYTES,
                "{with} bytes are held with two generations, and {without} with one, in round {round}"
            );
            // What a round leaves behind, the next would add to.
            let first = *first.get_or_insert(without);
            ensure!(
                without < first + MORE_BYTES,
                "{without} bytes are held after round {round}, and {first} were after the first"
            );
        }
        let (mut answers, mut of_others, mut retried) = (0, 0, 0);
        for client in crowd {
            let seen = client.finish()?;
            answers += seen.answers;
            of_others += seen.of_others;
            retried += seen.retried;
            ensure!(
                seen.of_others > 0,
                "a client never had the other generation"
            );
            ensure!(
                seen.of_others < seen.answers,
                "a client only had the other generation"
            );
        }
        let switches = ROUNDS * SWITCHES * 2;
        Ok(format!(
            "{switches} switches in {ROUNDS} loads, {answers} answers to 2 others meanwhile, {of_others} of them of the other generation, \
             {retried} sent again"
        ))
    })
}

/// The file of a generation's last table.
fn last_table(directory: &Path) -> Result<PathBuf> {
    let generation = Generation::open(directory)?;
    Ok(generation.path(generation.tables().last().context("a table")?))
}

/// Copies a generation.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Copies a generation, and changes a byte in the middle of its last table.
fn damage(from: &Path, to: &Path) -> Result<()> {
    copy(from, to)?;
    let file = last_table(to)?;
    let mut bytes = fs::read(&file)?;
    let at = bytes.len() / 2;
    bytes[at] ^= 0x40;
    fs::write(&file, bytes)?;
    Ok(())
}

/// A generation that can't be loaded is told, and nothing of it stays; one that can is loaded after it.
pub(super) fn damaged(site: &Site) -> Result<Verdict> {
    let settings = settings(site)?;
    let whole = site.generation(2, &[("more", MORE_ROWS)])?;
    damage(&whole, &site.path("damaged"))?;
    let no_table = site.path("cut");
    damage(&whole, &no_table)?;
    fs::write(last_table(&no_table)?, "short")?;
    beside_an_innocent(site, &settings, |scene| {
        let process = scene.service.process().id();
        let service = &*scene.service;
        let before = anonymous_bytes(process)?;
        let cases = [
            ("damaged", "damaged"),
            ("cut", "promise"),
            ("nowhere", "cannot open"),
            ("77", "there is no generation 77"),
        ];
        for (source, why) in cases {
            for _ in 0..2 {
                let (is_done, said) = command(site, service, &["load", source])?;
                let is_told = said.contains("everything is as it was") && said.contains(why);
                ensure!(!is_done && is_told, "load {source}: {said}");
                ensure!(held(service)? == [1], "another generation is held");
            }
        }
        let bytes = anonymous_bytes(process)?;
        ensure!(
            bytes < before + MORE_BYTES,
            "{bytes} bytes are held, and {before} were before"
        );
        // Directories of which some are damaged don't keep a whole one from being found.
        does(site, service, &["load", "generation-2"])?;
        does(site, service, &["unload", "2"])?;
        Ok(format!(
            "{} loads failed and changed nothing",
            2 * cases.len()
        ))
    })
}

/// A cached table's file of a generation that is loaded has other rows all over, as that of yet another generation would: it is not loaded, since
/// who asked for those rows would be the first to see.
pub(super) fn cached_strange(site: &Site) -> Result<Verdict> {
    let settings = cached_settings(site)?;
    let whole = site.generation(2, &[(COLD, COLD_ROWS), ("more", MORE_ROWS)])?;
    let strange = site.path("strange");
    copy(&whole, &strange)?;
    let generation = Generation::open(&strange)?;
    let file = generation.path(generation.table(COLD)?);
    let mut bytes = fs::read(&file)?;
    // But its head, and what ends it.
    let part = bytes.len() / 16;
    let rows = part..bytes.len() - part;
    let rows = bytes[rows].iter_mut().step_by(512);
    rows.for_each(|byte| *byte ^= 0x40);
    fs::write(&file, bytes)?;
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        let (is_done, said) = command(site, service, &["load", "strange"])?;
        let is_told = said.contains("everything is as it was") && said.contains("checksums");
        ensure!(!is_done && is_told, "load strange: {said}");
        ensure!(held(service)? == [1], "another generation is held");
        does(site, service, &["load", "generation-2"])?;
        does(site, service, &["unload", "2"])?;
        Ok("it was not loaded, the whole one was".to_owned())
    })
}

/// `kill -9` while another generation is loaded, and again while it is served: the next start serves the one that is configured.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    let settings = settings(site)?;
    site.generation(2, &[("more", 8 * MORE_ROWS)])?;
    kill_meanwhile(site, &settings, bound())
}

/// The same where three tables are cached, whose hot rows are loaded, too.
pub(super) fn cached_killed(site: &Site) -> Result<Verdict> {
    let settings = cached_settings(site)?;
    site.generation(2, &[(COLD, COLD_ROWS + 20_000), ("more", 8 * MORE_ROWS)])?;
    kill_meanwhile(site, &settings, bound_of_files())
}

fn kill_meanwhile(site: &Site, settings: &Settings, limit: Duration) -> Result<Verdict> {
    let why_not = disk::why_not(site)?;
    let tables = site.tables()?;
    let others = site.others()?;
    let mut loading = String::new();
    for is_served in [false, true] {
        if let Some(why) = why_not.as_ref().filter(|_| !is_served) {
            loading = format!("not tried: {why}");
            continue;
        }
        let mut disk = None;
        let mut service = match is_served {
            true => site.start(settings)?,
            // The other generation's files lie on a disk that stops answering while the last of them is read.
            false => {
                let folder = site.path("generation-2");
                let (slow, command) =
                    Disk::over(site, &folder, &[last_table(&folder)?], "rowmilld")?;
                disk = Some(slow);
                Service::start_by(site, command, &site.configure(settings)?)?
            }
        };
        let answers_of = (&tables, &others[..]);
        let client = Innocent::start_with(&service.endpoint, answers_of, false, limit)?;
        until(limit, || client.answers() >= 5).context("its first answers")?;
        match &disk {
            None => {
                does(site, &service, &["load", "2"])?;
                does(site, &service, &["activate", "2"])?;
                ensure!(held(&service)? == [2, 1], "generation 2 is not served");
            }
            Some(disk) => loading = load_in_part(site, &service, disk)?,
        }
        service.process().signal(Signal::KILL)?;
        if let Some(disk) = &disk {
            // Reads that have begun end before the process does, which does nothing else any more.
            disk.be(Manner::Failing)?;
        }
        ensure!(service.process().end(patience()).is_some(), "it was killed");
        // Its connection ended, and no answer before that was wrong.
        let ended = client.finish().err().context("the service is gone")?;
        let ended = format!("{ended:#}");
        let is_end =
            ended.contains("Disconnected") || ended.contains("gone") || ended.contains("closed");
        ensure!(is_end, "{ended}");
    }
    let mut service = site.start(settings)?;
    ensure!(
        held(&service)? == [1],
        "the configured generation is not served"
    );
    after(&mut service, &tables)?;
    does(site, &service, &["load", "2"])?;
    Ok(Verdict::Pass(format!(
        "killed while loading ({loading}) and while serving"
    )))
}

/// Has the generation on the disk loaded until some of it is there and no more comes: what the status page says of that.
fn load_in_part(site: &Site, service: &Service, disk: &Disk) -> Result<String> {
    let folder = disk::mount_point(site)?;
    let head = format!(
        "POST /generations/load?directory={} HTTP/1.1\r\nHost: x\r\n\r\n",
        folder.display()
    );
    disk.be(Manner::Slow)?;
    let reply = service.ask(head.as_bytes())?;
    ensure!(reply.contains(" 202 "), "{reply}");
    let change = || {
        service
            .status()
            .map(|mut page| page["generation_changes"][0].take())
    };
    let is_in_part = |change: &Value| {
        let detail = change["detail"].as_str().unwrap_or_default();
        let percent = detail
            .split_once(": ")
            .and_then(|(_, of)| of.split_once(" %"));
        let percent = percent.and_then(|(percent, _)| percent.parse().ok());
        change["state"] == "running" && percent.is_some_and(|percent| (1..100).contains(&percent))
    };
    let mut last = Value::Null;
    let begun = until(patience(), || {
        last = change().unwrap_or_default();
        is_in_part(&last)
    });
    begun.with_context(|| format!("it is not being loaded: {last}"))?;
    disk.be(Manner::Silent)?;
    until(patience(), || disk.held() > 0).context("no read is held")?;
    let last = change()?;
    ensure!(is_in_part(&last), "it is loaded to its end: {last}");
    ensure!(held(service)? == [1], "it is held already");
    Ok(last["detail"].as_str().unwrap_or_default().to_owned())
}

/// By way of the control plane, which is killed while a generation is loaded, and again when it is served.
pub(super) fn by_control_plane(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let address = operator::address(site);
    let settings = operator::following(site, settings(site)?);
    site.generation(2, &[("more", MORE_ROWS)])?;
    let others = site.others()?;
    let mut running = control_plane(site)?;
    let wish = |arguments: &[&str]| -> Result<(bool, String)> {
        let words = [&["generation"], arguments, &["--model", "faults"]].concat();
        operator::wishes(site, &words)
    };
    let does = |arguments: &[&str]| -> Result<()> {
        let (is_done, said) = wish(arguments)?;
        ensure!(is_done, "{arguments:?}: {said}");
        Ok(())
    };
    let begins_to_load = |number: &str| {
        let mut load = site.programs.leashed("rowmill");
        load.args(["generation", "load", number]);
        load.args(["--model", "faults", "--control", &address]);
        load.spawn().context("rowmill")
    };
    beside_an_innocent(site, &settings, |scene| {
        let endpoint = scene.service.endpoint.clone();
        let client = Innocent::start_with(&endpoint, (scene.tables, &others[..]), false, bound())?;
        let service = &*scene.service;
        let is_connected = |control: &serde_json::Value| control["connected"] == true;
        let holds = |wanted: &[u64]| {
            let is_so = || held(service).is_ok_and(|held| held == wanted);
            until(2 * patience(), is_so).with_context(|| format!("{wanted:?} is not held"))
        };
        says(service, "connected", is_connected)?;
        until(2 * patience(), || {
            wish(&["list"]).is_ok_and(|(done, _)| done)
        })?;
        // A wish is kept before it is answered: whoever is killed then goes on with it.
        let mut load = begins_to_load("2")?;
        let is_wished =
            || wish(&["list"]).is_ok_and(|(_, said)| said.contains("1, 2 are to be held"));
        until(patience(), is_wished).context("the wish")?;
        running.signal(Signal::KILL)?;
        running.end(patience()).context("it was killed")?;
        let _lost = load.wait().context("rowmill")?;
        running = control_plane(site)?;
        holds(&[1, 2])?;
        says(service, "connected", is_connected)?;
        // The control plane knows of it with the next report.
        let activate = || wish(&["activate", "2"]).is_ok_and(|(done, _)| done);
        until(2 * patience(), activate).context("activate")?;
        ensure!(held(service)? == [2, 1], "2 is not served");
        running.signal(Signal::KILL)?;
        running.end(patience()).context("it was killed")?;
        ensure!(held(service)? == [2, 1], "2 is not served any more");
        // What is asked for here while nobody is heard there stands until somebody is.
        says(service, "not connected", |control| {
            control["connected"] == false
        })?;
        let (is_done, said) = command(site, service, &["rollback"])?;
        let is_told = said.contains("is not heard: this stands until it is");
        ensure!(is_done && is_told, "rollback: {said}");
        for _ in 0..20 {
            ensure!(held(service)? == [1, 2], "the rollback was taken back");
            std::thread::sleep(Duration::from_millis(100));
        }
        running = control_plane(site)?;
        holds(&[2, 1]).context("what the control plane wants")?;
        // It knows of that with the next report.
        until(2 * patience(), activate).context("activate again")?;
        says(service, "connected", is_connected)?;
        until(2 * patience(), || {
            wish(&["rollback"]).is_ok_and(|(done, _)| done)
        })
        .context("rollback")?;
        holds(&[1, 2])?;
        does(&["unload", "2"])?;
        ensure!(held(service)? == [1], "2 is still held");
        let (is_done, said) = wish(&["load", "77"])?;
        let is_told = said.contains("there is no generation 77");
        let is_taken_back = said.contains("everything is as it was");
        ensure!(!is_done && is_told && is_taken_back, "load 77: {said}");
        let (is_done, said) = wish(&["activate", "77"])?;
        let is_told = said.contains("is not held: load it first");
        ensure!(!is_done && is_told, "activate 77: {said}");
        ensure!(held(service)? == [1], "another generation is held");
        // A load that nobody takes back, for a generation that comes later: wished for again, it is tried at once.
        let mut load = begins_to_load("78")?;
        let is_refused =
            || wish(&["list"]).is_ok_and(|(_, said)| said.contains("there is no generation 78"));
        until(patience(), is_refused).context("that there is no generation 78")?;
        load.kill().context("rowmill")?;
        let _killed = load.wait().context("rowmill")?;
        site.generation(78, &[("more", MORE_ROWS)])?;
        does(&["load", "78"])?;
        does(&["unload", "78"])?;
        // Nor has it taken another's place.
        does(&["load", "2"])?;
        does(&["unload", "2"])?;
        let seen = client.finish()?;
        ensure!(seen.of_others > 0, "the other generation was never served");
        Ok(format!(
            "killed twice; {} answers, {} of the other generation, {} sent again",
            seen.answers, seen.of_others, seen.retried
        ))
    })
}
