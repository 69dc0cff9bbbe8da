//! The state after a kill at each write, after power went, after damage, and after real kills.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use rowmill_state::disk::{Disk, Done, made};
use rowmill_state::{Change, Record, State, StateError};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Share {
    slots: u64,
    table: String,
}

impl Record for Share {
    const KIND: &'static str = "share";
    const VERSION: u32 = 1;
}

/// All that is there.
type Contents = Vec<(String, Share)>;

/// Change number `n`: three records that have to agree, and one that comes and goes.
fn change(n: u64) -> Change {
    let mut change = Change::new();
    for key in ["first", "second", "third"] {
        let share = Share {
            slots: n,
            // Larger and larger, so that the file grows.
            table: key.repeat(1 + 40 * n as usize),
        };
        change.put(key, &share);
    }
    if n.is_multiple_of(2) {
        change.put(
            "sometimes",
            &Share {
                slots: n,
                table: String::new(),
            },
        );
    } else {
        change.remove::<Share>("sometimes");
    }
    change
}

/// What is there after change `n`; after none nothing.
fn expected(n: u64) -> Contents {
    if n == 0 {
        return Vec::new();
    }
    let share = |key: &str| Share {
        slots: n,
        table: key.repeat(1 + 40 * n as usize),
    };
    let mut contents: Contents = ["first", "second", "third"]
        .map(|key| (key.to_owned(), share(key)))
        .into();
    if n.is_multiple_of(2) {
        let sometimes = Share {
            slots: n,
            table: String::new(),
        };
        contents.insert(2, ("sometimes".into(), sometimes));
    }
    contents
}

/// What a run was told to be done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Told {
    epoch: u64,
    changes: u64,
}

const CHANGES: u64 = 5;

/// Two starts on a disk, with some changes each, until it ends. Returns what was told, and whether all went well.
fn run(disk: &Disk) -> (Told, bool) {
    let mut told = Told::default();
    for start in 1..=2 {
        let Ok(mut state) = State::open_backend(Path::new("disk"), disk.clone()) else {
            return (told, false);
        };
        told.epoch = start;
        for _ in 0..CHANGES {
            if state.change(change(told.changes + 1)).is_err() {
                return (told, false);
            }
            told.changes += 1;
        }
    }
    (told, true)
}

/// What is there has to be what was told to be done, or one step more.
fn assert_holds(told: Told, bytes: Vec<u8>, what: &str) {
    let disk = Disk::of(bytes, None);
    let state = State::open_backend(Path::new("disk"), disk)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    // This start's own, behind those that were told of and perhaps one that was not.
    assert!(
        [1, 2].contains(&(state.epoch() - told.epoch)),
        "{what}: epoch {} after {told:?}",
        state.epoch()
    );
    let found: Contents = state.all().unwrap();
    let may_be = [told.changes, told.changes + 1].map(expected);
    assert!(may_be.contains(&found), "{what}: {found:?} after {told:?}");
}

#[test]
fn whichever_write_is_the_last_all_that_was_told_is_there() {
    let whole = Disk::of(made(), None);
    let (told, went_well) = run(&whole);
    assert!(
        went_well
            && told
                == Told {
                    epoch: 2,
                    changes: 2 * CHANGES
                }
    );
    let operations = whole.image().operations;
    assert!(operations > 50, "{operations} operations");
    for end in 0..operations {
        let disk = Disk::of(made(), Some(end));
        let (told, went_well) = run(&disk);
        // The last ones are those of closing the file.
        assert!(!went_well || told.changes == 2 * CHANGES);
        let image = disk.image().clone();
        assert_holds(told, image.now.clone(), &format!("killed at {end}"));
        assert_holds(
            told,
            image.synced.clone(),
            &format!("no power at {end}, nothing written"),
        );
        for (number, done) in image.since.iter().enumerate() {
            let mut bytes = image.synced.clone();
            done.to(&mut bytes);
            assert_holds(
                told,
                bytes,
                &format!("no power at {end}, only {number} written"),
            );
        }
        if let Some(Done::Write(offset, data)) = &image.last {
            for torn in (512..data.len()).step_by(512) {
                let mut bytes = image.now.clone();
                Done::Write(*offset, data[..torn].to_vec()).to(&mut bytes);
                assert_holds(told, bytes, &format!("torn at {torn} of {end}"));
            }
        }
    }
}

#[test]
fn a_start_after_a_kill_can_be_killed_too() {
    let whole = Disk::of(made(), None);
    run(&whole);
    let operations = whole.image().operations;
    for end in (0..operations).step_by(7) {
        let disk = Disk::of(made(), Some(end));
        let (told, _) = run(&disk);
        let left = disk.image().now.clone();
        for again in 0.. {
            let disk = Disk::of(left.clone(), Some(again));
            let opened = State::open_backend(Path::new("disk"), disk.clone());
            let is_done = opened.is_ok();
            drop(opened);
            let bytes = disk.image().now.clone();
            let least = Told {
                epoch: told.epoch + u64::from(is_done),
                ..told
            };
            assert_holds(
                least,
                bytes,
                &format!("killed at {end}, and then at {again}"),
            );
            if is_done {
                break;
            }
        }
    }
}

/// A file with some changes.
fn kept(folder: &Path, changes: u64) -> std::path::PathBuf {
    let path = folder.join("state");
    let mut state = State::open(&path).unwrap();
    (1..=changes).for_each(|n| state.change(change(n)).unwrap());
    path
}

#[test]
fn damage_is_found_and_set_aside_with_the_file_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = kept(folder.path(), 6);
    let whole = std::fs::read(&path).unwrap();
    let mut found = 0;
    for at in (0..whole.len()).step_by(whole.len() / 150) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        std::fs::write(&path, &bytes).unwrap();
        match State::open(&path) {
            // In a part that holds nothing.
            Ok(state) => assert_eq!(state.all::<Share>().unwrap(), expected(6), "byte {at}"),
            Err(StateError::Damaged { .. } | StateError::Format { .. }) => found += 1,
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(found > 0, "some damage is found");
    for length in [1, 100, 4096, 5000, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..length]).unwrap();
        let error = State::open(&path).unwrap_err();
        assert!(
            matches!(error, StateError::Damaged { .. }),
            "{length} bytes: {error}"
        );
    }
    // It begins anew beside what is left of the old one, as often as need be.
    for number in 1..=2 {
        std::fs::write(&path, b"this was never a state").unwrap();
        let (state, aside) = State::open_or_set_aside(&path).unwrap();
        let (aside, why) = aside.expect("it was damaged");
        assert_eq!(
            (state.epoch(), state.all::<Share>().unwrap()),
            (1, Vec::new())
        );
        assert!(
            aside.ends_with(format!("state.damaged-{number}")),
            "{}",
            aside.display()
        );
        assert!(!why.is_empty());
        assert_eq!(std::fs::read(&aside).unwrap(), b"this was never a state");
    }
}

#[test]
fn a_file_that_is_moved_away_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = kept(folder.path(), 3);
    let away = folder.path().join("away");
    let mut state = State::open(&path).unwrap();
    std::fs::rename(&path, &away).unwrap();
    for another in [false, true] {
        if another {
            std::fs::copy(&away, &path).unwrap();
        }
        let said = state.look().unwrap_err().to_string();
        assert!(said.contains("put it back, or start anew"), "{said}");
        assert_eq!(state.change(change(4)).unwrap_err().to_string(), said);
    }
    std::fs::rename(&away, &path).unwrap();
    state.look().unwrap();
    state.change(change(4)).unwrap();
    drop(state);
    let state = State::open(&path).unwrap();
    assert_eq!(state.all::<Share>().unwrap(), expected(4));
}

#[test]
fn one_process_at_a_time_has_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = kept(folder.path(), 3);
    let state = State::open(&path).unwrap();
    assert_eq!(state.epoch(), 2);
    let error = State::open_or_set_aside(&path).unwrap_err();
    assert!(
        error.to_string().contains("in use by another process"),
        "{error}"
    );
    drop(state);
    assert_eq!(State::open(&path).unwrap().epoch(), 3);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let nowhere = State::open(&folder.path().join("no/such/folder")).unwrap_err();
    assert!(matches!(nowhere, StateError::Io { .. }), "{nowhere}");
    // What the system said is said once, whoever prints it, and what to do.
    assert!(std::error::Error::source(&nowhere).is_none());
    assert!(nowhere.to_string().contains("may write"), "{nowhere}");
}

#[test]
fn after_a_disk_was_full_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=3m", "tmpfs"])
        .arg(folder.path())
        .output();
    if !mount.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: mounting a small file system is not allowed here");
        return;
    }
    let path = folder.path().join("state");
    let filler = folder.path().join("filler");
    let full = std::panic::catch_unwind(|| {
        let mut state = State::open(&path).unwrap();
        state.change(change(1)).unwrap();
        std::fs::write(&filler, vec![1; 4 << 20]).unwrap_err();
        let big = |n: u64| {
            let mut change = Change::new();
            for key in 0..200 {
                let table = "x".repeat(4000);
                change.put(&format!("{key}"), &Share { slots: n, table });
            }
            change
        };
        let mut failed = 0;
        for n in 2..12 {
            match state.change(big(n)) {
                Ok(()) => {}
                Err(StateError::Io { .. }) => failed += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(failed > 0, "the disk was not full");
        std::fs::remove_file(&filler).unwrap();
        state.change(change(3)).unwrap();
        assert_eq!(state.get("first").unwrap(), Some(expected(3)[0].1.clone()));
        drop(state);
        let state = State::open(&path).unwrap();
        assert_eq!(state.get("first").unwrap(), Some(expected(3)[0].1.clone()));
    });
    let unmounted = Command::new("umount").arg("-l").arg(folder.path()).status();
    assert!(unmounted.unwrap().success());
    full.unwrap();
}

/// Not a test of its own: what the next one starts and kills. Tells of each change when it is done.
#[test]
fn many_changes() {
    let Ok(path) = std::env::var("ROWMILL_STATE_TEST") else {
        return;
    };
    let mut state = State::open(Path::new(&path)).unwrap();
    let last = state.get::<Share>("first").unwrap();
    let last = last.map_or(0, |share| share.slots);
    // Not for ever, lest it outlive a test that has failed.
    for n in last + 1..last + 1000 {
        state.change(change(n)).unwrap();
        println!("told {n}");
    }
}

#[test]
fn real_kills_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    for round in 1..=6u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "many_changes", "--nocapture"])
            .env("ROWMILL_STATE_TEST", &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // A few more each time, so that kills come in different places; what was told after them may be done, too.
        let told = lines
            .map(Result::unwrap)
            .filter_map(|line| Some(line.strip_prefix("told ")?.parse::<u64>().unwrap()));
        let last = told
            .take(3 + round as usize)
            .last()
            .expect("it told of changes");
        child.kill().unwrap();
        child.wait().unwrap();
        let state = State::open(&path).unwrap();
        assert_eq!(state.epoch(), 2 * round);
        let found: Contents = state.all().unwrap();
        let n = found.first().map_or(0, |(_, share)| share.slots);
        assert!(n >= last, "{n} after {last} were told");
        assert_eq!(found, expected(n));
    }
}
