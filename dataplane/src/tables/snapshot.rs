//! All tables at one moment.

use std::hash::Hash;
use std::sync::Arc;

use super::epochs::{Dependency, Entry, Epochs, Table};
use super::fdb::Fdb;
use super::local::Local;
use super::neighbor::{NeighborTable, NetworkAddr};
use super::route::{Prefix, RouteTable};
use super::segment::SegmentTable;
use super::service::ServiceTable;
use super::slotted::{Slot, Slotted};

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

impl TableSet {
    /// Where an entry stands, if it is there.
    pub(super) fn place(&self, entry: &Entry) -> Option<(Table, Slot)> {
        Some(match *entry {
            Entry::Local => (Table::Local, Slot::LOCAL),
            Entry::Route(prefix) => (Table::Route, slot(&self.routes.routes, &Prefix::exactly(prefix))?),
            Entry::Neighbor(vni, addr) => {
                (Table::Neighbor, slot(&self.neighbors.entries, &NetworkAddr(vni, addr))?)
            }
            Entry::Fdb(vni, mac) => (Table::Fdb, slot(&self.fdb.entries, &(vni, mac))?),
            Entry::Source(vni, addr) => (Table::Source, self.fdb.source_slot(vni, addr)?),
            Entry::Service(vip) => (Table::Service, slot(&self.services.services, &vip)?),
        })
    }

    /// How many slots each table has given.
    pub(super) fn slots(&self) -> [(Table, u32); 6] {
        [
            (Table::Local, 1),
            (Table::Route, self.routes.routes.slots()),
            (Table::Neighbor, self.neighbors.entries.slots()),
            (Table::Fdb, self.fdb.entries.slots()),
            (Table::Source, self.fdb.sources.slots()),
            (Table::Service, self.services.services.slots()),
        ]
    }

    /// Whether these tables are `before`, slots and all: what was made from the one follows the other.
    pub(super) fn stands_as(&self, before: &Self) -> bool {
        self == before
            && follows(&self.routes, &before.routes, |table| &table.routes)
            && follows(&self.neighbors, &before.neighbors, |table| &table.entries)
            && follows(&self.fdb, &before.fdb, |table| &table.entries)
            && follows(&self.fdb, &before.fdb, |table| &table.sources)
            && follows(&self.services, &before.services, |table| &table.services)
    }
}

fn slot<K: Copy + Eq + Hash, V>(table: &Slotted<K, V>, key: &K) -> Option<Slot> {
    table.find(key).map(|(slot, _)| slot)
}

fn follows<T, K: Copy + Eq + Hash, V>(
    after: &Arc<T>,
    before: &Arc<T>,
    entries: impl Fn(&T) -> &Slotted<K, V>,
) -> bool {
    Arc::ptr_eq(after, before) || entries(after).agrees_with(entries(before))
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

    /// The dependency on `entry` as it is. One that does not exist has none: what was decided without it depends on the
    /// entry that decided instead.
    pub fn dependency(&self, entry: &Entry) -> Option<Dependency> {
        let (table, slot) = self.set.place(entry)?;
        Some(self.epochs.dependency(table, slot))
    }

    /// VNI to L2 segment.
    pub fn segments(&self) -> &SegmentTable {
        &self.set.segments
    }

    /// The epochs of all entries.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }
}
