//! Connecting again after a connection was lost.

use std::time::{Duration, Instant};

use rowmill_port as port;

use crate::error::ClientError;
use crate::options::Options;
use crate::ports::{AnyPort, Client};
use crate::session::Session;

/// Connects to a dataplane, and connects again when the connection was lost, with pauses that are random up to a bound
/// that doubles: a dataplane that restarts is not met by all its clients at the same moment.
///
/// What a session had, its schemas and regions, goes with it: bind and register anew.
///
/// ```no_run
/// # use std::time::Duration;
/// # use rowmill_client::{AnyPort, ClientError, Connector, Options, Session};
/// # fn serve(session: Session<AnyPort>) -> Result<(), ClientError> { Ok(()) }
/// let mut connector = Connector::new("rdma://10.0.0.1:7400", Options::default());
/// loop {
///     let session = connector.connect(Duration::from_secs(60))?;
///     match serve(session) {
///         Err(ClientError::Closed | ClientError::Lost { .. }) => continue,
///         other => break other,
///     }
/// }
/// # ; Ok::<(), ClientError>(())
/// ```
#[derive(Debug)]
pub struct Connector {
    url: String,
    options: Options,
    backoff: port::Backoff,
    /// The pause has been taken that the last loss is due.
    is_first: bool,
}

impl Connector {
    /// For the dataplane at `url`; see [`Client::connect`].
    pub fn new(url: &str, options: Options) -> Connector {
        Connector {
            url: url.to_owned(),
            options,
            backoff: port::Backoff::default(),
            is_first: true,
        }
    }

    /// Connects, trying again for at most `limit` where that can help: against a refusal only where the dataplane is full or ends.
    ///
    /// The first call tries at once. A later one pauses first, a short time where the connection before lasted.
    ///
    /// # Errors
    /// Those of [`Client::connect`]; of the last attempt.
    pub fn connect(&mut self, limit: Duration) -> Result<Session<AnyPort>, ClientError> {
        let until = Instant::now() + limit;
        if !std::mem::take(&mut self.is_first) {
            self.pause(until)?;
        }
        loop {
            let error = match Client::connect(&self.url, self.options.clone()) {
                Ok(session) => {
                    self.backoff.connected(Instant::now());
                    return Ok(session);
                }
                Err(error) => error,
            };
            let helps = match &error {
                ClientError::Port(error) => port::Backoff::helps(error),
                ClientError::Closed | ClientError::Lost { .. } | ClientError::NoAnswer { .. } => {
                    true
                }
                _ => false,
            };
            if !helps || !self.pause(until)? {
                return Err(error);
            }
        }
    }

    /// Pauses; false where no time is left for another attempt.
    fn pause(&mut self, until: Instant) -> Result<bool, ClientError> {
        let now = Instant::now();
        let pause = self.backoff.delay(now);
        let left = until.saturating_duration_since(now);
        self.options.interrupt.sleep(pause.min(left))?;
        Ok(pause < left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_tries_for_as_long_as_it_may_and_not_against_mistakes() {
        let mut connector = Connector::new("shm:/nowhere/at.sock", Options::default());
        let (since, limit) = (Instant::now(), Duration::from_millis(300));
        let error = connector.connect(limit).err().expect("nobody listens");
        assert!(matches!(error, ClientError::Port(_)), "{error}");
        assert!(since.elapsed() >= limit, "it tried again");
        let mut connector = Connector::new("http://x", Options::default());
        let error = connector.connect(Duration::from_secs(600)).err();
        assert!(matches!(error, Some(ClientError::Endpoint { .. })));
    }
}
