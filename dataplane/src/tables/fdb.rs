//! The forwarding database: where on the underlay a MAC lives, and what each VTEP may send.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::HashMap;
use ipnet::IpNet;

use crate::wire::ethernet::Mac;
use crate::wire::vxlan::Vni;

/// A VTEP of another node.
#[derive(Clone, Debug)]
pub struct RemoteVtep {
    /// The node's name.
    pub node: String,
    /// Where its VXLAN port is.
    pub addr: SocketAddr,
    /// Inner sources it may send from: its podCIDRs.
    pub prefixes: Vec<IpNet>,
    /// The node's own addresses, from which a peer without ip-masq sends too.
    pub addresses: Vec<IpAddr>,
    /// What has been learned about the path; survives as long as the VTEP's entry does not change.
    pub path_mtu: PathMtu,
}

impl RemoteVtep {
    /// A VTEP with nothing learned about its path yet.
    pub fn new(node: impl Into<String>, addr: SocketAddr) -> Self {
        Self {
            node: node.into(),
            addr,
            prefixes: Vec::new(),
            addresses: Vec::new(),
            path_mtu: PathMtu::default(),
        }
    }

    /// Whether an inner packet from this VTEP may carry `source`.
    pub fn may_send_from(&self, source: IpAddr) -> bool {
        self.prefixes.iter().any(|prefix| prefix.contains(&source)) || self.addresses.contains(&source)
    }
}

impl PartialEq for RemoteVtep {
    fn eq(&self, other: &Self) -> bool {
        (&self.node, self.addr, &self.prefixes, &self.addresses)
            == (&other.node, other.addr, &other.prefixes, &other.addresses)
    }
}

impl Eq for RemoteVtep {}

/// A learned path MTU, shared by all snapshots that hold the VTEP.
#[derive(Clone, Debug, Default)]
pub struct PathMtu(Arc<AtomicU32>);

impl PathMtu {
    /// The largest outer IP packet in bytes, when something smaller than the device's MTU was learned.
    pub fn get(&self) -> Option<u32> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            mtu => Some(mtu),
        }
    }

    /// Whether both are of one VTEP, and learn together.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Remembers `mtu`, in bytes of the outer IP packet.
    pub fn set(&self, mtu: u32) {
        self.0.store(mtu, Ordering::Relaxed);
    }
}

/// (VNI, MAC) to remote VTEP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fdb {
    entries: HashMap<(Vni, Mac), Arc<RemoteVtep>>,
    /// A node may have one MAC per inner family behind one underlay address.
    sources: HashMap<(Vni, IpAddr), Vec<Arc<RemoteVtep>>>,
}

impl Fdb {
    /// Adds or replaces an entry.
    pub fn insert(&mut self, vni: Vni, mac: Mac, vtep: Arc<RemoteVtep>) {
        self.remove(vni, mac);
        self.entries.insert((vni, mac), Arc::clone(&vtep));
        let sources = self.sources.entry((vni, vtep.addr.ip())).or_default();
        sources.push(vtep);
        // An order that does not depend on that of insertion: equal tables must be equal.
        sources.sort_by(|a, b| (&a.node, a.addr, &a.prefixes).cmp(&(&b.node, b.addr, &b.prefixes)));
    }

    /// Removes an entry.
    pub fn remove(&mut self, vni: Vni, mac: Mac) {
        let Some(old) = self.entries.remove(&(vni, mac)) else { return };
        let key = (vni, old.addr.ip());
        if let Some(sources) = self.sources.get_mut(&key) {
            sources.retain(|source| !Arc::ptr_eq(source, &old));
            if sources.is_empty() {
                self.sources.remove(&key);
            }
        }
    }

    /// The VTEP behind `mac`.
    pub fn lookup(&self, vni: Vni, mac: Mac) -> Option<&Arc<RemoteVtep>> {
        self.entries.get(&(vni, mac))
    }

    /// The VTEPs that send from underlay address `addr` on `vni`; empty when none is known there.
    pub fn sources(&self, vni: Vni, addr: IpAddr) -> &[Arc<RemoteVtep>] {
        self.sources.get(&(vni, addr)).map_or(&[], Vec::as_slice)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Vni, Mac, &Arc<RemoteVtep>)> {
        self.entries.iter().map(|((vni, mac), vtep)| (*vni, *mac, vtep))
    }

    /// All (VNI, underlay address) pairs that may send, in no order.
    pub fn iter_sources(&self) -> impl Iterator<Item = (Vni, IpAddr, &[Arc<RemoteVtep>])> {
        self.sources.iter().map(|((vni, addr), vteps)| (*vni, *addr, vteps.as_slice()))
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
