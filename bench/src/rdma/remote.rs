//! The tier of another dataplane's memory beside `ib_read_bw`: rows a second that come one READ each, at the size of a row.

use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use rowmill_arena::{Arena, FrozenBytes, HugePages};
use rowmill_cache::tier::{EachArrived, RemoteReads, RemoteTier, RemoteTierOptions, Tier, Wanted};
use rowmill_port::rdma::ConnectionParameters;
use rowmill_port::rdma::remote::{
    ExportedTable, Exporter, ExporterConfig, Identity, Offer, ReadLane, Reader, ReaderConfig,
    ReaderPhase,
};

use super::endpoint;

/// Sizes of rows that are read: f32 of 64 and of 128 dimensions.
pub(super) const STRIDES: [u32; 2] = [256, 512];
/// Rows of each table: 24 and 48 MiB, in random order far beyond what a second-level cache holds.
const ROWS: u64 = 96 << 10;
/// The default of `remote.reads`.
const READS: u32 = 128;
/// Rows that are wanted at a time: as many as a worker's tier takes by default.
const FETCHES: u32 = 512;
/// Where rows are exported.
const PORT: u16 = 7404;
/// How long connecting and a round may take.
const PATIENCE: Duration = Duration::from_secs(60);

fn at(address: IpAddr) -> String {
    endpoint(address).replace(":7400", &format!(":{PORT}"))
}

fn identity(table: usize) -> Identity {
    Identity {
        model: "bench".into(),
        generation: 1,
        fingerprint: 0,
        table: format!("rows{}", STRIDES[table]),
        rows: ROWS,
        stride: STRIDES[table],
        dim: STRIDES[table] / 4,
        format: 0,
    }
}

/// The first bytes of a row.
fn word(table: usize, row: u64) -> [u8; 8] {
    ((table as u64) << 48 | (row + 1)).to_le_bytes()
}

/// Exports tables as a dataplane does.
///
/// # Errors
/// Where there is no memory, or it can't be registered.
pub(super) fn export(address: IpAddr) -> Result<Exporter> {
    let tables = STRIDES.iter().enumerate().map(|(table, &stride)| {
        let mut arena = Arena::allocate(ROWS as usize * stride as usize, HugePages::Prefer)?;
        let rows = arena.as_mut_slice().chunks_mut(stride as usize);
        for (row, bytes) in (0..).zip(rows) {
            bytes[..8].copy_from_slice(&word(table, row));
        }
        let arena = Arc::new(arena.freeze()?);
        let bytes = arena.len();
        Ok(ExportedTable {
            identity: identity(table),
            rows: FrozenBytes::new(arena, 0..bytes),
        })
    });
    let offer = Offer {
        generation: 1,
        tables: tables.collect::<Result<_>>()?,
        left_out: Vec::new(),
    };
    let config = ExporterConfig {
        endpoint: at(address),
        connection: ConnectionParameters::default(),
        lease: Duration::from_secs(3),
        readers: 1,
    };
    Ok(Exporter::start(config, offer)?)
}

struct Lane(ReadLane);

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

/// A worker's tier, connected.
pub(super) struct Remote {
    tier: RemoteTier<Lane>,
    reader: Reader,
    began: Instant,
    random: SmallRng,
}

impl Remote {
    /// Connects to who exports at an address.
    ///
    /// # Errors
    /// Why that can't be.
    pub(super) fn connect(address: IpAddr) -> Result<Remote> {
        let began = Instant::now();
        let (reader, lanes) = Reader::start(ReaderConfig {
            endpoint: at(address),
            connection: ConnectionParameters::default(),
            lanes: 1,
            reads: READS,
            tables: (0..STRIDES.len()).map(identity).collect(),
            now_ns: Box::new(move || began.elapsed().as_nanos() as u64),
        })?;
        while reader.state().phase != ReaderPhase::Connected {
            let why = || reader.state().why;
            ensure!(began.elapsed() < PATIENCE, "not connected: {}", why());
            thread::sleep(Duration::from_millis(5));
        }
        eprintln!(
            "rdma: a lane has {} READs in flight",
            reader.state().reads_in_flight
        );
        let lane = lanes.into_iter().next().context("a lane")?;
        let options = RemoteTierOptions {
            fetches: FETCHES,
            budget_ns: PATIENCE.as_nanos() as u64,
        };
        Ok(Remote {
            tier: RemoteTier::new(Lane(lane), &STRIDES.map(|stride| stride as usize), options),
            reader,
            began,
            random: SmallRng::seed_from_u64(7),
        })
    }

    /// MB/s of so many rows of a table, drawn at random; each is compared.
    ///
    /// # Errors
    /// A row that does not come.
    pub(super) fn measure(&mut self, table: usize, rows: u64) -> Result<f64> {
        let Remote {
            tier,
            reader,
            began,
            random,
        } = self;
        let (mut wanted, mut come, mut wrong, mut failed) = (0, 0, 0, None);
        let since = Instant::now();
        while come < rows && failed.is_none() {
            let now_ns = began.elapsed().as_nanos() as u64;
            while wanted < rows && wanted - come < u64::from(FETCHES) {
                let row = random.random_range(0..ROWS) as u32;
                let fetch = Wanted {
                    table: table as u32,
                    row,
                    token: row.into(),
                    deadline_ns: u64::MAX,
                };
                if tier.fetch(now_ns, fetch).is_err() {
                    break;
                }
                wanted += 1;
            }
            tier.poll(now_ns, &mut |row, answer| match answer {
                Ok(bytes) => {
                    come += 1;
                    wrong += u64::from(bytes[..8] != word(table, row));
                }
                Err(error) => failed = Some(error),
            });
            ensure!(since.elapsed() < PATIENCE, "{come} of {rows} rows came");
        }
        let took = since.elapsed();
        if let Some(error) = failed {
            bail!("a row does not come: {error:?}; {}", reader.state().why);
        }
        ensure!(wrong == 0, "{wrong} of {rows} rows are others");
        Ok((rows * u64::from(STRIDES[table])) as f64 / 1e6 / took.as_secs_f64())
    }
}
