//! Tables from the files of others: one generation of several sources, read in pieces.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::import_file::{Contents, Values};
use crate::spec::{Missing, TableKind, TableSpec};
use crate::transcode::{self, Numbers, transcode};
use crate::writer::{RowSource, random_seed, write_generation};
use crate::{Progress, RowFormat, Safetensors, TableError, import_hugectr, import_npy};

/// A table and where it comes from.
#[derive(Clone, Debug)]
pub struct Import {
    /// The table's name.
    pub name: String,
    /// Where its rows lie.
    pub from: Container,
    /// The dimensions that the rows must have, where the caller knows them. HugeCTR's folders don't say
    /// them, so that they need it.
    pub dim: Option<usize>,
    /// How rows are to be stored.
    pub format: RowFormat,
    /// The answer to ids that no row has; of no meaning where rows are named by their number.
    pub missing: WhenMissing,
}

/// The answer to ids that no row of a hashed table has.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum WhenMissing {
    /// A refusal of the request.
    #[default]
    Error,
    /// A row of zeros.
    Zero,
    /// A row of this value in all dimensions.
    Value(f32),
    /// The row in a `.npy` file: one dimension of f32 or f16.
    Row(PathBuf),
}

impl WhenMissing {
    fn kind(&self) -> Missing {
        match self {
            WhenMissing::Error => Missing::Error,
            WhenMissing::Zero => Missing::Zero,
            WhenMissing::Value(_) | WhenMissing::Row(_) => Missing::Default,
        }
    }

    /// The row for missing ids, encoded as those of `spec`; none where there is no such row or it is
    /// one of zeros.
    fn row(&self, spec: &TableSpec) -> Result<Option<Vec<u8>>, TableError> {
        let mut values = vec![0.0; spec.dim];
        match self {
            WhenMissing::Error | WhenMissing::Zero => return Ok(None),
            WhenMissing::Value(value) => {
                values.fill(*value);
                spec.format
                    .check(&values)
                    .map_err(|unfit| TableError::UnfitDefault {
                        table: spec.name.clone(),
                        unfit,
                    })?;
            }
            WhenMissing::Row(path) => {
                let row = import_npy::row(path)?;
                if row.dim != spec.dim as u64 {
                    return Err(row.file.bad(format!(
                        "has {} dimensions and the table {} has {}",
                        row.dim, spec.name, spec.dim
                    )));
                }
                row.read(0, &mut Vec::new(), &mut values)?;
                transcode::check(spec.format, &row, 0, &values)?;
            }
        }
        let mut encoded = vec![0; spec.stride()];
        spec.format.encode(&values, &mut encoded);
        Ok(Some(encoded))
    }
}

/// Where the rows of a table lie, and their ids if rows are not to be named by their number.
#[derive(Clone, Debug)]
pub enum Container {
    /// NumPy's files.
    Npy {
        /// A two-dimensional array of f32 or f16 in C order, a row an embedding.
        rows: PathBuf,
        /// A one-dimensional array of 64-bit integers, the id of each row.
        ids: Option<PathBuf>,
    },
    /// Tensors of safetensors files.
    Safetensors {
        /// A two-dimensional tensor of F32, F16 or BF16, and its file.
        rows: (Safetensors, String),
        /// A one-dimensional tensor of I64 or U64, the id of each row, and its file.
        ids: Option<(Safetensors, String)>,
    },
    /// A folder that HugeCTR wrote: `key` and `emb_vector`.
    HugeCtr(PathBuf),
}

/// Makes generation `number` at `dir`, which must not exist, of the files of others.
///
/// Rows are encoded as [`RowFormat::encode`] says. `seed` is that of the hash of hashed tables: without
/// one it is random, so that nobody can choose ids that meet in it. Memory use is bounded, whatever the size, and nothing
/// that opens is left behind if the work is interrupted.
///
/// # Errors
/// [`TableError::BadSource`] for files of another kind or size and for two rows of one id,
/// [`TableError::NotFinite`] and [`TableError::Unfit`] for a value that can't be stored, and all errors of [`generate`](crate::generate()).
pub fn import(
    dir: impl AsRef<Path>,
    number: u64,
    tables: &[Import],
    seed: Option<u64>,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    import_until(&AtomicBool::new(false), dir, number, tables, seed, progress)
}

/// Makes a generation as [`import`] does, unless `stop` is set before it is done.
///
/// # Errors
/// [`TableError::Interrupted`] once `stop` is set: then nothing is left behind. All errors of [`import`].
pub fn import_until(
    stop: &AtomicBool,
    dir: impl AsRef<Path>,
    number: u64,
    tables: &[Import],
    seed: Option<u64>,
    progress: Progress<'_>,
) -> Result<(), TableError> {
    let sources = tables
        .iter()
        .map(Source::open)
        .collect::<Result<Vec<_>, _>>()?;
    let specs: Vec<TableSpec> = sources.iter().map(|source| source.spec.clone()).collect();
    let (sources, seed) = (Sources(sources), seed.unwrap_or_else(random_seed));
    let dir = dir.as_ref();
    write_generation(dir, number, &specs, &sources, seed, progress, stop)
        .map_err(|error| sources.with_file(error))
}

/// An opened table whose sizes are checked.
struct Source {
    spec: TableSpec,
    contents: Contents,
    default_row: Option<Vec<u8>>,
}

impl Source {
    fn open(table: &Import) -> Result<Source, TableError> {
        let contents = contents(&table.from, table.dim)?;
        let Values {
            file, rows, dim, ..
        } = &contents.rows;
        if let Some(expected) = table.dim
            && expected as u64 != *dim
        {
            return Err(file.bad(format!(
                "has rows of {dim} dimensions and {expected} were asked for"
            )));
        }
        let spec = TableSpec {
            name: table.name.clone(),
            rows: *rows,
            // More than a usize holds is more than is possible, and `check` says so.
            dim: usize::try_from(*dim).unwrap_or(usize::MAX),
            format: table.format,
            kind: match contents.keys {
                Some(_) => TableKind::Hashed(table.missing.kind()),
                None => TableKind::Dense,
            },
        };
        spec.check()?;
        let default_row = match spec.kind {
            TableKind::Hashed(_) => table.missing.row(&spec)?,
            TableKind::Dense => None,
        };
        Ok(Source {
            spec,
            contents,
            default_row,
        })
    }
}

/// Opens what lies there; `dim` is what the caller knows of its rows.
pub(crate) fn contents(from: &Container, dim: Option<usize>) -> Result<Contents, TableError> {
    match from {
        Container::Npy { rows, ids } => {
            let keys = ids.as_deref().map(import_npy::keys).transpose()?;
            Contents::new(import_npy::rows(rows)?, keys)
        }
        Container::Safetensors { rows, ids } => {
            let keys = ids
                .as_ref()
                .map(|(file, name)| file.keys(name))
                .transpose()?;
            Contents::new(rows.0.values(&rows.1)?, keys)
        }
        Container::HugeCtr(folder) => import_hugectr::open(folder, dim.map(|dim| dim as u64)),
    }
}

struct Sources(Vec<Source>);

impl Sources {
    /// The same error, with the file named that has two rows of one key.
    fn with_file(&self, error: TableError) -> TableError {
        let TableError::DuplicateKey {
            table,
            key,
            first,
            second,
        } = &error
        else {
            return error;
        };
        let source = self.0.iter().find(|source| source.spec.name == *table);
        match source.and_then(|source| source.contents.keys.as_ref()) {
            Some(keys) => {
                let signed = *key as i64;
                let signed = if signed < 0 {
                    format!(" ({signed})")
                } else {
                    String::new()
                };
                keys.file.bad(format!(
                    "rows {first} and {second} both have the id {key}{signed}; remove one of them before \
                     importing"
                ))
            }
            None => error,
        }
    }
}

impl RowSource for Sources {
    fn rows(&self, table: usize, first: u64, out: &mut [u8]) -> Result<(), TableError> {
        let Source { spec, contents, .. } = &self.0[table];
        transcode(&contents.rows, spec.format, first, out)
    }

    fn keys(&self, table: usize, first: u64, out: &mut [u64]) -> Result<(), TableError> {
        let keys = self.0[table].contents.keys.as_ref();
        keys.expect("keys are asked for where there are some")
            .read(first, out)
    }

    fn default_row(&self, table: usize, out: &mut [u8]) -> Result<(), TableError> {
        if let Some(row) = &self.0[table].default_row {
            out.copy_from_slice(row);
        }
        Ok(())
    }
}
