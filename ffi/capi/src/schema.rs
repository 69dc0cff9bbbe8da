//! Schemas.

use rowmill_client::{BoundSchema, Feature, Hub, Output, Pooling, TableEntry};

use crate::abi::rowmill_feature;
use crate::error::Error;
use crate::input;

/// A schema that a client has bound.
pub(crate) struct Schema {
    pub(crate) bound: BoundSchema,
}

impl Schema {
    /// The number of a feature, checked.
    pub(crate) fn feature(&self, number: usize) -> Result<usize, Error> {
        let features = self.bound.features();
        match number < features {
            true => Ok(number),
            false => Err(Error::invalid(format!(
                "the schema has no feature {number}: it has {features}, counted from 0"
            ))),
        }
    }

    /// Bytes of an answer of so many bags; `None` where it can't have as many, as who sends them is told.
    pub(crate) fn answer_bytes(&self, bags: u32) -> Option<u64> {
        let most = self.bound.schema().max_batch;
        (bags <= most).then(|| self.bound.target_bytes(bags))
    }

    /// A feature's name, where the schema has it.
    pub(crate) fn name(&self, number: u32) -> Option<&str> {
        let features = &self.bound.schema().features;
        features.get(number as usize).map(|f| f.name.as_str())
    }
}

/// A feature as the caller describes it, its place still as given.
///
/// # Safety
/// Its texts are NULL or end with a 0.
unsafe fn feature(given: &rowmill_feature, at: usize) -> Result<Feature, Error> {
    let of = |what: &str| format!("features[{at}].{what}");
    // SAFETY: as this function's.
    let name = unsafe { input::text(given.name, &of("name")) }?;
    // SAFETY: as this function's.
    let table = unsafe { input::text(given.table, &of("table")) }?;
    let pooling = Pooling::ALL
        .into_iter()
        .find(|&known| known as u32 == given.pooling);
    let output = Output::ALL
        .into_iter()
        .find(|&known| known as u32 == given.output);
    let (Some(pooling), Some(output)) = (pooling, output) else {
        let (what, value, kind) = match pooling {
            None => ("pooling", given.pooling, "rowmill_pooling"),
            Some(_) => ("output", given.output, "rowmill_output"),
        };
        let of = of(what);
        return Err(Error::invalid(format!(
            "{of} is {value}, which is none; give a {kind}"
        )));
    };
    if (pooling == Pooling::None) != (given.max_ids > 0) {
        return Err(Error::invalid(format!(
            "features[{at}].max_ids is {}; it has to be above 0 exactly where the pooling is ROWMILL_NO_POOLING",
            given.max_ids
        )));
    }
    Ok(Feature {
        name: name.into(),
        table: table.into(),
        pooling,
        output,
        max_ids: given.max_ids,
        offset: given.offset,
        stride: given.stride,
    })
}

/// Lays vectors side by side in one row a bag.
fn lay_side_by_side(features: &mut [Feature], tables: &[TableEntry]) -> Result<(), Error> {
    let mut row = 0;
    for (at, feature) in features.iter_mut().enumerate() {
        if feature.pooling == Pooling::None || feature.offset != 0 {
            return Err(Error::invalid(format!(
                "features[{at}] (`{}`) has no stride: give each feature an offset and a stride, or none of them any and pool all",
                feature.name
            )));
        }
        // The dataplane refuses tables that it does not have, in its own words.
        let table = tables.iter().find(|table| table.name == feature.table);
        let dim = table.map_or(0, |table| table.dim);
        feature.offset = row;
        row += u64::from(dim) * feature.output.bytes();
    }
    for feature in features {
        feature.stride = row;
    }
    Ok(())
}

/// Binds features.
///
/// # Safety
/// Their texts are NULL or end with a 0.
pub(crate) unsafe fn bind(
    hub: &Hub,
    given: &[rowmill_feature],
    max_batch: u32,
) -> Result<Schema, Error> {
    if given.is_empty() {
        return Err(Error::invalid(
            "a schema without features; give at least one",
        ));
    }
    if max_batch == 0 {
        return Err(Error::invalid(
            "max_batch is 0; give the bags of the largest batch that you will send",
        ));
    }
    let features = given.iter().enumerate();
    // SAFETY: as this function's.
    let features = features.map(|(at, one)| unsafe { feature(one, at) });
    let mut features: Vec<Feature> = features.collect::<Result<_, _>>()?;
    if features.iter().all(|feature| feature.stride == 0) {
        lay_side_by_side(&mut features, &hub.tables()?)?;
    }
    let bound = hub.bind(rowmill_client::Schema {
        max_batch,
        features,
    })?;
    Ok(Schema { bound })
}
