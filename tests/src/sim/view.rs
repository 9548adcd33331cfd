//! What one node has been told of the cluster, and what follows from it: read off the objects themselves, without
//! anything of the compile step.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use windlass_control::cluster::{ClusterState, EndpointSlice, Node, ObjectName, Service};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use super::cluster::{self, Announced, Update, VIP_PORT};

/// The backends that a VIP may lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backends {
    /// For new flows.
    pub chosen: BTreeSet<SocketAddr>,
    /// For flows that are there already.
    pub serving: BTreeSet<SocketAddr>,
}

/// The objects that a node goes by.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// All of them.
    pub state: ClusterState,
    nodes_of: BTreeMap<IpNet, BTreeSet<String>>,
    nodes_at: BTreeMap<IpAddr, BTreeSet<String>>,
    services_of: BTreeMap<IpAddr, BTreeSet<ObjectName>>,
    slices_of: BTreeMap<ObjectName, BTreeSet<ObjectName>>,
}

impl View {
    /// Takes over one object.
    pub fn apply(&mut self, update: &Update) {
        self.index(update, BTreeSet::remove, BTreeSet::remove);
        cluster::apply(&mut self.state, update);
        self.index(
            update,
            |names, name| names.insert(name.clone()),
            |names, name| names.insert(name.clone()),
        );
    }

    /// Does `nodes` or `objects` to every set of names in which the object stands as it is in the state.
    fn index(
        &mut self,
        update: &Update,
        nodes: fn(&mut BTreeSet<String>, &String) -> bool,
        objects: fn(&mut BTreeSet<ObjectName>, &ObjectName) -> bool,
    ) {
        match update {
            Update::Node(name, _) => {
                let Some(node) = self.state.nodes.get(name) else { return };
                for cidr in &node.pod_cidrs {
                    nodes(self.nodes_of.entry(*cidr).or_default(), name);
                }
                if let Some(addr) = node.flannel.public_ip {
                    nodes(self.nodes_at.entry(addr).or_default(), name);
                }
            }
            Update::Service(name, _) => {
                let Some(service) = self.state.services.get(name) else { return };
                for addr in &service.cluster_ips {
                    objects(self.services_of.entry(*addr).or_default(), name);
                }
            }
            Update::Slice(name, _) => {
                let Some(slice) = self.state.endpoint_slices.get(name) else { return };
                if let Some(service) = &slice.service {
                    let service = name.beside(service);
                    objects(self.slices_of.entry(service).or_default(), name);
                }
            }
        }
    }

    /// Everything that makes this view of `truth`.
    pub fn missing(&self, truth: &ClusterState) -> Vec<Update> {
        use windlass_control::cluster::differences;
        let nodes = differences(&self.state.nodes, &truth.nodes);
        let services = differences(&self.state.services, &truth.services);
        let slices = differences(&self.state.endpoint_slices, &truth.endpoint_slices);
        let nodes = nodes.into_iter().map(|(name, node)| Update::Node(name, node));
        let services = services.into_iter().map(|(name, service)| Update::Service(name, service));
        let slices = slices.into_iter().map(|(name, slice)| Update::Slice(name, slice));
        nodes.chain(services).chain(slices).collect()
    }

    /// The nodes in whose range `addr` lies: more than one while a removal is yet to be heard of.
    pub fn nodes_of(&self, addr: IpAddr) -> impl Iterator<Item = (&String, &Arc<Node>)> {
        let prefix_len = if addr.is_ipv4() { 24 } else { 64 };
        let range = IpNet::new(addr, prefix_len).ok().map(|range| range.trunc());
        let names = range.and_then(|range| self.nodes_of.get(&range)).into_iter().flatten();
        names.filter_map(|name| self.state.nodes.get_key_value(name))
    }

    /// Where packets to `addr` may be sent: underlay address and VTEP MAC.
    pub fn vteps_of(&self, addr: IpAddr) -> Vec<(IpAddr, Mac)> {
        self.nodes_of(addr).filter_map(|(_, node)| node.announced()).collect()
    }

    /// Whether a packet from `source` may come from the node at the underlay address `outer`.
    pub fn may_come_from(&self, outer: IpAddr, source: IpAddr) -> bool {
        let names = self.nodes_at.get(&outer).into_iter().flatten();
        names.filter_map(|name| self.state.nodes.get(name)).any(|node| {
            node.internal_ips.contains(&source) || node.pod_cidrs.iter().any(|cidr| cidr.contains(&source))
        })
    }

    /// The service that `flow` is for, as the node called `own` must see it: of those that want an address, the oldest.
    pub fn backends(&self, own: &str, flow: &FlowKey) -> Option<Backends> {
        if flow.dst_port != VIP_PORT {
            return None;
        }
        let names = self.services_of.get(&flow.dst)?;
        let services = names.iter().filter_map(|name| self.state.services.get_key_value(name));
        let (name, service) = services.min_by_key(|(name, service)| (service.created_at, *name))?;
        Some(self.members(own, name, service, flow))
    }

    fn members(&self, own: &str, name: &ObjectName, service: &Service, flow: &FlowKey) -> Backends {
        #[derive(Default)]
        struct Conditions {
            ready: bool,
            serving: bool,
            terminating: bool,
            local: bool,
        }
        let mut members: BTreeMap<SocketAddr, Conditions> = BTreeMap::new();
        for slice in self.slices(name).filter(|slice| slice.ipv6 == flow.dst.is_ipv6()) {
            let wanted = if flow.protocol == Protocol::TCP { "tcp" } else { "udp" };
            for port in slice.ports.iter().filter(|port| port.name == wanted) {
                for endpoint in &slice.endpoints {
                    let member = members.entry(SocketAddr::new(endpoint.addr, port.port)).or_default();
                    member.ready |= endpoint.ready;
                    member.serving |= endpoint.serving;
                    member.terminating |= endpoint.terminating;
                    member.local |= endpoint.node.as_deref() == Some(own);
                }
            }
        }
        let wanted = |is: fn(&Conditions) -> bool| -> BTreeSet<SocketAddr> {
            let near = |member: &Conditions| member.local || !service.internal_local;
            members.iter().filter(|(_, member)| near(member) && is(member)).map(|(addr, _)| *addr).collect()
        };
        let mut chosen = wanted(|member| member.ready);
        if chosen.is_empty() {
            chosen = wanted(|member| member.serving && member.terminating);
        }
        let serving = members.iter().filter(|(_, member)| member.serving).map(|(addr, _)| *addr);
        Backends { serving: chosen.iter().copied().chain(serving).collect(), chosen }
    }

    fn slices(&self, service: &ObjectName) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        let names = self.slices_of.get(service).into_iter().flatten();
        names.filter_map(|name| self.state.endpoint_slices.get(name))
    }
}
