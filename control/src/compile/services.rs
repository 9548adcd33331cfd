//! Services: which backends a VIP has, by kube-proxy's rules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use windlass_dataplane::tables::{Service as TableService, ServiceTable, Vip, WhenEmpty};

use crate::cluster::{
    ClusterState, Endpoint, EndpointSlice, Node, ObjectName, Problem, SCTP, Service, ServicePort,
};
use crate::node::NodeSettings;

/// Services with one of these labels belong to another proxy, or to nobody.
const NOT_OURS: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

/// Compiles the ClusterIPs of all services.
pub(super) fn compile(
    state: &ClusterState,
    settings: &NodeSettings,
    problems: &mut Vec<Problem>,
) -> ServiceTable {
    let slices = by_service(state);
    let mut table = ServiceTable::default();
    let nodes: HashSet<IpAddr> = state.nodes.values().flat_map(node_addresses).collect();
    let mut sctp = Vec::new();
    let mut services: Vec<_> = state.services.iter().filter(|(_, service)| is_ours(service)).collect();
    services.sort_by_key(|(name, service)| (service.created_at, *name));
    for (name, service) in services {
        let slices =
            slices.get(&(name.namespace.as_str(), name.name.as_str())).map_or(&[][..], Vec::as_slice);
        let mut refuse = |text| problems.push(Problem::new(format!("Service {name}"), text));
        if service.ports.iter().any(|port| port.protocol == SCTP) {
            sctp.push(name.to_string());
        }
        for addr in &service.cluster_ips {
            if let Err(reason) = may_be_vip(settings, &nodes, *addr) {
                refuse(format!("ClusterIP {addr} is passed over: {reason}"));
                continue;
            }
            for port in service.ports.iter().filter(|port| port.protocol != SCTP) {
                let vip = Vip { addr: *addr, port: port.port, protocol: port.protocol };
                if let Some(other) = table.lookup(vip) {
                    refuse(format!("{vip} is passed over: {} has it, and is older", other.name));
                    continue;
                }
                let service = one(settings, name, service, port, vip, slices, &mut refuse);
                table.insert(Arc::new(service));
            }
        }
    }
    if !sctp.is_empty() {
        let text = format!("SCTP ports are passed over, in {}", sctp.join(", "));
        problems.push(Problem::new("Services", text));
    }
    table
}

fn is_ours(service: &Service) -> bool {
    !service.external_name && !NOT_OURS.iter().any(|label| service.labels.contains_key(*label))
}

fn by_service(state: &ClusterState) -> HashMap<(&str, &str), Vec<&EndpointSlice>> {
    let mut slices: HashMap<_, Vec<_>> = HashMap::new();
    for (name, slice) in &state.endpoint_slices {
        if let Some(service) = &slice.service {
            slices.entry((name.namespace.as_str(), service.as_str())).or_default().push(slice);
        }
    }
    slices
}

fn may_be_vip(settings: &NodeSettings, nodes: &HashSet<IpAddr>, addr: IpAddr) -> Result<(), String> {
    if let Some(cidr) = settings.cluster_cidrs.iter().find(|cidr| cidr.contains(&addr)) {
        return Err(format!("it is inside the cluster CIDR {cidr}"));
    }
    if settings.addresses.contains(&addr) {
        return Err("it is an address of this node".to_owned());
    }
    if nodes.contains(&addr) {
        return Err("it is an address of a node, whose traffic it would take".to_owned());
    }
    Ok(())
}

/// Where a node can be reached, by its status or as a VTEP.
fn node_addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let flannel = &node.flannel;
    let announced =
        [flannel.public_ip, flannel.public_ipv6, flannel.public_ip_overwrite, flannel.public_ipv6_overwrite];
    node.internal_ips.iter().chain(&node.external_ips).copied().chain(announced.into_iter().flatten())
}

/// One port of one ClusterIP.
fn one(
    settings: &NodeSettings,
    name: &ObjectName,
    service: &Service,
    port: &ServicePort,
    vip: Vip,
    slices: &[&EndpointSlice],
    refuse: &mut impl FnMut(String),
) -> TableService {
    let mut endpoints = endpoints(settings, port, vip, slices);
    endpoints.retain(|backend, _| {
        let loops = settings.service_cidrs.iter().any(|cidr| cidr.contains(&backend.ip()));
        if loops {
            refuse(format!("endpoint {backend} is refused: it is inside the service CIDR"));
        }
        !loops
    });
    let chosen = choose(endpoints.iter().filter(|(_, endpoint)| endpoint.local || !service.internal_local));
    let label = match port.name.as_str() {
        "" => format!("{name}:{}", port.port),
        port => format!("{name}:{port}"),
    };
    let only_remote = chosen.is_empty() && !choose(endpoints.iter()).is_empty();
    let taken: HashSet<_> = chosen.iter().copied().collect();
    let serving = endpoints.iter().filter(|(_, endpoint)| endpoint.serving);
    let mut compiled = TableService::new(label, vip, chosen);
    compiled.draining =
        serving.map(|(backend, _)| *backend).filter(|backend| !taken.contains(backend)).collect();
    compiled.affinity = service.affinity;
    compiled.when_empty = if only_remote { WhenEmpty::Drop } else { WhenEmpty::Reject };
    compiled
}

/// What is known of one backend address: the best that any slice says of it (F5).
#[derive(Clone, Copy, Default)]
struct Merged {
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
}

fn endpoints(
    settings: &NodeSettings,
    port: &ServicePort,
    vip: Vip,
    slices: &[&EndpointSlice],
) -> BTreeMap<SocketAddr, Merged> {
    let mut merged: BTreeMap<SocketAddr, Merged> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.ipv6 == vip.addr.is_ipv6()) {
        let of_port = |number: &&crate::cluster::EndpointPort| {
            number.name == port.name && number.protocol == port.protocol
        };
        for number in slice.ports.iter().filter(of_port) {
            for endpoint in &slice.endpoints {
                let entry = merged.entry(SocketAddr::new(endpoint.addr, number.port)).or_default();
                merge(entry, endpoint, settings);
            }
        }
    }
    merged
}

fn merge(entry: &mut Merged, endpoint: &Endpoint, settings: &NodeSettings) {
    entry.ready |= endpoint.ready;
    entry.serving |= endpoint.serving;
    entry.terminating |= endpoint.terminating;
    entry.local |= endpoint.node.as_ref() == Some(&settings.node);
}

/// The ready ones, or else those that serve while they terminate (F4).
fn choose<'a>(endpoints: impl Iterator<Item = (&'a SocketAddr, &'a Merged)> + Clone) -> Vec<SocketAddr> {
    let ready: Vec<_> =
        endpoints.clone().filter(|(_, endpoint)| endpoint.ready).map(|(backend, _)| *backend).collect();
    if !ready.is_empty() {
        return ready;
    }
    endpoints
        .filter(|(_, endpoint)| endpoint.serving && endpoint.terminating)
        .map(|(backend, _)| *backend)
        .collect()
}
