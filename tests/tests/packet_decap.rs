//! Decap, case by case: a UDP payload from the underlay, and what reaches the overlay device.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::IpAddr;
use std::sync::Arc;

use windlass_dataplane::drop_reason::DropReason::{self, *};
use windlass_dataplane::engine::Settings;
use windlass_dataplane::packet::Checksum;
use windlass_dataplane::tables::TableSet;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{
    EngineNode, MAC_A, MAC_A6, MAC_B, Outcome, VNI, addr, flow, mac, worked_example,
};
use windlass_tests::packets::{
    Tcp, completed, partial, ping, tcp, tos, udp, verified_flow, vxlan, vxlan_of, with_header, with_tos,
};

struct Case {
    name: &'static str,
    /// The requirement it proves, by number.
    description: &'static str,
    payload: Vec<u8>,
    from: IpAddr,
    tos: u8,
    tables: fn(&mut TableSet),
    settings: fn(&mut Settings),
    expected: Expected,
}

/// How a packet is spoilt.
type Edit = fn(&mut Vec<u8>);

enum Expected {
    Delivered(Vec<u8>),
    Dropped(DropReason),
}

use Expected::{Delivered, Dropped};

fn case(name: &'static str, description: &'static str, payload: Vec<u8>, expected: Expected) -> Case {
    Case {
        name,
        description,
        payload,
        from: addr("192.168.1.51"),
        tos: 0,
        tables: |_| (),
        settings: |_| (),
        expected,
    }
}

fn udp_v4() -> Vec<u8> {
    from_to("10.244.2.15:40000", "10.244.0.14:80")
}

fn udp_v6() -> Vec<u8> {
    from_to("[fd00:10:244:2::15]:40000", "[fd00:10:244::14]:80")
}

fn from_to(src: &str, dst: &str) -> Vec<u8> {
    udp(&flow(Protocol::UDP, src, dst), b"payload")
}

fn to_us(inner: &[u8]) -> Vec<u8> {
    vxlan(VNI, mac(MAC_A), inner)
}

fn edited(mut payload: Vec<u8>, edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    edit(&mut payload);
    payload
}

fn vlan(inner: &[u8]) -> Vec<u8> {
    let mut tagged = vec![0, 100, 0x08, 0x00];
    tagged.extend(inner);
    vxlan_of(VNI, mac(MAC_A), 0x8100, &tagged)
}

fn delivered() -> Vec<Case> {
    let padded = edited(to_us(&udp_v4()), |payload| payload.extend([0xaa; 20]));
    let sctp = with_header(udp_v4(), |header| header.protocol = 132.into());
    let echo = ping(addr("10.244.2.15"), addr("10.244.0.14"), 3);
    vec![
        case("IPv4", "A14", to_us(&udp_v4()), Delivered(udp_v4())),
        case("IPv6", "A14", vxlan(VNI, mac(MAC_A6), &udp_v6()), Delivered(udp_v6())),
        case("IPv6 to the other MAC", "A9: either MAC is ours", to_us(&udp_v6()), Delivered(udp_v6())),
        case("VLAN tag", "A10: discarded by default", vlan(&udp_v4()), Dropped(InnerVlan)),
        Case {
            settings: |settings| settings.accept_inner_vlan = true,
            ..case("VLAN tag, accepted", "A10: the setting", vlan(&udp_v4()), Delivered(udp_v4()))
        },
        case("padding", "A13: trimmed, not an error", padded, Delivered(udp_v4())),
        case("ICMP", "pings from pods pass", to_us(&echo), Delivered(echo.clone())),
        case("SCTP", "D13: between pods any protocol passes", to_us(&sctp), Delivered(sctp.clone())),
        case(
            "from the node itself",
            "E2: peers without ip-masq send from the node's own address",
            to_us(&from_to("192.168.1.51:40000", "10.244.0.14:80")),
            Delivered(from_to("192.168.1.51:40000", "10.244.0.14:80")),
        ),
        case(
            "to the node itself",
            "the podCIDR base is an address of this node",
            to_us(&from_to("10.244.2.15:40000", "10.244.0.0:80")),
            Delivered(from_to("10.244.2.15:40000", "10.244.0.0:80")),
        ),
        Case {
            from: addr("2001:db8::51"),
            tables: underlay_v6,
            ..case("IPv4 in IPv6", "A7", to_us(&udp_v4()), Delivered(udp_v4()))
        },
        Case {
            from: addr("2001:db8::51"),
            tables: underlay_v6,
            ..case("IPv6 in IPv6", "A7", vxlan(VNI, mac(MAC_A6), &udp_v6()), Delivered(udp_v6()))
        },
        Case {
            from: addr("192.168.1.99"),
            settings: |settings| settings.allow_unknown_vteps = true,
            ..case("unknown VTEP, relaxed", "E1: the setting", to_us(&udp_v4()), Delivered(udp_v4()))
        },
    ]
}

fn underlay_v6(set: &mut TableSet) {
    let mut vtep = (**set.fdb.lookup("4096".parse().unwrap(), mac(MAC_B)).unwrap()).clone();
    vtep.addr = "[2001:db8::51]:4789".parse().unwrap();
    Arc::make_mut(&mut set.fdb).insert("4096".parse().unwrap(), mac(MAC_B), Arc::new(vtep));
}

fn headers() -> Vec<Case> {
    let good = || to_us(&udp_v4());
    let i_bit = edited(good(), |payload| payload[0] = 0);
    let only_i_missing = edited(good(), |payload| payload[0] = 0xf7);
    vec![
        case("I = 0", "A2", i_bit, Dropped(VxlanNoVni)),
        case("all flags but I", "A2", only_i_missing, Dropped(VxlanNoVni)),
        case("unknown VNI", "A8", vxlan(VNI + 1, mac(MAC_A), &udp_v4()), Dropped(UnknownVni)),
        case(
            "VNI 0",
            "A8: 0 is a number, not a wildcard",
            vxlan(0, mac(MAC_A), &udp_v4()),
            Dropped(UnknownVni),
        ),
        case("VNI 0xFFFFFF", "A8", vxlan(0xff_ffff, mac(MAC_A), &udp_v4()), Dropped(UnknownVni)),
        case("the peer's MAC", "A9", vxlan(VNI, mac(MAC_B), &udp_v4()), Dropped(InnerMacNotOurs)),
        case(
            "broadcast MAC",
            "A9: we have no L2 device",
            vxlan(VNI, mac("ff:ff:ff:ff:ff:ff"), &udp_v4()),
            Dropped(InnerMacNotOurs),
        ),
        case(
            "ARP",
            "neither IPv4 nor IPv6",
            vxlan_of(VNI, mac(MAC_A), 0x0806, &[0; 28]),
            Dropped(InnerEthertype),
        ),
        case(
            "two tags",
            "A10: one tag",
            vxlan_of(VNI, mac(MAC_A), 0x88a8, &[0; 28]),
            Dropped(InnerEthertype),
        ),
        case("nothing", "A12", Vec::new(), Dropped(VxlanTruncated)),
    ]
}

fn lengths() -> Vec<Case> {
    let edits: [(&str, &str, Edit); 7] = [
        ("version 5", "A13", |inner| inner[0] = 0x55),
        ("IHL 4", "A13: IHL < 5", |inner| inner[0] = 0x44),
        ("IHL past the end", "A13", |inner| {
            inner[0] = 0x4f;
            inner.truncate(40);
        }),
        ("total length too long", "A13: IP length > frame", |inner| inner[3] += 1),
        ("total length too short", "A13: IP length < header", |inner| inner[2..4].fill(0)),
        ("UDP length 7", "A13", |inner| inner[24..26].copy_from_slice(&[0, 7])),
        ("UDP length too long", "A13", |inner| inner[25] += 1),
    ];
    let mut cases: Vec<_> = edits
        .into_iter()
        .map(|(name, about, edit)| case(name, about, to_us(&edited(udp_v4(), edit)), Dropped(Malformed)))
        .collect();
    let swapped = |ethertype, inner: &[u8]| vxlan_of(VNI, mac(MAC_A), ethertype, inner);
    let jumbo = edited(udp_v6(), |inner| inner[5] += 1);
    cases.extend([
        case(
            "IPv4 called IPv6",
            "A13: version and ethertype",
            swapped(0x86dd, &udp_v4()),
            Dropped(Malformed),
        ),
        case(
            "IPv6 called IPv4",
            "A13: version and ethertype",
            swapped(0x0800, &udp_v6()),
            Dropped(Malformed),
        ),
        case("IPv6 length too long", "A13", to_us(&jumbo), Dropped(Malformed)),
    ]);
    cases
}

fn addresses() -> Vec<Case> {
    let cases = [
        ("pod of another node", "E2", "10.244.9.1:1", "10.244.0.14:80", SourceSpoofed),
        ("an outsider", "E2", "192.0.2.1:1", "10.244.0.14:80", SourceSpoofed),
        ("a VIP", "E2", "10.96.0.10:53", "10.244.0.14:80", SourceSpoofed),
        ("IPv6 of another node", "E2", "[fd00:10:244:9::1]:1", "[fd00:10:244::14]:80", SourceSpoofed),
        ("our pod", "E3", "10.244.0.15:1", "10.244.0.14:80", SourceInvalid),
        ("our node", "E3", "192.168.1.40:1", "10.244.0.14:80", SourceInvalid),
        ("loopback", "E3", "127.0.0.1:1", "10.244.0.14:80", SourceInvalid),
        ("multicast", "E3", "224.0.0.1:1", "10.244.0.14:80", SourceInvalid),
        ("broadcast", "E3", "255.255.255.255:1", "10.244.0.14:80", SourceInvalid),
        ("this network", "E3", "0.1.2.3:1", "10.244.0.14:80", SourceInvalid),
        ("IPv6 loopback", "E3", "[::1]:1", "[fd00:10:244::14]:80", SourceInvalid),
        ("IPv6 multicast", "E3", "[ff02::1]:1", "[fd00:10:244::14]:80", SourceInvalid),
        ("to loopback", "E4", "10.244.2.15:1", "127.0.0.1:80", DestinationInvalid),
        ("to link-local", "E4", "10.244.2.15:1", "169.254.169.254:80", DestinationInvalid),
        (
            "to the source VIP",
            "E4: only on our own device",
            "10.244.2.15:1",
            "169.254.77.1:80",
            DestinationInvalid,
        ),
        ("to multicast", "E4", "10.244.2.15:1", "224.0.0.251:5353", DestinationInvalid),
        ("to broadcast", "E4", "10.244.2.15:1", "255.255.255.255:67", DestinationInvalid),
        ("to IPv6 link-local", "E4", "[fd00:10:244:2::15]:1", "[fe80::1]:80", DestinationInvalid),
        ("to IPv6 multicast", "E4", "[fd00:10:244:2::15]:1", "[ff02::1]:80", DestinationInvalid),
        ("back to the peer", "never looped", "10.244.2.15:1", "10.244.2.16:80", DestinationNotLocal),
        ("to the outside", "never a gateway", "10.244.2.15:1", "192.0.2.1:80", DestinationNotLocal),
        ("to a VIP", "services are for our own pods", "10.244.2.15:1", "10.96.0.20:80", DestinationNotLocal),
    ];
    let mut cases: Vec<_> = cases
        .into_iter()
        .map(|(name, about, src, dst, reason)| case(name, about, to_us(&from_to(src, dst)), Dropped(reason)))
        .collect();
    let stranger = case("unknown VTEP", "E1", to_us(&udp_v4()), Dropped(UnknownVtep));
    cases.push(Case { from: addr("192.168.1.99"), ..stranger });
    cases
}

fn ecn() -> Vec<Case> {
    // RFC 6040 figure 4: rows are inner, columns outer, both in the order Not-ECT, ECT(0), ECT(1), CE.
    let (order, table) = ([0, 2, 1, 3], [[0, 0, 0, 9], [2, 2, 1, 3], [1, 1, 1, 3], [3, 3, 3, 3]]);
    let mut cases = Vec::new();
    for (inner, row) in order.into_iter().zip(table) {
        for (outer, result) in order.into_iter().zip(row) {
            for (packet, our_mac) in [(udp_v4(), MAC_A), (udp_v6(), MAC_A6)] {
                let sent = vxlan(VNI, mac(our_mac), &with_tos(packet.clone(), 0xb8 | inner));
                let expected = match result {
                    9 => Dropped(EcnIllegal),
                    ecn => Delivered(with_tos(packet, 0xb8 | ecn)),
                };
                let case =
                    case("ECN", "B2: the table; B3: the checksum; B4: inner DSCP stays", sent, expected);
                cases.push(Case { tos: outer, ..case });
            }
        }
    }
    cases
}

#[test]
fn decap_cases() {
    let all = [delivered(), headers(), lengths(), addresses(), ecn()];
    for case in all.iter().flatten() {
        println!("{}: {}", case.name, case.description);
        let mut tables = worked_example("a");
        (case.tables)(&mut tables);
        let mut settings = Settings::default();
        (case.settings)(&mut settings);
        let mut node = EngineNode::new(tables, settings);
        for round in 0..2 {
            let outcome = node.decap(&case.payload, case.from, case.tos);
            check(&format!("{}, round {round}", case.name), &case.expected, &outcome);
        }
    }
}

fn check(name: &str, expected: &Expected, outcome: &Outcome) {
    assert!(outcome.datagrams.is_empty(), "{name}");
    match expected {
        Delivered(packet) => {
            assert_eq!(outcome.drops, [], "{name}");
            assert_eq!(outcome.packets.len(), 1, "{name}");
            assert_eq!(outcome.packets[0].bytes, *packet, "{name}");
            assert_eq!(tos(packet), tos(&outcome.packets[0].bytes));
            if packet[0] >> 4 == 6 || packet[9] == 17 {
                verified_flow(packet);
            }
        }
        Dropped(reason) => {
            assert_eq!(outcome.drops, [(*reason, 1)], "{name}");
            assert!(outcome.packets.is_empty(), "{name}");
        }
    }
}

#[test]
fn a3_each_reserved_bit_is_counted_or_with_the_strict_setting_dropped() {
    let mut lax = EngineNode::new(worked_example("a"), Settings::default());
    let settings = Settings { strict_reserved_bits: true, ..Settings::default() };
    let mut strict = EngineNode::new(worked_example("a"), settings);
    let bits: Vec<u32> = (0..64).filter(|bit| *bit != 4 && !(32..56).contains(bit)).collect();
    assert_eq!(bits.len(), 39);
    for (index, bit) in bits.into_iter().enumerate() {
        let payload = edited(to_us(&udp_v4()), |payload| payload[bit as usize / 8] |= 0x80 >> (bit % 8));
        assert_eq!(lax.decap(&payload, addr("192.168.1.51"), 0).packets[0].bytes, udp_v4(), "bit {bit}");
        assert_eq!(lax.counters().reserved_bits.get(), index as u64 + 1);
        let outcome = strict.decap(&payload, addr("192.168.1.51"), 0);
        assert_eq!(outcome.drops, [(VxlanReservedBits, 1)], "bit {bit}");
    }
    assert_eq!(strict.decap(&to_us(&udp_v4()), addr("192.168.1.51"), 0).drops, []);
    assert_eq!(lax.decap(&to_us(&udp_v4()), addr("192.168.1.51"), 0).drops, []);
    assert_eq!(lax.counters().reserved_bits.get(), 39);
}

#[test]
fn a12_a_datagram_cut_anywhere_is_one_counted_drop() {
    let settings = Settings { accept_inner_vlan: true, ..Settings::default() };
    let mut node = EngineNode::new(worked_example("a"), settings);
    let pods = flow(Protocol::TCP, "[fd00:10:244:2::15]:40000", "[fd00:10:244::14]:80");
    for payload in
        [to_us(&udp_v4()), to_us(&udp_v6()), vlan(&udp_v4()), to_us(&tcp(&pods, Tcp::Ack, b"data"))]
    {
        for len in 0..payload.len() {
            let outcome = node.decap(&payload[..len], addr("192.168.1.51"), 0);
            let expected = if len < 22 { VxlanTruncated } else { Malformed };
            let tagged = payload[20] == 0x81 && len < 26;
            let expected = if tagged { VxlanTruncated } else { expected };
            assert_eq!(outcome.drops, [(expected, 1)], "at {len}");
        }
        assert_eq!(node.decap(&payload, addr("192.168.1.51"), 0).drops, []);
    }
}

#[test]
fn e1_e2_a_cached_flow_opens_the_way_to_nobody_else() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    for _ in 0..3 {
        assert_eq!(node.decap(&to_us(&udp_v4()), addr("192.168.1.51"), 0).drops, []);
    }
    assert!(node.counters().cache_hits.get() > 0);
    assert_eq!(node.decap(&to_us(&udp_v4()), addr("192.168.1.99"), 0).drops, [(UnknownVtep, 1)]);
    let other_mac = vxlan(VNI, mac(MAC_B), &udp_v4());
    assert_eq!(node.decap(&other_mac, addr("192.168.1.51"), 0).drops, [(InnerMacNotOurs, 1)]);
    let other_vni = vxlan(VNI + 1, mac(MAC_A), &udp_v4());
    assert_eq!(node.decap(&other_vni, addr("192.168.1.51"), 0).drops, [(UnknownVni, 1)]);
    node.change(|set| set.fdb = Arc::default());
    assert_eq!(node.decap(&to_us(&udp_v4()), addr("192.168.1.51"), 0).drops, [(UnknownVtep, 1)]);
}

#[test]
fn c11_a_partial_syn_is_delivered_as_partial() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    for (src, dst) in
        [("10.244.2.15:40000", "10.244.0.14:80"), ("[fd00:10:244:2::15]:40000", "[fd00:10:244::14]:80")]
    {
        let pods = flow(Protocol::TCP, src, dst);
        let (syn, state) = partial(tcp(&pods, Tcp::Syn, b""));
        let delivered = node.decap(&to_us(&syn), addr("192.168.1.51"), 0).packets.remove(0);
        assert_eq!((delivered.checksum, delivered.segment_len), (state, 0));
        assert_eq!(verified_flow(&completed(delivered.bytes, state)), pods);
        let whole = tcp(&pods, Tcp::Ack, b"data");
        assert_eq!(
            node.decap(&to_us(&whole), addr("192.168.1.51"), 0).packets[0].checksum,
            Checksum::Complete
        );
    }
}

#[test]
fn c11_a_superpacket_of_a_kernel_peer_stays_one_with_and_without_a_told_segment_size() {
    for (protocol, src, dst, headers_len) in [
        (Protocol::TCP, "10.244.2.15:40000", "10.244.0.14:80", 40_u16),
        (Protocol::TCP, "[fd00:10:244:2::15]:40000", "[fd00:10:244::14]:80", 60),
        (Protocol::UDP, "10.244.2.15:40000", "10.244.0.14:80", 28),
        (Protocol::UDP, "[fd00:10:244:2::15]:40000", "[fd00:10:244::14]:80", 48),
    ] {
        let mut node = EngineNode::new(worked_example("a"), Settings::default());
        let pods = flow(protocol, src, dst);
        let data = vec![5; 60_000];
        let whole = if protocol == Protocol::TCP { tcp(&pods, Tcp::Ack, &data) } else { udp(&pods, &data) };
        let (packet, state) = partial(whole);
        for (told, expected) in [(0, 1450 - headers_len), (1200, 1200)] {
            let before = node.counters().underlay.received.get();
            let outcome = node.decap_with(&to_us(&packet), addr("192.168.1.51"), 0, told);
            assert_eq!(outcome.drops, [], "{pods} told {told}");
            let [delivered] = &outcome.packets[..] else { panic!("{} packets", outcome.packets.len()) };
            assert_eq!((delivered.checksum, delivered.segment_len), (state, expected), "{pods} told {told}");
            assert_eq!(verified_flow(&completed(delivered.bytes.clone(), state)), pods);
            let counted = node.counters().underlay.received.get() - before;
            assert_eq!(counted, 60_000_u64.div_ceil(u64::from(expected)));
        }
    }
}

/// Ten datagrams of 18 bytes fit in one packet, and must not become one of 180 bytes.
#[test]
fn c11_small_datagrams_of_a_superpacket_stay_apart() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    for (src, dst) in
        [("10.244.2.15:40000", "10.244.0.14:80"), ("[fd00:10:244:2::15]:40000", "[fd00:10:244::14]:80")]
    {
        let (packet, state) = partial(udp(&flow(Protocol::UDP, src, dst), &[7; 180]));
        let before = node.counters().underlay.received.get();
        let outcome = node.decap_with(&to_us(&packet), addr("192.168.1.51"), 0, 18);
        assert_eq!((outcome.packets[0].checksum, outcome.packets[0].segment_len), (state, 18));
        assert_eq!(node.counters().underlay.received.get() - before, 10);
        let single = node.decap_with(&to_us(&packet), addr("192.168.1.51"), 0, 180);
        assert_eq!(single.packets[0].segment_len, 0, "one datagram is no superpacket");
    }
}

#[test]
fn c11_a_batch_of_joined_datagrams_is_taken_apart() {
    let mut node = EngineNode::new(worked_example("a"), Settings::default());
    let packet = |port: u16, len| {
        udp(&flow(Protocol::UDP, &format!("10.244.2.15:{port}"), "10.244.0.14:80"), &vec![port as u8; len])
    };
    let packets = [packet(1000, 900), packet(1001, 900), packet(1002, 900), packet(1003, 100)];
    let batch: Vec<u8> = packets.iter().flat_map(|packet| to_us(packet)).collect();
    let stride = to_us(&packets[0]).len() as u16;
    let outcome = node.decap_with(&batch, addr("192.168.1.51"), 0, stride);
    let delivered: Vec<_> = outcome.packets.iter().map(|packet| packet.bytes.clone()).collect();
    assert_eq!(delivered, packets);
    assert!(outcome.packets.iter().all(|packet| packet.segment_len == 0));
    // One of them damaged costs that one alone.
    let mut damaged = batch.clone();
    damaged[usize::from(stride)] = 0;
    let outcome = node.decap_with(&damaged, addr("192.168.1.51"), 0, stride);
    assert_eq!((outcome.drops, outcome.packets.len()), (vec![(VxlanNoVni, 1)], 3));
    // A batch of one.
    let outcome = node.decap_with(&to_us(&packets[0]), addr("192.168.1.51"), 0, stride);
    assert_eq!((outcome.packets[0].segment_len, &outcome.packets[0].bytes), (0, &packets[0]));
}
