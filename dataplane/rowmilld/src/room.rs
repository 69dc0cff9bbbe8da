//! Whether the memory is enough: for rows, for requests, and for what clients register.

use rowmill_arena::{HUGE_2M, HugePages, Pools, Reserve, address_space_left, available_bytes};
use rowmill_cache::store::Shape;

use crate::config::Config;
use crate::plan::{Choice, PlanError, bytes_text};

/// Fewer bytes of regions than this are no service.
const REGIONS_LEAST: u64 = 1 << 20;

/// Address space of the threads: a stack of 2 MiB each, guard page and first allocations included, for
/// the workers and the dozen others.
fn threads_bytes(workers: usize) -> u64 {
    (workers as u64 + 12) * (4 << 20)
}

/// What the process takes beside what is counted: its code, its heap, the kernel's tables for it. With a limit of memory (cgroup) it was
/// killed by the kernel, under load, with up to 6 MiB less than that of one worker and 8 MiB of two; and while a table became resident
/// with 1.5 MiB.
fn process_bytes(workers: usize) -> u64 {
    (8 << 20) + workers as u64 * (4 << 20)
}

/// What memory there is.
pub(crate) struct Memory {
    available: u64,
    limited_by: String,
    /// What `RLIMIT_AS` leaves.
    addresses: Option<u64>,
    pools: Pools,
}

/// What memory is wanted for tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Bytes of each arena: rows and indexes, and the shares of cached tables. They may have huge pages.
    pub(crate) arenas: Vec<u64>,
    /// Shares that may become larger or smaller.
    pub(crate) areas: Vec<Area>,
    /// Bytes beside them that cached tables take: checksums, what workers have for misses, lists of warm rows.
    pub(crate) beside: u64,
}

/// A part of a share that may become larger or smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Area {
    /// The bytes that it may have at most.
    most: u64,
    /// The addresses that it is to get, and the memory.
    addresses: u64,
    bytes: u64,
}

/// What a share needs that may become as large as `most` says: where it is `from` one size to go `to` another, or has none yet.
pub(crate) fn areas(most: Shape, from: Option<Shape>, to: Shape) -> [Area; 4] {
    let (all, parts) = (most.parts(), to.parts());
    let former = from.map_or([0; 4], |from| from.parts());
    core::array::from_fn(|at| Area {
        most: all[at] as u64,
        // The share of a table that is not cached has no addresses, and it begins at a huge page's border.
        addresses: from.map_or((all[at] + 2 * HUGE_2M) as u64, |_| 0),
        bytes: parts[at].saturating_sub(former[at]) as u64,
    })
}

impl Needs {
    /// One arena more.
    pub(crate) fn arena(bytes: u64) -> Needs {
        Needs {
            arenas: vec![bytes],
            ..Needs::default()
        }
    }

    /// A share as [`areas`] has it.
    pub(crate) fn share(areas: [Area; 4]) -> Needs {
        Needs {
            areas: areas.into(),
            ..Needs::default()
        }
    }

    fn rows(&self) -> u64 {
        let areas = self.areas.iter().map(|area| area.bytes);
        self.arenas.iter().copied().chain(areas).sum()
    }

    fn addresses(&self) -> u64 {
        let areas = self.areas.iter().map(|area| area.addresses);
        self.arenas.iter().copied().chain(areas).sum()
    }

    /// As words.
    fn text(&self) -> String {
        let rows = bytes_text(self.rows());
        match self.beside {
            0 => format!("{rows} of rows"),
            beside => format!(
                "{rows} of rows, {} beside cached tables",
                bytes_text(beside)
            ),
        }
    }
}

/// Where arenas have room.
#[derive(Default)]
struct Fit {
    /// Pages of 2 MiB that they need of that pool, whether it has them or not.
    pages: u64,
    /// Bytes for which there are no reserved pages, and page tables for them.
    ordinary: u64,
}

impl Fit {
    fn add(&mut self, bytes: u64, (pages, has_pages): (u64, bool)) {
        self.pages += pages;
        if !has_pages {
            // A page table entry of 8 bytes for each 4 KiB, as the arena counts it.
            self.ordinary += bytes + bytes / 512;
        }
    }
}

impl Memory {
    /// As it is now.
    pub(crate) fn now() -> Memory {
        let (available, limited_by) = available_bytes();
        Memory {
            available,
            limited_by,
            addresses: address_space_left(),
            pools: Pools::now(),
        }
    }

    /// Where these would have room, made one after another.
    fn fit(&self, huge_pages: HugePages, needs: &Needs) -> Fit {
        let (mut pools, mut fit) = (self.pools, Fit::default());
        for &bytes in &needs.arenas {
            let taken = match huge_pages {
                HugePages::Off => (0, false),
                HugePages::Require | HugePages::Prefer => pools.take(bytes),
            };
            fit.add(bytes, taken);
        }
        for area in &needs.areas {
            let unit = Reserve::unit(area.most as usize, huge_pages);
            let bytes = area.bytes.next_multiple_of(unit as u64);
            let taken = match unit {
                HUGE_2M => pools.take_common(bytes),
                _ => (0, false),
            };
            fit.add(bytes, taken);
        }
        fit
    }

    /// What is short where huge pages are required.
    fn too_few_pages(&self, what: &str, pages: u64) -> String {
        format!(
            "model.huge_pages = \"require\": {what} need {pages} pages of 2 MiB, and the pools have too few: {}; reserve \
             them with `sysctl vm.nr_hugepages={}`",
            self.pools,
            self.pools.size_for(pages)
        )
    }

    /// Whether there is room for more.
    ///
    /// # Errors
    /// A sentence that says what is short.
    pub(crate) fn has_room(
        &self,
        huge_pages: HugePages,
        what: &str,
        needs: &Needs,
    ) -> Result<(), String> {
        let Fit { pages, ordinary } = self.fit(huge_pages, needs);
        if ordinary > 0 && huge_pages == HugePages::Require {
            return Err(self.too_few_pages(what, pages));
        }
        let needed = match ordinary {
            0 => 0, // The process takes no more than before.
            bytes => bytes + process_bytes(0),
        };
        if needed > self.available {
            return Err(format!(
                "too little memory: {what} need {}, page tables and a reserve of {} included, and {} are available ({}); free \
                 memory, or make another table cached first",
                bytes_text(needed),
                bytes_text(process_bytes(0)),
                bytes_text(self.available),
                self.limited_by
            ));
        }
        let bytes = needs.addresses();
        match self.addresses {
            Some(left) if bytes > left => Err(format!(
                "too little memory: {what} need {}, and the limit of address space leaves {}; raise it (`ulimit -v`, \
                 LimitAS of systemd)",
                bytes_text(bytes),
                bytes_text(left)
            )),
            _ => Ok(()),
        }
    }

    /// Whether tables and requests fit.
    ///
    /// # Errors
    /// [`PlanError::Memory`] where they don't.
    pub(crate) fn check(
        &self,
        config: &Config,
        workers: usize,
        needs: &Needs,
    ) -> Result<Choice, PlanError> {
        let wanted = config.model.huge_pages;
        let requests = config.worker_bytes() * workers as u64;
        let Fit { pages, ordinary } = self.fit(wanted, needs);
        if wanted == HugePages::Require && ordinary > 0 {
            let what = format!("{} of rows", bytes_text(needs.rows()));
            let short = self.too_few_pages(&what, pages);
            return Err(PlanError::Memory(format!("{short}, or write \"prefer\"")));
        }
        let process = process_bytes(workers);
        if ordinary + needs.beside + requests + process > self.available {
            let reserved = match ordinary {
                0 if needs.rows() > 0 => " (they have reserved pages)",
                _ => "",
            };
            return Err(PlanError::Memory(format!(
                "too little memory: {}{reserved}, {} for requests in progress and {} for the process are needed, and {} are \
                 available ({}); serve a smaller generation, lower limits.slots or tables.cache_bytes, or free memory",
                needs.text(),
                bytes_text(requests),
                bytes_text(process),
                bytes_text(self.available),
                self.limited_by
            )));
        }
        let threads = threads_bytes(workers);
        let all = needs.addresses() + needs.beside + requests + threads;
        if let Some(left) = self.addresses.filter(|&left| all > left) {
            return Err(PlanError::Memory(format!(
                "too little memory: {}, {} for requests in progress and {} for threads are needed, \
                 and the limit of address space leaves {}; raise it (`ulimit -v`, LimitAS of systemd), or \
                 serve a smaller generation",
                needs.text(),
                bytes_text(requests),
                bytes_text(threads),
                bytes_text(left)
            )));
        }
        let chosen = format!("{}, {} for requests", needs.text(), bytes_text(requests));
        let why = format!(
            "model.huge_pages = \"{wanted}\", {}; {} are available ({})",
            match ordinary {
                0 => "reserved pools are large enough",
                all if all >= needs.rows() => "no reserved pool is used",
                _ => "reserved pools have room for some of them",
            },
            bytes_text(self.available),
            self.limited_by
        );
        Ok(Choice::new("memory", chosen, why))
    }

    /// How many bytes the regions of all clients may have together. With `guarded` they cost page
    /// tables; otherwise clients can have all of them charged to this process.
    ///
    /// # Errors
    /// [`PlanError::Memory`] where what is configured does not fit, or nothing does.
    pub(crate) fn regions(
        &self,
        config: &Config,
        workers: usize,
        needs: &Needs,
        guarded: bool,
    ) -> Result<(u64, Choice), PlanError> {
        let limits = &config.limits;
        let requests = config.worker_bytes() * workers as u64;
        let Fit { ordinary, .. } = self.fit(config.model.huge_pages, needs);
        let left = self
            .available
            .saturating_sub(ordinary + needs.beside + requests + process_bytes(workers));
        let others = needs.addresses() + needs.beside + requests + threads_bytes(workers);
        let addresses = self.addresses.map(|all| all.saturating_sub(others));
        // A page table entry of 8 bytes for each 4 KiB, and the pages.
        let good_for = |memory: u64| match guarded {
            true => memory.saturating_mul(512),
            false => memory / 513 * 512,
        };
        let fitting = |share: u64| {
            let by_addresses = addresses.map_or(u64::MAX, |left| left / share);
            good_for(left / share).min(by_addresses)
        };
        let total = match limits.total_region_bytes {
            Some(total) if total > fitting(1) => {
                return Err(PlanError::Memory(format!(
                    "too little memory: limits.total_region_bytes is {}, and the {} that rows and requests \
                     leave ({}) are good for {}; write less, or leave it out",
                    bytes_text(total),
                    bytes_text(left),
                    self.limited_by,
                    bytes_text(fitting(1))
                )));
            }
            Some(total) => total,
            None => (u64::from(limits.connections) * limits.max_region_bytes).min(fitting(2)),
        };
        if total < REGIONS_LEAST {
            return Err(PlanError::Memory(format!(
                "too little memory: rows and requests leave {} ({}), and clients' regions need some; serve a \
                 smaller generation, lower limits.slots, or free memory",
                bytes_text(left),
                self.limited_by
            )));
        }
        let (what, chosen) = (
            "regions of clients",
            format!("{} in all", bytes_text(total)),
        );
        let choice = if guarded {
            let why =
                "userfaultfd: holes in them are not filled, so that they cost page tables only";
            Choice::new(what, chosen, why)
        } else {
            let why = "userfaultfd is not to be had (Linux 5.11 and a sandbox that allows it): clients can \
                       have their regions charged to this process";
            Choice::warning(what, chosen, why)
        };
        Ok((total, choice))
    }
}

#[cfg(test)]
mod tests;
