//! L2 segments: which station is where, who is asked instead of everybody, and who everybody is.
//!
//! Read first: RFC 7348 sections 4.1 and 4.2. A segment is one VNI; behind each of its VTEPs are stations, that is,
//! MAC addresses.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashMap;

use super::fdb::RemoteVtep;
use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// Where a station is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// On this node's side: behind the segment's overlay device.
    Device,
    /// Behind another VTEP.
    Vtep(Arc<RemoteVtep>),
}

/// How much is learned from frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learning {
    /// The most stations that are learned at one VTEP, and at our own device (E6).
    pub per_vtep: u32,
    /// How long a station that is silent is remembered.
    pub lasts: Duration,
}

/// One L2 network as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its name, for people.
    pub name: String,
    /// Whether a frame to a MAC that no entry has goes to every VTEP; else it is dropped.
    pub floods_unknown: bool,
    /// What is learned; nothing unless told so.
    pub learning: Option<Learning>,
    vteps: Vec<Arc<RemoteVtep>>,
    stations: HashMap<Mac, Place>,
    neighbors: HashMap<IpAddr, Mac>,
}

impl Segment {
    /// A segment of this node and `vteps`, without stations. It floods what is unknown and learns nothing.
    pub fn new(name: impl Into<String>, mut vteps: Vec<Arc<RemoteVtep>>) -> Self {
        vteps.sort_by_key(|vtep| vtep.addr);
        vteps.dedup_by_key(|vtep| vtep.addr.ip());
        Self {
            name: name.into(),
            floods_unknown: true,
            learning: None,
            vteps,
            stations: HashMap::default(),
            neighbors: HashMap::default(),
        }
    }

    /// Adds or replaces a static entry.
    pub fn insert_station(&mut self, mac: Mac, place: Place) {
        self.stations.insert(mac, place);
    }

    /// Adds or replaces the MAC of an address: what ARP and ND are answered with.
    pub fn insert_neighbor(&mut self, addr: IpAddr, mac: Mac) {
        self.neighbors.insert(addr, mac);
    }

    /// The other VTEPs, in the order of their addresses: who gets what everybody is to hear.
    pub fn vteps(&self) -> &[Arc<RemoteVtep>] {
        &self.vteps
    }

    /// The VTEP at an underlay address.
    pub fn vtep_at(&self, addr: IpAddr) -> Option<&Arc<RemoteVtep>> {
        let found = self.vteps.binary_search_by_key(&addr, |vtep| vtep.addr.ip());
        found.ok().and_then(|index| self.vteps.get(index))
    }

    /// Where a station is by its static entry.
    pub fn place(&self, mac: Mac) -> Option<&Place> {
        self.stations.get(&mac)
    }

    /// The MAC of an address.
    pub fn neighbor(&self, addr: IpAddr) -> Option<Mac> {
        self.neighbors.get(&addr).copied()
    }

    /// All static entries, in no order.
    pub fn stations(&self) -> impl Iterator<Item = (Mac, &Place)> {
        self.stations.iter().map(|(mac, place)| (*mac, place))
    }

    /// All addresses with their MACs, in no order.
    pub fn neighbors(&self) -> impl Iterator<Item = (IpAddr, Mac)> {
        self.neighbors.iter().map(|(addr, mac)| (*addr, *mac))
    }
}

/// VNI to segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentTable {
    segments: HashMap<Vni, Arc<Segment>>,
}

impl SegmentTable {
    /// Adds or replaces a segment.
    pub fn insert(&mut self, vni: Vni, segment: Segment) {
        self.segments.insert(vni, Arc::new(segment));
    }

    /// The segment of a VNI.
    pub fn lookup(&self, vni: Vni) -> Option<&Arc<Segment>> {
        self.segments.get(&vni)
    }

    /// All of them, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Vni, &Arc<Segment>)> {
        self.segments.iter().map(|(vni, segment)| (*vni, segment))
    }

    /// The VTEP at an underlay address, of any segment.
    pub fn vteps_at(&self, addr: IpAddr) -> impl Iterator<Item = &Arc<RemoteVtep>> {
        self.segments.values().filter_map(move |segment| segment.vtep_at(addr))
    }

    /// Number of segments.
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}
