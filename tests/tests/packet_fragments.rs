//! IP fragments of translated flows, in every order, and of floods (D8).

#![allow(clippy::unwrap_used, clippy::panic)]

use std::time::Duration;

use windlass_dataplane::drop_reason::DropReason;
use windlass_dataplane::engine::Settings;
use windlass_dataplane::wire::checksum;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{EngineNode, MAC_A, Outcome, VNI, addr, flow, mac, worked_example};
use windlass_tests::packets::{udp, verified_flow, vxlan};

const CLIENT: &str = "10.244.0.14:40000";
const VIP: &str = "10.96.0.21:80";
const BACKEND: &str = "10.244.2.15:8080";

fn node() -> EngineNode {
    EngineNode::new(worked_example("a"), Settings::default())
}

/// The bytes `range` of an IPv4 packet's payload as a fragment of their own.
fn piece(packet: &[u8], range: std::ops::Range<usize>, ident: u16) -> Vec<u8> {
    let (header, payload) = packet.split_at(20);
    let more = if range.end < payload.len() { 0x2000 } else { 0 };
    let flags = (range.start / 8) as u16 | more;
    let mut piece = [header, &payload[range]].concat();
    let total_len = piece.len() as u16;
    piece[2..4].copy_from_slice(&total_len.to_be_bytes());
    piece[4..6].copy_from_slice(&ident.to_be_bytes());
    piece[6..8].copy_from_slice(&flags.to_be_bytes());
    piece[10..12].copy_from_slice(&[0, 0]);
    let sum = checksum::checksum(&piece[..20]);
    piece[10..12].copy_from_slice(&sum.to_be_bytes());
    piece
}

/// Three fragments.
fn pieces(packet: &[u8], ident: u16) -> Vec<Vec<u8>> {
    [0..800, 800..1600, 1600..packet.len() - 20].map(|range| piece(packet, range, ident)).to_vec()
}

/// The packet that fragments make, whatever their order.
fn joined(mut pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let offset = |piece: &Vec<u8>| u16::from_be_bytes([piece[6], piece[7]]) & 0x1fff;
    pieces.sort_by_key(offset);
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

fn encapsulated(outcome: Outcome) -> Vec<Vec<u8>> {
    assert_eq!(outcome.drops, []);
    outcome.datagrams.into_iter().map(|sent| sent.payload[22..].to_vec()).collect()
}

fn decap(node: &mut EngineNode, inner: &[u8]) -> Outcome {
    node.decap(&vxlan(VNI, mac(MAC_A), inner), addr("192.168.1.51"), 0)
}

const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

#[test]
fn d8_fragments_in_any_order_reach_one_backend_and_come_back_from_the_vip() {
    let mut node = node();
    let question = udp(&flow(Protocol::UDP, CLIENT, VIP), &[7; 2_000]);
    let answer = udp(&flow(Protocol::UDP, BACKEND, CLIENT), &[9; 2_000]);
    for (ident, order) in (1..).zip(ORDERS) {
        let offered = pieces(&question, ident);
        let sent: Vec<_> = order.iter().flat_map(|at| encapsulated(node.encap(&offered[*at]))).collect();
        assert_eq!(verified_flow(&joined(sent)), flow(Protocol::UDP, CLIENT, BACKEND), "{order:?}");
        let offered = pieces(&answer, ident);
        let delivered: Vec<_> = order
            .iter()
            .flat_map(|at| {
                let outcome = decap(&mut node, &offered[*at]);
                assert_eq!(outcome.drops, []);
                outcome.packets.into_iter().map(|packet| packet.bytes)
            })
            .collect();
        assert_eq!(verified_flow(&joined(delivered)), flow(Protocol::UDP, VIP, CLIENT), "{order:?}");
    }
}

#[test]
fn d8_fragments_of_flows_that_are_not_translated_pass_in_any_order() {
    let mut node = node();
    let packet = udp(&flow(Protocol::UDP, CLIENT, "10.244.2.99:80"), &[7; 2_000]);
    for (ident, order) in (1..).zip(ORDERS) {
        let offered = pieces(&packet, ident);
        let sent: Vec<_> = order.iter().flat_map(|at| encapsulated(node.encap(&offered[*at]))).collect();
        assert_eq!(joined(sent)[8..], joined(offered)[8..], "{order:?}");
    }
}

#[test]
fn d8_d9_no_later_fragment_of_a_reply_leaves_untranslated() {
    let mut node = node();
    node.encap(&udp(&flow(Protocol::UDP, CLIENT, VIP), b"question"));
    let answer = pieces(&udp(&flow(Protocol::UDP, BACKEND, CLIENT), &[9; 2_000]), 5);
    let held = decap(&mut node, &answer[1]);
    assert_eq!((held.packets.len(), held.drops.len()), (0, 0));
    node.now = node.now + Duration::from_millis(1_001);
    node.expire();
    assert_eq!(node.counters().dropped(DropReason::FragmentAlone), 1, "given up, and counted");
    assert_eq!(node.counters().underlay.received.get(), 1);
    assert_eq!(node.counters().totals().difference(), 0);
}

#[test]
fn d8_overlaps_end_the_packet_and_duplicates_do_not() {
    let mut node = node();
    let packet = udp(&flow(Protocol::UDP, CLIENT, VIP), &[7; 2_000]);
    let offered = pieces(&packet, 1);
    for at in [0, 1] {
        assert_eq!(node.encap(&offered[at]).drops, []);
    }
    assert_eq!(node.encap(&offered[1]).drops, [(DropReason::FragmentOverlap, 1)], "a duplicate");
    assert_eq!(encapsulated(node.encap(&offered[2])).len(), 1, "changes nothing");

    let offered = pieces(&packet, 2);
    assert_eq!(node.encap(&offered[0]).drops, []);
    let overlapping = piece(&packet, 400..1200, 2);
    assert_eq!(node.encap(&overlapping).drops, [(DropReason::FragmentOverlap, 1)]);
    assert_eq!(node.encap(&offered[1]).datagrams, [], "the rest goes nowhere (RFC 5722)");
    node.now = node.now + Duration::from_secs(2);
    node.expire();
    assert_eq!(node.counters().dropped(DropReason::FragmentAlone), 1);
}

#[test]
fn d8_a_flood_of_fragments_is_bounded_and_counted_and_does_not_stop_others() {
    const FLOOD: u16 = 10_000;
    let mut node = node();
    let flood = udp(&flow(Protocol::UDP, "10.244.0.66:1", VIP), &[7; 2_000]);
    for ident in 0..FLOOD {
        node.encap(&piece(&flood, 800..1600, ident));
    }
    let given_up = node.counters().dropped(DropReason::FragmentAlone);
    assert!(given_up >= u64::from(FLOOD) - 64, "{given_up} of {FLOOD}: 64 are held at most");
    let offered = pieces(&udp(&flow(Protocol::UDP, CLIENT, VIP), &[7; 2_000]), 1);
    let sent = [2, 1, 0].into_iter().flat_map(|at| node.encap(&offered[at]).datagrams);
    let sent: Vec<_> = sent.map(|sent| sent.payload[22..].to_vec()).collect();
    assert_eq!(verified_flow(&joined(sent)), flow(Protocol::UDP, CLIENT, BACKEND));
    node.now = node.now + Duration::from_secs(2);
    node.expire();
    assert_eq!(node.counters().dropped(DropReason::FragmentAlone), u64::from(FLOOD));
    assert_eq!(node.counters().totals().difference(), 0);
}

#[test]
fn d8_e2_a_held_fragment_has_passed_every_check_of_where_it_came_from() {
    let mut node = node();
    let spoofed = pieces(&udp(&flow(Protocol::UDP, "10.244.7.7:1", CLIENT), &[9; 2_000]), 5);
    assert_eq!(decap(&mut node, &spoofed[1]).drops, [(DropReason::SourceSpoofed, 1)]);
    let unknown = node.decap(&vxlan(VNI, mac(MAC_A), &spoofed[1]), addr("192.168.1.99"), 0);
    assert_eq!(unknown.drops, [(DropReason::UnknownVtep, 1)]);
}
