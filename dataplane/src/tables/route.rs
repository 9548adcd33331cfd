//! Routes: longest prefix to next hop.

use std::cmp::Reverse;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use ipnet::IpNet;

use super::slotted::{Slot, Slotted};
use crate::wire::flow::hash_addr_with;
use crate::wire::vxlan::Vni;

/// Where a packet goes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// Another node, through its VTEP: the neighbor of `gateway` on `vni`.
    Remote {
        /// The network it is reached on.
        vni: Vni,
        /// The base address of its podCIDR.
        gateway: IpAddr,
    },
    /// A pod of this node: back into the overlay device.
    Overlay,
    /// This node itself, or any address outside the overlay: back into the overlay device, for the host to
    /// deliver or route.
    Host,
}

/// A prefix without host bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix(IpNet);

impl Prefix {
    /// The prefix itself; host bits are ignored.
    pub(super) fn exactly(prefix: IpNet) -> Self {
        Self(prefix.trunc())
    }

    /// `None` for more bits than the family has.
    #[inline]
    fn of(addr: IpAddr, len: u8) -> Option<Self> {
        IpNet::new(addr, len).ok().map(|prefix| Self(prefix.trunc()))
    }
}

/// In one word (IPv4) or three.
impl Hash for Prefix {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_addr_with(self.0.addr(), u32::from(self.0.prefix_len()), state);
    }
}

/// Prefix to next hop: one hash table, asked once per prefix length that there is, the longest first. The routes of a
/// cluster have two or three lengths.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    pub(super) routes: Slotted<Prefix, NextHop>,
    v4: Lengths,
    v6: Lengths,
}

/// The prefix lengths of one family, the longest first, and how many routes have each.
#[derive(Clone, Debug, Default)]
struct Lengths(Vec<(u8, usize)>);

impl Lengths {
    fn add(&mut self, len: u8) {
        match self.place(len) {
            Ok(place) => self.0[place].1 += 1,
            Err(place) => self.0.insert(place, (len, 1)),
        }
    }

    fn remove(&mut self, len: u8) {
        let Ok(place) = self.place(len) else { return };
        self.0[place].1 -= 1;
        if self.0[place].1 == 0 {
            self.0.remove(place);
        }
    }

    fn place(&self, len: u8) -> Result<usize, usize> {
        self.0.binary_search_by_key(&Reverse(len), |(len, _)| Reverse(*len))
    }
}

impl RouteTable {
    /// Adds or replaces a route; returns what stood there. Host bits of `prefix` are ignored.
    pub fn insert(&mut self, prefix: IpNet, next_hop: NextHop) -> Option<NextHop> {
        let before = self.routes.insert(Prefix::exactly(prefix), next_hop);
        if before.is_none() {
            self.lengths_mut(prefix).add(prefix.prefix_len());
        }
        before
    }

    /// Removes the route of exactly this prefix.
    pub fn remove(&mut self, prefix: IpNet) {
        if self.routes.remove(&Prefix::exactly(prefix)).is_some() {
            self.lengths_mut(prefix).remove(prefix.prefix_len());
        }
    }

    /// The route with the longest prefix that holds `addr`.
    pub fn lookup(&self, addr: IpAddr) -> Option<(IpNet, NextHop)> {
        self.find(addr).map(|(_, prefix, next_hop)| (prefix, next_hop))
    }

    /// The same, with its slot.
    #[inline]
    pub fn find(&self, addr: IpAddr) -> Option<(Slot, IpNet, NextHop)> {
        let lengths = if addr.is_ipv4() { &self.v4 } else { &self.v6 };
        lengths.0.iter().find_map(|(len, _)| self.route(Prefix::of(addr, *len)?))
    }

    /// The longest route that holds all of `prefix`.
    pub fn covering(&self, prefix: IpNet) -> Option<(IpNet, NextHop)> {
        let lengths = if prefix.addr().is_ipv4() { &self.v4 } else { &self.v6 };
        let mut lengths = lengths.0.iter().filter(|(len, _)| *len <= prefix.prefix_len());
        let (_, prefix, next_hop) =
            lengths.find_map(|(len, _)| self.route(Prefix::of(prefix.addr(), *len)?))?;
        Some((prefix, next_hop))
    }

    #[inline]
    fn route(&self, prefix: Prefix) -> Option<(Slot, IpNet, NextHop)> {
        self.routes.find(&prefix).map(|(slot, next_hop)| (slot, prefix.0, *next_hop))
    }

    /// The route of exactly this prefix.
    pub fn get(&self, prefix: IpNet) -> Option<NextHop> {
        self.routes.get(&Prefix(prefix)).copied()
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.routes.len()
    }

    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All routes, in the order of their prefixes, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (IpNet, NextHop)> {
        let mut routes: Vec<_> = self.routes.iter().map(|(prefix, hop)| (prefix.0, *hop)).collect();
        routes.sort_unstable_by_key(|(prefix, _)| *prefix);
        routes.into_iter()
    }

    fn lengths_mut(&mut self, prefix: IpNet) -> &mut Lengths {
        if prefix.addr().is_ipv4() { &mut self.v4 } else { &mut self.v6 }
    }
}

impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.routes == other.routes
    }
}

impl Eq for RouteTable {}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn the_longest_prefix_wins_in_each_family_and_a_shorter_one_comes_back() {
        let mut table = RouteTable::default();
        for prefix in ["0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "fd00::/16", "fd00:1::/64"] {
            table.insert(net(prefix), NextHop::Host);
        }
        let found = |table: &RouteTable, addr: &str| {
            table.lookup(addr.parse().unwrap()).map(|(prefix, _)| prefix.to_string())
        };
        for (addr, prefix) in [
            ("10.1.2.3", "10.1.2.3/32"),
            ("10.1.2.4", "10.1.0.0/16"),
            ("10.2.0.1", "10.0.0.0/8"),
            ("11.0.0.1", "0.0.0.0/0"),
            ("fd00:1::7", "fd00:1::/64"),
            ("fd00:2::7", "fd00::/16"),
        ] {
            assert_eq!(found(&table, addr).as_deref(), Some(prefix), "{addr}");
        }
        assert_eq!(found(&table, "fe00::1"), None);
        assert_eq!(table.covering(net("10.1.0.0/15")).unwrap().0, net("10.0.0.0/8"));
        table.remove(net("10.1.0.0/16"));
        assert_eq!(found(&table, "10.1.2.4").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(table.len(), 5);
    }
}
