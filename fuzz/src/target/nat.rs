//! Through a VIP there and back, packet by packet (D1, D2, D9): what each side sees is what it would see without NAT.
//!
//! Input: family, protocol, client and its port, then for each packet who sends it and its [`Shape`].

use std::time::Duration;

use windlass_dataplane::packet::Checksum;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, MAC_A, VNI, addr, mac};
use windlass_tests::packets::{completed, verified_flow, vxlan};

use crate::input::Input;
use crate::node::{UNDERLAY_B, a};
use crate::sample::{Shape, pod};
use crate::{Seed, check};

const MAX_PACKETS: usize = 12;

/// The flow as the client and as the backend see it.
struct Flows {
    to_vip: FlowKey,
    to_backend: FlowKey,
}

/// Every request leaves translated or not at all; every answer of a known connection carries its VIP.
///
/// # Panics
/// When one does not.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let flows = flows(&mut input);
    let mut node = a();
    for _ in 0..MAX_PACKETS {
        if input.is_empty() {
            return;
        }
        let is_answer = input.flag();
        let shape = Shape::read(&mut input, 200);
        // Within one second an answer may still go the way of a flow that was there before its connection.
        node.now = node.now + Duration::from_secs(1);
        if is_answer { answer(&mut node, &flows, &shape) } else { request(&mut node, &flows, &shape) }
    }
}

fn flows(input: &mut Input<'_>) -> Flows {
    let (ipv6, is_udp) = (input.flag(), input.flag());
    // The worked example has no UDP service with an IPv6 VIP and one backend.
    let protocol = if is_udp && !ipv6 { Protocol::UDP } else { Protocol::TCP };
    let (vip, backend) =
        if ipv6 { ("fd00:10:96::21", "fd00:10:244:2::15") } else { ("10.96.0.21", "10.244.2.15") };
    let src = pod(ipv6, false, input.byte());
    let to_vip = FlowKey { src, dst: addr(vip), protocol, src_port: input.number(), dst_port: 80 };
    Flows { to_vip, to_backend: FlowKey { dst: addr(backend), dst_port: 8080, ..to_vip } }
}

fn request(node: &mut EngineNode, flows: &Flows, shape: &Shape) {
    let (packet, checksum) = shape.packet(&flows.to_vip);
    let known = node.connections.lookup(&flows.to_vip).is_some();
    let outcome = node.encap_with(&packet, checksum, 0);
    assert_eq!(outcome.packets, []);
    let [sent] = &outcome.datagrams[..] else {
        // A reset opens nothing; all else has a place to go.
        assert!(shape.is_reset() && !known, "{outcome:?}");
        return;
    };
    check::datagram(sent);
    same(&sent.payload[check::HEADERS_LEN..], sent.checksum, shape, &flows.to_backend);
}

fn answer(node: &mut EngineNode, flows: &Flows, shape: &Shape) {
    let reply = flows.to_backend.reversed();
    let (packet, _) = shape.packet(&reply);
    let known = node.connections.lookup(&reply).is_some();
    let payload = vxlan(VNI, mac(MAC_A), &packet);
    let outcome = node.decap(&payload, addr(UNDERLAY_B), 0);
    let [delivered] = &outcome.packets[..] else { unreachable!("{outcome:?}") };
    check::delivered(delivered);
    // Who never asked a VIP may be talking to the backend itself.
    let expected = if known { flows.to_vip.reversed() } else { reply };
    same(&delivered.bytes, delivered.checksum, shape, &expected);
}

/// `bytes` are what would have been sent in `flow` from the start, to the byte, with right checksums.
fn same(bytes: &[u8], checksum: Checksum, shape: &Shape, flow: &FlowKey) {
    let (expected, state) = shape.packet(flow);
    let bytes = completed(bytes.to_vec(), checksum);
    check::same(&bytes, &completed(expected, state));
    assert_eq!(verified_flow(&bytes), *flow);
}

/// Conversations of each kind.
pub fn seeds() -> Vec<Seed> {
    let request = |flags: u8, checksum: u8| vec![0, flags, 0, 90, 0, checksum];
    let answer = |flags: u8, checksum: u8| vec![1, flags, 0, 90, 0, checksum];
    let seed = |name, head: [u8; 2], packets: &[Vec<u8>]| {
        (name, [&head[..], &[14, 0x9c, 0x40], &packets.concat()].concat())
    };
    let whole = [request(1, 0), answer(2, 0), request(0, 0), answer(0, 0), request(3, 0), answer(3, 0)];
    let again = [request(1, 0), answer(2, 0), request(4, 0), answer(0, 0), request(1, 0), answer(2, 0)];
    vec![
        seed("tcp-v4-from-syn-to-fin", [0, 0], &whole),
        seed("tcp-v6-from-syn-to-fin", [1, 0], &whole),
        seed("tcp-v4-reset-and-again", [0, 0], &again),
        seed("tcp-v4-partial", [0, 0], &[request(1, 1), answer(2, 1), request(0, 1)]),
        seed("udp-v4", [0, 1], &[request(0, 0), answer(0, 0), request(0, 0)]),
        seed("udp-v4-without-checksum", [0, 1], &[request(0, 2), answer(0, 2)]),
        seed("reset-first", [0, 0], &[request(4, 0), answer(4, 0)]),
    ]
}
