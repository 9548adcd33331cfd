use std::net::IpAddr;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::wire::sample::{Sample, Transport, plain, samples};

/// What etherparse finds in a whole packet: flow, transport, transport header length.
fn by_etherparse(bytes: &[u8]) -> Option<(FlowKey, L4, u16)> {
    let sliced = SlicedPacket::from_ip(bytes).ok()?;
    let (src, dst, protocol): (IpAddr, IpAddr, _) = match sliced.net? {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            (header.source().into(), header.destination().into(), ip.payload().ip_number)
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            (header.source().into(), header.destination().into(), ip.payload().ip_number)
        }
        _ => return None,
    };
    let (l4, len, src_port, dst_port) = match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => {
            let (flags, len) = (tcp.slice()[13], tcp.header_slice().len() as u16);
            (L4::Tcp { flags }, len, tcp.source_port(), tcp.destination_port())
        }
        Some(TransportSlice::Udp(udp)) => (L4::Udp, 8, udp.source_port(), udp.destination_port()),
        Some(TransportSlice::Icmpv4(icmp)) => match icmp.icmp_type() {
            etherparse::Icmpv4Type::EchoRequest(echo) => (L4::EchoRequest, 8, echo.id, echo.id),
            etherparse::Icmpv4Type::EchoReply(echo) => (L4::EchoReply, 8, echo.id, echo.id),
            _ => (L4::IcmpError, 8, 0, 0),
        },
        Some(TransportSlice::Icmpv6(icmp)) => match icmp.icmp_type() {
            etherparse::Icmpv6Type::EchoRequest(echo) => (L4::EchoRequest, 8, echo.id, echo.id),
            etherparse::Icmpv6Type::EchoReply(echo) => (L4::EchoReply, 8, echo.id, echo.id),
            _ => (L4::IcmpError, 8, 0, 0),
        },
        _ => (L4::Other, 0, 0, 0),
    };
    Some((FlowKey { src, dst, protocol: Protocol(protocol.0), src_port, dst_port }, l4, len))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn parse_agrees_with_etherparse_on_whole_packets(sample in samples(0..64), padding in 0usize..40) {
        let mut bytes = sample.build();
        let len = bytes.len();
        bytes.resize(len + padding, 0xee);
        let inner = InnerPacket::parse(&bytes).unwrap();
        let (flow, l4, header_len) = by_etherparse(&bytes).unwrap();
        prop_assert_eq!((inner.flow, inner.l4, inner.l4_header_len), (flow, l4, header_len));
        prop_assert_eq!(inner.fragment, Fragment::Whole);
        prop_assert_eq!((inner.total_len as usize, inner.tos, inner.ttl), (len, sample.tos, 64));
        prop_assert_eq!(inner.dont_fragment, sample.ipv6 || sample.dont_fragment);
        prop_assert_eq!(len - inner.headers_len(), sample.payload.len());
    }
}

fn tcp_sample(ipv6: bool) -> Sample {
    plain(ipv6, Transport::Tcp { flags: tcp::SYN, option_words: 0 }, b"12345678")
}

#[test]
fn lying_lengths_are_malformed() {
    // A13: a name, a packet, what to change in it, and what is to come of that.
    type Lie<'a> = (&'a str, &'a [u8], &'a [(usize, u8)], Malformed);
    let (tcp4, tcp6) = (tcp_sample(false).build(), tcp_sample(true).build());
    let udp4 = plain(false, Transport::Udp, b"12345678").build();
    let cases: [Lie<'_>; 15] = [
        ("version 5", &tcp4, &[(0, 0x55)], Malformed::Invalid),
        ("version 4 on IPv6", &tcp6, &[(0, 0x40)], Malformed::Invalid),
        ("IHL 4", &tcp4, &[(0, 0x44)], Malformed::Invalid),
        ("IHL beyond the total length", &tcp4, &[(0, 0x4f), (3, 40)], Malformed::Truncated),
        ("total length of 0", &tcp4, &[(3, 0)], Malformed::Invalid),
        ("total length beyond the bytes", &tcp4, &[(3, 49)], Malformed::Truncated),
        ("payload length beyond the bytes", &tcp6, &[(5, 29)], Malformed::Truncated),
        ("payload length within the TCP header", &tcp6, &[(5, 19)], Malformed::Truncated),
        ("data offset 4", &tcp4, &[(32, 0x40)], Malformed::Invalid),
        ("data offset beyond the packet", &tcp4, &[(32, 0x80)], Malformed::Truncated),
        ("UDP length 7", &udp4, &[(25, 7)], Malformed::Invalid),
        ("UDP length beyond the packet", &udp4, &[(25, 17)], Malformed::Truncated),
        ("first fragment without its TCP header", &tcp4, &[(6, 0x20), (3, 36)], Malformed::Truncated),
        ("fragment over TCP's flags", &tcp4, &[(6, 0x20), (7, 1)], Malformed::Invalid),
        ("fragment beyond the longest packet", &tcp4, &[(6, 0x1f), (7, 0xff)], Malformed::Invalid),
    ];
    for (name, packet, changes, expected) in cases {
        let mut packet = packet.to_vec();
        for (at, byte) in changes {
            packet[*at] = *byte;
        }
        assert_eq!(InnerPacket::parse(&packet), Err(expected), "{name}");
    }
    assert_eq!(InnerPacket::parse(&[]), Err(Malformed::Truncated));
    let mut shorter = udp4.clone();
    shorter[25] = 8;
    assert_eq!(InnerPacket::parse(&shorter).unwrap().l4, L4::Udp, "a datagram may end before its packet");
}

#[test]
fn fragments_show_ports_in_the_first_only() {
    let mut packet = plain(false, Transport::Udp, &[0; 24]).build();
    packet[6] = 0x20;
    let first = InnerPacket::parse(&packet).unwrap();
    assert_eq!((first.fragment, first.l4, first.l4_header_len), (Fragment::First, L4::Udp, 8));
    assert_eq!((first.flow.src_port, first.flow.dst_port), (4000, 80));
    packet[7] = 4;
    let later = InnerPacket::parse(&packet).unwrap();
    assert_eq!((later.fragment, later.l4, later.l4_header_len), (Fragment::Later, L4::Udp, 0));
    assert_eq!((later.flow.src_port, later.flow.dst_port), (0, 0));
    let header = fragment_header(&packet).unwrap();
    assert_eq!((header.ident, header.offset, header.more), (0x1234, 32, true));
    packet[6] = 0;
    assert_eq!(InnerPacket::parse(&packet).unwrap().fragment, Fragment::Later);
    assert!(!fragment_header(&packet).unwrap().more);
    packet[7] = 0;
    assert_eq!(fragment_header(&packet), None);
}

#[test]
fn an_atomic_ipv6_fragment_is_whole_and_others_are_not() {
    let mut sample = plain(true, Transport::Udp, &[0; 24]);
    sample.extras = 3;
    let mut packet = sample.build();
    let inner = InnerPacket::parse(&packet).unwrap();
    assert_eq!((inner.fragment, inner.l4_offset), (Fragment::Whole, 72));
    assert_eq!(fragment_header(&packet), None);
    // The fragment header follows 8 bytes of hop-by-hop and 16 of destination options.
    assert_eq!(packet[64], 17);
    packet[67] = 1;
    assert_eq!(InnerPacket::parse(&packet).unwrap().fragment, Fragment::First);
    packet[67] = 0x10;
    let later = InnerPacket::parse(&packet).unwrap();
    assert_eq!((later.fragment, later.l4, later.flow.src_port), (Fragment::Later, L4::Udp, 0));
    let header = fragment_header(&packet).unwrap();
    assert_eq!((header.ident, header.offset, header.more), (9, 16, false));
}

#[test]
fn esp_and_icmp_of_the_other_version_are_other() {
    for (ipv6, protocol) in [(false, 50), (true, 50), (false, 58), (true, 1), (true, 59), (true, 51)] {
        let mut packet = plain(ipv6, Transport::Other, &[8; 4]).build();
        packet[if ipv6 { 6 } else { 9 }] = protocol;
        let inner = InnerPacket::parse(&packet).unwrap();
        assert_eq!((inner.l4, inner.l4_header_len, inner.flow.src_port), (L4::Other, 0, 0));
        assert_eq!(inner.flow.protocol, Protocol(protocol));
    }
}

#[test]
fn a_superpacket_of_65535_bytes_is_read() {
    for (ipv6, headers) in [(false, 40), (true, 60)] {
        let transport = Transport::Tcp { flags: tcp::ACK, option_words: 0 };
        let packet = plain(ipv6, transport, &vec![0; 65_535 - headers]).build();
        let inner = InnerPacket::parse(&packet).unwrap();
        assert_eq!((inner.total_len, inner.headers_len()), (65_535, headers));
    }
}
