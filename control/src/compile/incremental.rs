//! A compiler that remembers what it compiled.

use std::sync::Arc;

use windlass_dataplane::tables::{Draft, RouteTable};

use super::health_checks::HealthChecks;
use super::nodes::Peers;
use super::services::Services;
use super::{local, own_routes, segments};
use crate::cluster::{ClusterState, Difference, EndpointSlice, Node, ObjectName, Problem, Service, set};
use crate::node::NodeSettings;

/// Compiles again what changed, and what depends on it: the service of a slice, and whoever wants a VIP, a
/// podCIDR or a VtepMAC that the changed object has, had or wants.
///
/// Objects are given one by one (`set_…`), as what [differs](Self::apply), which costs what changed, or as a whole
/// state to [`follow`](Self::follow). [`update`](Self::update) then compiles all of it at once.
#[derive(Clone, Debug)]
pub struct Compiler {
    settings: NodeSettings,
    own_routes: RouteTable,
    /// The cluster as it was given.
    state: ClusterState,
    peers: Peers,
    services: Services,
    draft: Draft,
}

/// What came of the changes since the update before.
#[derive(Clone, Debug)]
pub struct Update {
    /// The tables, and what differs in them. To be published, all of them and in order.
    pub draft: Draft,
    /// Everything that is left out of the tables, not only what is new.
    pub problems: Vec<Problem>,
    /// What load balancers are told of services.
    pub health_checks: HealthChecks,
}

impl Compiler {
    /// A compiler for the node that `settings` describe, with an empty cluster.
    pub fn new(settings: NodeSettings) -> Self {
        let mut compiler = Self {
            settings,
            own_routes: RouteTable::default(),
            state: ClusterState::default(),
            peers: Peers::default(),
            services: Services::default(),
            draft: Draft::default(),
        };
        compiler.begin();
        compiler
    }

    /// Changes the settings: everything is compiled again, and what comes out equal stays the same.
    pub fn set_settings(&mut self, settings: &NodeSettings) {
        if self.settings == *settings {
            return;
        }
        self.peers.withdraw_all(&self.settings, &self.own_routes, &mut self.draft);
        for (prefix, _) in self.own_routes.iter() {
            self.draft.remove_route(prefix);
        }
        self.settings = settings.clone();
        self.begin();
        if self.settings.is_bridge() {
            return;
        }
        self.peers.reconsider(self.state.nodes.keys());
        self.services.reconsider(self.state.services.keys());
    }

    /// Puts into the tables what depends on the settings alone.
    fn begin(&mut self) {
        self.own_routes = own_routes(&self.settings);
        for (prefix, next_hop) in self.own_routes.iter() {
            self.draft.insert_route(prefix, next_hop);
        }
        self.draft.set_local(local(&self.settings));
        self.peers.hold_own(&self.settings);
    }

    /// Adds, replaces or, with `None`, removes a node.
    pub fn set_node(&mut self, name: &str, node: Option<Arc<Node>>) {
        let before = set(&mut self.state.nodes, name.to_owned(), node.clone());
        if before != node {
            self.peers.changed(name, before.as_deref(), node.as_deref());
            self.services.node_changed(name, before.as_deref(), node.as_deref());
        }
    }

    /// Adds, replaces or, with `None`, removes a service.
    pub fn set_service(&mut self, name: &ObjectName, service: Option<Arc<Service>>) {
        let before = set(&mut self.state.services, name.clone(), service.clone());
        if before != service {
            self.services.changed(name, before.as_deref(), service.as_ref());
        }
    }

    /// Adds, replaces or, with `None`, removes an EndpointSlice.
    pub fn set_endpoint_slice(&mut self, name: &ObjectName, slice: Option<Arc<EndpointSlice>>) {
        let before = set(&mut self.state.endpoint_slices, name.clone(), slice.clone());
        if before != slice {
            self.services.slice_changed(name, before.as_deref(), slice);
        }
    }

    /// Takes over what has changed. Of a node that bridges segments, those alone are compiled.
    pub fn apply(&mut self, difference: Difference) {
        if self.settings.is_bridge() {
            return self.state.apply(difference);
        }
        let Difference { nodes, services, endpoint_slices, service_cidrs, net_conf, segments } = difference;
        for (name, node) in nodes {
            self.set_node(&name, node);
        }
        for (name, service) in services {
            self.set_service(&name, service);
        }
        for (name, slice) in endpoint_slices {
            self.set_endpoint_slice(&name, slice);
        }
        self.state.apply(Difference { service_cidrs, net_conf, segments, ..Difference::default() });
    }

    /// Takes over all of `state`. One pointer comparison for each object that is the very same as before.
    pub fn follow(&mut self, state: &ClusterState) {
        if self.settings.is_bridge() || self.state != ClusterState::default() {
            return self.apply(Difference::between(&self.state, state));
        }
        self.services.reserve(state.services.len());
        for (name, node) in &state.nodes {
            self.peers.changed(name, None, Some(node.as_ref()));
            self.services.node_changed(name, None, Some(node.as_ref()));
        }
        for (name, service) in &state.services {
            self.services.changed(name, None, Some(service));
        }
        for (name, slice) in &state.endpoint_slices {
            self.services.slice_changed(name, None, Some(Arc::clone(slice)));
        }
        self.state.clone_from(state);
    }

    /// The cluster as it was given.
    pub fn state(&self) -> &ClusterState {
        &self.state
    }

    /// Compiles what changed since the update before.
    pub fn update(&mut self) -> Update {
        self.peers.compile(&self.state, &self.settings, &self.own_routes, &mut self.draft);
        self.services.compile(&self.settings, &mut self.draft);
        let mut problems = self.compile_segments();
        problems.extend(self.peers.problems());
        problems.extend(self.services.problems());
        let health_checks = self.services.health_checks().clone();
        Update { draft: self.draft.finish(), problems, health_checks }
    }

    /// All of them again: they are few, and no cached flow depends on them.
    fn compile_segments(&mut self) -> Vec<Problem> {
        let before = Arc::clone(&self.draft.tables().segments);
        let (table, problems) = segments::compile(&self.state.segments, &self.settings, &before);
        self.draft.set_segments(table);
        problems
    }
}

#[cfg(test)]
mod tests;
