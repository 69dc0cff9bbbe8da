//! Those who are told of slices while nobody waits.

use std::sync::{Arc, Mutex};

use rowmill_wire::CompletionKind;

use super::bells::until_parked;
use super::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Told {
    Part(u32, u32, u32, u32),
    Slice(u32, u32, u32, u32),
    End(Result<(), Failure>),
}

/// Writes down what it is told.
#[derive(Default)]
struct Diary(Mutex<Vec<Told>>);

impl Diary {
    fn write(&self, told: Told) {
        self.0.lock().expect("no panic").push(told);
    }

    fn told(&self) -> Vec<Told> {
        self.0.lock().expect("no panic").clone()
    }

    fn until(&self, entries: usize) -> Vec<Told> {
        let since = Instant::now();
        while self.told().len() < entries {
            assert!(since.elapsed() < LONG / 2, "told too little");
            thread::yield_now();
        }
        self.told()
    }
}

impl Watcher for Diary {
    fn part(&self, part: Part) {
        let Part {
            number,
            first_bag,
            bags,
            slices,
        } = part;
        self.write(Told::Part(number, first_bag, bags, slices));
    }

    fn slice(&self, slice: Slice) {
        let Slice {
            part,
            number,
            first_bag,
            bags,
            ..
        } = slice;
        self.write(Told::Slice(part, number, first_bag, bags));
    }

    fn end(&self, outcome: Result<(), Failure>) {
        self.write(Told::End(outcome));
    }
}

/// Sends ten bags in two parts of five, in slices of two.
fn watched(hub: &TestHub, schema: &BoundSchema) -> (Arc<Diary>, Pending<StandIn>) {
    let diary = Arc::new(Diary::default());
    let options = RequestOptions {
        slice_bags: 2,
        ..RequestOptions::default()
    };
    let watcher = Arc::clone(&diary) as Arc<dyn Watcher>;
    let ids: Vec<u32> = (0..10).collect();
    let sent = hub.submit_watched(schema, &ask(&ids), Place::Pool, &options, watcher);
    (diary, sent.expect("sent"))
}

const PARTS: [Told; 2] = [Told::Part(0, 0, 5, 3), Told::Part(1, 5, 5, 3)];

#[test]
fn slices_are_told_as_they_come_and_the_end_after_them() {
    let hub = hub(4, sleepy(), HubOptions::default());
    let schema = bind(&hub);
    let (diary, pending) = watched(&hub, &schema);
    assert_eq!(diary.told(), PARTS);
    until_asleep(&hub);
    with_port(&hub, |port| port.announce(1, CompletionKind::Slice, 0));
    assert_eq!(diary.until(3)[2..], [Told::Slice(1, 0, 5, 2)]);
    with_port(&hub, |port| {
        port.announce(0, CompletionKind::Slice, 0);
        port.announce(1, CompletionKind::Slice, 1);
    });
    let mut both = diary.until(5)[3..].to_vec();
    both.sort_by_key(|told| matches!(told, Told::Slice(1, ..)));
    assert_eq!(both, [Told::Slice(0, 0, 0, 2), Told::Slice(1, 1, 7, 2)]);
    // A final record stands for all slices of its part.
    with_port(&hub, |port| port.answer(1, Refusal::whole(Status::Ok)));
    assert_eq!(diary.until(6)[5..], [Told::Slice(1, 2, 9, 1)]);
    with_port(&hub, |port| port.answer_all(Status::Ok));
    let last = [
        Told::Slice(0, 1, 2, 2),
        Told::Slice(0, 2, 4, 1),
        Told::End(Ok(())),
    ];
    assert_eq!(diary.until(9)[6..], last);
    until_parked(&hub);
    let reply = pending.wait(Wait::Block).expect("answered");
    let ids: Vec<u32> = (0..10).collect();
    assert_answers(&reply, &schema, &ids);
    assert_eq!(diary.told().len(), 9);
    assert_eq!(Arc::strong_count(&diary), 1, "the watcher is let go");
}

#[test]
fn every_end_is_told_once() {
    let gone = Err(Failure::Disconnected);
    let busy = Refusal::whole(Status::Busy);
    for (how, outcome) in [
        ("refused", Err(Failure::Refused(busy))),
        ("dropped", Ok(())),
        ("closed", gone),
        ("ended", gone),
        ("nonsense", gone),
        ("left", gone),
    ] {
        let hub = hub(4, sleepy(), HubOptions::default());
        let schema = bind(&hub);
        let (diary, pending) = watched(&hub, &schema);
        until_asleep(&hub);
        let mut pending = Some(pending);
        let mut hub = Some(hub);
        let open = hub.as_ref().expect("still there");
        match how {
            "refused" => with_port(open, |port| {
                port.answer(1, busy);
                port.answer_all(Status::Ok);
            }),
            "dropped" => {
                drop(pending.take());
                with_port(open, |port| port.answer_all(Status::Ok));
            }
            "closed" => open.close(),
            "ended" => with_port(open, |port| port.closed = true),
            "nonsense" => with_port(open, |port| {
                let good = port.announce(0, CompletionKind::Slice, 0);
                let bad = rowmill_wire::Completion { slot: 99, ..good };
                port.inject(0, bad);
            }),
            _ => {
                drop(hub.take());
                drop(pending.take());
            }
        }
        let since = Instant::now();
        while !matches!(diary.told().last(), Some(Told::End(_))) {
            assert!(since.elapsed() < LONG / 2, "{how}: not told");
            thread::yield_now();
        }
        drop((hub, pending));
        let told = diary.told();
        assert_eq!(told[..2], PARTS, "{how}");
        assert_eq!(told.last(), Some(&Told::End(outcome)), "{how}");
        let ends = told.iter().filter(|told| matches!(told, Told::End(_)));
        assert_eq!(ends.count(), 1, "{how}");
        assert_eq!(Arc::strong_count(&diary), 1, "{how}: the watcher is let go");
    }
}

#[test]
fn a_watcher_of_what_was_not_sent_is_told_nothing() {
    let hub = hub(1, Backoff::default(), HubOptions::default());
    let schema = bind(&hub);
    let in_flight = watched(&hub, &schema);
    let diary = Arc::new(Diary::default());
    let watcher = Arc::clone(&diary) as Arc<dyn Watcher>;
    let options = RequestOptions::default();
    let sent = hub.submit_watched(&schema, &ask(&[1, 2]), Place::Pool, &options, watcher);
    assert!(matches!(sent, Err(ClientError::NoCredit)));
    assert_eq!(diary.told(), []);
    drop(in_flight);
}
