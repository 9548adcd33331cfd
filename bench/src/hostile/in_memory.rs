//! The engine under attack, in memory: what an attacking packet costs, and what it makes of the legitimate ones.
//!
//! Batches of legitimate packets, of flows that are there already, and of hostile ones take turns, so that the hostile
//! ones crowd caches and tables as they would on a node.

use std::fmt::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, Result};
use clap::ValueEnum;
use windlass_control::cluster::ClusterState;
use windlass_control::compile::compile;
use windlass_control::config::{Config, Settings as Flags};
use windlass_control::node;
use windlass_control::source::manifests::Manifests;
use windlass_dataplane::counters::Counters;
use windlass_dataplane::engine::{Engine, Outbox, Settings};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::packet::{DatagramBatch, PacketBatch};
use windlass_dataplane::tables::Writer;
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::netns::scratch_folder;
use windlass_tests::objects::Objects;
use windlass_tests::packets;
use windlass_tests::topology::{NodeSpec, VNI};

use super::attack::{Attack, From, OUTER_LEN, vtep_mac};
use crate::programming::Facts;
use crate::services::{MEASURED, PORT, with_services};

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 5);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 244, 2, 5);
pub(super) const BATCH: u64 = 64;
const LEGITIMATE_FLOWS: u64 = 1_000;
/// Small enough to be filled.
const CONNECTIONS: usize = 1 << 16;
/// Of hostile packets and of legitimate ones; more than connections.
const BATCHES: u64 = 3_000;
/// The engine's clock goes on as if a million packets came a second.
const BATCH_INTERVAL: Duration = Duration::from_micros(64);
const SENDER_PORT: u16 = 50_000;
const FIRST_PORT: u16 = 20_000;

/// What one attack did.
#[derive(Clone, Debug)]
pub struct Outcome {
    attack: Attack,
    hostile: f64,
    alone: f64,
    beside: f64,
    kept: f64,
    connections: usize,
}

/// A packet as it reaches the engine: from the device, or a datagram's payload and its sender.
pub(super) type Arriving = (Vec<u8>, Option<SocketAddr>);

/// Makes every attack on an engine of its own.
///
/// # Errors
/// When the tables cannot be compiled.
pub fn measure() -> Result<Vec<Outcome>> {
    Attack::value_variants().iter().map(|attack| Attacked::new(*attack, CONNECTIONS)?.measure()).collect()
}

/// The outcomes, as Markdown.
#[must_use]
pub fn render(outcomes: &[Outcome]) -> String {
    let mut text =
        "| attack | ns per hostile packet | ns per legitimate packet alone | beside | kept | connections |
|---|---:|---:|---:|---:|---:|
"
        .to_owned();
    for Outcome { attack, hostile, alone, beside, kept, connections } in outcomes {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {hostile:.0} | {alone:.0} | {beside:.0} | {kept:.2} % | {connections} |",
            attack.name()
        );
    }
    text
}

/// The node that an attack is on.
pub(super) struct Attacked {
    attack: Attack,
    engine: Engine,
    pub(super) connections: Arc<Conntrack>,
    packets: PacketBatch,
    datagrams: DatagramBatch,
    out: Outbox,
    pub(super) now: Instant,
    _writer: Writer,
}

impl Attacked {
    /// The node, with room for that many connections.
    pub(super) fn new(attack: Attack, connections: usize) -> Result<Self> {
        let nodes = [NodeSpec::first(), NodeSpec::second()];
        let objects = with_services(Objects::cluster(&nodes), 1, (SERVER.into(), nodes[1].name));
        let folder = scratch_folder("hostile")?;
        objects.write(folder.path())?;
        let own = nodes[usize::from(attack.from() == From::Underlay)].clone();
        let config = Config::new(&Flags::default(), || Some(own.name.to_owned()))?;
        let state: ClusterState =
            Manifests::new(&[folder.path().to_owned()], &config.annotation_prefix).read()?.state;
        let settings = node::resolve(&state, &config, &Facts(own))?.0;
        let writer = Writer::new(compile(&state, &settings).tables);
        let connections = Arc::new(Conntrack::new(connections, 1));
        let engine = Engine::new(
            writer.reader(),
            Arc::clone(&connections),
            Arc::<Counters>::default(),
            Settings::default(),
            0,
        );
        Ok(Self {
            attack,
            engine,
            connections,
            packets: PacketBatch::new(BATCH as usize, 2),
            datagrams: DatagramBatch::new(BATCH as usize, 2),
            out: Outbox::default(),
            now: Instant::ZERO,
            _writer: writer,
        })
    }

    #[allow(clippy::cast_precision_loss)]
    fn measure(mut self) -> Result<Outcome> {
        let legitimate: Vec<Arriving> = (0..LEGITIMATE_FLOWS).map(|number| self.legitimate(number)).collect();
        let hostile: Vec<Arriving> = (0..BATCH * BATCHES)
            .map(|number| self.hostile(number))
            .collect::<Option<_>>()
            .context("a packet without an outer header")?;
        let mut turns = legitimate.chunks_exact(BATCH as usize).cycle();
        let mut next = || turns.next().unwrap_or_default();
        // The first ones are decided; after those each flow is there.
        for _ in 0..BATCHES / 2 {
            self.run(next());
        }
        let alone: Duration = (0..BATCHES).map(|_| self.run(next()).0).sum();
        let (mut cost, mut beside, mut sent) = (Duration::ZERO, Duration::ZERO, 0);
        for batch in hostile.chunks_exact(BATCH as usize) {
            cost += self.run(batch).0;
            let (took, arrived) = self.run(next());
            (beside, sent) = (beside + took, sent + arrived);
        }
        let all = BATCH * BATCHES;
        let per_packet = |time: Duration| time.as_nanos() as f64 / all as f64;
        Ok(Outcome {
            attack: self.attack,
            hostile: per_packet(cost),
            alone: per_packet(alone),
            beside: per_packet(beside),
            kept: sent as f64 / all as f64 * 100.0,
            connections: self.connections.len(),
        })
    }

    /// A pod's packet to the VIP, or on the server's node the same as its peer sends it.
    pub(super) fn legitimate(&self, number: u64) -> Arriving {
        let to = match self.attack.from() {
            From::Pod => SocketAddr::from((MEASURED.vip, MEASURED.port)),
            From::Underlay => SocketAddr::from((SERVER, PORT)),
        };
        let flow = FlowKey {
            src: CLIENT.into(),
            dst: to.ip(),
            protocol: Protocol::UDP,
            src_port: FIRST_PORT + number as u16,
            dst_port: to.port(),
        };
        let packet = packets::udp(&flow, b"legitimate");
        match self.attack.from() {
            From::Pod => (packet, None),
            From::Underlay => {
                let peer = SocketAddr::from((NodeSpec::first().address, SENDER_PORT));
                (packets::vxlan(VNI, vtep_mac(&NodeSpec::second()), &packet), Some(peer))
            }
        }
    }

    pub(super) fn hostile(&self, number: u64) -> Option<Arriving> {
        let (_, packet) = self.attack.packet(SERVER, number);
        if self.attack.from() == From::Pod {
            return Some((packet, None));
        }
        let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
        let peer = SocketAddr::from((IpAddr::from(source), SENDER_PORT));
        Some((packet.get(OUTER_LEN..)?.to_vec(), Some(peer)))
    }

    /// One batch through the engine: how long that took, and how many packets came out.
    pub(super) fn run(&mut self, arriving: &[Arriving]) -> (Duration, usize) {
        self.packets.clear();
        self.datagrams.clear();
        for (bytes, peer) in arriving {
            match peer {
                Some(peer) => self.datagrams.receive_copy(bytes, *peer, 0),
                None => self.packets.receive_copy(bytes),
            };
        }
        self.now = self.now + BATCH_INTERVAL;
        let begun = Clock::now();
        match self.attack.from() {
            From::Pod => self.engine.encap(&mut self.packets, self.now, &mut self.out),
            From::Underlay => self.engine.decap(&mut self.datagrams, self.now, &mut self.out),
        }
        self.engine.expire(self.now);
        let took = begun.elapsed();
        let sent = self.out.packets.len() + self.out.datagrams.len();
        self.out.clear();
        (took, sent)
    }
}
