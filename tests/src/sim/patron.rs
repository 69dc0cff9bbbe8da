//! A well-behaved client through the real client library. It looks at every answer itself, from what
//! it sent, beside what the ledger makes of what the worker read.

use std::collections::BTreeMap;

use fastrand::Rng;
use rowmill_client::{
    Answer, Batch, BoundSchema, ClientError, Division, Failure, Options, Region, RequestOptions,
    Session, Ticket,
};
use rowmill_port::PortError;
use rowmill_port::sim::{Loss, SimClient};
use rowmill_wire::Status;

use super::history::Stand;
use super::ledger::{Pass, Violation};
use super::model::{SchemaModel, Work, break_schema, draw_schema};
use super::world::{Actor, Stage};

/// What was sent and has no answer yet.
struct Sent {
    ticket: Ticket,
    work: Work,
    options: RequestOptions,
    /// Rows that it may want soon, and no vectors.
    is_prefetch: bool,
    cancelled: bool,
    at_ns: u64,
    /// How far each generation was.
    stands: BTreeMap<u64, Stand>,
}

/// A connected patron.
struct Visit {
    session: Session<SimClient>,
    pass: Pass,
    schema: BoundSchema,
    model: SchemaModel,
    region: Region,
    /// Its target region was lost.
    lost: bool,
}

/// A well-behaved client.
pub struct Patron {
    rng: Rng,
    credits: u16,
    /// Requests that it still wants to send.
    left: u32,
    ids_per_bag: u32,
    /// Longest pause between two looks, in nanoseconds.
    pause_ns: u64,
    next_ns: u64,
    visit: Option<Visit>,
    sent: Vec<Sent>,
}

/// No request of a client that goes on looking takes longer, in simulated time. The largest take some
/// 20 ms at the slowest rate that is drawn, and a few of those can be in front.
pub const PATIENCE_NS: u64 = 2_000_000_000;

impl Patron {
    /// Draws one.
    pub fn draw(rng: &mut Rng) -> Patron {
        let slow = rng.u8(0..4) == 0;
        Patron {
            credits: rng.u16(1..=6),
            left: rng.u32(4..=24),
            ids_per_bag: [0, 1, 4, 16, 40, 80][rng.usize(0..6)],
            pause_ns: if slow { 400_000 } else { rng.u64(500..=20_000) },
            next_ns: rng.u64(0..50_000),
            visit: None,
            sent: Vec::new(),
            rng: Rng::with_seed(rng.u64(..)),
        }
    }

    /// Connects, binds and registers. `None` if there is no room, or the connection was cut meanwhile.
    fn arrive(&mut self, stage: &Stage) -> Result<Option<Visit>, Violation> {
        let port = match stage.net.connect("patron", self.credits) {
            Ok(port) => port,
            Err(PortError::Refused { refusal, .. }) if refusal.status == Status::LimitReached => {
                return Ok(None);
            }
            // It tries again.
            Err(PortError::Connect { .. } | PortError::Lost { .. }) => return Ok(None),
            Err(other) => return Err(Violation(format!("connecting: {other}"))),
        };
        let conn = port.conn();
        let pass = stage.welcome(conn, true);
        let options = Options {
            source_bytes: 256 << 10,
            ..Options::default()
        };
        let visit = self.settle(stage, pass, port, options);
        match visit {
            Ok(visit) => visit.map(Some),
            Err(_) if stage.is_cut(pass) => Ok(None),
            Err(error) => Err(Violation(format!("setting up: {error}"))),
        }
    }

    fn settle(
        &mut self,
        stage: &Stage,
        pass: Pass,
        port: SimClient,
        options: Options,
    ) -> Result<Result<Visit, Violation>, ClientError> {
        let mut session = Session::over(port, options)?;
        let schema = draw_schema(&mut self.rng, &stage.tables);
        if self.rng.u8(0..3) == 0 {
            let mut broken = schema.clone();
            break_schema(&mut self.rng, &mut broken);
            match session.bind(broken.clone()) {
                Err(ClientError::Port(PortError::Refused { .. })) => {}
                Err(other) => return Err(other),
                Ok(_) => {
                    return Ok(Err(Violation(format!(
                        "a broken schema was bound: {broken:?}"
                    ))));
                }
            }
        }
        let bound = session.bind(schema.clone())?;
        let model = SchemaModel::new(&schema, &stage.truth);
        // The library gives out whole cache lines.
        let bytes = model.target_bytes(schema.max_batch).next_multiple_of(64) as usize;
        let region = session.region(bytes * self.rng.usize(1..=3) + 4 * self.rng.usize(0..9))?;
        Ok(Ok(Visit {
            session,
            pass,
            schema: bound,
            model,
            region,
            lost: false,
        }))
    }

    fn take_answers(&mut self, stage: &Stage, visit: &mut Visit) -> Result<bool, Violation> {
        loop {
            match visit.session.poll() {
                Ok(None) => return Ok(true),
                Ok(Some(answer)) => self.judge(stage, visit, answer)?,
                Err(_) if stage.is_cut(visit.pass) => return Ok(false),
                Err(error) => {
                    return Err(Violation(format!("conn {}: {error}", visit.pass.conn.0)));
                }
            }
        }
    }

    fn judge(&mut self, stage: &Stage, visit: &mut Visit, answer: Answer) -> Result<(), Violation> {
        let at = self.sent.iter().position(|s| s.ticket == answer.ticket);
        let sent = self
            .sent
            .swap_remove(at.ok_or_else(|| Violation("an answer to nothing".into()))?);
        match answer.outcome {
            Ok(()) if sent.is_prefetch => {}
            Ok(()) => {
                let of_answer = visit.model.of(answer.generation);
                let model = of_answer.ok_or_else(|| {
                    Violation(format!("an answer of generation {}", answer.generation))
                })?;
                let begun = sent.stands.get(&answer.generation).copied();
                let span = model.history().span(
                    answer.generation,
                    begun.unwrap_or_default(),
                    answer.delta,
                );
                let conn = visit.pass.conn.0;
                let span = span.map_err(|text| Violation(format!("conn {conn}: {text}")))?;
                for (feature, f) in visit.model.features.iter().enumerate() {
                    let mut bytes = vec![0; f.vector_bytes() as usize];
                    let vectors = sent.work.vectors(&visit.model, feature);
                    for vector in 0..vectors {
                        let at = visit.schema.vector_offset(feature, vector);
                        visit.session.read(&answer.target, at, &mut bytes);
                        let partials = sent.options.partials;
                        let place = (feature, vector);
                        if !(sent.work).is_right(model, place, partials, &span, &bytes) {
                            return Err(Violation(format!(
                                "conn {conn} request {:#x}: feature {feature}, vector {vector} is not what the reference gives",
                                answer.ticket.request()
                            )));
                        }
                    }
                }
            }
            Err(Failure::Disconnected) if stage.is_cut(visit.pass) => {}
            Err(Failure::Refused(refusal)) => {
                let expected = match refusal.status {
                    // Of both the ledger looks whether they can be.
                    Status::Busy => true,
                    // The one that it named, or that its parts did, has gone.
                    Status::Retry => {
                        let is_named = sent.options.generation != 0 || answer.parts > 1;
                        is_named && stage.truth.generations.len() > 1
                    }
                    Status::RowUnavailable => {
                        !sent.is_prefetch && visit.model.may_fail(refusal.feature)
                    }
                    Status::Expired => sent.options.remaining.is_some(),
                    Status::Cancelled => sent.cancelled,
                    Status::RegionLost => visit.lost,
                    _ => false,
                };
                if !expected {
                    return Err(Violation(format!(
                        "conn {}: a good request was refused: {refusal}",
                        visit.pass.conn.0
                    )));
                }
            }
            Err(failure) => {
                return Err(Violation(format!("conn {}: {failure}", visit.pass.conn.0)));
            }
        }
        visit.session.release(answer.target);
        Ok(())
    }

    fn send(&mut self, stage: &Stage, visit: &mut Visit) -> Result<(), Violation> {
        let rng = &mut self.rng;
        let most = visit.model.schema.max_batch;
        let bags = if rng.u8(0..4) == 0 {
            1
        } else {
            rng.u32(1..=most)
        };
        let work = Work::draw(rng, &visit.model, bags, self.ids_per_bag);
        if rng.u8(0..8) == 0 {
            return self.prefetch(stage, visit, work);
        }
        let bytes = visit.model.target_bytes(bags);
        let target = match visit.session.target(&visit.region, bytes) {
            Ok(target) => target,
            // There is room again when answers have come.
            Err(_) if !self.sent.is_empty() => return Ok(()),
            Err(error) => {
                return Err(Violation(format!(
                    "conn {}: a target: {error}",
                    visit.pass.conn.0
                )));
            }
        };
        // So that what was there before can't pass for an answer.
        visit.session.write(&target, 0, &vec![0xa5; bytes as usize]);
        let batch = fill(rng, visit, &work);
        let options = RequestOptions {
            remaining: (rng.u8(0..4) == 0)
                .then(|| core::time::Duration::from_micros(rng.u64(1..200))),
            slice_bags: if rng.bool() { rng.u32(0..=bags) } else { 0 },
            partials: rng.u8(0..4) == 0 && visit.model.has_partials(),
            attempt: rng.u16(0..4),
            generation: match stage.truth.generations.len() > 1 && rng.u8(0..8) == 0 {
                true => rng.u64(1..=3),
                false => 0,
            },
        };
        let stands = stage.truth.history.stands();
        match visit
            .session
            .submit(&visit.schema, &batch, target, &options)
        {
            Ok(ticket) => {
                self.left -= 1;
                self.sent.push(Sent {
                    ticket,
                    work,
                    options,
                    is_prefetch: false,
                    cancelled: false,
                    at_ns: stage.net.now_ns(),
                    stands,
                });
                Ok(())
            }
            Err(unsent) => {
                if let Some(target) = unsent.target {
                    visit.session.release(target);
                }
                self.unsent(stage, visit, &unsent.error)
            }
        }
    }

    /// Says that the rows of a batch may be wanted soon.
    fn prefetch(&mut self, stage: &Stage, visit: &mut Visit, work: Work) -> Result<(), Violation> {
        let rng = &mut self.rng;
        let batch = fill(rng, visit, &work);
        let options = RequestOptions {
            remaining: (rng.u8(0..4) == 0)
                .then(|| core::time::Duration::from_micros(rng.u64(1..200))),
            ..RequestOptions::default()
        };
        match visit.session.prefetch(&visit.schema, &batch, &options) {
            Ok(ticket) => {
                self.sent.push(Sent {
                    ticket,
                    work,
                    options,
                    is_prefetch: true,
                    cancelled: false,
                    at_ns: stage.net.now_ns(),
                    stands: BTreeMap::new(),
                });
                Ok(())
            }
            Err(error) => self.unsent(stage, visit, &error),
        }
    }

    /// A batch was not sent.
    fn unsent(
        &mut self,
        stage: &Stage,
        visit: &Visit,
        error: &ClientError,
    ) -> Result<(), Violation> {
        let excused = error.would_block()
            || matches!(error, ClientError::TooLarge { .. })
            || stage.is_cut(visit.pass);
        if !excused {
            let conn = visit.pass.conn.0;
            return Err(Violation(format!(
                "conn {conn}: a good batch was not sent: {error}"
            )));
        }
        // A batch that is too large is not sent a second time.
        self.left -= u32::from(!error.would_block());
        Ok(())
    }

    fn cancel_one(&mut self, visit: &mut Visit) {
        if !self.sent.is_empty() {
            let at = self.rng.usize(0..self.sent.len());
            let sent = &mut self.sent[at];
            sent.cancelled = true;
            // It fails when the connection has ended, which the next poll says.
            let _ended = visit.session.cancel(sent.ticket);
        }
    }

    /// One look at the answers, and perhaps new requests. False when the visit is over.
    fn go_on(&mut self, stage: &Stage, visit: &mut Visit) -> Result<bool, Violation> {
        if !self.take_answers(stage, visit)? {
            self.sent.clear();
            return Ok(false);
        }
        let now_ns = stage.net.now_ns();
        if let Some(sent) = self.sent.iter().find(|s| now_ns > s.at_ns + PATIENCE_NS) {
            return Err(Violation(format!(
                "conn {}: request {:#x} does not end",
                visit.pass.conn.0,
                sent.ticket.request()
            )));
        }
        if visit.lost {
            return Ok(!self.sent.is_empty());
        }
        for _ in 0..self.rng.u32(0..4).min(self.left) {
            self.send(stage, visit)?;
            if self.left == 0 {
                break;
            }
        }
        match self.rng.u32(0..200) {
            0..10 => self.cancel_one(visit),
            10 => {
                if let Some(region) = stage.last_region(visit.pass) {
                    let when = if self.rng.bool() {
                        Loss::Now
                    } else {
                        Loss::AtNextGrant
                    };
                    stage.net.lose(visit.pass.conn, region, when);
                    visit.lost = true;
                }
            }
            _ => {}
        }
        if self.left > 0 || !self.sent.is_empty() {
            return Ok(true);
        }
        match stage.has_all_credits(visit.pass) {
            true => Ok(false),
            false => Err(Violation(format!(
                "conn {}: all requests have ended, and slots are held",
                visit.pass.conn.0
            ))),
        }
    }
}

fn fill(rng: &mut Rng, visit: &Visit, work: &Work) -> Batch {
    let mut batch = Batch::new(work.bags as usize).expect("at least one bag");
    let wide = visit.model.is_wide() || rng.bool();
    for (f, feature) in visit.model.features.iter().enumerate() {
        let mut offsets: Vec<u32> = vec![rng.u32(0..3)];
        for length in &work.lengths[f] {
            offsets.push(offsets[offsets.len() - 1] + length);
        }
        let division = if rng.bool() {
            Division::Lengths(&work.lengths[f])
        } else {
            Division::Offsets(&offsets)
        };
        let narrow: Vec<u32> = work.ids[f].iter().map(|&id| id as u32).collect();
        let weighted = feature.pooling.is_weighted();
        let pushed = match (wide, weighted) {
            (true, true) => batch.push_weighted(division, &work.ids[f][..], &work.weights[f]),
            (true, false) => batch.push(division, &work.ids[f][..]),
            (false, true) => batch.push_weighted(division, &narrow[..], &work.weights[f]),
            (false, false) => batch.push(division, &narrow[..]),
        };
        pushed.expect("a sound batch");
    }
    batch
}

impl Actor for Patron {
    fn next_ns(&self) -> u64 {
        self.next_ns
    }

    fn pass(&self) -> Option<Pass> {
        self.visit.as_ref().map(|v| v.pass)
    }

    fn act(&mut self, stage: &Stage) -> Result<(), Violation> {
        let visit = match self.visit.take() {
            Some(visit) => Some(visit),
            None => self.arrive(stage)?,
        };
        if let Some(mut visit) = visit
            && self.go_on(stage, &mut visit)?
        {
            self.visit = Some(visit);
        }
        self.next_ns = stage.net.now_ns() + self.rng.u64(100..=self.pause_ns);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.sent.is_empty()
    }

    fn is_honest(&self) -> bool {
        true
    }
}
