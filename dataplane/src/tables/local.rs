//! This node, as the engine must know it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use foldhash::HashMap;
use ipnet::IpNet;

use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// Our end of one VNI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalVtep {
    /// The MAC that carries inner IPv4, if we have an IPv4 podCIDR.
    pub mac_v4: Option<Mac>,
    /// The MAC that carries inner IPv6: flannel gives each family its own on the same VNI.
    pub mac_v6: Option<Mac>,
}

impl LocalVtep {
    /// Whether `mac` is one of ours; peers may use either for either family.
    pub fn owns(&self, mac: Mac) -> bool {
        self.mac_v4 == Some(mac) || self.mac_v6 == Some(mac)
    }
}

/// Addresses and limits of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Our name in the cluster.
    pub node: String,
    /// The VNIs we serve.
    pub vteps: HashMap<Vni, LocalVtep>,
    /// Our own addresses: the underlay's and the podCIDR bases.
    pub addresses: Vec<IpAddr>,
    /// Base address of our IPv4 podCIDR: the overlay device's address and the source of what we say to peers.
    pub base_v4: Option<Ipv4Addr>,
    /// Base address of our IPv6 podCIDR.
    pub base_v6: Option<Ipv6Addr>,
    /// Our podCIDRs: their pods are behind the overlay device.
    pub pod_cidrs: Vec<IpNet>,
    /// Where all pods are.
    pub cluster_cidrs: Vec<IpNet>,
    /// Where ClusterIPs are allocated: an address in them that no service has is dropped.
    pub service_cidrs: Vec<IpNet>,
    /// What a VIP flow's source becomes when its reply would otherwise bypass us.
    pub source_vip_v4: Ipv4Addr,
    /// The same for IPv6.
    pub source_vip_v6: Ipv6Addr,
    /// MTU of the overlay device in bytes.
    pub overlay_mtu: u32,
}

impl Default for Local {
    fn default() -> Self {
        Self {
            node: String::new(),
            vteps: HashMap::default(),
            addresses: Vec::new(),
            base_v4: None,
            base_v6: None,
            pod_cidrs: Vec::new(),
            cluster_cidrs: Vec::new(),
            service_cidrs: Vec::new(),
            source_vip_v4: DEFAULT_SOURCE_VIP_V4,
            source_vip_v6: DEFAULT_SOURCE_VIP_V6,
            overlay_mtu: 1450,
        }
    }
}

impl Local {
    /// The source VIP of `family_of`'s family.
    pub fn source_vip(&self, family_of: IpAddr) -> IpAddr {
        match family_of {
            IpAddr::V4(_) => self.source_vip_v4.into(),
            IpAddr::V6(_) => self.source_vip_v6.into(),
        }
    }

    /// The podCIDR base of `family_of`'s family.
    pub fn base(&self, family_of: IpAddr) -> Option<IpAddr> {
        match family_of {
            IpAddr::V4(_) => self.base_v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.base_v6.map(IpAddr::V6),
        }
    }

    /// Whether `addr` is a ClusterIP's by its range.
    pub fn in_service_cidr(&self, addr: IpAddr) -> bool {
        self.service_cidrs.iter().any(|cidr| cidr.contains(&addr))
    }

    /// Whether `client` is a pod or this node, and not a client outside the cluster.
    pub fn is_inside(&self, client: IpAddr) -> bool {
        self.in_cluster_cidr(client) || self.addresses.contains(&client)
    }

    /// Whether `addr` is a pod's by its range.
    pub fn in_cluster_cidr(&self, addr: IpAddr) -> bool {
        self.cluster_cidrs.iter().any(|cidr| cidr.contains(&addr))
    }
}

/// The default source VIP: link-local, on no interface.
pub const DEFAULT_SOURCE_VIP_V4: Ipv4Addr = Ipv4Addr::new(169, 254, 77, 1);

/// The default IPv6 source VIP: a fixed unique local address (RFC 4193).
pub const DEFAULT_SOURCE_VIP_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0x6e64, 0x6c61, 0x7373, 0, 0, 0, 1);
