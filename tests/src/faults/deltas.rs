//! Deltas: applied under load, damaged, and the service is killed while one is applied. By way of the control plane: `deltas_control`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rowmill_arena::HugePages;
use rowmill_client::{
    AnyPort, Batch, BoundSchema, Client, Division, Options, Pooling, Region, RequestOptions,
    Schema, Session, Target, Ticket, Wait,
};
use rowmill_table::{Container, DeltaTable, Generation, LoadOptions, silent, write_delta};
use rustix::process::Signal;

use super::Verdict;
use super::patron::first_of;
use super::site::{Service, Settings, Site, patience};
use super::watch::{after, beside_an_innocent};

/// The table that changes: rows of 64 bytes, which no innocent asks for.
pub(super) const TABLE: &str = "more";
pub(super) const ROWS: u32 = 60_000;
const DIM: usize = 16;
/// Of all rows a delta changes one in so many.
pub(super) const CHANGED_ONE_IN: u32 = 4;
/// All values of a row of delta `n` are this and `n`: no row of the files is like that.
const BASE: f32 = 100.0;
/// Bags of a request, of one row each.
const BAGS: u32 = 256;

/// Settings of a service that takes deltas.
pub(super) fn settings(site: &Site) -> Result<Settings> {
    let directory = site.path("deltas");
    site.model_with(&[(TABLE, ROWS)])?;
    Ok(Settings {
        // The first line is in the section of the admin pages, which is the one before.
        cached: format!(
            "allow_changes = true\n[deltas]\ndirectory = \"{}\"\n",
            directory.display()
        ),
        ..site.settings()?
    })
}

/// The same where the table is cached, with a share for an eighth of its rows, and room for all that change.
fn cached(site: &Site) -> Result<Settings> {
    let settings = settings(site)?;
    let row = DIM * 4;
    let (share, deltas) = (
        ROWS as usize / 8 * row,
        (ROWS / CHANGED_ONE_IN) as usize * row,
    );
    let table = format!(
        "[[tables]]\nname = \"{TABLE}\"\nplacement = \"cached\"\ncache_bytes = {share}\ndelta_bytes = {deltas}\n[cache]\npage_cache = \"allow\"\n"
    );
    Ok(Settings {
        cached: settings.cached.clone() + &table,
        ..settings
    })
}

/// Writes an array as NumPy does (format 1.0).
fn npy(site: &Site, name: &str, header: &str, data: Vec<u8>) -> Result<PathBuf> {
    let path = site.path(name);
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend(118_u16.to_le_bytes());
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend(data);
    fs::write(&path, bytes).context("an array")?;
    Ok(path)
}

/// Makes a delta.
pub(super) fn delta(site: &Site, model: &str, sequence: u64) -> Result<PathBuf> {
    let path = site.path(&format!("{model}-{sequence}.delta"));
    delta_of(site, &path, model, sequence, sequence)
}

/// Makes one whose rows are those of another sequence number.
pub(super) fn delta_of(
    site: &Site,
    path: &Path,
    model: &str,
    sequence: u64,
    rows_of: u64,
) -> Result<PathBuf> {
    let rows = ROWS / CHANGED_ONE_IN;
    let header = |kind: &str, shape: String| {
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}")
    };
    let ids = (0..rows).flat_map(|row| u64::from(row * CHANGED_ONE_IN).to_le_bytes());
    let value = (BASE + rows_of as f32).to_le_bytes();
    let values = value.repeat(rows as usize * DIM);
    let from = Container::Npy {
        ids: Some(npy(
            site,
            "ids.npy",
            &header("<i8", format!("({rows},)")),
            ids.collect(),
        )?),
        rows: npy(
            site,
            "rows.npy",
            &header("<f4", format!("({rows}, {DIM})")),
            values,
        )?,
    };
    let generation = Generation::open(site.model()?)?;
    let name = TABLE.into();
    write_delta(
        path,
        model,
        sequence,
        &generation,
        &[DeltaTable { name, from }],
    )?;
    Ok(path.to_owned())
}

/// Runs `rowmill delta apply`. Returns whether it ended well, and what it said.
pub(super) fn apply(site: &Site, service: &Service, file: &Path) -> Result<(bool, String)> {
    apply_with(site, service, file, &[])
}

fn apply_with(
    site: &Site,
    service: &Service,
    file: &Path,
    more: &[&str],
) -> Result<(bool, String)> {
    let admin = service.admin().to_string();
    let file = file.to_str().context("a path in UTF-8")?;
    let words = [&["delta", "apply", file, "--admin", &admin], more].concat();
    let (status, said) = site.command("rowmill", &words)?;
    Ok((status.success(), said))
}

/// Has one applied though deltas come from a control plane.
pub(super) fn does_locally(site: &Site, service: &Service, file: &Path) -> Result<()> {
    let (is_done, said) = apply_with(site, service, file, &["--local"])?;
    ensure!(is_done, "{said}");
    Ok(())
}

fn does(site: &Site, service: &Service, file: &Path) -> Result<String> {
    let (is_done, said) = apply(site, service, file)?;
    ensure!(is_done, "{said}");
    Ok(said)
}

/// The last delta that is applied.
pub(super) fn applied(service: &Service) -> Result<u64> {
    let status = service.status()?;
    let applied = status["deltas"]["generations"][0]["applied"].as_u64();
    applied.with_context(|| format!("the last delta: {}", status["deltas"]))
}

/// A client that looks rows up, each in a bag of its own, and knows what they may be.
pub(super) struct Looker {
    session: Session<AnyPort>,
    schema: BoundSchema,
    target: Option<Target>,
    region: Region,
    /// A request that a worker has which is held.
    left: Option<Ticket>,
    /// Rows as they are in files.
    files: Vec<f32>,
}

impl Looker {
    pub(super) fn new(site: &Site, endpoint: &str) -> Result<Looker> {
        let options = Options {
            name: "looker".into(),
            ..Options::default()
        };
        let mut session = Client::connect(endpoint, options)?;
        let feature = ("x", TABLE, Pooling::Sum, DIM as u32);
        let (schema, _) = Schema::side_by_side(BAGS, [feature]);
        let schema = session.bind(schema)?;
        let bytes = schema.target_bytes(BAGS);
        // Room for the targets of [`Looker::leave_one`], too.
        let region = session.region(3 * bytes as usize)?;
        let target = session.target(&region, bytes)?;
        let generation = Generation::open(site.model()?)?;
        let tables = generation.load(HugePages::Off, &silent, LoadOptions::default())?;
        let table = tables.table(TABLE).context("the table")?;
        let mut files = vec![0.0; ROWS as usize * DIM];
        for (row, values) in files.chunks_mut(DIM).enumerate() {
            table.row_f32(row as u32, values)?;
        }
        Ok(Looker {
            session,
            schema,
            target: Some(target),
            region,
            left: None,
            files,
        })
    }

    /// As [`Patron::leave_one`](super::patron::Patron::leave_one).
    pub(super) fn leave_one(&mut self) -> Result<()> {
        let mut batch = Batch::new(1)?;
        batch.push(Division::Lengths(&[1]), &[0_u32][..])?;
        let mut send = || -> Result<Ticket> {
            let bytes = self.schema.target_bytes(1);
            let target = self.session.target(&self.region, bytes)?;
            let options = RequestOptions::default();
            Ok(self
                .session
                .submit(&self.schema, &batch, target, &options)?)
        };
        let sent = [send()?, send()?];
        let (at, answer) = first_of(&mut self.session, sent, patience())?;
        answer.outcome?;
        self.session.release(answer.target);
        self.left = Some(sent[1 - at]);
        Ok(())
    }

    /// Waits for the answer to the request that was left.
    pub(super) fn take_left(&mut self) -> Result<()> {
        let ticket = self.left.take().context("a request that was left")?;
        let answer = self.session.wait_for(ticket, Wait::Block, patience())?;
        let answer = answer.context("no answer to what was left")?;
        answer.outcome?;
        self.session.release(answer.target);
        Ok(())
    }

    /// Of so many rows the delta that each is of; 0 for those of the files.
    pub(super) fn look(&mut self, ids: &[u32]) -> Result<Vec<u64>> {
        let mut batch = Batch::new(ids.len())?;
        batch.push(Division::Lengths(&vec![1; ids.len()]), ids)?;
        let target = self.target.take().context("its target")?;
        let options = RequestOptions::default();
        let answer = self
            .session
            .lookup(&self.schema, &batch, target, &options, Wait::Block)?;
        answer.outcome?;
        let mut found = vec![0.0; ids.len() * DIM];
        self.session.read_f32s(&answer.target, 0, &mut found);
        self.target = Some(answer.target);
        let of = |(values, &id): (&[f32], &u32)| {
            let from = id as usize * DIM;
            if values == &self.files[from..from + DIM] {
                ensure!(
                    id % CHANGED_ONE_IN != 0 || answer.delta == 0,
                    "row {id} is as in the file, and the answer says delta {}",
                    answer.delta
                );
                return Ok(0);
            }
            let is_one = values.iter().all(|&value| value == values[0]);
            ensure!(is_one, "row {id} is torn: {values:?}");
            ensure!(
                id % CHANGED_ONE_IN == 0 && values[0] > BASE,
                "row {id} is {values:?}"
            );
            let found = (values[0] - BASE) as u64;
            ensure!(
                found >= answer.delta,
                "row {id} is of delta {found}, and the answer says {}",
                answer.delta
            );
            Ok(found)
        };
        found.chunks(DIM).zip(ids).map(of).collect()
    }

    /// That all rows are as this delta has left them.
    pub(super) fn all_are(&mut self, sequence: u64) -> Result<()> {
        let ids: Vec<u32> = (0..ROWS).collect();
        for ids in ids.chunks(BAGS as usize) {
            for (id, found) in ids.iter().zip(self.look(ids)?) {
                let wanted = if id % CHANGED_ONE_IN == 0 {
                    sequence
                } else {
                    0
                };
                ensure!(
                    found == wanted,
                    "row {id} is of delta {found}, not {wanted}"
                );
            }
        }
        Ok(())
    }

    /// Looks the same rows up until told otherwise. What was acknowledged is served from then on, and no row goes back. Returns how many
    /// requests there were, and how many of them had rows both old and new.
    pub(super) fn watch(
        &mut self,
        first: u32,
        acknowledged: &AtomicU64,
        ended: &AtomicBool,
    ) -> Result<(u64, u64)> {
        let ids: Vec<u32> = (0..BAGS)
            .map(|i| first + i * (ROWS / BAGS / CHANGED_ONE_IN) * CHANGED_ONE_IN)
            .collect();
        let mut seen = vec![0; ids.len()];
        let (mut requests, mut mixed) = (0, 0);
        while !ended.load(Ordering::Relaxed) {
            let least = acknowledged.load(Ordering::SeqCst);
            let found = self.look(&ids)?;
            for ((seen, &found), id) in seen.iter_mut().zip(&found).zip(&ids) {
                ensure!(
                    found >= *seen && found >= least,
                    "row {id} is of delta {found} after {seen}, when {least} was acknowledged"
                );
                *seen = found;
            }
            requests += 1;
            mixed += u64::from(found.iter().any(|one| *one != found[0]));
        }
        Ok((requests, mixed))
    }
}

/// One delta after another under the load of two clients that read what changes.
pub(super) fn under_load(site: &Site) -> Result<Verdict> {
    applied_under_load(site, &settings(site)?)
}

/// The same to a cached table.
pub(super) fn cached_under_load(site: &Site) -> Result<Verdict> {
    applied_under_load(site, &cached(site)?)
}

fn applied_under_load(site: &Site, settings: &Settings) -> Result<Verdict> {
    const DELTAS: u64 = 8;
    beside_an_innocent(site, settings, |scene| {
        let service = &*scene.service;
        let files = (1..=DELTAS).map(|sequence| delta(site, "faults", sequence));
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut lookers =
            [0, CHANGED_ONE_IN].map(|first| (first, Looker::new(site, &service.endpoint)));
        let (acknowledged, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let seen = thread::scope(|scope| {
            let (acknowledged, ended) = (&acknowledged, &ended);
            let watching = lookers.each_mut().map(|(first, looker)| {
                scope.spawn(move || {
                    let looker = looker
                        .as_mut()
                        .map_err(|error| anyhow::anyhow!("{error:#}"))?;
                    looker.watch(*first, acknowledged, ended)
                })
            });
            let all = files.iter().zip(1..).try_for_each(|(file, sequence)| {
                does(site, service, file)?;
                acknowledged.store(sequence, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(20));
                Ok(())
            });
            ended.store(true, Ordering::Relaxed);
            let seen = watching.map(|one| one.join().expect("it does not panic"));
            all.and_then(|()| seen.into_iter().collect::<Result<Vec<_>>>())
        })?;
        let [(_, looker), (_, other)] = lookers;
        looker?.all_are(DELTAS)?;
        drop(other);
        let (requests, mixed) = seen
            .iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        Ok(format!(
            "{DELTAS} deltas of {} rows, {requests} requests for rows that change, {mixed} of them with old and new ones",
            ROWS / CHANGED_ONE_IN
        ))
    })
}

/// Deltas that can't be applied are told, change no row, and none is kept.
pub(super) fn damaged(site: &Site) -> Result<Verdict> {
    let settings = settings(site)?;
    beside_an_innocent(site, &settings, |scene| {
        let service = &*scene.service;
        let first = delta(site, "faults", 1)?;
        let whole = fs::read(&first)?;
        let write = |name: &str, bytes: &[u8]| -> Result<PathBuf> {
            let path = site.path(name);
            fs::write(&path, bytes)?;
            Ok(path)
        };
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x40;
        let cases = [
            (write("flipped", &flipped)?, "is damaged"),
            (
                write("cut", &whole[..whole.len() / 2])?,
                "not written or copied whole",
            ),
            (write("empty", &[])?, "empty"),
            (site.path("nowhere"), "nowhere"),
            (delta(site, "faults", 2)?, "and 1 comes next"),
            (delta(site, "another", 1)?, "is for model another"),
        ];
        let mut looker = Looker::new(site, &service.endpoint)?;
        for (file, why) in &cases {
            let (is_done, said) = apply(site, service, file)?;
            ensure!(!is_done && said.contains(why), "{}: {said}", file.display());
            ensure!(applied(service)? == 0, "{} is applied", file.display());
        }
        looker.all_are(0)?;
        does(site, service, &first)?;
        looker.all_are(1)?;
        let said = does(site, service, &first)?;
        ensure!(said.contains("was applied before"), "{said}");
        Ok(format!(
            "{} deltas were refused and changed nothing",
            cases.len()
        ))
    })
}

/// `kill -9` at several moments after a delta was begun: the next start serves all that were acknowledged, and each whole.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    killed_with(site, &settings(site)?)
}

/// The same of a service whose table is cached.
pub(super) fn cached_killed(site: &Site) -> Result<Verdict> {
    killed_with(site, &cached(site)?)
}

fn killed_with(site: &Site, settings: &Settings) -> Result<Verdict> {
    let tables = site.tables()?;
    let (mut acknowledged, mut found) = (0, Vec::new());
    let mut service = site.start(settings)?;
    for after_ms in [0, 2, 5, 10, 20] {
        let sequence = acknowledged + 1;
        let file = delta(site, "faults", sequence)?;
        let path = file.to_str().context("a path in UTF-8")?;
        let head = format!("POST /deltas/apply?file={path} HTTP/1.1\r\nHost: x\r\n\r\n");
        let reply = service.ask(head.as_bytes())?;
        ensure!(reply.contains(" 202 "), "{reply}");
        thread::sleep(Duration::from_millis(after_ms));
        service.process().signal(Signal::KILL)?;
        ensure!(service.process().end(patience()).is_some(), "it was killed");
        service = site.start(settings)?;
        let there = applied(&service)?;
        ensure!(
            there == acknowledged || there == sequence,
            "delta {there} is served, and {acknowledged} was acknowledged"
        );
        let mut looker = Looker::new(site, &service.endpoint)?;
        looker.all_are(there)?;
        does(site, &service, &file)?;
        looker.all_are(sequence)?;
        found.push(there == sequence);
        acknowledged = sequence;
    }
    after(&mut service, &tables)?;
    let kept = found.iter().filter(|kept| **kept).count();
    Ok(Verdict::Pass(format!(
        "killed {} times, {kept} of them behind the delta's being kept",
        found.len()
    )))
}
