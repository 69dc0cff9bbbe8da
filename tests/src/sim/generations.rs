//! Generations of the simulated world that are loaded, become the newest, and go, while requests are in progress.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;
use rowmill_engine::Side;
use rowmill_rowmilld::mailbox::Mailbox;
use rowmill_rowmilld::service::{Pending, Sessions};
use rowmill_rowmilld::turnover::{SCHEMAS, Stage, Turnover};
use rowmill_table::Resident;

/// What is to be done when all workers have made the steps.
#[derive(Clone, Copy, Debug)]
enum Then {
    Hold(usize),
    Switch,
    Release,
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
        }
    }

    /// Whether workers are to look at their mailboxes.
    pub(super) fn is_under_way(&self) -> bool {
        self.then.is_some()
    }

    /// Makes the next step, or begins to change something now and then.
    pub(super) fn go_on(&mut self) {
        let is_pending = self
            .pending
            .as_ref()
            .is_some_and(|pending| !pending.is_settled());
        let is_told = self.told.as_ref().is_some_and(|told| !told.is_done());
        if is_pending || is_told {
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
            Some(Then::Hold(which)) => self.held[other.index()] = Some(which),
            Some(Then::Switch) => {
                self.sessions.switch(other);
                self.newest = other;
                self.switched += 1;
            }
            Some(Then::Release) => {
                self.sessions.release(other);
                self.held[other.index()] = None;
                self.released += 1;
            }
            None if self.rng.u32(0..10_000) < self.often => self.begin(other),
            None => {}
        }
    }

    fn begin(&mut self, other: Side) {
        if self.held[other.index()].is_none() {
            let newest = self.held[other.other().index()];
            let others = (0..self.all.len()).filter(|&which| Some(which) != newest);
            let others: Vec<usize> = others.collect();
            let which = others[self.rng.usize(0..others.len())];
            let tables = &self.all[which];
            let prepared = self.sessions.prepare(other, tables);
            let prepared = prepared.expect("the same tables with other rows");
            self.pending = Some(prepared.pending);
            self.steps.push_back(Stage::Prepare(tables.generation()));
            let schemas = prepared.also.chunks(SCHEMAS);
            self.steps
                .extend(schemas.map(|also| Stage::Bind(also.into())));
            self.then = Some(Then::Hold(which));
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
