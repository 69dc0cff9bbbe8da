//! Two connected queue pairs of one device in one thread, and what tests do with them.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use rowmill_verbs::{
    Access, Block, Capacity, CmEvent, CmEventKind, Completion, CompletionQueue, Connecting,
    Connection, Context, EventChannel, HostMemory, IdToken, Kind, Listener, LocalKey, Pages,
    Parameters, ProtectionDomain, QueuePair, Registered, ReplyData, RequestData, Resolution,
    Resolved, Resolving, Selector, Slab, Status,
};

/// Bytes of a block of the tests' slabs.
pub(crate) const BLOCK: usize = 4096;

/// What ends a wait that would otherwise go on for ever; far above what an emulated machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The address that the device stands on; `None`, having said so, where there is none.
pub(crate) fn address() -> Option<IpAddr> {
    match std::env::var("ROWMILL_RDMA_ADDRESS") {
        Ok(text) => Some(text.parse().expect("ROWMILL_RDMA_ADDRESS is an IP address")),
        Err(_) => {
            println!("skipped: no RDMA device (make test-rxe)");
            None
        }
    }
}

/// The device, opened.
pub(crate) fn device() -> Option<Context> {
    let selector = Selector::Address(address()?);
    Some(Context::open(&selector).expect("the device"))
}

/// Waits until a descriptor is readable.
pub(crate) fn wait_readable(fd: &impl AsFd, most: Duration) -> bool {
    let mut polled = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, which lives for the call.
    unsafe { libc::poll(&mut polled, 1, most.as_millis() as i32) == 1 }
}

/// The next event of a channel.
pub(crate) fn next_event(channel: &EventChannel) -> CmEvent {
    let began = Instant::now();
    loop {
        if let Some(event) = channel.take_event().expect("the event channel") {
            return event;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "no event of the connection manager"
        );
        wait_readable(channel, Duration::from_millis(100));
    }
}

/// The way to `to`.
pub(crate) fn resolve(channel: &EventChannel, to: SocketAddr, parameters: &Parameters) -> Resolved {
    let timeout = Duration::from_secs(5);
    let mut resolving =
        Resolving::start(channel, None, to, timeout, parameters).expect("resolving begins");
    loop {
        let event = next_event(channel);
        match resolving.advance(&event).expect("the address resolves") {
            Resolution::Waiting(further) => resolving = further,
            Resolution::Ready(resolved) => return resolved,
        }
    }
}

/// What the tests' queue pairs hold, unless they say otherwise.
pub(crate) const CAPACITY: Capacity = Capacity {
    sends: 32,
    receives: 16,
    pieces: 4,
    inline_bytes: 64,
};

/// Parameters that allow everything, with a short time to failure.
pub(crate) fn parameters() -> Parameters {
    Parameters {
        reads_in_flight: 4,
        reads_answered: 4,
        remote_write: true,
        ..Parameters::default()
    }
}

/// One end of a connection.
pub(crate) struct End {
    pub(crate) completions: CompletionQueue,
    pub(crate) qp: QueuePair<u32>,
    pub(crate) key: LocalKey,
    pub(crate) slab: Slab,
    pub(crate) domain: ProtectionDomain,
    /// Memory that the peer may read and write.
    pub(crate) shared: Registered<HostMemory>,
    /// Completions that were polled together with one that was waited for.
    ready: VecDeque<Done>,
}

impl End {
    pub(crate) fn new(context: &Context, capacity: Capacity, connection: u16) -> End {
        let domain = ProtectionDomain::new(context).expect("a domain");
        let room = capacity.sends + capacity.receives + 1;
        let completions = CompletionQueue::new(context, room, None).expect("a completion queue");
        let handle = completions.handle();
        let mut qp =
            QueuePair::new(&domain, handle, handle, capacity, connection).expect("a queue pair");
        let memory = HostMemory::new(64 * BLOCK, Pages::Small).expect("memory");
        let slab = Slab::new(memory, BLOCK);
        let key = qp.hold(&slab.register(&domain).expect("a registered slab"));
        let memory = HostMemory::new(64 * BLOCK, Pages::Small).expect("memory");
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let shared = Registered::new(&domain, memory, access).expect("registered memory");
        End {
            completions,
            qp,
            key,
            slab,
            domain,
            shared,
            ready: VecDeque::new(),
        }
    }

    /// A block full of a byte.
    pub(crate) fn block(&self, byte: u8) -> Block {
        let mut block = self.slab.take().expect("a free block");
        block.as_mut_slice().fill(byte);
        block
    }

    /// Polls until the queue pair has had a completion, and gives its status, kind and immediate with the blocks that it
    /// brought back.
    pub(crate) fn next(&mut self) -> Done {
        let began = Instant::now();
        loop {
            if let Some(done) = self.try_next() {
                return done;
            }
            assert!(began.elapsed() < PATIENCE, "no completion: {:?}", self.qp);
            std::thread::yield_now();
        }
    }

    /// The same without waiting.
    pub(crate) fn try_next(&mut self) -> Option<Done> {
        if self.ready.is_empty() {
            for completion in self.completions.poll().expect("a poll") {
                self.ready.push_back(Done::of(&mut self.qp, completion));
            }
        }
        self.ready.pop_front()
    }

    /// Polls until everything that was posted has completed or been flushed.
    pub(crate) fn drain(&mut self) -> Vec<Done> {
        let began = Instant::now();
        let mut all = Vec::new();
        while !(self.qp.is_drained() && self.ready.is_empty()) {
            all.extend(self.try_next());
            assert!(began.elapsed() < PATIENCE, "not drained: {:?}", self.qp);
        }
        all
    }
}

/// A completion with what it brought back.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) kind: Option<Kind>,
    pub(crate) status: Status,
    pub(crate) immediate: Option<u32>,
    pub(crate) bytes: Option<u32>,
    pub(crate) blocks: Vec<(Block, u32)>,
}

impl Done {
    fn of(qp: &mut QueuePair<u32>, completion: &Completion) -> Done {
        Done {
            kind: completion.id().kind(),
            status: completion.status(),
            immediate: completion.immediate(),
            bytes: completion.bytes(),
            blocks: qp.retire(completion).expect("its own").collect(),
        }
    }

    /// The notes of the blocks.
    pub(crate) fn notes(&self) -> Vec<u32> {
        self.blocks.iter().map(|(_, note)| *note).collect()
    }
}

/// A connection with both its ends. Fields are dropped in order: queue pairs before what they use.
pub(crate) struct Pair {
    pub(crate) client: End,
    pub(crate) server: End,
    pub(crate) client_connection: Connection,
    pub(crate) server_connection: Connection,
    pub(crate) channel: EventChannel,
    pub(crate) _listener: Listener,
}

impl Pair {
    pub(crate) fn new(context: &Context) -> Pair {
        Pair::with(context, CAPACITY, &parameters(), 16)
    }

    /// A connection whose server has posted `receives` empty receives before it accepted.
    pub(crate) fn with(
        context: &Context,
        capacity: Capacity,
        parameters: &Parameters,
        receives: u32,
    ) -> Pair {
        let channel = EventChannel::new().expect("an event channel");
        let listener = Listener::bind(&channel, context.address(), 8).expect("a listener");
        let to = listener.local_address().expect("the listener's address");
        let mut client = End::new(context, capacity, 1);
        let mut server = End::new(context, capacity, 2);
        let mut resolved = resolve(&channel, to, parameters);
        assert!(resolved.is_on(context));
        resolved
            .initialise(&mut client.qp, parameters)
            .expect("INIT");
        let hello = RequestData::new(b"hello").expect("few bytes");
        let mut connecting: Option<Connecting> = Some(
            resolved
                .connect(&mut client.qp, parameters, &hello)
                .expect("connecting begins"),
        );
        let mut client_connection = None;
        let mut server_connection: Option<Connection> = None;
        let mut established: Option<IdToken> = None;
        while client_connection.is_none() || established.is_none() {
            let event = next_event(&channel);
            if matches!(event.kind, CmEventKind::ConnectResponse) {
                assert_eq!(&event.private_data.as_slice()[..7], b"welcome");
                let connecting = connecting.take().expect("one answer");
                let connection = connecting.establish(&event, &mut client.qp, parameters);
                client_connection = Some(connection.expect("established"));
                continue;
            }
            match event.kind {
                CmEventKind::ConnectRequest(mut request) => {
                    assert_eq!(event.id, listener.token());
                    assert_eq!(&request.private_data()[..5], b"hello");
                    assert!(request.is_on(context));
                    let qp = &mut server.qp;
                    request.initialise(qp, parameters).expect("INIT");
                    qp.receive_empty(receives).expect("receives");
                    let welcome = ReplyData::new(b"welcome").expect("few bytes");
                    let accepted = request.accept(qp, parameters, &welcome);
                    server_connection = Some(accepted.expect("accepted"));
                }
                CmEventKind::Established => established = Some(event.id),
                other => panic!("{other:?} while connecting"),
            }
        }
        let server_connection = server_connection.expect("a request");
        assert_eq!(established, Some(server_connection.token()));
        Pair {
            client,
            server,
            client_connection: client_connection.expect("an answer"),
            server_connection,
            channel,
            _listener: listener,
        }
    }
}
