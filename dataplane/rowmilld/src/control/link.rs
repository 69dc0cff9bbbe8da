//! The threads that speak to the control plane.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::{Duration, Instant};

use rowmill_link::{HOLD, MEDIA_TYPE, Policy, is_name};
use serde_json::Value;

use super::follow::Offer;
use super::http::{Answer, Body, Client};
use super::report::Teller;
use super::samples::Sampler;
use super::view::ControlView;
use super::{Peer, TICK};

/// A report or samples are taken in so long, or not at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// A policy comes so long after it is to be answered that there is none, or not at all.
const GRACE: Duration = Duration::from_secs(10);
/// From one report to the next.
const REPORT: Duration = Duration::from_secs(1);
/// From one sending of samples to the next.
const SAMPLES: Duration = Duration::from_millis(100);
/// Shortest and longest pause after something went wrong: it doubles each time.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// Who answers sooner that there is no policy does not wait for one, and is not asked at once again.
const HURRY: Duration = Duration::from_millis(500);

/// Pauses that become longer, each by chance between half of its time and all of it, so that dataplanes don't come back all at once.
pub(super) struct Pauses {
    next: Duration,
}

impl Pauses {
    pub(super) fn new() -> Pauses {
        Pauses { next: PAUSES[0] }
    }

    fn next(&mut self) -> Duration {
        let pause = self.next;
        self.next = (2 * pause).min(PAUSES[1]);
        let chance = RandomState::new().hash_one(0) % 1000;
        pause / 2 + pause * chance as u32 / 2000
    }

    pub(super) fn wait(&mut self) {
        thread::sleep(self.next());
    }
}

/// What an answer says that is none of those that were wanted.
pub(super) fn refusal(peer: &Peer, answer: &Answer) -> String {
    let said = serde_json::from_slice::<Value>(&answer.body);
    let said = said
        .ok()
        .and_then(|said| said["error"].as_str().map(str::to_owned));
    let said = said.map_or(String::new(), |said| {
        let plain = said.chars().filter(|c| !c.is_control());
        format!(": {}", plain.take(300).collect::<String>())
    });
    format!(
        "control plane at {} answers {}{said}",
        peer.address, answer.code
    )
}

/// Waits for policies.
pub(super) fn follow(peer: &Peer, view: &ControlView) {
    let mut client = Client::new(peer.address.clone(), peer.credentials.clone());
    let mut pauses = Pauses::new();
    let policy = |connection| {
        let (what, after) = (peer.path("policy"), view.after(connection));
        format!("{what}?instance={:032x}&after={after}", peer.instance)
    };
    loop {
        let asked = Instant::now();
        let outcome = client.ask(policy, Body::None, HOLD + GRACE);
        let failed = match outcome {
            Err(error) => Some(error.to_string()),
            Ok(answer) if answer.code == 204 => {
                let outcome = view.no_news(answer.control.as_deref(), answer.connection);
                if outcome.is_ok() {
                    pauses = Pauses::new();
                    if asked.elapsed() < HURRY {
                        thread::sleep(REPORT);
                    }
                }
                outcome.err()
            }
            Ok(answer) if answer.code == 200 => match parse(&answer.body) {
                Ok(policy) => match view.offered(policy, answer.connection) {
                    Offer::Taken => {
                        pauses = Pauses::new();
                        None
                    }
                    Offer::Known => {
                        thread::sleep(REPORT);
                        None
                    }
                    Offer::Refused(why) => Some(why),
                },
                Err(why) => Some(format!("control plane at {}: {why}", peer.address)),
            },
            Ok(answer) => Some(refusal(peer, &answer)),
        };
        if let Some(why) = failed {
            view.failed(&why);
            // The next connection may lead to who is wanted.
            client.hang_up();
            pauses.wait();
        }
    }
}

fn parse(body: &[u8]) -> Result<Policy, String> {
    let policy: Policy = serde_json::from_slice(body)
        .map_err(|error| format!("what it sends is no policy that this version knows: {error}"))?;
    match is_name(&policy.control) {
        true => Ok(policy),
        false => Err("its policy does not say whose it is".into()),
    }
}

/// Reports, and sends samples.
pub(super) fn tell(peer: &Peer, teller: &Teller, mut sampler: Sampler, view: &ControlView) {
    let mut client = Client::new(peer.address.clone(), peer.credentials.clone());
    let (mut pauses, mut number) = (Pauses::new(), 0);
    let (mut report_due, mut samples_due) = (Instant::now(), Instant::now());
    loop {
        sampler.drain();
        let now = Instant::now();
        if now >= report_due {
            // Before the tables are looked at: what is done is seen in them.
            let (applied, is_changing) = view.applied();
            let report = teller.report(peer.instance, applied, is_changing);
            let outcome = post(&mut client, peer, "report", "application/json", &report);
            view.reported(outcome.as_ref().err().map(|why| &**why));
            stays(&mut client, &outcome, view);
            if view.is_offered_another() {
                // This connection may be to the one that is not followed, and would be kept for good.
                client.hang_up();
            }
            report_due = now + REPORT;
            match outcome {
                Ok(_) => pauses = Pauses::new(),
                Err(_) => report_due += pauses.next(),
            }
        }
        if now >= samples_due {
            samples_due = now + SAMPLES;
            while let Some(body) = sampler.body(peer.instance, number + 1) {
                number += 1;
                let bytes = body.encode();
                let outcome = post(&mut client, peer, "samples", MEDIA_TYPE, &bytes);
                let (sent, lost) = sampler.sent(&body, outcome.is_ok());
                view.sampled(sent, lost);
                stays(&mut client, &outcome, view);
                if let Err(why) = outcome {
                    view.failed(&why);
                    samples_due = now + pauses.next();
                    break;
                }
            }
        }
        thread::sleep(TICK);
    }
}

/// Keeps a connection only to who should be told.
fn stays(client: &mut Client, outcome: &Result<Option<String>, String>, view: &ControlView) {
    if let Ok(control) = outcome
        && let Err(why) = view.told(control.as_deref())
    {
        view.failed(&why);
        client.hang_up();
    }
}

/// Returns the control plane that took it, if it said who it is.
fn post(
    client: &mut Client,
    peer: &Peer,
    what: &str,
    kind: &str,
    bytes: &[u8],
) -> Result<Option<String>, String> {
    let answer = client.ask(|_| peer.path(what), Body::Of(kind, bytes), PATIENCE);
    match answer {
        Ok(answer) if answer.code == 204 => Ok(answer.control),
        Ok(answer) => {
            // What is shown of it may be another by now, which is read for each connection.
            client.hang_up();
            Err(refusal(peer, &answer))
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use rowmill_link::{CONTROL_HEADER, Order};

    use super::*;
    use crate::config::Credentials;

    #[test]
    fn pauses_become_longer_up_to_a_bound() {
        let mut pauses = Pauses::new();
        let mut whole = PAUSES[0];
        for _ in 0..10 {
            let pause = pauses.next();
            assert!(
                (whole / 2..=whole).contains(&pause),
                "{pause:?} of {whole:?}"
            );
            whole = (2 * whole).min(PAUSES[1]);
        }
        assert_eq!(whole, PAUSES[1]);
    }

    /// Takes connections, one after the other, and answers all that comes by each as the control plane that is named for it.
    fn answer_as(listener: &UnixListener, names: &[&str]) -> Vec<usize> {
        let answers = names.iter().map(|name| {
            let (mut stream, _) = listener.accept().unwrap();
            let answer = format!("HTTP/1.1 204 No Content\r\n{CONTROL_HEADER}: {name}\r\n\r\n");
            let (mut room, mut count) = ([0; 4096], 0);
            while stream.read(&mut room).unwrap() > 0 {
                stream.write_all(answer.as_bytes()).unwrap();
                count += 1;
            }
            count
        });
        answers.collect()
    }

    #[test]
    fn a_connection_is_kept_to_who_is_followed_alone() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let peer = Peer {
            address: format!("unix:{}", socket.display()).parse().unwrap(),
            credentials: Credentials::default(),
            name: "a".into(),
            instance: 1,
        };
        let view = ControlView::new("unix:/c", "a");
        let policy = Policy {
            control: "followed".into(),
            order: Order {
                epoch: 1,
                version: 1,
            },
            tables: Vec::new(),
            generations: None,
        };
        assert_eq!(view.offered(policy, 1), Offer::Taken);
        let answers = thread::scope(|scope| {
            let names = ["another", "followed", "another"];
            let answers = scope.spawn(move || answer_as(&listener, &names));
            let tell = |client: &mut Client| {
                let outcome = post(client, &peer, "samples", MEDIA_TYPE, b"samples");
                stays(client, &outcome, &view);
                outcome.unwrap().unwrap()
            };
            let mut client = Client::new(peer.address.clone(), peer.credentials.clone());
            assert_eq!(tell(&mut client), "another");
            let error = view.status()["last_error"].to_string();
            assert!(error.contains("another was told what followed"), "{error}");
            for _ in 0..3 {
                assert_eq!(tell(&mut client), "followed");
            }
            client.hang_up();
            assert_eq!(tell(&mut client), "another");
            answers.join().unwrap()
        });
        assert_eq!(answers, [1, 3, 1]);
    }

    #[test]
    fn what_is_no_policy_is_told() {
        let policy = |control: &str| {
            format!(
                "{{\"control\":\"{control}\",\"order\":{{\"epoch\":1,\"version\":2}},\"tables\":[]}}"
            )
        };
        assert_eq!(parse(policy("c-1").as_bytes()).unwrap().control, "c-1");
        assert!(
            parse(policy("").as_bytes())
                .unwrap_err()
                .contains("whose it is")
        );
        assert!(
            parse(b"[1, 2")
                .unwrap_err()
                .contains("no policy that this version knows")
        );
    }

    #[test]
    fn refusals_are_told_with_their_reason() {
        let peer = Peer {
            address: "unix:/c".parse().unwrap(),
            credentials: Credentials::default(),
            name: "a".into(),
            instance: 1,
        };
        let said = |body: &str| {
            let answer = Answer {
                code: 409,
                body: body.into(),
                connection: 1,
                control: None,
            };
            refusal(&peer, &answer)
        };
        let why = "control plane at unix:/c answers 409";
        assert_eq!(
            said("{\"error\": \"another\\u001b one\"}"),
            format!("{why}: another one")
        );
        assert_eq!(said("<html>"), why);
    }
}
