//! Nodes on one wire: the worked example's underlay 192.168.1.0/24 and fd00:1::/64, MTU 1500.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Context, Result};

use crate::api_server::ApiServer;
use crate::netns::Netns;
use crate::objects::Objects;

/// The VNI of the worked example.
pub const VNI: u32 = 4096;
/// The VXLAN port of the worked example.
pub const VXLAN_PORT: u16 = 4789;
/// MTU of the underlay.
pub const UNDERLAY_MTU: u32 = 1500;
/// MTU of the overlay and of pods, as flannel reckons it for both families.
pub const OVERLAY_MTU: u32 = 1450;
/// All pods, IPv4.
pub const CLUSTER_CIDR: &str = "10.244.0.0/16";
/// All pods, IPv6.
pub const CLUSTER_CIDR_V6: &str = "fd00:244::/48";
/// All service VIPs, IPv4.
pub const SERVICE_CIDR: &str = "10.96.0.0/12";
/// All service VIPs, IPv6.
pub const SERVICE_CIDR_V6: &str = "fd00:96::/112";

/// Where the API server is, if there is one.
const API_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 168, 1, 2)), 6443);

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Both families, to loop over.
pub const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// What the cluster knows of one node.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Name of the Node object.
    pub name: &'static str,
    /// Underlay address, IPv4.
    pub address: Ipv4Addr,
    /// Underlay address, IPv6.
    pub address_v6: Ipv6Addr,
    /// MAC of the IPv4 VTEP.
    pub vtep_mac: &'static str,
    /// MAC of the IPv6 VTEP: flannel gives each family its own.
    pub vtep_mac_v6: &'static str,
    /// Third octet of the IPv4 podCIDR and fourth group of the IPv6 one.
    pub subnet: u8,
}

impl NodeSpec {
    /// The worked example's own node.
    #[must_use]
    pub fn first() -> Self {
        Self {
            name: "node-40",
            address: Ipv4Addr::new(192, 168, 1, 40),
            address_v6: Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0x40),
            vtep_mac: "ce:7a:e5:af:6a:e9",
            vtep_mac_v6: "ce:7a:e5:af:6a:ea",
            subnet: 0,
        }
    }

    /// The worked example's peer.
    #[must_use]
    pub fn second() -> Self {
        Self {
            name: "node-51",
            address: Ipv4Addr::new(192, 168, 1, 51),
            address_v6: Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0x51),
            vtep_mac: "00:15:5d:3c:3e:3c",
            vtep_mac_v6: "00:15:5d:3c:3e:3d",
            subnet: 2,
        }
    }

    /// A further node beside the worked example.
    #[must_use]
    pub fn third() -> Self {
        Self {
            name: "node-62",
            address: Ipv4Addr::new(192, 168, 1, 62),
            address_v6: Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0x62),
            vtep_mac: "3a:11:22:33:44:62",
            vtep_mac_v6: "3a:11:22:33:44:63",
            subnet: 3,
        }
    }

    /// The underlay address of one family.
    #[must_use]
    pub fn underlay(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.address.into(),
            Family::V6 => self.address_v6.into(),
        }
    }

    /// The VTEP MAC of one family.
    #[must_use]
    pub fn mac(&self, family: Family) -> &'static str {
        match family {
            Family::V4 => self.vtep_mac,
            Family::V6 => self.vtep_mac_v6,
        }
    }

    /// The podCIDR's base address, which is the VTEP's own address.
    #[must_use]
    pub fn pod_base(&self, family: Family) -> IpAddr {
        match family {
            Family::V4 => Ipv4Addr::new(10, 244, self.subnet, 0).into(),
            Family::V6 => Ipv6Addr::new(0xfd00, 0x244, 0, u16::from(self.subnet), 0, 0, 0, 0).into(),
        }
    }

    /// The podCIDR's first host address, which is cni0's.
    #[must_use]
    pub fn gateway(&self, family: Family) -> IpAddr {
        match self.pod_base(family) {
            IpAddr::V4(base) => Ipv4Addr::from(u32::from(base) + 1).into(),
            IpAddr::V6(base) => Ipv6Addr::from(u128::from(base) + 1).into(),
        }
    }

    /// The podCIDR.
    #[must_use]
    pub fn pod_cidr(&self, family: Family) -> String {
        match family {
            Family::V4 => format!("{}/24", self.pod_base(family)),
            Family::V6 => format!("{}/64", self.pod_base(family)),
        }
    }
}

/// A node's namespace on the wire.
#[derive(Debug)]
pub struct Host {
    /// The namespace; its underlay device is `eth0`.
    pub netns: Netns,
    /// What the cluster knows of the node.
    pub spec: NodeSpec,
}

/// The wire and the nodes on it.
#[derive(Debug)]
pub struct Topology {
    hosts: Vec<Host>,
    wire: Netns,
}

impl Topology {
    /// Joins one namespace per node by a bridge in a namespace of its own.
    ///
    /// # Errors
    /// When a namespace, device or address cannot be made.
    pub fn new(specs: impl IntoIterator<Item = NodeSpec>) -> Result<Self> {
        let wire = Netns::new("wire")?;
        wire.ip("link add br0 type bridge stp_state 0 forward_delay 0")?;
        wire.ip("link set br0 up")?;
        let plugged = specs.into_iter().enumerate().map(|(port, spec)| plug(&wire, port, spec));
        Ok(Self { hosts: plugged.collect::<Result<_>>()?, wire })
    }

    /// The worked example's two nodes.
    ///
    /// # Errors
    /// As [`Topology::new`].
    pub fn pair() -> Result<Self> {
        Self::new([NodeSpec::first(), NodeSpec::second()])
    }

    /// A stand-in for the API server on the wire, where every node reaches it without any overlay.
    ///
    /// # Errors
    /// When it cannot be started there.
    pub fn serve_api(&self, objects: &Objects) -> Result<ApiServer> {
        self.wire.ip(&format!("addr add {}/24 dev br0", API_SERVER.ip()))?;
        ApiServer::start_in(&self.wire, API_SERVER, objects)
    }

    /// The namespace of the bridge that joins the nodes.
    #[must_use]
    pub fn wire(&self) -> &Netns {
        &self.wire
    }

    /// The node at `index`, in the order given.
    ///
    /// # Errors
    /// When there are fewer nodes.
    pub fn host(&self, index: usize) -> Result<&Host> {
        self.hosts.get(index).with_context(|| format!("no node {index} on the wire"))
    }

    /// What the cluster knows of every node.
    #[must_use]
    pub fn specs(&self) -> Vec<NodeSpec> {
        self.hosts.iter().map(|host| host.spec.clone()).collect()
    }
}

fn plug(wire: &Netns, port: usize, spec: NodeSpec) -> Result<Host> {
    let netns = Netns::new(spec.name)?;
    let outside = wire.name();
    netns.ip(&format!("link add eth0 mtu {UNDERLAY_MTU} type veth peer name p{port} netns {outside}"))?;
    wire.ip(&format!("link set p{port} mtu {UNDERLAY_MTU} master br0 up"))?;
    netns.ip(&format!("addr add {}/24 dev eth0", spec.address))?;
    netns.ip(&format!("addr add {}/64 dev eth0 nodad", spec.address_v6))?;
    netns.ip("link set eth0 up")?;
    Ok(Host { netns, spec })
}
