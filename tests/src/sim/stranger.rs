//! A client that speaks the protocol without the library: a correct one that uses every form, or a
//! hostile one.

use std::collections::BTreeMap;

use fastrand::Rng;
use rowmill_port::sim::SimClient;
use rowmill_port::{ClientPort, PortError, RegionId};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, CompletionKind, Immediate, Status};

use super::frames::{self, ROOM_BYTES, Room};
use super::ledger::{Pass, Violation};
use super::model::{SchemaModel, draw_schema};
use super::patron::PATIENCE_NS;
use super::world::{Actor, Stage};

/// How a stranger behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Character {
    /// Keeps to the protocol, though some of its requests are wrong and have to be refused.
    Correct,
    /// Changes ids, lengths and weights while they are read.
    Scribbler,
    /// Sends frames with flipped bits, changes them after submission, and names slots that it does not have.
    Garbler,
    /// Never looks at its answers.
    Deaf,
    /// Leaves with requests in flight, and comes back.
    Vanisher,
    /// Gives regions up while requests use them.
    Juggler,
}

impl Character {
    /// Draws a hostile one.
    pub fn draw_hostile(rng: &mut Rng) -> Character {
        use Character::{Deaf, Garbler, Juggler, Scribbler, Vanisher};
        [Scribbler, Garbler, Deaf, Vanisher, Juggler][rng.usize(0..5)]
    }
}

struct Sent {
    refused: Option<Status>,
    limited: bool,
    cancelled: bool,
    request: u64,
    at_ns: u64,
}

struct Visit {
    port: SimClient,
    pass: Pass,
    model: SchemaModel,
    schema: u32,
    source: RegionId,
    target: RegionId,
    target_len: u64,
    in_flight: BTreeMap<(u16, u16), Sent>,
}

/// A client without the library.
pub struct Stranger {
    rng: Rng,
    character: Character,
    credits: u16,
    left: u32,
    pause_ns: u64,
    next_ns: u64,
    serial: u64,
    visit: Option<Visit>,
}

impl Stranger {
    /// Draws one of a character.
    pub fn draw(rng: &mut Rng, character: Character) -> Stranger {
        Stranger {
            character,
            credits: rng.u16(1..=4),
            left: rng.u32(10..=40),
            pause_ns: rng.u64(1_000..=30_000),
            next_ns: rng.u64(0..100_000),
            serial: 0,
            visit: None,
            rng: Rng::with_seed(rng.u64(..)),
        }
    }

    fn arrive(&mut self, stage: &Stage) -> Result<Option<Visit>, Violation> {
        let port = match stage.net.connect("stranger", self.credits) {
            Ok(port) => port,
            Err(PortError::Refused { refusal, .. }) if refusal.status == Status::LimitReached => {
                return Ok(None);
            }
            Err(PortError::Connect { .. } | PortError::Lost { .. }) => return Ok(None),
            Err(other) => return Err(Violation(format!("connecting: {other}"))),
        };
        let conn = port.conn();
        let pass = stage.welcome(conn, self.is_honest());
        match self.settle(stage, pass, port) {
            Ok(visit) => Ok(Some(visit)),
            Err(_) if stage.is_cut(pass) => Ok(None),
            Err(error) => Err(Violation(format!("setting up: {error}"))),
        }
    }

    fn settle(
        &mut self,
        stage: &Stage,
        pass: Pass,
        mut port: SimClient,
    ) -> Result<Visit, PortError> {
        let schema = draw_schema(&mut self.rng, &stage.tables);
        let number = port.bind(&schema)?;
        let model = SchemaModel::new(&schema, &stage.truth);
        let slots = u64::from(port.welcome().credits) * u64::from(port.welcome().split.lanes);
        let target_len = model.target_bytes(schema.max_batch).next_multiple_of(4) + 12;
        let source = port.register_source((slots * ROOM_BYTES) as usize)?;
        let target = port.register((slots * target_len) as usize)?;
        if self.character == Character::Scribbler {
            let mut rng = Rng::with_seed(self.rng.u64(..));
            stage.net.scribble(
                port.conn(),
                source,
                Box::new(move |window, offset, len| {
                    // A hand that is quicker than the worker: what it is about to read changes.
                    if len >= 4 && rng.u8(0..3) == 0 {
                        let at = offset as usize + rng.usize(0..=(len - 4) / 4) * 4;
                        let value = if rng.bool() {
                            rng.u32(0..8)
                        } else {
                            rng.u32(..)
                        };
                        window.write(at, &value.to_le_bytes());
                    }
                }),
            );
        }
        let schema = number;
        Ok(Visit {
            port,
            pass,
            model,
            schema,
            source,
            target,
            target_len,
            in_flight: BTreeMap::new(),
        })
    }

    fn take_answers(&mut self, stage: &Stage, visit: &mut Visit) -> Result<bool, Violation> {
        for lane in 0..visit.port.welcome().split.lanes {
            loop {
                match visit.port.poll(lane) {
                    Ok(None) => break,
                    Ok(Some(record)) => self.judge(visit, lane, &record)?,
                    Err(_) if stage.is_cut(visit.pass) => return Ok(false),
                    Err(error) => {
                        return Err(Violation(format!("conn {}: {error}", visit.port.conn().0)));
                    }
                }
            }
        }
        Ok(true)
    }

    fn judge(&self, visit: &mut Visit, lane: u16, record: &Completion) -> Result<(), Violation> {
        if record.kind == CompletionKind::Slice || !self.is_honest() {
            if record.kind == CompletionKind::Final {
                visit.in_flight.remove(&(lane, record.slot));
            }
            return Ok(());
        }
        let conn = visit.port.conn().0;
        let sent = visit.in_flight.remove(&(lane, record.slot));
        let sent = sent.ok_or_else(|| {
            Violation(format!(
                "conn {conn}: a record for a slot that is not in use: {record:?}"
            ))
        })?;
        let right = match (record.status, sent.refused) {
            (Status::Busy, _) => true,
            (Status::Expired, _) => sent.limited,
            (Status::Cancelled, _) => sent.cancelled,
            // The ledger looks whether it can be.
            (Status::RowUnavailable, None) => true,
            (status, Some(refused)) => status == refused,
            (status, None) => status == Status::Ok,
        };
        match right && record.request == sent.request {
            true => Ok(()),
            false => Err(Violation(format!(
                "conn {conn}: {:?} was expected, not {record:?}",
                sent.refused.unwrap_or(Status::Ok)
            ))),
        }
    }

    fn send(&mut self, stage: &Stage, visit: &mut Visit) -> Result<(), PortError> {
        let (lanes, credits) = (
            visit.port.welcome().split.lanes,
            visit.port.welcome().credits,
        );
        let (lane, slot) = (self.rng.u16(0..lanes), self.rng.u16(0..credits));
        let reuses = matches!(self.character, Character::Deaf | Character::Garbler)
            && self.rng.u8(0..4) == 0;
        if visit.in_flight.contains_key(&(lane, slot)) && !reuses {
            return Ok(());
        }
        let at = u64::from(lane) * u64::from(credits) + u64::from(slot);
        let room = Room {
            source: visit.source.0,
            source_at: at * ROOM_BYTES,
            target: visit.target.0,
            target_at: at * visit.target_len,
        };
        self.serial += 1;
        let welcome = visit.port.welcome();
        let mut made = frames::draw(
            &mut self.rng,
            &visit.model,
            visit.schema,
            self.serial,
            room,
            welcome,
            true,
        );
        if let Some(memory) = visit.port.memory(visit.source) {
            memory.write(room.source_at as usize, &made.source);
        }
        if self.character == Character::Garbler {
            self.garble(visit, lane, slot, &mut made.frame)?;
        }
        visit.port.submit(lane, slot, &made.frame)?;
        self.left = self.left.saturating_sub(1);
        let sent = Sent {
            refused: made.refused,
            limited: made.limited,
            cancelled: false,
            request: self.serial,
            at_ns: stage.net.now_ns(),
        };
        visit.in_flight.insert((lane, slot), sent);
        if self.rng.u8(0..10) == 0 {
            visit.port.cancel(lane, slot)?;
            visit
                .in_flight
                .get_mut(&(lane, slot))
                .expect("just sent")
                .cancelled = true;
        }
        Ok(())
    }

    fn garble(
        &mut self,
        visit: &mut Visit,
        lane: u16,
        slot: u16,
        frame: &mut [u8],
    ) -> Result<(), PortError> {
        let rng = &mut self.rng;
        for _ in 0..rng.u8(0..4) {
            // Mostly in the header and the spans, where bits have a meaning.
            let at = if rng.bool() {
                rng.usize(0..frame.len().min(200))
            } else {
                rng.usize(0..frame.len())
            };
            frame[at] ^= 1 << rng.u8(0..8);
        }
        match rng.u8(0..40) {
            0 => visit.port.submit_bits(lane, rng.u32(..)),
            1 => visit.port.submit_bits(
                lane,
                Immediate::Request {
                    slot,
                    len: rng.u16(..),
                }
                .encode(),
            ),
            2..10 => {
                // Into a frame that may have been submitted and not been read yet.
                visit.port.write_slot(
                    lane,
                    slot,
                    rng.usize(0..SLOT_BYTES - 8),
                    &rng.u64(..).to_le_bytes(),
                );
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Gives the target region up at once, whatever uses it, and registers another.
    fn juggle(&mut self, visit: &mut Visit) -> Result<(), PortError> {
        let bytes = visit.port.memory(visit.target).map_or(4096, |m| m.len());
        visit.port.unregister(visit.target)?;
        visit.target = visit.port.register(bytes)?;
        Ok(())
    }

    fn go_on(&mut self, stage: &Stage, visit: &mut Visit) -> Result<bool, Violation> {
        let (conn, pass) = (visit.pass.conn, visit.pass);
        if self.character != Character::Deaf && !self.take_answers(stage, visit)? {
            return Ok(false);
        }
        let now_ns = stage.net.now_ns();
        if self.is_honest()
            && visit
                .in_flight
                .values()
                .any(|s| now_ns > s.at_ns + PATIENCE_NS)
        {
            return Err(Violation(format!(
                "conn {}: a request does not end",
                conn.0
            )));
        }
        for _ in 0..self.rng.u32(0..4).min(self.left) {
            match self.send(stage, visit) {
                Err(_) if stage.is_cut(pass) => return Ok(false),
                Err(error) => return Err(Violation(format!("conn {}: sending: {error}", conn.0))),
                Ok(()) => {}
            }
        }
        match (self.character, self.rng.u8(0..12)) {
            (Character::Vanisher, 0) => return Ok(false),
            (Character::Juggler, 0..3) => match self.juggle(visit) {
                Err(_) if stage.is_cut(pass) => return Ok(false),
                Err(error) => return Err(Violation(format!("conn {}: juggling: {error}", conn.0))),
                Ok(()) => {}
            },
            _ => {}
        }
        Ok(self.left > 0 || self.is_honest() && !visit.in_flight.is_empty())
    }
}

impl Actor for Stranger {
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
        // An attempt counts, so that one that is never let in ends too.
        self.left = self.left.saturating_sub(u32::from(visit.is_none()));
        if let Some(mut visit) = visit {
            if self.go_on(stage, &mut visit)? {
                self.visit = Some(visit);
            } else if !self.is_honest() {
                self.left = self.left.saturating_sub(1);
            }
        }
        self.next_ns = stage.net.now_ns() + self.rng.u64(100..=self.pause_ns);
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.left == 0 && self.visit.is_none()
    }

    fn is_honest(&self) -> bool {
        self.character == Character::Correct
    }
}
