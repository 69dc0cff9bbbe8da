//! A client made of bare verbs, which keeps to nothing but what a test wants.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rowmill_port::RegionId;
use rowmill_port::conformance::patience;
use rowmill_port::rdma::private_data::{Asked, parse_reply};
use rowmill_port::rdma::stream::{Assembler, fragment};
use rowmill_verbs::{
    Access, Capacity, CompletionQueue, Connection, Context, Error, EventChannel, HostMemory, Kind,
    Local, LocalKey, Operation, Pages, Parameters, Piece, ProtectionDomain, QueuePair, Registered,
    Remote, RequestData, Resolution, Resolved, Resolving, RnrTimer, Selector, Signal, Slab,
};
use rowmill_wire::Immediate;
use rowmill_wire::control::{Control, Rights};

use super::harness::{address, connection};
use super::hostile::next_event;

/// Bytes of its region; byte i is i modulo 251.
pub(crate) const REGION_BYTES: usize = 1 << 20;

/// A client's end of a session with one lane. It posts no receives on the lane but those it is told to.
pub(crate) struct Bare {
    control: QueuePair<()>,
    pub(crate) lane: QueuePair<()>,
    control_queue: CompletionQueue,
    lane_queue: CompletionQueue,
    slab: Slab,
    key: LocalKey,
    assembler: Assembler,
    sequence: u32,
    slots: Remote,
    ring: Registered<HostMemory>,
    memory: Registered<HostMemory>,
    channel: EventChannel,
    to: SocketAddr,
    _connections: Vec<Connection>,
}

fn resolved(channel: &EventChannel, to: SocketAddr, parameters: &Parameters) -> Resolved {
    let mut resolving =
        Resolving::start(channel, None, to, patience(), parameters).expect("it begins");
    loop {
        match resolving.advance(&next_event(channel)).expect("a step") {
            Resolution::Waiting(further) => resolving = further,
            Resolution::Ready(way) => return way,
        }
    }
}

fn memory(domain: &ProtectionDomain, bytes: usize, access: Access) -> Registered<HostMemory> {
    let mut memory = HostMemory::new(bytes, Pages::Small).expect("memory");
    for (i, byte) in memory.as_mut_slice().iter_mut().enumerate() {
        *byte = (i % 251) as u8;
    }
    let registered = Registered::new(domain, memory, access);
    registered.map_err(|(error, _)| error).expect("a region")
}

impl Bare {
    /// Connects, with a lane that answers `reads` READs at a time.
    ///
    /// # Errors
    /// Of the lane's connection.
    pub(crate) fn connect(endpoint: &str, credits: u16, reads: u8) -> Result<Bare, Error> {
        let to: SocketAddr = endpoint
            .strip_prefix("rdma://")
            .and_then(|to| to.parse().ok())
            .expect("an endpoint");
        let here = address().and_then(|a| a.parse().ok()).expect("an address");
        let context = Context::open(&Selector::Address(here)).expect("a device");
        let channel = EventChannel::new().expect("a channel");
        let domain = ProtectionDomain::new(&context).expect("a domain");
        let queue = |entries| CompletionQueue::new(&context, entries, None).expect("a queue");
        let (control_queue, lane_queue) = (queue(64), queue(1024));
        let parameters = Parameters {
            ack_timeout: connection().ack_timeout,
            remote_write: true,
            ..Parameters::default()
        };
        let capacity = Capacity {
            sends: 32,
            receives: 18,
            pieces: 1,
            inline_bytes: 0,
        };
        let handle = control_queue.handle();
        let mut control = QueuePair::new(&domain, handle, handle, capacity, 0).expect("a pair");
        let blocks = HostMemory::new(36 * 8192, Pages::Small).expect("memory");
        let slab = Slab::new(blocks, 8192);
        let key = control.hold(&slab.register(&domain).expect("a slab"));
        let mut way = resolved(&channel, to, &parameters);
        way.initialise(&mut control, &parameters).expect("a pair");
        for _ in 0..18 {
            let block = slab.take().expect("a block");
            control.receive(block, key, ()).expect("room");
        }
        let asked = RequestData::new(&Asked::Control { path_mtu: None }.encode()).expect("short");
        let connecting = way
            .connect(&mut control, &parameters, &asked)
            .expect("asked");
        let event = next_event(&channel);
        let (session, _) = parse_reply(event.private_data.as_slice()).expect("a reply");
        let established = connecting.establish(&event, &mut control, &parameters);
        let connections = vec![established.expect("a connection")];

        let capacity = Capacity {
            sends: 256,
            receives: 512,
            pieces: 1,
            inline_bytes: 64,
        };
        let handle = lane_queue.handle();
        let lane = QueuePair::new(&domain, handle, handle, capacity, 1).expect("a pair");
        let readable = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mut bare = Bare {
            control,
            lane,
            control_queue,
            lane_queue,
            slab,
            key,
            assembler: Assembler::default(),
            sequence: 0,
            slots: Remote { address: 0, key: 0 },
            ring: memory(&domain, 64 * 1024 + 64, Access::REMOTE_WRITE),
            memory: memory(&domain, REGION_BYTES, readable),
            channel,
            to,
            _connections: connections,
        };
        let hello = Control::Hello {
            client: "bare".into(),
            credits,
        };
        let Control::Welcome(welcome) = bare.call(&hello) else {
            panic!("a welcome")
        };
        assert_eq!((welcome.credits, welcome.split.lanes), (credits, 1));
        // It is in no hurry: a worker that finds no receive waits for half a second.
        let lane_parameters = Parameters {
            reads_answered: reads,
            rnr_timer: RnrTimer::new(31).expect("in range"),
            ..parameters
        };
        let mut way = resolved(&bare.channel, bare.to, &lane_parameters);
        way.initialise(&mut bare.lane, &lane_parameters)?;
        let asked = RequestData::new(&Asked::Lane { session, lane: 0 }.encode()).expect("short");
        let connecting = way.connect(&mut bare.lane, &lane_parameters, &asked)?;
        let event = next_event(&bare.channel);
        let established = connecting.establish(&event, &mut bare.lane, &lane_parameters)?;
        bare._connections.push(established);
        let ring = bare.ring.remote();
        let open = Control::LaneOpen {
            lane: 0,
            receives: welcome.completions,
            address: ring.address,
            key: ring.key,
        };
        let Control::LaneOpened { address, key, .. } = bare.call(&open) else {
            panic!("a lane")
        };
        bare.slots = Remote { address, key };
        Ok(bare)
    }

    /// Registers its memory, by its own key or by another that it claims to have.
    pub(crate) fn register(&mut self, key: Option<u32>) -> RegionId {
        let remote = self.memory.remote();
        let question = Control::RegisterRemote {
            bytes: REGION_BYTES as u64,
            address: remote.address,
            key: key.unwrap_or(remote.key),
            rights: Rights::Both,
        };
        match self.call(&question) {
            Control::Registered { region } => RegionId(region),
            other => panic!("a region, not {other:?}"),
        }
    }

    /// Sends a fragment on the control stream, whatever it is.
    pub(crate) fn say(&mut self, bytes: &[u8]) {
        let mut block = self.slab.take().expect("a block");
        block.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
        let local = Local {
            block,
            key: self.key,
            pieces: &[Piece::from(0..bytes.len())],
            note: (),
        };
        let mut batch = self.control.batch();
        batch
            .post(Operation::Send, local, Signal::Yes)
            .expect("room");
        batch.ring().expect("posted");
    }

    /// Asks something, and waits for no answer.
    pub(crate) fn tell(&mut self, question: &Control) {
        self.sequence += 1;
        let message = question.encode(self.sequence);
        let mut bytes = vec![0; 8192];
        let (len, next) = fragment(&message, 0, &mut bytes);
        assert_eq!(next, message.len(), "one fragment");
        self.say(&bytes[..len]);
    }

    fn call(&mut self, question: &Control) -> Control {
        self.tell(question);
        let since = Instant::now();
        loop {
            assert!(since.elapsed() < patience(), "an answer to {question:?}");
            let mut heard = None;
            for done in self.control_queue.poll().expect("a queue") {
                let (kind, bytes) = (done.id().kind(), done.bytes());
                done.result().expect("an open stream");
                let back: Vec<_> = self.control.retire(done).expect("its own").collect();
                if kind == Some(Kind::Receive) {
                    for (block, ()) in back {
                        let len = bytes.expect("a receive has bytes") as usize;
                        let pushed = self.assembler.push(&block.as_slice()[..len]);
                        heard = heard.or(pushed.expect("a fragment"));
                        self.control.receive(block, self.key, ()).expect("room");
                    }
                }
            }
            if let Some(message) = heard {
                return Control::parse(&message).expect("a message").1;
            }
        }
    }

    /// Announces with an immediate of its choice, with as many bytes as it says; false once the lane has failed.
    pub(crate) fn announce(&mut self, immediate: Immediate) -> bool {
        let frame = [0; 16];
        let bytes: &[u8] = match immediate {
            Immediate::Request { .. } => &frame,
            _ => &[],
        };
        loop {
            for done in self.lane_queue.poll().expect("a queue") {
                if let Ok(back) = self.lane.retire(done) {
                    back.for_each(drop);
                }
                if done.result().is_err() {
                    return false;
                }
            }
            let to = Operation::WriteImmediate(self.slots, immediate.encode());
            let mut batch = self.lane.batch();
            if batch.post_inline(to, bytes, Signal::No).is_ok() {
                batch.ring().expect("posted");
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks for something in slot 0; false once the lane has failed.
    pub(crate) fn ask(&mut self) -> bool {
        self.announce(Immediate::Request { slot: 0, len: 16 })
    }
}
