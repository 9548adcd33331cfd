//! Services: at which addresses they are reached, and how packets to each are treated, by kube-proxy's rules
//! (Kubernetes, pkg/proxy/serviceport.go and pkg/proxy/nftables/proxier.go).

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use windlass_dataplane::tables::{ClientAddress, Draft, Service as TableService, Vip, VipKind};

use super::claims::Claims;
use super::endpoints::Endpoints;
use super::health_checks::HealthChecks;
use crate::cluster::{EndpointSlice, Node, ObjectName, Problem, SCTP, Service, ServicePort};
use crate::node::NodeSettings;

/// Services with one of these labels belong to another proxy, or to nobody.
const NOT_OURS: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];

/// Age, then name: of those who want a VIP, the first in this order has it.
type Rank = (Option<i64>, ObjectName);

/// The services as they were compiled last, and what is to be compiled again.
#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    known: HashMap<ObjectName, Known>,
    /// Those to be compiled again, each once.
    pending: Vec<ObjectName>,
    /// Who claims each VIP; the address of a node port is unspecified.
    vips: Claims<Vip, Rank>,
    /// The services that want each address of their own.
    wanted: Claims<IpAddr, ObjectName>,
    /// The nodes at each address.
    nodes: Claims<IpAddr, String>,
    /// What was left out, by the services that something was left out of.
    troubles: BTreeMap<Rank, Trouble>,
    health_checks: HealthChecks,
}

/// What is known of one service.
#[derive(Clone, Debug, Default)]
struct Known {
    service: Option<Arc<Service>>,
    /// The slices of its name.
    slices: Vec<(ObjectName, Arc<EndpointSlice>)>,
    /// The VIPs it has in the table.
    vips: Vec<Vip>,
    is_pending: bool,
}

/// What is left out of one service.
#[derive(Clone, Debug, Default)]
struct Trouble {
    problems: Vec<Problem>,
    has_sctp: bool,
}

impl Services {
    /// Makes room for that many services, which are to come.
    pub(super) fn reserve(&mut self, services: usize) {
        self.known.reserve(services);
        self.pending.reserve(services);
    }

    /// Notes that a service has changed.
    pub(super) fn changed(
        &mut self,
        name: &ObjectName,
        before: Option<&Service>,
        after: Option<&Arc<Service>>,
    ) {
        self.pend(name).service = after.cloned();
        for addr in before.into_iter().flat_map(own_addresses) {
            self.wanted.remove(&addr, name);
        }
        for addr in after.into_iter().flat_map(|service| own_addresses(service)) {
            self.wanted.add(addr, name.clone());
        }
        if let Some(service) = before {
            let rank = rank(name, service);
            self.troubles.remove(&rank);
            for vip in claims(service) {
                self.vips.remove(&vip, &rank);
                self.pend_claimants(vip);
            }
        }
        if let Some(service) = after {
            for vip in claims(service) {
                self.pend_claimants(vip);
                self.vips.add(vip, rank(name, service));
            }
        }
    }

    /// Notes that a service is to be compiled again, and gives what is known of it.
    fn pend(&mut self, name: &ObjectName) -> &mut Known {
        let known = self.known.entry(name.clone()).or_default();
        if !std::mem::replace(&mut known.is_pending, true) {
            self.pending.push(name.clone());
        }
        known
    }

    fn pend_claimants(&mut self, vip: Vip) {
        let claimants: Vec<_> = self.vips.of(&vip).map(|(_, name)| name.clone()).collect();
        self.reconsider(&claimants);
    }

    /// Notes that a node has changed: no service may have its address.
    pub(super) fn node_changed(&mut self, name: &str, before: Option<&Node>, after: Option<&Node>) {
        for addr in before.into_iter().flat_map(node_addresses) {
            self.nodes.remove(&addr, &name.to_owned());
            self.pend_those_at(addr);
        }
        for addr in after.into_iter().flat_map(node_addresses) {
            self.nodes.add(addr, name.to_owned());
            self.pend_those_at(addr);
        }
    }

    fn pend_those_at(&mut self, addr: IpAddr) {
        let there: Vec<_> = self.wanted.of(&addr).cloned().collect();
        self.reconsider(&there);
    }

    /// Notes that an EndpointSlice has changed.
    pub(super) fn slice_changed(
        &mut self,
        name: &ObjectName,
        before: Option<&EndpointSlice>,
        after: Option<Arc<EndpointSlice>>,
    ) {
        if let Some(service) = before.and_then(|slice| service_of(name, slice)) {
            self.pend(&service).slices.retain(|(known, _)| known != name);
        }
        if let Some((slice, service)) =
            after.and_then(|slice| service_of(name, &slice).map(|service| (slice, service)))
        {
            self.pend(&service).slices.push((name.clone(), slice));
        }
    }

    /// Notes that these services are to be compiled again.
    pub(super) fn reconsider<'a>(&mut self, names: impl IntoIterator<Item = &'a ObjectName>) {
        for name in names {
            self.pend(name);
        }
    }

    /// Compiles the services that changes bear on.
    pub(super) fn compile(&mut self, settings: &NodeSettings, draft: &mut Draft) {
        let pending = std::mem::take(&mut self.pending);
        let mut gone: HashSet<Vip> = HashSet::default();
        for name in &pending {
            if let Some(known) = self.known.get_mut(name) {
                known.is_pending = false;
                gone.extend(std::mem::take(&mut known.vips));
            }
        }
        for name in pending {
            let Some(known) = self.known.get(&name) else { continue };
            self.health_checks.follow(&name, known.service.as_deref(), &known.slices, settings);
            let Some(service) = &known.service else {
                if known.slices.is_empty() {
                    self.known.remove(&name);
                }
                continue;
            };
            let (rank, mut trouble, mut vips) = (rank(&name, service), Trouble::default(), Vec::new());
            if is_ours(service) {
                trouble.has_sctp = service.ports.iter().any(|port| port.protocol == SCTP);
                vips = self.service(settings, &name, known, service, draft, &mut trouble.problems);
            }
            for vip in &vips {
                gone.remove(vip);
            }
            match trouble.has_sctp || !trouble.problems.is_empty() {
                true => drop(self.troubles.insert(rank, trouble)),
                false => drop(self.troubles.remove(&rank)),
            }
            if let Some(known) = self.known.get_mut(&name) {
                known.vips = vips;
            }
        }
        for vip in gone {
            draft.remove_service(vip);
        }
    }

    /// Puts a service into the tables, and gives the VIPs it has there.
    fn service(
        &self,
        settings: &NodeSettings,
        name: &ObjectName,
        known: &Known,
        service: &Service,
        draft: &mut Draft,
        problems: &mut Vec<Problem>,
    ) -> Vec<Vip> {
        let mut refuse = |text| problems.push(Problem::new(format!("Service {name}"), text));
        let mut addresses: Vec<Address> = addresses(service).collect();
        addresses.retain(|address| {
            let verdict = self.may_be_vip(settings, *address);
            verdict.map_err(|reason| refuse(format!("{address} is passed over: {reason}"))).is_ok()
        });
        let mut vips = Vec::new();
        for (port, ipv6) in served_ports(service).flat_map(|port| [(port, false), (port, true)]) {
            let wanted = addresses.iter().filter(|address| address.addr.is_ipv6() == ipv6);
            let mut wanted =
                wanted.filter_map(|address| address.claim(port).map(|claim| (*address, claim))).peekable();
            if wanted.peek().is_none() {
                continue;
            }
            let mut endpoints = Endpoints::of(settings, port, ipv6, &known.slices);
            for backend in endpoints.refuse_loops(settings) {
                refuse(format!("endpoint {backend} is refused: it is inside the service CIDR"));
            }
            let stays_at = main_address(service, ipv6).map(|addr| Vip {
                addr,
                port: port.port,
                protocol: port.protocol,
            });
            for (address, claim) in wanted {
                let vip = Vip { addr: address.in_tables(settings), ..claim };
                let taken = vips.contains(&vip);
                if let Some((_, holder)) =
                    self.vips.first(&claim).filter(|(_, holder)| taken || holder != name)
                {
                    refuse(format!(
                        "{} is passed over: {} has it, and is older",
                        address.claimed(claim),
                        self.label_of(holder, claim)
                    ));
                    continue;
                }
                let mut compiled = TableService::new(label(name, port), vip, Vec::new());
                compiled.stays_at = stays_at.unwrap_or(vip);
                draft.insert_service(reached_at(address, service, &endpoints, compiled));
                vips.push(vip);
            }
        }
        vips
    }

    /// What the service `name` calls the port that it claims as `vip`.
    fn label_of(&self, name: &ObjectName, vip: Vip) -> String {
        let service = self.known.get(name).and_then(|known| known.service.as_ref());
        let mut ports = service.into_iter().flat_map(|service| served_ports(service));
        let number =
            |port: &ServicePort| if vip.addr.is_unspecified() { port.node_port } else { Some(port.port) };
        ports
            .find(|port| number(port) == Some(vip.port) && port.protocol == vip.protocol)
            .map_or_else(String::new, |port| label(name, port))
    }

    /// What load balancers are told.
    pub(super) fn health_checks(&self) -> &HealthChecks {
        &self.health_checks
    }

    /// What was left out of all services, the oldest service first.
    pub(super) fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<_> =
            self.troubles.values().flat_map(|trouble| &trouble.problems).cloned().collect();
        let with_sctp = self.troubles.iter().filter(|(_, trouble)| trouble.has_sctp);
        let names: Vec<_> = with_sctp.map(|((_, name), _)| name.to_string()).collect();
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
        match self.nodes.first(&addr) {
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
fn addresses(service: &Service) -> impl Iterator<Item = Address> {
    let exposure = &service.exposure;
    let is_served = |address: &Address| main_address(service, address.addr.is_ipv6()).is_some();
    let of = |kind| move |addr: &IpAddr| Address { kind, addr: *addr };
    let balanced = &exposure.load_balancer_ips;
    let external = exposure.external_ips.iter().filter(|addr| !balanced.contains(addr));
    let outside = balanced.iter().map(of(VipKind::LoadBalancer)).chain(external.map(of(VipKind::ExternalIp)));
    let outside = outside.chain(NODE_PORTS.iter().map(of(VipKind::NodePort))).filter(is_served);
    service.cluster_ips.iter().map(of(VipKind::ClusterIp)).chain(outside)
}

/// The same without node ports, which are no addresses of its own.
fn own_addresses(service: &Service) -> impl Iterator<Item = IpAddr> {
    addresses(service).filter(|address| address.kind != VipKind::NodePort).map(|address| address.addr)
}

/// The ClusterIP of one family.
fn main_address(service: &Service, ipv6: bool) -> Option<IpAddr> {
    service.cluster_ips.iter().copied().find(|addr| addr.is_ipv6() == ipv6)
}

/// What stands for whatever addresses the node has.
const NODE_PORTS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];

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

/// What a service claims among all services.
fn claims(service: &Service) -> impl Iterator<Item = Vip> {
    let addresses = is_ours(service).then(|| addresses(service)).into_iter().flatten();
    addresses.flat_map(move |address| served_ports(service).filter_map(move |port| address.claim(port)))
}

fn service_of(name: &ObjectName, slice: &EndpointSlice) -> Option<ObjectName> {
    slice.service.as_ref().map(|service| name.beside(service))
}

/// `namespace/name:port`, with the port's number where it has no name.
fn label(name: &ObjectName, port: &ServicePort) -> String {
    match port.name.as_str() {
        "" => format!("{name}:{}", port.port),
        port => format!("{name}:{port}"),
    }
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
