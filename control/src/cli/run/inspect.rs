//! A running node, for those who ask it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass_control::cluster::{Difference, Problem};
use windlass_control::compile::HealthChecks;
use windlass_control::inspect::rows::DeviceRow;
use windlass_control::inspect::{Inspection, Origin};
use windlass_control::node::NodeSettings;
use windlass_dataplane::engine;
use windlass_dataplane::tables::Snapshots;
use windlass_dataplane::time::Instant;
use windlass_dataplane::worker::Workers;

/// What the tables were compiled from, and what else came of it.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Known(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    origin: Arc<Origin>,
    revision: u64,
    health_checks: HealthChecks,
}

impl Known {
    /// What the first tables are compiled from.
    pub(in crate::cli) fn new(origin: Origin, health_checks: HealthChecks) -> Self {
        Self(Arc::new(Mutex::new(Inner { origin: Arc::new(origin), revision: 0, health_checks })))
    }

    /// Says what the tables are compiled from that were just published. Costs what differs, unless somebody looks at
    /// what there was before.
    pub(in crate::cli) fn advance(
        &self,
        difference: Difference,
        settings: &NodeSettings,
        problems: Vec<Problem>,
        health_checks: HealthChecks,
    ) {
        let mut inner = self.lock();
        inner.revision += 1;
        inner.health_checks = health_checks;
        let origin = Arc::make_mut(&mut inner.origin);
        origin.state.apply(difference);
        origin.settings.clone_from(settings);
        origin.problems = problems;
    }

    /// What the newest tables are compiled from; to be let go of soon.
    pub(in crate::cli) fn current(&self) -> Arc<Origin> {
        Arc::clone(&self.lock().origin)
    }

    /// A number that changes with what the tables are compiled from.
    pub(in crate::cli) fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// What load balancers are told.
    pub(in crate::cli) fn health_checks(&self) -> HealthChecks {
        self.lock().health_checks.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is needed to look at a running node.
#[derive(Debug)]
pub(super) struct Subject {
    /// Its tables.
    pub(super) snapshots: Snapshots,
    /// What they were compiled from.
    pub(super) known: Known,
    /// The engine's settings.
    pub(super) engine: engine::Settings,
    /// Device and sockets.
    pub(super) device: DeviceRow,
}

impl Subject {
    /// The node as it is.
    pub(super) fn inspection(&self, workers: &Workers) -> Inspection {
        Inspection {
            tables: self.snapshots.current(),
            origin: self.known.current(),
            connections: Arc::clone(workers.connections()),
            learned: Arc::clone(workers.learned()),
            now: Instant::since_origin(workers.origin()),
            engine: self.engine.clone(),
            device: Some(self.device.clone()),
        }
    }
}
