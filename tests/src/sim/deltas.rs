//! Deltas of the simulated world: rows of tables, resident and cached, become others while requests are in progress.
//!
//! What `rowmilld`'s thread does in a delta is done here by a thread (`strand.rs`), so that [`ResidentTable::change`] and [`Store::patch`] themselves run between
//! steps of workers, and wait for their turns by the epochs that they note. The rows of a table that is cached become others in memory, too, where it finds
//! them when it is resident again. A process that is killed leaves what it has kept, and
//! the next one applies that before it serves. What is not simulated: files and directories of deltas, and what lies between two steps of one thread or within a turn, which the cache's models run.
//!
//! [`ResidentTable::change`]: rowmill_table::ResidentTable::change
//! [`Store::patch`]: rowmill_cache::store::Store::patch

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_cache::store::{Epochs, Store};
use rowmill_table::{Resident, ResidentTable, TableKind};

use super::history::History;
use super::ledger::Violation;
use super::model::Truth;
use super::moves::Moves;
use super::planted::Mistake;
use super::strand::{Strand, Way};

/// Rows of a table that are read from the delta together.
#[derive(Debug)]
struct Piece {
    table: usize,
    rows: Vec<u32>,
    bytes: Vec<u8>,
    /// What they were when the delta was made.
    former: Vec<u8>,
}

/// A delta that was checked and is kept.
#[derive(Debug)]
struct Delta {
    sequence: u64,
    pieces: Vec<Piece>,
    /// Whether it was begun before.
    is_anew: bool,
}

/// All deltas of each generation that a process has kept, the last of which may be under way, or could not be read to its end: then the
/// same comes again before there is another.
#[derive(Debug, Default)]
pub(super) struct Kept(BTreeMap<usize, Vec<Arc<Delta>>>);

/// Rows of tables that are others than at first, by generation and table.
pub(super) type Others = BTreeMap<(u64, usize), BTreeMap<u32, Vec<u8>>>;

impl Kept {
    /// What a process does before it serves: all deltas that were kept are applied to tables that are as they were at first. Of what was
    /// acknowledged before the oracle is told nothing.
    pub(super) fn apply(
        &self,
        all: &[Arc<Resident>],
        history: &History,
        mistake: Option<Mistake>,
    ) -> Others {
        let mut others = Others::new();
        for (&which, deltas) in &self.0 {
            let tables = &all[which];
            let generation = tables.generation();
            for delta in deltas {
                let is_new = delta.sequence > history.stand(generation).delta;
                for piece in &delta.pieces {
                    if is_new {
                        history.show(generation, piece.table, &piece.rows, &piece.bytes);
                    }
                    if mistake == Some(Mistake::StartsOver) {
                        continue;
                    }
                    let table = &tables.tables()[piece.table];
                    table.change(&piece.rows, &piece.bytes, &mut || ());
                    let of_table = others.entry((generation, piece.table)).or_default();
                    let bytes = piece.bytes.chunks_exact(table.stride());
                    of_table.extend(piece.rows.iter().copied().zip(bytes.map(<[u8]>::to_vec)));
                }
                tables.set_delta(delta.sequence);
                if is_new {
                    history.acknowledge(generation, delta.sequence);
                }
            }
        }
        others
    }

    /// The delta of a generation that is not acknowledged.
    fn begun(&self, which: usize, acknowledged: u64) -> Option<&Arc<Delta>> {
        let last = self.0.get(&which)?.last()?;
        (last.sequence > acknowledged).then_some(last)
    }

    fn take_last(&mut self, which: usize) -> Delta {
        let deltas = self.0.get_mut(&which).expect("it has some");
        let last = deltas.pop().expect("the one under way");
        Arc::into_inner(last).expect("the thread has ended")
    }

    fn keep(&mut self, which: usize, delta: Delta) {
        self.0.entry(which).or_default().push(Arc::new(delta));
    }
}

/// The shortest time in which the thread gives way: a worker that is waited for has to come to its next turn.
const LOOK_NS: u64 = 100;

/// Where the thread gives way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It is about to read the next piece.
    Reads,
    /// Rows were shown, or written over the old ones, and workers' turns have to end.
    Waits,
    /// All rows have changed, and the number has not been raised.
    Changed,
}

/// Applies deltas, one at a time, as `rowmilld`'s thread does.
pub struct Deltas {
    /// All generations that there are.
    all: Vec<Arc<Resident>>,
    epochs: Arc<Epochs>,
    history: History,
    mistake: Option<Mistake>,
    /// After how many of 10,000 steps of workers a delta is begun, if none is under way.
    often: u32,
    /// The longest time until the thread goes on where it has given way.
    look_ns: u64,
    next_ns: u64,
    under_way: Option<(usize, Strand<Stop>)>,
    kept: Kept,
    rng: Rng,
    /// Deltas that were acknowledged.
    pub applied: u64,
    /// Deltas that ended in the middle.
    pub broken_off: u64,
}

impl Deltas {
    /// For these generations, which have all deltas that are kept, if there are tables whose rows can change.
    pub(super) fn new(
        (all, kept): (Vec<Arc<Resident>>, Kept),
        epochs: Arc<Epochs>,
        history: History,
        mistake: Option<Mistake>,
        mut rng: Rng,
    ) -> Deltas {
        let can_change = all[0].tables().iter().any(ResidentTable::can_change);
        let often = if can_change { rng.u32(1..=300) } else { 0 };
        Deltas {
            all,
            epochs,
            history,
            mistake,
            often,
            look_ns: [LOOK_NS, 1_000, 20_000][rng.usize(0..3)],
            next_ns: 0,
            under_way: None,
            kept,
            rng,
            applied: 0,
            broken_off: 0,
        }
    }

    /// The process is killed: what was under way ends, and what was kept is left.
    pub(super) fn killed(&mut self) -> Kept {
        self.under_way = None;
        core::mem::take(&mut self.kept)
    }

    /// Whether a delta is being applied.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// When the thread of a delta that is under way goes on.
    pub(super) fn next_ns(&self) -> Option<u64> {
        self.under_way.as_ref().map(|_| self.next_ns)
    }

    /// Begins a delta of a generation that is held now and then.
    pub(super) fn begin_some(&mut self, now_ns: u64, held: &[usize], moves: &Moves) {
        let may = self.under_way.is_none() && !moves.is_under_way();
        if may && self.rng.u32(0..10_000) < self.often {
            let which = held[self.rng.usize(0..held.len())];
            self.begin(which, moves);
            self.next_ns = now_ns;
        }
    }

    /// Lets the thread go on, if it is due.
    pub(super) fn go_on(&mut self, now_ns: u64) {
        let Some((which, strand)) = &mut self.under_way else {
            return;
        };
        if now_ns < self.next_ns {
            return;
        }
        self.next_ns = now_ns + self.rng.u64(LOOK_NS..=self.look_ns);
        let which = *which;
        match strand.go_on() {
            // The disk has not given it.
            Some(Stop::Reads) if self.rng.u8(0..10) == 0 => {
                self.under_way = None;
                self.broken_off += 1;
                let anew = Delta {
                    is_anew: true,
                    ..self.kept.take_last(which)
                };
                self.kept.keep(which, anew);
            }
            Some(_) => {}
            None => {
                self.under_way = None;
                self.applied += 1;
            }
        }
    }

    fn begin(&mut self, which: usize, moves: &Moves) {
        let acknowledged = self.all[which].delta();
        if self.kept.begun(which, acknowledged).is_none() {
            let delta = self.draw(which);
            self.kept.keep(which, delta);
        }
        let delta = self.kept.begun(which, acknowledged);
        let delta = Arc::clone(delta.expect("the next one"));
        let work = Work {
            stores: moves.stores_of(&self.all[which]).into_iter().collect(),
            tables: Arc::clone(&self.all[which]),
            delta,
            epochs: Arc::clone(&self.epochs),
            history: self.history.clone(),
            mistake: self.mistake,
        };
        let strand = Strand::new(move |way| work.apply(way));
        self.under_way = Some((which, strand));
    }

    /// Draws the next delta of a generation: some rows of some tables.
    fn draw(&mut self, which: usize) -> Delta {
        let (rng, all) = (&mut self.rng, &self.all[which]);
        let can_change = |&table: &usize| all.tables()[table].can_change();
        let mut tables: Vec<usize> = (0..all.tables().len()).filter(can_change).collect();
        rng.shuffle(&mut tables);
        tables.truncate(rng.usize(1..=3));
        tables.sort_unstable();
        let mut pieces = Vec::new();
        for number in tables {
            let table = &all.tables()[number];
            // The row for ids that there are not stays as it is.
            let mut rows: Vec<u32> = (0..table.lookup_count()).collect();
            let most = match rng.u8(0..4) {
                0 => rows.len(),
                1 => 1,
                _ => rng.usize(1..=40),
            };
            rng.shuffle(&mut rows);
            rows.truncate(most);
            // Ids ascend, and so do rows where they are ids.
            if table.kind() == TableKind::Dense {
                rows.sort_unstable();
            }
            let together = rows.len().div_ceil(rng.usize(1..=4));
            pieces.extend(rows.chunks(together).map(|rows| Piece {
                table: number,
                rows: rows.into(),
                bytes: rows.iter().flat_map(|_| draw_row(rng, table)).collect(),
                former: rows.iter().flat_map(|&row| bytes_of(table, row)).collect(),
            }));
        }
        Delta {
            sequence: all.delta() + 1,
            pieces,
            is_anew: false,
        }
    }

    /// That all rows are what they have to be when nobody changes any.
    pub(super) fn check_rows(&self, truth: &Truth, moves: &Moves) -> Result<(), Violation> {
        for tables in &self.all {
            let generation = tables.generation();
            for (number, store) in moves.stores_of(tables) {
                let (rows, _) = self.history.others(generation, number);
                if store.patched() as usize != rows.len() {
                    return Err(Violation(format!(
                        "deltas have made others of {} rows of table {number} of generation {generation}, and {} are in its store",
                        rows.len(),
                        store.patched()
                    )));
                }
            }
        }
        for (now, first) in self.all.iter().zip(&truth.generations) {
            let generation = now.generation();
            let moment = self.history.stand(generation).moment;
            for (number, table) in now.tables().iter().enumerate() {
                for row in (0..table.row_count()).filter(|_| table.can_change()) {
                    let at_first = || bytes_of(&first.tables()[number], row);
                    let wanted = self.history.row((generation, number), row, moment);
                    if bytes_of(table, row) != wanted.unwrap_or_else(at_first) {
                        return Err(Violation(format!(
                            "row {row} of table {number} of generation {generation} is not what deltas have made of it"
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

/// What the thread has.
struct Work {
    /// What is kept of cached tables, by their numbers.
    stores: BTreeMap<usize, Arc<Store>>,
    tables: Arc<Resident>,
    delta: Arc<Delta>,
    epochs: Arc<Epochs>,
    history: History,
    mistake: Option<Mistake>,
}

impl Work {
    /// As the service's thread does it, and the oracle is told.
    fn apply(&self, way: &Way<Stop>) {
        let (generation, sequence) = (self.tables.generation(), self.delta.sequence);
        match self.mistake {
            Some(Mistake::NumberBeforeRows) => self.tables.set_delta(sequence),
            Some(Mistake::TakesRowsBack) if self.delta.is_anew => {
                for piece in &self.delta.pieces {
                    let table = &self.tables.tables()[piece.table];
                    table.change(&piece.rows, &piece.former, &mut || way.give(Stop::Waits));
                }
            }
            _ => {}
        }
        for piece in &self.delta.pieces {
            way.give(Stop::Reads);
            self.change(piece, way);
        }
        way.give(Stop::Changed);
        self.tables.set_delta(sequence);
        self.history.acknowledge(generation, sequence);
    }

    fn change(&self, piece: &Piece, way: &Way<Stop>) {
        let table = &self.tables.tables()[piece.table];
        let given = match self.mistake {
            Some(Mistake::LeavesRowOut) => piece.rows.len() - 1,
            _ => piece.rows.len(),
        };
        let (rows, bytes) = (&piece.rows[..given], &piece.bytes[..given * table.stride()]);
        if let Some(store) = self.stores.get(&piece.table) {
            // Workers make no step before this gives way, which it does when all are shown.
            self.tell(piece, 0..piece.rows.len());
            let patched = store.patch(rows, bytes, &mut || {
                way.give(Stop::Waits);
                self.epochs.pass_all(|| way.give(Stop::Waits));
            });
            patched.expect("room for all rows");
            // Nobody reads them there.
            table.change(rows, bytes, &mut || ());
            return;
        }
        let (mut shown, mut are_shown) = (0, false);
        table.change(rows, bytes, &mut || {
            let now = stand_ins(table, &piece.rows);
            are_shown = !are_shown;
            if are_shown {
                assert_eq!(now.start, shown, "those come next that come next");
                shown = now.end;
                self.tell(piece, now);
            } else {
                assert!(
                    now.is_empty(),
                    "rows that were changed stand for themselves"
                );
            }
            // It may have no core right now.
            way.give(Stop::Waits);
            self.epochs.pass_all(|| way.give(Stop::Waits));
        });
        assert_eq!(shown, given, "all rows were shown");
        if given < piece.rows.len() {
            self.tell(piece, given..piece.rows.len());
        }
    }

    fn tell(&self, piece: &Piece, rows: Range<usize>) {
        let stride = piece.bytes.len() / piece.rows.len();
        let bytes = &piece.bytes[rows.start * stride..rows.end * stride];
        let rows = &piece.rows[rows];
        let generation = self.tables.generation();
        self.history.show(generation, piece.table, rows, bytes);
    }
}

/// Which of these rows have others in their place.
fn stand_ins(table: &ResidentTable, rows: &[u32]) -> Range<usize> {
    let mut now = rows.to_vec();
    table.stand_in(&mut now);
    let others = || (0..rows.len()).filter(|&at| now[at] != rows[at]);
    let range = others().next().unwrap_or(0)..others().next_back().map_or(0, |last| last + 1);
    assert_eq!(
        others().count(),
        range.len(),
        "rows that follow one another"
    );
    range
}

/// A row as whoever looks finds it.
fn bytes_of(table: &ResidentTable, row: u32) -> Vec<u8> {
    let (mut number, mut bytes) = ([row], vec![0; table.stride()]);
    table.stand_in(&mut number);
    let at = number[0] as usize * table.stride();
    table.window().read(at, &mut bytes);
    bytes
}

fn draw_row(rng: &mut Rng, table: &ResidentTable) -> Vec<u8> {
    let values: Vec<f32> = (0..table.dim()).map(|_| rng.f32() * 2.0 - 1.0).collect();
    let mut bytes = vec![0; table.stride()];
    let row = table.format().row_bytes(table.dim());
    table.format().encode(&values, &mut bytes[..row]);
    bytes
}
