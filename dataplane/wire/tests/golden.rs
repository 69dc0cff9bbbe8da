//! The golden vectors: bytes that stand for the protocol. Each message is encoded from the value
//! written here and compared with its bytes, and its bytes are parsed and compared with the value.
//! A change of these files is a change of the protocol's version.

#[path = "golden/reader.rs"]
mod reader;

use std::collections::HashSet;
use std::path::PathBuf;

use rowmill_wire::control::{Control, Rights, TableEntry, Welcome};
use rowmill_wire::limits::{MAX_BLOCK_IDS, MAX_EXTENT, SLOT_BYTES};
use rowmill_wire::request::{FLAG_PARTIALS, Header, encode};
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{
    Completion, CompletionKind, Element, Feature, FeatureSpan, Immediate, Op, Output, Place,
    Pooling, Refusal, Request, Schema, Segment, SplitRule, Status,
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The file's messages and the values of the same names, in the same order.
fn paired<V>(kind: &str, values: Vec<(&str, V)>) -> Vec<(reader::Message, V)> {
    let messages = reader::good(&folder(), kind);
    let names: Vec<&str> = messages.iter().map(|m| m.name.as_str()).collect();
    let expected: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, expected, "{kind}.hex holds a message for each value");
    messages
        .into_iter()
        .zip(values.into_iter().map(|(_, v)| v))
        .collect()
}

struct Frame {
    header: Header,
    spans: Vec<FeatureSpan>,
    inline: Vec<u8>,
}

fn segment(place: Place, element: Element, len: u64) -> Segment {
    Segment {
        place,
        element,
        len,
    }
}

fn inline(offset: u32, element: Element, len: u64) -> Segment {
    segment(Place::Inline { offset }, element, len)
}

fn region(region: u32, offset: u64, element: Element, len: u64) -> Segment {
    segment(Place::Region { region, offset }, element, len)
}

fn span(lengths_at: u32, ids_at: u32, ids: u32) -> FeatureSpan {
    FeatureSpan {
        lengths_at,
        ids_at,
        ids,
        first_id: 0,
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn lookup_inline() -> Frame {
    Frame {
        header: Header {
            op: Op::Lookup,
            slice_bags: 1,
            bags: 2,
            target_region: 1,
            target_base: 4096,
            lengths: inline(168, Element::Bits32, 16),
            ids: inline(184, Element::Bits32, 24),
            ..Header::null(42)
        },
        spans: vec![span(0, 0, 3), span(2, 3, 3)],
        inline: words(&[2, 1, 0, 3, 7, 9, 7, 0, 1000, 2147483646]),
    }
}

fn lookup_regions() -> Frame {
    Frame {
        header: Header {
            op: Op::Lookup,
            flags: FLAG_PARTIALS,
            attempt: u16::MAX,
            part: 1,
            parts: 4,
            schema: 15,
            generation: 12,
            remaining_us: 2500,
            first_bag: 64,
            bags: 64,
            target_region: 3,
            target_base: 1 << 32,
            lengths: region(0, 0, Element::Offsets64, 1040),
            ids: region(0, 8192, Element::Bits64, 1600),
            weights: region(2, 64, Element::Bits32, 800),
            ..Header::null(u64::MAX)
        },
        spans: vec![span(0, 0, 150), span(65, 100, 100)],
        inline: Vec::new(),
    }
}

fn lookup_offsets() -> Frame {
    let mut bytes = words(&[5, 6, 7, 3, 0, 4, 0]);
    bytes.extend(0.5f32.to_le_bytes());
    bytes.extend((-2.0f32).to_le_bytes());
    bytes.extend([0xdd; 4]);
    Frame {
        header: Header {
            op: Op::Lookup,
            bags: 2,
            lengths: inline(152, Element::Offsets32, 12),
            ids: inline(164, Element::Bits64, 16),
            weights: inline(180, Element::Bits32, 8),
            ..Header::null(7)
        },
        spans: vec![span(0, 0, 2)],
        inline: bytes,
    }
}

fn prefetch() -> Frame {
    let mut frame = lookup_offsets();
    frame.header.op = Op::Prefetch;
    frame
}

fn lookup_block() -> Frame {
    let block = FeatureSpan {
        first_id: 25,
        ..span(30, 60, 40)
    };
    Frame {
        header: Header {
            op: Op::Lookup,
            part: 1,
            parts: 2,
            schema: 2,
            first_bag: 10,
            bags: 10,
            target_region: 3,
            target_base: 6,
            lengths: region(1, 0, Element::Bits32, 160),
            ids: region(1, 160, Element::Bits64, 800),
            ..Header::null(9)
        },
        spans: vec![span(10, 20, 30), block],
        inline: Vec::new(),
    }
}

fn null(header: Header) -> Frame {
    Frame {
        header,
        spans: Vec::new(),
        inline: Vec::new(),
    }
}

fn requests() -> Vec<(&'static str, Frame)> {
    let addressed = Header {
        attempt: 3,
        part: 1,
        parts: 2,
        ..Header::null(0x0102_0304_0506_0708)
    };
    vec![
        ("null", null(Header::null(0))),
        ("null-addressed", null(addressed)),
        ("lookup-inline", lookup_inline()),
        ("lookup-regions", lookup_regions()),
        ("lookup-offsets", lookup_offsets()),
        ("lookup-block", lookup_block()),
        ("prefetch", prefetch()),
    ]
}

fn completions() -> Vec<(&'static str, Completion)> {
    let ok = Completion {
        kind: CompletionKind::Final,
        part: 0,
        status: Status::Ok,
        slot: 5,
        slice: 1,
        request: 42,
        generation: 12,
        delta: 0,
        attempt: 0,
        credits: 1,
        feature: NOWHERE,
        index: NOWHERE,
        service_ns: 21_500,
        newest: 12,
    };
    let slice = Completion {
        kind: CompletionKind::Slice,
        slice: 0,
        credits: 0,
        service_ns: 18_000,
        ..ok
    };
    let out_of_range = Completion {
        status: Status::IdOutOfRange,
        feature: 1,
        index: 2,
        slice: 0,
        generation: 0,
        service_ns: 0,
        ..ok
    };
    let unknown = Completion {
        status: Status::UnknownId,
        feature: 0,
        index: 0,
        service_ns: 9_000,
        ..ok
    };
    let overflow = Completion {
        status: Status::BlockOverflow,
        index: NOWHERE,
        ..out_of_range
    };
    let busy = Completion {
        part: 1,
        status: Status::Busy,
        slot: 4095,
        slice: 0,
        request: u64::MAX,
        generation: 0,
        attempt: u16::MAX,
        service_ns: 0,
        ..ok
    };
    vec![
        ("slice-placed", slice),
        ("final-ok", ok),
        ("final-id-out-of-range", out_of_range),
        ("final-unknown-id", unknown),
        ("final-block-overflow", overflow),
        ("final-busy", busy),
    ]
}

fn welcome() -> Welcome {
    Welcome {
        model: "dlrm-v2".into(),
        generation: 12,
        split: SplitRule {
            lanes: 4,
            min_bags: 16,
        },
        credits: 8,
        completions: 512,
        max_ids: 1 << 18,
        max_lengths: 1 << 16,
        max_region: 1 << 33,
    }
}

fn schema() -> Schema {
    let feature = |name: &str, table: &str, pooling, offset| Feature {
        name: name.into(),
        table: table.into(),
        pooling,
        output: Output::F32,
        max_ids: 0,
        offset,
        stride: 1536,
    };
    Schema {
        max_batch: 2048,
        features: vec![
            feature("user", "cat_0", Pooling::Sum, 0),
            feature("item", "cat_1", Pooling::Mean, 512),
            feature("tags", "cat_0", Pooling::WeightedSum, 1024),
        ],
    }
}

fn blocks() -> Schema {
    let feature = |name: &str, pooling, output, max_ids, offset, stride| Feature {
        name: name.into(),
        table: "t".into(),
        pooling,
        output,
        max_ids,
        offset,
        stride,
    };
    let matrix = |name, pooling, output, offset| feature(name, pooling, output, 0, offset, 512);
    Schema {
        max_batch: 64,
        features: vec![
            matrix("w", Pooling::WeightedMean, Output::F16, 0),
            matrix("m", Pooling::Max, Output::Bf16, 256),
            feature(
                "b",
                Pooling::None,
                Output::Bf16,
                MAX_BLOCK_IDS,
                1 << 15,
                256,
            ),
            feature("f", Pooling::None, Output::F32, 1, MAX_EXTENT, MAX_EXTENT),
        ],
    }
}

fn controls() -> Vec<(&'static str, (u32, Control))> {
    let hello = Control::Hello {
        client: "bench".into(),
        credits: 8,
    };
    let refused = Control::Refused {
        refusal: Refusal::feature(Status::UnknownTable, 2),
        detail: "feature `tags` wants table `cat_9`".into(),
    };
    let lane_open = Control::LaneOpen {
        lane: 3,
        receives: 512,
        address: 0x7f12_3456_7000,
        key: 0x0000_1a2b,
    };
    let lane_opened = Control::LaneOpened {
        lane: 3,
        receives: 24,
        address: 0x7fff_0000_2000,
        key: 0xdead_beef,
    };
    let register_remote = Control::RegisterRemote {
        bytes: 1 << 30,
        address: 0x7f00_0000_0000,
        key: 0x0102_0304,
        rights: Rights::Write,
    };
    let goodbye = Control::Goodbye {
        status: Status::Draining,
        detail: "the dataplane ends".into(),
    };
    let table = |name: &str, rows, dim, (format, kind)| TableEntry {
        name: name.into(),
        rows,
        dim,
        format,
        kind,
    };
    let tables = |first, tables| Control::Tables {
        total: 26,
        first,
        tables,
    };
    let page = vec![
        table("cat_24", 12_000_000, 128, (0, 0)),
        table("größe", 3, 64, (5, 1)),
    ];
    vec![
        ("hello", (1, hello)),
        ("welcome", (1, Control::Welcome(welcome()))),
        ("refused", (4, refused)),
        ("list-tables", (2, Control::ListTables { first: 24 })),
        ("tables", (2, tables(24, page))),
        ("tables-none", (3, tables(26, Vec::new()))),
        ("bind", (4, Control::Bind(schema()))),
        ("bind-blocks", (4, Control::Bind(blocks()))),
        ("bound", (4, Control::Bound { schema: 0 })),
        (
            "register",
            (
                5,
                Control::Register {
                    bytes: 1 << 30,
                    rights: Rights::Read,
                },
            ),
        ),
        ("registered", (5, Control::Registered { region: 1 })),
        ("unregister", (u32::MAX, Control::Unregister { region: 1 })),
        (
            "unregistered",
            (u32::MAX, Control::Unregistered { region: 1 }),
        ),
        ("lane-open", (2, lane_open)),
        ("lane-opened", (2, lane_opened)),
        ("register-remote", (6, register_remote)),
        ("goodbye", (0, goodbye)),
    ]
}

fn immediates() -> Vec<(&'static str, Immediate)> {
    vec![
        ("request", Immediate::Request { slot: 5, len: 208 }),
        (
            "request-longest",
            Immediate::Request {
                slot: 4095,
                len: 8192,
            },
        ),
        ("cancel", Immediate::Cancel { slot: 5 }),
        ("slice", Immediate::Slice { slot: 5, slice: 0 }),
        ("final", Immediate::Final { slot: 5, slice: 1 }),
    ]
}

#[test]
fn request_frames() {
    for (message, frame) in paired("request", requests()) {
        // What a slot held before must not show.
        let mut out = [0xff; SLOT_BYTES];
        let len = encode(&frame.header, &frame.spans, &[&frame.inline], &mut out)
            .unwrap_or_else(|error| panic!("{}: {error}", message.name));
        assert_eq!(out[..len], message.bytes, "{}", message.name);
        let request = Request::parse(&message.bytes).expect(&message.name);
        assert_eq!(*request.header(), frame.header, "{}", message.name);
        assert!(request.spans().eq(frame.spans), "{}", message.name);
    }
}

#[test]
fn inline_segments_are_found() {
    let messages = reader::good(&folder(), "request");
    let bytes = &messages
        .iter()
        .find(|m| m.name == "lookup-inline")
        .expect("stands in the file")
        .bytes;
    let request = Request::parse(bytes).expect("is good");
    let header = request.header();
    let text = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
    assert_eq!(
        text(request.inline(&header.lengths)),
        Some(words(&[2, 1, 0, 3]))
    );
    assert_eq!(
        text(request.inline(&header.ids)),
        Some(words(&[7, 9, 7, 0, 1000, 2147483646]))
    );
    assert_eq!(request.inline(&header.weights), None);
    let foreign = inline(u32::MAX, Element::Bits32, u64::MAX);
    assert_eq!(request.inline(&foreign), None);
}

#[test]
fn status_records() {
    for (message, record) in paired("completion", completions()) {
        assert_eq!(record.encode()[..], message.bytes, "{}", message.name);
        let bytes = message.bytes[..].try_into().expect("64 bytes");
        assert_eq!(Completion::parse(bytes), Ok(record), "{}", message.name);
    }
}

#[test]
fn control_messages() {
    for (message, (sequence, control)) in paired("control", controls()) {
        assert_eq!(control.encode(sequence), message.bytes, "{}", message.name);
        assert_eq!(
            Control::parse(&message.bytes),
            Ok((sequence, control)),
            "{}",
            message.name
        );
        assert_eq!(Control::sequence(&message.bytes), sequence);
    }
}

#[test]
fn immediate_words() {
    for (message, immediate) in paired("immediate", immediates()) {
        let word: [u8; 4] = message.bytes[..].try_into().expect("4 bytes");
        let word = u32::from_le_bytes(word);
        assert_eq!(immediate.encode(), word, "{}", message.name);
        assert_eq!(Immediate::decode(word), Some(immediate), "{}", message.name);
    }
}

fn outcome(kind: &str, bytes: &[u8]) -> Result<(), Option<Refusal>> {
    match kind {
        "request" => Request::parse(bytes).map(|_| ()).map_err(Some),
        "completion" => Completion::parse(bytes.try_into().expect("64 bytes"))
            .map(|_| ())
            .map_err(Some),
        "control" => Control::parse(bytes).map(|_| ()).map_err(Some),
        "immediate" => Immediate::decode(u32::from_le_bytes(bytes.try_into().expect("4 bytes")))
            .map(|_| ())
            .ok_or(None),
        other => panic!("no kind of message is called {other}"),
    }
}

fn shown(refusal: Option<Refusal>) -> String {
    let Some(refusal) = refusal else {
        return "refused".into();
    };
    let mut text = refusal.status.name().to_owned();
    if refusal.feature != NOWHERE {
        text += &format!("@{}", refusal.feature);
    }
    assert_eq!(refusal.index, NOWHERE, "parsers name no bag or id");
    text
}

#[test]
fn malformed_messages_get_their_status() {
    let mut names = HashSet::new();
    let mut kinds = HashSet::new();
    for (kind, status, message) in reader::malformed(&folder()) {
        assert!(names.insert(message.name.clone()), "{} twice", message.name);
        let refusal = outcome(&kind, &message.bytes).expect_err(&message.name);
        assert_eq!(shown(refusal), status, "{}", message.name);
        kinds.insert(kind);
    }
    assert_eq!(kinds.len(), reader::KINDS.len(), "every parser refuses");
}

#[test]
fn good_names_are_unique() {
    let mut names = HashSet::new();
    for message in reader::KINDS
        .iter()
        .flat_map(|kind| reader::good(&folder(), kind))
    {
        assert!(message.expected.is_empty() && names.insert(message.name));
    }
}
