//! The control plane that a dataplane listens to.

use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;
use std::path::PathBuf;

use rowmill_link::is_name;
use rustix::system::uname;
use serde::Deserialize;

use super::{Config, from_text};

/// Whom it asks for a policy, and what it is called there.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// `"http://HOST:PORT"` or `"unix:PATH"`, where rowmill-control is; or `"off"`: the built-in policy serves, with the shares that are
    /// configured.
    #[serde(deserialize_with = "from_text")]
    pub address: ControlAddress,
    /// What the dataplane is called there, each by a name of its own; this host's name unless set.
    pub name: Option<String>,
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
    },
    /// At a socket on this host.
    Unix(PathBuf),
}

impl fmt::Display for ControlAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlAddress::Off => f.write_str("off"),
            ControlAddress::Tcp { host, port } => write!(f, "http://{host}:{port}"),
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
        let tcp = text.strip_prefix("http://").and_then(|rest| {
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            let (host, port) = rest.rsplit_once(':')?;
            let is_host = !host.is_empty() && !host.contains(['/', '@', '?', '#', ' ']);
            let port = port.parse().ok().filter(|_| is_host)?;
            let host = host.into();
            Some(ControlAddress::Tcp { host, port })
        });
        tcp.ok_or_else(|| {
            format!(
                "`{text}` is no address of a control plane: write `http://HOST:PORT` such as `http://127.0.0.1:7403`, `unix:PATH`, or `off`"
            )
        })
    }
}

impl ControlAddress {
    /// Whether it is beyond this host, for all that its name says.
    fn is_beyond(&self) -> bool {
        let ControlAddress::Tcp { host, .. } = self else {
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
        (control.address.is_beyond() && !self.insecure).then(|| {
            let reason = format!(
                "is `{}`, beyond this host, and there is no TLS on this connection yet: whoever is in between could say what is cached; \
                 use an address of this host, or set `insecure = true` where the network is trusted",
                control.address
            );
            ("control.address", reason)
        })
    }
}
