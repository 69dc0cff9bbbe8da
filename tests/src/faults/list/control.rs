//! Control planes.

use std::time::Duration;

use super::{UNHARMED, UNHARMED_BY_DISK};
use crate::faults::{Fault, clocks, control, control_store, control_tables, control_two, midway};

/// Another control plane is followed when the one before has been silent for 30 s, and another start of a dataplane heard when the one before
/// has been for 5 s.
const BEGUN_ANEW: Duration = Duration::from_secs(120);
/// Changes beside a worker that is held wait for what looks each second or each five, a dozen times.
pub(super) const MIDWAY: Duration = Duration::from_secs(180);
/// What changes beside a worker that is held are bound by.
pub(super) const BESIDE_HELD: &str = "the worker that goes on answers all the while; every answer of one generation, bit-equal; nothing leaked";

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "control-sigkill",
        "OK; the shares kept, followed again",
        UNHARMED_BY_DISK,
        control::killed,
    ),
    Fault::new(
        "control-certificate",
        "OK; told, connected again",
        UNHARMED_BY_DISK,
        control::certificate,
    ),
    Fault::new(
        "control-gone",
        "OK; connected again",
        UNHARMED_BY_DISK,
        control::gone,
    ),
    Fault::new(
        "control-garbage",
        "OK; told",
        UNHARMED_BY_DISK,
        control::garbage,
    ),
    Fault {
        limit: BEGUN_ANEW,
        ..Fault::new(
            "control-tables-gone",
            "OK; what the policy says of them is refused and told, the rest done",
            UNHARMED,
            control_tables::gone,
        )
    },
    Fault::new(
        "control-impossible",
        "OK; what can't be is told, the rest done",
        UNHARMED_BY_DISK,
        control::impossible,
    ),
    Fault {
        limit: BEGUN_ANEW,
        ..Fault::new(
            "control-two",
            "OK; the second refused and told, by both, until the first has been silent for 30 s",
            UNHARMED_BY_DISK,
            control_two::two,
        )
    },
    Fault::new(
        "control-restless",
        "OK; the last policy in force",
        UNHARMED_BY_DISK,
        control::restless,
    ),
    Fault::new(
        "control-clocks",
        "OK; generations switched, deltas applied",
        UNHARMED_BY_DISK,
        clocks::jump,
    ),
    Fault {
        limit: BEGUN_ANEW,
        ..Fault::new(
            "control-store-corrupt",
            "set aside and told; a copy is taken up, and one that was begun anew is followed",
            UNHARMED,
            control_store::corrupt,
        )
    },
    Fault::new(
        "control-disk-full",
        "what can't be kept is refused, with why; what was taken is there after a kill; goes on when there is room",
        UNHARMED,
        control_store::disk_full,
    ),
    Fault {
        limit: MIDWAY,
        ..Fault::new(
            "midway-dataplane-sigkill",
            "what was wished for comes true; a delta whole at once, all before it there",
            "serves again; every answer until then of one generation, bit-equal",
            midway::dataplane_killed,
        )
    },
    Fault {
        limit: MIDWAY,
        ..Fault::new(
            "midway-control-sigkill",
            "OK; the change ends whole, the next control plane is followed",
            BESIDE_HELD,
            midway::control_killed,
        )
    },
    Fault {
        limit: MIDWAY,
        ..Fault::new(
            "midway-log-sigkill",
            "OK; the change ends whole, deltas come again when the stream's server is back",
            BESIDE_HELD,
            midway::log_killed,
        )
    },
];
