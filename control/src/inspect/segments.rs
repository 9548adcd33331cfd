//! L2 segments as rows.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use windlass_dataplane::engine::bridge::learned::Heard;
use windlass_dataplane::tables::{Place, Segment};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::vxlan::Vni;

use super::Inspection;
use super::rows::NeighborRow;

/// A segment that this node is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentRow {
    /// Its name.
    pub name: String,
    /// Its network.
    pub vni: u32,
    /// Its TAP device here.
    pub device: String,
    /// The other VTEPs: who gets what everybody is to hear.
    pub vteps: Vec<SocketAddr>,
    /// What becomes of frames to stations that nobody knows: `flood` or `drop`.
    pub unknown_unicast: String,
    /// The most stations that are learned at one VTEP; nothing when none are.
    pub learns: Option<u32>,
    /// How long a silent learned station is remembered, in seconds.
    pub learns_for: Option<u64>,
}

/// A station of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StationRow {
    /// The segment's name.
    pub segment: String,
    /// Its network.
    pub vni: u32,
    /// The station.
    pub mac: String,
    /// Its addresses: what ARP and ND are answered with.
    pub ips: Vec<IpAddr>,
    /// The VTEP that it is behind; nothing when it is behind this node's own device.
    pub vtep: Option<SocketAddr>,
    /// For how long a learned one has been silent, in seconds; nothing of a static entry.
    pub silent_seconds: Option<u32>,
    /// What was learned of the path, in bytes of the outer packet.
    pub path_mtu: Option<u32>,
}

/// All segments, by VNI.
pub(super) fn segments(node: &Inspection) -> Vec<SegmentRow> {
    let row = |(vni, segment): (Vni, &Segment)| {
        let own = node.origin.settings.segments.iter().find(|own| own.vni == vni);
        SegmentRow {
            name: segment.name.clone(),
            vni: vni.get(),
            device: own.map(|own| own.name.clone()).unwrap_or_default(),
            vteps: segment.vteps().iter().map(|vtep| vtep.addr).collect(),
            unknown_unicast: if segment.floods_unknown { "flood" } else { "drop" }.to_owned(),
            learns: segment.learning.map(|learning| learning.per_vtep),
            learns_for: segment.learning.map(|learning| learning.lasts.as_secs()),
        }
    };
    let mut rows: Vec<_> = node.tables.segments().iter().map(|(vni, segment)| row((vni, segment))).collect();
    rows.sort_by_key(|row| row.vni);
    rows
}

/// All stations, static ones and those that were learned.
pub(super) fn stations(node: &Inspection) -> Vec<StationRow> {
    let mut rows = Vec::new();
    for (vni, segment) in node.tables.segments().iter() {
        rows.extend(segment.stations().map(|(mac, place)| row(node, (vni, segment), mac, place, None)));
    }
    for learned in node.learned.all(node.now) {
        let Some(segment) = node.tables.segments().lookup(learned.vni) else { continue };
        let place = match learned.heard {
            Heard::Device => Some(Place::Device),
            Heard::Vtep(addr) => segment.vtep_at(addr).cloned().map(Place::Vtep),
        };
        // A static entry that has come since wins.
        if let Some(place) = place.filter(|_| segment.place(learned.mac).is_none()) {
            let silent = Some(learned.silent_for);
            rows.push(row(node, (learned.vni, segment), learned.mac, &place, silent));
        }
    }
    rows.sort_by(|a, b| (a.vni, &a.mac).cmp(&(b.vni, &b.mac)));
    rows
}

fn row(
    node: &Inspection,
    (vni, segment): (Vni, &Segment),
    mac: Mac,
    place: &Place,
    silent_seconds: Option<u32>,
) -> StationRow {
    let mut ips: Vec<_> =
        segment.neighbors().filter(|(_, known)| *known == mac).map(|(addr, _)| addr).collect();
    ips.sort_unstable();
    let vtep = match place {
        Place::Device => None,
        Place::Vtep(vtep) => Some(vtep),
    };
    StationRow {
        segment: segment.name.clone(),
        vni: vni.get(),
        mac: mac.to_string(),
        ips,
        vtep: vtep.map(|vtep| vtep.addr),
        silent_seconds,
        path_mtu: vtep.and_then(|vtep| vtep.path_mtu.get(node.now)),
    }
}

/// What ARP and ND are answered with.
pub(super) fn neighbors(node: &Inspection) -> Vec<NeighborRow> {
    let mut rows = Vec::new();
    for (vni, segment) in node.tables.segments().iter() {
        rows.extend(segment.neighbors().map(|(addr, mac)| NeighborRow {
            vni: vni.get(),
            addr,
            mac: mac.to_string(),
            node: match segment.place(mac) {
                Some(Place::Vtep(vtep)) => Some(vtep.node.clone()),
                _ => Some(node.origin.settings.node.clone()),
            },
        }));
    }
    rows
}
