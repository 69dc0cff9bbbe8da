//! The server's end of TLS.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use crate::files::{self, TrustError};
use crate::identity::Identity;
use crate::provider;

/// What a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate.
    pub certificate: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// Authorities that may have issued clients' certificates; without any, nobody is asked for one.
    pub client_ca: Option<PathBuf>,
    /// Whether clients without a certificate come in, too: those who have tokens.
    pub takes_others: bool,
}

impl ServerFiles {
    /// Reads them.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn read(&self) -> Result<Arc<ServerConfig>, TrustError> {
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider knows TLS 1.3");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let authorities = Arc::new(files::authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(authorities, provider());
                let verifier = match self.takes_others {
                    true => verifier.allow_unauthenticated(),
                    false => verifier,
                };
                let verifier = verifier.build();
                let verifier = verifier.map_err(|error| {
                    TrustError::content(path, format!("it can't be used: {error}"))
                })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = (
            files::certificates(&self.certificate)?,
            files::key(&self.key)?,
        );
        let config = builder.with_single_cert(chain, key);
        let mut config =
            config.map_err(|error| files::of_pair(&error, &self.certificate, &self.key))?;
        // Who comes again shows its certificate again: it may have expired meanwhile.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Why nobody would trust its certificate now, whoever issued it; none where that is not for the time.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn out_of_time(&self) -> Result<Option<String>, TrustError> {
        let chain = files::certificates(&self.certificate)?;
        let Some(Ok(certificate)) = chain.first().map(webpki::EndEntityCert::try_from) else {
            return Ok(None);
        };
        // The certificate itself is looked at before whoever may have issued it: here nobody.
        let (now, usage) = (UnixTime::now(), webpki::KeyUsage::server_auth());
        let verified = certificate.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &[],
            &[],
            now,
            usage,
            None,
            None,
        );
        let why = match verified.err() {
            Some(webpki::Error::CertExpired { .. }) => "has expired",
            Some(webpki::Error::CertNotValidYet { .. }) => "is not valid yet",
            _ => return Ok(None),
        };
        Ok(Some(format!(
            "{} {why}: nobody trusts it now; put a new one in its place, and look at this host's clock",
            self.certificate.display()
        )))
    }

    /// Its key, which others should not be able to read.
    pub fn key(&self) -> &Path {
        &self.key
    }
}

/// Whom a client's certificate names, by the one URI `rowmill://ROLE/NAME` among its subject's alternative names. The handshake has found it
/// to be genuine.
///
/// # Errors
/// It names nobody, or several: a sentence.
pub fn identity_of(certificate: &CertificateDer<'_>) -> Result<Identity, String> {
    let certificate = webpki::EndEntityCert::try_from(certificate);
    let certificate =
        certificate.map_err(|error| format!("the client's certificate can't be read: {error}"))?;
    let mut uris = certificate
        .valid_uri_names()
        .filter(|uri| Identity::is_meant(uri));
    let (first, second) = (uris.next(), uris.next());
    match (first, second) {
        (None, _) => Err("the client's certificate says nobody's name: it needs one such as `rowmill://dataplane/NAME` or `rowmill://operator/NAME` among its subject alternative names, as a URI".into()),
        (Some(_), Some(_)) => Err("the client's certificate names several: it is to have one URI `rowmill://...`".into()),
        (Some(uri), None) => uri
            .parse()
            .map_err(|error| format!("the client's certificate: {error}")),
    }
}
