//! Which file is waited for, where one's disk does not answer.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use crate::log;

/// How long a file is waited for before that is said, and then from one time to the next.
const FIRST: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(10);

/// Does work that tells of each file before it reads some of it; says, in the log or on standard error where there is none yet, which one it
/// waits for if that takes long.
pub(crate) fn told<T>(work: impl FnOnce(&(dyn Fn(&Path) + Sync)) -> T) -> T {
    told_after(FIRST, &|line| log::warn(&line), work)
}

fn told_after<T>(
    first: Duration,
    say: &(dyn Fn(String) + Sync),
    work: impl FnOnce(&(dyn Fn(&Path) + Sync)) -> T,
) -> T {
    let (sender, files) = channel::<PathBuf>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let (mut file, mut next, mut waited) = (None, first, Duration::ZERO);
            loop {
                match files.recv_timeout(next) {
                    Ok(other) => (file, next, waited) = (Some(other), first, Duration::ZERO),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        waited += next;
                        next = AGAIN;
                        if let Some(file) = &file {
                            say(format!(
                                "waiting for {} for {} s: its disk has not answered",
                                file.display(),
                                waited.as_secs()
                            ));
                        }
                    }
                }
            }
        });
        // Where it can't be told nobody waits for it.
        let outcome = work(&|file| _ = sender.send(file.to_owned()));
        drop(sender);
        outcome
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_file_that_is_waited_for_is_said_and_no_other() {
        let (said, is_said) = channel();
        let said = Mutex::new(said);
        let say = |line| said.lock().unwrap().send(line).unwrap();
        let line = told_after(Duration::from_millis(20), &say, |tell| {
            tell(Path::new("first"));
            tell(Path::new("/disk/second"));
            is_said.recv().unwrap()
        });
        assert!(line.starts_with("waiting for /disk/second for "), "{line}");
        // Work that is done before ends what would be said.
        assert_eq!(told_after(AGAIN, &say, |tell| tell(Path::new("third"))), ());
        assert!(is_said.try_recv().is_err());
    }
}
