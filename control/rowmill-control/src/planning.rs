//! The thread that decides, and its clock; [`deciding`](crate::deciding) is what it does.
//!
//! Others speak to it through a bounded queue: full means refused. The clock is the monotonic one; what the wall clock says, or how it
//! jumps, matters nowhere.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use rowmill_admission::{Event, GenerationRequest, Limits, ModelView, Planner, Refused, TURN_NS};
use rowmill_link::Policy;
use rowmill_state::{State, StateError};
use tokio::sync::{oneshot, watch};

use crate::config::Config;
use crate::deciding::{Deciding, Means, Recording, Unkept};

/// What may wait: four bodies of each of as many dataplanes as there are by default.
const QUEUE: usize = 1024;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// See there.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// It couldn't be kept.
    #[error(transparent)]
    State(#[from] StateError),
    /// There is too much to do.
    #[error("the control plane has too much to do: try again in a second")]
    Busy,
    /// The process ends.
    #[error("the control plane is ending")]
    Ending,
}

/// A look at the planner, at a moment.
type Look = Box<dyn FnOnce(&Planner, u64) + Send>;

enum Command {
    Tell(Box<Event>, oneshot::Sender<Result<(), Fault>>),
    Wish(
        String,
        GenerationRequest,
        oneshot::Sender<Result<ModelView, Fault>>,
    ),
    Look(Look),
    End,
}

/// What was published, by dataplane.
#[derive(Debug)]
struct Published {
    policies: Mutex<BTreeMap<String, Arc<Policy>>>,
    /// Counts changes of the policies; closed when the process ends.
    changes: watch::Receiver<u64>,
}

/// The way to the thread. Clones lead to the same one.
#[derive(Clone, Debug)]
pub struct Planning {
    commands: SyncSender<Command>,
    published: Arc<Published>,
    /// Why the state can't be kept at present, if so.
    pub unkept: Arc<Unkept>,
    /// Who publishes, and the epoch that was begun with.
    pub control: String,
    /// See above.
    pub epoch: u64,
}

/// The thread's own.
struct Thread {
    deciding: Deciding,
    began: Instant,
    published: Arc<Published>,
    changes: watch::Sender<u64>,
}

/// Starts the thread, with what the state knows. Returns it and the way to it; [`Planning::end`] ends it.
///
/// # Errors
/// Where the state can't be read or written, the recording can't be begun, or no thread be started.
pub fn start(config: &Config) -> anyhow::Result<(Planning, JoinHandle<()>)> {
    let (state, aside) = State::open_or_set_aside(&config.state)?;
    if let Some((path, why)) = &aside {
        tracing::error!(
            "{} was damaged ({why}): it lies in {} now, and a new one was begun; settings of tables and wishes for generations have to be made again",
            config.state.display(),
            path.display()
        );
    }
    let limits = Limits {
        samples_per_s: config.limits.samples_per_s,
        dataplanes_max: config.limits.dataplanes,
        tables_max: config.limits.tables,
    };
    let recording = config.record.file.as_deref();
    let recording = recording
        .map(|path| Recording::begin(path, config.record.bytes))
        .transpose()?;
    let means = Means {
        state,
        limits,
        take_over: config.take_over || aside.is_some(),
        recording,
    };
    let deciding = Deciding::begin(means, 0, drawn)?;
    let (control, epoch) = (deciding.control().to_owned(), deciding.planner().epoch());
    let unkept = deciding.unkept();
    let (changes, watched) = watch::channel(0);
    let published = Arc::new(Published {
        policies: Mutex::default(),
        changes: watched,
    });
    let thread = Thread {
        deciding,
        began: Instant::now(),
        published: Arc::clone(&published),
        changes,
    };
    let (commands, queue) = sync_channel(QUEUE);
    let builder = std::thread::Builder::new().name("planning".into());
    let joined = builder
        .spawn(move || thread.run(&queue))
        .context("cannot start the planning thread")?;
    Ok((
        Planning {
            commands,
            published,
            unkept,
            control,
            epoch,
        },
        joined,
    ))
}

/// 32 hexadecimal digits.
fn drawn() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .context("getrandom")?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

impl Planning {
    /// Tells an event, and waits until it is taken.
    ///
    /// # Errors
    /// [`Fault`], and then nothing has changed.
    pub async fn tell(&self, event: Event) -> Result<(), Fault> {
        let (done, wait) = oneshot::channel();
        self.send(Command::Tell(Box::new(event), done))?;
        wait.await.map_err(|_| Fault::Ending)?
    }

    /// Tells what an operator wants of a model's generations, and waits until it is kept. Returns what is known of the model then.
    ///
    /// # Errors
    /// [`Fault`], and then nothing has changed.
    pub async fn wish(
        &self,
        model: String,
        request: GenerationRequest,
    ) -> Result<ModelView, Fault> {
        let (done, wait) = oneshot::channel();
        self.send(Command::Wish(model, request, done))?;
        wait.await.map_err(|_| Fault::Ending)?
    }

    /// Has something read of the planner, with the time.
    ///
    /// # Errors
    /// [`Fault::Busy`] or [`Fault::Ending`].
    pub async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Planner, u64) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let (done, wait) = oneshot::channel();
        // Who asked may have gone meanwhile.
        let look = move |planner: &Planner, now: u64| _ = done.send(read(planner, now));
        self.send(Command::Look(Box::new(look)))?;
        wait.await.map_err(|_| Fault::Ending)
    }

    /// What a dataplane is to do, if it is known what.
    pub fn policy(&self, dataplane: &str) -> Option<Arc<Policy>> {
        self.published.policies().get(dataplane).cloned()
    }

    /// Tells when policies change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.published.changes.clone()
    }

    /// Ends the thread, when it has done what was told before.
    pub fn end(&self) {
        // One that is gone has ended.
        let _gone = self.commands.send(Command::End);
    }

    fn send(&self, command: Command) -> Result<(), Fault> {
        self.commands
            .try_send(command)
            .map_err(|error| match error {
                TrySendError::Full(_) => Fault::Busy,
                TrySendError::Disconnected(_) => Fault::Ending,
            })
    }
}

impl Published {
    fn policies(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Policy>>> {
        self.policies
            .lock()
            .expect("nobody panics with the policies in hand")
    }
}

impl Thread {
    fn run(mut self, queue: &Receiver<Command>) {
        let turn = Duration::from_nanos(TURN_NS);
        let mut next = self.began + turn;
        loop {
            let now = Instant::now();
            if now >= next {
                self.turn();
                // A turn that came late is not made up for.
                next = (next + turn).max(now);
            }
            match queue.recv_timeout(next.saturating_duration_since(Instant::now())) {
                // Who asked may have gone meanwhile.
                Ok(Command::Tell(event, done)) => {
                    _ = done.send(self.deciding.tell(self.now_ns(), *event))
                }
                Ok(Command::Wish(model, request, done)) => {
                    _ = done.send(self.deciding.wish(self.now_ns(), model, &request))
                }
                Ok(Command::Look(look)) => look(self.deciding.planner(), self.now_ns()),
                Ok(Command::End) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        self.deciding.end(self.now_ns());
    }

    fn now_ns(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn turn(&mut self) {
        if self.deciding.turn(self.now_ns()) {
            self.published
                .policies()
                .clone_from(self.deciding.published());
            self.changes.send_modify(|count| *count += 1);
        }
    }
}
