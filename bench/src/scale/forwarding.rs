//! Real workers with packets without end, and how evenly they work.

use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use windlass_dataplane::counters::Counters;
use windlass_dataplane::device::{OverlayDevice, Ready, SendReport, UnderlaySocket, Wait, WorkerIo};
use windlass_dataplane::engine::{Engine, Settings};
use windlass_dataplane::packet::{Datagram, DatagramBatch, PacketBatch, PacketBuf, PacketPool};
use windlass_dataplane::tables::Reader;
use windlass_dataplane::time::Instant as WorkerInstant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::worker::Worker;
use windlass_tests::large::{self, Size};
use windlass_tests::packets::udp;

use super::gaps::Gaps;
use super::node::Node;

/// Flows of each worker, spread over as many services.
const FLOWS: u32 = 1_024;

/// Bytes of payload: packets of 64 bytes.
const PAYLOAD: [u8; 36] = [7; 36];

/// Until every flow is in the caches.
const WARM_UP: Duration = Duration::from_millis(100);

/// Workers at work, one thread each.
pub struct Forwarding {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Seen>>>,
}

/// What one worker has seen.
#[derive(Debug)]
pub struct Seen {
    /// Packets it sent.
    pub packets: u64,
    /// How long it took for them.
    pub lasted: Duration,
    /// The time from one batch's end to the next one's: a packet that comes in between waits at most so long.
    pub gaps: Gaps,
    /// Each new generation of tables, and when the first batch ended that was forwarded by it.
    pub generations: Vec<(u32, Instant)>,
}

impl Seen {
    /// When what generation `generation` says was in force.
    #[must_use]
    pub fn followed(&self, generation: u32) -> Option<Instant> {
        let place = self.generations.partition_point(|(known, _)| *known < generation);
        self.generations.get(place).map(|(_, at)| *at)
    }
}

impl Forwarding {
    /// Starts that many workers on services of a cluster of `size`, and lets them warm up.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub fn start(size: Size, node: &Node, workers: usize) -> Result<Self> {
        let mut forwarding = Self { stop: Arc::default(), threads: Vec::new() };
        for number in 0..workers {
            let counters = Arc::<Counters>::default();
            let (writer, connected, origin) = (&node.writer, Arc::clone(&node.connections), node.origin);
            let settings = Settings { seed: number as u64, ..Settings::default() };
            let engine = Engine::new(writer.reader(), connected, Arc::clone(&counters), settings, number);
            let packets = (0..FLOWS).map(|flow| packet(size, number, flow)).collect();
            let io = WorkerIo {
                overlay: Box::new(Endless { packets, next: 0 }),
                underlay: Box::new(Sink),
                wait: Box::new(NoWait),
            };
            let (worker, reader, stop) =
                (Worker::new(io, engine), writer.reader(), Arc::clone(&forwarding.stop));
            let thread = thread::Builder::new().name(format!("windlass-{number}"));
            let run = move || forward(worker, reader, &counters, &stop, origin);
            forwarding.threads.push(thread.spawn(run).context("a worker's thread")?);
        }
        thread::sleep(WARM_UP);
        Ok(forwarding)
    }

    /// Stops them.
    ///
    /// # Errors
    /// When one has failed, or sent less than it received.
    pub fn stop(mut self) -> Result<Vec<Seen>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self
            .threads
            .drain(..)
            .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a worker panicked"))));
        ended.collect()
    }
}

/// Lets go of the threads when something fails while they run.
impl Drop for Forwarding {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A worker's loop, never idle.
fn forward(
    mut worker: Worker,
    mut reader: Reader,
    counters: &Counters,
    stop: &AtomicBool,
    origin: Instant,
) -> Result<Seen> {
    let ready = Ready { overlay: true, underlay: false };
    let begun = Instant::now();
    let mut gaps = Gaps::new(RunQueue::open()?);
    let mut generations: Vec<(u32, Instant)> = Vec::new();
    let (mut before, mut counted) = (begun, None);
    while !stop.load(Ordering::Relaxed) {
        // Asked before the worker asks: what it forwards by is this one, or a newer.
        let generation = reader.load().generation();
        worker.turn(ready, WorkerInstant::since_origin(origin))?;
        let now = Instant::now();
        if counted.is_some() {
            gaps.add(now - before);
        } else if now - begun >= WARM_UP {
            counted = Some((now, counters.totals().sent));
        }
        if generations.last().is_none_or(|(known, _)| *known != generation) {
            generations.push((generation, now));
        }
        before = now;
    }
    let (since, sent) = counted.unwrap_or((before, 0));
    let totals = counters.totals();
    ensure!(totals.dropped == 0, "{} packets were dropped: the tables are not as meant", totals.dropped);
    Ok(Seen { packets: totals.sent - sent, lasted: before - since, gaps, generations })
}

/// A packet of one of the flows of a worker, which is to a service.
fn packet(size: Size, worker: usize, flow: u32) -> Vec<u8> {
    let pod = Ipv4Addr::new(10, 244, 0, 10 + u8::try_from(worker % 200).unwrap_or(0));
    let flow = FlowKey {
        src: IpAddr::V4(pod),
        dst: large::cluster_ip(flow % size.services).into(),
        protocol: Protocol::UDP,
        src_port: 20_000 + u16::try_from(flow % 40_000).unwrap_or(0),
        dst_port: large::PORT,
    };
    udp(&flow, &PAYLOAD)
}

/// A device that the same packets come from again and again.
struct Endless {
    packets: Vec<Vec<u8>>,
    next: usize,
}

impl OverlayDevice for Endless {
    fn recv_batch(&mut self, batch: &mut PacketBatch) -> io::Result<usize> {
        batch.clear();
        while batch.packets.len() < batch.pool.receive_slabs() {
            let Some(packet) = self.packets.get(self.next) else { break };
            batch.receive_copy(packet);
            self.next = (self.next + 1) % self.packets.len();
        }
        Ok(batch.packets.len())
    }

    fn send_batch(&mut self, _pool: &PacketPool, packets: &[PacketBuf]) -> SendReport {
        sent(packets.len())
    }
}

/// A socket that takes everything.
struct Sink;

impl UnderlaySocket for Sink {
    fn recv_batch(&mut self, batch: &mut DatagramBatch) -> io::Result<usize> {
        batch.clear();
        Ok(0)
    }

    fn send_batch(&mut self, _pool: &PacketPool, datagrams: &[Datagram]) -> SendReport {
        sent(datagrams.len())
    }
}

fn sent(packets: usize) -> SendReport {
    SendReport { sent: packets as u64, ..SendReport::default() }
}

/// There is always something to do.
struct NoWait;

impl Wait for NoWait {
    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<Ready> {
        Ok(Ready::ALL)
    }
}

/// How long the calling thread has waited for a core, as the kernel counts it.
#[derive(Debug)]
pub struct RunQueue(File);

impl RunQueue {
    /// Of the calling thread, which alone may ask it.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn open() -> Result<Self> {
        let file = "/proc/thread-self/schedstat";
        Ok(Self(
            File::open(file).with_context(|| format!("{file}: the kernel must count (CONFIG_SCHED_INFO)"))?,
        ))
    }

    /// So far; zero when it cannot be read.
    #[must_use]
    pub fn waited(&self) -> Duration {
        let mut text = [0; 96];
        let read = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(text.get(..read).unwrap_or_default()).unwrap_or_default();
        let nanos = text.split_whitespace().nth(1).and_then(|word| word.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}
