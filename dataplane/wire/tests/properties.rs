//! Properties of the codecs: whatever can be constructed is parsed back equal, and whatever is
//! accepted encodes to the bytes it came from, however these were made.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use rowmill_wire::control::{
    CONTROL_HEADER_BYTES, Control, MAX_DETAIL, Rights, TABLES_PER_PAGE, TableEntry, Welcome,
};
use rowmill_wire::limits::*;
use rowmill_wire::request::{EncodeError, Header, encode, inline_offset};
use rowmill_wire::{
    Completion, CompletionKind, Element, Feature, FeatureSpan, Immediate, Op, Output, Place,
    Pooling, Refusal, Request, Schema, Segment, SplitRule, Status,
};

/// A frame that a client may build.
#[derive(Clone, Debug)]
struct Frame {
    header: Header,
    spans: Vec<FeatureSpan>,
    inline: Vec<u8>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        let mut out = [0xee; SLOT_BYTES];
        let len = encode(&self.header, &self.spans, &[&self.inline], &mut out);
        out[..len.expect("fits a slot")].to_vec()
    }
}

/// Where a segment of `len` bytes lies: the next inline bytes, or a region.
fn place(inline: bool, len: u64, at: &mut u64, region: (u32, u64)) -> Place {
    if inline {
        let offset = *at as u32;
        *at += len;
        Place::Inline { offset }
    } else {
        Place::Region {
            region: region.0,
            offset: region.1.min(u64::MAX - len),
        }
    }
}

prop_compose! {
    fn header()(
        request: u64, attempt: u16, (part, parts) in (1u8..).prop_flat_map(|n| (0..n, Just(n))),
        schema: u32, generation: u64, remaining_us: u32, target_region: u32, target_base: u64,
        flags in 0u8..=1,
    ) -> Header {
        Header {
            attempt, part, parts, schema, generation, remaining_us, target_region, target_base,
            flags, ..Header::null(request)
        }
    }
}

fn element(offsets: bool) -> impl Strategy<Value = Element> {
    let all = [
        Element::Bits32,
        Element::Bits64,
        Element::Offsets32,
        Element::Offsets64,
    ];
    select(all[..if offsets { 4 } else { 2 }].to_vec())
}

prop_compose! {
    fn lookup()(
        base in header(),
        features in prop_oneof![9 => 1usize..12, 1 => Just(MAX_FEATURES)],
        bags in 1u32..20,
        slices in 1u32..=MAX_SLICES,
        sliced: bool,
        first_bag in 0..=MAX_BATCH - 20,
        (lengths_element, ids_element) in (element(true), element(false)),
        weighted: bool,
        wants_inline: [bool; 3],
        regions: [(u32, u64); 3],
        counts in vec(0u32..8, MAX_FEATURES),
        first_ids: [u32; 3],
        extra in vec(any::<u8>(), 0..40),
    ) -> Frame {
        let per_feature = bags + u32::from(lengths_element.is_offsets());
        let mut ids_at = 0;
        let spans: Vec<FeatureSpan> = (0..features).map(|f| {
            let span = FeatureSpan {
                lengths_at: f as u32 * per_feature, ids_at, ids: counts[f], first_id: first_ids[f % 3],
            };
            ids_at += counts[f];
            span
        }).collect();
        let mut at = inline_offset(features) as u64;
        // Of 256 features only the spans fit into a slot.
        let inline = wants_inline.map(|wanted| wanted && features < 12);
        let mut segment = |i: usize, element: Element, count: u32| {
            let len = u64::from(count) * element.bytes();
            Segment { place: place(inline[i], len, &mut at, regions[i]), element, len }
        };
        let lengths = segment(0, lengths_element, per_feature * features as u32);
        let ids = segment(1, ids_element, ids_at);
        let weights = if weighted { segment(2, Element::Bits32, ids_at) } else { Segment::ABSENT };
        let inline_len = at as usize - inline_offset(features);
        let inline = extra.iter().copied().cycle().take(if extra.is_empty() { 0 } else { inline_len })
            .chain(std::iter::repeat_n(0, if extra.is_empty() { inline_len } else { 0 }))
            .chain(extra.iter().copied()).collect();
        let slice_bags = if sliced { bags.div_ceil(slices) } else { 0 };
        let header = Header {
            op: Op::Lookup, slice_bags, first_bag, bags, lengths, ids, weights, ..base
        };
        Frame { header, spans, inline }
    }
}

fn frame() -> impl Strategy<Value = Frame> {
    let null = (header(), vec(any::<u8>(), 0..40)).prop_map(|(header, inline)| Frame {
        header,
        spans: Vec::new(),
        inline,
    });
    prop_oneof![1 => null, 9 => lookup()]
}

prop_compose! {
    fn completion()(
        last: bool, part: u8, status in select(Status::ALL), slot in 0..MAX_SLOTS, slice: u16,
        (request, generation, delta, service_ns, newest) in any::<(u64, u64, u64, u64, u64)>(),
        (attempt, credits) in any::<(u16, u16)>(), (feature, index) in any::<(u32, u32)>(),
    ) -> Completion {
        let kind = if last { CompletionKind::Final } else { CompletionKind::Slice };
        Completion {
            kind, part, status, slot, slice, request, generation, delta, attempt, credits, feature,
            index, service_ns, newest,
        }
    }
}

prop_compose! {
    fn feature()(
        name in ".{0,32}", table in "[a-z0-9_]{0,128}",
        pooling in select(&Pooling::ALL), output in select(&Output::ALL), most in 1..=MAX_BLOCK_IDS,
        offset in 0..=MAX_EXTENT, stride in 0..=MAX_EXTENT,
    ) -> Feature {
        let max_ids = if pooling == Pooling::None { most } else { 0 };
        Feature { name, table, pooling, output, max_ids, offset, stride }
    }
}

prop_compose! {
    fn schema()(max_batch in 1..=MAX_BATCH, features in vec(feature(), 1..8)) -> Schema {
        Schema { max_batch, features }
    }
}

prop_compose! {
    fn welcome()(
        model in ".{0,32}", generation: u64, lanes in 1..=MAX_LANES, min_bags in 1u32..,
        credits in 1..=MAX_CREDITS, completions in (0u32..32).prop_map(|bits| 1 << bits),
        (max_ids, max_lengths) in any::<(u32, u32)>(), max_region: u64,
    ) -> Welcome {
        let split = SplitRule { lanes, min_bags };
        Welcome { model, generation, split, credits, completions, max_ids, max_lengths, max_region }
    }
}

fn rights() -> impl Strategy<Value = Rights> {
    (1..=3u32).prop_map(|code| Rights::from_code(code).expect("a code"))
}

fn control() -> impl Strategy<Value = Control> {
    let codes = any::<(u8, u8)>();
    let table = ("[a-z]{0,128}", any::<u64>(), any::<u32>(), codes).prop_map(
        |(name, rows, dim, (format, kind))| TableEntry {
            name,
            rows,
            dim,
            format,
            kind,
        },
    );
    let refused = (select(Status::ALL), any::<u32>(), any::<u32>(), ".{0,256}").prop_map(
        |(status, feature, index, detail)| Control::Refused {
            refusal: Refusal {
                status,
                feature,
                index,
            },
            detail,
        },
    );
    let tables =
        (any::<u32>(), any::<u32>(), vec(table, 0..6)).prop_map(|(total, first, tables)| {
            Control::Tables {
                total,
                first,
                tables,
            }
        });
    prop_oneof![
        (".{0,32}", any::<u16>()).prop_map(|(client, credits)| Control::Hello { client, credits }),
        welcome().prop_map(Control::Welcome),
        refused,
        any::<u32>().prop_map(|first| Control::ListTables { first }),
        tables,
        schema().prop_map(Control::Bind),
        any::<u32>().prop_map(|schema| Control::Bound { schema }),
        (any::<u64>(), rights()).prop_map(|(bytes, rights)| Control::Register { bytes, rights }),
        any::<u32>().prop_map(|region| Control::Registered { region }),
        any::<u32>().prop_map(|region| Control::Unregister { region }),
        any::<u32>().prop_map(|region| Control::Unregistered { region }),
        any::<(u16, u32, u64, u32)>().prop_map(|(lane, receives, address, key)| {
            Control::LaneOpen {
                lane,
                receives,
                address,
                key,
            }
        }),
        any::<(u16, u32, u64, u32)>().prop_map(|(lane, receives, address, key)| {
            Control::LaneOpened {
                lane,
                receives,
                address,
                key,
            }
        }),
        (any::<(u64, u64, u32)>(), rights()).prop_map(|((bytes, address, key), rights)| {
            Control::RegisterRemote {
                bytes,
                address,
                key,
                rights,
            }
        }),
        (select(Status::ALL), ".{0,64}")
            .prop_map(|(status, detail)| Control::Goodbye { status, detail }),
    ]
}

/// Changes to bytes: values put at places, then a new length.
#[derive(Clone, Debug)]
struct Mutation {
    puts: Vec<(Index, u8)>,
    len: Option<Index>,
    announce: bool,
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let byte = prop_oneof![any::<u8>(), 0u8..4, Just(255)];
    let puts = vec((any::<Index>(), byte), 0..4);
    (
        puts,
        proptest::option::weighted(0.2, any::<Index>()),
        any::<bool>(),
    )
        .prop_map(|(puts, len, announce)| Mutation {
            puts,
            len,
            announce,
        })
}

impl Mutation {
    /// Requests and control messages both announce their length at byte 4.
    fn apply(&self, bytes: &mut Vec<u8>) {
        for (at, value) in &self.puts {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        if let Some(len) = self.len {
            bytes.resize(len.index(bytes.len() + 16), 0);
        }
        if self.announce && bytes.len() >= 8 {
            let len = bytes.len() as u32;
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
        }
    }
}

/// An accepted frame, written again from what was understood.
fn encoded_again(bytes: &[u8]) -> Option<Vec<u8>> {
    let request = Request::parse(bytes).ok()?;
    let frame = Frame {
        header: *request.header(),
        spans: request.spans().collect(),
        inline: bytes[inline_offset(request.features())..].to_vec(),
    };
    for segment in [
        &frame.header.lengths,
        &frame.header.ids,
        &frame.header.weights,
    ] {
        let inline = matches!(segment.place, Place::Inline { .. });
        let found = request.inline(segment).map(|bytes| bytes.len() as u64);
        assert_eq!(found, inline.then_some(segment.len));
    }
    Some(frame.bytes())
}

proptest! {
    #[test]
    fn frames_come_back(frame in frame()) {
        let bytes = frame.bytes();
        let request = Request::parse(&bytes);
        prop_assert!(request.is_ok(), "{:?}", request.err());
        let request = request.expect("checked");
        prop_assert_eq!(request.header(), &frame.header);
        prop_assert!(request.spans().eq(frame.spans));
        let address = (frame.header.request, frame.header.attempt, frame.header.part);
        prop_assert_eq!(Request::address(&bytes), address);
    }

    #[test]
    fn accepted_frames_are_canonical(frame in frame(), mutation in mutation()) {
        let mut bytes = frame.bytes();
        mutation.apply(&mut bytes);
        if let Some(again) = encoded_again(&bytes) {
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn records_come_back(record in completion()) {
        prop_assert_eq!(Completion::parse(&record.encode()), Ok(record));
        prop_assert!(Immediate::decode(record.immediate().encode()) == Some(record.immediate()));
    }

    #[test]
    fn accepted_records_are_canonical(record in completion(), mutation in mutation()) {
        let mut bytes = record.encode();
        for (at, value) in mutation.puts {
            bytes[at.index(64)] = value;
        }
        if let Ok(record) = Completion::parse(&bytes) {
            prop_assert_eq!(record.encode(), bytes);
        }
    }

    #[test]
    fn control_messages_come_back(control in control(), sequence: u32) {
        let bytes = control.encode(sequence);
        prop_assert_eq!(Control::sequence(&bytes), sequence);
        prop_assert_eq!(Control::parse(&bytes), Ok((sequence, control)));
    }

    #[test]
    fn accepted_control_messages_are_canonical(control in control(), mutation in mutation()) {
        let mut bytes = control.encode(7);
        mutation.apply(&mut bytes);
        if let Ok((sequence, control)) = Control::parse(&bytes) {
            prop_assert_eq!(control.encode(sequence), bytes);
            if let Control::Bind(schema) = control {
                prop_assert_eq!(schema.check(), Ok(()));
            }
        }
    }

    #[test]
    fn immediates_are_canonical(bits: u32, kind in 0u32..6) {
        let bits = bits >> 4 | kind << 28;
        if let Some(immediate) = Immediate::decode(bits) {
            prop_assert_eq!(immediate.encode(), bits);
        }
    }

    #[test]
    fn noise_never_panics(bytes in vec(any::<u8>(), 0..400)) {
        let _ = Request::parse(&bytes);
        let _ = Request::address(&bytes);
        let _ = Control::parse(&bytes);
        let _ = Control::sequence(&bytes);
    }

    #[test]
    fn split_covers_the_batch(lanes: u16, min_bags in 0u32..400, bags in 0..=MAX_BATCH) {
        let rule = SplitRule { lanes, min_bags };
        let parts: Vec<(u32, u32)> = rule.split(bags).collect();
        prop_assert_eq!(parts.len() as u32, rule.parts(bags));
        prop_assert!(parts.len() <= usize::from(lanes.clamp(1, MAX_LANES)));
        let mut next = 0;
        for &(first, count) in &parts {
            prop_assert_eq!(first, next);
            next += count;
            prop_assert!(parts.len() == 1 || count >= min_bags.max(1));
        }
        prop_assert_eq!(next, bags);
        let counts = || parts.iter().map(|&(_, count)| count);
        prop_assert!(counts().is_sorted_by(|a, b| a >= b));
        prop_assert!(counts().max().unwrap_or(0) - counts().min().unwrap_or(0) <= 1);
    }
}

#[test]
fn texts_are_cut_but_names_are_not() {
    let long = "ü".repeat(MAX_DETAIL);
    let hello = Control::Hello {
        client: long.clone(),
        credits: 1,
    };
    let (_, parsed) = Control::parse(&hello.encode(1)).expect("is good");
    let cut = Control::Hello {
        client: "ü".repeat(MAX_NAME / 2),
        credits: 1,
    };
    assert_eq!(parsed, cut);

    let (mut schema, _) = Schema::side_by_side(1, [("f", "t", Pooling::Sum, 4)]);
    assert_eq!(schema.check(), Ok(()));
    let too_long = Refusal::feature(Status::TooLarge, 0);
    schema.features[0].table = "t".repeat(MAX_NAME + 1);
    assert_eq!(schema.check(), Err(too_long));
    let bytes = Control::Bind(schema).encode(1);
    assert_eq!(Control::parse(&bytes), Err(too_long));
}

#[test]
fn the_largest_messages_fit() {
    let name = "n".repeat(MAX_NAME);
    let feature = (name.as_str(), name.as_str(), Pooling::Mean, 512);
    let (schema, row) = Schema::side_by_side(MAX_BATCH, [feature; MAX_FEATURES]);
    assert_eq!(row, 256 * 2048);
    let bind = Control::Bind(schema);
    assert_eq!(Control::parse(&bind.encode(1)), Ok((1, bind)));
    let entry = TableEntry {
        name,
        rows: u64::MAX,
        dim: 2048,
        format: 1,
        kind: 1,
    };
    let tables = Control::Tables {
        total: u32::MAX,
        first: 0,
        tables: vec![entry; TABLES_PER_PAGE],
    };
    assert_eq!(Control::parse(&tables.encode(1)), Ok((1, tables)));
    assert!(Control::parse(&[0; CONTROL_HEADER_BYTES]).is_err());
}

#[test]
fn schemas_past_a_bound_are_found_before_they_are_sent() {
    let feature = ("f", "t", Pooling::Sum, 4);
    let check = |change: fn(&mut Schema)| {
        let (mut schema, _) = Schema::side_by_side(1, [feature, feature]);
        change(&mut schema);
        schema.check()
    };
    let whole = |status| Err(Refusal::whole(status));
    let second = Err(Refusal::feature(Status::TooLarge, 1));
    assert_eq!(check(|s| s.max_batch = 0), whole(Status::Malformed));
    assert_eq!(check(|s| s.features.clear()), whole(Status::Malformed));
    assert_eq!(
        check(|s| s.max_batch = MAX_BATCH + 1),
        whole(Status::TooLarge)
    );
    assert_eq!(
        check(|s| s.features = s.features.iter().cycle().take(257).cloned().collect()),
        whole(Status::TooLarge)
    );
    let contradicts = Err(Refusal::feature(Status::Malformed, 1));
    assert_eq!(check(|s| s.features[1].max_ids = 1), contradicts);
    assert_eq!(
        check(|s| s.features[1].pooling = Pooling::None),
        contradicts
    );
    fn block(max_ids: u32) -> Feature {
        Feature::block("f", "t", Output::F16, 4, max_ids, 0)
    }
    assert_eq!(check(|s| s.features[1] = block(0)), contradicts);
    assert_eq!(check(|s| s.features[1] = block(MAX_BLOCK_IDS)), Ok(()));
    assert_eq!(check(|s| s.features[1] = block(MAX_BLOCK_IDS + 1)), second);
    assert_eq!(check(|s| s.features[1].offset = MAX_EXTENT + 1), second);
    assert_eq!(check(|s| s.features[1].stride = MAX_EXTENT + 1), second);
}

#[test]
fn frames_that_do_not_fit_are_not_written() {
    let mut out = [0; SLOT_BYTES];
    let span = FeatureSpan::default();
    let header = Header::null(1);
    let most = vec![0; SLOT_BYTES - inline_offset(1)];
    assert_eq!(encode(&header, &[span], &[&most], &mut out), Ok(SLOT_BYTES));
    assert_eq!(
        encode(&header, &[span], &[&most, &[0]], &mut out),
        Err(EncodeError::TooLong {
            needed: SLOT_BYTES + 1
        })
    );
    assert_eq!(
        encode(&header, &[span; MAX_FEATURES + 1], &[], &mut out),
        Err(EncodeError::TooManyFeatures {
            features: MAX_FEATURES + 1
        })
    );
}

#[test]
fn slices_of_a_part() {
    let slices = |bags, slice_bags| {
        Header {
            bags,
            slice_bags,
            ..Header::null(1)
        }
        .slices()
    };
    assert_eq!(slices(0, 0), 1);
    assert_eq!(slices(0, 8), 1);
    assert_eq!(slices(100, 0), 1);
    assert_eq!(slices(100, 100), 1);
    assert_eq!(slices(100, 99), 2);
    assert_eq!(slices(64, 1), MAX_SLICES);
}
