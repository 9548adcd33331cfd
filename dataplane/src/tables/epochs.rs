//! Entries by name, and the epochs of their slots.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::slotted::Slot;
use crate::wire::ethernet::Mac;
use crate::wire::flow::Vip;
use crate::wire::vxlan::Vni;

/// The name of one entry of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Everything about this node.
    Local,
    /// A route. Also stands for "no service at any address this route covers, but for longer prefixes".
    Route(IpNet),
    /// A neighbor.
    Neighbor(Vni, IpAddr),
    /// An FDB entry.
    Fdb(Vni, Mac),
    /// An underlay address that may send us a VNI.
    Source(Vni, IpAddr),
    /// A service.
    Service(Vip),
}

/// Which table a slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Everything about this node: one slot.
    Local,
    /// Routes.
    Route,
    /// Neighbors.
    Neighbor,
    /// FDB entries.
    Fdb,
    /// Underlay addresses that may send.
    Source,
    /// Services.
    Service,
}

const TABLES: usize = 6;

/// "This entry, as it was at this epoch."
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dependency {
    /// The table in the highest three bits, the slot in the others.
    place: u32,
    epoch: u32,
}

const SLOT_BITS: u32 = 29;

/// The epoch of every entry of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Epochs([Arc<Vec<u32>>; TABLES]);

impl Epochs {
    /// The dependency on the entry that stands there, as it is.
    #[inline]
    pub fn dependency(&self, table: Table, slot: Slot) -> Dependency {
        let epoch = self.0[table as usize].get(slot.0 as usize).copied().unwrap_or_default();
        Dependency { place: (table as u32) << SLOT_BITS | slot.0, epoch }
    }

    /// Whether the entry is still as it was.
    #[inline]
    pub fn is_current(&self, dependency: Dependency) -> bool {
        let Dependency { place, epoch } = dependency;
        let table = self.0.get((place >> SLOT_BITS) as usize);
        let slot = (place & ((1 << SLOT_BITS) - 1)) as usize;
        table.and_then(|epochs| epochs.get(slot)) == Some(&epoch)
    }

    /// What depends on the entry that stands there holds no longer.
    pub(super) fn bump(&mut self, table: Table, slot: Slot) {
        if let Some(epoch) = Arc::make_mut(&mut self.0[table as usize]).get_mut(slot.0 as usize) {
            *epoch = epoch.wrapping_add(1);
        }
    }

    /// Makes place for so many slots of a table.
    pub(super) fn make_room(&mut self, table: Table, slots: u32) {
        let epochs = &mut self.0[table as usize];
        if epochs.len() < slots as usize {
            Arc::make_mut(epochs).resize(slots as usize, 0);
        }
    }
}
