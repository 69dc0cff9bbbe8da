//! A stand-in port whose events are written down beforehand, and a small model to look things up in.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::collections::VecDeque;
use std::sync::Arc;

use rowmill_arena::{HugePages, Layout, Staging, Strip, Window};
use rowmill_engine::{Engine, Side};
use rowmill_pooling::{Isa, Kernels};
use rowmill_port::{
    ConnId, Event, Extent, Fetch, Idle, RegionError, RegionId, RoomError, ServerPort, Service,
    Waker,
};
use rowmill_rowmilld::config::Limits;
use rowmill_rowmilld::figures::Figures;
use rowmill_rowmilld::mailbox::Mailbox;
use rowmill_rowmilld::service::Sessions;
use rowmill_rowmilld::turnover::{Stage, Turnover};
use rowmill_rowmilld::worker::Worker;
use rowmill_table::{Resident, RowFormat, TableSpec, silent};
use rowmill_wire::limits::SLOT_BYTES;
use rowmill_wire::request::{self, Element, FeatureSpan, Header, Op, Place, Segment};
use rowmill_wire::{Completion, Pooling, Schema, Status};

/// The connection that most tests have.
pub const CONN: ConnId = ConnId(0);
/// Another one.
pub const OTHER: ConnId = ConnId(1);
/// The first one's region.
pub const REGION: RegionId = RegionId(3);
/// A region whose memory is gone.
pub const LOST: RegionId = RegionId(4);

/// A waker that does nothing: the tests step workers themselves.
pub struct Awake;

impl Waker for Awake {
    fn wake(&self) {}
}

/// Gives events in order, and notes what the worker does. Its lists don't grow past what tests use.
pub struct ScriptedPort {
    events: VecDeque<(Event, Vec<u8>)>,
    spent: Vec<Vec<u8>>,
    pub memory: Vec<u8>,
    pub completions: Vec<Completion>,
    pub closed: Vec<(ConnId, Status)>,
}

impl ScriptedPort {
    pub fn new() -> ScriptedPort {
        ScriptedPort {
            events: VecDeque::with_capacity(256),
            spent: Vec::with_capacity(256),
            memory: vec![0; 4096],
            completions: Vec::with_capacity(256),
            closed: Vec::with_capacity(16),
        }
    }

    pub fn event(&mut self, event: Event) {
        self.events.push_back((event, Vec::new()));
    }

    pub fn attach(&mut self, conn: ConnId) {
        self.event(Event::Attached { conn, credits: 8 });
    }

    pub fn request(&mut self, slot: u16, frame: Vec<u8>) {
        self.events.push_back((
            Event::Request {
                conn: CONN,
                slot,
                len: frame.len(),
            },
            frame,
        ));
    }

    pub fn waiting(&self) -> usize {
        self.events.len()
    }

    fn range(
        &self,
        region: RegionId,
        offset: u64,
        len: u64,
    ) -> Result<core::ops::Range<usize>, RegionError> {
        match region {
            LOST => Err(RegionError::Lost),
            REGION => match offset.checked_add(len) {
                Some(end) if end <= self.memory.len() as u64 => Ok(offset as usize..end as usize),
                _ => Err(RegionError::OutOfBounds),
            },
            _ => Err(RegionError::Unknown),
        }
    }
}

impl ServerPort for ScriptedPort {
    fn poll(&mut self, frame: &mut [u8; SLOT_BYTES]) -> Option<Event> {
        let (event, bytes) = self.events.pop_front()?;
        frame[..bytes.len()].copy_from_slice(&bytes);
        // Freed with the script, so that the worker is not charged for it.
        self.spent.push(bytes);
        Some(event)
    }

    fn fetches(&self) -> bool {
        false
    }

    fn fetch(&mut self, _: ConnId, _: u16, _: &[Extent]) -> Result<Fetch, RoomError> {
        Ok(Fetch::Ready)
    }

    fn read(
        &mut self,
        _: ConnId,
        _: u16,
        region: RegionId,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), RegionError> {
        let range = self.range(region, offset, out.len() as u64)?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }

    fn release(&mut self, _: ConnId, _: u16) {}

    fn check(&self, _: ConnId, region: RegionId, offset: u64, len: u64) -> Result<(), RegionError> {
        self.range(region, offset, len).map(|_| ())
    }

    fn keep(&mut self, _: ConnId, _: &Staging) -> bool {
        false
    }

    fn stage_bytes(&self) -> u64 {
        u64::MAX
    }

    fn stage(
        &mut self,
        _: ConnId,
        region: RegionId,
        strips: &[Strip],
    ) -> Result<Staging, RoomError> {
        let staging = Staging::in_place(strips).ok_or(RegionError::OutOfBounds)?;
        let Layout::InPlace(low) = staging.layout else {
            unreachable!("in place");
        };
        self.range(region, low, staging.len)?;
        Ok(staging)
    }

    fn window(
        &mut self,
        _: ConnId,
        region: RegionId,
        staging: &Staging,
    ) -> Result<Window<'_>, RegionError> {
        let Layout::InPlace(low) = staging.layout else {
            unreachable!("in place");
        };
        let range = self.range(region, low, staging.len)?;
        Ok(Window::over(&mut self.memory[range]))
    }

    fn place(
        &mut self,
        _: ConnId,
        region: RegionId,
        _: Staging,
        _: &[Strip],
    ) -> Result<(), RegionError> {
        if region == LOST {
            return Err(RegionError::Lost);
        }
        Ok(())
    }

    fn unstage(&mut self, _: ConnId, _: RegionId, _: Staging) {}

    fn complete(&mut self, conn: ConnId, record: &Completion) {
        assert_eq!(conn, CONN);
        self.completions.push(*record);
    }

    fn close(&mut self, conn: ConnId, why: Status) {
        self.closed.push((conn, why));
    }

    fn idle(&mut self, _: Idle) {}

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::new(Awake)
    }
}

/// Rows of the one table.
pub const ROWS: u32 = 100;
/// Its dimension.
pub const DIM: usize = 16;

/// One table `t`, as generation 1.
pub fn tables() -> Arc<Resident> {
    generation(1, DIM)
}

/// The same with other rows, as another generation, and of some dimension.
pub fn generation(number: u64, dim: usize) -> Arc<Resident> {
    let spec = TableSpec {
        name: "t".into(),
        rows: ROWS.into(),
        dim,
        format: RowFormat::F32,
        kind: rowmill_table::TableKind::Dense,
    };
    let tables = Resident::in_memory(&[spec], 6 + number, HugePages::Off, &silent);
    Arc::new(tables.unwrap().with_generation(number))
}

/// Limits that fit tests.
pub fn limits() -> Limits {
    Limits {
        connections: 4,
        slots: 4,
        max_ids: 1024,
        max_lengths: 1024,
        ..Limits::default()
    }
}

/// A worker on a scripted port, and the sessions that know it.
pub struct Bench {
    pub worker: Worker<ScriptedPort>,
    pub sessions: Sessions,
    pub mailbox: Arc<Mailbox>,
    pub figures: Arc<Figures>,
    pub tables: Arc<Resident>,
    pub now_ns: u64,
}

impl Bench {
    pub fn new() -> Bench {
        let (tables, mailbox, figures) = (
            tables(),
            Arc::<Mailbox>::default(),
            Arc::<Figures>::default(),
        );
        let engine = Engine::new(limits().engine(), Kernels::new(Isa::detect().isa));
        let connections = limits().connections.into();
        let port = ScriptedPort::new();
        let worker = Worker::new(
            engine,
            connections,
            port,
            Arc::clone(&mailbox),
            Arc::clone(&figures),
        );
        let sessions = Sessions::new(
            "m".into(),
            Arc::clone(&tables),
            &limits(),
            vec![Arc::clone(&mailbox)],
        );
        Bench {
            worker,
            sessions,
            mailbox,
            figures,
            tables,
            now_ns: 1000,
        }
    }

    /// Steps until there is nothing to do.
    pub fn settle(&mut self) {
        for _ in 0..1000 {
            self.now_ns += 1000;
            if self.worker.step(self.now_ns).is_idle() {
                return;
            }
        }
        panic!("the worker does not come to rest");
    }

    /// Tells the worker of generations; whoever has this holds what it may not be the last to drop.
    pub fn tell(&mut self, side: Side, stage: Stage) -> Arc<Turnover> {
        let turnover = Arc::new(Turnover::new(side, stage, 1));
        self.mailbox.turn_over(Arc::clone(&turnover));
        turnover
    }

    /// Has the sessions and the worker hold another generation on a side.
    pub fn hold(&mut self, side: Side, tables: &Arc<Resident>) {
        let prepared = self.sessions.prepare(side, tables).unwrap();
        assert!(prepared.pending.is_settled());
        for stage in [
            Stage::Prepare(tables.generation()),
            Stage::Bind(prepared.also.into()),
        ] {
            let told = self.tell(side, stage);
            self.settle();
            assert!(told.is_done());
        }
    }

    /// Binds the test's schema for a connection that is attached; its number.
    pub fn bind(&mut self, conn: ConnId) -> u32 {
        let mut pending = self.sessions.bind(conn, schema()).unwrap();
        self.settle();
        assert!(pending.is_known());
        pending.number()
    }

    /// The status records since the last call.
    pub fn records(&mut self) -> Vec<Completion> {
        core::mem::take(&mut self.worker.port().completions)
    }
}

/// A schema of one feature of the table, summed.
pub fn schema() -> Schema {
    Schema::side_by_side(64, [("f", "t", Pooling::Sum, DIM as u32)]).0
}

/// The frame of a lookup of one bag with `ids`, inline, to the start of a region.
pub fn lookup(number: u64, schema: u32, target: RegionId, ids: &[u32]) -> Vec<u8> {
    let at = request::inline_offset(1) as u32;
    let words = |list: &[u32]| {
        list.iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let segment = |offset, len: usize| Segment {
        place: Place::Inline { offset },
        element: Element::Bits32,
        len: len as u64,
    };
    let header = Header {
        op: Op::Lookup,
        schema,
        bags: 1,
        target_region: target.0,
        lengths: segment(at, 4),
        ids: segment(at + 4, ids.len() * 4),
        ..Header::null(number)
    };
    let span = FeatureSpan {
        lengths_at: 0,
        ids_at: 0,
        ids: ids.len() as u32,
        first_id: 0,
    };
    encode(
        &header,
        &[span],
        &[&words(&[ids.len() as u32]), &words(ids)],
    )
}

/// The frame of a null request.
pub fn null(number: u64) -> Vec<u8> {
    encode(&Header::null(number), &[], &[])
}

fn encode(header: &Header, spans: &[FeatureSpan], inline: &[&[u8]]) -> Vec<u8> {
    let mut frame = [0; SLOT_BYTES];
    let len = request::encode(header, spans, inline, &mut frame).unwrap();
    frame[..len].to_vec()
}

/// What a bag of `ids` sums up to, as bytes.
pub fn expected(tables: &Resident, ids: &[u32]) -> Vec<u8> {
    let (mut sum, mut row) = ([0.0; DIM], [0.0; DIM]);
    for &id in ids {
        tables.tables()[0].row_f32(id, &mut row).unwrap();
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
    }
    sum.iter().flat_map(|x| x.to_le_bytes()).collect()
}
