//! How a work request ended.

use std::fmt;

use crate::sys::ibv_wc_status as raw;

/// The status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Status {
    /// It was carried out.
    Success,
    /// A local buffer is shorter than the message.
    LocalLength,
    /// The queue pair can't carry such a request out.
    LocalOperation,
    /// Local memory is not registered, or not for this.
    LocalProtection,
    /// Not carried out, since the queue pair is in the error state. Whatever moved it there has a status of its own.
    Flushed,
    /// Binding a memory window failed.
    WindowBind,
    /// The peer's answer makes no sense.
    BadResponse,
    /// The peer may not access local memory like that.
    LocalAccess,
    /// The peer can't carry such a request out, or its receive buffer is too short.
    RemoteInvalidRequest,
    /// The peer's memory is not registered for this: a wrong key, address, length or right.
    RemoteAccess,
    /// The peer failed to carry it out.
    RemoteOperation,
    /// No acknowledgement after all retries: the peer or the way to it is gone.
    RetriesExceeded,
    /// The peer had no receive posted after all retries.
    RnrRetriesExceeded,
    /// The peer gave up.
    RemoteAbort,
    /// The device failed.
    Fatal,
    /// The peer took too long over a READ or an atomic operation.
    ResponseTimeout,
    /// The device says nothing more precise.
    General,
    /// One of those that don't occur with reliable connections, or a newer one.
    Other(u32),
}

impl Status {
    /// The status that has this number in verbs.
    pub fn from_raw(status: u32) -> Status {
        match status {
            raw::IBV_WC_SUCCESS => Status::Success,
            raw::IBV_WC_LOC_LEN_ERR => Status::LocalLength,
            raw::IBV_WC_LOC_QP_OP_ERR => Status::LocalOperation,
            raw::IBV_WC_LOC_PROT_ERR => Status::LocalProtection,
            raw::IBV_WC_WR_FLUSH_ERR => Status::Flushed,
            raw::IBV_WC_MW_BIND_ERR => Status::WindowBind,
            raw::IBV_WC_BAD_RESP_ERR => Status::BadResponse,
            raw::IBV_WC_LOC_ACCESS_ERR => Status::LocalAccess,
            raw::IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
            raw::IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
            raw::IBV_WC_REM_OP_ERR => Status::RemoteOperation,
            raw::IBV_WC_RETRY_EXC_ERR => Status::RetriesExceeded,
            raw::IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetriesExceeded,
            raw::IBV_WC_REM_ABORT_ERR => Status::RemoteAbort,
            raw::IBV_WC_FATAL_ERR => Status::Fatal,
            raw::IBV_WC_RESP_TIMEOUT_ERR => Status::ResponseTimeout,
            raw::IBV_WC_GENERAL_ERR => Status::General,
            other => Status::Other(other),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Status::Success => "success",
            Status::LocalLength => "local length error",
            Status::LocalOperation => "local queue pair operation error",
            Status::LocalProtection => "local protection error",
            Status::Flushed => "flushed: the queue pair had failed",
            Status::WindowBind => "memory window bind error",
            Status::BadResponse => "bad response",
            Status::LocalAccess => "local access error",
            Status::RemoteInvalidRequest => "remote invalid request error",
            Status::RemoteAccess => "remote access error: wrong key, address, length or right",
            Status::RemoteOperation => "remote operation error",
            Status::RetriesExceeded => "retries exceeded: the peer or the way to it is gone",
            Status::RnrRetriesExceeded => "receiver-not-ready retries exceeded",
            Status::RemoteAbort => "remote abort",
            Status::Fatal => "fatal error of the device",
            Status::ResponseTimeout => "response timeout",
            Status::General => "general error",
            Status::Other(number) => return write!(f, "status {number}"),
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_specification() {
        for (number, status) in [
            (0, Status::Success),
            (5, Status::Flushed),
            (10, Status::RemoteAccess),
            (12, Status::RetriesExceeded),
            (13, Status::RnrRetriesExceeded),
            (21, Status::General),
            (23, Status::Other(23)),
            (1_000, Status::Other(1_000)),
        ] {
            assert_eq!(Status::from_raw(number), status);
        }
    }
}
