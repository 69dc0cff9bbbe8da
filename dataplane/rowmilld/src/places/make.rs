//! How the thread makes a change.

use std::sync::Arc;
use std::thread;

use anyhow::{Context, ensure};
use rowmill_cache::WarmRows;
use rowmill_cache::store::{Shape, Store};
use rowmill_engine::Home;
use rowmill_table::{LoadOptions, Progress, ResidentTable, Stage};

use super::{LOOK, Means, Reports};
use crate::cache_view::TableView;
use crate::config::Placement;
use crate::deltas::Target;
use crate::files;
use crate::listed::Hands;
use crate::mailbox::Move;
use crate::room::{self, Needs};
use crate::waiting;

impl Means {
    /// Moves the table at that place in the view, or gives it another share.
    pub(super) fn make(
        &self,
        at: usize,
        (to, shape): (Placement, Shape),
        reports: &Reports<'_>,
    ) -> anyhow::Result<()> {
        let view = &self.listed.views()[at];
        view.wants(shape);
        let hands = self.listed.hands();
        let outcome = hands.make(at, (to, shape), reports);
        view.has(match outcome {
            Ok(()) => shape,
            Err(_) => view.share().shape,
        });
        outcome
    }
}

impl Hands<'_> {
    fn make(
        &self,
        at: usize,
        (to, shape): (Placement, Shape),
        reports: &Reports<'_>,
    ) -> anyhow::Result<()> {
        let view = &self.listed.views()[at];
        ensure!(
            view.placement() == to || !self.listed.is_another_held(),
            "another generation came meanwhile: unload it first"
        );
        match (view.store(), to) {
            (Some(store), Placement::Cached) => self.resize(view, &store, shape, reports),
            (None, Placement::Resident) => Ok(()),
            (None, Placement::Cached) => {
                // Until all workers have it, it counts as not loaded.
                let hot = view.to_load();
                let (homes, store) = self.cached(view, shape)?;
                self.place(view, homes, (store, None))?;
                if let Some(hot) = hot {
                    let lists = listed_for(self.listed.means.mailboxes.len(), &hot);
                    self.over(&format!("table {}", view.name), lists);
                }
                Ok(())
            }
            (Some(store), Placement::Resident) => {
                let (homes, table) = self.resident(at, reports.progress)?;
                // What it lists is what is there, or what is on its way there again.
                let keeps = self.listed.means.plan.keeps_warm_rows();
                let _not_loaded = match view.not_loaded() {
                    None if keeps => view.remember(store.hot(store.shape().slots() as usize), None),
                    not_loaded => not_loaded,
                };
                self.place(view, homes, (None, Some(table)))
            }
        }
    }

    /// Has the workers know where a table is, whose deltas are applied there again first.
    fn place(
        &self,
        view: &TableView,
        homes: Vec<Home>,
        (store, resident): (Option<Arc<Store>>, Option<ResidentTable>),
    ) -> anyhow::Result<()> {
        let deltas = self.listed.means.deltas.as_ref();
        // Until all workers know of it, so that no delta comes between.
        let _alone = deltas.map(|deltas| deltas.alone());
        if let Some(deltas) = deltas {
            let target = |table: &ResidentTable| {
                let own = |store| Target::Cached(store, u64::MAX);
                let cached = || store.clone().map(own);
                let target = || resident.clone().map(Target::Rows).or_else(cached);
                (table.name() == view.name).then(target).flatten()
            };
            deltas.replay_to(&self.listed.newest().tables, &target)?;
        }
        let (number, _) = view.newest();
        let homes = homes
            .into_iter()
            .map(|home| Move::Home(number, Box::new(home)));
        let before = self.over(&format!("table {}", view.name), homes.collect());
        view.moved(store, resident.map(Arc::new));
        // The last who have it: its memory is given back.
        drop(before);
        Ok(())
    }

    /// Gives a cached table another share, which it has when this returns.
    fn resize(
        &self,
        view: &TableView,
        store: &Store,
        shape: Shape,
        reports: &Reports<'_>,
    ) -> anyhow::Result<()> {
        let more = room::areas(view.share().most, Some(store.shape()), shape);
        let listed = self.listed;
        listed.has_room("slots of its share", &Needs::share(more))?;
        let begun = store.resize(shape.shard_sets());
        let Some(resize) = begun.context("its share cannot be changed")? else {
            return Ok(());
        };
        let (number, _) = view.newest();
        let sizes = (listed.means.mailboxes.iter()).map(|_| Move::Size(number, resize));
        self.over(&format!("table {}", view.name), sizes.collect());
        loop {
            (reports.is_going_on)();
            match store.settle() {
                Ok(false) => thread::sleep(LOOK),
                Ok(true) => return Ok(()),
                Err(error) => {
                    let name = &view.name;
                    tracing::warn!("table {name}: memory of its share is not given back: {error}");
                    return Ok(());
                }
            }
        }
    }

    fn cached(
        &self,
        view: &TableView,
        shape: Shape,
    ) -> anyhow::Result<(Vec<Home>, Option<Arc<Store>>)> {
        let areas = room::areas(view.share().most, None, shape);
        let listed = self.listed;
        listed.has_room("slots of its share", &Needs::share(areas))?;
        let (number, _) = view.newest();
        let parts = listed.means.shares.table_of(number, shape.shard_sets());
        let parts = parts.context("there is no memory for its share")?;
        let store = parts.first().map(|part| Arc::clone(part.store()));
        let home = |part| Home {
            resident: None,
            cached: Some(part),
        };
        Ok((parts.into_iter().map(home).collect(), store))
    }

    fn resident(
        &self,
        at: usize,
        progress: Progress<'_>,
    ) -> anyhow::Result<(Vec<Home>, ResidentTable)> {
        let (listed, view) = (self.listed, &self.listed.views()[at]);
        let (means, newest) = (&listed.means, listed.newest());
        let path = newest.path(view);
        // Rows of a file that was put in the place of the one that was there may be another generation's.
        let is_the_same_file = || {
            let now = files::identity(&path);
            let now = now.with_context(|| format!("cannot look at {}", path.display()))?;
            ensure!(
                newest.file(at) == now,
                "{} is another file now than when its generation came; to serve its rows start anew",
                path.display()
            );
            Ok(())
        };
        let table = waiting::told(|tell| {
            tell(&path);
            is_the_same_file()?;
            let (_, kept) = view.newest();
            listed.has_room("its rows", &Needs::arena(kept.rows_bytes))?;
            let options = LoadOptions {
                verify: means.verify,
            };
            let without = &newest.tables.tables()[newest.number(view)];
            let progress = |stage: Stage, done: u64, total: u64| {
                tell(&path);
                progress(stage, done, total);
            };
            let generation = &newest.generation;
            let (changing, pages) = (means.plan.is_changing(), means.huge_pages);
            let table = generation.load_rows(without, changing, pages, &progress, options);
            let table = table.context("its rows cannot be read")?;
            tell(&path);
            is_the_same_file()?;
            anyhow::Ok(table)
        })?;
        let home = |_| Home {
            resident: Some(Box::new(table.clone())),
            cached: None,
        };
        Ok((means.mailboxes.iter().map(home).collect(), table))
    }
}

/// For each worker, that these rows are to be loaded.
fn listed_for(workers: usize, rows: &Arc<[WarmRows]>) -> Vec<Move> {
    (0..workers).map(|_| Move::Warm(Arc::clone(rows))).collect()
}
