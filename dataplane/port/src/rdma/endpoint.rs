//! `rdma://` endpoints: their text, and the addresses behind it.

use std::net::{SocketAddr, ToSocketAddrs};

use crate::PortError;

/// Host and port of an endpoint such as `rdma://dpu1:7400` or `rdma://[fd00::1]:7400`.
///
/// # Errors
/// [`PortError::Endpoint`] with the reason.
pub fn host_and_port(endpoint: &str) -> Result<(String, u16), PortError> {
    let wrong = |reason: &str| PortError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason: reason.to_owned(),
    };
    let rest = endpoint
        .strip_prefix("rdma://")
        .ok_or_else(|| wrong("an RDMA endpoint looks like rdma://host:7400"))?;
    let (host, port) = rest
        .rsplit_once(':')
        .ok_or_else(|| wrong("a port is missing, as in rdma://host:7400"))?;
    let port = port
        .parse::<u16>()
        .map_err(|_| wrong("the port is no number from 0 to 65535"))?;
    let bare = match host.strip_prefix('[').map(|rest| rest.strip_suffix(']')) {
        Some(Some(inside)) => inside,
        Some(None) => return Err(wrong("a `[` is not closed")),
        None if host.contains(':') => {
            return Err(wrong(
                "an IPv6 address stands in brackets, as in rdma://[::1]:7400",
            ));
        }
        None => host,
    };
    let odd = |c: char| c.is_whitespace() || matches!(c, '/' | '@' | '?' | '#' | '\0');
    if bare.is_empty() || bare.contains(odd) {
        return Err(wrong("the host has to be a name or an address"));
    }
    Ok((bare.to_owned(), port))
}

/// The addresses of an endpoint, IPv4 before IPv6.
///
/// # Errors
/// [`PortError::Endpoint`], [`PortError::Connect`] where the name leads nowhere.
pub(super) fn addresses(endpoint: &str) -> Result<Vec<SocketAddr>, PortError> {
    let (host, port) = host_and_port(endpoint)?;
    let failed = |source| PortError::Connect {
        endpoint: endpoint.to_owned(),
        source,
    };
    let mut all: Vec<SocketAddr> = (host.as_str(), port)
        .to_socket_addrs()
        .map_err(failed)?
        .collect();
    all.sort_by_key(SocketAddr::is_ipv6);
    all.dedup();
    if all.is_empty() {
        return Err(failed(std::io::ErrorKind::NotFound.into()));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read() {
        let read = |text| host_and_port(text).expect("an endpoint");
        assert_eq!(read("rdma://dpu1:7400"), ("dpu1".to_owned(), 7400));
        assert_eq!(read("rdma://10.0.0.1:0"), ("10.0.0.1".to_owned(), 0));
        assert_eq!(read("rdma://[fd00::1]:7400"), ("fd00::1".to_owned(), 7400));
        for (text, reason) in [
            ("shm:/run/a.sock", "looks like rdma://host:7400"),
            ("rdma:host:7400", "looks like rdma://host:7400"),
            ("rdma://host", "a port is missing"),
            ("rdma://host:", "no number"),
            ("rdma://host:70000", "no number"),
            ("rdma://:7400", "a name or an address"),
            ("rdma://a b:7400", "a name or an address"),
            ("rdma://fd00::1:7400", "in brackets"),
            ("rdma://[fd00::1:7400", "not closed"),
            ("rdma://host:7400/x", "no number"),
        ] {
            let error = host_and_port(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_are_found() {
        let all = addresses("rdma://127.0.0.1:7400").expect("an address");
        assert_eq!(all, ["127.0.0.1:7400".parse::<SocketAddr>().expect("one")]);
        assert!(matches!(
            addresses("rdma://no.such.host.invalid:7400"),
            Err(PortError::Connect { .. })
        ));
    }
}
