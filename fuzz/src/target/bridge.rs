//! Any frame of an L2 segment, from its device, from a VTEP or from a stranger.
//!
//! Input: a byte whose lowest bits say where it comes from (0 the device, 1 to 3 a VTEP, else a stranger), one whose
//! lowest bit makes the segment learn and whose second one makes it drop what is unknown, the outer TOS, the choice of
//! destination and of source, then either the EtherType and what the frame carries, or, where the destination is chosen as
//! nobody's, a whole VXLAN payload.

use std::collections::BTreeSet;
use std::time::Duration;

use windlass_dataplane::engine::Settings;
use windlass_dataplane::packet::MAX_PACKET_LEN;
use windlass_dataplane::tables::{Learning, Place};
use windlass_dataplane::wire::ethernet::Mac;
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::{EngineNode, Outcome, addr, flow};
use windlass_tests::packets::{Tcp, partial, tcp, udp};
use windlass_tests::segments::{BLUE, ELSEWHERE, HERE, STRANGER, THERE, VTEPS, frame, question, tables};

use crate::Seed;
use crate::input::Input;

const MACS: [&str; 7] =
    [HERE, THERE, ELSEWHERE, STRANGER, "ff:ff:ff:ff:ff:ff", "33:33:ff:00:00:02", "00:00:00:00:00:00"];

/// Where a frame comes from.
const WAYS: [Option<&str>; 5] = [None, Some(VTEPS[0]), Some(VTEPS[1]), Some(VTEPS[2]), Some("192.0.2.99")];

/// What comes from the device goes to VTEPs of its segment, unchanged, to each at most once; what comes from the underlay
/// goes to the device or nowhere, and only if its source may be there. Nothing is learned in the place of a static entry,
/// or beyond the bound.
///
/// # Panics
/// When something of that does not hold.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (from, choices, tos) = (input.choose(&WAYS), input.byte(), input.byte());
    let (dst, src) = (input.choose(&[0, 1, 2, 3, 4, 5, 6, 7]), input.choose(&MACS));
    let mut bytes = match MACS.get(dst) {
        Some(dst) => {
            let ethertype = input.number();
            frame(BLUE, dst, src, ethertype, input.rest())
        }
        None => input.rest().to_vec(),
    };
    if bytes.len() > MAX_PACKET_LEN {
        return;
    }
    if from.is_none() && bytes.len() >= 8 {
        // The device writes this header itself.
        bytes[..4].copy_from_slice(&[8, 0, 0, 0]);
        bytes[7] = 0;
    }
    let tables = tables(|segment| {
        let learning = Learning { per_vtep: 2, lasts: Duration::from_secs(60) };
        segment.learning = (choices & 1 == 1).then_some(learning);
        segment.floods_unknown = choices & 2 == 0;
    });
    let mut node = EngineNode::bridge(tables, Settings::default());
    // The second time its source may have been learned.
    for _ in 0..2 {
        match from {
            None => check_sent(&bytes, &node.encap(&bytes)),
            Some(vtep) => {
                let outcome = node.decap(&bytes, addr(vtep), tos);
                check_delivered(&node, &bytes, vtep, &outcome);
            }
        }
    }
    assert!(node.learned.len() <= 4 * 2, "as many VTEPs and the device, and two for each");
}

/// The frame that went to VTEPs, or the one answer that came of it.
fn check_sent(bytes: &[u8], outcome: &Outcome) {
    let remotes: BTreeSet<_> = outcome.datagrams.iter().map(|sent| sent.remote.ip().to_string()).collect();
    assert_eq!(remotes.len(), outcome.datagrams.len(), "one copy each");
    assert!(remotes.iter().all(|remote| VTEPS.contains(&remote.as_str())));
    assert!(matches!(remotes.len(), 0 | 1 | 3), "one, or everybody");
    for sent in &outcome.datagrams {
        assert_eq!(sent.payload[..4], [8, 0, 0, 0], "no flag but I");
        assert_eq!(sent.payload[4..20], bytes[4..20], "network and MACs");
        assert!(
            bytes.ends_with(&sent.payload[22..]) || bytes.len() > sent.payload.len(),
            "tags and padding alone go"
        );
    }
    assert!(outcome.packets.len() <= 1, "one answer");
    for answer in &outcome.packets {
        assert!(outcome.datagrams.is_empty(), "it is answered instead of sent");
        assert_eq!(answer.bytes[4..8], bytes[4..8], "to the segment that asks");
    }
}

fn check_delivered(node: &EngineNode, bytes: &[u8], vtep: &str, outcome: &Outcome) {
    assert!(outcome.datagrams.is_empty(), "what came from the underlay never goes back there");
    for packet in &outcome.packets {
        assert!(VTEPS.contains(&vtep), "a stranger's frame is delivered");
        let (_, segment) = node
            .tables
            .segments
            .iter()
            .find(|(vni, _)| bytes[4..7] == vni.get().to_be_bytes()[1..])
            .unwrap_or_else(|| unreachable!("a network that is not served"));
        let src = packet.bytes[14..20].try_into().map_or_else(|_| unreachable!("six bytes"), Mac);
        match segment.place(src) {
            Some(Place::Vtep(known)) => assert_eq!(known.addr.ip(), addr(vtep), "a static entry is spoofed"),
            Some(Place::Device) => unreachable!("our own station is spoofed"),
            None => {}
        }
    }
    for known in node.learned.all(node.now) {
        let segment = node.tables.segments.lookup(known.vni);
        assert!(
            segment.is_some_and(|segment| segment.place(known.mac).is_none()),
            "a static entry is learned"
        );
    }
}

/// One for each way a frame can go.
pub fn seeds() -> Vec<Seed> {
    let there = flow(Protocol::TCP, "10.0.0.1:1000", "10.0.0.2:2000");
    let seed = |name, head: [u8; 5], rest: &[u8]| (name, [&head, rest].concat());
    let carried = |ethertype: u16, payload: &[u8]| [&ethertype.to_be_bytes(), payload].concat();
    let ipv4 = |packet: &[u8]| carried(0x0800, packet);
    let known = udp(&flow(Protocol::UDP, "10.0.0.1:1000", "10.0.0.2:2000"), b"data");
    let v6 = udp(&flow(Protocol::UDP, "[fd00::1]:1000", "[fd00::2]:2000"), b"data");
    vec![
        seed("to-a-known-station", [0, 0, 2, 1, 0], &ipv4(&known)),
        seed("to-everybody", [0, 0, 0, 4, 0], &ipv4(&known)),
        seed("to-an-unknown-station-learning", [0, 1, 0, 3, 0], &ipv4(&known)),
        seed("to-an-unknown-station-dropping", [0, 2, 0, 3, 0], &ipv4(&known)),
        seed("ipv6-to-a-group", [0, 0, 0, 5, 0], &carried(0x86dd, &v6)),
        seed("no-ip", [0, 0, 0, 1, 0], &carried(0x88b5, b"plain")),
        seed("tagged", [0, 0, 0, 1, 0], &carried(0x8100, &[&[0, 7], &ipv4(&known)[..]].concat())),
        seed("arp-question", [0, 0, 0, 7, 0], &question(BLUE, HERE, "10.0.0.1", "10.0.0.2")),
        seed("nd-question", [0, 0, 0, 7, 0], &question(BLUE, HERE, "fd00::1", "fd00::2")),
        seed("dad-question", [0, 0, 0, 7, 0], &question(BLUE, STRANGER, "::", "fd00::2")),
        seed("spoofed-arp", [1, 0, 0, 7, 0], &question(BLUE, STRANGER, "10.0.0.2", "10.0.0.9")),
        seed(
            "too-long",
            [0, 0, 0, 1, 0],
            &ipv4(&udp(&flow(Protocol::UDP, "10.0.0.1:1", "10.0.0.2:2"), &[1; 1_500])),
        ),
        seed("from-a-vtep", [1, 0, 3, 0, 1], &ipv4(&known)),
        seed("from-a-vtep-learning", [2, 1, 0, 0, 3], &ipv4(&known)),
        seed(
            "superpacket-from-a-vtep",
            [1, 0, 0, 0, 1],
            &ipv4(&partial(tcp(&there, Tcp::Ack, &[5; 3_000])).0),
        ),
        seed("spoofed-source", [2, 1, 0, 0, 1], &ipv4(&known)),
        seed("from-a-stranger", [4, 0, 0, 0, 3], &ipv4(&known)),
    ]
}
