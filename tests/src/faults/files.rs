//! Tables on disk that are damaged, cut, or promise what they don't have.

use std::fs::{self, File, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fastrand::Rng;

use super::Verdict;
use super::site::Site;

/// How long a program may take to refuse a model: the small one is read in milliseconds.
const BOUND: Duration = Duration::from_secs(1);

/// A generation of which files can be damaged.
struct Model<'a> {
    site: &'a Site,
    folder: PathBuf,
}

impl Model<'_> {
    fn new(site: &Site) -> Result<Model<'_>> {
        Ok(Model {
            site,
            folder: site.model()?,
        })
    }

    /// The file of a table.
    fn table(&self, name: &str) -> Result<PathBuf> {
        let generation = rowmill_table::Generation::open(&self.folder)?;
        Ok(generation.path(generation.table(name)?))
    }

    fn manifest(&self) -> PathBuf {
        self.folder.join(rowmill_table::MANIFEST_FILE)
    }

    /// Replaces text of the manifest, and gives it the checksum of what it says then.
    fn rewrite(&self, from: &str, to: &str) -> Result<()> {
        let text = fs::read_to_string(self.manifest()).context("the manifest")?;
        ensure!(text.contains(from), "the manifest lacks `{from}`: {text}");
        let body = &text[..text.len() - SEAL_BYTES];
        self.seal(body.replacen(from, to, 1))
    }

    fn seal(&self, body: String) -> Result<()> {
        let crc = crc32fast::hash(body.as_bytes());
        fs::write(
            self.manifest(),
            format!("{body}\"crc32\":\"{crc:08x}\"}}\n"),
        )
        .context("the manifest")
    }

    /// Gives the only table's only block, `bytes`, the checksums that it has.
    fn reseal(&self, bytes: &[u8]) -> Result<()> {
        let text = fs::read(self.manifest()).context("the manifest")?;
        let mut manifest = rowmill_table::parse_manifest(&text)?;
        let pages = bytes.chunks(rowmill_table::PAGE_BYTES);
        let checksums: Vec<u8> = pages
            .flat_map(|page| crc32fast::hash(page).to_le_bytes())
            .collect();
        fs::write(self.folder.join(&manifest.checksum_file), &checksums)
            .context("the checksums")?;
        manifest.checksum_crc = crc32fast::hash(&checksums);
        fs::write(self.manifest(), manifest.to_bytes()).context("the manifest")
    }

    /// That neither `rowmilld` starts on it nor `rowmill table verify` accepts it, both with all `parts`
    /// in what they say, and soon.
    fn is_refused(&self, parts: &[&str]) -> Result<()> {
        let settings = super::site::Settings {
            model: self.folder.clone(),
            ..self.site.settings()?
        };
        let config = self.site.configure(&settings)?;
        let began = Instant::now();
        let said = self.site.refused(&config)?;
        ensure!(
            began.elapsed() < BOUND,
            "rowmilld took {:?}",
            began.elapsed()
        );
        contains("rowmilld", &said, parts)?;
        ensure!(
            !said.contains("ready: serving"),
            "rowmilld served it before: {said}"
        );
        let began = Instant::now();
        let folder = self.folder.to_str().context("a path in UTF-8")?;
        let (status, said) = self.site.command("rowmill", &["table", "verify", folder])?;
        ensure!(
            status.code() == Some(1),
            "rowmill table verify ended with {status}: {said}"
        );
        ensure!(
            began.elapsed() < BOUND,
            "rowmill took {:?}",
            began.elapsed()
        );
        contains("rowmill table verify", &said, parts)
    }
}

/// Bytes of the manifest's end: `"crc32":"`, eight digits, `"}` and a line feed.
const SEAL_BYTES: usize = 20;

fn contains(who: &str, said: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(said.contains(part), "{who} does not say `{part}`: {said}");
    }
    Ok(())
}

fn passed(cases: usize) -> Result<Verdict> {
    Ok(Verdict::Pass(format!(
        "{cases} cases, rowmilld and rowmill table verify"
    )))
}

/// One bit of a row is another one, at several places of each table.
pub(super) fn flipped(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let mut rng = Rng::with_seed(6);
    for name in ["small", "quant", "wide"] {
        let path = model.table(name)?;
        let good = fs::read(&path).context("a table")?;
        for at in [4096, rng.usize(4096..good.len()), good.len() - 1] {
            let mut bad = good.clone();
            bad[at] ^= 1 << rng.u8(0..8);
            fs::write(&path, bad).context("a table")?;
            let page = at / 4096;
            let named = format!("table {name} is damaged: page {page} of {}", path.display());
            let range = format!("the 4096 bytes from {} on", page * 4096);
            model
                .is_refused(&[&named, &range])
                .with_context(|| format!("byte {at} of {name}"))?;
        }
        fs::write(&path, good).context("a table")?;
    }
    // Restored, it is served: the refusals were for the bits.
    let mut service = site.start(&site.settings()?)?;
    super::watch::after(&mut service, &site.tables()?)?;
    passed(9)
}

/// The index of a hashed table is damaged: by bits, and by a writer that gives it good checksums.
pub(super) fn index(site: &Site) -> Result<Verdict> {
    let folder = site.path("hashed");
    let spec: rowmill_table::TableSpec = "keyed:1000:8:f32:hashed"
        .parse()
        .map_err(anyhow::Error::msg)?;
    let rows_end = 4096 + spec.row_region_bytes() as usize;
    rowmill_table::generate(&folder, 1, &[spec], 7, &rowmill_table::silent)?;
    let model = Model { site, folder };
    let path = model.table("keyed")?;
    let good = fs::read(&path).context("a table")?;
    let start = (rows_end..good.len())
        .find(|&at| good[at..].starts_with(b"ROWMILLI"))
        .context("an index behind the rows")?;
    let first = start + 64;
    for at in [start, start + 8, first, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, bad).context("a table")?;
        model.is_refused(&["table keyed is damaged: page", "checksum"])?;
    }
    // A bucket has five keys of 8 bytes, their rows of 4, and a word that begins with the number of keys.
    let full = (first..good.len())
        .step_by(64)
        .find(|&bucket| good[bucket + 60] >= 2)
        .context("a bucket of two keys")?;
    let changes: [(usize, &[u8], &str); 8] = [
        (start, b"ROWMILLX", "does not start with ROWMILLI"),
        (start + 8, &[0x55; 8], "key"),
        (start + 16, &[255; 8], "buckets instead of"),
        (start + 40, &[1], "must be zero"),
        (full, &good[full + 8..full + 16], "twice or out of order"),
        (full + 40, &1000u32.to_le_bytes(), "to row 1000 of 1000"),
        (full + 60, &[6], "impossible bucket"),
        (full + 60, &[1], "has more in bucket"),
    ];
    for (at, bytes, part) in changes {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        fs::write(&path, &bad).context("a table")?;
        model.reseal(&bad)?;
        model
            .is_refused(&["table keyed: its index", part])
            .with_context(|| part.to_owned())?;
    }
    passed(4 + changes.len())
}

/// A table's file ends early, or late.
pub(super) fn truncated(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let path = model.table("small")?;
    let good = fs::read(&path).context("a table")?;
    let sizes = [
        0,
        1,
        4095,
        4096,
        good.len() as u64 - 4096,
        good.len() as u64 - 1,
        good.len() as u64 + 1,
    ];
    for size in sizes {
        let file = OpenOptions::new()
            .write(true)
            .open(&path)
            .context("a table")?;
        file.set_len(size).context("cutting a table")?;
        let promised = format!("promises {} bytes and the file has {size}", good.len());
        model
            .is_refused(&[&path.display().to_string(), &promised])
            .with_context(|| format!("{size} bytes"))?;
        fs::write(&path, &good).context("a table")?;
    }
    passed(sizes.len())
}

/// A table's file is not there, or is no file.
pub(super) fn missing(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let path = model.table("quant")?;
    let away = site.path("away");
    fs::rename(&path, &away).context("moving a table away")?;
    let shown = path.display().to_string();
    model.is_refused(&[&shown])?;
    fs::create_dir(&path).context("a folder in its place")?;
    model.is_refused(&[&shown])?;
    fs::remove_dir(&path).context("the folder")?;
    std::os::unix::fs::symlink("/nowhere", &path).context("a link in its place")?;
    model.is_refused(&[&shown])?;
    passed(3)
}

/// A table's header is damaged, or another table's.
pub(super) fn header(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let path = model.table("small")?;
    let shown = path.display().to_string();
    let good = fs::read(&path).context("a table")?;
    for at in [0, 8, 16, 24, 36, 4000, 4095] {
        let mut bad = good.clone();
        bad[at] ^= 4;
        fs::write(&path, bad).context("a table")?;
        model
            .is_refused(&[&shown, "its header"])
            .with_context(|| format!("byte {at}"))?;
    }
    // A good header, of a table of the same size with another name.
    let mut spec = rowmill_table::Generation::open({
        fs::write(&path, &good)?;
        &model.folder
    })?
    .table("small")?
    .spec();
    spec.name = "other".into();
    let mut bad = good.clone();
    bad[..4096].copy_from_slice(&rowmill_table::Header { spec }.to_bytes());
    fs::write(&path, bad).context("a table")?;
    model.is_refused(&[&shown, "of another table"])?;
    passed(8)
}

/// The list of checksums is damaged, or cut.
pub(super) fn checksums(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let text = fs::read_to_string(model.manifest()).context("the manifest")?;
    let manifest = rowmill_table::parse_manifest(text.as_bytes())?;
    let path = model.folder.join(&manifest.checksum_file);
    let shown = path.display().to_string();
    let good = fs::read(&path).context("the checksums")?;
    let mut bad = good.clone();
    bad[5] ^= 16;
    fs::write(&path, bad).context("the checksums")?;
    model.is_refused(&[&shown, "list of checksums"])?;
    fs::write(&path, &good[..good.len() - 4]).context("the checksums")?;
    model.is_refused(&[&shown, "promises"])?;
    passed(2)
}

/// The manifest promises more rows, and more bytes, than the files have.
pub(super) fn promises(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let text = fs::read_to_string(model.manifest()).context("the manifest")?;
    let good = rowmill_table::parse_manifest(text.as_bytes())?;
    let mut cases = 0;
    for (rows, more) in [
        (5_000u64, 1_000u64),
        (5_000, 60_000),
        (5_000, 2_147_478_647),
    ] {
        let mut manifest = good.clone();
        let table = &mut manifest.tables[0];
        ensure!(table.rows == rows, "{} rows", table.rows);
        table.rows += more;
        table.file_bytes = 4096 + (table.rows * table.stride as u64).next_multiple_of(4096);
        fs::write(model.manifest(), manifest.to_bytes()).context("the manifest")?;
        // The list of checksums is to be longer, too, and that is seen first.
        let checksums = model.folder.join(&manifest.checksum_file);
        let said = format!("{}: the manifest promises", checksums.display());
        model
            .is_refused(&[&said])
            .with_context(|| format!("{more} rows more"))?;
        cases += 1;
    }
    // Rows alone: what the manifest says of the size is then not what it says of the rows.
    fs::write(model.manifest(), &text).context("the manifest")?;
    model.rewrite("\"rows\": 5000", "\"rows\": 6000")?;
    model.is_refused(&["the manifest says", "its tables make"])?;
    passed(cases + 1)
}

/// The manifest is cut, or a byte of it is another one.
pub(super) fn damaged_manifest(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let good = fs::read(model.manifest()).context("the manifest")?;
    let mut rng = Rng::with_seed(7);
    let mut bad: Vec<Vec<u8>> = [0, 1, 19, 20, good.len() / 2, good.len() - 1]
        .map(|len| good[..len].to_vec())
        .into();
    for _ in 0..6 {
        let mut flipped = good.clone();
        flipped[rng.usize(0..good.len())] ^= 1 << rng.u8(0..8);
        bad.push(flipped);
    }
    bad.push([&good[..], b" "].concat());
    let cases = bad.len();
    for bytes in bad {
        fs::write(model.manifest(), bytes).context("the manifest")?;
        model.is_refused(&["the manifest is damaged", "checksum"])?;
    }
    fs::remove_file(model.manifest()).context("the manifest")?;
    model.is_refused(&["has no manifest.json"])?;
    passed(cases + 1)
}

/// A manifest with a good checksum that says what can't be.
pub(super) fn nonsense(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let good = fs::read(model.manifest()).context("the manifest")?;
    let changes = [
        (
            "rowmill-generation",
            "something-else",
            "can't be understood",
        ),
        ("\"version\": 3", "\"version\": 4", "upgrade rowmill"),
        (
            "\"version\": 3",
            "\"version\": 2",
            "made by an older rowmill",
        ),
        ("\"kind\": \"dense\"", "\"kind\": \"sparse\"", "sparse"),
        ("\"missing\": \"error\"", "\"missing\": \"zero\"", "zero"),
        (
            "\"kind\": \"dense\"",
            "\"kind\": \"hashed\"",
            "its tables make",
        ),
        ("\"rows\": 5000", "\"rows\": 0", "0 rows are not possible"),
        (
            "\"rows\": 5000",
            "\"rows\": 2147483648",
            "rows are not possible",
        ),
        ("\"rows\": 5000", "\"rows\": -1", "can't be understood"),
        (
            "\"rows\": 5000",
            "\"rows\": 18446744073709551616",
            "can't be understood",
        ),
        ("\"dim\": 16", "\"dim\": 15", "dimensions are not possible"),
        (
            "\"dim\": 16",
            "\"dim\": 1000000000000",
            "dimensions are not possible",
        ),
        (
            "\"format\": \"int8\"",
            "\"format\": \"int5\"",
            "`int5` is unknown",
        ),
        ("\"stride\": 64", "\"stride\": 1", "bytes a row"),
        (
            "\"name\": \"quant\"",
            "\"name\": \"small\"",
            "two tables are named `small`",
        ),
        (
            "\"name\": \"small\"",
            "\"name\": \"\"",
            "can't name a table",
        ),
        (
            "\"generation\": 1",
            "\"generation\": 1, \"surprise\": 1",
            "unknown field `surprise`",
        ),
    ];
    for (from, to, part) in changes {
        model.rewrite(from, to)?;
        model.is_refused(&[part]).with_context(|| to.to_owned())?;
        fs::write(model.manifest(), &good).context("the manifest")?;
    }
    for body in [
        "",
        "{",
        "[],",
        "null,",
        "{\"tables\":[",
        &"[".repeat(100_000),
    ] {
        model.seal(body.to_owned())?;
        model.is_refused(&["the manifest"])?;
    }
    File::create(model.manifest())
        .and_then(|f| f.set_len(1 << 40))
        .context("a manifest of 1 TiB")?;
    model.is_refused(&["the manifest can't be understood", "longer than"])?;
    passed(changes.len() + 7)
}

/// The manifest names files outside its folder.
pub(super) fn traversal(site: &Site) -> Result<Verdict> {
    let model = Model::new(site)?;
    let good = fs::read_to_string(model.manifest()).context("the manifest")?;
    let manifest = rowmill_table::parse_manifest(good.as_bytes())?;
    let files = [&manifest.tables[0].file, &manifest.checksum_file];
    // A file that would do, were it reached.
    fs::copy(model.folder.join(files[0]), site.path("outside")).context("a copy outside")?;
    let names = [
        "../outside",
        "/etc/passwd",
        "a/../../outside",
        ".hidden",
        "..",
        "a/b",
        "a\\u0000b",
    ];
    for file in files {
        for name in names {
            model.rewrite(&format!("\"{file}\""), &format!("\"{name}\""))?;
            model
                .is_refused(&["not a plain name in its directory"])
                .with_context(|| name.to_owned())?;
            fs::write(model.manifest(), &good).context("the manifest")?;
        }
    }
    passed(2 * names.len())
}
