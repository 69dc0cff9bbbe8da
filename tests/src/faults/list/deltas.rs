//! Rows that become others while they are served.

use super::UNHARMED;
use crate::faults::{Fault, deltas};

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
];
