//! What functions return where they fail: a status of C and a sentence.

use core::ffi::{CStr, c_int};

use rowmill_client::{ClientError, Failure, PortError, Status, cuda};

use crate::abi::rowmill_status::{self, *};

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Error {
    /// A `rowmill_status`.
    pub(crate) code: c_int,
    /// What is wrong and what to do.
    pub(crate) text: String,
}

impl Error {
    pub(crate) fn new(status: rowmill_status, text: impl Into<String>) -> Error {
        Error {
            code: status as c_int,
            text: text.into(),
        }
    }

    /// An argument is wrong.
    pub(crate) fn invalid(text: impl Into<String>) -> Error {
        Error::new(ROWMILL_INVALID, text)
    }
}

impl From<ClientError> for Error {
    fn from(error: ClientError) -> Error {
        let mut text = error.to_string();
        let code = match &error {
            ClientError::Endpoint { .. } => ROWMILL_CONNECT as c_int,
            ClientError::Port(port) => {
                if let PortError::System { source, .. } = port {
                    text = format!("{text}: {source}");
                }
                of_port(port)
            }
            ClientError::Closed
            | ClientError::GpuClosed
            | ClientError::Lost { .. }
            | ClientError::Stopped { .. } => ROWMILL_CLOSED as c_int,
            ClientError::NoAnswer { .. } | ClientError::Interrupted => ROWMILL_TIMEOUT as c_int,
            ClientError::Forked => ROWMILL_FORKED as c_int,
            ClientError::NoCredit
            | ClientError::NoSourceSpace
            | ClientError::ResultsHeld { .. }
            | ClientError::OutputInUse => ROWMILL_AGAIN as c_int,
            ClientError::Cuda(cuda::Error::NotDeviceMemory { .. } | cuda::Error::Empty) => {
                ROWMILL_INVALID as c_int
            }
            ClientError::Cuda(_)
            | ClientError::NoResult(_)
            | ClientError::NoDirectWay { .. }
            | ClientError::NoWay { .. } => ROWMILL_DEVICE as c_int,
            _ => ROWMILL_INVALID as c_int,
        };
        Error { code, text }
    }
}

fn of_port(error: &PortError) -> c_int {
    match error {
        PortError::Connect { .. } | PortError::Endpoint { .. } | PortError::Listen { .. } => {
            ROWMILL_CONNECT as c_int
        }
        PortError::Closed | PortError::Lost { .. } => ROWMILL_CLOSED as c_int,
        PortError::NoAnswer { .. } | PortError::Interrupted => ROWMILL_TIMEOUT as c_int,
        PortError::Refused { refusal, .. } => of_status(refusal.status),
        PortError::Protocol(_) | PortError::System { .. } | PortError::Unsupported { .. } => {
            ROWMILL_SYSTEM as c_int
        }
    }
}

impl From<PortError> for Error {
    fn from(error: PortError) -> Error {
        ClientError::from(error).into()
    }
}

/// The status of what the dataplane said: the protocol's code.
pub(crate) fn of_status(status: Status) -> c_int {
    c_int::from(status as u16)
}

/// What became of a request: its status, and the feature and position that it is about.
pub(crate) fn of_outcome(outcome: &Result<(), Failure>) -> (c_int, u32, u32) {
    match outcome {
        Ok(()) => (ROWMILL_OK as c_int, u32::MAX, u32::MAX),
        Err(Failure::Refused(refusal)) => {
            (of_status(refusal.status), refusal.feature, refusal.index)
        }
        Err(Failure::Disconnected) => (ROWMILL_CLOSED as c_int, u32::MAX, u32::MAX),
    }
}

/// The name of a status in the header.
pub(crate) fn name(code: c_int) -> &'static CStr {
    let named = NAMES.iter().find(|(status, _)| *status as c_int == code);
    named.map_or(c"unknown status", |(_, name)| name)
}

macro_rules! names {
    ($($status:ident)*) => {
        /// Every status with its name.
        pub(crate) const NAMES: &[(rowmill_status, &CStr)] = &[$((
            $status,
            match CStr::from_bytes_with_nul(concat!(stringify!($status), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("no name has a 0 inside"),
            },
        ),)*];
    };
}

names! {
    ROWMILL_OK ROWMILL_INVALID ROWMILL_CONNECT ROWMILL_CLOSED ROWMILL_FORKED ROWMILL_AGAIN ROWMILL_TIMEOUT ROWMILL_DEVICE
    ROWMILL_SYSTEM ROWMILL_INTERNAL ROWMILL_BUSY ROWMILL_EXPIRED ROWMILL_CANCELLED ROWMILL_DRAINING ROWMILL_RETRY ROWMILL_MALFORMED
    ROWMILL_UNSUPPORTED_VERSION ROWMILL_UNSUPPORTED ROWMILL_TOO_LARGE ROWMILL_UNKNOWN_SCHEMA ROWMILL_UNKNOWN_TABLE
    ROWMILL_UNKNOWN_FEATURE ROWMILL_OVERLAPPING_OUTPUTS ROWMILL_LENGTHS_MISMATCH ROWMILL_ID_OUT_OF_RANGE
    ROWMILL_ID_NEGATIVE ROWMILL_WEIGHTS_MISMATCH ROWMILL_UNKNOWN_ID ROWMILL_BLOCK_OVERFLOW ROWMILL_UNKNOWN_REGION
    ROWMILL_TARGET_OUT_OF_REGION ROWMILL_TARGET_MISALIGNED ROWMILL_SEGMENT_OUT_OF_REGION ROWMILL_REGION_LOST
    ROWMILL_REGION_UNSEALED ROWMILL_REGION_REFUSED ROWMILL_LIMIT_REACHED ROWMILL_REGION_FORBIDDEN ROWMILL_UNAVAILABLE
    ROWMILL_SERVER_INTERNAL ROWMILL_TRANSPORT_FAILED ROWMILL_ROW_UNAVAILABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `IdOutOfRange` as `ID_OUT_OF_RANGE`.
    fn screaming(name: &str) -> String {
        let mut out = String::new();
        for (at, letter) in name.char_indices() {
            if at > 0 && letter.is_ascii_uppercase() {
                out.push('_');
            }
            out.push(letter.to_ascii_uppercase());
        }
        out
    }

    #[test]
    fn every_status_of_the_protocol_is_in_the_header() {
        for &status in Status::ALL {
            let wanted = match status {
                Status::Internal => "ROWMILL_SERVER_INTERNAL".to_owned(),
                other => format!("ROWMILL_{}", screaming(other.name())),
            };
            let found = name(of_status(status)).to_str();
            assert_eq!(found, Ok(&*wanted), "{status:?}");
        }
        let own = NAMES.iter().filter(|(status, _)| (*status as c_int) < 0);
        assert_eq!(own.count() + Status::ALL.len(), NAMES.len());
        assert_eq!(name(12345), c"unknown status");
    }
}
