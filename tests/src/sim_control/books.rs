//! What was acknowledged, and so has to be known after any end: wishes, and dataplanes that have to be waited for.

use std::collections::BTreeMap;

use rowmill_admission::{ModelGenerations, Planner, Settings, TURN_NS};

use super::deltas::MODEL;
use super::net::Broken;
use super::plane::Process;

/// One that was not heard of for so long is waited for.
const SILENT_NS: u64 = 5 * TURN_NS;
/// And for so long it is forgotten.
const FORGOTTEN_NS: u64 = 24 * 3600 * TURN_NS;

/// A dataplane that the control plane has said it has heard of.
#[derive(Clone, Debug)]
struct Known {
    model: String,
    held: Vec<u64>,
    /// By which process, and when by its clock.
    process: u64,
    heard_ns: u64,
}

/// Something that is wanted: the value, and the one that may be there since its change was not acknowledged.
#[derive(Clone, Debug)]
struct Wish<T> {
    value: Option<T>,
    unsure: Option<Option<T>>,
}

impl<T> Default for Wish<T> {
    fn default() -> Wish<T> {
        Wish {
            value: None,
            unsure: None,
        }
    }
}

impl<T: Clone> Wish<T> {
    fn set(&mut self, value: Option<T>) {
        (self.value, self.unsure) = (value, None);
    }

    /// Settles what is wanted to what is found, if that may be.
    fn settle(&mut self, found: Option<&T>, is_same: impl Fn(&T, &T) -> bool) -> bool {
        let all = [Some(&self.value), self.unsure.as_ref()];
        let may_be = all.into_iter().flatten().any(|one| match (one, found) {
            (None, None) => true,
            (Some(one), Some(found)) => is_same(one, found),
            _ => false,
        });
        self.set(found.cloned());
        may_be
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Books {
    known: BTreeMap<String, Known>,
    generations: Wish<ModelGenerations>,
    /// Of tables of the model.
    settings: BTreeMap<String, Wish<Settings>>,
}

impl Books {
    /// All that was kept is lost, as far as is known.
    pub(super) fn lose(&mut self) {
        *self = Books::default();
    }

    /// A report was acknowledged.
    pub(super) fn heard(&mut self, name: &str, model: &str, held: &[u64], process: &Process) {
        let known = Known {
            model: model.into(),
            held: held.into(),
            process: process.number,
            heard_ns: process.clock_ns,
        };
        self.known.insert(name.into(), known);
        let wishes = &mut self.generations;
        let unsure = wishes.unsure.as_mut().and_then(Option::as_mut);
        for wanted in wishes.value.as_mut().into_iter().chain(unsure) {
            wanted.without.retain(|left_out| left_out != name);
        }
    }

    /// A second is over for a process.
    pub(super) fn turned(&mut self, process: &Process) {
        let now_ns = process.clock_ns;
        self.known
            .retain(|_, known| now_ns < known.since(process) + FORGOTTEN_NS);
    }

    /// Dataplanes of the model that are not heard of.
    pub(super) fn unheard(&self, process: &Process) -> Vec<String> {
        let known = self.known.iter();
        let unheard = known.filter(|(_, known)| known.model == MODEL && !known.is_heard(process));
        unheard.map(|(name, _)| name.clone()).collect()
    }

    /// What is wanted of the model.
    pub(super) fn wanted(&self) -> Option<&ModelGenerations> {
        self.generations.value.as_ref()
    }

    /// A wish was acknowledged, by this process. Nobody is to be served what others may not: who is not heard of is left out by name, and
    /// all others hold what is to be served.
    pub(super) fn granted(
        &mut self,
        wanted: Option<ModelGenerations>,
        process: &Process,
    ) -> Result<(), Broken> {
        let before = self.generations.value.clone();
        self.generations.set(wanted);
        let (Some(before), Some(after)) = (before, self.wanted()) else {
            return Ok(());
        };
        let is_given_up = before
            .held
            .iter()
            .any(|number| !after.held.contains(number));
        if before.newest == after.newest && !is_given_up {
            return Ok(());
        }
        let unheard = self.unheard(process);
        if let Some(name) = unheard.iter().find(|name| !after.without.contains(name)) {
            return Err(Broken(format!(
                "{before:?} became {after:?}, and {name} was not heard of: {:?}",
                self.known[name]
            )));
        }
        let lacks = |known: &&Known| !known.held.contains(&after.newest);
        let mut there = self.known.values();
        match there.find(|of| of.model == MODEL && of.is_heard(process) && lacks(of)) {
            Some(known) if before.newest != after.newest => Err(Broken(format!(
                "{} is served, and not held by all: {known:?}",
                after.newest
            ))),
            _ => Ok(()),
        }
    }

    /// A wish was made, and no answer came.
    pub(super) fn may_be_granted(&mut self, wanted: Option<ModelGenerations>) {
        self.generations.unsure = Some(wanted);
    }

    /// Settings of a table are acknowledged, or may be.
    pub(super) fn set(&mut self, table: &str, settings: Option<Settings>, is_sure: bool) {
        let wish = self.settings.entry(table.into()).or_default();
        match is_sure {
            true => wish.set(settings),
            false => wish.unsure = Some(settings),
        }
    }

    /// What is wanted of a table.
    pub(super) fn settings(&self, table: &str) -> Option<&Settings> {
        self.settings.get(table)?.value.as_ref()
    }

    /// What a process knows has to be what was acknowledged, and what was not may be.
    pub(super) fn compare(&mut self, planner: &Planner) -> Result<(), Broken> {
        let mut found = planner.wanted().filter(|(model, _)| *model == MODEL);
        let found = found.next().map(|(_, wanted)| wanted);
        let before = self.generations.clone();
        let is_same = |own: &ModelGenerations, found: &ModelGenerations| {
            let is_left_out = |name| own.without.contains(name);
            let named = ModelGenerations {
                without: own.without.clone(),
                ..found.clone()
            };
            named == *own && found.without.iter().all(is_left_out)
        };
        if !self.generations.settle(found, is_same) {
            return Err(Broken(format!("{before:?} was wanted, and {found:?} is")));
        }
        let of_model: BTreeMap<&str, &Settings> = planner
            .settings()
            .filter(|(model, ..)| *model == MODEL)
            .map(|(_, table, settings)| (table, settings))
            .collect();
        for (table, wish) in &mut self.settings {
            let (before, found) = (wish.clone(), of_model.get(&**table).copied());
            if !wish.settle(found, Settings::eq) {
                return Err(Broken(format!(
                    "table {table}: {before:?} was wanted, and {found:?} is"
                )));
            }
        }
        Ok(())
    }
}

impl Known {
    /// Since when it is known to a process, by its clock: those before it from its start on.
    fn since(&self, process: &Process) -> u64 {
        match self.process == process.number {
            true => self.heard_ns,
            false => 0,
        }
    }

    fn is_heard(&self, process: &Process) -> bool {
        self.process == process.number && process.clock_ns < self.heard_ns.saturating_add(SILENT_NS)
    }
}
