//! A session: one connection, its regions and schemas, and the requests in flight on it.

use core::sync::atomic::{AtomicU64, Ordering};

use rowmill_port::{ClientPort, Foreign, Lost, PortError, RegionId};
use rowmill_wire::Schema;
use rowmill_wire::control::{TableEntry, Welcome};
use rowmill_wire::limits::{MAX_REGIONS, MAX_SCHEMAS};

use crate::error::ClientError;
use crate::flight::Flight;
use crate::frame::Plan;
use crate::memory::{Extents, Region, Regions, Target};
use crate::options::Options;
use crate::schema::BoundSchema;
use crate::view::TakenIn;

/// Regions are made of whole pages.
const PAGE: u64 = 4096;

/// Tells the sessions of a process apart, so that no target or schema is used in another one.
static SESSIONS: AtomicU64 = AtomicU64::new(1);

/// A connection to a dataplane. One thread uses it at a time; over a port of [`AnyPort`](crate::AnyPort) it may move to another.
///
/// Requests are sent with [`Session::submit`] and their answers taken with [`Session::poll`],
/// [`Session::wait`] or both; [`Session::lookup`] does one request and waits for it. Once a session
/// has sent requests of the sizes that it goes on sending, none of these calls allocates memory.
///
/// Methods that take a [`Region`], [`Target`] or [`BoundSchema`] panic when it belongs to another
/// session.
pub struct Session<P: ClientPort> {
    pub(crate) port: P,
    pub(crate) options: Options,
    pub(crate) flight: Flight,
    pub(crate) id: u64,
    pub(crate) plan: Plan,
    /// What was taken in of the last view, for its buffers.
    pub(crate) view: TakenIn,
    regions: Regions,
    /// The region that carries ids, its size and what of it is free.
    pub(crate) source: Option<(RegionId, u64, Extents)>,
    tables: Option<Vec<TableEntry>>,
    /// What was bound, which is never given up: at most [`MAX_SCHEMAS`].
    schemas: Vec<BoundSchema>,
    /// The generation that the dataplane has last said to be the newest.
    pub(crate) newest: u64,
    pub(crate) closed: bool,
    /// How the connection was lost, where it was not closed in order.
    pub(crate) lost: Option<Lost>,
}

impl<P: ClientPort> Session<P> {
    /// A session over a port that is connected. Registers the source region.
    ///
    /// # Errors
    /// [`ClientError::Port`] where the region can't be made or is refused.
    pub fn over(mut port: P, options: Options) -> Result<Session<P>, ClientError> {
        let welcome = port.welcome();
        let (flight, newest) = (Flight::new(welcome), welcome.generation);
        // All regions of a client together have at most so much: results need some of it, too. Less than a page is none.
        let half = welcome.max_region / 2 / PAGE * PAGE;
        let bytes = (options.source_bytes as u64).min(half);
        let source = match bytes {
            0 => None,
            bytes => {
                let region = port.register_source(bytes as usize)?;
                Some((region, bytes, Extents::new(bytes, flight.most_requests())))
            }
        };
        Ok(Session {
            port,
            options,
            flight,
            id: SESSIONS.fetch_add(1, Ordering::Relaxed),
            plan: Plan::new(),
            view: TakenIn::default(),
            regions: Regions::default(),
            source,
            tables: None,
            schemas: Vec::new(),
            newest,
            closed: false,
            lost: None,
        })
    }

    /// What the dataplane granted: its model, lanes, credits and limits.
    pub fn welcome(&self) -> &Welcome {
        self.port.welcome()
    }

    /// The generation that the dataplane has last said to be the newest, at connect or in an answer. It is an earlier one again where
    /// the dataplane has gone back to that.
    pub fn generation(&self) -> u64 {
        self.newest
    }

    /// Requests submitted whose answers were not taken yet.
    pub fn pending(&self) -> usize {
        self.flight.requests()
    }

    /// The model's tables; asked for once a session.
    ///
    /// # Errors
    /// [`ClientError::Port`], [`ClientError::Closed`], [`ClientError::NoAnswer`], [`ClientError::Interrupted`].
    pub fn tables(&mut self) -> Result<&[TableEntry], ClientError> {
        if self.tables.is_none() {
            self.tables = Some(self.port.tables()?);
        }
        Ok(self.tables.as_deref().unwrap_or_default())
    }

    /// Binds a schema. One that is equal to a bound one is that one: the dataplane is not asked, and it is not counted again.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] where as many others are bound as a connection can have; [`ClientError::Port`] with the
    /// dataplane's refusal: an unknown table, outputs that overlap or are misaligned; [`ClientError::NoAnswer`],
    /// [`ClientError::Interrupted`].
    pub fn bind(&mut self, schema: Schema) -> Result<BoundSchema, ClientError> {
        if self.closed {
            return Err(self.gone());
        }
        if let Some(known) = self.schemas.iter().find(|known| *known.schema() == schema) {
            return Ok(known.clone());
        }
        within(
            "schemas of a connection",
            self.schemas.len() as u64 + 1,
            MAX_SCHEMAS.into(),
            "use those that are bound for all batches, or connect once more for others",
        )?;
        // Asked for first: a schema that is bound then is not lost for want of them.
        self.tables()?;
        let id = self.port.bind(&schema)?;
        let session = self.id;
        let bound = BoundSchema::new(session, id, schema, self.tables()?);
        let bound = bound.ok_or_else(|| {
            let text = "the dataplane bound a table that it does not list";
            ClientError::Port(PortError::Protocol(text.into()))
        })?;
        self.schemas.push(bound.clone());
        Ok(bound)
    }

    /// Makes and registers memory for results.
    ///
    /// # Errors
    /// [`ClientError::TooLarge`] above the dataplane's limit, [`ClientError::Port`], [`ClientError::NoAnswer`],
    /// [`ClientError::Interrupted`].
    pub fn region(&mut self, bytes: usize) -> Result<Region, ClientError> {
        let limit = self.welcome().max_region;
        within(
            "bytes of a region",
            bytes as u64,
            limit,
            "register several regions",
        )?;
        // Targets start at cache lines; so the last one may be as short as it wants.
        let bytes = bytes.next_multiple_of(64);
        let id = self.port.register(bytes)?;
        let region = Region {
            session: self.id,
            id,
            bytes: bytes as u64,
        };
        self.regions.add(region);
        Ok(region)
    }

    /// Bytes of the largest region that there is room for now, in whole pages; 0 where there are as many regions as there can be.
    pub fn region_room(&self) -> u64 {
        let held = |region: &Region| match self.port.memory(region.id) {
            Some(memory) => memory.len() as u64,
            None => region.bytes,
        };
        let source = self.source.iter().map(|&(id, bytes, _)| {
            let session = self.id;
            held(&Region { session, id, bytes })
        });
        let (count, bytes) = self
            .regions
            .iter()
            .map(held)
            .chain(source)
            .fold((0, 0), |(count, sum), bytes| (count + 1, sum + bytes));
        let room = self.welcome().max_region.saturating_sub(bytes);
        match count < MAX_REGIONS {
            true => room / PAGE * PAGE,
            false => 0,
        }
    }

    /// Registers `bytes` bytes of a device's memory for results. They can be in targets, but not be read here.
    pub(crate) fn foreign_region(
        &mut self,
        foreign: Foreign,
        bytes: u64,
    ) -> Result<Region, ClientError> {
        let limit = self.welcome().max_region;
        let advice = "register several regions";
        within("bytes of a region", bytes, limit, advice)?;
        let region = Region {
            session: self.id,
            id: self.port.register_foreign(foreign)?,
            bytes,
        };
        self.regions.add(region);
        Ok(region)
    }

    /// Gives a region up.
    ///
    /// # Errors
    /// [`ClientError::RegionInUse`] while it has targets; else it is given up, also where the call fails: [`ClientError::Port`],
    /// [`ClientError::NoAnswer`], [`ClientError::Interrupted`].
    ///
    /// # Panics
    /// If the region was given up before.
    pub fn unregister(&mut self, region: Region) -> Result<(), ClientError> {
        self.own(region.session);
        self.regions.remove(&region)?;
        Ok(self.port.unregister(region.id)?)
    }

    /// Whether nothing in the region is taken as a target.
    pub(crate) fn is_free(&self, region: &Region) -> bool {
        self.regions.is_free(region)
    }

    /// Takes a free range of the region as a target.
    ///
    /// # Errors
    /// [`ClientError::RegionFull`].
    ///
    /// # Panics
    /// If the region was given up.
    pub fn target(&mut self, region: &Region, bytes: u64) -> Result<Target, ClientError> {
        self.own(region.session);
        self.regions.take(region, bytes)
    }

    /// Takes this range of the region as a target.
    ///
    /// # Errors
    /// [`ClientError::TargetInUse`] where another target has some of it, [`ClientError::TargetPlace`]
    /// where it is empty, at an odd byte, or leaves the region.
    ///
    /// # Panics
    /// If the region was given up.
    pub fn target_at(
        &mut self,
        region: &Region,
        offset: u64,
        bytes: u64,
    ) -> Result<Target, ClientError> {
        self.own(region.session);
        self.regions.take_at(region, offset, bytes)
    }

    /// Gives a target's range back to its region.
    pub fn release(&mut self, target: Target) {
        self.own(target.session);
        self.regions.give(target);
    }

    /// Copies f32s out of a target, from `offset` bytes on.
    ///
    /// # Panics
    /// If they don't all lie inside the target.
    pub fn read_f32s(&self, target: &Target, offset: u64, out: &mut [f32]) {
        self.read(target, offset, bytemuck::cast_slice_mut(out));
    }

    /// Copies bytes out of a target as they were placed, from `offset` bytes on.
    ///
    /// # Panics
    /// If they don't all lie inside the target.
    pub fn read(&self, target: &Target, offset: u64, bytes: &mut [u8]) {
        self.own(target.session);
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= target.bytes),
            "read inside the target"
        );
        if !bytes.is_empty() {
            let window = self
                .port
                .memory(target.region)
                .expect("a target's region is registered");
            window.read((target.extent.offset + offset) as usize, bytes);
        }
    }

    /// Copies bytes into a target, from `offset` bytes on.
    ///
    /// # Panics
    /// If they don't all lie inside the target.
    pub fn write(&mut self, target: &Target, offset: u64, bytes: &[u8]) {
        self.own(target.session);
        let end = offset.checked_add(bytes.len() as u64);
        assert!(
            end.is_some_and(|end| end <= target.bytes),
            "write inside the target"
        );
        if !bytes.is_empty() {
            let window = self
                .port
                .memory(target.region)
                .expect("a target's region is registered");
            window.write((target.extent.offset + offset) as usize, bytes);
        }
    }

    /// Copies a vector out of an answer's target: that of a bag, or of an id where the feature is not
    /// pooled (see [`BoundSchema::vector_offset`]). `out` has the feature's dim; elements of 2 bytes are
    /// widened.
    ///
    /// # Panics
    /// If there is no such feature, `out` has another length, or the vector is not in the target.
    pub fn read_vector(
        &self,
        target: &Target,
        schema: &BoundSchema,
        feature: usize,
        vector: u32,
        out: &mut [f32],
    ) {
        schema.read_vector(feature, vector, out, |at, bytes| {
            self.read(target, at, bytes);
        });
    }

    /// Copies `out.len() / dim` vectors of a feature, from number `first` on, one after another.
    ///
    /// # Panics
    /// As [`Session::read_vector`]; if `out` is no whole number of vectors.
    pub fn read_feature(
        &self,
        target: &Target,
        schema: &BoundSchema,
        feature: usize,
        first: u32,
        out: &mut [f32],
    ) {
        let dim = schema.dim(feature);
        assert!(out.len().is_multiple_of(dim), "whole vectors");
        for (vector, out) in (first..).zip(out.chunks_exact_mut(dim)) {
            self.read_vector(target, schema, feature, vector, out);
        }
    }

    pub(crate) fn own(&self, session: u64) {
        assert_eq!(session, self.id, "used in the session that it was made by");
    }
}

pub(crate) fn within(
    what: &'static str,
    given: u64,
    limit: u64,
    advice: &'static str,
) -> Result<(), ClientError> {
    if given <= limit {
        Ok(())
    } else {
        Err(ClientError::TooLarge {
            what,
            given,
            limit,
            advice,
        })
    }
}
