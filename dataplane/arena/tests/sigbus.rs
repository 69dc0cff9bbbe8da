//! What the SIGBUS handler does in a process that is not its own: each part runs in a process of its own.

use std::fs::File;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output, exit};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use rowmill_arena::{
    ArenaError, HugePages, MAX_WATCHED, MappedFile, Region, install_sigbus_handler, sealed_memfd,
};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};

const CHILD_VARIABLE: &str = "ROWMILL_ARENA_TEST_CHILD";

/// What a child says when it has done all that it should; its panics end with another code.
const DONE: i32 = 17;

const PAGE: usize = 4096;

fn child(part: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_entry", "--nocapture", "--test-threads=1"])
        .env(CHILD_VARIABLE, part)
        .output()
        .unwrap()
}

/// What a child must do to pass.
fn is_done(part: &str) {
    let output = child(part);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(DONE), "{part}: {told}");
}

fn is_killed(part: &str) -> Output {
    let output = child(part);
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{part}");
    output
}

/// Does nothing in an ordinary run; in a child it is the whole of the process.
#[test]
fn child_entry() {
    let Ok(part) = std::env::var(CHILD_VARIABLE) else {
        return;
    };
    match part.as_str() {
        "limit" => reach_the_limit(),
        "fault" => touch_lost_page_of_others(),
        "sent" => send(),
        "default fault" => {
            set(libc::SIG_DFL, 0);
            touch_lost_page_of_others();
        }
        "default sent" => {
            set(libc::SIG_DFL, 0);
            send();
        }
        "ignored" => {
            set(libc::SIG_IGN, 0);
            send();
            println!("went on");
            touch_lost_page_of_others();
        }
        "informed" => {
            set(
                informed as extern "C" fn(_, _, _) as usize,
                libc::SA_SIGINFO,
            );
            let page = all_goes_on();
            assert_eq!(ADDRESS.load(SeqCst), page);
            assert!(BLOCKED.load(SeqCst), "its mask is kept");
        }
        "plain" => {
            set(plain as extern "C" fn(_) as usize, 0);
            let _page = all_goes_on();
        }
        "once" => {
            set(plain as extern "C" fn(_) as usize, libc::SA_RESETHAND);
            touch_lost_page_of_others();
            println!("went on");
            touch_lost_page_of_others();
        }
        other => panic!("no part is called {other}"),
    }
    exit(DONE);
}

/// Times that the handler before was called, and what it was told of a fault.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static BLOCKED: AtomicBool = AtomicBool::new(false);

/// The page that the handler before makes good.
static LOST: AtomicUsize = AtomicUsize::new(0);

extern "C" fn plain(signal: libc::c_int) {
    assert_eq!(signal, libc::SIGBUS);
    CALLS.fetch_add(1, SeqCst);
    let page = LOST.load(SeqCst) as *mut libc::c_void;
    if !page.is_null() {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the page is a mapping of this test's that only the touch under way uses.
        unsafe { mmap_anonymous(page, PAGE, ProtFlags::READ, flags) }.unwrap();
    }
}

extern "C" fn informed(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    assert!(!context.is_null());
    let mut mask = MaybeUninit::uninit();
    // SAFETY: info is the kernel's; the mask is written before it is read.
    unsafe {
        if (*info).si_code > 0 {
            ADDRESS.store((*info).si_addr() as usize, SeqCst);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, null(), mask.as_mut_ptr());
        BLOCKED.store(libc::sigismember(mask.as_ptr(), libc::SIGUSR1) == 1, SeqCst);
    }
    plain(signal);
}

/// Sets what SIGBUS does; a handler is called with SIGUSR1 blocked.
fn set(action: usize, flags: libc::c_int) {
    // SAFETY: an all-zero sigaction is a valid one, and the handlers of this file have the signatures that the flags say.
    unsafe {
        let mut wanted: libc::sigaction = zeroed();
        wanted.sa_sigaction = action;
        wanted.sa_flags = flags;
        libc::sigaddset(&raw mut wanted.sa_mask, libc::SIGUSR1);
        assert_eq!(
            libc::sigaction(libc::SIGBUS, &raw const wanted, null_mut()),
            0
        );
    }
}

/// Sends itself the signal, with the handler installed.
fn send() {
    install_sigbus_handler().unwrap();
    // SAFETY: raise has no precondition.
    unsafe { libc::raise(libc::SIGBUS) };
}

/// A page of a file that is truncated before anybody has touched it.
fn lost_page() -> *const u8 {
    let file: File = tempfile::tempfile().unwrap();
    file.set_len(PAGE as u64).unwrap();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let page = unsafe {
        mmap(
            null_mut(),
            PAGE,
            ProtFlags::READ,
            MapFlags::SHARED,
            &file,
            0,
        )
    };
    file.set_len(0).unwrap();
    page.unwrap().cast()
}

/// Touches memory that is not watched, beside some that is.
fn touch_lost_page_of_others() {
    let fd = sealed_memfd("watched", PAGE, HugePages::Off).unwrap();
    let _watched = Region::map(fd.as_fd(), PAGE).unwrap();
    let page = lost_page();
    LOST.store(page as usize, SeqCst);
    // SAFETY: it is mapped. The touch ends the process, or a handler makes the page good.
    let byte = unsafe { page.read_volatile() };
    assert_eq!(byte, 0);
}

/// The handler before is called for what is not watched, and for that only. Gives the page that was lost.
fn all_goes_on() -> usize {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGE as u64).unwrap();
    let mapped = MappedFile::open(file.path()).unwrap();
    file.as_file().set_len(0).unwrap();
    assert!(mapped.read(0, &mut [0]).is_err());
    assert!(mapped.is_lost());
    assert_eq!(CALLS.load(SeqCst), 0, "watched memory is not told of");
    touch_lost_page_of_others();
    assert_eq!(CALLS.load(SeqCst), 1);
    let page = LOST.swap(0, SeqCst);
    send();
    assert_eq!(CALLS.load(SeqCst), 2, "a signal that was sent is handed on");
    page
}

fn reach_the_limit() {
    let fd = sealed_memfd("limit", PAGE, HugePages::Off).unwrap();
    let mut regions: Vec<Region> = (0..MAX_WATCHED)
        .map(|_| Region::map(fd.as_fd(), PAGE).unwrap())
        .collect();
    assert!(matches!(
        Region::map(fd.as_fd(), PAGE),
        Err(ArenaError::TooManyMappings)
    ));
    regions.pop();
    regions.push(Region::map(fd.as_fd(), PAGE).unwrap());
}

#[test]
fn unwatched_faults_kill_where_the_runtime_has_a_handler() {
    is_killed("fault");
}

#[test]
fn sent_signals_kill_where_the_runtime_has_a_handler() {
    is_killed("sent");
}

#[test]
fn unwatched_faults_kill_where_nobody_has_one() {
    is_killed("default fault");
}

#[test]
fn sent_signals_kill_where_nobody_has_one() {
    is_killed("default sent");
}

#[test]
fn ignored_signals_are_ignored_and_faults_kill() {
    let output = is_killed("ignored");
    assert!(String::from_utf8_lossy(&output.stdout).contains("went on"));
}

#[test]
fn the_handler_before_is_called_with_what_the_kernel_says() {
    is_done("informed");
}

#[test]
fn a_handler_before_that_wants_no_more_is_called_with_the_signal() {
    is_done("plain");
}

#[test]
fn a_handler_before_that_wants_one_call_gets_one() {
    let output = is_killed("once");
    assert!(String::from_utf8_lossy(&output.stdout).contains("went on"));
}

#[test]
fn table_of_mappings_is_bounded() {
    is_done("limit");
}
