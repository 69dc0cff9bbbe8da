//! Connections, and their requests that are in flight.

use core::time::Duration;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rowmill_client::{
    Backoff, Bell, Canceller, ClientError, Hub, HubOptions, Options, Pending, Place, Reply,
    RequestOptions, Wait,
};

use crate::abi::rowmill_options;
use crate::abi::rowmill_status::ROWMILL_TIMEOUT;
use crate::abi::rowmill_waiting::{ROWMILL_WAIT_BLOCK, ROWMILL_WAIT_POLL, ROWMILL_WAIT_SLEEP};
use crate::copies::Copies;
use crate::error::Error;
use crate::handles;
use crate::input;
use crate::memory::CallersMemory;
use crate::region::Region;
use crate::requests::Arrays;
use crate::schema::Schema;

/// A request whose answer was not taken.
struct Request {
    ticket: u64,
    schema: Arc<Schema>,
    copies: Option<Copies>,
    canceller: Canceller,
    /// None while a thread waits for it.
    pending: Option<Pending>,
}

/// The requests whose answers were not taken, and what tells an event loop of them.
struct Requests {
    /// In the order in which they were sent; as many as there are credits, so that looking through them is quick.
    open: Vec<Request>,
    /// Rung when answers come, once it was asked for.
    bell: Option<Bell>,
    /// What the bell has told, for its buffer.
    heard: Vec<u64>,
}

/// A connection.
pub(crate) struct Client {
    pub(crate) hub: Hub,
    how: Wait,
    requests: Mutex<Requests>,
    /// The caller's memory that is registered.
    registered: Mutex<Vec<CallersMemory>>,
}

/// An answer that was taken.
pub(crate) struct Taken {
    pub(crate) ticket: u64,
    pub(crate) schema: Arc<Schema>,
    pub(crate) reply: Reply,
    copies: Option<Copies>,
}

impl Taken {
    fn new(request: Request, reply: Reply) -> Taken {
        Taken {
            ticket: request.ticket,
            schema: request.schema,
            reply,
            copies: request.copies,
        }
    }

    /// Copies an answer to where it belongs, where it has to be.
    fn deliver(self) -> Result<Taken, Error> {
        if let (Some(copies), Ok(())) = (&self.copies, self.reply.outcome) {
            copies.copy(&self.schema.bound, &self.reply.lease)?;
        }
        Ok(self)
    }
}

/// What is looked up, where the answer goes, and how long there is to wait for a slot.
pub(crate) struct Submission<'a> {
    pub(crate) schema: Arc<Schema>,
    pub(crate) arrays: &'a Arrays,
    pub(crate) region: Arc<Region>,
    pub(crate) offset: u64,
    pub(crate) options: RequestOptions,
    pub(crate) wait: Duration,
}

/// The options of a caller who gives none.
const DEFAULTS: rowmill_options = rowmill_options {
    size: size_of::<rowmill_options>() as u32,
    credits: 0,
    name: core::ptr::null(),
    source_bytes: 0,
    reply_limit_us: 0,
    waiting: ROWMILL_WAIT_BLOCK as u32,
    reserved: 0,
};

/// The client's options for the caller's.
///
/// # Safety
/// The name is NULL or ends with a 0.
unsafe fn options(given: &rowmill_options) -> Result<(Options, Wait), Error> {
    input::unused(given.reserved, "options.reserved")?;
    let mut options = Options {
        name: "librowmill".into(),
        ..Options::default()
    };
    if !given.name.is_null() {
        // SAFETY: as this function's.
        options.name = unsafe { input::text(given.name, "options.name") }?.into();
    }
    if given.credits > 0 {
        let most = u16::MAX;
        options.credits = u16::try_from(given.credits).map_err(|_| {
            Error::invalid(format!(
                "options.credits is {}; at most {most} can be asked for",
                given.credits
            ))
        })?;
    }
    if given.source_bytes > 0 {
        options.source_bytes = usize::try_from(given.source_bytes).unwrap_or(usize::MAX);
    }
    if given.reply_limit_us > 0 {
        options.reply_limit = Duration::from_micros(given.reply_limit_us);
    }
    let how = match given.waiting {
        how if how == ROWMILL_WAIT_BLOCK as u32 => Wait::Block,
        how if how == ROWMILL_WAIT_POLL as u32 => Wait::Poll,
        how if how == ROWMILL_WAIT_SLEEP as u32 => {
            options.backoff = Backoff {
                spins: 0,
                yields: 0,
                ..Backoff::default()
            };
            Wait::Block
        }
        other => {
            return Err(Error::invalid(format!(
                "options.waiting is {other}, which is none; give a rowmill_waiting"
            )));
        }
    };
    Ok((options, how))
}

impl Client {
    /// Connects.
    ///
    /// # Safety
    /// The name in the options is NULL or ends with a 0.
    pub(crate) unsafe fn connect(
        url: &str,
        given: Option<&rowmill_options>,
    ) -> Result<Client, Error> {
        // SAFETY: as this function's.
        let (options, how) = unsafe { options(given.unwrap_or(&DEFAULTS)) }?;
        let hub = Hub::connect(url, options, HubOptions::default())?;
        let welcome = hub.welcome();
        let most = usize::from(welcome.split.lanes) * usize::from(welcome.credits);
        Ok(Client {
            hub,
            how,
            requests: Mutex::new(Requests {
                open: Vec::with_capacity(most),
                bell: None,
                heard: Vec::new(),
            }),
            registered: Mutex::default(),
        })
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        // It is changed in single steps.
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The caller's memory that is registered with it.
    pub(crate) fn registered(&self) -> MutexGuard<'_, Vec<CallersMemory>> {
        // It is changed in single steps.
        self.registered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request.
    pub(crate) fn submit(&self, what: &Submission<'_>) -> Result<u64, Error> {
        let ticket = handles::number()?;
        let Submission { schema, region, .. } = what;
        let view = what.arrays.view();
        if let Some(needed) = schema.answer_bytes(view.bags() as u32) {
            region.check(what.offset, needed)?;
        }
        let copies = Copies::of(region, what.offset, &schema.bound, what.arrays);
        let place = Place::At(region.region, what.offset);
        // Without the lock: others take answers meanwhile, which gives room.
        let pending = match what.wait {
            Duration::ZERO => self
                .hub
                .submit(&schema.bound, &view, place, &what.options)?,
            wait => {
                let wait = Some(wait);
                let options = &what.options;
                self.hub
                    .submit_within(&schema.bound, &view, place, options, self.how, wait)?
                    .ok_or(ClientError::NoCredit)?
            }
        };
        let mut requests = self.requests();
        requests.open.push(Request {
            ticket,
            schema: Arc::clone(schema),
            copies,
            canceller: pending.canceller()?,
            pending: Some(pending),
        });
        let newest = requests.open.len() - 1;
        requests.ring(newest)?;
        Ok(ticket)
    }

    /// The descriptor that can be read when answers have come.
    pub(crate) fn notify_fd(&self) -> Result<RawFd, Error> {
        let mut requests = self.requests();
        if requests.bell.is_none() {
            requests.bell = Some(self.hub.bell()?);
            requests.ring_again()?;
        }
        let bell = requests.bell.as_ref().expect("made above");
        Ok(bell.as_fd().as_raw_fd())
    }

    /// Takes an answer that has come, that of the oldest request that has one.
    pub(crate) fn poll(&self) -> Result<Option<Taken>, Error> {
        let mut requests = self.requests();
        // What comes from now on rings again.
        requests.hear();
        let open = &mut requests.open;
        let idle = open.iter().filter_map(|one| one.pending.as_ref());
        let Some(done) = self.hub.first_done(idle)? else {
            // Whoever waits by descriptor would wait for ever.
            return match open.is_empty() && self.hub.is_closed() {
                true => Err(ClientError::Closed.into()),
                false => Ok(None),
            };
        };
        let idle = open.iter_mut().enumerate();
        let mut idle = idle.filter(|(_, one)| one.pending.is_some());
        let (at, request) = idle.nth(done).expect("one of those that were asked for");
        let pending = request.pending.as_mut().expect("nobody waits for it");
        let Some(reply) = pending.try_take()? else {
            return Ok(None);
        };
        let taken = Taken::new(open.remove(at), reply);
        drop(requests);
        taken.deliver().map(Some)
    }

    /// Waits for an answer, at most for `limit`.
    pub(crate) fn wait(&self, ticket: u64, limit: Duration) -> Result<Taken, Error> {
        let mut pending = {
            let mut requests = self.requests();
            let request = requests.open.iter_mut().find(|one| one.ticket == ticket);
            let request = request.ok_or_else(|| unknown(ticket))?;
            request.pending.take().ok_or_else(|| {
                Error::invalid(format!(
                    "another thread waits for ticket {ticket}; let one thread wait for a request"
                ))
            })?
        };
        let outcome = pending.wait_for(self.how, limit);
        let mut requests = self.requests();
        let at = requests.open.iter().position(|one| one.ticket == ticket);
        let at = at.expect("who waits for a request removes it");
        if let Ok(Some(reply)) = outcome {
            let taken = Taken::new(requests.open.remove(at), reply);
            drop(requests);
            return taken.deliver();
        }
        requests.open[at].pending = Some(pending);
        outcome?;
        requests.ring(at)?;
        Err(Error::new(
            ROWMILL_TIMEOUT,
            format!(
                "the time was over before the answer of ticket {ticket} came; it is still in flight, and its target the \
                 dataplane's: wait again, or cancel it and wait"
            ),
        ))
    }

    /// Asks for a request's early end.
    pub(crate) fn cancel(&self, ticket: u64) -> Result<(), Error> {
        let requests = self.requests();
        let request = requests.open.iter().find(|one| one.ticket == ticket);
        let request = request.ok_or_else(|| unknown(ticket))?;
        Ok(request.canceller.cancel()?)
    }
}

impl Requests {
    /// Has the bell rung for a request, if there is one.
    fn ring(&mut self, at: usize) -> Result<(), Error> {
        let request = &self.open[at];
        let (Some(bell), Some(pending)) = (&self.bell, &request.pending) else {
            return Ok(());
        };
        match pending.ring(bell, request.ticket) {
            // It is owed for answers that threads have waited for in person.
            Err(ClientError::TooLarge { .. }) => self.ring_again(),
            outcome => Ok(outcome?),
        }
    }

    /// Has the bell rung for all requests anew, so that it is owed for these only.
    fn ring_again(&mut self) -> Result<(), Error> {
        self.hear();
        let Some(bell) = &self.bell else {
            return Ok(());
        };
        for request in &self.open {
            if let Some(pending) = &request.pending {
                pending.ring(bell, request.ticket)?;
            }
        }
        Ok(())
    }

    fn hear(&mut self) {
        if let Some(bell) = &self.bell {
            self.heard.clear();
            bell.heard(&mut self.heard);
        }
    }
}

fn unknown(ticket: u64) -> Error {
    Error::invalid(format!(
        "ticket {ticket} is of no request in flight of this client: its answer was taken, or it is another client's"
    ))
}
