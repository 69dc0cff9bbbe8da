//! A simulated dataplane: it reports, follows and fetches by the rules of `rowmilld`'s threads, by a clock of its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rowmill_link::{Applied, HOLD, Placement, Policy, Report, TableReport};
use rowmill_rowmilld::control::follow::{Follower, Offer, SILENCE};
use rowmill_table::DeltaFile;

use super::Mistake;
use super::deltas::{MODEL, base};
use super::held::Holder;
use super::net::{Broken, Net};
use super::world::{ROW_BYTES, STEP_NS};

const SECOND_NS: u64 = 1_000_000_000;
/// Shortest and longest pause after something went wrong, as in `rowmilld`.
const PAUSES_NS: [u64; 2] = [SECOND_NS / 10, 5 * SECOND_NS];
/// After so long it is not waited for a policy any more.
const GIVEN_UP_NS: u64 = HOLD.as_nanos() as u64 + 10 * SECOND_NS;

/// A connection, which whoever dials next is not told of.
#[derive(Debug, Default)]
struct Line {
    /// Which of all it is, and the process at its other end.
    number: u64,
    process: Option<u64>,
    /// When it is asked again, and after which pause if that fails.
    due_ns: u64,
    pause_ns: u64,
}

impl Line {
    /// The control plane at the other end, if there is one.
    fn reach(&mut self, net: &Net) -> Option<usize> {
        let process = |at: usize| net.planes[at].process().map(|process| process.number);
        let there = [0, 1].into_iter().find(|&at| process(at) == self.process);
        if self.process.is_some() && there.is_some() {
            return there;
        }
        self.process = process(net.route);
        self.number += 1;
        self.process.map(|_| net.route)
    }

    fn fail(&mut self, now_ns: u64) {
        self.process = None;
        let pause_ns = self.pause_ns.max(PAUSES_NS[0]);
        self.due_ns = now_ns + pause_ns;
        self.pause_ns = (2 * pause_ns).min(PAUSES_NS[1]);
    }

    fn is_well(&mut self, due_ns: u64) {
        (self.due_ns, self.pause_ns) = (due_ns, 0);
    }
}

/// See the module's text.
pub(super) struct Dataplane {
    pub(super) name: &'static str,
    pub(super) model: &'static str,
    instance: u64,
    /// Its clock, from its start on.
    pub(super) clock_ns: u64,
    /// Until when, by everybody's time, there is no process, and nothing reaches it.
    pub(super) down_until_ns: u64,
    pub(super) silent_until_ns: u64,
    arena_bytes: u64,
    /// Its cached tables, with their shares in rows.
    pub(super) tables: BTreeMap<&'static str, u64>,
    pub(super) holder: Holder,
    follower: Follower,
    /// When the control plane that it follows answered last.
    heard_ns: u64,
    /// Since when a policy is waited for, on which connection.
    asked: Option<(u64, u64)>,
    policies: Line,
    reports: Line,
    fetches: Line,
    /// What of the policy can't be done, and why another one is not followed.
    refused: Vec<String>,
    other: Option<String>,
}

impl Dataplane {
    pub(super) fn new(name: &'static str, model: &'static str) -> Dataplane {
        Dataplane {
            name,
            model,
            instance: 0,
            clock_ns: 0,
            down_until_ns: 0,
            silent_until_ns: 0,
            arena_bytes: 0,
            tables: BTreeMap::new(),
            holder: Holder::new(),
            follower: Follower::default(),
            heard_ns: 0,
            asked: None,
            policies: Line::default(),
            reports: Line::default(),
            fetches: Line::default(),
            refused: Vec::new(),
            other: None,
        }
    }

    /// A process begins, with a generation and these cached tables, of equal shares.
    pub(super) fn begin(
        &mut self,
        generation: u64,
        (tables, share): (&[&'static str], u64),
        net: &mut Net,
    ) -> Result<(), Broken> {
        let holder = std::mem::replace(&mut self.holder, Holder::new());
        *self = Dataplane {
            holder,
            instance: net.number(),
            arena_bytes: tables.len() as u64 * share * ROW_BYTES,
            tables: tables.iter().map(|&table| (table, share)).collect(),
            silent_until_ns: self.silent_until_ns,
            ..Dataplane::new(self.name, self.model)
        };
        self.holder.begin(generation, net)
    }

    /// Who is followed.
    pub(super) fn follows(&self) -> Option<&str> {
        self.follower.followed().map(|of| &*of.control)
    }

    /// Whether it is connected to a process.
    pub(super) fn has_connection(&self, process: u64) -> bool {
        let lines = [&self.policies, &self.reports, &self.fetches];
        lines.iter().any(|line| line.process == Some(process))
    }

    /// Whether it asks that process for policies.
    pub(super) fn asks(&self, process: u64) -> bool {
        self.policies.process == Some(process)
    }

    /// What can't be done.
    pub(super) fn refusals(&self) -> Vec<String> {
        let all = self.refused.iter().cloned();
        all.chain(self.holder.refused())
            .chain(self.other.clone())
            .collect()
    }

    /// Lets a step of time pass.
    pub(super) fn step(&mut self, net: &mut Net) -> Result<(), Broken> {
        if net.now_ns < self.down_until_ns {
            return Ok(());
        }
        self.clock_ns += STEP_NS;
        self.holder.go_on(self.clock_ns, net)?;
        let is_silent = net.now_ns < self.silent_until_ns;
        if is_silent {
            self.asked = None;
        }
        let now_ns = self.clock_ns;
        for line in [&mut self.policies, &mut self.reports, &mut self.fetches] {
            if is_silent && now_ns >= line.due_ns {
                line.fail(now_ns);
            }
        }
        self.follow(net)?;
        self.report(net);
        self.fetch(net)
    }

    /// Waits for a policy.
    fn follow(&mut self, net: &mut Net) -> Result<(), Broken> {
        if self.clock_ns < self.policies.due_ns {
            return Ok(());
        }
        let Some(at) = self.policies.reach(net) else {
            self.policies.fail(self.clock_ns);
            return Ok(());
        };
        let number = self.policies.number;
        let asked_ns = match self.asked {
            Some((of, asked_ns)) if of == number => asked_ns,
            _ => self.clock_ns,
        };
        self.asked = Some((number, asked_ns));
        let waited_ns = self.clock_ns - asked_ns;
        match net.policy(at, self.name, self.follower.after(number)) {
            None if waited_ns >= GIVEN_UP_NS => self.policies.fail(self.clock_ns),
            None => return Ok(()),
            Some(None) if waited_ns >= HOLD.as_nanos() as u64 => {
                let before = self.follower.clone();
                let now = core::time::Duration::from_nanos(self.clock_ns);
                let control = net.control(at);
                match self.follower.answered(control.as_deref(), number, now) {
                    Err(why) => {
                        net.happens("answer of another", self.name);
                        self.other = Some(why);
                        self.policies.fail(self.clock_ns);
                    }
                    Ok(()) => {
                        if self.follower.followed() != before.followed() {
                            self.heard_ns = self.clock_ns;
                        }
                        self.policies.is_well(self.clock_ns);
                    }
                }
            }
            Some(None) => return Ok(()),
            Some(Some(policy)) => self.offered(&policy, number, net)?,
        }
        self.asked = None;
        Ok(())
    }

    fn offered(&mut self, policy: &Arc<Policy>, number: u64, net: &mut Net) -> Result<(), Broken> {
        net.is_told(policy)?;
        let now = core::time::Duration::from_nanos(self.clock_ns);
        let (offered, before) = (
            (&*policy.control, policy.order),
            self.follower.followed().cloned(),
        );
        let mut offer = self.follower.offered(offered, number, now);
        if matches!(offer, Offer::Refused(_)) && net.mistake == Some(Mistake::FollowsAnyone) {
            self.follower = Follower::default();
            offer = self.follower.offered(offered, number, now);
        }
        match offer {
            Offer::Taken => {
                let silent_ns = self.clock_ns - self.heard_ns;
                if let Some(before) = before {
                    let is_same = before.control == policy.control;
                    if is_same && policy.order <= before.order {
                        return Err(Broken(format!("{offered:?} is followed after {before:?}")));
                    }
                    if !is_same && silent_ns < SILENCE.as_nanos() as u64 {
                        return Err(Broken(format!(
                            "{} follows {}, and {} was there",
                            self.name, policy.control, before.control
                        )));
                    }
                    if !is_same {
                        net.happens("followed another", self.name);
                    }
                }
                self.heard_ns = self.clock_ns;
                self.policies.is_well(self.clock_ns);
                self.other = None;
                self.take(policy, net);
            }
            Offer::Known => {
                self.heard_ns = self.clock_ns;
                self.other = None;
                self.policies.is_well(self.clock_ns + SECOND_NS);
            }
            Offer::Refused(why) => {
                if before.is_some_and(|before| before.control == policy.control) {
                    self.heard_ns = self.clock_ns;
                }
                net.happens("policy refused", self.name);
                self.other = Some(why);
                self.policies.fail(self.clock_ns);
            }
        }
        Ok(())
    }

    /// Does what a policy says, as far as that can be.
    fn take(&mut self, policy: &Policy, net: &mut Net) {
        self.refused.clear();
        self.holder.want(policy.generations.clone());
        let mut shares = self.tables.clone();
        for wanted in &policy.tables {
            let Some(share) = shares.get_mut(&*wanted.table) else {
                net.happens("table not there", self.name);
                self.refused
                    .push(format!("there is no table {} here", wanted.table));
                continue;
            };
            if let Some(bytes) = wanted.cache_bytes {
                *share = bytes / ROW_BYTES;
            }
        }
        let bytes = shares.values().sum::<u64>() * ROW_BYTES;
        if bytes <= self.arena_bytes {
            self.tables = shares;
            return;
        }
        net.happens("no room", self.name);
        for (table, share) in &mut self.tables {
            let wanted = shares[table];
            if wanted > *share {
                self.refused
                    .push(format!("table {table}: there is no memory for its share"));
            } else {
                *share = wanted;
            }
        }
    }

    fn report(&mut self, net: &mut Net) {
        if self.clock_ns < self.reports.due_ns {
            return;
        }
        let Some(at) = self.reports.reach(net) else {
            return self.reports.fail(self.clock_ns);
        };
        let answered = net.report(at, self.name, self.told());
        let control = net.control(at);
        let elsewhere =
            control.and_then(|control| self.follower.wants(&control).map(str::to_owned));
        if elsewhere.is_some() && answered.is_some() {
            net.happens("report to another", self.name);
        }
        let is_kept = net.mistake == Some(Mistake::StaysWithAnother);
        if !is_kept && (self.other.is_some() || elsewhere.is_some()) {
            // This connection may be to the one that is not followed.
            self.reports.process = None;
        }
        match answered {
            Some(true) => self.reports.is_well(self.clock_ns + SECOND_NS),
            answered => {
                if answered.is_some() {
                    net.happens("report refused", self.name);
                }
                self.reports.fail(self.clock_ns);
            }
        }
    }

    fn told(&self) -> Report {
        let held = &self.holder.held;
        let table = |(table, rows): (&&str, &u64)| TableReport {
            table: (*table).into(),
            rows: 20_000,
            slot_bytes: ROW_BYTES,
            placement: Placement::Cached,
            cache_bytes: rows * ROW_BYTES,
            cache_rows: *rows,
            held_rows: *rows,
            resizing: false,
            lookups: 0,
            hits: 0,
            fetched: 0,
            fetch_ns: 0,
            pinned: 0,
            pinned_held: 0,
        };
        Report {
            instance: format!("{:032x}", self.instance),
            version: "0".into(),
            model: self.model.into(),
            generation: held[0].number.to_string(),
            generations: self.holder.numbers(),
            fingerprints: held.iter().map(|held| base(held.number)).collect(),
            deltas: Some(held.iter().map(|held| held.applied).collect()),
            arena_bytes: self.arena_bytes,
            workers: 1,
            policy: self.follower.followed().map(|followed| Applied {
                control: followed.control.clone(),
                order: followed.order,
                refused: self.refusals(),
            }),
            tables: self.tables.iter().map(table).collect(),
            ..Report::default()
        }
    }

    /// Asks for the next delta of each generation that is held, and applies those that come whole.
    fn fetch(&mut self, net: &mut Net) -> Result<(), Broken> {
        if self.clock_ns < self.fetches.due_ns || self.model != MODEL {
            return Ok(());
        }
        let control = self.follows().map(String::from);
        for at in 0..self.holder.held.len() {
            let (sequence, chain) = self.holder.next_delta(at, net);
            let place = (self.holder.held[at].number, sequence);
            match self.bring(place, chain, control.as_deref(), net) {
                Some(Some(crc32)) => self.holder.apply(at, sequence, crc32, net)?,
                Some(None) => {}
                None => {
                    self.fetches.fail(self.clock_ns);
                    return Ok(());
                }
            }
        }
        self.fetches.is_well(self.clock_ns + SECOND_NS);
        Ok(())
    }

    /// Brings a delta, piece by piece, and returns its checksum; nothing where it can't be had, and inside nothing where there is none yet.
    fn bring(
        &mut self,
        place: (u64, u64),
        chain: Option<u32>,
        control: Option<&str>,
        net: &mut Net,
    ) -> Option<Option<u32>> {
        let mut bytes = Vec::new();
        loop {
            let at = self.fetches.reach(net)?;
            let from = bytes.len() as u64;
            let piece = net.piece((at, control), self.name, place, chain, from)?;
            let piece = match piece {
                Ok(piece) => piece,
                Err(why) => {
                    net.happens("delta not given", &format!("{}: {why}", self.name));
                    return None;
                }
            };
            let Some(piece) = piece else {
                return Some(None);
            };
            if piece.is_empty() {
                break;
            }
            bytes.extend(piece);
            if net.rng.u8(0..20) == 0 {
                net.happens("delta broke off", self.name);
                return None;
            }
        }
        let path = net.incoming(self.name);
        fs::write(&path, bytes).expect("there is room");
        Some(Some(checked(&path)))
    }
}

/// The checksum of a delta that is whole.
fn checked(path: &Path) -> u32 {
    let delta = DeltaFile::open(path).expect("what is damaged is not sent");
    delta.check().expect("what is damaged is not sent");
    delta.crc32()
}
