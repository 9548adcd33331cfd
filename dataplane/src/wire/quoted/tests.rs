use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::wire::answer::error::{Error, emit_error, error_len};
use crate::wire::sample::{Transport, plain, samples};

fn reporter(ipv6: bool) -> IpAddr {
    if ipv6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]) } else { IpAddr::from([169, 254, 77, 1]) }
}

fn error_about(error: Error, ipv6: bool, quoted: &[u8]) -> Vec<u8> {
    let mut out = vec![0xaa; error_len(quoted) + 7];
    let len = emit_error(&mut out, error, reporter(ipv6), quoted);
    assert_eq!(len, error_len(quoted));
    out.truncate(len);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_quoted_packet_is_found_whatever_is_before_it(sample in samples(0..900)) {
        // D6: inner options, extension headers, atomic fragments.
        let packet = sample.build();
        let error = error_about(Error::HostUnreachable, sample.ipv6, &packet);
        let inner = InnerPacket::parse(&packet).unwrap();
        let found = quoted(&error);
        let speaks = matches!(inner.l4, L4::Tcp { .. } | L4::Udp | L4::EchoRequest | L4::EchoReply);
        prop_assert_eq!(found.is_some(), speaks);
        if let Some(found) = found {
            prop_assert_eq!(found.flow, inner.flow);
            prop_assert_eq!(found.offset, if sample.ipv6 { 48 } else { 28 });
            prop_assert_eq!(found.l4_offset, found.offset + usize::from(inner.l4_offset));
            let at = checksum::field_offset(inner.flow.protocol).unwrap();
            prop_assert_eq!(found.l4_checksum_offset(), Some(found.l4_offset + at));
        }
    }
}

/// An error that quotes only `len` bytes of transport, as routers of RFC 792 do.
fn cut_error(ipv6: bool, quoted: &[u8], len: usize) -> Vec<u8> {
    let l4_offset = usize::from(InnerPacket::parse(quoted).unwrap().l4_offset);
    let mut error = error_about(Error::HostUnreachable, ipv6, quoted);
    let headers_len = if ipv6 { 48 } else { 28 };
    error.truncate(headers_len + l4_offset + len);
    let total_len = error.len() as u16;
    if ipv6 {
        ipv6::Ipv6::new_header(&mut error).unwrap().set_payload_len(total_len - 40);
    } else {
        ipv4::Ipv4::new_header(&mut error).unwrap().set_total_len(total_len);
    }
    error
}

#[test]
fn eight_quoted_bytes_are_enough_and_seven_are_not() {
    // D6
    for ipv6 in [false, true] {
        let transports =
            [Transport::Tcp { flags: 0, option_words: 1 }, Transport::Udp, Transport::Echo { reply: false }];
        for transport in transports {
            let is_tcp = matches!(transport, Transport::Tcp { .. });
            let packet = plain(ipv6, transport, &[0; 64]).build();
            let flow = InnerPacket::parse(&packet).unwrap().flow;
            let eight = quoted(&cut_error(ipv6, &packet, 8)).unwrap();
            assert_eq!((eight.flow, eight.has_l4_checksum), (flow, !is_tcp));
            assert_eq!(eight.l4_checksum_offset().is_some(), !is_tcp);
            assert_eq!(quoted(&cut_error(ipv6, &packet, 17)).unwrap().has_l4_checksum, !is_tcp);
            assert!(quoted(&cut_error(ipv6, &packet, 18)).unwrap().has_l4_checksum);
            assert_eq!(quoted(&cut_error(ipv6, &packet, 7)), None);
        }
    }
}

#[test]
fn a_quote_of_a_first_fragment_is_found_and_of_a_later_one_not() {
    let mut packet = plain(false, Transport::Udp, &[0; 32]).build();
    packet[6] = 0x20;
    assert!(quoted(&error_about(Error::TimeExceeded, false, &packet)).is_some());
    packet[7] = 1;
    assert_eq!(quoted(&error_about(Error::TimeExceeded, false, &packet)), None);
}
