//! An event of a queue pair, from the device through the crate's thread and back.
//!
//! The troubles that the crate notes come of broken devices and of NICs that report what peers do wrong; soft-RoCE
//! reports neither. It does say when a send queue was drained, which the crate has no use for. So a bare queue pair is
//! made here, connected to itself, and drained.

use core::mem;
use core::ptr;
use std::time::{Duration, Instant};

use rdma_sys::ibv_qp_attr_mask as mask;
use rdma_sys::*;
use rowmill_verbs::{Context, DeviceWatch};

use crate::pair::{PATIENCE, device};

/// The context that librdmacm has open for the device.
unsafe fn raw_context(context: &Context) -> *mut ibv_context {
    let mut count = 0;
    // SAFETY: the list has `count` open contexts; librdmacm keeps them open after the list is freed.
    unsafe {
        let list = rdma_get_devices(&mut count);
        assert!(!list.is_null());
        let all = std::slice::from_raw_parts(list, count as usize);
        let name = |raw: &ibv_context| std::ffi::CStr::from_ptr(ibv_get_device_name(raw.device));
        let found = all
            .iter()
            .copied()
            .find(|raw| name(&**raw).to_bytes() == context.name().as_bytes());
        rdma_free_devices(list);
        found.expect("the same device")
    }
}

unsafe fn modify(
    qp: *mut ibv_qp,
    state: u32,
    with: ibv_qp_attr_mask,
    fill: impl FnOnce(&mut ibv_qp_attr),
) {
    // SAFETY: attributes are plain numbers; the caller's queue pair is valid.
    unsafe {
        let mut attr: ibv_qp_attr = mem::zeroed();
        attr.qp_state = state;
        fill(&mut attr);
        let all = mask::IBV_QP_STATE | with;
        assert_eq!(
            ibv_modify_qp(qp, &mut attr, all.0 as i32),
            0,
            "to state {state}"
        );
    }
}

/// Connects a queue pair to itself.
unsafe fn connect(context: &Context, qp: *mut ibv_qp) {
    let gid = context.gid().expect("a GID");
    // SAFETY: the caller's queue pair is valid.
    unsafe {
        let number = (*qp).qp_num;
        let init = mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        modify(qp, ibv_qp_state::IBV_QPS_INIT, init, |attr| {
            attr.port_num = context.port()
        });
        let rtr = mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        modify(qp, ibv_qp_state::IBV_QPS_RTR, rtr, |attr| {
            attr.path_mtu = ibv_mtu::IBV_MTU_1024;
            attr.dest_qp_num = number;
            attr.min_rnr_timer = 12;
            attr.ah_attr.is_global = 1;
            attr.ah_attr.port_num = context.port();
            attr.ah_attr.grh.dgid = ibv_gid { raw: gid.gid };
            attr.ah_attr.grh.sgid_index = gid.index as u8;
            attr.ah_attr.grh.hop_limit = 64;
        });
        let rts = mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        modify(qp, ibv_qp_state::IBV_QPS_RTS, rts, |attr| {
            attr.timeout = 14;
            attr.retry_cnt = 6;
            attr.rnr_retry = 6;
        });
    }
}

#[test]
fn an_event_of_a_queue_pair_is_seen_and_acknowledged() {
    let Some(context) = device() else { return };
    let watch = DeviceWatch::start(&context).expect("a watch");
    // SAFETY: everything is made on an open context, used while it lives, and destroyed once, in order.
    unsafe {
        let raw = raw_context(&context);
        let domain = ibv_alloc_pd(raw);
        let queue = ibv_create_cq(raw, 8, ptr::null_mut(), ptr::null_mut(), 0);
        assert!(!domain.is_null() && !queue.is_null());
        let mut init: ibv_qp_init_attr = mem::zeroed();
        init.send_cq = queue;
        init.recv_cq = queue;
        init.qp_type = ibv_qp_type::IBV_QPT_RC;
        init.cap.max_send_wr = 4;
        init.cap.max_send_sge = 1;
        let qp = ibv_create_qp(domain, &mut init);
        assert!(!qp.is_null());
        connect(&context, qp);
        let drained = ibv_qp_state::IBV_QPS_SQD;
        modify(qp, drained, mask::IBV_QP_EN_SQD_ASYNC_NOTIFY, |attr| {
            attr.en_sqd_async_notify = 1
        });
        let began = Instant::now();
        while watch.counts().other() == 0 {
            assert!(began.elapsed() < PATIENCE, "{watch:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // It would wait for ever for an event that is not acknowledged.
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(queue), 0);
        assert_eq!(ibv_dealloc_pd(domain), 0);
    }
    println!("{watch:?}");
    assert_eq!(watch.counts().queue_pair(), 0);
}
