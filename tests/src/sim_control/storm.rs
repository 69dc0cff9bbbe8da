//! What happens in a world, as its seed draws it.

use rowmill_admission::{GenerationRequest, GenerationWish, Settings};
use rowmill_table::DeltaFile;

use super::deltas::{GENERATIONS, MODEL, delta, kept};
use super::net::{Amid, Broken, FIRST, OTHER};
use super::world::{ROW_BYTES, SHARE_ROWS, World};

const SECOND_NS: u64 = 1_000_000_000;

/// Sets of cached tables that a dataplane may begin with.
const SETS: [&[&str]; 4] = [&["a", "b"], &["a"], &["a", "c"], &[]];

impl World {
    /// Something happens, or nothing.
    pub(super) fn blow(&mut self) -> Result<(), Broken> {
        let at = self.net.rng.usize(0..self.dataplanes.len());
        match self.net.rng.u8(0..64) {
            0..=4 => self.end(),
            5..=8 => self.begin(at)?,
            9..=12 => self.silence(at),
            13 | 14 => self.other_answers()?,
            15..=17 => self.clock(at),
            18 => {
                let generation = self.net.rng.u64(2..=GENERATIONS);
                self.dataplanes[at].holder.has_not = Some(generation);
            }
            19 => self.change_alone(at),
            20..=33 => self.wish()?,
            34..=36 => self.set(),
            37..=44 => self.publish(),
            45 => self.rival()?,
            46 => {
                let amid = match self.net.rng.bool() {
                    true => Amid::Kept,
                    false => Amid::Draft(self.net.rng.usize(0..2000)),
                };
                self.net.amid = Some(amid);
            }
            _ => {}
        }
        Ok(())
    }

    /// The control plane ends in one of many ways.
    fn end(&mut self) {
        if self.net.planes[FIRST].process().is_none() {
            return;
        }
        match self.net.rng.u8(0..8) {
            0..=3 => {
                let more = self.net.rng.usize(0..60);
                self.net.planes[FIRST].end_at(more);
            }
            4 => {
                self.net.happens("ended", "");
                self.net.stop(FIRST, true);
            }
            how => {
                self.net.happens("killed", "");
                self.net.stop(FIRST, false);
                match how {
                    5 => self.damage_state(),
                    6 => self.damage_delta(),
                    _ => {}
                }
                if self.net.rng.u8(0..4) == 0 {
                    self.net.back.1 = Some(self.net.rng.usize(0..40));
                }
            }
        }
    }

    fn damage_state(&mut self) {
        if self.net.rng.bool() {
            self.net.happens("state damaged", "");
            self.net.planes[FIRST].damage(&mut self.net.rng);
        }
    }

    fn damage_delta(&mut self) {
        let files = kept(&self.net.planes[FIRST].deltas());
        if files.is_empty() {
            return;
        }
        let path = &files[self.net.rng.usize(0..files.len())];
        let mut bytes = std::fs::read(path).expect("it is kept");
        if self.net.rng.bool() {
            bytes.truncate(self.net.rng.usize(0..bytes.len()));
        } else {
            let at = self.net.rng.usize(0..bytes.len());
            bytes[at] ^= 1;
        }
        std::fs::write(path, bytes).expect("there is room");
        self.net
            .happens("delta damaged", &path.display().to_string());
    }

    /// A dataplane begins anew.
    fn begin(&mut self, at: usize) -> Result<(), Broken> {
        let rng = &mut self.net.rng;
        let tables = match rng.bool() {
            true => SETS[0],
            false => SETS[rng.usize(0..SETS.len())],
        };
        let generation = match rng.u8(0..4) {
            0 => rng.u64(1..=GENERATIONS),
            _ => 1,
        };
        let (is_new, down_ns) = (rng.u8(0..6) == 0, rng.u64(0..15 * SECOND_NS));
        let dataplane = &mut self.dataplanes[at];
        if is_new {
            dataplane.holder.lose();
        }
        let told = format!(
            "{} with {tables:?} and generation {generation}",
            dataplane.name
        );
        self.net.happens("began anew", &told);
        dataplane.begin(generation, (tables, SHARE_ROWS), &mut self.net)?;
        dataplane.down_until_ns = self.net.now_ns + down_ns;
        Ok(())
    }

    /// An operator of a dataplane alone has it serve the other generation that it holds.
    fn change_alone(&mut self, at: usize) {
        let dataplane = &mut self.dataplanes[at];
        if dataplane.holder.stray(&self.net) {
            self.net.happens("changed alone", dataplane.name);
        }
    }

    fn silence(&mut self, at: usize) {
        let dataplane = &mut self.dataplanes[at];
        let for_ns = self.net.rng.u64(SECOND_NS..40 * SECOND_NS);
        dataplane.silent_until_ns = self.net.now_ns + for_ns;
        let name = dataplane.name;
        self.net.happens("fell silent", name);
    }

    /// Another control plane answers at the address for a while; or the first one again.
    fn other_answers(&mut self) -> Result<(), Broken> {
        if self.net.route == OTHER {
            self.net.route = FIRST;
            // Who has a connection to it may keep that.
            if self.net.rng.bool() {
                self.net.stop(OTHER, false);
            }
            return Ok(());
        }
        self.net.start(OTHER)?;
        self.net.route = OTHER;
        self.net.happens("other answers", "");
        // The first one may be gone meanwhile.
        if self.net.rng.bool() {
            self.net.stop(FIRST, false);
            self.net.back.0 += 60 * SECOND_NS;
        }
        Ok(())
    }

    /// A clock leaps, falls or stands.
    fn clock(&mut self, at: usize) {
        let leap_ns = match self.net.rng.u8(0..8) {
            0 => 25 * 3600 * SECOND_NS,
            _ => self.net.rng.u64(1..3600 * SECOND_NS),
        };
        let now_ns = self.net.now_ns;
        let some_ns = self.net.rng.u64(1..10 * SECOND_NS);
        match self.net.rng.u8(0..4) {
            0 => {
                if let Some(process) = self.net.planes[FIRST].awake(now_ns) {
                    process.clock_ns += leap_ns;
                    self.net.happens("clock leapt", "");
                }
            }
            1 => {
                if let Some(process) = self.net.planes[FIRST].awake(now_ns) {
                    process.clock_ns = process.clock_ns.saturating_sub(some_ns);
                    self.net.happens("clock fell", "");
                }
            }
            2 => {
                self.net.planes[FIRST].stand(now_ns + 2 * some_ns);
                self.net.happens("clock stood", "");
            }
            _ => {
                self.dataplanes[at].clock_ns += 5 * some_ns;
                self.net.happens("dataplane's clock leapt", "");
            }
        }
    }

    /// An operator wishes for generations, most often what can be.
    fn wish(&mut self) -> Result<(), Broken> {
        let rng = &mut self.net.rng;
        let any = rng.u64(1..=GENERATIONS);
        let wish = match self.net.books.wanted() {
            Some(wanted) if rng.u8(0..5) > 0 => {
                let other = wanted.held.iter().find(|&&held| held != wanted.newest);
                match (other, rng.u8(0..8)) {
                    (None, _) => GenerationWish::Load(any),
                    (Some(_), 0) if wanted.before.is_some() => GenerationWish::Rollback,
                    (Some(&other), 1) => GenerationWish::Unload(other),
                    (Some(&other), _) => GenerationWish::Activate(other),
                }
            }
            _ => match rng.u8(0..16) {
                0 => GenerationWish::Leave,
                1..=3 => GenerationWish::Rollback,
                4..=6 => GenerationWish::Unload(any),
                7..=9 => GenerationWish::Activate(any),
                _ => GenerationWish::Load(any),
            },
        };
        let leaves_out = rng.u8(0..4) == 0;
        let process = self.net.planes[FIRST].process();
        let without = process.filter(|_| leaves_out);
        let without = without.map_or(vec![], |process| self.net.books.unheard(process));
        let is_without = !without.is_empty();
        let answer = self.net.wish(&GenerationRequest { wish, without })?;
        if is_without && answer == Some(true) {
            self.net.happens("left out", "");
        }
        if wish == GenerationWish::Leave && answer == Some(true) {
            self.net.happens("left to dataplanes", MODEL);
        }
        Ok(())
    }

    /// An operator bounds the share of a table, which there may be or not.
    fn set(&mut self) {
        let rng = &mut self.net.rng;
        let table = ["a", "b", "c", "none"][rng.usize(0..4)];
        let bytes = rng.u64(SHARE_ROWS / 4..SHARE_ROWS) * ROW_BYTES;
        let settings = (rng.u8(0..4) > 0).then(|| Settings {
            min_bytes: Some(bytes),
            max_bytes: Some(bytes),
            ..Settings::default()
        });
        self.net.set(table, settings);
    }

    /// A delta is made, and given or put into the stream, which may lose it.
    fn publish(&mut self) {
        let generation = match self.net.books.wanted() {
            Some(wanted) if self.net.rng.bool() => wanted.newest,
            _ => self.net.rng.u64(1..=GENERATIONS),
        };
        let Some(made) = self.net.publisher.next(generation) else {
            return;
        };
        self.net.happens("delta made", "");
        match self.net.rng.u8(0..4) {
            0 => _ = self.net.give(made),
            1 => self.net.happens("delta lost", ""),
            _ => self.net.publisher.stream.push_back(made),
        }
    }

    /// Somebody gives another delta under a number that one has, which is not taken.
    fn rival(&mut self) -> Result<(), Broken> {
        // What can't be read is replaced by whatever has its number.
        let files = kept(&self.net.planes[FIRST].deltas());
        let is_whole = |path| DeltaFile::open(path).and_then(|kept| kept.check()).is_ok();
        if !files.iter().all(is_whole) {
            return Ok(());
        }
        let all: Vec<(u64, u64)> = self
            .net
            .publisher
            .acknowledged
            .clone()
            .into_iter()
            .collect();
        if all.is_empty() {
            return Ok(());
        }
        let (generation, last) = all[self.net.rng.usize(0..all.len())];
        let sequence = self.net.rng.u64(1..=last);
        let other = delta(generation, sequence, true);
        self.net.happens("rival given", "");
        let process = self.net.planes[FIRST].process();
        match process.is_some_and(|process| process.log.give(&other.bytes).is_ok()) {
            true => Err(Broken(format!(
                "another delta {sequence} of generation {generation} was taken"
            ))),
            false => Ok(()),
        }
    }
}
