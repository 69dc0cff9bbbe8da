//! The server half's handle: starting it, asking it, ending it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rowmill_verbs::{
    CompletionChannel, CompletionQueue, Context, EventChannel, Listener, Selector,
};
use rowmill_wire::limits::{MAX_CREDITS, MAX_LANES};

use super::bounds::{connections_max, control_completions, worker_completions};
use super::config::RdmaConfig;
use super::control::{Control, Parts};
use super::endpoint::addresses;
use super::failure::{in_full, system};
use super::inbox::lane_shared;
use super::lane::RdmaLane;
use super::life::Life;
use super::pool::Pool;
use super::session_lane::LaneParts;
use super::watch::Watch;
use crate::control::Bell;
use crate::{ConnId, PortError, Service};

/// Requests to connect that may wait for the control thread.
const BACKLOG: u16 = 128;

/// Least and most blocks of a worker beside those that are kept ([`super::kept_blocks`]), and the most bytes of them (DESIGN.md section 5).
const BLOCKS: std::ops::RangeInclusive<u32> = 2..=256;
const BLOCK_BYTES_MIN: usize = 64 << 10;
const SLAB_BYTES_MAX: usize = 64 << 20;

/// What is known of one client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its number.
    pub conn: ConnId,
    /// The name that it gave itself.
    pub client: String,
    /// Where it is.
    pub peer: Option<SocketAddr>,
    /// Request slots on each lane.
    pub credits: u16,
    /// Regions registered.
    pub regions: u32,
    /// Bytes in them.
    pub region_bytes: u64,
    /// Whether it has ended and only waits for the workers to let go.
    pub ending: bool,
}

/// What happened since the start, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaCounters {
    /// Clients welcomed.
    pub accepted: u64,
    /// Control calls and requests to connect that were refused.
    pub refused: u64,
    /// Connections cut off because the client broke the protocol.
    pub violations: u64,
    /// Connections lost: queue pairs that failed, and clients that do not acknowledge.
    pub lost: u64,
    /// Sessions now, those included that have not said hello or are about to be gone.
    pub sessions: u64,
    /// Queue pairs now.
    pub queue_pairs: u64,
    /// Regions of clients now.
    pub regions: u64,
    /// Blocks of the workers that are free now.
    pub blocks_free: u64,
}

/// What the control thread shows of itself.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) stop: AtomicBool,
    pub(super) stop_accepting: AtomicBool,
    /// The control thread's completion queue is lost.
    pub(super) deaf: AtomicBool,
    pub(super) accepted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) violations: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) sessions: AtomicU64,
    pub(super) queue_pairs: AtomicU64,
    pub(super) regions: AtomicU64,
    pub(super) connections: Mutex<Vec<ConnectionInfo>>,
}

/// The server half: its control thread. Dropping it ends all connections, waits a few seconds at most for the workers to
/// let go and the clients to hear of it, and joins the thread; so drop it while the workers still poll.
#[derive(Debug)]
pub struct RdmaServer {
    shown: Arc<Shown>,
    bell: Arc<Bell>,
    address: SocketAddr,
    slabs: Vec<rowmill_verbs::Slab>,
    thread: Option<JoinHandle<()>>,
    lives: Vec<Arc<Life>>,
    // Last: until then somebody reads what the device says of the queues.
    watch: Watch,
}

impl RdmaServer {
    /// Listens on an endpoint such as `rdma://10.0.0.1:7400`, and gives the workers' halves. Port 0 takes a free one.
    ///
    /// # Errors
    /// [`PortError::Endpoint`] for a text that is none, [`PortError::Listen`] where the endpoint can't be had,
    /// [`PortError::System`] where the device or the kernel refuses something else.
    ///
    /// # Panics
    /// If a number of the configuration is out of its bounds.
    pub fn listen(
        endpoint: &str,
        config: RdmaConfig,
        service: Arc<dyn Service>,
    ) -> Result<(RdmaServer, Vec<RdmaLane>), PortError> {
        check(&config);
        let failed = |reason: String| PortError::Listen {
            endpoint: endpoint.to_owned(),
            reason,
        };
        if !config.insecure {
            return Err(failed(
                "clients can't be told apart over RDMA yet, so that anybody who reaches this address could read the \
                 tables; say `insecure = true` if that is meant"
                    .to_owned(),
            ));
        }
        let address = addresses(endpoint).map_err(|error| match error {
            PortError::Connect { source, .. } => failed(source.to_string()),
            other => other,
        })?[0];
        if address.ip().is_unspecified() {
            return Err(failed(
                "give the address of one RDMA device; its queues are made before anybody connects"
                    .to_owned(),
            ));
        }
        let context =
            Context::open(&Selector::Address(address.ip())).map_err(|e| failed(in_full(&e)))?;
        let message = u64::from(context.limits().message_bytes);
        if config.stage_block_bytes as u64 > message {
            return Err(failed(format!(
                "a block of {} bytes does not fit into a message of this device; set stage_block_bytes to at most {message}",
                config.stage_block_bytes
            )));
        }
        let watch = Watch::of(&context).map_err(|e| failed(in_full(&e)))?;
        let channel = EventChannel::new().map_err(|e| failed(in_full(&e)))?;
        let listener =
            Listener::bind(&channel, address, BACKLOG).map_err(|e| failed(in_full(&e)))?;
        let address = listener.local_address().unwrap_or(address);
        let (parts, lanes) = make_parts(config, context, channel, listener)?;
        let (bell, slabs) = (parts.bell.clone(), parts.slabs());
        let lives = parts.lanes.iter().map(|lane| lane.life.clone()).collect();
        let shown = Arc::new(Shown::default());
        let control = Control::new(parts, service, shown.clone())?;
        let thread = thread::Builder::new()
            .name("rdma-control".to_owned())
            .spawn(move || control.run())
            .map_err(|source| PortError::System {
                call: "starting the control thread",
                source,
            })?;
        let server = RdmaServer {
            shown,
            bell,
            address,
            slabs,
            thread: Some(thread),
            lives,
            watch,
        };
        Ok((server, lanes))
    }

    /// The endpoint that clients connect to, with the port that was taken.
    pub fn endpoint(&self) -> String {
        format!("rdma://{}", self.address)
    }

    /// What is broken for good, if anything is: only a restart helps.
    pub fn failure(&self) -> Option<String> {
        if self.watch.said.device_failed() {
            return Some("the RDMA device has failed".to_owned());
        }
        if self.shown.deaf.load(Ordering::Relaxed) {
            return Some("the completion queue of the control thread is lost".to_owned());
        }
        let lane = self.lives.iter().position(|life| life.has_failed())?;
        Some(format!("the completion queue of worker {lane} is lost"))
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

    /// What happened since the start, and what there is now.
    pub fn counters(&self) -> RdmaCounters {
        let now = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RdmaCounters {
            accepted: now(&self.shown.accepted),
            refused: now(&self.shown.refused),
            violations: now(&self.shown.violations),
            lost: now(&self.shown.lost),
            sessions: now(&self.shown.sessions),
            queue_pairs: now(&self.shown.queue_pairs),
            regions: now(&self.shown.regions),
            blocks_free: self.slabs.iter().map(|slab| slab.free() as u64).sum(),
        }
    }
}

impl Drop for RdmaServer {
    fn drop(&mut self) {
        self.shown.stop.store(true, Ordering::SeqCst);
        self.bell.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the rdma control thread had panicked");
        }
    }
}

fn check(config: &RdmaConfig) {
    assert!(
        (1..=MAX_LANES).contains(&config.lanes),
        "1 to {MAX_LANES} lanes"
    );
    assert!(
        (1..=MAX_CREDITS).contains(&config.credits),
        "1 to {MAX_CREDITS} credits"
    );
    assert!(config.max_connections > 0, "at least one connection");
    assert!(
        BLOCKS.contains(&config.stage_blocks),
        "{} to {} blocks",
        BLOCKS.start(),
        BLOCKS.end()
    );
    let bytes = config.stage_block_bytes;
    assert!(
        bytes >= BLOCK_BYTES_MIN && bytes.is_multiple_of(4096),
        "blocks of whole pages, from {BLOCK_BYTES_MIN} bytes on"
    );
    assert!(
        bytes.saturating_mul(config.stage_blocks as usize) <= SLAB_BYTES_MAX,
        "at most {SLAB_BYTES_MAX} bytes of blocks for a worker"
    );
}

/// Makes the queues of the control thread and of the lanes.
fn make_parts(
    mut config: RdmaConfig,
    context: Context,
    channel: EventChannel,
    listener: Listener,
) -> Result<(Parts, Vec<RdmaLane>), PortError> {
    let granted = context.limits().completions;
    let wanted = config.max_connections;
    config.max_connections = connections_max(wanted, config.credits, granted);
    if config.max_connections == 0 {
        return Err(PortError::System {
            call: "making a completion queue",
            source: std::io::Error::other(format!(
                "the device has completion queues of {granted} entries, and one client with {} credits needs {}; \
                 grant fewer credits",
                config.credits,
                worker_completions(config.credits)
            )),
        });
    }
    if config.max_connections < wanted {
        tracing::warn!(
            wanted,
            granted = config.max_connections,
            "the device's completion queues have room for fewer clients; fewer credits would leave room for more"
        );
    }
    tracing::info!(
        lanes = config.lanes,
        credits = config.credits,
        max_connections = config.max_connections,
        ?config.connection,
        "listening for RDMA clients, who are not authenticated"
    );
    let bell = Arc::new(Bell::new().map_err(|e| PortError::System {
        call: "eventfd",
        source: e.into(),
    })?);
    let (mut parts, mut halves) = (Vec::new(), Vec::new());
    for lane in 0..config.lanes {
        let shared = lane_shared(lane, config.max_connections, bell.clone()).map_err(|e| {
            PortError::System {
                call: "setting up a lane",
                source: e.into(),
            }
        })?;
        let shared = Arc::new(shared);
        let lane_channel = CompletionChannel::new(&context)
            .map_err(|e| system("making a completion channel", e))?;
        shared.watch(&lane_channel).map_err(|e| PortError::System {
            call: "epoll",
            source: e.into(),
        })?;
        let capacity = u32::from(config.max_connections) * worker_completions(config.credits);
        let completions = CompletionQueue::new(&context, capacity, Some(&lane_channel))
            .map_err(|e| system("making a worker's completion queue", e))?;
        let slab = Pool::slab(config.all_blocks(), config.stage_block_bytes)?;
        let life = Arc::new(Life::default());
        parts.push(LaneParts {
            shared: shared.clone(),
            life: life.clone(),
            completions: completions.handle().clone(),
            slab: slab.clone(),
        });
        halves.push(RdmaLane::new(
            shared,
            life,
            completions,
            lane_channel,
            slab,
            config.stage_blocks,
            config.max_connections,
        ));
    }
    let control_channel =
        CompletionChannel::new(&context).map_err(|e| system("making a completion channel", e))?;
    let capacity = control_completions(config.max_connections);
    let completions = CompletionQueue::new(&context, capacity, Some(&control_channel))
        .map_err(|e| system("making the control thread's completion queue", e))?;
    let parts = Parts {
        config,
        lanes: parts,
        listener,
        channel,
        completions,
        completion_channel: control_channel,
        context,
        bell,
    };
    Ok((parts, halves))
}
