//! From a changed EndpointSlice at an API server until every worker forwards by it.
//!
//! The server is the tests' own, in this process and over real HTTP; what reads it is what `windlass run` reads with.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use tokio::runtime::Builder;
use tokio::sync::Notify;
use windlass_control::cluster::{ClusterState, ObjectName};
use windlass_control::source::kube::{Access, ApiSource, Patience};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_tests::api_server::ApiServer;
use windlass_tests::large::{self, Size};
use windlass_tests::netns::scratch_folder;

use super::forwarding::Forwarding;
use super::gaps::Evenness;
use super::node::Node;
use crate::stats::percentile;

const PREFIX: &str = "flannel.alpha.coreos.com";

/// How long the whole cluster may take to be listed, and a change to arrive.
const LIMIT: Duration = Duration::from_secs(120);

/// How often is looked for changes that nobody told of, as `windlass run` does.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A cluster at an API server, and what follows it.
pub struct Followed {
    size: Size,
    server: ApiServer,
    source: ApiSource,
    wake: Arc<Notify>,
    state: ClusterState,
    /// How many changes were made so far.
    made: u32,
    /// How long it took to list all of it.
    pub listed_in: Duration,
}

/// What was seen with so many workers.
#[derive(Clone, Debug, Serialize)]
pub struct Events {
    /// Number of workers.
    pub workers: usize,
    /// Changes that were made.
    pub changes: usize,
    /// From a change at the server until the last worker has forwarded by it, in milliseconds.
    pub p50_ms: f64,
    /// The same.
    pub p99_ms: f64,
    /// The same.
    pub longest_ms: f64,
    /// Part of it: from the change until its tables were published, in milliseconds.
    pub published_p99_ms: f64,
    /// How evenly the workers forwarded while nothing changed.
    pub still: Evenness,
    /// How evenly they did meanwhile.
    pub changing: Evenness,
}

/// A change that was published.
struct Published {
    made_at: Instant,
    at: Instant,
    generation: u32,
}

/// Changes that were made and not seen yet, by EndpointSlice.
type Made = Mutex<HashMap<ObjectName, Instant>>;

impl Followed {
    /// Has an API server with a cluster of `size`, and reads it.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn start(size: Size) -> Result<Self> {
        let server = ApiServer::start(&size.objects())?;
        let folder = scratch_folder("scale")?;
        let access = Access::Kubeconfig(server.kubeconfig(folder.path(), "scale")?);
        let wake = Arc::new(Notify::new());
        let begun = Instant::now();
        let source = ApiSource::start(&access, PREFIX, Patience::default(), Arc::clone(&wake))?;
        source.wait(LIMIT, |_| true)?;
        let state = source.take().context("the cluster was listed and is not told")?.state;
        Ok(Self { size, server, source, wake, state, made: 0, listed_in: begun.elapsed() })
    }

    /// Lets workers forward for so long, and then once more while so many EndpointSlices change a second.
    ///
    /// # Errors
    /// When a worker fails, or a change does not arrive.
    pub fn measure(&mut self, workers: usize, span: Duration, rate: u32) -> Result<Events> {
        let connections = Arc::new(Conntrack::new(1_000_000, workers));
        let mut node = Node::start(&self.state, large::settings(), connections);
        let forwarding = Forwarding::start(self.size, &node, workers)?;
        thread::sleep(span);
        let still = Evenness::of(&forwarding.stop()?);

        let forwarding = Forwarding::start(self.size, &node, workers)?;
        let count = u32::try_from(span.as_millis() * u128::from(rate) / 1_000)?.max(1);
        let made = Made::default();
        let (server, size, numbers) = (&self.server, self.size, self.made..self.made + count);
        let published = thread::scope(|scope| {
            let maker = scope.spawn(|| make(server, size, numbers, rate, &made));
            let published = self.follow(&mut node, count as usize, &made);
            maker.join().map_err(|_| anyhow::anyhow!("the thread that changes objects panicked"))??;
            published
        })?;
        // The last one is followed by the next batch.
        thread::sleep(LOOK_EVERY);
        let seen = forwarding.stop()?;
        let last = |change: &Published| {
            let followed = seen.iter().map(|seen| seen.followed(change.generation));
            followed.collect::<Option<Vec<_>>>()?.into_iter().max()
        };
        let until_last: Option<Vec<u64>> =
            published.iter().map(|change| Some(micros(last(change)? - change.made_at))).collect();
        let until_last = sorted(until_last.context("a worker did not follow")?);
        let until_published =
            sorted(published.iter().map(|change| micros(change.at - change.made_at)).collect());
        (self.state, self.made) = (node.state().clone(), self.made + count);
        Ok(Events {
            workers,
            changes: published.len(),
            p50_ms: millis(&until_last, 0.5),
            p99_ms: millis(&until_last, 0.99),
            longest_ms: millis(&until_last, 1.0),
            published_p99_ms: millis(&until_published, 0.99),
            still,
            changing: Evenness::of(&seen),
        })
    }

    fn follow(&self, node: &mut Node, count: usize, made: &Made) -> Result<Vec<Published>> {
        let runtime = Builder::new_current_thread().enable_time().build()?;
        let (begun, mut published) = (Instant::now(), Vec::with_capacity(count));
        while published.len() < count {
            // Whether it was woken or has waited long enough, it looks.
            let _ = runtime.block_on(async { tokio::time::timeout(LOOK_EVERY, self.wake.notified()).await });
            let Some(changed) = self.source.take_changed() else {
                let arrived = published.len();
                ensure!(begun.elapsed() < LIMIT, "{arrived} of {count} changes have arrived");
                continue;
            };
            let names: Vec<ObjectName> = changed.difference.endpoint_slices.keys().cloned().collect();
            let generation = node.change(changed.difference);
            let at = Instant::now();
            let mut made = lock(made);
            let seen = names.iter().filter_map(|name| made.remove(name));
            published.extend(seen.map(|made_at| Published { made_at, at, generation }));
        }
        Ok(published)
    }
}

/// Changes one EndpointSlice after the other: one more endpoint, and the next time round one less.
fn make(server: &ApiServer, size: Size, numbers: Range<u32>, rate: u32, made: &Made) -> Result<()> {
    let begun = Instant::now();
    for (place, number) in (0..).zip(numbers) {
        let at = begun + Duration::from_secs(1) * place / rate.max(1);
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let service = number % size.services;
        let is_more = (number / size.services).is_multiple_of(2);
        let object = size.slice_object(service, is_more.then_some(number));
        lock(made).insert(large::name(service), Instant::now());
        server.apply(object)?;
    }
    Ok(())
}

fn lock(made: &Made) -> MutexGuard<'_, HashMap<ObjectName, Instant>> {
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}

#[allow(clippy::cast_precision_loss)]
fn millis(sorted: &[u64], share: f64) -> f64 {
    percentile(sorted, share).unwrap_or(0) as f64 / 1e3
}
