//! What happens over RDMA only.

use super::control::{BESIDE_HELD, MIDWAY};
use crate::faults::{Fault, Over, far, midway, rdma, remote};

/// What all faults over RDMA are bound by that cost a client its connection.
const TOLD: &str = "told within 2 s (emulated: 10 s), nothing held within as long after that; the innocent's answers \
                    bit-equal, each within 1 s (6 s)";

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "rdma-client-killed",
        "gone from /status",
        "nothing held within 2 s (emulated: 10 s); the innocent's answers bit-equal, each within 1 s (6 s)",
        rdma::client_killed,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-client-stopped",
        "goes on after SIGCONT",
        "its answers right; the innocent's bit-equal, each within 1 s (emulated: 6 s)",
        rdma::client_stopped,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-server-killed",
        "Lost (Disconnected)",
        "told within 2 s (emulated: 10 s); another one serves",
        rdma::server_killed,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-server-stopped",
        "Lost (PeerSilent)",
        "told within 2 s (emulated: 10 s), nothing held within as long after SIGCONT; nothing written to targets in use \
         again",
        rdma::server_stopped,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-never-reads",
        "OK; CutOff (Malformed) without receives",
        TOLD,
        rdma::never_reads,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-credits-exhausted",
        "CutOff (Malformed)",
        TOLD,
        rdma::credits_exhausted,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-key-wrong",
        "CutOff (RegionLost)",
        TOLD,
        rdma::wrong_key,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-region-deregistered",
        "CutOff (RegionLost)",
        TOLD,
        rdma::deregistered,
    )
    .over(Over::Rdma),
    Fault::new(
        "rdma-protocol-breach",
        "CutOff (Malformed)",
        TOLD,
        rdma::breaches,
    )
    .over(Over::Rdma),
    Fault::new("far-link-lost", "Lost", TOLD, far::link_lost).over(Over::Pair),
    Fault::new(
        "far-machine-reset",
        "gone from /status, then connected again",
        "nothing held within 2 s (emulated: 10 s); the innocent's answers bit-equal, each within 1 s (6 s)",
        far::machine_reset,
    )
    .over(Over::Pair),
    Fault::new(
        "exporter-killed",
        "each request OK, those whose READs were under way, too: rows from files, and from the exporter again when it is back",
        "every answer equal to the oracle's; the innocent's bit-equal",
        remote::killed,
    )
    .over(Over::Rdma),
    Fault::new(
        "exporter-stopped",
        "nothing is read once the lease is over; found again after SIGCONT",
        "every answer equal to the oracle's; the innocent's bit-equal, each within 1 s (emulated: 6 s)",
        remote::stopped,
    )
    .over(Over::Rdma),
    Fault {
        limit: MIDWAY,
        ..Fault::new(
            "midway-exporter-sigkill",
            "OK; the change ends whole, rows come from the exporter again when it is back",
            BESIDE_HELD,
            midway::exporter_killed,
        )
    }
    .over(Over::Rdma),
];
