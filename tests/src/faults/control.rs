//! Control planes that go, talk nonsense, or want what can't be.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use rowmill_link::{Admission, Order, TablePolicy};
use rowmill_trust::development::{Authority, Validity};
use rustix::process::Signal;

use super::Verdict;
use super::cached::{Asker, COLD, COLD_ROWS, PATIENT, figure, settings};
use super::plane::Plane;
use super::site::{Running, Service, Settings, Site, patience, until};
use super::watch::beside_an_innocent;

/// Bytes of 16 rows in each of two shards of [`COLD`], with what is beside them.
const SET: u64 = 32 * 72;
/// Bytes that cached tables have together.
const ARENA: u64 = 400_000;

fn followed(site: &Site, plane: &Plane) -> Result<Settings> {
    let mut settings = settings(site, &format!("{PATIENT}arena_bytes = {ARENA}\n"), "error")?;
    let address = plane.address;
    let control = format!("[control]\naddress = \"http://{address}\"\nname = \"test\"\n");
    settings.cached = control + &settings.cached;
    Ok(settings)
}

/// A policy for a table, by its share.
fn share(table: &str, sets: u64) -> TablePolicy {
    TablePolicy {
        table: table.into(),
        cache_bytes: Some(sets * SET),
        threshold: 1 << 28,
        admission: Admission::Built,
        pinned: Vec::new(),
    }
}

fn has_share(service: &Service, sets: u64) -> Result<()> {
    let has = || figure(service, "share_bytes").is_ok_and(|bytes| bytes == sets * SET);
    // A policy is waited for for 35 s where nothing is said.
    until(2 * patience(), has)
}

/// Waits until the status page says so of the control plane.
pub(super) fn says(
    service: &Service,
    what: &str,
    is_so: impl Fn(&serde_json::Value) -> bool,
) -> Result<()> {
    let mut last = serde_json::Value::Null;
    let outcome = until(patience(), || {
        last = service.status().unwrap_or_default()["control"].take();
        is_so(&last)
    });
    outcome.map_err(|error| error.context(format!("{what}: {last}")))
}

/// Rows that an asker asks for in turn.
pub(super) fn some(round: u64) -> Vec<u32> {
    let row = |n: u64| ((n * 977 + round * 7919) % u64::from(COLD_ROWS)) as u32;
    (0..300).map(row).collect()
}

/// It goes while it is followed, and comes again.
pub(super) fn gone(site: &Site) -> Result<Verdict> {
    const ROUNDS: u64 = 3;
    let plane = Plane::new();
    beside_an_innocent(site, &followed(site, &plane)?, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        for round in 1..=ROUNDS {
            let sets = 20 + round;
            plane.publish("c", round, 1, vec![share(COLD, sets)]);
            has_share(scene.service, sets)?;
            plane.be_gone(true);
            says(scene.service, "told", |control| {
                control["connected"] == false
            })?;
            asker.is_answered(&some(round))?;
            let is_kept = figure(scene.service, "share_bytes")? == sets * SET;
            ensure!(is_kept, "the share is another one in round {round}");
            plane.be_gone(false);
            says(scene.service, "connected", |control| {
                control["connected"] == true
            })?;
        }
        Ok(format!("followed again {ROUNDS} times"))
    })
}

/// Starts `rowmill-control` with the state that it had here before.
pub(super) fn control_plane(site: &Site) -> Result<Running> {
    control_plane_and(site, "")
}

/// The same, with more in its configuration.
pub(super) fn control_plane_and(site: &Site, more: &str) -> Result<Running> {
    control_plane_with(
        site,
        &site.path("control.redb"),
        &format!("{}{more}", local(site)),
    )
}

/// The same with its state in this file.
pub(super) fn control_plane_at(site: &Site, state: &Path) -> Result<Running> {
    control_plane_with(site, state, &local(site))
}

/// One of several, each of which has its state and its socket by its name.
pub(super) fn control_plane_named(site: &Site, name: &str) -> Result<Running> {
    let state = site.path(&format!("{name}.redb"));
    control_plane_with(
        site,
        &state,
        &listening(&site.path(&format!("{name}.sock"))),
    )
}

/// That it is reached by a socket of the site.
fn local(site: &Site) -> String {
    listening(&site.path("control.sock"))
}

fn listening(socket: &Path) -> String {
    format!("listen = \"off\"\nsocket = \"{}\"\n", socket.display())
}

fn control_plane_with(site: &Site, state: &Path, more: &str) -> Result<Running> {
    // By the state's name, but not on its disk, which may be full.
    let name = state.file_stem().context("a file's name")?;
    let own = site.path("").join(name);
    let config = own.with_extension("toml");
    let text = format!("state = \"{}\"\n{more}", state.display());
    fs::write(&config, text).context("the configuration")?;
    let mut command = site.programs.leashed("rowmill-control");
    let log = fs::File::create(own.with_extension("log")).context("a log")?;
    command
        .arg("--config")
        .arg(&config)
        .stdin(Stdio::null())
        .stderr(log);
    Ok(Running(
        command.spawn().context("starting rowmill-control")?,
    ))
}

pub(super) fn kill(control: &mut Running) -> Result<()> {
    control.signal(Signal::KILL)?;
    control.end(patience()).context("it was killed")?;
    Ok(())
}

/// Has an authority issue a certificate for the control plane, where it reads it.
fn certify(site: &Site, authority: &Authority, valid: &Validity) -> Result<()> {
    let issued = authority.server(&["127.0.0.1".into()], valid)?;
    fs::write(site.path("server.pem"), issued.certificate).context("a certificate")?;
    fs::write(site.path("server-key.pem"), issued.key).context("its key")
}

/// Its certificate expires, and becomes another authority's, under load.
pub(super) fn certificate(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    let (valid, over) = (now - hour..now + hour, now - hour..now - hour / 60);
    let (ours, others) = (Authority::new(&valid)?, Authority::new(&valid)?);
    let files = [
        "ca.pem",
        "own.pem",
        "own-key.pem",
        "server.pem",
        "server-key.pem",
    ];
    let [ca, own, own_key, server, key] = files.map(|name| site.path(name));
    let who = "rowmill://dataplane/test".parse()?;
    let client = ours.client(&who, &valid)?;
    fs::write(&ca, ours.certificate())?;
    fs::write(&own, client.certificate)?;
    fs::write(&own_key, client.key)?;
    certify(site, &ours, &valid)?;
    // It is free until it is listened on, but for a chance that others take it.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let running = control_plane_with(
        site,
        &site.path("control.redb"),
        &format!(
            "listen = \"127.0.0.1:{port}\"\n[tls]\ncertificate = \"{}\"\nkey = \"{}\"\nclient_ca = \"{}\"\n",
            server.display(),
            key.display(),
            ca.display()
        ),
    )?;
    let mut settings = settings(site, &format!("{PATIENT}arena_bytes = {ARENA}\n"), "error")?;
    let control = format!(
        "[control]\naddress = \"https://127.0.0.1:{port}\"\nname = \"test\"\nca = \"{}\"\ncertificate = \"{}\"\nkey = \"{}\"\n",
        ca.display(),
        own.display(),
        own_key.display()
    );
    settings.cached = control + &settings.cached;
    beside_an_innocent(site, &settings, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let connected = |yes: bool, why: &str| {
            says(scene.service, why, |control| {
                let error = control["last_error"].as_str().unwrap_or("");
                control["connected"] == yes && (yes || error.contains(why))
            })
        };
        connected(true, "connected")?;
        let kinds = [
            (&ours, &over, "its certificate has expired"),
            (&others, &valid, "was not issued by an authority"),
        ];
        for (round, (authority, validity, why)) in (0..).zip(kinds) {
            certify(site, authority, validity)?;
            running.signal(Signal::HUP)?;
            connected(false, why)?;
            for n in 0..20 {
                asker.is_answered(&some(20 * round + n))?;
            }
            certify(site, &ours, &valid)?;
            running.signal(Signal::HUP)?;
            connected(true, "connected")?;
        }
        Ok(format!("{} kinds told, then connected again", kinds.len()))
    })
}

/// The real one moves shares to where the lookups are, is killed, and is followed again.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    if !site.programs.path("rowmill-control").exists() {
        return Ok(Verdict::Skipped("rowmill-control is not built".into()));
    }
    let mut settings = settings(site, &format!("{PATIENT}arena_bytes = {ARENA}\n"), "error")?;
    let socket = site.path("control.sock");
    let control = format!(
        "[control]\naddress = \"unix:{}\"\nname = \"test\"\n",
        socket.display()
    );
    settings.cached = control + &settings.cached;
    let mut running = control_plane(site)?;
    beside_an_innocent(site, &settings, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        // Rows that come again and again, more than its share has room for.
        let mut round = 0;
        let mut ask = |asker: &mut Asker| {
            round += 1;
            let rows: Vec<u32> = (0..300).map(|n| (n * 7 + round * 311) % 2500).collect();
            asker.is_answered(&rows)
        };
        let began = Instant::now();
        let grown = loop {
            ask(&mut asker)?;
            let bytes = figure(scene.service, "share_bytes")?;
            if bytes > 20 * SET {
                break bytes;
            }
            let control = || Ok::<_, anyhow::Error>(scene.service.status()?["control"].take());
            ensure!(
                began.elapsed() < 2 * patience(),
                "its share is {bytes}: {}",
                control()?
            );
        };
        let epoch = |service: &Service| -> Result<u64> {
            let order = service.status()?["control"]["followed"]["order"].take();
            let order = order.as_str().context("an order")?.parse::<Order>()?;
            Ok(order.epoch)
        };
        let before = epoch(scene.service)?;
        kill(&mut running)?;
        says(scene.service, "told", |control| {
            control["connected"] == false
        })?;
        for _ in 0..20 {
            ask(&mut asker)?;
        }
        let kept = figure(scene.service, "share_bytes")?;
        ensure!(kept >= grown, "its share is {kept}, and was {grown}");
        running = control_plane(site)?;
        says(scene.service, "connected", |control| {
            control["connected"] == true
        })?;
        let is_followed = || {
            let asked = ask(&mut asker);
            asked.is_ok() && epoch(scene.service).is_ok_and(|now| now > before)
        };
        until(2 * patience(), is_followed).context("no policy of its next start")?;
        Ok(format!(
            "the share grew to {kept} bytes and stayed; followed again"
        ))
    })
}

/// It talks nonsense, or says nothing any more.
pub(super) fn garbage(site: &Site) -> Result<Verdict> {
    let plane = Plane::new();
    beside_an_innocent(site, &followed(site, &plane)?, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        plane.publish("c", 1, 1, vec![share(COLD, 20)]);
        has_share(scene.service, 20)?;
        let nonsense: [(&[u8], &str); 5] = [
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"control\"",
                "no policy that this version knows",
            ),
            (b"\0\0\0\xff\xff", "no HTTP/1.1"),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
                "longer than any policy",
            ),
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{",
                "has not answered within",
            ),
            (b"", "has not answered within"),
        ];
        for (round, (nonsense, why)) in (0..).zip(nonsense) {
            plane.answer_with(Some(nonsense));
            says(scene.service, why, |control| {
                control["last_error"]
                    .as_str()
                    .is_some_and(|error| error.contains(why))
            })?;
            asker.is_answered(&some(round))?;
            plane.answer_with(None);
            says(scene.service, "connected", |control| {
                control["connected"] == true
            })?;
            ensure!(
                figure(scene.service, "share_bytes")? == 20 * SET,
                "the share stays"
            );
        }
        plane.publish("c", 1, 2, vec![share(COLD, 30)]);
        has_share(scene.service, 30)?;
        Ok(format!("{} kinds, then followed again", nonsense.len()))
    })
}

/// Its policy names tables that are not there, more rows than there is room for, and a table that is never cached.
pub(super) fn impossible(site: &Site) -> Result<Verdict> {
    let plane = Plane::new();
    beside_an_innocent(site, &followed(site, &plane)?, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        let mut policy: Vec<TablePolicy> =
            (0..500).map(|n| share(&format!("old_{n}"), 9)).collect();
        let full = (0..COLD_ROWS).collect();
        policy.push(TablePolicy {
            pinned: full,
            ..share(COLD, 25)
        });
        policy.push(share("small", ARENA));
        plane.publish("c", 1, 1, policy);
        has_share(scene.service, 25)?;
        says(scene.service, "refusals", |control| {
            let refused = control["refused"].as_array();
            refused.is_some_and(|refused| refused.len() == 100)
        })?;
        plane.publish(
            "c",
            1,
            2,
            vec![share(COLD, 26), share("wide", 3), share("small", ARENA)],
        );
        has_share(scene.service, 26)?;
        says(scene.service, "refusals", |control| {
            let refused = control["refused"].as_array();
            let has = |part: &str| {
                refused.is_some_and(|all| {
                    all.iter()
                        .any(|why| why.as_str().is_some_and(|why| why.contains(part)))
                })
            };
            has("too large") && has("table wide is always resident")
        })?;
        asker.is_answered(&some(1))?;
        Ok("500 tables, 100,000 rows and too large a share refused, the rest done".into())
    })
}

/// It changes its mind ten times a second.
pub(super) fn restless(site: &Site) -> Result<Verdict> {
    let plane = Plane::new();
    beside_an_innocent(site, &followed(site, &plane)?, |scene| {
        let mut asker = Asker::connect(scene.service, scene.tables)?;
        const POLICIES: u64 = 50;
        for n in 1..=POLICIES {
            let pinned = (0..200).map(|row| row * 5 + n as u32).collect();
            let admission = match n % 4 {
                0 => Admission::Pinned,
                _ => Admission::Built,
            };
            let cold = TablePolicy {
                pinned,
                admission,
                ..share(COLD, 10 + n * 7 % 90)
            };
            plane.publish("c", 1, n, vec![cold, share("small", 5 + n * 5 % 40)]);
            asker.is_answered(&some(n))?;
            sleep(Duration::from_millis(100));
        }
        has_share(scene.service, 10 + POLICIES * 7 % 90)?;
        says(scene.service, "followed", |control| {
            control["followed"]["order"] == format!("1.{POLICIES}")
        })?;
        until(patience(), || {
            figure(scene.service, "pinned_held").is_ok_and(|held| held >= 190)
        })?;
        Ok(format!("{POLICIES} policies, the last one in force"))
    })
}
