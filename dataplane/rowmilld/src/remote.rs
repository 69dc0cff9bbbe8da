//! Memory that is offered to other dataplanes ([`config::Export`]), and the one that rows are read from ([`config::Remote`]).

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Context;
use rowmill_cache::tier::{EachArrived, RemoteReads};
use rowmill_engine::{HELD, Side};
use rowmill_port::rdma::ConnectionParameters;
use rowmill_port::rdma::remote::{
    ExportedTable, Exporter, ExporterConfig, ExporterState, Identity, Offer, ReadLane, Reader,
    ReaderConfig, ReaderPhase, ReaderState,
};
use rowmill_table::{Generation, Resident, TableInfo};
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::config::{self, Config};
use crate::metrics::{Metrics, escape};
use crate::plan::{Choice, bytes_text};
use crate::service::format_number;

/// A worker's lane, as its tier reads by it.
#[derive(Debug)]
pub(crate) struct Lane(pub(crate) ReadLane);

impl RemoteReads for Lane {
    fn room(&mut self, now_ns: u64) -> Option<usize> {
        self.0.room(now_ns)
    }

    fn has(&self, table: u32) -> bool {
        self.0.has(table)
    }

    fn read(&mut self, table: u32, row: u32, token: u64) {
        self.0.read(table, row, token);
    }

    fn poll(&mut self, each: EachArrived<'_>) {
        self.0.poll(each);
    }
}

type CountOf = fn(&ReaderState) -> u64;

fn identity(model: &str, generation: &Generation, table: &TableInfo) -> Identity {
    Identity {
        model: model.into(),
        generation: generation.number(),
        fingerprint: generation.fingerprint(),
        table: table.name.clone(),
        rows: table.stored_rows(),
        stride: table.stride as u32,
        dim: table.dim as u32,
        format: format_number(table.format),
    }
}

fn connection(config: &Config) -> ConnectionParameters {
    config.rdma.port().connection
}

/// What is said at start of the dataplane that rows are read from.
pub(crate) fn describe(config: &Config) -> Vec<Choice> {
    let mut choices = Vec::new();
    if let Some(export) = &config.export {
        choices.push(Choice::warning(
            "export",
            export.listen.clone(),
            format!(
                "insecure: whoever reaches it can read all rows of tables that are not listed in [[tables]], and nothing is encrypted; memory is \
                 kept for {} ms after its last reader was heard",
                export.lease_ms
            ),
        ));
    }
    if let Some(remote) = &config.remote {
        choices.push(Choice::warning(
            "remote memory",
            format!("{}, {} the model's own files", remote.url, remote.tried),
            format!(
                "{} READs a worker, {} ms for a row; nothing that comes from there is authenticated, encrypted, or compared with a checksum",
                remote.reads, remote.budget_ms
            ),
        ));
    }
    choices
}

/// The dataplane that rows are read from, of each generation that is held.
#[derive(Debug)]
pub struct Remotes {
    remote: config::Remote,
    connection: ConnectionParameters,
    model: String,
    /// Those that are listed, in their order.
    tables: Vec<String>,
    workers: usize,
    clock: Clock,
    readers: Mutex<[Option<(u64, Reader)>; HELD]>,
}

impl Remotes {
    /// That of the configuration, if there is one.
    pub(crate) fn configured(config: &Config, workers: usize, clock: &Clock) -> Option<Remotes> {
        Some(Remotes {
            remote: config.remote.clone()?,
            connection: connection(config),
            model: config.model.name(),
            tables: config.tables.iter().map(|t| t.name.clone()).collect(),
            workers,
            clock: clock.clone(),
            readers: Mutex::default(),
        })
    }

    fn readers(&self) -> MutexGuard<'_, [Option<(u64, Reader)>; HELD]> {
        self.readers.lock().expect("a panic ends the process")
    }

    /// Begins to connect for the rows of a generation that has come on a side. Gives each worker's lane.
    ///
    /// # Errors
    /// Where there is no device or no memory for that, or a listed table is missing.
    pub(crate) fn begin(
        &self,
        side: Side,
        generation: &Generation,
    ) -> anyhow::Result<Vec<ReadLane>> {
        let wanted = self.tables.iter().map(|name| {
            let table = generation.table(name)?;
            Ok(identity(&self.model, generation, table))
        });
        let clock = self.clock.clone();
        let (reader, lanes) = Reader::start(ReaderConfig {
            endpoint: self.remote.url.clone(),
            connection: self.connection,
            lanes: self.workers as u16,
            reads: self.remote.reads,
            tables: wanted.collect::<anyhow::Result<_>>()?,
            now_ns: Box::new(move || clock.now_ns()),
        })
        .context("remote.url")?;
        self.readers()[side.index()] = Some((generation.number(), reader));
        Ok(lanes)
    }

    /// The generation of a side has gone, and workers have given their lanes back.
    pub(crate) fn end(&self, side: Side) {
        let ended = self.readers()[side.index()].take();
        // It waits for its connection to end.
        drop(ended);
    }

    pub(crate) fn status(&self) -> Value {
        let readers = self.readers();
        let each = readers.iter().flatten();
        json!(
            each.map(|(of, reader)| self.stands(*of, reader))
                .collect::<Vec<_>>()
        )
    }

    fn stands(&self, generation: u64, reader: &Reader) -> Value {
        let state = reader.state();
        let refused = self.tables.iter().zip(&state.refused);
        let refused =
            refused.filter_map(|(table, why)| Some(format!("{table}: {}", why.as_ref()?)));
        let refused: Vec<String> = refused.collect();
        let stands = match state.phase {
            ReaderPhase::Apart => "apart",
            ReaderPhase::Connected => "connected",
        };
        json!({
            "url": self.remote.url,
            "generation": generation,
            "tried": self.remote.tried.to_string(),
            "state": stands,
            "connected": state.connected,
            "lost": state.lost,
            "renewed": state.renewed,
            "lease_ms": state.lease.as_millis() as u64,
            "reads_in_flight": state.reads_in_flight,
            "why": state.why,
            "not_given": refused.join("; "),
        })
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let readers = self.readers();
        let each = readers.iter().flatten();
        let each = each.map(|(of, reader)| {
            let url = escape(&self.remote.url);
            (format!("url=\"{url}\",generation=\"{of}\""), reader.state())
        });
        let states: Vec<(String, ReaderState)> = each.collect();
        drop(readers);
        let name = "rowmill_remote_connected";
        let help = "Whether rows of a generation can be read from the dataplane of remote.url.";
        out.family(name, "gauge", help);
        for (labels, state) in &states {
            let is_connected = state.phase == ReaderPhase::Connected;
            out.sample(name, labels, u64::from(is_connected));
        }
        let counts: [(&str, &str, CountOf); 3] = [
            (
                "rowmill_remote_connections_total",
                "Connections to it.",
                |state| state.connected,
            ),
            ("rowmill_remote_lost_total", "Connections lost.", |state| {
                state.lost
            }),
            (
                "rowmill_remote_renewals_total",
                "Renewals of the lease.",
                |state| state.renewed,
            ),
        ];
        for (name, help, count) in counts {
            out.family(name, "counter", help);
            for (labels, state) in &states {
                out.sample(name, labels, count(state));
            }
        }
    }
}

/// Offers memory to other dataplanes, if that is configured.
pub(crate) fn export(
    config: &Config,
    generation: &Generation,
    tables: &Resident,
) -> anyhow::Result<Option<Arc<Export>>> {
    let Some(export) = &config.export else {
        return Ok(None);
    };
    let listed: Vec<String> = config.tables.iter().map(|t| t.name.clone()).collect();
    let model = config.model.name();
    let offer = offer(&model, &listed, generation, tables);
    if offer.tables.is_empty() {
        tracing::warn!(
            "export.listen: nothing is exported, since all tables are listed in [[tables]]; only those that are not stay where they are"
        );
    }
    let exporter = Exporter::start(
        ExporterConfig {
            endpoint: export.listen.clone(),
            connection: connection(config),
            lease: Duration::from_millis(export.lease_ms.into()),
            readers: export.readers,
        },
        offer,
    )
    .context("export.listen")?;
    tracing::info!("exporting on rdma://{}", exporter.address());
    Ok(Some(Arc::new(Export {
        model,
        listed,
        exporter,
    })))
}

/// Tables that are listed may be given back or take other memory while they are served: only the others are immutable.
fn offer(model: &str, listed: &[String], generation: &Generation, tables: &Resident) -> Offer {
    let mut offer = Offer {
        generation: generation.number(),
        tables: Vec::new(),
        left_out: Vec::new(),
    };
    for table in generation.tables() {
        let rows = tables
            .table(&table.name)
            .and_then(|resident| resident.frozen());
        match rows.filter(|_| !listed.contains(&table.name)) {
            Some(rows) => offer.tables.push(ExportedTable {
                identity: identity(model, generation, table),
                rows,
            }),
            None => {
                let why = "it is listed in [[tables]] of the exporter, and only tables whose rows all stay in memory are exported";
                offer.left_out.push((table.name.clone(), why.into()));
            }
        }
    }
    offer
}

/// What is offered to other dataplanes.
#[derive(Debug)]
pub struct Export {
    model: String,
    listed: Vec<String>,
    exporter: Exporter,
}

impl Export {
    /// Offers another generation, too.
    pub(crate) fn add(&self, generation: &Generation, tables: &Resident) {
        let offer = offer(&self.model, &self.listed, generation, tables);
        self.exporter.offer(offer);
    }

    /// A generation is to go: no lease on it is renewed any more.
    pub(crate) fn withdraw(&self, generation: u64) {
        self.exporter.withdraw(generation);
    }

    /// Whether somebody may read a generation still.
    pub(crate) fn holds(&self, generation: u64) -> bool {
        let state = self.exporter.state();
        let mut held = state.generations.iter();
        held.any(|&(number, ..)| number == generation)
    }

    pub(crate) fn status(&self) -> (Value, Value) {
        let ExporterState {
            readers,
            generations,
            ..
        } = self.exporter.state();
        let reader = |(address, lanes, lease): &(Option<std::net::SocketAddr>, usize, Duration)| {
            json!({
                "address": address.map(|address| address.to_string()),
                "lanes": lanes,
                "lease_left_ms": lease.as_millis() as u64,
            })
        };
        let generation = |&(number, tables, bytes, is_ending): &(u64, usize, u64, bool)| {
            json!({
                "generation": number,
                "tables": tables,
                "bytes": bytes_text(bytes),
                "state": if is_ending { "ending" } else { "exported" },
            })
        };
        let readers: Vec<Value> = readers.iter().map(reader).collect();
        let generations: Vec<Value> = generations.iter().map(generation).collect();
        (json!(generations), json!(readers))
    }

    pub(crate) fn metrics(&self, out: &mut Metrics) {
        let state = self.exporter.state();
        let name = "rowmill_export_readers";
        out.family(name, "gauge", "Dataplanes that may read exported memory.");
        out.sample(name, "", state.readers.len() as u64);
        let name = "rowmill_export_bytes";
        out.family(name, "gauge", "Bytes of rows that are exported.");
        let bytes = state.generations.iter().map(|&(_, _, bytes, _)| bytes);
        out.sample(name, "", bytes.sum());
        for (name, help, count) in [
            (
                "rowmill_export_accepted_total",
                "Readers let in.",
                state.accepted,
            ),
            (
                "rowmill_export_refused_total",
                "Connections of readers refused.",
                state.refused,
            ),
            (
                "rowmill_export_lapsed_total",
                "Leases that ended since nobody renewed them.",
                state.lapsed,
            ),
        ] {
            out.family(name, "counter", help);
            out.sample(name, "", count);
        }
    }
}
