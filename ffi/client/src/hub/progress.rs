//! The thread that looks for answers where nobody waits in person.
//!
//! It is one of those that wait (`waiters.rs`): it leads while nobody else does, and then sleeps at once, without polling first.
//! While no request has a bell or a watcher it is parked.

use std::sync::Arc;

use rowmill_port::{ClientPort, PortError, spawn_quiet};

use super::fork::InParent;
use super::shared::{Inner, Shared, panicked};
use super::waiters::Seat;
use crate::error::ClientError;
use crate::options::Wait;

/// Its name, as debuggers show it.
const NAME: &str = "rowmill-progress";

impl<P: ClientPort + Send + 'static> Shared<P> {
    /// Starts the thread, if there is none yet.
    pub(crate) fn start_progress(
        self: &Arc<Self>,
        inner: &mut Inner<P>,
    ) -> Result<(), ClientError> {
        if inner.progress.is_none() {
            let shared = Arc::clone(self);
            let thread = spawn_quiet(NAME, move || shared.progress());
            let thread = thread.map_err(|source| PortError::System {
                call: "starting the thread that looks for answers",
                source,
            })?;
            inner.progress = Some(InParent::new(self.process, thread));
        }
        Ok(())
    }

    /// Has the thread look, where it is parked.
    pub(crate) fn wake_progress(&self, inner: &mut Inner<P>) {
        if inner.parked && inner.has_progress() {
            self.turns.progress.notify_one();
        }
    }

    fn progress(&self) {
        while let Ok(true) = self.park() {
            let idle = |inner: &mut Inner<P>| (!inner.has_progress()).then_some(());
            if self
                .wait_until(Seat::Progress, Wait::Block, None, idle)
                .is_err()
            {
                break;
            }
        }
        // Where the client has stopped nobody else rings.
        let mut inner = self
            .acquire()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.table.end_all();
    }

    /// Sleeps until there is something to look for; false when the thread is to end.
    fn park(&self) -> Result<bool, ClientError> {
        let mut inner = self.lock()?;
        while !inner.has_progress() && !inner.ended {
            inner.parked = true;
            inner = self.turns.progress.wait(inner).map_err(|_| panicked())?;
            inner.parked = false;
            inner.check()?;
        }
        Ok(!inner.ended)
    }
}
