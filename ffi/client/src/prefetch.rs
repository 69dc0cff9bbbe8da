//! Rows that may be wanted soon.

use rowmill_port::ClientPort;
use rowmill_wire::Op;

use crate::answer::Ticket;
use crate::batch::Batch;
use crate::error::ClientError;
use crate::memory::Target;
use crate::options::RequestOptions;
use crate::schema::BoundSchema;
use crate::session::Session;
use crate::shape::Content;
use crate::view::JaggedView;

impl<P: ClientPort> Session<P> {
    /// Says that rows may be wanted soon: those of a batch that are not in memory are fetched, as far as the dataplane has room for
    /// that. Nothing is answered but that the ids were taken, with an empty target; of `options` the deadline counts alone.
    ///
    /// # Errors
    /// As [`Session::submit`].
    pub fn prefetch(
        &mut self,
        schema: &BoundSchema,
        batch: &Batch,
        options: &RequestOptions,
    ) -> Result<Ticket, ClientError> {
        self.prefetch_content(schema, batch, options)
    }

    /// The same with ids that lie in the caller's memory, as [`Session::submit_view`] takes them.
    ///
    /// # Errors
    /// As [`Session::submit_view`].
    pub fn prefetch_view(
        &mut self,
        schema: &BoundSchema,
        view: &JaggedView<'_>,
        options: &RequestOptions,
    ) -> Result<Ticket, ClientError> {
        let mut taken = std::mem::take(&mut self.view);
        let sent = match taken.take_in(view, |f| f < schema.features() && schema.is_weighted(f)) {
            Ok(content) => self.prefetch_content(schema, &content, options),
            Err(error) => Err(error.into()),
        };
        self.view = taken;
        sent
    }

    fn prefetch_content(
        &mut self,
        schema: &BoundSchema,
        batch: &impl Content,
        options: &RequestOptions,
    ) -> Result<Ticket, ClientError> {
        let options = RequestOptions {
            slice_bags: 0,
            partials: false,
            ..*options
        };
        let source = self.prepare(schema, batch.shape(), None, &options)?;
        let target = Target::none(self.id);
        let sent = self.send(Op::Prefetch, schema, batch, target, &options, source);
        sent.map_err(|unsent| unsent.error)
    }
}
