//! Deltas that the control plane keeps: fetched one after the other and applied as those of the own host's operators are.
//!
//! What is asked for is always the one after the last that was applied, of each generation that is held. So whatever was missed comes
//! in its order, and nothing is applied twice, whoever else applies some. What tells those that were applied from any others is
//! sent along: a control plane that has kept others under their numbers gives none that would come after them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_table::{MAX_DELTA_BYTES, Resident};

use super::generations::Holder;
use super::http::{Body, Client};
use super::link::{PATIENCE, Pauses, refusal};
use super::view::ControlView;
use super::{Peer, TICK};
use crate::deltas::Deltas;
use crate::places::Stand;

/// How often it is asked whether there is another one.
const LOOK: Duration = Duration::from_secs(1);
/// One that could not be applied is tried again after a while, since what it lacks may be there by then: first and longest, it doubles each time.
const AGAIN: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(3600)];
/// One that could not be written here is fetched again after so long, which doubles up to a minute: there may be room.
const UNKEPT: Duration = Duration::from_secs(5);

/// What reports tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Arc<Mutex<Sentences>>);

#[derive(Clone, Debug, Default)]
pub(super) struct Sentences {
    /// What became of the last delta.
    pub(super) change: Option<String>,
    /// Why the next one of a generation can't be applied, and so none behind it.
    pub(super) failed: Option<String>,
}

impl Told {
    pub(super) fn get(&self) -> Sentences {
        self.0.lock().expect("a panic ends the process").clone()
    }

    fn set(&self, change: String) {
        self.0.lock().expect("a panic ends the process").change = Some(change);
    }

    fn failed(&self, all: &BTreeMap<u64, Failed>) {
        let first = all.values().next().map(|failed| failed.why.clone());
        self.0.lock().expect("a panic ends the process").failed = first;
    }
}

/// What fetches and applies.
pub(super) struct Fetcher {
    pub(super) peer: Peer,
    pub(super) model: String,
    pub(super) holder: Holder,
    pub(super) deltas: Arc<Deltas>,
    pub(super) told: Told,
}

/// A delta of a generation that could not be applied.
struct Failed {
    sequence: u64,
    at: Instant,
    pause: Duration,
    why: String,
}

/// Why a delta is not there.
enum Unfetched {
    /// The control plane can't be asked, or refuses.
    Told(String),
    /// It can't be written here.
    Unkept(String),
}

impl Failed {
    fn now(sequence: u64, pause: Duration, why: String) -> Failed {
        Failed {
            sequence,
            at: Instant::now(),
            pause,
            why,
        }
    }

    fn waits(&self) -> bool {
        self.at.elapsed() < self.pause
    }
}

impl Fetcher {
    /// For as long as the process lives.
    pub(super) fn run(&self, view: &ControlView) {
        let mut client = Client::new(self.peer.address.clone(), self.peer.credentials.clone());
        let mut pauses = Pauses::new();
        let mut failed = BTreeMap::new();
        loop {
            // Only of the control plane that is followed, once one is: before that of whoever answers.
            let (applied, _) = view.applied();
            let control = applied.map(|applied| applied.control);
            let tables = self.holder.tables();
            // Who else has applied one has mended that.
            failed.retain(|generation, failed: &mut Failed| {
                let next = |of: &Arc<Resident>| (of.generation(), of.delta() + 1);
                tables
                    .iter()
                    .any(|of| next(of) == (*generation, failed.sequence))
            });
            self.told.failed(&failed);
            let (mut is_applied, mut is_asked, mut is_answered) = (false, false, false);
            let mut refused = Vec::new();
            for tables in tables {
                let (generation, sequence) = (tables.generation(), tables.delta() + 1);
                let same = failed.get(&generation);
                // While another one is being applied here it is not known what comes next.
                let chain = self.deltas.chain(&tables, sequence - 1);
                let Some(chain) = chain.filter(|_| !same.is_some_and(Failed::waits)) else {
                    continue;
                };
                let pause = same.map_or(AGAIN[0], |same| (2 * same.pause).min(AGAIN[1]));
                let mut of = format!(
                    "deltas/{}/{generation}/{sequence}?chain={chain}",
                    encoded(&self.model)
                );
                if let Some(control) = &control {
                    of = format!("{of}&control={}", encoded(control));
                }
                let fetched = self.fetch(&mut client, &of);
                is_asked = true;
                is_answered |= fetched.is_ok();
                match fetched {
                    // It is not there any more.
                    Ok(None) => _ = failed.remove(&generation),
                    Ok(Some(file)) => {
                        let name = format!(
                            "{sequence} of generation {generation} that the control plane at {} sent",
                            self.peer.address
                        );
                        let outcome = self.apply(&file, Path::new(&name));
                        // What is applied is kept under its number.
                        let _kept = fs::remove_file(&file);
                        match outcome {
                            Ok(detail) => {
                                is_applied = true;
                                self.told.set(detail);
                            }
                            Err(why) => {
                                let why = format!(
                                    "delta {sequence} of generation {generation} could not be applied: {why}"
                                );
                                failed
                                    .insert(generation, Failed::now(sequence, pause, why.clone()));
                                self.told.failed(&failed);
                                self.told.set(why);
                            }
                        }
                    }
                    Err(Unfetched::Told(why)) => {
                        client.hang_up();
                        refused.push(why);
                    }
                    Err(Unfetched::Unkept(why)) => {
                        let why = format!(
                            "delta {sequence} of generation {generation} could not be fetched: {why}"
                        );
                        let pause = same.map_or(UNKEPT, |same| (2 * same.pause).min(AGAIN[0]));
                        failed.insert(generation, Failed::now(sequence, pause, why.clone()));
                        self.told.failed(&failed);
                        self.told.set(why.clone());
                        refused.push(why);
                    }
                }
            }
            // One generation's deltas may come, and another one's not.
            let is_refused = !refused.is_empty();
            if is_asked {
                view.fetched(match is_refused {
                    true => Err(refused.join("; ")),
                    false => Ok(()),
                });
            }
            // Whose deltas come don't wait for those of another generation, which are asked for as often then.
            if is_refused && !is_answered {
                pauses.wait();
                continue;
            }
            pauses = Pauses::new();
            if !is_applied {
                thread::sleep(LOOK);
            }
        }
    }

    /// Brings a delta to a file; none where there is none yet.
    fn fetch(&self, client: &mut Client, of: &str) -> Result<Option<PathBuf>, Unfetched> {
        let path = self.deltas.incoming();
        let mut file: Option<File> = None;
        let mut at = 0;
        loop {
            let piece = |_| self.peer.path(&format!("{of}&at={at}"));
            let answer = client.ask(piece, Body::None, PATIENCE);
            let answer = answer.map_err(|error| Unfetched::Told(error.to_string()))?;
            match answer.code {
                204 if at == 0 => return Ok(None),
                200 if answer.body.is_empty() => break,
                200 => {}
                _ => return Err(Unfetched::Told(refusal(&self.peer, &answer))),
            }
            at += answer.body.len() as u64;
            if at > MAX_DELTA_BYTES {
                return Err(Unfetched::Told("a delta has no end".into()));
            }
            if let Err(error) = write(&mut file, &path, &answer.body) {
                // What there is of it is in the way of others on a full disk.
                let _removed = fs::remove_file(&path);
                let why = format!("cannot write {}: {error}", path.display());
                return Err(Unfetched::Unkept(why));
            }
        }
        Ok(Some(path))
    }

    /// Applies a file, with what it is called: what became of it, or why nothing.
    fn apply(&self, file: &Path, name: &Path) -> Result<String, String> {
        let number = loop {
            // Another one is under way.
            match self.deltas.apply(file.to_owned(), name.to_owned()) {
                Ok(number) => break number,
                Err(_busy) => thread::sleep(TICK),
            }
        };
        loop {
            match self.deltas.outcome(number) {
                Some((Stand::Done, detail)) => return Ok(detail),
                Some((Stand::Failed, detail)) => return Err(detail),
                Some((Stand::Running, _)) => thread::sleep(TICK),
                // Others came meanwhile: what was applied last tells.
                None => return Ok("others were applied".into()),
            }
        }
    }
}

fn write(file: &mut Option<File>, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = match file {
        Some(file) => file,
        None => file.insert(File::create(path)?),
    };
    file.write_all(bytes)
}

/// A text as a part of a path.
fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            true => out.push(char::from(byte)),
            false => write!(out, "%{byte:02X}").expect("a String takes all"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::encoded;

    #[test]
    fn names_are_one_part_of_a_path() {
        assert_eq!(encoded("dlrm-v2_a"), "dlrm-v2_a");
        assert_eq!(encoded("../a?b%"), "%2E%2E%2Fa%3Fb%25");
        assert_eq!(encoded("ü"), "%C3%BC");
    }
}
