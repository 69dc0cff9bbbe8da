//! Generated models in the cache folder, made once by `rowmill table generate` and used again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use rowmill_arena::HugePages;
use rowmill_client::{Pooling, Schema};
use rowmill_engine::rows;
use rowmill_pooling::{Bags, Mode, Output};
use rowmill_table::{Generation, LoadOptions, Resident, Shape, silent};

use crate::service::program;
use crate::workload::Query;

/// The seed of all models that measurements make.
const SEED: u64 = 2021;

/// A model on disk.
pub(crate) struct Model {
    /// The generation's folder.
    pub directory: PathBuf,
    generation: Generation,
}

/// The folder for what can be made again: `$ROWMILL_CACHE`, else `~/.cache/rowmill`.
pub(crate) fn cache_folder() -> PathBuf {
    match std::env::var_os("ROWMILL_CACHE") {
        Some(folder) => folder.into(),
        None => PathBuf::from(std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into()))
            .join(".cache/rowmill"),
    }
}

impl Model {
    /// The DLRM-v2 shape scaled to at most `bytes` of files, and the factor of its rows.
    ///
    /// # Errors
    /// Where it can't be made.
    pub(crate) fn dlrm_v2(bytes: u64) -> Result<(Model, f64)> {
        let fitting = Shape::dlrm_v2().fitting(bytes);
        let (factor, _) =
            fitting.with_context(|| format!("DLRM-v2 can't be scaled to {bytes} bytes"))?;
        let name = format!("dlrm-v2-{bytes}");
        let model = Model::cached(&name, &["--shape", "dlrm-v2", "--fit", &bytes.to_string()])?;
        Ok((model, factor))
    }

    /// One table named `trace` of `rows` rows of 128 f32.
    ///
    /// # Errors
    /// Where it can't be made.
    pub(crate) fn single(rows: u64) -> Result<Model> {
        Model::cached(
            &format!("trace-{rows}"),
            &["--table", &format!("trace:{rows}:128:f32")],
        )
    }

    /// One table named `rows` of so many rows of f32.
    ///
    /// # Errors
    /// Where it can't be made.
    pub(crate) fn of_rows(rows: u64, dim: usize) -> Result<Model> {
        Model::cached(
            &format!("rows-{rows}-{dim}"),
            &["--table", &format!("rows:{rows}:{dim}:f32")],
        )
    }

    /// Tables of so many rows of `dim` f32, with these names; of each generation other values.
    ///
    /// # Errors
    /// Where it can't be made.
    pub(crate) fn alike(names: &[&str], rows: u64, dim: usize, generation: u64) -> Result<Model> {
        let tables = names
            .iter()
            .map(|name| format!("{name}:{rows}:{dim}:f32"))
            .collect::<Vec<_>>();
        let arguments: Vec<&str> = tables.iter().flat_map(|table| ["--table", table]).collect();
        Model::generation(
            &format!("{}-{rows}-{dim}", names.join("-")),
            generation,
            &arguments,
        )
    }

    fn cached(name: &str, arguments: &[&str]) -> Result<Model> {
        Model::generation(name, 1, arguments)
    }

    fn generation(name: &str, number: u64, arguments: &[&str]) -> Result<Model> {
        let seed = SEED + number - 1;
        let directory = cache_folder().join(format!("models/{name}-seed{seed}"));
        let generation = match Generation::open(&directory) {
            Ok(generation) => generation,
            Err(_) => {
                let (seed, number) = (seed.to_string(), number.to_string());
                let which = ["--seed", &seed, "--generation", &number];
                make(&directory, &[&which, arguments].concat())?;
                Generation::open(&directory)?
            }
        };
        Ok(Model {
            directory,
            generation,
        })
    }

    /// The same files in another folder, on whatever disk that is, where they are when this returns.
    ///
    /// # Errors
    /// Where they can't be read or written.
    pub(crate) fn copied_to(&self, folder: &Path) -> Result<Model> {
        let name = self.directory.file_name();
        let directory = folder.join(name.context("a generation's folder")?);
        std::fs::create_dir(&directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
        for entry in std::fs::read_dir(&self.directory)? {
            let (from, to) = (entry?.path(), &directory);
            let to = to.join(from.file_name().context("a file's name")?);
            let copied = std::fs::copy(&from, &to).and_then(|_| File::open(&to)?.sync_all());
            copied.with_context(|| format!("copying {} to {}", from.display(), to.display()))?;
        }
        let generation = Generation::open(&directory)?;
        Ok(Model {
            directory,
            generation,
        })
    }

    /// A schema with a feature for each table, side by side, and the row length in bytes.
    pub(crate) fn schema(&self, max_batch: u32) -> (Schema, u64) {
        let features = self
            .generation
            .tables()
            .iter()
            .map(|t| (t.name.as_str(), t.name.as_str(), Pooling::Sum, t.dim as u32));
        Schema::side_by_side(max_batch, features)
    }

    /// Rows of each table.
    pub(crate) fn rows(&self) -> Vec<u64> {
        self.generation.tables().iter().map(|t| t.rows).collect()
    }

    /// Bytes of all rows.
    pub(crate) fn bytes(&self) -> u64 {
        self.generation.row_region_bytes()
    }

    /// A copy of its own of all tables in memory, for kernels and oracles beside the service.
    ///
    /// # Errors
    /// Where memory is short or a file is damaged.
    pub(crate) fn load(&self) -> Result<Arc<Resident>> {
        let options = LoadOptions::default();
        let tables = self.generation.load(HugePages::Prefer, &silent, options);
        let tables = tables.with_context(|| format!("loading {}", shown(&self.directory)))?;
        Ok(Arc::new(tables))
    }
}

/// A model of the cache, for what went wrong with it.
pub(crate) fn shown(directory: &Path) -> String {
    format!(
        "the kept model {} (if it is damaged, remove that directory: the next run makes it again)",
        directory.display()
    )
}

fn make(directory: &Path, arguments: &[&str]) -> Result<()> {
    let parent = directory.parent().context("the cache folder")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    if directory.exists() {
        // It does not open, so that it is of an older format or damaged.
        std::fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
    }
    eprintln!(
        "making the model {} (kept for next time)",
        directory.display()
    );
    let status = Command::new(program("rowmill")?)
        .args(["table", "generate"])
        .args(arguments)
        .arg(directory)
        .stdout(Stdio::null())
        .status()
        .context("running rowmill table generate")?;
    ensure!(
        status.success(),
        "rowmill table generate ended with {status}"
    );
    Ok(())
}

/// A query as the kernels' batch, in the schema's layout.
pub(crate) fn batch<'a>(tables: &'a Resident, schema: &Schema, query: &'a Query) -> Vec<Bags<'a>> {
    let features = tables
        .tables()
        .iter()
        .zip(&schema.features)
        .zip(&query.features)
        .enumerate();
    let bags = features.map(|(f, ((table, feature), (_, ids)))| Bags {
        rows: rows(table),
        ids,
        lengths: query.lengths(f),
        weights: None,
        mode: Mode::Sum,
        output: Output::F32,
        offset: feature.offset as usize,
        stride: feature.stride as usize,
    });
    bags.collect()
}
