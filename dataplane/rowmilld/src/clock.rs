//! The clock that workers read and everything that is compared with their times: the processor's counter, where that can be
//! trusted.
//!
//! The operating system's clock takes some 20 ns where the kernel lets programs read it by themselves, and is a system call
//! elsewhere: in user-mode Linux 30 to 40 us (measured), which two readings a request add to its latency. The counter takes an
//! instruction. How fast it runs is measured once, at start, and never exactly, so the two drift apart: times of this clock are compared with times of this clock alone.

#[cfg(test)]
use core::time::Duration;
use std::fs;
use std::time::Instant;

use crate::plan::Choice;

/// The kernel's names of the sources that it could take its own time from.
const SOURCES: &str = "/sys/devices/system/clocksource/clocksource0/available_clocksource";

/// Nanoseconds since it was made. Copies count from the same moment.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    /// The counter, and what it showed at zero.
    Counter(quanta::Clock, u64),
    System(Instant),
}

impl Clock {
    /// The best one of this machine, and why it is that. Takes up to 200 ms where the counter's rate is measured.
    pub fn choose() -> (Clock, Choice) {
        let sources = fs::read_to_string(SOURCES).unwrap_or_default();
        let (clock, chosen, why) = match counter(has_steady_counter(), &sources) {
            Ok(why) => {
                let counter = quanta::Clock::new();
                let zero = counter.raw();
                let clock = Clock(Source::Counter(counter, zero));
                (clock, "the processor's counter", why)
            }
            Err(why) => (Clock::system(), "the operating system's", why),
        };
        (clock, Choice::new("workers' clock", chosen, why))
    }

    /// The operating system's.
    pub fn system() -> Clock {
        Clock(Source::System(Instant::now()))
    }

    /// Nanoseconds since zero. A thread that moves between CPUs whose counters differ may see it go back by that.
    pub fn now_ns(&self) -> u64 {
        match &self.0 {
            Source::Counter(counter, zero) => counter.delta_as_nanos(*zero, counter.raw()),
            Source::System(zero) => zero.elapsed().as_nanos() as u64,
        }
    }
}

/// Whether the processor has a counter that runs at one rate in all its states, as quanta looks for it.
#[cfg(target_arch = "x86_64")]
fn has_steady_counter() -> bool {
    use core::arch::x86_64::__cpuid;
    // Advanced power management information, whose bit 8 is TscInvariant (AMD APM volume 3, E.4.6; Intel SDM volume 2, CPUID);
    // the highest leaf comes first. RDTSCP is bit 27 of EDX of leaf 0x8000_0001.
    let has =
        |leaf: u32, bit: u32| __cpuid(0x8000_0000).eax >= leaf && __cpuid(leaf).edx & 1 << bit != 0;
    has(0x8000_0007, 8) && has(0x8000_0001, 27)
}

/// Each processor of Armv8 has one (Arm Architecture Reference Manual, D12, the Generic Timer).
#[cfg(target_arch = "aarch64")]
fn has_steady_counter() -> bool {
    true
}

/// Whether to read the counter, and why. On a PC the kernel watches it, and takes it off its list once it has seen it go wrong;
/// the list of user-mode Linux has none of a PC's sources.
fn counter(is_steady: bool, sources: &str) -> Result<&'static str, &'static str> {
    let named = |source| sources.split_whitespace().any(|name| name == source);
    if !is_steady {
        Err("the processor has no counter of one rate")
    } else if (named("hpet") || named("acpi_pm")) && !named("tsc") {
        Err("the kernel does not trust the processor's counter")
    } else {
        Ok("read in an instruction; it runs at one rate")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_counter_where_processor_and_kernel_let_it() {
        assert!(counter(false, "tsc acpi_pm").is_err());
        assert!(counter(true, "hpet acpi_pm\n").is_err());
        for sources in [
            "tsc kvm-clock acpi_pm\n",
            "arch_sys_counter\n",
            "timer\n",
            "",
        ] {
            assert!(counter(true, sources).is_ok(), "{sources}");
        }
    }

    #[test]
    fn counts_nanoseconds() {
        for clock in [Clock::choose().0, Clock::system()] {
            // What a preemption takes counts for one of these two, whenever it comes.
            let around = Instant::now();
            let began = clock.now_ns();
            let since = Instant::now();
            let mut last = began;
            while since.elapsed() < Duration::from_millis(20) {
                let now = clock.now_ns();
                // What a move to another CPU may cost.
                assert!(now + 1000 >= last, "{clock:?}: {last}, then {now}");
                last = now;
            }
            let within = since.elapsed().as_nanos() as u64;
            let took = clock.now_ns() - began;
            let around = around.elapsed().as_nanos() as u64;
            // Only gross errors, as of the rate: that is measured on a machine that does other work.
            let right = within - within / 10..around + around / 10;
            assert!(right.contains(&took), "{clock:?}: {took} of {right:?}");
        }
    }
}
