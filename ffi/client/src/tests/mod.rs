//! Tests of the session over the stand-in port.

mod answers;
mod bounds;
mod device;
mod generations;
mod hub;
mod narrow;
mod split;
mod view;

use crate::stand_in::{DIM, StandIn};
use crate::*;

pub(super) type TestSession = Session<StandIn>;

pub(super) fn session(lanes: u16, credits: u16, min_bags: u32) -> TestSession {
    let options = Options {
        source_bytes: 1 << 20,
        ..Options::default()
    };
    Session::over(StandIn::new(lanes, credits, min_bags), options).expect("the stand-in connects")
}

/// Two features, the second one weighted where wanted.
pub(super) fn bound(session: &mut TestSession, weighted: bool) -> BoundSchema {
    let second = if weighted {
        Pooling::WeightedSum
    } else {
        Pooling::Sum
    };
    let features = [
        ("item", "items", Pooling::Sum, DIM),
        ("user", "users", second, DIM),
    ];
    let (schema, _) = Schema::side_by_side(4096, features);
    session.bind(schema).expect("bound")
}

/// `bags` bags a feature; bag `b` has the ids `b` and `b + 1` in feature 0, and `b` in feature 1.
pub(super) fn batch(bags: u32) -> Batch {
    let mut batch = Batch::new(bags as usize).expect("bags");
    let pairs: Vec<u32> = (0..bags).flat_map(|b| [b, b + 1]).collect();
    let singles: Vec<u32> = (0..bags).collect();
    batch
        .push(Division::Lengths(&vec![2; bags as usize]), &pairs[..])
        .expect("pairs");
    batch
        .push(Division::Lengths(&vec![1; bags as usize]), &singles[..])
        .expect("singles");
    batch
}

pub(super) fn target(session: &mut TestSession, schema: &BoundSchema, bags: u32) -> Target {
    let region = session.region(1 << 16).expect("region");
    session
        .target(&region, schema.target_bytes(bags))
        .expect("target")
}

pub(super) fn assert_pooled(
    session: &TestSession,
    schema: &BoundSchema,
    target: &Target,
    bags: u32,
) {
    let mut vector = [0.0; DIM as usize];
    for bag in 0..bags {
        session.read_vector(target, schema, 0, bag, &mut vector);
        let want: Vec<f32> = (0..DIM).map(|d| (2 * bag + 1 + 2 * d) as f32).collect();
        assert_eq!(vector[..], want[..], "feature 0, bag {bag}");
        session.read_vector(target, schema, 1, bag, &mut vector);
        assert_eq!(vector[0], bag as f32, "feature 1, bag {bag}");
    }
}
