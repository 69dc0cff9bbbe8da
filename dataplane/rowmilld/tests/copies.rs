//! What is not a copy of a table's file is refused, by `--check` as by a start; what is one is read and counted as such.

#[path = "support/program.rs"]
mod support;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rowmill_cache::warm::{Warm, WarmTable};
use rowmill_table::{TableSpec, generate, silent};
use support::{MODEST, PATIENCE, Place, changed, page, ready, run};

const SPECS: [&str; 2] = ["f:2000:64:f32", "g:2000:64:f32"];
const FILE: &str = "00000.rows";

fn make(at: &Path, seed: u64) {
    make_generation(at, 1, seed);
}

fn make_generation(at: &Path, number: u64, seed: u64) {
    let specs = SPECS.map(|spec| spec.parse::<TableSpec>().unwrap());
    generate(at, number, &specs, seed, &silent).unwrap();
}

/// The configuration of a service whose table has a copy in `folder`.
fn configure(place: &Place, folder: &Path) -> PathBuf {
    let cache = format!(
        "[cache]\npage_cache = \"allow\"\nnext_tier = \"{}\"\n\
         [[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = 300000\non_failure = [\"next-tier\", \"error\"]\n",
        folder.display()
    );
    place.configure("", &(cache + MODEST))
}

#[test]
fn a_file_of_other_rows_is_told_of_before_they_are_asked_for() {
    let place = Place::new();
    let (model, other) = (place.path("model"), place.path("other"));
    fs::remove_dir_all(&model).unwrap();
    make(&model, 1);
    make(&other, 2);
    let config = place.configure(
        "",
        &format!(
            "[cache]\npage_cache = \"allow\"\n[[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = 300000\n{MODEST}"
        ),
    );
    let told = || {
        let (output, stderr) = run(&config, true);
        assert!(output.status.success(), "{stderr}");
        let all = String::from_utf8(output.stdout).unwrap() + &stderr;
        all.contains("file of f") && all.contains("don't match their checksums")
    };
    assert!(!told());
    // As large, and as good a file, of another model.
    fs::copy(other.join(FILE), model.join(FILE)).unwrap();
    assert!(told());
    let (_running, address) = ready(&config);
    let status = page(address, "/status").1;
    assert!(status.contains("file of f"), "{status}");
}

#[test]
fn what_is_no_copy_is_refused() {
    let place = Place::new();
    let model = place.path("model");
    fs::remove_dir_all(&model).unwrap();
    make(&model, 1);
    let other = place.path("other");
    make(&other, 2);
    let copy = place.path("copy");
    let config = configure(&place, &copy);
    let refused = |config: &Path, part: &str| {
        for check in [true, false] {
            let (output, stderr) = run(config, check);
            assert_eq!(output.status.code(), Some(1), "`{part}`: {stderr}");
            assert!(stderr.contains(part), "`{part}` is not in {stderr}");
            let about = "table f: cache.next_tier is to have a copy of its file";
            assert!(stderr.contains(about), "{stderr}");
        }
    };
    refused(&config, "No such file or directory");
    fs::create_dir_all(copy.join(FILE)).unwrap();
    refused(&config, "it is no regular file");
    fs::remove_dir(copy.join(FILE)).unwrap();
    fs::copy(model.join(FILE), copy.join(FILE)).unwrap();
    let (output, stderr) = run(&config, true);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains("reads of files: "), "{stdout}");
    let file = fs::File::options()
        .write(true)
        .open(copy.join(FILE))
        .unwrap();
    file.set_len(5000).unwrap();
    refused(&config, "it was not copied whole");
    refused(&configure(&place, &model), "the model's own file");
    refused(&configure(&place, &other), "of another model or generation");
    refused(
        &configure(&place, Path::new("/dev/null")),
        "Not a directory",
    );
}

/// Each generation has its copies in a folder of its name, where there is one.
#[test]
fn another_generation_has_copies_of_its_own() {
    let place = Place::new();
    let (model, copy) = (place.path("model"), place.path("copy"));
    fs::remove_dir_all(&model).unwrap();
    make(&model, 1);
    make_generation(&place.path("second"), 7, 2);
    fs::create_dir(&copy).unwrap();
    fs::copy(model.join(FILE), copy.join(FILE)).unwrap();
    let config = configure(&place, &copy);
    let text = fs::read_to_string(&config).unwrap() + "\nallow_changes = true\n";
    fs::write(&config, text).unwrap();
    let (_running, address) = ready(&config);
    let loaded = || changed(address, "/generations/load?number=7", "generation_changes");
    let (state, why) = loaded();
    assert!(
        state == "failed" && why.contains("of another model or generation"),
        "{why}"
    );
    fs::create_dir(copy.join("second")).unwrap();
    let (state, why) = loaded();
    assert!(
        state == "failed" && why.contains("No such file or directory"),
        "{why}"
    );
    fs::copy(
        place.path("second").join(FILE),
        copy.join("second").join(FILE),
    )
    .unwrap();
    let (state, why) = loaded();
    assert_eq!(state, "done", "{why}");
}

/// Writes over the second page of a file, which holds the first rows.
fn damage(file: &Path) {
    let file = fs::File::options().write(true).open(file).unwrap();
    file.write_all_at(&[9; 4096], 4096).unwrap();
}

#[test]
fn what_the_file_and_its_copy_give_is_counted_of_each() {
    let place = Place::new();
    let (model, copy, warm) = (place.path("model"), place.path("copy"), place.path("warm"));
    fs::remove_dir_all(&model).unwrap();
    make(&model, 1);
    fs::create_dir(&copy).unwrap();
    fs::copy(model.join(FILE), copy.join(FILE)).unwrap();
    // Rows that nobody has to ask for: those of the first page, and others.
    let table = |name: &str| WarmTable {
        name: name.into(),
        rows: (0..100).collect(),
    };
    let listed = Warm {
        generation: "m, generation 1".into(),
        tables: vec![table("f"), table("g")],
    };
    let cache = format!(
        "name = \"m\"\n[cache]\npage_cache = \"allow\"\nbudget_ms = 20000\nnext_tier = \"{}\"\nwarm_file = \"{}\"\n\
         [[tables]]\nname = \"f\"\nplacement = \"cached\"\ncache_bytes = 300000\non_failure = [\"next-tier\", \"error\"]\n\
         [[tables]]\nname = \"g\"\nplacement = \"cached\"\ncache_bytes = 300000\n",
        copy.display(),
        warm.display()
    );
    let config = place.configure("", &(cache + MODEST));
    let count = |metrics: &str, name: &str, labels: &str| -> u64 {
        let start = format!("rowmill_{name}{{{labels}}} ");
        let mut lines = metrics.lines();
        let found = lines.find_map(|line| line.strip_prefix(&start));
        found
            .unwrap_or_else(|| panic!("no {start}in {metrics}"))
            .parse()
            .unwrap()
    };
    let own = model.join(FILE);
    for (is_copy_damaged, came) in [(false, 100), (true, 84)] {
        damage(&own);
        if is_copy_damaged {
            damage(&copy.join(FILE));
        }
        listed.write(&warm).unwrap();
        let (mut running, address) = ready(&config);
        let until = Instant::now() + PATIENCE;
        let metrics = loop {
            let metrics = page(address, "/metrics").1;
            let arrived = |table: &str| {
                let labels = format!("table=\"{table}\"");
                let ended = ["arrived", "corrupt"].iter();
                let ended =
                    ended.map(|what| count(&metrics, &format!("cache_{what}_total"), &labels));
                ended.sum::<u64>()
            };
            if arrived("f") + arrived("g") == 200 {
                break metrics;
            }
            assert!(Instant::now() < until, "{metrics}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let of = |name: &str, labels: &str| count(&metrics, name, labels);
        let of_tier = |table: &str, tier: &str| {
            let labels = format!("table=\"{table}\",tier=\"{tier}\"");
            let counts = ["fetched", "arrived", "late", "corrupt"];
            let counts = counts.map(|what| of(&format!("tier_{what}_total"), &labels));
            assert_eq!(of("fetch_seconds_count", &labels), counts[1], "{metrics}");
            counts
        };
        assert_eq!(of_tier("f", "file"), [100, 84, 0, 16]);
        assert_eq!(of_tier("f", "copy"), [16, came - 84, 0, 100 - came]);
        assert_eq!(of_tier("g", "file"), [100, 100, 0, 0]);
        assert!(!metrics.contains("table=\"g\",tier=\"copy\""), "{metrics}");
        assert_eq!(of("cache_arrived_total", "table=\"f\""), came);
        assert_eq!(of("cache_corrupt_total", "table=\"f\""), 100 - came);
        let reads =
            ["file", "copy"].map(|tier| of("tier_reads_total", &format!("tier=\"{tier}\"")));
        assert!(0 < reads[1] && reads[1] < reads[0], "{reads:?}");
        running.wait_for(&format!(
            "table f: {} has pages that don't match",
            own.display()
        ));
        if is_copy_damaged {
            running.wait_for(&format!(
                "table f: its copy {} has pages",
                copy.join(FILE).display()
            ));
        }
    }
}
