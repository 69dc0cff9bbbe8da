//! Which generations are wanted, when that changes, and what is told of it.

use rowmill_admission::{
    Event, GenerationWish, Limits, ModelGenerations, Planner, Recorded, Refused,
};

use crate::simulated::{Simulated, Traffic, World};

const IDLE: Traffic = Traffic {
    lookups: 0,
    rows: 1000,
    even: true,
    places: 0,
};

fn dataplane(name: &str, instance: u128) -> Simulated {
    Simulated::new(
        name,
        instance,
        1000,
        &[("a", 1000, IDLE), ("b", 1000, IDLE)],
    )
}

fn wish(world: &mut World, wish: GenerationWish) -> Result<(), String> {
    wish_without(world, wish, &[])
}

fn wish_without(world: &mut World, wish: GenerationWish, without: &[&str]) -> Result<(), String> {
    let without: Vec<String> = without.iter().map(|&name| name.into()).collect();
    let wanted = world.planner.wish(world.now_ns, "m", wish, &without);
    let wanted = wanted.map_err(|refused| refused.to_string())?;
    let model = "m".into();
    world.tell(Event::Generations { model, wanted });
    Ok(())
}

fn held(world: &World) -> Vec<Vec<u64>> {
    let held = world.dataplanes.iter().map(|of| of.generations.clone());
    held.collect()
}

#[test]
fn all_dataplanes_hold_it_before_one_serves_it() {
    let mut world = World::new(vec![dataplane("x", 3), dataplane("y", 4)]);
    let error = wish(&mut world, GenerationWish::Load(2)).unwrap_err();
    assert!(
        error.contains("no dataplane that serves model `m`"),
        "{error}"
    );
    world.run(2);
    assert!(
        world.planner.models(world.now_ns)[0].settled,
        "nothing is wanted"
    );
    wish(&mut world, GenerationWish::Load(2)).unwrap();
    let error = wish(&mut world, GenerationWish::Activate(2)).unwrap_err();
    assert!(
        error.starts_with("`x` does not hold generation 2 yet, nor do 1 others"),
        "{error}"
    );
    assert!(!world.planner.models(world.now_ns)[0].settled);
    world.run(2);
    assert_eq!(held(&world), [[1, 2], [1, 2]]);
    let error = wish(&mut world, GenerationWish::Load(3)).unwrap_err();
    assert!(error.contains("unload 2 first"), "{error}");
    // What nobody is heard to hold is not served.
    let now_ns = world.now_ns;
    world.now_ns += 10_000_000_000;
    let error = wish(&mut world, GenerationWish::Activate(2)).unwrap_err();
    let why = "`x` was not heard of for 10 s and may serve generation 1 still, nor were 1 others";
    assert!(error.contains(why), "{error}");
    assert!(!world.planner.models(world.now_ns)[0].settled);
    world.now_ns = now_ns;
    wish(&mut world, GenerationWish::Activate(2)).unwrap();
    let error = wish(&mut world, GenerationWish::Unload(1)).unwrap_err();
    assert!(error.contains("still serves generation 1"), "{error}");
    world.run(2);
    assert_eq!(held(&world), [[2, 1], [2, 1]]);
    let view = &world.planner.models(world.now_ns)[0];
    let wanted = view.wanted.as_ref().unwrap();
    assert_eq!(
        (view.settled, wanted.newest, wanted.before),
        (true, 2, Some(1))
    );
    wish(&mut world, GenerationWish::Rollback).unwrap();
    world.run(2);
    assert_eq!(held(&world), [[1, 2], [1, 2]]);
    assert!(
        wish(&mut world, GenerationWish::Rollback).is_err(),
        "it was rolled back"
    );
    assert!(
        wish(&mut world, GenerationWish::Unload(1)).is_err(),
        "it is served"
    );
    wish(&mut world, GenerationWish::Unload(2)).unwrap();
    world.run(2);
    assert_eq!(held(&world), [[1], [1]]);
    // The whole story again.
    let mut again = Planner::new("c".into(), 1, Limits::default());
    for Recorded { at_ns, event } in world.recording {
        again.handle(at_ns, event).unwrap();
    }
    assert_eq!(again.policy("x"), world.planner.policy("x"));
}

#[test]
fn what_is_wished_for_again_is_tried_again_until_all_have_done_it() {
    let mut world = World::new(vec![dataplane("x", 3), dataplane("y", 4)]);
    world.run(2);
    let tries = |world: &World| {
        let policy = world.planner.policy("y").unwrap();
        policy.generations.as_ref().unwrap().tries
    };
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    // Nobody has said yet that it can't.
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(3);
    assert_eq!(
        (tries(&world), held(&world)),
        (2, [vec![1, 7], vec![1, 7]].into())
    );
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(2);
    assert_eq!(tries(&world), 2, "all hold it");
    wish(&mut world, GenerationWish::Activate(7)).unwrap();
    wish(&mut world, GenerationWish::Activate(7)).unwrap();
    world.run(3);
    assert_eq!(
        (tries(&world), held(&world)),
        (3, [vec![7, 1], vec![7, 1]].into())
    );
    wish(&mut world, GenerationWish::Activate(7)).unwrap();
    world.run(2);
    assert_eq!(tries(&world), 3, "all serve it");
}

#[test]
fn what_was_taken_back_and_is_wished_for_again_is_tried_again() {
    let mut world = World::new(vec![dataplane("x", 3)]);
    world.dataplanes[0].has_not = Some(7);
    world.run(2);
    let policy = |world: &World| {
        let policy = world.planner.policy("x").unwrap();
        policy.generations.clone()
    };
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(3);
    let before = policy(&world);
    // Between two policies, so that the dataplane sees but the last of these.
    wish(&mut world, GenerationWish::Unload(7)).unwrap();
    world.dataplanes[0].has_not = None;
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(2);
    assert_ne!(policy(&world), before);
    assert_eq!(held(&world), [[1, 7]]);
}

#[test]
fn what_all_dataplanes_hold_at_first_may_be_activated() {
    let mut both = [dataplane("x", 3), dataplane("y", 4)];
    (both[0].generations, both[1].generations) = (vec![2, 1], vec![2, 1]);
    let mut world = World::new(both.into());
    world.run(2);
    wish(&mut world, GenerationWish::Activate(1)).unwrap();
    world.run(2);
    assert_eq!(held(&world), [[1, 2], [1, 2]]);

    let mut both = [dataplane("x", 3), dataplane("y", 4)];
    both[0].generations = vec![1, 2];
    let mut world = World::new(both.into());
    world.run(2);
    let error = wish(&mut world, GenerationWish::Activate(2)).unwrap_err();
    assert!(error.contains("generation 2 of `m` is not held"), "{error}");
}

#[test]
fn one_that_can_not_be_loaded_changes_nothing_and_says_why() {
    let mut world = World::new(vec![dataplane("x", 3), dataplane("y", 4)]);
    world.dataplanes[1].has_not = Some(7);
    world.run(2);
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(3);
    assert_eq!(held(&world), [vec![1, 7], vec![1]]);
    let error = wish(&mut world, GenerationWish::Activate(7)).unwrap_err();
    let why = "`y` does not hold generation 7 yet (generation 7: there is no such directory): try again when all of them do";
    assert_eq!(error, why);
    let view = &world.planner.models(world.now_ns)[0];
    assert!(!view.settled);
    assert_eq!(
        view.dataplanes[1].refused,
        ["generation 7: there is no such directory"]
    );
    assert_eq!(view.dataplanes[0].refused, [""; 0]);
    // What is wished for again is another policy, so that it is tried at once; what nobody refuses is not.
    let tries = |world: &World| {
        let policy = world.planner.policy("y").unwrap();
        policy.generations.as_ref().unwrap().tries
    };
    assert_eq!(tries(&world), 1);
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(2);
    assert_eq!(tries(&world), 2);
    // Where the one that can't is gone, the others may once it is said.
    world.silent.push(1);
    world.run(7);
    let activate = GenerationWish::Activate(7);
    let error = wish(&mut world, activate).unwrap_err();
    let why = "`y` was not heard of for 7 s and may serve generation 1 still";
    assert!(error.starts_with(why), "{error}");
    wish_without(&mut world, activate, &["y"]).unwrap();
    world.run(2);
    assert_eq!(held(&world)[0], [7, 1]);
    let view = &world.planner.models(world.now_ns)[0];
    assert_eq!(
        (view.settled, &view.missing[..]),
        (false, &["y".into()][..])
    );
    // It comes again, with the files, and comes to the same by itself.
    world.dataplanes[1] = dataplane("y", 5);
    world.silent.clear();
    world.run(3);
    assert_eq!(held(&world), [[7, 1], [7, 1]]);
    let view = &world.planner.models(world.now_ns)[0];
    assert_eq!((view.settled, view.missing.len()), (true, 0));
    assert!(!world.planner.leaves_out("y"), "it was heard of");
    wish(&mut world, GenerationWish::Leave).unwrap();
    world.run(2);
    assert_eq!(world.planner.policy("x").unwrap().generations, None);
    assert_eq!(held(&world), [[7, 1], [7, 1]], "left as it is");
}

#[test]
fn what_was_refused_before_a_wish_says_nothing_of_it() {
    let mut world = World::new(vec![dataplane("x", 3), dataplane("y", 4)]);
    world.dataplanes[0].has_not = Some(7);
    world.run(2);
    let told = |world: &World| {
        let of = world.planner.model(world.now_ns, "m").dataplanes.remove(0);
        (of.answered, of.refused.len())
    };
    wish(&mut world, GenerationWish::Load(7)).unwrap();
    world.run(3);
    assert_eq!(told(&world), (true, 1));
    wish(&mut world, GenerationWish::Unload(7)).unwrap();
    wish(&mut world, GenerationWish::Load(2)).unwrap();
    let lacks =
        "`x` does not hold generation 2 yet, nor do 1 others: try again when all of them do";
    let activate = GenerationWish::Activate(2);
    assert_eq!(told(&world), (false, 0));
    assert_eq!(wish(&mut world, activate).unwrap_err(), lacks);
    // Nor when it is published, until the dataplane is heard of.
    world.silent.push(0);
    world.run(2);
    assert_eq!(told(&world), (false, 0));
    world.silent.clear();
    world.run(3);
    assert_eq!(told(&world), (true, 0));
    // All is published anew, which they are to be asked of as well.
    let epoch = world.planner.epoch() + 1;
    world.tell(Event::Epoch(epoch));
    assert_eq!(told(&world), (false, 0));
    world.run(2);
    assert_eq!(told(&world), (true, 0));
    assert_eq!(held(&world), [[1, 2], [1, 2]]);
}

#[test]
fn who_is_not_heard_of_is_reckoned_with_until_it_is_left_out_or_forgotten() {
    let mut world = World::new(vec![dataplane("x", 3), dataplane("y", 4)]);
    world.run(2);
    wish(&mut world, GenerationWish::Load(2)).unwrap();
    world.run(2);
    world.silent.push(1);
    world.run(12);
    let view = &world.planner.models(world.now_ns)[0];
    assert_eq!(
        (view.settled, &view.missing[..]),
        (false, &["y".into()][..])
    );
    let activate = GenerationWish::Activate(2);
    let error = wish(&mut world, activate).unwrap_err();
    let why = "`y` was not heard of for 12 s and may serve generation 1 still: wait until it is, or go on without it (`without`, or --without y)";
    assert_eq!(error, why);
    // Nobody else is left out.
    let error = wish_without(&mut world, activate, &["x"]).unwrap_err();
    assert!(error.starts_with("`x` is heard of"), "{error}");
    let error = wish_without(&mut world, activate, &["z"]).unwrap_err();
    assert!(error.starts_with("no dataplane `z`"), "{error}");
    wish_without(&mut world, activate, &["y"]).unwrap();
    world.run(2);
    assert_eq!(held(&world), [[2, 1], [1, 2]]);
    let view = world.planner.model(world.now_ns, "m");
    assert_eq!(view.wanted.unwrap().without, ["y"]);
    assert!(!view.settled);
    // It has been said once.
    wish(&mut world, GenerationWish::Unload(1)).unwrap();
    world.run(2);
    assert_eq!(held(&world), [vec![2], vec![1, 2]]);
    // It is heard of and gone again.
    world.silent.clear();
    world.run(3);
    assert_eq!(held(&world), [[2], [2]]);
    wish(&mut world, GenerationWish::Load(3)).unwrap();
    world.run(3);
    wish(&mut world, GenerationWish::Activate(3)).unwrap();
    world.run(2);
    world.silent.push(1);
    world.run(6);
    for other in [GenerationWish::Rollback, GenerationWish::Unload(2)] {
        let error = wish(&mut world, other).unwrap_err();
        assert!(error.starts_with("`y` was not heard of"), "{error}");
    }
    // The next start knows of it as well, from what it was told.
    let wanted = world.planner.model(world.now_ns, "m").wanted;
    let told = ["x", "y"].map(|name| world.planner.policy(name).cloned());
    world.planner = Planner::new("c".into(), 2, Limits::default());
    let model = "m".to_owned();
    world.tell(Event::Generations {
        model: model.clone(),
        wanted,
    });
    for (name, policy) in ["x", "y"].into_iter().zip(told) {
        world.tell(Event::Remembered {
            dataplane: name.into(),
            model: Some(model.clone()),
            policy: (*policy.unwrap()).clone(),
        });
    }
    world.run(2);
    let error = wish(&mut world, GenerationWish::Unload(2)).unwrap_err();
    assert!(error.starts_with("`y` was not heard of for 2 s"), "{error}");
    // Nobody is for ever.
    world.now_ns += 24 * 3600 * 1_000_000_000;
    world.run(2);
    wish(&mut world, GenerationWish::Unload(2)).unwrap();
    assert!(!world.planner.knows("y"));
}

#[test]
fn what_can_not_be_wanted_is_refused() {
    let mut world = World::new(vec![dataplane("x", 3), dataplane("y", 4)]);
    world.dataplanes[1].generations = vec![9];
    world.run(1);
    let error = wish(&mut world, GenerationWish::Load(2)).unwrap_err();
    assert!(
        error.contains("different generations of `m`: `x` 1, `y` 9"),
        "{error}"
    );
    world.dataplanes[1].generations = Vec::new();
    world.run(1);
    let error = wish(&mut world, GenerationWish::Load(2)).unwrap_err();
    assert!(error.contains("`y` tells of no generations"), "{error}");
    world.dataplanes[1].generations = vec![1];
    world.run(1);
    for unlikely in [GenerationWish::Load(0), GenerationWish::Load(u64::MAX)] {
        assert!(wish(&mut world, unlikely).is_err(), "{unlikely:?}");
    }
    for absent in [
        GenerationWish::Activate(5),
        GenerationWish::Unload(5),
        GenerationWish::Rollback,
    ] {
        assert!(wish(&mut world, absent).is_err(), "{absent:?}");
    }
    assert_eq!(wish(&mut world, GenerationWish::Activate(1)), Ok(()));
    let mut told = |held: &[u64], newest, before| {
        let wanted = Some(ModelGenerations {
            held: held.to_vec(),
            newest,
            before,
            without: Vec::new(),
            tries: 0,
        });
        let model = "m".into();
        world
            .planner
            .handle(world.now_ns, Event::Generations { model, wanted })
    };
    assert_eq!(told(&[1, 2], 2, Some(1)), Ok(()));
    for (held, newest, before) in [
        (&[][..], 1, None),
        (&[1, 1], 1, None),
        (&[1, 2, 3], 1, None),
        (&[1], 2, None),
        (&[1], 1, Some(2)),
    ] {
        assert!(
            matches!(told(held, newest, before), Err(Refused::Generations(_))),
            "{held:?}"
        );
    }
}
