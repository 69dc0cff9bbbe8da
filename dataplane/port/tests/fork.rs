//! What a forked child has of the descriptors that are its parent's alone.

use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rowmill_port::{MAX_LISTED, ParentFd, PortError, Process};
use rustix::process::{Resource, Rlimit};

/// Runs in a child, which ends with what it returns.
fn exit_code_of_child(act: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child allocates nothing and takes no lock; it ends without running what the parent has left for its end.
    match unsafe { libc::fork() } {
        0 => {
            let code = if act() { 0 } else { 1 };
            // SAFETY: it only ends the process.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is a place of this function.
            let waited = unsafe { libc::waitpid(child, &mut status, 0) };
            assert!(child > 0 && waited == child && libc::WIFEXITED(status));
            libc::WEXITSTATUS(status)
        }
    }
}

fn is_open(number: i32) -> bool {
    // SAFETY: it touches no memory.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

fn pipe() -> (std::io::PipeReader, OwnedFd) {
    let (read, write) = std::io::pipe().expect("a pipe");
    (read, write.into())
}

/// One test: the list is the process', and another test's fork would see this one's.
#[test]
fn a_child_has_the_numbers_and_not_what_they_stand_for() {
    let here = Process::this().expect("memory");
    assert!(here.is_this());
    let (mut read, write) = pipe();
    let parents = ParentFd::new(write).expect("a place");
    let number = parents.as_fd().as_raw_fd();
    let (_other, kept) = pipe();
    let kept_number = kept.as_raw_fd();
    let mut parents = Some(parents);
    let code = exit_code_of_child(|| {
        let told = !here.is_this() && Process::this().is_ok_and(Process::is_this);
        // A write goes nowhere, and the number is still this owner's to close.
        let wrote = rustix::io::write(parents.as_ref().expect("its own"), b"12345678");
        let open = is_open(number) && is_open(kept_number);
        parents.take();
        told && wrote.is_ok() && open && !is_open(number) && is_open(kept_number)
    });
    assert_eq!(code, 0);
    assert!(here.is_this());
    drop(parents);
    let mut bytes = Vec::new();
    read.read_to_end(&mut bytes)
        .expect("the write end is closed");
    assert_eq!(bytes, [], "nothing of the child's came");

    // A place is free when its descriptor is closed; the list is bounded.
    let few = (MAX_LISTED + 64) as u64;
    let limit = rustix::process::getrlimit(Resource::Nofile);
    assert!(limit.maximum.is_none_or(|most| most >= few), "{limit:?}");
    let raised = Rlimit {
        current: Some(few),
        ..limit
    };
    rustix::process::setrlimit(Resource::Nofile, raised).expect("within the maximum");
    for _ in 0..2 {
        let mut listed = Vec::new();
        let error = loop {
            match ParentFd::new(kept.try_clone().expect("a descriptor")) {
                Ok(fd) => listed.push(fd),
                Err(error) => break error,
            }
        };
        assert_eq!(listed.len(), MAX_LISTED);
        assert!(matches!(error, PortError::System { .. }), "{error}");
    }
}
