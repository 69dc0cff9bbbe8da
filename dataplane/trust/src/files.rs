//! Reading certificates and keys.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Longest file that is read: a thousand certificates.
const FILE_BYTES: u64 = 4 << 20;

/// What is wrong with a file, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// It can't be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not what it is to be.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Key and certificate are of two pairs.
    #[error(
        "the key in {} does not fit the certificate in {}: give the two that were made together, the server's or client's own certificate first in its file",
        key.display(), certificate.display()
    )]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's.
        key: PathBuf,
    },
}

impl TrustError {
    pub(crate) fn content(path: &Path, what: impl Into<String>) -> TrustError {
        TrustError::Content {
            path: path.into(),
            what: what.into(),
        }
    }
}

/// A file's bytes.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, TrustError> {
    let failed = |error| TrustError::Read {
        path: path.into(),
        error,
    };
    let len = fs::metadata(path).map_err(failed)?.len();
    if len > FILE_BYTES {
        let what = format!("it has {len} bytes, more than {FILE_BYTES}: is it another file?");
        return Err(TrustError::content(path, what));
    }
    fs::read(path).map_err(failed)
}

/// What a file in PEM has of a kind, at least one.
fn pem<T: PemObject>(path: &Path, kind: &str) -> Result<Vec<T>, TrustError> {
    let bytes = read(path)?;
    let items: Result<Vec<T>, pem::Error> = T::pem_slice_iter(&bytes).collect();
    let items =
        items.map_err(|error| TrustError::content(path, format!("it is no PEM: {error}")))?;
    if items.is_empty() {
        let what = format!("it has no {kind} in PEM: it should begin with `-----BEGIN`");
        return Err(TrustError::content(path, what));
    }
    Ok(items)
}

/// A certificate, and those between it and the authority's.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    pem(path, "certificate")
}

pub(crate) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TrustError> {
    let mut keys = pem(path, "private key")?;
    match keys.len() {
        1 => Ok(keys.remove(0)),
        n => Err(TrustError::content(path, format!("it has {n} keys, not 1"))),
    }
}

/// Authorities.
pub(crate) fn authorities(path: &Path) -> Result<RootCertStore, TrustError> {
    let mut store = RootCertStore::empty();
    for certificate in certificates(path)? {
        let added = store.add(certificate);
        added
            .map_err(|error| TrustError::content(path, format!("it is no authority's: {error}")))?;
    }
    Ok(store)
}

/// What rustls says of a certificate and key.
pub(crate) fn of_pair(error: &rustls::Error, certificate: &Path, key: &Path) -> TrustError {
    match error {
        rustls::Error::InconsistentKeys(_) => TrustError::Pair {
            certificate: certificate.into(),
            key: key.into(),
        },
        rustls::Error::InvalidCertificate(why) => {
            TrustError::content(certificate, format!("it can't be used: {why}"))
        }
        other => TrustError::content(key, format!("it can't be used: {other}")),
    }
}

/// Whether everybody on this host may read a file.
pub fn is_open_to_all(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.permissions().mode() & 0o004 != 0)
}
