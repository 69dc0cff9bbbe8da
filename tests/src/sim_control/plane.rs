//! A control plane: what is left of it on its disk, and the process, while there is one.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fastrand::Rng;
use rowmill_admission::{Limits, Planner, Recorded, TURN_NS};
use rowmill_control::config;
use rowmill_control::deciding::{Deciding, Means, Recording};
use rowmill_control::deltas::Log;
use rowmill_control::records::{Generations, Served, Told};
use rowmill_state::disk::{Disk, made};
use rowmill_state::{Change, Record, State, StateError};

use super::Mistake;

/// Bytes of a recording: more than there are.
const RECORDED: u64 = 1 << 30;

/// See the module's text.
pub(super) struct Plane {
    name: &'static str,
    take_over: bool,
    mistake: Option<Mistake>,
    /// What is on its disk while no process has it.
    bytes: Vec<u8>,
    /// What was there when the process of now began, for a disk that has lied.
    former: Vec<u8>,
    folder: PathBuf,
    states: u64,
    process: Option<Process>,
}

/// A process of a control plane.
pub(super) struct Process {
    /// Which of all it is.
    pub(super) number: u64,
    pub(super) deciding: Deciding,
    pub(super) log: Arc<Log>,
    disk: Disk,
    /// Its clock, from its start on, and when it decides next.
    pub(super) clock_ns: u64,
    turn_ns: u64,
    /// Until when, by everybody else's time, it does nothing and its clock stands.
    stands_until_ns: u64,
    /// The epoch that it began with.
    epoch: u64,
}

/// How a start went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// It is there, with what was kept.
    Done,
    /// It is there, with nothing: what was kept was damaged.
    Anew,
    /// It was killed meanwhile.
    Killed,
}

impl Plane {
    /// One that has never been there. `folder`: for what lies in files.
    pub(super) fn new(
        name: &'static str,
        folder: &Path,
        take_over: bool,
        mistake: Option<Mistake>,
    ) -> Plane {
        Plane {
            name,
            take_over,
            mistake,
            bytes: made(),
            former: made(),
            folder: folder.join(name),
            states: 0,
            process: None,
        }
    }

    pub(super) fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// The process, unless it stands still.
    pub(super) fn awake(&mut self, now_ns: u64) -> Option<&mut Process> {
        let process = self.process.as_mut()?;
        (now_ns >= process.stands_until_ns).then_some(process)
    }

    /// Where its deltas lie.
    pub(super) fn deltas(&self) -> PathBuf {
        self.folder.join("deltas")
    }

    fn recording(&self) -> PathBuf {
        self.folder.join("recording")
    }

    /// Begins a process, which is killed at one of its writes, if it is.
    pub(super) fn start(&mut self, number: u64, end: Option<usize>) -> Start {
        assert!(self.process.is_none(), "one at a time has the state");
        fs::create_dir_all(&self.folder).expect("there is room");
        let (path, mut disk) = (Path::new(self.name), Disk::of(self.bytes.clone(), end));
        let opened = State::open_backend(path, disk.clone());
        let (mut state, aside) = match opened {
            Ok(state) => (state, false),
            Err(_) if disk.image().has_ended() => {
                self.bytes = disk.image().now.clone();
                return Start::Killed;
            }
            Err(StateError::Damaged { .. } | StateError::Format { .. }) => {
                // As `State::open_or_set_aside` does, or an operator where it is said to be another version's.
                self.states += 1;
                disk = Disk::of(made(), None);
                let state = State::open_backend(path, disk.clone());
                (state.expect("it is whole"), true)
            }
            Err(error) => panic!("{error}"),
        };
        self.forget(&mut state);
        let recording = Recording::begin(&self.recording(), RECORDED);
        let means = Means {
            state,
            limits: Limits::default(),
            take_over: self.take_over || aside,
            recording: Some(recording.expect("there is room")),
        };
        let control = format!("{}-{}", self.name, self.states);
        let deciding = Deciding::begin(means, 0, || Ok(control));
        if disk.image().has_ended() {
            drop(deciding);
            self.bytes = disk.image().now.clone();
            return Start::Killed;
        }
        let deciding = deciding.expect("it can be read and written");
        let log = Log::configured(&config::Deltas {
            directory: Some(self.deltas()),
            max_bytes: 1 << 20,
            watch: None,
            redis: None,
        });
        let log = log.expect("it can be opened").expect("it is configured");
        log.check();
        self.former = disk.image().synced.clone();
        self.process = Some(Process {
            number,
            epoch: deciding.planner().epoch(),
            deciding,
            log,
            disk,
            clock_ns: 0,
            turn_ns: TURN_NS,
            stands_until_ns: 0,
        });
        match aside {
            true => Start::Anew,
            false => Start::Done,
        }
    }

    /// Makes the planted mistakes of a start.
    fn forget(&self, state: &mut State) {
        fn all<R: Record>(state: &State, change: &mut Change) {
            let records = state.all::<R>().expect("it can be read");
            records.iter().for_each(|(key, _)| change.remove::<R>(key));
        }
        let mut change = Change::new();
        match self.mistake {
            Some(Mistake::ForgetsServed) => all::<Served>(state, &mut change),
            Some(Mistake::ForgetsDataplanes) => {
                all::<Served>(state, &mut change);
                all::<Told>(state, &mut change);
            }
            Some(Mistake::ForgetsWishes) => all::<Generations>(state, &mut change),
            _ => return,
        }
        // What a kill amid it leaves is found by the next start.
        let _killed = state.change(change);
    }

    /// Whether a write was the process's last.
    pub(super) fn has_ended(&self) -> bool {
        let process = self.process.as_ref();
        process.is_some_and(|process| process.disk.image().has_ended())
    }

    /// The process is killed at its next write but so many.
    pub(super) fn end_at(&mut self, more: usize) {
        if let Some(process) = &self.process {
            let mut image = process.disk.image();
            image.end = Some(image.operations + more);
        }
    }

    /// It does nothing until then, nor does its clock go on.
    pub(super) fn stand(&mut self, until_ns: u64) {
        if let Some(process) = &mut self.process {
            process.stands_until_ns = until_ns;
        }
    }

    /// The process is killed, or power goes; or it ends in order.
    pub(super) fn stop(&mut self, in_order: bool, rng: &mut Rng) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        let disk = process.disk.clone();
        if in_order {
            process.deciding.end(process.clock_ns);
        } else {
            let mut image = disk.image();
            image.end = image.end.or(Some(image.operations));
        }
        drop(process);
        let image = disk.image().clone();
        self.bytes = match rng.u8(0..4) {
            _ if self.mistake == Some(Mistake::LosesChanges) => self.former.clone(),
            _ if in_order => image.now,
            0 => image.synced,
            1 if !image.since.is_empty() => {
                let mut bytes = image.synced;
                image.since[rng.usize(0..image.since.len())].to(&mut bytes);
                bytes
            }
            _ => image.now,
        };
    }

    /// What is on the disk becomes something else.
    pub(super) fn damage(&mut self, rng: &mut Rng) {
        assert!(self.process.is_none(), "while nobody has it");
        match rng.u8(0..3) {
            0 => self.bytes = b"this was never a state".into(),
            1 => self.bytes.truncate(rng.usize(1..self.bytes.len())),
            _ => {
                let at = rng.usize(0..self.bytes.len());
                self.bytes[at] ^= 0x40;
            }
        }
    }

    /// Whether what the process was told, told again, comes to the same policies.
    pub(super) fn replays(&mut self) -> Result<(), String> {
        let process = self.process.as_mut().expect("it is there");
        process.deciding.end(process.clock_ns);
        let (control, epoch) = (process.deciding.control().to_owned(), process.epoch);
        let mut again = Planner::new(control, epoch, Limits::default());
        let text = fs::read_to_string(self.folder.join("recording")).expect("it was written");
        for line in text.lines() {
            let line: Recorded = serde_json::from_str(line).expect("a line of a recording");
            // What was refused is refused again.
            let _refused = again.handle(line.at_ns, line.event);
        }
        let planner = process.deciding.planner();
        for name in planner.names() {
            if again.policy(name) != planner.policy(name) {
                return Err(format!(
                    "the recording comes to another policy of {name}: {:?}, not {:?}",
                    again.policy(name),
                    planner.policy(name)
                ));
            }
        }
        Ok(())
    }
}

impl Process {
    /// Time passes: whether a second is over in which it decides.
    pub(super) fn pass(&mut self, ns: u64) -> bool {
        self.clock_ns += ns;
        let is_due = self.clock_ns >= self.turn_ns;
        if is_due {
            // As the thread does: a turn that came late is not made up for.
            self.turn_ns = (self.turn_ns + TURN_NS).max(self.clock_ns);
        }
        is_due
    }
}
