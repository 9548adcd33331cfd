//! One node, two peers behind VTEPs, and services: tables of the types under test.

use alloc::sync::Arc;
use core::net::{IpAddr, SocketAddr};

use crate::counters::Counters;
use crate::drop_reason::DropReason;
use crate::engine::{Engine, Outbox, Settings};
use crate::lb::conntrack::Conntrack;
use crate::packet::{DatagramBatch, PacketBatch};
use crate::packets::{verified_flow, vxlan};
use crate::tables::{LocalVtep, NextHop, RemoteVtep, Service, TableSet, Vip, Writer};
use crate::time::Instant;
use crate::wire::ethernet::Mac;
use crate::wire::flow::{FlowKey, Protocol};
use crate::wire::vxlan::Vni;

/// The underlay address of the peer that has 10.2.0.0/24.
pub(crate) const PEER: &str = "192.0.2.2";
const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
const PEER_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> ipnet::IpNet {
    text.parse().unwrap()
}

/// An address and a port.
pub(crate) fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// A flow from two of them.
pub(crate) fn flow(protocol: Protocol, src: &str, dst: &str) -> FlowKey {
    let (src, dst) = (socket(src), socket(dst));
    FlowKey { src: src.ip(), dst: dst.ip(), protocol, src_port: src.port(), dst_port: dst.port() }
}

fn vni() -> Vni {
    Vni::new(1).unwrap()
}

/// Our pods are 10.1.0.0/24, the peer's 10.2.0.0/24; each service has its VIP and its backends.
pub(crate) fn tables(services: &[(&str, Protocol, &[&str])]) -> TableSet {
    let mut set = TableSet::default();
    let mut vtep = RemoteVtep::new("peer", SocketAddr::new(addr(PEER), 4789));
    vtep.prefixes = vec![net("10.2.0.0/24")];
    Arc::make_mut(&mut set.fdb).insert(vni(), PEER_MAC, Arc::new(vtep));
    let gateway = addr("10.2.0.0");
    Arc::make_mut(&mut set.neighbors).insert(vni(), gateway, PEER_MAC);
    let routes = Arc::make_mut(&mut set.routes);
    routes.insert(net("10.2.0.0/24"), NextHop::Remote { vni: vni(), gateway });
    routes.insert(net("10.1.0.0/24"), NextHop::Overlay);
    let local = Arc::make_mut(&mut set.local);
    local.cluster_cidrs = vec![net("10.0.0.0/14")];
    local.pod_cidrs = vec![net("10.1.0.0/24")];
    local.vteps.insert(vni(), LocalVtep { mac_v4: Some(OUR_MAC), mac_v6: None });
    for (vip, protocol, backends) in services {
        let at = socket(vip);
        let vip = Vip { addr: at.ip(), port: at.port(), protocol: *protocol };
        let backends = backends.iter().map(|backend| socket(backend)).collect();
        Arc::make_mut(&mut set.services).insert(Arc::new(Service::new("s", vip, backends)));
    }
    set
}

/// One worker's engine and its buffers.
pub(crate) struct Worker {
    engine: Engine,
    packets: PacketBatch,
    datagrams: DatagramBatch,
    out: Outbox,
}

impl Worker {
    /// Worker `number` of a node.
    pub(crate) fn new(writer: &Writer, connections: &Arc<Conntrack>, number: usize) -> Self {
        let settings = Settings { flow_cache_entries: 4, ..Settings::default() };
        let (reader, connections) = (writer.reader(), Arc::clone(connections));
        Self {
            engine: Engine::new(reader, connections, Arc::<Counters>::default(), settings, number),
            packets: PacketBatch::new(1, 1),
            datagrams: DatagramBatch::new(1, 1),
            out: Outbox::default(),
        }
    }

    /// What a packet from the device has become when it leaves for the peer; `None` if it does not.
    pub(crate) fn encap(&mut self, packet: &[u8], now: Instant) -> Option<FlowKey> {
        self.packets.clear();
        self.out.clear();
        assert!(self.packets.receive_copy(packet));
        self.engine.encap(&mut self.packets, now, &mut self.out);
        let sent = self.out.datagrams.first()?;
        Some(verified_flow(&self.packets.pool.bytes(&sent.packet)[22..]))
    }

    /// What a packet from the peer has become when it reaches the device.
    pub(crate) fn decap(&mut self, packet: &[u8], now: Instant) -> Option<FlowKey> {
        self.datagrams.clear();
        self.out.clear();
        let from = SocketAddr::new(addr(PEER), 50_000);
        assert!(self.datagrams.receive_copy(&vxlan(1, OUR_MAC, packet), from, 0));
        self.engine.decap(&mut self.datagrams, now, &mut self.out);
        Some(verified_flow(self.datagrams.pool.bytes(self.out.packets.first()?)))
    }

    /// Forgets what has timed out.
    pub(crate) fn expire(&mut self, now: Instant) {
        self.engine.expire(now);
    }

    /// Packets dropped for `reason`.
    pub(crate) fn dropped(&self, reason: DropReason) -> u64 {
        self.engine.counters().dropped(reason)
    }
}

/// The backend that a flow goes to.
pub(crate) fn backend(flow: FlowKey) -> (IpAddr, u16) {
    (flow.dst, flow.dst_port)
}
