//! What each parser promises of any bytes at all: it does not panic, and what it accepts encodes to
//! the bytes it came from.
//!
//! The same bodies run under libFuzzer (`tests/fuzz`) and, with seeded inputs, in every test run
//! (`tests/tests/fuzz_smoke.rs`).

use rowmill_cache::warm::Warm;
use rowmill_link::{BODY_MAX, Samples};
use rowmill_port::rdma::endpoint::host_and_port;
use rowmill_port::rdma::private_data::{
    Asked, REPLY_BYTES, REQUEST_BYTES, TEXT_MAX, encode_refusal, encode_reply, parse_refusal,
    parse_reply,
};
use rowmill_port::rdma::remote::message as remote;
use rowmill_port::rdma::stream::{Assembler, fragment};
use rowmill_table::{
    HEADER_BYTES as TABLE_HEADER_BYTES, MAX_DELTA_BYTES, check_index, check_npy_header,
    index_bytes, index_of, parse_delta_head, parse_header, parse_manifest,
    parse_safetensors_header,
};
use rowmill_wire::completion::COMPLETION_BYTES;
use rowmill_wire::control::{CONTROL_HEADER_BYTES, Control};
use rowmill_wire::limits::{MAX_BATCH, MAX_CONTROL_BYTES, SLOT_BYTES};
use rowmill_wire::request::{encode, inline_offset};
use rowmill_wire::{Completion, FeatureSpan, Immediate, Place, Refusal, Request, Status};

/// A request frame of exactly these bytes, and again with the length it really has.
pub fn request(data: &[u8]) {
    one_request(data);
    one_request(&with_true_length(data));
}

fn one_request(frame: &[u8]) {
    let (number, attempt, part) = Request::address(frame);
    let request = match Request::parse(frame) {
        Ok(request) => request,
        Err(refusal) => return check_refusal(refusal),
    };
    let header = request.header();
    assert_eq!(
        (header.request, header.attempt, header.part),
        (number, attempt, part)
    );
    assert!(header.part < header.parts);
    assert!(
        u64::from(header.first_bag) + u64::from(header.bags) <= u64::from(MAX_BATCH)
            || header.bags == 0
    );
    for segment in [&header.lengths, &header.ids, &header.weights] {
        let inline = matches!(segment.place, Place::Inline { .. });
        let found = request.inline(segment).map(|bytes| bytes.len() as u64);
        assert_eq!(
            found,
            inline.then_some(segment.len),
            "inline segments lie in the frame"
        );
    }
    let spans: Vec<FeatureSpan> = request.spans().collect();
    assert_eq!(spans.len(), request.features());
    for span in &spans {
        assert!(u64::from(span.ids_at) + u64::from(span.ids) <= header.ids.elements());
    }
    let mut out = [0xa5; SLOT_BYTES];
    let inline = &frame[inline_offset(spans.len())..];
    let len = encode(header, &spans, &[inline], &mut out).expect("an accepted frame fits a slot");
    assert_eq!(out[..len], *frame, "the encoding is canonical");
}

/// A status record: the first bytes, filled up with zeros.
pub fn completion(data: &[u8]) {
    let mut bytes = [0; COMPLETION_BYTES];
    let len = data.len().min(COMPLETION_BYTES);
    bytes[..len].copy_from_slice(&data[..len]);
    match Completion::parse(&bytes) {
        Ok(record) => {
            assert_eq!(record.encode(), bytes, "the encoding is canonical");
            let immediate = record.immediate();
            assert_eq!(Immediate::decode(immediate.encode()), Some(immediate));
        }
        Err(refusal) => check_refusal(refusal),
    }
}

/// A control message of exactly these bytes, and again with the length it really has.
pub fn control(data: &[u8]) {
    one_control(data);
    one_control(&with_true_length(data));
}

fn one_control(bytes: &[u8]) {
    let sequence = Control::sequence(bytes);
    match Control::parse(bytes) {
        Ok((parsed, message)) => {
            assert!(bytes.len() >= CONTROL_HEADER_BYTES);
            assert_eq!(parsed, sequence);
            assert_eq!(message.encode(sequence), bytes, "the encoding is canonical");
            if let Control::Bind(schema) = &message {
                assert_eq!(schema.check(), Ok(()), "a bound schema can be sent");
            }
        }
        Err(refusal) => check_refusal(refusal),
    }
}

/// The immediate in the first four bytes.
pub fn immediate(data: &[u8]) {
    let Some(word) = data.first_chunk() else {
        return;
    };
    let bits = u32::from_le_bytes(*word);
    if let Some(immediate) = Immediate::decode(bits) {
        assert_eq!(immediate.encode(), bits, "the encoding is canonical");
    }
}

/// Bytes that describe a fragment to [`control_stream`].
const FRAGMENT_DRAFT_BYTES: usize = 10;
/// Most such fragments: the longest message's twice over, and some.
const FRAGMENT_DRAFTS: usize = 40;

/// Fragments of the control stream over RDMA: these bytes as one, then those that they describe, each by its total and
/// place (u32) and the length of its payload (u16); then a message of these bytes over and over, cut and put together.
pub fn control_stream(data: &[u8]) {
    let mut assembler = Assembler::default();
    let mut so_far = Vec::new();
    one_fragment(&mut assembler, &mut so_far, data);
    let mut payload = (0..=u8::MAX).cycle();
    for draft in data
        .chunks_exact(FRAGMENT_DRAFT_BYTES)
        .take(FRAGMENT_DRAFTS)
    {
        // No receive takes more than a slot has.
        let len = usize::from(u16::from_le_bytes([draft[8], draft[9]])).min(SLOT_BYTES);
        let head = draft[..8].iter().copied();
        let bytes: Vec<u8> = head.chain(payload.by_ref().take(len)).collect();
        one_fragment(&mut assembler, &mut so_far, &bytes);
    }
    let Some((wanted, bytes)) = data.split_first_chunk::<4>() else {
        return;
    };
    let wanted = u32::from_le_bytes(*wanted) as usize % MAX_CONTROL_BYTES + 1;
    let message: Vec<u8> = bytes.iter().copied().cycle().take(wanted).collect();
    let mut all = fragments_of(&message);
    let last = all.pop();
    let mut assembler = Assembler::default();
    for fragment in &all {
        assert_eq!(assembler.push(fragment), Ok(None));
    }
    if let Some(last) = last {
        assert_eq!(assembler.push(&last), Ok(Some(message)));
    }
}

/// What came of the message so far is in `so_far`: a message that is complete is cut into just these fragments.
fn one_fragment(assembler: &mut Assembler, so_far: &mut Vec<Vec<u8>>, bytes: &[u8]) {
    so_far.push(bytes.to_vec());
    match assembler.push(bytes) {
        Ok(None) => {}
        Ok(Some(message)) => {
            assert!((1..=MAX_CONTROL_BYTES).contains(&message.len()));
            let taken = std::mem::take(so_far);
            assert_eq!(fragments_of(&message), taken, "the cut is canonical");
        }
        Err(breach) => {
            assert!(!breach.0.is_empty());
            so_far.clear();
        }
    }
}

fn fragments_of(message: &[u8]) -> Vec<Vec<u8>> {
    let (mut at, mut all) = (0, Vec::new());
    while at < message.len() {
        let mut out = vec![0xee; SLOT_BYTES];
        let (len, next) = fragment(message, at, &mut out);
        out.truncate(len);
        all.push(out);
        at = next;
    }
    all
}

/// What comes with messages of the connection manager: a request, a reply and a refusal of these bytes.
pub fn private_data(data: &[u8]) {
    if let Ok(asked) = Asked::parse(data) {
        assert_eq!(
            asked.encode(),
            data[..REQUEST_BYTES],
            "requests are canonical"
        );
    }
    if let Ok((session, path_mtu)) = parse_reply(data) {
        assert_eq!(
            encode_reply(&session, path_mtu),
            data[..REPLY_BYTES],
            "replies are canonical"
        );
    }
    if let Some((status, text)) = parse_refusal(data) {
        let encoded = encode_refusal(status, &text);
        // One of another version says so in the same place, and an odd peer's text may be longer than ours.
        assert_eq!(encoded[2..4], data[2..4]);
        if text.len() <= TEXT_MAX {
            assert_eq!(
                encoded[4..],
                data[4..encoded.len()],
                "refusals are canonical"
            );
        }
    }
}

/// What a reader of another dataplane's memory and its exporter say to one another: a request to connect, the reply, a message, and that
/// again with the length it really has.
pub fn remote_message(data: &[u8]) {
    if let Ok(asked) = remote::Asked::parse(data) {
        let whole = &data[..remote::REQUEST_BYTES];
        assert_eq!(asked.encode(), whole, "requests are canonical");
    }
    if let Ok(reply) = remote::Reply::parse(data) {
        let whole = &data[..remote::REPLY_BYTES];
        assert_eq!(reply.encode(), whole, "replies are canonical");
    }
    one_remote_message(data);
    let mut bytes = data.to_vec();
    if let Some(len) = bytes.get_mut(4..8) {
        len.copy_from_slice(&(data.len() as u32).to_le_bytes());
        one_remote_message(&bytes);
    }
}

fn one_remote_message(bytes: &[u8]) {
    if let Ok(message) = remote::Message::parse(bytes) {
        assert!(bytes.len() <= remote::MESSAGE_MAX);
        assert_eq!(message.encode(), bytes, "messages are canonical");
    }
}

/// The text of an `rdma://` endpoint.
pub fn endpoint(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match host_and_port(text) {
        Ok((host, port)) => {
            let again = host_and_port(&format!("rdma://[{host}]:{port}"));
            assert_eq!(again.expect("what was understood is good"), (host, port));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// The header of a table file: these bytes, and again as the start of a header whose checksum is right.
pub fn table_header(data: &[u8]) {
    one_table_header(data);
    let (body, checksum) = (TABLE_HEADER_BYTES - 4, 4);
    let mut bytes = data[..data.len().min(body)].to_vec();
    bytes.resize(body, 0);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    assert_eq!(bytes.len(), body + checksum);
    one_table_header(&bytes);
}

fn one_table_header(bytes: &[u8]) {
    match parse_header(bytes) {
        Ok(header) => assert_eq!(header.to_bytes()[..], *bytes, "the encoding is canonical"),
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// Header and list of a delta: these bytes, and again as such with right checksums and as many sections as there are bytes for.
pub fn delta_head(data: &[u8]) {
    one_delta_head(data);
    let mut bytes = data.to_vec();
    bytes.resize(bytes.len().max(512), 0);
    let sections = (bytes.len() - 512) / 192;
    bytes.truncate(512 + sections * 192);
    bytes[12..16].copy_from_slice(&(sections as u32).to_le_bytes());
    let list = crc32fast::hash(&bytes[512..]);
    bytes[44..48].copy_from_slice(&list.to_le_bytes());
    let head = crc32fast::hash(&bytes[..508]);
    bytes[508..512].copy_from_slice(&head.to_le_bytes());
    one_delta_head(&bytes);
}

fn one_delta_head(bytes: &[u8]) {
    match parse_delta_head(bytes) {
        Ok(head) => {
            assert_eq!(head.to_bytes(), bytes, "the encoding is canonical");
            assert!(head.file_bytes() <= MAX_DELTA_BYTES && head.rows() > 0);
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// A manifest: these bytes, and again with a right checksum behind them.
pub fn table_manifest(data: &[u8]) {
    one_manifest(data);
    let mut bytes = data.to_vec();
    let seal = format!("\"crc32\":\"{:08x}\"}}\n", crc32fast::hash(&bytes));
    bytes.extend(seal.as_bytes());
    one_manifest(&bytes);
}

fn one_manifest(bytes: &[u8]) {
    match parse_manifest(bytes) {
        Ok(manifest) => {
            // JSON has many forms of one value, so that only the value comes back.
            let again = parse_manifest(&manifest.to_bytes());
            assert_eq!(again.expect("what was written is good"), manifest);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Sampled lookups of a dataplane, which the control plane reads.
pub fn samples(data: &[u8]) {
    let Ok(samples) = Samples::decode(data) else {
        return;
    };
    assert!(data.len() <= BODY_MAX);
    for part in &samples.tables {
        assert!(
            part.samples
                .iter()
                .all(|sample| sample.place < part.threshold)
        );
    }
    assert_eq!(samples.encoded_len(), data.len());
    assert_eq!(samples.encode(), data);
}

/// The file of warm rows: these bytes, and again with the checksum that they have.
pub fn warm_rows(data: &[u8]) {
    one_warm(data);
    if let Some((head, rest)) = data.split_at_checked(8) {
        let sealed = [head, &crc32fast::hash(rest).to_le_bytes(), rest].concat();
        one_warm(&sealed);
    }
}

fn one_warm(bytes: &[u8]) {
    match Warm::decode(bytes) {
        Ok(warm) => assert_eq!(warm.encode(), bytes, "each list has one form"),
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
}

/// Most keys of an index that is tried: enough for some full buckets, few enough for many tries.
const MAX_INDEX_KEYS: usize = 200;
const LINE_BYTES: usize = 64;

/// The index of a hashed table. The first byte is a number of keys; what follows is the index as it is,
/// then the index of these keys (in groups of eight bytes) with the rest of the bytes as changes to it.
pub fn table_index(data: &[u8]) {
    let Some((&count, data)) = data.split_first() else {
        return;
    };
    let count = usize::from(count) % MAX_INDEX_KEYS + 1;
    one_index(data, count);
    let mut keys: Vec<u64> = (0..count as u64).collect();
    let (given, _) = data.as_chunks();
    for (key, &bytes) in keys.iter_mut().zip(given) {
        *key = u64::from_le_bytes(bytes);
    }
    let mut bytes = match index_of(&keys, 1) {
        Ok(bytes) => bytes,
        Err(error) => {
            keys.sort_unstable();
            keys.dedup();
            assert!(keys.len() < count, "different keys have an index: {error}");
            return;
        }
    };
    assert!(one_index(&bytes, count), "what was built is good");
    // Padded with zeros the bytes are buckets behind a good first line.
    bytes.truncate(LINE_BYTES);
    let behind = index_bytes(count as u64) as usize - LINE_BYTES;
    bytes.extend(
        data.iter()
            .copied()
            .chain(std::iter::repeat(0))
            .take(behind),
    );
    one_index(&bytes, count);
    let mut bytes = index_of(&keys, 1).expect("as before");
    for change in data.get(count * 8..).unwrap_or_default().chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        bytes[at] ^= change[2];
    }
    one_index(&bytes, count);
}

fn one_index(bytes: &[u8], count: usize) -> bool {
    match check_index(bytes, count as u64) {
        Ok(entries) => {
            assert_eq!(entries.len(), count);
            assert!(entries.iter().all(|&(_, row)| (row as usize) < count));
            true
        }
        Err(reason) => {
            assert!(!reason.is_empty());
            false
        }
    }
}

/// The header of a safetensors file, behind four bytes with the number of bytes that it describes.
pub fn safetensors_header(data: &[u8]) {
    let Some((length, json)) = data.split_first_chunk() else {
        return;
    };
    let bytes = u64::from(u32::from_le_bytes(*length));
    match parse_safetensors_header(json, bytes) {
        Ok(tensors) => {
            let mut end = 0;
            for tensor in &tensors {
                assert_eq!(tensor.begin, end, "no gaps and no overlaps");
                end = tensor.end;
            }
            assert_eq!(end, bytes, "all bytes belong to a tensor");
        }
        Err(reason) => assert!(!reason.is_empty()),
    }
}

/// The header of a `.npy` file.
pub fn npy_header(data: &[u8]) {
    if let Err(reason) = check_npy_header(data) {
        assert!(!reason.is_empty());
    }
}

/// Requests and control messages announce their length at byte 4.
fn with_true_length(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    let len = bytes.len() as u32;
    if let Some(field) = bytes.get_mut(4..8) {
        field.copy_from_slice(&len.to_le_bytes());
    }
    bytes
}

fn check_refusal(refusal: Refusal) {
    assert_ne!(refusal.status, Status::Ok, "a refusal is no success");
    assert!(!refusal.to_string().is_empty());
}
