//! Comes to the generations that the policy names, one change after the other, whatever is held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rowmill_link::{GenerationsPolicy, Order};
use rowmill_table::Resident;

use super::view::ControlView;
use crate::generations::{Change, ChangeError, Generations, Source, View, Wish};
use crate::places::Stand;

/// A change that has failed is tried again after this.
const AGAIN: Duration = Duration::from_secs(60);

/// Numbers that a control plane knows: what numbers of JSON are exact for in any language.
const NAMED: core::ops::RangeInclusive<u64> = 1..=1 << 53;

/// What is held, for reports.
#[derive(Clone)]
pub(super) struct Holder {
    /// What changes them.
    pub(super) generations: Arc<Generations>,
    pub(super) view: Arc<View>,
}

impl Holder {
    /// Numbers of the generations that are held, the newest first.
    pub(super) fn held(&self) -> Vec<u64> {
        let (held, _) = self.view.held();
        held.iter().map(|(_, held)| held.number).collect()
    }

    /// The same, each with the last delta that was applied to it.
    fn applied(&self) -> Vec<(u64, u64)> {
        let (held, _) = self.view.held();
        let held = held.iter();
        held.map(|(_, held)| (held.number, held.resident.delta()))
            .collect()
    }

    /// Their tables.
    pub(super) fn tables(&self) -> Vec<Arc<Resident>> {
        let (held, _) = self.view.held();
        held.into_iter()
            .map(|(_, held)| Arc::clone(&held.resident))
            .collect()
    }

    /// The same for a report: none where one of them can't be named there, and so can't be changed from there.
    pub(super) fn told(&self) -> Vec<u64> {
        let held = self.held();
        let named = held.iter().all(|number| NAMED.contains(number));
        if named { held } else { Vec::new() }
    }

    /// What tells each generation that is [told](Self::told) of from others of its number, in the same order.
    pub(super) fn fingerprints_told(&self) -> Vec<u32> {
        let (held, _) = self.view.held();
        match self.told().is_empty() {
            true => Vec::new(),
            false => held
                .iter()
                .map(|(_, held)| held.resident.fingerprint())
                .collect(),
        }
    }

    /// The last delta of each generation that is [told](Self::told) of, in the same order.
    pub(super) fn deltas_told(&self) -> Vec<u64> {
        match self.told().is_empty() {
            true => Vec::new(),
            false => self.applied().into_iter().map(|(_, last)| last).collect(),
        }
    }

    /// The last change, and how it stands.
    pub(super) fn last_change(&self) -> Option<String> {
        let change = self.generations.changes().pop()?;
        Some(told(&change))
    }
}

fn told(change: &Change) -> String {
    let stands = match change.state {
        Stand::Running => "under way",
        Stand::Done => "done",
        Stand::Failed => "failed",
    };
    match change.detail.is_empty() {
        true => format!("{}: {stands}", change.wish),
        false => format!("{}: {stands}: {}", change.wish, change.detail),
    }
}

/// A wish that could not be fulfilled.
struct Failed {
    wish: Wish,
    why: String,
    at: Instant,
}

/// See the module's text.
pub(super) struct Keeper {
    holder: Holder,
    wanted: Option<GenerationsPolicy>,
    under_way: Option<(u64, Wish)>,
    failed: Option<Failed>,
    /// The last change that was its own, or was made while the control plane was heard. One after that was asked for here while it was not.
    seen: u64,
}

impl Keeper {
    pub(super) fn new(holder: Holder) -> Keeper {
        Keeper {
            holder,
            wanted: None,
            under_way: None,
            failed: None,
            seen: 0,
        }
    }

    /// The number of the newest generation that is held.
    pub(super) fn newest(&self) -> Option<u64> {
        self.holder.held().first().copied()
    }

    /// A policy is followed that wants this.
    pub(super) fn want(
        &mut self,
        wanted: Option<GenerationsPolicy>,
        order: Order,
        view: &ControlView,
    ) {
        if wanted != self.wanted {
            self.failed = None;
        }
        if let Some(failed) = &self.failed {
            view.refuse(order, failed.why.clone());
        }
        self.wanted = wanted;
    }

    /// Whether something was changed here while the control plane was not heard. That stands until it is: nobody could ask there.
    fn stands_back(&mut self, view: &ControlView) -> bool {
        let changes = self.holder.generations.changes();
        let last = changes.last().map_or(0, |change| change.number);
        if view.is_connected() {
            self.seen = last;
        }
        last > self.seen
    }

    /// Begins the next change, once the one before is through.
    pub(super) fn go_on(&mut self, order: Order, view: &ControlView) {
        if self.stands_back(view) {
            return;
        }
        let next = |keeper: &Keeper| next(keeper.wanted.as_ref()?, &keeper.holder.held());
        if let Some((number, wish)) = &self.under_way {
            let changes = self.holder.generations.changes();
            let change = changes.iter().find(|change| change.number == *number);
            match change {
                Some(change) if change.state == Stand::Running => return,
                // What is not wanted any more is not told of.
                Some(change)
                    if change.state == Stand::Failed && next(self).as_ref() == Some(wish) =>
                {
                    let (wish, why) = (wish.clone(), change.detail.clone());
                    self.fail(wish, why, order, view);
                }
                _ => {}
            }
            self.under_way = None;
        }
        let Some(wish) = next(self) else {
            if let Some(failed) = self.failed.take() {
                view.no_more(&failed.why);
            }
            return;
        };
        let failed = self.failed.as_ref();
        if failed.is_some_and(|failed| failed.wish == wish && failed.at.elapsed() < AGAIN) {
            return;
        }
        match self.holder.generations.change(wish.clone()) {
            Ok(Some(number)) => (self.seen, self.under_way) = (number, Some((number, wish))),
            Ok(None) => {}
            Err(ChangeError::Busy(_)) => {}
            Err(ChangeError::Impossible(why)) => self.fail(wish, why, order, view),
        }
    }

    fn fail(&mut self, wish: Wish, why: String, order: Order, view: &ControlView) {
        let why = format!("generation {}: could not {wish}: {why}", number_of(&wish));
        let known = self.failed.take().map(|known| known.why);
        if known.as_ref() != Some(&why) {
            if let Some(other) = known {
                view.no_more(&other);
            }
            view.refuse(order, why.clone());
        }
        let at = Instant::now();
        self.failed = Some(Failed { wish, why, at });
    }
}

/// Those that [`next`] has name a number.
fn number_of(wish: &Wish) -> u64 {
    match wish {
        Wish::Load(Source::Number(number)) | Wish::Activate(number) | Wish::Unload(number) => {
            *number
        }
        Wish::Load(Source::Directory(_)) | Wish::Rollback => 0,
    }
}

/// The next change on the way to what is wanted, from what is held, the newest first: two at most.
pub fn next(wanted: &GenerationsPolicy, held: &[u64]) -> Option<Wish> {
    let (newest, other) = (*held.first()?, held.get(1).copied());
    if newest != wanted.newest {
        return Some(match other {
            Some(other) if other == wanted.newest => Wish::Activate(other),
            Some(other) => Wish::Unload(other),
            None => Wish::Load(Source::Number(wanted.newest)),
        });
    }
    let lacking = wanted.held.iter().find(|number| !held.contains(number));
    match other {
        Some(other) if !wanted.held.contains(&other) => Some(Wish::Unload(other)),
        Some(_) => None,
        None => lacking.map(|&number| Wish::Load(Source::Number(number))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_held_it_comes_to_what_is_wanted() {
        let sets: &[&[u64]] = &[&[1], &[2], &[1, 2], &[2, 1], &[1, 3], &[3, 1], &[3, 4]];
        for begun in sets {
            for wanted in sets {
                let policy = GenerationsPolicy {
                    held: wanted.to_vec(),
                    newest: wanted[0],
                    tries: 0,
                };
                let mut held = begun.to_vec();
                let mut steps = 0;
                while let Some(wish) = next(&policy, &held) {
                    match wish {
                        Wish::Load(Source::Number(number)) => held.push(number),
                        Wish::Activate(number) => {
                            assert_eq!(number, held[1]);
                            held.reverse();
                        }
                        Wish::Unload(number) => {
                            assert_eq!(number, held[1], "never the newest");
                            held.pop();
                        }
                        other => panic!("{other}"),
                    }
                    assert!(held.len() <= 2, "{held:?}");
                    steps += 1;
                    assert!(steps <= 5, "{begun:?} to {wanted:?}");
                }
                assert_eq!(held, *wanted, "from {begun:?}");
            }
        }
    }
}
