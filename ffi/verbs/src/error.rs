//! What can go wrong: one enum for the crate, with the failed call and the kernel's answer kept.

use std::fmt;
use std::io;

use crate::status::Status;

/// A function of libibverbs, librdmacm or the C library that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(
    missing_docs,
    reason = "each variant is the C function that its text names"
)]
pub enum Call {
    Accept,
    AllocPd,
    BindAddr,
    Connect,
    CreateCompChannel,
    CreateCq,
    CreateEventChannel,
    CreateId,
    CreateQp,
    DeallocPd,
    DeregMr,
    DestroyCq,
    DestroyId,
    DestroyQp,
    Disconnect,
    Establish,
    EventFd,
    Fcntl,
    GetAsyncEvent,
    GetCmEvent,
    GetCqEvent,
    GetIfAddrs,
    InitQpAttr,
    Listen,
    Mmap,
    ModifyQp,
    Poll,
    PollCq,
    PostRecv,
    PostSend,
    QueryDevice,
    QueryGidTable,
    QueryPort,
    QueryQp,
    RegDmabufMr,
    RegMr,
    Reject,
    ReqNotifyCq,
    ResolveAddr,
    ResolveRoute,
    SetOption,
    Spawn,
}

impl Call {
    /// The function's name in C.
    pub fn name(self) -> &'static str {
        match self {
            Call::Accept => "rdma_accept",
            Call::AllocPd => "ibv_alloc_pd",
            Call::BindAddr => "rdma_bind_addr",
            Call::Connect => "rdma_connect",
            Call::CreateCompChannel => "ibv_create_comp_channel",
            Call::CreateCq => "ibv_create_cq",
            Call::CreateEventChannel => "rdma_create_event_channel",
            Call::CreateId => "rdma_create_id",
            Call::CreateQp => "ibv_create_qp",
            Call::DeallocPd => "ibv_dealloc_pd",
            Call::DestroyCq => "ibv_destroy_cq",
            Call::DeregMr => "ibv_dereg_mr",
            Call::DestroyId => "rdma_destroy_id",
            Call::DestroyQp => "ibv_destroy_qp",
            Call::Disconnect => "rdma_disconnect",
            Call::Establish => "rdma_establish",
            Call::EventFd => "eventfd",
            Call::Fcntl => "fcntl",
            Call::GetAsyncEvent => "ibv_get_async_event",
            Call::GetCmEvent => "rdma_get_cm_event",
            Call::GetCqEvent => "ibv_get_cq_event",
            Call::GetIfAddrs => "getifaddrs",
            Call::InitQpAttr => "rdma_init_qp_attr",
            Call::Listen => "rdma_listen",
            Call::Mmap => "mmap",
            Call::ModifyQp => "ibv_modify_qp",
            Call::Poll => "poll",
            Call::PollCq => "ibv_poll_cq",
            Call::PostRecv => "ibv_post_recv",
            Call::PostSend => "ibv_post_send",
            Call::QueryDevice => "ibv_query_device",
            Call::QueryGidTable => "ibv_query_gid_table",
            Call::QueryPort => "ibv_query_port",
            Call::QueryQp => "ibv_query_qp",
            Call::RegDmabufMr => "ibv_reg_dmabuf_mr",
            Call::RegMr => "ibv_reg_mr_iova2",
            Call::Reject => "rdma_reject",
            Call::ReqNotifyCq => "ibv_req_notify_cq",
            Call::ResolveAddr => "rdma_resolve_addr",
            Call::ResolveRoute => "rdma_resolve_route",
            Call::SetOption => "rdma_set_option",
            Call::Spawn => "pthread_create",
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why something of verbs or of the connection manager did not work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call failed.
    #[error("{call} failed{context}")]
    Call {
        /// The call.
        call: Call,
        /// The kernel's answer.
        #[source]
        errno: io::Error,
        /// What it was for and what may help, beginning with a separator; empty where there is nothing to add.
        context: String,
    },
    /// The device, its driver or the kernel can't do what was asked for.
    #[error("{what} is not supported by this device and kernel")]
    Unsupported {
        /// What was asked for.
        what: &'static str,
    },
    /// A limit is below what was asked for.
    #[error("{what}: {asked} were asked for and {granted} are granted")]
    Limit {
        /// What is limited, in the field's words.
        what: &'static str,
        /// How much was asked for.
        asked: u64,
        /// How much there is.
        granted: u64,
    },
    /// A number that the crate refuses, whatever the device thinks of it.
    #[error("{what} can't be {value}; {allowed}")]
    Refused {
        /// What was to be set.
        what: &'static str,
        /// The value.
        value: u64,
        /// What it may be, and why.
        allowed: &'static str,
    },
    /// There is no RDMA device where one was looked for.
    #[error(
        "no RDMA device at {wanted}; {seen}. See `rdma link`; for soft-RoCE: \
         `rdma link add rxe0 type rxe netdev NAME`"
    )]
    NoDevice {
        /// The network device or address that was wanted.
        wanted: String,
        /// The devices that there are, or why none could be listed.
        seen: String,
    },
    /// A work request ended badly.
    #[error("a work request of queue pair {qp} ended with `{status}` (vendor's code {vendor:#x})")]
    Completion {
        /// How it ended.
        status: Status,
        /// The vendor's code, for its support.
        vendor: u32,
        /// The queue pair's number.
        qp: u32,
    },
    /// The connection manager reports that a step of connecting failed.
    #[error("the connection manager reports {event} (status {status})")]
    CmEvent {
        /// The event's name in C.
        event: &'static str,
        /// Its status: a negative errno, or for a rejection the reason of the InfiniBand specification
        /// (8: nobody listens there; 10: the peer takes it for an old connection; 28: the peer's program).
        status: i32,
    },
}

impl Error {
    /// A failed call without more to say.
    pub(crate) fn call(call: Call, errno: io::Error) -> Error {
        Error::Call {
            call,
            errno,
            context: String::new(),
        }
    }

    /// The same failure with what the call was for, or what may help.
    #[must_use]
    pub(crate) fn context(self, more: impl fmt::Display) -> Error {
        match self {
            Error::Call {
                call,
                errno,
                context,
            } => Error::Call {
                call,
                errno,
                context: format!("{context}: {more}"),
            },
            other => other,
        }
    }

    /// The kernel's number, where a call failed.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Error::Call { errno, .. } => errno.raw_os_error(),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_and_errno_are_kept() {
        let error = Error::call(Call::RegMr, io::Error::from_raw_os_error(libc::ENOMEM))
            .context("64 MiB; raise RLIMIT_MEMLOCK");
        assert_eq!(
            error.to_string(),
            "ibv_reg_mr_iova2 failed: 64 MiB; raise RLIMIT_MEMLOCK"
        );
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        let source = std::error::Error::source(&error).expect("the kernel's answer");
        assert!(
            source.to_string().contains("Cannot allocate memory"),
            "{source}"
        );
    }
}
