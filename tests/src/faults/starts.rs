//! What keeps a service from starting, and what must not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rowmill_table::{Header, Manifest, RowFormat, TableInfo, TableKind, TableSpec};
use serde_json::Value;

use super::Verdict;
use super::hostile::Hostile;
use super::site::{Settings, Site, until};
use super::watch::{after, beside_an_innocent};

/// How long a program may take to refuse what it can see without reading rows.
const BOUND: Duration = Duration::from_secs(1);

const NO_GIANT: &str = "the file system of temporary files takes no file of 8 TiB";

/// A generation of 8 TiB that takes a few MiB of disk: all of its rows are holes. `None` where the file
/// system takes no such file.
fn giant(site: &Site) -> Result<Option<PathBuf>> {
    let spec = TableSpec {
        name: "giant".into(),
        rows: i32::MAX as u64,
        dim: 1024,
        format: RowFormat::F32,
        kind: TableKind::Dense,
    };
    let stride = spec.format.row_bytes(spec.dim);
    let file_bytes = 4096 + (spec.rows * stride as u64).next_multiple_of(4096);
    let folder = site.path("giant");
    fs::create_dir(&folder).context("a folder")?;
    let file = File::create(folder.join("giant.rows")).context("a table")?;
    match file.set_len(file_bytes) {
        Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => return Ok(None),
        outcome => outcome.context("a table of 8 TiB of holes")?,
    }
    file.write_all_at(&Header { spec: spec.clone() }.to_bytes(), 0)
        .context("its header")?;
    // A list of checksums in its size. Nobody gets to read it.
    File::create(folder.join("checksums"))
        .and_then(|list| list.set_len(4 * file_bytes.div_ceil(4096)))
        .context("its checksums")?;
    let table = TableInfo {
        name: spec.name,
        rows: spec.rows,
        dim: spec.dim,
        format: spec.format,
        kind: spec.kind,
        stride,
        file: "giant.rows".into(),
        file_bytes,
    };
    let manifest = Manifest {
        generation: 1,
        tables: vec![table],
        checksum_file: "checksums".into(),
        checksum_crc: 0,
    };
    fs::write(
        folder.join(rowmill_table::MANIFEST_FILE),
        manifest.to_bytes(),
    )
    .context("its manifest")?;
    Ok(Some(folder))
}

/// That `rowmilld` refuses to start on these settings, soon, and says all `parts`.
fn is_refused(site: &Site, settings: &Settings, parts: &[&str]) -> Result<String> {
    let config = site.configure(settings)?;
    let began = Instant::now();
    let said = site.refused(&config)?;
    ensure!(began.elapsed() < BOUND, "it took {:?}", began.elapsed());
    for part in parts {
        ensure!(said.contains(part), "it does not say `{part}`: {said}");
    }
    Ok(said)
}

/// A model that is larger than the memory.
pub(super) fn memory(site: &Site) -> Result<Verdict> {
    let mut settings = site.settings()?;
    let Some(model) = giant(site)? else {
        return Ok(Verdict::Skipped(NO_GIANT.into()));
    };
    let inspect = [
        "table",
        "inspect",
        model.to_str().context("a path in UTF-8")?,
    ];
    let began = Instant::now();
    let (status, said) = site.command("rowmill", &inspect)?;
    ensure!(
        status.success() && began.elapsed() < BOUND,
        "{status} after {:?}: {said}",
        began.elapsed()
    );
    settings.model = model;
    for huge_pages in ["off", "prefer"] {
        settings.huge_pages = huge_pages;
        is_refused(
            site,
            &settings,
            &["too little memory", "8192.0 GiB of rows", "are available"],
        )?;
    }
    // Requests take memory as well.
    let settings = Settings {
        slots: 4096,
        ..site.settings()?
    };
    let said = is_refused(
        site,
        &settings,
        &[
            "too little memory",
            "for requests in progress",
            "limits.slots",
        ],
    );
    let requests = match said {
        Ok(_) => "and 64 GiB for requests",
        // A machine with that much memory may well take them.
        Err(_) if rowmill_arena::available_bytes().0 > 1 << 36 => "requests fit this machine",
        Err(error) => return Err(error),
    };
    Ok(Verdict::Pass(format!("8 TiB of rows {requests}")))
}

/// Free bytes in the pools of huge pages.
fn pooled() -> u64 {
    let pool = |kib: u64| -> Option<u64> {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
        let free: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
        Some(free * kib * 1024)
    };
    pool(2048).unwrap_or(0) + pool(1 << 20).unwrap_or(0)
}

/// Huge pages are required, and the pools don't have them.
pub(super) fn required_pages(site: &Site) -> Result<Verdict> {
    let mut settings = site.settings()?;
    settings.huge_pages = "require";
    let pooled = pooled();
    if pooled > 0 {
        // Not even these pools have 8 TiB.
        settings.model = match giant(site)? {
            Some(model) => model,
            None => return Ok(Verdict::Skipped(NO_GIANT.into())),
        };
    }
    let parts = [
        "huge_pages",
        "the pools have",
        "vm.nr_hugepages",
        "\"prefer\"",
    ];
    is_refused(site, &settings, &parts)?;
    Ok(Verdict::Pass(format!("with {pooled} bytes in the pools")))
}

/// Huge pages are preferred, and the pools don't have them.
pub(super) fn preferred_pages(site: &Site) -> Result<Verdict> {
    if pooled() > 0 {
        return Ok(Verdict::Skipped(
            "the pools of this machine have free huge pages".into(),
        ));
    }
    let settings = Settings {
        huge_pages: "prefer",
        ..site.settings()?
    };
    let mut service = site.start(&settings)?;
    after(&mut service, &site.tables()?)?;
    let status = service.status()?;
    let choices = status["choices"].as_array().context("choices")?;
    let text = |choice: &Value, key: &str| choice[key].as_str().unwrap_or_default().to_owned();
    let pages = choices
        .iter()
        .find(|choice| text(choice, "what") == "pages of the rows");
    let pages = pages.with_context(|| format!("nothing on pages in {choices:?}"))?;
    let (chosen, why) = (text(pages, "chosen"), text(pages, "why"));
    let small = chosen.contains("4 KiB") || chosen.contains("transparent");
    ensure!(small && why.len() > 20, "`{chosen}`: `{why}`");
    Ok(Verdict::Pass(format!("serves on {chosen}")))
}

/// A second service on an endpoint that one serves on.
pub(super) fn endpoint_in_use(site: &Site) -> Result<Verdict> {
    let settings = site.settings()?;
    beside_an_innocent(site, &settings, |scene| {
        for _ in 0..3 {
            is_refused(
                site,
                &settings,
                &[
                    "already in use by a running dataplane",
                    &scene.service.endpoint,
                ],
            )?;
            ensure!(
                site.path("r.sock").exists(),
                "the first one's socket is gone"
            );
            let mut port = Hostile::port(&scene.service.endpoint).context("the first one")?;
            rowmill_port::ClientPort::tables(&mut port).context("the first one")?;
        }
        // Its admin pages are taken, too.
        let taken = format!("address = \"{}\"", scene.service.admin());
        let text = fs::read_to_string(site.configure(&settings)?).context("the configuration")?;
        let other = text
            .replace("r.sock", "other.sock")
            .replace("address = \"127.0.0.1:0\"", &taken);
        let said = site.refused(&site.write_configuration(&other)?)?;
        ensure!(said.contains("admin.address: cannot listen on"), "{said}");
        Ok("endpoint and admin address".into())
    })
}

/// A socket that a killed service left behind, and other things in its place.
pub(super) fn stale_endpoint(site: &Site) -> Result<Verdict> {
    let (settings, socket, tables) = (site.settings()?, site.path("r.sock"), site.tables()?);
    let mut first = site.start(&settings)?;
    first.process().signal(rustix::process::Signal::KILL)?;
    first.process().end(BOUND).context("a killed service")?;
    ensure!(socket.exists(), "nothing is left behind");
    let mut second = site.start(&settings)?;
    after(&mut second, &tables)?;
    second.process().signal(rustix::process::Signal::TERM)?;
    let ended = second
        .process()
        .end(super::site::patience())
        .context("it does not end")?;
    ensure!(ended.code() == Some(0), "it ended with {ended}");
    until(BOUND, || !socket.exists()).context("its socket is still there")?;
    // Whatever is no socket is somebody's.
    fs::write(&socket, "precious").context("a file in its place")?;
    is_refused(site, &settings, &["exists and is no socket"])?;
    ensure!(
        fs::read(&socket).is_ok_and(|text| text == b"precious"),
        "the file was harmed"
    );
    fs::remove_file(&socket).context("the file")?;
    fs::create_dir(&socket).context("a folder in its place")?;
    is_refused(site, &settings, &["exists and is no socket"])?;
    Ok(Verdict::Pass(
        "replaced after SIGKILL; a file and a folder kept".into(),
    ))
}

/// Configurations that can't work.
pub(super) fn bad_configuration(site: &Site) -> Result<Verdict> {
    let good =
        fs::read_to_string(site.configure(&site.settings()?)?).context("the configuration")?;
    let endpoint = format!("\"{}\"", site.endpoint());
    let changes = [
        ("[workers]", "[wrokers]", "unknown field `wrokers`"),
        ("pin = false", "pni = false", "unknown field `pni`"),
        ("pin = false", "pin = \"no\"", "invalid type"),
        ("cpus = 2", "cpus = 0", "workers.cpus"),
        ("cpus = 2", "cpus = -1", "cpus"),
        ("pin = false", "pin = false\nisa = \"sse2\"", "`sse2`"),
        (
            "huge_pages = \"off\"",
            "huge_pages = \"some\"",
            "huge_pages",
        ),
        (
            "credits = 6",
            "credits = 0",
            "limits.credits: is 0; write 1 to 256",
        ),
        ("credits = 6", "credits = 257", "limits.credits"),
        (
            "[admin]",
            "[log]\nfilter = \"inof\"\n[admin]",
            "log.filter: `inof` is neither a level",
        ),
        ("slots = 8", "slots = 99999999999999999999", "slots"),
        ("max_ids = 1048576", "max_ids = 0", "limits.max_ids"),
        ("127.0.0.1:0", "localhost", "is no address"),
        (&endpoint, "\"tcp://localhost:7400\"", "supports shm:"),
        (&endpoint, "\"shm:relative.sock\"", "begin with `/`"),
        (&endpoint, "", "endpoints: is empty"),
        ("[model]", "[model", "line 2"),
        ("directory = ", "directory = \"/nowhere\" # ", "/nowhere"),
        ("directory = ", "# ", "missing field `directory`"),
    ];
    for (from, to, part) in changes {
        ensure!(
            good.contains(from),
            "the configuration lacks `{from}`: {good}"
        );
        let path = site.write_configuration(&good.replacen(from, to, 1))?;
        for check in [false, true] {
            let config = path.to_str().context("a path in UTF-8")?;
            let arguments: &[&str] = if check {
                &["--config", config, "--check"]
            } else {
                &["--config", config]
            };
            let began = Instant::now();
            let (status, said) = site.command("rowmilld", arguments)?;
            ensure!(status.code() == Some(1), "{to}: {status}: {said}");
            ensure!(began.elapsed() < BOUND, "{to}: after {:?}", began.elapsed());
            ensure!(said.contains(part), "{to}: `{part}` is not in: {said}");
        }
    }
    let said = site.refused(&site.path("none.toml"))?;
    ensure!(said.contains("none.toml"), "{said}");
    Ok(Verdict::Pass(format!(
        "{} cases, --check too",
        changes.len() + 1
    )))
}
