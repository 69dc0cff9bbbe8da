//! A dataplane of one worker, over shared memory, that answers all requests alike.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rowmill_port::conformance::Answers;
use rowmill_port::shm::{ShmConfig, ShmServer};
use rowmill_port::{Event, Idle, ServerPort};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::Request;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Status};

/// A dataplane whose one worker runs on a thread, until it is dropped.
pub(crate) struct Dataplane {
    pub(crate) endpoint: String,
    pub(crate) answers: Arc<Answers>,
    switches: Arc<Switches>,
    worker: Option<std::thread::JoinHandle<()>>,
    _server: ShmServer,
    _folder: tempfile::TempDir,
}

#[derive(Default)]
struct Switches {
    stop: AtomicBool,
    holds: AtomicBool,
}

impl Dataplane {
    pub(crate) fn start() -> Dataplane {
        let folder = tempfile::tempdir().expect("a folder");
        let endpoint = format!("shm:{}/d.sock", folder.path().display());
        let answers = Arc::new(Answers::new(1));
        let config = ShmConfig {
            max_region_bytes: 64 << 20,
            ..ShmConfig::default()
        };
        let listening = ShmServer::listen(&endpoint, config, answers.clone());
        let (server, lanes) = listening.expect("a free endpoint");
        let mut lane = lanes.into_iter().next().expect("a lane");
        let switches = Arc::new(Switches::default());
        let own = Arc::clone(&switches);
        Dataplane {
            endpoint,
            answers,
            switches,
            worker: Some(std::thread::spawn(move || work(&mut lane, &own))),
            _server: server,
            _folder: folder,
        }
    }

    /// Whether requests are left without an answer, until they are not.
    pub(crate) fn hold(&self, holds: bool) {
        self.switches.holds.store(holds, Ordering::Relaxed);
    }
}

impl Drop for Dataplane {
    fn drop(&mut self) {
        self.switches.stop.store(true, Ordering::Relaxed);
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

/// Answers requests with OK.
fn work(lane: &mut impl ServerPort, switches: &Switches) {
    let mut frame = Box::new([0; SLOT_BYTES]);
    while !switches.stop.load(Ordering::Relaxed) {
        let Some(event) = lane.poll(&mut frame) else {
            lane.idle(Idle::Sleep(Some(Duration::from_millis(10))));
            continue;
        };
        let Event::Request { conn, slot, len } = event else {
            continue;
        };
        while switches.holds.load(Ordering::Relaxed) {
            if switches.stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::yield_now();
        }
        let request = Request::parse(&frame[..len]).expect("a sound frame");
        let header = request.header();
        let record = Completion {
            kind: CompletionKind::Final,
            part: header.part,
            status: Status::Ok,
            slot,
            slice: 0,
            request: header.request,
            generation: 7,
            delta: 0,
            attempt: header.attempt,
            credits: 1,
            feature: NOWHERE,
            index: NOWHERE,
            service_ns: 0,
            newest: 0,
        };
        lane.complete(conn, &record);
    }
}
