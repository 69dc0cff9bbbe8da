//! Connecting a client: its control stream, the hello, and its lanes.

use std::net::SocketAddr;
use std::time::Instant;

use rowmill_verbs::{
    CmEventKind, CompletionChannel, CompletionQueue, Context, EventChannel, ProtectionDomain,
    Remote, RequestData, Selector,
};
use rowmill_wire::Status;
use rowmill_wire::control::{Control, Welcome};

use super::bounds::{CONTROL_COMPLETIONS, completions_for, worker_receives};
use super::client::{RdmaClient, Stream};
use super::client_lane::ClientLane;
use super::config::{RdmaClientConfig, Role};
use super::connect::{Attempt, Failure};
use super::endpoint::addresses;
use super::failure::system;
use super::link::Link;
use super::private_data::{Asked, SessionId, parse_reply};
use crate::calls::{Late, unexpected};
use crate::reconnect::Backoff;
use crate::ticks::Ticks;
use crate::{Lost, PortError};

impl RdmaClient {
    /// Connects with `credits` request slots a lane and defaults for the rest.
    ///
    /// # Errors
    /// As [`RdmaClient::connect_with`].
    pub fn connect(endpoint: &str, client: &str, credits: u16) -> Result<RdmaClient, PortError> {
        let config = RdmaClientConfig {
            credits,
            ..RdmaClientConfig::default()
        };
        RdmaClient::connect_with(endpoint, client, config)
    }

    /// Connects. `client` is shown in the server's log and status page.
    ///
    /// # Errors
    /// [`PortError::Endpoint`], [`PortError::Connect`] where nobody listens or answers in time, [`PortError::Refused`],
    /// [`PortError::Protocol`] where the server's answer makes no sense, [`PortError::NoAnswer`] where it lets this in and does not
    /// answer then, [`PortError::Interrupted`].
    pub fn connect_with(
        endpoint: &str,
        client: &str,
        config: RdmaClientConfig,
    ) -> Result<RdmaClient, PortError> {
        let all = addresses(endpoint)?;
        let deadline = Instant::now() + config.connect_limit;
        let mut backoff = Backoff::default();
        loop {
            let channel = EventChannel::new().map_err(|e| system("connecting", e))?;
            let attempt = Attempt {
                endpoint,
                channel: &channel,
                deadline,
                interrupt: &config.interrupt,
            };
            let mut outcome = RdmaClient::try_connect(&attempt, all[0], client, &config);
            for &to in &all[1..] {
                if let Err(Failure::Final(PortError::Connect { .. })) = outcome {
                    outcome = RdmaClient::try_connect(&attempt, to, client, &config);
                }
            }
            match outcome {
                Ok(client) => return Ok(client),
                Err(Failure::Final(error)) => return Err(error),
                // The dataplane had a connection with the same numbers, as after a restart of this machine.
                Err(Failure::Stale) => {
                    let delay = backoff.delay(Instant::now());
                    if Instant::now() + delay >= deadline {
                        return Err(attempt.failed("it takes this for an old connection"));
                    }
                    config.interrupt.sleep(delay)?;
                }
            }
        }
    }

    fn try_connect(
        attempt: &Attempt<'_>,
        to: SocketAddr,
        name: &str,
        config: &RdmaClientConfig,
    ) -> Result<RdmaClient, Failure> {
        let failed = |error| attempt.verbs(&error);
        let mut way = attempt.resolve(to, &config.connection)?;
        let from = way
            .local_address()
            .ok_or_else(|| attempt.failed("no local address leads there"))?;
        let context = Context::open(&Selector::Address(from.ip())).map_err(failed)?;
        if !way.is_on(&context) {
            return Err(attempt
                .failed("the way there leads over another device")
                .into());
        }
        let domain = ProtectionDomain::new(&context).map_err(failed)?;
        let completion_channel = CompletionChannel::new(&context).map_err(failed)?;
        let completions =
            CompletionQueue::new(&context, CONTROL_COMPLETIONS, Some(&completion_channel))
                .map_err(failed)?;
        let mut link = Link::new(&domain, completions.handle(), 0, 0).map_err(failed)?;
        let parameters = config.connection.parameters(Role::ClientControl, &context);
        link.receive_by(&mut way, &parameters).map_err(failed)?;
        let asked = Asked::Control {
            path_mtu: config.connection.bound(&context),
        };
        let data = RequestData::new(&asked.encode()).map_err(failed)?;
        let connecting = way
            .connect(&mut link.qp, &parameters, &data)
            .map_err(failed)?;
        let event = attempt.answer(&connecting)?;
        // What accepts without such a reply is no dataplane.
        let (session, path_mtu) = match event.kind {
            CmEventKind::ConnectResponse => {
                parse_reply(event.private_data.as_slice()).map_err(|status| {
                    PortError::Protocol(format!("the server's reply to the connection: {status}"))
                })?
            }
            _ => return Err(failed(event.as_error()).into()),
        };
        let agreed = config.connection.with_bound(path_mtu);
        let parameters = agreed.parameters(Role::ClientControl, &context);
        let connection = connecting
            .establish(&event, &mut link.qp, &parameters)
            .map_err(failed)?;
        let now = Instant::now();
        let mut half = RdmaClient {
            lanes: Vec::new(),
            stream: Some(Stream { link, connection }),
            regions: Default::default(),
            completions,
            armed: false,
            completion_channel,
            channel: attempt.channel.clone(),
            domain,
            welcome: nothing_granted(),
            config: RdmaClientConfig {
                connection: agreed,
                ..config.clone()
            },
            answer: None,
            awaits: false,
            sequence: 0,
            late: Late::default(),
            ticks: Ticks::new(),
            beat: (0, now),
            suspect: None,
            ended: None,
        };
        half.equip(attempt, to, name, session)?;
        Ok(half)
    }

    /// Says hello and opens the lanes.
    fn equip(
        &mut self,
        attempt: &Attempt<'_>,
        to: SocketAddr,
        name: &str,
        session: SessionId,
    ) -> Result<(), Failure> {
        let hello = Control::Hello {
            client: name.to_owned(),
            credits: self.config.credits,
        };
        let welcome = match self.call_within(&hello, &mut attempt.patience())? {
            Control::Welcome(welcome) => welcome,
            other => return Err(unexpected(&other).into()),
        };
        let granted = welcome.credits;
        if granted > self.config.credits.max(1) || welcome.completions != completions_for(granted) {
            let text = format!("the welcome's numbers are impossible: {welcome:?}");
            return Err(PortError::Protocol(text).into());
        }
        let lanes = welcome.split.lanes;
        self.welcome = welcome;
        for lane in 0..lanes {
            if let Err(failure) = self.open_lane(attempt, to, session, lane) {
                return Err(self.of_session(failure));
            }
        }
        self.beat = (0, Instant::now());
        Ok(())
    }

    /// Why a lane could not be opened. A dataplane that has ended the session, as it does with who takes too long and where it
    /// can't make a lane, refuses it without a word or, since it knows nothing of the session any more, as nonsense. Why the
    /// session ended is what counts, and stands in its Goodbye.
    fn of_session(&mut self, failure: Failure) -> Failure {
        let Failure::Final(error) = failure else {
            return failure;
        };
        let is_nonsense = match &error {
            PortError::Refused { refusal, .. } if refusal.status == Status::Malformed => true,
            PortError::Connect { .. } => false,
            _ => return Failure::Final(error),
        };
        tracing::debug!(%error, "a lane can't be had");
        self.suspect(Instant::now(), Lost::Disconnected);
        Failure::Final(match self.hear_the_end() {
            PortError::Lost {
                what: Lost::Disconnected,
            } if !is_nonsense => error,
            why => why,
        })
    }

    fn open_lane(
        &mut self,
        attempt: &Attempt<'_>,
        to: SocketAddr,
        session: SessionId,
        lane: u16,
    ) -> Result<(), Failure> {
        let failed = |error| attempt.verbs(&error);
        let context = self.domain.context().clone();
        let parameters = self
            .config
            .connection
            .parameters(Role::ClientLane, &context);
        let credits = self.welcome.credits;
        let mut way = attempt.resolve(to, &self.config.connection)?;
        let mut end = ClientLane::new(
            &self.domain,
            &self.completion_channel,
            lane,
            credits,
            self.config.inline_bytes,
        )?;
        let (ring, receives) = end.records();
        let qp = end.qp.as_mut().expect("a new lane");
        way.initialise(qp, &parameters).map_err(failed)?;
        qp.receive_empty(receives).map_err(failed)?;
        let asked = Asked::Lane { session, lane };
        let data = RequestData::new(&asked.encode()).map_err(failed)?;
        let connecting = way.connect(qp, &parameters, &data).map_err(failed)?;
        let event = attempt.answer(&connecting)?;
        let connection = connecting
            .establish(&event, qp, &parameters)
            .map_err(failed)?;
        end.connection = Some(connection);
        self.lanes.push(end);
        let question = Control::LaneOpen {
            lane,
            receives,
            address: ring.address,
            key: ring.key,
        };
        match self.call_within(&question, &mut attempt.patience())? {
            Control::LaneOpened {
                lane: opened,
                address,
                key,
                receives,
            } if opened == lane && receives == worker_receives(credits) => {
                let end = self.lanes.last_mut().expect("just made");
                end.slots_at(Remote { address, key });
                Ok(())
            }
            other => Err(unexpected(&other).into()),
        }
    }
}

fn nothing_granted() -> Welcome {
    Welcome {
        model: String::new(),
        generation: 0,
        split: rowmill_wire::SplitRule {
            lanes: 1,
            min_bags: 1,
        },
        credits: 1,
        completions: completions_for(1),
        max_ids: 0,
        max_lengths: 0,
        max_region: 0,
    }
}
