//! What this program needs of the host around its device: addresses, routes, settings, filter rules.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::IpNet;

use crate::wire::flow::Vip;

/// An address family of the Internet protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub fn of(address: &IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// One address of one interface of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// Interface name.
    pub interface: String,
    /// Interface index.
    pub index: u32,
    /// The address.
    pub address: IpAddr,
    /// Length of its on-link prefix, in bits.
    pub prefix_len: u8,
    /// MTU of the interface, in bytes.
    pub mtu: u32,
}

/// An interface and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddresses {
    /// Interface name.
    pub name: String,
    /// Interface index.
    pub index: u32,
    /// MTU, in bytes.
    pub mtu: u32,
    /// Addresses of the asked family that are not link-local, in the kernel's order.
    pub addresses: Vec<IpAddr>,
}

/// Destinations of packets that the host takes into the overlay device, though no route of ours leads there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entrances {
    /// Ports of this host's own addresses: their packets are sent to the family's
    /// [`HostPlan::node_port_vips`], and answers come from the address that was asked.
    pub node_ports: BTreeSet<Vip>,
    /// Ports of addresses that are not this host's: taken in as they are.
    pub external: BTreeSet<Vip>,
    /// Those of both whose backends see the client's address: the host brings their answers back to the device.
    pub kept: BTreeSet<Vip>,
}

impl Entrances {
    /// Whether packets have to be told by their destination, or their connection, that no route leads into the device.
    pub fn are_steered(&self) -> bool {
        !self.external.is_empty() || !self.kept.is_empty()
    }

    /// Whether both ask the host for the same rules, whatever the elements of its sets.
    pub fn are_ruled_as(&self, other: &Self) -> bool {
        let rules = |it: &Self| (it.are_steered(), it.node_ports.is_empty());
        rules(self) == rules(other)
    }
}

/// Everything the host is asked for. [`HostState::apply`](super::HostState::apply) does it, and undoes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// The overlay device, which exists.
    pub device: String,
    /// MTU of the device, in bytes.
    pub mtu: u32,
    /// Packets the device queues before it drops at the tail.
    pub txqueuelen: u32,
    /// Addresses of the device: each podCIDR's base, as /32 or /128. The first of a family is the preferred
    /// source of the routes of that family.
    pub addresses: Vec<IpNet>,
    /// What is routed into the device: cluster CIDRs, service CIDRs, source VIPs.
    pub routes: Vec<IpNet>,
    /// Own podCIDRs: unreachable at the highest metric, so that a packet for a pod whose bridge is absent does
    /// not return into the device for ever.
    pub pod_cidrs: Vec<IpNet>,
    /// Destinations toward which nothing is masqueraded.
    pub cluster_cidrs: Vec<IpNet>,
    /// The source VIPs, whose flows to addresses outside the cluster the host masquerades.
    pub source_vips: Vec<IpAddr>,
    /// The addresses that stand for this host's own at its node ports, at most one a family.
    pub node_port_vips: Vec<IpAddr>,
    /// What the host takes into the device beside what is routed there.
    pub entrances: Entrances,
    /// Whether what pods send to addresses outside the cluster is masqueraded (flannel's `--ip-masq`).
    pub masquerades_pods: bool,
    /// The VXLAN port: pods of this node may not send to it (E5).
    pub vtep_port: u16,
    /// Settings of the host as (path below /proc/sys, value). What they were is restored at exit.
    pub sysctls: Vec<(String, String)>,
    /// Where the previous values are kept until they are restored, so that the next run can restore them after
    /// a crash: a file on a file system that a reboot clears.
    pub state_file: Option<PathBuf>,
}

impl HostPlan {
    /// Whether anything in the plan is of that family.
    pub fn has(&self, family: Family) -> bool {
        self.addresses.iter().chain(&self.routes).any(|net| Family::of(&net.addr()) == family)
    }

    /// The families of which anything is in the plan.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        [Family::V4, Family::V6].into_iter().filter(|family| self.has(*family))
    }

    /// The settings routing through the device needs. `net/ipv6/conf/all/forwarding` makes the host ignore
    /// router advertisements where `accept_ra` is 1: a host that takes its default route from them needs 2.
    ///
    /// `rp_filter` is 2 (loose) because the kernel takes the larger of it and `conf/all`, and a strict filter
    /// would drop what peers send from their node addresses (E2).
    pub fn forwarding_sysctls(device: &str, ipv4: bool, ipv6: bool) -> Vec<(String, String)> {
        let mut sysctls = Vec::new();
        if ipv4 {
            sysctls.push(("net/ipv4/ip_forward".to_owned(), "1".to_owned()));
            sysctls.push((format!("net/ipv4/conf/{device}/rp_filter"), "2".to_owned()));
        }
        if ipv6 {
            sysctls.push(("net/ipv6/conf/all/forwarding".to_owned(), "1".to_owned()));
        }
        sysctls
    }
}

/// Why the host could not be set up or restored.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The process lacks a privilege.
    #[error(
        "{action}: not permitted; run as root or give the process CAP_NET_ADMIN (on Windows: as Administrator or LocalSystem)"
    )]
    NotPermitted {
        /// What was attempted.
        action: String,
    },
    /// The interface is not there.
    #[error("no interface is named {name}")]
    NoInterface {
        /// The name.
        name: String,
    },
    /// The host has such a route already.
    #[error(
        "the host has a route to {route} already, so it is not replaced: remove it (`ip route delete {route}`), or stop what made it (flanneld?)"
    )]
    RouteTaken {
        /// The destination.
        route: IpNet,
    },
    /// Another run of this program manages the host.
    #[error("another windlass manages this host's routes and filter rules: stop it first")]
    Busy,
    /// The nft program is not there.
    #[error("the program `nft` is missing: install the package nftables")]
    NoNft,
    /// The nft program refused the rules.
    #[error("nft refused the rules: {message}")]
    Nft {
        /// What it said.
        message: String,
    },
    /// A setting has a path that leaves /proc/sys.
    #[error("\"{path}\" is not a path below /proc/sys")]
    BadSysctl {
        /// The path.
        path: String,
    },
    /// A name or address in the plan cannot be used.
    #[error("{what}")]
    BadPlan {
        /// What and why.
        what: String,
    },
    /// Not done on this platform.
    #[error("{action}: not supported on this platform; do it by hand")]
    Unsupported {
        /// What would have to be done.
        action: String,
    },
    /// Several steps failed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Several(Vec<LinkError>),
    /// The system refused for a reason of its own.
    #[error("{action}: {source}")]
    System {
        /// What was attempted.
        action: String,
        /// The system's reason.
        source: io::Error,
    },
}

impl LinkError {
    /// Names what was attempted in an error of the system.
    pub fn system(action: impl Into<String>, source: io::Error) -> Self {
        let action = action.into();
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::NotPermitted { action };
        }
        Self::System { action, source }
    }

    /// Nothing, the only error, or all of them.
    pub fn collect(mut errors: Vec<LinkError>) -> Result<(), LinkError> {
        match errors.len() {
            0 => Ok(()),
            1 => Err(errors.remove(0)),
            _ => Err(Self::Several(errors)),
        }
    }
}
