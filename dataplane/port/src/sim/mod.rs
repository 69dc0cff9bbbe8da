//! The port `sim`: both halves of the contract in one thread, on a clock that the test owns.
//!
//! A [`SimNet`] holds the clock, the lanes, the connections and their regions. Everything that happens
//! depends on the seed and on the order of calls, on nothing else, so that a run can be repeated.
//! Messages (frames, cancels, status records, control) take a drawn time to arrive. They keep their
//! order where a real port keeps it, within one lane of one connection and one direction, and only
//! there. Connections can be cut from outside, lanes and clients stop simply by not being called,
//! connections between far halves fail and fall silent as links do ([`Link`]), regions can be lost, and bytes of a region or of a submitted frame can change at any moment, between
//! two reads of one request too.
//!
//! Calls of the contract that wait ([`ClientPort::bind`](crate::ClientPort::bind) and its like) let
//! the rest of the world go on through the [`SimNet::set_world`] function.
//!
//! What passes a port is kept as a log of [`Entry`]s in the order in which it happened, every access to
//! memory where results are to be stored included: a checker reads it, a story of a failed
//! run is printed from it, and two runs are compared by it.

mod client;
mod far;
mod link;
mod log;
mod memory;
mod net;
mod server;

use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;

use rowmill_wire::Status;

use crate::{ConnId, PortError, RegionId, Service};

pub use client::SimClient;
pub use far::Far;
pub use link::Link;
pub use log::{Entry, What};
pub use memory::SimMemory;
pub use server::SimServer;

use net::Net;

/// How slowly messages travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Nanoseconds that a message takes, drawn evenly.
    pub delay_ns: RangeInclusive<u64>,
    /// Of 1000 messages, how many take `held_up_ns` more.
    pub held_up_per_mille: u32,
    /// Nanoseconds that are added to those.
    pub held_up_ns: u64,
    /// What the port itself does wrong.
    pub mistake: Option<Mistake>,
}

/// A mistake of a port between workers and memory that they can't reach, planted to show that checkers find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A record arrives before what it announces.
    RecordOvertakesData,
    /// A block is given out again while it is sent.
    BlockFreedAtPost,
    /// A client says that the connection has ended, and destroys no queue pair.
    FenceForgotten,
    /// A region is given up while WRITEs to it are under way.
    RegionLetGoEarly,
    /// A worker lets go of a connection without destroying its queue pair.
    QueuePairStays,
    /// Data are said to be fetched before they have come.
    FetchedTooEarly,
    /// The room of fetched data is not given back.
    FetchKept,
    /// A block that nothing was placed from is not given back.
    BlockKept,
}

impl Mistake {
    /// Each of them.
    pub const ALL: [Mistake; 8] = [
        Mistake::RecordOvertakesData,
        Mistake::BlockFreedAtPost,
        Mistake::FenceForgotten,
        Mistake::RegionLetGoEarly,
        Mistake::QueuePairStays,
        Mistake::FetchedTooEarly,
        Mistake::FetchKept,
        Mistake::BlockKept,
    ];
}

impl Faults {
    /// Every message arrives at once.
    pub const NONE: Faults = Faults {
        delay_ns: 0..=0,
        held_up_per_mille: 0,
        held_up_ns: 0,
        mistake: None,
    };
}

/// What the simulated endpoint grants at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Lanes, one a worker.
    pub lanes: u16,
    /// Connections at a time.
    pub connections: u32,
    /// Credits of a client on a lane.
    pub credits: u16,
    /// Bytes of a region.
    pub max_region: u64,
    /// Where workers can't reach the memory of clients.
    pub far: Option<Far>,
}

/// When a region's memory is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// At once.
    Now,
    /// While the next results are being stored: the window is still granted, then the region is lost.
    AtNextGrant,
}

/// Changes the bytes of a region just before a worker reads some of them: it is given the window of
/// the whole region and the offset and length of the read.
pub type Scribble = Box<dyn FnMut(rowmill_arena::Window<'_>, u64, usize)>;

type World = Rc<RefCell<Option<Box<dyn FnMut(&SimNet)>>>>;

/// A simulated dataplane's endpoint with its connections. Clones are the same net.
#[derive(Clone)]
pub struct SimNet {
    net: Rc<RefCell<Net>>,
    service: Arc<dyn Service>,
    world: World,
}

impl SimNet {
    /// A net without clients. The seed decides how long each message takes.
    pub fn new(seed: u64, bounds: Bounds, service: Arc<dyn Service>, faults: Faults) -> SimNet {
        SimNet {
            net: Rc::new(RefCell::new(Net::new(seed, bounds, faults))),
            service,
            world: Rc::default(),
        }
    }

    /// What goes on while a client's call waits: each call does a little work of the servers and may
    /// move the clock. Without it only the clock moves. It is handed this net; one that held a clone
    /// of it would keep itself alive for ever.
    pub fn set_world(&self, world: impl FnMut(&SimNet) + 'static) {
        *self.world.borrow_mut() = Some(Box::new(world));
    }

    /// A lane's half of the port. Asked for once a lane.
    pub fn lane(&self, lane: u16) -> SimServer {
        SimServer::new(self.clone(), lane)
    }

    /// Connects a client that wants `credits` slots a lane.
    ///
    /// # Errors
    /// [`PortError::Refused`] where the service or the number of connections says so.
    pub fn connect(&self, client: &str, credits: u16) -> Result<SimClient, PortError> {
        SimClient::connect(self, client, credits)
    }

    /// The time by the net's clock.
    pub fn now_ns(&self) -> u64 {
        self.net.borrow().now_ns
    }

    /// Moves the clock on; a time that has passed changes nothing.
    pub fn advance_to(&self, now_ns: u64) {
        let mut net = self.net.borrow_mut();
        net.now_ns = net.now_ns.max(now_ns);
        net.land();
    }

    /// When the next event arrives at a lane, which may be in the past.
    pub fn next_at_lane(&self, lane: u16) -> Option<u64> {
        self.net.borrow().next_at_lane(usize::from(lane))
    }

    /// Ends a connection as a broken stream does: both sides learn of it, each at its time.
    pub fn cut(&self, conn: ConnId) {
        self.net.borrow_mut().cut(conn);
    }

    /// Nothing arrives over a connection's link for so long, and nobody is told; a link that is silent for too long fails.
    /// Links are there only where workers are far from clients.
    pub fn silence(&self, conn: ConnId, for_ns: u64) {
        self.net.borrow_mut().silence(conn, for_ns);
    }

    /// Where workers are far from a region: what they have posted, at its place, whatever has become of it.
    pub fn posted(&self, conn: ConnId, region: RegionId) -> Option<Rc<SimMemory>> {
        let mut net = self.net.borrow_mut();
        net.region_mut(conn, region)?.posted.clone()
    }

    /// Records of a lane that the client of a connection can take now.
    pub fn records_ready(&self, conn: ConnId, lane: u16) -> usize {
        let mut net = self.net.borrow_mut();
        let now_ns = net.now_ns;
        net.connection_mut(conn).map_or(0, |connection| {
            connection.inbox.borrow().records[usize::from(lane)].ready(now_ns)
        })
    }

    /// Blocks of staging and requests with fetched data that a lane holds now.
    pub fn held(&self, lane: u16) -> (usize, usize) {
        let mut net = self.net.borrow_mut();
        let now_ns = net.now_ns;
        let room = &mut net.lanes[usize::from(lane)].room;
        room.as_mut().map_or((0, 0), |room| {
            room.settle(now_ns);
            room.held()
        })
    }

    /// Ends the dataplane: every connection is cut, and nobody connects any more.
    pub fn stop(&self) {
        let mut net = self.net.borrow_mut();
        net.stopped = true;
        for conn in 0..net.connections.len() as u32 {
            net.cut(ConnId(conn));
        }
    }

    /// The dataplane's process dies at once, and from `down_ns` later on another is in its place, which knows nobody. Lanes taken before are
    /// not to be used any more.
    pub fn kill(&self, down_ns: u64) {
        let mut net = self.net.borrow_mut();
        let until = net.now_ns + down_ns;
        net.kill(until);
    }

    /// Whether every lane has acknowledged the end of a connection that had this number, so that
    /// nobody holds it.
    pub fn is_gone(&self, conn: ConnId) -> bool {
        self.net.borrow().connections[conn.0 as usize].is_none()
    }

    /// Takes a region's memory away from the dataplane, as a hole punched into it would.
    pub fn lose(&self, conn: ConnId, region: RegionId, when: Loss) {
        self.net.borrow_mut().lose(conn, region, when);
    }

    /// Lets `scribble` change a region's bytes before each read of a worker.
    pub fn scribble(&self, conn: ConnId, region: RegionId, scribble: Scribble) {
        if let Some(region) = self.net.borrow_mut().region_mut(conn, region) {
            region.scribble = Some(scribble);
        }
    }

    /// The memory that a client registered, for looking at it from outside.
    pub fn memory(&self, conn: ConnId, region: RegionId) -> Option<Rc<SimMemory>> {
        self.net
            .borrow_mut()
            .region_mut(conn, region)
            .map(|r| Rc::clone(&r.client))
    }

    /// Takes what happened since the last call.
    pub fn take_log(&self) -> Vec<Entry> {
        let mut net = self.net.borrow_mut();
        net.land();
        std::mem::take(&mut net.log)
    }

    /// Gives everything else a chance, or only moves the clock on where nothing else is known.
    fn go_on(&self) {
        let world = self.world.borrow_mut().take();
        match world {
            Some(mut world) => {
                world(self);
                self.world.borrow_mut().get_or_insert(world);
            }
            None => {
                let mut net = self.net.borrow_mut();
                net.now_ns += IDLE_STEP_NS;
                net.land();
            }
        }
    }

    /// Goes on until `done`, for at most [`PATIENCE`] steps.
    fn wait_for(&self, what: &str, mut done: impl FnMut(&Net) -> bool) -> Result<(), PortError> {
        for _ in 0..PATIENCE {
            if done(&self.net.borrow()) {
                return Ok(());
            }
            self.go_on();
        }
        Err(PortError::Protocol(format!(
            "no answer to {what} from the simulated dataplane"
        )))
    }

    /// Lets a drawn time pass, that of one message.
    fn travel(&self, what: &str) -> Result<(), PortError> {
        let due = self.net.borrow_mut().draw_due();
        self.wait_for(what, |net| net.now_ns >= due)
    }
}

/// How far the clock moves when a client waits and nothing else is known.
const IDLE_STEP_NS: u64 = 1_000;

/// Steps of the world after which a waiting call gives up: more than any run has in all.
const PATIENCE: u32 = 10_000_000;

/// What a client is told that the dataplane will not take.
fn refused(status: Status, detail: &str) -> PortError {
    PortError::Refused {
        refusal: rowmill_wire::Refusal::whole(status),
        detail: detail.into(),
    }
}
