//! What keeps a service with cached tables from starting, and what it shows of them when it serves.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rowmill_table::MANIFEST_FILE;

use super::Verdict;
use super::cached::{
    Asker, COLD, COLD_ROWS, LEAST_SHARE, MAX_ROWS, PATIENT, figure, is_counted, settings,
};
use super::site::{Service, Settings, Site, patience, until};

/// How long a program may take to refuse what it can see without reading rows.
const BOUND: Duration = Duration::from_secs(1);

/// That `rowmilld` does not start on these settings and says all `parts`.
fn is_refused(site: &Site, settings: &Settings, parts: &[&str]) -> Result<()> {
    let config = site.configure(settings)?;
    let began = Instant::now();
    let said = site.refused(&config)?;
    ensure!(began.elapsed() < BOUND, "it took {:?}", began.elapsed());
    for part in parts {
        ensure!(said.contains(part), "it does not say `{part}`: {said}");
    }
    Ok(())
}

/// Shares, tables and files that can't be served from.
pub(super) fn refused(site: &Site) -> Result<Verdict> {
    let good = settings(site, PATIENT, "error")?;
    let change = |from: &str, to: &str| {
        let cached = good.cached.replacen(from, to, 1);
        Settings {
            cached,
            ..good.clone()
        }
    };
    let least = LEAST_SHARE.to_string();
    let write = format!("write at least {least}, room for 64 rows");
    let less = format!("cache_bytes = {}", LEAST_SHARE - 1);
    let share = format!("cache_bytes = {least}");
    let next = "on_failure = [\"next-tier\", \"error\"]";
    let cases: [(&str, &str, &[&str]); 8] = [
        (&share, &less, &["tables.cache_bytes: of `cold`", &write]),
        (&share, "cache_bytes = 0", &["tables.cache_bytes", &write]),
        (&share, "", &["tables.cache_bytes: of `cold`", &write]),
        (
            "\"cold\"",
            "\"warm\"",
            &["no table `warm`", "small, quant, wide, keyed, cold"],
        ),
        ("\"small\"", "\"cold\"", &["listed twice"]),
        (
            "on_failure = \"error\"",
            next,
            &["tables.on_failure: of `small`", "set cache.next_tier"],
        ),
        (
            "budget_ms",
            "staged_rows = 8191\nbudget_ms",
            &["cache.staged_rows", "8192"],
        ),
        (
            "budget_ms",
            "read_bytes = 12287\nbudget_ms",
            &["cache.read_bytes", "12288"],
        ),
    ];
    for (from, to, parts) in &cases {
        is_refused(site, &change(from, to), parts).with_context(|| (*to).to_owned())?;
    }
    let list = checksums(site)?;
    let whole = fs::read(&list).context("the checksums")?;
    let shown = list.display().to_string();
    let mut flipped = whole.clone();
    flipped[9] ^= 1;
    fs::write(&list, flipped).context("the checksums")?;
    is_refused(site, &good, &[&shown, "list of checksums"])?;
    fs::write(&list, &whole).context("the checksums")?;
    // As it was, it is served: the refusals were for the changes.
    drop(site.start(&good)?);
    let direct = match without_direct(site, &good)? {
        Ok(()) => "and a file system without O_DIRECT".to_owned(),
        Err(why) => format!("but no file system without O_DIRECT: {why}"),
    };
    Ok(Verdict::Pass(format!(
        "{} cases, {direct}",
        cases.len() + 1
    )))
}

fn checksums(site: &Site) -> Result<std::path::PathBuf> {
    let model = site.model()?;
    let text = fs::read(model.join(MANIFEST_FILE)).context("the manifest")?;
    let manifest = rowmill_table::parse_manifest(&text)?;
    Ok(model.join(manifest.checksum_file))
}

/// On a ramfs, which has no O_DIRECT, and is mounted where nobody else sees it: refused, and served from where that is allowed. Why not,
/// where it can't be tried.
fn without_direct(site: &Site, good: &Settings) -> Result<Result<(), String>> {
    let folder = site.path("ram");
    fs::create_dir_all(&folder).context("a folder")?;
    let begin = "mount -t ramfs none \"$1\"";
    let run = |script: &str, more: &[&str]| -> Result<(bool, String)> {
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-c", script, "sh"])
            .arg(&folder)
            .args(more);
        match command.output() {
            Ok(output) => {
                let said = [output.stderr, output.stdout].concat();
                Ok((
                    output.status.success(),
                    String::from_utf8_lossy(&said).into_owned(),
                ))
            }
            Err(error) => Ok((false, format!("unshare: {error}"))),
        }
    };
    let (can_mount, why) = run(begin, &[])?;
    if !can_mount {
        return Ok(Err(format!("mounting one: {}", why.trim())));
    }
    let refuse = Settings {
        model: folder.join("model"),
        cached: good.cached.replace("\"allow\"", "\"refuse\""),
        ..good.clone()
    };
    let model = good.model.to_str().context("a path in UTF-8")?;
    let program = site.programs.path("rowmilld");
    let program = program.to_str().context("a path in UTF-8")?;
    let script = format!("{begin} && cp -r \"$2\" \"$1/model\" && exec \"$3\" --config \"$4\"");
    let config = site.configure(&refuse)?;
    let config = config.to_str().context("a path in UTF-8")?;
    let (served, said) = run(&script, &[model, program, config])?;
    let parts = ["can't be read past the page cache (O_DIRECT)", "page_cache"];
    for part in parts {
        ensure!(
            !served && said.contains(part),
            "on a ramfs it does not say `{part}`: {said}"
        );
    }
    Ok(Ok(()))
}

/// The status page, `rowmill status`, `rowmill watch` and the metrics tell of a cached table what was asked of it.
pub(super) fn figures(site: &Site) -> Result<Verdict> {
    const ROUNDS: u64 = 5;
    let settings = settings(site, PATIENT, "error")?;
    let tables = site.tables()?;
    let service = site.start(&settings)?;
    let mut asker = Asker::connect(&service, &tables)?;
    let few: Vec<u32> = (0..16).collect();
    for _ in 0..ROUNDS {
        asker.is_answered(&few)?;
    }
    let lookups = ROUNDS * 16;
    let all_are_counted = || figure(&service, "lookups").is_ok_and(|count| count == lookups);
    until(patience(), all_are_counted).with_context(|| {
        format!(
            "{:?} lookups instead of {lookups}",
            figure(&service, "lookups")
        )
    })?;
    let (hits, misses) = (figure(&service, "hits")?, figure(&service, "misses")?);
    ensure!(
        hits + misses == lookups,
        "{hits} hits and {misses} misses of {lookups}"
    );
    // The first round found nothing, and later ones what it had brought.
    ensure!(
        misses >= 16 && hits > 0,
        "{hits} hits and {misses} misses of {lookups}"
    );
    let metrics = service.ask(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    for (name, count) in [("lookups", lookups), ("hits", hits), ("misses", misses)] {
        let line = format!("rowmill_cache_{name}_total{{table=\"{COLD}\"}} {count}\n");
        ensure!(metrics.contains(&line), "no `{line}` in:\n{metrics}");
    }
    let admin = service.admin().to_string();
    let (status, said) = site.command("rowmill", &["status", "--admin", &admin])?;
    ensure!(status.success(), "rowmill status: {status}: {said}");
    let (_, listed) = said.split_once("\ncache\n").with_context(|| said.clone())?;
    let row = listed.lines().find(|line| line.contains(COLD));
    let row = row.with_context(|| format!("no line of `{COLD}` in:\n{said}"))?;
    for figure in [lookups, hits, misses] {
        let has = row
            .split_whitespace()
            .any(|word| word == figure.to_string());
        ensure!(has, "no {figure} in `{row}` of:\n{said}");
    }
    let watch = [
        "watch",
        "--count",
        "1",
        "--interval",
        "0.05",
        "--admin",
        &admin,
    ];
    let (status, said) = site.command("rowmill", &watch)?;
    ensure!(status.success(), "rowmill watch: {status}: {said}");
    let (_, cached) = said
        .split_once("cached tables, a second")
        .with_context(|| said.clone())?;
    ensure!(cached.contains(COLD), "no `{COLD}` in:\n{said}");
    // More rows than there is room for, and again: some come, for which others leave, and some are not let in.
    let all: Vec<u32> = (0..COLD_ROWS).collect();
    for _ in 0..2 {
        for some in all.chunks(MAX_ROWS) {
            asker.is_answered(some)?;
        }
    }
    let passing = ["admitted", "evicted", "not_admitted"];
    for name in passing {
        is_counted(&service, name, 1)?;
    }
    let are_alike = || {
        let metrics = service.ask(b"GET /metrics HTTP/1.1\r\n\r\n");
        let metrics = metrics.unwrap_or_default();
        passing.iter().all(|name| {
            let Ok(count) = figure(&service, name) else {
                return false;
            };
            metrics.contains(&format!(
                "rowmill_cache_{name}_total{{table=\"{COLD}\"}} {count}\n"
            ))
        })
    };
    until(patience(), are_alike).context("rows that come and go are not the same on both pages")?;
    until(patience(), || tier_is_told_of(&service).is_ok())
        .or_else(|_| tier_is_told_of(&service))?;
    Ok(Verdict::Pass(format!(
        "{hits} hits and {misses} misses of {lookups}; {} rows came, {} left, {} were not let in",
        figure(&service, "admitted")?,
        figure(&service, "evicted")?,
        figure(&service, "not_admitted")?
    )))
}

/// The metrics tell of the arena's share of a cached table, and of the file behind it, all of whose rows come.
fn tier_is_told_of(service: &Service) -> Result<()> {
    let metrics = service.ask(b"GET /metrics HTTP/1.1\r\n\r\n")?;
    // The sum of what has this name, whatever its labels say.
    let value = |name: &str| -> Result<u64> {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
        let values = lines.filter_map(|rest| rest.strip_prefix('{')?.split_once("} "));
        let values: Vec<&str> = values.map(|(_, value)| value).collect();
        ensure!(!values.is_empty(), "no `{name}` in:\n{metrics}");
        let value: f64 = values
            .iter()
            .map(|value| value.parse::<f64>())
            .sum::<Result<_, _>>()?;
        Ok(value as u64)
    };
    let [bytes, room, held] = ["share_bytes", "share_rows", "held_rows"]
        .map(|name| value(&format!("rowmill_cache_{name}")));
    let (bytes, room, held) = (bytes?, room?, held?);
    ensure!(
        bytes > 0 && (1..=room).contains(&held),
        "{held} rows in {bytes} bytes with room for {room}"
    );
    let tier = |name: &str| value(&format!("rowmill_tier_{name}_total"));
    let (fetched, arrived) = (tier("fetched")?, tier("arrived")?);
    let times = value("rowmill_fetch_seconds_count")?;
    ensure!(
        fetched >= held && arrived == fetched && times == arrived,
        "{arrived} rows came of {fetched} that were asked for, with {times} times, and {held} are held"
    );
    for name in ["late", "corrupt", "gone", "failed"] {
        let count = tier(name)?;
        ensure!(
            count == 0,
            "{count} rows `{name}` of a file that is as it was"
        );
    }
    let (reads, bytes) = (tier("reads")?, tier("read_bytes")?);
    // Whole pages are read, and rows that lie beside one another come together.
    ensure!(
        reads >= 1 && reads <= fetched && bytes >= 4096 * reads,
        "{reads} reads of {bytes} bytes for {fetched} rows"
    );
    Ok(())
}
