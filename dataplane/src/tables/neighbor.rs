//! Neighbors: the MAC of a next hop (what ARP and ND would answer).

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use super::slotted::{Slot, Slotted};
use crate::wire::ethernet::Mac;
use crate::wire::flow::hash_addr_with;
use crate::wire::vxlan::Vni;

/// An address of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NetworkAddr(pub(super) Vni, pub(super) IpAddr);

/// In one word (IPv4) or three.
impl Hash for NetworkAddr {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addr_with(self.1, self.0.get(), state);
    }
}

/// (VNI, IP) to MAC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeighborTable {
    pub(super) entries: Slotted<NetworkAddr, Mac>,
}

impl NeighborTable {
    /// Adds or replaces an entry.
    pub fn insert(&mut self, vni: Vni, addr: IpAddr, mac: Mac) {
        self.entries.insert(NetworkAddr(vni, addr), mac);
    }

    /// Removes an entry.
    pub fn remove(&mut self, vni: Vni, addr: IpAddr) {
        self.entries.remove(&NetworkAddr(vni, addr));
    }

    /// The MAC of `addr`.
    pub fn lookup(&self, vni: Vni, addr: IpAddr) -> Option<Mac> {
        self.entries.get(&NetworkAddr(vni, addr)).copied()
    }

    /// The MAC of `addr`, and the entry's slot.
    #[inline]
    pub fn find(&self, vni: Vni, addr: IpAddr) -> Option<(Slot, Mac)> {
        self.entries.find(&NetworkAddr(vni, addr)).map(|(slot, mac)| (slot, *mac))
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Vni, IpAddr, Mac)> {
        self.entries.iter().map(|(NetworkAddr(vni, addr), mac)| (*vni, *addr, *mac))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
