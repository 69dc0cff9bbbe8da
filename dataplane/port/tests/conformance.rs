//! The conformance suite on the shared-memory port, each lane on a thread of its own.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rowmill_arena::{HUGE_2M, HugePages, sealed_memfd};
use rowmill_port::conformance::{Harness, Setup, Violation, Worker};
use rowmill_port::shm::{ShmClient, ShmClientConfig, ShmConfig, ShmLane, ShmServer, layout};
use rowmill_port::{ClientPort, Idle, Interrupt, PortError, RegionId, ServerPort, Waker};
use rowmill_wire::Immediate;
use rowmill_wire::control::Rights;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use tempfile::TempDir;

struct Shm {
    endpoint: String,
    server: Option<ShmServer>,
    threads: Vec<(Arc<dyn Waker>, JoinHandle<()>)>,
    stop: Arc<AtomicBool>,
    hoard: Vec<OwnedFd>,
    pool: Option<Pool>,
    _folder: TempDir,
}

/// Spins, yields, then sleeps for as long as it takes: a lost wake-up would show.
fn work(mut lane: ShmLane, mut worker: Worker, stop: &AtomicBool) {
    let mut idle = 0;
    while !stop.load(Ordering::SeqCst) {
        if worker.turn(&mut lane) {
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

impl Harness for Shm {
    type Client = ShmClient;

    fn start(setup: Setup) -> Shm {
        let folder = tempfile::tempdir().expect("a folder");
        let path: PathBuf = folder.path().join("conformance.sock");
        let endpoint = format!("shm:{}", path.display());
        let config = ShmConfig {
            lanes: setup.workers.len() as u16,
            credits: setup.credits,
            max_connections: setup.max_connections,
            max_region_bytes: setup.max_region,
            ..ShmConfig::default()
        };
        let (server, lanes) =
            ShmServer::listen(&endpoint, config, setup.service).expect("a server");
        let stop = Arc::new(AtomicBool::new(false));
        let threads = lanes
            .into_iter()
            .zip(setup.workers)
            .map(|(lane, worker)| {
                let (waker, stop) = (lane.waker(), stop.clone());
                (waker, thread::spawn(move || work(lane, worker, &stop)))
            })
            .collect();
        Shm {
            endpoint,
            server: Some(server),
            threads,
            stop,
            hoard: Vec::new(),
            pool: None,
            _folder: folder,
        }
    }

    fn connect(&mut self, name: &str, credits: u16) -> Result<ShmClient, PortError> {
        ShmClient::connect(&self.endpoint, name, credits)
    }

    fn connect_interruptibly(
        &mut self,
        name: &str,
        credits: u16,
        interrupt: Interrupt,
    ) -> Result<ShmClient, PortError> {
        let config = ShmClientConfig {
            credits,
            interrupt,
            ..ShmClientConfig::default()
        };
        ShmClient::connect_with(&self.endpoint, name, config)
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

    fn violate(&mut self, client: &mut ShmClient, lane: u16, what: Violation) -> bool {
        let raw = client.raw_lane(lane);
        let (window, layout) = (raw.window, raw.layout);
        let tail = window.load_u32(layout::SUBMISSION_TAIL);
        let submit = |bits: u32| {
            window.store_u32(layout.submission(tail), bits);
            window.store_u32(layout::SUBMISSION_TAIL, tail.wrapping_add(1));
        };
        let request = |slot, len| Immediate::Request { slot, len }.encode();
        match what {
            Violation::UnknownKind => submit(0xf000_0000),
            Violation::ServersKind => submit(Immediate::Final { slot: 0, slice: 0 }.encode()),
            Violation::SlotNotGranted => submit(request(layout.credits(), 16)),
            Violation::CancelNotGranted => submit(Immediate::Cancel { slot: 4095 }.encode()),
            Violation::EmptyFrame => submit(request(0, 0)),
            Violation::FrameTooLong => submit(request(0, 8193)),
            Violation::Overrun => {
                let beyond = tail.wrapping_add(layout.submissions() + 1);
                window.store_u32(layout::SUBMISSION_TAIL, beyond);
            }
            Violation::Backwards => {
                window.store_u32(layout::SUBMISSION_TAIL, tail.wrapping_sub(1));
            }
        }
        raw.ring();
        true
    }

    /// Memory can be lost only where it is made of huge pages (a hole in small ones reads as zeros), so
    /// the region is replaced by one of the same number made of those.
    fn lose(&mut self, client: &mut ShmClient, region: RegionId) -> bool {
        let Some(pool) = Pool::with_pages(1) else {
            println!("skipped: no right to add a 2 MiB page to the pool, or no memory for it");
            return false;
        };
        client.unregister(region).expect("unregistered");
        let fd = sealed_memfd("lost", HUGE_2M, HugePages::Require).expect("the page just added");
        let again = client
            .register_memfd(fd.as_fd(), HUGE_2M as u64, Rights::Both)
            .expect("a region");
        assert_eq!(again, region, "the lowest free number");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&fd, hole, 0, HUGE_2M as u64).expect("a hole");
        // Takes the page that was just freed, so that it can't be faulted in again.
        while let Ok(page) = sealed_memfd("hoard", HUGE_2M, HugePages::Require) {
            self.hoard.push(page);
        }
        self.pool = Some(pool);
        true
    }
}

/// The pool of huge pages with some pages more, for one test of the workspace at a time: the lock is on
/// the pool's own file. Its size is restored when this is dropped.
struct Pool {
    before: u64,
    _lock: File,
}

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

impl Pool {
    fn with_pages(count: u64) -> Option<Pool> {
        let lock = File::open(POOL).ok()?;
        flock(&lock, FlockOperation::LockExclusive).ok()?;
        let size = || fs::read_to_string(POOL).ok()?.trim().parse::<u64>().ok();
        let before = size()?;
        let pool = Pool {
            before,
            _lock: lock,
        };
        fs::write(POOL, (before + count).to_string()).ok()?;
        (size()? == before + count).then_some(pool)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let _ = fs::write(POOL, self.before.to_string());
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        self.stop_server();
    }
}

rowmill_port::conformance_tests!(Shm, threads);
