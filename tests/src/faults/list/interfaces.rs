//! Wrong uses of the C interface and of the Python package, and results in the memory of a GPU.

use crate::faults::{Fault, Over, capi, gpu, python};

/// What wrong uses of the C interface are bound by.
const IN_C: &str =
    "a sentence that says what to do; no crash, no hang, nothing leaked on either side";
/// What wrong uses of the Python package are bound by.
const IN_PYTHON: &str = "an exception with a sentence that says what to do; no crash, no hang, nothing leaked on either side";

pub(super) const FAULTS: &[Fault] = &[
    Fault::new("c-connecting", "INVALID, CONNECT", IN_C, |site| {
        capi::misuse(site, "connecting")
    }),
    Fault::new("c-handles", "INVALID", IN_C, |site| {
        capi::misuse(site, "handles")
    }),
    Fault::new(
        "c-schemas",
        "INVALID, UNKNOWN_TABLE, OVERLAPPING_OUTPUTS",
        IN_C,
        |site| capi::misuse(site, "schemas"),
    ),
    Fault::new("c-regions", "INVALID", IN_C, |site| {
        capi::misuse(site, "regions")
    }),
    Fault::new("c-memories", "INVALID; OK where it fits", IN_C, |site| {
        capi::misuse(site, "memories")
    }),
    Fault::new("c-expired", "EXPIRED", IN_C, |site| {
        capi::misuse(site, "expired")
    }),
    Fault::new(
        "c-requests",
        "INVALID, RETRY, ID_OUT_OF_RANGE, ID_NEGATIVE; OK without ids",
        IN_C,
        |site| capi::misuse(site, "requests"),
    ),
    Fault::new(
        "c-stopped",
        "AGAIN, TIMEOUT, INVALID, CANCELLED; OK afterwards",
        IN_C,
        |site| capi::misuse(site, "stopped"),
    ),
    Fault::new(
        "c-forked",
        "FORKED in the child, OK in the parent",
        IN_C,
        |site| capi::misuse(site, "forked"),
    ),
    Fault::new("c-closed", "CLOSED", IN_C, |site| {
        capi::misuse(site, "closed")
    }),
    Fault::new("c-killed", "CLOSED", IN_C, |site| {
        capi::misuse(site, "killed")
    }),
    Fault::new("py-dtypes", "DtypeError", IN_PYTHON, |site| {
        python::misuse(site, "dtypes")
    }),
    Fault::new("py-not-contiguous", "InputError", IN_PYTHON, |site| {
        python::misuse(site, "gaps")
    }),
    Fault::new("py-zero-size", "results without rows; InputError", IN_PYTHON, |site| {
        python::misuse(site, "nothing")
    }),
    Fault::new("py-lengths", "InputError", IN_PYTHON, |site| {
        python::misuse(site, "lengths")
    }),
    Fault::new("py-features-in-another-order", "the same results; FeatureError", IN_PYTHON, |site| {
        python::misuse(site, "order")
    }),
    Fault::new("py-ids", "IdError, feature, position", IN_PYTHON, |site| {
        python::misuse(site, "ids")
    }),
    Fault::new("py-freed-in-flight", "the results", IN_PYTHON, |site| {
        python::misuse(site, "freed")
    }),
    Fault::new("py-closed", "ClosedError", IN_PYTHON, |site| {
        python::misuse(site, "closed")
    }),
    Fault::new("py-forked", "ClosedError in the child, results in the parent", IN_PYTHON, |site| {
        python::misuse(site, "fork")
    }),
    Fault::new("py-two-loops", "results in each; InputError", IN_PYTHON, |site| {
        python::misuse(site, "loops")
    }),
    Fault::new("py-ctrl-c", "KeyboardInterrupt, then results", IN_PYTHON, |site| {
        python::misuse(site, "ctrl-c")
    }),
    Fault::new("py-ctrl-c-connecting", "KeyboardInterrupt; ReplyTimeout, ConnectError", IN_PYTHON, |site| {
        python::misuse(site, "connecting")
    }),
    Fault::new("py-killed", "ClosedError", IN_PYTHON, |site| {
        python::misuse(site, "killed")
    }),
    Fault::new(
        "gpu-memory-without-nic",
        "staging, reported; NoDirectWay where refused",
        "results bit-equal to those in the host's memory",
        gpu::no_nic,
    )
    .over(Over::Any),
    Fault::new(
        "gpu-stream-at-sigkill",
        "NoResult (Disconnected)",
        "released and told within 1 s (rdma: 2 s, emulated: 10 s), NaNs; nothing of CUDA called by who releases",
        gpu::killed,
    )
    .over(Over::Any),
    Fault::new(
        "gpu-memory-through-nic",
        "nvidia-peermem, after a small transfer",
        "results bit-equal to those in the host's memory",
        gpu::through_nic,
    )
    .over(Over::Rdma),
];
