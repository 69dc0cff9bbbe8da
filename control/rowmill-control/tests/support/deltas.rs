//! A small generation, and deltas of it.

use std::fs;
use std::path::{Path, PathBuf};

use rowmill_table::{Container, DeltaTable, Generation, generate, silent, write_delta};
use tempfile::TempDir;

/// See the module's text.
pub(crate) struct Deltas {
    folder: TempDir,
}

impl Deltas {
    /// Of a generation 1 whose values come from a seed.
    pub(crate) fn of(seed: u64) -> Deltas {
        let folder = tempfile::tempdir().unwrap();
        let specs = ["f:1000:16:f32".parse().unwrap()];
        generate(folder.path().join("g"), 1, &specs, seed, &silent).unwrap();
        Deltas { folder }
    }

    /// The file of one, of model `m`, with a row that is its value all over.
    pub(crate) fn make(&self, sequence: u64, value: f32) -> PathBuf {
        let path = |name: &str| self.folder.path().join(name);
        npy(&path("ids.npy"), "<i8", "(1,)", &8u64.to_le_bytes());
        let row: Vec<u8> = [value; 16].into_iter().flat_map(f32::to_le_bytes).collect();
        npy(&path("rows.npy"), "<f4", "(1, 16)", &row);
        let generation = Generation::open(path("g")).unwrap();
        let tables = [DeltaTable {
            name: "f".into(),
            from: Container::Npy {
                rows: path("rows.npy"),
                ids: Some(path("ids.npy")),
            },
        }];
        let file = path(&format!("{sequence}-{value}.delta"));
        write_delta(&file, "m", sequence, &generation, &tables).unwrap();
        file
    }

    /// Its bytes.
    pub(crate) fn bytes(&self, sequence: u64, value: f32) -> Vec<u8> {
        let file = self.make(sequence, value);
        let bytes = fs::read(&file).unwrap();
        fs::remove_file(file).unwrap();
        bytes
    }
}

fn npy(path: &Path, kind: &str, shape: &str, data: &[u8]) {
    let mut text = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}");
    text += &" ".repeat(117 - text.len());
    text.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((text.len() as u16).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes.extend(data);
    fs::write(path, bytes).unwrap();
}
