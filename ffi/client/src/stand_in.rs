//! A stand-in for a port and the dataplane behind it, for tests of the session alone.
//!
//! It keeps the frames it was sent until a test lets it answer, in any order. Its rows are all
//! alike in each dimension but for their id: dimension `d` of row `id` is `id + d`.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use rowmill_arena::{HugePages, Region, Window, sealed_memfd};
use rowmill_port::{ClientPort, Foreign, PeerMemory, PortError, RegionId, Rest, WakeFds};
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::request::{Header, Request};
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{
    Completion, CompletionKind, Element, Feature, Op, Output, Place, Pooling, Refusal, Schema,
    Segment, SplitRule, Status,
};

/// Dimension of all tables.
pub(crate) const DIM: u32 = 4;

/// A bag as the stand-in read it: ids, and weights where there are any.
pub(crate) type Bag = (Vec<u64>, Vec<f32>);

/// A frame that was sent and not answered.
#[derive(Clone, Debug)]
pub(crate) struct Arrived {
    pub(crate) lane: u16,
    pub(crate) slot: u16,
    pub(crate) header: Header,
    pub(crate) inline: bool,
    /// Feature by feature, bag by bag.
    pub(crate) bags: Vec<Vec<Bag>>,
    /// Of each feature, where in its block the part begins.
    pub(crate) first_ids: Vec<u32>,
    /// As it came.
    pub(crate) frame: Vec<u8>,
}

pub(crate) struct StandIn {
    welcome: Welcome,
    regions: Vec<Option<Arc<Region>>>,
    schemas: Vec<Schema>,
    queues: Vec<VecDeque<Completion>>,
    pub(crate) arrived: Vec<Arrived>,
    pub(crate) cancelled: Vec<(u16, u16)>,
    pub(crate) closed: bool,
    /// Frames still accepted before the connection breaks.
    pub(crate) breaks_after: Option<usize>,
    /// What happens in a wait: answer everything with this status.
    pub(crate) answers_in_wait: Option<Status>,
    /// Most regions that can be registered at a time.
    pub(crate) most_regions: usize,
    /// Whether frames are decoded and kept, or answered at once without looking.
    pub(crate) echoes: bool,
    /// What becomes of a device's memory.
    pub(crate) nic: Nic,
    /// The newest generation, and the only one.
    pub(crate) newest: u64,
    /// A device's memory: its region, its address, its size and what keeps it.
    foreign: Vec<(u32, u64, u64, Option<PeerMemory>)>,
}

/// Whether the stand-in has a NIC that can write to a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nic {
    /// It has none.
    None,
    /// It knows memory by its address, but no dma-bufs.
    Peer,
    /// It knows both.
    All,
    /// It takes whatever it is given, and what it writes goes nowhere.
    Dead,
}

impl StandIn {
    pub(crate) fn new(lanes: u16, credits: u16, min_bags: u32) -> StandIn {
        StandIn {
            welcome: Welcome {
                model: "stand-in".into(),
                generation: 7,
                split: SplitRule { lanes, min_bags },
                credits,
                completions: 64,
                max_ids: 1 << 16,
                max_lengths: 1 << 14,
                max_region: 1 << 22,
            },
            regions: Vec::new(),
            schemas: Vec::new(),
            queues: (0..lanes).map(|_| VecDeque::with_capacity(64)).collect(),
            arrived: Vec::new(),
            cancelled: Vec::new(),
            closed: false,
            breaks_after: None,
            answers_in_wait: None,
            most_regions: usize::MAX,
            echoes: false,
            nic: Nic::None,
            newest: 7,
            foreign: Vec::new(),
        }
    }

    /// How many schemas were bound.
    pub(crate) fn bound(&self) -> usize {
        self.schemas.len()
    }

    /// The `len` bytes at `offset` of a region.
    fn place(&self, region: u32, offset: u64, len: u64) -> Window<'_> {
        let foreign = self.foreign.iter().find(|(id, ..)| *id == region);
        let region = self.regions[region as usize].as_ref().expect("registered");
        let Some(&(_, address, bytes, _)) = foreign.filter(|_| self.nic != Nic::Dead) else {
            return region.window_at(offset, len).expect("inside the region");
        };
        assert!(offset + len <= bytes, "inside the device's memory");
        device(address + offset, len)
    }

    fn segment_bytes(&self, request: &Request<'_>, segment: &Segment) -> Vec<u8> {
        match segment.place {
            Place::Absent => Vec::new(),
            Place::Inline { .. } => request.inline(segment).expect("inside the frame").to_vec(),
            Place::Region { region, offset } => {
                let region = self.regions[region as usize].as_ref().expect("registered");
                let mut bytes = vec![0; segment.len as usize];
                region
                    .window_at(offset, segment.len)
                    .expect("inside the region")
                    .read(0, &mut bytes);
                bytes
            }
        }
    }

    fn decode(&self, lane: u16, slot: u16, frame: &[u8]) -> Arrived {
        let request = Request::parse(frame).expect("the client sends well-formed frames");
        let header = *request.header();
        let words = |segment: &Segment| {
            let bytes = self.segment_bytes(&request, segment);
            let width = segment.element.bytes() as usize;
            let word = |b: &[u8]| b.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b));
            bytes.chunks_exact(width).map(word).collect::<Vec<u64>>()
        };
        let (lengths, ids, weights) = (
            words(&header.lengths),
            words(&header.ids),
            words(&header.weights),
        );
        assert_eq!(header.lengths.element, Element::Bits32);
        let mut bags = Vec::new();
        for span in request.spans() {
            let mut at = span.ids_at as usize;
            let lengths = &lengths[span.lengths_at as usize..][..header.bags as usize];
            let mut feature = Vec::new();
            for &length in lengths {
                let range = at..at + length as usize;
                at = range.end;
                let weights = match header.weights.place {
                    Place::Absent => Vec::new(),
                    _ => weights[range.clone()]
                        .iter()
                        .map(|&w| f32::from_bits(w as u32))
                        .collect(),
                };
                feature.push((ids[range].to_vec(), weights));
            }
            assert_eq!(at, (span.ids_at + span.ids) as usize, "lengths add up");
            bags.push(feature);
        }
        let inline = matches!(header.lengths.place, Place::Inline { .. });
        Arrived {
            lane,
            slot,
            header,
            inline,
            bags,
            first_ids: request.spans().map(|span| span.first_id).collect(),
            frame: frame.to_vec(),
        }
    }

    /// Pools the frame's bags into its target.
    pub(crate) fn pool(&self, frame: &Arrived) {
        let h = &frame.header;
        let put = |feature: &Feature, vector: u64, d: u32, x: f32| {
            let bytes = match feature.output {
                Output::F32 => x.to_le_bytes().to_vec(),
                Output::F16 => half::f16::from_f32(x).to_le_bytes().to_vec(),
                Output::Bf16 => half::bf16::from_f32(x).to_le_bytes().to_vec(),
            };
            let at =
                feature.offset + vector * feature.stride + u64::from(d) * feature.output.bytes();
            let (at, len) = (h.target_base + at, bytes.len() as u64);
            self.place(h.target_region, at, len).write(0, &bytes);
        };
        let features = &self.schemas[h.schema as usize].features;
        for (f, (feature, bags)) in features.iter().zip(&frame.bags).enumerate() {
            let value = |id: u64, d: u32| id as f32 + d as f32;
            if feature.pooling == Pooling::None {
                let ids = bags.iter().flat_map(|(ids, _)| ids);
                for (i, &id) in (u64::from(frame.first_ids[f])..).zip(ids) {
                    (0..DIM).for_each(|d| put(feature, i, d, value(id, d)));
                }
                continue;
            }
            for (bag, (ids, weights)) in (u64::from(h.first_bag)..).zip(bags) {
                for d in 0..DIM {
                    let weighted = feature.pooling == Pooling::WeightedSum;
                    let weight = |i: usize| if weighted { weights[i] } else { 1.0 };
                    let ids = ids.iter().enumerate();
                    put(
                        feature,
                        bag,
                        d,
                        ids.map(|(i, &id)| weight(i) * value(id, d))
                            // From zero, as `sum` does not: empty bags give zero, and not -0.
                            .fold(0.0, |sum, x| sum + x),
                    );
                }
            }
        }
    }

    fn record(
        &self,
        frame: &Arrived,
        kind: CompletionKind,
        refusal: Refusal,
        slice: u16,
    ) -> Completion {
        Completion {
            kind,
            part: frame.header.part,
            status: refusal.status,
            slot: frame.slot,
            slice,
            request: frame.header.request,
            generation: self.newest,
            delta: 9 - u64::from(frame.header.part % 8),
            attempt: frame.header.attempt,
            credits: u16::from(kind == CompletionKind::Final),
            feature: refusal.feature,
            index: refusal.index,
            service_ns: 1000 + u64::from(frame.header.part),
            newest: self.newest,
        }
    }

    /// Puts a record of a frame into its lane's queue without ending the frame.
    pub(crate) fn announce(&mut self, at: usize, kind: CompletionKind, slice: u16) -> Completion {
        let record = self.record(&self.arrived[at], kind, Refusal::whole(Status::Ok), slice);
        self.queues[usize::from(self.arrived[at].lane)].push_back(record);
        record
    }

    pub(crate) fn inject(&mut self, lane: u16, record: Completion) {
        self.queues[usize::from(lane)].push_back(record);
    }

    /// Answers the frame at `at`: pools it where the status is Ok.
    pub(crate) fn answer(&mut self, at: usize, refusal: Refusal) {
        let frame = self.arrived.remove(at);
        if refusal.status == Status::Ok && frame.header.op == Op::Lookup {
            self.pool(&frame);
        }
        let slice = (frame.header.slices() - 1) as u16;
        let record = self.record(&frame, CompletionKind::Final, refusal, slice);
        self.queues[usize::from(frame.lane)].push_back(record);
    }

    pub(crate) fn answer_all(&mut self, status: Status) {
        while !self.arrived.is_empty() {
            self.answer(self.arrived.len() - 1, Refusal::whole(status));
        }
    }
}

/// Memory of the stand-in for a GPU, which is this process's.
#[expect(unsafe_code, reason = "what a NIC does")]
fn device<'a>(address: u64, len: u64) -> Window<'a> {
    let start = NonNull::new(address as *mut u8).expect("some address");
    // SAFETY: memory that the stand-in for libcuda has allocated, for as long as it is registered; nobody has references to it.
    unsafe { Window::from_raw(start, len as usize) }
}

impl ClientPort for StandIn {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn tables(&mut self) -> Result<Vec<TableEntry>, PortError> {
        let table = |name: &str| TableEntry {
            name: name.into(),
            rows: 1 << 20,
            dim: DIM,
            format: 0,
            kind: 0,
        };
        Ok(vec![table("items"), table("users")])
    }

    fn bind(&mut self, schema: &Schema) -> Result<u32, PortError> {
        self.schemas.push(schema.clone());
        Ok(self.schemas.len() as u32 - 1)
    }

    fn register(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        if self.regions.iter().flatten().count() == self.most_regions {
            return Err(PortError::Refused {
                refusal: Refusal::whole(Status::LimitReached),
                detail: "the stand-in has enough".into(),
            });
        }
        let fd = sealed_memfd("stand-in", bytes, HugePages::Off).expect("memory");
        self.regions.push(Some(Arc::new(
            Region::map(fd.as_fd(), bytes).expect("sealed"),
        )));
        Ok(RegionId(self.regions.len() as u32 - 1))
    }

    fn register_source(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register(bytes)
    }

    fn register_foreign(&mut self, foreign: Foreign) -> Result<RegionId, PortError> {
        let (address, bytes, owner) = match foreign {
            Foreign::DmaBuf { address, bytes, .. } if matches!(self.nic, Nic::All | Nic::Dead) => {
                (address, bytes, None)
            }
            Foreign::Peer(memory) if self.nic != Nic::None => {
                (memory.address(), memory.bytes(), Some(memory))
            }
            Foreign::DmaBuf { .. } | Foreign::Peer(_) => {
                let what = "a device's memory";
                return Err(PortError::Unsupported { what });
            }
        };
        let region = self.register(bytes as usize)?;
        self.foreign.push((region.0, address, bytes, owner));
        Ok(region)
    }

    fn unregister(&mut self, region: RegionId) -> Result<(), PortError> {
        self.foreign.retain(|(id, ..)| *id != region.0);
        self.regions[region.0 as usize] = None;
        Ok(())
    }

    fn memory(&self, region: RegionId) -> Option<Window<'_>> {
        let is_foreign = |(id, ..): &(u32, u64, u64, _)| *id == region.0;
        if self.foreign.iter().any(is_foreign) {
            return None;
        }
        self.regions
            .get(region.0 as usize)?
            .as_ref()
            .map(|region| region.window())
    }

    fn share(&self, region: RegionId) -> Option<Arc<Region>> {
        self.regions.get(region.0 as usize)?.clone()
    }

    fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<(), PortError> {
        match &mut self.breaks_after {
            Some(0) => self.closed = true,
            Some(left) => *left -= 1,
            None => {}
        }
        if self.closed {
            return Err(PortError::Closed);
        }
        if self.echoes {
            let (request, attempt, part) = Request::address(frame);
            let named = u64::from_le_bytes(frame[24..32].try_into().expect("a header"));
            let refusal = match named {
                0 => Refusal::whole(Status::Ok),
                named if named == self.newest => Refusal::whole(Status::Ok),
                _ => Refusal::whole(Status::Retry),
            };
            let mut record = self.record(
                &Arrived {
                    lane,
                    slot,
                    header: Header::null(request),
                    inline: true,
                    bags: Vec::new(),
                    first_ids: Vec::new(),
                    frame: Vec::new(),
                },
                CompletionKind::Final,
                refusal,
                0,
            );
            (record.attempt, record.part) = (attempt, part);
            self.queues[usize::from(lane)].push_back(record);
            return Ok(());
        }
        let taken = self
            .arrived
            .iter()
            .any(|a| (a.lane, a.slot) == (lane, slot));
        assert!(
            !taken && slot < self.welcome.credits,
            "a slot holds one request at a time"
        );
        let frame = self.decode(lane, slot, frame);
        self.arrived.push(frame);
        Ok(())
    }

    fn cancel(&mut self, lane: u16, slot: u16) -> Result<(), PortError> {
        self.cancelled.push((lane, slot));
        if self.closed {
            Err(PortError::Closed)
        } else {
            Ok(())
        }
    }

    fn poll(&mut self, lane: u16) -> Result<Option<Completion>, PortError> {
        match self.queues[usize::from(lane)].pop_front() {
            None if self.closed => Err(PortError::Closed),
            record => Ok(record),
        }
    }

    fn lie_down(&mut self, limit: Option<Duration>) -> Rest {
        Rest::Quiet(limit)
    }

    fn wake_fds(&self) -> WakeFds<BorrowedFd<'_>> {
        WakeFds::none()
    }

    fn sleep(&mut self, _limit: Option<Duration>) -> Result<(), PortError> {
        if let Some(status) = self.answers_in_wait {
            self.answer_all(status);
        }
        Ok(())
    }

    fn get_up(&mut self) -> Result<(), PortError> {
        Ok(())
    }

    fn close(&mut self) {
        self.closed = true;
    }
}

/// A refusal of one id, as a worker sends it.
pub(crate) fn bad_id(feature: u32, index: u32) -> Refusal {
    assert_ne!(index, NOWHERE);
    Refusal::at(Status::IdOutOfRange, feature, index)
}
