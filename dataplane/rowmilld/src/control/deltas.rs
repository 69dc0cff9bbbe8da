//! Deltas that the control plane keeps: fetched one after the other and applied as those of the own host's operators are.
//!
//! What is asked for is always the one after the last that was applied, of each generation that is held. So whatever was missed comes
//! in its order, and nothing is applied twice, whoever else applies some.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_table::MAX_DELTA_BYTES;

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

/// What became of the last delta, a sentence, for reports.
#[derive(Clone, Debug, Default)]
pub(super) struct Told(Arc<Mutex<Option<String>>>);

impl Told {
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().expect("a panic ends the process").clone()
    }

    fn set(&self, text: String) {
        *self.0.lock().expect("a panic ends the process") = Some(text);
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

/// A delta of a generation.
type Place = (u64, u64);

impl Fetcher {
    /// For as long as the process lives.
    pub(super) fn run(&self, view: &ControlView) {
        let mut client = Client::new(self.peer.address.clone(), self.peer.credentials.clone());
        let mut pauses = Pauses::new();
        let mut failed: Option<(Place, Instant, Duration)> = None;
        loop {
            // Only of the control plane that is followed, once one is: before that of whoever answers.
            let (applied, _) = view.applied();
            let control = applied.map(|applied| applied.control);
            let mut has_come = false;
            for (generation, last) in self.holder.applied() {
                let place = (generation, last + 1);
                let same = failed.filter(|(other, ..)| *other == place);
                let waits = same.is_some_and(|(_, at, pause)| at.elapsed() < pause);
                if waits {
                    continue;
                }
                let fetched = self.fetch(&mut client, control.as_deref(), place);
                view.fetched(fetched.as_ref().map(drop).map_err(Clone::clone));
                match fetched {
                    Ok(None) => pauses = Pauses::new(),
                    Ok(Some(file)) => {
                        has_come = true;
                        let outcome = self.apply(&file);
                        // What is applied is kept under its number.
                        let _kept = fs::remove_file(&file);
                        match outcome {
                            Ok(detail) => self.told.set(detail),
                            Err(why) => {
                                let pause = same.map_or(AGAIN[0], |(.., pause)| 2 * pause);
                                failed = Some((place, Instant::now(), pause.min(AGAIN[1])));
                                self.told.set(format!(
                                    "delta {} of generation {generation} could not be applied: {why}",
                                    place.1
                                ));
                            }
                        }
                    }
                    Err(_told) => {
                        client.hang_up();
                        pauses.wait();
                    }
                }
            }
            if !has_come {
                thread::sleep(LOOK);
            }
        }
    }

    /// Brings a delta to a file; none where there is none yet.
    fn fetch(
        &self,
        client: &mut Client,
        control: Option<&str>,
        (generation, sequence): Place,
    ) -> Result<Option<PathBuf>, String> {
        let of = format!("deltas/{}/{generation}/{sequence}", encoded(&self.model));
        let of_whom = control.map_or(String::new(), |control| {
            format!("&control={}", encoded(control))
        });
        let path = self.deltas.incoming();
        let mut file: Option<File> = None;
        let mut at = 0;
        loop {
            let piece = |_| self.peer.path(&format!("{of}?at={at}{of_whom}"));
            let answer = client.ask(piece, Body::None, PATIENCE);
            let answer = answer.map_err(|error| error.to_string())?;
            match answer.code {
                204 if at == 0 => return Ok(None),
                200 if answer.body.is_empty() => break,
                200 => {}
                _ => return Err(refusal(&self.peer, &answer)),
            }
            at += answer.body.len() as u64;
            if at > MAX_DELTA_BYTES {
                return Err(format!("delta {sequence} has no end"));
            }
            let written = write(&mut file, &path, &answer.body);
            written.map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        Ok(Some(path))
    }

    /// Applies a file: what became of it, or why nothing.
    fn apply(&self, file: &Path) -> Result<String, String> {
        let number = loop {
            // Another one is under way.
            match self.deltas.apply(file.to_owned()) {
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
