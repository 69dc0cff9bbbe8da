//! Prometheus' text format.

use core::fmt::Write as _;

use crate::figures::{BUCKETS, Figures};
use crate::overview::Seat;

/// A page of metrics.
pub(crate) struct Metrics(String);

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics(String::with_capacity(16 << 10))
    }

    /// All of it.
    pub(crate) fn text(self) -> String {
        self.0
    }

    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.put(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &str, value: u64) {
        if labels.is_empty() {
            self.put(format_args!("{name} {value}\n"));
        } else {
            self.put(format_args!("{name}{{{labels}}} {value}\n"));
        }
    }

    pub(crate) fn workers(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        seats: &[Seat],
        value: impl Fn(&Figures) -> u64,
    ) {
        self.family(name, kind, help);
        for (index, seat) in seats.iter().enumerate() {
            self.sample(name, &format!("worker=\"{index}\""), value(&seat.figures));
        }
    }

    /// Times of each worker.
    pub(crate) fn times(&mut self, seats: &[Seat]) {
        let name = "rowmill_service_seconds";
        let help = "Time from receipt to completion of lookups answered OK.";
        self.family(name, "histogram", help);
        for (index, seat) in seats.iter().enumerate() {
            let label = format!("worker=\"{index}\"");
            self.histogram(name, &label, seat.figures.times.read());
        }
    }

    /// A histogram of a family: the buckets' counts and the sum in nanoseconds.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &str,
        (counts, sum_ns): ([u64; BUCKETS + 1], u64),
    ) {
        let mut total = 0;
        for (i, count) in counts.into_iter().enumerate() {
            total += count;
            let bound = if i < BUCKETS {
                ((1u64 << i) as f64 / 1e6).to_string()
            } else {
                "+Inf".into()
            };
            self.put(format_args!(
                "{name}_bucket{{{labels},le=\"{bound}\"}} {total}\n"
            ));
        }
        let sum = sum_ns as f64 / 1e9;
        self.put(format_args!(
            "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {total}\n"
        ));
    }

    fn put(&mut self, text: core::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("a string takes everything");
    }
}

/// A label's value as Prometheus reads it.
pub(crate) fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
