//! Places for connections: where there is none left, the one that has been idle for longest makes room, and one that takes its
//! answers too slowly ends.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// A request is answered in this time: a policy is waited for so long, and a body may take ten seconds to come.
const ANSWER_PATIENCE: Duration = rowmill_link::HOLD.saturating_add(Duration::from_secs(15));
/// From an answer on, this is the time to take it and to send the next request; what waits for the next alone is ended before.
const TAKE_PATIENCE: Duration = Duration::from_secs(30);

/// Places of one listener. Clones are the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: Mutex<Taken>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    visits: BTreeMap<u64, Visit>,
}

#[derive(Debug)]
struct Visit {
    /// Whether a request is being answered; else it waits for one, or for its answer to be taken.
    busy: bool,
    /// Whether it has proved who it is, where that is asked: those that have not make room first.
    known: bool,
    since: Instant,
    ended: Arc<Notify>,
}

impl Visit {
    /// Whether it can be ended for another: one that is answered only if nobody knows who that is.
    fn gives_way(&self) -> bool {
        !self.busy || !self.known
    }
}

/// A place that is taken, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    number: u64,
    ended: Arc<Notify>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Places {
        Places(Arc::new(Shared {
            most,
            taken: Mutex::default(),
            changed: Notify::new(),
        }))
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().expect("a panic ends the process")
    }

    /// Waits until there is a place, or somebody idle who would make room. One waits at a time.
    pub(crate) async fn room(&self) {
        loop {
            {
                let taken = self.taken();
                if taken.visits.len() < self.0.most || taken.visits.values().any(Visit::gives_way) {
                    return;
                }
            }
            self.0.changed.notified().await;
        }
    }

    /// Takes a place, for which the one that has been idle for longest is ended where there is none; or one of whom it is not known who they
    /// are, if there is one. `known`: whether nothing is to be proved.
    pub(crate) fn take(&self, known: bool) -> Place {
        let mut taken = self.taken();
        if taken.visits.len() >= self.0.most {
            let giving = taken.visits.iter().filter(|(_, of)| of.gives_way());
            let oldest = giving
                .min_by_key(|(_, of)| (of.known, of.since))
                .map(|(&at, _)| at);
            if let Some(visit) = oldest.and_then(|at| taken.visits.remove(&at)) {
                visit.ended.notify_one();
            }
        }
        let (number, ended) = (taken.next, Arc::new(Notify::new()));
        taken.next += 1;
        let visit = Visit {
            busy: false,
            known,
            since: Instant::now(),
            ended: Arc::clone(&ended),
        };
        taken.visits.insert(number, visit);
        Place {
            places: self.clone(),
            number,
            ended,
        }
    }
}

impl Place {
    /// It has proved who it is.
    pub(crate) fn is_known(&self) {
        if let Some(visit) = self.places.taken().visits.get_mut(&self.number) {
            (visit.known, visit.since) = (true, Instant::now());
        }
    }

    /// A request has come, or is answered.
    pub(crate) fn is_busy(&self, busy: bool) {
        if let Some(visit) = self.places.taken().visits.get_mut(&self.number) {
            (visit.busy, visit.since) = (busy, Instant::now());
        }
        self.places.0.changed.notify_one();
    }

    /// Waits until the place is another's, or the time is over for what goes on. Returns why.
    pub(crate) async fn over(&self) -> &'static str {
        loop {
            let until = {
                let taken = self.places.taken();
                let Some(visit) = taken.visits.get(&self.number) else {
                    return "another one needed its place";
                };
                visit.since
                    + if visit.busy {
                        ANSWER_PATIENCE
                    } else {
                        TAKE_PATIENCE
                    }
            };
            if Instant::now() >= until {
                return "it took its answer too slowly";
            }
            tokio::select! {
                () = self.ended.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken().visits.remove(&self.number);
        self.places.0.changed.notify_one();
    }
}
