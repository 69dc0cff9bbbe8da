//! Control calls of a hub that have no answer in time, or are ended by their caller.

mod dataplane;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use dataplane::Dataplane;
use rowmill_client::{
    Batch, BoundSchema, ClientError, Division, Hub, HubOptions, Interrupt, Options, Pending, Place,
    Pooling, RequestOptions, Schema, Wait,
};

fn schema(table: &str) -> Schema {
    Schema::side_by_side(8, [("f", table, Pooling::Sum, 4)]).0
}

fn submit(hub: &Hub, schema: &BoundSchema, place: Place) -> Result<Pending, ClientError> {
    let mut batch = Batch::new(1)?;
    batch.push(Division::Lengths(&[1]), &[3u32][..])?;
    hub.submit(schema, &batch, place, &RequestOptions::default())
}

fn lookup(hub: &Hub, schema: &BoundSchema) -> Result<(), ClientError> {
    let reply = submit(hub, schema, Place::Pool)?.wait(Wait::Block)?;
    assert_eq!(reply.outcome, Ok(()));
    Ok(())
}

/// Runs `act` while the dataplane's control thread is held up by another client.
fn held_up<T>(dataplane: &Dataplane, act: impl FnOnce() -> T) -> T {
    let other = Hub::connect(
        &dataplane.endpoint,
        Options::default(),
        HubOptions::default(),
    )
    .expect("connected");
    dataplane.answers.shut();
    thread::scope(|scope| {
        let asks = scope.spawn(|| other.tables().map(|_| ()));
        while !dataplane.answers.is_held_up() {
            thread::yield_now();
        }
        let outcome = act();
        dataplane.answers.open();
        asks.join().expect("no panic").expect("tables");
        outcome
    })
}

#[test]
fn control_calls_are_ended_by_their_caller_and_the_connection_goes_on() {
    let dataplane = Dataplane::start();
    let ends = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&ends);
    let options = Options {
        interrupt: Interrupt::when(move || seen.load(Ordering::SeqCst)),
        ..Options::default()
    };
    let hub = Hub::connect(&dataplane.endpoint, options, HubOptions::default()).expect("connected");
    let bound = hub.bind(schema("table-1")).expect("bound");
    let [region, other] = [(); 2].map(|()| hub.region(4096).expect("a region"));
    dataplane.hold(true);
    let in_flight = submit(&hub, &bound, Place::At(other, 0)).expect("sent");
    ends.store(true, Ordering::SeqCst);
    held_up(&dataplane, || {
        let interrupted = |outcome: Result<(), ClientError>| {
            assert!(
                matches!(outcome, Err(ClientError::Interrupted)),
                "{outcome:?}"
            );
        };
        interrupted(lookup(&hub, &bound)); // The pool grows.
        interrupted(hub.region(4096).map(|_| ()));
        interrupted(hub.bind(schema("table-2")).map(|_| ()));
        interrupted(hub.unregister(region));
        let gone = hub.unregister(region);
        assert!(
            matches!(gone, Err(ClientError::OtherClient { .. })),
            "{gone:?}"
        );
    });
    ends.store(false, Ordering::SeqCst);
    dataplane.hold(false);
    let reply = in_flight.wait(Wait::Block).expect("an answer");
    assert_eq!(reply.outcome, Ok(()));
    lookup(&hub, &bound).expect("an answer");
    hub.bind(schema("table-2")).expect("bound");
    // What there is room for can be had, and then there is no room.
    let room = hub.region_room().expect("open");
    assert!(room > 0 && room < hub.welcome().max_region);
    let largest = hub.region(room).expect("there is room");
    assert_eq!(hub.region_room().expect("open"), 0);
    assert!(hub.region(4096).is_err());
    hub.unregister(largest).expect("given up");
    assert_eq!(hub.region_room().expect("open"), room);
    // 16 regions a connection: the ids', the pool's, and all others, whatever was interrupted before.
    for _ in 0..13 {
        hub.region(4096).expect("a region");
    }
    assert!(hub.region(4096).is_err());
}

#[test]
fn a_dataplane_that_answers_late_is_an_error_of_its_own() {
    let dataplane = Dataplane::start();
    let limit = Duration::from_millis(50);
    let options = Options {
        reply_limit: limit,
        ..Options::default()
    };
    let hub = loop {
        match Hub::connect(&dataplane.endpoint, options.clone(), HubOptions::default()) {
            Err(ClientError::NoAnswer { .. }) => (), // This machine is slow.
            hub => break hub.expect("connected"),
        }
    };
    let late = held_up(&dataplane, || hub.region(4096));
    match late {
        Err(ClientError::NoAnswer { limit: told }) => assert_eq!(told, limit),
        other => panic!("no answer, not {other:?}"),
    }
    let bound = loop {
        match hub.bind(schema("table-1")) {
            Err(ClientError::NoAnswer { .. }) => (),
            bound => break bound.expect("bound"),
        }
    };
    while let Err(error) = lookup(&hub, &bound) {
        assert!(matches!(error, ClientError::NoAnswer { .. }), "{error}");
    }
}

#[test]
fn connecting_is_ended_by_its_caller() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("silent.sock");
    let address = rustix::net::SocketAddrUnix::new(&path).expect("short");
    let socket = rustix::net::socket(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        None,
    )
    .expect("a socket");
    rustix::net::bind(&socket, &address).expect("bound");
    rustix::net::listen(&socket, 8).expect("listening");
    let options = Options {
        reply_limit: Duration::from_secs(600),
        interrupt: Interrupt::when(|| true),
        ..Options::default()
    };
    let url = format!("shm:{}", path.display());
    let outcome = Hub::connect(&url, options, HubOptions::default());
    assert!(matches!(outcome, Err(ClientError::Interrupted)));
}
