//! Sleeping until something completes, so that no completion is slept through.
//!
//! An armed completion queue sends one event to its channel, with the next completion. What came before it was armed
//! rings no bell, so it is polled once more between arming and sleeping; what comes after that is an event, which waits
//! in the channel's descriptor for whoever sleeps on it:
//!
//! ```text
//! device                             sleeper
//!   D1 completion into the queue       S1 arm the queue
//!   D2 armed? disarm it, send an event S2 poll the queue
//!                                      S3 nothing: sleep on the channel
//! ```
//!
//! If D2 comes before S1, D1 does too, and S2 sees the completion; otherwise an event is sent. A queue stays armed until
//! its event was taken, whether anybody slept or not. `tests/models` runs this in all orders that there are.

use std::time::Duration;

use rustix::io::Errno;

/// A thread with completion queues, and with other things that wake it.
pub(super) trait Sleeper {
    /// Takes what has completed, and whatever else is to be looked at.
    fn progress(&mut self);

    /// Arms the completion queues that are not armed; false if that fails.
    fn arm(&mut self) -> bool;

    /// Whether there is nothing to do with what has come.
    fn is_quiet(&self) -> bool;

    /// Sleeps until an event or something else may have come, or for `limit`.
    ///
    /// # Errors
    /// Of the system call.
    fn wait(&mut self, limit: Option<Duration>) -> Result<(), Errno>;

    /// Takes the events that have come; their queues are not armed any more.
    fn take_events(&mut self);
}

/// Arms the queues and looks once more. True if nothing has come: then it sleeps until an event may have, and takes the
/// events. To be called by who has polled and found nothing.
pub(super) fn lie_down(sleeper: &mut impl Sleeper) -> bool {
    if !sleeper.arm() {
        return false; // Whoever can't sleep polls.
    }
    sleeper.progress();
    sleeper.is_quiet()
}

/// Sleeps for at most `limit`, unless something has come.
///
/// # Errors
/// Of the system call.
pub(super) fn sleep(sleeper: &mut impl Sleeper, limit: Option<Duration>) -> Result<(), Errno> {
    if !lie_down(sleeper) {
        return Ok(());
    }
    let outcome = sleeper.wait(limit);
    sleeper.take_events();
    outcome
}
