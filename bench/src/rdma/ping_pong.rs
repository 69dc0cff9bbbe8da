//! A bare ping-pong of WRITE_WITH_IMMs: the least that a request and its answer can take. It posts as the service does: blocks, each
//! message signalled, one doorbell a message; and polls as a service that spins.

use std::hint::spin_loop;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use rowmill_verbs::{
    Access, Capacity, HostMemory, Local, Operation, Pages, Piece, Registered, Signal,
};

use super::link::{Device, Link, Offer, PATIENCE, Shape};

/// Blocks of each side: one is on its way, and those before it have come back by then.
const BLOCKS: usize = 8;
/// Polls without a message before the answering side sleeps, a few milliseconds: longer than a round trip, and
/// others that are measured between two rounds find the CPU free.
const POLLS_MAX: u32 = 200_000;

/// The queues of a lane: send queue, receives and inline bytes as the service's client asks for with 16 credits.
fn shape(bytes: usize) -> Shape {
    Shape {
        capacity: Capacity {
            sends: 64,
            receives: 64,
            pieces: 1,
            inline_bytes: 220,
        },
        blocks: BLOCKS,
        block_bytes: bytes.next_multiple_of(4096),
    }
}

/// Bytes of a question and of its answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub(super) request: usize,
    pub(super) result: usize,
    /// Whether the answer is a WRITE of the result and then a WRITE_WITH_IMM of a record, as the service's is, instead of
    /// one WRITE_WITH_IMM.
    pub(super) record: bool,
}

/// Bytes of a record.
const RECORD: usize = 64;

/// One side: it sends messages of `bytes`.
struct Side {
    link: Link,
    bytes: usize,
    record: bool,
    // After the queue pair by which the peer writes to it.
    _inbox: Registered<HostMemory>,
}

impl Side {
    fn send(&mut self) -> Result<()> {
        let block = self.link.slab.take();
        let block = block.ok_or_else(|| anyhow!("more messages than blocks"))?;
        let announced = Operation::WriteImmediate(self.link.peer, 1);
        let to = match self.record {
            true => Operation::Write(self.link.peer),
            false => announced,
        };
        let mut batch = self.link.qp.batch();
        let local = Local {
            block,
            key: self.link.key,
            pieces: &[Piece::from(0..self.bytes)],
            note: 0,
        };
        let posted = batch.post(to, local, Signal::Yes);
        posted.map_err(|_| anyhow!("the send queue is full"))?;
        if self.record {
            let posted = batch.post_inline(announced, &[0; RECORD], Signal::Yes);
            posted.map_err(|_| anyhow!("the send queue is full"))?;
        }
        let messages = 1 + usize::from(self.record);
        ensure!(batch.ring()? == messages, "{messages} messages");
        Ok(())
    }

    /// Whether a message has come; its receive is posted again.
    fn arrived(&mut self) -> Result<bool> {
        let arrived = self.link.poll(|block, _| drop(block))?;
        if arrived > 0 {
            self.link.qp.receive_empty(arrived)?;
        }
        Ok(arrived > 0)
    }
}

fn inbox(device: &Device, bytes: usize) -> Result<Registered<HostMemory>> {
    let memory = HostMemory::new(bytes, Pages::Small)?;
    Registered::new(&device.domain, memory, Access::REMOTE_WRITE).map_err(|(error, _)| error.into())
}

/// Answers one peer until it ends the connection.
///
/// # Errors
/// A failed call or message.
pub(super) fn answer(device: &Device, offer: Offer, sizes: Sizes) -> Result<()> {
    let inbox = inbox(device, sizes.request)?;
    let link = offer.accept(device, shape(sizes.result), inbox.remote())?;
    let mut side = Side {
        link,
        bytes: sizes.result,
        record: sizes.record,
        _inbox: inbox,
    };
    let mut polls = 0;
    loop {
        if side.arrived()? {
            polls = 0;
            side.send()?;
            continue;
        }
        polls += 1;
        if polls < POLLS_MAX {
            spin_loop();
        } else if side.link.has_ended()? {
            return Ok(());
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The side that asks.
pub(super) struct PingPong(Side);

impl PingPong {
    /// Connects to who answers.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn connect(device: &Device, to: SocketAddr, sizes: Sizes) -> Result<PingPong> {
        let inbox = inbox(device, sizes.result)?;
        let link = Link::connect(device, to, shape(sizes.request), inbox.remote())?;
        Ok(PingPong(Side {
            link,
            bytes: sizes.request,
            record: false,
            _inbox: inbox,
        }))
    }

    /// From sending a question to its answer.
    ///
    /// # Errors
    /// A failed call or message; no answer.
    pub(super) fn round_trip(&mut self) -> Result<Duration> {
        let began = Instant::now();
        self.0.send()?;
        let mut polls = 0u32;
        while !self.0.arrived()? {
            polls = polls.wrapping_add(1);
            if polls.is_multiple_of(1 << 20) {
                ensure!(began.elapsed() < PATIENCE, "no answer to a ping");
            }
            spin_loop();
        }
        Ok(began.elapsed())
    }
}
