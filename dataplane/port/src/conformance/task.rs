//! The language in which the suite tells its workers what to do.

use rowmill_wire::Status;

/// What a frame asks of a [`Worker`](super::Worker).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Answer with the frame's [`fingerprint`] as request number and its length as delta. The bytes
    /// after the first can be anything; use [`Task::echo`] to make such a frame.
    Echo,
    /// Store [`pattern`] of `seed` in a region, in `slices` equal steps, each announced.
    Fill {
        /// The region.
        region: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes, a multiple of `slices`.
        len: u64,
        /// Which pattern; also the answer's request number.
        seed: u64,
        /// How many steps, at least 1.
        slices: u16,
    },
    /// Store [`pattern`] of `seed` as vectors at equal distances, and nothing between them.
    Stripe {
        /// The region.
        region: u32,
        /// Where the first vector starts.
        offset: u64,
        /// Bytes of a vector.
        bytes: u32,
        /// Bytes from one vector to the next.
        stride: u32,
        /// How many vectors, at least 1.
        count: u32,
        /// Which pattern; also the answer's request number.
        seed: u64,
    },
    /// Read bytes of one region and store them in another.
    Copy {
        /// The region read.
        from: u32,
        /// Where in it.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// The region stored to.
        to: u32,
        /// Where in it.
        to_offset: u64,
    },
    /// Do nothing until cancelled, then answer so.
    Hold,
    /// Cut this connection off.
    Close(Status),
}

impl Task {
    /// A frame of [`Task::Echo`] with `len` bytes that depend on `seed`.
    pub fn echo(len: usize, seed: u64) -> Vec<u8> {
        let mut frame = vec![0; len];
        pattern(seed, &mut frame);
        frame[0] = 0;
        frame
    }

    /// The task as a frame.
    pub fn frame(&self) -> Vec<u8> {
        let numbers = match self {
            Task::Echo => return vec![0; 16],
            Task::Fill {
                region,
                offset,
                len,
                seed,
                slices,
            } => [
                1,
                u64::from(*region),
                *offset,
                *len,
                *seed,
                u64::from(*slices),
            ],
            Task::Copy {
                from,
                offset,
                len,
                to,
                to_offset,
            } => [
                2,
                u64::from(*from),
                *offset,
                *len,
                u64::from(*to),
                *to_offset,
            ],
            Task::Stripe {
                region,
                offset,
                bytes,
                stride,
                count,
                seed,
            } => [
                5,
                u64::from(*region),
                *offset,
                u64::from(*bytes) << 32 | u64::from(*stride),
                u64::from(*count),
                *seed,
            ],
            Task::Hold => [3, 0, 0, 0, 0, 0],
            Task::Close(status) => [4, *status as u64, 0, 0, 0, 0],
        };
        numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    /// The task of a frame.
    ///
    /// # Panics
    /// If the suite did not make it: then the port damaged it.
    pub fn parse(frame: &[u8]) -> Task {
        if frame[0] == 0 {
            return Task::Echo;
        }
        let mut n = [0; 6];
        assert_eq!(frame.len(), 48, "a task's frame");
        for (number, bytes) in n.iter_mut().zip(frame.chunks_exact(8)) {
            *number = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        }
        match n[0] {
            1 => Task::Fill {
                region: n[1] as u32,
                offset: n[2],
                len: n[3],
                seed: n[4],
                slices: n[5] as u16,
            },
            2 => Task::Copy {
                from: n[1] as u32,
                offset: n[2],
                len: n[3],
                to: n[4] as u32,
                to_offset: n[5],
            },
            3 => Task::Hold,
            4 => Task::Close(Status::from_code(n[1] as u16).expect("a status")),
            5 => Task::Stripe {
                region: n[1] as u32,
                offset: n[2],
                bytes: (n[3] >> 32) as u32,
                stride: n[3] as u32,
                count: n[4] as u32,
                seed: n[5],
            },
            _ => panic!("a damaged frame: {frame:?}"),
        }
    }
}

/// Fills `out` with bytes that depend on `seed` and their place.
pub fn pattern(seed: u64, out: &mut [u8]) {
    for (i, bytes) in out.chunks_mut(8).enumerate() {
        let mixed = (seed ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 29).to_le_bytes();
        bytes.copy_from_slice(&mixed[..bytes.len()]);
    }
}

/// A number that changes with every byte of a frame (FNV-1a).
pub fn fingerprint(frame: &[u8]) -> u64 {
    frame.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
