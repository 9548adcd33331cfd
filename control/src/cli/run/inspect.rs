//! A running node, for those who ask it.

use std::sync::{Arc, Mutex, PoisonError};

use windlass_control::inspect::rows::DeviceRow;
use windlass_control::inspect::{Inspection, Origin};
use windlass_dataplane::engine;
use windlass_dataplane::tables::Snapshots;
use windlass_dataplane::time::Instant;
use windlass_dataplane::worker::Workers;

/// What the tables were compiled from, replaced whenever they are.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Known(Arc<Mutex<Arc<Origin>>>);

impl Known {
    /// What the first tables are compiled from.
    pub(in crate::cli) fn new(origin: Origin) -> Self {
        Self(Arc::new(Mutex::new(Arc::new(origin))))
    }

    /// Says what the tables are compiled from that were just published.
    pub(in crate::cli) fn replace(&self, origin: Origin) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(origin);
    }

    /// What the newest tables are compiled from.
    pub(in crate::cli) fn current(&self) -> Arc<Origin> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
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
