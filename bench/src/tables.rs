//! Suite `tables`: a hashed table against a dense one, and imports against a plain copy of the same bytes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rowmill_arena::{HugePages, Window};
use rowmill_engine::rows;
use rowmill_pooling::{Bags, Isa, Kernels, Mode, Output};
use rowmill_table::{
    Container, Import, Missing, Resident, ResidentTable, RowFormat, Safetensors, TableKind,
    TableSpec, WhenMissing, generated_key, import, silent,
};

use crate::batches::CALL_BAGS;
use crate::driver::{median, pin_to_first_cpu};
use crate::gather::{block, seconds_of};
use crate::ids::{Spread, ids};
use crate::report::{Measurement, Reporter};

/// Rows of each table.
const ROWS: u32 = 4_000_000;
/// Dimensions of a row.
const DIM: usize = 64;
/// Lookups of a round.
const LOOKUPS: usize = 1 << 20;
/// Ids a bag.
const BAG_LENGTH: usize = 32;
/// Rounds of lookups, each of both tables in turn.
const ROUNDS: usize = 15;
/// Rounds of imports, each with a copy in turn.
const IMPORT_ROUNDS: usize = 5;
/// Bytes of the files that are imported.
const IMPORT_BYTES: usize = 512 << 20;
/// Seed of the made-up tables.
const SEED: u64 = 7;

/// Runs the suite.
///
/// # Errors
/// Where memory or disk is short.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    let isa = Isa::detect().isa;
    let case = format!("format=f32/dim={DIM}/dist=uniform/mode=sum/isa={isa}/kind=hashed");
    if reporter.wants(&case) {
        eprintln!("tables: {case}");
        hashed_against_dense(&case, isa, reporter)?;
    }
    // Imports use every CPU, so pinning comes after them; the lookups above are done.
    let formats = if full {
        &RowFormat::ALL[..]
    } else {
        &[RowFormat::F32, RowFormat::Int8]
    };
    for container in ["npy", "hugectr", "safetensors"] {
        for &format in formats {
            let case = format!("import={container}/format={format}/dim={DIM}");
            if reporter.wants(&case) {
                eprintln!("tables: {case}");
                import_against_copy(&case, container, format, reporter)?;
            }
        }
    }
    Ok(())
}

/// Ids resolved to rows, and the rows pooled, a call of bags at a time.
struct Lookups<'a> {
    table: &'a ResidentTable,
    ids: Vec<u64>,
    kernels: Kernels,
    found: Vec<u32>,
    lengths: Vec<u32>,
    target: Vec<u8>,
}

impl<'a> Lookups<'a> {
    fn new(table: &'a ResidentTable, ids: Vec<u64>, isa: Isa) -> Lookups<'a> {
        Lookups {
            table,
            ids,
            kernels: Kernels::new(isa),
            found: vec![0; CALL_BAGS * BAG_LENGTH],
            lengths: vec![BAG_LENGTH as u32; CALL_BAGS],
            target: vec![0; CALL_BAGS * 4 * DIM],
        }
    }

    fn run(&mut self) {
        let target = Window::over(&mut self.target);
        for ids in self.ids.chunks(CALL_BAGS * BAG_LENGTH) {
            let found = &mut self.found[..ids.len()];
            self.table.resolve(ids, found).expect("ids of the table");
            let bags = Bags {
                rows: rows(self.table),
                ids: found,
                lengths: &self.lengths[..ids.len() / BAG_LENGTH],
                weights: None,
                mode: Mode::Sum,
                output: Output::F32,
                offset: 0,
                stride: 4 * DIM,
            };
            self.kernels.pool(&[bags], &target);
        }
    }
}

fn hashed_against_dense(case: &str, isa: Isa, reporter: &mut Reporter) -> Result<()> {
    let spec = |name: &str, kind| TableSpec {
        name: name.into(),
        rows: ROWS.into(),
        dim: DIM,
        format: RowFormat::F32,
        kind,
    };
    let specs = [
        spec("dense", TableKind::Dense),
        spec("hashed", TableKind::Hashed(Missing::Error)),
    ];
    let tables = Resident::in_memory(&specs, SEED, HugePages::Prefer, &silent)
        .context("tables in memory")?;
    std::thread::scope(|scope| {
        // A thread of its own, so that its pinning ends with it.
        scope
            .spawn(|| compare(case, &tables, isa, reporter))
            .join()
            .expect("no panic")
    })
}

fn compare(case: &str, tables: &Resident, isa: Isa, reporter: &mut Reporter) -> Result<()> {
    pin_to_first_cpu()?;
    let numbers = ids(Spread::Uniform, ROWS, LOOKUPS, 6);
    let keys = numbers
        .iter()
        .map(|&row| generated_key(SEED, 1, row.into()));
    let mut hashed = Lookups::new(&tables.tables()[1], keys.collect(), isa);
    let dense_ids = numbers.iter().map(|&row| row.into()).collect();
    let mut dense = Lookups::new(&tables.tables()[0], dense_ids, isa);
    let (mut hashed_rates, mut dense_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let hashed_rate = LOOKUPS as f64 / seconds_of(|| hashed.run());
        let dense_rate = LOOKUPS as f64 / seconds_of(|| dense.run());
        hashed_rates.push(hashed_rate);
        dense_rates.push(dense_rate);
        ratios.push(hashed_rate / dense_rate);
    }
    let rate = Measurement::plain("tables", case, "rate", median(hashed_rates), "rows/s");
    reporter.add(rate.beside("dense", median(dense_rates), median(ratios)));
    Ok(())
}

/// An import, synced as imports are, against a copy of its sources, synced too.
fn import_against_copy(
    case: &str,
    container: &str,
    format: RowFormat,
    reporter: &mut Reporter,
) -> Result<()> {
    // Beside the models, on the disk that holds them.
    let cache = crate::model::cache_folder();
    fs::create_dir_all(&cache).with_context(|| format!("cannot make {}", cache.display()))?;
    let folder = tempfile::tempdir_in(cache).context("a folder for files")?;
    let (files, from) = sources(container, folder.path())?;
    let bytes: u64 = files
        .iter()
        .map(|file| file.metadata().map_or(0, |m| m.len()))
        .sum();
    let table = [Import {
        name: "table".into(),
        from,
        dim: Some(DIM),
        format,
        missing: WhenMissing::Error,
    }];
    let (mut imports, mut copies, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..IMPORT_ROUNDS {
        let (generation, copy) = (folder.path().join("generation"), folder.path().join("copy"));
        let mut outcome = Ok(());
        let imported = seconds_of(|| outcome = import(&generation, 1, &table, None, &silent));
        outcome?;
        let mut outcome = Ok(());
        let copied = seconds_of(|| {
            outcome = files.iter().try_for_each(|file| {
                fs::copy(file, &copy)?;
                File::open(&copy)?.sync_all()
            });
        });
        outcome.context("copying")?;
        fs::remove_dir_all(&generation).context("removing what was imported")?;
        fs::remove_file(&copy).context("removing the copy")?;
        let gigabytes = bytes as f64 / 1e9;
        imports.push(gigabytes / imported);
        copies.push(gigabytes / copied);
        ratios.push(copied / imported);
    }
    let speed = Measurement::plain("tables", case, "bandwidth", median(imports), "GB/s");
    reporter.add(speed.beside("cp", median(copies), median(ratios)));
    Ok(())
}

/// Files to import, and what they are.
fn sources(container: &str, folder: &Path) -> Result<(Vec<PathBuf>, Container)> {
    let rows = IMPORT_BYTES / (4 * DIM);
    let write =
        |name: &str, head: &[u8], body: &mut dyn FnMut(&mut File) -> std::io::Result<()>| {
            let path = folder.join(name);
            let mut file = File::create(&path)?;
            file.write_all(head)?;
            body(&mut file)?;
            file.sync_all()?;
            Ok::<_, std::io::Error>(path)
        };
    let block = block();
    let mut values =
        |file: &mut File| (0..IMPORT_BYTES / block.len()).try_for_each(|_| file.write_all(&block));
    if container == "npy" {
        let text =
            format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {DIM}), }}");
        let mut head = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
        head.extend(format!("{text:<117}\n").bytes());
        let path = write("rows.npy", &head, &mut values)?;
        let rows = path.clone();
        return Ok((vec![path], Container::Npy { rows, ids: None }));
    }
    if container == "safetensors" {
        let header = serde_json::json!({
            "rows": {"dtype": "F32", "shape": [rows, DIM], "data_offsets": [0, IMPORT_BYTES]}
        });
        let header = header.to_string();
        let mut head = (header.len() as u64).to_le_bytes().to_vec();
        head.extend(header.bytes());
        let path = write("rows.safetensors", &head, &mut values)?;
        let rows = (Safetensors::open(&path)?, "rows".to_owned());
        return Ok((vec![path], Container::Safetensors { rows, ids: None }));
    }
    let mut keys = |file: &mut File| {
        let keys: Vec<u8> = (0..rows as u64)
            .flat_map(|row| generated_key(SEED, 0, row).to_le_bytes())
            .collect();
        file.write_all(&keys)
    };
    let files = vec![
        write("key", &[], &mut keys)?,
        write("emb_vector", &[], &mut values)?,
    ];
    Ok((files, Container::HugeCtr(folder.to_owned())))
}
