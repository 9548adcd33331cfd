//! The run-to-completion loop: receive a batch, decide, send, and only then look for the next.
//!
//! A worker owns its queue of the overlay device, its sockets, its engine and its buffers. Workers share the
//! connection table and nothing else.

mod forwarder;
mod idle;
mod watched;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant as SystemInstant};

pub use self::forwarder::Forwarder;
pub use self::idle::Poll;
use self::idle::{Idle, Next};
use crate::counters::{Counters, SideCounters, Totals};
use crate::device::{self, Ready, SendReport, Waker, WorkerIo};
use crate::drop_reason::DropReason;
use crate::engine::bridge::Bridge;
use crate::engine::bridge::learned::LearnedStations;
use crate::engine::{Engine, Outbox, Settings};
use crate::lb::conntrack::Conntrack;
use crate::packet::{DatagramBatch, PacketBatch};
use crate::tables::Writer;
use crate::tap::Tap;
use crate::time::Instant;

/// Packets read from the device per turn. Each takes a 64 KB slab, so that a superpacket fits.
const OVERLAY_BATCH: usize = 64;

/// Datagrams read from the underlay per turn.
const UNDERLAY_BATCH: usize = 64;

/// Slabs of 64 KB per batch for packets the engine generates.
const SPARE_SLABS: usize = 2;

/// One worker, to be driven turn by turn.
pub struct Worker {
    io: WorkerIo,
    forwarder: Forwarder,
    packets: PacketBatch,
    datagrams: DatagramBatch,
    out: Outbox,
    has_received: bool,
    tap: Arc<Tap>,
    before: watched::Before,
}

impl Worker {
    /// A worker over `io`.
    pub fn new(io: WorkerIo, forwarder: impl Into<Forwarder>) -> Self {
        Self {
            io,
            forwarder: forwarder.into(),
            packets: PacketBatch::new(OVERLAY_BATCH, SPARE_SLABS),
            datagrams: DatagramBatch::new(UNDERLAY_BATCH, SPARE_SLABS),
            out: Outbox::default(),
            has_received: false,
            tap: Arc::default(),
            before: watched::Before::default(),
        }
    }

    /// The same, whose packets `tap` may copy.
    #[must_use]
    pub fn watched_by(self, tap: Arc<Tap>) -> Self {
        Self { tap, ..self }
    }

    /// One batch from each side that is ready. Returns how many packets and datagrams were received.
    ///
    /// # Errors
    /// When the device or the socket is broken.
    pub fn turn(&mut self, ready: Ready, now: Instant) -> io::Result<usize> {
        let mut received = 0;
        if ready.overlay {
            let packets = self.io.overlay.recv_batch(&mut self.packets)?;
            if packets > 0 {
                self.encap(now);
                self.flush(Side::Overlay, now);
            }
            received += packets;
        }
        if ready.underlay {
            let datagrams = self.io.underlay.recv_batch(&mut self.datagrams)?;
            if datagrams > 0 {
                self.decap(now);
                self.flush(Side::Underlay, now);
            }
            received += datagrams;
        }
        self.forwarder.expire(now);
        self.has_received = received > 0;
        Ok(received)
    }

    /// Which sides are ready, without waiting.
    ///
    /// # Errors
    /// When the operating system refuses to tell.
    pub fn look(&mut self) -> io::Result<Ready> {
        self.io.wait.wait(Some(Duration::ZERO))
    }

    /// Sleeps until there is something to do, and tells which sides are ready.
    ///
    /// # Errors
    /// When the operating system refuses to wait.
    pub fn wait(&mut self, now: Instant) -> io::Result<Ready> {
        if self.has_received && !self.io.wait.is_level_triggered() {
            return Ok(Ready::ALL);
        }
        self.io.wait.wait(self.forwarder.poll_timeout().map(|at| at.since(now)))
    }

    /// Its counters.
    pub fn counters(&self) -> &Arc<Counters> {
        self.forwarder.counters()
    }

    /// Sends what the engine made of the batch that `side` received.
    fn flush(&mut self, side: Side, now: Instant) {
        let pool = match side {
            Side::Overlay => &self.packets.pool,
            Side::Underlay => &self.datagrams.pool,
        };
        let counters = self.forwarder.counters();
        if !self.out.datagrams.is_empty() {
            let report = self.io.underlay.send_batch(pool, &self.out.datagrams);
            account(&counters.underlay, report);
            counters.count_drop(DropReason::UnderlayQueueFull, report.queue_full);
            counters.count_drop(DropReason::UnderlayTooLong, report.too_long);
            counters.count_drop(DropReason::UnderlayRefused, report.refused);
        }
        if !self.out.packets.is_empty() {
            let report = self.io.overlay.send_batch(pool, &self.out.packets);
            account(&counters.overlay, report);
            counters.count_drop(DropReason::OverlayQueueFull, report.queue_full);
            counters.count_drop(DropReason::OverlayRefused, report.too_long + report.refused);
        }
        self.out.clear();
        while let Some(too_long) = self.io.underlay.next_too_long() {
            self.forwarder.learn_path_mtu(&too_long, now);
        }
    }
}

#[derive(Clone, Copy)]
enum Side {
    Overlay,
    Underlay,
}

fn account(side: &SideCounters, report: SendReport) {
    side.sent.add(report.sent);
    side.sent_bytes.add(report.sent_bytes);
}

/// What the workers of one node are made of.
#[derive(Clone, Debug)]
pub struct WorkersConfig {
    /// Whether overlay devices give Ethernet frames of L2 segments, and not routed packets.
    pub is_bridge: bool,
    /// The engine's settings; each worker's hashes are keyed from its seed.
    pub settings: Settings,
    /// The most connections that are remembered.
    pub connections: usize,
    /// How workers look for work.
    pub poll: Poll,
    /// The CPU that the worker at the same place stays on; a worker without one runs anywhere.
    pub cpus: Vec<usize>,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self {
            is_bridge: false,
            settings: Settings::default(),
            connections: 1_000_000,
            poll: Poll::default(),
            cpus: Vec::new(),
        }
    }
}

/// Running workers, one thread each.
pub struct Workers {
    threads: Vec<JoinHandle<io::Result<()>>>,
    wakers: Arc<[Arc<dyn Waker>]>,
    counters: Vec<Arc<Counters>>,
    connections: Arc<Conntrack>,
    learned: Arc<LearnedStations>,
    stop: Arc<AtomicBool>,
    origin: SystemInstant,
    tap: Arc<Tap>,
}

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its device or socket failed.
    #[error("worker {worker}: {source}")]
    Io {
        /// Number of the worker.
        worker: usize,
        /// What failed.
        source: io::Error,
    },
    /// It panicked.
    #[error("worker {worker} panicked; the log holds the message, please report it")]
    Panicked {
        /// Number of the worker.
        worker: usize,
    },
}

impl Workers {
    /// Starts one thread per element of `io`; all of them follow what `writer` publishes.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn spawn(
        io: Vec<(WorkerIo, Arc<dyn Waker>)>,
        writer: &Writer,
        config: &WorkersConfig,
    ) -> io::Result<Self> {
        let connections = Conntrack::new(config.connections, io.len());
        Self::spawn_with(io, writer, config, connections)
    }

    /// The same with a connection table that was made for as many workers. Their clock stands at zero.
    ///
    /// # Errors
    /// As [`Workers::spawn`].
    pub fn spawn_with(
        io: Vec<(WorkerIo, Arc<dyn Waker>)>,
        writer: &Writer,
        config: &WorkersConfig,
        connections: Conntrack,
    ) -> io::Result<Self> {
        let mut workers = Self {
            threads: Vec::new(),
            wakers: io.iter().map(|(_, waker)| Arc::clone(waker)).collect(),
            counters: Vec::new(),
            connections: Arc::new(connections),
            learned: Arc::default(),
            stop: Arc::default(),
            origin: SystemInstant::now(),
            tap: Arc::default(),
        };
        let origin = workers.origin;
        for (number, (io, _)) in io.into_iter().enumerate() {
            let forwarder = workers.forwarder(writer, config, number);
            let (stop, wakers) = (Arc::clone(&workers.stop), Arc::clone(&workers.wakers));
            let thread = thread::Builder::new().name(format!("windlass-{number}"));
            let (poll, cpu) = (config.poll, config.cpus.get(number).copied());
            let tap = Arc::clone(&workers.tap);
            let run = move || {
                let _ends = StopAllOnExit { stop: Arc::clone(&stop), wakers };
                cpu.map_or(Ok(()), device::stay_on)?;
                run(Worker::new(io, forwarder).watched_by(tap), poll, &stop, origin)
            };
            match thread.spawn(run) {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    // Those already started end before the error is told; theirs would hide it.
                    let _ = workers.stop();
                    return Err(error);
                }
            }
        }
        Ok(workers)
    }

    fn forwarder(&mut self, writer: &Writer, config: &WorkersConfig, number: usize) -> Forwarder {
        let counters = Arc::<Counters>::default();
        self.counters.push(Arc::clone(&counters));
        let settings = Settings { seed: config.settings.seed ^ number as u64, ..config.settings.clone() };
        let reader = writer.reader();
        match config.is_bridge {
            true => Bridge::new(reader, Arc::clone(&self.learned), counters, settings, number).into(),
            false => Engine::new(reader, Arc::clone(&self.connections), counters, settings, number).into(),
        }
    }

    /// The counters of each worker.
    pub fn counters(&self) -> &[Arc<Counters>] {
        &self.counters
    }

    /// The sums over all workers.
    pub fn totals(&self) -> Totals {
        self.counters.iter().map(|counters| counters.totals()).sum()
    }

    /// The connection table.
    pub fn connections(&self) -> &Arc<Conntrack> {
        &self.connections
    }

    /// The stations of L2 segments that were learned.
    pub fn learned(&self) -> &Arc<LearnedStations> {
        &self.learned
    }

    /// Where they put what a capture wants.
    pub fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }

    /// When the workers' clock stood at zero.
    pub fn origin(&self) -> SystemInstant {
        self.origin
    }

    /// Whether every worker is still at work.
    pub fn are_running(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    /// Stops all workers and waits for them.
    ///
    /// # Errors
    /// The first worker's error, if one had ended by itself.
    pub fn stop(self) -> Result<(), WorkerError> {
        self.stop.store(true, Ordering::Release);
        for waker in self.wakers.iter() {
            waker.wake();
        }
        let mut result = Ok(());
        for (worker, thread) in self.threads.into_iter().enumerate() {
            let ended = match thread.join() {
                Ok(Ok(())) => Ok(()),
                Ok(Err(source)) => Err(WorkerError::Io { worker, source }),
                Err(_) => Err(WorkerError::Panicked { worker }),
            };
            result = result.and(ended);
        }
        result
    }
}

/// A worker that ends, however it ends, takes the others along: a node is never half dead.
struct StopAllOnExit {
    stop: Arc<AtomicBool>,
    wakers: Arc<[Arc<dyn Waker>]>,
}

impl Drop for StopAllOnExit {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.wakers.iter().for_each(|waker| waker.wake());
    }
}

fn run(mut worker: Worker, poll: Poll, stop: &AtomicBool, origin: SystemInstant) -> io::Result<()> {
    let clock = || Instant::since_origin(origin);
    let mut idle = Idle::new(poll);
    let mut ready = Ready::ALL;
    while !stop.load(Ordering::Acquire) {
        let now = clock();
        let has_received = worker.turn(ready, now)? > 0;
        ready = match idle.after_turn(has_received, now) {
            Next::Look => worker.look()?,
            Next::Yield => {
                thread::yield_now();
                idle.has_yielded(now, clock());
                worker.look()?
            }
            Next::Sleep => worker.wait(clock())?,
        };
    }
    Ok(())
}
