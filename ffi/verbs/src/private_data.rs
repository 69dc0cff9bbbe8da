//! The few bytes that connection messages carry.

use std::fmt;

use crate::error::Error;

/// Bytes to go with a message of the connection manager that has room for `MOST`. The receiver may be told a larger
/// length, with zeros behind: a format of one's own has to say where it ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PrivateData<const MOST: usize> {
    bytes: [u8; MOST],
    len: u8,
}

/// With a request to connect.
pub type RequestData = PrivateData<56>;
/// With an answer that accepts.
pub type ReplyData = PrivateData<196>;
/// With an answer that refuses.
pub type RejectData = PrivateData<148>;
/// As it came from the peer.
pub type PeerData = PrivateData<255>;

impl<const MOST: usize> PrivateData<MOST> {
    /// These bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] if the message has no room for so many.
    pub fn new(from: &[u8]) -> Result<PrivateData<MOST>, Error> {
        const { assert!(MOST <= 255, "a length is one byte") };
        if from.len() > MOST {
            return Err(Error::Limit {
                what: "bytes of private data",
                asked: from.len() as u64,
                granted: MOST as u64,
            });
        }
        let mut bytes = [0; MOST];
        bytes[..from.len()].copy_from_slice(from);
        let len = from.len() as u8;
        Ok(PrivateData { bytes, len })
    }

    /// None at all.
    pub const fn none() -> PrivateData<MOST> {
        PrivateData {
            bytes: [0; MOST],
            len: 0,
        }
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u8 {
        self.len
    }
}

impl<const MOST: usize> fmt::Debug for PrivateData<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateData({} of at most {MOST} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_those_of_the_messages() {
        assert!(RequestData::new(&[1; 56]).is_ok() && RequestData::new(&[1; 57]).is_err());
        assert!(ReplyData::new(&[1; 196]).is_ok() && ReplyData::new(&[1; 197]).is_err());
        assert!(RejectData::new(&[1; 148]).is_ok() && RejectData::new(&[1; 149]).is_err());
        assert_eq!(PeerData::new(&[7; 9]).expect("bytes").as_slice(), [7; 9]);
        assert_eq!(PeerData::none().as_slice(), []);
    }
}
