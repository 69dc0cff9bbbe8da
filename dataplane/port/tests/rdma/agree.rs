//! Sides that are configured differently.

use rowmill_port::conformance::{Bench, Harness, Setup, Task, pattern};
use rowmill_port::rdma::{ConnectionParameters, PathMtu, RdmaClient};
use rowmill_port::{ClientPort, PortError};
use rowmill_wire::Status;

use super::harness::{Rdma, client_config, has_device, server_config};

/// A server whose packets have at most 512 bytes.
struct SmallPackets(Rdma);

/// A client whose packets have.
struct SmallPacketsOfClient(Rdma);

fn small(config: &mut ConnectionParameters) {
    config.path_mtu = Some(PathMtu::Bytes512);
}

impl Harness for SmallPackets {
    type Client = RdmaClient;

    fn start(setup: Setup) -> SmallPackets {
        let mut config = server_config();
        small(&mut config.connection);
        SmallPackets(Rdma::start_with(setup, config))
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<RdmaClient, PortError> {
        self.0.connect(name, credits)
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

impl Harness for SmallPacketsOfClient {
    type Client = RdmaClient;

    fn start(setup: Setup) -> SmallPacketsOfClient {
        SmallPacketsOfClient(Rdma::start_with(setup, server_config()))
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<RdmaClient, PortError> {
        let mut config = client_config(credits);
        small(&mut config.connection);
        RdmaClient::connect_with(&self.0.endpoint, name, config)
    }

    fn run(&mut self) {
        self.0.run();
    }

    fn stop_server(&mut self) {
        self.0.stop_server();
    }
}

/// Frames and results of many packets, and request data that are read.
fn messages_of_many_packets<H: Harness<Client = RdmaClient>>() {
    const LEN: usize = 10_000;
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("one", 2);
    assert_eq!(bench.ask(&mut client, 0, &Task::Echo).status, Status::Ok);
    let frame = Task::echo(5000, 7);
    client.submit(0, 0, &frame).expect("open");
    assert_eq!(bench.record(&mut client, 0).status, Status::Ok);
    let region = client.register(LEN).expect("a region");
    let fill = Task::Fill {
        region: region.0,
        offset: 0,
        len: LEN as u64,
        seed: 3,
        slices: 1,
    };
    assert_eq!(bench.ask(&mut client, 0, &fill).status, Status::Ok);
    let (mut stored, mut wanted) = (vec![0; LEN], vec![0; LEN]);
    client.memory(region).expect("its own").read(0, &mut stored);
    pattern(3, &mut wanted);
    assert!(stored == wanted);
    let source = client.register_source(LEN).expect("a region");
    let copy = Task::Copy {
        from: source.0,
        offset: 0,
        len: 4096,
        to: region.0,
        to_offset: 0,
    };
    assert_eq!(bench.ask(&mut client, 0, &copy).status, Status::Ok);
}

#[test]
fn packets_are_as_small_as_the_server_wants() {
    if has_device() {
        messages_of_many_packets::<SmallPackets>();
    }
}

#[test]
fn packets_are_as_small_as_the_client_wants() {
    if has_device() {
        messages_of_many_packets::<SmallPacketsOfClient>();
    }
}
