//! What the stand-in has and does: words in the environment variable `ROWMILL_STAND_IN`, read with `cuInit`, or given to
//! `rowmill_stand_in_options` later. Separated by blanks:
//!
//! | word | meaning |
//! |---|---|
//! | `no-dmabuf` | memory can't be exported (attribute 124) |
//! | `no-device` | there is no device: `cuInit` fails |
//! | `managed` | what `cuMemAlloc` gives is managed memory |
//! | `ordering=N` | attribute 118 |
//! | `no-flush` | waiting streams can't flush (attribute 98) |
//! | `delay=US` | streams take so long for each step |
//! | `slow=NAME:US` | and so long more for those of this function |
//! | `ignore=NAME` | the function does nothing, and succeeds: an order that is broken |
//! | `corrupt=NAME` | copies of this function have another first byte |
//! | `fail=NAME:CODE` | the function fails |

use core::time::Duration;

/// See the module's text.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) dmabuf: bool,
    pub(crate) device: bool,
    pub(crate) managed: bool,
    pub(crate) ordering: i32,
    pub(crate) flush: bool,
    pub(crate) delay: Duration,
    slow: Vec<(String, Duration)>,
    ignored: Vec<String>,
    corrupting: Vec<String>,
    failing: Vec<(String, i32)>,
}

impl Options {
    /// # Panics
    /// If a word is not understood: a test is wrong then.
    pub(crate) fn parse(words: &str) -> Options {
        let mut options = Options {
            dmabuf: true,
            device: true,
            managed: false,
            ordering: 200,
            flush: true,
            delay: Duration::from_micros(50),
            slow: Vec::new(),
            ignored: Vec::new(),
            corrupting: Vec::new(),
            failing: Vec::new(),
        };
        let us = |text: &str| Duration::from_micros(text.parse().expect("microseconds"));
        for word in words.split_whitespace() {
            match word.split_once('=').unwrap_or((word, "")) {
                ("no-dmabuf", "") => options.dmabuf = false,
                ("no-device", "") => options.device = false,
                ("no-flush", "") => options.flush = false,
                ("managed", "") => options.managed = true,
                ("ordering", scope) => options.ordering = scope.parse().expect("a number"),
                ("delay", time) => options.delay = us(time),
                ("ignore", name) => options.ignored.push(name.into()),
                ("corrupt", name) => options.corrupting.push(name.into()),
                ("slow", rest) => {
                    let (name, time) = rest.split_once(':').expect("NAME:US");
                    options.slow.push((name.into(), us(time)));
                }
                ("fail", rest) => {
                    let (name, code) = rest.split_once(':').expect("NAME:CODE");
                    options
                        .failing
                        .push((name.into(), code.parse().expect("a number")));
                }
                _ => panic!("ROWMILL_STAND_IN: `{word}` is not understood"),
            }
        }
        options
    }

    /// What a call of the function is to give at once, if anything.
    pub(crate) fn outcome(&self, name: &str) -> Option<i32> {
        let failing = self.failing.iter().find(|(failing, _)| failing == name);
        let ignored = self.ignored.iter().any(|ignored| ignored == name);
        failing.map(|(_, code)| *code).or(ignored.then_some(0))
    }

    /// Whether copies of the function are wrong.
    pub(crate) fn corrupts(&self, name: &str) -> bool {
        self.corrupting.iter().any(|corrupting| corrupting == name)
    }

    /// How long a stream takes for a step of the function.
    pub(crate) fn pause(&self, name: &str) -> Duration {
        let slow = self.slow.iter().filter(|(slow, _)| slow == name);
        slow.map(|(_, time)| *time).sum::<Duration>() + self.delay
    }
}
