//! What `rowmill lookup` prints.

use core::time::Duration;

use rowmill_client::{Answer, Pooling};
use serde_json::{Value, json};

use super::{Element, Pool, Wanted};
use crate::output::{number, numbers, shown};

/// Elements of a vector that are shown unless all are asked for.
const SHOWN: usize = 8;

/// A feature's answer: a vector, or one for each id where it is not pooled.
pub(super) struct Found<'a> {
    pub(super) wanted: &'a Wanted,
    pub(super) dim: usize,
    pub(super) vectors: Vec<Vec<f32>>,
}

/// All that is printed.
pub(super) struct Report<'a> {
    pub(super) model: String,
    pub(super) pool: Pool,
    pub(super) output: Element,
    pub(super) round_trip: Duration,
    pub(super) answer: Answer,
    pub(super) found: Vec<Found<'a>>,
}

fn norm(vector: &[f32]) -> f64 {
    vector
        .iter()
        .map(|&x| f64::from(x) * f64::from(x))
        .sum::<f64>()
        .sqrt()
}

fn pooling_name(wanted: &Wanted, pool: Pool) -> &'static str {
    match wanted.pooling(pool) {
        Pooling::Sum => "sum",
        Pooling::Mean => "mean",
        Pooling::WeightedSum => "weighted sum",
        Pooling::WeightedMean => "weighted mean",
        Pooling::Max => "max",
        Pooling::None => "none",
    }
}

/// A feature's vectors, their heads or all of them, for a person.
pub(super) fn found_text(found: &Found<'_>, pool: Pool, full: bool) -> String {
    let Found {
        wanted,
        dim,
        vectors,
    } = found;
    let (ids, rows) = (
        wanted.ids.len(),
        if wanted.ids.len() == 1 { "row" } else { "rows" },
    );
    let table = if wanted.name == wanted.table {
        String::new()
    } else {
        format!(" of table {}", shown(&wanted.table))
    };
    let mut out = format!("{}{table}: ", shown(&wanted.name));
    if pool == Pool::None {
        out += &format!("{ids} {rows}, dim {dim}");
        for (id, vector) in wanted.ids.iter().zip(vectors) {
            out += &format!("\n id {id}, norm {:.6}", norm(vector));
            out += &vector_text(vector, full);
        }
    } else {
        out += &format!("{} of {ids} {rows}, dim {dim}", pooling_name(wanted, pool));
        for vector in vectors {
            out += &format!(", norm {:.6}", norm(vector));
            out += &vector_text(vector, full);
        }
    }
    out.push('\n');
    out
}

/// A vector's head, or all of it, in lines of their own.
fn vector_text(vector: &[f32], full: bool) -> String {
    let head = if full {
        vector.len()
    } else {
        SHOWN.min(vector.len())
    };
    let mut out = String::new();
    for row in vector[..head].chunks(SHOWN) {
        let values: Vec<String> = row.iter().map(|x| format!("{x:>12.6}")).collect();
        out += &format!("\n  {}", values.join(" "));
    }
    if head < vector.len() {
        out += &format!("  ... {} more (--full)", vector.len() - head);
    }
    out
}

impl Report<'_> {
    pub(super) fn text(&self, full: bool) -> String {
        let features = self.found.iter();
        let out: String = features
            .map(|found| found_text(found, self.pool, full))
            .collect();
        let us = self.answer.service_ns as f64 / 1000.0;
        let round_trip_us = self.round_trip.as_secs_f64() * 1e6;
        out + &format!(
            "model {}, generation {}, served in {us:.1} us, {round_trip_us:.1} us there and back\n",
            shown(&self.model),
            self.answer.generation
        )
    }

    pub(super) fn json(&self) -> Value {
        let feature = |found: &Found<'_>| {
            let Found {
                wanted,
                dim,
                vectors,
            } = found;
            let mut feature = json!({
                "feature": wanted.name,
                "table": wanted.table,
                "pooling": pooling_name(wanted, self.pool),
                "output": self.output.name(),
                "ids": wanted.ids,
                "weights": wanted.weights.as_deref().map(numbers),
                "dim": dim,
            });
            match (self.pool, &vectors[..]) {
                (Pool::None, vectors) => {
                    feature["vectors"] = vectors.iter().map(|vector| numbers(vector)).collect();
                }
                (_, vectors) => {
                    let vector = vectors.first().map_or(&[][..], |vector| vector);
                    feature["norm"] = number(norm(vector));
                    feature["vector"] = numbers(vector);
                }
            }
            feature
        };
        json!({
            "model": self.model,
            "generation": self.answer.generation,
            "service_ns": self.answer.service_ns,
            "round_trip_ns": self.round_trip.as_nanos() as u64,
            "features": self.found.iter().map(feature).collect::<Vec<_>>(),
        })
    }
}
