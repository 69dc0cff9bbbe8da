//! The control plane's side of the service: what the dataplane tells it, and what it does as it is told.
//!
//! Threads that are no workers. One waits for policies, one reports and sends samples, one does what the last policy says:
//! it changes shares by way of [`places`](crate::places), and tells workers what to sample and what stays by their mailboxes. Where deltas are
//! taken one more fetches those that the control plane keeps. None of them holds up another, or a worker. Nothing is kept over a restart: until a control plane is there the built-in policy serves, with the shares
//! that are configured.

mod apply;
mod deltas;
pub mod follow;
mod generations;
mod http;
mod link;
mod report;
mod samples;
mod stream;
mod view;

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rowmill_cache::Samples;
use rowmill_table::TableInfo;

use crate::cache_view::CacheView;
use crate::config::{Control, ControlAddress, Credentials};
use crate::deltas::Deltas;
use crate::generations::{Generations, View};
use crate::mailbox::Mailbox;
use crate::places::Places;

pub use generations::next;
pub use view::ControlView;

/// How often it is looked whether there is something to do.
const TICK: Duration = Duration::from_millis(50);

/// What the service has for its control plane.
pub struct Means {
    /// Whom to ask, and as whom.
    pub control: Control,
    /// The model.
    pub model: String,
    /// Its generations that are held, and what changes them.
    pub view: Arc<View>,
    /// See above.
    pub generations: Arc<Generations>,
    /// All tables of the one that is there at the start.
    pub tables: Vec<TableInfo>,
    /// Those that may be cached.
    pub cache: Arc<CacheView>,
    /// What changes shares, where tables are listed.
    pub places: Option<Arc<Places>>,
    /// The workers'.
    pub mailboxes: Vec<Arc<Mailbox>>,
    /// What each worker samples.
    pub samples: Vec<Arc<Samples>>,
    /// What applies deltas, where they are taken.
    pub deltas: Option<Arc<Deltas>>,
}

/// Who is asked, and as whom.
#[derive(Clone, Debug)]
struct Peer {
    address: ControlAddress,
    credentials: Credentials,
    name: String,
    /// Drawn at each start.
    instance: u128,
}

impl Peer {
    /// The path of one of the dataplane's own things.
    fn path(&self, what: &str) -> String {
        format!("/v1/dataplanes/{}/{what}", self.name)
    }
}

/// Starts the threads, for as long as the process lives.
///
/// # Errors
/// Where there can be none, or no random number is to be had.
pub fn start(means: Means) -> io::Result<Arc<ControlView>> {
    let Means {
        control,
        model,
        view: held,
        generations,
        tables,
        cache,
        places,
        mailboxes,
        samples,
        deltas,
    } = means;
    let mut instance = [0; 16];
    rustix::rand::getrandom(&mut instance[..], rustix::rand::GetRandomFlags::empty())?;
    let peer = Peer {
        name: control.name(),
        credentials: control.credentials(),
        address: control.address,
        instance: u128::from_ne_bytes(instance),
    };
    let view = Arc::new(ControlView::new(&peer.address.to_string(), &peer.name));
    let holder = generations::Holder {
        generations,
        view: held,
    };
    let told = deltas::Told::default();
    let fetcher = deltas.map(|deltas| deltas::Fetcher {
        peer: peer.clone(),
        model: model.clone(),
        holder: holder.clone(),
        deltas,
        told: told.clone(),
    });
    let teller = report::Teller {
        model,
        deltas: fetcher.as_ref().map(|_| told),
        holder: holder.clone(),
        workers: mailboxes.len() as u32,
        cache: Arc::clone(&cache),
    };
    let sampler = samples::Sampler::new(Arc::clone(&cache), samples);
    let applier = apply::Applier::new(tables, cache, places, mailboxes, holder);
    let begin = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let thread = thread::Builder::new().name(name.into());
        thread.spawn(work).map(drop)
    };
    let (at, seen) = (peer.clone(), Arc::clone(&view));
    begin(
        "rowmilld-policy",
        Box::new(move || link::follow(&at, &seen)),
    )?;
    let seen = Arc::clone(&view);
    begin(
        "rowmilld-apply",
        Box::new(move || apply::run(applier, &seen)),
    )?;
    if let Some(fetcher) = fetcher {
        let seen = Arc::clone(&view);
        begin("rowmilld-fetch", Box::new(move || fetcher.run(&seen)))?;
    }
    let seen = Arc::clone(&view);
    begin(
        "rowmilld-report",
        Box::new(move || link::tell(&peer, &teller, sampler, &seen)),
    )?;
    Ok(view)
}
