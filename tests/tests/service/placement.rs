//! Tables become cached and resident again while clients look them up.

use std::sync::{Arc, Weak};

use rowmill_cache::figures::Count;
use rowmill_cache::store::Store;
use rowmill_rowmilld::cache_view::TableView;
use rowmill_rowmilld::config::Placement;
use rowmill_rowmilld::places::{Change, PlaceError, Places, Stand};

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

fn places(service: &InProcess) -> &Places {
    service.places.as_deref().expect("tables are listed")
}

/// Moves a table and waits until that is through.
fn moved(service: &InProcess, table: &str, to: Placement) -> Change {
    changed(service, table, to, None)
}

/// The same where it has another share then.
fn changed(service: &InProcess, table: &str, to: Placement, share: Option<u64>) -> Change {
    let begun = places(service).change(table, to, share);
    let number = begun.expect("nothing else moves").expect("it is elsewhere");
    let began = Instant::now();
    loop {
        let last = places(service)
            .changes()
            .pop()
            .expect("the one that was begun");
        assert_eq!((last.number, &*last.table), (number, table));
        if last.state != Stand::Running {
            return last;
        }
        assert!(began.elapsed() < LIMIT, "table {table} is still on its way");
        thread::sleep(Duration::from_millis(1));
    }
}

fn other(placement: Placement) -> Placement {
    match placement {
        Placement::Cached => Placement::Resident,
        Placement::Resident => Placement::Cached,
    }
}

/// What is kept of a table while it is cached.
fn store(table: &TableView) -> Weak<Store> {
    let store = table.store();
    store.as_ref().map_or_else(Weak::new, Arc::downgrade)
}

#[test]
fn answers_are_the_oracles_while_tables_move() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = InProcess::start_with(folder, CACHED);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            for _ in 0..10 {
                for table in &service.cache.tables {
                    let (before, to) = (store(table), other(table.placement()));
                    let lookups = table.get(Count::Lookups);
                    let change = moved(&service, &table.name, to);
                    assert_eq!((change.state, table.placement()), (Stand::Done, to));
                    assert!(before.upgrade().is_none(), "its memory is given back");
                    // Requests find it there.
                    let began = Instant::now();
                    while to == Placement::Cached && table.get(Count::Lookups) == lookups {
                        assert!(began.elapsed() < LIMIT, "nobody looks {} up", table.name);
                        thread::yield_now();
                    }
                }
            }
        });
        let all = answers_are_the_oracles(&service, |answered| {
            answered >= 150 && changes.is_finished()
        });
        assert!(all[&Status::Ok] >= 150 * CLIENTS as u32);
    });
    for table in &service.cache.tables {
        assert!(table.get(Count::Admitted) > 0, "{}", table.name);
    }
}

#[test]
fn answers_are_the_oracles_while_shares_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("{CACHED}\n[admin]\nallow_changes = true\n");
    let service = InProcess::start_with(folder, &config);
    thread::scope(|scope| {
        let changes = scope.spawn(|| {
            let tables = service.cache.tables.iter();
            let cached = tables.filter(|table| table.placement() == Placement::Cached);
            for table in cached {
                let share = table.share();
                let (whole, least) = (share.shape.bytes() as u64, share.least_bytes());
                for bytes in [whole / 2, whole, whole / 3, least, whole, whole / 8 * 7] {
                    let change = changed(&service, &table.name, Placement::Cached, Some(bytes));
                    assert_eq!(change.state, Stand::Done, "{}", change.detail);
                    let now = table.share().shape;
                    let store = store(table).upgrade().expect("it is cached");
                    assert_eq!(store.shape(), now);
                    assert!(
                        change.share_bytes == now.bytes() as u64 && change.share_bytes <= bytes
                    );
                    // Four parts, each of whole pages.
                    assert!(store.present() < now.bytes() + 4 * 4096);
                    let held = table.get(Count::Admitted) - table.get(Count::Evicted);
                    assert!(
                        held <= u64::from(now.slots()),
                        "{held} rows of {}",
                        table.name
                    );
                }
            }
        });
        let all = answers_are_the_oracles(&service, |answered| {
            answered >= 150 && changes.is_finished()
        });
        assert!(all[&Status::Ok] >= 150 * CLIENTS as u32);
    });
}

#[test]
fn what_cannot_be_moved_stays_where_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = folder.path().join("model");
    let service = InProcess::start_with(folder, CACHED);
    let change = |table: &str, to| places(&service).change(table, to, None);
    let unknown = Err(PlaceError::UnknownTable("nobody".into()));
    assert_eq!(change("nobody", Placement::Cached), unknown);
    let unlisted = Err(PlaceError::NotListed("tags".into()));
    assert_eq!(change("tags", Placement::Cached), unlisted);
    assert_eq!(change("users", Placement::Cached), Ok(None));
    assert_eq!(change("places", Placement::Resident), Ok(None));
    assert_eq!(places(&service).changes(), []);
    // The file of the first table ends too early now.
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(files.join("00000.rows"));
    file.and_then(|file| file.set_len(4096)).expect("its file");
    let failed = moved(&service, "users", Placement::Resident);
    assert_eq!(failed.state, Stand::Failed);
    assert!(failed.detail.contains("00000.rows"), "{}", failed.detail);
    assert_eq!(service.cache.placement("users"), Some(Placement::Cached));
    // Others are moved after it as before.
    let done = moved(&service, "items", Placement::Resident);
    assert_eq!((done.number, done.state), (2, Stand::Done));
}
