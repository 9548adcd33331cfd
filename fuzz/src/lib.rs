//! Fuzz targets, as functions: libFuzzer calls them with what it makes up, a test with the committed corpus.

pub mod seeds;

use std::cell::RefCell;
use std::net::IpAddr;

use windlass_dataplane::engine::Settings;
use windlass_dataplane::packet::MAX_PACKET_LEN;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_tests::engine_node::{EngineNode, addr, flow, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp};

/// Bytes before the VXLAN header of an input of [`decap`].
pub const PREFIX_LEN: usize = 4;

/// What the first four bytes of an input of [`decap`] say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefix {
    /// Whether the datagram comes from an address that is no VTEP.
    pub stranger: bool,
    /// Outer TOS byte.
    pub tos: u8,
    /// Segment size that UDP_GRO tells; 0 for none.
    pub segment_len: u16,
}

impl Prefix {
    /// Its bytes.
    pub fn to_bytes(self) -> [u8; PREFIX_LEN] {
        let [high, low] = self.segment_len.to_be_bytes();
        [u8::from(self.stranger), self.tos, high, low]
    }
}

thread_local! {
    static NODE: RefCell<EngineNode> = RefCell::new(node());
}

/// Feeds the decap path of a node of the worked example, which has connections to VIPs open.
///
/// # Panics
/// When the engine does, when its sums disagree, or when what it delivers is no whole IP packet.
pub fn decap(data: &[u8]) {
    let Some(([flags, tos, high, low], payload)) = data.split_first_chunk::<PREFIX_LEN>() else { return };
    if payload.len() > MAX_PACKET_LEN {
        return;
    }
    let from: IpAddr = addr(if flags & 1 == 0 { "192.168.1.51" } else { "192.168.1.52" });
    NODE.with_borrow_mut(|node| {
        let outcome = node.decap_with(payload, from, *tos, u16::from_be_bytes([*high, *low]));
        assert_eq!(outcome.datagrams, [], "nothing that came from the underlay goes back there");
        for packet in &outcome.packets {
            let whole = InnerPacket::parse(&packet.bytes).map(|inner| inner.total_len as usize);
            assert_eq!(whole, Ok(packet.bytes.len()));
        }
    });
}

fn node() -> EngineNode {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    for (client, vip) in
        [("10.244.0.14:40000", "10.96.0.21:80"), ("[fd00:10:244::14]:40000", "[fd00:10:96::21]:80")]
    {
        node.encap(&tcp(&flow(Protocol::TCP, client, vip), Tcp::Syn, b""));
    }
    node.encap(&udp(&flow(Protocol::UDP, "10.244.0.14:40000", "10.96.0.21:80"), b"query"));
    node
}
