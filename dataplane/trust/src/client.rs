//! The client's end of TLS.

use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use crate::files::{self, TrustError};
use crate::provider;

/// What a client has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Authorities that may have issued the server's certificate.
    pub ca: PathBuf,
    /// Its own certificate and key, if it has some.
    pub own: Option<(PathBuf, PathBuf)>,
}

/// A stream inside TLS. Where the other side has said why it hangs up, what fails next tells that ([`explain`](crate::explain)), be it a write;
/// what it had answered before can be read.
#[derive(Debug)]
pub struct Secured<S: Read + Write>(StreamOwned<ClientConnection, S>);

impl ClientFiles {
    /// Reads them.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn read(&self) -> Result<Arc<ClientConfig>, TrustError> {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider knows TLS 1.3")
            .with_root_certificates(files::authorities(&self.ca)?);
        let mut config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let (chain, secret) = (files::certificates(certificate)?, files::key(key)?);
                let with = builder.with_client_auth_cert(chain, secret);
                with.map_err(|error| files::of_pair(&error, certificate, key))?
            }
        };
        // Connections are kept, and each is to show what the files say when it is made.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Its key, which others should not be able to read.
    pub fn key(&self) -> Option<&Path> {
        self.own.as_ref().map(|(_, key)| &**key)
    }
}

/// Speaks TLS on a stream to the host of this name or address, without brackets, and waits until the host has proved who it is.
///
/// # Errors
/// The stream's, or TLS', which [`explain`](crate::explain) tells of. What the other side thinks of this side's certificate is known only when
/// something is read or written.
pub fn connect<S: Read + Write>(
    config: &Arc<ClientConfig>,
    host: &str,
    mut stream: S,
) -> io::Result<Secured<S>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::clone(config), name);
    let mut connection = connection.map_err(io::Error::other)?;
    while connection.is_handshaking() {
        let done = connection.complete_io(&mut stream);
        let (read, written) = done.map_err(|error| told(&mut connection, &mut stream, error))?;
        if (read, written) == (0, 0) {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Secured(StreamOwned::new(connection, stream)))
}

/// What the other side said before it hung up, if it said something; otherwise what this side met. A server of TLS 1.3 can refuse a
/// certificate after the client's handshake has ended; what the client writes then meets a closed connection, with the reason unread.
fn told(connection: &mut ClientConnection, stream: &mut impl Read, met: io::Error) -> io::Error {
    let hung_up = [
        ErrorKind::BrokenPipe,
        ErrorKind::ConnectionReset,
        ErrorKind::ConnectionAborted,
    ];
    if !hung_up.contains(&met.kind()) {
        return met;
    }
    // It ends: at the stream's end, or since the connection takes no more than its buffer holds.
    while let Ok(1..) = connection.read_tls(stream) {
        if let Err(error) = connection.process_new_packets() {
            return io::Error::new(ErrorKind::InvalidData, error);
        }
    }
    met
}

impl<S: Read + Write> Secured<S> {
    /// The stream below.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.0.sock
    }

    /// See [`told`].
    fn tell<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|error| told(&mut self.0.conn, &mut self.0.sock, error))
    }
}

impl<S: Read + Write> Read for Secured<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        // Before it reads it writes what it had not written, which may be wanted no more: what had come before that is still read.
        let read = self.0.read(bytes);
        self.tell(read)
            .or_else(|met| match self.0.conn.reader().read(bytes) {
                Ok(count @ 1..) => Ok(count),
                _ => Err(met),
            })
    }
}

impl<S: Read + Write> Write for Secured<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes);
        self.tell(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = self.0.flush();
        self.tell(flushed)
    }
}
