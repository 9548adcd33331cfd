//! What holds for any packet, not only for those somebody thought of.

use proptest::prelude::*;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::packet::Checksum;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, MAC_A, VNI, addr, mac, worked_example};
use windlass_tests::packets::{
    Tcp, completed, partial, ping, tcp, udp, verified_flow, vxlan, with_header, with_tos,
};

fn node(name: &str) -> EngineNode {
    // A cache of the usual size costs more to make than all the packets of a case.
    EngineNode::new(worked_example(name), Settings { flow_cache_entries: 64, ..Settings::default() })
}

/// Packets from a pod of node a to one of node b.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let parts = (
        any::<bool>(),
        0..5_u8,
        1..250_u8,
        any::<(u16, u16)>(),
        prop::collection::vec(any::<u8>(), 0..1_300),
    );
    (parts, any::<u8>()).prop_map(|((v6, kind, host, (src_port, dst_port), payload), tos)| {
        let prefixes = if v6 { ["fd00:10:244::", "fd00:10:244:2::"] } else { ["10.244.0.", "10.244.2."] };
        let [src, dst] = prefixes.map(|prefix| addr(&format!("{prefix}{host}")));
        let protocol = if kind < 2 { Protocol::TCP } else { Protocol::UDP };
        let flow = FlowKey { src, dst, protocol, src_port, dst_port };
        let packet = match kind {
            0 => tcp(&flow, Tcp::Syn, b""),
            1 => tcp(&flow, Tcp::Ack, &payload),
            2 => udp(&flow, &payload),
            3 => ping(src, dst, src_port),
            _ if v6 => {
                let mut packet = udp(&flow, &payload);
                packet[6] = 59;
                packet
            }
            _ => with_header(udp(&flow, &payload), |header| header.protocol = 47.into()),
        };
        with_tos(packet, tos)
    })
}

/// A whole exchange through a VIP, seen from the client: what it sends, and what the backend answers.
fn exchange() -> impl Strategy<Value = (bool, Protocol, u8, u16, Vec<u8>, Vec<u8>)> {
    let payload = || prop::collection::vec(any::<u8>(), 0..1_000);
    let protocol = prop_oneof![Just(Protocol::TCP), Just(Protocol::UDP)];
    (any::<bool>(), protocol, 1..250_u8, 1..=u16::MAX, payload(), payload()).prop_map(
        |(v6, protocol, host, port, request, reply)| {
            (v6, if v6 { Protocol::TCP } else { protocol }, host, port, request, reply)
        },
    )
}

fn made(flow: &FlowKey, payload: &[u8]) -> Vec<u8> {
    if flow.protocol == Protocol::TCP { tcp(flow, Tcp::Ack, payload) } else { udp(flow, payload) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a14_decap_of_encap_is_the_packet_itself(packet in packet()) {
        let (mut a, mut b) = (node("a"), node("b"));
        for _ in 0..2 {
            let encapped = a.encap(&packet);
            prop_assert_eq!(&encapped.drops[..], []);
            let sent = &encapped.datagrams[0];
            let delivered = b.decap(&sent.payload, addr("192.168.1.40"), sent.tos);
            prop_assert_eq!(&delivered.drops[..], []);
            prop_assert_eq!(&delivered.packets[0].bytes, &packet);
        }
    }

    #[test]
    fn d1_there_and_back_through_nat_is_the_identity(
        (v6, protocol, host, port, request, answer) in exchange(),
        is_partial: bool,
        no_checksum: bool,
    ) {
        let (client, vip, backend) = if v6 {
            (format!("fd00:10:244::{host}"), "fd00:10:96::21", "fd00:10:244:2::15")
        } else {
            (format!("10.244.0.{host}"), "10.96.0.21", "10.244.2.15")
        };
        let to_vip = FlowKey { src: addr(&client), dst: addr(vip), protocol, src_port: port, dst_port: 80 };
        let to_backend = FlowKey { dst: addr(backend), dst_port: 8080, ..to_vip };
        let no_checksum = no_checksum && !is_partial && protocol == Protocol::UDP;
        let build = |flow: &FlowKey, payload: &[u8]| {
            let mut packet = made(flow, payload);
            if no_checksum {
                packet[26..28].fill(0);
            }
            if is_partial { partial(packet) } else { (packet, Checksum::Complete) }
        };
        let mut node = node("a");
        for _ in 0..2 {
            // What the backend sees is what a client that knew its address would have sent, to the byte.
            let (packet, state) = build(&to_vip, &request);
            let sent = node.encap_with(&packet, state, 0).datagrams.remove(0);
            prop_assert_eq!(sent.checksum, state);
            prop_assert_eq!(&sent.payload[22..], &build(&to_backend, &request).0[..]);
            prop_assert_eq!(verified_flow(&completed(sent.payload[22..].to_vec(), state)), to_backend);
            // What the client sees is what the VIP would have answered.
            let (reply, state) = build(&to_backend.reversed(), &answer);
            let restored = node.decap(&vxlan(VNI, mac(MAC_A), &reply), addr("192.168.1.51"), 0).packets.remove(0);
            // A whole checksum that happens to be the pseudo-header's sum passes for a partial one, once in 65,536.
            let expected = completed(build(&to_vip.reversed(), &answer).0, state);
            prop_assert_eq!(completed(restored.bytes, restored.checksum), expected);
        }
    }

    #[test]
    fn a12_random_bytes_never_panic_and_are_accounted_for(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        segment_len: u16,
        tos: u8,
    ) {
        // The node itself checks after each call that the sums agree.
        let mut node = node("a");
        node.encap(&bytes);
        node.encap_with(&bytes, Checksum::Complete, segment_len);
        node.decap_with(&bytes, addr("192.168.1.51"), tos, segment_len);
        node.decap(&vxlan(VNI, mac(MAC_A), &bytes), addr("192.168.1.51"), tos);
    }

    #[test]
    fn a13_a_damaged_packet_never_panics_and_is_accounted_for(
        packet in packet(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        segment_len: u16,
    ) {
        let mut node = node("b");
        let mut payload = vxlan(VNI, mac("00:15:5d:3c:3e:3c"), &packet);
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        node.decap(&payload, addr("192.168.1.40"), 0);
        node.decap_with(&payload, addr("192.168.1.40"), 0, segment_len);
        let mut node = self::node("a");
        node.encap_with(&payload[22..], Checksum::Complete, segment_len);
    }
}
