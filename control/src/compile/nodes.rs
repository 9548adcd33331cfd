//! Peers: what flannel programs into the kernel for each of them.
//!
//! Per family of a peer: neighbor podCIDR.base to VtepMAC, FDB VtepMAC to public IP and port, route podCIDR via
//! podCIDR.base.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use windlass_dataplane::tables::{Fdb, NeighborTable, NextHop, RemoteVtep, RouteTable};
use windlass_dataplane::wire::ethernet::Mac;

use crate::cluster::{Announcement, ClusterState, Node, Problem};
use crate::node::NodeSettings;

/// The tables of all peers.
#[derive(Default)]
pub(super) struct Peers<'a> {
    pub(super) fdb: Fdb,
    pub(super) neighbors: NeighborTable,
    holders: Holders<'a>,
}

/// Adds every peer's routes to `routes` and returns the other tables.
pub(super) fn compile<'a>(
    state: &'a ClusterState,
    settings: &'a NodeSettings,
    routes: &mut RouteTable,
    problems: &mut Vec<Problem>,
) -> Peers<'a> {
    let mut peers = Peers::default();
    for cidr in &settings.pod_cidrs {
        peers.holders.hold(*cidr, &settings.node);
    }
    let mut nodes: Vec<_> = state.nodes.iter().filter(|(name, _)| **name != settings.node).collect();
    nodes.sort_by_key(|(name, node)| (node.created_at, *name));
    for (name, node) in nodes {
        let mut refuse = |text| problems.push(Problem::new(format!("Node {name}"), text));
        if let Some(reason) = unusable(node) {
            refuse(format!("{reason}; it is skipped until that changes"));
            continue;
        }
        peers.add(settings, routes, name, node, &mut refuse);
    }
    peers
}

/// Why a node as a whole cannot be a peer yet (F13).
fn unusable(node: &Node) -> Option<String> {
    let flannel = &node.flannel;
    if let Some(other) = flannel.backend_type.as_deref().filter(|kind| *kind != "vxlan") {
        return Some(format!("its flannel backend is {other:?}, not vxlan"));
    }
    if flannel.vtep_v4 == Announcement::Missing && flannel.vtep_v6 == Announcement::Missing {
        return Some("it has no flannel annotation backend-data".to_owned());
    }
    node.pod_cidrs.is_empty().then(|| "it has no podCIDR".to_owned())
}

/// One family of a peer that can be reached.
struct Reachable {
    pod_cidr: IpNet,
    mac: Mac,
    addr: IpAddr,
}

impl<'a> Peers<'a> {
    fn add(
        &mut self,
        settings: &NodeSettings,
        routes: &mut RouteTable,
        name: &'a str,
        node: &Node,
        refuse: &mut impl FnMut(String),
    ) {
        let mut families = Vec::with_capacity(node.pod_cidrs.len());
        for cidr in &node.pod_cidrs {
            match self.family(settings, name, node, *cidr) {
                Ok(family) => families.push(family),
                Err(reason) => refuse(format!("podCIDR {cidr} is not reachable: {reason}")),
            }
        }
        for family in &families {
            let gateway = family.pod_cidr.network();
            self.holders.hold(family.pod_cidr, name);
            self.neighbors.insert(settings.vni, gateway, family.mac);
            routes.insert(family.pod_cidr, NextHop::Remote { vni: settings.vni, gateway });
            if self.fdb.lookup(settings.vni, family.mac).is_none() {
                let mut vtep = RemoteVtep::new(name, SocketAddr::new(family.addr, settings.port));
                vtep.prefixes = families.iter().map(|family| family.pod_cidr).collect();
                vtep.addresses = node.internal_ips.iter().chain(&node.external_ips).copied().collect();
                self.fdb.insert(settings.vni, family.mac, Arc::new(vtep));
            }
        }
    }

    fn family(
        &self,
        settings: &NodeSettings,
        name: &str,
        node: &Node,
        pod_cidr: IpNet,
    ) -> Result<Reachable, String> {
        let ipv6 = pod_cidr.addr().is_ipv6();
        if let Some(holder) = self.holders.overlapping(pod_cidr) {
            return Err(format!("node {holder} has it, or a part of it, and keeps it"));
        }
        if !settings.cluster_cidrs.iter().any(|cluster| cluster.contains(&pod_cidr)) {
            return Err("it is outside the cluster CIDR".to_owned());
        }
        let mac = mac(settings, node, ipv6)?;
        let addr = underlay_addr(settings, node, ipv6)?;
        if settings.mac_v4 == Some(mac) || settings.mac_v6 == Some(mac) {
            return Err(format!("its VtepMAC {mac} is our own"));
        }
        match self.fdb.lookup(settings.vni, mac) {
            Some(other) if other.node != name => {
                Err(format!("its VtepMAC {mac} is that of node {}, which is older", other.node))
            }
            _ => Ok(Reachable { pod_cidr, mac, addr }),
        }
    }
}

fn mac(settings: &NodeSettings, node: &Node, ipv6: bool) -> Result<Mac, String> {
    let (announcement, key) = match ipv6 {
        false => (&node.flannel.vtep_v4, "backend-data"),
        true => (&node.flannel.vtep_v6, "backend-v6-data"),
    };
    match announcement {
        Announcement::Missing => Err(format!("there is no annotation {key}")),
        Announcement::NotReady => Err(format!("annotation {key} has an empty VtepMAC: it is not ready yet")),
        Announcement::Malformed(reason) => Err(format!("annotation {key} cannot be read: {reason}")),
        Announcement::Ready { vni, .. } if *vni != settings.vni => {
            Err(format!("annotation {key} announces VNI {vni}, and ours is {}", settings.vni))
        }
        Announcement::Ready { mac, .. } => Ok(*mac),
    }
}

/// Where the VTEP of a family is: flannel sends inner IPv6 over IPv6, and over IPv4 where a node has nothing else.
fn underlay_addr(settings: &NodeSettings, node: &Node, ipv6: bool) -> Result<IpAddr, String> {
    let flannel = &node.flannel;
    let (addr, key) = match ipv6 {
        false => (flannel.public_ip, "public-ip"),
        true => (flannel.public_ipv6.or(flannel.public_ip), "public-ipv6"),
    };
    let addr = addr.ok_or_else(|| format!("there is no annotation {key}"))?;
    if settings.addresses.contains(&addr) {
        return Err(format!("its underlay address {addr} is our own"));
    }
    let mut overlay = settings.cluster_cidrs.iter().chain(&settings.service_cidrs);
    if let Some(cidr) = overlay.find(|cidr| cidr.contains(&addr)) {
        return Err(format!("its underlay address {addr} is inside {cidr}: an encapsulation loop"));
    }
    if !settings.underlay.iter().any(|choice| choice.addr.is_ipv6() == addr.is_ipv6()) {
        return Err(format!(
            "we have no underlay address of the family of {addr}; give one with --underlay-addr"
        ));
    }
    Ok(addr)
}

/// Who has which podCIDR: of two nodes with one, the older keeps it (F11). Held ranges never overlap.
#[derive(Default)]
struct Holders<'a>(BTreeMap<IpAddr, (IpNet, &'a str)>);

impl<'a> Holders<'a> {
    fn hold(&mut self, cidr: IpNet, node: &'a str) {
        self.0.insert(cidr.network(), (cidr, node));
    }

    fn overlapping(&self, cidr: IpNet) -> Option<&'a str> {
        let (_, (last, node)) = self.0.range(..=cidr.broadcast()).next_back()?;
        (last.contains(&cidr) || cidr.contains(last)).then_some(*node)
    }
}
