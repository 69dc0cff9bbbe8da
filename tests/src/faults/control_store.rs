//! The control plane's file is damaged, or its disk full.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::control::{control_plane, control_plane_at, kill, says};
use super::operator::{following, wishes, wishes_until};
use super::site::{Service, Site, patience, until};
use super::small_disk::{self, SmallDisk};
use super::watch::beside_an_innocent;

/// Bytes of the control plane's disk: what its file takes at first, and a MiB or two.
const DISK: u64 = 4 << 20;
/// Settings that are made before it is full.
const BEFORE: u32 = 5;
/// More settings than there is room for on a disk that is full.
const MOST: u32 = 2000;

fn set(site: &Site, table: &str) -> Result<(bool, String)> {
    wishes(site, &["policy", "set", "faults", table, "--max", "1MiB"])
}

fn connected(service: &Service, yes: bool) -> Result<()> {
    let what = if yes { "connected" } else { "told" };
    says(service, what, |control| control["connected"] == yes)
}

/// Makes another file of the one that is good.
type Damage = fn(&mut Vec<u8>);

/// What becomes of the file.
const KINDS: [(&str, Damage); 4] = [
    ("overwritten", |bytes| bytes.fill(b'x')),
    ("cut", |bytes| bytes.truncate(bytes.len() / 2)),
    ("emptied", Vec::clear),
    ("flipped", |bytes| {
        bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
    }),
];

/// Its file is damaged between two starts: it is set aside and told, with what to do, and what is served goes on. A copy of the good one is taken up
/// where it was, and one that was begun anew is followed once the one before has been silent for a while.
pub(super) fn corrupt(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let state = site.path("control.redb");
    site.generation(2, &[])?;
    let mut running = control_plane(site)?;
    beside_an_innocent(site, &following(site, site.settings()?), |scene| {
        let service = &*scene.service;
        connected(service, true)?;
        let (is_set, said) = set(site, "small")?;
        ensure!(is_set, "{said}");
        kill(&mut running)?;
        let good = fs::read(&state).context("the state")?;
        for (number, (kind, damage)) in (1..).zip(KINDS) {
            connected(service, false)?;
            let mut bytes = good.clone();
            damage(&mut bytes);
            fs::write(&state, &bytes).context("damage")?;
            running = control_plane(site)?;
            let aside = format!("control.redb.damaged-{number}");
            is_told(site, &aside).with_context(|| format!("it is {kind}"))?;
            let kept = fs::read(site.path(&aside)).context("what was set aside")?;
            ensure!(kept == bytes, "{kind}: it is not what was found");
            connected(service, true)?;
            let said = wishes_until(site, &["policy", "show"])?;
            ensure!(!said.contains("at most"), "settings of nobody: {said}");
            kill(&mut running)?;
            // As it advises: a copy is brought back, and all is as before.
            fs::write(&state, &good).context("a copy")?;
            connected(service, false)?;
            running = control_plane(site)?;
            connected(service, true)?;
            let said = wishes_until(site, &["policy", "show"])?;
            ensure!(said.contains("at most 1.0 MiB"), "{kind}: {said}");
            kill(&mut running)?;
        }
        fs::write(&state, "x").context("damage")?;
        running = control_plane(site)?;
        // It is another one, which the dataplane refuses until the one before has been silent for 30 s.
        wishes_until(site, &["generation", "load", "2", "--model", "faults"])?;
        wishes_until(site, &["generation", "unload", "2", "--model", "faults"])?;
        let (is_set, said) = set(site, "small")?;
        ensure!(is_set, "{said}");
        connected(service, true)?;
        Ok(format!(
            "{} kinds of damage told, a copy taken up after each; one that was begun anew is followed",
            KINDS.len()
        ))
    })
}

/// That it has begun anew and says what to do.
fn is_told(site: &Site, aside: &str) -> Result<()> {
    let said = wishes_until(site, &["status", "control"])?;
    let log = fs::read_to_string(site.path("control.log")).context("its log")?;
    let parts = ["was damaged", aside, "policy set", "generation load"];
    for part in parts {
        ensure!(said.contains(part), "it does not say `{part}`: {said}");
    }
    for part in ["was damaged", aside, "have to be made again"] {
        ensure!(log.contains(part), "its log has no `{part}`: {log}");
    }
    Ok(())
}

/// Its disk is full for a while: what it took is there after a kill, what it can't keep is refused with why, and it goes on when there is room.
pub(super) fn disk_full(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let Some(disk) = SmallDisk::mount(site.path("disk"), DISK)? else {
        return Ok(small_disk::lacking());
    };
    let state = disk.path("control.redb");
    site.generation(2, &[])?;
    let mut running = control_plane_at(site, &state)?;
    beside_an_innocent(site, &following(site, site.settings()?), |scene| {
        let service = &*scene.service;
        connected(service, true)?;
        wishes_until(site, &["generation", "load", "2", "--model", "faults"])?;
        let (mut kept, mut refused) = (0, None);
        while kept < BEFORE {
            let (is_set, said) = set(site, &format!("t{kept}-"))?;
            ensure!(is_set, "{said}");
            kept += 1;
        }
        disk.fill(0)?;
        // Pages of the file that are free are used first.
        while refused.is_none() {
            ensure!(kept < MOST, "{kept} settings are kept on a full disk");
            let (is_set, said) = set(site, &format!("t{kept}-"))?;
            match is_set {
                true => kept += 1,
                false => refused = Some(said),
            }
        }
        let refusals = [
            refused.unwrap_or_default(),
            set(site, "small")?.1,
            wishes(site, &["generation", "activate", "2", "--model", "faults"])?.1,
        ];
        for said in &refusals {
            let is_told = said.contains("that the disk has room");
            ensure!(is_told, "it is not said why: {said}");
        }
        // Something small may find room in between.
        let mut said = String::new();
        let mut is_told = || -> Result<bool> {
            set(site, &format!("t{kept}-"))?;
            said = wishes(site, &["status", "control"])?.1;
            Ok(said.contains("can't be kept"))
        };
        let told = until(patience(), || is_told().unwrap_or(false));
        told.with_context(|| format!("its status does not say so: {said}"))?;
        let served = service.status()?["generation"].take();
        ensure!(served == 1, "{served} is served, which was refused");
        connected(service, true)?;
        disk.empty()?;
        let is_over = || {
            let said = wishes(site, &["status", "control"]).map(|(_, said)| said);
            said.is_ok_and(|said| !said.contains("can't be kept"))
        };
        until(2 * patience(), is_over).context("its status goes on saying that it can't keep")?;
        has(site, kept, "there is room")?;
        kill(&mut running)?;
        running = control_plane_at(site, &state)?;
        wishes_until(site, &["policy", "show"])?;
        has(site, kept, "another start")?;
        let served = service.status()?["generation"].take();
        ensure!(served == 1, "what was refused is done: {served} is served");
        wishes_until(site, &["generation", "activate", "2", "--model", "faults"])?;
        wishes_until(site, &["generation", "rollback", "--model", "faults"])?;
        wishes_until(site, &["generation", "unload", "2", "--model", "faults"])?;
        connected(service, true)?;
        Ok(format!(
            "{kept} settings kept, {} wishes refused; all there after a kill, and more taken",
            refusals.len()
        ))
    })
}

/// That it takes settings, and has so many from before.
fn has(site: &Site, kept: u32, when: &str) -> Result<()> {
    let (is_set, said) = set(site, "small")?;
    ensure!(is_set, "{when}: {said}");
    let (_, said) = wishes(site, &["policy", "show", "--json"])?;
    for number in 0..kept {
        let table = format!("\"t{number}-\"");
        ensure!(said.contains(&table), "{when}: {table} is gone: {said}");
    }
    Ok(())
}
