//! What connection messages carry: who connects for what, and why it was refused.
//!
//! The request has room for the ticket that clients will have to show; until there are tickets, its place for the
//! ticket's id names the session, and two bytes of the nonce the lane.

use rowmill_verbs::PathMtu;
use rowmill_wire::Status;
use rowmill_wire::limits::VERSION;

/// Bytes of a request.
pub const REQUEST_BYTES: usize = 52;
/// Bytes of a reply.
pub const REPLY_BYTES: usize = 21;
/// Longest text of a refusal, in bytes.
pub const TEXT_MAX: usize = 120;

/// A session's number, which nobody can guess.
pub type SessionId = [u8; 16];

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A new session's control stream, and the most bytes that the client wants in a packet of the session, if it says. Both
    /// ends of a connection have to have one path MTU, so each is told the other's bound.
    Control {
        /// The client's bound.
        path_mtu: Option<PathMtu>,
    },
    /// A lane of a session.
    Lane {
        /// The session, as the reply to its control stream said.
        session: SessionId,
        /// The lane.
        lane: u16,
    },
}

const CONTROL: u8 = 1;
const LANE: u8 = 2;

impl Asked {
    /// The bytes of the request.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut out = [0; REQUEST_BYTES];
        out[..2].copy_from_slice(&VERSION.to_le_bytes());
        out[2..4].copy_from_slice(&(REQUEST_BYTES as u16).to_le_bytes());
        match self {
            Asked::Control { path_mtu } => {
                out[20] = CONTROL;
                out[21] = path_mtu.map_or(0, PathMtu::code);
            }
            Asked::Lane { session, lane } => {
                out[4..20].copy_from_slice(session);
                out[20] = LANE;
                out[22..24].copy_from_slice(&lane.to_le_bytes());
            }
        }
        out
    }

    /// What a request asks for. Bytes beyond its own length are padding of the transport.
    ///
    /// # Errors
    /// UnsupportedVersion, Malformed.
    pub fn parse(bytes: &[u8]) -> Result<Asked, Status> {
        let u16_at = |at: usize| {
            let two = bytes.get(at..at + 2).ok_or(Status::Malformed)?;
            Ok(u16::from_le_bytes([two[0], two[1]]))
        };
        if u16_at(0)? != VERSION {
            return Err(Status::UnsupportedVersion);
        }
        if usize::from(u16_at(2)?) != REQUEST_BYTES || bytes.len() < REQUEST_BYTES {
            return Err(Status::Malformed);
        }
        let session: SessionId = bytes[4..20].try_into().expect("16 bytes");
        let (kind, lane) = (bytes[20], u16_at(22)?);
        let rest_is_zero = bytes[24..].iter().all(|&byte| byte == 0);
        match kind {
            CONTROL if rest_is_zero && session == [0; 16] && lane == 0 => Ok(Asked::Control {
                path_mtu: path_mtu(bytes[21])?,
            }),
            LANE if rest_is_zero && bytes[21] == 0 => Ok(Asked::Lane { session, lane }),
            _ => Err(Status::Malformed),
        }
    }
}

/// A bound of packets: 0 where there is none.
fn path_mtu(code: u8) -> Result<Option<PathMtu>, Status> {
    match PathMtu::from_code(code) {
        None if code > 0 => Err(Status::Malformed),
        mtu => Ok(mtu),
    }
}

/// The smaller of two bounds of packets, which is what both ends take.
pub fn smaller(one: Option<PathMtu>, other: Option<PathMtu>) -> Option<PathMtu> {
    [one, other].into_iter().flatten().min()
}

/// The bytes of a reply that grants a session, with the server's bound of packets.
pub fn encode_reply(session: &SessionId, path_mtu: Option<PathMtu>) -> [u8; REPLY_BYTES] {
    let mut out = [0; REPLY_BYTES];
    out[..2].copy_from_slice(&VERSION.to_le_bytes());
    out[2..4].copy_from_slice(&(REPLY_BYTES as u16).to_le_bytes());
    out[4..20].copy_from_slice(session);
    out[20] = path_mtu.map_or(0, PathMtu::code);
    out
}

/// The session that a reply grants, and the server's bound of packets.
///
/// # Errors
/// UnsupportedVersion, Malformed.
pub fn parse_reply(bytes: &[u8]) -> Result<(SessionId, Option<PathMtu>), Status> {
    let head: [u8; REPLY_BYTES] = bytes
        .get(..REPLY_BYTES)
        .and_then(|head| head.try_into().ok())
        .ok_or(Status::Malformed)?;
    if head[..2] != VERSION.to_le_bytes() {
        return Err(Status::UnsupportedVersion);
    }
    if head[2..4] != (REPLY_BYTES as u16).to_le_bytes() {
        return Err(Status::Malformed);
    }
    let session = head[4..20].try_into().expect("16 bytes");
    Ok((session, path_mtu(head[20])?))
}

/// The bytes of a refusal: version, status, length of the text, the text, cut to its bound.
pub fn encode_refusal(status: Status, text: &str) -> Vec<u8> {
    let mut cut = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(cut) {
        cut -= 1;
    }
    let mut out = Vec::with_capacity(6 + cut);
    out.extend(VERSION.to_le_bytes());
    out.extend((status as u16).to_le_bytes());
    out.extend((cut as u16).to_le_bytes());
    out.extend(&text.as_bytes()[..cut]);
    out
}

/// Why a request was refused; `None` where the peer's bytes say nothing that is understood.
pub fn parse_refusal(bytes: &[u8]) -> Option<(Status, String)> {
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    // A peer of another version says so in the same place. Zeros are the transport's, of a peer that says nothing.
    let status = Status::from_code(u16_at(2)?).filter(|&status| status != Status::Ok)?;
    let text = bytes.get(6..)?.get(..usize::from(u16_at(4)?))?;
    Some((status, String::from_utf8(text.to_vec()).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_lie_as_the_specification_says() {
        let mut session = [0; 16];
        session[0] = 0xaa;
        session[15] = 0xbb;
        let lane = Asked::Lane { session, lane: 3 };
        let bytes = lane.encode();
        assert_eq!(bytes[..6], [3, 0, 52, 0, 0xaa, 0]);
        assert_eq!(bytes[18..26], [0, 0xbb, 2, 0, 3, 0, 0, 0]);
        let control = |path_mtu| Asked::Control { path_mtu }.encode();
        assert_eq!(control(None)[..4], [3, 0, 52, 0]);
        assert_eq!(control(None)[20..22], [1, 0]);
        assert_eq!(control(Some(PathMtu::Bytes512))[20..22], [1, 2]);
        let reply = encode_reply(&session, Some(PathMtu::Bytes4096));
        assert_eq!(reply[..5], [3, 0, 21, 0, 0xaa]);
        assert_eq!(reply[19..], [0xbb, 5]);
    }

    #[test]
    fn breaches_are_refused() {
        let control = Asked::Control { path_mtu: None };
        let good = control.encode();
        assert_eq!(Asked::parse(&good), Ok(control));
        for (at, value, status) in [
            (0, 9, Status::UnsupportedVersion),
            (2, 51, Status::Malformed),
            (4, 1, Status::Malformed),
            (20, 0, Status::Malformed),
            (20, 3, Status::Malformed),
            (21, 6, Status::Malformed),
            (22, 1, Status::Malformed),
            (51, 1, Status::Malformed),
        ] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Asked::parse(&bad), Err(status), "byte {at}");
        }
        assert_eq!(Asked::parse(&good[..51]), Err(Status::Malformed));
        assert_eq!(Asked::parse(&[]), Err(Status::Malformed));
        let mut lane = Asked::Lane {
            session: [1; 16],
            lane: 0,
        }
        .encode();
        lane[21] = 1;
        assert_eq!(Asked::parse(&lane), Err(Status::Malformed));
        let mut reply = encode_reply(&[1; 16], None);
        assert_eq!(parse_reply(&reply), Ok(([1; 16], None)));
        reply[20] = 6;
        assert_eq!(parse_reply(&reply), Err(Status::Malformed));
        assert_eq!(parse_reply(&reply[..20]), Err(Status::Malformed));
    }

    #[test]
    fn refusals_are_cut_at_a_character() {
        let long = "ä".repeat(100);
        let bytes = encode_refusal(Status::LimitReached, &long);
        assert!(bytes.len() <= 6 + TEXT_MAX);
        let (status, text) = parse_refusal(&bytes).expect("a refusal");
        assert_eq!((status, text), (Status::LimitReached, "ä".repeat(60)));
        assert_eq!(parse_refusal(&[]), None);
        assert_eq!(parse_refusal(&[0; 148]), None, "without a word");
        assert_eq!(parse_refusal(&[3, 0, 4, 0, 9, 0, b'x']), None);
    }

    proptest! {
        #[test]
        fn what_is_asked_comes_back(session: [u8; 16], lane: u16, code in 0u8..6, padding in 0usize..5) {
            let path_mtu = PathMtu::from_code(code);
            for asked in [Asked::Control { path_mtu }, Asked::Lane { session, lane }] {
                let mut bytes = asked.encode().to_vec();
                bytes.resize(bytes.len() + padding.min(4), 0);
                prop_assert_eq!(Asked::parse(&bytes), Ok(asked));
            }
            let mut bytes = encode_reply(&session, path_mtu).to_vec();
            bytes.resize(196, 0);
            prop_assert_eq!(parse_reply(&bytes), Ok((session, path_mtu)));
        }

        #[test]
        fn no_bytes_are_a_surprise(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = Asked::parse(&bytes);
            let _ = parse_reply(&bytes);
            let _ = parse_refusal(&bytes);
        }
    }
}
