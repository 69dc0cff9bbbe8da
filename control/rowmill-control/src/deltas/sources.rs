//! How it stands with the places that deltas come from by themselves, and what became of what came from there.

use std::fmt::Write;

/// Most characters of a reason that is told.
const REASON_MAX: usize = 500;

/// A place that deltas come from by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A stream of Redis.
    Stream,
    /// A directory.
    Watch,
}

/// What became of what came from a place, since the start.
#[derive(Debug, Default)]
struct Stand {
    /// How it stands with the place itself, a sentence without its end.
    text: Option<String>,
    taken: u64,
    refused: u64,
    passed_by: u64,
    /// The last that was not taken, and why.
    last: Option<String>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Sources([Stand; 2]);

impl Sources {
    fn of(&mut self, source: Source) -> &mut Stand {
        &mut self.0[source as usize]
    }

    /// How it stands with a place. It is logged where it is another sentence than before.
    pub(crate) fn says(&mut self, source: Source, text: &str) {
        let (text, stand) = (one_line(text), self.of(source));
        if stand.text.as_ref() != Some(&text) {
            tracing::info!("deltas: {text}");
            stand.text = Some(text);
        }
    }

    /// A delta that came from there is kept, now or before.
    pub(crate) fn took(&mut self, source: Source) {
        self.of(source).taken += 1;
    }

    /// What came from there is not taken, whatever comes.
    pub(crate) fn refused(&mut self, source: Source, what: &str, why: &str) {
        self.of(source).refused += 1;
        self.not_taken(source, what, why);
    }

    /// A delta that came from there is not taken since others have to come before it.
    pub(crate) fn passed_by(&mut self, source: Source, what: &str, why: &str) {
        self.of(source).passed_by += 1;
        self.not_taken(source, what, why);
    }

    fn not_taken(&mut self, source: Source, what: &str, why: &str) {
        let told = one_line(&format!("{what} is not taken: {why}"));
        tracing::warn!("deltas: {told}");
        self.of(source).last = Some(told);
    }

    /// All of it, a sentence for each place.
    pub(crate) fn told(&self) -> Vec<String> {
        let known = self
            .0
            .iter()
            .filter_map(|stand| Some((stand.text.as_ref()?, stand)));
        let told = known.map(|(text, stand)| {
            let mut told = text.clone();
            let counts = [
                (stand.taken, "taken or known"),
                (stand.refused, "refused"),
                (stand.passed_by, "passed by"),
            ];
            for (count, what) in counts.into_iter().filter(|(count, _)| *count > 0) {
                write!(told, "; {count} {what}").expect("a String takes all");
            }
            if let Some(last) = &stand.last {
                write!(told, "; the last: {last}").expect("a String takes all");
            }
            told
        });
        told.collect()
    }
}

/// A text as a part of a line, however names of files that are in it were chosen.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for c in text.chars().take(REASON_MAX) {
        match c.is_control() {
            true => line.extend(c.escape_default()),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_became_of_what_came_is_told_in_a_line() {
        let mut sources = Sources::default();
        assert_eq!(sources.told(), [""; 0]);
        sources.says(Source::Watch, "directory /a\nb is watched");
        assert_eq!(sources.told(), ["directory /a\\nb is watched"]);
        sources.took(Source::Watch);
        sources.took(Source::Watch);
        sources.refused(Source::Watch, "x\n.delta", "it is none");
        sources.passed_by(Source::Watch, "y.delta", &"long ".repeat(1000));
        sources.says(Source::Stream, "stream s was read");
        let told = sources.told();
        assert_eq!(told[0], "stream s was read");
        let begin = "directory /a\\nb is watched; 2 taken or known; 1 refused; 1 passed by; the last: y.delta is not taken: long long";
        assert!(told[1].starts_with(begin), "{told:?}");
        assert!(told[1].len() < 2 * REASON_MAX, "{told:?}");
    }
}
