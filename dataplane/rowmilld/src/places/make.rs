//! How the thread makes a change.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use anyhow::{Context, anyhow, ensure};
use rowmill_cache::store::{Shape, Store};
use rowmill_engine::Home;
use rowmill_table::{LoadOptions, Progress, Stage};

use super::{LOOK, Means, Reports, SLOW};
use crate::cache_view::TableView;
use crate::config::Placement;
use crate::files::{self, Identity};
use crate::mailbox::{Move, To};
use crate::room::{self, Memory, Needs};
use crate::waiting;

impl Means {
    pub(super) fn view(&self, table: usize) -> &TableView {
        let mut listed = self.cache.tables.iter();
        let view = listed.find(|view| view.number == table);
        view.expect("a listed table")
    }

    fn path(&self, view: &TableView) -> PathBuf {
        let info = &self.generation.tables()[view.number];
        self.generation.path(info)
    }

    /// Moves a table, or gives it another share.
    pub(super) fn make(
        &self,
        view: &TableView,
        (to, shape): (Placement, Shape),
        files: &[Identity],
        reports: &Reports<'_>,
    ) -> anyhow::Result<()> {
        view.wants(shape);
        let outcome = match (view.store(), to) {
            (Some(store), Placement::Cached) => self.resize(view, &store, shape, reports),
            (None, Placement::Resident) => Ok(()),
            (None, Placement::Cached) => self.cached(view, shape).map(|(homes, store)| {
                self.place(view, homes, store);
            }),
            (Some(_), Placement::Resident) => {
                let homes = self.resident(view, files, reports.progress);
                homes.map(|homes| self.place(view, homes, None))
            }
        };
        view.has(match outcome {
            Ok(()) => shape,
            Err(_) => view.share().shape,
        });
        outcome
    }

    fn place(&self, view: &TableView, homes: Vec<Home>, store: Option<Arc<Store>>) {
        let homes = homes.into_iter().map(|home| To::Home(Box::new(home)));
        let before = self.hand_over(view, homes.collect());
        view.set_store(store);
        // The last who have it: its memory is given back.
        drop(before);
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
        self.has_room("slots of its share", &Needs::share(more))?;
        let begun = store.resize(shape.shard_sets());
        let Some(resize) = begun.context("its share cannot be changed")? else {
            return Ok(());
        };
        self.hand_over(
            view,
            self.mailboxes.iter().map(|_| To::Size(resize)).collect(),
        );
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
        self.has_room("slots of its share", &Needs::share(areas))?;
        let parts = self.shares.table_of(view.number, shape.shard_sets());
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
        view: &TableView,
        files: &[Identity],
        progress: Progress<'_>,
    ) -> anyhow::Result<Vec<Home>> {
        let path = self.path(view);
        let table = waiting::told(|tell| {
            tell(&path);
            self.is_the_same_file(view, files)?;
            self.has_room("its rows", &Needs::arena(view.rows_bytes))?;
            let options = LoadOptions {
                verify: self.verify,
            };
            let without = &self.tables.tables()[view.number];
            let progress = |stage: Stage, done: u64, total: u64| {
                tell(&path);
                progress(stage, done, total);
            };
            let generation = &self.generation;
            let table = generation.load_rows(without, self.huge_pages, &progress, options);
            let table = table.context("its rows cannot be read")?;
            tell(&path);
            self.is_the_same_file(view, files)?;
            anyhow::Ok(table)
        })?;
        let home = |_| Home {
            resident: Some(Box::new(table.clone())),
            cached: None,
        };
        Ok(self.mailboxes.iter().map(home).collect())
    }

    /// Refuses rows of a file that was put in the place of the one that was there at start: they may be another generation's.
    fn is_the_same_file(&self, view: &TableView, files: &[Identity]) -> anyhow::Result<()> {
        let path = self.path(view);
        let now = files::identity(&path);
        let now = now.with_context(|| format!("cannot look at {}", path.display()))?;
        let mut listed = self.cache.tables.iter().zip(files);
        let at_start = listed.find(|(other, _)| other.number == view.number);
        ensure!(
            at_start.is_some_and(|(_, &file)| file == now),
            "{} is another file now than at the start; to serve its rows start anew",
            path.display()
        );
        Ok(())
    }

    fn has_room(&self, what: &str, needs: &Needs) -> anyhow::Result<()> {
        let room = Memory::now().has_room(self.huge_pages, what, needs);
        room.map_err(|why| anyhow!(why))
    }

    /// Tells each worker what changes of the table, and returns what they had when all know.
    fn hand_over(&self, view: &TableView, news: Vec<To>) -> Vec<Move> {
        for (mailbox, to) in self.mailboxes.iter().zip(news) {
            let table = view.number;
            mailbox.move_table(Box::new(Move { table, to }));
        }
        let began = Instant::now();
        let mut is_slow = false;
        let taken_back = self.mailboxes.iter().enumerate().map(|(worker, mailbox)| {
            loop {
                if let Some(moved) = mailbox.moved() {
                    return *moved;
                }
                if !is_slow && began.elapsed() > SLOW {
                    is_slow = true;
                    let table = &view.name;
                    tracing::warn!("worker {worker} does not look where table {table} is now");
                }
                thread::sleep(LOOK);
            }
        });
        taken_back.collect()
    }
}
