//! What is known of the dataplanes that follow the log: which generations they hold, and whose deltas are others than those that are kept.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rowmill_link::Report;

/// What a dataplane holds is not known any more when it was last heard of so long ago: it reports each second.
const SILENT: Duration = Duration::from_secs(10);
/// Generations of dataplanes of which it is remembered that their deltas are others: two of each, of twice as many dataplanes as there
/// are by default.
const DIVERGED_MAX: usize = 1024;

/// What a dataplane holds.
#[derive(Clone, Debug)]
pub struct Holds {
    model: String,
    generations: Vec<u64>,
    /// What tells each of them from others of its number; none of a dataplane that does not tell them.
    fingerprints: Vec<u32>,
    /// Why the next delta can't be applied there.
    failed: Option<String>,
}

impl From<&Report> for Holds {
    fn from(report: &Report) -> Holds {
        Holds {
            model: report.model.clone(),
            generations: report.generations.clone(),
            fingerprints: report.fingerprints.clone(),
            failed: failed(report),
        }
    }
}

/// Longest sentence of a dataplane.
const SENTENCE_MAX: usize = 512;

fn failed(report: &Report) -> Option<String> {
    let why = report.deltas_failed.as_deref()?;
    Some(why[..why.floor_char_boundary(SENTENCE_MAX)].to_owned())
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Followers {
    /// By dataplane, with when that was told.
    held: BTreeMap<String, (Instant, Holds)>,
    /// By dataplane, model and generation, a phrase that continues "the dataplane ...".
    diverged: BTreeMap<(String, String, u64), String>,
}

impl Followers {
    /// A dataplane has reported.
    pub(super) fn reported(&mut self, dataplane: &str, holds: Holds, now: Instant) {
        self.held
            .retain(|_, (heard, _)| now.duration_since(*heard) < SILENT);
        // What it holds no more is mended; one that can't change its generations tells of none.
        self.diverged.retain(|(of, model, generation), _| {
            let is_held = holds.generations.is_empty() || holds.generations.contains(generation);
            of != dataplane || (*model == holds.model && is_held)
        });
        self.held.insert(dataplane.into(), (now, holds));
    }

    /// A dataplane that holds another generation of that number, with its fingerprint, where none holds the one of this.
    pub(super) fn other(
        &self,
        (model, generation): (&str, u64),
        fingerprint: u32,
        now: Instant,
    ) -> Option<(&str, u32)> {
        let mut other = None;
        for (dataplane, (heard, holds)) in &self.held {
            if holds.model != model || now.duration_since(*heard) >= SILENT {
                continue;
            }
            let mut told = holds.generations.iter().zip(&holds.fingerprints);
            match told.find(|(of, _)| **of == generation) {
                Some((_, &own)) if own == fingerprint => return None,
                Some((_, &own)) => _ = other.get_or_insert((&**dataplane, own)),
                None => {}
            }
        }
        other
    }

    /// A dataplane has asked for a delta of a generation: why it gets none, or that its deltas are those that are kept. Whether that is
    /// another answer than before.
    pub(super) fn asked(
        &mut self,
        (dataplane, model, generation): (&str, &str, u64),
        why: Option<&str>,
    ) -> bool {
        let of = (dataplane.to_owned(), model.to_owned(), generation);
        let Some(why) = why else {
            return self.diverged.remove(&of).is_some();
        };
        let known = self.diverged.get(&of);
        let is_new = known.is_none_or(|known| known != why);
        if is_new && (known.is_some() || self.diverged.len() < DIVERGED_MAX) {
            self.diverged.insert(of, why.into());
        }
        is_new
    }

    /// Dataplanes to which the next delta can't be applied, each with its model and why.
    pub(super) fn failed(&self, now: Instant) -> impl Iterator<Item = (&str, &str, &str)> {
        let heard = self
            .held
            .iter()
            .filter(move |(_, (heard, _))| now.duration_since(*heard) < SILENT);
        heard.filter_map(|(dataplane, (_, holds))| {
            Some((&**dataplane, &*holds.model, holds.failed.as_deref()?))
        })
    }

    /// All dataplanes whose deltas are others than those that are kept, with their model, and a phrase that continues "the dataplane ...".
    pub(super) fn diverged(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let all = self.diverged.iter();
        all.map(|((dataplane, model, _), why)| (&**dataplane, &**model, &**why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(model: &str, generations: &[u64], fingerprints: &[u32]) -> Holds {
        Holds {
            model: model.into(),
            generations: generations.into(),
            fingerprints: fingerprints.into(),
            failed: None,
        }
    }

    #[test]
    fn who_holds_another_generation_of_a_number_is_known_while_it_reports() {
        let (mut followers, now) = (Followers::default(), Instant::now());
        assert_eq!(followers.other(("m", 5), 7, now), None);
        followers.reported("a", holds("m", &[5, 4], &[8, 7]), now);
        followers.reported("old", holds("m", &[5], &[]), now);
        followers.reported("b", holds("n", &[5], &[9]), now);
        assert_eq!(followers.other(("m", 5), 7, now), Some(("a", 8)));
        assert_eq!(followers.other(("m", 5), 8, now), None);
        assert_eq!(followers.other(("m", 6), 7, now), None);
        let later = now + SILENT;
        assert_eq!(followers.other(("m", 5), 7, later), None, "it is silent");
        followers.reported("a", holds("m", &[5], &[8]), later);
        followers.reported("c", holds("m", &[5], &[7]), later);
        assert_eq!(followers.other(("m", 5), 7, later), None, "c holds it");
    }

    #[test]
    fn what_is_mended_is_forgotten() {
        let (mut followers, now) = (Followers::default(), Instant::now());
        let of = ("a", "m", 5);
        assert!(!followers.asked(of, None));
        assert!(followers.asked(of, Some("has others")));
        assert!(!followers.asked(of, Some("has others")));
        assert_eq!(followers.diverged().count(), 1);
        followers.reported("a", holds("m", &[5], &[8]), now);
        followers.reported("b", holds("m", &[4], &[8]), now);
        assert_eq!(
            followers.diverged().next(),
            Some(("a", "m", "has others")),
            "it still holds it"
        );
        assert!(followers.asked(of, None));
        assert_eq!(followers.diverged().count(), 0);
        followers.asked(of, Some("has others"));
        followers.reported("a", holds("m", &[6], &[8]), now);
        assert_eq!(followers.diverged().count(), 0, "it holds it no more");
        for generation in 0..2 * DIVERGED_MAX as u64 {
            followers.asked(("a", "m", generation), Some("has others"));
        }
        assert_eq!(followers.diverged().count(), DIVERGED_MAX);
    }
}
