//! Why things are as they are: which endpoints a service has and why some get nothing, and which node's
//! missing annotation makes a backend unreachable.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use windlass_dataplane::tables::{ClientAddress, ForwardingTables, NextHop, Service, Vip, VipKind};

use super::Origin;
use crate::cluster::{self, ClusterState, Endpoint, EndpointSlice, ObjectName, ServicePort};

/// What an endpoint is to its service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendState {
    /// Takes new flows.
    Ready,
    /// Keeps the flows it has.
    Draining,
    /// Gets nothing.
    Out,
}

/// One endpoint of a service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackendRow {
    /// Its address and port.
    pub addr: SocketAddr,
    /// Its node, when the EndpointSlice says.
    pub node: Option<String>,
    /// Whether it gets packets.
    pub state: BackendState,
    /// Why it is not plainly ready, or cannot be reached.
    pub why: Option<String>,
}

type Named<'a> = (&'a ObjectName, &'a cluster::Service);

/// Services by address and EndpointSlices by service, so that many services are explained in one go.
pub struct Index<'a> {
    state: &'a ClusterState,
    services: HashMap<IpAddr, Vec<Named<'a>>>,
    slices: HashMap<(&'a str, &'a str), Vec<(&'a ObjectName, &'a EndpointSlice)>>,
}

impl<'a> Index<'a> {
    /// The index of a cluster.
    pub fn new(state: &'a ClusterState) -> Self {
        let mut index = Self { state, services: HashMap::new(), slices: HashMap::new() };
        for (name, service) in &state.services {
            let exposure = &service.exposure;
            let addrs = service.cluster_ips.iter().chain(&exposure.external_ips);
            for addr in addrs.chain(&exposure.load_balancer_ips) {
                index.services.entry(*addr).or_default().push((name, service));
            }
        }
        for (name, slice) in &state.endpoint_slices {
            if let Some(service) = &slice.service {
                let key = (&*name.namespace, service.as_str());
                index.slices.entry(key).or_default().push((name, slice));
            }
        }
        index
    }

    /// The Service objects that have this address, whether or not they are served there.
    pub fn services(&self, addr: IpAddr) -> &[Named<'a>] {
        self.services.get(&addr).map_or(&[], Vec::as_slice)
    }

    /// The object and its port that a service of the tables was compiled from, by its name.
    fn port(&self, service: &Service) -> Option<(&'a ObjectName, &'a cluster::Service, &'a ServicePort)> {
        let (name, port) = service.name.rsplit_once(':')?;
        let (namespace, name) = name.split_once('/')?;
        let (name, object) = self.state.services.get_key_value(&ObjectName::new(namespace, name))?;
        let is_it = |known: &&ServicePort| {
            let is_named =
                if known.name.is_empty() { known.port.to_string() == port } else { known.name == port };
            is_named && known.protocol == service.vip.protocol
        };
        object.ports.iter().find(is_it).map(|port| (name, &**object, port))
    }
}

/// What is known of an endpoint.
#[derive(Default)]
struct Known {
    node: Option<String>,
    ready: bool,
    serving: bool,
    terminating: bool,
}

/// All endpoints of a service, in the order of their addresses.
pub fn backends(
    tables: &ForwardingTables,
    origin: &Origin,
    index: &Index<'_>,
    service: &Service,
) -> Vec<BackendRow> {
    let mut known: BTreeMap<SocketAddr, Known> = BTreeMap::new();
    for addr in service.backends.iter().chain(&service.draining) {
        known.entry(*addr).or_default();
    }
    let found = index.port(service);
    if let Some((name, _, port)) = found {
        let key = (&*name.namespace, &*name.name);
        for (_, slice) in index.slices.get(&key).map_or(&[][..], Vec::as_slice) {
            add(&mut known, slice, port, service.vip);
        }
    }
    let only_local = match (service.kind, service.client_address) {
        (VipKind::ClusterIp, _) if found.is_some_and(|(_, object, _)| object.internal_local) => {
            Some("internalTrafficPolicy")
        }
        (_, ClientAddress::Kept) => Some("externalTrafficPolicy"),
        _ => None,
    };
    let row = |(addr, known): (SocketAddr, Known)| {
        let state = state_of(service, addr);
        let because = because(state, &known, only_local, origin, addr);
        let unreachable = unreachable(tables, origin, addr.ip(), known.node.as_deref());
        let why = match (because, unreachable.filter(|_| state != BackendState::Out)) {
            (Some(because), Some(unreachable)) => Some(format!("{because}; {unreachable}")),
            (because, unreachable) => because.or(unreachable),
        };
        BackendRow { addr, node: known.node, state, why }
    };
    known.into_iter().map(row).collect()
}

fn add(known: &mut BTreeMap<SocketAddr, Known>, slice: &EndpointSlice, port: &ServicePort, vip: Vip) {
    if slice.ipv6 != vip.addr.is_ipv6() {
        return;
    }
    for number in slice.ports.iter().filter(|number| number.name == port.name) {
        if number.protocol != port.protocol {
            continue;
        }
        for endpoint in &slice.endpoints {
            let entry = known.entry(SocketAddr::new(endpoint.addr, number.port)).or_default();
            let Endpoint { node, ready, serving, terminating, .. } = endpoint;
            entry.node = entry.node.take().or_else(|| node.clone());
            entry.ready |= ready;
            entry.serving |= serving;
            entry.terminating |= terminating;
        }
    }
}

fn state_of(service: &Service, addr: SocketAddr) -> BackendState {
    if service.backends.binary_search(&addr).is_ok() {
        BackendState::Ready
    } else if service.draining.contains(&addr) {
        BackendState::Draining
    } else {
        BackendState::Out
    }
}

fn because(
    state: BackendState,
    known: &Known,
    only_local: Option<&'static str>,
    origin: &Origin,
    addr: SocketAddr,
) -> Option<String> {
    let elsewhere = only_local.filter(|_| known.node.as_ref() != Some(&origin.settings.node));
    if let Some(policy) = elsewhere.filter(|_| state != BackendState::Ready) {
        return Some(format!("not on this node, and {policy} is Local"));
    }
    let text = match state {
        BackendState::Ready if known.terminating && !known.ready => {
            "terminating but serving: taken since no other is ready"
        }
        BackendState::Ready => return None,
        BackendState::Draining if known.ready => "ready, but its hints mean it for other nodes or zones",
        BackendState::Draining if known.terminating => "terminating: keeps the flows it has",
        BackendState::Draining => "serving but not ready: keeps the flows it has",
        BackendState::Out if known.terminating => "terminating and no longer serving",
        BackendState::Out if origin.settings.service_cidrs.iter().any(|cidr| cidr.contains(&addr.ip())) => {
            "inside the service CIDR: it would loop"
        }
        BackendState::Out => "not ready: its pod fails its readiness probe, or is starting",
    };
    Some(text.to_owned())
}

/// Why a backend cannot be reached although it may be chosen: its node is not in our tables.
pub fn unreachable(
    tables: &ForwardingTables,
    origin: &Origin,
    addr: IpAddr,
    node: Option<&str>,
) -> Option<String> {
    let local = tables.local();
    let to_host =
        !matches!(tables.routes().lookup(addr), Some((_, NextHop::Overlay | NextHop::Remote { .. })));
    if !to_host || !local.in_cluster_cidr(addr) || local.addresses.contains(&addr) {
        return None;
    }
    let by_cidr = || {
        let mut nodes = origin.state.nodes.iter();
        let holds = |node: &cluster::Node| node.pod_cidrs.iter().any(|cidr| cidr.contains(&addr));
        nodes.find(|(_, node)| holds(node)).map(|(name, _)| name.as_str())
    };
    let Some(name) = node.or_else(by_cidr) else {
        return Some(format!(
            "no route to {addr}: no Node has a podCIDR with it; is its Node object missing from the manifests?"
        ));
    };
    if !origin.state.nodes.contains_key(name) {
        return Some(format!("no route to {addr}: its node {name} is not among the Node objects"));
    }
    let subject = format!("Node {name}");
    let said = origin.problems.iter().find(|problem| problem.subject == subject);
    Some(match said {
        Some(problem) => format!("no route to {addr}: node {name}: {}", problem.text),
        None => format!("no route to {addr}: it is in no podCIDR of its node {name}"),
    })
}

/// Why no service answers at an address, one line each.
pub fn no_service(tables: &ForwardingTables, origin: &Origin, vip: Vip) -> Vec<String> {
    let index = Index::new(&origin.state);
    let objects = index.services(vip.addr);
    let mut lines = Vec::new();
    for (name, service) in objects {
        lines.push(format!("Service {name} has the address, with {}", ports(service)));
        let subject = format!("Service {name}");
        let said = origin.problems.iter().filter(|problem| problem.subject == subject);
        lines.extend(said.map(ToString::to_string));
        for label in ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"] {
            if service.labels.contains_key(label) {
                lines.push(format!("its label {label} says that it is not ours to serve"));
            }
        }
    }
    let others = tables.services().iter().filter(|service| service.vip.addr == vip.addr);
    let mut served: Vec<_> = others.map(|service| format!("{} ({})", service.vip, service.name)).collect();
    served.sort();
    // The Service objects have been named with their ports: told again only where not all are served.
    let told: usize = objects.iter().map(|(_, service)| service.ports.len()).sum();
    if !served.is_empty() && served.len() != told {
        lines.push(format!("served there: {}", served.join(", ")));
    }
    if objects.is_empty() {
        lines.push(format!(
            "no Service object has the ClusterIP {}; `kubectl get services -A` tells whether it is gone",
            vip.addr
        ));
    }
    lines
}

fn ports(service: &cluster::Service) -> String {
    let port = |port: &ServicePort| format!("{} {}", port.protocol, port.port);
    let ports: Vec<_> = service.ports.iter().map(port).collect();
    if ports.is_empty() { "no port".to_owned() } else { format!("port {}", ports.join(", ")) }
}
