//! The client half of the shared-memory port.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rowmill_arena::{ArenaError, Backing, HUGE_2M, HugePages, Region, Window, sealed_memfd};
use rowmill_wire::control::{Control, Rights, TableEntry, Welcome};
use rowmill_wire::limits::MAX_REGIONS;
use rowmill_wire::{Completion, Schema};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::block::Block;
use super::call::{ask, await_message, named, open_stream};
use super::handoff;
use super::layout::{Layout, MAX_LANES};
use super::rings::ClientRings;
use super::server::system;
use super::stream;
use super::wake::WakeSocket;
use crate::calls::{self, Late, bound, understand, unexpected};
use crate::control::Bell;
use crate::patience::Patience;
use crate::ticks::Ticks;
use crate::{ClientPort, Interrupt, ParentFd, PortError, RegionId, Rest, WakeFds};

/// Pages of memfds that are not made of huge pages.
const PAGE: usize = 4096;

/// How a client half is set up.
#[derive(Clone, Debug)]
pub struct ShmClientConfig {
    /// Request slots wanted on each lane; the server may grant fewer.
    pub credits: u16,
    /// What regions are made of. [`ShmClient::backing`] says what was got.
    pub huge_pages: HugePages,
    /// How long to wait for the answer to a control message.
    pub reply_limit: Duration,
    /// What ends such a wait early.
    pub interrupt: Interrupt,
}

impl Default for ShmClientConfig {
    /// 16 credits, huge pages where there are some, 10 seconds.
    fn default() -> ShmClientConfig {
        ShmClientConfig {
            credits: 16,
            huge_pages: HugePages::Prefer,
            reply_limit: Duration::from_secs(10),
            interrupt: Interrupt::default(),
        }
    }
}

/// A client half.
///
/// After [`PortError::Closed`] all its regions are its own again: the server closes the stream only when
/// every worker has let go of the connection and its regions are unmapped, and if the server's process
/// died, the kernel closed the stream after the last of its threads had ended.
pub struct ShmClient {
    lanes: Vec<ClientRings>,
    regions: [Option<OwnRegion>; MAX_REGIONS as usize],
    welcome: Welcome,
    layout: Layout,
    doorbells: Vec<Bell>,
    wake: WakeSocket,
    stream: ParentFd,
    config: ShmClientConfig,
    buffer: Vec<u8>,
    sequence: u32,
    late: Late,
    /// When the stream is looked at by who polls and finds nothing.
    ticks: Ticks,
    closed: bool,
}

struct OwnRegion {
    memory: Arc<Region>,
    backing: Backing,
}

impl ShmClient {
    /// Connects with `credits` request slots a lane and defaults for the rest.
    ///
    /// # Errors
    /// As [`ShmClient::connect_with`].
    pub fn connect(endpoint: &str, client: &str, credits: u16) -> Result<ShmClient, PortError> {
        let config = ShmClientConfig {
            credits,
            ..ShmClientConfig::default()
        };
        ShmClient::connect_with(endpoint, client, config)
    }

    /// Connects. `client` is shown in the server's log and status page.
    ///
    /// # Errors
    /// [`PortError::Endpoint`], [`PortError::Connect`] where nobody listens, [`PortError::Refused`],
    /// [`PortError::Protocol`] where the server's answer makes no sense, [`PortError::NoAnswer`] where it does not come,
    /// [`PortError::Interrupted`].
    pub fn connect_with(
        endpoint: &str,
        client: &str,
        config: ShmClientConfig,
    ) -> Result<ShmClient, PortError> {
        let mut patience = Patience::new(config.reply_limit, &config.interrupt);
        let stream = open_stream(endpoint, &mut patience)?;
        let hello = Control::Hello {
            client: client.to_owned(),
            credits: config.credits,
        };
        let mut buffer = stream::buffer();
        let most_fds = usize::from(MAX_LANES) + 2;
        let named = |error| named(error, endpoint);
        let end = stream.as_fd();
        ask(end, &hello.encode(1), &[], &mut patience).map_err(named)?;
        let (bytes, fds) =
            await_message(end, &mut buffer, most_fds, &mut patience).map_err(named)?;
        let answer = understand(bytes, 1)?;
        let Control::Welcome(welcome) = answer else {
            return Err(PortError::Protocol(
                "the server answered Hello with something else than Welcome".to_owned(),
            ));
        };
        ShmClient::equip(welcome, fds, stream, config, buffer)
    }

    /// Checks what the server says and sends: a claim here as well.
    fn equip(
        welcome: Welcome,
        fds: Vec<OwnedFd>,
        stream: OwnedFd,
        config: ShmClientConfig,
        buffer: Vec<u8>,
    ) -> Result<ShmClient, PortError> {
        let wrong = |what: String| PortError::Protocol(what);
        let lanes = welcome.split.lanes;
        let layout = Layout::new(lanes, welcome.credits, welcome.completions)
            .filter(|layout| layout.credits() <= config.credits.max(1))
            .ok_or_else(|| wrong(format!("the welcome's numbers are impossible: {welcome:?}")))?;
        let count = fds.len();
        let mut fds = fds.into_iter();
        let (Some(memory), Some(wake), true) =
            (fds.next(), fds.next(), count == usize::from(lanes) + 2)
        else {
            return Err(wrong(format!(
                "{count} descriptors came with the welcome, and {} lanes need {}",
                lanes,
                lanes + 2
            )));
        };
        let memory = Region::map(memory.as_fd(), layout.total_bytes())
            .map_err(|e| wrong(format!("the server's control memory: {e}")))?;
        let memory = Arc::new(memory);
        Ok(ShmClient {
            lanes: (0..lanes)
                .map(|lane| ClientRings::new(Block::new(memory.clone(), &layout, lane), layout))
                .collect(),
            regions: Default::default(),
            welcome,
            layout,
            doorbells: fds.map(Bell::of).collect(),
            wake: WakeSocket::of(wake),
            stream: ParentFd::new(stream)?,
            config,
            buffer,
            sequence: 1,
            late: Late::default(),
            ticks: Ticks::new(),
            closed: false,
        })
    }

    /// What a region is made of: huge pages or small ones.
    pub fn backing(&self, region: RegionId) -> Option<Backing> {
        self.regions
            .get(region.0 as usize)?
            .as_ref()
            .map(|region| region.backing)
    }

    /// Registers memory of the caller's own: a memfd of `bytes` bytes, sealed against shrinking and
    /// growing, for the dataplane to use with these rights. [`ClientPort::register`] makes such memory itself.
    ///
    /// # Errors
    /// [`PortError::Refused`] with the server's reason, [`PortError::Protocol`] where the memory can't
    /// be mapped here, and the others of a control call.
    pub fn register_memfd(
        &mut self,
        fd: BorrowedFd<'_>,
        bytes: u64,
        rights: Rights,
    ) -> Result<RegionId, PortError> {
        match self.call(&Control::Register { bytes, rights }, &[fd])? {
            Control::Registered { region } if region < MAX_REGIONS => {
                let memory = Region::map(fd, bytes as usize)
                    .map_err(|e| PortError::Protocol(format!("mapping a region: {e}")))?;
                let backing = backing_of(fd);
                let memory = Arc::new(memory);
                self.regions[region as usize] = Some(OwnRegion { memory, backing });
                Ok(RegionId(region))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// A lane's block of control memory as it is, its layout, and a way to ring the worker: for tests
    /// that break the protocol on purpose or change frames after they were submitted.
    pub fn raw_lane(&self, lane: u16) -> RawLane<'_> {
        RawLane {
            window: self.lanes[usize::from(lane)].block().window(),
            layout: self.layout,
            doorbell: &self.doorbells[usize::from(lane)],
        }
    }

    /// Asks a control question, when the answer to the last one has come.
    fn call(&mut self, question: &Control, fds: &[BorrowedFd<'_>]) -> Result<Control, PortError> {
        let mut patience = Patience::new(self.config.reply_limit, &self.config.interrupt);
        if let Err(error) = self.settle(&mut patience) {
            self.late.give_up_unasked(question);
            return Err(error);
        }
        let outcome = self.call_within(question, fds, &mut patience);
        self.closed |= matches!(outcome, Err(PortError::Closed));
        outcome
    }

    fn call_within(
        &mut self,
        question: &Control,
        fds: &[BorrowedFd<'_>],
        patience: &mut Patience,
    ) -> Result<Control, PortError> {
        let stream = self.stream.as_fd();
        self.sequence = self.sequence.wrapping_add(1);
        ask(stream, &question.encode(self.sequence), fds, patience)?;
        match await_message(stream, &mut self.buffer, 0, patience) {
            Ok((bytes, _)) => understand(bytes, self.sequence),
            Err(error) => {
                if let PortError::NoAnswer { .. } | PortError::Interrupted = error {
                    self.late.give_up(self.sequence, question);
                }
                Err(error)
            }
        }
    }

    /// Waits for the answer that is still to come, and has what it gives given back.
    fn settle(&mut self, patience: &mut Patience) -> Result<(), PortError> {
        let outcome = self.settle_within(patience);
        self.closed |= matches!(outcome, Err(PortError::Closed));
        match self.closed {
            true => Err(PortError::Closed),
            false => outcome,
        }
    }

    fn settle_within(&mut self, patience: &mut Patience) -> Result<(), PortError> {
        let stream = self.stream.as_fd();
        while self.late.is_open() && !self.closed {
            if let Some(question) = self.late.next_question() {
                self.sequence = self.sequence.wrapping_add(1);
                ask(stream, &question.encode(self.sequence), &[], patience)?;
                self.late.give_up(self.sequence, &question);
            }
            let (bytes, _) = await_message(stream, &mut self.buffer, 0, patience)?;
            self.late.heard(bytes)?;
        }
        Ok(())
    }

    /// Takes the answer that is still to come, if it has come.
    fn hear_late(&mut self) -> Result<(), PortError> {
        let mut patience = Patience::new(Duration::ZERO, &Interrupt::default());
        match self.settle(&mut patience) {
            Err(PortError::Protocol(what)) => {
                tracing::warn!(what, "an answer that came late is left");
                Ok(())
            }
            Err(PortError::Closed | PortError::NoAnswer { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    fn look_at_stream(&mut self) -> Result<(), PortError> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::RDHUP)];
        match poll(&mut fds, Some(&Timespec::default())) {
            Ok(_) | Err(Errno::INTR) => {
                self.closed |= !fds[0].revents().is_empty();
            }
            Err(errno) => return Err(system("poll", errno)),
        }
        match self.late.is_open() {
            true => self.hear_late(),
            false => Ok(()),
        }
    }

    /// Makes memory and registers it.
    fn register_own(&mut self, bytes: usize, rights: Rights) -> Result<RegionId, PortError> {
        if self.closed {
            return Err(PortError::Closed);
        }
        let own = self.regions.iter().flatten();
        let held: u64 = own.map(|region| region.memory.len() as u64).sum();
        let huge = self.config.huge_pages != HugePages::Off && bytes > HUGE_2M / 2;
        let whole = match self.config.huge_pages {
            HugePages::Require => bytes.max(1).checked_next_multiple_of(HUGE_2M),
            // Whole huge pages where they would not double the size and the server takes as much.
            _ if huge => bytes
                .checked_next_multiple_of(HUGE_2M)
                .filter(|&rounded| held + rounded as u64 <= self.welcome.max_region)
                .or(bytes.checked_next_multiple_of(PAGE)),
            _ => bytes.max(1).checked_next_multiple_of(PAGE),
        };
        let whole = whole.ok_or_else(|| {
            no_memory(ArenaError::ImpossibleSize {
                bytes: bytes as u64,
            })
        })?;
        let fd =
            sealed_memfd("rowmill-region", whole, self.config.huge_pages).map_err(no_memory)?;
        self.register_memfd(fd.as_fd(), whole as u64, rights)
    }
}

impl ClientPort for ShmClient {
    fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    fn tables(&mut self) -> Result<Vec<TableEntry>, PortError> {
        calls::tables(|question| self.call(question, &[]))
    }

    fn bind(&mut self, schema: &Schema) -> Result<u32, PortError> {
        let mut patience = Patience::new(self.config.reply_limit, &self.config.interrupt);
        self.settle(&mut patience)?;
        if let Some(number) = self.late.claim(schema) {
            return Ok(number);
        }
        bound(&self.call(&Control::Bind(schema.clone()), &[])?)
    }

    fn register(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register_own(bytes, Rights::Write)
    }

    fn register_source(&mut self, bytes: usize) -> Result<RegionId, PortError> {
        self.register_own(bytes, Rights::Read)
    }

    fn unregister(&mut self, region: RegionId) -> Result<(), PortError> {
        let outcome = self.call(&Control::Unregister { region: region.0 }, &[]);
        let gone = calls::unregistered(outcome, region);
        if let Ok(()) | Err(PortError::NoAnswer { .. } | PortError::Interrupted) = gone
            && let Some(region) = self.regions.get_mut(region.0 as usize)
        {
            *region = None;
        }
        gone
    }

    fn memory(&self, region: RegionId) -> Option<Window<'_>> {
        let region = self.regions.get(region.0 as usize)?.as_ref()?;
        Some(region.memory.window())
    }

    fn share(&self, region: RegionId) -> Option<Arc<Region>> {
        let region = self.regions.get(region.0 as usize)?.as_ref()?;
        Some(Arc::clone(&region.memory))
    }

    fn submit(&mut self, lane: u16, slot: u16, frame: &[u8]) -> Result<(), PortError> {
        if self.closed {
            return Err(PortError::Closed);
        }
        if self.lanes[usize::from(lane)].submit(slot, frame) {
            self.doorbells[usize::from(lane)].ring();
        }
        Ok(())
    }

    fn cancel(&mut self, lane: u16, slot: u16) -> Result<(), PortError> {
        if self.closed {
            return Err(PortError::Closed);
        }
        if self.lanes[usize::from(lane)].cancel(slot) {
            self.doorbells[usize::from(lane)].ring();
        }
        Ok(())
    }

    fn poll(&mut self, lane: u16) -> Result<Option<Completion>, PortError> {
        // Asked before the ring: all that the server wrote, it wrote before it closed the stream.
        let closed = self.closed;
        match self.lanes[usize::from(lane)].next() {
            Ok(Some(record)) => Ok(Some(record)),
            Ok(None) if closed => Err(PortError::Closed),
            Ok(None) => {
                if self.ticks.has_passed() {
                    self.look_at_stream()?;
                }
                Ok(None)
            }
            Err(what) => {
                // The server frees the rings of a client that it has cut off.
                self.look_at_stream()?;
                if self.closed {
                    return Err(PortError::Closed);
                }
                Err(PortError::Protocol(format!("lane {lane}: {what}")))
            }
        }
    }

    fn lie_down(&mut self, limit: Option<Duration>) -> Rest {
        match handoff::lie_down(self.lanes.iter(), || !self.closed) {
            true => Rest::Quiet(limit),
            false => Rest::Disturbed,
        }
    }

    /// The end of the stream, and what a worker wakes this client by.
    fn wake_fds(&self) -> WakeFds<BorrowedFd<'_>> {
        WakeFds::of([
            (self.stream.as_fd(), PollFlags::RDHUP),
            (self.wake.as_fd(), PollFlags::IN),
        ])
    }

    fn get_up(&mut self) -> Result<(), PortError> {
        handoff::get_up(self.lanes.iter());
        if self.wake.drain() {
            return Ok(());
        }
        // No worker ended the sleep, so it may have been the end of the stream.
        self.look_at_stream()
    }

    fn close(&mut self) {
        // It fails where the dataplane was first.
        let _ = rustix::net::shutdown(&self.stream, rustix::net::Shutdown::Both);
        self.closed = true;
    }
}

/// See [`ShmClient::raw_lane`].
pub struct RawLane<'a> {
    /// The lane's block.
    pub window: Window<'a>,
    /// Where things lie in it.
    pub layout: Layout,
    doorbell: &'a Bell,
}

impl RawLane<'_> {
    /// Wakes the lane's worker.
    pub fn ring(&self) {
        self.doorbell.ring();
    }
}

fn no_memory(error: ArenaError) -> PortError {
    PortError::System {
        call: "making a region",
        source: std::io::Error::other(error),
    }
}

/// What a memfd is made of, by the file system that it lives in.
fn backing_of(fd: BorrowedFd<'_>) -> Backing {
    const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
    match rustix::fs::fstatfs(fd) {
        Ok(stat) if stat.f_type as u64 == HUGETLBFS_MAGIC => Backing::Huge2M,
        _ => Backing::Small,
    }
}
