//! L2 segments for tests: tables of one node, and frames as its devices and peers give them.

use std::net::IpAddr;
use std::sync::Arc;

use windlass_dataplane::tables::{Local, Place, RemoteVtep, Segment, SegmentTable, TableSet};
use windlass_dataplane::wire::arp;
use windlass_dataplane::wire::ethernet::{self, Mac};
use windlass_dataplane::wire::ndp;
use windlass_dataplane::wire::vxlan::{self, Vni};

use crate::engine_node::{addr, mac, socket};

/// A segment with stations of static entries; the node is 192.0.2.1.
pub const BLUE: u32 = 100;
/// Another one, with the same MACs and addresses at other places.
pub const RED: u32 = 200;

/// Behind our device on blue, behind 192.0.2.2 on red: 10.0.0.1 and fd00::1.
pub const HERE: &str = "02:00:00:00:00:a1";
/// Behind 192.0.2.2 on blue, behind 192.0.2.3 on red: 10.0.0.2 and fd00::2.
pub const THERE: &str = "02:00:00:00:00:b2";
/// Behind 192.0.2.3 on blue, behind our device on red: 10.0.0.3 and fd00::3.
pub const ELSEWHERE: &str = "02:00:00:00:00:c3";
/// Of no entry.
pub const STRANGER: &str = "02:00:00:00:00:0f";

/// The other VTEPs of both segments.
pub const VTEPS: [&str; 3] = ["192.0.2.2", "192.0.2.3", "192.0.2.4"];

/// The tables of 192.0.2.1, blue changed by `edit`.
pub fn tables(edit: impl Fn(&mut Segment)) -> TableSet {
    let mut segments = SegmentTable::default();
    let vtep = |index: usize| {
        let node = VTEPS[index];
        Arc::new(RemoteVtep::new(node, socket(&format!("{node}:4789"))))
    };
    let vteps: Vec<_> = (0..VTEPS.len()).map(vtep).collect();
    let behind = |index: usize| Place::Vtep(Arc::clone(&vteps[index]));
    let places = [
        (BLUE, "blue", [Place::Device, behind(0), behind(1)]),
        (RED, "red", [behind(0), behind(1), Place::Device]),
    ];
    for (vni, name, places) in places {
        let mut segment = Segment::new(name, vteps.clone());
        for ((number, station), place) in (1..).zip([HERE, THERE, ELSEWHERE]).zip(places) {
            segment.insert_station(mac(station), place);
            segment.insert_neighbor(addr(&format!("10.0.0.{number}")), mac(station));
            segment.insert_neighbor(addr(&format!("fd00::{number}")), mac(station));
        }
        if vni == BLUE {
            edit(&mut segment);
        }
        segments.insert(number(vni), segment);
    }
    let local = Local { node: "a".to_owned(), overlay_mtu: 1450, ..Local::default() };
    TableSet { local: Arc::new(local), segments: Arc::new(segments), ..TableSet::default() }
}

/// A frame of a segment behind its VXLAN header.
pub fn frame(vni: u32, dst: &str, src: &str, ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; vxlan::HEADER_LEN + ethernet::HEADER_LEN];
    vxlan::emit(&mut bytes, number(vni));
    ethernet::emit(&mut bytes[vxlan::HEADER_LEN..], mac(dst), mac(src), ethertype);
    [&bytes[..], payload].concat()
}

/// A frame that carries an IP packet.
pub fn ip_frame(vni: u32, dst: &str, src: &str, packet: &[u8]) -> Vec<u8> {
    let ethertype = if packet[0] >> 4 == 6 { ethernet::IPV6 } else { ethernet::IPV4 };
    frame(vni, dst, src, ethertype, packet)
}

/// The question where `target` is, by ARP or ND, asked by the station `src` whose address is `from`.
pub fn question(vni: u32, src: &str, from: &str, target: &str) -> Vec<u8> {
    match (addr(from), addr(target)) {
        (IpAddr::V4(from), IpAddr::V4(target)) => {
            let mut message = [0; arp::LEN];
            arp::emit_request(&mut message, mac(src), from, target);
            frame(vni, "ff:ff:ff:ff:ff:ff", src, ethernet::ARP, &message)
        }
        (IpAddr::V6(from), IpAddr::V6(target)) => {
            let mut packet = [0; ndp::PACKET_LEN];
            ndp::emit_solicitation(&mut packet, from, mac(src), target);
            let group = ndp::multicast_mac(ndp::solicited_node(target));
            frame(vni, &group.to_string(), src, ethernet::IPV6, &packet)
        }
        _ => unreachable!("addresses of two families"),
    }
}

/// A MAC and an address that nobody has, by number.
pub fn made_up(number: u32) -> String {
    let [_, a, b, c] = number.to_be_bytes();
    Mac([0x06, 0, 0, a, b, c]).to_string()
}

fn number(vni: u32) -> Vni {
    Vni::new(vni).unwrap_or_else(|| unreachable!("a VNI of 24 bits"))
}
