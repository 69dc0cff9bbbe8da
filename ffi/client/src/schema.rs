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
            .collect::<Option<_>>()?;
        let weighted = schema
            .features
            .iter()
            .map(|f| f.pooling.is_weighted())
            .collect();
        Some(BoundSchema {
            session,
            id,
            schema,
            dims,
            weighted,
        })
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
        let bytes = self.schema.features.iter().map(|f| f.output.bytes());
        bytes.max().unwrap_or(1)
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
        let vectors = |f: usize| self.schema.features[f].max_vectors(bags);
        let end = |f| self.vector_offset(f, vectors(f).saturating_sub(1)) + self.vector_bytes(f);
        (0..self.features()).map(end).max().unwrap_or(0)
    }
}
