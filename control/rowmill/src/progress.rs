//! Progress of long work on standard error: a bar on a terminal, else a line every few seconds.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rowmill_table::Stage;

use crate::units::bytes;

/// Work shorter than this shows nothing.
const QUIET: Duration = Duration::from_secs(1);
/// Time between two lines where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(3);

/// Shows how far some work is, from when it has lasted a second.
pub(crate) struct Reporter {
    terminal: bool,
    begun: Instant,
    state: Mutex<State>,
}

struct State {
    stage: Option<Stage>,
    stage_begun: Instant,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Reporter {
    pub(crate) fn new() -> Reporter {
        let begun = Instant::now();
        let state = State {
            stage: None,
            stage_begun: begun,
            bar: None,
            last_line: begun,
        };
        Reporter {
            terminal: stderr().is_terminal(),
            begun,
            state: Mutex::new(state),
        }
    }

    /// Takes a report; what [`rowmill_table::Progress`] calls.
    pub(crate) fn report(&self, stage: Stage, done: u64, total: u64) {
        let now = Instant::now();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stage != Some(stage) {
            state.stage = Some(stage);
            state.stage_begun = now;
            state.clear();
        }
        if now - self.begun < QUIET {
            return;
        }
        if self.terminal {
            let bar = state.bar.get_or_insert_with(|| bar(stage, total));
            bar.set_position(done);
        } else if now - state.last_line >= LINE_INTERVAL {
            state.last_line = now;
            let percent = done as f64 / total.max(1) as f64 * 100.0;
            let rate = done as f64 / (now - state.stage_begun).as_secs_f64().max(1e-3);
            eprintln!(
                "{stage}: {percent:.0} % of {}, {}/s",
                bytes(total),
                bytes(rate as u64)
            );
        }
    }

    /// Time since the work began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }
}

impl State {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

fn bar(stage: Stage, total: u64) -> ProgressBar {
    let template =
        "{msg:10} [{bar:40}] {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta} left";
    let style = ProgressStyle::with_template(template).expect("a constant template");
    ProgressBar::new(total)
        .with_style(style.progress_chars("=> "))
        .with_message(stage.to_string())
}
