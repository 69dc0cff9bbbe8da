//! What a dataplane claims, until it is checked: nothing that is taken over is too large to be multiplied or kept.

use std::collections::BTreeSet;

use rowmill_link::{Placement, Report, TABLES_MAX};

use super::Refused;

/// Longest name of a model, a generation, a version, a control plane or a table.
const NAME_MAX: usize = 255;
/// Rows of a table: they are numbered with 32 bits.
const ROWS_MAX: u64 = 1 << 32;
/// Bytes that a cached row takes at most.
const SLOT_MAX: u64 = 1 << 20;
/// Bytes of an arena: those of all 4096 tables together fit into 64 bits, and so do 4096 times 2^32 rows of 2^20 bytes but for one,
/// which is why sums of what settings ask for saturate.
const BYTES_MAX: u64 = 1 << 48;
/// Workers of a dataplane.
const WORKERS_MAX: u64 = 4096;
/// Epochs and versions: what numbers of JSON are exact for in any language.
pub(super) const ORDER_MAX: u64 = 1 << 53;
/// Generations that a dataplane may tell of: more than it holds.
const GENERATIONS_MAX: usize = 8;
/// Sentences of what could not be done that are kept, and bytes of each.
const SENTENCES_MAX: usize = 64;
const SENTENCE_MAX: usize = 512;

/// A report that can be remembered, and its instance as a number. Sentences that are too many or too long are cut.
pub(super) fn checked(mut report: Report) -> Result<(u128, Report), Refused> {
    let hexadecimal =
        report.instance.len() == 32 && report.instance.bytes().all(|c| c.is_ascii_hexdigit());
    if report.tables.len() > TABLES_MAX as usize {
        return Err(Refused::Tables(report.tables.len()));
    }
    is_short("the version", &report.version)?;
    is_short("the model's name", &report.model)?;
    is_short("the generation's name", &report.generation)?;
    if report.generations.len() > GENERATIONS_MAX {
        return Err(Refused::Generations(format!(
            "{} generations are held at a time: {GENERATIONS_MAX} at most are",
            report.generations.len()
        )));
    }
    for &number in &report.generations {
        is_within("a generation", number, 1, ORDER_MAX)?;
    }
    report.fingerprints.truncate(report.generations.len());
    if let Some(change) = &mut report.generations_change {
        change.truncate(change.floor_char_boundary(SENTENCE_MAX));
        change.shrink_to_fit();
    }
    if let Some(deltas) = &mut report.deltas {
        deltas.truncate(report.generations.len());
        for &last in &*deltas {
            is_within("a delta", last, 0, ORDER_MAX)?;
        }
    }
    let sentences = [&mut report.deltas_change, &mut report.deltas_failed];
    for sentence in sentences.into_iter().flatten() {
        sentence.truncate(sentence.floor_char_boundary(SENTENCE_MAX));
        sentence.shrink_to_fit();
    }
    is_within("arena_bytes", report.arena_bytes, 0, BYTES_MAX)?;
    is_within("workers", report.workers.into(), 1, WORKERS_MAX)?;
    let mut names = BTreeSet::new();
    for table in &report.tables {
        is_short("a table's name", &table.table)?;
        if !names.insert(&*table.table) {
            return Err(Refused::Twice(table.table.clone()));
        }
        is_within("rows", table.rows, 0, ROWS_MAX)?;
        is_within("cache_rows", table.cache_rows, 0, ROWS_MAX)?;
        is_within("cache_bytes", table.cache_bytes, 0, BYTES_MAX)?;
        if table.placement == Placement::Cached {
            if table.slot_bytes == 0 {
                return Err(Refused::NoBytes(table.table.clone()));
            }
            is_within("slot_bytes", table.slot_bytes, 1, SLOT_MAX)?;
        }
    }
    if let Some(applied) = &mut report.policy {
        is_short("the control plane's name", &applied.control)?;
        is_within("the policy's epoch", applied.order.epoch, 0, ORDER_MAX)?;
        is_within("the policy's version", applied.order.version, 0, ORDER_MAX)?;
        applied.refused.truncate(SENTENCES_MAX);
        for sentence in &mut applied.refused {
            sentence.truncate(sentence.floor_char_boundary(SENTENCE_MAX));
            sentence.shrink_to_fit();
        }
        applied.refused.shrink_to_fit();
    }
    let instance = u128::from_str_radix(&report.instance, 16).ok();
    let instance = instance.filter(|_| hexadecimal).ok_or(Refused::Instance)?;
    Ok((instance, report))
}

pub(super) fn is_short(what: &'static str, name: &str) -> Result<(), Refused> {
    let len = name.len();
    (len <= NAME_MAX)
        .then_some(())
        .ok_or(Refused::Long { what, len })
}

pub(super) fn is_within(
    what: &'static str,
    number: u64,
    least: u64,
    most: u64,
) -> Result<(), Refused> {
    let refused = Refused::Bounds {
        what,
        number,
        least,
        most,
    };
    (least..=most)
        .contains(&number)
        .then_some(())
        .ok_or(refused)
}
