use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TransportSlice, icmpv4, icmpv6};

use super::*;
use crate::wire::inner::InnerPacket;
use crate::wire::sample::{Transport, assert_checksums, plain};

fn reporter(ipv6: bool) -> IpAddr {
    if ipv6 { IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]) } else { IpAddr::from([169, 254, 77, 1]) }
}

fn error_about(error: Error, ipv6: bool, quoted: &[u8]) -> Vec<u8> {
    let mut out = vec![0xaa; error_len(quoted) + 7];
    let len = emit_error(&mut out, error, reporter(ipv6), quoted);
    assert_eq!(len, error_len(quoted));
    out.truncate(len);
    assert_checksums(&out);
    out
}

#[test]
fn every_error_has_its_type_and_code_in_both_versions() {
    let needed = Error::FragmentationNeeded { mtu: 1450 };
    let cases = [
        (Error::PortUnreachable, icmpv4::DestUnreachableHeader::Port),
        (Error::HostUnreachable, icmpv4::DestUnreachableHeader::Host),
        (needed, icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 1450 }),
    ];
    let quoted4 = plain(false, Transport::Udp, b"hello").build();
    let quoted6 = plain(true, Transport::Udp, b"hello").build();
    let type4 = |error| match SlicedPacket::from_ip(&error_about(error, false, &quoted4)).unwrap().transport {
        Some(TransportSlice::Icmpv4(icmp)) => icmp.icmp_type(),
        other => panic!("{other:?}"),
    };
    let type6 = |error| match SlicedPacket::from_ip(&error_about(error, true, &quoted6)).unwrap().transport {
        Some(TransportSlice::Icmpv6(icmp)) => icmp.icmp_type(),
        other => panic!("{other:?}"),
    };
    for (error, kind) in cases {
        assert_eq!(type4(error), Icmpv4Type::DestinationUnreachable(kind));
    }
    let exceeded = icmpv4::TimeExceededCode::TtlExceededInTransit;
    assert_eq!(type4(Error::TimeExceeded), Icmpv4Type::TimeExceeded(exceeded));
    let unreachable = Icmpv6Type::DestinationUnreachable;
    assert_eq!(type6(Error::PortUnreachable), unreachable(icmpv6::DestUnreachableCode::Port));
    assert_eq!(type6(Error::HostUnreachable), unreachable(icmpv6::DestUnreachableCode::Address));
    assert_eq!(type6(needed), Icmpv6Type::PacketTooBig { mtu: 1450 });
    let exceeded = icmpv6::TimeExceededCode::HopLimitExceeded;
    assert_eq!(type6(Error::TimeExceeded), Icmpv6Type::TimeExceeded(exceeded));
    // C3: never under 1280.
    assert_eq!(type6(Error::FragmentationNeeded { mtu: 600 }), Icmpv6Type::PacketTooBig { mtu: 1280 });
}

#[test]
fn an_error_quotes_as_much_as_its_rfc_allows() {
    for (ipv6, headers, longest) in [(false, 28, 576), (true, 48, 1280)] {
        for payload_len in [0, 1, 500, 2000, 60_000] {
            let mut quoted = plain(ipv6, Transport::Udp, &vec![7; payload_len]).build();
            let packet = error_about(Error::PortUnreachable, ipv6, &quoted);
            assert_eq!(packet.len(), (headers + quoted.len()).min(longest));
            assert_eq!(packet[headers..], quoted[..packet.len() - headers]);
            assert_eq!(InnerPacket::parse(&packet).unwrap().flow.src, reporter(ipv6));
            quoted.extend([0; 6]);
            assert_eq!(error_about(Error::PortUnreachable, ipv6, &quoted), packet, "padding is not quoted");
        }
    }
}

#[test]
fn no_error_is_written_between_versions_or_without_room() {
    let quoted = plain(false, Transport::Udp, b"hello").build();
    let mut out = [0; 1280];
    assert_eq!(emit_error(&mut out, Error::TimeExceeded, reporter(true), &quoted), 0);
    assert_eq!(
        emit_error(&mut out[..error_len(&quoted) - 1], Error::TimeExceeded, reporter(false), &quoted),
        0
    );
    assert_eq!(emit_error(&mut out, Error::TimeExceeded, reporter(false), &[]), 0);
    assert_eq!(out, [0; 1280]);
}
