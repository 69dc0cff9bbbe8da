//! Visitors of the socket and of the admin pages that say nothing, or nonsense.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fastrand::Rng;
use rowmill_arena::{HugePages, sealed_memfd};
use rowmill_port::shm::socket_path;
use rowmill_wire::Status;
use rowmill_wire::control::{Control, Rights};
use rowmill_wire::limits::MAX_CONTROL_BYTES;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with, sockopt,
};

use super::Verdict;
use super::hostile::{Hostile, ordinary_schema};
use super::patron::bound;
use super::site::Site;
use super::watch::{after, beside_an_innocent};

/// How long a silent connection may stay, and a second for the machine.
const SILENT: Duration = Duration::from_secs(3);

struct Stream(OwnedFd);

impl Stream {
    fn open(endpoint: &str) -> Result<Stream> {
        let flags = SocketFlags::CLOEXEC;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&fd, &SocketAddrUnix::new(socket_path(endpoint)?)?).context("connecting")?;
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(SILENT))?;
        Ok(Stream(fd))
    }

    fn tell(&self, bytes: &[u8], fds: &[&OwnedFd]) -> Result<(), Errno> {
        let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
        let rights = SendAncillaryMessage::ScmRights(&fds);
        let mut space = vec![MaybeUninit::uninit(); rights.size()];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(rights), "the space has the message's size");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, flags).map(|_| ())
    }

    /// The next answer; `None` at the end of the stream.
    fn answer(&self) -> Result<Option<Control>> {
        let mut bytes = vec![0; MAX_CONTROL_BYTES];
        let len = match recv(&self.0, &mut bytes[..], RecvFlags::empty()) {
            Ok((_, len)) => len,
            Err(Errno::CONNRESET) => 0,
            Err(errno) => bail!("no answer: {errno}"),
        };
        match len {
            0 => Ok(None),
            len => Ok(Some(Control::parse(&bytes[..len])?.1)),
        }
    }

    fn refusal(&self) -> Result<Status> {
        match self.answer()? {
            Some(Control::Refused { refusal, .. }) => Ok(refusal.status),
            other => bail!("{other:?} instead of a refusal"),
        }
    }
}

/// Connections that say nothing, more of them than there are places.
pub(super) fn silent(site: &Site) -> Result<Verdict> {
    const CROWD: usize = 200;
    beside_an_innocent(site, &site.settings()?, |scene| {
        let streams = (0..CROWD).map(|_| Stream::open(&scene.service.endpoint));
        let streams = streams.collect::<Result<Vec<Stream>>>()?;
        let began = Instant::now();
        after(scene.service, scene.tables).context("beside silent connections")?;
        ensure!(
            began.elapsed() < bound(),
            "a new client waited {:?}",
            began.elapsed()
        );
        for stream in &streams {
            let answer = stream.answer()?;
            ensure!(answer.is_none(), "{answer:?} to silence");
        }
        // One that said hello may be silent for ever.
        let mut member = Hostile::port(&scene.service.endpoint)?;
        std::thread::sleep(Duration::from_millis(2500));
        rowmill_port::ClientPort::bind(&mut member, &ordinary_schema())
            .context("a silent member")?;
        Ok(format!(
            "{CROWD} dropped after {:.1} s",
            began.elapsed().as_secs_f64() - 2.5
        ))
    })
}

/// Bytes that are no message, before and after hello, and other kinds of sockets.
pub(super) fn garbage(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let endpoint = &scene.service.endpoint;
        let hello = Control::Hello {
            client: "garbage".into(),
            credits: 2,
        }
        .encode(1);
        let mut old = hello.clone();
        old[0] = 99;
        let cases = [
            (vec![0xff; 64], Status::UnsupportedVersion),
            (vec![0; 1], Status::Malformed),
            (old, Status::UnsupportedVersion),
            (hello[..hello.len() - 1].to_vec(), Status::Malformed),
            (vec![0xff; MAX_CONTROL_BYTES + 1], Status::TooLarge),
            (
                Control::ListTables { first: 0 }.encode(1),
                Status::Malformed,
            ),
        ];
        for (bytes, status) in &cases {
            let stream = Stream::open(endpoint)?;
            stream.tell(bytes, &[])?;
            let found = stream.refusal()?;
            ensure!(found == *status, "{found} instead of {status}");
            ensure!(stream.answer()?.is_none(), "it stays open");
        }
        let fuzzed = fuzz(endpoint, &hello)?;
        let byte_stream = UnixStream::connect(socket_path(endpoint)?);
        ensure!(byte_stream.is_err(), "a byte stream got in");
        descriptors(endpoint, &hello)?;
        Ok(format!(
            "{} cases, {fuzzed} messages of flipped bits",
            cases.len()
        ))
    })
}

/// Messages with flipped bits, after a hello: each is answered, or the connection ends.
fn fuzz(endpoint: &str, hello: &[u8]) -> Result<u32> {
    const MESSAGES: u32 = 2000;
    let mut rng = Rng::with_seed(5);
    let seeds = [
        Control::Bind(ordinary_schema()).encode(2),
        Control::Register {
            bytes: 4096,
            rights: Rights::Write,
        }
        .encode(2),
        Control::Unregister { region: 0 }.encode(2),
        Control::ListTables { first: 0 }.encode(2),
        hello.to_vec(),
    ];
    let mut stream = None;
    for _ in 0..MESSAGES {
        let open = match stream.take() {
            Some(stream) => stream,
            None => {
                let stream = Stream::open(endpoint)?;
                stream.tell(hello, &[])?;
                let welcome = stream.answer()?;
                ensure!(matches!(welcome, Some(Control::Welcome(_))), "{welcome:?}");
                stream
            }
        };
        let mut message = seeds[rng.usize(0..seeds.len())].clone();
        for _ in 0..rng.usize(1..4) {
            let bit = rng.usize(0..message.len() * 8);
            message[bit / 8] ^= 1 << (bit % 8);
        }
        if rng.u8(0..8) == 0 {
            message.truncate(rng.usize(1..=message.len()));
        }
        if open.tell(&message, &[]).is_err() {
            continue; // The one before was a second hello: refused, and the end.
        }
        if open.answer()?.is_some() {
            stream = Some(open);
        }
    }
    Ok(MESSAGES)
}

/// Descriptors with messages that take none, or too many of them.
fn descriptors(endpoint: &str, hello: &[u8]) -> Result<()> {
    let stream = Stream::open(endpoint)?;
    stream.tell(hello, &[])?;
    stream.answer()?;
    let memory = sealed_memfd("descriptor", 4096, HugePages::Off)?;
    let register = Control::Register {
        bytes: 4096,
        rights: Rights::Write,
    }
    .encode(2);
    for count in [0, 2, 3, 200] {
        stream.tell(&register, &vec![&memory; count])?;
        let status = stream.refusal()?;
        ensure!(
            status == Status::Malformed,
            "{status} for {count} descriptors"
        );
    }
    stream.tell(&Control::ListTables { first: 0 }.encode(3), &[&memory])?;
    let status = stream.refusal()?;
    ensure!(
        status == Status::Malformed,
        "{status} for a descriptor that nobody wants"
    );
    Ok(())
}

/// Visitors of the admin pages that say nothing, nonsense, or never stop.
pub(super) fn admin_garbage(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let service = &*scene.service;
        let connect = || TcpStream::connect(service.admin()).context("the admin pages");
        let idle = (0..100).map(|_| connect()).collect::<Result<Vec<_>>>()?;
        let mut endless = connect()?;
        endless.set_write_timeout(Some(bound()))?;
        let written = endless.write_all(&vec![b'a'; 4 << 20]);
        let cases: [(&[u8], &str); 6] = [
            (b"GET /none HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
            (b"GET /../status HTTP/1.1\r\n\r\n", "HTTP/1.1 404 "),
            (b"POST /status HTTP/1.1\r\n\r\n", "HTTP/1.1 405 "),
            (b"\0\x01\x02\r\n\r\n", "HTTP/1.1 400 "),
            (b"GET\r\n\r\n", "HTTP/1.1 400 "),
            (b"GET /healthz HTTP/1.1\r\n\r\n", "HTTP/1.1 200 "),
        ];
        for (request, start) in cases {
            let reply = service.ask(request)?;
            ensure!(reply.starts_with(start), "{reply:?} instead of {start}");
        }
        let mut rest = Vec::new();
        endless.set_read_timeout(Some(bound()))?;
        let cut_off = written.is_err() || endless.read_to_end(&mut rest).is_ok();
        ensure!(cut_off, "the endless request is still read");
        drop(idle);
        Ok(format!("{} cases beside 100 idle visitors", cases.len()))
    })
}
