//! Results in a GPU's memory, over the stand-ins for a dataplane and for libcuda.

mod bounds;
mod direct;
mod endings;
mod order;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cuda_stand_in::StandIn as NoGpu;

use super::*;
use crate::cuda::{Current, DeviceMemory, Event, Stream};

/// Long enough that what does not wait has happened.
const MOMENT: Duration = Duration::from_millis(100);
/// Longer than anything takes that does not hang.
const LIMIT: Duration = Duration::from_secs(20);

/// Bags of a request.
const BAGS: u32 = 10;
/// Bytes of its result: two vectors of four f32 a bag.
const BYTES: u64 = BAGS as u64 * 32;

/// A client of a dataplane of two lanes, and a GPU.
struct Rig {
    no_gpu: NoGpu,
    hub: Hub<StandIn>,
    schema: BoundSchema,
    gpu: Gpu<StandIn>,
    output: GpuRegion,
}

fn options(no_gpu: &NoGpu) -> GpuOptions {
    GpuOptions {
        library: no_gpu.path().into(),
        staging_bytes: 1 << 16,
        piece_bytes: 1,
        pieces: 6,
        ..GpuOptions::default()
    }
}

fn with_port<T>(hub: &Hub<StandIn>, act: impl FnOnce(&mut StandIn) -> T) -> T {
    let mut inner = hub.shared.lock().expect("open");
    let done = act(&mut inner.session.port);
    hub.shared.rouse(&mut inner);
    done
}

/// Does something, while the dataplane answers.
fn answering<T: Send>(hub: &Hub<StandIn>, act: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let acting = scope.spawn(act);
        while !acting.is_finished() {
            with_port(hub, |port| port.answer_all(Status::Ok));
            thread::yield_now();
        }
        acting.join().expect("no panic")
    })
}

impl Rig {
    fn new(words: &str, choose: impl FnOnce(&mut GpuOptions)) -> Rig {
        Rig::with(Backoff::default(), words, choose)
    }

    fn with(backoff: Backoff, words: &str, choose: impl FnOnce(&mut GpuOptions)) -> Rig {
        // Orders are broken once the memory is registered, which would notice it or not.
        let sound = words.split(' ').filter(|word| !word.starts_with("ignore="));
        let no_gpu = NoGpu::new(&sound.collect::<Vec<_>>().join(" "));
        let mut options = options(&no_gpu);
        choose(&mut options);
        let mut session = session(2, 8, 1);
        session.options.backoff = backoff;
        let schema = bound(&mut session, false);
        let hub = Hub::over(session, HubOptions::default()).expect("descriptors");
        let gpu = Gpu::open(&hub, options).expect("the stand-in opens");
        let output = DeviceMemory::new(gpu.context(), BYTES).expect("memory");
        let output = answering(&hub, || gpu.register(Arc::new(output), Staging::Allowed));
        let output = output.expect("it is staged");
        assert_eq!(output.way(), Way::Staging);
        no_gpu.set(words);
        Rig {
            no_gpu,
            hub,
            schema,
            gpu,
            output,
        }
    }

    fn stream(&self) -> Stream {
        Stream::new(self.gpu.context()).expect("a stream")
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory::new(self.gpu.context(), BYTES).expect("memory")
    }

    fn region(&self) -> GpuRegion {
        let region = self.register(Arc::new(self.memory()), Staging::Allowed);
        region.expect("it is registered")
    }

    /// Registers memory, while the dataplane answers.
    fn register(
        &self,
        memory: Arc<DeviceMemory>,
        staging: Staging,
    ) -> Result<GpuRegion, ClientError> {
        answering(&self.hub, || self.gpu.register(memory, staging))
    }

    fn current(&self) -> Current<'_> {
        self.gpu.context().enter().expect("a context")
    }

    /// A request for [`BAGS`] bags, in two parts of three slices each.
    fn submit(&self, stream: &Stream) -> Result<(), ClientError> {
        let to = (&self.output, 0);
        let options = RequestOptions::default();
        self.gpu
            .submit(&self.schema, &batch(BAGS), to, stream, &options)
    }

    /// Does something to the port as a dataplane would, and wakes who sleeps.
    fn with_port<T>(&self, act: impl FnOnce(&mut StandIn) -> T) -> T {
        with_port(&self.hub, act)
    }

    fn answer(&self, status: Status) {
        self.with_port(|port| port.answer_all(status));
    }

    /// What the GPU's memory has: two vectors a bag.
    fn read(&self, memory: &DeviceMemory) -> Vec<f32> {
        let mut bytes = vec![0u8; memory.len() as usize];
        let read = self.current().read(memory, 0, &mut bytes);
        read.expect("it can be read");
        let words = bytes.chunks_exact(4);
        words
            .map(|word| f32::from_le_bytes(word.try_into().expect("4 bytes")))
            .collect()
    }

    fn until_reached(&self, event: &Event) {
        let since = Instant::now();
        while !self.current().is_reached(event).expect("an answer") {
            assert!(since.elapsed() < LIMIT, "a stream waits for ever");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What a bag's two vectors are; see [`batch`].
fn pooled(bag: u32) -> [f32; 8] {
    let both = |d: u32| (2 * bag + 1 + 2 * d) as f32;
    let one = |d: u32| (bag + d) as f32;
    [
        both(0),
        both(1),
        both(2),
        both(3),
        one(0),
        one(1),
        one(2),
        one(3),
    ]
}

fn all_pooled() -> Vec<f32> {
    (0..BAGS).flat_map(pooled).collect()
}
