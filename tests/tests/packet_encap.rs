//! Encap, case by case: a packet from the overlay device, and what leaves for it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;
use std::sync::Arc;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::{Dscp, Settings};
use windlass_dataplane::packet::Checksum;
use windlass_dataplane::tables::{Fdb, LocalVtep, NextHop, RemoteVtep, TableSet};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_dataplane::wire::vxlan::Vni;
use windlass_tests::engine_node::{
    EngineNode, MAC_A, MAC_A6, MAC_B, MAC_B6, Outcome, Sent, VNI, addr, flow, mac, net, parsed, socket,
    worked_example,
};
use windlass_tests::packets::{
    Opened, Tcp, completed, opened, partial, ping, tcp, tos, udp, verified_flow, verified_icmp, with_header,
    with_tos,
};

struct Case {
    name: &'static str,
    /// The requirement it proves, by number.
    description: &'static str,
    packet: Vec<u8>,
    tables: fn(&mut TableSet),
    settings: fn(&mut Settings),
    expected: Expected,
}

/// How a packet is spoilt.
type Edit = fn(&mut Vec<u8>);

enum Expected {
    /// To the VTEP of node b, and what else must hold of it.
    Encapsulated(fn(&Sent, &Opened)),
    /// Dropped, and nothing is said.
    Dropped(DropReason),
    /// Dropped, and this packet goes back into the device.
    Answered(DropReason, fn(&[u8])),
}

const PLAIN: fn(&mut TableSet) = |_| ();
const DEFAULTS: fn(&mut Settings) = |_| ();

fn case(name: &'static str, description: &'static str, packet: Vec<u8>, expected: Expected) -> Case {
    Case { name, description, packet, tables: PLAIN, settings: DEFAULTS, expected }
}

fn udp_v4() -> Vec<u8> {
    udp(&flow(Protocol::UDP, "10.244.0.14:40000", "10.244.2.15:80"), b"payload")
}

fn udp_v6() -> Vec<u8> {
    udp(&flow(Protocol::UDP, "[fd00:10:244::14]:40000", "[fd00:10:244:2::15]:80"), b"payload")
}

fn sized(src: &str, dst: &str, total_len: usize) -> Vec<u8> {
    let headers_len = if src.starts_with('[') { 48 } else { 28 };
    udp(&flow(Protocol::UDP, src, dst), &vec![7; total_len - headers_len])
}

fn v4_of(total_len: usize) -> Vec<u8> {
    sized("10.244.0.14:40000", "10.244.2.15:80", total_len)
}

fn v6_of(total_len: usize) -> Vec<u8> {
    sized("[fd00:10:244::14]:40000", "[fd00:10:244:2::15]:80", total_len)
}

fn to(dst: &str) -> Vec<u8> {
    let src = if dst.starts_with('[') { "[fd00:10:244::14]:40000" } else { "10.244.0.14:40000" };
    udp(&flow(Protocol::UDP, src, dst), b"noise")
}

fn with(mut packet: Vec<u8>, edit: fn(&mut Vec<u8>)) -> Vec<u8> {
    edit(&mut packet);
    packet
}

/// Node b's VTEP has an IPv6 address; the overlay's MTU is what 1,500 bytes leave.
fn underlay_v6(set: &mut TableSet) {
    let mut fdb = Fdb::default();
    let mut vtep = RemoteVtep::new("b", socket("[2001:db8::51]:4789"));
    vtep.prefixes = vec![net("10.244.2.0/24"), net("fd00:10:244:2::/64")];
    let vtep = Arc::new(vtep);
    for peer in [MAC_B, MAC_B6] {
        fdb.insert(parsed("4096"), mac(peer), Arc::clone(&vtep));
    }
    set.fdb = Arc::new(fdb);
    Arc::make_mut(&mut set.local).overlay_mtu = 1430;
}

fn headers() -> Vec<Case> {
    use Expected::Encapsulated;
    vec![
        case(
            "header",
            "A1: flags are exactly 0x08, all else but the VNI zero; A4: the VTEP's own port",
            udp_v4(),
            Encapsulated(|sent, opened| {
                assert_eq!(opened.header, [8, 0, 0, 0, 0, 0x10, 0, 0]);
                assert_eq!(sent.remote, socket("192.168.1.51:4789"));
            }),
        ),
        case(
            "MACs of IPv4",
            "inner Ethernet from our VTEP's MAC to the peer's, each family its own",
            udp_v4(),
            Encapsulated(|_, frame| {
                assert_eq!((frame.src, frame.dst, frame.ethertype), (mac(MAC_A), mac(MAC_B), 0x0800));
            }),
        ),
        case(
            "MACs of IPv6",
            "inner Ethernet from our VTEP's MAC to the peer's, each family its own",
            udp_v6(),
            Encapsulated(|_, frame| {
                assert_eq!((frame.src, frame.dst, frame.ethertype), (mac(MAC_A6), mac(MAC_B6), 0x86dd));
            }),
        ),
        Case {
            tables: |set| {
                let mut vtep = RemoteVtep::new("b", socket("192.168.1.51:8472"));
                vtep.prefixes = vec![net("10.244.2.0/24")];
                Arc::make_mut(&mut set.fdb).insert(parsed("4096"), mac(MAC_B), Arc::new(vtep));
            },
            ..case(
                "another port",
                "A4: flannel on Linux listens on 8472",
                udp_v4(),
                Encapsulated(|sent, _| assert_eq!(sent.remote, socket("192.168.1.51:8472"))),
            )
        },
        Case {
            tables: underlay_v6,
            ..case(
                "IPv4 in IPv6",
                "A7: an IPv6 underlay",
                udp_v4(),
                Encapsulated(|sent, _| assert_eq!(sent.remote, socket("[2001:db8::51]:4789"))),
            )
        },
        Case {
            tables: underlay_v6,
            ..case(
                "IPv6 in IPv6",
                "A7: an IPv6 underlay",
                udp_v6(),
                Encapsulated(|sent, _| assert_eq!(sent.remote, socket("[2001:db8::51]:4789"))),
            )
        },
        case(
            "ECN and DSCP",
            "B1: ECN is copied to the outer header; B4: so is DSCP; the inner stays",
            with_tos(udp_v4(), 0b1011_1010),
            Encapsulated(|sent, opened| {
                assert_eq!((sent.tos, tos(&opened.inner)), (0b1011_1010, 0b1011_1010));
            }),
        ),
        case(
            "ECN and DSCP of IPv6",
            "B1, B4: the traffic class lies across two bytes",
            with_tos(udp_v6(), 0b1011_1011),
            Encapsulated(|sent, _| assert_eq!(sent.tos, 0b1011_1011)),
        ),
        Case {
            settings: |settings| settings.dscp = Dscp::Fixed(46),
            ..case(
                "fixed DSCP",
                "B4: a fixed DSCP leaves ECN copied (B1)",
                with_tos(udp_v4(), 0b0000_0101),
                Encapsulated(|sent, _| assert_eq!(sent.tos, 46 << 2 | 0b01)),
            )
        },
        case(
            "TTL",
            "B5: over TUN the host routes and decrements; we do not",
            with_header(udp_v4(), |header| header.time_to_live = 1),
            Encapsulated(|_, opened| assert_eq!(opened.inner[8], 1)),
        ),
        case(
            "padding",
            "A13: what follows the IP packet is trimmed, not an error",
            with(udp_v4(), |packet| packet.extend([0; 11])),
            Encapsulated(|_, opened| assert_eq!(opened.inner, udp_v4())),
        ),
        case(
            "ICMP",
            "pings between pods pass",
            ping(addr("10.244.0.14"), addr("10.244.2.15"), 7),
            Encapsulated(|_, opened| assert_eq!(verified_icmp(&opened.inner).kind, (8, 0))),
        ),
        case(
            "another protocol",
            "D13: between pods any protocol passes",
            with_header(udp_v4(), |header| header.protocol = 132.into()),
            Encapsulated(|_, opened| assert_eq!(opened.inner[9], 132)),
        ),
    ]
}

fn malformed() -> Vec<Case> {
    let edits: [(&str, &str, Edit); 8] = [
        ("empty", "A12", |packet| packet.clear()),
        ("version 5", "A13: version", |packet| packet[0] = 0x55),
        ("IHL 4", "A13: IHL < 5", |packet| packet[0] = 0x44),
        ("IHL past the end", "A13: IHL > length", |packet| {
            packet[0] = 0x4f;
            packet.truncate(40);
        }),
        ("total length too long", "A13: IP length > frame", |packet| packet[3] += 1),
        ("total length too short", "A13: IP length < header", |packet| packet[2..4].fill(0)),
        ("UDP length 7", "A13: a UDP length below its header", |packet| {
            packet[24..26].copy_from_slice(&[0, 7])
        }),
        ("UDP length too long", "A13: a UDP length past the packet", |packet| packet[25] += 1),
    ];
    let mut cases: Vec<_> = edits
        .into_iter()
        .map(|(name, description, edit)| {
            case(name, description, with(udp_v4(), edit), Expected::Dropped(DropReason::Malformed))
        })
        .collect();
    let pods = flow(Protocol::TCP, "10.244.0.14:40000", "10.244.2.15:80");
    let offset = with(tcp(&pods, Tcp::Ack, b""), |packet| packet[32] = 0x40);
    cases.push(case("data offset 4", "A13: data offset", offset, Expected::Dropped(DropReason::Malformed)));
    cases
}

fn addresses() -> Vec<Case> {
    use DropReason::{
        DestinationInvalid, LocalPodNotOnHost, NoConnection, NoFdbEntry, NoLocalVtep, NoNeighbor, NoRoute,
        NoSuchService, OutsideOverlay,
    };
    use Expected::Dropped;
    let noise = [
        ("multicast", "224.0.0.22:1"),
        ("mDNS", "224.0.0.251:5353"),
        ("broadcast", "255.255.255.255:67"),
        ("loopback", "127.0.0.1:80"),
        ("link-local", "169.254.1.1:80"),
        ("this network", "0.0.0.0:80"),
        ("IPv6 multicast", "[ff02::16]:1"),
        ("IPv6 link-local", "[fe80::1]:80"),
        ("IPv6 loopback", "[::1]:80"),
    ];
    let mut cases: Vec<_> = noise
        .into_iter()
        .map(|(name, dst)| case(name, "E4: the host's own noise", to(dst), Dropped(DestinationInvalid)))
        .collect();
    cases.extend([
        case("source VIP", "E4: only replies go there", to("169.254.77.1:9"), Dropped(NoConnection)),
        case("pod of this node", "it would loop", to("10.244.0.77:80"), Dropped(LocalPodNotOnHost)),
        case("outside", "it would loop", to("192.0.2.1:80"), Dropped(OutsideOverlay)),
        case("no service", "F8: never looped", to("10.97.0.1:80"), Dropped(NoSuchService)),
        Case {
            tables: |set| set.routes = Arc::default(),
            ..case("no route", "no table entry", udp_v4(), Dropped(NoRoute))
        },
        Case {
            tables: |set| set.neighbors = Arc::default(),
            ..case("no neighbor", "no table entry", udp_v4(), Dropped(NoNeighbor))
        },
        Case {
            tables: |set| set.fdb = Arc::default(),
            ..case("no FDB entry", "no table entry", udp_v4(), Dropped(NoFdbEntry))
        },
        Case {
            tables: |set| Arc::make_mut(&mut set.local).vteps.clear(),
            ..case("no VTEP of ours", "no table entry", udp_v4(), Dropped(NoLocalVtep))
        },
    ]);
    cases
}

fn sizes() -> Vec<Case> {
    use DropReason::{TooBig, TooBigMayFragment};
    use Expected::{Answered, Dropped, Encapsulated};
    fn fits(_: &Sent, opened: &Opened) {
        verified_flow(&opened.inner);
    }
    vec![
        case("as long as the MTU", "C3", v4_of(1450), Encapsulated(fits)),
        case("IPv6 as long as the MTU", "C3", v6_of(1450), Encapsulated(fits)),
        case(
            "too long, DF",
            "C3: ICMP 3/4 with the MTU; C8: from the source VIP, quoting what was sent",
            v4_of(1451),
            Answered(TooBig, |answer| {
                let told = verified_icmp(answer);
                assert_eq!((told.kind, told.word), ((3, 4), 1450));
                assert_eq!((told.src, told.dst), (addr("169.254.77.1"), addr("10.244.0.14")));
                assert!(v4_of(1451).starts_with(&told.body) && told.body.len() >= 28);
            }),
        ),
        case(
            "IPv6 too long",
            "C3: Packet Too Big; C8: from the source VIP",
            v6_of(1451),
            Answered(TooBig, |answer| {
                let told = verified_icmp(answer);
                assert_eq!((told.kind, told.word), ((2, 0), 1450));
                assert_eq!((told.src, told.dst), (addr("fd77:6e64:6c61:7373::1"), addr("fd00:10:244::14")));
                assert!(v6_of(1451).starts_with(&told.body));
                assert!(answer.len() <= 1280);
            }),
        ),
        case(
            "too long without DF",
            "C4: dropped and counted",
            with_header(v4_of(1451), |header| header.dont_fragment = false),
            Dropped(TooBigMayFragment),
        ),
        Case {
            tables: underlay_v6,
            ..case(
                "too long for an IPv6 underlay",
                "C3, A7",
                v4_of(1431),
                Answered(TooBig, |answer| assert_eq!(verified_icmp(answer).word, 1430)),
            )
        },
        Case {
            tables: |set| {
                for (_, _, vtep) in set.fdb.iter() {
                    vtep.path_mtu.learn(vtep.addr.ip(), 1400, Instant::ZERO);
                }
            },
            ..case(
                "longer than the path learned",
                "C5: 50 bytes less than the path's MTU",
                v4_of(1351),
                Answered(TooBig, |answer| assert_eq!(verified_icmp(answer).word, 1350)),
            )
        },
        Case {
            tables: |set| {
                for (_, _, vtep) in set.fdb.iter() {
                    vtep.path_mtu.learn(vtep.addr.ip(), 1200, Instant::ZERO);
                }
            },
            ..case(
                "IPv6 and a very narrow path",
                "C3: never under 1280",
                v6_of(1300),
                Answered(TooBig, |answer| assert_eq!(verified_icmp(answer).word, 1280)),
            )
        },
        case(
            "too long to a VIP",
            "C8: the quoted packet is the one before DNAT",
            sized("10.244.0.14:40000", "10.96.0.21:80", 1451),
            Answered(TooBig, |answer| {
                let told = verified_icmp(answer);
                assert_eq!(told.src, addr("169.254.77.1"));
                assert_eq!(told.body[16..20], [10, 96, 0, 21]);
                assert_eq!(told.body[22..24], [0, 80]);
            }),
        ),
    ]
}

#[test]
fn encap_cases() {
    let all = [headers(), malformed(), addresses(), sizes()];
    for case in all.iter().flatten() {
        println!("{}: {}", case.name, case.description);
        let mut tables = worked_example("a");
        (case.tables)(&mut tables);
        let mut settings = Settings::default();
        (case.settings)(&mut settings);
        let mut node = EngineNode::new(tables, settings);
        // The second time the flow cache may answer: with the same.
        for round in 0..2 {
            let outcome = node.encap(&case.packet);
            check(&format!("{}, round {round}", case.name), &case.expected, &outcome);
        }
    }
}

fn check(name: &str, expected: &Expected, outcome: &Outcome) {
    match expected {
        Expected::Encapsulated(check) => {
            assert_eq!((&outcome.drops[..], outcome.packets.len()), (&[][..], 0), "{name}");
            let [sent] = &outcome.datagrams[..] else { panic!("{name}: {outcome:?}") };
            check(sent, &opened(&sent.payload));
        }
        Expected::Dropped(reason) => {
            assert_eq!(outcome.drops, [(*reason, 1)], "{name}");
            assert!(outcome.packets.is_empty() && outcome.datagrams.is_empty(), "{name}: {outcome:?}");
        }
        Expected::Answered(reason, check) => {
            assert_eq!(outcome.drops, [(*reason, 1)], "{name}");
            assert!(outcome.datagrams.is_empty(), "{name}");
            let [answer] = &outcome.packets[..] else { panic!("{name}: {outcome:?}") };
            check(&answer.bytes);
        }
    }
}

#[test]
fn a12_a_packet_cut_anywhere_is_one_malformed_drop() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    let pods = flow(Protocol::TCP, "[fd00:10:244::14]:40000", "[fd00:10:244:2::15]:80");
    for whole in [udp_v4(), udp_v6(), tcp(&pods, Tcp::Ack, b"data"), ping(pods.src, pods.dst, 1)] {
        for len in 0..whole.len() {
            assert_eq!(node.encap(&whole[..len]).drops, [(DropReason::Malformed, 1)], "at {len}");
        }
        assert_eq!(node.encap(&whole).drops, []);
    }
}

#[test]
fn a5_source_ports_spread_evenly_and_agree_on_every_worker_and_in_both_directions() {
    let (mut a, mut b) = (
        EngineNode::new(worked_example("a"), Settings::default()),
        EngineNode::new(worked_example("b"), Settings::default()),
    );
    let mut other = a.sibling(worked_example("a"));
    for v6 in [false, true] {
        let mut buckets = [0_u32; 16];
        for i in 0..10_000_u16 {
            let (src, dst) =
                if v6 { ("fd00:10:244::14", "fd00:10:244:2::15") } else { ("10.244.0.14", "10.244.2.15") };
            let flow = FlowKey {
                src: addr(src),
                dst: addr(dst),
                protocol: Protocol::UDP,
                src_port: 30_000 + i,
                dst_port: 80,
            };
            let port = a.encap(&udp(&flow, b"")).datagrams[0].source_port;
            buckets[usize::from(port % 16)] += 1;
            if i % 50 == 0 {
                assert_eq!(other.encap(&udp(&flow, b"other")).datagrams[0].source_port, port);
                assert_eq!(b.encap(&udp(&flow.reversed(), b"")).datagrams[0].source_port, port);
            }
        }
        let even = 10_000 / 16;
        assert!(buckets.iter().all(|n| (even * 7 / 10..=even * 13 / 10).contains(n)), "{buckets:?}");
    }
}

#[test]
fn a5_a_vip_flow_has_one_source_port_in_both_directions_and_so_have_the_pieces_of_a_packet() {
    let (mut a, mut b) = (
        EngineNode::new(worked_example("a"), Settings::default()),
        EngineNode::new(worked_example("b"), Settings::default()),
    );
    let request = udp(&flow(Protocol::UDP, "10.244.0.14:40000", "10.96.0.21:80"), b"?");
    let reply = udp(&flow(Protocol::UDP, "10.244.2.15:8080", "10.244.0.14:40000"), b"!");
    assert_eq!(a.encap(&request).datagrams[0].source_port, b.encap(&reply).datagrams[0].source_port);
    let piece = |offset: u16, more| {
        with_header(udp_v4(), |header| {
            header.dont_fragment = false;
            header.more_fragments = more;
            header.fragment_offset = offset.try_into().unwrap();
        })
    };
    let ports: Vec<_> = [piece(0, true), piece(2, true), piece(4, false)]
        .iter()
        .map(|p| a.encap(p).datagrams[0].source_port)
        .collect();
    assert!(ports.iter().all(|port| *port == ports[0]), "{ports:?}");
}

/// Two networks, each with its own VTEPs on both nodes; node b's pods of the second are 10.245.2.0/24.
fn two_networks(name: &str, second: u32) -> TableSet {
    let mut set = worked_example(name);
    let vni = Vni::new(second).unwrap();
    let (own, peer, peer_addr) = if name == "a" { (1, 2, "192.168.1.51") } else { (2, 1, "192.168.1.40") };
    let mac_of = |node: u8| windlass_dataplane::wire::ethernet::Mac([2, 0, 0, 0, 9, node]);
    let mut vtep = RemoteVtep::new("second", SocketAddr::new(addr(peer_addr), 4789));
    vtep.prefixes = vec![net(&format!("10.245.{peer}.0/24"))];
    Arc::make_mut(&mut set.fdb).insert(vni, mac_of(peer), Arc::new(vtep));
    let gateway = addr(&format!("10.245.{peer}.0"));
    Arc::make_mut(&mut set.neighbors).insert(vni, gateway, mac_of(peer));
    let routes = Arc::make_mut(&mut set.routes);
    routes.insert(net(&format!("10.245.{peer}.0/24")), NextHop::Remote { vni, gateway });
    routes.insert(net(&format!("10.245.{own}.0/24")), NextHop::Overlay);
    let local = Arc::make_mut(&mut set.local);
    local.vteps.insert(vni, LocalVtep { mac_v4: Some(mac_of(own)), mac_v6: None });
    local.pod_cidrs.push(net(&format!("10.245.{own}.0/24")));
    set
}

#[test]
fn a8_several_networks_at_once_stay_apart() {
    for second in [0, 1, 0xff_ffff] {
        let mut a = EngineNode::new(two_networks("a", second), Settings::default());
        let mut b = EngineNode::new(two_networks("b", second), Settings::default());
        let in_second = udp(&flow(Protocol::UDP, "10.245.1.9:1000", "10.245.2.9:80"), b"second");
        for (packet, vni) in [(udp_v4(), VNI), (in_second, second), (udp_v4(), VNI)] {
            let sent = a.encap(&packet).datagrams.remove(0).payload;
            assert_eq!(opened(&sent).header[4..7], vni.to_be_bytes()[1..], "24 bits of VNI {vni}");
            let delivered = b.decap(&sent, addr("192.168.1.40"), 0);
            assert_eq!(delivered.packets[0].bytes, packet);
            // The same frame under the other number: its MAC and its source are known there as little as its VNI.
            let other = if vni == VNI { second } else { VNI };
            let mut crossed = sent.clone();
            crossed[4..7].copy_from_slice(&other.to_be_bytes()[1..]);
            let outcome = b.decap(&crossed, addr("192.168.1.40"), 0);
            assert_eq!(outcome.drops, [(DropReason::InnerMacNotOurs, 1)]);
            // And with the other network's MAC, its source is not that VTEP's to use.
            let right = b.tables.local.vteps[&Vni::new(other).unwrap()].mac_v4.unwrap();
            crossed[8..14].copy_from_slice(&right.0);
            assert_eq!(b.decap(&crossed, addr("192.168.1.40"), 0).drops, [(DropReason::SourceSpoofed, 1)]);
            crossed[4..7].copy_from_slice(&[0, 0, 99]);
            assert_eq!(b.decap(&crossed, addr("192.168.1.40"), 0).drops, [(DropReason::UnknownVni, 1)]);
        }
    }
}

#[test]
fn c11_partial_checksums_and_superpackets_are_encapsulated_whole() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    for (src, dst) in
        [("10.244.0.14:40000", "10.244.2.15:80"), ("[fd00:10:244::14]:40000", "[fd00:10:244:2::15]:80")]
    {
        let pods = flow(Protocol::TCP, src, dst);
        let (syn, state) = partial(tcp(&pods, Tcp::Syn, b""));
        let sent = node.encap_with(&syn, state, 0).datagrams.remove(0);
        assert_eq!(sent.checksum, state, "offsets count from the inner IP header");
        assert_eq!(verified_flow(&completed(sent.payload[22..].to_vec(), state)), pods);
        let (data, state) = partial(tcp(&pods, Tcp::Ack, &vec![5; 60_000]));
        let received = node.counters().overlay.received.get();
        let sent = node.encap_with(&data, state, 1390).datagrams.remove(0);
        assert_eq!((sent.segment_len, sent.checksum, &sent.payload[22..]), (1390, state, &data[..]));
        assert_eq!(node.counters().overlay.received.get() - received, 60_000_u64.div_ceil(1390));
    }
}

#[test]
fn c3_c8_a_superpacket_is_measured_by_its_segments() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    let to_vip = flow(Protocol::TCP, "10.244.0.14:40000", "10.96.0.21:80");
    let (data, state) = partial(tcp(&to_vip, Tcp::Ack, &vec![5; 30_000]));
    let fits = node.encap_with(&data, state, 1410);
    assert_eq!((fits.drops.len(), fits.datagrams.len()), (0, 1));
    let inner = completed(fits.datagrams[0].payload[22..].to_vec(), state);
    assert_eq!(verified_flow(&inner).dst, addr("10.244.2.15"));
    let outcome = node.encap_with(&data, state, 1411);
    assert_eq!(outcome.drops, [(DropReason::TooBig, 30_000_u64.div_ceil(1411))]);
    let told = verified_icmp(&outcome.packets[0].bytes);
    assert_eq!((told.kind, told.word), ((3, 4), 1450));
    assert!(data.starts_with(&told.body), "before DNAT");
    let last = node.encap_with(&data[..], Checksum::Complete, 0);
    assert_eq!(last.drops, [(DropReason::TooBig, 1)], "without a segment size it is one packet");
}

#[test]
fn c7_no_error_about_an_error_or_a_later_fragment() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    let mut error = ping(addr("10.244.0.14"), addr("10.244.2.15"), 1);
    error[20..22].copy_from_slice(&[3, 3]);
    error.resize(1451, 0);
    let error = with_header(error, |header| header.total_len = 1451);
    let first = with_header(v4_of(820), |header| header.more_fragments = true);
    assert_eq!(node.encap(&first).drops, []);
    let later = with_header(v4_of(1451), |header| header.fragment_offset = 100.try_into().unwrap());
    for packet in [error, later] {
        let outcome = node.encap(&packet);
        assert_eq!(outcome.drops, [(DropReason::TooBig, 1)]);
        assert!(outcome.packets.is_empty(), "{:02x?}", outcome.packets);
    }
}
