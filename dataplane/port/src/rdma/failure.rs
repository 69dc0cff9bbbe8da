//! Failures of the verbs as failures of the port.

use std::io;

use rowmill_verbs::{Error, Status};

use crate::{Lost, PortError};

/// An error with its causes, in one line.
pub(super) fn in_full(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A call of this side that failed.
pub(super) fn system(call: &'static str, error: Error) -> PortError {
    PortError::System {
        call,
        source: io::Error::other(in_full(&error)),
    }
}

/// What a failed work request says of the connection.
pub(super) fn lost(status: Status) -> Lost {
    match status {
        Status::RetriesExceeded | Status::ResponseTimeout => Lost::TransportRetries,
        Status::RnrRetriesExceeded => Lost::NotReady,
        Status::RemoteAccess
        | Status::RemoteInvalidRequest
        | Status::RemoteOperation
        | Status::RemoteAbort => Lost::RemoteAccess,
        // What made it fail has a status of its own, at this side or at the other.
        Status::Flushed => Lost::Disconnected,
        _ => Lost::LocalFault,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_say_what_was_lost() {
        for (status, what) in [
            (Status::RetriesExceeded, Lost::TransportRetries),
            (Status::RnrRetriesExceeded, Lost::NotReady),
            (Status::RemoteAccess, Lost::RemoteAccess),
            (Status::Flushed, Lost::Disconnected),
            (Status::LocalProtection, Lost::LocalFault),
            (Status::Other(99), Lost::LocalFault),
        ] {
            assert_eq!(lost(status), what);
        }
    }
}
