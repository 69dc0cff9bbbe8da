//! A dataplane without rows: caches that look rows up, draw samples, report, and do what policies say.

use std::collections::{BTreeMap, VecDeque};

use rowmill_admission::{
    Event, Limits, Miniature, Planner, Recorded, Refused, Sampling, TURN_NS, place,
};
use rowmill_link::{
    Applied, Placement, Policy, Report, Sample, Samples, TableReport, TableSamples,
};

/// Bytes of a row with what is kept beside it.
pub(crate) const ROW_BYTES: u64 = 100;
/// Lookups go in steps of so long: samples are sent after each.
const STEP_NS: u64 = TURN_NS / 20;

/// What a table is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    /// Lookups a second.
    pub(crate) lookups: u32,
    /// Rows that are looked up, by Zipf's law with an exponent of 1 or evenly.
    pub(crate) rows: u32,
    pub(crate) even: bool,
    /// Which rows these are.
    pub(crate) places: u64,
}

struct Cache {
    rows: u64,
    traffic: Traffic,
    slots: Miniature,
    /// The last rows that were looked up: what a cache of another size is filled with.
    recent: VecDeque<u32>,
    lookups: u64,
    hits: u64,
    since: TableSamples,
    threshold: u32,
}

/// A dataplane, and how it is told of.
pub(crate) struct Simulated {
    pub(crate) name: String,
    pub(crate) instance: u128,
    arena_bytes: u64,
    caches: BTreeMap<String, Cache>,
    applied: Option<Applied>,
    /// It has told of itself, without which nobody takes its samples.
    pub(crate) reported: bool,
    body: u64,
    random: fastrand::Rng,
    /// It has no memory for larger shares.
    pub(crate) is_short: bool,
    /// Generations that it holds, the one that it serves first, and one that it has no files of.
    pub(crate) generations: Vec<u64>,
    pub(crate) has_not: Option<u64>,
}

impl Simulated {
    /// One whose tables have equal shares.
    pub(crate) fn new(
        name: &str,
        instance: u128,
        arena_rows: u64,
        tables: &[(&str, u64, Traffic)],
    ) -> Simulated {
        let share = arena_rows / tables.len() as u64;
        let cache = |&(name, rows, traffic): &(&str, u64, Traffic)| {
            let cache = Cache {
                rows,
                traffic,
                slots: Miniature::new(share as u32, instance as u64),
                recent: VecDeque::new(),
                lookups: 0,
                hits: 0,
                since: TableSamples {
                    table: name.into(),
                    ..TableSamples::default()
                },
                threshold: 0,
            };
            (name.to_owned(), cache)
        };
        Simulated {
            name: name.into(),
            instance,
            arena_bytes: arena_rows * ROW_BYTES,
            caches: tables.iter().map(cache).collect(),
            applied: None,
            reported: false,
            body: 0,
            random: fastrand::Rng::with_seed(instance as u64),
            is_short: false,
            generations: vec![1],
            has_not: None,
        }
    }

    pub(crate) fn ask(&mut self, table: &str, traffic: Traffic) {
        self.caches.get_mut(table).unwrap().traffic = traffic;
    }

    pub(crate) fn rows(&self, table: &str) -> u64 {
        self.caches[table].slots.slots().into()
    }

    pub(crate) fn threshold(&self, table: &str) -> u32 {
        self.caches[table].threshold
    }

    /// Follows another control plane.
    pub(crate) fn lure(&mut self, applied: Applied) {
        self.applied = Some(applied);
    }

    /// Looks rows up for some time. Returns lookups and hits.
    pub(crate) fn step(&mut self) -> (u64, u64) {
        let (mut lookups, mut hits) = (0, 0);
        for cache in self.caches.values_mut() {
            let count = u64::from(cache.traffic.lookups) * STEP_NS / TURN_NS;
            for _ in 0..count {
                let found = cache.look_up(self.instance as u64, &mut self.random);
                hits += u64::from(found);
                cache.hits += u64::from(found);
            }
            cache.since.lookups += count;
            cache.lookups += count;
            lookups += count;
        }
        (lookups, hits)
    }

    pub(crate) fn samples(&mut self) -> Samples {
        self.body += 1;
        let parts = self.caches.values_mut().map(|cache| {
            let next = TableSamples {
                table: cache.since.table.clone(),
                threshold: cache.threshold,
                ..TableSamples::default()
            };
            std::mem::replace(&mut cache.since, next)
        });
        Samples {
            instance: self.instance,
            number: self.body,
            tables: parts.collect(),
        }
    }

    pub(crate) fn report(&self) -> Report {
        let tables = self.caches.iter().map(|(name, cache)| {
            let slots = u64::from(cache.slots.slots());
            TableReport {
                table: name.clone(),
                rows: cache.rows,
                slot_bytes: ROW_BYTES,
                placement: Placement::Cached,
                cache_bytes: slots * ROW_BYTES,
                cache_rows: slots,
                held_rows: slots.min(cache.lookups - cache.hits),
                resizing: false,
                lookups: cache.lookups,
                hits: cache.hits,
                fetched: cache.lookups - cache.hits,
                fetch_ns: 0,
                pinned: 0,
                pinned_held: 0,
            }
        });
        Report {
            instance: format!("{:032x}", self.instance),
            version: "0".into(),
            model: "m".into(),
            generation: "1".into(),
            generations: self.generations.clone(),
            arena_bytes: self.arena_bytes,
            workers: 1,
            policy: self.applied.clone(),
            tables: tables.collect(),
            ..Report::default()
        }
    }

    /// Does what a policy says.
    pub(crate) fn follow(&mut self, policy: &Policy) {
        let newer = self
            .applied
            .as_ref()
            .is_none_or(|applied| policy.order > applied.order);
        if !newer {
            return;
        }
        let mut refused = Vec::new();
        for table in &policy.tables {
            let Some(cache) = self.caches.get_mut(&table.table) else {
                continue;
            };
            cache.threshold = table.threshold;
            let Some(slots) = table.cache_bytes.map(|bytes| (bytes / ROW_BYTES) as u32) else {
                continue;
            };
            if self.is_short && slots > cache.slots.slots() {
                refused.push(format!("table {}: there is no memory", table.table));
                continue;
            }
            cache.resize(slots, self.instance as u64);
        }
        if let Some(wanted) = &policy.generations {
            let mut held = wanted.held.clone();
            held.sort_by_key(|&number| number != wanted.newest);
            for number in held.extract_if(.., |number| Some(*number) == self.has_not) {
                refused.push(format!("generation {number}: there is no such directory"));
            }
            self.generations = held;
        }
        let held: u64 = self
            .caches
            .values()
            .map(|cache| u64::from(cache.slots.slots()) * ROW_BYTES)
            .sum();
        assert!(
            held <= self.arena_bytes,
            "{held} bytes of {}",
            self.arena_bytes
        );
        self.applied = Some(Applied {
            control: policy.control.clone(),
            order: policy.order,
            refused,
        });
    }
}

impl Cache {
    fn look_up(&mut self, instance: u64, random: &mut fastrand::Rng) -> bool {
        let Traffic {
            rows, even, places, ..
        } = self.traffic;
        let rank = if even {
            random.u32(0..rows)
        } else {
            (f64::from(rows).powf(random.f64()) as u32).min(rows - 1)
        };
        // Another place for each rank: a permutation of 20 bits, odd factors having inverses there.
        let row = (rank.wrapping_add(places as u32).wrapping_mul(2_654_435_761)) % (1 << 20);
        // A dataplane's places have as many bits as the numbers of its rows.
        let place = place(instance, row) & !0xfff;
        // The threshold of what is sent together is that at its beginning.
        if Sampling::below(self.since.threshold.min(self.threshold)).takes(place) {
            self.since.samples.push(Sample { row, place });
        }
        self.recent.push_back(row);
        if self.recent.len() > 4 * self.slots.slots() as usize {
            self.recent.pop_front();
        }
        self.slots.access(row)
    }

    fn resize(&mut self, slots: u32, seed: u64) {
        if slots / 16 != self.slots.slots() / 16 {
            self.slots = Miniature::new(slots.max(Miniature::SLOTS_MIN), seed);
            self.recent
                .iter()
                .for_each(|&row| _ = self.slots.access(row));
        }
    }
}

/// Dataplanes and a planner, from the beginning of time on.
pub(crate) struct World {
    pub(crate) planner: Planner,
    pub(crate) dataplanes: Vec<Simulated>,
    pub(crate) now_ns: u64,
    pub(crate) recording: Vec<Recorded>,
    /// Dataplanes that are silent, by number.
    pub(crate) silent: Vec<usize>,
}

impl World {
    pub(crate) fn new(dataplanes: Vec<Simulated>) -> World {
        World {
            planner: Planner::new("c".into(), 1, Limits::default()),
            dataplanes,
            now_ns: 0,
            recording: Vec::new(),
            silent: Vec::new(),
        }
    }

    pub(crate) fn tell(&mut self, event: Event) {
        self.recording.push(Recorded {
            at_ns: self.now_ns,
            event: event.clone(),
        });
        self.planner.handle(self.now_ns, event).unwrap();
    }

    /// Tells what a dataplane says. False where another process of that name was heard of a moment ago.
    fn hear(&mut self, event: Event) -> bool {
        self.recording.push(Recorded {
            at_ns: self.now_ns,
            event: event.clone(),
        });
        match self.planner.handle(self.now_ns, event) {
            Err(Refused::Taken) => false,
            taken => {
                taken.unwrap();
                true
            }
        }
    }

    /// Lets seconds pass. Returns the part of lookups that hit in each.
    pub(crate) fn run(&mut self, seconds: u64) -> Vec<f64> {
        (0..seconds).map(|_| self.second()).collect()
    }

    fn second(&mut self) -> f64 {
        let (mut lookups, mut hits) = (0, 0);
        for _ in 0..TURN_NS / STEP_NS {
            for at in 0..self.dataplanes.len() {
                let (more, found) = self.dataplanes[at].step();
                (lookups, hits) = (lookups + more, hits + found);
                let samples = self.dataplanes[at].samples();
                let any = samples.tables.iter().any(|part| part.lookups > 0);
                if any && self.dataplanes[at].reported && !self.silent.contains(&at) {
                    let dataplane = self.dataplanes[at].name.clone();
                    self.hear(Event::Samples { dataplane, samples });
                }
            }
            self.now_ns += STEP_NS;
        }
        for at in 0..self.dataplanes.len() {
            if !self.silent.contains(&at) {
                let dataplane = self.dataplanes[at].name.clone();
                let report = self.dataplanes[at].report();
                self.dataplanes[at].reported = self.hear(Event::Report { dataplane, report });
            }
        }
        self.tell(Event::Turn);
        for (at, dataplane) in self.dataplanes.iter_mut().enumerate() {
            if let Some(policy) = self
                .planner
                .policy(&dataplane.name)
                .filter(|_| !self.silent.contains(&at))
            {
                dataplane.follow(policy);
            }
        }
        hits as f64 / (lookups as f64).max(1.0)
    }

    pub(crate) fn state(&self, dataplane: &str) -> String {
        let views = self.planner.dataplanes(self.now_ns);
        views
            .into_iter()
            .find(|view| view.name == dataplane)
            .unwrap()
            .state
    }
}
