//! The cluster as the API server knows it: the truth that nodes hear of late.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use windlass_control::cluster::{
    Announcement, ClusterState, Endpoint, EndpointPort, EndpointSlice, Flannel, Node, ObjectName, Service,
    ServicePort,
};
use windlass_control::node::{NodeSettings, UnderlayChoice};
use windlass_dataplane::tables::local::{DEFAULT_SOURCE_VIP_V4, DEFAULT_SOURCE_VIP_V6};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::vxlan::Vni;

use crate::engine_node::{net, vni};

/// The port of every VIP, for TCP and UDP.
pub const VIP_PORT: u16 = 80;
/// Where backends listen for TCP.
pub const TCP_PORT: u16 = 8080;
/// Where backends listen for UDP.
pub const UDP_PORT: u16 = 5353;
/// Where VTEPs listen.
pub const VTEP_PORT: u16 = 4789;

/// What tells a node from all that were before: no address but the underlay's is ever given out twice.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the Node object.
    pub name: String,
    /// Underlay address.
    pub underlay: IpAddr,
    /// MAC of its VTEP.
    pub mac: Mac,
    /// IPv4 and IPv6 ranges of its pods.
    pub pod_cidrs: [IpNet; 2],
}

impl Identity {
    /// The `number`th identity of a cluster: of a node that is called `name` and stands at `underlay`.
    pub fn new(name: &str, number: usize, underlay: IpAddr) -> Self {
        let [.., high, low] = (number as u32).to_be_bytes();
        let v4 = Ipv4Addr::new(10, 128 + high, low, 0);
        let v6 = Ipv6Addr::new(0xfd00, 0x10, number as u16, 0, 0, 0, 0, 0);
        let prefixes = (Ipv4Net::new(v4, 24), Ipv6Net::new(v6, 64));
        let (Ok(v4), Ok(v6)) = prefixes else { unreachable!("both prefix lengths are short enough") };
        Self {
            name: name.to_owned(),
            underlay,
            mac: Mac([0x02, 0, 0, 1, high, low]),
            pod_cidrs: [v4.into(), v6.into()],
        }
    }

    /// The addresses of its `number`th pod. Number 0 is the host's own, the base of its ranges.
    pub fn pod_addresses(&self, number: usize) -> [IpAddr; 2] {
        self.pod_cidrs.map(|cidr| match cidr.network() {
            IpAddr::V4(base) => Ipv4Addr::from(u32::from(base) + number as u32).into(),
            IpAddr::V6(base) => Ipv6Addr::from(u128::from(base) + number as u128).into(),
        })
    }

    /// Its Node object, created at `created_at`.
    pub fn object(&self, created_at: i64) -> Node {
        let announced = || Announcement::Ready { vni: vni(), mac: self.mac };
        Node {
            created_at: Some(created_at),
            pod_cidrs: self.pod_cidrs.to_vec(),
            internal_ips: vec![self.underlay],
            flannel: Flannel {
                backend_type: Some("vxlan".to_owned()),
                vtep_v4: announced(),
                vtep_v6: announced(),
                public_ip: Some(self.underlay),
                ..Flannel::default()
            },
            ..Node::default()
        }
    }

    /// What `windlass run` would find out on it.
    pub fn settings(&self) -> NodeSettings {
        NodeSettings {
            node: self.name.clone(),
            vni: vni(),
            port: VTEP_PORT,
            underlay: vec![UnderlayChoice { addr: self.underlay, why: String::new() }],
            mac_v4: Some(self.mac),
            mac_v6: Some(self.mac),
            pod_cidrs: self.pod_cidrs.to_vec(),
            cluster_cidrs: vec![net("10.128.0.0/9"), net("fd00:10::/32")],
            service_cidrs: vec![net("10.64.0.0/10"), net("fd00:96::/32")],
            source_vip_v4: DEFAULT_SOURCE_VIP_V4,
            source_vip_v6: DEFAULT_SOURCE_VIP_V6,
            overlay_mtu: OVERLAY_MTU,
            addresses: vec![self.underlay],
            node_port_addrs: vec![self.underlay],
            zone: None,
            segments: Vec::new(),
        }
    }
}

/// The MTU of pods and devices in bytes: 1,500 of the underlay less VXLAN's headers.
pub const OVERLAY_MTU: u32 = 1450;

/// Another tenant's network on the same underlay.
pub fn other_vni() -> Vni {
    Vni::new(vni().get() + 1).unwrap_or(vni())
}

/// The `number`th underlay address.
pub fn underlay_address(number: usize) -> IpAddr {
    let [.., high, low] = (number as u32).to_be_bytes();
    Ipv4Addr::new(192, 168, high, low).into()
}

/// The `number`th ClusterIPs.
pub fn cluster_ips(number: usize) -> Vec<IpAddr> {
    let v4 = u32::from(Ipv4Addr::new(10, 64, 0, 0)) + number as u32;
    let v6 = u128::from(Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0)) + number as u128;
    vec![Ipv4Addr::from(v4).into(), Ipv6Addr::from(v6).into()]
}

/// What a Node object says of its VTEP.
pub trait Announced {
    /// Its underlay address and MAC.
    fn announced(&self) -> Option<(IpAddr, Mac)>;
}

impl Announced for Node {
    fn announced(&self) -> Option<(IpAddr, Mac)> {
        match (&self.flannel.vtep_v4, self.flannel.public_ip) {
            (Announcement::Ready { mac, .. }, Some(addr)) => Some((addr, *mac)),
            _ => None,
        }
    }
}

/// One object as it has become; `None` where it is no more.
#[derive(Clone, Debug)]
pub enum Update {
    /// A Node.
    Node(String, Option<Arc<Node>>),
    /// A Service.
    Service(ObjectName, Option<Arc<Service>>),
    /// An EndpointSlice.
    Slice(ObjectName, Option<Arc<EndpointSlice>>),
}

/// What a backend says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Takes new flows.
    Ready,
    /// Serves nobody for now.
    Unready,
    /// Is going away, and serves the old ones.
    Terminating,
}

/// One backend of a service.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its addresses, IPv4 and IPv6.
    pub addresses: [IpAddr; 2],
    /// The node it runs on.
    pub node: String,
    /// Whether it serves.
    pub condition: Condition,
}

/// A service and its backends.
#[derive(Clone, Debug)]
pub struct Backed {
    /// Its name.
    pub name: ObjectName,
    /// Its ClusterIPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its backends.
    pub members: Vec<Member>,
    /// ClientIP affinity.
    pub affinity: Option<Duration>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// When it was created.
    pub created_at: i64,
}

impl Backed {
    /// Its Service object.
    pub fn object(&self) -> Service {
        let port = |name: &str, protocol| ServicePort {
            name: name.to_owned(),
            protocol,
            port: VIP_PORT,
            node_port: None,
        };
        Service {
            created_at: Some(self.created_at),
            cluster_ips: self.cluster_ips.clone(),
            ports: vec![port("tcp", Protocol::TCP), port("udp", Protocol::UDP)],
            affinity: self.affinity,
            internal_local: self.internal_local,
            ..Service::default()
        }
    }

    /// Its EndpointSlices, one per family.
    pub fn slices(&self) -> [(ObjectName, EndpointSlice); 2] {
        [(0, "v4"), (1, "v6")].map(|(family, suffix)| {
            let name = self.name.beside(&format!("{}-{suffix}", self.name.name));
            let port = |name: &str, protocol, port| EndpointPort { name: name.to_owned(), protocol, port };
            let endpoint = |member: &Member| Endpoint {
                addr: member.addresses[family],
                node: Some(member.node.clone()),
                ready: member.condition == Condition::Ready,
                serving: member.condition != Condition::Unready,
                terminating: member.condition == Condition::Terminating,
                hints: None,
            };
            let slice = EndpointSlice {
                service: Some(self.name.name.to_string()),
                ipv6: family == 1,
                ports: vec![port("tcp", Protocol::TCP, TCP_PORT), port("udp", Protocol::UDP, UDP_PORT)],
                endpoints: self.members.iter().map(endpoint).collect(),
            };
            (name, slice)
        })
    }
}

/// Applies `update` to `state`.
pub fn apply(state: &mut ClusterState, update: &Update) {
    fn set<K: Ord + Clone, V>(
        objects: &mut std::collections::BTreeMap<K, Arc<V>>,
        name: &K,
        object: &Option<Arc<V>>,
    ) {
        match object {
            Some(object) => objects.insert(name.clone(), Arc::clone(object)),
            None => objects.remove(name),
        };
    }
    match update {
        Update::Node(name, node) => set(&mut state.nodes, name, node),
        Update::Service(name, service) => set(&mut state.services, name, service),
        Update::Slice(name, slice) => set(&mut state.endpoint_slices, name, slice),
    }
}
