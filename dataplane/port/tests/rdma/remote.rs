//! Rows of another dataplane's memory by READ: an exporter and readers of it in one process.

use std::ops::Range;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_arena::{Arena, FrozenArena, FrozenBytes, HugePages};
use rowmill_port::conformance::{Bench, patience};
use rowmill_port::rdma::RdmaClient;
use rowmill_port::rdma::remote::{
    ExportedTable, Exporter, ExporterConfig, ExporterState, Identity, Offer, ReadLane, Reader,
    ReaderConfig, ReaderPhase, ReaderState,
};

use super::counting::allocations;
use super::harness::{Rdma, address, client_config, connection, has_device, slowness};

const ROWS: u64 = 1000;
/// Bytes of a row, of each table.
const STRIDES: [u32; 2] = [64, 512];

fn lease() -> Duration {
    Duration::from_millis(1500) * slowness()
}

/// A row of a table of a generation, each byte of which tells where it lies.
fn row_of(generation: u64, table: u32, row: u32) -> Vec<u8> {
    let seed = generation << 48 | u64::from(table) << 40 | u64::from(row);
    let word = |at: u64| (seed ^ at << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
    (0..u64::from(STRIDES[table as usize]))
        .map(|at| word(at) as u8)
        .collect()
}

fn identity(generation: u64, table: u32) -> Identity {
    Identity {
        model: "demo".into(),
        generation,
        fingerprint: 7,
        table: format!("table{table}"),
        rows: ROWS,
        stride: STRIDES[table as usize],
        dim: 16,
        format: 0,
    }
}

/// Both tables of a generation, in one arena.
fn offer(generation: u64) -> (Offer, Weak<FrozenArena>) {
    let bytes = STRIDES.map(|stride| ROWS as usize * stride as usize);
    let mut arena = Arena::allocate(bytes.iter().sum(), HugePages::Off).expect("memory");
    let places: [Range<usize>; 2] = [0..bytes[0], bytes[0]..bytes[0] + bytes[1]];
    for (table, place) in (0..).zip(&places) {
        let stride = STRIDES[table as usize] as usize;
        let rows = arena.as_mut_slice()[place.clone()].chunks_mut(stride);
        for (row, bytes) in (0..).zip(rows) {
            bytes.copy_from_slice(&row_of(generation, table, row));
        }
    }
    let arena = Arc::new(arena.freeze().expect("frozen"));
    let kept = Arc::downgrade(&arena);
    let tables = (0..).zip(places).map(|(table, place)| ExportedTable {
        identity: identity(generation, table),
        rows: FrozenBytes::new(Arc::clone(&arena), place),
    });
    let offer = Offer {
        generation,
        tables: tables.collect(),
        left_out: Vec::new(),
    };
    (offer, kept)
}

/// Exports generation 1 until the process ends.
pub(super) fn export() -> ! {
    let exporter = exporter(0, offer(1).0);
    println!("\nendpoint rdma://{}", exporter.address());
    loop {
        thread::park();
    }
}

fn exporter(port: u16, first: Offer) -> Exporter {
    let endpoint = format!(
        "rdma://{}:{port}",
        address().expect("it was asked for before")
    );
    let config = ExporterConfig {
        endpoint,
        connection: connection(),
        lease: lease(),
        readers: 4,
    };
    Exporter::start(config, first).expect("an exporter")
}

pub(super) struct Reading {
    reader: Reader,
    lanes: Vec<ReadLane>,
    began: Instant,
}

impl Reading {
    fn of(exporter: &Exporter, reads: u32, tables: Vec<Identity>) -> Reading {
        Reading::at(&format!("rdma://{}", exporter.address()), reads, tables)
    }

    fn at(endpoint: &str, reads: u32, tables: Vec<Identity>) -> Reading {
        let began = Instant::now();
        let (reader, lanes) = Reader::start(ReaderConfig {
            endpoint: endpoint.into(),
            connection: connection(),
            lanes: 2,
            reads,
            tables,
            now_ns: Box::new(move || began.elapsed().as_nanos() as u64),
        })
        .expect("a reader");
        Reading {
            reader,
            lanes,
            began,
        }
    }

    fn both(exporter: &Exporter, reads: u32, generation: u64) -> Reading {
        let tables = (0..2).map(|table| identity(generation, table));
        Reading::of(exporter, reads, tables.collect())
    }

    /// Of an exporter on another machine, which exports generation 1.
    pub(super) fn far(endpoint: &str) -> Reading {
        let tables = (0..2).map(|table| identity(1, table));
        Reading::at(endpoint, 64, tables.collect())
    }

    pub(super) fn wait_for(&self, what: &str, is_so: impl Fn(&ReaderState) -> bool) -> ReaderState {
        wait_for(what, || Some(self.reader.state()).filter(&is_so))
    }

    pub(super) fn is_connected(&self) -> ReaderState {
        self.wait_for("connected", |state| state.phase == ReaderPhase::Connected)
    }

    /// Reads rows until so many have come, as many at a time as can be; each is compared, and nothing is allocated. Whether the
    /// connection was good until then; the most that there was room for.
    pub(super) fn read(&mut self, lane: usize, generation: u64, rows: u32) -> (bool, usize) {
        let lane = &mut self.lanes[lane];
        let (mut asked, mut come, mut most) = (0, 0, 0);
        let until = Instant::now() + patience();
        let allocated = allocations();
        while come < rows {
            assert!(Instant::now() < until, "{come} of {rows} rows");
            let Some(room) = lane.room(self.began.elapsed().as_nanos() as u64) else {
                break;
            };
            most = most.max(room);
            for _ in 0..room.min((rows - asked) as usize) {
                let (table, row) = place(asked);
                assert!(lane.has(table));
                lane.read(table, row, u64::from(asked));
                asked += 1;
            }
            lane.poll(&mut |token, bytes| {
                let (table, row) = place(token as u32);
                let stride = STRIDES[table as usize] as usize;
                come += 1;
                // Without a row made anew, which would be an allocation.
                let seed = generation << 48 | u64::from(table) << 40 | u64::from(row);
                for (at, &byte) in (0..).zip(&bytes[..stride]) {
                    let word = (seed ^ at << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
                    assert_eq!(byte, word as u8, "byte {at} of row {row} of table {table}");
                }
            });
        }
        assert_eq!(allocations(), allocated, "it allocates");
        (come == rows, most)
    }
}

/// Rows in an order of no order.
fn place(asked: u32) -> (u32, u32) {
    let mixed = asked.wrapping_mul(0x9e37_79b1);
    (mixed >> 31, (mixed >> 8) % ROWS as u32)
}

fn wait_for<T>(what: &str, mut is_so: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = is_so() {
            return found;
        }
        assert!(since.elapsed() < patience(), "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn holds(state: &ExporterState, generation: u64) -> bool {
    let mut held = state.generations.iter();
    held.any(|&(number, ..)| number == generation)
}

#[test]
fn rows_come_as_they_are_and_nothing_is_allocated() {
    if !has_device() {
        return;
    }
    let exporter = exporter(0, offer(1).0);
    let mut reading = Reading::both(&exporter, 128, 1);
    let state = reading.is_connected();
    assert_eq!((state.lease, state.connected), (lease(), 1));
    assert!(state.reads_in_flight > 0);
    assert!(reading.read(0, 1, 100).0);
    let (is_good, most) = reading.read(0, 1, 3000);
    assert!(is_good && most > 8, "{most} at a time");
    assert!(reading.read(1, 1, 1000).0);
    // It goes on beyond the first lease.
    let last = reading.wait_for("renewed", |state| state.renewed >= 3);
    assert_eq!((last.connected, last.lost), (1, 0), "{last:?}");
    assert!(reading.read(0, 1, 1000).0);
    let seen = exporter.state();
    assert_eq!((seen.accepted, seen.lapsed), (1, 0));
    assert_eq!(seen.readers.len(), 1);
    assert_eq!(seen.readers[0].1, 2, "a lane for each worker");
    drop(reading);
    wait_for("a lease that is given back", || {
        exporter.state().readers.is_empty().then_some(())
    });
    assert_eq!(exporter.state().lapsed, 0);
}

#[test]
fn no_more_reads_than_can_be_posted() {
    if !has_device() {
        return;
    }
    let exporter = exporter(0, offer(1).0);
    // Blocks of such small rows fill a page, of which there are more than READs.
    let mut reading = Reading::of(&exporter, 3, vec![identity(1, 0)]);
    reading.is_connected();
    let lane = &mut reading.lanes[0];
    let mut come = 0;
    let since = Instant::now();
    while come < 500 {
        assert!(since.elapsed() < patience(), "{come} rows");
        let room = lane.room(reading.began.elapsed().as_nanos() as u64);
        let room = room.unwrap_or_else(|| panic!("lost: {:?}", reading.reader.state()));
        assert!(room <= 3, "room for {room}");
        for _ in 0..room {
            lane.read(0, 5, 0);
        }
        lane.poll(&mut |_, bytes| {
            assert_eq!(bytes[..64], row_of(1, 0, 5));
            come += 1;
        });
    }
}

#[test]
fn a_generation_that_goes_stays_until_nobody_may_read_it() {
    if !has_device() {
        return;
    }
    let (first, kept) = offer(1);
    let exporter = exporter(0, first);
    let mut old = Reading::both(&exporter, 16, 1);
    old.is_connected();
    assert!(old.read(0, 1, 200).0);
    exporter.offer(offer(2).0);
    wait_for("a second generation", || {
        holds(&exporter.state(), 2).then_some(())
    });
    let mut new = Reading::both(&exporter, 16, 2);
    new.is_connected();
    assert!(new.read(0, 2, 200).0 && old.read(1, 1, 200).0);
    exporter.withdraw(1);
    let state = old.wait_for("told", |state| state.phase == ReaderPhase::Apart);
    assert!(state.why.contains("generation 1"), "{}", state.why);
    assert!(!old.read(0, 1, 200).0, "it reads on");
    wait_for("memory that goes", || {
        (!holds(&exporter.state(), 1) && kept.strong_count() == 0).then_some(())
    });
    // It tries again, and is told that it is gone.
    let state = old.wait_for("refused", |state| state.why.contains("not exported"));
    assert_eq!(state.phase, ReaderPhase::Apart);
    let state = new.wait_for("renewed", |state| state.renewed >= 2);
    assert_eq!((state.connected, state.lost), (1, 0), "{state:?}");
    assert!(new.read(1, 2, 200).0);
}

#[test]
fn an_exporter_that_goes_amid_reads_is_noticed_and_found_again() {
    if !has_device() {
        return;
    }
    let first = exporter(0, offer(1).0);
    let port = first.address().port();
    let mut reading = Reading::both(&first, 64, 1);
    reading.is_connected();
    assert!(reading.read(0, 1, 200).0);
    let gone = thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let since = Instant::now();
            while reading.read(0, 1, 64).0 {
                assert!(since.elapsed() < patience(), "READs succeed from nobody");
            }
            &mut reading
        });
        thread::sleep(Duration::from_millis(50));
        drop(first);
        reads.join().expect("no wrong row")
    });
    let state = gone.wait_for("lost", |state| state.lost == 1);
    println!("lost: {}", state.why);
    let _second = exporter(port, offer(1).0);
    let state = gone.is_connected();
    assert_eq!(state.connected, 2);
    assert!(gone.read(0, 1, 200).0 && gone.read(1, 1, 200).0);
}

#[test]
fn another_table_is_not_read() {
    if !has_device() {
        return;
    }
    let exporter = exporter(0, offer(1).0);
    let other = Identity {
        fingerprint: 8,
        ..identity(1, 1)
    };
    let mut reading = Reading::of(&exporter, 16, vec![identity(1, 0), other.clone()]);
    let state = reading.is_connected();
    assert_eq!(state.refused[0], None);
    let why = state.refused[1].as_ref().expect("refused");
    assert!(why.contains("checksums"), "{why}");
    let lane = &mut reading.lanes[0];
    wait_for("a lane", || {
        lane.room(reading.began.elapsed().as_nanos() as u64)
    });
    assert!(lane.has(0) && !lane.has(1));
    let none = Reading::of(&exporter, 16, vec![other]);
    let state = none.wait_for("refused", |state| !state.why.is_empty());
    assert_eq!((state.phase, state.connected), (ReaderPhase::Apart, 0));
    assert!(state.why.contains("no table is given"), "{}", state.why);
}

#[test]
fn what_is_no_reader_and_what_is_no_exporter_are_told_so() {
    if !has_device() {
        return;
    }
    let exporter = exporter(0, offer(1).0);
    let at = format!("rdma://{}", exporter.address());
    let client = RdmaClient::connect_with(&at, "lost", client_config(4));
    let error = client.err().expect("no service");
    let text = error.to_string();
    assert!(text.contains("[export]"), "{text}");
    // Its state is shown at the end of a turn, after the refusal went out.
    wait_for("counted", || {
        Some(()).filter(|()| exporter.state().refused == 1)
    });
    let bench = Bench::<Rdma>::start(1);
    let began = Instant::now();
    let (reader, _lanes) = Reader::start(ReaderConfig {
        endpoint: bench.harness.endpoint.clone(),
        connection: connection(),
        lanes: 1,
        reads: 4,
        tables: vec![identity(1, 0)],
        now_ns: Box::new(move || began.elapsed().as_nanos() as u64),
    })
    .expect("a reader");
    let why = wait_for("refused", || {
        Some(reader.state().why).filter(|why| !why.is_empty())
    });
    println!("a service says: {why}");
    assert_eq!(reader.state().connected, 0);
}
