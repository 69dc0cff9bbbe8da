//! Suite `peers`: PyTorch's `embedding_bag` and its quantised forms on the same rows and ids, one thread
//! each, in turns; and before that TorchRec's collection beside ours (`torchrec.rs`).
//!
//! PyTorch runs in a Python process beside this one (`bench/peers.py`), which waits while this one works.
//! Before anything is timed, what PyTorch decodes of our rows and what it pools is compared with ours.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rowmill_pooling::{Isa, Kernels, Mode, Output, RowFormat, Rows, scalar};

use crate::batches::{CALL_BAGS, Pooling};
use crate::cache_hits::{self, Hits};
use crate::driver::{median, pin_to_first_cpu};
use crate::gather::{Memory, block, seconds_of};
use crate::ids::{Spread, ids};
use crate::python::Python;
use crate::report::{Measurement, Reporter};
use crate::torchrec;

/// The program of the other side.
const PROGRAM: &str = include_str!("../peers.py");
/// Rounds, each of both sides in turn.
const ROUNDS: usize = 9;
/// Lookups of a round: some tens of milliseconds of ours.
const LOOKUPS: usize = 1 << 20;
/// Ids a bag.
const BAG_LENGTH: u32 = 32;
/// Rows whose decoding is compared.
const DECODED: usize = 1000;

/// Runs the suite.
///
/// # Errors
/// Where there is no PyTorch (the message says how to get it), or where the two sides disagree.
pub(crate) fn run(full: bool, reporter: &mut Reporter) -> Result<()> {
    // First, since it needs all CPUs. What it fails at keeps nothing else from being measured.
    let collections = torchrec::run(full, reporter);
    pin_to_first_cpu()?;
    let folder = tempfile::tempdir().context("a folder for rows and ids")?;
    let mut peer = Peer::start(folder.path())?;
    let memory = Memory::allocate()?;
    let dims: &[usize] = if full {
        &[16, 32, 64, 128, 256]
    } else {
        &[64, 128]
    };
    let formats = [
        RowFormat::F32,
        RowFormat::F16,
        RowFormat::Bf16,
        RowFormat::Int8,
        RowFormat::Int4,
    ];
    let spreads: &[Spread] = if full {
        &[Spread::Uniform, Spread::Zipf]
    } else {
        &[Spread::Uniform]
    };
    for format in formats {
        for &dim in dims {
            for &spread in spreads {
                let isa = Isa::detect().isa;
                let dist = spread.name();
                let case = format!("format={format}/dim={dim}/dist={dist}/mode=sum/isa={isa}");
                if reporter.wants(&case) {
                    eprintln!("peers: {case}");
                    measure(
                        &case,
                        memory.rows(dim, format),
                        spread,
                        isa,
                        &mut peer,
                        reporter,
                    )?;
                }
            }
        }
    }
    let (format, dim) = (RowFormat::Int8, 64);
    let case = cache_hits::case(cache_hits::ROWS, format, dim);
    if reporter.wants(&case) {
        eprintln!("peers: {case}");
        let mut hits = Hits::new(cache_hits::ROWS, format, dim, LOOKUPS)?;
        measure_hits(&case, &mut hits, &mut peer, reporter)?;
    }
    collections
}

/// Measures lookups of cached rows that all hit beside PyTorch's, which look nothing up: as many rows, and ids drawn as evenly.
fn measure_hits(
    case: &str,
    hits: &mut Hits,
    peer: &mut Peer,
    reporter: &mut Reporter,
) -> Result<()> {
    let ids = ids(Spread::Uniform, hits.slots().count(), LOOKUPS, 5);
    let against = peer.prepare(&hits.slots(), &ids)?;
    report(case, &against, || hits.all(), peer, reporter)
}

/// Measures a case on both sides.
fn measure(
    case: &str,
    rows: Rows<'_>,
    spread: Spread,
    isa: Isa,
    peer: &mut Peer,
    reporter: &mut Reporter,
) -> Result<()> {
    let ids = ids(spread, rows.count(), LOOKUPS, 5);
    let against = peer.prepare(&rows, &ids)?;
    let mut ours = Pooling {
        rows,
        ids: &ids,
        weights: None,
        lengths: vec![BAG_LENGTH; CALL_BAGS],
        mode: Mode::Sum,
        output: Output::F32,
        kernels: Kernels::new(isa),
        target: vec![0; CALL_BAGS * 4 * rows.dim()],
    };
    compare_decoded(&rows, &peer.decoded()?)?;
    compare_pooled(&rows, &ids, &peer.first()?)?;
    report(case, &against, || ours.pool_all(), peer, reporter)
}

/// Reports the rates of rounds of both sides in turns.
fn report(
    case: &str,
    against: &str,
    mut ours: impl FnMut(),
    peer: &mut Peer,
    reporter: &mut Reporter,
) -> Result<()> {
    let (mut our_rates, mut their_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let our_rate = LOOKUPS as f64 / seconds_of(&mut ours);
        let their_rate = LOOKUPS as f64 / peer.round()?;
        our_rates.push(our_rate);
        their_rates.push(their_rate);
        ratios.push(our_rate / their_rate);
    }
    let rate = Measurement::plain("peers", case, "rate", median(our_rates), "rows/s");
    reporter.add(rate.beside(against.to_owned(), median(their_rates), median(ratios)));
    Ok(())
}

/// PyTorch reads our rows as we do, but for a rounding: it may multiply and add in two steps.
fn compare_decoded(rows: &Rows<'_>, decoded: &[f32]) -> Result<()> {
    let mut values = vec![0.0; rows.dim()];
    for (id, theirs) in decoded.chunks_exact(rows.dim()).enumerate() {
        scalar::row(rows, id as u32, &mut values);
        for (d, (our, their)) in values.iter().zip(theirs).enumerate() {
            ensure!(
                (our - their).abs() <= 1e-6 * our.abs().max(1.0),
                "PyTorch decodes dimension {d} of row {id} as {their}, not as {our}"
            );
        }
    }
    Ok(())
}

/// PyTorch pools the same, but for roundings: of its own order, and to 16 bits where its results are.
fn compare_pooled(rows: &Rows<'_>, ids: &[u32], pooled: &[f32]) -> Result<()> {
    let tolerance = match rows.format() {
        RowFormat::F16 => 2e-3,
        RowFormat::Bf16 => 1.6e-2,
        _ => 5e-6,
    };
    let mut vector = vec![0.0; rows.dim()];
    let mut one = vec![0.0; rows.dim()];
    let bags = ids.chunks_exact(BAG_LENGTH as usize);
    for (bag, (ids, theirs)) in bags
        .zip(pooled.chunks_exact(rows.dim()))
        .enumerate()
        .take(64)
    {
        scalar::bag(rows, ids, None, Mode::Sum, &mut vector);
        // Terms of both signs cancel, so that errors are to be judged by the terms.
        let mut size = vec![0.0f32; rows.dim()];
        for &id in ids {
            scalar::row(rows, id, &mut one);
            size.iter_mut()
                .zip(&one)
                .for_each(|(size, x)| *size += x.abs());
        }
        for (d, (our, their)) in vector.iter().zip(theirs).enumerate() {
            ensure!(
                (our - their).abs() <= tolerance * size[d].max(f32::MIN_POSITIVE),
                "PyTorch pools dimension {d} of bag {bag} to {their}, not to {our}"
            );
        }
    }
    Ok(())
}

/// The other side.
struct Peer {
    python: Python,
    folder: PathBuf,
}

impl Peer {
    fn start(folder: &Path) -> Result<Peer> {
        fs::write(folder.join("block"), block()).context("writing the rows' block")?;
        Ok(Peer {
            python: Python::start(PROGRAM, &[])?,
            folder: folder.to_owned(),
        })
    }

    /// Has the rows and ids made over there; the name of what they are pooled with.
    fn prepare(&mut self, rows: &Rows<'_>, ids: &[u32]) -> Result<String> {
        let file = self.folder.join("ids");
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        fs::write(&file, bytes).context("writing the ids")?;
        let block = self.folder.join("block");
        let answer = self.python.ask(&format!(
            "case {} {} {} {} {} {BAG_LENGTH} {CALL_BAGS}",
            rows.format(),
            rows.dim(),
            rows.count(),
            block.display(),
            file.display()
        ))?;
        let name = answer
            .strip_prefix("ready ")
            .context("PyTorch's side got no case ready")?;
        Ok(name.to_owned())
    }

    fn round(&mut self) -> Result<f64> {
        self.python.seconds("round")
    }

    fn first(&mut self) -> Result<Vec<f32>> {
        self.floats("first", "")
    }

    fn decoded(&mut self) -> Result<Vec<f32>> {
        self.floats("decoded", &DECODED.to_string())
    }

    fn floats(&mut self, command: &str, argument: &str) -> Result<Vec<f32>> {
        let file = self.folder.join(command);
        self.python
            .floats(&format!("{command} {} {argument}", file.display()), &file)
    }
}
