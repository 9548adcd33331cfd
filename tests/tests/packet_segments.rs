//! L2 segments, frame by frame: the real bridge and tables, frames made here.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_dataplane::device::{QUOTE_LEN, Quote, TooLong};
use windlass_dataplane::drop_reason::DropReason::{self, *};
use windlass_dataplane::engine::{Dscp, Settings};
use windlass_dataplane::packet::Checksum;
use windlass_dataplane::tables::{Learning, Segment};
use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::arp::Arp;
use windlass_dataplane::wire::ethernet;
use windlass_dataplane::wire::flow::Protocol;
use windlass_dataplane::wire::ndp::{self, Ndp};
use windlass_tests::engine_node::{EngineNode, Outcome, addr, flow, mac, socket};
use windlass_tests::packets::{Tcp, opened, partial, tcp, tos, udp, verified_icmp, with_header, with_tos};
use windlass_tests::segments::{
    BLUE, ELSEWHERE, HERE, RED, STRANGER, THERE, VTEPS, frame, ip_frame, made_up, question, tables,
};

const ALL: &str = "ff:ff:ff:ff:ff:ff";
const GROUP: &str = "01:00:5e:00:00:fb";
/// Local experimental ethertype 1 (IEEE 802).
const PLAIN: u16 = 0x88b5;

fn node() -> EngineNode {
    with(|_| ())
}

fn with(edit: impl Fn(&mut Segment)) -> EngineNode {
    EngineNode::bridge(tables(edit), Settings::default())
}

fn packet() -> Vec<u8> {
    udp(&flow(Protocol::UDP, "10.0.0.1:1000", "10.0.0.2:2000"), b"payload")
}

fn remotes(outcome: &Outcome) -> Vec<String> {
    outcome.datagrams.iter().map(|sent| sent.remote.ip().to_string()).collect()
}

#[track_caller]
fn assert_dropped(outcome: &Outcome, reason: DropReason) {
    assert_eq!(outcome, &Outcome { drops: vec![(reason, 1)], ..Outcome::default() });
}

#[track_caller]
fn assert_delivered(outcome: &Outcome, frame: &[u8]) {
    assert_eq!((&outcome.drops, &outcome.datagrams), (&vec![], &vec![]));
    let bytes: Vec<_> = outcome.packets.iter().map(|packet| packet.bytes.as_slice()).collect();
    assert_eq!(bytes, [frame]);
}

fn learning(segment: &mut Segment) {
    segment.learning = Some(Learning { per_vtep: 8, lasts: Duration::from_secs(300) });
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn a1_a_frame_to_a_known_station_leaves_once_and_unchanged() {
    let sent = ip_frame(BLUE, THERE, HERE, &packet());
    let outcome = node().encap(&sent);
    assert_eq!((remotes(&outcome), outcome.drops.len()), (vec![VTEPS[0].to_owned()], 0));
    assert_eq!(outcome.datagrams[0].payload, sent);
    assert_eq!(opened(&sent).header, [8, 0, 0, 0, 0, 0, 100, 0]);
}

#[test]
fn a8_segments_with_the_same_macs_and_addresses_stay_apart() {
    let mut node = node();
    assert_eq!(remotes(&node.encap(&ip_frame(RED, THERE, ELSEWHERE, &packet()))), [VTEPS[1]]);
    assert_eq!(remotes(&node.encap(&ip_frame(BLUE, ELSEWHERE, HERE, &packet()))), [VTEPS[1]]);
    // On red the answer to the same question is another segment's, too: the station there is ours.
    assert_dropped(&node.encap(&question(RED, STRANGER, "10.0.0.9", "10.0.0.3")), DestinationOnDevice);
    assert_dropped(&node.encap(&ip_frame(300, THERE, HERE, &packet())), UnknownVni);
    let came = ip_frame(300, HERE, THERE, &packet());
    assert_dropped(&node.decap(&came, addr(VTEPS[0]), 0), UnknownVni);
}

#[test]
fn a9_frames_are_delivered_to_known_stations_groups_and_everybody() {
    let mut node = node();
    for dst in [HERE, ALL, GROUP, STRANGER] {
        let came = ip_frame(BLUE, dst, THERE, &packet());
        assert_delivered(&node.decap(&came, addr(VTEPS[0]), 0), &came);
    }
    let for_another = ip_frame(BLUE, ELSEWHERE, THERE, &packet());
    assert_dropped(&node.decap(&for_another, addr(VTEPS[0]), 0), InnerMacNotOurs);
}

#[test]
fn a9_without_flooding_only_stations_of_this_device_are_delivered_to() {
    let mut node = with(|segment| {
        segment.floods_unknown = false;
        learning(segment);
    });
    let to_stranger = ip_frame(BLUE, STRANGER, THERE, &packet());
    assert_dropped(&node.decap(&to_stranger, addr(VTEPS[0]), 0), InnerMacNotOurs);
    assert_dropped(&node.encap(&ip_frame(BLUE, STRANGER, HERE, &packet())), UnknownUnicast);
    // Once the stranger has spoken, at our device.
    assert_eq!(node.encap(&ip_frame(BLUE, ALL, STRANGER, &packet())).datagrams.len(), 3);
    assert_delivered(&node.decap(&to_stranger, addr(VTEPS[0]), 0), &to_stranger);
}

#[test]
fn a10_tags_are_stripped_on_encap_and_dropped_or_stripped_on_decap() {
    let plain = ip_frame(BLUE, THERE, HERE, &packet());
    let tagged = |plain: &[u8]| [&plain[..20], &[0x81, 0, 0, 42], &plain[20..]].concat();
    let twice = [&plain[..20], &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 42], &plain[20..]].concat();
    for sent in [tagged(&plain), twice] {
        assert_eq!(node().encap(&sent).datagrams[0].payload, plain);
    }
    let came = ip_frame(BLUE, HERE, THERE, &packet());
    assert_dropped(&node().decap(&tagged(&came), addr(VTEPS[0]), 0), InnerVlan);
    let settings = Settings { accept_inner_vlan: true, ..Settings::default() };
    let mut accepting = EngineNode::bridge(tables(|_| ()), settings);
    assert_delivered(&accepting.decap(&tagged(&came), addr(VTEPS[0]), 0), &came);
}

#[test]
fn a11_broadcast_unknown_and_multicast_go_to_every_vtep_once_and_never_back() {
    for dst in [ALL, GROUP, STRANGER, "33:33:00:00:00:01"] {
        let mut node = node();
        let sent = ip_frame(BLUE, dst, HERE, &packet());
        let outcome = node.encap(&sent);
        assert_eq!(remotes(&outcome), VTEPS, "{dst}");
        assert!(outcome.datagrams.iter().all(|copy| copy.payload == sent && copy.source_port > 0));
        assert_eq!((node.counters().generated.get(), node.counters().underlay.sent.get()), (2, 3));
        for vtep in VTEPS {
            let src = if vtep == VTEPS[0] { THERE } else { STRANGER };
            let came = ip_frame(BLUE, dst, src, &packet());
            let outcome = node.decap(&came, addr(vtep), 0);
            assert!(outcome.datagrams.is_empty(), "nothing goes back to the underlay");
        }
    }
}

#[test]
fn a11_copies_count_in_segments_and_a_segment_of_one_vtep_drops_them() {
    let (packet, checksum) =
        partial(tcp(&flow(Protocol::TCP, "10.0.0.1:1000", "10.0.0.9:2000"), Tcp::Ack, &[7; 4_200]));
    let mut node = node();
    let outcome = node.encap_with(&ip_frame(BLUE, STRANGER, HERE, &packet), checksum, 1_400);
    assert!(outcome.datagrams.iter().all(|copy| copy.segment_len == 1_400 && copy.checksum == checksum));
    assert_eq!((node.counters().generated.get(), node.counters().underlay.sent.get()), (6, 9));
    let lonely = |segment: &mut Segment| *segment = Segment::new("blue", Vec::new());
    assert_dropped(&with(lonely).encap(&ip_frame(BLUE, ALL, HERE, &packet[..])), NoOtherVtep);
}

#[test]
fn a12_a_frame_cut_anywhere_is_one_counted_drop() {
    let whole = ip_frame(BLUE, HERE, THERE, &packet());
    let mut node = node();
    for len in 0..whole.len() {
        let expected = if len < 22 { VxlanTruncated } else { Malformed };
        assert_dropped(&node.decap(&whole[..len], addr(VTEPS[0]), 0), expected);
        assert_dropped(&node.encap(&whole[..len]), expected);
    }
}

#[test]
fn a2_a3_a13_flags_reserved_bits_and_padding_are_treated_as_routed_packets_are() {
    let came = ip_frame(BLUE, HERE, THERE, &packet());
    let padded = [&came[..], &[0; 20]].concat();
    assert_delivered(&node().decap(&padded, addr(VTEPS[0]), 0), &came);
    let mut no_vni = came.clone();
    no_vni[0] = 0;
    assert_dropped(&node().decap(&no_vni, addr(VTEPS[0]), 0), VxlanNoVni);
    let mut reserved = came.clone();
    reserved[7] = 1;
    let mut node = node();
    assert_delivered(&node.decap(&reserved, addr(VTEPS[0]), 0), &reserved);
    assert_eq!(node.counters().reserved_bits.get(), 1);
    let strict = Settings { strict_reserved_bits: true, ..Settings::default() };
    let mut strict = EngineNode::bridge(tables(|_| ()), strict);
    assert_dropped(&strict.decap(&reserved, addr(VTEPS[0]), 0), VxlanReservedBits);
}

#[test]
fn b1_b2_b4_ecn_and_dscp_of_bridged_packets_follow_rfc_6040_and_the_setting() {
    let marked = with_tos(packet(), 0xb9);
    let sent = ip_frame(BLUE, THERE, HERE, &marked);
    assert_eq!(node().encap(&sent).datagrams[0].tos, 0xb9);
    let settings = Settings { dscp: Dscp::Fixed(10), ..Settings::default() };
    let mut fixed = EngineNode::bridge(tables(|_| ()), settings);
    assert_eq!(fixed.encap(&sent).datagrams[0].tos, 10 << 2 | 0b01);
    assert_eq!(fixed.encap(&frame(BLUE, THERE, HERE, PLAIN, b"no IP")).datagrams[0].tos, 10 << 2);

    let came = |tos| ip_frame(BLUE, HERE, THERE, &with_tos(packet(), tos));
    let outcome = node().decap(&came(0b10), addr(VTEPS[0]), 0b11);
    assert_eq!(tos(&outcome.packets[0].bytes[22..]), 0b11);
    assert_dropped(&node().decap(&came(0), addr(VTEPS[0]), 0b11), EcnIllegal);
    let no_ip = frame(BLUE, HERE, THERE, PLAIN, b"no IP");
    assert_delivered(&node().decap(&no_ip, addr(VTEPS[0]), 0b11), &no_ip);
}

#[test]
fn b5_a_segment_does_not_route_so_the_ttl_of_a_frame_stays_and_even_1_passes() {
    for ttl in [1, 64] {
        let packet = with_header(packet(), |header| header.time_to_live = ttl);
        let sent = ip_frame(BLUE, THERE, HERE, &packet);
        assert_eq!(node().encap(&sent).datagrams[0].payload, sent);
        let came = ip_frame(BLUE, HERE, THERE, &packet);
        assert_delivered(&node().decap(&came, addr(VTEPS[0]), 0), &came);
    }
}

#[test]
fn c3_c7_a_packet_too_long_is_told_to_its_sender_in_the_name_of_its_receiver() {
    let long = |payload: usize, dst: &str| {
        udp(&flow(Protocol::UDP, "10.0.0.1:1000", &format!("{dst}:2000")), &vec![1; payload])
    };
    let no_fragments = |packet| with_header(packet, |header| header.dont_fragment = true);
    let fits = no_fragments(long(1_422, "10.0.0.2"));
    assert_eq!(node().encap(&ip_frame(BLUE, THERE, HERE, &fits)).datagrams.len(), 1);

    let too_long = no_fragments(long(1_423, "10.0.0.2"));
    let outcome = node().encap(&ip_frame(BLUE, THERE, HERE, &too_long));
    assert_eq!((outcome.datagrams.len(), outcome.drops), (0, vec![(TooBig, 1)]));
    let error = opened(&outcome.packets[0].bytes);
    assert_eq!((error.dst, error.src), (mac(HERE), mac(THERE)));
    let message = verified_icmp(&error.inner);
    assert_eq!((message.src, message.dst), (addr("10.0.0.2"), addr("10.0.0.1")));
    assert_eq!((message.kind, message.word), ((3, 4), 1450));
    assert_eq!(message.body, too_long[..message.body.len()]);

    let may_fragment = with_header(long(1_423, "10.0.0.2"), |header| header.dont_fragment = false);
    assert_dropped(&node().encap(&ip_frame(BLUE, THERE, HERE, &may_fragment)), TooBigMayFragment);
    assert_dropped(&node().encap(&frame(BLUE, THERE, HERE, PLAIN, &[0; 1_451])), FrameTooLong);
    let flooded = node().encap(&ip_frame(BLUE, ALL, HERE, &too_long));
    assert_eq!((flooded.packets.len(), flooded.drops), (0, vec![(FrameTooLong, 3)]));

    let v6 = udp(&flow(Protocol::UDP, "[fd00::1]:1", "[fd00::2]:2"), &[1; 1_403]);
    let outcome = node().encap(&ip_frame(BLUE, THERE, HERE, &v6));
    let message = verified_icmp(&opened(&outcome.packets[0].bytes).inner);
    assert_eq!((message.kind, message.word, message.src), ((2, 0), 1450, addr("fd00::2")));
}

#[test]
fn c5_the_path_mtu_of_a_segments_vtep_is_learned_from_errors_that_quote_what_was_sent() {
    let mut node = node();
    let sent =
        ip_frame(BLUE, THERE, HERE, &udp(&flow(Protocol::UDP, "10.0.0.1:1", "10.0.0.2:2"), &[1; 1_400]));
    let quote = |sent: &[u8]| {
        let mut bytes = [0; QUOTE_LEN];
        bytes.copy_from_slice(&sent[..QUOTE_LEN]);
        Some(Quote { bytes, len: QUOTE_LEN })
    };
    let remote = socket("192.0.2.2:4789");
    let fits = |node: &mut EngineNode| node.encap(&sent).datagrams.len() == 1;
    for forged in [
        ip_frame(BLUE, ELSEWHERE, HERE, &sent[22..]),
        ip_frame(BLUE, THERE, ELSEWHERE, &sent[22..]),
        ip_frame(300, THERE, HERE, &sent[22..]),
        ip_frame(BLUE, STRANGER, HERE, &sent[22..]),
    ] {
        node.learn_path_mtu(&TooLong { remote, mtu: 1_400, quote: quote(&forged) });
        assert!(fits(&mut node), "forged");
    }
    node.learn_path_mtu(&TooLong { remote, mtu: 1_400, quote: quote(&sent) });
    assert!(!fits(&mut node));
    node.now = at(600);
    assert!(fits(&mut node), "forgotten after ten minutes");
    node.learn_path_mtu(&TooLong { remote: socket("192.0.2.2:0"), mtu: 1_400, quote: None });
    assert!(!fits(&mut node));
}

#[test]
fn c11_superpackets_and_partial_checksums_of_a_kernel_peer_stay_what_they_are() {
    let flow = flow(Protocol::TCP, "10.0.0.2:1000", "10.0.0.1:2000");
    let (packet, checksum) = partial(tcp(&flow, Tcp::Ack, &[7; 14_100]));
    let came = ip_frame(BLUE, HERE, THERE, &packet);
    let mut node = node();
    let outcome = node.decap(&came, addr(VTEPS[0]), 0);
    let delivered = &outcome.packets[0];
    assert_eq!((&delivered.bytes, delivered.checksum, delivered.segment_len), (&came, checksum, 1_410));
    assert_eq!(node.counters().overlay.sent.get(), 10);
    let (syn, checksum) = partial(tcp(&flow, Tcp::Syn, &[]));
    let outcome = node.decap(&ip_frame(BLUE, HERE, THERE, &syn), addr(VTEPS[0]), 0);
    assert_eq!((outcome.packets[0].checksum, outcome.packets[0].segment_len), (checksum, 0));
    // What has a whole checksum keeps it.
    let whole = ip_frame(BLUE, HERE, THERE, &tcp(&flow, Tcp::Syn, &[]));
    assert_eq!(node.decap(&whole, addr(VTEPS[0]), 0).packets[0].checksum, Checksum::Complete);
}

#[test]
fn arp_is_answered_here_and_leaves_the_node_only_for_unknown_addresses() {
    let mut node = node();
    let outcome = node.encap(&question(BLUE, HERE, "10.0.0.1", "10.0.0.2"));
    assert!(outcome.datagrams.is_empty() && outcome.drops.is_empty());
    let answer = opened(&outcome.packets[0].bytes);
    assert_eq!((answer.dst, answer.src, answer.ethertype), (mac(HERE), mac(THERE), ethernet::ARP));
    let reply = Arp::new_checked(&answer.inner).unwrap();
    assert!(!reply.is_request());
    assert_eq!((reply.sender_mac(), addr("10.0.0.2")), (mac(THERE), reply.sender_ip().into()));
    assert_eq!((reply.target_mac(), addr("10.0.0.1")), (mac(HERE), reply.target_ip().into()));
    assert_eq!(node.counters().neighbors_answered.get(), 1);

    assert_eq!(node.encap(&question(BLUE, HERE, "10.0.0.1", "10.0.0.77")).datagrams.len(), 3);
    // An announcement is for everybody; so is a station's question whether others have its address.
    assert_eq!(node.encap(&question(BLUE, HERE, "10.0.0.1", "10.0.0.1")).datagrams.len(), 3);
    assert_eq!(node.encap(&question(BLUE, HERE, "0.0.0.0", "10.0.0.1")).datagrams.len(), 3);
    // Who probes for an address that another station has is told so.
    assert_eq!(node.encap(&question(BLUE, STRANGER, "0.0.0.0", "10.0.0.2")).packets.len(), 1);
    // The station that is asked for is on the asker's own side.
    assert_dropped(&node.encap(&question(BLUE, STRANGER, "10.0.0.9", "10.0.0.1")), DestinationOnDevice);
}

#[test]
fn nd_is_answered_here_and_leaves_the_node_only_for_unknown_addresses() {
    let mut node = node();
    let advertised = |outcome: Outcome| {
        assert!(outcome.datagrams.is_empty() && outcome.drops.is_empty());
        let answer = opened(&outcome.packets[0].bytes);
        let message = verified_icmp(&answer.inner);
        let advertisement = Ndp::new_checked(answer.inner[40..].to_vec()).unwrap();
        assert!(!advertisement.is_solicitation() && answer.inner[7] == ndp::HOP_LIMIT);
        let target = advertisement.target();
        (answer.dst, answer.src, message.dst, target.to_string(), advertisement.link_layer().unwrap())
    };
    let asked = advertised(node.encap(&question(BLUE, HERE, "fd00::1", "fd00::2")));
    assert_eq!(asked, (mac(HERE), mac(THERE), addr("fd00::1"), "fd00::2".to_owned(), mac(THERE)));
    // Duplicate address detection: the asker has no address, and all nodes are told (RFC 4861 section 7.2.4).
    let detected = advertised(node.encap(&question(BLUE, STRANGER, "::", "fd00::2")));
    let all_nodes = (mac("33:33:00:00:00:01"), addr("ff02::1"));
    assert_eq!((detected.0, detected.2, detected.4), (all_nodes.0, all_nodes.1, mac(THERE)));

    assert_eq!(node.encap(&question(BLUE, HERE, "fd00::1", "fd00::77")).datagrams.len(), 3);
    assert_eq!(node.encap(&question(BLUE, HERE, "::", "fd00::1")).datagrams.len(), 3);
    let mut hop_limit = question(BLUE, HERE, "fd00::1", "fd00::2");
    hop_limit[22 + 7] = 64;
    assert_eq!(node.encap(&hop_limit).datagrams.len(), 3, "nobody believes it, so nobody answers it");
}

#[test]
fn e1_only_vteps_of_the_segment_are_heard_unless_told_otherwise() {
    let came = ip_frame(BLUE, HERE, STRANGER, &packet());
    assert_dropped(&node().decap(&came, addr("192.0.2.99"), 0), UnknownVtep);
    let settings = Settings { allow_unknown_vteps: true, ..Settings::default() };
    let mut tolerant = EngineNode::bridge(tables(learning), settings);
    assert_delivered(&tolerant.decap(&came, addr("192.0.2.99"), 0), &came);
    assert!(tolerant.learned.is_empty(), "nothing is learned from who is merely tolerated");
    let spoofed = ip_frame(BLUE, HERE, THERE, &packet());
    assert_dropped(&tolerant.decap(&spoofed, addr("192.0.2.99"), 0), SourceMacSpoofed);
}

#[test]
fn e3_e6_a_source_that_is_elsewhere_or_no_station_is_dropped_both_ways() {
    let mut node = with(learning);
    for (src, vtep) in [(HERE, VTEPS[0]), (THERE, VTEPS[1]), (ELSEWHERE, VTEPS[0])] {
        let came = ip_frame(BLUE, ALL, src, &packet());
        assert_dropped(&node.decap(&came, addr(vtep), 0), SourceMacSpoofed);
    }
    assert_dropped(&node.encap(&ip_frame(BLUE, ALL, THERE, &packet())), SourceMacSpoofed);
    for src in [ALL, GROUP, "00:00:00:00:00:00"] {
        let sent = ip_frame(BLUE, ALL, src, &packet());
        assert_dropped(&node.encap(&sent), SourceMacInvalid);
        assert_dropped(&node.decap(&sent, addr(VTEPS[0]), 0), SourceMacInvalid);
    }
    assert!(node.learned.is_empty(), "nor is anything learned of them");
}

#[test]
fn e6_arp_and_nd_never_say_otherwise_than_a_static_entry() {
    for (own, other) in [("10.0.0.9", "10.0.0.77"), ("fd00::9", "fd00::77")] {
        let theft = if own.contains(':') { "fd00::2" } else { "10.0.0.2" };
        let mut node = node();
        let honest = question(BLUE, STRANGER, own, other);
        assert_eq!(node.encap(&honest).datagrams.len(), 3);
        assert_delivered(&node.decap(&honest, addr(VTEPS[2]), 0), &honest);
        let spoofed = question(BLUE, STRANGER, theft, other);
        assert_dropped(&node.encap(&spoofed), NeighborSpoofed);
        assert_dropped(&node.decap(&spoofed, addr(VTEPS[2]), 0), NeighborSpoofed);
    }
}

#[test]
fn e6_nothing_is_learned_unless_the_segment_says_so() {
    let mut node = node();
    let came = ip_frame(BLUE, HERE, STRANGER, &packet());
    assert_delivered(&node.decap(&came, addr(VTEPS[2]), 0), &came);
    assert_eq!(remotes(&node.encap(&ip_frame(BLUE, STRANGER, HERE, &packet()))), VTEPS);
    assert!(node.learned.is_empty());
}

#[test]
fn e6_a_learned_station_is_reached_moves_and_is_forgotten_and_no_static_one_moves() {
    let mut node = with(learning);
    let hear = |node: &mut EngineNode, src: &str, vtep: &str| {
        assert_eq!(node.decap(&ip_frame(BLUE, HERE, src, &packet()), addr(vtep), 0).packets.len(), 1);
    };
    let reach = |node: &mut EngineNode, dst| remotes(&node.encap(&ip_frame(BLUE, dst, HERE, &packet())));
    hear(&mut node, STRANGER, VTEPS[2]);
    assert_eq!(reach(&mut node, STRANGER), [VTEPS[2]]);
    hear(&mut node, STRANGER, VTEPS[1]);
    assert_eq!(reach(&mut node, STRANGER), [VTEPS[1]], "it has moved");
    node.encap(&ip_frame(BLUE, ALL, STRANGER, &packet()));
    let outcome = node.encap(&ip_frame(BLUE, STRANGER, HERE, &packet()));
    assert_dropped(&outcome, DestinationOnDevice);
    hear(&mut node, STRANGER, VTEPS[2]);
    node.now = at(299);
    assert_eq!(reach(&mut node, STRANGER), [VTEPS[2]], "and moved back");
    node.now = at(300);
    assert_eq!(reach(&mut node, STRANGER), VTEPS, "silent for five minutes");
    for second in 300..400 {
        node.now = at(second);
        node.expire();
    }
    assert!(node.learned.is_empty());
    hear(&mut node, THERE, VTEPS[0]);
    assert_eq!(reach(&mut node, THERE), [VTEPS[0]]);
    assert!(node.learned.is_empty(), "a static entry is not learned");
}

#[test]
fn e6_a_vtep_that_makes_up_macs_fills_its_own_room_only_and_is_counted() {
    let mut node = with(learning);
    for number in 0..1_000 {
        let came = ip_frame(BLUE, HERE, &made_up(number), &packet());
        assert_delivered(&node.decap(&came, addr(VTEPS[1]), 0), &came);
    }
    assert_eq!((node.learned.len(), node.counters().stations_refused.get()), (8, 992));
    assert_delivered(
        &node.decap(&ip_frame(BLUE, HERE, STRANGER, &packet()), addr(VTEPS[2]), 0),
        &ip_frame(BLUE, HERE, STRANGER, &packet()),
    );
    assert_eq!(remotes(&node.encap(&ip_frame(BLUE, STRANGER, HERE, &packet()))), [VTEPS[2]]);
    let known: BTreeSet<_> = node.learned.all(at(0)).iter().map(|station| station.mac).collect();
    assert!(known.contains(&mac(STRANGER)) && known.len() == 9);
}

#[test]
fn a5_both_directions_of_a_bridged_flow_share_a_source_port() {
    let there = flow(Protocol::UDP, "10.0.0.1:1000", "10.0.0.2:2000");
    let port = |dst, src, packet: &[u8]| {
        node().encap(&ip_frame(if src == HERE { BLUE } else { RED }, dst, src, packet)).datagrams[0]
            .source_port
    };
    let sent = port(THERE, HERE, &udp(&there, b"a"));
    assert_eq!(sent, port(THERE, ELSEWHERE, &udp(&there.reversed(), b"b")));
    assert_ne!(sent, port(THERE, HERE, &udp(&flow(Protocol::UDP, "10.0.0.1:1001", "10.0.0.2:2000"), b"a")));
}
