//! Tables that become resident and cached again while they are looked up.

use std::fs;

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::cached::{Asker, COLD, PATIENT, placement, settings};
use super::patron::{Innocent, bound_of_files};
use super::site::Site;
use super::watch::beside_an_innocent;

/// Most of the bytes of the rows of [`COLD`], which are 6.4 MB.
const COLD_BYTES: u64 = 5_000_000;

/// All tables move, one after another, under the load of three clients.
pub(super) fn moved(site: &Site) -> Result<Verdict> {
    const ROUNDS: u32 = 3;
    let mut settings = settings(site, PATIENT, "error")?;
    // In the section of the admin pages, which is the one before.
    settings.cached = format!("allow_changes = true\n{}", settings.cached);
    beside_an_innocent(site, &settings, |scene| {
        let limit = bound_of_files();
        let start = |_| Innocent::start(&scene.service.endpoint, scene.tables, false, limit);
        let crowd = (0..2).map(start).collect::<Result<Vec<_>>>()?;
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let admin = scene.service.admin().to_string();
        let process = scene.service.process().id();
        let mut ids = (0..).step_by(977).map(|id| id % 100_000);
        let mut asked = 0;
        let mut first = None;
        for round in 0..ROUNDS {
            let mut bytes = [0; 2];
            for (to, bytes) in ["resident", "cached"].into_iter().zip(&mut bytes) {
                for table in ["small", "quant", COLD] {
                    let place = ["place", table, to, "--admin", &admin];
                    let (status, said) = site.command("rowmill", &place)?;
                    let is_said = said.starts_with(&format!("{table}: {to}"));
                    ensure!(status.success() && is_said, "{place:?}: {status}: {said}");
                    let some: Vec<u32> = ids.by_ref().take(500).collect();
                    asker.is_answered(&some)?;
                    asked += some.len();
                }
                let is_there = placement(scene.service)?;
                ensure!(is_there == to, "{COLD} is {is_there} in round {round}");
                *bytes = anonymous_bytes(process)?;
            }
            // Workers touch their own memory when they first make use of it.
            if round == 0 {
                continue;
            }
            let [resident, cached] = bytes;
            ensure!(
                resident >= cached + COLD_BYTES,
                "{resident} bytes are held with all rows, and {cached} without, in round {round}"
            );
            // What a round leaves behind, the next would add to.
            let first = *first.get_or_insert(cached);
            ensure!(
                cached < first + COLD_BYTES,
                "{cached} bytes are held in round {round}, and {first} were before"
            );
        }
        let mut answers = 0;
        for client in crowd {
            answers += client.finish()?.answers;
        }
        let moves = ROUNDS * 6;
        Ok(format!(
            "{moves} moves, {asked} rows and {answers} answers to 2 others meanwhile"
        ))
    })
}

/// Bytes of a process's own memory: no files, and nothing that it shares with clients.
pub(super) fn anonymous_bytes(process: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).context("its memory")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib.context("RssAnon in kB")?.parse()?;
    Ok(kib * 1024)
}
