//! Cached tables: a file tier that is damaged, cut or replaced under way, and caches that are too small for their work.

use std::fs::{self, OpenOptions};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::{
    AnyPort, Batch, BoundSchema, Client, Division, Failure, Options, Pooling, Region,
    RequestOptions, Schema, Session, Status, Ticket, Wait,
};
use rowmill_pooling::{Mode, scalar};
use rowmill_table::{Generation, Resident};

use super::Verdict;
use super::patron::{Innocent, Outcome, bound_of_files, rows};
use super::site::{Service, Settings, Site, patience, until};
use super::watch::beside_an_innocent;

/// The table that faults happen to; the innocent has others.
pub(super) const COLD: &str = "cold";
/// Its rows: 6.4 MB.
pub(super) const COLD_ROWS: u32 = 100_000;
/// Dimensions of a row, 64 bytes.
const DIM: usize = 16;
/// Bytes of a page, which has a checksum; the first one holds the header.
const PAGE: u64 = 4096;
/// Rows of a page.
pub(super) const PAGE_ROWS: u32 = 64;
/// Bytes of a share for 32 rows a worker, the least there is: a row, its tag, its number and its meta word.
pub(super) const LEAST_SHARE: u32 = 64 * (4 * DIM as u32 + 8);
/// Most rows of a request.
pub(super) const MAX_ROWS: usize = 2048;

/// Settings where three tables are cached, [`COLD`] in the least share, so that next to all of its rows come from its file.
///
/// # Errors
/// As [`Site::model`].
pub(super) fn settings(site: &Site, cache: &str, on_failure: &str) -> Result<Settings> {
    site.model_with(&[(COLD, COLD_ROWS)])?;
    let table = |name: &str, bytes: u32| {
        format!(
            "[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = {bytes}\non_failure = \"{on_failure}\"\n"
        )
    };
    let tables = [("small", 80_000), ("quant", 30_000), (COLD, LEAST_SHARE)];
    let tables: String = tables.map(|(name, bytes)| table(name, bytes)).concat();
    Ok(Settings {
        cached: format!("[cache]\npage_cache = \"allow\"\n{cache}{tables}"),
        ..site.settings()?
    })
}

/// Time enough for any disk: what is not late is not to be late.
pub(super) const PATIENT: &str = "budget_ms = 60000\n";

/// The file of [`COLD`].
pub(super) fn file(site: &Site) -> Result<PathBuf> {
    file_of(site, COLD)
}

/// A table's file.
pub(super) fn file_of(site: &Site, table: &str) -> Result<PathBuf> {
    let generation = Generation::open(site.model()?)?;
    Ok(generation.path(generation.table(table)?))
}

/// A client that asks for single rows of a table like [`COLD`].
pub(super) struct Asker {
    table: &'static str,
    session: Session<AnyPort>,
    schema: BoundSchema,
    region: Region,
    tables: Arc<Resident>,
}

impl Asker {
    /// Connects, to ask for rows of [`COLD`].
    ///
    /// # Errors
    /// Where the service refuses.
    pub(super) fn connect(service: &Service, tables: &Arc<Resident>) -> Result<Asker> {
        Asker::of(COLD, service, tables)
    }

    /// As [`Asker::connect`], of another table of as many dimensions.
    ///
    /// # Errors
    /// As [`Asker::connect`].
    pub(super) fn of(
        table: &'static str,
        service: &Service,
        tables: &Arc<Resident>,
    ) -> Result<Asker> {
        let options = Options {
            name: "asker".into(),
            source_bytes: 64 << 10,
            ..Options::default()
        };
        let mut session = Client::connect(&service.endpoint, options)?;
        let feature = [("rows", table, Pooling::Sum, DIM as u32)];
        let (schema, row_bytes) = Schema::side_by_side(MAX_ROWS as u32, feature);
        Ok(Asker {
            table,
            schema: session.bind(schema)?,
            region: session.region(row_bytes as usize * MAX_ROWS)?,
            session,
            tables: Arc::clone(tables),
        })
    }

    /// Asks for these rows, a bag each.
    ///
    /// # Errors
    /// Where no answer comes, or a row is another than the oracle's.
    pub(super) fn ask(&mut self, ids: &[u32]) -> Result<Outcome> {
        self.ask_but(ids, |_| false)
    }

    /// As [`Asker::ask`], where these rows have to be zeros.
    fn ask_but(&mut self, ids: &[u32], is_zero: impl Fn(u32) -> bool) -> Result<Outcome> {
        let ticket = self.send(ids)?;
        self.answer_of(ticket, ids, is_zero)
    }

    /// Sends a request for these rows; its answer goes to [`Asker::comes`]. All that are sent at a time have [`MAX_ROWS`] at most.
    pub(super) fn send(&mut self, ids: &[u32]) -> Result<Ticket> {
        let mut batch = Batch::new(ids.len())?;
        batch.push(Division::Lengths(&vec![1; ids.len()]), ids)?;
        let bytes = self.schema.target_bytes(ids.len() as u32);
        let target = self.session.target(&self.region, bytes)?;
        self.session.write(&target, 0, &vec![0xff; bytes as usize]);
        let options = RequestOptions::default();
        Ok(self
            .session
            .submit(&self.schema, &batch, target, &options)?)
    }

    /// That the request which asked for these rows is answered well.
    ///
    /// # Errors
    /// If it is not.
    pub(super) fn comes(&mut self, ticket: Ticket, ids: &[u32]) -> Result<()> {
        let outcome = self.answer_of(ticket, ids, |_| false)?;
        ensure!(outcome == Outcome::Ok, "{outcome:?} for good rows");
        Ok(())
    }

    fn answer_of(
        &mut self,
        ticket: Ticket,
        ids: &[u32],
        is_zero: impl Fn(u32) -> bool,
    ) -> Result<Outcome> {
        let answer = self.session.wait_for(ticket, Wait::Block, patience())?;
        let answer = answer.with_context(|| format!("no answer within {:?}", patience()))?;
        let outcome = match answer.outcome {
            Ok(()) => Outcome::Ok,
            Err(Failure::Refused(refusal)) => Outcome::Refused(refusal.status),
            Err(Failure::Disconnected) => bail!("the connection ended"),
        };
        let (mut expected, mut found) = ([0.0; DIM], [0.0; DIM]);
        for (bag, &id) in ids.iter().enumerate() {
            if outcome != Outcome::Ok {
                break;
            }
            match is_zero(id) {
                true => expected = [0.0; DIM],
                false => scalar::bag(
                    &rows(&self.tables, self.table),
                    &[id],
                    None,
                    Mode::Sum,
                    &mut expected,
                ),
            }
            let bag = bag as u32;
            self.session
                .read_vector(&answer.target, &self.schema, 0, bag, &mut found);
            let is_equal = expected.map(f32::to_bits) == found.map(f32::to_bits);
            ensure!(is_equal, "row {id}: {found:?} instead of {expected:?}");
        }
        self.session.release(answer.target);
        Ok(outcome)
    }

    /// Asks for these rows, which has to go well.
    ///
    /// # Errors
    /// If it does not.
    pub(super) fn is_answered(&mut self, ids: &[u32]) -> Result<()> {
        let outcome = self.ask(ids)?;
        ensure!(outcome == Outcome::Ok, "{outcome:?} for good rows");
        Ok(())
    }

    /// Asks for these rows until they are there; how often that took.
    pub(super) fn come(&mut self, ids: &[u32], limit: Duration) -> Result<u32> {
        let (began, mut tries) = (Instant::now(), 0);
        loop {
            tries += 1;
            match self.ask(ids)? {
                Outcome::Ok => return Ok(tries),
                other => ensure!(other == UNAVAILABLE, "{other:?} for good rows"),
            }
            ensure!(began.elapsed() < limit, "not there within {limit:?}");
        }
    }

    /// Asks for each of these rows alone, none of which is to be had.
    pub(super) fn none_is_there(&mut self, ids: impl Iterator<Item = u32>) -> Result<u64> {
        let mut asked = 0;
        for id in ids {
            let outcome = self.ask(&[id])?;
            ensure!(outcome == UNAVAILABLE, "{outcome:?} for row {id}");
            asked += 1;
        }
        Ok(asked)
    }
}

pub(super) const UNAVAILABLE: Outcome = Outcome::Refused(Status::RowUnavailable);

/// What the status page says of [`COLD`].
///
/// # Errors
/// Where it does not.
pub(super) fn figure(service: &Service, key: &str) -> Result<u64> {
    figure_of(service, COLD, key)
}

/// What the status page says of a table.
///
/// # Errors
/// Where it does not.
pub(super) fn figure_of(service: &Service, table: &str, key: &str) -> Result<u64> {
    let status = service.status()?;
    let tables = status["cache"].as_array().context("cached tables")?;
    let shown = tables.iter().find(|shown| shown["table"] == table);
    let figure = shown.context("the table")?[key].as_u64();
    figure.with_context(|| format!("no `{key}` in {shown:?}"))
}

/// Where the status page says that [`COLD`] is.
///
/// # Errors
/// Where it does not.
pub(super) fn placement(service: &Service) -> Result<String> {
    let status = service.status()?;
    let tables = status["tables"].as_array().context("tables")?;
    let table = tables.iter().find(|table| table["name"] == COLD);
    let placement = table.context("the table")?["placement"].as_str();
    Ok(placement.context("a placement")?.to_owned())
}

/// That the status page soon counts so many of these at least.
pub(super) fn is_counted(service: &Service, key: &str, least: u64) -> Result<()> {
    let counted = || figure(service, key).is_ok_and(|count| count >= least);
    until(patience(), counted).with_context(|| format!("`{key}` is below {least}"))
}

/// A page of a table's file is overwritten while it is served from.
pub(super) fn damaged(site: &Site) -> Result<Verdict> {
    let settings = settings(site, PATIENT, "error")?;
    beside_an_innocent(site, &settings, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let page = Page::damage(site, 10, &mut asker)?;
        let asked = asker.none_is_there(page.rows())?;
        is_counted(scene.service, "corrupt", asked)?;
        // Rows around it are whole, but not in one request with such that are not.
        let from = *page.ids.start();
        let around: Vec<u32> = (from - 70..from).chain(from + 64..from + 134).collect();
        asker.is_answered(&around)?;
        let mixed: Vec<u32> = (from - 70..from + 134).collect();
        let outcome = asker.ask(&mixed)?;
        ensure!(outcome == UNAVAILABLE, "{outcome:?} for some damaged rows");
        page.mend()?;
        asker
            .is_answered(&mixed)
            .context("when it is whole again")?;
        Ok(format!("{asked} rows refused, whole again when mended"))
    })
}

/// As [`damaged`], where rows that are not there are to be zeros.
pub(super) fn zeros(site: &Site) -> Result<Verdict> {
    let settings = settings(site, PATIENT, "default-row")?;
    beside_an_innocent(site, &settings, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let page = Page::damage(site, 700, &mut asker)?;
        let from = *page.ids.start();
        let mixed: Vec<u32> = (from - 70..from + 134).collect();
        let outcome = asker.ask_but(&mixed, |id| page.ids.contains(&id))?;
        ensure!(outcome == Outcome::Ok, "{outcome:?} for some damaged rows");
        is_counted(scene.service, "corrupt", PAGE_ROWS.into())?;
        page.mend()?;
        asker
            .is_answered(&mixed)
            .context("when it is whole again")?;
        // Behind the end of a file there is nothing, and before it all: also where both are read together.
        let path = file(site)?;
        let good = fs::read(&path).context("a table")?;
        let cut = OpenOptions::new().write(true).open(&path)?;
        cut.set_len(500 * PAGE).context("cutting a table")?;
        let lost = 499 * PAGE_ROWS;
        let around: Vec<u32> = (lost - 100..lost + 100).collect();
        let outcome = asker.ask_but(&around, |id| id >= lost)?;
        ensure!(outcome == Outcome::Ok, "{outcome:?} for some lost rows");
        is_counted(scene.service, "gone", 100)?;
        cut.write_all_at(&good, 0).context("a table")?;
        asker
            .is_answered(&around)
            .context("when it is as long again")?;
        Ok(format!(
            "{PAGE_ROWS} and 100 rows of zeros and none beside them, right again when mended"
        ))
    })
}

/// A damaged page.
pub(super) struct Page {
    file: fs::File,
    number: u64,
    good: Vec<u8>,
    /// Its rows.
    pub(super) ids: RangeInclusive<u32>,
}

impl Page {
    /// Flips a bit of a page of the table that is asked for, none of whose rows were; others were.
    pub(super) fn damage(site: &Site, number: u32, asker: &mut Asker) -> Result<Page> {
        let first = (number - 1) * PAGE_ROWS;
        asker.is_answered(&[0, 1, first - 1, first + PAGE_ROWS])?;
        Page::damage_in(&file_of(site, asker.table)?, number)
    }

    /// Flips a bit of a page of this file.
    pub(super) fn damage_in(path: &Path, number: u32) -> Result<Page> {
        let first = (number - 1) * PAGE_ROWS;
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let mut page = Page {
            file,
            number: number.into(),
            good: vec![0; PAGE as usize],
            ids: first..=first + PAGE_ROWS - 1,
        };
        page.file
            .read_exact_at(&mut page.good, page.number * PAGE)?;
        let mut bad = page.good.clone();
        bad[1000] ^= 8;
        page.write(&bad)?;
        Ok(page)
    }

    /// Its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = u32> + use<> {
        self.ids.clone()
    }

    /// Makes it whole again.
    pub(super) fn mend(&self) -> Result<()> {
        self.write(&self.good)
    }

    fn write(&self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(bytes, self.number * PAGE)
            .context("a page")?;
        self.file.sync_all().context("a page")
    }
}

/// A table's file is cut while it is served from.
pub(super) fn truncated(site: &Site) -> Result<Verdict> {
    let settings = settings(site, PATIENT, "error")?;
    beside_an_innocent(site, &settings, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let path = file(site)?;
        let good = fs::read(&path).context("a table")?;
        let file = OpenOptions::new().write(true).open(&path)?;
        // In the middle of a page, and between two.
        let mut gone = 0;
        for (len, first) in [(100 * PAGE + 640, 99 * PAGE_ROWS), (PAGE * 2, PAGE_ROWS)] {
            file.set_len(len).context("cutting a table")?;
            // A page that was cut does not match its checksum: its rows are gone either way.
            let lost = [first, first + 63, first + 64, 50_000, COLD_ROWS - 1];
            gone += asker.none_is_there(lost.into_iter())?;
            let left: Vec<u32> = (first - 64..first).collect();
            asker.is_answered(&left)?;
        }
        is_counted(scene.service, "gone", 6)?;
        file.write_all_at(&good, 0).context("a table")?;
        asker
            .is_answered(&[0, 6400, 50_000, COLD_ROWS - 1])
            .context("when it is whole again")?;
        Ok(format!("{gone} rows refused, there again when restored"))
    })
}

/// Another file takes a table's place while it is served from: the one that was opened is read on.
pub(super) fn replaced(site: &Site) -> Result<Verdict> {
    let settings = settings(site, PATIENT, "error")?;
    beside_an_innocent(site, &settings, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let path = file(site)?;
        let good = fs::read(&path).context("a table")?;
        let other = site.path("other.rows");
        let steps: [(&str, Vec<u8>); 2] = [
            ("shorter", good[..8192].to_vec()),
            ("of other rows", good.iter().map(|byte| byte ^ 1).collect()),
        ];
        let mut asked = 0;
        for (what, bytes) in steps {
            fs::write(&other, bytes).context("another file")?;
            fs::rename(&other, &path).context("taking its place")?;
            let ids: Vec<u32> = (asked..COLD_ROWS).step_by(53).collect();
            asker.is_answered(&ids).context(what)?;
            asked += ids.len() as u32;
        }
        fs::remove_file(&path).context("removing it")?;
        asker.is_answered(&[3, 60_000]).context("no file")?;
        // What comes next may look at the model.
        fs::write(&path, good).context("a table")?;
        Ok(format!("{asked} rows of the old file"))
    })
}

/// All rows fall into two sets of each worker's shard, which many clients want to be in.
pub(super) fn one_set(site: &Site) -> Result<Verdict> {
    const CROWD: usize = 4;
    let mut settings = settings(site, PATIENT, "error")?;
    for wide in ["80000", "30000"] {
        let share = LEAST_SHARE.to_string();
        settings.cached = settings.cached.replace(wide, &share);
    }
    beside_an_innocent(site, &settings, |scene| {
        let limit = bound_of_files();
        let start = |_| Innocent::start(&scene.service.endpoint, scene.tables, false, limit);
        let crowd = (0..CROWD).map(start).collect::<Result<Vec<_>>>()?;
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        for from in 0..20 {
            let all: Vec<u32> = (from..COLD_ROWS).step_by(211).collect();
            asker.is_answered(&all)?;
            asker.is_answered(&[1, 2, 3, 1])?;
        }
        let mut answers = 0;
        for client in crowd {
            answers += client.finish()?.answers;
        }
        let held = figure(scene.service, "held_rows")?;
        ensure!(held <= 64, "{held} rows in room for 64");
        let crowded = figure(scene.service, "crowded")?;
        ensure!(crowded > 0, "each row found a slot");
        Ok(format!(
            "{answers} answers to {CROWD} others, {crowded} rows found no slot"
        ))
    })
}

/// Killed with rows on their way, and started again.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    super::endings::killed_with(site, &settings(site, PATIENT, "error")?)
}
