//! What is not a copy of a table's file is refused, by `--check` as by a start.

#[path = "support/program.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};

use rowmill_table::{TableSpec, generate, silent};
use support::{MODEST, Place, run};

const SPECS: [&str; 2] = ["f:2000:64:f32", "g:2000:64:f32"];
const FILE: &str = "00000.rows";

fn make(at: &Path, seed: u64) {
    let specs = SPECS.map(|spec| spec.parse::<TableSpec>().unwrap());
    generate(at, 1, &specs, seed, &silent).unwrap();
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
