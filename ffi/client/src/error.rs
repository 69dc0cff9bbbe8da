//! What can go wrong on the client's side, each with what to do about it.

use core::fmt;
use core::time::Duration;

use rowmill_port::{Lost, PortError};
use rowmill_wire::Refusal;
use rowmill_wire::limits::{MAX_BATCH, MAX_FEATURES, MAX_IDS_PER_BAG};

use crate::device::StreamFailure;
use crate::memory::Target;

/// Why a batch is refused before anything is sent. Features and bags are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The number of bags is 0 or above the protocol's limit.
    #[error("a batch of {bags} bags: it must have between 1 and {MAX_BATCH}; split it")]
    Bags {
        /// Bags given.
        bags: usize,
    },
    /// More features than the protocol allows.
    #[error("a batch may have at most {MAX_FEATURES} features; use several schemas")]
    TooManyFeatures,
    /// The number of lengths is not that of the bags.
    #[error(
        "feature {feature}: {given} lengths for {bags} bags; give one length for each bag (offsets: one more than bags)"
    )]
    LengthCount {
        /// The feature.
        feature: usize,
        /// Lengths given, or offsets less one.
        given: usize,
        /// Bags of the batch.
        bags: u32,
    },
    /// Offsets fall.
    #[error(
        "feature {feature}: the offset after bag {bag} is below the one before it; offsets must never fall"
    )]
    OffsetsFall {
        /// The feature.
        feature: usize,
        /// The bag that would have a negative length.
        bag: usize,
    },
    /// A length below 0.
    #[error("feature {feature}, bag {bag}: a length of {length}; lengths must not be negative")]
    NegativeLength {
        /// The feature.
        feature: usize,
        /// The bag.
        bag: usize,
        /// Its length.
        length: i64,
    },
    /// A feature is to take the ids of a column that is not there.
    #[error(
        "feature {feature}: column {column} is not there; the lengths are those of {columns} columns"
    )]
    NoColumn {
        /// The feature.
        feature: usize,
        /// The column that was chosen for it.
        column: u32,
        /// Columns that there are.
        columns: usize,
    },
    /// The lengths don't add up to the ids given.
    #[error(
        "feature {feature}: the lengths add up to {sum} but {ids} ids are given; give lengths or offsets that divide all ids"
    )]
    LengthSum {
        /// The feature.
        feature: usize,
        /// The lengths' sum.
        sum: u64,
        /// Ids given.
        ids: usize,
    },
    /// A bag with more ids than the protocol allows.
    #[error(
        "feature {feature}, bag {bag}: {length} ids, but a bag may have at most {MAX_IDS_PER_BAG}; shorten it"
    )]
    LongBag {
        /// The feature.
        feature: usize,
        /// The bag.
        bag: usize,
        /// Its ids.
        length: u64,
    },
    /// The number of weights is not that of the ids.
    #[error("feature {feature}: {weights} weights for {ids} ids; give one weight for each id")]
    WeightCount {
        /// The feature.
        feature: usize,
        /// Weights given.
        weights: usize,
        /// Ids given.
        ids: usize,
    },
    /// 32-bit and 64-bit ids in one batch.
    #[error(
        "feature {feature}: its ids have another width than those before; give all of a batch as u32 or all as u64"
    )]
    MixedWidths {
        /// The first feature of the other width.
        feature: usize,
    },
    /// More ids than 32 bits count.
    #[error("feature {feature}: the batch has more ids than 32 bits can count; split it")]
    TooManyIds {
        /// The feature with which it became too many.
        feature: usize,
    },
}

/// Why a call of the client failed. What the dataplane refuses is no such error: it comes as the
/// outcome of an [`crate::Answer`].
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL names no port that this build has.
    #[error(
        "`{url}` can't be connected to: {reason}; this build supports shm:/path/to/NAME.sock and rdma://HOST:PORT"
    )]
    Endpoint {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The port failed.
    #[error(transparent)]
    Port(PortError),
    /// The dataplane is gone, or the client was closed; whatever was in flight came back as [`crate::Failure::Disconnected`].
    #[error("the connection was closed, by the dataplane or by this client; connect again")]
    Closed,
    /// The connection was lost; whatever was in flight came back as [`crate::Failure::Disconnected`], and nothing
    /// more is written to its targets.
    #[error("the connection was lost: {what}; connect again")]
    Lost {
        /// How.
        what: Lost,
    },
    /// A control call had no answer within [`Options::reply_limit`](crate::Options::reply_limit). The connection goes on, and so does
    /// what is in flight. The answer is heard when it comes: a region that it brings is given up, a schema is kept for the
    /// next call that binds an equal one. Until then further control calls wait for it, too.
    #[error(
        "the dataplane did not answer within {limit:?}; see whether it is stopped or overloaded, and try again"
    )]
    NoAnswer {
        /// How long the answer was waited for.
        limit: Duration,
    },
    /// The caller has ended a control call early ([`Options::interrupt`](crate::Options::interrupt)). The answer is heard as after
    /// [`ClientError::NoAnswer`].
    #[error("the call was interrupted by its caller before the dataplane had answered")]
    Interrupted,
    /// The batch contradicts itself.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The batch' features are not the schema's.
    #[error(
        "the batch has {given} features but the schema {bound}; push one for each, in the schema's order"
    )]
    FeatureCount {
        /// Features of the batch.
        given: usize,
        /// Features of the schema.
        bound: usize,
    },
    /// Weights are missing or not wanted.
    #[error("feature `{feature}` {}", if *wanted { "is weighted: push it with weights" } else { "takes no weights: push it without, or bind it as a weighted sum or mean" })]
    Weights {
        /// The feature's name.
        feature: String,
        /// Whether the schema wants weights.
        wanted: bool,
    },
    /// The batch is larger than what schema, options or server allow.
    #[error("{what}: {given} is more than the limit of {limit}; {advice}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// How large it is.
        given: u64,
        /// What is allowed.
        limit: u64,
        /// What to do.
        advice: &'static str,
    },
    /// Every slot that the request could take is in use.
    #[error(
        "no credit: all slots of enough lanes are in flight; poll for answers, then submit again"
    )]
    NoCredit,
    /// The requests in flight fill the source region.
    #[error(
        "no source space: the ids of requests in flight fill it; poll for answers, or connect with more `source_bytes` (at most half of the dataplane's `limits.max_region_bytes`)"
    )]
    NoSourceSpace,
    /// The range belongs to another target.
    #[error("bytes {offset} to {} of the region overlap a target that is held or in flight; release that one first", offset + bytes)]
    TargetInUse {
        /// Where the wanted range begins.
        offset: u64,
        /// Its length.
        bytes: u64,
    },
    /// The range leaves its region, or is misaligned.
    #[error("bytes {offset} to {} are no place for a target in a region of {region} bytes; stay inside, at a multiple of the elements' size", offset.saturating_add(*bytes))]
    TargetPlace {
        /// Where the wanted range begins.
        offset: u64,
        /// Its length.
        bytes: u64,
        /// The region's size.
        region: u64,
    },
    /// The target begins between two elements of the answer.
    #[error(
        "the target begins at byte {offset} of its region, no multiple of the {element} bytes of the schema's largest element; take another one"
    )]
    TargetMisaligned {
        /// Where it begins.
        offset: u64,
        /// Bytes of the largest element.
        element: u64,
    },
    /// Memory for answers begins between two of their elements.
    #[error(
        "the memory begins at address {address:#x}, no multiple of the {element} bytes of the largest element; give aligned memory"
    )]
    AddressMisaligned {
        /// Where it begins.
        address: u64,
        /// Bytes of the largest element.
        element: u64,
    },
    /// The target is smaller than the answer.
    #[error(
        "the answer takes {needed} bytes but the target has {bytes}; see BoundSchema::target_bytes"
    )]
    TargetTooSmall {
        /// Bytes that the answer takes.
        needed: u64,
        /// Bytes of the target.
        bytes: u64,
    },
    /// The region has no free range of that size.
    #[error(
        "the region has no {needed} free bytes in one piece; release targets or register a larger region"
    )]
    RegionFull {
        /// Bytes wanted.
        needed: u64,
    },
    /// The region still has targets.
    #[error("the region still has {targets} targets, held or in flight; release them first")]
    RegionInUse {
        /// How many.
        targets: u32,
    },
    /// No room is left for another result.
    #[error(
        "no room for a result of {needed} bytes: {held} results are in flight or held; release or drop those that are not needed, or connect with more room for results"
    )]
    ResultsHeld {
        /// Bytes that the result takes.
        needed: u64,
        /// Results that have their room.
        held: usize,
    },
    /// A part of a result that is not there.
    #[error("{what} is not in the result: there are {limit}")]
    NotInResult {
        /// What was asked for.
        what: &'static str,
        /// How much of it there is.
        limit: u64,
    },
    /// Something of another client, or a region that was given up.
    #[error(
        "the {what} is not one of this client, or was given up; use one that this client has made"
    )]
    OtherClient {
        /// What it is.
        what: &'static str,
    },
    /// The process was forked after the client had connected.
    #[error(
        "this process was forked after the client had connected, and the connection is the parent's; connect again in the child"
    )]
    Forked,
    /// The client has failed for all threads that share it. What was in flight has no answer.
    #[error("the client has stopped: {why}; connect again")]
    Stopped {
        /// Why.
        why: String,
    },
    /// Something of CUDA failed.
    #[error(transparent)]
    Cuda(#[from] rowmill_cuda::Error),
    /// The dataplane has no tables.
    #[error("the dataplane's model has no tables; ask its operator what it serves")]
    NoTables,
    /// A GPU's memory can't be written directly, and nothing else was wanted.
    #[error(
        "no NIC can write to the GPU's memory, and staging was ruled out: {report}; register it with staging allowed"
    )]
    NoDirectWay {
        /// What was tried, and what came of it.
        report: String,
    },
    /// Results can't come to a GPU's memory, neither directly nor by copies.
    #[error(
        "no way leads to the GPU's memory: {report}; see to the driver, or have results in the host's memory"
    )]
    NoWay {
        /// What was tried, and what came of it.
        report: String,
    },
    /// The output is still in use by its stream, so that no NIC may write there yet.
    #[error(
        "the stream still has work before the lookup, which may use the output; take another output, wait for the stream, or register with staging allowed"
    )]
    OutputInUse,
    /// A stream has gone on without the result that it waited for.
    #[error("a stream went on without its result, in whose place are NaNs: {0}")]
    NoResult(StreamFailure),
    /// The GPU was closed.
    #[error("the GPU was closed; open it again")]
    GpuClosed,
    /// A ticket whose answer was taken.
    #[error("the ticket's answer has already been taken")]
    UnknownTicket,
}

impl From<PortError> for ClientError {
    fn from(error: PortError) -> ClientError {
        match error {
            PortError::Closed => ClientError::Closed,
            PortError::Lost { what } => ClientError::Lost { what },
            PortError::NoAnswer { limit } => ClientError::NoAnswer { limit },
            PortError::Interrupted => ClientError::Interrupted,
            other => ClientError::Port(other),
        }
    }
}

impl ClientError {
    /// Whether the connection has ended.
    pub fn is_end(&self) -> bool {
        matches!(self, ClientError::Closed | ClientError::Lost { .. })
    }

    /// Whether it fails for memory that other results have.
    pub(crate) fn is_full(&self) -> bool {
        matches!(
            self,
            ClientError::ResultsHeld { .. } | ClientError::TargetInUse { .. }
        )
    }

    /// Whether the same call can succeed once answers have been polled for.
    pub fn would_block(&self) -> bool {
        matches!(self, ClientError::NoCredit | ClientError::NoSourceSpace)
    }
}

/// A request that gave no answer, and the target where it is still the caller's.
#[derive(Debug)]
pub struct Unsent {
    /// Why.
    pub error: ClientError,
    /// The target; `None` where the dataplane may still write to it (after a failure of the port
    /// that did not end the connection). It then comes back with no answer but the connection's end.
    pub target: Option<Target>,
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Unsent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl From<Unsent> for ClientError {
    fn from(unsent: Unsent) -> ClientError {
        unsent.error
    }
}

/// Why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The dataplane refused it or gave it up; bags and ids are counted over the whole batch.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The connection ended before the request did.
    #[error("the connection ended before the request did; connect again and repeat it")]
    Disconnected,
}
