//! The service is asked to end, is killed, or is stopped and goes on.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::{ClientError, Wait};
use rowmill_wire::Status;
use rustix::process::Signal;
use serde_json::Value;

use super::Verdict;
use super::hostile::Hostile;
use super::patron::{Outcome, Patron, bound};
use super::site::{CREDITS, Service, Settings, Site, patience, until};
use super::watch::{bound_with, is_as_new};

/// SIGTERM while requests are in flight.
pub(super) fn terminated(site: &Site) -> Result<Verdict> {
    let tables = site.tables()?;
    let mut service = site.start(&site.settings()?)?;
    let mut hostile = Hostile::connect(&service.endpoint, &tables)?;
    let mut patron = Patron::connect(&service.endpoint, "patron", &tables)?;
    ensure!(patron.ask(bound())? == Outcome::Ok, "an answer before");
    let long = hostile.long().frame();
    for slot in 0..CREDITS {
        hostile.submit(0, slot, &long)?;
    }
    let in_progress = |status: Value| status["workers"][0]["in_progress"].as_u64() > Some(0);
    let is_taken = || service.status().is_ok_and(in_progress);
    until(bound(), is_taken).context("a request in progress")?;
    service.process().signal(Signal::TERM)?;
    service.wait_for_log("draining", bound())?;
    let began = Instant::now();
    // A worker takes the order before what comes after it.
    let mut refused = Outcome::Ok;
    while refused == Outcome::Ok && began.elapsed() < bound() {
        refused = patron.ask(bound())?;
    }
    let draining = [Outcome::Refused(Status::Draining), Outcome::Disconnected].contains(&refused);
    ensure!(draining, "{refused:?} for a new request");
    ensure!(
        Hostile::port(&service.endpoint).is_err(),
        "a new client gets in"
    );
    let mut finished = 0;
    for _ in 0..CREDITS {
        match hostile.record(0, patience())?.status {
            Status::Ok => finished += 1,
            // Those that the worker had not taken out of their slots by then.
            Status::Draining => {}
            other => bail!("{other} for a request in flight at SIGTERM"),
        }
    }
    ensure!(
        finished > 0,
        "none of the requests in progress was finished"
    );
    ensure!(hostile.long_is_right(), "the answers of requests in flight");
    let ended = service
        .process()
        .end(patience())
        .context("it does not end")?;
    ensure!(
        ended.code() == Some(0),
        "it ended with {ended}:\n{}",
        service.log()
    );
    ensure!(!site.path("r.sock").exists(), "its socket is still there");
    let took = began.elapsed().as_secs_f64();
    Ok(Verdict::Pass(format!(
        "{finished} of {CREDITS} in flight OK, new {refused:?}, ended after {took:.2} s"
    )))
}

/// SIGKILL while requests are in flight.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    killed_with(site, &site.settings()?)
}

/// As [`killed`], with these settings.
pub(super) fn killed_with(site: &Site, settings: &Settings) -> Result<Verdict> {
    let tables = site.tables()?;
    let mut service = site.start(settings)?;
    let mut hostile = Hostile::connect(&service.endpoint, &tables)?;
    let mut patron = Patron::connect(&service.endpoint, "patron", &tables)?;
    let limit = bound_with(settings);
    ensure!(patron.ask(limit)? == Outcome::Ok, "an answer before");
    for slot in 0..3 {
        hostile.submit(0, slot, &hostile.long().frame())?;
    }
    // Stopped first, so that the patron's request is in flight when the end comes.
    service.process().stop()?;
    let ticket = patron.send()?;
    let began = Instant::now();
    service.process().signal(Signal::KILL)?;
    let answer = patron.session().wait_for(ticket, Wait::Block, bound())?;
    let answer = answer.context("the client is not told")?;
    let told = began.elapsed();
    let outcome = patron.judge(answer)?;
    ensure!(
        outcome == Outcome::Disconnected,
        "{outcome:?} of a dead service"
    );
    hostile.is_cut_off()?;
    let again = patron.send();
    let closed = again
        .as_ref()
        .is_err_and(|e| e.to_string().contains("connect again"));
    ensure!(closed, "a request after the end: {again:?}");
    let ended = service
        .process()
        .end(bound())
        .context("it is still there")?;
    ensure!(ended.code().is_none(), "{ended}");
    // Whoever supervises it starts another: on the same endpoint, with the socket left behind.
    let began = Instant::now();
    let mut service = site.start(settings)?;
    is_as_new(&mut service, &tables, limit)?;
    Ok(Verdict::Pass(format!(
        "told after {:.1} ms, served again after {:.1} s",
        told.as_secs_f64() * 1e3,
        began.elapsed().as_secs_f64()
    )))
}

/// SIGSTOP and, later, SIGCONT: time alone gives no target back.
pub(super) fn stopped(site: &Site) -> Result<Verdict> {
    const STOPPED: Duration = Duration::from_millis(500);
    let tables = site.tables()?;
    let mut service = site.start(&site.settings()?)?;
    let mut patron = Patron::connect(&service.endpoint, "patron", &tables)?;
    ensure!(patron.ask(bound())? == Outcome::Ok, "an answer before");
    let mut longest = Duration::ZERO;
    for cancelled in [false, false, true] {
        service.process().signal(Signal::STOP)?;
        until(bound(), || state(&mut service) == Some('T')).context("it does not stop")?;
        let ticket = patron.send()?;
        let early = patron.session().wait_for(ticket, Wait::Block, STOPPED)?;
        ensure!(early.is_none(), "an answer of a stopped service");
        ensure!(patron.session().pending() == 1, "the request is in flight");
        let region = patron.region();
        let taken = patron.session().target_at(&region, 0, 4);
        let owned = matches!(taken, Err(ClientError::TargetInUse { .. }));
        ensure!(
            owned,
            "the target is free though the service may write to it: {taken:?}"
        );
        if cancelled {
            patron.session().cancel(ticket)?;
            let early = patron
                .session()
                .wait_for(ticket, Wait::Block, STOPPED / 10)?;
            ensure!(
                early.is_none(),
                "the end of a request by a cancel that nobody has read"
            );
        }
        let began = Instant::now();
        service.process().signal(Signal::CONT)?;
        let answer = patron.session().wait_for(ticket, Wait::Block, bound())?;
        let answer = answer.context("no answer after SIGCONT")?;
        longest = longest.max(began.elapsed());
        let outcome = patron.judge(answer)?;
        let as_wanted = cancelled && outcome == Outcome::Refused(Status::Cancelled);
        ensure!(
            outcome == Outcome::Ok || as_wanted,
            "{outcome:?} after SIGCONT"
        );
        ensure!(patron.ask(bound())? == Outcome::Ok, "an answer afterwards");
    }
    service.is_healthy()?;
    Ok(Verdict::Pass(format!(
        "answered {:.1} ms after SIGCONT at most",
        longest.as_secs_f64() * 1e3
    )))
}

/// The process' state, as the kernel shows it.
pub(super) fn state(service: &mut Service) -> Option<char> {
    let path = format!("/proc/{}/stat", service.process().0.id());
    let text = std::fs::read_to_string(path).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}
