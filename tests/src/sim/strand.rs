//! A thread of the service that is no worker, made to run between two steps of a simulated world and never beside one.
//!
//! The service's own code waits inside a call for workers to pass a point. Here it runs on a thread of its own, which goes on only while
//! the world waits for it, and gives way wherever it would wait. So which of both runs, and when, is the world's to say, and a run depends on
//! its seed alone.

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

/// What unwinds a strand that nobody goes on with.
struct LetGo;

/// The strand's own half.
pub(super) struct Way<T> {
    said: SyncSender<T>,
    go: Receiver<()>,
}

impl<T> Way<T> {
    /// Says something, and waits until the world has it go on.
    pub(super) fn give(&self, said: T) {
        if self.said.send(said).is_ok() && self.go.recv().is_ok() {
            return;
        }
        // Not a panic that is told of: the run has ended.
        resume_unwind(Box::new(LetGo));
    }
}

/// The world's half.
pub(super) struct Strand<T> {
    go: Option<SyncSender<()>>,
    said: Receiver<T>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Strand<T> {
    /// Which does this, once it is made to [go on](Self::go_on).
    pub(super) fn new(work: impl FnOnce(&Way<T>) + Send + 'static) -> Strand<T> {
        let ((say, said), (go, told)) = (sync_channel(0), sync_channel(0));
        let run = move || {
            let way = Way {
                said: say,
                go: told,
            };
            if way.go.recv().is_ok() {
                work(&way);
            }
        };
        Strand {
            go: Some(go),
            said,
            thread: Some(thread::spawn(run)),
        }
    }

    /// Lets it go on until it gives way: what it says then, or none where it has come to its end.
    ///
    /// # Panics
    /// As it panics.
    pub(super) fn go_on(&mut self) -> Option<T> {
        let go = self.go.as_ref()?;
        let said = go.send(()).ok().and_then(|()| self.said.recv().ok());
        if said.is_none() {
            self.go = None;
            let thread = self.thread.take().expect("it ends once");
            if let Err(panic) = thread.join() {
                resume_unwind(panic);
            }
        }
        said
    }
}

impl<T> Drop for Strand<T> {
    /// Where it was left, it ends.
    fn drop(&mut self) {
        self.go = None;
        if let Some(thread) = self.thread.take() {
            // It holds locks of tables that nobody uses any more; how it ended tells nothing.
            let _let_go = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn runs_only_while_it_is_waited_for() {
        let count = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&count);
        let mut strand = Strand::new(move |way| {
            for n in 1..=3 {
                theirs.store(n, Ordering::Relaxed);
                way.give(n);
            }
            theirs.store(9, Ordering::Relaxed);
        });
        for n in 1..=3 {
            assert_eq!(count.load(Ordering::Relaxed), n - 1);
            assert_eq!(strand.go_on(), Some(n));
        }
        assert_eq!((strand.go_on(), strand.go_on()), (None, None));
        assert_eq!(count.load(Ordering::Relaxed), 9);
    }

    #[test]
    fn ends_where_it_is_let_go() {
        struct Told(Arc<AtomicU32>);
        impl Drop for Told {
            fn drop(&mut self) {
                self.0.store(1, Ordering::Relaxed);
            }
        }
        for begins in [false, true] {
            let ended = Arc::new(AtomicU32::new(0));
            let told = Told(Arc::clone(&ended));
            let mut strand = Strand::new(move |way| {
                let _told = told;
                way.give(1);
                unreachable!("nobody goes on with it");
            });
            assert_eq!(begins.then(|| strand.go_on()), begins.then_some(Some(1)));
            drop(strand);
            assert_eq!(ended.load(Ordering::Relaxed), 1);
        }
    }

    #[test]
    #[should_panic(expected = "of its own")]
    fn a_panic_is_the_worlds() {
        Strand::<u32>::new(|_| panic!("a panic of its own")).go_on();
    }
}
