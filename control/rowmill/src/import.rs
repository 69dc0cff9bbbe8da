//! `rowmill table import`: which tables are made of which files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{ArgGroup, Args};
use rowmill_table::{
    Container, Import as Source, RowFormat, Safetensors, WhenMissing, import_until,
};

use crate::interrupt::Interrupts;
use crate::progress::Reporter;
use crate::table::summarise;

/// Options of `rowmill table import`.
#[derive(Args)]
#[command(group(ArgGroup::new("what").required(true).multiple(true).args(["npy", "tensor", "hugectr", "safetensors"])))]
#[command(
    override_usage = "rowmill table import [OPTIONS] <DIR> --npy <NAME=FILE>\n       \
                      rowmill table import [OPTIONS] <DIR> --safetensors <FILE> --tensor <NAME=TENSOR> [--ids <NAME=TENSOR>]\n       \
                      rowmill table import [OPTIONS] <DIR> --hugectr <NAME=FOLDER:DIM>",
    after_help = "\
Each table ends with its dimensions and its row format, in this order, where they are to be checked or not those \
of --format: items=items.npy:64:int8. Tables with ids of their own (--ids, --hugectr) are hashed, the others dense: \
there an id is the number of the row. Rows are read in pieces, so files may be larger than memory. \
An import that is interrupted (SIGINT, SIGTERM, SIGHUP) removes what it wrote; what one leaves that is killed \
has a hidden name, and the next one to the same place clears it away.

Examples:
  rowmill table import /data/model --npy users=users.npy --npy items=items.npy:int8
  rowmill table import /data/model --format f16 --safetensors model.safetensors \\
      --tensor users=embeddings.users.weight --tensor items=items.embedding --ids items=items.id
  rowmill table import /data/model --hugectr users=dump/users:64 --hugectr items=dump/items:128:int4 \\
      --missing zero --missing items=default=0.01"
)]
pub(crate) struct Import {
    /// The new directory; it must not exist
    dir: PathBuf,
    /// A table and its .npy file, a two-dimensional array of f32 or f16 in C order; may be repeated
    #[arg(long, value_name = "NAME=FILE[:DIM][:FORMAT]", value_parser = parse_table)]
    npy: Vec<TableArgument>,
    /// A safetensors file that --tensor and --ids name tensors of; may be repeated, as for shards
    #[arg(long, value_name = "FILE")]
    safetensors: Vec<PathBuf>,
    /// A table and its tensor, two-dimensional of F32, F16 or BF16; may be repeated
    #[arg(long, requires = "safetensors", value_name = "NAME=TENSOR[:DIM][:FORMAT]", value_parser = parse_table)]
    tensor: Vec<TableArgument>,
    /// A table and the folder that HugeCTR's save_params_to_files made of it: `key`, `emb_vector`; may be
    /// repeated. DIM is needed: the folder does not say it, and with it a cut file shows
    #[arg(long, value_name = "NAME=FOLDER:DIM[:FORMAT]", value_parser = parse_table)]
    hugectr: Vec<TableArgument>,
    /// The ids of a table's rows, any 64-bit integers: a tensor, or for --npy a .npy file; may be repeated
    #[arg(long, value_name = "NAME=TENSOR|FILE", value_parser = parse_named)]
    ids: Vec<(String, String)>,
    /// The answer to ids that a hashed table does not have: error (the default), zero, default=NUMBER, or
    /// default=FILE with a row in .npy; of all hashed tables, or of the one named; may be repeated
    #[arg(long, value_name = "[NAME=]ANSWER", value_parser = parse_missing)]
    missing: Vec<(Option<String>, WhenMissing)>,
    /// How rows are to be stored where a table doesn't say: f32, f16, bf16, int8, int8-f16 or int4
    #[arg(long, default_value = "f32")]
    format: RowFormat,
    /// Seed of the hash of hashed tables, to make the same files again; random without it
    #[arg(long)]
    seed: Option<u64>,
    /// The generation's number
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    generation: u64,
}

/// A table, where it lies, and what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TableArgument {
    name: String,
    place: String,
    dim: Option<usize>,
    format: Option<RowFormat>,
}

impl Import {
    pub(crate) fn run(self) -> Result<()> {
        let sources = self.sources()?;
        let (reporter, interrupts) = (Reporter::new(), Interrupts::watch()?);
        import_until(
            interrupts.stop(),
            &self.dir,
            self.generation,
            &sources,
            self.seed,
            &|stage, done, total| reporter.report(stage, done, total),
        )
        .map_err(|error| interrupts.explain(error))?;
        summarise(&self.dir, &reporter)
    }

    fn sources(&self) -> Result<Vec<Source>> {
        let files = self
            .safetensors
            .iter()
            .map(Safetensors::open)
            .collect::<Result<Vec<_>, _>>()?;
        if self.tensor.is_empty() && !files.is_empty() {
            bail!(
                "{} has {}; name those that are tables with --tensor NAME=TENSOR",
                files[0].path().display(),
                files[0].listing()
            );
        }
        let mut sources = Vec::new();
        for table in &self.npy {
            let ids = self.ids_of(&table.name)?.map(PathBuf::from);
            let rows = table.path()?;
            sources.push(self.source(table, Container::Npy { rows, ids })?);
        }
        for table in &self.tensor {
            let ids = self.ids_of(&table.name)?;
            let ids = ids.map(|name| tensor(&files, name)).transpose()?;
            let rows = tensor(&files, &table.place).map_err(|error| {
                let there = |place: &str| tensor(&files, place).is_ok();
                table.turned_around(there).unwrap_or(error)
            })?;
            sources.push(self.source(table, Container::Safetensors { rows, ids })?);
        }
        for table in &self.hugectr {
            ensure!(
                self.ids_of(&table.name)?.is_none(),
                "--ids names {}, whose ids are those of HugeCTR's folder; leave it out",
                table.name
            );
            sources.push(self.source(table, Container::HugeCtr(table.path()?))?);
        }
        let named = self.ids.iter().map(|(name, _)| ("--ids", name));
        let missing = self
            .missing
            .iter()
            .filter_map(|(name, _)| Some(("--missing", name.as_ref()?)));
        for (option, name) in named.chain(missing) {
            ensure!(
                sources.iter().any(|source| source.name == *name),
                "{option} names {name}, which is no table of this import"
            );
        }
        if !self.missing.is_empty() {
            ensure!(
                sources.iter().any(is_hashed),
                "--missing is for hashed tables, and these are dense; give their rows ids with --ids"
            );
        }
        Ok(sources)
    }

    /// What `--ids` says of a table.
    fn ids_of(&self, table: &str) -> Result<Option<&str>> {
        let mut named = self.ids.iter().filter(|(name, _)| name == table);
        let ids = named.next().map(|(_, ids)| ids.as_str());
        ensure!(named.next().is_none(), "--ids names {table} twice");
        Ok(ids)
    }

    fn source(&self, table: &TableArgument, from: Container) -> Result<Source> {
        let own = |name: &Option<String>| name.as_deref() == Some(&table.name);
        let mut owns = self.missing.iter().filter(|(name, _)| own(name));
        let mut general = self.missing.iter().filter(|(name, _)| name.is_none());
        let (own, all) = (owns.next(), general.next());
        ensure!(
            owns.next().is_none() && general.next().is_none(),
            "--missing gives two answers for {}",
            table.name
        );
        let source = Source {
            name: table.name.clone(),
            from,
            dim: table.dim,
            format: table.format.unwrap_or(self.format),
            missing: own
                .or(all)
                .map(|(_, answer)| answer.clone())
                .unwrap_or_default(),
        };
        ensure!(
            own.is_none() || is_hashed(&source),
            "--missing names {}, a dense table: its ids are the numbers of its rows; give them ids with --ids",
            table.name
        );
        Ok(source)
    }
}

fn is_hashed(source: &Source) -> bool {
    match &source.from {
        Container::Npy { ids, .. } => ids.is_some(),
        Container::Safetensors { ids, .. } => ids.is_some(),
        Container::HugeCtr(_) => true,
    }
}

impl TableArgument {
    /// The error for a row format in front of the dimensions, which was taken for a part of the place;
    /// none where what stands before it is not there either.
    fn turned_around(&self, there: impl Fn(&str) -> bool) -> Option<anyhow::Error> {
        let (place, format) = self.place.rsplit_once(':')?;
        let (dim, format) = (self.dim?, format.parse::<RowFormat>().ok()?);
        let name = &self.name;
        there(place).then(|| {
            anyhow!(
                "table {name}: dimensions stand in front of the row format: {name}={place}:{dim}:{format}"
            )
        })
    }

    /// The place as a path.
    fn path(&self) -> Result<PathBuf> {
        let there = |place: &str| Path::new(place).exists();
        if !there(&self.place)
            && let Some(error) = self.turned_around(there)
        {
            return Err(error);
        }
        // What stands behind a colon and is no format was taken for the end of the name.
        if let Some((path, format)) = self.place.rsplit_once(':')
            && !Path::new(&self.place).exists()
            && Path::new(path).exists()
            && let Err(reason) = format.parse::<RowFormat>()
        {
            bail!("table {}: {reason}", self.name);
        }
        Ok(PathBuf::from(&self.place))
    }
}

/// The file that has the tensor called `name`.
fn tensor(files: &[Safetensors], name: &str) -> Result<(Safetensors, String)> {
    let mut having = files.iter().filter(|file| file.tensor(name).is_ok());
    match (having.next(), having.next()) {
        (Some(file), None) => Ok((file.clone(), name.to_owned())),
        (Some(one), Some(other)) => bail!(
            "both {} and {} have a tensor `{name}`; import them one at a time",
            one.path().display(),
            other.path().display()
        ),
        (None, _) => match files {
            [] => bail!("the tensor `{name}` needs --safetensors, the file that has it"),
            [file] => Err(file
                .tensor(name)
                .err()
                .context("a tensor that is not there")?
                .into()),
            [file, ..] => bail!(
                "none of {} files has the tensor `{name}`; the first one {}",
                files.len(),
                file.tensor(name)
                    .err()
                    .context("a tensor that is not there")?
            ),
        },
    }
}

fn parse_named(text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, rest)) if !name.is_empty() && !rest.is_empty() => {
            Ok((name.to_owned(), rest.to_owned()))
        }
        _ => bail!("a table and what it is made of are written as users=users.npy"),
    }
}

fn parse_table(text: &str) -> Result<TableArgument> {
    let (name, place) = parse_named(text)?;
    let mut place = place.as_str();
    let (mut dim, mut format) = (None, None);
    if let Some((rest, end)) = place.rsplit_once(':')
        && let Ok(known) = end.parse()
    {
        (place, format) = (rest, Some(known));
    }
    if let Some((rest, end)) = place.rsplit_once(':')
        && end.bytes().all(|byte| byte.is_ascii_digit())
        && let Ok(number) = end.parse()
    {
        (place, dim) = (rest, Some(number));
    }
    ensure!(
        !place.is_empty(),
        "a table and its file are written as users=users.npy"
    );
    Ok(TableArgument {
        name,
        place: place.to_owned(),
        dim,
        format,
    })
}

fn parse_missing(text: &str) -> Result<(Option<String>, WhenMissing)> {
    let answer = |text: &str| match text.split_once('=') {
        None if text == "error" => Some(WhenMissing::Error),
        None if text == "zero" => Some(WhenMissing::Zero),
        Some(("default", row)) if !row.is_empty() => Some(match row.parse::<f32>() {
            Ok(value) => WhenMissing::Value(value),
            Err(_) => WhenMissing::Row(row.into()),
        }),
        _ => None,
    };
    if let Some(answer) = answer(text) {
        return Ok((None, answer));
    }
    let named = text
        .split_once('=')
        .and_then(|(name, rest)| Some((Some(name.to_owned()), answer(rest)?)));
    named.context(
        "an answer is error, zero, default=0.5 or default=row.npy, for one table users=zero",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_command_line() {
        let cases = [
            ("a=b.npy", ("b.npy", None, None)),
            (
                "a=b.npy:int8-f16",
                ("b.npy", None, Some(RowFormat::Int8F16)),
            ),
            ("a=b.npy:64", ("b.npy", Some(64), None)),
            (
                "a=b:c/x:64:int4",
                ("b:c/x", Some(64), Some(RowFormat::Int4)),
            ),
            ("a=b=c:d", ("b=c:d", None, None)),
            ("a=b:int4:64", ("b:int4", Some(64), None)),
        ];
        for (text, (place, dim, format)) in cases {
            let expected = TableArgument {
                name: "a".into(),
                place: place.into(),
                dim,
                format,
            };
            assert_eq!(parse_table(text).unwrap(), expected, "{text}");
        }
        for text in ["", "a", "a=", "=b", "a=:64", "a=:int8"] {
            assert!(parse_table(text).is_err(), "{text}");
        }
    }

    #[test]
    fn answers_to_missing_ids() {
        let cases = [
            ("error", None, WhenMissing::Error),
            ("zero", None, WhenMissing::Zero),
            ("default=-0.5", None, WhenMissing::Value(-0.5)),
            ("default=a=b.npy", None, WhenMissing::Row("a=b.npy".into())),
            ("users=zero", Some("users"), WhenMissing::Zero),
            (
                "users=default=x.npy",
                Some("users"),
                WhenMissing::Row("x.npy".into()),
            ),
        ];
        for (text, name, answer) in cases {
            assert_eq!(
                parse_missing(text).unwrap(),
                (name.map(str::to_owned), answer),
                "{text}"
            );
        }
        for text in [
            "",
            "zeros",
            "users",
            "users=",
            "users=none",
            "default",
            "default=",
        ] {
            assert!(parse_missing(text).is_err(), "{text}");
        }
    }

    /// What the command line `rowmill table import model ...` asks for.
    fn sources(line: &str) -> Result<Vec<Source>, String> {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            import: Import,
        }
        let words = ["import", "model"].into_iter().chain(line.split(' '));
        let line = <Line as clap::Parser>::try_parse_from(words);
        let line = line.map_err(|error| error.to_string())?;
        line.import.sources().map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_command_line_asks_for() {
        let line = "--npy a=a.npy:int8 --npy b=b.npy:64 --hugectr c=dump/c --ids b=b.ids.npy \
                    --format f16 --missing zero --missing c=default=1";
        let sources = sources(line).unwrap();
        let names: Vec<&str> = sources.iter().map(|source| &*source.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
        let formats: Vec<RowFormat> = sources.iter().map(|source| source.format).collect();
        assert_eq!(formats, [RowFormat::Int8, RowFormat::F16, RowFormat::F16]);
        assert_eq!((sources[0].dim, sources[1].dim), (None, Some(64)));
        let hashed: Vec<bool> = sources.iter().map(is_hashed).collect();
        assert_eq!(hashed, [false, true, true]);
        assert_eq!(sources[1].missing, WhenMissing::Zero);
        assert_eq!(sources[2].missing, WhenMissing::Value(1.0));
    }

    #[test]
    fn command_lines_that_contradict_themselves() {
        for (line, part) in [
            ("--format f32", "required"),
            ("--npy a", "users=users.npy"),
            ("--npy a=a.npy --format f64", "a row format can be"),
            ("--npy a=a.npy --missing zro", "an answer is error, zero"),
            (
                "--npy a=a.npy --missing zero",
                "--missing is for hashed tables",
            ),
            (
                "--npy a=a.npy --missing a=zero",
                "--missing names a, a dense table",
            ),
            (
                "--hugectr a=a --missing b=zero",
                "--missing names b, which is no table",
            ),
            (
                "--hugectr a=a --missing zero --missing error",
                "two answers for a",
            ),
            (
                "--hugectr a=a --missing a=zero --missing a=error",
                "two answers for a",
            ),
            (
                "--npy a=a.npy --ids b=b.npy",
                "--ids names b, which is no table",
            ),
            (
                "--npy a=a.npy --ids a=b.npy --ids a=c.npy",
                "--ids names a twice",
            ),
            (
                "--hugectr a=a --ids a=b.npy",
                "whose ids are those of HugeCTR's folder",
            ),
            ("--tensor a=b", "--safetensors"),
            ("--safetensors /nowhere/a --tensor a=b", "/nowhere/a"),
        ] {
            let said = sources(line).map(|_| ()).expect_err(line);
            assert!(said.contains(part), "{line}: {said}");
        }
    }

    #[test]
    fn tensors_are_looked_for_in_all_files() {
        let temp = tempfile::tempdir().unwrap();
        let file = |name: &str, tensors: &[&str]| {
            let entry = |(place, name): (usize, &&str)| {
                let (begin, end) = (place * 16, place * 16 + 16);
                format!(
                    r#""{name}":{{"dtype":"F32","shape":[1,4],"data_offsets":[{begin},{end}]}}"#
                )
            };
            let entries: Vec<String> = tensors.iter().enumerate().map(entry).collect();
            let header = format!("{{{}}}", entries.join(","));
            let length = (header.len() as u64).to_le_bytes();
            let data = vec![0; 16 * tensors.len()];
            let path = temp.path().join(name);
            std::fs::write(&path, [&length, header.as_bytes(), &data].concat()).unwrap();
            path.display().to_string()
        };
        let (one, two) = (file("one", &["a", "both"]), file("two", &["both", "b"]));
        let files = format!("--safetensors {one} --safetensors {two}");
        let good = sources(&format!("{files} --tensor x=a --tensor y=b:f16")).unwrap();
        for (source, expected) in good.iter().zip(["one", "two"]) {
            let Container::Safetensors {
                rows: (file, _), ..
            } = &source.from
            else {
                panic!("{source:?}");
            };
            assert!(file.path().ends_with(expected));
        }
        for (line, part) in [
            (
                format!("{files} --tensor x=both"),
                "two have a tensor `both`",
            ),
            (
                format!("{files} --tensor x=c"),
                "none of 2 files has the tensor `c`",
            ),
            (
                format!("--safetensors {one} --tensor x=c"),
                r#"has no tensor "c"; it has "a" (F32 [1, 4])"#,
            ),
            (
                format!("--safetensors {one}"),
                r#"one has "a" (F32 [1, 4]), "both" (F32 [1, 4]); name those"#,
            ),
            (format!("{files} --tensor x=a --ids x=c"), "none of 2 files"),
        ] {
            let said = sources(&line).map(|_| ()).expect_err(&line);
            assert!(said.contains(part), "{line}: {said}");
        }
    }

    #[test]
    fn a_format_that_there_is_not_is_no_file() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("rows.npy");
        std::fs::write(&path, "").unwrap();
        let said = sources(&format!("--npy a={}:int5", path.display())).map(|_| ());
        let said = said.unwrap_err();
        assert!(said.contains("table a: a row format can be"), "{said}");
    }

    #[test]
    fn dimensions_stand_in_front_of_the_format() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("rows.npy");
        std::fs::write(&path, "").unwrap();
        let path = path.display();
        let said = sources(&format!("--npy a={path}:int8:8")).map(|_| ());
        assert!(said.unwrap_err().contains(&format!("a={path}:8:int8")));
        let header = r#"{"t":{"dtype":"F32","shape":[1,4],"data_offsets":[0,16]}}"#;
        let length = (header.len() as u64).to_le_bytes();
        let file = temp.path().join("file");
        std::fs::write(&file, [&length, header.as_bytes(), &[0; 16]].concat()).unwrap();
        let file = file.display();
        let said = sources(&format!("--safetensors {file} --tensor a=t:int8:4")).map(|_| ());
        assert!(said.unwrap_err().contains("a=t:4:int8"));
        // A file may be named like this, and what is nowhere is said to be nowhere.
        for place in [format!("{path}:int4"), "/nowhere/rows.npy:int4".into()] {
            if place.starts_with(temp.path().to_str().unwrap()) {
                std::fs::write(&place, "").unwrap();
            }
            assert!(sources(&format!("--npy a={place}:8")).is_ok(), "{place}");
        }
    }
}
