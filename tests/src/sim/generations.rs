//! Generations of the simulated world that are loaded, become the newest, and go, while requests are in progress.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_engine::Side;
use rowmill_rowmilld::mailbox::Mailbox;
use rowmill_rowmilld::service::{Pending, Sessions};
use rowmill_rowmilld::turnover::{SCHEMAS, Stage, Turnover};
use rowmill_table::Resident;

use super::moves::Moves;

/// What is to be done when all workers have made the steps.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// Its cached tables are with the workers.
    Bring(usize),
    Hold(usize),
    Switch,
    Release,
    /// Workers have what they had of its cached tables no more.
    Leave,
    /// The same of one that was never there.
    GiveUp,
}

/// Changes generations, one step at a time, as `rowmilld`'s thread does.
pub struct Generations {
    sessions: Arc<Sessions>,
    mailboxes: Vec<Arc<Mailbox>>,
    /// All that there are; the first is there at the start.
    all: Vec<Arc<Resident>>,
    /// Which of them each side holds.
    held: [Option<usize>; 2],
    newest: Side,
    /// After how many of 10,000 steps of workers something is changed, if nothing is under way.
    often: u32,
    /// What workers have to take in before the next step.
    pending: Option<Pending>,
    steps: VecDeque<Stage>,
    told: Option<Arc<Turnover>>,
    then: Option<Then>,
    rng: Rng,
    /// Generations that were switched to.
    pub switched: u64,
    /// Generations that were given up.
    pub released: u64,
    /// Generations that could not be loaded to their end, of which nothing is left.
    pub failed: u64,
}

impl Generations {
    /// Of which the first is held.
    pub(super) fn new(
        sessions: Arc<Sessions>,
        mailboxes: Vec<Arc<Mailbox>>,
        all: Vec<Arc<Resident>>,
        mut rng: Rng,
    ) -> Generations {
        let often = if all.len() > 1 { rng.u32(1..=300) } else { 0 };
        Generations {
            sessions,
            mailboxes,
            all,
            held: [Some(0), None],
            newest: Side::A,
            often,
            pending: None,
            steps: VecDeque::new(),
            told: None,
            then: None,
            rng,
            switched: 0,
            released: 0,
            failed: 0,
        }
    }

    /// The newest, and its side.
    pub(super) fn newest(&self) -> (Side, &Arc<Resident>) {
        let which = self.held[self.newest.index()].expect("the newest is held");
        (self.newest, &self.all[which])
    }

    /// Which of all are held.
    pub(super) fn held(&self) -> Vec<usize> {
        self.held.iter().flatten().copied().collect()
    }

    /// Whether workers are to look at their mailboxes.
    pub(super) fn is_under_way(&self) -> bool {
        self.then.is_some()
    }

    /// Whether some workers have switched to another generation, and others not.
    pub(super) fn is_half_switched(&self) -> bool {
        let is_told = matches!(self.then, Some(Then::Switch)) && self.steps.is_empty();
        is_told
            && self
                .told
                .as_ref()
                .is_some_and(|told| told.is_begun() && !told.is_done())
    }

    /// Makes the next step, or begins to change something now and then, if it `may`.
    pub(super) fn go_on(&mut self, moves: &mut Moves, may: bool) {
        let is_pending = self
            .pending
            .as_ref()
            .is_some_and(|pending| !pending.is_settled());
        let is_told = self.told.as_ref().is_some_and(|told| !told.is_done());
        let is_moving = self.then.is_some() && moves.is_under_way();
        if is_pending || is_told || is_moving {
            return;
        }
        (self.pending, self.told) = (None, None);
        let other = self.newest.other();
        if let Some(stage) = self.steps.pop_front() {
            let turnover = Turnover::new(other, stage, self.mailboxes.len() as u32);
            let turnover = Arc::new(turnover);
            for mailbox in &self.mailboxes {
                mailbox.turn_over(Arc::clone(&turnover));
            }
            self.told = Some(turnover);
            return;
        }
        match self.then.take() {
            // Its files are damaged: workers that have some of it already give that back.
            Some(Then::Bring(_)) if self.rng.u8(0..5) == 0 => {
                moves.leave(other);
                self.then = Some(Then::GiveUp);
            }
            Some(Then::Bring(which)) => {
                let tables = &self.all[which];
                let prepared = self.sessions.prepare(other, tables);
                let prepared = prepared.expect("the same tables with other rows");
                self.pending = Some(prepared.pending);
                let schemas = prepared.also.chunks(SCHEMAS);
                self.steps
                    .extend(schemas.map(|also| Stage::Bind(also.into())));
                // Whoever names it before gets Retry.
                self.steps.push_back(Stage::Prepare(tables.generation()));
                self.then = Some(Then::Hold(which));
            }
            Some(Then::GiveUp) => self.failed += 1,
            Some(Then::Hold(which)) => self.held[other.index()] = Some(which),
            Some(Then::Switch) => {
                self.sessions.switch(other);
                self.newest = other;
                self.switched += 1;
            }
            Some(Then::Release) => {
                self.sessions.release(other);
                moves.leave(other);
                self.then = Some(Then::Leave);
            }
            Some(Then::Leave) => {
                self.held[other.index()] = None;
                self.released += 1;
            }
            None if may && self.rng.u32(0..10_000) < self.often && !moves.is_under_way() => {
                self.begin(other, moves);
            }
            None => {}
        }
    }

    fn begin(&mut self, other: Side, moves: &mut Moves) {
        if self.held[other.index()].is_none() {
            let newest = self.held[other.other().index()];
            let others = (0..self.all.len()).filter(|&which| Some(which) != newest);
            let others: Vec<usize> = others.collect();
            let which = others[self.rng.usize(0..others.len())];
            moves.bring(other, &self.all[which]);
            self.then = Some(Then::Bring(which));
        } else if self.rng.u8(0..3) > 0 {
            self.steps.push_back(Stage::Switch);
            self.then = Some(Then::Switch);
        } else {
            self.pending = Some(self.sessions.withdraw(other));
            self.steps.push_back(Stage::Release);
            self.then = Some(Then::Release);
        }
    }
}
