//! Two sides over a stream: each file and each certificate that can be wrong, and what is said of it.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use rowmill_trust::development::{Authority, Issued, Validity};
use rowmill_trust::{
    ClientFiles, Identity, ServerFiles, TrustError, connect, explain, identity_of,
};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

const HOUR: Duration = Duration::from_secs(3600);

fn valid() -> Validity {
    SystemTime::now() - HOUR..SystemTime::now() + HOUR
}

/// An authority's files.
struct Papers {
    folder: TempDir,
    authority: Authority,
}

impl Papers {
    fn new() -> Papers {
        let (folder, authority) = (
            tempfile::tempdir().unwrap(),
            Authority::new(&valid()).unwrap(),
        );
        fs::write(folder.path().join("ca"), authority.certificate()).unwrap();
        Papers { folder, authority }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn put(&self, name: &str, issued: &Issued) -> (PathBuf, PathBuf) {
        let paths = (self.path(name), self.path(&format!("{name}-key")));
        fs::write(&paths.0, &issued.certificate).unwrap();
        fs::write(&paths.1, &issued.key).unwrap();
        paths
    }

    fn server(&self, host: &str, validity: &Validity) -> ServerFiles {
        let issued = self.authority.server(&[host.into()], validity).unwrap();
        let (certificate, key) = self.put("server", &issued);
        ServerFiles {
            certificate,
            key,
            client_ca: Some(self.path("ca")),
            takes_others: false,
        }
    }

    fn client(&self, uri: &str, validity: &Validity) -> ClientFiles {
        let issued = self.authority.client_of(&[uri.into()], "test", validity);
        ClientFiles {
            ca: self.path("ca"),
            own: Some(self.put("client", &issued.unwrap())),
        }
    }
}

/// What a client meets that dials a host, and whom the server takes it for.
fn meet(
    server: Arc<ServerConfig>,
    client: &ClientFiles,
    host: &str,
) -> (io::Result<String>, Option<Result<Identity, String>>) {
    let (here, there) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        let mut stream = StreamOwned::new(ServerConnection::new(server).unwrap(), there);
        // What it meets is the client's to tell.
        let mut word = [0; 5];
        let read = stream.read_exact(&mut word);
        let _gone = read
            .and_then(|()| stream.write_all(b"there"))
            .and_then(|()| stream.flush());
        let certificates = stream.conn.peer_certificates();
        certificates.map(|chain| identity_of(&chain[0]))
    });
    let met = connect(&client.read().unwrap(), host, here).and_then(|mut stream| {
        stream.write_all(b"hello")?;
        stream.flush()?;
        let mut word = [0; 5];
        stream.read_exact(&mut word)?;
        Ok(String::from_utf8_lossy(&word).into_owned())
    });
    (met, serving.join().unwrap())
}

fn why(met: io::Result<String>) -> String {
    let error = met.unwrap_err();
    explain(&error).unwrap_or_else(|| panic!("{error:?}"))
}

#[test]
fn a_certificate_out_of_its_time_is_told_where_it_lies() {
    let papers = Papers::new();
    let now = SystemTime::now();
    let told = |validity| papers.server("localhost", &validity).out_of_time().unwrap();
    assert_eq!(told(now - HOUR..now + HOUR), None);
    let expired = told(now - 2 * HOUR..now - HOUR).unwrap();
    assert!(expired.contains("/server has expired"), "{expired}");
    let early = told(now + HOUR..now + 2 * HOUR).unwrap();
    assert!(early.contains("/server is not valid yet"), "{early}");
}

#[test]
fn both_sides_know_each_other() {
    let papers = Papers::new();
    for host in ["localhost", "127.0.0.1", "::1"] {
        let server = papers.server(host, &valid()).read().unwrap();
        let client = papers.client("rowmill://dataplane/dpu-1", &valid());
        let (met, identity) = meet(server, &client, host);
        assert_eq!(met.unwrap(), "there");
        assert_eq!(identity.unwrap().unwrap().to_string(), "dataplane dpu-1");
    }
    let open = ServerFiles {
        takes_others: true,
        ..papers.server("a", &valid())
    };
    let stranger = ClientFiles {
        ca: papers.path("ca"),
        own: None,
    };
    let (met, identity) = meet(open.read().unwrap(), &stranger, "a");
    assert_eq!((met.unwrap(), identity), ("there".into(), None));
}

#[test]
fn what_is_wrong_with_the_other_side_is_said() {
    let (papers, others) = (Papers::new(), Papers::new());
    let over = SystemTime::now() - HOUR..SystemTime::now() - HOUR / 2;
    let early = SystemTime::now() + HOUR..SystemTime::now() + 2 * HOUR;
    let uri = "rowmill://operator/o";
    for (validity, said) in [(&over, "has expired"), (&early, "not valid yet")] {
        let server = papers.server("a", validity).read().unwrap();
        let met = meet(server, &papers.client(uri, &valid()), "a").0;
        assert!(why(met).contains(said));
    }
    let server = || papers.server("a", &valid()).read().unwrap();
    let (ours, theirs) = (papers.client(uri, &valid()), others.client(uri, &valid()));
    assert!(why(meet(server(), &ours, "b").0).contains("is for another name"));
    assert!(why(meet(server(), &theirs, "a").0).contains("`ca` that is set here"));
    let mixed = ClientFiles {
        ca: papers.path("ca"),
        ..theirs
    };
    assert!(why(meet(server(), &mixed, "a").0).contains("by an authority that it knows"));
    let old = papers.client(uri, &over);
    assert!(why(meet(server(), &old, "a").0).contains("this side's certificate has expired"));
    let stranger = ClientFiles { own: None, ..ours };
    assert!(why(meet(server(), &stranger, "a").0).contains("wants a client certificate"));
}

#[test]
fn what_it_said_before_it_hung_up_is_told_by_a_write_that_fails() {
    let papers = Papers::new();
    let server = papers.server("a", &valid()).read().unwrap();
    let stranger = ClientFiles {
        ca: papers.path("ca"),
        own: None,
    };
    let (here, there) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        let mut stream = StreamOwned::new(ServerConnection::new(server).unwrap(), there);
        stream.read_exact(&mut [0]).unwrap_err();
    });
    let mut stream = connect(&stranger.read().unwrap(), "a", here).unwrap();
    // It has hung up.
    serving.join().unwrap();
    let met = stream.write_all(b"hello").and_then(|()| stream.flush());
    assert!(why(met.map(|()| String::new())).contains("wants a client certificate"));
}

#[test]
fn what_it_answered_before_it_hung_up_is_read() {
    let papers = Papers::new();
    let server = papers.server("a", &valid()).read().unwrap();
    let client = papers.client("rowmill://operator/o", &valid());
    let (here, there) = UnixStream::pair().unwrap();
    let serving = thread::spawn(move || {
        let mut stream = StreamOwned::new(ServerConnection::new(server).unwrap(), there);
        stream.read_exact(&mut [0; 5]).unwrap();
        stream.write_all(b"enough").unwrap();
        stream.flush().unwrap();
    });
    let mut stream = connect(&client.read().unwrap(), "a", here).unwrap();
    stream.write_all(b"hello").unwrap();
    stream.flush().unwrap();
    serving.join().unwrap();
    let met = stream.write_all(b"more").and_then(|()| stream.flush());
    met.unwrap_err();
    let mut word = [0; 6];
    stream.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"enough");
    stream.read_exact(&mut word).unwrap_err();
}

#[test]
fn who_speaks_no_tls_is_found_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut some = [0; 1024];
        assert!(stream.read(&mut some).unwrap() > 0);
        stream
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .unwrap();
    });
    let papers = Papers::new();
    let client = papers.client("rowmill://operator/o", &valid());
    let stream = std::net::TcpStream::connect(address).unwrap();
    let met = connect(&client.read().unwrap(), "127.0.0.1", stream);
    assert!(why(met.map(|_| String::new())).contains("does it speak plain HTTP?"));
    serving.join().unwrap();
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_name() {
    let papers = Papers::new();
    let files = papers.server("a", &valid());
    let key = fs::read(&files.key).unwrap();
    let read = || {
        files
            .read()
            .map(drop)
            .map_err(|error: TrustError| error.to_string())
    };
    read().unwrap();
    let other = papers.authority.server(&["a".into()], &valid()).unwrap();
    fs::write(&files.key, &other.key).unwrap();
    assert!(
        read()
            .unwrap_err()
            .contains("does not fit the certificate in")
    );
    for (text, said) in [
        ("", "no private key in PEM"),
        (&other.certificate, "no private key in PEM"),
        ("-----BEGIN PRIVATE KEY-----\n", "it is no PEM"),
        (
            "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "can't be used",
        ),
        (&format!("{0}{0}", other.key), "it has 2 keys"),
    ] {
        fs::write(&files.key, text).unwrap();
        let error = read().unwrap_err();
        assert!(
            error.contains(said) && error.contains("server-key"),
            "{error}"
        );
    }
    fs::write(&files.key, vec![b'a'; 5 << 20]).unwrap();
    assert!(read().unwrap_err().contains("is it another file?"));
    fs::write(&files.key, key).unwrap();
    read().unwrap();
    for text in [
        "",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        fs::write(papers.path("ca"), text).unwrap();
        assert!(read().unwrap_err().contains("/ca: it "));
    }
    fs::remove_file(papers.path("ca")).unwrap();
    assert!(read().unwrap_err().contains("cannot read"));
}
