//! What the crate takes from `rdma-sys`, what that crate lacks, and how C functions report failure.
//!
//! This is the only file that names `rdma_sys`. Three things of it are left out on purpose:
//!
//! * `ibv_reg_mr` and `ibv_query_port` are the symbols of old programs there: the C macros of the same
//!   names lead to `ibv_reg_mr_iova2` (which knows optional access flags) and `___ibv_query_port` (which
//!   fills the whole struct), so those are called.
//! * `ibv_async_event` has a Rust enum for its kind; a kind that a newer kernel reports would be
//!   undefined behaviour. [`AsyncEvent`] has the same layout with a plain number.
//! * Extended completion queues: polling them advances past the end on soft-RoCE, and plain ones are no slower.

use core::ffi::c_int;
use core::ptr::NonNull;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) use rdma_sys::{
    ___ibv_query_port, ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_async_event,
    ibv_comp_channel, ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp,
    ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_destroy_qp,
    ibv_device_attr, ibv_fork_init, ibv_get_async_event, ibv_get_cq_event, ibv_get_device_name,
    ibv_modify_qp, ibv_mr, ibv_pd, ibv_poll_cq, ibv_port_attr, ibv_port_state, ibv_post_recv,
    ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_cap, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_query_device, ibv_query_qp, ibv_query_qp_data_in_order,
    ibv_recv_wr, ibv_reg_dmabuf_mr, ibv_reg_mr_iova2, ibv_req_notify_cq, ibv_send_flags,
    ibv_send_wr, ibv_sge, ibv_wc, ibv_wc_flags, ibv_wc_status, ibv_wr_opcode,
    imm_data_invalidated_rkey_union_t, rdma_accept, rdma_ack_cm_event, rdma_bind_addr,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_connect,
    rdma_create_event_channel, rdma_create_id, rdma_destroy_event_channel, rdma_destroy_id,
    rdma_disconnect, rdma_establish, rdma_event_channel, rdma_get_cm_event, rdma_init_qp_attr,
    rdma_listen, rdma_port_space, rdma_reject, rdma_resolve_addr, rdma_resolve_route,
    rdma_set_option, rdma_t, wr_t,
};

use crate::error::{Call, Error};

/// Level of [`rdma_set_option`] for options of an id (an anonymous enum of `rdma_cma.h`).
pub(crate) const RDMA_OPTION_ID: c_int = 0;
/// The option for the type of service: a `uint8_t`.
pub(crate) const RDMA_OPTION_ID_TOS: c_int = 0;
/// The option to bind an address that another id listens on: an `int`.
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
/// The option for the ACK timeout's exponent: a `uint8_t`.
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;

/// An asynchronous event with its kind as a number; the layout of `ibv_async_event`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AsyncEvent {
    /// Pointer to the queue pair or completion queue, or the port's number (an `int`).
    pub(crate) element: u64,
    /// `IBV_EVENT_*`, or something newer.
    pub(crate) event_type: u32,
}

/// An entry of the GID table as `_ibv_query_gid_table` fills it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawGidEntry {
    pub(crate) gid: [u8; 16],
    pub(crate) gid_index: u32,
    pub(crate) port_num: u32,
    pub(crate) gid_type: u32,
    pub(crate) ndev_ifindex: u32,
}

unsafe extern "C" {
    /// `ibv_query_gid_table` is an inline function that calls this; bindgen's list of names misses it
    /// for its underscore.
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut RawGidEntry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize;
}

// The types that `rdma-sys` writes by hand instead of generating them, against the C headers (64 bit).
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<ibv_wc>() == 48);
    assert!(offset_of!(ibv_wc, status) == 8);
    assert!(offset_of!(ibv_wc, vendor_err) == 16);
    assert!(offset_of!(ibv_wc, imm_data_invalidated_rkey_union) == 24);
    assert!(offset_of!(ibv_wc, qp_num) == 28);
    assert!(offset_of!(ibv_wc, wc_flags) == 36);
    assert!(size_of::<ibv_send_wr>() == 128);
    assert!(offset_of!(ibv_send_wr, sg_list) == 16);
    assert!(offset_of!(ibv_send_wr, opcode) == 28);
    assert!(offset_of!(ibv_send_wr, imm_data_invalidated_rkey_union) == 36);
    assert!(offset_of!(ibv_send_wr, wr) == 40);
    assert!(size_of::<AsyncEvent>() == size_of::<ibv_async_event>());
    assert!(offset_of!(AsyncEvent, event_type) == offset_of!(ibv_async_event, event_type));
    assert!(size_of::<RawGidEntry>() == 32);
    assert!(size_of::<rdma_cm_event>() == 80);
    assert!(offset_of!(rdma_cm_event, param) == 24);
};

/// The answer of a function that returns 0 or, depending on the function and its age, either -1 with
/// `errno` set or the number itself.
pub(crate) fn check(call: Call, answer: c_int) -> Result<(), Error> {
    match answer {
        0 => Ok(()),
        number if number > 0 => Err(Error::call(call, io::Error::from_raw_os_error(number))),
        _ => Err(Error::call(call, io::Error::last_os_error())),
    }
}

/// The answer of a function that returns a pointer, or null with `errno` set.
pub(crate) fn pointer<T>(call: Call, answer: *mut T) -> Result<NonNull<T>, Error> {
    NonNull::new(answer).ok_or_else(|| Error::call(call, io::Error::last_os_error()))
}

/// Makes calls on a descriptor answer EAGAIN instead of waiting.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<(), Error> {
    // SAFETY: the descriptor is open, and its flags are numbers.
    let answer = unsafe {
        let flags = libc::fcntl(fd.as_raw_fd(), libc::F_GETFL);
        match flags {
            -1 => -1,
            flags => libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK),
        }
    };
    check(Call::Fcntl, answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(result: Result<(), Error>) -> Option<i32> {
        match result {
            Err(Error::Call { errno, .. }) => errno.raw_os_error(),
            _ => None,
        }
    }

    #[test]
    fn both_ways_to_report_failure_are_understood() {
        assert!(check(Call::ModifyQp, 0).is_ok());
        assert_eq!(
            errno(check(Call::ModifyQp, libc::EINVAL)),
            Some(libc::EINVAL)
        );
        // SAFETY: the location of this thread's errno is always valid.
        unsafe { *libc::__errno_location() = libc::ENODEV };
        assert_eq!(errno(check(Call::BindAddr, -1)), Some(libc::ENODEV));
        assert!(pointer::<u8>(Call::AllocPd, core::ptr::null_mut()).is_err());
    }
}
