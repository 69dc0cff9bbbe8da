//! Runs the simulation of the service, or that of the control plane, for one seed or many, and prints what they came to.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use rowmill_tests::{sim, sim_control};

const USAGE: &str = "usage: sim [--control] [--seed N | --seeds N [--from N]] [--events]
  --control   that of the control plane
  --seed N    runs one seed
  --seeds N   runs N seeds in a row, by default from a seed of the clock
  --from N    the first of them
  --events    prints every event";

struct Arguments {
    control: bool,
    first: u64,
    count: u64,
    events: bool,
}

fn arguments() -> Option<Arguments> {
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut parsed = Arguments {
        control: false,
        first: clock.map_or(0, |d| d.as_secs() << 20),
        count: 1,
        events: false,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let mut number = || given.next()?.parse().ok();
        match name.as_str() {
            "--seed" => (parsed.first, parsed.count) = (number()?, 1),
            "--seeds" => parsed.count = number()?,
            "--from" => parsed.first = number()?,
            "--control" => parsed.control = true,
            "--events" => parsed.events = true,
            _ => return None,
        }
    }
    Some(parsed)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if arguments.control {
        return control(&arguments);
    }
    let began = Instant::now();
    let (mut steps, mut answered, mut vectors) = (0, 0, 0);
    for seed in (arguments.first..).take(usize::try_from(arguments.count).unwrap_or(usize::MAX)) {
        match sim::run(seed, None, arguments.events) {
            Ok(outcome) => {
                steps += outcome.steps;
                answered += outcome.tally.answered;
                vectors += outcome.tally.vectors;
                if arguments.count == 1 {
                    println!("seed {seed}: {outcome:#?}");
                } else if (seed - arguments.first + 1).is_multiple_of(100) {
                    let took = began.elapsed().as_secs_f64();
                    println!(
                        "{} seeds, the last {seed}, in {took:.1} s",
                        seed - arguments.first + 1
                    );
                }
            }
            Err(failed) => {
                println!("{failed}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "seeds {} to {}: all rules kept in {steps} steps, {answered} answers, {vectors} vectors compared, {:.1} s",
        arguments.first,
        arguments.first + (arguments.count - 1),
        began.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}

fn control(arguments: &Arguments) -> ExitCode {
    let (began, mut all) = (Instant::now(), BTreeMap::<&str, u64>::new());
    for seed in (arguments.first..).take(usize::try_from(arguments.count).unwrap_or(usize::MAX)) {
        match sim_control::run(seed, None) {
            Ok(outcome) => {
                if arguments.events {
                    println!("{}", outcome.story.join("\n"));
                }
                for (what, often) in outcome.happened {
                    *all.entry(what).or_default() += often;
                }
            }
            Err(failed) => {
                println!("{failed}");
                return ExitCode::FAILURE;
            }
        }
    }
    let all: Vec<String> = all.iter().map(|(of, n)| format!("{of} {n}")).collect();
    println!(
        "seeds {} to {} of the control plane: all rules kept; {}; {:.1} s",
        arguments.first,
        arguments.first + (arguments.count - 1),
        all.join(", "),
        began.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
