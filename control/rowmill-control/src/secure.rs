//! The handshake of TLS: what comes of a connection before its first request.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rowmill_trust::{Identity, identity_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

/// A handshake that takes longer ends the connection.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
/// Who is refused has so long to take what it is told.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of a plain request that are looked at, and of what is thrown away behind it.
const HEAD_BYTES: usize = 16 << 10;
/// Lines a second about handshakes that failed.
const LINES: u32 = 10;

/// A stream inside TLS, and whom the client's certificate names, where there was one.
pub(crate) type Secured = (TlsStream<TcpStream>, Option<Result<Identity, String>>);

/// Does the handshake. `None`: it has failed, and the other side was told.
pub(crate) async fn accept(
    stream: TcpStream,
    from: SocketAddr,
    config: Arc<ServerConfig>,
) -> Option<Secured> {
    match handshake(stream, config).await {
        Ok(secured) => Some(secured),
        // Those that look whether a port is open say nothing, and go.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => None,
        Err(error) => {
            told(&format!("a handshake with {from} has failed: {error}"));
            None
        }
    }
}

async fn handshake(stream: TcpStream, config: Arc<ServerConfig>) -> io::Result<Secured> {
    let mut first = [0];
    if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
        let mut stream = stream;
        refuse_plain(&mut stream).await?;
        return Err(io::Error::other("it spoke plain HTTP"));
    }
    let accepted = TlsAcceptor::from(config).accept(stream).into_fallible();
    match accepted.await {
        Ok(stream) => {
            let certificates = stream.get_ref().1.peer_certificates();
            let own = certificates.and_then(<[_]>::first);
            let identity = own.map(identity_of);
            Ok((stream, identity))
        }
        Err((error, mut stream)) => {
            // A connection that is closed while something lies unread is broken for the other side, which then would not see the alert.
            last_words(&mut stream).await;
            Err(error)
        }
    }
}

/// Answers who speaks plain HTTP, in plain HTTP.
async fn refuse_plain(stream: &mut TcpStream) -> io::Result<()> {
    const BODY: &str = "{\"error\":\"a plain HTTP request was sent to a port that speaks TLS: write https:// and say whose certificates are trusted (ca)\"}\n";
    let mut head = Vec::with_capacity(1024);
    while !head.windows(4).any(|four| four == b"\r\n\r\n") && head.len() < HEAD_BYTES {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{BODY}",
        BODY.len()
    );
    stream.write_all(answer.as_bytes()).await?;
    last_words(stream).await;
    Ok(())
}

/// Ends this side, and throws away what comes until the other side ends, too, for a moment.
async fn last_words(stream: &mut TcpStream) {
    let take = async {
        stream.shutdown().await?;
        let mut some = [0; 4096];
        let mut came = 0;
        while came < 64 * HEAD_BYTES {
            match stream.read(&mut some).await? {
                0 => break,
                bytes => came += bytes,
            }
        }
        io::Result::Ok(())
    };
    // Who is gone needs no words.
    let _gone = tokio::time::timeout(LAST_WORDS, take).await;
}

/// Logs a line about a visitor, unless there were many in this second.
fn told(line: &str) {
    static SINCE: Mutex<Option<(Instant, u32)>> = Mutex::new(None);
    let mut since = SINCE.lock().expect("a panic ends the process");
    let (began, lines) = since
        .filter(|(began, _)| began.elapsed() < Duration::from_secs(1))
        .unwrap_or((Instant::now(), 0));
    *since = Some((began, lines + 1));
    if lines < LINES {
        tracing::warn!("{line}");
    } else {
        tracing::debug!("{line}");
    }
}
