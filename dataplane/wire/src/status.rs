//! What became of a request: a number on the wire, a sentence for a person.

use core::fmt;

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $advice:literal;)*) => {
        /// The outcome of a request or control call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum Status { $($(#[$doc])* $name = $code,)* }

        impl Status {
            /// Every status, in the order of the codes.
            pub const ALL: &'static [Status] = &[$(Status::$name,)*];

            /// The status of a code, or `None` for a code that this version does not know.
            pub fn from_code(code: u16) -> Option<Status> {
                match code { $($code => Some(Status::$name),)* _ => None }
            }

            /// What happened, in a few words.
            pub fn text(self) -> &'static str {
                match self { $(Status::$name => $text,)* }
            }

            /// What the caller can do about it.
            pub fn advice(self) -> &'static str {
                match self { $(Status::$name => $advice,)* }
            }

            /// The status' name as it stands in SPEC.md.
            pub fn name(self) -> &'static str {
                match self { $(Status::$name => stringify!($name),)* }
            }
        }
    };
}

statuses! {
    /// The result is complete in the target.
    Ok = 0, "done", "nothing to do";
    /// No slot was free.
    Busy = 1, "the worker has no free slot", "try again after a pause, or lower the load";
    /// The request's time ran out.
    Expired = 2, "the deadline passed before the work was done", "allow more time or lower the load";
    /// The client cancelled.
    Cancelled = 3, "cancelled by the client", "nothing to do";
    /// The service is going down.
    Draining = 4, "the service is shutting down", "connect to another dataplane";
    /// A generation that this dataplane does not hold (yet).
    Retry = 5, "the wanted generation is not here", "ask for the newest generation or try again";
    /// The frame's bytes contradict one another.
    Malformed = 16, "the message is malformed", "fix the client: see SPEC.md for the layout";
    /// Another version of the protocol.
    UnsupportedVersion = 17, "the protocol version is not supported", "use a client of this server's version";
    /// An operation or flag that this server does not have.
    Unsupported = 18, "the operation, flag or type is not supported", "use a newer server or another operation";
    /// More than a limit allows.
    TooLarge = 19, "the request exceeds a limit of the server", "split the request; the limits are in the welcome message";
    /// A schema id that is not bound.
    UnknownSchema = 32, "the schema is not bound on this connection", "bind the schema first";
    /// A table that the model does not have.
    UnknownTable = 33, "the model has no table of that name", "list the tables with `rowmill status` or the tables call";
    /// A request whose features differ from its schema's.
    UnknownFeature = 34, "the request's features are not those of the schema", "send one span for each feature of the schema, in its order";
    /// Two features would write the same bytes.
    OverlappingOutputs = 35, "two outputs of the schema overlap", "give each feature its own bytes, or strides that interleave";
    /// Lengths or offsets that don't add up.
    LengthsMismatch = 36, "the lengths do not add up to the number of ids", "send lengths whose sum is the feature's id count, or offsets that never fall";
    /// An id past the end of a dense table.
    IdOutOfRange = 37, "an id is not in the table", "send ids from 0 to rows - 1";
    /// An id with its sign bit set.
    IdNegative = 38, "an id is negative", "send ids from 0 to rows - 1";
    /// Weights missing or not wanted.
    WeightsMismatch = 39, "weights are missing, or sent for features that take none", "send one weight for each id exactly when a feature is weighted";
    /// An id that a hashed table lacks, where its answer to that is an error.
    UnknownId = 40, "an id is not among those of the hashed table", "send ids that the table has, or import it with a zero or default row for the others";
    /// More ids than the block of a feature that is not pooled holds.
    BlockOverflow = 41, "a feature that is not pooled has more ids than its block holds", "bind the schema with a larger max_ids, or split the batch";
    /// A region id that is not registered.
    UnknownRegion = 48, "the region is not registered on this connection", "register the region first";
    /// A target that leaves its region.
    TargetOutOfRegion = 49, "the target does not lie inside its region", "register a larger region or lower the base";
    /// A target that is not a multiple of its element size.
    TargetMisaligned = 50, "the target is misaligned", "make base, offset and stride multiples of the element's size: 4 bytes for f32, 2 for f16 and bf16";
    /// A segment that leaves its region.
    SegmentOutOfRegion = 51, "a segment does not lie inside its region", "register a larger region or fix the segment's offset and length";
    /// The region's memory was taken away.
    RegionLost = 52, "the region's memory is gone", "do not punch holes in or truncate a registered region; register a new one";
    /// The region's memfd can be shrunk.
    RegionUnsealed = 53, "the region is not sealed against shrinking and growing", "add F_SEAL_SHRINK and F_SEAL_GROW to the memfd before registering it";
    /// A region that can't be used for another reason.
    RegionRefused = 54, "the region cannot be mapped", "register a memfd of the stated size, at most the server's limit";
    /// More regions, schemas or connections than allowed.
    LimitReached = 55, "a limit of the connection or server is reached", "release what is no longer used";
    /// A region that was registered for something else.
    RegionForbidden = 56, "the region was not registered for this", "register memory for results and memory for request data apart, each with its right";
    /// The table's memory or file is gone.
    Unavailable = 64, "the table is unavailable", "check the server's log and reload the generation";
    /// The server's mistake.
    Internal = 65, "internal error of the server", "report it with the server's log";
    /// What the server sends to the client is not acknowledged, or can't be sent.
    TransportFailed = 66, "what is sent to the client does not arrive", "check the network and the client's host, and connect again";
    /// A row of a cached table that was not in memory and could not be fetched.
    RowUnavailable = 67, "a row could not be fetched from where its table lies", "try again where its disk or dataplane was late; a page that is damaged stays so: look at the table's tier in `rowmill status`";
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {}; {}",
            self.name(),
            *self as u16,
            self.text(),
            self.advice()
        )
    }
}

/// Marks a place that a refusal does not name.
pub const NOWHERE: u32 = u32::MAX;

/// A refused message: the status to answer with, and where in the message the reason lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub status: Status,
    /// The feature's index in the schema, or [`NOWHERE`].
    pub feature: u32,
    /// The index of the bag or id within the feature's span, or [`NOWHERE`].
    pub index: u32,
}

impl Refusal {
    /// A refusal of the whole message.
    pub fn whole(status: Status) -> Refusal {
        Refusal {
            status,
            feature: NOWHERE,
            index: NOWHERE,
        }
    }

    /// A refusal because of one feature.
    pub fn feature(status: Status, feature: u32) -> Refusal {
        Refusal {
            status,
            feature,
            index: NOWHERE,
        }
    }

    /// A refusal because of one bag or id of one feature.
    pub fn at(status: Status, feature: u32, index: u32) -> Refusal {
        Refusal {
            status,
            feature,
            index,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.feature != NOWHERE {
            write!(f, "feature {}", self.feature)?;
            if self.index != NOWHERE {
                write!(f, ", position {}", self.index)?;
            }
            write!(f, ": ")?;
        }
        self.status.fmt(f)
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_names_and_texts_are_unique_and_come_back() {
        let (mut codes, mut names, mut texts) = (HashSet::new(), HashSet::new(), HashSet::new());
        for &status in Status::ALL {
            assert!(codes.insert(status as u16), "{status}");
            assert!(names.insert(status.name()), "{status}");
            assert!(texts.insert(status.text()), "{status}");
            assert!(!status.advice().is_empty());
            assert_eq!(Status::from_code(status as u16), Some(status));
        }
        assert!(Status::ALL.is_sorted(), "ALL is in the order of the codes");
        let known = (0..=u16::MAX).filter_map(Status::from_code).count();
        assert_eq!(known, Status::ALL.len());
    }

    #[test]
    fn refusals_say_where() {
        let shown = |refusal: Refusal| refusal.to_string();
        let busy =
            "Busy (1): the worker has no free slot; try again after a pause, or lower the load";
        assert_eq!(shown(Refusal::whole(Status::Busy)), busy);
        assert!(shown(Refusal::feature(Status::UnknownTable, 3)).starts_with("feature 3: Unk"));
        let at = Refusal::at(Status::IdNegative, 0, 17);
        assert!(shown(at).starts_with("feature 0, position 17: IdNegative (38)"));
    }

    #[test]
    fn the_specification_lists_every_status() {
        let spec = include_str!("../SPEC.md");
        for status in Status::ALL {
            let row = format!("| {} | {} |", *status as u16, status.name());
            assert!(spec.contains(&row), "SPEC.md lacks `{row}`");
        }
    }
}
