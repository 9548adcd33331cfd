use proptest::prelude::*;

use super::*;
use crate::wire::sample::{Transport, assert_checksums, plain, samples};

fn split(packet: &[u8], segment_len: u16) -> Vec<Vec<u8>> {
    let inner = InnerPacket::parse(packet).unwrap();
    let mut out = vec![0xaa; 65_536];
    let mut segments = Vec::new();
    while let Some(len) = segment(packet, &inner, segment_len, segments.len(), &mut out) {
        segments.push(out[..len].to_vec());
    }
    segments
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn segments_joined_again_are_the_packet(sample in samples(0..5000), segment_len in 1u16..2000) {
        let packet = sample.build();
        let whole = InnerPacket::parse(&packet).unwrap();
        let segments = split(&packet, segment_len);
        let splits = matches!(whole.l4, L4::Tcp { .. } | L4::Udp);
        if !splits {
            prop_assert_eq!(segments, vec![packet]);
            return Ok(());
        }
        prop_assert_eq!(segments.len(), count(packet.len(), whole.headers_len(), segment_len));
        let mut joined = Vec::new();
        for (index, bytes) in segments.iter().enumerate() {
            assert_checksums(bytes);
            let inner = InnerPacket::parse(bytes).unwrap();
            let last = index + 1 == segments.len();
            prop_assert_eq!((inner.flow, inner.tos, inner.headers_len()), (whole.flow, whole.tos, whole.headers_len()));
            prop_assert_eq!(inner.total_len as usize, bytes.len());
            let payload = &bytes[inner.headers_len()..];
            prop_assert!(last || payload.len() == usize::from(segment_len));
            if let Ok(ip) = ipv4::Ipv4::new_checked(bytes) {
                prop_assert_eq!(ip.ident(), sample.ident.wrapping_add(index as u16));
            }
            if let (L4::Tcp { flags }, L4::Tcp { flags: all }) = (inner.l4, whole.l4) {
                let l4 = &bytes[usize::from(inner.l4_offset)..];
                let seq = 0xffff_ff00u32.wrapping_add(joined.len() as u32);
                prop_assert_eq!(tcp::Tcp::new_checked(l4).unwrap().seq(), seq);
                let only = if index == 0 { tcp::CWR } else { 0 } | if last { tcp::FIN | tcp::PSH } else { 0 };
                let everywhere = !(tcp::CWR | tcp::FIN | tcp::PSH);
                prop_assert_eq!(flags, all & (everywhere | only));
            }
            joined.extend_from_slice(payload);
        }
        prop_assert_eq!(joined, sample.payload);
    }
}

#[test]
fn a_packet_has_at_least_one_segment() {
    assert_eq!(count(1500, 40, 0), 1);
    assert_eq!(count(40, 40, 1460), 1);
    assert_eq!(count(1500, 40, 1460), 1);
    assert_eq!(count(1501, 40, 1460), 2);
    assert_eq!(count(65_535, 40, 1), 65_495);
    assert_eq!(count(20, 40, 1460), 1);
}

#[test]
fn a_partial_checksum_becomes_complete() {
    for (ipv6, transport) in [
        (false, Transport::Udp),
        (true, Transport::Udp),
        (true, Transport::Tcp { flags: tcp::PSH, option_words: 3 }),
    ] {
        let complete = plain(ipv6, transport, &[9; 3000]).build();
        let mut partial = complete.clone();
        let inner = InnerPacket::parse(&complete).unwrap();
        let at =
            usize::from(inner.l4_offset) + if inner.l4 == L4::Udp { udp::CHECKSUM } else { tcp::CHECKSUM };
        partial[at..at + 2].copy_from_slice(&[0x12, 0x34]);
        assert_eq!(split(&partial, 1000), split(&complete, 1000));
        assert_eq!(split(&partial, 0), [complete]);
    }
}

#[test]
fn no_udp_checksum_over_ipv4_stays_none() {
    // D2
    let mut packet = plain(false, Transport::Udp, &[9; 300]).build();
    packet[26..28].fill(0);
    assert!(split(&packet, 100).iter().all(|segment| segment[26..28] == [0, 0]));
}

#[test]
fn a_segment_that_has_no_room_is_not_written() {
    let packet = plain(false, Transport::Udp, &[9; 300]).build();
    let inner = InnerPacket::parse(&packet).unwrap();
    let mut out = [0; 127];
    assert_eq!(segment(&packet, &inner, 100, 0, &mut out), None);
    assert_eq!(segment(&packet, &inner, 99, 0, &mut out), Some(127));
    assert_eq!(segment(&packet[..300], &inner, 99, 0, &mut out), None, "a description of more bytes");
}

#[test]
fn a_fragment_is_not_split() {
    let mut packet = plain(false, Transport::Udp, &[9; 300]).build();
    packet[6] = 0x20;
    assert_eq!(split(&packet, 100), [packet]);
}

#[test]
fn a_datagram_that_ends_before_its_packet_keeps_its_length() {
    let mut packet = plain(true, Transport::Udp, &[9; 30]).build();
    packet.extend([7; 10]);
    packet[5] += 10;
    assert_eq!(split(&packet, 0), [packet]);
}
