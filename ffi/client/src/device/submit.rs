//! Requests whose results are to lie in a GPU's memory: checked, sent, and queued for their stream.

use core::sync::atomic::Ordering;
use core::time::Duration;

use rowmill_cuda::{Current, DeviceMemory, Stream, StreamId};
use rowmill_port::ClientPort;
use rowmill_wire::SplitRule;
use rowmill_wire::limits::{MAX_LANES, MAX_SLICES};

use super::choose::{Direct, GpuRegion};
use super::requests::{Requests, Taken};
use super::spans::{self, Span};
use super::{Gpu, Inner, Open};
use crate::error::ClientError;
use crate::hub::{Ids, Place, RegionMemory};
use crate::options::RequestOptions;
use crate::schema::BoundSchema;
use crate::session::within;

/// How much longer than a request's own limit a stream waits, since the dataplane answers then.
const GRACE: Duration = Duration::from_millis(100);

/// Where a result is to lie.
#[derive(Clone, Copy, Debug)]
pub struct GpuOutput<'a> {
    /// In which memory.
    pub region: &'a GpuRegion,
    /// From which byte on.
    pub offset: u64,
    /// That nothing uses the range any more which streams were given to do before, as the caller knows. Otherwise a NIC can't write
    /// there before the stream is idle, since NICs don't wait for streams.
    pub is_free: bool,
}

impl<'a> From<(&'a GpuRegion, u64)> for GpuOutput<'a> {
    /// Of which it is not known that it is free.
    fn from((region, offset): (&'a GpuRegion, u64)) -> GpuOutput<'a> {
        GpuOutput {
            region,
            offset,
            is_free: false,
        }
    }
}

impl<P: ClientPort + Send + 'static> Gpu<P> {
    /// Sends a request whose result is to lie in a GPU's memory: for the stream, between what it has to do before and what it is given
    /// to do after. Returns when that is queued.
    ///
    /// The output must stay allocated until the stream has come to the result. It is not to be written to meanwhile, and what is read
    /// of it in other streams is not waited for. Where a NIC writes there and the stream has things to do, which may use it, the
    /// result is staged, or refused, as the region was registered; see [`GpuOutput::is_free`].
    ///
    /// How finely a result is sliced that is staged is chosen here. Where vectors don't lie in rows, one bag's behind the other's, it
    /// is copied in one piece, and so is what lies between the vectors.
    ///
    /// # Errors
    /// Those of [`Gpu::check`], of this stream's requests before. [`ClientError::ResultsHeld`] where too many results are on their way;
    /// [`ClientError::TooLarge`] where one takes more than all staging; [`ClientError::OutputInUse`];
    /// [`ClientError::TargetTooSmall`], [`ClientError::AddressMisaligned`]; those of [`Hub::submit`](crate::Hub::submit).
    /// [`ClientError::Cuda`] where the stream is being captured, or CUDA fails; the request may have been sent then, and the
    /// stream not wait for it.
    pub fn submit<'a, 'b>(
        &self,
        schema: &BoundSchema,
        ids: impl Into<Ids<'a>>,
        to: impl Into<GpuOutput<'b>>,
        stream: &Stream,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let inner = self.open_inner()?;
        inner.check(stream)?;
        let (ids, to) = (ids.into(), to.into());
        inner.hub.check(schema, ids)?;
        let needed = schema.target_bytes(ids.bags() as u32);
        let (memory, offset) = (to.region.memory(), to.offset);
        let (bytes, element) = (memory.len().saturating_sub(offset), schema.element_bytes());
        if needed > bytes {
            return Err(ClientError::TargetTooSmall { needed, bytes });
        }
        let address = memory.address() + offset;
        if !address.is_multiple_of(element) {
            return Err(ClientError::AddressMisaligned { address, element });
        }
        let current = inner.context.enter()?;
        current.check_not_capturing(stream)?;
        if let Some(direct) = to.region.direct {
            if to.is_free || current.is_idle(stream)? {
                return inner.send_direct(schema, ids, (direct, offset), stream, options);
            }
            if !to.region.may_stage() {
                return Err(ClientError::OutputInUse);
            }
            inner.staged_instead.fetch_add(1, Ordering::Relaxed);
        }
        let as_it_is = |_: &RegionMemory, _| ();
        inner.send_staged(schema, ids, (memory, offset), stream, options, as_it_is)
    }
}

impl<P: ClientPort + Send + 'static> Inner<P> {
    fn take(
        &self,
        requests: &mut Requests<P>,
        current: &Current<'_>,
        needed: u64,
        staged: bool,
    ) -> Result<Taken, ClientError> {
        let taken = requests.take(current, staged.then_some(needed))?;
        let held = requests.taken();
        let taken = taken.ok_or(ClientError::ResultsHeld { needed, held })?;
        if requests.dropped {
            let taken_in = self.hub.take_in();
            taken_in.inspect_err(|_| requests.give(taken.slot))?;
            requests.dropped = false;
        }
        Ok(taken)
    }

    /// Sends a request whose result is staged, once `prepare` was told the place in the staging, and queues its copies.
    pub(super) fn send_staged(
        &self,
        schema: &BoundSchema,
        ids: Ids<'_>,
        to: (&DeviceMemory, u64),
        stream: &Stream,
        options: &RequestOptions,
        prepare: impl FnOnce(&RegionMemory, u64),
    ) -> Result<(), ClientError> {
        let bags = ids.bags() as u32;
        let needed = schema.target_bytes(bags);
        let (most, advice) = (
            self.options.staging_bytes,
            "open the GPU with more staging_bytes",
        );
        within("bytes of a result that is staged", needed, most, advice)?;
        let current = self.context.enter()?;
        let mut open = self.lock();
        let open = open.as_mut().ok_or(ClientError::GpuClosed)?;
        let taken = self.take(&mut open.requests, &current, needed, true)?;
        let place = taken.place.expect("it is staged");
        prepare(open.requests.staging(), place);
        let place = Place::At(open.requests.region(), place);
        let welcome = self.hub.welcome();
        let lanes = welcome.split.lanes.min(MAX_LANES);
        let rule = SplitRule {
            lanes,
            ..welcome.split
        };
        let row = spans::row_bytes(schema);
        let (pieces, least) = (self.options.pieces, self.options.piece_bytes);
        let most = MAX_SLICES.min(welcome.completions);
        let slice_bags = spans::slice_bags(row, bags, rule, pieces, most, least);
        let options = RequestOptions {
            slice_bags,
            ..*options
        };
        self.send(
            open,
            (taken.slot, current.id(stream)?),
            schema,
            ids,
            place,
            &options,
            |out| {
                spans::spans(row, bags, needed, rule, slice_bags, out);
            },
        )?;
        open.requests.queue(&current, taken.slot, to, stream)
    }

    /// Sends a request whose result a NIC writes, and lets the stream wait for its end.
    fn send_direct(
        &self,
        schema: &BoundSchema,
        ids: Ids<'_>,
        (direct, offset): (Direct, u64),
        stream: &Stream,
        options: &RequestOptions,
    ) -> Result<(), ClientError> {
        let bags = ids.bags() as u32;
        let needed = schema.target_bytes(bags);
        let current = self.context.enter()?;
        let mut open = self.lock();
        let open = open.as_mut().ok_or(ClientError::GpuClosed)?;
        let taken = self.take(&mut open.requests, &current, needed, false)?;
        let place = Place::At(direct.region, offset);
        self.send(
            open,
            (taken.slot, current.id(stream)?),
            schema,
            ids,
            place,
            options,
            |out| {
                spans::spans(None, bags, needed, self.hub.welcome().split, 0, out);
            },
        )?;
        open.requests
            .queue_direct(&current, taken.slot, stream, direct.flush)
    }

    /// Sends a request in a slot for a stream, with the pieces that `fill` gives; the slot is given back where it can't be sent.
    #[expect(clippy::too_many_arguments, reason = "a request's parts")]
    fn send(
        &self,
        Open { timer, requests }: &mut Open<P>,
        (slot, stream): (usize, StreamId),
        schema: &BoundSchema,
        ids: Ids<'_>,
        place: Place,
        options: &RequestOptions,
        fill: impl FnOnce(&mut Vec<Span>),
    ) -> Result<(), ClientError> {
        let Some((watch, serial)) = requests.begin(slot, stream, fill) else {
            requests.give(slot);
            return Err(ClientError::GpuClosed);
        };
        match self.hub.submit_watched(schema, ids, place, options, watch) {
            Ok(pending) => requests.keep(slot, pending),
            Err(error) => {
                requests.give(slot);
                return Err(error);
            }
        }
        let own = options.remaining.map(|remaining| remaining + GRACE);
        let limit = own.unwrap_or(self.options.limit).min(self.options.limit);
        timer.limit(slot, serial, limit);
        Ok(())
    }
}
