//! What no dataplane would tell: it is refused or borne, whatever its numbers are.

use proptest::prelude::*;
use rowmill_admission::{
    Event, GenerationWish, Limits, ModelGenerations, Planner, Refused, Settings, TURN_NS,
};
use rowmill_link::{Applied, Order, Placement, Report, Sample, Samples, TableReport, TableSamples};

/// Numbers that are at the ends of what is taken, more often than others.
fn number() -> impl Strategy<Value = u64> {
    let ends = [0_u32, 1, 7, 20, 32, 48, 53].map(|bits| 1_u64 << bits);
    let near = (prop::sample::select(ends.to_vec()), 0_u64..3);
    prop_oneof![
        8 => near.prop_map(|(end, off)| (end + 1).saturating_sub(off)),
        4 => 0_u64..100_000,
        1 => Just(u64::MAX),
        1 => any::<u64>(),
    ]
}

/// Such a number that is taken, mostly.
fn at_most(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![20 => number().prop_map(move |n| n.min(most)), 1 => number()]
}

fn table() -> impl Strategy<Value = TableReport> {
    let sizes = (
        at_most(1 << 32),
        at_most(1 << 20),
        at_most(1 << 48),
        at_most(1 << 32),
    );
    let counters = prop::array::uniform5(number());
    let placement = prop_oneof![9 => Just(Placement::Cached), 1 => Just(Placement::Resident)];
    (sizes, counters, placement, prop::bool::weighted(0.1)).prop_map(
        |((rows, slot_bytes, cache_bytes, cache_rows), counters, placement, resizing)| {
            let [lookups, hits, fetched, held_rows, pinned] = counters;
            TableReport {
                table: String::new(),
                rows,
                slot_bytes: slot_bytes.max(1),
                placement,
                cache_bytes,
                cache_rows,
                held_rows,
                resizing,
                lookups,
                hits: hits.min(lookups),
                fetched,
                fetch_ns: fetched,
                pinned,
                pinned_held: pinned,
            }
        },
    )
}

const NAMES: [&str; 3] = ["a", "b", "c"];

fn report() -> impl Strategy<Value = Report> {
    let tables = prop::collection::vec(table(), 1..4);
    let order = (at_most(1 << 53), at_most(1 << 53));
    let policy = prop::option::weighted(0.3, (order, any::<bool>()));
    let generations = prop::collection::vec(prop_oneof![9 => 1_u64..4, 1 => number()], 0..3);
    (at_most(1 << 48), at_most(4096), policy, tables, generations).prop_map(
        |(arena_bytes, workers, policy, mut tables, generations)| {
            for (table, name) in tables.iter_mut().zip(NAMES) {
                table.table = name.into();
            }
            Report {
                instance: format!("{:032x}", 3),
                version: "0".into(),
                model: "m".into(),
                generation: "1".into(),
                generations,
                arena_bytes,
                workers: (workers as u32).max(1),
                policy: policy.map(|((epoch, version), own)| Applied {
                    control: if own { "c" } else { "other" }.into(),
                    order: Order { epoch, version },
                    refused: Vec::new(),
                }),
                tables,
                ..Report::default()
            }
        },
    )
}

fn samples() -> impl Strategy<Value = Samples> {
    let sample = (any::<u32>(), any::<u32>()).prop_map(|(row, place)| Sample {
        row: row % 1000,
        place: place >> (row % 32),
    });
    let part = (
        number(),
        number(),
        any::<u32>(),
        prop::collection::vec(sample, 0..200),
    );
    let parts = prop::collection::vec(part, 3);
    (number(), parts).prop_map(|(number, parts)| Samples {
        instance: 3,
        number,
        tables: parts
            .into_iter()
            .zip(NAMES)
            .map(
                |((lookups, dropped, threshold, samples), name)| TableSamples {
                    table: name.into(),
                    lookups,
                    dropped,
                    threshold,
                    samples,
                },
            )
            .collect(),
    })
}

fn event() -> impl Strategy<Value = Event> {
    let dataplane = || prop::sample::select(vec!["x".to_owned(), "y".into()]);
    let bounds = (
        prop::option::of(number()),
        prop::option::of(number()),
        0.0_f64..1.0,
    );
    let settings = (prop::sample::select(NAMES.to_vec()), bounds);
    prop_oneof![
        4 => (dataplane(), report()).prop_map(|(dataplane, report)| Event::Report { dataplane, report }),
        3 => (dataplane(), samples()).prop_map(|(dataplane, samples)| Event::Samples { dataplane, samples }),
        1 => settings.prop_map(|(table, (min_bytes, max_bytes, part))| Event::Settings {
            model: "m".into(),
            table: table.into(),
            settings: Some(Settings { min_bytes, max_bytes, pinned_share: Some(part), admission: None }),
        }),
        1 => prop::collection::vec(at_most(4), 0..4).prop_map(|held| Event::Generations {
            model: "m".into(),
            wanted: held.first().map(|&newest| ModelGenerations { newest, before: None, without: Vec::new(), held: held.clone(), tries: 0 }),
        }),
        4 => Just(Event::Turn),
    ]
}

proptest! {
    #[test]
    fn whatever_is_told_is_borne(events in prop::collection::vec(event(), 1..40)) {
        let mut planner = Planner::new("c".into(), 1, Limits::default());
        let mut now_ns = 0;
        for event in events {
            now_ns += TURN_NS / 3;
            // Most of it is refused.
            let _refused = planner.handle(now_ns, event);
            planner.handle(now_ns, Event::Turn).unwrap();
            planner.dataplanes(now_ns);
            planner.tables(now_ns);
            planner.models(now_ns);
            for wish in [GenerationWish::Load(2), GenerationWish::Activate(3), GenerationWish::Rollback] {
                // Most of them can't be.
                if let Ok(wanted) = planner.wish(now_ns, "m", wish, &[]) {
                    assert!(planner.check_generations("m", wanted.as_ref()).is_ok(), "{wanted:?}");
                }
            }
            for name in NAMES {
                planner.row("m", name, 7);
            }
            if let Some((epoch, _)) = planner.overtaken_by() {
                planner.handle(now_ns, Event::Epoch(epoch + 1)).unwrap();
            }
        }
    }
}

type Change = fn(&mut Report);

fn plain() -> Report {
    let table = |name: &str| TableReport {
        table: name.into(),
        rows: 1 << 32,
        slot_bytes: 1 << 20,
        placement: Placement::Cached,
        cache_bytes: 1 << 47,
        cache_rows: 1 << 27,
        held_rows: 0,
        resizing: false,
        lookups: 0,
        hits: 0,
        fetched: 0,
        fetch_ns: 0,
        pinned: 0,
        pinned_held: 0,
    };
    Report {
        instance: format!("{:032x}", 3),
        version: "0".into(),
        model: "m".into(),
        generation: "1".into(),
        generations: Vec::new(),
        arena_bytes: 1 << 48,
        workers: 4096,
        policy: None,
        tables: vec![table("a"), table("b")],
        ..Report::default()
    }
}

#[test]
fn what_is_out_of_bounds_is_named() {
    let tell = |change: Change| {
        let mut report = plain();
        change(&mut report);
        let mut planner = Planner::new("c".into(), 1, Limits::default());
        let told = planner.handle(
            0,
            Event::Report {
                dataplane: "x".into(),
                report,
            },
        );
        (told, planner)
    };
    assert_eq!(tell(|_| ()).0, Ok(()));
    let bad: [(Change, &str); 9] = [
        (|of| of.arena_bytes += 1, "arena_bytes is 281474976710657"),
        (|of| of.workers = 0, "workers is 0: it is from 1 to 4096"),
        (|of| of.tables[0].rows += 1, "rows is 4294967297"),
        (|of| of.tables[1].slot_bytes += 1, "slot_bytes is 1048577"),
        (|of| of.tables[1].cache_rows = u64::MAX, "cache_rows is"),
        (|of| of.tables[1].cache_bytes <<= 2, "cache_bytes is"),
        (|of| of.model = "m".repeat(256), "the model's name has 256"),
        (
            |of| of.tables[0].table = "m".repeat(3 << 20),
            "a table's name has 3145728 bytes",
        ),
        (
            |of| {
                of.policy = Some(Applied {
                    control: "c".into(),
                    order: Order {
                        epoch: u64::MAX - 1,
                        version: 1,
                    },
                    refused: Vec::new(),
                });
            },
            "the policy's epoch is",
        ),
    ];
    for (change, sentence) in bad {
        let error = tell(change).0.unwrap_err();
        assert!(
            matches!(error, Refused::Bounds { .. } | Refused::Long { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(sentence), "{error}");
    }
    // Sentences are cut, and the last epochs are taken over by nobody.
    let (told, planner) = tell(|of| {
        of.policy = Some(Applied {
            control: "c".into(),
            order: Order {
                epoch: 1 << 53,
                version: 1,
            },
            refused: vec!["ä".repeat(1000); 100],
        });
    });
    assert_eq!((told, planner.overtaken_by()), (Ok(()), None));
    let refused = &planner.dataplanes(0)[0].refused;
    assert_eq!((refused.len(), refused[0].len()), (64, 512));
}

#[test]
fn a_state_that_is_one_start_old_is_overtaken_by_what_it_published_itself() {
    let mut planner = Planner::new("c".into(), 4, Limits::default());
    let mut tell = |control: &str, epoch, version| {
        let mut report = plain();
        report.policy = Some(Applied {
            control: control.into(),
            order: Order { epoch, version },
            refused: Vec::new(),
        });
        let event = Event::Report {
            dataplane: "x".into(),
            report,
        };
        planner.handle(0, event).unwrap();
        planner.overtaken_by()
    };
    assert_eq!(tell("c", 3, 9), None);
    assert_eq!(tell("c", 4, 1), Some((4, true)));
    assert_eq!(tell("other", 4, 0), Some((4, false)));
    planner.handle(1, Event::Turn).unwrap();
    let own = planner.policy("x").unwrap().order;
    let mut report = plain();
    report.policy = Some(Applied {
        control: "c".into(),
        order: own,
        refused: Vec::new(),
    });
    let event = Event::Report {
        dataplane: "x".into(),
        report,
    };
    planner.handle(2, event).unwrap();
    assert_eq!(planner.overtaken_by(), None, "it is what it published");
}

#[test]
fn rows_that_a_dataplane_has_not_are_not_pinned_and_policies_stay_short() {
    let mut planner = Planner::new("c".into(), 1, Limits::default());
    let names: Vec<String> = (0..60).map(|n| format!("t{n}")).collect();
    let mut report = plain();
    let one = report.tables.remove(0);
    report.tables = names
        .iter()
        .map(|name| TableReport {
            table: name.clone(),
            rows: 2000,
            slot_bytes: 100,
            cache_bytes: 1 << 20,
            ..one.clone()
        })
        .collect();
    report.tables[0].rows = 10;
    let dataplane = || "x".to_owned();
    planner
        .handle(
            0,
            Event::Report {
                dataplane: dataplane(),
                report,
            },
        )
        .unwrap();
    for table in &names {
        let settings = Settings {
            pinned_share: Some(Settings::PINNED_SHARE_MAX),
            ..Settings::default()
        };
        let (model, table) = ("m".into(), table.clone());
        planner
            .handle(
                0,
                Event::Settings {
                    model,
                    table,
                    settings: Some(settings),
                },
            )
            .unwrap();
    }
    planner.handle(1, Event::Turn).unwrap();
    let rows = (0..2000).chain(0..2000).chain(0..2000);
    let samples: Vec<Sample> = rows.map(|row| Sample { row, place: 0 }).collect();
    let part = |table: &String| TableSamples {
        table: table.clone(),
        lookups: 1,
        threshold: 1,
        samples: samples.clone(),
        ..TableSamples::default()
    };
    let samples = Samples {
        instance: 3,
        number: 1,
        tables: names.iter().map(part).collect(),
    };
    planner
        .handle(
            2,
            Event::Samples {
                dataplane: dataplane(),
                samples,
            },
        )
        .unwrap();
    planner.handle(3, Event::Turn).unwrap();
    let tables = &planner.policy("x").unwrap().tables;
    assert_eq!(tables[0].pinned, (0..10).collect::<Vec<u32>>());
    let all: usize = tables.iter().map(|table| table.pinned.len()).sum();
    assert_eq!((tables[1].pinned.len(), all), (2000, 100_000));
}

#[test]
fn tables_of_dataplanes_that_are_gone_make_room() {
    let mut planner = Planner::new("c".into(), 1, Limits::default());
    let event = Event::Report {
        dataplane: "x".into(),
        report: plain(),
    };
    planner.handle(0, event.clone()).unwrap();
    let mut listed = |now_s: u64| {
        planner.handle(now_s * TURN_NS, Event::Turn).unwrap();
        planner.tables(now_s * TURN_NS).len()
    };
    assert_eq!((listed(3599), listed(3600)), (2, 0));
    planner.handle(3601 * TURN_NS, event).unwrap();
    planner.handle(3602 * TURN_NS, Event::Turn).unwrap();
    assert_eq!(planner.tables(3602 * TURN_NS).len(), 2);
}
