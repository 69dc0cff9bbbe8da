//! A connection over bare verbs, without anything of rowmill's protocol: what the service is compared with.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rowmill_verbs::{
    Block, Capacity, CmEvent, CmEventKind, CompletionQueue, Connection, Context, EventChannel,
    HostMemory, Kind, Listener, LocalKey, Pages, Parameters, ProtectionDomain, QueuePair, Remote,
    ReplyData, RequestData, Resolution, Resolving, Selector, Slab,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long connecting may take, and waiting for what is bound to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What a queue pair has to hold, and the blocks that it sends from or READs into.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub(super) capacity: Capacity,
    pub(super) blocks: usize,
    pub(super) block_bytes: usize,
}

/// An open device with a domain of its own.
pub(super) struct Device {
    pub(super) context: Context,
    pub(super) domain: ProtectionDomain,
}

impl Device {
    /// The device that stands on this address.
    ///
    /// # Errors
    /// Where there is none.
    pub(super) fn open(address: std::net::IpAddr) -> Result<Device> {
        let context = Context::open(&Selector::Address(address))?;
        let domain = ProtectionDomain::new(&context)?;
        Ok(Device { context, domain })
    }

    /// The service's own timeouts and retries, with as many READs as the device has.
    fn parameters(&self) -> Parameters {
        let limits = self.context.limits();
        let most = |reads: u32| u8::try_from(reads).unwrap_or(u8::MAX);
        Parameters {
            reads_in_flight: most(limits.reads_in_flight),
            reads_answered: most(limits.reads_answered),
            remote_write: true,
            ..Parameters::default()
        }
    }
}

/// Listens for one link.
pub(super) struct Offer {
    channel: EventChannel,
    listener: Listener,
}

impl Offer {
    /// Takes a free port.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn new(device: &Device) -> Result<Offer> {
        let channel = EventChannel::new()?;
        let listener = Listener::bind(&channel, device.context.address(), 8)?;
        Ok(Offer { channel, listener })
    }

    /// Where it listens.
    pub(super) fn port(&self) -> Result<u16> {
        let address = self.listener.local_address();
        Ok(address.context("the listener has no address")?.port())
    }

    /// Waits for the peer. `shared` is the memory that it is told of.
    ///
    /// # Errors
    /// A failed call, or nobody comes.
    pub(super) fn accept(self, device: &Device, shape: Shape, shared: Remote) -> Result<Link> {
        let mut half = Half::new(device, shape)?;
        let parameters = device.parameters();
        let deadline = Instant::now() + PATIENCE;
        let mut accepted = None;
        loop {
            let event = next_event(&self.channel, deadline)?;
            match event.kind {
                CmEventKind::ConnectRequest(mut request) => {
                    let peer = place_of(request.private_data())?;
                    half.receive(|qp| Ok(request.initialise(qp, &parameters)?))?;
                    let data = ReplyData::new(&told(shared))?;
                    let connection = request.accept(&mut half.qp, &parameters, &data)?;
                    accepted = Some((connection, peer));
                }
                CmEventKind::Established => {
                    let (connection, peer) = accepted.context("established unasked")?;
                    return Ok(half.connected(connection, self.channel, peer));
                }
                _ => return Err(event.as_error().into()),
            }
        }
    }
}

/// A queue pair that is not connected.
struct Half {
    qp: QueuePair<u32>,
    key: LocalKey,
    slab: Slab,
    completions: CompletionQueue,
}

impl Half {
    fn new(device: &Device, shape: Shape) -> Result<Half> {
        let capacity = shape.capacity;
        let room = capacity.sends + 1 + capacity.receives;
        let completions = CompletionQueue::new(&device.context, room, None)?;
        let queue = completions.handle();
        let mut qp = QueuePair::new(&device.domain, queue, queue, capacity, 0)?;
        let memory = HostMemory::new(shape.blocks * shape.block_bytes, Pages::HugeOrSmall)?;
        let slab = Slab::new(memory, shape.block_bytes);
        let key = qp.hold(&slab.register(&device.domain)?);
        Ok(Half {
            qp,
            key,
            slab,
            completions,
        })
    }

    fn receive(
        &mut self,
        initialise: impl FnOnce(&mut QueuePair<u32>) -> Result<()>,
    ) -> Result<()> {
        initialise(&mut self.qp)?;
        let receives = self.qp.capacity().receives;
        if receives > 0 {
            self.qp.receive_empty(receives)?;
        }
        Ok(())
    }

    fn connected(self, connection: Connection, channel: EventChannel, peer: Remote) -> Link {
        Link {
            qp: self.qp,
            key: self.key,
            slab: self.slab,
            completions: self.completions,
            peer,
            connection,
            channel,
        }
    }
}

/// A connection. Fields are dropped in order: the queue pair before what it uses.
pub(super) struct Link {
    pub(super) qp: QueuePair<u32>,
    /// Of the blocks.
    pub(super) key: LocalKey,
    pub(super) slab: Slab,
    completions: CompletionQueue,
    /// The memory that the peer told of.
    pub(super) peer: Remote,
    connection: Connection,
    channel: EventChannel,
}

impl Link {
    /// Connects. `shared` is the memory that the peer is told of.
    ///
    /// # Errors
    /// A failed call, or nobody answers.
    pub(super) fn connect(
        device: &Device,
        to: SocketAddr,
        shape: Shape,
        shared: Remote,
    ) -> Result<Link> {
        let channel = EventChannel::new()?;
        let parameters = device.parameters();
        let deadline = Instant::now() + PATIENCE;
        let mut resolving = Resolving::start(&channel, None, to, PATIENCE, &parameters)?;
        let mut way = loop {
            match resolving.advance(&next_event(&channel, deadline)?)? {
                Resolution::Waiting(further) => resolving = further,
                Resolution::Ready(resolved) => break resolved,
            }
        };
        let mut half = Half::new(device, shape)?;
        half.receive(|qp| Ok(way.initialise(qp, &parameters)?))?;
        let data = RequestData::new(&told(shared))?;
        let connecting = way.connect(&mut half.qp, &parameters, &data)?;
        let event = next_event(&channel, deadline)?;
        let peer = place_of(event.private_data.as_slice());
        let connection = connecting.establish(&event, &mut half.qp, &parameters)?;
        Ok(half.connected(connection, channel, peer?))
    }

    /// READs that may be in flight, as both sides agreed.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn reads_in_flight(&self) -> Result<u8> {
        Ok(self.qp.query()?.reads_in_flight)
    }

    /// Takes what has completed; how many messages have arrived. Blocks that came back are given to `back`.
    ///
    /// # Errors
    /// Work that failed.
    pub(super) fn poll(&mut self, mut back: impl FnMut(Block, u32)) -> Result<u32> {
        let mut arrived = 0;
        for done in self.completions.poll()? {
            done.result()?;
            let of_mine = self.qp.retire(done);
            let blocks = of_mine.map_err(|_| anyhow!("a completion of another queue pair"))?;
            blocks.for_each(|(block, note)| back(block, note));
            arrived += u32::from(done.id().kind() == Some(Kind::Receive));
        }
        Ok(arrived)
    }

    /// Whether the peer has ended the connection.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn has_ended(&self) -> Result<bool> {
        Ok(self.channel.take_event()?.is_some_and(|event| {
            !matches!(
                event.kind,
                CmEventKind::Established | CmEventKind::AddressChange
            )
        }))
    }

    /// Waits until the peer ends the connection.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn wait_for_end(&self) -> Result<()> {
        while !self.has_ended()? {
            wait_readable(&self.channel, Duration::from_secs(1))?;
        }
        Ok(())
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // It is destroyed either way; the peer hears of the end when the connection is dropped too.
        let _ = self.qp.fail();
        let _ = self.connection.disconnect();
    }
}

fn next_event(channel: &EventChannel, deadline: Instant) -> Result<CmEvent> {
    loop {
        if let Some(event) = channel.take_event()? {
            return Ok(event);
        }
        if Instant::now() >= deadline {
            bail!("nothing from the connection manager in {PATIENCE:?}");
        }
        wait_readable(channel, Duration::from_millis(100))?;
    }
}

fn wait_readable(channel: &EventChannel, most: Duration) -> Result<()> {
    let limit = Timespec {
        tv_sec: most.as_secs() as i64,
        tv_nsec: most.subsec_nanos().into(),
    };
    let fd = channel.as_fd();
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("waiting for the connection manager"),
    }
}

/// A place in memory as private data tell of it: address, key.
fn told(place: Remote) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&place.address.to_le_bytes());
    bytes[8..].copy_from_slice(&place.key.to_le_bytes());
    bytes
}

fn place_of(data: &[u8]) -> Result<Remote> {
    ensure!(data.len() >= 12, "the peer tells of no memory");
    Ok(Remote {
        address: u64::from_le_bytes(data[..8].try_into()?),
        key: u32::from_le_bytes(data[8..12].try_into()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_and_understood() {
        let place = Remote {
            address: 0x1234_5678_9abc_def0,
            key: 77,
        };
        // Transports pad private data with zeros.
        let padded = [&told(place)[..], &[0; 44]].concat();
        assert_eq!(place_of(&padded).expect("a place"), place);
        assert!(place_of(&[1; 11]).is_err());
    }
}
