//! Rows that become others while they are served.

use super::UNHARMED;
use crate::faults::{Fault, deltas, deltas_control, deltas_full};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "delta-applied",
        "OK; each row old or new and never back; what was acknowledged from then on",
        UNHARMED,
        deltas::under_load,
    ),
    Fault::new(
        "delta-damaged",
        "refused; no row changed, and nothing kept",
        UNHARMED,
        deltas::damaged,
    ),
    Fault::new(
        "delta-sigkill",
        "all that were acknowledged served again, the one under way whole or not at all",
        "serves again; nothing leaked",
        deltas::killed,
    ),
    Fault::new(
        "delta-cached",
        "OK; each row of a cached table old or new and never back, wherever it is fetched from; what was acknowledged from then on",
        UNHARMED,
        deltas::cached_under_load,
    ),
    Fault::new(
        "delta-cached-sigkill",
        "all that were acknowledged served again, the one under way whole or not at all",
        "serves again; nothing leaked",
        deltas::cached_killed,
    ),
    Fault::new(
        "delta-control-sigkill",
        "every delta that is kept applied once; each row old or new and never back",
        UNHARMED,
        deltas_control::control_killed,
    ),
    Fault::new(
        "delta-follower-sigkill",
        "goes on from the last one that was kept, to the end of the log",
        "serves again; nothing leaked",
        deltas_control::follower_killed,
    ),
    Fault::new(
        "delta-diverged",
        "told by both, of more deltas and of others than are kept; none after them",
        UNHARMED,
        deltas_control::diverged,
    ),
    Fault::new(
        "delta-log-sigkill",
        "every delta that Redis acknowledged applied once; each row old or new and never back",
        UNHARMED,
        deltas_control::stream_killed,
    ),
    Fault::new(
        "delta-disk-full",
        "refused or told, by the control plane and by the dataplane; no row changed and none lost; applied when there is room",
        UNHARMED,
        deltas_full::disk_full,
    ),
];
