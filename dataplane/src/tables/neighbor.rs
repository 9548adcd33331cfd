//! Neighbors: the MAC of a next hop (what ARP and ND would answer).

use std::net::IpAddr;

use foldhash::HashMap;

use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// (VNI, IP) to MAC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NeighborTable {
    entries: HashMap<(Vni, IpAddr), Mac>,
}

impl NeighborTable {
    /// Adds or replaces an entry.
    pub fn insert(&mut self, vni: Vni, addr: IpAddr, mac: Mac) {
        self.entries.insert((vni, addr), mac);
    }

    /// Removes an entry.
    pub fn remove(&mut self, vni: Vni, addr: IpAddr) {
        self.entries.remove(&(vni, addr));
    }

    /// The MAC of `addr`.
    pub fn lookup(&self, vni: Vni, addr: IpAddr) -> Option<Mac> {
        self.entries.get(&(vni, addr)).copied()
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Vni, IpAddr, Mac)> {
        self.entries.iter().map(|((vni, addr), mac)| (*vni, *addr, *mac))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
