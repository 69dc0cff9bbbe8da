//! What poolings, outputs and hashed tables rule out.

use anyhow::{Context, Result, ensure};
use rowmill_client::ClientPort;
use rowmill_engine::rows;
use rowmill_pooling::scalar;
use rowmill_table::Resident;
use rowmill_wire::limits::MAX_BLOCK_IDS;
use rowmill_wire::request::{Element, FLAG_PARTIALS, Place};
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Feature, Output, Pooling, Refusal, Schema, Status};

use super::Verdict;
use super::hostile::{Case, Draft, Hostile, MAX_BAGS, PLAYGROUND};
use super::schemas::refuses;
use super::site::Site;
use super::watch::beside_an_innocent;

/// Where the second feature's vectors begin: behind three of the first's.
const SECOND: u64 = 3 * 64;

/// A block of three vectors of `small`, and `second` of its table from [`SECOND`] on.
fn schema(second: (&str, Pooling, Output, u32)) -> Schema {
    let (table, pooling, output, dim) = second;
    let block = Feature::block("block", "small", Output::F32, 16, 3, 0);
    let second = Feature {
        pooling,
        max_ids: if pooling == Pooling::None { 3 } else { 0 },
        ..Feature::block("second", table, output, dim, 0, SECOND)
    };
    Schema {
        max_batch: MAX_BAGS,
        features: vec![block, second],
    }
}

/// The good request for another schema, with ids of 64 bits for the second feature's three.
fn draft(hostile: &Hostile, schema: u32, second: [u64; 3]) -> Draft {
    hostile.good().with(|draft| {
        draft.header.schema = schema;
        draft.inline.truncate(16);
        let ids = [7, 9, 7].into_iter().chain(second);
        draft.inline.extend(ids.flat_map(u64::to_le_bytes));
        draft.header.ids.element = Element::Bits64;
        draft.header.ids.len = 6 * 8;
    })
}

/// The same with its ids in the source region.
fn in_region(hostile: &Hostile, mut draft: Draft) -> Draft {
    let ids = draft.inline.split_off(16);
    hostile.write_source(PLAYGROUND, &ids);
    draft.header.ids.place = Place::Region {
        region: hostile.source.0,
        offset: PLAYGROUND,
    };
    draft
}

/// That the request is answered, with the rows 7, 9 and 7 of `small` in the block.
fn is_answered(hostile: &mut Hostile, tables: &Resident, draft: &Draft) -> Result<()> {
    hostile.poison();
    let record = hostile.ask(&draft.frame())?;
    ensure!(record.status == Status::Ok, "{record:?}");
    let target = hostile.target;
    let window = hostile.raw().memory(target);
    let window = window.context("its region")?;
    let mut found = [0; 3 * 64];
    window.read(draft.header.target_base as usize, &mut found);
    let small = rows(tables.table("small").context("a table of the model")?);
    let (mut row, mut wanted) = ([0.0; 16], Vec::new());
    for id in [7, 9, 7] {
        scalar::row(&small, id, &mut row);
        wanted.extend(row.iter().flat_map(|x| x.to_le_bytes()));
    }
    ensure!(found[..] == wanted, "the block is not the three rows");
    Ok(())
}

/// Ids that a hashed table lacks, inline and in a region, of 32 and 64 bits.
pub(super) fn unknown_key(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let keyed = scene.tables.table("keyed").context("the hashed table")?;
        let keys: Vec<u64> = keyed.entries().map(|(key, _)| key).collect();
        let good = [keys[0], keys[1], keys[keys.len() - 1]];
        let max = schema(("keyed", Pooling::Max, Output::Bf16, 16));
        let number = hostile.raw().bind(&max)?;
        let request = draft(&hostile, number, good);
        is_answered(&mut hostile, scene.tables, &request)?;
        let lacks = [0, 1, u64::MAX, 1 << 63, keys[0] ^ 1, keys[1] >> 1];
        let mut count = 0;
        for key in lacks.into_iter().filter(|key| !keys.contains(key)) {
            for index in 0..3 {
                let mut ids = good;
                ids[index] = key;
                let at = (1, index as u32);
                let draft = draft(&hostile, number, ids);
                let what = format!("key {key:#x}");
                let inline = Case::at(&what, draft.frame(), Status::UnknownId, at);
                let region = in_region(&hostile, draft).frame();
                let region = Case::at(&what, region, Status::UnknownId, at);
                count += hostile.expect(&[inline, region])?;
            }
        }
        // Of 32 bits an id is the number that it is, and no key of these is so small.
        let narrow = hostile.good().with(|draft| draft.header.schema = number);
        let case = Case::at("narrow ids", narrow.frame(), Status::UnknownId, (1, 0));
        count += hostile.expect(&[case])?;
        Ok(format!("{count} cases"))
    })
}

/// More ids than the block of a feature that is not pooled holds, and blocks that can't be.
pub(super) fn overflowing_block(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let mean = schema(("quant", Pooling::Mean, Output::F32, 32));
        let number = hostile.raw().bind(&mean)?;
        let good = draft(&hostile, number, [0, 1, 2]);
        is_answered(&mut hostile, scene.tables, &good)?;
        let first = |feature: usize, id: u32, status| {
            let draft = good.clone().with(|d| d.spans[feature].first_id = id);
            let what = format!("first id {id} of feature {feature}");
            Case::at(what, draft.frame(), status, (feature as u32, NOWHERE))
        };
        let mut longer = good.clone().with(|d| d.spans[0].ids = 4);
        longer.inline[0] = 3;
        let longer = Case::at(
            "four ids",
            longer.frame(),
            Status::BlockOverflow,
            (0, NOWHERE),
        );
        let cases = [
            first(0, 1, Status::BlockOverflow),
            first(0, 3, Status::BlockOverflow),
            first(0, u32::MAX, Status::BlockOverflow),
            first(1, 1, Status::Malformed),
            longer,
        ];
        let count = hostile.expect(&cases)?;
        type Spoil = fn(&mut Schema);
        let blocks: [(Spoil, Status, u32); 5] = [
            (|s| s.features[0].max_ids = 0, Status::Malformed, 0),
            (
                |s| s.features[0].max_ids = MAX_BLOCK_IDS + 1,
                Status::TooLarge,
                0,
            ),
            (|s| s.features[1].max_ids = 1, Status::Malformed, 1),
            (|s| s.features[0].max_ids = 4, Status::OverlappingOutputs, 1),
            (|s| s.features[0].stride = 60, Status::OverlappingOutputs, 0),
        ];
        for (spoil, status, feature) in blocks {
            let mut schema = mean.clone();
            spoil(&mut schema);
            let refusal = Refusal::feature(status, feature);
            refuses(&mut hostile, &schema, refusal, "")?;
        }
        Ok(format!("{} cases", count + 5))
    })
}

/// Bases, offsets and strides between the elements of f16 and bf16.
pub(super) fn misaligned_halves(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let mut halves = schema(("quant", Pooling::Mean, Output::F16, 32));
        let mixed = hostile.raw().bind(&halves)?;
        halves.features[0].output = Output::Bf16;
        let number = hostile.raw().bind(&halves)?;
        let at = |hostile: &Hostile, schema, base| {
            draft(hostile, schema, [0, 1, 2]).with(|d| d.header.target_base = base)
        };
        for base in [0, 2, 6, 4098] {
            let record = hostile.ask(&at(&hostile, number, base).frame())?;
            ensure!(record.status == Status::Ok, "base {base}: {record:?}");
        }
        let mut cases = Vec::new();
        let odd = [1, 3, 4097, u64::MAX].map(|base| (number, base));
        for (schema, base) in odd.into_iter().chain([(mixed, 1), (mixed, 2), (mixed, 6)]) {
            let frame = at(&hostile, schema, base).frame();
            let what = format!("base {base}");
            cases.push(Case::whole(what, frame, Status::TargetMisaligned));
        }
        let count = hostile.expect(&cases)?;
        for (offset, stride) in [(1, 0), (0, 1), (3, 3)] {
            let mut schema = halves.clone();
            schema.features[1].offset += offset;
            schema.features[1].stride += stride;
            let refusal = Refusal::feature(Status::TargetMisaligned, 1);
            refuses(&mut hostile, &schema, refusal, "2 bytes of an element")?;
        }
        Ok(format!("{} cases", count + 3))
    })
}

/// Raw sums asked for where there are none, or none that fit.
pub(super) fn no_partials(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let mut cases = Vec::new();
        for (pooling, output) in [
            (Pooling::Max, Output::F32),
            (Pooling::None, Output::F32),
            (Pooling::Sum, Output::F16),
            (Pooling::Mean, Output::Bf16),
        ] {
            let mut schema = schema(("quant", pooling, output, 32));
            let first = &mut schema.features[0];
            (first.pooling, first.max_ids) = (Pooling::Sum, 0);
            schema.max_batch = 3;
            let number = hostile.raw().bind(&schema)?;
            let draft = draft(&hostile, number, [0, 1, 2]);
            let draft = draft.with(|d| d.header.flags = FLAG_PARTIALS);
            let what = format!("sums of {pooling:?} as {output:?}");
            cases.push(Case::at(
                what,
                draft.frame(),
                Status::Unsupported,
                (1, NOWHERE),
            ));
        }
        let count = hostile.expect(&cases)?;
        Ok(format!("{count} cases"))
    })
}
