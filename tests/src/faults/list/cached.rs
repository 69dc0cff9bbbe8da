//! Cached tables.

use super::{AT_START, UNHARMED, UNHARMED_BY_DISK};
use crate::faults::{
    Fault, cached, cached_disk, cached_exhausted, cached_moves, cached_neighbour, cached_next_tier,
    cached_starts, cached_warm,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault::new(
        "cached-tier-late",
        "RowUnavailable; counted",
        UNHARMED,
        cached_disk::late,
    ),
    Fault::new("cached-tier-busy", "OK", UNHARMED, cached_disk::busy),
    Fault::new(
        "cached-disk",
        "OK, RowUnavailable; counted",
        UNHARMED_BY_DISK,
        cached_disk::disk,
    ),
    Fault::new(
        "cached-page-damaged",
        "RowUnavailable for its rows; counted",
        UNHARMED_BY_DISK,
        cached::damaged,
    ),
    Fault::new(
        "cached-next-tier",
        "OK, from the copy; RowUnavailable where the table does not name it, and without it",
        UNHARMED_BY_DISK,
        cached_next_tier::next_tier,
    ),
    Fault::new(
        "cached-next-tier-silent",
        "OK, from the copy; the file bypassed, and read again once it answers",
        UNHARMED,
        cached_next_tier::silent,
    ),
    Fault::new(
        "cached-neighbour-hangs",
        "OK for the one table of four that is well; RowUnavailable for the others",
        UNHARMED,
        cached_neighbour::hangs,
    ),
    Fault::new(
        "cached-next-tier-start",
        "OK, from the copy",
        UNHARMED,
        cached_next_tier::start,
    ),
    Fault::new(
        "cached-start-hangs",
        "a line that names the file; OK once its disk answers",
        AT_START,
        cached_next_tier::start_hangs,
    ),
    Fault::new(
        "cached-page-zeros",
        "OK, zeros for its rows; counted",
        UNHARMED_BY_DISK,
        cached::zeros,
    ),
    Fault::new(
        "cached-file-truncated",
        "RowUnavailable for its rows; counted",
        UNHARMED_BY_DISK,
        cached::truncated,
    ),
    Fault::new(
        "cached-file-replaced",
        "OK, rows of the old file",
        UNHARMED_BY_DISK,
        cached::replaced,
    ),
    Fault::new(
        "cached-fetches-exhausted",
        "OK; rows and bags that waited are counted, none given up",
        "others answered meanwhile; the innocent's answers bit-equal, each within 1 s; nothing leaked",
        cached_exhausted::exhausted,
    ),
    Fault::new("cached-one-set", "OK", UNHARMED_BY_DISK, cached::one_set),
    Fault::new(
        "cached-placement",
        "OK, wherever the rows are",
        "answered; the innocents' answers bit-equal, each within 10 s, as their rows come from the disk; memory given back",
        cached_moves::moved,
    ),
    Fault::new(
        "cached-sigkill",
        "Lost (Disconnected)",
        "told within 1 s; another one serves",
        cached::killed,
    ),
    Fault::new(
        "cached-warm-restart",
        "another one serves, and has the hot rows",
        "nine of ten hot rows there within 5 s, whoever asks",
        cached_warm::restarted,
    ),
    Fault::new(
        "cached-warm-disk-full",
        "OK; the list that was there stays, and is written again when there is room",
        UNHARMED_BY_DISK,
        cached_warm::disk_full,
    ),
    Fault::new(
        "cached-refused",
        "a sentence for each case",
        AT_START,
        cached_starts::refused,
    ),
    Fault::new(
        "cached-figures",
        "hits and misses of all lookups",
        "the same on all pages",
        cached_starts::figures,
    ),
];
