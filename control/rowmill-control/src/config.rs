//! The configuration file. `deploy/rowmill-control.toml` shows every option; an unknown key is an error.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use rowmill_table::MAX_DELTA_BYTES;
use rowmill_trust::ServerFiles;
use rustix::fs::{Access, access};
use rustix::net::SocketAddrUnix;
use serde::Deserialize;

use crate::trust::Sources;

/// What a state begins with (redb 4, `page_store/header.rs`).
const STATE_BEGINS: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// Everything that can be set.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where dataplanes and operators connect over TCP, or `"off"`.
    #[serde(default = "default_listen")]
    pub listen: String,
    /// A Unix socket for the same, if there is to be one.
    #[serde(default)]
    pub socket: Option<PathBuf>,
    /// Its permissions: whoever may write it can do all that there is to do.
    #[serde(default = "default_socket_mode")]
    pub socket_mode: u32,
    /// Whether `listen` may be beyond loopback without TLS, or with TLS and nobody asked who they are.
    #[serde(default)]
    pub insecure: bool,
    /// The file of the tokens that are known, if visitors over TCP are to have some.
    #[serde(default)]
    pub tokens_file: Option<PathBuf>,
    /// The file of what has to be known after a restart.
    pub state: PathBuf,
    /// Whether dataplanes that follow another control plane are taken over from it.
    #[serde(default)]
    pub take_over: bool,
    /// TLS, which `listen` then speaks and nothing else.
    #[serde(default)]
    pub tls: Tls,
    /// Bounds.
    #[serde(default)]
    pub limits: Limits,
    /// Deltas for dataplanes.
    #[serde(default)]
    pub deltas: Deltas,
    /// A recording of what is told.
    #[serde(default)]
    pub record: Record,
    /// Logging.
    #[serde(default)]
    pub log: Log,
}

/// TLS: on where there is a certificate.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The server's certificate, in PEM, and those between it and the authority's.
    pub certificate: Option<PathBuf>,
    /// The certificate's key, in PEM.
    pub key: Option<PathBuf>,
    /// The authorities that may have issued clients' certificates, in PEM.
    pub client_ca: Option<PathBuf>,
}

/// Bounds.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Samples a second that all dataplanes together are asked for.
    pub samples_per_s: f64,
    /// Dataplanes at a time.
    pub dataplanes: usize,
    /// Tables that are modelled.
    pub tables: usize,
    /// Connections at a time.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        let planner = rowmill_admission::Limits::default();
        Limits {
            samples_per_s: planner.samples_per_s,
            dataplanes: planner.dataplanes_max,
            tables: planner.tables_max,
            // Three a dataplane, and some for operators.
            connections: 3 * planner.dataplanes_max + 64,
        }
    }
}

/// Deltas for dataplanes: taken where there is a directory.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Deltas {
    /// Where they are kept.
    pub directory: Option<PathBuf>,
    /// Most bytes of one.
    pub max_bytes: u64,
    /// A directory from which they are taken when they appear there, if there is one.
    pub watch: Option<PathBuf>,
    /// A stream of Redis from which they are taken, if there is one.
    pub redis: Option<Stream>,
}

/// A stream of Redis.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Where Redis is: `redis://HOST:PORT` or `unix:///PATH`.
    #[serde(rename = "url")]
    pub redis: String,
    /// The stream's name.
    #[serde(default = "default_stream")]
    pub stream: String,
    /// The file with the password, if there has to be one.
    #[serde(default)]
    pub password_file: Option<PathBuf>,
}

fn default_stream() -> String {
    "rowmill:deltas".into()
}

impl Default for Deltas {
    fn default() -> Deltas {
        Deltas {
            directory: None,
            // A hundredth of the rows of 100 GiB.
            max_bytes: 1 << 30,
            watch: None,
            redis: None,
        }
    }
}

/// A recording of what is told.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Record {
    /// Its file, which is written anew at each start, if there is to be one.
    pub file: Option<PathBuf>,
    /// Its bytes at most: then it ends.
    pub bytes: u64,
}

impl Default for Record {
    fn default() -> Record {
        Record {
            file: None,
            bytes: 1 << 30,
        }
    }
}

/// Logging.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// What is logged.
    pub filter: String,
}

impl Default for Log {
    fn default() -> Log {
        Log {
            filter: "info".into(),
        }
    }
}

fn default_listen() -> String {
    "127.0.0.1:7403".into()
}

fn default_socket_mode() -> u32 {
    0o660
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// It can't be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is none.
    #[error("{} is no configuration", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong where.
        source: toml::de::Error,
    },
    /// A value can't work.
    #[error("{}: {what}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// Which, and what to write instead.
        what: String,
    },
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.into(),
            source,
        })?;
        let config: Config = toml::from_str(&text).map_err(|source| ConfigError::Toml {
            path: path.into(),
            source,
        })?;
        config.check().map_err(|what| ConfigError::Value {
            path: path.into(),
            what,
        })?;
        Ok(config)
    }

    /// Whether what it names is there, as far as can be told without beginning to serve.
    ///
    /// # Errors
    /// What is not, and what to do.
    pub fn check_files(&self) -> anyhow::Result<()> {
        let sources = Sources::of(self);
        sources.read().context("tls, tokens_file")?;
        if let Some(why) = sources.out_of_time() {
            bail!(why);
        }
        let state = self.state.parent().filter(|above| *above != Path::new(""));
        let directories = [
            (
                "state",
                Some(state.unwrap_or(Path::new("."))),
                Access::WRITE_OK | Access::EXEC_OK,
            ),
            (
                "deltas.watch",
                self.deltas.watch.as_deref(),
                Access::READ_OK | Access::EXEC_OK,
            ),
        ];
        for (option, directory, wanted) in directories {
            let Some(directory) = directory else { continue };
            access(directory, wanted).with_context(|| {
                let what = match wanted.contains(Access::WRITE_OK) {
                    true => "written",
                    false => "looked into",
                };
                format!(
                    "{option}: {} can't be {what}: make it, and give it to the user that this runs as",
                    directory.display()
                )
            })?;
        }
        self.check_places()
    }

    /// Whether what it makes itself has no other things in its place.
    fn check_places(&self) -> anyhow::Result<()> {
        if let Some(socket) = &self.socket {
            let at = socket.display();
            ensure!(
                SocketAddrUnix::new(socket.as_path()).is_ok(),
                "socket: {at} is longer than the kernel takes: give a shorter path"
            );
            let there = socket.symlink_metadata();
            ensure!(
                there.map_or(true, |there| there.file_type().is_socket()),
                "socket: {at} is there, and no socket: give another path, or move it"
            );
        }
        if let Some(directory) = &self.deltas.directory {
            ensure!(
                !directory.exists() || directory.is_dir(),
                "deltas.directory: {} is no directory: give another path, or move it",
                directory.display()
            );
        }
        let mut begins = [0; STATE_BEGINS.len()];
        let mut begun = || File::open(&self.state)?.read_exact(&mut begins);
        // What opens only when somebody writes is none.
        let is_whole = self.state.is_file() && begun().is_ok();
        ensure!(
            !is_whole || begins == STATE_BEGINS,
            "state: {0} begins as no state does: a start would rename it to {0}.damaged-1 and begin a new one: give another path, unless it is a \
             damaged state",
            self.state.display()
        );
        Ok(())
    }

    /// The address that is listened on, unless it is off.
    ///
    /// # Errors
    /// Where it is none, a sentence.
    pub fn address(&self) -> Result<Option<SocketAddr>, String> {
        if self.listen == "off" {
            return Ok(None);
        }
        let address = self.listen.parse();
        address.map(Some).map_err(|_| {
            format!(
                "listen: `{}` is no address: write IP:PORT, such as \"127.0.0.1:7403\", or \"off\"",
                self.listen
            )
        })
    }

    /// The server's certificate and what belongs to it, where `listen` speaks TLS.
    pub fn server_files(&self) -> Option<ServerFiles> {
        let tls = &self.tls;
        Some(ServerFiles {
            certificate: tls.certificate.clone()?,
            key: tls.key.clone()?,
            client_ca: tls.client_ca.clone(),
            takes_others: self.tokens_file.is_some(),
        })
    }

    fn check_trust(&self, address: Option<SocketAddr>) -> Result<(), String> {
        let tls = &self.tls;
        let is_on = tls.certificate.is_some();
        if is_on != tls.key.is_some() {
            return Err("tls: set both certificate and key, or neither".into());
        }
        if tls.client_ca.is_some() && !is_on {
            return Err("tls.client_ca is set without TLS, so that nobody could show a certificate: set tls.certificate and tls.key".into());
        }
        let Some(address) = address else {
            let unused = is_on || self.tokens_file.is_some();
            return match unused {
                true => Err("listen is \"off\", and tls and tokens_file are for it alone: whoever may write the socket needs neither".into()),
                false => Ok(()),
            };
        };
        if self.insecure {
            return Ok(());
        }
        if is_on && tls.client_ca.is_none() && self.tokens_file.is_none() {
            return Err("tls is set, and nobody would be asked who they are: set tls.client_ca, for clients with certificates, or tokens_file, for those with tokens (or insecure = true on a network that is trusted)".into());
        }
        if !is_on && !address.ip().is_loopback() {
            return Err(format!(
                "listen: {address} can be reached from other hosts, and without TLS whoever is in between can read and change everything: set tls.certificate and tls.key (`rowmill cert dev` makes some for development), listen on 127.0.0.1, or set insecure = true on a network that is trusted"
            ));
        }
        Ok(())
    }

    fn check_stream(&self, stream: &Stream) -> Result<(), String> {
        if self.deltas.directory.is_none() {
            return Err("deltas.redis is set, and what comes from there would be kept nowhere: set deltas.directory, too".into());
        }
        if stream.stream.is_empty() || stream.stream.contains(['\n', '\r']) {
            return Err("deltas.redis.stream: write the name of a stream".into());
        }
        if stream.redis.starts_with("unix:///") {
            return Ok(());
        }
        let url = &stream.redis;
        let host = url
            .strip_prefix("redis://")
            .map(|rest| rest.split('/').next().unwrap_or(rest));
        let (host, port) = host
            .and_then(|host| host.rsplit_once(':'))
            .unwrap_or_default();
        if host.is_empty() || host.contains('@') || port.parse::<u16>().is_err() {
            return Err(format!(
                "deltas.redis.url: `{url}`: write redis://HOST:PORT or unix:///PATH, and a password into password_file"
            ));
        }
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let is_here = bare == "localhost"
            || bare
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback());
        match is_here || self.insecure {
            true => Ok(()),
            false => Err(format!(
                "deltas.redis.url: {url} is beyond this host, and whoever is in between could change rows: no TLS is spoken to Redis; use one on this \
                 host (a replica, or a tunnel), or set insecure = true on a network that is trusted"
            )),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.state.as_os_str().is_empty() {
            return Err("state is empty: write the path of the file in which the control plane keeps what it knows".into());
        }
        let address = self.address()?;
        if address.is_none() && self.socket.is_none() {
            return Err(
                "neither listen nor socket is set, so that nobody could connect: set one".into(),
            );
        }
        self.check_trust(address)?;
        if self.socket_mode > 0o777 {
            return Err(format!(
                "socket_mode: {:#o} is no permission: write one from 0o600 to 0o777",
                self.socket_mode
            ));
        }
        let limits = &self.limits;
        if !(limits.samples_per_s > 0.0 && limits.samples_per_s <= 1e8) {
            return Err(format!(
                "limits.samples_per_s is {}: write a number up to 1e8",
                limits.samples_per_s
            ));
        }
        for (name, value, most) in [
            ("dataplanes", limits.dataplanes, 10_000),
            ("tables", limits.tables, 1_000_000),
            ("connections", limits.connections, 100_000),
        ] {
            if !(1..=most).contains(&value) {
                return Err(format!(
                    "limits.{name} is {value}: write a number from 1 to {most}"
                ));
            }
        }
        if !(1..=MAX_DELTA_BYTES).contains(&self.deltas.max_bytes) {
            return Err(format!(
                "deltas.max_bytes is {}: write a number from 1 to {MAX_DELTA_BYTES}",
                self.deltas.max_bytes
            ));
        }
        if self.deltas.watch.is_some() && self.deltas.directory.is_none() {
            return Err("deltas.watch is set, and what appears there would be kept nowhere: set deltas.directory, too".into());
        }
        if let (Some(watch), Some(directory)) = (&self.deltas.watch, &self.deltas.directory) {
            let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.into());
            let (watch, directory) = (real(watch), real(directory));
            if watch.starts_with(&directory) || directory.starts_with(&watch) {
                return Err(format!(
                    "deltas.watch is {}, and deltas.directory {}: watch a directory of its own, since what is kept must not be what appears",
                    watch.display(),
                    directory.display()
                ));
            }
        }
        if let Some(stream) = &self.deltas.redis {
            self.check_stream(stream)?;
        }
        if let Some(file) = &self.record.file {
            // Neither may be there yet.
            let real = |path: &Path| {
                let folder = path.parent().filter(|folder| *folder != Path::new(""));
                let folder = folder.unwrap_or(Path::new(".")).canonicalize().ok();
                let named = folder.zip(path.file_name());
                let named = named.map_or_else(|| path.into(), |(folder, name)| folder.join(name));
                named.canonicalize().unwrap_or(named)
            };
            if real(file) == real(&self.state) {
                return Err(format!(
                    "record.file is {}, and so is state, which a recording would be written over: name another file",
                    file.display()
                ));
            }
        }
        let filter = tracing_subscriber::EnvFilter::try_new(&self.log.filter);
        filter.map(|_| ()).map_err(|error| {
            format!(
                "log.filter: `{}` is no filter ({error}): write a level, such as \"info\"",
                self.log.filter
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_a_directory_of_its_own_that_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().display();
        for (directory, watch) in [("log", "log"), ("log", "log/in"), ("log/in", "log")] {
            let said = error(&format!(
                "state = 's'\n[deltas]\ndirectory = '{own}/{directory}'\nwatch = '{own}/{watch}'\n"
            ));
            assert!(said.contains("of its own"), "{said}");
        }
        let toml =
            format!("state = '{own}/s'\n[deltas]\ndirectory = '{own}/log'\nwatch = '{own}/in'\n");
        let config: Config = toml::from_str(&toml).unwrap();
        config.check().unwrap();
        let said = format!("{:#}", config.check_files().expect_err("it is not there"));
        assert!(
            said.contains("deltas.watch: ") && said.contains("can't be looked into"),
            "{said}"
        );
        std::fs::create_dir(folder.path().join("in")).unwrap();
        config.check_files().unwrap();
        for (option, path, wanted) in [
            ("socket", "long".repeat(30), "longer than the kernel takes"),
            ("socket", "log".into(), "no socket"),
            ("state", "log".into(), "begins as no state does"),
        ] {
            std::fs::write(folder.path().join("log"), "something else").unwrap();
            let state = match option {
                "state" => String::new(),
                _ => format!("state = '{own}/s'\n"),
            };
            let toml = format!("{option} = '{own}/{path}'\n{state}");
            let config: Config = toml::from_str(&toml).unwrap();
            let said = format!("{:#}", config.check_files().expect_err(wanted));
            assert!(said.contains(option) && said.contains(wanted), "{said}");
        }
        let said = format!("{:#}", config.check_files().expect_err("no directory"));
        assert!(said.contains("is no directory"), "{said}");
        let nowhere: Config = toml::from_str(&format!("state = '{own}/none/s'\n")).unwrap();
        let said = format!("{:#}", nowhere.check_files().expect_err("it is not there"));
        assert!(
            said.contains("state: ") && said.contains("can't be written"),
            "{said}"
        );
    }

    fn error(text: &str) -> String {
        let config: Result<Config, _> = toml::from_str(text);
        match config {
            Ok(config) => config.check().expect_err(text),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_file_that_is_shipped_has_every_option_with_its_default() {
        let text = include_str!("../../../deploy/rowmill-control.toml");
        let shown: Config = toml::from_str(text).unwrap();
        shown.check().unwrap();
        let default: Config = toml::from_str("state = '/var/lib/rowmill/control.redb'").unwrap();
        assert_eq!(shown, default);
        // Options without a default are shown as comments.
        let is_option = |line: &&str| {
            let name = line.split_once(" = ").map_or(" ", |(name, _)| name);
            name.chars().all(|c| c.is_ascii_lowercase() || c == '_')
        };
        let uncommented: String = text
            .lines()
            .map(|line| line.strip_prefix("# ").filter(is_option).unwrap_or(line))
            .filter(|line| !line.starts_with('#'))
            .map(|line| format!("{line}\n"))
            .collect();
        let all: Config = toml::from_str(&uncommented).unwrap();
        assert!(
            all.socket.is_some()
                && all.record.file.is_some()
                && all.tls.client_ca.is_some()
                && all.deltas.watch.is_some()
                && all.deltas.redis.is_some(),
            "{uncommented}"
        );
    }

    #[test]
    fn what_can_not_work_is_refused_with_what_to_write() {
        for (text, expected) in [
            ("", "missing field `state`"),
            ("state = ''", "state is empty"),
            ("state = 'a'\nlisten = 'localhost'", "write IP:PORT"),
            ("state = 'a'\nlisten = 'off'", "nobody could connect"),
            ("state = 'a'\nlisten = '0.0.0.0:7403'", "insecure = true"),
            ("state = 'a'\nlisten = '[::]:7403'", "insecure = true"),
            (
                "state = 'a'\nlisten = '0.0.0.0:1'\ntokens_file = 'b'",
                "set tls.certificate and tls.key",
            ),
            (
                "state = 'a'\ntls.certificate = 'b'",
                "both certificate and key",
            ),
            ("state = 'a'\ntls.client_ca = 'b'", "without TLS"),
            (
                "state = 'a'\ntls = { certificate = 'b', key = 'c' }",
                "nobody would be asked who they are",
            ),
            (
                "state = 'a'\nlisten = 'off'\nsocket = 'b'\ntokens_file = 'c'",
                "whoever may write the socket needs neither",
            ),
            ("state = 'a'\nsocket_mode = 0o7777", "no permission"),
            ("state = 'a'\nlimits.samples_per_s = -1.0", "up to 1e8"),
            ("state = 'a'\nlimits.connections = 0", "from 1 to"),
            ("state = 'a'\ndeltas.max_bytes = 0", "from 1 to"),
            ("state = 'a'\ndeltas.watch = 'b'", "set deltas.directory"),
            ("state = 'a'\nrecord.file = 'a'", "name another file"),
            ("state = 'a'\nrecord.file = './a'", "name another file"),
            (
                "state = 'a'\ndeltas.redis.url = 'redis://127.0.0.1:1'",
                "set deltas.directory",
            ),
            (
                "state = 'a'\n[deltas]\ndirectory = 'd'\nredis = { url = 'redis://:secret@127.0.0.1:1' }",
                "password_file",
            ),
            (
                "state = 'a'\n[deltas]\ndirectory = 'd'\nredis = { url = 'redis://10.0.0.1:6379' }",
                "insecure = true",
            ),
            (
                "state = 'a'\n[deltas]\ndirectory = 'd'\nredis = { url = '127.0.0.1' }",
                "redis://HOST:PORT",
            ),
            ("state = 'a'\nlog.filter = 'a=b=c'", "no filter"),
            ("state = 'a'\nlisten_ = 1", "unknown field"),
        ] {
            assert!(error(text).contains(expected), "{text}: {}", error(text));
        }
        let trusted: Config =
            toml::from_str("state = 'a'\nlisten = '0.0.0.0:1'\ninsecure = true").unwrap();
        trusted.check().unwrap();
        for asked in ["tokens_file = 'd'\n[tls]", "[tls]\nclient_ca = 'd'"] {
            let text =
                format!("state = 'a'\nlisten = '0.0.0.0:1'\n{asked}\ncertificate = 'b'\nkey = 'c'");
            let config: Config = toml::from_str(&text).unwrap();
            config.check().unwrap();
        }
        let unix: Config = toml::from_str("state = 'a'\nlisten = 'off'\nsocket = 'b'").unwrap();
        unix.check().unwrap();
    }
}
