//! The control plane that a dataplane listens to.

use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rowmill_link::is_name;
use rowmill_trust::{ClientFiles, Token, TrustError, is_open_to_all};
use rustix::system::uname;
use serde::Deserialize;

use super::{Config, from_text};

/// Whom it asks for a policy, and what it is called there.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// `"https://HOST:PORT"`, `"http://HOST:PORT"` or `"unix:PATH"`, where rowmill-control is; or `"off"`: the built-in policy serves, with the shares that are
    /// configured.
    #[serde(deserialize_with = "from_text")]
    pub address: ControlAddress,
    /// The authorities that may have issued the control plane's certificate, in PEM; needed for `https://`.
    pub ca: Option<PathBuf>,
    /// The dataplane's own certificate, in PEM, in which a URI `rowmill://dataplane/NAME` has its name.
    pub certificate: Option<PathBuf>,
    /// The certificate's key, in PEM.
    pub key: Option<PathBuf>,
    /// The file of a token, for a control plane that takes tokens.
    pub token_file: Option<PathBuf>,
    /// What the dataplane is called there, each by a name of its own; this host's name unless set.
    pub name: Option<String>,
}

/// What is shown to the control plane, and what it has to show. All of it is files, which are read anew for each connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Those of TLS, where that is spoken.
    pub tls: Option<ClientFiles>,
    /// See [`Control::token_file`].
    pub token_file: Option<PathBuf>,
}

impl Credentials {
    /// Reads all of it, for what is wrong with it.
    ///
    /// # Errors
    /// [`TrustError`].
    pub fn check(&self) -> Result<(), TrustError> {
        self.tls.as_ref().map(ClientFiles::read).transpose()?;
        self.token_file.as_deref().map(Token::read).transpose()?;
        Ok(())
    }

    /// The first file of secrets that everybody on this host may read.
    pub fn open_to_all(&self) -> Option<&Path> {
        let key = self.tls.as_ref().and_then(ClientFiles::key);
        let mut secrets = key.into_iter().chain(self.token_file.as_deref());
        secrets.find(|path| is_open_to_all(path))
    }
}

/// Where the control plane is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ControlAddress {
    /// Nowhere.
    #[default]
    Off,
    /// At a host and port.
    Tcp {
        /// Its name or number, as it is written before the port.
        host: String,
        /// See above.
        port: u16,
        /// Whether TLS is spoken.
        secured: bool,
    },
    /// At a socket on this host.
    Unix(PathBuf),
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlAddress::Off => f.write_str("off"),
            ControlAddress::Tcp {
                host,
                port,
                secured,
            } => {
                let scheme = if *secured { "https" } else { "http" };
                write!(f, "{scheme}://{host}:{port}")
            }
            ControlAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for ControlAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<ControlAddress, String> {
        if text == "off" {
            return Ok(ControlAddress::Off);
        }
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(ControlAddress::Unix(path.into()));
        }
        let schemes = [("https://", true), ("http://", false)];
        let tcp = schemes.into_iter().find_map(|(scheme, secured)| {
            let rest = text.strip_prefix(scheme)?;
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            let (host, port) = rest.rsplit_once(':')?;
            let is_host = !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']);
            let port = port.parse().ok().filter(|_| is_host)?;
            let host = host.into();
            Some(ControlAddress::Tcp {
                host,
                port,
                secured,
            })
        });
        tcp.ok_or_else(|| {
            format!(
                "`{text}` is no address of a control plane: write `https://HOST:PORT`, `http://HOST:PORT` such as `http://127.0.0.1:7403`, `unix:PATH`, or `off`"
            )
        })
    }
}

impl ControlAddress {
    /// Whether TLS is spoken.
    fn is_secured(&self) -> bool {
        matches!(self, ControlAddress::Tcp { secured: true, .. })
    }

    /// Whether it is beyond this host, for all that its name says, and nothing hides what is said on the way.
    fn is_open(&self) -> bool {
        let ControlAddress::Tcp {
            host,
            secured: false,
            ..
        } = self
        else {
            return false;
        };
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let number = bare.parse::<IpAddr>();
        !(number.is_ok_and(|ip| ip.is_loopback()) || host == "localhost")
    }
}

impl Control {
    /// Whether there is to be one.
    pub fn is_on(&self) -> bool {
        self.address != ControlAddress::Off
    }

    /// What is shown, and what has to be.
    pub fn credentials(&self) -> Credentials {
        let ca = self.ca.clone().filter(|_| self.address.is_secured());
        Credentials {
            tls: ca.map(|ca| ClientFiles {
                ca,
                own: self.certificate.clone().zip(self.key.clone()),
            }),
            token_file: self.token_file.clone(),
        }
    }

    /// What of the files of TLS can't be.
    fn files_fault(&self) -> Option<(&'static str, String)> {
        let fault = |key, reason: &str| Some((key, reason.to_owned()));
        if self.address.is_secured() && self.ca.is_none() {
            return fault(
                "control.ca",
                "is not set, and https:// needs it: name the file of the authority that issued the control plane's certificate",
            );
        }
        if self.certificate.is_some() != self.key.is_some() {
            return fault(
                "control.key",
                "goes with control.certificate: set both, or neither",
            );
        }
        let is_set = self.ca.is_some() || self.certificate.is_some();
        if is_set && self.is_on() && !self.address.is_secured() {
            return fault(
                "control.address",
                "speaks no TLS, which control.ca and control.certificate are for: write `https://HOST:PORT`",
            );
        }
        None
    }

    /// What the dataplane is called.
    pub fn name(&self) -> String {
        let of_host = || uname().nodename().to_string_lossy().into_owned();
        self.name.clone().unwrap_or_else(of_host)
    }
}

impl Config {
    /// The first value of the control plane's that can't work, and why.
    pub(super) fn control_fault(&self) -> Option<(&'static str, String)> {
        let control = &self.control;
        if control.is_on() && !is_name(&control.name()) {
            let reason = format!(
                "is `{}`; write a name of at most {} letters, digits, `.`, `_` and `-`",
                control.name(),
                rowmill_link::NAME_MAX
            );
            return Some(("control.name", reason));
        }
        if let Some(fault) = control.files_fault() {
            return Some(fault);
        }
        (control.address.is_open() && !self.insecure).then(|| {
            let reason = format!(
                "is `{}`, beyond this host and without TLS: whoever is in between could say what is cached; write `https://HOST:PORT` and set \
                 control.ca, or set `insecure = true` where the network is trusted",
                control.address
            );
            ("control.address", reason)
        })
    }
}
