//! Named inputs to begin from, each on a path of its own.

use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{MAC_A, VNI, addr, flow, mac};
use windlass_tests::packets::{Tcp, partial, ping, tcp, udp, vxlan, vxlan_of, with_header, with_tos};

use crate::Prefix;

/// The seeds of [`crate::decap`], by file name.
pub fn decap() -> Vec<(&'static str, Vec<u8>)> {
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
    let batch = [to_us(&plain), to_us(&plain), to_us(&plain)].concat();
    let known = Prefix::default();
    let joined = Prefix { segment_len: to_us(&plain).len() as u16, ..known };
    let inputs = [
        ("udp-v4", known, to_us(&plain)),
        ("tcp-v4-vip-reply", known, to_us(&tcp(&reply, Tcp::SynAck, b""))),
        ("tcp-v6-vip-reply", known, to_us(&tcp(&v6, Tcp::SynAck, b""))),
        ("udp-v4-vip-reply", known, to_us(&udp(&datagram_reply, b"answer"))),
        ("udp-v6-extension-header", known, to_us(&extended)),
        ("icmp-echo", known, to_us(&ping(addr("10.244.2.15"), addr("10.244.0.14"), 1))),
        ("vlan-tag", known, vxlan_of(VNI, mac(MAC_A), 0x8100, &tagged)),
        ("fragment", known, to_us(&fragment)),
        ("truncated", known, to_us(&plain)[..40].to_vec()),
        ("partial-syn", known, to_us(&partial(tcp(&reply, Tcp::Syn, b"")).0)),
        ("superpacket", Prefix { segment_len: 1_410, ..known }, to_us(&big)),
        ("gro-batch", joined, batch),
        ("outer-ce", Prefix { tos: 3, ..known }, to_us(&with_tos(plain.clone(), 2))),
        ("unknown-vtep", Prefix { stranger: true, ..known }, to_us(&plain)),
    ];
    inputs
        .into_iter()
        .map(|(name, prefix, payload)| (name, [&prefix.to_bytes()[..], &payload].concat()))
        .collect()
}
