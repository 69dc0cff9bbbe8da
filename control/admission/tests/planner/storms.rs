//! Planners that are killed, dataplanes that start anew, fall silent or follow another control plane, generations that can't be loaded,
//! popularity that shifts and clocks that jump, at random: whatever came, a while after it has ended all is as it is wished.

use std::collections::BTreeMap;

use rowmill_admission::{Event, GenerationWish, Limits, ModelGenerations, Planner};
use rowmill_link::{Applied, Order, Policy};

use crate::simulated::{Simulated, Traffic, World};

const SEEDS: u64 = 8;
/// Seconds of a storm, and those after which all has to be well.
const STORM: u64 = 60;
const CALM: u64 = 60;
const NAMES: [&str; 3] = ["x", "y", "z"];
const TABLES: [&str; 2] = ["a", "b"];

/// What most lookups are of, and few.
const BUSY: Traffic = Traffic {
    lookups: 3_000,
    rows: 20_000,
    even: false,
    places: 0,
};
const QUIET: Traffic = Traffic {
    lookups: 100,
    ..BUSY
};

struct Storm {
    world: World,
    random: fastrand::Rng,
    /// What a planner leaves on its disk: its epoch, what it has published, and what is wanted.
    epoch: u64,
    /// That in which the planner of now began.
    began: u64,
    published: BTreeMap<String, Policy>,
    wanted: Option<ModelGenerations>,
    /// The table that is looked up most.
    busy: usize,
    instances: u128,
    /// How often each thing happened.
    happened: BTreeMap<&'static str, u64>,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut storm = Storm {
            world: World::new(vec![]),
            random: fastrand::Rng::with_seed(seed),
            epoch: 1,
            began: 1,
            published: BTreeMap::new(),
            wanted: None,
            busy: 0,
            instances: u128::from(seed) << 32,
            happened: BTreeMap::new(),
        };
        let all = NAMES.map(|name| storm.dataplane(name));
        storm.world.dataplanes = all.into();
        storm
    }

    /// A process of a dataplane that has just begun.
    fn dataplane(&mut self, name: &str) -> Simulated {
        self.instances += 1;
        let traffic = |table| if table == self.busy { BUSY } else { QUIET };
        let tables = [0, 1].map(|table| (TABLES[table], 20_000, traffic(table)));
        Simulated::new(name, self.instances, 3_000, &tables)
    }

    fn second(&mut self) {
        self.world.run(1);
        for name in NAMES {
            if let Some(policy) = self.world.planner.policy(name) {
                self.published.insert(name.into(), Policy::clone(policy));
            }
        }
        // As the control plane does.
        if let Some((epoch, _)) = self.world.planner.overtaken_by() {
            self.epoch = epoch + 1;
            self.world.tell(Event::Epoch(self.epoch));
        }
    }

    /// The planner is killed, and another one knows what it has left.
    fn kill(&mut self) {
        self.epoch += 1;
        self.began = self.epoch;
        self.world.planner = Planner::new("c".into(), self.epoch, Limits::default());
        self.world.recording.clear();
        for dataplane in &mut self.world.dataplanes {
            dataplane.reported = false;
        }
        for (dataplane, policy) in self.published.clone() {
            self.world.tell(Event::Remembered {
                dataplane,
                model: Some("m".into()),
                policy,
            });
        }
        if self.wanted.is_some() {
            self.want(self.wanted.clone());
        }
    }

    fn want(&mut self, wanted: Option<ModelGenerations>) {
        self.wanted.clone_from(&wanted);
        let model = "m".into();
        self.world.tell(Event::Generations { model, wanted });
    }

    fn wish(&mut self, wish: GenerationWish) -> bool {
        let wanted = self.world.planner.wish(self.world.now_ns, "m", wish, &[]);
        let is_done = wanted.is_ok();
        if let Ok(wanted) = wanted {
            self.want(wanted);
        }
        is_done
    }

    fn shift(&mut self) {
        self.busy = 1 - self.busy;
        for dataplane in &mut self.world.dataplanes {
            dataplane.ask(TABLES[self.busy], BUSY);
            dataplane.ask(TABLES[1 - self.busy], QUIET);
        }
    }

    fn happens(&mut self, what: &'static str) {
        *self.happened.entry(what).or_default() += 1;
    }

    fn blow(&mut self) {
        let at = self.random.usize(0..NAMES.len());
        let generation = self.random.u64(1..=3);
        match self.random.u8(0..24) {
            0 => {
                self.kill();
                self.happens("killed");
            }
            1 => {
                self.world.dataplanes[at] = self.dataplane(NAMES[at]);
                self.happens("began");
            }
            2 => {
                self.world.silent.push(at);
                self.happens("fell silent");
            }
            3 | 4 => self.world.silent.clear(),
            5 => {
                let epoch = self.epoch + self.random.u64(0..=3);
                let order = Order { epoch, version: 7 };
                let applied = Applied {
                    control: "other".into(),
                    order,
                    refused: vec![],
                };
                self.world.dataplanes[at].lure(applied);
                self.happens("were lured");
            }
            6..=9 => {
                let wish = match self.random.u8(0..4) {
                    0 => GenerationWish::Load(generation),
                    1 => GenerationWish::Activate(generation),
                    2 => GenerationWish::Rollback,
                    _ => GenerationWish::Unload(generation),
                };
                let is_done = self.wish(wish);
                self.happens(if is_done { "wished" } else { "refused" });
            }
            10 => self.world.dataplanes[at].has_not = Some(generation).filter(|&it| it > 1),
            11 => {
                self.world.now_ns += self.random.u64(1..=3_600_000_000_000);
                self.happens("jumped");
            }
            12 => {
                self.shift();
                self.happens("shifted");
            }
            _ => {}
        }
        self.second();
    }

    /// Nothing happens any more; what could not be loaded can be, and is wished for again.
    fn calm(&mut self) {
        self.world.silent.clear();
        for dataplane in &mut self.world.dataplanes {
            dataplane.has_not = None;
        }
        (0..5).for_each(|_| self.second());
        for number in self.wanted.clone().map_or(vec![], |wanted| wanted.held) {
            assert!(self.wish(GenerationWish::Load(number)), "again");
        }
        (0..CALM).for_each(|_| self.second());
    }

    fn check(&self) {
        let (busy, quiet) = (TABLES[self.busy], TABLES[1 - self.busy]);
        let view = self.world.planner.model(self.world.now_ns, "m");
        assert!(view.settled, "{view:?}");
        for dataplane in &self.world.dataplanes {
            let shares = [busy, quiet].map(|table| dataplane.rows(table));
            assert!(shares[0] > 2 * shares[1], "{}: {shares:?}", dataplane.name);
            if let Some(wanted) = &self.wanted {
                let held = &dataplane.generations;
                assert_eq!(held[0], wanted.newest, "{}", dataplane.name);
                let mut both = [held.clone(), wanted.held.clone()];
                both.iter_mut().for_each(|numbers| numbers.sort_unstable());
                assert_eq!(both[0], both[1], "{}", dataplane.name);
            }
        }
        // Whatever came, it comes to the same again.
        let mut again = Planner::new("c".into(), self.began, Limits::default());
        for line in self.world.recording.clone() {
            // What was refused is refused again.
            let _refused = again.handle(line.at_ns, line.event);
        }
        for name in NAMES {
            assert_eq!(again.policy(name), self.world.planner.policy(name));
        }
    }
}

#[test]
fn after_a_storm_all_is_as_it_is_wished() {
    let mut all = BTreeMap::<&str, u64>::new();
    for seed in 0..SEEDS {
        println!("seed {seed}");
        let mut storm = Storm::new(seed);
        (0..STORM).for_each(|_| storm.blow());
        storm.calm();
        storm.check();
        for (what, often) in storm.happened {
            *all.entry(what).or_default() += often;
        }
    }
    println!("{all:?}");
    assert_eq!(all.len(), 8, "{all:?}");
    assert!(
        all.values().all(|&often| often > SEEDS),
        "each happens often: {all:?}"
    );
}
