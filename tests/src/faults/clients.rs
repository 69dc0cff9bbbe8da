//! Clients that vanish, don't read, or break the rules of the rings.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rowmill_port::ClientPort;
use rowmill_port::shm::layout::SUBMISSION_TAIL;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Header};
use rowmill_wire::{Completion, CompletionKind, Immediate, Status};

use super::hostile::{Hostile, TARGET_BYTES, completions, is_cut_off, push, push_frame};
use super::patron::bound;
use super::site::{Running, Site, until};
use super::watch::beside_an_innocent;
use super::{Verdict, site};

/// The first argument of this program where it is to be the client that vanishes: see [`vanish`].
pub const VANISH: &str = "--vanish";

/// How many clients are killed, each a little later than the one before.
const VANISHED: u32 = 8;

/// What a client does until it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manner {
    /// Nothing.
    Idle,
    /// It has long requests in flight, on lane 0 as many as it may, and asks on lane 1 without comparing answers.
    Floods,
    /// It asks again and again and compares the answers, while another lane is as full as it may be; says so each time.
    Asks,
}

impl Manner {
    const ALL: [Manner; 3] = [Manner::Idle, Manner::Floods, Manner::Asks];

    /// What it is called on a command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            Manner::Idle => "idle",
            Manner::Floods => "floods",
            Manner::Asks => "asks",
        }
    }
}

/// A client that does as it is told until it is killed; says on standard output when it does.
///
/// # Errors
/// Where the service refuses it, or an answer is wrong.
pub fn vanish(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let mut word = || {
        arguments
            .next()
            .and_then(|a| a.into_string().ok())
            .context("an argument")
    };
    let (endpoint, model, manner) = (word()?, word()?, word()?);
    let manner = Manner::ALL.into_iter().find(|m| m.word() == manner);
    let generation = rowmill_table::Generation::open(model)?;
    let options = rowmill_table::LoadOptions { verify: false };
    let tables = generation.load(
        rowmill_arena::HugePages::Off,
        &rowmill_table::silent,
        options,
    )?;
    let mut hostile = Hostile::connect(&endpoint, &std::sync::Arc::new(tables))?;
    match manner.context("a manner")? {
        Manner::Idle => {
            println!("idle");
            loop {
                std::thread::park();
            }
        }
        Manner::Asks => return asks(&mut hostile),
        Manner::Floods => {}
    }
    let (long, good) = (hostile.long().frame(), hostile.good().frame());
    // Lane 0 is kept full of requests that take long, lane 1 busy with short ones.
    for slot in 0..hostile.raw().welcome().credits {
        hostile.submit(0, slot, &long)?;
    }
    println!("in flight");
    std::io::stdout().flush().context("saying so")?;
    loop {
        while let Some(record) = hostile.raw().poll(0)? {
            hostile.submit(0, record.slot, &long)?;
        }
        hostile.submit(1, 0, &good)?;
        hostile.record(1, bound())?;
    }
}

/// See [`Manner::Asks`].
fn asks(hostile: &mut Hostile) -> Result<()> {
    let aside = hostile
        .good()
        .with(|draft| draft.header.target_base = TARGET_BYTES / 2);
    let aside = aside.frame();
    for slot in 0..hostile.raw().welcome().credits {
        hostile.submit(1, slot, &aside)?;
    }
    loop {
        while let Some(record) = hostile.raw().poll(1)? {
            ensure!(record.status == Status::Ok, "{record:?}");
            hostile.submit(1, record.slot, &aside)?;
        }
        // It may be stopped at any time, and for a while.
        hostile.is_served_within(site::patience())?;
        println!("served");
    }
}

/// Clients are killed with requests in flight.
pub(super) fn vanishes(site: &Site) -> Result<Verdict> {
    let model = site.model()?;
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut longest = Duration::ZERO;
        for number in 0..VANISHED {
            let mut command = site.programs.leashed("faults");
            command.arg(VANISH).arg(&scene.service.endpoint).arg(&model);
            command.arg(Manner::Floods.word());
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
            let mut child = Running(child.context("starting a client")?);
            let mut said = String::new();
            let stdout = child.0.stdout.take().context("its output")?;
            BufReader::new(stdout)
                .read_line(&mut said)
                .context("its output")?;
            ensure!(said == "in flight\n", "the client said `{said}`");
            std::thread::sleep(Duration::from_millis(u64::from(number)));
            let there = |service: &site::Service| {
                Ok::<_, anyhow::Error>(service.holdings()?.clients.connections)
            };
            ensure!(
                there(scene.service)? == 2,
                "the innocent and the one that will vanish"
            );
            let began = Instant::now();
            child.signal(rustix::process::Signal::KILL)?;
            until(bound(), || there(scene.service).is_ok_and(|n| n == 1))
                .context("it is still shown")?;
            longest = longest.max(began.elapsed());
        }
        Ok(format!(
            "{VANISHED} killed, gone after at most {:.1} ms",
            longest.as_secs_f64() * 1e3
        ))
    })
}

/// A client uses its slots again and again as it may, and reads no status record.
pub(super) fn never_reads(site: &Site) -> Result<Verdict> {
    const ROUNDS: u32 = 2000;
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let frame = hostile.good().frame();
        let credits = u32::from(hostile.raw().welcome().credits);
        let lane = hostile.shm().raw_lane(0);
        let queue = lane.layout.completions();
        for round in 0..ROUNDS {
            for slot in 0..credits {
                push_frame(&lane, slot as u16, &frame);
            }
            let done = (round + 1) * credits;
            until(bound(), || completions(&lane) == done)
                .with_context(|| format!("round {round}"))?;
        }
        ensure!(
            ROUNDS * credits > 2 * queue,
            "the queue goes round more than once"
        );
        // The last record is where it belongs, written over older ones.
        let mut bytes = [0; rowmill_wire::completion::COMPLETION_BYTES];
        lane.window
            .read(lane.layout.completion(ROUNDS * credits - 1), &mut bytes);
        let last = Completion::parse(&bytes)?;
        ensure!(last.status == Status::Ok, "{last:?}");
        Ok(format!(
            "{} records in a queue of {queue}",
            ROUNDS * credits
        ))
    })
}

/// A slot is used again before its request has ended.
pub(super) fn slot_used_again(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        for _ in 0..5 {
            let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
            let long = hostile
                .long()
                .with(|draft| draft.header.slice_bags = 4)
                .frame();
            hostile.submit(0, 3, &long)?;
            // In progress, as its first slice shows.
            let first = hostile.record(0, bound())?;
            ensure!(first.kind == CompletionKind::Slice, "{first:?}");
            let good = hostile.good().frame();
            push_frame(&hostile.shm().raw_lane(0), 3, &good);
            hostile.is_cut_off()?;
        }
        scene
            .service
            .wait_for_log("cut an shm client off", bound())?;
        let counted = "rowmill_clients_cut_off_total 5\n";
        let pages = || scene.service.ask(b"GET /metrics HTTP/1.1\r\n\r\n");
        until(bound(), || pages().is_ok_and(|text| text.contains(counted)))
            .context("they are not counted")?;
        Ok("5 clients".into())
    })
}

/// Words and numbers in the rings that no honest client writes.
pub(super) fn breaches(site: &Site) -> Result<Verdict> {
    let request = |slot, len| Immediate::Request { slot, len }.encode();
    let words = [
        ("kind 0", 0),
        ("kind 5", 0x5000_0001),
        ("kind 15", u32::MAX),
        ("a slice", 0x3000_0000),
        ("a final", 0x4000_0000),
        ("a frame of 0 bytes", request(0, 0)),
        ("a frame of 8193 bytes", request(0, 8193)),
        ("a frame of 65535 bytes", request(0, u16::MAX)),
        ("a slot that was not granted", request(6, 208)),
        ("the last slot there is", request(4095, 208)),
        (
            "a cancel of a slot that was not granted",
            Immediate::Cancel { slot: 6 }.encode(),
        ),
        ("a cancel with a length", 0x2000_0001),
    ];
    beside_an_innocent(site, &site.settings()?, |scene| {
        let endpoint = &scene.service.endpoint;
        for (what, bits) in words {
            let mut port = Hostile::shm_port(endpoint)?;
            push(&port.raw_lane(0), bits);
            is_cut_off(&mut port).context(what)?;
        }
        let mut jumps = 0;
        for ahead in [1u32 << 31, u32::MAX, 1000] {
            let mut port = Hostile::shm_port(endpoint)?;
            let lane = port.raw_lane(0);
            lane.window.store_u32(SUBMISSION_TAIL, ahead);
            lane.ring();
            is_cut_off(&mut port).with_context(|| format!("{ahead} submissions at once"))?;
            jumps += 1;
        }
        cancels(endpoint)?;
        Ok(format!("{} cases", words.len() + jumps))
    })
}

/// Cancels of what is not there are no breach, as many as the queue holds.
fn cancels(endpoint: &str) -> Result<()> {
    let port = Hostile::shm_port(endpoint)?;
    let lane = port.raw_lane(0);
    let mut null = [0; SLOT_BYTES];
    let len = request::encode(&Header::null(1), &[], &[], &mut null)?;
    for round in 1..=100 {
        for _ in 1..lane.layout.submissions() {
            push(&lane, Immediate::Cancel { slot: 1 }.encode());
        }
        // Its answer shows that the worker has read them all.
        push_frame(&lane, 0, &null[..len]);
        until(bound(), || completions(&lane) == round).context("after cancels of nothing")?;
    }
    Ok(())
}
