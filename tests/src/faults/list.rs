//! The list of all faults.

mod cached;
mod control;
mod deltas;
mod generations;
mod interfaces;
mod rdma;

use super::{
    Fault, Over, clients, endings, files, ids, imports, large_imports, limits, load, modes,
    refusals, regions, schemas, sharing, starts, stream,
};

/// What all faults beside an innocent client whose rows are in memory are bound by, beside what the table says.
const UNHARMED: &str =
    "answered within 1 s; the innocent's answers bit-equal, each within 1 s; nothing leaked";
/// The same where some of the innocent's rows come from files.
const UNHARMED_BY_DISK: &str = "answered; the innocent's answers bit-equal, each within 10 s, as its rows come from the disk; nothing leaked";
/// What all programs that refuse to start are bound by.
const AT_START: &str = "exit code 1 within 1 s";
/// What all imports that are refused are bound by.
const AT_IMPORT: &str = "exit code 1 within 1 s, nothing left behind";

/// All faults.
pub fn every() -> impl Iterator<Item = &'static Fault> {
    let lists = [
        SERVICE,
        interfaces::FAULTS,
        cached::FAULTS,
        control::FAULTS,
        generations::FAULTS,
        deltas::FAULTS,
        rdma::FAULTS,
    ];
    lists.into_iter().flatten()
}

/// Those of the service over shared memory, in the order of the data's way.
const SERVICE: &[Fault] = &[
    Fault::new(
        "request-truncated",
        "Malformed",
        UNHARMED,
        refusals::truncated,
    )
    .over(Over::Any),
    Fault::new(
        "request-inconsistent",
        "the status of each case",
        UNHARMED,
        refusals::inconsistent,
    )
    .over(Over::Any),
    Fault::new(
        "request-overflow",
        "the status of each case",
        UNHARMED,
        refusals::overflow,
    )
    .over(Over::Any),
    Fault::new(
        "id-out-of-range",
        "IdOutOfRange, feature, index",
        UNHARMED,
        ids::out_of_range,
    )
    .over(Over::Any),
    Fault::new(
        "id-negative",
        "IdNegative, feature, index",
        UNHARMED,
        ids::negative,
    )
    .over(Over::Any),
    Fault::new(
        "key-unknown",
        "UnknownId, feature, index",
        UNHARMED,
        modes::unknown_key,
    )
    .over(Over::Any),
    Fault::new(
        "feature-unknown",
        "UnknownTable, -Schema, -Feature",
        UNHARMED,
        schemas::unknown,
    )
    .over(Over::Any),
    Fault::new(
        "schema-overlapping",
        "OverlappingOutputs",
        UNHARMED,
        schemas::overlapping,
    )
    .over(Over::Any),
    Fault::new(
        "target-outside",
        "TargetOutOfRegion, UnknownRegion",
        UNHARMED,
        schemas::outside,
    )
    .over(Over::Any),
    Fault::new(
        "target-misaligned",
        "TargetMisaligned",
        UNHARMED,
        schemas::misaligned,
    )
    .over(Over::Any),
    Fault::new(
        "target-misaligned-halves",
        "TargetMisaligned",
        UNHARMED,
        modes::misaligned_halves,
    )
    .over(Over::Any),
    Fault::new(
        "block-overflow",
        "BlockOverflow, Malformed, TooLarge",
        UNHARMED,
        modes::overflowing_block,
    )
    .over(Over::Any),
    Fault::new(
        "partials-unsupported",
        "Unsupported, feature",
        UNHARMED,
        modes::no_partials,
    )
    .over(Over::Any),
    Fault::new(
        "limits-reached",
        "LimitReached, TooLarge",
        UNHARMED,
        schemas::limits,
    )
    .over(Over::Any),
    Fault::new(
        "data-changed-under-way",
        "OK or a refusal, 5000 times",
        UNHARMED,
        regions::changing_data,
    ),
    Fault::new(
        "frame-changed-under-way",
        "OK or a refusal, 5000 times",
        UNHARMED,
        regions::changing_frames,
    ),
    Fault::new(
        "region-unsealed",
        "RegionUnsealed, RegionRefused",
        UNHARMED,
        regions::unsealed,
    ),
    Fault::new(
        "region-truncated",
        "RegionUnsealed; EPERM once sealed",
        UNHARMED,
        regions::truncated,
    ),
    Fault::new("region-hole", "RegionLost", UNHARMED, regions::hole),
    Fault {
        huge_pages: 8,
        ..Fault::new(
            "region-hole-no-page",
            "RegionLost",
            UNHARMED,
            regions::hole_without_a_page,
        )
    },
    Fault::new(
        "region-misused",
        "RegionForbidden",
        UNHARMED,
        regions::misused,
    )
    .over(Over::Any),
    Fault::new(
        "region-given-up",
        "UnknownRegion",
        UNHARMED,
        regions::given_up,
    )
    .over(Over::Any),
    Fault::new(
        "client-vanishes",
        "gone from /status",
        UNHARMED,
        clients::vanishes,
    )
    .over(Over::Any),
    Fault::new(
        "client-never-reads",
        "not waited for",
        UNHARMED,
        clients::never_reads,
    ),
    Fault::new(
        "slot-used-again",
        "cut off",
        UNHARMED,
        clients::slot_used_again,
    ),
    Fault::new("protocol-breach", "cut off", UNHARMED, clients::breaches),
    Fault::new(
        "silent-connections",
        "dropped after 2 s",
        UNHARMED,
        stream::silent,
    ),
    Fault::new(
        "socket-garbage",
        "refused with a status, closed",
        UNHARMED,
        stream::garbage,
    ),
    Fault::new(
        "admin-garbage",
        "400, 404, 405",
        UNHARMED,
        stream::admin_garbage,
    ),
    Fault::new("deadline-passed", "Expired", UNHARMED, load::deadline).over(Over::Any),
    Fault::new(
        "overload",
        "Busy",
        "BUSY within 1 s; answers bit-equal, each within 1 s",
        load::overload,
    )
    .over(Over::Any),
    Fault::new(
        "table-bit-flipped",
        "table, page and bytes named",
        AT_START,
        files::flipped,
    ),
    Fault::new(
        "table-truncated",
        "sizes promised and found",
        AT_START,
        files::truncated,
    ),
    Fault::new("table-missing", "file named", AT_START, files::missing),
    Fault::new(
        "table-header-damaged",
        "file named",
        AT_START,
        files::header,
    ),
    Fault::new(
        "table-index-damaged",
        "table and place named",
        AT_START,
        files::index,
    ),
    Fault::new(
        "checksums-damaged",
        "file named",
        AT_START,
        files::checksums,
    ),
    Fault::new(
        "manifest-promises-more",
        "sizes promised and found",
        AT_START,
        files::promises,
    ),
    Fault::new(
        "manifest-damaged",
        "a checksum that does not match",
        AT_START,
        files::damaged_manifest,
    ),
    Fault::new(
        "manifest-nonsense",
        "what is wrong in it",
        AT_START,
        files::nonsense,
    ),
    Fault::new(
        "manifest-path-traversal",
        "file name refused",
        AT_START,
        files::traversal,
    ),
    Fault::new(
        "import-not-finite",
        "file, row, column",
        AT_IMPORT,
        imports::not_finite,
    ),
    Fault::new(
        "import-value-unfit",
        "file, row, dimension",
        AT_IMPORT,
        imports::unfit,
    ),
    Fault::new(
        "import-truncated",
        "sizes promised and found",
        AT_IMPORT,
        imports::truncated,
    ),
    Fault::new(
        "import-misshapen",
        "file, type or shape",
        AT_IMPORT,
        imports::misshapen,
    ),
    Fault::new(
        "import-header-lies",
        "file, tensor, places",
        AT_IMPORT,
        imports::lying_header,
    ),
    Fault::new(
        "import-duplicate-id",
        "file, both rows, the id",
        AT_IMPORT,
        imports::duplicate_keys,
    ),
    Fault::new(
        "import-lookalike",
        "what it is instead",
        AT_IMPORT,
        imports::lookalikes,
    ),
    Fault::new(
        "import-killed",
        "no generation, no drafts after the next",
        "what is there opens and is undamaged",
        large_imports::killed,
    ),
    Fault::new(
        "import-larger-than-memory",
        "imported",
        "holds at most 192 MiB",
        large_imports::memory,
    ),
    Fault::new(
        "log-unread",
        "lines dropped and counted",
        "each call answered within 1 s; SIGTERM ends it with 0",
        limits::log_unread,
    ),
    Fault::new(
        "region-sparse",
        "RegionRefused, RegionLost",
        UNHARMED,
        limits::sparse_regions,
    ),
    Fault::new(
        "regions-together",
        "LimitReached",
        "refused; room again once one is gone",
        limits::regions_together,
    ),
    Fault::new(
        "descriptors-too-few",
        "a warning, LimitReached",
        "clients, admin pages and a region at the brim",
        limits::few_descriptors,
    ),
    Fault::new(
        "address-space-too-little",
        "what is needed and left",
        AT_START,
        limits::little_address_space,
    ),
    Fault::new(
        "sighup",
        "draining, exit code 0",
        "ignored under nohup",
        limits::hangup,
    ),
    Fault::new(
        "lookup-of-stopped-service",
        "no answer",
        "exit code 1 at 2 s after the deadline at most",
        limits::lookup_of_a_stopped_service,
    ),
    Fault::new(
        "memory-too-little",
        "bytes needed and available",
        AT_START,
        starts::memory,
    ),
    Fault::new(
        "huge-pages-required",
        "what the pools have",
        AT_START,
        starts::required_pages,
    ),
    Fault::new(
        "huge-pages-preferred",
        "starts, says what it got",
        "ready, answers bit-equal",
        starts::preferred_pages,
    ),
    Fault::new(
        "endpoint-in-use",
        "endpoint already in use",
        UNHARMED,
        starts::endpoint_in_use,
    ),
    Fault::new(
        "endpoint-stale",
        "socket replaced, file kept",
        "ready, answers bit-equal",
        starts::stale_endpoint,
    ),
    Fault::new(
        "configuration-bad",
        "key or line named",
        AT_START,
        starts::bad_configuration,
    ),
    Fault::new(
        "sigterm-in-flight",
        "OK or Draining, exit code 0",
        "in flight: OK, bit-equal; new: Draining",
        endings::terminated,
    )
    .over(Over::Any),
    Fault::new(
        "sigkill",
        "Disconnected",
        "told within 1 s, targets given back",
        endings::killed,
    )
    .over(Over::Any),
    Fault::new(
        "sigkill-shared-client",
        "Disconnected",
        "all threads told within 1 s, bells rung",
        sharing::killed,
    ),
    Fault::new(
        "sigstop",
        "None, then OK",
        "target owned while stopped, answered within 1 s of SIGCONT",
        endings::stopped,
    ),
];
