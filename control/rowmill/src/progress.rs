//! Progress of long work on standard error: a bar on a terminal, else a line every few seconds.

use std::io::{IsTerminal, stderr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use rowmill_table::Stage;

use crate::output::note;
use crate::units::{bytes, duration};

/// Work shorter than this shows nothing, and of a stage shorter than this no rate is known.
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
    /// Bytes that were done at the first report of the stage.
    stage_first: u64,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

impl Reporter {
    pub(crate) fn new() -> Reporter {
        let begun = Instant::now();
        let state = State {
            stage: None,
            stage_begun: begun,
            stage_first: 0,
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
            state.stage_first = done;
            state.clear();
        }
        if now - self.begun < QUIET {
            return;
        }
        let since = done.saturating_sub(state.stage_first);
        let pace = pace(since, total.saturating_sub(done), now - state.stage_begun);
        if self.terminal {
            let bar = state.bar.get_or_insert_with(|| bar(stage, total));
            bar.set_position(done);
            bar.set_prefix(pace);
        } else if now - state.last_line >= LINE_INTERVAL {
            state.last_line = now;
            let percent = done as f64 / total.max(1) as f64 * 100.0;
            let comma = if pace.is_empty() { "" } else { ", " };
            note(&format!(
                "{stage}: {percent:.0} % of {}{comma}{pace}",
                bytes(total)
            ));
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
    let template = "{msg:10} [{bar:40}] {binary_bytes}/{binary_total_bytes} {prefix}";
    let style = ProgressStyle::with_template(template).expect("a constant template");
    ProgressBar::new(total)
        .with_style(style.progress_chars("=> "))
        .with_message(stage.to_string())
}

/// Rate and time left of a stage in which `done` bytes took `elapsed` and `left` are to come; nothing
/// while that is too short to tell.
fn pace(done: u64, left: u64, elapsed: Duration) -> String {
    if elapsed < QUIET || done == 0 {
        return String::new();
    }
    let rate = done as f64 / elapsed.as_secs_f64();
    let left_s = (left as f64 / rate).ceil() as u64;
    format!("{}/s, {} left", bytes(rate as u64), duration(left_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_needs_a_second_and_some_bytes() {
        let cases = [
            (1 << 30, 1 << 30, 999, ""),
            (0, 1 << 30, 5000, ""),
            (100 << 20, 400 << 20, 2000, "50.0 MiB/s, 8 s left"),
            (1 << 20, 0, 1000, "1.0 MiB/s, 0 s left"),
            (1 << 20, 1, 1000, "1.0 MiB/s, 1 s left"),
        ];
        for (done, left, ms, expected) in cases {
            assert_eq!(pace(done, left, Duration::from_millis(ms)), expected);
        }
    }
}
