//! Schemas, targets and numbers of things that were not granted.

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::{ClientPort, PortError};
use rowmill_wire::limits::{MAX_EXTENT, MAX_REGIONS, MAX_SCHEMAS};
use rowmill_wire::request::Place;
use rowmill_wire::status::NOWHERE;
use rowmill_wire::{Pooling, Refusal, Schema, Status};

use super::Verdict;
use super::hostile::{Case, Hostile, STRIDE, TARGET_BYTES, ordinary_schema};
use super::patron::bound;
use super::places::{INLINE, SCHEMA, TARGET_BASE, TARGET_REGION};
use super::refusals::cases;
use super::site::{CONNECTIONS, Site, until};
use super::watch::beside_an_innocent;

/// Tables, schemas and features that are not there.
pub(super) fn unknown(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        for table in ["none", "", "Small", "small ", "../small"] {
            let mut schema = ordinary_schema();
            schema.features[1].table = table.into();
            refuses(
                &mut hostile,
                &schema,
                Refusal::feature(Status::UnknownTable, 1),
                "",
            )?;
        }
        let good = hostile.good();
        let schemas = [2u32, 15, 16, u32::MAX].map(|schema| {
            let frame = good.patched(SCHEMA, &schema.to_le_bytes());
            Case::whole(format!("schema {schema}"), frame, Status::UnknownSchema)
        });
        let one = good.clone().with(|draft| {
            draft.spans.pop();
            draft.header.lengths.place = Place::Inline {
                offset: INLINE as u32 - 16,
            };
            draft.header.ids.place = Place::Inline {
                offset: INLINE as u32,
            };
        });
        let three = good.clone().with(|draft| {
            draft.spans.push(draft.spans[1]);
            draft.header.lengths.place = Place::Inline {
                offset: INLINE as u32 + 16,
            };
            draft.header.ids.place = Place::Inline {
                offset: INLINE as u32 + 32,
            };
        });
        let mut cases = schemas.to_vec();
        cases.push(Case::whole(
            "one feature",
            one.frame(),
            Status::UnknownFeature,
        ));
        cases.push(Case::whole(
            "three features",
            three.frame(),
            Status::UnknownFeature,
        ));
        let count = hostile.expect(&cases)?;
        Ok(format!("{} cases", count + 5))
    })
}

/// That binding this schema is refused so, with this in the text.
pub(super) fn refuses(
    hostile: &mut Hostile,
    schema: &Schema,
    refusal: Refusal,
    part: &str,
) -> Result<()> {
    match hostile.raw().bind(schema) {
        Err(PortError::Refused {
            refusal: found,
            detail,
        }) => {
            ensure!(
                found == refusal,
                "{found} ({detail}) instead of {refusal} for {schema:?}"
            );
            ensure!(detail.contains(part), "`{detail}` lacks `{part}`");
        }
        other => bail!("{other:?} instead of {refusal} for {schema:?}"),
    }
    hostile.is_served().context("after a refused schema")
}

/// Offset and stride of each feature of the ordinary schema, whose vectors have 64 and 128 bytes; the
/// feature that is refused, and words of the reason.
type Overlap = (&'static str, (u64, u64), (u64, u64), u32, &'static str);

const OVERLAPS: &[Overlap] = &[
    (
        "the same place",
        (0, STRIDE),
        (0, STRIDE),
        1,
        "write the same bytes",
    ),
    (
        "4 bytes too early",
        (0, STRIDE),
        (60, STRIDE),
        1,
        "write the same bytes",
    ),
    (
        "into the next bag",
        (0, STRIDE),
        (68, STRIDE),
        1,
        "write the same bytes",
    ),
    ("a stride of 0", (0, 0), (64, STRIDE), 0, ""),
    (
        "a stride that is too short",
        (0, 60),
        (1 << 20, STRIDE),
        0,
        "",
    ),
    (
        "other strides in one place",
        (0, 64),
        (64, 128),
        1,
        "write the same bytes",
    ),
    (
        "the last bag",
        (0, 64),
        (64 * 127, 128),
        1,
        "write the same bytes",
    ),
];

/// Schemas in which two vectors would share bytes.
pub(super) fn overlapping(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        for (what, first, second, feature, part) in OVERLAPS.iter().copied() {
            let mut schema = ordinary_schema();
            (schema.features[0].offset, schema.features[0].stride) = first;
            (schema.features[1].offset, schema.features[1].stride) = second;
            let refusal = Refusal::feature(Status::OverlappingOutputs, feature);
            refuses(&mut hostile, &schema, refusal, part).context(what)?;
        }
        // And the nearest ones that do not overlap.
        for (first, second) in [((0, 64), (64 * 128, 128)), ((128, 192), (0, 192))] {
            let mut schema = ordinary_schema();
            (schema.features[0].offset, schema.features[0].stride) = first;
            (schema.features[1].offset, schema.features[1].stride) = second;
            hostile
                .raw()
                .bind(&schema)
                .context("a schema that does not overlap")?;
        }
        Ok(format!("{} cases", OVERLAPS.len()))
    })
}

/// Targets that leave their region, or have none.
pub(super) fn outside(site: &Site) -> Result<Verdict> {
    cases(site, |hostile| {
        let good = hostile.good();
        // The last vector ends at base + 192 + 64 + 128.
        let last = TARGET_BYTES - 384;
        let at = |base: u64| good.patched(TARGET_BASE, &base.to_le_bytes());
        let bases = [
            last + 4,
            TARGET_BYTES,
            TARGET_BYTES + 4,
            1 << 40,
            1 << 63,
            u64::MAX - 1023,
        ];
        let mut cases: Vec<Case> = bases
            .iter()
            .map(|&base| Case::whole(format!("base {base}"), at(base), Status::TargetOutOfRegion))
            .collect();
        let far = good
            .clone()
            .with(|d| (d.header.first_bag, d.header.target_base) = (126, last - 125 * STRIDE));
        cases.push(Case::whole(
            "bag 127 past the end",
            far.frame(),
            Status::TargetOutOfRegion,
        ));
        for region in [2u32, 15, 16, u32::MAX] {
            let frame = good.patched(TARGET_REGION, &region.to_le_bytes());
            cases.push(Case::whole(
                format!("region {region}"),
                frame,
                Status::UnknownRegion,
            ));
        }
        let nowhere = hostile.good_in_region().with(|d| {
            d.header.lengths.place = Place::Region {
                region: 9,
                offset: 0,
            };
        });
        cases.push(Case::at(
            "lengths in no region",
            nowhere.frame(),
            Status::UnknownRegion,
            (0, NOWHERE),
        ));
        cases
    })
}

/// Bases, offsets and strides that are no multiple of 4.
pub(super) fn misaligned(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let good = hostile.good();
        let bases = [1u64, 2, 3, 4097, u64::MAX];
        let cases = bases.map(|base| {
            let frame = good.patched(TARGET_BASE, &base.to_le_bytes());
            Case::whole(format!("base {base}"), frame, Status::TargetMisaligned)
        });
        let mut count = hostile.expect(&cases)?;
        for (offset, stride) in [(2, 0), (1, 0), (0, 1), (0, 2)] {
            let mut schema = ordinary_schema();
            schema.features[1].offset += offset;
            schema.features[1].stride += stride;
            let refusal = Refusal::feature(Status::TargetMisaligned, 1);
            refuses(&mut hostile, &schema, refusal, "")?;
            count += 1;
        }
        Ok(format!("{count} cases"))
    })
}

/// More regions, schemas and bytes than a connection may have, and numbers past the protocol's.
pub(super) fn limits(site: &Site) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let endpoint = &scene.service.endpoint;
        let mut hostile = Hostile::connect(endpoint, scene.tables)?;
        limits_of(&mut hostile)?;
        // The innocent and this one are two of them.
        let others = (2..CONNECTIONS).map(|_| Hostile::port(endpoint));
        let others = others
            .collect::<Result<Vec<_>, _>>()
            .context("the clients that are allowed")?;
        refused(Hostile::port(endpoint).map(|_| ()), Status::LimitReached)?;
        hostile.is_served()?;
        drop(others);
        until(bound(), || Hostile::port(endpoint).is_ok()).context("after they are gone")?;
        Ok(format!(
            "{CONNECTIONS} clients, 16 schemas, 16 regions, offsets to 2^40"
        ))
    })
}

/// That a control call is refused with this status.
fn refused<T: core::fmt::Debug>(outcome: Result<T, PortError>, status: Status) -> Result<()> {
    match outcome {
        Err(PortError::Refused { refusal, .. }) if refusal.status == status => Ok(()),
        other => bail!("{other:?} instead of {status}"),
    }
}

fn limits_of(hostile: &mut Hostile) -> Result<()> {
    let far = Schema::side_by_side(8, [("a", "small", Pooling::Sum, 16)]).0;
    for (offset, stride) in [
        (MAX_EXTENT + 4, 64),
        (0, MAX_EXTENT + 4),
        (u64::MAX - 3, u64::MAX - 3),
    ] {
        let mut far = far.clone();
        (far.features[0].offset, far.features[0].stride) = (offset, stride);
        refused(hostile.raw().bind(&far), Status::TooLarge)?;
    }
    for _ in 2..MAX_SCHEMAS {
        hostile
            .raw()
            .bind(&far)
            .context("the schemas that are allowed")?;
    }
    refused(hostile.raw().bind(&far), Status::LimitReached)?;
    let mut regions = Vec::new();
    for _ in 2..MAX_REGIONS {
        regions.push(
            hostile
                .raw()
                .register(4096)
                .context("the regions that are allowed")?,
        );
    }
    refused(hostile.raw().register(4096), Status::LimitReached)?;
    hostile.is_served()?;
    let first = regions.pop().context("there are some")?;
    hostile.raw().unregister(first).context("giving one up")?;
    hostile
        .raw()
        .register(4096)
        .context("its place is free again")?;
    Ok(())
}
