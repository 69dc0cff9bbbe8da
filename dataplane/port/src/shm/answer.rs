//! The control thread's answers to clients' messages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rowmill_arena::{ArenaError, HugePages, Region, sealed_memfd};
use rowmill_wire::control::{Control as Question, Rights, TABLES_PER_PAGE, Welcome};
use rowmill_wire::limits::MAX_REGIONS;
use rowmill_wire::{Refusal, Schema, Status};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::control::Control;
use super::dispose::ClientStream;
use super::inbox::{Link, Message};
use super::layout::Layout;
use super::session::{Member, Phase, Session};
use super::stream;
use super::wake::WakeSocket;
use crate::control::{Bell, BindCall, LaneSet};
use crate::{ConnId, RegionId};

/// Why a question gets no answer but a refusal.
type Refused = (Refusal, String);

fn refused(status: Status, detail: impl Into<String>) -> Refused {
    (Refusal::whole(status), detail.into())
}

/// A new client's memory and descriptors.
struct Equipment {
    member: Member,
    layout: Layout,
    link: Arc<Link>,
    control_memory: OwnedFd,
    wake: OwnedFd,
}

impl Control {
    /// Answers a message.
    pub(super) fn message(
        &mut self,
        place: usize,
        bytes: &[u8],
        fds: &[OwnedFd],
        damage: Option<Status>,
    ) {
        let sequence = Question::sequence(bytes);
        let greeting = self.member(place).is_none();
        if self.member(place).is_some_and(|m| m.awaits_answer()) {
            let breach = "it sent a control message before the last one was answered";
            return self.cut(place, Status::Malformed, Some(breach));
        }
        let question = match Question::parse(bytes) {
            _ if damage.is_some() => Err(Refusal::whole(damage.unwrap_or(Status::Malformed))),
            Ok((_, Question::Register { .. })) if fds.len() != 1 => {
                Err(Refusal::whole(Status::Malformed))
            }
            Ok((_, question @ Question::Register { .. })) => Ok(question),
            Ok(_) if !fds.is_empty() => Err(Refusal::whole(Status::Malformed)),
            Ok((_, question)) => Ok(question),
            Err(refusal) => Err(refusal),
        };
        let answer = match question {
            Err(refusal) if damage == Some(Status::LimitReached) => {
                let detail = "the server has no descriptor left to take yours; try again later";
                Err((refusal, detail.to_owned()))
            }
            Err(refusal) => Err((refusal, String::new())),
            Ok(Question::Hello { client, credits }) if greeting => {
                return self.hello(place, sequence, client, credits);
            }
            Ok(_) if greeting => Err(refused(
                Status::Malformed,
                "the first message has to be Hello",
            )),
            Ok(Question::Hello { .. }) => {
                let reason = refused(Status::Malformed, "this client has said Hello already");
                self.refuse(place, sequence, reason);
                return self.end(place);
            }
            Ok(Question::ListTables { first }) => Ok(self.tables(first)),
            Ok(Question::Bind(schema)) => match self.bind(place, sequence, schema) {
                Ok(()) => return,
                Err(refused) => Err(refused),
            },
            Ok(Question::Register { bytes, rights }) => {
                self.register(place, bytes, rights, &fds[0])
            }
            Ok(Question::Unregister { region }) => match self.unregister(place, sequence, region) {
                Ok(()) => return self.advance(place),
                Err(refused) => Err(refused),
            },
            Ok(_) => Err(refused(
                Status::Unsupported,
                "clients do not send this message",
            )),
        };
        match answer {
            Ok(answer) => self.reply(place, sequence, &answer, &[]),
            Err(reason) => {
                self.refuse(place, sequence, reason);
                if greeting {
                    self.end(place);
                }
            }
        }
    }

    fn member(&mut self, place: usize) -> Option<&mut Member> {
        self.sessions[place].as_mut().and_then(Session::member)
    }

    /// Sends an answer. A client asks one thing at a time and reads the answer, so its socket has room;
    /// one that does otherwise is cut off.
    fn reply(&mut self, place: usize, sequence: u32, answer: &Question, fds: &[BorrowedFd<'_>]) {
        let Some(session) = &self.sessions[place] else {
            return;
        };
        let bytes = answer.encode(sequence);
        match stream::send(&*session.stream, &bytes, fds, SendFlags::DONTWAIT) {
            Ok(()) => (),
            Err(Errno::AGAIN) => {
                let breach = "it does not read the answers to its control messages";
                self.cut(place, Status::Malformed, Some(breach));
            }
            Err(_) => self.end(place),
        }
    }

    fn refuse(&mut self, place: usize, sequence: u32, (refusal, detail): Refused) {
        self.shown.refused.fetch_add(1, Ordering::Relaxed);
        let pid = self.sessions[place].as_ref().map_or(0, |s| s.pid);
        self.log(|| tracing::info!(pid, %refusal, detail, "refused an shm client's message"));
        let answer = Question::Refused { refusal, detail };
        self.reply(place, sequence, &answer, &[]);
    }

    fn hello(&mut self, place: usize, sequence: u32, client: String, credits: u16) {
        match self.welcome(&client, credits) {
            Err(reason) => {
                self.refuse(place, sequence, reason);
                self.end(place);
            }
            Ok((welcome, conn)) => {
                if let Err(reason) = self.seat(place, sequence, client, welcome, conn) {
                    self.unused.push(conn);
                    self.refuse(place, sequence, reason);
                    self.end(place);
                }
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
        welcome.completions = Layout::completions_for(welcome.credits);
        welcome.max_region = self.config.max_region_bytes;
        let conn = self.unused.pop().ok_or_else(|| {
            let most = self.config.max_connections;
            let detail = format!("the server takes at most {most} clients at a time");
            refused(Status::LimitReached, detail)
        })?;
        Ok((welcome, conn))
    }

    /// Makes a connection a member: its memory first, then the welcome, then the workers.
    fn seat(
        &mut self,
        place: usize,
        sequence: u32,
        client: String,
        welcome: Welcome,
        conn: ConnId,
    ) -> Result<(), Refused> {
        let session = self.sessions[place].as_ref().expect("it said hello");
        let (pid, stream) = (session.pid, session.stream.clone());
        let equipment = self.equip(stream.clone(), conn, client, &welcome)?;
        let Equipment {
            member,
            layout,
            link,
            control_memory,
            wake,
        } = equipment;
        for (lane, doorbell) in self.lanes.iter().zip(&member.doorbells) {
            // A lane that can't watch the doorbell would sleep through this client's requests.
            if let Err(errno) = lane.watch(doorbell) {
                for (lane, doorbell) in self.lanes.iter().zip(&member.doorbells) {
                    lane.forget(doorbell);
                }
                return Err(out_of_resources("epoll", errno));
            }
        }
        let mut fds = vec![control_memory.as_fd(), wake.as_fd()];
        fds.extend(member.doorbells.iter().map(Bell::as_fd));
        let bytes = Question::Welcome(welcome).encode(sequence);
        let sent = stream::send(&*stream, &bytes, &fds, SendFlags::DONTWAIT);
        let client = &member.name;
        self.log(|| tracing::info!(client, conn = conn.0, pid, "an shm client connected"));
        self.shown.accepted.fetch_add(1, Ordering::Relaxed);
        self.changed = true;
        for lane in &self.lanes {
            let link = link.clone();
            lane.post(Message::Attach { conn, link, layout });
        }
        let session = self.sessions[place].as_mut().expect("it said hello");
        session.phase = Phase::Member(Box::new(member));
        if sent.is_err() {
            self.end(place);
        }
        Ok(())
    }

    fn equip(
        &self,
        stream: Arc<ClientStream>,
        conn: ConnId,
        name: String,
        welcome: &Welcome,
    ) -> Result<Equipment, Refused> {
        let layout = Layout::new(self.config.lanes, welcome.credits, welcome.completions)
            .expect("the configuration and the grant are within bounds");
        let no_memory = |e: ArenaError| refused(Status::LimitReached, e.to_string());
        let control_memory = sealed_memfd("rowmill-control", layout.total_bytes(), HugePages::Off)
            .map_err(no_memory)?;
        let memory =
            Region::map(control_memory.as_fd(), layout.total_bytes()).map_err(no_memory)?;
        let doorbells = (0..self.config.lanes)
            .map(|_| Bell::new())
            .collect::<Result<Vec<_>, Errno>>()
            .map_err(|e| out_of_resources("eventfd", e))?;
        let (ours, wake) = WakeSocket::pair().map_err(|e| out_of_resources("socketpair", e))?;
        let link = Arc::new(Link {
            memory: Arc::new(memory),
            wake: ours,
            _stream: stream,
        });
        Ok(Equipment {
            member: Member {
                conn,
                name,
                credits: welcome.credits,
                regions: Default::default(),
                doorbells,
                leaving: None,
                binding: None,
                ending: None,
                left: false,
                link: link.clone(),
            },
            layout,
            link,
            control_memory,
            wake,
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
                Some((sequence, Ok(answer))) => self.reply(place, sequence, &answer, &[]),
                Some((sequence, Err(reason))) => self.refuse(place, sequence, reason),
                None => (),
            }
        }
    }

    fn register(
        &mut self,
        place: usize,
        bytes: u64,
        rights: Rights,
        fd: &OwnedFd,
    ) -> Result<Question, Refused> {
        let most = self.config.max_region_bytes;
        let (all_most, all) = (self.config.total_region_bytes, self.region_bytes());
        let member = self.member(place).expect("a member asked");
        let conn = member.conn;
        let free = member.regions.iter().position(Option::is_none);
        let region = free.ok_or_else(|| {
            let detail = format!("a client can have at most {MAX_REGIONS} regions at a time");
            refused(Status::LimitReached, detail)
        })?;
        if bytes > most {
            return Err(refused(
                Status::RegionRefused,
                format!("the region has {bytes} bytes, and the server takes at most {most}"),
            ));
        }
        let held: u64 = member
            .regions
            .iter()
            .flatten()
            .map(|r| r.len() as u64)
            .sum();
        if held.saturating_add(bytes) > most {
            return Err(refused(
                Status::LimitReached,
                format!(
                    "the region has {bytes} bytes and the client's others have {held}, and the server \
                     takes at most {most} of a client in all"
                ),
            ));
        }
        if all.saturating_add(bytes) > all_most {
            return Err(refused(
                Status::LimitReached,
                format!(
                    "the region has {bytes} bytes and those of all clients have {all}, and the server takes \
                     at most {all_most} in all; register a smaller one, or try again later"
                ),
            ));
        }
        let mapped = usize::try_from(bytes)
            .map_err(|_| refused(Status::RegionRefused, "the size does not fit in memory"))
            .and_then(|bytes| Region::map_foreign(fd.as_fd(), bytes).map_err(region_refused))?;
        let memory = Arc::new(mapped);
        member.regions[region] = Some(memory.clone());
        let region = RegionId(region as u32);
        for lane in &self.lanes {
            let memory = memory.clone();
            lane.post(Message::Region {
                conn,
                region,
                memory,
                rights,
            });
        }
        self.changed = true;
        Ok(Question::Registered { region: region.0 })
    }

    /// Bytes of the regions that are mapped, those of clients that are about to be gone too.
    fn region_bytes(&mut self) -> u64 {
        let members = self
            .sessions
            .iter_mut()
            .flatten()
            .filter_map(Session::member);
        let bytes = members.flat_map(|m| m.regions.iter().flatten().map(|r| r.len() as u64));
        bytes.sum()
    }

    /// Asks every lane to let go of a region; the answer follows when they have.
    fn unregister(&mut self, place: usize, sequence: u32, region: u32) -> Result<(), Refused> {
        let lanes = self.lanes.clone();
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

    /// Tells a client that a region is unmapped.
    pub(super) fn unregistered(&mut self, place: usize, region: RegionId, sequence: u32) {
        let answer = Question::Unregistered { region: region.0 };
        self.reply(place, sequence, &answer, &[]);
    }
}

fn out_of_resources(call: &str, errno: Errno) -> Refused {
    let reason = std::io::Error::from(errno);
    let detail = format!("the server could not set the connection up: {call}: {reason}");
    refused(Status::LimitReached, detail)
}

fn region_refused(error: ArenaError) -> Refused {
    let status = match error {
        ArenaError::Unsealed { .. } => Status::RegionUnsealed,
        // The kernel's are of memory, address space or mappings, of which this process is short.
        ArenaError::TooManyMappings | ArenaError::Os { .. } => Status::LimitReached,
        _ => Status::RegionRefused,
    };
    refused(status, error.to_string())
}
