//! The listed tables of a generation come, beside those of the newest, and go.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use rowmill_cache::store::Store;
use rowmill_engine::{Home, Side, SideTier};
use rowmill_port::rdma::remote::ReadLane;
use rowmill_table::{Generation, Keep, Resident, ResidentTable, TableKind};

use super::{Hands, Listed, Model, info, number};
use crate::cache_view::{Kept, TableView};
use crate::config::Placement;
use crate::deltas::Target;
use crate::mailbox::Move;
use crate::room::{Needs, areas};

/// How often it is asked whether a tier has answered all.
const ASK: Duration = Duration::from_millis(10);
/// When it is told that one has not: a row's time is over by then.
const LONG: Duration = Duration::from_secs(10);

/// How a generation that is loaded is to have its listed tables: as the newest has them now.
pub(crate) struct Coming {
    /// In the order of the view's tables: where its rows are, and its number.
    tables: Vec<(Placement, usize)>,
    /// What comes into memory of those that are resident.
    apart: Keep,
}

impl Coming {
    /// What of a table of the generation comes into memory, if it is listed.
    pub(crate) fn keep(&self, number: usize) -> Option<Keep> {
        let mut tables = self.tables.iter();
        let (placement, _) = tables.find(|(_, of)| *of == number)?;
        Some(match placement {
            Placement::Cached => Keep::Index,
            Placement::Resident => self.apart,
        })
    }
}

impl Listed {
    /// How a generation is to have its listed tables.
    ///
    /// # Errors
    /// Where it can't take the place of the newest.
    pub(crate) fn coming(&self, generation: &Generation) -> anyhow::Result<Coming> {
        let (newest, number_of) = (self.newest(), generation.number());
        let plan = |view: &TableView| {
            let name = &view.name;
            let info = info(generation, view).with_context(|| {
                format!(
                    "table {name} is listed in [[tables]], and generation {number_of} has none of that name: take it out there, and restart"
                )
            })?;
            let before = &newest.generation.tables()[newest.number(view)];
            ensure!(
                (info.stride, info.format) == (before.stride, before.format),
                "table {name} has rows of {} bytes ({}) in generation {number_of}, and of {} ({}) in generation {}, for which its slots in the \
                 cache are made: put the other one into the configuration, and restart",
                info.stride,
                info.format,
                before.stride,
                before.format,
                newest.generation.number()
            );
            Ok((view.placement(), number(generation, view)))
        };
        let tables = self.views().iter().map(plan);
        Ok(Coming {
            tables: tables.collect::<anyhow::Result<_>>()?,
            apart: self.means.plan.keep_apart(),
        })
    }

    /// The memory of its tables, of which those that are not listed are kept as `keep` says.
    pub(crate) fn needs(&self, coming: &Coming, generation: &Generation, keep: Keep) -> Needs {
        let of_table = |number| coming.keep(number).unwrap_or(keep);
        let mut needs = Needs {
            arenas: generation.arenas_bytes(of_table),
            beside: self.means.plan.side_bytes(generation),
            ..Needs::default()
        };
        for (view, (placement, _)) in self.views().iter().zip(&coming.tables) {
            if *placement == Placement::Cached {
                let share = view.share();
                needs.areas.extend(areas(share.most, None, share.shape));
            }
        }
        needs
    }

    /// Has the workers know the listed tables of a generation that was loaded, on a side where none is. Their rows go from `tables` to the
    /// workers. No delta is applied meanwhile.
    ///
    /// # Errors
    /// Where files or memory are not to be had, or a table has moved meanwhile. Nothing is changed then.
    pub(crate) fn bring(
        &self,
        hands: &Hands<'_>,
        side: Side,
        coming: Coming,
        generation: &Generation,
        tables: Resident,
    ) -> anyhow::Result<Arc<Resident>> {
        let remote = self.means.remote.as_ref();
        let lanes = remote.map(|remote| remote.begin(side, generation));
        let lanes = lanes.transpose()?.unwrap_or_default();
        let brought = self.bring_with(hands, side, coming, generation, (tables, lanes));
        if let (Err(_), Some(remote)) = (&brought, remote) {
            remote.end(side);
        }
        brought
    }

    fn bring_with(
        &self,
        hands: &Hands<'_>,
        side: Side,
        coming: Coming,
        generation: &Generation,
        (mut tables, lanes): (Resident, Vec<ReadLane>),
    ) -> anyhow::Result<Arc<Resident>> {
        let plan = &self.means.plan;
        let mut lanes = lanes.into_iter();
        let reads = &self.means.reads.0[side.index()];
        let tiers = plan.tiers(generation)?.counted_in(reads);
        tiers.refuse_strange()?;
        let mut homes = vec![u32::MAX; generation.tables().len()];
        for (view, (_, number)) in self.views().iter().zip(&coming.tables) {
            homes[*number] = view.home_on(side) as u32;
        }
        let tier = |reads: &Vec<_>| -> anyhow::Result<Move> {
            let remote = plan.remote().zip(lanes.next());
            let (tier, _) = tiers.for_worker(remote, Some(reads))?;
            let new = SideTier {
                tier: Some(tier),
                homes: homes.clone().into(),
            };
            Ok(Move::Tier(side, Box::new(new), false))
        };
        let new: anyhow::Result<Vec<Move>> = reads.iter().map(tier).collect();
        let new = new.context("cannot read files of cached tables")?;
        let mut ready = Vec::new();
        for (view, (placement, number)) in self.views().iter().zip(&coming.tables) {
            ensure!(
                view.placement() == *placement,
                "table {} has become {} meanwhile: load the generation again",
                view.name,
                view.placement()
            );
            let resident = (*placement == Placement::Resident).then(|| tables.take_rows(*number));
            let info = &generation.tables()[*number];
            let store = hands.homes(side, view, resident.as_ref())?;
            let kept = Kept::of(info, store.1, resident.as_ref());
            ready.push((store.0, kept));
        }
        if let Some(deltas) = &self.means.deltas {
            let views = || self.views().iter().zip(&ready);
            let store = |name: &str| {
                views()
                    .find_map(|(view, (_, kept))| (view.name == name).then(|| kept.store.clone()))
            };
            let cached = |store| Target::Cached(store, u64::MAX);
            let target = |table: &ResidentTable| store(table.name())?.map(cached);
            deltas.replay_to(&tables, &target)?;
        }
        let tables = Arc::new(tables);
        let model = Model::new(generation.clone(), Arc::clone(&tables), &self.means.cache)
            .context("cannot look at files of cached tables")?;
        let cache = &self.means.cache;
        self.means.watch.add(side, tiers.files(), cache)?;
        // From here on nothing fails.
        hands.over("the files of a generation", new);
        for (view, (homes, kept)) in self.views().iter().zip(ready) {
            hands.over(&format!("table {}", view.name), homes);
            view.brought(side, kept);
        }
        self.models()[side.index()] = Some(Arc::new(model));
        Ok(tables)
    }

    /// Takes the listed tables of a side's generation from the workers, of which no request is in progress.
    pub(crate) fn leave(&self, hands: &Hands<'_>, side: Side, running: &dyn Fn(String)) {
        for view in self.views() {
            let home = view.home_on(side);
            let nothing = |_| Move::Home(home, Box::default());
            let news = self.means.mailboxes.iter().map(nothing).collect();
            let before = hands.over(&format!("table {}", view.name), news);
            view.gone(side);
            // The last who have it: its memory is given back.
            drop(before);
        }
        let (began, mut tiers) = (Instant::now(), Vec::new());
        loop {
            let nothing = |_| Move::Tier(side, Box::default(), false);
            let news = self.means.mailboxes.iter().map(nothing).collect();
            let before = hands.over("the files of a generation", news);
            let is_taken = |moved: &Move| matches!(moved, Move::Tier(_, _, true));
            let is_done = before.iter().all(is_taken);
            tiers.extend(before);
            if is_done {
                break;
            }
            if began.elapsed() > LONG {
                running("waiting for rows that are being read from its files".into());
            }
            thread::sleep(ASK);
        }
        self.means.watch.leave(side);
        drop(tiers);
        if let Some(remote) = &self.means.remote {
            remote.end(side);
        }
        let reads = self.means.reads.0[side.index()].iter().flatten();
        for (reads, failures) in reads.flat_map(|tier| tier.files.iter().flatten()) {
            reads.forget();
            failures.forget();
        }
        self.models()[side.index()] = None;
    }
}

impl Hands<'_> {
    /// The generation of a side is the newest.
    pub(crate) fn switch(&self, side: Side) {
        self.listed.means.cache.switch(side);
    }

    /// What workers are to have of a table of a side, as it is in the newest generation, and what is kept of it if it is cached.
    fn homes(
        &self,
        side: Side,
        view: &TableView,
        resident: Option<&ResidentTable>,
    ) -> anyhow::Result<(Vec<Move>, Option<Arc<Store>>)> {
        let (means, number) = (&self.listed.means, view.home_on(side));
        if let Some(table) = resident {
            let home = |_| Home {
                resident: Some(Box::new(table.clone())),
                cached: None,
            };
            let homes = means.mailboxes.iter().map(home);
            let homes = homes.map(|home| Move::Home(number, Box::new(home)));
            return Ok((homes.collect(), None));
        }
        let sets = view.share().shape.shard_sets();
        let parts = means.shares.table_of(number, sets);
        let parts =
            parts.with_context(|| format!("no memory for the share of table {}", view.name))?;
        let store = parts.first().map(|part| Arc::clone(part.store()));
        let home = |part| Home {
            resident: None,
            cached: Some(part),
        };
        let homes = parts.into_iter().map(home);
        let homes = homes.map(|home| Move::Home(number, Box::new(home)));
        Ok((homes.collect(), store))
    }
}

/// Whether rows of the table have the numbers that clients name them by.
pub(super) fn is_dense(kind: TableKind) -> bool {
    matches!(kind, TableKind::Dense)
}
