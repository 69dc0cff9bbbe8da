//! Control planes.

use super::UNHARMED_BY_DISK;
use crate::faults::{Fault, clocks, control};

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
    Fault::new(
        "control-tables-gone",
        "OK; what can't be is told, the rest done",
        UNHARMED_BY_DISK,
        control::tables_gone,
    ),
    Fault::new(
        "control-two",
        "OK; the second refused, and told",
        UNHARMED_BY_DISK,
        control::two,
    ),
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
];
