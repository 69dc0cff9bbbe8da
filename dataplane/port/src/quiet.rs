//! Threads of a library, in which no handler of the program's runs.

use std::io;
use std::mem::MaybeUninit;
use std::thread::{Builder, JoinHandle};

/// Signals of a thread's own doing. Blocked, they would end the process without a word of what reports crashes.
const OF_ITS_OWN: [i32; 7] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
];

/// Starts a thread in which signals are blocked, but those of its own doing: so the kernel delivers them to the program's threads,
/// which wait for them, and whose calls they are to end.
///
/// # Errors
/// Where the system has no room for another thread.
pub fn spawn_quiet<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread begins with the mask of the one that starts it.
    let before = mask(&blocked());
    let thread = Builder::new().name(name.into()).spawn(work);
    mask(&before);
    thread
}

fn blocked() -> libc::sigset_t {
    let mut signals = MaybeUninit::uninit();
    // SAFETY: the set is filled by the first call, and changed by the others.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        for signal in OF_ITS_OWN {
            libc::sigdelset(signals.as_mut_ptr(), signal);
        }
        signals.assume_init()
    }
}

/// Blocks these signals in this thread, and no others. Gives those that were blocked before.
fn mask(signals: &libc::sigset_t) -> libc::sigset_t {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the set is a valid one, and the other is filled where the call succeeds, which it does for SIG_SETMASK.
    unsafe {
        let failed = libc::pthread_sigmask(libc::SIG_SETMASK, signals, before.as_mut_ptr());
        assert_eq!(failed, 0, "signals can be blocked");
        before.assume_init()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked_here() -> u64 {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
        u64::from_str_radix(line.expect("a mask").trim(), 16).expect("hexadecimal")
    }

    #[test]
    fn signals_are_blocked_there_and_not_here() {
        let before = blocked_here();
        let there = spawn_quiet("quiet", || {
            (
                blocked_here(),
                std::thread::current().name().map(String::from),
            )
        });
        let (there, name) = there.expect("a thread").join().expect("no panic");
        assert_eq!(blocked_here(), before);
        assert_eq!(name.as_deref(), Some("quiet"));
        let bit = |signal: i32| there & 1 << (signal - 1) != 0;
        for signal in [
            libc::SIGINT,
            libc::SIGTERM,
            libc::SIGALRM,
            libc::SIGPROF,
            libc::SIGUSR1,
            libc::SIGCHLD,
        ] {
            assert!(bit(signal), "{signal} is blocked");
        }
        assert!(!bit(libc::SIGSEGV) && !bit(libc::SIGBUS));
    }
}
