//! Stable slots and their epochs.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::HashMap;
use ipnet::IpNet;

use crate::wire::ethernet::Mac;
use crate::wire::flow::{Vip, hash_addr_with};
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

/// The kind of entry and all that is shorter than an address stand in one word: a VNI has 24 bits.
impl Hash for Entry {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        match *self {
            Self::Local => state.write_u64(0),
            Self::Route(prefix) => {
                hash_addr_with(prefix.addr(), 1 << 24 | u32::from(prefix.prefix_len()), state)
            }
            Self::Neighbor(vni, addr) => hash_addr_with(addr, 2 << 24 | vni.get(), state),
            Self::Fdb(vni, mac) => {
                mac.hash(state);
                state.write_u32(3 << 24 | vni.get());
            }
            Self::Source(vni, addr) => hash_addr_with(addr, 4 << 24 | vni.get(), state),
            Self::Service(vip) => vip.hash(state),
        }
    }
}

/// "This entry, as it was at this epoch."
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dependency {
    slot: u32,
    epoch: u32,
}

/// This node's own: the first entry that [`Writer::new`](super::Writer::new) adds, and one that never goes.
const LOCAL_SLOT: u32 = 0;

/// The epoch of every entry of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Epochs {
    slots: Arc<HashMap<Entry, u32>>,
    epochs: Vec<u32>,
    free: Vec<u32>,
}

impl Epochs {
    /// The dependency on `entry` as it is. An entry that does not exist has none: what was decided without
    /// it depends on the entry that decided instead.
    pub fn dependency(&self, entry: Entry) -> Option<Dependency> {
        let slot = if entry == Entry::Local { LOCAL_SLOT } else { *self.slots.get(&entry)? };
        Some(Dependency { slot, epoch: *self.epochs.get(slot as usize)? })
    }

    /// Whether the entry is still as it was.
    pub fn is_current(&self, dependency: Dependency) -> bool {
        self.epochs.get(dependency.slot as usize) == Some(&dependency.epoch)
    }

    pub(super) fn bump(&mut self, entry: Entry) {
        if let Some(slot) = self.slots.get(&entry) {
            let epoch = &mut self.epochs[*slot as usize];
            *epoch = epoch.wrapping_add(1);
        }
    }

    pub(super) fn add(&mut self, entry: Entry) {
        if self.slots.contains_key(&entry) {
            return;
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.epochs.push(0);
            (self.epochs.len() - 1) as u32
        });
        Arc::make_mut(&mut self.slots).insert(entry, slot);
    }

    pub(super) fn remove(&mut self, entry: Entry) {
        self.bump(entry);
        if let Some(slot) = Arc::make_mut(&mut self.slots).remove(&entry) {
            self.free.push(slot);
        }
    }
}
