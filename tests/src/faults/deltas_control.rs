//! Deltas by way of the control plane: it is killed, who follows it is, the server of a stream is that they come by, and others were applied
//! than it has kept.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;

use super::Verdict;
use super::control::{control_plane_and, kill, says};
use super::deltas::{Looker, applied, apply, delta, delta_of, does_locally, settings};
use super::operator;
use super::site::{Running, Service, Settings, Site, patience, until};
use super::watch::{after, beside_an_innocent};

/// The control plane, with a log of deltas.
pub(super) fn keeping(site: &Site) -> Result<Running> {
    keeping_from(site, "")
}

/// The same, with more in its section of deltas.
pub(super) fn keeping_from(site: &Site, more: &str) -> Result<Running> {
    let directory = site.path("log");
    control_plane_and(
        site,
        &format!("[deltas]\ndirectory = \"{}\"\n{more}", directory.display()),
    )
}

/// Settings of a service that takes deltas, also from the control plane.
pub(super) fn following(site: &Site) -> Result<Settings> {
    Ok(operator::following(site, settings(site)?))
}

/// Runs `rowmill delta publish`. Returns whether it ended well, and what it said.
pub(super) fn publish(site: &Site, file: &Path) -> Result<(bool, String)> {
    let file = file.to_str().context("a path in UTF-8")?;
    operator::wishes(site, &["delta", "publish", file])
}

/// The same, not waited for.
fn giving(site: &Site, file: &Path) -> Result<Running> {
    let mut giving = site.programs.leashed("rowmill");
    giving.args(["delta", "publish"]).arg(file);
    giving.args(["--control", &operator::address(site)]);
    giving.stdin(Stdio::null()).stdout(Stdio::null());
    giving.stderr(Stdio::null());
    Ok(Running(giving.spawn().context("starting rowmill")?))
}

pub(super) fn until_applied(service: &Service, sequence: u64) -> Result<()> {
    let is_so = until(2 * patience(), || {
        applied(service).is_ok_and(|last| last >= sequence)
    });
    let page = || service.status().map(|page| page["control"].to_string());
    is_so.with_context(|| format!("delta {sequence} does not come: {:?}", page()))
}

/// Gives one half of a delta, and waits until the control plane has all of that in its draft; who gives it holds the rest back.
fn give_half(site: &Site, file: &Path) -> Result<UnixStream> {
    let whole = fs::read(file).context("the delta")?;
    let half = &whole[..whole.len() / 2];
    let mut stream = UnixStream::connect(site.path("control.sock")).context("it listens")?;
    let length = whole.len();
    write!(
        stream,
        "POST /v1/deltas HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n"
    )?;
    stream.write_all(half).context("half a delta")?;
    let came = || fs::metadata(site.path(DRAFT)).map(|draft| draft.len());
    until(patience(), || {
        came().is_ok_and(|came| came == half.len() as u64)
    })
    .with_context(|| format!("the draft has {:?} of {} bytes", came(), half.len()))?;
    Ok(stream)
}

/// What the control plane writes a delta to that it is given.
const DRAFT: &str = "log/incoming.tmp";

/// The control plane is killed while it is given deltas, and is back; the dataplane that follows it applies what was kept, each once. It is killed
/// in the middle of every other one for certain, since the rest is held back, and of the others a while after they were begun.
pub(super) fn control_killed(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    const DELTAS: u64 = 6;
    let mut running = keeping(site)?;
    beside_an_innocent(site, &following(site)?, |scene| {
        let service = &*scene.service;
        let mut looker = Looker::new(site, &service.endpoint)?;
        let (acknowledged, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let (requests, mixed) = thread::scope(|scope| {
            let watching = scope.spawn(|| looker.watch(0, &acknowledged, &ended));
            let give = |running: &mut Running, sequence: u64| -> Result<()> {
                let file = delta(site, "faults", sequence)?;
                let is_half = sequence.is_multiple_of(2);
                if is_half {
                    let _held_back = give_half(site, &file)?;
                    kill(running)?;
                    ensure!(site.path(DRAFT).exists(), "what had come is gone");
                    let last = applied(service)?;
                    ensure!(last < sequence, "delta {last} is applied of a half");
                } else {
                    let mut giving = giving(site, &file)?;
                    thread::sleep(Duration::from_millis(3 * sequence));
                    kill(running)?;
                    giving.end(patience()).context("it waits for ever")?;
                }
                *running = keeping(site)?;
                let mut said = String::new();
                let is_taken = until(patience(), || {
                    let given = publish(site, &file);
                    given.is_ok_and(|(is_done, answer)| {
                        said = answer;
                        is_done
                    })
                });
                is_taken.with_context(|| format!("delta {sequence} is not taken: {said}"))?;
                let is_new = !said.contains("was kept before");
                ensure!(is_new || !is_half, "half of it was kept: {said}");
                let (_, said) = publish(site, &file)?;
                ensure!(said.contains("was kept before"), "{said}");
                until_applied(service, sequence)
            };
            let all = (1..=DELTAS).try_for_each(|sequence| {
                give(&mut running, sequence)?;
                acknowledged.store(sequence, Ordering::SeqCst);
                Ok(())
            });
            ended.store(true, Ordering::Relaxed);
            let seen = watching.join().expect("it does not panic");
            all.and(seen)
        })?;
        looker.all_are(DELTAS)?;
        drop(looker);
        // What is held is compared, once all connections are there again.
        says(service, "connected", |control| {
            control["connected"] == true && control["deltas"] == "fetched"
        })?;
        Ok(format!(
            "killed {DELTAS} times, half of them amid a delta; all {DELTAS} applied; {requests} requests, {mixed} of them with old and new rows"
        ))
    })
}

/// The dataplane is killed while it comes to what the control plane has kept, again and again: it goes on from where it was.
pub(super) fn follower_killed(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    const DELTAS: u64 = 12;
    let _running = keeping(site)?;
    let (settings, tables) = (following(site)?, site.tables()?);
    let file = delta(site, "faults", 1)?;
    until(patience(), || {
        publish(site, &file).is_ok_and(|(is_done, _)| is_done)
    })
    .context("the first delta is not taken")?;
    for sequence in 2..=DELTAS {
        let (is_done, said) = publish(site, &delta(site, "faults", sequence)?)?;
        ensure!(is_done, "{said}");
    }
    let mut found = Vec::new();
    for after_ms in [0, 50, 400, 1100] {
        let mut service = site.start(&settings)?;
        let there = applied(&service)?;
        ensure!(
            found.last().is_none_or(|last| *last <= there),
            "{there} after {found:?}"
        );
        found.push(there);
        thread::sleep(Duration::from_millis(after_ms));
        service.process().signal(Signal::KILL)?;
        ensure!(service.process().end(patience()).is_some(), "it was killed");
    }
    let mut service = site.start(&settings)?;
    until_applied(&service, DELTAS)?;
    let mut looker = Looker::new(site, &service.endpoint)?;
    looker.all_are(DELTAS)?;
    drop(looker);
    after(&mut service, &tables)?;
    Ok(Verdict::Pass(format!(
        "at its starts it had {found:?}, and then all {DELTAS}"
    )))
}

/// An operator applies other deltas on the host than the control plane keeps under their numbers, more of them and then fewer: both sides tell
/// it, nothing comes after them, and serving goes on.
pub(super) fn diverged(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    const LOOKS: u64 = 30;
    let _running = keeping(site)?;
    beside_an_innocent(site, &following(site)?, |scene| {
        let service = &*scene.service;
        let (first, second) = (delta(site, "faults", 1)?, delta(site, "faults", 2)?);
        let (is_done, said) = apply(site, service, &first)?;
        ensure!(!is_done && said.contains("--local"), "{said}");
        // Nothing is kept there, so that these are the first anywhere.
        does_locally(site, service, &first)?;
        does_locally(site, service, &second)?;
        let gives = |file: &Path| -> Result<()> {
            let (is_done, said) = publish(site, file)?;
            ensure!(is_done, "{said}");
            Ok(())
        };
        let tells = |what: &str| -> Result<()> {
            says(service, what, |control| {
                let deltas = control["deltas"].as_str().unwrap_or_default();
                deltas.contains(what)
            })?;
            for words in [["delta", "log"], ["status", "control"]] {
                let (_, said) = operator::wishes(site, &words)?;
                ensure!(said.contains(what), "{words:?}: {said}");
            }
            Ok(())
        };
        gives(&delta_of(site, &site.path("other.delta"), "faults", 1, 5)?)?;
        tells("and 1 are kept here")?;
        gives(&second)?;
        gives(&delta(site, "faults", 3)?)?;
        tells("has applied other deltas")?;
        let mut looker = Looker::new(site, &service.endpoint)?;
        for _ in 0..LOOKS {
            ensure!(applied(service)? == 2, "another one is applied");
            thread::sleep(Duration::from_millis(100));
        }
        looker.all_are(2)?;
        Ok("told on both sides, and nothing came after them".into())
    })
}

/// Redis, on a socket, which keeps all that it acknowledges.
pub(super) fn redis(site: &Site) -> Result<Running> {
    let socket = site.path("redis.sock");
    let socket_text = socket.to_str().context("a path in UTF-8")?;
    let folder = site.path("redis");
    fs::create_dir_all(&folder).context("a folder")?;
    // Debian has the server's program in redis-tools by this name; what it does, its own name says.
    let server = "exec -a redis-server redis-check-rdb \"$@\"";
    let mut command = site.programs.leashed("/bin/bash");
    command.args(["-c", server, "bash", "--port", "0", "--save", ""]);
    command.args(["--appendonly", "yes", "--appendfsync", "always"]);
    command
        .args(["--unixsocket", socket_text, "--dir"])
        .arg(folder);
    let log = fs::File::create(site.path("redis.log")).context("a log")?;
    command.stdin(Stdio::null()).stdout(log);
    let child = Running(command.spawn().context("starting redis-server")?);
    until(patience(), || UnixStream::connect(&socket).is_ok())
        .context("redis-server does not start")?;
    Ok(child)
}

/// Has `redis-cli` add a delta to the stream.
pub(super) fn adding(site: &Site, file: &Path) -> Result<Running> {
    let socket = site.path("redis.sock");
    let mut adding = site.programs.leashed("/usr/bin/env");
    adding.arg("redis-cli").arg("-e").arg("-s").arg(socket);
    adding.args(["-x", "XADD", "rowmill:deltas", "*", "delta"]);
    adding.stdin(fs::File::open(file).context("the delta")?);
    adding.stdout(Stdio::null()).stderr(Stdio::null());
    Ok(Running(adding.spawn().context("starting redis-cli")?))
}

/// The server of the stream is killed while it is given deltas, and while they are read; sometimes the control plane, too. Both are back, and each
/// delta is applied once.
pub(super) fn stream_killed(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    const DELTAS: u64 = 8;
    let mut server = redis(site)?;
    let socket = site.path("redis.sock");
    let from = format!("redis = {{ url = \"unix://{}\" }}\n", socket.display());
    let mut running = keeping_from(site, &from)?;
    beside_an_innocent(site, &following(site)?, |scene| {
        let service = &*scene.service;
        let mut looker = Looker::new(site, &service.endpoint)?;
        let (acknowledged, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut again = 0;
        let (requests, mixed) = thread::scope(|scope| {
            let watching = scope.spawn(|| looker.watch(0, &acknowledged, &ended));
            let mut give = |sequence: u64| -> Result<()> {
                let file = delta(site, "faults", sequence)?;
                let mut first = adding(site, &file)?;
                thread::sleep(Duration::from_millis(9 * (sequence - 1)));
                server.signal(Signal::KILL)?;
                server.end(patience()).context("it was killed")?;
                let is_there = first.end(patience()).context("it waits for ever")?;
                if sequence.is_multiple_of(3) {
                    running.signal(Signal::KILL)?;
                    running.end(patience()).context("it was killed")?;
                    running = keeping_from(site, &from)?;
                }
                server = redis(site)?;
                // What was acknowledged is in the stream; what was not may be, and then comes twice.
                if !is_there.success() {
                    again += 1;
                    let mut second = adding(site, &file)?;
                    let status = second.end(patience()).context("it waits for ever")?;
                    ensure!(status.success(), "delta {sequence} is not taken by Redis");
                }
                until_applied(service, sequence)
            };
            let all = (1..=DELTAS).try_for_each(|sequence| {
                give(sequence)?;
                acknowledged.store(sequence, Ordering::SeqCst);
                Ok(())
            });
            ended.store(true, Ordering::Relaxed);
            let seen = watching.join().expect("it does not panic");
            all.and(seen)
        })?;
        looker.all_are(DELTAS)?;
        drop(looker);
        says(service, "connected", |control| {
            control["connected"] == true && control["deltas"] == "fetched"
        })?;
        let log = fs::read_to_string(site.path("control.log")).unwrap_or_default();
        if log.contains("is not taken") {
            bail!("an entry was passed by: {log}");
        }
        Ok(format!(
            "killed {DELTAS} times, {again} of them before it acknowledged; all {DELTAS} applied; {requests} requests, {mixed} of them with old and new rows"
        ))
    })
}
