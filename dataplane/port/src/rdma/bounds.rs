//! How many requests, receives and completions there can be: all the arithmetic of queues, in one place.

use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::limits::{MAX_CONTROL_BYTES, MAX_CREDITS, MAX_LANES, MAX_SLICES, SLOT_BYTES};

/// Bytes of a SEND of the control stream at most.
pub const FRAGMENT_BYTES: usize = 8192;
/// Of these, what says where the fragment belongs.
pub const FRAGMENT_HEADER: usize = 8;
/// Fragments of the longest control message.
pub const FRAGMENTS_MAX: u32 = MAX_CONTROL_BYTES.div_ceil(FRAGMENT_BYTES - FRAGMENT_HEADER) as u32;
/// Receives of a control queue pair: one side asks one thing at a time, and the other may say goodbye besides.
pub const CONTROL_RECEIVES: u32 = FRAGMENTS_MAX + 1;
/// Sends of a control queue pair: a message, a goodbye, and beats, of which one is under way at a time. A power of two.
pub const CONTROL_SENDS: u32 = 32;
/// Completions that a control queue pair can leave: everything completes in an error, and a last request behind it.
pub const CONTROL_COMPLETIONS: u32 = CONTROL_RECEIVES + CONTROL_SENDS + 1;

/// Connections that have not said hello, or are told that there is no room; the oldest makes room.
pub const GREETING_MAX: usize = 32;

/// WRITEs and READs of a lane that are not known to be done, beside status records.
const DATA_SENDS: u32 = 32;
/// What one slot can have waiting: the cancel of its last request (which the worker had not read when it finished
/// that), a request, and its cancel. Not more, since the worker reads in order.
const SUBMISSIONS_PER_SLOT: u32 = 3;
/// READs in flight at a time; devices have 16.
pub const READS: u8 = 16;
/// Bytes of the beat behind the record ring of lane 0: a counter, and a bit for each lane that moves.
pub const BEAT_BYTES: usize = 64;
/// Bytes of a beat that are written: the counter and four words of bits.
pub const BEAT_WRITTEN: usize = 8 + 4 * 8;

/// Records of a lane's ring, and the client's receives: each credit's request causes at most [`MAX_SLICES`] records,
/// and its slot is not used again before the last of them was read.
pub fn completions_for(credits: u16) -> u32 {
    (u32::from(credits) * MAX_SLICES).next_power_of_two()
}

/// Receives that a worker has posted for a connection.
pub fn worker_receives(credits: u16) -> u32 {
    u32::from(credits) * SUBMISSIONS_PER_SLOT
}

/// Sends that a worker can have posted to a connection: data, a final record a slot, and two more.
pub fn worker_sends(credits: u16) -> u32 {
    (DATA_SENDS + u32::from(credits) + 2).next_power_of_two()
}

/// Completions that a connection can leave in a worker's queue.
pub fn worker_completions(credits: u16) -> u32 {
    worker_receives(credits) + worker_sends(credits) + 1
}

/// Sends that a client can have posted to a lane: as many as the worker has receives, and two more.
pub fn client_sends(credits: u16) -> u32 {
    (worker_receives(credits) + 2).next_power_of_two()
}

/// Completions that a client's lane can have.
pub fn client_completions(credits: u16) -> u32 {
    completions_for(credits) + client_sends(credits) + 1
}

/// Blocks that a client has for frames that are too long to go inline: a slot's next request can be sent while the
/// one before is still to be acknowledged.
pub fn client_blocks(credits: u16) -> usize {
    2 * usize::from(credits)
}

/// Items that a worker can have waiting for a connection's send queue: all its records, and each block of the
/// worker's, as something to be placed or to be fetched.
pub fn outbox(credits: u16, blocks: u32) -> usize {
    completions_for(credits) as usize + 2 * blocks as usize
}

/// Clients that a worker's completion queue of `granted` completions has room for.
pub fn connections_max(wanted: u16, credits: u16, granted: u32) -> u16 {
    let room = granted / worker_completions(credits);
    wanted.min(u16::try_from(room).unwrap_or(u16::MAX))
}

/// Completions of the control thread's queue.
pub fn control_completions(max_connections: u16) -> u32 {
    (u32::from(max_connections) + GREETING_MAX as u32) * CONTROL_COMPLETIONS
}

/// Bytes of a lane's request slots.
pub fn slots_bytes(credits: u16) -> usize {
    usize::from(credits) * SLOT_BYTES
}

/// Bytes of a lane's record ring, with the beat.
pub fn ring_bytes(credits: u16) -> usize {
    completions_for(credits) as usize * COMPLETION_BYTES + BEAT_BYTES
}

const _: () = {
    assert!(FRAGMENTS_MAX == 17);
    assert!(CONTROL_SENDS.is_power_of_two());
    assert!(CONTROL_SENDS > FRAGMENTS_MAX + 1);
    assert!(BEAT_WRITTEN <= BEAT_BYTES);
    assert!(MAX_LANES as usize <= 4 * 64);
    // Numbers of records and frames are counted in 32 bits.
    assert!(MAX_CREDITS as u32 * MAX_SLICES < 1 << 31);
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_numbers_of_the_specification() {
        let of = |credits| {
            let (receives, sends) = (worker_receives(credits), worker_sends(credits));
            (
                receives,
                sends,
                completions_for(credits),
                client_sends(credits),
            )
        };
        assert_eq!(of(8), (24, 64, 512, 32));
        assert_eq!(of(64), (192, 128, 4096, 256));
        assert_eq!(of(256), (768, 512, 16_384, 1024));
        assert_eq!(connections_max(1000, 8, 32_767), 368);
        assert_eq!(connections_max(1000, 64, 32_767), 102);
        assert_eq!(connections_max(10, 64, 32_767), 10);
        // What soft-RoCE grants is enough for the most credits.
        assert!(client_completions(MAX_CREDITS) < 32_767);
    }

    proptest! {
        #[test]
        fn whatever_can_be_posted_completes(credits in 1..=MAX_CREDITS, wanted: u16, granted in 0u32..1 << 22) {
            let clients = connections_max(wanted, credits, granted);
            prop_assert!(u32::from(clients) * worker_completions(credits) <= granted);
            prop_assert!(clients <= wanted);
            prop_assert!(client_sends(credits) >= worker_receives(credits));
            prop_assert!(completions_for(credits) >= u32::from(credits) * MAX_SLICES);
            // A queue whose requests are signalled each half of it never fills up unseen.
            prop_assert!(worker_sends(credits) >= 32 && client_sends(credits) >= 4);
        }
    }
}
