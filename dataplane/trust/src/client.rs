//! The client's end of TLS.

use std::io::{self, Read, Write};
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

/// A stream inside TLS.
pub type Secured<S> = StreamOwned<ClientConnection, S>;

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
/// something is read.
pub fn connect<S: Read + Write>(
    config: &Arc<ClientConfig>,
    host: &str,
    mut stream: S,
) -> io::Result<Secured<S>> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let connection = ClientConnection::new(Arc::clone(config), name);
    let mut connection = connection.map_err(io::Error::other)?;
    while connection.is_handshaking() {
        let (read, written) = connection.complete_io(&mut stream)?;
        if (read, written) == (0, 0) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(StreamOwned::new(connection, stream))
}
