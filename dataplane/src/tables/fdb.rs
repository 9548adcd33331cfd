//! The forwarding database: where on the underlay a MAC lives, and what each VTEP may send.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ipnet::IpNet;

use super::neighbor::NetworkAddr;
use super::slotted::{Slot, Slotted};
use crate::time::Instant;
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

    /// The longest inner IP packet in bytes that fits on the way there at `now`.
    pub fn inner_mtu(&self, overlay_mtu: u32, now: Instant) -> u32 {
        self.path_mtu.inner_mtu(self.addr, overlay_mtu, now)
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

/// A learned path MTU, shared by all snapshots that hold the VTEP: the largest outer IP packet in bytes, and the tick at
/// which that was learned.
#[derive(Clone, Debug, Default)]
pub struct PathMtu(Arc<AtomicU64>);

/// For how long what was learned holds: the path may have become wider (RFC 1191 section 6.3, RFC 8201 section 4).
pub const PATH_MTU_KEPT_FOR: Duration = Duration::from_secs(600);

/// No path is believed to be narrower, in bytes: Linux's net.ipv4.route.min_pmtu, and IPv6's minimum (RFC 8200 section 5).
const LEAST_V4: u32 = 552;
const LEAST_V6: u32 = 1_280;

/// Outer IPv4, UDP, VXLAN and inner Ethernet, in bytes.
const OUTER_V4_LEN: u32 = 20 + 8 + 8 + 14;

/// The same with outer IPv6.
const OUTER_V6_LEN: u32 = 40 + 8 + 8 + 14;

/// What encapsulation adds to an inner IP packet on the way to `remote`, in bytes.
pub fn outer_len(remote: IpAddr) -> u32 {
    if remote.is_ipv4() { OUTER_V4_LEN } else { OUTER_V6_LEN }
}

impl PathMtu {
    /// The largest outer IP packet in bytes, when something smaller than the device's MTU was learned and still holds.
    #[inline]
    pub fn get(&self, now: Instant) -> Option<u32> {
        match self.0.load(Ordering::Relaxed) {
            0 => None,
            learned => {
                let (at, mtu) = ((learned >> 32) as u32, learned as u32);
                let age = u64::from(now.tick().saturating_sub(at));
                (age < PATH_MTU_KEPT_FOR.as_secs()).then_some(mtu)
            }
        }
    }

    /// Remembers that the path to `remote` carries no more than `mtu` bytes of outer IP packet. What is wider than
    /// known changes nothing.
    pub fn learn(&self, remote: IpAddr, mtu: u32, now: Instant) {
        let mtu = mtu.max(if remote.is_ipv4() { LEAST_V4 } else { LEAST_V6 });
        if self.get(now).is_none_or(|known| mtu <= known) {
            self.0.store(u64::from(now.tick()) << 32 | u64::from(mtu), Ordering::Relaxed);
        }
    }

    /// The longest inner IP packet in bytes that fits: the device's MTU, or what was learned of the path.
    #[inline]
    pub fn inner_mtu(&self, remote: SocketAddr, overlay_mtu: u32, now: Instant) -> u32 {
        let path = self.get(now).map(|mtu| mtu.saturating_sub(outer_len(remote.ip())));
        path.unwrap_or(u32::MAX).min(overlay_mtu)
    }

    /// Whether both are of one VTEP, and learn together.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// (VNI, MAC) to remote VTEP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fdb {
    pub(super) entries: Slotted<(Vni, Mac), Arc<RemoteVtep>>,
    /// A node may have one MAC per inner family behind one underlay address.
    pub(super) sources: Slotted<NetworkAddr, Vec<Arc<RemoteVtep>>>,
}

impl Fdb {
    /// Adds or replaces an entry.
    pub fn insert(&mut self, vni: Vni, mac: Mac, vtep: Arc<RemoteVtep>) {
        self.remove(vni, mac);
        self.entries.insert((vni, mac), Arc::clone(&vtep));
        let key = NetworkAddr(vni, vtep.addr.ip());
        match self.sources.get_mut(&key) {
            Some(sources) => {
                sources.push(vtep);
                // An order that does not depend on that of insertion: equal tables must be equal.
                sources.sort_by(|a, b| (&a.node, a.addr, &a.prefixes).cmp(&(&b.node, b.addr, &b.prefixes)));
            }
            None => {
                self.sources.insert(key, vec![vtep]);
            }
        }
    }

    /// Removes an entry.
    pub fn remove(&mut self, vni: Vni, mac: Mac) {
        let Some(old) = self.entries.remove(&(vni, mac)) else { return };
        let key = NetworkAddr(vni, old.addr.ip());
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

    /// The VTEP behind `mac`, and the entry's slot.
    #[inline]
    pub fn find(&self, vni: Vni, mac: Mac) -> Option<(Slot, &RemoteVtep)> {
        self.entries.find(&(vni, mac)).map(|(slot, vtep)| (slot, &**vtep))
    }

    /// The VTEPs that send from underlay address `addr` on `vni`; empty when none is known there.
    pub fn sources(&self, vni: Vni, addr: IpAddr) -> &[Arc<RemoteVtep>] {
        self.sources.get(&NetworkAddr(vni, addr)).map_or(&[], Vec::as_slice)
    }

    /// The slot of an underlay address that may send on `vni`.
    #[inline]
    pub fn source_slot(&self, vni: Vni, addr: IpAddr) -> Option<Slot> {
        self.sources.find(&NetworkAddr(vni, addr)).map(|(slot, _)| slot)
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (Vni, Mac, &Arc<RemoteVtep>)> {
        self.entries.iter().map(|((vni, mac), vtep)| (*vni, *mac, vtep))
    }

    /// All (VNI, underlay address) pairs that may send, in no order.
    pub fn iter_sources(&self) -> impl Iterator<Item = (Vni, IpAddr, &[Arc<RemoteVtep>])> {
        self.sources.iter().map(|(NetworkAddr(vni, addr), vteps)| (*vni, *addr, vteps.as_slice()))
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
