//! A process that forks after it has connected: the child has no part in the connection, and does it no harm.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rowmill_client::{
    Batch, BoundSchema, ClientError, Division, Hub, HubOptions, Options, Place, Pooling, Reply,
    RequestOptions, Schema, Wait,
};
use rowmill_port::conformance::Answers;
use rowmill_port::shm::{ShmConfig, ShmServer};
use rowmill_port::{Event, Idle, ServerPort};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::Request;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, CompletionKind, Status};

/// Answers every request with OK.
fn work(lane: &mut impl ServerPort, stop: &AtomicBool) {
    let mut frame = Box::new([0; SLOT_BYTES]);
    while !stop.load(Ordering::Relaxed) {
        let Some(event) = lane.poll(&mut frame) else {
            lane.idle(Idle::Sleep(Some(Duration::from_millis(10))));
            continue;
        };
        let Event::Request { conn, slot, len } = event else {
            continue;
        };
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
        };
        lane.complete(conn, &record);
    }
}

fn batch() -> Batch {
    let mut batch = Batch::new(1).expect("a bag");
    let pushed = batch.push(Division::Lengths(&[1]), &[3u32][..]);
    pushed.expect("a feature");
    batch
}

fn look_up(hub: &Hub, schema: &BoundSchema) -> Result<Reply, ClientError> {
    let options = RequestOptions::default();
    hub.lookup(schema, &batch(), Place::Pool, &options, Wait::Block)
}

/// Runs in a child of this process, which ends with what it returns.
fn in_child(act: impl FnOnce() -> u8) -> libc::pid_t {
    // SAFETY: the child uses no lock that another thread of this process may hold, but the allocator's, which its library
    // gets in order there. It ends without running what the parent has left to be run at its end.
    match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_or(99);
            // SAFETY: it only ends the process.
            unsafe { libc::_exit(code.into()) }
        }
        child => {
            assert!(child > 0, "a child");
            child
        }
    }
}

fn exit_code(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: the status is a place of this function.
    let waited = unsafe { libc::waitpid(child, &mut status, 0) };
    (waited == child && libc::WIFEXITED(status)).then(|| libc::WEXITSTATUS(status))
}

fn is_forked<T>(outcome: Result<T, ClientError>) -> bool {
    match outcome {
        Err(error @ ClientError::Forked) => {
            error.to_string().contains("connect again in the child")
        }
        _ => false,
    }
}

/// Ends the worker, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_child_has_no_part_in_the_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let endpoint = format!("shm:{}/f.sock", folder.path().display());
    let connect = || {
        let hub = Hub::connect(&endpoint, Options::default(), HubOptions::default());
        hub.expect("connected")
    };
    let answers = Arc::new(Answers::new(1));
    let listening = ShmServer::listen(&endpoint, ShmConfig::default(), answers.clone());
    let (_server, mut lanes) = listening.expect("a free endpoint");
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| work(&mut lanes[0], &stop));
        let hub = connect();
        let (schema, _) = Schema::side_by_side(4, [("a", "table-1", Pooling::Sum, 4)]);
        let schema = hub.bind(schema).expect("bound");
        let lease = look_up(&hub, &schema).expect("answered").lease;
        let options = RequestOptions::default();
        let submit = || hub.submit(&schema, &batch(), Place::Pool, &options);
        let (pending, dropped) = (submit().expect("sent"), submit().expect("sent"));
        let (read, write) = std::io::pipe().expect("a pipe");
        // Each process has all of it, and takes its own.
        let mut all = Some((hub, lease, pending, dropped, read, write));

        let child = in_child(|| {
            let (hub, lease, pending, mut dropped, mut read, write) = all.take().expect("once");
            drop(write);
            let mut good = vec![
                is_forked(look_up(&hub, &schema)),
                is_forked(hub.tables()),
                is_forked(hub.region(4096)),
                is_forked(hub.generation()),
                is_forked(hub.pending()),
                is_forked(lease.read(0, &mut [0])),
                is_forked(dropped.cancel()),
                is_forked(dropped.wait_for(Wait::Poll, Duration::ZERO)),
                is_forked(pending.wait(Wait::Block)),
            ];
            drop((dropped, lease.clone(), lease, hub));
            // A connection of its own is another one.
            let own = connect();
            let bound = own.bind(schema.schema().clone()).expect("bound");
            let reply = look_up(&own, &bound).expect("answered");
            good.push(reply.outcome.is_ok());
            drop((own, reply));
            // It lives on until the dataplane has noticed the parent's end of the connection.
            good.push(read.read(&mut [0]).is_ok_and(|bytes| bytes == 1));
            let bad = good.iter().position(|&good| !good);
            bad.map_or(0, |at| at as u8 + 1)
        });

        let (hub, lease, pending, dropped, _read, mut write) = all.take().expect("the parent's");
        let lookups = (0..100).map(|_| look_up(&hub, &schema));
        lookups.for_each(|reply| reply.expect("answered").outcome.expect("OK"));
        let reply = pending.wait(Wait::Block).expect("answered");
        reply.outcome.expect("OK");
        drop((dropped, lease, reply.lease));
        assert_eq!(
            hub.held().expect("open"),
            0,
            "the child has given nothing back"
        );
        let until_gone = |connections| {
            while answers.gone().len() < connections {
                thread::yield_now();
            }
        };
        until_gone(1);
        drop(hub);
        until_gone(2);
        write.write_all(&[1]).expect("the child lives");
        assert_eq!(
            exit_code(child),
            Some(0),
            "which of the child's checks failed"
        );
    });
}
