//! What exporter and reader say to one another: with connection requests, and by SENDs of a session.
//!
//! A message is a header of 8 bytes (version, kind, length of all of it) and a body; numbers are little-endian, texts a length of 16
//! bits and UTF-8. Every byte is a claim: what is parsed here is of the right form, and is compared with what there is by who asked.

use rowmill_verbs::PathMtu;
use rowmill_wire::Status;
use rowmill_wire::limits::MAX_NAME;

use super::super::private_data::SessionId;

/// The version of all of it.
pub const VERSION: u16 = 1;
/// Bytes of a connection request. That of a client of the port has others, so that one is never taken for the other.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of the reply to it.
pub const REPLY_BYTES: usize = 28;
/// Bytes of a header.
const HEADER: usize = 8;
/// Longest text for people, in bytes.
const TEXT_MAX: usize = 256;
/// The longest message: an [`Open`](Message::Open) with two names, or a refusal with its text.
pub const MESSAGE_MAX: usize = 512;

const _: () = assert!(HEADER + 40 + 2 * (2 + MAX_NAME) <= MESSAGE_MAX);
const _: () = assert!(HEADER + 4 + 2 + TEXT_MAX <= MESSAGE_MAX);

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A session, and the most bytes that the reader wants in a packet, if it says.
    Session {
        /// The reader's bound.
        path_mtu: Option<PathMtu>,
    },
    /// A lane of a session, to READ by.
    Lane {
        /// The session, as the reply to its connection said.
        session: SessionId,
    },
}

impl Asked {
    /// The bytes of the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..2].copy_from_slice(&VERSION.to_le_bytes());
        out[2..4].copy_from_slice(&(REQUEST_BYTES as u16).to_le_bytes());
        match self {
            Asked::Session { path_mtu } => {
                out[4] = 1;
                out[5] = path_mtu.map_or(0, PathMtu::code);
            }
            Asked::Lane { session } => {
                out[4] = 2;
                out[8..24].copy_from_slice(session);
            }
        }
        out
    }

    /// What a request asks for. Bytes beyond its own length are padding of the transport.
    ///
    /// # Errors
    /// UnsupportedVersion, Malformed.
    pub fn parse(bytes: &[u8]) -> Result<Asked, Status> {
        let bytes = sized(bytes, REQUEST_BYTES)?;
        let session: SessionId = bytes[8..24].try_into().expect("16 bytes");
        let are_zero = |part: &[u8]| part.iter().all(|&byte| byte == 0);
        if !are_zero(&bytes[6..8]) || !are_zero(&bytes[24..]) {
            return Err(Status::Malformed);
        }
        match bytes[4] {
            1 if are_zero(&session) => Ok(Asked::Session {
                path_mtu: path_mtu(bytes[5])?,
            }),
            2 if bytes[5] == 0 => Ok(Asked::Lane { session }),
            _ => Err(Status::Malformed),
        }
    }
}

/// What a session is granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its number, which nobody can guess.
    pub session: SessionId,
    /// How long it lasts after it was renewed, in milliseconds.
    pub lease_ms: u32,
    /// The exporter's bound of packets.
    pub path_mtu: Option<PathMtu>,
}

impl Reply {
    /// The bytes of the reply.
    pub fn encode(&self) -> [u8; REPLY_BYTES] {
        let mut out = [0; REPLY_BYTES];
        out[..2].copy_from_slice(&VERSION.to_le_bytes());
        out[2..4].copy_from_slice(&(REPLY_BYTES as u16).to_le_bytes());
        out[4..8].copy_from_slice(&self.lease_ms.to_le_bytes());
        out[8..24].copy_from_slice(&self.session);
        out[24] = self.path_mtu.map_or(0, PathMtu::code);
        out
    }

    /// What a reply grants.
    ///
    /// # Errors
    /// UnsupportedVersion, Malformed.
    pub fn parse(bytes: &[u8]) -> Result<Reply, Status> {
        let bytes = sized(bytes, REPLY_BYTES)?;
        if bytes[25..].iter().any(|&byte| byte != 0) {
            return Err(Status::Malformed);
        }
        Ok(Reply {
            lease_ms: u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes")),
            session: bytes[8..24].try_into().expect("16 bytes"),
            path_mtu: path_mtu(bytes[24])?,
        })
    }
}

/// The bytes that private data of this version have; what is behind them is padding.
fn sized(bytes: &[u8], len: usize) -> Result<&[u8], Status> {
    let u16_at = |at: usize| {
        let two = bytes.get(at..at + 2).ok_or(Status::Malformed)?;
        Ok(u16::from_le_bytes([two[0], two[1]]))
    };
    if u16_at(0)? != VERSION {
        return Err(Status::UnsupportedVersion);
    }
    if usize::from(u16_at(2)?) != len {
        return Err(Status::Malformed);
    }
    bytes.get(..len).ok_or(Status::Malformed)
}

fn path_mtu(code: u8) -> Result<Option<PathMtu>, Status> {
    match PathMtu::from_code(code) {
        None if code > 0 => Err(Status::Malformed),
        mtu => Ok(mtu),
    }
}

/// What tells a table of a generation from all others: what reader and exporter have to have alike before a row is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The model's name.
    pub model: String,
    /// The generation's number.
    pub generation: u64,
    /// The checksum of its files' checksums.
    pub fingerprint: u32,
    /// The table's name.
    pub table: String,
    /// Rows that are stored.
    pub rows: u64,
    /// Bytes from one row to the next.
    pub stride: u32,
    /// Dimensions.
    pub dim: u32,
    /// How a row is stored, as in [`TableEntry`](rowmill_wire::control::TableEntry).
    pub format: u32,
}

/// A message of a session. The reader asks for one thing at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The reader wants to read rows of a table.
    Open {
        /// What the answer names.
        number: u32,
        /// The table.
        table: Identity,
    },
    /// It may: the exporter has the very table.
    Granted {
        /// As in the question.
        number: u32,
        /// The first row's address.
        address: u64,
        /// The key of the memory.
        key: u32,
        /// Bytes of all rows.
        bytes: u64,
    },
    /// It may not.
    Refused {
        /// As in the question.
        number: u32,
        /// Why.
        text: String,
    },
    /// The reader wants its lease to begin anew.
    Renew {
        /// What the answer names.
        serial: u64,
    },
    /// It has.
    Renewed {
        /// As in the question.
        serial: u64,
    },
    /// It has not, and will not: what is read is to go. It lasts as long as it did.
    Ending {
        /// Why.
        text: String,
    },
    /// The reader reads no more.
    Close,
}

impl Message {
    /// Its bytes, at most [`MESSAGE_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MESSAGE_MAX);
        out.extend(VERSION.to_le_bytes());
        let kind: u16 = match self {
            Message::Open { .. } => 1,
            Message::Granted { .. } => 2,
            Message::Refused { .. } => 3,
            Message::Renew { .. } => 4,
            Message::Renewed { .. } => 5,
            Message::Ending { .. } => 6,
            Message::Close => 7,
        };
        out.extend(kind.to_le_bytes());
        out.extend([0; 4]);
        match self {
            Message::Open { number, table } => {
                out.extend(number.to_le_bytes());
                out.extend(table.fingerprint.to_le_bytes());
                out.extend(table.generation.to_le_bytes());
                out.extend(table.rows.to_le_bytes());
                out.extend(table.stride.to_le_bytes());
                out.extend(table.dim.to_le_bytes());
                out.extend(table.format.to_le_bytes());
                // One that is too long must not become another name: it is refused by who reads it.
                text(&mut out, &table.model, MAX_NAME + 1);
                text(&mut out, &table.table, MAX_NAME + 1);
            }
            Message::Granted {
                number,
                address,
                key,
                bytes,
            } => {
                out.extend(number.to_le_bytes());
                out.extend(key.to_le_bytes());
                out.extend(address.to_le_bytes());
                out.extend(bytes.to_le_bytes());
            }
            Message::Refused { number, text: why } => {
                out.extend(number.to_le_bytes());
                text(&mut out, why, TEXT_MAX);
            }
            Message::Renew { serial } | Message::Renewed { serial } => {
                out.extend(serial.to_le_bytes());
            }
            Message::Ending { text: why } => text(&mut out, why, TEXT_MAX),
            Message::Close => {}
        }
        let len = out.len() as u32;
        out[4..HEADER].copy_from_slice(&len.to_le_bytes());
        out
    }

    /// The message of exactly these bytes.
    ///
    /// # Errors
    /// UnsupportedVersion, Malformed, TooLarge.
    pub fn parse(bytes: &[u8]) -> Result<Message, Status> {
        let mut rest = Rest(bytes);
        if rest.u16()? != VERSION {
            return Err(Status::UnsupportedVersion);
        }
        let kind = rest.u16()?;
        if bytes.len() > MESSAGE_MAX {
            return Err(Status::TooLarge);
        }
        if rest.u32()? as usize != bytes.len() {
            return Err(Status::Malformed);
        }
        let message = match kind {
            1 => {
                let (number, fingerprint) = (rest.u32()?, rest.u32()?);
                let (generation, rows) = (rest.u64()?, rest.u64()?);
                let (stride, dim, format) = (rest.u32()?, rest.u32()?, rest.u32()?);
                let table = Identity {
                    model: rest.text(MAX_NAME)?,
                    table: rest.text(MAX_NAME)?,
                    generation,
                    fingerprint,
                    rows,
                    stride,
                    dim,
                    format,
                };
                Message::Open { number, table }
            }
            2 => {
                let (number, key) = (rest.u32()?, rest.u32()?);
                Message::Granted {
                    number,
                    key,
                    address: rest.u64()?,
                    bytes: rest.u64()?,
                }
            }
            3 => Message::Refused {
                number: rest.u32()?,
                text: rest.text(TEXT_MAX)?,
            },
            4 => Message::Renew {
                serial: rest.u64()?,
            },
            5 => Message::Renewed {
                serial: rest.u64()?,
            },
            6 => Message::Ending {
                text: rest.text(TEXT_MAX)?,
            },
            7 => Message::Close,
            _ => return Err(Status::Malformed),
        };
        match rest.0 {
            [] => Ok(message),
            _ => Err(Status::Malformed),
        }
    }
}

/// Appends a text, cut to the longest prefix of at most `most` bytes.
fn text(out: &mut Vec<u8>, value: &str, most: usize) {
    let mut cut = value.len().min(most);
    while !value.is_char_boundary(cut) {
        cut -= 1;
    }
    out.extend((cut as u16).to_le_bytes());
    out.extend(&value.as_bytes()[..cut]);
}

/// What of a message was not read.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Status> {
        let (part, rest) = self.0.split_at_checked(len).ok_or(Status::Malformed)?;
        self.0 = rest;
        Ok(part)
    }

    fn u16(&mut self) -> Result<u16, Status> {
        let bytes = self.take(2)?;
        Ok(u16::from_le_bytes(bytes.try_into().expect("2 bytes")))
    }

    fn u32(&mut self) -> Result<u32, Status> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
    }

    fn u64(&mut self) -> Result<u64, Status> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
    }

    fn text(&mut self, most: usize) -> Result<String, Status> {
        let len = usize::from(self.u16()?);
        if len > most {
            return Err(Status::TooLarge);
        }
        let text = core::str::from_utf8(self.take(len)?);
        text.map(str::to_owned).map_err(|_| Status::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever comes: what is accepted encodes to the bytes it came from.
        #[test]
        fn what_is_accepted_is_canonical(
            which in 0usize..7,
            changes in proptest::collection::vec((0usize..80, any::<u8>()), 0..4),
            noise in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let (_, mut bytes) = all().swap_remove(which);
            for (at, value) in changes {
                let at = at % bytes.len();
                bytes[at] = value;
            }
            for bytes in [&bytes, &noise] {
                if let Ok(message) = Message::parse(bytes) {
                    prop_assert_eq!(&message.encode(), bytes);
                }
                if let Ok(asked) = Asked::parse(bytes) {
                    prop_assert_eq!(&asked.encode(), &bytes[..REQUEST_BYTES]);
                }
                if let Ok(reply) = Reply::parse(bytes) {
                    prop_assert_eq!(&reply.encode(), &bytes[..REPLY_BYTES]);
                }
            }
        }
    }

    fn table() -> Identity {
        Identity {
            model: "demo".into(),
            generation: 7,
            fingerprint: 0xaabb_ccdd,
            table: "items".into(),
            rows: 1 << 33,
            stride: 512,
            dim: 128,
            format: 3,
        }
    }

    fn all() -> Vec<(Message, Vec<u8>)> {
        let open = [
            &[1, 0, 1, 0, 57, 0, 0, 0, 9, 0, 0, 0, 0xdd, 0xcc, 0xbb, 0xaa][..],
            &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0],
            &[0, 2, 0, 0, 128, 0, 0, 0, 3, 0, 0, 0],
            b"\x04\0demo\x05\0items",
        ];
        let granted = [
            &[1, 0, 2, 0, 32, 0, 0, 0, 9, 0, 0, 0, 0x44, 0x33, 0x22, 0x11][..],
            &[8, 7, 6, 5, 4, 3, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0],
        ];
        let (number, serial) = (9, 0x0102);
        vec![
            (
                Message::Open {
                    number,
                    table: table(),
                },
                open.concat(),
            ),
            (
                Message::Granted {
                    number,
                    address: 0x0102_0304_0506_0708,
                    key: 0x1122_3344,
                    bytes: 65536,
                },
                granted.concat(),
            ),
            (
                Message::Refused {
                    number,
                    text: "no".into(),
                },
                vec![1, 0, 3, 0, 16, 0, 0, 0, 9, 0, 0, 0, 2, 0, b'n', b'o'],
            ),
            (
                Message::Renew { serial },
                vec![1, 0, 4, 0, 16, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0],
            ),
            (
                Message::Renewed { serial },
                vec![1, 0, 5, 0, 16, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0],
            ),
            (
                Message::Ending { text: "x".into() },
                vec![1, 0, 6, 0, 11, 0, 0, 0, 1, 0, b'x'],
            ),
            (Message::Close, vec![1, 0, 7, 0, 8, 0, 0, 0]),
        ]
    }

    #[test]
    fn messages_have_these_bytes() {
        for (message, bytes) in all() {
            assert_eq!(message.encode(), bytes, "{message:?}");
            assert_eq!(Message::parse(&bytes), Ok(message));
        }
    }

    #[test]
    fn no_other_length_is_taken() {
        for (message, bytes) in all() {
            for len in 0..bytes.len() {
                assert_eq!(
                    Message::parse(&bytes[..len]),
                    Err(Status::Malformed),
                    "{message:?}"
                );
            }
            let mut longer = [&bytes[..], &[0]].concat();
            assert_eq!(Message::parse(&longer), Err(Status::Malformed));
            // Nor if it says that it is so long.
            longer[4..8].copy_from_slice(&(bytes.len() as u32 + 1).to_le_bytes());
            assert_eq!(Message::parse(&longer), Err(Status::Malformed));
            longer[0] = 2;
            assert_eq!(Message::parse(&longer), Err(Status::UnsupportedVersion));
        }
        assert_eq!(
            Message::parse(&[1, 0, 8, 0, 8, 0, 0, 0]),
            Err(Status::Malformed)
        );
        let long = [&[1, 0, 6, 0, 1, 2, 0, 0][..], &[0; MESSAGE_MAX - 7]].concat();
        assert_eq!(Message::parse(&long), Err(Status::TooLarge));
    }

    #[test]
    fn names_are_never_cut_to_other_names() {
        let mut long = table();
        long.table = "n".repeat(MAX_NAME + 9);
        let open = Message::Open {
            number: 0,
            table: long,
        };
        assert_eq!(Message::parse(&open.encode()), Err(Status::TooLarge));
        let ending = Message::Ending {
            text: "é".repeat(TEXT_MAX),
        };
        let parsed = Message::parse(&ending.encode());
        let text = "é".repeat(TEXT_MAX / 2);
        assert_eq!(parsed, Ok(Message::Ending { text }));
    }

    #[test]
    fn connection_requests_and_replies_have_these_bytes() {
        let mut session = [0; 16];
        (session[0], session[15]) = (0xaa, 0xbb);
        let lane = Asked::Lane { session };
        let bytes = lane.encode();
        assert_eq!(bytes[..9], [1, 0, 28, 0, 2, 0, 0, 0, 0xaa]);
        assert_eq!(bytes[23..], [0xbb, 0, 0, 0, 0]);
        let asked = Asked::Session {
            path_mtu: Some(PathMtu::Bytes512),
        };
        assert_eq!(asked.encode()[..7], [1, 0, 28, 0, 1, 2, 0]);
        let reply = Reply {
            session,
            lease_ms: 3000,
            path_mtu: Some(PathMtu::Bytes4096),
        };
        let bytes = reply.encode();
        assert_eq!(bytes[..9], [1, 0, 28, 0, 0xb8, 0x0b, 0, 0, 0xaa]);
        assert_eq!(bytes[23..], [0xbb, 5, 0, 0, 0]);
        assert_eq!(Reply::parse(&bytes), Ok(reply));
        for asked in [lane, asked] {
            // Transports pad private data with zeros.
            let padded = [&asked.encode()[..], &[0; 28]].concat();
            assert_eq!(Asked::parse(&padded), Ok(asked));
            for len in 0..REQUEST_BYTES {
                assert_eq!(Asked::parse(&padded[..len]), Err(Status::Malformed));
            }
        }
        let good = asked.encode();
        for (at, value, status) in [
            (0, 2, Status::UnsupportedVersion),
            (2, 52, Status::Malformed),
            (4, 0, Status::Malformed),
            (4, 3, Status::Malformed),
            (5, 6, Status::Malformed),
            (6, 1, Status::Malformed),
            (8, 1, Status::Malformed),
            (27, 1, Status::Malformed),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Asked::parse(&bad), Err(status), "byte {at}");
        }
        let mut bad = reply.encode();
        bad[24] = 9;
        assert_eq!(Reply::parse(&bad), Err(Status::Malformed));
        bad[24..26].copy_from_slice(&[0, 1]);
        assert_eq!(Reply::parse(&bad), Err(Status::Malformed));
    }
}
