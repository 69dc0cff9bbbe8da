//! Making queue pairs: what is asked for, what is granted, and less inline where the device refuses.

use core::mem;
use core::ptr::NonNull;

use crate::attributes::Capacity;
use crate::completion::CompletionQueueHandle;
use crate::domain::ProtectionDomain;
use crate::error::{Call, Error};
use crate::limits::Limits;
use crate::sys;

/// Asked for when the device refuses what was wanted inline.
const MODEST_INLINE: u32 = 64;

/// Makes the queue pair, with less inline where the device refuses.
pub(crate) fn create(
    domain: &ProtectionDomain,
    sends: &CompletionQueueHandle,
    receives: &CompletionQueueHandle,
    capacity: Capacity,
) -> Result<(NonNull<sys::ibv_qp>, sys::ibv_qp_cap), Error> {
    let wanted = capacity.inline_bytes;
    let attempts = [wanted, MODEST_INLINE.min(wanted), 0];
    let mut outcome = try_create(domain, sends, receives, capacity, wanted);
    for pair in attempts.windows(2) {
        if outcome.is_ok() {
            break;
        }
        if pair[1] < pair[0] {
            tracing::debug!(
                refused = pair[0],
                next = pair[1],
                "less is asked for inline"
            );
            outcome = try_create(domain, sends, receives, capacity, pair[1]);
        }
    }
    outcome
}

fn try_create(
    domain: &ProtectionDomain,
    sends: &CompletionQueueHandle,
    receives: &CompletionQueueHandle,
    capacity: Capacity,
    inline_bytes: u32,
) -> Result<(NonNull<sys::ibv_qp>, sys::ibv_qp_cap), Error> {
    // SAFETY: attributes are plain numbers and pointers, for which zero is valid.
    let mut init: sys::ibv_qp_init_attr = unsafe { mem::zeroed() };
    init.send_cq = sends.raw();
    init.recv_cq = receives.raw();
    init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
    init.cap = sys::ibv_qp_cap {
        max_send_wr: capacity.sends + 1,
        max_recv_wr: capacity.receives,
        max_send_sge: capacity.pieces,
        max_recv_sge: 1,
        max_inline_data: inline_bytes,
    };
    // SAFETY: domain, completion queues and attributes are valid.
    let raw = sys::pointer(Call::CreateQp, unsafe {
        sys::ibv_create_qp(domain.raw(), &mut init)
    })
    .map_err(|error| error.context(format!("{capacity:?}")))?;
    let granted = init.cap;
    for (what, asked, granted) in [
        (
            "sends of a queue pair",
            capacity.sends + 1,
            granted.max_send_wr,
        ),
        (
            "receives of a queue pair",
            capacity.receives,
            granted.max_recv_wr,
        ),
        ("pieces of a request", capacity.pieces, granted.max_send_sge),
    ] {
        if let Err(error) = Limits::check(what, asked.into(), granted.into()) {
            // SAFETY: it was just made and is not used again.
            unsafe { sys::ibv_destroy_qp(raw.as_ptr()) };
            return Err(error);
        }
    }
    Ok((raw, granted))
}
