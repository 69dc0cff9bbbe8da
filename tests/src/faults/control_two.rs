//! Two control planes, each with a state of its own, at one address: it leads to one of them at a time.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rowmill_link::Order;
use serde_json::Value;

use super::Verdict;
use super::cached::{Asker, COLD, PATIENT, figure, settings};
use super::control::{control_plane_named, kill, says, some};
use super::operator::{following, wishes_until_at};
use super::site::{Site, patience};
use super::watch::{Scene, beside_an_innocent};

/// The one that is followed first, and the other one.
const FIRST: &str = "first";
const SECOND: &str = "second";
/// Bytes that cached tables have together.
const ARENA: u64 = 2_000_000;
/// The share that the first one wants at first, of which it wants multiples later; and what the second one wants all the while.
const SHARE: u64 = 200_000;
const OTHER_SHARE: u64 = 1_000_000;

/// They are two by mistake, then the one that is followed is back, and then it is gone for good.
pub(super) fn two(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let own = settings(site, &format!("{PATIENT}arena_bytes = {ARENA}\n"), "error")?;
    let mut first = control_plane_named(site, FIRST)?;
    let _second = control_plane_named(site, SECOND)?;
    lead_to(site, FIRST)?;
    wish(site, SECOND, OTHER_SHARE)?;
    beside_an_innocent(site, &following(site, own), |scene| {
        let mut load = Load::start(scene, site)?;
        wish(site, FIRST, SHARE)?;
        load.until_share(SHARE)?;
        // Who is connected stays with it, wherever the address leads.
        lead_to(site, SECOND)?;
        wish(site, FIRST, 2 * SHARE)?;
        load.until_share(2 * SHARE)?;
        let before = load.follows(&load.first)?;
        let kept = figure(scene.service, "share_bytes")?;
        kill(&mut first)?;
        let refused = load.is_refused()?;
        load.is_told_by_second()?;
        let is_kept = figure(scene.service, "share_bytes")? == kept;
        ensure!(is_kept, "its share is another one");
        first = control_plane_named(site, FIRST)?;
        lead_to(site, FIRST)?;
        load.until("the first one is not followed again", |load| {
            let order = load.follows(&load.first)?;
            Ok(order.epoch > before.epoch && load.control()?["other"].is_null())
        })?;
        wish(site, FIRST, 3 * SHARE)?;
        load.until_share(3 * SHARE)?;
        kill(&mut first)?;
        lead_to(site, SECOND)?;
        let began = Instant::now();
        let kept = figure(scene.service, "share_bytes")?;
        load.until("the second one is not followed", |load| {
            // Its share first: whoever is followed after that was then, or came later.
            let share = figure(load.scene.service, "share_bytes")?;
            let page = load.control()?;
            let followed = &page["followed"]["control"];
            ensure!(
                *followed != load.first || share == kept,
                "its share is {share} and was {kept} while the first one is followed"
            );
            Ok(*followed == load.second)
        })?;
        let took = began.elapsed().as_secs();
        load.until_share(OTHER_SHARE)?;
        let Load { asked, .. } = load;
        says(scene.service, "connected", |control| {
            control["connected"] == true && control["other"].is_null()
        })?;
        Ok(format!(
            "the second refused {refused} times, then the first followed again; gone for good, the second followed after {took} s; {asked} \
             requests for rows answered"
        ))
    })
}

/// The address that is followed leads to this one from now on.
fn lead_to(site: &Site, name: &str) -> Result<()> {
    let link = site.path("link");
    symlink(site.path(&format!("{name}.sock")), &link).context("a link")?;
    fs::rename(link, site.path("control.sock")).context("a link")
}

fn address_of(site: &Site, name: &str) -> String {
    format!("unix:{}", site.path(&format!("{name}.sock")).display())
}

/// Has one of them give the table this share.
fn wish(site: &Site, name: &str, bytes: u64) -> Result<()> {
    let share = format!("{bytes}B");
    let share = ["--min", &share, "--max", &share];
    let words = [&["policy", "set", "faults", COLD], &share[..]].concat();
    wishes_until_at(site, &address_of(site, name), &words).map(drop)
}

/// By which name one of them publishes.
fn identity(site: &Site, name: &str) -> Result<String> {
    let words = ["status", "control", "--json"];
    let page = wishes_until_at(site, &address_of(site, name), &words)?;
    let page: Value = serde_json::from_str(&page).context("a page")?;
    let control = page["status"]["control"].as_str();
    Ok(control.context("its name")?.to_owned())
}

/// Who asks for rows all the while, and knows both control planes.
struct Load<'s> {
    site: &'s Site,
    scene: &'s Scene<'s>,
    asker: Asker,
    asked: u64,
    /// By which names they publish.
    first: String,
    second: String,
}

impl<'s> Load<'s> {
    fn start(scene: &'s Scene<'s>, site: &'s Site) -> Result<Load<'s>> {
        Ok(Load {
            site,
            scene,
            asker: Asker::connect(scene.service, scene.tables)?,
            asked: 0,
            first: identity(site, FIRST)?,
            second: identity(site, SECOND)?,
        })
    }

    /// Asks for rows until it is so.
    fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> Result<bool>) -> Result<()> {
        let began = Instant::now();
        while !is_so(self)? {
            self.asked += 1;
            self.asker.is_answered(&some(self.asked))?;
            ensure!(
                began.elapsed() < 2 * patience(),
                "{what}: {}",
                self.control()?
            );
        }
        Ok(())
    }

    fn until_share(&mut self, bytes: u64) -> Result<()> {
        self.until(&format!("no share of {bytes}"), |load| {
            let share = figure(load.scene.service, "share_bytes")?;
            Ok(share.abs_diff(bytes) < SHARE / 16)
        })
    }

    /// What the status page says of the control plane.
    fn control(&self) -> Result<Value> {
        Ok(self.scene.service.status()?["control"].take())
    }

    /// That this one is followed. Returns the order of its policy.
    fn follows(&self, control: &str) -> Result<Order> {
        let page = self.control()?;
        let followed = &page["followed"];
        ensure!(followed["control"] == control, "{page} is not of {control}");
        let order = followed["order"].as_str().context("an order")?;
        Ok(order.parse()?)
    }

    /// That the second one is refused again and again, with why. Returns how often.
    fn is_refused(&mut self) -> Result<u64> {
        const TIMES: u64 = 4;
        self.until("the second one is not refused", |load| {
            let page = load.control()?;
            let why = page["other"].as_str().unwrap_or_default();
            let parts = [
                &load.first,
                &load.second,
                "two of them answer at one address",
            ];
            let is_told = parts.iter().all(|part| why.contains(*part));
            Ok(is_told && page["policies_refused"].as_u64() >= Some(TIMES))
        })?;
        self.follows(&self.first)?;
        let refused = self.control()?["policies_refused"].as_u64();
        refused.context("a count")
    }

    /// That the second one says whom the dataplane follows.
    fn is_told_by_second(&mut self) -> Result<()> {
        let first = self.first.clone();
        let told = format!("follows another control plane, {first}");
        self.until("the second one does not tell", |load| {
            let at = address_of(load.site, SECOND);
            let said = wishes_until_at(load.site, &at, &["policy", "show"])?;
            Ok(said.contains(&told))
        })
    }
}
