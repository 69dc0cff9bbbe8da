//! Whether the memory is enough: for rows, for requests, and for what clients register.

use rowmill_arena::{HugePages, Pools, address_space_left, available_bytes};

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
    /// Bytes beside them that cached tables take: checksums, what workers have for misses, lists of warm rows.
    pub(crate) beside: u64,
}

impl Needs {
    fn rows(&self) -> u64 {
        self.arenas.iter().sum()
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
struct Fit {
    /// Pages of 2 MiB that they need of that pool, whether it has them or not.
    pages: u64,
    /// Bytes for which there are no reserved pages, and page tables for them.
    ordinary: u64,
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

    /// Where these arenas would have room, made one after another.
    fn fit(&self, huge_pages: HugePages, arenas: &[u64]) -> Fit {
        let (mut pools, mut pages, mut ordinary) = (self.pools, 0, 0);
        for &bytes in arenas {
            let (needed, has_pages) = match huge_pages {
                HugePages::Off => (0, false),
                HugePages::Require | HugePages::Prefer => pools.take(bytes),
            };
            pages += needed;
            if !has_pages {
                // A page table entry of 8 bytes for each 4 KiB, as the arena counts it.
                ordinary += bytes + bytes / 512;
            }
        }
        Fit { pages, ordinary }
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

    /// Whether there is room for one arena more.
    ///
    /// # Errors
    /// A sentence that says what is short.
    pub(crate) fn has_room(
        &self,
        huge_pages: HugePages,
        what: &str,
        bytes: u64,
    ) -> Result<(), String> {
        let Fit { pages, ordinary } = self.fit(huge_pages, &[bytes]);
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
        let Fit { pages, ordinary } = self.fit(wanted, &needs.arenas);
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
        let all = needs.rows() + needs.beside + requests + threads;
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
        let Fit { ordinary, .. } = self.fit(config.model.huge_pages, &needs.arenas);
        let left = self
            .available
            .saturating_sub(ordinary + needs.beside + requests + process_bytes(workers));
        let others = needs.rows() + needs.beside + requests + threads_bytes(workers);
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
mod tests {
    use std::path::Path;

    use rowmill_arena::{HUGE_2M, Pool};

    use super::*;

    fn config(more: &str) -> Config {
        let text = format!("[model]\ndirectory = \"/m\"\n{more}");
        Config::parse(&text, Path::new("r.toml")).unwrap()
    }

    const GIB: u64 = 1 << 30;
    const PAGE: u64 = HUGE_2M as u64;

    fn memory(available: u64, addresses: Option<u64>, pages: u64) -> Memory {
        let common = Pool {
            total: pages + 10,
            free: pages,
        };
        Memory {
            available,
            limited_by: "here".into(),
            addresses,
            pools: Pools {
                common,
                ..Pools::default()
            },
        }
    }

    fn rows(bytes: u64) -> Needs {
        Needs {
            arenas: vec![bytes],
            beside: 0,
        }
    }

    #[test]
    fn memory_is_compared_with_what_is_needed() {
        let requests = config("").limits.worker_bytes() + process_bytes(1);
        let with_tables = GIB + GIB / 512 + requests;
        let cases = [
            ("prefer", with_tables, 0, None),
            (
                "prefer",
                with_tables - 1,
                0,
                Some("too little memory: 1.0 GiB of rows, "),
            ),
            ("prefer", requests, 512, None),
            (
                "prefer",
                requests - 1,
                512,
                Some("1.0 GiB of rows (they have reserved pages), "),
            ),
            ("off", requests, 512, Some("too little memory")),
            ("require", requests, 512, None),
            (
                "require",
                4 * GIB,
                511,
                Some(
                    "1.0 GiB of rows need 512 pages of 2 MiB, and the pools have too few: 511 of 521 pages of 2 MiB and 0 of 0 \
                     pages of 1 GiB are free; reserve them with `sysctl vm.nr_hugepages=522`, or write \"prefer\"",
                ),
            ),
        ];
        for (pages, available, pool, fault) in cases {
            let config = config(&format!("huge_pages = \"{pages}\""));
            let outcome = memory(available, None, pool)
                .check(&config, 1, &rows(GIB))
                .map_err(|e| e.to_string());
            match fault {
                None => assert!(outcome.is_ok(), "{pages}: {outcome:?}"),
                Some(part) => assert!(
                    outcome.as_ref().is_err_and(|e| e.contains(part)),
                    "{pages}: {outcome:?}"
                ),
            }
        }
    }

    #[test]
    fn each_arena_has_pages_of_its_own_and_what_is_beside_them_has_none() {
        let needs = Needs {
            arenas: vec![PAGE + 1, 1, PAGE],
            beside: 3 * GIB,
        };
        let config = config("huge_pages = \"require\"");
        let requests = config.limits.worker_bytes() + process_bytes(1);
        let check = |available, pages| {
            let checked = memory(available, None, pages).check(&config, 1, &needs);
            checked.map_err(|error| error.to_string())
        };
        let choice = check(requests + 3 * GIB, 4).unwrap();
        assert!(choice.chosen.contains("rows, 3.0 GiB beside"), "{choice:?}");
        let short = check(9 * GIB, 3).unwrap_err();
        assert!(
            short.contains("4.0 MiB of rows need 4 pages") && short.contains("nr_hugepages=14"),
            "{short}"
        );
        let short = check(requests + 3 * GIB - 1, 4).unwrap_err();
        assert!(
            short.contains("3.0 GiB beside cached tables (they have reserved pages)"),
            "{short}"
        );
    }

    #[test]
    fn what_comes_later_is_compared_with_what_is_left() {
        use HugePages::{Off, Prefer, Require};
        let with_tables = PAGE + PAGE / 512 + process_bytes(0);
        let cases = [
            (Prefer, memory(with_tables, None, 0), None),
            (
                Prefer,
                memory(with_tables - 1, None, 0),
                Some(
                    "too little memory: its rows need 10.0 MiB, page tables and a reserve of 8.0 MiB included, and 10.0 MiB are \
                     available (here)",
                ),
            ),
            (Prefer, memory(0, None, 1), None),
            (Off, memory(9, None, 1), Some("9 bytes are available")),
            (
                Require,
                memory(GIB, None, 0),
                Some(
                    "its rows need 1 pages of 2 MiB, and the pools have too few: 0 of 10 pages of 2 MiB",
                ),
            ),
            (Require, memory(GIB, None, 0), Some("nr_hugepages=11`")),
            (Require, memory(0, None, 1), None),
            (Off, memory(GIB, Some(9), 0), Some("address space leaves 9")),
        ];
        for (pages, memory, fault) in cases {
            let outcome = memory.has_room(pages, "its rows", PAGE);
            match fault {
                None => assert_eq!(outcome, Ok(())),
                Some(part) => assert!(
                    outcome.as_ref().is_err_and(|e| e.contains(part)),
                    "{outcome:?}"
                ),
            }
        }
    }

    #[test]
    fn address_space_counts() {
        let mut memory = memory(u64::MAX, None, 0);
        let (needs, config) = (rows(GIB), config(""));
        let needed = GIB + config.limits.worker_bytes() + threads_bytes(1);
        assert!(memory.check(&config, 1, &needs).is_ok());
        memory.addresses = Some(needed - 1);
        let error = memory.check(&config, 1, &needs).unwrap_err().to_string();
        assert!(
            error.contains("too little memory") && error.contains("ulimit -v"),
            "{error}"
        );
        memory.addresses = Some(needed + 2 * GIB);
        assert!(memory.check(&config, 1, &needs).is_ok());
        let regions = memory.regions(&config, 1, &needs, true);
        assert_eq!(regions.unwrap().0, GIB);
    }

    #[test]
    fn regions_are_bounded_by_what_is_left() {
        let (gib, least) = (GIB, config(""));
        let taken = gib + gib / 512 + least.limits.worker_bytes() + process_bytes(1);
        let memory = |left: u64| memory(taken + left, None, 0);
        let total = |left, guarded| memory(left).regions(&least, 1, &rows(gib), guarded);
        let (all, choice) = total(2 * gib, true).unwrap();
        assert_eq!((all, choice.warning), (256 * gib, false));
        let (all, _) = total(gib / 4, true).unwrap();
        assert_eq!(all, 64 * gib, "what half of it is good for");
        let (all, choice) = total(2 * gib, false).unwrap();
        assert_eq!((all, choice.warning), (gib / 513 * 512, true));
        let error = total(4096, false).unwrap_err().to_string();
        assert!(error.contains("clients' regions need some"), "{error}");
        let set = config("[limits]\ntotal_region_bytes = 1073741824");
        for (guarded, left, good) in [
            (true, gib / 512, true),
            (true, gib / 513, false),
            (false, gib + gib / 256, true),
            (false, gib, false),
        ] {
            let outcome = memory(left).regions(&set, 1, &rows(gib), guarded);
            let outcome = outcome.map(|(all, _)| all).map_err(|e| e.to_string());
            match good {
                true => assert_eq!(outcome, Ok(gib)),
                false => assert!(
                    outcome
                        .unwrap_err()
                        .contains("limits.total_region_bytes is 1.0 GiB")
                ),
            }
        }
    }
}
