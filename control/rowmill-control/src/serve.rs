//! Connections: who comes in, how long a silent one stays, and the end.
//!
//! One thread does all of it, and waits for nobody: what is decided is decided on the [`planning`] thread.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::StatusCode;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::{self, Deltas, Warnings};
use crate::config::Config;
use crate::deltas::{self, Log};
use crate::log;
use crate::places::{Place, Places};
use crate::planning::{self, Planning};
use crate::secure;
use crate::trust::{Sources, Trust, Visitor};

/// A head that takes longer to come ends the connection; so does one between two requests.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// Places of the Unix socket, which connections that come from elsewhere can't take.
const UNIX_PLACES: usize = 64;
/// What is under way at the end has so long to finish.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// After a connection couldn't be accepted, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Over TLS a connection lasts so long: whose certificate has expired meanwhile is not served for ever.
const SECURED: Duration = Duration::from_secs(3600);

/// Serves until SIGTERM or SIGINT. SIGHUP has certificates and tokens read anew.
///
/// # Errors
/// What keeps it from starting.
pub fn serve(config: &Config) -> anyhow::Result<()> {
    abort_on_panic();
    let sources = Sources::of(config);
    let of = match (config.tls.certificate.is_some(), &config.tokens_file) {
        (true, None) => "tls",
        (false, _) => "tokens_file",
        (true, Some(_)) => "tls, tokens_file",
    };
    let trust = Arc::new(sources.read().context(of)?);
    let (renew, trust) = watch::channel(trust);
    let warnings = sources.warnings(config.address().map_err(anyhow::Error::msg)?);
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let (stop, stopped) = watch::channel(false);
    listen_to_signals(sources, renew, stop)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime")?;
    runtime.block_on(async {
        // Before the state: of two that are started the second is refused by either, and leaves no trace.
        let listeners = Listeners::open(config)?;
        let log = Log::configured(&config.deltas)?;
        let (planning, thread) = planning::start(config)?;
        tracing::info!(
            "control plane {} of epoch {} listens on {}",
            planning.control,
            planning.epoch,
            listeners.told()
        );
        let ended = Arc::<AtomicBool>::default();
        if let Some(log) = &log {
            let checked = Arc::clone(log);
            // It ends with the process, however many there are.
            let thread = std::thread::Builder::new().name("check".into());
            let thread = thread.spawn(move || checked.check());
            thread.context("cannot start the thread that checks deltas")?;
            take_deltas(config, log, &stopped, &ended)?;
        }
        let warnings = Warnings {
            open: warnings.into(),
            state: config.state.as_path().into(),
            unkept: Arc::clone(&planning.unkept),
        };
        let visits = Visits {
            router: api::router(planning.clone(), Deltas(log), warnings),
            tcp: Places::new(config.limits.connections),
            unix: Places::new(UNIX_PLACES),
            trust,
            stopped,
        };
        let served = visits.serve(&listeners, &planning).await;
        ended.store(true, Ordering::Relaxed);
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("the planning thread has panicked"))?;
        served
    })
}

/// Starts to take deltas from where they appear by themselves.
fn take_deltas(
    config: &Config,
    log: &Arc<Log>,
    stopped: &watch::Receiver<bool>,
    ended: &Arc<AtomicBool>,
) -> anyhow::Result<()> {
    if let Some(directory) = config.deltas.watch.clone() {
        // It ends with the runtime.
        let watching = deltas::watch(Arc::clone(log), directory, stopped.clone());
        drop(tokio::spawn(watching));
    }
    if let Some(stream) = config.deltas.redis.clone() {
        let reader = deltas::Reader::new(Arc::clone(log), stream, Arc::clone(ended));
        // It ends with the process, wherever it waits.
        let thread = std::thread::Builder::new().name("deltas".into());
        let thread = thread.spawn(move || reader.run());
        thread.context("cannot start the thread that reads a stream")?;
    }
    Ok(())
}

/// Starts the thread that signals come to.
fn listen_to_signals(
    sources: Sources,
    renew: watch::Sender<Arc<Trust>>,
    stop: watch::Sender<bool>,
) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
    // Where a file may not grow, it would end the process. With a handler, the write fails.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).context("signals")?;
    let signals = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP]);
    let mut signals = signals.context("signals")?;
    let listen = move || {
        for signal in signals.forever() {
            if signal != SIGHUP {
                break;
            }
            match sources.read() {
                _ if sources.is_empty() => tracing::info!(
                    "SIGHUP: there are neither certificates nor tokens to be read anew"
                ),
                Ok(trust) => {
                    renew.send_replace(Arc::new(trust));
                    tracing::info!(
                        "SIGHUP: certificates and tokens were read anew; connections inside TLS end with the requests that they have"
                    );
                }
                Err(error) => {
                    tracing::error!("SIGHUP: {error}; what was read before is still in force")
                }
            }
        }
        // Where nobody listens any more the end has come by itself.
        let _ended = stop.send(true);
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread
        .spawn(listen)
        .context("cannot start the signal thread")?;
    Ok(())
}

/// Without the thread that decides nothing is decided, and everybody who asks would wait for it: so a panic of any thread ends the
/// process. Its dataplanes notice at once, and whoever supervises it starts another.
fn abort_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        log::say(&format!(
            "rowmill-control: thread {name}: {panic}; ending at once, so that nobody waits for a thread that is gone"
        ));
        log::flush();
        std::process::abort();
    }));
}

/// Where connections come in.
struct Listeners {
    tcp: Option<(TcpListener, SocketAddr)>,
    /// Whether that speaks TLS.
    secured: bool,
    unix: Option<(UnixListener, PathBuf)>,
}

impl Listeners {
    fn open(config: &Config) -> anyhow::Result<Listeners> {
        let tcp = config.address().map_err(anyhow::Error::msg)?;
        let tcp = tcp.map(|address| {
            let listener = std::net::TcpListener::bind(address).with_context(|| {
                format!("listen: cannot listen on {address} (is another rowmill-control running? choose another port, or \"off\")")
            })?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            anyhow::Ok((TcpListener::from_std(listener)?, address))
        });
        let unix = config.socket.as_ref().map(|path| {
            let listener = bind(path, config.socket_mode);
            let listener =
                listener.with_context(|| format!("socket: cannot listen on {}", path.display()))?;
            anyhow::Ok((listener, path.clone()))
        });
        Ok(Listeners {
            tcp: tcp.transpose()?,
            secured: config.tls.certificate.is_some(),
            unix: unix.transpose()?,
        })
    }

    fn told(&self) -> String {
        let scheme = if self.secured { "https" } else { "http" };
        let tcp = self
            .tcp
            .iter()
            .map(|(_, address)| format!("{scheme}://{address}"));
        let unix = self
            .unix
            .iter()
            .map(|(_, path)| format!("unix:{}", path.display()));
        tcp.chain(unix).collect::<Vec<_>>().join(" and ")
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.unix {
            // One that is gone needs no removing.
            let _gone = std::fs::remove_file(path);
        }
    }
}

/// A socket in the place of one that a killed process has left, which nobody answers on.
fn bind(path: &Path, mode: u32) -> anyhow::Result<UnixListener> {
    let left = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket());
    if left {
        match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => anyhow::bail!("another process answers there"),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                std::fs::remove_file(path)?;
            }
            Err(error) => anyhow::bail!(
                "a socket is there, and whether another process has it can't be told ({error}): give another path, or remove it if nobody has it"
            ),
        }
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// What each connection gets.
#[derive(Clone)]
struct Visits {
    router: Router,
    tcp: Places,
    unix: Places,
    trust: watch::Receiver<Arc<Trust>>,
    stopped: watch::Receiver<bool>,
}

impl Visits {
    async fn serve(&self, listeners: &Listeners, planning: &Planning) -> anyhow::Result<()> {
        let mut visits = JoinSet::new();
        let mut stopped = self.stopped.clone();
        loop {
            while visits.try_join_next().is_some() {}
            let stream = tokio::select! {
                come = self.next(listeners) => come,
                () = until(&mut stopped) => break,
            };
            let visit = self.clone();
            match stream {
                Ok(Stream::Tcp(stream, from)) => {
                    // Whether nothing has to be shown first.
                    let known = Visitor::over_tcp(None, self.trust.clone()).is_known();
                    let place = self.tcp.take(known && !listeners.secured);
                    visits.spawn(visit.run_tcp(stream, from, place))
                }
                Ok(Stream::Unix(stream)) => {
                    let place = self.unix.take(true);
                    let never = std::future::pending();
                    visits.spawn(visit.run(stream, Visitor::Anybody, place, never))
                }
                Err(error) => {
                    tracing::warn!("a connection can't be accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
        }
        tracing::info!("ending");
        planning.end();
        let ended = async { while visits.join_next().await.is_some() {} };
        if tokio::time::timeout(END_PATIENCE, ended).await.is_err() {
            tracing::warn!("some connections were cut off");
        }
        Ok(())
    }

    /// A connection over TCP, with the handshake of TLS before it where that is spoken.
    async fn run_tcp(mut self, stream: TcpStream, from: SocketAddr, place: Place) {
        let mut renewed = self.trust.clone();
        let trust = Arc::clone(&renewed.borrow_and_update());
        let Some(config) = trust.tls.clone() else {
            let visitor = Visitor::over_tcp(None, self.trust.clone());
            return self
                .run(stream, visitor, place, std::future::pending())
                .await;
        };
        let accepted = tokio::select! {
            accepted = tokio::time::timeout(secure::PATIENCE, secure::accept(stream, from, config)) => accepted,
            why = place.over() => return tracing::debug!("a handshake was ended: {why}"),
            () = until(&mut self.stopped) => return,
        };
        let Ok(Some((stream, certificate))) = accepted else {
            return tracing::debug!("{from} has not come in");
        };
        let visitor = Visitor::over_tcp(certificate, self.trust.clone());
        if visitor.is_known() {
            place.is_known();
        }
        let leave = async move {
            // Where nobody renews anything any more the end has come.
            let renewed = async {
                if renewed.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let _either = tokio::time::timeout(SECURED, renewed).await;
        };
        self.run(stream, visitor, place, leave).await;
    }

    /// A connection, from its first to its last request. When `leave` is over it ends with the request that it has.
    async fn run(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        visitor: Visitor,
        place: Place,
        leave: impl Future<Output = ()> + Send,
    ) {
        let place = Arc::new(place);
        let (router, busy) = (TowerToHyperService::new(self.router), Arc::clone(&place));
        let service = service_fn(move |mut request: hyper::Request<_>| {
            request.extensions_mut().insert(visitor.clone());
            let (answer, busy) = (router.call(request), Arc::clone(&busy));
            async move {
                busy.is_busy(true);
                let answer = answer.await;
                busy.is_busy(false);
                let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
                if answer
                    .as_ref()
                    .is_ok_and(|answer| !refused.contains(&answer.status()))
                {
                    busy.is_known();
                }
                answer
            }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_PATIENCE);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut leave = std::pin::pin!(async {
            tokio::select! {
                () = leave => {}
                () = until(&mut self.stopped) => {}
            }
        });
        let mut leaves = false;
        let ended = loop {
            tokio::select! {
                ended = connection.as_mut() => break ended,
                why = place.over() => return tracing::debug!("a connection was ended: {why}"),
                () = leave.as_mut(), if !leaves => {
                    leaves = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!("a connection has ended: {error}");
        }
    }
}

/// Waits for the end.
async fn until(stopped: &mut watch::Receiver<bool>) {
    // Where nobody can tell any more it has come, too.
    let _told = stopped.wait_for(|stopped| *stopped).await;
}

enum Stream {
    Tcp(TcpStream, SocketAddr),
    Unix(tokio::net::UnixStream),
}

impl Visits {
    /// The next connection for which there is a place.
    async fn next(&self, listeners: &Listeners) -> std::io::Result<Stream> {
        let tcp = async {
            match &listeners.tcp {
                Some((listener, _)) => {
                    self.tcp.room().await;
                    listener.accept().await
                }
                None => std::future::pending().await,
            }
        };
        let unix = async {
            match &listeners.unix {
                Some((listener, _)) => {
                    self.unix.room().await;
                    listener.accept().await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            come = tcp => come.map(|(stream, from)| Stream::Tcp(stream, from)),
            come = unix => come.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_panic_of_a_thread_ends_the_process() {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serve::tests::a_thread_panics", "--ignored"])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(6), "{said}");
    }

    #[test]
    #[ignore = "it ends its process, which the test above looks at"]
    fn a_thread_panics() {
        super::abort_on_panic();
        let thread = std::thread::Builder::new().name("planning".into());
        let thread = thread.spawn(|| panic!("on purpose")).unwrap();
        assert!(thread.join().is_err());
    }
}
