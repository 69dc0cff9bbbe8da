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
    Needs::arena(bytes)
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
        ..Needs::default()
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
        let outcome = memory.has_room(pages, "its rows", &rows(PAGE));
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
