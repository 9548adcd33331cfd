//! The two journeys and the service VIPs, packet by packet, between two engines without devices.

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::wire::answer::error::{Error, emit_error};
use windlass_dataplane::wire::checksum;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, addr, flow, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp, verified_flow};

fn node(name: &str) -> EngineNode {
    EngineNode::new(worked_example(name), Settings::default())
}

#[test]
fn a14_what_one_node_encapsulates_the_other_delivers_unchanged() {
    let (mut a, mut b) = (node("a"), node("b"));
    for (src, dst) in
        [("10.244.0.14:40000", "10.244.2.15:80"), ("[fd00:10:244::14]:40000", "[fd00:10:244:2::15]:80")]
    {
        for round in 0..3 {
            let sent = udp(&flow(Protocol::UDP, src, dst), b"payload");
            let encapped = a.encap(&sent);
            assert_eq!(encapped.drops, [], "round {round}");
            assert_eq!(encapped.datagrams[0].remote, "192.168.1.51:4789".parse().unwrap());
            let delivered = b.decap(&encapped.datagrams[0].payload, addr("192.168.1.40"), 0);
            assert_eq!(delivered.drops, [], "round {round}");
            assert_eq!(delivered.packets[0].bytes, sent);
        }
    }
}

#[test]
fn reply_from_backend_restores_vip() {
    let (mut a, mut b) = (node("a"), node("b"));
    for (client, vip, backend) in [
        ("10.244.0.14:40000", "10.96.0.21:80", "10.244.2.15:8080"),
        ("[fd00:10:244::14]:40000", "[fd00:10:96::21]:80", "[fd00:10:244:2::15]:8080"),
    ] {
        let to_vip = flow(Protocol::TCP, client, vip);
        let from_backend = flow(Protocol::TCP, backend, client);
        for (out, back) in
            [(Tcp::Syn, Tcp::SynAck), (Tcp::Ack, Tcp::Ack), (Tcp::Ack, Tcp::Ack), (Tcp::Fin, Tcp::Fin)]
        {
            let encapped = a.encap(&tcp(&to_vip, out, b""));
            let delivered = b.decap(&encapped.datagrams[0].payload, addr("192.168.1.40"), 0);
            assert_eq!(verified_flow(&delivered.packets[0].bytes), from_backend.reversed());
            let reply = b.encap(&tcp(&from_backend, back, b"answer"));
            let restored = a.decap(&reply.datagrams[0].payload, addr("192.168.1.51"), 0);
            assert_eq!(verified_flow(&restored.packets[0].bytes), to_vip.reversed(), "{:?}", restored.drops);
        }
        assert!(a.counters().cache_hits.get() > 0);
    }
    assert_eq!(a.connections.len(), 2);
}

#[test]
fn a_backend_on_this_node_answers_the_source_vip() {
    let mut a = node("a");
    for (client, vip, backend) in [
        ("10.244.0.99:40000", "10.96.0.20:80", "10.244.0.14:8080"),
        ("10.244.0.14:41000", "10.96.0.20:80", "10.244.0.14:8080"),
        ("10.244.0.14:42000", "10.96.0.1:443", "192.168.1.40:6443"),
        ("10.244.0.0:43000", "10.96.0.20:80", "10.244.0.14:8080"),
    ] {
        let to_vip = flow(Protocol::TCP, client, vip);
        for (out, back) in [(Tcp::Syn, Tcp::SynAck), (Tcp::Ack, Tcp::Ack), (Tcp::Ack, Tcp::Ack)] {
            let request = a.encap(&tcp(&to_vip, out, b"question"));
            let at_backend = verified_flow(&request.packets[0].bytes);
            let expected = FlowKey { src: addr("169.254.77.1"), ..flow(Protocol::TCP, client, backend) };
            assert_eq!(at_backend, expected);
            let reply = a.encap(&tcp(&at_backend.reversed(), back, b"answer"));
            assert_eq!(verified_flow(&reply.packets[0].bytes), to_vip.reversed());
        }
    }
}

#[test]
fn f3_f8_nobody_behind_a_vip_is_told_at_once() {
    let mut a = node("a");
    for (vip, reason) in
        [("10.96.0.30:80", DropReason::NoEndpoint), ("10.96.0.10:54", DropReason::UnservedPort)]
    {
        let flow_tcp = flow(Protocol::TCP, "10.244.0.14:40000", vip);
        let refused = a.encap(&tcp(&flow_tcp, Tcp::Syn, b""));
        assert_eq!(refused.drops, [(reason, 1)]);
        assert_eq!(verified_flow(&refused.packets[0].bytes), flow_tcp.reversed());
        let refused = a.encap(&udp(&flow(Protocol::UDP, "10.244.0.14:40000", vip), b"?"));
        assert_eq!(refused.drops, [(reason, 1)]);
        assert_eq!(refused.packets[0].bytes[9], 1, "an ICMP packet");
        assert_eq!(refused.packets[0].bytes[20..22], [3, 3], "port unreachable");
    }
    let unknown = a.encap(&udp(&flow(Protocol::UDP, "10.244.0.14:40000", "10.97.1.1:80"), b"?"));
    assert_eq!(unknown.drops, [(DropReason::NoSuchService, 1)]);
    assert!(unknown.packets.is_empty());
}

/// The first fragment with `first_len` bytes of IP payload, and the rest.
fn fragments(packet: &[u8], first_len: usize) -> [Vec<u8>; 2] {
    let (header, payload) = packet.split_at(20);
    let piece = |offset: usize, more: bool, payload: &[u8]| {
        let mut piece = [header, payload].concat();
        let total_len = piece.len() as u16;
        piece[2..4].copy_from_slice(&total_len.to_be_bytes());
        piece[4..6].copy_from_slice(&[7, 7]);
        let flags = (offset / 8) as u16 | if more { 0x2000 } else { 0 };
        piece[6..8].copy_from_slice(&flags.to_be_bytes());
        piece[10..12].copy_from_slice(&[0, 0]);
        let sum = checksum::checksum(&piece[..20]);
        piece[10..12].copy_from_slice(&sum.to_be_bytes());
        piece
    };
    [piece(0, true, &payload[..first_len]), piece(first_len, false, &payload[first_len..])]
}

fn joined(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut packet = pieces[0].clone();
    pieces[1..].iter().for_each(|piece| packet.extend_from_slice(&piece[20..]));
    let total_len = packet.len() as u16;
    packet[2..4].copy_from_slice(&total_len.to_be_bytes());
    packet[6..8].copy_from_slice(&[0, 0]);
    packet[10..12].copy_from_slice(&[0, 0]);
    let sum = checksum::checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[test]
fn d8_fragments_in_order_reach_one_backend_and_come_back_from_the_vip() {
    let (mut a, mut b) = (node("a"), node("b"));
    let to_vip = flow(Protocol::UDP, "10.244.0.14:40000", "10.96.0.21:80");
    let question = udp(&to_vip, &[7; 2_000]);
    let mut arrived = Vec::new();
    for piece in fragments(&question, 1_400) {
        let encapped = a.encap(&piece);
        assert_eq!(encapped.drops, []);
        let delivered = b.decap(&encapped.datagrams[0].payload, addr("192.168.1.40"), 0);
        arrived.push(delivered.packets[0].bytes.clone());
    }
    let backend_sees = flow(Protocol::UDP, "10.244.0.14:40000", "10.244.2.15:8080");
    assert_eq!(verified_flow(&joined(&arrived)), backend_sees);

    let mut answered = Vec::new();
    for piece in fragments(&udp(&backend_sees.reversed(), &[9; 2_000]), 1_400) {
        let encapped = b.encap(&piece);
        let restored = a.decap(&encapped.datagrams[0].payload, addr("192.168.1.51"), 0);
        answered.push(restored.packets[0].bytes.clone());
    }
    assert_eq!(verified_flow(&joined(&answered)), to_vip.reversed());
}

#[test]
fn d6_an_error_about_a_translated_packet_reaches_its_sender_from_the_vip() {
    let (mut a, mut b) = (node("a"), node("b"));
    for (client, vip) in [
        ("10.244.0.14:40000", "10.96.0.21:80"),
        ("10.244.0.14:40001", "10.96.0.20:80"),
        ("[fd00:10:244::14]:40000", "[fd00:10:96::21]:80"),
    ] {
        let to_vip = flow(Protocol::TCP, client, vip);
        let question = tcp(&to_vip, Tcp::Syn, b"");
        let sent = a.encap(&question);
        let at_backend = match sent.datagrams.first() {
            Some(datagram) => b.decap(&datagram.payload, addr("192.168.1.40"), 0).packets[0].bytes.clone(),
            None => sent.packets[0].bytes.clone(),
        };
        let backend = verified_flow(&at_backend).dst;
        let mut error = vec![0; 1_280];
        let len = emit_error(&mut error, Error::PortUnreachable, backend, &at_backend);
        let sent = match b.encap(&error[..len]).datagrams.first() {
            Some(datagram) => a.decap(&datagram.payload, addr("192.168.1.51"), 0),
            None => a.encap(&error[..len]),
        };
        let mut expected = vec![0; 1_280];
        let len = emit_error(&mut expected, Error::PortUnreachable, to_vip.dst, &question);
        assert_eq!(sent.packets[0].bytes, expected[..len], "{vip}");
    }
}
