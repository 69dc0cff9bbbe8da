//! From the shares that tables have to those that they are to have: in steps, and only where it is worth while.

use core::ops::RangeInclusive;

use crate::curve::Curve;
use crate::division::{Demand, divide};
use crate::spread::Spread;

/// What is gained has to be so much more than what is lost.
const GAIN_RATIO: f64 = 1.1;
/// And so many times what chance makes of the estimate.
const SIGMAS: f64 = 3.0;
/// So many times where it is the chance of which rows were sampled. That does not wear off, since they stay the same ones, so that what is not
/// done for it is never done. Of 40 fresh samples of two tables, with 0, 1, 1.5, 1.75 and 2.1 of these 10, 3, 2, 0 and 0 took a step to shares
/// worse than they were, and with 2, 2, 3, 5 and 7 shares stayed short of the best (`decisions.rs`, which runs some of them).
const SIGMAS_ROWS: f64 = 1.5;
/// And more than this part of all lookups.
const GAIN_LEAST: f64 = 0.0005;
/// In so many seconds the gain has to exceed the rows that are given up and would have been found meanwhile.
const PAYBACK_S: f64 = 30.0;
/// A table gives up at most this part of its share at a time, unless it loses less than this part of what is gained.
const LOSS_MAX: f64 = 0.25;
/// And at most this part where popularity has just changed.
const LOSS_MAX_HURRY: f64 = 0.5;
const LOSS_NONE: f64 = 0.01;
/// A change of less than this part of a share is not worth copying its rows.
const CHANGE_LEAST: f64 = 1.0 / 16.0;
/// So much of the arena is moved at a time where more than this part of all lookups is gained, or popularity has just changed.
const STEP_LARGE: f64 = 0.25;
const GAIN_LARGE: f64 = 0.005;
/// Else so much.
const STEP: f64 = 0.05;

/// A table that shares the arena.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) lookups: f64,
    pub(crate) row_bytes: u64,
    pub(crate) present: u64,
    /// Rows that it may have, by its own size and by its settings.
    pub(crate) bounds: RangeInclusive<u64>,
    /// Its hits by size, if they are known: else its share stays.
    pub(crate) curve: Option<Curve>,
    /// Sampled lookups behind the curve, and how much it may differ with the rows that were sampled.
    pub(crate) samples: f64,
    pub(crate) spread: Spread,
    /// What it had from its last change is not used yet: it gives nothing up, or it gets nothing.
    pub(crate) keeps: bool,
    pub(crate) waits: bool,
}

/// What comes of a division.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Nothing, and why.
    Stay(String),
    /// Tables get other shares.
    Move(Shift),
}

/// Shares that change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Shift {
    /// Tables by number, and the rows that each is to have.
    pub(crate) rows: Vec<(usize, u64)>,
    /// Hits a second that all of it would gain, and lose, when it is done.
    pub(crate) gain: f64,
    pub(crate) loss: f64,
}

impl Candidate {
    /// What may become of its share.
    fn range(&self) -> RangeInclusive<u64> {
        let (least, most) = (*self.bounds.start(), *self.bounds.end());
        let present = self.present.clamp(least, most);
        let unknown = self.curve.is_none();
        let from = if self.keeps || unknown {
            present
        } else {
            least
        };
        let to = if self.waits || unknown { present } else { most };
        from..=to
    }

    /// Its settings want another share than it has.
    fn forced(&self) -> bool {
        !self.bounds.contains(&self.present)
    }

    /// Hits a second that it gains with so many rows, less than none if it loses some; and how much of that may be chance, squared: that
    /// of when rows were looked up, and that of which ones were sampled, as far as it counts.
    fn gain(&self, rows: u64) -> (f64, f64) {
        let Some(curve) = &self.curve else {
            return (0.0, 0.0);
        };
        let part = curve.at(rows) - curve.at(self.present);
        let by_rows = (SIGMAS_ROWS / SIGMAS).powi(2) * self.spread.variance(self.present, rows);
        let variance = part.abs() / self.samples.max(1.0) + by_rows;
        (part * self.lookups, variance * self.lookups * self.lookups)
    }
}

/// Divides an arena anew. `hurry`: more is moved at a time.
pub(crate) fn decide(arena: u64, tables: &[Candidate], hurry: bool) -> Verdict {
    let target = match aimed(arena, tables) {
        Ok(target) => target,
        Err(why) => return Verdict::Stay(why),
    };
    let forced = tables.iter().any(Candidate::forced);
    let lookups: f64 = tables.iter().map(|table| table.lookups).sum();
    let (mut gain, mut loss, mut variance, mut thrown) = (0.0, 0.0, 0.0, 0.0);
    for (table, &rows) in tables.iter().zip(&target) {
        let (hits, chance) = table.gain(rows);
        variance += chance;
        if rows >= table.present {
            gain += hits;
        } else {
            loss -= hits;
            thrown += ((table.present - rows) as f64).min(-hits * PAYBACK_S);
        }
    }
    let net = gain - loss;
    if !forced {
        let stay = |why: String| Verdict::Stay(why);
        if net <= GAIN_LEAST * lookups || gain <= GAIN_RATIO * loss {
            return stay(format!(
                "no other division is worth it: the best would gain {gain:.0} hits a second and lose {loss:.0}"
            ));
        }
        if net <= SIGMAS * variance.sqrt() {
            return stay(format!(
                "too little was sampled: {net:.0} hits a second that would be gained may be chance"
            ));
        }
        if net * PAYBACK_S <= thrown {
            return stay(format!(
                "{net:.0} hits a second would be gained, which {PAYBACK_S} s don't make up for the rows that are given up"
            ));
        }
    }
    let large = hurry || net > GAIN_LARGE * lookups;
    let step = arena as f64 * if large { STEP_LARGE } else { STEP };
    let loss_max = |hits: f64| match hits <= LOSS_NONE * gain {
        true => 1.0,
        false if hurry => LOSS_MAX_HURRY,
        false => LOSS_MAX,
    };
    let rows = stepped(arena, step as u64, tables, &target, loss_max);
    if rows.is_empty() {
        return Verdict::Stay("what would change is too little to copy rows for".into());
    }
    Verdict::Move(Shift { rows, gain, loss })
}

/// The best division, as far as tables may change. What gains nothing stays where it is.
fn aimed(arena: u64, tables: &[Candidate]) -> Result<Vec<u64>, String> {
    let unknown = Curve::new([]);
    let demand = |table| {
        let table: &Candidate = table;
        Demand {
            lookups: table.lookups,
            row_bytes: table.row_bytes,
            rows: table.range(),
            curve: table.curve.as_ref().unwrap_or(&unknown),
        }
    };
    let demands: Vec<Demand> = tables.iter().map(demand).collect();
    let mut target = divide(arena, &demands).map_err(|error| error.to_string())?;
    let given: u64 = target
        .iter()
        .zip(tables)
        .map(|(rows, table)| rows * table.row_bytes)
        .sum();
    let mut left = arena - given;
    for (rows, table) in target.iter_mut().zip(tables) {
        let before = table.present.min(*table.bounds.end());
        let back = before.saturating_sub(*rows).min(left / table.row_bytes);
        *rows += back;
        left -= back * table.row_bytes;
    }
    Ok(target)
}

/// Goes towards a division: what gains most a byte comes first, and what loses least a byte gives way first.
fn stepped(
    arena: u64,
    step: u64,
    tables: &[Candidate],
    target: &[u64],
    loss_max: impl Fn(f64) -> f64,
) -> Vec<(usize, u64)> {
    let (mut gains, mut losses) = (Vec::new(), Vec::new());
    for (at, (table, &rows)) in tables.iter().zip(target).enumerate() {
        let change = rows.abs_diff(table.present);
        if change == 0 || ((change as f64) < CHANGE_LEAST * table.present as f64 && !table.forced())
        {
            continue;
        }
        let hits = table.gain(rows).0.abs();
        let worth = hits / (change * table.row_bytes) as f64;
        if rows > table.present {
            gains.push((at, change, worth));
        } else {
            let most = (table.present as f64 * loss_max(hits)) as u64;
            losses.push((at, change.min(most), worth));
        }
    }
    gains.sort_by(|a, b| b.2.total_cmp(&a.2));
    // What is forced gives way in any case.
    let given_first = |at: usize| tables[at].present > *tables[at].bounds.end();
    losses.sort_by(|a, b| {
        let first = given_first(b.0).cmp(&given_first(a.0));
        first.then(a.2.total_cmp(&b.2))
    });
    let bytes = |of: &[(usize, u64, f64)]| -> u64 {
        of.iter()
            .map(|&(at, rows, _)| rows * tables[at].row_bytes)
            .sum()
    };
    let held: u64 = tables
        .iter()
        .map(|table| table.present * table.row_bytes)
        .sum();
    let free = arena.saturating_sub(held);
    let over = held.saturating_sub(arena);
    let room = (bytes(&losses) + free).saturating_sub(over);
    let mut left = bytes(&gains).min(room).min(step);
    let mut moves = Vec::new();
    let mut taken = 0;
    for (at, rows, _) in gains {
        let rows = rows.min(left / tables[at].row_bytes);
        if rows > 0 {
            moves.push((at, tables[at].present + rows));
            left -= rows * tables[at].row_bytes;
            taken += rows * tables[at].row_bytes;
        }
    }
    let mut wanted = (taken + over).saturating_sub(free);
    for (at, rows, _) in losses {
        let row_bytes = tables[at].row_bytes;
        let rows = if given_first(at) {
            rows
        } else {
            rows.min(wanted.div_ceil(row_bytes))
        };
        if rows > 0 {
            moves.push((at, tables[at].present - rows));
            wanted = wanted.saturating_sub(rows * row_bytes);
        }
    }
    moves
}

#[cfg(test)]
mod tests;
