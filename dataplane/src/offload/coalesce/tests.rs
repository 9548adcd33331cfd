use proptest::prelude::*;

use super::*;
use crate::offload::segment::segment;
use crate::packet::PacketBatch;
use crate::wire::sample::{Transport, plain};

/// The bytes of each group: one packet, or the superpacket and how it would be cut.
fn join(packets: &[Vec<u8>]) -> (PacketBatch, Coalescer) {
    let mut batch = PacketBatch::new(packets.len(), 0);
    for packet in packets {
        assert!(batch.receive_copy(packet));
    }
    let mut coalescer = Coalescer::new(true);
    coalescer.join(&batch.pool, &batch.packets);
    (batch, coalescer)
}

fn sizes(packets: &[Vec<u8>]) -> Vec<usize> {
    join(packets).1.groups().iter().map(Group::len).collect()
}

/// Cuts every group again.
fn cut_again(batch: &PacketBatch, coalescer: &Coalescer) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for group in coalescer.groups() {
        let members: Vec<&[u8]> =
            coalescer.members(group).map(|index| batch.pool.bytes(&batch.packets[index])).collect();
        assert_eq!(members.len(), group.len());
        if group.len() == 1 {
            packets.push(members[0].to_vec());
            continue;
        }
        let mut joined = vec![0; MAX_HEADERS_LEN];
        let checksum = group.write_headers(members[0], &mut joined).unwrap();
        joined.truncate(group.headers_len());
        members.iter().for_each(|member| joined.extend_from_slice(&member[group.headers_len()..]));
        let inner = InnerPacket::parse(&joined).unwrap();
        let Checksum::Partial { start, offset } = checksum else { panic!("not partial") };
        assert_eq!(start, inner.l4_offset);
        let field = usize::from(start + offset);
        let l4_len = (joined.len() - usize::from(start)) as u32;
        let pseudo = pseudo_header(inner.flow.src, inner.flow.dst, inner.flow.protocol, l4_len);
        assert_eq!(joined[field..field + 2], fold(pseudo).to_be_bytes());
        let mut out = vec![0; 65_536];
        for index in 0..group.len() {
            let len = segment(&joined, &inner, group.segment_len(), index, &mut out).unwrap();
            packets.push(out[..len].to_vec());
        }
        assert_eq!(segment(&joined, &inner, group.segment_len(), group.len(), &mut out), None);
    }
    packets
}

/// The wire-size segments of one superpacket.
fn cut(packet: &[u8], segment_len: u16) -> Vec<Vec<u8>> {
    let inner = InnerPacket::parse(packet).unwrap();
    let mut out = vec![0; 65_536];
    let mut segments = Vec::new();
    while let Some(len) = segment(packet, &inner, segment_len, segments.len(), &mut out) {
        segments.push(out[..len].to_vec());
    }
    segments
}

fn tcp(ipv6: bool, flags: u8, payload_len: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..payload_len).map(|index| index as u8).collect();
    plain(ipv6, Transport::Tcp { flags, option_words: 3 }, &payload).build()
}

fn udp(ipv6: bool, payload_len: usize) -> Vec<u8> {
    plain(ipv6, Transport::Udp, &vec![7; payload_len]).build()
}

#[test]
fn segments_of_a_superpacket_are_one_again() {
    for ipv6 in [false, true] {
        for packet in [
            tcp(ipv6, tcp::ACK | tcp::PSH, 10_500),
            tcp(ipv6, tcp::ACK | tcp::FIN, 10_000),
            udp(ipv6, 10_500),
        ] {
            let segments = cut(&packet, 1000);
            let (batch, coalescer) = join(&segments);
            assert_eq!(coalescer.groups().len(), 1);
            let group = &coalescer.groups()[0];
            assert_eq!((group.len(), group.segment_len()), (segments.len(), 1000));
            assert_eq!(cut_again(&batch, &coalescer), segments);
        }
    }
}

#[test]
fn flows_that_alternate_are_joined_apart() {
    let first = cut(&tcp(false, tcp::ACK, 5000), 1000);
    let mut other = plain(false, Transport::Udp, &[1; 5000]);
    other.ports = (4001, 80);
    let second = cut(&other.build(), 1000);
    let mixed: Vec<_> = first.into_iter().zip(second).flat_map(|(first, second)| [first, second]).collect();
    assert_eq!(sizes(&mixed), [5, 5]);
}

/// Replaces bytes and mends the checksums, so that nothing but the change speaks against joining.
fn changed(packet: &[u8], at: usize, value: &[u8]) -> Vec<u8> {
    let mut packet = packet.to_vec();
    packet[at..at + value.len()].copy_from_slice(value);
    let inner = InnerPacket::parse(&packet).unwrap();
    let mut out = vec![0; packet.len()];
    let len = segment(&packet, &inner, 0, 0, &mut out).unwrap();
    out.truncate(len);
    out
}

#[test]
fn c10_tcp_segments_that_could_not_be_restored_stay_apart() {
    let segments = cut(&tcp(false, tcp::ACK, 2000), 1000);
    let second = &segments[1];
    assert_eq!(sizes(&segments), [2]);
    let cases: [(&str, usize, &[u8]); 14] = [
        ("sequence", 24, &[0xff, 0xff, 0xff, 0xff]),
        ("acknowledgment", 28, &[1, 2, 3, 4]),
        ("window", 34, &[1, 2]),
        ("IP identification", 4, &[9, 9]),
        ("TOS", 1, &[0x28]),
        ("TTL", 8, &[63]),
        ("DF", 6, &[0]),
        ("options", 40, &[0]),
        ("urgent pointer", 38, &[0, 1]),
        ("reserved bits", 32, &[0x82]),
        ("SYN", 33, &[tcp::ACK | tcp::SYN]),
        ("RST", 33, &[tcp::ACK | tcp::RST]),
        ("URG", 33, &[tcp::ACK | tcp::URG]),
        ("CWR", 33, &[tcp::ACK | tcp::CWR]),
    ];
    for (field, at, value) in cases {
        let other = changed(second, at, value);
        let (batch, coalescer) = join(&[segments[0].clone(), other.clone()]);
        assert_eq!(coalescer.groups().len(), 2, "{field}");
        assert_eq!(cut_again(&batch, &coalescer), [segments[0].clone(), other], "{field}");
    }
}

#[test]
fn c10_out_of_order_segments_stay_in_their_order() {
    let mut segments = cut(&tcp(false, tcp::ACK, 4000), 1000);
    segments.swap(1, 2);
    assert_eq!(sizes(&segments), [1, 1, 1, 1]);
}

#[test]
fn c10_a_wrong_checksum_is_never_made_right() {
    for packet in [tcp(false, tcp::ACK, 4000), tcp(true, tcp::ACK, 4000), udp(false, 4000), udp(true, 4000)] {
        let mut segments = cut(&packet, 1000);
        *segments[1].last_mut().unwrap() ^= 1;
        assert_eq!(sizes(&segments), [1, 1, 2]);
        let mut segments = cut(&packet, 1000);
        *segments[0].last_mut().unwrap() ^= 1;
        assert_eq!(sizes(&segments), [1, 3]);
    }
    let mut segments = cut(&tcp(false, tcp::ACK, 4000), 1000);
    segments[2][10] ^= 1;
    assert_eq!(sizes(&segments), [2, 1, 1], "IPv4 header");
}

#[test]
fn c10_a_partial_checksum_is_accepted() {
    let segments = cut(&tcp(false, tcp::ACK, 3000), 1000);
    let mut batch = PacketBatch::new(3, 0);
    for segment in &segments {
        assert!(batch.receive_copy(segment));
    }
    let partial = batch.packets[1];
    let bytes = batch.pool.bytes_mut(&partial);
    let pseudo = {
        let flow = InnerPacket::parse(bytes).unwrap().flow;
        fold(pseudo_header(flow.src, flow.dst, flow.protocol, bytes.len() as u32 - 20))
    };
    bytes[36..38].copy_from_slice(&pseudo.to_be_bytes());
    let mut coalescer = Coalescer::new(true);
    coalescer.join(&batch.pool, &batch.packets);
    assert_eq!(coalescer.groups().len(), 3, "the sum of a pseudo-header is no checksum");
    batch.packets[1].checksum = Checksum::Partial { start: 20, offset: 16 };
    coalescer.join(&batch.pool, &batch.packets);
    assert_eq!(cut_again(&batch, &coalescer), segments);
    assert_eq!(coalescer.groups().len(), 1);
}

#[test]
fn c10_a_pushed_or_final_segment_is_the_last() {
    for flag in [tcp::PSH, tcp::FIN] {
        let mut segments = cut(&tcp(false, tcp::ACK, 4000), 1000);
        segments[1] = changed(&segments[1], 33, &[tcp::ACK | flag]);
        let (batch, coalescer) = join(&segments);
        assert_eq!(coalescer.groups().iter().map(Group::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(cut_again(&batch, &coalescer), segments);
        let mut segments = cut(&tcp(false, tcp::ACK, 3000), 1000);
        segments[0] = changed(&segments[0], 33, &[tcp::ACK | flag]);
        assert_eq!(sizes(&segments), [1, 2]);
    }
}

#[test]
fn c10_udp_datagrams_that_could_not_be_restored_stay_apart() {
    let datagrams = cut(&udp(false, 2000), 1000);
    assert_eq!(sizes(&datagrams), [2]);
    for (field, at, value) in [("TTL", 8, &[9][..]), ("TOS", 1, &[4]), ("ident", 4, &[0, 0]), ("DF", 6, &[0])]
    {
        assert_eq!(sizes(&[datagrams[0].clone(), changed(&datagrams[1], at, value)]), [1, 1], "{field}");
    }
    let mut without_checksum = datagrams.clone();
    without_checksum.iter_mut().for_each(|datagram| datagram[26..28].fill(0));
    assert_eq!(sizes(&without_checksum), [1, 1]);
    assert_eq!(
        sizes(&[cut(&udp(false, 1), 9)[0].clone(), cut(&udp(false, 2), 9)[0].clone()]),
        [1, 1],
        "longer"
    );
}

#[test]
fn c10_nothing_overtakes_a_fragment_and_fragments_are_not_joined() {
    let datagrams = cut(&udp(false, 4000), 1000);
    let mut fragment = datagrams[0].clone();
    fragment[6] = 0x20;
    let mixed =
        [datagrams[0].clone(), datagrams[1].clone(), fragment, datagrams[2].clone(), datagrams[3].clone()];
    assert_eq!(sizes(&mixed), [2, 1, 2]);
}

#[test]
fn acknowledgments_without_data_and_other_protocols_stay_alone() {
    let ack = tcp(false, tcp::ACK, 0);
    let ping = plain(false, Transport::Echo { reply: false }, &[1; 50]).build();
    assert_eq!(sizes(&[ack.clone(), ack, ping.clone(), ping]), [1, 1, 1, 1]);
}

#[test]
fn udp_stays_alone_where_the_device_takes_no_udp_superpackets() {
    let datagrams = cut(&udp(false, 2000), 1000);
    let (batch, mut coalescer) = join(&datagrams);
    coalescer.joins_udp = false;
    coalescer.join(&batch.pool, &batch.packets);
    assert_eq!(coalescer.groups().len(), 2);
}

#[test]
fn a_superpacket_ends_before_it_is_too_long_or_has_too_many_segments() {
    let many = cut(&udp(false, 100), 1);
    assert_eq!(sizes(&many), [64, 36]);
    let mut long = cut(&tcp(false, tcp::ACK, 65_000), 1300);
    let mut next = plain(false, Transport::Tcp { flags: tcp::ACK, option_words: 3 }, &[5; 1300]);
    next.ident = 0x1234_u16.wrapping_add(50);
    let next = next.build();
    long.push(changed(&next, 24, &0xffff_ff00_u32.wrapping_add(65_000).to_be_bytes()));
    assert_eq!(sizes(&long), [50, 1]);
}

/// One step of a stream: how long the next segment is, and what is odd about it.
#[derive(Clone, Debug)]
enum Odd {
    Nothing,
    Byte(prop::sample::Index, u8),
    Swapped,
    Repeated,
}

fn odd() -> impl Strategy<Value = Odd> {
    prop_oneof![
        6 => Just(Odd::Nothing),
        2 => (any::<prop::sample::Index>(), 1u8..).prop_map(|(at, with)| Odd::Byte(at, with)),
        1 => Just(Odd::Swapped),
        1 => Just(Odd::Repeated),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// C10: whatever is joined, cutting it gives the same bytes back, and each flow's packets in their order.
    #[test]
    fn what_is_joined_is_cut_into_the_same_bytes(
        ipv6 in any::<bool>(),
        is_tcp in any::<bool>(),
        flags in prop_oneof![3 => Just(tcp::ACK), 1 => Just(tcp::ACK | tcp::PSH), 1 => any::<u8>()],
        payload in prop::collection::vec(any::<u8>(), 1..3000),
        segment_len in 40u16..700,
        oddities in prop::collection::vec(odd(), 80),
    ) {
        let transport = if is_tcp { Transport::Tcp { flags, option_words: 2 } } else { Transport::Udp };
        let mut packets = cut(&plain(ipv6, transport, &payload).build(), segment_len);
        for (index, odd) in oddities.iter().enumerate() {
            match odd {
                Odd::Byte(at, with) if index < packets.len() => {
                    let at = at.index(packets[index].len());
                    packets[index][at] ^= with;
                }
                Odd::Swapped if index + 1 < packets.len() => packets.swap(index, index + 1),
                Odd::Repeated if index < packets.len() => packets.insert(index, packets[index].clone()),
                _ => {}
            }
        }
        packets.truncate(60);
        let (batch, coalescer) = join(&packets);
        let mut order: Vec<usize> = coalescer.groups().iter().flat_map(|group| coalescer.members(group)).collect();
        let joined: Vec<Vec<u8>> = cut_again(&batch, &coalescer);
        for (cut, index) in joined.iter().zip(&order) {
            prop_assert_eq!(cut, &packets[*index]);
        }
        order.sort_unstable();
        prop_assert_eq!(order, (0..packets.len()).collect::<Vec<_>>());
    }
}
