//! The control thread's answers to clients' messages.

use std::sync::atomic::Ordering;

use rowmill_verbs::{CompletionQueueHandle, Remote};
use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::control::{Control as Question, TABLES_PER_PAGE, Welcome};
use rowmill_wire::limits::MAX_REGIONS;
use rowmill_wire::{Refusal, Schema, Status};

use super::bounds::{completions_for, worker_receives};
use super::control::Control;
use super::inbox::{Cut, Message, RemoteRegion};
use super::pool::Base;
use super::progress::Age;
use super::session::{LaneEnd, Member, Phase, Session};
use crate::control::{BindCall, LaneSet};
use crate::{ConnId, RegionId};

/// Why a question gets no answer but a refusal.
type Refused = (Refusal, String);

fn refused(status: Status, detail: impl Into<String>) -> Refused {
    (Refusal::whole(status), detail.into())
}

impl Control {
    /// What makes queue pairs for the control thread's completion queue.
    pub(super) fn control_queue(&self) -> CompletionQueueHandle {
        let queue = self
            .completions
            .as_ref()
            .expect("it is taken for polling only");
        queue.handle().clone()
    }

    /// Answers a message.
    pub(super) fn message(&mut self, place: usize, bytes: &[u8]) {
        let sequence = Question::sequence(bytes);
        let Some(session) = &mut self.sessions[place] else {
            return;
        };
        let unsent = session.link.backlog() > 0;
        let (greeting, live) = match &session.phase {
            Phase::Parting { .. } => return, // What it still says does not count.
            Phase::Greeting { .. } => (true, false),
            Phase::Member(member) if member.ending.is_some() => return,
            Phase::Member(member) => (false, member.is_live()),
        };
        let awaits = session.member().is_some_and(|m| m.awaits_answer());
        if awaits || unsent {
            let breach = "it sent a control message before the last one was answered";
            return self.cut(place, Cut::Breach(breach));
        }
        let answer = match Question::parse(bytes) {
            Err(refusal) => Err((refusal, String::new())),
            Ok((_, Question::Hello { client, credits })) if greeting => {
                return self.hello(place, sequence, client, credits);
            }
            Ok(_) if greeting => Err(refused(
                Status::Malformed,
                "the first message has to be Hello",
            )),
            Ok((_, Question::Hello { .. })) => {
                let reason = refused(Status::Malformed, "this client has said Hello already");
                self.refuse(place, sequence, reason);
                return self.end(place, Some((Status::Malformed, String::new())));
            }
            Ok((
                _,
                Question::LaneOpen {
                    lane,
                    receives,
                    address,
                    key,
                },
            )) => self.open(place, lane, receives, Base { address, key }),
            Ok((_, Question::ListTables { first })) if live => Ok(self.tables(first)),
            Ok((_, Question::Bind(schema))) if live => match self.bind(place, sequence, schema) {
                Ok(()) => return,
                Err(refused) => Err(refused),
            },
            Ok((
                _,
                Question::RegisterRemote {
                    bytes,
                    address,
                    key,
                    rights,
                },
            )) if live => self.register(
                place,
                RemoteRegion {
                    address,
                    bytes,
                    key,
                    rights,
                },
            ),
            Ok((_, Question::Unregister { region })) if live => {
                match self.unregister(place, sequence, region) {
                    Ok(()) => return self.advance(place),
                    Err(refused) => Err(refused),
                }
            }
            Ok((
                _,
                Question::ListTables { .. }
                | Question::Bind(_)
                | Question::RegisterRemote { .. }
                | Question::Unregister { .. },
            )) => Err(refused(Status::Malformed, "open all lanes first")),
            Ok((_, Question::Register { .. })) => Err(refused(
                Status::Unsupported,
                "over RDMA memory is registered by its address and key",
            )),
            Ok(_) => Err(refused(
                Status::Unsupported,
                "clients do not send this message",
            )),
        };
        match answer {
            Ok(answer) => self.reply(place, sequence, &answer),
            Err(reason) => {
                self.refuse(place, sequence, reason);
                if greeting {
                    self.end(place, Some((Status::Malformed, String::new())));
                }
            }
        }
    }

    fn member(&mut self, place: usize) -> Option<&mut Member> {
        self.sessions[place].as_mut().and_then(Session::member)
    }

    fn reply(&mut self, place: usize, sequence: u32, answer: &Question) {
        let now = self.now;
        let Some(session) = &mut self.sessions[place] else {
            return;
        };
        if let Err(error) = session.link.send(answer.encode(sequence), now) {
            self.log(|| tracing::warn!(%error, "an answer can't be sent"));
            self.end(place, None);
        }
    }

    fn refuse(&mut self, place: usize, sequence: u32, (refusal, detail): Refused) {
        self.shown.refused.fetch_add(1, Ordering::Relaxed);
        let peer = self.sessions[place].as_ref().and_then(|s| s.peer);
        self.log(|| tracing::info!(?peer, %refusal, detail, "refused an rdma client's message"));
        self.reply(place, sequence, &Question::Refused { refusal, detail });
    }

    fn hello(&mut self, place: usize, sequence: u32, client: String, credits: u16) {
        match self.welcome(&client, credits) {
            Err(reason) => {
                self.refuse(place, sequence, reason);
                self.end(place, Some((Status::Malformed, String::new())));
            }
            Ok((welcome, conn)) => {
                let Some(session) = &mut self.sessions[place] else {
                    return self.unused.push(conn);
                };
                let (peer, credits) = (session.peer, welcome.credits);
                session.phase = Phase::Member(Box::new(Member {
                    conn,
                    name: client.clone(),
                    credits,
                    since: self.now,
                    lanes: (0..self.config.lanes).map(|_| LaneEnd::Missing).collect(),
                    regions: Default::default(),
                    beat: None,
                    leaving: None,
                    binding: None,
                    ending: None,
                }));
                self.shown.accepted.fetch_add(1, Ordering::Relaxed);
                self.changed = true;
                self.log(|| {
                    tracing::info!(
                        client,
                        conn = conn.0,
                        ?peer,
                        credits,
                        "an rdma client connected"
                    )
                });
                self.reply(place, sequence, &Question::Welcome(welcome));
            }
        }
    }

    /// What to grant, and a number. The number has to be given back if nothing comes of it.
    fn welcome(&mut self, client: &str, credits: u16) -> Result<(Welcome, ConnId), Refused> {
        if credits == 0 {
            return Err(refused(
                Status::Malformed,
                "a client needs at least 1 credit",
            ));
        }
        let mut welcome = self.service.welcome(client)?;
        welcome.split.lanes = self.config.lanes;
        welcome.credits = credits.min(welcome.credits).min(self.config.credits).max(1);
        welcome.completions = completions_for(welcome.credits);
        welcome.max_region = self.config.max_region_bytes;
        let conn = self.unused.pop().ok_or_else(|| {
            let most = self.config.max_connections;
            let detail = format!("the server takes at most {most} clients at a time");
            refused(Status::LimitReached, detail)
        })?;
        Ok((welcome, conn))
    }

    /// Gives a lane's queue pair to its worker.
    fn open(
        &mut self,
        place: usize,
        lane: u16,
        receives: u32,
        records: Base,
    ) -> Result<Question, Refused> {
        let member = self.member(place).expect("a member asked");
        let (conn, credits) = (member.conn, member.credits);
        let end = member.lanes.get_mut(usize::from(lane));
        let Some(end @ LaneEnd::Connected { .. }) = end else {
            return Err(refused(
                Status::Malformed,
                "this lane is not connected, or is open already",
            ));
        };
        let records_max = completions_for(credits);
        if receives != records_max {
            return Err(refused(
                Status::Malformed,
                format!(
                    "a lane with {credits} credits needs {records_max} receives for its records"
                ),
            ));
        }
        let ring = u64::from(records_max) * COMPLETION_BYTES as u64;
        let LaneEnd::Connected {
            mut seat,
            connection,
        } = std::mem::replace(end, LaneEnd::Missing)
        else {
            unreachable!("it was looked at above");
        };
        *end = LaneEnd::Attached {
            connection,
            progress: seat.progress(),
            age: Age::default(),
        };
        if lane == 0 {
            member.beat = Some(Remote {
                address: records.address.wrapping_add(ring),
                key: records.key,
            });
        }
        seat.records_at(records);
        let slots = seat.slots();
        self.lanes[usize::from(lane)]
            .shared
            .post(Message::Attach { conn, seat });
        self.changed = true;
        Ok(Question::LaneOpened {
            lane,
            receives: worker_receives(credits),
            address: slots.address,
            key: slots.key,
        })
    }

    fn tables(&self, first: u32) -> Question {
        let all = self.service.tables();
        let page = all.iter().skip(first as usize).take(TABLES_PER_PAGE);
        Question::Tables {
            total: all.len() as u32,
            first,
            tables: page.cloned().collect(),
        }
    }

    /// Sends a schema to every lane's worker; the answer follows when they know it.
    fn bind(&mut self, place: usize, sequence: u32, schema: Schema) -> Result<(), Refused> {
        let (service, now) = (self.service.clone(), self.now);
        let member = self.member(place).expect("a member asked");
        let call = BindCall::begin(&*service, member.conn, sequence, schema, now)?;
        member.binding = Some(call);
        Ok(())
    }

    /// Answers those whose schemas all workers know, or did not take in in time.
    pub(super) fn finish_binds(&mut self) {
        let now = self.now;
        for place in 0..self.sessions.len() {
            let Some(member) = self.member(place) else {
                continue;
            };
            match BindCall::finish(&mut member.binding, now) {
                Some((sequence, Ok(answer))) => self.reply(place, sequence, &answer),
                Some((sequence, Err(reason))) => self.refuse(place, sequence, reason),
                None => (),
            }
        }
    }

    fn register(&mut self, place: usize, memory: RemoteRegion) -> Result<Question, Refused> {
        let most = self.config.max_region_bytes;
        let all_most = self.config.total_region_bytes;
        let members = self.sessions.iter_mut().flatten();
        let members = members.filter_map(Session::member);
        let all: u64 = members.map(|member| member.region_bytes()).sum();
        let member = self.member(place).expect("a member asked");
        let conn = member.conn;
        let free = member.regions.iter().position(Option::is_none);
        let region = free.ok_or_else(|| {
            let detail = format!("a client can have at most {MAX_REGIONS} regions at a time");
            refused(Status::LimitReached, detail)
        })?;
        let bytes = memory.bytes;
        if bytes == 0 || memory.address.checked_add(bytes).is_none() {
            return Err(refused(
                Status::RegionRefused,
                "a region has at least a byte, and its addresses do not overflow",
            ));
        }
        if bytes > most {
            return Err(refused(
                Status::RegionRefused,
                format!("the region has {bytes} bytes, and the server takes at most {most}"),
            ));
        }
        let held = member.region_bytes();
        if held.saturating_add(bytes) > most {
            return Err(refused(
                Status::LimitReached,
                format!(
                    "the region has {bytes} bytes and the client's others have {held}, and the server takes at most \
                     {most} of a client in all"
                ),
            ));
        }
        if all.saturating_add(bytes) > all_most {
            return Err(refused(
                Status::LimitReached,
                format!(
                    "the region has {bytes} bytes and those of all clients have {all}, and the server takes at most \
                     {all_most} in all; register a smaller one, or try again later"
                ),
            ));
        }
        member.regions[region] = Some(memory);
        let region = RegionId(region as u32);
        for lane in &self.lanes {
            lane.shared.post(Message::Region {
                conn,
                region,
                memory,
            });
        }
        self.changed = true;
        Ok(Question::Registered { region: region.0 })
    }

    /// Asks every lane to let go of a region; the answer follows when they have.
    fn unregister(&mut self, place: usize, sequence: u32, region: u32) -> Result<(), Refused> {
        let lanes: Vec<_> = self.lanes.iter().map(|lane| lane.shared.clone()).collect();
        let member = self.member(place).expect("a member asked");
        let registered = member.regions.get(region as usize);
        if registered.is_none_or(Option::is_none) {
            return Err(refused(Status::UnknownRegion, ""));
        }
        let (conn, region) = (member.conn, RegionId(region));
        for lane in &lanes {
            lane.post(Message::RegionGone { conn, region });
        }
        member.leaving = Some((region, sequence, LaneSet::living(&lanes)));
        Ok(())
    }

    /// Tells a client that nothing reaches a region any more.
    pub(super) fn unregistered(&mut self, place: usize, region: RegionId, sequence: u32) {
        self.reply(
            place,
            sequence,
            &Question::Unregistered { region: region.0 },
        );
    }
}
