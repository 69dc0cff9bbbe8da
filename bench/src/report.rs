//! Measurements and how they are printed: JSON lines or a table.

use std::borrow::Cow;
use std::io::Write;

use anyhow::{Result, bail};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use regex::Regex;
use serde::Serialize;

/// One figure. `ratio` is oriented so that larger is better and 1 is equal; it and the two before it
/// are null where nothing is compared.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measurement {
    /// The suite.
    pub suite: &'static str,
    /// The case, as `key=value` pairs.
    pub case: String,
    /// What was measured.
    pub metric: &'static str,
    /// The median over rounds.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
    /// What it is compared with.
    pub against: Option<Cow<'static, str>>,
    /// The median of that.
    pub against_value: Option<f64>,
    /// The median of the rounds' ratios.
    pub ratio: Option<f64>,
}

impl Measurement {
    /// A figure that stands alone.
    pub(crate) fn plain(
        suite: &'static str,
        case: &str,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) -> Measurement {
        Measurement {
            suite,
            case: case.into(),
            metric,
            value,
            unit,
            against: None,
            against_value: None,
            ratio: None,
        }
    }

    /// The same figure beside another of the same unit.
    #[must_use]
    pub(crate) fn beside(
        self,
        against: impl Into<Cow<'static, str>>,
        against_value: f64,
        ratio: f64,
    ) -> Measurement {
        Measurement {
            against: Some(against.into()),
            against_value: Some(against_value),
            ratio: Some(ratio),
            ..self
        }
    }
}

/// Takes measurements and prints them.
pub(crate) struct Reporter {
    json: bool,
    filter: Option<Regex>,
    taken: Vec<Measurement>,
}

impl Reporter {
    /// A reporter; `filter` picks cases.
    pub(crate) fn new(json: bool, filter: Option<Regex>) -> Reporter {
        Reporter {
            json,
            filter,
            taken: Vec::new(),
        }
    }

    /// Whether a case was asked for.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.filter.as_ref().is_none_or(|f| f.is_match(case))
    }

    /// Whether cases were asked for by a pattern with this text.
    pub(crate) fn names(&self, text: &str) -> bool {
        let filter = self.filter.as_ref();
        filter.is_some_and(|filter| filter.as_str().contains(text))
    }

    /// Takes a measurement; with JSON it is printed at once.
    pub(crate) fn add(&mut self, measurement: Measurement) {
        if self.json {
            let line = serde_json::to_string(&measurement).expect("plain values serialise");
            let mut out = std::io::stdout().lock();
            // A reader that went away (`| head`) is no error of the measurement.
            let _ = writeln!(out, "{line}");
        }
        self.taken.push(measurement);
    }

    /// Prints the table, where JSON was not asked for.
    ///
    /// # Errors
    /// Where cases were asked for and there are none of such names.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.taken.is_empty()
            && let Some(filter) = &self.filter
        {
            bail!("no case matches --case {filter}; without it all are shown");
        }
        if self.json || self.taken.is_empty() {
            return Ok(());
        }
        let mut table = Table::new();
        table
            .load_style(UTF8_BORDERS_ONLY)
            .set_header(["case", "metric", "value", "unit", "against", "", "ratio"]);
        for column in [2, 5, 6] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        for m in &self.taken {
            let or_empty = |value: Option<f64>| value.map(figure).unwrap_or_default();
            table.add_row([
                m.case.clone(),
                m.metric.into(),
                figure(m.value),
                m.unit.into(),
                m.against.as_deref().unwrap_or_default().into(),
                or_empty(m.against_value),
                m.ratio.map(|r| format!("{r:.3}")).unwrap_or_default(),
            ]);
        }
        println!("{table}");
        Ok(())
    }
}

/// A number with three or four significant digits; fractions with four decimals.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        v if v >= 1e9 => format!("{:.2} G", value / 1e9),
        v if v >= 1e6 => format!("{:.2} M", value / 1e6),
        v if v >= 1e4 => format!("{:.1} k", value / 1e3),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_nulls_where_nothing_is_compared() {
        let plain =
            serde_json::to_value(Measurement::plain("null", "port=shm", "rtt_p50", 1.5, "us"))
                .expect("JSON");
        assert!(
            plain["ratio"].is_null()
                && plain["against"].is_null()
                && plain["against_value"].is_null()
        );
        assert_eq!(
            (&plain["suite"], &plain["value"]),
            (&"null".into(), &1.5.into())
        );
        assert_eq!(figure(1234567.0), "1.23 M");
    }

    #[test]
    fn cases_that_are_not_there_are_an_error() {
        let filter = || Some(Regex::new("nothing").unwrap());
        let said = Reporter::new(true, filter()).finish().unwrap_err();
        assert!(said.to_string().starts_with("no case matches"), "{said}");
        let mut found = Reporter::new(true, filter());
        found.add(Measurement::plain("null", "nothing", "rate", 1.0, "1/s"));
        found.finish().unwrap();
        Reporter::new(true, None).finish().unwrap();
    }
}
