//! The half that asks: it runs the real client, measures and reports.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_arena::Window;
use rowmill_client::{Client, Options, Pooling, Schema, Wait};
use rowmill_pooling::{Isa, Kernels};
use rowmill_table::Resident;
use rowmill_wire::request::inline_offset;

use super::link::Device;
use super::perftest::{Bandwidth, Program};
use super::ping_pong::{PingPong, Sizes};
use super::read_rows::Reader;
use super::remote::{Remote, STRIDES};
use super::talk::{Ask, Say, Talk};
use super::wire::Wire;
use crate::driver::{Driver, histogram, median, quantile_us, record};
use crate::model::{self, Model};
use crate::null;
use crate::report::{Measurement, Reporter};
use crate::workload::{Query, Workload};

/// Requests of one client in flight where goodput is measured.
const DEPTH: usize = 16;
/// Result sizes whose goodput is measured, and how many results a round has: 32 to 42 MB, a third of a second or so.
const RESULTS: [(u64, u64); 3] = [(64 << 10, 500), (256 << 10, 150), (1 << 20, 40)];
/// Rows of another dataplane's memory of a round.
const REMOTE_ROWS: u64 = 8000;
/// Samples of a large request.
const LARGE: u32 = 256;
/// Large requests of a round.
const LARGE_QUERIES: usize = 8;
/// Round trips of a round.
const SMALL_QUERIES: usize = 1500;
/// How much longer than a bare ping-pong one sample may take, beside its pooling.
const PING_PONGS: f64 = 1.3;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Rounds of each case; each compares both in turn.
    pub rounds: usize,
    /// One in so many of a round's requests is sent.
    pub share: usize,
}

struct Bench {
    talk: Talk,
    endpoint: String,
    device: Device,
    model: Model,
    tables: Arc<Resident>,
    kernels: Kernels,
    workload: Workload,
    extent: Extent,
}

/// Runs the suite against the half that serves at `address`.
///
/// # Errors
/// Where that is gone, or an answer is wrong.
pub(crate) fn run(address: IpAddr, extent: Extent, reporter: &mut Reporter) -> Result<()> {
    let (model, factor) = Model::dlrm_v2(super::MODEL_BYTES)?;
    let tables = model.load()?;
    let mut talk = Talk::reach(address)?;
    let Say::Serving {
        endpoint,
        model_bytes,
    } = talk.ask(&Ask::Hello)?
    else {
        bail!("the other half does not say what it serves");
    };
    ensure!(
        model_bytes == super::MODEL_BYTES,
        "the halves are of different versions"
    );
    let (own, _) = talk.addresses()?;
    let device = Device::open(own)?;
    eprintln!(
        "rdma: DLRM-v2 with rows scaled by {factor:.5}; {} by {} to {endpoint}, path MTU at most {:?}",
        own,
        device.context.name(),
        device.context.limits().path_mtu
    );
    let mut bench = Bench {
        talk,
        endpoint,
        device,
        workload: Workload::dlrm_v2(&model.rows(), 1),
        model,
        tables,
        kernels: Kernels::new(Isa::detect().isa),
        extent,
    };
    bench.goodput(reporter)?;
    bench.remote_rows(reporter)?;
    bench.latency(reporter)?;
    bench.pooled_there_or_here(reporter)
}

impl Bench {
    fn driver(&self, name: &str, schema: &Schema, bags: u32, depth: usize) -> Result<Driver> {
        let options = Options {
            name: name.into(),
            credits: DEPTH as u16,
            ..Options::default()
        };
        let session = Client::connect(&self.endpoint, options)?;
        Driver::new(session, schema.clone(), bags, depth)
    }

    /// Doorbells of the worker, and requests.
    fn counters(&mut self) -> Result<(u64, u64)> {
        match self.talk.ask(&Ask::Counters)? {
            Say::Counters {
                doorbells,
                requests,
            } => Ok((doorbells, requests)),
            other => bail!("an answer of the wrong kind: {other:?}"),
        }
    }

    /// Bytes of results a second, of bags with one id each, beside WRITEs of the same size.
    fn goodput(&mut self, reporter: &mut Reporter) -> Result<()> {
        let table = self.tables.tables()[0].clone();
        let row_bytes = table.dim() as u64 * 4;
        let one_id = (table.name(), table.name(), Pooling::Sum, table.dim() as u32);
        let rows = table.lookup_count();
        let mut yardstick = Bandwidth::over(self.device.context.name(), Program::Write);
        for (bytes, count) in RESULTS {
            let case = format!("port=rdma/shape=one-id/bytes={bytes}/load=closed");
            if !reporter.wants(&case) {
                continue;
            }
            let count = (count / self.extent.share as u64).max(DEPTH as u64);
            let bags = (bytes / row_bytes) as u32;
            let (schema, _) = Schema::side_by_side(bags, [one_id]);
            let queries: Vec<Query> = (0..2 * DEPTH)
                .map(|_| self.workload.one_id(bags, rows))
                .collect();
            let mut driver = self.driver("bench goodput", &schema, bags, DEPTH)?;
            self.is_right(&mut driver, &schema, &queries[0])?;
            let mut times = histogram();
            let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            let before = self.counters()?;
            for round in 0..self.extent.rounds {
                let mut serve = |driver: &mut Driver| -> Result<f64> {
                    let queries = queries.iter().cycle().take(count as usize);
                    let took = driver.pipelined(queries, &mut times)?;
                    Ok((bytes * count) as f64 / 1e6 / took.as_secs_f64())
                };
                // The order changes from round to round, so that what slows the machine down slows both.
                let (mine, other);
                if round % 2 == 0 {
                    mine = serve(&mut driver)?;
                    other = yardstick.measure(&mut self.talk, bytes, count)?;
                } else {
                    other = yardstick.measure(&mut self.talk, bytes, count)?;
                    mine = serve(&mut driver)?;
                }
                eprintln!("rdma: {case}: {mine:.1} MB/s, ib_write_bw {other:.1} MB/s");
                ours.push(mine);
                theirs.push(other);
                ratios.push(mine / other);
            }
            let after = self.counters()?;
            let rate = Measurement::plain("rdma", &case, "goodput", median(ours), "MB/s");
            reporter.add(rate.beside("ib_write_bw", median(theirs), median(ratios)));
            let rung = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
            reporter.add(Measurement::plain(
                "rdma",
                &case,
                "doorbells",
                rung,
                "1/request",
            ));
        }
        Ok(())
    }

    /// Rows a second of another dataplane's memory, beside READs of the same size.
    fn remote_rows(&mut self, reporter: &mut Reporter) -> Result<()> {
        let cases = STRIDES.map(|stride| format!("port=rdma/tier=remote/row={stride}/load=closed"));
        if !cases.iter().any(|case| reporter.wants(case)) {
            return Ok(());
        }
        ensure!(
            matches!(self.talk.ask(&Ask::Export)?, Say::Exporting),
            "the other half does not export"
        );
        let (_, peer) = self.talk.addresses()?;
        let mut remote = Remote::connect(peer)?;
        let mut yardstick = Bandwidth::over(self.device.context.name(), Program::Read);
        let count = (REMOTE_ROWS / self.extent.share as u64).max(1000);
        for (table, (case, stride)) in cases.iter().zip(STRIDES).enumerate() {
            if !reporter.wants(case) {
                continue;
            }
            let rate = |mb: f64| mb * 1e6 / f64::from(stride);
            let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..self.extent.rounds {
                let mut pair = [0.0; 2];
                for turn in [round % 2, (round + 1) % 2] {
                    pair[turn] = rate(match turn {
                        0 => remote.measure(table, count)?,
                        _ => yardstick.measure(&mut self.talk, stride.into(), count)?,
                    });
                }
                let [mine, other] = pair;
                eprintln!("rdma: {case}: {mine:.0} rows/s, ib_read_bw {other:.0} messages/s");
                ours.push(mine);
                theirs.push(other);
                ratios.push(mine / other);
            }
            let rate = Measurement::plain("rdma", case, "rate", median(ours), "rows/s");
            reporter.add(rate.beside("ib_read_bw", median(theirs), median(ratios)));
        }
        Ok(())
    }

    /// An answer, compared with what the kernels give for the same ids.
    fn is_right(&self, driver: &mut Driver, schema: &Schema, query: &Query) -> Result<()> {
        driver.round_trip(query)?;
        let target = driver.idle.last().context("the target is back")?;
        let mut got = vec![0; target.bytes() as usize];
        driver.session.read(target, 0, &mut got);
        let mut right = vec![0; got.len()];
        self.pool(schema, query, &mut right);
        ensure!(got == right, "the service's answer is not the kernels'");
        Ok(())
    }

    fn pool(&self, schema: &Schema, query: &Query, out: &mut [u8]) {
        let batch = model::batch(&self.tables, schema, query);
        self.kernels.pool(&batch, &Window::over(out));
    }

    fn ping_pong(&mut self, sizes: Sizes) -> Result<PingPong> {
        let at = self.talk.ask_where(&Ask::PingPong {
            request: sizes.request,
            result: sizes.result,
            record: sizes.record,
        })?;
        PingPong::connect(&self.device, at, sizes)
    }

    /// The median of some bare ping-pongs, in microseconds.
    fn ping_pong_p50(&mut self, sizes: Sizes, count: usize) -> Result<f64> {
        let (mut ping_pong, mut times) = (self.ping_pong(sizes)?, histogram());
        for at in 0..count {
            let time = ping_pong.round_trip()?;
            if at >= count / 10 {
                record(&mut times, time);
            }
        }
        Ok(quantile_us(&times, 0.5))
    }

    /// The latency of one sample at a time, beside a bare ping-pong and the pooling.
    fn latency(&mut self, reporter: &mut Reporter) -> Result<()> {
        let case = "port=rdma/shape=dlrm-v2/samples=1/load=closed";
        if !reporter.wants(case) {
            return Ok(());
        }
        let (schema, row_bytes) = self.model.schema(1);
        let count = (SMALL_QUERIES / self.extent.share).max(50);
        let queries: Vec<Query> = (0..count).map(|_| self.workload.query(1)).collect();
        let (features, ids) = (schema.features.len(), queries[0].ids() as usize);
        let sizes = Sizes {
            // The frame: header and spans, a length a feature, the ids.
            request: inline_offset(features) + 4 * features + 4 * ids,
            result: row_bytes as usize,
            record: false,
        };
        let with_record = self.ping_pong_p50(
            Sizes {
                record: true,
                ..sizes
            },
            count,
        )?;
        let mut driver = self.driver("bench latency", &schema, 1, 1)?;
        self.is_right(&mut driver, &schema, &queries[0])?;
        let nothing = null::round_trips(&mut driver.session, count, Wait::Poll, Duration::ZERO)?;
        let mut ping_pong = self.ping_pong(sizes)?;
        let mut out = vec![0; row_bytes as usize];
        let (mut all, mut pings_p50, mut kernels_p50, mut bounds, mut ratios) =
            (histogram(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.extent.rounds {
            let (mut served, mut pings, mut alone) = (histogram(), histogram(), histogram());
            for turn in [round % 2, (round + 1) % 2] {
                // The first round trips find the other side asleep.
                let warm_up = count / 10;
                for (at, query) in queries.iter().enumerate() {
                    let (time, times) = match turn {
                        0 => (driver.round_trip(query)?, &mut served),
                        _ => (ping_pong.round_trip()?, &mut pings),
                    };
                    if at >= warm_up {
                        record(times, time);
                    }
                }
            }
            for query in &queries {
                let began = Instant::now();
                self.pool(&schema, query, &mut out);
                record(&mut alone, began.elapsed());
            }
            let [mine, ping, kernel] =
                [&served, &pings, &alone].map(|times| quantile_us(times, 0.5));
            eprintln!("rdma: {case}: {mine:.1} us, ping-pong {ping:.1} us, kernels {kernel:.1} us");
            let bound = PING_PONGS * ping + kernel;
            pings_p50.push(ping);
            kernels_p50.push(kernel);
            bounds.push(bound);
            ratios.push(bound / mine);
            all.add(&served).context("histograms of the same bounds")?;
        }
        drop(ping_pong);
        let plain = |metric, value| Measurement::plain("rdma", case, metric, value, "us");
        reporter.add(plain("ping_pong_p50", median(pings_p50)));
        reporter.add(plain("ping_pong_with_record_p50", with_record));
        reporter.add(plain("null_p50", quantile_us(&nothing, 0.5)));
        reporter.add(plain("kernel_p50", median(kernels_p50)));
        reporter.add(plain("latency_p50", quantile_us(&all, 0.5)).beside(
            "1.3 ping-pongs + kernel",
            median(bounds),
            median(ratios),
        ));
        reporter.add(plain("latency_p99", quantile_us(&all, 0.99)));
        Ok(())
    }

    /// Samples a second and bytes on the wire, beside rows that are fetched by READ and pooled here.
    fn pooled_there_or_here(&mut self, reporter: &mut Reporter) -> Result<()> {
        let case = format!("port=rdma/shape=dlrm-v2/samples={LARGE}/load=closed");
        if !reporter.wants(&case) {
            return Ok(());
        }
        let (schema, row_bytes) = self.model.schema(LARGE);
        let count = (LARGE_QUERIES / self.extent.share).max(1);
        let queries: Vec<Query> = (0..count).map(|_| self.workload.query(LARGE)).collect();
        let mut driver = self.driver("bench large", &schema, LARGE, 3)?;
        let at = self.talk.ask_where(&Ask::Rows)?;
        let tables = Arc::clone(&self.tables);
        let mut reader = Reader::connect(&self.device, at, tables, self.kernels)?;
        let mut out = vec![0; row_bytes as usize * LARGE as usize];
        self.is_right(&mut driver, &schema, &queries[0])?;
        reader.pool(&schema, &queries[0], &mut out)?;
        let mut right = vec![0; out.len()];
        self.pool(&schema, &queries[0], &mut right);
        ensure!(out == right, "what is pooled of fetched rows is wrong");
        let wire = Wire::of(&self.device.context);
        let mut times = histogram();
        // Of ours and of theirs: samples a second, and bytes a sample.
        let (mut rates, mut bytes) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for round in 0..self.extent.rounds {
            for turn in [round % 2, (round + 1) % 2] {
                let (before, began) = (wire.bytes()?, Instant::now());
                let samples = match turn {
                    0 => {
                        driver.pipelined(queries.iter(), &mut times)?;
                        count as f64 * f64::from(LARGE)
                    }
                    // One query is long enough: it is the slower way.
                    _ => {
                        reader.pool(&schema, &queries[round % count], &mut out)?;
                        f64::from(LARGE)
                    }
                };
                let took = began.elapsed().as_secs_f64();
                rates[turn].push(samples / took);
                bytes[turn].push((wire.bytes()? - before) as f64 / samples);
                let (rate, each) = (rates[turn].last(), bytes[turn].last());
                eprintln!(
                    "rdma: {case}: {}: {:.0} samples/s, {:.0} bytes a sample",
                    ["pooled there", "fetched and pooled here"][turn],
                    rate.unwrap_or(&0.0),
                    each.unwrap_or(&0.0)
                );
            }
        }
        let ratios = |of: &[Vec<f64>; 2], larger: usize| {
            let pairs = of[larger].iter().zip(&of[1 - larger]);
            median(pairs.map(|(a, b)| a / b).collect())
        };
        let (faster, fewer) = (ratios(&rates, 0), ratios(&bytes, 1));
        let against = "rows by READ, pooled here";
        let [ours, theirs] = rates.map(median);
        reporter.add(
            Measurement::plain("rdma", &case, "rate", ours, "samples/s")
                .beside(against, theirs, faster),
        );
        let [ours, theirs] = bytes.map(median);
        reporter.add(
            Measurement::plain("rdma", &case, "wire_bytes", ours, "B/sample")
                .beside(against, theirs, fewer),
        );
        Ok(())
    }
}
