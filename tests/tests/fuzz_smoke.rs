//! Every fuzz body on seeded inputs: golden messages as they are, then changed in ways that a
//! fuzzer would change them. Runs on stable, a second a body; `tests/fuzz/run.sh` runs the real fuzzer.
//!
//! `ROWMILL_SEED=N` repeats a run. `ROWMILL_WRITE_SEEDS=1` writes the fuzzer's seed corpus anew.

#[path = "../../dataplane/wire/tests/golden/reader.rs"]
mod reader;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use rowmill_cache::warm::{Warm, WarmTable};
use rowmill_link::{Sample, Samples, TableSamples};
use rowmill_port::rdma::bounds::{FRAGMENT_BYTES, FRAGMENT_HEADER};
use rowmill_port::rdma::private_data::{Asked, encode_refusal, encode_reply};
use rowmill_port::rdma::remote::Identity;
use rowmill_port::rdma::remote::message::{self as remote, Message, Reply};
use rowmill_port::rdma::stream::fragment;
use rowmill_table::{
    DeltaHead, DeltaSection, Header, Missing, RowFormat, TableKind, TableSpec, generate, index_of,
    silent,
};
use rowmill_tests::fuzz;
use rowmill_wire::Status;
use rowmill_wire::limits::MAX_CONTROL_BYTES;

/// How long each body is driven.
const TIME: Duration = Duration::from_secs(1);
/// Inputs between two looks at the clock.
const INPUTS_A_LOOK: usize = 256;
/// Longest input: a slot and a little.
const MAX_LEN: usize = 8192 + 64;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The inputs that each target starts from, by name.
fn seeds(target: &str) -> BTreeMap<String, Vec<u8>> {
    match target {
        "control_stream" => control_streams(),
        "private_data" => connection_messages(),
        "remote_message" => remote_messages(),
        "endpoint" => endpoints(),
        "table_header" => table_headers(),
        "delta_head" => delta_heads(),
        "table_manifest" => manifests(),
        "table_index" => indexes(),
        "warm_rows" => warm_rows(),
        "samples" => samples(),
        "safetensors_header" => safetensors_headers(),
        "npy_header" => npy_headers(),
        kind => {
            let folder = root().join("dataplane/wire/tests/golden");
            let good = reader::good(&folder, kind).into_iter();
            assert!(reader::KINDS.contains(&kind) && good.len() > 0);
            good.map(|message| (message.name, message.bytes)).collect()
        }
    }
}

/// Drafts of fragments: total, place, length of the payload.
fn control_streams() -> BTreeMap<String, Vec<u8>> {
    let drafts = |all: &[(u32, u32, u16)]| {
        let draft = |&(total, at, len): &(u32, u32, u16)| {
            let numbers = [total.to_le_bytes(), at.to_le_bytes()].concat();
            [&numbers[..], &len.to_le_bytes()].concat()
        };
        all.iter().flat_map(draft).collect::<Vec<u8>>()
    };
    let full = (FRAGMENT_BYTES - FRAGMENT_HEADER) as u32;
    let most = MAX_CONTROL_BYTES as u32;
    let longest: Vec<(u32, u32, u16)> = (0..most)
        .step_by(full as usize)
        .map(|at| (most, at, full.min(most - at) as u16))
        .collect();
    let mut one = vec![0xee; FRAGMENT_BYTES];
    let (len, _) = fragment(b"a message", 0, &mut one);
    one.truncate(len);
    let three = [
        (2 * full + 5, 0, full as u16),
        (2 * full + 5, full, full as u16),
        (2 * full + 5, 2 * full, 5),
    ];
    let overlapping = [(full + 9, 0, full as u16), (full + 9, full - 1, 10)];
    [
        ("as-it-is", one),
        ("three", drafts(&three)),
        ("two-messages", drafts(&[(7, 0, 7), (1, 0, 1)])),
        ("longest", drafts(&longest)),
        ("overlapping", drafts(&overlapping)),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// What each message of the connection manager carries, with the zeros that transports put behind.
fn connection_messages() -> BTreeMap<String, Vec<u8>> {
    let session = std::array::from_fn(|i| i as u8 + 1);
    let mut reply = encode_reply(&session, None).to_vec();
    reply.resize(196, 0);
    [
        (
            "control",
            Asked::Control { path_mtu: None }.encode().to_vec(),
        ),
        ("lane", Asked::Lane { session, lane: 3 }.encode().to_vec()),
        ("reply", reply),
        ("refusal", encode_refusal(Status::LimitReached, "no room")),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// Of each kind one.
fn remote_messages() -> BTreeMap<String, Vec<u8>> {
    let session = std::array::from_fn(|i| i as u8 + 1);
    let table = Identity {
        model: "demo".into(),
        generation: 3,
        fingerprint: 77,
        table: "items".into(),
        rows: 1000,
        stride: 512,
        dim: 128,
        format: 0,
    };
    let reply = Reply {
        session,
        lease_ms: 3000,
        path_mtu: None,
    };
    let lane = remote::Asked::Lane { session };
    let granted = Message::Granted {
        number: 1,
        address: 1 << 40,
        key: 7,
        bytes: 512_000,
    };
    let text = "there is no table items".to_owned();
    let messages = [
        ("open", Message::Open { number: 1, table }),
        ("granted", granted),
        ("refused", Message::Refused { number: 1, text }),
        ("renew", Message::Renew { serial: 9 }),
        ("renewed", Message::Renewed { serial: 9 }),
        (
            "ending",
            Message::Ending {
                text: "generation 3 is unloaded".into(),
            },
        ),
        ("close", Message::Close),
    ];
    let messages = messages.map(|(name, message)| (name.to_owned(), message.encode()));
    let connecting = [
        (
            "ask-session",
            remote::Asked::Session { path_mtu: None }.encode().to_vec(),
        ),
        ("ask-lane", lane.encode().to_vec()),
        ("reply", reply.encode().to_vec()),
    ];
    let connecting = connecting.map(|(name, bytes)| (name.to_owned(), bytes));
    messages.into_iter().chain(connecting).collect()
}

/// Bodies with a table, several, and none.
fn samples() -> BTreeMap<String, Vec<u8>> {
    let part = |table: &str, rows: &[u32]| TableSamples {
        table: table.into(),
        lookups: 5000,
        dropped: 1,
        threshold: 1000,
        samples: rows
            .iter()
            .map(|&row| Sample {
                row,
                place: row % 1000,
            })
            .collect(),
    };
    let body = |tables| {
        Samples {
            instance: 7,
            number: 3,
            tables,
        }
        .encode()
    };
    [
        ("none", body(vec![])),
        ("one", body(vec![part("cat_0", &[7, 1, 7])])),
        (
            "two",
            body(vec![part("cat_0", &[1, 4_000_000_000]), part("user", &[])]),
        ),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// Files of warm rows, and what of them is behind the checksum, with the magic number.
fn warm_rows() -> BTreeMap<String, Vec<u8>> {
    let table = |name: &str, rows: &[u32]| WarmTable {
        name: name.into(),
        rows: rows.into(),
    };
    let some = Warm {
        generation: "generation-3".into(),
        tables: vec![table("cat_0", &[7, 1, 40_000_000]), table("user", &[])],
    };
    let (some, none) = (some.encode(), Warm::default().encode());
    let unsealed = |bytes: &[u8]| [&bytes[..8], &bytes[12..]].concat();
    [
        ("some-unsealed", unsealed(&some)),
        ("none-unsealed", unsealed(&none)),
        ("some", some),
        ("none", none),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

fn endpoints() -> BTreeMap<String, Vec<u8>> {
    [
        ("name", "rdma://dpu1:7400"),
        ("ipv4", "rdma://10.0.0.7:1"),
        ("ipv6", "rdma://[fd00::1]:7400"),
    ]
    .map(|(name, text)| (name.to_owned(), text.as_bytes().to_vec()))
    .into()
}

fn specs() -> [TableSpec; 2] {
    let spec = |name: &str, rows, dim, format, kind| TableSpec {
        name: name.into(),
        rows,
        dim,
        format,
        kind,
    };
    [
        spec("cat_0", 40_000_000, 128, RowFormat::F32, TableKind::Dense),
        spec(
            "cat_25",
            3,
            4,
            RowFormat::Int8,
            TableKind::Hashed(Missing::Zero),
        ),
    ]
}

/// Header and list of deltas of one table and of two.
fn delta_heads() -> BTreeMap<String, Vec<u8>> {
    let section = |spec: TableSpec| DeltaSection {
        table: spec.name,
        format: spec.format,
        dim: spec.dim,
        hashed: spec.kind != TableKind::Dense,
        rows: 3,
        crc32: 5,
    };
    let head = |sections: Vec<DeltaSection>| DeltaHead {
        model: "m".into(),
        generation: 4,
        base: 77,
        sequence: 1,
        sections,
    };
    let mut both = specs().map(section).to_vec();
    both.sort_by(|a, b| a.table.cmp(&b.table));
    [("one", head(vec![both[0].clone()])), ("two", head(both))]
        .map(|(name, head)| (name.to_owned(), head.to_bytes()))
        .into()
}

/// The body appends zeros and the checksum.
fn table_headers() -> BTreeMap<String, Vec<u8>> {
    let start = |spec: TableSpec| {
        let bytes = Header { spec }.to_bytes();
        let body = &bytes[..bytes.len() - 4];
        let end = body.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
        body[..end].to_vec()
    };
    let [f32_table, int8_table] = specs();
    [("f32", f32_table), ("int8-hashed", int8_table)]
        .map(|(name, spec)| (name.to_owned(), start(spec)))
        .into()
}

/// The body appends the line with the checksum, here the last 20 bytes.
fn manifests() -> BTreeMap<String, Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder for a generation");
    let small = specs().map(|spec| TableSpec { rows: 3, ..spec });
    generate(folder.path().join("1"), 1, &small, 1, &silent).expect("a small generation");
    let mut bytes = fs::read(folder.path().join("1/manifest.json")).expect("its manifest");
    bytes.truncate(bytes.len() - "\"crc32\":\"00000000\"}\n".len());
    [("two-tables".to_owned(), bytes)].into()
}

/// The number of keys less one, and an index of them; or keys, and changes to their index.
fn indexes() -> BTreeMap<String, Vec<u8>> {
    let index = |count: u8| {
        let keys: Vec<u64> = (0..=u64::from(count)).collect();
        let index = index_of(&keys, 1).expect("an index");
        [vec![count], index].concat()
    };
    let mut keys = vec![2];
    for key in [0, 7, u64::MAX] {
        keys.extend(key.to_le_bytes());
    }
    keys.extend([104, 0, 1, 200, 0, 255]);
    [
        ("one-key", index(0)),
        ("many-keys", index(99)),
        ("changed", keys),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

/// The bytes of the tensors, and the header that describes them.
fn safetensors_headers() -> BTreeMap<String, Vec<u8>> {
    let header = |bytes: u32, json: &str| [&bytes.to_le_bytes(), json.as_bytes()].concat();
    let two = r#"{"__metadata__":{"format":"pt"},
        "ids":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},
        "rows":{"dtype":"F16","shape":[3,4],"data_offsets":[24,48]}}   "#;
    let one = r#"{"w":{"dtype":"F32","shape":[2,4],"data_offsets":[0,32]}}"#;
    [
        ("two-tensors", header(48, two)),
        ("one-tensor", header(32, one)),
        ("none", header(0, "{}")),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

fn npy_headers() -> BTreeMap<String, Vec<u8>> {
    let header = |version: u8, text: &str| {
        let length = text.len() as u32;
        let length = &length.to_le_bytes()[..if version == 1 { 2 } else { 4 }];
        [b"\x93NUMPY", &[version, 0][..], length, text.as_bytes()].concat()
    };
    let text = |kind: &str, shape: &str| {
        format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}\n")
    };
    [
        ("rows", header(1, &text("<f4", "30, 4"))),
        ("keys", header(2, &text("<i8", "30,"))),
    ]
    .map(|(name, bytes)| (name.to_owned(), bytes))
    .into()
}

fn seed() -> u64 {
    let given = std::env::var("ROWMILL_SEED").ok();
    let seed = given.map_or_else(rand::random, |text| {
        text.parse().expect("ROWMILL_SEED is a number")
    });
    println!("ROWMILL_SEED={seed}");
    seed
}

/// Changes an input a little, as fuzzers do: bits, bytes, runs, lengths, and parts of others.
fn mutate(bytes: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..5) {
        let at = rng.random_range(0..bytes.len().max(1));
        match rng.random_range(0..7) {
            0 => bytes.truncate(at),
            1 => bytes.resize(
                (at + rng.random_range(0..32usize)).min(MAX_LEN),
                rng.random(),
            ),
            2 => {
                let other = &others[rng.random_range(0..others.len())];
                let from = rng.random_range(0..other.len().max(1)).min(other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            3 => {
                let word: u32 =
                    [0, 1, 0xff, 0xffff, 0x1_0000, 1 << 31, u32::MAX][rng.random_range(0..7usize)];
                for (to, from) in bytes.iter_mut().skip(at).zip(word.to_le_bytes()) {
                    *to = from;
                }
            }
            4 if !bytes.is_empty() => bytes[at] = rng.random(),
            5 if !bytes.is_empty() => bytes[at] = bytes[at].wrapping_add(1),
            _ if !bytes.is_empty() => bytes[at] ^= 1 << rng.random_range(0..8),
            _ => {}
        }
    }
}

/// Runs a body on the seeds and on changed seeds until its time is over.
fn drive(target: &str, body: fn(&[u8])) {
    let mut rng = StdRng::seed_from_u64(seed());
    let seeds: Vec<Vec<u8>> = seeds(target).into_values().collect();
    body(&[]);
    seeds.iter().for_each(|bytes| body(bytes));
    let (start, mut inputs) = (Instant::now(), 0);
    while start.elapsed() < TIME {
        for _ in 0..INPUTS_A_LOOK {
            let mut bytes = seeds[rng.random_range(0..seeds.len())].clone();
            mutate(&mut bytes, &seeds, &mut rng);
            body(&bytes);
            inputs += 1;
        }
    }
    println!("{target}: {inputs} inputs in {:?}", start.elapsed());
}

#[test]
fn request() {
    drive("request", fuzz::request);
}

#[test]
fn completion() {
    drive("completion", fuzz::completion);
}

#[test]
fn control() {
    drive("control", fuzz::control);
}

#[test]
fn immediate() {
    drive("immediate", fuzz::immediate);
}

#[test]
fn control_stream() {
    drive("control_stream", fuzz::control_stream);
}

#[test]
fn private_data() {
    drive("private_data", fuzz::private_data);
}

#[test]
fn endpoint() {
    drive("endpoint", fuzz::endpoint);
}

#[test]
fn table_header() {
    drive("table_header", fuzz::table_header);
}

#[test]
fn remote_message() {
    drive("remote_message", fuzz::remote_message);
}

#[test]
fn delta_head() {
    drive("delta_head", fuzz::delta_head);
}

#[test]
fn table_manifest() {
    drive("table_manifest", fuzz::table_manifest);
}

#[test]
fn table_index() {
    drive("table_index", fuzz::table_index);
}

#[test]
fn samples_of_dataplanes() {
    drive("samples", fuzz::samples);
}

#[test]
fn warm_rows_files() {
    drive("warm_rows", fuzz::warm_rows);
}

#[test]
fn safetensors_header() {
    drive("safetensors_header", fuzz::safetensors_header);
}

#[test]
fn npy_header() {
    drive("npy_header", fuzz::npy_header);
}

#[test]
fn malformed_messages() {
    for (kind, _, message) in reader::malformed(&root().join("dataplane/wire/tests/golden")) {
        match kind.as_str() {
            "request" => fuzz::request(&message.bytes),
            "completion" => fuzz::completion(&message.bytes),
            "control" => fuzz::control(&message.bytes),
            _ => fuzz::immediate(&message.bytes),
        }
    }
}

/// The corpus in `tests/fuzz/seeds` is made from the golden messages and stays in step with them.
#[test]
fn seed_corpus_is_in_step() {
    let corpus = root().join("tests/fuzz/seeds");
    let write = std::env::var_os("ROWMILL_WRITE_SEEDS").is_some();
    let targets =
        fs::read_dir(root().join("tests/fuzz/fuzz_targets")).expect("the targets' folder");
    for target in targets {
        let target = target.expect("a target").path();
        let target = target.file_stem().and_then(|s| s.to_str()).expect("a name");
        for (name, bytes) in seeds(target) {
            let path = corpus.join(target).join(&name);
            if write {
                fs::create_dir_all(corpus.join(target)).expect("a folder for seeds");
                fs::write(&path, &bytes).expect("a seed is written");
            }
            let stored = fs::read(&path).unwrap_or_default();
            assert!(
                stored == bytes,
                "{target}/{name} is out of step; run this test with ROWMILL_WRITE_SEEDS=1"
            );
        }
    }
}
