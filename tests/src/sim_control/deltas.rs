//! Deltas: what they are, who makes them, and the stream by which they come.

use std::collections::{BTreeMap, VecDeque};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use rowmill_table::{Container, DeltaFile, DeltaTable, Generation, generate, silent, write_delta};

/// Generations of the model that has deltas, from 1 on.
pub(super) const GENERATIONS: u64 = 3;
/// Deltas of each that are made at most.
pub(super) const DELTAS: u64 = 8;
/// The model that has deltas.
pub(super) const MODEL: &str = "m";

/// A delta.
#[derive(Debug)]
pub(super) struct Delta {
    pub(super) generation: u64,
    pub(super) sequence: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) crc32: u32,
    /// The fingerprint of its generation.
    pub(super) base: u32,
}

/// All that there may be, each beside another one of its number.
static ALL: LazyLock<BTreeMap<(u64, u64), [Delta; 2]>> = LazyLock::new(make);

/// A delta, or the other one of its number.
pub(super) fn delta(generation: u64, sequence: u64, is_other: bool) -> &'static Delta {
    &ALL[&(generation, sequence)][usize::from(is_other)]
}

/// The fingerprint of a generation.
pub(super) fn base(generation: u64) -> u32 {
    delta(generation, 1, false).base
}

/// A folder for files that need not last.
pub(super) fn scratch() -> tempfile::TempDir {
    let quick = Path::new("/dev/shm");
    let folder = match quick.is_dir() {
        true => tempfile::tempdir_in(quick),
        false => tempfile::tempdir(),
    };
    folder.expect("there is room")
}

fn make() -> BTreeMap<(u64, u64), [Delta; 2]> {
    let folder = scratch();
    let mut all = BTreeMap::new();
    for number in 1..=GENERATIONS {
        let path = folder.path().join(format!("{number}"));
        let specs = ["f:16:4:f32".parse().expect("a table")];
        generate(&path, number, &specs, number, &silent).expect("it can be made");
        let generation = Generation::open(path).expect("it was made");
        for sequence in 1..=DELTAS {
            let two = [0.0, 0.5].map(|more| {
                let made = one(folder.path(), &generation, sequence, sequence as f32 + more);
                let (bytes, file) = made;
                Delta {
                    generation: number,
                    sequence,
                    bytes,
                    crc32: file.crc32(),
                    base: file.head().base,
                }
            });
            all.insert((number, sequence), two);
        }
    }
    all
}

/// One of a row that is a value all over.
fn one(folder: &Path, generation: &Generation, sequence: u64, value: f32) -> (Vec<u8>, DeltaFile) {
    let path = |name: &str| folder.join(name);
    npy(&path("ids.npy"), "<i8", "(1,)", &8u64.to_le_bytes());
    let row: Vec<u8> = [value; 4].into_iter().flat_map(f32::to_le_bytes).collect();
    npy(&path("rows.npy"), "<f4", "(1, 4)", &row);
    let tables = [DeltaTable {
        name: "f".into(),
        from: Container::Npy {
            rows: path("rows.npy"),
            ids: Some(path("ids.npy")),
        },
    }];
    let file = path("delta");
    write_delta(&file, MODEL, sequence, generation, &tables).expect("it can be made");
    let made = (
        fs::read(&file).expect("it was made"),
        DeltaFile::open(&file).expect("it was made"),
    );
    fs::remove_file(file).expect("it was made");
    made
}

fn npy(path: &Path, kind: &str, shape: &str, data: &[u8]) {
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    text += &" ".repeat(117 - text.len());
    text.push('\n');
    let mut file = fs::File::create(path).expect("there is room");
    let head = (text.len() as u16).to_le_bytes();
    for part in [b"\x93NUMPY\x01\x00", &head[..], text.as_bytes(), data] {
        file.write_all(part).expect("there is room");
    }
}

/// Who makes deltas, and a stream that loses some and gives some twice.
#[derive(Debug, Default)]
pub(super) struct Publisher {
    /// How many of each generation were made.
    pub(super) made: BTreeMap<u64, u64>,
    /// How many of each the log has acknowledged.
    pub(super) acknowledged: BTreeMap<u64, u64>,
    /// What is in the stream.
    pub(super) stream: VecDeque<&'static Delta>,
}

impl Publisher {
    /// Makes the next one of a generation, if there may be more.
    pub(super) fn next(&mut self, generation: u64) -> Option<&'static Delta> {
        let made = self.made.entry(generation).or_default();
        if *made == DELTAS {
            return None;
        }
        *made += 1;
        Some(delta(generation, *made, false))
    }

    pub(super) fn is_acknowledged(&mut self, delta: &Delta) {
        let last = self.acknowledged.entry(delta.generation).or_default();
        *last = (*last).max(delta.sequence);
    }
}

/// Files of deltas in the directory of a log.
pub(super) fn kept(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![directory.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(folder).into_iter().flatten();
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "delta") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
