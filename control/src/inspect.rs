//! What a node can be asked about itself: its tables, its connections, and what would become of a packet.
//!
//! The same answers are given by a running node over its admin socket and, from manifests alone, by
//! `windlass tables` and `windlass trace --manifests`.

pub mod connections;
pub mod explain;
pub mod packet;
pub mod rows;
pub mod segments;
pub mod trace;

use std::sync::Arc;

use windlass_dataplane::engine;
use windlass_dataplane::engine::bridge::learned::LearnedStations;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::{ForwardingTables, Writer};
use windlass_dataplane::time::Instant;

use crate::cluster::{ClusterState, Problem};
use crate::compile::Compiled;
use crate::node::NodeSettings;

/// What tables were compiled from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The cluster.
    pub state: ClusterState,
    /// This node.
    pub settings: NodeSettings,
    /// What was left out.
    pub problems: Vec<Problem>,
}

/// A node at one moment.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Its tables.
    pub tables: Arc<ForwardingTables>,
    /// What they were compiled from.
    pub origin: Arc<Origin>,
    /// Its connections.
    pub connections: Arc<Conntrack>,
    /// Stations of its segments that were learned.
    pub learned: Arc<LearnedStations>,
    /// The workers' clock.
    pub now: Instant,
    /// The engine's settings.
    pub engine: engine::Settings,
    /// Its device and sockets; `None` when nothing runs.
    pub device: Option<rows::DeviceRow>,
}

impl Inspection {
    /// A node that does not run: no connections.
    pub fn offline(origin: Origin, compiled: Compiled, engine: engine::Settings) -> Self {
        Self {
            tables: Writer::new(compiled.tables).current(),
            origin: Arc::new(origin),
            connections: Arc::new(Conntrack::new(0, 1)),
            learned: Arc::default(),
            now: Instant::ZERO,
            engine,
            device: None,
        }
    }
}

#[cfg(test)]
mod tests;
