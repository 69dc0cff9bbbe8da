//! How far loading is, in the log.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rowmill_table::Stage;

use crate::plan::bytes_text;

/// How often loading says how far it is.
const EVERY: Duration = Duration::from_secs(2);

struct Seen {
    stage: Option<Stage>,
    began: Instant,
    told: Instant,
}

/// Logs what it is told of the progress of loading, now and then.
pub(crate) fn logged() -> impl Fn(Stage, u64, u64) + Sync {
    let seen = Mutex::new(Seen {
        stage: None,
        began: Instant::now(),
        told: Instant::now(),
    });
    move |stage: Stage, done: u64, total: u64| {
        let mut seen = seen.lock().expect("a panic ends the process");
        let now = Instant::now();
        if seen.stage != Some(stage) {
            *seen = Seen {
                stage: Some(stage),
                began: now,
                told: now,
            };
        } else if now - seen.told >= EVERY {
            seen.told = now;
            let percent = done as f64 * 100.0 / total.max(1) as f64;
            let rate = done as f64 / (now - seen.began).as_secs_f64() / 1e9;
            tracing::info!(
                "{stage}: {percent:.0} % of {}, {rate:.1} GB/s",
                bytes_text(total)
            );
        }
    }
}
