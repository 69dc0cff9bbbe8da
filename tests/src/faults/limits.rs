//! What a service is short of: readers of its log, memory, file descriptors, address space.

use std::fs::{self, File};
use std::io::Read;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_arena::{HugePages, guards_holes, sealed_memfd};
use rowmill_client::PortError;
use rowmill_port::ClientPort;
use rowmill_port::shm::{ShmClient, ShmClientConfig};
use rowmill_wire::control::Rights;
use rowmill_wire::{Pooling, Schema, Status};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::process::Signal;

use super::Verdict;
use super::hostile::Hostile;
use super::patron::bound;
use super::site::{Running, Service, Site, patience, until};
use super::watch::beside_an_innocent;

/// How long clients come and go while nobody reads the log: ten lines a second, of some 200 bytes.
const VISITS: Duration = Duration::from_secs(4);
/// Bytes of the region that a service is to pay for.
const GIANT: usize = 1 << 30;
/// What it may come to hold meanwhile.
const SPENT: u64 = 128 << 20;

/// Where a service's log goes.
enum Reader {
    /// To a pipe that nobody reads.
    Stalled,
    /// To a pipe whose other end is closed.
    Gone,
    /// To a device that is full.
    Full,
}

/// A configuration of a service whose admin pages are at a known port.
fn configured(site: &Site) -> Result<(std::path::PathBuf, std::net::SocketAddr)> {
    let admin = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let text = fs::read_to_string(site.configure(&site.settings()?)?)?;
    let text = text.replace("127.0.0.1:0", &admin.to_string());
    Ok((site.write_configuration(&text)?, admin))
}

/// The log has no reader, and the service goes on and ends as ever.
pub(super) fn log_unread(site: &Site) -> Result<Verdict> {
    let mut notes = Vec::new();
    for (name, reader) in [
        ("stalled", Reader::Stalled),
        ("gone", Reader::Gone),
        ("full", Reader::Full),
    ] {
        let dropped = unread(site, &reader).with_context(|| name.to_owned())?;
        notes.push(format!("{name}: {dropped} lines dropped"));
    }
    Ok(Verdict::Pass(notes.join(", ")))
}

fn unread(site: &Site, reader: &Reader) -> Result<u64> {
    let (config, admin) = configured(site)?;
    let (read, write) = rustix::pipe::pipe()?;
    rustix::pipe::fcntl_setpipe_size(&write, 4096)?;
    let (stderr, read) = match reader {
        Reader::Stalled => (write, Some(read)),
        Reader::Gone => {
            drop(read);
            (write, None)
        }
        Reader::Full => {
            let full = File::options().write(true).open("/dev/full")?;
            (OwnedFd::from(full), None)
        }
    };
    let mut command = site.programs.leashed("rowmilld");
    command.arg("--config").arg(&config);
    command.env("ROWMILL_LOG", "trace");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let mut process = Running(command.stderr(Stdio::from(stderr)).spawn()?);
    drop(command);
    let endpoint = site.endpoint();
    let connect = |name: &str, limit: Duration| {
        let config = ShmClientConfig {
            credits: 1,
            huge_pages: HugePages::Off,
            reply_limit: limit,
            ..ShmClientConfig::default()
        };
        ShmClient::connect_with(&endpoint, name, config)
    };
    until(patience(), || connect("probe", bound()).is_ok()).context("it does not start")?;
    let mut member = connect("member", bound())?;
    let pages = |page: &str| site_ask(admin, page);
    let dropped = || -> Result<u64> {
        let text = pages("/metrics")?;
        let line = text.lines().find_map(|l| {
            l.strip_prefix("rowmill_log_lines_dropped_total ")
                .and_then(|n| n.trim().parse().ok())
        });
        line.context("no count of dropped lines")
    };
    let name = "n".repeat(120);
    let (began, lasting) = (
        Instant::now(),
        if read.is_some() { VISITS } else { VISITS / 4 },
    );
    while began.elapsed() < lasting {
        // Those before may take a moment to be gone.
        until(bound(), || connect(&name, bound()).is_ok())
            .context("a client that comes and goes")?;
        member.tables().context("a client that stays")?;
        std::thread::sleep(Duration::from_millis(10));
    }
    // Where lines may still get through, the queue holds what comes in that time.
    let lost = dropped()?;
    ensure!(
        matches!(reader, Reader::Stalled) || lost > 0,
        "no line was dropped"
    );
    ensure!(pages("/healthz")?.contains("ok"), "not healthy");
    ensure!(
        pages("/status")?.contains("log_lines_dropped"),
        "the status page does not show it"
    );
    process.signal(Signal::TERM)?;
    let ended = process.end(patience()).context("SIGTERM does not end it")?;
    ensure!(ended.code() == Some(0), "it ended with {ended}");
    if let Some(read) = read {
        let mut log = Vec::new();
        File::from(read).read_to_end(&mut log)?;
        ensure!(!log.is_empty(), "the pipe was not its log");
    }
    Ok(lost)
}

/// A page of the admin pages at an address.
fn site_ask(admin: std::net::SocketAddr, page: &str) -> Result<String> {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(admin).context("the admin pages")?;
    stream.set_read_timeout(Some(bound()))?;
    write!(stream, "GET {page} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .context("the admin pages")?;
    Ok(reply)
}

/// Resident bytes of a service.
fn resident(service: &mut Service) -> Result<u64> {
    let path = format!("/proc/{}/status", service.process().0.id());
    let text = fs::read_to_string(path)?;
    let line = text.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kib.context("its resident bytes")? << 10)
}

fn is_refused(
    outcome: Result<rowmill_port::RegionId, PortError>,
    status: Status,
    part: &str,
) -> Result<()> {
    match outcome {
        Err(PortError::Refused { refusal, detail }) if refusal.status == status => {
            ensure!(detail.contains(part), "`{detail}` lacks `{part}`");
            Ok(())
        }
        other => bail!("{other:?} instead of {status}"),
    }
}

/// Regions whose pages the service would pay for: sparse ones, and holes punched afterwards.
pub(super) fn sparse_regions(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let before = resident(scene.service)?;
        let mut port = Hostile::shm_port(&scene.service.endpoint)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let sparse = memfd_create("sparse", flags)?;
        ftruncate(&sparse, GIANT as u64)?;
        fcntl_add_seals(&sparse, SealFlags::SHRINK | SealFlags::GROW)?;
        let refused = port.register_memfd(sparse.as_fd(), GIANT as u64, Rights::Both);
        is_refused(refused, Status::RegionRefused, "fallocate")?;
        fallocate(&sparse, FallocateFlags::empty(), 0, (GIANT / 2) as u64)?;
        let refused = port.register_memfd(sparse.as_fd(), GIANT as u64, Rights::Both);
        is_refused(refused, Status::RegionRefused, "fallocate")?;
        drop((sparse, port));
        if !guards_holes() {
            return Ok("sparse ones refused; userfaultfd is not to be had here".into());
        }
        for _ in 0..3 {
            punched(&scene.service.endpoint)?;
        }
        let spent = resident(scene.service)?.saturating_sub(before);
        ensure!(spent < SPENT, "it holds {spent} bytes more");
        Ok(format!("{} KiB more held", spent >> 10))
    })
}

/// A region that is whole when it is registered, and one hole when a request names it that writes to
/// each of its pages.
fn punched(endpoint: &str) -> Result<()> {
    use rowmill_wire::request::{self, Element, FeatureSpan, Header, Op, Place, Segment};
    const STRIDE: u64 = 16 << 10;
    const BAGS: u32 = 30_000;
    let mut port = Hostile::shm_port(endpoint)?;
    let mut schema = Schema::side_by_side(BAGS, [("x", "small", Pooling::Sum, 16)]).0;
    schema.features[0].stride = STRIDE;
    let schema = port.bind(&schema)?;
    let bytes = BAGS as usize * STRIDE as usize;
    let memory = sealed_memfd("holes", bytes, HugePages::Off)?;
    let target = port.register_memfd(memory.as_fd(), bytes as u64, Rights::Both)?;
    let lengths = port.register_source(4 * BAGS as usize)?;
    fallocate(
        &memory,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        bytes as u64,
    )?;
    let segment = |len| Segment {
        place: Place::Region {
            region: lengths.0,
            offset: 0,
        },
        element: Element::Bits32,
        len,
    };
    let header = Header {
        op: Op::Lookup,
        schema,
        bags: BAGS,
        target_region: target.0,
        lengths: segment(4 * u64::from(BAGS)),
        ids: segment(0),
        ..Header::null(1)
    };
    let span = FeatureSpan {
        lengths_at: 0,
        ids_at: 0,
        ids: 0,
        first_id: 0,
    };
    let mut frame = [0; rowmill_wire::limits::SLOT_BYTES];
    let len = request::encode(&header, &[span], &[], &mut frame)?;
    port.submit(0, 0, &frame[..len])?;
    let began = Instant::now();
    let record = loop {
        if let Some(record) = port.poll(0)? {
            break record;
        }
        ensure!(began.elapsed() < bound(), "no answer");
        port.wait(Some(Duration::from_millis(5)))?;
    };
    ensure!(record.status == Status::RegionLost, "{record:?}");
    let filled = rustix::fs::fstat(&memory)?.st_blocks * 512;
    ensure!(filled == 0, "{filled} bytes of the hole were filled");
    Ok(())
}

/// The regions of all clients together are more than the service takes.
pub(super) fn regions_together(site: &Site) -> Result<Verdict> {
    let text = fs::read_to_string(site.configure(&site.settings()?)?)?;
    let text = text.replace("[limits]\n", "[limits]\ntotal_region_bytes = 4194304\n");
    let config = site.write_configuration(&text)?;
    let service = Service::start(site, &config)?;
    let mut ports = Vec::new();
    for _ in 0..4 {
        let mut port = Hostile::shm_port(&service.endpoint)?;
        port.register(1 << 20)?;
        ports.push(port);
    }
    let mut port = Hostile::shm_port(&service.endpoint)?;
    is_refused(port.register(4096), Status::LimitReached, "of all clients")?;
    drop(ports.pop());
    until(bound(), || port.register(1 << 20).is_ok()).context("room after one is gone")?;
    service.is_healthy()?;
    // More than there is memory for is refused at the start.
    let text = text.replace("= 4194304", "= 4503599627370496");
    let said = site.refused(&site.write_configuration(&text)?)?;
    for part in ["too little memory", "limits.total_region_bytes"] {
        ensure!(said.contains(part), "`{part}` is not in: {said}");
    }
    Ok(Verdict::Pass("4 MiB of 4 clients".into()))
}

/// Runs `rowmilld` under a limit of the shell.
fn limited(site: &Site, limit: &str, arguments: &[&str]) -> Command {
    let mut command = site.programs.leashed("/bin/sh");
    let script = format!("ulimit {limit} && exec \"$0\" \"$@\"");
    command.args(["-c", &script]);
    command.arg(site.programs.path("rowmilld")).args(arguments);
    command.stdin(Stdio::null());
    command
}

/// Fewer file descriptors than the clients need.
pub(super) fn few_descriptors(site: &Site) -> Result<Verdict> {
    let config = site.configure(&site.settings()?)?;
    let path = config.to_str().context("a path in UTF-8")?;
    let text = fs::read_to_string(&config)?;
    // With 12 clients and 2 lanes all is well at the usual 1,024; 110 are enough for a few.
    let checked = |limit: &str| -> Result<(ExitStatus, String)> {
        let output = limited(site, limit, &["--config", path, "--check"]).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status, String::from_utf8_lossy(&said).into_owned()))
    };
    let (status, said) = checked("-n 1024")?;
    ensure!(
        status.success() && said.contains("file descriptors: 1024\n"),
        "{said}"
    );
    let (status, said) = checked("-n 110")?;
    ensure!(
        status.success() && said.contains("file descriptors: 110 (warning)"),
        "{said}"
    );
    let (status, said) = checked("-n 60")?;
    ensure!(
        status.code() == Some(1) && said.contains("too few file descriptors"),
        "{said}"
    );
    ensure!(text.contains("connections = 12"), "{text}");
    // The soft limit is raised, so that it does not matter.
    let (status, said) = checked("-Sn 60")?;
    ensure!(status.success() && !said.contains("too few"), "{said}");
    // At the brim a client is told so, the admin pages answer, and those who are in are served.
    let (config, admin) = configured(site)?;
    let path = config.to_str().context("a path in UTF-8")?;
    let mut command = limited(site, "-n 110", &["--config", path]);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Running(command.spawn()?);
    let endpoint = site.endpoint();
    until(patience(), || Hostile::shm_port(&endpoint).is_ok()).context("it does not start")?;
    let mut innocent = Hostile::connect(&endpoint, &site.tables()?)?;
    let mut others = Vec::new();
    let refused = loop {
        match Hostile::shm_port(&endpoint) {
            Ok(port) => others.push(port),
            Err(error) => break error,
        }
    };
    let limit_reached = matches!(&refused, PortError::Refused { refusal, .. } if refusal.status == Status::LimitReached);
    ensure!(limit_reached, "{refused}");
    // Connections that say nothing take what there is for a moment.
    let path = rowmill_port::shm::socket_path(&endpoint)?;
    let mut silent = Vec::new();
    for _ in 0..32 {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let stream = rustix::net::socket_with(family, kind, flags, None)?;
        if rustix::net::connect(&stream, &SocketAddrUnix::new(&path)?).is_ok() {
            silent.push(stream);
        }
    }
    let region = innocent.raw().register(4096).context("a region")?;
    innocent.raw().unregister(region)?;
    innocent.is_served()?;
    ensure!(site_ask(admin, "/healthz")?.contains("ok"), "not healthy");
    let status = site_ask(admin, "/status")?;
    ensure!(status.contains("file descriptors"), "{status}");
    let clients = others.len() + 1;
    process.signal(Signal::TERM)?;
    process.end(patience()).context("it does not end")?;
    Ok(Verdict::Pass(format!("{clients} clients of 12 with 110")))
}

/// Less address space than the service needs.
pub(super) fn little_address_space(site: &Site) -> Result<Verdict> {
    let text = fs::read_to_string(site.configure(&site.settings()?)?)?;
    let text = text.replace("slots = 8", "slots = 64");
    let config = site.write_configuration(&text)?;
    let path = config.to_str().context("a path in UTF-8")?;
    for more in [&[][..], &["--check"]] {
        let arguments = [&["--config", path], more].concat();
        let output = limited(site, "-v 1000000", &arguments).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
        for part in ["too little memory", "address space", "ulimit -v"] {
            ensure!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
    Ok(Verdict::Pass("refused at the start and by --check".into()))
}

/// SIGHUP ends a service as SIGTERM does, unless it was started to ignore it.
pub(super) fn hangup(site: &Site) -> Result<Verdict> {
    let mut service = site.start(&site.settings()?)?;
    service.process().signal(Signal::HUP)?;
    let ended = service
        .process()
        .end(patience())
        .context("SIGHUP does not end it")?;
    ensure!(ended.code() == Some(0), "it ended with {ended}");
    ensure!(
        service.log().contains("SIGHUP: draining"),
        "{}",
        service.log()
    );
    let (config, admin) = configured(site)?;
    let mut command = site.programs.leashed("/bin/sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    command.arg(site.programs.path("rowmilld")).arg("--config");
    command.arg(&config).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut process = Running(command.spawn()?);
    until(patience(), || {
        site_ask(admin, "/healthz").is_ok_and(|t| t.contains(" 200 "))
    })?;
    process.signal(Signal::HUP)?;
    ensure!(
        process.end(Duration::from_millis(300)).is_none(),
        "nohup does not keep it"
    );
    ensure!(
        site_ask(admin, "/healthz")?.contains(" 200 "),
        "not healthy"
    );
    process.signal(Signal::TERM)?;
    process.end(patience()).context("it does not end")?;
    Ok(Verdict::Pass("drained; ignored under nohup".into()))
}

/// A person's lookup of a service that is stopped: it ends about when it was told to.
pub(super) fn lookup_of_a_stopped_service(site: &Site) -> Result<Verdict> {
    let mut service = site.start(&site.settings()?)?;
    service.process().signal(Signal::STOP)?;
    let endpoint = service.endpoint.clone();
    let arguments = [
        "lookup",
        &endpoint,
        "--table",
        "small",
        "--ids",
        "1",
        "--deadline-ms",
        "200",
    ];
    let began = Instant::now();
    let (status, said) = site.command("rowmill", &arguments)?;
    let took = began.elapsed();
    service.process().signal(Signal::CONT)?;
    ensure!(status.code() == Some(1), "{status}: {said}");
    ensure!(
        took < Duration::from_millis(200) + 2 * bound(),
        "after {took:?}"
    );
    Ok(Verdict::Pass(format!("given up after {took:.1?}")))
}
