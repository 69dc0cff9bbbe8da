//! A model, services of it, and clients with a GPU.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rowmill_client::cuda::{DeviceMemory, Stream};
use rowmill_client::{
    Batch, BoundSchema, ClientError, Division, Gpu, GpuOptions, GpuRegion, Hub, HubOptions,
    Options, Place as In, Pooling, RequestOptions, Schema, Staging, Wait,
};
use rustix::process::{Pid, Signal, kill_process};

/// Samples of a request.
pub(super) const SAMPLES: usize = 256;

/// Ids a sample for each table: MLPerf DLRM-v2.
const MULTI_HOT: [u32; 26] = [
    3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1,
];

/// The programs' folder and a model.
pub(super) struct Place {
    programs: PathBuf,
    folder: tempfile::TempDir,
}

/// A service, which is killed when it is dropped.
pub(super) struct Service {
    child: Child,
    endpoint: String,
}

/// A client of a service, with a GPU.
pub(super) struct Visitor {
    pub(super) hub: Hub,
    pub(super) schema: BoundSchema,
    pub(super) batch: Batch,
    pub(super) gpu: Gpu,
    pub(super) output: GpuRegion,
}

impl Place {
    pub(super) fn new(bytes: u64) -> Result<Place> {
        let program = std::env::current_exe()?;
        let programs = program.parent().context("a program lies in a folder")?;
        let folder = tempfile::tempdir()?;
        let mut generate = Command::new(programs.join("rowmill"));
        generate
            .args(["table", "generate"])
            .arg(folder.path().join("model"));
        generate.args(["--shape", "dlrm-v2", "--fit", &bytes.to_string()]);
        let made = generate.output().context("starting `rowmill`")?;
        let said = String::from_utf8_lossy(&made.stderr).into_owned();
        ensure!(made.status.success(), "no model could be made: {said}");
        Ok(Place {
            programs: programs.to_owned(),
            folder,
        })
    }

    pub(super) fn start(&self) -> Result<Service> {
        let folder = self.folder.path();
        let endpoint = format!("shm:{}", folder.join("s.sock").display());
        let cores = thread::available_parallelism()?.get();
        let configuration = format!(
            "endpoints = [\"{endpoint}\"]\n[model]\ndirectory = \"{}\"\nhuge_pages = \"prefer\"\n\
             [workers]\ncpus = {}\npin = false\n[admin]\naddress = \"127.0.0.1:0\"\n",
            folder.join("model").display(),
            (cores / 2).clamp(1, 8)
        );
        let file = folder.join("rowmilld.toml");
        std::fs::write(&file, configuration)?;
        let log = std::fs::File::create(folder.join("log"))?;
        let child = Command::new(self.programs.join("rowmilld"))
            .arg("--config")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting `rowmilld`")?;
        let mut service = Service { child, endpoint };
        let began = Instant::now();
        while Hub::connect(&service.endpoint, Options::default(), HubOptions::default()).is_err() {
            let ended = service.child.try_wait()?;
            if ended.is_some() || began.elapsed() > Duration::from_secs(60) {
                let log = std::fs::read_to_string(folder.join("log"))?;
                bail!("rowmilld does not serve: {log}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(service)
    }
}

impl Service {
    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_child(&self.child);
        Ok(kill_process(process, signal)?)
    }

    /// Stops it, and waits until it is stopped.
    pub(super) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)?;
        let stat = format!("/proc/{}/stat", self.child.id());
        let began = Instant::now();
        // The state stands behind the name, which is in parentheses.
        while !std::fs::read_to_string(&stat)?.contains(") T ") {
            ensure!(
                began.elapsed() < Duration::from_secs(10),
                "it does not stop"
            );
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    pub(super) fn visit(&self, choose: impl FnOnce(&mut GpuOptions)) -> Result<Visitor> {
        let hub = Hub::connect(&self.endpoint, Options::default(), HubOptions::default())?;
        let tables = hub.tables()?;
        let features = tables.iter().map(|table| {
            let name = table.name.as_str();
            (name, name, Pooling::Sum, table.dim)
        });
        let (schema, row_bytes) = Schema::side_by_side(SAMPLES as u32, features);
        let schema = hub.bind(schema)?;
        let mut batch = Batch::new(SAMPLES)?;
        let mut random = fastrand::Rng::with_seed(7);
        for (table, hot) in tables.iter().zip(MULTI_HOT) {
            let ids: Vec<u32> = (0..SAMPLES * hot as usize)
                .map(|_| random.u32(0..table.rows as u32))
                .collect();
            batch.push(Division::Lengths(&[hot; SAMPLES]), &ids[..])?;
        }
        let mut options = GpuOptions::default();
        choose(&mut options);
        let gpu = Gpu::open(&hub, options)?;
        let output = DeviceMemory::new(gpu.context(), row_bytes * SAMPLES as u64)?;
        let output = gpu.register(Arc::new(output), Staging::Allowed)?;
        Ok(Visitor {
            hub,
            schema,
            batch,
            gpu,
            output,
        })
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // A process that is stopped is killed, too.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Visitor {
    pub(super) fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.gpu.context())?)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.output.memory().len()
    }

    pub(super) fn memory(&self) -> Result<DeviceMemory> {
        Ok(DeviceMemory::new(self.gpu.context(), self.bytes())?)
    }

    pub(super) fn submit(&self, stream: &Stream) -> Result<(), ClientError> {
        let (to, options) = ((&self.output, 0), RequestOptions::default());
        self.gpu
            .submit(&self.schema, &self.batch, to, stream, &options)
    }

    /// The result of the same lookup to the host's memory.
    pub(super) fn expected(&self) -> Result<Vec<u8>> {
        let options = RequestOptions::default();
        let reply = self
            .hub
            .lookup(&self.schema, &self.batch, In::Pool, &options, Wait::Block)?;
        reply.outcome?;
        let mut bytes = vec![0; self.bytes() as usize];
        reply.lease.read(0, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn read(&self, memory: &DeviceMemory) -> Result<Vec<u8>> {
        let mut bytes = vec![0; memory.len() as usize];
        self.gpu.context().enter()?.read(memory, 0, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn fill(&self, memory: &DeviceMemory, value: u8) -> Result<()> {
        Ok(self
            .gpu
            .context()
            .enter()?
            .fill(memory, 0, memory.len(), value)?)
    }
}
