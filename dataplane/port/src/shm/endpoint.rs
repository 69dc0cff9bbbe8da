//! `shm:` endpoints: their text, and taking hold of one.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, chmod, flock, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};

use crate::PortError;

/// The kernel's bound on the path of a socket: 108 bytes, the last of them zero.
const MAX_PATH: usize = 107;

/// Connections that may wait to be accepted; the kernel lets further ones wait for their turn.
const BACKLOG: i32 = 64;

/// The socket's path in an endpoint such as `shm:/run/rowmill/demo.sock`.
///
/// # Errors
/// [`PortError::Endpoint`] with the reason.
pub fn socket_path(endpoint: &str) -> Result<PathBuf, PortError> {
    let wrong = |reason: String| PortError::Endpoint {
        endpoint: endpoint.to_owned(),
        reason,
    };
    let path = endpoint.strip_prefix("shm:").ok_or_else(|| {
        wrong("a shared-memory endpoint looks like shm:/run/rowmill/NAME.sock".to_owned())
    })?;
    if !path.starts_with('/') || path.ends_with('/') {
        return Err(wrong(
            "the path after `shm:` has to begin with `/` and name a socket".to_owned(),
        ));
    }
    if path.len() > MAX_PATH {
        return Err(wrong(format!(
            "the path has {} bytes, and the kernel allows {MAX_PATH} for a socket; use a shorter one",
            path.len()
        )));
    }
    if path.contains('\0') {
        return Err(wrong("the path contains a zero byte".to_owned()));
    }
    Ok(PathBuf::from(path))
}

/// A stream socket for control messages.
pub(super) fn stream_socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A bound and listening endpoint. The socket's file is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) listener: OwnedFd,
    path: PathBuf,
    // Held locked as long as the binding lives. The file stays: removing it would let two processes
    // hold a lock of the same name.
    _lock: OwnedFd,
}

impl Binding {
    /// Takes hold of the endpoint: whoever has the lock beside the socket owns it, so a socket found
    /// there is a stale one and is replaced.
    pub(super) fn take(endpoint: &str, mode: u32) -> Result<Binding, PortError> {
        let path = socket_path(endpoint)?;
        let failed = |reason: String| PortError::Listen {
            endpoint: endpoint.to_owned(),
            reason,
        };
        let folder = path.parent().expect("an absolute path of a file");
        fs::create_dir_all(folder).map_err(|e| {
            failed(format!(
                "the folder {} is missing and can't be made: {e}; make it and let this user write there",
                folder.display()
            ))
        })?;
        let lock = lock(&path).map_err(&failed)?;
        clear(&path).map_err(&failed)?;
        let system = |what: &str, e: Errno| {
            let e = io::Error::from(e);
            failed(format!("{what}: {e}"))
        };
        let listener =
            stream_socket(SocketFlags::NONBLOCK).map_err(|e| system("making a socket", e))?;
        let address = SocketAddrUnix::new(&path).map_err(|e| system("the path", e))?;
        bind(&listener, &address).map_err(|e| system("binding the socket", e))?;
        let binding = Binding {
            listener,
            path,
            _lock: lock,
        };
        // Nobody can connect before `listen`, so there is no moment with other permissions.
        chmod(&binding.path, Mode::from_raw_mode(mode))
            .map_err(|e| system("setting the socket's permissions", e))?;
        listen(&binding.listener, BACKLOG).map_err(|e| system("listening", e))?;
        Ok(binding)
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // Where it is gone already, or the folder has become read-only, the next start clears it.
        let _ = fs::remove_file(&self.path);
    }
}

const IN_USE: &str = "endpoint already in use by a running dataplane; stop that one, or give this one \
                      another endpoint";

fn lock(path: &Path) -> Result<OwnedFd, String> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mode = Mode::RUSR | Mode::WUSR;
    let shown = Path::new(&name).display();
    let file = open(name.as_bytes(), flags, mode)
        .map_err(|e| format!("opening {shown}: {}", io::Error::from(e)))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(IN_USE.to_owned()),
        Err(e) => Err(format!("locking {shown}: {}", io::Error::from(e))),
    }
}

/// Removes a socket that nobody listens on; refuses anything else that is in the way.
fn clear(path: &Path) -> Result<(), String> {
    let kind = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(format!("{}: {e}", path.display())),
        Ok(found) => found.file_type(),
    };
    if !kind.is_socket() {
        return Err(format!(
            "{} exists and is no socket; remove it or use another path",
            path.display()
        ));
    }
    let system = |e: Errno| format!("{}: {}", path.display(), io::Error::from(e));
    let probe = stream_socket(SocketFlags::NONBLOCK).map_err(system)?;
    let address = SocketAddrUnix::new(path).map_err(system)?;
    match connect(&probe, &address) {
        // EAGAIN: somebody listens, with a full backlog. EPROTOTYPE: another kind of socket.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Err(IN_USE.to_owned()),
        Err(_) => fs::remove_file(path).map_err(|e| format!("removing a stale socket: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_read() {
        let path = socket_path("shm:/run/rowmill/demo.sock").unwrap();
        assert_eq!(path, Path::new("/run/rowmill/demo.sock"));
        let long = format!("shm:/{}", "x".repeat(MAX_PATH));
        for (text, reason) in [
            ("tcp://host:7400", "looks like shm:/run/rowmill"),
            ("shm:run/demo.sock", "begin with `/`"),
            ("shm:", "begin with `/`"),
            ("shm:/run/", "name a socket"),
            ("shm:/a\0b", "zero byte"),
            (&long, "108 bytes, and the kernel allows 107"),
        ] {
            let error = socket_path(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_endpoint_has_one_owner() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = format!("shm:{}/new/a.sock", folder.path().display());
        let first = Binding::take(&endpoint, 0o660).unwrap();
        let error = Binding::take(&endpoint, 0o660).unwrap_err().to_string();
        assert!(
            error.contains("already in use by a running dataplane"),
            "{error}"
        );
        drop(first);
        assert!(!socket_path(&endpoint).unwrap().exists());
        Binding::take(&endpoint, 0o660).unwrap();
    }

    #[test]
    fn stale_sockets_are_replaced_and_other_files_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.sock");
        let endpoint = format!("shm:{}", path.display());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(Binding::take(&endpoint, 0o600).unwrap());
        fs::write(&path, "precious").unwrap();
        let error = Binding::take(&endpoint, 0o600).unwrap_err().to_string();
        assert!(error.contains("is no socket"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        let _foreign = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = Binding::take(&endpoint, 0o600).unwrap_err().to_string();
        assert!(error.contains("already in use"), "{error}");
    }
}
