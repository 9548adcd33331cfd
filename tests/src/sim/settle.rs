//! After quiet: everything converges, everything works, and in the end nothing is remembered.

use std::net::SocketAddr;
use std::time::Duration;

use windlass_control::compile::compile;
use windlass_dataplane::tables::{ForwardingTables, TableSet};
use windlass_dataplane::wire::flow::Protocol;

use super::cluster::{Condition, VIP_PORT};
use super::edits::pod_addr;
use super::flows::{Flow, Target};
use super::invariant::{Invariant, Violation};
use super::process::CONNECTIONS;
use super::world::World;

/// Longer than an unanswered connection is kept, and than smoltcp waits between two tries.
const CALM: Duration = Duration::from_secs(420);

/// Enough for a flow through a network that loses nothing.
const PROBED: Duration = Duration::from_secs(60);

/// Longer than the longest timeout.
const FORGOTTEN: Duration = Duration::from_secs(7_500);

impl World {
    /// Leaves the cluster alone, and checks that all is well then.
    ///
    /// # Errors
    /// What is not.
    pub fn settle(&mut self) -> Result<(), Violation> {
        self.is_quiet = true;
        self.network.heal();
        for node in 0..self.nodes.len() {
            self.nodes[node].is_cut_off = false;
            self.relist(node);
        }
        self.run_for(CALM)?;
        self.excuse_unserved_here();
        self.check_finished("quiet")?;
        self.check_tables()?;
        self.probe();
        self.run_for(PROBED)?;
        self.check_finished("probes")?;
        self.check_forgotten()
    }

    /// A flow waits in vain whose service has nobody for its client.
    fn excuse_unserved_here(&mut self) {
        let is_unserved = |flow: &Flow| match flow.target {
            Target::Service(service) if flow.server.is_none() => {
                self.served_addr(service, flow.client, 0).is_none()
            }
            _ => false,
        };
        let unserved: Vec<u64> =
            self.flows.unfinished().filter(|(_, flow)| is_unserved(flow)).map(|(number, _)| number).collect();
        for number in unserved {
            if let Some(flow) = self.flows.get_mut(number) {
                flow.excuse = Some("nobody serves it here");
            }
        }
    }

    fn check_finished(&self, when: &str) -> Result<(), Violation> {
        match self.flows.unfinished().next() {
            Some((number, flow)) => {
                let text = format!("after {when}, {}", flow.describe(number));
                Err(Violation::new(Invariant::Converges, text))
            }
            None => Ok(()),
        }
    }

    /// What a node came to change by change is what the whole cluster compiles to.
    fn check_tables(&self) -> Result<(), Violation> {
        for node in &self.nodes {
            let Some(process) = &node.process else { continue };
            let compiled = compile(&self.truth.state, &process.settings);
            if let Some(problem) = compiled.problems.first() {
                let text = format!("{} sees a problem in a sound cluster: {problem}", process.settings.node);
                return Err(Violation::new(Invariant::Converges, text));
            }
            let differing = differing(&process.tables(), &compiled.tables);
            if !differing.is_empty() {
                let name = &process.settings.node;
                let text = format!("{name} has {differing:?} that are not those of the cluster");
                return Err(Violation::new(Invariant::Converges, text));
            }
        }
        Ok(())
    }

    /// Opens flows that must all work: to services that have somebody for the client, and to pods.
    fn probe(&mut self) {
        let nodes = self.busy_nodes();
        let here = |pod: &&usize| self.pods[**pod].is_alive;
        let pods = nodes.iter().flat_map(|node| self.nodes[*node].pods.values());
        let clients: Vec<usize> = pods.filter(here).copied().collect();
        for probe in 0..self.scale.probes {
            let Some(&client) = self.rng.pick(&clients) else { return };
            let protocol = if probe % 2 == 0 { Protocol::TCP } else { Protocol::UDP };
            let family = self.rng.below(2);
            if probe % 4 == 3 {
                let Some(&target) = self.rng.pick(&clients) else { return };
                if target != client && !self.pods[target].is_host {
                    let addr = pod_addr(self.pods[target].addresses[family], protocol);
                    self.open(client, Target::Pod(target), addr, protocol, 3);
                }
                continue;
            }
            let service = self.service_near(self.pods[client].node);
            if let Some(addr) = self.served_addr(service, client, family) {
                self.open(client, Target::Service(service), addr, protocol, 3);
            }
        }
    }

    /// The VIP of a service that has a backend for this client.
    fn served_addr(&self, service: usize, client: usize, family: usize) -> Option<SocketAddr> {
        let service = self.services[service].as_ref()?;
        let own = &self.nodes[self.pods[client].node].identity.name;
        let mut near = service.members.iter().filter(|member| !service.internal_local || member.node == *own);
        near.any(|member| member.condition != Condition::Unready)
            .then(|| SocketAddr::new(service.cluster_ips[family], VIP_PORT))
    }

    /// All pods fall silent; what they had is forgotten.
    fn check_forgotten(&mut self) -> Result<(), Violation> {
        self.pods.iter_mut().for_each(|pod| pod.is_alive = false);
        self.run_for(Duration::from_secs(1))?;
        let now = self.now() + FORGOTTEN;
        for node in &mut self.nodes {
            let Some(process) = &mut node.process else { continue };
            // A worker forgets some hundreds at a time.
            for _ in 0..CONNECTIONS {
                process.wake(now)?;
            }
            let left = process.connections();
            if left > 0 {
                let text = format!("{} remembers {left} connections for ever", process.settings.node);
                return Err(Violation::new(Invariant::Memory, text));
            }
        }
        Ok(())
    }
}

/// The tables that differ.
fn differing(found: &ForwardingTables, wanted: &TableSet) -> Vec<&'static str> {
    let parts = [
        (*found.local() != *wanted.local, "settings"),
        (*found.routes() != *wanted.routes, "routes"),
        (*found.neighbors() != *wanted.neighbors, "neighbors"),
        (*found.fdb() != *wanted.fdb, "VTEPs"),
        (*found.services() != *wanted.services, "services"),
    ];
    parts.into_iter().filter(|(differs, _)| *differs).map(|(_, name)| name).collect()
}
