//! A client that keeps to the rules, and compares every answer with the scalar oracle, bit by bit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use rowmill_client::{
    Answer, AnyPort, Batch, BoundSchema, Client, Division, Failure, Options, Pooling, Region,
    RequestOptions, Schema, Session, Status, Ticket, Wait,
};
use rowmill_pooling::{Mode, Rows, scalar};
use rowmill_table::Resident;

use super::site::slowness;

/// How long any answer may take to an innocent client whose rows are in memory: 1 s, as nothing that happens to others is to hold it up;
/// where the processor is emulated, as long in proportion as a test's patience.
pub(crate) fn bound() -> Duration {
    Duration::from_secs(1) * slowness()
}

/// The same where some of its rows come from files: what else the machine's disk has to do takes its time. Nothing but a client that is
/// forgotten waits as long.
pub(crate) fn bound_of_files() -> Duration {
    10 * bound()
}

/// Most bags of a request: two lanes' worth of parts, and more ids than fit into a frame.
const MAX_BAGS: usize = 120;
/// Most bags of a request that no service here splits: what it takes for the fewest of a part.
const ONE_PART_BAGS: usize = 8;
/// How long one of several answers is waited for before it is looked for the others.
const SHORT: Duration = Duration::from_millis(5);
/// Most ids of a bag.
const MAX_BAG_IDS: usize = 8;

/// Its features: name, table, pooling, dimensions.
const FEATURES: [(&str, &str, Pooling, u32); 3] = [
    ("sum", "small", Pooling::Sum, 16),
    ("mean", "quant", Pooling::Mean, 32),
    ("weighted", "small", Pooling::WeightedSum, 16),
];

/// What a table's rows are to the oracle.
///
/// # Panics
/// If the model has no such table.
pub(crate) fn rows<'a>(tables: &'a Resident, name: &str) -> Rows<'a> {
    rowmill_engine::rows(tables.table(name).expect("a table of the model"))
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered, bit-equal to the oracle.
    Ok,
    /// Refused.
    Refused(Status),
    /// The connection ended first.
    Disconnected,
}

struct Part {
    lengths: Vec<u32>,
    ids: Vec<u32>,
    weights: Vec<f32>,
}

/// A client that keeps to the rules.
pub(crate) struct Patron {
    session: Session<AnyPort>,
    schema: BoundSchema,
    region: Region,
    tables: Arc<Resident>,
    /// Other generations that it may be answered from.
    others: Vec<Arc<Resident>>,
    rng: Rng,
    parts: Vec<Part>,
    batch: Batch,
    /// Most bags of a request.
    most_bags: usize,
    /// A request that a worker has which is held, with what it asked for.
    left: Option<(Ticket, Vec<Part>)>,
    /// The generation of the last answer.
    answered: u64,
}

impl Patron {
    /// Connects.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn connect(endpoint: &str, name: &str, tables: &Arc<Resident>) -> Result<Patron> {
        let options = Options {
            name: name.into(),
            source_bytes: 64 << 10,
            ..Options::default()
        };
        let mut session = Client::connect(endpoint, options)?;
        let (schema, row_bytes) = Schema::side_by_side(MAX_BAGS as u32, FEATURES);
        let schema = session.bind(schema)?;
        let region = session.region(row_bytes as usize * MAX_BAGS)?;
        Ok(Patron {
            session,
            schema,
            region,
            tables: Arc::clone(tables),
            others: Vec::new(),
            rng: Rng::with_seed(1),
            parts: Vec::new(),
            batch: Batch::new(1)?,
            most_bags: MAX_BAGS,
            left: None,
            answered: 0,
        })
    }

    /// The same, whose requests are of one part each; it may be answered from other generations, too.
    ///
    /// # Errors
    /// As [`Patron::connect`].
    pub(crate) fn connect_small(
        endpoint: &str,
        name: &str,
        (tables, others): (&Arc<Resident>, &[Arc<Resident>]),
    ) -> Result<Patron> {
        let patron = Patron::connect(endpoint, name, tables)?;
        Ok(Patron {
            most_bags: ONE_PART_BAGS,
            others: others.to_vec(),
            ..patron
        })
    }

    /// Leaves a request with that one of two workers which is held. A client's next request goes to the worker that has fewest of its
    /// requests: from now on to the other one, as long as one is sent at a time.
    ///
    /// # Errors
    /// Where none of the two answers within `limit`, or it is wrong.
    pub(crate) fn leave_one(&mut self, limit: Duration) -> Result<()> {
        let mut sent = Vec::new();
        for _ in 0..2 {
            sent.push((self.send()?, std::mem::take(&mut self.parts)));
        }
        let (at, answer) = first_of(&mut self.session, [sent[0].0, sent[1].0], limit)?;
        self.parts = sent.swap_remove(at).1;
        let outcome = self.judge(answer)?;
        ensure!(
            outcome == Outcome::Ok,
            "{outcome:?} beside a worker that is held"
        );
        self.left = sent.pop();
        Ok(())
    }

    /// That the request that was left is not answered.
    ///
    /// # Errors
    /// If it is.
    pub(crate) fn is_left(&mut self) -> Result<()> {
        let (ticket, _) = self.left.as_ref().context("a request that was left")?;
        let answer = self.session.wait_for(*ticket, Wait::Block, SHORT)?;
        ensure!(answer.is_none(), "a worker that is held has answered");
        Ok(())
    }

    /// Waits for the answer to the request that was left: what became of it.
    ///
    /// # Errors
    /// As [`Patron::ask`].
    pub(crate) fn take_left(&mut self, limit: Duration) -> Result<Outcome> {
        let (ticket, parts) = self.left.take().context("a request that was left")?;
        self.parts = parts;
        self.answer_of(ticket, limit)
    }

    /// The generation of the last answer.
    pub(crate) fn answered(&self) -> u64 {
        self.answered
    }

    /// The session.
    pub(crate) fn session(&mut self) -> &mut Session<AnyPort> {
        &mut self.session
    }

    /// The region of its targets.
    pub(crate) fn region(&self) -> Region {
        self.region
    }

    /// Sends a request of random bags; its answer goes to [`Patron::judge`].
    ///
    /// # Errors
    /// Where it can't be sent.
    pub(crate) fn send(&mut self) -> Result<Ticket> {
        let bags = self.rng.usize(1..=self.most_bags);
        self.parts = FEATURES
            .iter()
            .map(|f| draw(&mut self.rng, &self.tables, f.1, bags))
            .collect();
        self.batch.clear(bags)?;
        for (part, (.., pooling, _)) in self.parts.iter().zip(FEATURES) {
            let division = Division::Lengths(&part.lengths);
            match pooling {
                Pooling::WeightedSum => {
                    self.batch
                        .push_weighted(division, &part.ids[..], &part.weights)?
                }
                _ => self.batch.push(division, &part.ids[..])?,
            }
        }
        let bytes = self.schema.target_bytes(bags as u32);
        let target = self.session.target(&self.region, bytes)?;
        // What an answer forgets to write must not be there from the one before.
        self.session.write(&target, 0, &vec![0xff; bytes as usize]);
        let options = RequestOptions::default();
        Ok(self
            .session
            .submit(&self.schema, &self.batch, target, &options)?)
    }

    /// Compares an answer with the oracle.
    ///
    /// # Errors
    /// Where they differ.
    pub(crate) fn judge(&mut self, answer: Answer) -> Result<Outcome> {
        let outcome = match answer.outcome {
            Ok(()) => self.compare(&answer).map(|()| Outcome::Ok),
            Err(Failure::Refused(refusal)) => Ok(Outcome::Refused(refusal.status)),
            Err(Failure::Disconnected) => Ok(Outcome::Disconnected),
        };
        self.session.release(answer.target);
        outcome
    }

    /// The tables of the generation that an answer says that it is of.
    fn tables_of(&self, answer: &Answer) -> Result<&Arc<Resident>> {
        let mut all = core::iter::once(&self.tables).chain(&self.others);
        let number = answer.generation;
        let of_answer = all.find(|tables| tables.generation() == number);
        of_answer.with_context(|| format!("an answer of generation {number}"))
    }

    fn compare(&self, answer: &Answer) -> Result<()> {
        let tables = self.tables_of(answer)?;
        for (f, (part, (name, table, pooling, dim))) in self.parts.iter().zip(FEATURES).enumerate()
        {
            let rows = rows(tables, table);
            let mode = if pooling == Pooling::Mean {
                Mode::Mean
            } else {
                Mode::Sum
            };
            let (mut expected, mut found) = (vec![0.0; dim as usize], vec![0.0; dim as usize]);
            let mut from = 0;
            for (bag, &length) in part.lengths.iter().enumerate() {
                let range = from..from + length as usize;
                from = range.end;
                let weights =
                    (pooling == Pooling::WeightedSum).then(|| &part.weights[range.clone()]);
                scalar::bag(&rows, &part.ids[range], weights, mode, &mut expected);
                self.session
                    .read_vector(&answer.target, &self.schema, f, bag as u32, &mut found);
                let equal = expected
                    .iter()
                    .zip(&found)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                ensure!(
                    equal,
                    "feature {name}, bag {bag}: {found:?} instead of {expected:?}"
                );
            }
        }
        Ok(())
    }

    /// Asks once and judges the answer.
    ///
    /// # Errors
    /// Where no answer comes within `limit`, or a wrong one.
    pub(crate) fn ask(&mut self, limit: Duration) -> Result<Outcome> {
        let ticket = self.send()?;
        self.answer_of(ticket, limit)
    }

    fn answer_of(&mut self, ticket: Ticket, limit: Duration) -> Result<Outcome> {
        match self.session.wait_for(ticket, Wait::Block, limit)? {
            Some(answer) => {
                self.answered = answer.generation;
                self.judge(answer)
            }
            None => bail!("no answer within {limit:?}"),
        }
    }
}

/// Waits for one of two answers: which it is.
///
/// # Errors
/// If none comes within `limit`.
pub(crate) fn first_of(
    session: &mut Session<AnyPort>,
    tickets: [Ticket; 2],
    limit: Duration,
) -> Result<(usize, Answer)> {
    let began = Instant::now();
    while began.elapsed() < limit {
        for (at, ticket) in tickets.into_iter().enumerate() {
            if let Some(answer) = session.wait_for(ticket, Wait::Block, SHORT)? {
                return Ok((at, answer));
            }
        }
    }
    bail!("none of two answers within {limit:?}")
}

fn draw(rng: &mut Rng, tables: &Resident, table: &str, bags: usize) -> Part {
    let lengths: Vec<u32> = (0..bags)
        .map(|_| rng.usize(0..=MAX_BAG_IDS) as u32)
        .collect();
    let (ids, count) = (lengths.iter().sum(), rows(tables, table).count());
    Part {
        ids: (0..ids).map(|_| rng.u32(0..count)).collect(),
        weights: (0..ids).map(|_| rng.f32() - 0.5).collect(),
        lengths,
    }
}

#[derive(Default)]
struct Watched {
    stop: AtomicBool,
    answers: AtomicU64,
    busy: AtomicU64,
    retried: AtomicU64,
    of_others: AtomicU64,
    longest_us: AtomicU64,
}

/// A patron on a thread of its own that asks again and again.
pub(crate) struct Innocent {
    watched: Arc<Watched>,
    limit: Duration,
    thread: Option<JoinHandle<Result<()>>>,
}

/// What an innocent client saw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Answers, all bit-equal.
    pub(crate) answers: u64,
    /// Requests answered BUSY.
    pub(crate) busy: u64,
    /// Requests that were sent again, as the generation that they named was gone.
    pub(crate) retried: u64,
    /// Answers that were of another generation than the first.
    pub(crate) of_others: u64,
    /// The longest time from request to answer.
    pub(crate) longest: Duration,
}

impl Innocent {
    /// Connects and begins. `busy` tells whether BUSY is an answer that it has to put up with, `limit` how long any may take.
    ///
    /// # Errors
    /// As [`Patron::connect`].
    pub(crate) fn start(
        endpoint: &str,
        tables: &Arc<Resident>,
        busy: bool,
        limit: Duration,
    ) -> Result<Innocent> {
        Innocent::start_with(endpoint, (tables, &[]), busy, limit)
    }

    /// The same where answers may be of other generations, too.
    ///
    /// # Errors
    /// As [`Patron::connect`].
    pub(crate) fn start_with(
        endpoint: &str,
        (tables, others): (&Arc<Resident>, &[Arc<Resident>]),
        busy: bool,
        limit: Duration,
    ) -> Result<Innocent> {
        let mut patron = Patron::connect(endpoint, "innocent", tables)?;
        patron.others = others.to_vec();
        let watched = Arc::new(Watched::default());
        let shared = Arc::clone(&watched);
        let thread = std::thread::spawn(move || {
            while !shared.stop.load(Ordering::Relaxed) {
                let began = Instant::now();
                match patron.ask(limit)? {
                    Outcome::Ok => shared.answers.fetch_add(1, Ordering::Relaxed),
                    Outcome::Refused(Status::Busy) if busy => {
                        shared.busy.fetch_add(1, Ordering::Relaxed)
                    }
                    Outcome::Refused(Status::Retry) if !patron.others.is_empty() => {
                        shared.retried.fetch_add(1, Ordering::Relaxed)
                    }
                    other => bail!("{other:?} instead of an answer"),
                };
                let is_other = ![0, patron.tables.generation()].contains(&patron.answered);
                shared
                    .of_others
                    .fetch_add(is_other.into(), Ordering::Relaxed);
                let took = began.elapsed().as_micros() as u64;
                shared.longest_us.fetch_max(took, Ordering::Relaxed);
                // The fault is to happen beside a client, not beside a flood.
                std::thread::sleep(Duration::from_micros(200));
            }
            Ok(())
        });
        Ok(Innocent {
            watched,
            limit,
            thread: Some(thread),
        })
    }

    /// Answers so far.
    pub(crate) fn answers(&self) -> u64 {
        self.watched.answers.load(Ordering::Relaxed)
    }

    /// Lets it ask a few times more, and ends it.
    ///
    /// # Errors
    /// What went wrong for it.
    pub(crate) fn finish(mut self) -> Result<Seen> {
        let (enough, began) = (self.answers() + 20, Instant::now());
        let thread = self.thread.take().context("finished once")?;
        let limit = 2 * self.limit + 3 * bound();
        while self.answers() < enough && !thread.is_finished() && began.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.watched.stop.store(true, Ordering::Relaxed);
        let outcome = thread.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
        outcome.context("the innocent client")?;
        let answers = self.answers();
        ensure!(
            answers >= enough,
            "the innocent client had no more than {answers} answers"
        );
        Ok(Seen {
            answers,
            busy: self.watched.busy.load(Ordering::Relaxed),
            retried: self.watched.retried.load(Ordering::Relaxed),
            of_others: self.watched.of_others.load(Ordering::Relaxed),
            longest: Duration::from_micros(self.watched.longest_us.load(Ordering::Relaxed)),
        })
    }
}

impl Drop for Innocent {
    fn drop(&mut self) {
        self.watched.stop.store(true, Ordering::Relaxed);
    }
}
