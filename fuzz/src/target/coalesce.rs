//! segment(coalesce(x)) == x, byte for byte, for any batch of packets (C10).
//!
//! Input: family and protocol, then for each packet what differs from what would follow, its length in units of 8
//! bytes, and a byte to damage it with.

use windlass_dataplane::offload::coalesce::{Coalescer, Group, MAX_HEADERS_LEN};
use windlass_dataplane::packet::{Checksum, PacketBatch};
use windlass_dataplane::wire::flow::Protocol;
use windlass_tests::engine_node::flow;
use windlass_tests::packets::{Tcp, completed, partial, tcp, udp};

use crate::input::Input;
use crate::sample::payload;
use crate::target::segment::segments;
use crate::{Seed, check};

const MAX_PACKETS: usize = 24;

/// Every packet comes out once, in its flow's order, the bytes those that went in.
///
/// # Panics
/// When it is not so.
pub fn run(data: &[u8]) {
    let packets = packets(&mut Input::new(data));
    let mut batch = PacketBatch::new(packets.len().max(1), 0);
    for (packet, checksum) in &packets {
        assert!(batch.receive_copy(packet));
        if let Some(received) = batch.packets.last_mut() {
            received.checksum = *checksum;
        }
    }
    let mut coalescer = Coalescer::new(true);
    coalescer.join(&batch.pool, &batch.packets);
    let mut seen = vec![false; packets.len()];
    for group in coalescer.groups() {
        let members: Vec<usize> = coalescer.members(group).collect();
        assert_eq!(members.len(), group.len());
        assert!(members.is_sorted(), "a flow's order is changed: {members:?}");
        members.iter().for_each(|index| assert!(!std::mem::replace(&mut seen[*index], true)));
        if members.len() > 1 {
            let originals: Vec<_> = members.iter().map(|index| &packets[*index]).collect();
            is_cut_into(group, &originals);
        }
    }
    assert!(seen.iter().all(|seen| *seen), "a packet is lost");
}

fn is_cut_into(group: &Group, originals: &[&(Vec<u8>, Checksum)]) {
    let mut joined = vec![0; MAX_HEADERS_LEN];
    let checksum = group.write_headers(&originals[0].0, &mut joined);
    assert!(matches!(checksum, Some(Checksum::Partial { .. })), "{checksum:?}");
    joined.truncate(group.headers_len());
    originals.iter().for_each(|(packet, _)| joined.extend_from_slice(&packet[group.headers_len()..]));
    check::whole(&joined);
    let cut = segments(&joined, group.segment_len());
    assert_eq!(cut.len(), originals.len());
    for (cut, (packet, checksum)) in cut.iter().zip(originals) {
        check::same(cut, &completed(packet.clone(), *checksum));
    }
}

/// Packets that would follow each other but for what the input changes.
fn packets(input: &mut Input<'_>) -> Vec<(Vec<u8>, Checksum)> {
    let (ipv6, is_udp) = (input.flag(), input.flag());
    let (src, dst) = if ipv6 {
        ("[fd00:10:244:2::15]:8080", "[fd00:10:244::14]:40000")
    } else {
        ("10.244.2.15:8080", "10.244.0.14:40000")
    };
    let flow = flow(if is_udp { Protocol::UDP } else { Protocol::TCP }, src, dst);
    let (mut packets, mut seq, mut ident) = (Vec::new(), 1_000_u32, 7_u16);
    while packets.len() < MAX_PACKETS && !input.is_empty() {
        let (what, len, damage) = (input.byte(), usize::from(input.byte()) * 8, input.byte());
        let body = payload(len);
        let mut packet = match is_udp {
            true => udp(&flow, &body),
            false => tcp(&flow, if what & 1 == 1 { Tcp::Fin } else { Tcp::Ack }, &body),
        };
        if !ipv6 {
            packet[4..6].copy_from_slice(&ident.to_be_bytes());
        }
        if !is_udp {
            let at = if ipv6 { 44 } else { 24 };
            packet[at..at + 4].copy_from_slice(&seq.to_be_bytes());
        }
        let (mut packet, mut checksum) = with_checksums(packet);
        // A partial checksum is the device's own, and right by definition.
        if what & 6 != 2 {
            (packet, checksum) = (completed(packet, checksum), Checksum::Complete);
        }
        // Any byte of the headers, or of what follows them, after the checksums were right.
        if what & 4 == 4 {
            let at = usize::from(damage) % packet.len();
            packet[at] ^= 1 << (what >> 5);
        }
        if what & 8 == 0 {
            (seq, ident) = (seq.wrapping_add(len as u32), ident.wrapping_add(1));
        }
        packets.push((packet, checksum));
    }
    packets
}

/// The packet with a right header checksum and a partial transport checksum.
fn with_checksums(mut packet: Vec<u8>) -> (Vec<u8>, Checksum) {
    if packet[0] >> 4 == 4 {
        packet = windlass_tests::packets::with_header(packet, |_| ());
    }
    partial(packet)
}

/// Runs of each protocol and family, and runs with a flaw.
pub fn seeds() -> Vec<Seed> {
    let run = |head: [u8; 2], last: [u8; 3]| [&head[..], &[0, 125, 0].repeat(6), &last].concat();
    vec![
        ("tcp-v4", run([0, 0], [1, 60, 0])),
        ("tcp-v6", run([1, 0], [1, 60, 0])),
        ("udp-v4", run([0, 1], [0, 60, 0])),
        ("udp-v6", run([1, 1], [0, 60, 0])),
        ("tcp-v4-partial", [&[0, 0][..], &[2, 125, 0].repeat(6)].concat()),
        ("tcp-v4-damaged-payload", run([0, 0], [4, 125, 90])),
        ("tcp-v4-damaged-header", run([0, 0], [4, 125, 8])),
        ("tcp-v4-repeated", run([0, 0], [8, 125, 0])),
    ]
}
