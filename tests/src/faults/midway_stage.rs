//! What takes part where a change is under way for certain: a control plane, who gives it deltas, another dataplane, and who is killed of them.

use std::process::Stdio;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use rowmill_table::Resident;
use rustix::process::Signal;

use super::cached::{COLD, COLD_ROWS};
use super::deltas::{ROWS, TABLE, delta};
use super::deltas_control::{adding, following, keeping, keeping_from, publish, redis};
use super::held;
use super::operator::{address, wishes_until};
use super::remote;
use super::site::{Running, Service, Settings, Site, patience, until};
use super::watch::Scene;

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Dataplane,
    Control,
    Log,
    /// Another dataplane, from whose memory rows come.
    Exporter,
}

/// Bytes of the table's share at first; each policy wants so many more.
pub(super) const SHARE: u64 = 200_000;
/// Bytes that cached tables have together.
const ARENA: u64 = 2_000_000;
/// Another cached table, whose share stays: one that has no other beside it is left alone by the control plane.
pub(super) const SPARE: &str = "spare";
const SPARE_ROWS: u32 = 20_000;

/// All that takes part but the dataplane.
pub(super) struct Stage<'s> {
    pub(super) site: &'s Site,
    pub(super) who: Who,
    pub(super) settings: Settings,
    /// Tables of the other generation.
    pub(super) others: Vec<Arc<Resident>>,
    control: Running,
    /// The server of the stream, if that is what it is about.
    log: Option<Running>,
    /// Another dataplane, likewise.
    exporter: Option<Service>,
    /// The last delta that was given, and the share that was wanted last.
    pub(super) sequence: u64,
    pub(super) share: u64,
    /// Answers of the worker that went on.
    pub(super) answers: u64,
}

impl Stage<'_> {
    /// Nothing where it [can't be set](why_not) here.
    pub(super) fn set(site: &Site, who: Who) -> Result<Option<Stage<'_>>> {
        if why_not(site)?.is_some() {
            return Ok(None);
        }
        let tables = [(TABLE, ROWS), (COLD, COLD_ROWS), (SPARE, SPARE_ROWS)];
        site.model_with(&tables)?;
        site.generation(2, &tables)?;
        let own = following(site)?;
        // A worker that sleeps is not waited for, so none does.
        let cached = [COLD, SPARE].map(|name| {
            format!(
                "[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = {SHARE}\n"
            )
        });
        let more = format!(
            "[idle]\nsleep = false\n[cache]\npage_cache = \"allow\"\narena_bytes = {ARENA}\n{}",
            cached.concat()
        );
        let log = (who == Who::Log).then(|| redis(site)).transpose()?;
        let exporter = (who == Who::Exporter).then(|| remote::exporter(site));
        let exporter = exporter.transpose()?;
        let remote = exporter.as_ref().map(|_| remote::tier()).transpose()?;
        Ok(Some(Stage {
            site,
            who,
            settings: Settings {
                cached: own.cached + &more + &remote.unwrap_or_default(),
                ..own
            },
            others: site.others()?,
            control: control(site, who)?,
            log,
            exporter,
            sequence: 0,
            share: SHARE,
            answers: 0,
        }))
    }

    /// Has the control plane give the table another share.
    pub(super) fn wish_share(&mut self) -> Result<()> {
        self.share += SHARE / 4;
        self.wish_share_of(COLD, self.share)
    }

    pub(super) fn wish_share_of(&self, table: &str, bytes: u64) -> Result<()> {
        let share = format!("{bytes}B");
        let share = ["--min", &share, "--max", &share];
        let words = [&["policy", "set", "faults", table], &share[..]].concat();
        wishes_until(self.site, &words).map(drop)
    }

    /// Gives the next delta to who keeps it: the stream's server if that is what it is about, which takes it to the control plane a while later.
    pub(super) fn wish_delta(&mut self) -> Result<()> {
        self.sequence += 1;
        let file = delta(self.site, "faults", self.sequence)?;
        if self.who == Who::Log {
            let mut adding = adding(self.site, &file)?;
            let status = adding.end(patience()).context("redis-cli does not end")?;
            ensure!(status.success(), "the delta is not taken by Redis");
            return Ok(());
        }
        let is_taken = || publish(self.site, &file).is_ok_and(|(is_done, _)| is_done);
        until(patience(), is_taken).context("the delta is not kept")
    }

    /// Has the control plane make the other generation the newest; who wishes for it waits until it is.
    pub(super) fn wish_switch(&self) -> Result<Running> {
        let mut command = self.site.programs.leashed("rowmill");
        command.args(["generation", "activate", "2", "--model", "faults"]);
        command
            .args(["--control", &address(self.site)])
            .stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.spawn().context("starting rowmill")?))
    }

    pub(super) fn kill(&mut self, service: &mut Service) -> Result<()> {
        let process = match self.who {
            Who::Dataplane => service.process(),
            Who::Control => &mut self.control,
            Who::Log => self.log.as_mut().context("the stream's server")?,
            Who::Exporter => {
                let exporter = self.exporter.as_mut();
                exporter.context("the exporter")?.process()
            }
        };
        process.signal(Signal::KILL)?;
        // One that is traced ends when who traces it has seen that.
        ensure!(process.end(patience()).is_some(), "it was killed");
        Ok(())
    }

    pub(super) fn start_again(&mut self, service: &Service) -> Result<()> {
        match self.who {
            Who::Dataplane => {}
            Who::Control => self.control = control(self.site, self.who)?,
            Who::Log => self.log = Some(redis(self.site)?),
            Who::Exporter => {
                self.exporter = Some(remote::exporter(self.site)?);
                remote::until_it_is(service, "connected")?;
            }
        }
        Ok(())
    }

    /// That rows come from the exporter, if that is what it is about.
    pub(super) fn reads(&self, scene: &Scene<'_>, time: u32) -> Result<()> {
        if self.who != Who::Exporter {
            return Ok(());
        }
        remote::until_it_is(scene.service, "connected")?;
        remote::comes(scene, time)
    }

    pub(super) fn note(&self) -> String {
        format!(
            "killed in the middle of a policy, a delta and a switch; {} answers of the worker that went on meanwhile",
            self.answers
        )
    }
}

/// Why it can't be set here; `None` where it can.
pub(super) fn why_not(site: &Site) -> Result<Option<String>> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Some("rowmill-control is not built".into()));
    }
    if available_parallelism().is_ok_and(|count| count.get() < 2) {
        let why = "needs two processors: workers that never sleep take one from all others";
        return Ok(Some(why.into()));
    }
    held::why_not(site)
}

/// The control plane, with deltas from the stream, too, if that is what it is about.
fn control(site: &Site, who: Who) -> Result<Running> {
    if who != Who::Log {
        return keeping(site);
    }
    let socket = site.path("redis.sock");
    let from = format!("redis = {{ url = \"unix://{}\" }}\n", socket.display());
    keeping_from(site, &from)
}
