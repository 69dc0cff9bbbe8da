//! A server that has no file descriptor left. It takes the whole process's, so it is a test of its own.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rowmill_arena::{HugePages, sealed_memfd};
use rowmill_port::conformance::Answers;
use rowmill_port::shm::{ShmClient, ShmConfig, ShmServer};
use rowmill_port::{ClientPort, PortError};
use rowmill_wire::Status;
use rowmill_wire::control::Rights;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn a_server_without_descriptors_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("shm:{}/s.sock", folder.path().display());
    let config = ShmConfig::default();
    let answers = Arc::new(Answers::new(config.lanes));
    let (_server, _lanes) = ShmServer::listen(&endpoint, config, answers).unwrap();
    let mut client = ShmClient::connect(&endpoint, "honest", 2).unwrap();
    // Once this is answered the server has closed its copies of what came with the welcome.
    client.tables().unwrap();
    let memory = sealed_memfd("m", 4096, HugePages::Off).unwrap();
    // All numbers below the limit are in use, so that the server can be given no descriptor.
    let limit = getrlimit(Resource::Nofile);
    let spare: OwnedFd = rustix::io::dup(&memory).unwrap();
    let taken = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    let few = Rlimit {
        current: Some(taken - 1),
        ..limit
    };
    setrlimit(Resource::Nofile, few).unwrap();
    let mut holes = Vec::new();
    while let Ok(hole) = rustix::io::dup(&memory) {
        holes.push(hole);
    }
    let refused = client.register_memfd(memory.as_fd(), 4096, Rights::Both);
    setrlimit(Resource::Nofile, limit).unwrap();
    match refused {
        Err(PortError::Refused { refusal, detail }) => {
            assert_eq!(refusal.status, Status::LimitReached);
            assert!(detail.contains("no descriptor left"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    drop((spare, holes));
    client
        .register_memfd(memory.as_fd(), 4096, Rights::Both)
        .unwrap();
    assert!(client.tables().is_ok());
}
