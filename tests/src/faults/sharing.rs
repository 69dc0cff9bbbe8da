//! Faults under a client that threads share.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rowmill_client::{
    Batch, BoundSchema, Division, Failure, Hub, HubOptions, Options, Pending, Place, Pooling,
    RequestOptions, Schema, Wait,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::Verdict;
use super::patron::bound;
use super::site::Site;

/// Threads that wait for an answer each.
const THREADS: usize = 4;

fn send(hub: &Hub, schema: &BoundSchema) -> Result<Pending> {
    let mut batch = Batch::new(1)?;
    batch.push(Division::Lengths(&[1]), &[3u32][..])?;
    let options = RequestOptions::default();
    Ok(hub.submit(schema, &batch, Place::Pool, &options)?)
}

/// Waits as long as a client may have to, and says when it was told of the end.
fn told(pending: Pending) -> Result<Instant> {
    let reply = { pending }.wait_for(Wait::Block, bound())?;
    let reply = reply.context("a thread is not told")?;
    ensure!(
        reply.outcome == Err(Failure::Disconnected),
        "{:?} of a dead service",
        reply.outcome
    );
    Ok(Instant::now())
}

/// SIGKILL while threads wait for answers, and an event loop for a bell.
pub(super) fn killed(site: &Site) -> Result<Verdict> {
    let mut service = site.start(&site.settings()?)?;
    let hub = Hub::connect(&service.endpoint, Options::default(), HubOptions::default())?;
    let (schema, _) = Schema::side_by_side(1, [("sum", "small", Pooling::Sum, 16)]);
    let schema = hub.bind(schema)?;
    send(&hub, &schema)?.wait(Wait::Block)?.outcome?;
    // Stopped first, so that all is in flight when the end comes.
    service.process().stop()?;
    let bell = hub.bell()?;
    let belled = send(&hub, &schema)?;
    belled.ring(&bell, 7)?;
    let pending = (0..THREADS).map(|_| send(&hub, &schema));
    let pending = pending.collect::<Result<Vec<_>>>()?;
    let (began, last) = thread::scope(|scope| -> Result<(Instant, Instant)> {
        let threads: Vec<_> = pending
            .into_iter()
            .map(|pending| scope.spawn(move || told(pending)))
            .collect();
        // They sleep by then, as far as can be told from here.
        thread::sleep(Duration::from_millis(50));
        let began = Instant::now();
        service.process().signal(Signal::KILL)?;
        let limit = Timespec::try_from(bound())?;
        let mut fds = [PollFd::new(&bell, PollFlags::IN)];
        ensure!(poll(&mut fds, Some(&limit))? == 1, "the bell is not rung");
        let mut last = Instant::now();
        for thread in threads {
            last = last.max(thread.join().expect("no panic")?);
        }
        Ok((began, last))
    })?;
    let mut tokens = Vec::new();
    bell.heard(&mut tokens);
    ensure!(tokens == [7], "the bell was rung for {tokens:?}");
    told(belled)?;
    ensure!(hub.is_closed(), "the client is not closed");
    let again = send(&hub, &schema);
    let closed = again
        .as_ref()
        .is_err_and(|error| error.to_string().contains("connect again"));
    ensure!(closed, "a request after the end: {again:?}");
    ensure!(hub.held()? == 0, "results are held of requests that ended");
    let took = last.duration_since(began).as_secs_f64() * 1e3;
    Ok(Verdict::Pass(format!(
        "{THREADS} threads and a bell told after {took:.1} ms"
    )))
}
