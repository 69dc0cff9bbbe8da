//! What surrounds every fault over a connection: an innocent client that must notice nothing, and a
//! service that must be as it was before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rowmill_table::Resident;

use super::patron::{Innocent, Outcome, Patron, bound, bound_of_files};
use super::site::{Clients, Holdings, Service, Settings, Site, slowness, told_within, until};
use super::{Happened, Verdict};

/// How long a service may take to let go of everything that clients left behind.
const LET_GO: Duration = Duration::from_secs(5);

/// Looks at a service that has just begun, and the time between two.
const LOOKS: u32 = 10;
const LOOK: Duration = Duration::from_millis(20);

/// What a fault has to do with.
pub(crate) struct Scene<'a> {
    /// The service.
    pub(crate) service: &'a mut Service,
    /// The oracle's tables.
    pub(crate) tables: &'a Arc<Resident>,
    /// What is held while the innocent is the only client.
    alone: Clients,
}

impl Scene<'_> {
    /// Waits until nothing is held for any client but the innocent; how long that took.
    ///
    /// # Errors
    /// As [`until_left`].
    pub(crate) fn until_alone(&self) -> Result<Duration> {
        until_left(self.service, &self.alone)
    }
}

/// Waits until a service has no clients but these; how long that took.
///
/// # Errors
/// What is held instead, if that takes longer than [`told_within`].
pub(crate) fn until_left(service: &Service, clients: &Clients) -> Result<Duration> {
    let began = Instant::now();
    let mut now = clients.clone();
    let are_left = until(told_within(), || {
        service.holdings().is_ok_and(|held| {
            now = held.clients;
            now == *clients
        })
    });
    are_left.with_context(|| format!("{now:?} are held instead of {clients:?}"))?;
    Ok(began.elapsed())
}

/// Starts a service and an innocent client, lets `fault` happen, and checks that neither was harmed:
/// every answer OK, bit-equal and within [`bound()`], or [`bound_of_files()`] where its tables are cached; the process alive and healthy; new connections
/// served; nothing kept of those that are gone. Gives `fault`'s note with what the innocent saw.
///
/// # Errors
/// What is not so.
pub(crate) fn beside_an_innocent(
    site: &Site,
    settings: &Settings,
    fault: impl FnOnce(&mut Scene<'_>) -> Happened,
) -> Result<Verdict> {
    beside(site, settings, false, fault)
}

/// As [`beside_an_innocent`], where an answer may take so long.
///
/// # Errors
/// As [`beside_an_innocent`].
pub(crate) fn beside_a_waiting_innocent(
    site: &Site,
    settings: &Settings,
    limit: Duration,
    fault: impl FnOnce(&mut Scene<'_>) -> Happened,
) -> Result<Verdict> {
    let service = site.start(settings)?;
    beside_service(site, service, settings, (false, limit), fault)
}

/// As [`beside_an_innocent`], where the innocent has to put up with BUSY.
///
/// # Errors
/// As [`beside_an_innocent`].
pub(crate) fn beside_a_patient_innocent(
    site: &Site,
    settings: &Settings,
    fault: impl FnOnce(&mut Scene<'_>) -> Happened,
) -> Result<Verdict> {
    beside(site, settings, true, fault)
}

/// As [`beside_an_innocent`], beside a service that has been started already with these settings.
///
/// # Errors
/// As [`beside_an_innocent`].
pub(crate) fn beside_an_innocent_of(
    site: &Site,
    service: Service,
    settings: &Settings,
    fault: impl FnOnce(&mut Scene<'_>) -> Happened,
) -> Result<Verdict> {
    let limit = bound_with(settings);
    beside_service(site, service, settings, (false, limit), fault)
}

fn beside(
    site: &Site,
    settings: &Settings,
    busy: bool,
    fault: impl FnOnce(&mut Scene<'_>) -> Happened,
) -> Result<Verdict> {
    let service = site.start(settings)?;
    let limit = bound_with(settings);
    beside_service(site, service, settings, (busy, limit), fault)
}

/// How long an answer to an innocent client of a service with these settings may take.
pub(crate) fn bound_with(settings: &Settings) -> Duration {
    match settings.cached.contains("name = \"small\"") {
        true => bound_of_files(),
        false => bound(),
    }
}

fn beside_service(
    site: &Site,
    mut service: Service,
    settings: &Settings,
    (busy, limit): (bool, Duration),
    fault: impl FnOnce(&mut Scene<'_>) -> Happened,
) -> Result<Verdict> {
    let tables = site.tables()?;
    service.is_healthy()?;
    let before = begun(&service, settings)?;
    let others = site.others()?;
    let answers_of = (&tables, &others[..]);
    let innocent = Innocent::start_with(&service.endpoint, answers_of, busy, limit)?;
    until(limit, || innocent.answers() >= 5).context("the innocent client's first answers")?;
    let alone = service.holdings()?.clients;
    let note = {
        let service = &mut service;
        fault(&mut Scene {
            service,
            tables: &tables,
            alone,
        })
    };
    // What the innocent saw explains more than what the culprit did.
    let seen = innocent.finish();
    service.is_alive()?;
    let (seen, note) = (seen?, note?);
    ensure!(
        seen.longest <= limit,
        "the innocent client waited {:?}",
        seen.longest
    );
    is_as_new(&mut service, &tables, limit)?;
    holds_as(&service, &before)?;
    let busy = if seen.busy > 0 {
        format!(", {} BUSY", seen.busy)
    } else {
        String::new()
    };
    let ms = seen.longest.as_secs_f64() * 1e3;
    Ok(Verdict::Pass(format!(
        "{note}; the innocent: {} answers, longest {ms:.1} ms{busy}",
        seen.answers
    )))
}

/// What a service holds once it has begun: one that follows a control plane dials it twice, and one that reads another's memory connects
/// to that, a moment after it is ready.
fn begun(service: &Service, settings: &Settings) -> Result<Holdings> {
    if settings.cached.contains("[remote]") {
        let is_connected = || {
            let status = service.status();
            status.is_ok_and(|status| status["remote"][0]["state"] == "connected")
        };
        until(LET_GO * slowness(), is_connected).context("the exporter is not reached")?;
    }
    if !settings.cached.contains("[control]") {
        return service.holdings();
    }
    let is_connected = || {
        let status = service.status();
        let fetches = |control: &serde_json::Value| {
            !settings.cached.contains("[deltas]") || control["deltas"] == "fetched"
        };
        status.is_ok_and(|status| {
            status["control"]["connected"] == true && fetches(&status["control"])
        })
    };
    until(LET_GO * slowness(), is_connected).context("the control plane is not reached")?;
    // Its other connection comes at the same time, or a moment later. Who asks for the status page holds a descriptor for a moment,
    // too: the least is what stays.
    std::thread::sleep(10 * LOOK);
    let mut least = service.holdings()?;
    for _ in 0..LOOKS {
        std::thread::sleep(LOOK);
        let now = service.holdings()?;
        if now.descriptors < least.descriptors {
            least = now;
        }
    }
    Ok(least)
}

/// That a service soon holds what it held before.
///
/// # Errors
/// What it holds instead.
pub(crate) fn holds_as(service: &Service, before: &Holdings) -> Result<()> {
    let mut now = before.clone();
    let as_before = until(LET_GO * slowness(), || {
        service.holdings().is_ok_and(|held| {
            now = held;
            now == *before
        })
    });
    as_before.with_context(|| format!("{now:?} are held instead of {before:?}"))
}

/// That a service is as good as new.
///
/// # Errors
/// If it is not.
pub(crate) fn after(service: &mut Service, tables: &Arc<Resident>) -> Result<()> {
    is_as_new(service, tables, bound())
}

/// As [`after`], where an answer may take so long.
///
/// # Errors
/// As [`after`].
pub(crate) fn is_as_new(
    service: &mut Service,
    tables: &Arc<Resident>,
    limit: Duration,
) -> Result<()> {
    service.is_alive()?;
    service.is_healthy()?;
    let mut late =
        Patron::connect(&service.endpoint, "late", tables).context("a new connection")?;
    for _ in 0..3 {
        let outcome = late.ask(limit).context("a new connection")?;
        ensure!(outcome == Outcome::Ok, "a new connection got {outcome:?}");
    }
    Ok(())
}
