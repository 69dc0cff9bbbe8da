//! The one SIGBUS handler of the process.
//!
//! Memory that is shared with a peer, or mapped from a file, can stop being there: a hole is punched
//! into a sealed huge-page memfd while the pool is empty, or a file is truncated. The touch then
//! raises SIGBUS. The handler replaces the whole watched mapping by anonymous zeroed memory and marks
//! it lost; the touch is repeated and succeeds, and the caller finds out by asking whether the mapping
//! is lost. Any other fault, and a signal that somebody sent, goes to the handler that was there before, as if it had been
//! called by the kernel; where there was none, the process dies.
//!
//! The handler allocates nothing, takes no lock and calls only `mmap`, `sigaction`, `raise`, and the one before. It
//! finds the mapping in a fixed table of atomics, each entry guarded by a sequence number so that an
//! entry that changes hands is never read half old, half new.

use std::ptr::{null, null_mut};
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::SeqCst};

use crate::ArenaError;
use crate::mapping::Mapping;

/// Most mappings that are watched at a time: 1,024 clients of 17 each (16 regions and the memory of
/// their rings), and 256 files. A process can have 65,530 mappings (`vm.max_map_count`).
/// The handler looks at every entry once, which takes some 10 us and happens once a lost mapping.
pub const MAX_WATCHED: usize = 1024 * 17 + 256;

/// States of an entry, in the low two bits of its word; the sequence number is above them.
const FREE: u64 = 0;
const CHANGING: u64 = 1;
const LIVE: u64 = 2;
const LOST: u64 = 3;
const STATE_MASK: u64 = 3;
const SEQUENCE_STEP: u64 = 4;

struct Entry {
    word: AtomicU64,
    start: AtomicUsize,
    len: AtomicUsize,
}

static TABLE: [Entry; MAX_WATCHED] = [const {
    Entry {
        word: AtomicU64::new(FREE),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
    }
}; MAX_WATCHED];

/// A mapping under the handler's watch, unmapped and forgotten when dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    // Fields are dropped in order: the entry is freed before the addresses can be used for something else.
    place: Place,
    mapping: Mapping,
}

#[derive(Debug)]
struct Place(usize);

impl Watched {
    /// Enters `mapping` into the table, and installs the handler where that has not happened yet.
    pub(crate) fn new(mapping: Mapping) -> Result<Watched, ArenaError> {
        install_sigbus_handler()?;
        for (at, entry) in TABLE.iter().enumerate() {
            let word = entry.word.load(SeqCst);
            if word & STATE_MASK != FREE {
                continue;
            }
            let next = word.wrapping_add(SEQUENCE_STEP);
            if entry
                .word
                .compare_exchange(word, next | CHANGING, SeqCst, SeqCst)
                .is_err()
            {
                continue;
            }
            entry.start.store(mapping.start().as_ptr() as usize, SeqCst);
            entry.len.store(mapping.len(), SeqCst);
            entry.word.store(next | LIVE, SeqCst);
            return Ok(Watched {
                place: Place(at),
                mapping,
            });
        }
        Err(ArenaError::TooManyMappings)
    }

    /// The mapping.
    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Whether the handler had to replace the memory.
    pub(crate) fn is_lost(&self) -> bool {
        TABLE[self.place.0].word.load(SeqCst) & STATE_MASK == LOST
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let entry = &TABLE[self.0];
        let word = entry.word.load(SeqCst);
        entry.word.store((word & !STATE_MASK) | FREE, SeqCst);
    }
}

/// What was there before, never freed; null stands for the default action.
static BEFORE: AtomicPtr<libc::sigaction> = AtomicPtr::new(null_mut());

/// Installs the handler for the whole process; later calls do nothing.
///
/// It takes the place of any other, and hands on to that one what is not about watched memory: a crash reporter or
/// Python's `faulthandler` goes on to work. A handler that is installed later stands before this one, and has to do
/// likewise, or lost memory ends the process.
///
/// # Errors
/// [`ArenaError::Os`] if the kernel refuses.
pub fn install_sigbus_handler() -> Result<(), ArenaError> {
    static INSTALL: Once = Once::new();
    let mut result = Ok(());
    INSTALL.call_once(|| result = install());
    result
}

fn install() -> Result<(), ArenaError> {
    // The one before is known before this one can be called.
    let before = exchange(null())?;
    remember(before);
    let mut action = before;
    action.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
    // It is called with those signals blocked that the one before wants blocked, and interrupts calls as that one does.
    let kept = before.sa_flags & (libc::SA_NODEFER | libc::SA_RESTART);
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | kept;
    let replaced = exchange(&raw const action)?;
    let same = (before.sa_sigaction, before.sa_flags);
    if (replaced.sa_sigaction, replaced.sa_flags) != same {
        remember(replaced); // Another thread's, put there meanwhile.
    }
    Ok(())
}

fn remember(action: libc::sigaction) {
    let none = action.sa_sigaction == libc::SIG_DFL;
    let kept = || Box::into_raw(Box::new(action));
    BEFORE.store(if none { null_mut() } else { kept() }, SeqCst);
}

/// Sets what SIGBUS does, unless `action` is null; what it did before.
fn exchange(action: *const libc::sigaction) -> Result<libc::sigaction, ArenaError> {
    // SAFETY: an all-zero sigaction is a valid one (no flags, empty mask, default action).
    let mut before: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: `action` is null or made by `install`: then `on_sigbus` has the signature that SA_SIGINFO asks for and does
    // only what may be done in a signal handler. `before` can be written to.
    if unsafe { libc::sigaction(libc::SIGBUS, action, &raw mut before) } != 0 {
        return Err(ArenaError::Os {
            call: "sigaction(SIGBUS)",
            source: std::io::Error::last_os_error(),
        });
    }
    Ok(before)
}

extern "C" fn on_sigbus(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: errno is this thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let saved_errno = unsafe { *errno };
    // SAFETY: the kernel passes a valid siginfo to a handler installed with SA_SIGINFO, and si_addr is
    // meaningful for SIGBUS raised by a fault (si_code > 0), the only case in which it is used.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if !(code > 0 && replace(address)) {
        // Broken memory that nobody has touched yet (BUS_MCEERR_AO) is told of as if somebody had sent it.
        let repeats = code > 0 && code != libc::BUS_MCEERR_AO;
        hand_on(signal, info, context, repeats);
    }
    // SAFETY: as above.
    unsafe { *errno = saved_errno };
}

/// Does what would have been done without this handler. `repeats`: on return, the fault is there again.
fn hand_on(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    repeats: bool,
) {
    let stored = BEFORE.load(SeqCst);
    // SAFETY: it is null or was stored by `remember`, which never frees or changes it.
    match unsafe { stored.as_ref() } {
        // The kernel lets nobody ignore a fault.
        Some(before) if before.sa_sigaction == libc::SIG_IGN && !repeats => (),
        Some(before) if before.sa_sigaction != libc::SIG_IGN => {
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                BEFORE.store(null_mut(), SeqCst); // It wants to be called once.
            }
            call(before, signal, info, context);
            // Rust's runtime and others end by restoring the default action, and count on the fault to come again. A
            // signal that somebody sent does not.
            if !repeats && is_default() {
                die(signal, repeats);
            }
        }
        _ => die(signal, repeats),
    }
}

/// Calls a handler as the kernel does.
fn call(
    handler: &libc::sigaction,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let address = handler.sa_sigaction as *const ();
    if handler.sa_flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
        // SAFETY: the address was given to sigaction with SA_SIGINFO and is neither SIG_DFL nor SIG_IGN, so it is a function
        // of this signature, which may be called in a signal handler with what the kernel has passed to this one.
        let handler = unsafe { core::mem::transmute::<*const (), Handler>(address) };
        handler(signal, info, context);
    } else {
        // SAFETY: as above, but for SA_SIGINFO: then the signature is this one.
        let handler =
            unsafe { core::mem::transmute::<*const (), extern "C" fn(libc::c_int)>(address) };
        handler(signal);
    }
}

/// Whether the signal has its default action now.
fn is_default() -> bool {
    exchange(null()).is_ok_and(|action| action.sa_sigaction == libc::SIG_DFL)
}

/// Lets the default action end the process, at the latest when the handler returns.
fn die(signal: libc::c_int, repeats: bool) {
    // SAFETY: restoring the default action has no precondition. A fault is repeated on return and
    // kills; a signal that somebody sent is sent again, since returning would swallow it.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if !repeats {
            libc::raise(signal);
        }
    }
}

/// Replaces the watched mapping that holds `address`; false where there is none or mmap fails.
fn replace(address: usize) -> bool {
    for entry in &TABLE {
        let word = entry.word.load(SeqCst);
        if word & STATE_MASK < LIVE {
            continue;
        }
        let (start, len) = (entry.start.load(SeqCst), entry.len.load(SeqCst));
        if address.wrapping_sub(start) >= len
            || entry.word.load(SeqCst) & !STATE_MASK != word & !STATE_MASK
        {
            continue;
        }
        // Lost is said before the zeros appear, so whoever reads zeros and then asks is told. Another
        // thread that faulted at the same time may have said so already, and is about to map.
        entry.word.store((word & !STATE_MASK) | LOST, SeqCst);
        // SAFETY: the entry is live: its mapping is owned by a `Watched`, which can't be dropped while
        // the faulting thread reads through it. So the range is that mapping and nothing else, and no
        // Rust reference to its bytes exists. The raw call is async-signal-safe.
        let mapped = unsafe {
            libc::syscall(
                libc::SYS_mmap,
                start,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1i64,
                0i64,
            )
        };
        return mapped as usize == start;
    }
    false
}
