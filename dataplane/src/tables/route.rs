//! Routes: longest prefix to next hop.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

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

/// Prefix to next hop.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    v4: PrefixMap<Ipv4Net, NextHop>,
    v6: PrefixMap<Ipv6Net, NextHop>,
}

impl RouteTable {
    /// Adds or replaces a route; returns what stood there. Host bits of `prefix` are ignored.
    pub fn insert(&mut self, prefix: IpNet, next_hop: NextHop) -> Option<NextHop> {
        match prefix.trunc() {
            IpNet::V4(prefix) => self.v4.insert(prefix, next_hop),
            IpNet::V6(prefix) => self.v6.insert(prefix, next_hop),
        }
    }

    /// Removes the route of exactly this prefix.
    pub fn remove(&mut self, prefix: IpNet) {
        match prefix.trunc() {
            IpNet::V4(prefix) => self.v4.remove(&prefix),
            IpNet::V6(prefix) => self.v6.remove(&prefix),
        };
    }

    /// The route with the longest prefix that holds `addr`.
    pub fn lookup(&self, addr: IpAddr) -> Option<(IpNet, NextHop)> {
        self.covering(addr.into())
    }

    /// The longest route that holds all of `prefix`.
    pub fn covering(&self, prefix: IpNet) -> Option<(IpNet, NextHop)> {
        match prefix {
            IpNet::V4(prefix) => self.v4.get_lpm(&prefix).map(|(route, hop)| (IpNet::V4(route), *hop)),
            IpNet::V6(prefix) => self.v6.get_lpm(&prefix).map(|(route, hop)| (IpNet::V6(route), *hop)),
        }
    }

    /// The route of exactly this prefix.
    pub fn get(&self, prefix: IpNet) -> Option<NextHop> {
        match prefix {
            IpNet::V4(prefix) => self.v4.get(&prefix).copied(),
            IpNet::V6(prefix) => self.v6.get(&prefix).copied(),
        }
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All routes, in the order of their prefixes, IPv4 first.
    pub fn iter(&self) -> impl Iterator<Item = (IpNet, NextHop)> {
        let v4 = self.v4.iter().map(|(prefix, hop)| (IpNet::V4(prefix), *hop));
        let v6 = self.v6.iter().map(|(prefix, hop)| (IpNet::V6(prefix), *hop));
        v4.chain(v6)
    }
}

impl PartialEq for RouteTable {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for RouteTable {}
