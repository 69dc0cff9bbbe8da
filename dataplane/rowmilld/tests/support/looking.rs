//! A client of the program, and what its status page says.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rowmill_arena::HugePages;
use rowmill_port::ClientPort;
use rowmill_port::shm::ShmClient;
use rowmill_table::{Generation, LoadOptions, silent};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Element, FeatureSpan, Header, Op, Place as Source, Segment};
use rowmill_wire::{Pooling, Schema, Status};
use serde_json::Value;

use super::support::{PATIENCE, Place, page};

const DIM: usize = 16;

pub fn status(address: SocketAddr) -> Value {
    serde_json::from_str(&page(address, "/status").1).unwrap()
}

/// Waits until what `/status` says is as wanted.
pub fn wait_until(address: SocketAddr, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        let status = status(address);
        if is_so(&status) {
            return status;
        }
        assert!(Instant::now() < until, "no {what}: {status:#}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Looks rows up, each in a bag of its own, compares what comes, and gives how many were there.
pub fn look_up(place: &Place, address: SocketAddr, ids: &[u32]) -> u64 {
    let counted = |status: &Value| {
        let count = |name: &str| status["cache"][0][name].as_u64().unwrap();
        (count("lookups"), count("hits"))
    };
    let (lookups, hits) = counted(&status(address));
    let mut client = ShmClient::connect(&place.endpoint(), "warm", 4).unwrap();
    let (schema, row) = Schema::side_by_side(1000, [("x", "f", Pooling::Sum, DIM as u32)]);
    let schema = client.bind(&schema).unwrap();
    let target = client.register(row as usize * ids.len()).unwrap();
    let bytes = |list: &[u32]| -> Vec<u8> { list.iter().flat_map(|x| x.to_le_bytes()).collect() };
    let at = request::inline_offset(1) as u32;
    let segment = |offset| Segment {
        place: Source::Inline { offset },
        element: Element::Bits32,
        len: ids.len() as u64 * 4,
    };
    let header = Header {
        op: Op::Lookup,
        schema,
        bags: ids.len() as u32,
        target_region: target.0,
        lengths: segment(at),
        ids: segment(at + ids.len() as u32 * 4),
        ..Header::null(1)
    };
    let span = FeatureSpan {
        lengths_at: 0,
        ids_at: 0,
        ids: ids.len() as u32,
        first_id: 0,
    };
    let mut frame = [0; SLOT_BYTES];
    let inline = [bytes(&vec![1; ids.len()]), bytes(ids)];
    let inline = [inline[0].as_slice(), inline[1].as_slice()];
    let len = request::encode(&header, &[span], &inline, &mut frame).unwrap();
    client.submit(0, 0, &frame[..len]).unwrap();
    let until = Instant::now() + PATIENCE;
    let record = loop {
        if let Some(record) = client.poll(0).unwrap() {
            break record;
        }
        assert!(Instant::now() < until, "no answer");
        client.wait(Some(Duration::from_millis(100))).unwrap();
    };
    assert_eq!(record.status, Status::Ok);
    let mut answered = vec![0; row as usize * ids.len()];
    client.memory(target).unwrap().read(0, &mut answered);
    assert_eq!(answered, expected(place, ids));
    let wanted = lookups + ids.len() as u64;
    let after = wait_until(address, "count", |status| counted(status).0 == wanted);
    counted(&after).1 - hits
}

fn expected(place: &Place, ids: &[u32]) -> Vec<u8> {
    let generation = Generation::open(place.path("model")).unwrap();
    let tables = generation.load(HugePages::Off, &silent, LoadOptions::default());
    let tables = tables.unwrap();
    let mut row = [0.0; DIM];
    let mut bytes = Vec::new();
    for &id in ids {
        tables.tables()[0].row_f32(id, &mut row).unwrap();
        bytes.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    bytes
}
