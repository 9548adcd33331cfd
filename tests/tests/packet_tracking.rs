//! Connection tracking: what must never leave untranslated, TCP's odd ways, and tables that are full (D5, D9, D11, D13).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::answer::error::{Error, emit_error};
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, MAC_A, Outcome, VNI, addr, flow, mac, worked_example};
use windlass_tests::packets::{Tcp, tcp, udp, verified_flow, vxlan, with_header};

const CLIENT: &str = "10.244.0.14:40000";
const VIP: &str = "10.96.0.21:80";
const BACKEND: &str = "10.244.2.15:8080";

fn node() -> EngineNode {
    EngineNode::new(worked_example("a"), Settings::default())
}

/// A node whose table holds `connections`.
fn node_with_room(connections: usize) -> EngineNode {
    let mut node = node();
    node.connections = Arc::new(Conntrack::new(connections, 1));
    let tables = node.tables.clone();
    node.sibling(tables)
}

fn to_vip() -> FlowKey {
    flow(Protocol::TCP, CLIENT, VIP)
}

fn back() -> FlowKey {
    flow(Protocol::TCP, BACKEND, CLIENT)
}

fn decap(node: &mut EngineNode, inner: &[u8]) -> Outcome {
    node.decap(&vxlan(VNI, mac(MAC_A), inner), addr("192.168.1.51"), 0)
}

fn at(secs: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(secs)
}

/// The flow of the one packet that left, either way.
fn leaves(outcome: &Outcome) -> FlowKey {
    assert_eq!(outcome.drops, []);
    match (&outcome.datagrams[..], &outcome.packets[..]) {
        ([sent], []) => verified_flow(&sent.payload[22..]),
        ([], [packet]) => verified_flow(&packet.bytes),
        other => panic!("{other:?}"),
    }
}

/// The client says `kind` to the VIP, and the backend must hear it.
fn asks(node: &mut EngineNode, kind: Tcp) {
    assert_eq!(leaves(&node.encap(&tcp(&to_vip(), kind, b""))), back().reversed(), "{kind:?}");
}

/// The backend says `kind`, and the client must hear it from the VIP.
fn answers(node: &mut EngineNode, kind: Tcp) {
    assert_eq!(leaves(&decap(node, &tcp(&back(), kind, b""))), to_vip().reversed(), "{kind:?}");
}

fn establish(node: &mut EngineNode) {
    asks(node, Tcp::Syn);
    answers(node, Tcp::SynAck);
    asks(node, Tcp::Ack);
}

#[test]
fn d9_a_flow_cached_as_untranslated_that_becomes_a_reply_is_translated_at_once() {
    let mut node = node();
    // The same two ends talk without a service first, so that the way back stands in the flow cache.
    let direct = tcp(&back(), Tcp::Ack, b"direct");
    for _ in 0..3 {
        assert_eq!(leaves(&decap(&mut node, &direct)), back());
    }
    let hits = node.counters().cache_hits.get();
    assert_eq!(hits, 2, "it is cached");
    asks(&mut node, Tcp::Syn);
    assert_eq!(leaves(&decap(&mut node, &direct)), to_vip().reversed(), "in the same second");
}

#[test]
fn d9_a_flow_cached_on_another_worker_that_becomes_a_reply_is_translated_at_once() {
    let mut one = node();
    let mut other = one.sibling(worked_example("a"));
    let direct = tcp(&back(), Tcp::Ack, b"direct");
    for seconds in [0, 3, 7] {
        (one.now, other.now) = (at(seconds), at(seconds));
        for _ in 0..3 {
            assert_eq!(leaves(&decap(&mut other, &direct)), back());
        }
        assert!(other.counters().cache_hits.get() > 0);
        asks(&mut one, Tcp::Syn);
        answers(&mut other, Tcp::Ack);
        let (connection, _) = one.connections.lookup(&to_vip()).unwrap();
        one.connections.remove(&connection);
    }
}

#[test]
fn d9_two_workers_that_race_leave_no_reply_untranslated() {
    // One worker makes connections, the other has their replies cached as direct: whatever it emits after it was told
    // that a connection stands must be translated.
    const TRIALS: u16 = 3_000;
    let mut opener = node();
    let mut other = opener.sibling(worked_example("a"));
    let (tell, told) = std::sync::mpsc::sync_channel::<u16>(1);
    let ends = |port: u16| {
        let client = format!("10.244.0.14:{port}");
        (flow(Protocol::TCP, &client, VIP), flow(Protocol::TCP, BACKEND, &client))
    };
    let replies = std::thread::spawn(move || {
        let mut translated = 0;
        for port in 1_000..1_000 + TRIALS {
            let (to_vip, back) = ends(port);
            let reply = tcp(&back, Tcp::Ack, b"data");
            // Cached as direct, again and again, until the connection stands.
            while told.try_recv().is_err() {
                leaves(&decap(&mut other, &reply));
            }
            assert_eq!(leaves(&decap(&mut other, &reply)), to_vip.reversed(), "trial {port}");
            translated += 1;
        }
        translated
    });
    for port in 1_000..1_000 + TRIALS {
        opener.encap(&tcp(&ends(port).0, Tcp::Syn, b""));
        tell.send(port).unwrap();
    }
    assert_eq!(replies.join().unwrap(), TRIALS);
}

#[test]
fn d9_a_simultaneous_open_is_one_established_connection() {
    let mut node = node();
    asks(&mut node, Tcp::Syn);
    answers(&mut node, Tcp::Syn);
    asks(&mut node, Tcp::SynAck);
    answers(&mut node, Tcp::SynAck);
    asks(&mut node, Tcp::Ack);
    node.now = at(1_000);
    node.expire();
    assert_eq!(node.connections.len(), 1, "established");
}

#[test]
fn d9_repeated_and_acknowledged_packets_pass_translated_in_every_state() {
    let mut node = node();
    establish(&mut node);
    for kind in [Tcp::SynAck, Tcp::Ack] {
        answers(&mut node, kind);
    }
    asks(&mut node, Tcp::Ack);
    asks(&mut node, Tcp::Fin);
    answers(&mut node, Tcp::Ack);
    asks(&mut node, Tcp::Fin);
    answers(&mut node, Tcp::Fin);
    for _ in 0..2 {
        answers(&mut node, Tcp::Ack);
        asks(&mut node, Tcp::Ack);
    }
    assert_eq!(node.connections.len(), 1);
}

#[test]
fn d9_a_half_closed_connection_lives_for_hours() {
    let mut node = node();
    establish(&mut node);
    asks(&mut node, Tcp::Fin);
    for hour in 1..=6 {
        node.now = at(hour * 2 * 3_600);
        node.expire();
        answers(&mut node, Tcp::Ack);
    }
}

#[test]
fn d9_a_closed_connections_tuple_is_used_again_by_a_new_syn() {
    let mut node = node();
    establish(&mut node);
    asks(&mut node, Tcp::Fin);
    answers(&mut node, Tcp::Fin);
    asks(&mut node, Tcp::Ack);
    let (old, _) = node.connections.lookup(&to_vip()).unwrap();
    establish(&mut node);
    let (new, _) = node.connections.lookup(&to_vip()).unwrap();
    assert!(!Arc::ptr_eq(&old, &new) && !old.is_live());
    assert_eq!(node.connections.len(), 1);
}

#[test]
fn d9_a_reset_shortens_the_timer_and_one_out_of_window_does_not_kill() {
    let mut node = node();
    establish(&mut node);
    answers(&mut node, Tcp::Rst);
    node.now = at(239);
    node.expire();
    // The client did not believe it: its challenge ACK passes (RFC 5961 section 3), and so does the answer.
    asks(&mut node, Tcp::Ack);
    answers(&mut node, Tcp::Ack);
    node.now = at(239 + 7_000);
    node.expire();
    asks(&mut node, Tcp::Ack);
    answers(&mut node, Tcp::Rst);
    node.now = at(239 + 7_000 + 242);
    node.expire();
    assert!(node.connections.is_empty(), "a real one ends it after four minutes");
}

#[test]
fn d5_an_icmp_error_neither_refreshes_nor_deletes() {
    let mut node = node();
    establish(&mut node);
    let (connection, _) = node.connections.lookup(&to_vip()).unwrap();
    let before = connection.expires_tick();
    node.now = at(100);
    let at_backend = tcp(&back().reversed(), Tcp::Ack, b"data");
    let mut error = vec![0; 1_280];
    let len = emit_error(&mut error, Error::PortUnreachable, addr("10.244.2.15"), &at_backend);
    let outcome = decap(&mut node, &error[..len]);
    assert_eq!((outcome.packets.len(), outcome.drops.len()), (1, 0));
    assert_eq!((connection.expires_tick(), connection.is_live()), (before, true));
}

#[test]
fn d6_an_error_without_a_connection_is_dropped() {
    let mut node = node();
    let never_sent = tcp(&flow(Protocol::TCP, "169.254.77.1:40000", "10.244.0.14:8080"), Tcp::Ack, b"");
    let mut error = vec![0; 1_280];
    let len = emit_error(&mut error, Error::PortUnreachable, addr("10.244.0.14"), &never_sent);
    assert_eq!(node.encap(&error[..len]).drops, [(DropReason::NoConnection, 1)]);
    let from_the_vip = tcp(&flow(Protocol::TCP, VIP, CLIENT), Tcp::Ack, b"");
    let len = emit_error(&mut error, Error::PortUnreachable, addr("10.244.0.14"), &from_the_vip);
    assert_eq!(node.encap(&error[..len]).drops, [(DropReason::UnsupportedProtocol, 1)]);
}

#[test]
fn d11_a_flood_of_syns_evicts_no_established_flow_and_lets_new_ones_in() {
    const ROOM: usize = 1_000;
    let mut node = node_with_room(ROOM);
    let ends = |port: u16| {
        let client = format!("10.244.0.14:{port}");
        (flow(Protocol::TCP, &client, VIP), flow(Protocol::TCP, BACKEND, &client))
    };
    for port in 1..=500 {
        let (out, reply) = ends(port);
        leaves(&node.encap(&tcp(&out, Tcp::Syn, b"")));
        leaves(&decap(&mut node, &tcp(&reply, Tcp::SynAck, b"")));
        leaves(&node.encap(&tcp(&out, Tcp::Ack, b"")));
    }
    for spoofed in 0..20_000_u32 {
        node.now = Instant::from_nanos(u64::from(spoofed) * 1_000_000);
        let client = format!("10.244.0.{}:{}", spoofed % 100 + 100, 1_000 + spoofed / 100);
        node.encap(&tcp(&flow(Protocol::TCP, &client, VIP), Tcp::Syn, b""));
        assert!(node.connections.len() <= ROOM);
    }
    for port in 1..=500 {
        let (out, reply) = ends(port);
        assert_eq!(leaves(&node.encap(&tcp(&out, Tcp::Ack, b"more"))), reply.reversed());
        assert_eq!(leaves(&decap(&mut node, &tcp(&reply, Tcp::Ack, b"more"))), out.reversed());
    }
    let new = (501..601).filter(|port| node.encap(&tcp(&ends(*port).0, Tcp::Syn, b"")).drops.is_empty());
    assert_eq!(new.count(), 100, "who is not part of the flood gets in");
    assert!(node.connections.evicted() > 19_000, "{}", node.connections.evicted());
}

#[test]
fn d11_a_table_full_of_answered_flows_refuses_counts_and_recovers_by_itself() {
    let mut node = node_with_room(10);
    let ends = |port: u16| {
        let client = format!("10.244.0.14:{port}");
        (flow(Protocol::UDP, &client, VIP), flow(Protocol::UDP, BACKEND, &client))
    };
    for port in 1..=10 {
        leaves(&node.encap(&udp(&ends(port).0, b"question")));
        leaves(&decap(&mut node, &udp(&ends(port).1, b"answer")));
    }
    node.now = at(200);
    assert_eq!(node.encap(&udp(&ends(11).0, b"question")).drops, [(DropReason::ConnectionTableFull, 1)]);
    assert_eq!((node.connections.len(), node.connections.evicted()), (10, 0));
    node.now = at(302);
    node.expire();
    leaves(&node.encap(&udp(&ends(11).0, b"question")));
}

#[test]
fn d13_unknown_protocols_and_port_0_have_defined_and_counted_ends() {
    let mut node = node();
    let other = |dst: &str, protocol: u8| {
        with_header(udp(&flow(Protocol::UDP, CLIENT, dst), b"data"), |header| {
            header.protocol = protocol.into()
        })
    };
    for protocol in [0, 4, 41, 47, 50, 89, 132, 255] {
        let between_pods = other("10.244.2.15:80", protocol);
        let outcome = node.encap(&between_pods);
        assert_eq!(outcome.datagrams[0].payload[22..], between_pods, "protocol {protocol}");
        let to_vip = node.encap(&other(VIP, protocol));
        assert_eq!(to_vip.drops, [(DropReason::UnsupportedProtocol, 1)], "protocol {protocol}");
        assert_eq!(to_vip.packets, []);
    }
    for protocol in [Protocol::TCP, Protocol::UDP] {
        let made = |src: &str, dst: &str| match protocol {
            Protocol::TCP => tcp(&flow(protocol, src, dst), Tcp::Syn, b""),
            _ => udp(&flow(protocol, src, dst), b""),
        };
        let to_port_0 = node.encap(&made(CLIENT, "10.96.0.21:0"));
        assert_eq!(to_port_0.drops, [(DropReason::UnservedPort, 1)], "no service has port 0");
        let from_port_0 = node.encap(&made("10.244.0.14:0", VIP));
        assert_eq!(
            leaves(&from_port_0),
            flow(protocol, "10.244.0.14:0", BACKEND),
            "translated like any other"
        );
        assert_eq!(
            leaves(&node.encap(&made(CLIENT, "10.244.2.15:0"))),
            flow(protocol, CLIENT, "10.244.2.15:0")
        );
    }
}

#[test]
fn d7_hairpin_to_the_same_pod_and_to_another_of_this_node() {
    let mut node = node();
    for (client, protocol) in [
        ("10.244.0.10:40000", Protocol::TCP),
        ("10.244.0.10:40000", Protocol::UDP),
        ("10.244.0.99:40000", Protocol::TCP),
        ("10.244.0.99:40000", Protocol::UDP),
    ] {
        let to_dns = flow(protocol, client, "10.96.0.10:53");
        let made = |flow: &FlowKey| match protocol {
            Protocol::TCP => tcp(flow, Tcp::Syn, b""),
            _ => udp(flow, b"query"),
        };
        // Some ports lead to the pod of this node: 10.244.0.10, which may be the client itself.
        let (to_dns, local) = (40_000..41_000)
            .map(|src_port| FlowKey { src_port, ..to_dns })
            .find_map(|to_dns| {
                let there = leaves(&node.encap(&made(&to_dns)));
                (there.dst == addr("10.244.0.10")).then_some((to_dns, there))
            })
            .unwrap();
        assert_eq!(local.src, addr("169.254.77.1"), "the answer must come back through us");
        assert_eq!(leaves(&node.encap(&made(&local.reversed()))), to_dns.reversed());
    }
}
