//! How it stands with the control plane, for its threads to share and for the admin pages to show.

use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use rowmill_link::{Applied, GenerationsPolicy, Order, Policy};
use serde_json::{Value, json};

use super::follow::{Follower, Offer};
use crate::metrics::Metrics;

/// What of a policy can't be done is told of so many tables.
const TOLD: usize = 100;

/// See the module's text.
#[derive(Debug)]
pub struct ControlView {
    address: String,
    name: String,
    began: Instant,
    stand: Mutex<Stand>,
}

#[derive(Debug, Default)]
struct Stand {
    /// Whether reports are taken, and since when that is as it is.
    is_connected: bool,
    since: Option<Instant>,
    /// The last thing that went wrong, and whether that is over.
    error: Option<String>,
    follower: Follower,
    /// The generations that the policy that is followed wants held, if it wants some.
    generations: Option<GenerationsPolicy>,
    /// A policy that is to be obeyed, and nobody has begun to.
    untaken: Option<Policy>,
    /// Whether all shares of the policy that is followed are as it says, or can't be.
    is_done: bool,
    /// Why another one is not.
    other: Option<String>,
    /// What of the policy that is followed can't be done.
    refused: Vec<String>,
    /// Whether deltas can be fetched, or why not; none before it was tried.
    fetches: Option<Result<(), String>>,
    counts: Counts,
}

/// What is counted.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    policies: u64,
    refused: u64,
    reports: u64,
    errors: u64,
    samples: u64,
    samples_lost: u64,
}

impl ControlView {
    pub(super) fn new(address: &str, name: &str) -> ControlView {
        ControlView {
            address: address.into(),
            name: name.into(),
            began: Instant::now(),
            stand: Mutex::default(),
        }
    }

    /// Where the control plane is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    fn stand(&self) -> MutexGuard<'_, Stand> {
        self.stand.lock().expect("a panic ends the process")
    }

    /// What a policy has to be newer than to be told on a connection.
    pub(super) fn after(&self, connection: u64) -> Order {
        self.stand().follower.after(connection)
    }

    /// There is none newer. Returns why not to ask on that connection again, if so.
    pub(super) fn no_news(&self, control: Option<&str>, connection: u64) -> Result<(), String> {
        let now = self.began.elapsed();
        let mut stand = self.stand();
        let outcome = stand.follower.answered(control, connection, now);
        if let Err(why) = &outcome {
            stand.meets_another(why);
        }
        outcome
    }

    /// A report or samples were taken by `control`: why they should have gone to another one, if so.
    pub(super) fn told(&self, control: Option<&str>) -> Result<(), String> {
        let stand = self.stand();
        match control.and_then(|control| Some((control, stand.follower.wants(control)?))) {
            None => Ok(()),
            Some((control, wanted)) => Err(format!(
                "control plane {control} was told what {wanted} should be: two of them answer at one address; stop one"
            )),
        }
    }

    /// A policy was offered. Returns what becomes of it.
    pub(super) fn offered(&self, policy: Policy, connection: u64) -> Offer {
        let now = self.began.elapsed();
        let mut stand = self.stand();
        let (control, order) = (policy.control.clone(), policy.order);
        let offer = stand.follower.offered((&control, order), connection, now);
        match &offer {
            Offer::Taken => {
                stand.counts.policies += 1;
                stand.generations.clone_from(&policy.generations);
                (stand.untaken, stand.other) = (Some(policy), None);
                stand.refused.clear();
                stand.is_done = false;
            }
            Offer::Known => stand.other = None,
            Offer::Refused(why) => {
                stand.counts.refused += 1;
                stand.meets_another(why);
            }
        }
        offer
    }

    /// Whether a policy was refused last, or there was none from another one: someone else than who is followed answers at the address, at times at least.
    pub(super) fn is_offered_another(&self) -> bool {
        self.stand().other.is_some()
    }

    /// The policy that is to be obeyed, if nobody has begun to.
    pub(super) fn take(&self) -> Option<Policy> {
        self.stand().untaken.take()
    }

    /// This of the policy can't be done, unless there is another one already.
    pub(super) fn refuse(&self, order: Order, why: String) {
        let mut stand = self.stand();
        let is_this = stand.follower.followed().is_some_and(|f| f.order == order);
        if is_this && stand.refused.len() < TOLD {
            tracing::debug!("policy {order}: {why}");
            stand.refused.push(why);
        }
    }

    /// This can be done after all.
    pub(super) fn no_more(&self, why: &str) {
        self.stand().refused.retain(|refused| refused != why);
    }

    /// Of this policy no share is left to be changed.
    pub(super) fn done(&self, order: Order) {
        let mut stand = self.stand();
        if stand.follower.followed().is_some_and(|f| f.order == order) {
            stand.is_done = true;
        }
    }

    /// What a report tells of the policy that is followed, and whether shares are still to be changed for it.
    pub(super) fn applied(&self) -> (Option<Applied>, bool) {
        let stand = self.stand();
        let Some(followed) = stand.follower.followed() else {
            return (None, false);
        };
        let other = stand.other.iter().cloned();
        let applied = Applied {
            control: followed.control.clone(),
            order: followed.order,
            refused: stand.refused.iter().cloned().chain(other).collect(),
        };
        (Some(applied), !stand.is_done)
    }

    /// A report was taken, or why not.
    pub(super) fn reported(&self, failure: Option<&str>) {
        let mut stand = self.stand();
        let is_connected = failure.is_none();
        if is_connected != stand.is_connected || stand.since.is_none() {
            let (since, address) = (Some(Instant::now()), &self.address);
            match failure {
                None => tracing::info!("control plane at {address}: connected as {}", self.name),
                Some(why) => {
                    tracing::warn!("{why}; what is cached stays as it is until it is there")
                }
            }
            (stand.is_connected, stand.since) = (is_connected, since);
            // What kept it from being connected is over.
            stand.error = None;
        }
        match failure {
            None => stand.counts.reports += 1,
            Some(why) => stand.failed(why),
        }
    }

    /// Whether it took the last report.
    pub(super) fn is_connected(&self) -> bool {
        self.stand().is_connected
    }

    /// It was asked for deltas, or why not.
    pub(super) fn fetched(&self, outcome: Result<(), String>) {
        let mut stand = self.stand();
        if stand.fetches.as_ref() != Some(&outcome) {
            if let Err(why) = &outcome {
                tracing::warn!("deltas can't be fetched: {why}");
            }
            stand.fetches = Some(outcome);
        }
    }

    /// Asking for a policy has failed.
    pub(super) fn failed(&self, why: &str) {
        self.stand().failed(why);
    }

    /// So many samples were sent, or lost on the way.
    pub(super) fn sampled(&self, sent: u64, lost: u64) {
        let mut stand = self.stand();
        stand.counts.samples += sent;
        stand.counts.samples_lost += lost;
    }

    pub(crate) fn status(&self) -> Value {
        let stand = self.stand();
        let followed = stand.follower.followed().map(
            |followed| json!({ "control": followed.control, "order": followed.order.to_string() }),
        );
        let fetches = stand.fetches.as_ref().map(|outcome| match outcome {
            Ok(()) => "fetched",
            Err(why) => why,
        });
        json!({
            "address": self.address,
            "name": self.name,
            "connected": stand.is_connected,
            "for_s": stand.since.map(|since| since.elapsed().as_secs()),
            "followed": followed,
            "generations": stand.generations,
            "refused": stand.refused,
            "other": stand.other,
            "last_error": stand.error,
            "deltas": fetches,
            "reports": stand.counts.reports,
            "policies": stand.counts.policies,
            "policies_refused": stand.counts.refused,
            "errors": stand.counts.errors,
            "samples": stand.counts.samples,
            "samples_lost": stand.counts.samples_lost,
        })
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let stand = self.stand();
        let followed = stand.follower.followed();
        let order = followed.map_or(Order::default(), |followed| followed.order);
        let gauges = [
            (
                "connected",
                "Whether the control plane takes reports.",
                stand.is_connected.into(),
            ),
            (
                "epoch",
                "Epoch of the policy that is followed; 0 for none.",
                order.epoch,
            ),
            (
                "version",
                "Version of the policy that is followed.",
                order.version,
            ),
            (
                "undone",
                "What of the policy that is followed can't be done.",
                stand.refused.len() as u64,
            ),
        ];
        for (name, help, value) in gauges {
            let name = format!("rowmill_policy_{name}");
            out.family(&name, "gauge", help);
            out.sample(&name, "", value);
        }
        let counts = stand.counts;
        let counters = [
            ("taken", "Policies that were followed.", counts.policies),
            (
                "refused",
                "Policies of others, or older ones, that were not.",
                counts.refused,
            ),
            (
                "reports",
                "Reports that the control plane took.",
                counts.reports,
            ),
            (
                "errors",
                "Times the control plane could not be asked or told.",
                counts.errors,
            ),
            (
                "samples",
                "Sampled lookups that it was told.",
                counts.samples,
            ),
            (
                "samples_lost",
                "Sampled lookups that were lost on the way to it.",
                counts.samples_lost,
            ),
        ];
        for (name, help, value) in counters {
            let name = format!("rowmill_policy_{name}_total");
            out.family(&name, "counter", help);
            out.sample(&name, "", value);
        }
    }
}

impl Stand {
    fn meets_another(&mut self, why: &str) {
        if self.other.is_none() {
            tracing::warn!("{why}");
        }
        self.other = Some(why.into());
    }

    fn failed(&mut self, why: &str) {
        self.counts.errors += 1;
        self.error = Some(why.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_until_it_is_connected_again() {
        let view = ControlView::new("http://127.0.0.1:1", "dpu-1");
        view.failed("Connection refused");
        view.reported(Some("Connection refused"));
        assert_eq!(view.status()["last_error"], "Connection refused");
        view.reported(None);
        assert!(view.status()["last_error"].is_null());
        view.failed("no policy");
        view.reported(None);
        assert_eq!(view.status()["last_error"], "no policy");
    }

    #[test]
    fn a_policy_is_under_way_until_all_of_its_shares_are_changed() {
        let view = ControlView::new("http://127.0.0.1:1", "dpu-1");
        assert_eq!(view.applied(), (None, false));
        let order = |version| Order { epoch: 1, version };
        let offer = |version| {
            let policy = Policy {
                control: "c".into(),
                order: order(version),
                tables: Vec::new(),
                generations: None,
            };
            assert_eq!(view.offered(policy, 1), Offer::Taken);
        };
        let stands = || {
            let (applied, is_changing) = view.applied();
            (applied.map(|applied| applied.order), is_changing)
        };
        offer(1);
        assert_eq!(stands(), (Some(order(1)), true));
        view.done(order(1));
        assert_eq!(stands(), (Some(order(1)), false));
        offer(2);
        // What was done of the one before says nothing of this one.
        view.done(order(1));
        assert_eq!(stands(), (Some(order(2)), true));
    }
}
