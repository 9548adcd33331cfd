//! Tables in the making.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::epochs::Entry;
use super::fdb::RemoteVtep;
use super::local::Local;
use super::route::NextHop;
use super::segment::SegmentTable;
use super::service::{Service, Vip};
use super::snapshot::TableSet;
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// Tables that differ from the ones before by a few entries, which are noted, so that publishing them costs what
/// changed. A table that is touched is copied once a draft: an `Arc` per entry. A service or VTEP that is equal
/// to the one before is the very same one, with what was learned about its path.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    pub(super) before: TableSet,
    pub(super) set: TableSet,
    pub(super) touched: Vec<Entry>,
}

impl Draft {
    /// The tables as they are so far.
    pub fn tables(&self) -> &TableSet {
        &self.set
    }

    /// The only entries that may differ from the tables before. Some are named twice.
    pub fn touched(&self) -> &[Entry] {
        &self.touched
    }

    /// Hands this draft over to be published and begins the next one, which follows it.
    pub fn finish(&mut self) -> Self {
        let before = self.set.clone();
        std::mem::replace(self, Self { set: before.clone(), before, touched: Vec::new() })
    }

    /// Says everything about this node.
    pub fn set_local(&mut self, local: Local) {
        if *self.set.local != local {
            self.set.local = Arc::new(local);
            self.touched.push(Entry::Local);
        }
    }

    /// Says everything about L2 segments. No cached flow depends on them.
    pub fn set_segments(&mut self, segments: SegmentTable) {
        if *self.set.segments != segments {
            self.set.segments = Arc::new(segments);
        }
    }

    /// Adds or replaces a route.
    pub fn insert_route(&mut self, prefix: IpNet, next_hop: NextHop) {
        Arc::make_mut(&mut self.set.routes).insert(prefix, next_hop);
        self.touched.push(Entry::Route(prefix.trunc()));
    }

    /// Removes a route.
    pub fn remove_route(&mut self, prefix: IpNet) {
        Arc::make_mut(&mut self.set.routes).remove(prefix);
        self.touched.push(Entry::Route(prefix.trunc()));
    }

    /// Adds or replaces a neighbor.
    pub fn insert_neighbor(&mut self, vni: Vni, addr: IpAddr, mac: Mac) {
        Arc::make_mut(&mut self.set.neighbors).insert(vni, addr, mac);
        self.touched.push(Entry::Neighbor(vni, addr));
    }

    /// Removes a neighbor.
    pub fn remove_neighbor(&mut self, vni: Vni, addr: IpAddr) {
        Arc::make_mut(&mut self.set.neighbors).remove(vni, addr);
        self.touched.push(Entry::Neighbor(vni, addr));
    }

    /// Adds or replaces an FDB entry.
    pub fn insert_vtep(&mut self, vni: Vni, mac: Mac, vtep: RemoteVtep) {
        let vtep = or_known(self.before.fdb.lookup(vni, mac), vtep);
        self.remove_vtep(vni, mac);
        self.touched.extend([Entry::Fdb(vni, mac), Entry::Source(vni, vtep.addr.ip())]);
        Arc::make_mut(&mut self.set.fdb).insert(vni, mac, vtep);
    }

    /// Removes an FDB entry.
    pub fn remove_vtep(&mut self, vni: Vni, mac: Mac) {
        if let Some(old) = self.set.fdb.lookup(vni, mac) {
            self.touched.extend([Entry::Fdb(vni, mac), Entry::Source(vni, old.addr.ip())]);
            Arc::make_mut(&mut self.set.fdb).remove(vni, mac);
        }
    }

    /// Adds or replaces a service.
    pub fn insert_service(&mut self, service: Service) {
        let vip = service.vip;
        let service = or_known(self.before.services.lookup(vip), service);
        if !self.set.services.lookup(vip).is_some_and(|present| Arc::ptr_eq(present, &service)) {
            Arc::make_mut(&mut self.set.services).insert(service);
            self.touched.push(Entry::Service(vip));
        }
    }

    /// Removes a service.
    pub fn remove_service(&mut self, vip: Vip) {
        Arc::make_mut(&mut self.set.services).remove(vip);
        self.touched.push(Entry::Service(vip));
    }
}

fn or_known<T: PartialEq>(known: Option<&Arc<T>>, value: T) -> Arc<T> {
    known.filter(|known| ***known == value).map_or_else(|| Arc::new(value), Arc::clone)
}
