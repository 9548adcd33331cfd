//! decap(encap(x)) == x for every packet between pods of two nodes (A14).
//!
//! Input: the packet's shape and its flow (see [`Shape::read`] and [`Shape::between_pods`]).

use windlass_tests::engine_node::addr;
use windlass_tests::packets::completed;

use crate::input::Input;
use crate::node::{UNDERLAY_A, a, b};
use crate::sample::Shape;
use crate::{Seed, check};

/// What node b delivers is what the pod of node a sent, from the slow path and from the flow cache.
///
/// # Panics
/// When it is not.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let shape = Shape::read(&mut input, 1_390);
    let (packet, checksum) = shape.between_pods(&mut input);
    let (mut a, mut b) = (a(), b());
    for _ in 0..2 {
        let encapped = a.encap_with(&packet, checksum, 0);
        assert_eq!(encapped.drops, []);
        let [sent] = &encapped.datagrams[..] else { unreachable!("{encapped:?}") };
        check::datagram(sent);
        assert_eq!(sent.checksum, checksum);
        let mut on_the_wire = sent.payload.clone();
        let inner = completed(on_the_wire.split_off(check::HEADERS_LEN), checksum);
        let received = b.decap(&[on_the_wire, inner.clone()].concat(), addr(UNDERLAY_A), sent.tos);
        assert_eq!(received.drops, []);
        let [delivered] = &received.packets[..] else { unreachable!("{received:?}") };
        // A whole checksum that happens to be the pseudo-header's sum passes for a partial one, and becomes itself again.
        check::same(&completed(delivered.bytes.clone(), delivered.checksum), &inner);
        check::same(&inner, &completed(packet.clone(), checksum));
    }
}

/// TCP, UDP and ping of both families.
pub fn seeds() -> Vec<Seed> {
    let seed = |name, ipv6, kind, checksum| {
        (name, vec![1, 0, 100, 0x2a, checksum, ipv6, kind, 14, 15, 0x9c, 0x40, 0, 80])
    };
    vec![
        seed("tcp-v4", 0, 0, 0),
        seed("tcp-v6-partial", 1, 0, 1),
        seed("udp-v4-without-checksum", 0, 1, 2),
        seed("udp-v6", 1, 1, 0),
        seed("ping-v4", 0, 2, 0),
        seed("ping-v6", 1, 2, 0),
    ]
}
