//! Services: which backends a VIP has, by kube-proxy's rules.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use windlass_dataplane::tables::{Draft, Service as TableService, Vip, WhenEmpty};

use super::claims::Claims;
use crate::cluster::{
    ClusterState, Endpoint, EndpointSlice, ObjectName, Problem, SCTP, Service, ServicePort,
};
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
    vips: Claims<Vip, Rank>,
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
        for (service, vip) in before.into_iter().flat_map(wanted_vips) {
            self.vips.remove(&vip, &rank(name, service));
            self.pend_claimants(vip);
        }
        for (service, vip) in after.into_iter().flat_map(wanted_vips) {
            self.pend_claimants(vip);
            self.vips.add(vip, rank(name, service));
        }
    }

    fn pend_claimants(&mut self, vip: Vip) {
        self.pending.extend(self.vips.of(&vip).iter().map(|(_, name)| name.clone()));
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

    /// Compiles the ClusterIPs of the services that changes bear on.
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
        for addr in &service.cluster_ips {
            if let Err(reason) = may_be_vip(settings, *addr) {
                refuse(format!("ClusterIP {addr} is passed over: {reason}"));
                continue;
            }
            for port in served_ports(service) {
                let vip = Vip { addr: *addr, port: port.port, protocol: port.protocol };
                let taken = outcome.vips.contains(&vip);
                if let Some((_, holder)) =
                    self.vips.of(&vip).first().filter(|(_, holder)| taken || holder != name)
                {
                    refuse(format!(
                        "{vip} is passed over: {} has it, and is older",
                        label_of(state, holder, vip)
                    ));
                    continue;
                }
                draft.insert_service(self.port(settings, name, service, port, vip, &mut refuse));
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

    /// One port of one ClusterIP.
    fn port(
        &self,
        settings: &NodeSettings,
        name: &ObjectName,
        service: &Service,
        port: &ServicePort,
        vip: Vip,
        refuse: &mut impl FnMut(String),
    ) -> TableService {
        let mut endpoints = endpoints(settings, port, vip, self.slices.get(name).map_or(&[], Vec::as_slice));
        endpoints.retain(|backend, _| {
            let loops = settings.service_cidrs.iter().any(|cidr| cidr.contains(&backend.ip()));
            if loops {
                refuse(format!("endpoint {backend} is refused: it is inside the service CIDR"));
            }
            !loops
        });
        let chosen =
            choose(endpoints.iter().filter(|(_, endpoint)| endpoint.local || !service.internal_local));
        let only_remote = chosen.is_empty() && !choose(endpoints.iter()).is_empty();
        let drains = |(backend, endpoint): &(&SocketAddr, &Merged)| {
            endpoint.serving && chosen.binary_search(backend).is_err()
        };
        let draining = endpoints.iter().filter(drains).map(|(backend, _)| *backend).collect();
        let mut compiled = TableService::new(label(name, port), vip, chosen);
        compiled.draining = draining;
        compiled.affinity = service.affinity;
        compiled.when_empty = if only_remote { WhenEmpty::Drop } else { WhenEmpty::Reject };
        compiled
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

/// The VIPs that a service would have if nobody else wanted them and we might serve them, each beside it.
fn wanted_vips(service: &Service) -> impl Iterator<Item = (&Service, Vip)> {
    let addrs = service.cluster_ips.iter().filter(|_| is_ours(service));
    addrs.flat_map(move |addr| {
        served_ports(service)
            .map(move |port| (service, Vip { addr: *addr, port: port.port, protocol: port.protocol }))
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

/// What the service `name` calls the port behind `vip`.
fn label_of(state: &ClusterState, name: &ObjectName, vip: Vip) -> String {
    let service = state.services.get(name);
    let mut ports = service.iter().flat_map(|service| served_ports(service));
    ports
        .find(|port| port.port == vip.port && port.protocol == vip.protocol)
        .map_or_else(String::new, |port| label(name, port))
}

fn may_be_vip(settings: &NodeSettings, addr: IpAddr) -> Result<(), String> {
    if let Some(cidr) = settings.cluster_cidrs.iter().find(|cidr| cidr.contains(&addr)) {
        return Err(format!("it is inside the cluster CIDR {cidr}"));
    }
    if settings.addresses.contains(&addr) {
        return Err("it is an address of this node".to_owned());
    }
    Ok(())
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
    slices: &[(ObjectName, Arc<EndpointSlice>)],
) -> BTreeMap<SocketAddr, Merged> {
    let mut merged: BTreeMap<SocketAddr, Merged> = BTreeMap::new();
    for (_, slice) in slices.iter().filter(|(_, slice)| slice.ipv6 == vip.addr.is_ipv6()) {
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
