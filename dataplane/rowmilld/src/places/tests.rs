use std::path::Path;
use std::sync::mpsc::channel;

use rowmill_arena::HugePages;
use rowmill_table::{Generation, LoadOptions, TableSpec, generate, silent};

use super::*;
use crate::cache::CachePlan;
use crate::config::Config;
use crate::listed;
use crate::mailbox::{Mailbox, Move};

#[test]
fn one_table_moves_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let specs: [TableSpec; 2] = ["a:1000:4:f32", "b:1000:4:f32"].map(|s| s.parse().unwrap());
    generate(folder.path().join("1"), 1, &specs, 3, &silent).unwrap();
    let listed = |name: &str| {
        format!("[[tables]]\nname = \"{name}\"\nplacement = \"resident\"\ncache_bytes = 4000\n")
    };
    let (a, b) = (listed("a"), listed("b"));
    let text = format!("[model]\ndirectory = \".\"\n[cache]\npage_cache = \"allow\"\n{a}{b}");
    let config = Config::parse(&text, Path::new("r.toml")).unwrap();
    let generation = Generation::open(folder.path().join("1")).unwrap();
    let plan = CachePlan::make(&config, &generation, 1).unwrap();
    let keep = |table| plan.keep(table);
    let tables = generation.load_parts(keep, HugePages::Off, &silent, LoadOptions::default());
    let mut tables = tables.unwrap();
    let mailbox = Arc::<Mailbox>::default();
    let mailboxes = vec![Arc::clone(&mailbox)];
    let opened = plan.open(&generation, &mut tables, HugePages::Off, &mailboxes, vec![]);
    let opened = opened.unwrap();
    let cache = Arc::new(plan.view(&generation, &opened.parts));
    let listed = Listed::new(listed::Means {
        plan,
        generation,
        tables: Arc::new(tables),
        shares: opened.shares.unwrap(),
        reads: opened.reads,
        cache: Arc::clone(&cache),
        watch: Arc::default(),
        remote: None,
        deltas: None,
        mailboxes,
        huge_pages: HugePages::Off,
        verify: true,
    });
    let means = Means {
        listed: listed.unwrap(),
        workers_cpus: Vec::new(),
    };
    let (tell, told) = channel();
    let places = Places::start(means, move |choice| tell.send(choice).unwrap()).unwrap();
    assert_eq!(places.change("a", Placement::Cached, None), Ok(Some(1)));
    // The worker, which is this thread, does not know yet.
    let busy = Err(PlaceError::Busy("a".into()));
    assert_eq!(places.change("b", Placement::Cached, None), busy);
    *places.further() -= HANGS;
    let hangs = places.change("b", Placement::Cached, None).unwrap_err();
    let said = "table a is on its way and has come no further for 5 s";
    assert!(hangs.to_string().starts_with(said), "{hangs}");
    assert_eq!(cache.placement("a"), Some(Placement::Resident));
    let moving = loop {
        match mailbox.next_move() {
            Some(moving) => break moving,
            None => thread::yield_now(),
        }
    };
    let is_cached =
        matches!(&*moving, Move::Home(0, home) if home.cached.is_some() && home.resident.is_none());
    assert!(is_cached);
    mailbox.has_moved(moving);
    let choice = told.recv().unwrap();
    assert_eq!(choice.what, "table a");
    assert_eq!(cache.placement("a"), Some(Placement::Cached));
    while places.change("a", Placement::Cached, None) != Ok(None) {
        thread::yield_now();
    }
    let [change] = &places.changes()[..] else {
        panic!("{:?}", places.changes());
    };
    assert_eq!((change.number, change.state), (1, Stand::Done));
    assert!(
        change.detail.starts_with(&choice.chosen),
        "{}",
        change.detail
    );
    // Rows were read before the worker is given them.
    assert_eq!(places.change("a", Placement::Resident, None), Ok(Some(2)));
    let moving = loop {
        match mailbox.next_move() {
            Some(moving) => break moving,
            None => thread::yield_now(),
        }
    };
    let change = &places.changes()[1];
    assert_eq!(change.state, Stand::Running);
    assert!(change.detail.contains("100 % of"), "{}", change.detail);
    mailbox.has_moved(moving);
    told.recv().unwrap();
}
