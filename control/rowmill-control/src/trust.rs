//! Who visitors are, and what is known of that: certificates and tokens, which can be read anew while the program runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use rowmill_trust::{Identity, ServerFiles, Tokens, TrustError, is_open_to_all};
use tokio::sync::watch;
use tokio_rustls::rustls::ServerConfig;

use crate::config::Config;

/// Where it is read from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    files: Option<ServerFiles>,
    tokens: Option<PathBuf>,
}

/// As it was read last.
#[derive(Debug)]
pub(crate) struct Trust {
    /// The server's end of TLS, where that is spoken.
    pub(crate) tls: Option<Arc<ServerConfig>>,
    /// Whether clients can show certificates.
    certificates: bool,
    tokens: Option<Tokens>,
}

impl Sources {
    pub(crate) fn of(config: &Config) -> Sources {
        Sources {
            files: config.server_files(),
            tokens: config.tokens_file.clone(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_none() && self.tokens.is_none()
    }

    pub(crate) fn read(&self) -> Result<Trust, TrustError> {
        let tls = self.files.as_ref().map(ServerFiles::read).transpose()?;
        let tokens = self.tokens.as_deref().map(Tokens::read).transpose()?;
        let files = self.files.as_ref();
        Ok(Trust {
            tls,
            certificates: files.is_some_and(|files| files.client_ca.is_some()),
            tokens,
        })
    }

    /// What whoever runs this should know, each a sentence.
    pub(crate) fn warnings(&self, address: Option<SocketAddr>) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(address) = address {
            let (beyond, asked) = (!address.ip().is_loopback(), self.asks());
            let what = match (&self.files, asked) {
                (Some(_), true) => None,
                (Some(_), false) => Some(
                    "whoever reaches it can read and change everything: there is neither tls.client_ca nor tokens_file",
                ),
                (None, true) if beyond => Some(
                    "there is no TLS, so that whoever is in between can read everything, and take tokens for use",
                ),
                (None, true) => None,
                (None, false) if beyond => Some(
                    "there is no TLS, and whoever reaches it can read and change everything (insecure = true)",
                ),
                (None, false) => Some(
                    "whoever is on this host can read and change everything: that is for development, or for hosts without other users",
                ),
            };
            warnings.extend(what.map(|what| format!("{address}: {what}")));
        }
        warnings.extend(self.out_of_time());
        let key = self.files.as_ref().map(ServerFiles::key);
        if let Some(key) = key.filter(|key| is_open_to_all(key)) {
            warnings.push(format!(
                "tls.key: everybody on this host may read {}: chmod 600, and have another certificate issued if somebody may have",
                key.display()
            ));
        }
        warnings
    }

    /// That nobody would trust the certificate now; what can't be read is told when it is.
    pub(crate) fn out_of_time(&self) -> Option<String> {
        let told = self.files.as_ref()?.out_of_time().ok()??;
        Some(format!("tls.certificate: {told}"))
    }

    /// Whether visitors over TCP are asked who they are.
    fn asks(&self) -> bool {
        let files = self.files.as_ref();
        self.tokens.is_some() || files.is_some_and(|files| files.client_ca.is_some())
    }
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) enum Visitor {
    /// Somebody who may do everything, by where they come in.
    Anybody,
    /// Somebody who has to say it.
    Asked {
        /// What a client's certificate says, if there was one: a name, or why not.
        certificate: Option<Result<Identity, String>>,
        /// What is known at each moment.
        trust: watch::Receiver<Arc<Trust>>,
    },
}

/// Why it is not known who somebody is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unknown(String);

impl Visitor {
    /// Whether nothing is left to be said, but for what somebody may do.
    pub(crate) fn is_known(&self) -> bool {
        match self {
            Visitor::Anybody => true,
            Visitor::Asked { certificate, .. } => matches!(certificate, Some(Ok(_))),
        }
    }

    /// Who comes in over TCP, with the certificate that was shown.
    pub(crate) fn over_tcp(
        certificate: Option<Result<Identity, String>>,
        trust: watch::Receiver<Arc<Trust>>,
    ) -> Visitor {
        let asks = {
            let trust = trust.borrow();
            trust.certificates || trust.tokens.is_some()
        };
        match asks {
            true => Visitor::Asked { certificate, trust },
            false => Visitor::Anybody,
        }
    }

    /// Who it is, by the token of a request where there is one, else by the connection's certificate; `None`: anybody.
    pub(crate) fn identity(
        &self,
        authorization: Option<&[u8]>,
    ) -> Result<Option<Identity>, Unknown> {
        let Visitor::Asked { certificate, trust } = self else {
            return Ok(None);
        };
        let trust = trust.borrow();
        match (authorization, &trust.tokens, certificate) {
            (Some(header), Some(tokens), _) => {
                let token = bearer(header).ok_or_else(|| {
                    Unknown("the header authorization is to be `Bearer TOKEN`".into())
                })?;
                let known = tokens.find(token).cloned();
                known.map(Some).ok_or_else(|| Unknown("the token is not known here: is its line in tokens_file, and was that read since (SIGHUP)?".into()))
            }
            (_, _, Some(Ok(identity))) => Ok(Some(identity.clone())),
            (_, _, Some(Err(why))) => Err(Unknown(why.clone())),
            (Some(_), None, None) => Err(Unknown(
                "tokens are not taken here: show a client certificate".into(),
            )),
            (None, tokens, None) => {
                let wanted = match (trust.certificates, tokens) {
                    (true, Some(_)) => "a client certificate or a token",
                    (true, None) => "a client certificate",
                    (false, _) => "a token",
                };
                Err(Unknown(format!("this wants {wanted}, and there was none")))
            }
        }
    }
}

/// The token of a header `Bearer TOKEN`.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_one_form() {
        assert_eq!(bearer(b"Bearer abc"), Some(&b"abc"[..]));
        assert_eq!(bearer(b"bearer  abc "), Some(&b"abc"[..]));
        for wrong in ["", "Bearer", "Bearer ", "Basic abc", "Bearerabc"] {
            assert_eq!(bearer(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_open_is_told() {
        let sources = |tls: bool, ca: bool, tokens: bool| Sources {
            files: tls.then(|| ServerFiles {
                certificate: "c".into(),
                key: "k".into(),
                client_ca: ca.then(|| "a".into()),
                takes_others: false,
            }),
            tokens: tokens.then(|| "t".into()),
        };
        let [here, beyond] =
            ["127.0.0.1:1", "10.0.0.1:1"].map(|address| Some(address.parse().unwrap()));
        for (sources, address, said) in [
            (sources(false, false, false), here, "for development"),
            (sources(false, false, false), beyond, "(insecure = true)"),
            (sources(false, false, true), beyond, "take tokens for use"),
            (
                sources(true, false, false),
                here,
                "neither tls.client_ca nor",
            ),
        ] {
            let warnings = sources.warnings(address);
            assert!(
                warnings.len() == 1 && warnings[0].contains(said),
                "{warnings:?}"
            );
        }
        for (sources, address) in [
            (sources(false, false, false), None),
            (sources(false, false, true), here),
            (sources(true, true, false), beyond),
            (sources(true, false, true), beyond),
        ] {
            assert_eq!(sources.warnings(address), [""; 0]);
        }
    }
}
