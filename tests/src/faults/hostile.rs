//! A client without the library, that sends what it likes.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_arena::HugePages;
use rowmill_client::{AnyPort, PortError};
use rowmill_pooling::{Mode, scalar};
use rowmill_port::rdma::{RdmaClient, RdmaClientConfig};
use rowmill_port::shm::layout::{COMPLETION_TAIL, SUBMISSION_TAIL};
use rowmill_port::shm::{RawLane, ShmClient, ShmClientConfig};
use rowmill_port::{ClientPort, RegionId};
use rowmill_table::Resident;
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Element, FeatureSpan, Header, Op, Place, Segment};
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Completion, Immediate, Pooling, Schema, Status};

use super::patron::{bound, rows};
use super::site::{CREDITS, WIDE_DIM, rdma_address};

/// Bytes of its region of request data: the ids of the longest request, 8 bytes each, and its lengths.
pub(crate) const SOURCE_BYTES: u64 = 8 << 20;
/// Bytes of its region of results.
pub(crate) const TARGET_BYTES: u64 = 1 << 20;
/// Bags of a long request, each of [`LONG_BAG`] ids: it reads 8 GiB, some tenths of a second.
pub(crate) const LONG_BAGS: u32 = 128;
/// Ids of each bag of a long request.
pub(crate) const LONG_BAG: u32 = 8192;
/// Dimensions of the two features of the ordinary schema, side by side.
pub(crate) const DIMS: [usize; 2] = [16, 32];
/// Bytes from bag to bag.
pub(crate) const STRIDE: u64 = 192;
/// Bags of the schema at most.
pub(crate) const MAX_BAGS: u32 = 128;
/// From here on the source region is free: before lie the ids of long requests.
pub(crate) const PLAYGROUND: u64 = SOURCE_BYTES / 2;
/// What fills the target before a request.
const POISON: u8 = 0xa5;

/// A client without the library.
pub(crate) struct Hostile {
    port: AnyPort,
    /// The ordinary schema: `small` summed, `quant` averaged.
    pub(crate) schema: u32,
    /// A schema of one feature of `wide`, whose requests take long.
    pub(crate) long_schema: u32,
    /// Its region of request data.
    pub(crate) source: RegionId,
    /// Its region of results.
    pub(crate) target: RegionId,
    tables: Arc<Resident>,
    requests: u64,
}

/// A refusal that has to come: what was wrong, the frame, the status, and feature and index.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// What is wrong with it.
    pub(crate) what: String,
    /// The frame.
    pub(crate) frame: Vec<u8>,
    /// The answer's status.
    pub(crate) status: Status,
    /// The feature and the index that the answer names.
    pub(crate) at: (u32, u32),
}

impl Case {
    /// A frame that is refused as a whole.
    pub(crate) fn whole(what: impl Into<String>, frame: Vec<u8>, status: Status) -> Case {
        Case {
            what: what.into(),
            frame,
            status,
            at: (NOWHERE, NOWHERE),
        }
    }

    /// A frame that is refused for a feature, and perhaps an index in it.
    pub(crate) fn at(
        what: impl Into<String>,
        frame: Vec<u8>,
        status: Status,
        at: (u32, u32),
    ) -> Case {
        Case {
            what: what.into(),
            frame,
            status,
            at,
        }
    }
}

impl Hostile {
    /// Connects, binds its schemas, registers its regions.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn connect(endpoint: &str, tables: &Arc<Resident>) -> Result<Hostile> {
        let mut port = Hostile::port(endpoint)?;
        let schema = port.bind(&ordinary_schema())?;
        let long = [("long", "wide", Pooling::Sum, WIDE_DIM as u32)];
        let long_schema = port.bind(&Schema::side_by_side(LONG_BAGS, long).0)?;
        let source = port.register_source(SOURCE_BYTES as usize)?;
        let target = port.register(TARGET_BYTES as usize)?;
        let lengths = LONG_BAG.to_le_bytes().repeat(LONG_BAGS as usize);
        let window = port.memory(source).context("its region")?;
        window.write((SOURCE_BYTES - lengths.len() as u64) as usize, &lengths);
        let tables = Arc::clone(tables);
        Ok(Hostile {
            port,
            schema,
            long_schema,
            source,
            target,
            tables,
            requests: 0,
        })
    }

    /// A bare connection.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn port(endpoint: &str) -> Result<AnyPort, PortError> {
        if rdma_address().is_some() {
            let config = RdmaClientConfig {
                credits: CREDITS,
                huge_pages: HugePages::Off,
                reply_limit: 2 * bound(),
                connect_limit: 5 * bound(),
                silent_limit: bound(),
                ..RdmaClientConfig::default()
            };
            return RdmaClient::connect_with(endpoint, "hostile", config).map(AnyPort::Rdma);
        }
        Hostile::shm_port(endpoint).map(AnyPort::Shm)
    }

    /// A bare connection over shared memory.
    ///
    /// # Errors
    /// Where the service refuses.
    pub(crate) fn shm_port(endpoint: &str) -> Result<ShmClient, PortError> {
        let config = ShmClientConfig {
            credits: CREDITS,
            huge_pages: HugePages::Off,
            reply_limit: 2 * bound(),
            ..ShmClientConfig::default()
        };
        ShmClient::connect_with(endpoint, "hostile", config)
    }

    /// The connection.
    pub(crate) fn raw(&mut self) -> &mut AnyPort {
        &mut self.port
    }

    /// The connection over shared memory.
    ///
    /// # Panics
    /// If it is another: such faults are of that port only.
    pub(crate) fn shm(&mut self) -> &mut ShmClient {
        match &mut self.port {
            AnyPort::Shm(port) => port,
            AnyPort::Rdma(_) => panic!("this fault is one of shared memory"),
        }
    }

    /// Writes to its region of request data.
    ///
    /// # Panics
    /// If the bytes don't fit.
    pub(crate) fn write_source(&self, offset: u64, bytes: &[u8]) {
        let window = self.port.memory(self.source).expect("it is registered");
        window.write(offset as usize, bytes);
    }

    /// A good request of two bags a feature, inline.
    pub(crate) fn good(&self) -> Draft {
        Draft::new(self, &[2, 1, 1, 2], &[7, 9, 7, 0, 4999, 2999])
    }

    /// A good request with its lengths and ids in the source region, 32 bits each.
    pub(crate) fn good_in_region(&self) -> Draft {
        let mut draft = self.good();
        let bytes = std::mem::take(&mut draft.inline);
        self.write_source(PLAYGROUND, &bytes);
        let region = |offset| Place::Region {
            region: self.source.0,
            offset,
        };
        draft.header.lengths.place = region(PLAYGROUND);
        draft.header.ids.place = region(PLAYGROUND + 16);
        draft
    }

    /// A request that takes long: all of its ids are 0.
    pub(crate) fn long(&self) -> Draft {
        let lengths_at = SOURCE_BYTES - 4 * u64::from(LONG_BAGS);
        let segment = |offset, elements: u32| Segment {
            place: Place::Region {
                region: self.source.0,
                offset,
            },
            element: Element::Bits32,
            len: 4 * u64::from(elements),
        };
        let ids = LONG_BAGS * LONG_BAG;
        let header = Header {
            op: Op::Lookup,
            schema: self.long_schema,
            bags: LONG_BAGS,
            target_region: self.target.0,
            lengths: segment(lengths_at, LONG_BAGS),
            ids: segment(0, ids),
            ..Header::null(0)
        };
        Draft {
            header,
            spans: vec![FeatureSpan {
                lengths_at: 0,
                ids_at: 0,
                ids,
                first_id: 0,
            }],
            inline: Vec::new(),
        }
    }

    /// Whether the first bag of a long request is as the oracle says.
    pub(crate) fn long_is_right(&self) -> bool {
        let rows = rows(&self.tables, "wide");
        let mut expected = vec![0.0; WIDE_DIM];
        scalar::bag(
            &rows,
            &vec![0; LONG_BAG as usize],
            None,
            Mode::Sum,
            &mut expected,
        );
        [0, LONG_BAGS - 1].iter().all(|&bag| {
            let found = self.target_f32s(u64::from(bag) * 4 * WIDE_DIM as u64, WIDE_DIM);
            found
                .iter()
                .zip(&expected)
                .all(|(a, b)| a.to_bits() == b.to_bits())
        })
    }

    fn target_f32s(&self, offset: u64, count: usize) -> Vec<f32> {
        let mut bytes = vec![0; 4 * count];
        self.port
            .memory(self.target)
            .expect("it is registered")
            .read(offset as usize, &mut bytes);
        let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("4 bytes"));
        bytes.chunks_exact(4).map(value).collect()
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// Where the connection is gone.
    pub(crate) fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<()> {
        Ok(self.port.submit(lane, slot, frame)?)
    }

    /// Waits for the next record.
    ///
    /// # Errors
    /// If none comes within `limit`, or the connection ends.
    pub(crate) fn record(&mut self, lane: u16, limit: Duration) -> Result<Completion> {
        let began = Instant::now();
        loop {
            if let Some(record) = self.port.poll(lane)? {
                return Ok(record);
            }
            ensure!(began.elapsed() < limit, "no answer within {limit:?}");
            self.port.wait(Some(Duration::from_millis(5)))?;
        }
    }

    /// Sends a frame in slot 0 of lane 0 and waits for its end.
    ///
    /// # Errors
    /// As [`Hostile::record`].
    pub(crate) fn ask(&mut self, frame: &[u8]) -> Result<Completion> {
        self.submit(0, 0, frame)?;
        self.record(0, bound())
    }

    /// Fills the target, so that it shows what was written.
    pub(crate) fn poison(&self) {
        let window = self.port.memory(self.target).expect("it is registered");
        window.write(0, &vec![POISON; TARGET_BYTES as usize]);
    }

    /// Whether nothing was written to the target since it was filled.
    pub(crate) fn is_unwritten(&self) -> bool {
        let mut bytes = vec![0; TARGET_BYTES as usize];
        self.port
            .memory(self.target)
            .expect("it is registered")
            .read(0, &mut bytes);
        bytes.iter().all(|&b| b == POISON)
    }

    /// That the connection still serves good requests.
    ///
    /// # Errors
    /// If not.
    pub(crate) fn is_served(&mut self) -> Result<()> {
        self.is_served_within(bound())
    }

    /// As [`Hostile::is_served`], within so long.
    ///
    /// # Errors
    /// If not.
    pub(crate) fn is_served_within(&mut self, limit: Duration) -> Result<()> {
        self.requests += 1;
        let mut draft = self.good();
        draft.header.request = self.requests;
        self.submit(0, 0, &draft.frame())?;
        let record = self.record(0, limit)?;
        ensure!(
            record.status == Status::Ok,
            "a good request is answered {record:?}"
        );
        ensure!(
            record.request == self.requests,
            "the answer of another request: {record:?}"
        );
        let bags: [(usize, u64, &[u32], Mode); 4] = [
            (0, 0, &[7, 9], Mode::Sum),
            (0, 1, &[7], Mode::Sum),
            (1, 0, &[0], Mode::Mean),
            (1, 1, &[4999 % 3000, 2999], Mode::Mean),
        ];
        for (feature, bag, ids, mode) in bags {
            let mut expected = vec![0.0; DIMS[feature]];
            let rows = rows(&self.tables, ["small", "quant"][feature]);
            scalar::bag(&rows, ids, None, mode, &mut expected);
            let found = self.target_f32s([0, 64][feature] + bag * STRIDE, DIMS[feature]);
            ensure!(
                found == expected,
                "feature {feature}, bag {bag}: {found:?}, not {expected:?}"
            );
        }
        Ok(())
    }

    /// Sends each case, and expects its refusal, an untouched target, and a connection that still serves.
    /// Gives the number of cases.
    ///
    /// # Errors
    /// Names the case that goes otherwise.
    pub(crate) fn expect(&mut self, cases: &[Case]) -> Result<usize> {
        self.is_served()?;
        for Case {
            what,
            frame,
            status,
            at,
        } in cases
        {
            self.poison();
            let record = self.ask(frame).with_context(|| what.clone())?;
            let found = (record.status, (record.feature, record.index));
            ensure!(
                found == (*status, *at),
                "{what}: {found:?} instead of {:?}",
                (status, at)
            );
            ensure!(
                self.is_unwritten(),
                "{what}: refused, and all the same written"
            );
            self.is_served().with_context(|| format!("after {what}"))?;
        }
        Ok(cases.len())
    }

    /// That the service cuts the connection off within the bound, or does not.
    ///
    /// # Errors
    /// If it stays open.
    pub(crate) fn is_cut_off(&mut self) -> Result<()> {
        is_cut_off(&mut self.port)
    }
}

/// That the service ends this connection within the bound.
///
/// # Errors
/// If it stays open.
pub(crate) fn is_cut_off(port: &mut impl ClientPort) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < bound() {
        match port.poll(0) {
            Err(PortError::Closed | PortError::Lost { .. }) => return Ok(()),
            // Records of its breach make no sense to its own half, which is no matter here.
            Ok(_) | Err(_) => port.wait(Some(Duration::from_millis(5)))?,
        }
    }
    bail!("still connected after {:?}", bound())
}

/// The ordinary schema.
pub(crate) fn ordinary_schema() -> Schema {
    let features = [
        ("a", "small", Pooling::Sum, DIMS[0] as u32),
        ("b", "quant", Pooling::Mean, DIMS[1] as u32),
    ];
    Schema::side_by_side(MAX_BAGS, features).0
}

/// A request before it is written as a frame.
#[derive(Clone, Debug)]
pub(crate) struct Draft {
    /// The header.
    pub(crate) header: Header,
    /// A span for each feature.
    pub(crate) spans: Vec<FeatureSpan>,
    /// What follows the spans.
    pub(crate) inline: Vec<u8>,
}

impl Draft {
    /// Of the ordinary schema: as many lengths and ids for the second feature as for the first, inline.
    fn new(hostile: &Hostile, lengths: &[u32], ids: &[u32]) -> Draft {
        let at = request::inline_offset(2) as u32;
        let bags = lengths.len() as u32 / 2;
        let segment = |offset, count: usize| Segment {
            place: Place::Inline { offset },
            element: Element::Bits32,
            len: 4 * count as u64,
        };
        let header = Header {
            op: Op::Lookup,
            schema: hostile.schema,
            bags,
            target_region: hostile.target.0,
            lengths: segment(at, lengths.len()),
            ids: segment(at + 4 * lengths.len() as u32, ids.len()),
            ..Header::null(1)
        };
        let half = ids.len() as u32 / 2;
        let span = |f: u32| FeatureSpan {
            lengths_at: f * bags,
            ids_at: f * half,
            ids: half,
            first_id: 0,
        };
        let mut ids = ids.to_vec();
        for id in &mut ids[half as usize..] {
            *id %= 3000; // The second feature's table is the smaller one.
        }
        let words = lengths.iter().chain(&ids);
        Draft {
            header,
            spans: vec![span(0), span(1)],
            inline: words.flat_map(|word| word.to_le_bytes()).collect(),
        }
    }

    /// Its lengths and ids, which lie in a region, are to be read from another one.
    pub(crate) fn reads_from(&mut self, region: RegionId) {
        for segment in [&mut self.header.lengths, &mut self.header.ids] {
            if let Place::Region { region: of, .. } = &mut segment.place {
                *of = region.0;
            }
        }
    }

    /// Changed.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Draft)) -> Draft {
        change(&mut self);
        self
    }

    /// The frame's bytes.
    ///
    /// # Panics
    /// If it is longer than a slot.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut frame = [0; SLOT_BYTES];
        let len = request::encode(&self.header, &self.spans, &[&self.inline], &mut frame);
        frame[..len.expect("a frame fits a slot")].to_vec()
    }

    /// The frame's bytes with some of them replaced.
    ///
    /// # Panics
    /// If the bytes leave the frame.
    pub(crate) fn patched(&self, at: usize, bytes: &[u8]) -> Vec<u8> {
        let mut frame = self.frame();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    }
}

/// Writes a frame to a slot and announces it, whoever holds the slot.
pub(crate) fn push_frame(lane: &RawLane<'_>, slot: u16, frame: &[u8]) {
    lane.window.write(lane.layout.slot(slot), frame);
    let len = frame.len() as u16;
    push(lane, Immediate::Request { slot, len }.encode());
}

/// Announces any immediate.
pub(crate) fn push(lane: &RawLane<'_>, bits: u32) {
    let tail = lane.window.atomic_u32(SUBMISSION_TAIL);
    let number = u32::from_le(tail.load(Ordering::Relaxed));
    lane.window.store_u32(lane.layout.submission(number), bits);
    tail.store(number.wrapping_add(1).to_le(), Ordering::Release);
    lane.ring();
}

/// How many records a lane's worker has written.
pub(crate) fn completions(lane: &RawLane<'_>) -> u32 {
    u32::from_le(
        lane.window
            .atomic_u32(COMPLETION_TAIL)
            .load(Ordering::Acquire),
    )
}
