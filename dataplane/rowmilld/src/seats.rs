//! Which CPU each worker is on.

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::config::{Config, Cpus};
use crate::plan::{Choice, PlanError};

/// The CPUs this process may use, ascending.
///
/// # Errors
/// Where the kernel doesn't tell.
pub(crate) fn allowed() -> Result<Vec<usize>, PlanError> {
    let set = sched_getaffinity(None)
        .map_err(|errno| PlanError::Cpus(format!("sched_getaffinity: {errno}")))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// The CPU of each worker, or `None` where the kernel may choose. Interrupts of the disk that rows are read from come to the `disturbed`
/// ones, which are taken last where there is a choice.
///
/// # Errors
/// [`PlanError::Cpus`] where the configuration asks for more than is allowed.
pub(crate) fn choose(
    config: &Config,
    allowed: &[usize],
    disturbed: &[usize],
) -> Result<(Vec<Option<usize>>, Choice), PlanError> {
    let pin = config.workers.pin;
    let (cpus, why) = match &config.workers.cpus {
        Cpus::List(list) => (list.clone(), "workers.cpus lists them".to_owned()),
        Cpus::Count(count) => {
            let why = format!("workers.cpus = {count}");
            (best(allowed, disturbed, *count), why)
        }
        Cpus::Auto => {
            // A control group's quota can be less than the CPUs it allows.
            let usable = std::thread::available_parallelism().map_or(1, usize::from);
            let count = usable.min(allowed.len()).saturating_sub(1).max(1);
            let why = format!("{usable} CPUs can be used, and one is left for everything else");
            (best(allowed, disturbed, count), why)
        }
    };
    if pin && cpus.len() > allowed.len() {
        return Err(PlanError::Cpus(format!(
            "{} workers are to be pinned, and this process may use {} CPUs ({}); lower the number, \
             or set workers.pin = false",
            cpus.len(),
            allowed.len(),
            list_text(allowed)
        )));
    }
    if let Some(cpu) = cpus.iter().find(|cpu| pin && !allowed.contains(cpu)) {
        return Err(PlanError::Cpus(format!(
            "CPU {cpu} is not one that this process may use ({}); list others",
            list_text(allowed)
        )));
    }
    let workers = format!("{} on CPU {}", cpus.len(), list_text(&cpus));
    let is_met = cpus.iter().any(|cpu| disturbed.contains(cpu));
    let chosen = if !pin {
        let why =
            format!("{why}; workers.pin = false: the kernel may move them, which costs caches");
        Choice::warning("workers", format!("{}, not pinned", cpus.len()), why)
    } else if cpus.len() == allowed.len() {
        let why = format!(
            "{why}{}; no CPU is left for clients and control, which will interrupt workers",
            of_interrupts(&cpus, disturbed)
        );
        Choice::warning("workers", workers, why)
    } else {
        let why = why + &of_interrupts(&cpus, disturbed);
        match is_met {
            true => Choice::warning("workers", workers, why),
            false => Choice::new("workers", workers, why),
        }
    };
    let seats = cpus.into_iter().map(|cpu| pin.then_some(cpu)).collect();
    Ok((seats, chosen))
}

/// The last `count` CPUs, and of the disturbed ones as few as can be, ascending; where there are fewer, numbers that are refused or,
/// unpinned, not used.
fn best(allowed: &[usize], disturbed: &[usize], count: usize) -> Vec<usize> {
    let (last, first): (Vec<usize>, Vec<usize>) =
        allowed.iter().partition(|cpu| disturbed.contains(cpu));
    let by_rank = [last, first].concat();
    let mut cpus = by_rank[by_rank.len().saturating_sub(count)..].to_vec();
    cpus.sort_unstable();
    let beyond = count.saturating_sub(allowed.len());
    cpus.extend(CpuSet::MAX_CPU..CpuSet::MAX_CPU + beyond);
    cpus
}

/// What interrupts of the disk have to do with it.
fn of_interrupts(cpus: &[usize], disturbed: &[usize]) -> String {
    if disturbed.is_empty() {
        return String::new();
    }
    let (met, missed): (Vec<usize>, Vec<usize>) =
        disturbed.iter().partition(|cpu| cpus.contains(cpu));
    let come = |cpus: &[usize]| {
        let cpus = list_text(cpus);
        format!("; interrupts of the disk that rows are read from come to CPU {cpus}")
    };
    match met.is_empty() {
        true => come(&missed) + ", which is no worker's",
        false => {
            come(&met)
                + ", a worker's, and hold up its requests: give workers other CPUs, if there are some"
        }
    }
}

fn list_text(cpus: &[usize]) -> String {
    cpus.iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(more: &str) -> Config {
        let text = format!("[model]\ndirectory = \"/m\"\n{more}");
        Config::parse(&text, Path::new("r.toml")).unwrap()
    }

    fn on(
        text: &str,
        allowed: &[usize],
        disturbed: &[usize],
    ) -> Result<(Vec<Option<usize>>, Choice), String> {
        let config = config(&format!("[workers]\n{text}"));
        choose(&config, allowed, disturbed).map_err(|error| error.to_string())
    }

    #[test]
    fn workers_take_the_last_cpus() {
        let on = |text: &str, allowed: &[usize]| on(text, allowed, &[]).map(|(seats, _)| seats);
        assert_eq!(on("cpus = 1", &[0, 1]), Ok(vec![Some(1)]));
        assert_eq!(on("cpus = 2", &[0, 2, 5]), Ok(vec![Some(2), Some(5)]));
        assert_eq!(on("cpus = 2", &[4, 5]), Ok(vec![Some(4), Some(5)]));
        assert_eq!(on("cpus = [5, 4]", &[4, 5, 6]), Ok(vec![Some(5), Some(4)]));
        assert_eq!(on("cpus = \"auto\"", &[3]), Ok(vec![Some(3)]));
        let error = on("cpus = 3", &[4, 5]).unwrap_err();
        assert!(
            error.contains("this process may use 2 CPUs (4, 5)"),
            "{error}"
        );
        let error = on("cpus = [7]", &[4, 6]).unwrap_err();
        assert!(
            error.contains("CPU 7 is not one that this process may use (4, 6)"),
            "{error}"
        );
    }

    #[test]
    fn workers_keep_off_cpus_that_the_disk_interrupts() {
        let of = |text: &str, allowed: &[usize], disturbed: &[usize]| {
            let (seats, chosen) = on(text, allowed, disturbed).unwrap();
            (seats.into_iter().flatten().collect::<Vec<_>>(), chosen.why)
        };
        let (cpus, why) = of("cpus = 1", &[0, 1], &[1]);
        assert_eq!(cpus, [0]);
        let is_none = why.ends_with("come to CPU 1, which is no worker's");
        assert!(is_none, "{why}");
        assert_eq!(of("cpus = 2", &[0, 1, 2, 3], &[2]).0, [1, 3]);
        assert_eq!(of("cpus = 2", &[0, 1, 2, 3], &[0]).0, [2, 3]);
        // Those that it may not use are nobody's here.
        assert_eq!(of("cpus = 2", &[0, 1, 2, 3], &[9]).0, [2, 3]);
        // Where there is no choice, or somebody else has chosen, it is told.
        for (text, chosen) in [("cpus = 2", vec![0, 1]), ("cpus = [1]", vec![1])] {
            let (seats, told) = on(text, &[0, 1], &[1]).unwrap();
            assert_eq!(seats.into_iter().flatten().collect::<Vec<_>>(), chosen);
            let is_told = told.why.contains("come to CPU 1, a worker's");
            assert!(is_told && told.warning, "{told:?}");
        }
    }

    #[test]
    fn unpinned_workers_may_be_more_than_the_cpus() {
        let (seats, chosen) = on("cpus = 4\npin = false", &[0, 1], &[1]).unwrap();
        assert_eq!(seats, [None; 4]);
        assert!(chosen.warning, "{chosen:?}");
        // They are wherever the kernel has them.
        assert!(!chosen.why.contains("interrupts"), "{chosen:?}");
    }
}
