//! What a seed draws of a world before it begins.

use std::sync::Arc;

use fastrand::Rng;
use rowmill_arena::HugePages;
use rowmill_port::sim::{Far, Link};
use rowmill_table::{Missing, Resident, RowFormat, TableKind, TableSpec, silent};

use super::patron::Patron;
use super::planted::Mistake;
use super::stranger::{Character, Stranger};
use super::world::Actor;

/// Longest silence of a link that is borne; twice as long is drawn.
pub(super) const SILENCE_NS: u64 = 500_000;

/// Half of the worlds are of workers that can't reach the memory of clients, with little room between and a link that fails.
pub(super) fn draw_far(rng: &mut Rng, mistake: Option<Mistake>) -> Option<Far> {
    let far = Far {
        stage_bytes: (64 << 10) << rng.u32(0..=2),
        blocks: rng.u32(1..=6),
        fetches: rng.u32(1..=6),
        link: Link {
            failures_per_100k: [0, 10, 100][rng.usize(0..3)],
            lost_connects_per_mille: rng.u32(0..=200),
            silence_ns: rng.u64(0..=SILENCE_NS),
            dying_ns: rng.u64(0..=100_000),
        },
    };
    let drawn = rng.bool();
    match mistake {
        // It shows nowhere else.
        Some(Mistake::Port(_)) => Some(far),
        Some(Mistake::ReadsTwice) => None,
        _ => drawn.then_some(far),
    }
}

/// What a generation is made of.
pub(super) struct Recipe {
    specs: Vec<TableSpec>,
    seed: u64,
}

/// The generations that there may be: those of a world whose tables have an answer for any key take turns. Tables that may be cached have rows of
/// one format.
pub(super) fn draw_generations(seed: u64, specs: &[TableSpec], cached: &[bool]) -> Vec<Recipe> {
    let mut all = vec![Recipe {
        specs: specs.into(),
        seed,
    }];
    let refuses = |spec: &TableSpec| spec.kind == TableKind::Hashed(Missing::Error);
    if specs.iter().any(refuses) {
        return all;
    }
    let mut rng = Rng::with_seed(seed.rotate_left(48));
    for _ in 2..=3 {
        let specs: Vec<TableSpec> = (specs.iter().cloned().zip(cached))
            .map(|(spec, is_listed)| {
                let drawn = RowFormat::ALL[rng.usize(0..RowFormat::ALL.len())];
                TableSpec {
                    format: if *is_listed { spec.format } else { drawn },
                    ..spec
                }
            })
            .collect();
        let seed = rng.u64(..);
        all.push(Recipe { specs, seed });
    }
    all
}

/// Makes them; rows of the tables of which this says so can become others.
pub(super) fn make(recipes: &[Recipe], changing: impl Fn(usize) -> bool) -> Vec<Arc<Resident>> {
    let made = (1..).zip(recipes).map(|(number, recipe)| {
        let Recipe { specs, seed } = recipe;
        let tables = Resident::in_memory_changing(&changing, specs, *seed, HugePages::Off, &silent);
        Arc::new(tables.expect("a few small tables").with_generation(number))
    });
    made.collect()
}

pub(super) fn draw_tables(rng: &mut Rng) -> Vec<TableSpec> {
    let mut table = |i: usize| TableSpec {
        name: format!("table-{i}"),
        rows: rng.u64(1..=300),
        dim: 4 * [1, 2, 3, 4, 5, 8, 16, 33, 64][rng.usize(0..9)],
        format: RowFormat::ALL[rng.usize(0..RowFormat::ALL.len())],
        kind: match rng.u8(0..6) {
            0 => TableKind::Hashed(Missing::Error),
            1 => TableKind::Hashed(Missing::Zero),
            2 => TableKind::Hashed(Missing::Default),
            _ => TableKind::Dense,
        },
    };
    (0..6).map(&mut table).collect()
}

pub(super) fn draw_actors(rng: &mut Rng) -> Vec<Box<dyn Actor>> {
    let mut actors: Vec<Box<dyn Actor>> = Vec::new();
    for _ in 0..rng.u32(1..=3) {
        actors.push(Box::new(Patron::draw(rng)));
    }
    for _ in 0..rng.u32(0..=2) {
        actors.push(Box::new(Stranger::draw(rng, Character::Correct)));
    }
    for _ in 0..rng.u32(0..=3) {
        let character = Character::draw_hostile(rng);
        actors.push(Box::new(Stranger::draw(rng, character)));
    }
    actors
}
