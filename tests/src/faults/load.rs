//! More work than there is time or room for.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_port::ClientPort;
use rowmill_wire::Status;

use super::Verdict;
use super::hostile::Hostile;
use super::patron::bound;
use super::site::{CREDITS, Site, patience};
use super::watch::{beside_a_patient_innocent, beside_an_innocent};

/// A request that takes longer than it may.
pub(super) fn deadline(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let began = Instant::now();
        hostile.submit(0, 0, &hostile.long().frame())?;
        let record = hostile.record(0, patience())?;
        let whole = began.elapsed();
        ensure!(record.status == Status::Ok, "without a limit: {record:?}");
        ensure!(hostile.long_is_right(), "the long request's sums");
        let mut longest = Duration::ZERO;
        for remaining_us in [1, 100, 1000, 5000] {
            let frame = hostile
                .long()
                .with(|d| d.header.remaining_us = remaining_us)
                .frame();
            let began = Instant::now();
            let record = hostile.ask(&frame)?;
            ensure!(
                record.status == Status::Expired,
                "{remaining_us} us: {record:?}"
            );
            longest = longest.max(began.elapsed());
        }
        // No further work is done for them: the worker is free at once.
        hostile.is_served()?;
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        Ok(format!(
            "EXPIRED after at most {:.1} ms of {:.0} ms",
            ms(longest),
            ms(whole)
        ))
    })
}

/// More requests than slots.
pub(super) fn overload(site: &Site) -> Result<Verdict> {
    let mut settings = site.settings()?;
    settings.slots = 4;
    beside_a_patient_innocent(site, &settings, |scene| {
        let connect = || Hostile::connect(&scene.service.endpoint, scene.tables);
        let mut crowd = [connect()?, connect()?];
        let (mut busy, mut longest) = (0, Duration::ZERO);
        for round in 0..3 {
            let began = Instant::now();
            for hostile in &mut crowd {
                let frame = hostile
                    .long()
                    .with(|d| d.header.remaining_us = 400_000)
                    .frame();
                for slot in 0..CREDITS {
                    hostile.submit(0, slot, &frame)?;
                }
            }
            // At most 4 are kept, on one worker; the others are answered at once.
            let sent = 2 * u32::from(CREDITS);
            let mut answered = 0;
            while answered < sent {
                for hostile in &mut crowd {
                    while let Some(record) = hostile.raw().poll(0)? {
                        answered += 1;
                        match record.status {
                            Status::Busy => {
                                busy += 1;
                                longest = longest.max(began.elapsed());
                            }
                            Status::Ok | Status::Expired => {}
                            other => bail!("{other} under overload"),
                        }
                    }
                }
                ensure!(
                    began.elapsed() < patience(),
                    "{answered} of {sent} answered in round {round}"
                );
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        ensure!(busy >= 3 * 6, "only {busy} were BUSY");
        ensure!(longest <= bound(), "BUSY after {longest:?}");
        for hostile in &mut crowd {
            hostile.is_served().context("after the overload")?;
        }
        Ok(format!(
            "{busy} of 36 BUSY, the last after {:.1} ms",
            longest.as_secs_f64() * 1e3
        ))
    })
}
