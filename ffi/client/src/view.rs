//! Jagged ids as they lie in the caller's memory, to be sent without a copy of the caller's own.
//!
//! Others may write that memory meanwhile: it is read by copies only ([`ReadWindow`]). Lengths are copied to
//! private memory and checked there; ids and weights are not looked at, but copied to where the dataplane reads them,
//! which checks them. All of it is read once, so that a change at the wrong moment is as good as one before.

use std::ops::Range;

use rowmill_arena::ReadWindow;

use crate::error::BatchError;
use crate::shape::{Content, Divide, Field, Ids, Shape, Sink};

/// Whole numbers of 32 or 64 bits, aligned or not.
#[derive(Clone, Copy, Debug)]
pub struct Numbers<'a> {
    memory: ReadWindow<'a>,
    wide: bool,
}

impl<'a> Numbers<'a> {
    /// Numbers of 32 bits. Bytes at the end that are no whole number are left out.
    pub fn bits32(memory: ReadWindow<'a>) -> Numbers<'a> {
        Numbers {
            memory,
            wide: false,
        }
    }

    /// Numbers of 64 bits. Bytes at the end that are no whole number are left out.
    pub fn bits64(memory: ReadWindow<'a>) -> Numbers<'a> {
        Numbers { memory, wide: true }
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.memory.len() / self.width()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn width(&self) -> usize {
        if self.wide { 8 } else { 4 }
    }

    fn bytes(&self, range: Range<usize>) -> ReadWindow<'a> {
        let width = self.width();
        let part = self.memory.part(range.start * width, range.len() * width);
        part.expect("a range of the numbers that are there")
    }

    /// Calls `take` with each number of a range, as a signed one.
    fn each<E>(
        &self,
        range: Range<usize>,
        mut take: impl FnMut(i64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = [0u64; 256];
        let at_once = size_of_val(&buffer) / self.width();
        for from in range.clone().step_by(at_once) {
            let part = self.bytes(from..range.end.min(from + at_once));
            let copied = &mut bytemuck::cast_slice_mut(&mut buffer)[..part.len()];
            part.read(0, copied);
            if self.wide {
                let mut numbers = bytemuck::cast_slice::<u8, i64>(copied).iter();
                numbers.try_for_each(|&number| take(number))?;
            } else {
                let mut numbers = bytemuck::cast_slice::<u8, i32>(copied).iter();
                numbers.try_for_each(|&number| take(number.into()))?;
            }
        }
        Ok(())
    }
}

macro_rules! numbers_from {
    ($($element:ty: $make:ident),*) => {
        $(impl<'a> From<&'a [$element]> for Numbers<'a> {
            fn from(numbers: &'a [$element]) -> Numbers<'a> {
                Numbers::$make(ReadWindow::over(bytemuck::cast_slice(numbers)))
            }
        })*
    };
}

numbers_from!(i32: bits32, u32: bits32, i64: bits64, u64: bits64);

/// How ids are divided into bags; the numbers are read as signed ones.
#[derive(Clone, Copy, Debug)]
pub enum ViewDivision<'a> {
    /// The length of each bag.
    Lengths(Numbers<'a>),
    /// Where each bag begins, and where the last one ends; never falling. The first one need not be 0: ids are
    /// counted from there.
    Offsets(Numbers<'a>),
}

impl ViewDivision<'_> {
    /// Of how many bags it says that.
    fn bags(&self) -> usize {
        match self {
            ViewDivision::Lengths(lengths) => lengths.len(),
            ViewDivision::Offsets(offsets) => offsets.len().saturating_sub(1),
        }
    }
}

/// A feature with arrays of its own.
#[derive(Clone, Copy, Debug)]
pub struct FeatureView<'a> {
    /// How its ids are divided.
    pub division: ViewDivision<'a>,
    /// Its ids, signed or not; the dataplane refuses negative ones.
    pub ids: Numbers<'a>,
    /// An f32 for each id, where it is weighted.
    pub weights: Option<ReadWindow<'a>>,
}

/// The jagged ids of a request in the caller's memory.
///
/// ```
/// use rowmill_client::{JaggedView, Numbers, ViewDivision};
/// // Two features of two bags, as a KeyedJaggedTensor has them; the schema has them the other way round.
/// let (lengths, ids) = ([2i64, 0, 1, 1], [10i64, 11, 12, 13]);
/// let lengths = ViewDivision::Lengths(Numbers::from(&lengths[..]));
/// let view = JaggedView::tensor(2, lengths, Numbers::from(&ids[..]), None).with_columns(&[1, 0]);
/// # let _ = view;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct JaggedView<'a> {
    bags: usize,
    parts: Parts<'a>,
}

#[derive(Clone, Copy, Debug)]
enum Parts<'a> {
    /// Columns one after another in the same arrays.
    Tensor {
        all: FeatureView<'a>,
        /// Which column each feature takes; `None`: each its own.
        columns: Option<&'a [u32]>,
    },
    Features(&'a [FeatureView<'a>]),
}

impl<'a> JaggedView<'a> {
    /// A whole jagged tensor, as [`Batch::fill`](crate::Batch::fill) takes it: first all bags of feature 0, then those of
    /// feature 1 and so on. Weights, an f32 for each id, are read for the features that are weighted in the schema.
    pub fn tensor(
        bags: usize,
        division: ViewDivision<'a>,
        ids: Numbers<'a>,
        weights: Option<ReadWindow<'a>>,
    ) -> JaggedView<'a> {
        let all = FeatureView {
            division,
            ids,
            weights,
        };
        let columns = None;
        JaggedView {
            bags,
            parts: Parts::Tensor { all, columns },
        }
    }

    /// Bags a feature.
    pub fn bags(&self) -> usize {
        self.bags
    }

    /// How many ids a feature has, as its lengths or offsets say; 0 where there is no such feature, or they say nonsense.
    pub fn ids_of(&self, feature: usize) -> u64 {
        let (division, column) = match &self.parts {
            Parts::Features(features) => (features.get(feature).map(|f| f.division), Some(0)),
            Parts::Tensor { all, columns } => {
                let chosen = |columns: &&[u32]| columns.get(feature).map(|&c| c as usize);
                let column = columns.as_ref().map_or(Some(feature), chosen);
                (Some(all.division), column)
            }
        };
        let (Some(division), Some(column)) = (division, column) else {
            return 0;
        };
        let (from, to) = (column * self.bags, (column + 1) * self.bags);
        if to > division.bags() {
            return 0;
        }
        let mut sum = 0u64;
        let mut add = |number: i64| -> Result<(), core::convert::Infallible> {
            sum = sum.wrapping_add_signed(number);
            Ok(())
        };
        let Ok(()) = match division {
            ViewDivision::Lengths(lengths) => lengths.each(from..to, add),
            ViewDivision::Offsets(offsets) => offsets
                .each(to..to + 1, &mut add)
                .and_then(|()| offsets.each(from..from + 1, |first| add(first.wrapping_neg()))),
        };
        sum
    }

    /// With features that are chosen from the tensor's columns, counted from 0: feature `f` of the schema is column
    /// `columns[f]`. A column may be chosen more than once or not at all. Nothing changes where features have arrays of their own.
    #[must_use]
    pub fn with_columns(mut self, chosen: &'a [u32]) -> JaggedView<'a> {
        if let Parts::Tensor { columns, .. } = &mut self.parts {
            *columns = Some(chosen);
        }
        self
    }

    /// Features with arrays of their own, as [`Batch::push`](crate::Batch::push) takes them.
    pub fn features(bags: usize, features: &'a [FeatureView<'a>]) -> JaggedView<'a> {
        JaggedView {
            bags,
            parts: Parts::Features(features),
        }
    }
}

/// Bags of a division, from number `first` on.
struct Bags<'a> {
    division: ViewDivision<'a>,
    first: usize,
    count: usize,
}

impl Divide for Bags<'_> {
    fn given(&self) -> usize {
        self.count
    }

    fn each(
        &self,
        feature: usize,
        mut take: impl FnMut(u64) -> Result<(), BatchError>,
    ) -> Result<(), BatchError> {
        let (from, to) = (self.first, self.first + self.count);
        let mut bag = 0;
        match self.division {
            ViewDivision::Lengths(lengths) => lengths.each(from..to, |length| {
                let natural = u64::try_from(length);
                take(natural.map_err(|_| BatchError::NegativeLength {
                    feature,
                    bag,
                    length,
                })?)?;
                bag += 1;
                Ok(())
            }),
            ViewDivision::Offsets(offsets) => {
                let mut before = None;
                offsets.each(from..to + 1, |offset| {
                    let Some(begin) = before.replace(offset) else {
                        return Ok(());
                    };
                    // The difference of two i64 fits into an u64 where it is not negative.
                    let length = u64::try_from(i128::from(offset) - i128::from(begin));
                    take(length.map_err(|_| BatchError::OffsetsFall { feature, bag })?)?;
                    bag += 1;
                    Ok(())
                })
            }
        }
    }
}

/// What was taken in of a view, with buffers that are kept for the next one.
#[derive(Default)]
pub(crate) struct TakenIn {
    /// Of all columns of a tensor of which some are chosen.
    columns: Shape,
    shape: Shape,
    runs: Vec<Run>,
}

/// Ids that lie one after another in the caller's memory and in the request, up to the next run.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The first one's number in the request.
    first: u32,
    /// Whose arrays: the feature's number, or 0 of a tensor.
    part: usize,
    /// The first one's number there.
    at: usize,
    weighted: bool,
}

/// A view that was taken in.
pub(crate) struct Viewed<'v> {
    taken: &'v TakenIn,
    parts: Parts<'v>,
}

impl TakenIn {
    /// Takes in and checks the lengths of a view. `weighted` says which features of the schema are.
    pub(crate) fn take_in<'v>(
        &'v mut self,
        view: &JaggedView<'v>,
        weighted: impl Fn(usize) -> bool,
    ) -> Result<Viewed<'v>, BatchError> {
        self.runs.clear();
        self.shape.begin(view.bags)?;
        match view.parts {
            Parts::Tensor { all, columns } => {
                match columns {
                    None => add_columns(&mut self.shape, view.bags, &all, true)?,
                    Some(columns) => self.choose(view.bags, &all, columns)?,
                }
                if all.weights.is_some() {
                    // Those of features that take none can't be told from others. Where none does, there are too many.
                    let any = (0..self.shape.features()).any(&weighted);
                    self.shape.set_weighted(|f| !any || weighted(f));
                }
                for f in 0..self.shape.features() {
                    let (from, column) = match columns {
                        None => (&self.shape, f),
                        Some(columns) => (&self.columns, columns[f] as usize),
                    };
                    let at = from.start(column) as usize;
                    self.add_run(f, 0, at);
                }
            }
            Parts::Features(features) => {
                for (f, feature) in features.iter().enumerate() {
                    let bags = Bags {
                        division: feature.division,
                        first: 0,
                        count: feature.division.bags(),
                    };
                    let ids = Ids {
                        exactly: true,
                        count: feature.ids.len(),
                        wide: feature.ids.wide,
                    };
                    let weights = feature.weights.map(|weights| weights.len() / 4);
                    self.shape.add(&bags, ids, weights)?;
                    self.add_run(f, f, 0);
                }
            }
        }
        Ok(Viewed {
            taken: self,
            parts: view.parts,
        })
    }

    /// Takes in all columns, and from them the chosen ones.
    fn choose(
        &mut self,
        bags: usize,
        all: &FeatureView<'_>,
        chosen: &[u32],
    ) -> Result<(), BatchError> {
        self.columns.begin(bags)?;
        add_columns(&mut self.columns, bags, all, false)?;
        let columns = self.columns.features();
        for (feature, &column) in chosen.iter().enumerate() {
            if column as usize >= columns {
                return Err(BatchError::NoColumn {
                    feature,
                    column,
                    columns,
                });
            }
            self.shape.add_from(&self.columns, column as usize)?;
        }
        Ok(())
    }

    /// Says where a feature's ids lie.
    fn add_run(&mut self, feature: usize, part: usize, at: usize) {
        let first = self.shape.start(feature);
        if self.shape.start(feature + 1) == first {
            return;
        }
        let weighted = self.shape.is_weighted(feature);
        let goes_on = self.runs.last().is_some_and(|run| {
            let next = run.at + (first - run.first) as usize;
            (run.part, next, run.weighted) == (part, at, weighted)
        });
        if !goes_on {
            self.runs.push(Run {
                first,
                part,
                at,
                weighted,
            });
        }
    }
}

/// Takes in a tensor's columns; `limited` to what a request may have.
fn add_columns(
    shape: &mut Shape,
    bags: usize,
    all: &FeatureView<'_>,
    limited: bool,
) -> Result<(), BatchError> {
    let ids = all.ids.len();
    if let Some(weights) = all.weights.map(|weights| weights.len() / 4)
        && weights != ids
    {
        return Err(BatchError::WeightCount {
            feature: 0,
            weights,
            ids,
        });
    }
    let (given, mut taken) = (all.division.bags(), 0);
    for first in (0..given).step_by(bags) {
        let division = Bags {
            division: all.division,
            first,
            count: bags.min(given - first),
        };
        let claim = Ids {
            exactly: false,
            count: ids - taken,
            wide: all.ids.wide,
        };
        taken += match limited {
            true => shape.add(&division, claim, None)?,
            false => shape.add_any(&division, claim, None)?,
        };
    }
    shape.all_taken(taken, ids)
}

impl Content for Viewed<'_> {
    fn shape(&self) -> &Shape {
        &self.taken.shape
    }

    fn copy(&self, field: Field, ids: Range<u32>, out: &mut Sink<'_>, mut at: usize) {
        let runs = &self.taken.runs;
        let mut from = ids.start;
        let mut next = runs.partition_point(|run| run.first <= from);
        while from < ids.end {
            let run = &runs[next - 1]; // No id comes before the first run.
            let to = runs.get(next).map_or(ids.end, |run| run.first.min(ids.end));
            let count = (to - from) as usize;
            let source = match self.parts {
                Parts::Tensor { all, .. } => all,
                Parts::Features(features) => features[run.part],
            };
            let first = run.at + (from - run.first) as usize;
            at += match (field, source.weights) {
                (Field::Ids, _) => {
                    let bytes = source.ids.bytes(first..first + count);
                    out.put_from(at, bytes);
                    bytes.len()
                }
                (Field::Weights, Some(weights)) if run.weighted => {
                    let bytes = Numbers::bits32(weights).bytes(first..first + count);
                    out.put_from(at, bytes);
                    bytes.len()
                }
                (Field::Weights, _) => {
                    ones(count, out, at);
                    4 * count
                }
            };
            (from, next) = (to, next + 1);
        }
    }
}

/// Weights of ids that take none.
fn ones(count: usize, out: &mut Sink<'_>, at: usize) {
    let ones = [1.0f32; 64];
    for from in (0..count).step_by(ones.len()) {
        let part = &ones[..ones.len().min(count - from)];
        out.put(at + 4 * from, bytemuck::cast_slice(part));
    }
}
