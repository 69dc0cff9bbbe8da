//! `kill -9` while a change is under way for certain: a worker of the dataplane is held, so that what all workers have to take in, one of two
//! has taken in and the other has not, for as long as the fault wants.
//!
//! What shows that is no moment but a state that lasts: answers of the worker that goes on, beside what the status page says of the change.

use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rowmill_table::Resident;
use rustix::process::Signal;
use serde_json::Value;

use super::Verdict;
use super::cached::{COLD, COLD_ROWS, figure};
use super::control::says;
use super::deltas::{CHANGED_ONE_IN, Looker, ROWS, TABLE, delta};
use super::deltas_control::{adding, following, keeping_from, publish, redis};
use super::held::{self, Held};
use super::patron::{Innocent, Outcome, Patron};
use super::site::{Running, Service, Settings, Site, patience, until};
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

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Dataplane,
    Control,
    Log,
}

/// The worker that is held.
const HELD: usize = 1;
/// Requests that the other one answers while a change is under way, before and after who is killed.
const ASKED: u32 = 50;
/// Bytes of the table's share at first; each policy wants so many more.
const SHARE: u64 = 200_000;
/// Bytes that cached tables have together.
const ARENA: u64 = 2_000_000;
/// Another cached table, whose share stays: one that has no other beside it is left alone by the control plane.
const SPARE: &str = "spare";
const SPARE_ROWS: u32 = 20_000;

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
        let ended = format!("{ended:#}");
        let is_end = ["Disconnected", "gone", "closed"];
        ensure!(is_end.iter().any(|end| ended.contains(end)), "{ended}");
    }
    stage.end(&service)?;
    after(&mut service, &tables)?;
    stage.verdict()
}

/// The control plane is killed in the middle of each.
pub(super) fn control_killed(site: &Site) -> Result<Verdict> {
    beside(site, Who::Control)
}

/// The server of the stream that deltas come by is killed in the middle of each.
pub(super) fn log_killed(site: &Site) -> Result<Verdict> {
    beside(site, Who::Log)
}

fn beside(site: &Site, who: Who) -> Result<Verdict> {
    let Some(mut stage) = Stage::set(site, who)? else {
        return lacking(site);
    };
    let settings = stage.settings.clone();
    beside_a_waiting_innocent(site, &settings, patience(), |scene| {
        stage.begin(scene.service)?;
        for what in ALL {
            let said = stage.happen(scene.service, scene.tables, what);
            said.with_context(|| format!("in the middle of a {what:?}"))?;
        }
        stage.end(scene.service)?;
        Ok(stage.note())
    })
}

/// Why the stage can't be set.
fn lacking(site: &Site) -> Result<Verdict> {
    let why = held::why_not(site)?;
    Ok(Verdict::Skipped(
        why.unwrap_or("rowmill-control is not built".into()),
    ))
}

/// All that takes part but the dataplane.
struct Stage<'s> {
    site: &'s Site,
    who: Who,
    settings: Settings,
    /// Tables of the other generation.
    others: Vec<Arc<Resident>>,
    control: Running,
    /// The server of the stream.
    log: Running,
    /// The last delta that was given, and the share that was wanted last.
    sequence: u64,
    share: u64,
    /// Answers of the worker that went on.
    answers: u64,
}

impl Stage<'_> {
    /// Nothing where it can't be set here.
    fn set(site: &Site, who: Who) -> Result<Option<Stage<'_>>> {
        if !site.programs.path("rowmill-control").exists() || held::why_not(site)?.is_some() {
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
        let log = redis(site)?;
        Ok(Some(Stage {
            site,
            who,
            settings: Settings {
                cached: own.cached + &more,
                ..own
            },
            others: site.others()?,
            control: control(site)?,
            log,
            sequence: 0,
            share: SHARE,
            answers: 0,
        }))
    }

    /// Runs `rowmill` on the control plane.
    fn wishes(&self, words: &[&str]) -> Result<(bool, String)> {
        let control = format!("unix:{}", self.site.path("control.sock").display());
        let words = [words, &["--control", &control]].concat();
        let (status, said) = self.site.command("rowmill", &words)?;
        Ok((status.success(), said))
    }

    /// The same until it is done: for a while after its start the control plane does not know of the dataplane.
    fn wishes_until(&self, words: &[&str]) -> Result<()> {
        let mut last = String::new();
        let is_done = until(2 * patience(), || {
            self.wishes(words).is_ok_and(|(is_done, said)| {
                last = said;
                is_done
            })
        });
        is_done.with_context(|| format!("{words:?}: {last}"))
    }

    /// Two that were done before: a share and a delta.
    fn begin(&mut self, service: &Service) -> Result<()> {
        connected(service)?;
        self.wish_share_of(SPARE, SHARE)?;
        self.wish_share()?;
        self.wish_delta()?;
        self.comes_true(service, What::Policy)?;
        self.comes_true(service, What::Delta)
    }

    /// Has the control plane give the table another share.
    fn wish_share(&mut self) -> Result<()> {
        self.share += SHARE / 4;
        self.wish_share_of(COLD, self.share)
    }

    fn wish_share_of(&self, table: &str, bytes: u64) -> Result<()> {
        let share = format!("{bytes}B");
        let share = ["--min", &share, "--max", &share];
        self.wishes_until(&[&["policy", "set", "faults", table], &share[..]].concat())
    }

    /// Gives the next delta to who keeps it: the stream's server if that is what it is about, which takes it to the control plane a while later.
    fn wish_delta(&mut self) -> Result<()> {
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
    fn wish_switch(&self) -> Result<Running> {
        let control = format!("unix:{}", self.site.path("control.sock").display());
        let mut command = self.site.programs.leashed("rowmill");
        command.args(["generation", "activate", "2", "--model", "faults"]);
        command.args(["--control", &control]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Running(command.spawn().context("starting rowmill")?))
    }

    /// Holds a worker, begins a change, kills one while it is under way, and sees to what becomes of it.
    fn happen(&mut self, service: &mut Service, tables: &Arc<Resident>, what: What) -> Result<()> {
        if what == What::Switch {
            self.wishes_until(&["generation", "load", "2", "--model", "faults"])?;
        }
        let of = (tables, &self.others[..]);
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
            let lost = patron.take_left(patience()).ok();
            ensure!(
                lost.is_none_or(|lost| lost == Outcome::Disconnected),
                "{lost:?}"
            );
            drop(looker);
            *service = self.site.start(&self.settings)?;
            self.is_whole(service, what)?;
        } else {
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
            self.start_again()?;
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

    fn kill(&mut self, service: &mut Service) -> Result<()> {
        let process = match self.who {
            Who::Dataplane => service.process(),
            Who::Control => &mut self.control,
            Who::Log => &mut self.log,
        };
        process.signal(Signal::KILL)?;
        // One that is traced ends when who traces it has seen that.
        ensure!(process.end(patience()).is_some(), "it was killed");
        Ok(())
    }

    fn start_again(&mut self) -> Result<()> {
        match self.who {
            Who::Dataplane => {}
            Who::Control => self.control = control(self.site)?,
            Who::Log => self.log = redis(self.site)?,
        }
        Ok(())
    }

    /// That one worker has taken a change in and the other has not.
    fn is_midway(
        &self,
        service: &Service,
        what: What,
        (before, looker): (&Before, Option<&mut Looker>),
    ) -> Result<()> {
        let key = match what {
            What::Policy => "changes",
            What::Delta => "delta_changes",
            What::Switch => "generation_changes",
        };
        let mut last = Value::Null;
        let runs = until(patience(), || {
            let page = service.status().unwrap_or_default();
            let changes = page[key].as_array();
            last = changes
                .and_then(|all| all.last().cloned())
                .unwrap_or_default();
            last["state"] == "running"
        });
        runs.with_context(|| format!("it is not under way: {last}"))?;
        match what {
            What::Policy => {
                ensure!(last["table"] == COLD, "{last}");
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
                let wish = &last["wish"];
                ensure!(wish == "activate generation 2", "{wish} is under way");
                Ok(())
            }
        }
    }

    /// That the worker which goes on answers, of the generation that it has taken in.
    fn goes_on(&mut self, patron: &mut Patron, what: What) -> Result<()> {
        let generation = if what == What::Switch { 2 } else { 1 };
        for _ in 0..ASKED {
            let outcome = patron.ask(patience())?;
            ensure!(
                outcome == Outcome::Ok,
                "{outcome:?} beside a worker that is held"
            );
            let answered = patron.answered();
            ensure!(
                answered == generation,
                "an answer of generation {answered}, and not {generation}"
            );
            self.answers += 1;
        }
        Ok(())
    }

    /// A dataplane that starts again has a change whole or not at all, and all before it.
    fn is_whole(&self, service: &Service, what: What) -> Result<()> {
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
        self.wishes_until(&["generation", "rollback", "--model", "faults"])?;
        self.wishes_until(&["generation", "unload", "2", "--model", "faults"])?;
        ensure!(held_generations(service)? == [1], "2 is still held");
        Looker::new(self.site, &service.endpoint)?.all_are(self.sequence)?;
        connected(service)
    }

    fn note(&self) -> String {
        format!(
            "killed in the middle of a policy, a delta and a switch; {} answers of the worker that went on meanwhile",
            self.answers
        )
    }

    fn verdict(&self) -> Result<Verdict> {
        Ok(Verdict::Pass(self.note()))
    }
}

/// The control plane, with deltas from the stream, too.
fn control(site: &Site) -> Result<Running> {
    let socket = site.path("redis.sock");
    let from = format!("redis = {{ url = \"unix://{}\" }}\n", socket.display());
    keeping_from(site, &from)
}

fn connected(service: &Service) -> Result<()> {
    says(service, "connected", |control| {
        control["connected"] == true && control["deltas"] == "fetched"
    })
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
