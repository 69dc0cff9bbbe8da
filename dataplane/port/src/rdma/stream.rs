//! Control messages as SENDs: cut into fragments, and put together again.
//!
//! A fragment is `total: u32, at: u32` and bytes of the message from `at` on. Each but the last is full, and they
//! come in order, so that a message never takes more receives than [`FRAGMENTS_MAX`](super::bounds::FRAGMENTS_MAX).

use rowmill_wire::limits::MAX_CONTROL_BYTES;

use super::bounds::{FRAGMENT_BYTES, FRAGMENT_HEADER};

const PAYLOAD: usize = FRAGMENT_BYTES - FRAGMENT_HEADER;

/// Writes the fragment that begins at byte `at` of a message; its length, and where the next one begins.
///
/// # Panics
/// If nothing is left of the message, or `out` is shorter than a fragment.
pub fn fragment(message: &[u8], at: usize, out: &mut [u8]) -> (usize, usize) {
    assert!(at < message.len(), "something is left");
    let part = &message[at..message.len().min(at + PAYLOAD)];
    out[..4].copy_from_slice(&(message.len() as u32).to_le_bytes());
    out[4..8].copy_from_slice(&(at as u32).to_le_bytes());
    out[FRAGMENT_HEADER..][..part.len()].copy_from_slice(part);
    (FRAGMENT_HEADER + part.len(), at + part.len())
}

/// A fragment that no honest peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Breach(pub &'static str);

/// Puts fragments together.
#[derive(Debug, Default)]
pub struct Assembler {
    message: Vec<u8>,
    total: usize,
}

impl Assembler {
    /// Takes a fragment; gives the message that it completes.
    ///
    /// # Errors
    /// [`Breach`]; what was there is forgotten.
    pub fn push(&mut self, fragment: &[u8]) -> Result<Option<Vec<u8>>, Breach> {
        let outcome = self.check(fragment);
        match outcome {
            Ok(payload) => {
                self.message.extend_from_slice(payload);
                if self.message.len() < self.total {
                    return Ok(None);
                }
                Ok(Some(std::mem::take(&mut self.message)))
            }
            Err(breach) => {
                self.message = Vec::new();
                Err(breach)
            }
        }
    }

    fn check<'f>(&mut self, fragment: &'f [u8]) -> Result<&'f [u8], Breach> {
        let (head, payload) = fragment
            .split_at_checked(FRAGMENT_HEADER)
            .ok_or(Breach("its fragment is shorter than a header"))?;
        let number = |at: usize| {
            let four = head[at..at + 4].try_into().expect("4 bytes");
            u32::from_le_bytes(four) as usize
        };
        let (total, at) = (number(0), number(4));
        if !(1..=MAX_CONTROL_BYTES).contains(&total) {
            return Err(Breach("its control message has an impossible length"));
        }
        let had = self.message.len();
        if at != had || had > 0 && total != self.total {
            return Err(Breach("its fragments do not follow one another"));
        }
        if payload.len() != PAYLOAD.min(total - at) {
            return Err(Breach(
                "its fragment has not the length that it should have",
            ));
        }
        self.total = total;
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::bounds::FRAGMENTS_MAX;
    use super::*;

    fn fragments(message: &[u8]) -> Vec<Vec<u8>> {
        let (mut at, mut all) = (0, Vec::new());
        while at < message.len() {
            let mut out = vec![0xee; FRAGMENT_BYTES];
            let (len, next) = fragment(message, at, &mut out);
            out.truncate(len);
            all.push(out);
            at = next;
        }
        all
    }

    #[test]
    fn messages_of_all_sizes_come_back() {
        let mut assembler = Assembler::default();
        for len in [
            1,
            7,
            PAYLOAD - 1,
            PAYLOAD,
            PAYLOAD + 1,
            3 * PAYLOAD,
            MAX_CONTROL_BYTES,
        ] {
            let message: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let all = fragments(&message);
            assert!(all.len() <= FRAGMENTS_MAX as usize);
            let (last, before) = all.split_last().expect("at least one");
            for fragment in before {
                assert_eq!(assembler.push(fragment), Ok(None));
            }
            assert_eq!(assembler.push(last), Ok(Some(message)));
        }
    }

    #[test]
    fn breaches_are_found() {
        let long = fragments(&vec![7; 3 * PAYLOAD]);
        let good = || {
            let mut assembler = Assembler::default();
            assert_eq!(assembler.push(&long[0]), Ok(None));
            assembler
        };
        for fragment in [&long[0], &long[2], &vec![], &vec![0; 7]] {
            assert!(good().push(fragment).is_err());
        }
        let changed = |at: usize, value: u8| {
            let mut fragment = long[1].clone();
            fragment[at] = value;
            fragment
        };
        assert!(good().push(&changed(0, 1)).is_err(), "another total");
        assert!(good().push(&changed(4, 1)).is_err(), "an overlap");
        assert!(good().push(&long[1][..100]).is_err(), "not full");
        let begin = |total: u32, len: usize| {
            let mut fragment = total.to_le_bytes().to_vec();
            fragment.resize(FRAGMENT_HEADER + len, 0);
            Assembler::default().push(&fragment)
        };
        assert!(begin(0, 0).is_err());
        assert!(begin(5, 6).is_err());
        assert!(begin(MAX_CONTROL_BYTES as u32 + 1, PAYLOAD).is_err());
        assert!(begin(u32::MAX, PAYLOAD).is_err());
        assert_eq!(begin(5, 5), Ok(Some(vec![0; 5])));
    }

    proptest! {
        #[test]
        fn no_bytes_are_a_surprise(all in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..64), 0..20,
        )) {
            let mut assembler = Assembler::default();
            for fragment in all {
                if let Ok(Some(message)) = assembler.push(&fragment) {
                    prop_assert!(message.len() <= MAX_CONTROL_BYTES);
                }
            }
        }
    }
}
