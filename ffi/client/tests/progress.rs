//! The thread of a hub that looks for answers: when it runs, when it sleeps, and when it ends.

mod dataplane;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dataplane::Dataplane;
use rowmill_client::{
    Batch, Bell, BoundSchema, Division, Failure, Hub, HubOptions, Options, Pending, Place, Pooling,
    RequestOptions, Schema,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Far longer than any of it takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn submit(hub: &Hub, schema: &BoundSchema) -> Pending {
    let mut batch = Batch::new(1).expect("a bag");
    let pushed = batch.push(Division::Lengths(&[1]), &[3u32][..]);
    pushed.expect("a feature");
    let sent = hub.submit(schema, &batch, Place::Pool, &RequestOptions::default());
    sent.expect("sent")
}

fn listen(bell: &Bell) -> Vec<u64> {
    let mut tokens = Vec::new();
    let limit = Timespec::try_from(PATIENCE).expect("some seconds");
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    let rung = poll(&mut fds, Some(&limit)).expect("polled");
    assert_eq!(rung, 1, "nobody rings");
    bell.heard(&mut tokens);
    tokens
}

/// What the kernel shows of the thread; its name is cut to 15 bytes. There is one in this process, whose tests run one by one.
fn thread() -> Option<PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let threads = threads.map(|thread| thread.expect("a thread").path());
    let name = |path: &PathBuf| std::fs::read_to_string(path.join("comm"));
    let is_it = |path: &PathBuf| name(path).is_ok_and(|name| name.trim_end() == "rowmill-progres");
    let found: Vec<_> = threads.filter(is_it).collect();
    assert!(found.len() <= 1, "one a hub");
    found.into_iter().next()
}

/// How often it has gone to sleep, and how many ticks of a hundredth of a second it has run.
fn work_of(thread: &Path) -> (u64, u64) {
    let read = |file| std::fs::read_to_string(thread.join(file)).expect("it lives");
    let status = read("status");
    let switches = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let stat = read("stat");
    // The name is in brackets; then come the state, as field 3, and user and system time as 14 and 15.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let ticks = fields.split_whitespace().skip(11).take(2);
    (
        switches.expect("a count").trim().parse().expect("a number"),
        ticks.map(|n| n.parse::<u64>().expect("a number")).sum(),
    )
}

/// What it does in about a second.
fn work_in_a_second(thread: &Path) -> (u64, u64) {
    let before = work_of(thread);
    std::thread::sleep(Duration::from_secs(1));
    let after = work_of(thread);
    (after.0 - before.0, after.1 - before.1)
}

fn connect(dataplane: &Dataplane) -> (Hub, BoundSchema) {
    let endpoint = &dataplane.endpoint;
    let hub = Hub::connect(endpoint, Options::default(), HubOptions::default());
    let hub = hub.expect("connected");
    let (schema, _) = Schema::side_by_side(4, [("a", "table-1", Pooling::Sum, 4)]);
    let schema = hub.bind(schema).expect("bound");
    (hub, schema)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn it_sleeps_while_there_is_nothing_to_do_and_ends_with_the_hub() {
    let dataplane = Dataplane::start();
    let (hub, schema) = connect(&dataplane);
    let bell = hub.bell().expect("a bell");
    assert_eq!(thread(), None, "nobody needs it yet");
    for token in 0..100 {
        dataplane.hold(true);
        let mut request = submit(&hub, &schema);
        request.ring(&bell, token).expect("sent");
        dataplane.hold(false);
        assert_eq!(listen(&bell), [token]);
        let reply = request.try_take().expect("open").expect("it was rung");
        assert_eq!(reply.outcome, Ok(()));
    }
    let progress = thread().expect("it runs");
    // Parked, it does nothing. With a request in flight it looks every 10 ms. It would be about a hundred ticks if it polled.
    let (switches, ticks) = work_in_a_second(&progress);
    assert!(switches < 50 && ticks < 50, "{switches}, {ticks} ticks");
    dataplane.hold(true);
    let request = submit(&hub, &schema);
    request.ring(&bell, 1000).expect("sent");
    let (switches, ticks) = work_in_a_second(&progress);
    assert!(switches < 5000 && ticks < 50, "{switches}, {ticks} ticks");
    dataplane.hold(false);

    // The request is part of the hub.
    drop(hub);
    assert!(thread().is_some());
    drop(request);
    // Joined, it may still be listed for a moment.
    until("it goes on", || thread().is_none());
    until("the end of the connection", || {
        dataplane.answers.gone().len() == 1
    });

    // The service dies.
    let (hub, schema) = connect(&dataplane);
    dataplane.hold(true);
    let bell = hub.bell().expect("a bell");
    let mut request = submit(&hub, &schema);
    request.ring(&bell, 7).expect("sent");
    drop(dataplane);
    assert_eq!(listen(&bell), [7]);
    let reply = request.try_take().expect("ended").expect("it was rung");
    assert_eq!(reply.outcome, Err(Failure::Disconnected));
    assert!(hub.is_closed());
}
