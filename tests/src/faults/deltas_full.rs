//! The disks that deltas are kept on are full: the control plane's, and the dataplane's, for what comes and for what is kept of it.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::control::{control_plane_and, says};
use super::deltas::{Looker, applied, delta, does_locally};
use super::deltas_control::{following, publish, until_applied};
use super::operator::wishes;
use super::site::{Settings, Site, patience, until};
use super::small_disk::{self, SmallDisk};
use super::watch::beside_an_innocent;

/// Bytes of each disk: room for a few deltas.
const DISK: u64 = 8 << 20;

/// See the module's text.
pub(super) fn disk_full(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let mount = |name: &str| SmallDisk::mount(site.path(name), DISK);
    let (Some(control_disk), Some(own_disk)) = (mount("control-disk")?, mount("own-disk")?) else {
        return Ok(small_disk::lacking());
    };
    let log = control_disk.path("log");
    let deltas = format!("[deltas]\ndirectory = \"{}\"\n", log.display());
    let _running = control_plane_and(site, &deltas)?;
    beside_an_innocent(site, &following_on(site, &own_disk)?, |scene| {
        let service = &*scene.service;
        let mut looker = Looker::new(site, &service.endpoint)?;
        let files = (1..=4).map(|sequence| delta(site, "faults", sequence));
        let files = files.collect::<Result<Vec<_>>>()?;
        let bytes = fs::metadata(&files[0])?.len();
        let gives = |file: &Path| -> Result<()> {
            let (is_done, said) = publish(site, file)?;
            ensure!(is_done, "{said}");
            Ok(())
        };
        let is_taken = || publish(site, &files[0]).is_ok_and(|(is_done, _)| is_done);
        until(patience(), is_taken).context("the first delta is not taken")?;
        until_applied(service, 1)?;
        // The control plane's.
        control_disk.fill(bytes / 2)?;
        for _ in 0..2 {
            let (is_done, said) = publish(site, &files[1])?;
            let is_told = said.contains("No space left") && said.contains(&*log.to_string_lossy());
            ensure!(!is_done && is_told, "on a full disk: {said}");
        }
        looker.all_are(1)?;
        control_disk.empty()?;
        gives(&files[1])?;
        until_applied(service, 2)?;
        let told = |part: &str| {
            let said = || wishes(site, &["delta", "log"]).map(|(_, said)| said);
            let is_told = until(patience(), || said().is_ok_and(|said| said.contains(part)));
            is_told
                .with_context(|| format!("the control plane does not say `{part}`: {:?}", said()))
        };
        // The dataplane's, for what comes: told on both sides, and it is fetched when there is room.
        fill_own(&own_disk, bytes / 2)?;
        gives(&files[2])?;
        says(service, "No space left", |control| {
            let deltas = control["deltas"].as_str().unwrap_or_default();
            deltas.contains("cannot write") && deltas.contains("No space left")
        })?;
        told("could not be fetched")?;
        ensure!(applied(service)? == 2, "it is applied, and was not kept");
        looker.all_are(2)?;
        own_disk.empty()?;
        until_applied(service, 3)?;
        looker.all_are(3)?;
        // And for what is kept of what has come: told on both sides; an operator who has made room has it applied at once.
        fill_own(&own_disk, bytes + bytes / 2)?;
        gives(&files[3])?;
        told("cannot keep it in")?;
        ensure!(applied(service)? == 3, "it is applied, and was not kept");
        looker.all_are(3)?;
        own_disk.empty()?;
        does_locally(site, service, &files[3])?;
        looker.all_are(4)?;
        says(service, "fetched", |control| control["deltas"] == "fetched")?;
        drop(looker);
        Ok("refused by the control plane, told by the dataplane twice, and all 4 applied".into())
    })
}

/// Fills the dataplane's disk, but for so many bytes, when it has put away what came.
fn fill_own(disk: &SmallDisk, but: u64) -> Result<()> {
    let incoming = disk.path("deltas/faults/incoming.tmp");
    until(patience(), || !incoming.exists()).context("what came stays")?;
    disk.fill(but)
}

/// Settings of a service that keeps its deltas there.
fn following_on(site: &Site, disk: &SmallDisk) -> Result<Settings> {
    let own = following(site)?;
    let (before, after) = [site.path("deltas"), disk.path("deltas")]
        .map(|path| format!("directory = \"{}\"", path.display()))
        .into();
    ensure!(own.cached.contains(&before), "a directory of deltas");
    Ok(Settings {
        cached: own.cached.replace(&before, &after),
        ..own
    })
}
