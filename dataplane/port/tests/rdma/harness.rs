//! How the suite drives the port over RDMA.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rowmill_port::conformance::{Harness, Setup, Violation, Worker, patience};
use rowmill_port::rdma::{
    AckTimeout, ConnectionParameters, RdmaClient, RdmaClientConfig, RdmaConfig, RdmaLane,
    RdmaServer,
};
use rowmill_port::{ClientPort, Idle, Interrupt, PortError, ServerPort, Waker};
use rowmill_wire::Immediate;

/// The address that the device stands on.
pub(crate) fn address() -> Option<String> {
    std::env::var("ROWMILL_RDMA_ADDRESS").ok()
}

/// Whether there is a device; says so where there is none.
pub(crate) fn has_device() -> bool {
    let found = address().is_some();
    if !found {
        println!("skipped: no RDMA device (make test-rxe)");
    }
    found
}

/// How much slower than a real machine this one is.
pub(crate) fn slowness() -> u32 {
    (patience().as_secs() / 20).clamp(1, 10) as u32
}

/// Timeouts that hold on an emulated machine, where a packet may wait for many milliseconds.
pub(crate) fn connection() -> ConnectionParameters {
    let exponent = if slowness() > 1 { 17 } else { 14 };
    ConnectionParameters {
        ack_timeout: AckTimeout::new(exponent).expect("in range"),
        ..ConnectionParameters::default()
    }
}

/// A client's configuration.
pub(crate) fn client_config(credits: u16) -> RdmaClientConfig {
    let usual = RdmaClientConfig::default();
    RdmaClientConfig {
        credits,
        connect_limit: usual.connect_limit * slowness(),
        silent_limit: usual.silent_limit * slowness(),
        connection: connection(),
        ..usual
    }
}

/// A server's configuration.
pub(crate) fn server_config() -> RdmaConfig {
    let usual = RdmaConfig::default();
    RdmaConfig {
        handshake_limit: usual.handshake_limit * slowness(),
        insecure: true,
        connection: connection(),
        stage_blocks: 8,
        stage_block_bytes: 64 << 10,
        ..usual
    }
}

/// A server with workers of the suite.
pub(crate) struct Rdma {
    pub(crate) endpoint: String,
    pub(crate) server: Option<RdmaServer>,
    /// How often each lane's worker has looked at a connection.
    pub(crate) looks: Vec<Arc<AtomicU64>>,
    threads: Vec<(Arc<dyn Waker>, JoinHandle<()>)>,
    stop: Arc<AtomicBool>,
}

/// Spins, yields, then sleeps for as long as it takes: a lost wake-up would show.
fn work(mut lane: RdmaLane, mut worker: Worker, stop: &AtomicBool, looks: &AtomicU64) {
    let mut idle = 0;
    while !stop.load(Ordering::SeqCst) {
        let found = worker.turn(&mut lane);
        looks.store(lane.looks(), Ordering::Relaxed);
        if found {
            idle = 0;
            continue;
        }
        idle += 1;
        match idle {
            _ if worker.is_paused() => thread::sleep(Duration::from_micros(100)),
            0..20 => lane.idle(Idle::Spin),
            20..30 => lane.idle(Idle::Yield),
            _ => lane.idle(Idle::Sleep(None)),
        }
    }
}

impl Rdma {
    /// Starts a server with what the suite's set-up leaves open.
    pub(crate) fn start_with(setup: Setup, config: RdmaConfig) -> Rdma {
        let address = address().expect("it was asked for before");
        let config = RdmaConfig {
            lanes: setup.workers.len() as u16,
            credits: setup.credits,
            max_connections: setup.max_connections,
            max_region_bytes: setup.max_region,
            ..config
        };
        let asked = format!("rdma://{address}:0");
        let (server, lanes) = RdmaServer::listen(&asked, config, setup.service).expect("a server");
        let stop = Arc::new(AtomicBool::new(false));
        let looks: Vec<Arc<AtomicU64>> = lanes.iter().map(|_| Arc::default()).collect();
        let threads = lanes
            .into_iter()
            .zip(setup.workers)
            .zip(looks.clone())
            .map(|((lane, worker), looks)| {
                let (waker, stop) = (lane.waker(), stop.clone());
                let thread = thread::spawn(move || work(lane, worker, &stop, &looks));
                (waker, thread)
            })
            .collect();
        Rdma {
            endpoint: server.endpoint(),
            server: Some(server),
            looks,
            threads,
            stop,
        }
    }
}

impl Harness for Rdma {
    type Client = RdmaClient;

    fn start(setup: Setup) -> Rdma {
        Rdma::start_with(setup, server_config())
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<RdmaClient, PortError> {
        RdmaClient::connect_with(&self.endpoint, name, client_config(credits))
    }

    fn connect_interruptibly(
        &mut self,
        name: &str,
        credits: u16,
        interrupt: Interrupt,
    ) -> Result<RdmaClient, PortError> {
        let config = RdmaClientConfig {
            interrupt,
            ..client_config(credits)
        };
        RdmaClient::connect_with(&self.endpoint, name, config)
    }

    fn run(&mut self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn stop_server(&mut self) {
        drop(self.server.take());
        self.stop.store(true, Ordering::SeqCst);
        for (waker, thread) in self.threads.drain(..) {
            waker.wake();
            thread.join().expect("the worker did not panic");
        }
    }

    fn violate(&mut self, client: &mut RdmaClient, lane: u16, what: Violation) -> bool {
        let credits = client.welcome().credits;
        let request = |slot: u16, len: u32| 1 << 28 | u32::from(slot) << 16 | len;
        let immediate = match what {
            Violation::UnknownKind => 0xf000_0000,
            Violation::ServersKind => Immediate::Final { slot: 0, slice: 0 }.encode(),
            Violation::SlotNotGranted => request(credits, 16),
            Violation::CancelNotGranted => Immediate::Cancel { slot: 4095 }.encode(),
            Violation::EmptyFrame => request(0, 0),
            Violation::FrameTooLong => request(0, 8193),
            // There is no queue that could be wrong: each immediate takes a receive.
            Violation::Overrun | Violation::Backwards => return false,
        };
        client
            .raw_write(lane, immediate, &[0; 16])
            .expect("an open connection");
        true
    }
}

impl Drop for Rdma {
    fn drop(&mut self) {
        self.stop_server();
    }
}
