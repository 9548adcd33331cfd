//! Superpackets cut into wire-size segments.
//!
//! Input: the segment size (two bytes), whether the packet stands as it is or is made from a shape, then the packet
//! or its [`Shape`] and flow.

use windlass_dataplane::offload::segment;
use windlass_dataplane::packet::MAX_PACKET_LEN;
use windlass_dataplane::wire::inner::InnerPacket;
use windlass_dataplane::wire::protocol::L4;
use windlass_tests::packets::verified_flow;

use crate::input::Input;
use crate::sample::Shape;
use crate::{Seed, check};

/// Cut from segments of this size on, so that no input makes tens of thousands of them.
const LEAST_SEGMENT_LEN: u16 = 8;

/// The segments are as many as are counted, their payloads in a row are the packet's, and each has right checksums.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let segment_len = input.number().max(LEAST_SEGMENT_LEN);
    if input.flag() {
        any(input.rest(), segment_len);
        return;
    }
    let shape = Shape::read(&mut input, 16_000);
    let (packet, _) = shape.between_pods(&mut input);
    let Ok(inner) = InnerPacket::parse(&packet) else { unreachable!("it was made whole") };
    let pieces = segments(&packet, segment_len);
    let payload: Vec<u8> = pieces.iter().flat_map(|piece| &piece[inner.headers_len()..]).copied().collect();
    check::same(&payload, &packet[inner.headers_len()..]);
    if matches!(inner.l4, L4::Tcp { .. } | L4::Udp) {
        assert_eq!(pieces.len(), segment::count(packet.len(), inner.headers_len(), segment_len));
        pieces.iter().for_each(|piece| assert_eq!(verified_flow(piece), inner.flow));
    }
}

/// Whatever the packet is, what comes out is no more than it.
fn any(packet: &[u8], segment_len: u16) {
    let Ok(inner) = InnerPacket::parse(packet) else { return };
    let cut = segments(packet, segment_len);
    let bytes: usize = cut.iter().map(|piece| piece.len() - inner.headers_len()).sum();
    assert!(bytes <= packet.len() - inner.headers_len());
}

/// All segments of a packet; none when they cannot be written.
pub(super) fn segments(packet: &[u8], segment_len: u16) -> Vec<Vec<u8>> {
    let Ok(inner) = InnerPacket::parse(packet) else { return Vec::new() };
    let mut out = vec![0; MAX_PACKET_LEN];
    let mut segments = Vec::new();
    while let Some(len) = segment::segment(packet, &inner, segment_len, segments.len(), &mut out) {
        segments.push(out[..len].to_vec());
    }
    segments
}

/// Superpackets, and what is none.
pub fn seeds() -> Vec<Seed> {
    let seed = |name, shape: [u8; 5], flow: [u8; 2]| {
        (name, [&[5, 0x78, 0][..], &shape, &flow, &[14, 15, 0x9c, 0x40, 0, 80]].concat())
    };
    vec![
        seed("tcp-v4", [0, 0x3a, 0x98, 0, 0], [0, 0]),
        seed("tcp-v6-fin", [3, 0x3a, 0x98, 0, 1], [1, 0]),
        seed("udp-v4-without-checksum", [0, 0x3a, 0x98, 0, 2], [0, 1]),
        seed("udp-v6", [0, 0x3a, 0x98, 0, 0], [1, 1]),
        seed("ping", [0, 0, 0, 0, 0], [0, 2]),
        (
            "cut-off-header",
            vec![0, 100, 1, 0x45, 0, 0, 20, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2],
        ),
    ]
}
