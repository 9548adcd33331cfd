//! What must hold of everything that node a of the worked example sends, whatever it was given.

use windlass_dataplane::packet::Checksum;
use windlass_dataplane::wire::flow::FlowKey;
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_tests::engine_node::{Delivered, MAC_A, MAC_A6, MAC_B, MAC_B6, Sent, VNI, addr, mac, net};

use crate::node::{self, UNDERLAY_B};

/// VXLAN and Ethernet header before the inner packet.
pub const HEADERS_LEN: usize = 22;

/// A datagram of node a: outer and inner headers are node b's, the inner packet is whole and fits, and goes to no VIP.
///
/// # Panics
/// When it is not so.
pub fn datagram(sent: &Sent) {
    let (headers, ip) = sent.payload.split_at(HEADERS_LEN);
    let inner = whole(ip);
    let ipv6 = inner.flow.src.is_ipv6();
    let (ours, theirs) = if ipv6 { (MAC_A6, MAC_B6) } else { (MAC_A, MAC_B) };
    let ethertype: u16 = if ipv6 { 0x86dd } else { 0x0800 };
    let expected = [
        &[8, 0, 0, 0][..],
        &(VNI << 8).to_be_bytes(),
        &mac(theirs).0,
        &mac(ours).0,
        &ethertype.to_be_bytes(),
    ];
    assert_eq!(headers, expected.concat());
    assert_eq!((sent.remote.ip(), sent.remote.port()), (addr(UNDERLAY_B), 4789));
    let on_b = if ipv6 { net("fd00:10:244:2::/64") } else { net("10.244.2.0/24") };
    assert!(on_b.contains(&inner.flow.dst), "{} is on no pod of node b", inner.flow.dst);
    let wire_len = match sent.segment_len {
        0 => ip.len(),
        len => ip.len().min(inner.headers_len() + usize::from(len)),
    };
    assert!(wire_len <= 1450, "{wire_len} bytes leave for a path of 1450");
}

/// A packet from a peer that node a hands on: whole, and for one of its pods or for itself.
///
/// # Panics
/// When it is not so.
pub fn delivered(packet: &Delivered) {
    let dst = whole(&packet.bytes).flow.dst;
    let ours = ["10.244.0.0/24", "fd00:10:244::/64", "192.168.1.40/32"].map(net);
    assert!(ours.iter().any(|prefix| prefix.contains(&dst)), "{dst} is not on node a");
    if let Checksum::Partial { start, offset } = packet.checksum {
        assert!(usize::from(start) + usize::from(offset) + 2 <= packet.bytes.len());
    }
}

/// The same bytes; else the first difference is told, not all of both.
///
/// # Panics
/// When they differ.
pub fn same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "bytes found and expected");
    let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(at) = differs {
        let window = at..found.len().min(at + 16);
        unreachable!("byte {at}: {:02x?}, and expected {:02x?}", &found[window.clone()], &expected[window]);
    }
}

/// Whether a flow goes to a service of the worked example.
pub fn is_to_vip(flow: &FlowKey) -> bool {
    node::tables().services.addresses().any(|addr| addr == flow.dst)
}

/// The IP packet that all of `bytes` are.
///
/// # Panics
/// When they are not.
pub fn whole(bytes: &[u8]) -> InnerPacket {
    let inner = InnerPacket::parse(bytes).unwrap_or_else(|_| unreachable!("no IP packet: {bytes:02x?}"));
    assert_eq!(inner.total_len as usize, bytes.len(), "the packet's length and its header's");
    inner
}
