//! The half that serves: a real `rowmilld`, and beside it what its figures are compared with.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use rowmill_port::rdma::remote::Exporter;
use rowmill_verbs::{HostMemory, Registered};

use super::link::{Device, Offer};
use super::ping_pong::{self, Sizes};
use super::talk::{Ask, Say, Talk};
use super::{MODEL_BYTES, endpoint, perftest, read_rows, remote};
use crate::model::Model;
use crate::service::Service;

/// A worker that spins between a client's requests, as one with a CPU of its own. Where the machine has one CPU, its packets
/// need that too: after longer than a client takes between two requests (some 100 us) the worker yields, and it sleeps soon
/// after the last, so that what is measured in turn with it finds the CPU free.
const WORKER: &str = "[workers]\ncpus = 1\n[idle]\nspin_us = 200\nyield_us = 20000\n";

/// Serves one half that asks, until it goes.
///
/// # Errors
/// Where the service or the device can't be had.
pub(crate) fn run(address: IpAddr) -> Result<()> {
    let (model, _) = Model::dlrm_v2(MODEL_BYTES)?;
    let service = Service::start_at(&endpoint(address), &model.directory, WORKER)?;
    let device = Device::open(address)?;
    let rows = read_rows::share(&device, &*model.load()?)?;
    let mut half = Half {
        service,
        device: Arc::new(device),
        rows,
        exporter: None,
    };
    let (stream, _) = Talk::listen(address)?.accept().context("the other half")?;
    let mut talk = Talk::over(stream)?;
    while let Some(asked) = talk.hear()? {
        if let Err(error) = half.answer(&mut talk, asked) {
            talk.say(&Say::Failed(format!("{error:#}")))?;
        }
    }
    let Half { service, .. } = half;
    service.stop()
}

struct Half {
    service: Service,
    device: Arc<Device>,
    rows: Registered<HostMemory>,
    exporter: Option<Exporter>,
}

impl Half {
    fn answer(&mut self, talk: &mut Talk, asked: Ask) -> Result<()> {
        let device = &self.device;
        match asked {
            Ask::Hello => talk.say(&Say::Serving {
                endpoint: self.service.endpoint().into(),
                model_bytes: MODEL_BYTES,
            }),
            Ask::PingPong {
                request,
                result,
                record,
            } => {
                let offer = Offer::new(device)?;
                talk.say(&Say::Listening {
                    port: offer.port()?,
                })?;
                let sizes = Sizes {
                    request,
                    result,
                    record,
                };
                ping_pong::answer(device, offer, sizes)
            }
            Ask::Rows => {
                let offer = Offer::new(device)?;
                talk.say(&Say::Listening {
                    port: offer.port()?,
                })?;
                read_rows::serve(device, offer, &self.rows)
            }
            Ask::Bandwidth(run) => {
                let (_, peer) = talk.addresses()?;
                let said = perftest::send(device.context.name(), peer, run)?;
                talk.say(&said)
            }
            Ask::Export => {
                if self.exporter.is_none() {
                    let (own, _) = talk.addresses()?;
                    self.exporter = Some(remote::export(own)?);
                }
                talk.say(&Say::Exporting)
            }
            Ask::Counters => {
                let status = self.service.status()?;
                let count = |name: &str| {
                    let count = status["workers"][0][name].as_u64();
                    count.with_context(|| format!("{name} of the worker"))
                };
                talk.say(&Say::Counters {
                    doorbells: count("doorbells")?,
                    requests: count("requests")?,
                })
            }
        }
    }
}
