//! Faults of the port over RDMA, on one machine: processes that die or stop, clients that take nothing or too much, memory
//! that is not what it was said to be.

use std::fmt;
use std::io::{BufRead, BufReader, Lines};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::{AnyPort, PortError};
use rowmill_port::rdma::RdmaClient;
use rowmill_port::{ClientPort, Lost};
use rowmill_wire::{CompletionKind, Immediate, Status};
use rustix::process::Signal;

use super::Verdict;
use super::clients::{Manner, VANISH};
use super::hostile::Hostile;
use super::patron::bound;
use super::site::{Running, Service, Site, patience, told_within};
use super::watch::{Scene, after, beside_an_innocent, holds_as, until_left};

/// How long a process is stopped: longer than the time without a sign of life after which the other side is given up.
fn stopped() -> Duration {
    bound() * 3 / 2
}

/// Waits for the connection's end, whatever records still come; what was lost, and after how long.
///
/// # Errors
/// If it does not come in time, or the port says something else.
pub(super) fn end_of(port: &mut AnyPort) -> Result<(Lost, Duration)> {
    let began = Instant::now();
    while began.elapsed() < told_within() {
        match port.poll(0) {
            Err(PortError::Lost { what }) => return Ok((what, began.elapsed())),
            Err(PortError::Closed) => bail!("it is closed, and nobody says why"),
            // Records of a breach make no sense to its own half, which is no matter here.
            Ok(_) | Err(PortError::Protocol(_)) => port.wait(Some(Duration::from_millis(5)))?,
            Err(other) => bail!("{other}"),
        }
    }
    bail!("still connected after {:?}", told_within())
}

/// How long it took, at most, from the cause of a client's end until it was told, and until nothing of it was held.
#[derive(Clone, Copy, Default)]
struct Took {
    told: Duration,
    free: Duration,
}

impl Took {
    fn max(self, other: Took) -> Took {
        Took {
            told: self.told.max(other.told),
            free: self.free.max(other.free),
        }
    }
}

impl fmt::Display for Took {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (told, free) = (ms(self.told), ms(self.free));
        write!(
            f,
            "told after at most {told}, nothing held after at most {free}"
        )
    }
}

/// That the dataplane cuts a client off, says why, and then holds nothing of it, though the client lets go of nothing;
/// how long that took from the cause.
///
/// # Errors
/// If it takes longer than [`told_within`], or another end comes.
fn is_cut_off(scene: &Scene<'_>, port: &mut AnyPort, why: Status, cause: Instant) -> Result<Took> {
    let (what, _) = end_of(port)?;
    let told = cause.elapsed();
    ensure!(told < told_within(), "told after {}", ms(told));
    ensure!(
        what == Lost::CutOff(why),
        "{what:?} instead of being cut off for {why:?}"
    );
    let free = told + scene.until_alone()?;
    Ok(Took { told, free })
}

fn raw(hostile: &mut Hostile) -> Result<&mut RdmaClient> {
    match hostile.raw() {
        AnyPort::Rdma(port) => Ok(port),
        AnyPort::Shm(_) => bail!("this fault is one of RDMA"),
    }
}

pub(super) fn ms(time: Duration) -> String {
    format!("{:.0} ms", time.as_secs_f64() * 1e3)
}

/// A client in a process of its own, and what it says.
struct Child {
    process: Running,
    said: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts one, and waits until it has done what it is to do.
    fn start(site: &Site, service: &Service, manner: Manner) -> Result<Child> {
        let mut command = site.programs.leashed("faults");
        command.arg(VANISH).arg(&service.endpoint);
        command.arg(site.model()?).arg(manner.word());
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut process = Running(child.context("starting a client")?);
        let stdout = process.0.stdout.take().context("its output")?;
        let mut child = Child {
            process,
            said: BufReader::new(stdout).lines(),
        };
        child.says()?;
        Ok(child)
    }

    /// Waits until it says something more.
    fn says(&mut self) -> Result<()> {
        let line = self.said.next().context("the client has ended")?;
        line.context("its output").map(drop)
    }
}

/// Clients are killed, idle and with results on their way.
pub(super) fn client_killed(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut longest = Duration::ZERO;
        for manner in [Manner::Idle, Manner::Floods, Manner::Idle, Manner::Asks] {
            let child = Child::start(site, scene.service, manner)?;
            let there = scene.service.holdings()?.clients.connections;
            ensure!(there == 2, "{there} clients, the innocent and this one");
            child.process.signal(Signal::KILL)?;
            longest = longest.max(scene.until_alone()?);
        }
        let longest = ms(longest);
        Ok(format!("4 killed, nothing held after at most {longest}"))
    })
}

/// A client is stopped in the middle of its results, and goes on: its host acknowledges for it meanwhile.
pub(super) fn client_stopped(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut child = Child::start(site, scene.service, Manner::Asks)?;
        for _ in 0..2 {
            child.process.signal(Signal::STOP)?;
            std::thread::sleep(stopped());
            let there = scene.service.holdings()?.clients.connections;
            ensure!(there == 2, "{there} clients while one is stopped");
            child.process.signal(Signal::CONT)?;
            // What it had said before it was stopped counts for nothing.
            for _ in 0..200 {
                child.says().context("after SIGCONT")?;
            }
        }
        Ok(format!("twice for {}", ms(stopped())))
    })
}

/// The service is killed while a client has nothing in flight.
pub(super) fn server_killed(site: &Site) -> Result<Verdict> {
    let tables = site.tables()?;
    let mut service = site.start(&site.settings()?)?;
    let mut hostile = Hostile::connect(&service.endpoint, &tables)?;
    hostile.is_served()?;
    service.process().signal(Signal::KILL)?;
    let (what, took) = end_of(hostile.raw())?;
    ensure!(
        matches!(what, Lost::Disconnected | Lost::TransportRetries),
        "{what:?} of a service that was killed"
    );
    let ended = service.process().end(bound());
    ended.context("it is still there")?;
    let mut service = site.start(&site.settings()?)?;
    after(&mut service, &tables)?;
    Ok(Verdict::Pass(format!("{what:?}, told after {}", ms(took))))
}

/// The service is stopped in the middle of results, and goes on when the client has long used its targets again.
pub(super) fn server_stopped(site: &Site) -> Result<Verdict> {
    let tables = site.tables()?;
    let mut service = site.start(&site.settings()?)?;
    let before = service.holdings()?;
    let (mut longest, mut kept) = (Duration::ZERO, Duration::ZERO);
    for in_flight in [false, true] {
        let mut hostile = Hostile::connect(&service.endpoint, &tables)?;
        hostile.is_served()?;
        if in_flight {
            begin_long(&mut hostile)?;
        }
        service.process().signal(Signal::STOP)?;
        let (what, took) = end_of(hostile.raw())?;
        ensure!(
            what == Lost::PeerSilent,
            "{what:?} of a service that is stopped"
        );
        longest = longest.max(took);
        // The targets are the client's own again, and hold something else.
        hostile.poison();
        service.process().signal(Signal::CONT)?;
        kept = kept.max(until_left(&service, &before.clients)?);
        std::thread::sleep(stopped());
        ensure!(
            hostile.is_unwritten(),
            "a target that is in use again was written to"
        );
        drop(hostile);
        after(&mut service, &tables)?;
    }
    holds_as(&service, &before)?;
    let (longest, kept) = (ms(longest), ms(kept));
    Ok(Verdict::Pass(format!(
        "PeerSilent, told after at most {longest}, nothing held {kept} after SIGCONT at most"
    )))
}

/// Fills lane 0 with long requests, and waits for the first slice of their results.
pub(super) fn begin_long(hostile: &mut Hostile) -> Result<()> {
    let long = hostile.long().with(|draft| draft.header.slice_bags = 2);
    let credits = hostile.raw().welcome().credits;
    for slot in 0..credits {
        hostile.submit(0, slot, &long.frame())?;
    }
    let first = hostile.record(0, patience())?;
    ensure!(first.kind == CompletionKind::Slice, "{first:?}");
    Ok(())
}

/// A client takes none of its completions: first for a while, then never again.
pub(super) fn never_reads(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let credits = hostile.raw().welcome().credits;
        let sliced = hostile.good().with(|draft| draft.header.slice_bags = 1);
        for slot in 0..credits {
            hostile.submit(0, slot, &sliced.frame())?;
        }
        // Nobody waits for it: others are served, and all of it is done.
        std::thread::sleep(stopped());
        after(scene.service, scene.tables)?;
        for _ in 0..2 * credits {
            let record = hostile.record(0, bound())?;
            ensure!(record.status == Status::Ok, "{record:?}");
        }
        // Then it posts no receive again: when those that it had are used up, its records find none.
        raw(&mut hostile)?.raw_withhold_receives(0);
        let receives = hostile.raw().welcome().completions;
        let good = hostile.good().frame();
        let (mut sent, mut cause) = (0, Instant::now());
        while sent <= receives {
            cause = Instant::now();
            if hostile.submit(0, 0, &good).is_err() || hostile.record(0, bound()).is_err() {
                break;
            }
            sent += 1;
        }
        ensure!(sent <= receives, "{sent} records for {receives} receives");
        let took = is_cut_off(scene, hostile.raw(), Status::Malformed, cause)?;
        Ok(format!("cut off after record {sent}, {took}"))
    })
}

/// Clients submit more than their credits allow.
pub(super) fn credits_exhausted(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut longest = Took::default();
        // All slots are taken, and one of them is used again.
        for _ in 0..3 {
            let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
            begin_long(&mut hostile)?;
            let good = hostile.good().frame();
            let again = Immediate::Request {
                slot: 0,
                len: good.len() as u16,
            };
            let cause = Instant::now();
            raw(&mut hostile)?.raw_write(0, again.encode(), &good)?;
            let took = is_cut_off(scene, hostile.raw(), Status::Malformed, cause)?;
            longest = longest.max(took);
        }
        // Cancels of what is not there, which would take receives and give no credit back.
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let cancel = Immediate::Cancel { slot: 1 }.encode();
        let cause = Instant::now();
        let refused = loop {
            if let Err(error) = raw(&mut hostile)?.raw_write(0, cancel, &[]) {
                break error;
            }
            ensure!(cause.elapsed() < told_within(), "cancels without end");
        };
        let told = cause.elapsed();
        let cut_off = PortError::Lost {
            what: Lost::CutOff(Status::Malformed),
        };
        ensure!(
            refused.to_string() == cut_off.to_string(),
            "{refused} for cancels of nothing"
        );
        let free = told + scene.until_alone()?;
        let cancels = Took { told, free };
        Ok(format!(
            "slots used again 3 times: {longest}; cancels: {cancels}"
        ))
    })
}

/// A client registers memory by a key that is none.
pub(super) fn wrong_key(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut longest = Took::default();
        for is_target in [true, false] {
            let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
            let bytes = super::hostile::SOURCE_BYTES;
            let region = raw(&mut hostile)?.raw_register(bytes, 0x7000_0000_0000, 0x1234_5678)?;
            let frame = hostile.good_in_region().with(|draft| match is_target {
                true => draft.header.target_region = region.0,
                false => draft.reads_from(region),
            });
            let cause = Instant::now();
            hostile.submit(0, 0, &frame.frame())?;
            let took = is_cut_off(scene, hostile.raw(), Status::RegionLost, cause)?;
            longest = longest.max(took);
        }
        Ok(format!("target and source, {longest}"))
    })
}

/// A client takes its memory away from the device while the service writes to it and reads from it.
pub(super) fn deregistered(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut longest = Took::default();
        for is_target in [true, false] {
            let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
            let region = [hostile.source, hostile.target][usize::from(is_target)];
            if is_target {
                // Under way, as the first slice shows.
                begin_long(&mut hostile)?;
            }
            let cause = Instant::now();
            ensure!(raw(&mut hostile)?.raw_deregister(region), "its region");
            if !is_target {
                let long = hostile.long().frame();
                hostile.submit(0, 0, &long)?;
            }
            let took = is_cut_off(scene, hostile.raw(), Status::RegionLost, cause)?;
            longest = longest.max(took);
        }
        Ok(format!("target and source, {longest}"))
    })
}

/// Immediates, lengths and messages that no honest client sends on a lane.
pub(super) fn breaches(site: &Site) -> Result<Verdict> {
    let request = |slot, len| Immediate::Request { slot, len }.encode();
    let words: [(&str, u32, usize); 13] = [
        ("kind 0", 0, 16),
        ("kind 5", 0x5000_0001, 16),
        ("kind 15", u32::MAX, 16),
        ("a slice", 0x3000_0000, 16),
        ("a final", 0x4000_0000, 16),
        ("a frame of 0 bytes", request(0, 0), 0),
        ("a frame of 8193 bytes", request(0, 8193), 16),
        ("more bytes than it says", request(0, 16), 32),
        ("fewer bytes than it says", request(0, 16), 8),
        ("a slot that was not granted", request(6, 16), 16),
        ("the last slot there is", request(4095, 16), 16),
        (
            "a cancel of a slot that was not granted",
            Immediate::Cancel { slot: 6 }.encode(),
            0,
        ),
        (
            "a cancel with a frame",
            Immediate::Cancel { slot: 0 }.encode(),
            16,
        ),
    ];
    beside_an_innocent(site, &site.settings()?, |scene| {
        let endpoint = &scene.service.endpoint;
        let mut longest = Took::default();
        for (what, immediate, bytes) in words {
            let mut port = Hostile::port(endpoint)?;
            let AnyPort::Rdma(client) = &mut port else {
                bail!("this fault is one of RDMA")
            };
            let cause = Instant::now();
            client.raw_write(0, immediate, &vec![7; bytes])?;
            let took = is_cut_off(scene, &mut port, Status::Malformed, cause);
            longest = longest.max(took.context(what)?);
        }
        for bytes in [0, 64] {
            let mut hostile = Hostile::connect(endpoint, scene.tables)?;
            let cause = Instant::now();
            raw(&mut hostile)?.raw_send(1, &vec![7; bytes])?;
            let took = is_cut_off(scene, hostile.raw(), Status::Malformed, cause);
            longest = longest.max(took.context("a message")?);
        }
        let cases = words.len() + 2;
        Ok(format!("{cases} cases, {longest}"))
    })
}
