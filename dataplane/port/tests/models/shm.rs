//! The rings of shared memory and the sleep of both their sides: `shm/rings.rs`, `shm/handoff.rs`.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::thread;
use rowmill_port::shm::layout;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::{Completion, CompletionKind, Status};

use crate::control::{Bell, UNHARMED};
use crate::plant::{self, Mistake, is};
use block::{Block, Memory};
use handoff::Consumer;
use rings::{ClientRings, Submission, WorkerRings};

mod block;
#[path = "../../src/shm/handoff.rs"]
mod handoff;
#[path = "../../src/shm/rings.rs"]
mod rings;

/// A result in the client's region.
struct Target(UnsafeCell<u32>);

// SAFETY: the rings order all accesses, which is what loom checks here.
unsafe impl Sync for Target {}

impl Target {
    fn write(&self, value: u32) {
        // SAFETY: as said above.
        self.0.with_mut(|place| unsafe { *place = value });
    }

    fn read(&self) -> u32 {
        // SAFETY: as said above.
        self.0.with(|place| unsafe { *place })
    }
}

/// One lane of one client.
struct Lane {
    memory: Arc<Memory>,
    target: Target,
    /// Wakes the client.
    wake: Bell,
}

impl Lane {
    fn new() -> Lane {
        Lane {
            memory: Arc::new(Memory::new(layout())),
            target: Target(UnsafeCell::new(0)),
            wake: Bell::new(),
        }
    }
}

fn layout() -> layout::Layout {
    layout::Layout::new(1, 1, layout::Layout::completions_for(1)).expect("one slot")
}

fn record(number: u32) -> Completion {
    Completion {
        kind: CompletionKind::Final,
        part: 0,
        status: Status::Ok,
        slot: 0,
        slice: 0,
        request: number.into(),
        generation: 1,
        delta: 0,
        attempt: 0,
        credits: 1,
        feature: rowmill_wire::status::NOWHERE,
        index: rowmill_wire::status::NOWHERE,
        service_ns: 0,
        newest: 0,
    }
}

/// Lies down as the ports do.
fn lie_down<R: Consumer>(rings: &[&R]) -> bool {
    if is(Mistake::LooksFirst) {
        let quiet = !rings.iter().any(|ring| ring.has_entry());
        let flag = |ring: &&R| ring.sleeping().store(1, crate::sync::Ordering::Relaxed);
        rings.iter().filter(|_| quiet).for_each(flag);
        return quiet;
    }
    handoff::lie_down(rings.iter().copied(), || true)
}

/// Sleeps as the ports do.
fn sleep<R: Consumer>(rings: &[&R], bell: &Bell) {
    if lie_down(rings) {
        bell.wait();
        handoff::get_up(rings.iter().copied());
    }
}

/// A client that sends `count` requests in the same slot, each after the record of the one before.
fn ask(lane: &Lane, doorbell: &Bell, count: u32) {
    let mut rings = ClientRings::new(Block::of(&lane.memory), layout());
    for number in 1..=count {
        if rings.submit(0, &number.to_le_bytes()) {
            doorbell.ring();
        }
        let record = loop {
            match rings.next().expect("an honest worker") {
                Some(record) => break record,
                None => sleep(&[&rings], &lane.wake),
            }
        };
        assert_eq!(record.request, number.into());
        assert_eq!(
            lane.target.read(),
            number,
            "the result is there before its record"
        );
    }
}

/// A worker that answers `count` requests of these clients.
fn serve(lanes: &[Arc<Lane>], doorbell: &Bell, count: u32) {
    let rings = |lane: &Arc<Lane>| WorkerRings::new(Block::of(&lane.memory), layout());
    let mut rings: Vec<WorkerRings> = lanes.iter().map(rings).collect();
    let (mut frame, mut served) = ([0; SLOT_BYTES], 0);
    while served < count {
        let before = served;
        for (lane, rings) in lanes.iter().zip(&mut rings) {
            match rings.next(&mut frame).expect("an honest client") {
                Some(Submission::Request { slot: 0, len: 4 }) => {
                    let number = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
                    lane.target.write(number);
                    if rings.complete(&record(number)) {
                        lane.wake.ring();
                    }
                    served += 1;
                }
                Some(other) => panic!("nobody sent {other:?}"),
                None => {}
            }
        }
        if served == before {
            sleep(&rings.iter().collect::<Vec<_>>(), doorbell);
        }
    }
}

fn clients(count: usize, requests: u32) {
    let lanes: Vec<Arc<Lane>> = (0..count).map(|_| Arc::new(Lane::new())).collect();
    let doorbell = Arc::new(Bell::new());
    let client = |lane: &Arc<Lane>| {
        let (lane, doorbell) = (Arc::clone(lane), Arc::clone(&doorbell));
        thread::spawn(move || ask(&lane, &doorbell, requests))
    };
    let clients: Vec<_> = lanes.iter().map(client).collect();
    serve(&lanes, &doorbell, count as u32 * requests);
    for client in clients {
        client.join().expect("the client ends");
    }
}

const MISTAKES: [Mistake; 5] = [
    Mistake::RelaxedStore,
    Mistake::RelaxedLoad,
    Mistake::NoFence,
    Mistake::LooksFirst,
    Mistake::BellForgets,
];

/// One client uses its slot twice.
fn one_client() {
    clients(1, 2);
}

#[test]
fn a_client_and_a_worker_that_sleep_wake_each_other() {
    crate::check(one_client);
    plant::assert_found(&MISTAKES, one_client);
}

/// Two clients wake the same worker.
fn two_clients() {
    clients(2, 1);
}

#[test]
fn a_worker_sleeps_on_the_rings_of_all_its_clients() {
    crate::check(two_clients);
    plant::assert_found(&MISTAKES, two_clients);
}

/// Two threads share a client: one submits while the other sleeps without the lock.
fn shared_client() {
    let (lane, doorbell) = (Arc::new(Lane::new()), Arc::new(Bell::new()));
    let rings = ClientRings::new(Block::of(&lane.memory), layout());
    let rings = Arc::new(Mutex::new(rings));
    let sender = {
        let (rings, doorbell) = (Arc::clone(&rings), Arc::clone(&doorbell));
        thread::spawn(move || {
            let rings = &mut *rings.lock().expect(UNHARMED);
            if rings.submit(0, &1u32.to_le_bytes()) {
                doorbell.ring();
            }
        })
    };
    let sleeper = {
        let lane = Arc::clone(&lane);
        thread::spawn(move || {
            loop {
                let mut own = rings.lock().expect(UNHARMED);
                if let Some(record) = own.next().expect("an honest worker") {
                    return record.request;
                }
                let quiet = lie_down(&[&*own]);
                drop(own);
                if quiet {
                    lane.wake.wait();
                    handoff::get_up(std::iter::once(&*rings.lock().expect(UNHARMED)));
                }
            }
        })
    };
    serve(&[lane], &doorbell, 1);
    sender.join().expect("the sender ends");
    assert_eq!(sleeper.join().expect("the sleeper ends"), 1);
}

#[test]
fn a_client_sleeps_while_another_thread_submits() {
    crate::check(shared_client);
    plant::assert_found(&MISTAKES, shared_client);
}

/// The flag goes down with the first entry, so that the bell rings once a sleep.
fn rung_once() {
    let rings = || Block::of(&Arc::new(Memory::new(layout())));
    let block = rings();
    let (tail, flag) = (
        block.word(layout::SUBMISSION_TAIL),
        block.word(layout::WORKER_SLEEPING),
    );
    assert!(!handoff::publish(tail, 1, flag), "nobody sleeps");
    flag.store(1, crate::sync::Ordering::Relaxed);
    assert!(handoff::publish(tail, 2, flag));
    assert!(!handoff::publish(tail, 3, flag));
    assert_eq!(handoff::tail(tail), 3);
}

#[test]
fn a_sleeper_is_rung_once() {
    crate::check(rung_once);
}
