//! Where rows of a delta go.

use std::sync::Arc;

use rowmill_arena::available_bytes;
use rowmill_cache::store::{self, PatchError};
use rowmill_table::{DeltaFile, Resident, ResidentTable, TableError};

use crate::plan::bytes_text;

/// Where rows of a table become others.
#[derive(Debug)]
pub(crate) enum Target {
    /// All of its rows are in memory.
    Rows(ResidentTable),
    /// It is cached; a delta may bring the rows that change to so many bytes.
    Cached(Arc<store::Store>, u64),
}

/// Of a table of a generation, where its rows become others now; none where that is not to be.
pub(crate) type Targets<'t> = dyn Fn(&ResidentTable) -> Option<Target> + 't;

impl Target {
    fn change(&self, rows: &[u32], bytes: &[u8], pass: &mut dyn FnMut()) -> Result<(), PatchError> {
        match self {
            Target::Rows(table) => table.change(rows, bytes, pass),
            Target::Cached(store, _) => store.patch(rows, bytes, pass)?,
        }
        Ok(())
    }
}

/// The table of a section, whose rows can become others where they are to.
///
/// # Errors
/// [`TableError::BadDelta`].
pub(super) fn target_of(
    delta: &DeltaFile,
    (tables, targets): (&Resident, &Targets<'_>),
    section: usize,
) -> Result<Option<Target>, TableError> {
    let section = &delta.head().sections[section];
    let (table, name, rows) = (
        table_of(delta, tables, &section.table)?,
        &section.table,
        section.rows,
    );
    let most = u64::from(table.row_count());
    if rows > most {
        return Err(delta.bad(format!("has {rows} rows of table {name}, which has {most}")));
    }
    let target = targets(table);
    if let Some(Target::Rows(table)) = &target
        && !table.has_rows()
    {
        let generation = delta.head().generation;
        return Err(delta.bad(format!("is for generation {generation}, which has gone")));
    }
    if let Some(Target::Rows(table)) = &target
        && !table.can_change()
    {
        return Err(delta.bad(format!(
            "has rows of table {name}, which has nearly 2^31: no room is left for any that change"
        )));
    }
    Ok(target)
}

/// Whether all rows of a delta have room where they go.
///
/// # Errors
/// [`TableError::BadDelta`].
pub(super) fn have_room(
    delta: &DeltaFile,
    (tables, targets): (&Resident, &Targets<'_>),
) -> Result<(), TableError> {
    let mut bytes = 0;
    for (number, section) in delta.head().sections.iter().enumerate() {
        let target = target_of(delta, (tables, targets), number)?;
        let Some(Target::Cached(store, most_bytes)) = target else {
            continue;
        };
        let (name, mut more) = (&section.table, 0);
        let table = table_of(delta, tables, name)?;
        delta.numbers(number, table, &mut |rows| more += store.unpatched(rows))?;
        let all = (u64::from(store.patched()) + more as u64) * table.stride() as u64;
        // A table may have more since it is cached again, which rows that were changed before add nothing to.
        if more > 0 && all > most_bytes {
            return Err(delta.bad(format!(
                "has {more} rows of table {name} that no delta changed before, with which those that deltas changed take {} bytes, and tables.delta_bytes is \
                 {most_bytes}: write more there and restart, or load a generation that has them",
                all
            )));
        }
        bytes += store.patch_bytes(more as u32) as u64;
    }
    let (available, limited_by) = available_bytes();
    if bytes > available {
        return Err(delta.bad(format!(
            "has rows of cached tables that take {} of memory, and {} are available ({limited_by}): free memory, or load a generation that has them",
            bytes_text(bytes),
            bytes_text(available)
        )));
    }
    Ok(())
}

fn table_of<'t>(
    delta: &DeltaFile,
    tables: &'t Resident,
    name: &str,
) -> Result<&'t ResidentTable, TableError> {
    tables.table(name).ok_or_else(|| {
        delta.bad(format!(
            "has rows of a table {name}, which the generation lacks"
        ))
    })
}

/// Has rows become those of a delta, which was verified. `done` is told how many are.
pub(super) fn change(
    (delta, tables, targets): (&DeltaFile, &Resident, &Targets<'_>),
    pass: &mut dyn FnMut(),
    done: &mut dyn FnMut(u64),
) -> Result<(), TableError> {
    let mut rows_done = 0;
    for (number, section) in delta.head().sections.iter().enumerate() {
        let Some(target) = target_of(delta, (tables, targets), number)? else {
            continue;
        };
        let table = table_of(delta, tables, &section.table)?;
        delta.rows(number, table, u32::MAX, &mut |rows, bytes| {
            let changed = target.change(rows, bytes, pass);
            changed.map_err(|error| delta.bad(unroomy(&section.table, &error)))?;
            rows_done += rows.len() as u64;
            done(rows_done);
            Ok(())
        })?;
    }
    Ok(())
}

/// Why rows of a cached table could not all become others.
fn unroomy(table: &str, error: &PatchError) -> String {
    let what = match error {
        PatchError::Full { .. } => "there are no places",
        _ => "there is no memory",
    };
    format!(
        "has rows of table {table}, which is cached, for which {what}: have it resident, or load a generation that has them ({error})"
    )
}
