//! Services, case by case: VIPs, connections, affinity, refusals, and what a change of the tables touches.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::time::Duration;

use windlass_dataplane::drop_reason::DropReason::{self, *};
use windlass_dataplane::engine::Settings;
use windlass_dataplane::lb::conntrack::Conntrack;
use windlass_dataplane::tables::{Fdb, NextHop, RemoteVtep, Service, TableSet, WhenEmpty};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{
    EngineNode, MAC_A, MAC_B, MAC_B6, Outcome, VNI, addr, flow, mac, net, socket, vip, vni, worked_example,
};
use windlass_tests::packets::{
    Tcp, completed, partial, ping, tcp, udp, verified_flow, verified_icmp, vxlan, with_header,
};

struct Case {
    name: &'static str,
    /// The requirement it proves, by number.
    description: &'static str,
    packet: Vec<u8>,
    tables: fn(&mut TableSet),
    expected: Expected,
}

enum Expected {
    /// To node b as this flow.
    Encapsulated(FlowKey),
    /// Back into the device as this flow.
    Delivered(FlowKey),
    /// Refused: dropped and answered.
    Refused(DropReason, fn(&[u8])),
    Dropped(DropReason),
}

use Expected::{Delivered, Dropped, Encapsulated, Refused};

const CLIENT: &str = "10.244.0.14:40000";
const CLIENT6: &str = "[fd00:10:244::14]:40000";

fn case(name: &'static str, description: &'static str, packet: Vec<u8>, expected: Expected) -> Case {
    Case { name, description, packet, tables: |_| (), expected }
}

fn syn(src: &str, dst: &str) -> Vec<u8> {
    tcp(&flow(Protocol::TCP, src, dst), Tcp::Syn, b"")
}

fn datagram(src: &str, dst: &str) -> Vec<u8> {
    udp(&flow(Protocol::UDP, src, dst), b"query")
}

fn tcp_flow(src: &str, dst: &str) -> FlowKey {
    flow(Protocol::TCP, src, dst)
}

fn insert(set: &mut TableSet, service: Service) {
    Arc::make_mut(&mut set.services).insert(Arc::new(service));
}

fn is_port_unreachable(answer: &[u8]) {
    let told = verified_icmp(answer);
    assert!([(3, 3), (1, 4)].contains(&told.kind), "{told:?}");
    let quoted_dst =
        if answer[0] >> 4 == 6 { told.body[24..40].to_vec() } else { told.body[16..20].to_vec() };
    let src = match told.src {
        std::net::IpAddr::V4(src) => src.octets().to_vec(),
        std::net::IpAddr::V6(src) => src.octets().to_vec(),
    };
    assert_eq!(src, quoted_dst, "C8: the error comes from the VIP and quotes what was sent");
}

fn is_reset(answer: &[u8]) {
    let l4 = if answer[0] >> 4 == 6 { 40 } else { 20 };
    verified_flow(answer);
    assert_eq!(answer[l4 + 13] & 0x04, 0x04, "RST");
}

fn translated() -> Vec<Case> {
    vec![
        case(
            "remote backend",
            "the pod's own source: the reply comes back through VXLAN",
            syn(CLIENT, "10.96.0.21:80"),
            Encapsulated(tcp_flow(CLIENT, "10.244.2.15:8080")),
        ),
        case(
            "UDP and TCP on one port",
            "F1: one port number for TCP and UDP",
            datagram(CLIENT, "10.96.0.21:80"),
            Encapsulated(flow(Protocol::UDP, CLIENT, "10.244.2.15:8080")),
        ),
        case(
            "IPv6",
            "both families",
            syn(CLIENT6, "[fd00:10:96::21]:80"),
            Encapsulated(tcp_flow(CLIENT6, "[fd00:10:244:2::15]:8080")),
        ),
        case(
            "the host to a remote backend",
            "an address outside the overlay becomes the podCIDR base: the peer knows no other",
            syn("192.168.1.40:40000", "10.96.0.21:80"),
            Encapsulated(tcp_flow("10.244.0.0:40000", "10.244.2.15:8080")),
        ),
        case(
            "backend on this node",
            "the source VIP brings the reply back to us",
            syn(CLIENT, "10.96.0.20:80"),
            Delivered(tcp_flow("169.254.77.1:40000", "10.244.0.14:8080")),
        ),
        case(
            "host-network backend",
            "10.96.0.1 -> 192.168.1.40:6443, from the source VIP",
            syn(CLIENT, "10.96.0.1:443"),
            Delivered(tcp_flow("169.254.77.1:40000", "192.168.1.40:6443")),
        ),
        Case {
            tables: |set| {
                let vip = vip("10.96.0.1:443", Protocol::TCP);
                insert(set, Service::new("default/kubernetes:https", vip, vec![socket("192.168.1.51:6443")]));
            },
            ..case(
                "another node's address",
                "a host-network backend elsewhere is the host's to reach",
                syn(CLIENT, "10.96.0.1:443"),
                Delivered(tcp_flow("169.254.77.1:40000", "192.168.1.51:6443")),
            )
        },
        case(
            "without a checksum",
            "D2: an IPv4 UDP checksum of 0 stays 0",
            no_checksum(datagram(CLIENT, "10.96.0.21:80")),
            Encapsulated(flow(Protocol::UDP, CLIENT, "10.244.2.15:8080")),
        ),
    ]
}

fn no_checksum(mut packet: Vec<u8>) -> Vec<u8> {
    packet[26..28].fill(0);
    packet
}

fn refused() -> Vec<Case> {
    let sctp = with_header(datagram(CLIENT, "10.96.0.10:53"), |header| header.protocol = 132.into());
    vec![
        case("no endpoint, TCP", "F3", syn(CLIENT, "10.96.0.30:80"), Refused(NoEndpoint, is_reset)),
        case(
            "no endpoint, UDP",
            "F3",
            datagram(CLIENT, "10.96.0.30:80"),
            Refused(NoEndpoint, is_port_unreachable),
        ),
        case("unserved port, TCP", "F8", syn(CLIENT, "10.96.0.10:54"), Refused(UnservedPort, is_reset)),
        case(
            "unserved, UDP",
            "F8",
            datagram(CLIENT, "10.96.0.10:54"),
            Refused(UnservedPort, is_port_unreachable),
        ),
        case("unserved, IPv6 TCP", "F8", syn(CLIENT6, "[fd00:10:96::a]:54"), Refused(UnservedPort, is_reset)),
        case(
            "unserved, IPv6 UDP",
            "F8",
            datagram(CLIENT6, "[fd00:10:96::a]:54"),
            Refused(UnservedPort, is_port_unreachable),
        ),
        case("port 0", "D13", datagram(CLIENT, "10.96.0.10:0"), Refused(UnservedPort, is_port_unreachable)),
        case("nobody's address", "F8: never looped", syn(CLIENT, "10.97.0.1:80"), Dropped(NoSuchService)),
        case(
            "RST without a connection",
            "nothing to reset",
            tcp(&tcp_flow(CLIENT, "10.96.0.21:80"), Tcp::Rst, b""),
            Dropped(NoConnection),
        ),
        case("SCTP", "D13", sctp, Dropped(UnsupportedProtocol)),
        Case {
            tables: |set| {
                let mut service = Service::new("local", vip("10.96.0.40:80", Protocol::TCP), Vec::new());
                service.when_empty = WhenEmpty::Drop;
                insert(set, service);
            },
            ..case(
                "no endpoint here",
                "F3: policy Local",
                syn(CLIENT, "10.96.0.40:80"),
                Dropped(NoLocalEndpoint),
            )
        },
    ]
}

#[test]
fn service_cases() {
    for case in [translated(), refused()].iter().flatten() {
        println!("{}: {}", case.name, case.description);
        let mut tables = worked_example("a");
        (case.tables)(&mut tables);
        let mut node = EngineNode::new(tables, Settings::default());
        for round in 0..2 {
            check(&format!("{}, round {round}", case.name), &case.expected, &node.encap(&case.packet));
        }
    }
}

fn check(name: &str, expected: &Expected, outcome: &Outcome) {
    match expected {
        Encapsulated(flow) => {
            assert_eq!(outcome.drops, [], "{name}");
            assert_eq!(verified_flow(&outcome.datagrams[0].payload[22..]), *flow, "{name}");
        }
        Delivered(flow) => {
            assert_eq!(outcome.drops, [], "{name}");
            assert_eq!(verified_flow(&outcome.packets[0].bytes), *flow, "{name}");
        }
        Refused(reason, check) => {
            assert_eq!(outcome.drops, [(*reason, 1)], "{name}");
            check(&outcome.packets[0].bytes);
        }
        Dropped(reason) => {
            assert_eq!(outcome.drops, [(*reason, 1)], "{name}");
            assert!(outcome.packets.is_empty() && outcome.datagrams.is_empty(), "{name}");
        }
    }
}

fn node() -> EngineNode {
    EngineNode::new(worked_example("a"), Settings::default())
}

/// The flow that leaves for `packet`, on whichever side.
fn leaves(outcome: &Outcome) -> FlowKey {
    assert_eq!(outcome.drops, []);
    match (&outcome.datagrams[..], &outcome.packets[..]) {
        ([sent], []) => verified_flow(&completed(sent.payload[22..].to_vec(), sent.checksum)),
        ([], [sent]) => verified_flow(&completed(sent.bytes.clone(), sent.checksum)),
        _ => panic!("{outcome:?}"),
    }
}

#[test]
fn a_vip_answers_pings_itself() {
    let mut node = node();
    for (client, vip, reply) in
        [("10.244.0.14", "10.96.0.10", (0, 0)), ("fd00:10:244::14", "fd00:10:96::a", (129, 0))]
    {
        let answer = node.encap(&ping(addr(client), addr(vip), 7));
        let message = verified_icmp(&answer.packets[0].bytes);
        assert_eq!((message.src, message.dst, message.kind), (addr(vip), addr(client), reply));
        assert_eq!((message.word, &message.body[..]), (7 << 16 | 1, &b"ping"[..]));
    }
}

#[test]
fn d2_a_udp_checksum_that_becomes_zero_is_sent_as_all_ones() {
    let mut node = node();
    let to_vip = flow(Protocol::UDP, CLIENT, "10.96.0.21:80");
    let seen = (0..=u16::MAX).find(|word| {
        let leaving = node.encap(&udp(&to_vip, &word.to_be_bytes())).datagrams.remove(0).payload;
        verified_flow(&leaving[22..]);
        assert_ne!(leaving[48..50], [0, 0]);
        leaving[48..50] == [0xff, 0xff]
    });
    assert!(seen.is_some(), "one of 65,536 payloads must sum to it");
}

#[test]
fn c11_partial_checksums_stay_partial_through_a_vip_and_back() {
    let mut a = node();
    for (client, vip, backend) in [
        (CLIENT, "10.96.0.21:80", "10.244.2.15:8080"),
        (CLIENT6, "[fd00:10:96::21]:80", "[fd00:10:244:2::15]:8080"),
    ] {
        let (request, state) = partial(syn(client, vip));
        assert_eq!(leaves(&a.encap_with(&request, state, 0)), tcp_flow(client, backend));
        let (reply, state) = partial(tcp(&tcp_flow(backend, client), Tcp::SynAck, b""));
        let restored = a.decap(&vxlan(VNI, mac(MAC_A), &reply), addr("192.168.1.51"), 0);
        assert_eq!(restored.packets[0].checksum, state);
        assert_eq!(leaves(&restored), tcp_flow(vip, client));
        let (data, state) = partial(tcp(&tcp_flow(backend, client), Tcp::Ack, &vec![3; 60_000]));
        let restored = a.decap(&vxlan(VNI, mac(MAC_A), &data), addr("192.168.1.51"), 0);
        assert_eq!(restored.packets[0].checksum, state);
        assert!(restored.packets[0].segment_len > 0);
        assert_eq!(leaves(&restored), tcp_flow(vip, client));
    }
}

#[test]
fn d3_flows_whose_replies_would_clash_get_other_source_ports_and_never_cross() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    // Forty VIPs lead to one backend, and one client uses one source port toward all of them.
    node.change(|set| {
        for i in 1..=40 {
            let vip = vip(&format!("10.96.7.{i}:80"), Protocol::TCP);
            insert(set, Service::new(format!("default/s{i}"), vip, vec![socket("10.244.2.15:8080")]));
        }
    });
    let flows: Vec<_> = (1..=40).map(|i| tcp_flow(CLIENT, &format!("10.96.7.{i}:80"))).collect();
    let translated: Vec<_> =
        flows.iter().map(|flow| leaves(&node.encap(&tcp(flow, Tcp::Syn, b"")))).collect();
    let distinct: std::collections::HashSet<_> = translated.iter().collect();
    assert_eq!(distinct.len(), 40);
    assert_eq!(translated[0].src_port, 40_000, "the first keeps its own");
    assert!(translated[1..].iter().all(|flow| flow.src_port >= 0xc000));
    for (original, translated) in flows.iter().zip(&translated) {
        let reply = vxlan(VNI, mac(MAC_A), &tcp(&translated.reversed(), Tcp::SynAck, b""));
        assert_eq!(leaves(&node.decap(&reply, addr("192.168.1.51"), 0)), original.reversed());
        assert_eq!(leaves(&node.encap(&tcp(original, Tcp::Ack, b"data"))), *translated);
    }
    assert_eq!(node.connections.len(), 40);
}

#[test]
fn d3_when_all_tried_ports_are_taken_the_flow_is_refused_and_counted() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    node.change(|set| {
        for i in 0..80 {
            let vip = vip(&format!("10.96.7.{i}:80"), Protocol::UDP);
            insert(set, Service::new(format!("default/s{i}"), vip, vec![socket("10.244.2.15:8080")]));
        }
    });
    // Every port that the next flow could try belongs to somebody else already.
    for port in 0xc000..=0xffff_u16 {
        let taken = flow(Protocol::UDP, &format!("10.244.0.14:{port}"), "10.96.7.1:80");
        node.encap(&udp(&taken, b""));
    }
    node.encap(&datagram(CLIENT, "10.96.7.2:80"));
    let refused = node.encap(&datagram(CLIENT, "10.96.7.3:80"));
    assert_eq!(refused.drops, [(NoSourcePort, 1)]);
    assert_eq!(leaves(&node.encap(&datagram(CLIENT, "10.96.7.2:80"))).src_port, 40_000);
}

const SECOND: Duration = Duration::from_secs(1);

fn at(secs: u64) -> Instant {
    Instant::ZERO + SECOND * secs as u32
}

#[test]
fn d4_d5_udp_is_forgotten_after_300_seconds_of_silence() {
    let mut node = node();
    let query = datagram(CLIENT, "10.96.0.21:80");
    node.encap(&query);
    for (now, left) in [(299, 1), (301, 0)] {
        node.now = at(now);
        node.expire();
        assert_eq!(node.connections.len(), left, "at {now} s");
    }
    // Traffic that the flow cache decides refreshes too, in either direction.
    node.encap(&query);
    node.now = at(301 + 200);
    node.encap(&query);
    node.now = at(301 + 400);
    let reply = datagram("10.244.2.15:8080", CLIENT);
    leaves(&node.decap(&vxlan(VNI, mac(MAC_A), &reply), addr("192.168.1.51"), 0));
    for (now, left) in [(301 + 400 + 299, 1), (301 + 400 + 301, 0)] {
        node.now = at(now);
        node.expire();
        assert_eq!(node.connections.len(), left, "at {now} s");
    }
    let late = node.decap(&vxlan(VNI, mac(MAC_A), &reply), addr("192.168.1.51"), 0);
    assert_eq!(leaves(&late), flow(Protocol::UDP, "10.244.2.15:8080", CLIENT), "nobody's reply any more");
}

#[test]
fn d4_tcp_is_remembered_by_its_state() {
    let to_vip = tcp_flow(CLIENT, "10.96.0.21:80");
    let back = tcp_flow("10.244.2.15:8080", CLIENT);
    let opening = [(Tcp::Syn, Tcp::SynAck)];
    let established = [(Tcp::Syn, Tcp::SynAck), (Tcp::Ack, Tcp::Ack)];
    let closed = [(Tcp::Syn, Tcp::SynAck), (Tcp::Ack, Tcp::Ack), (Tcp::Fin, Tcp::Fin)];
    for (packets, timeout) in [(&opening[..], 240), (&established, 7_440), (&closed, 240)] {
        let mut node = node();
        for (out, reply) in packets {
            node.encap(&tcp(&to_vip, *out, b""));
            node.decap(&vxlan(VNI, mac(MAC_A), &tcp(&back, *reply, b"")), addr("192.168.1.51"), 0);
        }
        for (now, left) in [(timeout - 1, 1), (timeout + 1, 0)] {
            node.now = at(now);
            node.expire();
            assert_eq!(node.connections.len(), left, "after {} exchanges at {now} s", packets.len());
        }
    }
}

#[test]
fn f2_a_client_stays_with_its_backend_until_its_stay_ends() {
    let backends = |from: u8| (from..30).map(|i| socket(&format!("10.244.2.{i}:80"))).collect::<Vec<_>>();
    let service = |from| {
        let mut service =
            Service::new("default/sticky:http", vip("10.96.0.50:80", Protocol::TCP), backends(from));
        service.affinity = Some(SECOND * 100);
        service
    };
    let mut node = node();
    node.change(|set| insert(set, service(10)));
    let open = |node: &mut EngineNode, port: u16, client: &str| {
        leaves(&node.encap(&syn(&format!("{client}:{port}"), "10.96.0.50:80"))).dst
    };
    let first = open(&mut node, 1_000, "10.244.0.14");
    for port in 1_001..1_050 {
        assert_eq!(open(&mut node, port, "10.244.0.14"), first);
    }
    let others: std::collections::HashSet<_> =
        (1..40).map(|i| open(&mut node, 2_000, &format!("10.244.0.{}", 100 + i))).collect();
    assert!(others.len() > 5, "other clients go elsewhere");
    // A new flow renews the stay; 101 s without one ends it.
    node.now = at(99);
    assert_eq!(open(&mut node, 3_000, "10.244.0.14"), first);
    node.now = at(198);
    assert_eq!(open(&mut node, 3_001, "10.244.0.14"), first);
    node.now = at(299);
    let after: std::collections::HashSet<_> =
        (0..1).map(|i| open(&mut node, 4_000 + i, "10.244.0.14")).collect();
    let fresh = EngineNode::new(node.tables.clone(), Settings::default())
        .encap(&syn("10.244.0.14:4000", "10.96.0.50:80"));
    assert_eq!(after.into_iter().next(), Some(leaves(&fresh).dst), "chosen as if for the first time");
    // A backend that is gone holds nobody.
    node.change(|set| insert(set, service(29)));
    assert_eq!(open(&mut node, 5_000, "10.244.0.14"), addr("10.244.2.29"));
}

#[test]
fn d11_a_full_table_refuses_new_flows_and_keeps_the_old() {
    let mut node = node();
    node.connections = Arc::new(Conntrack::new(2, 1));
    let tables = node.tables.clone();
    let mut node = node.sibling(tables);
    for port in [1, 2] {
        leaves(&node.encap(&datagram(&format!("10.244.0.14:{port}"), "10.96.0.21:80")));
    }
    let refused = node.encap(&datagram("10.244.0.14:3", "10.96.0.21:80"));
    assert_eq!(refused.drops, [(ConnectionTableFull, 1)]);
    leaves(&node.encap(&datagram("10.244.0.14:1", "10.96.0.21:80")));
}

/// Packets whose flows rest on different entries, and the entry each is known by.
fn flows() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("pod", udp(&flow(Protocol::UDP, CLIENT, "10.244.2.15:7"), b"")),
        ("pod6", udp(&flow(Protocol::UDP, CLIENT6, "[fd00:10:244:2::15]:7"), b"")),
        ("remote", tcp(&tcp_flow(CLIENT, "10.96.0.21:80"), Tcp::Ack, b"")),
        ("remote udp", datagram(CLIENT, "10.96.0.21:80")),
        ("here", tcp(&tcp_flow(CLIENT, "10.96.0.20:80"), Tcp::Ack, b"")),
    ]
}

/// Which flows miss the cache once after a change.
fn stale_after(edit: impl FnOnce(&mut TableSet)) -> Vec<&'static str> {
    let mut node = node();
    let misses = |node: &mut EngineNode| {
        let flows = flows().into_iter();
        flows
            .filter_map(|(name, packet)| {
                let before = node.counters().cache_misses.get();
                node.encap(&packet);
                (node.counters().cache_misses.get() > before).then_some(name)
            })
            .collect::<Vec<_>>()
    };
    // Opened, then established, then cached.
    for _ in 0..3 {
        misses(&mut node);
        for name in ["10.96.0.21:80", "10.96.0.20:80"] {
            let to_vip = tcp_flow(CLIENT, name);
            if let Some((connection, _)) = node.connections.lookup(&to_vip) {
                let reply = tcp(&connection.reply, Tcp::SynAck, b"");
                if connection.reply.src == addr("10.244.0.14") {
                    node.encap(&reply);
                } else {
                    node.decap(&vxlan(VNI, mac(MAC_A), &reply), addr("192.168.1.51"), 0);
                }
            }
        }
        node.now = node.now + SECOND;
    }
    assert_eq!(misses(&mut node), [] as [&str; 0], "all cached");
    node.change(edit);
    let stale = misses(&mut node);
    assert_eq!(misses(&mut node), [] as [&str; 0], "decided once");
    stale
}

#[test]
fn a_change_makes_stale_only_the_flows_that_rest_on_it() {
    let moved = |set: &mut TableSet, peers: &[&str], to: &str| {
        let mut vtep = RemoteVtep::new("b", socket(to));
        vtep.prefixes = vec![net("10.244.2.0/24"), net("fd00:10:244:2::/64")];
        let vtep = Arc::new(vtep);
        for peer in peers {
            Arc::make_mut(&mut set.fdb).insert(vni(), mac(peer), Arc::clone(&vtep));
        }
    };
    assert_eq!(stale_after(|_| ()), [] as [&str; 0], "nothing changed");
    assert_eq!(
        stale_after(|set| {
            let vip = vip("10.96.0.21:80", Protocol::TCP);
            insert(set, Service::new("default/remote:http", vip, vec![socket("10.244.2.16:8080")]));
        }),
        ["remote"]
    );
    assert_eq!(
        stale_after(|set| {
            let vip = vip("10.96.0.99:80", Protocol::TCP);
            insert(set, Service::new("default/another", vip, vec![socket("10.244.2.16:8080")]));
        }),
        [] as [&str; 0],
        "another service is nobody's business"
    );
    assert_eq!(stale_after(|set| moved(set, &[MAC_B6], "192.168.1.61:4789")), ["pod6"]);
    assert_eq!(stale_after(|set| moved(set, &[MAC_B], "192.168.1.61:4789")), ["pod", "remote", "remote udp"]);
    assert_eq!(
        stale_after(|set| Arc::make_mut(&mut set.neighbors).insert(vni(), addr("10.244.2.0"), mac(MAC_B6))),
        ["pod", "remote", "remote udp"]
    );
    assert_eq!(
        stale_after(|set| {
            let gateway = addr("fd00:10:244:2::");
            Arc::make_mut(&mut set.routes)
                .insert(net("fd00:10:244:2::/80"), NextHop::Remote { vni: vni(), gateway });
        }),
        ["pod6"],
        "a longer prefix touches what the shorter one covered"
    );
    assert_eq!(
        stale_after(|set| {
            Arc::make_mut(&mut set.routes).insert(net("10.250.0.0/16"), NextHop::Overlay);
        }),
        [] as [&str; 0]
    );
}

#[test]
fn a_longer_prefix_takes_effect_for_cached_flows() {
    let mut node = node();
    let packet = udp(&flow(Protocol::UDP, CLIENT, "10.244.2.15:7"), b"");
    for _ in 0..2 {
        assert_eq!(node.encap(&packet).datagrams[0].remote, socket("192.168.1.51:4789"));
    }
    node.change(|set| {
        let mut vtep = RemoteVtep::new("c", socket("192.168.1.62:4789"));
        vtep.prefixes = vec![net("10.244.2.0/28")];
        let gateway = addr("10.244.2.1");
        Arc::make_mut(&mut set.fdb).insert(vni(), mac("02:00:00:00:00:0c"), Arc::new(vtep));
        Arc::make_mut(&mut set.neighbors).insert(vni(), gateway, mac("02:00:00:00:00:0c"));
        Arc::make_mut(&mut set.routes).insert(net("10.244.2.0/28"), NextHop::Remote { vni: vni(), gateway });
    });
    assert_eq!(node.encap(&packet).datagrams[0].remote, socket("192.168.1.62:4789"));
    node.change(|set| {
        let mut routes = windlass_dataplane::tables::RouteTable::default();
        for (prefix, hop) in set.routes.iter().filter(|(prefix, _)| *prefix != net("10.244.2.0/28")) {
            routes.insert(prefix, hop);
        }
        set.routes = Arc::new(routes);
    });
    assert_eq!(node.encap(&packet).datagrams[0].remote, socket("192.168.1.51:4789"), "and its end too");
}

#[test]
fn a_new_vip_at_a_plain_address_takes_effect_for_cached_flows() {
    let mut node = node();
    let packet = udp(&flow(Protocol::UDP, CLIENT, "10.244.2.15:7"), b"");
    for _ in 0..2 {
        assert_eq!(leaves(&node.encap(&packet)).dst, addr("10.244.2.15"));
    }
    node.change(|set| {
        insert(
            set,
            Service::new("default/ext", vip("10.244.2.15:7", Protocol::UDP), vec![socket("10.244.2.16:9")]),
        );
    });
    assert_eq!(leaves(&node.encap(&packet)), flow(Protocol::UDP, CLIENT, "10.244.2.16:9"));
}

#[test]
fn f6_udp_leaves_a_backend_that_is_gone_while_tcp_stays() {
    let mut node = node();
    let query = datagram(CLIENT, "10.96.0.21:80");
    let to_vip = tcp_flow(CLIENT, "10.96.0.21:80");
    for _ in 0..2 {
        leaves(&node.encap(&query));
    }
    leaves(&node.encap(&tcp(&to_vip, Tcp::Syn, b"")));
    let answer = tcp(&tcp_flow("10.244.2.15:8080", CLIENT), Tcp::SynAck, b"");
    leaves(&node.decap(&vxlan(VNI, mac(MAC_A), &answer), addr("192.168.1.51"), 0));
    for _ in 0..2 {
        leaves(&node.encap(&tcp(&to_vip, Tcp::Ack, b"")));
    }
    let services = |set: &mut TableSet, backends: Vec<std::net::SocketAddr>| {
        for protocol in [Protocol::TCP, Protocol::UDP] {
            insert(set, Service::new("default/remote", vip("10.96.0.21:80", protocol), backends.clone()));
        }
    };
    node.change(|set| services(set, vec![socket("10.244.2.99:8080")]));
    assert_eq!(leaves(&node.encap(&query)).dst, addr("10.244.2.99"));
    assert_eq!(leaves(&node.encap(&tcp(&to_vip, Tcp::Ack, b"data"))).dst, addr("10.244.2.15"), "TCP stays");
    node.change(|set| services(set, Vec::new()));
    assert_eq!(node.encap(&query).drops, [(NoEndpoint, 1)]);
    assert_eq!(leaves(&node.encap(&tcp(&to_vip, Tcp::Ack, b"data"))).dst, addr("10.244.2.15"));
    // Draining backends keep what they have, UDP too.
    node.change(|set| services(set, vec![socket("10.244.2.98:8080")]));
    assert_eq!(leaves(&node.encap(&query)).dst, addr("10.244.2.98"));
    node.change(|set| {
        let vip = vip("10.96.0.21:80", Protocol::UDP);
        let mut service = Service::new("default/remote", vip, vec![socket("10.244.2.97:8080")]);
        service.draining = vec![socket("10.244.2.98:8080")];
        insert(set, service);
    });
    assert_eq!(leaves(&node.encap(&query)).dst, addr("10.244.2.98"));
}

#[test]
fn a_vtep_that_moves_is_followed_and_its_old_address_no_longer_trusted() {
    let mut node = node();
    let packet = udp(&flow(Protocol::UDP, CLIENT, "10.244.2.15:7"), b"");
    let back = vxlan(VNI, mac(MAC_A), &udp(&flow(Protocol::UDP, "10.244.2.15:7", CLIENT), b""));
    for _ in 0..2 {
        node.encap(&packet);
        assert_eq!(node.decap(&back, addr("192.168.1.51"), 0).drops, []);
    }
    node.change(|set| {
        let mut fdb = Fdb::default();
        let mut vtep = RemoteVtep::new("b", socket("192.168.1.61:4789"));
        vtep.prefixes = vec![net("10.244.2.0/24")];
        fdb.insert(vni(), mac(MAC_B), Arc::new(vtep));
        set.fdb = Arc::new(fdb);
    });
    assert_eq!(node.encap(&packet).datagrams[0].remote, socket("192.168.1.61:4789"));
    assert_eq!(node.decap(&back, addr("192.168.1.51"), 0).drops, [(UnknownVtep, 1)]);
    assert_eq!(node.decap(&back, addr("192.168.1.61"), 0).drops, []);
}
