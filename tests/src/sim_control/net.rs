//! What lies between dataplanes, operators and control planes: who answers at the address, and what becomes of what is asked there.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use rowmill_admission::{Event, GenerationRequest, Settings};
use rowmill_control::deciding::Deciding;
use rowmill_control::deltas::{Holds, NotTaken, Taken};
use rowmill_link::{Order, Policy, Report};

use super::Mistake;
use super::books::Books;
use super::deltas::{Delta, MODEL, Publisher, delta};
use super::plane::{Plane, Process, Start};

/// A rule that was broken, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

/// Where a control plane ends when it is given a delta.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amid {
    /// So many bytes of it are written.
    Draft(usize),
    /// It is kept, and that is not acknowledged.
    Kept,
}

/// The control plane that operators speak to, and the other one.
pub(super) const FIRST: usize = 0;
pub(super) const OTHER: usize = 1;

/// See the module's text.
pub(super) struct Net {
    pub(super) now_ns: u64,
    pub(super) rng: Rng,
    pub(super) mistake: Option<Mistake>,
    pub(super) planes: [Plane; 2],
    /// Which one answers whoever dials.
    pub(super) route: usize,
    pub(super) books: Books,
    pub(super) publisher: Publisher,
    pub(super) amid: Option<Amid>,
    /// When the first one is started again, and at which of its writes it is killed then, if it is.
    pub(super) back: (u64, Option<usize>),
    /// How often each thing has happened.
    pub(super) happened: BTreeMap<&'static str, u64>,
    pub(super) story: Vec<String>,
    folder: PathBuf,
    numbers: u64,
    /// All that was told, by whom and in which place.
    told: BTreeMap<(String, Order), Arc<Policy>>,
    /// The last delta that was applied to each generation, each time that it was loaded.
    applied: BTreeMap<u64, u64>,
}

impl Net {
    pub(super) fn new(
        rng: Rng,
        folder: &Path,
        planes: [Plane; 2],
        mistake: Option<Mistake>,
    ) -> Net {
        Net {
            now_ns: 0,
            rng,
            mistake,
            planes,
            route: FIRST,
            books: Books::default(),
            publisher: Publisher::default(),
            amid: None,
            back: (0, None),
            happened: BTreeMap::new(),
            story: Vec::new(),
            folder: folder.into(),
            numbers: 0,
            told: BTreeMap::new(),
            applied: BTreeMap::new(),
        }
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Something has happened, with what is told of it.
    pub(super) fn happens(&mut self, what: &'static str, more: &str) {
        *self.happened.entry(what).or_default() += 1;
        let s = self.now_ns as f64 / 1e9;
        // Where files lie differs between two runs of a seed.
        let more = more.replace(&self.folder.display().to_string(), "");
        self.story.push(format!("{s:8.2} s  {what}  {more}"));
    }

    /// A control plane is killed, or ends in order. The first one comes back after a while.
    pub(super) fn stop(&mut self, at: usize, in_order: bool) {
        self.planes[at].stop(in_order, &mut self.rng);
        if at == FIRST {
            self.back = (self.now_ns + self.rng.u64(0..15_000_000_000), None);
        }
    }

    /// Starts a control plane, unless it is there. What the first one knows then has to be what was acknowledged.
    pub(super) fn start(&mut self, at: usize) -> Result<(), Broken> {
        if self.planes[at].process().is_some() {
            return Ok(());
        }
        let end = self.back.1.take().filter(|_| at == FIRST);
        let number = self.number();
        let start = self.planes[at].start(number, end);
        if at != FIRST {
            return Ok(());
        }
        self.happens("started", &format!("{start:?}"));
        match start {
            Start::Killed => {
                self.happens("killed at a start", "");
                self.back = (self.now_ns + 1_000_000_000, None);
                return Ok(());
            }
            Start::Anew => {
                self.happens("state lost", "");
                self.books.lose();
            }
            Start::Done => {}
        }
        let process = self.planes[FIRST].process().expect("it was started");
        self.books.compare(process.deciding.planner())
    }

    /// Asks a control plane; none where no answer comes.
    fn ask<T>(&mut self, at: usize, what: impl FnOnce(&mut Deciding, u64) -> T) -> Option<T> {
        let process = self.planes[at].awake(self.now_ns)?;
        let answer = what(&mut process.deciding, process.clock_ns);
        if self.planes[at].has_ended() {
            self.happens("killed at a write", "");
            self.stop(at, false);
            return None;
        }
        Some(answer)
    }

    /// The process of the first one, which has just answered.
    pub(super) fn first(&self) -> &Process {
        self.planes[FIRST].process().expect("it is there")
    }

    /// Lets time pass for the control planes.
    pub(super) fn pass(&mut self, ns: u64) {
        for at in [FIRST, OTHER] {
            let process = self.planes[at].awake(self.now_ns);
            if !process.is_some_and(|process| process.pass(ns)) {
                continue;
            }
            if at == FIRST {
                // Also of a turn in which it is killed: what it forgot may be kept.
                let process = self.planes[FIRST].process().expect("it is awake");
                self.books.turned(process);
            }
            let turned = self.ask(at, |deciding, now_ns| deciding.turn(now_ns));
            if turned.is_some() && at == FIRST {
                self.read_stream();
            }
        }
    }

    /// Who answers there.
    pub(super) fn control(&self, at: usize) -> Option<String> {
        let process = self.planes[at].process()?;
        Some(process.deciding.control().into())
    }

    /// A dataplane reports: nothing where no answer came, or whether it was taken.
    pub(super) fn report(&mut self, at: usize, name: &str, report: Report) -> Option<bool> {
        let (dataplane, told) = (name.to_owned(), report.clone());
        let event = Event::Report { dataplane, report };
        let taken = self.ask(at, |deciding, now_ns| deciding.tell(now_ns, event))?;
        if taken.is_ok() {
            let process = self.planes[at].process().expect("it has just answered");
            process.log.reported(name, Holds::from(&told));
            if at == FIRST {
                self.books
                    .heard(name, &told.model, &told.generations, process);
            }
        }
        Some(taken.is_ok())
    }

    /// The policy of a dataplane that is newer than this; nothing where no answer comes.
    pub(super) fn policy(
        &mut self,
        at: usize,
        name: &str,
        after: Order,
    ) -> Option<Option<Arc<Policy>>> {
        let process = self.planes[at].awake(self.now_ns)?;
        let policy = process.deciding.published().get(name);
        Some(policy.filter(|policy| policy.order > after).cloned())
    }

    /// What has one place among all that is told is one thing, for ever.
    pub(super) fn is_told(&mut self, policy: &Arc<Policy>) -> Result<(), Broken> {
        let place = (policy.control.clone(), policy.order);
        let before = self.told.entry(place).or_insert_with(|| Arc::clone(policy));
        match before == policy {
            true => Ok(()),
            false => Err(Broken(format!("{before:?} has become {policy:?}"))),
        }
    }

    /// A piece of a delta, as it is asked for over HTTP; nothing where no answer comes.
    pub(super) fn piece(
        &mut self,
        (at, control): (usize, Option<&str>),
        name: &str,
        (generation, sequence): (u64, u64),
        chain: Option<u32>,
        from: u64,
    ) -> Option<Result<Option<Vec<u8>>, String>> {
        let process = self.planes[at].awake(self.now_ns)?;
        if control.is_some_and(|other| other != process.deciding.control()) {
            return Some(Err("the dataplane follows another one".into()));
        }
        let place = (MODEL, generation, sequence);
        let piece = process.log.piece(name, place, chain, from);
        Some(piece.map_err(|why| why.to_string()))
    }

    /// A dataplane has applied a delta to a generation that it has loaded at some time: each comes once, in order, and as it was made.
    pub(super) fn applied(
        &mut self,
        load: u64,
        (generation, sequence): (u64, u64),
        crc32: u32,
    ) -> Result<(), Broken> {
        let last = self.applied.entry(load).or_default();
        if sequence != *last + 1 {
            return Err(Broken(format!(
                "delta {sequence} of generation {generation} was applied after {last}"
            )));
        }
        *last = sequence;
        if crc32 != delta(generation, sequence, false).crc32 {
            return Err(Broken(format!(
                "another delta {sequence} of generation {generation} was applied"
            )));
        }
        self.happens("delta applied", "");
        Ok(())
    }

    /// A file of a dataplane's, for a delta that comes.
    pub(super) fn incoming(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// An operator wishes. Whether it is granted, if an answer comes.
    pub(super) fn wish(&mut self, request: &GenerationRequest) -> Result<Option<bool>, Broken> {
        let GenerationRequest { wish, without } = request;
        let mut may_be = None;
        let answer = self.ask(FIRST, |deciding, now_ns| {
            let planner = deciding.planner();
            may_be = planner.wish(now_ns, MODEL, *wish, without).ok();
            deciding.wish(now_ns, MODEL.into(), request)
        });
        let Some(answer) = answer else {
            if let Some(wanted) = may_be {
                self.books.may_be_granted(wanted);
            }
            return Ok(None);
        };
        let told = format!("{wish:?} {without:?}");
        let Ok(view) = answer else {
            self.happens("wish refused", &told);
            return Ok(Some(false));
        };
        self.happens("wish granted", &told);
        let process = self.planes[FIRST].process().expect("it has just answered");
        self.books.granted(view.wanted, process)?;
        Ok(Some(true))
    }

    /// An operator wants something of a table, or no longer.
    pub(super) fn set(&mut self, table: &str, settings: Option<Settings>) {
        let event = Event::Settings {
            model: MODEL.into(),
            table: table.into(),
            settings: settings.clone(),
        };
        let is_there = self.planes[FIRST].awake(self.now_ns).is_some();
        let answer = self.ask(FIRST, |deciding, now_ns| deciding.tell(now_ns, event));
        match answer {
            Some(taken) => {
                taken.expect("they can be");
                self.happens("settings", table);
                self.books.set(table, settings, true);
            }
            None if is_there => self.books.set(table, settings, false),
            None => {}
        }
    }

    /// A delta is given; nothing where no answer comes.
    pub(super) fn give(&mut self, given: &Delta) -> Option<Result<Taken, NotTaken>> {
        let log = Arc::clone(&self.planes[FIRST].awake(self.now_ns)?.log);
        let taken = match self.amid.take() {
            Some(Amid::Draft(bytes)) => {
                let bytes = &given.bytes[..bytes.min(given.bytes.len())];
                let draft = self.planes[FIRST].deltas().join("incoming.tmp");
                fs::write(draft, bytes).expect("there is room");
                None
            }
            Some(Amid::Kept) => {
                let _untold = log.give(&given.bytes);
                None
            }
            None => Some(log.give(&given.bytes)),
        };
        drop(log);
        if taken.is_none() {
            self.happens("killed amid a delta", "");
            self.stop(FIRST, false);
        }
        if let Some(Ok(_)) = &taken {
            self.publisher.is_acknowledged(given);
        }
        taken
    }

    /// The control plane reads an entry of the stream, and keeps its place behind it, unless it is killed before.
    fn read_stream(&mut self) {
        let Some(&next) = self.publisher.stream.front() else {
            return;
        };
        // What may not be taken now is sent again by who looks what is lacking.
        if self.give(next).is_some() {
            if self.rng.u8(0..5) == 0 {
                self.happens("delta came twice", "");
            } else {
                self.publisher.stream.pop_front();
            }
        }
    }

    /// Whoever publishes looks what the log lacks of what was made, or can't send, and gives that again.
    pub(super) fn mend_log(&mut self) {
        let Some(process) = self.planes[FIRST].awake(self.now_ns) else {
            return;
        };
        let kept = process.log.list();
        for (generation, made) in self.publisher.made.clone() {
            let kept = kept.iter().find(|kept| kept.generation == generation);
            let last = kept.map_or(0, |kept| kept.last);
            let damaged = kept.map_or(vec![], |kept| kept.damaged.clone());
            let lacking = (last < made).then_some(last + 1);
            for sequence in damaged.into_iter().chain(lacking) {
                let _looked_again = self.give(delta(generation, sequence, false));
            }
        }
    }
}
