//! Batches as callers give them: a flat jagged tensor, a dict of features, a KeyedJaggedTensor.

use std::sync::Arc;

use pyo3::exceptions::PyAttributeError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rowmill_client::{FeatureView, JaggedView, ViewDivision};

use crate::array::{Array, Role};
use crate::errors::{Class, Fault, Outcome};
use crate::schema::{Columns, Schema, Span};

/// Jagged ids: for each feature as many bags, and for each bag its ids.
///
/// The arrays are NumPy arrays or torch tensors of one dimension, dense, in this machine's memory. They are not copied before
/// they are sent, and not kept longer than until they are. Tensors on a GPU are copied to this machine's memory first, which waits for
/// the current stream.
///
/// Args:
///     ids: All ids: first those of all bags of the first feature, then those of the second one and so on; int32, int64,
///         uint32 or uint64.
///     lengths: The ids of each bag, in the same order; int32 or int64.
///     offsets: Instead of lengths: where each bag begins in ``ids``, from 0 on, and where the last one ends, which is the number
///         of ids; int32 or int64.
///     weights: A float32 for each id.
///     keys: The names of the features; the schema's, in its order, if not given. There may be more of them, and in another
///         order.
///
/// Raises:
///     InputError: Neither or both of ``lengths`` and ``offsets`` are given.
#[pyclass(frozen, module = "rowmill")]
pub(crate) struct Jagged {
    ids: Py<PyAny>,
    lengths: Option<Py<PyAny>>,
    offsets: Option<Py<PyAny>>,
    weights: Option<Py<PyAny>>,
    keys: Option<Py<PyAny>>,
}

#[pymethods]
impl Jagged {
    #[new]
    #[pyo3(signature = (ids, lengths = None, *, offsets = None, weights = None, keys = None))]
    fn new(
        ids: Py<PyAny>,
        lengths: Option<Py<PyAny>>,
        offsets: Option<Py<PyAny>>,
        weights: Option<Py<PyAny>>,
        keys: Option<Py<PyAny>>,
    ) -> PyResult<Jagged> {
        if lengths.is_some() == offsets.is_some() {
            let text = "a jagged tensor is divided by lengths or by offsets; give one of them";
            return Err(Fault::input(text).into());
        }
        Ok(Jagged {
            ids,
            lengths,
            offsets,
            weights,
            keys,
        })
    }

    /// What it is made of, for copies and pickles.
    fn __getnewargs_ex__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<((Py<PyAny>,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("lengths", &self.lengths)?;
        named.set_item("offsets", &self.offsets)?;
        named.set_item("weights", &self.weights)?;
        named.set_item("keys", &self.keys)?;
        Ok(((self.ids.clone_ref(py),), named))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.ids)?;
        let others = [&self.lengths, &self.offsets, &self.weights, &self.keys];
        others
            .into_iter()
            .flatten()
            .try_for_each(|one| visit.call(one))
    }
}

/// How ids are divided into bags.
pub(crate) enum Division {
    Lengths(Array),
    Offsets(Array),
}

impl Division {
    fn of(
        py: Python<'_>,
        lengths: Option<&Py<PyAny>>,
        offsets: Option<&Py<PyAny>>,
    ) -> Outcome<Division> {
        match (lengths, offsets) {
            (Some(lengths), _) => Ok(Division::Lengths(Array::of(
                lengths.bind(py),
                Role::Lengths,
            )?)),
            (None, Some(offsets)) => Ok(Division::Offsets(Array::of(
                offsets.bind(py),
                Role::Offsets,
            )?)),
            (None, None) => Err(Fault::input("the batch has neither lengths nor offsets")),
        }
    }

    /// Bags of all columns together. Refuses offsets that don't begin with 0.
    fn bags(&self) -> Outcome<usize> {
        let offsets = match self {
            Division::Lengths(lengths) => return Ok(lengths.count()),
            Division::Offsets(offsets) => offsets,
        };
        let bags = offsets.count().checked_sub(1).ok_or_else(|| {
            Fault::input("offsets are empty; give one more than there are bags, from 0 on")
        })?;
        match offsets.number(0) {
            0 => Ok(bags),
            first => Err(Fault::input(format!(
                "offsets begin with {first}; give offsets from 0 on, and the ids that they divide"
            ))),
        }
    }

    fn view(&self) -> ViewDivision<'_> {
        match self {
            Division::Lengths(lengths) => ViewDivision::Lengths(lengths.numbers()),
            Division::Offsets(offsets) => ViewDivision::Offsets(offsets.numbers()),
        }
    }

    /// The ids of a run of bags; any number where the division contradicts itself, which is found when it is sent.
    fn ids(&self, first: usize, bags: usize) -> u64 {
        match self {
            Division::Lengths(lengths) => lengths.sum(first, bags),
            Division::Offsets(offsets) => {
                let (begin, end) = (offsets.number(first), offsets.number(first + bags));
                end.saturating_sub(begin).max(0).cast_unsigned()
            }
        }
    }
}

/// A feature's arrays.
struct FeatureArrays {
    division: Division,
    ids: Array,
    weights: Option<Array>,
}

impl FeatureArrays {
    fn view(&self) -> FeatureView<'_> {
        FeatureView {
            division: self.division.view(),
            ids: self.ids.numbers(),
            weights: self.weights.as_ref().map(Array::window),
        }
    }
}

enum Arrays {
    Flat {
        all: FeatureArrays,
        columns: Columns,
    },
    /// In the schema's order.
    Features(Vec<FeatureArrays>),
}

/// A batch, matched with a schema. What contradicts itself in its numbers is found when it is sent.
pub(crate) struct Batch {
    pub(crate) bags: usize,
    arrays: Arrays,
}

impl Batch {
    /// A batch as the caller has given it.
    pub(crate) fn of(
        schema: &Schema,
        batch: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Batch> {
        if let Ok(jagged) = batch.cast::<Jagged>() {
            return Batch::of_jagged(schema, batch.py(), jagged.get(), weights);
        }
        if let Ok(features) = batch.cast::<PyDict>() {
            if weights.is_some() {
                let text = "features with arrays of their own have weights of their own; give {name: (ids, lengths, weights)}";
                return Err(Fault::input(text));
            }
            return Batch::of_features(schema, features);
        }
        match batch.getattr(intern!(batch.py(), "lengths_or_none")) {
            Ok(lengths) => Batch::of_keyed(schema, batch, &lengths, weights),
            Err(error) if error.is_instance_of::<PyAttributeError>(batch.py()) => {
                let text = format!(
                    "a batch of type {}; give a rowmill.Jagged, a dict {{name: (ids, lengths)}} or a KeyedJaggedTensor",
                    batch.get_type().name()?
                );
                Err(Fault::new(Class::Dtype, text))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn of_jagged(
        schema: &Schema,
        py: Python<'_>,
        jagged: &Jagged,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Batch> {
        let columns = match &jagged.keys {
            Some(keys) => schema.columns(py, keys.bind(py))?,
            None => schema.all_columns(),
        };
        let weights = weights.or_else(|| jagged.weights.as_ref().map(|weights| weights.bind(py)));
        let all = FeatureArrays {
            division: Division::of(py, jagged.lengths.as_ref(), jagged.offsets.as_ref())?,
            ids: Array::of(jagged.ids.bind(py), Role::Ids)?,
            weights: weights
                .map(|weights| Array::of(weights, Role::Weights))
                .transpose()?,
        };
        Batch::flat(all, columns)
    }

    /// What has the methods of TorchRec's KeyedJaggedTensor.
    fn of_keyed(
        schema: &Schema,
        batch: &Bound<'_, PyAny>,
        lengths: &Bound<'_, PyAny>,
        weights: Option<&Bound<'_, PyAny>>,
    ) -> Outcome<Batch> {
        let py = batch.py();
        let varies = match batch.getattr(intern!(py, "variable_stride_per_key")) {
            Ok(varies) => varies.call0()?.is_truthy()?,
            Err(_) => false,
        };
        if varies {
            let text = "the batch has a number of bags of its own for each key; give one with the same number for all";
            return Err(Fault::input(text));
        }
        let some = |value: Bound<'_, PyAny>| (!value.is_none()).then(|| value.unbind());
        let lengths = some(lengths.call0()?);
        // Where both are there, lengths are what counts.
        let offsets = match lengths {
            Some(_) => None,
            None => some(batch.call_method0(intern!(py, "offsets_or_none"))?),
        };
        let own = match weights {
            Some(weights) => Some(weights.clone().unbind()),
            None => some(batch.call_method0(intern!(py, "weights_or_none"))?),
        };
        let columns = schema.columns(py, &batch.call_method0(intern!(py, "keys"))?)?;
        let ids = batch.call_method0(intern!(py, "values"))?;
        let weights = own.map(|weights| Array::of(weights.bind(py), Role::Weights));
        let all = FeatureArrays {
            division: Division::of(py, lengths.as_ref(), offsets.as_ref())?,
            ids: Array::of(&ids, Role::Ids)?,
            weights: weights.transpose()?,
        };
        Batch::flat(all, columns)
    }

    fn of_features(schema: &Schema, given: &Bound<'_, PyDict>) -> Outcome<Batch> {
        let mut features = Vec::with_capacity(schema.names.len());
        for name in &*schema.names {
            let Some(value) = given.get_item(name)? else {
                return Err(schema.features_differ(&names_of(given)?));
            };
            features.push(feature_arrays(name, &value)?);
        }
        if given.len() != features.len() {
            return Err(schema.features_differ(&names_of(given)?));
        }
        let mut bags = None;
        for (name, feature) in schema.names.iter().zip(&features) {
            let own = feature.division.bags();
            let own = own.map_err(|fault| fault.within(&format!("feature `{name}`: ")))?;
            let bags = *bags.get_or_insert(own);
            if own != bags {
                let text = format!(
                    "feature `{name}` has {own} bags, but `{}` has {bags}; give as many lengths for each feature",
                    schema.names[0]
                );
                return Err(Fault::input(text));
            }
        }
        let batch = Batch {
            bags: bags.unwrap_or(0),
            arrays: Arrays::Features(features),
        };
        batch.checked()
    }

    pub(crate) fn flat_arrays(
        division: Division,
        ids: Array,
        weights: Option<Array>,
        columns: Columns,
    ) -> Outcome<Batch> {
        let all = FeatureArrays {
            division,
            ids,
            weights,
        };
        Batch::flat(all, columns)
    }

    fn flat(all: FeatureArrays, columns: Columns) -> Outcome<Batch> {
        let given = all.division.bags()?;
        let bags = given / columns.of.max(1);
        if bags * columns.of != given {
            let text = format!(
                "{given} lengths for {} features can't be as many for each; give as many lengths (offsets: one more) as bags times features",
                columns.of
            );
            return Err(Fault::input(text));
        }
        let batch = Batch {
            bags,
            arrays: Arrays::Flat { all, columns },
        };
        batch.checked()
    }

    /// Without bags there are no ids.
    fn checked(self) -> Outcome<Batch> {
        let ids = match &self.arrays {
            Arrays::Flat { all, .. } => all.ids.count(),
            Arrays::Features(features) => features.iter().map(|f| f.ids.count()).sum(),
        };
        if self.bags == 0 && ids > 0 {
            let text = format!("{ids} ids are given, but no lengths; give one for each bag");
            return Err(Fault::input(text));
        }
        Ok(self)
    }

    /// Calls `with` with what is to be sent.
    pub(crate) fn with_view<T>(&self, with: impl FnOnce(&JaggedView<'_>) -> T) -> T {
        match &self.arrays {
            Arrays::Flat { all, columns } => {
                let weights = all.weights.as_ref().map(Array::window);
                let view =
                    JaggedView::tensor(self.bags, all.division.view(), all.ids.numbers(), weights);
                match &columns.chosen {
                    Some(chosen) => with(&view.with_columns(chosen)),
                    None => with(&view),
                }
            }
            Arrays::Features(features) => {
                let views: Vec<_> = features.iter().map(FeatureArrays::view).collect();
                with(&JaggedView::features(self.bags, &views))
            }
        }
    }

    /// The names by which errors count: of the columns, where there are some.
    pub(crate) fn names(&self) -> Option<Arc<[String]>> {
        match &self.arrays {
            Arrays::Flat { columns, .. } => columns.names.clone(),
            Arrays::Features(_) => None,
        }
    }

    /// The vectors that each feature has in a result: one a bag, or one an id.
    pub(crate) fn vectors(&self, schema: &Schema) -> Option<Vec<usize>> {
        if !schema.layout.any_block() || self.bags == 0 {
            return None;
        }
        let spans = schema.layout.spans.iter().enumerate();
        let vectors = spans.map(|(feature, span)| match *span {
            Span::Column { .. } => self.bags,
            // More than there is room for is refused.
            Span::Block { max_ids, .. } => self.ids(feature).min(max_ids.into()) as usize,
        });
        Some(vectors.collect())
    }

    fn ids(&self, feature: usize) -> u64 {
        match &self.arrays {
            Arrays::Flat { all, columns } => {
                let column = columns
                    .chosen
                    .as_ref()
                    .map_or(feature, |c| c[feature] as usize);
                all.division.ids(column * self.bags, self.bags)
            }
            Arrays::Features(features) => features[feature].ids.count() as u64,
        }
    }
}

fn names_of(given: &Bound<'_, PyDict>) -> Outcome<Vec<String>> {
    let names = given.keys().extract();
    names.map_err(|_| Fault::input("the batch's keys are no names; give {name: (ids, lengths)}"))
}

/// `(ids, lengths)`, `(ids, lengths, weights)`, or a jagged tensor of one feature.
fn feature_arrays(name: &str, value: &Bound<'_, PyAny>) -> Outcome<FeatureArrays> {
    let py = value.py();
    let of_feature = |fault: Fault| fault.within(&format!("feature `{name}`: "));
    if let Ok(jagged) = value.cast::<Jagged>() {
        let jagged = jagged.get();
        let weights = jagged.weights.as_ref();
        let weights = weights.map(|weights| Array::of(weights.bind(py), Role::Weights));
        let division = Division::of(py, jagged.lengths.as_ref(), jagged.offsets.as_ref());
        return Ok(FeatureArrays {
            division: division.map_err(of_feature)?,
            ids: Array::of(jagged.ids.bind(py), Role::Ids).map_err(of_feature)?,
            weights: weights.transpose().map_err(of_feature)?,
        });
    }
    let parts = value
        .cast::<PyTuple>()
        .ok()
        .filter(|parts| matches!(parts.len(), 2 | 3));
    let Some(parts) = parts else {
        let text = format!(
            "feature `{name}` is no (ids, lengths) or (ids, lengths, weights); give one of them"
        );
        return Err(Fault::input(text));
    };
    let array = |at: usize, role: Role| {
        let array = parts.get_item(at).map_err(Fault::from);
        array
            .and_then(|array| Array::of(&array, role))
            .map_err(of_feature)
    };
    Ok(FeatureArrays {
        ids: array(0, Role::Ids)?,
        division: Division::Lengths(array(1, Role::Lengths)?),
        weights: match parts.len() {
            3 => Some(array(2, Role::Weights)?),
            _ => None,
        },
    })
}
