//! What releases streams: words in pinned memory, set by whoever takes answers in.
//!
//! Nothing here calls CUDA. A thread that frees memory of the GPU can hold the driver's lock until the streams go on that wait
//! here, so whoever releases them must not need that lock.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rowmill_cuda::{StreamId, Words};

use super::error::StreamFailure;
use super::failures::Failures;
use super::spans::Span;
use crate::answer::{Part, Slice};
use crate::error::Failure;
use crate::hub::{RegionMemory, Watcher};

/// What is stored where an answer is missing: bytes that make NaNs in f32, f16 and bf16.
const MISSING: [u8; 4096] = [0xff; 4096];

/// The words of all requests, and what went wrong.
#[derive(Debug)]
pub(crate) struct Flags {
    pub(crate) words: Words,
    /// Requests for which streams wait.
    waiting: AtomicUsize,
    pub(crate) failures: Failures,
}

impl Flags {
    pub(crate) fn new(words: Words) -> Flags {
        Flags {
            words,
            waiting: AtomicUsize::new(0),
            failures: Failures::new(),
        }
    }

    /// Whether streams wait for requests.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What it guards is good between any two statements.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request for which a stream waits, one after another in the same place.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Its words: a status, 0 while nothing has failed, and one for each span from there on.
    first_word: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// None once the GPU is given up.
    flags: Option<Arc<Flags>>,
    /// Where results are staged.
    staging: RegionMemory,
    /// The number of the request: what its words are set to.
    serial: u32,
    /// The caller's stream, which waits for it.
    stream: StreamId,
    /// Where its result is staged, if it is.
    place: Option<u64>,
    spans: Vec<Span>,
    /// Whether the dataplane may still write to the staging.
    in_flight: bool,
    /// Whether all words are set.
    released: bool,
}

impl Watch {
    /// A place for requests of at most `spans` spans.
    pub(crate) fn new(
        flags: &Arc<Flags>,
        staging: &RegionMemory,
        first_word: usize,
        spans: usize,
    ) -> Watch {
        let state = State {
            flags: Some(Arc::clone(flags)),
            staging: staging.clone(),
            serial: 0,
            stream: StreamId::default(),
            place: None,
            spans: Vec::with_capacity(spans),
            in_flight: false,
            released: true,
        };
        Watch {
            first_word,
            state: Mutex::new(state),
        }
    }

    /// Begins with a request for a stream, before it is sent. Gives what its words are set to; None once the GPU is given up.
    pub(crate) fn begin(
        &self,
        stream: StreamId,
        place: Option<u64>,
        spans: &[Span],
    ) -> Option<u32> {
        let mut state = lock(&self.state);
        assert!(!state.in_flight, "one request at a time");
        let flags = Arc::clone(state.flags.as_ref()?);
        // 0 is what the words are before the first one; they count round.
        state.serial = state.serial.wrapping_add(1);
        (state.stream, state.place) = (stream, place);
        (state.in_flight, state.released) = (true, false);
        state.spans.clear();
        state.spans.extend_from_slice(spans);
        let status = flags.words.word(self.first_word);
        status.store(0, Ordering::Relaxed);
        flags.waiting.fetch_add(1, Ordering::Relaxed);
        Some(state.serial)
    }

    /// The request was not sent.
    pub(crate) fn take_back(&self) {
        let mut state = lock(&self.state);
        if let Some(flags) = state.flags.as_ref().filter(|_| !state.released) {
            flags.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        (state.in_flight, state.released) = (false, true);
    }

    /// Whether the dataplane may still write to the staging.
    pub(crate) fn is_in_flight(&self) -> bool {
        lock(&self.state).in_flight
    }

    /// The word of a span.
    pub(crate) fn word(&self, span: usize) -> usize {
        self.first_word + 1 + span
    }

    /// Streams go on without the answer, if request `serial` has none yet; the dataplane may still write to the staging.
    pub(crate) fn give_up(&self, serial: u32, why: StreamFailure) {
        let mut state = lock(&self.state);
        if state.serial == serial {
            self.release(&mut state, Err(why));
        }
    }

    /// Nothing is released here from now on but by this.
    pub(crate) fn detach(&self) {
        let mut state = lock(&self.state);
        self.release(&mut state, Err(StreamFailure::Closed));
        // Not dropped here: the last one frees pinned memory, which is for a thread that may call CUDA.
        state.flags = None;
    }

    /// Sets all words of a request that has not been released: where it failed, after NaNs and the status.
    fn release(&self, state: &mut State, outcome: Result<(), StreamFailure>) {
        let Some(flags) = state.flags.as_ref().filter(|_| !state.released) else {
            return;
        };
        let missing = |at: &usize| {
            let word = flags.words.word(self.word(*at));
            word.load(Ordering::Relaxed) != state.serial
        };
        if let Err(why) = outcome {
            if let Some(place) = state.place {
                for at in (0..state.spans.len()).filter(missing) {
                    let Span { offset, bytes, .. } = state.spans[at];
                    mark_missing(&state.staging, place + offset, bytes);
                }
            }
            flags.failures.add(state.stream, why);
            let status = flags.words.word(self.first_word);
            status.store(why.code(), Ordering::Release);
        }
        for at in 0..state.spans.len() {
            let word = flags.words.word(self.word(at));
            word.store(state.serial, Ordering::Release);
        }
        flags.waiting.fetch_sub(1, Ordering::Relaxed);
        state.released = true;
    }
}

impl Watcher for Watch {
    fn part(&self, _part: Part) {
        // Its slices are among the spans, which were said before it was sent.
    }

    fn slice(&self, slice: Slice) {
        let state = lock(&self.state);
        let mut spans = state.spans.iter();
        let at =
            spans.position(|span| (span.first_bag, span.bags) == (slice.first_bag, slice.bags));
        let known = at.filter(|_| !state.released);
        if let (Some(at), Some(flags)) = (known, &state.flags) {
            let word = flags.words.word(self.word(at));
            // What was placed is seen by whoever sees the word.
            word.store(state.serial, Ordering::Release);
        }
    }

    fn end(&self, outcome: Result<(), Failure>) {
        let mut state = lock(&self.state);
        self.release(&mut state, outcome.map_err(StreamFailure::Request));
        state.in_flight = false;
    }
}

/// Puts NaNs in the place of what is missing.
fn mark_missing(staging: &RegionMemory, place: u64, bytes: u64) {
    let window = staging.window();
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(MISSING.len() as u64);
        window.write((place + done) as usize, &MISSING[..part as usize]);
        done += part;
    }
}
