//! Cached tables of one service whose files lie on different disks, all but one of which hang.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Result, ensure};

use super::Verdict;
use super::cached::{
    Asker, COLD, COLD_ROWS, LEAST_SHARE, PAGE_ROWS, UNAVAILABLE, file_of, settings,
};
use super::cached_disk::alone;
use super::disk::{self, Disk, Manner};
use super::patron::Outcome;
use super::site::{Service, Settings, Site, patience, until};
use super::watch::{Scene, beside_an_innocent_of};

/// The table on the disk that goes on, as [`COLD`].
const WELL: &str = "well";
/// The tables whose files hang. Each has a client that asks for its rows.
const HUNG: [&str; 3] = [COLD, "second", "third"];
/// Rows of a request for those, each of a page of its own: more than a worker reads at a time.
const MANY: usize = 512;
/// Requests for the other table, each of so many rows.
const ROUNDS: u32 = 60;
const FEW: u32 = 24;

/// Clients want as many rows of the files that hang as there can be, for as long as rows of the other are asked for: each of these comes.
pub(super) fn hangs(site: &Site) -> Result<Verdict> {
    if let Some(why) = disk::why_not(site)? {
        return Ok(Verdict::Skipped(why));
    }
    let names = [HUNG[0], HUNG[1], HUNG[2], WELL];
    site.model_with(&names.map(|name| (name, COLD_ROWS)))?;
    // So few reads that two tables could have all of them, but for what is each one's own.
    let cache = "budget_ms = 400\nreads = 8\nstaged_rows = 16384\nparked_bags = 1024\n";
    let own = alone(settings(site, cache, "error")?)?;
    let others = names[1..].iter().map(|name| {
        format!(
            "[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = {LEAST_SHARE}\n"
        )
    });
    let mut settings = Settings {
        cached: own.cached.clone() + &others.collect::<String>(),
        ..own
    };
    let hung: Vec<PathBuf> =
        (HUNG.iter().map(|table| file_of(site, table))).collect::<Result<_>>()?;
    let (disk, command) = Disk::over(site, &settings.model, &hung, "rowmilld")?;
    settings.model = disk::mount_point(site)?;
    let config = site.configure(&settings)?;
    let service = Service::start_by(site, command, &config)?;
    beside_an_innocent_of(site, service, &settings, |scene| {
        disk.be(Manner::Silent)?;
        let told = beside_the_hung(scene, &disk);
        // A service whose reads are held could not end.
        disk.be(Manner::Good)?;
        let (rows, refused, held) = told?;
        // And it is well again.
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        asker.come(&[1, 50_000], patience())?;
        Ok(format!(
            "{rows} rows of the other table, {refused} requests refused of those whose disk held {held} reads"
        ))
    })
}

/// How many rows of the other table came, how many requests for those that hang were refused meanwhile, and the reads that their disk
/// held.
fn beside_the_hung(scene: &Scene<'_>, disk: &Disk) -> Result<(u32, u64, usize)> {
    let (is_over, refused) = (AtomicBool::new(false), HUNG.map(|_| AtomicU64::new(0)));
    let ask = &|mut asker: Asker, refused: &AtomicU64| {
        let mut rows = (0..COLD_ROWS).step_by(PAGE_ROWS as usize).cycle();
        while !is_over.load(Ordering::SeqCst) {
            let ids: Vec<u32> = rows.by_ref().take(MANY).collect();
            let outcome = asker.ask(&ids)?;
            ensure!(outcome == UNAVAILABLE, "{outcome:?} of a disk that hangs");
            refused.fetch_add(1, Ordering::SeqCst);
        }
        anyhow::Ok(())
    };
    let askers = HUNG.map(|table| Asker::of(table, scene.service, scene.tables));
    let askers = askers.into_iter().collect::<Result<Vec<_>>>()?;
    let mut well = Asker::of(WELL, scene.service, scene.tables)?;
    thread::scope(|scope| {
        let threads: Vec<_> = askers
            .into_iter()
            .zip(&refused)
            .map(|(asker, refused)| scope.spawn(move || ask(asker, refused)))
            .collect();
        let refused = || refused.each_ref().map(|times| times.load(Ordering::SeqCst));
        // Whatever their rows can take they have taken by then.
        let are_refused = || refused().iter().all(|&times| times >= 2);
        let came = until(patience(), are_refused).and_then(|()| well_comes(&mut well));
        is_over.store(true, Ordering::SeqCst);
        for thread in threads {
            let own = thread.join();
            own.map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok((came?, refused().iter().sum(), disk.held()))
    })
}

/// Asks for rows of the other table, others each time; how many came.
fn well_comes(well: &mut Asker) -> Result<u32> {
    let mut rows = (7..COLD_ROWS).step_by(97).cycle();
    for round in 0..ROUNDS {
        let ids: Vec<u32> = rows.by_ref().take(FEW as usize).collect();
        let outcome = well.ask(&ids)?;
        let is_answered = outcome == Outcome::Ok;
        ensure!(
            is_answered,
            "{outcome:?} for the other table's rows, in request {round}"
        );
    }
    Ok(ROUNDS * FEW)
}
