//! `kill -9` while a change is under way for certain: a worker of the dataplane is held, so that what all workers have to take in, one of two
//! has taken in and the other has not, for as long as the fault wants.
//!
//! What shows that is no moment but a state that lasts: answers of the worker that goes on, beside what the status page says of the change.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rowmill_table::Resident;
use serde_json::Value;

use super::Verdict;
use super::cached::{COLD, figure};
use super::control::says;
use super::deltas::{CHANGED_ONE_IN, Looker, ROWS};
use super::held::Held;
use super::midway_stage::{SHARE, SPARE, Stage, Who, why_not};
use super::operator::wishes_until;
use super::patron::{Innocent, Outcome, Patron};
use super::remote;
use super::site::{Service, Site, patience, until};
use super::watch::{after, beside_a_waiting_innocent};

/// What is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A policy gives a cached table another share.
    Policy,
    /// A delta is applied.
    Delta,
    /// Another generation becomes the newest.
    Switch,
}

/// A switch comes last, as deltas are of the generation that is served first.
const ALL: [What; 3] = [What::Policy, What::Delta, What::Switch];

/// The worker that is held.
const HELD: usize = 1;
/// Requests that the other one answers while a change is under way, before and after who is killed.
const ASKED: u32 = 50;

/// The dataplane is killed in the middle of each.
pub(super) fn dataplane_killed(site: &Site) -> Result<Verdict> {
    let Some(mut stage) = Stage::set(site, Who::Dataplane)? else {
        return lacking(site);
    };
    let tables = site.tables()?;
    let mut service = site.start(&stage.settings)?;
    stage.begin(&service)?;
    for what in ALL {
        let others = &stage.others[..];
        let of = (&tables, others);
        let client = Innocent::start_with(&service.endpoint, of, false, patience())?;
        until(patience(), || client.answers() >= 5).context("a client's first answers")?;
        let said = stage.happen(&mut service, &tables, what);
        said.with_context(|| format!("in the middle of a {what:?}"))?;
        // Its connection ended, and no answer before that was wrong.
        let ended = client.finish().err().context("the service is gone")?;
        is_end(&ended)?;
    }
    stage.end(&service)?;
    after(&mut service, &tables)?;
    Ok(Verdict::Pass(stage.note()))
}

/// The control plane is killed in the middle of each.
pub(super) fn control_killed(site: &Site) -> Result<Verdict> {
    beside(site, Who::Control)
}

/// The server of the stream that deltas come by is killed in the middle of each.
pub(super) fn log_killed(site: &Site) -> Result<Verdict> {
    beside(site, Who::Log)
}

/// The dataplane from whose memory rows come is killed in the middle of each. A client over RDMA takes a dataplane for gone one of whose workers
/// stands still, so that those here come over shared memory.
pub(super) fn exporter_killed(site: &Site) -> Result<Verdict> {
    beside(&site.local(), Who::Exporter)
}

fn beside(site: &Site, who: Who) -> Result<Verdict> {
    let Some(mut stage) = Stage::set(site, who)? else {
        return lacking(site);
    };
    let settings = stage.settings.clone();
    beside_a_waiting_innocent(site, &settings, patience(), |scene| {
        stage.begin(scene.service)?;
        stage.reads(scene, 0)?;
        for (time, what) in (1..).zip(ALL) {
            let said = stage.happen(scene.service, scene.tables, what);
            said.with_context(|| format!("in the middle of a {what:?}"))?;
            if what == What::Switch {
                stage.end(scene.service)?;
            }
            stage.reads(scene, time)?;
        }
        Ok(stage.note())
    })
}

/// Why the stage can't be set.
fn lacking(site: &Site) -> Result<Verdict> {
    let why = why_not(site)?;
    Ok(Verdict::Skipped(why.context("it could be set")?))
}

impl Stage<'_> {
    /// Two that were done before: a share and a delta.
    fn begin(&mut self, service: &Service) -> Result<()> {
        connected(service)?;
        self.wish_share_of(SPARE, SHARE)?;
        self.wish_share()?;
        self.wish_delta()?;
        self.comes_true(service, What::Policy)?;
        self.comes_true(service, What::Delta)
    }

    /// Holds a worker, begins a change, kills one while it is under way, and sees to what becomes of it.
    fn happen(&mut self, service: &mut Service, tables: &Arc<Resident>, what: What) -> Result<()> {
        let others = self.others.clone();
        let of = (tables, &others[..]);
        if what == What::Switch {
            wishes_until(self.site, &["generation", "load", "2", "--model", "faults"])?;
            // It is held before rows that are hot are in its cache.
            let is_through = || last_change(service, "generation_changes")["state"] == "done";
            until(patience(), is_through).context("the load is not through")?;
        }
        let mut patron = Patron::connect_small(&service.endpoint, "beside", of)?;
        let mut looker = match what {
            What::Delta => Some(Looker::new(self.site, &service.endpoint)?),
            _ => None,
        };
        let held = Held::worker(service.process().id(), HELD)?;
        patron.leave_one(patience())?;
        if let Some(looker) = &mut looker {
            looker.leave_one()?;
        }
        let before = Before::now(service)?;
        let mut wishing = None;
        match what {
            What::Policy => self.wish_share()?,
            What::Delta => self.wish_delta()?,
            What::Switch => wishing = Some(self.wish_switch()?),
        }
        let mut is_midway = |stage: &mut Self, service: &Service| -> Result<()> {
            stage.is_midway(service, what, (&before, looker.as_mut()))?;
            stage.goes_on(&mut patron, what)?;
            // Nothing of that has changed meanwhile.
            stage.is_midway(service, what, (&before, looker.as_mut()))?;
            patron.is_left()?;
            held.is_held()
        };
        is_midway(self, service)?;
        self.kill(service)?;
        if self.who == Who::Dataplane {
            held.let_go()?;
            match patron.take_left(patience()) {
                Ok(outcome) => ensure!(outcome == Outcome::Disconnected, "{outcome:?}"),
                Err(error) => is_end(&error)?,
            }
            drop(looker);
            *service = self.site.start(&self.settings)?;
            self.is_whole(service, of, what)?;
        } else {
            if self.who == Who::Exporter {
                remote::until_it_is(service, "apart")?;
            }
            is_midway(self, service)?;
            held.let_go()?;
            let outcome = patron.take_left(patience())?;
            ensure!(
                outcome == Outcome::Ok,
                "{outcome:?} when the worker goes on"
            );
            if let Some(looker) = &mut looker {
                looker.take_left()?;
            }
            self.comes_true(service, what)?;
            self.start_again(service)?;
        }
        if let Some(wishing) = &mut wishing {
            let status = wishing.end(2 * patience()).context("it waits for ever")?;
            ensure!(status.success() || self.who == Who::Control, "{status}");
        }
        // It is so, and who is back is followed.
        self.comes_true(service, what)?;
        connected(service)?;
        self.wish_share()?;
        self.wish_delta()?;
        self.comes_true(service, What::Policy)?;
        self.comes_true(service, What::Delta)
    }

    /// That one worker has taken a change in and the other has not.
    fn is_midway(
        &self,
        service: &Service,
        what: What,
        (before, looker): (&Before, Option<&mut Looker>),
    ) -> Result<()> {
        let (key, of, wanted) = match what {
            What::Policy => ("changes", "table", COLD),
            What::Delta => ("delta_changes", "state", "running"),
            What::Switch => ("generation_changes", "wish", "activate generation 2"),
        };
        let mut last = Value::Null;
        let runs = until(patience(), || {
            last = last_change(service, key);
            last["state"] == "running" && last[of] == wanted
        });
        runs.with_context(|| format!("it is not under way: {last}"))?;
        match what {
            What::Policy => {
                let order = followed(service)?;
                ensure!(
                    order != before.order,
                    "policy {order} is followed as before"
                );
                // Workers are waited for in turn: the one before has taken it in.
                let is_told = || unheard(service) > before.unheard;
                until(patience(), is_told).context("its log does not say who has not taken it in")
            }
            What::Delta => {
                let is_applied = applied_to(service, 1)?;
                ensure!(
                    is_applied == self.sequence - 1,
                    "delta {is_applied} is applied, and {} is under way",
                    self.sequence
                );
                let ends = [0, ROWS - CHANGED_ONE_IN];
                let looker = looker.context("who looks at rows")?;
                let mut found = looker.look(&ends);
                let is_mixed = until(patience(), || {
                    found = looker.look(&ends);
                    let mixed = [self.sequence, self.sequence - 1];
                    found.as_ref().map_or(true, |found| *found == mixed)
                });
                is_mixed.with_context(|| format!("rows {ends:?} are of deltas {found:?}"))?;
                found.map(|_mixed| ())
            }
            What::Switch => {
                let newest = service.status()?["generation"].take();
                ensure!(newest == 1, "the newest is {newest} already");
                Ok(())
            }
        }
    }

    /// That the worker which goes on answers, from a moment on of the generation that it has taken in.
    fn goes_on(&mut self, patron: &mut Patron, what: What) -> Result<()> {
        let generation = if what == What::Switch { 2 } else { 1 };
        let mut answer = || -> Result<u64> {
            let outcome = patron.ask(patience())?;
            let is_ok = outcome == Outcome::Ok;
            ensure!(is_ok, "{outcome:?} beside a worker that is held");
            Ok(patron.answered())
        };
        let began = Instant::now();
        while answer()? != generation {
            let is_late = began.elapsed() > patience();
            ensure!(!is_late, "no answer of generation {generation}");
        }
        for _ in 0..ASKED {
            let answered = answer()?;
            ensure!(
                answered == generation,
                "an answer of generation {answered} after {generation}"
            );
            self.answers += 1;
        }
        Ok(())
    }

    /// A dataplane that starts again answers, and has a delta whole.
    fn is_whole(
        &self,
        service: &Service,
        of: (&Arc<Resident>, &[Arc<Resident>]),
        what: What,
    ) -> Result<()> {
        let mut patron = Patron::connect_small(&service.endpoint, "again", of)?;
        for _ in 0..ASKED {
            let outcome = patron.ask(patience())?;
            ensure!(outcome == Outcome::Ok, "{outcome:?} after its start");
        }
        if what == What::Delta {
            // Its rows were served, so that it was kept.
            let applied = applied_to(service, 1)?;
            ensure!(
                applied == self.sequence,
                "delta {applied} is applied at the start"
            );
            Looker::new(self.site, &service.endpoint)?.all_are(applied)?;
        }
        Ok(())
    }

    /// What was wished for last comes true.
    fn comes_true(&self, service: &Service, what: What) -> Result<()> {
        let limit = 2 * patience();
        let mut last = String::new();
        let is_so = match what {
            What::Policy => until(limit, || {
                let share = figure(service, "share_bytes");
                last = format!("{share:?} of {}", self.share);
                share.is_ok_and(|share| share.abs_diff(self.share) < SHARE / 16)
            }),
            What::Delta => until(limit, || {
                let applied = applied_to(service, 1);
                last = format!("{applied:?}");
                applied.is_ok_and(|applied| applied == self.sequence)
            }),
            What::Switch => until(limit, || {
                let held = held_generations(service);
                last = format!("{held:?}");
                held.is_ok_and(|held| held == [2, 1])
            }),
        };
        is_so.with_context(|| format!("{what:?} does not come true: {last}"))
    }

    /// The generation that was served first is served alone again, with all deltas.
    fn end(&self, service: &Service) -> Result<()> {
        wishes_until(self.site, &["generation", "rollback", "--model", "faults"])?;
        wishes_until(
            self.site,
            &["generation", "unload", "2", "--model", "faults"],
        )?;
        ensure!(held_generations(service)? == [1], "2 is still held");
        Looker::new(self.site, &service.endpoint)?.all_are(self.sequence)?;
        connected(service)
    }
}

/// That a client was told of its connection's end.
fn is_end(error: &anyhow::Error) -> Result<()> {
    let told = format!("{error:#}");
    let ends = ["Disconnected", "gone", "closed"];
    ensure!(ends.iter().any(|end| told.contains(end)), "{told}");
    Ok(())
}

fn connected(service: &Service) -> Result<()> {
    says(service, "connected", |control| {
        control["connected"] == true && control["deltas"] == "fetched"
    })
}

/// The last change of these, as the status page has it.
fn last_change(service: &Service, of: &str) -> Value {
    let page = service.status().unwrap_or_default();
    let changes = page[of].as_array();
    changes
        .and_then(|changes| changes.last().cloned())
        .unwrap_or_default()
}

/// What tells a policy from the one before.
struct Before {
    order: Value,
    unheard: usize,
}

impl Before {
    fn now(service: &Service) -> Result<Before> {
        Ok(Before {
            order: followed(service)?,
            unheard: unheard(service),
        })
    }
}

/// How often its log says that the worker that is held has not taken in a change of the table, and so that the other one has.
fn unheard(service: &Service) -> usize {
    let told = format!("worker {HELD} does not look where table {COLD} is now");
    service.log().matches(&told).count()
}

/// The order of the policy that is followed.
fn followed(service: &Service) -> Result<Value> {
    Ok(service.status()?["control"]["followed"]["order"].take())
}

/// The last delta that is applied to a generation.
fn applied_to(service: &Service, generation: u64) -> Result<u64> {
    let page = service.status()?;
    let all = page["deltas"]["generations"].as_array().context("deltas")?;
    let of = all.iter().find(|of| of["generation"] == generation);
    let applied = of.and_then(|of| of["applied"].as_u64());
    applied.with_context(|| format!("the last delta of {generation}: {}", page["deltas"]))
}

/// Generations that are held, the newest first.
fn held_generations(service: &Service) -> Result<Vec<u64>> {
    let page = service.status()?;
    let held = page["generations"].as_array().context("generations")?;
    let numbers = held.iter().map(|one| one["generation"].as_u64());
    numbers.collect::<Option<_>>().context("numbers")
}
