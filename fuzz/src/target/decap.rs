//! Any UDP payload from a VTEP or from a stranger.
//!
//! Input: a byte whose lowest bit makes the sender a stranger, the outer TOS, the segment size of UDP_GRO (two bytes),
//! then the payload.

use windlass_dataplane::packet::MAX_PACKET_LEN;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{MAC_A, VNI, addr, flow, mac};
use windlass_tests::packets::{Tcp, partial, ping, tcp, udp, vxlan, vxlan_of, with_header, with_tos};

use crate::input::Input;
use crate::node::{UNDERLAY_B, with_connections};
use crate::{Seed, captured, check};

/// Nothing goes back to the underlay, what is delivered is whole and for this node, and a stranger delivers nothing.
///
/// # Panics
/// When something of that does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (stranger, tos, segment_len) = (input.flag(), input.byte(), input.number());
    let payload = input.rest();
    if payload.len() > MAX_PACKET_LEN {
        return;
    }
    let from = addr(if stranger { "192.168.1.52" } else { UNDERLAY_B });
    let mut node = with_connections();
    // The second time the flow cache may know it.
    for _ in 0..2 {
        let outcome = node.decap_with(payload, from, tos, segment_len);
        assert_eq!(outcome.datagrams, [], "nothing that came from the underlay goes back there");
        assert!(outcome.packets.is_empty() || !stranger, "a stranger's packet is delivered");
        outcome.packets.iter().for_each(check::delivered);
    }
}

/// One for each way a datagram can go.
pub fn seeds() -> Vec<Seed> {
    let plain = udp(&flow(Protocol::UDP, "10.244.2.15:40000", "10.244.0.14:80"), b"data");
    let v6 = flow(Protocol::TCP, "[fd00:10:244:2::15]:8080", "[fd00:10:244::14]:40000");
    let reply = flow(Protocol::TCP, "10.244.2.15:8080", "10.244.0.14:40000");
    let datagram_reply = flow(Protocol::UDP, "10.244.2.15:8080", "10.244.0.14:40000");
    let to_us = |inner: &[u8]| vxlan(VNI, mac(MAC_A), inner);
    let mut tagged = vec![0, 100, 8, 0];
    tagged.extend(&plain);
    let mut extended = udp(&flow(Protocol::UDP, "[fd00:10:244:2::15]:1", "[fd00:10:244::14]:2"), b"data");
    extended[6] = 60;
    extended.splice(40..40, [17, 0, 1, 4, 0, 0, 0, 0]);
    extended[5] += 8;
    let fragment = with_header(plain.clone(), |header| {
        header.dont_fragment = false;
        header.more_fragments = true;
    });
    let big = partial(tcp(&reply, Tcp::Ack, &[5; 3_000])).0;
    let [high, low] = (to_us(&plain).len() as u16).to_be_bytes();
    let seed = |name, head: [u8; 4], payload: &[u8]| (name, [&head, payload].concat());
    let known = [0; 4];
    let mut seeds = vec![
        seed("udp-v4", known, &to_us(&plain)),
        seed("tcp-v4-vip-reply", known, &to_us(&tcp(&reply, Tcp::SynAck, b""))),
        seed("tcp-v6-vip-reply", known, &to_us(&tcp(&v6, Tcp::SynAck, b""))),
        seed("udp-v4-vip-reply", known, &to_us(&udp(&datagram_reply, b"answer"))),
        seed("udp-v6-extension-header", known, &to_us(&extended)),
        seed("icmp-echo", known, &to_us(&ping(addr("10.244.2.15"), addr("10.244.0.14"), 1))),
        seed("vlan-tag", known, &vxlan_of(VNI, mac(MAC_A), 0x8100, &tagged)),
        seed("fragment", known, &to_us(&fragment)),
        seed("truncated", known, &to_us(&plain)[..40]),
        seed("partial-syn", known, &to_us(&partial(tcp(&reply, Tcp::Syn, b"")).0)),
        seed("superpacket", [0, 0, 5, 0x82], &to_us(&big)),
        seed("gro-batch", [0, 0, high, low], &to_us(&plain).repeat(3)),
        seed("outer-ce", [0, 3, 0, 0], &to_us(&with_tos(plain.clone(), 2))),
        seed("unknown-vtep", [1, 0, 0, 0], &to_us(&plain)),
    ];
    seeds.extend(captured::headed(captured::received(), &known));
    seeds
}
