//! Does what the last policy says.

use core::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rowmill_cache::{Pins, Rules, WarmRows};
use rowmill_link::{Admission, Order, Policy, TablePolicy};
use rowmill_table::TableInfo;

use super::TICK;
use super::generations::{Holder, Keeper};
use super::view::ControlView;
use crate::cache_view::{CacheView, TableView};
use crate::config::Placement;
use crate::mailbox::{Directive, Mailbox};
use crate::places::{PlaceError, Places, Stand};

/// How often it is looked which rows that are to stay are there; the longest pause where looking and loading did not change that.
const LOOKS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// Of a share so many quarters may be rows that stay: the others have to have room.
const PINNED_QUARTERS: u64 = 3;

/// A share that is wanted.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// Which of the cache's tables.
    at: usize,
    bytes: u64,
}

/// Rows that are to stay.
#[derive(Debug)]
struct Pinned {
    at: usize,
    rows: Vec<u32>,
}

/// See the module's text.
pub(super) struct Applier {
    tables: Vec<TableInfo>,
    cache: Arc<CacheView>,
    places: Option<Arc<Places>>,
    mailboxes: Vec<Arc<Mailbox>>,
    order: Order,
    /// Shares that the policy wants, the generation in which they were asked for, those that are still to be changed, and the change that is
    /// under way.
    shares: Vec<Wish>,
    newest: Option<u64>,
    wishes: Vec<Wish>,
    under_way: Option<u64>,
    /// What all workers know, what some of them don't know yet, and what none is told yet.
    known: Option<Arc<Directive>>,
    telling: Option<Arc<Directive>>,
    untold: Option<Vec<(usize, u32, Rules)>>,
    pinned: Vec<Pinned>,
    /// When it is looked for pinned rows next, the pause after that, and how many were not there.
    look_due: Instant,
    pause: Duration,
    lacking: usize,
    keeper: Keeper,
}

/// The thread's work, for as long as the process lives.
pub(super) fn run(mut applier: Applier, view: &ControlView) {
    loop {
        if let Some(policy) = view.take() {
            applier.begin(policy, view);
        }
        applier.go_on(view);
        thread::sleep(TICK);
    }
}

impl Applier {
    pub(super) fn new(
        tables: Vec<TableInfo>,
        cache: Arc<CacheView>,
        places: Option<Arc<Places>>,
        mailboxes: Vec<Arc<Mailbox>>,
        holder: Holder,
    ) -> Applier {
        Applier {
            tables,
            cache,
            places,
            mailboxes,
            order: Order::default(),
            shares: Vec::new(),
            newest: None,
            wishes: Vec::new(),
            under_way: None,
            known: None,
            telling: None,
            untold: None,
            pinned: Vec::new(),
            look_due: Instant::now(),
            pause: LOOKS[0],
            lacking: 0,
            keeper: Keeper::new(holder),
        }
    }

    /// Another policy is obeyed from now on.
    fn begin(&mut self, policy: Policy, view: &ControlView) {
        self.order = policy.order;
        self.keeper.want(policy.generations, policy.order, view);
        self.shares.clear();
        let mut seen = vec![false; self.cache.tables.len()];
        // Of what isn't named nothing is changed.
        let mut rules: Vec<(usize, u32, Rules)> = match (&self.untold, &self.telling, &self.known) {
            (Some(untold), ..) => untold.clone(),
            (None, Some(told), _) | (None, None, Some(told)) => told.tables().to_vec(),
            (None, None, None) => Vec::new(),
        };
        for wanted in policy.tables {
            match self.parse(&wanted, &mut seen) {
                Ok(at) => self.add(at, wanted, &mut rules, view),
                Err(why) => view.refuse(self.order, why),
            }
        }
        self.untold = Some(rules);
        self.newest = self.keeper.newest();
        self.wishes.clone_from(&self.shares);
        (self.look_due, self.pause, self.lacking) = (Instant::now(), LOOKS[0], usize::MAX);
    }

    /// Which of the cache's tables is meant.
    fn parse(&self, wanted: &TablePolicy, seen: &mut [bool]) -> Result<usize, String> {
        let name = &wanted.table;
        let at = self.cache.tables.iter().position(|view| view.name == *name);
        let Some(at) = at else {
            let is_there = self.tables.iter().any(|table| table.name == *name);
            let shown: String = name.chars().filter(|c| !c.is_control()).take(255).collect();
            return Err(match is_there {
                true => format!(
                    "table {shown} is always resident: it is not in [[tables]] of rowmilld's configuration"
                ),
                false => format!("there is no table {shown} here"),
            });
        };
        match core::mem::replace(&mut seen[at], true) {
            true => Err(format!(
                "table {name} is named twice, and only the first time counts"
            )),
            false => Ok(at),
        }
    }

    fn add(
        &mut self,
        at: usize,
        wanted: TablePolicy,
        rules: &mut Vec<(usize, u32, Rules)>,
        view: &ControlView,
    ) {
        let table = &self.cache.tables[at];
        let pins = match self.pins(table, &wanted) {
            Ok(pins) => pins,
            Err(why) => {
                view.refuse(self.order, why);
                Vec::new()
            }
        };
        // The same set is not made again.
        let former = self.pinned.iter().position(|pinned| pinned.at == at);
        let former = former.map(|former| self.pinned.swap_remove(former));
        let earlier = rules
            .iter()
            .position(|(number, ..)| *number == table.number);
        let earlier = earlier.map(|earlier| rules.swap_remove(earlier));
        let is_same = former.is_some_and(|former| former.rows == pins);
        let set = match earlier {
            Some((
                _,
                _,
                Rules {
                    pins: Some(set), ..
                },
            )) if is_same => Some(set),
            _ => (!pins.is_empty()).then(|| Arc::new(Pins::new(&pins))),
        };
        let rule = Rules {
            // Where no row is pinned none would ever come.
            only_pins: wanted.admission == Admission::Pinned && set.is_some(),
            pins: set,
        };
        rules.push((table.number, wanted.threshold, rule));
        table.wishes.pinned.store(pins.len() as u64, Relaxed);
        if pins.is_empty() {
            table.wishes.pinned_held.store(0, Relaxed);
        } else {
            self.pinned.push(Pinned { at, rows: pins });
        }
        if let Some(bytes) = wanted.cache_bytes {
            match table.placement() {
                Placement::Cached => self.shares.push(Wish { at, bytes }),
                Placement::Resident => view.refuse(
                    self.order,
                    format!("table {} is resident, and has no share", table.name),
                ),
            }
        }
    }

    /// The rows of a table that are to stay.
    fn pins(&self, table: &TableView, wanted: &TablePolicy) -> Result<Vec<u32>, String> {
        let (name, rows) = (&table.name, &wanted.pinned);
        let is_ascending = rows.is_sorted_by(|row, next| row < next);
        if !is_ascending
            || rows
                .last()
                .is_some_and(|&row| u64::from(row) >= table.rows())
        {
            return Err(format!(
                "table {name}: pinned rows are not ascending numbers below {}, so that none of them is",
                table.rows()
            ));
        }
        let share = table.share();
        let shape = wanted.cache_bytes.map(|bytes| share.of(bytes));
        let shape = shape.and_then(Result::ok).unwrap_or(share.shape);
        let most = u64::from(shape.slots()) * PINNED_QUARTERS / 4;
        match rows.len() as u64 > most {
            true => Err(format!(
                "table {name}: {} pinned rows are more than three quarters of the {} that its share has room for, so that none of them is",
                rows.len(),
                shape.slots()
            )),
            false => Ok(rows.clone()),
        }
    }

    /// Does the next things that can be done now.
    fn go_on(&mut self, view: &ControlView) {
        self.tell();
        self.keeper.go_on(self.order, view);
        self.keep_shares();
        match self.places.clone() {
            Some(places) => self.resize(&places, view),
            None => view.done(self.order),
        }
        self.look();
    }

    /// Tells the workers, when they know what they were told before.
    fn tell(&mut self) {
        if let Some(telling) = &self.telling {
            if !telling.is_known() {
                return;
            }
            self.sample(telling, |_, now| now);
            // What workers had before is freed here.
            self.known = self.telling.take();
        }
        if let Some(rules) = self.untold.take() {
            self.direct(rules.into(), Arc::new([]));
        }
    }

    fn direct(&mut self, rules: Box<[(usize, u32, Rules)]>, lacking: Arc<[WarmRows]>) {
        let workers = self.mailboxes.len() as u32;
        let directive = Arc::new(Directive::new(rules, lacking, workers));
        // Samples of a threshold that was higher are not told once there is a lower one.
        self.sample(&directive, u32::min);
        for mailbox in &self.mailboxes {
            mailbox.direct(Arc::clone(&directive));
        }
        self.telling = Some(directive);
    }

    /// Notes what of tables is sampled, of what was and what is to be.
    fn sample(&self, directive: &Directive, which: impl Fn(u32, u32) -> u32) {
        for (number, threshold, _) in directive.tables() {
            let mut tables = self.cache.tables.iter();
            let table = tables.find(|view| view.number == *number);
            let own = &table.expect("a listed table").wishes.threshold;
            own.store(which(own.load(Relaxed), *threshold), Relaxed);
        }
    }

    /// Asks for the shares anew where there is another newest generation, whose stores are as they were when it was loaded.
    fn keep_shares(&mut self) {
        let newest = self.keeper.newest();
        if newest == self.newest {
            return;
        }
        self.newest = newest;
        self.wishes.clone_from(&self.shares);
        (self.look_due, self.pause, self.lacking) = (Instant::now(), LOOKS[0], usize::MAX);
    }

    /// Changes the next share, when the one before is done: those first that become smaller, so that there is room for the others.
    fn resize(&mut self, places: &Places, view: &ControlView) {
        if let Some(number) = self.under_way {
            let changes = places.changes();
            let change = changes.iter().find(|change| change.number == number);
            match change {
                Some(change) if change.state == Stand::Running => return,
                Some(change) if change.state == Stand::Failed => {
                    let why = format!("table {}: {}", change.table, change.detail);
                    view.refuse(self.order, why);
                }
                _ => {}
            }
            self.under_way = None;
        }
        let grows = |wish: &Wish| {
            let share = self.cache.tables[wish.at].share().shape;
            wish.bytes >= share.bytes() as u64
        };
        let next = (0..self.wishes.len()).min_by_key(|&at| grows(&self.wishes[at]));
        let Some(next) = next else {
            view.done(self.order);
            return;
        };
        let Wish { at, bytes } = self.wishes[next];
        let table = &self.cache.tables[at];
        if table.placement() == Placement::Cached {
            match places.change(&table.name, Placement::Cached, Some(bytes)) {
                Ok(number) => self.under_way = number,
                Err(PlaceError::Busy(_) | PlaceError::Hangs { .. }) => return,
                Err(why) => view.refuse(self.order, why.to_string()),
            }
        }
        self.wishes.swap_remove(next);
    }

    /// Looks which rows that are to stay are not there, and has them loaded: at longer and longer intervals where that doesn't help.
    fn look(&mut self) {
        let is_due = self.look_due <= Instant::now() && !self.pinned.is_empty();
        if !is_due || self.telling.is_some() || !self.wishes.is_empty() {
            return;
        }
        let (mut lists, mut lacking) = (Vec::new(), 0);
        for Pinned { at, rows } in &self.pinned {
            let table = &self.cache.tables[*at];
            let (table_there, kept) = table.newest();
            let (held, mut missed) = match kept.store {
                Some(store) => store.lacking(rows),
                None => (0, Vec::new()),
            };
            // The generation may be another one since the policy came.
            missed.retain(|&row| u64::from(row) < kept.rows);
            table.wishes.pinned_held.store(held as u64, Relaxed);
            lacking += missed.len();
            if !missed.is_empty() {
                let (table, rows) = (table_there, missed);
                lists.push(WarmRows { table, rows });
            }
        }
        self.pause = match lacking < self.lacking {
            true => LOOKS[0],
            false => (2 * self.pause).min(LOOKS[1]),
        };
        (self.lacking, self.look_due) = (lacking, Instant::now() + self.pause);
        if let Some(known) = self.known.clone().filter(|_| !lists.is_empty()) {
            self.direct(known.tables().into(), lists.into());
        }
    }
}
