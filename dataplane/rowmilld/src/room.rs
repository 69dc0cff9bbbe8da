//! Whether the memory is enough: for rows, for requests, and for what clients register.

use rowmill_arena::{HugePages, address_space_left, available_bytes};

use crate::config::Config;
use crate::plan::{Choice, PlanError, bytes_text};

/// Fewer bytes of regions than this are no service.
const REGIONS_LEAST: u64 = 1 << 20;

/// Address space of the threads: a stack of 2 MiB each, guard page and first allocations included, for
/// the workers and the dozen others.
fn threads_bytes(workers: usize) -> u64 {
    (workers as u64 + 12) * (4 << 20)
}

/// What memory there is.
pub(crate) struct Memory {
    available: u64,
    limited_by: String,
    /// What `RLIMIT_AS` leaves.
    addresses: Option<u64>,
    /// Free bytes of the reserved pools, each page size for itself.
    pools: Vec<u64>,
}

impl Memory {
    /// As it is now.
    pub(crate) fn now() -> Memory {
        let (available, limited_by) = available_bytes();
        let pool = |kib: u64| {
            let read = |name: &str| -> Option<u64> {
                let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/{name}");
                std::fs::read_to_string(path).ok()?.trim().parse().ok()
            };
            let free = read("free_hugepages")?.saturating_sub(read("resv_hugepages")?);
            Some(free * kib * 1024)
        };
        Memory {
            available,
            limited_by,
            addresses: address_space_left(),
            pools: [2048, 1 << 20].into_iter().filter_map(pool).collect(),
        }
    }

    /// Whether rows fit a reserved pool and may lie there.
    fn is_reserved(&self, huge_pages: HugePages, rows: u64) -> bool {
        huge_pages != HugePages::Off && self.pools.iter().any(|&free| free >= rows)
    }

    /// Whether there is room for some more.
    ///
    /// # Errors
    /// A sentence that says what is short.
    pub(crate) fn has_room(
        &self,
        huge_pages: HugePages,
        what: &str,
        bytes: u64,
    ) -> Result<(), String> {
        let wanted = bytes_text(bytes);
        if !self.is_reserved(huge_pages, bytes) {
            if huge_pages == HugePages::Require {
                return Err(format!(
                    "model.huge_pages = \"require\": {wanted} of one pool are needed for {what}; add pages with \
                     `sysctl vm.nr_hugepages=N` (2 MiB each)"
                ));
            }
            if bytes > self.available {
                return Err(format!(
                    "too little memory: {wanted} are needed for {what}, and {} are available ({}); free memory, or \
                     make another table cached first",
                    bytes_text(self.available),
                    self.limited_by
                ));
            }
        }
        match self.addresses {
            Some(left) if bytes > left => Err(format!(
                "too little memory: {wanted} are needed for {what}, and the limit of address space leaves {}; \
                 raise it (`ulimit -v`, LimitAS of systemd)",
                bytes_text(left)
            )),
            _ => Ok(()),
        }
    }

    /// Whether rows and requests fit.
    ///
    /// # Errors
    /// [`PlanError::Memory`] where they don't.
    pub(crate) fn check(
        &self,
        config: &Config,
        workers: usize,
        rows: u64,
    ) -> Result<Choice, PlanError> {
        let wanted = config.model.huge_pages;
        let requests = config.worker_bytes() * workers as u64;
        let reserved = self.is_reserved(wanted, rows);
        if wanted == HugePages::Require && !reserved {
            let pools: Vec<String> = self.pools.iter().map(|&free| bytes_text(free)).collect();
            return Err(PlanError::Memory(format!(
                "model.huge_pages = \"require\": the rows need {}, and the pools have {}; add pages with \
                 `sysctl vm.nr_hugepages=N` (2 MiB each), or write \"prefer\"",
                bytes_text(rows),
                pools.join(" and ")
            )));
        }
        let needed = requests + if reserved { 0 } else { rows };
        if needed > self.available {
            return Err(PlanError::Memory(format!(
                "too little memory: {} of rows and {} for requests in progress are needed, and {} are \
                 available ({}); serve a smaller generation, lower limits.slots or tables.cache_bytes, or free memory",
                bytes_text(rows),
                bytes_text(requests),
                bytes_text(self.available),
                self.limited_by
            )));
        }
        let others = threads_bytes(workers);
        if let Some(left) = self
            .addresses
            .filter(|&left| rows + requests + others > left)
        {
            return Err(PlanError::Memory(format!(
                "too little memory: {} of rows, {} for requests in progress and {} for threads are needed, \
                 and the limit of address space leaves {}; raise it (`ulimit -v`, LimitAS of systemd), or \
                 serve a smaller generation",
                bytes_text(rows),
                bytes_text(requests),
                bytes_text(others),
                bytes_text(left)
            )));
        }
        let chosen = format!(
            "{} of rows, {} for requests",
            bytes_text(rows),
            bytes_text(requests)
        );
        let why = format!(
            "model.huge_pages = \"{wanted}\", {}; {} are available ({})",
            if reserved {
                "a reserved pool is large enough"
            } else {
                "no reserved pool is used"
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
        rows: u64,
        guarded: bool,
    ) -> Result<(u64, Choice), PlanError> {
        let limits = &config.limits;
        let requests = config.worker_bytes() * workers as u64;
        let taken = requests
            + if self.is_reserved(config.model.huge_pages, rows) {
                0
            } else {
                rows
            };
        let left = self.available.saturating_sub(taken);
        let others = rows + requests + threads_bytes(workers);
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

    use super::*;

    fn config(more: &str) -> Config {
        let text = format!("[model]\ndirectory = \"/m\"\n{more}");
        Config::parse(&text, Path::new("r.toml")).unwrap()
    }

    #[test]
    fn memory_is_compared_with_what_is_needed() {
        let memory = |available, pool| Memory {
            available,
            limited_by: "here".into(),
            addresses: None,
            pools: vec![pool],
        };
        let (gib, requests) = (1 << 30, config("").limits.worker_bytes());
        let cases = [
            ("prefer", gib + requests, 0, None),
            (
                "prefer",
                gib + requests - 1,
                0,
                Some("too little memory: 1.0 GiB of rows"),
            ),
            ("prefer", requests, gib, None),
            ("off", requests, gib, Some("too little memory")),
            ("require", requests, gib, None),
            (
                "require",
                4 * gib,
                gib - 1,
                Some("model.huge_pages = \"require\""),
            ),
        ];
        for (pages, available, pool, fault) in cases {
            let config = config(&format!("huge_pages = \"{pages}\""));
            let outcome = memory(available, pool)
                .check(&config, 1, gib)
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
    fn what_comes_later_is_compared_with_what_is_left() {
        let memory = |available, addresses, pool| Memory {
            available,
            limited_by: "here".into(),
            addresses,
            pools: vec![pool],
        };
        use HugePages::{Off, Prefer, Require};
        let cases = [
            (Prefer, memory(10, None, 0), None),
            (
                Prefer,
                memory(9, None, 0),
                Some("9 bytes are available (here)"),
            ),
            (Prefer, memory(9, None, 10), None),
            (Off, memory(9, None, 10), Some("too little memory")),
            (Require, memory(99, None, 9), Some("10 bytes of one pool")),
            (Require, memory(0, None, 10), None),
            (Off, memory(99, Some(9), 0), Some("address space leaves 9")),
        ];
        for (pages, memory, fault) in cases {
            let outcome = memory.has_room(pages, "it", 10);
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
        let mut memory = Memory {
            available: u64::MAX,
            limited_by: "here".into(),
            addresses: None,
            pools: Vec::new(),
        };
        let (gib, config) = (1 << 30, config(""));
        let needed = gib + config.limits.worker_bytes() + threads_bytes(1);
        assert!(memory.check(&config, 1, gib).is_ok());
        memory.addresses = Some(needed - 1);
        let error = memory.check(&config, 1, gib).unwrap_err().to_string();
        assert!(
            error.contains("too little memory") && error.contains("ulimit -v"),
            "{error}"
        );
        memory.addresses = Some(needed + 2 * gib);
        assert!(memory.check(&config, 1, gib).is_ok());
        assert_eq!(memory.regions(&config, 1, gib, true).unwrap().0, gib);
    }

    #[test]
    fn regions_are_bounded_by_what_is_left() {
        let (gib, least) = (1u64 << 30, config(""));
        let memory = |left: u64| Memory {
            available: gib + least.limits.worker_bytes() + left,
            limited_by: "here".into(),
            addresses: None,
            pools: Vec::new(),
        };
        let total = |left, guarded| memory(left).regions(&least, 1, gib, guarded);
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
            let outcome = memory(left).regions(&set, 1, gib, guarded);
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
