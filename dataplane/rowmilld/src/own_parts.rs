//! Whether each listed table has some of its own of what a worker's tables share, so that others whose files hang can't take it.

use rowmill_cache::fetch::room_for;
use rowmill_wire::limits::MAX_IDS_PER_BAG;

use crate::config::Cache;
use crate::plan::Choice;

/// Says which settings are too small for so many listed tables, if some are.
pub(crate) fn lacking(cache: &Cache, tables: u32) -> Option<Choice> {
    // Where nothing is fetched in advance nothing of that is shared.
    let prefetched = match cache.prefetched_rows {
        0 => u32::MAX,
        rows => rows,
    };
    let settings = [
        ("cache.reads", cache.reads, 1),
        ("cache.staged_rows", cache.staged_rows, MAX_IDS_PER_BAG),
        ("cache.parked_bags", cache.parked_bags, 1),
        ("cache.prefetched_rows", prefetched, 1),
    ];
    let needs = settings.map(|(name, given, longest)| (name, given, room_for(tables, longest)));
    let small: Vec<(&str, u32, u32)> = needs
        .into_iter()
        .filter(|(_, given, need)| tables > 1 && given < need)
        .collect();
    let listed = |text: fn(&(&str, u32, u32)) -> String| {
        let texts: Vec<String> = small.iter().map(text).collect();
        texts.join(" and ")
    };
    (!small.is_empty()).then(|| {
        Choice::warning(
            "tables whose files hang",
            format!(
                "several may leave the others nothing of {}",
                listed(|(name, given, _)| format!("{name} = {given}"))
            ),
            format!(
                "for each of {tables} listed tables to have some of its own write {} or more",
                listed(|(name, _, need)| format!("{name} = {need}"))
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(cache: &Cache, tables: u32) -> Option<String> {
        lacking(cache, tables).map(|Choice { chosen, why, .. }| format!("{chosen}: {why}"))
    }

    #[test]
    fn settings_that_are_too_small_are_named() {
        let cache = Cache::default();
        assert_eq!(said(&cache, 64), None);
        let many = "several may leave the others nothing of cache.reads = 128: for each of 65 listed tables to have some of its own \
                    write cache.reads = 129 or more";
        assert_eq!(said(&cache, 65).as_deref(), Some(many));
        let small = Cache {
            reads: 2,
            staged_rows: MAX_IDS_PER_BAG,
            parked_bags: 1,
            prefetched_rows: 0,
            ..cache
        };
        assert_eq!(said(&small, 1), None);
        let few = "several may leave the others nothing of cache.reads = 2 and cache.staged_rows = 8192 and cache.parked_bags = 1: for each \
                   of 2 listed tables to have some of its own write cache.reads = 3 and cache.staged_rows = 8194 and \
                   cache.parked_bags = 3 or more";
        assert_eq!(said(&small, 2).as_deref(), Some(few));
    }
}
