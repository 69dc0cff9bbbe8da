//! Rows of a cached table are there again after a restart, and nothing that happens to the list of them keeps the service from
//! serving.

#[path = "support/looking.rs"]
mod looking;
#[path = "support/program.rs"]
mod support;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use rowmill_cache::warm::{Warm, WarmTable};
use rowmill_table::{RowFormat, TableKind, TableSpec, generate, silent};
use rustix::process::Signal;
use serde_json::Value;

use looking::{look_up, status, wait_until};
use support::{MODEST, Place, changed, page, ready};

/// The configuration of a service that has room for 600 of 1000 rows, and a list of them in `file`.
fn configure(place: &Place, model: &str, file: &Path) -> PathBuf {
    let cache = format!(
        "[cache]\npage_cache = \"allow\"\nbudget_ms = 20000\nwarm_every_s = 1\nwarm_file = \"{}\"\n\
         [[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = 42000\n",
        file.display()
    );
    place.configure(model, &(cache + MODEST))
}

/// Waits until the list is through, and more rows than so many have come: those that it asked for last take as long as the disk likes.
fn until_loaded(address: SocketAddr, rows: u64) {
    wait_until(address, "rows", |status| {
        let held = status["cache"][0]["held_rows"].as_u64();
        status["warm"]["loading"] == false && held > Some(rows)
    });
}

#[test]
fn rows_are_there_again_after_the_end_and_after_a_kill() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "", &file);
    let first: Vec<u32> = (0..300).collect();
    let (mut running, address) = ready(&config);
    assert!(
        running.log.contains("was not there; it is kept"),
        "{}",
        running.log
    );
    assert_eq!(look_up(&place, address, &first), 0);
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));

    let (mut running, address) = ready(&config);
    until_loaded(address, 270);
    let hits = look_up(&place, address, &first);
    assert!(hits > 270, "{hits} of 300 after the end");
    let others: Vec<u32> = (300..450).collect();
    look_up(&place, address, &others);
    wait_until(address, "list of them all", |status| {
        status["warm"]["rows"].as_u64() > Some(420)
    });
    running.signal(Signal::KILL);
    assert_eq!(running.code(), None);

    let (running, address) = ready(&config);
    until_loaded(address, 420);
    let all = [first, others].concat();
    let hits = look_up(&place, address, &all);
    assert!(hits > 420, "{hits} of 450 after a kill");
    drop(running);
}

#[test]
fn rows_that_were_used_more_come_first_after_any_number_of_starts() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "", &file);
    let (mut running, address) = ready(&config);
    look_up(&place, address, &(0..400).collect::<Vec<u32>>());
    let often = 300..400;
    for _ in 0..12 {
        look_up(&place, address, &often.clone().collect::<Vec<u32>>());
    }
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    for start in 0..3 {
        let rows = Warm::read(&file).unwrap().unwrap().tables.remove(0).rows;
        let first = rows[..100].iter().filter(|&row| often.contains(row));
        let first = first.count();
        assert!(first > 90, "{first} of 100 before start {start}");
        let (mut running, address) = ready(&config);
        until_loaded(address, 360);
        running.signal(Signal::TERM);
        assert_eq!(running.code(), Some(0));
    }
}

/// A worker begins to fetch some rows at a time, fewer than a page has.
#[test]
fn rows_of_neighbouring_pages_are_read_together() {
    let place = Place::new();
    let config = configure(&place, "", &place.path("warm"));
    let (_running, address) = ready(&config);
    look_up(&place, address, &(0..1000).collect::<Vec<u32>>());
    let tier = &status(address)["tiers"][0];
    let count = |name: &str| tier[name].as_u64().unwrap() as f64;
    let bytes = count("read_bytes") / count("reads");
    assert!(bytes > 6500.0, "{bytes} bytes a read: {tier}");
}

/// Rows fall into other sets at each start, and some of a full cache's find no slot.
#[test]
fn a_list_stays_whole_however_often_nobody_asks_for_anything() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "", &file);
    let (mut running, address) = ready(&config);
    let is_full = || status(address)["cache"][0]["held_rows"].as_u64() > Some(560);
    // A disk that is slow for a while keeps some of them out.
    for _ in 0..20 {
        look_up(&place, address, &(0..1000).collect::<Vec<u32>>());
        if is_full() {
            break;
        }
    }
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    let listed = || {
        let mut rows = Warm::read(&file).unwrap().unwrap().tables.remove(0).rows;
        rows.sort_unstable();
        rows
    };
    let before = listed();
    assert!(before.len() > 550, "{} of 600", before.len());
    for start in 0..4 {
        let (mut running, address) = ready(&config);
        wait_until(address, "list written again", |status| {
            status["warm"]["loading"] == false && status["warm"]["written"].as_u64() > Some(1)
        });
        running.signal(Signal::KILL);
        assert_eq!(running.code(), None);
        assert_eq!(listed(), before, "after start {start}");
    }
}

#[test]
fn what_is_put_in_a_lists_place_is_left_as_it_is() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "", &file);
    let (mut running, address) = ready(&config);
    look_up(&place, address, &[1, 2, 3]);
    let is_failing = |is: bool| move |status: &Value| status["warm"]["failing"] == is;
    wait_until(address, "list", |status| {
        status["warm"]["written"].as_u64() > Some(0)
    });
    // At once: half of it might be taken for a list that was cut off.
    fs::write(place.path("other"), "somebody's").unwrap();
    fs::rename(place.path("other"), &file).unwrap();
    running.wait_for("is no list of warm rows any more, and is left as it is: move it away");
    wait_until(address, "failure", is_failing(true));
    assert_eq!(fs::read(&file).unwrap(), b"somebody's");
    fs::rename(&file, place.path("moved")).unwrap();
    wait_until(address, "list again", is_failing(false));
    assert!(Warm::read(&file).unwrap().is_some());
}

#[test]
fn one_service_keeps_a_list() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "", &file);
    let (mut running, _) = ready(&config);
    // Another one, with an endpoint of its own.
    let other = Place::new();
    let config_of_other = configure(&other, "", &file);
    let why = format!("{} is kept by another rowmilld", file.display());
    let (output, said) = support::run(&config_of_other, true);
    assert!(!output.status.success() && said.contains(&why), "{said}");
    let mut refused = support::Running::start(&config_of_other);
    let said = refused.wait_for(&why);
    assert!(said.contains("name another file"), "{said}");
    assert_eq!(refused.code(), Some(1));
    running.signal(Signal::KILL);
    assert_eq!(running.code(), None);
    let (output, said) = support::run(&config_of_other, true);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let (_running, _) = ready(&config_of_other);
}

#[test]
fn lists_that_do_not_fit_are_left_out() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "name = \"m\"", &file);
    let table = |name: &str, rows: &[u32]| WarmTable {
        name: name.into(),
        rows: rows.into(),
    };
    let warm = |generation: &str| Warm {
        generation: generation.into(),
        tables: vec![table("gone", &[1]), table("f", &[7, 8, 1000, u32::MAX])],
    };
    // Rows and tables that are not there any more.
    warm("m, generation 1").write(&file).unwrap();
    let (mut running, address) = ready(&config);
    assert!(running.log.contains("2 of f"), "{}", running.log);
    assert!(running.log.contains("; 3 others"), "{}", running.log);
    wait_until(address, "rows", |status| {
        status["cache"][0]["held_rows"] == 2
    });
    assert_eq!(look_up(&place, address, &[7, 8, 9]), 2);
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    let mut rows = Warm::read(&file).unwrap().unwrap().tables.remove(0).rows;
    rows.sort_unstable();
    assert_eq!(rows, [7, 8, 9]);

    // Another generation's, and damaged ones: a warning, and they are replaced.
    let mut damaged = warm("m, generation 1").encode();
    *damaged.last_mut().unwrap() ^= 1;
    let cases = [
        (warm("m, generation 2").encode(), "is of m, generation 2"),
        (damaged, "its checksum does not match"),
        // What a crash of the machine may leave.
        (vec![0; 5000], "its checksum does not match"),
    ];
    for (bytes, part) in cases {
        std::fs::write(&file, &bytes).unwrap();
        // It stays while there is nothing to list: a service that was started by mistake loses none.
        let (mut running, _) = ready(&config);
        running.signal(Signal::TERM);
        assert_eq!(running.code(), Some(0));
        assert_eq!(std::fs::read(&file).unwrap(), bytes);
        let (mut running, address) = ready(&config);
        assert!(running.log.contains(part), "{}", running.log);
        assert_eq!(look_up(&place, address, &[7, 8]), 0);
        running.signal(Signal::TERM);
        assert_eq!(running.code(), Some(0));
        let replaced = Warm::read(&file).unwrap().unwrap();
        assert_eq!(replaced.generation, "m, generation 1");
    }

    // What is no list at all is somebody else's.
    std::fs::write(&file, "somebody's letters").unwrap();
    let (mut running, address) = ready(&config);
    assert!(running.log.contains("is left as it is"), "{}", running.log);
    let why = status(address)["warm"]["off"].to_string();
    assert!(why.contains("is no list of warm rows"), "{why}");
    let (_, metrics) = page(address, "/metrics");
    for part in ["rowmill_warm_off 1", "rowmill_warm_written_total 0"] {
        assert!(metrics.contains(&format!("\n{part}\n")), "{metrics}");
    }
    assert_eq!(look_up(&place, address, &[7, 8]), 0);
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    assert_eq!(std::fs::read(&file).unwrap(), b"somebody's letters");
}

#[test]
fn a_folder_that_is_not_there_is_said_once_and_made_use_of_later() {
    let place = Place::new();
    let file = place.path("folder").join("warm");
    let (mut running, address) = ready(&configure(&place, "", &file));
    look_up(&place, address, &[1, 2, 3]);
    running.wait_for("can't be written");
    wait_until(address, "failures", |status| {
        status["warm"]["failures"].as_u64() > Some(1)
    });
    let (_, metrics) = page(address, "/metrics");
    assert!(
        metrics.contains("\nrowmill_warm_written_total 0\n"),
        "{metrics}"
    );
    assert_eq!(page(address, "/healthz").0, 200);
    std::fs::create_dir(place.path("folder")).unwrap();
    running.wait_for("is written again");
    assert_eq!(running.log.matches("can't be written").count(), 1);
    assert_eq!(Warm::read(&file).unwrap().unwrap().tables[0].rows.len(), 3);
}

/// A file system of 32 KiB; taken away when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None` where this process may not mount one.
    fn mount(at: PathBuf) -> Option<SmallDisk> {
        std::fs::create_dir(&at).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=32k", "tmpfs"]);
        let mounted = mount.arg(&at).output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        is_mounted.then_some(SmallDisk(at))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_leaves_the_list_as_it_was() {
    let place = Place::new();
    let Some(disk) = SmallDisk::mount(place.path("disk")) else {
        eprintln!("skipped: mounting a small file system is not allowed here");
        return;
    };
    let file = disk.0.join("warm");
    let (mut running, address) = ready(&configure(&place, "", &file));
    look_up(&place, address, &[1, 2, 3]);
    wait_until(address, "list", |status| status["warm"]["rows"] == 3);
    let filler = disk.0.join("filler");
    std::fs::write(&filler, vec![1; 64 << 10]).unwrap_err();
    running.wait_for("can't be written");
    look_up(&place, address, &[4, 5]);
    let status = status(address);
    let failures = status["warm"]["failures"].as_u64();
    wait_until(address, "failure", |status| {
        status["warm"]["failures"].as_u64() > failures
    });
    assert_eq!(Warm::read(&file).unwrap().unwrap().tables[0].rows.len(), 3);
    std::fs::remove_file(filler).unwrap();
    running.wait_for("is written again");
    assert_eq!(Warm::read(&file).unwrap().unwrap().tables[0].rows.len(), 5);
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
    drop(disk);
}

#[test]
fn a_list_that_may_not_grow_is_told_and_counted() {
    let place = Place::new();
    let file = place.path("warm");
    let (mut running, address) = ready(&configure(&place, "", &file));
    look_up(&place, address, &[1, 2, 3]);
    wait_until(address, "list", |status| status["warm"]["rows"] == 3);
    // Less than it has.
    running.limit_files(Some(32));
    let said = running.wait_for("can't be written");
    assert!(said.contains("File too large"), "{said}");
    assert!(said.contains("`ulimit -f`"), "{said}");
    assert!(status(address)["warm"]["failures"].as_u64() > Some(0));
    assert_eq!(Warm::read(&file).unwrap().unwrap().tables[0].rows.len(), 3);
    running.limit_files(None);
    running.wait_for("is written again");
    running.signal(Signal::TERM);
    assert_eq!(running.code(), Some(0));
}

#[test]
fn where_no_list_can_be_written_check_says_so() {
    let place = Place::new();
    for file in ["/proc/warm".into(), place.path("none").join("warm")] {
        let (output, stderr) = support::run(&configure(&place, "", &file), true);
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(0), "{stderr}");
        let folder = file.parent().unwrap().display();
        let part = format!("cache.warm_file: no list can be written in {folder}");
        assert!(said.contains("warm rows: none (warning)"), "{said}");
        assert!(said.contains(&part), "{said}");
    }
}

#[test]
fn the_rows_of_a_table_that_is_resident_for_a_while_stay_listed() {
    let place = Place::new();
    let file = place.path("warm");
    let config = configure(&place, "", &file);
    let text = std::fs::read_to_string(&config).unwrap() + "\nallow_changes = true\n";
    std::fs::write(&config, text).unwrap();
    let rows: Vec<u32> = (0..300).collect();
    let is_listed = || {
        let warm = Warm::read(&file).unwrap().unwrap();
        warm.tables
            .iter()
            .map(|table| table.rows.len())
            .sum::<usize>()
            > 270
    };
    let written = |address| {
        let so_far = status(address)["warm"]["written"].as_u64().unwrap();
        wait_until(address, "list", |status| {
            status["warm"]["written"].as_u64().unwrap() > so_far + 1
        });
    };
    let (mut running, address) = ready(&config);
    look_up(&place, address, &rows);
    let moved = |address, to: &str| {
        let (state, detail) = changed(address, &format!("/tables/f?placement={to}"), "changes");
        assert_eq!(state, "done", "{detail}");
    };
    moved(address, "resident");
    written(address);
    assert!(is_listed());
    // Cached again, they come by themselves.
    moved(address, "cached");
    wait_until(address, "rows", |status| {
        status["cache"][0]["held_rows"].as_u64() > Some(270)
    });
    assert!(look_up(&place, address, &rows) > 270);
    moved(address, "resident");
    written(address);
    running.signal(Signal::KILL);
    assert_eq!(running.code(), None);
    assert!(is_listed());
    let (_running, address) = ready(&config);
    until_loaded(address, 270);
    assert!(look_up(&place, address, &rows) > 270);
}

#[test]
fn tables_that_are_cached_again_at_a_time_are_all_loaded_and_stay_listed() {
    /// Enough that loading them takes a while, four at a time.
    const ROWS: u32 = 40_000;
    let place = Place::new();
    let spec = |name: &str| TableSpec {
        name: name.into(),
        rows: ROWS.into(),
        dim: 16,
        format: RowFormat::F32,
        kind: TableKind::Dense,
    };
    let model = place.path("model");
    std::fs::remove_dir_all(&model).unwrap();
    generate(&model, 1, &["a", "b"].map(spec), 1, &silent).unwrap();
    let listed = |name: &str| WarmTable {
        name: name.into(),
        rows: (0..ROWS).collect(),
    };
    let file = place.path("warm");
    let warm = Warm {
        generation: "m, generation 1".into(),
        tables: ["a", "b"].map(listed).into(),
    };
    warm.write(&file).unwrap();
    let table = |name: &str| {
        // A little more than all rows take.
        format!("[[tables]]\nname = \"{name}\"\nplacement = \"cached\"\ncache_bytes = 4000000\n")
    };
    let more = format!(
        "[cache]\npage_cache = \"allow\"\nprefetched_rows = 4\nwarm_every_s = 1\nwarm_file = \"{}\"\n{}{}{MODEST}\nallow_changes = true\n",
        file.display(),
        table("a"),
        table("b")
    );
    let config = place.configure("name = \"m\"", &more);
    let moved = |address, table: &str, to: &str| {
        let path = format!("/tables/{table}?placement={to}");
        let (state, detail) = changed(address, &path, "changes");
        assert_eq!(state, "done", "{detail}");
    };
    // Nearly all: some sets are full before others.
    let most = u64::from(ROWS) * 9 / 10;
    let held = |status: &Value, at: usize| status["cache"][at]["held_rows"].as_u64().unwrap();
    let is_loading = |status: &Value| status["warm"]["loading"] == true;
    let all_there = |address| {
        let status = wait_until(address, "rows", |status| !is_loading(status));
        for table in [0, 1] {
            let held = held(&status, table);
            assert!(held > most, "{held} rows of table {table}: {status:#}");
        }
        let written = status["warm"]["written"].as_u64().unwrap();
        // The one under way may have been begun before.
        let status = wait_until(address, "list", |status| {
            status["warm"]["written"].as_u64().unwrap() > written + 1
        });
        let rows = status["warm"]["rows"].as_u64();
        assert!(rows > Some(2 * most), "{rows:?} rows are listed");
    };

    // One is resident for a while, in which the file's rows are loaded.
    let (_running, address) = ready(&config);
    moved(address, "b", "resident");
    moved(address, "b", "cached");
    let status = status(address);
    assert!(is_loading(&status) && held(&status, 0) < most, "{status:#}");
    all_there(address);

    // Both are, and the second comes back when the first is not loaded yet.
    for table in ["a", "b"] {
        moved(address, table, "resident");
    }
    let status = looking::status(address);
    assert!(!is_loading(&status), "{status:#}");
    for table in ["a", "b"] {
        moved(address, table, "cached");
    }
    let status = looking::status(address);
    assert!(is_loading(&status) && held(&status, 0) < most, "{status:#}");
    all_there(address);
}

/// A restart serves the generation that is configured, and the one that was served before comes a moment later.
#[test]
fn the_rows_of_a_generation_that_is_loaded_after_a_restart_are_there_again() {
    let place = Place::new();
    let file = place.path("warm");
    let spec = |name: &str, format| TableSpec {
        name: name.into(),
        rows: 1000,
        dim: 16,
        format,
        kind: TableKind::Dense,
    };
    let specs = [spec("f", RowFormat::F32), spec("q", RowFormat::Int8)];
    generate(place.path("two"), 2, &specs, 1, &silent).unwrap();
    let config = configure(&place, "", &file);
    let text = std::fs::read_to_string(&config).unwrap() + "\nallow_changes = true\n";
    std::fs::write(&config, text).unwrap();
    let change = |address, what: &str| {
        let path = format!("/generations/{what}");
        let (state, detail) = changed(address, &path, "generation_changes");
        assert_eq!(state, "done", "{detail}");
        detail
    };
    let rows: Vec<u32> = (0..300).collect();
    let (mut running, address) = ready(&config);
    change(address, "load?directory=two");
    change(address, "activate?number=2");
    look_up(&place, address, &rows);
    wait_until(address, "list", |status| {
        status["warm"]["rows"].as_u64() > Some(270)
    });
    running.signal(Signal::KILL);
    assert_eq!(running.code(), None);

    let (running, address) = ready(&config);
    let said = "they are loaded if that generation is";
    assert!(running.log.contains(said), "{}", running.log);
    // What is wanted of the generation that is served meanwhile comes behind.
    look_up(&place, address, &[997, 998, 999]);
    let detail = change(address, "load?directory=two");
    assert!(detail.contains("rows that are or were hot"), "{detail}");
    change(address, "activate?number=2");
    let held = status(address)["cache"][0]["held_rows"].as_u64();
    assert!(held > Some(273), "{held:?}");
    let asked = [&rows[..], &[997, 998, 999]].concat();
    assert!(look_up(&place, address, &asked) > 273);
}
