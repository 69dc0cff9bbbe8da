//! Results for a GPU's memory, over the stand-in for libcuda: memory that no NIC can write to, and streams that wait while the
//! service dies.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cuda_stand_in::StandIn;
use rowmill_client::cuda::{DeviceMemory, Stream};
use rowmill_client::{
    Batch, BoundSchema, ClientError, Division, Failure, Gpu, GpuOptions, GpuRegion, Hub,
    HubOptions, Options, Place, Pooling, RequestOptions, Schema, Staging, StreamFailure, Wait, Way,
};
use rustix::process::Signal;

use super::Verdict;
use super::endings::state;
use super::patron::bound;
use super::rdma::ms;
use super::site::{SMALL_ROWS, Service, Site, rdma_address, told_within, until};

/// Bags of a request.
const BAGS: usize = 100;

/// What the stand-in is to say where results come to pinned memory.
const NO_MODULE: &str = "nvidia-peermem: the kernel module is not loaded (modprobe nvidia-peermem)";

/// A client with the stand-in for a GPU.
struct Visitor {
    hub: Hub,
    schema: BoundSchema,
    batch: Batch,
    row_bytes: u64,
    gpu: Gpu,
    stand_in: StandIn,
}

impl Visitor {
    fn connect(endpoint: &str, module: &str) -> Result<Visitor> {
        let options = Options {
            name: "gpu".into(),
            source_bytes: 64 << 10,
            ..Options::default()
        };
        let hub = Hub::connect(endpoint, options, HubOptions::default())?;
        let features = [
            ("sum", "small", Pooling::Sum, 16),
            ("mean", "quant", Pooling::Mean, 32),
        ];
        let (schema, row_bytes) = Schema::side_by_side(BAGS as u32, features);
        let schema = hub.bind(schema)?;
        let mut batch = Batch::new(BAGS)?;
        for feature in 0..features.len() as u32 {
            let ids: Vec<u32> = (0..2 * BAGS as u32)
                .map(|i| (i * 7 + feature) % SMALL_ROWS % 3000)
                .collect();
            batch.push(Division::Lengths(&[2; BAGS]), &ids[..])?;
        }
        let stand_in = StandIn::new("");
        let gpu = GpuOptions {
            library: stand_in.path().into(),
            staging_bytes: 1 << 20,
            piece_bytes: 1 << 10,
            limit: 3 * bound() + told_within(),
            peer_memory_files: vec![module.into()],
            ..GpuOptions::default()
        };
        let gpu = Gpu::open(&hub, gpu)?;
        Ok(Visitor {
            hub,
            schema,
            batch,
            row_bytes,
            gpu,
            stand_in,
        })
    }

    fn register(&self, staging: Staging) -> Result<GpuRegion, ClientError> {
        let memory = DeviceMemory::new(self.gpu.context(), self.row_bytes * BAGS as u64)?;
        self.gpu.register(Arc::new(memory), staging)
    }

    fn submit(&self, region: &GpuRegion, stream: &Stream) -> Result<(), ClientError> {
        let options = RequestOptions::default();
        self.gpu
            .submit(&self.schema, &self.batch, (region, 0), stream, &options)
    }

    fn read(&self, region: &GpuRegion) -> Result<Vec<u8>> {
        let mut bytes = vec![0; region.memory().len() as usize];
        let current = self.gpu.context().enter()?;
        current.read(region.memory(), 0, &mut bytes)?;
        Ok(bytes)
    }

    /// That lookups for a stream bring what a lookup to the host's memory does, one after another.
    fn is_right(&self, region: &GpuRegion) -> Result<()> {
        let options = RequestOptions::default();
        let reply = self.hub.lookup(
            &self.schema,
            &self.batch,
            Place::Pool,
            &options,
            Wait::Block,
        )?;
        reply.outcome?;
        let mut expected = vec![0; region.memory().len() as usize];
        reply.lease.read(0, &mut expected)?;
        let stream = Stream::new(self.gpu.context())?;
        for round in 0..5 {
            self.gpu
                .context()
                .enter()?
                .fill(region.memory(), 0, region.memory().len(), 0xee)?;
            self.submit(region, &stream)?;
            self.gpu.synchronize(&stream)?;
            ensure!(
                self.read(region)? == expected,
                "the result of round {round}"
            );
        }
        Ok(())
    }
}

/// GPU memory that no NIC can write to: over shared memory there is none, and soft-RoCE knows neither dma-bufs nor the GPU.
pub(super) fn no_nic(site: &Site) -> Result<Verdict> {
    let mut service = site.start(&site.settings()?)?;
    let visitor = Visitor::connect(&service.endpoint, "/dev/not-there")?;
    let no_dma_buf = match rdma_address() {
        Some(_) => "dma-buf: registering dma-bufs (GPU memory) is not supported here",
        None => "dma-buf: writing to a device's memory without a NIC is not supported here",
    };
    let region = visitor.register(Staging::Allowed)?;
    let tried = [
        no_dma_buf,
        NO_MODULE,
        "staging: a small transfer has come through, and results are copied from pinned memory",
    ];
    let report = region.report();
    ensure!(region.way() == Way::Staging, "{report:?}");
    ensure!(report[1..] == tried, "{report:?}");
    visitor.is_right(&region)?;
    match visitor.register(Staging::Refused) {
        Err(ClientError::NoDirectWay { report }) => {
            ensure!(report.ends_with(&tried[..2].join("; ")), "{report}");
        }
        other => bail!("{other:?} where staging is refused"),
    }
    service.is_alive()?;
    Ok(Verdict::Pass(format!(
        "{}; refused where that is an error",
        tried.join("; ")
    )))
}

/// Memory that a NIC writes to by its address: that of the stand-in is this process's, so that soft-RoCE can.
pub(super) fn through_nic(site: &Site) -> Result<Verdict> {
    let service = site.start(&site.settings()?)?;
    let visitor = Visitor::connect(&service.endpoint, "/dev/null")?;
    let region = visitor.register(Staging::Refused)?;
    let report = region.report();
    ensure!(region.way() == Way::PeerMemory, "{report:?}");
    visitor.is_right(&region)?;
    ensure!(visitor.gpu.staged_instead() == 0, "results were staged");
    let said = report[1..].join("; ");
    visitor.gpu.unregister(&region)?;
    Ok(Verdict::Pass(said))
}

/// The service dies while a stream waits for it.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    let mut service = site.start(&site.settings()?)?;
    let visitor = Visitor::connect(&service.endpoint, "/dev/not-there")?;
    let region = visitor.register(Staging::Allowed)?;
    visitor.is_right(&region)?;
    let stream = Stream::new(visitor.gpu.context())?;
    let told = waiting_at_the_end(&mut service, &visitor, &region, &stream)?;
    let missing = visitor.read(&region)?;
    ensure!(
        missing.iter().all(|&byte| byte == 0xff),
        "what is there is no NaN"
    );
    visitor
        .gpu
        .synchronize(&stream)
        .context("it is told once")?;
    let again = visitor.submit(&region, &stream);
    let closed = matches!(&again, Err(error) if error.is_end());
    ensure!(closed, "a request after the end: {again:?}");
    let calls: u64 = ["rowmill-progres", "rowmill-streams"]
        .into_iter()
        .flat_map(threads)
        .map(|thread| visitor.stand_in.calls(thread))
        .sum();
    ensure!(
        calls == 0,
        "those who release streams have made {calls} calls of CUDA"
    );
    Ok(Verdict::Pass(format!(
        "released and told after {}",
        ms(told)
    )))
}

/// Kills the service while a stream waits; after how long the stream has gone on, and the client has been told.
fn waiting_at_the_end(
    service: &mut Service,
    visitor: &Visitor,
    region: &GpuRegion,
    stream: &Stream,
) -> Result<Duration> {
    // Stopped first, so that the request is in flight when the end comes.
    service.process().signal(Signal::STOP)?;
    until(bound(), || state(service) == Some('T')).context("it does not stop")?;
    visitor.submit(region, stream)?;
    thread::sleep(Duration::from_millis(50));
    let current = visitor.gpu.context().enter()?;
    ensure!(!current.is_idle(stream)?, "the stream does not wait");
    let began = Instant::now();
    service.process().signal(Signal::KILL)?;
    let outcome = visitor.gpu.synchronize(stream);
    let told = began.elapsed();
    let gone = StreamFailure::Request(Failure::Disconnected);
    ensure!(
        matches!(outcome, Err(ClientError::NoResult(why)) if why == gone),
        "{outcome:?} of a dead service"
    );
    let limit = if rdma_address().is_some() {
        told_within()
    } else {
        bound()
    };
    ensure!(told < limit, "told after {}", ms(told));
    Ok(told)
}

/// Threads of this process by the beginnings of their names, as the kernel has them.
fn threads(name: &str) -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let tasks = tasks.filter_map(|task| {
        let path = task.ok()?.path();
        let comm = std::fs::read_to_string(path.join("comm")).ok()?;
        let number = path.file_name()?.to_str()?.parse().ok()?;
        comm.trim().starts_with(name).then_some(number)
    });
    tasks.collect()
}
