//! The sleep on a completion queue: `rdma/sleep.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use loom::sync::Mutex;
use loom::thread;
use rustix::io::Errno;

use crate::control::{Bell, Letters, UNHARMED};
use crate::plant::{self, Mistake, is};
use sleep::Sleeper;

#[path = "../../src/rdma/sleep.rs"]
mod sleep;

/// A completion queue and its channel as verbs promise them: whoever arms the queue gets an event with the next
/// completion, one event however many completions follow.
struct Device {
    queue: Mutex<Queue>,
    /// The channel's descriptor, and the lane's bell: a sleeper waits for both at once.
    bell: Bell,
}

#[derive(Default)]
struct Queue {
    completions: VecDeque<u32>,
    armed: bool,
    events: u32,
}

impl Device {
    fn new(bell: Bell) -> Device {
        Device {
            queue: Mutex::default(),
            bell,
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> T {
        act(&mut self.queue.lock().expect(UNHARMED))
    }

    /// The device's side. Between the completion and the event anything can happen.
    fn complete(&self, number: u32) {
        self.with(|queue| queue.completions.push_back(number));
        let event = self.with(|queue| {
            let armed = std::mem::take(&mut queue.armed);
            queue.events += u32::from(armed);
            armed
        });
        if event {
            self.bell.ring();
        }
    }
}

/// A worker: completions, and messages of the control thread.
struct Worker {
    device: Arc<Device>,
    letters: Arc<Letters<u32, u32>>,
    armed: bool,
    completed: u32,
    messages: usize,
    /// Of both.
    found: bool,
}

impl Worker {
    fn poll(&mut self) {
        while let Some(number) = self.device.with(|queue| queue.completions.pop_front()) {
            assert_eq!(number, self.completed, "completions keep their order");
            self.completed += 1;
            self.found = true;
        }
    }

    fn has_message(&self) -> bool {
        self.letters.posted() != self.messages
    }

    /// Polls and sleeps until all has come.
    fn run(&mut self, completions: u32, messages: usize) {
        while self.completed < completions || self.messages < messages {
            self.found = false;
            self.poll();
            while self.has_message() {
                let message = self.letters.take().expect("what was counted is there");
                assert_eq!(message as usize, self.messages);
                self.messages += 1;
                self.found = true;
            }
            if !self.found {
                sleep::sleep(self, None).expect("a model's wait does not fail");
            }
        }
    }
}

impl Sleeper for Worker {
    fn progress(&mut self) {
        if !is(Mistake::ArmsLast) {
            self.poll();
        }
    }

    fn arm(&mut self) -> bool {
        if !self.armed {
            self.device.with(|queue| queue.armed = true);
            self.armed = true;
        }
        true
    }

    fn is_quiet(&self) -> bool {
        !self.found && !self.has_message()
    }

    fn wait(&mut self, _: Option<Duration>) -> Result<(), Errno> {
        self.device.bell.wait();
        Ok(())
    }

    fn take_events(&mut self) {
        if is(Mistake::ForgetsToArm) {
            return;
        }
        while self.device.with(|queue| {
            let event = queue.events > 0;
            queue.events -= u32::from(event);
            event
        }) {
            self.armed = false;
        }
    }
}

fn worker(completions: u32, messages: u32) {
    let letters: Letters<u32, u32> = Letters::new(2, 2, Bell::new(), Arc::new(Bell::new()));
    let letters = Arc::new(letters);
    let device = Arc::new(Device::new(letters.bell().clone()));
    let busy = {
        let device = Arc::clone(&device);
        thread::spawn(move || (0..completions).for_each(|number| device.complete(number)))
    };
    let control = (messages > 0).then(|| {
        let letters = Arc::clone(&letters);
        thread::spawn(move || (0..messages).for_each(|message| letters.post(message)))
    });
    let mut worker = Worker {
        device,
        letters,
        armed: false,
        completed: 0,
        messages: 0,
        found: false,
    };
    worker.run(completions, messages as usize);
    busy.join().expect("the device ends");
    if let Some(control) = control {
        control.join().expect("the control thread ends");
    }
}

/// One thread that completes, one that sleeps.
fn completions_only() {
    worker(3, 0);
}

#[test]
fn no_completion_is_slept_through() {
    crate::check(completions_only);
    let mistakes = [
        Mistake::ArmsLast,
        Mistake::ForgetsToArm,
        Mistake::BellForgets,
    ];
    plant::assert_found(&mistakes, completions_only);
}

/// Two threads share a client: one drains the queue while the other sleeps without the lock.
fn shared_queue() {
    const COMPLETIONS: u32 = 2;
    let letters = Letters::new(1, 1, Bell::new(), Arc::new(Bell::new()));
    let device = Arc::new(Device::new(letters.bell().clone()));
    let busy = {
        let device = Arc::clone(&device);
        thread::spawn(move || (0..COMPLETIONS).for_each(|number| device.complete(number)))
    };
    let shared = Arc::new(Mutex::new(Worker {
        device: Arc::clone(&device),
        letters: Arc::new(letters),
        armed: false,
        completed: 0,
        messages: 0,
        found: false,
    }));
    let other = {
        let shared = Arc::clone(&shared);
        thread::spawn(move || shared.lock().expect(UNHARMED).poll())
    };
    loop {
        let mut own = shared.lock().expect(UNHARMED);
        own.found = false;
        if own.completed == COMPLETIONS {
            break;
        }
        let quiet = sleep::lie_down(&mut *own);
        drop(own);
        if quiet {
            device.bell.wait();
            let mut own = shared.lock().expect(UNHARMED);
            own.take_events();
            own.poll();
        }
    }
    busy.join().expect("the device ends");
    other.join().expect("the other thread ends");
}

#[test]
fn a_client_sleeps_while_another_thread_polls() {
    crate::check(shared_queue);
    let mistakes = [
        Mistake::ArmsLast,
        Mistake::ForgetsToArm,
        Mistake::BellForgets,
    ];
    plant::assert_found(&mistakes, shared_queue);
}

/// And one that sends messages.
fn completions_and_messages() {
    worker(2, 1);
}

#[test]
fn a_worker_sleeps_on_completions_and_messages_at_once() {
    crate::check(completions_and_messages);
    let mistakes = [
        Mistake::ArmsLast,
        Mistake::ForgetsToArm,
        Mistake::BellForgets,
    ];
    plant::assert_found(&mistakes, completions_and_messages);
}
