//! Requests that have to be refused for what their frame says.

use anyhow::Result;
use rowmill_wire::Status::{
    self, LengthsMismatch, Malformed, Retry, SegmentOutOfRegion, TargetOutOfRegion, TooLarge,
    Unsupported, UnsupportedVersion, WeightsMismatch,
};
use rowmill_wire::request::{Element, Place};
use rowmill_wire::status::NOWHERE;

use super::Verdict;
use super::hostile::{Case, Draft, Hostile, PLAYGROUND, SOURCE_BYTES};
use super::places::{
    BAGS, FEATURES, FIRST_BAG, GENERATION, IDS, INLINE, LENGTH, LENGTHS, PART, PARTS, RESERVED,
    SLICE_BAGS, SPANS, TARGET_BASE, WEIGHTS,
};
use super::site::Site;
use super::watch::beside_an_innocent;

/// Sends the cases that `make` gives, beside an innocent client.
pub(super) fn cases(site: &Site, make: impl FnOnce(&Hostile) -> Vec<Case>) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let cases = make(&hostile);
        let count = hostile.expect(&cases)?;
        Ok(format!("{count} cases"))
    })
}

/// Every prefix of a good frame, with the length that it had, and with the length that it has.
pub(super) fn truncated(site: &Site) -> Result<Verdict> {
    cases(site, |hostile| {
        let frame = hostile.good().frame();
        let cut = |len: usize, honest: bool| {
            let mut part = frame[..len].to_vec();
            if honest && let Some(field) = part.get_mut(LENGTH..LENGTH + 4) {
                field.copy_from_slice(&(len as u32).to_le_bytes());
            }
            Case::whole(format!("the first {len} bytes"), part, Malformed)
        };
        let lens = 1..frame.len();
        lens.clone()
            .map(|len| cut(len, false))
            .chain(lens.map(|len| cut(len, true)))
            .collect()
    })
}

/// A good frame in which some bytes are others: what they are, where, the bytes, the answer, the feature.
type Patch = (&'static str, usize, &'static [u8], Status, u32);

/// The frame of [`Hostile::good`] has 208 bytes.
const INCONSISTENT: &[Patch] = &[
    ("version 2", 0, &[2], UnsupportedVersion, NOWHERE),
    ("version 4", 0, &[4], UnsupportedVersion, NOWHERE),
    ("version 0", 0, &[0], UnsupportedVersion, NOWHERE),
    ("operation 9", 2, &[9], Unsupported, NOWHERE),
    ("flag 128", 3, &[128], Unsupported, NOWHERE),
    ("a byte longer", LENGTH, &[209], Malformed, NOWHERE),
    ("a byte shorter", LENGTH, &[207], Malformed, NOWHERE),
    (
        "a reserved byte of the header",
        RESERVED + 1,
        &[1],
        Malformed,
        NOWHERE,
    ),
    ("element 4", LENGTHS + 1, &[4], Malformed, NOWHERE),
    (
        "a reserved byte of a segment",
        IDS + 3,
        &[1],
        Malformed,
        NOWHERE,
    ),
    ("place 3", IDS, &[3], Malformed, NOWHERE),
    (
        "an absent segment with a length",
        WEIGHTS + 16,
        &[4],
        Malformed,
        NOWHERE,
    ),
    (
        "an inline segment with a region",
        LENGTHS + 4,
        &[1],
        Malformed,
        NOWHERE,
    ),
    (
        "lengths of 15 bytes",
        LENGTHS + 16,
        &[15],
        Malformed,
        NOWHERE,
    ),
    (
        "ids before the inline bytes",
        IDS + 8,
        &[SPANS as u8],
        Malformed,
        NOWHERE,
    ),
    ("ids past the end", IDS + 16, &[28], Malformed, NOWHERE),
    ("ids that are offsets", IDS + 1, &[2], Malformed, NOWHERE),
    (
        "absent weights of 64 bits",
        WEIGHTS + 1,
        &[1],
        Malformed,
        NOWHERE,
    ),
    ("257 features", FEATURES, &[1, 1], TooLarge, NOWHERE),
    (
        "more spans than bytes",
        FEATURES,
        &[200],
        Malformed,
        NOWHERE,
    ),
    ("part 1 of 1", PART, &[1], Malformed, NOWHERE),
    ("part 0 of 0", PARTS, &[0], Malformed, NOWHERE),
    ("no bags", BAGS, &[0], Malformed, NOWHERE),
    ("no features", FEATURES, &[0], Malformed, NOWHERE),
    ("a null request with features", 2, &[0], Malformed, NOWHERE),
    (
        "65 slices",
        SLICE_BAGS,
        &[1, 0, 0, 0, 0, 0, 0, 0, 65],
        TooLarge,
        NOWHERE,
    ),
    ("65537 bags", BAGS, &[1, 0, 1], TooLarge, NOWHERE),
    (
        "a first id of a feature that is pooled",
        SPANS + 15,
        &[1],
        Malformed,
        0,
    ),
    ("another generation", GENERATION, &[99], Retry, NOWHERE),
    (
        "lengths past their segment",
        SPANS + 16,
        &[3],
        LengthsMismatch,
        1,
    ),
    (
        "ids past their segment",
        SPANS + 16 + 8,
        &[4],
        LengthsMismatch,
        1,
    ),
    ("lengths of one id more", INLINE, &[3], LengthsMismatch, 0),
    (
        "lengths of one id less",
        INLINE + 12,
        &[1],
        LengthsMismatch,
        1,
    ),
];

fn patched<'a>(draft: &'a Draft, patches: &'a [Patch]) -> impl Iterator<Item = Case> + 'a {
    let case = |&(what, at, bytes, status, feature): &Patch| {
        Case::at(what, draft.patched(at, bytes), status, (feature, NOWHERE))
    };
    patches.iter().map(case)
}

/// Bytes that contradict one another, or the protocol.
pub(super) fn inconsistent(site: &Site) -> Result<Verdict> {
    cases(site, |hostile| {
        let mut cases: Vec<Case> = patched(&hostile.good(), INCONSISTENT).collect();
        cases.extend(falling_offsets(hostile));
        cases.extend(unwanted_data(hostile));
        cases
    })
}

fn falling_offsets(hostile: &Hostile) -> Vec<Case> {
    [(Element::Offsets32, 4), (Element::Offsets64, 8)]
        .map(|(element, width)| {
            let draft = hostile.good().with(|draft| {
                let offsets = [0u64, 2, 3, 0, 4, 3].map(u64::to_le_bytes);
                let ids = draft.inline.split_off(16);
                draft.inline = offsets.iter().flat_map(|o| o[..width].to_vec()).collect();
                draft.header.lengths.element = element;
                draft.header.lengths.len = 6 * width as u64;
                draft.header.ids.place = Place::Inline {
                    offset: (INLINE + 6 * width) as u32,
                };
                draft.inline.extend(ids);
                draft.spans[1].lengths_at = 3;
            });
            Case::at(
                format!("{element:?} that fall"),
                draft.frame(),
                LengthsMismatch,
                (1, 1),
            )
        })
        .into()
}

/// Weights that nobody wants, places that can't be mixed, and bags that are too long.
fn unwanted_data(hostile: &Hostile) -> Vec<Case> {
    let weights = hostile
        .good()
        .with(|draft| draft.header.weights = draft.header.ids);
    let long_bag = hostile.good_in_region().with(|draft| {
        let lengths = [0u32, 8193, 1, 2].iter().flat_map(|l| l.to_le_bytes());
        hostile.write_source(PLAYGROUND + 4096, &lengths.collect::<Vec<u8>>());
        let place = Place::Region {
            region: hostile.source.0,
            offset: PLAYGROUND + 4096,
        };
        draft.header.lengths.place = place;
        draft.header.ids.len = 4 * 8196;
        (draft.spans[0].ids, draft.spans[1].ids_at) = (8193, 8193);
    });
    let many_ids = hostile.good_in_region().with(|draft| {
        draft.header.ids.len = 1 << 33;
        draft.spans[0].ids = 1 << 31;
    });
    vec![
        Case::whole(
            "weights that nobody wants",
            weights.frame(),
            WeightsMismatch,
        ),
        Case::at("a bag of 8193 ids", long_bag.frame(), TooLarge, (0, 1)),
        Case::whole("2^31 ids", many_ids.frame(), TooLarge),
    ]
}

/// Numbers of a frame with inline data that overflow when they are added.
const OVERFLOWS: &[Patch] = &[
    (
        "inline ids at 2^32 - 1",
        IDS + 8,
        &[255, 255, 255, 255],
        Malformed,
        NOWHERE,
    ),
    (
        "inline ids at 2^32 + 184",
        IDS + 12,
        &[1],
        Malformed,
        NOWHERE,
    ),
    (
        "2^63 bytes of inline ids",
        IDS + 23,
        &[128],
        Malformed,
        NOWHERE,
    ),
    (
        "first bag 2^32 - 1",
        FIRST_BAG,
        &[255, 255, 255, 255],
        Malformed,
        NOWHERE,
    ),
    ("first bag 65535", FIRST_BAG, &[255, 255], TooLarge, NOWHERE),
    ("first bag 127 of 128", FIRST_BAG, &[127], TooLarge, NOWHERE),
    (
        "a base of 2^64 - 4",
        TARGET_BASE,
        &(u64::MAX - 3).to_le_bytes(),
        TargetOutOfRegion,
        0,
    ),
    (
        "lengths from 2^32 - 1 on",
        SPANS,
        &[255, 255, 255, 255],
        LengthsMismatch,
        0,
    ),
    (
        "ids from 2^32 - 1 on",
        SPANS + 4,
        &[255, 255, 255, 255],
        LengthsMismatch,
        0,
    ),
    (
        "2^32 - 1 ids",
        SPANS + 8,
        &[255, 255, 255, 255],
        LengthsMismatch,
        0,
    ),
    (
        "2^32 - 1 ids from 2^32 - 3 on",
        SPANS + 4,
        &[253, 255, 255, 255, 255, 255, 255, 255],
        LengthsMismatch,
        0,
    ),
];

/// The same of a frame with its data in a region.
const OVERFLOWS_IN_REGION: &[Patch] = &[
    (
        "ids at 2^64 - 4",
        IDS + 8,
        &(u64::MAX - 3).to_le_bytes(),
        SegmentOutOfRegion,
        NOWHERE,
    ),
    (
        "2^64 - 8 bytes of ids",
        IDS + 16,
        &(u64::MAX - 7).to_le_bytes(),
        SegmentOutOfRegion,
        NOWHERE,
    ),
    (
        "ids at 2^63",
        IDS + 8,
        &(1u64 << 63).to_le_bytes(),
        SegmentOutOfRegion,
        0,
    ),
    (
        "lengths at 2^63",
        LENGTHS + 8,
        &(1u64 << 63).to_le_bytes(),
        SegmentOutOfRegion,
        0,
    ),
    (
        "ids at the region's end",
        IDS + 8,
        &SOURCE_BYTES.to_le_bytes(),
        SegmentOutOfRegion,
        0,
    ),
    (
        "ids past the region's end",
        IDS + 8,
        &(SOURCE_BYTES - 8).to_le_bytes(),
        SegmentOutOfRegion,
        0,
    ),
];

/// Sums of offsets, lengths and counts that don't fit their type, or what was granted.
pub(super) fn overflow(site: &Site) -> Result<Verdict> {
    cases(site, |hostile| {
        let mut cases: Vec<Case> = patched(&hostile.good(), OVERFLOWS).collect();
        cases.extend(patched(&hostile.good_in_region(), OVERFLOWS_IN_REGION));
        cases.extend(wide_lengths(hostile));
        cases
    })
}

/// Lengths that add up only where they, or their sum, are cut to 32 or 64 bits.
fn wide_lengths(hostile: &Hostile) -> Vec<Case> {
    let sums: [(&str, Element, [u64; 2]); 3] = [
        (
            "u32 lengths that wrap to 3",
            Element::Bits32,
            [(1 << 32) - 1, 4],
        ),
        (
            "u64 lengths that are cut to 2 and 1",
            Element::Bits64,
            [(1 << 32) + 2, 1],
        ),
        (
            "u64 lengths that wrap to 3",
            Element::Bits64,
            [u64::MAX - 7, 11],
        ),
    ];
    sums.map(|(what, element, [first, second])| {
        let width = element.bytes() as usize;
        let draft = hostile.good().with(|draft| {
            let ids = draft.inline.split_off(16);
            let lengths = [first, second, 1, 2].map(u64::to_le_bytes);
            draft.inline = lengths.iter().flat_map(|l| l[..width].to_vec()).collect();
            draft.inline.extend(ids);
            draft.header.lengths.element = element;
            draft.header.lengths.len = 4 * width as u64;
            let offset = (INLINE + 4 * width) as u32;
            draft.header.ids.place = Place::Inline { offset };
        });
        Case::at(what, draft.frame(), LengthsMismatch, (0, NOWHERE))
    })
    .into()
}
