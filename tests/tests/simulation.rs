//! The whole service on a fake clock, for many seeds; see `rowmill_tests::sim`.

use rowmill_tests::sim::{Changes, Kills, Mistake, Strains, WarmTally, run};

/// Seeds of an ordinary test run; `make sim SEEDS=n` runs others.
const SEEDS: u64 = 200;

#[test]
fn all_rules_are_kept() {
    let first = std::env::var("SIM_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(1);
    let (mut frames, mut answered, mut busy, mut expired, mut cancelled) = (0, 0, 0, 0, 0);
    let (mut unknown_ids, mut overflows, mut row_unavailable, mut wishes) = (0, 0, 0, 0);
    let (mut silences, mut placed, mut placed_late) = (0, 0, 0);
    let (mut changes, mut kills) = (Changes::default(), Kills::default());
    let (mut newer, mut untold, mut sampled) = (0, 0, 0);
    let (mut warm, mut strains) = (WarmTally::default(), Strains::default());
    let (mut far_rows, mut far_broken_off) = (0, 0);
    let (mut late, mut corrupt, mut gone, mut failed) = (0, 0, 0, 0);
    for seed in first..first + SEEDS {
        println!("seed {seed}");
        let outcome = run(seed, None, false).unwrap_or_else(|failed| panic!("{failed}"));
        changes = changes.and(outcome.changes);
        kills = kills.and(outcome.kills);
        warm = warm.and(outcome.warm);
        strains = strains.and(outcome.strains);
        untold += outcome.untold;
        let tally = outcome.tally;
        newer += tally.newer;
        sampled += outcome.sampled;
        far_rows += outcome.far_rows;
        far_broken_off += outcome.far_broken_off;
        late += outcome.failures.late;
        corrupt += outcome.failures.corrupt;
        gone += outcome.failures.gone;
        failed += outcome.failures.failed;
        frames += tally.frames;
        answered += tally.answered;
        wishes += tally.wishes;
        busy += tally.busy;
        expired += tally.expired;
        cancelled += tally.cancelled;
        unknown_ids += tally.unknown_ids;
        overflows += tally.overflows;
        row_unavailable += tally.row_unavailable;
        silences += tally.silences;
        placed += tally.placed;
        placed_late += tally.placed_late;
    }
    println!(
        "{frames} frames, {answered} answered, {wishes} of rows that may be wanted soon, {busy} busy, {expired} expired, {cancelled} cancelled, {unknown_ids} unknown ids, {overflows} blocks overflowing, {row_unavailable} rows unavailable"
    );
    let Changes {
        moves,
        resized,
        switched,
        released,
        failed: not_loaded,
        brought,
        deltas,
        broken_off,
        policies,
        loads,
        stayed,
    } = changes;
    // The worlds are lively: everything that can become of a request happens often.
    assert!(answered > frames / 4 && wishes > SEEDS / 2);
    assert!(busy > SEEDS && expired > SEEDS / 4 && cancelled > SEEDS / 4);
    assert!(unknown_ids > SEEDS / 20 && overflows > SEEDS / 20 && row_unavailable > SEEDS / 10);
    println!(
        "{silences} silent links, {placed} pieces placed, {placed_late} of a failed connection, {moves} tables moved or stores resized, {resized} of them the latter"
    );
    assert!(silences > SEEDS / 50 && placed > 100 * SEEDS && placed_late > SEEDS / 10);
    assert!(moves > SEEDS && resized > SEEDS);
    println!(
        "{switched} generations switched to, {released} given up, {brought} brought with cached tables, {not_loaded} not loaded"
    );
    assert!(
        switched > SEEDS && released > SEEDS / 2 && brought > SEEDS / 2 && not_loaded > SEEDS / 4
    );
    println!(
        "{deltas} deltas applied, {broken_off} broken off and begun anew, {newer} vectors of rows that changed while they were asked for, and {untold} not compared with all that they may be"
    );
    assert!(deltas > SEEDS && broken_off > SEEDS && newer > SEEDS / 4 && untold < SEEDS / 4);
    println!(
        "{policies} policies published, {loads} times rows to load, {stayed} found that were to stay, {sampled} lookups sampled"
    );
    assert!(policies > SEEDS && loads > SEEDS && stayed > SEEDS && sampled > SEEDS);
    println!("{far_rows} rows of another dataplane's memory, {far_broken_off} READs broken off");
    assert!(far_rows > 5 * SEEDS && far_broken_off > SEEDS / 2);
    println!("{kills:?}");
    let midway = [
        kills.in_generation,
        kills.in_switch,
        kills.in_delta,
        kills.in_policy,
        kills.in_move,
    ];
    assert!(kills.all > SEEDS / 2 && midway.iter().all(|&kills| kills > SEEDS / 40));
    println!("{warm:?}");
    println!("{strains:?}");
    assert!(warm.written > SEEDS && warm.unwritten > SEEDS / 4 && warm.partial > SEEDS / 40);
    assert!(warm.damaged > SEEDS / 100 && warm.found > SEEDS / 20 && warm.beside > SEEDS / 200);
    assert!(warm.checked > SEEDS / 10 && warm.rows > SEEDS / 10);
    let Strains {
        crowded,
        unparked,
        full,
        hung,
    } = strains;
    assert!(crowded > SEEDS / 2 && unparked > SEEDS / 2 && full > SEEDS && hung > SEEDS / 2);
    println!(
        "{late} rows late, {corrupt} of damaged pages, {gone} of files that were cut, {failed} not read"
    );
    assert!(late > SEEDS / 4 && corrupt > SEEDS && gone > SEEDS && failed > SEEDS / 4);
}

#[test]
fn a_seed_is_a_run() {
    for seed in 1000..1004 {
        let twice =
            [(); 2].map(|()| run(seed, None, false).unwrap_or_else(|failed| panic!("{failed}")));
        assert_eq!(twice[0], twice[1], "seed {seed}");
    }
}

/// Seeds within which each planted mistake shows.
const SEEDS_TO_FIND: u64 = 50;

#[test]
fn planted_mistakes_are_found() {
    for mistake in Mistake::all() {
        let found = (0..SEEDS_TO_FIND).find_map(|seed| run(seed, Some(mistake), false).err());
        let found = found.unwrap_or_else(|| panic!("{mistake:?} was not found"));
        println!("{mistake:?}, seed {}: {}", found.seed, found.violation);
    }
}
