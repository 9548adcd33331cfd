//! Services: at which addresses they are reached, and how packets to each are treated, by kube-proxy's rules
//! (Kubernetes, pkg/proxy/serviceport.go and pkg/proxy/nftables/proxier.go).

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use windlass_dataplane::tables::{ClientAddress, Draft, Service as TableService, Vip, VipKind};

use super::claims::Claims;
use super::endpoints::Endpoints;
use crate::cluster::{ClusterState, EndpointSlice, Node, ObjectName, Problem, SCTP, Service, ServicePort};
use crate::node::NodeSettings;

/// Services with one of these labels belong to another proxy, or to nobody.
const NOT_OURS: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

/// Age, then name: of those who want a VIP, the first in this order has it.
type Rank = (Option<i64>, ObjectName);

/// The services as they were compiled last, and what is to be compiled again.
#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    /// The slices of each service, by the name of the service.
    slices: HashMap<ObjectName, Vec<(ObjectName, Arc<EndpointSlice>)>>,
    /// Who claims each VIP; the address of a node port is unspecified.
    vips: Claims<Vip, Rank>,
    /// The services that want each address.
    wanted: Claims<IpAddr, ObjectName>,
    /// The nodes at each address.
    nodes: Claims<IpAddr, String>,
    outcomes: HashMap<ObjectName, Outcome>,
    pending: HashSet<ObjectName>,
}

/// What came of one service.
#[derive(Clone, Debug, Default)]
struct Outcome {
    created_at: Option<i64>,
    /// The VIPs it has in the table.
    vips: Vec<Vip>,
    problems: Vec<Problem>,
    has_sctp: bool,
}

impl Services {
    /// Notes that a service has changed.
    pub(super) fn changed(&mut self, name: &ObjectName, before: Option<&Service>, after: Option<&Service>) {
        self.pending.insert(name.clone());
        for address in before.into_iter().flat_map(addresses) {
            self.wanted.remove(&address.addr, name);
        }
        for address in after.into_iter().flat_map(addresses) {
            self.wanted.add(address.addr, name.clone());
        }
        for (service, vip) in before.into_iter().flat_map(claims) {
            self.vips.remove(&vip, &rank(name, service));
            self.pend_claimants(vip);
        }
        for (service, vip) in after.into_iter().flat_map(claims) {
            self.pend_claimants(vip);
            self.vips.add(vip, rank(name, service));
        }
    }

    fn pend_claimants(&mut self, vip: Vip) {
        self.pending.extend(self.vips.of(&vip).iter().map(|(_, name)| name.clone()));
    }

    /// Notes that a node has changed: no service may have its address.
    pub(super) fn node_changed(&mut self, name: &str, before: Option<&Node>, after: Option<&Node>) {
        for addr in before.into_iter().flat_map(node_addresses) {
            self.nodes.remove(&addr, &name.to_owned());
            self.pending.extend(self.wanted.of(&addr).iter().cloned());
        }
        for addr in after.into_iter().flat_map(node_addresses) {
            self.nodes.add(addr, name.to_owned());
            self.pending.extend(self.wanted.of(&addr).iter().cloned());
        }
    }

    /// Notes that an EndpointSlice has changed.
    pub(super) fn slice_changed(
        &mut self,
        name: &ObjectName,
        before: Option<&EndpointSlice>,
        after: Option<Arc<EndpointSlice>>,
    ) {
        if let Some(service) = before.and_then(|slice| service_of(name, slice)) {
            if let Some(slices) = self.slices.get_mut(&service) {
                slices.retain(|(known, _)| known != name);
                if slices.is_empty() {
                    self.slices.remove(&service);
                }
            }
            self.pending.insert(service);
        }
        if let Some((slice, service)) =
            after.and_then(|slice| service_of(name, &slice).map(|service| (slice, service)))
        {
            self.slices.entry(service.clone()).or_default().push((name.clone(), slice));
            self.pending.insert(service);
        }
    }

    /// Notes that these services are to be compiled again.
    pub(super) fn reconsider<'a>(&mut self, names: impl Iterator<Item = &'a ObjectName>) {
        self.pending.extend(names.cloned());
    }

    /// Compiles the services that changes bear on.
    pub(super) fn compile(&mut self, state: &ClusterState, settings: &NodeSettings, draft: &mut Draft) {
        let pending = std::mem::take(&mut self.pending);
        let before = pending.iter().filter_map(|name| self.outcomes.remove(name));
        let mut gone: HashSet<Vip> = before.flat_map(|outcome| outcome.vips).collect();
        for name in pending {
            let Some(service) = state.services.get(&name).filter(|service| is_ours(service)) else {
                continue;
            };
            let outcome = self.service(state, settings, &name, service, draft);
            for vip in &outcome.vips {
                gone.remove(vip);
            }
            self.outcomes.insert(name, outcome);
        }
        for vip in gone {
            draft.remove_service(vip);
        }
    }

    fn service(
        &self,
        state: &ClusterState,
        settings: &NodeSettings,
        name: &ObjectName,
        service: &Service,
        draft: &mut Draft,
    ) -> Outcome {
        let mut outcome = Outcome { created_at: service.created_at, ..Outcome::default() };
        outcome.has_sctp = service.ports.iter().any(|port| port.protocol == SCTP);
        let mut refuse = |text| outcome.problems.push(Problem::new(format!("Service {name}"), text));
        let mut addresses = addresses(service);
        addresses.retain(|address| {
            let verdict = self.may_be_vip(settings, *address);
            verdict.map_err(|reason| refuse(format!("{address} is passed over: {reason}"))).is_ok()
        });
        let slices = self.slices.get(name).map_or(&[][..], Vec::as_slice);
        for (port, ipv6) in served_ports(service).flat_map(|port| [(port, false), (port, true)]) {
            let wanted = addresses.iter().filter(|address| address.addr.is_ipv6() == ipv6);
            let wanted: Vec<_> =
                wanted.filter_map(|address| address.claim(port).map(|claim| (*address, claim))).collect();
            if wanted.is_empty() {
                continue;
            }
            let mut endpoints = Endpoints::of(settings, port, ipv6, slices);
            for backend in endpoints.refuse_loops(settings) {
                refuse(format!("endpoint {backend} is refused: it is inside the service CIDR"));
            }
            for (address, claim) in wanted {
                let vip = Vip { addr: address.in_tables(settings), ..claim };
                let taken = outcome.vips.contains(&vip);
                if let Some((_, holder)) =
                    self.vips.of(&claim).first().filter(|(_, holder)| taken || holder != name)
                {
                    refuse(format!(
                        "{} is passed over: {} has it, and is older",
                        address.claimed(claim),
                        label_of(state, holder, claim)
                    ));
                    continue;
                }
                let compiled = TableService::new(label(name, port), vip, Vec::new());
                draft.insert_service(reached_at(address, service, &endpoints, compiled));
                outcome.vips.push(vip);
            }
        }
        outcome
    }

    /// What was left out of all services, the oldest service first.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let is_worth_saying = |outcome: &Outcome| outcome.has_sctp || !outcome.problems.is_empty();
        let mut outcomes: Vec<_> =
            self.outcomes.iter().filter(|(_, outcome)| is_worth_saying(outcome)).collect();
        outcomes.sort_by_key(|(name, outcome)| (outcome.created_at, *name));
        let mut problems: Vec<_> =
            outcomes.iter().flat_map(|(_, outcome)| &outcome.problems).cloned().collect();
        let with_sctp = outcomes.iter().filter(|(_, outcome)| outcome.has_sctp);
        let names: Vec<_> = with_sctp.map(|(name, _)| name.to_string()).collect();
        if !names.is_empty() {
            let text = format!("SCTP ports are passed over, in {}", names.join(", "));
            problems.push(Problem::new("Services", text));
        }
        problems
    }

    /// No service takes what nodes, pods and other services are sent (E7).
    fn may_be_vip(&self, settings: &NodeSettings, address: Address) -> Result<(), String> {
        let Address { kind, addr } = address;
        if kind == VipKind::NodePort {
            return Ok(());
        }
        if let Some(cidr) = settings.cluster_cidrs.iter().find(|cidr| cidr.contains(&addr)) {
            return Err(format!("it is inside the cluster CIDR {cidr}"));
        }
        let service_cidr = settings.service_cidrs.iter().find(|cidr| cidr.contains(&addr));
        if let Some(cidr) = service_cidr.filter(|_| kind != VipKind::ClusterIp) {
            return Err(format!("it is inside the service CIDR {cidr}"));
        }
        if settings.reserved_addrs().contains(&addr) {
            return Err("it is this node's source VIP, or the one after it".to_owned());
        }
        if settings.addresses.contains(&addr) {
            return Err("it is an address of this node".to_owned());
        }
        match self.nodes.of(&addr).first() {
            Some(node) => Err(format!("it is an address of node {node}, whose traffic it would take")),
            None => Ok(()),
        }
    }
}

/// An address at which a service wants to be reached.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Address {
    kind: VipKind,
    /// Unspecified for node ports, which are ports of whatever addresses the node has.
    addr: IpAddr,
}

impl Address {
    /// What a port of it is claimed as, among all services.
    fn claim(self, port: &ServicePort) -> Option<Vip> {
        let number = if self.kind == VipKind::NodePort { port.node_port? } else { port.port };
        Some(Vip { addr: self.addr, port: number, protocol: port.protocol })
    }

    /// A claim in words.
    fn claimed(self, claim: Vip) -> String {
        match self.kind {
            VipKind::NodePort => format!("node port {} {}", claim.protocol, claim.port),
            _ => claim.to_string(),
        }
    }

    /// The address it has in the tables.
    fn in_tables(self, settings: &NodeSettings) -> IpAddr {
        if self.kind == VipKind::NodePort { settings.node_port_vip(self.addr.is_ipv6()) } else { self.addr }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            VipKind::ClusterIp => "ClusterIP",
            VipKind::NodePort => "NodePort",
            VipKind::ExternalIp => "external IP",
            VipKind::LoadBalancer => "load-balancer address",
        };
        write!(f, "{kind} {}", self.addr)
    }
}

/// All addresses of a service, of the families it has ClusterIPs of. An address that its load balancer has too is
/// guarded by the source ranges.
fn addresses(service: &Service) -> Vec<Address> {
    let exposure = &service.exposure;
    let of = |kind, addrs: &[IpAddr]| -> Vec<Address> {
        addrs.iter().map(|addr| Address { kind, addr: *addr }).collect()
    };
    let is_served = |addr: &IpAddr| service.cluster_ips.iter().any(|own| own.is_ipv6() == addr.is_ipv6());
    let balanced = &exposure.load_balancer_ips;
    let external = exposure.external_ips.iter().copied().filter(|addr| !balanced.contains(addr));
    let mut outside = of(VipKind::LoadBalancer, balanced);
    outside.extend(of(VipKind::ExternalIp, &external.collect::<Vec<_>>()));
    outside.extend(of(VipKind::NodePort, &[Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]));
    outside.retain(|address| is_served(&address.addr));
    [of(VipKind::ClusterIp, &service.cluster_ips), outside].concat()
}

/// One port of one address, with the backends and the treatment that the traffic policy of its kind gives it.
/// `compiled` has name and VIP.
fn reached_at(
    address: Address,
    service: &Service,
    endpoints: &Endpoints,
    mut compiled: TableService,
) -> TableService {
    compiled.affinity = service.affinity;
    compiled.kind = address.kind;
    let exposure = &service.exposure;
    if address.kind == VipKind::LoadBalancer {
        let ranges = exposure.source_ranges.iter().copied();
        compiled.source_ranges =
            ranges.filter(|range| range.addr().is_ipv6() == address.addr.is_ipv6()).collect();
    }
    match address.kind {
        VipKind::ClusterIp if service.internal_local => endpoints.local().give(compiled),
        VipKind::ClusterIp => endpoints.cluster().give(compiled),
        _ if exposure.local => {
            let mut kept = compiled.clone();
            kept.client_address = ClientAddress::Kept;
            compiled.outside = Some(Arc::new(endpoints.local().give(kept)));
            // Pods and this node would not find a load balancer's way to the right node: for them it is a ClusterIP.
            endpoints.cluster().give(compiled)
        }
        _ => {
            compiled.client_address = ClientAddress::Translated;
            endpoints.cluster().give(compiled)
        }
    }
}

fn is_ours(service: &Service) -> bool {
    !service.external_name && !NOT_OURS.iter().any(|label| service.labels.contains_key(*label))
}

fn rank(name: &ObjectName, service: &Service) -> Rank {
    (service.created_at, name.clone())
}

fn served_ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service.ports.iter().filter(|port| port.protocol != SCTP)
}

/// The claims that a service makes, each beside it.
fn claims(service: &Service) -> impl Iterator<Item = (&Service, Vip)> {
    let addresses = if is_ours(service) { addresses(service) } else { Vec::new() };
    addresses.into_iter().flat_map(move |address| {
        served_ports(service).filter_map(move |port| address.claim(port).map(|claim| (service, claim)))
    })
}

fn service_of(name: &ObjectName, slice: &EndpointSlice) -> Option<ObjectName> {
    slice.service.as_ref().map(|service| ObjectName::new(&name.namespace, service))
}

/// `namespace/name:port`, with the port's number where it has no name.
fn label(name: &ObjectName, port: &ServicePort) -> String {
    match port.name.as_str() {
        "" => format!("{name}:{}", port.port),
        port => format!("{name}:{port}"),
    }
}

/// What the service `name` calls the port that it claims as `vip`.
fn label_of(state: &ClusterState, name: &ObjectName, vip: Vip) -> String {
    let service = state.services.get(name);
    let mut ports = service.iter().flat_map(|service| served_ports(service));
    let number =
        |port: &ServicePort| if vip.addr.is_unspecified() { port.node_port } else { Some(port.port) };
    ports
        .find(|port| number(port) == Some(vip.port) && port.protocol == vip.protocol)
        .map_or_else(String::new, |port| label(name, port))
}

/// Where a node can be reached, by its status or as a VTEP.
fn node_addresses(node: &Node) -> impl Iterator<Item = IpAddr> {
    let flannel = &node.flannel;
    let announced =
        [flannel.public_ip, flannel.public_ipv6, flannel.public_ip_overwrite, flannel.public_ipv6_overwrite];
    node.internal_ips.iter().chain(&node.external_ips).copied().chain(announced.into_iter().flatten())
}

#[cfg(test)]
mod tests;
