//! Faults between two machines: a link that loses everything, a machine that is reset. The service and the innocent client
//! are on this machine; the lab's scenario `pair-faults` starts the other client on the other one, and the two tell each
//! other how far they are by files in a folder that both see.

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_port::Backoff;
use rowmill_wire::Status;

use super::Verdict;
use super::hostile::Hostile;
use super::rdma::{begin_long, end_of, ms};
use super::site::{Site, patience, told_within, until};
use super::watch::beside_an_innocent;

/// The first argument of this program where it is to be the client on the other machine: see [`far`].
pub const FAR: &str = "--far";

/// The folder that both machines see, where there are two.
pub(super) fn folder() -> Option<PathBuf> {
    std::env::var_os("ROWMILL_FAULTS_FAR").map(PathBuf::from)
}

/// How far one side is: a file that the other one waits for.
struct Marks(PathBuf);

impl Marks {
    fn here() -> Result<Marks> {
        folder().context("ROWMILL_FAULTS_FAR is not set").map(Marks)
    }

    fn set(&self, name: &str, text: &str) -> Result<()> {
        // Renamed, so that nobody reads half of it.
        let (draft, whole) = (self.0.join(format!("{name}.draft")), self.0.join(name));
        fs::write(&draft, text).context("a mark")?;
        fs::rename(draft, whole).context("a mark")
    }

    /// Waits for a mark; its text.
    fn wait(&self, name: &str, limit: Duration) -> Result<String> {
        let path = self.0.join(name);
        until(limit, || path.exists())
            .with_context(|| format!("the other machine's mark {name}"))?;
        fs::read_to_string(path).context("a mark")
    }

    /// Waits for the other side's verdict.
    fn verdict(&self, name: &str) -> Result<String> {
        let said = self.wait(name, 3 * patience())?;
        match said.strip_prefix("ok: ") {
            Some(note) => Ok(note.to_owned()),
            None => bail!("the other machine's client: {said}"),
        }
    }
}

/// All that the other machine sends is lost, with results on their way to it, and later not any more.
pub(super) fn link_lost(site: &Site) -> Result<Verdict> {
    let marks = Marks::here()?;
    beside_an_innocent(site, &site.settings()?, |scene| {
        marks.set("link.endpoint", &scene.service.endpoint)?;
        marks.wait("link.lost", 3 * patience())?;
        let free = scene.until_alone()?;
        let note = marks.verdict("link.verdict")?;
        Ok(format!("nothing held after {}; {note}", ms(free)))
    })
}

/// The other machine is reset with results on their way to it, and connects again when it is back.
pub(super) fn machine_reset(site: &Site) -> Result<Verdict> {
    let marks = Marks::here()?;
    beside_an_innocent(site, &site.settings()?, |scene| {
        marks.set("reset.endpoint", &scene.service.endpoint)?;
        // Set by the scenario just before it has the other machine reset.
        marks.wait("reset.asked", 3 * patience())?;
        let free = scene.until_alone()?;
        let note = marks.verdict("reset.verdict")?;
        Ok(format!("nothing held after {}; {note}", ms(free)))
    })
}

/// The client on the other machine. The arguments are what to do: `link`, `reset` (until this machine is), or `again` (after
/// that).
///
/// # Errors
/// Where it can't begin; what goes wrong later is told to the other side.
pub fn far(mut arguments: impl Iterator<Item = OsString>) -> Result<()> {
    let what = arguments.next().context("what to do")?;
    let marks = Marks::here()?;
    let temporary = tempfile::tempdir().context("a folder")?;
    let site = Site::new(temporary.path().to_owned())?;
    match what.to_str() {
        Some("link") => {
            let outcome = link(&site, &marks);
            tell(&marks, "link.verdict", outcome)
        }
        Some("reset") => reset(&site, &marks),
        Some("again") => {
            let outcome = again(&site, &marks);
            tell(&marks, "reset.verdict", outcome)
        }
        _ => bail!("link, reset, or again"),
    }
}

fn tell(marks: &Marks, name: &str, outcome: Result<String>) -> Result<()> {
    match outcome {
        Ok(note) => marks.set(name, &format!("ok: {note}")),
        Err(error) => {
            marks.set(name, &format!("{error:#}"))?;
            Err(error)
        }
    }
}

/// Loses all that this machine sends, or nothing any more. (Taking the netdev down does more on soft-RoCE: its queue pair
/// for connecting fails with the first message that can't be sent, and stays so.)
fn lose(all: bool) -> Result<()> {
    let netdev = std::env::var("ROWMILL_LAB_NETDEV").context("which link may fail")?;
    let mut tc = Command::new("tc");
    match all {
        true => tc.args([
            "qdisc", "replace", "dev", &netdev, "root", "netem", "loss", "100%",
        ]),
        false => tc.args(["qdisc", "del", "dev", &netdev, "root"]),
    };
    ensure!(tc.status().context("tc")?.success(), "tc can't do that");
    Ok(())
}

fn link(site: &Site, marks: &Marks) -> Result<String> {
    let endpoint = marks.wait("link.endpoint", 3 * patience())?;
    let tables = site.tables()?;
    let (mut hostile, first) = connect(&endpoint, &tables)?;
    hostile.is_served()?;
    begin_long(&mut hostile)?;
    lose(true)?;
    marks.set("link.lost", "")?;
    let ended = end_of(hostile.raw());
    // What the service sends still comes here until it has given up: nothing of it may reach targets in use again.
    hostile.poison();
    std::thread::sleep(told_within() / 2);
    lose(false)?;
    let (what, took) = ended?;
    let (mut other, back) = connect(&endpoint, &tables)?;
    other.is_served()?;
    ensure!(
        hostile.is_unwritten(),
        "a target that is in use again was written to"
    );
    Ok(format!(
        "connected after {}; {what:?}, told after {}, connected again after {}",
        ms(first),
        ms(took),
        ms(back)
    ))
}

/// With results on their way until somebody resets this machine.
fn reset(site: &Site, marks: &Marks) -> Result<()> {
    let endpoint = marks.wait("reset.endpoint", 3 * patience())?;
    let (mut hostile, _) = connect(&endpoint, &site.tables()?)?;
    hostile.is_served()?;
    begin_long(&mut hostile)?;
    marks.set("reset.ready", "")?;
    let long = hostile.long().frame();
    loop {
        let record = hostile.record(0, patience())?;
        ensure!(record.status == Status::Ok, "{record:?}");
        if record.kind == rowmill_wire::CompletionKind::Final {
            hostile.submit(0, record.slot, &long)?;
        }
    }
}

/// The other side may take this machine for the one that it knew before the reset.
fn again(site: &Site, marks: &Marks) -> Result<String> {
    let endpoint = marks.wait("reset.endpoint", patience())?;
    let tables = site.tables()?;
    let (mut hostile, took) = connect(&endpoint, &tables)?;
    hostile.is_served()?;
    Ok(format!("connected again after {}", ms(took)))
}

/// Connects as often as it takes: what a wire loses of connecting is sent again after 4.3 s (`CMA_CM_RESPONSE_TIMEOUT` of
/// Linux), nearly as long as a client tries. How long it took.
fn connect(
    endpoint: &str,
    tables: &std::sync::Arc<rowmill_table::Resident>,
) -> Result<(Hostile, Duration)> {
    let (began, mut backoff) = (Instant::now(), Backoff::default());
    loop {
        match Hostile::connect(endpoint, tables) {
            Ok(hostile) => return Ok((hostile, began.elapsed())),
            Err(error) if began.elapsed() >= told_within() + patience() => return Err(error),
            Err(_) => std::thread::sleep(backoff.delay(Instant::now())),
        }
    }
}
