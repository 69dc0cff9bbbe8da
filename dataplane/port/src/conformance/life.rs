//! Cases about connections and regions coming and going, and about clients that misbehave.

use rowmill_wire::limits::MAX_REGIONS;
use rowmill_wire::{Pooling, Schema, Status};

use super::{Bench, Entry, Harness, TABLES, Task, Violation};
use crate::{ClientPort, ConnId, Event, PortError, RegionId};

/// What the server grants is what the port and the service say.
pub fn welcome<H: Harness>() {
    let mut bench = Bench::<H>::start(3);
    let client = bench.client("someone", 10);
    let welcome = client.welcome();
    assert_eq!(
        (welcome.model.as_str(), welcome.generation),
        ("conformance", 7)
    );
    assert_eq!((welcome.split.lanes, welcome.credits), (3, 10));
    assert_eq!(welcome.max_region, 16 << 20);
    for journal in bench.journals.clone() {
        bench.until("Attached on every lane", || {
            journal.has(Entry::Saw(Event::Attached {
                conn: ConnId(0),
                credits: 10,
            }))
        });
    }
    match bench.harness.connect("nobody", 1) {
        Err(PortError::Refused { refusal, detail }) => {
            assert_eq!(refusal.status, Status::Draining);
            assert_eq!(detail, "not today");
        }
        Err(other) => panic!("refused, not {other}"),
        Ok(_) => panic!("refused, not connected"),
    }
}

/// No client gets more credits than the server's bound, nor more than it asked for.
pub fn credits_are_bounded<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let greedy = bench.client("greedy", u16::MAX);
    assert_eq!(greedy.welcome().credits, 64);
    let modest = bench.client("modest", 1);
    assert_eq!(modest.welcome().credits, 1);
}

/// All tables come, over several pages, in order.
pub fn tables_in_pages<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("tables", 1);
    let tables = client.tables().expect("tables");
    assert_eq!(tables.len(), TABLES);
    for (i, table) in tables.iter().enumerate() {
        assert_eq!(table.name, format!("table-{i}"));
        assert_eq!(table.rows, i as u64);
    }
}

/// A schema is bound or refused, with the reason and its place.
pub fn bind_and_refusal<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("bind", 1);
    let features = ["a", "b", "c"].map(|name| (name, "table-1", Pooling::Sum, 4));
    let (mut schema, _) = Schema::side_by_side(8, features);
    assert_eq!(client.bind(&schema).expect("bound"), 3);
    schema.features[2].table = "missing".to_owned();
    match client.bind(&schema) {
        Err(PortError::Refused { refusal, detail }) => {
            assert_eq!((refusal.status, refusal.feature), (Status::UnknownTable, 2));
            assert_eq!(detail, "no such table");
        }
        other => panic!("refused, not {other:?}"),
    }
    schema.features.clear();
    match client.bind(&schema) {
        Err(PortError::Refused { refusal, .. }) => assert_eq!(refusal.status, Status::Malformed),
        other => panic!("refused, not {other:?}"),
    }
    // The connection goes on after a refusal.
    schema.features = Schema::side_by_side(8, features).0.features;
    assert_eq!(client.bind(&schema).expect("bound"), 3);
}

/// A region can be used at once when `register` returns, on every lane; numbers are used again.
pub fn regions_come_and_go<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let mut client = bench.client("regions", 4);
    for round in 0..40 {
        let region = client.register(4096 << (round % 4)).expect("a region");
        assert!(region.0 < MAX_REGIONS);
        for lane in [1, 0] {
            let record = bench.ask(&mut client, lane, &fill(region));
            assert_eq!(record.status, Status::Ok, "round {round}, lane {lane}");
        }
        client.unregister(region).expect("unregistered");
        assert!(client.memory(region).is_none());
    }
}

/// A region above the server's bound is refused, and the connection goes on.
pub fn region_too_large<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("large", 4);
    match client.register((16 << 20) + 1) {
        Err(PortError::Refused { refusal, .. }) => {
            assert_eq!(refusal.status, Status::RegionRefused);
        }
        other => panic!("refused, not {other:?}"),
    }
    let region = client.register(16 << 20).expect("a region of the bound");
    assert_eq!(bench.ask(&mut client, 0, &fill(region)).status, Status::Ok);
}

/// One region more than the bound is refused; after giving one up there is room again.
pub fn too_many_regions<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("regions", 4);
    let regions: Vec<RegionId> = (0..MAX_REGIONS)
        .map(|_| client.register(4096).expect("a region"))
        .collect();
    match client.register(4096) {
        Err(PortError::Refused { refusal, .. }) => {
            assert_eq!(refusal.status, Status::LimitReached);
        }
        other => panic!("refused, not {other:?}"),
    }
    client.unregister(regions[3]).expect("unregistered");
    let region = client.register(4096).expect("room again");
    for region in [regions[0], regions[15], region] {
        assert_eq!(bench.ask(&mut client, 0, &fill(region)).status, Status::Ok);
    }
}

/// `unregister` returns only after every worker has acknowledged, and nothing reaches the region later.
pub fn unregister_ends_access<H: Harness>() {
    let mut bench = Bench::<H>::start(3);
    let mut client = bench.client("unregister", 4);
    let conn = ConnId(0);
    for _ in 0..10 {
        let region = client.register(4096).expect("a region");
        let gone = Entry::Acknowledged(Event::RegionGone { conn, region });
        let before: Vec<usize> = bench
            .journals
            .iter()
            .map(|j| j.count(|e| *e == gone))
            .collect();
        client.unregister(region).expect("unregistered");
        for lane in 0..3u16 {
            let journal = bench.journals[usize::from(lane)].clone();
            let wanted = before[usize::from(lane)] + 1;
            // The worker writes its entry just after the poll that acknowledges.
            bench.until("the worker's entry", || {
                journal.count(|e| *e == gone) == wanted
            });
            let record = bench.ask(&mut client, lane, &fill(region));
            assert_eq!(record.status, Status::UnknownRegion);
        }
    }
    match client.unregister(RegionId(3)) {
        Err(PortError::Refused { refusal, .. }) => {
            assert_eq!(refusal.status, Status::UnknownRegion);
        }
        other => panic!("refused, not {other:?}"),
    }
}

/// A client that vanishes with requests in flight is detached everywhere, and its number used again.
pub fn client_drop_detaches<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    for round in 1..=10 {
        let mut client = bench.client("brief", 4);
        let region = client.register(4096).expect("a region");
        client.submit(0, 0, &Task::Hold.frame()).expect("open");
        client.submit(1, 3, &fill(region).frame()).expect("open");
        drop(client);
        let answers = bench.answers.clone();
        bench.until("the end of the connection", || {
            answers.gone().len() == round
        });
        for journal in bench.journals.clone() {
            let ended = Entry::Acknowledged(Event::Detached {
                conn: *answers.gone().last().expect("one is gone"),
            });
            bench.until("the worker's entry", || journal.has(ended));
        }
    }
}

/// A client that closes its end is detached everywhere, though it lives on; every call of it says closed, and its memory stays.
pub fn client_close_detaches<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let mut client = bench.client("closing", 4);
    let region = client.register(4096).expect("a region");
    assert_eq!(bench.ask(&mut client, 0, &fill(region)).status, Status::Ok);
    let mut before = [0; 64];
    let memory = client.memory(region).expect("registered");
    memory.read(0, &mut before);
    client.submit(1, 3, &Task::Hold.frame()).expect("open");
    client.close();
    for lane in 0..2 {
        bench.closed(&mut client, lane);
    }
    client.close();
    let closed = |outcome| matches!(outcome, Err(PortError::Closed));
    assert!(closed(client.submit(0, 0, &Task::Echo.frame())));
    assert!(closed(client.cancel(1, 3)));
    assert!(closed(client.register(4096).map(drop)));
    assert!(closed(client.tables().map(drop)));
    let waited = client.wait(Some(core::time::Duration::from_millis(1)));
    assert!(waited.is_ok() || closed(waited));
    let answers = bench.answers.clone();
    bench.until("the end of the connection", || answers.gone().len() == 1);
    let mut after = [0; 64];
    let memory = client.memory(region).expect("registered");
    memory.read(0, &mut after);
    assert_eq!(before, after);
}

/// One client more than the bound is refused with the reason; when one leaves there is room again.
pub fn connection_limit<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut clients: Vec<_> = (0..4).map(|i| bench.client(&format!("c{i}"), 2)).collect();
    match bench.harness.connect("late", 2) {
        Err(PortError::Refused { refusal, detail }) => {
            assert_eq!(refusal.status, Status::LimitReached);
            assert!(detail.contains('4'), "the bound is named: {detail}");
        }
        Err(other) => panic!("refused, not {other}"),
        Ok(_) => panic!("refused, not connected"),
    }
    for client in &mut clients {
        assert_eq!(bench.ask(client, 0, &Task::Echo).status, Status::Ok);
    }
    drop(clients.swap_remove(1));
    let answers = bench.answers.clone();
    bench.until("the end of the connection", || answers.gone().len() == 1);
    let mut late = bench.client("late", 2);
    assert_eq!(bench.ask(&mut late, 0, &Task::Echo).status, Status::Ok);
}

/// When the dataplane ends, records that were placed are still read, then every call says closed.
pub fn server_gone<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let mut client = bench.client("left", 4);
    client.submit(0, 1, &Task::Echo.frame()).expect("open");
    let journal = bench.journals[0].clone();
    bench.until("the request", || {
        journal.count(|e| matches!(e, Entry::Saw(Event::Request { .. }))) == 1
    });
    // The entry is written before the answer: give the worker time for that too.
    for _ in 0..20 {
        bench.harness.run();
    }
    bench.harness.stop_server();
    assert_eq!(bench.record(&mut client, 0).slot, 1);
    bench.closed(&mut client, 0);
    bench.closed(&mut client, 1);
    assert!(matches!(
        client.submit(0, 0, &Task::Echo.frame()),
        Err(PortError::Closed)
    ));
    assert!(matches!(client.cancel(0, 0), Err(PortError::Closed)));
    assert!(matches!(client.register(4096), Err(PortError::Closed)));
    assert!(client.tables().is_err());
    assert!(bench.harness.connect("late", 1).is_err());
}

/// A worker can cut a connection off; the others stay.
pub fn worker_cuts_off<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let mut client = bench.client("cut", 4);
    let mut other = bench.client("other", 4);
    let task = Task::Close(Status::Unavailable);
    client.submit(1, 0, &task.frame()).expect("open");
    for lane in 0..2 {
        bench.closed(&mut client, lane);
    }
    let answers = bench.answers.clone();
    bench.until("the end of the connection", || answers.gone().len() == 1);
    for lane in 0..2 {
        assert_eq!(bench.ask(&mut other, lane, &Task::Echo).status, Status::Ok);
    }
}

/// Region numbers of one client mean nothing to another.
pub fn two_clients_apart<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut first = bench.client("first", 4);
    let mut second = bench.client("second", 4);
    let mine = first.register(4096).expect("a region");
    let record = bench.ask(&mut second, 0, &fill(mine));
    assert_eq!(record.status, Status::UnknownRegion);
    let theirs = second.register(4096).expect("a region");
    assert_eq!(bench.ask(&mut second, 0, &fill(theirs)).status, Status::Ok);
    let mut bytes = vec![1; 4096];
    first.memory(mine).expect("registered").read(0, &mut bytes);
    assert!(
        bytes.iter().all(|&b| b == 0),
        "nothing reached the other's region"
    );
    drop(second);
    let answers = bench.answers.clone();
    bench.until("the end of the connection", || answers.gone().len() == 1);
    assert_eq!(bench.ask(&mut first, 0, &fill(mine)).status, Status::Ok);
}

/// While several clients have requests waiting, each gets its turn before any gets a second one.
pub fn poll_is_fair<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut clients: Vec<_> = (0..3).map(|i| bench.client(&format!("f{i}"), 16)).collect();
    let journal = bench.journals[0].clone();
    bench.until("all attached", || {
        journal.count(|e| matches!(e, Entry::Saw(Event::Attached { .. }))) == 3
    });
    journal.pause(true);
    for _ in 0..20 {
        bench.harness.run();
    }
    for client in &mut clients {
        for slot in 0..16 {
            client.submit(0, slot, &Task::Echo.frame()).expect("open");
        }
    }
    // Ports with a delay deliver all of it before the worker looks again.
    for _ in 0..100 {
        bench.harness.run();
    }
    journal.pause(false);
    for client in &mut clients {
        for _ in 0..16 {
            bench.record(client, 0);
        }
    }
    let order: Vec<u32> = journal
        .entries()
        .iter()
        .filter_map(|entry| match entry {
            Entry::Saw(Event::Request { conn, .. }) => Some(conn.0),
            _ => None,
        })
        .collect();
    assert_eq!(order.len(), 48);
    for turn in order.chunks(3) {
        let mut once = turn.to_vec();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), 3, "each client once in a round: {order:?}");
    }
}

/// Whoever breaks the protocol is cut off; nobody else notices.
pub fn violations_cut_only_the_violator<H: Harness>() {
    let mut bench = Bench::<H>::start(2);
    let mut honest = bench.client("honest", 4);
    for (round, violation) in Violation::ALL.into_iter().enumerate() {
        let mut hostile = bench.client("hostile", 4);
        assert_eq!(bench.ask(&mut hostile, 1, &Task::Echo).status, Status::Ok);
        if !bench.harness.violate(&mut hostile, 1, violation) {
            continue;
        }
        for lane in 0..2 {
            bench.closed(&mut hostile, lane);
        }
        let answers = bench.answers.clone();
        bench.until("the end of the connection", || {
            answers.gone().len() == round + 1
        });
        for lane in 0..2 {
            let record = bench.ask(&mut honest, lane, &Task::Echo);
            assert_eq!(record.status, Status::Ok, "after {violation:?}");
        }
    }
}

fn fill(region: RegionId) -> Task {
    Task::Fill {
        region: region.0,
        offset: 0,
        len: 4096,
        seed: 9,
        slices: 1,
    }
}
