//! Keeps the servers of healthCheckNodePorts as the cluster's objects would have them.

use std::sync::Arc;

use windlass_control::admin::service_health::ServiceHealth;
use windlass_control::admin::{Readings, Serving};
use windlass_control::compile::health_checks;
use windlass_control::inspect::Origin;

use super::inspect::Known;

/// Follows what the tables are compiled from.
pub(super) struct HealthFollower {
    known: Known,
    followed: Option<Arc<Origin>>,
    servers: ServiceHealth,
}

impl HealthFollower {
    /// Of a node whose health `readings` tell, on the runtime of `admin`.
    pub(super) fn new(known: Known, readings: Arc<dyn Readings>, admin: &Serving) -> Self {
        Self { known, followed: None, servers: ServiceHealth::new(readings, admin.runtime().clone()) }
    }

    /// Looks for new objects.
    pub(super) fn look(&mut self) {
        let current = self.known.current();
        if self.followed.as_ref().is_some_and(|followed| Arc::ptr_eq(followed, &current)) {
            return;
        }
        let checks = health_checks(&current.state, &current.settings);
        for problem in self.servers.follow(&current.settings.node_port_addrs, &checks) {
            tracing::warn!("{problem}");
        }
        self.followed = Some(current);
    }
}
