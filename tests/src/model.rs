//! What node a of the worked example must do with each packet, said once more: slowly, from lists, and without any of
//! the code under test. Packets are descriptions here; whoever compares makes bytes of them.
//!
//! A choice that is free (which backend, which source port when the client's own is taken) is taken over from what was
//! seen, once it is one of those allowed. Nothing expires: a comparison stays under the shortest timeout.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use crate::engine_node::{addr, net, socket};
use crate::packets::Tcp;

/// A TCP or UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Addresses, ports and protocol.
    pub flow: FlowKey,
    /// Its flags, if it is TCP.
    pub flags: Tcp,
    /// Length of its payload.
    pub len: usize,
    /// TOS byte.
    pub tos: u8,
}

/// How a packet from a peer arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Whether the outer source is node b's.
    pub from_b: bool,
    /// Whether the VNI is the overlay's.
    pub our_vni: bool,
    /// Whether the inner destination MAC is node a's.
    pub our_mac: bool,
    /// The outer TOS byte.
    pub tos: u8,
}

/// What must become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Encapsulated, to node b.
    ToPeer(Described),
    /// Into the overlay device.
    ToDevice(Described),
    /// Dropped, and the sender may be told.
    Rejected(DropReason),
    /// Dropped.
    Dropped(DropReason),
}

/// A flow to a VIP, and the flow it became.
#[derive(Clone, Copy, Debug)]
struct Connection {
    original: FlowKey,
    translated: FlowKey,
}

/// The node.
#[derive(Debug)]
pub struct Model {
    services: Vec<(Protocol, SocketAddr, Vec<SocketAddr>)>,
    connections: Vec<Connection>,
}

/// The worked example's places in one family.
struct Places {
    source_vip: &'static str,
    base: &'static str,
    pods: &'static str,
    pods_of_b: &'static str,
    cluster: &'static str,
    services: &'static str,
}

const V4: Places = Places {
    source_vip: "169.254.77.1",
    base: "10.244.0.0",
    pods: "10.244.0.0/24",
    pods_of_b: "10.244.2.0/24",
    cluster: "10.244.0.0/16",
    services: "10.96.0.0/12",
};

const V6: Places = Places {
    source_vip: "fd77:6e64:6c61:7373::1",
    base: "fd00:10:244::",
    pods: "fd00:10:244::/64",
    pods_of_b: "fd00:10:244:2::/64",
    cluster: "fd00:10:244::/48",
    services: "fd00:10:96::/112",
};

/// The underlay is IPv4 alone.
const UNDERLAY: &str = "192.168.1.40";
const UNDERLAY_OF_B: &str = "192.168.1.51";

impl Places {
    fn of(addr: IpAddr) -> &'static Self {
        if addr.is_ipv4() { &V4 } else { &V6 }
    }
}

fn is_in(addr: IpAddr, prefix: &str) -> bool {
    let prefix: IpNet = net(prefix);
    prefix.contains(&addr)
}

impl Default for Model {
    fn default() -> Self {
        let service = |protocol, vip: &str, backends: &[&str]| {
            (protocol, socket(vip), backends.iter().map(|backend| socket(backend)).collect())
        };
        let dns = ["10.244.0.10:53", "10.244.2.10:53"];
        let services = vec![
            service(Protocol::UDP, "10.96.0.10:53", &dns),
            service(Protocol::TCP, "10.96.0.10:53", &dns),
            service(Protocol::TCP, "10.96.0.20:80", &["10.244.0.14:8080"]),
            service(Protocol::TCP, "10.96.0.21:80", &["10.244.2.15:8080"]),
            service(Protocol::UDP, "10.96.0.21:80", &["10.244.2.15:8080"]),
            service(Protocol::TCP, "10.96.0.1:443", &["192.168.1.40:6443"]),
            service(Protocol::TCP, "10.96.0.30:80", &[]),
            service(Protocol::UDP, "10.96.0.30:80", &[]),
            service(Protocol::UDP, "[fd00:10:96::a]:53", &["[fd00:10:244::10]:53", "[fd00:10:244:2::10]:53"]),
            service(Protocol::TCP, "[fd00:10:96::21]:80", &["[fd00:10:244:2::15]:8080"]),
        ];
        Self { services, connections: Vec::new() }
    }
}

impl Model {
    /// A packet from a pod or from the host, and the flow that the node was seen to make of it.
    pub fn from_device(&mut self, packet: Described, seen: Option<FlowKey>) -> Fate {
        let flow = packet.flow;
        if let Some(to) = self.translated(&flow) {
            return onward(Described { flow: to, ..packet });
        }
        let (dst, places) = (flow.dst, Places::of(flow.dst));
        if self.services.iter().any(|(_, vip, _)| vip.ip() == dst) {
            return self.balance(packet, seen);
        }
        match dst {
            _ if dst == addr(places.source_vip) => Fate::Dropped(DropReason::NoConnection),
            _ if is_in(dst, places.services) => Fate::Dropped(DropReason::NoSuchService),
            // The base of the podCIDR is this node itself, and in the cluster's range.
            _ if dst == addr(places.base) => Fate::Dropped(DropReason::NoRoute),
            _ if is_in(dst, places.pods) => Fate::Dropped(DropReason::LocalPodNotOnHost),
            _ if is_in(dst, places.pods_of_b) => Fate::ToPeer(packet),
            _ if is_in(dst, places.cluster) => Fate::Dropped(DropReason::NoRoute),
            _ => Fate::Dropped(DropReason::OutsideOverlay),
        }
    }

    /// A packet from the underlay.
    pub fn from_underlay(&mut self, packet: Described, arrival: Arrival) -> Fate {
        let Described { flow, .. } = packet;
        let places = Places::of(flow.src);
        let is_ours = is_in(flow.src, places.pods) || flow.src == addr(UNDERLAY);
        match () {
            () if !arrival.our_vni => return Fate::Dropped(DropReason::UnknownVni),
            () if !arrival.from_b => return Fate::Dropped(DropReason::UnknownVtep),
            () if !arrival.our_mac => return Fate::Dropped(DropReason::InnerMacNotOurs),
            () if is_ours => return Fate::Dropped(DropReason::SourceInvalid),
            () if !is_in(flow.src, places.pods_of_b) && flow.src != addr(UNDERLAY_OF_B) => {
                return Fate::Dropped(DropReason::SourceSpoofed);
            }
            () => {}
        }
        let to = self.translated(&flow).unwrap_or(flow);
        if !is_in(to.dst, places.pods) && to.dst != addr(UNDERLAY) {
            return Fate::Dropped(DropReason::DestinationNotLocal);
        }
        match ecn(arrival.tos, packet.tos) {
            Some(tos) => Fate::ToDevice(Described { flow: to, tos, ..packet }),
            None => Fate::Dropped(DropReason::EcnIllegal),
        }
    }

    /// What a packet of a known connection becomes, whichever way it goes.
    fn translated(&self, flow: &FlowKey) -> Option<FlowKey> {
        self.connections.iter().find_map(|connection| match *flow {
            flow if flow == connection.original => Some(connection.translated),
            flow if flow == connection.translated.reversed() => Some(connection.original.reversed()),
            _ => None,
        })
    }

    fn balance(&mut self, packet: Described, seen: Option<FlowKey>) -> Fate {
        let flow = packet.flow;
        let vip = SocketAddr::new(flow.dst, flow.dst_port);
        let service = self.services.iter().find(|service| (service.0, service.1) == (flow.protocol, vip));
        let Some((_, _, backends)) = service else { return Fate::Rejected(DropReason::UnservedPort) };
        if flow.protocol == Protocol::TCP && packet.flags == Tcp::Rst {
            return Fate::Dropped(DropReason::NoConnection);
        }
        // Whichever was chosen, if it may be.
        let chosen = seen.map(|seen| SocketAddr::new(seen.dst, seen.dst_port));
        let Some(backend) = backends.iter().find(|backend| Some(**backend) == chosen).or(backends.first())
        else {
            return Fate::Rejected(DropReason::NoEndpoint);
        };
        // A pod of node b answers through the tunnel, if the source is the overlay's; anybody else only to the source VIP.
        let places = Places::of(flow.dst);
        let src = match is_in(backend.ip(), places.pods_of_b) {
            true if is_in(flow.src, places.cluster) => flow.src,
            true => addr(places.base),
            false => addr(places.source_vip),
        };
        let own = FlowKey { src, dst: backend.ip(), dst_port: backend.port(), ..flow };
        let is_taken = self.connections.iter().any(|connection| connection.translated == own);
        let src_port = match seen {
            // Another port than the client's own, and one that no other connection has.
            Some(seen) if is_taken => seen.src_port,
            _ => own.src_port,
        };
        let translated = FlowKey { src_port, ..own };
        assert!(
            !self.connections.iter().any(|other| other.translated == translated),
            "{translated} is taken (D3)"
        );
        self.connections.push(Connection { original: flow, translated });
        onward(Described { flow: translated, ..packet })
    }
}

/// Where a translated packet goes: node b's pods are behind the tunnel, all else behind the device.
fn onward(packet: Described) -> Fate {
    if is_in(packet.flow.dst, Places::of(packet.flow.dst).pods_of_b) {
        Fate::ToPeer(packet)
    } else {
        Fate::ToDevice(packet)
    }
}

/// The inner TOS byte after decapsulation, RFC 6040 figure 4 row by row; `None` for a drop.
fn ecn(outer: u8, inner: u8) -> Option<u8> {
    const TABLE: [[Option<u8>; 4]; 4] = [
        // Outer Not-ECT, ECT(1), ECT(0), CE.
        [Some(0), Some(0), Some(0), None],
        [Some(1), Some(1), Some(1), Some(3)],
        [Some(2), Some(1), Some(2), Some(3)],
        [Some(3), Some(3), Some(3), Some(3)],
    ];
    let ecn = TABLE[usize::from(inner & 3)][usize::from(outer & 3)]?;
    Some(inner & !3 | ecn)
}
