//! What a worker knows of a table that may be cached, whether it is now or not.

use std::sync::Arc;

use crate::figures::TableFigures;
use crate::pins::Rules;
use crate::store::Spread;
use crate::table::{CachedTable, OnFailure};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Home {
    in_tier: u32,
    on_failure: OnFailure,
    /// The same each time that it is cached: workers that know of a change already and others that don't agree on a row's owner.
    spread: Spread,
    /// Counted on while it is cached again.
    figures: Arc<TableFigures>,
    /// Of its rows those with a place below it are sampled, whenever it is cached.
    pub(crate) threshold: u32,
    /// Which of them come and which stay, whenever it is cached.
    rules: Rules,
    table: Option<CachedTable>,
}

impl Home {
    /// Of a table that is cached.
    pub(crate) fn cached(table: CachedTable) -> Home {
        Home {
            in_tier: table.in_tier(),
            on_failure: table.when_it_fails(),
            spread: *table.spread(),
            figures: Arc::clone(table.figures()),
            threshold: 0,
            rules: Rules::default(),
            table: Some(table),
        }
    }

    /// Of a table that is not cached yet, and is when it has a [`CachedTable`] of the same options.
    pub(crate) fn resident(
        in_tier: u32,
        on_failure: OnFailure,
        spread: Spread,
        figures: Arc<TableFigures>,
    ) -> Home {
        Home {
            in_tier,
            on_failure,
            spread,
            figures,
            threshold: 0,
            rules: Rules::default(),
            table: None,
        }
    }

    /// The table, if it is cached.
    pub(crate) fn table(&self) -> Option<&CachedTable> {
        self.table.as_ref()
    }

    /// The same, to be changed.
    pub(crate) fn table_mut(&mut self) -> Option<&mut CachedTable> {
        self.table.as_mut()
    }

    /// Which rows come and which stay from now on.
    pub(crate) fn rule(&mut self, rules: &Rules) {
        self.rules = rules.clone();
        if let Some(table) = &mut self.table {
            table.rule(rules.clone());
        }
    }

    /// Copies a row of a shard that this worker writes to the beginning of `out`, if the table is cached and the row is there.
    pub(crate) fn read<'o>(&self, row: u32, out: &'o mut [u8]) -> Option<&'o [u8]> {
        let table = self.table.as_ref()?;
        let out = &mut out[..table.row_bytes()];
        table.read(row, out).then_some(out)
    }

    /// Whether the tier said nothing when a row of the table was asked for last, as far as that is known.
    pub(crate) fn is_silent(&self) -> bool {
        self.table.as_ref().is_some_and(CachedTable::is_silent)
    }

    /// Puts another in its place.
    ///
    /// # Panics
    /// If its rows are spread in another way, or it counts elsewhere.
    pub(crate) fn replace(&mut self, mut new: Option<CachedTable>) -> Option<CachedTable> {
        if let Some(new) = &mut new {
            new.rule(self.rules.clone());
            assert!(
                new.spread().shards_as(&self.spread),
                "rows keep their owners"
            );
            let is_counted = Arc::ptr_eq(new.figures(), &self.figures);
            assert!(is_counted, "a table is counted in one place");
        }
        core::mem::replace(&mut self.table, new)
    }

    /// The number by which tiers know it.
    pub(crate) fn in_tier(&self) -> u32 {
        self.in_tier
    }

    /// What is counted of it.
    pub(crate) fn figures(&self) -> &Arc<TableFigures> {
        &self.figures
    }

    /// What becomes of bags whose rows could not all be fetched.
    pub(crate) fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// How its rows are spread over shards.
    pub(crate) fn spread(&self) -> &Spread {
        &self.spread
    }
}
