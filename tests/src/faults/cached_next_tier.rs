//! Two cached tables whose files are damaged alike, of which one names the next tier.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::cached::{
    Asker, COLD, COLD_ROWS, LEAST_SHARE, PAGE_ROWS, PATIENT, Page, figure_of, file, settings,
};
use super::patron::bound;
use super::site::{Service, Settings, Site, patience, until};
use super::watch::beside_an_innocent;

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

/// The same settings with two tables as [`COLD`], which names the next tier, and [`PLAIN`], which does not.
fn passing(own: Settings, copies: &Path) -> Settings {
    let share = format!("placement = \"cached\"\ncache_bytes = {LEAST_SHARE}\n");
    let cold = format!("name = \"{COLD}\"\n{share}on_failure = ");
    let next = format!("[cache]\nnext_tier = \"{}\"\n", copies.display());
    let cached = own.cached.replace("[cache]\n", &next);
    let cached = cached.replace(
        &format!("{cold}\"error\""),
        &format!("{cold}[\"next-tier\", \"error\"]"),
    );
    Settings {
        cached: format!("{cached}[[tables]]\nname = \"{PLAIN}\"\n{share}"),
        ..own
    }
}

/// Waits until so many rows were asked of the copy at least; how many were.
fn until_passed_on(service: &Service, least: u64) -> Result<u64> {
    let mut count = 0;
    let is_so = until(patience(), || {
        let page = service.status().ok();
        count = page
            .and_then(|page| page["tiers"][0]["passed_on"].as_u64())
            .unwrap_or(0);
        count >= least
    });
    is_so.with_context(|| format!("{count} rows were asked of the copy, not {least}"))?;
    Ok(count)
}

/// Waits until so many rows of a table are counted as damaged at least.
fn until_corrupt(service: &Service, table: &str, least: u64) -> Result<()> {
    let is_so = || figure_of(service, table, "corrupt").is_ok_and(|count| count >= least);
    until(bound(), is_so).with_context(|| format!("fewer than {least} damaged rows of {table}"))
}
