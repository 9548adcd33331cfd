//! Which endpoints of a service's port take traffic, by kube-proxy's rules (Kubernetes, pkg/proxy/topology.go).

use std::net::SocketAddr;
use std::sync::Arc;

use windlass_dataplane::tables::{Service as TableService, WhenEmpty};

use crate::cluster::{Endpoint, EndpointSlice, ObjectName, ServicePort};
use crate::node::NodeSettings;

/// The endpoints of one port in one family, by address.
pub(super) struct Endpoints(Vec<(SocketAddr, Merged)>);

/// What is known of one backend address: the best that any slice says of it (F5).
#[derive(Clone, Copy, Default)]
struct Merged {
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    node_hint: Hint,
    zone_hint: Hint,
}

/// What an endpoint's hints of one kind say to us.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Hint {
    #[default]
    None,
    ForOthers,
    ForUs,
}

/// Who gets a packet, who keeps the flows it has, and what becomes of a packet without either.
pub(super) struct Choice {
    backends: Vec<SocketAddr>,
    draining: Vec<SocketAddr>,
    when_empty: WhenEmpty,
}

impl Choice {
    /// Gives a service of the tables these backends.
    pub(super) fn give(self, mut service: TableService) -> TableService {
        service.draining = self.draining;
        service.when_empty = self.when_empty;
        service.with_backends(self.backends)
    }
}

impl Endpoints {
    /// The endpoints that the slices have for `port` in one family.
    pub(super) fn of(
        settings: &NodeSettings,
        port: &ServicePort,
        ipv6: bool,
        slices: &[(ObjectName, Arc<EndpointSlice>)],
    ) -> Self {
        let mut all: Vec<(SocketAddr, Merged)> = Vec::new();
        for (_, slice) in slices.iter().filter(|(_, slice)| slice.ipv6 == ipv6) {
            let numbers = slice.ports.iter();
            for number in
                numbers.filter(|number| number.name == port.name && number.protocol == port.protocol)
            {
                let known = slice.endpoints.iter().map(|endpoint| {
                    (SocketAddr::new(endpoint.addr, number.port), Merged::of(endpoint, settings))
                });
                all.extend(known);
            }
        }
        if !all.is_sorted_by(|(one, _), (next, _)| one < next) {
            all.sort_unstable_by_key(|(backend, _)| *backend);
            all.dedup_by(|(backend, merged), (kept, into)| {
                let is_same = backend == kept;
                if is_same {
                    into.merge(merged);
                }
                is_same
            });
        }
        Self(all)
    }

    /// Leaves out the endpoints inside the service CIDRs, whose packets would come back to us for ever, and returns
    /// them.
    pub(super) fn refuse_loops(&mut self, settings: &NodeSettings) -> Vec<SocketAddr> {
        let mut refused = Vec::new();
        self.0.retain(|(backend, _)| {
            let is_loop = settings.service_cidrs.iter().any(|cidr| cidr.contains(&backend.ip()));
            refused.extend(is_loop.then_some(*backend));
            !is_loop
        });
        refused
    }

    /// For a traffic policy of Cluster: the ready ones that are meant for us, where hints say whom they are meant for.
    pub(super) fn cluster(&self) -> Choice {
        let hint = self.hint();
        self.choice(self.ready_or_ending(|endpoint| !endpoint.ready || hint(endpoint) == Hint::ForUs))
    }

    /// For a traffic policy of Local: those of this node, whatever hints say.
    pub(super) fn local(&self) -> Choice {
        let mut choice = self.choice(self.ready_or_ending(|endpoint| endpoint.local));
        if choice.backends.is_empty() && !self.cluster().backends.is_empty() {
            choice.when_empty = WhenEmpty::Drop;
        }
        choice
    }

    fn choice(&self, is_chosen: impl Fn(&Merged) -> bool) -> Choice {
        let those = |is_one: &dyn Fn(&Merged) -> bool| -> Vec<SocketAddr> {
            let mut those = Vec::with_capacity(self.0.len());
            those.extend(self.0.iter().filter(|(_, endpoint)| is_one(endpoint)).map(|(backend, _)| *backend));
            those
        };
        let backends = those(&is_chosen);
        let drains = |endpoint: &Merged| endpoint.serving && !is_chosen(endpoint);
        let draining =
            if self.0.iter().any(|(_, endpoint)| drains(endpoint)) { those(&drains) } else { Vec::new() };
        Choice { backends, draining, when_empty: WhenEmpty::Reject }
    }

    /// The hints that count: of nodes if every ready endpoint has some and one is meant for us, else of zones
    /// likewise, else none: then all are.
    fn hint(&self) -> fn(&Merged) -> Hint {
        let kinds: [fn(&Merged) -> Hint; 2] = [|endpoint| endpoint.node_hint, |endpoint| endpoint.zone_hint];
        let counts = |hint: &fn(&Merged) -> Hint| {
            let mut hints =
                self.0.iter().map(|(_, endpoint)| endpoint).filter(|endpoint| endpoint.ready).map(hint);
            let mut one_is_ours = false;
            hints.all(|hint| {
                one_is_ours |= hint == Hint::ForUs;
                hint != Hint::None
            }) && one_is_ours
        };
        kinds.into_iter().find(counts).unwrap_or(|_| Hint::ForUs)
    }

    /// The ready ones, or else those that serve while they terminate (F4).
    fn ready_or_ending(&self, is_wanted: impl Fn(&Merged) -> bool) -> impl Fn(&Merged) -> bool {
        let one_is_ready = self.0.iter().any(|(_, endpoint)| endpoint.ready && is_wanted(endpoint));
        move |endpoint| {
            let is_usable =
                if one_is_ready { endpoint.ready } else { endpoint.serving && endpoint.terminating };
            is_usable && is_wanted(endpoint)
        }
    }
}

impl Merged {
    /// What one slice says.
    fn of(endpoint: &Endpoint, settings: &NodeSettings) -> Self {
        let hints = endpoint.hints.as_ref();
        Self {
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            local: endpoint.node.as_ref() == Some(&settings.node),
            node_hint: hints.map_or(Hint::None, |hints| Hint::of(&hints.nodes, Some(&settings.node))),
            zone_hint: hints.map_or(Hint::None, |hints| Hint::of(&hints.zones, settings.zone.as_ref())),
        }
    }

    fn merge(&mut self, other: &Self) {
        self.ready |= other.ready;
        self.serving |= other.serving;
        self.terminating |= other.terminating;
        self.local |= other.local;
        self.node_hint = self.node_hint.max(other.node_hint);
        self.zone_hint = self.zone_hint.max(other.zone_hint);
    }
}

impl Hint {
    fn of(names: &[String], own: Option<&String>) -> Self {
        match own {
            _ if names.is_empty() => Self::None,
            Some(own) if names.contains(own) => Self::ForUs,
            _ => Self::ForOthers,
        }
    }
}

#[cfg(test)]
mod tests;
