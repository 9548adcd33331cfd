//! G3: tables replaced 1,000 times while flows go on. Nothing is lost, nothing misrouted, and every flow that
//! may stay with its backend does. A model of the cluster says where each packet has to go.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use windlass_dataplane::engine::Settings;
use windlass_dataplane::tables::{
    Fdb, NeighborTable, NextHop, RemoteVtep, RouteTable, Service, ServiceTable, TableSet, Vip,
};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, MAC_A, Outcome, VNI, addr, mac, net, vni, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp, verified_flow};

const REPLACEMENTS: usize = 1_000;
const FLOWS: u16 = 24;

/// Services that are always there; as many more come and go.
const PERMANENT: u8 = 4;

/// A peer as the cluster knows it at the moment.
#[derive(Clone, Copy, Debug)]
struct Peer {
    mac: Mac,
    underlay: IpAddr,
    subnet: u8,
}

#[derive(Clone, Debug, Default)]
struct Endpoints {
    backends: Vec<SocketAddr>,
    draining: Vec<SocketAddr>,
}

/// The cluster as it is to be.
struct Cluster {
    random: u64,
    local: TableSet,
    peers: BTreeMap<&'static str, Peer>,
    services: BTreeMap<Vip, Endpoints>,
}

/// A flow that keeps sending.
struct Flow {
    key: FlowKey,
    /// Where it went last.
    backend: Option<SocketAddr>,
}

impl Cluster {
    fn new() -> Self {
        let peer = |mac_of, underlay, subnet| Peer { mac: mac(mac_of), underlay: addr(underlay), subnet };
        let mut cluster = Self {
            random: 0x9e37_79b9_7f4a_7c15,
            local: worked_example("a"),
            peers: BTreeMap::from([
                ("b", peer("02:00:00:00:00:0b", "192.168.1.51", 2)),
                ("c", peer("02:00:00:00:00:0c", "192.168.1.62", 3)),
            ]),
            services: BTreeMap::new(),
        };
        for number in 0..PERMANENT {
            cluster.add_service(number);
        }
        cluster
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % limit as u64) as usize
    }

    fn add_service(&mut self, number: u8) {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            let backends = vec![self.pod()];
            self.services.insert(vip(number, protocol), Endpoints { backends, ..Endpoints::default() });
        }
    }

    /// A pod of any node there is, our own included.
    fn pod(&mut self) -> SocketAddr {
        let mut subnets: Vec<u8> = self.peers.values().map(|peer| peer.subnet).collect();
        subnets.push(0);
        let subnet = subnets[self.below(subnets.len())];
        let host = 10 + self.below(6) as u8;
        SocketAddr::from(([10, 244, subnet, host], 8080))
    }

    /// One change of the kinds a cluster sees.
    fn change(&mut self) {
        match self.below(8) {
            0..=1 => self.add_endpoint(),
            2..=3 => self.remove_endpoint(),
            4 => {
                let number = PERMANENT + self.below(usize::from(PERMANENT)) as u8;
                if self.services.remove(&vip(number, Protocol::TCP)).is_some() {
                    self.services.remove(&vip(number, Protocol::UDP));
                } else {
                    self.add_service(number);
                }
            }
            5 => {
                let (last, name) = (self.below(200) as u8, ["b", "c"][self.below(2)]);
                let other = ["b", "c"]
                    .into_iter()
                    .find(|other| *other != name)
                    .map(|other| self.peers[other].underlay);
                let underlay = IpAddr::from([192, 168, 2, last]);
                if let Some(peer) = self.peers.get_mut(name) {
                    peer.mac = Mac([2, 0, 0, 0, if name == "b" { 0x0b } else { 0x0c }, last]);
                    peer.underlay = if other == Some(underlay) { peer.underlay } else { underlay };
                }
            }
            6 => self.toggle_node(),
            _ => {
                // F12: a node that is re-created with another podCIDR takes its pods along.
                self.toggle_node();
                self.toggle_node();
            }
        }
    }

    fn some_service(&mut self) -> Vip {
        let at = self.below(self.services.len());
        self.services.keys().copied().nth(at).unwrap_or_else(|| unreachable!())
    }

    fn add_endpoint(&mut self) {
        let (vip, pod) = (self.some_service(), self.pod());
        let endpoints = self.services.entry(vip).or_default();
        endpoints.draining.retain(|backend| *backend != pod);
        if !endpoints.backends.contains(&pod) {
            endpoints.backends.push(pod);
        }
    }

    fn remove_endpoint(&mut self) {
        let (vip, pick, drains) = (self.some_service(), self.below(100), self.below(2) == 0);
        let endpoints = self.services.entry(vip).or_default();
        if endpoints.backends.len() > 1 {
            let gone = endpoints.backends.remove(pick % endpoints.backends.len());
            endpoints.draining.clear();
            endpoints.draining.extend(drains.then_some(gone));
        }
    }

    /// Node d comes, or goes with all its pods.
    fn toggle_node(&mut self) {
        let Some(gone) = self.peers.remove("d") else {
            let subnet = 4 + self.below(3) as u8;
            let peer = Peer { mac: Mac([2, 0, 0, 0, 0x0d, subnet]), underlay: addr("192.168.1.73"), subnet };
            self.peers.insert("d", peer);
            return;
        };
        let stays = |backend: &SocketAddr| subnet_of(backend.ip()) != Some(gone.subnet);
        for endpoints in self.services.values_mut() {
            endpoints.backends.retain(stays);
            endpoints.draining.retain(stays);
            if endpoints.backends.is_empty() {
                endpoints.backends.push(SocketAddr::from(([10, 244, 2, 10], 8080)));
            }
        }
    }

    fn tables(&self) -> TableSet {
        let (mut fdb, mut neighbors) = (Fdb::default(), NeighborTable::default());
        let mut routes = RouteTable::default();
        for (prefix, hop) in self.local.routes.iter() {
            if !matches!(hop, NextHop::Remote { .. }) {
                routes.insert(prefix, hop);
            }
        }
        for (name, peer) in &self.peers {
            let cidr = net(&format!("10.244.{}.0/24", peer.subnet));
            let mut vtep = RemoteVtep::new(*name, SocketAddr::new(peer.underlay, 4789));
            vtep.prefixes = vec![cidr];
            fdb.insert(vni(), peer.mac, Arc::new(vtep));
            neighbors.insert(vni(), cidr.network(), peer.mac);
            routes.insert(cidr, NextHop::Remote { vni: vni(), gateway: cidr.network() });
        }
        let mut services = ServiceTable::default();
        for (vip, endpoints) in &self.services {
            let mut service = Service::new(vip.to_string(), *vip, endpoints.backends.clone());
            service.draining = endpoints.draining.clone();
            services.insert(Arc::new(service));
        }
        TableSet {
            local: Arc::clone(&self.local.local),
            fdb: Arc::new(fdb),
            neighbors: Arc::new(neighbors),
            routes: Arc::new(routes),
            services: Arc::new(services),
            ..TableSet::default()
        }
    }

    fn peer_of(&self, pod: IpAddr) -> Option<Peer> {
        self.peers.values().copied().find(|peer| subnet_of(pod) == Some(peer.subnet))
    }

    fn serves(&self, vip: Vip, backend: SocketAddr) -> bool {
        let endpoints = self.services.get(&vip);
        endpoints.is_some_and(|known| known.backends.contains(&backend) || known.draining.contains(&backend))
    }

    /// The backend that a packet of `key` was sent to; panics when it was lost or sent astray.
    fn arrived(&self, key: &FlowKey, outcome: &Outcome) -> FlowKey {
        assert_eq!(outcome.drops, [], "{key} was lost");
        let inner = match (&outcome.datagrams[..], &outcome.packets[..]) {
            ([sent], []) => {
                let inner = verified_flow(&sent.payload[22..]);
                let peer =
                    self.peer_of(inner.dst).unwrap_or_else(|| unreachable!("{key} to no node: {inner}"));
                assert_eq!(sent.remote, SocketAddr::new(peer.underlay, 4789), "{key} > {inner}: VTEP");
                assert_eq!(sent.payload[8..14], peer.mac.0, "{key} > {inner}: inner MAC");
                inner
            }
            ([], [delivered]) => {
                let inner = verified_flow(&delivered.bytes);
                assert_eq!(subnet_of(inner.dst), Some(0), "{key} > {inner} is no pod of this node");
                inner
            }
            _ => unreachable!("{key}: {outcome:?}"),
        };
        assert_eq!(inner.protocol, key.protocol);
        inner
    }
}

fn subnet_of(pod: IpAddr) -> Option<u8> {
    match pod {
        IpAddr::V4(pod) if pod.octets()[..2] == [10, 244] => Some(pod.octets()[2]),
        _ => None,
    }
}

fn vip(number: u8, protocol: Protocol) -> Vip {
    Vip { addr: Ipv4Addr::new(10, 96, 7, number).into(), port: 80, protocol }
}

fn vip_of(key: &FlowKey) -> Vip {
    Vip { addr: key.dst, port: key.dst_port, protocol: key.protocol }
}

/// What a VTEP sends: VXLAN header, Ethernet header, packet.
fn encapsulated(from: Mac, packet: &[u8]) -> Vec<u8> {
    let [_, vni @ ..] = VNI.to_be_bytes();
    let mut bytes = vec![8, 0, 0, 0];
    bytes.extend(vni);
    bytes.push(0);
    bytes.extend(mac(MAC_A).0);
    bytes.extend(from.0);
    bytes.extend([8, 0]);
    bytes.extend(packet);
    bytes
}

struct Load {
    node: EngineNode,
    cluster: Cluster,
    moved: usize,
    packets: usize,
}

impl Load {
    /// Sends one packet of the flow and takes the backend's answer back.
    fn exchange(&mut self, flow: &mut Flow, kind: Tcp) {
        let is_tcp = flow.key.protocol == Protocol::TCP;
        let build = |key: &FlowKey, kind| if is_tcp { tcp(key, kind, b"") } else { udp(key, b"question") };
        let outcome = self.node.encap(&build(&flow.key, kind));
        let inner = self.cluster.arrived(&flow.key, &outcome);
        let backend = SocketAddr::new(inner.dst, inner.dst_port);
        let vip = vip_of(&flow.key);
        match flow.backend {
            Some(known) if is_tcp => assert_eq!(backend, known, "{}: TCP stays", flow.key),
            Some(known) if self.cluster.serves(vip, known) => {
                assert_eq!(backend, known, "{}: its backend serves", flow.key);
            }
            Some(_) => self.moved += 1,
            None => {}
        }
        let takes_new = self.cluster.services[&vip].backends.contains(&backend);
        if flow.backend != Some(backend) {
            assert!(takes_new, "{}: {backend} takes no new flows", flow.key);
        }
        flow.backend = Some(backend);
        let reply = build(&inner.reversed(), if kind == Tcp::Syn { Tcp::SynAck } else { Tcp::Ack });
        let back = match self.cluster.peer_of(inner.dst) {
            Some(peer) => self.node.decap(&encapsulated(peer.mac, &reply), peer.underlay, 0),
            None => self.node.encap(&reply),
        };
        assert_eq!(back.drops, [], "the answer to {}", flow.key);
        assert_eq!(
            verified_flow(&back.packets[0].bytes),
            flow.key.reversed(),
            "the answer comes from the VIP"
        );
        self.packets += 2;
    }

    /// Whether a flow goes on: its service is there, and TCP's backend still has a node.
    fn may_live(&self, flow: &Flow) -> bool {
        let has_node = |backend: SocketAddr| {
            subnet_of(backend.ip()) == Some(0) || self.cluster.peer_of(backend.ip()).is_some()
        };
        let is_tcp = flow.key.protocol == Protocol::TCP;
        self.cluster.services.contains_key(&vip_of(&flow.key))
            && !(is_tcp && flow.backend.is_some_and(|backend| !has_node(backend)))
    }
}

#[test]
fn g3_tables_replaced_a_thousand_times_under_load_lose_and_misroute_nothing() {
    let cluster = Cluster::new();
    let node = EngineNode::new(cluster.tables(), Settings::default());
    let mut load = Load { node, cluster, moved: 0, packets: 0 };
    let mut flows: Vec<Flow> = Vec::new();
    let (mut next_port, mut opened, mut purged) = (20_000_u16, 0, 0);
    for _ in 0..REPLACEMENTS {
        while flows.len() < usize::from(FLOWS) {
            let Vip { addr: dst, port: dst_port, protocol } = load.cluster.some_service();
            next_port += 1;
            let src = addr("10.244.0.99");
            let mut flow =
                Flow { key: FlowKey { src, dst, protocol, src_port: next_port, dst_port }, backend: None };
            load.exchange(&mut flow, Tcp::Syn);
            load.exchange(&mut flow, Tcp::Ack);
            opened += 1;
            flows.push(flow);
        }
        load.cluster.change();
        let tables = load.node.writer.publish(load.cluster.tables());
        purged += load.node.connections.purge(|connection| tables.strands(connection));
        flows.retain(|flow| load.may_live(flow));
        // Clients come and go as well.
        flows.swap_remove(load.cluster.below(usize::from(FLOWS)).min(flows.len() - 1));
        for flow in &mut flows {
            load.exchange(flow, Tcp::Ack);
            load.exchange(flow, Tcp::Ack);
        }
        load.node.connections.visit(|connection| {
            assert!(!tables.strands(connection), "{} outlives its backend (F6)", connection.original);
            true
        });
    }
    let Load { packets, moved, .. } = load;
    println!(
        "{packets} packets of {opened} flows, {moved} moves to another backend, {purged} purged, none lost"
    );
    assert!(opened > usize::from(FLOWS) * 2 && moved > 20 && purged > 100);
}
