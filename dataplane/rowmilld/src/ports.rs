//! The ports of this build: which one an endpoint names, its server half, and its lanes.

use std::sync::Arc;

use rowmill_engine::Engine;
use rowmill_port::rdma::{self, Live, RdmaConfig, RdmaLane, RdmaServer};
use rowmill_port::shm::{self, ShmConfig, ShmLane, ShmServer};
use rowmill_port::{PortError, ServerPort, Service, Waker};

use crate::clock::Clock;
use crate::config::{self, Config};
use crate::figures::Figures;
use crate::mailbox::Mailbox;
use crate::overview::{Client, Visitors};
use crate::plan::Plan;
use crate::worker::Worker;

/// Which port an endpoint names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// Shared memory: `shm:/run/rowmill/NAME.sock`.
    Shm,
    /// RDMA: `rdma://ADDRESS:PORT`.
    Rdma,
}

impl Port {
    /// The port of an endpoint, whose text is checked.
    ///
    /// # Errors
    /// What is wrong, and what to write.
    pub fn of(endpoint: &str) -> Result<Port, String> {
        let checked = match endpoint.split_once(':') {
            Some(("shm", _)) => shm::socket_path(endpoint).map(|_| Port::Shm),
            Some(("rdma", _)) => rdma::endpoint::host_and_port(endpoint).map(|_| Port::Rdma),
            _ => {
                return Err(format!(
                    "`{endpoint}`: this build supports shm:/path/NAME.sock and rdma://ADDRESS:PORT"
                ));
            }
        };
        checked.map_err(|error| error.to_string())
    }
}

/// The server half of a port.
pub(crate) enum Server {
    Shm(ShmServer),
    Rdma(RdmaServer),
}

/// One worker's half of a port.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one a worker, which takes it apart at once"
)]
pub(crate) enum Lane {
    Shm(ShmLane),
    Rdma(RdmaLane),
}

impl Server {
    /// Lets clients connect, and gives each worker's half.
    pub(crate) fn listen(
        config: &Config,
        plan: &Plan,
        lanes: u16,
        service: Arc<dyn Service>,
    ) -> Result<(Server, Vec<Lane>), PortError> {
        match plan.port {
            Port::Shm => {
                let shm = ShmConfig {
                    lanes,
                    credits: config.limits.credits,
                    max_connections: plan.clients,
                    max_region_bytes: config.limits.max_region_bytes,
                    total_region_bytes: plan.region_bytes,
                    socket_mode: config.socket_mode,
                    ..ShmConfig::default()
                };
                let (server, lanes) = ShmServer::listen(&plan.endpoint, shm, service)?;
                Ok((
                    Server::Shm(server),
                    lanes.into_iter().map(Lane::Shm).collect(),
                ))
            }
            Port::Rdma => {
                let rdma = RdmaConfig {
                    lanes,
                    credits: config.limits.credits,
                    max_connections: plan.clients,
                    max_region_bytes: config.limits.max_region_bytes,
                    total_region_bytes: plan.region_bytes,
                    insecure: config.insecure,
                    ..config.rdma.port()
                };
                let (server, lanes) = RdmaServer::listen(&plan.endpoint, rdma, service)?;
                let lanes = lanes.into_iter().map(Lane::Rdma).collect();
                Ok((Server::Rdma(server), lanes))
            }
        }
    }

    /// Lets no more clients in; those connected stay.
    pub(crate) fn stop_accepting(&self) {
        match self {
            Server::Shm(server) => server.stop_accepting(),
            Server::Rdma(server) => server.stop_accepting(),
        }
    }

    /// Who has come.
    pub(crate) fn visitors(&self) -> Visitors {
        match self {
            Server::Shm(server) => {
                let connected = server.connections().into_iter().filter(|info| !info.ending);
                let counters = server.counters();
                Visitors {
                    clients: connected
                        .map(|info| Client {
                            id: info.conn.0,
                            client: info.client,
                            pid: Some(info.pid),
                            address: None,
                            regions: info.regions,
                            region_bytes: info.region_bytes,
                        })
                        .collect(),
                    accepted: counters.accepted,
                    refused: counters.refused,
                    violations: counters.violations,
                    held: Vec::new(),
                    failure: None,
                }
            }
            Server::Rdma(server) => {
                let connected = server.connections().into_iter().filter(|info| !info.ending);
                let (counters, live) = (server.counters(), Live::now());
                Visitors {
                    clients: connected
                        .map(|info| Client {
                            id: info.conn.0,
                            client: info.client,
                            pid: None,
                            address: info.peer.map(|peer| peer.to_string()),
                            regions: info.regions,
                            region_bytes: info.region_bytes,
                        })
                        .collect(),
                    accepted: counters.accepted,
                    refused: counters.refused,
                    violations: counters.violations,
                    held: vec![
                        ("sessions", counters.sessions),
                        ("session_queue_pairs", counters.queue_pairs),
                        ("session_regions", counters.regions),
                        ("free_blocks", counters.blocks_free),
                        ("queue_pairs", live.queue_pairs),
                        ("connection_ids", live.ids),
                        ("memory_regions", live.regions),
                        ("protection_domains", live.domains),
                        ("completion_queues", live.completion_queues),
                    ],
                    failure: server.failure(),
                }
            }
        }
    }
}

impl Lane {
    /// What ends its worker's sleep.
    pub(crate) fn waker(&self) -> Arc<dyn Waker> {
        match self {
            Lane::Shm(lane) => lane.waker(),
            Lane::Rdma(lane) => lane.waker(),
        }
    }

    /// A worker's life with this half. Each port has a loop of its own, so that polling is inlined.
    pub(crate) fn work(
        self,
        engine: Engine,
        connections: u32,
        mailbox: Arc<Mailbox>,
        figures: Arc<Figures>,
        idle: config::Idle,
        clock: &Clock,
    ) {
        match self {
            Lane::Shm(port) => {
                Worker::new(engine, connections, port, mailbox, figures).run(idle, clock);
            }
            Lane::Rdma(port) => {
                Worker::new(engine, connections, port, mailbox, figures).run(idle, clock);
            }
        }
    }
}
