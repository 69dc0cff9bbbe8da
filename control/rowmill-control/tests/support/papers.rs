//! Certificates, keys and tokens in a folder, and a client that shows them.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses its part")]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rowmill_trust::development::{Authority, Issued};
use rowmill_trust::{ClientFiles, Secured, Token, connect, explain};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

/// From an hour ago to in an hour.
pub fn valid() -> Range<SystemTime> {
    SystemTime::now() - HOUR..SystemTime::now() + HOUR
}

/// Over for a minute.
pub fn expired() -> Range<SystemTime> {
    SystemTime::now() - HOUR..SystemTime::now() - HOUR / 60
}

/// A folder, and an authority whose certificate is in `ca.pem` there.
pub struct Papers {
    pub folder: TempDir,
    pub authority: Authority,
}

impl Papers {
    /// With a server's certificate for 127.0.0.1, too.
    pub fn new() -> Papers {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(&valid()).unwrap();
        let papers = Papers { folder, authority };
        papers.write("ca.pem", papers.authority.certificate());
        papers.server(&["127.0.0.1"], valid());
        papers
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, mode).unwrap();
    }

    fn pair(&self, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
        let [certificate, key] = [format!("{name}.pem"), format!("{name}-key.pem")];
        self.write(&certificate, &issued.certificate);
        self.write(&key, &issued.key);
        (self.path(&certificate), self.path(&key))
    }

    /// Puts a server's certificate in its place.
    pub fn server(&self, names: &[&str], validity: Range<SystemTime>) {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let issued = self.authority.server(&names, &validity).unwrap();
        self.pair("server", &issued);
    }

    /// What a client of these URIs has.
    pub fn client(&self, uris: &[&str], validity: Range<SystemTime>) -> ClientFiles {
        let uris: Vec<String> = uris.iter().map(|uri| uri.to_string()).collect();
        let issued = self.authority.client_of(&uris, "test", &validity).unwrap();
        let name = format!("client-{}", super::fresh());
        ClientFiles {
            ca: self.path("ca.pem"),
            own: Some(self.pair(&name, &issued)),
        }
    }

    /// What a client without a certificate has.
    pub fn stranger(&self) -> ClientFiles {
        ClientFiles {
            ca: self.path("ca.pem"),
            own: None,
        }
    }

    /// A configuration of the section, behind all others.
    pub fn toml(&self, client_ca: bool) -> String {
        let [certificate, key, ca] =
            ["server.pem", "server-key.pem", "ca.pem"].map(|name| self.path(name));
        let ca = client_ca.then(|| format!("client_ca = '{}'\n", ca.display()));
        format!(
            "[tls]\ncertificate = '{}'\nkey = '{}'\n{}",
            certificate.display(),
            key.display(),
            ca.unwrap_or_default()
        )
    }

    /// Draws tokens and has them in `tokens`.
    pub fn tokens(&self, uris: &[&str]) -> Vec<Token> {
        let tokens: Vec<Token> = uris.iter().map(|_| Token::draw().unwrap()).collect();
        let lines = tokens.iter().zip(uris);
        let lines = lines.map(|(token, uri)| token.line(&uri.parse().unwrap()) + "\n");
        self.write("tokens", &lines.collect::<String>());
        tokens
    }

    pub fn tokens_line(&self) -> String {
        format!("tokens_file = '{}'\n", self.path("tokens").display())
    }
}

/// A connection inside TLS.
pub struct Asking(Secured<TcpStream>);

/// Connects, as to the host.
pub fn dial_as(address: SocketAddr, host: &str, files: &ClientFiles) -> io::Result<Asking> {
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    connect(&files.read().unwrap(), host, stream).map(Asking)
}

pub fn dial(address: SocketAddr, files: &ClientFiles) -> io::Result<Asking> {
    dial_as(address, "127.0.0.1", files)
}

impl Asking {
    /// Asks on a connection that is kept. The status, and the body.
    pub fn ask(
        &mut self,
        method: &str,
        path: &str,
        body: &str,
        token: Option<&str>,
    ) -> io::Result<(u16, String)> {
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
        let token = token.unwrap_or_default();
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\n{token}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        self.0.write_all(request.as_bytes())?;
        self.0.flush()?;
        let mut bytes = Vec::new();
        loop {
            let mut some = [0; 4096];
            match self.0.read(&mut some)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => bytes.extend_from_slice(&some[..count]),
            }
            let text = String::from_utf8_lossy(&bytes);
            let Some((head, body)) = text.split_once("\r\n\r\n") else {
                continue;
            };
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                let status = head.split(' ').nth(1).unwrap().parse().unwrap();
                return Ok((status, body.to_owned()));
            }
        }
    }

    pub fn get(&mut self, path: &str) -> io::Result<(u16, String)> {
        self.ask("GET", path, "", None)
    }
}

/// Why one is not trusted, or does not trust.
pub fn why(asked: io::Result<(u16, String)>) -> String {
    let error = asked.unwrap_err();
    explain(&error).unwrap_or_else(|| panic!("{error:?}"))
}

/// Asks once.
pub fn get(address: SocketAddr, files: &ClientFiles, path: &str) -> io::Result<(u16, String)> {
    dial(address, files)?.get(path)
}

/// Replaces a file's mode.
pub fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(path, mode).unwrap();
}
