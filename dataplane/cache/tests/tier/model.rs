//! A generation of small tables, and a tier over its files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rowmill_arena::{ArenaError, HugePages, PageCache};
use rowmill_cache::tier::{FileTable, FileTier, FileTierOptions, Tier, TierError, Wanted};
use rowmill_table::{Generation, PAGE_BYTES, TableSpec, generate, silent};
use tempfile::TempDir;

pub(crate) const FOREVER_NS: u64 = u64::MAX;
/// What hangs ends after this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Tables whose rows lie in pages, across pages, and in three of them; the last with a row for missing ids.
pub(crate) const SPECS: [&str; 4] = [
    "aligned:1000:64:f32",
    "crossing:3000:64:int8",
    "wide:50:2044:f32",
    "keyed:700:32:f16:hashed-zero",
];

pub(crate) struct Model {
    _temp: TempDir,
    pub(crate) generation: Generation,
    /// The bytes of each table's file.
    pub(crate) files: Vec<Vec<u8>>,
}

impl Model {
    pub(crate) fn new() -> Model {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("model");
        let specs = SPECS.map(|text| text.parse::<TableSpec>().unwrap());
        generate(&dir, 1, &specs, 5, &silent).unwrap();
        let generation = Generation::open(&dir).unwrap();
        let read = |info| std::fs::read(generation.path(info)).unwrap();
        let files = generation.tables().iter().map(read).collect();
        Model {
            _temp: temp,
            generation,
            files,
        }
    }

    pub(crate) fn path(&self, table: u32) -> PathBuf {
        self.generation
            .path(&self.generation.tables()[table as usize])
    }

    pub(crate) fn rows(&self, table: u32) -> u32 {
        self.generation.tables()[table as usize].stored_rows() as u32
    }

    pub(crate) fn row(&self, table: u32, row: u32) -> &[u8] {
        let place = self.generation.tables()[table as usize].row_place(row);
        &self.files[table as usize][place.offset as usize..][..place.bytes]
    }

    pub(crate) fn table(&self, table: u32) -> FileTable {
        let name = &self.generation.tables()[table as usize].name;
        FileTable::open(&self.generation, name, PageCache::Allow).unwrap()
    }

    /// A tier over all files, unless the kernel has no io_uring.
    pub(crate) fn tier(&self, fetches: u32) -> Option<FileTier> {
        let tier = FileTier::new(FileTierOptions {
            reads: 8,
            read_bytes: 4 * PAGE_BYTES,
            fetches,
            tables: SPECS.len() as u32,
            budget_ns: FOREVER_NS,
            polled: false,
            huge_pages: HugePages::Off,
        });
        let mut tier = match tier {
            Err(ArenaError::NoIoUring { source }) => {
                println!("skipped: no io_uring here ({source})");
                return None;
            }
            tier => tier.unwrap(),
        };
        for table in 0..SPECS.len() as u32 {
            assert_eq!(tier.add(self.table(table)).unwrap(), table);
        }
        Some(tier)
    }
}

pub(crate) fn wanted(table: u32, row: u32, token: u64) -> Wanted {
    Wanted {
        table,
        row,
        token,
        deadline_ns: FOREVER_NS,
    }
}

pub(crate) type Answers = BTreeMap<u64, Result<Vec<u8>, TierError>>;

/// Polls once; each token has one answer.
pub(crate) fn poll(tier: &mut dyn Tier, now_ns: u64, answers: &mut Answers) {
    tier.poll(now_ns, &mut |token, row| {
        let before = answers.insert(token, row.map(<[u8]>::to_vec));
        assert_eq!(before, None, "token {token} twice");
    });
}

/// Polls until all is answered.
pub(crate) fn finish(tier: &mut dyn Tier) -> Answers {
    let mut answers = Answers::new();
    let began = Instant::now();
    while tier.unanswered() > 0 {
        assert!(began.elapsed() < PATIENCE, "no answers");
        poll(tier, 0, &mut answers);
    }
    answers
}
