//! Cases for ports whose workers and clients run on threads of their own.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rowmill_wire::{CompletionKind, Pooling, Schema, Status};

use super::{Answers, Bench, Harness, Patience, Task, fingerprint, pattern};
use crate::{ClientPort, PortError, Rest};

/// Several clients on several lanes, each checking that all bytes of a slice are there when its record is.
pub fn bytes_before_record<H: Harness>()
where
    H::Client: Send,
{
    const ROUNDS: u64 = 400;
    let mut bench = Bench::<H>::start(2);
    let clients: Vec<_> = (0..3).map(|i| bench.client(&format!("s{i}"), 4)).collect();
    thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let region = client.register(64 << 10).expect("a region");
                for round in 0..ROUNDS {
                    let lane = (round % 2) as u16;
                    let seed = round << 8 | number as u64;
                    check_slices(&mut client, lane, region, seed);
                }
            });
        }
    });
}

fn check_slices<C: ClientPort>(client: &mut C, lane: u16, region: crate::RegionId, seed: u64) {
    const SLICES: u16 = 4;
    let len = 1024 + (seed as usize % 15) * 4096;
    let mut wanted = vec![0; len];
    pattern(seed, &mut wanted);
    let task = Task::Fill {
        region: region.0,
        offset: 0,
        len: len as u64,
        seed,
        slices: SLICES,
    };
    client.submit(lane, 0, &task.frame()).expect("open");
    let mut stored = vec![0; len / usize::from(SLICES)];
    loop {
        let Some(record) = client.poll(lane).expect("open") else {
            thread::yield_now();
            continue;
        };
        assert_eq!((record.status, record.request), (Status::Ok, seed));
        let at = stored.len() * usize::from(record.slice);
        let window = client.memory(region).expect("registered");
        window.read(at, &mut stored);
        assert!(
            stored == wanted[at..at + stored.len()],
            "slice {} of {seed}",
            record.slice
        );
        if record.kind == CompletionKind::Final {
            return;
        }
    }
}

/// Clients that sleep between sending and reading, against workers that sleep when idle: a lost
/// wake-up would cost the whole limit of a wait, which is far more than is allowed here.
pub fn no_lost_wake_up<H: Harness>()
where
    H::Client: Send,
{
    const ROUNDS: u64 = 3000;
    let limit = Duration::from_secs(10);
    let mut bench = Bench::<H>::start(2);
    let clients: Vec<_> = (0..2).map(|i| bench.client(&format!("w{i}"), 2)).collect();
    thread::scope(|scope| {
        for (number, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let mut random = 0x9e37_79b9 + number as u64;
                for round in 0..ROUNDS {
                    random = next_random(random);
                    let lane = (random >> 40 & 1) as u16;
                    delay(random >> 48);
                    let frame = Task::echo(16, random);
                    client
                        .submit(lane, (round % 2) as u16, &frame)
                        .expect("open");
                    delay(random >> 56);
                    while client.poll(lane).expect("open").is_none() {
                        let since = Instant::now();
                        client.wait(Some(limit)).expect("a wait");
                        assert!(since.elapsed() < limit / 2, "a lost wake-up");
                    }
                }
            });
        }
    });
}

/// One thread of a client sleeps without the lock around it, while another one submits, and takes some of the records
/// itself: neither holds up the other, and no record is slept through.
pub fn a_sleeper_holds_up_nobody<H: Harness>()
where
    H::Client: Send,
{
    const ROUNDS: u64 = 3000;
    let limit = Duration::from_secs(10);
    let mut bench = Bench::<H>::start(2);
    let client = bench.client("shared", 2);
    let fds = client.wake_fds().try_to_owned().expect("descriptors");
    // The client, and the request in flight: the fingerprint of its frame.
    let shared = Mutex::new((client, 0));
    let take = |(client, asked): &mut (H::Client, u64)| {
        let record = (0..2).find_map(|lane| client.poll(lane).expect("open"))?;
        assert_eq!(record.request, *asked);
        *asked = 0;
        Some(record.request)
    };
    let last = fingerprint(&Task::echo(16, ROUNDS));
    let lock = || shared.lock().expect("no thread has panicked");
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let mut own = lock();
                if take(&mut own) == Some(last) {
                    return;
                }
                let rest = own.0.lie_down(Some(limit));
                drop(own);
                if let Rest::Quiet(most) = rest {
                    let since = Instant::now();
                    fds.sleep(most).expect("a sleep");
                    assert!(since.elapsed() < limit / 2, "a lost wake-up");
                    lock().0.get_up().expect("up");
                }
            }
        });
        let mut random = 0x9e37_79b9;
        for round in 1..=ROUNDS {
            random = next_random(random);
            let (lane, slot) = ((random >> 40 & 1) as u16, (round % 2) as u16);
            let frame = Task::echo(16, round);
            let mut own = lock();
            own.0.submit(lane, slot, &frame).expect("open");
            let asked = fingerprint(&frame);
            own.1 = asked;
            drop(own);
            let polls = random >> 32 & 1 == 0;
            let patience = Patience::new("a record, or who was to take it,");
            while lock().1 == asked && asked != last {
                patience.check();
                delay(random >> 48);
                if polls {
                    take(&mut lock());
                }
            }
        }
    });
}

/// The next number of a linear congruential generator (Knuth's MMIX).
fn next_random(random: u64) -> u64 {
    random
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1)
}

/// Nothing, a few turns, or a few tens of microseconds.
fn delay(random: u64) {
    match random % 8 {
        0..4 => (),
        4 | 5 => (0..random % 64).for_each(|_| std::hint::spin_loop()),
        6 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(random % 50)),
    }
}

/// Regions are given up while other clients keep the workers busy; no request of theirs fails.
pub fn unregister_under_load<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(2);
    let mut clients: Vec<_> = (0..2).map(|i| bench.client(&format!("u{i}"), 4)).collect();
    let mut leaving = bench.client("leaving", 4);
    thread::scope(|scope| {
        for mut client in clients.drain(..) {
            scope.spawn(move || {
                let region = client.register(64 << 10).expect("a region");
                for round in 0..400 {
                    check_slices(&mut client, (round % 2) as u16, region, round);
                }
            });
        }
        for _ in 0..50 {
            let region = leaving.register(8192).expect("a region");
            check_slices(&mut leaving, 0, region, 0);
            leaving.unregister(region).expect("unregistered");
        }
    });
}

/// A wait with nothing to come ends at its limit, not much before and not much later.
pub fn waits_end_in_time<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("idle", 1);
    let limit = Duration::from_millis(30);
    let since = Instant::now();
    while since.elapsed() < limit {
        client.wait(Some(limit)).expect("a wait");
        assert!(client.poll(0).expect("open").is_none());
    }
    assert!(since.elapsed() < Duration::from_secs(5));
    client.wait(Some(Duration::ZERO)).expect("a wait");
}

/// A client that sleeps learns that the dataplane has gone.
pub fn death_ends_a_wait<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("left", 1);
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            loop {
                match client.poll(0) {
                    Ok(_) => client.wait(None).expect("a wait"),
                    Err(error) => return error,
                }
            }
        });
        thread::sleep(Duration::from_millis(20));
        bench.harness.stop_server();
        let error = waiting.join().expect("no panic");
        assert!(matches!(error, PortError::Closed), "{error}");
    });
}

/// A schema that no worker takes in before the service says so.
fn held_schema() -> Schema {
    Schema::side_by_side(8, [("f", Answers::HELD, Pooling::Sum, 4)]).0
}

/// While workers have still to take one client's schema in, the others are answered.
pub fn a_bind_holds_up_nobody<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(2);
    let (mut binding, mut other) = (bench.client("binding", 1), bench.client("other", 1));
    let answers = bench.answers.clone();
    thread::scope(|scope| {
        // It is refused after a while, and on a slow machine the other one may not have come that far.
        let bound = scope.spawn(move || {
            loop {
                match binding.bind(&held_schema()) {
                    Ok(number) => return number,
                    Err(PortError::Refused { .. }) => (),
                    Err(other) => panic!("{other}"),
                }
            }
        });
        let mut was_answered = || {
            let ever = answers.held_ever();
            if answers.held() == 0 {
                return false;
            }
            let region = other.register(4096).expect("a region");
            other.tables().expect("tables");
            other.unregister(region).expect("unregistered");
            // Else the bind may have ended before.
            answers.held() == 1 && answers.held_ever() == ever
        };
        bench.until("answers while another client binds", &mut was_answered);
        answers.let_held_go();
        assert_eq!(bound.join().expect("no panic"), 1);
    });
    assert_eq!(answers.held(), 0);
}

/// A schema that workers don't take in is refused after a while, and the connection goes on.
pub fn a_bind_that_takes_too_long_is_refused<H: Harness>() {
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("bind", 1);
    match client.bind(&held_schema()) {
        Err(PortError::Refused { refusal, detail }) => {
            assert_eq!(refusal.status, Status::Internal);
            assert_eq!(detail, "a worker did not take the schema in within 2s");
        }
        other => panic!("refused, not {other:?}"),
    }
    assert_eq!(bench.answers.held(), 0, "it is abandoned");
    bench.answers.let_held_go();
    assert_eq!(client.bind(&held_schema()).expect("bound"), 1);
}

/// A connection that ends while it binds gets no schema.
pub fn an_end_abandons_a_bind<H: Harness>()
where
    H::Client: Send,
{
    let mut bench = Bench::<H>::start(1);
    let mut client = bench.client("ends", 1);
    let answers = bench.answers.clone();
    thread::scope(|scope| {
        let bound = scope.spawn(move || client.bind(&held_schema()));
        bench.until("a bind", || answers.held_ever() == 1);
        bench.harness.stop_server();
        let outcome = bound.join().expect("no panic");
        assert!(outcome.is_err(), "{outcome:?}");
    });
    assert_eq!(bench.answers.held(), 0);
}
