//! How the thread makes a change.

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail, ensure};
use rowmill_engine::Side;
use rowmill_table::{Generation, Keep, LoadOptions, Progress, Stage};

use super::{Held, Means, Source, Wish};
use crate::plan::{Choice, bytes_text};
use crate::room::{Memory, Needs};
use crate::service::Pending;
use crate::turnover::{self, Turnover};
use crate::waiting;

/// How often it is looked whether workers have made a step.
const LOOK: Duration = Duration::from_millis(1);
/// The same of steps that are many.
const SHORT: Duration = Duration::from_micros(250);
/// When a worker that has not is told of: it looks once a turn, and sleeps for a second at most.
const SLOW: Duration = Duration::from_secs(5);
/// Directories beside the model's that are looked at for a generation.
const SIBLINGS: usize = 1000;

/// Told how far a change is.
type Running<'r> = &'r dyn Fn(String);

/// What came of a change, and what is told of the model then.
type Made = (String, Option<Choice>);

impl Means {
    pub(super) fn make(
        &self,
        wish: &Wish,
        progress: Progress<'_>,
        running: Running<'_>,
    ) -> anyhow::Result<Made> {
        match wish {
            Wish::Load(source) => self.load(source, progress, running),
            Wish::Activate(_) => Ok(self.switch(true)),
            Wish::Rollback => Ok(self.switch(false)),
            Wish::Unload(number) => Ok((self.unload(*number, running), None)),
        }
    }

    /// Brings a generation in beside the newest.
    fn load(
        &self,
        source: &Source,
        progress: Progress<'_>,
        running: Running<'_>,
    ) -> anyhow::Result<Made> {
        let began = Instant::now();
        let generation = waiting::told(|tell| self.find(source, tell))?;
        let (number, directory) = (generation.number(), generation.dir());
        ensure!(
            self.view.side(number).is_none(),
            "{} is generation {number}, which is held already",
            directory.display()
        );
        ensure!(
            number != 0 && self.view.newest().number != 0,
            "generation 0 cannot be told from the newest by requests, whatever that is: give generations numbers from 1 on (`rowmill table ... \
             --generation`)"
        );
        let coming = self.listed.as_ref();
        let coming = coming.map(|listed| listed.coming(&generation));
        let coming = coming.transpose()?;
        let keep = |number| {
            let listed = coming.as_ref().and_then(|coming| coming.keep(number));
            listed.unwrap_or(self.keep())
        };
        let needs = match (&self.listed, &coming) {
            (Some(listed), Some(coming)) => listed.needs(coming, &generation, self.keep()),
            _ => Needs {
                arenas: generation.arenas_bytes(keep),
                ..Needs::default()
            },
        };
        let what = format!("the tables of generation {number}");
        let room = Memory::now().has_room(self.huge_pages, &what, &needs);
        room.map_err(|why| anyhow!(why))?;
        let options = LoadOptions {
            verify: self.verify,
        };
        let tables = waiting::told(|tell| {
            let progress = |stage: Stage, done: u64, total: u64| {
                tell(directory);
                progress(stage, done, total);
            };
            generation.load_parts(keep, self.huge_pages, &progress, options)
        });
        let tables = tables.with_context(|| format!("cannot load {}", directory.display()))?;
        // No table moves until its workers know of it.
        let hands = self.listed.as_ref().map(|listed| listed.hands());
        // Until it is held, so that no delta comes between.
        let alone = self.deltas.as_ref().map(|deltas| deltas.alone());
        if let Some(deltas) = &self.deltas {
            running("applying its deltas".into());
            deltas.replay(&tables)?;
        }
        let bytes = tables.arena_bytes() as u64;
        let side = self.view.other();
        let tables = match (&hands, coming) {
            (Some(hands), Some(coming)) => {
                let listed = hands.listed;
                listed.bring(hands, side, coming, &generation, tables)?
            }
            _ => Arc::new(tables),
        };
        let prepared = self.sessions.prepare(side, &tables).map_err(|why| {
            if let Some(hands) = &hands {
                hands.listed.leave(hands, side, running);
            }
            anyhow!(why)
        })?;
        drop(hands);
        settle(&prepared.pending, running);
        for schemas in prepared.also.chunks(turnover::SCHEMAS) {
            self.tell(side, turnover::Stage::Bind(schemas.into()), running);
        }
        // Whoever names it before gets Retry.
        self.tell(side, turnover::Stage::Prepare(number), running);
        if let Some(export) = &self.export {
            export.add(&generation, &tables);
        }
        self.view.set_other(Some(Held::new(&generation, tables)));
        drop(alone);
        let mut warmed = String::new();
        if let Some(listed) = &self.listed {
            let tell = |rows| self.tell_in(SHORT, side, turnover::Stage::Keep(rows), running);
            let before = self.warm.of(&self.model, number);
            let before = before.as_ref().map_or(&[][..], |warm| &warm.tables);
            let (hot, given) = listed.warm(side, before, &tell, running);
            let or_were = if before.is_empty() { "" } else { " or were" };
            if !before.is_empty() {
                self.warm.forget();
            }
            warmed = format!(", {given} of {hot} rows that are{or_were} hot in its cache");
        }
        let detail = format!(
            "generation {number} of {} is held, {} loaded{warmed} in {:.1} s; it is served when it is activated, or named",
            directory.display(),
            bytes_text(bytes),
            began.elapsed().as_secs_f64()
        );
        Ok((detail, None))
    }

    /// What of each table comes into memory.
    fn keep(&self) -> Keep {
        match self.deltas {
            Some(_) => Keep::Changing,
            None => Keep::All,
        }
    }

    /// Makes the other generation the newest.
    fn switch(&self, can_return: bool) -> Made {
        let (before, side) = (self.view.newest().number, self.view.other());
        // No share changes meanwhile.
        let hands = self.listed.as_ref().map(|listed| listed.hands());
        self.tell(side, turnover::Stage::Switch, &|_| ());
        if let Some(hands) = hands {
            hands.switch(side);
        }
        self.sessions.switch(side);
        self.view.switch(can_return);
        let newest = self.view.newest();
        let detail = format!(
            "generation {} is served; {before} is held beside it",
            newest.number
        );
        let rows = newest.tables.iter().map(|table| table.row_region_bytes());
        let choice = Choice::new(
            "generation",
            format!("{}", newest.number),
            format!(
                "{} tables with {} of rows in {}; it was {before} before",
                newest.tables.len(),
                bytes_text(rows.sum()),
                newest.directory.display()
            ),
        );
        (detail, Some(choice))
    }

    /// Gives up a generation that is not the newest.
    fn unload(&self, number: u64, running: Running<'_>) -> String {
        let side = self.view.other();
        settle(&self.sessions.withdraw(side), running);
        self.tell(side, turnover::Stage::Release, running);
        self.sessions.release(side);
        let hands = self.listed.as_ref().map(|listed| listed.hands());
        // A delta that is being applied to it comes to its end before.
        let alone = self.deltas.as_ref().map(|deltas| deltas.alone());
        if let Some(hands) = &hands {
            hands.listed.leave(hands, side, running);
        }
        drop(hands);
        self.leave_readers(number, running);
        // With it the last who has its tables goes, but for who looks at them right now: their memory is given back.
        self.view.set_other(None);
        drop(alone);
        format!("generation {number} is gone")
    }

    /// Waits until no other dataplane may read a generation: as long as a lease lasts, at most.
    fn leave_readers(&self, number: u64, running: Running<'_>) {
        let Some(export) = &self.export else {
            return;
        };
        export.withdraw(number);
        let began = Instant::now();
        while export.holds(number) {
            if began.elapsed() > SLOW {
                running("waiting for leases of readers to end".into());
            }
            thread::sleep(LOOK);
        }
    }

    /// Tells all workers, and returns when they have done it.
    fn tell(&self, side: Side, stage: turnover::Stage, running: Running<'_>) {
        self.tell_in(LOOK, side, stage, running);
    }

    /// The same, looking so often whether they have.
    fn tell_in(&self, look: Duration, side: Side, stage: turnover::Stage, running: Running<'_>) {
        let turnover = Turnover::new(side, stage, self.mailboxes.len() as u32);
        let turnover = Arc::new(turnover);
        for mailbox in &self.mailboxes {
            mailbox.turn_over(Arc::clone(&turnover));
        }
        let (began, mut told) = (Instant::now(), Instant::now());
        // Who drops it last frees memory.
        while !turnover.is_done() || Arc::strong_count(&turnover) > 1 {
            if told.elapsed() > SLOW {
                told = Instant::now();
                let waited = began.elapsed().as_secs();
                tracing::warn!(
                    "workers have not let go of a generation for {waited} s: requests are in progress on it, or a worker is stuck"
                );
                running(format!("waiting for workers, for {waited} s"));
            }
            thread::sleep(look);
        }
    }

    /// The generation of a source, opened.
    fn find(&self, source: &Source, tell: &dyn Fn(&Path)) -> anyhow::Result<Generation> {
        let beside = self.directory.canonicalize();
        let beside =
            beside.with_context(|| format!("cannot look at {}", self.directory.display()))?;
        let beside = beside.parent().unwrap_or(Path::new("/"));
        match source {
            Source::Directory(path) => {
                let path = beside.join(path);
                let generation = Generation::open_telling(&path, tell);
                generation.with_context(|| format!("cannot open {}", path.display()))
            }
            Source::Number(number) => find_number(*number, beside, tell),
        }
    }
}

/// The generation of a number in one of the directories in this one.
fn find_number(number: u64, beside: &Path, tell: &dyn Fn(&Path)) -> anyhow::Result<Generation> {
    let unread = || format!("cannot look into {}", beside.display());
    let mut paths = Vec::new();
    for entry in beside.read_dir().with_context(unread)? {
        let path = entry.with_context(unread)?.path();
        if !path.join("manifest.json").exists() {
            continue;
        }
        // A link to one of them is that one.
        paths.push(path.canonicalize().unwrap_or(path));
        ensure!(
            paths.len() <= SIBLINGS,
            "there are more than {SIBLINGS} generations in {}: name the directory that is meant",
            beside.display()
        );
    }
    paths.sort_unstable();
    paths.dedup();
    let (mut found, mut meant, mut bad) = (Vec::new(), None, Vec::new());
    for path in paths {
        match Generation::open_telling(&path, tell) {
            Ok(generation) if generation.number() == number => found.push(generation),
            Ok(_) => {}
            Err(error) if meant.is_none() && is_meant(&path, number) => {
                meant = Some(format!("{}: {:#}", path.display(), anyhow!(error)));
            }
            Err(_) => bad.push(path),
        }
    }
    match found.len() {
        1 => Ok(found.remove(0)),
        0 => {
            let others = match bad.first() {
                None => String::new(),
                Some(first) => format!(
                    "; others that cannot be opened: {} (`rowmill table inspect {}` says why of the first)",
                    bad.len(),
                    first.display()
                ),
            };
            match meant {
                Some(why) => bail!("generation {number} cannot be opened: {why}{others}"),
                None => bail!(
                    "there is no generation {number} among the directories in {}{others}",
                    beside.display()
                ),
            }
        }
        _ => bail!(
            "several directories hold generation {number}, {} and {} among them: name the one that is meant",
            found[0].dir().display(),
            found[1].dir().display()
        ),
    }
}

/// Whether a directory that can't be opened is that of a generation: by its manifest, or, where that can't be read, by the number in its name.
fn is_meant(path: &Path, number: u64) -> bool {
    let said = Generation::number_said(path).or_else(|| {
        let name = path.file_name()?.to_str()?;
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        digits.parse().ok()
    });
    said == Some(number)
}

/// Waits until workers have taken in what was bound before.
fn settle(pending: &Pending, running: Running<'_>) {
    let began = Instant::now();
    while !pending.is_settled() {
        if began.elapsed() > SLOW {
            running("waiting for workers to take in schemas".into());
        }
        thread::sleep(LOOK);
    }
}
