//! The messages between the control thread and a lane: `control/letters.rs`.

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::plant::{self, Mistake, is};

#[path = "../../src/control/letters.rs"]
mod letters;

pub(crate) use letters::Letters;

/// A descriptor that is watched edge-triggered, or a socket: a ring that nobody waits for is kept for the next wait.
#[derive(Clone, Debug)]
pub(crate) struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    pub(crate) fn new() -> Bell {
        Bell(Arc::new((Mutex::new(false), Condvar::new())))
    }

    pub(crate) fn ring(&self) {
        let (rung, changed) = &*self.0;
        *rung.lock().expect(UNHARMED) = !is(Mistake::BellForgets);
        changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let (rung, changed) = &*self.0;
        let mut rung = rung.lock().expect(UNHARMED);
        if is(Mistake::BellForgets) {
            drop(changed.wait(rung).expect(UNHARMED));
            return;
        }
        while !*rung {
            rung = changed.wait(rung).expect(UNHARMED);
        }
        *rung = false;
    }
}

pub(crate) const UNHARMED: &str = "no thread has panicked";

/// Messages that a model sends.
const MESSAGES: u32 = 2;

fn letters() -> (Arc<Letters<u32, u32>>, Arc<Bell>) {
    let control = Arc::new(Bell::new());
    let most = MESSAGES as usize;
    let letters = Letters::new(most, most, Bell::new(), Arc::clone(&control));
    (Arc::new(letters), control)
}

/// A lane as the ports have it: it looks at the count, takes what is there, and sleeps where nothing is.
fn read(letters: &Letters<u32, u32>) {
    let mut taken: usize = 0;
    while taken < MESSAGES as usize {
        if letters.posted() == taken {
            letters.bell().wait();
            continue;
        }
        let message = letters.take().expect("what was counted is there");
        assert_eq!(message as usize, taken, "messages keep their order");
        taken = taken.wrapping_add(1);
        letters.notify(message);
    }
}

/// The control thread sends messages and sleeps until each was answered.
fn messages_arrive() {
    let (letters, control) = letters();
    let theirs = Arc::clone(&letters);
    let lane = thread::spawn(move || read(&theirs));
    for message in 0..MESSAGES {
        letters.post(message);
    }
    for message in 0..MESSAGES {
        let answer = loop {
            match letters.notice() {
                Some(answer) => break answer,
                None => control.wait(),
            }
        };
        assert_eq!(answer, message);
    }
    lane.join().expect("the lane ends");
}

#[test]
fn messages_and_notices_wake_who_sleeps() {
    crate::check(messages_arrive);
    let mistakes = [
        Mistake::RelaxedStore,
        Mistake::RelaxedLoad,
        Mistake::BellForgets,
    ];
    plant::assert_found(&mistakes, messages_arrive);
}

/// A lane that leaves while messages are sent holds none when both have done.
fn nothing_stays_behind() {
    let (letters, _control) = letters();
    let theirs = Arc::clone(&letters);
    let lane = thread::spawn(move || theirs.leave());
    letters.post(0);
    letters.post(1);
    lane.join().expect("the lane ends");
    assert!(letters.is_gone());
    assert_eq!(
        letters.take(),
        None,
        "a message stayed in a queue that nobody reads"
    );
}

#[test]
fn a_lane_that_leaves_keeps_no_message() {
    crate::check(nothing_stays_behind);
    plant::assert_found(&[Mistake::NoFence], nothing_stays_behind);
}
