//! A process that forks after it has connected: the child has no part in the connection, and does it no harm.

mod dataplane;

use std::io::{Read, Write};
use std::thread;
use std::time::Duration;

use dataplane::Dataplane;

use rowmill_client::{
    Batch, Bell, BoundSchema, ClientError, Division, Hub, HubOptions, Options, Place, Pooling,
    Reply, RequestOptions, Schema, Wait,
};
use rustix::event::{PollFd, PollFlags, poll};

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

/// Waits until the bell can be read, and takes its tokens.
fn listen(bell: &Bell) -> Vec<u64> {
    let mut tokens = Vec::new();
    while tokens.is_empty() {
        poll(&mut [PollFd::new(bell, PollFlags::IN)], None).expect("polled");
        bell.heard(&mut tokens);
    }
    tokens
}

#[test]
fn a_child_has_no_part_in_the_connection() {
    let dataplane = Dataplane::start();
    let connect = || {
        let hub = Hub::connect(
            &dataplane.endpoint,
            Options::default(),
            HubOptions::default(),
        );
        hub.expect("connected")
    };
    let hub = connect();
    let (schema, _) = Schema::side_by_side(4, [("a", "table-1", Pooling::Sum, 4)]);
    let schema = hub.bind(schema).expect("bound");
    let lease = look_up(&hub, &schema).expect("answered").lease;
    let options = RequestOptions::default();
    // What is in flight stays so until the child is there.
    dataplane.hold(true);
    let submit = || hub.submit(&schema, &batch(), Place::Pool, &options);
    let (pending, dropped) = (submit().expect("sent"), submit().expect("sent"));
    // The thread that rings runs in the parent only.
    let bell = hub.bell().expect("a bell");
    let belled = submit().expect("sent");
    belled.ring(&bell, 7).expect("sent");
    let (read, write) = std::io::pipe().expect("a pipe");
    // Each process has all of it, and takes its own.
    let mut all = Some((hub, lease, pending, dropped, bell, belled, read, write));

    let child = in_child(|| {
        let mine = all.take().expect("once");
        let (hub, lease, pending, mut dropped, bell, mut belled, mut read, write) = mine;
        drop(write);
        let mut heard = Vec::new();
        bell.heard(&mut heard);
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
            is_forked(belled.try_take()),
            is_forked(belled.ring(&bell, 8)),
            is_forked(hub.bell()),
            heard.is_empty(),
            hub.is_closed(),
        ];
        hub.close();
        drop((dropped, belled, bell, lease.clone(), lease, hub));
        // A connection of its own is another one.
        let own = connect();
        let bound = own.bind(schema.schema().clone()).expect("bound");
        let reply = look_up(&own, &bound).expect("answered");
        good.push(reply.outcome.is_ok());
        let (own_bell, request) = (
            own.bell().expect("a bell"),
            own.submit(&bound, &batch(), Place::Pool, &options),
        );
        request.expect("sent").ring(&own_bell, 9).expect("sent");
        drop((own, reply));
        // It lives on until the dataplane has noticed the parent's end of the connection.
        good.push(read.read(&mut [0]).is_ok_and(|bytes| bytes == 1));
        let bad = good.iter().position(|&good| !good);
        bad.map_or(0, |at| at as u8 + 1)
    });

    dataplane.hold(false);
    let mine = all.take().expect("the parent's");
    let (hub, lease, pending, dropped, bell, mut belled, _read, mut write) = mine;
    let lookups = (0..100).map(|_| look_up(&hub, &schema));
    lookups.for_each(|reply| reply.expect("answered").outcome.expect("OK"));
    assert_eq!(listen(&bell), [7]);
    let reply = belled.try_take().expect("open").expect("it was rung");
    reply.outcome.expect("OK");
    drop(reply);
    let reply = pending.wait(Wait::Block).expect("answered");
    reply.outcome.expect("OK");
    drop((dropped, belled, lease, reply.lease));
    assert_eq!(
        hub.held().expect("open"),
        0,
        "the child has given nothing back"
    );
    let until_gone = |connections| {
        while dataplane.answers.gone().len() < connections {
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
}
