//! A client that threads share.
//!
//! `Hub` is a lock around a session with the table of its requests. Nobody holds the lock asleep: see `waiters.rs`. Results lie
//! in a pool of memory or where the caller says, and come as leases (`lease.rs`); what is dropped, a lease or a request that
//! is waited for no more, goes into a queue without the lock, and is taken in with the next call. Who has an event loop to run
//! is told by a bell (`bell.rs`), and who wants to know of each slice by a watcher (`watch.rs`); a thread of the hub's own
//! looks for their answers (`progress.rs`).

mod bell;
mod fork;
mod lease;
mod pending;
mod pool;
mod progress;
mod shared;
mod submit;
mod table;
mod waiters;
mod watch;

use std::sync::Arc;

use rowmill_port::{ClientPort, Foreign, PeerMemory};
use rowmill_wire::Schema;
use rowmill_wire::control::{TableEntry, Welcome};

pub use self::bell::Bell;
pub use self::lease::Lease;
pub use self::pending::{Canceller, Pending, Reply};
pub use self::pool::RegionMemory;
pub use self::watch::Watcher;

pub(crate) use self::fork::InParent;

use self::pool::Pool;
use self::shared::{Inner, Owner, Shared};
use crate::batch::Batch;
use crate::error::ClientError;
use crate::memory::Region;
use crate::options::Options;
use crate::ports::{AnyPort, Client};
use crate::schema::BoundSchema;
use crate::session::Session;
use crate::view::JaggedView;

/// Choices for a [`Hub`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubOptions {
    /// Bytes of a region of the pool; one is larger where four results of the size that it is made for don't fit. There are at
    /// most 8, made when they are needed; those that are free make way where a larger one is. The default is 4 MiB.
    pub pool_region_bytes: u64,
    /// Most results that are in flight or held at a time. The default is 4,096.
    pub results: u32,
}

impl Default for HubOptions {
    fn default() -> HubOptions {
        HubOptions {
            pool_region_bytes: 4 << 20,
            results: 4096,
        }
    }
}

/// What is looked up.
#[derive(Clone, Copy, Debug)]
pub enum Ids<'a> {
    /// A batch.
    Batch(&'a Batch),
    /// Ids in the caller's memory.
    View(&'a JaggedView<'a>),
}

impl<'a> From<&'a Batch> for Ids<'a> {
    fn from(batch: &'a Batch) -> Ids<'a> {
        Ids::Batch(batch)
    }
}

impl<'a> From<&'a JaggedView<'a>> for Ids<'a> {
    fn from(view: &'a JaggedView<'a>) -> Ids<'a> {
        Ids::View(view)
    }
}

impl Ids<'_> {
    pub(crate) fn bags(&self) -> usize {
        match self {
            Ids::Batch(batch) => batch.bags() as usize,
            Ids::View(view) => view.bags(),
        }
    }
}

/// Where a result is placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Somewhere in the pool.
    #[default]
    Pool,
    /// In a region that [`Hub::region`] has made, from this byte on.
    At(Region, u64),
}

/// A connection that threads share. Clones are the same connection, which ends with the last of them and of its [`Pending`]s.
///
/// ```no_run
/// use rowmill_client::{Batch, Division, Hub, HubOptions, Options, Place, Pooling, RequestOptions, Schema, Wait};
///
/// let hub = Hub::connect("shm:/run/rowmill/demo.sock", Options::default(), HubOptions::default())?;
/// let (schema, _) = Schema::side_by_side(256, [("clicked", "items", Pooling::Sum, 128)]);
/// let schema = hub.bind(schema)?;
/// std::thread::scope(|scope| {
///     for id in 0..4u32 {
///         let (hub, schema) = (hub.clone(), &schema);
///         scope.spawn(move || -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
///             let mut batch = Batch::new(1)?;
///             batch.push(Division::Lengths(&[1]), &[id][..])?;
///             let reply = hub.lookup(schema, &batch, Place::Pool, &RequestOptions::default(), Wait::Block)?;
///             reply.outcome?;
///             let mut vector = [0.0; 128];
///             reply.lease.read_vector(schema, 0, 0, &mut vector)?;
///             Ok(())
///         });
///     }
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Threads
/// All calls may be made by all threads at the same time. Those that ask the dataplane (`tables`, `bind`, `region`, `unregister`,
/// and a submission for which the pool grows) hold the others up until it has answered, or [`Options::reply_limit`] is over, or
/// [`Options::interrupt`] says that they are to end.
///
/// # Forks
/// A child of the process has no part in the connection: every call there is [`ClientError::Forked`], and what is dropped there is
/// left to the parent.
pub struct Hub<P: ClientPort = AnyPort> {
    pub(crate) shared: Arc<Owner<P>>,
    welcome: Arc<Welcome>,
    session: u64,
}

impl<P: ClientPort> Clone for Hub<P> {
    fn clone(&self) -> Hub<P> {
        Hub {
            shared: Arc::clone(&self.shared),
            welcome: Arc::clone(&self.welcome),
            session: self.session,
        }
    }
}

impl Hub<AnyPort> {
    /// Connects to the dataplane at `url`; see [`Client::connect`].
    ///
    /// # Errors
    /// Those of [`Client::connect`] and of [`Hub::over`].
    pub fn connect(url: &str, options: Options, hub: HubOptions) -> Result<Self, ClientError> {
        Hub::over(Client::connect(url, options)?, hub)
    }
}

impl<P: ClientPort> Hub<P> {
    /// Shares a session that has no requests, targets or regions of its own. Its port wakes by descriptors.
    ///
    /// # Errors
    /// [`ClientError::Port`] where the process has no descriptors left.
    pub fn over(session: Session<P>, options: HubOptions) -> Result<Self, ClientError> {
        let (welcome, id) = (Arc::new(session.welcome().clone()), session.id);
        let pool = Pool::new(options.pool_region_bytes);
        let shared = Shared::new(session, options.results.max(1), pool)?;
        Ok(Hub {
            shared: Arc::new(Owner::new(shared)),
            welcome,
            session: id,
        })
    }

    /// What the dataplane granted: its model, lanes, credits and limits.
    pub fn welcome(&self) -> &Welcome {
        &self.welcome
    }

    /// The newest generation that the dataplane has told of, at connect or in an answer.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`], as all calls.
    pub fn generation(&self) -> Result<u64, ClientError> {
        Ok(self.shared.lock()?.session.generation())
    }

    /// Requests whose answers were not taken, and were not dropped.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn pending(&self) -> Result<usize, ClientError> {
        let mut inner = self.shared.lock()?;
        self.shared.turn(&mut inner)?;
        Ok(inner.table.taken())
    }

    /// Which of these requests has an answer that was not taken yet: the first one's place among them. All are of this hub.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`]; [`ClientError::OtherClient`] for a request of another hub.
    pub fn first_done<'p>(
        &self,
        among: impl IntoIterator<Item = &'p Pending<P>>,
    ) -> Result<Option<usize>, ClientError>
    where
        P: 'p,
    {
        let mut inner = self.shared.lock()?;
        self.shared.turn(&mut inner)?;
        for (place, pending) in among.into_iter().enumerate() {
            if pending.is_done_in(&self.shared, &inner)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Results that are in flight or held.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn held(&self) -> Result<usize, ClientError> {
        let mut inner = self.shared.lock()?;
        self.shared.turn(&mut inner)?;
        let Inner {
            session, leases, ..
        } = &mut *inner;
        leases.take_in(session);
        Ok(leases.taken())
    }

    /// The model's tables.
    ///
    /// # Errors
    /// As [`Session::tables`].
    pub fn tables(&self) -> Result<Vec<TableEntry>, ClientError> {
        self.ask(|inner| inner.session.tables().map(<[TableEntry]>::to_vec))
    }

    /// Binds a schema.
    ///
    /// # Errors
    /// As [`Session::bind`].
    pub fn bind(&self, schema: Schema) -> Result<BoundSchema, ClientError> {
        self.ask(|inner| inner.session.bind(schema))
    }

    /// Makes room in the pool for a result of so many bytes, so that the next submission need not ask the dataplane for it, if nobody
    /// else takes it before.
    ///
    /// # Errors
    /// [`ClientError::ResultsHeld`] where results have to be dropped first; as [`Session::region`].
    pub fn make_room(&self, bytes: u64) -> Result<(), ClientError> {
        self.ask(|inner| {
            let Inner {
                session,
                leases,
                pool,
                ..
            } = inner;
            leases.take_in(session);
            let held = leases.taken();
            match pool.take(session, bytes)? {
                Some(target) => {
                    session.release(target);
                    Ok(())
                }
                None => Err(ClientError::ResultsHeld {
                    needed: bytes,
                    held,
                }),
            }
        })
    }

    /// Makes and registers memory of the caller's choice for results; see [`Place::At`].
    ///
    /// # Errors
    /// As [`Session::region`].
    pub fn region(&self, bytes: u64) -> Result<Region, ClientError> {
        self.ask(|inner| inner.pool.make(&mut inner.session, bytes))
    }

    /// The memory of a region that [`Hub::region`] has made.
    ///
    /// # Errors
    /// [`ClientError::OtherClient`]; [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn memory(&self, region: Region) -> Result<RegionMemory, ClientError> {
        self.shared.lock()?.pool.memory(&region)
    }

    /// Gives a region up that was made by [`Hub::region`].
    ///
    /// # Errors
    /// [`ClientError::RegionInUse`] while results in it are in flight or held, [`ClientError::OtherClient`]; else it is given up, also
    /// where the call fails: [`ClientError::Port`], [`ClientError::NoAnswer`], [`ClientError::Interrupted`].
    pub fn unregister(&self, region: Region) -> Result<(), ClientError> {
        self.ask(|inner| {
            let Inner {
                session,
                leases,
                pool,
                ..
            } = inner;
            leases.take_in(session);
            pool.unmake(session, region)
        })
    }

    /// Registers memory by its address for results; see [`Place::At`]. It stays what it is: leases of results there have
    /// no window. It is given up by [`Hub::unregister`], and kept until then, or until the connection is gone.
    ///
    /// # Errors
    /// [`ClientError::Port`] with [`PortError::Unsupported`](crate::PortError::Unsupported) where the dataplane is not reached over a
    /// NIC, which alone can write to such memory; as [`Session::region`].
    pub fn register_memory(&self, memory: PeerMemory) -> Result<Region, ClientError> {
        let bytes = memory.bytes();
        self.foreign_region(Foreign::Peer(memory), bytes)
    }

    /// Bytes of the largest region that there is room for now: what the dataplane grants this client, less what its regions have.
    /// 0 where there are as many as there can be. A dataplane may have less left for all its clients together.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn region_room(&self) -> Result<u64, ClientError> {
        Ok(self.shared.lock()?.session.region_room())
    }

    /// Registers memory of a device for results, which are not to be taken as leases: their requests' [`Pending`]s are dropped.
    pub(crate) fn foreign_region(
        &self,
        foreign: Foreign,
        bytes: u64,
    ) -> Result<Region, ClientError> {
        self.ask(|inner| inner.pool.make_foreign(&mut inner.session, foreign, bytes))
    }

    /// Takes in what has come, and what was dropped.
    pub(crate) fn take_in(&self) -> Result<(), ClientError> {
        let mut inner = self.shared.lock()?;
        self.shared.turn(&mut inner)
    }

    /// Makes a bell, to be rung when requests have been answered; see [`Pending::ring`].
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] where there are 16; [`ClientError::Port`] where the process has no descriptors left;
    /// [`ClientError::Closed`], [`ClientError::Stopped`], [`ClientError::Forked`].
    pub fn bell(&self) -> Result<Bell<P>, ClientError> {
        let mut inner = self.shared.lock()?;
        if inner.ended {
            return Err(ClientError::Closed);
        }
        // As many again as can be in flight may wait to be heard.
        let most = 2 * inner.session.flight.most_requests();
        inner.bells.add(self.shared.process, self.session, most)
    }

    /// Ends the connection for all threads. Requests in flight end with [`Failure::Disconnected`](crate::Failure::Disconnected), which
    /// those who wait for them are told; later calls are [`ClientError::Closed`]. Answers that have come can still be taken, and
    /// leases be read. Where a dataplane stores to shared memory, it may write to the results of requests that were in flight
    /// until it has noticed.
    ///
    /// It waits for no request, but for a control call of another thread. Closing twice is closing once; in a forked child nothing
    /// happens.
    pub fn close(&self) {
        self.shared.close();
    }

    /// Whether the connection is known to have ended, by [`Hub::close`] or as a call has found out, or belongs to another process.
    /// Waits for no other thread's call.
    pub fn is_closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// A call that may ask the dataplane, and so takes what would have woken the leader.
    fn ask<T>(
        &self,
        call: impl FnOnce(&mut Inner<P>) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let mut inner = self.shared.lock()?;
        if inner.ended {
            return Err(ClientError::Closed);
        }
        let outcome = call(&mut inner);
        if let Err(error) = &outcome
            && error.is_end()
        {
            inner.session.ended_by(error);
        }
        self.shared.hand_out(&mut inner);
        self.shared.rouse(&mut inner);
        outcome
    }
}
