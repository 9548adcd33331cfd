//! The engine alone, without devices, in memory: what `benches/engine.rs` times and `examples/instructions.rs`
//! counts.
//!
//! A [`Case`] says what goes through it, a [`Load`] holds the engine with its tables warm and the packets. The
//! packets of a burst are written anew before each run, because the engine changes them in place: [`Load::refill`]
//! is not part of what is measured, [`Load::run`] is.

mod packets;
pub(crate) mod tables;

use std::fmt;
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::counters::Counters;
use windlass_dataplane::engine::{Engine, Outbox, Settings};
use windlass_dataplane::lb::conntrack::{Conntrack, UDP_TIMEOUT};
use windlass_dataplane::packet::{DatagramBatch, PacketBatch};
use windlass_dataplane::tables::Writer;
use windlass_dataplane::time::Instant;

pub(crate) use packets::PacketMaker;
pub use packets::{Family, Path};

/// Packets between two looks at the clock, in as many batches as it takes.
pub const BURST: usize = 64;

/// How fast the engine's clock goes on per packet, on every machine alike: ten million packets a second. A cached flow is
/// revalidated once a second, so that with a million flows every tenth packet pays for that.
const PACKET_INTERVAL: Duration = Duration::from_nanos(100);

/// What goes through the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Which way.
    pub path: Path,
    /// Inner IP version. The underlay is IPv4.
    pub family: Family,
    /// Length of the inner packets in bytes.
    pub packet_len: usize,
    /// Packets per call of the engine; divides [`BURST`].
    pub batch: usize,
    /// Flows, taken in turns; for [`Path::NewFlow`] the most connections in the table, half of them on average.
    pub flows: u32,
    /// Services in the table; flows are spread over them.
    pub services: u32,
    /// Other nodes: FDB entries, neighbors and routes. Flows are spread over them.
    pub nodes: u32,
}

impl Case {
    /// The point that others differ from in one thing.
    #[must_use]
    pub fn base(path: Path) -> Self {
        Self { path, family: Family::V4, packet_len: 64, batch: 64, flows: 1_000, services: 10, nodes: 10 }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, family, packet_len, batch, flows, services, nodes } = self;
        write!(f, "{path}/{family}/{packet_len}B/batch-{batch}/flows-{flows}/services-{services}/fdb-{nodes}")
    }
}

/// Published tables, which several cases share: a million FDB entries take seconds to make.
pub struct Tables {
    services: u32,
    nodes: u32,
    writer: Writer,
}

impl Tables {
    /// The tables of `case`.
    #[must_use]
    pub fn new(case: &Case) -> Self {
        let writer = Writer::new(tables::tables(case.services, case.nodes));
        Self { services: case.services, nodes: case.nodes, writer }
    }

    /// Whether `case` has the same tables.
    #[must_use]
    pub fn fit(&self, case: &Case) -> bool {
        (self.services, self.nodes) == (case.services, case.nodes)
    }
}

enum Batches {
    FromDevice(Vec<PacketBatch>),
    FromUnderlay(Vec<DatagramBatch>),
}

/// An engine, and packets for it.
pub struct Load {
    case: Case,
    engine: Engine,
    connections: Arc<Conntrack>,
    maker: PacketMaker,
    batches: Batches,
    out: Outbox,
    now: Instant,
    next_flow: u32,
}

impl Load {
    /// An engine that has seen every flow of `case` once (for [`Path::NewFlow`] as many others).
    ///
    /// # Panics
    /// If packets are dropped that should be sent: nothing would be measured then.
    #[must_use]
    pub fn new(case: Case, tables: &Tables) -> Self {
        let (engine, connections, counters) = case.engine(tables);
        let count = BURST / case.batch;
        let batches = match case.path {
            Path::Decap => {
                Batches::FromUnderlay((0..count).map(|_| DatagramBatch::new(case.batch, 0)).collect())
            }
            _ => Batches::FromDevice((0..count).map(|_| PacketBatch::new(case.batch, 0)).collect()),
        };
        let mut load = Self {
            case,
            engine,
            connections,
            maker: PacketMaker::new(&case),
            batches,
            out: Outbox::default(),
            now: Instant::ZERO,
            next_flow: 0,
        };
        for _ in 0..(case.flows as usize).div_ceil(BURST) {
            load.refill();
            load.run();
        }
        let dropped = counters.totals().dropped;
        assert_eq!(dropped, 0, "{case}: packets were dropped");
        load
    }

    /// Writes the next burst's packets. For new flows, forgets all connections when there are enough.
    pub fn refill(&mut self) {
        self.now = self.now + PACKET_INTERVAL * BURST as u32;
        if self.case.path == Path::NewFlow && self.connections.len() + BURST > self.case.flows as usize {
            self.forget_connections();
        }
        match &mut self.batches {
            Batches::FromDevice(batches) => {
                for batch in batches {
                    batch.clear();
                    while batch.packets.len() < self.case.batch {
                        batch.receive_copy(self.maker.packet(self.next_flow));
                        self.next_flow = self.case.flow_after(self.next_flow);
                    }
                }
            }
            Batches::FromUnderlay(batches) => {
                for batch in batches {
                    batch.clear();
                    while batch.datagrams.len() < self.case.batch {
                        let peer = SocketAddr::new(tables::underlay(self.maker.node(self.next_flow)), 50_000);
                        batch.receive_copy(self.maker.packet(self.next_flow), peer, 0);
                        self.next_flow = self.case.flow_after(self.next_flow);
                    }
                }
            }
        }
    }

    /// Sends the burst through the engine, batch by batch.
    #[inline(never)]
    pub fn run(&mut self) {
        match &mut self.batches {
            Batches::FromDevice(batches) => {
                for batch in batches {
                    self.engine.encap(batch, self.now, &mut self.out);
                    black_box(&self.out);
                    self.out.clear();
                }
            }
            Batches::FromUnderlay(batches) => {
                for batch in batches {
                    self.engine.decap(batch, self.now, &mut self.out);
                    black_box(&self.out);
                    self.out.clear();
                }
            }
        }
    }

    fn forget_connections(&mut self) {
        self.now = self.now + UDP_TIMEOUT + Duration::from_secs(2);
        while !self.connections.is_empty() {
            self.engine.expire(self.now);
        }
    }
}

impl Case {
    /// An engine with room for its flows, its connections and its counters.
    pub(crate) fn engine(&self, tables: &Tables) -> (Engine, Arc<Conntrack>, Arc<Counters>) {
        let capacity = (self.flows as usize + BURST).next_power_of_two();
        let connections = Arc::new(Conntrack::new(capacity, 1));
        // Twice as many places as flows, as for any two-way table.
        let settings = Settings { flow_cache_entries: (capacity * 2).max(16_384), ..Settings::default() };
        let (counters, connected) = (Arc::<Counters>::default(), Arc::clone(&connections));
        let engine = Engine::new(tables.writer.reader(), connected, Arc::clone(&counters), settings, 0);
        (engine, connections, counters)
    }

    /// Flows that are there come round again; new ones never do.
    pub(crate) fn flow_after(&self, flow: u32) -> u32 {
        let next = flow.wrapping_add(1);
        if self.path != Path::NewFlow && next >= self.flows { 0 } else { next }
    }
}
