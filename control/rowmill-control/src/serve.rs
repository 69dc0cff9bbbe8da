//! Connections: who comes in, how long a silent one stays, and the end.
//!
//! One thread does all of it, and waits for nobody: what is decided is decided on the [`planning`] thread.

use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api;
use crate::config::Config;
use crate::log;
use crate::places::{Place, Places};
use crate::planning::{self, Planning};

/// A head that takes longer to come ends the connection; so does one between two requests.
const HEAD_PATIENCE: Duration = Duration::from_secs(10);
/// Places of the Unix socket, which connections that come from elsewhere can't take.
const UNIX_PLACES: usize = 64;
/// What is under way at the end has so long to finish.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// After a connection couldn't be accepted, for want of descriptors for example.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// What keeps it from starting.
pub fn serve(config: &Config) -> anyhow::Result<()> {
    abort_on_panic();
    let (stop, stopped) = watch::channel(false);
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
    ])
    .context("signals")?;
    let listen = move || {
        signals.forever().next();
        // Where nobody listens any more the end has come by itself.
        let _ended = stop.send(true);
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(listen)
        .context("cannot start the signal thread")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime")?;
    runtime.block_on(async {
        // Before the state: of two that are started the second is refused by either, and leaves no trace.
        let listeners = Listeners::open(config)?;
        let (planning, thread) = planning::start(config)?;
        tracing::info!(
            "control plane {} of epoch {} listens on {}",
            planning.control,
            planning.epoch,
            listeners.told()
        );
        let visits = Visits {
            router: api::router(planning.clone()),
            tcp: Places::new(config.limits.connections),
            unix: Places::new(UNIX_PLACES),
            stopped,
        };
        let served = visits.serve(&listeners, &planning).await;
        thread
            .join()
            .map_err(|_| anyhow::anyhow!("the planning thread has panicked"))?;
        served
    })
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
            unix: unix.transpose()?,
        })
    }

    fn told(&self) -> String {
        let tcp = self
            .tcp
            .iter()
            .map(|(_, address)| format!("http://{address}"));
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
        anyhow::ensure!(
            std::os::unix::net::UnixStream::connect(path).is_err(),
            "another process answers there"
        );
        std::fs::remove_file(path)?;
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
                Ok(Stream::Tcp(stream)) => {
                    let place = self.tcp.take();
                    visits.spawn(visit.run(stream, place))
                }
                Ok(Stream::Unix(stream)) => {
                    let place = self.unix.take();
                    visits.spawn(visit.run(stream, place))
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

    /// A connection, from its first to its last request.
    async fn run(
        mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        place: Place,
    ) {
        let place = Arc::new(place);
        let (router, busy) = (TowerToHyperService::new(self.router), Arc::clone(&place));
        let service = service_fn(move |request| {
            let (answer, busy) = (router.call(request), Arc::clone(&busy));
            async move {
                busy.is_busy(true);
                let answer = answer.await;
                busy.is_busy(false);
                answer
            }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_PATIENCE);
        let connection = builder.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            why = place.over() => return tracing::debug!("a connection was ended: {why}"),
            () = until(&mut self.stopped) => {
                connection.as_mut().graceful_shutdown();
                connection.await
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
    Tcp(tokio::net::TcpStream),
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
            come = tcp => come.map(|(stream, _)| Stream::Tcp(stream)),
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
