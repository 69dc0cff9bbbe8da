//! One worker's half of the port over RDMA: its completion queue, its connections, its blocks.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_verbs::{CompletionChannel, CompletionQueue, Slab, Trouble};
use rowmill_wire::control::Rights;
use rowmill_wire::limits::SLOT_BYTES;
use rustix::event::epoll;
use rustix::io::Errno;

use super::bounds::GREETING_MAX;
use super::inbox::{Cut, LaneShared, MESSAGES_PER_CONNECTION, Message, Notice};
use super::life::Life;
use super::pool::Pool;
use super::seat::{Seat, Submission};
use super::seats::Seats;
use super::sleep::{self, Sleeper};
use super::turn::{POLLED_MAX, Turn, cut, free_pull};
use crate::rest::timespec;
use crate::{ConnId, Event, RegionError, RegionId};

/// How long what was announced to a connection that ends in order may take to arrive.
const LINGER: Duration = Duration::from_secs(1);

/// What the next poll acknowledges.
enum Ending {
    Region(ConnId, RegionId),
    Connection { conn: ConnId, in_order: bool },
}

/// A message whose seat, if it brought one, is in its place.
enum News {
    Attached { conn: ConnId, credits: u16 },
    Other(Message),
}

/// A connection that the worker has let go of, whose queue pair goes on until all has arrived.
pub(super) struct Leaving {
    pub(super) conn: ConnId,
    pub(super) seat: Box<Seat>,
    until: Instant,
}

/// One worker's half: give it to the worker's thread. Dropping it lets go of all connections.
pub struct RdmaLane {
    // Declared first, dropped first: queue pairs go before the completion queue.
    pub(super) seats: Seats,
    leaving: Vec<Leaving>,
    pub(super) pool: Pool,
    /// Connections with submissions, in the order of their turns.
    ready: VecDeque<ConnId>,
    /// Connections with something to post.
    dirty: VecDeque<ConnId>,
    /// Requests whose data have come.
    fetched: VecDeque<(ConnId, u16)>,
    completions: CompletionQueue,
    channel: CompletionChannel,
    armed: bool,
    /// What the control thread has said and was not given as an event.
    news: VecDeque<News>,
    messages_taken: usize,
    ending: Option<Ending>,
    /// Rung for all connections, former ones included.
    pub(super) doorbells: u64,
    life: Arc<Life>,
    pub(super) shared: Arc<LaneShared>,
}

impl RdmaLane {
    pub(super) fn new(
        shared: Arc<LaneShared>,
        life: Arc<Life>,
        completions: CompletionQueue,
        channel: CompletionChannel,
        slab: Slab,
        blocks: u32,
        max_connections: u16,
    ) -> RdmaLane {
        let most = usize::from(max_connections);
        let pool = Pool::new(slab, blocks);
        RdmaLane {
            seats: Seats::new(most),
            leaving: Vec::with_capacity(most + GREETING_MAX),
            ready: VecDeque::with_capacity(most),
            dirty: VecDeque::with_capacity(most),
            fetched: VecDeque::with_capacity(pool.pulls.len()),
            pool,
            completions,
            channel,
            armed: false,
            news: VecDeque::with_capacity(most * MESSAGES_PER_CONNECTION),
            messages_taken: 0,
            ending: None,
            doorbells: 0,
            life,
            shared,
        }
    }

    /// How often it has looked at a connection so far: a poll looks at those that have something to do, and at no other.
    pub fn looks(&self) -> u64 {
        self.seats.looks()
    }

    /// The lane's number, which clients submit to.
    pub fn lane(&self) -> u16 {
        self.shared.lane
    }

    pub(super) fn seat(&self, conn: ConnId) -> Option<&Seat> {
        self.seats.get(conn)
    }

    /// The next event.
    pub(super) fn next_event(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
        self.life.polled();
        self.acknowledge();
        if self.has_message() {
            return self.take_message();
        }
        self.progress();
        if let Some((conn, slot)) = self.fetched.pop_front() {
            return Some(Event::Fetched {
                conn,
                slot,
                outcome: Ok(()),
            });
        }
        while let Some(conn) = self.ready.pop_front() {
            if self.has_message() {
                // What came before this submission, such as its region, has to be said before it. It was sent before
                // the client could submit, so it is seen here at the latest.
                self.ready.push_front(conn);
                return self.take_message();
            }
            let Some(seat) = self.seats.get_mut(conn) else {
                continue;
            };
            let submission = seat.take_submission();
            seat.is_ready = !seat.pending.is_empty();
            if seat.is_ready {
                self.ready.push_back(conn);
            }
            match submission {
                Some(Submission::Request { slot, len }) => {
                    seat.frame(slot, len, frame);
                    let len = usize::from(len);
                    return Some(Event::Request { conn, slot, len });
                }
                Some(Submission::Cancel { slot }) => return Some(Event::Cancel { conn, slot }),
                None => (),
            }
        }
        None
    }

    /// Lets go of what the event before has ended.
    fn acknowledge(&mut self) {
        match self.ending.take() {
            None => (),
            Some(Ending::Region(conn, region)) => {
                if let Some(seat) = self.seats.get_mut(conn) {
                    seat.give_up(region);
                }
                self.let_regions_go(conn);
            }
            Some(Ending::Connection { conn, in_order }) => {
                let Some(mut seat) = self.seats.take(conn) else {
                    return;
                };
                seat.forget_fetches();
                self.forget_data(conn);
                if !in_order {
                    seat.fail(&mut self.pool);
                }
                self.leaving.push(Leaving {
                    conn,
                    seat,
                    until: Instant::now() + LINGER,
                });
                self.part();
            }
        }
    }

    /// Gives back what a connection that is gone had fetched or staged at the worker's.
    fn forget_data(&mut self, conn: ConnId) {
        for at in 0..self.pool.pulls.len() {
            if self.pool.pulls[at].of.is_some_and(|(of, _)| of == conn) {
                self.pool.free_pull(at as u16);
            }
        }
        self.fetched.retain(|(of, _)| *of != conn);
    }

    /// Whether the control thread has said something new: one load.
    pub(super) fn has_message(&self) -> bool {
        !self.news.is_empty() || self.shared.posted() != self.messages_taken
    }

    fn take_message(&mut self) -> Option<Event> {
        let (taken, seats) = (&mut self.messages_taken, &mut self.seats);
        hear(&self.shared, taken, seats, &mut self.news);
        let message = match self.news.pop_front()? {
            News::Attached { conn, credits } => return Some(Event::Attached { conn, credits }),
            News::Other(message) => message,
        };
        Some(match message {
            Message::Attach { .. } => unreachable!("its seat was taken out of it"),
            Message::Region {
                conn,
                region,
                memory,
            } => {
                if let Some(seat) = self.seats.get_mut(conn) {
                    seat.regions[region.0 as usize] = Some(memory);
                }
                let len = memory.bytes;
                Event::Region { conn, region, len }
            }
            Message::RegionGone { conn, region } => {
                self.ending = Some(Ending::Region(conn, region));
                Event::RegionGone { conn, region }
            }
            Message::Detach { conn, in_order } => {
                if let Some(seat) = self.seats.get_mut(conn) {
                    seat.pending.clear();
                    seat.cut = true; // It need not be asked for any more.
                    if !in_order {
                        seat.fail(&mut self.pool);
                    }
                    if std::mem::take(&mut seat.is_ready) {
                        self.ready.retain(|ready| *ready != conn);
                    }
                }
                self.ending = Some(Ending::Connection { conn, in_order });
                Event::Detached { conn }
            }
        })
    }

    /// Takes what has completed, and posts what waits.
    pub(super) fn progress(&mut self) {
        self.drain();
        while let Some(conn) = self.dirty.pop_front() {
            self.flush(conn);
        }
        if !self.leaving.is_empty() {
            self.part();
        }
    }

    fn flush(&mut self, conn: ConnId) {
        let Some(seat) = self.seats.get_mut(conn) else {
            return;
        };
        seat.is_dirty = false;
        if let Err(error) = counted(seat, &mut self.pool, &mut self.doorbells) {
            tracing::warn!(conn = conn.0, %error, "a lane's queue pair can't be posted to");
            self.cut(conn, Cut::Failed(rowmill_verbs::Status::General));
        } else if seat.has_barrier() {
            self.let_regions_go(conn);
        }
    }

    /// Has something to post at the next turn.
    pub(super) fn soil(&mut self, conn: ConnId) {
        if let Some(seat) = self.seats.get_mut(conn)
            && !std::mem::replace(&mut seat.is_dirty, true)
        {
            self.dirty.push_back(conn);
        }
    }

    /// Takes all completions that have come: at most as many as have been posted.
    fn drain(&mut self) {
        loop {
            let polled = match self.completions.poll() {
                Ok(polled) => polled,
                Err(error) => {
                    return self.break_down(&error.to_string());
                }
            };
            let found = polled.len();
            if found > 0 {
                // A client's first request comes after its attachment was sent, perhaps since messages were last
                // looked at: its seat has to be there before the completion is.
                let (taken, seats) = (&mut self.messages_taken, &mut self.seats);
                hear(&self.shared, taken, seats, &mut self.news);
            }
            let mut turn = Turn {
                seats: &mut self.seats,
                leaving: &mut self.leaving,
                pool: &mut self.pool,
                ready: &mut self.ready,
                dirty: &mut self.dirty,
                fetched: &mut self.fetched,
                shared: &self.shared,
            };
            polled.iter().for_each(|done| turn.take(done));
            if found < POLLED_MAX {
                break;
            }
        }
        if self.completions.handle().health().had(Trouble::Fatal) {
            self.break_down("it ran over, or the device has failed");
        }
    }

    /// The completion queue is lost, and so are all queue pairs: nobody new is let in either.
    fn break_down(&mut self, why: &str) {
        if !self.life.fail() {
            return;
        }
        tracing::error!(
            lane = self.shared.lane,
            why,
            "a worker's completion queue is lost, and nobody can be served over rdma by it; restart the service"
        );
        for conn in self.seats.all() {
            self.cut(conn, Cut::Failed(rowmill_verbs::Status::Fatal));
        }
    }

    /// Asks the control thread to cut a connection off, once.
    pub(super) fn cut(&mut self, conn: ConnId, why: Cut) {
        if let Some(seat) = self.seats.get_mut(conn) {
            cut(seat, conn, why, &mut self.pool, &self.shared);
            if std::mem::take(&mut seat.is_ready) {
                self.ready.retain(|ready| *ready != conn);
            }
        }
    }

    /// Says that a region can't be reached any more, if one waits for that.
    fn let_regions_go(&mut self, conn: ConnId) {
        if let Some(seat) = self.seats.get_mut(conn)
            && let Some(region) = seat.let_go()
        {
            self.shared.notify(Notice::RegionLetGo { conn, region });
        }
    }

    /// Hands over connections to which nothing has to be sent any more.
    fn part(&mut self) {
        let now = Instant::now();
        for at in (0..self.leaving.len()).rev() {
            let Leaving { seat, until, .. } = &mut self.leaving[at];
            if counted(seat, &mut self.pool, &mut self.doorbells).is_err() {
                seat.fail(&mut self.pool);
            }
            if seat.failed || seat.is_settled() || now >= *until {
                let mut leaving = self.leaving.swap_remove(at);
                leaving.seat.fail(&mut self.pool);
                self.pool.part(&mut leaving.seat.blocks);
                self.shared.notify(Notice::LetGo {
                    conn: leaving.conn,
                    seat: leaving.seat,
                });
            }
        }
    }

    pub(super) fn sleep(&mut self, limit: Option<Duration>) {
        if self.ending.is_some() || self.has_message() {
            return; // For the next poll.
        }
        // Connections that leave are not waited for longer than they may linger.
        let limit = match self.leaving.is_empty() {
            true => limit,
            false => Some(limit.map_or(LINGER / 10, |limit| limit.min(LINGER / 10))),
        };
        // Whatever ends it, an interruption too, the caller polls again.
        let _ = sleep::sleep(self, limit);
    }

    /// What a region is at the client, if these bytes lie inside and the client gave this right to them.
    pub(super) fn bounded(
        &self,
        conn: ConnId,
        region: RegionId,
        offset: u64,
        len: u64,
        right: fn(Rights) -> bool,
    ) -> Result<super::inbox::RemoteRegion, RegionError> {
        let memory = self
            .seat(conn)
            .and_then(|seat| seat.region(region))
            .ok_or(RegionError::Unknown)?;
        if !right(memory.rights) {
            return Err(RegionError::Forbidden);
        }
        match offset.checked_add(len) {
            Some(end) if end <= memory.bytes => Ok(memory),
            _ => Err(RegionError::OutOfBounds),
        }
    }

    /// Gives a pull back.
    pub(super) fn free_pull(&mut self, conn: ConnId, at: u16) {
        free_pull(&mut self.seats, &mut self.pool, conn, at);
    }

    pub(super) fn forget_fetched(&mut self, conn: ConnId, slot: u16) {
        self.fetched.retain(|fetched| *fetched != (conn, slot));
    }
}

/// Posts what waits on a connection, and counts the doorbells that took.
fn counted(
    seat: &mut Seat,
    pool: &mut Pool,
    doorbells: &mut u64,
) -> Result<(), rowmill_verbs::Error> {
    let before = seat.qp.doorbells();
    let outcome = seat.flush(pool);
    *doorbells += seat.qp.doorbells() - before;
    outcome
}

impl Sleeper for RdmaLane {
    fn progress(&mut self) {
        RdmaLane::progress(self);
    }

    fn arm(&mut self) -> bool {
        if !self.armed {
            match self.completions.arm() {
                Ok(()) => self.armed = true,
                Err(error) => tracing::error!(%error, "a worker can't sleep"),
            }
        }
        self.armed
    }

    fn is_quiet(&self) -> bool {
        self.ready.is_empty() && self.fetched.is_empty() && !self.has_message()
    }

    fn wait(&mut self, limit: Option<Duration>) -> Result<(), Errno> {
        let limit = limit.map(timespec);
        let mut events = [MaybeUninit::uninit(); 4];
        self.life.sleeps();
        let outcome = epoll::wait(&self.shared.epoll, &mut events, limit.as_ref());
        self.life.polled();
        outcome.map(|_| ())
    }

    fn take_events(&mut self) {
        while let Ok(Some(_)) = self.channel.take_event() {
            self.armed = false;
        }
    }
}

/// Takes what the control thread has said, and puts new connections' seats into their places.
fn hear(shared: &LaneShared, taken: &mut usize, seats: &mut Seats, news: &mut VecDeque<News>) {
    while shared.posted() != *taken {
        let Some(message) = shared.take() else {
            return;
        };
        *taken = taken.wrapping_add(1);
        news.push_back(match message {
            Message::Attach { conn, seat } => {
                let credits = seat.credits;
                seats.put(conn, seat);
                News::Attached { conn, credits }
            }
            other => News::Other(other),
        });
    }
}

impl Drop for RdmaLane {
    fn drop(&mut self) {
        // First let go of everything, then say so.
        self.seats.clear();
        self.leaving.clear();
        self.shared.leave();
    }
}
