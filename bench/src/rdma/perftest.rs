//! `ib_write_bw` and `ib_read_bw` of perftest, the yardsticks of goodput and of rows by READ: this program runs both their ends.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::talk::{Ask, Say, Talk};

/// How long a run may take.
const LIMIT: Duration = Duration::from_secs(60);
/// How often one is tried: it takes the clock rate by a regression over short waits, and reports nothing where the
/// machine is busy then.
const TRIES: u16 = 10;
/// The first port that it listens on; each run takes the next, so that no connection of the last one is in the way.
const FIRST_PORT: u16 = 18600;

/// What of perftest is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Program {
    /// `ib_write_bw`.
    Write,
    /// `ib_read_bw`.
    Read,
}

impl Program {
    pub(super) fn name(self) -> &'static str {
        match self {
            Program::Write => "ib_write_bw",
            Program::Read => "ib_read_bw",
        }
    }
}

/// READs that `ib_read_bw` may have in flight: as many as soft-RoCE has, and a reader's lane.
const READS_IN_FLIGHT: &str = "128";

/// A run of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    /// Which.
    pub(super) program: Program,
    /// Bytes of a message.
    pub(super) bytes: u64,
    /// How many.
    pub(super) messages: u64,
    /// Where the end listens that is started first.
    pub(super) port: u16,
}

fn command(device: &str, run: Run) -> Command {
    let Run {
        program,
        bytes,
        messages,
        port,
    } = run;
    let mut command = Command::new(program.name());
    command
        .args(["-R", "-F", "--output=bandwidth", "-d", device])
        .args(["-s", &bytes.to_string(), "-n", &messages.to_string()])
        .args(["-p", &port.to_string()])
        .stdin(Stdio::null());
    if program == Program::Read {
        command.args(["-o", READS_IN_FLIGHT]);
    }
    command
}

/// A run whose other end is this one's peer.
pub(super) struct Bandwidth {
    program: Program,
    device: String,
    next_port: u16,
}

impl Bandwidth {
    /// Runs over a device.
    pub(super) fn over(device: &str, program: Program) -> Bandwidth {
        Bandwidth {
            program,
            device: device.into(),
            next_port: FIRST_PORT,
        }
    }

    /// MB/s of `messages` of `bytes`, that the other half WRITEs to this one or READs from it.
    ///
    /// # Errors
    /// Where it does not report in ten tries.
    pub(super) fn measure(&mut self, talk: &mut Talk, bytes: u64, messages: u64) -> Result<f64> {
        let mut why = String::new();
        for _ in 0..TRIES {
            let port = self.next_port;
            self.next_port += 1;
            let run = Run {
                program: self.program,
                bytes,
                messages,
                port,
            };
            let mut receiver = command(&self.device, run)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .with_context(|| missing(self.program))?;
            let said = talk.ask(&Ask::Bandwidth(run));
            end(&mut receiver);
            match said? {
                Say::Bandwidth(rate) => return Ok(rate),
                Say::Unmeasured(reason) => why = reason,
                other => bail!("an answer of the wrong kind: {other:?}"),
            }
        }
        bail!("{} does not report: {why}", self.program.name());
    }
}

fn missing(program: Program) -> String {
    format!("running {} (the package perftest)", program.name())
}

/// The end that sends, to who asked for it.
///
/// # Errors
/// Where the program can't be run.
pub(super) fn send(device: &str, to: IpAddr, run: Run) -> Result<Say> {
    let began = Instant::now();
    loop {
        let mut sender = command(device, run)
            .arg(to.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| missing(run.program))?;
        while sender.try_wait()?.is_none() {
            if began.elapsed() > LIMIT {
                end(&mut sender);
                return Ok(Say::Unmeasured(format!("no end in {LIMIT:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let out = sender.wait_with_output()?;
        let errors = String::from_utf8_lossy(&out.stderr).into_owned();
        if out.status.success() {
            return Ok(match rate(&String::from_utf8_lossy(&out.stdout), &errors) {
                Ok(rate) => Say::Bandwidth(rate),
                Err(why) => Say::Unmeasured(format!("{why:#}")),
            });
        }
        // The other end may not listen yet.
        if began.elapsed() > Duration::from_secs(3) {
            return Ok(Say::Unmeasured(format!("{}: {errors}", out.status)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The rate that it printed (MiB/s), in MB/s.
fn rate(printed: &str, errors: &str) -> Result<f64> {
    ensure!(
        !errors.contains("Correlation") && !printed.contains("Correlation"),
        "it does not trust its clock"
    );
    let last = printed.lines().rfind(|line| !line.trim().is_empty());
    let text = last.context("it printed nothing")?.trim();
    let rate: f64 = text
        .parse()
        .with_context(|| format!("it printed {text:?}"))?;
    ensure!(rate > 0.0, "it printed {rate}");
    Ok(rate * 1.048_576)
}

/// Ends a process, which may have ended.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::rate;

    #[test]
    fn only_a_number_is_a_rate() {
        assert!((rate("128.5\n", "").expect("a rate") - 134.742).abs() < 0.001);
        assert!(rate("", "").is_err());
        assert!(rate("0.0\n", "").is_err());
        assert!(rate("usage\n", "").is_err());
        assert!(rate("100\n", "Correlation coefficient r^2: 0.5 < 0.9").is_err());
    }
}
