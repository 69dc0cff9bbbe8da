//! What the two halves say to one another: a line of JSON for each question and each answer, over TCP.

use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::perftest::Run;

/// The port of the half that serves.
const PORT: u16 = 7499;
/// How long the half that asks tries to reach the other one, which makes a model first.
const START_LIMIT: Duration = Duration::from_secs(300);

/// A question.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// What is served?
    Hello,
    /// Answer one peer's pings until it goes.
    PingPong {
        /// Bytes of a ping.
        request: usize,
        /// Bytes of its answer.
        result: usize,
        /// Whether a record follows the answer, as the service's does.
        record: bool,
    },
    /// Let one peer READ rows until it goes.
    Rows,
    /// Run perftest towards who asks.
    Bandwidth(Run),
    /// Export tables, until the conversation ends.
    Export,
    /// Doorbells and requests of the service's worker so far.
    Counters,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Say {
    /// The service, and how many bytes its model was scaled to.
    Serving {
        /// Where.
        endpoint: String,
        /// What its model was asked to fit.
        model_bytes: u64,
    },
    /// Connect here.
    Listening {
        /// A port of the connection manager.
        port: u16,
    },
    /// They are exported.
    Exporting,
    /// What perftest measured, in MB/s.
    Bandwidth(f64),
    /// It reports nothing: why.
    Unmeasured(String),
    /// Counters of the worker.
    Counters {
        /// Doorbells that it has rung.
        doorbells: u64,
        /// Requests that it has received.
        requests: u64,
    },
    /// It can't be done.
    Failed(String),
}

/// One end of the conversation.
pub(super) struct Talk {
    lines: BufReader<TcpStream>,
}

impl Talk {
    /// Waits for who asks.
    ///
    /// # Errors
    /// Where the port is taken.
    pub(super) fn listen(address: IpAddr) -> Result<TcpListener> {
        let at = SocketAddr::new(address, PORT);
        TcpListener::bind(at).with_context(|| format!("listening on {at}"))
    }

    /// Over a connection.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn over(stream: TcpStream) -> Result<Talk> {
        stream.set_nodelay(true).context("a TCP connection")?;
        let lines = BufReader::new(stream);
        Ok(Talk { lines })
    }

    /// Reaches the half that serves.
    ///
    /// # Errors
    /// Where it does not come up in time.
    pub(super) fn reach(address: IpAddr) -> Result<Talk> {
        let (at, began) = (SocketAddr::new(address, PORT), Instant::now());
        loop {
            match TcpStream::connect_timeout(&at, Duration::from_secs(5)) {
                Ok(stream) => return Talk::over(stream),
                Err(error) if began.elapsed() > START_LIMIT => {
                    return Err(error).with_context(|| {
                        format!("nobody serves at {at}; start `rowmill-bench rdma --serve {address}` there")
                    });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    /// The own address, and the peer's.
    ///
    /// # Errors
    /// A failed call.
    pub(super) fn addresses(&self) -> Result<(IpAddr, IpAddr)> {
        let stream = self.lines.get_ref();
        Ok((stream.local_addr()?.ip(), stream.peer_addr()?.ip()))
    }

    /// Says something.
    ///
    /// # Errors
    /// The other half is gone.
    pub(super) fn say(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what)? + "\n";
        let stream = self.lines.get_mut();
        stream
            .write_all(line.as_bytes())
            .context("the other half is gone")
    }

    /// What the other half says next; `None` when it has gone.
    ///
    /// # Errors
    /// What makes no sense.
    pub(super) fn hear<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let said = serde_json::from_str(&line);
        Ok(Some(said.with_context(|| {
            format!("the other half says {line:?}")
        })?))
    }

    /// Asks, and gives the answer.
    ///
    /// # Errors
    /// The other half can't do it, or is gone.
    pub(super) fn ask(&mut self, question: &Ask) -> Result<Say> {
        self.say(question)?;
        match self.hear()?.context("the other half is gone")? {
            Say::Failed(why) => bail!("the half that serves: {why}"),
            said => Ok(said),
        }
    }

    /// Asks for something that has to be connected to: where.
    ///
    /// # Errors
    /// As [`Talk::ask`].
    pub(super) fn ask_where(&mut self, question: &Ask) -> Result<SocketAddr> {
        let (_, peer) = self.addresses()?;
        match self.ask(question)? {
            Say::Listening { port } => Ok(SocketAddr::new(peer, port)),
            other => bail!("an answer of the wrong kind: {other:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_heard_until_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a peer");
            let mut talk = Talk::over(stream).expect("a conversation");
            while let Some(asked) = talk.hear::<Ask>().expect("sense") {
                let said = match asked {
                    Ask::Rows => Say::Listening { port: 9 },
                    _ => Say::Failed("no".into()),
                };
                talk.say(&said).expect("heard");
            }
        });
        let stream = TcpStream::connect(at).expect("connected");
        let mut talk = Talk::over(stream).expect("a conversation");
        let place = talk.ask_where(&Ask::Rows).expect("a place");
        assert_eq!(place, SocketAddr::new(at.ip(), 9));
        let error = talk.ask(&Ask::Hello).expect_err("refused").to_string();
        assert_eq!(error, "the half that serves: no");
        drop(talk);
        server.join().expect("it ends with the conversation");
    }
}
