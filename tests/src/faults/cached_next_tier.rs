//! Cached tables that name the next tier: files that are damaged beside one that does not, and a disk that answers nothing.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::cached::{
    Asker, COLD, COLD_ROWS, LEAST_SHARE, PAGE_ROWS, PATIENT, Page, figure_of, file, settings,
};
use super::cached_disk::alone;
use super::disk::{self, Disk, Manner};
use super::site::{Running, Service, Settings, Site, patience, until};
use super::watch::{beside_an_innocent, beside_an_innocent_of};

/// The other table, as [`COLD`] but for the next tier.
const PLAIN: &str = "plain";

/// The first table's rows come from the copy, the other's are refused; where the copy is damaged too, the first one's are.
pub(super) fn next_tier(site: &Site) -> Result<Verdict> {
    site.model_with(&[(COLD, COLD_ROWS), (PLAIN, COLD_ROWS)])?;
    let copies = site.path("copies");
    fs::create_dir_all(&copies).context("a folder")?;
    let settings = passing(settings(site, PATIENT, "error")?, &copies);
    let said = site.refused(&site.configure(&settings)?)?;
    let part = "table cold: cache.next_tier is to have a copy of its file";
    ensure!(said.contains(part), "it does not say `{part}`: {said}");
    // Only the one: there is nothing that the other's rows could come from.
    let own = file(site)?;
    let copy = copies.join(own.file_name().context("a file")?);
    fs::copy(&own, &copy).context("a copy")?;
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        let chosen = format!("next tier: {} for {COLD}: ", copies.display());
        ensure!(service.log().contains(&chosen), "no `{chosen}` in its log");
        let mut asker = Asker::connect(service, scene.tables)?;
        let mut plain = Asker::of(PLAIN, service, scene.tables)?;
        let page = Page::damage(site, 20, &mut asker)?;
        let same = Page::damage(site, 20, &mut plain)?;

        let from = *page.ids.start();
        let mixed: Vec<u32> = (from - 70..from + 134).collect();
        asker.is_answered(&mixed).context("from the copy")?;
        let came = until_passed_on(service, PAGE_ROWS.into())?;
        service.wait_for_log("rows are read from cache.next_tier", patience())?;
        let corrupt = figure_of(service, COLD, "corrupt")?;
        ensure!(corrupt == 0, "{corrupt} rows are said to be damaged");

        let refused = plain.none_is_there(same.rows())?;
        until_corrupt(service, PLAIN, refused)?;

        let both = [
            Page::damage(site, 30, &mut asker)?,
            Page::damage_in(&copy, 30)?,
        ];
        let failed = asker.none_is_there(both[0].rows())?;
        until_corrupt(service, COLD, failed)?;
        let said = format!("table {COLD}: its copy {} has pages", copy.display());
        service.wait_for_log(&said, patience())?;
        // With each of these, as they were asked for one at a time, and with none of the other table's.
        let passed_on = until_passed_on(service, came + failed)?;
        ensure!(
            passed_on == came + failed,
            "{passed_on} rows were asked of the copy, {came} and {failed} of {COLD}"
        );
        both.iter().chain([&page, &same]).try_for_each(Page::mend)?;
        let all: Vec<u32> = (from - 70..from + 11 * PAGE_ROWS).collect();
        asker.is_answered(&all).context("when it is whole again")?;
        plain.is_answered(&all).context("when it is whole again")?;
        Ok(format!(
            "{came} rows came from the copy, {refused} of the other table refused, and {failed} where the copy was damaged too"
        ))
    })
}

/// A disk that takes as many reads as it may and answers none: rows come from the copy, however many are wanted.
pub(super) fn silent(site: &Site) -> Result<Verdict> {
    const ROUNDS: u32 = 4;
    if let Some(why) = disk::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let (settings, disk, command) = on_a_disk(site, "budget_ms = 400\nreads = 4\n")?;
    let config = site.configure(&settings)?;
    let service = Service::start_by(site, command, &config)?;
    beside_an_innocent_of(site, service, &settings, |scene| {
        disk.be(Manner::Silent)?;
        let told = (0..ROUNDS).try_fold(0, |rows, round| {
            // Of a page each.
            let ids = (round..COLD_ROWS).step_by(COLD_ROWS as usize / 64);
            let ids: Vec<u32> = ids.collect();
            let mut asker = Asker::connect(scene.service, scene.tables)?;
            asker
                .is_answered(&ids)
                .with_context(|| format!("request {round}"))?;
            anyhow::Ok(rows + ids.len())
        });
        let held = disk.held();
        let bypassed = state(scene.service);
        // A service whose reads are held could not end.
        disk.be(Manner::Good)?;
        let (rows, bypassed) = (told?, bypassed?);
        ensure!(held > 0, "no read is held");
        ensure!(bypassed == "bypassed", "its file is said to be {bypassed}");
        until_passed_on(scene.service, rows as u64)?;
        let stalled = figure_of(scene.service, COLD, "stalled")?;
        ensure!(stalled == 0, "{stalled} rows were given up");
        // It is read again as soon as it has answered for all workers: they ask it for a row whenever they are asked for some.
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let mut cold = (0..COLD_ROWS).step_by(1001).cycle();
        let is_read = until(patience(), || {
            let ids: Vec<u32> = cold.by_ref().take(16).collect();
            let is_answered = asker.is_answered(&ids).is_ok();
            is_answered && state(scene.service).is_ok_and(|state| state == "read")
        });
        is_read.context("its file is not read again")?;
        Ok(format!(
            "{rows} rows from the copy, while the disk held {held} reads, and the file read again then"
        ))
    })
}

/// A disk that fails before the start: it is served all the same, from the copy.
pub(super) fn start(site: &Site) -> Result<Verdict> {
    if let Some(why) = disk::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let (settings, disk, command) = on_a_disk(site, PATIENT)?;
    let config = site.configure(&settings)?;
    disk.be(Manner::Failing)?;
    let service = Service::start_by(site, command, &config)?;
    beside_an_innocent_of(site, service, &settings, |scene| {
        let ids: Vec<u32> = (0..COLD_ROWS).step_by(COLD_ROWS as usize / 64).collect();
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        asker.is_answered(&ids).context("from the copy")?;
        let came = until_passed_on(scene.service, ids.len() as u64)?;
        disk.be(Manner::Good)?;
        Ok(format!("{came} rows from the copy"))
    })
}

/// A disk that answers nothing before the start: `--check` says which file it waits for, and goes on once it answers.
pub(super) fn start_hangs(site: &Site) -> Result<Verdict> {
    if let Some(why) = disk::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let (settings, disk, mut command) = on_a_disk(site, PATIENT)?;
    let config = site.configure(&settings)?;
    disk.be(Manner::Silent)?;
    let path = site.path("check");
    let output = fs::File::create(&path).context("a file for output")?;
    command.arg("--check").arg("--config").arg(&config);
    command.stderr(output.try_clone()?).stdout(output);
    let mut check = Running(command.spawn().context("starting rowmilld")?);
    let said = || fs::read_to_string(&path).unwrap_or_default();
    let name = file(site)?;
    let name = settings.model.join(name.file_name().context("a name")?);
    let waits = format!("waiting for {} for ", name.display());
    let is_said = until(patience(), || said().contains(&waits));
    disk.be(Manner::Good)?;
    is_said.with_context(|| format!("it does not say `{waits}`: {}", said()))?;
    let status = check.end(patience()).context("it does not end")?;
    ensure!(status.success(), "{status}: {}", said());
    Ok(Verdict::Pass(format!(
        "`{waits}` is said, and then the rest"
    )))
}

/// Settings with [`COLD`] on a disk of its own, of which there is a whole copy, and what starts a service that sees that disk.
fn on_a_disk(site: &Site, cache: &str) -> Result<(Settings, Disk, Command)> {
    let settings = alone(settings(site, cache, "error")?)?;
    let (own, copies) = (file(site)?, site.path("copies"));
    fs::create_dir_all(&copies).context("a folder")?;
    fs::copy(&own, copies.join(own.file_name().context("a file")?)).context("a copy")?;
    let mut settings = naming(settings, &copies);
    let (disk, command) = Disk::over(site, &settings.model, &[own], "rowmilld")?;
    settings.model = disk::mount_point(site)?;
    Ok((settings, disk, command))
}

/// The same settings with two tables as [`COLD`], which names the next tier, and [`PLAIN`], which does not.
fn passing(own: Settings, copies: &Path) -> Settings {
    let own = naming(own, copies);
    let plain = format!("[[tables]]\nname = \"{PLAIN}\"\n{}", share());
    Settings {
        cached: own.cached + &plain,
        ..own
    }
}

/// Where a table of these is, and how large its share.
fn share() -> String {
    format!("placement = \"cached\"\ncache_bytes = {LEAST_SHARE}\n")
}

/// The same settings with a next tier that [`COLD`] names.
fn naming(own: Settings, copies: &Path) -> Settings {
    let cold = format!("name = \"{COLD}\"\n{}on_failure = ", share());
    let next = format!("[cache]\nnext_tier = \"{}\"\n", copies.display());
    let cached = own.cached.replace("[cache]\n", &next);
    let cached = cached.replace(
        &format!("{cold}\"error\""),
        &format!("{cold}[\"next-tier\", \"error\"]"),
    );
    Settings { cached, ..own }
}

/// Waits until so many rows of [`COLD`] were asked of its copy at least; how many were.
fn until_passed_on(service: &Service, least: u64) -> Result<u64> {
    let mut count = 0;
    let is_so = until(patience(), || {
        let page = service.status().ok();
        count = page
            .and_then(|page| {
                let mut files = page["files"].as_array()?.iter();
                let copy = files.find(|file| {
                    (&file["table"], &file["tier"]) == (&COLD.into(), &"copy".into())
                })?;
                copy["fetched"].as_u64()
            })
            .unwrap_or(0);
        count >= least
    });
    is_so.with_context(|| format!("{count} rows were asked of the copy, not {least}"))?;
    Ok(count)
}

/// The word for how the model's own file of [`COLD`] is.
fn state(service: &Service) -> Result<String> {
    let page = service.status()?;
    let mut files = page["files"].as_array().context("files")?.iter();
    let own = files.find(|file| (&file["table"], &file["tier"]) == (&COLD.into(), &"file".into()));
    let state = own.context("its file")?["state"].as_str();
    Ok(state.context("a state")?.to_owned())
}

/// Waits until so many rows of a table are counted as damaged at least.
fn until_corrupt(service: &Service, table: &str, least: u64) -> Result<()> {
    let is_so = || figure_of(service, table, "corrupt").is_ok_and(|count| count >= least);
    until(patience(), is_so).with_context(|| format!("fewer than {least} damaged rows of {table}"))
}
