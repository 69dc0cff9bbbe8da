//! `rowmill table`: make, look at and check generations of tables.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{ArgGroup, Args, Subcommand};
use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};
use rowmill_table::{Generation, RowFormat, Shape, TableSpec, check_specs, generate_until};
use serde_json::json;

use crate::import::Import;
use crate::interrupt::Interrupts;
use crate::output::{numbers, print, shown};
use crate::progress::Reporter;
use crate::units::{bytes, parse_bytes, thousands};

/// The subcommands of `rowmill table`.
#[derive(Subcommand)]
pub(crate) enum TableCommand {
    /// Make a generation of made-up values
    Generate(Generate),
    /// Make a generation of .npy or safetensors files, or of folders of HugeCTR
    Import(Import),
    /// Show what a generation holds, without reading its rows
    Inspect(Inspect),
    /// Read every byte of a generation and compare its checksums
    Verify(Verify),
}

impl TableCommand {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            TableCommand::Generate(command) => command.run(),
            TableCommand::Import(command) => command.run(),
            TableCommand::Inspect(command) => command.run(),
            TableCommand::Verify(command) => command.run(),
        }
    }
}

/// Options of `rowmill table generate`.
#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).args(["shape", "table"])))]
#[command(after_help = "Examples:\n  \
    rowmill table generate /data/demo --shape dlrm-v2 --fit 4GiB\n  \
    rowmill table generate /data/two --table users:1000000:64:f32 --table items:50000:128:int8 --seed 7")]
pub(crate) struct Generate {
    /// The new directory; it must not exist
    dir: PathBuf,
    /// A published model's tables; known: dlrm-v2
    #[arg(long)]
    shape: Option<String>,
    /// Multiply the rows of the shape's tables (small tables keep at least 1000 rows)
    #[arg(long, requires = "shape", conflicts_with = "fit", default_value_t = 1.0, value_parser = parse_factor, allow_negative_numbers = true)]
    scale: f64,
    /// Scale the shape down so that all files together have at most this size
    #[arg(long, requires = "shape", value_parser = parse_bytes, value_name = "BYTES")]
    fit: Option<u64>,
    /// How the shape's rows are stored: f32, f16, bf16, int8, int8-f16 or int4
    #[arg(long, requires = "shape", default_value = "f32")]
    format: RowFormat,
    /// One table, as name:rows:dim:format, and :hashed, :hashed-zero or :hashed-default behind it for ids
    /// of its own; may be repeated
    #[arg(long, value_name = "NAME:ROWS:DIM:FORMAT[:KIND]", conflicts_with_all = ["shape", "scale", "fit", "format"])]
    table: Vec<TableSpec>,
    /// Values depend on nothing but this, the table's place, the row and the column
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    seed: u64,
    /// The generation's number
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    generation: u64,
}

impl Generate {
    fn run(self) -> Result<()> {
        let specs = match &self.shape {
            Some(shape) => self.shape_tables(shape)?,
            None => self.table,
        };
        check_specs(&specs)?;
        let (reporter, interrupts) = (Reporter::new(), Interrupts::watch()?);
        generate_until(
            interrupts.stop(),
            &self.dir,
            self.generation,
            &specs,
            self.seed,
            &|stage, done, total| {
                reporter.report(stage, done, total);
            },
        )
        .map_err(|error| interrupts.explain(error))?;
        summarise(&self.dir, &reporter)
    }

    fn shape_tables(&self, name: &str) -> Result<Vec<TableSpec>> {
        let shape = Shape::named(name)
            .with_context(|| format!("there is no shape `{name}`; known: dlrm-v2"))?;
        let shape = shape.with_format(self.format);
        let (factor, specs) = match self.fit {
            Some(size) => shape.fitting(size).with_context(|| {
                format!(
                    "{} are too little for the least size of {name}; allow a few MiB more",
                    bytes(size)
                )
            })?,
            None => (self.scale, shape.scaled(self.scale)),
        };
        print(&format!("{name} with its rows scaled by {factor:.6}\n"))?;
        Ok(specs)
    }
}

/// Options of `rowmill table inspect`.
#[derive(Args)]
pub(crate) struct Inspect {
    /// The generation's directory
    dir: PathBuf,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
    /// Print the values of one row
    #[arg(long, value_name = "NAME:ROW", value_parser = parse_row)]
    row: Option<(String, u64)>,
}

impl Inspect {
    fn run(self) -> Result<()> {
        let generation = Generation::open(&self.dir)?;
        if let Some((table, row)) = &self.row {
            return self.print_row(&generation, table, *row);
        }
        print(&if self.json {
            format!("{}\n", as_json(&generation))
        } else {
            format!("{}\n{}\n", as_table(&generation), totals(&generation))
        })
    }

    fn print_row(&self, generation: &Generation, name: &str, row: u64) -> Result<()> {
        let table = generation.open_mapped(name)?;
        let mut values = vec![0.0; table.info().dim];
        table.row_f32(row, &mut values)?;
        print(&if self.json {
            format!(
                "{}\n",
                json!({ "table": name, "row": row, "values": numbers(&values) })
            )
        } else {
            values.iter().map(|value| format!("{value}\n")).collect()
        })
    }
}

/// Options of `rowmill table verify`.
#[derive(Args)]
pub(crate) struct Verify {
    /// The generation's directory
    dir: PathBuf,
}

impl Verify {
    fn run(self) -> Result<()> {
        let reporter = Reporter::new();
        let generation = Generation::open(&self.dir)?;
        generation.verify(&|stage, done, total| reporter.report(stage, done, total))?;
        print(&format!(
            "undamaged: {}, read in {}\n",
            totals(&generation),
            rate(&generation, &reporter)
        ))
    }
}

/// Says what was made. Opening it again shows that it can be opened.
pub(crate) fn summarise(dir: &std::path::Path, reporter: &Reporter) -> Result<()> {
    let generation = Generation::open(dir)?;
    print(&format!(
        "{}: {}, written in {}\n",
        shown(&dir.display().to_string()),
        totals(&generation),
        rate(&generation, reporter)
    ))
}

fn totals(generation: &Generation) -> String {
    let tables = generation.tables();
    let rows: u64 = tables.iter().map(|table| table.rows).sum();
    let files: u64 = tables.iter().map(|table| table.file_bytes).sum();
    let plural = if tables.len() == 1 { "" } else { "s" };
    format!(
        "generation {}, {} table{plural}, {} rows, {}",
        generation.number(),
        tables.len(),
        thousands(rows),
        bytes(files)
    )
}

fn rate(generation: &Generation, reporter: &Reporter) -> String {
    let files: u64 = generation
        .tables()
        .iter()
        .map(|table| table.file_bytes)
        .sum();
    let seconds = reporter.elapsed().as_secs_f64().max(1e-3);
    format!("{seconds:.1} s ({:.2} GB/s)", files as f64 / seconds / 1e9)
}

fn as_json(generation: &Generation) -> serde_json::Value {
    let tables: Vec<_> = generation
        .tables()
        .iter()
        .map(|table| {
            json!({
                "name": table.name, "rows": table.rows, "dim": table.dim, "format": table.format.to_string(),
                "kind": table.kind.to_string(), "stride": table.stride, "file": table.file, "file_bytes": table.file_bytes,
            })
        })
        .collect();
    json!({
        "generation": generation.number(), "dir": generation.dir(), "page_bytes": rowmill_table::PAGE_BYTES,
        "row_bytes": generation.row_region_bytes(), "tables": tables,
    })
}

fn as_table(generation: &Generation) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY).set_header([
        "table",
        "rows",
        "dim",
        "format",
        "ids",
        "bytes a row",
        "file",
        "size",
    ]);
    for info in generation.tables() {
        table.add_row([
            shown(&info.name).into_owned(),
            thousands(info.rows),
            info.dim.to_string(),
            info.format.to_string(),
            info.kind.to_string(),
            info.stride.to_string(),
            shown(&info.file).into_owned(),
            bytes(info.file_bytes),
        ]);
    }
    for column in [1, 2, 5, 7] {
        table
            .column_mut(column)
            .expect("eight columns")
            .set_cell_alignment(CellAlignment::Right);
    }
    table
}

fn parse_factor(text: &str) -> Result<f64> {
    let factor: f64 = text.parse().context("a factor is a number, as 0.01")?;
    ensure!(
        factor > 0.0 && factor <= 1000.0,
        "a factor lies above 0 and at 1000 at most"
    );
    Ok(factor)
}

fn parse_row(text: &str) -> Result<(String, u64)> {
    let (table, row) = text
        .split_once(':')
        .context("a row is written as users:17")?;
    Ok((
        table.to_owned(),
        row.parse().context("a row is written as users:17")?,
    ))
}
