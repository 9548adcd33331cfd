//! Keeps the servers of healthCheckNodePorts as the cluster's objects would have them.

use std::net::IpAddr;
use std::sync::Arc;

use windlass_control::admin::service_health::ServiceHealth;
use windlass_control::admin::{Readings, Serving};
use windlass_control::compile::HealthChecks;

use super::inspect::Known;

/// Follows what the tables are compiled from.
pub(super) struct HealthFollower {
    known: Known,
    /// The revision that was followed last.
    seen: Option<u64>,
    /// What is served, and at which addresses; `None` where something of it is to be tried again.
    served: Option<(HealthChecks, Vec<IpAddr>)>,
    servers: ServiceHealth,
}

impl HealthFollower {
    /// Of a node whose health `readings` tell, on the runtime of `admin`.
    pub(super) fn new(known: Known, readings: Arc<dyn Readings>, admin: &Serving) -> Self {
        Self {
            known,
            seen: None,
            served: None,
            servers: ServiceHealth::new(readings, admin.runtime().clone()),
        }
    }

    /// Looks for new objects.
    pub(super) fn look(&mut self) {
        let revision = self.known.revision();
        if self.seen.replace(revision) == Some(revision) {
            return;
        }
        let checks = self.known.health_checks();
        let addrs = self.known.current().settings.node_port_addrs.clone();
        let is_served = |(served, at): &(HealthChecks, Vec<IpAddr>)| served.is(&checks) && *at == addrs;
        if self.served.as_ref().is_some_and(is_served) {
            return;
        }
        let refused = self.servers.follow(&addrs, &checks.by_port());
        for problem in &refused {
            tracing::warn!("{problem}");
        }
        self.served = refused.is_empty().then_some((checks, addrs));
    }
}
