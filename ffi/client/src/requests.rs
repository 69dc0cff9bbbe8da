//! Requests of a session: checking and sending them, and taking in what comes back.

use rowmill_port::{ClientPort, PortError};
use rowmill_wire::limits::MAX_LANES;
use rowmill_wire::limits::MAX_SLICES;
use rowmill_wire::request::{FLAG_PARTIALS, Header};
use rowmill_wire::{Op, SplitRule};

use crate::answer::{Answer, Slice, Ticket};
use crate::batch::Batch;
use crate::error::{ClientError, Unsent};
use crate::flight::Departure;
use crate::frame::Carriage;
use crate::memory::{Extent, Target};
use crate::options::RequestOptions;
use crate::schema::BoundSchema;
use crate::session::{Session, within};
use crate::shape::{Content, Shape};
use crate::view::JaggedView;

impl<P: ClientPort> Session<P> {
    /// Sends a batch. Returns at once; `target` belongs to the dataplane until the answer gives it back.
    ///
    /// # Errors
    /// [`Unsent`], with the target: [`ClientError::NoCredit`] and [`ClientError::NoSourceSpace`] where
    /// answers have to be polled for first, [`ClientError::Closed`], else what is wrong with the batch.
    pub fn submit(
        &mut self,
        schema: &BoundSchema,
        batch: &Batch,
        target: Target,
        options: &RequestOptions,
    ) -> Result<Ticket, Unsent> {
        self.submit_content(schema, batch, target, options)
    }

    /// As [`Session::submit`], with ids that lie in the caller's memory and may be given back, or changed, once this
    /// returns. Lengths are copied and checked; ids and weights are copied once, to where the dataplane reads them.
    ///
    /// # Errors
    /// As [`Session::submit`]; [`ClientError::Batch`] as from [`Batch`] for the same content.
    pub fn submit_view(
        &mut self,
        schema: &BoundSchema,
        view: &JaggedView<'_>,
        target: Target,
        options: &RequestOptions,
    ) -> Result<Ticket, Unsent> {
        let mut taken = std::mem::take(&mut self.view);
        let sent = match taken.take_in(view, |f| f < schema.features() && schema.is_weighted(f)) {
            Ok(content) => self.submit_content(schema, &content, target, options),
            Err(error) => Err(Unsent {
                error: error.into(),
                target: Some(target),
            }),
        };
        self.view = taken;
        sent
    }

    fn submit_content(
        &mut self,
        schema: &BoundSchema,
        batch: &impl Content,
        target: Target,
        options: &RequestOptions,
    ) -> Result<Ticket, Unsent> {
        match self.prepare(schema, batch.shape(), Some(&target), options) {
            Ok(source) => self.send(Op::Lookup, schema, batch, target, options, source),
            Err(error) => Err(Unsent {
                error,
                target: Some(target),
            }),
        }
    }

    /// Checks and plans a request, picks its lanes, takes its source space. Changes nothing on errors.
    pub(crate) fn prepare(
        &mut self,
        schema: &BoundSchema,
        batch: &Shape,
        target: Option<&Target>,
        options: &RequestOptions,
    ) -> Result<Option<Extent>, ClientError> {
        self.own(schema.session);
        if let Some(target) = target {
            self.own(target.session);
        }
        if self.closed {
            return Err(self.gone());
        }
        check_features(schema, batch)?;
        let bags = batch.bags();
        let most = u64::from(schema.schema().max_batch);
        within(
            "bags of a batch",
            bags.into(),
            most,
            "bind the schema with a larger max_batch",
        )?;
        check_blocks(schema, batch)?;
        if let Some(target) = target {
            check_target(schema, bags, target)?;
        }
        let welcome = self.port.welcome();
        let rule = SplitRule {
            lanes: welcome.split.lanes.min(MAX_LANES),
            ..welcome.split
        };
        self.plan.split(batch, rule, schema);
        let mut longest = 0;
        for piece in &self.plan.pieces {
            let (ids, lengths) = (piece.ids, u64::from(piece.bags) * batch.features() as u64);
            within(
                "ids of a part",
                ids,
                welcome.max_ids.into(),
                "split the batch",
            )?;
            within(
                "bags times features of a part",
                lengths,
                welcome.max_lengths.into(),
                "split the batch",
            )?;
            longest = longest.max(piece.bags);
        }
        let slices = if options.slice_bags == 0 {
            1
        } else {
            longest.div_ceil(options.slice_bags)
        };
        let most = MAX_SLICES.min(welcome.completions);
        within(
            "slices of a part",
            slices.into(),
            most.into(),
            "raise slice_bags",
        )?;
        if !self.flight.pick(self.plan.pieces.len() as u32, slices) {
            return Err(ClientError::NoCredit);
        }
        self.take_source(batch)
    }

    fn take_source(&mut self, batch: &Shape) -> Result<Option<Extent>, ClientError> {
        if self.plan.fits_inline(batch) {
            return Ok(None);
        }
        let needed = self.plan.source_bytes(batch);
        let size = self.source.as_ref().map_or(0, |(_, bytes, _)| *bytes);
        within(
            "bytes of ids, lengths and weights",
            needed,
            size,
            "connect with more source_bytes (at most half of the dataplane's limits.max_region_bytes), or split the batch",
        )?;
        let taken = self
            .source
            .as_mut()
            .and_then(|(_, _, free)| free.take(needed));
        taken.map(Some).ok_or(ClientError::NoSourceSpace)
    }

    pub(crate) fn send(
        &mut self,
        op: Op,
        schema: &BoundSchema,
        batch: &impl Content,
        target: Target,
        options: &RequestOptions,
        source: Option<Extent>,
    ) -> Result<Ticket, Unsent> {
        let carriage = match (&self.source, source) {
            (Some((region, ..)), Some(range)) => {
                let window = self.port.memory(*region).expect("the source is registered");
                let part = window.part(range.offset as usize, range.len as usize);
                self.plan
                    .write_source(batch, part.expect("ranges lie inside the source"));
                Carriage::Region {
                    region: region.0,
                    offset: range.offset,
                }
            }
            _ => Carriage::Inline,
        };
        let split = self.plan.pieces.len() > 1;
        let mut header = Header::null(self.flight.next_serial());
        header.op = op;
        header.flags = if options.partials { FLAG_PARTIALS } else { 0 };
        header.attempt = options.attempt;
        header.schema = schema.id;
        // Parts must not differ, so they name a generation; one part leaves the choice to the server.
        header.generation = if split && options.generation == 0 {
            self.newest
        } else {
            options.generation
        };
        header.remaining_us = options.remaining_us();
        header.slice_bags = options.slice_bags;
        if op == Op::Lookup {
            header.target_region = target.region.0;
            header.target_base = target.extent.offset;
        }
        let ticket = self.flight.begin(Departure {
            target,
            source,
            attempt: options.attempt,
            slice_bags: options.slice_bags,
            ids_before: self.plan.ids_before(),
        });
        for part in 0..self.plan.pieces.len() {
            let piece = self.plan.pieces[part];
            let (lane, slot) = self.flight.add_part(ticket, piece.first_bag, piece.bags);
            let frame = self.plan.frame(batch, part, carriage, header);
            if let Err(error) = self.port.submit(lane, slot, frame) {
                return Err(self.unsent(ticket, error));
            }
        }
        Ok(ticket)
    }

    /// What a failed send leaves: the target, if the connection is gone with it.
    fn unsent(&mut self, ticket: Ticket, error: PortError) -> Unsent {
        let error = self.failed(error);
        let target = self.flight.take_one(ticket).map(|answer| answer.target);
        Unsent { error, target }
    }

    /// Sends a request for nothing: a round trip through the whole service. `lane` picks the worker;
    /// `None` the least loaded one. The answer's target is empty.
    ///
    /// # Errors
    /// [`ClientError::NoCredit`], [`ClientError::Closed`], [`ClientError::Port`].
    ///
    /// # Panics
    /// If the server has no such lane.
    pub fn submit_null(&mut self, lane: Option<u16>) -> Result<Ticket, ClientError> {
        if self.closed {
            return Err(self.gone());
        }
        let picked = match lane {
            Some(lane) => self.flight.pick_lane(lane),
            None => self.flight.pick(1, 1),
        };
        if !picked {
            return Err(ClientError::NoCredit);
        }
        let header = Header::null(self.flight.next_serial());
        let target = Target::none(self.id);
        let departure = Departure {
            target,
            source: None,
            attempt: 0,
            slice_bags: 0,
            ids_before: &[],
        };
        let ticket = self.flight.begin(departure);
        let (lane, slot) = self.flight.add_part(ticket, 0, 0);
        match self.port.submit(lane, slot, self.plan.null_frame(&header)) {
            Ok(()) => Ok(ticket),
            Err(error) => Err(self.unsent(ticket, error).error),
        }
    }

    /// Asks for an early end of a request. Its answer still comes, and only that frees the target:
    /// `Cancelled`, or whatever else it had become by then.
    ///
    /// # Errors
    /// [`ClientError::UnknownTicket`] after the answer was taken; [`ClientError::Closed`].
    pub fn cancel(&mut self, ticket: Ticket) -> Result<(), ClientError> {
        if !self.flight.knows(ticket) {
            return Err(ClientError::UnknownTicket);
        }
        let mut outcome = Ok(());
        for (lane, slot) in self.flight.open_parts(ticket) {
            outcome = outcome.and(self.port.cancel(lane, slot));
        }
        outcome.map_err(|error| self.failed(error))
    }

    /// The next answer, in the order in which requests ended, or `None` if none has.
    ///
    /// # Errors
    /// [`ClientError::Closed`] once the connection is gone and every answer was taken;
    /// [`ClientError::Port`].
    pub fn poll(&mut self) -> Result<Option<Answer>, ClientError> {
        if !self.flight.has_ended() {
            self.take_in()?;
        }
        match self.flight.take_any() {
            None if self.closed => Err(self.gone()),
            answer => Ok(answer),
        }
    }

    /// Calls `each` for every slice of the request that has been placed since the last call; for
    /// those of all parts once it has ended. Slices of one part come in order.
    ///
    /// # Errors
    /// [`ClientError::UnknownTicket`] after the answer was taken; [`ClientError::Port`].
    pub fn poll_slices(
        &mut self,
        ticket: Ticket,
        each: impl FnMut(Slice),
    ) -> Result<(), ClientError> {
        self.take_in()?;
        if !self.flight.knows(ticket) {
            return Err(ClientError::UnknownTicket);
        }
        self.flight.report_slices(ticket, each);
        Ok(())
    }

    /// Copies the vector of a bag of a placed slice, while the request goes on. The feature is one that
    /// is pooled.
    ///
    /// # Errors
    /// [`ClientError::UnknownTicket`] after the answer was taken (use [`Session::read_vector`]).
    ///
    /// # Panics
    /// If the bag is not in the slice, the feature is not pooled, or as [`Session::read_vector`].
    pub fn read_slice(
        &self,
        slice: &Slice,
        schema: &BoundSchema,
        feature: usize,
        bag: u32,
        out: &mut [f32],
    ) -> Result<(), ClientError> {
        let bags = slice.first_bag..slice.first_bag + slice.bags;
        assert!(bags.contains(&bag), "the bag lies in the slice");
        assert!(
            schema.is_pooled(feature),
            "a bag has a vector where it is pooled"
        );
        let target = self
            .flight
            .target(slice.ticket)
            .ok_or(ClientError::UnknownTicket)?;
        self.read_vector(target, schema, feature, bag, out);
        Ok(())
    }

    /// Takes in every status record that has come.
    pub(crate) fn take_in(&mut self) -> Result<(), ClientError> {
        if self.drain()? {
            self.end();
        }
        Ok(())
    }

    /// As [`Session::take_in`]; `true` where the connection is gone. What was placed before that
    /// counts, so all lanes are looked at all the same.
    fn drain(&mut self) -> Result<bool, ClientError> {
        let mut gone = false;
        for lane in 0..self.flight.lanes() {
            while self.flight.on_lane(lane) > 0 {
                let record = match self.port.poll(lane) {
                    Ok(Some(record)) => record,
                    Ok(None) => break,
                    Err(error) if ends(&error) => {
                        self.note_end(&error);
                        gone = true;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                };
                if record.newest != 0 {
                    // It may be an earlier one again.
                    self.newest = record.newest;
                }
                let source = self.flight.complete(lane, &record);
                let source =
                    source.map_err(|text| ClientError::Port(PortError::Protocol(text.into())))?;
                if let (Some(range), Some((.., free))) = (source, &mut self.source) {
                    free.give(range);
                }
            }
        }
        Ok(gone)
    }

    fn note_end(&mut self, error: &PortError) {
        if let PortError::Lost { what } = error {
            self.lost.get_or_insert(*what);
        }
    }

    /// What is said of a connection that has ended.
    pub(crate) fn gone(&self) -> ClientError {
        match self.lost {
            Some(what) => ClientError::Lost { what },
            None => ClientError::Closed,
        }
    }

    /// Notes that a call has met the connection's end.
    pub(crate) fn ended_by(&mut self, error: &ClientError) {
        if let ClientError::Lost { what } = error {
            self.lost.get_or_insert(*what);
        }
        // What was placed before that counts, and a record that makes no sense changes nothing about the end.
        let _ = self.drain();
        self.end();
    }

    /// Ends the connection from this side.
    pub(crate) fn close(&mut self) {
        self.port.close();
        // A record that makes no sense changes nothing about the end.
        let _ = self.drain();
        self.end();
    }

    /// Ends every request in flight: the dataplane is gone.
    fn end(&mut self) {
        self.closed = true;
        self.flight.disconnect();
    }

    /// The error for the caller. The connection's end ends every request.
    pub(crate) fn failed(&mut self, error: PortError) -> ClientError {
        self.note_end(&error);
        if ends(&error) && !self.closed {
            // A record that makes no sense changes nothing about the end.
            let _ = self.drain();
            self.end();
        }
        error.into()
    }
}

/// Whether it is the connection's end.
fn ends(error: &PortError) -> bool {
    matches!(error, PortError::Closed | PortError::Lost { .. })
}

fn check_blocks(schema: &BoundSchema, batch: &Shape) -> Result<(), ClientError> {
    let blocks = (0..schema.features()).filter(|&f| !schema.is_pooled(f));
    for f in blocks {
        within(
            "ids of a feature that is not pooled",
            (batch.start(f + 1) - batch.start(f)).into(),
            schema.schema().features[f].max_ids.into(),
            "bind the schema with a larger max_ids, or split the batch",
        )?;
    }
    Ok(())
}

fn check_target(schema: &BoundSchema, bags: u32, target: &Target) -> Result<(), ClientError> {
    let (offset, element) = (target.extent.offset, schema.element_bytes());
    if !offset.is_multiple_of(element) {
        return Err(ClientError::TargetMisaligned { offset, element });
    }
    let needed = schema.target_bytes(bags);
    if needed > target.bytes {
        return Err(ClientError::TargetTooSmall {
            needed,
            bytes: target.bytes,
        });
    }
    Ok(())
}

fn check_features(schema: &BoundSchema, batch: &Shape) -> Result<(), ClientError> {
    let (given, bound) = (batch.features(), schema.features());
    if given != bound {
        return Err(ClientError::FeatureCount { given, bound });
    }
    match (0..bound).find(|&f| batch.is_weighted(f) != schema.is_weighted(f)) {
        None => Ok(()),
        Some(f) => Err(ClientError::Weights {
            feature: schema.schema().features[f].name.clone(),
            wanted: schema.is_weighted(f),
        }),
    }
}
