//! A world: control planes, dataplanes and operators, from a storm to a calm.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fastrand::Rng;
use rowmill_admission::{GenerationRequest, GenerationWish};
use tempfile::TempDir;

use super::Mistake;
use super::dataplane::Dataplane;
use super::deltas::{GENERATIONS, MODEL, scratch};
use super::net::{Broken, FIRST, Net, OTHER};
use super::plane::Plane;

/// Everything goes in steps of so long.
pub(super) const STEP_NS: u64 = SECOND_NS / 4;
const SECOND_NS: u64 = 1_000_000_000;
/// Bytes of a cached row, and rows of a table's share at the start.
pub(super) const ROW_BYTES: u64 = 100;
pub(super) const SHARE_ROWS: u64 = 1_500;
/// Seconds of a storm, and those after which all has to be well: another control plane was followed until 30 s ago, and what could not
/// be loaded is tried again after 60 s, which takes some more.
const STORM: u64 = 120;
const CALM: u64 = 120;
/// An operator waits so many seconds until a wish can be fulfilled, and is.
const PATIENCE: u64 = 30;
/// How often who publishes looks whether all is kept, in seconds.
const LOOK: u64 = 5;
/// What is told of a run that has failed: its last so many events.
const TOLD: usize = 100;

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How often each thing has happened.
    pub happened: BTreeMap<&'static str, u64>,
    /// Everything that has, in its order.
    pub story: Vec<String>,
}

/// A rule was broken.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The seed.
    pub seed: u64,
    /// Which one, and how.
    pub violation: String,
    /// The last events.
    pub story: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failed {
            seed,
            violation,
            story,
        } = self;
        write!(f, "{story}\nseed {seed} of the control plane: {violation}")
    }
}

/// See the module's text.
pub(super) struct World {
    pub(super) net: Net,
    pub(super) dataplanes: Vec<Dataplane>,
    _folder: TempDir,
}

/// Runs a seed's world to its end.
///
/// # Errors
/// [`Failed`] with the first rule that was broken.
pub fn run(seed: u64, mistake: Option<Mistake>) -> Result<Outcome, Failed> {
    let mut world = World::new(seed, mistake);
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let net = &mut world.net;
    let violation = match outcome {
        Ok(Ok(())) => {
            return Ok(Outcome {
                happened: std::mem::take(&mut net.happened),
                story: std::mem::take(&mut net.story),
            });
        }
        Ok(Err(Broken(violation))) => violation,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).into()));
            text.unwrap_or_default()
        }
    };
    let last = net.story.len().saturating_sub(TOLD);
    Err(Failed {
        seed,
        violation: format!("after {:.2} s: {violation}", net.now_ns as f64 / 1e9),
        story: net.story[last..].join("\n"),
    })
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> World {
        let mut rng = Rng::with_seed(seed);
        let folder = scratch();
        let planes = ["first", "other"]
            .map(|name| Plane::new(name, folder.path(), rng.u8(0..4) == 0, mistake));
        let all = [("x", MODEL), ("y", MODEL), ("z", MODEL), ("w", "n")];
        World {
            net: Net::new(rng, folder.path(), planes, mistake),
            dataplanes: all.map(|(name, model)| Dataplane::new(name, model)).into(),
            _folder: folder,
        }
    }

    fn run(&mut self) -> Result<(), Broken> {
        for at in 0..self.dataplanes.len() {
            // One has no cached tables, and so is told nothing but of generations.
            let tables: &[&str] = if at == 1 { &[] } else { &["a", "b"] };
            let dataplane = &mut self.dataplanes[at];
            dataplane.begin(1, (tables, SHARE_ROWS), &mut self.net)?;
        }
        for _ in 0..STORM {
            self.blow()?;
            self.second()?;
        }
        self.calm();
        (0..CALM).try_for_each(|_| self.second())?;
        self.check()?;
        self.change()?;
        self.check()?;
        self.net.planes[FIRST].replays().map_err(Broken)
    }

    fn second(&mut self) -> Result<(), Broken> {
        for _ in 0..SECOND_NS / STEP_NS {
            self.net.now_ns += STEP_NS;
            if self.net.now_ns >= self.net.back.0 {
                self.net.start(FIRST)?;
            }
            self.net.pass(STEP_NS);
            for dataplane in &mut self.dataplanes {
                dataplane.step(&mut self.net)?;
            }
        }
        if (self.net.now_ns / SECOND_NS).is_multiple_of(LOOK) {
            self.net.mend_log();
        }
        Ok(())
    }

    /// Nothing happens any more, and what could not be loaded can be.
    fn calm(&mut self) {
        let net = &mut self.net;
        net.happens("calm", "");
        net.route = FIRST;
        // It may go on where nobody is led to it any more, unless one follows it, or may come to: who follows nobody and has connections to
        // it, and who asks it for policies while the one that is followed is silent.
        let other = net.planes[OTHER].process();
        let is_left = |of: &Dataplane| {
            other.is_none_or(|other| match of.follows() {
                Some(followed) => followed != other.deciding.control() && !of.asks(other.number),
                None => !of.has_connection(other.number),
            })
        };
        if !self.dataplanes.iter().all(is_left) || net.rng.bool() {
            net.stop(OTHER, false);
        }
        net.amid = None;
        net.back = (net.now_ns, None);
        net.planes[FIRST].end_at(1 << 40);
        net.planes[FIRST].stand(net.now_ns);
        for dataplane in &mut self.dataplanes {
            (dataplane.down_until_ns, dataplane.silent_until_ns) = (net.now_ns, net.now_ns);
            dataplane.holder.has_not = None;
        }
    }

    /// Whether all is as it is wished.
    fn check(&mut self) -> Result<(), Broken> {
        let process = self.net.first();
        let control = process.deciding.control().to_owned();
        let view = process.deciding.planner().model(process.clock_ns, MODEL);
        if !view.settled {
            return Err(Broken(format!("it is not settled: {view:?}")));
        }
        if view.wanted.as_ref() != self.net.books.wanted() {
            let wanted = self.net.books.wanted();
            return Err(Broken(format!(
                "{:?} is wanted, not {wanted:?}",
                view.wanted
            )));
        }
        let kept = process.log.list();
        for (generation, made) in &self.net.publisher.made {
            let of = kept.iter().find(|of| of.generation == *generation);
            if !of.is_some_and(|of| of.last == *made && of.damaged.is_empty()) {
                return Err(Broken(format!(
                    "of generation {generation} {of:?} is kept, and {made} deltas were made"
                )));
            }
        }
        for dataplane in &self.dataplanes {
            self.check_one(dataplane, &control)
                .map_err(|why| Broken(format!("{}: {why}", dataplane.name)))?;
        }
        Ok(())
    }

    fn check_one(&self, dataplane: &Dataplane, control: &str) -> Result<(), String> {
        let planner = self.net.first().deciding.planner();
        let is_told = planner.policy(dataplane.name).is_some();
        if is_told && dataplane.follows() != Some(control) {
            return Err(format!("it follows {:?}", dataplane.follows()));
        }
        let refusals = dataplane.refusals();
        if is_told && !refusals.is_empty() {
            return Err(format!("it can't do all: {refusals:?}"));
        }
        if dataplane.model != MODEL {
            return Ok(());
        }
        if let Some(wanted) = self.net.books.wanted() {
            let mut both = [dataplane.holder.numbers(), wanted.held.clone()];
            let newest = both[0][0];
            both.iter_mut().for_each(|numbers| numbers.sort_unstable());
            if newest != wanted.newest || both[0] != both[1] {
                return Err(format!("it serves {newest} of {both:?}, not {wanted:?}"));
            }
        }
        for held in &dataplane.holder.held {
            let made = self.net.publisher.made.get(&held.number);
            if made.copied().unwrap_or(0) != held.applied {
                return Err(format!("{held:?} of {made:?} deltas that were made"));
            }
        }
        for (table, share) in &dataplane.tables {
            let wanted = self.net.books.settings(table);
            let wanted = wanted.and_then(|settings| settings.min_bytes);
            let wanted = wanted.map(|bytes| bytes / ROW_BYTES);
            let shares_arena = dataplane.tables.len() > 1;
            if let Some(rows) = wanted.filter(|_| shares_arena)
                && share.abs_diff(rows) > rows / 8
            {
                return Err(format!("table {table} has {share} rows, not {rows}"));
            }
        }
        Ok(())
    }

    /// An operator brings another generation, which has to be done within a bounded time; where the model's dataplanes serve one.
    fn change(&mut self) -> Result<(), Broken> {
        let of_model = self.dataplanes.iter().filter(|of| of.model == MODEL);
        let served: Vec<u64> = of_model.map(|of| of.holder.numbers()[0]).collect();
        let wanted = self.net.books.wanted();
        if wanted.is_none() && served.iter().any(|newest| *newest != served[0]) {
            self.net.happens("served several", "");
            return Ok(());
        }
        let held = wanted.map_or(vec![served[0]], |wanted| wanted.held.clone());
        let new = (1..=GENERATIONS).find(|number| !held.contains(number));
        let new = new.expect("two are held at most");
        let gone = held.iter().find(|number| **number != served[0]);
        let wishes = [
            gone.map(|gone| GenerationWish::Unload(*gone)),
            Some(GenerationWish::Load(new)),
            Some(GenerationWish::Activate(new)),
        ];
        for wish in wishes.into_iter().flatten() {
            let mut left = PATIENCE;
            let request = GenerationRequest {
                wish,
                without: vec![],
            };
            while self.net.wish(&request)? != Some(true) {
                if left == 0 {
                    return Err(Broken(format!("{wish:?} can't be done")));
                }
                left -= 1;
                self.second()?;
            }
        }
        (0..PATIENCE).try_for_each(|_| self.second())
    }
}
