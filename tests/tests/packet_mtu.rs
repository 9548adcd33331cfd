//! Path MTUs that are learned, and what TCP peers are told before (C2, C5, C6, C9).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use windlass_dataplane::device::{QUOTE_LEN, Quote, TooLong};
use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{EngineNode, MAC_A, MAC_B, VNI, addr, flow, mac, socket, worked_example};
use windlass_tests::packets::{
    Tcp, completed, partial, tcp, udp, verified_flow, verified_icmp, vxlan, with_header,
};

const PEER: &str = "192.168.1.51:4789";

fn node() -> EngineNode {
    EngineNode::new(worked_example("a"), Settings::default())
}

/// An inner IPv4 packet of that length, DF set.
fn of_len(len: usize) -> Vec<u8> {
    let packet = udp(&flow(Protocol::UDP, "10.244.0.14:40000", "10.244.2.15:80"), &vec![7; len - 28]);
    with_header(packet, |header| header.dont_fragment = true)
}

/// What a router says about a datagram of ours.
fn too_long(payload: &[u8], mtu: u32) -> TooLong {
    let len = payload.len().min(QUOTE_LEN);
    let mut bytes = [0; QUOTE_LEN];
    bytes[..len].copy_from_slice(&payload[..len]);
    TooLong { remote: socket(PEER), mtu, quote: Some(Quote { bytes, len }) }
}

/// The MTU that the sender of a packet of 1,450 bytes is told, if it is told one.
fn told(node: &mut EngineNode) -> Option<u32> {
    let outcome = node.encap(&of_len(1_450));
    outcome.packets.first().map(|answer| verified_icmp(&answer.bytes).word)
}

#[test]
fn c5_a_router_lowers_the_path_mtu_for_ten_minutes_and_senders_are_told() {
    let mut node = node();
    let sent = node.encap(&of_len(1_450)).datagrams[0].payload.clone();
    node.learn_path_mtu(&too_long(&sent, 1_400));
    assert_eq!(told(&mut node), Some(1_350), "a cached flow too");
    assert_eq!(node.encap(&of_len(1_350)).drops, []);
    node.learn_path_mtu(&too_long(&sent, 1_450));
    assert_eq!(told(&mut node), Some(1_350), "what is wider is no news");
    node.now = node.now + Duration::from_secs(599);
    assert_eq!(told(&mut node), Some(1_350));
    node.now = node.now + Duration::from_secs(1);
    assert_eq!(told(&mut node), None, "RFC 1191 section 6.3: the path may be wider again");
}

#[test]
fn c5_what_this_host_refuses_lowers_the_path_mtu() {
    let mut node = node();
    node.learn_path_mtu(&TooLong { remote: socket(PEER), mtu: 1_300, quote: None });
    assert_eq!(told(&mut node), Some(1_250));
}

#[test]
fn c5_no_path_is_believed_to_be_narrower_than_its_family_allows() {
    let mut node = node();
    let sent = node.encap(&of_len(1_450)).datagrams[0].payload.clone();
    node.learn_path_mtu(&too_long(&sent, 68));
    assert_eq!(told(&mut node), Some(552 - 50));
}

#[test]
fn c5_a_forged_error_that_quotes_what_we_did_not_send_is_ignored() {
    let mut node = node();
    let sent = node.encap(&of_len(1_450)).datagrams[0].payload.clone();
    let edited = |at: usize, value: u8| {
        let mut payload = sent.clone();
        payload[at] = value;
        too_long(&payload, 1_400)
    };
    let elsewhere = TooLong { remote: socket("192.168.1.99:4789"), ..too_long(&sent, 1_400) };
    let other_port = TooLong { remote: socket("192.168.1.51:8472"), ..too_long(&sent, 1_400) };
    for (what, forged) in [
        ("no I flag", edited(0, 0)),
        ("a reserved bit", edited(1, 1)),
        ("another VNI", edited(6, 0x55)),
        ("a MAC that no VTEP has", edited(8, 0x02)),
        ("not from our MAC", edited(14, 0x02)),
        ("a packet that fits", too_long(&sent, 1_500)),
        ("longer than anything we send", edited(24, 0xff)),
        ("neither IPv4 nor IPv6", edited(22, 0x15)),
        ("a quote without an inner header", too_long(&sent[..22], 1_400)),
        ("eight bytes quoted", too_long(&sent[..8], 1_400)),
        ("another address", elsewhere),
        ("another port", other_port),
    ] {
        node.learn_path_mtu(&forged);
        assert_eq!(told(&mut node), None, "{what}");
    }
    let received = vxlan(VNI, mac(MAC_A), &of_len(1_450));
    node.learn_path_mtu(&too_long(&received, 1_400));
    assert_eq!(told(&mut node), None, "a datagram toward us");
    assert_eq!(sent[8..14], mac(MAC_B).0);
}

/// A SYN with an MSS of 1,460 behind two paddings.
fn syn(src: &str, dst: &str) -> Vec<u8> {
    let mut packet = tcp(&flow(Protocol::TCP, src, dst), Tcp::Syn, b"");
    let l4 = if packet[0] >> 4 == 6 { 40 } else { 20 };
    packet.extend([1, 1, 2, 4, 0x05, 0xb4, 0, 0]);
    packet[l4 + 12] = 7 << 4;
    if l4 == 20 {
        packet = with_header(packet, |header| header.total_len += 8);
    } else {
        packet[5] += 8;
    }
    packet[l4 + 16..l4 + 18].fill(0);
    let (packet, checksum) = partial(packet);
    completed(packet, checksum)
}

fn mss(packet: &[u8]) -> u16 {
    verified_flow(packet);
    let l4 = if packet[0] >> 4 == 6 { 40 } else { 20 };
    u16::from_be_bytes([packet[l4 + 24], packet[l4 + 25]])
}

#[test]
fn c6_the_mss_of_every_syn_is_lowered_to_what_fits_both_ways() {
    let mut node = node();
    for (src, dst, expected) in [
        ("10.244.0.14:1", "10.244.2.15:80", 1_410),
        ("10.244.0.14:2", "10.96.0.21:80", 1_410),
        ("[fd00:10:244::14]:1", "[fd00:10:244:2::15]:80", 1_390),
    ] {
        let sent = node.encap(&syn(src, dst));
        assert_eq!(mss(&sent.datagrams[0].payload[22..]), expected, "{src} > {dst}");
        let (packet, checksum) = partial(syn(src, dst));
        let sent = node.encap_with(&packet, checksum, 0);
        let as_sent = completed(sent.datagrams[0].payload[22..].to_vec(), sent.datagrams[0].checksum);
        assert_eq!(mss(&as_sent), expected, "with a partial checksum");
    }
    let from_peer = vxlan(VNI, mac(MAC_A), &syn("10.244.2.15:1", "10.244.0.14:80"));
    let received = node.decap(&from_peer, addr("192.168.1.51"), 0);
    assert_eq!(mss(&received.packets[0].bytes), 1_410, "what our pod may send");
    node.learn_path_mtu(&TooLong { remote: socket(PEER), mtu: 1_400, quote: None });
    let received = node.decap(&from_peer, addr("192.168.1.51"), 0);
    assert_eq!(mss(&received.packets[0].bytes), 1_310, "the way back is narrower");
    let local = node.encap(&syn("10.244.0.99:1", "10.96.0.20:80"));
    assert_eq!(mss(&local.packets[0].bytes), 1_460, "between pods of this node nothing is in the way");
}

#[test]
fn c9_every_size_is_sent_answered_or_counted() {
    let mut node = node();
    let longest = |src, dst| udp(&flow(Protocol::UDP, src, dst), &[7; 65_535 - 28]);
    let sent =
        ["10.244.2.15:80", "10.96.0.21:80", "10.96.0.20:80"].map(|dst| longest("10.244.0.14:40000", dst));
    let received = longest("10.244.2.15:80", "10.244.0.14:40000");
    for len in 28..=65_535 {
        for packet in &sent {
            let outcome = node.encap(&cut(packet, len));
            let left = outcome.datagrams.len() + outcome.packets.len();
            let counted = outcome.drops.iter().map(|(_, count)| count).sum::<u64>();
            assert!(left == 1 && counted == 0 || counted == 1, "{len}: {outcome:?}");
        }
        let received = node.decap(&vxlan(VNI, mac(MAC_A), &cut(&received, len)), addr("192.168.1.51"), 0);
        assert_eq!((received.packets.len(), received.drops.len()), (1, 0), "{len} from the peer");
        assert_eq!(received.packets[0].bytes.len(), len);
    }
    for len in 0..28 {
        let outcome = node.encap(&of_len(28)[..len]);
        assert_eq!(outcome.drops, [(DropReason::Malformed, 1)], "{len} bytes");
    }
}

/// The datagram cut to `len` bytes, which its headers say too. It has no checksum, which would take long to make.
fn cut(packet: &[u8], len: usize) -> Vec<u8> {
    let mut packet = packet[..len].to_vec();
    packet[24..26].copy_from_slice(&(len as u16 - 20).to_be_bytes());
    packet[26..28].fill(0);
    with_header(packet, |header| (header.total_len, header.dont_fragment) = (len as u16, true))
}
