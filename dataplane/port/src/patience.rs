//! How long a call waits for the dataplane, and whether its caller wants it ended early.

use core::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::PortError;

/// Time between two questions to a caller: short enough that who presses Ctrl-C notices no delay.
const ASK: Duration = Duration::from_millis(50);

/// Whether who waits for the dataplane's answer to a control call wants the call ended. The default never does.
///
/// ```
/// # use rowmill_port::Interrupt;
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// let stop = Arc::new(AtomicBool::new(false));
/// let seen = Arc::clone(&stop);
/// let interrupt = Interrupt::when(move || seen.load(Ordering::Relaxed));
/// ```
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// When `check` says so. It is asked by the thread that waits, each 50 ms of the wait, not before the first 50 ms have
    /// passed. Where threads share a client, that thread holds the client's lock meanwhile: so the check must not wait for
    /// anybody who may be waiting for that client.
    pub fn when(check: impl Fn() -> bool + Send + Sync + 'static) -> Interrupt {
        Interrupt(Some(Arc::new(check)))
    }

    /// Sleeps for so long.
    ///
    /// # Errors
    /// [`PortError::Interrupted`].
    pub fn sleep(&self, time: Duration) -> Result<(), PortError> {
        let mut patience = Patience::new(time, self);
        loop {
            match patience.next_sleep() {
                Ok(sleep) => std::thread::sleep(sleep),
                Err(PortError::NoAnswer { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Some(_) => "Interrupt(when asked)",
            None => "Interrupt(never)",
        })
    }
}

/// A wait by the clock: what ends a sleep early, such as a signal, makes it no longer.
pub(crate) struct Patience {
    limit: Duration,
    until: Instant,
    interrupt: Interrupt,
    asked: Instant,
}

impl Patience {
    pub(crate) fn new(limit: Duration, interrupt: &Interrupt) -> Patience {
        let now = Instant::now();
        Patience {
            limit,
            // What no clock can tell is for ever.
            until: now
                .checked_add(limit)
                .unwrap_or_else(|| now + Duration::from_secs(1 << 32)),
            interrupt: interrupt.clone(),
            asked: now,
        }
    }

    /// How long to sleep now, more than nothing.
    ///
    /// # Errors
    /// [`PortError::NoAnswer`] when the time is over, [`PortError::Interrupted`].
    pub(crate) fn next_sleep(&mut self) -> Result<Duration, PortError> {
        let now = Instant::now();
        let left = self.until.saturating_duration_since(now);
        if left.is_zero() {
            return Err(PortError::NoAnswer { limit: self.limit });
        }
        let Some(check) = &self.interrupt.0 else {
            return Ok(left);
        };
        if now.duration_since(self.asked) >= ASK {
            self.asked = now;
            if check() {
                return Err(PortError::Interrupted);
            }
        }
        let ask = (self.asked + ASK).saturating_duration_since(now);
        Ok(left.min(ask).max(Duration::from_micros(1)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn its_time_ends_by_the_clock_however_often_it_is_asked() {
        // Before its time begins: a test that is held up in between would take less than all of it.
        let since = Instant::now();
        let mut patience = Patience::new(Duration::from_millis(30), &Interrupt::default());
        let over = loop {
            match patience.next_sleep() {
                Ok(sleep) => assert!(!sleep.is_zero() && sleep <= Duration::from_millis(30)),
                Err(error) => break error,
            }
        };
        assert!(since.elapsed() >= Duration::from_millis(30));
        assert_eq!(
            over.to_string(),
            "the dataplane did not answer within 30ms; see whether it is stopped or overloaded, and try again"
        );
        let mut endless = Patience::new(Duration::MAX, &Interrupt::default());
        assert!(endless.next_sleep().is_ok());
    }

    #[test]
    fn the_caller_is_asked_now_and_then_and_ends_it() {
        let asked = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&asked);
        let interrupt = Interrupt::when(move || seen.fetch_add(1, Ordering::Relaxed) == 2);
        let since = Instant::now();
        let slept = interrupt.sleep(Duration::from_secs(600));
        assert!(matches!(slept, Err(PortError::Interrupted)));
        assert_eq!(asked.load(Ordering::Relaxed), 3);
        assert!(since.elapsed() >= 3 * ASK, "it is not asked all the time");
    }
}
