//! Peers: what flannel programs into the kernel for each of them.
//!
//! Per family of a peer: neighbor podCIDR.base to VtepMAC, FDB VtepMAC to public IP and port, route podCIDR via
//! podCIDR.base.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use ipnet::IpNet;
use prefix_trie::joint::JointPrefixMap;
use windlass_dataplane::tables::{Draft, NextHop, RemoteVtep, RouteTable};
use windlass_dataplane::wire::ethernet::Mac;

use super::claims::Claims;
use crate::cluster::{Announcement, ClusterState, Node, Problem};
use crate::node::NodeSettings;

/// The name of a node.
type Name = Arc<str>;

/// Age, then name: of those who want the same, the first in this order has it.
type Rank = (Option<i64>, Name);

/// The peers as they were compiled last, and what is to be compiled again.
///
/// Of two nodes that want overlapping podCIDRs or one VtepMAC the older has it, and one that gets nothing does not
/// stand in a third one's way. So what a change bears on is found by following who wants the same, from node to
/// node; all of these are withdrawn and decided again, in the order of their age. Nobody else is concerned.
#[derive(Clone, Debug, Default)]
pub(super) struct Peers {
    macs: Claims<Mac, Name>,
    pod_cidrs: JointPrefixMap<IpNet, Vec<Name>>,
    holders: Holders,
    /// What each peer has in the tables.
    reachable: HashMap<Name, Vec<Reachable>>,
    /// What was left out of nodes, by those of which something was.
    problems: BTreeMap<Rank, Vec<Problem>>,
    pending: HashSet<Name>,
}

/// One family of a peer that can be reached.
#[derive(Clone, Debug)]
struct Reachable {
    pod_cidr: IpNet,
    mac: Mac,
    addr: IpAddr,
}

impl Peers {
    /// Notes that a node has changed.
    pub(super) fn changed(&mut self, name: &str, before: Option<&Node>, after: Option<&Node>) {
        let name = Name::from(name);
        self.pending.insert(name.clone());
        if let Some(node) = before {
            let rivals: Vec<_> = self.rivals(node).cloned().collect();
            self.pending.extend(rivals);
            self.problems.remove(&(node.created_at, name.clone()));
            for mac in announced_macs(node) {
                self.macs.remove(&mac, &name);
            }
            for cidr in &node.pod_cidrs {
                if let Some(names) = self.pod_cidrs.get_mut(cidr) {
                    names.retain(|known| *known != name);
                    if names.is_empty() {
                        self.pod_cidrs.remove(cidr);
                    }
                }
            }
        }
        if let Some(node) = after {
            for mac in announced_macs(node) {
                self.macs.add(mac, name.clone());
            }
            for cidr in &node.pod_cidrs {
                self.pod_cidrs.entry(*cidr).or_default().push(name.clone());
            }
        }
    }

    /// Notes that these nodes are to be compiled again.
    pub(super) fn reconsider<'a>(&mut self, names: impl Iterator<Item = &'a String>) {
        self.pending.extend(names.map(|name| Name::from(name.as_str())));
    }

    /// The names of all nodes that want something of what `node` wants, its own among them.
    fn rivals<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = &'a Name> {
        let with_a_mac = announced_macs(node).flat_map(|mac| self.macs.of(&mac));
        let with_a_range = node.pod_cidrs.iter().flat_map(|cidr| {
            let wider = self.pod_cidrs.cover_values(cidr);
            let narrower = self.pod_cidrs.children(cidr).map(|(_, names)| names);
            wider.chain(narrower).flatten()
        });
        with_a_mac.chain(with_a_range)
    }

    /// The names of all nodes that the pending ones bear on, and the nodes that are there.
    fn affected<'a>(&mut self, state: &'a ClusterState) -> Vec<(Name, Option<&'a Node>)> {
        let mut found = std::mem::take(&mut self.pending);
        let mut unseen: Vec<_> = found.iter().cloned().collect();
        let mut affected = Vec::with_capacity(unseen.len());
        while let Some(name) = unseen.pop() {
            let node = state.nodes.get(&*name).map(Arc::as_ref);
            for rival in node.into_iter().flat_map(|node| self.rivals(node)) {
                if !found.contains(rival) {
                    found.insert(rival.clone());
                    unseen.push(rival.clone());
                }
            }
            affected.push((name, node));
        }
        affected
    }

    /// Takes what our own node has out of the peers' reach.
    pub(super) fn hold_own(&mut self, settings: &NodeSettings) {
        for cidr in &settings.pod_cidrs {
            self.holders.hold(*cidr, settings.node.as_str().into());
        }
    }

    /// Takes everything of all peers out of the tables, and gives back what our own node held.
    pub(super) fn withdraw_all(
        &mut self,
        settings: &NodeSettings,
        own_routes: &RouteTable,
        draft: &mut Draft,
    ) {
        for (_, families) in std::mem::take(&mut self.reachable) {
            self.withdraw(families, settings, own_routes, draft);
        }
        self.problems.clear();
        self.holders = Holders::default();
    }

    fn withdraw(
        &mut self,
        families: Vec<Reachable>,
        settings: &NodeSettings,
        own_routes: &RouteTable,
        draft: &mut Draft,
    ) {
        for family in families {
            self.holders.release(family.pod_cidr);
            draft.remove_neighbor(settings.vni, family.pod_cidr.network());
            draft.remove_vtep(settings.vni, family.mac);
            match own_routes.get(family.pod_cidr) {
                Some(next_hop) => draft.insert_route(family.pod_cidr, next_hop),
                None => draft.remove_route(family.pod_cidr),
            }
        }
    }

    /// Compiles the peers that changes bear on.
    pub(super) fn compile(
        &mut self,
        state: &ClusterState,
        settings: &NodeSettings,
        own_routes: &RouteTable,
        draft: &mut Draft,
    ) {
        let affected = self.affected(state);
        for (name, _) in &affected {
            if let Some(families) = self.reachable.remove(name) {
                self.withdraw(families, settings, own_routes, draft);
            }
        }
        let peers = affected.into_iter().filter(|(name, _)| **name != *settings.node);
        let mut nodes: Vec<(Rank, &Node)> =
            peers.filter_map(|(name, node)| node.map(|node| ((node.created_at, name), node))).collect();
        nodes.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (rank, node) in nodes {
            let (families, problems) = self.node(settings, &rank.1, node, draft);
            if !families.is_empty() {
                self.reachable.insert(rank.1.clone(), families);
            }
            match problems.is_empty() {
                true => drop(self.problems.remove(&rank)),
                false => drop(self.problems.insert(rank, problems)),
            }
        }
    }

    /// Puts into the tables of a node what can be reached, and tells what cannot.
    fn node(
        &mut self,
        settings: &NodeSettings,
        name: &Name,
        node: &Node,
        draft: &mut Draft,
    ) -> (Vec<Reachable>, Vec<Problem>) {
        let (mut families, mut problems) = (Vec::new(), Vec::new());
        let mut refuse = |text| problems.push(Problem::new(format!("Node {name}"), text));
        if let Some(reason) = unusable(node) {
            refuse(format!("{reason}; it is skipped until that changes"));
            return (families, problems);
        }
        for cidr in &node.pod_cidrs {
            match self.family(settings, name, node, *cidr, draft) {
                Ok(family) => families.push(family),
                Err(reason) => refuse(format!("podCIDR {cidr} is not reachable: {reason}")),
            }
        }
        for family in &families {
            let gateway = family.pod_cidr.network();
            self.holders.hold(family.pod_cidr, name.clone());
            draft.insert_neighbor(settings.vni, gateway, family.mac);
            draft.insert_route(family.pod_cidr, NextHop::Remote { vni: settings.vni, gateway });
            if draft.tables().fdb.lookup(settings.vni, family.mac).is_none() {
                let mut vtep = RemoteVtep::new(&**name, SocketAddr::new(family.addr, settings.port));
                vtep.prefixes = families.iter().map(|family| family.pod_cidr).collect();
                vtep.addresses = node.internal_ips.iter().chain(&node.external_ips).copied().collect();
                draft.insert_vtep(settings.vni, family.mac, vtep);
            }
        }
        (families, problems)
    }

    /// What was left out of all nodes, the oldest first.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.values().flatten().cloned().collect()
    }

    fn family(
        &self,
        settings: &NodeSettings,
        name: &str,
        node: &Node,
        pod_cidr: IpNet,
        draft: &Draft,
    ) -> Result<Reachable, String> {
        let ipv6 = pod_cidr.addr().is_ipv6();
        if let Some(holder) = self.holders.overlapping(pod_cidr) {
            return Err(format!(
                "node {holder} has it, or a part of it, and keeps it; {}",
                remedy_of_twins(name, holder)
            ));
        }
        if !settings.cluster_cidrs.iter().any(|cluster| cluster.contains(&pod_cidr)) {
            return Err("it is outside the cluster CIDR".to_owned());
        }
        let mac = mac(settings, node, ipv6)?;
        let addr = underlay_addr(settings, node, ipv6)?;
        if settings.mac_v4 == Some(mac) || settings.mac_v6 == Some(mac) {
            return Err(format!("its VtepMAC {mac} is our own"));
        }
        match draft.tables().fdb.lookup(settings.vni, mac) {
            Some(other) if other.node != name => {
                Err(format!("its VtepMAC {mac} is that of node {}, which is older", other.node))
            }
            _ => Ok(Reachable { pod_cidr, mac, addr }),
        }
    }
}

fn announced_macs(node: &Node) -> impl Iterator<Item = Mac> {
    [&node.flannel.vtep_v4, &node.flannel.vtep_v6].into_iter().filter_map(|announcement| match announcement {
        Announcement::Ready { mac, .. } => Some(*mac),
        _ => None,
    })
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

/// What to do about two nodes of which only one can have a podCIDR.
pub(crate) fn remedy_of_twins(younger: &str, older: &str) -> String {
    format!(
        "kubectl delete node {younger} (or {older}, if that one is wrong), and let it join again for a podCIDR of its own"
    )
}

/// Who has which podCIDR: of two nodes with one, the older keeps it (F11). Held ranges never overlap.
#[derive(Clone, Debug, Default)]
struct Holders(BTreeMap<IpAddr, (IpNet, Name)>);

impl Holders {
    fn hold(&mut self, cidr: IpNet, node: Name) {
        self.0.insert(cidr.network(), (cidr, node));
    }

    fn release(&mut self, cidr: IpNet) {
        self.0.remove(&cidr.network());
    }

    fn overlapping(&self, cidr: IpNet) -> Option<&str> {
        let (_, (last, node)) = self.0.range(..=cidr.broadcast()).next_back()?;
        (last.contains(&cidr) || cidr.contains(last)).then_some(node)
    }
}
