//! The server half's handle: starting it, asking it, ending it.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rowmill_wire::limits::MAX_CREDITS;
use rustix::io::Errno;

use super::control::Control;
use super::dispose::Closer;
use super::endpoint::Binding;
use super::inbox::lane_shared;
use super::lane::ShmLane;
use super::layout::MAX_LANES;
use crate::control::Bell;
use crate::{ConnId, PortError, Service};

/// How a server half is set up.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Lanes, one a worker, 1 to [`MAX_LANES`].
    pub lanes: u16,
    /// Most request slots that a client gets on each lane, 1 to [`MAX_CREDITS`].
    pub credits: u16,
    /// Most clients at a time, at least 1. A client costs 8 KiB of slot, 4 KiB of status records (8 KiB
    /// where credits are no power of two) and 16 bytes of queue for each credit of each lane.
    pub max_connections: u16,
    /// Largest region that a client may register, in bytes; also the most that all regions of one client
    /// may have together at a time.
    pub max_region_bytes: u64,
    /// The most that all regions of all clients may have together, in bytes. It bounds the page tables
    /// for them, of 8 bytes for each 4 KiB; and where the kernel gives no guard against holes (see
    /// [`rowmill_arena::guards_holes`]) also the pages that clients can have charged to this process.
    pub total_region_bytes: u64,
    /// Permissions of the socket's file; whoever may write to it can connect.
    pub socket_mode: u32,
    /// How long a client may take for its first message.
    pub handshake_limit: Duration,
}

impl Default for ShmConfig {
    /// One lane, 64 credits, 64 clients, regions of up to 1 GiB for each, user and group may connect, 2
    /// seconds.
    fn default() -> ShmConfig {
        ShmConfig {
            lanes: 1,
            credits: 64,
            max_connections: 64,
            max_region_bytes: 1 << 30,
            total_region_bytes: 64 << 30,
            socket_mode: 0o660,
            handshake_limit: Duration::from_secs(2),
        }
    }
}

/// What is known of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its number.
    pub conn: ConnId,
    /// The name that it gave itself.
    pub client: String,
    /// Its process, as the kernel says.
    pub pid: i32,
    /// Its user, as the kernel says.
    pub uid: u32,
    /// Request slots on each lane.
    pub credits: u16,
    /// Regions registered.
    pub regions: u32,
    /// Bytes in them.
    pub region_bytes: u64,
    /// Whether it has ended and only waits for the workers to let go.
    pub ending: bool,
}

/// What happened since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmCounters {
    /// Clients welcomed.
    pub accepted: u64,
    /// Control calls refused, each one that a client makes; a `Hello` that is refused is one of them.
    pub refused: u64,
    /// Connections cut off because the client broke the protocol.
    pub violations: u64,
}

/// What the control thread shows of itself.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) stop: AtomicBool,
    pub(super) stop_accepting: AtomicBool,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) violations: AtomicU64,
    pub(super) connections: Mutex<Vec<ConnectionInfo>>,
}

/// The server half: its control thread. Dropping it ends all connections, waits up to a second for
/// the workers to let go, and joins the thread; so drop it while the workers still poll. It does not wait
/// for descriptors that clients sent and whose closing takes long.
#[derive(Debug)]
pub struct ShmServer {
    shown: Arc<Shown>,
    bell: Arc<Bell>,
    thread: Option<JoinHandle<()>>,
}

impl ShmServer {
    /// Listens on an endpoint such as `shm:/run/rowmill/demo.sock`, and gives the workers' halves.
    ///
    /// # Errors
    /// [`PortError::Endpoint`] for a text that is none, [`PortError::Listen`] where the endpoint can't
    /// be had, [`PortError::System`] where the kernel refuses something else.
    ///
    /// # Panics
    /// If a number of the configuration is out of its bounds.
    pub fn listen(
        endpoint: &str,
        config: ShmConfig,
        service: Arc<dyn Service>,
    ) -> Result<(ShmServer, Vec<ShmLane>), PortError> {
        assert!(
            (1..=MAX_LANES).contains(&config.lanes),
            "1 to {MAX_LANES} lanes"
        );
        assert!(
            (1..=MAX_CREDITS).contains(&config.credits),
            "1 to {MAX_CREDITS} credits"
        );
        assert!(config.max_connections > 0, "at least one connection");
        let binding = Binding::take(endpoint, config.socket_mode)?;
        let bell = Arc::new(Bell::new().map_err(|e| system("eventfd", e))?);
        let lanes = (0..config.lanes)
            .map(|lane| lane_shared(lane, config.max_connections, bell.clone()).map(Arc::new))
            .collect::<Result<Vec<_>, Errno>>()
            .map_err(|e| system("setting up a lane", e))?;
        let halves = lanes
            .iter()
            .map(|lane| ShmLane::new(lane.clone(), config.max_connections))
            .collect();
        let closer = Closer::start().map_err(|source| PortError::System {
            call: "starting the closing threads",
            source,
        })?;
        let shown = Arc::new(Shown::default());
        let control = Control::new(
            binding,
            config,
            service,
            lanes,
            shown.clone(),
            &bell,
            closer,
        )
        .map_err(|e| system("epoll", e))?;
        let thread = thread::Builder::new()
            .name("shm-control".to_owned())
            .spawn(move || control.run())
            .map_err(|source| PortError::System {
                call: "starting the control thread",
                source,
            })?;
        let server = ShmServer {
            shown,
            bell,
            thread: Some(thread),
        };
        Ok((server, halves))
    }

    /// Lets no more clients in and gives the endpoint up; those connected stay.
    pub fn stop_accepting(&self) {
        self.shown.stop_accepting.store(true, Ordering::SeqCst);
        self.bell.ring();
    }

    /// The clients.
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        self.shown
            .connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// What happened since the start.
    pub fn counters(&self) -> ShmCounters {
        ShmCounters {
            accepted: self.shown.accepted.load(Ordering::Relaxed),
            refused: self.shown.refused.load(Ordering::Relaxed),
            violations: self.shown.violations.load(Ordering::Relaxed),
        }
    }
}

impl Drop for ShmServer {
    fn drop(&mut self) {
        self.shown.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the shm control thread had panicked");
        }
    }
}

pub(super) fn system(call: &'static str, errno: Errno) -> PortError {
    PortError::System {
        call,
        source: errno.into(),
    }
}

/// Watches a descriptor level-triggered.
pub(super) fn watch(epoll: &OwnedFd, fd: impl std::os::fd::AsFd, token: u64) -> Result<(), Errno> {
    use rustix::event::epoll::{EventData, EventFlags, add};
    let flags = EventFlags::IN | EventFlags::RDHUP;
    add(epoll, fd, EventData::new_u64(token), flags)
}
