//! Ids that no table has.

use anyhow::Result;
use rowmill_wire::Status;
use rowmill_wire::request::{Element, Place};

use super::Verdict;
use super::hostile::{Case, Draft, Hostile, PLAYGROUND};
use super::site::{QUANT_ROWS, SMALL_ROWS, Site};
use super::watch::beside_an_innocent;

/// Ids that are not in their table, inline and in a region, of 32 and 64 bits.
pub(super) fn out_of_range(site: &Site) -> Result<Verdict> {
    let (small, quant) = (u64::from(SMALL_ROWS), u64::from(QUANT_ROWS));
    bad_ids(
        site,
        Status::IdOutOfRange,
        &[(0, small), (1, quant), (0, small + 1), (1, i32::MAX as u64)],
        &[
            (0, small),
            (1, quant),
            (0, 1 << 31),
            (1, 1 << 32),
            (0, (1 << 32) + 7),
            (1, i64::MAX as u64),
        ],
    )
}

/// Ids with their sign bit set.
pub(super) fn negative(site: &Site) -> Result<Verdict> {
    let least = i32::MIN as u32;
    bad_ids(
        site,
        Status::IdNegative,
        &[
            (0, u32::MAX.into()),
            (1, least.into()),
            (0, u64::from(least) + 7),
        ],
        &[
            (0, u64::MAX),
            (1, i64::MIN as u64),
            (0, i64::MIN as u64 + 7),
            (1, u64::MAX << 32),
        ],
    )
}

/// Each bad id at each place of its feature, as (feature, id) of 32 and of 64 bits.
fn bad_ids(
    site: &Site,
    status: Status,
    narrow: &[(u32, u64)],
    wide: &[(u32, u64)],
) -> Result<Verdict> {
    beside_an_innocent(site, &site.settings()?, |scene| {
        let mut hostile = Hostile::connect(&scene.service.endpoint, scene.tables)?;
        let all = narrow
            .iter()
            .map(|id| (4, id))
            .chain(wide.iter().map(|id| (8, id)));
        let mut count = 0;
        for (width, &(feature, id)) in all {
            for index in 0..3u32 {
                let mut good = hostile.good();
                let words = good.inline.split_off(16);
                let mut ids: Vec<u64> = words
                    .chunks_exact(4)
                    .map(|w| u64::from(u32::from_le_bytes(w.try_into().expect("4 bytes"))))
                    .collect();
                ids[(3 * feature + index) as usize] = id;
                let ids: Vec<u8> = ids
                    .iter()
                    .flat_map(|id| id.to_le_bytes()[..width].to_vec())
                    .collect();
                good.header.ids.len = ids.len() as u64;
                good.header.ids.element = if width == 4 {
                    Element::Bits32
                } else {
                    Element::Bits64
                };
                let mut in_region = good.clone();
                hostile.write_source(PLAYGROUND, &ids);
                in_region.header.ids.place = Place::Region {
                    region: hostile.source.0,
                    offset: PLAYGROUND,
                };
                good.inline.extend(ids);
                let what = format!("id {id:#x} of {width} bytes");
                let case = |draft: Draft| Case::at(&what, draft.frame(), status, (feature, index));
                count += hostile.expect(&[case(good), case(in_region)])?;
            }
        }
        Ok(format!("{count} cases"))
    })
}
