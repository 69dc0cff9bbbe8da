//! Files of others that can't be tables.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Verdict;
use super::site::Site;

/// How long `rowmill` may take to refuse a small file.
const BOUND: Duration = Duration::from_secs(1);

const ROWS: usize = 100;
const DIM: usize = 8;

/// Sources of one table, of [`ROWS`] rows of [`DIM`] f32, that can be damaged.
struct Sources<'a> {
    site: &'a Site,
    folder: PathBuf,
    cases: usize,
}

/// The ways to import it.
const WAYS: [&str; 3] = ["npy", "safetensors", "hugectr"];

impl Sources<'_> {
    fn new(site: &Site) -> Result<Sources<'_>> {
        let folder = site.path("sources");
        fs::create_dir_all(folder.join("dump")).context("a folder")?;
        let sources = Sources {
            site,
            folder,
            cases: 0,
        };
        sources.write(&values(), &keys())?;
        Ok(sources)
    }

    /// The file with the rows, and where in it they begin.
    fn rows(&self, way: &str) -> Result<(PathBuf, usize)> {
        let name = match way {
            "npy" => "rows.npy",
            "safetensors" => "model.safetensors",
            _ => "dump/emb_vector",
        };
        let path = self.folder.join(name);
        let bytes = fs::metadata(&path).context("the rows")?.len() as usize;
        let behind = if way == "safetensors" { ROWS * 8 } else { 0 };
        Ok((path, bytes - behind - ROWS * DIM * 4))
    }

    /// Writes the same rows and keys in all ways.
    fn write(&self, values: &[f32], keys: &[i64]) -> Result<()> {
        let rows: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let keys: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        self.npy("rows.npy", "<f4", &format!("({ROWS}, {DIM})"), &rows)?;
        self.npy("ids.npy", "<i8", &format!("({ROWS},)"), &keys)?;
        let header = header(&rows, &keys);
        self.safetensors(&header, &[&rows[..], &keys].concat())?;
        fs::write(self.folder.join("dump/key"), keys).context("keys")?;
        fs::write(self.folder.join("dump/emb_vector"), rows).context("rows")
    }

    fn npy(&self, name: &str, kind: &str, shape: &str, data: &[u8]) -> Result<()> {
        let text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend([text.as_bytes(), data].concat());
        fs::write(self.folder.join(name), bytes).context("a .npy file")
    }

    fn safetensors(&self, header: &str, data: &[u8]) -> Result<()> {
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length, header.as_bytes(), data].concat();
        fs::write(self.folder.join("model.safetensors"), bytes).context("a safetensors file")
    }

    /// The arguments that import the table in this way.
    fn arguments(&self, way: &str) -> Vec<String> {
        let shown = |name: &str| self.folder.join(name).display().to_string();
        let all = match way {
            "npy" => vec![
                "--npy".into(),
                format!("t={}", shown("rows.npy")),
                "--ids".into(),
                format!("t={}", shown("ids.npy")),
            ],
            "safetensors" => vec![
                "--safetensors".into(),
                shown("model.safetensors"),
                "--tensor".into(),
                "t=rows".into(),
                "--ids".into(),
                "t=ids".into(),
            ],
            _ => vec!["--hugectr".into(), format!("t={}:{DIM}", shown("dump"))],
        };
        let target = self.site.path("imported").display().to_string();
        let begin = ["table", "import", &target].map(str::to_owned);
        begin.into_iter().chain(all).collect()
    }

    /// That importing it in this way is refused with all `parts`, soon, and leaves nothing behind.
    fn refused(&mut self, way: &str, more: &[&str], parts: &[&str]) -> Result<()> {
        let arguments = self.arguments(way);
        let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        arguments.extend(more);
        let began = Instant::now();
        let (status, said) = self.site.command("rowmill", &arguments)?;
        ensure!(status.code() == Some(1), "{way}: {status}: {said}");
        ensure!(
            began.elapsed() < BOUND,
            "{way}: after {:?}",
            began.elapsed()
        );
        for part in parts {
            ensure!(said.contains(part), "{way}: `{part}` is not in: {said}");
        }
        let left = left_over(self.site, "imported")?;
        ensure!(left.is_empty(), "{way} left {left:?} behind");
        self.cases += 1;
        Ok(())
    }

    /// That it can be imported in this way, and the result is undamaged.
    fn taken(&self, way: &str) -> Result<()> {
        let arguments = self.arguments(way);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (status, said) = self.site.command("rowmill", &arguments)?;
        ensure!(status.success(), "{way}: {status}: {said}");
        undamaged(self.site, &self.site.path("imported"))?;
        fs::remove_dir_all(self.site.path("imported")).context("the import")
    }

    fn passed(self) -> Result<Verdict> {
        // What was restored is good again, so nothing else was wrong with it.
        self.write(&values(), &keys())?;
        for way in WAYS {
            self.taken(way)?;
        }
        Ok(Verdict::Pass(format!(
            "{} cases; undamaged ones are taken",
            self.cases
        )))
    }
}

fn values() -> Vec<f32> {
    (0..ROWS * DIM).map(|index| index as f32 - 300.5).collect()
}

fn keys() -> Vec<i64> {
    (0..ROWS as i64).map(|row| row * 7919 - 5000).collect()
}

/// A safetensors header of these rows and keys.
fn header(rows: &[u8], keys: &[u8]) -> String {
    let (rows, end) = (rows.len(), rows.len() + keys.len());
    format!(
        "{{\"rows\":{{\"dtype\":\"F32\",\"shape\":[{ROWS},{DIM}],\"data_offsets\":[0,{rows}]}},\
         \"ids\":{{\"dtype\":\"I64\",\"shape\":[{ROWS}],\"data_offsets\":[{rows},{end}]}}}}"
    )
}

/// What there is of the generation `name`: itself, and drafts of it.
pub(super) fn left_over(site: &Site, name: &str) -> Result<Vec<OsString>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(site.path("")).context("the site")? {
        let file = entry.context("the site")?.file_name();
        if file == *name || file.to_string_lossy().starts_with(&format!(".{name}.")) {
            found.push(file);
        }
    }
    Ok(found)
}

/// That `rowmill table verify` finds nothing wrong.
pub(super) fn undamaged(site: &Site, model: &Path) -> Result<()> {
    let path = model.to_str().context("a path in UTF-8")?;
    let (status, said) = site.command("rowmill", &["table", "verify", path])?;
    ensure!(status.success(), "rowmill table verify: {status}: {said}");
    Ok(())
}

/// A value that is not finite, anywhere.
pub(super) fn not_finite(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    for (value, shown) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (f32::NEG_INFINITY, "-inf"),
    ] {
        for (row, column) in [(0, 0), (41, 3), (ROWS - 1, DIM - 1)] {
            let mut bad = values();
            bad[row * DIM + column] = value;
            sources.write(&bad, &keys())?;
            for way in WAYS {
                let path = sources.rows(way)?.0.display().to_string();
                let place = format!("{path}: row {row}, column {column} is {shown}");
                sources.refused(way, &["--format", "int8"], &[&place])?;
            }
        }
    }
    // A row of them, as a training that went wrong leaves it.
    let mut bad = values();
    bad[9 * DIM..10 * DIM].fill(f32::NAN);
    sources.write(&bad, &keys())?;
    sources.refused("npy", &[], &["row 9, column 0 is NaN"])?;
    sources.passed()
}

/// Values that the row format can't hold.
pub(super) fn unfit(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    let mut bad = values();
    bad[17 * DIM + 5] = 1e9;
    sources.write(&bad, &keys())?;
    for format in ["f16", "int8-f16", "int4"] {
        for way in WAYS {
            let path = sources.rows(way)?.0.display().to_string();
            let place = format!("{path}: row 17: dimension 5");
            sources.refused(way, &["--format", format], &[&place, "row format"])?;
        }
    }
    sources.passed()
}

/// Files that are cut.
pub(super) fn truncated(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    for way in WAYS {
        let (path, start) = sources.rows(way)?;
        let good = fs::read(&path).context("the rows")?;
        let shown = path.display().to_string();
        for len in [0, 7, start / 2, start + 1, start + DIM * 4, good.len() - 1] {
            fs::write(&path, &good[..len.min(good.len() - 1)]).context("the rows")?;
            let found = format!("{shown}: ");
            sources.refused(way, &[], &[&found])?;
        }
        // What was promised and what there is, both in numbers.
        fs::write(&path, &good[..good.len() - 1]).context("the rows")?;
        let numbers = match way {
            "npy" => [good.len(), good.len() - 1],
            "safetensors" => [ROWS * (DIM * 4 + 8), ROWS * (DIM * 4 + 8) - 1],
            _ => [ROWS, good.len() - 1],
        }
        .map(|number| number.to_string());
        sources.refused(
            way,
            &[],
            &[&shown, &numbers[0], &numbers[1], "copied whole"],
        )?;
        fs::write(&path, &good).context("the rows")?;
    }
    // Half of the vectors are whole vectors of half the dimensions: so who does not say them is asked to.
    let path = sources.folder.join("dump/emb_vector");
    let half = fs::read(&path).context("the rows")?[..ROWS * DIM * 2].to_vec();
    fs::write(&path, half).context("the rows")?;
    let with_dim = format!("t={}:{DIM}", sources.folder.join("dump").display());
    let target = site.path("imported").display().to_string();
    let (status, said) = site.command(
        "rowmill",
        &["table", "import", &target, "--hugectr", &with_dim],
    )?;
    let promised = format!(
        "promise {} bytes and it has {}",
        ROWS * DIM * 4,
        ROWS * DIM * 2
    );
    ensure!(
        status.code() == Some(1) && said.contains(&promised),
        "{status}: {said}"
    );
    let without = &with_dim[..with_dim.rfind(':').context("a dim")?];
    let arguments = ["table", "import", &target, "--hugectr", without];
    let (status, said) = site.command("rowmill", &arguments)?;
    let asked = format!("dump:{}, where {}", DIM / 2, DIM / 2);
    ensure!(
        status.code() == Some(1) && said.contains(&asked),
        "{status}: {said}"
    );
    for name in ["dump/key", "ids.npy"] {
        let path = sources.folder.join(name);
        let good = fs::read(&path).context("the keys")?;
        for less in [1, 8] {
            fs::write(&path, &good[..good.len() - less]).context("the keys")?;
            let way = if name == "ids.npy" { "npy" } else { "hugectr" };
            sources.refused(way, &[], &["copied whole"])?;
        }
    }
    sources.passed()
}

/// Arrays and tensors of another kind or shape.
pub(super) fn misshapen(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    let total = ROWS * DIM * 4;
    let rows = vec![0; total];
    for (kind, shape, bytes, part) in [
        ("<f8", format!("({ROWS}, {DIM})"), total * 2, "holds '<f8'"),
        (">f4", format!("({ROWS}, {DIM})"), total, "holds '>f4'"),
        ("<i4", format!("({ROWS}, {DIM})"), total, "holds '<i4'"),
        (
            "<f4",
            format!("({},)", ROWS * DIM),
            total,
            "has 1 dimensions",
        ),
        ("<f4", format!("({ROWS}, 2, 4)"), total, "has 3 dimensions"),
        (
            "<f4",
            format!("({ROWS}, 2)"),
            ROWS * 8,
            "2 dimensions are not possible",
        ),
        (
            "<f4",
            format!("({}, {DIM})", ROWS - 1),
            total - DIM * 4,
            "100 keys for the 99 rows",
        ),
        ("<f4", format!("(0, {DIM})"), 0, "100 keys for the 0 rows"),
    ] {
        sources.npy("rows.npy", kind, &shape, &vec![0; bytes])?;
        sources.refused("npy", &[], &[part])?;
    }
    let keys = vec![0; ROWS * 8];
    let good = header(&rows, &keys);
    let all = [&rows[..], &keys].concat();
    for (from, to, part) in [
        ("\"F32\"", "\"I32\"", "F32, F16 or BF16"),
        ("[100,8]", "[800]", "two dimensions"),
        ("[100,8]", "[400,2]", "100 keys for the 400 rows"),
        ("[100,8]", "[10,2,40]", "two dimensions"),
        (
            "\"I64\",\"shape\":[100]",
            "\"F64\",\"shape\":[100]",
            "can't be ids",
        ),
        (
            "\"I64\",\"shape\":[100]",
            "\"I32\",\"shape\":[200]",
            "can't be ids",
        ),
        (
            "\"I64\",\"shape\":[100]",
            "\"I64\",\"shape\":[50,2]",
            "can't be ids",
        ),
        (
            "\"rows\"",
            "\"others\"",
            "has no tensor \"rows\"; it has \"others\" (F32 [100, 8])",
        ),
    ] {
        sources.safetensors(&good.replacen(from, to, 1), &all)?;
        sources.refused("safetensors", &[], &["model.safetensors", part])?;
    }
    sources.passed()
}

/// safetensors headers that promise what can't be.
pub(super) fn lying_header(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    let (rows, keys) = (vec![0; ROWS * DIM * 4], vec![0; ROWS * 8]);
    let good = header(&rows, &keys);
    let all = [&rows[..], &keys].concat();
    for (from, to, part) in [
        ("\"ids\"", "\"rows\"", "two entries are named \"rows\""),
        ("[3200,4000]", "[3192,3992]", "may not overlap"),
        (
            "[3200,4000]",
            "[3208,4008]",
            "no tensor has its bytes 3200 to 3208",
        ),
        ("[3200,4000]", "[3200,4001]", "promise 800"),
        ("[3200,4000]", "[4000,3200]", "before it begins"),
        ("[3200,4000]", "[3200,18446744073709551615]", "promise 800"),
        (
            "[100,8]",
            "[4294967296,4294967296]",
            "a shape that no F32 tensor has",
        ),
        ("[100,8]", "[100,-8]", "can't be understood"),
        ("\"F32\"", "\"F31\"", "unknown variant `F31`"),
        ("\"shape\"", "\"strides\"", "unknown field `strides`"),
        ("}}", "}}\0\0\0", "filled up with NUL bytes"),
        ("}}", "}", "can't be understood"),
        ("{", "[", "no JSON object"),
    ] {
        sources.safetensors(&good.replacen(from, to, 1), &all)?;
        sources.refused("safetensors", &[], &["model.safetensors", part])?;
    }
    sources.safetensors(&good, &all[..all.len() - 8])?;
    let sizes = ["promises 4000 bytes of tensors and it has 3992"];
    sources.refused("safetensors", &[], &sizes)?;
    sources.safetensors(&format!("{{\"a\":{}", "[".repeat(1 << 20)), &all)?;
    sources.refused("safetensors", &[], &["can't be understood"])?;
    let path = sources.folder.join("model.safetensors");
    for length in [4096u64, 1 << 40, u64::MAX] {
        let bytes = [&length.to_le_bytes()[..], b"{}"].concat();
        fs::write(&path, bytes).context("a length")?;
        sources.refused("safetensors", &[], &["promises a header"])?;
    }
    sources.passed()
}

/// Ids that two rows have.
pub(super) fn duplicate_keys(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    for (first, second) in [(0, 1), (0, ROWS - 1), (41, 97)] {
        let mut bad = keys();
        bad[second] = bad[first];
        sources.write(&values(), &bad)?;
        for (way, file) in WAYS
            .into_iter()
            .zip(["ids.npy", "model.safetensors", "dump/key"])
        {
            let path = sources.folder.join(file).display().to_string();
            let place = format!(
                "{path}: rows {first} and {second} both have the id {}",
                bad[first] as u64
            );
            sources.refused(way, &[], &[&place])?;
        }
    }
    sources.passed()
}

/// Folders and files that look like a sparse model of HugeCTR.
pub(super) fn lookalikes(site: &Site) -> Result<Verdict> {
    let mut sources = Sources::new(site)?;
    let folder = sources.folder.join("dump");
    let mut become_ = |files: &[&str], parts: &[&str]| -> Result<()> {
        fs::remove_dir_all(&folder).context("the folder")?;
        for file in files {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().context("a folder")?).context("a folder")?;
            fs::write(path, [0; 592]).context("a file")?;
        }
        sources.refused("hugectr", &[], parts)
    };
    become_(
        &["e-key", "e-weight"],
        &["has no file `key`", "HugeCTR's SOK"],
    )?;
    become_(
        &["users/key", "users/emb_vector"],
        &["its folder `users` has `key`"],
    )?;
    become_(&["key"], &["has no file `emb_vector`"])?;
    become_(&["emb_vector"], &["has no file `key`"])?;
    become_(&["model.safetensors"], &["--safetensors"])?;
    fs::remove_dir_all(&folder).context("the folder")?;
    fs::write(&folder, [0; 592]).context("a file")?;
    sources.refused("hugectr", &[], &["old single-file models"])?;
    fs::remove_file(&folder).context("the file")?;
    fs::create_dir(&folder).context("the folder")?;
    sources.passed()
}
