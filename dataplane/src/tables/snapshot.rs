//! All tables at one moment.

use std::sync::Arc;

use super::epochs::Epochs;
use super::fdb::Fdb;
use super::local::Local;
use super::neighbor::NeighborTable;
use super::route::RouteTable;
use super::segment::SegmentTable;
use super::service::ServiceTable;

/// Everything control knows how to say to the engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableSet {
    /// This node.
    pub local: Arc<Local>,
    /// (VNI, MAC) to remote VTEP, and what each VTEP may send.
    pub fdb: Arc<Fdb>,
    /// (VNI, IP) to MAC.
    pub neighbors: Arc<NeighborTable>,
    /// Prefix to next hop, longest prefix first.
    pub routes: Arc<RouteTable>,
    /// VIP to backends.
    pub services: Arc<ServiceTable>,
    /// VNI to L2 segment; empty unless the overlay devices are TAPs.
    pub segments: Arc<SegmentTable>,
}

/// One published snapshot.
#[derive(Clone, Debug, Default)]
pub struct ForwardingTables {
    pub(super) generation: u32,
    pub(super) set: TableSet,
    pub(super) epochs: Epochs,
}

impl ForwardingTables {
    /// Changes with every publication: a flow decided or revalidated under this number needs no further look.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// This node.
    pub fn local(&self) -> &Local {
        &self.set.local
    }

    /// (VNI, MAC) to remote VTEP.
    pub fn fdb(&self) -> &Fdb {
        &self.set.fdb
    }

    /// (VNI, IP) to MAC.
    pub fn neighbors(&self) -> &NeighborTable {
        &self.set.neighbors
    }

    /// Prefix to next hop.
    pub fn routes(&self) -> &RouteTable {
        &self.set.routes
    }

    /// VIP to backends.
    pub fn services(&self) -> &ServiceTable {
        &self.set.services
    }

    /// VNI to L2 segment.
    pub fn segments(&self) -> &SegmentTable {
        &self.set.segments
    }

    /// Slots and epochs of all entries.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }
}
