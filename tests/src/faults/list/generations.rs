//! Generations that are loaded beside the one that is served.

use super::UNHARMED;
use crate::faults::{Fault, generations};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "generation-switched",
        "OK; every answer of the generation that it names",
        UNHARMED,
        generations::switched,
    ),
    Fault::new(
        "generation-cached",
        "OK; every answer of the generation that it names, whose cache is its own",
        UNHARMED,
        generations::cached,
    ),
    Fault::new(
        "generation-damaged",
        "refused; nothing changed, and nothing kept",
        UNHARMED,
        generations::damaged,
    ),
    Fault::new(
        "generation-cached-strange",
        "refused; nothing changed",
        UNHARMED,
        generations::cached_strange,
    ),
    Fault::new(
        "generation-sigkill",
        "the configured generation served again",
        "serves again; the innocent's answers bit-equal until then; nothing leaked",
        generations::killed,
    ),
    Fault::new(
        "generation-cached-sigkill",
        "the configured generation served again, with caches of its own",
        "serves again; the innocent's answers bit-equal until then; nothing leaked",
        generations::cached_killed,
    ),
    Fault::new(
        "generation-control",
        "held and served as wished, by the control plane that comes after the one that is killed",
        UNHARMED,
        generations::by_control_plane,
    ),
];
