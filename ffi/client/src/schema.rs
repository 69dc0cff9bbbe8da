//! A bound schema: what requests refer to, and where their answers lie.

use rowmill_wire::control::TableEntry;
use rowmill_wire::{Output, Pooling, Schema};

/// A schema that the dataplane has bound for this session, with what the client needs to know of its
/// tables. Made by `Session::bind`.
#[derive(Clone, Debug)]
pub struct BoundSchema {
    pub(crate) session: u64,
    pub(crate) id: u32,
    schema: Schema,
    dims: Vec<u32>,
    weighted: Vec<bool>,
    /// Of the largest element.
    element_bytes: u64,
    /// Where the blocks of features that are not pooled end.
    blocks_end: u64,
    /// For each stride of features that are pooled: where the first bag's vectors end. A schema has few strides, mostly one.
    bags_end: Vec<(u64, u64)>,
}

impl BoundSchema {
    /// `None` where the server bound a table that it does not list.
    pub(crate) fn new(
        session: u64,
        id: u32,
        schema: Schema,
        tables: &[TableEntry],
    ) -> Option<BoundSchema> {
        let dim = |name: &str| tables.iter().find(|t| t.name == name).map(|t| t.dim);
        let dims = schema
            .features
            .iter()
            .map(|f| dim(&f.table))
            .collect::<Option<Vec<u32>>>()?;
        let weighted = schema
            .features
            .iter()
            .map(|f| f.pooling.is_weighted())
            .collect();
        let element_bytes = schema.features.iter().map(|f| f.output.bytes());
        let mut bound = BoundSchema {
            session,
            id,
            element_bytes: element_bytes.max().unwrap_or(1),
            blocks_end: 0,
            bags_end: Vec::new(),
            schema,
            dims,
            weighted,
        };
        bound.find_ends();
        Some(bound)
    }

    /// Once, so that requests need not look at all features for it.
    fn find_ends(&mut self) {
        for f in 0..self.features() {
            let feature = &self.schema.features[f];
            if !self.is_pooled(f) {
                let last = feature.max_ids.saturating_sub(1);
                let end = self.vector_offset(f, last) + self.vector_bytes(f);
                self.blocks_end = self.blocks_end.max(end);
                continue;
            }
            let (stride, end) = (feature.stride, feature.offset + self.vector_bytes(f));
            match self.bags_end.iter_mut().find(|(known, _)| *known == stride) {
                Some((_, known)) => *known = end.max(*known),
                None => self.bags_end.push((stride, end)),
            }
        }
    }

    /// The schema as it was bound.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// How many features it has.
    pub fn features(&self) -> usize {
        self.dims.len()
    }

    /// Elements of the feature's vectors.
    ///
    /// # Panics
    /// If the schema has no such feature.
    pub fn dim(&self, feature: usize) -> usize {
        self.dims[feature] as usize
    }

    /// The type of the feature's elements.
    ///
    /// # Panics
    /// If the schema has no such feature.
    pub fn output(&self, feature: usize) -> Output {
        self.schema.features[feature].output
    }

    /// Whether the feature's bags are pooled; else it has a vector for each id.
    ///
    /// # Panics
    /// If the schema has no such feature.
    pub fn is_pooled(&self, feature: usize) -> bool {
        self.schema.features[feature].pooling != Pooling::None
    }

    /// Bytes of one of the feature's vectors.
    ///
    /// # Panics
    /// If the schema has no such feature.
    pub fn vector_bytes(&self, feature: usize) -> u64 {
        u64::from(self.dims[feature]) * self.output(feature).bytes()
    }

    /// Bytes of the largest element, which targets begin at a multiple of.
    pub(crate) fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    /// Whether requests bring weights for the feature.
    pub(crate) fn is_weighted(&self, feature: usize) -> bool {
        self.weighted[feature]
    }

    /// Whether requests bring weights at all.
    pub(crate) fn any_weighted(&self) -> bool {
        self.weighted.contains(&true)
    }

    /// The number of the feature with that name.
    pub fn feature(&self, name: &str) -> Option<usize> {
        self.schema.features.iter().position(|f| f.name == name)
    }

    /// Bytes from the target's base to a vector: that of the bag of this number, or of the id of this
    /// number among the feature's ids where it is not pooled.
    ///
    /// # Panics
    /// If the schema has no such feature.
    pub fn vector_offset(&self, feature: usize, vector: u32) -> u64 {
        let f = &self.schema.features[feature];
        f.offset + u64::from(vector) * f.stride
    }

    /// Where a vector ends, from the target's base on; `None` where that can't be counted.
    pub(crate) fn vector_end(&self, feature: usize, vector: u32) -> Option<u64> {
        let f = &self.schema.features[feature];
        let start = u64::from(vector).checked_mul(f.stride)?;
        let start = f.offset.checked_add(start)?;
        start.checked_add(self.vector_bytes(feature))
    }

    /// Copies a vector out of an answer that `read` copies bytes of, from an offset on. Elements of 2 bytes are widened.
    ///
    /// # Panics
    /// If the schema has no such feature, or `out` has another length than its vectors.
    pub(crate) fn read_vector(
        &self,
        feature: usize,
        vector: u32,
        out: &mut [f32],
        mut read: impl FnMut(u64, &mut [u8]),
    ) {
        assert_eq!(
            out.len(),
            self.dim(feature),
            "one element for each dimension"
        );
        let mut at = self.vector_offset(feature, vector);
        let widen: fn(u16) -> f32 = match self.output(feature) {
            Output::F32 => return read(at, bytemuck::cast_slice_mut(out)),
            Output::F16 => |bits| half::f16::from_bits(bits).to_f32(),
            Output::Bf16 => |bits| half::bf16::from_bits(bits).to_f32(),
        };
        let mut halves = [0u16; 256];
        for part in out.chunks_mut(halves.len()) {
            let halves = &mut halves[..part.len()];
            read(at, bytemuck::cast_slice_mut(halves));
            at += 2 * part.len() as u64;
            for (x, &bits) in part.iter_mut().zip(&*halves) {
                *x = widen(bits);
            }
        }
    }

    /// Bytes that a target needs for `bags` bags: up to the end of the last vector, and to the end of the
    /// blocks of features that are not pooled.
    pub fn target_bytes(&self, bags: u32) -> u64 {
        let last = u64::from(bags.saturating_sub(1));
        let ends = self.bags_end.iter();
        let ends = ends.map(|(stride, first)| last * stride + first);
        ends.fold(self.blocks_end, u64::max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rowmill_wire::Feature;

    use super::*;

    fn feature() -> impl Strategy<Value = Feature> {
        let pooling = prop::sample::select(vec![Pooling::Sum, Pooling::Mean, Pooling::None]);
        let output = prop::sample::select(vec![Output::F32, Output::F16, Output::Bf16]);
        let stride = prop::sample::select(vec![64u64, 256, 1024]);
        (pooling, output, 0u64..4096, stride, 0u32..9).prop_map(
            |(pooling, output, offset, stride, max_ids)| Feature {
                name: "a".into(),
                table: "t".into(),
                pooling,
                output,
                offset,
                stride,
                max_ids,
            },
        )
    }

    proptest! {
        #[test]
        fn a_target_ends_with_the_last_vector(features in prop::collection::vec(feature(), 1..9), bags in 1u32..99) {
            let tables = [TableEntry { name: "t".into(), rows: 9, dim: 16, format: 0, kind: 0 }];
            let schema = Schema { max_batch: 99, features };
            let bound = BoundSchema::new(1, 1, schema.clone(), &tables).expect("a table");
            let ends = schema.features.iter().enumerate().map(|(f, feature)| {
                let last = feature.max_vectors(bags).saturating_sub(1);
                bound.vector_end(f, last).expect("small")
            });
            prop_assert_eq!(bound.target_bytes(bags), ends.max().expect("features"));
            let element = schema.features.iter().map(|f| f.output.bytes()).max();
            prop_assert_eq!(bound.element_bytes(), element.expect("features"));
        }
    }
}
