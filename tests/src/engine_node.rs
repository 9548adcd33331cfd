//! A node without devices: the engine over tables of the worked example, fed packet by packet.
//!
//! Packet cases, property tests and fuzz targets use it. Every call checks that
//! `received + generated = sent + dropped`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use windlass_dataplane::counters::{Counters, Totals};
use windlass_dataplane::device::TooLong;
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::bridge::Bridge;
use windlass_dataplane::engine::bridge::frame::PAYLOAD_OFFSET;
use windlass_dataplane::engine::bridge::learned::LearnedStations;
use windlass_dataplane::engine::{Engine, Outbox, Settings};
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::packet::{Checksum, DatagramBatch, PacketBatch, PacketPool};
use windlass_dataplane::tables::{
    Fdb, Local, LocalVtep, NeighborTable, NextHop, RemoteVtep, RouteTable, Service, ServiceTable, TableSet,
    Vip, Writer,
};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_dataplane::wire::vxlan::Vni;
use windlass_dataplane::worker::Forwarder;

/// What became of one packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Sent to the underlay.
    pub datagrams: Vec<Sent>,
    /// Written to the overlay device.
    pub packets: Vec<Delivered>,
    /// Dropped segments by reason.
    pub drops: Vec<(DropReason, u64)>,
}

/// A datagram toward a VTEP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sent {
    /// VXLAN header and frame.
    pub payload: Vec<u8>,
    /// The VTEP.
    pub remote: SocketAddr,
    /// Outer TOS byte.
    pub tos: u8,
    /// Socket number before the pool's modulo.
    pub source_port: u16,
    /// Inner transport checksum state.
    pub checksum: Checksum,
    /// Segment size of a superpacket.
    pub segment_len: u16,
}

/// A packet toward pods or the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// The IP packet; of a bridge a VXLAN header and a frame.
    pub bytes: Vec<u8>,
    /// Its transport checksum state.
    pub checksum: Checksum,
    /// Segment size of a superpacket.
    pub segment_len: u16,
}

/// One engine, its tables' writer and its connections.
pub struct EngineNode {
    forwarder: Forwarder,
    /// Where IP packets begin in what the device gets.
    ip_offset: usize,
    counters: Arc<Counters>,
    /// Publishes tables.
    pub writer: Writer,
    /// What was published last.
    pub tables: TableSet,
    /// The connection table; shared by nodes made with [`EngineNode::sibling`].
    pub connections: Arc<Conntrack>,
    /// Stations that a bridge has learned.
    pub learned: Arc<LearnedStations>,
    /// The clock.
    pub now: Instant,
    settings: Settings,
    packets: PacketBatch,
    datagrams: DatagramBatch,
    out: Outbox,
}

impl EngineNode {
    /// An engine with these tables.
    pub fn new(tables: TableSet, settings: Settings) -> Self {
        let connections = Arc::new(Conntrack::new(100_000, 2));
        Self::with(tables, connections, settings, 0)
    }

    /// A bridge with these tables.
    pub fn bridge(tables: TableSet, settings: Settings) -> Self {
        let node = Self::new(tables, settings.clone());
        let (learned, counters) = (Arc::clone(&node.learned), Arc::clone(&node.counters));
        let bridge = Bridge::new(node.writer.reader(), learned, counters, settings, 0);
        Self { forwarder: bridge.into(), ip_offset: PAYLOAD_OFFSET, ..node }
    }

    /// Another worker of the same node: the same tables as of now and the same connections.
    pub fn sibling(&self, tables: TableSet) -> Self {
        Self::with(tables, Arc::clone(&self.connections), self.settings.clone(), 1)
    }

    /// Publishes the tables with a change.
    pub fn change(&mut self, edit: impl FnOnce(&mut TableSet)) {
        edit(&mut self.tables);
        self.writer.publish(self.tables.clone());
    }

    fn with(tables: TableSet, connections: Arc<Conntrack>, settings: Settings, worker: usize) -> Self {
        let (writer, counters) = (Writer::new(tables.clone()), Arc::<Counters>::default());
        let of_engine = (Arc::clone(&connections), Arc::clone(&counters));
        let engine = Engine::new(writer.reader(), of_engine.0, of_engine.1, settings.clone(), worker);
        Self {
            forwarder: engine.into(),
            ip_offset: 0,
            counters,
            writer,
            tables,
            connections,
            learned: Arc::default(),
            now: Instant::ZERO,
            settings,
            packets: PacketBatch::new(1, 2),
            datagrams: DatagramBatch::new(1, 2),
            out: Outbox::default(),
        }
    }

    /// One packet from the overlay device.
    pub fn encap(&mut self, packet: &[u8]) -> Outcome {
        self.encap_with(packet, Checksum::Complete, 0)
    }

    /// One packet from the overlay device, with a checksum state and a segment size.
    pub fn encap_with(&mut self, packet: &[u8], checksum: Checksum, segment_len: u16) -> Outcome {
        self.packets.clear();
        assert!(self.packets.receive_copy(packet), "packet too long for a slab");
        self.packets.packets[0].checksum = checksum;
        self.packets.packets[0].segment_len = segment_len;
        let before = self.drops();
        self.forwarder.encap(&mut self.packets, self.now, &mut self.out);
        let outcome = collect(&self.packets.pool, &self.out, before, self.drops());
        self.finish(&outcome);
        outcome
    }

    /// One UDP payload from the underlay address `from`.
    pub fn decap(&mut self, payload: &[u8], from: IpAddr, tos: u8) -> Outcome {
        self.decap_with(payload, from, tos, 0)
    }

    /// One UDP payload with the segment size that UDP_GRO would tell.
    pub fn decap_with(&mut self, payload: &[u8], from: IpAddr, tos: u8, segment_len: u16) -> Outcome {
        self.datagrams.clear();
        assert!(self.datagrams.receive_copy(payload, SocketAddr::new(from, 50_000), tos), "payload too long");
        self.datagrams.datagrams[0].packet.segment_len = segment_len;
        let before = self.drops();
        self.forwarder.decap(&mut self.datagrams, self.now, &mut self.out);
        let outcome = collect(&self.datagrams.pool, &self.out, before, self.drops());
        self.finish(&outcome);
        outcome
    }

    /// What the underlay says of a datagram that was too long.
    pub fn learn_path_mtu(&mut self, too_long: &TooLong) {
        self.forwarder.learn_path_mtu(too_long, self.now);
    }

    /// The engine's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Runs connection expiry.
    pub fn expire(&mut self) {
        self.forwarder.expire(self.now);
    }

    /// What a device and a socket that take everything would count.
    fn finish(&mut self, outcome: &Outcome) {
        let ip = |sent: &Delivered| segments(&sent.bytes[self.ip_offset..], sent.segment_len);
        let overlay = outcome.packets.iter().map(ip).sum();
        let underlay =
            outcome.datagrams.iter().map(|sent| segments(&sent.payload[22..], sent.segment_len)).sum();
        self.counters.overlay.sent.add(overlay);
        self.counters.underlay.sent.add(underlay);
        self.out.clear();
        let totals: Totals = self.counters.totals();
        assert_eq!(totals.difference(), 0, "received + generated = sent + dropped: {totals:?}");
    }

    fn drops(&self) -> Vec<u64> {
        DropReason::ALL.iter().map(|reason| self.counters.dropped(*reason)).collect()
    }
}

fn segments(packet: &[u8], segment_len: u16) -> u64 {
    let Ok(inner) = InnerPacket::parse(packet) else { return 1 };
    let headers_len = usize::from(inner.l4_offset) + usize::from(inner.l4_header_len);
    windlass_dataplane::offload::segment::count(packet.len(), headers_len, segment_len) as u64
}

fn collect(pool: &PacketPool, out: &Outbox, before: Vec<u64>, after: Vec<u64>) -> Outcome {
    let datagrams = out.datagrams.iter().map(|datagram| Sent {
        payload: pool.bytes(&datagram.packet).to_vec(),
        remote: datagram.remote,
        tos: datagram.tos,
        source_port: datagram.source_port,
        checksum: datagram.packet.checksum,
        segment_len: datagram.packet.segment_len,
    });
    let packets = out.packets.iter().map(|packet| Delivered {
        bytes: pool.bytes(packet).to_vec(),
        checksum: packet.checksum,
        segment_len: packet.segment_len,
    });
    let counts = before.iter().zip(after).map(|(before, after)| after - before);
    let drops = DropReason::ALL.iter().copied().zip(counts).filter(|(_, count)| *count > 0);
    Outcome { datagrams: datagrams.collect(), packets: packets.collect(), drops: drops.collect() }
}

/// The network of the worked example.
pub const VNI: u32 = 4096;
/// MAC of 192.168.1.40, which carries inner IPv4.
pub const MAC_A: &str = "ce:7a:e5:af:6a:e9";
/// MAC of 192.168.1.40, which carries inner IPv6.
pub const MAC_A6: &str = "ce:7a:e5:af:6a:ea";
/// MAC of 192.168.1.51, IPv4.
pub const MAC_B: &str = "00:15:5d:3c:3e:3c";
/// MAC of 192.168.1.51, IPv6.
pub const MAC_B6: &str = "00:15:5d:3c:3e:3d";

/// The network identifier of the worked example.
pub fn vni() -> Vni {
    Vni::new(VNI).unwrap_or_else(|| unreachable!("VNI {VNI} has 24 bits"))
}

/// Tables of the worked example's node `a` (192.168.1.40, 10.244.0.0/24, fd00:10:244::/64) whose peer is `b`
/// (192.168.1.51, 10.244.2.0/24, fd00:10:244:2::/64), or of `b` with `a` as peer.
///
/// Services: 10.96.0.10:53 (UDP and TCP: a pod on either node), 10.96.0.20:80 (the pod 10.244.0.14 of node a),
/// 10.96.0.21:80 (the pod 10.244.2.15 of node b), 10.96.0.1:443 (node a itself), 10.96.0.30:80 (nobody),
/// and fd00:10:96::a:53 (pods on both).
pub fn worked_example(name: &str) -> TableSet {
    let sides = [
        Side {
            name: "a",
            underlay: "192.168.1.40",
            mac: MAC_A,
            mac6: MAC_A6,
            cidr: "10.244.0.0/24",
            cidr6: "fd00:10:244::/64",
        },
        Side {
            name: "b",
            underlay: "192.168.1.51",
            mac: MAC_B,
            mac6: MAC_B6,
            cidr: "10.244.2.0/24",
            cidr6: "fd00:10:244:2::/64",
        },
    ];
    let (own, peers): (Vec<_>, Vec<_>) = sides.into_iter().partition(|side| side.name == name);
    let mut set = TableSet::default();
    let mut routes = RouteTable::default();
    routes.insert(net("0.0.0.0/0"), NextHop::Host);
    routes.insert(net("::/0"), NextHop::Host);
    let (mut fdb, mut neighbors) = (Fdb::default(), NeighborTable::default());
    for peer in &peers {
        let mut vtep = RemoteVtep::new(peer.name, SocketAddr::new(addr(peer.underlay), 4789));
        vtep.prefixes = vec![net(peer.cidr), net(peer.cidr6)];
        vtep.addresses = vec![addr(peer.underlay)];
        let vtep = Arc::new(vtep);
        for (cidr, peer_mac) in [(peer.cidr, peer.mac), (peer.cidr6, peer.mac6)] {
            let gateway = net(cidr).network();
            fdb.insert(vni(), mac(peer_mac), Arc::clone(&vtep));
            neighbors.insert(vni(), gateway, mac(peer_mac));
            routes.insert(net(cidr), NextHop::Remote { vni: vni(), gateway });
        }
    }
    let mut local = Local {
        node: name.to_owned(),
        cluster_cidrs: vec![net("10.244.0.0/16"), net("fd00:10:244::/48")],
        service_cidrs: vec![net("10.96.0.0/12"), net("fd00:10:96::/112")],
        overlay_mtu: 1450,
        ..Local::default()
    };
    for side in &own {
        local.vteps.insert(vni(), LocalVtep { mac_v4: Some(mac(side.mac)), mac_v6: Some(mac(side.mac6)) });
        local.pod_cidrs = vec![net(side.cidr), net(side.cidr6)];
        let bases = [net(side.cidr).network(), net(side.cidr6).network()];
        local.addresses = vec![addr(side.underlay), bases[0], bases[1]];
        if let [IpAddr::V4(v4), IpAddr::V6(v6)] = bases {
            (local.base_v4, local.base_v6) = (Some(v4), Some(v6));
        }
        for (cidr, base) in [side.cidr, side.cidr6].into_iter().zip(bases) {
            routes.insert(net(cidr), NextHop::Overlay);
            routes.insert(base.into(), NextHop::Host);
        }
    }
    set.local = Arc::new(local);
    (set.fdb, set.neighbors, set.routes) = (Arc::new(fdb), Arc::new(neighbors), Arc::new(routes));
    set.services = Arc::new(example_services());
    set
}

struct Side {
    name: &'static str,
    underlay: &'static str,
    mac: &'static str,
    mac6: &'static str,
    cidr: &'static str,
    cidr6: &'static str,
}

fn example_services() -> ServiceTable {
    let services = [
        (
            "kube-system/kube-dns:dns",
            vip("10.96.0.10:53", Protocol::UDP),
            &["10.244.0.10:53", "10.244.2.10:53"][..],
        ),
        (
            "kube-system/kube-dns:dns-tcp",
            vip("10.96.0.10:53", Protocol::TCP),
            &["10.244.0.10:53", "10.244.2.10:53"],
        ),
        ("default/local:http", vip("10.96.0.20:80", Protocol::TCP), &["10.244.0.14:8080"]),
        ("default/remote:http", vip("10.96.0.21:80", Protocol::TCP), &["10.244.2.15:8080"]),
        ("default/remote:udp", vip("10.96.0.21:80", Protocol::UDP), &["10.244.2.15:8080"]),
        ("default/kubernetes:https", vip("10.96.0.1:443", Protocol::TCP), &["192.168.1.40:6443"]),
        ("default/empty:http", vip("10.96.0.30:80", Protocol::TCP), &[]),
        ("default/empty:udp", vip("10.96.0.30:80", Protocol::UDP), &[]),
        (
            "kube-system/kube-dns:dns6",
            vip("[fd00:10:96::a]:53", Protocol::UDP),
            &["[fd00:10:244::10]:53", "[fd00:10:244:2::10]:53"],
        ),
        ("default/remote6:http", vip("[fd00:10:96::21]:80", Protocol::TCP), &["[fd00:10:244:2::15]:8080"]),
    ];
    let mut table = ServiceTable::default();
    for (name, vip, backends) in services {
        let backends = backends.iter().map(|backend| socket(backend)).collect();
        table.insert(Arc::new(Service::new(name, vip, backends)));
    }
    table
}

/// A VIP from `address:port`.
pub fn vip(text: &str, protocol: Protocol) -> Vip {
    let socket = socket(text);
    Vip { addr: socket.ip(), port: socket.port(), protocol }
}

/// A flow from two `address:port`s.
pub fn flow(protocol: Protocol, src: &str, dst: &str) -> FlowKey {
    let (src, dst) = (socket(src), socket(dst));
    FlowKey { src: src.ip(), dst: dst.ip(), protocol, src_port: src.port(), dst_port: dst.port() }
}

/// A constant of a test, parsed.
pub fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
    text.parse().unwrap_or_else(|error| unreachable!("{text:?} in a test: {error:?}"))
}

/// An address.
pub fn addr(text: &str) -> IpAddr {
    parsed(text)
}

/// A MAC.
pub fn mac(text: &str) -> Mac {
    parsed(text)
}

/// A prefix.
pub fn net(text: &str) -> ipnet::IpNet {
    parsed(text)
}

/// An address and port.
pub fn socket(text: &str) -> SocketAddr {
    parsed(text)
}
