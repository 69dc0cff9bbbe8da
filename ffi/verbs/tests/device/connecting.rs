//! Connections come and go, are refused, and leave nothing behind.

use std::process::Command;
use std::time::{Duration, Instant};

use rowmill_verbs::{
    AckTimeout, CmEventKind, CompletionChannel, CompletionQueue, Context, DeviceWatch, Error,
    EventChannel, Listener, Operation, Parameters, PathMtu, QueuePair, RejectData, RequestData,
    Resolving, RetryCount, RnrTimer, Signal, State,
};

use crate::pair::{
    CAPACITY, End, PATIENCE, Pair, device, next_event, parameters, resolve, wait_readable,
};

#[test]
fn what_was_asked_for_is_what_the_device_has() {
    let Some(context) = device() else { return };
    let asked = Parameters {
        ack_timeout: AckTimeout::new(15).expect("in range"),
        retries: RetryCount::new(3).expect("in range"),
        rnr_retries: RetryCount::new(5).expect("in range"),
        rnr_timer: RnrTimer::new(12).expect("in range"),
        path_mtu: Some(PathMtu::Bytes512),
        traffic_class: Some(104),
        reads_in_flight: 2,
        reads_answered: 3,
        remote_write: true,
    };
    let pair = Pair::with(&context, CAPACITY, &asked, 1);
    for (qp, reads) in [(&pair.client.qp, (2, 2)), (&pair.server.qp, (2, 2))] {
        let is = qp.query().expect("attributes");
        println!("{is:?}");
        assert_eq!(is.state, State::ReadyToSend);
        assert_eq!((is.ack_timeout, is.retries), (15, 3));
        assert_eq!((is.rnr_retries, is.rnr_timer), (5, 12));
        assert_eq!(
            (is.path_mtu, is.traffic_class),
            (Some(PathMtu::Bytes512), 104)
        );
        // Each side answers as many READs as it offers, and has as many in flight as the other answers; of READs
        // that nobody sends none need be answered.
        assert_eq!((is.reads_in_flight, is.reads_answered.min(2)), reads);
    }
    let (client, server) = (pair.client.qp.query(), pair.server.qp.query());
    assert_eq!(client.expect("attributes").peer, pair.server.qp.number());
    assert_eq!(server.expect("attributes").peer, pair.client.qp.number());
    assert!(RetryCount::new(7).is_err(), "for ever can't be said");
}

#[test]
fn default_parameters_take_the_paths_mtu() {
    let Some(context) = device() else { return };
    let pair = Pair::new(&context);
    let is = pair.client.qp.query().expect("attributes");
    println!(
        "path MTU {:?}, of the port {:?}",
        is.path_mtu,
        context.limits().path_mtu
    );
    assert!(is.path_mtu <= context.limits().path_mtu && is.path_mtu.is_some());
    assert_eq!((is.ack_timeout, is.retries, is.rnr_timer), (14, 6, 12));
}

#[test]
fn refusals_carry_a_word() {
    let Some(context) = device() else { return };
    let channel = EventChannel::new().expect("an event channel");
    let listener = Listener::bind(&channel, context.address(), 8).expect("a listener");
    let to = listener.local_address().expect("an address");
    let parameters = parameters();
    let mut end = End::new(&context, CAPACITY, 1);
    let mut way = resolve(&channel, to, &parameters);
    way.initialise(&mut end.qp, &parameters).expect("INIT");
    let connecting = way.connect(&mut end.qp, &parameters, &RequestData::none());
    let connecting = connecting.expect("connecting begins");
    loop {
        let event = next_event(&channel);
        if event.id == connecting.token() {
            assert!(matches!(event.kind, CmEventKind::Rejected), "{event:?}");
            println!("rejected with status {}", event.status);
            assert_eq!(&event.private_data.as_slice()[..8], b"not here");
            let refused = connecting.establish(&event, &mut end.qp, &parameters);
            assert!(matches!(refused, Err(Error::CmEvent { .. })), "{refused:?}");
            break;
        }
        let CmEventKind::ConnectRequest(request) = event.kind else {
            panic!("{event:?}");
        };
        assert_eq!(request.offer().retries, 6);
        assert_eq!(request.offer().queue_pair, end.qp.number());
        let word = RejectData::new(b"not here").expect("few bytes");
        request.reject(&word).expect("rejected");
    }
}

#[test]
fn where_nobody_listens_is_a_refusal() {
    let Some(context) = device() else { return };
    let channel = EventChannel::new().expect("an event channel");
    let listener = Listener::bind(&channel, context.address(), 8).expect("a listener");
    let to = listener.local_address().expect("an address");
    drop(listener);
    let parameters = parameters();
    let mut end = End::new(&context, CAPACITY, 1);
    let mut way = resolve(&channel, to, &parameters);
    way.initialise(&mut end.qp, &parameters).expect("INIT");
    let connecting = way.connect(&mut end.qp, &parameters, &RequestData::none());
    let connecting = connecting.expect("connecting begins");
    let event = next_event(&channel);
    println!("{event:?}");
    assert!(matches!(event.kind, CmEventKind::Rejected));
    assert!(
        connecting
            .establish(&event, &mut end.qp, &parameters)
            .is_err()
    );
    // Addresses that lead nowhere fail too, at once or by an event.
    let nowhere = "192.0.2.1:7400".parse().expect("an address");
    let second = Duration::from_secs(1);
    if let Ok(resolving) = Resolving::start(&channel, None, nowhere, second, &parameters) {
        let event = next_event(&channel);
        println!("{event:?}");
        assert!(resolving.advance(&event).is_err());
    }
}

/// A connection that is dropped at some step, with events of it taken or not.
fn give_up_at(context: &Context, step: u32) {
    let channel = EventChannel::new().expect("an event channel");
    let listener = Listener::bind(&channel, context.address(), 8).expect("a listener");
    let to = listener.local_address().expect("an address");
    let parameters = parameters();
    let second = Duration::from_secs(1);
    if step == 0 {
        drop(Resolving::start(&channel, None, to, second, &parameters));
        return;
    }
    let mut client = End::new(context, CAPACITY, 1);
    let mut way = resolve(&channel, to, &parameters);
    if step == 1 {
        return;
    }
    way.initialise(&mut client.qp, &parameters).expect("INIT");
    let connecting = way.connect(&mut client.qp, &parameters, &RequestData::none());
    let connecting = connecting.expect("connecting begins");
    if step == 2 {
        return;
    }
    let event = next_event(&channel);
    let CmEventKind::ConnectRequest(mut request) = event.kind else {
        panic!("{event:?}");
    };
    if step == 3 {
        drop(connecting);
        return;
    }
    if step == 4 {
        drop(request);
        assert!(matches!(next_event(&channel).kind, CmEventKind::Rejected));
        return;
    }
    let mut server = End::new(context, CAPACITY, 2);
    request
        .initialise(&mut server.qp, &parameters)
        .expect("INIT");
    let accepted = request.accept(
        &mut server.qp,
        &parameters,
        &rowmill_verbs::ReplyData::none(),
    );
    let accepted = accepted.expect("accepted");
    match step {
        // The client goes before it has confirmed, the server before it was confirmed.
        5 => drop(connecting),
        6 => drop(accepted),
        7 => {
            let event = next_event(&channel);
            let done = connecting.establish(&event, &mut client.qp, &parameters);
            drop(done.expect("established"));
        }
        _ => unreachable!("eight steps"),
    }
}

#[test]
fn an_attempt_can_be_given_up_at_each_step() {
    let Some(context) = device() else { return };
    for step in 0..8 {
        let began = Instant::now();
        give_up_at(&context, step);
        let took = began.elapsed();
        println!("given up at step {step} in {took:?}");
        assert!(took < PATIENCE, "step {step}");
    }
}

/// What the device has of this process's objects, by kind, as `rdma resource` counts them; and open descriptors.
fn resources(context: &Context) -> (Option<String>, usize) {
    let output = Command::new("rdma")
        .args(["resource", "show", context.name()])
        .output();
    let text = output.ok().filter(|output| output.status.success());
    let text = text.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let open = std::fs::read_dir("/proc/self/fd")
        .expect("descriptors")
        .count();
    (text, open)
}

#[test]
fn a_hundred_connections_leave_nothing_behind() {
    let Some(context) = device() else { return };
    drop(Pair::new(&context));
    let settled = |what: &(Option<String>, usize)| {
        // Ids of the connection manager linger in the kernel for a moment.
        let began = Instant::now();
        while resources(&context) != *what && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(100));
        }
        resources(&context)
    };
    std::thread::sleep(Duration::from_secs(1));
    let before = resources(&context);
    let began = Instant::now();
    for cycle in 0..100 {
        let mut pair = Pair::new(&context);
        if cycle % 2 == 0 {
            pair.client.qp.fail().expect("failed");
            pair.client_connection.disconnect().expect("disconnected");
        }
    }
    println!("100 connections in {:?}", began.elapsed());
    let after = settled(&before);
    println!("before {before:?}\nafter  {after:?}");
    assert_eq!(before, after);
}

#[test]
fn sleepers_are_woken() {
    let Some(context) = device() else { return };
    let channel = CompletionChannel::new(&context).expect("a channel");
    let mut queue = CompletionQueue::new(&context, 64, Some(&channel)).expect("a queue");
    assert!(channel.take_event().expect("no error").is_none());
    let mut pair = Pair::new(&context);
    // The server's end is replaced by one whose completions ring.
    let handle = queue.handle();
    let made = QueuePair::<u32>::new(&pair.server.domain, handle, handle, CAPACITY, 7);
    drop(made.expect("a queue pair"));
    queue.arm().expect("armed");
    assert!(queue.poll().expect("a poll").is_empty());
    assert!(!wait_readable(&channel, Duration::from_millis(20)));
    let channel_of_events = EventChannel::new().expect("an event channel");
    let listener = Listener::bind(&channel_of_events, context.address(), 1).expect("a listener");
    let to = listener.local_address().expect("an address");
    let parameters = parameters();
    let mut sleeper: QueuePair<u32> = QueuePair::new(
        &pair.server.domain,
        queue.handle(),
        queue.handle(),
        CAPACITY,
        7,
    )
    .expect("a queue pair");
    let mut caller = End::new(&context, CAPACITY, 8);
    let mut way = resolve(&channel_of_events, to, &parameters);
    way.initialise(&mut caller.qp, &parameters).expect("INIT");
    let connecting = way.connect(&mut caller.qp, &parameters, &RequestData::none());
    let connecting = connecting.expect("connecting begins");
    let event = next_event(&channel_of_events);
    let CmEventKind::ConnectRequest(mut request) = event.kind else {
        panic!("{event:?}");
    };
    request.initialise(&mut sleeper, &parameters).expect("INIT");
    sleeper.receive_empty(2).expect("receives");
    let none = rowmill_verbs::ReplyData::none();
    let accepted = request
        .accept(&mut sleeper, &parameters, &none)
        .expect("accepted");
    let event = next_event(&channel_of_events);
    let connection = connecting.establish(&event, &mut caller.qp, &parameters);
    let connection = connection.expect("established");
    for round in 0..3 {
        let remote = pair.server.shared.remote();
        let mut batch = caller.qp.batch();
        let to = Operation::WriteImmediate(remote, round);
        batch.post_inline(to, &[], Signal::No).expect("room");
        batch.ring().expect("posted");
        assert!(wait_readable(&channel, PATIENCE), "woken");
        assert_eq!(
            channel.take_event().expect("an event"),
            Some(queue.handle().id())
        );
        queue.arm().expect("armed");
        let polled = queue.poll().expect("a poll");
        assert_eq!(polled.len(), 1);
        assert_eq!(polled[0].immediate(), Some(round));
        assert!(sleeper.retire(&polled[0]).is_ok());
        sleeper.receive_empty(1).expect("a receive");
    }
    drop((connection, accepted));
    pair.client.qp.fail().expect("failed");
}

/// Events that a test can bring about without a broken device are changes of the network device. Whoever runs the
/// tests says by `ROWMILL_RDMA_LAB=1` that addresses may come and go on it.
#[test]
fn asynchronous_events_are_read_and_do_not_hold_anything_up() {
    let Some(context) = device() else { return };
    for _ in 0..3 {
        let watch = DeviceWatch::start(&context).expect("a watch");
        let began = Instant::now();
        drop(Pair::new(&context));
        println!("{:?} in {:?}", watch.counts(), began.elapsed());
        assert!(!watch.counts().device_failed());
        drop(watch);
    }
    if std::env::var("ROWMILL_RDMA_LAB").is_err() {
        println!("skipped: addresses of this network device are left alone (ROWMILL_RDMA_LAB=1)");
        return;
    }
    let watch = DeviceWatch::start(&context).expect("a watch");
    let pair = Pair::new(&context);
    for what in ["add", "del"] {
        let arguments = ["address", what, "10.201.7.1/32", "dev", context.netdev()];
        let changed = Command::new("ip").args(arguments).status();
        assert!(changed.expect("the command ip").success());
    }
    let began = Instant::now();
    while watch.counts().gid_change() < 2 {
        assert!(began.elapsed() < PATIENCE, "{:?}", watch.counts());
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{:?}", watch.counts());
    assert!(
        pair.client.qp.health().is_good(),
        "a port's change is no queue pair's"
    );
}
