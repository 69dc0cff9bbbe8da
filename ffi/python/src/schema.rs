//! Features and schemas, and where results lie.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use rowmill_client as rowmill;
use rowmill_client::{BoundSchema, Output, Pooling, TableEntry};

use crate::arguments;
use crate::errors::{Class, Fault, Outcome};

/// A table of the model.
#[pyclass(frozen, module = "rowmill")]
#[derive(Debug)]
pub(crate) struct Table {
    /// Its name in features.
    #[pyo3(get)]
    name: String,
    /// Rows that ids can name.
    #[pyo3(get)]
    rows: u64,
    /// Elements of a row.
    #[pyo3(get)]
    dim: u32,
    /// How rows are stored: ``"f32"``, ``"f16"``, ``"bf16"``, ``"int8"``, ``"int8-f16"`` or ``"int4"``.
    #[pyo3(get)]
    format: &'static str,
    /// What ids name rows by: ``"dense"`` (their numbers) or ``"hashed"`` (any 64 bits).
    #[pyo3(get)]
    kind: &'static str,
}

impl Table {
    pub(crate) fn of(entry: &TableEntry) -> Table {
        let formats = ["f32", "int8", "f16", "bf16", "int8-f16", "int4"];
        let kinds = ["dense", "hashed"];
        Table {
            name: entry.name.clone(),
            rows: entry.rows,
            dim: entry.dim,
            format: formats.get(entry.format as usize).unwrap_or(&"unknown"),
            kind: kinds.get(entry.kind as usize).unwrap_or(&"unknown"),
        }
    }
}

#[pymethods]
impl Table {
    fn __repr__(&self) -> String {
        let Table {
            name,
            rows,
            dim,
            format,
            kind,
        } = self;
        format!("Table(name='{name}', rows={rows}, dim={dim}, format='{format}', kind='{kind}')")
    }
}

const POOLINGS: [(&str, Pooling); 6] = [
    ("sum", Pooling::Sum),
    ("mean", Pooling::Mean),
    ("weighted_sum", Pooling::WeightedSum),
    ("weighted_mean", Pooling::WeightedMean),
    ("max", Pooling::Max),
    ("none", Pooling::None),
];

/// A feature of a schema: ids that are looked up in a table.
///
/// Args:
///     name: Its name, by which batches are matched.
///     table: The table that its ids are looked up in.
///     pooling: ``"sum"``, ``"mean"``, ``"weighted_sum"``, ``"weighted_mean"`` or ``"max"`` for a vector a bag;
///         ``"none"`` for a vector an id.
///     max_ids: Most ids of a batch for the feature where it is not pooled, at most 2**23: its room in a result. As many
///         as the schema's ``max_batch`` if not given.
///
/// Raises:
///     InputError: There is no such pooling, a name has more than 128 bytes, ``max_ids`` is out of its range, or given for a feature
///         that is pooled.
#[pyclass(frozen, eq, hash, module = "rowmill")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Feature {
    /// Its name, by which batches are matched.
    #[pyo3(get)]
    name: String,
    /// The table that its ids are looked up in.
    #[pyo3(get)]
    table: String,
    pooling: Pooling,
    /// Most ids of a batch where it is not pooled.
    #[pyo3(get)]
    max_ids: Option<u32>,
}

#[pymethods]
impl Feature {
    #[new]
    #[pyo3(signature = (name, table, pooling = "sum", max_ids = None))]
    fn new(name: String, table: String, pooling: &str, max_ids: Option<i128>) -> PyResult<Feature> {
        arguments::name("name", &name)?;
        arguments::name("table", &table)?;
        let known = POOLINGS.iter().find(|(known, _)| *known == pooling);
        let Some(&(_, pooling)) = known else {
            let all = POOLINGS.map(|(name, _)| name).join(", ");
            let text =
                format!("feature `{name}`: no pooling is called `{pooling}`; take one of {all}");
            return Err(Fault::input(text).into());
        };
        if pooling != Pooling::None && max_ids.is_some() {
            let text = format!(
                "feature `{name}` is pooled, and has a vector a bag; give max_ids for features with pooling=\"none\" only"
            );
            return Err(Fault::input(text).into());
        }
        let max_ids =
            max_ids.map(|most| arguments::whole("max_ids", most, 1..=rowmill::MAX_BLOCK_IDS));
        let max_ids = max_ids
            .transpose()
            .map_err(|fault| fault.within(&format!("feature `{name}`: ")))?;
        Ok(Feature {
            name,
            table,
            pooling,
            max_ids,
        })
    }

    /// What it is made of, for copies and pickles.
    fn __getnewargs__(&self) -> (&str, &str, &str, Option<u32>) {
        (&self.name, &self.table, self.pooling(), self.max_ids)
    }

    /// How its bags are pooled.
    #[getter]
    fn pooling(&self) -> &'static str {
        POOLINGS[self.pooling as usize].0
    }

    fn __repr__(&self) -> String {
        let (name, table, pooling) = (&self.name, &self.table, self.pooling());
        let max_ids = self.max_ids.map_or("None".into(), |most| most.to_string());
        format!("Feature('{name}', '{table}', pooling='{pooling}', max_ids={max_ids})")
    }
}

/// The type of a result's elements.
pub(crate) fn output(name: &str) -> Outcome<Output> {
    match name {
        "float32" => Ok(Output::F32),
        "float16" => Ok(Output::F16),
        "bfloat16" => Ok(Output::Bf16),
        _ => Err(Fault::input(format!(
            "no results of type `{name}`; take float32, float16 or bfloat16"
        ))),
    }
}

/// Where a feature's vectors lie in a result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Span {
    /// A column of the matrix, from this element of its rows on.
    Column { first: usize, dim: usize },
    /// A block of its own, from this byte on.
    Block {
        offset: usize,
        dim: usize,
        max_ids: u32,
    },
}

/// Where results lie: first the blocks of features that are not pooled, then the matrix of those that are.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) output: Output,
    pub(crate) spans: Vec<Span>,
    /// Where the matrix begins.
    pub(crate) matrix: usize,
    /// Elements of its rows.
    pub(crate) width: usize,
}

impl Layout {
    pub(crate) fn any_block(&self) -> bool {
        self.matrix > 0
    }
}

/// Features that the dataplane has bound for a client. Made by :meth:`Client.bind`.
#[pyclass(frozen, module = "rowmill")]
pub(crate) struct Schema {
    pub(crate) bound: BoundSchema,
    pub(crate) layout: Arc<Layout>,
    pub(crate) names: Arc<[String]>,
    /// The last keys of a batch, and the columns that features take then.
    chosen: Mutex<Option<Chosen>>,
}

struct Chosen {
    keys: Py<PyTuple>,
    columns: Columns,
}

/// Which of a batch's columns each feature takes.
#[derive(Clone)]
pub(crate) struct Columns {
    /// Of how many.
    pub(crate) of: usize,
    /// `None`: each its own.
    pub(crate) chosen: Option<Arc<[u32]>>,
    /// The columns' names.
    pub(crate) names: Option<Arc<[String]>>,
}

impl Schema {
    pub(crate) fn describe(
        features: &[Feature],
        tables: &[TableEntry],
        max_batch: u32,
        output: Output,
    ) -> Outcome<(rowmill::Schema, Layout)> {
        let mut seen = HashSet::new();
        if let Some(twice) = features.iter().find(|f| !seen.insert(&f.name)) {
            let text = format!(
                "feature `{}` is named twice; give each its own name",
                twice.name
            );
            return Err(Fault::new(Class::Feature, text));
        }
        let bytes = output.bytes() as usize;
        let dims = features.iter().map(|feature| dim_of(feature, tables));
        let dims = dims.collect::<Outcome<Vec<u32>>>()?;
        let (mut matrix, mut width) = (0usize, 0usize);
        let mut spans = Vec::with_capacity(features.len());
        for (feature, &dim) in features.iter().zip(&dims) {
            let dim = dim as usize;
            if feature.pooling == Pooling::None {
                let max_ids = feature.max_ids.unwrap_or(max_batch);
                let offset = matrix;
                matrix += (max_ids as usize * dim * bytes).next_multiple_of(64);
                spans.push(Span::Block {
                    offset,
                    dim,
                    max_ids,
                });
            } else {
                spans.push(Span::Column { first: width, dim });
                width += dim;
            }
        }
        let described = features.iter().zip(&spans).zip(&dims);
        let described = described.map(|((feature, span), &dim)| {
            let (name, table) = (&feature.name, &feature.table);
            match *span {
                Span::Block {
                    offset, max_ids, ..
                } => rowmill::Feature::block(name, table, output, dim, max_ids, offset as u64),
                Span::Column { first, .. } => rowmill::Feature {
                    name: name.clone(),
                    table: table.clone(),
                    pooling: feature.pooling,
                    output,
                    max_ids: 0,
                    offset: (matrix + first * bytes) as u64,
                    stride: (width * bytes) as u64,
                },
            }
        });
        let schema = rowmill::Schema {
            max_batch,
            features: described.collect(),
        };
        let layout = Layout {
            output,
            spans,
            matrix,
            width,
        };
        Ok((schema, layout))
    }

    pub(crate) fn of(bound: BoundSchema, layout: Layout) -> Schema {
        let features = &bound.schema().features;
        Schema {
            names: features.iter().map(|f| f.name.clone()).collect(),
            layout: Arc::new(layout),
            bound,
            chosen: Mutex::new(None),
        }
    }

    /// The columns that features take of a batch with a column for each of them, in their order.
    pub(crate) fn all_columns(&self) -> Columns {
        Columns {
            of: self.names.len(),
            chosen: None,
            names: None,
        }
    }

    /// The columns that features take of a batch with these keys.
    pub(crate) fn columns(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> Outcome<Columns> {
        let keys = match keys.cast::<PyList>() {
            Ok(list) => list.to_tuple(),
            Err(_) => match keys.cast::<PyTuple>() {
                Ok(tuple) => tuple.clone(),
                Err(_) => {
                    return Err(Fault::input("keys are no list or tuple of names; give one"));
                }
            },
        };
        if let Some((known, columns)) = self.chosen_before(py)
            && known.bind(py).eq(&keys)?
        {
            return Ok(columns);
        }
        let names = keys.extract::<Vec<String>>();
        let names = names.map_err(|_| {
            let text = "keys are no names; give a list or tuple of str";
            Fault::new(Class::Dtype, text)
        })?;
        let columns = self.choose(names)?;
        let chosen = Chosen {
            keys: keys.unbind(),
            columns: columns.clone(),
        };
        let before = self.chosen().replace(chosen);
        // Without the lock, since keys may be of a class that has something to do at its end.
        drop(before);
        Ok(columns)
    }

    /// Held for moments in which nothing of Python's runs: comparing keys, or dropping them, may run anybody's code, which may wait
    /// for a thread that comes here.
    fn chosen(&self) -> MutexGuard<'_, Option<Chosen>> {
        self.chosen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chosen_before(&self, py: Python<'_>) -> Option<(Py<PyTuple>, Columns)> {
        let chosen = self.chosen();
        let chosen = chosen.as_ref()?;
        Some((chosen.keys.clone_ref(py), chosen.columns.clone()))
    }

    fn choose(&self, keys: Vec<String>) -> Outcome<Columns> {
        let mut seen = HashSet::new();
        if let Some(twice) = keys.iter().find(|key| !seen.insert(*key)) {
            let text = format!("the batch has the key `{twice}` twice; give each feature once");
            return Err(Fault::new(Class::Feature, text));
        }
        let at = |name: &String| keys.iter().position(|key| key == name).map(|at| at as u32);
        let chosen: Option<Vec<u32>> = self.names.iter().map(at).collect();
        let chosen = chosen.ok_or_else(|| {
            // Others may be there.
            let known = keys.iter().filter(|key| self.names.contains(key));
            self.features_differ(&known.cloned().collect::<Vec<_>>())
        })?;
        let same = keys.len() == chosen.len() && chosen.is_sorted();
        Ok(Columns {
            of: keys.len(),
            chosen: (!same).then(|| chosen.into()),
            names: Some(keys.into()),
        })
    }

    /// A batch with other features than the schema's.
    pub(crate) fn features_differ(&self, given: &[String]) -> Fault {
        let of = |some: &[String], others: &[String]| {
            let names = some.iter().filter(|name| !others.contains(name));
            names
                .map(|name| format!("`{name}`"))
                .collect::<Vec<_>>()
                .join(", ")
        };
        let (lacks, more) = (of(&self.names, given), of(given, &self.names));
        let mut text = String::from("the batch's features are not the schema's:");
        if !lacks.is_empty() {
            text += &format!(" it lacks {lacks};");
        }
        if !more.is_empty() {
            text += &format!(" the schema does not have {more};");
        }
        text += &format!(" the schema has {}; give those", of(&self.names, &[]));
        Fault::new(Class::Feature, text)
    }
}

fn dim_of(feature: &Feature, tables: &[TableEntry]) -> Outcome<u32> {
    let table = tables.iter().find(|table| table.name == feature.table);
    table.map(|table| table.dim).ok_or_else(|| {
        let names: Vec<String> = tables.iter().map(|t| format!("`{}`", t.name)).collect();
        let text = format!(
            "feature `{}`: the model has no table `{}`; it has {}",
            feature.name,
            feature.table,
            names.join(", ")
        );
        Fault::input(text)
    })
}

#[pymethods]
impl Schema {
    /// The features' names, in the schema's order.
    #[getter]
    fn features(&self) -> Vec<String> {
        self.names.to_vec()
    }

    /// The elements of each feature's vectors, in the schema's order.
    #[getter]
    fn dims(&self) -> Vec<usize> {
        (0..self.names.len()).map(|f| self.bound.dim(f)).collect()
    }

    /// Elements of a row of :attr:`Result.values`: the dims of all features that are pooled together.
    #[getter]
    fn width(&self) -> usize {
        self.layout.width
    }

    /// Most bags a feature of a batch.
    #[getter]
    fn max_batch(&self) -> u32 {
        self.bound.schema().max_batch
    }

    /// The type of results: ``"float32"``, ``"float16"`` or ``"bfloat16"``.
    #[getter]
    fn output(&self) -> &'static str {
        output_name(self.layout.output)
    }

    /// Bytes of the result of a batch: what ``out=`` needs.
    ///
    /// Args:
    ///     bags: Bags a feature.
    ///
    /// Returns:
    ///     Bytes.
    pub(crate) fn result_bytes(&self, bags: u32) -> u64 {
        match bags {
            0 => 0,
            bags => self.bound.target_bytes(bags),
        }
    }

    fn __repr__(&self) -> String {
        let names = self.names.join(", ");
        format!(
            "Schema({names}; max_batch={}, output='{}')",
            self.max_batch(),
            self.output()
        )
    }
}

pub(crate) fn output_name(output: Output) -> &'static str {
    match output {
        Output::F32 => "float32",
        Output::F16 => "float16",
        Output::Bf16 => "bfloat16",
    }
}
