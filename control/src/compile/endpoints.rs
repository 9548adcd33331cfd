//! Which endpoints of a service's port take traffic, by kube-proxy's rules (Kubernetes, pkg/proxy/topology.go).

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use windlass_dataplane::tables::{Service as TableService, WhenEmpty};

use crate::cluster::{Endpoint, EndpointSlice, ObjectName, ServicePort};
use crate::node::NodeSettings;

/// The endpoints of one port in one family.
pub(super) struct Endpoints(BTreeMap<SocketAddr, Merged>);

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
        let mut merged: BTreeMap<SocketAddr, Merged> = BTreeMap::new();
        for (_, slice) in slices.iter().filter(|(_, slice)| slice.ipv6 == ipv6) {
            let numbers = slice.ports.iter();
            for number in
                numbers.filter(|number| number.name == port.name && number.protocol == port.protocol)
            {
                for endpoint in &slice.endpoints {
                    let entry = merged.entry(SocketAddr::new(endpoint.addr, number.port)).or_default();
                    entry.merge(endpoint, settings);
                }
            }
        }
        Self(merged)
    }

    /// Leaves out the endpoints inside the service CIDRs, whose packets would come back to us for ever, and returns
    /// them.
    pub(super) fn refuse_loops(&mut self, settings: &NodeSettings) -> Vec<SocketAddr> {
        let loops =
            |backend: &SocketAddr| settings.service_cidrs.iter().any(|cidr| cidr.contains(&backend.ip()));
        let refused: Vec<_> = self.0.keys().copied().filter(loops).collect();
        self.0.retain(|backend, _| !loops(backend));
        refused
    }

    /// For a traffic policy of Cluster: the ready ones that are meant for us, where hints say whom they are meant for.
    pub(super) fn cluster(&self) -> Choice {
        let chosen = self.cluster_set();
        self.choice(chosen, false)
    }

    /// For a traffic policy of Local: those of this node, whatever hints say.
    pub(super) fn local(&self) -> Choice {
        let chosen = self.ready_or_ending(|endpoint| endpoint.local);
        let only_remote = chosen.is_empty() && !self.cluster_set().is_empty();
        self.choice(chosen, only_remote)
    }

    fn choice(&self, backends: Vec<SocketAddr>, only_remote: bool) -> Choice {
        let drains = |(backend, endpoint): &(&SocketAddr, &Merged)| {
            endpoint.serving && backends.binary_search(backend).is_err()
        };
        let draining = self.0.iter().filter(drains).map(|(backend, _)| *backend).collect();
        let when_empty = if only_remote { WhenEmpty::Drop } else { WhenEmpty::Reject };
        Choice { backends, draining, when_empty }
    }

    fn cluster_set(&self) -> Vec<SocketAddr> {
        let hint = self.hint();
        self.ready_or_ending(|endpoint| !endpoint.ready || hint(endpoint) == Hint::ForUs)
    }

    /// The hints that count: of nodes if every ready endpoint has some and one is meant for us, else of zones
    /// likewise, else none: then all are.
    fn hint(&self) -> fn(&Merged) -> Hint {
        let kinds: [fn(&Merged) -> Hint; 2] = [|endpoint| endpoint.node_hint, |endpoint| endpoint.zone_hint];
        let counts = |hint: &fn(&Merged) -> Hint| {
            let mut hints = self.0.values().filter(|endpoint| endpoint.ready).map(hint);
            let mut one_is_ours = false;
            hints.all(|hint| {
                one_is_ours |= hint == Hint::ForUs;
                hint != Hint::None
            }) && one_is_ours
        };
        kinds.into_iter().find(counts).unwrap_or(|_| Hint::ForUs)
    }

    /// The ready ones, or else those that serve while they terminate (F4).
    fn ready_or_ending(&self, is_wanted: impl Fn(&Merged) -> bool) -> Vec<SocketAddr> {
        let those = |is_usable: fn(&Merged) -> bool| -> Vec<SocketAddr> {
            let found = self.0.iter().filter(|(_, endpoint)| is_usable(endpoint) && is_wanted(endpoint));
            found.map(|(backend, _)| *backend).collect()
        };
        let ready = those(|endpoint| endpoint.ready);
        if !ready.is_empty() {
            return ready;
        }
        those(|endpoint| endpoint.serving && endpoint.terminating)
    }
}

impl Merged {
    fn merge(&mut self, endpoint: &Endpoint, settings: &NodeSettings) {
        self.ready |= endpoint.ready;
        self.serving |= endpoint.serving;
        self.terminating |= endpoint.terminating;
        self.local |= endpoint.node.as_ref() == Some(&settings.node);
        if let Some(hints) = &endpoint.hints {
            self.node_hint = self.node_hint.max(Hint::of(&hints.nodes, Some(&settings.node)));
            self.zone_hint = self.zone_hint.max(Hint::of(&hints.zones, settings.zone.as_ref()));
        }
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
