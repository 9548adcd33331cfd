//! ICMP errors about packets of translated flows, from the peer's side and from the pod's (D6, C8).
//!
//! Input: family, protocol, which side, whether a third router sends it, type and code, second word, how much is
//! quoted, then the quoted packet's [`Shape`].

use windlass_dataplane::packet::Checksum;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};
use windlass_tests::engine_node::{EngineNode, MAC_A, VNI, addr, flow, mac};
use windlass_tests::packets::{completed, vxlan};

use crate::input::Input;
use crate::node::{UNDERLAY_B, with_connections};
use crate::sample::{Shape, icmp_error};
use crate::{Seed, check};

/// Types of errors: unreachable, time exceeded, parameter problem; of ICMPv6 also packet too big.
const ERRORS: [u8; 3] = [3, 11, 12];
const ERRORS_V6: [u8; 4] = [1, 2, 3, 4];

/// Bytes of a TCP header that end in the middle of its checksum.
const HALF_A_TCP_CHECKSUM: usize = 17;

/// What an error says, whoever reads it.
struct Error {
    kind: [u8; 2],
    word: [u8; 4],
    quote_len: usize,
    shape: Shape,
}

impl Error {
    /// The error that `from` sends to the sender of the quoted packet, which is one of `quoted`.
    fn about(&self, quoted: &FlowKey, from: std::net::IpAddr) -> Vec<u8> {
        // What travels, and so what is quoted, has a whole checksum.
        let (packet, checksum) = self.shape.packet(quoted);
        let packet = completed(packet, checksum);
        let quote = &packet[..packet.len().min(self.quote_len)];
        icmp_error(&FlowKey { src: from, dst: quoted.src, ..*quoted }, self.kind, self.word, quote)
    }
}

/// Each side reads an error about the packet that it sent, with every checksum right.
///
/// # Panics
/// When it does not.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (ipv6, is_udp, from_pod, third) = (input.flag(), input.flag(), input.flag(), input.flag());
    let kind = [if ipv6 { input.choose(&ERRORS_V6) } else { input.choose(&ERRORS) }, input.byte()];
    let word = [0, 0, input.byte(), input.byte()];
    let headers_len = if ipv6 { 40 } else { 20 };
    // Longer errors than these nobody sends: RFC 792 and 1812 allow 576 bytes, RFC 4443 1,280.
    let l4_len = 8 + usize::from(input.number()) % 500;
    // Half a checksum cannot be adapted, and is left as it is.
    let quote_len = headers_len + if l4_len == HALF_A_TCP_CHECKSUM { l4_len + 1 } else { l4_len };
    let shape = Shape::read(&mut input, 600);
    let error = Error { kind, word, quote_len, shape };
    let (to_vip, to_backend) = flows(ipv6, is_udp);
    let mut node = with_connections();
    let router = addr(match (ipv6, from_pod) {
        (false, true) => "10.244.0.77",
        (false, false) => "10.244.2.77",
        (true, true) => "fd00:10:244::77",
        (true, false) => "fd00:10:244:2::77",
    });
    if from_pod {
        let answer = to_vip.reversed();
        let sender = if third { router } else { to_vip.src };
        let sent = encapped(&mut node, &error.about(&answer, sender));
        check::same(&sent, &error.about(&to_backend.reversed(), if third { router } else { to_backend.src }));
    } else {
        let sender = if third { router } else { to_backend.dst };
        let delivered = decapped(&mut node, &error.about(&to_backend, sender));
        check::same(&delivered, &error.about(&to_vip, if third { router } else { to_vip.dst }));
    }
}

fn flows(ipv6: bool, is_udp: bool) -> (FlowKey, FlowKey) {
    let (client, vip, backend) = if ipv6 {
        ("[fd00:10:244::14]:40000", "[fd00:10:96::21]:80", "[fd00:10:244:2::15]:8080")
    } else {
        ("10.244.0.14:40000", "10.96.0.21:80", "10.244.2.15:8080")
    };
    let protocol = if is_udp && !ipv6 { Protocol::UDP } else { Protocol::TCP };
    (flow(protocol, client, vip), flow(protocol, client, backend))
}

fn encapped(node: &mut EngineNode, error: &[u8]) -> Vec<u8> {
    let outcome = node.encap_with(error, Checksum::Complete, 0);
    let [sent] = &outcome.datagrams[..] else { unreachable!("{outcome:?}") };
    check::datagram(sent);
    sent.payload[check::HEADERS_LEN..].to_vec()
}

fn decapped(node: &mut EngineNode, error: &[u8]) -> Vec<u8> {
    let outcome = node.decap(&vxlan(VNI, mac(MAC_A), error), addr(UNDERLAY_B), 0);
    let [delivered] = &outcome.packets[..] else { unreachable!("{outcome:?}") };
    check::delivered(delivered);
    delivered.bytes.clone()
}

/// Both families, both sides, quotes long and short.
pub fn seeds() -> Vec<Seed> {
    let seed = |name, choices: [u8; 4], quoted: u16| {
        let [high, low] = quoted.to_be_bytes();
        (name, [&choices[..], &[0, 1, 5, 0x78, high, low, 0, 0, 60, 0, 0]].concat())
    };
    vec![
        seed("tcp-v4-from-the-backend", [0, 0, 0, 0], 100),
        seed("tcp-v4-eight-bytes", [0, 0, 0, 0], 0),
        seed("tcp-v4-from-a-router", [0, 0, 0, 1], 100),
        seed("udp-v4-from-the-backend", [0, 1, 0, 0], 100),
        seed("udp-v4-eight-bytes", [0, 1, 0, 0], 0),
        seed("tcp-v4-from-the-pod", [0, 0, 1, 0], 100),
        seed("tcp-v6-from-the-backend", [1, 0, 0, 0], 100),
        seed("tcp-v6-from-a-router", [1, 0, 0, 1], 0),
        seed("tcp-v6-from-the-pod", [1, 0, 1, 0], 100),
    ]
}
