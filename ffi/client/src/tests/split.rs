//! Whatever the split, no bag is lost, doubled or moved.

use proptest::prelude::*;

use super::*;
use crate::stand_in::Bag;

/// A batch in the plain form that a test compares with.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    pub(super) wide: bool,
    pub(super) weighted: bool,
    pub(super) features: Vec<Vec<Bag>>,
}

pub(super) fn plain() -> impl Strategy<Value = Plain> {
    let shape = (
        1usize..6,
        1usize..200,
        any::<bool>(),
        1u32..=64,
        any::<bool>(),
        0usize..12,
    );
    shape.prop_flat_map(|(features, bags, wide, bits, weighted, longest)| {
        // Wide ids are sent as narrow ones where all of them fit.
        let bits = if wide { bits } else { 32 };
        let id = (0..=u64::MAX >> (64 - bits)).boxed();
        let ids = prop::collection::vec(id, 0..=longest);
        let bag = ids.prop_map(move |ids| {
            let weights = ids.iter().map(|&id| id as f32 * 0.5);
            (
                ids.clone(),
                if weighted {
                    weights.collect()
                } else {
                    Vec::new()
                },
            )
        });
        let feature = prop::collection::vec(bag, bags);
        prop::collection::vec(feature, features).prop_map(move |features| Plain {
            wide,
            weighted,
            features,
        })
    })
}

fn build(plain: &Plain, offsets: bool) -> Batch {
    let mut batch = Batch::new(plain.features[0].len()).expect("bags");
    for feature in &plain.features {
        let lengths: Vec<u32> = feature.iter().map(|(ids, _)| ids.len() as u32).collect();
        let mut end = 17;
        let ends: Vec<u32> = std::iter::once(17)
            .chain(lengths.iter().map(|l| {
                end += l;
                end
            }))
            .collect();
        let division = if offsets {
            Division::Offsets(&ends)
        } else {
            Division::Lengths(&lengths)
        };
        let ids: Vec<u64> = feature.iter().flat_map(|(ids, _)| ids.clone()).collect();
        let narrow: Vec<u32> = ids.iter().map(|&id| id as u32).collect();
        let ids = if plain.wide {
            IdSlice::U64(&ids)
        } else {
            IdSlice::U32(&narrow)
        };
        let weights: Vec<f32> = feature
            .iter()
            .flat_map(|(_, weights)| weights.clone())
            .collect();
        let pushed = if plain.weighted {
            batch.push_weighted(division, ids, &weights)
        } else {
            batch.push(division, ids)
        };
        pushed.expect("adds up");
    }
    batch
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    /// Whatever the split, the ids' width and the way they travel, the parts hold the same bags.
    #[test]
    fn parts_reassemble_to_the_batch(
        plain in plain(), lanes in 1u16..9, min_bags in 1u32..40, offsets in any::<bool>(),
    ) {
        let mut s = session(lanes, 2, min_bags);
        let pooling = if plain.weighted { Pooling::WeightedSum } else { Pooling::Sum };
        let names: Vec<String> = (0..plain.features.len()).map(|f| f.to_string()).collect();
        let features = names.iter().map(|name| (name.as_str(), "items", pooling, DIM));
        let schema = s.bind(Schema::side_by_side(200, features).0).expect("bound");
        let batch = build(&plain, offsets);
        let t = target(&mut s, &schema, batch.bags());
        s.submit(&schema, &batch, t, &RequestOptions::default()).expect("sent");
        let mut lanes_used: Vec<u16> = s.port.arrived.iter().map(|a| a.lane).collect();
        lanes_used.sort_unstable();
        lanes_used.dedup();
        prop_assert_eq!(lanes_used.len(), s.port.arrived.len(), "at most one part a lane");
        let parts = s.port.arrived.len();
        prop_assert_eq!(parts as u32, s.welcome().split.parts(batch.bags()));
        let mut whole = vec![Vec::new(); plain.features.len()];
        for (number, part) in s.port.arrived.iter().enumerate() {
            prop_assert_eq!(usize::from(part.header.part), number);
            prop_assert_eq!(part.header.first_bag as usize, whole[0].len());
            for (whole, bags) in whole.iter_mut().zip(&part.bags) {
                whole.extend_from_slice(bags);
            }
        }
        prop_assert_eq!(&whole, &plain.features);
    }
}
